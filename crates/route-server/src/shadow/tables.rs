//! The routes that a route server learned and those that it gives each member, in little memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Prefix};

use super::Exchange;
use crate::directory::SlotId;

/// Routes of both kinds, at most: our own limit. 250,000 prefixes of 40 members are 10 million, which take 200 MiB.
pub const MAX_ROUTES: usize = 32_000_000;
/// Octets of all different attributes, at most: our own limit.
pub const MAX_ATTRIBUTE_OCTETS: usize = 1 << 30;
/// Octets that a set of attributes takes besides its own.
const OVERHEAD: usize = 160;
/// First ASes of routes of no member that are named: our own limit.
const MAX_STRANGERS: usize = 64;

/// Where a route came from, as its reader numbers sessions, peers and files: what one of them withdraws another may still have.
pub type SourceId = u32;

/// The tables are larger than this comparison takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    #[error("more than {MAX_ROUTES} routes")]
    Routes,
    #[error("more than {} different path identifiers of routes that members are given", u16::MAX)]
    Paths,
    #[error("more than {} MiB of different attributes", MAX_ATTRIBUTE_OCTETS >> 20)]
    Attributes,
}

/// A set of attributes in [`Tables`].
pub(super) type AttributesId = u32;

#[derive(Clone, Copy, Debug)]
pub(super) struct Learned {
    pub(super) source: SourceId,
    pub(super) slot: SlotId,
    pub(super) path_id: u32,
    pub(super) attributes: AttributesId,
}

/// The routes to one prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    learned: Vec<Learned>,
    /// In order; slots and paths have 16 bits, so that a route takes eight octets.
    given: Vec<Given>,
}

/// What one member is given: the slot, the number of the path, and the attributes.
type Given = (u16, u16, AttributesId);

impl Entry {
    pub(super) fn learned(&self) -> &[Learned] {
        &self.learned
    }

    fn is_empty(&self) -> bool {
        self.learned.is_empty() && self.given.is_empty()
    }
}

/// What a route server has.
#[derive(Debug, Default)]
pub struct Tables {
    known: HashMap<Arc<Attributes>, AttributesId>,
    attributes: Vec<Arc<Attributes>>,
    octets: usize,
    prefixes: BTreeMap<Prefix, Entry>,
    learned: usize,
    given: usize,
    /// Numbers of the path identifiers of given routes.
    paths: HashMap<u32, u16>,
    /// Members of whom there is a table, if it is empty.
    members: BTreeSet<SlotId>,
    /// First ASes of learned routes that are no member's, and how many those are.
    strangers: BTreeMap<Option<Asn>, u64>,
}

impl Tables {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The server learned a route, from the peer at this address where the source says it. One from the same source with the same
    /// path identifier gives way. `false`: it is of no member, and is only counted.
    ///
    /// # Errors
    /// If there are too many.
    pub fn learn(
        &mut self,
        exchange: &Exchange,
        source: SourceId,
        peer: Option<IpAddr>,
        nlri: Nlri,
        attributes: &Attributes,
    ) -> Result<bool, Full> {
        let Some(slot) = exchange.announcer(nlri.prefix.afi(), peer, attributes) else {
            let first = attributes.as_path().first_asn();
            if self.strangers.contains_key(&first) || self.strangers.len() < MAX_STRANGERS {
                *self.strangers.entry(first).or_default() += 1;
            }
            self.withdraw(source, nlri);
            return Ok(false);
        };
        self.check_count()?;
        let attributes = self.intern(attributes)?;
        let learned = Learned { source, slot, path_id: nlri.path_id, attributes };
        let entry = self.prefixes.entry(nlri.prefix).or_default();
        match entry.learned.iter_mut().find(|known| known.source == source && known.path_id == nlri.path_id) {
            Some(known) => *known = learned,
            None => {
                entry.learned.push(learned);
                self.learned += 1;
            }
        }
        Ok(true)
    }

    /// A source withdraws a route.
    pub fn withdraw(&mut self, source: SourceId, nlri: Nlri) {
        let Some(entry) = self.prefixes.get_mut(&nlri.prefix) else { return };
        let before = entry.learned.len();
        entry.learned.retain(|known| known.source != source || known.path_id != nlri.path_id);
        self.learned -= before - entry.learned.len();
        if entry.is_empty() {
            self.prefixes.remove(&nlri.prefix);
        }
    }

    /// A source has gone with all that it had.
    pub fn forget(&mut self, source: SourceId) {
        let mut gone = 0;
        self.prefixes.retain(|_, entry| {
            let before = entry.learned.len();
            entry.learned.retain(|known| known.source != source);
            gone += before - entry.learned.len();
            !entry.is_empty()
        });
        self.learned -= gone;
    }

    /// There is a table of what the server gives this member, perhaps an empty one.
    pub fn has_table(&mut self, member: SlotId) {
        self.members.insert(member);
    }

    /// The server gives a member this route; what it gave it for the prefix before with this path identifier gives way.
    ///
    /// # Errors
    /// If there are too many.
    pub fn give(&mut self, member: SlotId, nlri: Nlri, attributes: &Attributes) -> Result<(), Full> {
        let Ok(slot) = u16::try_from(member) else { return Err(Full::Routes) };
        let Nlri { path_id, prefix } = nlri;
        self.check_count()?;
        let next = u16::try_from(self.paths.len() + 1).map_err(|_| Full::Paths);
        let path = match (path_id, self.paths.get(&path_id).copied()) {
            // By far most have none.
            (0, _) => 0,
            (_, Some(path)) => path,
            (_, None) => *self.paths.entry(path_id).or_insert(next?),
        };
        self.members.insert(member);
        let attributes = self.intern(attributes)?;
        let given = &mut self.prefixes.entry(prefix).or_default().given;
        match given.binary_search_by_key(&(slot, path), |(slot, path, _)| (*slot, *path)) {
            Ok(at) => given[at].2 = attributes,
            Err(at) => {
                given.insert(at, (slot, path, attributes));
                self.given += 1;
            }
        }
        Ok(())
    }

    /// As [`Self::give`], of a list without path identifiers: what it has before stays.
    ///
    /// # Errors
    /// If there are too many.
    pub fn give_also(&mut self, member: SlotId, prefix: Prefix, attributes: &Attributes) -> Result<(), Full> {
        let Some(entry) = self.prefixes.get(&prefix) else {
            return self.give(member, Nlri::new(prefix), attributes);
        };
        let mut before = 0;
        for known in self.given_to(entry, member) {
            if known == attributes {
                return Ok(());
            }
            before += 1;
        }
        self.give(member, Nlri { path_id: before, prefix }, attributes)
    }

    /// The server does not give a member the route of this path identifier any more.
    pub fn take_back(&mut self, member: SlotId, nlri: Nlri) {
        let path = if nlri.path_id == 0 { Some(0) } else { self.paths.get(&nlri.path_id).copied() };
        let (Some(path), Some(entry)) = (path, self.prefixes.get_mut(&nlri.prefix)) else { return };
        let before = entry.given.len();
        entry.given.retain(|(slot, of, _)| SlotId::from(*slot) != member || *of != path);
        self.given -= before - entry.given.len();
        if entry.is_empty() {
            self.prefixes.remove(&nlri.prefix);
        }
    }

    /// What is known of what the server gives a member is void: its session ended, or begins anew.
    pub fn forget_given(&mut self, member: SlotId) {
        let mut gone = 0;
        self.prefixes.retain(|_, entry| {
            let before = entry.given.len();
            entry.given.retain(|(slot, ..)| SlotId::from(*slot) != member);
            gone += before - entry.given.len();
            !entry.is_empty()
        });
        self.given -= gone;
        self.members.remove(&member);
    }

    /// Prefixes of both kinds of tables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Routes that the server learned.
    #[must_use]
    pub fn learned(&self) -> usize {
        self.learned
    }

    /// Routes that it gives, over all members.
    #[must_use]
    pub fn given(&self) -> usize {
        self.given
    }

    /// The members of whom there is a table.
    pub fn members_given(&self) -> impl Iterator<Item = SlotId> {
        self.members.iter().copied()
    }

    /// First ASes of learned routes that are no member's, and how many routes those are.
    #[must_use]
    pub fn strangers(&self) -> &BTreeMap<Option<Asn>, u64> {
        &self.strangers
    }

    pub(super) fn prefixes(&self) -> impl Iterator<Item = (&Prefix, &Entry)> {
        self.prefixes.iter()
    }

    pub(super) fn attributes(&self, id: AttributesId) -> Option<&Attributes> {
        self.attributes.get(id as usize).map(|attributes| &**attributes)
    }

    /// The routes to a prefix that the server gives a member; more than one where it sends several, or a file has several.
    pub(super) fn given_to(&self, entry: &Entry, member: SlotId) -> impl Iterator<Item = &Attributes> {
        let begin = entry.given.partition_point(|(slot, ..)| SlotId::from(*slot) < member);
        let of_member = entry.given[begin..].iter().take_while(move |(slot, ..)| SlotId::from(*slot) == member);
        of_member.filter_map(|(.., id)| self.attributes(*id))
    }

    /// Those that it gives to any member.
    pub(super) fn all_given(&self, entry: &Entry) -> impl Iterator<Item = &Attributes> {
        let ids: BTreeSet<AttributesId> = entry.given.iter().map(|(.., id)| *id).collect();
        ids.into_iter().filter_map(|id| self.attributes(id))
    }

    fn check_count(&self) -> Result<(), Full> {
        if self.learned + self.given >= MAX_ROUTES { Err(Full::Routes) } else { Ok(()) }
    }

    fn intern(&mut self, attributes: &Attributes) -> Result<AttributesId, Full> {
        if let Some(id) = self.known.get(attributes) {
            return Ok(*id);
        }
        let octets = attributes.as_octets().len() + OVERHEAD;
        if self.octets + octets > MAX_ATTRIBUTE_OCTETS {
            self.sweep();
        }
        if self.octets + octets > MAX_ATTRIBUTE_OCTETS {
            return Err(Full::Attributes);
        }
        let id = AttributesId::try_from(self.attributes.len()).map_err(|_| Full::Attributes)?;
        let shared = Arc::new(attributes.clone());
        self.octets += octets;
        self.attributes.push(Arc::clone(&shared));
        self.known.insert(shared, id);
        Ok(id)
    }

    /// Gives up the attributes that no route has, and numbers the others anew.
    fn sweep(&mut self) {
        let old = std::mem::take(&mut self.attributes);
        self.known.clear();
        self.octets = 0;
        let mut numbers: HashMap<AttributesId, AttributesId> = HashMap::new();
        let (attributes, known, octets) = (&mut self.attributes, &mut self.known, &mut self.octets);
        let mut renumber = |id: &mut AttributesId| {
            let Some(shared) = old.get(*id as usize) else { return };
            *id = *numbers.entry(*id).or_insert_with(|| {
                let number = attributes.len() as AttributesId;
                *octets += shared.as_octets().len() + OVERHEAD;
                attributes.push(Arc::clone(shared));
                known.insert(Arc::clone(shared), number);
                number
            });
        };
        for entry in self.prefixes.values_mut() {
            entry.learned.iter_mut().for_each(|learned| renumber(&mut learned.attributes));
            entry.given.iter_mut().for_each(|(.., id)| renumber(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_keeps_what_routes_have() {
        let mut tables = Tables::new();
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let attributes = |med| Attributes::builder().med(Some(med)).finish();
        let nlri = |text: &str| Nlri::new(prefix(text));
        tables.give(1, nlri("20.0.0.0/16"), &attributes(1)).expect("few");
        tables.give(1, nlri("20.1.0.0/16"), &attributes(2)).expect("few");
        tables.give(2, nlri("20.1.0.0/16"), &attributes(3)).expect("few");
        tables.take_back(1, nlri("20.0.0.0/16"));
        assert_eq!((tables.len(), tables.given(), tables.attributes.len()), (1, 2, 3));
        tables.sweep();
        assert_eq!(tables.attributes.len(), 2);
        let (_, entry) = tables.prefixes().next().expect("one");
        let med = |member| tables.given_to(entry, member).next().and_then(Attributes::med);
        assert_eq!((med(1), med(2), med(3)), (Some(2), Some(3), None));
        let id = tables.intern(&attributes(3)).expect("few");
        assert_eq!(tables.attributes(id), Some(&attributes(3)));
        tables.forget_given(2);
        tables.forget_given(1);
        assert!(tables.is_empty() && tables.members_given().next().is_none());
    }
    #[test]
    fn several_routes_for_a_prefix_are_kept_and_taken_back_one_by_one() {
        let mut tables = Tables::new();
        let prefix = "20.0.0.0/16".parse::<Prefix>().expect("a prefix");
        let nlri = |path_id| Nlri { path_id, prefix };
        let attributes = |med| Attributes::builder().med(Some(med)).finish();
        for path_id in [7, 1_000_000] {
            tables.give(1, nlri(path_id), &attributes(path_id)).expect("few");
        }
        tables.give(2, nlri(7), &attributes(3)).expect("few");
        let meds = |tables: &Tables, member| {
            let entry = tables.prefixes().next().map(|(_, entry)| entry);
            let given = entry.into_iter().flat_map(|entry| tables.given_to(entry, member));
            given.filter_map(Attributes::med).collect::<Vec<_>>()
        };
        assert_eq!((meds(&tables, 1), meds(&tables, 2), tables.given()), (vec![7, 1_000_000], vec![3], 3));
        tables.take_back(1, nlri(8));
        tables.take_back(1, nlri(7));
        assert_eq!((meds(&tables, 1), meds(&tables, 2)), (vec![1_000_000], vec![3]));

        // A list has no identifiers, and may say the same twice.
        let mut tables = Tables::new();
        for med in [1, 2, 1, 3] {
            tables.give_also(1, prefix, &attributes(med)).expect("few");
        }
        assert_eq!((meds(&tables, 1).len(), tables.given()), (3, 3));
        tables.forget_given(1);
        assert!(tables.is_empty());
    }
}

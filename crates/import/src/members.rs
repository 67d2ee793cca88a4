//! From connections to members: which addresses are those of one router, what each is called, and what no member set could have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use wayleave_core::Asn;
use wayleave_route_server::directory::{MAX_ADDRESSES, MAX_SLOTS};
use wayleave_route_server::policy::validate::can_be_next_hop;

use super::{Entry, Faults, NotTaken, Place, Refused};

/// Characters of a name that an import gives: it is a folder's name, too.
pub const MAX_IMPORT_NAME: usize = 32;
/// Octets that are copied from entries to routers.
const MAX_COPIED: usize = 64 << 20;
/// Folders of a trial that are not members'.
pub const RESERVED_NAMES: [&str; 3] = ["party1", "party2", "operators"];

/// One router at the exchange: what a slot of a member set is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportedMember {
    /// Of a to z, 0 to 9 and -, each once.
    pub name: String,
    pub asn: Asn,
    /// Where it stands in the file.
    pub places: Vec<Place>,
    /// What the file calls it.
    pub description: Option<String>,
    /// The router's IPv4 and IPv6 address, one at least.
    pub router: [Option<IpAddr>; 2],
    /// Further addresses that its routes may have as their next hop.
    pub next_hops: Vec<IpAddr>,
    /// Prefixes of IPv4 and of IPv6 that it may announce, where the file says it.
    pub limits: [Option<u32>; 2],
    pub as_sets: Vec<String>,
    pub refused: Vec<Refused>,
    pub not_taken: Vec<NotTaken>,
}

impl ImportedMember {
    /// The router's addresses, and further next hops.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.router.iter().flatten().copied().collect();
        for address in &self.next_hops {
            if !all.contains(address) {
                all.push(*address);
            }
        }
        all
    }

    /// A member set's limit counts both families together, so that it is known where that of each family in use is.
    pub fn max_prefix(&self) -> Option<u32> {
        let of_each = self.router.iter().zip(self.limits).filter(|(address, _)| address.is_some());
        of_each.map(|(_, limit)| limit).try_fold(0u32, |sum, limit| Some(sum.saturating_add(limit?)))
    }
}

/// A router that is put together.
struct Router {
    entry: Entry,
    places: Vec<Place>,
    addresses: [Option<(IpAddr, Place)>; 2],
}

impl Router {
    /// A family that it lacks, if it has one address alone.
    fn lacks(&self) -> Option<usize> {
        match &self.addresses {
            [Some(_), None] => Some(1),
            [None, Some(_)] => Some(0),
            _ => None,
        }
    }

    /// Takes in a router of the family that this one lacks.
    fn join(&mut self, other: Router, family: usize) {
        let Router { entry, places, mut addresses } = other;
        self.addresses[family] = addresses[family].take();
        self.entry.limits[family] = entry.limits[family].or(self.entry.limits[family]);
        for place in places {
            push_new(&mut self.places, place);
        }
        for set in entry.as_sets {
            push_new(&mut self.entry.as_sets, set);
        }
        for refused in entry.refused {
            push_new(&mut self.entry.refused, refused);
        }
        for setting in entry.not_taken {
            push_new(&mut self.entry.not_taken, setting);
        }
        for hop in entry.next_hops {
            if !self.entry.next_hops.iter().any(|(known, _)| *known == hop.0) {
                self.entry.next_hops.push(hop);
            }
        }
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Makes members of the entries. What is wrong with them is added to the faults.
pub(super) fn members(entries: Vec<Entry>, faults: &mut Faults) -> Vec<ImportedMember> {
    if let Some(message) = too_much(&entries) {
        faults.at(&Place::default(), message);
        return Vec::new();
    }
    let routers = routers(entries);
    if routers.len() > MAX_SLOTS {
        let message = format!("{} routers, and a member set has {MAX_SLOTS} slots at most", routers.len());
        faults.at(&Place::default(), message);
        return Vec::new();
    }
    check_addresses(&routers, faults);
    let mut names = Names::default();
    let mut members: Vec<ImportedMember> = routers.into_iter().map(|router| member(router, &mut names)).collect();
    list_differing(&mut members);
    members
}

/// Why routers are not even made of the entries, each of which has a copy of what its entry says.
fn too_much(entries: &[Entry]) -> Option<String> {
    let (mut addresses, mut octets) = (0, 0usize);
    for entry in entries {
        let six = entry.addresses.iter().filter(|(address, _)| address.is_ipv6()).count();
        let count = six.max(entry.addresses.len() - six);
        addresses += count;
        octets = octets.saturating_add(entry.octets().saturating_mul(count));
    }
    // A router has an address of each family at most.
    if addresses > 2 * MAX_SLOTS {
        return Some(format!("more than {MAX_SLOTS} routers, and a member set has {MAX_SLOTS} slots at most"));
    }
    (octets > MAX_COPIED).then(|| {
        format!("more than {} MiB of settings, those of an entry counted for each of its routers", MAX_COPIED >> 20)
    })
}

/// Rules for others name an AS: what its routers differ in is no rule for them.
fn list_differing(members: &mut [ImportedMember]) {
    let mut of_ases: BTreeMap<Asn, Vec<usize>> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        of_ases.entry(member.asn).or_default().push(index);
    }
    for routers in of_ases.values().filter(|routers| routers.len() > 1) {
        let mut differing: BTreeSet<&'static str> = BTreeSet::new();
        for refused in routers.iter().flat_map(|at| &members[*at].refused) {
            if routers.iter().any(|at| !members[*at].refused.contains(refused)) {
                differing.insert(refused.setting);
            }
        }
        for at in routers {
            let member = &mut members[*at];
            let own = differing.iter().filter(|setting| member.refused.iter().any(|of| of.setting == **setting));
            let own: Vec<NotTaken> =
                own.map(|setting| NotTaken { setting: (*setting).to_owned(), value: None }).collect();
            member.not_taken.extend(own);
        }
    }
}

/// Within an entry the first IPv4 address and the first IPv6 address are one router's, and so on. Of a pool an address that stands
/// alone joins the first one of the other family that does.
fn routers(entries: Vec<Entry>) -> Vec<Router> {
    let mut routers: Vec<Router> = Vec::new();
    let mut alone: BTreeMap<(usize, usize), std::collections::VecDeque<usize>> = BTreeMap::new();
    for mut entry in entries {
        let (four, six): (Vec<_>, Vec<_>) =
            std::mem::take(&mut entry.addresses).into_iter().partition(|(address, _)| address.is_ipv4());
        let count = four.len().max(six.len());
        let (mut four, mut six) = (four.into_iter(), six.into_iter());
        for _ in 0..count {
            let (places, addresses) = (vec![entry.place.clone()], [four.next(), six.next()]);
            let router = Router { entry: entry.clone(), places, addresses };
            let Some(lacks) = router.lacks() else {
                routers.push(router);
                continue;
            };
            // A router of this family that waits for one of the other is what the other family waits for.
            let waiting = alone.get_mut(&(entry.pool, lacks)).and_then(std::collections::VecDeque::pop_front);
            match waiting.and_then(|first| routers.get_mut(first)) {
                Some(first) => first.join(router, 1 - lacks),
                None => {
                    alone.entry((entry.pool, 1 - lacks)).or_default().push_back(routers.len());
                    routers.push(router);
                }
            }
        }
    }
    routers
}

/// What no member set could have.
fn check_addresses(routers: &[Router], faults: &mut Faults) {
    let mut owners: BTreeMap<IpAddr, (Asn, &Place)> = BTreeMap::new();
    for router in routers {
        let asn = router.entry.asn;
        let own = router.addresses.iter().flatten();
        let count = own.clone().count() + router.entry.next_hops.len();
        if count > MAX_ADDRESSES {
            let message = format!("{count} addresses of one router, a slot has {MAX_ADDRESSES} at most");
            faults.at(&router.entry.place, message);
        }
        let own = own.map(|at| (at, true));
        for ((address, place), is_router) in own.chain(router.entry.next_hops.iter().map(|at| (at, false))) {
            if !can_be_next_hop(*address) {
                faults.at(place, format!("{address} cannot be a router's address on the exchange's network"));
                continue;
            }
            match owners.get(address) {
                Some((other, before)) if *other != asn => {
                    faults.at(place, format!("{address} of {asn} is {other}'s, too ({})", before.in_words()));
                }
                Some((_, before)) if is_router => {
                    faults.at(place, format!("{address} of {asn} twice ({})", before.in_words()));
                }
                Some(_) => {}
                None => {
                    owners.insert(*address, (asn, place));
                }
            }
        }
    }
}

impl Place {
    pub(super) fn in_words(&self) -> String {
        match self.line {
            Some(line) => format!("line {line}"),
            None => self.path.clone(),
        }
    }
}

/// Names that are given.
#[derive(Default)]
struct Names {
    given: BTreeSet<String>,
    /// The last number that a name was given with: the lower ones are taken.
    numbers: BTreeMap<String, u32>,
}

impl Names {
    /// The name itself, or with the first number from 2 on that nobody has.
    fn give(&mut self, wanted: &str) -> String {
        let is_free = |name: &str| !self.given.contains(name) && !RESERVED_NAMES.contains(&name);
        let mut name = wanted.to_owned();
        let number = self.numbers.entry(wanted.to_owned()).or_insert(1);
        while !is_free(&name) {
            *number += 1;
            let end = format!("-{number}");
            let begin: String = wanted.chars().take(MAX_IMPORT_NAME - end.len()).collect();
            name = begin.trim_end_matches('-').to_owned() + &end;
        }
        self.given.insert(name.clone());
        name
    }
}

/// Lower-case letters and digits of a text, with one hyphen between its words.
fn plain(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars().filter(char::is_ascii) {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') && c != '\'' {
            name.push('-');
        }
    }
    name.truncate(MAX_IMPORT_NAME);
    name.trim_end_matches('-').to_owned()
}

fn member(router: Router, names: &mut Names) -> ImportedMember {
    let Router { entry, places, addresses } = router;
    let plain = entry.name.as_deref().map(plain).filter(|name| !name.is_empty());
    let name = names.give(&plain.unwrap_or_else(|| format!("as{}", entry.asn.0)));
    ImportedMember {
        name,
        asn: entry.asn,
        places,
        description: entry.name,
        router: addresses.map(|address| address.map(|(address, _)| address)),
        next_hops: entry.next_hops.into_iter().map(|(address, _)| address).collect(),
        limits: entry.limits,
        as_sets: entry.as_sets,
        refused: entry.refused,
        not_taken: entry.not_taken,
    }
}

//! What all route servers are given, and what each member is to have of it then.

use wayleave_bgp::{Attributes, Community, Nlri, Origin, Update};
use wayleave_core::{Asn, Prefix};
use wayleave_papers::bench::exchange_trace::generate;

use crate::bench::exchange::prefix;
use crate::sim::{member_address, member_asn};

/// Prefixes that share a path, and so an UPDATE where one member announces several: an UPDATE of the paper's trace has three on average.
const GROUP: usize = 3;
/// Of so many groups of a member one is closed to some others by communities.
const CLOSED: u64 = 8;
/// To how many.
const CLOSED_TO: u64 = 3;
/// Routes of a prefix, on average, in the paper's table (section 7.1).
const ROUTES_OF_A_PREFIX: f64 = 1.9;

/// What holds while tables are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Nothing,
    /// All announce, and policies are as at the beginning.
    Whole,
    /// The largest member exports nothing to the quarter.
    Hidden,
    /// The quarter is down.
    Without,
}

/// What a server sends to a member whose own route is the best that this member may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnBest {
    /// The best of all others.
    NextIsSent,
    /// Most often none, as OpenBGPD 7.7 does: it goes on to a worse route only where a filter rejects a better one. It is not compared.
    NotCompared,
}

/// The entry of a table to be that is not compared.
const ANY: u16 = u16::MAX;

fn fits(is: u16, wanted: u16) -> bool {
    wanted == ANY || is == wanted
}

/// A table in a member's router: by number of prefix, the slot of the member whose route it has, plus one; 0 without a route.
pub type Table = Vec<u16>;

/// Who announces what, and how.
#[derive(Clone, Debug)]
pub struct Work {
    pub members: usize,
    pub routes: usize,
    /// Of each prefix, the members that announce it.
    holders: Vec<Vec<u32>>,
    /// Of each group, its holders from the shortest path on.
    order: Vec<Vec<u32>>,
}

/// A number that follows from these.
fn draw(slot: u32, group: usize, purpose: u64) -> u64 {
    // The last step of SplitMix64.
    let mut z = (u64::from(slot) << 40 | group as u64).wrapping_add(purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Work {
    /// So many routes among so many members, with the moments of the paper's table: 1.9 routes of a prefix, and a largest member that
    /// announces five of eight prefixes.
    ///
    /// # Panics
    /// If there are 65,535 members or more.
    #[must_use]
    pub fn new(members: usize, routes: usize) -> Self {
        assert!(members < usize::from(u16::MAX), "tables have two octets for a slot");
        let enough = (routes as f64 / ROUTES_OF_A_PREFIX * 1.2) as usize + 64;
        let (mut left, mut holders) = (routes, Vec::new());
        for mut of_prefix in generate(members, enough, 0, 20).table {
            of_prefix.truncate(left);
            left -= of_prefix.len();
            if of_prefix.is_empty() {
                break;
            }
            holders.push(of_prefix);
        }
        let order = holders.chunks(GROUP).enumerate().map(|(group, prefixes)| {
            let mut all: Vec<u32> = prefixes.iter().flatten().copied().collect();
            all.sort_unstable_by_key(|slot| (draw(*slot, group, 0), *slot));
            all.dedup();
            all
        });
        Self { members, routes: routes - left, order: order.collect(), holders }
    }

    #[must_use]
    pub fn prefixes(&self) -> usize {
        self.holders.len()
    }

    #[must_use]
    pub fn slots(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.members).expect("few members")
    }

    /// The slot of the member that announces most.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.slots().end - 1
    }

    /// Whether it is one of the quarter of the members that the largest hides its routes from, and that goes down and returns.
    #[must_use]
    pub fn is_of_quarter(&self, slot: u32) -> bool {
        slot % 4 == 1 && slot != self.largest()
    }

    /// The quarter's slots.
    pub fn quarter(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots().filter(|slot| self.is_of_quarter(*slot))
    }

    /// The slots that the routes of `slot` to a group's prefixes are closed to.
    fn closed_to(&self, slot: u32, group: usize) -> impl Iterator<Item = u32> + '_ {
        let count = if draw(slot, group, 1).is_multiple_of(CLOSED) { CLOSED_TO } else { 0 };
        (0..count).map(move |which| (draw(slot, group, 2 + which) % self.members as u64) as u32)
    }

    /// What the router of the member in `slot` announces: prefixes, and the attributes that they share.
    #[must_use]
    pub fn table_of(&self, slot: u32) -> Vec<(Vec<Nlri>, Attributes)> {
        let groups = self.holders.chunks(GROUP).zip(&self.order).enumerate();
        let updates = groups.filter_map(|(group, (prefixes, order))| {
            let length = order.iter().position(|holder| *holder == slot)?;
            let own = (group * GROUP..).zip(prefixes).filter(|(_, holders)| holders.contains(&slot));
            let origin = Asn(1_000_000 + u32::try_from(group).expect("few groups"));
            let mut closed: Vec<Community> =
                self.closed_to(slot, group).map(|other| Community::new(0, member_asn(other).0 as u16)).collect();
            closed.sort_unstable();
            closed.dedup();
            let mut editor = Attributes::builder();
            editor.prepend(origin, 1 + length).prepend(member_asn(slot), 1).communities(&closed);
            editor.origin(Origin::Igp).ipv4_next_hop(member_address(slot));
            Some((own.map(|(number, _)| prefix(number)).collect(), editor.finish()))
        });
        updates.collect()
    }

    /// The table that the router of `receiver` is to have.
    #[must_use]
    pub fn expected(&self, receiver: u32, stage: Stage, own_best: OwnBest) -> Table {
        let is_away = |slot: u32| stage == Stage::Without && self.is_of_quarter(slot);
        if stage == Stage::Nothing || is_away(receiver) {
            return vec![0; self.prefixes()];
        }
        let is_hidden = |slot: u32| stage == Stage::Hidden && slot == self.largest() && self.is_of_quarter(receiver);
        let best = |(number, holders): (usize, &Vec<u32>)| {
            let group = number / GROUP;
            let there = |slot: &&u32| holders.contains(slot) && !is_away(**slot);
            let is_open = |slot: u32| {
                slot != receiver && !is_hidden(slot) && !self.closed_to(slot, group).any(|other| other == receiver)
            };
            let mut after_own = false;
            for slot in self.order[group].iter().filter(there) {
                if is_open(*slot) {
                    return if after_own { ANY } else { *slot as u16 + 1 };
                }
                after_own |= *slot == receiver && own_best == OwnBest::NotCompared;
            }
            0
        };
        self.holders.iter().enumerate().map(best).collect()
    }
}

/// The entry of a table for a route.
fn entry(attributes: &Attributes) -> u16 {
    let first = attributes.as_path().first_asn().map_or(0, |asn| asn.0);
    first.checked_sub(member_asn(0).0).map_or(ANY, |slot| u16::try_from(slot + 1).unwrap_or(ANY))
}

/// The number of a prefix, if it is one of the table.
fn number(prefix: Prefix) -> usize {
    let [a, b, c, ..] = prefix.octets();
    (u32::from_be_bytes([0, a, b, c]) as usize).wrapping_sub(20 << 16)
}

/// A member's table beside what it is to be.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    table: Table,
    expected: Table,
    /// Prefixes in which the two differ.
    pub wrong: usize,
}

impl Compared {
    /// An empty table.
    #[must_use]
    pub fn new(work: &Work) -> Self {
        let empty = vec![0; work.prefixes()];
        Self { table: empty.clone(), expected: empty, wrong: 0 }
    }

    /// That of a router which has these routes.
    #[must_use]
    pub fn of<'a>(work: &Work, routes: impl Iterator<Item = (&'a Prefix, &'a Attributes)>) -> Self {
        let mut compared = Self::new(work);
        routes.for_each(|(prefix, attributes)| compared.set(*prefix, entry(attributes)));
        compared
    }

    /// From now on it is to be this.
    pub fn expect(&mut self, expected: Table) {
        self.wrong = self.table.iter().zip(&expected).filter(|(is, wanted)| !fits(**is, **wanted)).count();
        self.expected = expected;
    }

    fn set(&mut self, prefix: Prefix, value: u16) {
        // A prefix that nobody announced is wrong for good.
        let Some(entry) = self.table.get_mut(number(prefix)) else { return self.wrong += 1 };
        let wanted = self.expected[number(prefix)];
        self.wrong -= usize::from(!fits(*entry, wanted));
        self.wrong += usize::from(!fits(value, wanted));
        *entry = value;
    }

    /// Takes an UPDATE.
    pub fn update(&mut self, update: &Update) {
        update.withdrawn.iter().for_each(|nlri| self.set(nlri.prefix, 0));
        if let Some(attributes) = &update.attributes {
            let value = entry(attributes);
            update.announced.iter().for_each(|nlri| self.set(nlri.prefix, value));
        }
    }

    /// The session has ended.
    pub fn clear(&mut self) {
        self.table.fill(0);
        let expected = std::mem::take(&mut self.expected);
        self.expect(expected);
    }

    /// Routes in it.
    #[must_use]
    pub fn routes(&self) -> usize {
        self.table.iter().filter(|entry| **entry > 0).count()
    }

    /// Prefixes without a route that are to have one, or the other way round.
    #[must_use]
    pub fn missing(&self) -> usize {
        let pairs = self.table.iter().zip(&self.expected);
        pairs.filter(|(is, wanted)| !fits(**is, **wanted) && (**is == 0 || **wanted == 0)).count()
    }

    fn first_wrong_entry(&self) -> Option<(usize, u16, u16)> {
        let mut pairs = self.table.iter().zip(&self.expected).enumerate();
        pairs.find_map(|(number, (is, wanted))| (!fits(*is, *wanted)).then_some((number, *is, *wanted)))
    }

    /// The first prefix in which the two differ.
    #[must_use]
    pub fn first_wrong_prefix(&self) -> Option<Prefix> {
        self.first_wrong_entry().map(|(number, ..)| prefix(number).prefix)
    }

    /// The same, with what it is and what it is to be.
    #[must_use]
    pub fn first_wrong(&self) -> String {
        let of = |entry: u16| entry.checked_sub(1).map_or("nobody".to_owned(), |slot| format!("slot {slot}"));
        self.first_wrong_entry().map_or_else(String::new, |(number, is, wanted)| {
            format!("{} is of {}, expected of {}", prefix(number).prefix, of(is), of(wanted))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_as_many_routes_as_asked_for_and_each_stage_what_follows_from_it() {
        let work = Work::new(8, 1_000);
        let announced: usize = work.slots().flat_map(|slot| work.table_of(slot)).map(|(own, _)| own.len()).sum();
        assert_eq!((work.routes, announced), (1_000, 1_000));
        let mean = 1_000.0 / work.prefixes() as f64;
        assert!((1.7..2.1).contains(&mean), "{mean} routes of a prefix");
        assert_eq!(work.quarter().collect::<Vec<_>>(), [1, 5]);
        let largest = u16::try_from(work.largest()).expect("few") + 1;
        let expected = |slot, stage| work.expected(slot, stage, OwnBest::NextIsSent);
        let count = |slot, stage, of: u16| expected(slot, stage).iter().filter(|entry| **entry == of).count();
        for slot in work.slots() {
            assert!(!expected(slot, Stage::Whole).contains(&(u16::try_from(slot).expect("few") + 1)), "not its own");
            let hides = work.is_of_quarter(slot) && count(slot, Stage::Whole, largest) > 0;
            let hidden = expected(slot, Stage::Hidden);
            assert_eq!(hidden != expected(slot, Stage::Whole), hides, "{slot}");
            if work.is_of_quarter(slot) {
                assert_eq!(count(slot, Stage::Hidden, largest), 0);
                assert!(expected(slot, Stage::Without).iter().all(|entry| *entry == 0));
            }
            let compared = work.expected(slot, Stage::Whole, OwnBest::NotCompared);
            let changed = compared.iter().zip(expected(slot, Stage::Whole)).filter(|(one, other)| **one != *other);
            assert!(changed.map(|(one, _)| *one).all(|entry| entry == ANY), "either the same or not compared");
            assert!(work.quarter().all(|gone| count(slot, Stage::Without, gone as u16 + 1) == 0));
        }
        // Communities close some routes to some.
        let controls = |attributes: &Attributes| attributes.communities().count();
        assert!(work.slots().flat_map(|slot| work.table_of(slot)).any(|(_, attributes)| controls(&attributes) > 0));
    }

    #[test]
    fn a_table_counts_what_is_wrong_in_it() {
        let work = Work::new(4, 100);
        let receiver = 0;
        let mut compared = Compared::new(&work);
        compared.expect(work.expected(receiver, Stage::Whole, OwnBest::NextIsSent));
        let expected = work.expected(receiver, Stage::Whole, OwnBest::NextIsSent);
        let all = expected.iter().filter(|entry| **entry > 0).count();
        assert_eq!(compared.wrong, all);
        for slot in work.slots().filter(|slot| *slot != receiver) {
            for (own, attributes) in work.table_of(slot) {
                let is_best = |nlri: &&Nlri| usize::from(expected[number(nlri.prefix)]) == slot as usize + 1;
                let announced: Vec<Nlri> = own.iter().filter(is_best).copied().collect();
                compared.update(&Update { announced, attributes: Some(attributes), ..Update::default() });
            }
        }
        assert_eq!((compared.wrong, compared.routes()), (0, all), "{}", compared.first_wrong());
        let first = expected.iter().position(|entry| *entry > 0).expect("a route");
        compared.update(&Update { withdrawn: vec![prefix(first)], ..Update::default() });
        assert_eq!(compared.wrong, 1);
        assert!(compared.first_wrong().contains("is of nobody"), "{}", compared.first_wrong());
        compared.clear();
        assert_eq!((compared.wrong, compared.routes()), (all, 0));
    }
}

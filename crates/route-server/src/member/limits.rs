//! Maximum prefixes of each family, which the exchange's data state: whose routes this member leaves out, and until when.
//!
//! An announcer's own proxy announces no more than its limit. This is what protects a receiver from one that does: as a session that a
//! route server ends and begins again after a while, all that the announcer has in that family goes, and comes back if it is less then.
//! A member counts what it can open. What it leaves out it does not tell anybody, as with any check of a receiver's.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use wayleave_core::{Afi, Instant, Now, Prefix};

use super::receive::ReceivedObject;
use super::{Member, MemberEvent};
use crate::policy::validate::Invalid;

/// How long an announcer is over its limit before its routes are left out: those that replace others may come before the others go.
const GRACE: Duration = Duration::from_secs(10);
/// How long its routes are left out at least: arouteserver's `restart_after`, 15 minutes.
const RESTART: Duration = Duration::from_secs(15 * 60);

/// A slot, and a family of its prefixes.
pub(super) type Limited = (u32, Afi);

/// Prefixes of one family of one announcer that has a limit.
#[derive(Debug)]
struct Counted {
    limit: u32,
    /// How many routes each has.
    prefixes: HashMap<Prefix, u32>,
    stands: Stands,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stands {
    Within,
    OverSince(Instant),
    OutUntil(Instant),
}

impl Stands {
    /// Until when, unless prefixes come or go.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Within => None,
            Self::OverSince(since) => Some(since + GRACE),
            Self::OutUntil(until) => Some(until),
        }
    }
}

/// What the limits of all announcers came to.
#[derive(Default, Debug)]
pub(super) struct Limits {
    of: HashMap<Limited, Counted>,
    /// When one of them may turn, and whether something has come or gone since they were looked at.
    next: Option<Instant>,
    has_changed: bool,
}

/// An announcer's routes are left out from now on, or no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turned {
    pub of: Limited,
    pub limit: u32,
    pub prefixes: usize,
    pub is_out: bool,
}

impl Limits {
    /// Other limits, as (slot, of IPv4 and of IPv6), zero for none. All prefixes are counted anew by [`came`](Self::came) then.
    pub(super) fn set(&mut self, limits: impl Iterator<Item = (u32, [u32; 2])>) {
        let mut before = std::mem::take(&mut self.of);
        (self.next, self.has_changed) = (None, true);
        for (slot, of) in limits {
            for (afi, limit) in [Afi::Ipv4, Afi::Ipv6].into_iter().zip(of).filter(|(_, limit)| *limit > 0) {
                let key = (slot, afi);
                let stands = before.remove(&key).map_or(Stands::Within, |counted| counted.stands);
                self.of.insert(key, Counted { limit, prefixes: HashMap::new(), stands });
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// An announcer has a route more to a prefix.
    pub(super) fn came(&mut self, slot: u32, prefix: Prefix) {
        if let Some(counted) = self.of.get_mut(&(slot, prefix.afi())) {
            *counted.prefixes.entry(prefix).or_default() += 1;
            self.has_changed = true;
        }
    }

    /// And one less.
    pub(super) fn went(&mut self, slot: u32, prefix: Prefix) {
        let Some(counted) = self.of.get_mut(&(slot, prefix.afi())) else { return };
        if let Some(routes) = counted.prefixes.get_mut(&prefix) {
            *routes -= 1;
            if *routes == 0 {
                counted.prefixes.remove(&prefix);
                self.has_changed = true;
            }
        }
    }

    /// Whether an announcer's routes of the prefix's family count.
    ///
    /// # Errors
    /// [`Invalid::MaxPrefixes`] if they are left out.
    pub(super) fn check(&self, slot: u32, prefix: Prefix) -> Result<(), Invalid> {
        let afi = prefix.afi();
        match self.of.get(&(slot, afi)) {
            Some(&Counted { limit, stands: Stands::OutUntil(_), .. }) => Err(Invalid::MaxPrefixes { afi, limit }),
            _ => Ok(()),
        }
    }

    /// Where each announcer stands by now: those whose routes are left out from now on, or no longer.
    pub(super) fn turn(&mut self, now: Instant) -> Vec<Turned> {
        let mut turned = Vec::new();
        if !self.has_changed && self.next.is_none_or(|next| next > now) {
            return turned;
        }
        for (of, counted) in &mut self.of {
            let prefixes = counted.prefixes.len();
            let is_over = prefixes > counted.limit as usize;
            let next = match counted.stands {
                Stands::Within if is_over => Stands::OverSince(now),
                Stands::OverSince(_) if !is_over => Stands::Within,
                Stands::OverSince(since) if now >= since + GRACE => Stands::OutUntil(now + RESTART),
                Stands::OutUntil(until) if now >= until && is_over => Stands::OutUntil(now + RESTART),
                Stands::OutUntil(until) if now >= until => Stands::Within,
                stands => stands,
            };
            let was_out = matches!(counted.stands, Stands::OutUntil(_));
            let is_out = matches!(next, Stands::OutUntil(_));
            counted.stands = next;
            if was_out != is_out {
                turned.push(Turned { of: *of, limit: counted.limit, prefixes, is_out });
            }
        }
        self.has_changed = false;
        self.next = self.of.values().filter_map(|counted| counted.stands.until()).min();
        turned.sort_by_key(|turned| (turned.of.0, turned.of.1.code()));
        turned
    }

    /// When the next one may turn.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.has_changed { Some(Instant(0)) } else { self.next }
    }
}

impl Member {
    /// The limits that are in force now, and what each announcer has.
    pub(super) fn count_prefixes(&mut self) {
        let Self { limits, set, data, routes, .. } = self;
        let in_force = set.as_ref().filter(|set| set.data.is_some()).zip(data.in_force());
        let of = in_force.into_iter().flat_map(|(set, data)| {
            let active = set.iter().filter(|(_, slot)| slot.active);
            active.filter_map(|(id, slot)| Some((id, data.of(slot.asn)?.max_prefixes)))
        });
        limits.set(of);
        if !limits.is_empty() {
            routes.values().flat_map(ReceivedObject::live).for_each(|(slot, prefix)| limits.came(slot, prefix));
        }
    }

    /// Leaves out the routes of those who have been over their limit for a while, and takes back those of others.
    pub(super) fn turn_limits(&mut self, now: Now) {
        // While it is sent what it lacks, this member still has what is gone.
        if self.sync.is_some() {
            return;
        }
        for Turned { of: (announcer, afi), limit, prefixes, is_out } in self.limits.turn(now.instant) {
            if let Some(slot) = self.set.as_ref().and_then(|set| set.slot(announcer)) {
                let (name, asn) = (slot.name.clone(), slot.asn.0);
                self.event(MemberEvent::MaxPrefixes { slot: announcer, name, asn, afi, prefixes, limit, is_out });
            }
            let mut concerned = BTreeSet::new();
            for route in self.routes.values_mut() {
                let is_concerned = |(slot, prefix): &(u32, Prefix)| *slot == announcer && prefix.afi() == afi;
                let live: Vec<Prefix> = route.live().filter(is_concerned).map(|(_, prefix)| prefix).collect();
                if !live.is_empty() {
                    route.assessment = None;
                    concerned.extend(live);
                }
            }
            self.rules += 1;
            self.ranked_otherwise(&concerned);
            self.update_waiting_rankings(&concerned);
            self.touched.extend(concerned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: [(u32, [u32; 2]); 2] = [(1, [2, 0]), (2, [0, 1])];

    fn prefix(number: u8) -> Prefix {
        format!("10.{number}.0.0/16").parse().expect("a prefix")
    }

    fn limits() -> Limits {
        let mut limits = Limits::default();
        limits.set(LIMITS.into_iter());
        limits
    }

    /// The limit for which a slot's prefixes of IPv4 are left out.
    fn out(limits: &Limits, slot: u32) -> Option<u32> {
        match limits.check(slot, prefix(1)) {
            Err(Invalid::MaxPrefixes { limit, .. }) => Some(limit),
            _ => None,
        }
    }

    fn after(secs: u64) -> Instant {
        Instant(0) + Duration::from_secs(secs)
    }

    #[test]
    fn who_exceeds_its_limit_is_left_out_after_a_while_and_comes_back_after_the_restart() {
        let mut limits = limits();
        (1..=3).for_each(|number| limits.came(1, prefix(number)));
        assert_eq!((limits.turn(after(0)), out(&limits, 1)), (vec![], None));
        assert_eq!(limits.deadline(), Some(after(10)));
        let turned = |is_out, prefixes| vec![Turned { of: (1, Afi::Ipv4), limit: 2, prefixes, is_out }];
        assert_eq!((limits.turn(after(9)), limits.turn(after(10))), (vec![], turned(true, 3)));
        assert_eq!((out(&limits, 1), out(&limits, 2)), (Some(2), None));
        assert_eq!(limits.check(1, "2001:db8::/32".parse().expect("a prefix")), Ok(()));
        // Less than the limit before the time is over changes nothing; more at its end begins it anew.
        limits.went(1, prefix(3));
        assert_eq!(limits.turn(after(11)), []);
        limits.came(1, prefix(4));
        assert_eq!((limits.turn(after(910)), limits.deadline()), (vec![], Some(after(1810))));
        limits.went(1, prefix(4));
        assert_eq!(limits.turn(after(1810)), turned(false, 2));
        assert_eq!((out(&limits, 1), limits.deadline()), (None, None));
    }

    #[test]
    fn what_replaces_other_routes_within_the_grace_is_not_held_against_its_announcer() {
        let mut limits = limits();
        (1..=2).for_each(|number| limits.came(1, prefix(number)));
        // A second route to a prefix is no second prefix.
        limits.came(1, prefix(1));
        assert_eq!((limits.turn(after(0)), limits.deadline()), (vec![], None));
        limits.came(1, prefix(3));
        assert_eq!(limits.turn(after(1)), []);
        limits.went(1, prefix(1));
        limits.went(1, prefix(1));
        assert_eq!((limits.turn(after(11)), limits.deadline()), (vec![], None));
    }

    #[test]
    fn other_limits_count_anew_and_who_is_left_out_stays_so() {
        let mut limits = limits();
        (1..=3).for_each(|number| limits.came(1, prefix(number)));
        limits.turn(after(0));
        limits.turn(after(10));
        limits.set([(1, [3, 0])].into_iter());
        (1..=3).for_each(|number| limits.came(1, prefix(number)));
        assert_eq!(out(&limits, 1), Some(3));
        assert_eq!(limits.turn(after(910)).len(), 1);
        limits.set(std::iter::empty());
        limits.went(1, prefix(1));
        assert_eq!((limits.turn(after(911)), limits.is_empty(), limits.deadline()), (vec![], true, None));
    }
}

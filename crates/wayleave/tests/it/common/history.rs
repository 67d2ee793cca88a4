//! Checks what routers had, at any time, against what was announced, withdrawn and hidden until then.
//!
//! Each version of a route carries its own number in a large community, so that an observation names the version. The
//! checker knows nothing of the exchange: only what members said, when, and what routers had, when.

use std::collections::BTreeMap;

use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};

use wayleave_lab::table::{Announcement, LearnedRoute};

/// First part of the large community that holds a version, of a private AS that is no member.
const MARK: u32 = 4_200_000_000;

/// One announcement of a route, until it was replaced or withdrawn.
#[derive(Debug)]
struct Version {
    announcer: Asn,
    prefix: Prefix,
    hidden_from: Vec<Asn>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Announced at present.
    Live,
    /// Replaced or withdrawn; receivers may not know it yet.
    Ended,
    /// Ended, and every router was seen without it since.
    Gone,
}

/// What happened so far.
#[derive(Debug, Default)]
pub struct History {
    versions: Vec<Version>,
    /// The version that is announced at present.
    live: BTreeMap<(Asn, Prefix), usize>,
    /// The newest version that each receiver had of an announcer's route.
    newest_seen: BTreeMap<(Asn, Asn, Prefix), usize>,
    observations: u64,
}

impl History {
    /// How many routes were checked.
    #[must_use]
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// How many routes are announced at present.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Call before a member announces a route: returns it with its version's mark. The version before ends now.
    pub fn announces(&mut self, announcer: Asn, route: Announcement, hidden_from: Vec<Asn>) -> Announcement {
        self.ends(announcer, route.prefix);
        let number = self.versions.len();
        self.versions.push(Version { announcer, prefix: route.prefix, hidden_from, state: State::Live });
        self.live.insert((announcer, route.prefix), number);
        route.with_large(LargeCommunity::new(MARK, 0, u32::try_from(number).unwrap_or(u32::MAX)))
    }

    /// Call after a member withdrew a route or replaced it.
    pub fn ends(&mut self, announcer: Asn, prefix: Prefix) {
        if let Some(number) = self.live.remove(&(announcer, prefix)) {
            self.versions[number].state = State::Ended;
        }
    }

    /// Call when every router was seen to have exactly what is announced at present, with no change in between.
    pub fn settled(&mut self) {
        for version in self.versions.iter_mut().filter(|version| version.state == State::Ended) {
            version.state = State::Gone;
        }
    }

    /// The first route of a table that is not the version announced at present.
    #[must_use]
    pub fn stale(&self, table: &[LearnedRoute]) -> Option<String> {
        let stale = table.iter().find(|route| {
            version_of(route).and_then(|number| self.versions.get(number)).is_none_or(|v| v.state != State::Live)
        });
        stale.map(|route| format!("{} from {:?} is version {:?}", route.prefix, route.first_as(), version_of(route)))
    }

    /// Checks a receiver's whole table.
    ///
    /// # Errors
    /// The first route that nobody announced (or not to this receiver), that ended before the exchange last settled, or that
    /// is older than one that this receiver had from the same announcer.
    pub fn observe(&mut self, receiver: Asn, table: &[LearnedRoute]) -> Result<(), String> {
        for route in table {
            self.observations += 1;
            let of =
                |problem: String| format!("{receiver} has {} from {:?}: {problem}", route.prefix, route.first_as());
            let number = version_of(route).ok_or_else(|| of("a route without a version".to_owned()))?;
            let version = self.versions.get(number).ok_or_else(|| of(format!("version {number} never was")))?;
            if version.prefix != route.prefix || Some(version.announcer) != route.first_as() {
                return Err(of(format!("version {number} is another route: {version:?}")));
            }
            if version.hidden_from.contains(&receiver) || version.announcer == receiver {
                return Err(of(format!("version {number} is hidden from it")));
            }
            if version.state == State::Gone {
                return Err(of(format!("version {number} ended before the exchange settled: resurrected")));
            }
            let newest = self.newest_seen.entry((receiver, version.announcer, version.prefix)).or_insert(number);
            if *newest > number {
                return Err(of(format!("version {number} after version {newest}: resurrected")));
            }
            *newest = number;
        }
        Ok(())
    }
}

/// The number that a route carries.
fn version_of(route: &LearnedRoute) -> Option<usize> {
    route.large_communities.iter().find(|community| community.global == MARK).map(|mark| mark.local2 as usize)
}

#[cfg(test)]
mod tests {
    //! SIX-02: the checker of histories knows each version of a route: what was not announced, is older, hidden or
    //! withdrawn is noticed.

    use super::*;

    const A: Asn = Asn(64500);
    const B: Asn = Asn(64501);

    fn prefix() -> Prefix {
        "192.0.2.0/24".parse().expect("a prefix")
    }

    fn learned(route: &Announcement, from: Asn) -> LearnedRoute {
        LearnedRoute {
            prefix: route.prefix,
            next_hop: None,
            as_path: vec![from],
            communities: Vec::new(),
            large_communities: route.large_communities.clone(),
            med: None,
            best: true,
        }
    }

    #[test]
    fn what_was_announced_may_be_there_and_what_was_not_may_not() {
        let mut history = History::default();
        let one = history.announces(A, Announcement::of(prefix()), Vec::new());
        history.observe(B, &[learned(&one, A)]).expect("announced");
        assert!(history.observe(A, &[learned(&one, A)]).expect_err("its own").contains("hidden"));
        assert!(history.observe(B, &[learned(&one, B)]).expect_err("not B's").contains("another route"));
        let unknown = Announcement::of(prefix());
        assert!(history.observe(B, &[learned(&unknown, A)]).is_err());
        assert_eq!(history.observations(), 4);
    }

    #[test]
    fn hidden_older_and_withdrawn_versions_are_noticed() {
        let mut history = History::default();
        let one = history.announces(A, Announcement::of(prefix()), Vec::new());
        let two = history.announces(A, Announcement::of(prefix()), Vec::new());
        // Not settled: either may be seen, the older one not after the newer.
        history.observe(B, &[learned(&one, A)]).expect("on its way");
        history.observe(B, &[learned(&two, A)]).expect("the newest");
        let error = history.observe(B, &[learned(&one, A)]).expect_err("older");
        assert!(error.contains("resurrected"), "{error}");
        assert_eq!(history.stale(&[learned(&two, A)]), None);
        assert!(history.stale(&[learned(&one, A)]).is_some());
        history.ends(A, prefix());
        history.observe(B, &[learned(&two, A)]).expect("the withdrawal is on its way");
        history.settled();
        let error = history.observe(B, &[learned(&two, A)]).expect_err("settled without it");
        assert!(error.contains("before the exchange settled"), "{error}");
        let three = history.announces(A, Announcement::of(prefix()), vec![B]);
        let error = history.observe(B, &[learned(&three, A)]).expect_err("hidden");
        assert!(error.contains("is hidden from it"), "{error}");
    }
}

//! The expected contents of each member's table, computed in plaintext from what is announced.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use wayleave_core::{Asn, Prefix};

use crate::table::{Announcement, LearnedRoute};

/// The exchange's AS number, which its communities name.
pub const EXCHANGE: Asn = Asn(64496);

/// At most this many differences are printed.
const MOST_SHOWN: usize = 4;

/// What members announce at present, and what follows for each table.
#[derive(Debug, Clone, Default)]
pub struct ExpectedTables {
    routes: Vec<(Asn, Announcement)>,
    /// Announcer's address on the LAN, by AS.
    addresses: BTreeMap<Asn, Ipv4Addr>,
    /// The announcer whose route must win wherever several announce a prefix and the receiver may have that route.
    favourite: Option<Asn>,
}

impl ExpectedTables {
    /// Without announcements.
    #[must_use]
    pub fn new(addresses: BTreeMap<Asn, Ipv4Addr>) -> Self {
        Self { addresses, ..Self::default() }
    }

    /// Replaces the routes of `announcer`.
    pub fn announce(&mut self, announcer: Asn, routes: &[Announcement]) {
        self.routes.retain(|(asn, _)| *asn != announcer);
        self.routes.extend(routes.iter().map(|route| (announcer, route.clone())));
    }

    /// Sets the announcer that wins among several.
    pub fn set_favourite(&mut self, favourite: Asn) {
        self.favourite = Some(favourite);
    }

    /// By prefix, the announcers whose route `receiver` may have.
    #[must_use]
    pub fn expected(&self, receiver: Asn) -> BTreeMap<Prefix, BTreeSet<Asn>> {
        let mut expected: BTreeMap<Prefix, BTreeSet<Asn>> = BTreeMap::new();
        for (announcer, route) in &self.routes {
            if *announcer != receiver && !is_hidden(route, receiver) {
                expected.entry(route.prefix).or_default().insert(*announcer);
            }
        }
        if let Some(favourite) = self.favourite {
            for announcers in expected.values_mut().filter(|announcers| announcers.contains(&favourite)) {
                *announcers = BTreeSet::from([favourite]);
            }
        }
        expected
    }

    /// How a table differs from the one expected of `receiver`; `None` if it does not.
    #[must_use]
    pub fn difference(&self, receiver: Asn, table: &[LearnedRoute]) -> Option<String> {
        let expected = self.expected(receiver);
        let mut differences = Vec::new();
        for (prefix, announcers) in &expected {
            match table.iter().find(|route| route.prefix == *prefix) {
                None => differences.push(format!("{prefix} is missing")),
                Some(route) => differences.extend(self.wrong(route, announcers)),
            }
        }
        let foreign = table.iter().filter(|route| !expected.contains_key(&route.prefix));
        differences.extend(foreign.map(|route| format!("{} is unexpected", route.prefix)));
        if differences.is_empty() {
            return None;
        }
        let mut text = differences.iter().take(MOST_SHOWN).cloned().collect::<Vec<_>>().join("; ");
        if differences.len() > MOST_SHOWN {
            let _ = write!(text, "; and {} more", differences.len() - MOST_SHOWN);
        }
        Some(text)
    }

    /// A transparent route server keeps the announcer first in the path and the announcer's router as next hop (RFC 7947).
    fn wrong(&self, route: &LearnedRoute, announcers: &BTreeSet<Asn>) -> Option<String> {
        let prefix = route.prefix;
        let Some(first) = route.first_as() else { return Some(format!("{prefix} has an empty path")) };
        if !announcers.contains(&first) {
            return Some(format!("{prefix} is from {first}, not from {announcers:?}"));
        }
        let next_hop = self.addresses.get(&first).map(|address| (*address).into());
        if prefix.address().is_ipv4() && route.next_hop != next_hop {
            return Some(format!("{prefix} has next hop {:?}, not {next_hop:?}", route.next_hop));
        }
        None
    }
}

/// Whether a route-server community hides the route from this receiver.
fn is_hidden(route: &Announcement, receiver: Asn) -> bool {
    let standard = route.communities.iter().any(|c| c.upper() == 0 && u32::from(c.lower()) == receiver.0);
    let large =
        route.large_communities.iter().any(|c| c.global == EXCHANGE.0 && c.local1 == 0 && c.local2 == receiver.0);
    standard || large
}

#[cfg(test)]
mod tests {
    use wayleave_bgp::{Community, LargeCommunity};

    use super::*;

    const PREFIX: &str = "203.0.113.0/24";

    fn tables() -> ExpectedTables {
        let mut tables = ExpectedTables::new(BTreeMap::from([(Asn(1), Ipv4Addr::new(192, 0, 2, 1))]));
        let route = Announcement::of(PREFIX.parse().expect("a prefix"));
        tables.announce(Asn(1), &[route.with(Community::new(0, 3)).with_large(LargeCommunity::new(EXCHANGE.0, 0, 4))]);
        tables
    }

    fn learned(next_hop: [u8; 4]) -> LearnedRoute {
        LearnedRoute {
            prefix: PREFIX.parse().expect("a prefix"),
            next_hop: Some(next_hop.into()),
            as_path: vec![Asn(1)],
            communities: Vec::new(),
            large_communities: Vec::new(),
            med: None,
            best: true,
        }
    }

    #[test]
    fn a_hidden_route_is_expected_nowhere_else() {
        let tables = tables();
        assert!(tables.difference(Asn(2), &[]).is_some_and(|text| text.contains("missing")));
        assert_eq!(tables.difference(Asn(2), &[learned([192, 0, 2, 1])]), None);
        for hidden_from in [Asn(1), Asn(3), Asn(4)] {
            assert_eq!(tables.difference(hidden_from, &[]), None);
            assert!(tables.difference(hidden_from, &[learned([192, 0, 2, 1])]).is_some());
        }
    }

    #[test]
    fn a_changed_next_hop_is_a_difference() {
        assert!(tables().difference(Asn(2), &[learned([192, 0, 2, 9])]).is_some_and(|text| text.contains("next hop")));
    }
}

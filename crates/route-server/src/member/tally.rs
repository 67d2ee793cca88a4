//! Routes counted by address family and by whose they are, for the metrics of the member's own operator.

use std::collections::BTreeMap;

use wayleave_core::Afi;

use super::Member;

/// Routes of one table, by what a metric tells apart.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Prefixes installed in the router, by the slot and the name of their announcer and by family. The name is that of the member set in
    /// force, and empty where that has no such slot.
    pub installed: BTreeMap<(u32, String, Afi), usize>,
    /// Routes of the router, by family.
    pub router: BTreeMap<Afi, usize>,
}

impl Member {
    /// Counts the tables. It looks at every route: for who asks now and then, as Prometheus does.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut by_slot: BTreeMap<(u32, Afi), usize> = BTreeMap::new();
        for (prefix, route) in &self.installed {
            *by_slot.entry((route.announcer, prefix.afi())).or_default() += 1;
        }
        let name = |slot: u32| self.set.as_ref().and_then(|set| Some(set.slot(slot)?.name.clone())).unwrap_or_default();
        let installed = by_slot.into_iter().map(|((slot, afi), count)| ((slot, name(slot), afi), count)).collect();
        Tally { installed, router: self.announcements.router_routes_by_family() }
    }
}

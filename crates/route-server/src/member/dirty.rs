//! Prefixes of whose state the parties may not know: what a flush has to look at, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_bgp::Nlri;

/// Prefixes to announce, in the order of the UPDATEs that brought them, and prefixes to withdraw.
///
/// A flush takes from the front as much as may be in flight. To look at all that waits each time would cost a member that
/// announces a whole table the square of it.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// The UPDATE of each prefix that waits; none for those without a route to announce.
    updates: BTreeMap<Nlri, Option<u64>>,
    routes: BTreeSet<(u64, Nlri)>,
    gone: BTreeSet<Nlri>,
}

impl Dirty {
    /// The prefix waits with the route that this UPDATE brought, or without one.
    pub(super) fn insert(&mut self, nlri: Nlri, update: Option<u64>) {
        self.remove(&nlri);
        self.updates.insert(nlri, update);
        match update {
            Some(update) => self.routes.insert((update, nlri)),
            None => self.gone.insert(nlri),
        };
    }

    pub(super) fn remove(&mut self, nlri: &Nlri) {
        match self.updates.remove(nlri) {
            Some(Some(update)) => self.routes.remove(&(update, *nlri)),
            Some(None) => self.gone.remove(nlri),
            None => false,
        };
    }

    pub(super) fn contains(&self, nlri: &Nlri) -> bool {
        self.updates.contains_key(nlri)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.updates.len()
    }

    /// With a route, by UPDATE.
    pub(super) fn routes(&self) -> impl Iterator<Item = (u64, &Nlri)> {
        self.routes.iter().map(|(update, nlri)| (*update, nlri))
    }

    /// Without a route.
    pub(super) fn gone(&self) -> impl Iterator<Item = &Nlri> {
        self.gone.iter()
    }
}

//! Evaluating again what a changed recommendation concerns, behind what members change meanwhile.
//!
//! Both parties walk through the table from prefix to prefix. Concerned are those for which two routes or more compete, one of
//! them of an announcer whose value changed. Party 1 says with each batch how many of them are evaluated again: no more than the
//! pool of correlations has beyond the half that is kept for live work, so that nothing that members change waits for setup.

use std::collections::BTreeSet;

use wayleave_core::Prefix;
use wayleave_mpc::Demand;

use super::state::State;
use crate::frames::{MAX_CANDIDATES, MAX_SLICE};
use crate::object_table::{Effects, ObjectTable};

/// Candidates, and candidates times members, that one batch evaluates again for a new epoch: our own limits, so that what
/// changes meanwhile is not delayed.
const CANDIDATES: usize = 2048;
const LANES: usize = 1 << 18;
/// Prefixes that one batch looks at: our own limit, the same at both parties.
const LOOKED_AT: usize = 1 << 16;

/// A walk through the table.
pub(super) struct Walk {
    /// The first prefix that it has not come to.
    from: Prefix,
    /// The slots whose recommendation changed.
    changed: BTreeSet<u32>,
}

/// Prefixes that a batch may look at, in order, each with whether the change concerns it.
fn ahead<'a>(table: &'a ObjectTable, walk: &'a Walk) -> impl Iterator<Item = (&'a Prefix, bool)> {
    let prefixes = table.prefixes_from(Some(walk.from)).take(LOOKED_AT);
    prefixes.map(|prefix| (prefix, table.compete(prefix, &walk.changed)))
}

impl State {
    /// An epoch begins in which the values of these slots differ. What an earlier change still has to come to is part of the
    /// new walk.
    pub(super) fn begin_walk(&mut self, changed: &[u32]) {
        let mut all: BTreeSet<u32> = changed.iter().copied().collect();
        all.extend(self.relist.take().into_iter().flat_map(|rest| rest.changed));
        self.relist = self.table.prefixes().next().map(|from| Walk { from: *from, changed: all });
    }

    /// Lets so many concerned prefixes more be evaluated again.
    pub(super) fn relist_some(&mut self, prefixes: u32, effects: &mut Effects) {
        let Some(walk) = &mut self.relist else { return };
        let (mut left, mut last, mut stop) = (prefixes, None, None);
        for (prefix, is_concerned) in ahead(&self.table, walk) {
            if is_concerned {
                if left == 0 {
                    stop = Some(*prefix);
                    break;
                }
                left -= 1;
                effects.touched.insert(*prefix);
            }
            last = Some(*prefix);
        }
        // Nothing was left to look at if there is no last one.
        let beyond =
            || last.and_then(|last| self.table.prefixes_from(Some(last)).find(|prefix| **prefix != last)).copied();
        match stop.or_else(beyond) {
            Some(from) => walk.from = from,
            None => self.relist = None,
        }
    }

    /// How many concerned prefixes the next batch can evaluate again; `None` if the pool has to be filled first. With `one` it
    /// is one at least, whatever the pool has.
    pub(super) fn prefixes_to_relist(&mut self, one: bool) -> Option<u32> {
        let lanes = self.active.values().filter(|active| active.select_best).count();
        let walk = self.relist.as_ref()?;
        let engine = self.engine.as_mut()?;
        let reserve = engine.target.half();
        let most = CANDIDATES.min(LANES / lanes.max(1));
        let (mut prefixes, mut candidates, mut demand) = (0, 0, Demand::default());
        for (prefix, _) in ahead(&self.table, walk).filter(|(_, is_concerned)| *is_concerned) {
            let routes = self.table.routes_of(prefix).min(MAX_CANDIDATES);
            demand += Demand::of(&engine.program(routes.next_power_of_two()), lanes);
            let fits = engine.short_of(&(demand + reserve)).total() == 0;
            if !fits && !(one && prefixes == 0) {
                return (prefixes > 0).then_some(prefixes);
            }
            prefixes += 1;
            candidates += routes;
            if candidates >= most || prefixes == MAX_SLICE {
                break;
            }
        }
        Some(prefixes)
    }
}

//! Origin validation (RFC 6811): what becomes of routes when what the RPKI says of their origins changes.
//!
//! As with validation of attestations, nothing is sent but what the own router's routes require: the parties must not see which
//! routes of others this member may open. So Select-Best does not choose anew; where what it chose is not in the best class any
//! more, the member's own order decides.

use std::collections::BTreeSet;
use std::sync::Arc;

use wayleave_bgp::origins::Vrps;
use wayleave_core::Prefix;

use super::Member;

impl Member {
    /// Takes what the RPKI says now. Routes are assessed anew that a changed VRP covers, and no others.
    pub(super) fn origins_changed(&mut self, origins: Option<Arc<Vrps>>) {
        let nothing = Vrps::default();
        let before = self.origins.as_deref().unwrap_or(&nothing);
        let changed = origins.as_deref().unwrap_or(&nothing).difference(before);
        self.origins = origins;
        if changed.is_empty() {
            return;
        }
        let mut prefixes: BTreeSet<Prefix> = self.kept.prefixes().filter(|prefix| changed.covers(prefix)).collect();
        for route in self.routes.values_mut() {
            let Some(open) = &route.opened else { continue };
            let covered = || open.prefixes.iter().map(|nlri| nlri.prefix).filter(|prefix| changed.covers(prefix));
            if covered().next().is_some() {
                prefixes.extend(covered());
                route.assessment = None;
            }
        }
        self.ranked_otherwise(&prefixes);
        self.update_waiting_rankings(&prefixes);
        self.touched.extend(prefixes);
        self.announcements.origins_changed(&changed);
    }
}

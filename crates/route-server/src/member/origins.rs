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
use super::status::RpkiInvalid;

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

    /// Routes that are not used for their origin, as far as they have been looked at.
    pub(super) fn rpki_invalid(&self) -> RpkiInvalid {
        let announced = self.announcements.rpki_invalid();
        if self.origins.is_none() {
            return RpkiInvalid { announced, received: 0 };
        }
        let assessments = self.routes.values().flat_map(|route| {
            let all = (0u16..).zip(route.assessment.iter().flatten());
            all.filter(|(prefix_index, _)| !route.dead.contains(prefix_index)).map(|(_, assessment)| assessment)
        });
        RpkiInvalid { announced, received: assessments.filter(|assessment| assessment.rpki_invalid).count() }
    }
}

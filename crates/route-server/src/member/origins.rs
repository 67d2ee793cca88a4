//! Origin validation (RFC 6811) and ASPA: what becomes of routes when what the RPKI says of their origins or paths changes.
//!
//! As with validation of attestations, nothing is sent but what the own router's routes require: the parties must not see which
//! routes of others this member may open. So Select-Best does not choose anew; where what it chose is not in the best class any
//! more, the member's own order decides.

use std::collections::BTreeSet;

use wayleave_bgp::AsPath;
use wayleave_bgp::aspa::{Aspas, ChangedCustomers};
use wayleave_bgp::origins::Vrps;
use wayleave_bgp::rpki::Records;
use wayleave_core::Prefix;

use super::Member;

/// What another state of the RPKI may decide otherwise.
pub(super) struct Changed {
    /// VRPs that only one of the two states has.
    vrps: Vrps,
    /// Customers with other ASPA records; none where the profile refuses no path for them.
    customers: ChangedCustomers,
}

impl Changed {
    fn is_empty(&self) -> bool {
        self.vrps.is_empty() && self.customers.is_empty()
    }

    /// Whether it concerns a route to this prefix on this path.
    pub(super) fn concerns(&self, prefix: &Prefix, path: &AsPath<'_>) -> bool {
        self.vrps.covers(prefix) || self.customers.may_change(path)
    }
}

impl Member {
    /// Takes what the RPKI says now. Routes are assessed anew that a changed VRP covers, or on whose path is an AS with other ASPA records,
    /// and no others.
    pub(super) fn origins_changed(&mut self, records: Option<Records>) {
        let (nothing, no_records) = (Vrps::default(), Aspas::default());
        let (origins, aspas) = records.map(|Records { vrps, aspas }| (vrps, aspas)).unzip();
        let vrps = origins.as_deref().unwrap_or(&nothing).difference(self.origins.as_deref().unwrap_or(&nothing));
        let before = self.aspas.as_deref().unwrap_or(&no_records);
        let counts = self.route_rules().profile.is_some_and(|profile| profile.refuse_aspa_invalid);
        let customers = counts.then(|| aspas.as_deref().unwrap_or(&no_records).difference(before));
        let changed = Changed { vrps, customers: customers.unwrap_or_default() };
        (self.origins, self.aspas) = (origins, aspas);
        if changed.is_empty() {
            return;
        }
        let mut prefixes: BTreeSet<Prefix> = self.kept.concerned(&changed).collect();
        for route in self.routes.values_mut() {
            let Some(open) = &route.opened else { continue };
            let is_path = changed.customers.may_change(&open.attributes.as_path());
            let concerned =
                || open.prefixes.iter().map(|nlri| nlri.prefix).filter(|at| is_path || changed.vrps.covers(at));
            if concerned().next().is_some() {
                prefixes.extend(concerned());
                route.assessment = None;
            }
        }
        self.ranked_otherwise(&prefixes);
        self.update_waiting_rankings(&prefixes);
        self.touched.extend(prefixes);
        self.announcements.origins_changed(&changed);
    }
}

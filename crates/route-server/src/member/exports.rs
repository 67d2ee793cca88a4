//! To whom the routes of this member's own router go, for its own operator; none of this goes to the parties.

use std::collections::BTreeSet;

use serde::Serialize;
use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Prefix};

use super::{Announcer, Member, OwnRoute};
use crate::directory::SlotId;
use crate::policy::treatments::{Treatment, Treatments};
use crate::policy::{Decision, PerPeer, export_decisions};

/// A route of the own router, and who may have it.
#[derive(Clone, Debug, Serialize)]
pub struct OwnExport {
    pub prefix: Prefix,
    /// How it stands, and the checks that the exchange makes of it.
    #[serde(flatten)]
    pub route: OwnRoute,
    /// What this member's policy says of each other member, by slot.
    pub receivers: Vec<Receiver>,
}

/// What this member's policy says of another member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Receiver {
    #[serde(flatten)]
    pub member: Announcer,
    /// Whether the policy lets it have the route.
    pub may_have: bool,
    /// By which rule or community; and that its own proxy would not use it, if that is known.
    pub why: String,
}

impl Member {
    /// The first `most` prefixes behind `after` to which the router announces routes.
    #[must_use]
    pub fn own_prefixes(&self, after: Option<Prefix>, most: usize) -> Vec<Prefix> {
        self.announcements.router_prefixes(after, most)
    }

    /// Routes of before a loss of the router's session of which the router has said nothing since.
    #[must_use]
    pub fn stale(&self) -> &BTreeSet<Nlri> {
        self.announcements.stale()
    }

    /// To whom the router's routes to a prefix go by this member's policy.
    #[must_use]
    pub fn exports(&self, prefix: Prefix) -> Vec<OwnExport> {
        let routes = self.announcements.own_routes(&prefix).into_iter().zip(self.own_reasons(&prefix));
        let export = |((attributes, _), route): ((&Attributes, _), OwnRoute)| {
            let receivers = self.receivers(prefix, attributes);
            OwnExport { prefix, route, receivers }
        };
        routes.map(export).collect()
    }

    fn receivers(&self, prefix: Prefix, attributes: &Attributes) -> Vec<Receiver> {
        let Some(set) = &self.set else { return Vec::new() };
        let treatments = Treatments::read(attributes, self.config.rs_asn);
        let decisions = export_decisions(prefix, attributes, self.config.slot, set, self.config.rs_asn, &self.policy);
        let receiver = |(slot, decision): (SlotId, Decision)| {
            let asn = set.slot(slot).map(|slot| slot.asn);
            let came_from = asn.filter(|asn| decision.permits() && attributes.as_path().contains(*asn));
            let loops = came_from.map(|asn| {
                format!("; its own proxy will not use it: the path already has {asn} (RFC 4271 section 9.1.2)")
            });
            let treated =
                asn.filter(|_| decision.permits()).map(|asn| treated(&treatments, asn, self.policy.per_peer()));
            let why = format!("{decision}{}{}", treated.unwrap_or_default(), loops.unwrap_or_default());
            Receiver { member: self.announcer(slot), may_have: decision.permits(), why }
        };
        decisions.into_iter().map(receiver).collect()
    }
}

/// What communities change in the route for this receiver, and what they ask for that is not done.
fn treated(treatments: &Treatments, receiver: Asn, per_peer: PerPeer) -> String {
    let (to_peer, done) = (treatments.to(receiver), treatments.done_for(receiver, per_peer));
    let mut text = String::new();
    if done != Treatment::default() {
        text = format!("; by communities {done}");
    }
    if to_peer.prepend != done.prepend {
        text += "; what it asks to prepend for this AS alone needs `per_peer = \"readable\"` in [communities]";
    }
    text
}

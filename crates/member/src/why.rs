//! Why a prefix has the route that it has: the member's candidates, each with the chain that attestation validated.

use serde::Serialize;
use wayleave_attestation::member::{Explained, SentRoute};
use wayleave_attestation::pipeline::explain::WhyHop;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::report::Broken;
use wayleave_core::{Prefix, UnixTime};
use wayleave_route_server::member as route_server;

use crate::MemberProxy;

/// Why a prefix has the route that it has.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    pub prefix: String,
    pub summary: String,
    /// All candidates, those that this member may not open included.
    pub routes: Vec<WhyRoute>,
    /// What became of the own router's routes to the prefix.
    pub own: Vec<route_server::OwnRoute>,
    /// How the own router's routes were signed; absent without attestation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<Vec<SentRoute>>,
}

/// A candidate.
#[derive(Clone, Debug, Serialize)]
pub struct WhyRoute {
    #[serde(flatten)]
    pub route: route_server::WhyRoute,
    /// What validation found; absent for a route that was not validated.
    #[serde(flatten)]
    pub chain: Option<Chain>,
}

/// What validation found of a route.
#[derive(Clone, Debug, Serialize)]
pub struct Chain {
    pub attested: VerdictClass,
    /// The chain along the path, the origin first.
    pub hops: Vec<WhyHop>,
    /// What is false, and who could have caused it.
    pub broken: Option<Broken>,
    /// The same in words.
    pub reason: String,
    /// When the route is validated again.
    pub until: Option<UnixTime>,
    /// Size of the attestation.
    pub octets: usize,
}

impl From<Explained> for Chain {
    fn from(explained: Explained) -> Self {
        let Explained { class, hops, broken, reason, until, octets } = explained;
        Self { attested: class, hops, broken, reason, until, octets }
    }
}

impl MemberProxy {
    /// Why a prefix has the route that it has, with the chain of each route that was validated, and how the own router's
    /// routes went out.
    pub fn why(&mut self, prefix: Prefix) -> Why {
        let route_server::Why { prefix: text, summary, routes, own } = self.member.why(prefix);
        let explain = |route: route_server::WhyRoute| {
            // A route that came back is no false claim, and accuses nobody.
            let explained = if route.came_back { None } else { self.explain(&route.handle.0, prefix) };
            let chain = explained.map(Chain::from);
            WhyRoute { route, chain }
        };
        let routes = routes.into_iter().map(explain).collect();
        let sent = self.attestation.as_ref().map(|attestation| attestation.sent(prefix));
        Why { prefix: text, summary, routes, own, sent }
    }
}

//! What a proxy shows: its pairs, its routes, and of any prefix, hop by hop, what is proved and who could have signed.

use std::collections::BTreeMap;

use serde::Serialize;
use wayleave_bgp::Attributes;
use wayleave_bgp::session::Counters;
use wayleave_core::{Asn, Prefix, UnixTime};

use super::machine::Proxy;
use super::session_pair::{SessionPair, Side};
use crate::SuiteId;
use crate::attest::{AttestError, KeyRing, Pair as KeyPair};
use crate::clock_doubt::ClockDoubt;
use crate::path::Path;
use crate::pipeline::Counts;
use crate::pipeline::explain::{OwnKey, WhyHop, clock_words, goes_out, hops, own_keys, reason, suite_name, word};
use crate::pipeline::jobs::{Outcome, carried};
use crate::pipeline::policy::VerdictClass;
use crate::report::{Broken, KeyOrigin, Lack, Report};
use crate::validate::{Carried, Context, Route, Rules, validate};

/// The state of a proxy.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The AS.
    pub asn: Asn,
    /// Its pairs.
    pub pairs: Vec<PairStatus>,
    /// Routes from outside by class.
    pub classes: BTreeMap<&'static str, u64>,
    /// All pairs' counts together.
    pub counts: Counts,
    /// Why our clock is in doubt, if it is.
    pub clock: &'static str,
    /// The least share of a few-time key's signatures that is left, from 0 to 1; nothing without such a key.
    pub few_time_left: Option<f64>,
}

/// The state of a pair.
#[derive(Clone, Debug, Serialize)]
pub struct PairStatus {
    /// Its name.
    pub name: String,
    /// The end towards the own speaker.
    pub inside: EndStatus,
    /// The end towards the neighbour.
    pub outside: EndStatus,
    /// Suites of the keys that the neighbour offers; none: it does not attest.
    pub offered: Vec<String>,
    /// Routes that wait to be validated, and to be signed.
    pub waiting: [usize; 2],
    /// What it has counted.
    pub counts: Counts,
}

/// The state of one end of a pair.
#[derive(Clone, Debug, Serialize)]
pub struct EndStatus {
    /// Whether its session is up.
    pub up: bool,
    /// The session's state.
    pub state: String,
    /// Its peer has called and waits for the other end.
    pub waits: bool,
    /// The peer's AS.
    pub asn: Option<Asn>,
    /// The peer's identifier.
    pub router_id: Option<String>,
    /// Whether messages may be longer than 4,096 octets.
    pub extended_messages: bool,
    /// Routes that it announced.
    pub received: usize,
    /// Routes that it shall have.
    pub announced: usize,
    /// What its sessions counted.
    pub counters: Counters,
}

/// A route as a list shows it.
#[derive(Clone, Debug, Serialize)]
pub struct RouteStatus {
    /// The pair.
    pub pair: String,
    /// `in`: from outside; `out`: from inside.
    pub direction: &'static str,
    /// The prefix.
    pub prefix: Prefix,
    /// AS_PATH as received, the nearest first.
    pub as_path: Vec<Asn>,
    /// Of a route from outside: what was concluded. Of one from inside: how it went out.
    pub verdict: String,
    /// Whether it was passed on.
    pub passed: bool,
}

/// Why a prefix has the routes that it has.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    /// The prefix.
    pub prefix: Prefix,
    /// One sentence.
    pub summary: String,
    /// Each route with it.
    pub routes: Vec<WhyRoute>,
}

/// Why a route went as it did.
#[derive(Clone, Debug, Serialize)]
pub struct WhyRoute {
    /// The pair.
    pub pair: String,
    /// `in`: from outside; `out`: from inside.
    pub direction: &'static str,
    /// AS_PATH as received, the nearest first.
    pub as_path: Vec<Asn>,
    /// What was concluded; of routes from inside, what the neighbour will conclude up to us, as far as we know.
    pub class: VerdictClass,
    /// What became of it, in words.
    pub outcome: String,
    /// The chain along the path, the origin first.
    pub hops: Vec<WhyHop>,
    /// What is false, and who could have caused it.
    pub broken: Option<Broken>,
    /// The same in words.
    pub reason: String,
    /// Why it is not wholly proved.
    pub lack: Option<Lack>,
    /// When it is looked at again, in seconds since 1970.
    pub until: Option<UnixTime>,
    /// Octets of the attestation that it came with.
    pub octets: usize,
}

impl Proxy {
    /// The state of every pair.
    #[must_use]
    pub fn status(&mut self) -> Status {
        let mut classes: BTreeMap<&'static str, u64> =
            VerdictClass::ALL.iter().map(|class| (class.name(), 0)).collect();
        let mut counts = Counts::default();
        let pairs = self.places.iter().map(|place| {
            for (nlri, entry) in place.incoming.iter() {
                if let Some(report) = &entry.found {
                    *classes.entry(VerdictClass::of(report, &nlri.prefix).name()).or_default() += 1;
                }
            }
            counts.add(&place.counts);
            PairStatus {
                name: place.name.clone(),
                inside: end(&place.pair, Side::Inside),
                outside: end(&place.pair, Side::Outside),
                offered: place.offered.iter().map(|key| suite_name(key.suite)).collect(),
                waiting: [place.incoming.waiting(), place.outgoing.waiting()],
                counts: place.counts,
            }
        });
        let pairs = pairs.collect();
        let clock = clock_words(self.doubt);
        let keys = self.ring();
        let left = keys.pairs.iter().enumerate().filter_map(|(place, pair)| Some(self.left(place, pair)?.share()));
        let few_time_left = left.reduce(f64::min);
        drop(keys);
        Status { asn: self.config.asn, pairs, classes, counts, clock, few_time_left }
    }

    /// Why the proxy does not do all of its work, if it does not. Cheap, to be asked often.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        let is_up = |pair: &SessionPair| Side::BOTH.iter().all(|side| pair.established(*side).is_some());
        let down = self.places.iter().find(|place| !is_up(&place.pair));
        let clock = self.doubt.map(|_| format!("the clock is {}", clock_words(self.doubt)));
        clock.or_else(|| down.map(|place| format!("pair {} is not up", place.name)))
    }

    /// The first `most` routes, pair by pair, those from outside first.
    #[must_use]
    pub fn routes(&mut self, most: usize) -> Vec<RouteStatus> {
        let policy = &self.config.policy;
        let all = self.places.iter().flat_map(|place| {
            let name = &place.name;
            let incoming = place.incoming.iter().map(move |(nlri, entry)| {
                let class = entry.found.as_ref().map(|report| VerdictClass::of(report, &nlri.prefix));
                RouteStatus {
                    pair: name.clone(),
                    direction: "in",
                    prefix: nlri.prefix,
                    as_path: entry.attributes.as_path().asns().collect(),
                    verdict: class.map_or("waits", VerdictClass::name).to_owned(),
                    passed: class.is_some_and(|class| !policy.treatment(class).reject),
                }
            });
            let outgoing = place.outgoing.iter().map(move |(nlri, entry)| RouteStatus {
                pair: name.clone(),
                direction: "out",
                prefix: nlri.prefix,
                as_path: entry.attributes.as_path().asns().collect(),
                verdict: entry.found.as_ref().map_or("waits".to_owned(), |outcome| word(outcome).to_owned()),
                passed: entry.found.as_ref().is_some_and(goes_out),
            });
            incoming.chain(outgoing)
        });
        all.take(most).collect()
    }

    /// Public parts of the keys that this proxy signs with.
    #[must_use]
    pub fn own_keys(&mut self) -> Vec<OwnKey> {
        own_keys(&self.ring(), |place, pair| self.left(place, pair).map(|left| left.left))
    }

    /// Why `prefix` has the routes that it has. Validates them anew, to say as exactly as can be what broke.
    #[must_use]
    pub fn why(&mut self, prefix: Prefix) -> Why {
        let mut routes = Vec::new();
        for place in &self.places {
            for (_, entry) in place.incoming.paths(prefix) {
                let report = self.explain(prefix, &entry.attributes, self.config.asn);
                let class = VerdictClass::of(&report, &prefix);
                let treatment = self.config.policy.treatment(class);
                let outcome = match (&entry.found, treatment.reject) {
                    (None, _) => "waits to be validated".to_owned(),
                    (_, true) => format!("{}, and rejected by policy", class.name()),
                    (_, false) => match treatment.large_community {
                        Some(tag) => format!("{}, passed inside with {tag}", class.name()),
                        None => format!("{}, passed inside", class.name()),
                    },
                };
                routes.push(self.why_route(&place.name, "in", &entry.attributes, &report, class, outcome));
            }
            let neighbour = place.pair.established(Side::Outside).map_or(Asn(0), |up| up.peer_asn);
            for (_, entry) in place.outgoing.paths(prefix) {
                let sent = match &entry.found {
                    Some(Outcome::Attested { attributes, .. }) => attributes,
                    _ => &entry.attributes,
                };
                let report = self.explain(prefix, sent, neighbour);
                let class = VerdictClass::of(&report, &prefix);
                let outcome = match &entry.found {
                    None => "waits to be signed".to_owned(),
                    Some(Outcome::NotExtended(error)) => format!("sent on without our hop: {error}"),
                    Some(Outcome::TooLong { need }) => {
                        format!("not sent: the attestation of {need} octets is too long for {neighbour}")
                    }
                    Some(outcome) => word(outcome).to_owned(),
                };
                routes.push(self.why_route(&place.name, "out", sent, &report, class, outcome));
            }
        }
        let summary = match routes.len() {
            0 => "no neighbour and no own speaker announces it here".to_owned(),
            1 => "one route".to_owned(),
            more => format!("{more} routes"),
        };
        Why { prefix, summary, routes }
    }

    fn explain(&self, prefix: Prefix, attributes: &Attributes, receiver: Asn) -> Report {
        let rules = Rules { explain: true, ..self.config.rules };
        let context = Context { view: &self.view, rules: &rules, clock: self.clock(), directories: &self.directories };
        let path = Path::from_as_path(attributes.as_path());
        let carried = carried(attributes, self.config.attribute);
        validate(&context, &Route { prefixes: &[prefix], path: &path, carried, receiver })
    }

    fn why_route(
        &self,
        pair: &str,
        direction: &'static str,
        attributes: &Attributes,
        report: &Report,
        class: VerdictClass,
        outcome: String,
    ) -> WhyRoute {
        let octets = match carried(attributes, self.config.attribute) {
            Carried::Value(value) => value.len(),
            Carried::Absent | Carried::Malformed => 0,
        };
        WhyRoute {
            pair: pair.to_owned(),
            direction,
            as_path: attributes.as_path().asns().collect(),
            class,
            outcome,
            hops: hops(report, attributes),
            broken: report.broken.clone(),
            reason: reason(report),
            lack: report.lack,
            until: report.until,
            octets,
        }
    }
}

fn end(pair: &SessionPair, side: Side) -> EndStatus {
    let up = pair.established(side);
    EndStatus {
        up: up.is_some(),
        state: pair.state(side).to_string(),
        waits: pair.waits(side),
        asn: up.map(|up| up.peer_asn),
        router_id: up.map(|up| up.peer_id.to_string()),
        extended_messages: up.is_some_and(|up| up.params.extended_message),
        received: pair.rib_in(side).len(),
        announced: pair.rib_out(side).len(),
        counters: pair.counters(side),
    }
}

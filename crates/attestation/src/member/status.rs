//! What a member shows of its attestation: how many routes are of which class, and of any route what is proved, hop by hop.

use std::collections::BTreeMap;

use serde::Serialize;
use wayleave_core::{Asn, Prefix, UnixTime};

use super::event::RouteId;
use super::machine::MemberAttestation;
use super::received::opened;
use crate::leaf::KeyId;
use crate::pipeline::explain::{OwnKey, WhyHop, clock_words, hops, outcome_words, reason, signed_routes};
use crate::pipeline::jobs::{SigningOutcome, carried_octets};
use crate::pipeline::policy::VerdictClass;
use crate::pipeline::{Counts, FewTimeStatus, Memory};
use crate::report::Broken;

/// The state of a member's attestation.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Routes of other members by class; those that could not become best are not among them.
    pub classes: BTreeMap<&'static str, u64>,
    /// Routes that wait to be validated, and to be signed.
    pub waiting: [usize; 2],
    /// Announcers that have sent many wrong signatures: their routes are validated alone, and after those of others.
    pub suspects: usize,
    pub counts: Counts,
    /// Memory of the tables, with its bounds.
    pub memory: Memory,
    /// Members of the newest set that attest, and all.
    pub members: [usize; 2],
    /// Why our clock is in doubt, if it is.
    pub clock: &'static str,
    /// How each few-time key stands.
    pub few_time_keys: Vec<FewTimeStatus>,
    pub asn: Asn,
    /// The keys here, where none is registered and the AS registered others, or a record that asks for signatures.
    pub unregistered_keys: Vec<KeyId>,
}

/// What is proved of a received route.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// What was concluded.
    pub class: VerdictClass,
    /// The chain along the path, the origin first.
    pub hops: Vec<WhyHop>,
    /// What is false, and who could have caused it.
    pub broken: Option<Broken>,
    /// The same in words.
    pub reason: String,
    /// When it is validated again.
    pub until: Option<UnixTime>,
    /// Octets of the attestation.
    pub octets: usize,
}

/// A route of the own router, and how it went to the exchange.
#[derive(Clone, Debug, Serialize)]
pub struct SentRoute {
    /// AS_PATH as the router sent it, the nearest first.
    pub as_path: Vec<Asn>,
    /// What became of it, in words.
    pub outcome: String,
    /// Octets of the attestation that went out.
    pub octets: usize,
}

impl MemberAttestation {
    #[must_use]
    pub fn status(&self) -> Status {
        let mut classes: BTreeMap<&'static str, u64> =
            VerdictClass::ALL.iter().map(|class| (class.name(), 0)).collect();
        for route in self.received.routes.values() {
            for class in (0..route.prefixes.len()).filter_map(|index| route.class(index)) {
                *classes.entry(class.name()).or_default() += 1;
            }
        }
        let members = self.directories.newest().map_or([0; 2], |newest| {
            let attests = |asn: &Asn| newest.tree.leaf(*asn).is_some_and(|leaf| !leaf.is_keyless());
            [newest.tree.asns().filter(attests).count(), newest.tree.asns().count()]
        });
        let waiting = [self.received.waiting(), self.announced.routes.waiting() + self.renewals.len()];
        Status {
            classes,
            waiting,
            suspects: self.received.queues.suspects(),
            counts: self.counts,
            memory: self.memory(),
            members,
            clock: clock_words(self.pipeline.doubt),
            few_time_keys: self.pipeline.few_time_keys(),
            asn: self.pipeline.config.asn,
            unregistered_keys: self.pipeline.unregistered_keys(),
        }
    }

    fn memory(&self) -> Memory {
        let add = |[a, most_a]: [usize; 2], [b, most_b]: [usize; 2]| [a + b, most_a + most_b];
        let own = self.known.if_idle(|known| [known.octets(), known.limit()]).unwrap_or([self.known.limit(); 2]);
        Memory::from([
            ("routes", self.received.octets().into()),
            ("verified_signatures", add(own, self.received.queues.cache_octets()).into()),
            ("queues", add(self.announced.octets(), self.received.queue_octets()).into()),
        ])
    }

    /// Why verdicts may be wrong: this machine's clock is in doubt. Cheap, to be queried often.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        self.pipeline.clock_problem()
    }

    /// The public parts of the keys that sign.
    #[must_use]
    pub fn own_keys(&self) -> Vec<OwnKey> {
        let routes = signed_routes(self.announced.routes.iter().filter_map(|(_, route)| route.result.as_ref()));
        self.pipeline.own_keys("restart", &routes)
    }

    /// What is proved of a received route to one of its prefixes. Validates it again, and checks every signature, so that
    /// the answer names the first hop that is false.
    #[must_use]
    pub fn explain(&self, id: &RouteId, prefix: Prefix) -> Option<Explained> {
        let route = self.received.routes.get(id)?;
        let directory = self.directories.tree(&route.set).map(AsRef::as_ref);
        let config = &self.pipeline.config;
        let attributes = opened(&route.attributes, config.attribute, directory, config.asn);
        let report = self.pipeline.explain(prefix, &attributes, config.asn, &[]);
        Some(Explained {
            class: VerdictClass::of(&report, &prefix),
            hops: hops(&report, &attributes),
            reason: reason(&report),
            until: report.until,
            broken: report.broken,
            octets: carried_octets(&attributes, config.attribute),
        })
    }

    /// How the own router's routes to a prefix went out.
    #[must_use]
    pub fn sent(&self, prefix: Prefix) -> Vec<SentRoute> {
        let sent = self.announced.routes.paths(prefix).map(|(_, route)| {
            let (outcome, octets) = match &route.result {
                None => ("waits to be signed".to_owned(), 0),
                Some(outcome @ SigningOutcome::Refused { .. }) => (outcome_words(outcome), 0),
                Some(outcome) => {
                    let sent = outcome.sent(&route.attributes).unwrap_or(&route.attributes);
                    (outcome_words(outcome), carried_octets(sent, self.pipeline.config.attribute))
                }
            };
            SentRoute { as_path: route.attributes.as_path().asns().collect(), outcome, octets }
        });
        sent.collect()
    }
}

//! What an attestor shows: how many routes are of which class, and of any route, hop by hop, what is proved.

use std::collections::BTreeMap;

use serde::Serialize;
use wayleave_bgp::Attributes;
use wayleave_core::{Asn, Prefix, UnixTime};

use super::event::RouteId;
use super::machine::{Fate, MemberAttestation};
use super::received::opened;
use crate::path::Path;
use crate::pipeline::Counts;
use crate::pipeline::explain::{OwnKey, WhyHop, clock_words, hops, own_keys, reason, sent_word};
use crate::pipeline::jobs::{Outcome, carried};
use crate::pipeline::policy::VerdictClass;
use crate::report::{Broken, Report};
use crate::validate::{Carried, Context, Route, Rules, validate};

/// The state of an attestor.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Routes of other members by class; those that could not become best are not among them.
    pub classes: BTreeMap<&'static str, u64>,
    /// Routes that wait to be validated, and to be signed.
    pub waiting: [usize; 2],
    /// Counts.
    pub counts: Counts,
    /// Members of the newest set that attest, and all.
    pub members: [usize; 2],
    /// Why our clock is in doubt, if it is.
    pub clock: &'static str,
}

/// What is proved of a route.
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
    /// When it is looked at again.
    pub until: Option<UnixTime>,
    /// Octets of the attestation.
    pub octets: usize,
}

/// A route of the own router, and how it went to the exchange.
#[derive(Clone, Debug, Serialize)]
pub struct Sent {
    /// AS_PATH as the router sent it, the nearest first.
    pub as_path: Vec<Asn>,
    /// What became of it, in words.
    pub outcome: String,
    /// Octets of the attestation that went out.
    pub octets: usize,
}

impl MemberAttestation {
    /// The state.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut classes: BTreeMap<&'static str, u64> =
            VerdictClass::ALL.iter().map(|class| (class.name(), 0)).collect();
        for entry in self.incoming.entries.values() {
            for class in (0..entry.prefixes.len()).filter_map(|place| entry.class(place)) {
                *classes.entry(class.name()).or_default() += 1;
            }
        }
        let members = self.directories.last().map_or([0; 2], |newest| {
            let attests = |asn: &Asn| newest.tree.leaf(*asn).is_some_and(|leaf| !leaf.is_keyless());
            [newest.tree.neighbours().filter(attests).count(), newest.tree.neighbours().count()]
        });
        let waiting = [self.incoming.waiting(), self.outgoing.waiting()];
        Status { classes, waiting, counts: self.counts, members, clock: clock_words(self.doubt) }
    }

    /// Whether our clock is in doubt, and how.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        self.doubt.map(|doubt| format!("the clock is {}", clock_words(Some(doubt))))
    }

    /// Public parts of the keys that sign.
    #[must_use]
    pub fn own_keys(&self) -> Vec<OwnKey> {
        own_keys(&self.ring(), |place, pair| self.left(place, pair))
    }

    /// What is proved of a route that the member asked about, for one of its prefixes. Validates it anew, to say as exactly
    /// as can be what broke.
    #[must_use]
    pub fn explain(&self, id: &RouteId, prefix: Prefix) -> Option<Explained> {
        let entry = self.incoming.entries.get(id)?;
        let directory = self.directory(entry.set).map(AsRef::as_ref);
        let attributes = opened(&entry.attributes, self.config.attribute, directory, self.config.asn);
        Some(self.explained(prefix, &attributes))
    }

    fn explained(&self, prefix: Prefix, attributes: &Attributes) -> Explained {
        let rules = Rules { explain: true, ..self.config.rules };
        let context = Context { view: &self.view, rules: &rules, clock: self.clock(), directories: &[] };
        let path = Path::from_as_path(attributes.as_path());
        let carried = carried(attributes, self.config.attribute);
        let route = Route { prefixes: &[prefix], path: &path, carried, receiver: self.config.asn };
        let report: Report = validate(&context, &route);
        Explained {
            class: VerdictClass::of(&report, &prefix),
            hops: hops(&report, attributes),
            reason: reason(&report),
            until: report.until,
            broken: report.broken,
            octets: octets(carried),
        }
    }

    /// How the own router's routes to a prefix went out.
    #[must_use]
    pub fn sent(&self, prefix: Prefix) -> Vec<Sent> {
        let sent = |attributes: &Attributes, fate: &Option<Fate>| {
            let (outcome, value) = match fate {
                None => ("waits to be signed".to_owned(), 0),
                Some(Fate::Refused(class, report)) => {
                    (format!("{}, and not announced by policy: {}", class.name(), reason(report)), 0)
                }
                Some(Fate::Out(outcome)) => {
                    let went = match outcome {
                        Outcome::Attested { attributes, .. } => attributes,
                        _ => attributes,
                    };
                    (sent_word(outcome), octets(carried(went, self.config.attribute)))
                }
            };
            Sent { as_path: attributes.as_path().asns().collect(), outcome, octets: value }
        };
        self.outgoing.paths(prefix).map(|(_, entry)| sent(&entry.attributes, &entry.found)).collect()
    }
}

fn octets(carried: Carried<'_>) -> usize {
    match carried {
        Carried::Value(value) => value.len(),
        Carried::Absent | Carried::Malformed => 0,
    }
}

//! What a proxy shows: its pairs, its routes, and of any prefix, hop by hop, what is proved and who could have signed.

use std::collections::BTreeMap;

use serde::Serialize;
use wayleave_bgp::Attributes;
use wayleave_bgp::session::Counters;
use wayleave_core::{Asn, Prefix, UnixTime};

use super::event::Counts;
use super::machine::Proxy;
use super::pair::{Pair, Side};
use super::policy::Class;
use super::work::{Outcome, carried};
use crate::SuiteId;
use crate::attest::{AttestError, KeyRing, Pair as KeyPair};
use crate::doubt::Doubt;
use crate::path::Path;
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
    pub class: Class,
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

/// One AS of a path.
#[derive(Clone, Debug, Serialize)]
pub struct WhyHop {
    /// The AS.
    pub asn: Asn,
    /// The suite that it signed with; `None`: it does not attest (a gap).
    pub suite: Option<String>,
    /// Whose word stands behind its key.
    pub key: Option<KeyOrigin>,
    /// Whether its signature is right.
    pub proved: bool,
    /// Whether the chain broke here.
    pub broken: bool,
    /// Who could have made this signature.
    pub could_have_signed: Vec<Asn>,
    /// Until when it holds, in seconds since 1970.
    pub not_after: Option<u64>,
    /// All of it in words.
    pub words: String,
}

/// A key of the AS, public parts only.
#[derive(Clone, Debug, Serialize)]
pub struct OwnKey {
    /// What it is for.
    pub of: &'static str,
    /// Its suite.
    pub suite: &'static str,
    /// Its name in leaves: 64 hexadecimal digits.
    pub sign: String,
    /// Whether the trust anchor vouches for it.
    pub registered: bool,
    /// The next index of a few-time key.
    pub next_index: Option<u64>,
    /// Signatures that it may still make.
    pub left: Option<u64>,
    /// What makes a change count.
    pub reload: &'static str,
}

impl Proxy {
    /// The state of every pair.
    #[must_use]
    pub fn status(&mut self) -> Status {
        let mut classes: BTreeMap<&'static str, u64> = Class::ALL.iter().map(|class| (class.name(), 0)).collect();
        let mut counts = Counts::default();
        let pairs = self.places.iter().map(|place| {
            for (nlri, entry) in place.incoming.iter() {
                if let Some(report) = &entry.found {
                    *classes.entry(Class::of(report, &nlri.prefix).name()).or_default() += 1;
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
        let is_up = |pair: &Pair| Side::BOTH.iter().all(|side| pair.established(*side).is_some());
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
                let class = entry.found.as_ref().map(|report| Class::of(report, &nlri.prefix));
                RouteStatus {
                    pair: name.clone(),
                    direction: "in",
                    prefix: nlri.prefix,
                    as_path: entry.attributes.as_path().asns().collect(),
                    verdict: class.map_or("waits", Class::name).to_owned(),
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
                let class = Class::of(&report, &prefix);
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
                let class = Class::of(&report, &prefix);
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
        class: Class,
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

/// What is to be said of our clock.
pub(super) fn clock_words(doubt: Option<Doubt>) -> &'static str {
    match doubt {
        None => "good",
        Some(Doubt::Slow) => "in doubt: most origins sign for times that have not come here",
        Some(Doubt::Fast) => "in doubt: most origins' signatures have expired here",
    }
}

/// Public parts of the keys of a ring.
pub(super) fn own_keys(ring: &KeyRing, left: impl Fn(usize, &KeyPair) -> Option<u64>) -> Vec<OwnKey> {
    let own = ring.pairs.iter().enumerate().map(|(place, pair)| OwnKey {
        of: "attestations",
        suite: pair.suite.name(),
        sign: pair.leaf_key().key.iter().map(|octet| format!("{octet:02x}")).collect(),
        registered: pair.registered,
        next_index: pair.key.next_index(),
        left: left(place, pair),
        reload: "restart",
    });
    own.collect()
}

/// What a report says in one sentence.
#[must_use]
pub fn reason(report: &Report) -> String {
    match (&report.broken, &report.lack) {
        (Some(broken), _) => {
            let place = broken.asn.map_or(String::new(), |asn| format!(" at {asn}"));
            let suspects: Vec<String> = broken.suspects.iter().map(ToString::to_string).collect();
            let by = match suspects.as_slice() {
                [] => String::new(),
                [one] => format!("; {one} did it"),
                many => format!("; one of {} did it", many.join(", ")),
            };
            format!("{}{place}{by}", broken.problem)
        }
        (None, Some(lack)) => lack.to_string(),
        (None, None) => "every hop is proved".to_owned(),
    }
}

/// The path, AS by AS, with what the report proves of each.
pub(super) fn hops(report: &Report, attributes: &Attributes) -> Vec<WhyHop> {
    let path = Path::from_as_path(attributes.as_path());
    let entries = path.entries();
    let mut all = Vec::new();
    let mut cursor = 0;
    let broken_at = report.broken.as_ref().and_then(|broken| broken.hop);
    for (number, hop) in report.hops.iter().enumerate() {
        let skipped = usize::from(hop.skipped);
        gaps(&mut all, entries.iter().skip(cursor).take(skipped));
        cursor += skipped + usize::from(hop.prepend);
        let could: Vec<Asn> = report.could_have_signed(number).collect();
        let broken = broken_at == Some(number);
        let suite = suite_name(hop.suite);
        let key = match hop.key {
            KeyOrigin::Registered => "its registered key".to_owned(),
            KeyOrigin::EndorsedAndRegistered => "a key that the AS before endorsed and that is registered".to_owned(),
            KeyOrigin::Endorsed => "a key for which only the AS before vouches".to_owned(),
            KeyOrigin::Granted => "a key that the AS before made".to_owned(),
        };
        let mut words = match (broken, hop.proved) {
            (true, _) => format!("signed with {suite} and {key}: broken here"),
            (false, true) => format!("signed with {suite} and {key}: proved"),
            (false, false) => format!("signed with {suite} and {key}: not proved"),
        };
        if could.len() > 1 {
            let others: Vec<String> = could.iter().filter(|asn| **asn != hop.asn).map(ToString::to_string).collect();
            words += &format!("; {} could have signed too", others.join(", "));
        }
        all.push(WhyHop {
            asn: hop.asn,
            suite: Some(suite),
            key: Some(hop.key),
            proved: hop.proved,
            broken,
            could_have_signed: could,
            not_after: Some(hop.not_after),
            words,
        });
    }
    // What the hops do not reach: those of the tail, or of a chain that could not be read that far.
    gaps(&mut all, entries.iter().skip(cursor));
    all
}

/// Entries that nobody attests, each AS once however often it prepended itself.
fn gaps<'a>(all: &mut Vec<WhyHop>, entries: impl Iterator<Item = &'a Asn>) {
    let mut last = None;
    for asn in entries {
        if last.replace(*asn) != Some(*asn) {
            all.push(gap(*asn));
        }
    }
}

fn gap(asn: Asn) -> WhyHop {
    WhyHop {
        asn,
        suite: None,
        key: None,
        proved: false,
        broken: false,
        could_have_signed: Vec::new(),
        not_after: None,
        words: "attests nothing: a gap".to_owned(),
    }
}

fn suite_name(number: u8) -> String {
    SuiteId::from_byte(number).map_or(format!("suite {number}"), |suite| suite.name().to_owned())
}

/// How a route went to the members of an exchange.
pub(super) fn sent_word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::NotExtended(error) => format!("sent on without our hop: {error}"),
        Outcome::TooLong { need } => format!("not sent: the attestation of {need} octets is too long"),
        outcome => word(outcome).to_owned(),
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Attested { origin: true, .. } => "signed as origin",
        Outcome::Attested { origin: false, .. } => "chain extended",
        Outcome::AsTheyCame => "sent on without an attestation of ours",
        Outcome::NotExtended(AttestError::NotOurs(_)) => "sent on without our hop: the chain names none of our keys",
        Outcome::NotExtended(_) => "sent on without our hop",
        Outcome::TooLong { .. } => "not sent: too long",
        Outcome::NotReserved => "waits for the key's count to be durable",
        Outcome::Exhausted => "not sent: the keys are spent",
    }
}

fn goes_out(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::TooLong { .. } | Outcome::NotReserved | Outcome::Exhausted)
}

fn end(pair: &Pair, side: Side) -> EndStatus {
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

//! What a proxy shows: its pairs, its routes, and of any prefix, hop by hop, what is proved and who could have signed.

use std::collections::BTreeMap;

use serde::Serialize;
use wayleave_bgp::notification::{code, open};
use wayleave_bgp::session::{Cause, Counters};
use wayleave_bgp::{Attributes, Notification};
use wayleave_core::{Asn, Prefix, UnixTime};

use super::machine::{PairState, Proxy};
use super::session_pair::{LastEnd, SessionPair, Side};
use crate::leaf::KeyId;
use crate::path::Path;
use crate::pipeline::explain::{OwnKey, WhyHop, clock_words, hops, outcome_words, reason, signed_routes, suite_name};
use crate::pipeline::jobs::{SigningOutcome, carried_octets};
use crate::pipeline::policy::VerdictClass;
use crate::pipeline::{Counts, FewTimeStatus, Memory, MemoryUse};
use crate::report::{Advice, Broken, Lack, Report};
use crate::sign::AttestationError;

/// The state of a proxy.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub asn: Asn,
    pub pairs: Vec<PairStatus>,
    /// Routes from outside by class.
    pub classes: BTreeMap<&'static str, u64>,
    /// All pairs' counts together.
    pub counts: Counts,
    /// Memory of all pairs' tables, and of the signatures that were checked before others were made, with its bounds.
    pub memory: Memory,
    /// Why our clock is in doubt, if it is.
    pub clock: &'static str,
    /// How each few-time key stands.
    pub few_time_keys: Vec<FewTimeStatus>,
    /// The keys here, where none is registered and the AS registered others, or a record that asks for signatures.
    pub unregistered_keys: Vec<KeyId>,
}

/// The state of a pair.
#[derive(Clone, Debug, Serialize)]
pub struct PairStatus {
    pub name: String,
    /// Why it is not up, and what to do, while it is not.
    pub problem: Option<String>,
    /// The end towards the own speaker.
    pub inside: EndStatus,
    /// The end towards the neighbour.
    pub outside: EndStatus,
    /// Suites of the keys that the neighbour offers; none: it does not attest.
    pub offered: Vec<String>,
    /// Routes from outside that policy rejects now.
    pub rejected: usize,
    /// Routes from inside that policy rejects now.
    pub rejected_from_inside: usize,
    /// Routes from inside that are held back now for another reason.
    pub held_back: usize,
    /// The first of them.
    pub first_held_back: Option<Prefix>,
    /// Routes that wait to be validated, and to be signed.
    pub waiting: [usize; 2],
    /// The neighbour has sent many wrong signatures: its routes are validated alone, and after those of others.
    pub suspect: bool,
    pub counts: Counts,
    /// Memory of its tables, with its bounds.
    pub memory: Memory,
}

/// The state of one end of a pair.
#[derive(Clone, Debug, Serialize)]
pub struct EndStatus {
    /// Whether its session is up.
    pub up: bool,
    /// The session's state.
    pub state: String,
    /// What ended its last session, or the last attempt at one, with the NOTIFICATION and who sent it; until it is up again.
    pub last_end: Option<String>,
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
    pub pair: String,
    /// `in`: from outside; `out`: from inside.
    pub direction: &'static str,
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
    pub prefix: Prefix,
    /// One sentence.
    pub summary: String,
    /// Each route with it.
    pub routes: Vec<WhyRoute>,
    /// Why routes may be missing or without protection, whatever their prefix.
    pub problems: Vec<String>,
}

/// Why a route went as it did.
#[derive(Clone, Debug, Serialize)]
pub struct WhyRoute {
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
    /// The rule by which it is so, and what to do.
    #[serde(flatten)]
    pub advice: Advice,
    /// Why it is not wholly proved.
    pub lack: Option<Lack>,
    /// When it is validated again, in seconds since 1970.
    pub until: Option<UnixTime>,
    /// Octets of the attestation that it came with.
    pub octets: usize,
}

impl Proxy {
    #[must_use]
    pub fn status(&mut self) -> Status {
        let mut classes: BTreeMap<&'static str, u64> =
            VerdictClass::ALL.iter().map(|class| (class.name(), 0)).collect();
        let mut counts = Counts::default();
        let mut memory = Memory::new();
        let pairs = self.pairs.iter().enumerate().map(|(index, pair)| {
            for class in pair.incoming.iter().filter_map(|(_, route)| route.result) {
                *classes.entry(class.name()).or_default() += 1;
            }
            let policy = &self.pipeline.config.policy;
            let is_rejected = |class: &VerdictClass| policy.treatment(*class).reject;
            let rejected = pair.incoming.iter().filter(|(_, route)| route.result.as_ref().is_some_and(is_rejected));
            let outgoing = |is: fn(&SigningOutcome) -> bool| {
                pair.outgoing.routes.iter().filter(move |(_, route)| route.result.as_ref().is_some_and(is))
            };
            let held_back = || outgoing(SigningOutcome::holds_back);
            counts += pair.counts;
            let of_pair = memory_of(pair);
            MemoryUse::add(&mut memory, &of_pair);
            PairStatus {
                name: pair.name.clone(),
                problem: problem(pair),
                inside: end(&pair.sessions, Side::Inside),
                outside: end(&pair.sessions, Side::Outside),
                offered: pair.offered.iter().map(|key| suite_name(key.suite)).collect(),
                rejected: rejected.count(),
                rejected_from_inside: outgoing(SigningOutcome::is_refused).count(),
                held_back: held_back().count(),
                first_held_back: held_back().map(|(nlri, _)| nlri.prefix).min(),
                waiting: [pair.incoming.waiting(), pair.outgoing.routes.waiting()],
                suspect: self.budget.is_suspect(index),
                counts: pair.counts,
                memory: of_pair,
            }
        });
        let pairs: Vec<PairStatus> = pairs.collect();
        let checked = self.checked.if_idle(|known| [known.octets(), known.limit()]);
        memory.insert("checked_signatures", checked.unwrap_or([self.checked.limit(); 2]).into());
        let clock = clock_words(self.pipeline.doubt);
        let few_time_keys = self.pipeline.few_time_keys();
        let unregistered_keys = self.pipeline.unregistered_keys();
        Status {
            asn: self.pipeline.config.asn,
            pairs,
            classes,
            counts,
            memory,
            clock,
            few_time_keys,
            unregistered_keys,
        }
    }

    /// Why the proxy does not do all of its work, if it does not: few words, which do not change with each attempt, since each change
    /// is logged. Cheap, to be queried often.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        self.pipeline.clock_problem().or_else(|| self.pairs.iter().find(|pair| !is_up(pair)).map(not_up))
    }

    /// The first `max` routes, pair by pair, those from outside first.
    #[must_use]
    pub fn routes(&mut self, max: usize) -> Vec<RouteStatus> {
        let policy = &self.pipeline.config.policy;
        let all = self.pairs.iter().flat_map(|pair| {
            let name = &pair.name;
            let incoming = pair.incoming.iter().map(move |(nlri, route)| {
                let class = route.result;
                RouteStatus {
                    pair: name.clone(),
                    direction: "in",
                    prefix: nlri.prefix,
                    as_path: route.attributes.as_path().asns().collect(),
                    verdict: class.map_or("waits", VerdictClass::name).to_owned(),
                    passed: class.is_some_and(|class| !policy.treatment(class).reject),
                }
            });
            let outgoing = pair.outgoing.routes.iter().map(move |(nlri, route)| RouteStatus {
                pair: name.clone(),
                direction: "out",
                prefix: nlri.prefix,
                as_path: route.attributes.as_path().asns().collect(),
                verdict: route.result.as_ref().map_or("waits", short_outcome).to_owned(),
                passed: route.result.as_ref().is_some_and(|outcome| outcome.sent(&route.attributes).is_some()),
            });
            incoming.chain(outgoing)
        });
        all.take(max).collect()
    }

    /// The public parts of the keys that sign.
    #[must_use]
    pub fn own_keys(&mut self) -> Vec<OwnKey> {
        let outgoing = self.pairs.iter().flat_map(|pair| pair.outgoing.routes.iter());
        let routes = signed_routes(outgoing.filter_map(|(_, route)| route.result.as_ref()));
        self.pipeline.own_keys("SIGHUP", &routes)
    }

    /// The AS, and its keys here where it registered keys and none of them: nothing is signed. Cheap, to be queried often.
    #[must_use]
    pub fn unregistered_keys(&self) -> (Asn, Vec<KeyId>) {
        (self.pipeline.config.asn, self.pipeline.unregistered_keys())
    }

    /// Why `prefix` has the routes that it has. Validates them again, and checks every signature, so that the answer names
    /// the first hop that is false.
    #[must_use]
    pub fn why(&mut self, prefix: Prefix) -> Why {
        let mut routes = Vec::new();
        for pair in &self.pairs {
            for (_, route) in pair.incoming.paths(prefix) {
                let report =
                    self.pipeline.explain(prefix, &route.attributes, self.pipeline.config.asn, &self.directories);
                let class = VerdictClass::of(&report, &prefix);
                let treatment = self.pipeline.config.policy.treatment(class);
                let outcome = match (&route.result, treatment.reject) {
                    (None, _) => "waits to be validated".to_owned(),
                    (_, true) => format!("{}, and rejected by policy", class.name()),
                    (_, false) => match treatment.large_community {
                        Some(tag) => format!("{}, passed inside with {tag}", class.name()),
                        None => format!("{}, passed inside", class.name()),
                    },
                };
                let advice = report.advice_of(&prefix);
                routes.push(self.why_route(&pair.name, "in", &route.attributes, &report, class, (outcome, advice)));
            }
            let neighbour = pair.sessions.established(Side::Outside).map_or(Asn(0), |up| up.peer_asn);
            for (_, route) in pair.outgoing.routes.paths(prefix) {
                let sent = route.result.as_ref().and_then(|outcome| outcome.sent(&route.attributes));
                let sent = sent.unwrap_or(&route.attributes);
                let report = self.pipeline.explain(prefix, sent, neighbour, &self.directories);
                let class = VerdictClass::of(&report, &prefix);
                let is_own = Path::from_as_path(route.attributes.as_path()).origin() == Some(self.pipeline.config.asn);
                let advice = route.result.as_ref().and_then(|outcome| advice_on_signing(outcome, is_own));
                let advice = advice.unwrap_or(report.advice_of(&prefix));
                let outcome = match &route.result {
                    None => "waits to be signed".to_owned(),
                    Some(SigningOutcome::TooLong { need }) => {
                        format!("not sent: the attestation of {need} octets is too long for {neighbour}")
                    }
                    Some(outcome) => outcome_words(outcome),
                };
                let mut row = self.why_route(&pair.name, "out", sent, &report, class, (outcome, advice));
                if route.result.as_ref().is_some_and(|outcome| outcome.sent(&route.attributes).is_none()) {
                    // What a neighbour would conclude of an attestation that is not there is nobody's fault: it gets no route.
                    (row.hops, row.broken, row.reason) = (Vec::new(), None, "nobody is sent it".to_owned());
                }
                routes.push(row);
            }
        }
        let summary = match routes.len() {
            0 => "no neighbour and no own speaker announces it here".to_owned(),
            1 => "one route".to_owned(),
            more => format!("{more} routes"),
        };
        let problems = self.pairs.iter().filter_map(problem).collect();
        Why { prefix, summary, routes, problems }
    }

    fn why_route(
        &self,
        pair: &str,
        direction: &'static str,
        attributes: &Attributes,
        report: &Report,
        class: VerdictClass,
        (outcome, advice): (String, Advice),
    ) -> WhyRoute {
        WhyRoute {
            pair: pair.to_owned(),
            direction,
            as_path: attributes.as_path().asns().collect(),
            class,
            outcome,
            hops: hops(report, attributes),
            broken: report.broken.clone(),
            reason: reason(report),
            advice,
            lack: report.lack,
            until: report.until,
            octets: carried_octets(attributes, self.pipeline.config.attribute),
        }
    }
}

/// What to do about a route that does not go out, or leaves unsigned by what is here; `None` if nothing is. `is_own`: this AS is its origin.
fn advice_on_signing(outcome: &SigningOutcome, is_own: bool) -> Option<Advice> {
    let (rule, cure) = match outcome {
        SigningOutcome::NoRegisteredKey => (
            "an AS signs its own routes with keys that its profile lists",
            "have the key registered (`wayleave keys profile`), or put the registered key's file in the place that `signing` names and send \
             SIGHUP; `wayleave show keys` lists the keys of this proxy",
        ),
        SigningOutcome::NoPostQuantumKey => (
            "what the record of an AS requires holds for its own signature too: no verifier takes one of a classical suite",
            "make a key of a post-quantum suite (`wayleave keys attest FILE --suite kc-hbs`) and have it registered (`wayleave keys profile \
             ... --add`), or have the record signed anew without `--attested post-quantum`",
        ),
        SigningOutcome::AsReceived if is_own => (
            "a proxy signs own routes with the keys that `signing` names, and where `originate` is set, only those within it",
            "nothing if the route is not to be signed; else set `signing`, or add the prefix to `originate`",
        ),
        SigningOutcome::TooLong { .. } => (
            "a message has at most 4,096 octets, or 65,535 where both ends agree on it (RFC 8654)",
            "sign with a suite whose signatures are shorter, or let the neighbour offer extended messages",
        ),
        SigningOutcome::NotReserved => ("a few-time key signs a bounded number of times in a slot of time", "nothing"),
        SigningOutcome::Exhausted => (
            "a few-time key signs until its last slot of time",
            "make new keys (`wayleave keys attest`) and register them",
        ),
        SigningOutcome::Faulty(_) => (
            "what is signed is verified before it leaves",
            "replace the key file by a sound copy, and look for faults of this machine",
        ),
        SigningOutcome::NotAuthorised => (
            "records and VRPs cover the prefix, and none lets this AS originate it (RFC 6811): others would find it invalid",
            "withdraw it at the router; or, if it is yours, have it registered (`wayleave keys record --prefix`, a ROA); \
             `announce_unauthorised = true` announces it all the same",
        ),
        SigningOutcome::Refused { .. } => (
            "`[policy]` holds also for what was let in before it changed",
            "nothing; or let the class in by `[policy]`",
        ),
        SigningOutcome::Signed { .. } | SigningOutcome::AsReceived | SigningOutcome::NotExtended(_) => return None,
    };
    Some(Advice { rule, cure })
}

/// How a route went out, as lists show it.
fn short_outcome(outcome: &SigningOutcome) -> &'static str {
    match outcome {
        SigningOutcome::Signed { origin: true, .. } => "signed as origin",
        SigningOutcome::Signed { origin: false, .. } => "chain extended",
        SigningOutcome::AsReceived => "sent on without an attestation of ours",
        SigningOutcome::NoRegisteredKey => "sent unsigned: no key here is registered",
        SigningOutcome::NoPostQuantumKey => "sent unsigned: no post-quantum key here",
        SigningOutcome::NotExtended(AttestationError::NotOurs(_)) => {
            "sent on without our hop: the chain names none of our keys"
        }
        SigningOutcome::NotExtended(_) => "sent on without our hop",
        SigningOutcome::TooLong { .. } => "not sent: too long",
        SigningOutcome::NotReserved => "waits for a slot of time in which the key may sign",
        SigningOutcome::Exhausted => "not sent: the lives of the keys are over",
        SigningOutcome::Faulty(_) => "not sent: the key signs wrongly",
        SigningOutcome::NotAuthorised => "not sent: this AS may not originate it",
        SigningOutcome::Refused { .. } => "not sent: rejected by policy",
    }
}

fn memory_of(pair: &PairState) -> Memory {
    let add = |[a, most_a]: [usize; 2], [b, most_b]: [usize; 2]| [a + b, most_a + most_b];
    let known = pair.known.if_idle(|known| [known.octets(), known.limit()]).unwrap_or([pair.known.limit(); 2]);
    [
        ("routes", pair.sessions.memory()),
        ("verified_signatures", known),
        ("sequences", pair.sequences.octets()),
        ("queues", add(pair.incoming.queue_octets(), pair.outgoing.octets())),
    ]
    .map(|(table, octets)| (table, octets.into()))
    .into()
}

/// Why a pair is not up, and what to do; `None` if it is.
fn problem(pair: &PairState) -> Option<String> {
    if is_up(pair) {
        return None;
    }
    let sessions = &pair.sessions;
    // One end falls with the other: the reason is at the one that this proxy did not stop itself, and that failed first.
    let ends = Side::BOTH.into_iter().filter_map(|side| Some((side, sessions.last_end(side)?)));
    let first = ends.filter(|(_, end)| !matches!(end.cause, Cause::Stopped(_))).min_by_key(|(_, end)| end.at);
    let silent = || Side::BOTH.into_iter().filter(move |side| sessions.is_silent(*side));
    let why = match first {
        Some((side, end)) => format!("the {} peer: {}; {}", side.name(), end_words(&end.cause), end_cure(side, end)),
        None => match Side::BOTH.into_iter().find(|side| sessions.waits(*side)) {
            Some(side) => {
                let other = side.other().name();
                format!("the {} peer is here, the {other} peer is not; look at the {other} router's log", side.name())
            }
            None if silent().count() > 1 => {
                "both peers have connected and sent no OPEN yet; look at both routers' logs".to_owned()
            }
            None if let Some(side) = silent().next() => {
                let (side, other) = (side.name(), side.other().name());
                format!(
                    "the {side} peer has connected and sent no OPEN yet, the {other} peer has not connected; look at both routers' logs"
                )
            }
            None => "neither peer has connected; look at both routers' logs, and at what `listen` and `connect` name"
                .to_owned(),
        },
    };
    Some(format!("{}: {why}", not_up(pair)))
}

/// Whether both sessions of a pair are up.
fn is_up(pair: &PairState) -> bool {
    Side::BOTH.iter().all(|side| pair.sessions.established(*side).is_some())
}

fn not_up(pair: &PairState) -> String {
    format!("pair {} is not up", pair.name)
}

/// What ended a session, and who sent the NOTIFICATION.
fn end_words(cause: &Cause) -> String {
    match cause {
        Cause::PeerEnded(notification) => format!("it sent the NOTIFICATION {notification}"),
        Cause::PeerErred(notification) => format!("it erred, and this proxy sent the NOTIFICATION {notification}"),
        Cause::UnexpectedAs { announced, notification } => {
            format!("its OPEN says {announced}, and this proxy sent the NOTIFICATION {notification}")
        }
        Cause::Stopped(notification) => format!("this proxy sent the NOTIFICATION {notification}"),
        cause => cause.to_string(),
    }
}

/// What to do about the end of a session.
fn end_cure(side: Side, end: &LastEnd) -> String {
    let whose = match side {
        Side::Inside => "your router",
        Side::Outside => "the neighbour's router",
    };
    let is_bad_as =
        |notification: &Notification| (notification.code, notification.subcode) == (code::OPEN, open::BAD_PEER_AS);
    match (&end.cause, end.presented) {
        (Cause::PeerEnded(notification), Some(asn)) if is_bad_as(notification) => {
            format!(
                "{whose} must have this neighbour in {asn} (a proxy in between passes on what the router behind it says)"
            )
        }
        (Cause::PeerErred(notification), _) if is_bad_as(notification) => {
            format!("{whose} is in another AS than this proxy expects: mend `asn` here, or the router's own AS")
        }
        (Cause::UnexpectedAs { .. }, _) => format!("mend `asn` here, or the own AS of {whose}"),
        (Cause::ConnectFailed | Cause::ConnectionLost, _) => {
            format!("look whether {whose} runs, listens, and has this proxy's address, password and TTL security")
        }
        (Cause::HoldTimerExpired | Cause::SendHoldTimerExpired, _) => format!("look at the link to {whose}"),
        _ => format!("see the log of {whose}"),
    }
}

fn end(pair: &SessionPair, side: Side) -> EndStatus {
    let up = pair.established(side);
    EndStatus {
        up: up.is_some(),
        state: pair.state(side).to_string(),
        last_end: pair.last_end(side).map(|end| end_words(&end.cause)),
        waits: pair.waits(side),
        asn: up.map(|up| up.peer_asn),
        router_id: up.map(|up| up.peer_id.to_string()),
        extended_messages: up.is_some_and(|up| up.params.extended_message),
        received: pair.rib_in(side).len(),
        announced: pair.rib_out(side).len(),
        counters: pair.counters(side),
    }
}

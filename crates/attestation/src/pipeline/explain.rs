//! A report in words: hop by hop, what is proved and who could have signed; how routes went out; which keys sign.

use std::collections::HashMap;

use serde::Serialize;
use wayleave_bgp::Attributes;
use wayleave_core::{Asn, Prefix};

use super::Pipeline;
use super::jobs::{SigningOutcome, carried};
use super::keys::{FewTimeStatus, HeldKey};
use crate::SuiteId;
use crate::clock_doubt::ClockDoubt;
use crate::leaf::{KeyId, Tree};
use crate::path::Path;
use crate::report::{KeyOrigin, Report};
use crate::validate::{Context, Route, Rules, validate};

/// One AS of a path.
#[derive(Clone, Debug, Serialize)]
pub struct WhyHop {
    pub asn: Asn,
    /// The suite that it signed with; `None`: it does not attest (a gap).
    pub suite: Option<String>,
    /// Who vouches for its key.
    pub key: Option<KeyOrigin>,
    /// Which of its keys: the first digits of the key's name, as in `wayleave show keys`.
    pub key_id: Option<KeyId>,
    /// Whether its signature is right.
    pub proved: bool,
    /// Whether the chain broke here.
    pub broken: bool,
    /// Who could have made this signature.
    pub could_have_signed: Vec<Asn>,
    /// Until when it holds, in seconds since 1970.
    pub not_after: Option<u64>,
    pub words: String,
}

/// A key of the AS, public parts only.
#[derive(Clone, Debug, Serialize)]
pub struct OwnKey {
    pub of: &'static str,
    pub suite: &'static str,
    /// By which `wayleave why` names it: the first digits of `sign`.
    pub id: KeyId,
    /// Its name in leaves: 64 hexadecimal digits.
    pub sign: String,
    /// Whether the trust anchor vouches for it.
    pub registered: bool,
    /// What it does: whether it signs, waits to be registered, or may go.
    pub state: &'static str,
    /// Routes that stand signed with it.
    pub routes: usize,
    /// When it signed a hop last, in seconds since 1970; `None`: not since the start.
    pub last_signed: Option<u64>,
    /// Of a key that another one has replaced: until when what it signed holds, in seconds since 1970, if nothing is signed with it any
    /// more; it may leave the profile then.
    pub needed_until: Option<u64>,
    /// Signatures that a few-time key may still make in the slot of time that it is.
    pub left: Option<u64>,
    /// When a few-time key's life ends, in seconds since 1970.
    pub ends: Option<u64>,
    /// What makes a change count.
    pub reload: &'static str,
}

/// The state of our clock, in words.
pub(crate) fn clock_words(doubt: Option<ClockDoubt>) -> &'static str {
    match doubt {
        None => "good",
        Some(ClockDoubt::Slow) => "in doubt: most origins sign for times that have not come here",
        Some(ClockDoubt::Fast) => "in doubt: most origins' signatures have expired here",
    }
}

/// What a report says in one sentence: what is false, where, and who could have caused it; or else what is not proved.
#[must_use]
pub fn reason(report: &Report) -> String {
    match (&report.broken, &report.lack) {
        (Some(broken), _) => {
            let hop = broken.asn.map_or(String::new(), |asn| format!(" at {asn}"));
            let suspects: Vec<String> = broken.suspects.iter().map(ToString::to_string).collect();
            let cause = match suspects.as_slice() {
                [] => String::new(),
                [one] => format!(" (cause: {one})"),
                many => format!(" (cause: one of {})", many.join(", ")),
            };
            format!("{}{hop}{cause}", broken.problem)
        }
        (None, Some(lack)) => lack.to_string(),
        (None, None) => "every hop is proved".to_owned(),
    }
}

/// The path, AS by AS, with what the report proves of each.
pub(crate) fn hops(report: &Report, attributes: &Attributes) -> Vec<WhyHop> {
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
            KeyOrigin::EndorsedAndRegistered => "a registered key that the previous AS endorsed".to_owned(),
            KeyOrigin::Endorsed => "a key for which only the previous AS vouches".to_owned(),
            KeyOrigin::Granted => "a key that the previous AS made".to_owned(),
        };
        let id = hop.key_id.map_or(String::new(), |id| format!(" {id}"));
        let mut words = match (broken, hop.proved) {
            (true, _) => format!("signed with {suite} and {key}{id}: broken here"),
            (false, true) => format!("signed with {suite} and {key}{id}: proved"),
            (false, false) => format!("signed with {suite} and {key}{id}: not proved"),
        };
        if could.len() > 1 {
            let others: Vec<String> = could.iter().filter(|asn| **asn != hop.asn).map(ToString::to_string).collect();
            words += &format!("; {} could have signed too", others.join(", "));
        }
        all.push(WhyHop {
            asn: hop.asn,
            suite: Some(suite),
            key: Some(hop.key),
            key_id: hop.key_id,
            proved: hop.proved,
            broken,
            could_have_signed: could,
            not_after: Some(hop.not_after),
            words,
        });
    }
    // What the hops do not reach: those of the tail, or of a chain that broke or could not be read before.
    let rest = all.len();
    gaps(&mut all, entries.iter().skip(cursor));
    if let Some(broken) = report.broken.as_ref().filter(|broken| broken.hop.is_some_and(|at| at >= report.hops.len())) {
        for hop in &mut all[rest..] {
            hop.broken = broken.asn == Some(hop.asn);
            hop.words = match hop.broken {
                true => format!("broken here: {}", broken.problem),
                false => "not checked: the chain is broken".to_owned(),
            };
        }
    }
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
        key_id: None,
        proved: false,
        broken: false,
        could_have_signed: Vec::new(),
        not_after: None,
        words: "attests nothing: a gap".to_owned(),
    }
}

/// A suite's name, or its number where this version does not know it.
pub(crate) fn suite_name(number: u8) -> String {
    SuiteId::from_byte(number).map_or(format!("suite {number}"), |suite| suite.name().to_owned())
}

/// How many routes stand signed with each key.
pub(crate) fn signed_routes<'o>(outcomes: impl Iterator<Item = &'o SigningOutcome>) -> HashMap<KeyId, usize> {
    let mut routes = HashMap::new();
    for outcome in outcomes {
        if let SigningOutcome::Signed { key, .. } = outcome {
            *routes.entry(*key).or_default() += 1;
        }
    }
    routes
}

/// How a route went out, in words.
pub(crate) fn outcome_words(outcome: &SigningOutcome) -> String {
    match outcome {
        SigningOutcome::Signed { origin: true, .. } => "signed as origin".to_owned(),
        SigningOutcome::Signed { origin: false, .. } => "chain extended".to_owned(),
        SigningOutcome::AsReceived => "sent on without an attestation of ours".to_owned(),
        SigningOutcome::NoRegisteredKey => "sent unsigned: no key here that may sign it is registered".to_owned(),
        SigningOutcome::NoPostQuantumKey => {
            "sent unsigned: this AS's record requires a post-quantum suite, and no key here of such a suite may sign"
                .to_owned()
        }
        SigningOutcome::NotExtended(error) => format!("sent on without our hop: {error}"),
        SigningOutcome::TooLong { need } => format!("not sent: the attestation of {need} octets is too long"),
        SigningOutcome::NotReserved => "waits for a slot of time in which the key may sign".to_owned(),
        SigningOutcome::Exhausted => "not sent: the lives of the keys are over".to_owned(),
        SigningOutcome::Faulty(suite) => format!("not sent: what the key of {suite} signs does not verify"),
        SigningOutcome::NotAuthorised => "not sent: this AS may not originate it, by what is registered".to_owned(),
        SigningOutcome::Refused { class, report } => {
            format!("{}, and not announced by policy: {}", class.name(), reason(report))
        }
    }
}

impl<K: Ord + Copy> Pipeline<K> {
    /// Validates one route as `receiver` gets it, without the cache and with every signature checked, to say as exactly
    /// as can be what broke.
    pub(crate) fn explain(
        &self,
        prefix: Prefix,
        attributes: &Attributes,
        receiver: Asn,
        directories: &[Tree],
    ) -> Report {
        let rules = Rules { explain: true, ..self.config.rules };
        let context = Context { view: &self.view, rules: &rules, clock: self.clock(), directories };
        let path = Path::from_as_path(attributes.as_path());
        let carried = carried(attributes, self.config.attribute);
        validate(&context, &Route { prefixes: &[prefix], path: &path, carried, receiver })
    }

    /// The public parts of the keys that sign; `routes`: how many stand signed with each.
    pub(crate) fn own_keys(&self, reload: &'static str, routes: &HashMap<KeyId, usize>) -> Vec<OwnKey> {
        let keys = &self.keys;
        let own = keys.held().iter().enumerate().map(|(index, key)| OwnKey {
            of: "attestations",
            suite: key.suite.name(),
            id: key.leaf.id(),
            sign: key.leaf.key.iter().map(|octet| format!("{octet:02x}")).collect(),
            registered: key.registered,
            state: self.key_state(key, routes.get(&key.leaf.id()).copied().unwrap_or(0)),
            routes: routes.get(&key.leaf.id()).copied().unwrap_or(0),
            last_signed: key.last_signed,
            needed_until: self.needed_until(key, routes.get(&key.leaf.id()).copied().unwrap_or(0)),
            left: key.slots.and_then(|_| keys.few_time.left(index, self.now.unix)),
            ends: key.slots.map(|slots| slots.end()),
            reload,
        });
        own.collect()
    }

    /// Whether another key of its suite comes before it.
    fn is_replaced(&self, key: &HeldKey) -> bool {
        let first = self.keys.held().iter().find(|held| held.registered && held.suite == key.suite);
        first.is_some_and(|first| first.leaf != key.leaf)
    }

    /// Until when what a key signed holds, which another one has replaced and with which no route stands signed.
    fn needed_until(&self, key: &HeldKey, routes: usize) -> Option<u64> {
        // What it signed before the start holds no longer than what it would have signed then.
        let until = key.last_signed.unwrap_or(self.keys.started()) + u64::from(self.config.lifetime) * 60;
        (routes == 0 && key.registered && self.signs_with() != Some(key.leaf.id()) && self.is_replaced(key))
            .then_some(until)
    }

    /// What a key does, with which so many routes stand signed.
    fn key_state(&self, key: &HeldKey, routes: usize) -> &'static str {
        let signs = self.signs_with();
        let is_over = self.needed_until(key, routes).is_some_and(|until| until < self.unix());
        match (key.registered, key.was_registered) {
            (true, _) if signs == Some(key.leaf.id()) => "signs",
            (true, _) if is_over => "replaced, no longer needed: take it out of the profile",
            (true, _) if self.is_replaced(key) => "replaced: keep it registered while what it signed holds",
            (true, _) => "signs what the first does not fit",
            (false, true) => "no longer registered",
            (false, false) if self.view.is_registered(self.config.asn) => "not registered yet: signs nothing",
            (false, false) => "signs where a neighbour endorses it",
        }
    }

    /// How each few-time key stands.
    pub(crate) fn few_time_keys(&self) -> Vec<FewTimeStatus> {
        self.keys.few_time.status(self.now.unix)
    }

    /// Why verdicts may be wrong: this machine's clock is in doubt.
    pub(crate) fn clock_problem(&self) -> Option<String> {
        self.doubt.map(|doubt| format!("the clock is {}", clock_words(Some(doubt))))
    }
}

//! A member's proxy as one machine: the member, and beside it, where it is configured, the attestor that signs what its
//! router announces and validates what others do.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::proxy::attestor::{self, Attestor, AttestorConfig, AttestorEvent, Job};
use wayleave_attestation::proxy::why::reason;
use wayleave_attestation::validate::Rules;
use wayleave_bgp::AttributeCode;
use wayleave_core::{Asn, Instant, Machine, Now, Prefix};
use wayleave_route_server::directory::{AttestKey, MemberSet};
use wayleave_route_server::member::{Finding, Member, MemberInput, MemberOutput};
use wayleave_route_server::object::Handle;
use wayleave_runtime::Clock;
use wayleave_runtime::http::Metric;
use wayleave_runtime::store::FileStore;

use super::attest::{check_clock, used_before};
use super::origins::{Origins, Wanted};
use crate::config::Source;
use crate::config::attestation::AttestationSection;
use crate::failure::Outcome;
use crate::key_files::attestation as files;

/// What the world tells a member's proxy.
#[derive(Debug)]
pub enum Input {
    Member(MemberInput),
    Attestor(attestor::Input),
}

/// What it wants done.
#[derive(Debug)]
pub enum Output {
    Member(MemberOutput),
    Work(Job),
    /// Make durable that the few-time key `public` may have signed with every index below `limit`.
    Persist {
        id: u64,
        public: Vec<u8>,
        limit: u64,
    },
    Event(AttestorEvent),
}

/// A member, and its attestor if it has one.
pub struct Proxy {
    pub member: Member,
    pub attestor: Option<Attestor>,
    now: Now,
}

impl Proxy {
    pub fn new(member: Member, attestor: Option<Attestor>, now: Now) -> Self {
        Self { member, attestor, now }
    }

    /// Why a prefix has the route that it has, with the chain of each route that was validated, and how the own router's
    /// routes went out.
    pub fn why(&mut self, prefix: Prefix) -> Value {
        let why = self.member.why(prefix);
        let mut value = json!(why);
        let Some(attestor) = &self.attestor else { return value };
        for (number, route) in why.routes.iter().enumerate() {
            if let Some(explained) = attestor.explain(&route.handle.0, prefix) {
                let explained = json!(explained);
                for (name, field) in explained.as_object().into_iter().flatten() {
                    let name = if name == "class" { "attested" } else { name };
                    value["routes"][number][name] = field.clone();
                }
            }
        }
        value["sent"] = json!(attestor.sent(prefix));
        value
    }

    /// What the member wants of its attestor; anything else comes back.
    fn hand_to_attestor(&mut self, output: MemberOutput) -> Option<MemberOutput> {
        let Some(attestor) = &mut self.attestor else { return Some(output) };
        let told = match output {
            MemberOutput::Validate { handle, slot: announcer, prefixes, attributes, set } => {
                attestor::Input::Route { id: handle.0, announcer, set, prefixes, attributes }
            }
            MemberOutput::Forget { handle } => attestor::Input::Gone(handle.0),
            MemberOutput::Members(set) => members(&set),
            other => return Some(other),
        };
        attestor.handle(told, self.now);
        None
    }

    /// What the attestor wants of the member; anything else comes back.
    fn hand_to_member(&mut self, output: attestor::Output) -> Option<Output> {
        let told = match output {
            attestor::Output::Announce { announced, attributes: Some(attributes), under: Some(under), .. } => {
                MemberInput::Signed { announced, attributes, under }
            }
            attestor::Output::Announce { withdrawn, announced, attributes, .. } => {
                MemberInput::RouterUpdate { withdrawn, announced, attributes }
            }
            attestor::Output::EndOfRib => MemberInput::RouterEndOfRib,
            attestor::Output::Found { id, findings } => {
                let finding =
                    |found: attestor::Finding| Finding { verdict: found.verdict, attributes: found.attributes };
                MemberInput::Findings { handle: Handle(id), findings: findings.into_iter().map(finding).collect() }
            }
            attestor::Output::Work(job) => return Some(Output::Work(job)),
            attestor::Output::Persist { id, public, limit } => return Some(Output::Persist { id, public, limit }),
            attestor::Output::Event(event) => return Some(Output::Event(event)),
        };
        self.member.handle(told, self.now);
        None
    }
}

impl Machine for Proxy {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.now = now;
        match (input, &mut self.attestor) {
            (Input::Member(MemberInput::RouterUpdate { withdrawn, announced, attributes }), Some(attestor)) => {
                attestor.handle(attestor::Input::RouterUpdate { withdrawn, announced, attributes }, now);
            }
            (Input::Member(MemberInput::RouterEndOfRib), Some(attestor)) => {
                attestor.handle(attestor::Input::RouterEndOfRib, now);
            }
            (Input::Member(MemberInput::RouterDown), attestor) => {
                if let Some(attestor) = attestor {
                    attestor.handle(attestor::Input::RouterDown, now);
                }
                self.member.handle(MemberInput::RouterDown, now);
            }
            (Input::Member(input), _) => self.member.handle(input, now),
            (Input::Attestor(input), Some(attestor)) => attestor.handle(input, now),
            (Input::Attestor(_), None) => {}
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now.instant);
        if is_due(self.member.deadline()) {
            self.member.handle_timeout(now);
        }
        if let Some(attestor) = self.attestor.as_mut().filter(|attestor| is_due(attestor.deadline())) {
            attestor.handle_timeout(now);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.member.poll() {
                match self.hand_to_attestor(output) {
                    Some(output) => return Some(Output::Member(output)),
                    None => continue,
                }
            }
            let output = self.attestor.as_mut()?.poll()?;
            if let Some(output) = self.hand_to_member(output) {
                return Some(output);
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let of_attestor = self.attestor.as_ref().and_then(Machine::deadline);
        self.member.deadline().into_iter().chain(of_attestor).min()
    }
}

/// A member set as attestors take it.
fn members(set: &MemberSet) -> attestor::Input {
    let keys = |keys: &[AttestKey]| keys.iter().map(|key| LeafKey { suite: key.suite, key: key.key }).collect();
    let neighbours = set.neighbours().map(|(asn, listed)| (asn, keys(listed))).collect();
    attestor::Input::Members { set: set.number, digest: set.neighbours_digest(), neighbours }
}

/// Where to look for what is known of origins.
pub fn wanted(section: &AttestationSection, source: &Source) -> Wanted {
    Wanted { keys: section.keys.clone(), rpki: section.rpki.clone(), source: source.clone() }
}

/// An attestor with the configured keys, what is known of origins, and the last time that the clock has shown.
pub async fn start(
    section: &AttestationSection,
    asn: Asn,
    source: &Source,
    store: &FileStore,
    clock: Clock,
) -> Outcome<(Attestor, Origins, u64)> {
    let last_time = check_clock(store, clock)?;
    // An anchor that has expired, or files that cannot be read, are told before anything runs.
    let origins = Origins::follow(wanted(section, source)).await?;
    let ring = files::ring(&section.keys, asn, source)?;
    let mut attestor = Attestor::new(config(section, asn), ring, &used_before(store)?, clock.now());
    let view = Arc::clone(&origins.views.borrow());
    attestor.handle(attestor::Input::View(view), clock.now());
    Ok((attestor, origins, last_time))
}

fn config(section: &AttestationSection, asn: Asn) -> AttestorConfig {
    // `check` has seen that each fits.
    let least_strength = u16::try_from(*section.least_strength.get_ref()).unwrap_or(0);
    AttestorConfig {
        asn,
        attribute: AttributeCode(u8::try_from(*section.attribute.get_ref()).unwrap_or(u8::MAX)),
        rules: Rules { least_strength, ..Rules::default() },
        uncertainty: *section.clock_uncertainty_secs.get_ref(),
        lifetime: u16::try_from(*section.lifetime_minutes.get_ref()).unwrap_or(u16::MAX),
        policy: section.policy.policy(),
        own: section.originate.clone(),
        most: usize::try_from(*section.most_octets.get_ref()).unwrap_or(usize::MAX),
    }
}

/// Hands each new view of origins on as an input, until nobody takes it.
pub fn follow<E>(origins: &Origins, events: mpsc::Sender<E>)
where
    E: From<attestor::Input> + Send + 'static,
{
    let mut views = origins.views.clone();
    tokio::spawn(async move {
        while views.changed().await.is_ok() {
            let view = Arc::clone(&views.borrow_and_update());
            if events.send(attestor::Input::View(view).into()).await.is_err() {
                return;
            }
        }
    });
}

/// Signatures are made and checked on threads of their own.
pub fn work<E>(job: Job, events: &mpsc::Sender<E>)
where
    E: From<attestor::Input> + Send + 'static,
{
    let events = events.clone();
    tokio::task::spawn_blocking(move || {
        let _ = events.blocking_send(attestor::Input::Done(job.run()).into()); // fails only when the proxy has stopped
    });
}

/// Tells an event in the log, and gives it as others see it.
pub fn note(event: &AttestorEvent) -> Option<Value> {
    match event {
        AttestorEvent::Verdict { announcer, nlri, class, report } => {
            let why = reason(report);
            warn!(announcer, %nlri, class = class.name(), why, "verdict");
            Some(
                json!({ "event": "verdict", "announcer": announcer, "prefix": nlri.prefix, "class": class, "why": why }),
            )
        }
        AttestorEvent::Refused(routes, class, report) => {
            let why = reason(report);
            warn!(routes = routes.len(), first = ?routes.first(), class = class.name(), why, "routes of the router are not announced");
            let prefixes: Vec<Prefix> = routes.iter().map(|nlri| nlri.prefix).collect();
            Some(json!({ "event": "not-announced", "prefixes": prefixes, "class": class, "why": why }))
        }
        AttestorEvent::NotExtended(routes, error) => {
            warn!(%error, routes = routes.len(), first = ?routes.first(), "passed on without our hop");
            None
        }
        AttestorEvent::TooLong(routes, need) => {
            error!(need, routes = routes.len(), first = ?routes.first(), "not announced: the attestation is too long");
            None
        }
        AttestorEvent::Exhausted(routes) => {
            error!(routes = routes.len(), "ALARM: not announced: the signing keys are spent");
            None
        }
        AttestorEvent::KeyEnds(left) => {
            error!(
                suite = left.suite.name(),
                left = left.left,
                of = left.of,
                "ALARM: a few-time key will end; make a new one"
            );
            None
        }
        AttestorEvent::Failed { what, routes } => {
            error!(what, routes = routes.len(), first = ?routes.first(), "ALARM: a bug, please report it: these routes are left out");
            None
        }
        AttestorEvent::OtherKeysListed => {
            error!(
                "ALARM: the member set lists other attestation keys of this AS than those held here; \
                 send the exchange the right ones"
            );
            Some(json!({ "event": "other-keys-listed" }))
        }
        AttestorEvent::ClockInDoubt(Some(_)) => {
            error!(
                "ALARM: most origins disagree with this machine's clock; check it (`timedatectl`), expiries are in doubt"
            );
            Some(json!({ "event": "clock", "in_doubt": true }))
        }
        AttestorEvent::ClockInDoubt(None) => {
            info!("this machine's clock is no longer in doubt");
            Some(json!({ "event": "clock", "in_doubt": false }))
        }
        AttestorEvent::ClockStepped(seconds) => {
            error!(seconds, "ALARM: the wall clock was set; every verdict is looked at again");
            Some(json!({ "event": "clock", "stepped_secs": seconds }))
        }
    }
}

pub fn metrics(status: &attestor::Status) -> Vec<Metric> {
    let class = |name: &str| status.classes.get(name).copied().unwrap_or(0) as f64;
    let counts = &status.counts;
    vec![
        Metric::gauge("members_attesting", "ASes of the member set with attestation keys", status.members[0] as f64),
        Metric::gauge("routes_valid", "Routes of other members that are valid", class("valid")),
        Metric::gauge("routes_gap", "Routes of other members that are proved with gaps", class("gap")),
        Metric::gauge("routes_unattested", "Routes of other members that claim nothing", class("unattested")),
        Metric::gauge("routes_missing", "Routes of other members whose attestation is missed", class("missing")),
        Metric::gauge("routes_expired", "Routes of other members that have expired", class("expired")),
        Metric::gauge("routes_invalid", "Routes of other members that are invalid", class("invalid")),
        Metric::gauge("routes_malformed", "Routes whose attestation cannot be read", class("malformed")),
        Metric::counter("originated", "Routes signed as their origin", counts.originated),
        Metric::counter("extended", "Routes whose chain was extended", counts.extended),
        Metric::counter("renewed", "Routes signed again ahead of expiry", counts.renewed),
        Metric::counter("not_extended", "Routes out with a chain that could not be extended", counts.not_extended),
        Metric::counter("too_long", "Routes not announced because no attestation fits", counts.too_long),
        Metric::counter("exhausted", "Routes not announced because keys are spent", counts.exhausted),
    ]
}

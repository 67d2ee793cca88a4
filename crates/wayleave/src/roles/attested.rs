//! What attestation needs of the system in a member's proxy: keys and views from files, threads for its jobs, the log,
//! metrics.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use wayleave_attestation::member::{self as attestation, Job, MemberAttestationConfig, MemberAttestationEvent};
use wayleave_attestation::pipeline::explain::reason;
use wayleave_attestation::validate::Rules;
use wayleave_bgp::AttributeCode;
use wayleave_core::{Asn, Prefix};
use wayleave_member::{AttestationConfig, Input};
use wayleave_runtime::Clock;
use wayleave_runtime::http::Metric;
use wayleave_runtime::store::FileStore;

use super::attest::{check_clock, used_before};
use super::origins::{Origins, Wanted};
use crate::config::Source;
use crate::config::attestation::AttestationSection;
use crate::failure::Outcome;
use crate::key_files::attestation as files;

/// Where to look for what is known of origins.
pub fn wanted(section: &AttestationSection, source: &Source) -> Wanted {
    Wanted { keys: section.keys.clone(), rpki: section.rpki.clone(), source: source.clone() }
}

/// Attestation with the configured keys, what is known of origins, and the last time that the clock has shown.
pub async fn start(
    section: &AttestationSection,
    asn: Asn,
    source: &Source,
    store: &FileStore,
    clock: Clock,
) -> Outcome<(AttestationConfig, Origins, u64)> {
    let last_time = check_clock(store, clock)?;
    // An anchor that has expired, or a file that cannot be read, is reported before anything runs.
    let origins = Origins::follow(wanted(section, source)).await?;
    let attestation = AttestationConfig {
        settings: settings(section, asn),
        key_ring: files::ring(&section.keys, asn, source)?,
        signatures_used: used_before(store)?,
        view: Arc::clone(&origins.views.borrow()),
    };
    Ok((attestation, origins, last_time))
}

fn settings(section: &AttestationSection, asn: Asn) -> MemberAttestationConfig {
    // `check` has seen that each fits.
    let least_strength = u16::try_from(*section.least_strength.get_ref()).unwrap_or(0);
    MemberAttestationConfig {
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
    E: From<Input> + Send + 'static,
{
    let mut views = origins.views.clone();
    tokio::spawn(async move {
        while views.changed().await.is_ok() {
            let view = Arc::clone(&views.borrow_and_update());
            if events.send(Input::View(view).into()).await.is_err() {
                return;
            }
        }
    });
}

/// Signatures are made and checked on threads of their own.
pub fn work<E>(job: Job, events: &mpsc::Sender<E>)
where
    E: From<Input> + Send + 'static,
{
    let events = events.clone();
    tokio::task::spawn_blocking(move || {
        let _ = events.blocking_send(Input::JobDone(job.run()).into()); // fails only when the proxy has stopped
    });
}

/// Tells an event in the log, and gives it as others see it.
pub fn note(event: &MemberAttestationEvent) -> Option<Value> {
    match event {
        MemberAttestationEvent::Verdict { announcer, nlri, class, report } => {
            let why = reason(report);
            warn!(announcer, %nlri, class = class.name(), why, "verdict");
            Some(
                json!({ "event": "verdict", "announcer": announcer, "prefix": nlri.prefix, "class": class, "why": why }),
            )
        }
        MemberAttestationEvent::Refused(routes, class, report) => {
            let why = reason(report);
            warn!(routes = routes.len(), first = ?routes.first(), class = class.name(), why, "routes of the router are not announced");
            let prefixes: Vec<Prefix> = routes.iter().map(|nlri| nlri.prefix).collect();
            Some(json!({ "event": "not-announced", "prefixes": prefixes, "class": class, "why": why }))
        }
        MemberAttestationEvent::NotExtended(routes, error) => {
            warn!(%error, routes = routes.len(), first = ?routes.first(), "passed on without our hop");
            None
        }
        MemberAttestationEvent::TooLong(routes, need) => {
            error!(need, routes = routes.len(), first = ?routes.first(), "not announced: the attestation is too long");
            None
        }
        MemberAttestationEvent::Exhausted(routes) => {
            error!(routes = routes.len(), "ALARM: not announced: the signing keys are spent");
            None
        }
        MemberAttestationEvent::KeyEnds(left) => {
            error!(
                suite = left.suite.name(),
                left = left.left,
                of = left.of,
                "ALARM: a few-time key will end; make a new one"
            );
            None
        }
        MemberAttestationEvent::Failed { what, routes } => {
            error!(what, routes = routes.len(), first = ?routes.first(), "ALARM: a bug, please report it: these routes are left out");
            None
        }
        MemberAttestationEvent::OtherKeysListed => {
            error!(
                "ALARM: the member set lists other attestation keys of this AS than those held here; \
                 send the exchange the right ones"
            );
            Some(json!({ "event": "other-keys-listed" }))
        }
        MemberAttestationEvent::ClockInDoubt(Some(_)) => {
            error!(
                "ALARM: most origins disagree with this machine's clock; check it (`timedatectl`), expiries are in doubt"
            );
            Some(json!({ "event": "clock", "in_doubt": true }))
        }
        MemberAttestationEvent::ClockInDoubt(None) => {
            info!("this machine's clock is no longer in doubt");
            Some(json!({ "event": "clock", "in_doubt": false }))
        }
        MemberAttestationEvent::ClockStepped(seconds) => {
            error!(seconds, "ALARM: the wall clock was set; every verdict is looked at again");
            Some(json!({ "event": "clock", "stepped_secs": seconds }))
        }
    }
}

pub fn metrics(status: &attestation::Status) -> Vec<Metric> {
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

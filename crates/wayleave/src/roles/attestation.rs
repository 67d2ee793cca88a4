//! What `run member` and `run attest` share of attestation: keys and views from files, the clock, jobs on threads of their
//! own, log and metrics.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tracing::{error, info, warn};
use wayleave_attestation::leaf::KeyId;
use wayleave_attestation::member::{self, MemberAttestationConfig, MemberAttestationEvent};
use wayleave_attestation::pipeline::explain::reason;
use wayleave_attestation::pipeline::{
    FewTimeStatus, KeyEnd, KeyWait, Memory, PipelineConfig, ProcessEvent, RouteEvent, WaitReason,
};
use wayleave_attestation::pki::View;
use wayleave_attestation::sign::KeyRing;
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::validate::Rules;
use wayleave_bgp::{AttributeCode, Nlri};
use wayleave_core::{Asn, Prefix};
use wayleave_member::AttestationConfig;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::utc;
use wayleave_runtime::drive::{Query, ask};
use wayleave_runtime::http::{Metric, Unit};
use wayleave_runtime::kernel_clock;
use wayleave_runtime::metrics;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::events::{EventLine, event, shown};
use super::origins::{OriginSources, Origins};
use crate::config::Source;
use crate::config::attestation::AttestationSection;
use crate::failure::{Failure, Outcome};

/// How often unused records are freed, and the time recorded.
const SWEEP: Duration = Duration::from_secs(30);
/// Seconds by which the clock may be earlier than a time that it has shown.
const CLOCK_TOLERANCE: u64 = 600;
/// How often the machine is told whether the clock is synchronised.
const CLOCK: Duration = Duration::from_secs(1);
/// The table of the last slots of time in which few-time keys may have signed, and that of the last time seen.
const SLOTS: &str = "slots";
const TIMES: &str = "times";
/// The first octet of a value of [`SLOTS`].
const SLOTS_VERSION: u8 = 2;
/// Where the first version counted signatures. Its keys are no longer read.
const COUNTS: &str = "counts";
/// The key of the last time seen.
const LAST: &[u8] = b"last";

/// Where a member finds what is known of origins.
pub fn origin_sources(section: &AttestationSection, source: &Source) -> OriginSources {
    OriginSources { keys: section.keys.clone(), rpki: section.rpki.clone(), source: source.clone() }
}

/// Attestation with the configured keys; what is known of origins; the latest time that the clock has shown, in seconds
/// since 1970.
pub async fn start(
    section: &AttestationSection,
    asn: Asn,
    source: &Source,
    store: &Arc<FileStore>,
    clock: Clock,
) -> Outcome<(AttestationConfig, (Origins, u64))> {
    let last_time = check_clock(store, clock)?;
    // An anchor that has expired, or files that cannot be read, end the start here.
    let origins = Origins::follow(origin_sources(section, source), Arc::clone(store)).await?;
    let attestation = of_origins(section, asn, source, store, &origins)?;
    Ok((attestation, (origins, last_time)))
}

/// Attestation with the configured keys and what is known of origins already, for another machine of the same process.
pub fn of_origins(
    section: &AttestationSection,
    asn: Asn,
    source: &Source,
    store: &FileStore,
    origins: &Origins,
) -> Outcome<AttestationConfig> {
    Ok(AttestationConfig {
        settings: settings(section, asn),
        key_ring: section.keys.ring(asn, source)?,
        slots_seen: slots_seen(store)?,
        view: Arc::clone(&origins.views.borrow()),
    })
}

fn settings(section: &AttestationSection, asn: Asn) -> MemberAttestationConfig {
    // `check` has seen that each fits.
    let least_strength = u16::try_from(*section.least_strength.get_ref()).unwrap_or(0);
    let octets = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    MemberAttestationConfig {
        pipeline: PipelineConfig {
            asn,
            attribute: AttributeCode(u8::try_from(*section.attribute.get_ref()).unwrap_or(u8::MAX)),
            rules: Rules { least_strength, ..Rules::default() },
            uncertainty: *section.clock_uncertainty_secs.get_ref(),
            lifetime: u16::try_from(*section.lifetime_minutes.get_ref()).unwrap_or(u16::MAX),
            policy: section.policy.policy(),
            own: section.originate.clone(),
            announces_unauthorised: section.announce_unauthorised,
        },
        max_octets: octets(*section.most_octets.get_ref()),
        most_memory: octets(*section.most_memory_mib.get_ref()).saturating_mul(1 << 20),
    }
}

/// Sends each new view of origins to the machine, until the machine has stopped.
pub fn follow<E, I>(origins: &Origins, events: mpsc::Sender<E>, input: fn(Arc<View>) -> I)
where
    E: From<I> + Send + 'static,
    I: Send + 'static,
{
    let mut views = origins.views.clone();
    tokio::spawn(async move {
        while views.changed().await.is_ok() {
            let view = Arc::clone(&views.borrow_and_update());
            if events.send(input(view).into()).await.is_err() {
                return;
            }
        }
    });
}

/// Jobs that run at once; the others wait in the order in which they came. More would not be done earlier, and each thread that
/// verifies remembers a megabyte of hash-based signatures.
static JOBS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(jobs_at_once()));

fn jobs_at_once() -> usize {
    1 + std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `job` (signatures are made and checked) on a thread of its own, and sends its result to the machine.
pub fn work<E, I>(job: impl FnOnce() -> I + Send + 'static, events: &mpsc::Sender<E>)
where
    E: From<I> + Send + 'static,
{
    let events = events.clone();
    tokio::spawn(async move {
        let Ok(_place) = JOBS.acquire().await else { return };
        let run = move || events.blocking_send(job().into());
        let _ = tokio::task::spawn_blocking(run).await; // fails if the machine has stopped
    });
}

/// Frees what the machine no longer needs, and records the time that the clock shows, until the machine has stopped.
pub async fn maintain<M, E>(
    events: mpsc::Sender<E>,
    sweep: fn(&mut M),
    (store, clock): (Arc<FileStore>, Clock),
    mut last_time: u64,
) where
    E: From<Query<M>>,
    M: 'static,
{
    loop {
        tokio::time::sleep(SWEEP).await;
        last_time = last_time.max(clock.now().unix.secs());
        let change = Change { table: TIMES, key: LAST.to_vec(), value: Some(last_time.to_be_bytes().to_vec()) };
        let _ = store.submit(vec![change], Box::new(|| ())); // a failure shows in the store's health
        if ask(&events, sweep).await.is_none() {
            return;
        }
    }
}

/// The latest time that the clock has shown. If the clock is earlier now, it is wrong, and with it every expiry.
pub fn check_clock(store: &FileStore, clock: Clock) -> Outcome<u64> {
    let last = store.load(TIMES)?.into_iter().find(|(key, _)| key == LAST);
    let last = last.and_then(|(_, value)| Some(u64::from_be_bytes(value.try_into().ok()?))).unwrap_or(0);
    let now = clock.now().unix.secs();
    if now + CLOCK_TOLERANCE < last {
        error!(
            now,
            last,
            "this machine's clock is earlier than a time that it has shown before; expiries are wrong until it is set"
        );
    }
    Ok(last)
}

/// The last slot of time in which each few-time key may have signed before this start, by encoded public key.
pub fn slots_seen(store: &FileStore) -> Outcome<HashMap<Vec<u8>, u64>> {
    forget_counts(store)?;
    let slot = |(key, value): (Vec<u8>, Vec<u8>)| {
        let (version, slot) = value.split_first()?;
        let slot = slot.try_into().ok().filter(|_| *version == SLOTS_VERSION)?;
        Some((key, u64::from_be_bytes(slot)))
    };
    let unread = || {
        Failure::new("the state file says of few-time keys what this version cannot read").help(
            "run the version that wrote it; or check that this machine's clock is right, move the file away and start \
             again: few-time keys then wait for a slot of time that was never used",
        )
    };
    Ok(store.load(SLOTS)?.into_iter().map(|row| slot(row).ok_or_else(unread)).collect::<Result<_, _>>()?)
}

/// Removes the counts of an earlier version's few-time keys.
fn forget_counts(store: &FileStore) -> Outcome {
    let counts = store.load(COUNTS)?;
    if counts.is_empty() {
        return Ok(());
    }
    info!(
        keys = counts.len(),
        "the state file counted the signatures of few-time keys of an earlier version; these keys are not used any more, \
         and the counts are removed"
    );
    let changes = counts.into_iter().map(|(key, _)| Change { table: COUNTS, key, value: None });
    store.submit(changes.collect(), Box::new(|| ()))?;
    Ok(())
}

/// The record that the few-time key `public` may have signed in every slot of time up to `slot`.
pub fn slot_record(public: Vec<u8>, slot: u64) -> Change {
    let value = [&[SLOTS_VERSION], slot.to_be_bytes().as_slice()].concat();
    Change { table: SLOTS, key: public, value: Some(value) }
}

/// Whether some of these keys are few-time keys, which must know whether the clock is synchronised.
pub fn has_few_time_keys(ring: &KeyRing) -> bool {
    ring.pairs.iter().any(|pair| pair.key.slots().is_some())
}

/// Tells the machine again and again whether the wall clock is synchronised, until the machine has stopped. With
/// `kept_otherwise` it always is.
pub fn watch_clock<E, I>(kept_otherwise: bool, events: mpsc::Sender<E>, input: fn(bool) -> I)
where
    E: From<I> + Send + 'static,
    I: Send + 'static,
{
    if kept_otherwise {
        warn!(
            "`clock_kept_otherwise`: few-time keys sign whatever the kernel says of this machine's clock; keep it from going back"
        );
    }
    tokio::spawn(async move {
        loop {
            // A kernel that does not answer cannot know.
            let is_synchronised = kept_otherwise || kernel_clock::is_synchronised().unwrap_or(false);
            if events.send(input(is_synchronised).into()).await.is_err() {
                return;
            }
            tokio::time::sleep(CLOCK).await;
        }
    });
}

/// What to do about a key that signs wrongly.
pub fn key_faulty(suite: SuiteId) -> String {
    format!(
        "what the {} key signs does not verify; check its key file and this machine's memory, or put another key in its place \
         (tried again in ten minutes)",
        suite.name()
    )
}

/// What the operator of a member is told.
pub fn line(event: &MemberAttestationEvent) -> EventLine {
    use MemberAttestationEvent as Event;
    match event {
        // Slots begin at 0; what stands for the own router comes after all, where no other event of a member has its limit.
        Event::Route { announcer, event } => {
            route_line(event, *announcer).by(announcer.map_or(usize::MAX, |slot| slot as usize))
        }
        Event::Suspect(slot) => event!(WARN "wrong-signatures" by *slot, { announcer = slot; slot }
            "the member in slot {slot}: {SUSPECT}"),
        Event::OutOfMemory(slot) => event!(ERROR "out-of-memory" by *slot, { announcer = slot; slot }
            "routes of the member in slot {slot} are not used: they take more than its quarter of `most_memory_mib`, or all members' \
             more than that"),
        Event::OtherKeysListed => event!(ERROR "other-keys-listed" {}
            "the member set lists other attestation keys of this AS than [attestation.keys]; other members cannot validate its routes \
             until the exchange has the keys that `wayleave keys show` prints"),
        Event::Process(event) => process_line(event),
    }
}

fn route_line(event: &RouteEvent, announcer: Option<u32>) -> EventLine {
    let (count, prefixes) = (event.routes().len(), prefixes(event.routes()));
    let first = first(event.routes());
    match event {
        RouteEvent::Verdict { nlri, class, report } => {
            let (slot, why) = (announcer.unwrap_or_default(), reason(report));
            event!(WARN "verdict" { announcer = slot, nlri = shown(nlri), class = class.name(); slot, prefix = nlri.prefix, why }
                "route {nlri} of the member in slot {slot} is {}: {why}", class.name())
        }
        RouteEvent::Refused { class, report, .. } => {
            let why = reason(report);
            event!(WARN "not-announced" { routes = count, first; prefixes, class, why }
                "routes of the router are not announced to the exchange: {} ({why})", class.name())
        }
        RouteEvent::NotExtended { error, .. } => {
            event!(WARN "not-extended" { routes = count, first; why = shown(error) }
            "routes announced without this AS's signature, their chain ends here: {error}")
        }
        RouteEvent::TooLong { need, .. } => event!(ERROR "too-long" { need, routes = count, first }
            "routes not announced: their attestation needs {need} octets; raise most_octets or use a suite with shorter signatures"),
        RouteEvent::Exhausted { .. } => {
            event!(ERROR "exhausted" { routes = count } "routes not announced: {KEYS_EXHAUSTED}")
        }
        RouteEvent::Faulty { suite, .. } => event!(ERROR "key-faulty" { routes = count, suite = suite.name() }
            "routes not announced: {}", key_faulty(*suite)),
        RouteEvent::NotAuthorised { .. } => {
            event!(WARN "not-authorised" { routes = count, first = prefixes.first(); prefixes }
            "routes not announced: {NOT_AUTHORISED}")
        }
        RouteEvent::Failed { task, .. } => event!(ERROR "failed" { routes = count, first; doing = task }
            "a job failed while {task}, and its routes are left out: a bug, please report it with the lines above"),
    }
}

pub fn prefixes(routes: &[Nlri]) -> Vec<Prefix> {
    routes.iter().map(|nlri| nlri.prefix).collect()
}

/// A peer whose wrong signatures cost too much.
pub const SUSPECT: &str = "many wrong signatures: its routes are validated alone and after the others', until they are right \
                           again; it may pass on what others made";

/// What to do about own routes that this AS may not originate.
pub const NOT_AUTHORISED: &str = "what is registered lets others originate them, and not this AS, so that every verifier would find them \
                                  invalid; withdraw them at the router, or have them registered (\"wayleave keys record\", a ROA)";

/// What to do about keys that have ended.
pub const KEYS_EXHAUSTED: &str = "the lives of the signing keys are over; make new keys with \"wayleave keys attest\" and \
                                  publish a new profile";

/// That this AS registered keys or a record that asks for signatures, and none of the keys that are here, and what to do.
pub fn keys_unregistered(asn: Asn, keys: &[String]) -> String {
    let (keys, are) = match keys {
        [one] => (format!("key {one}"), "is"),
        several => (format!("keys {}", several.join(", ")), "are"),
    };
    format!(
        "{keys} of this proxy {are} in no profile of {asn}: its routes leave unsigned, and others refuse them where its record says \
         `strict`; put the file of a registered key in the place that `signing` names, or have the key registered (\"wayleave keys \
         profile\", with --add if there is a profile) and copy the folder of objects here"
    )
}

/// The same, from the status of a machine.
pub fn keys_problem(asn: Asn, unregistered: &[KeyId]) -> Option<String> {
    let ids: Vec<String> = unregistered.iter().map(ToString::to_string).collect();
    (!ids.is_empty()).then(|| keys_unregistered(asn, &ids))
}

/// What the operator of either role is told of its keys and its clock.
pub fn process_line(event: &ProcessEvent) -> EventLine {
    match event {
        ProcessEvent::KeyEnds(KeyEnd { suite, ends, days }) => {
            event!(WARN "key ends" { days, ends; suite = suite.name() }
            "the life of key {} ends in {days} days, at {}; make a new key with \"wayleave keys attest\" and publish a new profile",
            suite.name(), utc(*ends))
        }
        ProcessEvent::KeyWaits(KeyWait { suite, reason, until }) => {
            let when = until.map_or(String::new(), |until| format!(" until {}", utc(until)));
            let what = format!("key {} does not sign{when}: {reason}; routes wait", suite.name());
            match reason {
                WaitReason::FirstSlotAhead | WaitReason::SlotSpent => {
                    event!(INFO "key waits" { until; suite = suite.name(), reason } "{what}")
                }
                WaitReason::ClockNotSynchronised => event!(ERROR "key waits" { until; suite = suite.name(), reason }
                    "{what}. Start a time service (`timedatectl`, `chronyc tracking`), or set `clock_kept_otherwise` in a laboratory"),
                _ => {
                    event!(ERROR "key waits" { until; suite = suite.name(), reason } "{what}. Check the clock (`timedatectl`)")
                }
            }
        }
        ProcessEvent::KeySigns(suite) => {
            event!(INFO "key signs" {; suite = suite.name() } "key {} signs", suite.name())
        }
        ProcessEvent::KeysUnregistered { asn, keys } => {
            let ids: Vec<String> = keys.iter().map(ToString::to_string).collect();
            event!(ERROR "keys-unregistered" {; asn, keys = ids } "{}", keys_unregistered(*asn, &ids))
        }
        ProcessEvent::OtherKeySigns { key, before } => {
            let instead = before.map_or(String::new(), |before| format!(" instead of {before}"));
            event!(INFO "other-key" {; key = shown(key), before = before.map(|before| before.to_string()) }
                "routes are signed again, with key {key}{instead}: it is the first here that is registered")
        }
        ProcessEvent::ClockInDoubt(Some(_)) => event!(ERROR "clock" {; in_doubt = true }
            "this machine's clock disagrees with most origins; check it (`timedatectl`): expired routes may count as valid"),
        ProcessEvent::ClockInDoubt(None) => event!(INFO "clock" {; in_doubt = false }
            "this machine's clock agrees with most origins again"),
        ProcessEvent::ClockStepped(seconds) => event!(ERROR "clock" { seconds; stepped_secs = seconds }
            "this machine's clock was set by {seconds} seconds; all routes are validated again"),
    }
}

/// Metrics of a member's attestation.
pub fn metrics(status: &member::Status) -> Vec<Metric> {
    let (gauge, counter, counts) = (Metric::gauge, Metric::counter, &status.counts);
    let mut metrics = metrics! {
        gauge "attesting" Networks "ASes of the member set with attestation keys" = status.members[0];
        counter "originated" Routes "Routes signed as their origin" = counts.originated;
        counter "extended" Routes "Routes whose chain was extended" = counts.extended;
        counter "renewed" Routes "Routes signed again ahead of expiry" = counts.renewed;
        counter "not_extended" Routes "Routes announced with a chain that could not be extended" = counts.not_extended;
        counter "too_long" Routes "Routes not announced because no attestation fits" = counts.too_long;
        counter "exhausted" Routes "Routes not announced because keys are spent" = counts.exhausted;
        counter "faulty" Routes "Routes not announced because what was signed did not verify" = counts.faulty;
        counter "not_authorised" Routes "Own routes not announced that this AS may not originate" = counts.not_authorised;
        counter "out_of_memory" Routes "Routes of other members not used for want of memory" = counts.out_of_memory;
    };
    metrics.push(counter("verified", Unit::Signatures, "Signatures verified", counts.signatures));
    metrics.push(gauge("suspect", Unit::Members, "Members that send many wrong signatures", status.suspects as f64));
    metrics.extend(memory_metrics(&status.memory));
    metrics.extend(class_metrics(|class| status.classes.get(class).copied().unwrap_or(0)));
    metrics.extend(few_time_metrics(&status.few_time_keys));
    metrics
}

/// Metrics of few-time keys, where there are any.
pub fn few_time_metrics(keys: &[FewTimeStatus]) -> Vec<Metric> {
    let Some(left) = keys.iter().map(|key| key.life_left).reduce(f64::min) else { return Vec::new() };
    let waiting = keys.iter().filter(|key| key.waits.is_some()).count();
    metrics! {
        gauge "few_time_key_left" Ratio "Least share of a few-time key's life that is left" = left;
        gauge "few_time_waiting" Keys "Few-time keys that cannot sign now" = waiting;
    }
}

/// Memory of the tables, and its bound.
pub fn memory_metrics(memory: &Memory) -> Vec<Metric> {
    let octets: usize = memory.values().map(|table| table.octets).sum();
    let most: usize = memory.values().map(|table| table.most_octets).fold(0, usize::saturating_add);
    metrics! {
        gauge "memory" Bytes "Memory of routes, caches and queues" = octets;
        gauge "memory_limit" Bytes "Bound of that memory" = most;
    }
}

/// The first of some routes, for the log.
pub fn first(routes: &[Nlri]) -> String {
    routes.first().map(ToString::to_string).unwrap_or_default()
}

/// Received routes by class.
pub fn class_metrics(count: impl Fn(&str) -> u64) -> impl Iterator<Item = Metric> {
    let classes = [
        ("valid", "Received routes that are valid"),
        ("gap", "Received routes that are proved with gaps"),
        ("unattested", "Received routes without an attestation"),
        ("aggregate", "Received routes with an AS_SET (RFC 9774)"),
        ("missing", "Received routes whose attestation is missing"),
        ("expired", "Received routes whose attestation has expired"),
        ("invalid", "Received routes that are invalid"),
        ("malformed", "Received routes whose attestation cannot be read"),
    ];
    classes.map(|(class, help)| Metric::gauge(class, Unit::Routes, help, count(class) as f64)).into_iter()
}

#[cfg(test)]
mod tests {
    //! KCX-40: 200 jobs at once: few threads, and all are done.

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn jobs_without_end_run_on_few_threads_and_all_are_done() {
        let (events, mut results) = mpsc::channel::<usize>(1);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for number in 0..200_usize {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let job = move || {
                most.fetch_max(1 + running.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                number
            };
            work(job, &events);
        }
        let mut done = Vec::new();
        while done.len() < 200 {
            done.push(results.recv().await.expect("jobs have senders"));
        }
        done.sort_unstable();
        assert_eq!(done, (0..200).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= jobs_at_once());
    }
}

//! What is known of the origins of routes: signed objects, router certificates and an RTR cache. Files are read and verified
//! on a thread of their own; the machine gets finished views.

mod cache;
pub mod rov;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{error, info, warn};
use wayleave_attestation::pki::{
    Anchor, MAX_AS_KEYS, ManifestAlarm, Object, ObjectSet, Refused, RetainedObject, View, Vrp,
};
use wayleave_attestation::suite::ed25519::KEY_LEN;
use wayleave_core::{Asn, UnixTime};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Metric, Unit};
use wayleave_runtime::metrics;
use wayleave_runtime::rpki::RpkiData;
use wayleave_runtime::rpki::certificates::CertifiedKey;
use wayleave_runtime::rpki::rtr::CacheState;
use wayleave_runtime::store::{Change, FileStore, Store as _};

use self::cache::{Answer, FollowedCache};
use self::rov::OriginData;
use crate::config::attest::KeysSection;
use crate::config::rpki::RpkiSection;
use crate::config::{Fault, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::attestation::{self as files, Objects};
use crate::key_files::router_keys;

/// Interval between checks of the files for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How long the start waits for the RTR cache's first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// The state file's table of signed objects: kind, AS and sequence name one.
const OBJECTS: &str = "objects";
/// The state file's table of the trust anchor that was in force last, under [`LAST_ANCHOR`]: its Ed25519 key (32), and its
/// SLH-DSA key (32) if it has one.
const ANCHOR: &str = "anchor";
const LAST_ANCHOR: &[u8] = b"last";
/// Octets of kind and AS in such a name.
const KIND_AND_AS: usize = 5;
/// Refused keys of a cache that are logged one by one.
const LOGGED_REFUSALS: usize = 8;
/// Alarms of the folder that are logged and shown one by one.
const SHOWN_ALARMS: usize = 32;

/// The sources that a configuration names.
#[derive(Clone)]
pub struct OriginSources {
    pub keys: KeysSection,
    pub rpki: RpkiSection,
    /// The configuration's file: paths are relative to its folder.
    pub source: Source,
}

/// Counts of what is known.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Signed objects that count, and files that do not.
    pub objects: usize,
    pub refused: usize,
    /// Objects that still count although the folder lost them or has older ones.
    pub kept: usize,
    /// Objects that their publisher's manifest lists, and that the folder withholds and nobody here has seen.
    pub withheld: usize,
    /// Manifests that are stale or missing, and objects that none lists.
    pub manifest_alarms: usize,
    /// What is wrong with the folder of objects, in words: the first alarms.
    pub alarms: Vec<String>,
    /// Of those: what concerns every route, whoever its origin is.
    #[serde(skip)]
    pub of_all: Vec<String>,
    /// Prefixes with their origins, from any source.
    pub vrps: usize,
    /// Keys from router certificates.
    pub certified_keys: usize,
    /// Keys that do not count: more than two of one AS, suite and tag, or more of one AS than it may have.
    pub surplus_keys: usize,
    /// The RTR cache, if one is followed.
    pub cache: Option<CacheSummary>,
}

/// Counts of an RTR cache's content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CacheSummary {
    pub address: String,
    /// `never heard`, `current`, `stale`, `expired` or `dropped`.
    pub standing: &'static str,
    /// Why it is not connected, while it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub vrps: usize,
    pub router_keys: usize,
}

impl Summary {
    /// The metrics of a role.
    pub fn metrics(&self) -> Vec<Metric> {
        let gauge = |thing, unit, help, value: usize| Metric::gauge(thing, unit, help, value as f64);
        let mut metrics = metrics! {
            gauge "signed" Objects "Signed objects that count" = self.objects;
            gauge "kept" Objects "Signed objects in force that the folder lost or has older" = self.kept;
            gauge "withheld" Objects "Signed objects that a manifest lists and the folder withholds" = self.withheld;
            gauge "manifest" Alarms "Manifests stale or missing, objects that none lists" = self.manifest_alarms;
            gauge "refused" Files "Files of objects and certificates that do not count" = self.refused;
            gauge "surplus" Keys "Registered keys that do not count, beyond the limits of an AS" = self.surplus_keys;
            gauge "origin" Prefixes "Prefixes with the ASes that may originate them" = self.vrps;
        };
        if let Some(cache) = &self.cache {
            let is_current = cache.standing == "current";
            metrics.push(Metric::up("rtr_cache", "Whether the RTR cache is connected and in force", is_current));
            metrics.push(gauge("rtr_cache", Unit::Prefixes, "Prefixes that the RTR cache knows", cache.vrps));
            metrics.push(gauge("rtr_cache", Unit::Keys, "Router keys that the RTR cache knows", cache.router_keys));
        }
        metrics
    }
}

/// Follows the sources until it is dropped.
pub struct Origins {
    sources: watch::Sender<OriginSources>,
    /// The latest view.
    pub views: watch::Receiver<Arc<View>>,
    /// What the RPKI alone says of origins.
    pub data: watch::Receiver<OriginData>,
    summary: watch::Receiver<Summary>,
    task: JoinHandle<()>,
}

impl Origins {
    /// Reads everything once, and follows it from then on. Fails where something cannot be read at the start. Objects are
    /// remembered in `store`, so that a restart brings no older one into force.
    pub async fn follow(sources: OriginSources, store: Arc<FileStore>) -> Outcome<Self> {
        let mut cache = FollowedCache::start(sources.rpki.data_sources(&sources.source)?);
        if let Some(cache) = &mut cache {
            // The sessions need not wait longer: a later answer is taken over when it comes.
            let _ = timeout(FIRST_ANSWER, cache.answered()).await;
        }
        let (first, answer) = (sources.clone(), cache.as_mut().map(FollowedCache::answer));
        let read = spawn_blocking(move || {
            let mut reader = Reader { remembered: RememberedObjects::load(store)?, ..Reader::default() };
            if reader.remembered.objects.is_empty() && first.keys.anchor.is_some() {
                info!(
                    "the state file remembers no signed object: it is new, or was lost. An older folder of objects is not noticed now, \
                     but for what the publishers' manifests show"
                );
            }
            reader.read(&first, unix_now())?;
            reader.take_over(answer.as_ref());
            reader.publish(unix_now());
            Ok::<_, Failure>(reader)
        });
        let reader = read.await.map_err(|error| Failure::new(format!("the objects: {error}")))??;
        let (views, summary) = (reader.views.subscribe(), reader.summary.subscribe());
        let (sources, changes) = watch::channel(sources);
        let (data, known) = watch::channel(OriginData::of(cache.as_mut(), &OriginData::default()));
        let task = tokio::spawn(follow(reader, changes, cache, data));
        Ok(Self { sources, views, data: known, summary, task })
    }

    /// Follows these sources from now on, and reads them at once.
    pub fn follow_other(&self, sources: OriginSources) {
        self.sources.send_replace(sources);
    }

    /// Counts of what is known, now and later.
    pub fn summary(&self) -> watch::Receiver<Summary> {
        self.summary.clone()
    }
}

impl Drop for Origins {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until something else counts of the cache; for ever without a cache.
async fn cache_changed(cache: &mut Option<FollowedCache>) {
    match cache {
        Some(followed) => followed.changed().await,
        None => std::future::pending().await,
    }
}

async fn follow(
    reader: Reader,
    mut sources: watch::Receiver<OriginSources>,
    mut cache: Option<FollowedCache>,
    data: watch::Sender<OriginData>,
) {
    let reader = Arc::new(Mutex::new(reader));
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    loop {
        let mut is_requested = false;
        tokio::select! {
            changed = sources.changed() => match changed {
                Ok(()) => {
                    is_requested = true;
                    follow_other_cache(&mut cache, &sources.borrow_and_update().clone());
                }
                Err(_) => return,
            },
            () = cache_changed(&mut cache) => {}
            _ = ticks.tick() => {}
        };
        data.send_if_modified(|data| data.take_over(cache.as_mut()));
        let answer = cache.as_mut().map(FollowedCache::answer);
        let (sources, reader) = (sources.borrow().clone(), Arc::clone(&reader));
        let update = move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.update(&sources, answer.as_ref(), is_requested);
        };
        if let Err(failed) = spawn_blocking(update).await {
            error!(
                "signed objects and certificates were not read ({failed}): a bug, please report it; what was known before still counts"
            );
        }
    }
}

/// Follows the cache that the configuration names now, if it is another one.
fn follow_other_cache(cache: &mut Option<FollowedCache>, sources: &OriginSources) {
    match sources.rpki.data_sources(&sources.source) {
        Ok(new) => FollowedCache::follow(cache, new),
        Err(failures) => {
            failures.0.iter().for_each(|failure| error!("reload: {failure}; the RTR cache of before stays in use"))
        }
    }
}

/// Says how a cache, or a file, stands now.
fn report(answer: &Answer) {
    let (address, validated) = (answer.address.as_str(), &answer.snapshot.validated);
    let (vrps, router_keys) = (validated.vrps.len(), validated.router_keys.len());
    if let Some(preferred) = answer.sources.first().filter(|first| !first.counts) {
        let (preferred, why) = (preferred.name.as_str(), preferred.problem.as_deref().unwrap_or("it is not in order"));
        warn!(
            source = address,
            preferred, "what {address} says of the RPKI counts, since {preferred}, which is preferred, does not: {why}"
        );
    }
    if answer.is_replaced && answer.is_file {
        warn!(
            file = address,
            "what the file of ROAs said counts for an hour, or until the source in its place answers"
        );
        return;
    }
    match (answer.is_file, answer.snapshot.state) {
        (true, CacheState::Current) => info!(file = address, vrps, "file of ROAs read"),
        (true, CacheState::NoData) => {
            let why = answer.snapshot.problem.as_deref().unwrap_or("it has not been read yet");
            warn!(file = address, "the file of ROAs does not count: {why}; nothing of it counts until it is read");
        }
        (true, _) => {
            let why = answer.snapshot.problem.as_deref().unwrap_or("it is gone");
            warn!(file = address, "the file of ROAs cannot be read: {why}; what was read before still counts");
        }
        (false, CacheState::Stale) => {
            warn!(address, "RTR cache unreachable: what it has sent counts until it expires");
        }
        (false, CacheState::Expired) => {
            error!(address, "RTR cache unreachable for too long: what it has sent has expired and no longer counts");
        }
        (false, CacheState::Flushed) => {
            error!(address, "the RTR cache mixed up two sessions: what it has sent was dropped until it answers anew");
        }
        (false, CacheState::NoData) => info!(address, "the RTR cache has not answered yet"),
        (false, CacheState::Current) => info!(address, vrps, router_keys, "RTR cache synchronised"),
    }
}

fn name(state: CacheState) -> &'static str {
    match state {
        CacheState::NoData => "never heard",
        CacheState::Current => "current",
        CacheState::Stale => "stale",
        CacheState::Expired => "expired",
        CacheState::Flushed => "dropped",
    }
}

/// The objects of the last reading, in the state file.
#[derive(Default)]
struct RememberedObjects {
    /// `None` in a test.
    store: Option<Arc<FileStore>>,
    /// By kind, AS and sequence, as the state file orders them: the octets.
    objects: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The anchor that was in force last: its keys, as the state file has them.
    anchor: Option<Vec<u8>>,
}

impl RememberedObjects {
    fn load(store: Arc<FileStore>) -> Result<Self, Failure> {
        let objects = store.load(OBJECTS)?.into_iter().collect();
        let anchor = store.load(ANCHOR)?.into_iter().find_map(|(key, value)| (key == LAST_ANCHOR).then_some(value));
        // Earlier programs remembered every anchor, and one may have been trusted before its objects came.
        let anchor = anchor.filter(|keys| has_signed(keys, &objects));
        Ok(Self { store: Some(store), objects, anchor })
    }

    /// Whether the anchor may follow the one that was in force last. Another one is refused: with it all profiles and records of
    /// before are gone, and with them all protection. So is one that had a second key, and has it no longer or another one beside the
    /// same first key: whoever can forge Ed25519 signatures and write the file would have begun with that.
    fn check_anchor(&self, anchor: &Anchor) -> Result<(), Failure> {
        let Some((public, second)) = self.anchor.as_deref().and_then(|keys| keys.split_at_checked(KEY_LEN)) else {
            return Ok(());
        };
        let what = match anchor.post_quantum {
            None if !second.is_empty() => Some("no longer has its post-quantum key"),
            _ if public != anchor.public => Some("has changed: it has another Ed25519 key"),
            Some(now) if !second.is_empty() && second != now.as_slice() => {
                Some("has another post-quantum key beside the same Ed25519 key")
            }
            _ => None,
        };
        match what {
            Some(what) => Err(Failure::new(format!("the trust anchor {} {what}", anchor.name)).help(
                "put its file back, and find out who changed it; if the anchor's operator says that it is right, set \
                 `trust_changed_anchor = true` in [keys] for one start",
            )),
            None => Ok(()),
        }
    }

    fn remember_anchor(&mut self, anchor: &Anchor) {
        let keys = [&anchor.public[..], anchor.post_quantum.as_ref().map_or(&[][..], |second| second)].concat();
        if self.anchor.as_ref() == Some(&keys) {
            return;
        }
        self.anchor = Some(keys.clone());
        if let Some(store) = &self.store {
            let change = Change { table: ANCHOR, key: LAST_ANCHOR.to_vec(), value: Some(keys) };
            let _ = store.submit(vec![change], Box::new(|| ())); // a failure shows in the store's health
        }
    }

    fn remember(&mut self, set: &ObjectSet) {
        let name = |object: &Object| {
            let sequence = object.span().sequence.to_be_bytes();
            [&[object.kind()], object.asn().0.to_be_bytes().as_slice(), &sequence].concat()
        };
        let mut changes = Vec::new();
        for (object, octets) in set.objects() {
            let name = name(object);
            if self.objects.get(&name).is_none_or(|known| known != octets) {
                self.objects.insert(name.clone(), octets.to_vec());
                changes.push(Change { table: OBJECTS, key: name, value: Some(octets.to_vec()) });
            }
        }
        // Of each kind and AS the last stays for good, whatever has expired and whoever signed the others: nothing older counts
        // again. The set drops what a later object has replaced; so does this.
        let in_set: BTreeSet<Vec<u8>> = set.objects().map(|(object, _)| name(object)).collect();
        let names: Vec<Vec<u8>> = self.objects.keys().cloned().collect();
        for pair in names.windows(2).filter(|pair| pair[0][..KIND_AND_AS] == pair[1][..KIND_AND_AS]) {
            if !in_set.contains(&pair[0]) && in_set.contains(&pair[1]) {
                self.objects.remove(&pair[0]);
                changes.push(Change { table: OBJECTS, key: pair[0].clone(), value: None });
            }
        }
        if let Some(store) = self.store.as_ref().filter(|_| !changes.is_empty()) {
            let _ = store.submit(changes, Box::new(|| ())); // a failure shows in the store's health
        }
    }
}

/// Whether an anchor with these keys, as the state file has them, signed one of these objects, which may have expired.
fn has_signed(keys: &[u8], objects: &BTreeMap<Vec<u8>, Vec<u8>>) -> bool {
    let Some((public, second)) = keys.split_first_chunk::<KEY_LEN>() else { return false };
    let post_quantum = second.try_into().ok();
    let anchor = Anchor { name: String::new(), public: *public, post_quantum, not_before: 0, not_after: u64::MAX };
    let Ok(mut set) = ObjectSet::new(anchor, 0) else { return false };
    objects.values().any(|octets| match set.insert(octets, 0) {
        Ok(_) | Err(Refused::Expired(_) | Refused::TooManyAhead(_) | Refused::Superseded { .. }) => true,
        Err(Refused::Malformed(_) | Refused::Signature(_) | Refused::NotHybrid(_)) => false,
    })
}

/// Reads the files when they change, and makes a view of everything that is known.
struct Reader {
    generation: u64,
    /// The files' names, sizes and times when they were last read.
    snapshot: files::FileSnapshot,
    /// When the view changes by time alone (something begins or ends), in seconds since 1970.
    until: Option<u64>,
    /// `None` without a trust anchor.
    set: Option<ObjectSet>,
    remembered: RememberedObjects,
    /// Objects that the folder lost or has older, and that still count.
    kept: Vec<RetainedObject>,
    /// That another anchor than ours signed all that the folder has.
    other_anchor: Option<String>,
    /// Why the files could not be read when they changed last.
    unread: Option<String>,
    /// What the publishers' manifests say of the folder.
    alarms: Vec<ManifestAlarm>,
    certified: Vec<CertifiedKey>,
    /// When the first certificate that does not count yet begins, in seconds since 1970.
    begins: Option<u64>,
    refused: usize,
    /// Keys that do not count, by AS.
    surplus: BTreeMap<Asn, usize>,
    /// Pairs of ASes for which one key counts.
    shared: BTreeSet<(Asn, Asn)>,
    validated: Arc<RpkiData>,
    cache: Option<CacheSummary>,
    views: watch::Sender<Arc<View>>,
    summary: watch::Sender<Summary>,
}

impl Reader {
    /// Reads what has changed, or everything on request. If something cannot be read, what was known stays.
    fn update(&mut self, sources: &OriginSources, answer: Option<&Answer>, is_requested: bool) {
        let now = unix_now();
        let is_over = self.until.is_some_and(|until| until <= now.secs());
        let mut changed = self.take_over(answer);
        // What could not be read may be as it was before.
        if is_requested || is_over || self.unread.is_some() || self.snapshot != snapshot(sources) {
            match self.read(sources, now) {
                Ok(()) => {
                    self.unread = None;
                    changed = true;
                }
                Err(failure) => {
                    let help = failure.remedy().map_or(String::new(), |help| format!("; {help}"));
                    let label = failure.label().filter(|label| *label != "this");
                    let label = label.map_or(String::new(), |label| format!(": {label}"));
                    let what = format!(
                        "signed objects and certificates cannot be read: {failure}{label}; what was known before still counts until it expires{help}"
                    );
                    // What has expired by now no longer counts.
                    changed |= is_over;
                    // It is tried again and again, and said once.
                    if is_requested || self.unread.as_ref() != Some(&what) {
                        error!("{what}");
                        self.unread = Some(what);
                        changed = true;
                    }
                }
            }
        }
        if changed {
            self.publish(now);
        }
    }

    /// Takes over the cache's answer; returns whether it differs from the one before.
    fn take_over(&mut self, answer: Option<&Answer>) -> bool {
        let validated = answer.map_or_else(Arc::default, |answer| Arc::clone(&answer.snapshot.validated));
        let changed = *validated != *self.validated;
        self.validated = validated;
        let before = self.cache.take();
        self.cache = answer.map(|answer| CacheSummary {
            address: answer.address.clone(),
            standing: name(answer.snapshot.state),
            problem: answer.snapshot.problem.as_deref().map(str::to_owned),
            vrps: self.validated.vrps.len(),
            router_keys: self.validated.router_keys.len(),
        });
        if let Some(cache) = &self.cache
            && before.as_ref().is_none_or(|before| before.standing != cache.standing || before.address != cache.address)
        {
            answer.iter().for_each(|answer| report(answer));
        }
        if self.cache != before {
            self.summary.send_modify(|summary| summary.cache.clone_from(&self.cache));
        }
        changed
    }

    /// Reads the files. Changes nothing if it fails.
    fn read(&mut self, sources: &OriginSources, now: UnixTime) -> Result<(), Failure> {
        let snapshot = snapshot(sources);
        let remembered = self.remembered.objects.values().map(Vec::as_slice);
        let objects = sources.keys.objects(&sources.source, remembered)?;
        let anchor_file = sources.keys.anchor.as_ref();
        let other_anchor = objects.as_ref().zip(anchor_file);
        let other_anchor = other_anchor.and_then(|(objects, file)| objects.other_anchor(file.get_ref()));
        let other_anchor = other_anchor
            .map(|(what, cure)| format!("{what}; no profile and no record counts, and nothing is protected; {cure}"));
        let (mut refused, set, kept, alarms) = match objects {
            Some(Objects { refused, set, kept, alarms, .. }) => (refused, Some(set), kept, alarms),
            None => (Vec::new(), None, Vec::new(), Vec::new()),
        };
        if let (Some(set), Some(named)) = (&set, &sources.keys.anchor)
            && !sources.keys.is_changed_anchor_trusted()
        {
            let checked = self.remembered.check_anchor(set.anchor());
            checked.map_err(|failure| sources.source.failure(Fault::of(named.span(), &failure)))?;
        }
        let certified = match &sources.rpki.certificates {
            Some(folder) => {
                let resolve = |path: &toml::Spanned<std::path::PathBuf>| sources.source.resolve(path.get_ref());
                let anchors: Vec<_> = sources.rpki.anchors.iter().map(resolve).collect();
                router_keys::read(&anchors, &resolve(folder), now)?
            }
            None => router_keys::Imported::default(),
        };
        refused.extend(certified.refused);
        refused.iter().take(SHOWN_ALARMS).for_each(refuse);
        if refused.len() > SHOWN_ALARMS {
            warn!("{} more files are ignored, and not listed", refused.len() - SHOWN_ALARMS);
        }
        let unreported = kept.iter().filter(|kept| !self.kept.contains(kept)).map(describe_kept);
        let unreported =
            unreported.chain(alarms.iter().filter(|alarm| !self.alarms.contains(alarm)).map(describe_alarm));
        let unreported: Vec<String> = unreported.collect();
        unreported.iter().take(SHOWN_ALARMS).for_each(|alarm| error!("{alarm}"));
        if unreported.len() > SHOWN_ALARMS {
            error!("{} more alarms of the folder of objects are not listed", unreported.len() - SHOWN_ALARMS);
        }
        if let Some(other) = other_anchor.as_ref().filter(|_| self.other_anchor.is_none()) {
            error!("{other}");
        }
        (self.kept, self.alarms, self.other_anchor) = (kept, alarms, other_anchor);
        if let Some(set) = &set {
            // One that signed nothing that is here may be the wrong file, and must not keep the right one out, unless the operator says
            // that it is right.
            if set.objects().next().is_some() || sources.keys.is_changed_anchor_trusted() {
                self.remembered.remember_anchor(set.anchor());
            }
            self.remembered.remember(set);
        }
        (self.snapshot, self.set, self.refused) = (snapshot, set, refused.len());
        (self.certified, self.begins) = (certified.keys, certified.begins);
        Ok(())
    }

    /// Publishes a view of what is known now.
    fn publish(&mut self, now: UnixTime) {
        let secs = now.secs();
        self.generation += 1;
        let (mut view, omitted) = match &self.set {
            Some(set) => set.view(self.generation, secs),
            None => (View::new(self.generation), Vec::new()),
        };
        omitted.iter().for_each(|omitted| refuse(&omitted.to_string()));
        let ends = self.certified.iter().flat_map(|key| [key.not_before, key.not_after.saturating_add(1)]);
        let changes = self.set.as_ref().and_then(|set| set.next_change(secs));
        self.until = ends.chain(self.begins).filter(|moment| *moment > secs).chain(changes).min();
        let certified =
            self.certified.iter().map(|found| router_keys::registered(&found.key, found.not_before, found.not_after));
        let learnt = self.validated.router_keys.iter().map(|key| router_keys::registered(key, 0, u64::MAX));
        let mut wrong = 0;
        for key in certified.chain(learnt) {
            match key {
                Ok((asn, key)) => view.add_router_key(asn, key),
                Err(why) => {
                    wrong += 1;
                    if wrong <= LOGGED_REFUSALS {
                        warn!("{why}; the key is ignored");
                    }
                }
            }
        }
        self.report_surplus(&view);
        self.report_shared(&view);
        for vrp in &self.validated.vrps {
            view.add_vrp(Vrp { prefix: vrp.prefix, max_length: vrp.max_length, asn: vrp.asn });
        }
        let is_withheld = |alarm: &&ManifestAlarm| matches!(alarm, ManifestAlarm::Withheld { .. });
        let withheld = self.alarms.iter().filter(is_withheld).count();
        let of_all: Vec<String> = self.unread.iter().chain(&self.other_anchor).cloned().collect();
        let of_folder = self.kept.iter().map(describe_kept).chain(self.alarms.iter().map(describe_alarm));
        let alarms = of_all.iter().cloned().chain(of_folder);
        self.summary.send_replace(Summary {
            objects: self.set.as_ref().map_or(0, |set| set.objects().count()),
            refused: self.refused + omitted.len() + wrong,
            kept: self.kept.len(),
            withheld,
            manifest_alarms: self.alarms.len() - withheld,
            alarms: alarms.take(SHOWN_ALARMS).collect(),
            of_all,
            vrps: view.vrps(),
            certified_keys: self.certified.len(),
            surplus_keys: self.surplus.values().sum(),
            cache: self.cache.clone(),
        });
        self.views.send_replace(Arc::new(view));
    }
}

impl Reader {
    /// Reports ASes with more keys than count, once for each change: no AS has an honest reason for them.
    fn report_surplus(&mut self, view: &View) {
        let surplus: BTreeMap<Asn, usize> = view.surplus_keys().collect();
        let unreported = surplus.iter().filter(|(asn, keys)| self.surplus.get(asn) != Some(keys));
        for (asn, keys) in unreported.take(LOGGED_REFUSALS) {
            error!(
                keys,
                "{asn} has {keys} registered keys more than count (two of one suite and tag, {MAX_AS_KEYS} in all); its routes may \
                 be signed with one that does not: ask its operator"
            );
        }
        self.surplus = surplus;
    }

    /// Reports keys that count for two ASes, once for each pair of ASes.
    fn report_shared(&mut self, view: &View) {
        let shared = view.shared_keys();
        for (one, other) in shared.difference(&self.shared).take(LOGGED_REFUSALS) {
            error!(
                "{one} and {other} list the same key: whichever does not hold it lets the other sign in its name; ask both operators"
            );
        }
        self.shared = shared;
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            generation: 0,
            snapshot: files::FileSnapshot::default(),
            until: None,
            set: None,
            remembered: RememberedObjects::default(),
            kept: Vec::new(),
            other_anchor: None,
            unread: None,
            alarms: Vec::new(),
            certified: Vec::new(),
            begins: None,
            refused: 0,
            surplus: BTreeMap::new(),
            shared: BTreeSet::new(),
            validated: Arc::default(),
            cache: None,
            views: watch::Sender::new(Arc::default()),
            summary: watch::Sender::new(Summary::default()),
        }
    }
}

/// How the folder has gone back, what counts now, and what to do.
fn describe_kept(RetainedObject { asn, kind, sequence, begins, in_folder, expired }: &RetainedObject) -> String {
    let folder = match in_folder {
        Some(other) if other == sequence => "the folder of objects has another one with this sequence".to_owned(),
        Some(other) => format!("the folder of objects has sequence {other} of it instead"),
        None => "the folder of objects no longer has it".to_owned(),
    };
    let counts = match (begins, *kind) {
        (Some(begins), _) => format!("still comes into force at {}", utc(*begins)),
        (None, "manifest") => "still says what the folder should have".to_owned(),
        (None, _) => "stays in force until it expires".to_owned(),
    };
    let whose = if asn.0 == 0 { "the trust anchor".to_owned() } else { asn.to_string() };
    if let Some(expired) = expired {
        return format!(
            "the {kind} of {whose} with sequence {sequence} {counts}: {folder}, which expired at {}; ask its publisher to sign it again, \
             for longer",
            utc(*expired)
        );
    }
    format!(
        "the {kind} of {whose} with sequence {sequence} {counts}: {folder}; fetch the objects again, and find out who changed them"
    )
}

/// What a manifest shows, what counts now, and what to do.
fn describe_alarm(alarm: &ManifestAlarm) -> String {
    let remedy = match alarm {
        ManifestAlarm::Withheld { .. } => {
            "what was known before still counts, and of what was never here nothing is known; fetch the objects again, and \
             find out who changed them"
        }
        ManifestAlarm::Unlisted { .. } => "it counts; ask its publisher whether it should",
        ManifestAlarm::Stale { .. } => {
            "all objects still count; fetch them again, or ask the publisher to run `wayleave keys manifest`"
        }
        ManifestAlarm::Unchecked { .. } => "they count; compare the anchor's file with its operator's",
        ManifestAlarm::Missing { .. } => {
            "all objects count; fetch it, or ask the publisher to run `wayleave keys manifest`"
        }
    };
    format!("{alarm}; {remedy}")
}

fn refuse(refused: &String) {
    warn!("{refused}; the file is ignored");
}

/// The files' names, sizes and times, by which a change is noticed.
fn snapshot(sources: &OriginSources) -> files::FileSnapshot {
    let mut more: Vec<_> = sources.rpki.anchors.iter().map(|anchor| sources.source.resolve(anchor.get_ref())).collect();
    if let Some(folder) = &sources.rpki.certificates {
        let folder = sources.source.resolve(folder.get_ref());
        for ending in ["cer", "crl"] {
            more.extend(router_keys::files(&folder, ending).unwrap_or_default());
        }
    }
    sources.keys.snapshot(&sources.source, more)
}

#[cfg(test)]
mod tests {
    //! KCX-18: a certificate whose time begins later: looked at again then.
    //! KCX-31: endless router keys of an AS: those beyond the limits are counted, and the operator is told once.
    //! KCX-40: a key that two ASes have: reported.

    use wayleave_attestation::pki::{Record, Span};
    use wayleave_attestation::suite::Suite as _;
    use wayleave_attestation::suite::ed25519::Ed25519;
    use wayleave_crypto::secret::Secret;

    use super::*;

    #[test]
    fn keys_beyond_the_limits_of_an_as_are_counted_and_reported_once() {
        let key = |number: u32| wayleave_attestation::pki::RegisteredKey {
            suite: wayleave_attestation::SuiteId::KcP256,
            public: number.to_be_bytes().to_vec(),
            not_before: 0,
            not_after: u64::MAX,
        };
        let mut view = View::new(1);
        (0..MAX_AS_KEYS as u32 + 5).for_each(|number| view.add_router_key(Asn(64_496), key(number)));
        let mut reader = Reader::default();
        reader.report_surplus(&view);
        assert_eq!(reader.surplus, BTreeMap::from([(Asn(64_496), 5)]));
        reader.report_surplus(&View::new(2));
        assert!(reader.surplus.is_empty());
        // Likewise a key that two ASes list.
        view.add_router_key(Asn(64_497), key(3));
        reader.report_shared(&view);
        assert_eq!(reader.shared, BTreeSet::from([(Asn(64_496), Asn(64_497))]));
    }

    #[test]
    fn of_an_object_that_the_folder_lost_the_log_says_whether_it_is_in_force_or_waits() {
        let kept =
            RetainedObject { asn: Asn(5), kind: "profile", sequence: 7, begins: None, in_folder: None, expired: None };
        let said = describe_kept(&kept);
        assert!(said.contains("stays in force until it expires: the folder of objects no longer has it"), "{said}");
        let said = describe_kept(&RetainedObject { begins: Some(1_700_000_000), in_folder: Some(6), ..kept });
        assert!(said.contains("still comes into force at 2023-11-14") && !said.contains("stays in force"), "{said}");
        assert!(said.contains("has sequence 6 of it instead") && said.contains("find out who changed them"), "{said}");
        let said = describe_kept(&RetainedObject { in_folder: Some(8), expired: Some(1_700_000_000), ..kept });
        assert!(said.contains("has sequence 8 of it instead, which expired at 2023-11-14T22:13:20Z; ask"), "{said}");
    }

    #[test]
    fn an_anchor_with_another_key_is_refused_and_a_second_key_may_be_added() {
        let anchor = |public: u8, second: Option<u8>| Anchor {
            name: "lab".to_owned(),
            public: [public; KEY_LEN],
            post_quantum: second.map(|octet| [octet; 32]),
            not_before: 0,
            not_after: u64::MAX,
        };
        let mut remembered = RememberedObjects::default();
        assert!(remembered.check_anchor(&anchor(1, None)).is_ok(), "nothing is remembered");
        let cases = [
            ((1, None), [((1, None), true), ((1, Some(2)), true), ((3, None), false), ((3, Some(2)), false)]),
            ((1, Some(2)), [((1, Some(2)), true), ((1, None), false), ((1, Some(3)), false), ((3, Some(2)), false)]),
        ];
        for ((public, second), followers) in cases {
            remembered.remember_anchor(&anchor(public, second));
            for ((public, second), may) in followers {
                let checked = remembered.check_anchor(&anchor(public, second));
                assert_eq!(checked.is_ok(), may, "{public} {second:?}");
            }
        }
    }

    #[test]
    fn an_anchor_under_which_no_remembered_object_counts_is_not_held_against_another() {
        let key = |byte: u8| Ed25519.generate(&Secret::new([byte; 32]));
        let span = Span { sequence: 3, not_before: 500, not_after: 900 };
        let record = Record { asn: Asn(5), span, attested_since: None, prefixes: Vec::new() };
        let octets = Object::Record(record).sign(&mut *key(1)).expect("signs");
        let objects = BTreeMap::from([(vec![1], vec![9, 9]), (vec![2], octets)]);
        assert!(has_signed(key(1).public(), &objects), "it has expired, and was signed all the same");
        assert!(!has_signed(key(2).public(), &objects) && !has_signed(key(1).public(), &BTreeMap::new()));
        assert!(!has_signed(&[key(1).public(), &[7; KEY_LEN]].concat(), &objects), "both keys sign");
        assert!(!has_signed(&[1, 2, 3], &objects));
    }

    #[test]
    fn a_certificate_that_begins_later_is_read_again_then() {
        let now = UnixTime(1_700_000_000_000_000);
        let mut reader = Reader { begins: Some(now.secs() + 60), ..Reader::default() };
        reader.publish(now);
        assert_eq!(reader.until, Some(now.secs() + 60));
        reader.publish(UnixTime(now.0 + 60_000_000));
        assert_eq!(reader.until, None, "it is read then, and only once");
    }
}

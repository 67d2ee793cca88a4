//! What is known of origins, followed beside a role's loop: signed objects, router certificates and an RTR cache. Files
//! are read and verified on a thread of their own, and the loop is handed finished views.

mod cache;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{error, info};
use wayleave_attestation::pki::{ObjectSet, View, Vrp};
use wayleave_core::UnixTime;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::Metric;
use wayleave_runtime::rpki::RpkiData;
use wayleave_runtime::rpki::certificates::CertifiedKey;
use wayleave_runtime::rpki::rtr::CacheState;

use self::cache::{Followed, Heard};
use crate::config::Source;
use crate::config::attest::KeysSection;
use crate::config::rpki::RpkiSection;
use crate::failure::{Failure, Outcome};
use crate::key_files::attestation as files;
use crate::key_files::router_keys;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(30);
/// How long a start waits for a cache's first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Refused keys of a cache that are told one by one.
const REFUSALS_TOLD: usize = 8;

/// Where to look, as a configuration says it.
#[derive(Clone)]
pub struct Wanted {
    pub keys: KeysSection,
    pub rpki: RpkiSection,
    /// The configuration's file: paths are relative to its folder.
    pub source: Source,
}

/// What is known, in numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Signed objects that count, and files that do not.
    pub objects: usize,
    pub refused: usize,
    /// Prefixes with their origins, whoever said so.
    pub vrps: usize,
    /// Keys from router certificates.
    pub certified_keys: usize,
    /// The RTR cache, if one is followed.
    pub cache: Option<CacheSummary>,
}

/// What an RTR cache says, in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct CacheSummary {
    pub address: String,
    /// `never heard`, `current`, `stale` or `expired`.
    pub standing: &'static str,
    pub vrps: usize,
    pub router_keys: usize,
}

impl Summary {
    /// As metrics of a role.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::gauge("objects", "Signed objects that count", self.objects as f64),
            Metric::gauge(
                "objects_refused",
                "Files of objects and certificates that do not count",
                self.refused as f64,
            ),
            Metric::gauge("vrps", "Prefixes with the ASes that may originate them", self.vrps as f64),
        ];
        if let Some(cache) = &self.cache {
            let current = if cache.standing == "current" { 1.0 } else { 0.0 };
            metrics.push(Metric::gauge("rtr_current", "Whether the RTR cache is connected and in force", current));
            metrics.push(Metric::gauge("rtr_vrps", "Prefixes that the RTR cache knows", cache.vrps as f64));
            metrics.push(Metric::gauge("rtr_router_keys", "Keys that the RTR cache knows", cache.router_keys as f64));
        }
        metrics
    }
}

/// Follows what is known of origins until it is dropped.
pub struct Origins {
    wanted: watch::Sender<Wanted>,
    /// The latest view.
    pub views: watch::Receiver<Arc<View>>,
    summary: watch::Receiver<Summary>,
    task: JoinHandle<()>,
}

impl Origins {
    /// Reads everything once, and follows it from then on. Fails where something cannot be read at the start.
    pub async fn follow(wanted: Wanted) -> Outcome<Self> {
        let mut cache = Followed::start(wanted.rpki.cache(&wanted.source)?);
        if let Some(cache) = &mut cache {
            // The sessions need not wait longer: what comes later is taken in then.
            let _ = timeout(FIRST_ANSWER, cache.next_word()).await;
        }
        let (first, heard) = (wanted.clone(), cache.as_mut().map(Followed::hear));
        let read = spawn_blocking(move || {
            let mut reader = Reader::default();
            reader.read(&first, unix_now())?;
            reader.hear(heard.as_ref());
            reader.publish(unix_now());
            Ok::<_, Failure>(reader)
        });
        let reader = read.await.map_err(|error| Failure::new(format!("the objects: {error}")))??;
        let (views, summary) = (reader.views.subscribe(), reader.summary.subscribe());
        let (wanted, changes) = watch::channel(wanted);
        let task = tokio::spawn(look_again(reader, changes, cache));
        Ok(Self { wanted, views, summary, task })
    }

    /// Looks there from now on, at once.
    pub fn look(&self, wanted: Wanted) {
        self.wanted.send_replace(wanted);
    }

    /// What is known, in numbers, now and later.
    pub fn summary(&self) -> watch::Receiver<Summary> {
        self.summary.clone()
    }
}

impl Drop for Origins {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits for the cache's next word; for ever without one.
async fn next_word(cache: &mut Option<Followed>) {
    match cache {
        Some(followed) => followed.next_word().await,
        None => std::future::pending().await,
    }
}

async fn look_again(reader: Reader, mut wanted: watch::Receiver<Wanted>, mut cache: Option<Followed>) {
    let reader = Arc::new(Mutex::new(reader));
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        let mut asked = false;
        tokio::select! {
            changed = wanted.changed() => match changed {
                Ok(()) => {
                    asked = true;
                    follow_another(&mut cache, &wanted.borrow_and_update().clone());
                }
                Err(_) => return,
            },
            () = next_word(&mut cache) => {}
            _ = ticks.tick() => {}
        };
        let heard = cache.as_mut().map(Followed::hear);
        let (wanted, reader) = (wanted.borrow().clone(), Arc::clone(&reader));
        let look = move || reader.lock().unwrap_or_else(PoisonError::into_inner).look(&wanted, heard.as_ref(), asked);
        if let Err(failed) = spawn_blocking(look).await {
            error!("ALARM: the objects were not read: {failed}; what was known before still counts");
        }
    }
}

/// Follows the cache that is wanted now, if it is another.
fn follow_another(cache: &mut Option<Followed>, wanted: &Wanted) {
    match wanted.rpki.cache(&wanted.source) {
        Ok(new) => Followed::follow(cache, new),
        Err(failures) => failures.0.iter().for_each(|failure| error!("reload: {failure}; the cache stays as it was")),
    }
}

fn word(standing: CacheState) -> &'static str {
    match standing {
        CacheState::NoData => "never heard",
        CacheState::Current => "current",
        CacheState::Stale => "stale",
        CacheState::Expired => "expired",
    }
}

/// Reads the files when they change, and makes views of all that is known.
struct Reader {
    generation: u64,
    /// What the files held when they were last read.
    stamp: files::Stamp,
    /// When what they say must be looked at again, in seconds since 1970.
    until: Option<u64>,
    /// What was last read; without an anchor nothing.
    set: Option<ObjectSet>,
    certified: Vec<CertifiedKey>,
    /// When the time of a certificate begins that does not count yet, in seconds since 1970.
    begins: Option<u64>,
    refused: usize,
    validated: Arc<RpkiData>,
    cache: Option<CacheSummary>,
    views: watch::Sender<Arc<View>>,
    summary: watch::Sender<Summary>,
}

impl Reader {
    /// Takes in what has changed, or all if somebody asked for it. What cannot be read leaves what was known.
    fn look(&mut self, wanted: &Wanted, heard: Option<&Heard>, asked: bool) {
        let now = unix_now();
        let is_over = self.until.is_some_and(|until| until <= now.secs());
        let mut changed = self.hear(heard);
        if asked || is_over || self.stamp != stamp(wanted) {
            match self.read(wanted, now) {
                Ok(()) => changed = true,
                Err(failure) => {
                    error!("ALARM: {failure}; what was known before still counts until it expires");
                    // What has expired by now counts no longer.
                    changed |= is_over;
                }
            }
        }
        if changed {
            self.publish(now);
        }
    }

    /// Takes in what the cache says; whether that is something else than before.
    fn hear(&mut self, heard: Option<&Heard>) -> bool {
        let validated = heard.map_or_else(Arc::default, |heard| Arc::clone(&heard.snapshot.validated));
        let changed = *validated != *self.validated;
        self.validated = validated;
        let before = self.cache.take();
        self.cache = heard.map(|heard| CacheSummary {
            address: heard.address.clone(),
            standing: word(heard.snapshot.standing),
            vrps: self.validated.vrps.len(),
            router_keys: self.validated.router_keys.len(),
        });
        if let Some(cache) = &self.cache
            && before.is_none_or(|before| before.standing != cache.standing || before.address != cache.address)
        {
            let address = cache.address.as_str();
            match heard.map(|heard| heard.snapshot.standing) {
                Some(CacheState::Stale) => {
                    error!(address, "ALARM: the RTR cache is gone; what it said counts until it expires");
                }
                Some(CacheState::Expired) => {
                    error!(address, "ALARM: what the RTR cache said has expired: it counts no longer");
                }
                Some(CacheState::NoData) => info!(address, "the RTR cache has not answered yet"),
                _ => info!(address, vrps = cache.vrps, router_keys = cache.router_keys, "the RTR cache is in force"),
            }
            self.summary.send_modify(|summary| summary.cache.clone_from(&self.cache));
        }
        changed
    }

    /// Reads the files. Changes nothing where it fails.
    fn read(&mut self, wanted: &Wanted, now: UnixTime) -> Result<(), Failure> {
        let stamp = stamp(wanted);
        let (mut refused, set) = match files::objects(&wanted.keys, &wanted.source)? {
            Some((refused, set)) => (refused, Some(set)),
            None => (Vec::new(), None),
        };
        let certified = match &wanted.rpki.certificates {
            Some(folder) => {
                let beside = |path: &toml::Spanned<std::path::PathBuf>| wanted.source.beside(path.get_ref());
                let anchors: Vec<_> = wanted.rpki.anchors.iter().map(beside).collect();
                router_keys::read(&anchors, &beside(folder), now)?
            }
            None => router_keys::Read::default(),
        };
        refused.extend(certified.refused);
        refused.iter().for_each(refuse);
        (self.stamp, self.set, self.refused) = (stamp, set, refused.len());
        (self.certified, self.begins) = (certified.keys, certified.begins);
        Ok(())
    }

    /// Makes a view of what is known now, and hands it out.
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
                    if wrong <= REFUSALS_TOLD {
                        error!("{why}; it does not count");
                    }
                }
            }
        }
        for vrp in &self.validated.vrps {
            view.add_vrp(Vrp { prefix: vrp.prefix, max_length: vrp.max_length, asn: vrp.asn });
        }
        self.summary.send_replace(Summary {
            objects: self.set.as_ref().map_or(0, |set| set.objects().count()),
            refused: self.refused + omitted.len() + wrong,
            vrps: view.vrps(),
            certified_keys: self.certified.len(),
            cache: self.cache.clone(),
        });
        self.views.send_replace(Arc::new(view));
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            generation: 0,
            stamp: files::Stamp::default(),
            until: None,
            set: None,
            certified: Vec::new(),
            begins: None,
            refused: 0,
            validated: Arc::default(),
            cache: None,
            views: watch::Sender::new(Arc::default()),
            summary: watch::Sender::new(Summary::default()),
        }
    }
}

fn refuse(refused: &String) {
    error!("ALARM: {refused}; it does not count");
}

/// What the files hold, as far as their names, sizes and times tell.
fn stamp(wanted: &Wanted) -> files::Stamp {
    let mut more: Vec<_> = wanted.rpki.anchors.iter().map(|anchor| wanted.source.beside(anchor.get_ref())).collect();
    if let Some(folder) = &wanted.rpki.certificates {
        let folder = wanted.source.beside(folder.get_ref());
        for ending in ["cer", "crl"] {
            more.extend(router_keys::files(&folder, ending).unwrap_or_default());
        }
    }
    files::stamp(&wanted.keys, &wanted.source, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_later_is_looked_at_again_when_it_does() {
        let now = UnixTime(1_700_000_000_000_000);
        let mut reader = Reader { begins: Some(now.secs() + 60), ..Reader::default() };
        reader.publish(now);
        assert_eq!(reader.until, Some(now.secs() + 60));
        reader.publish(UnixTime(now.0 + 60_000_000));
        assert_eq!(reader.until, None, "it is read then, and not again and again");
    }
}

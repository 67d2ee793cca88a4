//! The RTR caches and files of ROAs that are followed, and which of them counts; also over a change of the configuration: data of the one
//! before counts until a new one has any, or all have answered that there are none, and no longer than it would have; that of a file an
//! hour.

use std::future::{Future as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::error;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::rpki::rtr::{CacheState, Snapshot};
use wayleave_runtime::rpki::{DataSource, PreferredSource, RpkiData};

use super::rov::OLD_FILE;

/// How long the data of a file, which have no end of their own, count once another source is configured that has not answered.
const REPLACED_FILE: Duration = Duration::from_secs(3_600);
/// How often it is looked whether a file among several sources has become too old.
const FILE_AGES: Duration = Duration::from_secs(60);

/// The sources in use: one cache or file, or several of which one counts at a time (RFC 8210 section 10).
///
/// The most preferred one that is in order counts. When it is lost or has expired, or has nothing at all, the next one does at once, and
/// when it is in order again it counts again. What two have is never mixed. While none is in order, the one that counted last counts until
/// it expires: what it sent is the newest.
pub(super) struct FollowedCache {
    /// The most preferred first; at least one.
    sources: Vec<FollowedSource>,
    /// Since when these are followed, in seconds since 1970.
    since: u64,
    /// The place of the one that counts, and since when it does, in seconds since 1970.
    chosen: usize,
    chosen_since: u64,
    /// The last answer of the cache before, until one of these has data, or all have answered that there are none.
    before: Option<Answer>,
}

struct FollowedSource {
    preference: u32,
    cache: DataSource,
    snapshots: watch::Receiver<Snapshot>,
    task: JoinHandle<()>,
}

/// The last answer of a cache.
#[derive(Clone)]
pub(super) struct Answer {
    /// Of a file, its path.
    pub(super) address: String,
    pub(super) is_file: bool,
    /// Whether another source is configured in its place, which has not answered yet.
    pub(super) is_replaced: bool,
    /// Since when the source that is configured is followed, in seconds since 1970.
    pub(super) since: u64,
    pub(super) snapshot: Snapshot,
    /// Since when it counts, in seconds since 1970.
    pub(super) counts_since: u64,
    /// How each source stands, the most preferred first; empty where only one is configured.
    pub(super) sources: Vec<Standing>,
}

/// How one of several sources stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    pub(super) name: String,
    pub(super) is_file: bool,
    pub(super) preference: u32,
    pub(super) counts: bool,
    pub(super) state: CacheState,
    pub(super) problem: Option<String>,
    pub(super) vrps: usize,
    pub(super) customers: usize,
    /// When it sent its last update, or was written, in seconds since 1970.
    pub(super) updated: Option<u64>,
}

impl Answer {
    /// What still counts of it once its source is no longer in use.
    fn remaining(self) -> Option<Self> {
        let has_data = matches!(self.snapshot.state, CacheState::Current | CacheState::Stale);
        let of_file = || (self.is_file && has_data).then(|| Instant::now() + REPLACED_FILE);
        let expires = self.snapshot.expires.or_else(of_file).filter(|expires| *expires > Instant::now())?;
        let snapshot = Snapshot { state: CacheState::Stale, expires: Some(expires), ..self.snapshot };
        Some(Self { is_replaced: true, snapshot, sources: Vec::new(), ..self })
    }
}

impl FollowedSource {
    fn start(PreferredSource { preference, source: cache }: PreferredSource) -> Self {
        let (snapshots, task) = cache.follow();
        Self { preference, cache, snapshots, task }
    }

    fn is_file(&self) -> bool {
        matches!(self.cache, DataSource::File(_))
    }

    /// Whether it is synchronised and fresh, and has anything.
    fn is_in_order(&self, now: u64) -> bool {
        let snapshot = self.snapshots.borrow();
        let is_old = self.is_file() && snapshot.updated.is_some_and(|updated| updated + OLD_FILE < now);
        snapshot.state == CacheState::Current && !snapshot.validated.is_empty() && !is_old
    }

    fn has_data(&self) -> bool {
        let snapshot = self.snapshots.borrow();
        matches!(snapshot.state, CacheState::Current | CacheState::Stale) && !snapshot.validated.is_empty()
    }

    fn standing(&self, counts: bool) -> Standing {
        let snapshot = self.snapshots.borrow();
        Standing {
            name: self.cache.name(),
            is_file: self.is_file(),
            preference: self.preference,
            counts,
            state: snapshot.state,
            problem: snapshot.problem.as_deref().map(str::to_owned),
            vrps: snapshot.validated.vrps.len(),
            customers: customers(&snapshot.validated),
            updated: snapshot.updated,
        }
    }
}

impl Drop for FollowedSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How many ASes have ASPA records.
pub(super) fn customers(validated: &RpkiData) -> usize {
    let mut last = None;
    validated.aspas.iter().filter(|(customer, _)| last.replace(*customer) != Some(*customer)).count()
}

impl FollowedCache {
    /// The sources, the most preferred first.
    pub(super) fn start(sources: Vec<PreferredSource>) -> Option<Self> {
        Self::of(sources.into_iter().map(FollowedSource::start).collect())
    }

    fn of(sources: Vec<FollowedSource>) -> Option<Self> {
        let now = unix_now().secs();
        (!sources.is_empty()).then_some(Self { sources, since: now, chosen: 0, chosen_since: now, before: None })
    }

    /// Follows what is configured from now on; a source that stays, with its TLS parameters, keeps its session.
    pub(super) fn follow(followed: &mut Option<Self>, configured: Vec<PreferredSource>) {
        let of =
            |source: &FollowedSource| PreferredSource { preference: source.preference, source: source.cache.clone() };
        let known = followed.iter().flat_map(|followed| &followed.sources).map(of);
        if known.eq(configured.iter().cloned()) {
            return;
        }
        let before = followed.as_mut().and_then(|followed| followed.answer().remaining());
        let mut old = followed.take().map(|followed| followed.sources).unwrap_or_default();
        let kept_or_new = |configured: PreferredSource| match old.iter().position(|old| old.cache == configured.source)
        {
            Some(at) => {
                let mut kept = old.swap_remove(at);
                kept.preference = configured.preference;
                kept
            }
            None => FollowedSource::start(configured),
        };
        *followed = Self::of(configured.into_iter().map(kept_or_new).collect());
        if let Some(followed) = followed {
            followed.before = before;
        }
    }

    /// Chooses the source that counts.
    fn choose(&mut self) {
        let now = unix_now().secs();
        let first = |holds: &dyn Fn(&FollowedSource) -> bool| self.sources.iter().position(holds);
        let of_state = |state| move |source: &FollowedSource| source.snapshots.borrow().state == state;
        let chosen = first(&|source| source.is_in_order(now))
            .or_else(|| self.sources[self.chosen].has_data().then_some(self.chosen))
            .or_else(|| first(&FollowedSource::has_data))
            .or_else(|| first(&of_state(CacheState::Current)))
            .or_else(|| first(&|source| source.snapshots.borrow().state != CacheState::NoData))
            .unwrap_or_default();
        if chosen != self.chosen {
            (self.chosen, self.chosen_since) = (chosen, now);
        }
    }

    /// What counts now; marks it as read.
    pub(super) fn answer(&mut self) -> Answer {
        self.sources.iter_mut().for_each(|source| drop(source.snapshots.borrow_and_update()));
        self.choose();
        let chosen = &self.sources[self.chosen];
        let snapshot = chosen.snapshots.borrow().clone();
        let is_current = |source: &FollowedSource| source.snapshots.borrow().state == CacheState::Current;
        if chosen.has_data() || self.sources.iter().all(is_current) {
            self.before = None;
        }
        if let Some(before) = self.before.take() {
            let (address, is_file) = (before.address.clone(), before.is_file);
            let snapshot = Snapshot { problem: snapshot.problem.clone(), ..before.snapshot };
            self.before = Answer { since: self.since, snapshot, ..before }.remaining();
            match (&self.before, is_file) {
                (Some(_), _) => {}
                (None, true) => error!(file = address, "what the file of ROAs of before said no longer counts"),
                (None, false) => {
                    error!(address, "what the RTR cache of before has sent has expired and no longer counts");
                }
            }
        }
        let standings =
            || self.sources.iter().enumerate().map(|(at, source)| source.standing(at == self.chosen)).collect();
        let own = || Answer {
            address: chosen.cache.name(),
            is_file: chosen.is_file(),
            is_replaced: false,
            since: self.since,
            snapshot,
            counts_since: self.chosen_since,
            sources: if self.sources.len() > 1 { standings() } else { Vec::new() },
        };
        self.before.clone().unwrap_or_else(own)
    }

    /// Waits for the first answers: until a source is in order, and those that are preferred to it have answered or cannot be reached.
    /// Cancel safe.
    pub(super) async fn answered(&mut self) {
        loop {
            let now = unix_now().secs();
            self.sources.iter_mut().for_each(|source| drop(source.snapshots.borrow_and_update()));
            let is_open = |source: &FollowedSource| {
                let snapshot = source.snapshots.borrow();
                snapshot.state == CacheState::NoData && snapshot.problem.is_none()
            };
            let first = self.sources.iter().find(|source| source.is_in_order(now) || is_open(source));
            let have_all = || self.sources.iter().all(|source| source.snapshots.borrow().state != CacheState::NoData);
            if first.is_some_and(|first| first.is_in_order(now)) || have_all() {
                return;
            }
            one_changed(&mut self.sources).await;
        }
    }

    /// Waits until something else may count. Cancel safe.
    pub(super) async fn changed(&mut self) {
        let expires = self.before.as_ref().and_then(|before| before.snapshot.expires);
        let expired = async {
            match expires {
                Some(expires) => sleep_until(expires).await,
                None => std::future::pending().await,
            }
        };
        let may_age = self.sources.len() > 1 && self.sources.iter().any(FollowedSource::is_file);
        let aged = async { if may_age { sleep(FILE_AGES).await } else { std::future::pending().await } };
        tokio::select! {
            () = one_changed(&mut self.sources) => {}
            () = expired => {}
            () = aged => {}
        }
    }
}

/// Waits until the source says something else; for ever once it is no longer followed.
async fn says_something_else(source: &mut FollowedSource) {
    if source.snapshots.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until one of the sources says something else. Cancel safe.
async fn one_changed(sources: &mut [FollowedSource]) {
    let mut waiting: Vec<_> = sources.iter_mut().map(|source| Box::pin(says_something_else(source))).collect();
    poll_fn(|context| {
        let is_one_ready = waiting.iter_mut().any(|one| one.as_mut().poll(context).is_ready());
        if is_one_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    //! KCX-18: an RTR cache over TLS at a reload, wanted again or another: the same session, or what was known counts
    //! until the next cache answers or it expires.

    use super::*;
    use std::sync::Arc;
    use wayleave_core::Asn;
    use wayleave_runtime::rpki::rtr;
    use wayleave_runtime::rpki::{RpkiData, Vrp};

    /// Some authority; its private key was deleted.
    const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBizCCATGgAwIBAgIUDzTFW3H6LheJkOkWTxeiQplRnyUwCgYIKoZIzj0EAwIw\n\
        GjEYMBYGA1UEAwwPY2FjaGUgYXV0aG9yaXR5MCAXDTI2MTEyMTIzNTAzNFoYDzIx\n\
        MjYxMDI4MjM1MDM0WjAaMRgwFgYDVQQDDA9jYWNoZSBhdXRob3JpdHkwWTATBgcq\n\
        hkjOPQIBBggqhkjOPQMBBwNCAASgQquJIV7g2z/gVIsl6xmIPcCTHGW0KwjVi4lw\n\
        kx1JeXWoBJEPeoaKpuZFHud/pQLbh/jM2drrUwSu4YtA3Y48o1MwUTAdBgNVHQ4E\n\
        FgQUgf5TtLlX92bs+3Zr9tOR69RKFxcwHwYDVR0jBBgwFoAUgf5TtLlX92bs+3Zr\n\
        9tOR69RKFxcwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEAxeIB\n\
        TaMn6bPKbbNWZ0AnOXh+aeNYZmB3dbwJOQ1qJdMCIGLL57UG+YOuIbZmo0tbyCJQ\n\
        wNlRhEPPLtlgKmFAhbbi\n\
        -----END CERTIFICATE-----\n";

    /// A cache with data; no connection is made.
    fn followed(cache: DataSource) -> (Option<FollowedCache>, watch::Sender<Snapshot>) {
        let (source, sender) = source(1, cache);
        (FollowedCache::of(vec![source]), sender)
    }

    fn source(preference: u32, cache: DataSource) -> (FollowedSource, watch::Sender<Snapshot>) {
        let vrp = Vrp { prefix: "192.0.2.0/24".parse().expect("a prefix"), max_length: 24, asn: Asn(64_496) };
        let validated = Arc::new(RpkiData { vrps: [vrp].into(), ..RpkiData::default() });
        let expires = Some(Instant::now() + Duration::from_secs(600));
        let (sender, snapshots) = watch::channel(Snapshot {
            generation: 1,
            state: CacheState::Current,
            validated,
            expires,
            ..Snapshot::default()
        });
        let task = tokio::spawn(std::future::pending());
        (FollowedSource { preference, cache, snapshots, task }, sender)
    }

    /// A cache that does not answer.
    fn cache(port: u16, name: Option<&str>) -> DataSource {
        let tls = name.map(|name| rtr::tls(name, AUTHORITY.as_bytes()).expect("an authority"));
        DataSource::Cache(rtr::Cache { address: format!("127.0.0.1:{port}"), tls, version: None })
    }

    /// It alone.
    fn only(source: DataSource) -> Vec<PreferredSource> {
        vec![PreferredSource { preference: 1, source }]
    }

    fn heard(followed: &mut Option<FollowedCache>) -> (String, CacheState, usize) {
        let heard = followed.as_mut().expect("followed").answer();
        (heard.address, heard.snapshot.state, heard.snapshot.validated.vrps.len())
    }

    #[tokio::test]
    async fn a_session_over_tls_survives_a_reload_of_the_same_configuration() {
        let (mut followed, sender) = followed(cache(1, Some("cache.example")));
        FollowedCache::follow(&mut followed, only(cache(1, Some("cache.example"))));
        assert_eq!(sender.receiver_count(), 1, "still the same session");
        assert_eq!(heard(&mut followed), ("127.0.0.1:1".to_owned(), CacheState::Current, 1));
        FollowedCache::follow(&mut followed, only(cache(1, Some("other.example"))));
        assert_eq!(sender.receiver_count(), 0, "another name is demanded");
    }

    #[tokio::test]
    async fn data_of_a_cache_counts_until_the_next_cache_answers_or_it_expires() {
        let (mut old, _sender) = followed(cache(1, None));
        FollowedCache::follow(&mut old, only(cache(2, None)));
        assert_eq!(heard(&mut old), ("127.0.0.1:1".to_owned(), CacheState::Stale, 1));
        // Also over a second change.
        FollowedCache::follow(&mut old, only(cache(3, None)));
        assert_eq!(heard(&mut old), ("127.0.0.1:1".to_owned(), CacheState::Stale, 1));
        let waiting = old.as_mut().expect("followed");
        waiting.before.as_mut().expect("held").snapshot.expires = Some(Instant::now());
        waiting.changed().await;
        assert_eq!(heard(&mut old), ("127.0.0.1:3".to_owned(), CacheState::NoData, 0));

        // Of a file, which has no end of its own, for an hour.
        let (mut old, file) = followed(DataSource::File("roas.json".into()));
        file.send_modify(|snapshot| snapshot.expires = None);
        FollowedCache::follow(&mut old, only(cache(2, None)));
        for port in [3, 4] {
            assert_eq!(heard(&mut old), ("roas.json".to_owned(), CacheState::Stale, 1));
            FollowedCache::follow(&mut old, only(cache(port, None)));
        }
        let answer = old.as_mut().expect("followed").answer();
        let left = answer.snapshot.expires.expect("an end").duration_since(Instant::now());
        assert!(answer.is_replaced && left <= REPLACED_FILE && left > REPLACED_FILE / 2, "{left:?}");
        let waiting = old.as_mut().expect("followed");
        waiting.before.as_mut().expect("held").snapshot.expires = Some(Instant::now());
        waiting.changed().await;
        assert_eq!(heard(&mut old), ("127.0.0.1:4".to_owned(), CacheState::NoData, 0));
        // One that was never read has nothing.
        let (mut unread, file) = followed(DataSource::File("roas.json".into()));
        file.send_replace(Snapshot::default());
        FollowedCache::follow(&mut unread, only(cache(2, None)));
        assert_eq!(heard(&mut unread), ("127.0.0.1:2".to_owned(), CacheState::NoData, 0));

        let (mut answered, _sender) = followed(cache(1, None));
        let before = answered.as_mut().expect("followed").answer().remaining();
        answered.as_mut().expect("followed").before = before.map(|heard| Answer { address: "old".to_owned(), ..heard });
        assert_eq!(heard(&mut answered).0, "127.0.0.1:1", "the new cache has answered");
        FollowedCache::follow(&mut answered, Vec::new());
        assert!(answered.is_none(), "without a cache nothing of it counts");
    }

    #[tokio::test]
    async fn data_of_a_source_that_is_gone_count_while_another_has_expired_and_a_new_one_says_nothing() {
        let (first, _one) = source(10, cache(1, None));
        let (second, two) = source(20, cache(2, None));
        two.send_modify(|snapshot| snapshot.state = CacheState::Expired);
        let mut all = FollowedCache::of(vec![first, second]);
        assert_eq!(heard(&mut all), ("127.0.0.1:1".to_owned(), CacheState::Current, 1));
        let rest = [(20, cache(2, None)), (30, cache(3, None))];
        let rest = rest.map(|(preference, source)| PreferredSource { preference, source }).to_vec();
        FollowedCache::follow(&mut all, rest);
        assert_eq!(heard(&mut all), ("127.0.0.1:1".to_owned(), CacheState::Stale, 1));
        // A validator that has just started has nothing, and the other may have.
        two.send_modify(|snapshot| {
            snapshot.state = CacheState::Current;
            snapshot.validated = Arc::default();
        });
        assert_eq!(heard(&mut all), ("127.0.0.1:1".to_owned(), CacheState::Stale, 1));
        let (third, three) = source(30, cache(3, None));
        three.send_modify(|snapshot| snapshot.validated = Arc::default());
        all.as_mut().expect("followed").sources[1] = third;
        assert_eq!(heard(&mut all), ("127.0.0.1:2".to_owned(), CacheState::Current, 0), "all say that there are none");
    }

    /// OPS, sources: the preferred cache hangs, restarts, lies about its session, expires or says nothing: the next one counts alone, as
    /// long as that is so.
    #[tokio::test]
    async fn the_most_preferred_source_that_is_in_order_counts_and_no_other() {
        let (first, one) = source(10, cache(1, None));
        let (second, two) = source(20, cache(2, None));
        let (third, file) = source(30, DataSource::File("roas.json".into()));
        let [vrps, others] = [1, 2].map(|of| {
            let vrp = |at: u8| Vrp {
                prefix: format!("198.51.{at}.0/24").parse().expect("a prefix"),
                max_length: 24,
                asn: Asn(64_496),
            };
            Arc::new(RpkiData { vrps: (0..=of).map(vrp).collect(), ..RpkiData::default() })
        });
        file.send_modify(|snapshot| snapshot.updated = Some(unix_now().secs()));
        two.send_modify(|snapshot| snapshot.validated = Arc::clone(&vrps));
        one.send_modify(|snapshot| snapshot.validated = Arc::clone(&others));
        let mut all = FollowedCache::of(vec![first, second, third]);
        let is_of = |all: &mut Option<FollowedCache>, place: usize| {
            let answer = all.as_mut().expect("followed").answer();
            let data = [&others, &vrps][place.min(1)];
            let counting: Vec<u32> = answer.sources.iter().filter(|one| one.counts).map(|one| one.preference).collect();
            counting == [10 * (u32::try_from(place).expect("few") + 1)]
                && answer.address == ["127.0.0.1:1", "127.0.0.1:2", "roas.json"][place]
                && (place == 2 || Arc::ptr_eq(&answer.snapshot.validated, data))
        };
        let state = |of: &watch::Sender<Snapshot>, state| of.send_modify(|snapshot| snapshot.state = state);
        let set = |of: &watch::Sender<Snapshot>, data: &Arc<RpkiData>| {
            of.send_modify(|snapshot| snapshot.validated = Arc::clone(data));
        };
        let nothing = Arc::new(RpkiData::default());
        assert!(is_of(&mut all, 0));
        // Whatever keeps the first one from being in order, the second one counts, and the first one again once it is.
        for lost in [CacheState::Stale, CacheState::Expired, CacheState::Flushed, CacheState::NoData] {
            state(&one, lost);
            all.as_mut().expect("followed").changed().await;
            assert!(is_of(&mut all, 1), "{lost:?}");
            state(&one, CacheState::Current);
            assert!(is_of(&mut all, 0), "{lost:?}");
        }
        // A validator that has just started has nothing.
        set(&one, &nothing);
        assert!(is_of(&mut all, 1));
        // The second is lost, too: the file.
        state(&two, CacheState::Stale);
        assert!(is_of(&mut all, 2));
        // A file that is not written any more is none to rely on: the newest of what counted last stays.
        file.send_modify(|snapshot| snapshot.updated = Some(0));
        assert!(is_of(&mut all, 2));
        state(&two, CacheState::Current);
        assert!(is_of(&mut all, 1));
        // All are lost: what counted last, until it expires; then another that has data, then nothing.
        set(&one, &others);
        state(&one, CacheState::Stale);
        state(&two, CacheState::Stale);
        state(&file, CacheState::Expired);
        assert!(is_of(&mut all, 1));
        state(&two, CacheState::Expired);
        assert!(is_of(&mut all, 0));
        state(&one, CacheState::Expired);
        let answer = all.as_mut().expect("followed").answer();
        assert_eq!(answer.snapshot.state, CacheState::Expired);
        // The first one is back.
        state(&one, CacheState::Current);
        assert!(is_of(&mut all, 0));

        // A reload that takes the first away keeps the session with the second.
        let rest = [(20, cache(2, None)), (40, cache(4, None))];
        let rest = rest.map(|(preference, source)| PreferredSource { preference, source }).to_vec();
        state(&two, CacheState::Current);
        FollowedCache::follow(&mut all, rest);
        assert_eq!((one.receiver_count(), two.receiver_count()), (0, 1));
        let answer = all.as_mut().expect("followed").answer();
        assert!(answer.address == "127.0.0.1:2" && answer.sources.len() == 2 && !answer.is_replaced);
    }
}

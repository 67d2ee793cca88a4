//! The RTR cache, or the file of ROAs in its place, also over a change of either: data of the one before counts until the new one has
//! answered, and no longer than it would have; that of a file an hour.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tracing::error;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::rpki::DataSource;
use wayleave_runtime::rpki::rtr::{CacheState, Snapshot};

/// How long the data of a file, which have no end of their own, count once another source is configured that has not answered.
const REPLACED_FILE: Duration = Duration::from_secs(3_600);

/// A cache, or a file, in use.
pub(super) struct FollowedCache {
    cache: DataSource,
    /// Since when, in seconds since 1970.
    since: u64,
    snapshots: watch::Receiver<Snapshot>,
    task: JoinHandle<()>,
    /// The last answer of the cache before, until this one has answered.
    before: Option<Answer>,
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
}

impl Answer {
    /// What still counts of it once its source is no longer in use.
    fn remaining(self) -> Option<Self> {
        let has_data = matches!(self.snapshot.state, CacheState::Current | CacheState::Stale);
        let of_file = || (self.is_file && has_data).then(|| Instant::now() + REPLACED_FILE);
        let expires = self.snapshot.expires.or_else(of_file).filter(|expires| *expires > Instant::now())?;
        let snapshot = Snapshot { state: CacheState::Stale, expires: Some(expires), ..self.snapshot };
        Some(Self { is_replaced: true, snapshot, ..self })
    }
}

impl FollowedCache {
    pub(super) fn start(cache: Option<DataSource>) -> Option<Self> {
        let cache = cache?;
        let (snapshots, task) = cache.follow();
        Some(Self { cache, since: unix_now().secs(), snapshots, task, before: None })
    }

    /// Follows `configured` from now on, if it is another cache or has other TLS parameters.
    pub(super) fn follow(followed: &mut Option<Self>, configured: Option<DataSource>) {
        if followed.as_ref().map(|followed| &followed.cache) == configured.as_ref() {
            return;
        }
        let before = followed.as_mut().and_then(|followed| followed.answer().remaining());
        *followed = Self::start(configured);
        if let Some(followed) = followed {
            followed.before = before;
        }
    }

    /// What counts now; marks it as read.
    pub(super) fn answer(&mut self) -> Answer {
        let snapshot = self.snapshots.borrow_and_update().clone();
        if snapshot.state != CacheState::NoData {
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
        let is_file = matches!(self.cache, DataSource::File(_));
        let own = || Answer { address: self.cache.name(), is_file, is_replaced: false, since: self.since, snapshot };
        self.before.clone().unwrap_or_else(own)
    }

    /// Waits for the cache's first answer. Cancel safe.
    pub(super) async fn answered(&mut self) {
        let _ = self.snapshots.wait_for(|snapshot| snapshot.state != CacheState::NoData).await; // fails once it is not followed
    }

    /// Waits until something else counts. Cancel safe.
    pub(super) async fn changed(&mut self) {
        let expires = self.before.as_ref().and_then(|before| before.snapshot.expires);
        let expired = async {
            match expires {
                Some(expires) => sleep_until(expires).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = self.snapshots.changed() => {}
            () = expired => {}
        }
    }
}

impl Drop for FollowedCache {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    //! KCX-18: an RTR cache over TLS at a reload, wanted again or another: the same session, or what was known counts
    //! until the next cache answers or it expires.

    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
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
        (Some(FollowedCache { cache, since: 0, snapshots, task, before: None }), sender)
    }

    /// A cache that does not answer.
    fn cache(port: u16, name: Option<&str>) -> DataSource {
        let tls = name.map(|name| rtr::tls(name, AUTHORITY.as_bytes()).expect("an authority"));
        DataSource::Cache(rtr::Cache { address: format!("127.0.0.1:{port}"), tls, version: None })
    }

    fn heard(followed: &mut Option<FollowedCache>) -> (String, CacheState, usize) {
        let heard = followed.as_mut().expect("followed").answer();
        (heard.address, heard.snapshot.state, heard.snapshot.validated.vrps.len())
    }

    #[tokio::test]
    async fn a_session_over_tls_survives_a_reload_of_the_same_configuration() {
        let (mut followed, sender) = followed(cache(1, Some("cache.example")));
        FollowedCache::follow(&mut followed, Some(cache(1, Some("cache.example"))));
        assert_eq!(sender.receiver_count(), 1, "still the same session");
        assert_eq!(heard(&mut followed), ("127.0.0.1:1".to_owned(), CacheState::Current, 1));
        FollowedCache::follow(&mut followed, Some(cache(1, Some("other.example"))));
        assert_eq!(sender.receiver_count(), 0, "another name is demanded");
    }

    #[tokio::test]
    async fn data_of_a_cache_counts_until_the_next_cache_answers_or_it_expires() {
        let (mut old, _sender) = followed(cache(1, None));
        FollowedCache::follow(&mut old, Some(cache(2, None)));
        assert_eq!(heard(&mut old), ("127.0.0.1:1".to_owned(), CacheState::Stale, 1));
        // Also over a second change.
        FollowedCache::follow(&mut old, Some(cache(3, None)));
        assert_eq!(heard(&mut old), ("127.0.0.1:1".to_owned(), CacheState::Stale, 1));
        let waiting = old.as_mut().expect("followed");
        waiting.before.as_mut().expect("held").snapshot.expires = Some(Instant::now());
        waiting.changed().await;
        assert_eq!(heard(&mut old), ("127.0.0.1:3".to_owned(), CacheState::NoData, 0));

        // Of a file, which has no end of its own, for an hour.
        let (mut old, file) = followed(DataSource::File("roas.json".into()));
        file.send_modify(|snapshot| snapshot.expires = None);
        FollowedCache::follow(&mut old, Some(cache(2, None)));
        for port in [3, 4] {
            assert_eq!(heard(&mut old), ("roas.json".to_owned(), CacheState::Stale, 1));
            FollowedCache::follow(&mut old, Some(cache(port, None)));
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
        FollowedCache::follow(&mut unread, Some(cache(2, None)));
        assert_eq!(heard(&mut unread), ("127.0.0.1:2".to_owned(), CacheState::NoData, 0));

        let (mut answered, _sender) = followed(cache(1, None));
        let before = answered.as_mut().expect("followed").answer().remaining();
        answered.as_mut().expect("followed").before = before.map(|heard| Answer { address: "old".to_owned(), ..heard });
        assert_eq!(heard(&mut answered).0, "127.0.0.1:1", "the new cache has answered");
        FollowedCache::follow(&mut answered, None);
        assert!(answered.is_none(), "without a cache nothing of it counts");
    }
}

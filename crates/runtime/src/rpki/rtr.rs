//! An RTR client (RFC 8210): it follows one cache, over TCP or TLS, and publishes the cache's data.
//!
//! When the connection breaks, the data stay in force until the cache's expire interval has passed, and no longer
//! (section 6). Only a complete update is published.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rpki::rtr::client::{Client, PayloadError, PayloadTarget, PayloadUpdate};
use rpki::rtr::payload::{Action, Payload, Timing};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};
use wayleave_core::{Asn, Prefix};

use super::{RouterKey, RpkiData, Vrp};

/// How long opening a connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// How long an answer may take, from its first octet to its last.
const ANSWER: Duration = Duration::from_secs(120);
/// Pauses between attempts: doubled from the least to the most, or to the cache's own retry interval if that is less.
const RETRY_LEAST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(600);
/// Bounds of a cache's expire interval (RFC 8210 section 6): seconds.
const EXPIRE_LEAST: u32 = 600;
const EXPIRE_MOST: u32 = 172_800;
/// Items kept of one cache: our own limit, some eight times today's global total.
const MAX_ITEMS: usize = 4_000_000;
/// Router keys among them: many times those of every AS. Some 150 MB with the longest encodings; the prefixes some 200 MB.
const MAX_ROUTER_KEYS: usize = 200_000;
/// Octets of a public key's encoding, at most: enough for RSA-4096.
const MAX_KEY_LEN: usize = 600;

/// A cache to follow.
#[derive(Clone, PartialEq, Eq)]
pub struct Cache {
    /// Host and port.
    pub address: String,
    /// How its certificate is checked, if it is reached by TLS.
    pub tls: Option<Tls>,
}

/// The name that a cache's certificate must carry, and the authorities that may have issued it. Two with equal
/// requirements are equal.
#[derive(Clone)]
pub struct Tls {
    name: ServerName<'static>,
    authorities: Vec<CertificateDer<'static>>,
    config: Arc<ClientConfig>,
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        // The configuration follows from these.
        self.name == other.name && self.authorities == other.authorities
    }
}

impl Eq for Tls {}

/// State of a cache's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheState {
    /// No complete update has been received yet.
    NoData,
    /// Connected, and the last update is in force.
    Current,
    /// Not connected; the data have not expired.
    Stale,
    /// The data have expired and were dropped.
    Expired,
}

/// A cache's data at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Counts up with every change of the data.
    pub generation: u64,
    pub standing: CacheState,
    pub validated: Arc<RpkiData>,
    /// When the data expire without a further update; `None` if there are none.
    pub expires: Option<Instant>,
}

/// Requirements on a cache's certificate: it must carry `name`, and one of the authorities in `pem` (RFC 7468) must have
/// issued it.
pub fn tls(name: &str, pem: &[u8]) -> Result<Tls, String> {
    let name = ServerName::try_from(name.to_owned()).map_err(|error| format!("{name}: {error}"))?;
    let (mut roots, mut authorities) = (RootCertStore::empty(), Vec::new());
    for block in pem::parse_many(pem).map_err(|error| error.to_string())? {
        if block.tag() == "CERTIFICATE" {
            let authority = CertificateDer::from(block.into_contents());
            roots.add(authority.clone()).map_err(|error| error.to_string())?;
            authorities.push(authority);
        }
    }
    if roots.is_empty() {
        return Err("the file contains no certificate".to_owned());
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
    Ok(Tls { name, authorities, config })
}

/// Follows `cache` until the task is aborted; the receiver sees every change.
#[must_use]
pub fn follow(cache: Cache) -> (watch::Receiver<Snapshot>, JoinHandle<()>) {
    let first = Snapshot { generation: 0, standing: CacheState::NoData, validated: Arc::default(), expires: None };
    let (changes, receiver) = watch::channel(first);
    (receiver, tokio::spawn(run(cache, changes)))
}

async fn run(cache: Cache, changes: watch::Sender<Snapshot>) {
    let mut table = CacheTable { changes, expires: None, timing: Timing::default(), updates: 0 };
    let mut serial = None;
    let mut pause = RETRY_LEAST;
    loop {
        let updates = table.updates;
        // Expired data cannot be the base of an incremental update.
        serial = serial.filter(|_| table.expires.is_some());
        let error = match timeout(CONNECT, connect(&cache)).await {
            Ok(Ok(socket)) => {
                let mut client = Client::new(socket, table, serial);
                let error = converse(&mut client).await;
                serial = client.state().filter(|_| has_broken_off(&error));
                table = client.into_target();
                error
            }
            Ok(Err(error)) => error,
            Err(_) => io::Error::from(io::ErrorKind::TimedOut),
        };
        warn!(cache = cache.address, %error, "RTR cache not connected; its data stay in force until they expire, trying again");
        table.disconnected();
        pause = if table.updates > updates { RETRY_LEAST } else { (pause * 2).min(RETRY_MOST) };
        let wait = pause.min(Duration::from_secs(u64::from(table.timing.retry.max(1))));
        table.wait(wait).await;
    }
}

/// Whether the next connection may continue this session; after a protocol error it starts from the beginning.
fn has_broken_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof)
}

async fn connect(cache: &Cache) -> io::Result<Box<dyn Socket>> {
    let tcp = TcpStream::connect(&cache.address).await?;
    tcp.set_nodelay(true)?;
    match &cache.tls {
        None => Ok(Box::new(tcp)),
        Some(Tls { name, config, .. }) => {
            Ok(Box::new(TlsConnector::from(Arc::clone(config)).connect(name.clone(), tcp).await?))
        }
    }
}

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// Receives updates until something fails; returns the error.
async fn converse(client: &mut Client<Box<dyn Socket>, CacheTable>) -> io::Error {
    loop {
        // The client waits for the refresh interval or a notification first.
        let refresh = if client.target().updates == 0 { 0 } else { client.target().timing.refresh };
        let most = Duration::from_secs(u64::from(refresh)) + ANSWER;
        let expires = client.target().expires.unwrap_or_else(|| Instant::now() + most);
        let deadline = expires.min(Instant::now() + most);
        match timeout_at(deadline, client.step()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error,
            Err(_) => return io::Error::from(io::ErrorKind::TimedOut),
        }
    }
}

/// The data of a cache and their expiry.
struct CacheTable {
    changes: watch::Sender<Snapshot>,
    expires: Option<Instant>,
    timing: Timing,
    updates: u64,
}

impl CacheTable {
    fn publish(&self, standing: CacheState, validated: Option<RpkiData>) {
        self.changes.send_if_modified(|snapshot| {
            let is_new = validated.is_some_and(|validated| {
                let is_new = *snapshot.validated != validated;
                if is_new {
                    snapshot.validated = Arc::new(validated);
                    snapshot.generation += 1;
                }
                is_new
            });
            let has_changed = snapshot.standing != standing;
            snapshot.standing = standing;
            snapshot.expires = self.expires;
            is_new || has_changed
        });
    }

    fn disconnected(&mut self) {
        match self.expires {
            Some(expires) if expires <= Instant::now() => self.expire(),
            Some(_) => self.publish(CacheState::Stale, None),
            None => {}
        }
    }

    fn expire(&mut self) {
        self.expires = None;
        self.publish(CacheState::Expired, Some(RpkiData::default()));
    }

    /// Waits for `pause`; the data may expire meanwhile.
    async fn wait(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        if let Some(expires) = self.expires.filter(|expires| *expires <= until) {
            tokio::time::sleep_until(expires).await;
            self.expire();
        }
        sleep(until.saturating_duration_since(Instant::now())).await;
    }
}

impl PayloadTarget for CacheTable {
    type Update = PendingUpdate;

    fn start(&mut self, reset: bool) -> PendingUpdate {
        let validated = if reset { RpkiData::default() } else { (*self.changes.borrow().validated).clone() };
        PendingUpdate { validated, ignored: 0 }
    }

    fn apply(&mut self, update: PendingUpdate, timing: Timing) -> Result<(), PayloadError> {
        let (vrps, router_keys) = (update.validated.vrps.len(), update.validated.router_keys.len());
        self.timing = timing;
        self.updates += 1;
        let expire = timing.expire.clamp(EXPIRE_LEAST, EXPIRE_MOST);
        self.expires = Some(Instant::now() + Duration::from_secs(u64::from(expire)));
        self.publish(CacheState::Current, Some(update.validated));
        info!(vrps, router_keys, ignored = update.ignored, "update from the RTR cache in force");
        Ok(())
    }
}

/// An update that is being received.
struct PendingUpdate {
    validated: RpkiData,
    /// Items of kinds that are not used.
    ignored: usize,
}

impl PayloadUpdate for PendingUpdate {
    fn push_update(&mut self, action: Action, payload: Payload) -> Result<(), PayloadError> {
        let changed = match payload {
            Payload::Origin(origin) => {
                let prefix = Prefix::new(origin.prefix.addr(), origin.prefix.prefix_len());
                let prefix = prefix.map_err(|_| PayloadError::Corrupt)?;
                let asn = Asn(origin.asn.into_u32());
                let vrp = Vrp { prefix, max_length: origin.prefix.resolved_max_len(), asn };
                change(&mut self.validated.vrps, action, vrp)
            }
            Payload::RouterKey(key) => {
                let info = key.key_info.as_slice();
                if info.len() > MAX_KEY_LEN {
                    return Err(PayloadError::Corrupt);
                }
                let ski = key.key_identifier.as_slice().try_into().map_err(|_| PayloadError::Corrupt)?;
                let key = RouterKey { asn: Asn(key.asn.into_u32()), ski, info: info.to_vec() };
                change(&mut self.validated.router_keys, action, key)
            }
            Payload::Aspa(_) => {
                self.ignored += 1;
                true
            }
        };
        let (vrps, router_keys) = (self.validated.vrps.len(), self.validated.router_keys.len());
        if vrps + router_keys > MAX_ITEMS || router_keys > MAX_ROUTER_KEYS {
            warn!(vrps, router_keys, "the RTR cache sends more than is kept; its last complete data stay in force");
            return Err(PayloadError::Internal);
        }
        match (changed, action) {
            (true, _) => Ok(()),
            (false, Action::Announce) => Err(PayloadError::DuplicateAnnounce),
            (false, Action::Withdraw) => Err(PayloadError::UnknownWithdraw),
        }
    }
}

/// Whether the set changed.
fn change<T: Ord>(set: &mut std::collections::BTreeSet<T>, action: Action, item: T) -> bool {
    match action {
        Action::Announce => set.insert(item),
        Action::Withdraw => set.remove(&item),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn data_expire_when_the_cache_stays_away() {
        let first = Snapshot { generation: 0, standing: CacheState::NoData, validated: Arc::default(), expires: None };
        let (changes, receiver) = watch::channel(first);
        let mut table = CacheTable { changes, expires: None, timing: Timing::default(), updates: 0 };
        let mut update = table.start(true);
        let key = RouterKey { asn: Asn(64_496), ski: [1; 20], info: vec![1] };
        update.validated.router_keys.insert(key);
        table.apply(update, Timing { refresh: 60, retry: 60, expire: 900 }).expect("taken");
        table.disconnected();
        table.wait(Duration::from_secs(899)).await;
        let held = receiver.borrow().clone();
        assert_eq!((held.standing, held.validated.router_keys.len()), (CacheState::Stale, 1));
        table.wait(Duration::from_secs(2)).await;
        let gone = receiver.borrow().clone();
        assert_eq!((gone.standing, gone.validated.router_keys.len()), (CacheState::Expired, 0));
        assert!(gone.generation > held.generation);
    }

    fn router_key(number: u32, octets: usize) -> Payload {
        let mut info = vec![0; octets];
        info[..4].copy_from_slice(&number.to_be_bytes());
        let info = rpki::rtr::pdu::RouterKeyInfo::new(info.into()).expect("short");
        let asn = rpki::resources::Asn::from_u32(64_496);
        Payload::RouterKey(rpki::rtr::payload::RouterKey::new([7; 20].into(), asn, info))
    }

    #[test]
    fn a_cache_with_endless_router_keys_is_refused_at_the_limit() {
        let mut update = PendingUpdate { validated: RpkiData::default(), ignored: 0 };
        let mut push = |number, octets| update.push_update(Action::Announce, router_key(number, octets)).is_ok();
        assert!(!push(0, MAX_KEY_LEN + 1));
        for number in 0..MAX_ROUTER_KEYS as u32 {
            assert!(push(number, 4), "key {number}");
        }
        assert!(!push(u32::MAX, 4), "one too many");
    }
}

//! An RTR client (RFC 8210): it follows one cache, over TCP or TLS, and publishes the cache's data.
//!
//! When the connection breaks, the data stay in force until the cache's expire interval has passed, and no longer
//! (section 6). Only a complete update is published.

mod session;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rpki::rtr::client::{PayloadError, PayloadUpdate};
use rpki::rtr::payload::{Action, Payload, Timing};
use rustix::net::sockopt;
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

use self::session::{Base, Session, SessionError};
use super::{RouterKey, RpkiData, Vrp};
use crate::clock::unix_now;

/// Protocol versions of RTR: RFC 6810, RFC 8210, and its successor (draft-ietf-sidrops-8210bis), which has ASPA records.
pub const OLDEST_VERSION: u8 = 0;
pub const NEWEST_VERSION: u8 = 2;

/// How long opening a connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// How long an answer may take, from its first octet to its last.
const ANSWER: Duration = Duration::from_secs(120);
/// How long the first PDU of an answer may take.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// Connections that a cache closes without an answer, after which the version before is tried: it may not know the newer one
/// and not say so, as RFC 8210 section 7 has it say.
const SILENT_CLOSES: u32 = 2;
/// The oldest version that is tried without the cache's asking for it: version 0 has no router keys.
const OLDEST_GUESS: u8 = 1;
/// Pauses between attempts: doubled from the least to the most, or to the cache's own retry interval if that is less.
const RETRY_LEAST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(600);
/// Bounds of a cache's expire interval (RFC 8210 section 6): seconds.
const EXPIRE_LEAST: u32 = 600;
const EXPIRE_MOST: u32 = 172_800;
/// Bounds of its refresh interval.
const REFRESH_LEAST: u32 = 1;
const REFRESH_MOST: u32 = 86_400;
/// Items kept of one cache: our own limit, some eight times today's global total.
pub(super) const MAX_ITEMS: usize = 4_000_000;
/// Router keys among them: many times those of every AS. Some 150 MB with the longest encodings; the prefixes some 200 MB.
const MAX_ROUTER_KEYS: usize = 200_000;
/// Pairs of a customer and a provider among them, of all ASPA records together: some ten for each AS of today. Some 30 MB.
pub(super) const MAX_PROVIDERS: usize = 1_000_000;
/// After how long a silent connection is probed, how often, and how many probes without an answer end it: a cache's machine that is gone
/// is noticed within two minutes, and not when the next refresh is due (RFC 8210 section 9 leaves it to the transport).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
/// Octets of a public key's encoding, at most: enough for RSA-4096.
const MAX_KEY_LEN: usize = 600;

/// A cache to follow.
#[derive(Clone, PartialEq, Eq)]
pub struct Cache {
    /// Host and port.
    pub address: String,
    /// How its certificate is checked, if it is reached by TLS.
    pub tls: Option<Tls>,
    /// The version of the first query, from [`OLDEST_VERSION`] to [`NEWEST_VERSION`]; without it the newest, and older ones if
    /// the cache does not answer. The cache may ask for an older one in any case.
    pub version: Option<u8>,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheState {
    /// No complete update has been received yet.
    #[default]
    NoData,
    /// Connected, and the last update is in force.
    Current,
    /// Not connected; the data have not expired.
    Stale,
    /// The data have expired and were dropped.
    Expired,
    /// The data were dropped, since what the cache sent belonged to another session (RFC 8210 section 5.1).
    Flushed,
}

/// A cache's data at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counts up with every change of the data.
    pub generation: u64,
    pub state: CacheState,
    pub validated: Arc<RpkiData>,
    /// When the data expire without a further update; `None` if there are none.
    pub expires: Option<Instant>,
    /// Why the cache is not connected, while it is not.
    pub problem: Option<Arc<str>>,
    /// The cache's serial number of the last update.
    pub serial: Option<u32>,
    /// When the last update came, or the file was last written, in seconds since 1970.
    pub updated: Option<u64>,
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
    let (changes, receiver) = watch::channel(Snapshot::default());
    let versions = Versions::new(cache.version);
    let table = CacheTable { changes, expires: None, timing: Timing::default(), updates: 0 };
    (receiver, tokio::spawn(Following { cache, table, versions, base: None }.run()))
}

/// What a cache's answer to a first query of `version` says, as [`follow`] would take it: for tests and fuzzing. The octets must be all that
/// there is to read.
///
/// # Errors
/// Why it is refused.
pub async fn read_answer(octets: &[u8], version: u8) -> Result<RpkiData, String> {
    let mut session = Session::new(tokio::io::join(octets, tokio::io::sink()), version.min(NEWEST_VERSION));
    let start = |_| PendingUpdate { validated: RpkiData::default(), ignored: 0 };
    let read = session.update(None, start).await;
    read.map(|(update, ..)| update.validated).map_err(|error| error.to_string())
}

/// The version to ask for.
#[derive(Debug)]
struct Versions {
    /// The first one, and the only one that is asked for without the cache's doing if it was configured.
    first: u8,
    is_configured: bool,
    next: u8,
    /// Connections that ended without an answer to `next`, one after the other.
    silent: u32,
}

impl Versions {
    fn new(configured: Option<u8>) -> Self {
        let first = configured.unwrap_or(NEWEST_VERSION).min(NEWEST_VERSION);
        Self { first, is_configured: configured.is_some(), next: first, silent: 0 }
    }

    /// An answer has come: what it is of stays for as long as its data are the base of updates.
    fn answered(&mut self) {
        self.silent = 0;
    }

    /// Draws the consequence of a failed connection. Returns whether the next version should be tried at once.
    fn failed(&mut self, error: &SessionError) -> bool {
        match *error {
            // A cache at fault repeats the version of the query; the one before it is meant then.
            SessionError::Version { requested, offered } if requested > OLDEST_VERSION => {
                self.next = offered.min(requested - 1);
                self.silent = 0;
                true
            }
            SessionError::NoAnswer(_) => {
                self.silent += 1;
                let is_due = self.silent >= SILENT_CLOSES && !self.is_configured;
                if is_due {
                    self.silent = 0;
                    self.next = if self.next > OLDEST_GUESS { self.next - 1 } else { self.first };
                }
                is_due && self.next < self.first
            }
            _ => false,
        }
    }

    /// The data are gone or begin anew: so does the choice.
    fn begin_anew(&mut self) {
        self.next = self.first;
    }
}

struct Following {
    cache: Cache,
    table: CacheTable,
    versions: Versions,
    base: Option<Base>,
}

impl Following {
    async fn run(mut self) {
        let mut pause = RETRY_LEAST;
        loop {
            let updates = self.table.updates;
            // Expired data cannot be the base of an incremental update.
            let had_base = self.base.is_some();
            self.base = self.base.filter(|_| self.table.expires.is_some());
            match self.base {
                Some(base) => self.versions.next = base.version,
                None if had_base => self.versions.begin_anew(),
                None => {}
            }
            let requested = self.versions.next;
            let error = self.connection().await;
            let at_once = self.versions.failed(&error);
            if !error.keeps_base() {
                self.base = None;
            }
            if error.flushes() {
                self.table.flush();
            }
            self.report(&error, requested);
            self.table.disconnected(&error);
            if at_once {
                continue;
            }
            pause = if self.table.updates > updates { RETRY_LEAST } else { (pause * 2).min(RETRY_MOST) };
            let wait = pause.min(Duration::from_secs(u64::from(self.table.timing.retry.max(1))));
            self.table.wait(wait).await;
        }
    }

    /// One connection, until something fails; returns the error.
    async fn connection(&mut self) -> SessionError {
        let socket = match timeout(CONNECT, connect(&self.cache)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return error.into(),
            Err(_) => return io::Error::from(io::ErrorKind::TimedOut).into(),
        };
        let mut session = Session::new(socket, self.versions.next);
        let error = self.converse(&mut session).await;
        session.end(&error).await;
        error
    }

    /// Receives updates until something fails; returns the error.
    async fn converse(&mut self, session: &mut Session<Box<dyn Socket>>) -> SessionError {
        loop {
            // Data that expire meanwhile end the connection.
            let deadline = Instant::now() + ANSWER;
            let deadline = self.table.expires.map_or(deadline, |expires| expires.min(deadline));
            let table = &self.table;
            match timeout_at(deadline, session.update(self.base, |reset| table.start(reset))).await {
                Ok(Ok((update, base, timing))) => {
                    self.table.apply(update, timing, base.serial());
                    self.base = Some(base);
                    self.versions.answered();
                }
                Ok(Err(error)) => return error,
                Err(_) => return SessionError::TimedOut,
            }
            let Some(base) = self.base else { continue };
            let due = Instant::now() + self.table.refresh();
            let due = self.table.expires.map_or(due, |expires| expires.min(due));
            if let Err(error) = session.wait(base, due).await {
                return error;
            }
        }
    }

    /// Logs why there is no connection, what counts meanwhile, and what to do.
    fn report(&self, error: &SessionError, requested: u8) {
        let counts = match (self.table.expires, error.flushes()) {
            (_, true) => "its data were dropped, and are read anew",
            (Some(_), _) => "its data stay in force until they expire",
            (None, _) => "nothing of it is in force",
        };
        let next = match error {
            _ if self.versions.next != requested => format!("version {} is tried", self.versions.next),
            SessionError::NoAnswer(_) => {
                "see whether it serves this address, and set the `version` that it knows in [rpki]".to_owned()
            }
            _ => "it is tried again".to_owned(),
        };
        let cache = &self.cache.address;
        warn!(cache, %error, "RTR cache {cache} not connected: {error}; {counts}; {next}");
    }
}

async fn connect(cache: &Cache) -> io::Result<Box<dyn Socket>> {
    let tcp = TcpStream::connect(&cache.address).await?;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&tcp, true)?;
    sockopt::set_tcp_keepidle(&tcp, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&tcp, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&tcp, KEEPALIVE_PROBES)?;
    match &cache.tls {
        None => Ok(Box::new(tcp)),
        Some(Tls { name, config, .. }) => {
            Ok(Box::new(TlsConnector::from(Arc::clone(config)).connect(name.clone(), tcp).await?))
        }
    }
}

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// The data of a cache and their expiry.
struct CacheTable {
    changes: watch::Sender<Snapshot>,
    expires: Option<Instant>,
    timing: Timing,
    updates: u64,
}

impl CacheTable {
    fn publish(&self, state: CacheState, validated: Option<RpkiData>) {
        self.changes.send_if_modified(|snapshot| {
            let is_new = validated.is_some_and(|validated| {
                let is_new = *snapshot.validated != validated;
                if is_new {
                    snapshot.validated = Arc::new(validated);
                    snapshot.generation += 1;
                }
                is_new
            });
            let has_changed = snapshot.state != state;
            snapshot.state = state;
            snapshot.expires = self.expires;
            if state == CacheState::Current {
                snapshot.problem = None;
            }
            is_new || has_changed
        });
    }

    fn disconnected(&mut self, error: &SessionError) {
        let problem: Arc<str> = error.to_string().into();
        self.changes.send_if_modified(|snapshot| snapshot.problem.replace(Arc::clone(&problem)) != Some(problem));
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

    /// Drops all data, which may be of two sessions.
    fn flush(&mut self) {
        self.expires = None;
        self.publish(CacheState::Flushed, Some(RpkiData::default()));
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

impl CacheTable {
    /// An update that begins with nothing (`reset`), or with what is in force.
    fn start(&self, reset: bool) -> PendingUpdate {
        let validated = if reset { RpkiData::default() } else { (*self.changes.borrow().validated).clone() };
        PendingUpdate { validated, ignored: 0 }
    }

    /// How long data count without an update (RFC 8210 section 6).
    fn expire_interval(&self) -> Duration {
        Duration::from_secs(self.timing.expire.clamp(EXPIRE_LEAST, EXPIRE_MOST).into())
    }

    /// When to ask again after an update; at half of the time in which the data expire, if the cache says a longer one: RFC 8210 section 6
    /// has them expire later than that.
    fn refresh(&self) -> Duration {
        let refresh = self.timing.refresh.clamp(REFRESH_LEAST, REFRESH_MOST);
        Duration::from_secs(refresh.into()).min(self.expire_interval() / 2)
    }

    /// Version 0 has no intervals: those of before stay.
    fn apply(&mut self, update: PendingUpdate, timing: Option<Timing>, serial: u32) {
        let (vrps, router_keys) = (update.validated.vrps.len(), update.validated.router_keys.len());
        let providers = update.validated.aspas.len();
        self.timing = timing.unwrap_or(self.timing);
        self.updates += 1;
        self.expires = Some(Instant::now() + self.expire_interval());
        self.publish(CacheState::Current, Some(update.validated));
        // Also if nothing else changed.
        self.changes.send_modify(|snapshot| {
            (snapshot.serial, snapshot.updated) = (Some(serial), Some(unix_now().secs()));
        });
        info!(vrps, router_keys, providers, ignored = update.ignored, "update received from the RTR cache");
    }
}

/// An update that is being received.
struct PendingUpdate {
    validated: RpkiData,
    /// Items of kinds that are not used.
    ignored: usize,
}

impl PendingUpdate {
    /// The ASPA record of a customer, which replaces the one before; without providers it is withdrawn
    /// (draft-ietf-sidrops-8210bis, ASPA PDU).
    fn aspa(&mut self, action: Action, customer: Asn, providers: &[Asn]) -> Result<(), PayloadError> {
        let aspas = &mut self.validated.aspas;
        let known: Vec<(Asn, Asn)> = aspas.range((customer, Asn(0))..=(customer, Asn(u32::MAX))).copied().collect();
        for pair in &known {
            aspas.remove(pair);
        }
        match action {
            Action::Withdraw if known.is_empty() => return Err(PayloadError::UnknownWithdraw),
            Action::Withdraw => {}
            Action::Announce if providers.is_empty() => return Err(PayloadError::Corrupt),
            Action::Announce => aspas.extend(providers.iter().map(|provider| (customer, *provider))),
        }
        let providers = aspas.len();
        if providers > MAX_PROVIDERS {
            warn!(
                providers,
                "the RTR cache sends more ASPA records than are kept; its last complete data stay in force"
            );
            return Err(PayloadError::Internal);
        }
        Ok(())
    }
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
            Payload::Aspa(_) => true, // decoded apart: `PendingUpdate::aspa`
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
    //! KCX-31: a cache with endless router keys: refused at the limit.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn data_expire_when_the_cache_stays_away() {
        let (changes, receiver) = watch::channel(Snapshot::default());
        let mut table = CacheTable { changes, expires: None, timing: Timing::default(), updates: 0 };
        let mut update = table.start(true);
        let key = RouterKey { asn: Asn(64_496), ski: [1; 20], info: vec![1] };
        update.validated.router_keys.insert(key);
        table.apply(update, Some(Timing { refresh: 60, retry: 60, expire: 900 }), 7);
        table.disconnected(&SessionError::TimedOut);
        table.wait(Duration::from_secs(899)).await;
        let held = receiver.borrow().clone();
        assert_eq!((held.state, held.validated.router_keys.len()), (CacheState::Stale, 1));
        assert!(held.serial == Some(7) && held.updated.is_some());
        table.wait(Duration::from_secs(2)).await;
        let gone = receiver.borrow().clone();
        assert_eq!((gone.state, gone.validated.router_keys.len()), (CacheState::Expired, 0));
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
    fn a_record_of_a_customer_replaces_the_one_before_and_endless_ones_are_refused() {
        let mut update = PendingUpdate { validated: RpkiData::default(), ignored: 0 };
        let of = |customer, providers: &[u32]| (Asn(customer), providers.iter().copied().map(Asn).collect::<Vec<_>>());
        let mut push = |action, (customer, providers): (Asn, Vec<Asn>)| {
            let done = update.aspa(action, customer, &providers);
            (done.is_ok(), update.validated.aspas.iter().map(|(of, at)| (of.0, at.0)).collect::<Vec<_>>())
        };
        assert_eq!(push(Action::Announce, of(10, &[30, 20, 20])), (true, vec![(10, 20), (10, 30)]));
        assert_eq!(push(Action::Announce, of(11, &[0])), (true, vec![(10, 20), (10, 30), (11, 0)]));
        assert_eq!(push(Action::Announce, of(10, &[40])), (true, vec![(10, 40), (11, 0)]));
        assert_eq!(push(Action::Withdraw, of(10, &[])), (true, vec![(11, 0)]));
        assert!(!push(Action::Withdraw, of(10, &[])).0, "it is not there");
        assert!(!push(Action::Announce, of(12, &[])).0, "a record names a provider, or AS 0");
        let (_, many) = of(1, &(0..16_000).collect::<Vec<_>>());
        let mut update = PendingUpdate { validated: RpkiData::default(), ignored: 0 };
        let taken = (0..).take_while(|at| update.aspa(Action::Announce, Asn(*at), &many).is_ok()).count();
        assert_eq!(taken, MAX_PROVIDERS / 16_000);
    }

    #[test]
    fn intervals_are_bounded_and_data_are_asked_for_before_they_expire() {
        let (changes, _receiver) = watch::channel(Snapshot::default());
        let mut table = CacheTable { changes, expires: None, timing: Timing::default(), updates: 0 };
        for (refresh, expire, expected) in [
            (3_600, 7_200, (3_600, 7_200)),
            (0, 0, (1, 600)),
            (u32::MAX, u32::MAX, (86_400, 172_800)),
            (86_400, 900, (450, 900)),
        ] {
            table.timing = Timing { refresh, expire, ..Timing::default() };
            assert_eq!((table.refresh().as_secs(), table.expire_interval().as_secs()), expected, "{refresh} {expire}");
        }
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

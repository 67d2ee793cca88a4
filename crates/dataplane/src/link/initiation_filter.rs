//! What is looked at before anything is computed for who begins a session: the MAC under our public key, which strangers do not have,
//! and under load a cookie, which shows that the sender receives at the address from which it sends.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use subtle::ConstantTimeEq;
use wayleave_core::Instant;
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::kdf;
use wayleave_crypto::seal;
use wayleave_crypto::secret::{Key128, Secret};

use super::message::{MAC, NONCE, cookie};
use super::{At, Core};
use crate::limit::TokenBucket;

/// A cookie counts for this long, and as long again.
pub const COOKIE_LIFE: Duration = Duration::from_secs(120);
/// Initiations a second, and at once, that need no cookie.
const RATE_ALONE: u32 = 50;
pub const BURST_ALONE: u32 = 50;
/// Initiations a second, and at once, with a cookie: of all, and of one address (a /64 of IPv6).
const WITH_COOKIE: (u32, u32) = (1_000, 200);
const OF_ONE: (u32, u32) = (20, 40);
/// And of one network of IPv6, a /48.
const OF_NETWORK: (u32, u32) = (100, 200);
/// Initiations a second, and at once, from where neighbours are or say that they are: others cannot use these up.
const KNOWN: (u32, u32) = (100, 100);
/// Addresses and networks that are told apart; beyond, any one gives way.
const LIMIT_ADDRESSES: usize = 4_096;

/// The MAC of an initiation under the public key of who is to answer it.
pub(super) fn mac(to: &DhPublic, proven: &[u8]) -> [u8; MAC] {
    *kdf::derive::<MAC>("wayleave/link/mac/v1", &to.to_bytes(), proven).expose()
}

/// The MAC under a cookie, over all in front of it.
pub(super) fn cookie_mac(cookie: &[u8; MAC], proven: &[u8], mac: &[u8; MAC]) -> [u8; MAC] {
    *kdf::derive::<MAC>("wayleave/link/cookie-mac/v1", cookie, &[proven, mac].concat()).expose()
}

fn cookie_key(from: &DhPublic, nonce: &[u8; NONCE]) -> Key128 {
    kdf::derive("wayleave/link/cookie-key/v1", &from.to_bytes(), nonce)
}

const COOKIE_LABEL: &str = "wayleave/link/cookie-seal/v1";

/// Opens a cookie of the member with the static key `from`, for an initiation with this MAC.
pub(super) fn open_cookie(from: &DhPublic, mac: &[u8; MAC], nonce: &[u8; NONCE], sealed: &[u8]) -> Option<[u8; MAC]> {
    seal::open(COOKIE_LABEL, &cookie_key(from, nonce), mac, sealed).ok()?.try_into().ok()
}

pub(super) struct InitiationFilter {
    public: DhPublic,
    /// What cookies are made with now, and what they were made with before.
    secrets: [Secret<32>; 2],
    since: Option<Instant>,
    alone: TokenBucket,
    known: TokenBucket,
    with_cookie: TokenBucket,
    of_one: HashMap<(u8, IpAddr), TokenBucket>,
}

/// The parts of an initiation that the filter looks at: what the first MAC covers, and both MACs.
pub(super) type Proof<'a> = (&'a [u8], &'a [u8; MAC], &'a [u8; MAC]);

impl InitiationFilter {
    pub(super) fn new(public: &DhPublic, secret: Secret<32>) -> Self {
        Self {
            public: *public,
            secrets: [secret.clone(), secret],
            since: None,
            alone: TokenBucket::new(RATE_ALONE, BURST_ALONE),
            known: TokenBucket::new(KNOWN.0, KNOWN.1),
            with_cookie: TokenBucket::new(WITH_COOKIE.0, WITH_COOKIE.1),
            of_one: HashMap::new(),
        }
    }

    /// Whether an initiation is to be looked into; asks for a cookie if one is needed.
    pub(super) fn admits(&mut self, core: &mut Core, from: At, index: u32, proof: Proof<'_>, now: Instant) -> bool {
        let (proven, first, _) = proof;
        if !bool::from(mac(&self.public, proven).ct_eq(first)) {
            core.counters.strangers += 1;
            return false;
        }
        let is_known = core.by_address.contains_key(&from) || core.endpoints.contains(&from);
        if is_known && self.known.take(now) || self.alone.take(now) {
            return true;
        }
        if !self.has_cookie(core, from, proof, now) {
            self.ask_cookie(core, from, index, first);
            return false;
        }
        let is_admitted = self.with_cookie.ready(now)
            && self.has_room((64, network(from.1.ip(), 64)), OF_ONE, now)
            && self.has_room((48, network(from.1.ip(), 48)), OF_NETWORK, now)
            && self.with_cookie.take(now);
        core.counters.busy += u64::from(!is_admitted);
        is_admitted
    }

    /// Whether an initiation has a cookie of its address that counts still.
    pub(super) fn has_cookie(
        &mut self,
        core: &mut Core,
        from: At,
        (proven, first, second): Proof<'_>,
        now: Instant,
    ) -> bool {
        self.turn(core, now);
        let is_right =
            |secret: &Secret<32>| -> bool { cookie_mac(&made(secret, from.1), proven, first).ct_eq(second).into() };
        self.secrets.iter().any(is_right)
    }

    pub(super) fn ask_cookie(&mut self, core: &mut Core, from: At, index: u32, first: &[u8; MAC]) {
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&core.random.secret().expose()[..NONCE]);
        let sealed =
            seal::seal(COOKIE_LABEL, &cookie_key(&self.public, &nonce), first, &made(&self.secrets[0], from.1));
        core.counters.cookies += 1;
        core.send(from, cookie(index, &nonce, &sealed));
    }

    fn has_room(&mut self, one: (u8, IpAddr), (rate, burst): (u32, u32), now: Instant) -> bool {
        if self.of_one.len() >= LIMIT_ADDRESSES
            && !self.of_one.contains_key(&one)
            && let Some(any) = self.of_one.keys().next().copied()
        {
            self.of_one.remove(&any);
        }
        self.of_one.entry(one).or_insert_with(|| TokenBucket::new(rate, burst)).take(now)
    }

    /// Takes another secret once the present one is as old as a cookie may be; none of before if that was long ago.
    fn turn(&mut self, core: &mut Core, now: Instant) {
        let age = now.since(*self.since.get_or_insert(now));
        if age >= COOKIE_LIFE {
            self.secrets[1] = std::mem::replace(&mut self.secrets[0], core.random.secret());
            if age >= 2 * COOKIE_LIFE {
                self.secrets[1] = core.random.secret();
            }
            self.since = Some(now);
        }
    }
}

/// The cookie of an address with its port: another port of the same host is another sender behind a NAT.
fn made(secret: &Secret<32>, from: SocketAddr) -> [u8; MAC] {
    *kdf::derive::<MAC>("wayleave/link/cookie/v1", secret.expose(), from.to_string().as_bytes()).expose()
}

fn network(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & (u128::MAX << (128 - bits))).into()),
    }
}

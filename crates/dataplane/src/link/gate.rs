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
/// Addresses that are told apart; beyond, all begin anew.
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

pub(super) struct Gate {
    public: DhPublic,
    /// What cookies are made with now, and what they were made with before.
    secrets: [Secret<32>; 2],
    since: Option<Instant>,
    alone: TokenBucket,
    with_cookie: TokenBucket,
    of_one: HashMap<IpAddr, TokenBucket>,
}

impl Gate {
    pub(super) fn new(public: &DhPublic, secret: Secret<32>) -> Self {
        Self {
            public: *public,
            secrets: [secret.clone(), secret],
            since: None,
            alone: TokenBucket::new(RATE_ALONE, BURST_ALONE),
            with_cookie: TokenBucket::new(WITH_COOKIE.0, WITH_COOKIE.1),
            of_one: HashMap::new(),
        }
    }

    /// Whether an initiation is to be answered; asks for a cookie if one is needed.
    pub(super) fn admits(
        &mut self,
        core: &mut Core,
        from: At,
        index: u32,
        (proven, first, second): (&[u8], &[u8; MAC], &[u8; MAC]),
        now: Instant,
    ) -> bool {
        if !bool::from(mac(&self.public, proven).ct_eq(first)) {
            core.counters.strangers += 1;
            return false;
        }
        if self.alone.take(now) {
            return true;
        }
        self.turn(core, now);
        let has_cookie =
            |secret: &Secret<32>| -> bool { cookie_mac(&made(secret, from.1), proven, first).ct_eq(second).into() };
        if !self.secrets.iter().any(has_cookie) {
            let mut nonce = [0; NONCE];
            nonce.copy_from_slice(&core.random.secret().expose()[..NONCE]);
            let sealed =
                seal::seal(COOKIE_LABEL, &cookie_key(&self.public, &nonce), first, &made(&self.secrets[0], from.1));
            core.counters.cookies += 1;
            core.send(from, cookie(index, &nonce, &sealed));
            return false;
        }
        if self.of_one.len() >= LIMIT_ADDRESSES {
            self.of_one.clear();
        }
        let one = self.of_one.entry(network(from.1.ip())).or_insert_with(|| TokenBucket::new(OF_ONE.0, OF_ONE.1));
        let is_admitted = one.take(now) && self.with_cookie.take(now);
        core.counters.busy += u64::from(!is_admitted);
        is_admitted
    }

    /// Takes another secret once the present one is as old as a cookie may be.
    fn turn(&mut self, core: &mut Core, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= COOKIE_LIFE {
            self.secrets[1] = std::mem::replace(&mut self.secrets[0], core.random.secret());
            self.since = Some(now);
        }
    }
}

/// The cookie of an address with its port: another port of the same host is another sender behind a NAT.
fn made(secret: &Secret<32>, from: SocketAddr) -> [u8; MAC] {
    *kdf::derive::<MAC>("wayleave/link/cookie/v1", secret.expose(), from.to_string().as_bytes()).expose()
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & (u128::MAX << 64)).into()),
    }
}

//! Reply capabilities: a client hands a server a capability and a key for packets to the client, inside the packets of
//! their connection (paper, section 4.2).
//!
//! Four messages, each an option in front of the payload of a packet with the reply flag. `hello`: the client's public
//! key, padded, so that no answer is longer. `offer`: the server's public key of this period, the time, a cookie over both
//! addresses and the client's key, so that the server keeps nothing and computes no Diffie-Hellman for a source that cannot
//! answer, and an echo of the client's key, so that nobody who did not see the hello is answered. `grant`: all of it again,
//! and the sealed capability and stamping key. `acknowledgement`: a tag that only who opened the grant can make. The key of
//! the seal is bound to the transcript; with the server's long-term key mixed in, nobody but that server opens it. What is
//! granted serves for the client's own address only.

use std::net::IpAddr;

use subtle::ConstantTimeEq;
use wayleave_core::UnixTime;
use wayleave_crypto::dh::{DhError, DhPublic, DhSecret};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::{hash, kdf, seal};

use super::super::header::offsets::{IPV4, IPV6, Offsets, WORD};
use super::super::header::{self, Capability, Malformed, family};
use super::keys::StampKey;
use super::mac;

/// Seconds for which a cookie is good.
pub const COOKIE_LIFETIME: u64 = 30;
/// A server's public key changes every `2^8` seconds.
const PERIOD: u32 = 8;
/// Octets of kind, length in words, flags, zero.
const OPTION_HEADER: usize = 4;
const HELLO: u8 = 1;
const OFFER: u8 = 2;
const GRANT: u8 = 3;
const ACKNOWLEDGEMENT: u8 = 4;
/// Flag of a grant: the server's long-term key is mixed in.
const FLAG_AUTHENTICATED: u8 = 1;
const COOKIE: usize = 16;
/// Octets of the client's key that an offer echoes.
const ECHO: usize = 8;
/// Octets of zeros behind the client's key: a hello is as long as an offer.
const PADDING: usize = 4 + COOKIE + ECHO;

/// Why a reply capability was refused. `Malformed`, `Echo`, `Cookie`, `Key` and `Sealed` blame the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplyError {
    /// Not an option, or another one than expected.
    #[error("malformed or unexpected reply option")]
    Malformed,
    /// The offer is for another client's key: whoever made it did not see this client's hello.
    #[error("the offer does not answer this client's hello")]
    Echo,
    /// The cookie is too old, from the future, or not this server's for these addresses and this key.
    #[error("the cookie has expired or is not for this connection")]
    Cookie,
    #[error(transparent)]
    Key(#[from] DhError),
    #[error("the grant cannot be decrypted with this exchange's key")]
    Sealed,
    /// The grant is authenticated for a long-term key that this server does not have, or the other way round.
    #[error("the grant is for another server identity")]
    Identity,
    #[error("the granted capability reaches more than the client's own address")]
    Scope,
}

/// Who talks to whom, as the IP header of the client's packets has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parties {
    pub client: IpAddr,
    pub server: IpAddr,
    /// The encapsulated protocol.
    pub protocol: u8,
}

/// What a client grants: a delegated capability and the key that stamps with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Delegated to the client's address alone.
    pub capability: Capability,
    /// Its stamping key, with which nothing can be delegated further.
    pub key: StampKey,
}

impl Granted {
    fn check_scope(&self, client: IpAddr) -> Result<(), ReplyError> {
        let is_own = self.capability.is_consistent()
            && self.capability.delegation.is_some_and(|delegation| {
                delegation.prefix.len() == delegation.prefix.afi().bits() && delegation.prefix.address() == client
            });
        if is_own { Ok(()) } else { Err(ReplyError::Scope) }
    }
}

/// Shows a client that its grant was opened: nobody else could have made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement(Key128);

impl Acknowledgement {
    /// The option that a server sends.
    #[must_use]
    pub fn option(&self) -> Vec<u8> {
        option(ACKNOWLEDGEMENT, 0, &[self.0.expose()])
    }
}

/// A client's answer to an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub option: Vec<u8>,
    /// What the server answers once it has opened the grant.
    pub acknowledgement: Acknowledgement,
}

/// A grant that a server opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    pub granted: Granted,
    /// The client's public key, by which its further hellos are known.
    pub client: [u8; 32],
    pub acknowledgement: Acknowledgement,
}

/// A reply option in front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyOption<'a> {
    kind: u8,
    flags: u8,
    body: &'a [u8],
}

impl<'a> ReplyOption<'a> {
    /// Takes the option off the front of a payload whose header has the reply flag.
    pub fn decode(payload: &'a [u8]) -> Result<(Self, &'a [u8]), ReplyError> {
        let &[kind, words, flags, 0, ..] = payload else { return Err(ReplyError::Malformed) };
        let length = usize::from(words) * WORD;
        if length < OPTION_HEADER || payload.len() < length || !(HELLO..=ACKNOWLEDGEMENT).contains(&kind) {
            return Err(ReplyError::Malformed);
        }
        let (option, rest) = payload.split_at(length);
        Ok((Self { kind, flags, body: &option[OPTION_HEADER..] }, rest))
    }

    /// The client's public key, if it is a client's first message.
    #[must_use]
    pub fn hello(&self) -> Option<[u8; 32]> {
        let (client, padding) = self.body_of(HELLO).ok()?.split_first_chunk::<32>()?;
        (*padding == [0; PADDING]).then_some(*client)
    }

    /// Whether it is a server's answer to a hello.
    #[must_use]
    pub fn is_offer(&self) -> bool {
        self.kind == OFFER
    }

    /// Whether it is a server's answer to a grant, or to the hello of a client whose grant it holds.
    #[must_use]
    pub fn acknowledgement(&self) -> Option<Acknowledgement> {
        let tag = self.body_of(ACKNOWLEDGEMENT).ok()?.try_into().ok()?;
        Some(Acknowledgement(Key128::new(tag)))
    }

    fn body_of(&self, kind: u8) -> Result<&'a [u8], ReplyError> {
        if self.kind == kind { Ok(self.body) } else { Err(ReplyError::Malformed) }
    }
}

/// Octets of the reply option at the front of `payload`, if there is a sound one.
pub(crate) fn option_length(payload: &[u8]) -> Option<usize> {
    let (_, rest) = ReplyOption::decode(payload).ok()?;
    Some(payload.len() - rest.len())
}

/// The client: one for each connection.
#[derive(Clone, Debug)]
pub struct ReplyClient {
    secret: DhSecret,
    public: DhPublic,
}

impl ReplyClient {
    /// `seed` must be fresh.
    #[must_use]
    pub fn new(seed: &Seed) -> Self {
        let secret = DhSecret::from_seed(seed);
        let public = secret.public();
        Self { secret, public }
    }

    /// The option of the first packet.
    #[must_use]
    pub fn hello(&self) -> Vec<u8> {
        option(HELLO, 0, &[&self.public.to_bytes(), &[0; PADDING]])
    }

    /// The option that answers the server's `offer`. `identity` is the server's long-term public key, if it is known.
    pub fn grant(
        &self,
        offer: &ReplyOption<'_>,
        parties: &Parties,
        identity: Option<&DhPublic>,
        granted: &Granted,
    ) -> Result<Grant, ReplyError> {
        granted.check_scope(parties.client)?;
        let body = offer.body_of(OFFER)?;
        let (server, rest) = body.split_first_chunk::<32>().ok_or(ReplyError::Malformed)?;
        let (time, rest) = rest.split_first_chunk::<4>().ok_or(ReplyError::Malformed)?;
        let (cookie, rest) = rest.split_first_chunk::<COOKIE>().ok_or(ReplyError::Malformed)?;
        let found: [u8; ECHO] = rest.try_into().map_err(|_| ReplyError::Malformed)?;
        if found != echo(&self.public) {
            return Err(ReplyError::Echo);
        }
        let server = DhPublic::from_bytes(*server)?;
        let shared = self.secret.agree(&server)?;
        let transcript = Transcript { parties, client: &self.public, server: &server, time: *time, cookie, identity };
        let authenticating = identity.map(|identity| self.secret.agree(identity)).transpose()?;
        let key = transcript.key(shared.expose(), authenticating.as_ref().map(|secret| secret.expose()));
        let mut plain = granted.key.expose().to_vec();
        plain.extend_from_slice(granted.capability.octets().as_slice());
        let sealed = seal::seal(SEAL, &key, &transcript.hash(), &plain);
        let flags = if identity.is_some() { FLAG_AUTHENTICATED } else { 0 };
        Ok(Grant {
            option: option(GRANT, flags, &[&self.public.to_bytes(), time, cookie, &sealed]),
            acknowledgement: transcript.acknowledgement(&key),
        })
    }
}

const SEAL: &str = "wayleave/platypus/reply-seal/v1";

/// The server: keeps keys, and nothing of any client until its grant is open.
#[derive(Clone, Debug)]
pub struct ReplyServer {
    periods: Seed,
    cookies: Key128,
    identity: Option<DhSecret>,
    /// The public key computed last, and its period.
    latest: Option<(u64, DhPublic)>,
}

/// What a grant has, once its cookie is known to be right.
struct GrantParts<'a> {
    client: DhPublic,
    /// When the offer was made, and what it had.
    time: &'a [u8; 4],
    cookie: &'a [u8; COOKIE],
    sealed: &'a [u8],
    /// Seconds since the offer.
    age: u32,
}

impl ReplyServer {
    /// `seed` must be random; `identity` is the long-term key by which clients may know this server.
    #[must_use]
    pub fn new(seed: &Seed, identity: Option<DhSecret>) -> Self {
        Self {
            periods: kdf::derive("wayleave/platypus/reply-periods/v1", seed.expose(), &[]),
            cookies: kdf::derive("wayleave/platypus/reply-cookies/v1", seed.expose(), &[]),
            identity,
            latest: None,
        }
    }

    /// The option that answers a `hello`. It costs one MAC, and a Diffie-Hellman key once a period.
    pub fn offer(&mut self, hello: &ReplyOption<'_>, parties: &Parties, now: UnixTime) -> Result<Vec<u8>, ReplyError> {
        let client = DhPublic::from_bytes(hello.hello().ok_or(ReplyError::Malformed)?)?;
        let public = self.public(now.secs());
        let time = (now.secs() as u32).to_be_bytes();
        let cookie = self.cookie(parties, &client, time);
        Ok(option(OFFER, 0, &[&public.to_bytes(), &time, &cookie, &echo(&client)]))
    }

    /// Whether a `grant` answers an offer that this server made to these parties lately. It costs one MAC.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(&self, grant: &ReplyOption<'_>, parties: &Parties, now: UnixTime) -> Result<(), ReplyError> {
        self.read_grant(grant, parties, now).map(drop)
    }

    /// The parts of a grant with a cookie that this server made for these parties lately.
    fn read_grant<'a>(
        &self,
        grant: &ReplyOption<'a>,
        parties: &Parties,
        now: UnixTime,
    ) -> Result<GrantParts<'a>, ReplyError> {
        let body = grant.body_of(GRANT)?;
        let (client, rest) = body.split_first_chunk::<32>().ok_or(ReplyError::Malformed)?;
        let (time, rest) = rest.split_first_chunk::<4>().ok_or(ReplyError::Malformed)?;
        let (cookie, sealed) = rest.split_first_chunk::<COOKIE>().ok_or(ReplyError::Malformed)?;
        let client = DhPublic::from_bytes(*client)?;
        let age = (now.secs() as u32).wrapping_sub(u32::from_be_bytes(*time));
        let is_ours = self.cookie(parties, &client, *time).ct_eq(cookie);
        if u64::from(age) > COOKIE_LIFETIME || !bool::from(is_ours) {
            return Err(ReplyError::Cookie);
        }
        Ok(GrantParts { client, time, cookie, sealed, age })
    }

    /// Opens a client's `grant`. The cookie comes first; only then there is Diffie-Hellman.
    pub fn accept(&mut self, grant: &ReplyOption<'_>, parties: &Parties, now: UnixTime) -> Result<Opened, ReplyError> {
        let GrantParts { client, time, cookie, sealed, age } = self.read_grant(grant, parties, now)?;
        let is_authenticated = grant.flags & FLAG_AUTHENTICATED != 0;
        let identity = self.identity.clone().filter(|_| is_authenticated);
        if is_authenticated && identity.is_none() {
            return Err(ReplyError::Identity);
        }
        let made = now.secs() - u64::from(age);
        let secret = self.secret_of(made >> PERIOD);
        let server = self.public(made);
        let identity_public = identity.as_ref().map(DhSecret::public);
        let transcript = Transcript {
            parties,
            client: &client,
            server: &server,
            time: *time,
            cookie,
            identity: identity_public.as_ref(),
        };
        let shared = secret.agree(&client)?;
        let authenticating = identity.map(|identity| identity.agree(&client)).transpose()?;
        let key = transcript.key(shared.expose(), authenticating.as_ref().map(|secret| secret.expose()));
        let plain = seal::open(SEAL, &key, &transcript.hash(), sealed).map_err(|_| ReplyError::Sealed)?;
        let granted = read_granted(&plain, if parties.client.is_ipv4() { &IPV4 } else { &IPV6 })?;
        granted.check_scope(parties.client)?;
        Ok(Opened { granted, client: client.to_bytes(), acknowledgement: transcript.acknowledgement(&key) })
    }

    fn secret_of(&self, period: u64) -> DhSecret {
        let context = period.to_be_bytes();
        DhSecret::from_seed(&kdf::derive("wayleave/platypus/reply-period/v1", self.periods.expose(), &context))
    }

    fn public(&mut self, secs: u64) -> DhPublic {
        let period = secs >> PERIOD;
        match self.latest {
            Some((latest, public)) if latest == period => public,
            _ => {
                let public = self.secret_of(period).public();
                self.latest = Some((period, public));
                public
            }
        }
    }

    fn cookie(&self, parties: &Parties, client: &DhPublic, time: [u8; 4]) -> [u8; COOKIE] {
        let mut message = parties_octets(parties);
        message.extend_from_slice(&client.to_bytes());
        message.extend_from_slice(&time);
        mac::cmac(&self.cookies, &[], &message)
    }
}

fn read_granted(plain: &[u8], table: &'static Offsets) -> Result<Granted, ReplyError> {
    let (key, octets) = plain.split_first_chunk::<16>().ok_or(ReplyError::Malformed)?;
    let capability = header::read_bare(octets, table).map_err(|_: Malformed| ReplyError::Malformed)?;
    Ok(Granted { capability, key: StampKey::new(Key128::new(*key)) })
}

/// Everything that both sides saw.
struct Transcript<'a> {
    parties: &'a Parties,
    client: &'a DhPublic,
    server: &'a DhPublic,
    time: [u8; 4],
    cookie: &'a [u8; COOKIE],
    identity: Option<&'a DhPublic>,
}

impl Transcript<'_> {
    fn hash(&self) -> [u8; 32] {
        let identity = self.identity.map(DhPublic::to_bytes);
        hash::hash(
            "wayleave/platypus/reply-transcript/v1",
            &[
                &parties_octets(self.parties),
                &self.client.to_bytes(),
                &self.server.to_bytes(),
                &self.time,
                self.cookie,
                identity.as_ref().map_or(&[], |identity| identity.as_slice()),
            ],
        )
    }

    fn key(&self, shared: &[u8; 32], authenticating: Option<&[u8; 32]>) -> Key128 {
        let mut secret = shared.to_vec();
        secret.extend_from_slice(authenticating.map_or(&[], |secret| secret.as_slice()));
        let key = kdf::derive("wayleave/platypus/reply-key/v1", &secret, &self.hash());
        zeroize::Zeroize::zeroize(&mut secret);
        key
    }

    fn acknowledgement(&self, key: &Key128) -> Acknowledgement {
        Acknowledgement(kdf::derive("wayleave/platypus/reply-acknowledgement/v1", key.expose(), &self.hash()))
    }
}

/// What only who saw the hello knows of it.
fn echo(client: &DhPublic) -> [u8; ECHO] {
    let octets = client.to_bytes();
    std::array::from_fn(|at| octets[at])
}

/// Family, client, server, protocol; the family fixes the lengths.
fn parties_octets(parties: &Parties) -> Vec<u8> {
    let mut out = vec![family(parties.client).code() as u8, family(parties.server).code() as u8];
    for address in [parties.client, parties.server] {
        match address {
            IpAddr::V4(v4) => out.extend(v4.octets()),
            IpAddr::V6(v6) => out.extend(v6.octets()),
        }
    }
    out.push(parties.protocol);
    out
}

/// Kind, length in words, flags, zero; then the parts, which end on a word.
fn option(kind: u8, flags: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = OPTION_HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
    // The longest is a grant of 4 + 32 + 4 + 16 + 48 + 16 + 48 octets.
    let mut out = vec![kind, (length / WORD) as u8, flags, 0];
    for part in parts {
        out.extend_from_slice(part);
    }
    debug_assert_eq!(out.len() % WORD, 0, "capabilities, keys and tags are whole words");
    out
}

//! Seals between two members of a realm, of gateways and of the two ends of a link: Noise IK between the static keys of their
//! memberships, through `snow`. The prologue names what the session is for, the realm and who is meant, so that a handshake counts
//! nowhere else.
//!
//! `Noise_IK_25519_AESGCM_SHA256` (The Noise Protocol Framework, revision 34). The primitives are those that the rest of the
//! workspace uses, and randomness is what the machine was given: `snow` has neither of its own here.

use std::cmp::Ordering;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use wayleave_core::{IdentityKey, Instant};
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::{Secret, Seed};

const PATTERN: &str = "Noise_IK_25519_AESGCM_SHA256";
/// Octets of an authentication tag.
pub(crate) const TAG: usize = 16;
/// Octets of Noise around the payload of the first message: an ephemeral key, a sealed static key, a tag.
const FIRST: usize = 32 + 48 + TAG;
/// Octets of Noise around the payload of the second message.
pub(crate) const SECOND: usize = 32 + TAG;
/// Messages sealed under one key, far below what AES-GCM allows.
const MOST_MESSAGES: u64 = 1 << 40;

/// Why a message cannot be opened, or none be made: whoever sent it does not have the keys that it should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotSealed;

impl From<snow::Error> for NotSealed {
    fn from(_: snow::Error) -> Self {
        Self
    }
}

/// The static key of a member.
pub(crate) struct StaticKey(pub(crate) Secret<32>);

/// What both ends must agree on before their first message: what the session is for, the realm, and who they are.
pub(crate) fn prologue(label: &str, realm: &[u8; 32], nodes: &[&IdentityKey]) -> Vec<u8> {
    let mut out = label.as_bytes().to_vec();
    out.extend(realm);
    out.extend(nodes.iter().flat_map(|node| node.0));
    out
}

/// A handshake that waits for its second message.
pub(crate) struct Started(HandshakeState);

impl StaticKey {
    /// The first message, to the member with this static key, with `payload`.
    pub(crate) fn initiate(
        &self,
        remote: &DhPublic,
        prologue: &[u8],
        seed: Seed,
        payload: &[u8],
    ) -> Result<(Started, Vec<u8>), NotSealed> {
        let remote = remote.to_bytes();
        let mut state = self.builder(prologue, seed)?.remote_public_key(&remote)?.build_initiator()?;
        let mut message = vec![0; FIRST + payload.len()];
        let length = state.write_message(payload, &mut message)?;
        message.truncate(length);
        Ok((Started(state), message))
    }

    /// Takes the first message: the initiator's static key, the payload, and what goes on with the handshake.
    pub(crate) fn receive(
        &self,
        prologue: &[u8],
        seed: Seed,
        message: &[u8],
    ) -> Result<(DhPublic, Vec<u8>, Started), NotSealed> {
        let mut state = self.builder(prologue, seed)?.build_responder()?;
        let mut payload = vec![0; message.len()];
        let length = state.read_message(message, &mut payload)?;
        payload.truncate(length);
        let remote = state.get_remote_static().and_then(|key| <[u8; 32]>::try_from(key).ok()).ok_or(NotSealed)?;
        Ok((DhPublic::from_bytes(remote).map_err(|_| NotSealed)?, payload, Started(state)))
    }

    fn builder<'a>(&'a self, prologue: &'a [u8], seed: Seed) -> Result<Builder<'a>, NotSealed> {
        let pattern: NoiseParams = PATTERN.parse()?;
        Ok(Builder::with_resolver(pattern, Box::new(Primitives(seed)))
            .local_private_key(self.0.expose())?
            .prologue(prologue)?)
    }
}

impl Started {
    /// The second message with `payload`, and the session behind it.
    pub(crate) fn respond(self, payload: &[u8], window: Window, now: Instant) -> Result<(Session, Vec<u8>), NotSealed> {
        let Self(mut state) = self;
        let mut message = vec![0; SECOND + payload.len()];
        let length = state.write_message(payload, &mut message)?;
        message.truncate(length);
        Ok((Session::new(state, window, now)?, message))
    }

    /// Takes the second message; returns its payload. One that does not open changes nothing: the right one may still come.
    pub(crate) fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, NotSealed> {
        let mut payload = vec![0; message.len()];
        let length = self.0.read_message(message, &mut payload)?;
        payload.truncate(length);
        Ok(payload)
    }

    /// The session behind the second message.
    pub(crate) fn finish(self, window: Window, now: Instant) -> Result<Session, NotSealed> {
        Session::new(self.0, window, now)
    }
}

/// Seals messages of a session, on any thread.
pub(crate) struct SealingKey(LessSafeKey);

impl SealingKey {
    /// Seals message `number`, which has [`TAG`] octets of room behind it.
    pub(crate) fn seal(&self, number: u64, message: &mut [u8]) -> Result<(), NotSealed> {
        let length = message.len().checked_sub(TAG).ok_or(NotSealed)?;
        let (text, tag) = message.split_at_mut(length);
        let made = self.0.seal_in_place_separate_tag(nonce(number), Aad::empty(), text);
        tag.copy_from_slice(made.map_err(|_| NotSealed)?.as_ref());
        Ok(())
    }
}

/// Opens messages of a session, on any thread.
pub(crate) struct OpeningKey(LessSafeKey);

impl OpeningKey {
    /// Opens message `number` where it lies; returns its text. If it does not open, nothing of it is left.
    pub(crate) fn open<'a>(&self, number: u64, sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        self.0.open_in_place(nonce(number), Aad::empty(), sealed).ok()
    }
}

/// Both directions between two members.
pub(crate) struct Session {
    outgoing: Arc<SealingKey>,
    incoming: Arc<OpeningKey>,
    is_initiator: bool,
    sent: u64,
    received: ReplayWindow,
    pub(crate) begun: Instant,
}

impl Session {
    /// The keys are those of the transport messages of Noise (section 5.2, `Split()`); `snow` itself seals from one buffer into another,
    /// and here a message is sealed where it lies.
    fn new(mut state: HandshakeState, window: Window, now: Instant) -> Result<Self, NotSealed> {
        if !state.is_handshake_finished() {
            return Err(NotSealed);
        }
        let is_initiator = state.is_initiator();
        let (of_initiator, of_responder) = state.dangerously_get_raw_split();
        let keys = [Secret::new(of_initiator), Secret::new(of_responder)];
        let [first, second] = keys.map(|key| UnboundKey::new(&AES_256_GCM, key.expose()).map(LessSafeKey::new));
        let (first, second) = (first.map_err(|_| NotSealed)?, second.map_err(|_| NotSealed)?);
        let (outgoing, incoming) = if is_initiator { (first, second) } else { (second, first) };
        let (outgoing, incoming) = (Arc::new(SealingKey(outgoing)), Arc::new(OpeningKey(incoming)));
        Ok(Self { outgoing, incoming, is_initiator, sent: 0, received: ReplayWindow::new(window), begun: now })
    }

    /// Seals `plain` into the first `plain.len() + TAG` octets of `out`; returns the message's number.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<u64, NotSealed> {
        let out = out.get_mut(..plain.len() + TAG).ok_or(NotSealed)?;
        out[..plain.len()].copy_from_slice(plain);
        self.seal_in_place(out)
    }

    /// Seals a message that has [`TAG`] octets of room behind it; returns its number.
    pub(crate) fn seal_in_place(&mut self, message: &mut [u8]) -> Result<u64, NotSealed> {
        let (number, key) = self.numbers(1)?;
        key.seal(number, message)?;
        Ok(number)
    }

    /// The first of `count` numbers that no other message has, and the key to seal them with.
    pub(crate) fn numbers(&mut self, count: usize) -> Result<(u64, Arc<SealingKey>), NotSealed> {
        let first = self.sent;
        let next = first.checked_add(count as u64).filter(|next| *next <= MOST_MESSAGES).ok_or(NotSealed)?;
        self.sent = next;
        Ok((first, Arc::clone(&self.outgoing)))
    }

    /// The key to open messages with: each is to be [`Session::note`]d once it has opened.
    pub(crate) fn opening_key(&self) -> Arc<OpeningKey> {
        Arc::clone(&self.incoming)
    }

    /// Whether message `number` may still come.
    pub(crate) fn check(&self, number: u64) -> Result<(), OpenError> {
        self.received.check(number)
    }

    /// Notes a message that has opened, if it may still come.
    pub(crate) fn note(&mut self, number: u64) -> Result<(), OpenError> {
        self.received.check(number)?;
        self.received.note(number);
        Ok(())
    }

    /// Opens message `number` into `out`, which has room for all of `sealed`. Each number is opened once.
    pub(crate) fn open<'a>(
        &mut self,
        number: u64,
        sealed: &[u8],
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        self.received.check(number)?;
        let length = open(&self.incoming.0, number, &[], sealed, out).ok_or(OpenError::Seal)?;
        self.received.note(number);
        Ok(&mut out[..length])
    }

    /// Message `number` against the newest of those that have come.
    pub(crate) fn order(&self, number: u64) -> Ordering {
        number.saturating_add(1).cmp(&self.received.next)
    }

    /// Whether `sealed` is message `number`, which may have come before.
    pub(crate) fn is_sealed(&self, number: u64, sealed: &[u8], out: &mut [u8]) -> bool {
        open(&self.incoming.0, number, &[], sealed, out).is_some()
    }

    pub(crate) fn is_initiator(&self) -> bool {
        self.is_initiator
    }
}

/// Why a sealed message is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenError {
    Seal,
    Replayed,
    /// So much later than others that it is not known any more whether it came before.
    TooOld,
}

/// By how many messages one may come late, as the words of 64 bits that a session keeps of that.
#[derive(Clone, Copy)]
pub(crate) struct Window(usize);

impl Window {
    /// For so many messages, a power of two and at least 64.
    pub(crate) const fn of(messages: usize) -> Self {
        Self(messages.next_power_of_two().div_ceil(64))
    }
}

/// Which of the last numbers have come (RFC 6479).
struct ReplayWindow {
    /// One more than the greatest number that has come.
    next: u64,
    came: Box<[u64]>,
}

impl ReplayWindow {
    fn new(Window(words): Window) -> Self {
        Self { next: 0, came: vec![0; words].into() }
    }

    /// The words that are kept are the one of the greatest number and those before it.
    fn check(&self, number: u64) -> Result<(), OpenError> {
        if number >= self.next {
            // No key seals so many.
            return if number < MOST_MESSAGES { Ok(()) } else { Err(OpenError::Seal) };
        }
        if number / 64 + self.words() <= (self.next - 1) / 64 {
            return Err(OpenError::TooOld);
        }
        if self.came[self.word(number)] >> (number % 64) & 1 == 0 { Ok(()) } else { Err(OpenError::Replayed) }
    }

    fn note(&mut self, number: u64) {
        if number >= self.next {
            // The words between the last one and this one begin anew.
            let (last, this) = (self.next.checked_sub(1).map(|last| last / 64), number / 64);
            let first = last.map_or(0, |last| last + 1).max((this + 1).saturating_sub(self.words()));
            for word in first..=this {
                let place = self.word(word * 64);
                self.came[place] = 0;
            }
            self.next = number + 1;
        }
        let place = self.word(number);
        self.came[place] |= 1 << (number % 64);
    }

    fn words(&self) -> u64 {
        self.came.len() as u64
    }

    fn word(&self, number: u64) -> usize {
        ((number / 64) & (self.words() - 1)) as usize
    }
}

/// What `snow` computes with.
struct Primitives(Seed);

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Given { seed: self.0.clone(), next: 0 }))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(X25519::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Sha256Hash::default()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(AesGcm { key: None }) as Box<dyn Cipher>)
    }
}

/// Randomness from a seed that is used for one handshake.
struct Given {
    seed: Seed,
    next: u64,
}

impl Random for Given {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        for chunk in out.chunks_mut(32) {
            let octets: Secret<32> =
                kdf::derive("wayleave/gateway/noise/v1", self.seed.expose(), &self.next.to_be_bytes());
            chunk.copy_from_slice(&octets.expose()[..chunk.len()]);
            self.next += 1;
        }
        Ok(())
    }
}

struct X25519 {
    secret: Secret<32>,
    public: [u8; 32],
}

impl Default for X25519 {
    fn default() -> Self {
        Self { secret: Secret::new([0; 32]), public: [0; 32] }
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, secret: &[u8]) {
        let mut octets = [0; 32];
        octets.copy_from_slice(secret);
        self.secret = Secret::new(octets);
        self.public = DhSecret::from_seed(&self.secret).public().to_bytes();
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        let mut octets = [0; 32];
        random.try_fill_bytes(&mut octets)?;
        self.set(&octets);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.secret.expose()
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let public = public.first_chunk::<32>().ok_or(snow::Error::Dh)?;
        let public = DhPublic::from_bytes(*public).map_err(|_| snow::Error::Dh)?;
        let shared = DhSecret::from_seed(&self.secret).agree(&public).map_err(|_| snow::Error::Dh)?;
        out[..32].copy_from_slice(shared.expose());
        Ok(())
    }
}

#[derive(Default)]
struct Sha256Hash(Sha256);

impl Hash for Sha256Hash {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Sha256::default();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&self.0.finalize_reset());
    }
}

/// AES-256-GCM with the nonces of Noise: 32 zero bits, then the number, big-endian (section 12.4).
struct AesGcm {
    key: Option<LessSafeKey>,
}

fn nonce(number: u64) -> Nonce {
    let mut octets = [0; 12];
    octets[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(octets)
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        // A key of this length is never refused.
        self.key = UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new);
    }

    fn encrypt(&self, number: u64, associated: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plain.len());
        text.copy_from_slice(plain);
        let key = self.key.as_ref().expect("snow sets a key first");
        let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from(associated), text);
        rest[..TAG].copy_from_slice(tag.expect("far shorter than the limit of the cipher").as_ref());
        plain.len() + TAG
    }

    fn decrypt(&self, number: u64, associated: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, snow::Error> {
        let key = self.key.as_ref().ok_or(snow::Error::Decrypt)?;
        open(key, number, associated, sealed, out).ok_or(snow::Error::Decrypt)
    }
}

/// Opens a message into the beginning of `out`; returns its length. `None` if it was not sealed so, or `out` has no room for it.
fn open(key: &LessSafeKey, number: u64, associated: &[u8], sealed: &[u8], out: &mut [u8]) -> Option<usize> {
    let (text, tag) = sealed.split_at(sealed.len().checked_sub(TAG)?);
    let out = out.get_mut(..text.len())?;
    key.open_separate_gather(nonce(number), Aad::from(associated), text, tag, out).ok().map(|()| text.len())
}

#[cfg(test)]
pub(crate) mod tests {
    //! ICC, seal: every bit of a sealed message and every octet of a handshake changed; another's key; numbers in every
    //! order: does not open; each number once (vectors: `test-data/wire/gateway.json`).

    use super::*;

    const WINDOW: u64 = 8192;

    fn window() -> Window {
        Window::of(WINDOW as usize)
    }

    /// The two ends of a session, the initiator's first.
    pub(crate) fn pair() -> (Session, Session) {
        let (a, b) = (StaticKey(Secret::new([1; 32])), StaticKey(Secret::new([2; 32])));
        let public = |key: &StaticKey| DhSecret::from_seed(&key.0).public();
        let (mut started, first) = a.initiate(&public(&b), b"p", Secret::new([3; 32]), b"payload").unwrap();
        let (from, payload, answering) = b.receive(b"p", Secret::new([4; 32]), &first).unwrap();
        assert_eq!((from, &payload[..]), (public(&a), &b"payload"[..]));
        let (theirs, second) = answering.respond(b"back", window(), Instant(5)).unwrap();
        let mut other = second.clone();
        other[40] ^= 1;
        assert_eq!(started.read(&other), Err(NotSealed), "and the right one still counts");
        assert_eq!(started.read(&second).unwrap(), b"back");
        (started.finish(window(), Instant(5)).unwrap(), theirs)
    }

    #[test]
    fn what_one_end_seals_the_other_opens_once_and_no_octet_may_change() {
        let (mut a, mut b) = pair();
        let (mut sealed, mut out) = ([0; 7 + TAG], [0; 64]);
        for expected in 0..3 {
            assert_eq!(a.seal(b"message", &mut sealed), Ok(expected));
            for bit in 0..8 * sealed.len() {
                sealed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(b.open(expected, &sealed, &mut out).err(), Some(OpenError::Seal));
                sealed[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(b.open(expected + 1, &sealed, &mut out).err(), Some(OpenError::Seal));
            assert_eq!(b.open(expected, &sealed, &mut out).unwrap(), b"message");
            assert_eq!(b.open(expected, &sealed, &mut out).err(), Some(OpenError::Replayed));
        }
        assert_eq!((a.is_initiator(), b.is_initiator()), (true, false));
        assert!(a.seal(b"message", &mut sealed).is_ok() && a.open(3, &sealed, &mut out).is_err(), "its own");
    }

    #[test]
    fn a_first_message_is_for_its_receiver_alone_and_no_octet_may_change() {
        let (a, b, c) = ([1; 32], [2; 32], [3; 32]);
        let [a, b, c] = [a, b, c].map(|octets| StaticKey(Secret::new(octets)));
        let public = DhSecret::from_seed(&b.0).public();
        let (_, mut first) = a.initiate(&public, b"p", Secret::new([3; 32]), b"payload").unwrap();
        assert!(b.receive(b"q", Secret::new([4; 32]), &first).is_err(), "for something else");
        assert!(c.receive(b"p", Secret::new([4; 32]), &first).is_err());
        for octet in 0..first.len() {
            first[octet] ^= 1;
            assert!(b.receive(b"p", Secret::new([4; 32]), &first).is_err(), "octet {octet}");
            first[octet] ^= 1;
        }
        assert!(b.receive(b"p", Secret::new([4; 32]), &first).is_ok());
    }

    /// `test-data/wire/gateway.json`, which other implementations may use: the ephemeral secrets are given there.
    #[test]
    fn the_published_vectors_are_what_is_sent() {
        let hex = |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
        let ephemeral = |seed: &Seed| {
            let secret: Secret<32> = kdf::derive("wayleave/gateway/noise/v1", seed.expose(), &0u64.to_be_bytes());
            hex(secret.expose())
        };
        let (a, b) = (StaticKey(Secret::new([1; 32])), StaticKey(Secret::new([2; 32])));
        let (of_a, of_b): (Seed, Seed) = (Secret::new([3; 32]), Secret::new([4; 32]));
        let public = DhSecret::from_seed(&b.0).public();
        let nodes: Vec<_> = [5, 6, 7].map(|node| wayleave_core::IdentityKey([node; 32])).to_vec();
        let payload = crate::gateway::message::opening(1_800_000_000_000_000, &nodes);
        let prologue = prologue("wayleave/gateway/v2", &[8; 32], &[&nodes[0], &nodes[2]]);
        let (mut started, first) = a.initiate(&public, &prologue, of_a.clone(), &payload).unwrap();
        let (_, _, answering) = b.receive(&prologue, of_b.clone(), &first).unwrap();
        let (mut of_responder, second) = answering.respond(&[], window(), Instant(0)).unwrap();
        started.read(&second).unwrap();
        let mut session = started.finish(window(), Instant(0)).unwrap();
        let probe = crate::gateway::message::Content::Probe { number: 9, sent: 70_000, nodes, padding: 5 }.encode();
        let mut sealed = vec![0; probe.len() + TAG];
        let number = session.seal(&probe, &mut sealed).unwrap();
        let data = [&crate::gateway::message::Message::data(0x0b0b_0b0b, number)[..], &sealed].concat();
        // The answer to the probe, octet by octet as the page has it.
        let (held, received, handle) = (0b110u16, 69_990u64, [0x77; 16]);
        let answer = [&[2, 0][..], &held.to_be_bytes(), &9u32.to_be_bytes(), &received.to_be_bytes(), &handle].concat();
        let handle = wayleave_packet::icing::header::Handle(handle);
        let content = crate::gateway::message::Content::Answer { number: 9, held, received, handle };
        assert_eq!(content.encode(), answer);
        let mut sealed = vec![0; answer.len() + TAG];
        let number = of_responder.seal(&answer, &mut sealed).unwrap();
        assert_eq!(session.open(number, &sealed, &mut [0; 64]).unwrap(), answer);
        let data_of_responder = [&crate::gateway::message::Message::data(0x0a0a_0a0a, number)[..], &sealed].concat();
        let found = serde_json::json!({
            "initiator_static_secret": hex(a.0.expose()),
            "initiator_ephemeral_secret": ephemeral(&of_a),
            "responder_static_secret": hex(b.0.expose()),
            "responder_ephemeral_secret": ephemeral(&of_b),
            "realm": hex(&[8; 32]),
            "prologue": hex(&prologue),
            "initiation_payload": hex(&payload),
            "initiation": hex(&crate::gateway::message::Message::initiation(0x0a0a_0a0a, &first)),
            "response": hex(&crate::gateway::message::Message::response(0x0a0a_0a0a, 0x0b0b_0b0b, &second)),
            "probe": hex(&probe),
            "data_of_initiator": hex(&data),
            "answer": hex(&answer),
            "data_of_responder": hex(&data_of_responder),
        });
        let text = include_str!("../../../test-data/wire/gateway.json");
        let published: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(found, published, "{found:#}");
    }

    #[test]
    fn every_number_comes_once_whatever_their_order() {
        let mut window = ReplayWindow::new(window());
        let mut come = |number: u64| window.check(number).map(|()| window.note(number));
        let (replayed, too_old) = (Err(OpenError::Replayed), Err(OpenError::TooOld));
        assert_eq!([5, 5, 0, 4, 0].map(&mut come), [Ok(()), replayed, Ok(()), Ok(()), replayed]);
        assert_eq!([WINDOW + 100, WINDOW + 100].map(&mut come), [Ok(()), replayed]);
        assert_eq!([100, 200, 200].map(&mut come), [too_old, Ok(()), replayed]);
        assert_eq!([10 * WINDOW, WINDOW + 101].map(&mut come), [Ok(()), too_old]);
        assert!((10 * WINDOW - 8000..10 * WINDOW).rev().all(|number| come(number) == Ok(())));
        // The last number begins a word: before it there are as many words as are kept but one.
        assert_eq!((10 * WINDOW - 9000..10 * WINDOW).filter(|number| come(*number) == Ok(())).count(), 128);
        assert_eq!(come(MOST_MESSAGES), Err(OpenError::Seal));
    }
}

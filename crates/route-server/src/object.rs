//! The route object, which is made of one UPDATE: signed by its announcer, stored in shares, opened by its receivers.

use std::fmt;
use std::sync::Arc;

use wayleave_bgp::Nlri;
use wayleave_core::wire::{self, Blob, Codec, List32, Malformed, Nested, Reader, Writer, check_ascending};
use wayleave_crypto::commit::{Commitment, commit};
use wayleave_crypto::hash::hash;
use wayleave_crypto::kdf;
use wayleave_crypto::prg::Prg;
use wayleave_crypto::seal;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};

use crate::codecs::{CommitmentCodec, NlriCodec, SeedCodec};
use crate::frames::MAX_FRAME;

/// Prefixes of one object: our own limit, so that a blob stays in its size classes.
pub const MAX_PREFIXES: usize = 128;
/// Slots of a member set: our own limit.
pub const MAX_SLOTS: usize = 4096;
/// Objects that one column extends: our own limit.
pub const MAX_COLUMN: usize = 4096;
/// Bytes of a blob: one extended BGP message and its frame fit (RFC 8654).
pub const MAX_BLOB: usize = 131_072;
/// Bytes of the largest blob that parties take unless both operators agree to another size: a route with some hundred
/// communities, or with an attestation of several hops, fits.
pub const MAX_BLOB_DEFAULT: u32 = 8192;

const LABEL_HANDLE: &str = "wayleave/route-server/handle/v1";
const LABEL_HEADER: &str = "wayleave/route-server/header/v1";
const LABEL_ROUTE: &str = "wayleave/route-server/route/v1";
const LABEL_BLOB: &str = "wayleave/route-server/blob/v1";
const LABEL_BLOB_HASH: &str = "wayleave/route-server/blob-hash/v1";
const LABEL_SHARE_ONE: &str = "wayleave/route-server/share-one/v1";
const LABEL_SHARE_TWO: &str = "wayleave/route-server/share-two/v1";
const LABEL_DUMMY: &str = "wayleave/route-server/dummy-key/v1";
const LABEL_ROW: &str = "wayleave/route-server/row/v1";
const LABEL_COLUMN_ROW: &str = "wayleave/route-server/column-row/v1";
const LABEL_KEY_SHARE: &str = "wayleave/route-server/key-share/v1";
const LABEL_POLICY: &str = "wayleave/route-server/policy/v1";
const LABEL_COLUMN_POLICY: &str = "wayleave/route-server/column-policy/v1";

/// Bytes of a route key, and of a share of it.
const KEY: usize = 16;

wayleave_core::wire! {
    /// Who multiplies a route's export policy by its key (Export-All). One for all of an exchange.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum ExportMode: "an export mode" {
        /// The announcer: its row has a share of key or dummy key for each slot. The parties do not interact.
        #[default]
        1 = Direct,
        /// The parties, by two-party computation over shares of the policy, one bit a slot, and of the key (SIXPACK, section 5.4).
        2 = Mpc,
    }
}

impl ExportMode {
    /// The mode of a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Direct, Self::Mpc].into_iter().find(|mode| mode.code() == code)
    }

    /// Bytes of party 2's share of an announcement for `width` slots: 16 a slot, or a share of the key and one bit a slot.
    #[must_use]
    pub fn row_bytes(self, width: u32) -> usize {
        match self {
            Self::Direct => width as usize * KEY,
            Self::Mpc => KEY + self.column_bytes(width),
        }
    }

    /// Bytes that a column adds for `slots` slots of one object.
    #[must_use]
    pub fn column_bytes(self, slots: u32) -> usize {
        match self {
            Self::Direct => slots as usize * KEY,
            Self::Mpc => (slots as usize).div_ceil(8),
        }
    }
}

impl fmt::Display for ExportMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Mpc => "mpc",
        })
    }
}

wayleave_core::wire! {
    /// The name of an object: a hash over its salted description.
    ///
    /// It can be computed from the description only. The description has a random 32-byte salt, so that guesses cannot be
    /// tested.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Handle(pub [u8; 32]);
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0[..8] {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

wayleave_core::wire! {
    /// The format of an object: of its header, and of what is in its blob. Its number stands in front of all else, and is covered by handle
    /// and signature; the fields that a format adds follow it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub enum Format: "the format of an object" {
        /// Numbers of slots have three octets: before there were formats they had four, so that objects of that time are of this format.
        #[default]
        0 = First,
        /// Of the second version that is built for tests.
        1 if (feature = "next-version") = Second { note: u32 },
    }
}

impl Format {
    /// The number of the first one.
    pub(crate) const FIRST: u16 = 0;
    /// The number of the last one that this build has.
    pub(crate) const NEWEST: u16 = if cfg!(feature = "next-version") { 1 } else { Self::FIRST };

    /// The one with this number, for the object of this version; the last one that this build has if that is lower.
    pub(crate) fn of(number: u16, version: u64) -> Self {
        let _ = version;
        match number {
            #[cfg(feature = "next-version")]
            1.. => Self::Second { note: u32::try_from(version % 1000).expect("below 1000") },
            _ => Self::First,
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u16 {
        u16::from(self.code())
    }
}

wayleave_core::wire! {
    /// What an object does.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Kind: "the kind of an object" {
        /// Announces `prefixes`, canonical: ascending, without repeats.
        1 = Announce {
            /// At most [`MAX_PREFIXES`].
            prefixes: Vec<Nlri> as Prefixes,
        },
        /// Withdraws `prefixes`, canonical as above.
        2 = Withdraw {
            /// At most [`MAX_PREFIXES`].
            prefixes: Vec<Nlri> as Prefixes,
        },
        /// Extends the rows of the objects `versions` from `from` to `to` slots, after the member set grew.
        3 = Column {
            from: u32,
            to: u32,
            /// Ascending, at most [`MAX_COLUMN`].
            versions: Vec<u64> as List32<MAX_COLUMN>,
        },
    }

    /// The public description of an object. Both parties see it; receivers see only its [`Handle`] until they open the blob. Two different
    /// ones never encode alike.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Description: Self::check {
        pub format: Format,
        pub slot: u32 as ThreeOctets,
        /// The member set under which it was made; rows are as wide as that set.
        pub set: u64,
        /// The epoch under whose dummy key it was made.
        pub epoch: u64,
        /// Rises per slot; a prefix belongs to the highest version that names it.
        pub version: u64,
        /// Uniformly random.
        pub salt: [u8; 32],
        pub kind: Kind,
    }
}

/// A number of a slot, in three octets: there are [`MAX_SLOTS`] at most.
struct ThreeOctets;

impl Codec<u32> for ThreeOctets {
    const LEAST: usize = 3;

    fn write(value: &u32, out: &mut Writer) {
        let [high, low @ ..] = value.to_be_bytes();
        debug_assert_eq!(high, 0, "a slot's number is below 2^24");
        out.bytes(&low);
    }

    fn read(from: &mut Reader<'_>) -> Result<u32, Malformed> {
        from.array::<3>().map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }
}

/// At least one prefix, ascending.
struct Prefixes;

impl Codec<Vec<Nlri>> for Prefixes {
    const LEAST: usize = 4 + NlriCodec::LEAST;

    fn write(value: &Vec<Nlri>, out: &mut Writer) {
        List32::<MAX_PREFIXES, NlriCodec>::write(value, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Vec<Nlri>, Malformed> {
        let list: Vec<Nlri> = List32::<MAX_PREFIXES, NlriCodec>::read(from)?;
        if list.is_empty() {
            return Err(Malformed::Value("the number of prefixes"));
        }
        check_ascending(&list, "prefixes")?;
        Ok(list)
    }
}

impl Description {
    fn check(&self) -> Result<(), Malformed> {
        match &self.kind {
            Kind::Column { from, to, .. } if from >= to || *to as usize > MAX_SLOTS => {
                Err(Malformed::Value("the width of a column"))
            }
            Kind::Column { versions, .. } => check_ascending(versions, "versions"),
            Kind::Announce { .. } | Kind::Withdraw { .. } => Ok(()),
        }
    }

    /// The object's name.
    #[must_use]
    pub fn handle(&self, exchange: &str) -> Handle {
        Handle(hash(LABEL_HANDLE, &[exchange.as_bytes(), &wire::encode(self)]))
    }

    /// The prefixes it names; none for a column.
    #[must_use]
    pub fn prefixes(&self) -> &[Nlri] {
        match &self.kind {
            Kind::Announce { prefixes } | Kind::Withdraw { prefixes } => prefixes,
            Kind::Column { .. } => &[],
        }
    }
}

wayleave_core::wire! {
    /// A description with what ties the shares and the blob to it, under the announcer's signature.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Header {
        /// The public description.
        pub description: Description as Nested<65_536>,
        /// [`blob_hash`] of the blob; zero without a blob.
        pub blob_hash: [u8; 32],
        /// Commitments to party 1's and party 2's shares; zero without a share.
        pub commitments: [Commitment; 2] as [CommitmentCodec; 2],
        /// The announcer's signature over all of it.
        pub signature: Signature,
    }

    /// What only party 1 gets: the seed of its row, and what opens the commitment to it.
    #[derive(Clone, Debug)]
    pub struct ShareOne {
        /// Opens the first commitment.
        pub opening: [u8; 32],
        /// Party 1's row is this seed's output ([`expand`]).
        pub seed: Seed as SeedCodec,
    }

    /// What only party 2 gets: its row, and what opens the commitment to it.
    #[derive(Clone)]
    pub struct ShareTwo {
        /// Opens the second commitment.
        pub opening: [u8; 32],
        /// [`ExportMode::row_bytes`] for an announcement; for a column [`ExportMode::column_bytes`] for each version. In mode `mpc`:
        /// party 2's share of the key, then of the policy, slot `i` in bit `i % 8` of byte `i / 8`.
        pub row: Arc<[u8]> as Blob<MAX_FRAME>,
    }
}

impl Header {
    /// Signs a header.
    #[must_use]
    pub fn sign(
        exchange: &str,
        description: Description,
        blob_hash: [u8; 32],
        commitments: [Commitment; 2],
        key: &SigningKey,
    ) -> Self {
        let mut header = Self { description, blob_hash, commitments, signature: [0; 64] };
        header.signature = key.sign(LABEL_HEADER, &header.signed_bytes(exchange));
        header
    }

    /// Whether the announcer's key signed it for this exchange.
    #[must_use]
    pub fn is_signed_by(&self, exchange: &str, key: &VerifyingKey) -> bool {
        key.verify(LABEL_HEADER, &self.signed_bytes(exchange), &self.signature).is_ok()
    }

    fn signed_bytes(&self, exchange: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.blob(exchange.as_bytes()).blob(&wire::encode(&self.description)).bytes(&self.blob_hash);
        w.bytes(&self.commitments[0].0).bytes(&self.commitments[1].0);
        w.finish()
    }

    /// What both parties compare: everything that the announcer signed, and the signature.
    #[must_use]
    pub fn digest(&self, exchange: &str) -> [u8; 32] {
        hash(LABEL_HEADER, &[&self.signed_bytes(exchange), &self.signature])
    }
}

impl fmt::Debug for ShareTwo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShareTwo({} bytes)", self.row.len())
    }
}

impl ShareOne {
    /// Whether this is the share that the header commits to.
    #[must_use]
    pub fn matches(&self, header: &Header) -> bool {
        header.commitments[0].opens_to(LABEL_SHARE_ONE, &self.opening, self.seed.expose())
    }

    /// Party 1's share of the key for `slot`, which the column with this salt added, if one did.
    #[must_use]
    pub fn key_share(&self, column: Option<&[u8; 32]>, slot: u32) -> [u8; 16] {
        let mut out = [0; 16];
        row_generator(&self.seed, column).fill(u64::from(slot), &mut out);
        out
    }
}

impl ShareTwo {
    /// Whether this is the share that the header commits to.
    #[must_use]
    pub fn matches(&self, header: &Header) -> bool {
        header.commitments[1].opens_to(LABEL_SHARE_TWO, &self.opening, &self.row)
    }
}

/// The slots `from..to` of party 1's row, 16 bytes each: from the announcement's seed, or for slots that a column with this
/// salt added. Two columns never have one mask, even for one slot of one object.
#[must_use]
pub fn expand(seed: &Seed, column: Option<&[u8; 32]>, from: u32, to: u32) -> Vec<u8> {
    let mut out = vec![0; (to.saturating_sub(from)) as usize * 16];
    row_generator(seed, column).fill(u64::from(from), &mut out);
    out
}

/// Party 1's share of the key, in mode `mpc`.
#[must_use]
pub fn key_mask(seed: &Seed) -> [u8; 16] {
    *kdf::derive::<16>(LABEL_KEY_SHARE, seed.expose(), &[]).expose()
}

/// Party 1's share of the policy for the slots of an announcement, or of a column with this salt, in mode `mpc`: one bit a slot,
/// the first in bit 0 of byte 0, zeros after the last.
#[must_use]
pub fn policy_mask(seed: &Seed, column: Option<&[u8; 32]>, slots: u32) -> Vec<u8> {
    let key = match column {
        None => kdf::derive::<16>(LABEL_POLICY, seed.expose(), &[]),
        Some(salt) => kdf::derive::<16>(LABEL_COLUMN_POLICY, seed.expose(), salt),
    };
    let mut bits = vec![0; (slots as usize).div_ceil(8)];
    Prg::new(key.expose()).fill(0, &mut bits);
    if let Some(last) = bits.last_mut().filter(|_| !slots.is_multiple_of(8)) {
        *last &= (1 << (slots % 8)) - 1;
    }
    bits
}

/// Party 2's share of the policy in mode `mpc`: party 1's ([`policy_mask`]) XOR the policy.
#[must_use]
pub fn policy_row(seed: &Seed, column: Option<&[u8; 32]>, exported: &[bool]) -> Vec<u8> {
    let mut bits = policy_mask(seed, column, u32::try_from(exported.len()).expect("at most MAX_SLOTS"));
    for (byte, exported) in bits.iter_mut().zip(exported.chunks(8)) {
        *byte ^= exported.iter().rev().fold(0, |byte, exported| byte << 1 | u8::from(*exported));
    }
    bits
}

fn row_generator(seed: &Seed, column: Option<&[u8; 32]>) -> Prg {
    let key = match column {
        None => kdf::derive::<16>(LABEL_ROW, seed.expose(), &[]),
        Some(salt) => kdf::derive::<16>(LABEL_COLUMN_ROW, seed.expose(), salt),
    };
    Prg::new(key.expose())
}

/// The key that means "not exported to you": public, one per exchange and epoch.
#[must_use]
pub fn dummy_key(exchange: &str, epoch: u64) -> Key128 {
    kdf::derive(LABEL_DUMMY, exchange.as_bytes(), &epoch.to_be_bytes())
}

/// The name of a blob, which party 2 hands out so that party 1 cannot show different members different blobs.
#[must_use]
pub fn blob_hash(blob: &[u8]) -> [u8; 32] {
    hash(LABEL_BLOB_HASH, &[blob])
}

/// The smallest size class that holds `len` bytes: 512, 1024, 2048 and so on by doubling.
#[must_use]
pub fn size_class(len: usize) -> usize {
    len.next_power_of_two().max(512)
}

/// An announcement made ready: what goes to each party, and what its announcer keeps to extend it by columns.
pub struct Sealed {
    pub header: Header,
    pub one: ShareOne,
    pub blob: Vec<u8>,
    pub two: ShareTwo,
    /// Kept by the announcer alone.
    pub key: Key128,
}

/// Fresh randomness of one announcement; every field uniformly random and used once.
pub struct Fresh {
    pub key: [u8; 16],
    /// The seed of party 1's row.
    pub seed: [u8; 32],
    /// The openings of the two commitments.
    pub openings: [[u8; 32]; 2],
}

/// Makes an announcement: seals `attributes`, and shares key and policy between the parties as `mode` says.
///
/// `exported[slot]` is whether that slot may open the route; the row has the same width.
#[must_use]
pub fn announce(
    mode: ExportMode,
    exchange: &str,
    description: Description,
    (attributes, signed_for): (&[u8], &[u8; 32]),
    exported: &[bool],
    fresh: &Fresh,
    signing: &SigningKey,
) -> Sealed {
    let key = Key128::new(fresh.key);
    let handle = description.handle(exchange);
    let blob = seal_blob(&handle, &description, (attributes, signed_for), &key, signing);
    let one = ShareOne { opening: fresh.openings[0], seed: Seed::new(fresh.seed) };
    let row = match mode {
        ExportMode::Direct => key_row(exchange, (&one.seed, None), &key, description.epoch, 0, exported),
        ExportMode::Mpc => {
            let masked = key.xor(&Key128::new(key_mask(&one.seed)));
            [masked.expose().as_slice(), &policy_row(&one.seed, None, exported)].concat()
        }
    };
    let two = ShareTwo { opening: fresh.openings[1], row: row.into() };
    let commitments =
        [commit(LABEL_SHARE_ONE, &one.opening, one.seed.expose()), commit(LABEL_SHARE_TWO, &two.opening, &two.row)];
    let header = Header::sign(exchange, description, blob_hash(&blob), commitments, signing);
    Sealed { header, one, blob, two, key }
}

/// Party 2's row for slots `from..from + exported.len()`: party 1's row, which [`expand`] makes of the seed and the column's
/// salt, XOR the key where exported, else the dummy key.
#[must_use]
pub fn key_row(
    exchange: &str,
    (seed, column): (&Seed, Option<&[u8; 32]>),
    key: &Key128,
    epoch: u64,
    from: u32,
    exported: &[bool],
) -> Vec<u8> {
    let dummy = dummy_key(exchange, epoch);
    let to = from + u32::try_from(exported.len()).expect("at most MAX_SLOTS");
    let mut row = expand(seed, column, from, to);
    for (chunk, &exported) in row.chunks_exact_mut(16).zip(exported) {
        let mask = 0u8.wrapping_sub(u8::from(exported));
        for ((byte, k), d) in chunk.iter_mut().zip(key.expose()).zip(dummy.expose()) {
            *byte ^= (k & mask) | (d & !mask);
        }
    }
    row
}

/// A withdrawal: small, and visible as such.
#[must_use]
pub fn withdraw(exchange: &str, description: Description, signing: &SigningKey) -> Header {
    Header::sign(exchange, description, [0; 32], [Commitment([0; 32]); 2], signing)
}

/// A column: party 2's shares for new slots, one run of [`ExportMode::column_bytes`] for each version in turn.
#[must_use]
pub fn column(
    exchange: &str,
    description: Description,
    opening: [u8; 32],
    row: Vec<u8>,
    signing: &SigningKey,
) -> (Header, ShareTwo) {
    let two = ShareTwo { opening, row: row.into() };
    let commitments = [Commitment([0; 32]), commit(LABEL_SHARE_TWO, &two.opening, &two.row)];
    (Header::sign(exchange, description, [0; 32], commitments, signing), two)
}

/// Blob plaintext: `description (counted) || attributes (counted) || digest of the members that they were signed for (32) ||
/// signature (64) || zeros to the size class`.
fn seal_blob(
    handle: &Handle,
    description: &Description,
    (attributes, signed_for): (&[u8], &[u8; 32]),
    key: &Key128,
    signing: &SigningKey,
) -> Vec<u8> {
    let mut w = Writer::new();
    w.blob(&wire::encode(description)).blob(attributes).bytes(signed_for);
    w.bytes(&signing.sign(LABEL_ROUTE, &route_bytes(handle, attributes, signed_for)));
    let mut plain = w.finish();
    plain.resize(size_class(plain.len() + seal::OVERHEAD) - seal::OVERHEAD, 0);
    seal::seal(LABEL_BLOB, key, &handle.0, &plain)
}

fn route_bytes(handle: &Handle, attributes: &[u8], signed_for: &[u8; 32]) -> Vec<u8> {
    let mut w = Writer::new();
    w.bytes(&handle.0).blob(attributes).bytes(signed_for);
    w.finish()
}

/// What a receiver finds in a blob that its key opens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The description, checked against the handle.
    pub description: Description,
    /// Raw path attributes; not yet decoded.
    pub attributes: Vec<u8>,
    /// Whom the attestation in it is for: [`MemberSet::neighbours_digest`](crate::directory::MemberSet::neighbours_digest) of
    /// the set under which it was signed, or, if this announcer signed nothing, of its newest.
    pub signed_for: [u8; 32],
    /// The announcer's signature; not yet verified.
    pub signature: Signature,
}

/// Why a blob was not opened. None of these happens between honest peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The key is neither the dummy nor the blob's: a share was changed.
    #[error("the combined key is neither the dummy key nor the blob's key")]
    Key,
    /// The blob opened and does not hold what it must.
    #[error("the blob's content is malformed: {0}")]
    Content(#[from] Malformed),
    /// The blob holds another description than the parties were shown.
    #[error("the blob describes another route than the object's header")]
    Description,
    /// It has a format that came after this program. No peer erred: this member read it before, and runs an older program now.
    #[error("the route has format {0}, which this program does not read")]
    Format(u16),
}

/// Opens a blob. `Ok(None)`: the route is not exported to the receiver.
///
/// The combined key is compared with the dummy key of `epoch` in constant time.
pub fn open(
    exchange: &str,
    epoch: u64,
    handle: &Handle,
    shares: [&[u8; 16]; 2],
    blob: &[u8],
) -> Result<Option<Opened>, OpenError> {
    let key = Key128::new(*shares[0]).xor(&Key128::new(*shares[1]));
    if key == dummy_key(exchange, epoch) {
        return Ok(None);
    }
    let plain = seal::open(LABEL_BLOB, &key, &handle.0, blob).map_err(|_| OpenError::Key)?;
    let mut r = Reader::new(&plain);
    let described = r.blob(MAX_BLOB)?;
    if let Some(format) = described.first().map(|octet| u16::from(*octet)).filter(|format| *format > Format::NEWEST) {
        return Err(OpenError::Format(format));
    }
    let description: Description = wire::decode(described)?;
    if description.handle(exchange) != *handle || !matches!(description.kind, Kind::Announce { .. }) {
        return Err(OpenError::Description);
    }
    let attributes = r.blob(MAX_BLOB)?.to_vec();
    let (signed_for, signature) = (r.array()?, r.array()?);
    Ok(Some(Opened { description, attributes, signed_for, signature }))
}

impl Opened {
    /// Whether the announcer signed this route.
    #[must_use]
    pub fn is_signed_by(&self, handle: &Handle, key: &VerifyingKey) -> bool {
        key.verify(LABEL_ROUTE, &route_bytes(handle, &self.attributes, &self.signed_for), &self.signature).is_ok()
    }
}

//! The one trait that every signature suite fits, and the numbers that name the suites.

pub mod ed25519;
pub mod hbs;
pub mod p256;
pub mod rsa;
pub mod rsa_key;
pub mod slh_dsa;

use std::fmt;

use wayleave_core::UnixTime;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

/// A suite's number on the wire and its name in configuration and benchmarks.
///
/// Numbers from `0x80` are reserved for the laboratory: no suite of [`of`] has them, and the standard profile refuses them.
/// The suites themselves, the papers' and the baselines, are in `wayleave-papers`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum SuiteId {
    /// Ed25519, verified under the cofactored rule of ZIP-215 alone and in batches.
    KcEd25519 = 1,
    /// Hash-based signatures whose indices follow time: W-OTS under Merkle trees.
    KcHbs = 2,
    /// RSA-3072, one PSS signature a hop.
    KcRsa = 3,
    /// RSA-2048, the measured lower profile of `kc-rsa`.
    KcRsa2048 = 4,
    /// ECDSA over P-256 with SHA-256, for the router keys of the RPKI (RFC 8608).
    KcP256 = 5,
    /// SLH-DSA-SHA2-128s (FIPS 205), for objects of the PKI: it signs no hop, and a chain takes it for a suite that is not known.
    SlhDsa128s = 6,
    /// Reserved for the laboratory: the paper's HORS (512, 3) over an AES-based tree (section IV-B).
    KcMtPaper = 0x81,
    /// Reserved for the laboratory: the paper's RSA-1024 with XOR aggregation (section IV-A).
    KcRsaPaper = 0x82,
    /// Reserved for the laboratory: the paper's hybrid of both (section IV-C).
    KcHybridPaper = 0x83,
    /// Reserved for the laboratory: S-BGP, with DSA-1024.
    SBgp = 0x91,
    /// Reserved for the laboratory: sequential aggregate RSA with bit vectors (Zhao, Smith and Nicol).
    SasV = 0x92,
    /// Reserved for the laboratory: secure path vector (Hu, Perrig and Sirbu).
    Spv = 0x93,
    /// Reserved for the laboratory: BGPsec (RFC 8205, RFC 8608).
    Bgpsec = 0x94,
}

impl SuiteId {
    /// Every suite that a chain may use.
    pub const ALL: [Self; 5] = [Self::KcEd25519, Self::KcHbs, Self::KcRsa, Self::KcRsa2048, Self::KcP256];

    /// Every suite that signs objects of the PKI and no hop of a chain.
    pub const OF_OBJECTS: [Self; 1] = [Self::SlhDsa128s];

    /// Every number that is reserved for the laboratory.
    pub const RESERVED: [Self; 7] =
        [Self::KcMtPaper, Self::KcRsaPaper, Self::KcHybridPaper, Self::SBgp, Self::SasV, Self::Spv, Self::Bgpsec];

    fn known() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::OF_OBJECTS).chain(Self::RESERVED)
    }

    /// The name in configuration, benchmarks and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KcEd25519 => "kc-ed25519",
            Self::KcHbs => "kc-hbs",
            Self::KcRsa => "kc-rsa",
            Self::KcRsa2048 => "kc-rsa-2048",
            Self::KcP256 => "kc-p256",
            Self::SlhDsa128s => "slh-dsa-sha2-128s",
            Self::KcMtPaper => "kc-mt-paper",
            Self::KcRsaPaper => "kc-rsa-paper",
            Self::KcHybridPaper => "kc-hybrid-paper",
            Self::SBgp => "s-bgp",
            Self::SasV => "sas-v",
            Self::Spv => "spv",
            Self::Bgpsec => "bgpsec",
        }
    }

    /// The suite of this name, reserved or not.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::known().find(|suite| suite.name() == name)
    }

    /// The suite of this number, reserved or not.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::known().find(|suite| *suite as u8 == byte)
    }

    /// Whether the number is reserved for the laboratory and the benchmarks.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        self as u8 >= 0x80
    }
}

impl fmt::Display for SuiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The suites that a chain may use, each once for the process; `None` for a reserved number.
#[must_use]
pub fn of(id: SuiteId) -> Option<&'static dyn Suite> {
    match id {
        SuiteId::KcEd25519 => Some(&ed25519::Ed25519),
        SuiteId::KcHbs => Some(&hbs::KcHbs),
        SuiteId::KcRsa => Some(&rsa::RSA_3072),
        SuiteId::KcRsa2048 => Some(&rsa::RSA_2048),
        SuiteId::KcP256 => Some(&p256::P256),
        _ => None,
    }
}

/// The suites of key files: those of chains, and those of objects.
#[must_use]
pub fn of_key_file(id: SuiteId) -> Option<&'static dyn Suite> {
    if id == SuiteId::SlhDsa128s { Some(&slh_dsa::SlhDsa) } else { of(id) }
}

/// A signature scheme as a hop of a chain uses it.
pub trait Suite: Send + Sync {
    /// Which suite this is.
    fn id(&self) -> SuiteId;
    /// Bits of security against forgery, as claimed for the whole life of a key.
    fn strength(&self) -> u16;
    /// Whether it withstands quantum computers.
    fn is_post_quantum(&self) -> bool {
        false
    }
    /// Bytes of an encoded public key.
    fn public_key_len(&self) -> usize;
    /// Bytes of the longest signature.
    fn signature_len(&self) -> usize;
    /// Makes a key pair from a uniformly random seed; the same seed gives the same pair. A few-time key is born in 1970, and
    /// its life is over: such keys are for tests and benchmarks, which set slots as they like.
    fn generate(&self, seed: &Secret<32>) -> Box<dyn SuiteKey>;
    /// Checks a public key before its first use: exact length, canonical, none of the suite's weak keys. Bounded time.
    fn check_key(&self, public: &[u8]) -> Result<(), KeyRefused>;
    /// Accepts the private half of a pair that a neighbour made (the paper's granted keys, section III-A), in the form
    /// of [`SuiteKey::private_half`]: whatever the bytes, it ends in less than a millisecond, and what comes back signs
    /// for `public`. A suite whose keys cannot be handed over refuses all.
    fn take_granted(&self, _public: &[u8], _private: &[u8]) -> Result<Box<dyn SuiteKey>, KeyRefused> {
        Err(KeyRefused::NotGranted)
    }
    /// Whether `signature` is one of `public` over `message`. Never panics, whatever the bytes.
    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> bool;
    /// As [`Suite::verify`] for each claim, always with the same answers, faster where the suite can.
    fn verify_batch(&self, claims: &[Claim<'_>]) -> Vec<bool> {
        claims.iter().map(|claim| self.verify(claim.public, claim.message, claim.signature)).collect()
    }
}

/// A signature to be verified.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub public: &'a [u8],
    /// What was signed.
    pub message: &'a [u8],
    pub signature: &'a [u8],
}

/// The private half of a key pair. It prints as nothing and is wiped when it is dropped.
pub trait SuiteKey: Send {
    /// The encoded public half.
    fn public(&self) -> &[u8];
    /// The private half as it is handed to a neighbour, and never anywhere else; `None` where the suite cannot.
    fn private_half(&self) -> Option<Zeroizing<Vec<u8>>> {
        None
    }
    /// Signs `message`. A few-time key uses up an index of its slot.
    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError>;
    /// How the signatures of a few-time key follow time; `None` where a key signs at any time.
    fn slots(&self) -> Option<Slots> {
        None
    }
    /// Lets a few-time key sign with the indices of this slot of time, which the caller has made durable, and never again
    /// with those of an earlier one; with `None`, and before the first call, it signs nothing.
    fn set_slot(&mut self, _slot: Option<u64>) {}
    /// Signatures that are left in the slot that was last set.
    fn left_in_slot(&self) -> u64 {
        u64::MAX
    }
    /// Computes what signatures in `slot` and later will need; called when nothing more urgent waits.
    fn make_ahead(&mut self, _slot: u64) {}
}

/// How the signatures of a few-time key follow time.
///
/// A key's life is divided into slots, and each index belongs to one of them: whoever signs in the slot of now only, and
/// never in one that has been signed in before, uses no index twice, whatever was forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// When the first begins, in seconds since 1970.
    pub birth: u64,
    /// How many there are.
    pub count: u64,
    /// Signatures that this holder of the key may make in each.
    pub signatures: u64,
}

impl Slots {
    /// How long each lasts.
    pub const SECONDS: u64 = 8;

    /// The slot of a time, which may lie after the last; `None` before the first.
    #[must_use]
    pub fn at(&self, time: UnixTime) -> Option<u64> {
        Some(time.secs().checked_sub(self.birth)? / Self::SECONDS)
    }

    /// When a slot begins, in seconds since 1970.
    #[must_use]
    pub fn begin(&self, slot: u64) -> u64 {
        self.birth.saturating_add(slot.saturating_mul(Self::SECONDS))
    }

    /// When the last one ends, in seconds since 1970.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.begin(self.count)
    }
}

/// Why a public key or a pair was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefused {
    /// The encoding has the wrong length.
    #[error("the key has {have} bytes, not {need}")]
    Length {
        /// Bytes of a key of this suite.
        need: usize,
        /// Bytes that came.
        have: usize,
    },
    /// The encoding is not the canonical one.
    #[error("the key is not encoded canonically")]
    NotCanonical,
    /// A key for which the suite gives no security.
    #[error("the key is weak: {0}")]
    Weak(&'static str),
    /// The suite's keys are not handed over: two holders would sign with one index.
    #[error("keys of this suite are not handed over")]
    NotGranted,
    /// The private and the public half do not belong together.
    #[error("the two halves of the key pair do not belong together")]
    Mismatch,
}

/// Why a key did not sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The few-time key's life is over after so many slots of time; a new key must take its place.
    #[error("all {0} slots of time in which the key may sign are over")]
    Exhausted(u64),
    /// No slot of time is set in which the key may sign, or its signatures in that slot are used up: this index is for a
    /// later one.
    #[error("signature {0} of the key is for a later slot of time")]
    NotReserved(u64),
    /// What the key signed does not verify: its file, or this machine, is faulty.
    #[error("what the {0} key signs does not verify; check its key file and this machine's memory")]
    Faulty(SuiteId),
}

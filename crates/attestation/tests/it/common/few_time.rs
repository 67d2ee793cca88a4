//! Few-time keys for tests: one that is cheap, and real ones that all tests share.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use wayleave_attestation::suite::ed25519::Ed25519;
use wayleave_attestation::suite::hbs::{HbsKey, Part, SLOT_SIGNATURES, SLOTS};
use wayleave_attestation::suite::{Slots, Suite as _};
use wayleave_attestation::{SignError, SuiteKey};
use wayleave_crypto::secret::Secret;

/// A few-time key that is cheap: it counts as one, and signs with Ed25519.
pub struct Counting {
    pub key: Box<dyn SuiteKey>,
    pub slots: Slots,
    pub slot: Option<u64>,
    pub may_sign: bool,
    /// Signatures made in that slot.
    pub next: u64,
    /// Slot and number of every signature.
    pub signed: Arc<Mutex<Vec<(u64, u64)>>>,
    /// The last slot that is durable; it signs in none after it.
    pub durable: Arc<Mutex<Option<u64>>>,
    /// Signatures over which it panics first.
    pub faults: u64,
}

impl Counting {
    /// With many slots and signatures.
    pub fn new(seed: &[u8; 32], birth: u64) -> Self {
        Self {
            key: Ed25519.generate(&Secret::new(*seed)),
            slots: Slots { birth, count: SLOTS, signatures: 1_000_000 },
            slot: None,
            may_sign: false,
            next: 0,
            signed: Arc::default(),
            durable: Arc::new(Mutex::new(Some(u64::MAX))),
            faults: 0,
        }
    }
}

impl SuiteKey for Counting {
    fn public(&self) -> &[u8] {
        self.key.public()
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let Some(slot) = self.slot.filter(|_| self.may_sign) else { return Err(SignError::NotReserved(self.next)) };
        if slot >= self.slots.count {
            return Err(SignError::Exhausted(self.slots.count));
        }
        if self.left_in_slot() == 0 {
            return Err(SignError::NotReserved(self.next));
        }
        let durable = *self.durable.lock().expect("one thread");
        assert!(durable.is_some_and(|durable| durable >= slot), "slot {slot} while {durable:?} is durable");
        if self.faults > 0 {
            self.faults -= 1;
            panic!("a fault of ours");
        }
        self.signed.lock().expect("one thread").push((slot, self.next));
        self.next += 1;
        self.key.sign(message)
    }

    fn slots(&self) -> Option<Slots> {
        Some(self.slots)
    }

    fn set_slot(&mut self, slot: Option<u64>) {
        self.may_sign = slot.is_some() && slot >= self.slot;
        if self.may_sign && slot > self.slot {
            (self.slot, self.next) = (slot, 0);
        }
    }

    fn left_in_slot(&self) -> u64 {
        self.slots.signatures - self.next
    }
}

/// A real key that several holders share: making one takes seconds. It signs in the next slot where theirs is over for it,
/// which no verifier sees.
struct Shared {
    key: HbsKey,
    slot: u64,
}

/// A holder of a shared key, which is born whenever the holder likes.
pub struct SharedHbs {
    shared: Arc<Mutex<Shared>>,
    public: Vec<u8>,
    birth: u64,
    slot: Option<u64>,
    may_sign: bool,
    left: u64,
}

impl SharedHbs {
    /// One of a few keys, by `seed`.
    pub fn new(seed: u8, birth: u64) -> Self {
        static KEYS: OnceLock<Mutex<HashMap<u8, Arc<Mutex<Shared>>>>> = OnceLock::new();
        let mut keys = KEYS.get_or_init(Mutex::default).lock().expect("no panic within");
        let shared = keys.entry(seed).or_insert_with(|| {
            let key = HbsKey::new(&Secret::new([seed; 32]), 0, Part::WHOLE);
            Arc::new(Mutex::new(Shared { key, slot: 0 }))
        });
        let shared = Arc::clone(shared);
        drop(keys);
        let public = shared.lock().expect("no panic within").key.public().to_vec();
        Self { shared, public, birth, slot: None, may_sign: false, left: SLOT_SIGNATURES }
    }

    /// As [`SharedHbs::new`], and may sign.
    pub fn signing(seed: u8) -> Self {
        let mut key = Self::new(seed, 0);
        key.set_slot(Some(0));
        (key.left, key.birth) = (u64::MAX, 0);
        key
    }
}

impl SuiteKey for SharedHbs {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        if !self.may_sign || self.left == 0 {
            return Err(SignError::NotReserved(0));
        }
        self.left -= 1;
        let mut shared = self.shared.lock().expect("no panic within");
        let slot = shared.slot;
        shared.key.set_slot(Some(slot));
        if shared.key.left_in_slot() == 0 {
            shared.slot += 1;
            shared.key.set_slot(Some(slot + 1));
        }
        shared.key.sign(message)
    }

    fn slots(&self) -> Option<Slots> {
        Some(Slots { birth: self.birth, count: SLOTS, signatures: SLOT_SIGNATURES })
    }

    fn set_slot(&mut self, slot: Option<u64>) {
        self.may_sign = slot.is_some() && slot >= self.slot;
        if self.may_sign && slot > self.slot {
            (self.slot, self.left) = (slot, SLOT_SIGNATURES);
        }
    }

    fn left_in_slot(&self) -> u64 {
        self.left
    }
}

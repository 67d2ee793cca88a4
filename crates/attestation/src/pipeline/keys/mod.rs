//! The keys of an AS as its proxies hold them: shared with whoever signs, with the counts of the few-time ones.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::{Asn, UnixTime};

mod few_time;

use few_time::Reserves;
pub use few_time::{Reserve, SignaturesLeft};

use crate::attest::{KeyRing, Pair as KeyPair};
use crate::pki::View;

/// Keys for whoever signs: one at a time.
#[derive(Clone)]
pub(crate) struct SharedKeyRing(Arc<Mutex<KeyRing>>);

impl SharedKeyRing {
    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what few-time keys need for their next signatures; whether that went well.
    pub(crate) fn make_ahead(&self) -> bool {
        let mut ring = self.lock();
        catch_unwind(AssertUnwindSafe(|| ring.pairs.iter_mut().for_each(|pair| pair.key.make_ahead()))).is_ok()
    }
}

/// The ring, what is durable of its few-time keys, and the sequence of what it signs as origin.
pub(crate) struct SigningKeys {
    pub(crate) ring: SharedKeyRing,
    reserves: Reserves,
    sequence: u64,
}

impl SigningKeys {
    /// `used`: by encoded public key, how often it may have signed in earlier lives.
    pub(crate) fn new(ring: KeyRing, used: &HashMap<Vec<u8>, u64>) -> Self {
        let reserves = Reserves::new(&ring, used);
        Self { ring: SharedKeyRing(Arc::new(Mutex::new(ring))), reserves, sequence: 0 }
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.lock().pairs.is_empty()
    }

    /// Whether some sign only so often.
    pub(crate) fn are_few_time(&self) -> bool {
        !self.reserves.is_empty()
    }

    /// Signatures that are left of the key at this place of the ring, if it is a few-time key.
    pub(crate) fn left(&self, place: usize, pair: &KeyPair) -> Option<SignaturesLeft> {
        self.reserves.left(place, pair)
    }

    /// What is to be made durable, well before it is used, and which keys will end.
    pub(crate) fn reserve(&mut self) -> (Vec<Reserve>, Vec<SignaturesLeft>) {
        let ring = self.ring.lock();
        (self.reserves.due(&ring), self.reserves.ending(&ring))
    }

    /// What was asked for under `id` is durable. Whether a key may sign more often now.
    pub(crate) fn persisted(&mut self, id: u64) -> bool {
        self.reserves.persisted(id, &mut self.ring.lock())
    }

    /// Notes which keys are registered for `asn`; whether those are others than before.
    pub(crate) fn register(&self, view: &View, asn: Asn) -> bool {
        let mut changed = false;
        for pair in &mut self.ring.lock().pairs {
            let registered = view.key_of_leaf(asn, &pair.leaf_key()).is_some();
            changed |= std::mem::replace(&mut pair.registered, registered) != registered;
        }
        changed
    }

    /// The sequence of the first list of a burst of so many routes: it rises with time, also over restarts, and with each
    /// list.
    pub(crate) fn sequence(&mut self, now: UnixTime, routes: usize) -> u64 {
        let first = (self.sequence + 1).max(now.0);
        // Twice: after a panic every list is signed anew.
        self.sequence = first + 2 * routes as u64;
        first
    }
}

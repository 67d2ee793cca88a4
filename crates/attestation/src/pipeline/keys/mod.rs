//! The keys of an AS: the ring that signing jobs share, and the reserves of few-time keys.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::{Asn, UnixTime};

mod few_time;

use few_time::Reserves;
pub use few_time::{Reserve, SignaturesLeft};

use crate::pki::View;
use crate::sign::{KeyPair, KeyRing};

/// The key ring, for one signing job at a time.
#[derive(Clone)]
pub(crate) struct SharedKeyRing(Arc<Mutex<KeyRing>>);

impl SharedKeyRing {
    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes what few-time keys need for their next signatures. Returns false if that panicked.
    pub(crate) fn make_ahead(&self) -> bool {
        let mut ring = self.lock();
        catch_unwind(AssertUnwindSafe(|| ring.pairs.iter_mut().for_each(|pair| pair.key.make_ahead()))).is_ok()
    }
}

/// The ring, the reserves of its few-time keys, and the sequence of what it signs as origin.
pub(crate) struct SigningKeys {
    pub(crate) ring: SharedKeyRing,
    reserves: Reserves,
    sequence: u64,
}

impl SigningKeys {
    /// `used`: by encoded public key, how often it may have signed before this start.
    pub(crate) fn new(ring: KeyRing, used: &HashMap<Vec<u8>, u64>) -> Self {
        let reserves = Reserves::new(&ring, used);
        Self { ring: SharedKeyRing(Arc::new(Mutex::new(ring))), reserves, sequence: 0 }
    }

    /// Whether there is no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.lock().pairs.is_empty()
    }

    /// Whether some keys sign a limited number of times.
    pub(crate) fn are_few_time(&self) -> bool {
        !self.reserves.is_empty()
    }

    /// Signatures that are left of the key at this index of the ring; `None` if it signs without limit.
    pub(crate) fn left(&self, index: usize, pair: &KeyPair) -> Option<SignaturesLeft> {
        self.reserves.left(index, pair)
    }

    /// The reserves that must be made durable now, well before they are used, and the keys that will end.
    pub(crate) fn reserve(&mut self) -> (Vec<Reserve>, Vec<SignaturesLeft>) {
        let ring = self.ring.lock();
        (self.reserves.due(&ring), self.reserves.ending(&ring))
    }

    /// The reserve `id` is durable. Returns whether a key may sign more often now.
    pub(crate) fn persisted(&mut self, id: u64) -> bool {
        self.reserves.persisted(id, &mut self.ring.lock())
    }

    /// Notes which keys are registered for `asn`. Returns whether that has changed.
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
        // Twice: after a panic every list is signed again.
        self.sequence = first + 2 * routes as u64;
        first
    }
}

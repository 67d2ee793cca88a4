//! The keys of an AS: the ring that signing jobs share, and the slots of time in which few-time keys sign.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::{Asn, Now, UnixTime, contained};

mod few_time;

use few_time::FewTimeKeys;
pub(crate) use few_time::KeyEvent;
pub use few_time::{FewTimeStatus, KeyEnd, KeyWait, Reserve, WaitReason};

use crate::leaf::{KeyId, LeafKey};
use crate::pki::View;
use crate::sign::{KeyPair, KeyRing};
use crate::suite::{Slots, SuiteId};

/// The key ring, for one signing job at a time.
#[derive(Clone)]
pub(crate) struct SharedKeyRing(Arc<Mutex<KeyRing>>);

impl SharedKeyRing {
    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes what few-time keys need for their signatures in these slots, by index in the ring. Returns false if that
    /// panicked.
    pub(crate) fn make_ahead(&self, slots: &[(usize, u64)]) -> bool {
        let mut ring = self.lock();
        contained(|| {
            for (index, slot) in slots {
                ring.pairs.get_mut(*index).into_iter().for_each(|pair| pair.key.make_ahead(*slot));
            }
        })
        .is_some()
    }
}

/// What is known of a key of the ring while a job has the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldKey {
    pub(crate) suite: SuiteId,
    pub(crate) leaf: LeafKey,
    pub(crate) registered: bool,
    /// It is or was registered since the start.
    pub(crate) was_registered: bool,
    /// When it signed a hop last, in seconds since 1970; `None`: not since the start.
    pub(crate) last_signed: Option<u64>,
    /// Of a few-time key.
    pub(crate) slots: Option<Slots>,
}

/// Which of the keys sign, as operators are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyUse {
    /// The AS registered no keys, or none is here: keys sign where a neighbour endorses them.
    Unbound,
    /// The first registered one.
    Signs(KeyId),
    /// The AS registered keys, and none of those here: nothing is signed. Or it registered none, though its record says that its routes
    /// are signed: own routes leave unsigned, whoever endorses the keys.
    Unregistered,
}

/// The ring, its few-time keys, and the sequence of what it signs as origin.
pub(crate) struct SigningKeys {
    ring: SharedKeyRing,
    /// The keys of the ring, in its order. What is asked or registered while a job signs is asked and noted here: a job may
    /// take long, and no input waits for it.
    held: Vec<HeldKey>,
    pub(crate) few_time: FewTimeKeys,
    sequence: u64,
    /// When the process began, in seconds since 1970.
    started: u64,
}

impl SigningKeys {
    /// `seen`: by encoded public key, the last slot of time in which a few-time key may have signed before this start.
    pub(crate) fn new(ring: KeyRing, seen: &HashMap<Vec<u8>, u64>, now: Now) -> Self {
        let few_time = FewTimeKeys::new(&ring, seen, now);
        let held = held(&ring);
        Self { ring: SharedKeyRing(Arc::new(Mutex::new(ring))), held, few_time, sequence: 0, started: now.unix.secs() }
    }

    /// Whether there is no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// When the process began, in seconds since 1970: what signed before is not known.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// The keys, the preferred first.
    pub(crate) fn held(&self) -> &[HeldKey] {
        &self.held
    }

    /// The ring, for a job.
    pub(crate) fn shared(&self) -> SharedKeyRing {
        self.ring.clone()
    }

    /// Gives the next job's keys what was noted since the last one, and lets few-time keys sign in the slot of now, if they
    /// may. Only while no job signs: it holds the ring.
    pub(crate) fn open(&mut self, now: UnixTime) {
        let mut ring = self.ring.lock();
        note_registered(&self.held, &mut ring);
        if !self.few_time.is_empty() {
            self.few_time.open(&mut ring, now);
        }
    }

    /// Changes the ring. Only while no job signs.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut KeyRing)) {
        let mut ring = self.ring.lock();
        note_registered(&self.held, &mut ring);
        change(&mut ring);
        let before = std::mem::replace(&mut self.held, held(&ring));
        for key in &mut self.held {
            if let Some(known) = before.iter().find(|known| known.leaf == key.leaf) {
                (key.was_registered, key.last_signed) = (known.was_registered, known.last_signed);
            }
        }
    }

    /// Which of the keys sign, by what the view lists.
    pub(crate) fn key_use(&self, view: &View, asn: Asn) -> KeyUse {
        match self.held.iter().find(|key| key.registered) {
            Some(key) => KeyUse::Signs(key.leaf.id()),
            None if !self.held.is_empty() && (view.is_registered(asn) || view.requires_attestation(asn)) => {
                KeyUse::Unregistered
            }
            None => KeyUse::Unbound,
        }
    }

    /// Notes that a key has signed a hop.
    pub(crate) fn note_signed(&mut self, id: KeyId, unix: u64) {
        self.held.iter_mut().filter(|key| key.leaf.id() == id).for_each(|key| key.last_signed = Some(unix));
    }

    /// Puts keys first that the ring does not have; `seen` as at a start. The others stay, for chains that name them, and for as long as
    /// they are registered. Only while no job signs. Returns how many were new.
    pub(crate) fn put_first(&mut self, pairs: Vec<KeyPair>, seen: &HashMap<Vec<u8>, u64>) -> usize {
        let known: Vec<LeafKey> = self.held.iter().map(|key| key.leaf).collect();
        let new: Vec<KeyPair> = pairs.into_iter().filter(|pair| !known.contains(&pair.leaf_key())).collect();
        let count = new.len();
        self.few_time.put_first(&new, seen);
        self.change(|ring| drop(ring.pairs.splice(0..0, new)));
        count
    }

    /// A job has signed. `have_waited`: for some routes no key could.
    pub(crate) fn signed(&mut self, have_waited: bool, now: UnixTime) {
        if !self.few_time.is_empty() {
            self.few_time.signed(&self.ring.lock(), have_waited, now);
        }
    }

    /// Notes which keys are registered for `asn`, for the next job. Returns whether that has changed.
    pub(crate) fn register(&mut self, view: &View, asn: Asn) -> bool {
        let mut changed = false;
        for key in &mut self.held {
            let registered = view.key_of_leaf(asn, &key.leaf).is_some();
            changed |= std::mem::replace(&mut key.registered, registered) != registered;
            key.was_registered |= registered;
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

fn held(ring: &KeyRing) -> Vec<HeldKey> {
    let held = ring.pairs.iter().map(|pair| HeldKey {
        suite: pair.suite,
        leaf: pair.leaf_key(),
        registered: pair.registered,
        was_registered: pair.registered,
        last_signed: None,
        slots: pair.key.slots(),
    });
    held.collect()
}

fn note_registered(held: &[HeldKey], ring: &mut KeyRing) {
    for (pair, key) in ring.pairs.iter_mut().zip(held) {
        pair.registered = key.registered;
    }
}

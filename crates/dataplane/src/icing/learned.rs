//! The paths that the threads of a node have learnt. A packet that has the handle alone may come to another thread than the packets with
//! the path did: a neighbour goes over to another address, or packets of several paths are merged into one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::UnixTime;
use wayleave_packet::icing::header::Handle;

use super::cache::{Cache, Owner};
use super::config::Indexed;
use super::known_path::KnownPath;

/// By handle, each with whoever caused it.
type ByHandle = Cache<Handle, Box<(Owner, KnownPath)>>;

/// What all threads have learnt.
#[derive(Clone)]
pub(super) struct LearnedPaths(Arc<Mutex<ByHandle>>);

impl std::fmt::Debug for LearnedPaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LearnedPaths")
    }
}

impl LearnedPaths {
    /// Room for `capacity` paths.
    pub(super) fn new(capacity: usize, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Cache::new(capacity, seed))))
    }

    fn all(&self) -> MutexGuard<'_, ByHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the threads has learnt a path.
    pub(super) fn insert(&self, handle: Handle, known: &KnownPath, owner: Owner, now: UnixTime) {
        self.all().insert(handle, Box::new((owner, known.another(now))), owner);
    }

    /// The path of `handle`, if any thread has learnt it.
    pub(super) fn get(&self, handle: &Handle, now: UnixTime) -> Option<(Owner, KnownPath)> {
        self.all().get(handle).map(|learned| (learned.0, learned.1.another(now)))
    }

    /// Forgets what a policy has no key for any more.
    pub(super) fn retain(&self, policy: &Indexed) {
        self.all().retain(|_, learned| learned.1.decide(policy).is_some());
    }
}

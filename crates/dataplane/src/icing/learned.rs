//! The paths that the threads of a node have learnt. A packet that has the handle alone may come to another thread than the packets with
//! the path did: a neighbour goes over to another address, or packets of several paths are merged into one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::UnixTime;
use wayleave_packet::icing::header::Handle;

use super::cache::{Cache, Owner};
use super::config::{Indexed, Policy};
use super::known_path::KnownPath;

/// What all threads have learnt.
#[derive(Clone)]
pub(super) struct LearnedPaths(Arc<Mutex<Table>>);

struct Table {
    /// By handle.
    paths: Cache<Handle, Box<KnownPath>>,
    /// The policy by which all of them were decided.
    policy: Policy,
}

impl std::fmt::Debug for LearnedPaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LearnedPaths")
    }
}

impl LearnedPaths {
    /// Room for `capacity` paths.
    pub(super) fn new(capacity: usize, seed: u64, policy: Policy) -> Self {
        Self(Arc::new(Mutex::new(Table { paths: Cache::new(capacity, seed), policy })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the threads has learnt a path under this policy. One that has not heard of the latest policy yet adds nothing: what that has no
    /// key for was forgotten.
    pub(super) fn insert(&self, handle: Handle, known: &KnownPath, owner: Owner, policy: &Indexed, now: UnixTime) {
        let mut table = self.table();
        if table.policy.decides_like(policy) {
            table.paths.insert(handle, Box::new(known.another(now)), owner);
        }
    }

    /// The path of `handle`, if any thread has learnt it and it is the one that is looked for.
    pub(super) fn get(
        &self,
        handle: &Handle,
        now: UnixTime,
        is_right: impl FnOnce(&KnownPath) -> bool,
    ) -> Option<KnownPath> {
        self.table().paths.get(handle).filter(|known| is_right(known)).map(|known| known.another(now))
    }

    /// A thread has this policy from now on. The first one to say so of a new policy has forgotten what that has no key for; it is one walk for
    /// all threads. Returns how many paths were decided anew.
    pub(super) fn set_policy(&self, policy: &Indexed) -> u64 {
        let mut table = self.table();
        let mut decided = 0;
        if !table.policy.decides_like(policy) {
            table.paths.retain(|_, known| {
                decided += 1;
                known.decide(policy).is_some()
            });
            table.policy = Policy::clone(policy);
        }
        decided
    }
}

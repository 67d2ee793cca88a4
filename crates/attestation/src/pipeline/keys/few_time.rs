//! Reserves of few-time keys: an index is used only after it is durable that it may have been used.

use std::collections::HashMap;

use crate::SuiteId;
use crate::sign::{KeyPair, KeyRing};

/// Signatures of a few-time key that are made durable ahead of their use.
const RESERVE: u64 = 1024;
/// Percent of a key's signatures that are left when a warning is due that the key will end.
const WARNINGS: [u64; 3] = [25, 10, 1];

/// What is used and reserved of a few-time key.
struct FewTimeKey {
    /// In the ring.
    index: usize,
    public: Vec<u8>,
    /// Indices below it may have been used before this start.
    from: u64,
    /// Indices below it are reserved, durably.
    limit: u64,
    /// A reserve on its way to the store: id and limit.
    pending: Option<(u64, u64)>,
    /// How many of the warnings have been given.
    warned: usize,
}

impl FewTimeKey {
    fn left(&self, pair: &KeyPair) -> Option<SignaturesLeft> {
        let all = pair.key.signatures()?;
        let next = pair.key.next_index()?.max(self.from);
        let of = all.end - all.start;
        Some(SignaturesLeft { suite: pair.suite, left: all.end.saturating_sub(next).min(of), of })
    }
}

/// How many signatures a few-time key has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignaturesLeft {
    pub suite: SuiteId,
    /// Signatures that this process may still make with it.
    pub left: u64,
    /// Signatures that it could make with it in all.
    pub of: u64,
}

impl SignaturesLeft {
    /// The share that is left, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.left as f64 / self.of.max(1) as f64
    }
}

/// A reserve of signatures of a few-time key. Its driver makes durable that the key may have signed with every index
/// below `limit`, and then reports `id` as persisted; no index from `limit` on is used before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// Rises by one each time.
    pub id: u64,
    /// The key's name in the store: its encoded public half.
    pub public: Vec<u8>,
    /// Indices below it count as used after a restart.
    pub limit: u64,
}

/// The reserves of a ring's few-time keys.
pub(crate) struct Reserves {
    keys: Vec<FewTimeKey>,
    persists: u64,
}

impl Reserves {
    /// `used`: by encoded public key, how often it may have signed before this start.
    pub(crate) fn new(ring: &KeyRing, used: &HashMap<Vec<u8>, u64>) -> Self {
        let few_time = ring.pairs.iter().enumerate().filter(|(_, pair)| pair.key.next_index().is_some());
        let keys = few_time.map(|(index, pair)| {
            let public = pair.key.public().to_vec();
            let from = used.get(&public).copied().unwrap_or(0);
            FewTimeKey { index, public, from, limit: from, pending: None, warned: 0 }
        });
        Self { keys: keys.collect(), persists: 0 }
    }

    /// Whether there is no few-time key.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Begins the reserves that are due, well before they are used.
    pub(crate) fn due(&mut self, ring: &KeyRing) -> Vec<Reserve> {
        let mut all = Vec::new();
        for key in &mut self.keys {
            let next = ring.pairs.get(key.index).and_then(|pair| pair.key.next_index());
            let used = next.unwrap_or(0).max(key.from);
            if key.pending.is_some() || key.limit.saturating_sub(used) > RESERVE / 2 {
                continue;
            }
            self.persists += 1;
            // A part of a tree begins at an index of its own.
            let limit = key.limit.max(used) + RESERVE;
            key.pending = Some((self.persists, limit));
            all.push(Reserve { id: self.persists, public: key.public.clone(), limit });
        }
        all
    }

    /// Signatures that are left of the key at this index of the ring; `None` if it signs without limit.
    pub(crate) fn left(&self, index: usize, pair: &KeyPair) -> Option<SignaturesLeft> {
        self.keys.iter().find(|key| key.index == index)?.left(pair)
    }

    /// The keys for which a warning is due; each warning comes once.
    pub(crate) fn ending(&mut self, ring: &KeyRing) -> Vec<SignaturesLeft> {
        let ending = self.keys.iter_mut().filter_map(|key| {
            let left = key.left(ring.pairs.get(key.index)?)?;
            let due = WARNINGS.iter().filter(|percent| left.left * 100 <= left.of * **percent).count();
            let before = key.warned;
            key.warned = due.max(before);
            (due > before).then_some(left)
        });
        ending.collect()
    }

    /// The reserve `id` is durable: the key may sign up to its limit. Returns whether there is such a reserve.
    pub(crate) fn persisted(&mut self, id: u64, ring: &mut KeyRing) -> bool {
        let asked = |key: &&mut FewTimeKey| key.pending.is_some_and(|(of, _)| of == id);
        let Some(key) = self.keys.iter_mut().find(asked) else { return false };
        let Some((_, limit)) = key.pending.take() else { return false };
        key.limit = limit;
        if let Some(pair) = ring.pairs.get_mut(key.index) {
            pair.key.reserve(key.from, limit);
        }
        true
    }
}

//! How many signatures of few-time keys may be made: what is durable before they leave.

use std::collections::HashMap;

use crate::attest::KeyRing;

/// Signatures of a few-time key that are made durable ahead of their use.
const RESERVE: u64 = 1024;

/// A few-time key's count.
struct Reserve {
    /// Its place in the ring.
    place: usize,
    public: Vec<u8>,
    /// What an earlier life left.
    from: u64,
    /// Durable.
    limit: u64,
    /// On its way to the store: id and limit.
    pending: Option<(u64, u64)>,
}

/// What is to be made durable: that the key `public` may have signed with every index below `limit`.
pub(super) struct ToPersist {
    pub(super) id: u64,
    pub(super) public: Vec<u8>,
    pub(super) limit: u64,
}

/// The counts of a ring's few-time keys.
pub(super) struct Reserves {
    keys: Vec<Reserve>,
    persists: u64,
}

impl Reserves {
    /// `used`: by encoded public key, how often it may have signed in earlier lives.
    pub(super) fn new(ring: &KeyRing, used: &HashMap<Vec<u8>, u64>) -> Self {
        let few_time = ring.pairs.iter().enumerate().filter(|(_, pair)| pair.key.next_index().is_some());
        let keys = few_time.map(|(place, pair)| {
            let public = pair.key.public().to_vec();
            let from = used.get(&public).copied().unwrap_or(0);
            Reserve { place, public, from, limit: from, pending: None }
        });
        Self { keys: keys.collect(), persists: 0 }
    }

    /// Whether there is no few-time key.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Asks for more signatures to be made durable, well before they are used.
    pub(super) fn due(&mut self, ring: &KeyRing) -> Vec<ToPersist> {
        let mut all = Vec::new();
        for key in &mut self.keys {
            let next = ring.pairs.get(key.place).and_then(|pair| pair.key.next_index());
            let used = next.unwrap_or(0).max(key.from);
            if key.pending.is_some() || key.limit.saturating_sub(used) > RESERVE / 2 {
                continue;
            }
            self.persists += 1;
            // A part of a tree begins at an index of its own.
            let limit = key.limit.max(used) + RESERVE;
            key.pending = Some((self.persists, limit));
            all.push(ToPersist { id: self.persists, public: key.public.clone(), limit });
        }
        all
    }

    /// What was asked for under `id` is durable: the key may sign so often. Whether there is such a key.
    pub(super) fn persisted(&mut self, id: u64, ring: &mut KeyRing) -> bool {
        let asked = |key: &&mut Reserve| key.pending.is_some_and(|(of, _)| of == id);
        let Some(key) = self.keys.iter_mut().find(asked) else { return false };
        let Some((_, limit)) = key.pending.take() else { return false };
        key.limit = limit;
        if let Some(pair) = ring.pairs.get_mut(key.place) {
            pair.key.reserve(key.from, limit);
        }
        true
    }
}

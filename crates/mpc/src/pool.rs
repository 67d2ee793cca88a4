//! The pool: correlations in memory, each given out once and wiped.

use std::collections::VecDeque;
use std::fmt;

use wayleave_crypto::transpose::Square;
use zeroize::{Zeroize, Zeroizing};

use crate::demand::{Chunk, Demand, Width};
use crate::error::Misuse;
use crate::party::Role;
use crate::rows::{append_bits, copy_bits};
use crate::setup::SessionTag;

/// Correlations of one chunk: made by setup, then added to a pool. In planes: `a`, then each bit of `B`, then each bit of `C`.
pub struct Correlations {
    origin: (Role, SessionTag),
    width: Width,
    /// The number of the first, among those of this width in this session.
    first: u64,
    count: usize,
    /// Correlations at the front that were taken.
    taken: usize,
    planes: Zeroizing<Vec<u64>>,
}

impl Correlations {
    /// No correlations: the result of setup when only the base OTs are done.
    pub(crate) fn empty(role: Role, tag: SessionTag) -> Self {
        let planes = Zeroizing::new(Vec::new());
        Self { origin: (role, tag), width: Width::ALL[0], first: 0, count: 0, taken: 0, planes }
    }

    pub(crate) fn new(role: Role, tag: SessionTag, chunk: Chunk, first: u64) -> Self {
        let Chunk { width, count } = chunk;
        let planes = Zeroizing::new(vec![0; width.stored_bits() * (count / 64)]);
        Self { origin: (role, tag), width, first, count, taken: 0, planes }
    }

    /// Writes the correlations `128 place..128 (place + 1)`.
    pub(crate) fn put(&mut self, place: usize, bits: [u64; 2], vectors: &Square, products: &Square) {
        let width = self.width.bits();
        let planes = [bits].into_iter().chain(vectors[..width].iter().copied());
        let planes = planes.chain(products[..width].iter().copied());
        for (plane, words) in self.planes.chunks_exact_mut(self.count / 64).zip(planes) {
            plane[2 * place..2 * place + 2].copy_from_slice(&words);
        }
    }

    /// How many correlations; zero if setup has only done its base OTs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    fn left(&self) -> usize {
        self.count - self.taken
    }

    /// Bytes of the planes.
    fn bytes(&self) -> usize {
        self.planes.len() * 8
    }

    /// Wipes the words of which every correlation was taken since `before`.
    fn wipe_taken(&mut self, before: usize) {
        for plane in self.planes.chunks_exact_mut(self.count / 64) {
            plane[before / 64..self.taken / 64].zeroize();
        }
    }
}

impl fmt::Debug for Correlations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Correlations {{ width: {}, first: {}, count: {}, .. }}", self.width.bits(), self.first, self.count)
    }
}

/// Which correlations were taken: the numbers `first..first + count` of `width` in `session`. No two of a pool overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CorrelationRange {
    /// The session, which no other life of this process shares.
    pub session: SessionTag,
    /// The width; each has numbers of its own.
    pub width: Width,
    pub first: u64,
    pub count: usize,
}

/// The correlations of one session at one party: bounded, in memory only, each given out at most once.
///
/// Two parties whose pools took correlations of the same chunks and ran the same evaluations hold the same counts.
pub struct Pool {
    limit: usize,
    origin: Option<(Role, SessionTag)>,
    widths: [WidthPool; 8],
}

#[derive(Default)]
struct WidthPool {
    correlations: VecDeque<Correlations>,
    /// The number of the next correlation to give out.
    next: u64,
    left: usize,
}

impl Pool {
    /// An empty pool that holds at most `limit` bytes of correlations.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, origin: None, widths: Default::default() }
    }

    /// Adds correlations. The first ones bind the pool to their session.
    ///
    /// # Errors
    /// If they are of another session or party, do not continue this pool, or exceed the limit. They are lost then, so
    /// request no more than [`free_bytes`](Self::free_bytes).
    pub fn add(&mut self, correlations: Correlations) -> Result<(), Misuse> {
        let entry = &self.widths[correlations.width.index()];
        let continues = correlations.count == 0 || entry.next + entry.left as u64 == correlations.first;
        if self.origin.is_some_and(|own| own != correlations.origin) || !continues {
            return Err(Misuse::ForeignCorrelations);
        }
        if correlations.bytes() > self.free_bytes() {
            return Err(Misuse::PoolFull(self.limit));
        }
        self.origin = Some(correlations.origin);
        if correlations.count == 0 {
            return Ok(());
        }
        let entry = &mut self.widths[correlations.width.index()];
        entry.left += correlations.count;
        entry.correlations.push_back(correlations);
        Ok(())
    }

    /// Correlations of each width in the pool.
    #[must_use]
    pub fn available(&self) -> Demand {
        Width::ALL.into_iter().fold(Demand::default(), |sum, width| sum + Demand::just(width, self.left(width)))
    }

    /// Correlations to add to reach `target`: both parties compute the same, and cut it into the same chunks.
    #[must_use]
    pub fn missing_for(&self, target: &Demand) -> Demand {
        target.beyond(&self.available())
    }

    /// Bytes of correlations held, those in part-used chunks whole.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.widths.iter().flat_map(|entry| &entry.correlations).map(Correlations::bytes).sum()
    }

    /// Bytes of correlations that still fit.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.limit.saturating_sub(self.bytes())
    }

    /// The party and session of the correlations, once there are some.
    #[must_use]
    pub fn origin(&self) -> Option<(Role, SessionTag)> {
        self.origin
    }

    pub(crate) fn left(&self, width: Width) -> usize {
        self.widths[width.index()].left
    }

    /// The number of the next correlation of each width.
    pub(crate) fn positions(&self) -> [u64; 8] {
        std::array::from_fn(|width| self.widths[width].next)
    }

    /// Takes `lanes` correlations of the width that fits `bits` and writes their planes `a`, `B[..bits]`, `C[..bits]` one after
    /// another to `out`, each in `lanes.div_ceil(64)` words. The caller has checked that there are enough.
    pub(crate) fn take(&mut self, width: Width, bits: usize, lanes: usize, out: &mut [u64]) {
        let entry = &mut self.widths[width.index()];
        let words = lanes.div_ceil(64);
        let mut done = 0;
        while done < lanes {
            let correlations = entry.correlations.front_mut().expect("the caller checked that there are enough");
            let count = correlations.left().min(lanes - done);
            let planes = (0..=bits).chain(width.bits() + 1..=width.bits() + bits);
            for (to, plane) in out.chunks_exact_mut(words).zip(planes) {
                let from = &correlations.planes[plane * (correlations.count / 64)..][..correlations.count / 64];
                if done == 0 {
                    copy_bits(from, correlations.taken, to, count);
                } else {
                    let mut part = Zeroizing::new(vec![0u64; count.div_ceil(64)]);
                    copy_bits(from, correlations.taken, &mut part, count);
                    append_bits(&part, to, done, count);
                }
            }
            let before = correlations.taken;
            correlations.taken += count;
            correlations.wipe_taken(before);
            done += count;
            if correlations.left() == 0 {
                entry.correlations.pop_front();
            }
        }
        entry.left -= lanes;
        entry.next += lanes as u64;
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pool {{ origin: {:?}, correlations: {:?}, limit: {}, .. }}",
            self.origin,
            self.available(),
            self.limit
        )
    }
}

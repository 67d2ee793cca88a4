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

/// Correlations fresh from setup, on their way into a pool. In planes: `a`, then each bit of `B`, then each bit of `C`.
pub struct Stock {
    origin: (Role, SessionTag),
    width: Width,
    /// The number of the first, among those of this width in this session.
    first: u64,
    count: usize,
    /// Correlations at the front that were taken.
    taken: usize,
    planes: Zeroizing<Vec<u64>>,
}

impl Stock {
    /// No correlations: what setup gives when only its base transfers are done.
    pub(crate) fn empty(role: Role, tag: SessionTag) -> Self {
        let planes = Zeroizing::new(Vec::new());
        Self { origin: (role, tag), width: Width::ALL[0], first: 0, count: 0, taken: 0, planes }
    }

    pub(crate) fn new(role: Role, tag: SessionTag, chunk: Chunk, first: u64) -> Self {
        let Chunk { width, count } = chunk;
        let planes = Zeroizing::new(vec![0; width.stored_bits() * (count / 64)]);
        Self { origin: (role, tag), width, first, count, taken: 0, planes }
    }

    /// Puts the correlations `128 place..128 (place + 1)`.
    pub(crate) fn put(&mut self, place: usize, bits: [u64; 2], vectors: &Square, products: &Square) {
        let width = self.width.bits();
        let planes = [bits].into_iter().chain(vectors[..width].iter().copied());
        let planes = planes.chain(products[..width].iter().copied());
        for (plane, words) in self.planes.chunks_exact_mut(self.count / 64).zip(planes) {
            plane[2 * place..2 * place + 2].copy_from_slice(&words);
        }
    }

    /// How many correlations; zero if setup has only done its base transfers.
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

impl fmt::Debug for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stock {{ width: {}, first: {}, count: {}, .. }}", self.width.bits(), self.first, self.count)
    }
}

/// Which correlations were taken: the numbers `first..first + count` of `width` in `session`. No two of a pool overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Used {
    /// The session, which no other life of this process shares.
    pub session: SessionTag,
    /// The width; each has numbers of its own.
    pub width: Width,
    /// The first number.
    pub first: u64,
    /// How many.
    pub count: usize,
}

/// The correlations of one session at one party: bounded, in memory only, each given out at most once.
///
/// Two parties whose pools took the same stock and ran the same evaluations hold the same counts.
pub struct Pool {
    limit: usize,
    origin: Option<(Role, SessionTag)>,
    shelves: [Shelf; 8],
}

#[derive(Default)]
struct Shelf {
    stock: VecDeque<Stock>,
    /// The number of the next correlation to give out.
    next: u64,
    left: usize,
}

impl Pool {
    /// An empty pool that holds at most `limit` bytes of correlations.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, origin: None, shelves: Default::default() }
    }

    /// Takes stock in. The first stock binds the pool to its session.
    ///
    /// # Errors
    /// If the stock is of another session or party, does not continue this pool, or passes the limit; it is lost then, so
    /// ask for no more than [`room`](Self::room).
    pub fn add(&mut self, stock: Stock) -> Result<(), Misuse> {
        let shelf = &self.shelves[stock.width.index()];
        let continues = stock.count == 0 || shelf.next + shelf.left as u64 == stock.first;
        if self.origin.is_some_and(|own| own != stock.origin) || !continues {
            return Err(Misuse::ForeignStock);
        }
        if stock.bytes() > self.room() {
            return Err(Misuse::PoolFull(self.limit));
        }
        self.origin = Some(stock.origin);
        if stock.count == 0 {
            return Ok(());
        }
        let shelf = &mut self.shelves[stock.width.index()];
        shelf.left += stock.count;
        shelf.stock.push_back(stock);
        Ok(())
    }

    /// What the pool has.
    #[must_use]
    pub fn stock(&self) -> Demand {
        Width::ALL.into_iter().fold(Demand::default(), |sum, width| sum + Demand::just(width, self.left(width)))
    }

    /// What lacks for `target`: both parties compute the same, and cut it into the same chunks.
    #[must_use]
    pub fn short_of(&self, target: &Demand) -> Demand {
        target.beyond(&self.stock())
    }

    /// Bytes of correlations held, those in part-used chunks whole.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shelves.iter().flat_map(|shelf| &shelf.stock).map(Stock::bytes).sum()
    }

    /// Bytes of correlations that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.bytes())
    }

    /// The party and session of the stock, once there is some.
    #[must_use]
    pub fn origin(&self) -> Option<(Role, SessionTag)> {
        self.origin
    }

    pub(crate) fn left(&self, width: Width) -> usize {
        self.shelves[width.index()].left
    }

    /// The number of the next correlation of each width.
    pub(crate) fn positions(&self) -> [u64; 8] {
        std::array::from_fn(|width| self.shelves[width].next)
    }

    /// Takes `lanes` correlations of the width that fits `bits` and writes their planes `a`, `B[..bits]`, `C[..bits]` one after
    /// another to `out`, each in `lanes.div_ceil(64)` words. The caller has checked that there are enough.
    pub(crate) fn take(&mut self, width: Width, bits: usize, lanes: usize, out: &mut [u64]) {
        let shelf = &mut self.shelves[width.index()];
        let words = lanes.div_ceil(64);
        let mut done = 0;
        while done < lanes {
            let stock = shelf.stock.front_mut().expect("the caller checked that there is enough stock");
            let count = stock.left().min(lanes - done);
            let planes = (0..=bits).chain(width.bits() + 1..=width.bits() + bits);
            for (to, plane) in out.chunks_exact_mut(words).zip(planes) {
                let from = &stock.planes[plane * (stock.count / 64)..][..stock.count / 64];
                if done == 0 {
                    copy_bits(from, stock.taken, to, count);
                } else {
                    let mut part = Zeroizing::new(vec![0u64; count.div_ceil(64)]);
                    copy_bits(from, stock.taken, &mut part, count);
                    append_bits(&part, to, done, count);
                }
            }
            let before = stock.taken;
            stock.taken += count;
            stock.wipe_taken(before);
            done += count;
            if stock.left() == 0 {
                shelf.stock.pop_front();
            }
        }
        shelf.left -= lanes;
        shelf.next += lanes as u64;
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool {{ origin: {:?}, stock: {:?}, limit: {}, .. }}", self.origin, self.stock(), self.limit)
    }
}

//! The randomness of one machine: a generator seeded once, at construction.

use std::fmt;

use wayleave_crypto::kdf;
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Seed;

/// Gives every byte once.
pub struct Rng {
    stream: Prg,
    next: u64,
}

impl Rng {
    /// From a seed that nothing else uses; a new one for each life of a process.
    #[must_use]
    pub fn new(seed: &Seed) -> Self {
        let key = kdf::derive::<16>("wayleave/route-server/rng/v1", seed.expose(), &[]);
        Self { stream: Prg::new(key.expose()), next: 0 }
    }

    /// `N` fresh bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }

    /// Fills `out` with fresh bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.stream.fill(self.next, out);
        self.next += out.len().div_ceil(16) as u64;
    }
}

impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rng(..)")
    }
}

/// `len` bytes of a seed's output: party 1's share of a ranking.
#[must_use]
pub fn stream(seed: &Seed, len: usize) -> Vec<u8> {
    let key = kdf::derive::<16>("wayleave/route-server/ranking/v1", seed.expose(), &[]);
    let mut out = vec![0; len];
    Prg::new(key.expose()).fill(0, &mut out);
    out
}

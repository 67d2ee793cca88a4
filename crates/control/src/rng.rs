//! The randomness of one machine: a generator seeded once, at construction.

use wayleave_crypto::kdf;
use wayleave_crypto::secret::{Secret, Seed};

/// Gives each value once.
pub(crate) struct Rng {
    seed: Seed,
    next: u64,
}

impl Rng {
    /// From a seed that nothing else uses; a new one for each life of a process.
    pub(crate) fn new(seed: Seed) -> Self {
        Self { seed, next: 0 }
    }

    pub(crate) fn secret<const N: usize>(&mut self) -> Secret<N> {
        let number = self.next;
        self.next += 1;
        kdf::derive("wayleave/control/rng/v1", self.seed.expose(), &number.to_be_bytes())
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        *self.secret::<N>().expose()
    }
}

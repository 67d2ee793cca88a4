//! The randomness of one machine: a generator seeded once, at construction, and stirred with fresh entropy before every input,
//! so that a copy of the process, or one resumed from a snapshot, repeats nothing.

use wayleave_crypto::kdf;
use wayleave_crypto::secret::{Secret, Seed};

/// Gives each value once.
pub(crate) struct Rng {
    /// Changes with each draw and each reseed.
    seed: Seed,
    next: u64,
}

impl Rng {
    /// From a seed that nothing else uses; a new one for each life of a process.
    pub(crate) fn new(seed: Seed) -> Self {
        Self { seed, next: 0 }
    }

    /// Mixes fresh entropy of the system in.
    pub(crate) fn reseed(&mut self, fresh: &Seed) {
        self.seed = kdf::derive("wayleave/control/rng-stir/v1", self.seed.expose(), fresh.expose());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_was_stirred_with_other_entropy_draws_other_values() {
        let draw = |fresh: u8| {
            let mut rng = Rng::new(Seed::new([1; 32]));
            rng.reseed(&Seed::new([fresh; 32]));
            [rng.bytes::<16>(), rng.bytes::<16>()]
        };
        assert_eq!(draw(2), draw(2));
        assert_ne!(draw(2), draw(3));
        assert_ne!(draw(2)[0], draw(2)[1]);
    }
}

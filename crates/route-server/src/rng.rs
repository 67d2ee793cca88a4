//! The randomness of one machine, such that a copy of it, or one resumed from an older state, repeats nothing.
//!
//! A process can live twice: a virtual machine is copied, or resumed from a snapshot. A generator that was seeded once would
//! then give the same masks again, and two rows under one mask tell a party their difference. So every draw is derived from
//! a secret that changes with each draw, from fresh entropy of the system ([`Rng::reseed`]: the driver gives it before every
//! input), from the TLS sessions of the links ([`Rng::bind`]), and from what the randomness will hide. Where even the
//! entropy repeats, equal draws hide equal things.

use std::fmt;

use wayleave_crypto::hash::hash;
use wayleave_crypto::kdf;
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::{Secret, Seed};

const LABEL_DRAW: &str = "wayleave/route-server/draw/v1";
const LABEL_CONTEXT: &str = "wayleave/route-server/draw-context/v1";
const LABEL_BIND: &str = "wayleave/route-server/bind-session/v1";

/// Makes the randomness of one machine.
pub struct Rng {
    /// Replaced by each draw.
    secret: Seed,
    /// The system's entropy since the last input.
    fresh: Seed,
}

impl Rng {
    /// From a seed that nothing else uses; a new one for each life of a process.
    #[must_use]
    pub fn new(seed: &Seed) -> Self {
        Self { secret: seed.clone(), fresh: Seed::new([0; 32]) }
    }

    /// Fresh entropy of the system, for all draws until the next.
    pub fn reseed(&mut self, fresh: &Seed) {
        self.fresh = fresh.clone();
    }

    /// Binds all later draws to a link: `exporter` is keying material of its TLS session (RFC 8446 section 7.5).
    pub fn bind(&mut self, exporter: &Seed) {
        self.secret = kdf::derive(LABEL_BIND, self.secret.expose(), exporter.expose());
    }

    /// The randomness of one use. `context` names the use and holds all that the randomness will hide.
    #[must_use]
    pub fn draw(&mut self, context: &[&[u8]]) -> Draw {
        let both: Secret<64> = Secret::new(std::array::from_fn(|i| match i {
            0..32 => self.secret.expose()[i],
            _ => self.fresh.expose()[i - 32],
        }));
        let derived: Secret<48> = kdf::derive(LABEL_DRAW, both.expose(), &hash(LABEL_CONTEXT, context));
        let (next, key) = derived.expose().split_first_chunk::<32>().expect("48 bytes have 32");
        self.secret = Seed::new(*next);
        Draw { stream: Prg::new(key.first_chunk().expect("16 bytes are left")), next: 0 }
    }
}

impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rng(..)")
    }
}

/// The bytes of one draw; gives every byte once.
#[derive(Debug)]
pub struct Draw {
    stream: Prg,
    next: u64,
}

impl Draw {
    /// `N` random bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.stream.fill(self.next, &mut out);
        self.next += N.div_ceil(16) as u64;
        out
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(byte: u8) -> Seed {
        Seed::new([byte; 32])
    }

    /// The first bytes of two draws after the machine was given this entropy and this session.
    fn draws(fresh: u8, exporter: u8, contexts: [&[u8]; 2]) -> [[u8; 16]; 2] {
        let mut rng = Rng::new(&seed(1));
        rng.bind(&seed(exporter));
        rng.reseed(&seed(fresh));
        contexts.map(|context| rng.draw(&[context]).bytes())
    }

    #[test]
    fn a_draw_differs_by_entropy_session_context_and_turn() {
        let first = draws(2, 3, [b"a", b"a"]);
        assert_eq!(first, draws(2, 3, [b"a", b"a"]), "a draw is a function of its inputs");
        assert_ne!(first[0], first[1], "of one context, two in turn");
        for other in [draws(9, 3, [b"a", b"a"]), draws(2, 9, [b"a", b"a"]), draws(2, 3, [b"b", b"a"])] {
            assert!(first.iter().all(|bytes| !other.contains(bytes)));
        }
    }

    #[test]
    fn the_parts_of_a_draw_differ() {
        let mut draw = Rng::new(&seed(1)).draw(&[]);
        assert_ne!(draw.bytes::<16>(), draw.bytes::<16>());
    }
}

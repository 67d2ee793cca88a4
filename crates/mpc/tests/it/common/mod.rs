//! Both ends of a session in one thread, for the tests of the engine.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this one")]

use wayleave_crypto::prg::Prg;
use wayleave_mpc::{
    BitRows, Chunk, DEFAULT_CHUNK, Demand, Evaluation, Pool, Program, Role, SessionId, Setup, Share, lockstep, reveal,
    split,
};

/// Seeded randomness for inputs and masks.
pub struct Random {
    prg: Prg,
    next: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { prg: Prg::new(&u128::from(seed).to_le_bytes()), next: 0 }
    }

    pub fn word(&mut self) -> u64 {
        let mut bytes = [0u8; 8];
        self.prg.fill(self.next, &mut bytes);
        self.next += 1;
        u64::from_le_bytes(bytes)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    pub fn rows(&mut self, rows: usize, lanes: usize) -> BitRows {
        let mut out = BitRows::zero(rows, lanes);
        let mut words = vec![[0u8; 8]; lanes.div_ceil(64)];
        for row in 0..rows {
            self.prg.fill(self.next, words.as_flattened_mut());
            self.next += words.len() as u64;
            out.set_row(row, &words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>());
        }
        out
    }
}

/// Both ends of a session that has not begun.
pub fn setups(seed: u8) -> [Setup; 2] {
    let id = SessionId([seed; 16]);
    [Setup::new(Role::Party1, id, [seed; 32]), Setup::new(Role::Party2, id, [seed ^ 0x80; 32])]
}

/// Both parties of one session, with their pools.
pub struct Pair {
    pub setups: [Setup; 2],
    pub pools: [Pool; 2],
}

impl Pair {
    pub fn new(seed: u8) -> Self {
        Self::of(setups(seed), usize::MAX)
    }

    /// Base transfers of these two, and pools of `limit` bytes.
    pub fn of(setups: [Setup; 2], limit: usize) -> Self {
        let mut pair = Self { setups, pools: [Pool::new(limit), Pool::new(limit)] };
        let [one, two] = &mut pair.setups;
        let (first, second) = lockstep(one, two).unwrap();
        pair.pools[0].add(first).unwrap();
        pair.pools[1].add(second).unwrap();
        pair
    }

    pub fn chunk(&mut self, chunk: Chunk) {
        let [one, two] = &mut self.setups;
        one.request(chunk).unwrap();
        two.request(chunk).unwrap();
        let (first, second) = lockstep(one, two).unwrap();
        self.pools[0].add(first).unwrap();
        self.pools[1].add(second).unwrap();
    }

    pub fn fill(&mut self, target: &Demand) {
        let chunks = self.pools[0].missing_for(target).chunks(DEFAULT_CHUNK);
        assert_eq!(chunks, self.pools[1].missing_for(target).chunks(DEFAULT_CHUNK));
        chunks.into_iter().for_each(|chunk| self.chunk(chunk));
    }

    /// Splits the inputs, evaluates them at both ends, and reveals the outputs.
    pub fn evaluate(&mut self, program: &Program, inputs: &BitRows, random: &mut Random) -> BitRows {
        self.fill(&Demand::of(program, inputs.lanes()));
        let (one, two) = split(inputs, random.rows(inputs.rows(), inputs.lanes())).unwrap();
        let mut first = Evaluation::new(program, one.rows(), &mut self.pools[0]).unwrap();
        let mut second = Evaluation::new(program, two.rows(), &mut self.pools[1]).unwrap();
        let (first, second) = lockstep(&mut first, &mut second).unwrap();
        reveal(&Share::new(first), &Share::new(second)).unwrap()
    }
}

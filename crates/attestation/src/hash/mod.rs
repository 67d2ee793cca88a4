//! Hashes for trees and chains: truncated SHA-256 with an address, many at once.
//!
//! The first is the tweakable hash of SLH-DSA-SHA2-128 (FIPS 205 section 11.2.1): `SHA-256(seed || 0^48 || address ||
//! input)`, cut to 16 bytes. The public seed fills the first block, so it is compressed once per key, and a step of
//! a chain or a node of a tree then takes one compression. Seed and address are in every hash, so that an attacker works on
//! one value of one tree at a time.

pub mod tree;

use wayleave_crypto::sha256_lanes::{self, Block, INITIAL, LANES, State, compress, compress_lanes};

/// Bytes of a node, a chain's value and a seed.
pub const NODE: usize = 16;

/// A node of a tree or a value of a chain.
pub type Node = [u8; NODE];

/// Bytes of the compressed address (FIPS 205 section 11.2).
const ADDRESS: usize = 22;

/// Fewer than this many jobs go one after another: a single lane is that much faster than sixteen.
const FEW: usize = 5;

/// What a hash is of (FIPS 205 section 4.2; its numbers of the types).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Use {
    /// A step of a chain; the words are key pair, chain, step.
    Chain = 0,
    /// The ends of a key pair's chains; the words are key pair, 0, 0.
    Leaf = 1,
    /// An inner node of the tree; the words are 0, height, index.
    Inner = 2,
    /// The secret start of a chain; the words are key pair, chain, 0.
    Secret = 5,
}

/// The position of a hash in a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The level of trees: 0 signs messages, each further one the roots of the level below.
    pub layer: u8,
    /// Which tree of its level.
    pub tree: u64,
    /// What is hashed.
    pub kind: Use,
    /// Three words, by `kind`.
    pub words: [u32; 3],
}

impl Address {
    fn octets(&self) -> [u8; ADDRESS] {
        let mut out = [0; ADDRESS];
        out[0] = self.layer;
        out[1..9].copy_from_slice(&self.tree.to_be_bytes());
        out[9] = self.kind as u8;
        for (four, word) in out[10..].chunks_exact_mut(4).zip(self.words) {
            four.copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

/// A key's public seed, compressed.
#[derive(Clone, Copy, Debug)]
pub struct PublicSeed {
    state: [u32; 8],
}

impl PublicSeed {
    /// Compresses the block that the seed fills.
    #[must_use]
    pub fn new(seed: &Node) -> Self {
        let mut block = [0; 64];
        block[..NODE].copy_from_slice(seed);
        let mut state = INITIAL;
        compress(&mut state, &block);
        Self { state }
    }

    /// The hash of one input.
    #[must_use]
    pub fn hash(&self, address: &Address, input: &[u8]) -> Node {
        let mut state = self.state;
        let mut message = Message::new(address, input);
        for number in 0..message.blocks {
            compress(&mut state, message.block(number));
        }
        truncate(|word| state[word])
    }
}

/// One hash to compute.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    pub seed: &'a PublicSeed,
    pub address: Address,
    pub input: &'a [u8],
}

/// The hash of each job; all inputs have one length.
#[must_use]
pub fn hash_all(jobs: &[Job<'_>]) -> Vec<Node> {
    let mut out = Vec::with_capacity(jobs.len());
    for group in jobs.chunks(LANES) {
        if group.len() < FEW || !sha256_lanes::lanes_run_at_once() {
            out.extend(group.iter().map(|job| job.seed.hash(&job.address, job.input)));
            continue;
        }
        debug_assert!(group.iter().all(|job| job.input.len() == group[0].input.len()));
        let mut state = State::default();
        let mut messages: Vec<Message<'_>> = Vec::with_capacity(LANES);
        for (lane, job) in group.iter().enumerate() {
            set_lane(&mut state, lane, &job.seed.state);
            messages.push(Message::new(&job.address, job.input));
        }
        for number in 0..messages[0].blocks {
            let mut block = Block::default();
            for (lane, message) in messages.iter_mut().enumerate() {
                for (word, four) in block.iter_mut().zip(message.block(number).as_chunks::<4>().0) {
                    word[lane] = u32::from_be_bytes(*four);
                }
            }
            compress_lanes(&mut state, &block);
        }
        out.extend((0..group.len()).map(|lane| truncate(|word| state[word][lane])));
    }
    out
}

/// The padded message that follows the seed's block: address, input, end mark and length.
struct Message<'a> {
    address: [u8; ADDRESS],
    input: &'a [u8],
    blocks: usize,
    buffer: [u8; 64],
}

impl<'a> Message<'a> {
    fn new(address: &Address, input: &'a [u8]) -> Self {
        // The mark is one byte and the length eight.
        let blocks = (ADDRESS + input.len() + 9).div_ceil(64);
        Self { address: address.octets(), input, blocks, buffer: [0; 64] }
    }

    fn block(&mut self, number: usize) -> &[u8; 64] {
        self.buffer = [0; 64];
        let (start, end) = (64 * number, 64 * number + 64);
        let (mut filled, mut at) = (0, start);
        if number == 0 {
            self.buffer[..ADDRESS].copy_from_slice(&self.address);
            (filled, at) = (ADDRESS, ADDRESS);
        }
        let rest = self.input.get(at - ADDRESS..).unwrap_or_default();
        let part = &rest[..rest.len().min(64 - filled)];
        self.buffer[filled..filled + part.len()].copy_from_slice(part);
        let mark = ADDRESS + self.input.len();
        if (start..end).contains(&mark) {
            self.buffer[mark - start] = 0x80;
        }
        if number + 1 == self.blocks {
            let bits = 8 * (64 + ADDRESS as u64 + self.input.len() as u64);
            self.buffer[56..].copy_from_slice(&bits.to_be_bytes());
        }
        &self.buffer
    }
}

fn truncate(word: impl Fn(usize) -> u32) -> Node {
    let mut out = [0; NODE];
    for (four, number) in out.chunks_exact_mut(4).zip(0..) {
        four.copy_from_slice(&word(number).to_be_bytes());
    }
    out
}

fn set_lane(state: &mut State, lane: usize, words: &[u32; 8]) {
    for (word, new) in state.iter_mut().zip(words) {
        word[lane] = *new;
    }
}

/// A walk along one chain.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'a> {
    pub seed: &'a PublicSeed,
    /// Which chain: kind [`Use::Chain`]; the third word is set step by step.
    pub address: Address,
    /// The step of `value`.
    pub from: u8,
    /// How many steps to go.
    pub steps: u8,
    /// The value to start with.
    pub value: Node,
}

/// The last value of each walk (FIPS 205 algorithm 5, `chain`), sixteen walks at a time: a lane whose walk has ended takes
/// up the next one, the longest first.
#[must_use]
pub fn walk_all(walks: &[Walk<'_>]) -> Vec<Node> {
    let mut out: Vec<Node> = walks.iter().map(|walk| walk.value).collect();
    if !sha256_lanes::lanes_run_at_once() {
        for (walk, value) in walks.iter().zip(&mut out) {
            let mut address = walk.address;
            for step in 0..walk.steps {
                address.words[2] = u32::from(walk.from + step);
                *value = walk.seed.hash(&address, value);
            }
        }
        return out;
    }
    let order = longest_first(walks);
    let mut waiting = order.into_iter();
    let mut lanes = Lanes::default();
    for lane in 0..LANES {
        lanes.take(lane, waiting.next(), walks);
    }
    while let Some(steps) = lanes.left.iter().copied().filter(|left| *left > 0).min() {
        lanes.step(steps);
        for lane in 0..LANES {
            if lanes.left[lane] > 0 {
                lanes.left[lane] -= steps;
                if lanes.left[lane] == 0 {
                    out[lanes.walk[lane]] = lanes.value(lane);
                    lanes.take(lane, waiting.next(), walks);
                }
            }
        }
    }
    out
}

/// The numbers of all walks that have steps to go, by counting sort.
fn longest_first(walks: &[Walk<'_>]) -> Vec<usize> {
    let mut starts = [0usize; 257];
    for walk in walks {
        starts[256 - usize::from(walk.steps)] += 1;
    }
    let mut sum = 0;
    for start in &mut starts {
        (*start, sum) = (sum, sum + *start);
    }
    let still = walks.len() - walks.iter().filter(|walk| walk.steps == 0).count();
    let mut order = vec![0; walks.len()];
    for (number, walk) in walks.iter().enumerate() {
        let place = &mut starts[256 - usize::from(walk.steps)];
        order[*place] = number;
        *place += 1;
    }
    order.truncate(still);
    order
}

/// Sixteen walks under way. A lane without one computes what nobody reads.
#[derive(Default)]
struct Lanes {
    seeds: State,
    block: Block,
    /// The current values, as the first four words of the hash.
    values: [sha256_lanes::Word; 4],
    steps: sha256_lanes::Word,
    left: [u8; LANES],
    walk: [usize; LANES],
}

impl Lanes {
    fn take(&mut self, lane: usize, number: Option<usize>, walks: &[Walk<'_>]) {
        let Some(number) = number else { return };
        let walk = &walks[number];
        set_lane(&mut self.seeds, lane, &walk.seed.state);
        // The address without its last two octets, which the step's number replaces.
        for (word, four) in self.block.iter_mut().zip(walk.address.octets().as_chunks::<4>().0) {
            word[lane] = u32::from_be_bytes(*four);
        }
        for (word, four) in self.values.iter_mut().zip(walk.value.as_chunks::<4>().0) {
            word[lane] = u32::from_be_bytes(*four);
        }
        self.steps[lane] = u32::from(walk.from);
        self.left[lane] = walk.steps;
        self.walk[lane] = number;
    }

    fn value(&self, lane: usize) -> Node {
        truncate(|word| self.values[word][lane])
    }

    /// `count` steps in every lane. The input starts in the middle of word 5, after the low half of the step's number.
    fn step(&mut self, count: u8) {
        const BITS: u32 = 8 * (64 + ADDRESS as u32 + NODE as u32);
        self.block[15] = [BITS; LANES];
        for _ in 0..count {
            let [a, b, c, d] = &self.values;
            for lane in 0..LANES {
                self.block[5][lane] = self.steps[lane] << 16 | a[lane] >> 16;
                self.block[6][lane] = a[lane] << 16 | b[lane] >> 16;
                self.block[7][lane] = b[lane] << 16 | c[lane] >> 16;
                self.block[8][lane] = c[lane] << 16 | d[lane] >> 16;
                self.block[9][lane] = d[lane] << 16 | 0x8000;
                self.steps[lane] += 1;
            }
            let mut state = self.seeds;
            compress_lanes(&mut state, &self.block);
            self.values.copy_from_slice(&state[..4]);
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn plain(seed: &Node, address: &Address, input: &[u8]) -> Node {
        let mut hash = Sha256::new();
        hash.update(seed);
        hash.update([0; 48]);
        hash.update(address.octets());
        hash.update(input);
        hash.finalize()[..NODE].try_into().expect("16 of 32 bytes")
    }

    fn address(number: u32) -> Address {
        Address { layer: 1, tree: 0x0102_0304_0506_0708, kind: Use::Chain, words: [number, 7, 9] }
    }

    #[test]
    fn one_and_many_at_once_are_the_formula() {
        for len in [0, 16, 32, 33, 41, 42, 97, 448, 560] {
            let input: Vec<u8> = (0..len).map(|i| i as u8).collect();
            for count in [1, 4, 5, 16, 23] {
                let seeds: Vec<PublicSeed> = (0..count).map(|i| PublicSeed::new(&[i as u8; NODE])).collect();
                let jobs: Vec<Job<'_>> =
                    (0..count).map(|i| Job { seed: &seeds[i], address: address(i as u32), input: &input }).collect();
                for (i, hash) in hash_all(&jobs).into_iter().enumerate() {
                    assert_eq!(hash, plain(&[i as u8; NODE], &address(i as u32), &input), "{len} {count}");
                    assert_eq!(hash, seeds[i].hash(&address(i as u32), &input));
                }
            }
        }
    }

    #[test]
    fn walks_of_all_lengths_end_where_single_steps_end() {
        let seeds: Vec<PublicSeed> = (0..3).map(|i| PublicSeed::new(&[i; NODE])).collect();
        for count in [0u32, 1, 15, 16, 17, 70] {
            let walks: Vec<Walk<'_>> = (0..count)
                .map(|i| Walk {
                    seed: &seeds[i as usize % 3],
                    address: address(i),
                    from: (i % 5) as u8,
                    steps: (i * 7 % 16) as u8,
                    value: [i as u8; NODE],
                })
                .collect();
            for (walk, end) in walks.iter().zip(walk_all(&walks)) {
                let mut value = walk.value;
                for step in walk.from..walk.from + walk.steps {
                    let address = Address { words: [walk.address.words[0], 7, u32::from(step)], ..walk.address };
                    value = walk.seed.hash(&address, &value);
                }
                assert_eq!(end, value);
            }
        }
    }
}

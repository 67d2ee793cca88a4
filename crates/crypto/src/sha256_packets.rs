//! SHA-256 (FIPS 180-4) of a burst of packets: sixteen at once where the machine has the lanes and enough packets are of
//! similar length, one after another with the machine's SHA instructions elsewhere.

use sha2::block_api::compress256;

use crate::lanes::{BURST, Columns, CpuKernel, LANES, rows};
use crate::sha256_lanes::{Block, INITIAL, State, compress_lanes, lanes_run_at_once, load};

/// Octets of a message's head.
pub const HEAD: usize = 48;

/// One message in two parts, so that a head can be built apart from the payload that follows it.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub head: &'a [u8; HEAD],
    pub tail: &'a [u8],
}

impl Message<'_> {
    /// The number of blocks, with the padding.
    fn blocks(&self) -> usize {
        (HEAD + self.tail.len() + 9).div_ceil(64)
    }
}

/// Writes the hash of each message into `hashes`: as many as the shorter slice has.
pub fn hash_each(messages: &[Message<'_>], hashes: &mut [[u8; 32]]) {
    let count = messages.len().min(hashes.len());
    for (messages, hashes) in messages[..count].chunks(BURST).zip(hashes[..count].chunks_mut(BURST)) {
        let mut order = [(0u32, 0u8); BURST];
        for (index, (entry, message)) in order.iter_mut().zip(messages).enumerate() {
            *entry = (message.blocks() as u32, index as u8);
        }
        let order = &mut order[..messages.len()];
        if !order.is_sorted() {
            order.sort_unstable();
        }
        let mut lanes = [Blocks::BLANK; LANES];
        for group in order.chunks(LANES) {
            if lanes_are_quicker(group) {
                hash_in_lanes(group, messages, &mut lanes, hashes);
            } else {
                for (_, index) in group {
                    hashes[usize::from(*index)] = hash_one(&messages[usize::from(*index)]);
                }
            }
        }
    }
}

/// Whether sixteen lanes over the longest message are quicker than one message after another. Measured: a block in sixteen
/// lanes takes as long as seven blocks with SHA instructions, or two without.
fn lanes_are_quicker(group: &[(u32, u8)]) -> bool {
    #[cfg(target_arch = "x86_64")]
    let worth = if is_x86_feature_detected!("sha") { 7 } else { 2 };
    #[cfg(not(target_arch = "x86_64"))]
    let worth = 2;
    let longest = group.last().map_or(0, |(blocks, _)| *blocks);
    lanes_run_at_once() && group.iter().map(|(blocks, _)| blocks).sum::<u32>() > worth * longest
}

/// A message as blocks: the first one, those that lie in the tail, and the last one or two, with the padding.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    first: [u8; 64],
    inner: &'a [[u8; 64]],
    last: [[u8; 64]; 2],
    /// The number of blocks without padding.
    whole: usize,
    count: usize,
}

impl<'a> Blocks<'a> {
    const BLANK: Self = Self { first: [0; 64], inner: &[], last: [[0; 64]; 2], whole: 0, count: 0 };

    /// Changes to another message in place, without copying all octets of this value.
    fn set(&mut self, message: &Message<'a>) {
        let length = HEAD + message.tail.len();
        (self.whole, self.count) = (length / 64, message.blocks());
        let last = &mut self.last.as_flattened_mut()[..64 * (self.count - self.whole)];
        let rest = length % 64;
        let remainder = if self.whole == 0 {
            self.inner = &[];
            last[..HEAD].copy_from_slice(message.head);
            message.tail
        } else {
            let (front, rest_of_tail) = message.tail.split_at(64 - HEAD);
            self.first[..HEAD].copy_from_slice(message.head);
            self.first[HEAD..].copy_from_slice(front);
            let (inner, remainder) = rest_of_tail.as_chunks();
            self.inner = inner;
            remainder
        };
        last[rest - remainder.len()..rest].copy_from_slice(remainder);
        last[rest..].fill(0);
        last[rest] = 0x80;
        let end = last.len();
        last[end - 8..].copy_from_slice(&(8 * length as u64).to_be_bytes());
    }

    /// Block `index`, or the last one if there are fewer: lanes whose message has ended compute on, and nobody reads them.
    #[inline]
    fn block(&self, index: usize) -> &[u8; 64] {
        match index {
            _ if index >= self.whole => &self.last[(index - self.whole).min(self.count - self.whole - 1)],
            0 => &self.first,
            _ => &self.inner[index - 1],
        }
    }
}

fn hash_one(message: &Message<'_>) -> [u8; 32] {
    let mut blocks = Blocks::BLANK;
    blocks.set(message);
    let mut state = INITIAL;
    if blocks.whole > 0 {
        compress256(&mut state, std::slice::from_ref(&blocks.first));
        compress256(&mut state, blocks.inner);
    }
    compress256(&mut state, &blocks.last[..blocks.count - blocks.whole]);
    octets(&state)
}

/// Hashes the messages of `group`, which has (blocks, index) of at most sixteen messages in order of length. `lanes` is
/// working memory.
fn hash_in_lanes<'a>(
    group: &[(u32, u8)],
    messages: &[Message<'a>],
    lanes: &mut [Blocks<'a>; LANES],
    hashes: &mut [[u8; 32]],
) {
    for (lane, blocks) in lanes.iter_mut().enumerate() {
        // Lanes behind the last message repeat it.
        blocks.set(&messages[usize::from(group[lane.min(group.len() - 1)].1)]);
    }
    let mut state: State = INITIAL.map(|word| [word; LANES]);
    let mut words = Block::default();
    for index in 0..lanes[LANES - 1].count {
        load(&lanes.each_ref().map(|lane| lane.block(index)), &mut words);
        compress_lanes(&mut state, &words);
        let ending = || group.iter().enumerate().filter(|(_, (blocks, _))| *blocks as usize == index + 1);
        // The state lies in columns. Transposing all of it pays from five messages on.
        if ending().count() > LANES / 4 {
            let mut columns: Columns = [[0; LANES]; LANES];
            for (column, words) in columns.iter_mut().zip(&state) {
                *column = words.map(u32::to_be);
            }
            let mut all = [[[0; 16]; 4]; LANES];
            rows(CpuKernel::best(), &columns, &mut all);
            for (lane, (_, message)) in ending() {
                hashes[usize::from(*message)] = *all[lane].as_flattened().first_chunk().expect("64 octets");
            }
        } else {
            for (lane, (_, message)) in ending() {
                hashes[usize::from(*message)] = octets(&state.map(|word| word[lane]));
            }
        }
    }
}

fn octets(state: &[u32; 8]) -> [u8; 32] {
    let mut octets = [0; 32];
    for (four, word) in octets.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *four = word.to_be_bytes();
    }
    octets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha256;

    fn expected(head: &[u8; HEAD], tail: &[u8]) -> [u8; 32] {
        sha256(&[head, tail].concat())
    }

    #[test]
    fn every_length_up_to_2048_has_the_hash_of_its_octets_in_lanes_and_alone() {
        let octets: Vec<u8> = (0..2_048u32).map(|n| ((n * n) >> 3) as u8).collect();
        let head: [u8; HEAD] = std::array::from_fn(|n| n as u8 ^ 0x5a);
        for length in 0..=octets.len() {
            let tail = &octets[octets.len() - length..];
            let message = Message { head: &head, tail };
            let mut hashes = [[0; 32]; LANES];
            let order = [(message.blocks() as u32, 0); LANES];
            hash_in_lanes(&order, &[message], &mut [Blocks::BLANK; LANES], &mut hashes);
            assert_eq!(hashes[0], expected(&head, tail), "{length}");
            assert_eq!(hash_one(&message), expected(&head, tail), "{length}");
        }
    }

    #[test]
    fn a_burst_of_any_lengths_has_the_hash_of_each() {
        let octets: Vec<u8> = (0..3_000u32).map(|n| ((n * 31) >> 2) as u8).collect();
        let heads: Vec<[u8; HEAD]> = (0..150).map(|n| [n; HEAD]).collect();
        let mut x = 1u32;
        for count in [0, 1, 15, 16, 17, 63, 64, 65, 150] {
            let messages: Vec<Message<'_>> = heads[..count]
                .iter()
                .map(|head| {
                    x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let length = if x >> 31 == 0 { 64 } else { (x >> 16) as usize % 1_500 };
                    Message { head, tail: &octets[..length] }
                })
                .collect();
            let mut hashes = vec![[0; 32]; count];
            hash_each(&messages, &mut hashes);
            for (message, hash) in messages.iter().zip(hashes) {
                assert_eq!(hash, expected(message.head, message.tail));
            }
        }
    }
}

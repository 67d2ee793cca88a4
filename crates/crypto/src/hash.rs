//! Labelled SHA-256 over an injective encoding of its parts.

use sha2::{Digest, Sha256, Sha512};

use crate::lanes::LANES;
use crate::sha256_lanes::{self, Block, INITIAL, State};

/// SHA-256 of `label` and `parts`, each with its length in front, so that no two lists of parts are hashed alike.
#[must_use]
pub fn hash(label: &str, parts: &[&[u8]]) -> [u8; 32] {
    labelled::<Sha256>(label, parts).into()
}

/// SHA-512 of `label` and `parts`, encoded as in [`hash`].
#[must_use]
pub fn hash512(label: &str, parts: &[&[u8]]) -> [u8; 64] {
    labelled::<Sha512>(label, parts).into()
}

fn labelled<H: Digest>(label: &str, parts: &[&[u8]]) -> sha2::digest::Output<H> {
    let mut state = H::new();
    state.update((label.len() as u64).to_be_bytes());
    state.update(label.as_bytes());
    for part in parts {
        state.update((part.len() as u64).to_be_bytes());
        state.update(part);
    }
    state.finalize()
}

/// [`hash`] of `parts` and of a long `message`, which is hashed in sixteen chains beside each other.
///
/// Chain `i` has the blocks `i`, `i + 16`, `i + 32`, ... of 64 octets; zeros fill the last ones. The hash covers the length and the
/// chains' states, so that two messages with one hash give two inputs of SHA-256's compression function with one output.
#[must_use]
pub fn hash_long(label: &str, parts: &[&[u8]], message: &[u8]) -> [u8; 32] {
    let (rows, rest) = message.as_chunks::<{ 64 * LANES }>();
    let mut last = [0; 64 * LANES];
    last[..rest.len()].copy_from_slice(rest);
    let rows = rows.iter().chain((!rest.is_empty()).then_some(&last));
    let states = if sha256_lanes::lanes_run_at_once() { chains(rows) } else { chains_one_by_one(rows) };
    let length = (message.len() as u64).to_be_bytes();
    let states = states.map(|state| state.map(u32::to_be_bytes));
    let mut all: Vec<&[u8]> = parts.to_vec();
    all.extend([&length[..], states.as_flattened().as_flattened()]);
    hash(label, &all)
}

fn chains<'r>(rows: impl Iterator<Item = &'r [u8; 64 * LANES]>) -> [[u32; 8]; LANES] {
    let mut state: State = INITIAL.map(|word| [word; LANES]);
    let mut words = Block::default();
    for row in rows {
        let blocks: &[[u8; 64]; LANES] = row.as_chunks().0.first_chunk().expect("a row has a block for each lane");
        sha256_lanes::load(&blocks.each_ref(), &mut words);
        sha256_lanes::compress_lanes(&mut state, &words);
    }
    std::array::from_fn(|lane| state.map(|word| word[lane]))
}

fn chains_one_by_one<'r>(rows: impl Iterator<Item = &'r [u8; 64 * LANES]>) -> [[u32; 8]; LANES] {
    let mut states = [INITIAL; LANES];
    for row in rows {
        for (state, block) in states.iter_mut().zip(row.as_chunks().0) {
            sha256_lanes::compress(state, block);
        }
    }
    states
}

/// SHA-256 of `bytes`, without a label: for names that others compute too (a certificate's fingerprint).
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// SHA-256 of `parts` one after another, without a label and without their lengths.
#[must_use]
pub fn sha256_of_parts(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = Sha256::new();
    for part in parts {
        state.update(part);
    }
    state.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_chains_are_those_of_the_definition() {
        for length in [0, 1, 63, 64, 1023, 1024, 1025, 5000] {
            let message: Vec<u8> = (0..length).map(|octet: u32| (octet * octet + 7) as u8).collect();
            let mut padded = message.clone();
            padded.resize(message.len().next_multiple_of(1024), 0);
            let rows = || padded.as_chunks::<1024>().0.iter();
            let states = chains_one_by_one(rows());
            assert_eq!(chains(rows()), states);
            let mut first = INITIAL;
            padded.as_chunks::<64>().0.iter().step_by(16).for_each(|block| sha256_lanes::compress(&mut first, block));
            assert_eq!(states[0], first, "{length} octets");
            let octets = states.map(|state| state.map(u32::to_be_bytes));
            let length = u64::from(length).to_be_bytes();
            let expected = hash("a", &[b"b", &length, octets.as_flattened().as_flattened()]);
            assert_eq!(hash_long("a", &[b"b"], &message), expected);
        }
    }

    #[test]
    fn every_octet_of_a_long_message_and_its_length_count() {
        let message = [0u8; 1100];
        let mut seen: Vec<_> = (0..1100)
            .map(|place| {
                let mut message = message;
                message[place] = 1;
                hash_long("a", &[], &message)
            })
            .collect();
        seen.extend([1100, 1099, 1024, 0].map(|length| hash_long("a", &[], &message[..length])));
        seen.extend([hash_long("b", &[], &message), hash_long("a", &[b""], &message)]);
        seen.sort_unstable();
        assert!(seen.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_border_between_parts_counts() {
        assert_ne!(hash("a", &[b"bc", b"d"]), hash("a", &[b"b", b"cd"]));
        assert_ne!(hash("a", &[b"b"]), hash("ab", &[]));
        assert_ne!(hash("a", &[b""]), hash("a", &[]));
    }
}

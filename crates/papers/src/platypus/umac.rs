//! UMAC (RFC 4418) with 32- to 128-bit tags, and a bounded cache of its contexts (paper, section 5.3).
//!
//! A nonce that repeats under one key discloses that key (threat P4).

use wayleave_crypto::lanes::{Aes128, Block};
use wayleave_crypto::secret::Key128;
use zeroize::Zeroize;

use super::recent::RecentMap;

/// Octets of the first layer's key and of its chunks.
const L1_CHUNK: usize = 1024;
/// Octets of a nonce, at most.
const MAX_NONCE: usize = 16;
/// Octets of the longest message. RFC 4418 has a polynomial over 128 bits for longer ones, which no packet needs.
pub const MAX_MESSAGE: usize = 1 << 24;
const PRIME_36: u64 = (1 << 36) - 5;
const PRIME_64: u128 = (1 << 64) - 59;
/// Key bits that the polynomial hash uses (RFC 4418 section 5.3).
const POLY_MASK: u64 = 0x01ff_ffff_01ff_ffff;

/// One key, set up for tags of `4 * ITERATIONS` octets; `ITERATIONS` is 1 to 4.
#[derive(Clone)]
pub struct Umac<const ITERATIONS: usize> {
    pad: Aes128,
    l1: Vec<u32>,
    l2: [u64; ITERATIONS],
    l3: [[u64; 8]; ITERATIONS],
    l3_pad: [u32; ITERATIONS],
}

impl<const ITERATIONS: usize> Drop for Umac<ITERATIONS> {
    fn drop(&mut self) {
        self.l1.zeroize();
        self.l2.zeroize();
        self.l3.zeroize();
        self.l3_pad.zeroize();
    }
}

impl<const ITERATIONS: usize> Umac<ITERATIONS> {
    /// Derives every layer's key (RFC 4418 section 5.1).
    #[must_use]
    pub fn new(key: &Key128) -> Self {
        const { assert!(ITERATIONS >= 1 && ITERATIONS <= 4) };
        let aes = Aes128::new(key.expose());
        let pad_key = kdf(&aes, 0, 16);
        let l1 = kdf(&aes, 1, L1_CHUNK + (ITERATIONS - 1) * 16);
        let l2 = kdf(&aes, 2, ITERATIONS * 24);
        let l3 = kdf(&aes, 3, ITERATIONS * 64);
        let l3_pad = kdf(&aes, 4, ITERATIONS * 4);
        Self {
            pad: Aes128::new(pad_key.first_chunk().expect("sixteen octets were asked for")),
            l1: l1.chunks_exact(4).map(be32).collect(),
            l2: std::array::from_fn(|i| be64(&l2[24 * i..]) & POLY_MASK),
            l3: std::array::from_fn(|i| std::array::from_fn(|j| be64(&l3[64 * i + 8 * j..]) % PRIME_36)),
            l3_pad: std::array::from_fn(|i| be32(&l3_pad[4 * i..])),
        }
    }

    /// The tag of `message` (at most [`MAX_MESSAGE`] octets) under `nonce` (1 to 16 octets): `4 * ITERATIONS` octets, then
    /// zeros.
    #[must_use]
    pub fn tag(&self, message: &[u8], nonce: &[u8]) -> Block {
        assert!(message.len() <= MAX_MESSAGE, "no packet is that long");
        let mut tag = self.pad(nonce);
        for iteration in 0..ITERATIONS {
            let hash = self.hash(iteration, message).to_be_bytes();
            for (octet, hashed) in tag[4 * iteration..].iter_mut().zip(hash) {
                *octet ^= hashed;
            }
        }
        tag
    }

    /// PDF: the pad of a nonce (RFC 4418 section 3.3.1). Two or four short pads share a block of the cipher.
    fn pad(&self, nonce: &[u8]) -> Block {
        assert!(!nonce.is_empty() && nonce.len() <= MAX_NONCE, "a nonce has 1 to 16 octets");
        let octets = 4 * ITERATIONS;
        let pads = if ITERATIONS <= 2 { 16 / octets } else { 1 };
        let mut block = [0; 16];
        block[..nonce.len()].copy_from_slice(nonce);
        let low = &mut block[nonce.len() - 1];
        let index = usize::from(*low) % pads;
        *low -= index as u8;
        let block = self.pad.encrypt_one(&block);
        let mut out = [0; 16];
        out[..octets].copy_from_slice(&block[index * octets..][..octets]);
        out
    }

    /// UHASH (RFC 4418 section 5), one iteration.
    fn hash(&self, iteration: usize, message: &[u8]) -> u32 {
        let key = &self.l1[4 * iteration..];
        let hashed = if message.len() <= L1_CHUNK {
            u128::from(nh(key, message))
        } else {
            let words = message.chunks(L1_CHUNK).map(|chunk| nh(key, chunk));
            u128::from(poly(self.l2[iteration], words))
        };
        let sum = hashed
            .to_be_bytes()
            .chunks_exact(2)
            .zip(self.l3[iteration])
            .fold(0, |sum, (pair, key)| (sum + u64::from(u16::from_be_bytes([pair[0], pair[1]])) * key) % PRIME_36);
        sum as u32 ^ self.l3_pad[iteration]
    }
}

/// KDF: the cipher over an index and a counter.
fn kdf(aes: &Aes128, index: u64, octets: usize) -> Vec<u8> {
    let mut blocks: Vec<Block> =
        (1..=octets.div_ceil(16) as u64).map(|i| (u128::from(index) << 64 | u128::from(i)).to_be_bytes()).collect();
    aes.encrypt(&mut blocks);
    let mut out = blocks.as_flattened().to_vec();
    out.truncate(octets);
    out
}

/// NH of a chunk padded with zeros to a multiple of 32 octets, plus its length in bits.
fn nh(key: &[u32], chunk: &[u8]) -> u64 {
    let (whole, rest) = chunk.as_chunks::<32>();
    let mut sum = (chunk.len() as u64) << 3;
    for (group, key) in whole.iter().zip(key.chunks_exact(8)) {
        sum = sum.wrapping_add(nh_group(group, key));
    }
    if !rest.is_empty() || chunk.is_empty() {
        let mut last = [0; 32];
        last[..rest.len()].copy_from_slice(rest);
        sum = sum.wrapping_add(nh_group(&last, &key[8 * whole.len()..]));
    }
    sum
}

/// Message words are little-endian.
fn nh_group(group: &[u8; 32], key: &[u32]) -> u64 {
    let word = |i: usize| {
        let octets = [group[4 * i], group[4 * i + 1], group[4 * i + 2], group[4 * i + 3]];
        u64::from(u32::from_le_bytes(octets).wrapping_add(key[i]))
    };
    (0..4).fold(0, |sum: u64, i| sum.wrapping_add(word(i).wrapping_mul(word(i + 4))))
}

/// POLY over 64-bit words (RFC 4418 section 5.3.3).
fn poly(key: u64, words: impl Iterator<Item = u64>) -> u64 {
    let step = |y: u64, word: u64| ((u128::from(key) * u128::from(y) + u128::from(word)) % PRIME_64) as u64;
    words.fold(1, |y, word| {
        if word >= 0xffff_ffff_0000_0000 {
            let marked = step(y, (PRIME_64 - 1) as u64);
            step(marked, word - 59)
        } else {
            step(y, word)
        }
    })
}

fn be32(octets: &[u8]) -> u32 {
    u32::from_be_bytes([octets[0], octets[1], octets[2], octets[3]])
}

fn be64(octets: &[u8]) -> u64 {
    u64::from(be32(octets)) << 32 | u64::from(be32(&octets[4..]))
}

/// The contexts of the most recent capabilities, so that a key is set up once for many packets.
pub struct ContextCache<K>(RecentMap<K, Umac<2>>);

impl<K: std::hash::Hash + Eq + Clone> ContextCache<K> {
    /// Room for `most` contexts, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(RecentMap::new(most))
    }

    /// The context `name`. If it is missing, `make` makes its key, in place of the oldest one if there is no room.
    pub fn get(&mut self, name: &K, make: impl FnOnce() -> Key128) -> &Umac<2> {
        if self.0.get(name).is_none() {
            self.0.insert(name.clone(), Umac::new(&make()));
        }
        self.0.get(name).expect("it was put in if it was not there")
    }

    /// Contexts held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(octets: &[u8]) -> String {
        octets.iter().map(|octet| format!("{octet:02X}")).collect()
    }

    /// RFC 4418, appendix; its row of 2^25 octets is beyond [`MAX_MESSAGE`].
    #[test]
    fn rfc_4418_known_answers() {
        let rows: [(&str, usize, [&str; 3]); 7] = [
            ("", 0, ["113145FB", "6E155FAD26900BE1", "32FEDB100C79AD58F07FF764"]),
            ("a", 3, ["3B91D102", "44B5CB542F220104", "185E4FE905CBA7BD85E4C2DC"]),
            ("a", 1 << 10, ["599B350B", "26BF2F5D60118BD9", "7A54ABE04AF82D60FB298C3C"]),
            ("a", 1 << 15, ["58DCF532", "27F8EF643B0D118D", "7B136BD911E4B734286EF2BE"]),
            ("a", 1 << 20, ["DB6364D1", "A4477E87E9F55853", "F8ACFA3AC31CFEEA047F7B11"]),
            ("abc", 1, ["ABF3A3A0", "D4D7B9F6BD4FBFCF", "883C3D4B97A61976FFCF2323"]),
            ("abc", 500, ["ABEB3C8B", "D4CF26DDEFD5C01A", "8824A260C53C66A36C9260A6"]),
        ];
        let key = Key128::new(*b"abcdefghijklmnop");
        let (umac32, umac64) = (Umac::<1>::new(&key), Umac::<2>::new(&key));
        let (umac96, umac128) = (Umac::<3>::new(&key), Umac::<4>::new(&key));
        for (text, times, expected) in rows {
            let message = text.repeat(times).into_bytes();
            assert_eq!(hex(&umac32.tag(&message, b"bcdefghi")[..4]), expected[0]);
            assert_eq!(hex(&umac64.tag(&message, b"bcdefghi")[..8]), expected[1]);
            assert_eq!(hex(&umac96.tag(&message, b"bcdefghi")[..12]), expected[2]);
            assert_eq!(hex(&umac128.tag(&message, b"bcdefghi")[..12]), expected[2]);
        }
    }

    /// P4: one nonce for two messages shows the difference of their hashes, whatever the pad.
    #[test]
    fn a_repeated_nonce_shows_the_hash_under_the_pad() {
        let umac = Umac::<2>::new(&Key128::new([3; 16]));
        let difference = |nonce: &[u8]| {
            let (a, b) = (umac.tag(b"one message", nonce), umac.tag(b"another one", nonce));
            std::array::from_fn::<u8, 16, _>(|i| a[i] ^ b[i])
        };
        assert_eq!(difference(b"nonce1"), difference(b"nonce2"));
    }

    #[test]
    fn a_full_cache_forgets_the_oldest_context() {
        let mut cache = ContextCache::new(2);
        let mut made = 0;
        for name in [1, 2, 1, 3, 2, 1] {
            cache.get(&name, || {
                made += 1;
                Key128::new([name; 16])
            });
            assert!(cache.len() <= 2);
        }
        assert_eq!(made, 4);
    }
}

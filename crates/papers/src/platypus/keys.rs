//! Keys of version 0: temporal secrets, and both ways of delegation (paper, section 3 and Table 2), as published.

use std::net::Ipv4Addr;

use wayleave_crypto::hash::sha256;
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{DelegationId, Principal};

use super::cmac;
use super::umac::Umac;

/// The MAC that computes secrets and bindings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// UMAC, as the paper's implementation.
    Umac,
    /// AES-128-CMAC.
    Cmac,
}

/// The key ID at `secs`: the low four bits of the epoch (paper, footnote 1).
#[must_use]
pub fn key_id(n: u8, secs: u64) -> u8 {
    ((secs as u32) >> n & 0xf) as u8
}

/// `GETTIME`: the epoch that a key ID stands for at `secs` (paper, footnote 1). It is wrong around a wrap: in the first of
/// sixteen epochs, the previous ID stands for an epoch 15 ahead.
#[must_use]
pub fn get_time(n: u8, id: u8, secs: u64) -> u32 {
    (secs as u32) >> n & 0xffff_fff0 | u32::from(id)
}

/// `s = MAC_k(way || rp || GETTIME(id))`.
#[must_use]
pub fn secret(algorithm: Algorithm, k: &Key128, waypoint: Ipv4Addr, principal: Principal, time: u32) -> Key128 {
    let mut message = [0; 11];
    message[..4].copy_from_slice(&waypoint.octets());
    message[4..7].copy_from_slice(&principal.octets());
    message[7..].copy_from_slice(&time.to_be_bytes());
    Key128::new(match algorithm {
        // The nonce consists of the upper bits of the time (paper, section 5.3).
        Algorithm::Umac => Umac::<4>::new(k).tag(&message, &time.to_be_bytes()),
        Algorithm::Cmac => cmac(k, &message),
    })
}

/// A prefix of at most 32 bits. Version 0 ignores address bits beyond its length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PaperPrefix {
    /// The address.
    pub address: Ipv4Addr,
    /// 0 to 32.
    pub length: u8,
}

impl PaperPrefix {
    /// `p_i`, for `i` from 1 on.
    #[must_use]
    pub fn bit(&self, i: u8) -> u8 {
        (u32::from(self.address) >> (32 - u32::from(i)) & 1) as u8
    }

    /// Whether the prefix contains `address`.
    #[must_use]
    pub fn holds(&self, address: Ipv4Addr) -> bool {
        let differing = u32::from(address) ^ u32::from(self.address);
        differing.leading_zeros() >= u32::from(self.length)
    }
}

/// `H`: SHA-256, truncated to 128 bits.
#[must_use]
pub fn h(octets: &[u8]) -> Key128 {
    Key128::new(*sha256(octets).first_chunk().expect("a hash has 32 octets"))
}

fn f(key: &Key128, input: &[u8]) -> Key128 {
    Key128::new(cmac(key, input))
}

/// `s_0 = s ^ H(id)` of chaining delegation. Its holder, to whom the empty prefix is delegated, can compute `s` (threat P7).
#[must_use]
pub fn chain_begin(s: &Key128, id: DelegationId) -> Key128 {
    s.xor(&h(&id.octets()))
}

/// `s_i = F(s_{i-1}, p_i)`, from `s_{from}` to the prefix's length.
#[must_use]
pub fn chain(mut s: Key128, from: u8, prefix: &PaperPrefix) -> Key128 {
    for i in from + 1..=prefix.length {
        s = f(&s, &[prefix.bit(i)]);
    }
    s
}

/// The keys for a prefix under XOR delegation: `d_p` to stamp, `s_|p|` to delegate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorKeys {
    /// `d_p`.
    pub d: Key128,
    /// `s_|p|`, which does not depend on the prefix's bits.
    pub s: Key128,
}

impl XorKeys {
    /// For the empty prefix: `d = H(s) ^ H(id)`.
    #[must_use]
    pub fn begin(s: &Key128, id: DelegationId) -> Self {
        Self { d: h(s.expose()).xor(&h(&id.octets())), s: s.clone() }
    }

    /// From a prefix of length `from` to a longer one.
    #[must_use]
    pub fn step(mut self, from: u8, prefix: &PaperPrefix) -> Self {
        for i in from + 1..=prefix.length {
            self.d = self.d.xor(&f(&self.s, &[prefix.bit(i), i]));
            self.s = f(&self.s, &[i]);
        }
        self
    }
}

/// The table that a router computes ahead for one secret, so that a packet costs a few exclusive ors.
#[derive(Clone, Debug)]
pub struct XorTable {
    begin: Key128,
    bits: Vec<[Key128; 2]>,
}

impl XorTable {
    /// `d_{i,0}` and `d_{i,1}` for every bit.
    #[must_use]
    pub fn new(s: &Key128) -> Self {
        let mut s_i = s.clone();
        let mut bits = Vec::with_capacity(32);
        for i in 1..=32 {
            bits.push([f(&s_i, &[0, i]), f(&s_i, &[1, i])]);
            s_i = f(&s_i, &[i]);
        }
        Self { begin: h(s.expose()), bits }
    }

    /// `d_p` for a prefix and a delegation ID.
    #[must_use]
    pub fn d(&self, id: DelegationId, prefix: &PaperPrefix) -> Key128 {
        let begin = self.begin.xor(&h(&id.octets()));
        (1..=prefix.length).zip(&self.bits).fold(begin, |d, (i, pair)| d.xor(&pair[usize::from(prefix.bit(i))]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_and_routers_compute_the_same_keys_for_every_length() {
        let s = Key128::new([0x55; 16]);
        let id = DelegationId::new(0x12_3456).expect("24 bits");
        let table = XorTable::new(&s);
        let address = Ipv4Addr::new(0xa5, 0x3c, 0x0f, 0x96);
        let mut held = XorKeys::begin(&s, id);
        let mut chained = chain_begin(&s, id);
        for length in 0..=32u8 {
            let prefix = PaperPrefix { address, length };
            held = held.step(length.saturating_sub(1), &prefix);
            chained = chain(chained, length.saturating_sub(1), &prefix);
            assert_eq!(held.d, table.d(id, &prefix));
            assert_eq!(held, XorKeys::begin(&s, id).step(0, &prefix));
            assert_eq!(chained, chain(chain_begin(&s, id), 0, &prefix));
        }
    }
}

//! The consistency check of a chunk: SoftSpokenOT's subspace check (Roy, CRYPTO 2022), made without a round of its own.
//!
//! The sender's columns are `q = v + D a`, for its `D`, the receiver's `v` and bits `a`: the same `a` in all columns, if the receiver
//! follows the protocol. Both apply a random linear function `R` to the columns. The receiver sends `R a` and a hash of all `R v`, and
//! the sender hashes `R q + D (R a)`. If the receiver used other bits in some groups, `R` keeps them apart but with a probability of
//! 2^-128 for each pair of groups. Then what it sends fits one value only of the bits of `D` of each group whose bits are not `a`.
//!
//! `R` follows from a hash of the message (Fiat and Shamir): another message gets another `R`, so that a receiver that searches has one
//! chance of 2^-128 times the pairs of groups with each message that it hashes. `R` is `[R' | I]`, where `I` takes the last 128
//! transfers of the chunk, which serve nothing else: they hide what `R'` says of the others.

use subtle::{Choice, ConstantTimeEq};
use wayleave_crypto::gf128::sum_of_products;
use wayleave_crypto::hash::{hash, hash_long};
use wayleave_crypto::prg::Prg;
use zeroize::Zeroizing;

use crate::base_ot::BASE_OTS;
use crate::party::Role;

/// Bytes of what the receiver sends: `R a`, and the hash of all `R v`.
pub(super) const PROOF_BYTES: usize = 16 + 32;

/// The linear function that a chunk's message gives.
pub(super) struct LinearHash {
    /// The hash of the message and of all that says whose it is.
    challenge: [u8; 32],
    /// `R'`: an element of GF(2^128) for each 128 transfers but the last.
    weights: Vec<[u8; 16]>,
}

impl LinearHash {
    /// The function for the receiver's `matrix`, with its `header`, of transfers in which `sender` sends. `session` is the hash of
    /// all that came before the first chunk, `squares` the number of 128 transfers.
    pub(super) fn new(session: &[u8; 32], sender: Role, header: &[u8], matrix: &[u8], squares: usize) -> Self {
        let challenge = hash_long("wayleave/mpc/ot-challenge/v1", &[session, &[sender.number()], header], matrix);
        let mut weights = vec![[0; 16]; squares - 1];
        Prg::new(challenge.first_chunk().expect("32 bytes have 16")).blocks(0, &mut weights);
        Self { challenge, weights }
    }

    /// What the receiver of the transfers sends, from its bits and columns, which begin `apart` bytes after each other.
    pub(super) fn prove(&self, bits: &[[u8; 16]], columns: &[u8], apart: usize) -> [u8; PROOF_BYTES] {
        let bits = self.of(bits);
        let mut proof = [0; PROOF_BYTES];
        proof[..16].copy_from_slice(&bits.to_le_bytes());
        proof[16..].copy_from_slice(&self.digest(bits, columns, apart, 0));
        proof
    }

    /// Whether the receiver's proof fits the sender's columns and `delta`, in a time that depends on neither.
    pub(super) fn accepts(&self, proof: &[u8; PROOF_BYTES], columns: &[u8], apart: usize, delta: u128) -> Choice {
        let (bits, digest) = proof.split_first_chunk().expect("a proof has more than 16 bytes");
        self.digest(u128::from_le_bytes(*bits), columns, apart, delta).as_slice().ct_eq(digest)
    }

    /// The hash of all columns' values, of which those are raised by `bits` whose bit in `delta` is set.
    fn digest(&self, bits: u128, columns: &[u8], apart: usize, delta: u128) -> [u8; 32] {
        let mut values = Zeroizing::new([[0; 16]; BASE_OTS]);
        let columns = columns.chunks_exact(apart).map(|column| &column.as_chunks().0[..=self.weights.len()]);
        for (number, (value, column)) in values.iter_mut().zip(columns).enumerate() {
            let mask = ((delta >> number) & 1).wrapping_neg();
            *value = (self.of(column) ^ (bits & mask)).to_le_bytes();
        }
        hash("wayleave/mpc/ot-check/v1", &[&self.challenge, &bits.to_le_bytes(), values.as_flattened()])
    }

    /// `R` of one column.
    pub(super) fn of(&self, column: &[[u8; 16]]) -> u128 {
        let (last, others) = column.split_last().expect("a chunk has more than 128 transfers");
        u128::from_le_bytes(sum_of_products(&self.weights, others)) ^ u128::from_le_bytes(*last)
    }
}

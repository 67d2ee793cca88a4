//! Vector correlations from a random-OT extension, in both directions: SoftSpokenOT (Roy, CRYPTO 2022), secure against a party that
//! deviates. With groups of one column it is the extension of Ishai, Kilian, Nissim and Petrank (CRYPTO 2003).
//!
//! Parties hold bits `a1`, `a2`, vectors `B1`, `B2` and `C1`, `C2` with `C1 xor C2 = (a1 xor a2)(B1 xor B2)`. The cross term `a1 B2`
//! is a random transfer in which party 1 chooses with `a1` between `r0` and `r1` of party 2, whose `B2` is `r0 xor r1`; `a2 B1` is one
//! in the other direction. So a chunk is one message of each party, the receiver's of the extension with the proof of its consistency
//! ([`check`]), and nothing more. 128 transfers of each chunk serve that proof alone.

use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Secret;
use wayleave_crypto::tccr::Tccr;
use wayleave_crypto::transpose::{Square, transpose};
use zeroize::{Zeroize, ZeroizeOnDrop};

mod check;
mod columns;
#[cfg(test)]
mod deviation;
mod group;
mod tree;

use crate::base_ot::BASE_OTS;
use crate::demand::{Chunk, Width};
use crate::error::Fault;
use crate::party::Role;
use crate::pool::Correlations;
use crate::setup::SessionTag;

pub use group::GroupBits;
pub(crate) use tree::{Leaves, Punctured, TreeName, all_leaves, punctured_leaves};

/// Bytes in front of the matrix: width, zeros, count, index of the first transfer.
pub(crate) const HEADER_BYTES: usize = 16;

/// Rows of one transposition: transfers that share 16 bytes of each column.
const SQUARE: usize = 128;

/// Transfers of a chunk that are made for its check and serve nothing else.
const CHECKED: usize = SQUARE;

/// Bytes between two of our columns beyond their length: a stride that is a power of two would put all columns of a
/// square into the same few sets of the cache.
const SPREAD: usize = 64;

/// A square at the start of a cache line: a transposition takes a fifth longer where its vectors cross lines.
#[repr(align(64))]
struct Aligned(Square);

/// The OT extension of a session in both directions. Transfers are numbered from 0, and no number is used twice.
pub(crate) struct OtExtension {
    role: Role,
    tag: SessionTag,
    /// The hash of all that came before the first chunk: what the challenges of the checks are bound to.
    session: [u8; 32],
    group: GroupBits,
    /// As receiver: the streams of all leaves of each group.
    leaves: Vec<Vec<Prg>>,
    /// As sender: the streams of all leaves but one of each group.
    punctured: Vec<Vec<Prg>>,
    /// As sender: the leaf that each group lacks, a bit for each column. What [`tree::punctured_leaves`] calls `D`.
    delta: Secret<16>,
    hash: Tccr,
    /// The number of the next transfer.
    next: u64,
    /// Correlations produced so far, by width: the numbers of the pool.
    produced: [u64; 8],
    /// The chunk whose message is sent and whose answer is awaited.
    open: Option<Chunk>,
    scratch: Scratch,
}

/// Buffers of one chunk, overwritten by the next one and wiped at the end.
#[derive(Default, Zeroize, ZeroizeOnDrop)]
struct Scratch {
    columns: Vec<u8>,
    /// Sums of leaves, one column for each level of a tree.
    sums: Vec<u8>,
    /// The receiver's outputs `r_a`, hashed.
    chosen: Vec<[u8; 16]>,
    /// The bits `a`, one for each transfer: the sum of all leaves' streams of the first group.
    bits: Vec<[u8; 16]>,
}

impl Scratch {
    fn fit(&mut self, count: usize, group: GroupBits) {
        let stride = column_bytes(count);
        self.columns.resize((stride + SPREAD) * BASE_OTS, 0);
        self.sums.resize(stride * group.get(), 0);
        self.chosen.resize(count, [0; 16]);
        self.bits.resize(stride / 16, [0; 16]);
    }
}

impl OtExtension {
    pub(crate) fn new(
        role: Role,
        tag: SessionTag,
        session: [u8; 32],
        group: GroupBits,
        leaves: &[Leaves],
        punctured: &[Punctured],
        delta: Secret<16>,
    ) -> Self {
        let streams = |seeds: &[Secret<16>]| seeds.iter().map(|seed| Prg::new(seed.expose())).collect();
        Self {
            role,
            tag,
            session,
            group,
            leaves: leaves.iter().map(|leaves| streams(leaves)).collect(),
            punctured: punctured.iter().map(|leaves| streams(leaves)).collect(),
            delta,
            hash: Tccr::new(&tag.0),
            next: 0,
            produced: [0; 8],
            open: None,
            scratch: Scratch::default(),
        }
    }

    pub(crate) fn tag(&self) -> SessionTag {
        self.tag
    }

    #[cfg(test)]
    pub(crate) fn delta(&self) -> &Secret<16> {
        &self.delta
    }

    /// The receiver's message: for each group but the first the sum of its leaves' streams, plus `a`, which is that sum of the first;
    /// then the proof. Its own columns are, for each bit of a leaf's number, the sum of the streams whose number has it.
    pub(crate) fn send(&mut self, chunk: Chunk) -> Vec<u8> {
        let bytes = self.group.chunk_bytes(chunk.count);
        let mut message = Vec::with_capacity(bytes);
        message.extend_from_slice(&self.header(chunk));
        message.resize(bytes - check::PROOF_BYTES, 0);
        self.receiver_columns(chunk, &mut message[HEADER_BYTES..]);
        let proof = self.linear_hash(chunk, self.role.peer(), &message).prove(
            &self.scratch.bits,
            &self.scratch.columns,
            column_bytes(chunk.count) + SPREAD,
        );
        message.extend_from_slice(&proof);
        self.receiver_outputs(chunk);
        self.open = Some(chunk);
        message
    }

    /// Writes the receiver's columns and bits `a`, and its matrix.
    fn receiver_columns(&mut self, chunk: Chunk, matrix: &mut [u8]) {
        self.scratch.fit(chunk.count, self.group);
        let (stride, first_block) = (column_bytes(chunk.count), self.next / SQUARE as u64);
        let Scratch { columns, sums, bits, .. } = &mut self.scratch;
        let apart = stride + SPREAD;
        let bits = bits.as_flattened_mut();
        let (first, others) = self.leaves.split_first().expect("there are groups");
        let (own, other_columns) = columns.split_at_mut(apart * self.group.get());
        columns::all(first, first_block, bits, own, apart, sums);
        let pieces = matrix.chunks_exact_mut(stride).zip(other_columns.chunks_exact_mut(apart * self.group.get()));
        for (leaves, (sent, own)) in others.iter().zip(pieces) {
            columns::all(leaves, first_block, sent, own, apart, sums);
            xor(sent, bits);
        }
    }

    /// Hashes the receiver's rows.
    fn receiver_outputs(&mut self, chunk: Chunk) {
        let Scratch { columns, chosen, .. } = &mut self.scratch;
        let square = &mut Aligned([[0; 2]; SQUARE]).0;
        for (place, rows) in chosen.chunks_exact_mut(SQUARE).enumerate() {
            rows_of(columns, column_bytes(chunk.count) + SPREAD, place, square);
            write_blocks(square, rows);
            self.hash.hash(direction(self.role.peer()), self.next + (place * SQUARE) as u64, rows);
        }
        square.as_flattened_mut().zeroize();
    }

    /// Computes the sender's part from the peer's message and, once that has passed its check, the correlations of the chunk. After
    /// a fault the caller drops the extension, which wipes it.
    pub(crate) fn receive(&mut self, theirs: &[u8]) -> Result<Correlations, Fault> {
        let chunk = self.open.take().ok_or(Fault::OutOfStep)?;
        let expected = self.group.chunk_bytes(chunk.count);
        if theirs.len() != expected {
            return Err(Fault::Length { expected, got: theirs.len() });
        }
        if theirs[..HEADER_BYTES] != self.header(chunk) {
            return Err(Fault::OutOfStep);
        }
        let (message, proof) = theirs.split_last_chunk().expect("the length was checked");
        self.sender_columns(chunk, &message[HEADER_BYTES..]);
        self.check(chunk, message, proof)?;
        let correlations = self.combine(chunk);
        self.next += (chunk.count + CHECKED) as u64;
        self.produced[chunk.width.index()] += chunk.count as u64;
        Ok(correlations)
    }

    /// `q = w + D c` in each group, for the sums `w` of its leaves and the receiver's piece `c`, which is zero in the first group.
    fn sender_columns(&mut self, chunk: Chunk, matrix: &[u8]) {
        let (first_block, delta) = (self.next / SQUARE as u64, u128::from_le_bytes(*self.delta.expose()));
        let (stride, levels) = (column_bytes(chunk.count), self.group.get());
        let apart = stride + SPREAD;
        let Scratch { columns, sums, .. } = &mut self.scratch;
        let pieces = std::iter::once(None).chain(matrix.chunks_exact(stride).map(Some));
        let pieces = columns.chunks_exact_mut(apart * levels).zip(pieces);
        for (number, (leaves, (own, theirs))) in self.punctured.iter().zip(pieces).enumerate() {
            columns::all_but_first(leaves, first_block, own, (stride, apart), sums);
            let Some(theirs) = theirs else { continue };
            for (level, column) in own.chunks_exact_mut(apart).enumerate() {
                let mask = (((delta >> (number * levels + level)) & 1) as u8).wrapping_neg();
                column[..stride].iter_mut().zip(theirs).for_each(|(own, theirs)| *own ^= theirs & mask);
            }
        }
    }

    /// Checks the sender's columns against the receiver's proof; wipes what was made of its message if it does not fit.
    fn check(&mut self, chunk: Chunk, message: &[u8], proof: &[u8; check::PROOF_BYTES]) -> Result<(), Fault> {
        let (apart, delta) = (column_bytes(chunk.count) + SPREAD, u128::from_le_bytes(*self.delta.expose()));
        let hash = self.linear_hash(chunk, self.role, message);
        if hash.accepts(proof, &self.scratch.columns, apart, delta).into() {
            return Ok(());
        }
        self.scratch.zeroize();
        Err(Fault::Transfers)
    }

    /// The linear function of a receiver's message without its proof.
    fn linear_hash(&self, chunk: Chunk, sender: Role, message: &[u8]) -> check::LinearHash {
        let (header, matrix) = message.split_at(HEADER_BYTES);
        check::LinearHash::new(&self.session, sender, header, matrix, chunk.count / SQUARE + 1)
    }

    /// Hashes the sender's rows and combines both directions: `B = r0 xor r1`, `C = a B xor r_a xor r0`.
    fn combine(&mut self, chunk: Chunk) -> Correlations {
        let Scratch { columns, chosen, bits, .. } = &self.scratch;
        let mut correlations = Correlations::new(self.role, self.tag, chunk, self.produced[chunk.width.index()]);
        let (apart, delta) = (column_bytes(chunk.count) + SPREAD, u128::from_le_bytes(*self.delta.expose()));
        let square = &mut Aligned([[0; 2]; SQUARE]).0;
        let mut rows = [[[0u8; 16]; SQUARE]; 2];
        let (vectors, products) = (&mut Aligned(*square).0, &mut Aligned(*square).0);
        for (place, (chosen, bits)) in chosen.chunks_exact(SQUARE).zip(bits).enumerate() {
            let first = self.next + (place * SQUARE) as u64;
            rows_of(columns, apart, place, square);
            write_blocks(square, &mut rows[0]);
            for (square, words) in rows[1].iter_mut().zip(&*square) {
                *square = (join(words) ^ delta).to_le_bytes();
            }
            let [zero, one] = &mut rows;
            self.hash.hash(direction(self.role), first, zero);
            self.hash.hash(direction(self.role), first, one);
            let bits = halves(u128::from_le_bytes(*bits));
            for row in 0..SQUARE {
                let [zero, one, chosen] = [zero[row], one[row], chosen[row]].map(u128::from_le_bytes).map(halves);
                let bit = ((bits[row / 64] >> (row % 64)) & 1).wrapping_neg();
                vectors[row] = [zero[0] ^ one[0], zero[1] ^ one[1]];
                products[row] = [0, 1].map(|half| (vectors[row][half] & bit) ^ zero[half] ^ chosen[half]);
            }
            correlations.put(place, bits, &slice(vectors, chunk.width), &slice(products, chunk.width));
        }
        for secret in [square, vectors, products] {
            secret.as_flattened_mut().zeroize();
        }
        rows.as_flattened_mut().as_flattened_mut().zeroize();
        correlations
    }

    fn header(&self, chunk: Chunk) -> [u8; HEADER_BYTES] {
        let mut out = [0u8; HEADER_BYTES];
        out[0] = u8::try_from(chunk.width.bits()).expect("at most 128 bits");
        out[4..8].copy_from_slice(&u32::try_from(chunk.count).expect("at most Chunk::MAX").to_le_bytes());
        out[8..].copy_from_slice(&self.next.to_le_bytes());
        out
    }
}

/// Bytes of a column of a chunk with `count` correlations.
fn column_bytes(count: usize) -> usize {
    (count + CHECKED) / 8
}

/// The tweak's domain: which party is the sender.
fn direction(sender: Role) -> u64 {
    u64::from(sender.number())
}

fn xor(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

fn join([low, high]: &[u64; 2]) -> u128 {
    u128::from(*low) | (u128::from(*high) << 64)
}

fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

/// Transposes the `place`-th 128 transfers of all columns into rows.
fn rows_of(columns: &[u8], apart: usize, place: usize, square: &mut Square) {
    for (row, column) in square.iter_mut().zip(columns.chunks_exact(apart)) {
        let bytes: &[u8; 16] = column[16 * place..].first_chunk().expect("a column has 16 bytes for each square");
        *row = halves(u128::from_le_bytes(*bytes));
    }
    transpose(square);
}

fn write_blocks(square: &Square, blocks: &mut [[u8; 16]]) {
    for (block, words) in blocks.iter_mut().zip(square) {
        *block = join(words).to_le_bytes();
    }
}

/// Turns rows into bit planes, of which the first `width` count.
fn slice(square: &mut Square, width: Width) -> Square {
    match width.bits() {
        bits @ (1 | 2) => {
            let mut planes: Square = [[0; 2]; SQUARE];
            for (bit, plane) in planes.iter_mut().take(bits).enumerate() {
                for (word, rows) in plane.iter_mut().zip(square.chunks_exact(64)) {
                    *word = rows.iter().enumerate().fold(0, |word, (row, low)| word | (((low[0] >> bit) & 1) << row));
                }
            }
            planes
        }
        _ => {
            transpose(square);
            *square
        }
    }
}

#[cfg(test)]
mod tests {
    //! MPC-06: the OT extension in groups of 1, 2, 4 and 8 columns and every width: the shares multiply.

    use super::*;
    use crate::pool::Pool;
    use crate::rounds::lockstep;
    use crate::setup::{SessionId, Setup};

    /// Both parties' planes of `count` correlations of `width`.
    fn correlations(group: GroupBits, width: Width, count: usize) -> [Vec<u64>; 2] {
        let id = SessionId([width.bits() as u8; 16]);
        let setup = |role, seed| Setup::with_group(role, id, group, [seed; 32]);
        let (mut one, mut two) = (setup(Role::Party1, 1), setup(Role::Party2, 2));
        let mut pools = [Pool::new(usize::MAX), Pool::new(usize::MAX)];
        // In two chunks, so that the second one's streams go on where the first one's ended.
        for part in [128, count.next_multiple_of(128) - 128] {
            for setup in [&mut one, &mut two] {
                setup.request(Chunk { width, count: part }).unwrap();
            }
            let (one, two) = lockstep(&mut one, &mut two).unwrap();
            pools[0].add(one).unwrap();
            pools[1].add(two).unwrap();
        }
        pools.map(|mut pool| {
            let mut planes = vec![0; width.stored_bits() * count.div_ceil(64)];
            pool.take(width, width.bits(), count, &mut planes);
            planes
        })
    }

    #[test]
    fn in_every_width_and_group_the_shares_multiply() {
        for (group, width) in GroupBits::ALL.into_iter().flat_map(|group| Width::ALL.map(|width| (group, width))) {
            let count = 1000;
            let [one, two] = correlations(group, width, count);
            let whole: Vec<u64> = one.iter().zip(&two).map(|(one, two)| one ^ two).collect();
            let words = count.div_ceil(64);
            let plane = |number: usize| &whole[number * words..][..words];
            for bit in 0..width.bits() {
                for word in 0..words {
                    let expected = plane(0)[word] & plane(1 + bit)[word];
                    assert_eq!(plane(1 + width.bits() + bit)[word], expected, "{group:?}, width {}", width.bits());
                }
            }
            for planes in [&one, &two] {
                let ones: u32 = planes.iter().map(|word| word.count_ones()).sum();
                let share = f64::from(ones) / (planes.len() * 64) as f64;
                assert!((0.4..0.6).contains(&share), "{group:?}, width {}: {share} ones", width.bits());
            }
        }
    }
}

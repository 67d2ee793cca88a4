//! The evaluator: GMW over XOR shares, one message of each party for each layer.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use wayleave_crypto::hash::hash;
use zeroize::{Zeroize, Zeroizing};

use crate::circuit::{Circuit, CircuitError, Gate, Product};
use crate::counts::{Counts, LAYER_BYTES};
use crate::demand::{Demand, Width};
use crate::error::{Error, Fault, Misuse, StartError};
use crate::party::Role;
use crate::pool::{CorrelationRange, Pool};
use crate::rounds::{Rounds, Step};
use crate::rows::{BitRows, last_word, read_row, write_row};
use crate::setup::SessionTag;

/// A circuit that was checked once and can be evaluated many times; clones share it.
#[derive(Clone, Debug)]
pub struct Program(Arc<CheckedCircuit>);

#[derive(Debug)]
struct CheckedCircuit {
    circuit: Circuit,
    digest: [u8; 32],
}

impl Program {
    /// Checks `circuit` and takes its digest.
    ///
    /// # Errors
    /// If it is not valid.
    pub fn new(circuit: Circuit) -> Result<Self, CircuitError> {
        circuit.validate()?;
        let digest = circuit.digest();
        Ok(Self(Arc::new(CheckedCircuit { circuit, digest })))
    }
}

impl Program {
    /// Bytes that one evaluation over `lanes` lanes holds: inputs, wires and correlations.
    #[must_use]
    pub fn memory(&self, lanes: usize) -> usize {
        let planes: usize = self.products().map(|product| 1 + 2 * product.vector.len()).sum();
        (self.wires + planes + self.input_rows()).saturating_mul(8 * lanes.div_ceil(64))
    }
}

impl Deref for Program {
    type Target = Circuit;

    fn deref(&self) -> &Circuit {
        &self.0.circuit
    }
}

/// One party's end of one evaluation. Its correlations are taken when it starts; dropped in the middle it wipes them, and
/// they never return to the pool.
pub struct Evaluation {
    program: Program,
    role: Role,
    lanes: usize,
    words: usize,
    /// With the layer's number added, the first eight bytes of each message.
    tag: u64,
    /// Rows of all wires.
    wires: Zeroizing<Vec<u64>>,
    /// For each product in turn its planes `a`, `B`, `C`.
    correlations: Zeroizing<Vec<u64>>,
    /// Where those of the current layer begin.
    offset: usize,
    layer: usize,
    state: State,
    consumed: Vec<CorrelationRange>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Sent,
    Ended,
}

impl Evaluation {
    /// Starts an evaluation of `program` on this party's shares of the inputs, one row for each input row of the circuit, and
    /// takes [`Demand::of`] it from the pool. The outputs are this party's shares of the circuit's output rows.
    ///
    /// The peer must start the same evaluation from the same state of its pool, else the first message is refused.
    ///
    /// # Errors
    /// If the pool has too few correlations, in which case none is taken, or the inputs do not fit the circuit.
    pub fn new(program: &Program, inputs: &BitRows, pool: &mut Pool) -> Result<Self, StartError> {
        let (expected, got) = (program.input_rows(), inputs.rows());
        if expected != got {
            return Err(Misuse::InputRows { expected, got }.into());
        }
        let lanes = inputs.lanes();
        let demand = Demand::of(program, lanes);
        check_available(&demand, pool)?;
        let (role, session) = pool.origin().ok_or(Misuse::NoSession)?;
        let tag = tag(session, program, lanes, pool);
        let before = pool.positions();
        let correlations = take(program, lanes, pool);
        let consumed = Width::ALL.into_iter().zip(before).map(|(width, first)| {
            let count = demand.count(width);
            CorrelationRange { session, width, first, count }
        });
        let consumed = consumed.filter(|range| range.count > 0).collect();
        let words = lanes.div_ceil(64);
        let mut wires = Zeroizing::new(vec![0u64; program.wires * words]);
        wires[..inputs.words().len()].copy_from_slice(inputs.words());
        Ok(Self {
            program: program.clone(),
            role,
            lanes,
            words,
            tag,
            wires,
            correlations,
            offset: 0,
            layer: 0,
            state: State::Start,
            consumed,
            counts: Counts::default(),
        })
    }

    /// The correlations that this evaluation consumed; a log of these ranges shows that none is used twice.
    #[must_use]
    pub fn consumed(&self) -> &[CorrelationRange] {
        &self.consumed
    }

    /// Traffic of this end so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn advance(&mut self, received: Option<&[u8]>) -> Result<Step<BitRows>, Error> {
        match (self.state, received) {
            (State::Start, None) => {}
            (State::Sent, Some(message)) => {
                self.finish_layer(message).map_err(|fault| Error::Peer { peer: self.role.peer(), fault })?;
            }
            (State::Ended, _) => return Err(Misuse::Ended.into()),
            _ => return Err(Misuse::OutOfTurn.into()),
        }
        let program = self.program.clone();
        if let Some(layer) = program.layers.get(self.layer) {
            layer.local.iter().for_each(|gate| self.local(*gate));
            if !layer.products.is_empty() {
                let message = self.open(&layer.products);
                self.state = State::Sent;
                self.counts.add(message.len());
                return Ok(Step::Send(message));
            }
        }
        let outputs = self.outputs();
        self.end();
        Ok(Step::Done(outputs))
    }

    fn local(&mut self, gate: Gate) {
        let (words, last, first) = (self.words, last_word(self.lanes), self.role == Role::Party1);
        match gate {
            Gate::Xor { left, right, out } => {
                let (before, out) = self.wires.split_at_mut(out.index() * words);
                let left = &before[left.index() * words..][..words];
                let right = &before[right.index() * words..][..words];
                for ((out, left), right) in out[..words].iter_mut().zip(left).zip(right) {
                    *out = left ^ right;
                }
            }
            Gate::Not { input, out } => {
                let (before, out) = self.wires.split_at_mut(out.index() * words);
                let flip = u64::from(first).wrapping_neg();
                for (out, input) in out[..words].iter_mut().zip(&before[input.index() * words..][..words]) {
                    *out = input ^ flip;
                }
                mask(&mut out[..words], last);
            }
            Gate::Constant { bit, out } => {
                let out = &mut self.wires[out.index() * words..][..words];
                out.fill(u64::from(bit && first).wrapping_neg());
                mask(out, last);
            }
        }
    }

    /// The message of a layer: for each product `bit xor a`, then `vector xor B`.
    fn open(&self, products: &[Product]) -> Vec<u8> {
        let mut message = Vec::with_capacity(self.layer_bytes(products) + 8);
        message.extend_from_slice(&self.layer_tag().to_le_bytes());
        let mut rows = self.correlations[self.offset..].chunks_exact(self.words.max(1));
        for product in products {
            for wire in [&product.bit].into_iter().chain(&product.vector) {
                let own = &self.wires[wire.index() * self.words..][..self.words];
                let masks = rows.next().unwrap_or_default();
                write_row(&mut message, own.iter().zip(masks).map(|(own, mask)| own ^ mask), self.lanes);
            }
            rows.by_ref().take(product.vector.len()).for_each(drop);
        }
        message
    }

    /// Both parties' messages give `d = bit xor a` and `e = vector xor B`; then `bit vector = C xor d B xor a e xor d e`, of which
    /// party 1 alone adds the last term.
    fn finish_layer(&mut self, message: &[u8]) -> Result<(), Fault> {
        let program = self.program.clone();
        let products = &program.layers[self.layer].products;
        let expected = self.layer_bytes(products);
        if message.len() != expected {
            return Err(Fault::Length { expected, got: message.len() });
        }
        let (tag, body) = message.split_at(LAYER_BYTES);
        if tag != self.layer_tag().to_le_bytes() {
            return Err(Fault::OutOfStep);
        }
        let mut rows = body.chunks_exact(self.lanes.div_ceil(8).max(1));
        check_padding(rows.clone(), self.lanes)?;
        let first = u64::from(self.role == Role::Party1).wrapping_neg();
        let words = self.words;
        let mut scratch = Zeroizing::new(vec![0u64; 2 * words]);
        let (d, e) = scratch.split_at_mut(words);
        for product in products {
            let bits = product.vector.len();
            let planes = &self.correlations[self.offset..][..(1 + 2 * bits) * words];
            let (a, planes) = planes.split_at(words);
            let (before, out) = self.wires.split_at_mut(product.out.index() * words);
            read_row(rows.next().unwrap_or_default(), d);
            xor_into(d, &before[product.bit.index() * words..], a);
            for (place, wire) in product.vector.iter().enumerate() {
                let vector_mask = &planes[place * words..][..words];
                let product_mask = &planes[(bits + place) * words..][..words];
                read_row(rows.next().unwrap_or_default(), e);
                xor_into(e, &before[wire.index() * words..], vector_mask);
                let out = &mut out[place * words..][..words];
                for word in 0..words {
                    out[word] =
                        product_mask[word] ^ (d[word] & (vector_mask[word] ^ (e[word] & first))) ^ (a[word] & e[word]);
                }
            }
            self.offset += (1 + 2 * bits) * words;
        }
        self.layer += 1;
        Ok(())
    }

    fn outputs(&self) -> BitRows {
        let mut out = BitRows::zero(self.program.outputs.len(), self.lanes);
        for (row, wire) in self.program.outputs.iter().enumerate() {
            out.set_row(row, &self.wires[wire.index() * self.words..][..self.words]);
        }
        out
    }

    fn layer_bytes(&self, products: &[Product]) -> usize {
        crate::counts::layer_bytes(products, self.lanes)
    }

    fn layer_tag(&self) -> u64 {
        self.tag.wrapping_add(self.layer as u64)
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.wires.zeroize();
        self.correlations.zeroize();
    }
}

impl Rounds for Evaluation {
    type Output = BitRows;

    fn round(&mut self, received: Option<&[u8]>) -> Result<Step<BitRows>, Error> {
        self.advance(received).inspect_err(|_| self.end())
    }

    fn expects(&self) -> Option<usize> {
        let layer = self.program.layers.get(self.layer).filter(|_| self.state == State::Sent)?;
        Some(self.layer_bytes(&layer.products))
    }
}

impl fmt::Debug for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, layers) = (self.layer, self.program.layers.len());
        write!(f, "Evaluation {{ role: {}, lanes: {}, layer: {layer} of {layers}, .. }}", self.role, self.lanes)
    }
}

fn check_available(demand: &Demand, pool: &Pool) -> Result<(), StartError> {
    for width in Width::ALL {
        let (have, need) = (pool.left(width), demand.count(width));
        if have < need {
            return Err(StartError::NotEnough { width, have, need });
        }
    }
    Ok(())
}

/// Identifies an evaluation: session, circuit, lanes, and position in the pool.
fn tag(session: SessionTag, program: &Program, lanes: usize, pool: &Pool) -> u64 {
    let positions = pool.positions().map(u64::to_le_bytes);
    let parts: [&[u8]; 4] = [&session.0, &program.0.digest, &(lanes as u64).to_le_bytes(), positions.as_flattened()];
    let digest = hash("wayleave/mpc/evaluation/v1", &parts);
    u64::from_le_bytes(*digest.first_chunk().expect("32 bytes have 8"))
}

fn take(program: &Program, lanes: usize, pool: &mut Pool) -> Zeroizing<Vec<u64>> {
    let words = lanes.div_ceil(64);
    let planes: usize = program.products().map(|product| 1 + 2 * product.vector.len()).sum();
    let mut out = Zeroizing::new(vec![0u64; planes * words]);
    let mut rest = out.as_mut_slice();
    for product in program.products() {
        let bits = product.vector.len();
        let width = Width::fitting(bits).expect("a valid circuit's vectors have 1 to 128 bits");
        let (own, after) = rest.split_at_mut((1 + 2 * bits) * words);
        if lanes > 0 {
            pool.take(width, bits, lanes, own);
        }
        rest = after;
    }
    out
}

fn check_padding<'a>(mut rows: impl Iterator<Item = &'a [u8]>, lanes: usize) -> Result<(), Fault> {
    let used = match lanes % 8 {
        0 => return Ok(()),
        used => (1u8 << used) - 1,
    };
    let clean = rows.all(|row| row.last().is_none_or(|last| last & !used == 0));
    if clean { Ok(()) } else { Err(Fault::Padding) }
}

fn mask(row: &mut [u64], last: u64) {
    if let Some(word) = row.last_mut() {
        *word &= last;
    }
}

/// `to ^= own ^ mask`, word by word.
fn xor_into(to: &mut [u64], own: &[u64], mask: &[u64]) {
    for ((to, own), mask) in to.iter_mut().zip(own).zip(mask) {
        *to ^= own ^ mask;
    }
}

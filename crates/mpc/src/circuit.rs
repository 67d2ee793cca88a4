//! Circuits as data: layers of gates over wires, their validation, their counts and their evaluation in the clear.

use thiserror::Error;
use wayleave_crypto::hash::hash;

use crate::rows::{BitRows, last_word};

/// The longest vector of one product.
pub const MAX_VECTOR: usize = 128;
/// Our own limit on wires: a circuit is built by this side, but from numbers that configuration gives.
pub const MAX_WIRES: usize = 1 << 22;

/// A wire: the number of its row during an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wire(pub u32);

impl Wire {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A gate that a party evaluates alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Xor {
        left: Wire,
        right: Wire,
        out: Wire,
    },
    Not {
        input: Wire,
        out: Wire,
    },
    /// The same public bit in every lane.
    Constant {
        bit: bool,
        out: Wire,
    },
}

impl Gate {
    fn out(self) -> Wire {
        match self {
            Self::Xor { out, .. } | Self::Not { out, .. } | Self::Constant { out, .. } => out,
        }
    }

    fn inputs(self) -> [Option<Wire>; 2] {
        match self {
            Self::Xor { left, right, .. } => [Some(left), Some(right)],
            Self::Not { input, .. } => [Some(input), None],
            Self::Constant { .. } => [None, None],
        }
    }
}

/// A gate that needs the peer: one bit times a vector of 1 to 128 bits, at the price of one correlation whatever the
/// length. With a vector of one bit it is an AND.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    pub bit: Wire,
    pub vector: Vec<Wire>,
    /// The first of as many consecutive output wires as the vector has bits.
    pub out: Wire,
}

/// One round: gates evaluated locally, in order, then products evaluated together with the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Gates without interaction.
    pub local: Vec<Gate>,
    /// Products of this layer; empty in the last layer only.
    pub products: Vec<Product>,
}

/// The meaning of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One bit, from the member: opened and valid.
    Valid,
    /// The member's class bits.
    Class,
    /// The exchange's recommendation bits, provided by party 1 alone.
    Recommendation,
    /// One bit of the export policy.
    Export,
    /// A route key.
    Key,
    /// The dummy key of the epoch, provided by party 1 alone.
    Dummy,
    /// Anything else, for circuits built elsewhere.
    Other,
}

/// Some consecutive input rows with one meaning; a number's least significant bit comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    pub kind: Kind,
    /// The route that it belongs to; zero where there is only one.
    pub route: usize,
    /// The first row, and wire.
    pub first: usize,
    pub bits: usize,
}

/// A layered circuit. Input row `i` is wire `i`; every other wire is written once, by a gate after those it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Inputs in the order of their rows.
    pub inputs: Vec<Input>,
    pub wires: usize,
    /// Layers; the last has no products, all others have some.
    pub layers: Vec<Layer>,
    /// The wires of the output rows.
    pub outputs: Vec<Wire>,
}

/// Why a circuit is invalid: our caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CircuitError {
    /// Input rows have a gap, an overlap, or more rows than wires.
    #[error("input {0} does not start where the one before it ends, or passes the wires")]
    Inputs(usize),
    /// More wires than [`MAX_WIRES`].
    #[error("{0} wires, at most {MAX_WIRES} are allowed")]
    TooManyWires(usize),
    /// A wire is read before it is written, or does not exist.
    #[error("layer {layer} reads wire {wire} before it is written")]
    ReadBeforeWritten { layer: usize, wire: u32 },
    /// A gate does not write the next wire that is free.
    #[error("layer {layer} writes wire {wire}, which is not free or does not come after what the gate reads")]
    Written { layer: usize, wire: u32 },
    /// A product's vector is empty or longer than [`MAX_VECTOR`].
    #[error("layer {layer} has a product of {bits} bits")]
    VectorLength { layer: usize, bits: usize },
    /// A layer before the last has no products, or the last one has some.
    #[error("layer {0}: the last layer must have no products, every other one must have some")]
    LayerEnd(usize),
    /// A wire that no gate writes.
    #[error("wire {0} is never written")]
    NeverWritten(usize),
}

impl Circuit {
    /// Checks everything an evaluation relies on.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), CircuitError> {
        if self.wires > MAX_WIRES {
            return Err(CircuitError::TooManyWires(self.wires));
        }
        let mut written = vec![false; self.wires];
        self.check_inputs(&mut written)?;
        for (number, layer) in self.layers.iter().enumerate() {
            self.check_layer(number, layer, &mut written)?;
        }
        if let Some(wire) = written.iter().position(|written| !written) {
            return Err(CircuitError::NeverWritten(wire));
        }
        let layer = self.layers.len().saturating_sub(1);
        self.outputs.iter().try_for_each(|wire| read(&written, layer, *wire))
    }

    fn check_inputs(&self, written: &mut [bool]) -> Result<(), CircuitError> {
        let mut next = 0usize;
        for (number, input) in self.inputs.iter().enumerate() {
            let end = next.checked_add(input.bits).filter(|end| input.first == next && *end <= self.wires);
            next = end.ok_or(CircuitError::Inputs(number))?;
        }
        written[..next].fill(true);
        Ok(())
    }

    fn check_layer(&self, number: usize, layer: &Layer, written: &mut [bool]) -> Result<(), CircuitError> {
        if (number + 1 == self.layers.len()) != layer.products.is_empty() {
            return Err(CircuitError::LayerEnd(number));
        }
        for gate in &layer.local {
            let inputs = gate.inputs();
            for wire in inputs.iter().flatten() {
                read(written, number, *wire)?;
            }
            let after = inputs.iter().flatten().all(|wire| *wire < gate.out());
            write(written, number, gate.out().index(), after)?;
        }
        for product in &layer.products {
            if product.vector.is_empty() || product.vector.len() > MAX_VECTOR {
                return Err(CircuitError::VectorLength { layer: number, bits: product.vector.len() });
            }
            for wire in product.vector.iter().chain([&product.bit]) {
                read(written, number, *wire)?;
            }
        }
        for product in &layer.products {
            let after = product.vector.iter().chain([&product.bit]).all(|wire| *wire < product.out);
            for place in 0..product.vector.len() {
                write(written, number, product.out.index() + place, after)?;
            }
        }
        Ok(())
    }

    /// The input of `kind` for `route`, if the circuit has it.
    #[must_use]
    pub fn input(&self, kind: Kind, route: usize) -> Option<Input> {
        self.inputs.iter().copied().find(|input| input.kind == kind && input.route == route)
    }

    /// Input rows.
    #[must_use]
    pub fn input_rows(&self) -> usize {
        self.inputs.iter().map(|input| input.bits).sum()
    }

    /// All products in the order in which they take correlations.
    pub fn products(&self) -> impl Iterator<Item = &Product> {
        self.layers.iter().flat_map(|layer| &layer.products)
    }

    /// Products of one bit by one bit, in each lane.
    #[must_use]
    pub fn ands(&self) -> usize {
        self.products().filter(|product| product.vector.len() == 1).count()
    }

    /// Products by the length of their vector: (length, how many), shortest first, in each lane.
    #[must_use]
    pub fn vector_ands(&self) -> Vec<(usize, usize)> {
        let mut counts = [0usize; MAX_VECTOR + 1];
        for product in self.products() {
            counts[product.vector.len()] += 1;
        }
        counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect()
    }

    /// Rounds of interaction.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.layers.iter().filter(|layer| !layer.products.is_empty()).count()
    }

    /// A hash of the whole circuit: two parties that evaluate different circuits must notice.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut bytes = Vec::with_capacity(16 * self.wires);
        let mut put = |number: usize| bytes.extend_from_slice(&(number as u64).to_le_bytes());
        put(self.wires);
        put(self.input_rows());
        put(self.layers.len());
        for layer in &self.layers {
            put(layer.local.len());
            for gate in &layer.local {
                let (kind, left, right, out) = match *gate {
                    Gate::Xor { left, right, out } => (0, left, right, out),
                    Gate::Not { input, out } => (1, input, input, out),
                    Gate::Constant { bit, out } => (2 + usize::from(bit), out, out, out),
                };
                [kind, left.index(), right.index(), out.index()].into_iter().for_each(&mut put);
            }
            put(layer.products.len());
            for product in &layer.products {
                [product.bit.index(), product.out.index(), product.vector.len()].into_iter().for_each(&mut put);
                product.vector.iter().for_each(|wire| put(wire.index()));
            }
        }
        put(self.outputs.len());
        self.outputs.iter().for_each(|wire| put(wire.index()));
        hash("wayleave/mpc/circuit/v1", &[&bytes])
    }

    /// Evaluates in the clear, all lanes: the oracle that a private evaluation must equal. The circuit must be valid.
    ///
    /// # Panics
    /// If `inputs` does not have the circuit's rows, or the circuit is not valid.
    #[must_use]
    pub fn oracle(&self, inputs: &BitRows) -> BitRows {
        assert_eq!(inputs.rows(), self.input_rows(), "rows of the inputs");
        let words = inputs.lanes().div_ceil(64);
        let mut wires = vec![vec![0u64; words]; self.wires];
        for (row, wire) in wires.iter_mut().take(inputs.rows()).enumerate() {
            wire.copy_from_slice(inputs.row(row));
        }
        for layer in &self.layers {
            for gate in &layer.local {
                let value = |word: usize| match *gate {
                    Gate::Xor { left, right, .. } => wires[left.index()][word] ^ wires[right.index()][word],
                    Gate::Not { input, .. } => !wires[input.index()][word],
                    Gate::Constant { bit, .. } => u64::from(bit).wrapping_neg(),
                };
                let row = (0..words).map(value).collect();
                wires[gate.out().index()] = row;
            }
            for product in &layer.products {
                for (place, wire) in product.vector.iter().enumerate() {
                    let row = (0..words).map(|word| wires[product.bit.index()][word] & wires[wire.index()][word]);
                    wires[product.out.index() + place] = row.collect();
                }
            }
        }
        let mut out = BitRows::zero(self.outputs.len(), inputs.lanes());
        for (row, wire) in self.outputs.iter().enumerate() {
            let mut words = wires[wire.index()].clone();
            if let Some(word) = words.last_mut() {
                *word &= last_word(inputs.lanes());
            }
            out.set_row(row, &words);
        }
        out
    }
}

fn read(written: &[bool], layer: usize, wire: Wire) -> Result<(), CircuitError> {
    match written.get(wire.index()) {
        Some(true) => Ok(()),
        _ => Err(CircuitError::ReadBeforeWritten { layer, wire: wire.0 }),
    }
}

fn write(written: &mut [bool], layer: usize, wire: usize, after: bool) -> Result<(), CircuitError> {
    match written.get_mut(wire) {
        Some(written) if !*written && after => {
            *written = true;
            Ok(())
        }
        _ => Err(CircuitError::Written { layer, wire: u32::try_from(wire).unwrap_or(u32::MAX) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Builder;

    fn small() -> Circuit {
        let mut build = Builder::new();
        let x = build.input(Kind::Other, 0, 3);
        let both = build.and(x[0], x[1]);
        let not = build.not(both);
        let masked = build.product(not, &[x[1], x[2]]);
        build.finish(&masked)
    }

    #[test]
    fn what_the_builder_makes_is_valid() {
        let circuit = small();
        assert_eq!(circuit.validate(), Ok(()));
        assert_eq!((circuit.depth(), circuit.ands(), circuit.vector_ands()), (2, 1, vec![(1, 1), (2, 1)]));
    }

    #[test]
    fn the_oracle_computes_every_lane() {
        let mut inputs = BitRows::zero(3, 8);
        (0..8).for_each(|lane| inputs.set_number(0, 3, lane, lane as u128));
        let out = small().oracle(&inputs);
        for lane in 0..8u128 {
            let masked = if lane & 3 == 3 { 0 } else { lane >> 1 };
            assert_eq!(out.number(0, 2, lane as usize), masked);
        }
    }

    #[test]
    fn every_broken_rule_is_found() {
        let mut broken = small();
        broken.wires = MAX_WIRES + 1;
        assert_eq!(broken.validate(), Err(CircuitError::TooManyWires(MAX_WIRES + 1)));
        broken = small();
        broken.wires += 1;
        assert_eq!(broken.validate(), Err(CircuitError::NeverWritten(7)));
        broken = small();
        broken.wires -= 1;
        assert_eq!(broken.validate(), Err(CircuitError::Written { layer: 1, wire: 6 }));
        broken = small();
        broken.inputs[0].first = 1;
        assert_eq!(broken.validate(), Err(CircuitError::Inputs(0)));
        broken = small();
        broken.inputs[0].bits = usize::MAX;
        assert_eq!(broken.validate(), Err(CircuitError::Inputs(0)));
        broken = small();
        broken.layers[0].products[0].bit = Wire(4);
        assert_eq!(broken.validate(), Err(CircuitError::ReadBeforeWritten { layer: 0, wire: 4 }));
        broken = small();
        broken.layers[0].products[0].out = Wire(1);
        assert_eq!(broken.validate(), Err(CircuitError::Written { layer: 0, wire: 1 }));
        broken = small();
        broken.layers[0].products[0].vector.clear();
        assert_eq!(broken.validate(), Err(CircuitError::VectorLength { layer: 0, bits: 0 }));
        broken = small();
        broken.layers[0].products.clear();
        assert_eq!(broken.validate(), Err(CircuitError::LayerEnd(0)));
        broken = small();
        broken.outputs.push(Wire(u32::MAX));
        assert_eq!(broken.validate(), Err(CircuitError::ReadBeforeWritten { layer: 2, wire: u32::MAX }));
        broken = small();
        broken.layers[1].local[0] = Gate::Not { input: Wire(3), out: Wire(3) };
        assert_eq!(broken.validate(), Err(CircuitError::Written { layer: 1, wire: 3 }));
    }

    #[test]
    fn the_digest_covers_gates_and_outputs() {
        let (circuit, mut other) = (small(), small());
        assert_eq!(circuit.digest(), other.digest());
        other.outputs.swap(0, 1);
        assert_ne!(circuit.digest(), other.digest());
        let mut third = small();
        third.layers[1].local[0] = Gate::Constant { bit: true, out: Wire(4) };
        assert_ne!(circuit.digest(), third.digest());
    }
}

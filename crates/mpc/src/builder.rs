//! Builds circuits gate by gate and places each gate in the earliest layer that it may have.

use crate::circuit::{Circuit, Gate, Input, Kind, Layer, MAX_VECTOR, Product, Wire};

/// A circuit under construction. Inputs come first.
#[derive(Debug, Default)]
pub struct Builder {
    inputs: Vec<Input>,
    /// For each wire, how many rounds have passed when it has its value.
    ready: Vec<usize>,
    layers: Vec<Layer>,
    constants: [Option<Wire>; 2],
}

impl Builder {
    /// An empty circuit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an input of `bits` wires; the first is a number's least significant bit.
    ///
    /// # Panics
    /// If a gate was added before.
    pub fn input(&mut self, kind: Kind, route: usize, bits: usize) -> Vec<Wire> {
        assert!(self.layers.is_empty(), "inputs come before gates");
        let first = self.ready.len();
        self.inputs.push(Input { kind, route, first, bits });
        (0..bits).map(|_| self.wire(0)).collect()
    }

    /// A public bit.
    pub fn constant(&mut self, bit: bool) -> Wire {
        if let Some(wire) = self.constants[usize::from(bit)] {
            return wire;
        }
        let out = self.wire(0);
        self.layer(0).local.push(Gate::Constant { bit, out });
        self.constants[usize::from(bit)] = Some(out);
        out
    }

    /// Exclusive or.
    pub fn xor(&mut self, left: Wire, right: Wire) -> Wire {
        match self.constants[0] {
            Some(zero) if zero == right => return left,
            Some(zero) if zero == left => return right,
            _ => {}
        }
        let ready = self.ready[left.index()].max(self.ready[right.index()]);
        let out = self.wire(ready);
        self.layer(ready).local.push(Gate::Xor { left, right, out });
        out
    }

    /// Bitwise exclusive or of two vectors of one length.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn xor_all(&mut self, left: &[Wire], right: &[Wire]) -> Vec<Wire> {
        assert_eq!(left.len(), right.len(), "vectors of one length");
        left.iter().zip(right).map(|(left, right)| self.xor(*left, *right)).collect()
    }

    /// Negation.
    pub fn not(&mut self, input: Wire) -> Wire {
        let ready = self.ready[input.index()];
        let out = self.wire(ready);
        self.layer(ready).local.push(Gate::Not { input, out });
        out
    }

    /// AND of two bits.
    pub fn and(&mut self, left: Wire, right: Wire) -> Wire {
        self.product(left, &[right])[0]
    }

    /// `bit` times each of `vector`: one correlation for each 128 bits begun.
    pub fn product(&mut self, bit: Wire, vector: &[Wire]) -> Vec<Wire> {
        let mut outs = Vec::with_capacity(vector.len());
        for vector in vector.chunks(MAX_VECTOR) {
            let ready = vector.iter().chain([&bit]).map(|wire| self.ready[wire.index()]).max().unwrap_or(0);
            let out: Vec<Wire> = vector.iter().map(|_| self.wire(ready + 1)).collect();
            self.layer(ready).products.push(Product { bit, vector: vector.to_vec(), out: out[0] });
            outs.extend(out);
        }
        outs
    }

    /// `when_one` where `choice` is one, `when_zero` where it is zero.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn choose(&mut self, choice: Wire, when_one: &[Wire], when_zero: &[Wire]) -> Vec<Wire> {
        let differ = self.xor_all(when_one, when_zero);
        let kept = self.product(choice, &differ);
        self.xor_all(&kept, when_zero)
    }

    /// The circuit with the rows `outputs`.
    #[must_use]
    pub fn finish(mut self, outputs: &[Wire]) -> Circuit {
        let depth = self.layers.iter().rposition(|layer| !layer.products.is_empty()).map_or(0, |last| last + 1);
        self.layer(depth);
        let circuit =
            Circuit { inputs: self.inputs, wires: self.ready.len(), layers: self.layers, outputs: outputs.to_vec() };
        debug_assert_eq!(circuit.validate(), Ok(()));
        circuit
    }

    fn wire(&mut self, ready: usize) -> Wire {
        let wire = Wire(u32::try_from(self.ready.len()).expect("fewer than 2^32 wires"));
        self.ready.push(ready);
        wire
    }

    fn layer(&mut self, number: usize) -> &mut Layer {
        if self.layers.len() <= number {
            self.layers.resize_with(number + 1, Layer::default);
        }
        &mut self.layers[number]
    }
}

//! Rounds, messages and bytes, counted exactly: they follow from the circuit and the number of lanes alone.

use crate::circuit::{Circuit, Product};
use crate::demand::Demand;
use crate::ot_extension::GroupBits;

/// Bytes in front of the rows of a layer's message.
pub(crate) const LAYER_BYTES: usize = 8;

/// Traffic of one party in each direction: it sends and receives the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rounds of one message each way.
    pub rounds: usize,
    pub messages: usize,
    pub bytes_sent: usize,
}

impl Counts {
    /// Traffic of one party to evaluate `circuit` over `lanes` lanes.
    #[must_use]
    pub fn online(circuit: &Circuit, lanes: usize) -> Self {
        let mut counts = Self::default();
        for layer in circuit.layers.iter().filter(|layer| !layer.products.is_empty()) {
            counts.add(layer_bytes(&layer.products, lanes));
        }
        counts
    }

    /// Traffic of one party to set `demand` up in chunks of at most `chunk`, without what comes before the first.
    #[must_use]
    pub fn setup(group: GroupBits, demand: &Demand, chunk: usize) -> Self {
        let mut counts = Self::default();
        for chunk in demand.chunks(chunk) {
            counts.add(group.chunk_bytes(chunk.count));
        }
        counts
    }

    /// One more round whose message has `bytes` bytes.
    pub fn add(&mut self, bytes: usize) {
        self.rounds += 1;
        self.messages += 1;
        self.bytes_sent += bytes;
    }
}

/// The length of the message of a layer: a row of bits for each product and each bit of its vector.
pub(crate) fn layer_bytes(products: &[Product], lanes: usize) -> usize {
    let rows: usize = products.iter().map(|product| 1 + product.vector.len()).sum();
    LAYER_BYTES + rows * lanes.div_ceil(8)
}

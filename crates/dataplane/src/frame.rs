//! A packet in place and where it came in, for every format.

pub use wayleave_crypto::lanes::BURST;

/// Where a packet came in. The driver knows it from the socket or queue; nothing in the packet is trusted for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ingress {
    /// From the neighbour behind this interface (SCION) or link (ICING, Platypus); never zero.
    External(u16),
    /// From another router of this AS, by its index in the configuration.
    Sibling(u16),
    /// From a host of this AS. Also every Platypus packet that came by IP.
    Internal,
}

/// A packet in place.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The packet without the headers that carried it here. An answer written over it may shorten it, never lengthen it.
    pub octets: &'a mut [u8],
    pub ingress: Ingress,
}

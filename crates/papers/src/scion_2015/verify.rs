//! What a switch verifies: the opaque field at the pointer, whose MAC also covers the previous one in the order of
//! construction.

use wayleave_crypto::lanes::Block;

use super::header::{Layout, OPAQUE_LEN};

/// The block that the MAC covers: `IF || previous OF`, padded with zeros (paper, equation 1 and section 4).
#[inline]
#[must_use]
pub fn mac_input(ingress: u16, egress: u16, previous: [u8; OPAQUE_LEN]) -> Block {
    let interfaces = u128::from(ingress) << 112 | u128::from(egress) << 96;
    (interfaces | u128::from(u64::from_be_bytes(previous)) << 32).to_be_bytes()
}

/// An opaque field in the direction of travel, with the previous one in the order of construction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// `ingress 16 | egress 16 | MAC 32`.
    field: u64,
    /// The previous field, zero at the core.
    previous: u64,
    /// Whether travel is against the direction of construction.
    against: bool,
}

impl Step {
    /// A step at `field` after `previous`, both as big-endian numbers.
    #[inline(always)]
    #[must_use]
    pub fn new(field: u64, previous: u64, against: bool) -> Self {
        Self { field, previous, against }
    }

    /// Interface by which the packet enters the AS; zero if its path or its other half begins here.
    #[inline(always)]
    #[must_use]
    pub fn ingress(&self) -> u16 {
        (self.field >> if self.against { 32 } else { 48 }) as u16
    }

    /// Interface by which it leaves; zero if its path or its first half ends here.
    #[inline(always)]
    #[must_use]
    pub fn egress(&self) -> u16 {
        (self.field >> if self.against { 48 } else { 32 }) as u16
    }

    /// The MAC in the opaque field.
    #[inline(always)]
    #[must_use]
    pub fn mac(&self) -> u32 {
        self.field as u32
    }

    /// The block whose CBC-MAC the MAC must be: [`mac_input`] of the fields.
    #[inline(always)]
    #[must_use]
    pub fn mac_input(&self) -> Block {
        let [high, low] = self.mac_input_halves().map(u64::from_be);
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    /// Both halves of [`mac_input`](Self::mac_input), in network order.
    #[inline(always)]
    #[must_use]
    pub fn mac_input_halves(&self) -> [u64; 2] {
        [self.field >> 32 << 32 | self.previous >> 32, self.previous << 32].map(u64::to_be)
    }
}

/// The step at opaque field `index` of the packet with this `layout`.
#[inline(always)]
#[must_use]
pub fn step(packet: &[u8], layout: Layout, index: u8) -> Step {
    let at = Layout::field(index);
    let word = |at: usize| u64::from_be_bytes(*packet[at..at + OPAQUE_LEN].first_chunk().expect("eight octets"));
    let against = index < layout.up;
    // In the up half the AS nearer to the core comes later, in the down half earlier. The core has no previous field.
    let (core, place) = if against { (layout.up - 1, at + OPAQUE_LEN) } else { (layout.up, at - OPAQUE_LEN) };
    let previous = if index == core { 0 } else { word(place) };
    Step { field: word(at), previous, against }
}

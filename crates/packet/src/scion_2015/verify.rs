//! What a switch checks: the field at the pointer under the one before it in the order of construction.

use wayleave_crypto::lanes::Block;

use super::header::{Layout, OPAQUE_LEN, OpaqueField};

/// The block under the MAC: `IF || previous OF`, and zeros to 16 octets (paper, equation 1 and section 4).
#[inline]
#[must_use]
pub fn mac_input(ingress: u16, egress: u16, previous: [u8; OPAQUE_LEN]) -> Block {
    let interfaces = u128::from(ingress) << 112 | u128::from(egress) << 96;
    (interfaces | u128::from(u64::from_be_bytes(previous)) << 32).to_be_bytes()
}

/// The opaque field at the pointer, as travel sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Where the packet enters the AS; zero if it starts here or joins its other half here.
    pub ingress: u16,
    /// Where it leaves; zero if it ends here or joins its other half here.
    pub egress: u16,
    /// The MAC that it carries.
    pub mac: [u8; 4],
    /// The block whose CBC-MAC it must be.
    pub input: Block,
}

/// The step at opaque field `index` of a packet that `layout` was read from.
#[inline]
#[must_use]
pub fn step(packet: &[u8], layout: Layout, index: u8) -> Step {
    let at = Layout::field(index);
    let octets: [u8; OPAQUE_LEN] = packet[at..at + OPAQUE_LEN].try_into().expect("eight octets");
    let field = OpaqueField::read(octets);
    let against = index < layout.up;
    // In the up half the AS nearer to the core comes later, in the down half earlier; the core itself has none.
    let (core, place) = if against { (layout.up - 1, at + OPAQUE_LEN) } else { (layout.up, at - OPAQUE_LEN) };
    let previous = match packet.get(place..place + OPAQUE_LEN) {
        Some(octets) if index != core => octets.try_into().expect("eight octets"),
        _ => [0; OPAQUE_LEN],
    };
    let (ingress, egress) = if against { (field.egress, field.ingress) } else { (field.ingress, field.egress) };
    Step { ingress, egress, mac: field.mac, input: mac_input(field.ingress, field.egress, previous) }
}

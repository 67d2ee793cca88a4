//! `MASK(P)`: what a binding covers, octet by octet.
//!
//! Label (4), inner protocol (1), version and flags (1; the lowest bit: see [`REPEATED`]), payload length (2), original
//! source, final destination, the capability without its binding, nonce (8), zeros to a multiple of 16. Then, if the packet is sealed, the number of
//! capabilities (1), all of them without their bindings, zeros to a multiple of 16. Then the payload. TTL, traffic
//! class, pointer and the outer addresses change on the way and are left out.

use std::net::IpAddr;

use wayleave_crypto::lanes::Block;

use super::super::header::Packet;
use super::super::header::offsets::MAX_CAPABILITIES;
use super::keys::{PURPOSE_BINDING, label};

/// Blocks of the longest head: 96 octets, and 1 + 8 * 48 for a sealed list, each padded.
pub const HEAD_BLOCKS: usize = 6 + 1 + MAX_CAPABILITIES * 3;

/// Set among the masked flags of a capability that stands in the list a second time; no packet has this flag.
///
/// A path may visit a waypoint twice with one capability. Were both bindings the MAC of the same octets, then the waypoint
/// could not tell the second visit from a copy of the first. The pointer would tell, but it is under no MAC: in a list that is
/// not sealed, whoever puts capabilities of his own, or a copy, into the list could have one packet pass in many places. So the
/// place is under the MAC: a binding serves the first place of its capability or the second, and only the stamper makes both.
const REPEATED: u8 = 1;

/// The masked head: everything in front of the payload.
pub(crate) struct Head {
    blocks: [Block; HEAD_BLOCKS],
    used: usize,
}

impl Head {
    /// The masked head of `packet` for capability `index`.
    pub(crate) fn of(packet: &Packet<'_>, index: usize) -> Self {
        let mut head = Self { blocks: [[0; 16]; HEAD_BLOCKS], used: 0 };
        head.used = write_head(packet, index, &mut head.blocks);
        head
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks[..self.used]
    }
}

/// Writes the masked head for capability `index`; returns how many blocks it has.
pub fn write_head(packet: &Packet<'_>, index: usize, out: &mut [Block; HEAD_BLOCKS]) -> usize {
    let mut writer = Writer { out: out.as_flattened_mut(), length: 0 };
    writer.push(&label(PURPOSE_BINDING, packet.family()));
    let capability = packet.capability_octets(index);
    let is_repeated = (0..index).any(|other| packet.capability_octets(other) == capability);
    let repeated = if is_repeated { REPEATED } else { 0 };
    writer.push(&[packet.inner_protocol(), packet.version_and_flags() | repeated]);
    // A datagram is at most 65,535 octets behind the IP header.
    writer.push(&(packet.payload().len() as u16).to_be_bytes());
    writer.push_address(packet.original_source());
    writer.push_address(packet.final_destination());
    writer.push(capability);
    writer.push(&packet.nonce());
    writer.pad();
    if packet.is_sealed() {
        writer.push(&[packet.count() as u8]);
        for other in 0..packet.count() {
            writer.push(packet.capability_octets(other));
        }
        writer.pad();
    }
    writer.length / 16
}

struct Writer<'a> {
    out: &'a mut [u8],
    length: usize,
}

impl Writer<'_> {
    fn push(&mut self, octets: &[u8]) {
        self.out[self.length..][..octets.len()].copy_from_slice(octets);
        self.length += octets.len();
    }

    fn push_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.push(&v4.octets()),
            IpAddr::V6(v6) => self.push(&v6.octets()),
        }
    }

    fn pad(&mut self) {
        let to = self.length.next_multiple_of(16);
        self.out[self.length..to].fill(0);
        self.length = to;
    }
}

//! The header of version 0 (paper, Figure 2): IPv4, keys named by four bits, bindings of 64 bits.
//!
//! ```text
//! version 4 | flags 4 | length 8 | pointer 8 | encapsulated protocol 8 | original source 32 | final destination 32
//! capability: waypoint 32 | principal 24 | key ID 4 | flags 4 | [prefix 32 | its length 8 | delegation ID 24] | binding 64
//! ```

use std::net::Ipv4Addr;
use std::ops::Range;

use wayleave_packet::platypus::header::offsets::{MAX_CAPABILITIES, MAX_SAME_WAYPOINT, WORD};
use wayleave_packet::platypus::header::{Carriage, DelegationId, Malformed, Outer, Principal};

use super::{BINDING, DelegationKind, PaperCapability, PaperDelegation, PaperPrefix};
use crate::ipv4;

/// Octets of the header in front of the capabilities.
const HEADER: usize = 12;
/// Octets of a capability without its binding: held by the principal, or delegated.
const BARE: usize = 8;
const DELEGATED: usize = 16;
/// Header flag: something about a reply capability stands in front of the payload (paper, section 4.2).
const FLAG_REPLY: u8 = 0x8;

/// Flags of a capability, below its key ID.
const FLAG_DELEGATED: u8 = 0x8;
/// The delegation is by exclusive or, not by chaining.
const FLAG_XOR: u8 = 0x4;

/// Offsets in an IPv4 header.
mod at {
    pub(super) const IDENTIFICATION: usize = 4;
    pub(super) const TTL: usize = 8;
    pub(super) const PROTOCOL: usize = 9;
    pub(super) const SOURCE: usize = 12;
    pub(super) const DESTINATION: usize = 16;
}

/// Why octets are not a packet of version 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PaperHeaderError {
    /// As in every version.
    #[error(transparent)]
    Header(#[from] Malformed),
    /// A capability flag that version 0 does not have.
    #[error("capability flags {0:#x}")]
    CapabilityFlags(u8),
}

/// A packet of version 0 whose lengths, pointer, counts and prefixes are sound.
#[derive(Clone, Copy, Debug)]
pub struct PaperPacket<'a> {
    datagram: &'a [u8],
    /// Octets in front of the Platypus header.
    outer: usize,
    count: usize,
    current: usize,
    /// Where each capability begins and where its binding begins.
    capabilities: [(usize, usize); MAX_CAPABILITIES],
    payload: usize,
}

impl<'a> PaperPacket<'a> {
    /// Decodes an IPv4 packet; octets beyond the length that IP gives are ignored.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode(octets: &'a [u8]) -> Result<Self, PaperHeaderError> {
        let (outer, datagram) = Outer::decode(octets)?;
        if outer.carriage != Carriage::Ip {
            return Err(Malformed::NotPlatypus.into());
        }
        if !outer.source.is_ipv4() {
            return Err(Malformed::Family.into());
        }
        let header = &datagram[outer.length..];
        let truncated = |need| Malformed::Truncated { need, have: header.len() };
        let &[first, words, pointer, ..] = header else { return Err(truncated(WORD).into()) };
        match (first >> 4, first & 0xf & !FLAG_REPLY) {
            (0, 0) => {}
            (0, flags) => return Err(Malformed::Flags(flags).into()),
            (version, _) => return Err(Malformed::Version(version).into()),
        }
        let end = HEADER + usize::from(words) * WORD;
        let list = header.get(HEADER..end).ok_or_else(|| truncated(end))?;
        let first = outer.length + HEADER;
        let mut packet = Self {
            datagram,
            outer: outer.length,
            count: 0,
            current: 0,
            capabilities: [(0, 0); MAX_CAPABILITIES],
            payload: outer.length + end,
        };
        packet.walk(list, first, first + usize::from(pointer) * WORD)?;
        packet.check_loops()?;
        Ok(packet)
    }

    /// Finds every capability of `list`, which begins at `first`, and the one at `pointer`.
    fn walk(&mut self, list: &[u8], first: usize, pointer: usize) -> Result<(), PaperHeaderError> {
        if pointer > self.payload {
            return Err(Malformed::PointerBeyond.into());
        }
        let mut current = None;
        let mut start = first;
        while start < self.payload {
            if self.count == MAX_CAPABILITIES {
                return Err(Malformed::TooManyCapabilities.into());
            }
            if start == pointer {
                current = Some(self.count);
            }
            let bare = bare_length(&list[start - first..])?;
            self.capabilities[self.count] = (start, start + bare);
            self.count += 1;
            start += bare + BINDING;
        }
        self.current = match current {
            Some(index) => index,
            None if pointer == self.payload => self.count,
            None => return Err(Malformed::PointerMisaligned.into()),
        };
        Ok(())
    }

    fn check_loops(&self) -> Result<(), Malformed> {
        let waypoint = |index: &usize| &self.capability_octets(*index)[..4];
        let is_loop =
            |index: usize| (0..index).filter(|other| waypoint(other) == waypoint(&index)).count() >= MAX_SAME_WAYPOINT;
        if (0..self.count).any(is_loop) { Err(Malformed::WaypointLoop) } else { Ok(()) }
    }

    /// The whole datagram, cut to the length that IP gives.
    #[must_use]
    pub fn datagram(&self) -> &'a [u8] {
        self.datagram
    }

    /// The outer source: the host that stamped the packet, or the waypoint that sent it on.
    #[must_use]
    pub fn outer_source(&self) -> Ipv4Addr {
        self.address(at::SOURCE)
    }

    /// The outer destination: the waypoint of the current capability.
    #[must_use]
    pub fn outer_destination(&self) -> Ipv4Addr {
        self.address(at::DESTINATION)
    }

    /// The original source as the header has it: zero until the first waypoint fills it in.
    #[must_use]
    pub fn original_source(&self) -> Ipv4Addr {
        self.address(self.outer + 4)
    }

    /// The original source; the outer one where the header has none yet (paper, Figure 3).
    #[must_use]
    pub fn real_source(&self) -> Ipv4Addr {
        let source = self.original_source();
        if source.is_unspecified() { self.outer_source() } else { source }
    }

    /// The final destination.
    #[must_use]
    pub fn final_destination(&self) -> Ipv4Addr {
        self.address(self.outer + 8)
    }

    /// How many capabilities there are: 0 to 8.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The capability that the pointer names; `None` once every waypoint has been passed.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        (self.current < self.count).then_some(self.current)
    }

    /// Capability `index`, which is below [`PaperPacket::count`].
    #[must_use]
    pub fn capability(&self, index: usize) -> PaperCapability {
        let octets = self.capability_octets(index);
        let address = |at: usize| Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]);
        let number = |at: usize| u32::from_be_bytes([0, octets[at], octets[at + 1], octets[at + 2]]);
        let kind = if octets[7] & FLAG_XOR == 0 { DelegationKind::Chaining } else { DelegationKind::Xor };
        PaperCapability {
            waypoint: address(0),
            principal: Principal::new(number(4)).expect("24 bits"),
            key_id: octets[7] >> 4,
            delegation: (octets[7] & FLAG_DELEGATED != 0).then(|| PaperDelegation {
                prefix: PaperPrefix { address: address(8), length: octets[12] },
                id: DelegationId::new(number(13)).expect("24 bits"),
                kind,
            }),
        }
    }

    /// The octets of capability `index` without its binding.
    #[must_use]
    pub fn capability_octets(&self, index: usize) -> &'a [u8] {
        let (start, binding) = self.capabilities[..self.count][index];
        &self.datagram[start..binding]
    }

    /// The range of the binding of capability `index` in the datagram.
    #[must_use]
    pub fn binding_range(&self, index: usize) -> Range<usize> {
        let (_, binding) = self.capabilities[..self.count][index];
        binding..binding + BINDING
    }

    /// What follows the list: the encapsulated payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.datagram[self.payload..]
    }

    /// `MASK(P)`: the invariant contents with the real source and destination; the length is left out.
    pub(super) fn mask(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(14 + self.payload().len());
        out.push(self.datagram[0]);
        out.extend_from_slice(&self.datagram[at::IDENTIFICATION..at::TTL]);
        out.push(self.datagram[at::PROTOCOL]);
        out.extend(self.real_source().octets());
        out.extend(self.final_destination().octets());
        out.extend_from_slice(self.payload());
        out
    }

    /// UMAC's nonce: IP identification and four octets of the payload, where TCP has its sequence number (paper,
    /// section 5.3).
    pub(super) fn nonce(&self) -> [u8; 6] {
        let mut out = [0; 6];
        out[..2].copy_from_slice(&self.datagram[at::IDENTIFICATION..at::IDENTIFICATION + 2]);
        if let Some(sequence) = self.payload().get(4..8) {
            out[2..].copy_from_slice(sequence);
        }
        out
    }

    /// The packet as it leaves the waypoint of capability `index`, which has been verified: pointer, original source, TTL,
    /// addresses and checksum are rewritten.
    #[must_use]
    pub(super) fn forwarded(&self, index: usize) -> Vec<u8> {
        let mut out = self.datagram.to_vec();
        let first = self.outer + HEADER;
        let next = self.capabilities[..self.count].get(index + 1).map(|(start, _)| *start);
        let destination = next.map_or(self.final_destination(), |start| self.address(start));
        // The list is at most 255 words long.
        out[self.outer + 2] = ((next.unwrap_or(self.payload) - first) / WORD) as u8;
        out[self.outer + 4..self.outer + 8].copy_from_slice(&self.real_source().octets());
        out[at::TTL] = out[at::TTL].saturating_sub(1);
        out[at::SOURCE..at::DESTINATION].copy_from_slice(&self.capability_octets(index)[..4]);
        out[at::DESTINATION..at::DESTINATION + 4].copy_from_slice(&destination.octets());
        ipv4::write_checksum(&mut out);
        out
    }

    fn address(&self, at: usize) -> Ipv4Addr {
        let octets = self.datagram[at..].first_chunk::<4>().expect("the header was checked");
        Ipv4Addr::from(*octets)
    }
}

/// Octets of the capability at the front of `octets` without its binding, which must be there too.
fn bare_length(octets: &[u8]) -> Result<usize, PaperHeaderError> {
    let flags = *octets.get(BARE - 1).ok_or(Malformed::ListLength)? & 0xf;
    let is_delegated = flags & FLAG_DELEGATED != 0;
    if flags & !(FLAG_DELEGATED | FLAG_XOR) != 0 || flags == FLAG_XOR {
        return Err(PaperHeaderError::CapabilityFlags(flags));
    }
    let bare = if is_delegated { DELEGATED } else { BARE };
    if octets.len() < bare + BINDING {
        return Err(Malformed::ListLength.into());
    }
    match octets[12] {
        length @ 33.. if is_delegated => Err(Malformed::Prefix(length).into()),
        _ => Ok(bare),
    }
}

impl PaperCapability {
    /// The octets on the wire, without the binding.
    #[must_use]
    pub fn octets(&self) -> Vec<u8> {
        let mut out = self.waypoint.octets().to_vec();
        out.extend(self.principal.octets());
        let flags = match self.delegation {
            None => 0,
            Some(PaperDelegation { kind: DelegationKind::Chaining, .. }) => FLAG_DELEGATED,
            Some(PaperDelegation { kind: DelegationKind::Xor, .. }) => FLAG_DELEGATED | FLAG_XOR,
        };
        out.push(self.key_id << 4 | flags);
        if let Some(delegation) = &self.delegation {
            out.extend(delegation.prefix.address.octets());
            out.push(delegation.prefix.length);
            out.extend(delegation.id.octets());
        }
        out
    }
}

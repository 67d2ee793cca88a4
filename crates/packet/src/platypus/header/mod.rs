//! The Platypus header of version 1, IPv4 and IPv6, over IP or UDP.
//!
//! Packets are decoded once, at the boundary: a [`Packet`] borrows its octets, and whatever it returns has been checked.
//! Decoding never panics and allocates nothing. Version 0, the paper's, is not decoded here.

mod capability;
pub mod offsets;
mod outer;

use std::net::IpAddr;

use wayleave_core::Afi;

pub use capability::{Capability, Delegation, DelegationId, Interval, Marks, Principal, SubDelegation, Width};
pub use outer::{Carriage, IPV4_HEADER, IPV6_HEADER, Outer, UDP_HEADER};

pub use capability::{CapabilityOctets, kind};
pub use outer::{fold_checksum, v4};

pub(crate) use capability::{family, lengths};
pub(crate) use outer::{ones_complement_sum, rewrite_ipv4, udp, v6, write_ipv4_checksum};

use offsets::{MAX_CAPABILITIES, MAX_SAME_WAYPOINT, Offsets, VERSION, WORD};

/// Why octets are not a Platypus packet. The sender erred; the packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    #[error("truncated: {need} octets needed, {have} present")]
    Truncated { need: usize, have: usize },
    #[error("neither IPv4 nor IPv6")]
    NotIp,
    /// Another IP protocol or UDP port.
    #[error("not a Platypus packet")]
    NotPlatypus,
    #[error("IPv4 options and IPv6 extension headers are not supported")]
    Options,
    #[error("fragments are not supported")]
    Fragment,
    #[error("wrong IPv4 header checksum")]
    Checksum,
    #[error("Platypus version {0} is not supported")]
    Version(u8),
    #[error("unknown header flags {0:#x}")]
    Flags(u8),
    #[error("the Platypus header's addresses are of another family than the IP header's")]
    Family,
    #[error("more than {MAX_CAPABILITIES} capabilities")]
    TooManyCapabilities,
    #[error("the list's length does not end with a capability")]
    ListLength,
    #[error("the pointer points into a capability")]
    PointerMisaligned,
    #[error("the pointer points beyond the list")]
    PointerBeyond,
    #[error("a waypoint occurs more than {MAX_SAME_WAYPOINT} times")]
    WaypointLoop,
    /// A prefix length beyond the family's, or bits set beyond it.
    #[error("invalid prefix of length {0}")]
    Prefix(u8),
    #[error("key interval {0} is not between 4 and 24")]
    Interval(u8),
    #[error("a sub-delegation without a delegation")]
    SubDelegationAlone,
    #[error("a sub-delegation that begins beyond its prefix")]
    SubDelegationBeyondPrefix,
    #[error("a capability for replies that is not delegated")]
    ReplyUndelegated,
    /// Whoever has it could stamp for others than the one to whom replies go.
    #[error("a capability for replies to a prefix of length {0}, expected one host")]
    ReplyPrefix(u8),
}

/// A Platypus packet whose lengths, pointer, counts and prefixes are sound.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    datagram: &'a [u8],
    outer: Outer,
    table: &'static Offsets,
    count: u8,
    current: u8,
    extents: [Extent; MAX_CAPABILITIES],
    payload: u16,
}

/// Where a capability lies in the datagram: offsets of its first octet, of its binding, and of what follows it.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    start: u16,
    binding: u16,
    end: u16,
}

impl<'a> Packet<'a> {
    /// Decodes an IP packet; octets beyond the length that IP gives are ignored.
    pub fn decode(octets: &'a [u8]) -> Result<Self, Malformed> {
        let (outer, datagram) = Outer::decode(octets)?;
        Self::decode_inside(datagram, outer)
    }

    /// Decodes what a UDP socket gave: `octets` begin with the Platypus header.
    pub fn decode_datagram(octets: &'a [u8], source: IpAddr, destination: IpAddr, ttl: u8) -> Result<Self, Malformed> {
        if family(source) != family(destination) {
            return Err(Malformed::Family);
        }
        let outer = Outer { source, destination, ttl, carriage: Carriage::Socket, length: 0 };
        Self::decode_inside(octets, outer)
    }

    fn decode_inside(datagram: &'a [u8], outer: Outer) -> Result<Self, Malformed> {
        let header = &datagram[outer.length..];
        let truncated = |need| Malformed::Truncated { need, have: header.len() };
        let &[first, words, pointer, ..] = header else { return Err(truncated(WORD)) };
        let table = check_version(first, outer.family())?;
        let list_end = table.capabilities + usize::from(words) * WORD;
        if header.len() < list_end {
            return Err(truncated(list_end));
        }
        let mut packet = Self {
            datagram,
            outer,
            table,
            count: 0,
            current: 0,
            extents: [Extent::default(); MAX_CAPABILITIES],
            payload: (outer.length + list_end) as u16,
        };
        packet.decode_list(&header[..list_end], usize::from(pointer) * WORD)?;
        packet.check_loops()?;
        Ok(packet)
    }

    /// Finds every capability and the current one.
    fn decode_list(&mut self, header: &[u8], pointer: usize) -> Result<(), Malformed> {
        let first = self.table.capabilities;
        let pointer = first + pointer;
        if pointer > header.len() {
            return Err(Malformed::PointerBeyond);
        }
        let mut at = first;
        let mut current = None;
        while at < header.len() {
            let index = usize::from(self.count);
            if index == MAX_CAPABILITIES {
                return Err(Malformed::TooManyCapabilities);
            }
            let (bare, whole) = capability::checked_length(&header[at..], self.table)?;
            if at == pointer {
                current = Some(self.count);
            }
            let start = self.outer.length + at;
            // The header ends below 40 + 8 + 44 + 255 * 4 octets.
            self.extents[index] =
                Extent { start: start as u16, binding: (start + bare) as u16, end: (start + whole) as u16 };
            self.count += 1;
            at += whole;
        }
        self.current = match current {
            Some(index) => index,
            None if pointer == header.len() => self.count,
            None => return Err(Malformed::PointerMisaligned),
        };
        Ok(())
    }

    /// Bounds how often a packet can visit one waypoint, and so what one packet can cost.
    fn check_loops(&self) -> Result<(), Malformed> {
        for index in MAX_SAME_WAYPOINT..self.count() {
            let waypoint = self.waypoint_octets(index);
            let before = (0..index).filter(|&other| self.waypoint_octets(other) == waypoint).count();
            if before >= MAX_SAME_WAYPOINT {
                return Err(Malformed::WaypointLoop);
            }
        }
        Ok(())
    }

    /// What the headers in front say.
    #[must_use]
    pub fn outer(&self) -> &Outer {
        &self.outer
    }

    /// The whole datagram, cut to the length that IP gives.
    #[must_use]
    pub fn datagram(&self) -> &'a [u8] {
        self.datagram
    }

    /// Offsets of this family.
    #[must_use]
    pub fn table(&self) -> &'static Offsets {
        self.table
    }

    /// The family of every address.
    #[must_use]
    pub fn family(&self) -> Afi {
        self.table.family
    }

    /// Version (upper half) and flags (lower half).
    #[must_use]
    pub fn version_and_flags(&self) -> u8 {
        self.datagram[self.outer.length + offsets::VERSION_AND_FLAGS]
    }

    /// Whether every binding covers the whole list.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.version_and_flags() & offsets::FLAG_SEALED != 0
    }

    /// Whether a reply option stands in front of the payload.
    #[must_use]
    pub fn has_reply_option(&self) -> bool {
        self.version_and_flags() & offsets::FLAG_REPLY != 0
    }

    /// The encapsulated protocol.
    #[must_use]
    pub fn inner_protocol(&self) -> u8 {
        self.datagram[self.outer.length + offsets::INNER_PROTOCOL]
    }

    /// The original source.
    #[must_use]
    pub fn original_source(&self) -> IpAddr {
        self.address(offsets::SOURCE)
    }

    /// The final destination.
    #[must_use]
    pub fn final_destination(&self) -> IpAddr {
        self.address(self.table.destination)
    }

    /// The nonce: seconds (4), counter (4).
    #[must_use]
    pub fn nonce(&self) -> [u8; 8] {
        let at = self.outer.length + self.table.nonce;
        let mut nonce = [0; 8];
        nonce.copy_from_slice(&self.datagram[at..at + 8]);
        nonce
    }

    /// How many capabilities there are: 0 to 8.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// The capability that the pointer names; `None` once every waypoint has been passed.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        (self.current < self.count).then_some(usize::from(self.current))
    }

    /// The waypoint of capability `index`, which is below [`Packet::count`].
    #[must_use]
    pub fn waypoint(&self, index: usize) -> IpAddr {
        offsets::address(self.datagram, usize::from(self.extent(index).start), self.table.family)
    }

    /// Capability `index`, which is below [`Packet::count`].
    #[must_use]
    pub fn capability(&self, index: usize) -> Capability {
        Capability::read(self.capability_octets(index), self.table)
    }

    /// The octets of capability `index` without its binding.
    #[must_use]
    pub fn capability_octets(&self, index: usize) -> &'a [u8] {
        let extent = self.extent(index);
        &self.datagram[usize::from(extent.start)..usize::from(extent.binding)]
    }

    /// The binding of capability `index`: 8 or 16 octets.
    #[must_use]
    pub fn binding(&self, index: usize) -> &'a [u8] {
        let extent = self.extent(index);
        &self.datagram[usize::from(extent.binding)..usize::from(extent.end)]
    }

    /// Where capability `index` begins in the datagram.
    pub(crate) fn capability_offset(&self, index: usize) -> usize {
        self.extent(index).start.into()
    }

    /// Where the binding of capability `index` lies in the datagram.
    pub fn binding_range(&self, index: usize) -> std::ops::Range<usize> {
        let extent = self.extent(index);
        usize::from(extent.binding)..usize::from(extent.end)
    }

    /// The value of the pointer that names capability `index`, or the end of the list if there is no such capability.
    #[must_use]
    pub(crate) fn pointer_to(&self, index: usize) -> u8 {
        let first = self.outer.length + self.table.capabilities;
        let start = if index < self.count() { self.extent(index).start } else { self.payload };
        // The list is at most 255 words long.
        ((usize::from(start) - first) / WORD) as u8
    }

    /// What follows the list: the encapsulated payload, with a reply option in front if the flag says so.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.datagram[usize::from(self.payload)..]
    }

    /// Octets in front of the payload.
    #[must_use]
    pub fn payload_offset(&self) -> usize {
        usize::from(self.payload)
    }

    fn extent(&self, index: usize) -> &Extent {
        &self.extents[..self.count()][index]
    }

    fn waypoint_octets(&self, index: usize) -> &'a [u8] {
        &self.capability_octets(index)[..offsets::address_length(self.table.family)]
    }

    fn address(&self, at: usize) -> IpAddr {
        offsets::address(self.datagram, self.outer.length + at, self.table.family)
    }
}

/// A capability of version 1 that stands alone, without its binding.
pub(crate) fn read_bare(octets: &[u8], table: &'static Offsets) -> Result<Capability, Malformed> {
    // `checked_length` expects a binding behind the capability.
    let mut whole = octets.to_vec();
    whole.resize(octets.len() + 16, 0);
    let (bare, _) = capability::checked_length(&whole, table)?;
    if bare == octets.len() { Ok(Capability::read(octets, table)) } else { Err(Malformed::ListLength) }
}

/// The offsets of a family, if the header's first octet is of version 1 and of that family.
fn check_version(first: u8, family: Afi) -> Result<&'static Offsets, Malformed> {
    let flags = first & 0xf;
    let known = offsets::FLAG_REPLY | offsets::FLAG_SEALED | offsets::FLAG_IPV6;
    if first >> 4 != VERSION {
        return Err(Malformed::Version(first >> 4));
    }
    if flags & !known != 0 {
        return Err(Malformed::Flags(flags));
    }
    match (family, flags & offsets::FLAG_IPV6 != 0) {
        (Afi::Ipv4, false) => Ok(&offsets::IPV4),
        (Afi::Ipv6, true) => Ok(&offsets::IPV6),
        _ => Err(Malformed::Family),
    }
}

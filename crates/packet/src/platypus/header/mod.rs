//! The Platypus header of version 1 over IPv4 and IPv6, decoded once, when a packet arrives.
//!
//! A [`Packet`] borrows its octets; whatever it gives out has been checked. Decoding allocates nothing.

mod capability;
pub mod offsets;
mod outer;

use std::net::IpAddr;

use wayleave_core::Afi;

pub use capability::{Capability, Delegation, DelegationId, Interval, Principal, SubDelegation, Width};
pub use outer::{Carriage, IPV4_HEADER, IPV6_HEADER, Outer, UDP_HEADER};

pub use capability::{CapabilityOctets, kind};
pub use outer::{fold, v4};

pub(crate) use capability::family;
pub(crate) use outer::{ones_complement_sum, rewrite_ipv4, udp, v6, write_ipv4_checksum};

use offsets::{MAX_CAPABILITIES, MAX_SAME_WAYPOINT, Offsets, WORD};

/// Why octets are not a Platypus packet. The sender erred; the packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Fewer octets than a header needs or says.
    #[error("{need} octets needed, {have} there")]
    Truncated {
        /// Octets needed.
        need: usize,
        /// Octets there.
        have: usize,
    },
    /// Neither IPv4 nor IPv6.
    #[error("not an IP packet")]
    NotIp,
    /// Another protocol or UDP port.
    #[error("not a Platypus packet")]
    NotPlatypus,
    /// IPv4 options or IPv6 extension headers.
    #[error("IP options are not forwarded")]
    Options,
    /// A fragment.
    #[error("fragments are not forwarded")]
    Fragment,
    /// The IPv4 header's checksum is wrong.
    #[error("IPv4 header checksum")]
    Checksum,
    /// Not version 1.
    #[error("version {0}")]
    Version(u8),
    /// A flag that version 1 does not have.
    #[error("header flags {0:#x}")]
    Flags(u8),
    /// The header's addresses are not of the outer header's family.
    #[error("address family")]
    Family,
    /// More than [`MAX_CAPABILITIES`].
    #[error("more than eight capabilities")]
    TooManyCapabilities,
    /// The list's length does not end with a capability.
    #[error("length of the capability list")]
    ListLength,
    /// The pointer points into a capability.
    #[error("the pointer is at no capability's first word")]
    PointerMisaligned,
    /// The pointer points beyond the list.
    #[error("the pointer is beyond the list")]
    PointerBeyond,
    /// A waypoint occurs more than [`MAX_SAME_WAYPOINT`] times.
    #[error("a waypoint occurs more than twice")]
    WaypointLoop,
    /// A prefix length beyond the family's, or bits set beyond it.
    #[error("prefix of length {0}")]
    Prefix(u8),
    /// An interval outside the range.
    #[error("key interval {0}")]
    Interval(u8),
    /// A sub-delegation without a delegation.
    #[error("a sub-delegation without a delegation")]
    SubDelegationAlone,
    /// A sub-delegation that begins beyond the prefix.
    #[error("a sub-delegation beyond the prefix")]
    SubDelegationBeyondPrefix,
}

/// A Platypus packet whose lengths, pointer, counts and prefixes are sound.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    datagram: &'a [u8],
    outer: Outer,
    table: &'static Offsets,
    count: u8,
    current: u8,
    places: [Place; MAX_CAPABILITIES],
    payload: u16,
}

/// Where a capability lies in the datagram.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
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
        let table = table(first, outer.family())?;
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
            places: [Place::default(); MAX_CAPABILITIES],
            payload: (outer.length + list_end) as u16,
        };
        packet.walk(&header[..list_end], usize::from(pointer) * WORD)?;
        packet.check_loops()?;
        Ok(packet)
    }

    /// Finds every capability and the current one.
    fn walk(&mut self, header: &[u8], pointer: usize) -> Result<(), Malformed> {
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
            self.places[index] =
                Place { start: start as u16, binding: (start + bare) as u16, end: (start + whole) as u16 };
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

    /// The nonce.
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
        offsets::address(self.datagram, usize::from(self.place(index).start), self.table.family)
    }

    /// Capability `index`, which is below [`Packet::count`].
    #[must_use]
    pub fn capability(&self, index: usize) -> Capability {
        Capability::read(self.capability_octets(index), self.table)
    }

    /// The octets of capability `index` without its binding.
    #[must_use]
    pub fn capability_octets(&self, index: usize) -> &'a [u8] {
        let place = self.place(index);
        &self.datagram[usize::from(place.start)..usize::from(place.binding)]
    }

    /// The binding of capability `index`: 8 or 16 octets.
    #[must_use]
    pub fn binding(&self, index: usize) -> &'a [u8] {
        let place = self.place(index);
        &self.datagram[usize::from(place.binding)..usize::from(place.end)]
    }

    /// Where capability `index` begins in the datagram.
    pub(crate) fn capability_offset(&self, index: usize) -> usize {
        self.place(index).start.into()
    }

    /// Where the binding of capability `index` lies in the datagram.
    pub fn binding_range(&self, index: usize) -> std::ops::Range<usize> {
        let place = self.place(index);
        usize::from(place.binding)..usize::from(place.end)
    }

    /// The value of the pointer that names capability `index`, or the end of the list if there is no such capability.
    #[must_use]
    pub(crate) fn pointer_to(&self, index: usize) -> u8 {
        let first = self.outer.length + self.table.capabilities;
        let start = if index < self.count() { self.place(index).start } else { self.payload };
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

    fn place(&self, index: usize) -> &Place {
        &self.places[..self.count()][index]
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
    // The checks want a binding behind it.
    let mut whole = octets.to_vec();
    whole.resize(octets.len() + 16, 0);
    let (bare, _) = capability::checked_length(&whole, table)?;
    if bare == octets.len() { Ok(Capability::read(octets, table)) } else { Err(Malformed::ListLength) }
}

/// The offsets for a first octet, if version, flags and family agree.
fn table(first: u8, family: Afi) -> Result<&'static Offsets, Malformed> {
    if first >> 4 != offsets::VERSION {
        return Err(Malformed::Version(first >> 4));
    }
    let flags = first & 0xf;
    if flags & !(offsets::FLAG_REPLY | offsets::FLAG_SEALED | offsets::FLAG_IPV6) != 0 {
        return Err(Malformed::Flags(flags));
    }
    match (family, flags & offsets::FLAG_IPV6 != 0) {
        (Afi::Ipv4, false) => Ok(&offsets::IPV4),
        (Afi::Ipv6, true) => Ok(&offsets::IPV6),
        _ => Err(Malformed::Family),
    }
}

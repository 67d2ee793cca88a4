//! Flow classes: simple packets whose constant fields are equal. What `verify` says of those fields is found once for the
//! first packet of a class; the others are compared with it, sixteen at a time.

use std::net::{IpAddr, Ipv4Addr};

use crate::lanes::{Columns, CpuKernel, LANES, VectorCode, zeros};
use wayleave_core::UnixTime;
use wayleave_packet::platypus::header::offsets::{FLAG_REPLY, PROTOCOL, VERSION, WORD};
use wayleave_packet::platypus::header::{Interval, Marks, Width, kind, v4};
use wayleave_packet::platypus::mint::{WaypointKey, epoch};
use wayleave_packet::platypus::verify::Waypoint;

use super::simple::at;

/// Octets up to the binding.
pub(super) const FRONT: usize = at::BINDING;
/// Words of four octets that hold them.
pub(super) const WORDS: usize = FRONT / 4;

/// The words in which fields lie.
pub(super) mod word {
    use super::{at, v4};

    pub(in super::super) const LENGTH: usize = v4::TOTAL_LENGTH / 4;
    pub(in super::super) const TTL: usize = v4::TTL / 4;
    pub(in super::super) const OUTER_SOURCE: usize = v4::SOURCE / 4;
    /// Words of an IPv4 header.
    pub(in super::super) const HEADER: usize = at::HEADER / 4;
    /// The first word of the Platypus header.
    pub(in super::super) const PLATYPUS: usize = at::HEADER / 4;
    pub(in super::super) const SOURCE: usize = at::SOURCE / 4;
    pub(in super::super) const DESTINATION: usize = at::DESTINATION / 4;
    pub(in super::super) const NONCE: usize = at::NONCE / 4;
    pub(in super::super) const CAPABILITY: usize = at::CAPABILITY / 4;
    pub(in super::super) const PRINCIPAL: usize = at::PRINCIPAL / 4;
    pub(in super::super) const EPOCH: usize = at::EPOCH / 4;
}

/// The bits that the packets of a class have in common: version and header length, fragmentation, protocol, outer
/// destination; version, flags (but for the reply option's), length and pointer of the Platypus header; waypoint, kind and
/// epoch of the capability. Everything else differs from packet to packet and is checked for each.
const CLASS_MASK: [u32; WORDS] = {
    let mut mask = [0; FRONT];
    let ranges = [
        (v4::VERSION_AND_LENGTH, 1),
        (v4::FRAGMENT, v4::TTL),
        (v4::PROTOCOL, v4::CHECKSUM),
        (v4::DESTINATION, at::INNER_PROTOCOL),
        (at::CAPABILITY, at::PRINCIPAL),
        (at::KIND, FRONT),
    ];
    let mut range = 0;
    while range < ranges.len() {
        let (mut octet, end) = ranges[range];
        while octet < end {
            mask[octet] = 0xff;
            octet += 1;
        }
        range += 1;
    }
    mask[v4::FRAGMENT] = (v4::FRAGMENTED >> 8) as u8;
    mask[at::FLAGS] = !FLAG_REPLY;
    let (octets, _) = mask.as_chunks::<4>();
    let mut words = [0; WORDS];
    let mut index = 0;
    while index < WORDS {
        words[index] = u32::from_ne_bytes(octets[index]);
        index += 1;
    }
    words
};

/// The waypoint and key that serve a flow class.
#[derive(Clone, Copy)]
pub(super) struct ClassParameters<'k> {
    pub(super) waypoint: &'k Waypoint,
    pub(super) key: &'k WaypointKey,
    /// Octets of the binding: 8 or 16.
    pub(super) binding_length: usize,
}

impl ClassParameters<'_> {
    /// Where the payload begins.
    #[inline(always)]
    pub(super) fn payload_start(&self) -> usize {
        FRONT + self.binding_length
    }

    /// The pointer behind the only capability.
    #[inline(always)]
    pub(super) fn pointer(&self) -> u8 {
        ((self.payload_start() - at::CAPABILITY) / WORD) as u8
    }
}

/// A flow class whose constant fields are right and allowed.
pub(super) struct FlowClass<'k> {
    pub(super) parameters: ClassParameters<'k>,
    pub(super) interval: Interval,
    /// The bits of [`CLASS_MASK`].
    words: [u32; WORDS],
}

impl<'k> FlowClass<'k> {
    /// The class of a packet, if it is a simple one and its constant fields pass. It is called once for a class in a
    /// burst, and out of line, so that the loop over packets stays small.
    #[cold]
    #[inline(never)]
    fn of(packets: &Columns, lane: usize, waypoints: &'k [Waypoint], now: UnixTime) -> Option<Self> {
        let mut front = [0; FRONT];
        for (octets, column) in front.as_chunks_mut().0.iter_mut().zip(packets) {
            *octets = column[lane].to_ne_bytes();
        }
        let half = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let kinds = front[at::KIND];
        let width = if kinds & kind::NARROW == 0 { Width::Full } else { Width::Narrow };
        // header: an IPv4 packet without options that is no fragment, Platypus over IP, version 1 of IPv4, not sealed, a
        // list of one capability without delegation, with the pointer at it. What has marks takes the general path: it is never
        // decided by itself alone, not even while the router is stateless.
        let is_simple = front[v4::VERSION_AND_LENGTH] == 0x45
            && half(v4::FRAGMENT) & v4::FRAGMENTED == 0
            && front[v4::PROTOCOL] == PROTOCOL
            && front[at::FLAGS] & !FLAG_REPLY == VERSION << 4
            && usize::from(front[at::LENGTH]) * WORD == FRONT + width.octets() - at::CAPABILITY
            && front[at::POINTER] == 0
            && kinds & (kind::DELEGATED | kind::SUB_DELEGATED) == 0
            && Marks::of_word(word(at::EPOCH)).is_none();
        let interval = Interval::new(kinds & kind::INTERVAL)?;
        if !is_simple {
            return None;
        }
        // verify: find_waypoint, check_waypoint
        let address = IpAddr::V4(Ipv4Addr::from(word(v4::DESTINATION)));
        let waypoint = waypoints.iter().find(|waypoint| waypoint.address() == address)?;
        if word(at::CAPABILITY) != word(v4::DESTINATION) {
            return None;
        }
        // verify: check_width, check_epoch
        if width == Width::Narrow && !waypoint.policy().narrow || !epoch::is_accepted(interval, word(at::EPOCH), now) {
            return None;
        }
        let key = waypoint.keys().of_epoch(interval, word(at::EPOCH))?;
        let parameters = ClassParameters { waypoint, key, binding_length: width.octets() };
        let words = std::array::from_fn(|index| packets[index][lane] & CLASS_MASK[index]);
        Some(Self { parameters, interval, words })
    }
}

/// The flow classes of a burst. A class lies where the bits that tell classes apart put it; where two fall together the
/// later one replaces the earlier, which costs time and changes no decision.
pub(super) struct FlowClasses<'k> {
    slots: [Option<FlowClass<'k>>; SLOTS],
}

/// Bursts have few classes: a waypoint or two, epochs that change over, two widths.
const SLOTS: usize = 8;

impl<'k> FlowClasses<'k> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { slots: [const { None }; SLOTS] }
    }

    /// The class of the packet in `lane`, and a bit for each of the sixteen packets that is of this class; `None` if the
    /// packet is of no class that passes.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        kernel: CpuKernel,
        packets: &Columns,
        lane: usize,
        waypoints: &'k [Waypoint],
        now: UnixTime,
    ) -> Option<(&FlowClass<'k>, u16)> {
        let word = |index: usize| u32::from_be(packets[index][lane]);
        // The last bits of waypoint and epoch, and the bit of the binding's width.
        let slot = word(word::CAPABILITY) ^ word(word::EPOCH) << 1 ^ (word(word::PRINCIPAL) & 0xff) >> 3;
        let slot = &mut self.slots[slot as usize % SLOTS];
        let members = |class: &FlowClass<'_>| Members { kernel, packets, words: &class.words }.run_on(kernel);
        let mut bits = slot.as_ref().map_or(0, members);
        if bits >> lane & 1 == 0 {
            *slot = Some(FlowClass::of(packets, lane, waypoints, now)?);
            bits = slot.as_ref().map_or(0, members);
        }
        slot.as_ref().map(|class| (class, bits))
    }
}

/// Finds the packets whose constant fields are those of a class: a bit for each.
struct Members<'a> {
    kernel: CpuKernel,
    packets: &'a Columns,
    words: &'a [u32; WORDS],
}

impl VectorCode for Members<'_> {
    type Output = u16;

    #[inline(always)]
    fn run(self) -> u16 {
        let Self { kernel, packets, words } = self;
        let mut differ = [0; LANES];
        for lane in 0..LANES {
            let mut bits = 0;
            for index in 0..WORDS {
                bits |= (words[index] ^ packets[index][lane]) & CLASS_MASK[index];
            }
            differ[lane] = bits;
        }
        zeros(kernel, &differ)
    }
}

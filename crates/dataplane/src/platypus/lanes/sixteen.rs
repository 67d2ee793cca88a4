//! Sixteen simple packets checked and tagged in lanes, field by field.
//!
//! Every step is a rule of `verify` or of the header's decoder, and names it. A packet that does not pass here is not
//! refused: it takes the general path, which knows the reason. The two must therefore agree only on what passes.

use std::hint::black_box;
use std::net::Ipv4Addr;

use wayleave_core::{Afi, UnixTime};
use wayleave_crypto::lanes::{Block, CmacKey, Row, tag_columns};

use crate::lanes::{Columns, CpuKernel, LANES, VectorCode, columns, fill, rows, zeros};
use wayleave_packet::platypus::mint::{PURPOSE_BINDING, PURPOSE_SECRET, WaypointKey, label};
use wayleave_packet::platypus::verify::{Arrival, MAX_AHEAD, Waypoint};

use super::flow_class::{ClassParameters, FRONT, FlowClasses, word};
use super::simple::SimpleForward;

/// For each packet, the limits that its flow class sets: see [`bound`].
type Bounds = [[u32; LANES]; 4];

/// Indices into [`Bounds`].
mod bound {
    /// Where the payload begins.
    pub(super) const PAYLOAD_START: usize = 0;
    /// Seconds that a nonce may be old.
    pub(super) const FRESHNESS: usize = 1;
    /// Bits of the outer source that must be the original source's: all or none.
    pub(super) const SOURCE: usize = 2;
    /// The exponent of the capability's interval.
    pub(super) const EXPONENT: usize = 3;
}

/// Checks the fields that differ from packet to packet, and lays out what secrets and bindings are the MAC of.
///
/// The loop has no branch and touches each lane alone, so that the compiler turns it into vector instructions: a rule is a
/// word that is zero if the packet obeys it, and the words of all rules are combined by OR. Subtractions wrap only for
/// packets that are refused, and what is laid out for those is not used.
struct Check<'a> {
    kernel: CpuKernel,
    packets: &'a Columns,
    bounds: &'a Bounds,
    now: u32,
    rows: &'a mut Columns,
    lengths: &'a mut [u32; LANES],
    rewritten: &'a mut [u32; LANES],
}

impl VectorCode for Check<'_> {
    /// A bit for each packet that obeys every rule.
    type Output = u16;

    #[inline(always)]
    fn run(self) -> u16 {
        let Self { kernel, packets, bounds, now, rows, lengths, rewritten } = self;
        let [secret, binding] =
            [PURPOSE_SECRET, PURPOSE_BINDING].map(|purpose| u32::from_ne_bytes(label(purpose, Afi::Ipv4)));
        let mut refused = [0; LANES];
        for lane in 0..LANES {
            let word = |index: usize| u32::from_be(packets[index][lane]);
            let (first, third) = (word(word::LENGTH), word(word::TTL));
            let (total, ttl) = (first & 0xffff, third >> 24);
            let payload_start = bounds[bound::PAYLOAD_START][lane];
            let sum = |words: &[u32]| words.iter().fold(0, |sum, word| sum + (word >> 16) + (word & 0xffff));
            let header: [u32; word::HEADER] = std::array::from_fn(word);
            let (source, last) = (word(word::SOURCE), word(word::DESTINATION));
            // Seconds behind the latest time that passes, modulo 2^32, as in the rule.
            let behind = now.wrapping_add(MAX_AHEAD).wrapping_sub(word(word::NONCE));
            // header: the total length holds all headers; verify: check_ttl
            refused[lane] = u32::from(total < payload_start)
                | u32::from(ttl <= 1)
                // header: the IPv4 checksum
                | u32::from(fold(sum(&header)) != 0xffff)
                // verify: check_source, of packets at their first waypoint, without may_begin
                | (header[word::OUTER_SOURCE] ^ source) & bounds[bound::SOURCE][lane]
                // verify: check_freshness
                | u32::from(behind > bounds[bound::FRESHNESS][lane] + MAX_AHEAD)
                // verify: check_martians
                | is_martian_word(source)
                | is_martian_word(last);
            lengths[lane] = total;
            // Forward::apply: one hop less, from the waypoint to the final destination, and the checksum of that.
            let ttl_and_protocol = (ttl.wrapping_sub(1) << 24) | third & 0x00ff_0000;
            let new = [first, header[1], ttl_and_protocol, word(word::CAPABILITY), last];
            rewritten[lane] = (ttl_and_protocol | fold(sum(&new)) ^ 0xffff).to_be();
            // mint: what the temporal secret is the MAC of (one block).
            let platypus = word(word::PLATYPUS);
            rows[0][lane] = secret;
            rows[1][lane] = packets[word::CAPABILITY][lane];
            rows[2][lane] = (word(word::PRINCIPAL) & 0xffff_ff00 | bounds[bound::EXPONENT][lane]).to_be();
            rows[3][lane] = packets[word::EPOCH][lane];
            // mint: the masked head (three blocks, whose last three words stay zero): label; inner protocol, version and
            // flags, length of the payload; addresses; capability; nonce.
            rows[4][lane] = binding;
            rows[5][lane] =
                (platypus << 24 | (platypus >> 24) << 16 | total.wrapping_sub(payload_start) & 0xffff).to_be();
            rows[6][lane] = packets[word::SOURCE][lane];
            rows[7][lane] = packets[word::DESTINATION][lane];
            rows[8][lane] = packets[word::CAPABILITY][lane];
            rows[9][lane] = packets[word::PRINCIPAL][lane];
            rows[10][lane] = packets[word::EPOCH][lane];
            rows[11][lane] = packets[word::NONCE][lane];
            rows[12][lane] = packets[word::NONCE + 1][lane];
        }
        zeros(kernel, &refused)
    }
}

/// The ones' complement sum of sixteen bits of what `sum` is the sum of, at most 65,536 of them.
#[inline(always)]
fn fold(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

/// `is_martian` of an IPv4 address in this machine's order of octets: not zero if it is one. A test goes through all of
/// them.
#[inline(always)]
fn is_martian_word(address: u32) -> u32 {
    // Below 1.0.0.0 and from 224.0.0.0 on.
    u32::from(address.wrapping_sub(1 << 24) >= 223 << 24)
        | u32::from(address >> 24 == 127)
        | u32::from(address >> 16 == 169 << 8 | 254)
        | u32::from(address >> 8 == 192 << 16)
}

/// Memory for sixteen packets while they are checked.
pub(super) struct Scratch {
    packets: Columns,
    /// The inputs of secrets and bindings, by columns.
    laid_out: Columns,
    bounds: Bounds,
    lengths: [u32; LANES],
    /// The word of each header with TTL, protocol and checksum, as the packet leaves.
    rewritten: [u32; LANES],
}

impl Scratch {
    pub(super) const EMPTY: Self = Self {
        packets: [[0; LANES]; LANES],
        laid_out: [[0; LANES]; LANES],
        bounds: [[0; LANES]; 4],
        lengths: [0; LANES],
        rewritten: [0; LANES],
    };
}

/// Up to sixteen packets in lanes, and the flow classes of their burst.
pub(super) struct Sixteen<'s, 'k> {
    kernel: CpuKernel,
    waypoints: &'k [Waypoint],
    now: UnixTime,
    scratch: &'s mut Scratch,
    classes: FlowClasses<'k>,
    /// A bit for each packet that passed.
    passed: u16,
    /// The classes of these packets, each with a bit for each of its packets; the first `count` are set.
    members: [(u16, Option<ClassParameters<'k>>); LANES],
    count: usize,
}

/// A packet that passed every check before the MAC.
pub(super) struct Passed<'k, 'p> {
    /// The key that makes its secret.
    pub(super) key: &'k WaypointKey,
    pub(super) forward: SimpleForward,
    pub(super) binding_length: usize,
    pub(super) payload: &'p [u8],
}

impl<'s, 'k> Sixteen<'s, 'k> {
    /// For the packets of one burst, which come at `now`.
    #[inline(always)]
    pub(super) fn new(kernel: CpuKernel, waypoints: &'k [Waypoint], now: UnixTime, scratch: &'s mut Scratch) -> Self {
        let members = [(0, None); LANES];
        Self { kernel, waypoints, now, scratch, classes: FlowClasses::new(), passed: 0, members, count: 0 }
    }

    /// Checks at most [`LANES`] packets, each of which came as `arrival` says of its lane, and lays out what their secrets and
    /// bindings are the MAC of.
    #[inline(always)]
    pub(super) fn check(&mut self, datagrams: &[&[u8]], arrival: impl Fn(usize) -> Arrival) {
        let Self { kernel, waypoints, now, scratch, classes, passed, members, count } = self;
        let Scratch { packets, laid_out, bounds, lengths, rewritten } = &mut **scratch;
        columns(*kernel, datagrams, packets);
        let (mut known, mut refusing) = (0, 0);
        (*passed, *count) = (0, 0);
        // Each round takes the first packet that is left, and all packets of its class with it. There are at most sixteen
        // rounds, and mostly one.
        let mut rest = ((1u32 << datagrams.len().min(LANES)) - 1) as u16;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let Some((class, bits)) = classes.find(*kernel, packets, lane, waypoints, *now) else {
                rest &= rest - 1;
                continue;
            };
            let bits = rest & bits;
            let parameters = class.parameters;
            let policy = parameters.waypoint.policy();
            let source = if policy.check_source { u32::MAX } else { 0 };
            let limits =
                [parameters.payload_start() as u32, policy.freshness, source, u32::from(class.interval.exponent())];
            for (bounds, limit) in bounds.iter_mut().zip(limits) {
                fill(*kernel, bits, limit, bounds);
            }
            rest &= !bits;
            known |= bits;
            let is_refusing = !policy.refused.is_empty() || parameters.waypoint.judges_origins();
            refusing |= if is_refusing { bits } else { 0 };
            members[*count] = (bits, Some(parameters));
            *count += 1;
        }
        if known == 0 {
            return;
        }
        let now = now.secs() as u32;
        *passed =
            known & Check { kernel: *kernel, packets, bounds, now, rows: laid_out, lengths, rewritten }.run_on(*kernel);
        // verify: may_begin, check_own_source, check_own_networks, one by one: few waypoints have such networks or links.
        for lane in set_bits(self.passed & refusing) {
            let address = |index: usize| Ipv4Addr::from(u32::from_be(self.scratch.packets[index][lane])).into();
            let (source, last) = (address(word::SOURCE), address(word::DESTINATION));
            let is_refused = |here: &Waypoint| {
                !here.may_begin(source, arrival(lane)) || here.is_refused_source(source) || here.is_own(last)
            };
            if self.parameters(lane).is_none_or(|parameters| is_refused(parameters.waypoint)) {
                self.passed &= !(1 << lane);
            }
        }
    }

    /// The class of a packet that passed.
    #[inline(always)]
    fn parameters(&self, lane: usize) -> Option<ClassParameters<'k>> {
        if self.count == 1 {
            return self.members[0].1;
        }
        self.members[..self.count].iter().find(|(bits, _)| bits >> lane & 1 != 0)?.1
    }

    /// Computes the tags of the packets that passed, all at once; `false` where that is not worth it or not possible: half
    /// of [`LANES`] or fewer passed, or their payloads are of different numbers of blocks.
    #[inline(always)]
    pub(super) fn tag(&self, datagrams: &[&[u8]], tags: &mut [Block; LANES]) -> bool {
        let Some((_, Some(first))) = self.members[..self.count].first() else { return false };
        if self.passed.count_ones() as usize <= LANES / 2 {
            return false;
        }
        let columns = &self.scratch.laid_out;
        let mut payloads = [[].as_slice(); LANES];
        if let (Some(parameters), Some(datagrams)) = (self.uniform(), datagrams.first_chunk::<LANES>()) {
            let start = parameters.payload_start();
            for lane in 0..LANES {
                let datagram = datagrams[lane].get(..self.scratch.lengths[lane] as usize);
                let Some(payload) = datagram.and_then(|datagram| datagram.get(start..)) else { return false };
                payloads[lane] = payload;
            }
        } else if !self.gather_payloads(datagrams, &mut payloads) {
            return false;
        }
        if self.count == 1 {
            return tag_columns(self.kernel, &[(first.key.in_lanes(), u16::MAX)], columns, &payloads, tags);
        }
        let mut keys: [(&CmacKey, u16); LANES] = [(first.key.in_lanes(), 0); LANES];
        for (key, (bits, parameters)) in keys.iter_mut().zip(&self.members[..self.count]) {
            *key = (parameters.map_or(key.0, |parameters| parameters.key.in_lanes()), *bits);
        }
        tag_columns(self.kernel, &keys[..self.count], columns, &payloads, tags)
    }

    /// The input of each packet's secret, and the three blocks that its binding is computed over in front of the payload.
    #[inline(always)]
    pub(super) fn rows(&self, out: &mut [Row; LANES]) {
        rows(self.kernel, &self.scratch.laid_out, out);
    }

    /// The payloads of the packets that passed, and for the other lanes any of these: a lane's tag is computed whether it
    /// is used or not. `false` if a packet is shorter than its length says.
    #[inline(never)]
    fn gather_payloads<'p>(&self, datagrams: &[&'p [u8]], payloads: &mut [&'p [u8]; LANES]) -> bool {
        let payload = |lane: usize| {
            let start = self.parameters(lane)?.payload_start();
            datagrams.get(lane)?.get(start..self.scratch.lengths[lane] as usize)
        };
        let Some(any) = payload(self.passed.trailing_zeros() as usize) else { return false };
        *payloads = [any; LANES];
        set_bits(self.passed).all(|lane| payload(lane).map(|payload| payloads[lane] = payload).is_some())
    }

    /// One of the packets' classes, if all sixteen passed and all have bindings of one length.
    #[inline(always)]
    pub(super) fn uniform(&self) -> Option<ClassParameters<'k>> {
        let first = self.members[0].1?;
        let others = &self.members[..self.count.max(1)][1..];
        let is_same = |other: Option<ClassParameters<'_>>| {
            other.is_some_and(|other| other.binding_length == first.binding_length)
        };
        let is_uniform = self.passed == u16::MAX && others.iter().all(|(_, other)| is_same(*other));
        is_uniform.then_some(first)
    }

    /// How much the tags differ from the bindings that packets of classes like `parameters` present: zero if all of them
    /// are right. All octets of all lanes go into one word, without a branch on any of them.
    #[inline(always)]
    pub(super) fn difference(
        parameters: ClassParameters<'k>,
        datagrams: &[&[u8]],
        tags: &[Block; LANES],
        counted: [u64; 2],
    ) -> u64 {
        match parameters.binding_length {
            8 => difference::<8>(datagrams, tags, counted),
            _ => difference::<16>(datagrams, tags, counted),
        }
    }

    /// For each packet that passed, the word with TTL, protocol and checksum as it leaves.
    #[inline(always)]
    pub(super) fn rewritten(&self) -> &[u32; LANES] {
        &self.scratch.rewritten
    }

    /// The packet in `lane`, if it passed.
    #[inline(always)]
    pub(super) fn passed<'p>(&self, lane: usize, datagram: &'p [u8]) -> Option<Passed<'k, 'p>> {
        if self.passed >> lane & 1 == 0 {
            return None;
        }
        let parameters = self.parameters(lane)?;
        Some(Passed {
            key: parameters.key,
            forward: SimpleForward { rewritten: self.scratch.rewritten[lane % LANES], pointer: parameters.pointer() },
            binding_length: parameters.binding_length,
            payload: datagram.get(parameters.payload_start()..self.scratch.lengths[lane] as usize)?,
        })
    }
}

/// The differences of tags from bindings of `LENGTH` octets.
#[inline(always)]
fn difference<const LENGTH: usize>(datagrams: &[&[u8]], tags: &[Block; LANES], counted: [u64; 2]) -> u64 {
    let Some(datagrams) = datagrams.first_chunk::<LANES>() else { return u64::MAX };
    let mut differ = 0;
    for (datagram, tag) in datagrams.iter().zip(tags) {
        differ |= match datagram.get(FRONT..FRONT + LENGTH) {
            Some(presented) => {
                let halves = presented.as_chunks::<8>().0.iter().zip(tag.as_chunks::<8>().0).zip(counted);
                halves.fold(0, |differ, ((a, b), counted)| {
                    differ | (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b)) & counted
                })
            }
            None => u64::MAX,
        };
    }
    // Opaque to the compiler, so that it cannot decide after the first lane.
    black_box(differ)
}

/// The numbers of the bits that are set, the lowest first.
fn set_bits(mut bits: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        lane
    })
}

#[cfg(test)]
mod tests {
    use wayleave_packet::platypus::verify::is_martian;

    use super::*;

    #[test]
    fn martian_words_are_martians() {
        for prefix in 0..=0xff_ffffu32 {
            for address in [prefix << 8, prefix << 8 | 0xff] {
                assert_eq!(is_martian_word(address) != 0, is_martian(Ipv4Addr::from(address).into()), "{address:08x}");
            }
        }
    }
}

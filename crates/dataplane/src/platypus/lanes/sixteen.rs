//! The commonest shape of packet: IPv4 over IP, one capability, neither delegated nor sealed. Sixteen packets are checked
//! beside each other, field by field; what most of them have in common is compared as a whole.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Afi, UnixTime};
use wayleave_crypto::lanes::{
    Block, CmacKey, Columns, CpuKernel, LANES, Row, Work, columns, fill, rows, tag_columns, zeros,
};

use wayleave_packet::platypus::header::offsets::lean as at;
use wayleave_packet::platypus::header::offsets::{FLAG_REPLY, PROTOCOL, WORD};
use wayleave_packet::platypus::header::{Interval, kind, v4};
use wayleave_packet::platypus::mint::{PURPOSE_BINDING, PURPOSE_SECRET, WaypointKey, epoch, label};
use wayleave_packet::platypus::verify::{Forward, Waypoint};

/// Octets up to its binding.
const FRONT: usize = at::BINDING;
/// Words of four octets that hold them.
const WORDS: usize = FRONT / 4;

/// The words in which fields lie.
mod word {
    use super::{at, v4};

    pub(super) const LENGTH: usize = v4::TOTAL_LENGTH / 4;
    pub(super) const TTL: usize = v4::TTL / 4;
    pub(super) const OUTER_SOURCE: usize = v4::SOURCE / 4;
    /// How many an IPv4 header has.
    pub(super) const HEADER: usize = at::HEADER / 4;
    /// The first of the Platypus header.
    pub(super) const PLATYPUS: usize = at::HEADER / 4;
    pub(super) const SOURCE: usize = at::SOURCE / 4;
    pub(super) const DESTINATION: usize = at::DESTINATION / 4;
    pub(super) const NONCE: usize = at::NONCE / 4;
    pub(super) const CAPABILITY: usize = at::CAPABILITY / 4;
    pub(super) const PRINCIPAL: usize = at::PRINCIPAL / 4;
    pub(super) const EPOCH: usize = at::EPOCH / 4;
}

/// The bits that packets for one waypoint have in common, if they are under one key and bindings are of one width: version
/// and header length, fragmentation, protocol, destination; version, flags (but for the reply option's), length and pointer
/// of the Platypus header; waypoint, kind and epoch of the capability.
const COMMON: [u32; WORDS] = {
    let mut mask = [0; FRONT];
    let ranges = [
        (v4::VERSION_AND_LENGTH, 1),
        (v4::FRAGMENT, v4::TTL),
        (v4::PROTOCOL, v4::CHECKSUM),
        (v4::DESTINATION, at::INNER),
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

/// What a packet of this shape has in common with those that came before it in the burst.
struct Kin<'k> {
    found: Found<'k>,
    /// The bits of [`COMMON`].
    words: [u32; WORDS],
    interval: Interval,
}

/// Whose capability a packet has.
#[derive(Clone, Copy)]
pub(super) struct Found<'k> {
    here: &'k Waypoint,
    key: &'k WaypointKey,
    /// Octets of its binding.
    width: usize,
}

impl Found<'_> {
    /// Where the payload begins.
    #[inline(always)]
    fn behind(&self) -> usize {
        FRONT + self.width
    }

    /// The pointer behind the only capability.
    #[inline(always)]
    pub(super) fn pointer(&self) -> u8 {
        ((self.behind() - at::CAPABILITY) / WORD) as u8
    }
}

impl<'k> Kin<'k> {
    /// Of the first such packet: what it has in common with its kin is right and allowed.
    #[cold]
    #[inline(never)]
    fn of(packets: &Columns, lane: usize, waypoints: &'k [Waypoint], now: UnixTime) -> Option<Self> {
        let mut front = [0; FRONT];
        for (octets, column) in front.as_chunks_mut().0.iter_mut().zip(packets) {
            *octets = column[lane].to_ne_bytes();
        }
        let half = |place: usize| u16::from_be_bytes([front[place], front[place + 1]]);
        let word =
            |place: usize| u32::from_be_bytes([front[place], front[place + 1], front[place + 2], front[place + 3]]);
        let kinds = front[at::KIND];
        let width = if kinds & kind::NARROW == 0 { 16 } else { 8 };
        let is_lean = front[v4::VERSION_AND_LENGTH] == 0x45
            && half(v4::FRAGMENT) & v4::FRAGMENTED == 0
            && front[v4::PROTOCOL] == PROTOCOL
            && front[at::FLAGS] & !FLAG_REPLY == 0x10
            && usize::from(front[at::WORDS]) * WORD == FRONT + width - at::CAPABILITY
            && front[at::PLACE] == 0
            && kinds & (kind::DELEGATED | kind::SUB_DELEGATED) == 0
            && word(v4::DESTINATION) == word(at::CAPABILITY);
        if !is_lean {
            return None;
        }
        let address = IpAddr::V4(Ipv4Addr::from(word(at::CAPABILITY)));
        let here = waypoints.iter().find(|here| here.address() == address)?;
        let interval = Interval::new(kinds & kind::INTERVAL)?;
        if width != 16 && !here.policy().narrow || !epoch::is_accepted(interval, word(at::EPOCH), now) {
            return None;
        }
        let key = here.keys().of_epoch(interval, word(at::EPOCH))?;
        let words = std::array::from_fn(|index| packets[index][lane] & COMMON[index]);
        Some(Self { found: Found { here, key, width }, words, interval })
    }
}

/// The kin of a packet, if it is of this shape, and a bit for each packet that is of this kin too.
#[inline(always)]
fn find<'a, 'k>(
    kernel: CpuKernel,
    kins: &'a mut [Option<Kin<'k>>; 8],
    packets: &Columns,
    lane: usize,
    waypoints: &'k [Waypoint],
    now: UnixTime,
) -> Option<(&'a Kin<'k>, u16)> {
    let word = |index: usize| u32::from_be(packets[index][lane]);
    // The last bits of waypoint and epoch, and the one that tells the binding's width.
    let place = word(word::CAPABILITY) ^ word(word::EPOCH) << 1 ^ (word(word::PRINCIPAL) & 0xff) >> 3;
    let place = &mut kins[place as usize % 8];
    let alike = |kin: &Kin<'_>| kernel.run(Alike { kernel, packets, words: &kin.words });
    let mut bits = place.as_ref().map_or(0, alike);
    if bits >> lane & 1 == 0 {
        *place = Some(Kin::of(packets, lane, waypoints, now)?);
        bits = place.as_ref().map_or(0, alike);
    }
    place.as_ref().map(|kin| (kin, bits))
}

/// The places of the bits that are set.
fn lanes(mut bits: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        lane
    })
}

/// Finds out which packets are of one kin.
struct Alike<'a> {
    kernel: CpuKernel,
    packets: &'a Columns,
    words: &'a [u32; WORDS],
}

impl Work for Alike<'_> {
    /// A bit for each.
    type Output = u16;

    #[inline(always)]
    fn run(self) -> u16 {
        let Self { kernel, packets, words } = self;
        let mut differ = [0; LANES];
        for lane in 0..LANES {
            let mut bits = 0;
            for index in 0..WORDS {
                bits |= (words[index] ^ packets[index][lane]) & COMMON[index];
            }
            differ[lane] = bits;
        }
        zeros(kernel, &differ)
    }
}

/// What is asked of each packet apart from what it has in common with its kin: see [`asked`].
type Bounds = [[u32; LANES]; 4];

/// Places in [`Bounds`].
mod asked {
    /// Where the payload begins.
    pub(super) const BEHIND: usize = 0;
    /// Seconds that a nonce may be off.
    pub(super) const FRESHNESS: usize = 1;
    /// Bits of the outer source that must be the original source's: all or none.
    pub(super) const SOURCE: usize = 2;
    /// The exponent of the capability's interval.
    pub(super) const EXPONENT: usize = 3;
}

/// Checks the packets, and lays out what their secrets and bindings are the MAC of.
struct Check<'a> {
    kernel: CpuKernel,
    packets: &'a Columns,
    bounds: &'a Bounds,
    now: u32,
    rows: &'a mut Columns,
    lengths: &'a mut [u32; LANES],
    rewritten: &'a mut [u32; LANES],
}

impl Work for Check<'_> {
    /// A bit for each that is sound and allowed.
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
            let behind = bounds[asked::BEHIND][lane];
            let sum = |words: &[u32]| words.iter().fold(0, |sum, word| sum + (word >> 16) + (word & 0xffff));
            let header: [u32; word::HEADER] = std::array::from_fn(word);
            let (source, last) = (word(word::SOURCE), word(word::DESTINATION));
            // From as many seconds before now as after: 2 * 30 + 1 of them at most.
            let freshness = bounds[asked::FRESHNESS][lane];
            let since = word(word::NONCE).wrapping_sub(now).wrapping_add(freshness);
            refused[lane] = u32::from(total < behind)
                | u32::from(ttl <= 1)
                | u32::from(fold(sum(&header)) != 0xffff)
                | (header[word::OUTER_SOURCE] ^ source) & bounds[asked::SOURCE][lane]
                | u32::from(since > 2 * freshness)
                | is_martian_word(source)
                | is_martian_word(last);
            lengths[lane] = total;
            // As it leaves: one hop less, from the waypoint to the final destination.
            let ttl_and_protocol = (ttl.wrapping_sub(1) << 24) | third & 0x00ff_0000;
            let new = [first, header[1], ttl_and_protocol, word(word::CAPABILITY), last];
            rewritten[lane] = (ttl_and_protocol | fold(sum(&new)) ^ 0xffff).to_be();
            let platypus = word(word::PLATYPUS);
            rows[0][lane] = secret;
            rows[1][lane] = packets[word::CAPABILITY][lane];
            rows[2][lane] = (word(word::PRINCIPAL) & 0xffff_ff00 | bounds[asked::EXPONENT][lane]).to_be();
            rows[3][lane] = packets[word::EPOCH][lane];
            rows[4][lane] = binding;
            // Inner protocol, version and flags, length of the payload.
            rows[5][lane] = (platypus << 24 | (platypus >> 24) << 16 | total.wrapping_sub(behind) & 0xffff).to_be();
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

/// As [`is_martian`](wayleave_packet::platypus::verify::is_martian), for an IPv4 address in this machine's order of octets: not zero if it is.
#[inline(always)]
fn is_martian_word(address: u32) -> u32 {
    // Below 1.0.0.0 and from 224.0.0.0 on.
    u32::from(address.wrapping_sub(1 << 24) >= 223 << 24)
        | u32::from(address >> 24 == 127)
        | u32::from(address >> 16 == 169 << 8 | 254)
        | u32::from(address >> 8 == 192 << 16)
}

/// Room for packets while they are checked.
pub(super) struct Scratch {
    packets: Columns,
    laid_out: Columns,
    bounds: Bounds,
    /// The length of each, and the word of its header that has TTL, protocol and checksum, as it leaves.
    lengths: [u32; LANES],
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

/// Packets that are checked beside each other.
pub(super) struct Beside<'s, 'k> {
    kernel: CpuKernel,
    waypoints: &'k [Waypoint],
    now: UnixTime,
    scratch: &'s mut Scratch,
    /// The kins of one burst, each at a place that follows from waypoint, kind and epoch.
    kins: [Option<Kin<'k>>; 8],
    /// A bit for each that is sound and allowed.
    passed: u16,
    /// Of how many kins they are, and which with a bit for each packet.
    count: usize,
    found: [(u16, Option<Found<'k>>); LANES],
}

/// A packet of this shape that is sound and allowed.
pub(super) struct Lean<'k, 'p> {
    /// The key that makes its secret.
    pub(super) key: &'k WaypointKey,
    pub(super) forward: Forward,
    /// Octets of its binding.
    pub(super) width: usize,
    pub(super) payload: &'p [u8],
}

impl<'s, 'k> Beside<'s, 'k> {
    /// For the packets of one burst, which come at `now`.
    #[inline(always)]
    pub(super) fn new(kernel: CpuKernel, waypoints: &'k [Waypoint], now: UnixTime, scratch: &'s mut Scratch) -> Self {
        let (kins, found) = ([const { None }; 8], [(0, None); LANES]);
        Self { kernel, waypoints, now, scratch, kins, passed: 0, count: 0, found }
    }

    /// Checks at most [`LANES`] packets, and lays out what their secrets and bindings are the MAC of.
    #[inline(always)]
    pub(super) fn check(&mut self, datagrams: &[&[u8]]) {
        let Self { kernel, waypoints, now, scratch, kins, passed, count, found } = self;
        let Scratch { packets, laid_out, bounds, lengths, rewritten } = &mut **scratch;
        columns(*kernel, datagrams, packets);
        let (mut known, mut refusing) = (0, 0);
        (*passed, *count) = (0, 0);
        let mut rest = ((1u32 << datagrams.len().min(LANES)) - 1) as u16;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let Some((kin, alike)) = find(*kernel, kins, packets, lane, waypoints, *now) else {
                rest &= rest - 1;
                continue;
            };
            let alike = rest & alike;
            let policy = kin.found.here.policy();
            let source = if policy.check_source { u32::MAX } else { 0 };
            let asked = [kin.found.behind() as u32, policy.freshness, source, u32::from(kin.interval.exponent())];
            for (bounds, asked) in bounds.iter_mut().zip(asked) {
                fill(*kernel, alike, asked, bounds);
            }
            rest &= !alike;
            known |= alike;
            refusing |= if policy.refused.is_empty() { 0 } else { alike };
            found[*count] = (alike, Some(kin.found));
            *count += 1;
        }
        if known == 0 {
            return;
        }
        let now = now.secs() as u32;
        *passed =
            known & kernel.run(Check { kernel: *kernel, packets, bounds, now, rows: laid_out, lengths, rewritten });
        for lane in lanes(self.passed & refusing) {
            let last = Ipv4Addr::from(u32::from_be(self.scratch.packets[word::DESTINATION][lane]));
            if self.found(lane).is_none_or(|found| found.here.is_own(last.into())) {
                self.passed &= !(1 << lane);
            }
        }
    }

    /// Of a packet that passed.
    #[inline(always)]
    fn found(&self, lane: usize) -> Option<Found<'k>> {
        if self.count == 1 {
            return self.found[0].1;
        }
        self.found[..self.count].iter().find(|(bits, _)| bits >> lane & 1 != 0)?.1
    }

    /// Computes the tags of those that passed, all at once, if they are more than half of [`LANES`] and their payloads of as
    /// many blocks each.
    #[inline(always)]
    pub(super) fn tag(&self, datagrams: &[&[u8]], tags: &mut [Block; LANES]) -> bool {
        let Some((_, Some(found))) = self.found[..self.count].first() else { return false };
        if self.passed.count_ones() as usize <= LANES / 2 {
            return false;
        }
        let columns = &self.scratch.laid_out;
        let mut tails = [[].as_slice(); LANES];
        if let (Some(found), Some(datagrams)) = (self.whole(), datagrams.first_chunk::<LANES>()) {
            let behind = found.behind();
            for lane in 0..LANES {
                let payload = datagrams[lane].get(..self.scratch.lengths[lane] as usize);
                let Some(payload) = payload.and_then(|packet| packet.get(behind..)) else { return false };
                tails[lane] = payload;
            }
        } else if !self.gather_payloads(datagrams, &mut tails) {
            return false;
        }
        if self.count == 1 {
            return tag_columns(self.kernel, &[(found.key.in_lanes(), u16::MAX)], columns, &tails, tags);
        }
        let mut keys: [(&CmacKey, u16); LANES] = [(found.key.in_lanes(), 0); LANES];
        for (key, (bits, found)) in keys.iter_mut().zip(&self.found[..self.count]) {
            *key = (found.map_or(key.0, |found| found.key.in_lanes()), *bits);
        }
        tag_columns(self.kernel, &keys[..self.count], columns, &tails, tags)
    }

    /// The input of each packet's secret, and the three blocks that its binding is computed over in front of the payload.
    #[inline(always)]
    pub(super) fn rows(&self, out: &mut [Row; LANES]) {
        rows(self.kernel, &self.scratch.laid_out, out);
    }

    /// The payloads of those that passed, and any that is there for the others; whether they are there.
    #[inline(never)]
    fn gather_payloads<'p>(&self, datagrams: &[&'p [u8]], tails: &mut [&'p [u8]; LANES]) -> bool {
        let payload = |lane: usize| {
            let behind = self.found(lane)?.behind();
            datagrams.get(lane)?.get(behind..self.scratch.lengths[lane] as usize)
        };
        let Some(any) = payload(self.passed.trailing_zeros() as usize) else { return false };
        *tails = [any; LANES];
        lanes(self.passed).all(|lane| payload(lane).map(|payload| tails[lane] = payload).is_some())
    }

    /// One of [`LANES`] packets' kins, if all passed, and if all their kins have bindings of one width.
    #[inline(always)]
    pub(super) fn whole(&self) -> Option<Found<'k>> {
        let first = self.found[0].1?;
        let others = &self.found[..self.count.max(1)][1..];
        let is_whole = self.passed == u16::MAX
            && others.iter().all(|(_, found)| found.is_some_and(|found| found.width == first.width));
        is_whole.then_some(first)
    }

    /// How much the tags differ from those that packets of kins like `found` present, all together and without a branch on any
    /// octet.
    #[inline(always)]
    pub(super) fn compare(found: Found<'k>, datagrams: &[&[u8]], tags: &[Block; LANES], counted: [u64; 2]) -> u64 {
        match found.width {
            8 => compare::<8>(datagrams, tags, counted),
            _ => compare::<16>(datagrams, tags, counted),
        }
    }

    /// Of each packet that has passed, the word with TTL, protocol and checksum as it leaves.
    #[inline(always)]
    pub(super) fn rewritten(&self) -> &[u32; LANES] {
        &self.scratch.rewritten
    }

    /// How the packet of `lane`, which has passed and is of the kin `found`, is sent on.
    #[inline(always)]
    fn forward(&self, lane: usize, found: Found<'k>) -> Forward {
        Forward::lean(self.scratch.rewritten[lane % LANES], found.pointer())
    }

    /// The packet of `lane`, if it passed; the others go the general way.
    #[inline(always)]
    pub(super) fn lean<'p>(&self, lane: usize, datagram: &'p [u8]) -> Option<Lean<'k, 'p>> {
        if self.passed >> lane & 1 == 0 {
            return None;
        }
        let found = self.found(lane)?;
        Some(Lean {
            key: found.key,
            forward: self.forward(lane, found),
            width: found.width,
            payload: datagram.get(found.behind()..self.scratch.lengths[lane] as usize)?,
        })
    }
}

/// The differences of tags from bindings of `WIDTH` octets.
#[inline(always)]
fn compare<const WIDTH: usize>(datagrams: &[&[u8]], tags: &[Block; LANES], counted: [u64; 2]) -> u64 {
    let Some(datagrams) = datagrams.first_chunk::<LANES>() else { return u64::MAX };
    let mut differ = 0;
    for (datagram, tag) in datagrams.iter().zip(tags) {
        differ |= match datagram.get(FRONT..FRONT + WIDTH) {
            Some(presented) => {
                let halves = presented.as_chunks::<8>().0.iter().zip(tag.as_chunks::<8>().0).zip(counted);
                halves.fold(0, |differ, ((a, b), counted)| {
                    differ | (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b)) & counted
                })
            }
            None => u64::MAX,
        };
    }
    black_box(differ)
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

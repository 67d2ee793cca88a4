//! The stamper's vector path: IPv4 packets with one capability, not sealed, over IP. Headers are written in place and
//! bindings computed in lanes. The outcome is that of [`encapsulate`](wayleave_packet::platypus::mint::encapsulate), which
//! stamps every other shape; tests compare the two.

use std::net::IpAddr;

use wayleave_core::Afi;
use wayleave_crypto::lanes::{Block, Parts, Row, cmac_each, tag_rows};
use wayleave_packet::platypus::header::offsets::{IPV4, PROTOCOL, SOURCE, VERSION, WORD, half};
use wayleave_packet::platypus::header::{CapabilityOctets, IPV4_HEADER, Malformed, Width, fold_checksum, v4};
use wayleave_packet::platypus::mint::{Hop, MintError, Nonce, PURPOSE_BINDING, label};
use zeroize::Zeroize;

use crate::frame::BURST;
use crate::lanes::{CpuKernel, LANES, VectorCode, prefetch_octet};

/// Blocks of the masked head of any IPv4 packet that is not sealed.
const HEAD: usize = 3;
/// Where the capability stands in the head.
const HEAD_CAPABILITY: usize = 16;
/// How many packets ahead headers are fetched: enough for a line to come from memory while these are stamped.
const PREFETCHED: usize = 8;

/// A capability and its key, laid out once for many packets.
#[derive(Clone)]
pub struct PreparedCapability {
    octets: CapabilityOctets,
    /// The key, and the masked head without what differs from packet to packet.
    row: Row,
    waypoint: [u8; 4],
    width: Width,
}

impl Drop for PreparedCapability {
    fn drop(&mut self) {
        self.row.zeroize();
    }
}

impl std::fmt::Debug for PreparedCapability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PreparedCapability(..)")
    }
}

impl PreparedCapability {
    /// `None` unless the capability is of IPv4 and consistent.
    #[must_use]
    pub fn new(hop: &Hop) -> Option<Self> {
        let IpAddr::V4(waypoint) = hop.capability.waypoint else { return None };
        hop.capability.is_consistent().then(|| {
            let octets = hop.capability.octets();
            let mut row = [[0; 16]; 1 + HEAD];
            row[0] = *hop.key.expose();
            let head = row[1..].as_flattened_mut();
            head[..4].copy_from_slice(&label(PURPOSE_BINDING, Afi::Ipv4));
            head[HEAD_CAPABILITY..][..octets.as_slice().len()].copy_from_slice(octets.as_slice());
            let width = hop.capability.width;
            Self { octets, row, waypoint: waypoint.octets(), width }
        })
    }

    /// Octets that a packet grows by.
    #[must_use]
    pub fn growth(&self) -> usize {
        IPV4.capabilities + self.octets.as_slice().len() + self.width.octets()
    }
}

/// An IPv4 packet to stamp.
#[derive(Debug)]
pub struct StampInput<'a> {
    /// Headroom, then the packet, which ends where its total length says or before this ends.
    pub buffer: &'a mut [u8],
    /// Where the packet begins.
    pub begin: usize,
    pub capability: &'a PreparedCapability,
    /// Different for every packet.
    pub nonce: Nonce,
}

/// One core's stamper of bursts. Its scratch holds keys, has no printable form, and is wiped when dropped.
pub struct BurstStamper {
    kernel: CpuKernel,
    /// The key of each packet, and the masked head of what its binding is computed over.
    rows: Box<[[Row; LANES]; BURST / LANES]>,
    tags: [Block; BURST],
    /// The keys of packets that are not tagged sixteen at a time.
    keys: Box<[Block; BURST]>,
}

impl Drop for BurstStamper {
    fn drop(&mut self) {
        self.rows.zeroize();
        self.keys.zeroize();
    }
}

impl std::fmt::Debug for BurstStamper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BurstStamper on {}", self.kernel.name())
    }
}

impl BurstStamper {
    /// A stamper of at most [`BURST`] packets at a time.
    #[must_use]
    pub fn new(kernel: CpuKernel) -> Self {
        Self {
            kernel,
            rows: Box::new([[[[0; 16]; 1 + HEAD]; LANES]; BURST / LANES]),
            tags: [[0; 16]; BURST],
            keys: Box::new([[0; 16]; BURST]),
        }
    }

    /// Stamps at most [`BURST`] packets in place. The outcome of the same index is where the stamped packet begins, or why
    /// the packet was left as it is.
    pub fn stamp(&mut self, packets: &mut [StampInput<'_>], outcomes: &mut [Result<usize, MintError>]) {
        let kernel = self.kernel;
        StampBurst { stamper: self, packets, outcomes }.run_on(kernel);
    }

    /// First all headers are written, then all bindings: a MAC in lanes needs sixteen messages, and headers are written at
    /// the speed of memory.
    #[inline(always)]
    fn stamp_burst(&mut self, packets: &mut [StampInput<'_>], outcomes: &mut [Result<usize, MintError>]) {
        let count = packets.len().min(outcomes.len()).min(BURST);
        let (packets, outcomes) = (&mut packets[..count], &mut outcomes[..count]);
        packets.iter().take(PREFETCHED).for_each(prefetch_packet);
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            packets.get(index + PREFETCHED).inspect(|packet| prefetch_packet(packet));
            let packet = &mut packets[index];
            let row = &mut self.rows[index / LANES][index % LANES];
            *outcome = match packet.capability.octets.as_slice().len() {
                UNDELEGATED => write_headers::<UNDELEGATED>(packet, row),
                _ => write_headers::<ANY>(packet, row),
            };
        }
        self.compute_tags(packets, outcomes);
        for ((packet, outcome), tag) in packets.iter_mut().zip(outcomes.iter()).zip(&self.tags) {
            if outcome.is_ok() {
                let payload = packet.begin + IPV4_HEADER;
                // Copies of constant length are single instructions.
                match packet.capability.width {
                    Width::Full => packet.buffer[payload - 16..payload].copy_from_slice(tag),
                    Width::Narrow => packet.buffer[payload - 8..payload].copy_from_slice(&tag[..8]),
                }
            }
        }
    }

    /// Sixteen packets in a row whose payloads have equal numbers of blocks are tagged at once; all others together, in the
    /// order of their lengths.
    #[inline(always)]
    fn compute_tags(&mut self, packets: &[StampInput<'_>], outcomes: &[Result<usize, MintError>]) {
        let Self { kernel, rows, tags, keys } = self;
        let mut indices = [0; BURST];
        let mut messages = [Parts::default(); BURST];
        let mut others = 0;
        let groups = packets.chunks(LANES).zip(outcomes.chunks(LANES)).zip(rows.iter()).zip(tags.chunks_mut(LANES));
        for (group, (((packets, outcomes), rows), tags)) in groups.enumerate() {
            let mut payloads = [[].as_slice(); LANES];
            for ((payload, packet), outcome) in payloads.iter_mut().zip(packets).zip(outcomes) {
                if let Ok(begin) = *outcome {
                    let total = usize::from(half(packet.buffer, begin + v4::TOTAL_LENGTH));
                    *payload = &packet.buffer[packet.begin + IPV4_HEADER..begin + total];
                }
            }
            if packets.len() == LANES
                && let Some(tags) = tags.first_chunk_mut()
                && tag_rows(*kernel, &[], rows, &payloads, tags)
            {
                continue;
            }
            for (lane, (row, tail)) in rows.iter().zip(payloads).enumerate().take(packets.len()) {
                (keys[others], indices[others]) = (row[0], group * LANES + lane);
                messages[others] = Parts { head: &row[1..], tail };
                others += 1;
            }
        }
        if others == 0 {
            return;
        }
        let mut other_tags = [[0; 16]; BURST];
        cmac_each(*kernel, &keys[..others], &messages[..others], &mut other_tags[..others]);
        for (index, tag) in indices.iter().zip(&other_tags).take(others) {
            tags[*index] = *tag;
        }
        keys[..others].as_flattened_mut().zeroize();
    }
}

/// A burst to stamp.
struct StampBurst<'a, 'p> {
    stamper: &'a mut BurstStamper,
    packets: &'a mut [StampInput<'p>],
    outcomes: &'a mut [Result<usize, MintError>],
}

impl VectorCode for StampBurst<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { stamper, packets, outcomes } = self;
        stamper.stamp_burst(packets, outcomes);
    }
}

/// Octets of a capability without delegation.
const UNDELEGATED: usize = IPV4.capability.prefix;
/// A capability of any length.
const ANY: usize = 0;

/// Writes both headers in front of the payload, and the masked head; the binding stays open. The capability has `LENGTH`
/// octets, a constant for the commonest one so that it is copied by single instructions.
#[inline(always)]
fn write_headers<const LENGTH: usize>(packet: &mut StampInput<'_>, row: &mut Row) -> Result<usize, MintError> {
    let StampInput { buffer, begin, capability: prepared, nonce } = packet;
    let have = buffer.len().saturating_sub(*begin);
    let truncated = |need| MintError::Inner(Malformed::Truncated { need, have });
    let inner: [u8; IPV4_HEADER] =
        *buffer.get(*begin..).and_then(|inner| inner.first_chunk()).ok_or(truncated(IPV4_HEADER))?;
    let total = usize::from(half(&inner, v4::TOTAL_LENGTH)).max(IPV4_HEADER);
    match inner[v4::VERSION_AND_LENGTH] {
        0x45 => {}
        first if first >> 4 == 4 => return Err(MintError::Inner(Malformed::Options)),
        _ => return Err(MintError::Inner(Malformed::NotIp)),
    }
    if half(&inner, v4::FRAGMENT) & v4::FRAGMENTED != 0 {
        return Err(MintError::Inner(Malformed::Fragment));
    }
    if total > have {
        return Err(truncated(total));
    }
    let capability = prepared.octets.as_slice();
    let capability = if LENGTH == ANY { capability } else { &capability[..LENGTH] };
    let growth = IPV4.capabilities + capability.len() + prepared.width.octets();
    let length = u16::try_from(total + growth).map_err(|_| MintError::TooLong(total + growth))?;
    let start = begin.checked_sub(growth).ok_or(MintError::TooLong(total + growth))?;

    // Every octet is written once from values in registers, and none is read back: a load that spans two recent stores
    // waits until both have left the store buffer.
    let (ip, platypus) = buffer[start..*begin + IPV4_HEADER].split_at_mut(IPV4_HEADER);
    let [l0, l1] = length.to_be_bytes();
    let words = |at: usize| [inner[at], inner[at + 1], inner[at + 2], inner[at + 3]];
    let (first, second, third, source) = (words(0), words(4), words(8), words(v4::SOURCE));
    let (first, [ttl, protocol, ..]) = ([first[0], first[1], l0, l1], third);
    let sum = |words: [[u8; 4]; 5]| words.into_iter().map(|word| u64::from(u32::from_ne_bytes(word))).sum();
    let [c0, c1] =
        (!fold_checksum(sum([first, second, [ttl, PROTOCOL, 0, 0], source, prepared.waypoint]))).to_ne_bytes();
    let third = [ttl, PROTOCOL, c0, c1];
    for (out, word) in ip.as_chunks_mut().0.iter_mut().zip([first, second, third, source, prepared.waypoint]) {
        *out = word;
    }
    let addresses = *inner[v4::SOURCE..].first_chunk::<8>().expect("eight octets");
    let payload = ((total - IPV4_HEADER) as u16).to_be_bytes();
    // At most ten words.
    let words = ((growth - IPV4.capabilities) / WORD) as u8;
    platypus[..SOURCE].copy_from_slice(&[VERSION << 4, words, 0, protocol]);
    platypus[SOURCE..IPV4.nonce].copy_from_slice(&addresses);
    platypus[IPV4.nonce..IPV4.capabilities].copy_from_slice(&nonce.octets());
    platypus[IPV4.capabilities..][..capability.len()].copy_from_slice(capability);

    // mint: the masked head; label and capability are there.
    *row = prepared.row;
    let head = row[1..].as_flattened_mut();
    head[4..8].copy_from_slice(&[protocol, VERSION << 4, payload[0], payload[1]]);
    head[8..HEAD_CAPABILITY].copy_from_slice(&addresses);
    head[HEAD_CAPABILITY + capability.len()..][..8].copy_from_slice(&nonce.octets());
    Ok(start)
}

/// Begins to fetch a packet's header, and the lines in front of it where the new header goes.
#[inline(always)]
fn prefetch_packet(packet: &StampInput<'_>) {
    prefetch_octet(packet.buffer, packet.begin.wrapping_sub(packet.capability.growth()));
    prefetch_octet(packet.buffer, packet.begin);
}

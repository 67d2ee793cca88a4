//! A stamper's work over a burst of IPv4 packets with one capability each: headers in place, bindings in lanes. The
//! outcome is that of [`encapsulate`](wayleave_packet::platypus::mint::encapsulate), which does every other shape.

use std::net::IpAddr;

use wayleave_crypto::lanes::{BURST, Block, CpuKernel, LANES, Parts, Row, Work, cmac_each, prefetch_octet, tag_rows};
use zeroize::Zeroize;

use wayleave_packet::platypus::header::offsets::{IPV4, PROTOCOL, SOURCE, WORD, half};
use wayleave_packet::platypus::header::{CapabilityOctets, IPV4_HEADER, Malformed, Width, fold, v4};
use wayleave_packet::platypus::mint::{Hop, MintError, Nonce, PURPOSE_BINDING, label};

/// Blocks of the head of any IPv4 packet that is not sealed.
const HEAD: usize = 3;
/// Where the capability stands in the head.
const HEAD_CAPABILITY: usize = 16;
/// Packets whose first octets are on their way from memory while one is stamped.
const AHEAD: usize = 8;

/// A capability that is laid out for many packets.
#[derive(Clone)]
pub struct Ready {
    capability: CapabilityOctets,
    /// The key, and the masked head but for what differs from packet to packet.
    row: Row,
    waypoint: [u8; 4],
    width: Width,
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.row.zeroize();
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ready(..)")
    }
}

impl Ready {
    /// `None` unless the capability is of IPv4 and consistent.
    #[must_use]
    pub fn new(hop: &Hop) -> Option<Self> {
        let IpAddr::V4(waypoint) = hop.capability.waypoint else { return None };
        hop.capability.is_consistent().then(|| {
            let capability = hop.capability.octets();
            let mut row = [[0; 16]; 1 + HEAD];
            row[0] = *hop.key.expose();
            let octets = row[1..].as_flattened_mut();
            octets[..4].copy_from_slice(&label(PURPOSE_BINDING, wayleave_core::Afi::Ipv4));
            octets[HEAD_CAPABILITY..][..capability.as_slice().len()].copy_from_slice(capability.as_slice());
            let width = hop.capability.width;
            Self { capability, row, waypoint: waypoint.octets(), width }
        })
    }

    /// Octets that a packet grows by.
    #[must_use]
    pub fn growth(&self) -> usize {
        IPV4.capabilities + self.capability.as_slice().len() + self.width.octets()
    }
}

/// An IPv4 packet with room in front.
#[derive(Debug)]
pub struct Unstamped<'a> {
    /// Room, then the packet, which ends where its total length says or before this ends.
    pub buffer: &'a mut [u8],
    /// Where the packet begins.
    pub begin: usize,
    /// What stamps it.
    pub ready: &'a Ready,
    /// Different for every packet.
    pub nonce: Nonce,
}

/// One core's scratch; it holds keys, has no printable form, and is wiped when dropped.
pub struct Burst {
    kernel: CpuKernel,
    /// The key of each packet, and the masked head of what its binding is computed over.
    rows: Box<[[Row; LANES]; BURST / LANES]>,
    tags: [Block; BURST],
    /// Of those that are not taken by sixteens.
    keys: Box<[Block; BURST]>,
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.rows.zeroize();
        self.keys.zeroize();
    }
}

impl std::fmt::Debug for Burst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Burst on {}", self.kernel.name())
    }
}

impl Burst {
    /// Room for [`BURST`] packets.
    #[must_use]
    pub fn new(kernel: CpuKernel) -> Self {
        Self {
            kernel,
            rows: Box::new([[[[0; 16]; 1 + HEAD]; LANES]; BURST / LANES]),
            tags: [[0; 16]; BURST],
            keys: Box::new([[0; 16]; BURST]),
        }
    }

    /// Stamps at most [`BURST`] packets in place. The outcome at the same place is where the stamped packet begins, or why
    /// it was left as it is.
    pub fn stamp(&mut self, packets: &mut [Unstamped<'_>], outcomes: &mut [Result<usize, MintError>]) {
        self.kernel.run(Stamp { burst: self, packets, outcomes });
    }

    #[inline(always)]
    fn stamp_all(&mut self, packets: &mut [Unstamped<'_>], outcomes: &mut [Result<usize, MintError>]) {
        let Self { kernel, rows, tags, keys } = self;
        let count = packets.len().min(outcomes.len()).min(BURST);
        packets.iter().take(AHEAD).for_each(fetch);
        for (slot, outcome) in outcomes.iter_mut().enumerate().take(count) {
            packets.get(slot + AHEAD).inspect(|packet| fetch(packet));
            let packet = &mut packets[slot];
            let row = &mut rows[slot / LANES][slot % LANES];
            *outcome = match packet.ready.capability.as_slice().len() {
                PLAIN => lay_out::<PLAIN>(packet, row),
                _ => lay_out::<ANY>(packet, row),
            };
        }
        // Sixteen payloads of as many blocks are taken together; all others side by side, by their lengths.
        let mut places = [0; BURST];
        let mut messages = [Parts::default(); BURST];
        let mut left = 0;
        let groups =
            packets[..count].chunks(LANES).zip(outcomes.chunks(LANES)).zip(rows.iter()).zip(tags.chunks_mut(LANES));
        for (group, (((packets, outcomes), rows), tags)) in groups.enumerate() {
            let mut tails = [[].as_slice(); LANES];
            for ((tail, packet), outcome) in tails.iter_mut().zip(packets).zip(outcomes) {
                if let Ok(begin) = *outcome {
                    let total = usize::from(half(packet.buffer, begin + v4::TOTAL_LENGTH));
                    *tail = &packet.buffer[packet.begin + IPV4_HEADER..begin + total];
                }
            }
            if packets.len() == LANES
                && let Some(tags) = tags.first_chunk_mut()
                && tag_rows(*kernel, &[], rows, &tails, tags)
            {
                continue;
            }
            for (slot, (row, tail)) in rows.iter().zip(tails).enumerate().take(packets.len()) {
                (keys[left], places[left]) = (row[0], group * LANES + slot);
                messages[left] = Parts { head: &row[1..], tail };
                left += 1;
            }
        }
        if left != 0 {
            let mut others = [[0; 16]; BURST];
            cmac_each(*kernel, &keys[..left], &messages[..left], &mut others[..left]);
            for (place, tag) in places.iter().zip(&others).take(left) {
                tags[*place] = *tag;
            }
            keys[..left].as_flattened_mut().zeroize();
        }
        for ((packet, outcome), tag) in packets.iter_mut().zip(outcomes.iter()).zip(&*tags).take(count) {
            if outcome.is_ok() {
                let payload = packet.begin + IPV4_HEADER;
                // Copies of known lengths.
                match packet.ready.width {
                    Width::Full => packet.buffer[payload - 16..payload].copy_from_slice(tag),
                    Width::Narrow => packet.buffer[payload - 8..payload].copy_from_slice(&tag[..8]),
                }
            }
        }
    }
}

/// A burst to stamp.
struct Stamp<'a, 'p> {
    burst: &'a mut Burst,
    packets: &'a mut [Unstamped<'p>],
    outcomes: &'a mut [Result<usize, MintError>],
}

impl Work for Stamp<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { burst, packets, outcomes } = self;
        burst.stamp_all(packets, outcomes);
    }
}

/// Octets of a capability without delegation; what stands for any number.
const PLAIN: usize = IPV4.capability.prefix;
const ANY: usize = 0;

/// Writes both headers in front of the payload, and the masked head; the binding stays open. The capability has `LENGTH`
/// octets, or as many as it has.
#[inline(always)]
fn lay_out<const LENGTH: usize>(packet: &mut Unstamped<'_>, row: &mut Row) -> Result<usize, MintError> {
    let Unstamped { buffer, begin, ready, nonce } = packet;
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
    let capability = ready.capability.as_slice();
    let capability = if LENGTH == ANY { capability } else { &capability[..LENGTH] };
    let growth = IPV4.capabilities + capability.len() + ready.width.octets();
    let length = u16::try_from(total + growth).map_err(|_| MintError::TooLong(total + growth))?;
    let start = begin.checked_sub(growth).ok_or(MintError::TooLong(total + growth))?;

    // Every octet is written once, and none read back: what was just written by halves is slow to read whole.
    let (ip, platypus) = buffer[start..*begin + IPV4_HEADER].split_at_mut(IPV4_HEADER);
    let [l0, l1] = length.to_be_bytes();
    let words = |at: usize| [inner[at], inner[at + 1], inner[at + 2], inner[at + 3]];
    let (first, second, third, source) = (words(0), words(4), words(8), words(v4::SOURCE));
    let (first, [ttl, protocol, ..]) = ([first[0], first[1], l0, l1], third);
    let sum = |words: [[u8; 4]; 5]| words.into_iter().map(|word| u64::from(u32::from_ne_bytes(word))).sum();
    let [c0, c1] = (!fold(sum([first, second, [ttl, PROTOCOL, 0, 0], source, ready.waypoint]))).to_ne_bytes();
    let third = [ttl, PROTOCOL, c0, c1];
    for (place, word) in ip.as_chunks_mut().0.iter_mut().zip([first, second, third, source, ready.waypoint]) {
        *place = word;
    }
    let addresses = *inner[v4::SOURCE..].first_chunk::<8>().expect("eight octets");
    let payload = ((total - IPV4_HEADER) as u16).to_be_bytes();
    // At most ten words.
    let words = ((growth - IPV4.capabilities) / WORD) as u8;
    platypus[..SOURCE].copy_from_slice(&[IPV4.version << 4, words, 0, protocol]);
    platypus[SOURCE..IPV4.nonce].copy_from_slice(&addresses);
    platypus[IPV4.nonce..IPV4.capabilities].copy_from_slice(&nonce.octets());
    platypus[IPV4.capabilities..][..capability.len()].copy_from_slice(capability);

    *row = ready.row;
    let octets = row[1..].as_flattened_mut();
    octets[4..8].copy_from_slice(&[protocol, IPV4.version << 4, payload[0], payload[1]]);
    octets[8..HEAD_CAPABILITY].copy_from_slice(&addresses);
    octets[HEAD_CAPABILITY + capability.len()..][..8].copy_from_slice(&nonce.octets());
    Ok(start)
}

/// Begins to fetch a packet's header, and the lines in front of it where the new one goes.
#[inline(always)]
fn fetch(packet: &Unstamped<'_>) {
    prefetch_octet(packet.buffer, packet.begin.wrapping_sub(packet.ready.growth()));
    prefetch_octet(packet.buffer, packet.begin);
}

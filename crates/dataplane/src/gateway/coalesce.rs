//! Segments of one TCP stream, and datagrams of one UDP flow, that came in a row are handed to the system as one large packet, which it
//! takes as fast as one of them.

use super::inner::{self, Inner, TCP, UDP};
use super::offload::{Kind, Offload};

/// Flows whose packets are gathered at a time.
const LIMIT_FLOWS: usize = 8;
/// Octets of a large packet, at most.
const LONGEST: usize = 65_000;
/// Datagrams that one packet may stand for (Linux's `UDP_MAX_SEGMENTS` of before 6.9).
const MOST_DATAGRAMS: usize = 64;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// A packet for the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ready {
    pub octets: Vec<u8>,
    pub offload: Offload,
}

impl Ready {
    /// How many packets it stands for, if it is of datagrams.
    #[must_use]
    pub fn count(&self) -> usize {
        let payload = self.octets.len().saturating_sub(self.offload.header_length.into());
        payload.div_ceil(usize::from(self.offload.size.max(1))).max(1)
    }
}

/// A packet that may be gathered with others.
struct Part<'a> {
    octets: &'a [u8],
    inner: Inner,
    headers: usize,
    /// Of a datagram zero.
    sequence: u32,
    /// Of a datagram zero.
    flags: u8,
}

impl<'a> Part<'a> {
    /// `None` if the packet stays alone.
    fn of(octets: &'a [u8], inner: Inner) -> Option<Self> {
        let ip = inner.header();
        let part = match inner.protocol {
            TCP => {
                let headers = inner.tcp_headers(octets)?;
                let sequence = u32::from_be_bytes(*octets[ip + 4..].first_chunk()?);
                let flags = octets[ip + 13];
                (flags & !PSH == ACK).then_some(Self { octets, inner, headers, sequence, flags })?
            }
            UDP => {
                let [_, _, _, _, long, short, first, second] = *octets[ip..].first_chunk::<8>()?;
                let is_whole = usize::from(u16::from_be_bytes([long, short])) == octets.len() - ip;
                // Zero: it has no checksum, and is to have none behind.
                let has_checksum = (first, second) != (0, 0);
                let part = Self { octets, inner, headers: ip + 8, sequence: 0, flags: 0 };
                (is_whole && has_checksum).then_some(part)?
            }
            _ => return None,
        };
        (!part.payload().is_empty() && inner::has_right_checksum(&inner, octets)).then_some(part)
    }

    fn payload(&self) -> &'a [u8] {
        &self.octets[self.headers..]
    }
}

struct Gathered {
    octets: Vec<u8>,
    inner: Inner,
    headers: usize,
    size: usize,
    count: usize,
    /// The next segment's sequence number.
    next: u32,
    /// Nothing may follow: the last packet was short, or asked to be pushed.
    is_closed: bool,
}

/// Gathers the packets of one burst.
#[derive(Default)]
pub(super) struct Coalescer {
    flows: Vec<Gathered>,
}

impl Coalescer {
    /// Takes a packet; what must go before it, or is complete, goes to `out`.
    pub(super) fn push(&mut self, octets: &[u8], inner: Inner, out: &mut impl FnMut(Ready)) {
        let key = |inner: &Inner| (inner.source, inner.destination, inner.protocol, inner.ports);
        let place = self.flows.iter().position(|flow| key(&flow.inner) == key(&inner));
        let part = Part::of(octets, inner);
        if let Some(place) = place {
            if let Some(part) = part.as_ref().filter(|part| self.flows[place].takes(part)) {
                return self.flows[place].append(part);
            }
            self.flows.remove(place).finish(out);
        }
        let Some(part) = part else {
            return out(Ready { octets: octets.to_vec(), offload: Offload::default() });
        };
        if self.flows.len() == LIMIT_FLOWS {
            self.flows.remove(0).finish(out);
        }
        self.flows.push(Gathered::new(&part));
    }

    /// Ends the burst.
    pub(super) fn flush(&mut self, out: &mut impl FnMut(Ready)) {
        self.flows.drain(..).for_each(|flow| flow.finish(out));
    }
}

impl Gathered {
    fn new(part: &Part<'_>) -> Self {
        let size = part.payload().len();
        let mut octets = Vec::with_capacity(LONGEST.min(part.octets.len() * 16));
        octets.extend_from_slice(part.octets);
        Self {
            octets,
            inner: part.inner,
            headers: part.headers,
            size,
            count: 1,
            next: part.sequence.wrapping_add(size as u32),
            is_closed: part.flags & PSH != 0,
        }
    }

    /// Whether a packet goes on where this ends, with the same headers but for lengths, numbers and checksums.
    fn takes(&self, part: &Part<'_>) -> bool {
        let ip = self.inner.header();
        let same = |range: std::ops::Range<usize>| self.octets[range.clone()] == part.octets[range];
        let is_same_ip =
            if ip == 20 { same(0..2) && same(6..9) && self.has_next_id(part) } else { same(0..4) && same(6..8) };
        let goes_on = match self.inner.protocol {
            // A large one alone in front may be a probe of the path's MTU: what follows is not to be lost with it.
            UDP => self.count < MOST_DATAGRAMS && (self.count > 1 || part.payload().len() == self.size),
            // Acknowledgement, offset; window; options.
            _ => {
                part.sequence == self.next
                    && same(ip + 8..ip + 13)
                    && same(ip + 14..ip + 16)
                    && same(ip + 18..part.headers)
            }
        };
        let length = part.payload().len();
        !self.is_closed
            && part.headers == self.headers
            && length <= self.size
            && self.octets.len() + length <= LONGEST
            && is_same_ip
            && goes_on
    }

    /// Whether the system, which numbers IPv4 packets from the first one, gives the packet its own ID back. Where nobody may cut it, none matters
    /// (RFC 6864 section 4.1).
    fn has_next_id(&self, part: &Part<'_>) -> bool {
        const DONT_FRAGMENT: u8 = 0x40;
        let id = |octets: &[u8]| u16::from_be_bytes([octets[4], octets[5]]);
        part.octets[6] & DONT_FRAGMENT != 0 || id(part.octets) == id(&self.octets).wrapping_add(self.count as u16)
    }

    fn append(&mut self, part: &Part<'_>) {
        let payload = part.payload();
        self.octets.extend_from_slice(payload);
        self.next = self.next.wrapping_add(payload.len() as u32);
        self.count += 1;
        self.is_closed = payload.len() < self.size || part.flags & PSH != 0;
        if self.inner.protocol == TCP {
            self.octets[self.inner.header() + 13] |= part.flags & PSH;
        }
    }

    fn finish(mut self, out: &mut impl FnMut(Ready)) {
        if self.count == 1 {
            return out(Ready { octets: self.octets, offload: Offload::default() });
        }
        let ip = self.inner.header();
        let is_v4 = ip == 20;
        let transport = self.octets.len() - ip;
        let mut write = |at: usize, word: u16| self.octets[at..at + 2].copy_from_slice(&word.to_be_bytes());
        // At most LONGEST.
        let (at, length) = if is_v4 { (2, ip + transport) } else { (4, transport) };
        write(at, length as u16);
        let partial = inner::fold(inner::pseudo_sum(&self.inner, transport));
        let (kind, checksum) = match (self.inner.protocol, is_v4) {
            (UDP, _) => {
                write(ip + 4, transport as u16);
                (Kind::Udp, 6)
            }
            (_, true) => (Kind::Tcp4, 16),
            (_, false) => (Kind::Tcp6, 16),
        };
        write(ip + usize::from(checksum), partial);
        inner::write_ip_checksum(&mut self.octets);
        let offload = Offload {
            needs_checksum: true,
            kind,
            header_length: self.headers as u16, // at most 100
            size: self.size as u16,
            checksum: (ip as u16, checksum),
        };
        out(Ready { octets: self.octets, offload });
    }
}

#[cfg(test)]
mod tests {
    //! ICD-11, gateway: segments and datagrams in a row become one packet, and cut again are what they were.

    use super::super::inner::tests::{ip, tcp};
    use super::super::offload::Segments;
    use super::*;

    const ENDS: [(&str, &str); 2] = [("10.0.1.1", "10.0.2.1"), ("fd00:1::1", "fd00:2::1")];

    fn gather(packets: &[Vec<u8>]) -> Vec<Ready> {
        let (mut coalescer, mut all) = (Coalescer::default(), Vec::new());
        for octets in packets {
            coalescer.push(octets, Inner::decode(octets).unwrap(), &mut |ready| all.push(ready));
        }
        coalescer.flush(&mut |ready| all.push(ready));
        all
    }

    #[test]
    fn segments_in_a_row_become_one_and_cut_again_are_what_they_were() {
        for ends in ENDS {
            let lengths = [100, 100, 100, 40];
            let mut sequence = u32::MAX - 150;
            let packets: Vec<Vec<u8>> = lengths
                .iter()
                .enumerate()
                .map(|(index, length)| {
                    let flags = if index == 3 { 0x18 } else { 0x10 };
                    let mut octets = tcp(ends, (1, 2), (sequence, flags), &[1, 1, 1, 1], &vec![index as u8; *length]);
                    if ends == ENDS[0] {
                        octets[5] = 1 + index as u8;
                        inner::write_ip_checksum(&mut octets);
                    }
                    sequence = sequence.wrapping_add(*length as u32);
                    octets
                })
                .collect();
            let all = gather(&packets);
            let [Ready { octets, offload }] = &all[..] else { panic!("{} packets", all.len()) };
            let inner = Inner::decode(octets).unwrap();
            let segments = Segments::new(octets, inner, offload).unwrap();
            let mut out = Vec::new();
            for (index, expected) in packets.iter().enumerate() {
                out.clear();
                segments.append(index, &mut out);
                assert_eq!(&out, expected);
            }
        }
    }

    fn udp(ends: (&str, &str), ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let words = [ports.0, ports.1, 8 + payload.len() as u16, 0].map(u16::to_be_bytes);
        ip(ends, UDP, &[words.as_flattened(), payload].concat())
    }

    /// The packets that these stand for.
    fn cut(all: &[Ready]) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for Ready { octets, offload } in all {
            let inner = Inner::decode(octets).unwrap();
            let segments = Segments::new(octets, inner, offload).unwrap();
            for index in 0..segments.count() {
                packets.push(Vec::new());
                segments.append(index, packets.last_mut().unwrap());
            }
        }
        packets
    }

    #[test]
    fn datagrams_of_one_flow_become_one_packet_and_cut_again_are_what_they_were() {
        for ends in ENDS {
            let of_length = |index: usize, length| {
                let mut octets = udp(ends, (1, 2), &vec![index as u8; length]);
                if ends == ENDS[0] {
                    octets[5] = 1 + (index % MOST_DATAGRAMS) as u8;
                    inner::write_ip_checksum(&mut octets);
                }
                octets
            };
            let packets: Vec<Vec<u8>> = (0..100).map(|index| of_length(index, 64)).collect();
            let all = gather(&packets);
            assert_eq!(all.iter().map(|ready| ready.offload.kind).collect::<Vec<_>>(), [Kind::Udp; 2]);
            assert_eq!(cut(&all), packets);
            // A short one is the last, and a longer one begins anew.
            let packets: Vec<Vec<u8>> =
                [80, 80, 30].iter().enumerate().map(|(n, length)| of_length(n, *length)).collect();
            assert_eq!(gather(&packets).len(), 1);
            let sizes = |lengths: &[usize]| {
                gather(&lengths.iter().map(|length| of_length(0, *length)).collect::<Vec<_>>()).len()
            };
            assert_eq!([sizes(&[80, 80, 30, 30]), sizes(&[30, 80]), sizes(&[80, 0]), sizes(&[9])], [2, 2, 2, 1]);
            // Nor does one go with what may be a probe of the path's MTU.
            assert_eq!(sizes(&[80, 30]), 2);
        }
    }

    #[test]
    fn datagrams_that_may_be_cut_keep_their_ids() {
        let datagram = |id: u8, flags: u8| {
            let mut octets = udp(ENDS[0], (1, 2), b"aaaa");
            (octets[5], octets[6]) = (id, flags);
            inner::write_ip_checksum(&mut octets);
            octets
        };
        for (ids, flags, count) in [([7, 8], 0, 1), ([7, 9], 0, 2), ([7, 9], 0x40, 1)] {
            assert_eq!(gather(&ids.map(|id| datagram(id, flags))).len(), count);
        }
    }

    #[test]
    fn datagrams_of_other_flows_without_checksum_or_with_a_wrong_one_stay_alone_and_in_order() {
        let datagram = |ports, payload: &[u8]| udp(ENDS[0], ports, payload);
        let (mut without, mut wrong, mut short) =
            (datagram((1, 2), b"bbbb"), datagram((1, 2), b"bbbb"), datagram((1, 2), b"bbbb"));
        without[26..28].fill(0);
        wrong[26] ^= 1;
        short[25] -= 1;
        let mut marked = datagram((1, 2), b"bbbb");
        marked[1] = 3;
        inner::write_ip_checksum(&mut marked);
        for second in [without, wrong, short, marked, datagram((1, 3), b"bbbb")] {
            let packets = vec![datagram((1, 2), b"aaaa"), second];
            assert_eq!(gather(&packets).into_iter().map(|ready| ready.octets).collect::<Vec<_>>(), packets);
        }
        // Two flows in turn are two packets.
        let packets: Vec<Vec<u8>> = (0..20).map(|index| datagram((1, 2 + index % 2), &[index as u8; 4])).collect();
        assert_eq!(gather(&packets).len(), 2);
    }

    #[test]
    fn what_does_not_follow_is_not_gathered_and_keeps_its_place() {
        let segment = |sequence, flags, payload: &[u8]| tcp(ENDS[0], (1, 2), (sequence, flags), &[], payload);
        let mut broken = segment(8, 0x10, b"bbbb");
        *broken.last_mut().unwrap() ^= 1;
        let cases = [
            vec![segment(4, 0x10, b"aaaa"), segment(9, 0x10, b"bbbb")],
            vec![segment(4, 0x10, b"aaaa"), segment(8, 0x11, b"bbbb")],
            vec![segment(4, 0x10, b"aaaa"), segment(8, 0x10, b"longer")],
            vec![segment(4, 0x18, b"aaaa"), segment(8, 0x10, b"bbbb")],
            vec![segment(4, 0x10, b""), segment(4, 0x10, b"bbbb")],
            vec![segment(4, 0x10, b"aaaa"), broken],
        ];
        for packets in cases {
            let all = gather(&packets);
            assert_eq!(all.into_iter().map(|ready| ready.octets).collect::<Vec<_>>(), packets);
        }
    }
}

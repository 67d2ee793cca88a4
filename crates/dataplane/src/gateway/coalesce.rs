//! Segments of one TCP stream that came in a row are handed to the system as one large segment, which it takes as fast as
//! one packet.

use super::inner::{self, Inner};
use super::offload::{Kind, Offload};

/// Streams whose segments are gathered at a time.
const LIMIT_STREAMS: usize = 8;
/// Octets of a large segment, at most.
const LONGEST: usize = 65_000;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// A packet for the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ready {
    pub octets: Vec<u8>,
    pub offload: Offload,
}

struct Gathered {
    octets: Vec<u8>,
    inner: Inner,
    headers: usize,
    size: usize,
    count: usize,
    next: u32,
    /// Nothing may follow: the last segment was short, or asked to be pushed.
    is_closed: bool,
}

/// Gathers the packets of one burst.
#[derive(Default)]
pub(super) struct Coalescer {
    streams: Vec<Gathered>,
}

impl Coalescer {
    /// Takes a packet; what must go before it, or is complete, goes to `out`.
    pub(super) fn push(&mut self, octets: &[u8], inner: Inner, out: &mut impl FnMut(Ready)) {
        let Some(headers) = inner.tcp_headers(octets) else {
            return out(Ready { octets: octets.to_vec(), offload: Offload::default() });
        };
        let is_same = |stream: &Gathered| {
            (stream.inner.source, stream.inner.destination, stream.inner.ports)
                == (inner.source, inner.destination, inner.ports)
        };
        let place = self.streams.iter().position(is_same);
        let ip = inner.header();
        let sequence = u32::from_be_bytes([octets[ip + 4], octets[ip + 5], octets[ip + 6], octets[ip + 7]]);
        let (flags, payload) = (octets[ip + 13], &octets[headers..]);
        let may_gather = flags & !PSH == ACK && !payload.is_empty() && inner::has_right_checksum(&inner, octets);
        if let Some(place) = place {
            let stream = &mut self.streams[place];
            if may_gather && stream.takes(octets, headers, sequence) {
                stream.append(payload, flags);
                return;
            }
            self.streams.remove(place).finish(out);
        }
        if !may_gather {
            return out(Ready { octets: octets.to_vec(), offload: Offload::default() });
        }
        if self.streams.len() == LIMIT_STREAMS {
            self.streams.remove(0).finish(out);
        }
        let next = sequence.wrapping_add(payload.len() as u32);
        let (size, is_closed) = (payload.len(), flags & PSH != 0);
        let mut copy = Vec::with_capacity(LONGEST.min(octets.len() * 16));
        copy.extend_from_slice(octets);
        self.streams.push(Gathered { octets: copy, inner, headers, size, count: 1, next, is_closed });
    }

    /// Ends the burst.
    pub(super) fn flush(&mut self, out: &mut impl FnMut(Ready)) {
        self.streams.drain(..).for_each(|stream| stream.finish(out));
    }
}

impl Gathered {
    /// Whether a segment goes on where this ends, with the same headers but for lengths, numbers and checksums.
    fn takes(&self, octets: &[u8], headers: usize, sequence: u32) -> bool {
        let ip = self.inner.header();
        let same = |range: std::ops::Range<usize>| self.octets[range.clone()] == octets[range];
        let is_same_ip = if ip == 20 { same(0..2) && same(6..9) } else { same(0..4) && same(6..8) };
        let payload = octets.len() - headers;
        !self.is_closed
            && headers == self.headers
            && sequence == self.next
            && payload <= self.size
            && self.octets.len() + payload <= LONGEST
            && is_same_ip
            // Acknowledgement, offset; window; options.
            && same(ip + 8..ip + 13)
            && same(ip + 14..ip + 16)
            && same(ip + 18..headers)
    }

    fn append(&mut self, payload: &[u8], flags: u8) {
        self.octets.extend_from_slice(payload);
        self.next = self.next.wrapping_add(payload.len() as u32);
        self.count += 1;
        self.is_closed = payload.len() < self.size || flags & PSH != 0;
        let at = self.inner.header() + 13;
        self.octets[at] |= flags & PSH;
    }

    fn finish(mut self, out: &mut impl FnMut(Ready)) {
        if self.count == 1 {
            return out(Ready { octets: self.octets, offload: Offload::default() });
        }
        let ip = self.inner.header();
        let is_v4 = ip == 20;
        let (at, length) = if is_v4 { (2, self.octets.len()) } else { (4, self.octets.len() - ip) };
        self.octets[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes()); // at most LONGEST
        inner::write_ip_checksum(&mut self.octets);
        let partial = inner::fold(inner::pseudo_sum(&self.inner, self.octets.len() - ip));
        self.octets[ip + 16..ip + 18].copy_from_slice(&partial.to_be_bytes());
        let offload = Offload {
            needs_checksum: true,
            kind: if is_v4 { Kind::Tcp4 } else { Kind::Tcp6 },
            header_length: self.headers as u16, // at most 100
            size: self.size as u16,
            checksum: (ip as u16, 16),
        };
        out(Ready { octets: self.octets, offload });
    }
}

#[cfg(test)]
mod tests {
    //! ICD-11, gateway: segments in a row become one, and cut again are what they were.

    use super::super::inner::tests::tcp;
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

//! What a TUN interface says of a packet that it hands over unfinished (`virtio_net_hdr`), and how such a packet is finished:
//! cut into the segments that it stands for, with their checksums.

use super::inner::{self, Inner, TCP, UDP};

/// Octets in front of each packet at a TUN interface.
pub const HEADER: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
/// Segments of one packet, at most: 65,535 octets in segments of 48, the least that Linux makes (`tcp_min_snd_mss`). Who can write raw
/// packets may ask for one of each octet.
const MAX_SEGMENTS: usize = 65_535usize.div_ceil(48);

wayleave_core::numbered! {
    /// What a packet stands for.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum Kind {
        /// Itself.
        #[default]
        Packet = 0,
        /// TCP segments over IPv4.
        Tcp4 = 1,
        /// TCP segments over IPv6.
        Tcp6 = 4,
        /// UDP datagrams (`GSO_UDP_L4`).
        Udp = 5,
    }
}

/// The `virtio_net_hdr` of a packet (Virtual I/O Device 1.2, section 5.1.6), in the machine's own order of octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The transport checksum is only that of the pseudo-header.
    pub needs_checksum: bool,
    pub kind: Kind,
    /// Octets of all headers.
    pub header_length: u16,
    /// Octets of each segment's payload but the last.
    pub size: u16,
    /// Where what is summed begins, and where from there the checksum is.
    pub checksum: (u16, u16),
}

impl Offload {
    /// Decodes the header; `None` if it asks for what we did not say that we can do.
    #[must_use]
    pub fn decode(octets: &[u8; HEADER]) -> Option<Self> {
        let word = |at: usize| u16::from_ne_bytes([octets[at], octets[at + 1]]);
        // 0x80: ECN, which changes nothing here.
        let kind = Kind::from_octet(octets[1] & 0x7f)?;
        let needs_checksum = octets[0] & NEEDS_CHECKSUM != 0;
        Some(Self { needs_checksum, kind, header_length: word(2), size: word(4), checksum: (word(6), word(8)) })
    }

    /// Whether a packet of `length` octets would stand for more segments than any system makes of one.
    pub(super) fn is_excessive(&self, length: usize) -> bool {
        self.kind != Kind::Packet && length > MAX_SEGMENTS * usize::from(self.size.max(1))
    }

    /// The octets of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0] = if self.needs_checksum { NEEDS_CHECKSUM } else { 0 };
        out[1] = self.kind.octet();
        for (at, word) in [(2, self.header_length), (4, self.size), (6, self.checksum.0), (8, self.checksum.1)] {
            out[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        }
        out
    }
}

/// Calls `each` with every packet that the packet in `octets` stands for, with its checksums; `scratch` is memory for them.
/// Returns how many there were. A packet that stands for itself and is complete is handed over whatever it is; none is if packet
/// and offload contradict each other.
pub fn each_packet(octets: &[u8], offload: &Offload, scratch: &mut Vec<u8>, mut each: impl FnMut(&[u8])) -> usize {
    if !offload.needs_checksum && offload.kind == Kind::Packet {
        each(octets);
        return 1;
    }
    let Some(segments) = Inner::decode(octets).and_then(|inner| Segments::new(octets, inner, offload)) else {
        return 0;
    };
    for index in 0..segments.count() {
        scratch.clear();
        segments.append(index, scratch);
        each(scratch);
    }
    segments.count()
}

/// The packets that one packet stands for.
pub(super) struct Segments<'a> {
    octets: &'a [u8],
    inner: Inner,
    kind: Kind,
    /// Octets of all headers, and of each segment's payload but the last.
    headers: usize,
    size: usize,
    count: usize,
    needs_checksum: bool,
}

impl<'a> Segments<'a> {
    /// `None` if packet and offload contradict each other, or if there are too many.
    pub(super) fn new(octets: &'a [u8], inner: Inner, offload: &Offload) -> Option<Self> {
        let (headers, size) = match offload.kind {
            Kind::Packet => (octets.len(), 0),
            Kind::Tcp4 | Kind::Tcp6 => (inner.tcp_headers(octets)?, usize::from(offload.size)),
            Kind::Udp => (inner.header() + 8, usize::from(offload.size)),
        };
        let is_right = match offload.kind {
            Kind::Packet => true,
            Kind::Tcp4 => inner.source.is_ipv4() && inner.protocol == TCP && size > 0,
            Kind::Tcp6 => inner.source.is_ipv6() && inner.protocol == TCP && size > 0,
            Kind::Udp => inner.protocol == UDP && size > 0 && headers <= octets.len(),
        };
        let count = if size == 0 { 1 } else { (octets.len().checked_sub(headers)?).div_ceil(size).max(1) };
        let needs_checksum = offload.needs_checksum || offload.kind != Kind::Packet;
        let is_right = is_right && !offload.is_excessive(octets.len());
        is_right.then_some(Self { octets, inner, kind: offload.kind, headers, size, count, needs_checksum })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Octets of every packet but the last, and of the last.
    pub(super) fn lengths(&self) -> (usize, usize) {
        if self.count == 1 {
            return (self.octets.len(), self.octets.len());
        }
        (self.headers + self.size, self.octets.len() - (self.count - 1) * self.size)
    }

    /// Appends packet `index`, below [`Self::count`], to `out`.
    pub(super) fn append(&self, index: usize, out: &mut Vec<u8>) {
        let start = out.len();
        if self.count == 1 {
            out.extend_from_slice(self.octets);
            if self.needs_checksum {
                inner::write_checksums(&self.inner, &mut out[start..]);
            }
            return;
        }
        let begin = self.headers + index * self.size;
        let end = self.octets.len().min(begin + self.size);
        out.extend_from_slice(&self.octets[..self.headers]);
        out.extend_from_slice(&self.octets[begin..end]);
        let out = &mut out[start..];
        let ip = self.inner.header();
        if self.inner.source.is_ipv4() {
            let id = u16::from_be_bytes([out[4], out[5]]).wrapping_add(index as u16);
            let length = out.len() as u16; // at most what a segment's size says, and its headers
            out[4..6].copy_from_slice(&id.to_be_bytes());
            out[2..4].copy_from_slice(&length.to_be_bytes());
        } else {
            let length = (out.len() - ip) as u16;
            out[4..6].copy_from_slice(&length.to_be_bytes());
        }
        if self.kind == Kind::Udp {
            let length = (out.len() - ip) as u16;
            out[ip + 4..ip + 6].copy_from_slice(&length.to_be_bytes());
        } else {
            const FIN_PSH: u8 = 0x09;
            const CWR: u8 = 0x80;
            let word = u32::from_be_bytes([out[ip + 4], out[ip + 5], out[ip + 6], out[ip + 7]]);
            let sequence = word.wrapping_add((index * self.size) as u32);
            out[ip + 4..ip + 8].copy_from_slice(&sequence.to_be_bytes());
            if index + 1 < self.count {
                out[ip + 13] &= !FIN_PSH;
            }
            if index > 0 {
                out[ip + 13] &= !CWR;
            }
        }
        inner::write_checksums(&self.inner, out);
    }
}

#[cfg(test)]
mod tests {
    //! ICD-11, gateway: a large segment and datagrams in one: they become the packets that they stand for.

    use super::super::inner::tests::{ip, tcp};
    use super::*;

    #[test]
    fn a_header_round_trips_and_unknown_kinds_are_refused() {
        for kind in [Kind::Packet, Kind::Tcp4, Kind::Tcp6, Kind::Udp] {
            let offload = Offload { needs_checksum: true, kind, header_length: 54, size: 1_400, checksum: (20, 16) };
            assert_eq!(Offload::decode(&offload.encode()), Some(offload));
        }
        assert_eq!(Offload::decode(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None, "UDP fragments");
    }

    #[test]
    fn a_large_segment_becomes_the_segments_that_it_stands_for() {
        let ends = [("10.0.1.1", "10.0.2.1", Kind::Tcp4), ("fd00:1::1", "fd00:2::1", Kind::Tcp6)];
        for (from, to, kind) in ends {
            let payload: Vec<u8> = (0..5_000u32).map(|n| n as u8).collect();
            let big = tcp((from, to), (9, 22), (100, 0x19), &[1, 1, 1, 1], &payload);
            let offload = Offload { needs_checksum: true, kind, size: 1_200, ..Offload::default() };
            let inner = Inner::decode(&big).unwrap();
            let segments = Segments::new(&big, inner, &offload).unwrap();
            assert_eq!((segments.count(), segments.lengths()), (5, (big.len() - 3_800, big.len() - 4_800)));
            let mut out = Vec::new();
            for index in 0..5 {
                out.clear();
                segments.append(index, &mut out);
                let flags = if index == 4 { 0x19 } else { 0x10 };
                let begin = index * 1_200;
                let part = &payload[begin..payload.len().min(begin + 1_200)];
                let mut expected = tcp((from, to), (9, 22), (100 + begin as u32, flags), &[1, 1, 1, 1], part);
                if kind == Kind::Tcp4 {
                    expected[4..6].copy_from_slice(&(1 + index as u16).to_be_bytes());
                    inner::write_ip_checksum(&mut expected);
                }
                assert_eq!(out, expected, "{index}");
            }
        }
    }

    #[test]
    fn datagrams_are_cut_and_single_packets_get_their_checksum() {
        let datagram = |payload: &[u8]| {
            let length = (8 + payload.len() as u16).to_be_bytes();
            ip(("10.0.1.1", "10.0.2.1"), UDP, &[&[0, 9, 0, 53, length[0], length[1], 0, 0], payload].concat())
        };
        let big = datagram(&[7; 250]);
        let inner = Inner::decode(&big).unwrap();
        let offload = Offload { needs_checksum: true, kind: Kind::Udp, size: 100, ..Offload::default() };
        let segments = Segments::new(&big, inner, &offload).unwrap();
        let mut out = Vec::new();
        segments.append(2, &mut out);
        assert_eq!((segments.count(), out.len(), &out[20..]), (3, 78, &datagram(&[7; 50])[20..]));
        let mut unfinished = datagram(b"x");
        unfinished[26..28].fill(9);
        let offload = Offload { needs_checksum: true, ..Offload::default() };
        out.clear();
        Segments::new(&unfinished, inner, &offload).unwrap().append(0, &mut out);
        assert_eq!(out, datagram(b"x"));
        let wrong = Offload { kind: Kind::Tcp4, size: 100, ..Offload::default() };
        assert!(Segments::new(&big, inner, &wrong).is_none());
    }
}

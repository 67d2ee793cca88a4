//! Inner IP packets: what a gateway reads and rewrites of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::counters::Reason;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// IPv6's extension header of a fragment.
pub(super) const FRAGMENT: u8 = 44;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TTL: u8 = 64;
/// An IPv6 packet of this length is never too big (RFC 8200 section 5).
pub(super) const IPV6_LEAST: usize = 1280;
/// Octets of an ICMPv4 error, at most (RFC 1812 section 4.3.2.3).
const LONGEST_V4: usize = 576;
const SYN: u8 = 2;
const FIN: u8 = 1;
/// TCP's option for the greatest segment.
const OPTION_MSS: u8 = 2;

/// Where the parts of an inner packet are. Without options and extension headers, which hide what is behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Inner {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// Source and destination port; the identifier of an ICMP query, twice; zeros where there is neither.
    pub(super) ports: (u16, u16),
}

impl Inner {
    /// Reads a whole packet.
    pub(super) fn decode(octets: &[u8]) -> Option<Self> {
        let length = match octets.first()? >> 4 {
            4 => usize::from(u16::from_be_bytes(*octets.get(2..)?.first_chunk()?)),
            _ => IPV6_HEADER + usize::from(u16::from_be_bytes(*octets.get(4..)?.first_chunk()?)),
        };
        if length == octets.len() { Self::decode_beginning(octets) } else { None }
    }

    /// Reads a packet of which the end may be missing.
    fn decode_beginning(octets: &[u8]) -> Option<Self> {
        let (source, destination, protocol, header) = match octets.first()? >> 4 {
            4 => {
                let header = octets.first_chunk::<IPV4_HEADER>()?;
                let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0xbfff != 0;
                if header[0] != 0x45 || is_fragment {
                    return None;
                }
                let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
                (address(12).into(), address(16).into(), header[9], IPV4_HEADER)
            }
            6 => {
                let header = octets.first_chunk::<IPV6_HEADER>()?;
                let address = |at: usize| Ipv6Addr::from(*header[at..].first_chunk::<16>().expect("16 of 40"));
                (address(8).into(), address(24).into(), header[6], IPV6_HEADER)
            }
            _ => return None,
        };
        let at = |at: usize| octets.get(header + at..header + at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
        let ports = match protocol {
            TCP | UDP => (at(0)?, at(2)?),
            ICMP | ICMPV6 if is_query(protocol, *octets.get(header)?) => (at(4)?, at(4)?),
            _ => (0, 0),
        };
        Some(Self { source, destination, protocol, ports })
    }

    /// Octets of the IP header.
    pub(super) fn header(&self) -> usize {
        if self.source.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER }
    }

    /// Where the checksum of the transport header lies, if it has one that covers addresses.
    fn checksum_at(&self) -> Option<usize> {
        match self.protocol {
            TCP => Some(self.header() + 16),
            UDP => Some(self.header() + 6),
            ICMPV6 => Some(self.header() + 2),
            _ => None,
        }
    }

    /// Octets of IP and TCP header; `None` if they are not all there.
    pub(super) fn tcp_headers(&self, octets: &[u8]) -> Option<usize> {
        let offset = octets.get(self.header() + 12)? >> 4;
        let end = self.header() + 4 * usize::from(offset);
        (self.protocol == TCP && offset >= 5 && end <= octets.len()).then_some(end)
    }
}

/// Whether a protocol is that of ICMP for either family.
pub(super) fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, ICMP | ICMPV6)
}

fn is_query(protocol: u8, kind: u8) -> bool {
    matches!((protocol, kind), (ICMP, 0 | 8) | (ICMPV6, 128 | 129))
}

/// Whether a packet is ICMP, and no query or answer to one.
pub(super) fn is_icmp_error(inner: &Inner, octets: &[u8]) -> bool {
    is_icmp(inner.protocol) && octets.get(inner.header()).is_none_or(|kind| !is_query(inner.protocol, *kind))
}

/// What an ICMP error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Quoted {
    /// It is no error.
    Nothing,
    /// The packet that could not go on, as its beginning says.
    Packet(Inner),
    /// It cannot be told.
    Unknown,
}

/// Reads what an ICMP error quotes (RFC 792, RFC 4443 section 3).
pub(super) fn quoted(inner: &Inner, octets: &[u8]) -> Quoted {
    const HEAD: usize = 8;
    let behind = octets.get(inner.header()..).unwrap_or_default();
    let is_error = match (inner.protocol, behind.first()) {
        (ICMP, Some(kind)) => matches!(kind, 3..=5 | 11 | 12),
        (ICMPV6, Some(kind)) => *kind < 128,
        _ => false,
    };
    if !is_error {
        return Quoted::Nothing;
    }
    let Some(quote) = behind.get(HEAD..) else { return Quoted::Unknown };
    let mut beginning = [0; IPV6_HEADER + 8];
    let length = quote.len().min(beginning.len());
    beginning[..length].copy_from_slice(&quote[..length]);
    // A router behind the member may have cut it: of the first fragment the ports are there.
    if beginning[0] >> 4 == 4 && length > 7 && beginning[6] & 0x1f == 0 && beginning[7] == 0 {
        beginning[6] = 0;
    }
    Inner::decode_beginning(&beginning[..length]).map_or(Quoted::Unknown, Quoted::Packet)
}

/// Whether a packet may be cut by whoever cannot send it whole, so that it must not be refused.
pub(super) fn must_pass(inner: &Inner, octets: &[u8]) -> bool {
    const DONT_FRAGMENT: u8 = 0x40;
    if inner.source.is_ipv4() { octets[6] & DONT_FRAGMENT == 0 } else { octets.len() <= IPV6_LEAST }
}

/// The sum of 16-bit words, not folded: the checksum's arithmetic is that of any word size (RFC 1071).
pub(super) fn sum(octets: &[u8]) -> u64 {
    let (words, rest) = octets.as_chunks::<4>();
    // In the machine's own order of octets, which compilers sum in vectors: the sum in the other order is the same with its octets
    // exchanged (RFC 1071 section 2).
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    for pair in rest.chunks(2) {
        // The last octet is padded; a word of four has its halves in order.
        sum += u64::from(u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    u64::from(u16::from_be(fold(sum)))
}

/// Folds a sum to 16 bits.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the pseudo-header of a transport packet with `length` octets.
pub(super) fn pseudo_sum(inner: &Inner, length: usize) -> u64 {
    let addresses = match (inner.source, inner.destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => sum(&from.octets()) + sum(&to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => sum(&from.octets()) + sum(&to.octets()),
        _ => 0,
    };
    addresses + u64::from(inner.protocol) + length as u64
}

/// Computes the checksums of IP and of the transport header anew.
pub(super) fn write_checksums(inner: &Inner, octets: &mut [u8]) {
    write_ip_checksum(octets);
    let Some(at) = inner.checksum_at().filter(|at| at + 2 <= octets.len()) else { return };
    octets[at..at + 2].fill(0);
    let transport = &octets[inner.header()..];
    let mut checksum = !fold(sum(transport) + pseudo_sum(inner, transport.len()));
    if inner.protocol == UDP && checksum == 0 {
        checksum = 0xffff; // RFC 768: zero would mean that there is none
    }
    octets[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Computes the checksum of an IPv4 header anew; IPv6 has none.
pub(super) fn write_ip_checksum(octets: &mut [u8]) {
    if octets[0] >> 4 == 4 {
        octets[10..12].fill(0);
        let checksum = !fold(sum(&octets[..IPV4_HEADER]));
        octets[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Whether the checksum of a TCP segment, or of a UDP datagram that has one, is right.
pub(super) fn has_right_checksum(inner: &Inner, octets: &[u8]) -> bool {
    let transport = &octets[inner.header()..];
    fold(sum(transport) + pseudo_sum(inner, transport.len())) == 0xffff
}

/// Which address of a packet is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Source,
    Destination,
}

/// Puts `address` in the place of the source or destination, and corrects the checksums by the difference (RFC 1624). It is
/// of the packet's family.
pub(super) fn rewrite(inner: &mut Inner, octets: &mut [u8], end: End, address: IpAddr) {
    let (at, before) = match (end, inner.source.is_ipv4()) {
        (End::Source, true) => (12, inner.source),
        (End::Source, false) => (8, inner.source),
        (End::Destination, true) => (16, inner.destination),
        (End::Destination, false) => (24, inner.destination),
    };
    let (old, new) = match (before, address) {
        (IpAddr::V4(old), IpAddr::V4(new)) => {
            octets[at..at + 4].copy_from_slice(&new.octets());
            (sum(&old.octets()), sum(&new.octets()))
        }
        (IpAddr::V6(old), IpAddr::V6(new)) => {
            octets[at..at + 16].copy_from_slice(&new.octets());
            (sum(&old.octets()), sum(&new.octets()))
        }
        _ => return,
    };
    write_ip_checksum(octets);
    if let Some(at) = inner.checksum_at().filter(|at| at + 2 <= octets.len()) {
        let checksum = u16::from_be_bytes([octets[at], octets[at + 1]]);
        if inner.protocol != UDP || checksum != 0 {
            // HC' = ~(~HC + ~m + m')
            let next = !fold(u64::from(!checksum) + u64::from(!fold(old)) + u64::from(fold(new)));
            let next = if inner.protocol == UDP && next == 0 { 0xffff } else { next };
            octets[at..at + 2].copy_from_slice(&next.to_be_bytes());
        }
    }
    match end {
        End::Source => inner.source = address,
        End::Destination => inner.destination = address,
    }
}

/// The flags of a TCP segment.
pub(super) fn tcp_flags(inner: &Inner, octets: &[u8]) -> Option<u8> {
    octets.get(inner.header() + 13).copied().filter(|_| inner.protocol == TCP)
}

/// Whether a packet begins a TCP connection, or answers one that does.
pub(super) fn is_syn(inner: &Inner, octets: &[u8]) -> bool {
    tcp_flags(inner, octets).is_some_and(|flags| flags & SYN != 0)
}

/// Whether a packet begins a TCP connection.
pub(super) fn begins(inner: &Inner, octets: &[u8]) -> bool {
    const ACK: u8 = 0x10;
    tcp_flags(inner, octets).is_some_and(|flags| flags & (SYN | ACK) == SYN)
}

/// Whether a TCP segment has a length (RFC 9293 section 3.4): its sender repeats it until it is acknowledged.
pub(super) fn takes_sequence_space(inner: &Inner, octets: &[u8]) -> bool {
    let has_flag = octets.get(inner.header() + 13).is_some_and(|flags| flags & (SYN | FIN) != 0);
    has_flag || inner.tcp_headers(octets).is_some_and(|end| end < octets.len())
}

/// Lowers the greatest segment that a SYN names to what fits into packets of `headroom` octets; returns whether it did.
pub(super) fn clamp_mss(inner: &Inner, octets: &mut [u8], headroom: usize) -> bool {
    let Some(end) = inner.tcp_headers(octets) else { return false };
    let begin = inner.header();
    if octets[begin + 13] & SYN == 0 {
        return false;
    }
    let most = u16::try_from(headroom.saturating_sub(begin + 20)).unwrap_or(u16::MAX);
    let mut at = begin + 20;
    while at < end {
        match octets[at] {
            0 => break,
            1 => at += 1,
            kind => {
                let Some(length) = octets[at + 1..end].first().map(|length| usize::from(*length)) else { break };
                if length < 2 || at + length > end {
                    break;
                }
                if kind == OPTION_MSS && length == 4 {
                    let named = u16::from_be_bytes([octets[at + 2], octets[at + 3]]);
                    if named <= most {
                        return false;
                    }
                    octets[at + 2..at + 4].copy_from_slice(&most.to_be_bytes());
                    let (old, new) = if (at - begin).is_multiple_of(2) {
                        (named, most)
                    } else {
                        (named.swap_bytes(), most.swap_bytes())
                    };
                    let sum_at = begin + 16;
                    let checksum = u16::from_be_bytes([octets[sum_at], octets[sum_at + 1]]);
                    let next = !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new));
                    octets[sum_at..sum_at + 2].copy_from_slice(&next.to_be_bytes());
                    return true;
                }
                at += length;
            }
        }
    }
    false
}

/// Why [`Inner::decode`] refuses a packet, and what an answer to its source is about: none follows a later fragment (RFC 1122
/// section 3.2.2), or ICMP, which may be an error.
pub(super) fn refused_form(octets: &[u8]) -> (Reason, Option<Inner>) {
    let Some(header) = octets.first_chunk::<IPV4_HEADER>().filter(|header| header[0] >> 4 == 4) else {
        return (Reason::NotIp, None);
    };
    let begins = usize::from(header[0] & 15) * 4;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if length != octets.len() || begins < IPV4_HEADER || begins > length {
        return (Reason::NotIp, None);
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0xbfff;
    let reason = match (fragment, begins) {
        (0, IPV4_HEADER) => return (Reason::NotIp, None),
        (0, _) => Reason::IpOptions,
        _ => Reason::Fragment,
    };
    let address = |at: usize| IpAddr::from(*header[at..].first_chunk::<4>().expect("4 of 20"));
    let inner = Inner { source: address(12), destination: address(16), protocol: header[9], ports: (0, 0) };
    let is_first = fragment & 0x1fff == 0;
    (reason, Some(inner).filter(|inner| is_first && inner.protocol != ICMP))
}

/// What a gateway tells the source of a packet that it does not send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IcmpError {
    /// Longer than this many octets.
    TooBig(usize),
    /// Administratively prohibited: nobody consents, or packets of this form do not pass.
    Prohibited,
    /// Nobody is behind the address, or no path leads there.
    Unreachable,
}

/// The error about `octets`, as if the destination had sent it: a system takes no packet from an address of its own, and the
/// gateway has no other. `None` if the packet is itself an ICMP error.
pub(super) fn icmp_error(inner: &Inner, octets: &[u8], error: IcmpError) -> Option<Vec<u8>> {
    if is_icmp_error(inner, octets) {
        return None;
    }
    let is_v4 = inner.source.is_ipv4();
    let mut head = match (is_v4, error) {
        (true, IcmpError::TooBig(_)) => [3, 4, 0, 0, 0, 0, 0, 0],
        (true, IcmpError::Prohibited) => [3, 13, 0, 0, 0, 0, 0, 0],
        (true, IcmpError::Unreachable) => [3, 1, 0, 0, 0, 0, 0, 0],
        (false, IcmpError::TooBig(_)) => [2, 0, 0, 0, 0, 0, 0, 0],
        (false, IcmpError::Prohibited) => [1, 1, 0, 0, 0, 0, 0, 0],
        (false, IcmpError::Unreachable) => [1, 3, 0, 0, 0, 0, 0, 0],
    };
    if let IcmpError::TooBig(headroom) = error {
        let headroom = u32::try_from(headroom).unwrap_or(u32::MAX);
        head[4..]
            .copy_from_slice(&if is_v4 { headroom.min(0xffff) } else { headroom.max(IPV6_LEAST as u32) }.to_be_bytes());
    }
    let (header, longest) = if is_v4 { (IPV4_HEADER, LONGEST_V4) } else { (IPV6_HEADER, IPV6_LEAST) };
    let quoted = &octets[..octets.len().min(longest - header - head.len())];
    let mut out = answer(inner, if is_v4 { ICMP } else { ICMPV6 }, &[&head, quoted])?;
    if is_v4 {
        let checksum = !fold(sum(&out[header..]));
        out[header + 2..header + 4].copy_from_slice(&checksum.to_be_bytes());
    }
    Some(out)
}

/// A packet from the destination of another one to its source, with right checksums but that of ICMPv4; `None` if it is of two families, or
/// too long.
fn answer(to: &Inner, protocol: u8, parts: &[&[u8]]) -> Option<Vec<u8>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = Vec::with_capacity(IPV6_HEADER + length);
    match (to.destination, to.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend([0x45, 0, 0, 0, 0, 0, 0, 0, TTL, protocol, 0, 0]);
            out[2..4].copy_from_slice(&u16::try_from(IPV4_HEADER + length).ok()?.to_be_bytes());
            out.extend(from.octets());
            out.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            out.extend([0x60, 0, 0, 0, 0, 0, protocol, TTL]);
            out[4..6].copy_from_slice(&u16::try_from(length).ok()?.to_be_bytes());
            out.extend(from.octets());
            out.extend(to.octets());
        }
        _ => return None,
    }
    parts.iter().for_each(|part| out.extend(*part));
    let ports = (to.ports.1, to.ports.0);
    write_checksums(&Inner { source: to.destination, destination: to.source, protocol, ports }, &mut out);
    Some(out)
}

/// The reset that answers a SYN (RFC 9293 section 3.10.7.1); `None` if it is none.
pub(super) fn reset(inner: &Inner, octets: &[u8]) -> Option<Vec<u8>> {
    const ACK: u8 = 0x10;
    const RST: u8 = 4;
    if tcp_flags(inner, octets)? & (SYN | ACK | RST) != SYN {
        return None;
    }
    let sequence = octets.get(inner.header() + 4..)?.first_chunk().map(|octets| u32::from_be_bytes(*octets))?;
    let mut head = [0; 20];
    head[..2].copy_from_slice(&inner.ports.1.to_be_bytes());
    head[2..4].copy_from_slice(&inner.ports.0.to_be_bytes());
    head[8..12].copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
    (head[12], head[13]) = (5 << 4, RST | ACK);
    answer(inner, TCP, &[&head])
}

#[cfg(test)]
pub(super) mod tests {
    //! ICC-12: SYNs with the option in every place, ICMP errors quoted and answered: clamped, checksums right; errors
    //! get no errors.

    use super::*;

    /// A TCP segment with a payload, with right checksums.
    pub(in super::super) fn tcp(
        (from, to): (&str, &str),
        ports: (u16, u16),
        (sequence, flags): (u32, u8),
        options: &[u8],
        payload: &[u8],
    ) -> Vec<u8> {
        let mut transport = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
        transport.extend(sequence.to_be_bytes());
        transport.extend([0, 0, 0, 9, ((5 + options.len() as u8 / 4) << 4), flags, 1, 0, 0, 0, 0, 0]);
        transport.extend(options);
        transport.extend(payload);
        ip((from, to), TCP, &transport)
    }

    /// An IP packet around a transport packet, with right checksums.
    pub(in super::super) fn ip((from, to): (&str, &str), protocol: u8, transport: &[u8]) -> Vec<u8> {
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut out = Vec::new();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                out.extend([0x45, 0]);
                out.extend((20 + transport.len() as u16).to_be_bytes());
                out.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
                out.extend(from.octets());
                out.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                out.extend([0x60, 0, 0, 0]);
                out.extend((transport.len() as u16).to_be_bytes());
                out.extend([protocol, 64]);
                out.extend(from.octets());
                out.extend(to.octets());
            }
            _ => panic!("two families"),
        }
        out.extend(transport);
        let inner = Inner::decode(&out).unwrap();
        write_checksums(&inner, &mut out);
        out
    }

    const BOTH: [(&str, &str); 2] = [("10.0.1.1", "10.0.2.1"), ("fd00:1::1", "fd00:2::1")];

    #[test]
    fn a_rewritten_address_leaves_checksums_right_in_both_families() {
        for (ends, other) in BOTH.into_iter().zip(["198.18.0.77", "fd77::99"]) {
            for end in [End::Source, End::Destination] {
                for payload in [&b"odd"[..], b"even"] {
                    let mut octets = tcp(ends, (1000, 22), (5, 0x18), &[], payload);
                    let mut inner = Inner::decode(&octets).unwrap();
                    rewrite(&mut inner, &mut octets, end, other.parse().unwrap());
                    let mut expected = octets.clone();
                    assert_eq!(Inner::decode(&octets), Some(inner));
                    write_checksums(&inner, &mut expected);
                    assert_eq!(octets, expected);
                    assert!(has_right_checksum(&inner, &octets));
                }
            }
        }
    }

    #[test]
    fn a_first_fragment_and_a_packet_with_options_are_named_and_their_source_is_told() {
        let plain = ip(BOTH[0], UDP, &[0; 64]);
        let fragment = |flags: u16, protocol: u8| {
            let mut octets = ip(BOTH[0], protocol, &[0; 64]);
            octets[6..8].copy_from_slice(&flags.to_be_bytes());
            octets
        };
        let mut options = plain.clone();
        options[0] = 0x46;
        for (octets, reason, is_reported) in [
            (fragment(0x2000, UDP), Reason::Fragment, true),
            (fragment(0x2008, UDP), Reason::Fragment, false),
            (fragment(0x0008, UDP), Reason::Fragment, false),
            (fragment(0x2000, ICMP), Reason::Fragment, false),
            (options, Reason::IpOptions, true),
            (plain[..60].to_vec(), Reason::NotIp, false),
            (vec![0x45; 12], Reason::NotIp, false),
            (Vec::new(), Reason::NotIp, false),
        ] {
            assert_eq!(Inner::decode(&octets), None);
            let (found, about) = refused_form(&octets);
            assert_eq!((found, about.is_some()), (reason, is_reported));
            if let Some(inner) = about {
                let answer = icmp_error(&inner, &octets, IcmpError::Prohibited).unwrap();
                assert_eq!(answer[20..22], [3, 13], "administratively prohibited");
            }
        }
    }

    #[test]
    fn a_syn_is_clamped_and_nothing_else() {
        for ends in BOTH {
            for options in
                [&[2, 4, 0x05, 0xb4][..], &[1, 2, 4, 0x05, 0xb4, 0, 0, 0], &[1, 1, 1, 3, 3, 3, 3, 7, 2, 4, 0x05, 0xb4]]
            {
                let options = if options.len() % 4 == 0 { options } else { &options[..options.len() / 4 * 4] };
                let mut octets = tcp(ends, (1000, 22), (5, SYN), options, b"");
                let inner = Inner::decode(&octets).unwrap();
                let has_option = options.windows(2).any(|two| two == [2, 4]) && !options.starts_with(&[1, 1, 1, 3]);
                let before = octets.clone();
                assert!(!clamp_mss(&inner, &mut octets, 2_000) && octets == before);
                assert_eq!(clamp_mss(&inner, &mut octets, 1_300), has_option, "{options:?}");
                assert!(has_right_checksum(&inner, &octets));
                let mut data = tcp(ends, (1000, 22), (5, 0x10), options, b"");
                assert!(!clamp_mss(&inner, &mut data, 1_300));
            }
        }
    }

    #[test]
    fn errors_quote_the_packet_and_name_the_room_and_errors_get_none() {
        for ends in BOTH {
            let octets = tcp(ends, (1000, 22), (5, 0x10), &[], &[7; 1400]);
            let inner = Inner::decode(&octets).unwrap();
            for error in [IcmpError::TooBig(1300), IcmpError::Prohibited, IcmpError::Unreachable] {
                let answer = icmp_error(&inner, &octets, error).unwrap();
                let of = Inner::decode(&answer).unwrap();
                assert_eq!((of.source, of.destination), (inner.destination, inner.source));
                assert!(answer.len() <= IPV6_LEAST);
                let behind = &answer[of.header()..];
                assert!(octets.starts_with(&behind[8..]));
                let whole =
                    if inner.source.is_ipv4() { sum(behind) } else { sum(behind) + pseudo_sum(&of, behind.len()) };
                assert_eq!(fold(whole), 0xffff);
                if error == IcmpError::TooBig(1300) {
                    assert_eq!(u32::from_be_bytes(behind[4..8].try_into().unwrap()), 1300);
                }
                assert!(icmp_error(&of, &answer, error).is_none());
            }
        }
    }
}

//! IP packets of others on their way through a stamper: one hop of ordinary IP forwarding.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_packet::platypus::header::offsets::{PROTOCOL, UDP_PORT};
use wayleave_packet::platypus::header::{IPV4_HEADER, IPV6_HEADER, Packet};
use wayleave_packet::platypus::verify::is_martian;

const UDP: u8 = 17;

/// Why a packet goes no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// Its header is malformed, or its checksum is wrong.
    Unsound,
    /// It comes from or goes to an address that is nowhere.
    Martian,
    /// It has no hop left.
    Expired,
}

/// Takes one hop from the packet's time to live and updates the checksum. Returns its length by its own header, which may
/// be less than that of `octets`.
///
/// # Errors
/// Why the packet goes no further; its octets may have changed.
pub fn pass_on(octets: &mut [u8]) -> Result<usize, Dropped> {
    let half = |octets: &[u8], at: usize| usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]));
    match octets.first().map(|first| first >> 4) {
        Some(4) if octets.len() >= IPV4_HEADER => {
            let (header, length) = (4 * usize::from(octets[0] & 15), half(octets, 2));
            if header < IPV4_HEADER || length < header || length > octets.len() || checksum(&octets[..header]) != 0 {
                return Err(Dropped::Unsound);
            }
            let address = |at: usize| Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]);
            check_ends(address(12).into(), address(16).into())?;
            octets[8] = octets[8].checked_sub(1).filter(|ttl| *ttl > 0).ok_or(Dropped::Expired)?;
            octets[10..12].fill(0);
            let sum = checksum(&octets[..header]);
            octets[10..12].copy_from_slice(&sum.to_be_bytes());
            Ok(length)
        }
        Some(6) if octets.len() >= IPV6_HEADER => {
            let length = IPV6_HEADER + half(octets, 4);
            if length > octets.len() {
                return Err(Dropped::Unsound);
            }
            let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&octets[at..at + 16]).unwrap_or_default());
            check_ends(address(8), address(24))?;
            octets[7] = octets[7].checked_sub(1).filter(|hops| *hops > 0).ok_or(Dropped::Expired)?;
            Ok(length)
        }
        _ => Err(Dropped::Unsound),
    }
}

fn check_ends(source: IpAddr, destination: IpAddr) -> Result<(), Dropped> {
    if is_martian(source) || is_martian(destination) { Err(Dropped::Martian) } else { Ok(()) }
}

/// RFC 1071, over whole words: zero for a header whose own checksum is right.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The Platypus header of a whole IP packet, if it has one.
///
/// # Errors
/// It says that it has one, and has not: what is in pieces, or malformed, and may become another packet at its destination.
pub fn stamped(octets: &[u8]) -> Result<Option<Packet<'_>>, Dropped> {
    let (protocol, header) = match octets[0] >> 4 {
        4 => (octets[9], 4 * usize::from(octets[0] & 15)),
        _ => (octets[6], IPV6_HEADER),
    };
    let port = || octets.get(header + 2..header + 4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    match protocol {
        PROTOCOL => Packet::decode(octets).map(Some).map_err(|_| Dropped::Unsound),
        // The port is in the range that anybody's client may have.
        UDP if port() == Some(UDP_PORT) => Ok(Packet::decode(octets).ok()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    //! PLA, stamper on the way: packets that are unsound, expired or from nowhere: they go no further.

    use super::*;

    fn v4(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 203, 0, 113, 9];
        packet.extend([0; 8]);
        change(&mut packet);
        packet[10..12].fill(0);
        let sum = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    #[test]
    fn a_hop_takes_one_from_the_time_to_live_and_leaves_the_checksum_right() {
        for ttl in [2, 64, 255] {
            let mut packet = v4(|packet| packet[8] = ttl);
            packet.extend([9; 5]);
            assert_eq!(pass_on(&mut packet), Ok(28), "what is beyond the length is cut off");
            assert_eq!((packet[8], checksum(&packet[..20])), (ttl - 1, 0));
        }
        let mut v6 = vec![0; 48];
        (v6[0], v6[5], v6[7]) = (0x60, 8, 2);
        v6[8..24].copy_from_slice(&"2001:db8::1".parse::<std::net::Ipv6Addr>().expect("IPv6").octets());
        v6[24..40].copy_from_slice(&"2001:db8::2".parse::<std::net::Ipv6Addr>().expect("IPv6").octets());
        assert_eq!((pass_on(&mut v6.clone()), pass_on(&mut v6[..47].to_vec())), (Ok(48), Err(Dropped::Unsound)));
        v6[7] = 1;
        assert_eq!(pass_on(&mut v6), Err(Dropped::Expired));
    }

    #[test]
    fn packets_that_are_unsound_expired_or_from_nowhere_go_no_further() {
        let table: [(Vec<u8>, Dropped); 8] = [
            (v4(|packet| packet[8] = 1), Dropped::Expired),
            (v4(|packet| packet[8] = 0), Dropped::Expired),
            (v4(|packet| packet[12] = 127), Dropped::Martian),
            (v4(|packet| packet[16] = 224), Dropped::Martian),
            (v4(|packet| packet[3] = 29), Dropped::Unsound),
            (v4(|packet| packet[0] = 0x44), Dropped::Unsound),
            (v4(|_| ())[..19].to_vec(), Dropped::Unsound),
            (Vec::new(), Dropped::Unsound),
        ];
        for (mut packet, dropped) in table {
            assert_eq!(pass_on(&mut packet), Err(dropped), "{packet:?}");
        }
        let mut packet = v4(|_| ());
        packet[11] ^= 1;
        assert_eq!(pass_on(&mut packet), Err(Dropped::Unsound), "a wrong checksum is not made right");
    }
}

//! Martians: addresses that a waypoint never forwards to or answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether `address` cannot be a unicast address of another host: unspecified, loopback, link-local, multicast, broadcast,
/// reserved, or an IPv6 address that only wraps an IPv4 one of those kinds.
#[must_use]
#[inline]
pub fn is_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_martian_v4(v4),
        IpAddr::V6(v6) => is_martian_v6(v6),
    }
}

#[inline]
fn is_martian_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    // RFC 6890: 0/8, 127/8, 169.254/16, 192.0.0/24; then multicast, 240/4 and broadcast.
    matches!((a, b, c), (0 | 127 | 224.., _, _) | (169, 254, _) | (192, 0, 0))
}

/// The IPv4 address that an IPv4-translatable (64:ff9b::/96, RFC 6052) or 6to4 (2002::/16, RFC 3056) address stands for.
pub(super) fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

fn is_martian_v6(address: Ipv6Addr) -> bool {
    if let Some(embedded) = embedded_v4(address) {
        return is_martian_v4(embedded);
    }
    match address.segments() {
        // ::/64 holds the unspecified address, loopback, IPv4-compatible and IPv4-mapped addresses.
        [0, 0, 0, 0, ..] => true,
        // Discard-only (RFC 6666).
        [0x100, 0, 0, 0, ..] => true,
        // Link-local, the former site-local, multicast.
        [first, ..] => first & 0xffc0 == 0xfe80 || first & 0xffc0 == 0xfec0 || first & 0xff00 == 0xff00,
    }
}

#[cfg(test)]
mod tests {
    //! PLA-11: martians of both families.

    use super::*;

    /// PLA-11.
    #[test]
    fn martians_of_both_families() {
        let martians = [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.0.1",
            "192.0.0.8",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:192.0.2.1",
            "::192.0.2.1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
            "100::1",
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::1",
            "2002:e000:1::1",
        ];
        for text in martians {
            assert!(is_martian(text.parse().expect("an address")), "{text}");
        }
        let others = [
            "1.1.1.1",
            "10.0.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "192.0.2.1",
            "223.255.255.255",
            "2001:db8::1",
            "64:ff9b::192.0.2.1",
            "2002:c000:201::1",
            "fd00::1",
            "fe40::1",
            "100:0:0:1::1",
        ];
        for text in others {
            assert!(!is_martian(text.parse().expect("an address")), "{text}");
        }
    }
}

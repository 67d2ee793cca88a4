//! What is the Internet: prefixes as wide as a default route, by which members reach it through an exit, and the addresses that are no
//! hosts of it, however wide a prefix is.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Afi, Prefix};

/// IPv4 prefixes that are no hosts of the Internet (RFC 6890), and the address at which a cloud serves the settings of its machines.
pub const CLOSED_V4: [&str; 11] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/3",
];
/// The IPv6 addresses that are hosts of the Internet: global unicast (RFC 4291 section 2.4), but for tunnels, whose addresses stand for those
/// of IPv4 (RFC 4380, RFC 3056).
pub const OPEN_V6: &str = "2000::/3";
pub const CLOSED_V6: [&str; 2] = ["2001::/32", "2002::/16"];

/// Whether a prefix is as wide as a default route, or a large part of it: what lies in it is the Internet, and no network of a member.
#[must_use]
pub fn is_wide(prefix: &Prefix) -> bool {
    match (prefix.afi(), prefix.address()) {
        (Afi::Ipv4, _) => prefix.len() < 8,
        (_, IpAddr::V6(address)) => prefix.len() < 16 && (prefix.len() < 3 || address.octets()[0] >> 5 == 1),
        _ => false,
    }
}

/// Whether an address may be a host's of the Internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            let is_closed = match a {
                0 | 10 | 127 => true,
                100 => b & 0xc0 == 64,
                168 => address == Ipv4Addr::new(168, 63, 129, 16),
                169 => b == 254,
                172 => b & 0xf0 == 16,
                192 => b == 168 || (b, c) == (0, 0),
                198 => b & 0xfe == 18,
                _ => a >= 224,
            };
            !is_closed
        }
        IpAddr::V6(address) => match address.segments() {
            [0x2001, 0, ..] | [0x2002, ..] => false,
            [first, ..] => first >> 13 == 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    #[test]
    fn wide_prefixes_are_those_of_the_internet() {
        for wide in ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "8.0.0.0/7", "::/0", "::/1", "2000::/3", "2600::/12"] {
            assert!(is_wide(&prefix(wide)), "{wide}");
        }
        for narrow in ["10.0.0.0/8", "192.0.2.0/24", "fc00::/7", "fd00::/8", "2001:db8::/32", "2a00::/16"] {
            assert!(!is_wide(&prefix(narrow)), "{narrow}");
        }
    }

    #[test]
    fn public_addresses_are_those_outside_of_what_is_listed() {
        let within = |all: &[&str], address: IpAddr| {
            all.iter().map(|text| prefix(text)).any(|prefix| {
                prefix.address().is_ipv4() == address.is_ipv4()
                    && Prefix::truncated(address, prefix.len()).as_ref() == Ok(&prefix)
            })
        };
        // The first and last address of each, and their neighbours outside.
        let of_v4 = CLOSED_V4.iter().flat_map(|text| {
            let prefix = prefix(text);
            let IpAddr::V4(first) = prefix.address() else { panic!("{text}") };
            let (first, size) = (u32::from(first), 1u64 << (32 - prefix.len()));
            let last = first.wrapping_add((size - 1) as u32);
            [first.wrapping_sub(1), first, last, last.wrapping_add(1)].map(|address| IpAddr::V4(address.into()))
        });
        for address in of_v4.chain(["8.8.8.8", "203.0.113.1"].map(|text| text.parse().expect("an address"))) {
            assert_eq!(is_public(address), !within(&CLOSED_V4, address), "{address}");
        }
        for text in [
            "::1",
            "fe80::1",
            "fd00::1",
            "2001::1",
            "2001:1::1",
            "2002:a00:1::",
            "2003::1",
            "3fff::1",
            "4000::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ] {
            let address: IpAddr = text.parse().expect("an address");
            assert_eq!(is_public(address), within(&[OPEN_V6], address) && !within(&CLOSED_V6, address), "{address}");
        }
    }
}

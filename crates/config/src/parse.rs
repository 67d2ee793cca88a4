//! Values written as text in a configuration or on the command line, each with a description of its form.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_runtime::identity::{Fingerprint, from_hex, to_hex};

/// A value written as text.
pub trait TextValue: Sized {
    /// A description of the form, for errors.
    const EXPECTED: &'static str;
    fn read(text: &str) -> Option<Self>;
}

/// A [`TextValue`] in a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text<T>(pub T);

impl<'de, T: TextValue> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<T: TextValue> Visitor<'_> for Reader<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
                T::read(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Reader(PhantomData)).map(Text)
    }
}

impl TextValue for SocketAddr {
    const EXPECTED: &'static str = "an address and port, such as \"192.0.2.1:7001\" or \"[2001:db8::1]:7001\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl TextValue for IpAddr {
    const EXPECTED: &'static str = "an IP address, such as \"192.0.2.1\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl TextValue for Ipv4Addr {
    const EXPECTED: &'static str = "an IPv4 address, such as \"192.0.2.1\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl TextValue for Fingerprint {
    const EXPECTED: &'static str = "a fingerprint: \"sha256:\" and 64 hexadecimal digits, from `wayleave keys show`";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A host (name or address) and port to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPort(pub String);

impl TextValue for HostPort {
    const EXPECTED: &'static str = "a host and port, such as \"rs1.example.net:7001\" or \"192.0.2.1:7001\"";
    fn read(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let is_host = !host.is_empty() && !host.contains(char::is_whitespace);
        let is_bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        let port: u16 = port.parse().ok()?;
        (is_host && !is_bare_v6 && port > 0).then(|| Self(text.to_owned()))
    }
}

impl FromStr for HostPort {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| format!("expected {}", Self::EXPECTED))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An Ed25519 public key; in text `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublicKey(pub VerifyingKey);

impl TextValue for PublicKey {
    const EXPECTED: &'static str = "a signing key: \"ed25519:\" and 64 hexadecimal digits, from `wayleave keys show`";
    fn read(text: &str) -> Option<Self> {
        let bytes = from_hex(text.strip_prefix("ed25519:")?)?;
        VerifyingKey::from_bytes(&bytes).ok().map(Self)
    }
}

impl FromStr for PublicKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| format!("expected {}", Self::EXPECTED))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ed25519:{}", to_hex(&self.0.to_bytes()))
    }
}

/// An Ethernet address of one station, not of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetAddress(pub [u8; 6]);

impl TextValue for EthernetAddress {
    const EXPECTED: &'static str = "an Ethernet address of one station, such as \"02:00:5e:10:00:01\"";
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let mut octets = [0; 6];
        for octet in &mut octets {
            let word =
                words.next().filter(|word| word.len() == 2 && word.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
            *octet = u8::from_str_radix(word, 16).ok()?;
        }
        let is_station = octets[0] & 1 == 0 && octets != [0; 6];
        (words.next().is_none() && is_station).then_some(Self(octets))
    }
}

impl fmt::Display for EthernetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_of_a_group_is_refused() {
        let good = EthernetAddress::read("02:00:5E:10:00:ff").expect("an address");
        assert_eq!(good.to_string(), "02:00:5e:10:00:ff");
        for bad in [
            "01:00:5e:00:00:01",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "02:00:5e:10:00",
            "2:0:5e:10:0:1",
            "+2:00:5e:10:00:01",
        ] {
            assert_eq!(EthernetAddress::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn hosts_need_a_port_and_ipv6_needs_brackets() {
        for good in ["rs1.example.net:7001", "192.0.2.1:1", "[2001:db8::1]:7001"] {
            assert!(HostPort::read(good).is_some(), "{good}");
        }
        for bad in ["rs1.example.net", ":7001", "a b:1", "2001:db8::1:7001", "host:0", "host:65536"] {
            assert!(HostPort::read(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_key_of_small_order_is_refused() {
        assert!(PublicKey::read(&format!("ed25519:01{}", "00".repeat(31))).is_none());
        assert!(crate::EXAMPLE_OPERATORS.iter().all(|key| PublicKey::read(key).is_some()));
    }
}

//! Values written as text in a configuration or on the command line, each with a description of its form.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use wayleave_control::advert::Endpoint;
use wayleave_core::IdentityKey;
use wayleave_crypto::sign::VerifyingKey;
use wayleave_runtime::api_tls::KeyPin;
use wayleave_runtime::identity::{Fingerprint, from_hex, to_hex};

use super::kinds::refusal;

/// A value written as text.
pub trait TextValue: Sized {
    /// A description of the form, for errors.
    const EXPECTED: &'static str;
    fn read(text: &str) -> Option<Self>;
}

/// A [`TextValue`] on the command line.
///
/// # Errors
/// What was expected, and what the text is if it is of another kind.
pub fn argument<T: TextValue>(text: &str) -> Result<T, String> {
    T::read(text).ok_or_else(|| refusal(text, T::EXPECTED))
}

/// An address and port on the command line.
///
/// # Errors
/// What is missing, and an example.
pub fn endpoint(text: &str) -> Result<SocketAddr, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse().map_err(|_| match bare.parse() {
        Ok(IpAddr::V4(address)) => format!("the port is missing: expected ADDRESS:PORT, such as {address}:7000"),
        Ok(IpAddr::V6(address)) => format!("the port is missing: expected ADDRESS:PORT, such as [{address}]:7000"),
        Err(_) => {
            "expected ADDRESS:PORT, such as 192.0.2.1:7000 or [2001:db8::1]:7000; names are not looked up".to_owned()
        }
    })
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
                T::read(text).ok_or_else(|| E::custom(refusal(text, T::EXPECTED)))
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

impl TextValue for Ipv6Addr {
    const EXPECTED: &'static str = "an IPv6 address, such as \"2001:db8::1\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl TextValue for Fingerprint {
    const EXPECTED: &'static str = "the fingerprint of a certificate: \"sha256:\" and 64 hexadecimal digits, the line `pin` of `wayleave keys show`";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl TextValue for KeyPin {
    const EXPECTED: &'static str = "the pin of an API's key: \"spki:sha256:\" and 64 hexadecimal digits, the line `api_pin` of `wayleave keys show`";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// SHA-256 of a token of the API; in text `token:sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenHash(pub [u8; 32]);

impl TextValue for TokenHash {
    const EXPECTED: &'static str =
        "the hash of an API token: \"token:sha256:\" and 64 hexadecimal digits, from `wayleave keys token`";
    fn read(text: &str) -> Option<Self> {
        text.strip_prefix("token:sha256:").and_then(from_hex).map(Self)
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token:sha256:{}", to_hex(&self.0))
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

impl TextValue for Endpoint {
    const EXPECTED: &'static str = "an address or name that UDP datagrams can be sent to, and a port, such as \"192.0.2.1:49252\", \"[2001:db8::1]:49252\" or \"node.example.net:49252\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// The public key in a text of one of these kinds (`KIND:ed25519:...`), or without a kind.
fn ed25519(text: &str, kinds: &[&str]) -> Option<VerifyingKey> {
    let key = match text.strip_prefix("ed25519:") {
        Some(key) => key,
        None => kinds.iter().find_map(|kind| text.strip_prefix(kind)?.strip_prefix(":ed25519:"))?,
    };
    VerifyingKey::from_bytes(&from_hex(key)?).ok()
}

/// A type of Ed25519 public keys for one use: what it takes, and how it is printed.
macro_rules! public_keys {
    ($($(#[$doc:meta])* $name:ident [$($kind:literal),+] $expected:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub VerifyingKey);

        impl TextValue for $name {
            const EXPECTED: &'static str = $expected;
            fn read(text: &str) -> Option<Self> {
                ed25519(text, &[$($kind),+]).map(Self)
            }
        }

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                argument(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}:ed25519:{}", [$($kind),+][0], to_hex(&self.0.to_bytes()))
            }
        }
    )+};
}

public_keys! {
    /// The signing key of a key file of `keys new`, as operators and members have one.
    PublicKey ["sign"] "a signing key of `keys new`: \"sign:ed25519:\" and 64 hexadecimal digits, the line `sign` of `wayleave keys show`";
    /// The identity of a node of an overlay, or of a router that reports to a key server.
    NodeKey ["node"] "the identity of a node: \"node:ed25519:\" and 64 hexadecimal digits, from `wayleave keys show`";
    /// A realm's key.
    RealmKey ["realm"] "a realm's key: \"realm:ed25519:\" and 64 hexadecimal digits, from `wayleave realm show`";
    /// The key of the one writer of a provider's records.
    WriterKey ["writer"] "the key of a key server's writer: \"writer:ed25519:\" and 64 hexadecimal digits, from `wayleave keys show`";
    /// Who signs lists of revoked capabilities: the writer, or a key file of `keys new`.
    ListKey ["writer", "sign"] "the key that signs the list, of a key server's writer or of `keys new`: \"writer:ed25519:\" or \"sign:ed25519:\", and 64 hexadecimal digits";
    /// Who signs a node's reports: its identity, or a key file of `keys new`.
    ReportKey ["node", "sign"] "the key that signs a node's reports: \"node:ed25519:\" or \"sign:ed25519:\", and 64 hexadecimal digits";
}

impl NodeKey {
    pub fn identity(&self) -> IdentityKey {
        IdentityKey(self.0.to_bytes())
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
    fn an_address_without_its_port_is_named_with_one() {
        assert_eq!(endpoint("192.0.2.1:7000"), Ok(SocketAddr::from(([192, 0, 2, 1], 7000))));
        for (text, example) in
            [("192.0.2.1", "such as 192.0.2.1:7000"), ("2001:db8::1", "[2001:db8::1]:7000"), ("[::1]", "[::1]:7000")]
        {
            let refused = endpoint(text).expect_err(text);
            assert!(refused.contains("the port is missing") && refused.contains(example), "{refused}");
        }
        for text in ["", "a.example:7000", "192.0.2.1:", "192.0.2.1:70000", "7000"] {
            assert!(endpoint(text).expect_err(text).starts_with("expected ADDRESS:PORT"), "{text}");
        }
    }

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

    #[test]
    fn a_key_of_another_kind_is_refused_and_one_without_a_kind_taken() {
        let [key, _] = crate::EXAMPLE_OPERATORS;
        let bare = key.strip_prefix("sign:").expect("its kind");
        assert_eq!(PublicKey::read(bare), PublicKey::read(key));
        assert!(NodeKey::read(bare).is_some() && NodeKey::read(key).is_none());
        assert!(ListKey::read(key).is_some() && WriterKey::read(key).is_none());
        let named = NodeKey::read(bare).expect("a key").to_string();
        assert_eq!((named.as_str(), PublicKey::read(&named)), (format!("node:{bare}").as_str(), None));
    }
}

//! What the two ends of a link say to each other, beside the ICING packets that it carries: `docs/wire/link.md`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use wayleave_core::wire::{Malformed, Reader};
use wayleave_core::{IdentityKey, UnixTime};

/// The least and the highest version of these messages that are spoken here.
pub const VERSIONS: (u8, u8) = (1, 1);
/// The upper half of the first octet of every message; an ICING packet has its version there (`docs/wire/icing.md`), which is lower.
const MARK: u8 = 0xf0;
/// Octets of a MAC in a handshake.
pub const MAC: usize = 16;
/// Octets of Noise around the payload of an initiation, and of a response.
const NOISE_FIRST: usize = 32 + 48 + 16;
const NOISE_SECOND: usize = 32 + 16;
/// Octets of an initiation's payload, and of a response's.
const OPENING: usize = 32 + 8 + 2;
const CHOICE: usize = 7;
/// Octets of an initiation.
pub const INITIATION: usize = 8 + NOISE_FIRST + OPENING + 2 * MAC;
/// Octets of a response.
pub const RESPONSE: usize = 8 + NOISE_SECOND + CHOICE;
/// Octets of a cookie's nonce, and of the sealed cookie.
pub const NONCE: usize = 16;
pub const SEALED_COOKIE: usize = MAC + wayleave_crypto::seal::OVERHEAD;
/// Octets of a cookie's message: fewer than those of what asked for it.
pub const COOKIE: usize = 8 + NONCE + SEALED_COOKIE;
/// Octets of a sealed message in front of what is sealed, and of its tag.
pub const SEALED: usize = 16;
const TAG: usize = 16;
/// Octets of what every sealed message says, without padding.
pub const CONTENT: usize = 28;
/// Octets of a sealed message without padding. No message is shorter, so that no answer is longer than what it answers.
pub const LEAST: usize = SEALED + CONTENT + TAG;

const _: () = assert!(COOKIE < INITIATION && RESPONSE < INITIATION);

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Begins a session; `from` is the number by which its sender will know it. `proven` is what the first MAC covers.
    Initiation { from: u32, noise: &'a [u8], proven: &'a [u8], mac: &'a [u8; MAC], cookie: &'a [u8; MAC] },
    /// Answers the initiation with the number `to`; its sender's own number is sealed in it.
    Response { to: u32, noise: &'a [u8] },
    /// What the initiator with the number `to` needs to be listened to.
    Cookie { to: u32, nonce: &'a [u8; NONCE], sealed: &'a [u8] },
    /// Sealed in the session that its receiver knows by the number `to`.
    Sealed { to: u32, number: u64, sealed: &'a [u8] },
}

/// Whether a datagram is a message of a link, and no packet that the link carries. By an empty one a port says that the connection ended
/// by which what it has from there came.
#[must_use]
pub fn is_message(octets: &[u8]) -> bool {
    octets.first().is_none_or(|first| first & 0xf0 == MARK)
}

/// Whether a datagram begins a handshake, and so what is said to an address.
#[must_use]
pub fn is_initiation(octets: &[u8]) -> bool {
    octets.first() == Some(&0xf1)
}

/// Whether a datagram goes only to who has proved himself: it belongs to no handshake, which strangers may begin as well.
#[must_use]
pub fn is_for_proven(octets: &[u8]) -> bool {
    !matches!(octets.first(), None | Some(0xf1..=0xf3))
}

impl<'a> Message<'a> {
    /// Decodes all of `octets`; `None` if they are no message.
    #[must_use]
    pub fn decode(octets: &'a [u8]) -> Option<Self> {
        let (&[kind, 0, 0, 0], rest) = octets.split_first_chunk::<4>()? else { return None };
        let (first, behind) = rest.split_first_chunk::<4>()?;
        let first = u32::from_be_bytes(*first);
        match kind {
            0xf1 if octets.len() == INITIATION => {
                let (rest, cookie) = octets.split_last_chunk::<MAC>()?;
                let (proven, mac) = rest.split_last_chunk::<MAC>()?;
                Some(Self::Initiation { from: first, noise: proven.get(8..)?, proven, mac, cookie })
            }
            0xf2 if octets.len() == RESPONSE => Some(Self::Response { to: first, noise: behind }),
            0xf3 if octets.len() == COOKIE => {
                let (nonce, sealed) = behind.split_first_chunk()?;
                Some(Self::Cookie { to: first, nonce, sealed })
            }
            0xf4 if octets.len() >= LEAST => {
                let (number, sealed) = behind.split_first_chunk()?;
                Some(Self::Sealed { to: first, number: u64::from_be_bytes(*number), sealed })
            }
            _ => None,
        }
    }
}

fn head(kind: u8, first: u32, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length);
    out.extend([MARK | kind, 0, 0, 0]);
    out.extend(first.to_be_bytes());
    out
}

/// What stands in front of the Noise message of an initiation. It is part of the prologue, so that nobody changes the number.
#[must_use]
pub fn initiation_head(from: u32) -> Vec<u8> {
    head(1, from, INITIATION)
}

/// An initiation without its MACs.
#[must_use]
pub fn initiation(from: u32, noise: &[u8]) -> Vec<u8> {
    let mut out = initiation_head(from);
    out.extend(noise);
    out
}

/// A response.
#[must_use]
pub fn response(to: u32, noise: &[u8]) -> Vec<u8> {
    let mut out = head(2, to, RESPONSE);
    out.extend(noise);
    out
}

/// A cookie's message.
#[must_use]
pub fn cookie(to: u32, nonce: &[u8; NONCE], sealed: &[u8]) -> Vec<u8> {
    let mut out = head(3, to, COOKIE);
    out.extend(nonce);
    out.extend(sealed);
    out
}

/// What stands in front of what is sealed.
#[must_use]
pub fn sealed(to: u32, number: u64, length: usize) -> Vec<u8> {
    let mut out = head(4, to, SEALED + length);
    out.extend(number.to_be_bytes());
    out
}

/// What the first Noise message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Who sends it.
    pub identity: IdentityKey,
    /// When it was made: microseconds of Unix time.
    pub made: u64,
    /// The least and the highest version that its sender speaks.
    pub versions: (u8, u8),
}

impl Opening {
    /// The octets.
    #[must_use]
    pub fn encode(&self) -> [u8; OPENING] {
        let mut out = [0; OPENING];
        out[..32].copy_from_slice(&self.identity.0);
        out[32..40].copy_from_slice(&self.made.to_be_bytes());
        (out[40], out[41]) = self.versions;
        out
    }

    /// # Errors
    /// If the octets are not an opening.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(octets);
        let (identity, made) = (from.identity()?, from.u64()?);
        let versions = (from.u8()?, from.u8()?);
        from.end()?;
        Ok(Self { identity, made, versions })
    }
}

/// What the second Noise message says: the version that is spoken from here on, or none, what its sender speaks, and the number by which it
/// knows the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    pub chosen: Option<u8>,
    pub versions: (u8, u8),
    pub number: u32,
}

impl Choice {
    /// The highest version that both speak.
    #[must_use]
    pub fn of(theirs: (u8, u8), number: u32) -> Self {
        let highest = theirs.1.min(VERSIONS.1);
        let chosen = (highest >= theirs.0.max(VERSIONS.0)).then_some(highest);
        Self { chosen, versions: VERSIONS, number }
    }

    /// The octets.
    #[must_use]
    pub fn encode(&self) -> [u8; CHOICE] {
        let [a, b, c, d] = self.number.to_be_bytes();
        [self.chosen.unwrap_or(0), self.versions.0, self.versions.1, a, b, c, d]
    }

    /// `None` if the octets are not a choice.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Option<Self> {
        let &[chosen, least, highest, a, b, c, d] = octets else { return None };
        let number = u32::from_be_bytes([a, b, c, d]);
        Some(Self { chosen: (chosen != 0).then_some(chosen), versions: (least, highest), number })
    }
}

/// What is sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Is to be answered. `sent`: the packets that its sender has sent over the link.
    Ping { number: u32, sent: u64 },
    /// Answers a ping of `size` octets. `received`: the packets that its sender had received over the link by then.
    Pong { number: u32, received: u64, size: u16 },
    /// Whoever receives this at an address shows it from that address.
    Challenge { token: u64 },
    /// Shows the challenge.
    Shown { token: u64 },
    /// The session ends.
    Close,
    /// Where its receiver is, as its sender sees it. An end that does not know it drops it.
    Seen { address: SocketAddr },
}

impl Content {
    /// The octets in front of any padding, with the time at the sender: [`CONTENT`], and 8 more of what is seen.
    #[must_use]
    pub fn encode(&self, time: UnixTime) -> Vec<u8> {
        let (kind, number, large, size) = match *self {
            Self::Ping { number, sent } => (1, number, sent, 0),
            Self::Pong { number, received, size } => (2, number, received, size),
            Self::Challenge { token } => (3, 0, token, 0),
            Self::Shown { token } => (4, 0, token, 0),
            Self::Close => (5, 0, 0, 0),
            Self::Seen { address } => (6, address.port().into(), halves(address.ip()).0, 0),
        };
        let mut out = vec![0; CONTENT];
        out[0] = kind;
        out[4..8].copy_from_slice(&number.to_be_bytes());
        out[8..16].copy_from_slice(&large.to_be_bytes());
        out[16..18].copy_from_slice(&size.to_be_bytes());
        out[20..28].copy_from_slice(&time.0.to_be_bytes());
        if let Self::Seen { address } = *self {
            out.extend(halves(address.ip()).1.to_be_bytes());
        }
        out
    }

    /// Decodes what is in front of the padding, whose octets do not matter, and the time at the sender; `None` if that is nothing that is
    /// sealed.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Option<(Self, UnixTime)> {
        let (content, behind) = octets.split_first_chunk::<CONTENT>()?;
        let mut from = Reader::new(content);
        let (kind, zero) = (from.u8().ok()?, from.array::<3>().ok()?);
        let (number, large, size) = (from.u32().ok()?, from.u64().ok()?, from.u16().ok()?);
        if zero != [0; 3] || from.u16().ok()? != 0 {
            return None;
        }
        let content = match (kind, number, large, size) {
            (1, number, sent, 0) => Self::Ping { number, sent },
            (2, number, received, size) => Self::Pong { number, received, size },
            (3, 0, token, 0) => Self::Challenge { token },
            (4, 0, token, 0) => Self::Shown { token },
            (5, 0, 0, 0) => Self::Close,
            (6, port, upper, 0) => {
                let lower = Reader::new(behind).u64().ok()?;
                let ip = Ipv6Addr::from_bits(u128::from(upper) << 64 | u128::from(lower)).to_canonical();
                Self::Seen { address: SocketAddr::new(ip, u16::try_from(port).ok()?) }
            }
            _ => return None,
        };
        Some((content, UnixTime(from.u64().ok()?)))
    }
}

/// The halves of an address; one of IPv4 as IPv6 maps it (RFC 4291 section 2.5.5.2).
fn halves(ip: IpAddr) -> (u64, u64) {
    let bits = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    ((bits >> 64) as u64, bits as u64) // its halves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let contents = [
            Content::Ping { number: 7, sent: 1 << 40 },
            Content::Pong { number: 7, received: 1 << 41, size: 1_400 },
            Content::Challenge { token: u64::MAX },
            Content::Shown { token: 3 },
            Content::Close,
            Content::Seen { address: "192.0.2.1:7".parse().unwrap() },
            Content::Seen { address: "[2001:db8::1]:65535".parse().unwrap() },
        ];
        for content in contents {
            let time = UnixTime(1 << 50);
            let octets = content.encode(time);
            assert_eq!(Content::decode(&octets), Some((content, time)));
            assert_eq!(Content::decode(&[&octets[..], &[1, 2, 3]].concat()), Some((content, time)), "padding");
            assert_eq!(Content::decode(&octets[..CONTENT - 1]), None);
            for reserved in [1, 2, 3, 18, 19] {
                let mut other = octets.clone();
                other[reserved] = 1;
                assert_eq!(Content::decode(&other), None, "octet {reserved}");
            }
        }
        let opening = Opening { identity: IdentityKey([3; 32]), made: 9, versions: (1, 4) };
        assert_eq!(Opening::decode(&opening.encode()), Ok(opening));
        let choice = Choice { chosen: None, versions: (1, 2), number: 0x0102_0304 };
        assert_eq!(Choice::decode(&choice.encode()), Some(choice));
        for length in 0..2 * INITIATION {
            for kind in 0..=255u8 {
                let mut octets = vec![0xaa; length];
                if let Some(head) = octets.first_chunk_mut::<4>() {
                    *head = [kind, 0, 0, 0];
                }
                let expected = match kind {
                    0xf1 => length == INITIATION,
                    0xf2 => length == RESPONSE,
                    0xf3 => length == COOKIE,
                    0xf4 => length >= LEAST,
                    _ => false,
                };
                assert_eq!(Message::decode(&octets).is_some(), expected, "kind {kind}, {length} octets");
                assert!(!expected || is_message(&octets));
            }
        }
    }

    #[test]
    fn the_highest_common_version_is_chosen_or_none() {
        let (least, highest) = VERSIONS;
        assert_eq!(Choice::of((least, highest), 1).chosen, Some(highest));
        assert_eq!(Choice::of((0, highest + 9), 1).chosen, Some(highest));
        assert_eq!(Choice::of((highest + 1, highest + 9), 1).chosen, None);
        assert_eq!(Choice::of((5, 0), 1).chosen, None, "no versions at all");
    }
}

//! What two gateways send each other inside ICING packets: `docs/wire/gateway.md`.

use wayleave_core::IdentityKey;
pub use wayleave_packet::icing::header::SEALED;
use wayleave_packet::icing::header::{HANDLE, Handle, MAX_NODES, MIN_NODES};

/// Octets in front of what is sealed.
pub const DATA: usize = 16;
/// Octets in front of the first message of a handshake.
const INITIATION: usize = 8;
/// Octets in front of the second one.
const RESPONSE: usize = 12;

/// A message, with what Noise made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Begins a session; `from` is the number by which its sender will know it.
    Initiation { from: u32, noise: &'a [u8] },
    /// Answers the initiation with the number `to`.
    Response { to: u32, from: u32, noise: &'a [u8] },
    /// Sealed in the session that its receiver knows by the number `to`.
    Data { to: u32, number: u64, sealed: &'a [u8] },
}

impl<'a> Message<'a> {
    /// Decodes all of `octets`; `None` if they are no message.
    #[must_use]
    pub fn decode(octets: &'a [u8]) -> Option<Self> {
        let (&[kind, 0, 0, 0], rest) = octets.split_first_chunk::<4>()? else { return None };
        let (first, behind) = rest.split_first_chunk::<4>()?;
        let first = u32::from_be_bytes(*first);
        match kind {
            1 => Some(Self::Initiation { from: first, noise: behind }),
            2 => {
                let (from, noise) = behind.split_first_chunk()?;
                Some(Self::Response { to: first, from: u32::from_be_bytes(*from), noise })
            }
            3 => {
                let (number, sealed) = behind.split_first_chunk()?;
                Some(Self::Data { to: first, number: u64::from_be_bytes(*number), sealed })
            }
            _ => None,
        }
    }

    /// The octets of an initiation.
    #[must_use]
    pub fn initiation(from: u32, noise: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(INITIATION + noise.len());
        out.extend([1, 0, 0, 0]);
        out.extend(from.to_be_bytes());
        out.extend(noise);
        out
    }

    /// The octets of a response.
    #[must_use]
    pub fn response(to: u32, from: u32, noise: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(RESPONSE + noise.len());
        out.extend([2, 0, 0, 0]);
        out.extend(to.to_be_bytes());
        out.extend(from.to_be_bytes());
        out.extend(noise);
        out
    }

    /// The octets in front of what is sealed.
    #[must_use]
    pub fn data(to: u32, number: u64) -> [u8; DATA] {
        let mut out = [0; DATA];
        out[0] = 3;
        out[4..8].copy_from_slice(&to.to_be_bytes());
        out[8..].copy_from_slice(&number.to_be_bytes());
        out
    }
}

/// The nodes of the path on which its sender sends, the sender first. Its receiver may answer over the same nodes, if its own
/// policy allows that.
pub type Hint = Vec<IdentityKey>;

/// What the first message of a handshake says: when it was made, in microseconds of Unix time, and on which path it comes.
#[must_use]
pub fn opening(micros: u64, nodes: &[IdentityKey]) -> Vec<u8> {
    let mut out = micros.to_be_bytes().to_vec();
    write_nodes(nodes, &mut out);
    out
}

/// Reads [`opening`].
#[must_use]
pub fn read_opening(octets: &[u8]) -> Option<(u64, Hint)> {
    let (micros, rest) = octets.split_first_chunk()?;
    Some((u64::from_be_bytes(*micros), read_nodes(rest)?))
}

/// What is sealed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// An IP packet.
    Packet(&'a [u8]),
    /// Is to be answered: `number` on this path, after `sent` data packets. `padding` octets of zero follow.
    Probe { number: u32, sent: u64, nodes: Hint, padding: usize },
    /// The probe `number` came on the path of `handle`, which the nodes `held` (a bit each) hold, after `received` data packets.
    Answer { number: u32, held: u16, received: u64, handle: Handle },
}

impl<'a> Content<'a> {
    /// Decodes all of `octets`; `None` if they are nothing that is sealed.
    #[must_use]
    pub fn decode(octets: &'a [u8]) -> Option<Self> {
        match *octets {
            [first, ..] if matches!(first >> 4, 4 | 6) => Some(Self::Packet(octets)),
            [1, 0, 0, 0, ref rest @ ..] => {
                let (number, rest) = rest.split_first_chunk()?;
                let (sent, rest) = rest.split_first_chunk()?;
                let length = 1 + 32 * usize::from(*rest.first()?);
                let (nodes, padding) = rest.split_at_checked(length)?;
                let is_padding = padding.iter().all(|octet| *octet == 0);
                let (number, sent) = (u32::from_be_bytes(*number), u64::from_be_bytes(*sent));
                is_padding.then_some(Self::Probe { number, sent, nodes: read_nodes(nodes)?, padding: padding.len() })
            }
            [2, 0, high, low, ref rest @ ..] => {
                let held = u16::from_be_bytes([high, low]);
                let (number, rest) = rest.split_first_chunk()?;
                let (received, rest) = rest.split_first_chunk()?;
                let handle = Handle(<[u8; HANDLE]>::try_from(rest).ok()?);
                let (number, received) = (u32::from_be_bytes(*number), u64::from_be_bytes(*received));
                Some(Self::Answer { number, held, received, handle })
            }
            _ => None,
        }
    }

    /// The octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Packet(octets) => octets.to_vec(),
            Self::Probe { number, sent, nodes, padding } => {
                let mut out = vec![1, 0, 0, 0];
                out.extend(number.to_be_bytes());
                out.extend(sent.to_be_bytes());
                write_nodes(nodes, &mut out);
                out.resize(out.len() + padding, 0);
                out
            }
            Self::Answer { number, held, received, handle } => {
                let mut out = vec![2, 0];
                out.extend(held.to_be_bytes());
                out.extend(number.to_be_bytes());
                out.extend(received.to_be_bytes());
                out.extend(handle.0);
                out
            }
        }
    }
}

fn write_nodes(nodes: &[IdentityKey], out: &mut Vec<u8>) {
    out.push(nodes.len() as u8); // at most 16
    nodes.iter().for_each(|node| out.extend(node.0));
}

fn read_nodes(octets: &[u8]) -> Option<Hint> {
    let (count, rest) = octets.split_first()?;
    let (nodes, []) = rest.as_chunks::<32>() else { return None };
    let is_right = nodes.len() == usize::from(*count) && (MIN_NODES..=MAX_NODES).contains(&nodes.len());
    is_right.then(|| nodes.iter().map(|node| IdentityKey(*node)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_contents_are_read_as_they_were_written_and_cut_ones_are_not() {
        let nodes: Hint = (1..=3).map(|node| IdentityKey([node; 32])).collect();
        let contents = [
            Content::Packet(&[0x45, 0, 0, 1]),
            Content::Probe { number: 7, sent: 1 << 40, nodes: nodes.clone(), padding: 0 },
            Content::Answer { number: 7, held: 0b110, received: 1 << 41, handle: Handle([9; 16]) },
        ];
        for content in &contents {
            let octets = content.encode();
            assert_eq!(Content::decode(&octets).as_ref(), Some(content));
            if !matches!(content, Content::Packet(_)) {
                assert!((0..octets.len()).all(|length| Content::decode(&octets[..length]).is_none()));
            }
        }
        let padded = Content::Probe { number: 7, sent: 8, nodes: nodes.clone(), padding: 40 };
        let mut octets = padded.encode();
        assert_eq!(Content::decode(&octets), Some(padded));
        octets.extend([1]);
        assert_eq!(Content::decode(&octets), None, "padding is zero");
        assert_eq!(Content::decode(&[0x30, 0, 0, 0]), None);
        let data = [&Message::data(5, 6)[..], b"sealed"].concat();
        for (octets, message) in [
            (Message::initiation(5, b"noise"), Message::Initiation { from: 5, noise: b"noise" }),
            (Message::response(5, 6, b"noise"), Message::Response { to: 5, from: 6, noise: b"noise" }),
            (data, Message::Data { to: 5, number: 6, sealed: b"sealed" }),
        ] {
            assert_eq!(Message::decode(&octets), Some(message));
            assert!((0..8).all(|length| Message::decode(&octets[..length]).is_none()));
        }
        assert_eq!(read_opening(&opening(99, &nodes)), Some((99, nodes)));
    }

    #[test]
    fn a_list_of_nodes_has_as_many_as_it_says_and_no_more_than_a_path() {
        for count in [0, 1, 2, 16, 17] {
            let nodes: Hint = (0..count).map(|node| IdentityKey([node; 32])).collect();
            let read = read_opening(&opening(1, &nodes));
            assert_eq!(read.is_some(), (2..=16).contains(&count), "{count}");
        }
    }
}

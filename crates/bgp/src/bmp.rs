//! The BGP monitoring protocol (BMP, RFC 7854) with Adj-RIB-Out (RFC 8671) and Loc-RIB (RFC 9069): what a station hears of a
//! monitored router. A station never answers.
//!
//! [`BmpReader`] takes the octets of one connection, in any pieces, and gives messages. UPDATEs within are decoded with the
//! parameters that their peer's Peer Up shows, so that path identifiers and two-octet AS numbers are read as they were sent.
//! [`Monitor`] is the other end: it gives the octets that a station is sent of one session.

mod encode;
mod monitor;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use monitor::{Ends, Monitor};
use wayleave_core::{Afi, Asn};

use crate::message::{Frame, MessageType, frame};
use crate::{AddPath, AddPathMode, MessageError, Open, SessionParams, Update, wire};

/// Octets of the longest message that is taken: a Route Monitoring message has one UPDATE, a Peer Up message two OPENs and text.
pub const MAX_MESSAGE: usize = 1 << 18;
/// Peers of one router, of all its tables, at most: our own limit.
pub const MAX_PEERS: usize = 4096;
/// Octets of text of a router that are kept.
const MAX_TEXT: usize = 256;

/// The only version (RFC 7854 section 4.1).
const VERSION: u8 = 3;
const COMMON_HEADER: usize = 6;

/// Which table of a peer's a message is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Table {
    /// What the peer sent, before (`false`) or after the router's import policy (RFC 7854).
    AdjRibIn { post_policy: bool },
    /// What the router sends it, before or after its export policy (RFC 8671).
    AdjRibOut { post_policy: bool },
    /// The router's own choice (RFC 9069).
    LocRib,
}

/// A peer of the monitored router, as the header before each message names it (RFC 7854 section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    pub table: Table,
    pub distinguisher: u64,
    pub address: IpAddr,
    pub asn: Asn,
    pub identifier: Ipv4Addr,
    /// The router writes two-octet AS numbers in this peer's UPDATEs (flag A).
    pub two_octet_as: bool,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BmpMessage {
    /// Type 4: what the router says of itself, `sysName` (RFC 7854 section 4.3).
    Initiation { name: String },
    /// Type 5.
    Termination,
    /// Type 3. Its `table` means nothing but whether it is the Loc-RIB (RFC 8671 section 5.1).
    PeerUp(Peer),
    /// Type 2: all routes of the peer are gone, in both directions. As for `table`, see there.
    PeerDown(Peer),
    /// Type 0: an UPDATE after RFC 7606. End-of-RIB marks the end of what the router had when the connection began.
    Routes(Peer, Box<Update>),
    /// Type 0 with an UPDATE that would end a BGP session: the routes in it are not known.
    UnreadableUpdate(Peer),
    /// Statistics, mirrored messages, and types that are not known.
    Other(u8),
}

/// Why nothing more can be read from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BmpError {
    #[error("BMP version {0}, expected 3 (RFC 7854)")]
    Version(u8),
    #[error("a BMP message of {0} octets, expected 6 to {MAX_MESSAGE}")]
    Length(u32),
    #[error("a malformed BMP message of type {0}")]
    Malformed(u8),
    #[error("more than {MAX_PEERS} peers of one router")]
    TooManyPeers,
}

/// What Peer Up and Peer Down are about: a peer's session, whichever of its tables are monitored.
type SessionKey = (bool, u64, IpAddr);

/// Where a session has path identifiers (RFC 7911), as its two OPENs say.
#[derive(Clone, Copy, Debug, Default)]
struct PathIds {
    received: AddPath,
    sent: AddPath,
}

impl Peer {
    fn session(&self) -> SessionKey {
        (self.table == Table::LocRib, self.distinguisher, self.address)
    }
}

/// Reads the messages of one connection. It holds at most one message that is not whole, and the parameters of [`MAX_PEERS`] peers.
#[derive(Debug, Default)]
pub struct BmpReader {
    octets: Vec<u8>,
    /// Where in `octets` the next message begins.
    at: usize,
    sessions: HashMap<SessionKey, PathIds>,
    failed: Option<BmpError>,
}

impl BmpReader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes octets from the router, in order, cut anywhere. [`Self::next_message`] is to be called until it gives nothing.
    pub fn push(&mut self, octets: &[u8]) {
        if self.failed.is_none() {
            self.octets.drain(..self.at);
            self.at = 0;
            self.octets.extend_from_slice(octets);
        }
    }

    /// The next message; `None` until more octets come.
    ///
    /// # Errors
    /// The router does not speak BMP, or erred: nothing more is read.
    pub fn next_message(&mut self) -> Result<Option<BmpMessage>, BmpError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let read = self.read();
        if let Err(error) = read {
            (self.failed, self.octets, self.at) = (Some(error), Vec::new(), 0);
        }
        read
    }

    fn read(&mut self) -> Result<Option<BmpMessage>, BmpError> {
        let rest = &self.octets[self.at..];
        let Some((&version, behind)) = rest.split_first() else { return Ok(None) };
        if version != VERSION {
            return Err(BmpError::Version(version));
        }
        let Some((length, behind)) = wire::u32(behind) else { return Ok(None) };
        let whole = usize::try_from(length).unwrap_or(usize::MAX);
        if !(COMMON_HEADER..=MAX_MESSAGE).contains(&whole) {
            return Err(BmpError::Length(length));
        }
        let Some(&kind) = behind.first() else { return Ok(None) };
        let Some(message) = rest.get(..whole) else { return Ok(None) };
        let body = message[COMMON_HEADER..].to_vec();
        self.at += whole;
        self.message(kind, &body).map(Some)
    }

    fn message(&mut self, kind: u8, body: &[u8]) -> Result<BmpMessage, BmpError> {
        let malformed = BmpError::Malformed(kind);
        match kind {
            0 => {
                let (peer, update) = peer_header(body).ok_or(malformed)?;
                let path_ids = self.sessions.get(&peer.session()).copied().unwrap_or_default();
                let mut params = params_without_open(&peer);
                params.add_path_receive = match peer.table {
                    Table::AdjRibOut { .. } => path_ids.sent,
                    Table::AdjRibIn { .. } | Table::LocRib => path_ids.received,
                };
                Ok(routes(peer, update, &params))
            }
            2 => {
                let (peer, _reason) = peer_header(body).ok_or(malformed)?;
                self.sessions.remove(&peer.session());
                Ok(BmpMessage::PeerDown(peer))
            }
            3 => {
                let (peer, rest) = peer_header(body).ok_or(malformed)?;
                let path_ids = peer_up(&peer, rest).ok_or(malformed)?;
                if self.sessions.len() >= MAX_PEERS && !self.sessions.contains_key(&peer.session()) {
                    return Err(BmpError::TooManyPeers);
                }
                self.sessions.insert(peer.session(), path_ids);
                Ok(BmpMessage::PeerUp(peer))
            }
            4 => Ok(BmpMessage::Initiation { name: system_name(body).ok_or(malformed)? }),
            5 => Ok(BmpMessage::Termination),
            other => Ok(BmpMessage::Other(other)),
        }
    }
}

fn routes(peer: Peer, octets: &[u8], params: &SessionParams) -> BmpMessage {
    // The length of the message in the router's own session is not known here (RFC 8654).
    let update = match frame(octets, params) {
        Ok((frame @ Frame { kind: MessageType::Update, .. }, [])) => Update::decode(frame.body(), params),
        Ok(_) => return BmpMessage::UnreadableUpdate(peer),
        Err(error) => Err(error),
    };
    match update {
        Ok(update) => BmpMessage::Routes(peer, Box::new(update)),
        Err(MessageError::Incomplete { .. } | MessageError::Peer(_)) => BmpMessage::UnreadableUpdate(peer),
    }
}

/// The header before the messages of a peer (RFC 7854 section 4.2), and what follows.
fn peer_header(body: &[u8]) -> Option<(Peer, &[u8])> {
    const HEADER: usize = 42;
    /// Flags V, L, A, O (RFC 7854 section 4.2, RFC 8671 section 4).
    const IS_IPV6: u8 = 0x80;
    const IS_POST_POLICY: u8 = 0x40;
    const HAS_TWO_OCTET_AS: u8 = 0x20;
    const IS_OUT: u8 = 0x10;
    const LOC_RIB: u8 = 3;
    let (header, rest) = body.split_at_checked(HEADER)?;
    let (kind, flags) = (header[0], header[1]);
    let distinguisher = u64::from_be_bytes(*header[2..].first_chunk()?);
    let address = <[u8; 16]>::try_from(&header[10..26]).ok()?;
    let (asn, after) = wire::u32(&header[26..])?;
    let (identifier, _time) = wire::u32(after)?;
    let post_policy = flags & IS_POST_POLICY != 0;
    let is_loc_rib = kind == LOC_RIB;
    let table = match flags & IS_OUT != 0 {
        // Its only flag is another one (RFC 9069 section 4.2).
        _ if is_loc_rib => Table::LocRib,
        true => Table::AdjRibOut { post_policy },
        false => Table::AdjRibIn { post_policy },
    };
    let address = if !is_loc_rib && flags & IS_IPV6 != 0 {
        IpAddr::V6(Ipv6Addr::from(address))
    } else {
        IpAddr::V4(Ipv4Addr::from(*address.last_chunk::<4>()?))
    };
    let peer = Peer {
        table,
        distinguisher,
        address,
        asn: Asn(asn),
        identifier: Ipv4Addr::from(identifier),
        two_octet_as: !is_loc_rib && flags & HAS_TWO_OCTET_AS != 0,
    };
    Some((peer, rest))
}

/// Where a session has path identifiers, from its OPENs (RFC 7854 section 4.10).
fn peer_up(peer: &Peer, rest: &[u8]) -> Option<PathIds> {
    const ADDRESS_AND_PORTS: usize = 20;
    let (_, rest) = rest.split_at_checked(ADDRESS_AND_PORTS)?;
    let any = params_without_open(peer);
    let (sent, rest) = frame(rest, &any).ok()?;
    let (received, _information) = frame(rest, &any).ok()?;
    if sent.kind != MessageType::Open || received.kind != MessageType::Open {
        return None;
    }
    let (ours, theirs) = (Open::decode(sent.body()).ok()?, Open::decode(received.body()).ok()?);
    let both = |from: &Open, to: &Open| {
        let agreed = |afi| {
            let sends = matches!(from.add_path(afi), Some(AddPathMode::Send | AddPathMode::Both));
            sends && matches!(to.add_path(afi), Some(AddPathMode::Receive | AddPathMode::Both))
        };
        AddPath { ipv4: agreed(Afi::Ipv4), ipv6: agreed(Afi::Ipv6) }
    };
    Some(PathIds { received: both(&theirs, &ours), sent: both(&ours, &theirs) })
}

/// Both families, the longest messages: what the router agreed with its peer it has checked itself.
fn params_without_open(peer: &Peer) -> SessionParams {
    let mut params = SessionParams::new(Asn(0), peer.asn);
    params.external = peer.table != Table::LocRib;
    params.four_octet_as = !peer.two_octet_as;
    params.extended_message = true;
    params
}

/// The information of type 2 in an Initiation message (RFC 7854 section 4.4).
fn system_name(body: &[u8]) -> Option<String> {
    const SYS_NAME: u16 = 2;
    let (mut rest, mut name) = (body, String::new());
    while !rest.is_empty() {
        let (kind, after) = wire::u16(rest)?;
        let (value, after) = wire::field_u16(after).ok()?;
        if kind == SYS_NAME {
            name = String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect();
        }
        rest = after;
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddPathEntry, Attributes, Capability, Nlri, Origin, UpdateBuilder, end_of_rib};

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut octets = vec![3];
        octets.extend_from_slice(&(body.len() as u32 + 6).to_be_bytes());
        octets.push(kind);
        octets.extend_from_slice(body);
        octets
    }

    /// The header of 192.0.2.1, AS70000, with these flags.
    fn header(flags: u8) -> Vec<u8> {
        let mut octets = vec![0, flags];
        octets.extend_from_slice(&[0; 8]);
        octets.extend_from_slice(&[0; 12]);
        octets.extend_from_slice(&[192, 0, 2, 1]);
        octets.extend_from_slice(&70_000u32.to_be_bytes());
        octets.extend_from_slice(&[10, 0, 0, 1]);
        octets.extend_from_slice(&[0; 8]);
        octets
    }

    fn open(mode: AddPathMode) -> Vec<u8> {
        let open = Open {
            asn: Asn(70_000),
            hold_time: 90,
            identifier: Ipv4Addr::new(10, 0, 0, 1),
            capabilities: vec![
                Capability::FourOctetAs(Asn(70_000)),
                Capability::unicast(Afi::Ipv4),
                Capability::AddPath(vec![AddPathEntry { afi: 1, safi: 1, mode }]),
            ],
        };
        crate::Message::Open(open).encode(&SessionParams::new(Asn(1), Asn(2))).expect("short")
    }

    fn peer_up(flags: u8) -> Vec<u8> {
        let body = [
            header(flags),
            vec![0; 20],
            open(AddPathMode::Receive),
            open(AddPathMode::Send),
            vec![0, 0, 0, 2, b'h', b'i'],
        ];
        message(3, &body.concat())
    }

    fn update(path_ids: bool) -> Vec<u8> {
        let mut attributes = Attributes::builder();
        attributes.origin(Origin::Igp).ipv4_next_hop([192, 0, 2, 1].into());
        attributes.as_path(crate::AsPathBuf::from_sequence(&[Asn(70_000)]).as_path());
        let mut params = SessionParams::new(Asn(1), Asn(2));
        params.add_path_send.ipv4 = path_ids;
        let prefix = "203.0.113.0/24".parse().expect("a prefix");
        let path_id = if path_ids { 7 } else { 0 };
        let mut builder = UpdateBuilder::new();
        builder.announce(Nlri { path_id, prefix }).attributes(attributes.finish());
        builder.encode(&params).expect("short").concat()
    }

    fn all(octets: &[u8], piece: usize) -> Result<Vec<BmpMessage>, BmpError> {
        let (mut reader, mut messages) = (BmpReader::new(), Vec::new());
        for piece in octets.chunks(piece) {
            reader.push(piece);
            while let Some(message) = reader.next_message()? {
                messages.push(message);
            }
        }
        Ok(messages)
    }

    #[test]
    fn a_connection_is_read_in_any_pieces() {
        let name = message(4, &[0, 1, 0, 1, b'x', 0, 2, 0, 3, b'r', b's', b'1']);
        let monitoring = |flags, body: Vec<u8>| message(0, &[header(flags), body].concat());
        let octets = [
            name,
            peer_up(0),
            monitoring(0, update(true)),
            monitoring(0, end_of_rib(Afi::Ipv4)),
            message(1, &header(0)),
            message(2, &[header(0), vec![1]].concat()),
            message(5, &[]),
        ]
        .concat();
        for piece in [1, 7, 4096] {
            let messages = all(&octets, piece).expect("sound");
            assert_eq!(messages.len(), 7);
            assert_eq!(messages[0], BmpMessage::Initiation { name: "rs1".to_owned() });
            let BmpMessage::Routes(peer, update) = &messages[2] else { panic!("{messages:?}") };
            assert_eq!((peer.address, peer.asn), (IpAddr::from([192, 0, 2, 1]), Asn(70_000)));
            assert_eq!(peer.table, Table::AdjRibIn { post_policy: false });
            assert_eq!((update.announced.len(), update.announced[0].path_id), (1, 7), "ADD-PATH of the two OPENs");
            let BmpMessage::Routes(_, update) = &messages[3] else { panic!("{messages:?}") };
            assert_eq!(update.end_of_rib, Some(Afi::Ipv4));
            assert_eq!(&messages[4..], [BmpMessage::Other(1), BmpMessage::PeerDown(*peer), BmpMessage::Termination]);
        }
    }

    #[test]
    fn each_table_of_a_peer_has_its_own_path_identifiers() {
        // What the router sends: its own OPEN offers to receive only.
        let out = [peer_up(0), message(0, &[header(0x50), update(false)].concat())].concat();
        let messages = all(&out, 4096).expect("sound");
        let BmpMessage::Routes(peer, update) = &messages[1] else { panic!("{messages:?}") };
        assert_eq!(peer.table, Table::AdjRibOut { post_policy: true });
        assert_eq!(update.announced[0].path_id, 0);
        let mut loc = header(0x80);
        loc[0] = 3;
        let messages = all(&message(2, &loc), 4096).expect("sound");
        assert!(matches!(messages[..], [BmpMessage::PeerDown(Peer { table: Table::LocRib, .. })]));
    }

    #[test]
    fn what_is_no_bmp_ends_the_connection_and_a_bad_update_does_not() {
        assert_eq!(all(&[0xff; 19], 19), Err(BmpError::Version(0xff)));
        assert_eq!(all(&[3, 0, 0, 0, 5, 0], 6), Err(BmpError::Length(5)));
        assert_eq!(all(&[3, 0x7f, 0, 0, 0, 0], 6), Err(BmpError::Length(0x7f00_0000)));
        assert_eq!(all(&message(0, &[0; 41]), 64), Err(BmpError::Malformed(0)));
        assert_eq!(all(&message(3, &header(0)), 64), Err(BmpError::Malformed(3)));
        assert_eq!(all(&message(4, &[0, 2, 0, 9]), 64), Err(BmpError::Malformed(4)));
        let bad = [message(0, &[header(0), vec![0xff; 19]].concat()), message(5, &[])].concat();
        let messages = all(&bad, 64).expect("the next one is read");
        assert!(matches!(messages[..], [BmpMessage::UnreadableUpdate(_), BmpMessage::Termination]), "{messages:?}");
        let mut reader = BmpReader::new();
        reader.push(&[9]);
        assert!(reader.next_message().is_err());
        reader.push(&message(5, &[]));
        assert!(reader.next_message().is_err(), "nothing more is read");
    }

    #[test]
    fn what_frr_sends_of_three_members_is_read() {
        let stream = include_bytes!("../../../test-data/bgp/frr-8.4.4.bmp");
        let messages = all(stream, 100).expect("sound");
        assert_eq!(messages[0], BmpMessage::Initiation { name: "rs".to_owned() });
        let up = messages.iter().filter(|message| matches!(message, BmpMessage::PeerUp(_))).count();
        assert_eq!(up, 3);
        let mut routes = Vec::new();
        for message in &messages {
            let BmpMessage::Routes(peer, update) = message else { continue };
            let Some(attributes) = &update.attributes else { continue };
            assert_eq!(peer.table, Table::AdjRibIn { post_policy: false });
            assert_eq!(attributes.ipv4_next_hop().map(IpAddr::from), Some(peer.address));
            let path = attributes.as_path().to_string();
            routes.extend(update.announced.iter().map(|nlri| format!("{} {path}", nlri.prefix)));
        }
        routes.sort();
        assert_eq!(
            routes,
            [
                "20.1.0.0/16 64501",
                "20.2.0.0/16 64501",
                "20.2.0.0/16 64502 64502",
                "20.3.0.0/25 64501",
                "20.4.0.0/16 64502",
                "20.5.0.0/16 64501",
                "20.5.0.0/16 64502",
                "20.6.0.0/16 64503",
            ]
        );
    }
}

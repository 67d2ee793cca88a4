//! MRT dumps (RFC 6396): BGP messages and RIB entries with their raw octets, as they were recorded; and RIB dumps of our own.

mod write;

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::{Afi, Asn, Prefix, UnixTime};
pub use write::{DumpedBy, DumpedPeer, DumpedRoute, write_rib};

use crate::check::{self, CodeSet};
use crate::{
    Action, AttributeCode, AttributeFlags, AttributeIter, Attributes, AttributesError, Ipv6NextHop, NlriIter, Problem,
    RawAttribute, SessionParams, wire,
};

/// A BGP message that a collector recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedMessage {
    /// When it was recorded.
    pub time: UnixTime,
    /// The peer of the collector.
    pub peer_asn: Asn,
    /// The collector.
    pub local_asn: Asn,
    pub peer_address: IpAddr,
    /// The session used four-octet AS numbers.
    pub four_octet_as: bool,
    /// The session had path identifiers (RFC 8050).
    pub add_path: bool,
    /// The collector sent the message, it did not receive it.
    pub sent: bool,
    /// The whole BGP message, header included.
    pub octets: Vec<u8>,
}

impl RecordedMessage {
    /// The session as far as the record describes it; messages may have up to 65,535 octets.
    #[must_use]
    pub fn params(&self) -> SessionParams {
        let mut params = SessionParams::new(self.local_asn, self.peer_asn);
        params.four_octet_as = self.four_octet_as;
        params.extended_message = true;
        params.add_path_receive.ipv4 = self.add_path;
        params.add_path_receive.ipv6 = self.add_path;
        params.add_path_send = params.add_path_receive;
        params
    }
}

/// One route of a RIB dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RibEntry {
    pub prefix: Prefix,
    /// The path identifier (RFC 8050), or 0.
    pub path_id: u32,
    /// The AS of the peer that announced it.
    pub peer_asn: Asn,
    pub peer_address: IpAddr,
    /// When it was announced.
    pub originated: UnixTime,
    /// Raw attributes with four-octet AS numbers; MP_REACH_NLRI is abbreviated to its next hop (RFC 6396
    /// section 4.3.4).
    pub attributes: Vec<u8>,
}

impl RibEntry {
    /// The attributes of the route after RFC 7606; an error where it demands treat-as-withdraw.
    pub fn to_attributes(&self) -> Result<Attributes, AttributesError> {
        let params = SessionParams::new(Asn(0), Asn(0));
        let mut octets = Vec::with_capacity(self.attributes.len());
        let mut next_hop = None;
        let mut seen = CodeSet::default();
        for attribute in AttributeIter::new(&self.attributes) {
            let withdraw = |attribute, fault| {
                AttributesError::Fault(Problem { attribute, fault, action: Action::TreatAsWithdraw })
            };
            let attribute = with_defined_flags(attribute.map_err(|fault| withdraw(None, fault))?);
            if !seen.insert(attribute.code) {
                continue;
            }
            match (attribute.code, check::attribute(&attribute, &params)) {
                (AttributeCode::MP_REACH_NLRI, _) => {
                    next_hop = Some(rib_next_hop(attribute.value).ok_or(AttributesError::NextHop)?);
                }
                (AttributeCode::MP_UNREACH_NLRI, _) | (_, Some((_, Action::DiscardAttribute))) => {}
                (code, Some((fault, _))) => return Err(withdraw(Some(code), fault)),
                (_, None) => attribute.encode(&mut octets),
            }
        }
        Attributes::from_octets(&octets, next_hop)
    }
}

/// The attribute with the Optional and Transitive bits of its definition: BIRD 2.0 dumps those that it keeps without them, such as
/// NEXT_HOP.
fn with_defined_flags(attribute: RawAttribute<'_>) -> RawAttribute<'_> {
    const KIND: u8 = AttributeFlags::OPTIONAL | AttributeFlags::TRANSITIVE;
    let Some(defined) = check::defined_flags(attribute.code) else { return attribute };
    RawAttribute { flags: AttributeFlags(attribute.flags.0 & !KIND | defined), ..attribute }
}

/// The next hop alone behind its length, or a whole MP_REACH_NLRI as some collectors write it.
fn rib_next_hop(value: &[u8]) -> Option<Ipv6NextHop> {
    let behind_length = |value: &[u8]| {
        let (&length, rest) = value.split_first()?;
        Ipv6NextHop::from_octets(rest.get(..usize::from(length))?)
    };
    match value {
        [0, 2, _, rest @ ..] => behind_length(rest),
        value => behind_length(value),
    }
}

/// What a dump contains, in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A BGP message.
    Message(RecordedMessage),
    /// The routes of one prefix.
    Rib(Vec<RibEntry>),
    /// A record that this reader does not use (its MRT type and subtype), such as a table of peers.
    Other(u16, u16),
}

/// Why a dump cannot be read on, or a record not be used.
#[derive(Debug, thiserror::Error)]
pub enum MrtError {
    /// The octets end within a record (`UnexpectedEof`), a record claims more than [`MAX_RECORD`] octets
    /// (`InvalidData`), or the source failed. Nothing more is read.
    #[error("MRT record cannot be read, the rest of the file is ignored: {0}")]
    Frame(#[source] io::Error),
    /// A record's body contradicts its type; the next record may be sound.
    #[error("MRT record of type {kind} subtype {subtype} is malformed")]
    Body { kind: u16, subtype: u16 },
}

/// Octets of a record's body that are read at most. Collectors write tables of peers of some 100 KiB.
pub const MAX_RECORD: u32 = 16 << 20;

/// MRT types (RFC 6396 section 4).
const TABLE_DUMP_V2: u16 = 13;
const BGP4MP: u16 = 16;
const BGP4MP_ET: u16 = 17;

/// The MRT common header (RFC 6396 section 2) and, in an `_ET` record, the microseconds behind it (section 3).
struct CommonHeader {
    time: UnixTime,
    kind: u16,
    subtype: u16,
}

/// Reads a record's header and body; `None` where the source ends between two records.
fn read_record(source: &mut impl Read) -> io::Result<Option<(CommonHeader, Vec<u8>)>> {
    let mut header = Vec::with_capacity(12);
    source.by_ref().take(12).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(None);
    }
    let octets: [u8; 12] = header.try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?;
    let word = |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
    let (seconds, kind, subtype, length) = (word(0), (word(4) >> 16) as u16, word(4) as u16, word(8));
    if length > MAX_RECORD {
        let message = format!("a record of {length} octets, more than {MAX_RECORD}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut body = Vec::new();
    source.take(u64::from(length)).read_to_end(&mut body)?;
    if body.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut time = UnixTime(u64::from(seconds) * 1_000_000);
    if kind == BGP4MP_ET {
        let (micros, _) = wire::u32(&body).ok_or(io::ErrorKind::UnexpectedEof)?;
        time.0 += u64::from(micros);
        body.drain(..4);
    }
    Ok(Some((CommonHeader { time, kind, subtype }, body)))
}

/// A peer of a RIB dump.
#[derive(Clone, Copy, Debug)]
struct Peer {
    asn: Asn,
    address: IpAddr,
}

/// Reads records one by one. At most one record, of at most 16 MiB, and the table of at most 65,535 peers is held.
#[derive(Debug)]
pub struct MrtReader<R> {
    source: Option<R>,
    peers: Vec<Peer>,
}

impl<R: Read> MrtReader<R> {
    /// Over uncompressed octets; a buffered source is much faster.
    pub fn new(source: R) -> Self {
        Self { source: Some(source), peers: Vec::new() }
    }

    fn read(&mut self, header: &CommonHeader, body: &[u8]) -> Option<Record> {
        let CommonHeader { time, kind, subtype } = *header;
        match kind {
            BGP4MP | BGP4MP_ET => match Envelope::of(subtype) {
                Some(envelope) => envelope.decode(time, body).map(Record::Message),
                None => Some(Record::Other(kind, subtype)),
            },
            TABLE_DUMP_V2 => match subtype {
                1 => {
                    self.peers = peer_index_table(body)?;
                    Some(Record::Other(kind, subtype))
                }
                2 => self.rib(body, Afi::Ipv4, false),
                4 => self.rib(body, Afi::Ipv6, false),
                8 => self.rib(body, Afi::Ipv4, true),
                10 => self.rib(body, Afi::Ipv6, true),
                _ => Some(Record::Other(kind, subtype)),
            },
            _ => Some(Record::Other(kind, subtype)),
        }
    }

    /// RFC 6396 section 4.3.2, RFC 8050 section 4.
    fn rib(&self, body: &[u8], afi: Afi, add_path: bool) -> Option<Record> {
        let (_sequence, rest) = wire::u32(body)?;
        let prefix_len = 1 + usize::from(*rest.first()?).div_ceil(8);
        let (prefix, rest) = rest.split_at_checked(prefix_len)?;
        let prefix = NlriIter::new(prefix, afi, false).next()?.ok()?.to_nlri(afi)?.prefix;
        let (count, mut rest) = wire::u16(rest)?;
        // An entry takes at least eight octets, which bounds the count before anything is allocated.
        let mut entries = Vec::with_capacity(usize::from(count).min(rest.len() / 8));
        for _ in 0..count {
            let (peer, after) = wire::u16(rest)?;
            let (originated, after) = wire::u32(after)?;
            let (path_id, after) = if add_path { wire::u32(after)? } else { (0, after) };
            let (attributes, after) = wire::field_u16(after).ok()?;
            let peer = self.peers.get(usize::from(peer))?;
            entries.push(RibEntry {
                prefix,
                path_id,
                peer_asn: peer.asn,
                peer_address: peer.address,
                originated: UnixTime(u64::from(originated) * 1_000_000),
                attributes: attributes.to_vec(),
            });
            rest = after;
        }
        Some(Record::Rib(entries))
    }
}

impl<R: Read> Iterator for MrtReader<R> {
    type Item = Result<Record, MrtError>;

    fn next(&mut self) -> Option<Self::Item> {
        let source = self.source.as_mut()?;
        match read_record(source) {
            Ok(Some((header, body))) => {
                let (kind, subtype) = (header.kind, header.subtype);
                Some(self.read(&header, &body).ok_or(MrtError::Body { kind, subtype }))
            }
            Ok(None) => None,
            Err(error) => {
                self.source = None;
                Some(Err(MrtError::Frame(error)))
            }
        }
    }
}

/// The BGP messages of a dump; other records and unusable ones are passed over.
pub fn messages<R: Read>(source: R) -> impl Iterator<Item = RecordedMessage> {
    MrtReader::new(source).filter_map(|record| match record {
        Ok(Record::Message(message)) => Some(message),
        _ => None,
    })
}

/// The variants of BGP4MP that wrap a message (RFC 6396 section 4.4, RFC 8050 section 3).
struct Envelope {
    four_octet_as: bool,
    add_path: bool,
    sent: bool,
}

impl Envelope {
    fn of(subtype: u16) -> Option<Self> {
        let (four_octet_as, add_path, sent) = match subtype {
            1 => (false, false, false),
            4 => (true, false, false),
            6 => (false, false, true),
            7 => (true, false, true),
            8 => (false, true, false),
            9 => (true, true, false),
            10 => (false, true, true),
            11 => (true, true, true),
            _ => return None,
        };
        Some(Self { four_octet_as, add_path, sent })
    }

    fn decode(&self, time: UnixTime, body: &[u8]) -> Option<RecordedMessage> {
        let (peer_asn, rest) = self.asn(body)?;
        let (local_asn, rest) = self.asn(rest)?;
        let (_interface, rest) = wire::u16(rest)?;
        let (afi, rest) = wire::u16(rest)?;
        let (peer_address, rest) = address(afi == 2, rest)?;
        let (_local_address, octets) = address(afi == 2, rest)?;
        Some(RecordedMessage {
            time,
            peer_asn,
            local_asn,
            peer_address,
            four_octet_as: self.four_octet_as,
            add_path: self.add_path,
            sent: self.sent,
            octets: octets.to_vec(),
        })
    }

    fn asn<'a>(&self, octets: &'a [u8]) -> Option<(Asn, &'a [u8])> {
        if self.four_octet_as {
            wire::u32(octets).map(|(asn, rest)| (Asn(asn), rest))
        } else {
            wire::u16(octets).map(|(asn, rest)| (Asn(u32::from(asn)), rest))
        }
    }
}

fn address(is_ipv6: bool, octets: &[u8]) -> Option<(IpAddr, &[u8])> {
    if is_ipv6 {
        let (address, rest) = octets.split_first_chunk::<16>()?;
        Some((Ipv6Addr::from(*address).into(), rest))
    } else {
        let (address, rest) = octets.split_first_chunk::<4>()?;
        Some((Ipv4Addr::from(*address).into(), rest))
    }
}

/// RFC 6396 section 4.3.1.
fn peer_index_table(body: &[u8]) -> Option<Vec<Peer>> {
    let (_collector, rest) = wire::u32(body)?;
    let (_view_name, rest) = wire::field_u16(rest).ok()?;
    let (count, mut rest) = wire::u16(rest)?;
    // A peer takes at least eleven octets.
    let mut peers = Vec::with_capacity(usize::from(count).min(rest.len() / 11));
    for _ in 0..count {
        let (&kind, after) = rest.split_first()?;
        let (_identifier, after) = wire::u32(after)?;
        let (address, after) = address(kind & 0x01 != 0, after)?;
        let (asn, after) = match kind & 0x02 {
            0 => wire::u16(after).map(|(asn, rest)| (u32::from(asn), rest))?,
            _ => wire::u32(after)?,
        };
        peers.push(Peer { asn: Asn(asn), address });
        rest = after;
    }
    Some(peers)
}

/// Uncompresses a dump by its first octets: gzip, bzip2, or not compressed.
///
/// The result may be read to its end without a bound: wrap it in [`Read::take`] where the source is not trusted.
pub fn decompress<'a>(mut source: impl Read + 'a) -> std::io::Result<Box<dyn Read + 'a>> {
    let mut magic = Vec::with_capacity(3);
    source.by_ref().take(3).read_to_end(&mut magic)?;
    let is_gzip = magic.starts_with(&[0x1f, 0x8b]);
    let is_bzip2 = magic.starts_with(b"BZh");
    let whole = std::io::Cursor::new(magic).chain(source);
    Ok(if is_gzip {
        Box::new(flate2::read::MultiGzDecoder::new(whole))
    } else if is_bzip2 {
        Box::new(bzip2::read::MultiBzDecoder::new(whole))
    } else {
        Box::new(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of `kind` and `subtype` at second 5.
    fn record(kind: u16, subtype: u16, body: &[u8]) -> Vec<u8> {
        let mut octets = vec![0, 0, 0, 5];
        octets.extend_from_slice(&kind.to_be_bytes());
        octets.extend_from_slice(&subtype.to_be_bytes());
        octets.extend_from_slice(&(body.len() as u32).to_be_bytes());
        octets.extend_from_slice(body);
        octets
    }

    #[test]
    fn a_message_comes_with_its_peer_and_its_octets() {
        let mut body = vec![0, 1, 0x11, 0x70, 0, 0, 0xfb, 0xf0, 0, 0, 0, 1, 192, 0, 2, 1, 192, 0, 2, 2];
        body.extend_from_slice(&[1, 2, 3]);
        let octets = record(16, 4, &body);
        let [message] = &messages(&octets[..]).collect::<Vec<_>>()[..] else { panic!("one message") };
        assert_eq!(
            (message.time, message.peer_asn, message.local_asn),
            (UnixTime(5_000_000), Asn(70_000), Asn(64_496))
        );
        assert_eq!(message.peer_address, IpAddr::from([192, 0, 2, 1]));
        assert_eq!(message.octets, [1, 2, 3]);
        assert!(message.four_octet_as && !message.add_path && !message.sent);
    }

    #[test]
    fn a_rib_entry_comes_with_its_peer_and_its_next_hop() {
        let mut peers = vec![0, 0, 0, 1, 0, 0, 0, 1];
        peers.extend_from_slice(&[2, 10, 0, 0, 1, 192, 0, 2, 1, 0, 1, 0x11, 0x70]);
        let mut rib = vec![0, 0, 0, 0, 32, 0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 9, 0, 24];
        rib.extend_from_slice(&[0x40, 1, 1, 0, 0x80, 14, 17, 16]);
        rib.extend_from_slice(&Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets());
        let octets = [record(13, 1, &peers), record(13, 4, &rib)].concat();
        let records: Vec<_> = MrtReader::new(&octets[..]).map(Result::unwrap).collect();
        let [Record::Other(13, 1), Record::Rib(entries)] = &records[..] else { panic!("{records:?}") };
        assert_eq!(entries[0].prefix, "2001:db8::/32".parse().unwrap());
        assert_eq!(entries[0].peer_asn, Asn(70_000));
        let attributes = entries[0].to_attributes().unwrap();
        assert_eq!(attributes.ipv6_next_hop().unwrap().global, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
        assert_eq!(attributes.as_octets(), [0x40, 1, 1, 0]);
    }

    #[test]
    fn microseconds_of_an_extended_timestamp_are_kept() {
        let mut body = vec![0, 0, 0, 7, 0xfb, 0xf1, 0xfb, 0xf0, 0, 0, 0, 1, 192, 0, 2, 1, 192, 0, 2, 2];
        body.extend_from_slice(&[1, 2, 3]);
        let octets = record(17, 1, &body);
        let [message] = &messages(&octets[..]).collect::<Vec<_>>()[..] else { panic!("one message") };
        assert_eq!((message.time, message.peer_asn), (UnixTime(5_000_007), Asn(64_497)));
        assert_eq!(message.octets, [1, 2, 3]);
    }

    #[test]
    fn a_record_that_claims_too_many_octets_is_refused_unread() {
        let mut octets = record(16, 4, &[]);
        octets[8..].copy_from_slice(&(MAX_RECORD + 1).to_be_bytes());
        let records: Vec<_> = MrtReader::new(&octets[..]).collect();
        let [Err(MrtError::Frame(error))] = &records[..] else { panic!("{records:?}") };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_malformed_body_does_not_end_the_reading_but_a_truncated_record_does() {
        let good = record(16, 4, &[0; 20]);
        let octets = [record(16, 4, &[0; 3]), good.clone(), good[..20].to_vec()].concat();
        let records: Vec<_> = MrtReader::new(&octets[..]).collect();
        assert!(matches!(
            records[..],
            [Err(MrtError::Body { kind: 16, subtype: 4 }), Ok(Record::Message(_)), Err(MrtError::Frame(_))]
        ));
    }

    #[test]
    fn a_dump_of_bird_has_every_peers_route_with_its_next_hop() {
        let dump = include_bytes!("../../../test-data/bgp/bird-2.0.12.rib.mrt");
        let mut entries = Vec::new();
        for record in MrtReader::new(&dump[..]) {
            if let Record::Rib(rib) = record.expect("sound") {
                entries.extend(rib);
            }
        }
        let routes: Vec<String> = entries
            .iter()
            .map(|entry| {
                let attributes = entry.to_attributes().expect("usable");
                let (path, next_hop) = (attributes.as_path().to_string(), attributes.ipv4_next_hop().expect("one"));
                assert_eq!(IpAddr::from(next_hop), entry.peer_address);
                format!("{} {path}", entry.prefix)
            })
            .collect();
        assert_eq!(
            routes,
            [
                "20.2.0.0/16 64501",
                "20.2.0.0/16 64502 64502",
                "20.5.0.0/16 64501",
                "20.5.0.0/16 64502",
                "20.3.0.0/25 64501",
                "20.6.0.0/16 64503",
                "20.4.0.0/16 64502",
                "20.1.0.0/16 64501",
            ]
        );
    }
}

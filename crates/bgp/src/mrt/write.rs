//! Writes routes as a RIB dump (TABLE_DUMP_V2, RFC 6396 section 4.3, RFC 8050 section 4), which [`super::MrtReader`] and others read.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Afi, Asn, Prefix, UnixTime};

use super::TABLE_DUMP_V2;
use crate::{AttributeCode, AttributeFlags, Attributes, RawAttribute};

/// Subtypes (RFC 6396 section 4.3, RFC 8050 section 4).
const PEER_INDEX_TABLE: u16 = 1;
const RIB_IPV4_UNICAST: u16 = 2;
const RIB_IPV6_UNICAST: u16 = 4;
const RIB_IPV4_UNICAST_ADDPATH: u16 = 8;
const RIB_IPV6_UNICAST_ADDPATH: u16 = 10;

/// A peer of whom a dump has routes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DumpedPeer {
    pub asn: Asn,
    pub address: IpAddr,
    /// 0.0.0.0 if it is not known.
    pub identifier: Ipv4Addr,
}

/// A route of a dump.
#[derive(Clone, Debug)]
pub struct DumpedRoute {
    /// The path identifier (RFC 7911), or 0.
    pub path_id: u32,
    /// Whose it is.
    pub peer: DumpedPeer,
    pub originated: UnixTime,
    pub attributes: Attributes,
}

/// What a dump says of itself.
#[derive(Clone, Copy, Debug)]
pub struct DumpedBy<'a> {
    /// The BGP identifier of whoever writes it.
    pub collector: Ipv4Addr,
    /// The name of the table; cut to what its field holds.
    pub view: &'a str,
    pub time: UnixTime,
}

/// Writes the peers, then the routes of each prefix in their order. Returns how many routes were left out, since the format has no room:
/// of more than 65,535 peers, or of one prefix, and attributes of more octets than a length has.
///
/// # Errors
/// What `out` says.
pub fn write_rib(
    by: &DumpedBy<'_>,
    prefixes: &[(Prefix, Vec<DumpedRoute>)],
    out: &mut impl Write,
) -> io::Result<usize> {
    let peers = PeerTable::of(prefixes.iter().flat_map(|(_, routes)| routes));
    write_record(by.time, PEER_INDEX_TABLE, &peers.body(by), out)?;
    let mut left_out = 0;
    let mut sequence = 0u32;
    for (prefix, routes) in prefixes {
        let has_path_ids = routes.iter().any(|route| route.path_id != 0);
        let entries: Vec<Vec<u8>> =
            routes.iter().filter_map(|route| entry(route, prefix.afi(), has_path_ids, &peers)).collect();
        let written = entries.len().min(usize::from(u16::MAX));
        left_out += routes.len() - written;
        if written > 0 {
            let body = rib(sequence, prefix, &entries[..written]);
            write_record(by.time, subtype(prefix.afi(), has_path_ids), &body, out)?;
            sequence = sequence.wrapping_add(1); // RFC 6396 section 4.3.2
        }
    }
    Ok(left_out)
}

/// The peers in the order of their numbers.
#[derive(Default)]
struct PeerTable {
    peers: Vec<DumpedPeer>,
    numbers: HashMap<DumpedPeer, u16>,
}

impl PeerTable {
    fn of<'a>(routes: impl Iterator<Item = &'a DumpedRoute>) -> Self {
        let mut table = Self::default();
        for route in routes.filter(|route| route.attributes.as_octets().len() <= usize::from(u16::MAX)) {
            // The count is of two octets too, so that the last number is not used.
            let next = u16::try_from(table.peers.len()).ok().filter(|next| *next < u16::MAX);
            if let Some(next) = next.filter(|_| !table.numbers.contains_key(&route.peer)) {
                table.numbers.insert(route.peer, next);
                table.peers.push(route.peer);
            }
        }
        table
    }

    /// RFC 6396 section 4.3.1.
    fn body(&self, by: &DumpedBy<'_>) -> Vec<u8> {
        const IS_IPV6: u8 = 0x01;
        const HAS_FOUR_OCTET_AS: u8 = 0x02;
        let mut body = by.collector.octets().to_vec();
        let view = &by.view.as_bytes()[..by.view.floor_char_boundary(usize::from(u16::MAX))];
        put_u16_length(&mut body, view.len());
        body.extend_from_slice(view);
        put_u16_length(&mut body, self.peers.len());
        for peer in &self.peers {
            body.push(HAS_FOUR_OCTET_AS | if peer.address.is_ipv6() { IS_IPV6 } else { 0 });
            body.extend_from_slice(&peer.identifier.octets());
            match peer.address {
                IpAddr::V4(address) => body.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => body.extend_from_slice(&address.octets()),
            }
            body.extend_from_slice(&peer.asn.0.to_be_bytes());
        }
        body
    }
}

/// RFC 6396 section 4.3.4; `None` if the format has no room for it.
fn entry(route: &DumpedRoute, afi: Afi, has_path_ids: bool, peers: &PeerTable) -> Option<Vec<u8>> {
    let attributes = attributes(&route.attributes, afi);
    let length = u16::try_from(attributes.len()).ok()?;
    let mut octets = peers.numbers.get(&route.peer)?.to_be_bytes().to_vec();
    octets.extend_from_slice(&seconds(route.originated).to_be_bytes());
    if has_path_ids {
        octets.extend_from_slice(&route.path_id.to_be_bytes());
    }
    octets.extend_from_slice(&length.to_be_bytes());
    octets.extend_from_slice(&attributes);
    Some(octets)
}

/// The attributes of a route of this family: MP_REACH_NLRI is abbreviated to its next hop, and an IPv6 route has no NEXT_HOP.
fn attributes(attributes: &Attributes, afi: Afi) -> Vec<u8> {
    let mut octets = Vec::new();
    let is_of_family = |attribute: &RawAttribute<'_>| afi == Afi::Ipv4 || attribute.code != AttributeCode::NEXT_HOP;
    attributes.iter().filter(is_of_family).for_each(|attribute| attribute.encode(&mut octets));
    if let Some(next_hop) = attributes.ipv6_next_hop().filter(|_| afi == Afi::Ipv6) {
        let next_hop = next_hop.octets();
        let length = u8::try_from(next_hop.len()).expect("16 or 32 octets");
        let value = [&[length], &next_hop[..]].concat();
        let flags = AttributeFlags::OPTIONAL_NON_TRANSITIVE;
        RawAttribute { flags, code: AttributeCode::MP_REACH_NLRI, value: &value }.encode(&mut octets);
    }
    octets
}

/// RFC 6396 section 4.3.2.
fn rib(sequence: u32, prefix: &Prefix, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = sequence.to_be_bytes().to_vec();
    body.push(prefix.len());
    body.extend_from_slice(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)]);
    put_u16_length(&mut body, entries.len());
    entries.iter().for_each(|entry| body.extend_from_slice(entry));
    body
}

fn subtype(afi: Afi, has_path_ids: bool) -> u16 {
    match (afi, has_path_ids) {
        (Afi::Ipv4, false) => RIB_IPV4_UNICAST,
        (Afi::Ipv6, false) => RIB_IPV6_UNICAST,
        (Afi::Ipv4, true) => RIB_IPV4_UNICAST_ADDPATH,
        (Afi::Ipv6, true) => RIB_IPV6_UNICAST_ADDPATH,
    }
}

/// The common header (RFC 6396 section 2) and the body.
fn write_record(time: UnixTime, subtype: u16, body: &[u8], out: &mut impl Write) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    out.write_all(&seconds(time).to_be_bytes())?;
    out.write_all(&TABLE_DUMP_V2.to_be_bytes())?;
    out.write_all(&subtype.to_be_bytes())?;
    out.write_all(&length.to_be_bytes())?;
    out.write_all(body)
}

/// Until 2106.
fn seconds(time: UnixTime) -> u32 {
    u32::try_from(time.secs()).unwrap_or(u32::MAX)
}

/// A count of what was cut to two octets of it.
fn put_u16_length(body: &mut Vec<u8>, length: usize) {
    let length = u16::try_from(length).expect("the caller cut it");
    body.extend_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::mrt::{MrtReader, Record, RibEntry};
    use crate::{AsPathBuf, Ipv6NextHop, Origin};

    const BY: DumpedBy<'_> =
        DumpedBy { collector: Ipv4Addr::new(192, 0, 2, 101), view: "a", time: UnixTime(5_000_000) };

    fn peer(last: u8) -> DumpedPeer {
        let address = [192, 0, 2, last].into();
        DumpedPeer { asn: Asn(70_000), address, identifier: Ipv4Addr::new(10, 0, 0, last) }
    }

    fn ipv4(path_id: u32, last: u8) -> DumpedRoute {
        let mut attributes = Attributes::builder();
        attributes.origin(Origin::Igp).ipv4_next_hop([192, 0, 2, last].into());
        attributes.as_path(AsPathBuf::from_sequence(&[Asn(70_000)]).as_path());
        let attributes = attributes.finish();
        DumpedRoute { path_id, peer: peer(last), originated: UnixTime(6_000_000), attributes }
    }

    fn ipv6() -> DumpedRoute {
        let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        let next_hop = Ipv6NextHop::from_octets(&global.octets()).expect("16 octets");
        let attributes = Attributes::from_octets(&[0x40, 1, 1, 0], Some(next_hop)).expect("sound");
        let peer = DumpedPeer { address: global.into(), ..peer(1) };
        DumpedRoute { path_id: 0, peer, originated: UnixTime(6_000_000), attributes }
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    fn written(prefixes: &[(Prefix, Vec<DumpedRoute>)]) -> Vec<u8> {
        let mut octets = Vec::new();
        assert_eq!(write_rib(&BY, prefixes, &mut octets).expect("a Vec takes all"), 0);
        octets
    }

    #[test]
    fn a_dump_has_the_octets_of_rfc_6396() {
        let route = DumpedRoute {
            attributes: Attributes::from_octets(&[0x40, 1, 1, 0, 0x40, 3, 4, 192, 0, 2, 1], None).expect("sound"),
            ..ipv4(0, 1)
        };
        let octets = written(&[(prefix("203.0.112.0/23"), vec![route])]);
        let mut expected = vec![0, 0, 0, 5, 0, 13, 0, 1, 0, 0, 0, 22]; // PEER_INDEX_TABLE
        expected.extend_from_slice(&[192, 0, 2, 101, 0, 1, b'a', 0, 1]);
        expected.extend_from_slice(&[2, 10, 0, 0, 1, 192, 0, 2, 1, 0, 1, 0x11, 0x70]);
        expected.extend_from_slice(&[0, 0, 0, 5, 0, 13, 0, 2, 0, 0, 0, 29]); // RIB_IPV4_UNICAST
        expected.extend_from_slice(&[0, 0, 0, 0, 23, 203, 0, 112, 0, 1]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 6, 0, 11]);
        expected.extend_from_slice(&[0x40, 1, 1, 0, 0x40, 3, 4, 192, 0, 2, 1]);
        assert_eq!(octets, expected);
    }

    #[test]
    fn what_is_written_is_read_with_its_peers_path_identifiers_and_next_hops() {
        let prefixes = [
            (prefix("203.0.113.0/24"), vec![ipv4(0, 1)]),
            (prefix("198.51.100.0/24"), vec![ipv4(1, 1), ipv4(2, 2)]),
            (prefix("2001:db8::/32"), vec![ipv6()]),
            (prefix("0.0.0.0/0"), vec![ipv4(0, 2)]),
        ];
        let octets = written(&prefixes);
        let records: Vec<Record> = MrtReader::new(&octets[..]).map(|record| record.expect("sound")).collect();
        assert_eq!((records.len(), &records[0]), (5, &Record::Other(13, 1)));
        let read: Vec<RibEntry> = records
            .into_iter()
            .filter_map(|record| match record {
                Record::Rib(entries) => Some(entries),
                _ => None,
            })
            .flatten()
            .collect();
        let all: Vec<(Prefix, &DumpedRoute)> =
            prefixes.iter().flat_map(|(prefix, routes)| routes.iter().map(|route| (*prefix, route))).collect();
        assert_eq!(read.len(), all.len());
        for (entry, (prefix, route)) in read.iter().zip(all) {
            assert_eq!((entry.prefix, entry.path_id), (prefix, route.path_id));
            assert_eq!((entry.peer_asn, entry.peer_address), (route.peer.asn, route.peer.address));
            assert_eq!(entry.originated, route.originated);
            assert_eq!(entry.to_attributes().expect("sound"), route.attributes, "{prefix}");
        }
    }
}

//! MRT dumps (RFC 6396): BGP messages and RIB entries with their raw octets.

use std::io::Read;
use std::net::IpAddr;

use wayleave_core::{Asn, Prefix, UnixTime};

/// A BGP message that a collector recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedMessage {
    /// When it was recorded.
    pub time: UnixTime,
    /// The peer of the collector.
    pub peer_asn: Asn,
    /// The collector.
    pub local_asn: Asn,
    /// The peer's address.
    pub peer_address: IpAddr,
    /// The session spoke four-octet AS numbers.
    pub four_octet_as: bool,
    /// The session had path identifiers (RFC 8050).
    pub add_path: bool,
    /// The whole BGP message, header included.
    pub octets: Vec<u8>,
}

/// One route of a RIB dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RibEntry {
    /// The prefix.
    pub prefix: Prefix,
    /// The path identifier (RFC 8050), or 0.
    pub path_id: u32,
    /// The AS of the peer that announced it.
    pub peer_asn: Asn,
    /// That peer's address.
    pub peer_address: IpAddr,
    /// When it was announced.
    pub originated: UnixTime,
    /// Raw attributes with four-octet AS numbers; MP_REACH_NLRI is abbreviated to its next hop (RFC 6396
    /// section 4.3.4).
    pub attributes: Vec<u8>,
}

/// What a dump contains, in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A BGP message.
    Message(RecordedMessage),
    /// The routes of one prefix.
    Rib(Vec<RibEntry>),
    /// A record that this reader does not use: its MRT type and subtype.
    Skipped(u16, u16),
}

/// Why a dump cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum MrtError {
    /// The octets end within a record, or its header is no MRT header.
    #[error("MRT record is malformed: {0}")]
    Malformed(&'static str),
    /// The source of the octets failed.
    #[error("MRT dump cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads records one by one.
#[derive(Debug)]
pub struct MrtReader<R> {
    source: R,
}

impl<R: Read> MrtReader<R> {
    /// Over uncompressed octets.
    pub fn new(source: R) -> Self {
        Self { source }
    }
}

impl<R: Read> Iterator for MrtReader<R> {
    type Item = Result<Record, MrtError>;

    fn next(&mut self) -> Option<Self::Item> {
        let _ = &mut self.source;
        todo!()
    }
}

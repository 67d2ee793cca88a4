//! The SCION header: common header, addresses and path. [`Header`] decodes all of it, [`Layout`] only what a router reads.

mod address;
mod extension;
mod path;
pub mod scmp;

use thiserror::Error;

pub use address::{HostAddress, IsdAs, ParseIsdAsError, Service};
pub use extension::{Extension, ExtensionError, Extensions};
pub use path::{HopField, InfoField, MAX_HOPS, OneHopPath, Path, PathError, PathMeta, Position, StandardPath};

use path::{HOP_LEN, INFO_LEN, META_LEN};

/// Where the fields of the common and address headers lie, in octets.
pub(crate) mod field {
    use std::ops::Range;
    pub(crate) const NEXT_HEADER: usize = 4;
    pub(crate) const HEADER_LEN: usize = 5;
    pub(crate) const PATH_TYPE: usize = 8;
    pub(crate) const ADDRESS_TYPES: usize = 9;
    pub(crate) const DST_IA: Range<usize> = 12..20;
    pub(crate) const SRC_IA: Range<usize> = 20..28;
    pub(crate) const HOSTS: usize = 28;
}

/// Numbers of the protocols that follow the header.
pub mod next_header {
    pub const UDP: u8 = 17;
    pub const HOP_BY_HOP: u8 = 200;
    pub const END_TO_END: u8 = 201;
    pub const SCMP: u8 = 202;
    /// BFD between routers.
    pub const BFD: u8 = 203;
}

/// Which kind of path a header has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathType {
    /// Type 0.
    Empty,
    /// Type 1.
    Standard,
    /// Type 2.
    OneHop,
}

/// Why octets are not a SCION packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HeaderError {
    /// Fewer octets than the fixed part or the header's own length.
    #[error("{have} octets where a header needs {need}")]
    Truncated { need: usize, have: usize },
    /// Not version 0.
    #[error("SCION version {0}, not 0")]
    Version(u8),
    /// The header length is less than its parts.
    #[error("a header of {0} octets is shorter than its parts")]
    HeaderLength(usize),
    /// The payload is longer or shorter than the header says.
    #[error("the header says {declared} octets of payload, {have} follow it")]
    PayloadLength {
        /// `PayloadLen`.
        declared: usize,
        /// What follows the header.
        have: usize,
    },
    /// The path is malformed.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Where the parts of a packet lie, and what a router reads before it looks at hop fields. All lengths have been checked
/// against the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Octets of the whole header.
    pub header_len: usize,
    /// Where the path begins.
    pub path: usize,
    pub path_type: PathType,
    /// What follows the header.
    pub next_header: u8,
    /// Type and length bits of both hosts: destination's in the high nibble.
    pub address_types: u8,
    pub dst: IsdAs,
    pub src: IsdAs,
    /// Pointers and lengths of a standard path; zero otherwise.
    pub position: Position,
}

impl Layout {
    /// Checks lengths, pointers and bounds of `packet`, in that order.
    ///
    /// # Errors
    /// The first rule that the octets break.
    #[inline(always)]
    pub fn decode(packet: &[u8]) -> Result<Self, HeaderError> {
        let have = packet.len();
        let truncated = HeaderError::Truncated { need: field::HOSTS, have };
        let (fixed, _) = packet.split_first_chunk::<{ field::HOSTS }>().ok_or(truncated)?;
        if fixed[0] >> 4 != 0 {
            return Err(HeaderError::Version(fixed[0] >> 4));
        }
        let header_len = 4 * usize::from(fixed[field::HEADER_LEN]);
        if have < header_len {
            return Err(HeaderError::Truncated { need: header_len, have });
        }
        let payload = usize::from(u16::from_be_bytes([fixed[6], fixed[7]]));
        if header_len + payload != have {
            return Err(HeaderError::PayloadLength { declared: payload, have: have - header_len });
        }
        let address_types = fixed[field::ADDRESS_TYPES];
        let hosts = 8 + 4 * usize::from(address_types >> 4 & 3) + 4 * usize::from(address_types & 3);
        let path = field::HOSTS + hosts;
        let path_len = header_len.checked_sub(path).ok_or(HeaderError::HeaderLength(header_len))?;
        let length = |need| PathError::Length { need, have: path_len };
        let mut layout = Self {
            header_len,
            path,
            path_type: PathType::Standard,
            next_header: fixed[field::NEXT_HEADER],
            address_types,
            dst: IsdAs(u64::from_be_bytes(fixed[field::DST_IA].try_into().expect("eight octets"))),
            src: IsdAs(u64::from_be_bytes(fixed[field::SRC_IA].try_into().expect("eight octets"))),
            position: Position::default(),
        };
        match fixed[field::PATH_TYPE] {
            1 => {
                let meta = packet[path..header_len].first_chunk().ok_or(length(META_LEN))?;
                layout.position = Position::read(*meta)?;
                let need = META_LEN + layout.position.segments * INFO_LEN + layout.position.hops * HOP_LEN;
                if need != path_len {
                    return Err(length(need).into());
                }
            }
            0 if path_len == 0 => layout.path_type = PathType::Empty,
            0 => return Err(length(0).into()),
            2 if path_len == OneHopPath::LEN => layout.path_type = PathType::OneHop,
            2 => return Err(length(OneHopPath::LEN).into()),
            other => return Err(PathError::UnknownType(other).into()),
        }
        Ok(layout)
    }

    /// Where info field `index` of a standard path begins.
    #[inline(always)]
    #[must_use]
    pub fn info(&self, index: usize) -> usize {
        self.path + META_LEN + INFO_LEN * index
    }

    /// Where hop field `index` of a standard path begins.
    #[inline(always)]
    #[must_use]
    pub fn hop(&self, index: usize) -> usize {
        self.path + META_LEN + INFO_LEN * self.position.segments + HOP_LEN * index
    }
}

/// The destination's and the source's AS in a packet whose header has been checked; zeros in one that is too short for it.
#[inline(always)]
#[must_use]
pub fn addresses(packet: &[u8]) -> (IsdAs, IsdAs) {
    let number = |octets: &[u8]| IsdAs(u64::from_be_bytes(octets.try_into().expect("eight octets")));
    let fixed = packet.first_chunk::<{ field::HOSTS }>();
    fixed.map_or((IsdAs(0), IsdAs(0)), |fixed| (number(&fixed[field::DST_IA]), number(&fixed[field::SRC_IA])))
}

/// A SCION header, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// `QoS`, once called traffic class.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_id: u32,
    /// What follows the header, one of [`next_header`] or another protocol number.
    pub next_header: u8,
    pub dst: IsdAs,
    pub src: IsdAs,
    pub dst_host: HostAddress,
    pub src_host: HostAddress,
    pub path: Path,
}

impl Header {
    /// Decodes the header of `packet`, and gives the payload.
    ///
    /// # Errors
    /// The first rule that the octets break.
    pub fn decode(packet: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let layout = Layout::decode(packet)?;
        let word = u32::from_be_bytes([packet[0], packet[1], packet[2], packet[3]]);
        let (dst_nibble, src_nibble) = (layout.address_types >> 4, layout.address_types & 0xf);
        let error = HeaderError::HeaderLength(layout.header_len);
        let dst_host = HostAddress::read(dst_nibble, &packet[field::HOSTS..]).ok_or(error)?;
        let src_host = HostAddress::read(src_nibble, &packet[field::HOSTS + dst_host.wire_len()..]).ok_or(error)?;
        let header = Self {
            traffic_class: (word >> 20) as u8,
            flow_id: word & 0xf_ffff,
            next_header: layout.next_header,
            dst: layout.dst,
            src: layout.src,
            dst_host,
            src_host,
            path: Path::decode(packet[field::PATH_TYPE], &packet[layout.path..layout.header_len])?,
        };
        Ok((header, &packet[layout.header_len..]))
    }

    /// Octets on the wire.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        field::HOSTS + self.dst_host.wire_len() + self.src_host.wire_len() + self.path.wire_len()
    }

    /// Writes the header for a payload of `payload_len` octets behind `out`. Reserved bits are zero.
    ///
    /// # Panics
    /// Never: a path has at most [`MAX_HOPS`] hop fields, so that the length fits its field.
    pub fn encode(&self, payload_len: u16, out: &mut Vec<u8>) {
        let word = u32::from(self.traffic_class) << 20 | (self.flow_id & 0xf_ffff);
        out.extend(word.to_be_bytes());
        let length = u8::try_from(self.wire_len() / 4).expect("at most 64 hop fields");
        out.extend([self.next_header, length]);
        out.extend(payload_len.to_be_bytes());
        out.extend([self.path.kind(), self.dst_host.nibble() << 4 | self.src_host.nibble(), 0, 0]);
        out.extend(self.dst.0.to_be_bytes());
        out.extend(self.src.0.to_be_bytes());
        self.dst_host.write(out);
        self.src_host.write(out);
        self.path.encode(out);
    }
}

/// A header and what follows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub header: Header,
    /// At most 65,535 octets.
    pub payload: Vec<u8>,
}

impl Packet {
    /// Decodes all of `packet`.
    ///
    /// # Errors
    /// The first rule that the octets break.
    pub fn decode(packet: &[u8]) -> Result<Self, HeaderError> {
        let (header, payload) = Header::decode(packet)?;
        Ok(Self { header, payload: payload.to_vec() })
    }

    /// The octets; a payload of more than 65,535 octets is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let payload = &self.payload[..self.payload.len().min(usize::from(u16::MAX))];
        let mut out = Vec::with_capacity(self.header.wire_len() + payload.len());
        self.header.encode(payload.len() as u16, &mut out);
        out.extend(payload);
        out
    }
}

//! The header: a fixed part, and the opaque fields of the up half and then of the down half.

use thiserror::Error;

/// Octets before the opaque fields.
pub const FIXED_LEN: usize = 24;
/// Octets of an opaque field.
pub const OPAQUE_LEN: usize = 8;
/// Opaque fields of one packet, as the eight bits of count allow.
pub const MAX_FIELDS: usize = 255;
/// Octets of the longest header.
pub const HEADER_MAX: usize = FIXED_LEN + OPAQUE_LEN * MAX_FIELDS;

/// The version in the first four bits: one that today's SCION does not use.
const VERSION: u8 = 15;

/// `ingress 16 | egress 16 | MAC 32` (paper, section 3.1), seen in the direction of construction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpaqueField {
    /// Interface by which the beacon came in; zero at the core.
    pub ingress: u16,
    /// Interface by which the beacon went out; zero at the last AS.
    pub egress: u16,
    /// The first four octets of the CBC-MAC.
    pub mac: [u8; 4],
}

impl OpaqueField {
    #[must_use]
    pub fn read(octets: [u8; OPAQUE_LEN]) -> Self {
        let [i0, i1, e0, e1, mac @ ..] = octets;
        Self { ingress: u16::from_be_bytes([i0, i1]), egress: u16::from_be_bytes([e0, e1]), mac }
    }

    #[must_use]
    pub fn octets(self) -> [u8; OPAQUE_LEN] {
        let ([i0, i1], [e0, e1], [a, b, c, d]) = (self.ingress.to_be_bytes(), self.egress.to_be_bytes(), self.mac);
        [i0, i1, e0, e1, a, b, c, d]
    }
}

/// Why octets are not a packet of this format. The sender erred; the packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HeaderError {
    #[error("truncated: the header needs {need} octets, the packet has {have}")]
    Truncated { need: usize, have: usize },
    #[error("unknown version {0}")]
    Version(u8),
    /// The payload is longer or shorter than the header says.
    #[error("the header gives a payload of {said} octets, the packet has {have}")]
    PayloadLength { said: usize, have: usize },
    /// No opaque field, an up half longer than all, or a pointer beyond the last.
    #[error("pointer {pointer} or up half {up} beyond the {count} opaque fields")]
    Pointer { pointer: u8, up: u8, count: u8 },
}

/// The fields that a switch reads, with lengths and pointer checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// `OF ptr`.
    pub pointer: u8,
    /// Opaque fields of the up half.
    pub up: u8,
    /// All opaque fields; at least one.
    pub count: u8,
}

impl Layout {
    /// Checks lengths, pointer and bounds of `packet`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    #[inline(always)]
    pub fn decode(packet: &[u8]) -> Result<Self, HeaderError> {
        let have = packet.len();
        let truncated = HeaderError::Truncated { need: FIXED_LEN, have };
        let (fixed, _) = packet.split_first_chunk::<FIXED_LEN>().ok_or(truncated)?;
        let [version, count, up, pointer, p0, p1, ..] = *fixed;
        if version != VERSION << 4 {
            return Err(HeaderError::Version(version >> 4));
        }
        let need = FIXED_LEN + OPAQUE_LEN * usize::from(count);
        if have < need {
            return Err(HeaderError::Truncated { need, have });
        }
        let said = usize::from(u16::from_be_bytes([p0, p1]));
        if need + said != have {
            return Err(HeaderError::PayloadLength { said, have: have - need });
        }
        if pointer >= count || up > count {
            return Err(HeaderError::Pointer { pointer, up, count });
        }
        Ok(Self { pointer, up, count })
    }

    /// Offset of opaque field `index`.
    #[inline(always)]
    #[must_use]
    pub fn field(index: u8) -> usize {
        FIXED_LEN + OPAQUE_LEN * usize::from(index)
    }

    /// Offset of the pointer.
    pub const POINTER: usize = 3;

    /// The first octet.
    pub const VERSION: u8 = VERSION << 4;
}

/// A decoded header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The opaque field to check next.
    pub pointer: u8,
    /// Opaque fields of the up half; travel is against construction there.
    pub up: u8,
    /// IP protocol number of the payload.
    pub protocol: u8,
    /// Source, opaque to switches.
    pub src: [u8; 8],
    /// Destination, opaque to switches.
    pub dst: [u8; 8],
    /// All opaque fields in the order of travel.
    pub fields: Vec<OpaqueField>,
}

impl Header {
    /// Decodes the header of `packet` and returns it with the payload.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode(packet: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let layout = Layout::decode(packet)?;
        let (fields, payload) = packet[FIXED_LEN..].split_at(OPAQUE_LEN * usize::from(layout.count));
        let eight = |at: usize| packet[at..at + 8].try_into().expect("eight octets");
        let header = Self {
            pointer: layout.pointer,
            up: layout.up,
            protocol: packet[6],
            src: eight(8),
            dst: eight(16),
            fields: fields.as_chunks().0.iter().map(|octets| OpaqueField::read(*octets)).collect(),
        };
        Ok((header, payload))
    }

    /// Returns the packet. Opaque fields beyond [`MAX_FIELDS`] and payload beyond 65,535 octets are cut off.
    #[must_use]
    pub fn encode(&self, payload: &[u8]) -> Vec<u8> {
        let fields = &self.fields[..self.fields.len().min(MAX_FIELDS)];
        let payload = &payload[..payload.len().min(usize::from(u16::MAX))];
        let [p0, p1] = (payload.len() as u16).to_be_bytes();
        let mut out = vec![VERSION << 4, fields.len() as u8, self.up, self.pointer, p0, p1, self.protocol, 0];
        out.extend(self.src);
        out.extend(self.dst);
        out.extend(fields.iter().flat_map(|field| field.octets()));
        out.extend(payload);
        out
    }
}

//! The paths a SCION header carries: empty, one hop, or up to three segments of hop fields.

use thiserror::Error;

/// Hop fields in one path: the pointer has six bits.
pub const MAX_HOPS: usize = 64;

/// Octets of the path meta header.
pub(crate) const META_LEN: usize = 4;
/// Octets of an info field.
pub(crate) const INFO_LEN: usize = 8;
/// Octets of a hop field.
pub(crate) const HOP_LEN: usize = 12;

/// Why octets are not a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PathError {
    /// The header ends before the path does, or after it.
    #[error("a path of {need} octets where the header has {have}")]
    Length {
        /// What the path's own counts ask for.
        need: usize,
        /// What the header's length leaves.
        have: usize,
    },
    /// A segment of no hop fields comes before one that has some, or the path has none at all.
    #[error("an empty segment")]
    EmptySegment,
    /// More than [`MAX_HOPS`] hop fields.
    #[error("{0} hop fields")]
    TooManyHops(usize),
    /// The current hop field is not one of the current segment.
    #[error("the hop pointer {hop} is not in segment {info}")]
    Pointer {
        /// `CurrINF`.
        info: u8,
        /// `CurrHF`.
        hop: u8,
    },
    /// An unknown path type.
    #[error("path type {0}")]
    UnknownType(u8),
}

/// The path meta header: where the packet is, and how long the segments are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathMeta {
    /// `CurrINF`: the current info field.
    pub current_info: u8,
    /// `CurrHF`: the current hop field, counted over all segments.
    pub current_hop: u8,
    /// Hop fields of each segment; zero where there is none.
    pub segment_len: [u8; 3],
}

impl PathMeta {
    /// Reads the four octets; the six reserved bits are ignored.
    #[inline]
    #[must_use]
    pub fn read(octets: [u8; 4]) -> Self {
        let word = u32::from_be_bytes(octets);
        let six = |shift: u32| (word >> shift & 0x3f) as u8;
        Self { current_info: (word >> 30) as u8, current_hop: six(24), segment_len: [six(12), six(6), six(0)] }
    }

    /// The four octets, reserved bits zero.
    #[must_use]
    pub fn octets(self) -> [u8; 4] {
        let [a, b, c] = self.segment_len.map(|length| u32::from(length & 0x3f));
        let word = u32::from(self.current_info & 3) << 30 | u32::from(self.current_hop & 0x3f) << 24;
        (word | a << 12 | b << 6 | c).to_be_bytes()
    }

    /// Number of segments and of hop fields, if segments without hop fields come last, there is one with some, and the
    /// pointers agree.
    ///
    /// # Errors
    /// The rule that counts or pointers break.
    pub fn check(self) -> Result<(usize, usize), PathError> {
        let position = Position::read(self.octets())?;
        Ok((position.segments, position.hops))
    }

    /// The segment that hop field `hop` is in.
    #[inline]
    #[must_use]
    pub fn segment_of(self, hop: usize) -> usize {
        let [a, b, _] = self.segment_len.map(usize::from);
        usize::from(hop >= a) + usize::from(hop >= a + b)
    }
}

/// The path meta header as a router uses it, checked: [`PathMeta`] in registers of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// `CurrINF`.
    pub info: usize,
    /// `CurrHF`.
    pub hop: usize,
    /// Where the first segment ends and the second begins.
    pub first_end: usize,
    /// Where the second segment ends.
    pub second_end: usize,
    /// All hop fields.
    pub hops: usize,
    /// All info fields.
    pub segments: usize,
}

impl Position {
    /// Reads the four octets, and checks that segments without hop fields come last, that there is one with some, and
    /// that the pointers agree.
    ///
    /// # Errors
    /// The rule that counts or pointers break.
    #[inline(always)]
    pub fn read(octets: [u8; 4]) -> Result<Self, PathError> {
        let word = u32::from_be_bytes(octets) as usize;
        let (a, b, c) = (word >> 12 & 0x3f, word >> 6 & 0x3f, word & 0x3f);
        let (info, hop) = (word >> 30, word >> 24 & 0x3f);
        if a == 0 || (b == 0 && c != 0) {
            return Err(PathError::EmptySegment);
        }
        let hops = a + b + c;
        if hops > MAX_HOPS {
            return Err(PathError::TooManyHops(hops));
        }
        let segments = 1 + usize::from(b != 0) + usize::from(c != 0);
        let position = Self { info, hop, first_end: a, second_end: a + b, hops, segments };
        if hop >= hops || position.segment_of(hop) != info {
            return Err(PathError::Pointer { info: info as u8, hop: hop as u8 });
        }
        Ok(position)
    }

    /// The segment that hop field `hop` is in.
    #[inline(always)]
    #[must_use]
    pub fn segment_of(&self, hop: usize) -> usize {
        usize::from(hop >= self.first_end) + usize::from(hop >= self.second_end)
    }
}

/// An info field: what all hops of a segment have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InfoField {
    /// `P`: the segment joins the other one over a peering link.
    pub peering: bool,
    /// `C`: the packet travels in the direction in which the segment was constructed.
    pub construction: bool,
    /// `SegID`, the accumulator of the hop fields' MACs so far.
    pub seg_id: u16,
    /// When the segment was begun: seconds of Unix time.
    pub timestamp: u32,
}

impl InfoField {
    /// Reads the eight octets; reserved bits are ignored.
    #[inline]
    #[must_use]
    pub fn read(octets: &[u8; 8]) -> Self {
        let [flags, _, s0, s1, timestamp @ ..] = *octets;
        Self {
            peering: flags & 2 != 0,
            construction: flags & 1 != 0,
            seg_id: u16::from_be_bytes([s0, s1]),
            timestamp: u32::from_be_bytes(timestamp),
        }
    }

    /// The eight octets, reserved bits zero.
    #[must_use]
    pub fn octets(&self) -> [u8; 8] {
        let [s0, s1] = self.seg_id.to_be_bytes();
        let [t0, t1, t2, t3] = self.timestamp.to_be_bytes();
        [u8::from(self.peering) << 1 | u8::from(self.construction), 0, s0, s1, t0, t1, t2, t3]
    }
}

/// A hop field: one AS's interfaces, in the order of construction, under its MAC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HopField {
    /// `I`: the router at `cons_ingress` shall look at the packet.
    pub ingress_alert: bool,
    /// `E`: the router at `cons_egress` shall look at the packet.
    pub egress_alert: bool,
    /// Life time in units of 337.5 s, less one.
    pub exp_time: u8,
    /// The interface by which the beacon came in; zero at the segment's first AS.
    pub cons_ingress: u16,
    /// The interface by which the beacon went out; zero at the segment's last AS.
    pub cons_egress: u16,
    /// The first six octets of the AES-CMAC.
    pub mac: [u8; 6],
}

impl HopField {
    /// Reads the twelve octets; reserved bits are ignored.
    #[inline]
    #[must_use]
    pub fn read(octets: &[u8; 12]) -> Self {
        let [flags, exp_time, i0, i1, e0, e1, mac @ ..] = *octets;
        Self {
            ingress_alert: flags & 2 != 0,
            egress_alert: flags & 1 != 0,
            exp_time,
            cons_ingress: u16::from_be_bytes([i0, i1]),
            cons_egress: u16::from_be_bytes([e0, e1]),
            mac,
        }
    }

    /// The twelve octets, reserved bits zero.
    #[must_use]
    pub fn octets(&self) -> [u8; 12] {
        let ([i0, i1], [e0, e1]) = (self.cons_ingress.to_be_bytes(), self.cons_egress.to_be_bytes());
        let [a, b, c, d, e, f] = self.mac;
        let flags = u8::from(self.ingress_alert) << 1 | u8::from(self.egress_alert);
        [flags, self.exp_time, i0, i1, e0, e1, a, b, c, d, e, f]
    }
}

/// A path of one to three segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StandardPath {
    /// Pointers and lengths; they agree with the fields below.
    pub meta: PathMeta,
    /// One info field for each segment.
    pub infos: Vec<InfoField>,
    /// The hop fields of all segments in the order of travel.
    pub hops: Vec<HopField>,
}

impl StandardPath {
    fn decode(octets: &[u8]) -> Result<Self, PathError> {
        let have = octets.len();
        let (meta, rest) = octets.split_first_chunk().ok_or(PathError::Length { need: META_LEN, have })?;
        let meta = PathMeta::read(*meta);
        let (segments, hops) = meta.check()?;
        let need = META_LEN + segments * INFO_LEN + hops * HOP_LEN;
        if need != have {
            return Err(PathError::Length { need, have });
        }
        let (infos, hops) = rest.split_at(segments * INFO_LEN);
        Ok(Self {
            meta,
            infos: infos.as_chunks().0.iter().map(InfoField::read).collect(),
            hops: hops.as_chunks().0.iter().map(HopField::read).collect(),
        })
    }

    /// The way back, from where the packet now is: segments and hop fields in the other order, directions turned.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let mut path = self.clone();
        path.infos.reverse();
        path.hops.reverse();
        for info in &mut path.infos {
            info.construction = !info.construction;
        }
        let segments = path.infos.len();
        path.meta.segment_len[..segments].reverse();
        path.meta.current_info = (segments - 1 - usize::from(self.meta.current_info)) as u8;
        path.meta.current_hop = (path.hops.len() - 1 - usize::from(self.meta.current_hop)) as u8;
        path
    }
}

/// The path of a packet to a neighbour before any segment is known: the second hop field is filled by the neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneHopPath {
    /// Always in construction direction.
    pub info: InfoField,
    /// Minted by the sender's AS.
    pub first: HopField,
    /// Zero until the neighbour's router has written it.
    pub second: HopField,
}

impl OneHopPath {
    /// Octets on the wire.
    pub const LEN: usize = INFO_LEN + 2 * HOP_LEN;

    fn decode(octets: &[u8]) -> Result<Self, PathError> {
        let have = octets.len();
        let error = PathError::Length { need: Self::LEN, have };
        let (info, hops) = octets.split_first_chunk().ok_or(error)?;
        let ([first, second], []) = hops.as_chunks() else { return Err(error) };
        Ok(Self { info: InfoField::read(info), first: HopField::read(first), second: HopField::read(second) })
    }

    /// The path back: an ordinary path of one segment against construction, once both hop fields are there.
    #[must_use]
    pub fn reversed(&self) -> StandardPath {
        let meta = PathMeta { current_info: 0, current_hop: 0, segment_len: [2, 0, 0] };
        let info = InfoField { construction: false, ..self.info };
        StandardPath { meta, infos: vec![info], hops: vec![self.second, self.first] }
    }
}

/// A path, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Path {
    /// Within one AS.
    Empty,
    /// Through up to three segments.
    Standard(StandardPath),
    /// To a neighbour.
    OneHop(OneHopPath),
}

impl Path {
    /// Decodes all of `octets` as a path of type `kind`.
    ///
    /// # Errors
    /// What is wrong with the octets.
    pub fn decode(kind: u8, octets: &[u8]) -> Result<Self, PathError> {
        match kind {
            0 if octets.is_empty() => Ok(Self::Empty),
            0 => Err(PathError::Length { need: 0, have: octets.len() }),
            1 => StandardPath::decode(octets).map(Self::Standard),
            2 => OneHopPath::decode(octets).map(Self::OneHop),
            other => Err(PathError::UnknownType(other)),
        }
    }

    /// The `PathType` octet.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Empty => 0,
            Self::Standard(_) => 1,
            Self::OneHop(_) => 2,
        }
    }

    /// Octets on the wire.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Standard(path) => META_LEN + path.infos.len() * INFO_LEN + path.hops.len() * HOP_LEN,
            Self::OneHop(_) => OneHopPath::LEN,
        }
    }

    /// Writes the path behind `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Empty => {}
            Self::Standard(path) => {
                out.extend(path.meta.octets());
                out.extend(path.infos.iter().flat_map(InfoField::octets));
                out.extend(path.hops.iter().flat_map(HopField::octets));
            }
            Self::OneHop(path) => {
                out.extend(path.info.octets());
                out.extend(path.first.octets());
                out.extend(path.second.octets());
            }
        }
    }

    /// The way back from where the packet now is.
    #[must_use]
    pub fn reversed(&self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Standard(path) => Self::Standard(path.reversed()),
            Self::OneHop(path) => Self::Standard(path.reversed()),
        }
    }
}

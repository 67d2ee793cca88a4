//! AS_PATH in four-octet form: segments, lengths, text.

use std::fmt;

use wayleave_core::Asn;

use crate::{Fault, wire};

wayleave_core::numbered! {
    /// The type of a segment (RFC 4271 section 4.3, RFC 5065 section 3).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub enum SegmentKind {
        /// Type 1: AS numbers in no order.
        Set = 1,
        /// Type 2: AS numbers, last traversed first.
        Sequence = 2,
        /// Type 3: a sequence within the local confederation.
        ConfedSequence = 3,
        /// Type 4: a set within the local confederation.
        ConfedSet = 4,
    }
}

impl SegmentKind {
    /// Whether only members of one confederation may see it.
    #[must_use]
    pub fn is_confederation(self) -> bool {
        matches!(self, SegmentKind::ConfedSequence | SegmentKind::ConfedSet)
    }
}

/// One segment of a path: its type and one to 255 AS numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    pub kind: SegmentKind,
    octets: &'a [u8],
    /// Octets of one AS number: 2 or 4.
    width: usize,
}

impl<'a> Segment<'a> {
    /// The AS numbers in their order.
    pub fn asns(&self) -> impl DoubleEndedIterator<Item = Asn> + ExactSizeIterator + use<'a> {
        let width = self.width;
        self.octets.chunks_exact(width).map(move |octets| match *octets {
            [a, b] => Asn(u32::from(u16::from_be_bytes([a, b]))),
            [a, b, c, d] => Asn(u32::from_be_bytes([a, b, c, d])),
            _ => Asn(0),
        })
    }

    /// How many AS numbers it has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> usize {
        self.octets.len() / self.width
    }

    /// Its share of the path's length: a set counts one, confederation segments nothing (RFC 4271 section 9.1.2.2,
    /// RFC 5065 section 5.3).
    #[must_use]
    pub fn path_length(&self) -> usize {
        match self.kind {
            SegmentKind::Sequence => self.len(),
            SegmentKind::Set => 1,
            SegmentKind::ConfedSequence | SegmentKind::ConfedSet => 0,
        }
    }
}

/// Reads segments of `width` octets per AS number until the octets end or one is wrong.
#[derive(Clone, Debug)]
pub(crate) struct SegmentIter<'a> {
    rest: &'a [u8],
    width: usize,
}

impl<'a> SegmentIter<'a> {
    pub(crate) fn new(octets: &'a [u8], four_octet: bool) -> Self {
        Self { rest: octets, width: if four_octet { 4 } else { 2 } }
    }

    #[inline]
    fn read(&mut self) -> Result<Segment<'a>, Fault> {
        let &[kind, count, ref rest @ ..] = self.rest else { return Err(Fault::SegmentOverrun) };
        let kind = SegmentKind::from_octet(kind).ok_or(Fault::SegmentType(kind))?;
        if count == 0 {
            return Err(Fault::EmptySegment);
        }
        let (octets, rest) = rest.split_at_checked(usize::from(count) * self.width).ok_or(Fault::SegmentOverrun)?;
        self.rest = rest;
        Ok(Segment { kind, octets, width: self.width })
    }
}

impl<'a> Iterator for SegmentIter<'a> {
    type Item = Result<Segment<'a>, Fault>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.read();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

/// A path of four-octet AS numbers, borrowed from its attribute. Its octets are well-formed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsPath<'a> {
    octets: &'a [u8],
}

impl<'a> AsPath<'a> {
    /// The path without an AS.
    pub const EMPTY: AsPath<'static> = AsPath { octets: &[] };

    /// From the value of AS_PATH with four-octet AS numbers.
    pub fn decode(octets: &'a [u8]) -> Result<Self, Fault> {
        SegmentIter::new(octets, true).try_for_each(|segment| segment.map(drop))?;
        Ok(Self { octets })
    }

    /// The value of the attribute.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// The segments, last traversed first.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> + use<'a> {
        SegmentIter::new(self.octets, true).map_while(Result::ok)
    }

    /// Every AS number in wire order, those of sets and confederation segments too.
    pub fn asns(&self) -> impl Iterator<Item = Asn> + use<'a> {
        self.segments().flat_map(|segment| segment.asns())
    }

    /// The length that the decision process compares: a set counts one, confederation segments nothing (RFC 4271
    /// section 9.1.2.2 (a), RFC 5065 section 5.3).
    #[must_use]
    pub fn length(&self) -> usize {
        self.segments().map(|segment| segment.path_length()).sum()
    }

    /// The AS that sent the route to us: the leftmost, if the first segment that counts is a sequence.
    #[must_use]
    pub fn first_asn(&self) -> Option<Asn> {
        let segment = self.segments().find(|segment| !segment.kind.is_confederation())?;
        (segment.kind == SegmentKind::Sequence).then(|| segment.asns().next()).flatten()
    }

    /// The AS that originated the route: the rightmost, if the last segment is a sequence.
    #[must_use]
    pub fn origin_asn(&self) -> Option<Asn> {
        let segment = self.segments().last()?;
        (segment.kind == SegmentKind::Sequence).then(|| segment.asns().next_back()).flatten()
    }

    /// Whether `asn` is anywhere on the path.
    #[must_use]
    pub fn contains(&self, asn: Asn) -> bool {
        self.asns().any(|other| other == asn)
    }

    /// Whether the path names no AS: the route is of our own AS.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }
}

/// AS numbers with spaces; sets in `{}`, confederation sequences in `()`, confederation sets in `[]`.
impl fmt::Display for AsPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.segments().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            let (open, close) = match segment.kind {
                SegmentKind::Sequence => ("", ""),
                SegmentKind::Set => ("{", "}"),
                SegmentKind::ConfedSequence => ("(", ")"),
                SegmentKind::ConfedSet => ("[", "]"),
            };
            f.write_str(open)?;
            for (i, asn) in segment.asns().enumerate() {
                if i > 0 {
                    f.write_str(" ")?;
                }
                write!(f, "{}", asn.0)?;
            }
            f.write_str(close)?;
        }
        Ok(())
    }
}

impl fmt::Debug for AsPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsPath({self})")
    }
}

/// A path under construction.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct AsPathBuf {
    octets: Vec<u8>,
}

impl AsPathBuf {
    /// The path without an AS.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One sequence, last traversed first; more than 255 AS numbers make more than one segment.
    #[must_use]
    pub fn from_sequence(asns: &[Asn]) -> Self {
        let mut path = Self::new();
        path.push_segment(SegmentKind::Sequence, asns);
        path
    }

    /// Appends AS numbers at the origin's end, in segments of at most 255.
    pub fn push_segment(&mut self, kind: SegmentKind, asns: &[Asn]) {
        for chunk in asns.chunks(255) {
            self.octets.extend_from_slice(&[kind.octet(), chunk.len() as u8]);
            chunk.iter().for_each(|asn| self.octets.extend_from_slice(&asn.0.to_be_bytes()));
        }
    }

    /// Puts `asn` in front `times` times (RFC 4271 section 5.1.2 (b)).
    pub fn prepend(&mut self, asn: Asn, times: usize) {
        for _ in 0..times {
            self.prepend_once(asn);
        }
    }

    fn prepend_once(&mut self, asn: Asn) {
        let octets = asn.0.to_be_bytes();
        match self.octets.get(..2) {
            Some(&[2, count]) if count < 255 => {
                self.octets[1] = count + 1;
                self.octets.splice(2..2, octets);
            }
            _ => {
                let [a, b, c, d] = octets;
                self.octets.splice(0..0, [2, 1, a, b, c, d]);
            }
        }
    }

    /// The path, borrowed.
    #[must_use]
    pub fn as_path(&self) -> AsPath<'_> {
        AsPath { octets: &self.octets }
    }
}

impl From<AsPath<'_>> for AsPathBuf {
    fn from(path: AsPath<'_>) -> Self {
        Self { octets: path.octets.to_vec() }
    }
}

impl fmt::Debug for AsPathBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_path(), f)
    }
}

/// Reads the first AS number of a value whose segments have not been checked.
pub(crate) fn leftmost(octets: &[u8], four_octet: bool) -> Option<Asn> {
    match *octets.get(..2)? {
        [2, count] if count > 0 && four_octet => wire::u32(&octets[2..]).map(|(asn, _)| Asn(asn)),
        [2, count] if count > 0 => wire::u16(&octets[2..]).map(|(asn, _)| Asn(u32::from(asn))),
        _ => None,
    }
}

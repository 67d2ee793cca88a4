//! The AS path as a chain sees it: one AS number for each entry of AS_PATH, the origin first.

use wayleave_bgp::{AsPath, SegmentKind};
use wayleave_core::Asn;

/// A path in the order of travel, prepending included, without confederation segments.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Path {
    entries: Vec<Asn>,
    origin: Option<Asn>,
    has_set: bool,
}

impl Path {
    /// From the merged AS_PATH of a route (RFC 6793 section 4.2.3). Confederation segments are left out: they are gone
    /// when the route leaves the confederation (RFC 5065 section 5.3), so no signature can cover them.
    #[must_use]
    pub fn from_as_path(path: AsPath<'_>) -> Self {
        let mut entries: Vec<Asn> = Vec::with_capacity(path.octets().len() / 4);
        let (mut origin, mut has_set) = (None, false);
        for segment in path.segments() {
            match segment.kind {
                SegmentKind::Sequence => {
                    entries.extend(segment.asns());
                    origin = entries.last().copied();
                }
                SegmentKind::Set => (origin, has_set) = (None, true),
                SegmentKind::ConfedSequence | SegmentKind::ConfedSet => {}
            }
        }
        entries.reverse();
        Self { entries, origin, has_set }
    }

    /// From AS numbers in the order of travel: the origin first.
    #[must_use]
    pub fn from_travel(entries: &[Asn]) -> Self {
        Self { entries: entries.to_vec(), origin: entries.first().copied(), has_set: false }
    }

    /// The entries, the origin first. Without meaning where [`Path::has_set`] holds.
    #[must_use]
    pub fn entries(&self) -> &[Asn] {
        &self.entries
    }

    /// Whether the route was aggregated: a set has no order to attest.
    #[must_use]
    pub fn has_set(&self) -> bool {
        self.has_set
    }

    /// The AS that originated the route; none where the path ends with a set (RFC 6811 section 2).
    #[must_use]
    pub fn origin(&self) -> Option<Asn> {
        self.origin
    }

    /// Appends `asn` as the AS that travels last, `times` times.
    pub fn push(&mut self, asn: Asn, times: u8) {
        self.entries.extend(std::iter::repeat_n(asn, usize::from(times)));
        if !self.has_set {
            self.origin = self.entries.first().copied();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_bgp::AsPathBuf;

    #[test]
    fn confederation_segments_are_left_out_and_the_origin_comes_first() {
        let mut path = AsPathBuf::new();
        path.push_segment(SegmentKind::ConfedSequence, &[Asn(65001)]);
        path.push_segment(SegmentKind::Sequence, &[Asn(2), Asn(1), Asn(1)]);
        let path = Path::from_as_path(path.as_path());
        assert_eq!(path.entries(), [Asn(1), Asn(1), Asn(2)]);
        assert_eq!(path.origin(), Some(Asn(1)));
    }

    #[test]
    fn a_path_that_ends_with_a_set_has_no_origin() {
        let mut path = AsPathBuf::from_sequence(&[Asn(2)]);
        path.push_segment(SegmentKind::Set, &[Asn(1), Asn(3)]);
        let read = Path::from_as_path(path.as_path());
        assert!(read.has_set());
        assert_eq!(read.origin(), None);
        path.push_segment(SegmentKind::Sequence, &[Asn(7), Asn(8)]);
        assert_eq!(Path::from_as_path(path.as_path()).origin(), Some(Asn(8)));
    }
}

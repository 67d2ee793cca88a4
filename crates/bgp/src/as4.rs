//! Between two-octet and four-octet AS numbers (RFC 6793).

use wayleave_core::Asn;

use crate::as_path::SegmentIter;
use crate::{Aggregator, AsPath, AsPathBuf, Segment, SegmentKind};

/// Segments under construction; neighbouring sequences become one as long as it holds at most 255 AS numbers.
#[derive(Default)]
struct Segments(Vec<(SegmentKind, Vec<Asn>)>);

impl Segments {
    fn push(&mut self, kind: SegmentKind, asns: impl Iterator<Item = Asn>) {
        let asns: Vec<Asn> = asns.collect();
        if asns.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some((SegmentKind::Sequence, last))
                if kind == SegmentKind::Sequence && last.len() + asns.len() <= usize::from(u8::MAX) =>
            {
                last.extend(asns);
            }
            _ => self.0.push((kind, asns)),
        }
    }

    fn finish(self) -> AsPathBuf {
        let mut path = AsPathBuf::new();
        self.0.iter().for_each(|(kind, asns)| path.push_segment(*kind, asns));
        path
    }
}

fn segments(value: &[u8], four_octet: bool) -> impl Iterator<Item = Segment<'_>> + Clone {
    SegmentIter::new(value, four_octet).map_while(Result::ok)
}

fn path_length<'a>(segments: impl Iterator<Item = Segment<'a>>) -> usize {
    segments.map(|segment| segment.path_length()).sum()
}

/// The path in four-octet form, from the checked values of AS_PATH with two-octet numbers and, if it counts, AS4_PATH
/// (RFC 6793 section 4.2.3): as many leading AS numbers of the first as it is longer, then the second.
pub(crate) fn merge_paths(as_path: &[u8], as4_path: Option<&[u8]>) -> AsPathBuf {
    let narrow = segments(as_path, false);
    // Confederation segments do not belong in AS4_PATH; a receiver drops them (RFC 6793 section 6).
    let wide = as4_path.map(|value| segments(value, true).filter(|segment| !segment.kind.is_confederation()));
    let mut merged = Segments::default();
    let excess = wide.clone().and_then(|wide| path_length(narrow.clone()).checked_sub(path_length(wide)));
    let (Some(wide), Some(mut excess)) = (wide, excess) else {
        narrow.for_each(|segment| merged.push(segment.kind, segment.asns()));
        return merged.finish();
    };
    for segment in narrow {
        // A confederation segment counts nothing and is kept while it leads or follows one that is kept.
        if excess == 0 && !segment.kind.is_confederation() {
            break;
        }
        let taken = if segment.kind == SegmentKind::Sequence { excess } else { usize::MAX };
        merged.push(segment.kind, segment.asns().take(taken));
        excess = excess.saturating_sub(segment.path_length());
    }
    wide.for_each(|segment| merged.push(segment.kind, segment.asns()));
    let merged = merged.finish();
    // Two attributes of extended messages can make a path that no attribute holds; AS_PATH alone always fits.
    if merged.as_path().octets().len() > usize::from(u16::MAX) { merge_paths(as_path, None) } else { merged }
}

/// Whether AS4_PATH and AS4_AGGREGATOR count beside the checked value of AGGREGATOR with a two-octet number: not if that
/// names an AS that every speaker on the way could name (RFC 6793 section 4.2.3).
pub(crate) fn as4_counts(aggregator: Option<&[u8]>) -> bool {
    let trans = Asn::TRANS.two_octets().to_be_bytes();
    aggregator.is_none_or(|value| value.starts_with(&trans))
}

/// The value of AS_PATH with two-octet numbers, and that of AS4_PATH if a number does not fit (RFC 6793
/// section 4.2.2). AS4_PATH holds no confederation segment.
pub(crate) fn narrow_path(path: AsPath<'_>) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut narrow = Vec::with_capacity(path.octets().len());
    let mut wide = AsPathBuf::new();
    let mut is_lossy = false;
    for segment in path.segments() {
        narrow.extend_from_slice(&[segment.kind.octet(), segment.len() as u8]);
        segment.asns().for_each(|asn| narrow.extend_from_slice(&asn.two_octets().to_be_bytes()));
        if !segment.kind.is_confederation() {
            let asns: Vec<Asn> = segment.asns().collect();
            is_lossy |= asns.iter().any(|asn| u16::try_from(asn.0).is_err());
            wide.push_segment(segment.kind, &asns);
        }
    }
    (narrow, is_lossy.then(|| wide.as_path().octets().to_vec()))
}

/// The value of AGGREGATOR with a two-octet number, and that of AS4_AGGREGATOR if the number does not fit.
pub(crate) fn narrow_aggregator(aggregator: Aggregator) -> ([u8; 6], Option<[u8; 8]>) {
    let [a, b, c, d] = aggregator.identifier.octets();
    let [high, low] = aggregator.asn.two_octets().to_be_bytes();
    let wide = wide_aggregator(aggregator);
    ([high, low, a, b, c, d], u16::try_from(aggregator.asn.0).is_err().then_some(wide))
}

/// The value of AGGREGATOR with a four-octet number.
pub(crate) fn wide_aggregator(aggregator: Aggregator) -> [u8; 8] {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&aggregator.asn.0.to_be_bytes());
    value[4..].copy_from_slice(&aggregator.identifier.octets());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(segments: &[(u8, &[u16])]) -> Vec<u8> {
        let mut value = Vec::new();
        for (kind, asns) in segments {
            value.extend_from_slice(&[*kind, asns.len() as u8]);
            asns.iter().for_each(|asn| value.extend_from_slice(&asn.to_be_bytes()));
        }
        value
    }

    fn wide(segments: &[(SegmentKind, &[u32])]) -> Vec<u8> {
        let mut path = AsPathBuf::new();
        for (kind, asns) in segments {
            path.push_segment(*kind, &asns.iter().copied().map(Asn).collect::<Vec<_>>());
        }
        path.as_path().octets().to_vec()
    }

    #[test]
    fn leading_numbers_of_as_path_precede_as4_path() {
        let as_path = narrow(&[(2, &[64496, 23456, 23456])]);
        let as4_path = wide(&[(SegmentKind::Sequence, &[70_000, 70_001])]);
        assert_eq!(merge_paths(&as_path, Some(&as4_path)).as_path().to_string(), "64496 70000 70001");
    }

    #[test]
    fn a_longer_as4_path_is_ignored() {
        let as_path = narrow(&[(2, &[64496])]);
        let as4_path = wide(&[(SegmentKind::Sequence, &[70_000, 70_001])]);
        assert_eq!(merge_paths(&as_path, Some(&as4_path)).as_path().to_string(), "64496");
    }

    #[test]
    fn a_set_counts_one_and_confederation_segments_stay_in_front() {
        let as_path = narrow(&[(3, &[65001]), (2, &[64496]), (1, &[23456, 64500])]);
        let as4_path = wide(&[(SegmentKind::ConfedSequence, &[65_002]), (SegmentKind::Set, &[64_500, 70_000])]);
        assert_eq!(merge_paths(&as_path, Some(&as4_path)).as_path().to_string(), "(65001) 64496 {64500 70000}");
    }

    #[test]
    fn an_aggregator_that_is_not_as_trans_outranks_the_as4_attributes() {
        assert!(as4_counts(None));
        assert!(as4_counts(Some(&[0x5b, 0xa0, 1, 2, 3, 4])));
        assert!(!as4_counts(Some(&[0xfb, 0xf0, 1, 2, 3, 4])));
    }

    #[test]
    fn a_path_that_fits_two_octets_needs_no_as4_path() {
        assert_eq!(narrow_path(AsPathBuf::from_sequence(&[Asn(64496)]).as_path()).1, None);
        let path = AsPathBuf::from_sequence(&[Asn(64496), Asn(70_000)]);
        let (value, as4) = narrow_path(path.as_path());
        assert_eq!(value, narrow(&[(2, &[64496, 23456])]));
        assert_eq!(merge_paths(&value, as4.as_deref()), path);
    }
}

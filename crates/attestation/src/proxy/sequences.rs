//! How far the sequence of each route's origin has come: an older attestation in place of a newer one may be a replay.
//!
//! An origin gives each attestation of a prefix a higher sequence, and signs for each neighbour separately. So two that
//! went through the same neighbour of the origin can be compared: the one with the lower sequence is older. An older one
//! may still be valid, and a network that has two sessions with its neighbour may switch between them: so no route is
//! refused for it.

use std::collections::HashMap;

use wayleave_bgp::Nlri;
use wayleave_core::Asn;

/// Routes of a pair whose sequences are noted, at most: a limit of ours against a peer with endless prefixes. Seven eighths of
/// a power of two, as the table is filled.
const MAX_ROUTES: usize = (1 << 21) / 8 * 7;

/// The sequence that an origin gave a route.
#[derive(Clone, Copy, Debug)]
pub(super) struct OriginSequence {
    pub(super) origin: Asn,
    /// The neighbour for which the origin signed.
    pub(super) next: Asn,
    pub(super) sequence: u64,
    /// Until when it holds, in seconds since 1970.
    pub(super) until: u64,
}

/// The newest sequence of each route, also after it was withdrawn: whoever replays may withdraw first.
#[derive(Debug, Default)]
pub(super) struct Sequences(HashMap<(Nlri, Asn, Asn), (u64, u64)>);

impl Sequences {
    /// Notes a sequence; returns the newest one, if this one is older.
    pub(super) fn note(&mut self, nlri: &Nlri, of_origin: OriginSequence) -> Option<u64> {
        let key = (*nlri, of_origin.origin, of_origin.next);
        match self.0.get_mut(&key) {
            Some((newest, _)) if of_origin.sequence < *newest => Some(*newest),
            Some(known) => {
                *known = (of_origin.sequence, of_origin.until);
                None
            }
            None => {
                if self.0.len() < MAX_ROUTES {
                    self.0.insert(key, (of_origin.sequence, of_origin.until));
                }
                None
            }
        }
    }

    /// Forgets what has expired: what is older has expired with it.
    pub(super) fn sweep(&mut self, now: u64) {
        self.0.retain(|_, (_, until)| *until >= now);
        self.0.shrink_to(2 * self.0.len());
    }

    /// Octets of the table, and at most. The standard library's table doubles, and fills seven of eight places.
    pub(super) fn octets(&self) -> [usize; 2] {
        const ENTRY: usize = size_of::<((Nlri, Asn, Asn), (u64, u64))>() + 1;
        [self.0.capacity(), MAX_ROUTES].map(|entries| (entries * 8 / 7).next_power_of_two() * ENTRY)
    }
}

#[cfg(test)]
mod tests {
    //! KCX-34: endless prefixes: no more than the limit, and given back.

    use super::*;

    #[test]
    fn only_what_went_the_same_way_is_compared() {
        let mut sequences = Sequences::default();
        let nlri = Nlri { prefix: "192.0.2.0/24".parse().expect("a prefix"), path_id: 0 };
        let sequence =
            |next: u32, number| OriginSequence { origin: Asn(1), next: Asn(next), sequence: number, until: 100 };
        assert_eq!(sequences.note(&nlri, sequence(2, 7)), None);
        assert_eq!(sequences.note(&nlri, sequence(3, 5)), None, "another neighbour of the origin");
        assert_eq!(sequences.note(&nlri, sequence(2, 7)), None, "the same again");
        assert_eq!(sequences.note(&nlri, sequence(2, 6)), Some(7));
        assert_eq!(sequences.note(&nlri, sequence(2, 8)), None);
        assert_eq!(sequences.note(&nlri, sequence(2, 7)), Some(8));
        sequences.sweep(101);
        assert_eq!(sequences.note(&nlri, sequence(2, 7)), None);
    }

    #[test]
    fn endless_prefixes_take_no_more_than_the_limit_and_are_given_back() {
        let mut sequences = Sequences::default();
        for number in 0..3_000_000_u32 {
            let nlri = Nlri {
                prefix: wayleave_core::Prefix::new(number.to_be_bytes().into(), 32).expect("a prefix"),
                path_id: 0,
            };
            sequences.note(&nlri, OriginSequence { origin: Asn(1), next: Asn(2), sequence: 1, until: 100 });
        }
        let [octets, most] = sequences.octets();
        assert!(octets <= most && most < 200 << 20, "{octets} of {most}");
        sequences.sweep(101);
        assert!(sequences.octets()[0] < 1000);
    }
}

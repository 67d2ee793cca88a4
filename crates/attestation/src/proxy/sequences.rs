//! How far the sequence of each route's origin has come: an older attestation in place of a newer one may be a replay.
//!
//! An origin counts each attestation of a prefix up, and signs for each neighbour apart. So two that went through the
//! same neighbour of the origin can be compared: the lower sequence is the older. What is older may still hold, and a
//! network that has two sessions with its neighbour may switch between them, so that nothing is refused for it.

use std::collections::HashMap;

use wayleave_bgp::Nlri;
use wayleave_core::Asn;

/// Routes of a pair whose sequences are kept: our own limit, beyond which none is noted.
const MAX_ROUTES: usize = 1 << 20;

/// What an origin said of a route.
#[derive(Clone, Copy, Debug)]
pub(super) struct OriginSequence {
    pub(super) origin: Asn,
    /// To whom it said so.
    pub(super) next: Asn,
    pub(super) sequence: u64,
    /// Until when it holds, in seconds since 1970.
    pub(super) until: u64,
}

/// The newest word of each route, also after it was withdrawn: whoever replays may withdraw first.
#[derive(Debug, Default)]
pub(super) struct Sequences(HashMap<(Nlri, Asn, Asn), (u64, u64)>);

impl Sequences {
    /// Notes what was said; the newest sequence, if this one is older.
    pub(super) fn note(&mut self, nlri: &Nlri, said: OriginSequence) -> Option<u64> {
        let key = (*nlri, said.origin, said.next);
        match self.0.get_mut(&key) {
            Some((newest, _)) if said.sequence < *newest => Some(*newest),
            Some(known) => {
                *known = (said.sequence, said.until);
                None
            }
            None => {
                if self.0.len() < MAX_ROUTES {
                    self.0.insert(key, (said.sequence, said.until));
                }
                None
            }
        }
    }

    /// Forgets what has expired: what is older has expired with it.
    pub(super) fn sweep(&mut self, now: u64) {
        self.0.retain(|_, (_, until)| *until >= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_went_the_same_way_is_compared() {
        let mut sequences = Sequences::default();
        let nlri = Nlri { prefix: "192.0.2.0/24".parse().expect("a prefix"), path_id: 0 };
        let said = |next: u32, sequence| OriginSequence { origin: Asn(1), next: Asn(next), sequence, until: 100 };
        assert_eq!(sequences.note(&nlri, said(2, 7)), None);
        assert_eq!(sequences.note(&nlri, said(3, 5)), None, "another neighbour of the origin");
        assert_eq!(sequences.note(&nlri, said(2, 7)), None, "the same again");
        assert_eq!(sequences.note(&nlri, said(2, 6)), Some(7));
        assert_eq!(sequences.note(&nlri, said(2, 8)), None);
        assert_eq!(sequences.note(&nlri, said(2, 7)), Some(8));
        sequences.sweep(101);
        assert_eq!(sequences.note(&nlri, said(2, 7)), None);
    }
}

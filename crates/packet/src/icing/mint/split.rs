//! An inner packet that does not fit is split over two outer ones, and joined again by the receiver.

use std::time::Duration;

use wayleave_core::Instant;

use super::super::header::{Handle, Part};

/// Parts that wait for their other half.
pub const LIMIT_JOINED: usize = 64;
/// Of these, parts of one path.
const LIMIT_OF_PATH: usize = 8;
/// How long a part waits.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The two halves of a payload for packets with space for `capacity` octets; `None` if one packet holds it all, or two do not.
#[must_use]
pub fn cut(payload: &[u8], capacity: usize) -> Option<(&[u8], &[u8])> {
    let is_cut = payload.len() > capacity && payload.len() <= 2 * capacity;
    is_cut.then(|| payload.split_at(payload.len().div_ceil(2)))
}

#[derive(Clone, Debug)]
struct Waiting {
    handle: Handle,
    /// Of the first part.
    nonce: u64,
    part: Part,
    since: Instant,
    octets: Vec<u8>,
}

/// Joins what was split. Parts must come from verified packets; whatever comes first waits, up to [`LIMIT_JOINED`] of them.
#[derive(Clone, Debug, Default)]
pub struct Joiner {
    waiting: Vec<Waiting>,
}

impl Joiner {
    /// Takes one part of a packet on the path of `handle`. Once the other has come, the payload is put into `out` and the
    /// result is true; `out` is empty otherwise.
    pub fn join(
        &mut self,
        handle: Handle,
        nonce: [u8; 8],
        part: Part,
        octets: &[u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> bool {
        out.clear();
        let nonce = u64::from_be_bytes(nonce).wrapping_sub(u64::from(part == Part::Second));
        if part == Part::Whole {
            out.extend_from_slice(octets);
            return true;
        }
        self.waiting.retain(|waiting| now.since(waiting.since) < TIMEOUT);
        let is_other = |waiting: &Waiting| waiting.handle == handle && waiting.nonce == nonce && waiting.part != part;
        if let Some(place) = self.waiting.iter().position(is_other) {
            let other = self.waiting.remove(place);
            let (first, second) =
                if part == Part::Second { (&other.octets[..], octets) } else { (octets, &other.octets[..]) };
            out.extend_from_slice(first);
            out.extend_from_slice(second);
            return true;
        }
        // The one that has waited longest goes, this path's own first: no path pushes out all others' parts.
        let is_own = |waiting: &Waiting| waiting.handle == handle;
        if self.waiting.iter().filter(|waiting| is_own(waiting)).count() >= LIMIT_OF_PATH {
            let own = self.waiting.iter().position(is_own).unwrap_or_default();
            self.waiting.remove(own);
        } else if self.waiting.len() == LIMIT_JOINED {
            self.waiting.remove(0);
        }
        self.waiting.push(Waiting { handle, nonce, part, since: now, octets: octets.to_vec() });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: Handle = Handle([7; 16]);

    #[test]
    fn two_halves_make_the_payload_in_either_order_and_others_never() {
        let payload: Vec<u8> = (0..=255).collect();
        assert!(cut(&payload, 256).is_none() && cut(&payload, 127).is_none());
        for capacity in [128, 200, 255] {
            let (first, second) = cut(&payload, capacity).unwrap();
            let mut joiner = Joiner::default();
            let mut out = Vec::new();
            let nonce = |n: u64| n.to_be_bytes();
            let now = Instant(5);
            // 9 and 10 belong together, and so do 11 and 12; what is between does not.
            assert!(!joiner.join(HANDLE, nonce(9), Part::First, first, now, &mut out));
            assert!(!joiner.join(HANDLE, nonce(12), Part::Second, second, now, &mut out));
            assert!(!joiner.join(Handle([8; 16]), nonce(10), Part::Second, second, now, &mut out));
            assert!(out.is_empty());
            assert!(joiner.join(HANDLE, nonce(10), Part::Second, second, now, &mut out));
            assert_eq!(out, payload);
            assert!(joiner.join(HANDLE, nonce(11), Part::First, first, now, &mut out));
            assert_eq!(out, payload);
            assert!(joiner.join(HANDLE, nonce(13), Part::Whole, &payload, now, &mut out));
        }
    }

    #[test]
    fn a_path_with_many_lost_halves_pushes_out_no_other_paths() {
        let mut joiner = Joiner::default();
        let mut out = Vec::new();
        joiner.join(Handle([1; 16]), [0; 8], Part::First, b"first ", Instant(0), &mut out);
        for n in 0..1_000u64 {
            joiner.join(HANDLE, (2 * n).to_be_bytes(), Part::First, b"lost", Instant(0), &mut out);
        }
        let nonce = 1u64.to_be_bytes();
        assert!(joiner.join(Handle([1; 16]), nonce, Part::Second, b"second", Instant(0), &mut out));
        assert_eq!(out, b"first second");
    }

    #[test]
    fn parts_wait_for_a_second_and_no_more_than_the_limit_of_them() {
        let mut joiner = Joiner::default();
        let mut out = Vec::new();
        for n in 0..10 * LIMIT_JOINED as u64 {
            joiner.join(HANDLE, (2 * n).to_be_bytes(), Part::First, b"first", Instant(0), &mut out);
        }
        assert_eq!(joiner.waiting.len(), LIMIT_OF_PATH);
        for n in 0..100u8 {
            joiner.join(Handle([n; 16]), [0; 8], Part::First, b"first", Instant(0), &mut out);
            assert!(joiner.waiting.len() <= LIMIT_JOINED);
        }
        let last = 2 * (10 * LIMIT_JOINED as u64 - 1) + 1;
        let later = Instant(0) + TIMEOUT;
        assert!(!joiner.join(HANDLE, last.to_be_bytes(), Part::Second, b"second", later, &mut out));
        assert_eq!(joiner.waiting.len(), 1);
    }
}

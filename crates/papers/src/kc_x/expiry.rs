//! The date after which a route is no longer valid (section III-B).
//!
//! The origin sets it, and every signature of the path covers it, so that nobody behind the origin can extend it, and a hop
//! of an earlier announcement does not fit a later one under the same key. An attestation has it once.

use std::time::Duration;

use wayleave_core::{Asn, UnixTime};

use super::certificates::{BitVector, write_formula};

/// How long a route is valid at least. The paper gives no number; this is the standard chain's.
pub const LIFETIME: Duration = Duration::from_hours(24);
/// Expiries are full hours, so that the origin's statement stays the same for all UPDATEs of an hour under one key.
const FULL: u64 = 3_600;

/// Seconds since 1970. On the wire: 4 octets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Expiry(pub u32);

impl Expiry {
    /// Octets on the wire.
    pub const LEN: usize = 4;

    /// The first full hour at least [`LIFETIME`] from now.
    #[must_use]
    pub fn of_route_announced_at(now: UnixTime) -> Self {
        let least = now.secs().saturating_add(LIFETIME.as_secs());
        Self(u32::try_from(least.div_ceil(FULL) * FULL).unwrap_or(u32::MAX))
    }

    /// Whether the route is no longer valid.
    #[must_use]
    pub fn has_passed(self, now: UnixTime) -> bool {
        now.secs() > u64::from(self.0)
    }

    /// The wire form.
    #[must_use]
    pub fn octets(self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }

    /// Decodes the wire form and returns the rest; `None` if it is truncated.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (octets, rest) = bytes.split_first_chunk()?;
        Some((Self(u32::from_be_bytes(*octets)), rest))
    }
}

/// What `R_i` signs: the expiry, then `N_0, ..., N_i; V_i; t_i^+`.
#[must_use]
pub fn expiring_formula(expiry: Expiry, path: &[Asn], vector: &BitVector, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(Expiry::LEN + 4 + 4 * path.len() + vector.wire_len() + key.len());
    write_expiring_formula(&mut out, expiry, path, vector, key);
    out
}

/// Appends the same to `out`.
pub fn write_expiring_formula(out: &mut Vec<u8>, expiry: Expiry, path: &[Asn], vector: &BitVector, key: &[u8]) {
    out.extend_from_slice(&expiry.octets());
    write_formula(out, path, vector, key);
}

#[cfg(test)]
mod tests {
    //! KCX-03, expiry: a route to the last second of its expiry, and clocks beyond 32 bits: valid to that second; no
    //! wrap.

    use super::*;

    fn at(secs: u64) -> UnixTime {
        UnixTime(secs * 1_000_000)
    }

    #[test]
    fn a_route_is_valid_for_a_day_and_to_the_end_of_the_hour() {
        let day = LIFETIME.as_secs();
        for (announced, expiry) in [(0, day), (1, day + FULL), (FULL, day + FULL), (FULL + 1, day + 2 * FULL)] {
            assert_eq!(u64::from(Expiry::of_route_announced_at(at(announced)).0), expiry, "{announced}");
        }
    }

    #[test]
    fn the_last_second_counts_and_a_clock_beyond_32_bits_does_not_wrap() {
        let expiry = Expiry(100);
        assert!(!expiry.has_passed(UnixTime(100_999_999)));
        assert!(expiry.has_passed(at(101)));
        assert_eq!(Expiry::of_route_announced_at(UnixTime(u64::MAX)), Expiry(u32::MAX));
        assert!(Expiry(u32::MAX).has_passed(at(1 << 32)));
    }
}

//! Key epochs by their full numbers: the paper's key ID has the last four bits alone, which name a wrong secret after they
//! wrap.

use wayleave_core::UnixTime;

use super::super::header::Interval;

/// Epochs before and after the current one whose keys are accepted (paper, section 3.2).
pub const ADJACENT_EPOCHS: u64 = 1;

/// The number of the key epoch at `now`: Unix seconds shifted right by the interval's exponent.
#[must_use]
pub fn epoch_at(interval: Interval, now: UnixTime) -> u32 {
    // The shortest interval is 16 seconds, so that this fits until the year 4147, and beside a capability's marks until 2514.
    (now.secs() >> interval.exponent()) as u32
}

/// The first second of an epoch.
#[must_use]
pub fn epoch_begin(interval: Interval, epoch: u32) -> u64 {
    u64::from(epoch) << interval.exponent()
}

/// Whether the key of `epoch` is accepted at `now`: it is the previous, current or next one.
#[must_use]
pub fn is_accepted(interval: Interval, epoch: u32, now: UnixTime) -> bool {
    (now.secs() >> interval.exponent()).abs_diff(u64::from(epoch)) <= ADJACENT_EPOCHS
}

/// Which of the epochs that a stamper holds secrets of it uses at `now`: the current one, or else the next or the previous one, which
/// waypoints accept too. `None` if none is accepted.
#[must_use]
pub fn to_stamp_with(interval: Interval, held: impl Iterator<Item = u32>, now: UnixTime) -> Option<u32> {
    let current = epoch_at(interval, now);
    // In order of preference: by the waypoint's clock the next epoch may have begun, and the previous one is nearer to its end.
    let accepted = [Some(current), current.checked_add(1), current.checked_sub(1)];
    let rank = |epoch: u32| accepted.iter().position(|accepted| *accepted == Some(epoch));
    held.filter_map(|epoch| Some((rank(epoch)?, epoch))).min().map(|(_, epoch)| epoch)
}

#[cfg(test)]
mod tests {
    //! PLA-03, 15: every epoch against its neighbours and those with equal low bits; all intervals; 2038 and 2106: the
    //! previous, current and next epoch only.

    use super::*;

    fn at(secs: u64) -> UnixTime {
        UnixTime(secs * 1_000_000)
    }

    /// PLA-03: the wrap of every low bit, all of 65,536 epochs against neighbours up to two away.
    #[test]
    fn only_the_previous_current_and_next_epoch_are_accepted() {
        let interval = Interval::new(12).expect("in range");
        for epoch in 0..=65_536u64 {
            let now = at((epoch << 12) + (epoch % 4096));
            for other in epoch.saturating_sub(2)..=epoch + 2 {
                let accepted = is_accepted(interval, other as u32, now);
                assert_eq!(accepted, other.abs_diff(epoch) <= 1, "{other} at {epoch}");
            }
        }
    }

    #[test]
    fn the_current_epoch_is_preferred_to_the_next_and_that_to_the_previous() {
        let interval = Interval::new(4).expect("in range");
        let chosen = |held: &[u32], epoch: u64| to_stamp_with(interval, held.iter().copied(), at((epoch << 4) + 3));
        for held in [[98, 99, 100, 101, 102], [102, 101, 100, 99, 98]] {
            assert_eq!(chosen(&held, 100), Some(100));
        }
        assert_eq!(chosen(&[99, 101], 100), Some(101));
        assert_eq!(chosen(&[98, 99], 100), Some(99));
        assert_eq!(chosen(&[98, 102], 100), None);
        assert_eq!(chosen(&[], 100), None);
        // At both ends of the numbers.
        assert_eq!(chosen(&[u32::MAX], 0), None);
        assert_eq!(chosen(&[0], u64::from(u32::MAX)), None);
    }

    /// PLA-03: what shares its low four, eight or sixteen bits with the current epoch is not taken for it.
    #[test]
    fn an_epoch_with_the_same_low_bits_is_refused() {
        let interval = Interval::new(4).expect("in range");
        for epoch in 0x1_0000..0x2_0000u64 {
            for apart in [16, 256, 65_536] {
                assert!(!is_accepted(interval, (epoch - apart) as u32, at(epoch << 4)));
                assert!(!is_accepted(interval, (epoch + apart) as u32, at(epoch << 4)));
            }
        }
    }

    /// PLA-15: seconds that do not fit 31 or 32 bits, for every interval.
    #[test]
    fn epochs_go_on_after_2038_and_2106_for_every_interval() {
        for n in Interval::SHORTEST.exponent()..=Interval::LONGEST.exponent() {
            let interval = Interval::new(n).expect("in range");
            for turn in [1u64 << 31, 1 << 32] {
                for secs in turn - (3 << n).min(turn)..=turn - (3 << n).min(turn) + 8 {
                    check(interval, secs);
                }
                for secs in turn - 4..turn + 4 {
                    check(interval, secs);
                }
                check(interval, turn + (2 << n));
            }
        }
    }

    fn check(interval: Interval, secs: u64) {
        let current = u64::from(epoch_at(interval, at(secs)));
        let length = 1u64 << interval.exponent();
        assert_eq!(current, secs / length);
        assert!(epoch_begin(interval, current as u32) <= secs);
        assert!(secs < epoch_begin(interval, current as u32) + length);
        for other in current.saturating_sub(3)..=current + 3 {
            assert_eq!(is_accepted(interval, other as u32, at(secs)), other.abs_diff(current) <= 1);
        }
    }
}

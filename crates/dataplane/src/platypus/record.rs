//! The key of an account's record in a router's store.
//!
//! | octets | |
//! |---|---|
//! | 3 | principal |
//! | 1 | 1: delegated; 2: sub-delegated; 4: there is an interval |
//! | 3 | delegation ID, or zero |
//! | 3 | sub-delegation ID, or zero |
//! | 1 | exponent of the interval, or zero |
//! | 4 | epoch; the key ID in version 0 |

use wayleave_core::UnixTime;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::mint::epoch::ADJACENT_EPOCHS;
use wayleave_packet::platypus::verify::Charge;

/// Seconds after which an account that is over is closed: so far the clock may go back.
pub const MARGIN_SECS: u64 = 300;

/// Octets of a key.
pub const LENGTH: usize = 15;

const DELEGATED: u8 = 1;
const SUB_DELEGATED: u8 = 2;
const INTERVAL: u8 = 4;

/// Writes the key of `charge`.
#[must_use]
pub fn encode(charge: &Charge) -> [u8; LENGTH] {
    let (id, sub) = charge.delegation.map_or((None, None), |(id, sub)| (Some(id), sub));
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(id.is_some(), DELEGATED) | flag(sub.is_some(), SUB_DELEGATED);
    let mut key = [0; LENGTH];
    key[..3].copy_from_slice(&charge.principal.octets());
    key[3] = flags | flag(charge.interval.is_some(), INTERVAL);
    key[4..7].copy_from_slice(&id.unwrap_or_default().octets());
    key[7..10].copy_from_slice(&sub.unwrap_or_default().octets());
    key[10] = charge.interval.map_or(0, Interval::exponent);
    key[11..].copy_from_slice(&charge.epoch.to_be_bytes());
    key
}

/// Reads a key; `None` if it is none of this format.
#[must_use]
pub fn decode(key: &[u8]) -> Option<Charge> {
    let key: &[u8; LENGTH] = key.try_into().ok()?;
    let number = |at: usize| u32::from_be_bytes([0, key[at], key[at + 1], key[at + 2]]);
    let flags = key[3];
    let sub = if flags & SUB_DELEGATED != 0 { Some(DelegationId::new(number(7))?) } else { None };
    let delegation = if flags & DELEGATED != 0 { Some((DelegationId::new(number(4))?, sub)) } else { None };
    let interval = if flags & INTERVAL != 0 { Some(Interval::new(key[10])?) } else { None };
    let epoch = u32::from_be_bytes(*key.last_chunk::<4>()?);
    Some(Charge { principal: Principal::new(number(0))?, delegation, interval, epoch })
}

/// Whether no packet of this account's epoch is accepted at `now` or later. An account without an interval has no end.
#[must_use]
pub fn is_over(charge: &Charge, now: UnixTime) -> bool {
    charge
        .interval
        .is_some_and(|interval| u64::from(charge.epoch) + ADJACENT_EPOCHS < now.secs() >> interval.exponent())
}

/// How many key epochs of this interval have accounts at once: those that are accepted, and those that are over and not yet
/// closed.
#[must_use]
pub fn live_epochs(interval: Interval) -> u32 {
    let closing = MARGIN_SECS.div_ceil(1 << interval.exponent());
    u32::try_from(2 * ADJACENT_EPOCHS + 1 + closing).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let principal = Principal::new(0x12_3456).expect("24 bits");
        let id = |id| DelegationId::new(id).expect("24 bits");
        for delegation in [None, Some((id(1), None)), Some((id(0xff_ffff), Some(id(3))))] {
            for interval in [None, Interval::new(12)] {
                let charge = Charge { principal, delegation, interval, epoch: 0xfedc_ba98 };
                let key = encode(&charge);
                assert_eq!(decode(&key), Some(charge));
                assert_eq!(decode(&key[1..]), None);
            }
        }
    }

    #[test]
    fn an_epoch_is_over_when_it_is_accepted_no_more_and_never_while_it_is_to_come() {
        let charge = |epoch, interval| {
            let principal = Principal::new(7).expect("24 bits");
            Charge { principal, delegation: None, interval, epoch }
        };
        let now = UnixTime((100 << 12) * 1_000_000);
        let over: Vec<u32> = (95..105).filter(|epoch| is_over(&charge(*epoch, Interval::new(12)), now)).collect();
        assert_eq!(over, [95, 96, 97, 98]);
        assert!(!is_over(&charge(1, None), now));
    }

    #[test]
    fn as_many_epochs_have_accounts_as_are_accepted_or_not_yet_closed() {
        let principal = Principal::new(7).expect("24 bits");
        for n in 4..=24 {
            let interval = Interval::new(n).expect("in range");
            let then = |secs: u64| UnixTime(secs * 1_000_000);
            let is_live = |epoch: u64, now: u64| {
                let charge = Charge { principal, delegation: None, interval: Some(interval), epoch: epoch as u32 };
                epoch <= (now >> n) + ADJACENT_EPOCHS && !is_over(&charge, then(now - MARGIN_SECS))
            };
            let begin = 100 << n;
            let live = |now: u64| {
                let around = (now >> n).saturating_sub(MARGIN_SECS)..=(now >> n) + 3;
                around.filter(|epoch| is_live(*epoch, now)).count() as u32
            };
            let most = (0..1u64 << n.min(9)).map(|late| live(begin + late)).max().expect("some");
            assert_eq!(most, live_epochs(interval), "{n}");
        }
        let [shortest, usual] = [4, 12].map(|n| live_epochs(Interval::new(n).expect("in range")));
        assert_eq!((shortest, usual), (22, 4));
    }
}

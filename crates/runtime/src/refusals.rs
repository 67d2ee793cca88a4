//! Which refused certificates are told in the log: each once in a while, so that a peer that keeps trying floods nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::identity::Fingerprint;
use crate::tls::{Refusal, RefusalReason};

/// A certificate refused for one reason is told no more often than this.
const EVERY: Duration = Duration::from_secs(60);
/// Certificates told apart. Whoever comes with ever new ones is counted and not told.
const MOST: usize = 1024;

/// What was told, and how often nothing was.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<(Fingerprint, RefusalReason), Told>>);

#[derive(Debug)]
struct Told {
    at: Instant,
    untold: u64,
}

impl Refusals {
    /// Whether to tell this one, and with it how many like it were not told before.
    pub(crate) fn note(&self, refusal: &Refusal, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (refusal.fingerprint, refusal.reason);
        if let Some(told) = told.get_mut(&key) {
            if now - told.at < EVERY {
                told.untold += 1;
                return None;
            }
            told.at = now;
            return Some(std::mem::take(&mut told.untold));
        }
        if told.len() >= MOST {
            told.retain(|_, told| now - told.at < EVERY);
        }
        if told.len() >= MOST {
            return None;
        }
        told.insert(key, Told { at: now, untold: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_told_once_a_minute_and_the_rest_is_counted() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let refusal = |octet| Refusal { fingerprint: Fingerprint([octet; 32]), reason: RefusalReason::Unknown };
        assert_eq!(refusals.note(&refusal(1), begin), Some(0));
        for second in 1..60 {
            assert_eq!(refusals.note(&refusal(1), begin + Duration::from_secs(second)), None);
        }
        assert_eq!(refusals.note(&refusal(2), begin + Duration::from_secs(1)), Some(0));
        let expired = Refusal { reason: RefusalReason::Expired, ..refusal(1) };
        assert_eq!(refusals.note(&expired, begin + Duration::from_secs(1)), Some(0));
        assert_eq!(refusals.note(&refusal(1), begin + Duration::from_secs(60)), Some(59));
    }

    #[test]
    fn ever_new_certificates_take_no_more_room_than_there_is() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let new = |number: usize, at| {
            let mut octets = [0; 32];
            octets[..8].copy_from_slice(&number.to_be_bytes());
            let refusal = Refusal { fingerprint: Fingerprint(octets), reason: RefusalReason::Unknown };
            refusals.note(&refusal, at)
        };
        assert_eq!((0..5000).filter(|number| new(*number, begin).is_some()).count(), MOST);
        assert_eq!(new(5000, begin + EVERY), Some(0));
    }
}

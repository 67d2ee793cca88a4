//! Limits the log of refused certificates: each at most once a minute, so that a peer that keeps trying does not flood it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::identity::Fingerprint;
use crate::tls::{Refusal, RefusalReason};

/// A certificate refused for one reason is logged no more often than this.
const INTERVAL: Duration = Duration::from_secs(60);
/// Certificates remembered, and so lines in an interval: a stranger makes certificates without end. Beyond that, new ones are
/// refused without a log line, and the next line counts them.
const MAX_RECORDS: usize = 64;

/// The last log line of each certificate, and how many were suppressed since.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    logged: HashMap<(Fingerprint, RefusalReason), LogRecord>,
    /// Refusals of certificates that are not remembered, since the last line.
    others: u64,
}

#[derive(Debug)]
struct LogRecord {
    at: Instant,
    suppressed: u64,
}

impl Refusals {
    /// Whether to log this one: if so, how many refusals like it, or of certificates that are not remembered, were suppressed
    /// since the last line.
    pub(crate) fn note(&self, refusal: &Refusal, now: Instant) -> Option<u64> {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Records { logged, others } = &mut *records;
        let key = (refusal.fingerprint, refusal.reason);
        if let Some(logged) = logged.get_mut(&key) {
            if now - logged.at < INTERVAL {
                logged.suppressed += 1;
                return None;
            }
            logged.at = now;
            return Some(std::mem::take(&mut logged.suppressed) + std::mem::take(others));
        }
        if logged.len() >= MAX_RECORDS {
            logged.retain(|_, logged| now - logged.at < INTERVAL);
        }
        if logged.len() >= MAX_RECORDS {
            *others += 1;
            return None;
        }
        logged.insert(key, LogRecord { at: now, suppressed: 0 });
        Some(std::mem::take(others))
    }
}

#[cfg(test)]
mod tests {
    //! KCX-38: 10,000 certificates of strangers: few lines and no more memory, the rest is counted.

    use super::*;

    #[test]
    fn a_certificate_is_logged_once_a_minute_and_the_rest_is_counted() {
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
    fn ever_new_certificates_take_no_more_memory_and_few_lines() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let new = |number: usize, at| {
            let mut octets = [0; 32];
            octets[..8].copy_from_slice(&number.to_be_bytes());
            let refusal = Refusal { fingerprint: Fingerprint(octets), reason: RefusalReason::Unknown };
            refusals.note(&refusal, at)
        };
        assert_eq!((0..10_000).filter(|number| new(*number, begin).is_some()).count(), MAX_RECORDS);
        assert_eq!(new(10_000, begin + INTERVAL), Some(10_000 - MAX_RECORDS as u64), "none is forgotten");
    }
}

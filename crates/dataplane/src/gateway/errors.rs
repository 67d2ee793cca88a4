//! The limit of ICMP errors to this end's hosts.
//!
//! Whoever sends what cannot go uses up its own part. A host with many addresses passes for many hosts, so what all of them get has a bound
//! too, and a part of that is for packets that are too long: without those TCP stands still.

use std::net::IpAddr;

use wayleave_core::Instant;

use super::inner::IcmpError;
use crate::limit::TokenBucket;

/// ICMP errors in a second, and at once: to all hosts, of packets that are too long beside that, and to each host.
const ALL: (u32, u32) = (60, 30);
const TOO_BIG: (u32, u32) = (40, 20);
const HOST: (u32, u32) = (20, 10);
/// Hosts whose part is remembered.
const LIMIT_HOSTS: usize = 256;

pub(super) struct ErrorLimit {
    all: TokenBucket,
    too_big: TokenBucket,
    /// The one that was told last is the last.
    hosts: Vec<(IpAddr, TokenBucket)>,
}

impl Default for ErrorLimit {
    fn default() -> Self {
        let bucket = |(rate, burst)| TokenBucket::new(rate, burst);
        Self { all: bucket(ALL), too_big: bucket(TOO_BIG), hosts: Vec::new() }
    }
}

impl ErrorLimit {
    /// Takes one more error to `host`; returns whether it may be sent.
    pub(super) fn take(&mut self, host: IpAddr, error: &IcmpError, now: Instant) -> bool {
        let mut own = match self.hosts.iter().rposition(|(known, _)| *known == host) {
            Some(place) => self.hosts.remove(place).1,
            None => TokenBucket::new(HOST.0, HOST.1),
        };
        if self.hosts.len() == LIMIT_HOSTS {
            self.hosts.remove(0);
        }
        let is_too_big = matches!(error, IcmpError::TooBig(_));
        let takes = own.ready(now) && (self.all.take(now) || is_too_big && self.too_big.take(now));
        let takes = takes && own.take(now);
        self.hosts.push((host, own));
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: usize) -> IpAddr {
        IpAddr::from((number as u32).to_be_bytes())
    }

    #[test]
    fn a_host_takes_no_other_hosts_part_and_many_take_nothing_of_what_is_for_long_packets() {
        let mut limit = ErrorLimit::default();
        let now = Instant(1_000_000_000);
        let mut count = |hosts: std::ops::Range<usize>, error: IcmpError| {
            (0..1_000).flat_map(|_| hosts.clone()).filter(|number| limit.take(host(*number), &error, now)).count()
        };
        assert_eq!(count(1..2, IcmpError::Unreachable), 10);
        assert_eq!(count(2..3, IcmpError::TooBig(1_000)), 10);
        assert_eq!(count(3..1_000, IcmpError::Unreachable), 10);
        assert_eq!(count(1_000..1_001, IcmpError::Unreachable), 0);
        assert_eq!(count(1_001..1_003, IcmpError::TooBig(1_000)), 20);
        assert_eq!(limit.hosts.len(), LIMIT_HOSTS);
    }
}

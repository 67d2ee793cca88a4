//! Answers by UDP to who has not shown that it receives at its address: so many a second for each network, so that a server is of
//! no use to whoever would flood somebody else, and one network's questions do not keep others' waiting.
//!
//! What is beyond the limit gets nothing, but for every other question, which is told to come by TCP: a resolver that shares a
//! network with a flood still has its answers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use wayleave_core::Instant;

use crate::budget::Budget;

/// Networks that are told apart. Those beyond share one allowance.
const MAX_SOURCES: usize = 65_536;
/// A full table is swept at most this often.
const SWEEP: Duration = Duration::from_secs(1);

/// Answers of one network: an IPv4 prefix of 24 bits, or an IPv6 prefix of 56.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLimit {
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// What becomes of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Allowance {
    Answer,
    /// An answer without content, which sends the client to TCP.
    ComeByTcp,
    Nothing,
}

#[derive(Clone)]
struct Source {
    budget: Budget,
    was_told: bool,
}

/// The table.
pub(super) struct Sources {
    limit: SourceLimit,
    table: HashMap<u64, Source>,
    others: Source,
    swept: Instant,
}

impl Sources {
    pub(super) fn new(limit: SourceLimit) -> Self {
        let source = Source { budget: Budget::new(limit.per_second, limit.burst), was_told: false };
        Self { limit, table: HashMap::new(), others: source, swept: Instant(0) }
    }

    /// Takes an answer from the allowance of the network of `address`.
    pub(super) fn take(&mut self, address: IpAddr, now: Instant) -> Allowance {
        let network = network(address);
        if self.table.len() >= MAX_SOURCES && !self.table.contains_key(&network) && now >= self.swept + SWEEP {
            self.swept = now;
            self.table.retain(|_, source| !source.budget.is_full(now));
        }
        let source = if self.table.len() < MAX_SOURCES || self.table.contains_key(&network) {
            let SourceLimit { per_second, burst } = self.limit;
            let fresh = || Source { budget: Budget::new(per_second, burst), was_told: false };
            self.table.entry(network).or_insert_with(fresh)
        } else {
            &mut self.others
        };
        if source.budget.take(now) {
            return Allowance::Answer;
        }
        source.was_told = !source.was_told;
        if source.was_told { Allowance::ComeByTcp } else { Allowance::Nothing }
    }

    /// Networks in the table.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.table.len()
    }
}

/// IPv4 networks lie where no IPv6 network of 56 bits does.
fn network(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => u64::from(u32::from(v4) >> 8) | 1 << 63,
        IpAddr::V6(v6) => (u128::from(v6) >> 72) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn a_network_has_its_burst_then_its_rate_and_others_are_not_concerned() {
        let mut sources = Sources::new(SourceLimit { per_second: 10, burst: 5 });
        let now = Instant(1_000_000_000);
        let all: Vec<Allowance> = (0..9).map(|host| sources.take(v4(host), now)).collect();
        assert_eq!(all[..5], [Allowance::Answer; 5]);
        assert_eq!(all[5..], [Allowance::ComeByTcp, Allowance::Nothing, Allowance::ComeByTcp, Allowance::Nothing]);
        assert_eq!(sources.take(v4(256), now), Allowance::Answer, "the next network");
        assert_eq!(sources.take(v4(1), now + Duration::from_millis(100)), Allowance::Answer);
        let v6 = |text: &str| text.parse::<IpAddr>().expect("an address");
        for _ in 0..5 {
            assert_eq!(sources.take(v6("2001:db8:0:100::1"), now), Allowance::Answer);
        }
        assert_eq!(sources.take(v6("2001:db8:0:1ff::1"), now), Allowance::ComeByTcp);
        assert_eq!(sources.take(v6("2001:db8:0:200::1"), now), Allowance::Answer);
    }

    #[test]
    fn a_flood_from_every_network_fills_a_bounded_table_and_leaves_those_that_are_in_it_their_own() {
        let mut sources = Sources::new(SourceLimit { per_second: 10, burst: 5 });
        let now = Instant(10_000_000_000);
        let beyond = MAX_SOURCES as u32 + 1_000;
        let answered = (0..beyond).filter(|n| sources.take(v4(n << 8), now) == Allowance::Answer).count();
        assert_eq!((sources.len(), answered), (MAX_SOURCES, MAX_SOURCES + 5), "those beyond share one allowance");
        assert_eq!(sources.take(v4(7 << 8), now), Allowance::Answer);
        let later = now + Duration::from_secs(2);
        assert_eq!(sources.take(v4(beyond << 8), later), Allowance::Answer);
        assert_eq!(sources.len(), 1, "networks whose allowance is whole again are forgotten");
    }
}

//! Rates of principals and delegations, divided among threads by the demand that each has met.

use toml::Spanned;
use wayleave_control::leases::floor;
use wayleave_core::Instant;
use wayleave_dataplane::platypus::account::{Accounts, Payer, shares};
use wayleave_dataplane::replay::Partition;
use wayleave_packet::platypus::header::{DelegationId, Principal};

use super::Platypus;
use crate::config::router::platypus::{PlatypusSection, RateSection};
use crate::roles::router::threads::Threads;
use crate::roles::router::worker::Worker;

/// A rate of all threads together; of a shared one, this router's floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate {
    payer: Payer,
    /// Octets a second.
    rate: u64,
    /// Octets at once.
    burst: u64,
    /// In the replay filter, which all threads share.
    partition: Partition,
    /// Other routers have a part of it: what this one has beyond its floor, the key server leases to it.
    is_shared: bool,
}

/// All rates of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rates {
    all: Vec<Rate>,
    /// The partition of all other payers.
    pool: Partition,
    threads: u64,
}

impl Rates {
    /// `capacity` is the replay filter's, in packets a turn.
    pub fn new(section: &PlatypusSection, threads: u64, capacity: usize) -> Self {
        let partitions = section.partitions(capacity, threads);
        let rate = |(section, partition): (&RateSection, &Partition)| {
            let number = |number: u64| u32::try_from(number).ok();
            Some(Rate {
                payer: Payer {
                    principal: number(*section.principal.get_ref()).and_then(Principal::new)?,
                    delegation: match &section.delegation {
                        Some(id) => Some(number(*id.get_ref()).and_then(DelegationId::new)?),
                        None => None,
                    },
                },
                rate: match section.routers {
                    Some(routers) => floor(*section.rate.get_ref(), routers.into()),
                    None => *section.rate.get_ref(),
                },
                is_shared: section.routers.is_some(),
                burst: section.burst(threads),
                partition: *partition,
            })
        };
        // The configuration was checked: no number has more than 24 bits.
        let all = section.rates.iter().map(Spanned::get_ref).zip(&partitions.each).filter_map(rate).collect();
        Self { all, pool: partitions.pool, threads }
    }

    /// Sets all rates, evenly divided; what is left in each bucket stays.
    pub fn set(&self, accounts: &mut Accounts, now: Instant) {
        accounts.retain_rates(|payer| self.all.iter().any(|rate| rate.payer == *payer));
        accounts.set_pool(self.pool);
        for rate in &self.all {
            self.set_one(rate, rate.rate / self.threads, accounts, now);
            accounts.set_partition(&rate.payer, rate.partition);
        }
    }

    fn set_one(&self, rate: &Rate, share: u64, accounts: &mut Accounts, now: Instant) {
        accounts.set_rate(rate.payer, share, rate.burst / self.threads, now);
    }

    /// Divides the rates by the demand that each thread has met since the last call. The system gives flows to threads, so
    /// that a principal with one flow is served by one thread: with an even share it would get a fraction of its rate.
    pub async fn divide(mut self, threads: &Threads<Platypus>) {
        self.all.retain(|rate| !rate.is_shared);
        if self.all.is_empty() || threads.count() < 2 {
            return;
        }
        let payers: Vec<Payer> = self.all.iter().map(|rate| rate.payer).collect();
        let mut demands: Vec<Vec<u64>> = Vec::new();
        for thread in 0..threads.count() {
            let payers = payers.clone();
            let demand = move |worker: &mut Worker<Platypus>| {
                payers.iter().map(|payer| worker.format.router.accounts().take_demand(payer)).collect()
            };
            demands.push(threads.query(thread, demand).await.unwrap_or_default());
        }
        for (thread, shares) in self.shares(&demands).into_iter().enumerate() {
            let rates = self.clone();
            let set = move |worker: &mut Worker<Platypus>| {
                let now = worker.clock.now().instant;
                for (rate, share) in rates.all.iter().zip(shares) {
                    rates.set_one(rate, share, worker.format.router.accounts(), now);
                }
            };
            threads.query(thread, set).await;
        }
    }

    /// For each thread its share of each rate, in their order; demands are in the same order.
    fn shares(&self, demands: &[Vec<u64>]) -> Vec<Vec<u64>> {
        let mut out = vec![Vec::new(); demands.len()];
        for (number, rate) in self.all.iter().enumerate() {
            let demand: Vec<u64> = demands.iter().map(|demand| demand.get(number).copied().unwrap_or(0)).collect();
            out.iter_mut().zip(shares(rate.rate, &demand)).for_each(|(out, share)| out.push(share));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_each_rate_by_the_demand_that_they_meet() {
        let rate = |principal, rate| Rate {
            payer: Payer { principal: Principal::new(principal).expect("24 bits"), delegation: None },
            rate,
            burst: 1,
            partition: Partition::pool(1),
            is_shared: false,
        };
        let rates = Rates { all: vec![rate(1, 100), rate(2, 1_000)], pool: Partition::pool(1), threads: 2 };
        assert_eq!(rates.shares(&[vec![500, 0], vec![30, 0]]), [[70, 500], [30, 500]]);
        // A thread that has ended answers nothing.
        assert_eq!(rates.shares(&[vec![500, 7], Vec::new()]), [[100, 503], [0, 496]]);
    }
}

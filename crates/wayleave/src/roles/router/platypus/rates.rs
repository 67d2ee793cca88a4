//! Rates that principals and delegations are held to, divided among threads by what is asked for at each.

use wayleave_core::Instant;
use wayleave_dataplane::platypus::account::{Accounts, Payer, shares};
use wayleave_packet::platypus::header::{DelegationId, Principal};

use super::Engine;
use super::worker::{Handle, ask};
use crate::config::platypus::{PlatypusSection, RateSection};

/// A rate of all threads together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate {
    payer: Payer,
    /// Octets a second.
    rate: u64,
    /// Octets at once.
    burst: u64,
}

/// All rates of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rates {
    all: Vec<Rate>,
    threads: u64,
}

impl Rates {
    pub fn new(section: &PlatypusSection, threads: u64) -> Self {
        let rate = |section: &RateSection| {
            let number = |number: u64| u32::try_from(number).ok();
            Some(Rate {
                payer: Payer {
                    principal: number(*section.principal.get_ref()).and_then(Principal::new)?,
                    delegation: match &section.delegation {
                        Some(id) => Some(number(*id.get_ref()).and_then(DelegationId::new)?),
                        None => None,
                    },
                },
                rate: *section.rate.get_ref(),
                burst: section.burst(threads),
            })
        };
        // The configuration has been checked: no number has more than 24 bits.
        Self { all: section.rates.iter().filter_map(|section| rate(section.get_ref())).collect(), threads }
    }

    /// Takes all rates over, evenly divided; what is left in each bucket stays.
    pub fn set(&self, accounts: &mut Accounts, now: Instant) {
        accounts.retain_rates(|payer| self.all.iter().any(|rate| rate.payer == *payer));
        for rate in &self.all {
            self.set_one(rate, rate.rate / self.threads, accounts, now);
        }
    }

    fn set_one(&self, rate: &Rate, share: u64, accounts: &mut Accounts, now: Instant) {
        accounts.set_rate(rate.payer, share, rate.burst / self.threads, now);
    }

    /// Divides the rates anew by what each thread was asked for since the last time.
    pub async fn divide(self, workers: &[Handle]) {
        if self.all.is_empty() || workers.len() < 2 {
            return;
        }
        let mut demands = Vec::new();
        for worker in workers {
            let payers: Vec<Payer> = self.all.iter().map(|rate| rate.payer).collect();
            let demand = ask(&worker.tasks, move |worker| match &mut worker.engine {
                Engine::Platypus(engine) => {
                    payers.iter().map(|payer| engine.router.accounts().take_demand(payer)).collect()
                }
                Engine::Scion(_) | Engine::Icing(_) => Vec::new(),
            });
            demands.push(demand.await.unwrap_or_default());
        }
        for (worker, shares) in workers.iter().zip(self.shares(&demands)) {
            let rates = self.clone();
            let set = move |worker: &mut super::worker::Worker| {
                let now = worker.clock.now().instant;
                if let Engine::Platypus(engine) = &mut worker.engine {
                    for (rate, share) in rates.all.iter().zip(shares) {
                        rates.set_one(rate, share, engine.router.accounts(), now);
                    }
                }
            };
            ask(&worker.tasks, set).await;
        }
    }

    /// For each thread its share of each rate, in their order; what each was asked for is in the same order.
    fn shares(&self, demands: &[Vec<u64>]) -> Vec<Vec<u64>> {
        let mut out = vec![Vec::new(); demands.len()];
        for (place, rate) in self.all.iter().enumerate() {
            let asked: Vec<u64> = demands.iter().map(|demand| demand.get(place).copied().unwrap_or(0)).collect();
            out.iter_mut().zip(shares(rate.rate, &asked)).for_each(|(out, share)| out.push(share));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_each_rate_by_what_they_are_asked_for() {
        let rate = |principal, rate| Rate {
            payer: Payer { principal: Principal::new(principal).expect("24 bits"), delegation: None },
            rate,
            burst: 1,
        };
        let rates = Rates { all: vec![rate(1, 100), rate(2, 1_000)], threads: 2 };
        assert_eq!(rates.shares(&[vec![500, 0], vec![30, 0]]), [[70, 500], [30, 500]]);
        // A thread that has ended says nothing.
        assert_eq!(rates.shares(&[vec![500, 7], Vec::new()]), [[100, 503], [0, 496]]);
    }
}

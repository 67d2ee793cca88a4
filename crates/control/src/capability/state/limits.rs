//! Rates over all routers of the payers of a state, by the operator and by holders.

use std::collections::BTreeMap;

use wayleave_packet::platypus::header::Principal;

use super::{ChangeError, DelegationLimit, MAX_RATES, RatePayer, RateTerms, State, of_principal};

impl State {
    /// What routers share: the rates, and of delegations that their holders limit no more than that.
    #[must_use]
    pub fn shared_rates(&self) -> BTreeMap<RatePayer, RateTerms> {
        let payers = self.rates.keys().chain(self.limits.keys());
        payers.filter_map(|payer| Some((*payer, self.rate_of(payer)?))).collect()
    }

    /// The same of one payer.
    #[must_use]
    pub fn rate_of(&self, payer: &RatePayer) -> Option<RateTerms> {
        let (rate, limit) = (self.rates.get(payer).copied(), self.limits.get(payer).copied());
        let (Some(rate), Some(limit)) = (rate, limit) else { return rate.or(limit) };
        // Zero leaves the burst to the router.
        let burst = match (rate.burst, limit.burst) {
            (0, burst) | (burst, 0) => burst,
            (one, other) => one.min(other),
        };
        Some(RateTerms { rate: rate.rate.min(limit.rate), burst, offline: rate.offline })
    }

    /// What the holder of a delegation limits it to.
    #[must_use]
    pub fn limit_of(&self, payer: &RatePayer) -> DelegationLimit {
        let volume = self.quotas.get(payer).filter(|_| payer.delegation.is_some());
        let month_octets = volume.and_then(|status| status.quota.hard);
        DelegationLimit { rate: self.limits.get(payer).copied(), month_octets }
    }

    /// The limits of the rates of a principal's delegations.
    pub fn limits_of(&self, principal: Principal) -> impl Iterator<Item = (RatePayer, RateTerms)> {
        of_principal(&self.limits, principal).map(|(payer, terms)| (*payer, *terms))
    }

    /// The rates over all routers that the operator set.
    #[must_use]
    pub fn rates(&self) -> &BTreeMap<RatePayer, RateTerms> {
        &self.rates
    }

    /// Those of a principal and of its delegations.
    pub fn rates_of(&self, principal: Principal) -> impl Iterator<Item = (RatePayer, RateTerms)> {
        of_principal(&self.rates, principal).map(|(payer, terms)| (*payer, *terms))
    }

    /// Whether routers may share one more rate, if this payer has none yet.
    pub(super) fn check_space_for_rate(&self, payer: &RatePayer) -> Result<(), ChangeError> {
        let has_rate = |payer: &RatePayer| self.rates.contains_key(payer);
        let all = self.rates.len() + self.limits.keys().filter(|payer| !has_rate(payer)).count();
        let is_known = has_rate(payer) || self.limits.contains_key(payer);
        if all >= MAX_RATES && !is_known { Err(ChangeError::Rates) } else { Ok(()) }
    }
}

//! Quotas by volume of the payers of a state.
//!
//! A quota that is used up takes nothing from the state: what it refuses and revokes follows from when that was found, so that nothing of
//! it is left once the quota is raised, and no revocation of anybody else's is touched.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_core::UnixTime;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::mint::epoch;
use wayleave_packet::platypus::revocation::Revocation;

use super::{ChangeError, EPOCHS, RatePayer, State, Terms, of_principal};
use crate::capability::charged::Month;
use crate::capability::volume_quota::{MAX_QUOTAS, QuotaStatus, VolumeQuota};

impl State {
    /// Quotas of principals, which the operator set.
    pub fn quotas(&self) -> impl Iterator<Item = (Principal, &QuotaStatus)> {
        let of_principals = self.volumes().filter(|(payer, _)| payer.delegation.is_none());
        of_principals.map(|(payer, status)| (payer.principal, status))
    }

    /// The same, and those to which holders limit delegations.
    pub fn volumes(&self) -> impl Iterator<Item = (RatePayer, &QuotaStatus)> {
        self.quotas.iter().map(|(payer, status)| (*payer, status))
    }

    #[must_use]
    pub fn quota(&self, principal: Principal) -> Option<&QuotaStatus> {
        self.volume(&RatePayer { principal, delegation: None })
    }

    /// The quota of a principal, or of a delegation that its holder limits.
    #[must_use]
    pub fn volume(&self, payer: &RatePayer) -> Option<&QuotaStatus> {
        self.quotas.get(payer)
    }

    /// Delegations of a principal, or of all, that are limited by volume.
    pub(super) fn limited_volumes(&self, only: Option<Principal>) -> usize {
        let is_meant = |payer: &RatePayer| only.is_none_or(|only| payer.principal == only);
        self.quotas.keys().filter(|payer| payer.delegation.is_some() && is_meant(payer)).count()
    }

    /// Whether a key epoch is of a month whose quota is used up, be it the principal's or the delegation's.
    #[must_use]
    pub fn is_used_up(&self, terms: &Terms, epoch: u32) -> bool {
        if self.quotas.is_empty() {
            return false;
        }
        let begins = Month::of(epoch::epoch_begin(terms.interval, epoch)).begin();
        let is_used_up = |delegation: Option<DelegationId>| {
            let held = self.quotas.get(&RatePayer { principal: terms.principal, delegation });
            held.is_some_and(|status| status.months().any(|(month, _)| month == begins))
        };
        is_used_up(None) || terms.delegation.is_some_and(|delegation| is_used_up(Some(delegation.id)))
    }

    pub(super) fn volumes_of(&self, principal: Principal) -> impl Iterator<Item = (RatePayer, QuotaStatus)> {
        of_principal(&self.quotas, principal).map(|(payer, status)| (*payer, *status))
    }

    /// The secrets that whoever used up a quota may have looked up before that was found: those of the month's key epochs that were accepted
    /// then, or next.
    pub(super) fn used_up_revocations(&self, second: u64) -> impl Iterator<Item = Revocation> {
        let months = |(payer, status): (RatePayer, &QuotaStatus)| {
            status.months().map(move |month| (payer, month)).collect::<Vec<_>>()
        };
        let used_up = self.volumes().filter(|(_, status)| status.used_up.is_some()).flat_map(months);
        // A principal may have many delegations that used up theirs, and as many grants: these are gone through once.
        let mut granted: BTreeMap<Principal, BTreeSet<Interval>> = BTreeMap::new();
        used_up.flat_map(move |(RatePayer { principal, delegation }, (month, found))| {
            let at = UnixTime(found.saturating_mul(1_000_000));
            let mut intervals = granted.entry(principal).or_insert_with(|| self.granted_intervals(principal)).clone();
            let withdrawn = self.withdrawn_of(principal).filter(|(_, until)| *until > found);
            intervals.extend(withdrawn.map(|(interval, _)| interval));
            let intervals = intervals.into_iter();
            intervals.flat_map(move |interval| {
                let first = epoch::epoch_at(interval, at).saturating_sub(1);
                let epochs = (first..).take(EPOCHS);
                let of_month = epochs.filter(move |of| Month::of(epoch::epoch_begin(interval, *of)).begin() == month);
                let all = of_month.map(move |epoch| Revocation {
                    principal,
                    delegation: delegation.map(|id| (id, None)),
                    epoch: Some((interval, epoch)),
                });
                all.filter(move |entry| entry.expires_at().is_some_and(|expiry| expiry > second))
            })
        })
    }

    pub(super) fn check_quota(&self, payer: &RatePayer, quota: &VolumeQuota) -> Result<(), ChangeError> {
        if self.account(payer.principal).is_none() {
            return Err(ChangeError::NoAccount(payer.principal.number()));
        }
        if !quota.is_sound() {
            return Err(ChangeError::QuotaTerms);
        }
        let is_full = self.quotas.len() >= MAX_QUOTAS && !self.quotas.contains_key(payer);
        if is_full { Err(ChangeError::Quotas) } else { Ok(()) }
    }

    /// Whether a quota can be used up of the month that begins at this second.
    pub(super) fn check_use_up(&self, payer: &RatePayer, month: u64) -> Result<(), ChangeError> {
        let held = self.quotas.get(payer).ok_or(ChangeError::NoQuota)?;
        if held.quota.hard.is_none() || !held.may_use_up(month) || Month::of(month).begin() != month {
            return Err(ChangeError::NoQuota);
        }
        Ok(())
    }

    /// One that is raised, or no longer hard, is not used up until that is found again.
    pub(super) fn set_quota(&mut self, payer: RatePayer, quota: VolumeQuota) {
        let held = self.quotas.get(&payer);
        let is_raised =
            |held: &&QuotaStatus| quota.hard.is_none_or(|hard| held.quota.hard.is_none_or(|old| hard > old));
        let held = held.filter(|held| !is_raised(held));
        let (used_up, before) = held.map_or((None, None), |held| (held.used_up, held.before));
        self.quotas.insert(payer, QuotaStatus { quota, used_up, before });
    }
}

//! Quotas by volume of the payers of a state.
//!
//! A quota that is used up takes nothing from the state: what it refuses and revokes follows from when that was found, so that nothing of
//! it is left once the quota is raised, and no revocation of anybody else's is touched.

use wayleave_core::UnixTime;
use wayleave_packet::platypus::header::{Interval, Principal};
use wayleave_packet::platypus::mint::epoch;
use wayleave_packet::platypus::revocation::Revocation;

use super::{ChangeError, EPOCHS, State};
use crate::capability::charged::Month;
use crate::capability::volume_quota::{MAX_QUOTAS, QuotaStatus, VolumeQuota};

impl State {
    /// Quotas by whose they are.
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = (Principal, &QuotaStatus)> {
        self.quotas.iter().map(|(principal, status)| (*principal, status))
    }

    #[must_use]
    pub fn quota(&self, principal: Principal) -> Option<&QuotaStatus> {
        self.quotas.get(&principal)
    }

    /// Whether a key epoch is of a month whose quota is used up.
    #[must_use]
    pub fn is_used_up(&self, principal: Principal, interval: Interval, epoch: u32) -> bool {
        let begins = Month::of(epoch::epoch_begin(interval, epoch)).begin();
        self.quotas.get(&principal).is_some_and(|status| status.months().any(|(month, _)| month == begins))
    }

    /// The secrets that whoever used up a quota may have looked up before that was found: those of the month's key epochs that were accepted
    /// then, or next.
    pub(super) fn used_up_revocations(&self, second: u64) -> impl Iterator<Item = Revocation> {
        let months = |(principal, status): (&Principal, &QuotaStatus)| {
            let principal = *principal;
            status.months().map(move |month| (principal, month)).collect::<Vec<_>>()
        };
        let used_up = self.quotas.iter().filter(|(_, status)| status.used_up.is_some()).flat_map(months);
        used_up.flat_map(move |(principal, (month, found))| {
            let at = UnixTime(found.saturating_mul(1_000_000));
            let intervals = self.intervals_of(principal, found).into_iter();
            intervals.flat_map(move |interval| {
                let first = epoch::epoch_at(interval, at).saturating_sub(1);
                let epochs = (first..).take(EPOCHS);
                let of_month = epochs.filter(move |of| Month::of(epoch::epoch_begin(interval, *of)).begin() == month);
                let all = of_month.map(move |epoch| Revocation {
                    principal,
                    delegation: None,
                    epoch: Some((interval, epoch)),
                });
                all.filter(move |entry| entry.expires_at().is_some_and(|expiry| expiry > second))
            })
        })
    }

    pub(super) fn check_quota(&self, principal: Principal, quota: &VolumeQuota) -> Result<(), ChangeError> {
        if self.account(principal).is_none() {
            return Err(ChangeError::NoAccount(principal.number()));
        }
        if !quota.is_sound() {
            return Err(ChangeError::QuotaTerms);
        }
        let is_full = self.quotas.len() >= MAX_QUOTAS && !self.quotas.contains_key(&principal);
        if is_full { Err(ChangeError::Quotas) } else { Ok(()) }
    }

    /// Whether a quota can be used up of the month that begins at this second.
    pub(super) fn check_use_up(&self, principal: Principal, month: u64) -> Result<(), ChangeError> {
        let held = self.quotas.get(&principal).ok_or(ChangeError::NoQuota)?;
        if held.quota.hard.is_none() || !held.may_use_up(month) || Month::of(month).begin() != month {
            return Err(ChangeError::NoQuota);
        }
        Ok(())
    }

    /// One that is raised, or no longer hard, is not used up until that is found again.
    pub(super) fn set_quota(&mut self, principal: Principal, quota: VolumeQuota) {
        let held = self.quotas.get(&principal);
        let is_raised =
            |held: &&QuotaStatus| quota.hard.is_none_or(|hard| held.quota.hard.is_none_or(|old| hard > old));
        let held = held.filter(|held| !is_raised(held));
        let (used_up, before) = held.map_or((None, None), |held| (held.used_up, held.before));
        self.quotas.insert(principal, QuotaStatus { quota, used_up, before });
    }
}

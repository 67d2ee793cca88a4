//! The sums of months, by which quotas are judged.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{Row as _, query};
use wayleave_control::capability::{AccountPeriods, ChargedAccount, Month, RatePayer, UsageRecord};
use wayleave_packet::platypus::header::{DelegationId, Principal};

use super::Step;
use super::records::Records;
use super::rows::{MOST_OF_MONTH, NAMED, counted, number, places};
use crate::error::StoreError;
use crate::store::Store;
use crate::table::signed;

/// In the place of a delegation: all that a principal pays.
const WHOLE: i64 = -1;

impl Store {
    /// Octets of key epochs that began in the month which begins at a Unix second, of those of some payers who sent any, and of delegations
    /// while they are limited: of the present
    /// owners of their numbers. What came late for closed time is not in it.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn month_usage(
        &self,
        begins: u64,
        payers: &BTreeSet<RatePayer>,
        periods: &AccountPeriods,
    ) -> Result<BTreeMap<RatePayer, u64>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        let principals: BTreeSet<u32> = payers.iter().map(|payer| payer.principal.number()).collect();
        let principals: Vec<u32> = principals.into_iter().collect();
        let mut found = BTreeMap::new();
        for portion in principals.chunks(NAMED) {
            let select = format!(
                "SELECT principal, delegation, owner, octets FROM usage_month WHERE begins_at = $1 AND principal IN ({})",
                places(2, portion.len())
            );
            let select = query(&select).bind(signed(begins));
            let select = portion.iter().fold(select, |select, principal| select.bind(i64::from(*principal)));
            for read in select.fetch_all(&mut *connection).await? {
                let (principal, owner): (u32, u8) = (number(&read, 0)?, number(&read, 2)?);
                let delegation = u32::try_from(read.try_get::<i64, _>(1)?).ok().and_then(DelegationId::new);
                let payer = Principal::new(principal).map(|principal| RatePayer { principal, delegation });
                if let Some(payer) = payer.filter(|of| owner == periods.latest(principal) && payers.contains(of)) {
                    found.insert(payer, number(&read, 3)?);
                }
            }
        }
        Ok(found)
    }
}

impl Step {
    /// Adds what is new of totals to the months in which their key epochs begin. Returns how much that is of each payer, by the owner of its
    /// number.
    pub(super) async fn add_to_months(
        &mut self,
        found: &Records,
        changed: &[UsageRecord<ChargedAccount>],
        periods: &AccountPeriods,
    ) -> Result<BTreeMap<(u32, u8), u64>, StoreError> {
        // Of one that is here twice the last counts.
        let last: Records = changed.iter().map(|of| ((of.router, of.journal, of.account), of.total)).collect();
        let limited = self.limited(last.keys().map(|(.., account)| account.principal()).collect()).await?;
        let mut months: BTreeMap<(u32, i64, u64, u8), u128> = BTreeMap::new();
        for (key, total) in last {
            let (account, principal) = (key.2, key.2.principal());
            let of_epoch = account.begins_at().map(|begins| (Month::of(begins), periods.at(principal, begins)));
            let Some((month, owner)) = of_epoch.or(account.month().zip(account.account_period())) else { continue };
            let held = found.get(&key).map_or(0, |held| held.octets);
            let delegation = account.delegation().map(i64::from).filter(|id| limited.contains(&(principal, *id)));
            for of in [Some(WHOLE), delegation].into_iter().flatten() {
                *months.entry((principal, of, month.begin(), owner)).or_default() += total.octets.saturating_sub(held);
            }
        }
        let mut new: BTreeMap<(u32, u8), u64> = BTreeMap::new();
        for ((principal, of, begins, owner), octets) in months.into_iter().filter(|(_, octets)| *octets > 0) {
            if of == WHOLE {
                let sum = new.entry((principal, owner)).or_default();
                *sum = sum.saturating_add(u64::try_from(octets).unwrap_or(u64::MAX));
            }
            let add = format!(
                "INSERT INTO usage_month (principal, delegation, begins_at, owner, octets) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (principal, delegation, begins_at, owner) DO UPDATE SET octets =
                 CASE WHEN usage_month.octets > {MOST_OF_MONTH} - excluded.octets THEN {MOST_OF_MONTH}
                 ELSE usage_month.octets + excluded.octets END"
            );
            let add = query(&add).bind(i64::from(principal)).bind(of).bind(signed(begins)).bind(i64::from(owner));
            add.bind(counted(octets).min(MOST_OF_MONTH)).execute(&mut *self.transaction).await?;
        }
        Ok(new)
    }

    /// Delegations of these principals that are limited by volume: of others no sums are kept, since whoever has a capability makes as many
    /// as it likes.
    async fn limited(&mut self, principals: BTreeSet<u32>) -> Result<BTreeSet<(u32, i64)>, StoreError> {
        let principals: Vec<u32> = principals.into_iter().collect();
        let mut found = BTreeSet::new();
        for portion in principals.chunks(NAMED) {
            let of = places(1, portion.len());
            let select = format!("SELECT principal, delegation FROM delegation_volume WHERE principal IN ({of})");
            let select = portion.iter().fold(query(&select), |select, principal| select.bind(i64::from(*principal)));
            for read in select.fetch_all(&mut *self.transaction).await? {
                found.insert((number(&read, 0)?, read.try_get(1)?));
            }
        }
        Ok(found)
    }
}

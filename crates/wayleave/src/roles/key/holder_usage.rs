//! What a holder is told that it used: read from the database, beside look-ups.

use std::ops::Bound;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Semaphore;
use wayleave_control::capability::{AccountPeriods, ChargedAccount, HolderUsage, PendingStatus, Terms, UsagePage};
use wayleave_core::UnixTime;
use wayleave_runtime::Clock;
use wayleave_store::{Store, StoreError};

use super::core::{Core, lock};

/// Accounts that are read at a time, and parts that are read for an answer.
const PART: usize = 1_000;
const PARTS: usize = 32;
/// How long an answer waits for the database; beyond that it is without usage.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Answers that read usage at once. Others are without: whoever asks often keeps nobody's order from being carried out.
static READING: Semaphore = Semaphore::const_new(4);

/// The answer to a holder that asks how its capability stands.
pub async fn answer(core: &Mutex<Core>, status: &PendingStatus, store: Option<&Store>, clock: Clock) -> Vec<u8> {
    let periods: AccountPeriods = lock(core).server.state().reopened().iter().copied().collect();
    let usage = match store.zip(READING.try_acquire().ok()) {
        Some((store, _place)) => {
            let read = usage_of(store, &status.grant.terms, &periods, clock.now().unix);
            // Without usage the rest is answered all the same.
            tokio::time::timeout(TIMEOUT, read).await.ok().and_then(Result::ok)
        }
        None => None,
    };
    lock(core).server.answer_status(status, usage, clock.now())
}

async fn usage_of(
    store: &Store,
    terms: &Terms,
    periods: &AccountPeriods,
    now: UnixTime,
) -> Result<HolderUsage, StoreError> {
    let mut usage = HolderUsage { closed_before: store.usage_head().await?.closed_before, ..HolderUsage::default() };
    let (first, last) = ChargedAccount::bounds(terms.principal);
    let mut first = Bound::Included(first);
    for _ in 0..PARTS {
        let UsagePage { totals, next, .. } = store.usage_page(first, Some(last), PART).await?;
        for ((account, _), charged) in &totals {
            usage.add(terms, (account, *charged), periods, now);
        }
        let Some(next) = next else { return Ok(usage) };
        first = Bound::Excluded(next);
    }
    Ok(HolderUsage { is_partial: true, ..usage })
}

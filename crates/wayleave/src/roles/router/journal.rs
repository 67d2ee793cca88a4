//! What accounts have sent, on its way to the store: nothing is lost while that has no room, and what is over is known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::error;
use wayleave_core::UnixTime;
use wayleave_dataplane::platypus::account::Total;
use wayleave_packet::platypus::mint::epoch;
use wayleave_runtime::store::{Change, Store};

use super::accounts::{Account, Payer, record};
use super::{ACCOUNTS, pages};

/// How far a clock may go back before the end of an epoch counts as final.
const MARGIN: Duration = Duration::from_secs(300);
/// How often, and with which pause, the last totals are offered to a store without room.
const LAST_TRIES: usize = 50;
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Records that the store has not taken yet, and the accounts that threads hold open.
pub struct Journal {
    store: Option<Arc<dyn Store>>,
    /// The latest record of each account, until the store takes it.
    unsent: BTreeMap<Vec<u8>, Vec<u8>>,
    open: BTreeMap<Vec<u8>, (usize, Payer)>,
    /// Batches that the store took, and the last of them that is durable.
    taken: u64,
    durable: Arc<AtomicU64>,
}

/// Whether no packet of this account's epoch is accepted any more. Without an interval, or an epoch, there is no end.
pub fn is_over(payer: &Payer, now: UnixTime) -> bool {
    let Payer::Platypus(charge) = payer else { return false };
    let before = UnixTime(now.0.saturating_sub(MARGIN.as_micros() as u64));
    charge
        .interval
        .is_some_and(|interval| u64::from(charge.epoch) + epoch::EPOCHS_BESIDE < before.secs() >> interval.exponent())
}

impl Journal {
    /// A journal that `restored` was read from.
    pub fn new(store: Option<Arc<dyn Store>>, restored: &[Account]) -> Self {
        let mut journal =
            Self { store, unsent: BTreeMap::new(), open: BTreeMap::new(), taken: 0, durable: Arc::default() };
        for (worker, payer, total) in restored {
            let (key, _) = record(*worker, payer, total);
            journal.open.insert(key, (*worker, *payer));
        }
        journal
    }

    /// Takes over a thread's totals.
    pub fn take(&mut self, worker: usize, totals: Vec<(Payer, Total)>, shown: &pages::Shown) {
        for (payer, total) in totals {
            self.note(worker, &payer, &total);
            shown.note(worker, payer, total);
        }
    }

    fn note(&mut self, worker: usize, payer: &Payer, total: &Total) {
        let (key, value) = record(worker, payer, total);
        self.open.insert(key.clone(), (worker, *payer));
        self.unsent.insert(key, value);
    }

    /// Gives the store what waits; what it has no room for waits for the next time. Returns whether nothing waits.
    pub fn submit(&mut self) -> bool {
        let Some(store) = &self.store else { return true };
        if self.unsent.is_empty() {
            return true;
        }
        let change = |(key, value): (&Vec<u8>, &Vec<u8>)| Change {
            table: ACCOUNTS,
            key: key.clone(),
            value: Some(value.clone()),
        };
        let (number, durable) = (self.taken + 1, Arc::clone(&self.durable));
        let written = Box::new(move || durable.store(number, Ordering::Release));
        match store.submit(self.unsent.iter().map(change).collect(), written) {
            Ok(()) => {
                self.taken = number;
                self.unsent.clear();
                true
            }
            Err(error) => {
                error!(%error, "ALARM: the journal of accounts waits");
                false
            }
        }
    }

    /// The last totals, for which the store may need a while.
    pub async fn finish(&mut self) {
        for _ in 0..LAST_TRIES {
            if self.submit() {
                return;
            }
            tokio::time::sleep(LAST_PAUSE).await;
        }
        error!(accounts = self.unsent.len(), "ALARM: the last totals of these accounts are not written down");
    }

    /// Open accounts whose epoch is over, by their records' keys; none while a record is not durable yet.
    pub fn over(&self, now: UnixTime) -> Vec<(Vec<u8>, (usize, Payer))> {
        if !self.unsent.is_empty() || self.durable.load(Ordering::Acquire) != self.taken {
            return Vec::new();
        }
        let is_over = |account: &(&Vec<u8>, &(usize, Payer))| is_over(&account.1.1, now);
        self.open.iter().filter(is_over).map(|(key, account)| (key.clone(), *account)).collect()
    }

    /// An account is closed: nothing more will come of it.
    pub fn closed(&mut self, key: &[u8]) {
        self.open.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use tokio::sync::watch;
    use wayleave_packet::platypus::header::{Interval, Principal};
    use wayleave_packet::platypus::verify::Charge;
    use wayleave_runtime::store::{Durable, Health, Record, StoreError};

    use super::*;

    /// Has room when it is told so, and is durable when it is told so.
    #[derive(Default)]
    struct Reluctant {
        has_room: AtomicBool,
        batches: Mutex<Vec<(Vec<Change>, Durable)>>,
    }

    impl Store for Reluctant {
        fn submit(&self, changes: Vec<Change>, durable: Durable) -> Result<(), StoreError> {
            if !self.has_room.load(Ordering::Relaxed) {
                return Err(StoreError::Busy(PathBuf::new()));
            }
            self.batches.lock().expect("no panic").push((changes, durable));
            Ok(())
        }

        fn load(&self, _: &'static str) -> Result<Vec<Record>, StoreError> {
            Ok(Vec::new())
        }

        fn health(&self) -> watch::Receiver<Health> {
            watch::channel(Health::Good).1
        }
    }

    fn payer(epoch: u32, interval: Option<Interval>) -> Payer {
        let principal = Principal::new(7).expect("24 bits");
        Payer::Platypus(Charge { principal, delegation: None, interval, epoch })
    }

    fn charge(epoch: u32) -> Payer {
        payer(epoch, Interval::new(12))
    }

    #[test]
    fn records_wait_for_room_and_accounts_are_over_when_their_last_record_is_durable() {
        let store = Arc::new(Reluctant::default());
        let mut journal = Journal::new(Some(store.clone()), &[]);
        let now = UnixTime((102 << 12) * 1_000_000);
        for (epoch, packets) in [(100, 1), (102, 1), (100, 2)] {
            journal.note(0, &charge(epoch), &Total { packets, octets: 9 });
        }
        assert!(!journal.submit());
        store.has_room.store(true, Ordering::Relaxed);
        assert!(journal.submit());
        let (changes, durable) = store.batches.lock().expect("no panic").pop().expect("a batch");
        let total = Total { packets: 2, octets: 9 };
        assert_eq!(changes.len(), 2);
        assert_eq!(changes[0].value, Some(record(0, &charge(100), &total).1));
        assert!(journal.over(now).is_empty(), "not durable");
        durable();
        let over = journal.over(now);
        assert!(over.is_empty(), "the clock may go back by five minutes");
        let now = UnixTime(now.0 + 300_000_000);
        let over = journal.over(now);
        assert_eq!(over.iter().map(|(_, (_, payer))| *payer).collect::<Vec<_>>(), [charge(100)]);
        journal.closed(&over[0].0);
        assert!(journal.over(now).is_empty());
    }

    #[test]
    fn an_epoch_is_over_when_it_is_accepted_no_more_and_never_while_it_is_to_come() {
        let now = UnixTime(((100 << 12) + 301) * 1_000_000);
        let over: Vec<u32> = (95..105).filter(|epoch| is_over(&charge(*epoch), now)).collect();
        assert_eq!(over, [95, 96, 97, 98]);
        assert!(!is_over(&payer(1, None), now));
        assert!(!is_over(&Payer::Icing(1), now));
    }
}

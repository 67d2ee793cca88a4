//! The journal of accounts: totals on their way to the store. Nothing is lost while the store is busy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tracing::{error, warn};
use wayleave_core::UnixTime;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{Change, Store, StoreError};

const TABLE: &str = "accounts";
/// When packets were counted last, in microseconds of Unix time (8 octets), under an empty key.
const CLOCK: &str = "counted";
/// How much later than that packets may have been counted before a crash: two intervals of the journal.
const BEHIND: Duration = Duration::from_secs(2);
/// How far a clock may go back before the end of an epoch counts as final.
const MARGIN: Duration = Duration::from_secs(300);
/// How long after its end an account may be forgotten whose total the key server has: in this time, a server that lost its own file
/// gets all of it again.
pub const FORGET: Duration = Duration::from_secs(40 * 86_400);
const FORGOTTEN_AT_ONCE: usize = 1_000;
/// How often, and with which pause, the last totals are offered to a busy store: five seconds in all, well below the time
/// that a supervisor gives a process to end.
const LAST_TRIES: usize = 50;
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Who pays for packets of a format.
pub trait Account: Copy + PartialEq + Debug + Send + Sync + 'static {
    /// The key of its records, which comes behind the thread's number.
    fn key(&self) -> Vec<u8>;

    /// Reads such a key; `None` for keys of other formats.
    fn from_key(key: &[u8]) -> Option<Self>;

    /// Whether no packet that is accepted at `now`, or later, is charged to it.
    fn is_over(&self, now: UnixTime) -> bool;

    /// Its members in the view of accounts.
    fn json(&self) -> Value;
}

/// The account of formats that charge nobody.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum NoAccount {}

impl Account for NoAccount {
    fn key(&self) -> Vec<u8> {
        match *self {}
    }

    fn from_key(_: &[u8]) -> Option<Self> {
        None
    }

    fn is_over(&self, _: UnixTime) -> bool {
        match *self {}
    }

    fn json(&self) -> Value {
        match *self {}
    }
}

/// What an account has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Total {
    pub packets: u128,
    /// Octets of IP packets, headers included.
    pub octets: u128,
}

impl Total {
    fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, octets: self.octets + other.octets }
    }
}

/// The total that one thread counted for an account.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Record<A> {
    pub thread: usize,
    pub account: A,
    pub total: Total,
}

impl<A: Account> Record<A> {
    /// The thread's number (2 octets), then the account's own key.
    fn key(&self) -> Vec<u8> {
        [&(self.thread as u16).to_be_bytes()[..], &self.account.key()].concat()
    }

    /// Packets (16 octets) and octets (16).
    fn value(&self) -> Vec<u8> {
        [self.total.packets.to_be_bytes(), self.total.octets.to_be_bytes()].concat()
    }

    fn read(key: &[u8], value: &[u8]) -> Option<Self> {
        let (thread, key) = key.split_first_chunk::<2>()?;
        let (packets, octets) = value.split_first_chunk::<16>()?;
        let total =
            Total { packets: u128::from_be_bytes(*packets), octets: u128::from_be_bytes(octets.try_into().ok()?) };
        Some(Self { thread: u16::from_be_bytes(*thread).into(), account: A::from_key(key)?, total })
    }
}

/// Every account's latest record, by its key: what the view of accounts shows.
#[derive(Clone)]
pub struct Totals<A>(Arc<Mutex<BTreeMap<Vec<u8>, Record<A>>>>);

impl<A: Account> Totals<A> {
    fn get(&self, key: &[u8]) -> Option<Total> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).map(|record| record.total)
    }

    fn insert(&self, record: Record<A>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(record.key(), record);
    }

    /// Totals by account, over all threads.
    pub fn by_account(&self) -> Vec<(A, Total)> {
        let mut sums: BTreeMap<Vec<u8>, (A, Total)> = BTreeMap::new();
        for Record { account, total, .. } in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let (_, sum) = sums.entry(account.key()).or_insert((*account, Total::default()));
            *sum = sum.plus(*total);
        }
        sums.into_values().collect()
    }
}

/// Records that the store accepted.
struct Batch<A> {
    number: u64,
    /// Everything that was counted until then is in this batch or in one before.
    begun: Option<UnixTime>,
    records: Vec<Record<A>>,
}

/// Records on their way to the store, and the accounts that are open in threads.
pub struct Journal<A> {
    store: Option<Arc<dyn Store>>,
    pub totals: Totals<A>,
    /// The latest record of each account, until the store accepts it.
    unsent: BTreeMap<Vec<u8>, Record<A>>,
    /// Batches that the store accepted and that are not known to be durable, with their numbers.
    in_flight: VecDeque<Batch<A>>,
    /// When the last round of counting began; and until when everything that was counted is durable.
    begun: Option<UnixTime>,
    complete: Option<UnixTime>,
    /// What is durable of every account, by the account's key and by thread.
    on_disk: BTreeMap<Vec<u8>, BTreeMap<usize, Total>>,
    /// Accounts of which more has become durable since that was last asked, by their keys.
    news: BTreeMap<Vec<u8>, A>,
    open: BTreeMap<Vec<u8>, (usize, A)>,
    /// What accounts had sent that were closed and are open again, since the clock went back: their threads began at zero.
    reopened: BTreeMap<Vec<u8>, Total>,
    /// Batches that the store accepted, and the last of them that is durable.
    submitted: u64,
    durable: Arc<AtomicU64>,
    last_counted: Option<UnixTime>,
}

impl<A: Account> Journal<A> {
    /// Reads all records that the store holds. Returns those of accounts that are not over: threads go on from them.
    ///
    /// # Errors
    /// What is wrong with the store.
    pub fn restore(store: Option<Arc<dyn Store>>, now: UnixTime) -> Result<(Self, Vec<Record<A>>), StoreError> {
        let stored = store.as_ref().map_or(Ok(Vec::new()), |store| store.load(TABLE))?;
        let records: Vec<Record<A>> = stored.iter().filter_map(|(key, value)| Record::read(key, value)).collect();
        if records.len() < stored.len() {
            warn!(
                records = stored.len() - records.len(),
                "the state file has account records of another format or version: they stay there, unchanged, and are not counted"
            );
        }
        let totals = Totals(Arc::default());
        records.iter().for_each(|record| totals.insert(*record));
        let live: Vec<Record<A>> = records.iter().filter(|record| !is_over(&record.account, now)).copied().collect();
        let open = live.iter().map(|record| (record.key(), (record.thread, record.account))).collect();
        let clock = store.as_ref().map_or(Ok(Vec::new()), |store| store.load(CLOCK))?;
        let clock = clock.first().and_then(|(_, value)| value.as_slice().try_into().ok()).map(u64::from_be_bytes);
        let last_counted = clock.map(|micros| UnixTime(micros.saturating_add(BEHIND.as_micros() as u64)));
        let mut journal = Self {
            store,
            totals,
            unsent: BTreeMap::new(),
            in_flight: VecDeque::new(),
            begun: None,
            complete: None,
            on_disk: BTreeMap::new(),
            news: BTreeMap::new(),
            open,
            reopened: BTreeMap::new(),
            submitted: 0,
            durable: Arc::default(),
            last_counted,
        };
        records.iter().for_each(|record| journal.note_durable(record));
        Ok((journal, live))
    }

    /// Until when the process that wrote the journal may have counted packets, by its clock.
    pub fn last_counted(&self) -> Option<UnixTime> {
        self.last_counted
    }

    /// Whether there is a store to write to.
    pub fn is_kept(&self) -> bool {
        self.store.is_some()
    }

    /// Threads are asked for their totals from now on, all of them.
    pub fn begin_round(&mut self, now: UnixTime) {
        self.begun = Some(now);
    }

    /// Until when everything that threads counted is durable, and among what [`Journal::durable`] has returned.
    pub fn complete(&self) -> Option<UnixTime> {
        self.complete
    }

    /// Takes over a thread's totals.
    pub fn add(&mut self, thread: usize, totals: impl IntoIterator<Item = (A, Total)>) {
        for (account, total) in totals {
            let mut record = Record { thread, account, total };
            if self.open.insert(record.key(), (thread, account)).is_none() {
                let before = self.totals.get(&record.key());
                self.reopened.extend(before.map(|before| (record.key(), before)));
            }
            let before = self.reopened.get(&record.key()).copied().unwrap_or_default();
            record.total = total.plus(before);
            self.unsent.insert(record.key(), record);
            self.totals.insert(record);
        }
    }

    /// Gives the store what waits, and that it was counted until `now`. A store that is busy is tried again at the next call.
    /// Returns whether nothing waits.
    pub fn submit(&mut self, now: UnixTime) -> bool {
        let Some(store) = &self.store else { return true };
        if self.unsent.is_empty() {
            return true;
        }
        let change = |(key, record): (&Vec<u8>, &Record<A>)| Change {
            table: TABLE,
            key: key.clone(),
            value: Some(record.value()),
        };
        let (number, durable) = (self.submitted + 1, Arc::clone(&self.durable));
        let written = Box::new(move || durable.store(number, Ordering::Release));
        let clock = Change { table: CLOCK, key: Vec::new(), value: Some(now.0.to_be_bytes().to_vec()) };
        match store.submit(self.unsent.iter().map(change).chain([clock]).collect(), written) {
            Ok(()) => {
                self.submitted = number;
                let records = std::mem::take(&mut self.unsent).into_values().collect();
                self.in_flight.push_back(Batch { number, begun: self.begun, records });
                true
            }
            Err(error) => {
                error!(
                    %error, accounts = self.unsent.len(),
                    "the state file does not take the accounts' totals: they wait in memory and would be lost in a crash; \
                     check the disk"
                );
                false
            }
        }
    }

    /// The totals of accounts that have become durable since this was last called, over all threads. What a crash may take back is
    /// not among them.
    pub fn durable(&mut self) -> Vec<(A, Total)> {
        let durable = self.durable.load(Ordering::Acquire);
        while let Some(Batch { begun, records, .. }) = self.in_flight.pop_front_if(|batch| batch.number <= durable) {
            records.iter().for_each(|record| self.note_durable(record));
            self.complete = begun;
        }
        if self.in_flight.is_empty() && self.unsent.is_empty() {
            self.complete = self.begun;
        }
        let sum = |(key, account): (Vec<u8>, A)| {
            let of_threads = self.on_disk.get(&key).into_iter().flat_map(BTreeMap::values);
            (account, of_threads.fold(Total::default(), |sum, total| sum.plus(*total)))
        };
        std::mem::take(&mut self.news).into_iter().map(sum).collect()
    }

    fn note_durable(&mut self, record: &Record<A>) {
        let key = record.account.key();
        self.on_disk.entry(key.clone()).or_default().insert(record.thread, record.total);
        self.news.insert(key, record.account);
    }

    /// Writes the last totals, for which a busy store is tried for five seconds.
    pub async fn finish(&mut self) {
        for _ in 0..LAST_TRIES {
            if self.submit(unix_now()) {
                return;
            }
            tokio::time::sleep(LAST_PAUSE).await;
        }
        error!(
            accounts = self.unsent.len(),
            "the last totals of these accounts are lost: the state file took no writes"
        );
    }

    /// Open accounts to which no packet is charged any more, by their records' keys. None while a record is not durable
    /// yet: a closed account must be found in the store after a crash.
    pub fn over(&self, now: UnixTime) -> Vec<(Vec<u8>, (usize, A))> {
        if !self.unsent.is_empty() || self.durable.load(Ordering::Acquire) != self.submitted {
            return Vec::new();
        }
        let over = self.open.iter().filter(|(_, (_, account))| is_over(account, now));
        over.map(|(key, account)| (key.clone(), *account)).collect()
    }

    /// Accounts that have been closed for so long that whoever bills has them, by [`FORGET`]: some of them, all durable.
    pub fn forgettable(&self, now: UnixTime) -> Vec<A> {
        if !self.unsent.is_empty() || !self.in_flight.is_empty() || !self.news.is_empty() {
            return Vec::new();
        }
        let then = UnixTime(now.0.saturating_sub(FORGET.as_micros() as u64));
        let open: BTreeSet<Vec<u8>> = self.open.values().map(|(_, account)| account.key()).collect();
        let account = |(key, of_threads): (&Vec<u8>, &BTreeMap<usize, Total>)| {
            let account = A::from_key(key)?;
            (!of_threads.is_empty() && !open.contains(key) && account.is_over(then)).then_some(account)
        };
        self.on_disk.iter().filter_map(account).take(FORGOTTEN_AT_ONCE).collect()
    }

    /// Removes these accounts, together with what `more` says, in one step. Returns whether the store took it; otherwise nothing has
    /// changed.
    pub fn forget(&mut self, accounts: &[A], more: Vec<Change>) -> bool {
        let Some(store) = &self.store else { return false };
        let keys = accounts.iter().flat_map(|account| {
            let threads = self.on_disk.get(&account.key()).into_iter().flat_map(BTreeMap::keys);
            threads.map(|thread| Record { thread: *thread, account: *account, total: Total::default() }.key())
        });
        let keys: Vec<Vec<u8>> = keys.collect();
        let removal = |key: &Vec<u8>| Change { table: TABLE, key: key.clone(), value: None };
        if store.submit(keys.iter().map(removal).chain(more).collect(), Box::new(|| ())).is_err() {
            return false;
        }
        accounts.iter().for_each(|account| drop(self.on_disk.remove(&account.key())));
        let mut totals = self.totals.0.lock().unwrap_or_else(PoisonError::into_inner);
        for key in &keys {
            totals.remove(key);
        }
        true
    }

    /// An account is closed: nothing more comes of it.
    pub fn close(&mut self, key: &[u8]) {
        self.open.remove(key);
        self.reopened.remove(key);
    }
}

/// Whether nothing more is charged to an account, even if the clock goes back by [`MARGIN`].
pub fn is_over<A: Account>(account: &A, now: UnixTime) -> bool {
    account.is_over(UnixTime(now.0.saturating_sub(MARGIN.as_micros() as u64)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;

    use tokio::sync::watch;
    use wayleave_runtime::store::{Durable, Health};

    use super::*;

    /// Has room when it is given some, and is durable when the test says so.
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

        fn load(&self, _: &'static str) -> Result<Vec<wayleave_runtime::store::Record>, StoreError> {
            Ok(Vec::new())
        }

        fn health(&self) -> watch::Receiver<Health> {
            watch::channel(Health::Good).1
        }
    }

    /// Is over when its second has passed.
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Until(u32);

    impl Account for Until {
        fn key(&self) -> Vec<u8> {
            self.0.to_be_bytes().to_vec()
        }

        fn from_key(key: &[u8]) -> Option<Self> {
            Some(Self(u32::from_be_bytes(key.try_into().ok()?)))
        }

        fn is_over(&self, now: UnixTime) -> bool {
            u64::from(self.0) < now.secs()
        }

        fn json(&self) -> Value {
            Value::Null
        }
    }

    #[test]
    fn records_wait_for_room_and_accounts_are_over_when_their_last_record_is_durable() {
        let store = Arc::new(Reluctant::default());
        let (mut journal, _) = Journal::restore(Some(store.clone() as Arc<dyn Store>), UnixTime(0)).expect("empty");
        let second = |second: u64| UnixTime(second * 1_000_000);
        for (until, packets) in [(100, 1), (1_000, 1), (100, 2)] {
            journal.add(0, [(Until(until), Total { packets, octets: 9 })]);
        }
        assert!(!journal.submit(second(7)));
        store.has_room.store(true, Ordering::Relaxed);
        assert!(journal.submit(second(7)));
        let (changes, durable) = store.batches.lock().expect("no panic").pop().expect("a batch");
        let record = Record { thread: 0, account: Until(100), total: Total { packets: 2, octets: 9 } };
        assert_eq!(changes.len(), 3);
        assert_eq!((changes[2].table, changes[2].value.as_deref()), (CLOCK, Some(&7_000_000u64.to_be_bytes()[..])));
        assert_eq!((&changes[0].key, &changes[0].value), (&record.key(), &Some(record.value())));
        assert!(journal.over(second(401)).is_empty() && journal.durable().is_empty(), "not durable");
        durable();
        let total = |packets| Total { packets, octets: 9 };
        assert_eq!(journal.durable(), [(Until(100), total(2)), (Until(1_000), total(1))]);
        assert!(journal.durable().is_empty(), "told once");
        // What was counted until a round began is complete once the batch of that round is durable.
        for (begin, complete) in [(8, None), (9, Some(8)), (10, Some(9))] {
            journal.begin_round(second(begin));
            journal.add(0, [(Until(1_000), Total { packets: begin.into(), octets: 9 })]);
            assert!(journal.submit(second(begin)));
            assert_eq!(journal.complete(), complete.map(second));
            let (_, durable) = store.batches.lock().expect("no panic").pop().expect("a batch");
            durable();
            assert_eq!(journal.complete(), complete.map(second), "nobody was told yet");
            journal.durable();
            assert_eq!(journal.complete(), Some(second(begin)));
        }
        journal.begin_round(second(11));
        journal.durable();
        assert_eq!(journal.complete(), Some(second(11)), "nothing was counted");
        assert!(journal.over(second(400)).is_empty(), "the clock may go back by five minutes");
        let over = journal.over(second(401));
        assert_eq!(over.iter().map(|(_, (_, account))| *account).collect::<Vec<_>>(), [Until(100)]);
        journal.close(&over[0].0);
        assert!(journal.over(second(401)).is_empty());
    }

    #[test]
    fn accounts_are_forgotten_with_all_their_records_forty_days_after_their_end_and_not_while_anything_waits() {
        let store = Arc::new(Reluctant::default());
        let (mut journal, _) = Journal::restore(Some(store.clone() as Arc<dyn Store>), UnixTime(0)).expect("empty");
        store.has_room.store(true, Ordering::Relaxed);
        let second = |second: u64| UnixTime(second * 1_000_000);
        for thread in 0..2 {
            journal.add(thread, [(Until(100), Total { packets: 1, octets: 9 })]);
        }
        journal.add(0, [(Until(100_000), Total { packets: 1, octets: 9 })]);
        journal.submit(second(7));
        let then = 101 + FORGET.as_secs();
        assert!(journal.forgettable(second(then)).is_empty(), "not durable");
        store.batches.lock().expect("no panic").pop().expect("a batch").1();
        assert!(journal.forgettable(second(then)).is_empty(), "not told");
        journal.durable();
        assert!(journal.forgettable(second(then)).is_empty(), "not closed");
        journal.over(second(then)).into_iter().for_each(|(key, _)| journal.close(&key));
        assert!(journal.forgettable(second(then - 1)).is_empty());
        let old = journal.forgettable(second(then));
        assert_eq!(old, [Until(100)]);
        store.has_room.store(false, Ordering::Relaxed);
        assert!(!journal.forget(&old, Vec::new()), "the store is busy");
        assert_eq!(journal.totals.by_account().len(), 2);
        store.has_room.store(true, Ordering::Relaxed);
        let more = Change { table: "other", key: vec![7], value: None };
        assert!(journal.forget(&old, vec![more.clone()]));
        let (changes, _) = store.batches.lock().expect("no panic").pop().expect("a batch");
        let removed = |thread| Change {
            table: TABLE,
            key: Record { thread, account: Until(100), total: Total::default() }.key(),
            value: None,
        };
        assert_eq!(changes, [removed(0), removed(1), more]);
        assert_eq!(journal.totals.by_account().len(), 1);
        assert!(journal.forgettable(second(then)).is_empty());
    }

    #[test]
    fn an_account_that_was_closed_goes_on_from_its_total_when_the_clock_goes_back() {
        let store = Arc::new(Reluctant::default());
        store.has_room.store(true, Ordering::Relaxed);
        let second = |second: u64| UnixTime(second * 1_000_000);
        let (mut journal, _) = Journal::restore(Some(store.clone() as Arc<dyn Store>), second(7)).expect("empty");
        let total = |packets| Total { packets, octets: packets * 9 };
        let count = |journal: &mut Journal<Until>, packets| {
            journal.add(0, [(Until(100), total(packets))]);
            journal.submit(second(7));
            store.batches.lock().expect("no panic").pop().expect("a batch").1();
            journal.durable()
        };
        assert_eq!(count(&mut journal, 1_000), [(Until(100), total(1_000))]);
        for packets in [1_000, 1_015] {
            let over = journal.over(second(500));
            assert_eq!(over.len(), 1);
            over.into_iter().for_each(|(key, _)| journal.close(&key));
            // The thread has forgotten it, and counts from zero.
            assert_eq!(count(&mut journal, 10), [(Until(100), total(packets + 10))]);
            assert_eq!(count(&mut journal, 15), [(Until(100), total(packets + 15))]);
        }
        assert_eq!(journal.totals.by_account(), [(Until(100), total(1_030))]);
        // A process that starts while the clock is ahead gives its threads nothing of what is over then.
        let (mut journal, live) =
            Journal::restore(Some(Arc::new(Filled) as Arc<dyn Store>), second(500)).expect("one account");
        assert_eq!(live, []);
        journal.add(0, [(Until(100), total(10))]);
        assert_eq!(journal.totals.by_account(), [(Until(100), total(1_040))]);
    }

    /// Has one record.
    struct Filled;

    impl Store for Filled {
        fn submit(&self, _: Vec<Change>, _: Durable) -> Result<(), StoreError> {
            Ok(())
        }

        fn load(&self, table: &'static str) -> Result<Vec<wayleave_runtime::store::Record>, StoreError> {
            let total = Total { packets: 1_030, octets: 1_030 * 9 };
            let record = Record { thread: 0, account: Until(100), total };
            Ok(if table == TABLE { vec![(record.key(), record.value())] } else { Vec::new() })
        }

        fn health(&self) -> watch::Receiver<Health> {
            watch::channel(Health::Good).1
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_totals_are_over_all_threads() {
        let total = Total { packets: 7, octets: u128::from(u64::MAX) * 9 };
        let record = Record { thread: 300, account: Until(5), total };
        let (key, value) = (record.key(), record.value());
        assert_eq!(Record::read(&key, &value), Some(record));
        assert_eq!(Record::<Until>::read(&key[1..], &value), None);
        assert_eq!(Record::<Until>::read(&key, &value[1..]), None);
        let (mut journal, _) = Journal::restore(None, UnixTime(0)).expect("no store");
        journal.add(1, [(Until(5), total)]);
        journal.add(2, [(Until(5), total), (Until(6), total)]);
        let twice = Total { packets: 14, octets: total.octets * 2 };
        assert_eq!(journal.totals.by_account(), [(Until(5), twice), (Until(6), total)]);
    }
}

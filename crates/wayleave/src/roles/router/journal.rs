//! The journal of accounts: totals on their way to the store. Nothing is lost while the store is busy, and what the store does not have
//! yet is in the tally, which a kill leaves there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tracing::{error, warn};
use wayleave_core::UnixTime;
use wayleave_dataplane::platypus::record::MARGIN_SECS;
pub use wayleave_dataplane::tally::Total;
use wayleave_dataplane::tally::{Tally, TallyStart};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{Change, Store, StoreError};

use super::tally::{Entry, TallyFile};

const TABLE: &str = "accounts";
/// When packets were counted last, in microseconds of Unix time (8 octets), under an empty key.
const CLOCK: &str = "counted";
/// From where a tally goes on, under an empty key: the number of the process that writes (16 octets) and that of the batch (8).
const START: &str = "tally";
/// Whose tally was taken over last, under an empty key: the number of that process (16 octets).
const TAKEN: &str = "tally-taken";
/// How much later than the last commit packets may have been counted before a crash: eight intervals of the journal.
const BEHIND: Duration = Duration::from_secs(2);
/// How far a clock may go back before the end of an epoch counts as final.
const MARGIN: Duration = Duration::from_secs(MARGIN_SECS);
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
    /// Whether there are any.
    const ARE_THERE: bool = true;

    /// The key of its records, which comes behind the thread's number.
    fn key(&self) -> Vec<u8>;

    /// Reads such a key; `None` for keys of other formats.
    fn from_key(key: &[u8]) -> Option<Self>;

    /// Whether no packet that is accepted at `now`, or later, is charged to it.
    fn is_over(&self, now: UnixTime) -> bool;

    /// Its members in the view of accounts.
    fn json(&self) -> Value;

    /// The principal that pays, where the format has principals.
    fn principal(&self) -> Option<u32> {
        None
    }
}

/// The account of formats that charge nobody.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum NoAccount {}

impl Account for NoAccount {
    const ARE_THERE: bool = false;

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
        let (packets, octets) = value.split_first_chunk::<16>()?;
        let total =
            Total { packets: u128::from_be_bytes(*packets), octets: u128::from_be_bytes(octets.try_into().ok()?) };
        Self::read_key(key, total)
    }

    fn read_key(key: &[u8], total: Total) -> Option<Self> {
        let (thread, key) = key.split_first_chunk::<2>()?;
        Some(Self { thread: u16::from_be_bytes(*thread).into(), account: A::from_key(key)?, total })
    }
}

/// Every account's latest record: what the views of accounts and payers show.
#[derive(Clone)]
pub struct Totals<A>(Arc<Mutex<Known<A>>>);

struct Known<A> {
    /// By their keys.
    records: BTreeMap<Vec<u8>, Record<A>>,
    /// What each principal has sent, over all accounts, also those that are forgotten since: it only grows.
    principals: BTreeMap<u32, Total>,
}

impl<A: Account> Totals<A> {
    fn empty() -> Self {
        Self(Arc::new(Mutex::new(Known { records: BTreeMap::new(), principals: BTreeMap::new() })))
    }

    fn known(&self) -> MutexGuard<'_, Known<A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &[u8]) -> Option<Total> {
        self.known().records.get(key).map(|record| record.total)
    }

    fn insert(&self, record: Record<A>) {
        let mut known = self.known();
        let before = known.records.insert(record.key(), record).map_or(Total::default(), |before| before.total);
        if let Some(principal) = record.account.principal() {
            let sent = known.principals.entry(principal).or_default();
            *sent = sent.plus(record.total.above(before));
        }
    }

    fn records(&self) -> impl Iterator<Item = Record<A>> + use<A> {
        let records: Vec<Record<A>> = self.known().records.values().copied().collect();
        records.into_iter()
    }

    /// What each principal has sent, over all threads.
    pub fn by_principal(&self) -> BTreeMap<u32, Total> {
        self.known().principals.clone()
    }

    /// Totals by account, over all threads.
    pub fn by_account(&self) -> Vec<(A, Total)> {
        let mut sums: BTreeMap<Vec<u8>, (A, Total)> = BTreeMap::new();
        for Record { account, total, .. } in self.known().records.values() {
            let (_, sum) = sums.entry(account.key()).or_insert((*account, Total::default()));
            *sum = sum.plus(*total);
        }
        sums.into_values().collect()
    }
}

/// A record as the tally has it.
fn entry<'a, A>((key, record): (&'a Vec<u8>, &Record<A>)) -> Entry<'a> {
    (key, record.total.packets, record.total.octets)
}

/// Records that the store accepted.
struct Batch<A> {
    number: u64,
    /// Everything that was counted until then is in this batch or in one before.
    begun: Option<UnixTime>,
    records: BTreeMap<Vec<u8>, Record<A>>,
}

/// Records on their way to the store, and the accounts that are open in threads.
pub struct Journal<A> {
    store: Option<Arc<dyn Store>>,
    tally: Option<TallyFile>,
    pub totals: Totals<A>,
    /// The latest record of each account, until the store accepts it.
    unsent: BTreeMap<Vec<u8>, Record<A>>,
    /// Those that are not in the tally yet.
    untallied: BTreeMap<Vec<u8>, Record<A>>,
    /// Batches that the store accepted and that are not known to be durable, with their numbers.
    in_flight: VecDeque<Batch<A>>,
    /// When the last round of counting began; and until when everything that was counted is durable.
    begun: Option<UnixTime>,
    complete: Option<UnixTime>,
    /// What is durable of every account, by the account's key and by thread.
    on_disk: BTreeMap<Vec<u8>, BTreeMap<usize, Total>>,
    /// Accounts of which more has become durable since that was last asked, by their keys.
    newly_durable: BTreeMap<Vec<u8>, A>,
    open: BTreeMap<Vec<u8>, (usize, A)>,
    /// What accounts had sent that were closed and are open again, since the clock went back: their threads began at zero.
    reopened: BTreeMap<Vec<u8>, Total>,
    /// Batches that the store accepted, and the last of them that is durable.
    submitted: u64,
    durable: Arc<AtomicU64>,
    last_counted: Option<UnixTime>,
}

impl<A: Account> Journal<A> {
    /// Reads all records that the store holds, and takes over what the tally has beyond them. Returns those of accounts that are not
    /// over: threads go on from them.
    ///
    /// # Errors
    /// What is wrong with the store.
    pub fn restore(
        store: Option<Arc<dyn Store>>,
        tally: Option<TallyFile>,
        now: UnixTime,
    ) -> Result<(Self, Vec<Record<A>>), StoreError> {
        let load = |table| store.as_ref().map_or(Ok(Vec::new()), |store| store.load(table));
        let stored = load(TABLE)?;
        let records: Vec<Record<A>> = stored.iter().filter_map(|(key, value)| Record::read(key, value)).collect();
        if records.len() < stored.len() {
            warn!(
                records = stored.len() - records.len(),
                "the state file has account records of another format or version: they stay there, unchanged, and are not counted"
            );
        }
        let clock =
            load(CLOCK)?.first().and_then(|(_, value)| value.as_slice().try_into().ok()).map(u64::from_be_bytes);
        let start = load(START)?.first().and_then(|(_, value)| read_start(value));
        let taken: Option<[u8; 16]> = load(TAKEN)?.first().and_then(|(_, value)| value.as_slice().try_into().ok());
        let mut journal = Self {
            store,
            tally,
            totals: Totals::empty(),
            unsent: BTreeMap::new(),
            untallied: BTreeMap::new(),
            in_flight: VecDeque::new(),
            begun: None,
            complete: None,
            on_disk: BTreeMap::new(),
            newly_durable: BTreeMap::new(),
            open: BTreeMap::new(),
            reopened: BTreeMap::new(),
            submitted: 0,
            durable: Arc::default(),
            last_counted: None,
        };
        for record in &records {
            journal.totals.insert(*record);
            journal.note_durable(record);
        }
        let left = journal.tally.as_ref().and_then(|tally| tally.left(start, taken));
        left.iter().for_each(|left| journal.take_over(left));
        let tallied = left.as_ref().and_then(|left| left.counted);
        let counted = clock.max(tallied);
        journal.last_counted = counted.map(|micros| UnixTime(micros.saturating_add(BEHIND.as_micros() as u64)));
        let live: Vec<Record<A>> = journal.totals.records().filter(|record| !is_over(&record.account, now)).collect();
        journal.open = live.iter().map(|record| (record.key(), (record.thread, record.account))).collect();
        if journal.tally.is_some() {
            // From now on another tally counts, and the one that was left does not: what it had goes with that.
            let run = left.map(|left| left.start.run.to_vec());
            let run = run.map(|run| Change { table: TAKEN, key: Vec::new(), value: Some(run) });
            journal.write(tallied.filter(|tallied| clock < Some(*tallied)).map(UnixTime), run)?;
        }
        Ok((journal, live))
    }

    /// Takes over what the tally of the process before has beyond the store, for the next batch.
    fn take_over(&mut self, left: &Tally) {
        let mut unknown = 0;
        for entry in &left.entries {
            let total = Total { packets: entry.packets, octets: entry.octets };
            let Some(mut record) = Record::read_key(&entry.key, total) else {
                unknown += 1;
                continue;
            };
            let before = self.totals.get(&entry.key);
            record.total = total.greatest(before.unwrap_or_default());
            if before != Some(record.total) {
                self.totals.insert(record);
                self.unsent.insert(entry.key.clone(), record);
            }
        }
        if unknown > 0 {
            warn!(records = unknown, "the tally has account records of another format: they are not counted");
        }
    }

    /// Until when the process that wrote the journal may have counted packets, by its clock.
    pub fn last_counted(&self) -> Option<UnixTime> {
        self.last_counted
    }

    /// Whether there is a store to write to, and anything to write.
    pub fn is_kept(&self) -> bool {
        A::ARE_THERE && self.store.is_some()
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
            if self.tally.is_some() {
                self.untallied.insert(record.key(), record);
            }
            self.totals.insert(record);
        }
    }

    /// Puts what was taken over since this was last called into the tally; it was counted until `now`.
    pub fn tally(&mut self, now: UnixTime) {
        let untallied = std::mem::take(&mut self.untallied);
        let Some(tally) = &mut self.tally else { return };
        if !tally.is_failing() && (tally.batch().is_none() || tally.is_long()) {
            return self.begin_tally(now);
        }
        tally.append(now, untallied.iter().map(entry));
    }

    /// Begins the tally anew from what the store has, once it has something of this process.
    fn begin_tally(&mut self, now: UnixTime) {
        let durable = self.durable.load(Ordering::Acquire);
        let Some(tally) = self.tally.as_mut().filter(|_| durable > 0) else { return };
        let not_durable = self.in_flight.iter().filter(|batch| batch.number > durable);
        let records = not_durable.map(|batch| &batch.records).chain([&self.unsent]);
        tally.begin(durable, now, records.flatten().map(entry));
        self.untallied.clear();
    }

    /// Gives the store what waits, and that it was counted until `now`. A store that is busy is tried again at the next call.
    /// Returns whether nothing waits.
    pub fn submit(&mut self, now: UnixTime) -> bool {
        if self.store.is_none() || self.unsent.is_empty() {
            return true;
        }
        match self.write(Some(now), None) {
            Ok(()) => true,
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

    /// Gives the store a batch together with what `more` says, and until when everything in it was counted, if that is new.
    fn write(&mut self, counted: Option<UnixTime>, more: Option<Change>) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let change = |(key, record): (&Vec<u8>, &Record<A>)| Change {
            table: TABLE,
            key: key.clone(),
            value: Some(record.value()),
        };
        let (number, durable) = (self.submitted + 1, Arc::clone(&self.durable));
        let written = Box::new(move || durable.store(number, Ordering::Release));
        let own = |table, value: Vec<u8>| Change { table, key: Vec::new(), value: Some(value) };
        let clock = counted.map(|counted| own(CLOCK, counted.0.to_be_bytes().to_vec()));
        let start = |tally: &TallyFile| own(START, [&tally.run()[..], &number.to_be_bytes()].concat());
        let start = self.tally.as_ref().map(start);
        store.submit(self.unsent.iter().map(change).chain(clock).chain(start).chain(more).collect(), written)?;
        self.submitted = number;
        self.in_flight.push_back(Batch { number, begun: self.begun, records: std::mem::take(&mut self.unsent) });
        Ok(())
    }

    /// The totals of accounts that have become durable since this was last called, over all threads. What a crash may take back is
    /// not among them.
    pub fn durable(&mut self) -> Vec<(A, Total)> {
        let durable = self.durable.load(Ordering::Acquire);
        while let Some(Batch { begun, records, .. }) = self.in_flight.pop_front_if(|batch| batch.number <= durable) {
            records.values().for_each(|record| self.note_durable(record));
            self.complete = begun;
        }
        // What the store has leaves the tally: nothing of an account that is forgotten stays there.
        let is_due = |tally: &TallyFile| tally.is_failing() || tally.has_entries() && tally.batch() != Some(durable);
        if self.tally.as_ref().is_some_and(is_due) {
            self.begin_tally(unix_now());
        }
        if self.in_flight.is_empty() && self.unsent.is_empty() {
            self.complete = self.begun;
        }
        let sum = |(key, account): (Vec<u8>, A)| {
            let of_threads = self.on_disk.get(&key).into_iter().flat_map(BTreeMap::values);
            (account, of_threads.fold(Total::default(), |sum, total| sum.plus(*total)))
        };
        std::mem::take(&mut self.newly_durable).into_iter().map(sum).collect()
    }

    fn note_durable(&mut self, record: &Record<A>) {
        let key = record.account.key();
        self.on_disk.entry(key.clone()).or_default().insert(record.thread, record.total);
        self.newly_durable.insert(key, record.account);
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

    /// Open accounts to which no packet is charged any more, by their records' keys. None whose record is not durable yet: a closed
    /// account must be found in the store after a crash.
    pub fn over(&self, now: UnixTime) -> Vec<(Vec<u8>, (usize, A))> {
        let over = self.open.iter().filter(|(key, (_, account))| is_over(account, now) && !self.is_waiting(key));
        over.map(|(key, account)| (key.clone(), *account)).collect()
    }

    /// Whether a record is on its way to the store.
    fn is_waiting(&self, key: &[u8]) -> bool {
        self.unsent.contains_key(key) || self.in_flight.iter().any(|batch| batch.records.contains_key(key))
    }

    /// Accounts that have been closed for so long that whoever bills has them, by [`FORGET`]: some of them, all durable, and known to
    /// be so by whoever asked [`Self::durable`]. None while the tally that would count after a kill may have one of them: that of the
    /// process before, until the first batch is durable, or this one's, while it cannot be written.
    pub fn forgettable(&self, now: UnixTime) -> Vec<A> {
        let has_batch = self.durable.load(Ordering::Acquire) > 0;
        if self.tally.as_ref().is_some_and(|tally| !has_batch || tally.may_be_stale()) {
            return Vec::new();
        }
        let then = UnixTime(now.0.saturating_sub(FORGET.as_micros() as u64));
        let open: BTreeSet<Vec<u8>> = self.open.values().map(|(_, account)| account.key()).collect();
        let account = |(key, of_threads): (&Vec<u8>, &BTreeMap<usize, Total>)| {
            let account = A::from_key(key)?;
            let is_closed = !of_threads.is_empty() && !open.contains(key) && account.is_over(then);
            let record = |thread: &usize| Record { thread: *thread, account, total: Total::default() }.key();
            let is_settled = || !of_threads.keys().any(|thread| self.is_waiting(&record(thread)));
            (is_closed && !self.newly_durable.contains_key(key) && is_settled()).then_some(account)
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
        let mut known = self.totals.known();
        for key in &keys {
            known.records.remove(key);
        }
        true
    }

    /// An account is closed: nothing more comes of it.
    pub fn close(&mut self, key: &[u8]) {
        self.open.remove(key);
        self.reopened.remove(key);
    }
}

/// From where a tally goes on, as the store has it.
fn read_start(value: &[u8]) -> Option<TallyStart> {
    let (run, batch) = value.split_first_chunk::<16>()?;
    Some(TallyStart { run: *run, batch: u64::from_be_bytes(batch.try_into().ok()?) })
}

/// Whether nothing more is charged to an account, even if the clock goes back by [`MARGIN`].
pub fn is_over<A: Account>(account: &A, now: UnixTime) -> bool {
    account.is_over(UnixTime(now.0.saturating_sub(MARGIN.as_micros() as u64)))
}

#[cfg(test)]
mod tests {
    //! PLA, folded usage: closed accounts are forgotten forty days after their end, and not while anything waits.
    //! PLA, tally: kills at random between counting, tally, store and commit, with old copies of the store put back:
    //! after a kill all that was in it, never more than was counted.
    //! PLA, restart and clock: the journal says until when packets were counted.

    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;

    use tokio::sync::watch;
    use wayleave_runtime::store::{Durable, Health};

    use super::*;

    /// Has room when it is given some, and is durable when the test says so.
    #[derive(Default)]
    struct Reluctant {
        has_capacity: AtomicBool,
        batches: Mutex<Vec<(Vec<Change>, Durable)>>,
    }

    impl Store for Reluctant {
        fn submit(&self, changes: Vec<Change>, durable: Durable) -> Result<(), StoreError> {
            if !self.has_capacity.load(Ordering::Relaxed) {
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
        let (mut journal, _) =
            Journal::restore(Some(store.clone() as Arc<dyn Store>), None, UnixTime(0)).expect("empty");
        let second = |second: u64| UnixTime(second * 1_000_000);
        for (until, packets) in [(100, 1), (1_000, 1), (100, 2)] {
            journal.add(0, [(Until(until), Total { packets, octets: 9 })]);
        }
        assert!(!journal.submit(second(7)));
        store.has_capacity.store(true, Ordering::Relaxed);
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
        let (mut journal, _) =
            Journal::restore(Some(store.clone() as Arc<dyn Store>), None, UnixTime(0)).expect("empty");
        store.has_capacity.store(true, Ordering::Relaxed);
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
        store.has_capacity.store(false, Ordering::Relaxed);
        assert!(!journal.forget(&old, Vec::new()), "the store is busy");
        assert_eq!(journal.totals.by_account().len(), 2);
        store.has_capacity.store(true, Ordering::Relaxed);
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
        store.has_capacity.store(true, Ordering::Relaxed);
        let second = |second: u64| UnixTime(second * 1_000_000);
        let (mut journal, _) = Journal::restore(Some(store.clone() as Arc<dyn Store>), None, second(7)).expect("empty");
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
            Journal::restore(Some(Arc::new(Filled) as Arc<dyn Store>), None, second(500)).expect("one account");
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
        let (mut journal, _) = Journal::restore(None, None, UnixTime(0)).expect("no store");
        journal.add(1, [(Until(5), total)]);
        journal.add(2, [(Until(5), total), (Until(6), total)]);
        let twice = Total { packets: 14, octets: total.octets * 2 };
        assert_eq!(journal.totals.by_account(), [(Until(5), twice), (Until(6), total)]);
    }

    /// Table and key.
    type Place = (&'static str, Vec<u8>);

    /// A store that commits when the test says so, and what it has then.
    #[derive(Default)]
    struct Disk {
        tables: Mutex<BTreeMap<Place, Vec<u8>>>,
        batches: Mutex<VecDeque<(Vec<Change>, Durable)>>,
    }

    impl Disk {
        fn commit(&self) {
            let Some((changes, durable)) = self.batches.lock().expect("no panic").pop_front() else { return };
            let mut tables = self.tables.lock().expect("no panic");
            for Change { table, key, value } in changes {
                match value {
                    Some(value) => drop(tables.insert((table, key), value)),
                    None => drop(tables.remove(&(table, key))),
                }
            }
            durable();
        }

        /// What is there after a kill, or in a copy.
        fn copy(&self) -> Arc<Self> {
            let tables = self.tables.lock().expect("no panic").clone();
            Arc::new(Self { tables: Mutex::new(tables), batches: Mutex::default() })
        }
    }

    impl Store for Disk {
        fn submit(&self, changes: Vec<Change>, durable: Durable) -> Result<(), StoreError> {
            self.batches.lock().expect("no panic").push_back((changes, durable));
            Ok(())
        }

        fn load(&self, table: &'static str) -> Result<Vec<wayleave_runtime::store::Record>, StoreError> {
            let tables = self.tables.lock().expect("no panic");
            Ok(tables
                .iter()
                .filter(|((of, _), _)| *of == table)
                .map(|((_, key), value)| (key.clone(), value.clone()))
                .collect())
        }

        fn health(&self) -> watch::Receiver<Health> {
            watch::channel(Health::Good).1
        }
    }

    /// A router's files, and the journals of its processes.
    struct Site {
        folder: PathBuf,
        runs: u8,
        disk: Arc<Disk>,
    }

    impl Site {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("wayleave-journal-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).expect("a folder");
            Self { folder, runs: 0, disk: Arc::default() }
        }

        /// A process that starts on what the one before left, by a kill.
        fn start(&mut self, now: UnixTime) -> (Journal<Until>, Vec<Record<Until>>) {
            self.disk = self.disk.copy();
            self.runs += 1;
            let tally = TallyFile::beside(&self.folder.join("state"), [self.runs; 16]);
            Journal::restore(Some(self.disk.clone() as Arc<dyn Store>), Some(tally), now).expect("a store")
        }
    }

    impl Drop for Site {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    fn seconds(second: u64) -> UnixTime {
        UnixTime(second * 1_000_000)
    }

    fn packets(number: u128) -> Total {
        Total { packets: number, octets: number * 9 }
    }

    #[test]
    fn a_kill_takes_nothing_that_is_in_the_tally_and_only_what_the_store_has_is_told() {
        let mut site = Site::new("kill");
        let (mut journal, live) = site.start(seconds(50));
        assert_eq!((live, journal.last_counted()), (Vec::new(), None));
        site.disk.commit();
        journal.add(0, [(Until(100), packets(3)), (Until(40), packets(1))]);
        journal.tally(seconds(51));
        journal.add(1, [(Until(100), packets(5))]);
        journal.tally(seconds(52));
        journal.add(1, [(Until(100), packets(6))]);
        // Killed; the last ones are in no file.
        let (mut journal, live) = site.start(seconds(500));
        assert_eq!(live, [], "all are over");
        assert_eq!(journal.totals.by_account(), [(Until(40), packets(1)), (Until(100), packets(8))]);
        assert_eq!(journal.last_counted(), Some(UnixTime(52_000_000 + BEHIND.as_micros() as u64)));
        assert!(journal.durable().is_empty(), "a loss of power could take it");
        // Killed again, before the store has anything.
        let (mut journal, live) = site.start(seconds(60));
        let record = |thread, number| Record { thread, account: Until(100), total: packets(number) };
        assert_eq!(live, [Record { thread: 0, account: Until(40), total: packets(1) }, record(0, 3), record(1, 5)]);
        site.disk.commit();
        assert_eq!(journal.durable(), [(Until(40), packets(1)), (Until(100), packets(8))]);
        let clock = site.disk.load(CLOCK).expect("there");
        assert_eq!(clock[0].1, seconds(52).0.to_be_bytes(), "nothing was counted since");
        // What the store has is in the tally no more.
        journal.tally(seconds(61));
        assert!(!journal.tally.as_ref().expect("one").has_entries());
        let (journal, live) = site.start(seconds(62));
        assert_eq!((live.len(), journal.totals.by_account().len()), (3, 2));
    }

    #[test]
    fn accounts_are_forgotten_also_where_no_tally_can_be_written_and_not_while_one_of_this_run_may_have_them() {
        let mut site = Site::new("no-tally");
        let in_the_way = site.folder.join("state.tally.new");
        std::fs::create_dir(&in_the_way).expect("made");
        let (mut journal, _) = site.start(seconds(50));
        let now = seconds(102 + FORGET.as_secs());
        let count = |journal: &mut Journal<Until>, disk: &Disk, account| {
            journal.add(0, [(Until(account), packets(1))]);
            journal.tally(now);
            journal.submit(now);
            (0..2).for_each(|_| disk.commit());
            journal.durable();
            journal.over(now).into_iter().for_each(|(key, _)| journal.close(&key));
        };
        assert!(journal.forgettable(now).is_empty(), "the tally of a process before may count");
        count(&mut journal, &site.disk, 100);
        journal.tally(now);
        assert!(journal.tally.as_ref().is_some_and(TallyFile::is_failing));
        assert_eq!(journal.forgettable(now), [Until(100)]);
        // Once it was begun, what is in the file counts after a kill.
        std::fs::remove_dir(&in_the_way).expect("empty");
        journal.durable();
        assert!(journal.tally.as_ref().is_some_and(|tally| tally.batch().is_some()));
        assert_eq!(journal.forgettable(now), [Until(100)]);
        std::fs::create_dir(&in_the_way).expect("made");
        count(&mut journal, &site.disk, 101);
        assert!(journal.tally.as_ref().is_some_and(TallyFile::may_be_stale));
        assert!(journal.forgettable(now).is_empty());
    }

    #[test]
    fn whose_tally_was_taken_over_stays_known_until_another_one_is() {
        let mut site = Site::new("taken");
        let (mut journal, _) = site.start(seconds(50));
        site.disk.commit();
        assert!(site.disk.load(TAKEN).expect("a table").is_empty(), "there was none");
        journal.add(0, [(Until(100), packets(3))]);
        journal.tally(seconds(51));
        // Two processes that end before they begin a tally: the second finds the first one's that the state has in it.
        for _ in 0..2 {
            let (journal, _) = site.start(seconds(52));
            site.disk.commit();
            assert_eq!(site.disk.load(TAKEN).expect("a table"), [(Vec::new(), vec![1; 16])]);
            assert_eq!(journal.totals.by_account(), [(Until(100), packets(3))]);
        }
    }

    #[test]
    fn totals_never_fall_and_never_exceed_what_was_counted_whenever_a_process_is_killed_or_its_store_is_put_back() {
        let mut random = 7_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let mut site = Site::new("random");
        let (mut journal, _) = site.start(seconds(1));
        // What threads counted, and what of it is in a file.
        let (mut counted, mut kept) = (BTreeMap::<(usize, u32), u128>::new(), BTreeMap::new());
        let (mut copies, mut kills, mut saved) = (Vec::new(), 0, 0);
        for _ in 0..20_000 {
            match below(100) {
                0..50 => {
                    let (thread, account) = (below(2) as usize, 1_000 + below(4) as u32);
                    let total = counted.entry((thread, account)).or_default();
                    *total += u128::from(below(9) + 1);
                    journal.add(thread, [(Until(account), packets(*total))]);
                }
                50..75 => {
                    journal.tally(seconds(2));
                    let tally = journal.tally.as_ref().expect("one");
                    if tally.batch().is_some() {
                        kept = counted.clone();
                    }
                }
                75..85 => {
                    journal.submit(seconds(2));
                    drop(journal.durable());
                }
                85..95 => site.disk.commit(),
                95 => copies.push((site.disk.copy(), site.runs)),
                96..99 => {
                    let stored = site.disk.load(TABLE).expect("there");
                    let (next, live) = site.start(seconds(3));
                    for Record { thread, account: Until(account), total } in &live {
                        let all = counted.get(&(*thread, *account)).copied().unwrap_or_default();
                        let least = kept.get(&(*thread, *account)).copied().unwrap_or_default();
                        assert!(total.packets <= all && total.packets >= least, "{total:?}: {least} to {all}");
                    }
                    assert!(live.len() >= kept.len());
                    saved += usize::from(live.iter().any(|of| !stored.contains(&(of.key(), of.value()))));
                    counted = live.iter().map(|of| ((of.thread, of.account.0), of.total.packets)).collect();
                    kept.clone_from(&counted);
                    (journal, kills) = (next, kills + 1);
                }
                // An old copy of the store, of a process before: it has what it had, and the tally counts for nothing.
                _ => {
                    if journal.tally.as_ref().is_none_or(|tally| tally.batch().is_none()) {
                        continue;
                    }
                    copies.retain(|(_, runs)| *runs < site.runs);
                    let Some((copy, _)) = copies.pop() else { continue };
                    let stored = copy.load(TABLE).expect("there");
                    site.disk = copy;
                    let (next, live) = site.start(seconds(3));
                    let restored: Vec<_> = live.iter().map(|record| (record.key(), record.value())).collect();
                    assert_eq!(restored, stored);
                    counted = live.iter().map(|of| ((of.thread, of.account.0), of.total.packets)).collect();
                    kept.clone_from(&counted);
                    (journal, kills) = (next, kills + 1);
                }
            }
            if site.runs == u8::MAX {
                break;
            }
        }
        assert!(kills > 200 && saved > 50, "{kills} {saved}");
    }

    #[test]
    fn an_account_closes_and_is_forgotten_while_others_are_counted_all_the_time() {
        let store = Arc::new(Reluctant::default());
        store.has_capacity.store(true, Ordering::Relaxed);
        let (mut journal, _) =
            Journal::restore(Some(store.clone() as Arc<dyn Store>), None, UnixTime(0)).expect("empty");
        journal.add(0, [(Until(100), packets(1)), (Until(u32::MAX), packets(1))]);
        let now = seconds(101 + FORGET.as_secs());
        assert!(journal.over(now).is_empty(), "it waits");
        journal.submit(now);
        journal.add(0, [(Until(u32::MAX), packets(2))]);
        assert!(journal.over(now).is_empty(), "it is not durable");
        store.batches.lock().expect("no panic").pop().expect("a batch").1();
        journal.durable();
        let over = journal.over(now);
        assert_eq!(over.iter().map(|(_, (_, account))| *account).collect::<Vec<_>>(), [Until(100)]);
        journal.close(&over[0].0);
        assert_eq!(journal.forgettable(now), [Until(100)]);
        // It was charged once more, since the clock went back.
        journal.add(0, [(Until(100), packets(1))]);
        journal.close(&over[0].0);
        assert!(journal.forgettable(now).is_empty());
    }
}

//! Hosts that crash, lose their stores, get old ones back and have their clocks set: never an index twice.
//!
//! KCX-12: few-time keys in 10,000 simulated runs of one to three hosts (`WAYLEAVE_LIVES`), with lost and older stores,
//! other divisions, crash loops and clocks that are set or differ by up to four seconds: no index signs twice, none is
//! lost by a start, nothing is signed before its slot is durable, routes go out within two slots after a start.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::secret::Secret;

use super::*;
use crate::pipeline::keys::SigningKeys;
use crate::sign::{KeyPair, KeyRing};
use crate::suite::hbs::{HbsKey, KcHbs, Part};
use crate::{SignError, Suite, SuiteKey};

const BIRTH: u64 = 1_700_000_000;
const SECOND: u64 = 1_000_000;
/// Signatures of a holder in a slot, in the simulation.
const SHARE: u64 = 6;

/// By key and slot, how many signatures each part has made.
type Used = Arc<Mutex<BTreeMap<(u8, u64, u64), u64>>>;

/// A key that signs at no cost, and in which no index may be used twice.
struct StandIn {
    /// Stands for seed, birth and division.
    key: u8,
    part: u64,
    slot: Option<u64>,
    open: bool,
    next: u64,
    used: Used,
    /// The last slot that the store has durably.
    durable: Arc<Mutex<Option<u64>>>,
}

impl SuiteKey for StandIn {
    fn public(&self) -> &[u8] {
        std::slice::from_ref(&self.key)
    }

    fn sign(&mut self, _message: &[u8]) -> Result<Vec<u8>, SignError> {
        let Some(slot) = self.slot.filter(|_| self.open && self.next < SHARE) else {
            return Err(SignError::NotReserved(self.next));
        };
        assert!(self.durable.lock().expect("one thread").is_some_and(|durable| durable >= slot), "not durable");
        let mut used = self.used.lock().expect("one thread");
        let count = used.entry((self.key, self.part, slot)).or_default();
        assert_eq!(*count, self.next, "an index of slot {slot} twice, or one burnt");
        *count += 1;
        self.next += 1;
        Ok(Vec::new())
    }

    fn slots(&self) -> Option<Slots> {
        Some(Slots { birth: BIRTH, count: 1 << 26, signatures: SHARE })
    }

    fn set_slot(&mut self, slot: Option<u64>) {
        self.open = slot.is_some() && slot >= self.slot;
        if self.open && slot > self.slot {
            (self.slot, self.next) = (slot, 0);
        }
    }

    fn left_in_slot(&self) -> u64 {
        SHARE - self.next
    }
}

/// Pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// A process and what its driver does.
struct Process {
    keys: SigningKeys,
    durable: Arc<Mutex<Option<u64>>>,
    queued: usize,
    waiting: usize,
    persists: Vec<Reserve>,
    /// Since when by its clock routes wait and it has been synchronised without a break, before anything has gone out.
    ready: Option<u64>,
    events: Vec<KeyEvent>,
}

impl Process {
    fn start(ring: KeyRing, durable: Arc<Mutex<Option<u64>>>, seen: Option<u64>, now: Now) -> Self {
        let seen = seen.map(|slot| (ring.pairs[0].key.public().to_vec(), slot)).into_iter().collect();
        let keys = SigningKeys::new(ring, &seen, now);
        Self { keys, durable, queued: 0, waiting: 0, persists: Vec::new(), ready: None, events: Vec::new() }
    }

    fn reserve(&mut self, now: Now) {
        self.events.extend(self.keys.few_time.take_events(now.unix));
        self.persists.extend(self.keys.few_time.due(now.unix));
    }

    fn queue(&mut self, capacity: Option<usize>) {
        let Some(capacity) = capacity else { return };
        let queued = capacity.min(self.waiting);
        (self.queued, self.waiting) = (self.queued + queued, self.waiting - queued);
        self.keys.few_time.retried(queued == capacity);
    }

    /// What a machine does with what is queued; returns what was signed.
    fn work(&mut self, now: Now) -> Vec<Vec<u8>> {
        let mut signed = Vec::new();
        self.keys.few_time.on_now(now);
        while self.queued > 0 {
            self.keys.open(now.unix);
            let before = self.waiting;
            for _ in 0..std::mem::take(&mut self.queued) {
                match self.keys.ring.lock().pairs[0].key.sign(b"m") {
                    Ok(signature) => signed.push(signature),
                    Err(_) => self.waiting += 1,
                }
            }
            self.keys.signed(self.waiting > before, now.unix);
            self.reserve(now);
            self.queue(self.keys.few_time.more_capacity(now.unix));
        }
        signed
    }

    fn on_time(&mut self, now: Now) {
        self.keys.few_time.on_now(now);
        self.ready = self.ready.filter(|_| self.keys.few_time.synchronised.is_some());
        if self.keys.few_time.retry().is_some_and(|at| at <= now.unix.secs()) {
            let capacity = self.keys.few_time.take_retry(now.unix);
            self.queue(capacity);
            self.reserve(now);
        }
    }

    fn on_clock(&mut self, is_synchronised: bool, now: Now) {
        self.keys.few_time.on_now(now);
        if self.keys.few_time.set_synchronised(is_synchronised, now) {
            self.ready = is_synchronised.then_some(now.unix.0);
            self.reserve(now);
        }
    }

    fn on_durable(&mut self, reserve: &Reserve, now: Now) {
        let mut durable = self.durable.lock().expect("one thread");
        *durable = (*durable).max(Some(reserve.slot));
        drop(durable);
        if self.keys.few_time.persisted(reserve.id, now.unix) {
            self.queue(self.keys.few_time.capacity(now.unix));
        }
    }
}

struct Host {
    key: u8,
    part: u64,
    /// Its clock less the true one, in microseconds.
    skew: i64,
    is_synchronised: bool,
    /// What its store says of each key, and what older copies of it said.
    store: HashMap<u8, u64>,
    copies: Vec<HashMap<u8, u64>>,
    process: Option<Process>,
}

impl Host {
    fn now(&self, time: u64) -> Now {
        let unix = (time as i64 + self.skew) as u64;
        Now { instant: Instant(time * 1000), unix: UnixTime(unix) }
    }

    fn start(&mut self, time: u64, used: &Used) {
        let durable = Arc::new(Mutex::new(None));
        let (used, shared) = (Arc::clone(used), Arc::clone(&durable));
        let key = StandIn { key: self.key, part: self.part, slot: None, open: false, next: 0, used, durable: shared };
        let pair = KeyPair { suite: SuiteId::KcHbs, key: Box::new(key), registered: true };
        let (now, seen) = (self.now(time), self.store.get(&self.key).copied());
        let mut process = Process::start(KeyRing { pairs: vec![pair] }, durable, seen, now);
        process.on_clock(self.is_synchronised, now);
        self.process = Some(process);
    }

    /// Half a second passes.
    fn tick(&mut self, time: u64, random: &mut Random) {
        let (now, is_synchronised) = (self.now(time), self.is_synchronised);
        let Some(process) = &mut self.process else { return };
        process.on_time(now);
        if !random.one_in(4) {
            process.on_clock(is_synchronised, now);
        }
        if random.below(3) > 0 {
            for reserve in std::mem::take(&mut process.persists) {
                self.store.insert(self.key, reserve.slot);
                process.on_durable(&reserve, now);
            }
        }
        if process.waiting == 0 {
            process.ready = process.ready.map(|since| since.max(now.unix.0));
        }
        let signed = process.work(now);
        if !signed.is_empty() {
            process.ready = None;
        }
        // Two slots by one clock; one more where the clock or an earlier run's went wrong by up to eight seconds between them.
        let late = process.ready.is_some_and(|since| process.waiting > 0 && now.unix.0 > since + 27 * SECOND);
        assert!(!late, "routes still wait");
    }

    /// Something goes wrong, or is mended.
    fn incident(&mut self, time: u64, used: &Used, random: &mut Random) {
        match random.below(18) {
            0 | 1 => {
                if let Some(process) = self.process.take() {
                    // What was on its way to the store arrived or not.
                    for reserve in process.persists.iter().take(random.below(3) as usize) {
                        self.store.insert(self.key, reserve.slot);
                    }
                }
            }
            2 | 3 if self.process.is_none() => self.start(time, used),
            4 => {
                // A crash loop: nothing is signed, and nothing must be lost by it.
                let before = self.store.clone();
                for life in 0..random.below(20) {
                    self.start(time + life * 1000, used);
                    let now = self.now(time + life * 1000);
                    if let Some(process) = &mut self.process {
                        process.queued = 1;
                        assert_eq!(process.work(now), [[0u8; 0]; 0], "no earlier than a slot after the start");
                        assert_eq!(process.persists, [], "a start burns nothing");
                    }
                }
                assert_eq!(self.store, before);
            }
            5 if self.process.is_none() => self.store.clear(),
            6 => self.copies.push(self.store.clone()),
            7 if self.process.is_none() && !self.copies.is_empty() => {
                self.store = self.copies[random.below(self.copies.len() as u64) as usize].clone();
            }
            // Another division, which is another key, or the earlier one again.
            8 if self.process.is_none() => self.key = random.below(3) as u8,
            // Somebody sets the clock: the kernel knows.
            9 => {
                self.is_synchronised = false;
                self.skew += random.below(7_200 * SECOND) as i64 - 3_600 * SECOND as i64;
            }
            10 | 11 => {
                self.skew = random.below(8 * SECOND) as i64 - 4 * SECOND as i64;
                self.is_synchronised = true;
            }
            // The time service corrects it a little.
            12 if self.is_synchronised => {
                let limit = 4 * SECOND as i64;
                self.skew = (self.skew + random.below(SECOND) as i64 - SECOND as i64 / 2).clamp(-limit, limit);
            }
            // The worst restart: at once, without the store, by a clock as different as may be.
            13 if self.is_synchronised => {
                self.store.clear();
                self.skew = if random.one_in(2) { 4 } else { -4 } * SECOND as i64;
                self.start(time, used);
                self.process.iter_mut().for_each(|process| process.queued = 1);
            }
            _ => {
                if let Some(process) = &mut self.process {
                    process.queued += random.below(3 * SHARE) as usize;
                }
            }
        }
    }
}

fn run(seed: u64) -> u64 {
    let (mut random, used) = (Random(seed), Used::default());
    let mut hosts: Vec<Host> = (0..1 + random.below(3))
        .map(|part| Host {
            key: 0,
            part,
            skew: 0,
            is_synchronised: true,
            store: HashMap::new(),
            copies: Vec::new(),
            process: None,
        })
        .collect();
    let mut time = (BIRTH + 100_000) * SECOND + random.below(8 * SECOND);
    for _ in 0..30 {
        for host in &mut hosts {
            if random.below(3) > 0 {
                host.incident(time, &used, &mut random);
            }
        }
        for _ in 0..random.below(16) {
            time += SECOND / 2;
            hosts.iter_mut().for_each(|host| host.tick(time, &mut random));
        }
    }
    let used = used.lock().expect("one thread");
    used.values().sum()
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]
fn no_index_signs_twice_whatever_becomes_of_stores_clocks_and_processes() {
    let runs = std::env::var("WAYLEAVE_LIVES").ok().and_then(|runs| runs.parse().ok()).unwrap_or(10_000);
    let signed: u64 = (0..runs).map(run).sum();
    assert!(signed > runs * 5, "{signed}");
}

/// One process on one host whose clock is right, with the key `key`, at `secs` after the key's birth.
fn process(key: Box<dyn SuiteKey>, durable: &Arc<Mutex<Option<u64>>>, seen: Option<u64>, secs: u64) -> Process {
    let pair = KeyPair { suite: SuiteId::KcHbs, key, registered: true };
    Process::start(KeyRing { pairs: vec![pair] }, Arc::clone(durable), seen, at(secs))
}

fn at(secs: u64) -> Now {
    Now { instant: Instant(secs * 1_000_000_000), unix: UnixTime((BIRTH + secs) * SECOND) }
}

/// Runs the process from `from` on until its routes are signed; returns the time, and how many were.
fn until_signed(process: &mut Process, from: u64) -> (u64, usize) {
    for secs in from..from + 100 {
        process.on_time(at(secs));
        let mut signed = process.work(at(secs)).len();
        for reserve in std::mem::take(&mut process.persists) {
            process.on_durable(&reserve, at(secs));
        }
        signed += process.work(at(secs)).len();
        if signed > 0 {
            return (secs, signed);
        }
    }
    panic!("nothing was signed");
}

fn stand_in(used: &Used, durable: &Arc<Mutex<Option<u64>>>) -> Box<dyn SuiteKey> {
    let (used, durable) = (Arc::clone(used), Arc::clone(durable));
    Box::new(StandIn { key: 0, part: 0, slot: None, open: false, next: 0, used, durable })
}

#[test]
fn routes_go_out_within_two_slots_after_a_start_and_nothing_is_lost_by_it() {
    for start in 800..816 {
        let (used, durable) = (Used::default(), Arc::default());
        let mut process = process(stand_in(&used, &durable), &durable, None, start);
        process.queued = 1;
        process.on_clock(true, at(start));
        let (signed, _) = until_signed(&mut process, start);
        assert!((start + 9..=start + 16).contains(&signed), "{start} {signed}");
        assert_eq!(signed % 8, 0, "at the beginning of a slot");
        let events: Vec<_> = process.events.iter().collect();
        let wait = KeyWait { suite: SuiteId::KcHbs, reason: WaitReason::FirstSlotAhead, until: Some(BIRTH + signed) };
        assert_eq!(events, [&KeyEvent::Waits(wait), &KeyEvent::Signs(SuiteId::KcHbs)]);
        // A slot ahead is durable, so that the next one begins without a pause.
        assert_eq!(*durable.lock().expect("one thread"), Some(signed / 8 + 1));
    }
}

#[test]
fn a_restart_waits_no_longer_for_what_the_store_has_seen() {
    let (used, durable) = (Used::default(), Arc::default());
    let mut first = process(stand_in(&used, &durable), &durable, None, 800);
    first.queued = 1;
    first.on_clock(true, at(800));
    let (signed, _) = until_signed(&mut first, 800);
    let seen = *durable.lock().expect("one thread");
    let mut second = process(stand_in(&used, &durable), &durable, seen, signed + 1);
    second.queued = 1;
    second.on_clock(true, at(signed + 1));
    assert_eq!(until_signed(&mut second, signed + 1).0, signed + 16);
}

#[test]
fn an_unsynchronised_clock_a_step_and_a_store_from_the_future_are_waited_out_and_told() {
    let (used, durable) = (Used::default(), Arc::default());
    let mut process = process(stand_in(&used, &durable), &durable, Some(110), 800);
    process.queued = 1;
    let reasons = |process: &Process| -> Vec<(WaitReason, Option<u64>)> {
        let of = |event: &KeyEvent| match event {
            KeyEvent::Waits(wait) => Some((wait.reason, wait.until.map(|until| until - BIRTH))),
            _ => None,
        };
        process.events.iter().filter_map(of).collect()
    };
    assert!(process.work(at(800)).is_empty());
    assert_eq!(reasons(&process), [(WaitReason::ClockNotSynchronised, None)]);
    assert_eq!(process.keys.few_time.retry(), None);
    process.on_clock(true, at(801));
    assert_eq!(reasons(&process)[1..], [(WaitReason::StoreIsAhead, Some(888))]);
    assert_eq!(until_signed(&mut process, 801).0, 888);
    // Set back by a minute, and found synchronised.
    process.queued = 1;
    let back = Now { instant: at(890).instant, unix: at(830).unix };
    assert!(process.work(back).is_empty());
    assert_eq!(reasons(&process)[2..], [(WaitReason::ClockNotSynchronised, None)]);
    process.on_clock(true, back);
    let status = &process.keys.few_time.status(back.unix)[0];
    assert_eq!((status.waits, status.until), (Some(WaitReason::StoreIsAhead), Some(BIRTH + 888)));
    assert!(process.work(back).is_empty());
}

#[test]
fn a_spent_slot_holds_routes_back_until_the_next_and_is_told_once() {
    let (used, durable) = (Used::default(), Arc::default());
    let mut process = process(stand_in(&used, &durable), &durable, None, 800);
    process.queued = 4 * SHARE as usize;
    process.on_clock(true, at(800));
    let (mut from, mut signed) = (800, Vec::new());
    while process.waiting + process.queued > 0 {
        let (secs, count) = until_signed(&mut process, from);
        signed.push((secs, count as u64));
        from = secs + 1;
    }
    assert_eq!(signed, [(816, SHARE), (824, SHARE), (832, SHARE), (840, SHARE)]);
    let spent = |event: &&KeyEvent| matches!(event, KeyEvent::Waits(wait) if wait.reason == WaitReason::SlotSpent);
    assert_eq!(process.events.iter().filter(spent).count(), 1);
}

#[test]
fn a_key_that_nobody_needs_writes_nothing_and_makes_nothing_ahead() {
    let (used, durable) = (Used::default(), Arc::default());
    let mut process = process(stand_in(&used, &durable), &durable, None, 800);
    process.on_clock(true, at(800));
    for secs in 800..900 {
        process.on_time(at(secs));
        process.reserve(at(secs));
        assert!(process.persists.is_empty() && process.keys.few_time.ahead(at(secs).unix).is_empty());
    }
    process.queued = 1;
    assert_eq!(until_signed(&mut process, 900).0, 900);
    assert_eq!(process.keys.few_time.ahead(at(900).unix), [(0, 113)]);
    assert!(process.keys.few_time.ahead(at(920).unix).is_empty(), "nobody needed it for two slots");
}

#[test]
fn warnings_come_before_the_end_of_a_key() {
    let (used, durable) = (Used::default(), Arc::default());
    let life = 8 << 26;
    let mut reported = Vec::new();
    for days in [400, 364, 100, 89, 29, 6] {
        let mut process = process(stand_in(&used, &durable), &durable, None, life - days * 86_400);
        process.reserve(at(life - days * 86_400));
        process.reserve(at(life - days * 86_400 + 1));
        reported.push(process.events.len());
        for event in process.events {
            let KeyEvent::Ends(end) = event else { panic!("{event:?}") };
            assert_eq!((end.ends, end.days), (BIRTH + life, days));
        }
    }
    assert_eq!(reported, [0, 1, 1, 1, 1, 1]);
}

#[test]
fn lives_of_a_real_key_cut_off_at_any_point_never_let_an_index_sign_twice() {
    // KCX-12: the slot is written, then the key learns of it; a kill may fall before, between or after. The store is lost
    // now and then.
    let mut made = HbsKey::new(&Secret::new([5; 32]), BIRTH, Part::WHOLE);
    made.make_ahead(1);
    let mut indices = Vec::new();
    let (mut store, mut secs) = (None, 80);
    for life in 0..10 {
        let durable = Arc::default();
        let mut process = process(Box::new(made.clone()), &durable, store.filter(|_| life % 3 > 0), secs);
        process.on_clock(true, at(secs));
        process.queued = 2;
        let lasts = [5, 30, 17, 60][life % 4];
        for now in secs..secs + lasts {
            process.on_time(at(now));
            for signature in process.work(at(now)) {
                assert!(KcHbs.verify(made.public(), b"m", &signature));
                indices.push(signature[..5].to_vec());
                process.queued += usize::from(now % 5 == 0);
            }
            for reserve in std::mem::take(&mut process.persists) {
                store = Some(reserve.slot);
                if now % 7 > 0 || life % 2 == 0 {
                    process.on_durable(&reserve, at(now));
                }
            }
        }
        secs += lasts;
    }
    let mut distinct = indices.clone();
    distinct.dedup();
    assert_eq!(indices, distinct);
    assert!(indices.is_sorted() && indices.len() > 4, "{}", indices.len());
}

#[test]
fn a_key_that_waits_long_does_not_have_its_routes_tried_for_ever_beside_one_that_may_sign() {
    let (used, durable) = (Used::default(), Arc::default());
    let mut process = process(stand_in(&used, &durable), &durable, Some(1 << 20), 800);
    let other = StandIn { key: 1, part: 0, slot: None, open: false, next: 0, used, durable };
    let key: Box<dyn SuiteKey> = Box::new(other);
    process.keys.ring.lock().pairs.push(KeyPair { suite: SuiteId::KcHbs, key, registered: true });
    let seen = HashMap::from([(vec![0], 1 << 20)]);
    let few_time = FewTimeKeys::new(&process.keys.ring.lock(), &seen, at(800));
    process.keys.few_time = few_time;
    process.on_clock(true, at(800));
    process.queued = 1;
    for secs in 800..900 {
        process.on_time(at(secs));
        assert!(process.work(at(secs)).is_empty());
        for reserve in std::mem::take(&mut process.persists) {
            process.on_durable(&reserve, at(secs));
        }
    }
    assert_eq!(process.keys.few_time.retry(), Some(BIRTH + 8 * ((1 << 20) + 1)));
}

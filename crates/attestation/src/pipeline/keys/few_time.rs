//! Few-time keys sign in slots of time, so that no index is used twice, whatever became of the store.
//!
//! A process signs only in the slot of now, and only if that slot
//!
//! - begins more than a slot's length after the clock was found synchronised, so that it is none in which an earlier run
//!   signed whose clock was at most half a slot ahead while this one's is at most half a slot behind,
//! - lies after every slot that the store has seen, and not before one in which this process has signed,
//! - is durable in the store as perhaps used.
//!
//! The store is a second line: without it the first rule alone keeps indices apart, as long as the clock is what the kernel
//! says of it. A start uses no index up, since slots pass by themselves.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use wayleave_core::{Now, UnixTime};

use crate::SuiteId;
use crate::sign::{KeyPair, KeyRing};
use crate::suite::Slots;

/// After the slot in which the clock is found synchronised, the next but one is the first that begins more than a slot's
/// length later.
const GUARD_SLOTS: u64 = 2;
/// Microseconds between what the two clocks say has passed, from which on the wall clock was set: until the driver
/// repeats that it is synchronised, it counts as not.
const STEP: u64 = 1_000_000;
/// Days before the end of a key's life when a warning is due.
const WARNINGS: [u64; 4] = [365, 90, 30, 7];
/// Slots ahead for which trees are made while routes wait.
const NEAR: u64 = 4;

/// What is to be made durable: that a few-time key may have signed in every slot up to `slot`. The driver then reports
/// `id` as persisted; the key signs in none of those before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// Rises by one each time.
    pub id: u64,
    /// The key's name in the store: its encoded public half.
    pub public: Vec<u8>,
    /// The last slot that counts as used after a restart.
    pub slot: u64,
}

/// Why a few-time key does not sign now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitReason {
    /// The kernel does not say that the clock is synchronised.
    ClockNotSynchronised,
    /// The clock was found synchronised a moment ago, at the start or later: a slot passes that an earlier run may have used.
    FirstSlotAhead,
    /// The store has seen a slot that has not passed by this clock.
    StoreIsAhead,
    /// This process has signed in a slot that has not begun by this clock.
    ClockWentBack,
    /// The key's life has not begun by this clock.
    NotBorn,
    /// All signatures of this slot are made.
    SlotSpent,
    /// The slot is on its way to the store.
    NotDurable,
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClockNotSynchronised => "this machine's clock is not synchronised",
            Self::FirstSlotAhead => "it signs first in a slot of time that no earlier run can have used",
            Self::StoreIsAhead => "the store has seen a later slot of time than this machine's clock",
            Self::ClockWentBack => "this machine's clock went back",
            Self::NotBorn => "by this machine's clock it is not created yet",
            Self::SlotSpent => "all its signatures for this slot of time are made",
            Self::NotDurable => "its slot of time is being recorded on disk",
        })
    }
}

/// A few-time key that cannot sign now, though routes need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyWait {
    pub suite: SuiteId,
    pub reason: WaitReason,
    /// Until when, in seconds since 1970, if the clock runs on as it does; `None`: that depends on others.
    pub until: Option<u64>,
}

/// The end of a few-time key's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyEnd {
    pub suite: SuiteId,
    /// In seconds since 1970.
    pub ends: u64,
    /// Days until then.
    pub days: u64,
}

/// The state of a few-time key.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FewTimeStatus {
    pub suite: &'static str,
    /// The slot of now, counted from the key's birth.
    pub slot: Option<u64>,
    /// Signatures that are left in it, and those that it had.
    pub left: u64,
    pub of: u64,
    /// When the key's life ends, in seconds since 1970.
    pub ends: u64,
    /// Why it does not sign now, though routes may need it.
    pub waits: Option<WaitReason>,
    /// Until when, in seconds since 1970, where that is known.
    pub until: Option<u64>,
    /// The share of its life that is left, from 0 to 1.
    #[serde(skip)]
    pub life_left: f64,
}

/// What became of a few-time key that operators should know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyEvent {
    Waits(KeyWait),
    Signs(SuiteId),
    Ends(KeyEnd),
}

/// Why a key does not sign, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wait {
    reason: WaitReason,
    until: Option<u64>,
}

struct FewTimeKey {
    /// In the ring.
    index: usize,
    suite: SuiteId,
    public: Vec<u8>,
    slots: Slots,
    /// The last slot that the store had seen before this start.
    seen: Option<u64>,
    /// The last slot that this process has made durable.
    durable: Option<u64>,
    /// A slot on its way to the store: id and slot.
    pending: Option<(u64, u64)>,
    /// The last slot in which it was set to sign.
    slot: Option<u64>,
    /// Signatures that are left in that slot.
    left: u64,
    /// The last slot in which a route needed it.
    needed: Option<u64>,
    /// The reason that was reported to the operator last, while it holds.
    reported: Option<WaitReason>,
    /// The last slot whose signatures were all made.
    spent: Option<u64>,
    /// How many of the warnings before its end have been given.
    warned: usize,
}

impl FewTimeKey {
    /// The slot in which it may sign now, if the clock was found synchronised at `synchronised`.
    fn admit(&self, synchronised: Option<UnixTime>, now: UnixTime) -> Result<u64, Wait> {
        let until = |reason, slot| Err(Wait { reason, until: Some(self.slots.begin(slot)) });
        let Some(since) = synchronised else {
            return Err(Wait { reason: WaitReason::ClockNotSynchronised, until: None });
        };
        let Some(slot) = self.slots.at(now) else { return until(WaitReason::NotBorn, 0) };
        let guarded = UnixTime(since.0.saturating_add(GUARD_SLOTS * Slots::SECONDS * 1_000_000));
        let first = self.slots.at(guarded).unwrap_or(0);
        if let Some(seen) = self.seen.filter(|seen| slot <= *seen && first <= *seen) {
            return until(WaitReason::StoreIsAhead, seen.saturating_add(1));
        }
        if slot < first {
            return until(WaitReason::FirstSlotAhead, first);
        }
        if let Some(latest) = self.slot.filter(|latest| slot < *latest) {
            return until(WaitReason::ClockWentBack, latest);
        }
        if slot >= self.slots.count {
            return Ok(slot); // the key itself refuses
        }
        if self.durable.is_none_or(|durable| durable < slot) {
            return Err(Wait { reason: WaitReason::NotDurable, until: None });
        }
        if self.slot == Some(slot) && self.left == 0 {
            return until(WaitReason::SlotSpent, slot + 1);
        }
        Ok(slot)
    }

    /// The slot of now, if nothing but the store keeps the key from signing in it.
    fn to_reserve(&self, synchronised: Option<UnixTime>, now: UnixTime) -> Option<u64> {
        let slot = match self.admit(synchronised, now) {
            Ok(slot) => slot,
            Err(Wait { reason: WaitReason::NotDurable | WaitReason::SlotSpent, .. }) => self.slots.at(now)?,
            Err(_) => return None,
        };
        (slot < self.slots.count).then_some(slot)
    }

    /// Signatures that it may still make in the slot of now.
    fn left_at(&self, now: UnixTime) -> u64 {
        if self.slot.is_some() && self.slot == self.slots.at(now) { self.left } else { self.slots.signatures }
    }
}

/// Those of `pairs` that are few-time keys, which have signed nothing in this process.
fn few_time(pairs: &[KeyPair], seen: &HashMap<Vec<u8>, u64>) -> Vec<FewTimeKey> {
    let few_time = pairs.iter().enumerate().filter_map(|(index, pair)| {
        let (slots, public) = (pair.key.slots()?, pair.key.public().to_vec());
        let seen = seen.get(&public).copied();
        Some(FewTimeKey {
            index,
            suite: pair.suite,
            public,
            slots,
            seen,
            durable: None,
            pending: None,
            slot: None,
            left: slots.signatures,
            needed: None,
            reported: None,
            spent: None,
            warned: 0,
        })
    });
    few_time.collect()
}

/// The few-time keys of a ring.
pub(crate) struct FewTimeKeys {
    keys: Vec<FewTimeKey>,
    persists: u64,
    /// When the clock was found synchronised; `None` while it is not.
    synchronised: Option<UnixTime>,
    before: Now,
    /// Routes wait until a key signs.
    routes_wait: bool,
    /// Since they were last tried again, some were in vain.
    in_vain: bool,
    /// When they are tried again, in seconds since 1970.
    retry: Option<u64>,
}

impl FewTimeKeys {
    /// `seen`: by encoded public key, the last slot in which it may have signed before this start. The clock counts as not
    /// synchronised until the driver says that it is.
    pub(crate) fn new(ring: &KeyRing, seen: &HashMap<Vec<u8>, u64>, now: Now) -> Self {
        let keys = few_time(&ring.pairs, seen);
        Self { keys, persists: 0, synchronised: None, before: now, routes_wait: false, in_vain: false, retry: None }
    }

    /// Puts the keys of `pairs`, which now stand first in the ring, before those that it has.
    pub(crate) fn put_first(&mut self, pairs: &[KeyPair], seen: &HashMap<Vec<u8>, u64>) {
        self.keys.iter_mut().for_each(|key| key.index += pairs.len());
        self.keys.splice(0..0, few_time(pairs, seen));
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Notes the time. A wall clock that was set is not synchronised until the driver says so again.
    pub(crate) fn on_now(&mut self, now: Now) {
        let before = std::mem::replace(&mut self.before, now);
        let passed = now.instant.since(before.instant).as_micros() as u64;
        if now.unix.0.abs_diff(before.unix.0.saturating_add(passed)) > STEP {
            self.set_synchronised(false, now);
        }
    }

    /// The driver asked the system whether the clock is synchronised. Returns whether that has changed.
    pub(crate) fn set_synchronised(&mut self, is_synchronised: bool, now: Now) -> bool {
        if is_synchronised == self.synchronised.is_some() {
            return false;
        }
        self.synchronised = is_synchronised.then_some(now.unix);
        self.plan(now.unix);
        true
    }

    /// Lets each key sign in the slot of now, if it may.
    pub(crate) fn open(&mut self, ring: &mut KeyRing, now: UnixTime) {
        for key in &mut self.keys {
            let Some(pair) = ring.pairs.get_mut(key.index) else { continue };
            let slot = key.admit(self.synchronised, now).ok();
            pair.key.set_slot(slot);
            if slot.is_some() {
                key.slot = slot;
                key.left = pair.key.left_in_slot();
            }
        }
    }

    /// A job has signed. `have_waited`: for some routes no key could.
    pub(crate) fn signed(&mut self, ring: &KeyRing, have_waited: bool, now: UnixTime) {
        for key in &mut self.keys {
            let Some(pair) = ring.pairs.get(key.index) else { continue };
            let left = if key.slot.is_some() { pair.key.left_in_slot() } else { key.left };
            if have_waited || left < key.left {
                key.needed = key.slots.at(now);
            }
            key.left = left;
        }
        self.routes_wait |= have_waited;
        self.in_vain |= have_waited;
        self.plan(now);
    }

    /// Sets when routes that wait are tried again: when the first key that waits may sign by then, or at once if none waits
    /// any more.
    fn plan(&mut self, now: UnixTime) {
        let waits: Vec<Wait> = self.keys.iter().filter_map(|key| key.admit(self.synchronised, now).err()).collect();
        let until = if waits.is_empty() { Some(now.secs()) } else { waits.iter().filter_map(|wait| wait.until).min() };
        self.retry = until.filter(|_| self.routes_wait);
    }

    /// When [`FewTimeKeys::take_retry`] is to be called, in seconds since 1970.
    pub(crate) fn retry(&self) -> Option<u64> {
        self.retry
    }

    /// How many routes that wait are to be tried now; `None`: none yet.
    pub(crate) fn take_retry(&mut self, now: UnixTime) -> Option<usize> {
        self.retry.take_if(|at| *at <= now.secs())?;
        let capacity = self.capacity(now);
        if capacity.is_none() {
            self.plan(now);
        }
        capacity
    }

    /// How many signatures some key can make now, if routes wait; `None`: none can.
    pub(crate) fn capacity(&self, now: UnixTime) -> Option<usize> {
        let ready = self.keys.iter().filter(|key| self.routes_wait && key.admit(self.synchronised, now).is_ok());
        ready.map(|key| usize::try_from(key.left_at(now)).unwrap_or(usize::MAX)).max()
    }

    /// Likewise, once those that were tried again have all been signed.
    pub(crate) fn more_capacity(&self, now: UnixTime) -> Option<usize> {
        if self.in_vain { None } else { self.capacity(now) }
    }

    /// Routes that waited are queued again; `more`: not all.
    pub(crate) fn retried(&mut self, more: bool) {
        self.routes_wait = more;
        self.in_vain = false;
    }

    /// The slots that must be made durable now: those of keys that routes need, one slot ahead.
    pub(crate) fn due(&mut self, now: UnixTime) -> Vec<Reserve> {
        let mut all = Vec::new();
        for key in &mut self.keys {
            let Some(slot) = key.to_reserve(self.synchronised, now) else { continue };
            let is_needed = self.routes_wait || key.needed.is_some_and(|needed| needed + 1 >= slot);
            // Never further ahead: after a restart the next slot is not used anyway.
            let ahead = (slot + 1).min(key.slots.count - 1);
            if !is_needed || key.pending.is_some() || key.durable.is_some_and(|durable| durable >= ahead) {
                continue;
            }
            self.persists += 1;
            key.pending = Some((self.persists, ahead));
            all.push(Reserve { id: self.persists, public: key.public.clone(), slot: ahead });
        }
        all
    }

    /// What `id` named is durable. Returns whether there is such a reserve.
    pub(crate) fn persisted(&mut self, id: u64, now: UnixTime) -> bool {
        let is_pending = |key: &&mut FewTimeKey| key.pending.is_some_and(|(of, _)| of == id);
        let Some(key) = self.keys.iter_mut().find(is_pending) else { return false };
        let Some((_, slot)) = key.pending.take() else { return false };
        key.durable = Some(slot);
        self.plan(now);
        true
    }

    /// What operators should know now, each once.
    pub(crate) fn take_events(&mut self, now: UnixTime) -> Vec<KeyEvent> {
        let mut events = Vec::new();
        for key in &mut self.keys {
            events.extend(key.wait_event(self.synchronised, self.routes_wait, now));
            let days = key.slots.end().saturating_sub(now.secs()) / 86_400;
            let due = WARNINGS.iter().filter(|warning| days < **warning).count();
            if due > key.warned {
                events.push(KeyEvent::Ends(KeyEnd { suite: key.suite, ends: key.slots.end(), days }));
            }
            key.warned = due;
        }
        events
    }

    /// Keys, by their index in the ring, with the slot for which trees are to be made ahead: the next in which each will
    /// sign.
    pub(crate) fn ahead(&self, now: UnixTime) -> Vec<(usize, u64)> {
        let ahead = self.keys.iter().filter_map(|key| {
            let slot = key.slots.at(now)?;
            if !self.routes_wait && key.needed.is_none_or(|needed| needed + 1 < slot) {
                return None;
            }
            let next = match key.admit(self.synchronised, now) {
                Err(Wait { until: Some(until), .. }) => key.slots.at(UnixTime(until.saturating_mul(1_000_000)))?,
                Err(Wait { reason: WaitReason::ClockNotSynchronised, .. }) => return None,
                _ => slot + u64::from(key.slot == Some(slot)),
            };
            (next <= slot + NEAR).then_some((key.index, next))
        });
        ahead.collect()
    }

    /// Signatures that the key at this index of the ring may still make in the slot of now.
    pub(crate) fn left(&self, index: usize, now: UnixTime) -> Option<u64> {
        self.keys.iter().find(|key| key.index == index).map(|key| key.left_at(now))
    }

    /// How each key stands.
    pub(crate) fn status(&self, now: UnixTime) -> Vec<FewTimeStatus> {
        let status = self.keys.iter().map(|key| {
            let is_shown = |wait: &Wait| wait.reason != WaitReason::NotDurable || key.pending.is_some();
            let wait = key.admit(self.synchronised, now).err().filter(is_shown);
            let ends = key.slots.end();
            FewTimeStatus {
                suite: key.suite.name(),
                slot: key.slots.at(now),
                left: key.left_at(now),
                of: key.slots.signatures,
                ends,
                waits: wait.map(|wait| wait.reason),
                until: wait.and_then(|wait| wait.until),
                life_left: ends.saturating_sub(now.secs()) as f64 / (ends - key.slots.birth).max(1) as f64,
            }
        });
        status.collect()
    }
}

impl FewTimeKey {
    fn wait_event(&mut self, synchronised: Option<UnixTime>, routes_wait: bool, now: UnixTime) -> Option<KeyEvent> {
        match self.admit(synchronised, now) {
            Ok(_) => self.reported.take().map(|_| KeyEvent::Signs(self.suite)),
            Err(Wait { reason: WaitReason::NotDurable, .. }) => None,
            Err(Wait { reason: WaitReason::SlotSpent, until }) if routes_wait => {
                // Where slot after slot is spent, once.
                let is_new = self.spent.is_none_or(|spent| self.slot.is_some_and(|slot| slot > spent + 1));
                self.spent = self.slot;
                let wait = KeyWait { suite: self.suite, reason: WaitReason::SlotSpent, until };
                is_new.then_some(KeyEvent::Waits(wait))
            }
            Err(Wait { reason, until }) if routes_wait && self.reported != Some(reason) => {
                self.reported = Some(reason);
                Some(KeyEvent::Waits(KeyWait { suite: self.suite, reason, until }))
            }
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;

//! Who leases rates: one of several key servers at a time, by a row in the database that all of them have.
//!
//! The row says whose turn it is, by an *epoch* that only rises, and how often its holder has renewed it. No clock is compared with
//! another's:
//!
//! - the holder is lessor for [`VALID`] from when it began to renew the row last, by either of its clocks: a machine that is halted may find
//!   only one of them gone on. One that cannot renew it stops;
//! - another takes the row once it has seen it unchanged for [`VACANT`], which is longer by whatever clocks may differ, and only if it is
//!   still as it saw it. A holder that stops in order gives the row up, and its successor waits for nothing;
//! - who has lost the row, or was too late to renew it, begins anew with a higher epoch, and knows nothing of what was given.
//!
//! Routers ask the lessor of the highest epoch that they have heard of, and no other one any more. So a lessor that does not know yet
//! that it was succeeded, or that was succeeded since the database was set back, is asked by nobody who has heard of its successor.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};

use crate::leases::RouterNumber;

/// How often the holder renews the row, and the others look at it.
pub const RENEWAL: Duration = Duration::from_secs(1);
/// How long it is lessor without that: a database may be started again meanwhile.
pub const VALID: Duration = Duration::from_secs(8);
/// How long the row does not change before another takes it: clocks differ by an eighth at most.
pub const VACANT: Duration = Duration::from_millis(9_200);
/// How long what a router was given may be in use, by any clock; and how often what a router says ends a term, at most.
const REMEMBERED: Duration = Duration::from_secs(400);
const BEGUN_ANEW: Duration = Duration::from_secs(300);
/// By how many seconds an epoch that a router has heard of may be ahead of the time: 10 years. Beyond, it was made up.
const AHEAD: u64 = 315_360_000;

/// The highest epoch that there can be: it follows the time, but for clocks that are wrong.
#[must_use]
pub fn last_epoch(now: UnixTime) -> u64 {
    now.secs().saturating_add(AHEAD)
}

/// A process that may hold the row: random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder(pub [u8; 16]);

/// What the row says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LessorRow {
    pub epoch: u64,
    /// How often it was renewed.
    pub renewed: u64,
    /// None if it was given up.
    pub holder: Option<Holder>,
    /// The holder's name, for people.
    pub name: String,
    /// Routers that may use something which it or one before it leased.
    pub routers: BTreeSet<RouterNumber>,
}

/// A turn as lessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    pub epoch: u64,
    /// When its last renewal began: that it was nobody else's turn then is certain.
    pub renewed: Now,
}

impl Term {
    /// Nothing is leased then, by either clock.
    #[must_use]
    pub fn is_over(&self, now: Now) -> bool {
        let micros = u64::try_from(VALID.as_micros()).unwrap_or(u64::MAX);
        let until = UnixTime(self.renewed.unix.0.saturating_add(micros));
        now.instant.since(self.renewed.instant) >= VALID || now.unix >= until
    }
}

/// A key server's part in who leases.
#[derive(Clone, Debug)]
pub struct Tenure {
    own: Holder,
    term: Option<Term>,
    /// The row as it was seen last, and since when it is so.
    seen: Option<(LessorRow, Instant)>,
    /// The row as this server has left it, and its epoch: while nobody has taken it, nobody has leased anything.
    left: Option<LessorRow>,
    /// An epoch that routers have heard of: the next is above it. The highest that was not heeded yet, and when one was the last time.
    above: u64,
    heard: u64,
    heeded: Option<Instant>,
    /// Routers that may use something, and when they were last known to be there.
    routers: BTreeMap<RouterNumber, Instant>,
}

impl Tenure {
    #[must_use]
    pub fn new(own: Holder) -> Self {
        Self { own, term: None, seen: None, left: None, above: 0, heard: 0, heeded: None, routers: BTreeMap::new() }
    }

    /// Which routers there are. Returns all that may use something: those that were taken out lately too.
    pub fn routers(&mut self, present: &BTreeSet<RouterNumber>, now: Instant) -> BTreeSet<RouterNumber> {
        self.routers.extend(present.iter().map(|router| (*router, now)));
        self.routers.retain(|_, seen| now.since(*seen) < REMEMBERED);
        self.routers.keys().copied().collect()
    }

    #[must_use]
    pub fn holder(&self) -> Holder {
        self.own
    }

    /// The present term, if this is the lessor.
    #[must_use]
    pub fn term(&self, now: Now) -> Option<Term> {
        self.term.filter(|term| !term.is_over(now))
    }

    /// Whether the row is to be renewed, with which epoch. Otherwise it is to be looked at ([`Tenure::wants`]).
    pub fn renews(&mut self, now: Now) -> Option<u64> {
        // Whoever is too late does not know what was given since.
        self.term = self.term(now);
        self.term.map(|term| term.epoch)
    }

    /// The row was renewed, which began at `asked`; or it is no longer this one's.
    pub fn renewed(&mut self, is_own: bool, asked: Now, now: Now) {
        let Some(term) = self.term(now).filter(|_| is_own) else {
            self.term = None;
            return;
        };
        // Routers have heard of a higher epoch, as before the database was set back: this one begins anew above it.
        self.term = (term.epoch > self.above).then_some(Term { renewed: asked, ..term });
    }

    /// Which epoch to take the row with, if it may be taken as it is. `is_alone`: whether no other process can hold it, where a lock says
    /// that.
    pub fn wants(&mut self, row: &LessorRow, is_alone: Option<bool>, now: Now) -> Option<u64> {
        let since = match &self.seen {
            Some((seen, since)) if seen == row => *since,
            _ => now.instant,
        };
        self.seen = Some((row.clone(), since));
        let is_vacant = now.instant.since(since) >= VACANT;
        let is_free = is_alone.unwrap_or(is_vacant || row.holder.is_none_or(|holder| holder == self.own));
        if !is_free {
            return None;
        }
        if self.left.as_ref() == Some(row) && row.epoch > self.above {
            return Some(row.epoch);
        }
        // By the time too, so that it is above those that were taken since a copy of the database was made.
        Some(row.epoch.max(self.above).saturating_add(1).max(now.unix.secs()))
    }

    /// The row was taken as it was seen, which began at `asked`.
    pub fn taken(&mut self, from: &LessorRow, epoch: u64, asked: Now) {
        self.term = Some(Term { epoch, renewed: asked });
        (self.seen, self.left) = (None, None);
        // Those that this server does not know may use what an earlier lessor gave them.
        self.routers.extend(from.routers.iter().map(|router| (*router, asked.instant)));
    }

    /// The row is given up, and says this now. Taken back as it is, it is the same term.
    pub fn given_up(&mut self, left: Option<LessorRow>) {
        (self.term, self.left) = (None, left);
    }

    /// A router has heard of a lessor with this epoch. Returns whether it can be so.
    pub fn heard_of(&mut self, epoch: u64, now: Now) -> bool {
        let is_sound = epoch <= last_epoch(now.unix);
        if is_sound {
            self.heard = self.heard.max(epoch);
        }
        is_sound
    }

    /// Heeds what was heard, unless a term has lately ended for such a word.
    pub fn heed(&mut self, now: Now) {
        if self.heard > self.above && self.heeded.is_none_or(|then| now.instant.since(then) >= BEGUN_ANEW) {
            (self.above, self.heeded) = (self.heard, Some(now.instant));
        }
    }
}

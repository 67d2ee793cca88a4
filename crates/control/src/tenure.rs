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

use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};

/// How often the holder renews the row, and the others look at it.
pub const RENEWAL: Duration = Duration::from_secs(1);
/// How long it is lessor without that: a database may be started again meanwhile.
pub const VALID: Duration = Duration::from_secs(8);
/// How long the row does not change before another takes it: clocks differ by an eighth at most.
pub const VACANT: Duration = Duration::from_millis(9_200);
/// By how many seconds an epoch that a router has heard of may be ahead of the time: 10 years. Beyond, it was made up.
const AHEAD: u64 = 315_360_000;

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
}

/// A turn as lessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    pub epoch: u64,
    /// Nothing is leased from then on, by either clock, unless the row was renewed.
    pub until: Now,
}

impl Term {
    fn new(epoch: u64, asked: Now) -> Self {
        let micros = u64::try_from(VALID.as_micros()).unwrap_or(u64::MAX);
        let unix = UnixTime(asked.unix.0.saturating_add(micros));
        Self { epoch, until: Now { instant: asked.instant + VALID, unix } }
    }

    #[must_use]
    pub fn is_over(&self, now: Now) -> bool {
        now.instant >= self.until.instant || now.unix >= self.until.unix
    }
}

/// A key server's part in who leases.
#[derive(Clone, Debug)]
pub struct Tenure {
    own: Holder,
    term: Option<Term>,
    /// The row as it was seen last, and since when it is so.
    seen: Option<(LessorRow, Instant)>,
    /// An epoch that routers have heard of: the next is above it.
    above: u64,
}

impl Tenure {
    #[must_use]
    pub fn new(own: Holder) -> Self {
        Self { own, term: None, seen: None, above: 0 }
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
        self.term = (term.epoch > self.above).then(|| Term::new(term.epoch, asked));
    }

    /// Which epoch to take the row with, if it may be taken as it is. `is_alone`: no other process can hold it, by a lock on the file.
    pub fn wants(&mut self, row: &LessorRow, is_alone: bool, now: Now) -> Option<u64> {
        let since = match &self.seen {
            Some((seen, since)) if seen == row => *since,
            _ => now.instant,
        };
        self.seen = Some((row.clone(), since));
        let is_vacant = now.instant.since(since) >= VACANT;
        let is_free = is_alone || is_vacant || row.holder.is_none_or(|holder| holder == self.own);
        // By the time too, so that it is above those that were taken since a copy of the database was made.
        is_free.then(|| row.epoch.max(self.above).saturating_add(1).max(now.unix.secs()))
    }

    /// The row was taken, which began at `asked`.
    pub fn taken(&mut self, epoch: u64, asked: Now) {
        self.term = Some(Term::new(epoch, asked));
        self.seen = None;
    }

    /// A router has heard of a lessor with this epoch. Returns whether it can be so.
    pub fn heard_of(&mut self, epoch: u64, now: Now) -> bool {
        let is_sound = epoch <= now.unix.secs().saturating_add(AHEAD);
        if is_sound {
            self.above = self.above.max(epoch);
        }
        is_sound
    }
}

//! Work that depends on what this member may open: opening objects, looking at the candidates of prefixes, changing the router's table.
//!
//! It is done in slices beside everything else, and what leaves at a fixed time leaves then, with whatever is done: otherwise the
//! moment at which a ranking comes, and whether it comes too late, would tell the parties how many objects could be opened. That
//! time is a tick later, or as much later as it takes to open all objects that came ([`crate::schedule`]), whether they can be opened or not.
//! What changed just now goes before what is sent again. What a batch ended stays in the router's table until the batch is
//! looked at, so that a route that another one replaces is not withdrawn before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wayleave_core::{Instant, Now, Prefix};

use super::Member;
use super::receive::Assessment;
use super::select::{Awaits, Choosing};
use crate::frames::{Body, Deliver, Instance, Seq};
use crate::object::Handle;

/// Units of work in one slice; to find that an object is sealed is one.
const SLICE: u32 = 64;
/// Units for an object that can be opened, whose signature is checked and attributes are decoded.
const OPENING: u32 = 32;
/// Units for what follows for the router's table from a change of a prefix.
const INSTALLING: u32 = 4;
/// Objects, and octets of them, that wait to be opened, and tasks that wait, with a place for each candidate: our own limits. What is more
/// is done at once, as fast as this machine can.
const MAX_OBJECTS: usize = 1 << 16;
const MAX_OCTETS: usize = 64 << 20;
const MAX_PLACES: usize = 1 << 20;
/// How long a slice is taken to last before one was measured.
const USUAL_SLICE: Duration = Duration::from_micros(500);

/// How long slices take on this machine.
#[derive(Clone, Copy)]
pub(super) struct Slices {
    longest: Duration,
    /// When the last one began, if another one was to follow at once.
    began: Option<Instant>,
}

impl Default for Slices {
    fn default() -> Self {
        Self { longest: USUAL_SLICE, began: None }
    }
}

impl Slices {
    /// Something is done after a slice.
    pub(super) fn ended(&mut self, now: Instant) {
        if let Some(began) = self.began.take() {
            // It falls slowly: what follows a run of short slices, in which nothing could be opened, may be a long one.
            self.longest = now.since(began).max(self.longest * 255 / 256);
        }
    }

    /// No slice begins so shortly before something leaves at a fixed time.
    fn pause(self, tick: Duration) -> Duration {
        (self.longest * 5 / 4).min(tick / 5)
    }
}

/// The two parts of a backlog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Urgency {
    /// What changed just now.
    Live = 0,
    /// What is sent, or evaluated, again.
    Later = 1,
}

/// Both halves of a delivery that has not been opened.
pub(super) type Unopened = Box<(Deliver, Deliver)>;

/// The candidates of a prefix, as a batch lists them.
pub(super) struct Look {
    pub candidates: Instance,
    /// Its place among what the round ranks, and where its octets of the ranking begin, if Select-Best chooses.
    pub row: Option<(usize, usize)>,
    /// Whether what was chosen stays, since only routes of this member's own AS changed.
    pub stays: bool,
}

enum Task {
    Open(Handle),
    Look(Look),
}

impl Task {
    /// What it takes up, in candidates about.
    fn places(&self) -> usize {
        match self {
            Self::Open(_) => 1,
            Self::Look(look) => 1 + look.candidates.len(),
        }
    }
}

/// What is still to be done.
#[derive(Default)]
pub(super) struct Backlog {
    /// By urgency: tasks in the order of batches.
    tasks: [VecDeque<(Seq, Task)>; 2],
    /// Prefixes of which a batch ended something, until its tasks of that urgency are done.
    held: [BTreeMap<Prefix, Seq>; 2],
    objects: usize,
    octets: usize,
    /// What its tasks take up.
    places: usize,
}

impl Backlog {
    pub(super) fn look(&mut self, urgency: Urgency, seq: Seq, look: Look) {
        self.push(urgency, seq, Task::Look(look));
    }

    /// Opens the object once what is listed has been looked at.
    pub(super) fn open(&mut self, seq: Seq, handle: Handle) {
        self.push(Urgency::Later, seq, Task::Open(handle));
    }

    fn push(&mut self, urgency: Urgency, seq: Seq, task: Task) {
        self.places += task.places();
        self.tasks[urgency as usize].push_back((seq, task));
    }

    /// The task is not done yet.
    fn put_back(&mut self, urgency: usize, seq: Seq, task: Task) {
        self.places += task.places();
        self.tasks[urgency].push_front((seq, task));
    }

    pub(super) fn came(&mut self, unopened: &Unopened) {
        self.objects += 1;
        self.octets += octets(unopened);
    }

    /// It is being opened, or has gone.
    pub(super) fn went(&mut self, unopened: &Unopened) {
        self.objects = self.objects.saturating_sub(1);
        self.octets = self.octets.saturating_sub(octets(unopened));
    }

    fn is_over_limit(&self) -> bool {
        self.objects > MAX_OBJECTS || self.octets > MAX_OCTETS || self.places > MAX_PLACES
    }

    fn is_empty(&self) -> bool {
        self.tasks.iter().all(VecDeque::is_empty)
    }

    fn holds(&self, prefix: &Prefix) -> bool {
        self.held.iter().any(|held| held.contains_key(prefix))
    }

    /// What comes next: what changed just now, unless there is too much of the rest. That does not wait without end, however much changes.
    fn next(&mut self) -> Option<(usize, Seq, Task)> {
        let order =
            if self.is_over_limit() { [Urgency::Later, Urgency::Live] } else { [Urgency::Live, Urgency::Later] };
        let urgency = order.into_iter().map(|urgency| urgency as usize).find(|of| !self.tasks[*of].is_empty())?;
        let (seq, task) = self.tasks[urgency].pop_front()?;
        self.places = self.places.saturating_sub(task.places());
        Some((urgency, seq, task))
    }

    /// A task is done: prefixes that are held no longer, if it was the last one of its batch.
    fn done(&mut self, urgency: usize, seq: Seq) -> Vec<Prefix> {
        let next = self.tasks[urgency].front().map(|(next, _)| *next);
        if next == Some(seq) {
            return Vec::new();
        }
        let is_done = |_: &Prefix, of: &mut Seq| next.is_none_or(|next| *of < next);
        self.held[urgency].extract_if(.., is_done).map(|(prefix, _)| prefix).collect()
    }
}

/// Octets that it takes up, about.
fn octets(unopened: &Unopened) -> usize {
    match &unopened.0.body {
        Body::Blob(blob) => blob.len() + 256,
        Body::Hash(_) => 256,
    }
}

impl Member {
    /// Prefixes of which a batch, or a synchronisation, ended something stay as they are until what it brought has been looked at.
    pub(super) fn hold(&mut self, urgency: Urgency, seq: Seq, prefixes: BTreeSet<Prefix>) {
        let number = urgency as usize;
        if self.backlog.tasks[number].is_empty() {
            self.touched.extend(prefixes);
        } else {
            self.backlog.held[number].extend(prefixes.into_iter().map(|prefix| (prefix, seq)));
        }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.touched.is_empty() || !self.backlog.is_empty()
    }

    /// Whether a slice may begin: none does shortly before something leaves.
    pub(super) fn may_work(&self, at: Instant) -> bool {
        let pause = self.slices.pause(self.tick);
        self.has_work() && self.next_sending().is_none_or(|next| next > at + pause)
    }

    /// Does one slice, unless something waits to leave.
    pub(super) fn work(&mut self, now: Now) {
        if !self.output.is_empty() || !self.may_work(now.instant) {
            return;
        }
        let mut units = 0;
        while units < SLICE {
            let Some(done) = self.work_on_next(now) else { return };
            units += done;
        }
        self.slices.began = self.may_work(now.instant).then_some(now.instant);
    }

    /// Does at once what must not wait: with a tick of zero everything, otherwise what is over the limits.
    pub(super) fn catch_up(&mut self, now: Now) {
        while self.tick.is_zero() || self.backlog.is_over_limit() {
            if self.work_on_next(now).is_none() {
                return;
            }
        }
    }

    /// Does what comes next. Returns how much work that was.
    fn work_on_next(&mut self, now: Now) -> Option<u32> {
        if let Some(prefix) = self.touched.pop_first() {
            if !self.backlog.holds(&prefix) {
                self.install(prefix, now);
            }
            return Some(INSTALLING);
        }
        let (urgency, seq, task) = self.backlog.next()?;
        let (units, changed) = match task {
            Task::Open(handle) => (self.open_unlisted(&handle), None),
            Task::Look(look) => match self.next_unopened(&look) {
                // It is looked at once all of them are open.
                Some(handle) if look.candidates.len() == 1 => {
                    let opening = self.open_received(&handle);
                    let (units, changed) = self.look(seq, &look);
                    (opening + units, changed)
                }
                Some(handle) => {
                    let units = self.open_received(&handle);
                    self.backlog.put_back(urgency, seq, Task::Look(look));
                    (units, None)
                }
                None => self.look(seq, &look),
            },
        };
        let released = self.backlog.done(urgency, seq);
        self.touched.extend(released);
        match changed {
            Some(prefix) if !self.backlog.holds(&prefix) => {
                self.install(prefix, now);
                Some(units + INSTALLING)
            }
            _ => Some(units.max(1)),
        }
    }

    fn next_unopened(&self, look: &Look) -> Option<Handle> {
        let is_unopened = |handle: &Handle| self.routes.get(handle).is_some_and(|route| route.unopened.is_some());
        look.candidates.iter().map(|(handle, _)| *handle).find(is_unopened)
    }

    /// Opens an object with which no list came: perhaps one came before.
    fn open_unlisted(&mut self, handle: &Handle) -> u32 {
        let units = self.open_received(handle);
        if units > 0 {
            self.touch_all(handle);
        }
        // Also if it was opened for one of its prefixes that is listed.
        self.note_unlisted(handle);
        units
    }

    /// Opens an object that came, if this member may. Returns how much work that was.
    fn open_received(&mut self, handle: &Handle) -> u32 {
        let Some(unopened) = self.routes.get_mut(handle).and_then(|route| route.unopened.take()) else { return 0 };
        self.backlog.went(&unopened);
        let opened = self.open(&unopened.0, &unopened.1);
        let Some(route) = self.routes.get_mut(handle) else { return 0 };
        match opened {
            Ok(Some(open)) => {
                self.counters.opened += 1;
                route.opened = Some(open.into());
                route.live().for_each(|(slot, prefix)| self.limits.came(slot, prefix));
                if route.is_late {
                    self.was_not_ranked(handle);
                }
                OPENING
            }
            Ok(None) => {
                self.counters.sealed += 1;
                1
            }
            Err(alarm) => {
                // It counts as one that came: whether there was an alarm is not for the parties to know.
                route.is_broken = true;
                self.alarm(alarm);
                OPENING
            }
        }
    }

    /// Looks at the candidates of a prefix, and ranks them unless the ranking has left: then the member's own order decides. Returns how
    /// much work that was, and the prefix if something may follow for the router's table.
    fn look(&mut self, seq: Seq, look: &Look) -> (u32, Option<Prefix>) {
        let candidates = &look.candidates;
        let units = u32::try_from(candidates.len()).unwrap_or(SLICE).min(SLICE);
        let due = self.rankings_due.iter().position(|due| due.seq == seq);
        let ranked = look.row.zip(due).filter(|_| self.rounds.contains_key(&seq));
        if ranked.is_none() && !self.instances.has(candidates) {
            return (1, None);
        }
        let (one, many): ([Option<Assessment>; 1], Vec<Option<Assessment>>);
        let assessments = if let [candidate] = &candidates[..] {
            one = [self.assessment(candidate)];
            &one[..]
        } else {
            many = candidates.iter().map(|candidate| self.assessment(candidate)).collect();
            &many[..]
        };
        let choosing = match (ranked, look.row) {
            _ if look.stays => Choosing::Stays,
            (Some(_), _) => Choosing::Anew(Awaits::Batch(seq)),
            // The ranking has left, or the session has ended.
            (None, Some(_)) => Choosing::Anew(Awaits::Lost),
            (None, None) => Choosing::Anew(Awaits::Nothing),
        };
        let prefix = self.candidates_changed(seq, candidates, assessments, choosing);
        if let Some(((place, at), due)) = ranked {
            let row = self.ranking_row(candidates, assessments);
            self.rankings_due[due].ranking[at..at + row.len()].copy_from_slice(&row);
            if let Some(round) = self.rounds.get_mut(&seq) {
                round.multi[place].2 = prefix;
            }
        }
        (units, prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(candidates: usize) -> Look {
        let candidates = vec![(Handle([0; 32]), 0); candidates].into();
        Look { candidates, row: None, stays: false }
    }

    #[test]
    fn candidates_that_wait_are_bounded_as_objects_are() {
        let mut backlog = Backlog::default();
        let tasks = MAX_PLACES / 65;
        (0..tasks).for_each(|_| backlog.look(Urgency::Live, 1, look(64)));
        assert!(!backlog.is_over_limit());
        backlog.look(Urgency::Live, 1, look(64));
        assert!(backlog.is_over_limit());
        while let Some((urgency, seq, task)) = backlog.next() {
            assert!(!backlog.is_over_limit());
            if backlog.places % 3 == 0 {
                backlog.put_back(urgency, seq, task);
                backlog.next();
            }
        }
        assert_eq!(backlog.places, 0);
        (0..=MAX_PLACES).for_each(|_| backlog.open(1, Handle([0; 32])));
        assert!(backlog.is_over_limit());
    }

    #[test]
    fn what_can_wait_has_its_turn_once_there_is_too_much_however_much_changes() {
        let mut backlog = Backlog::default();
        (1..MAX_PLACES / 2).for_each(|_| backlog.look(Urgency::Later, 1, look(1)));
        backlog.look(Urgency::Live, 2, look(1));
        assert_eq!(backlog.next().map(|(_, seq, _)| seq), Some(2), "what changed just now goes first");
        for seq in 3..1_000 {
            // As much changes as is done meanwhile.
            backlog.look(Urgency::Live, seq, look(1));
            backlog.look(Urgency::Later, seq, look(1));
            backlog.look(Urgency::Later, seq, look(1));
            let done = [backlog.next(), backlog.next()].map(|next| next.map(|(urgency, ..)| urgency));
            assert_eq!(done, [Some(Urgency::Later as usize); 2], "{seq}");
        }
    }
}

//! The parties' setup: correlations are made in a message stream of its own, by jobs that run outside the machine.
//!
//! Party 1 says which chunks are made, in an order that both share. When they reach the pool does not matter: both parties take
//! correlations in the order in which they were made, and evaluations are in one order too.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_mpc::{Chunk, Correlations, Demand, Error, Rounds, Setup, Step};

use super::LinkId;

/// Messages that may wait: the peer is at most one ahead.
const MAX_WAITING: usize = 2;
/// Chunks that party 1 has made in advance of what is in the pool: the next is known before one is done.
const AHEAD: usize = 2;
/// Chunks that may be ordered and not done: our own limit on what party 1 may ask for. Party 2 is at most one behind.
const MAX_ORDERED: usize = 2 * AHEAD;

/// Correlations of one message of setup, at most and at least: 64 KiB and 3 KiB. Other frames between the parties wait behind
/// it, and members' rankings count only until a deadline, so that it is short where the link is slow.
pub(super) const MAX_CHUNK: usize = 1 << 13;
const MIN_CHUNK: usize = 1 << 8;
/// A chunk that took longer is followed by smaller ones, and one that took less than the other by larger ones. Both are longer than
/// the way between two parties of one continent takes, which says nothing of what the link can carry.
const SLOW: Duration = Duration::from_millis(250);
const FAST: Duration = Duration::from_millis(200);

/// The computation of one message of setup, to be run outside the machine and given back ([`super::PartyInput::SetupDone`]).
/// It owns the state of setup: nothing else goes on in its stream meanwhile.
pub struct SetupJob {
    link: LinkId,
    setup: Box<Setup>,
    received: Option<Vec<u8>>,
}

/// What a [`SetupJob`] has computed. It counts on the link on which its job was begun, and nowhere else.
pub struct SetupDone {
    link: LinkId,
    setup: Box<Setup>,
    result: Result<Computed, Error>,
}

/// Chunks that are complete, and the message that goes out next.
#[derive(Default)]
struct Computed {
    correlations: Vec<Correlations>,
    message: Option<Vec<u8>>,
}

impl SetupJob {
    /// Runs the job.
    #[must_use]
    pub fn run(mut self) -> SetupDone {
        let result = self.compute();
        SetupDone { link: self.link, setup: self.setup, result }
    }

    fn compute(&mut self) -> Result<Computed, Error> {
        let mut out = Computed::default();
        let mut received = self.received.take();
        loop {
            match self.setup.round(received.take().as_deref())? {
                Step::Send(message) => {
                    out.message = Some(message);
                    return Ok(out);
                }
                Step::Done(correlations) => out.correlations.push(correlations),
            }
            if self.setup.pending() == 0 {
                return Ok(out);
            }
        }
    }
}

impl SetupDone {
    /// How many correlations it has completed.
    #[must_use]
    pub fn correlations(&self) -> usize {
        let made = |computed: &Computed| computed.correlations.iter().map(Correlations::count).sum();
        self.result.as_ref().map_or(0, made)
    }

    /// The link to the peer party on which its job was begun.
    pub(super) fn link(&self) -> LinkId {
        self.link
    }
}

impl fmt::Debug for SetupJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetupJob {{ link: {}, setup: {:?}, .. }}", self.link, self.setup)
    }
}

impl fmt::Debug for SetupDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetupDone {{ link: {}, setup: {:?}, .. }}", self.link, self.setup)
    }
}

/// The stream of setup of one link between the parties.
pub(super) struct Supply {
    link: LinkId,
    /// `None` while a job has it.
    setup: Option<Box<Setup>>,
    /// Chunks that are ordered and not in the pool, in order; the first `requested` of them are known to `setup`.
    ordered: VecDeque<Chunk>,
    requested: usize,
    /// Correlations of the next chunks, as long as the last ones took.
    size: usize,
    /// When the last message went out.
    begun: Option<Instant>,
    /// Since when the peer owes a message, if it does.
    awaiting: Option<Instant>,
    waiting: VecDeque<Vec<u8>>,
    sent: u64,
    received: u64,
}

impl Supply {
    pub(super) fn new(link: LinkId, setup: Setup) -> Self {
        Self {
            link,
            setup: Some(Box::new(setup)),
            ordered: VecDeque::new(),
            requested: 0,
            size: MIN_CHUNK,
            begun: None,
            awaiting: None,
            waiting: VecDeque::new(),
            sent: 0,
            received: 0,
        }
    }

    /// What is ordered and not in the pool.
    pub(super) fn ordered(&self) -> Demand {
        self.ordered.iter().fold(Demand::default(), |sum, chunk| sum + Demand::just(chunk.width, chunk.count))
    }

    /// Whether something is ordered.
    pub(super) fn is_at_work(&self) -> bool {
        !self.ordered.is_empty()
    }

    /// Whether party 1 may order more now.
    pub(super) fn may_order(&self) -> bool {
        self.ordered.len() < AHEAD
    }

    /// Correlations of the chunk that party 1 orders next, at most.
    pub(super) fn chunk_size(&self) -> usize {
        self.size
    }

    /// Orders a chunk behind those before.
    pub(super) fn order(&mut self, chunk: Chunk) -> Result<(), &'static str> {
        if self.ordered.len() >= MAX_ORDERED {
            return Err("too many correlations ordered at once");
        }
        self.ordered.push_back(chunk);
        Ok(())
    }

    /// Takes a message in; its number must be the next.
    pub(super) fn receive(&mut self, step: u64, bytes: Vec<u8>) -> Result<(), String> {
        if step != self.received {
            return Err(format!("setup message {step} where {} is next", self.received));
        }
        if self.waiting.len() >= MAX_WAITING || !self.is_at_work() {
            return Err("setup messages out of turn".to_owned());
        }
        self.received += 1;
        self.waiting.push_back(bytes);
        Ok(())
    }

    /// Since when the peer owes a message, if it does.
    pub(super) fn awaits_peer_since(&self) -> Option<Instant> {
        self.awaiting.filter(|_| self.waiting.is_empty())
    }

    /// The next job, if there is one.
    pub(super) fn job(&mut self) -> Result<Option<SetupJob>, String> {
        let (link, setup) = (self.link, &mut self.setup);
        let Some(mut setup) = setup.take_if(|_| match self.awaiting {
            Some(_) => !self.waiting.is_empty(),
            None => !self.ordered.is_empty(),
        }) else {
            return Ok(None);
        };
        for chunk in self.ordered.range(self.requested..) {
            setup.request(*chunk).map_err(|error| error.to_string())?;
        }
        self.requested = self.ordered.len();
        let received = if self.awaiting.take().is_some() { self.waiting.pop_front() } else { None };
        Ok(Some(SetupJob { link, setup, received }))
    }

    /// Takes a job back. Returns the correlations that it completed, and the message to send with its number.
    #[expect(clippy::type_complexity, reason = "what is complete and what is sent")]
    pub(super) fn done(
        &mut self,
        done: SetupDone,
        now: Instant,
    ) -> Result<(Vec<Correlations>, Option<(u64, Vec<u8>)>), String> {
        let Computed { correlations, message } = done.result.map_err(|error| error.to_string())?;
        self.setup = Some(done.setup);
        for _ in correlations.iter().filter(|made| made.count() > 0) {
            self.ordered.pop_front();
            self.requested = self.requested.saturating_sub(1);
            self.size = match self.begun.map(|begun| now.since(begun)) {
                Some(took) if took > SLOW => (self.size / 2).max(MIN_CHUNK),
                Some(took) if took < FAST => (self.size * 2).min(MAX_CHUNK),
                _ => self.size,
            };
        }
        let message = message.map(|bytes| {
            (self.awaiting, self.begun) = (Some(now), Some(now));
            self.sent += 1;
            (self.sent - 1, bytes)
        });
        Ok((correlations, message))
    }
}

//! The largest datagram that passes over a link: padded pings of several sizes at once, the greatest of which that is answered counts
//! (RFC 8899, with sizes from a table in the place of a search).

use std::time::Duration;

use wayleave_core::Instant;

/// Octets of datagrams that are tried: what links of common kinds carry under IPv4 or IPv6 and UDP.
pub const SIZES: [u16; 10] = [8_972, 8_952, 1_472, 1_452, 1_432, 1_412, 1_392, 1_352, 1_252, 1_232];
/// How long an answer may take.
const WAIT: Duration = Duration::from_secs(1);
/// Rounds of a search.
const ROUNDS: u8 = 3;
/// A search is repeated after this long, since a path may have become wider.
const REPEAT: Duration = Duration::from_secs(600);
/// Two searches are at least this long apart; one that had no answer at all is repeated after as long, then twice as long, and so on.
const APART: Duration = Duration::from_secs(10);

/// A search for the largest size, and its result.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// What was found.
    pub(super) size: Option<u16>,
    best: Option<u16>,
    /// Numbers and sizes of the pings of this round.
    asked: Vec<(u32, u16)>,
    rounds: u8,
    due: Option<Instant>,
    /// When the last one began, and searches in a row without an answer.
    begun: Option<Instant>,
    fruitless: u32,
    /// Large pings in a row without an answer.
    lost: u8,
}

impl Search {
    /// Forgets what was found, and begins anew, soon.
    pub(super) fn begin(&mut self, now: Instant) {
        let due = self.begun.map_or(now, |begun| now.max(begun + APART));
        *self = Self { due: Some(due), begun: self.begun, ..Self::default() };
    }

    /// Nothing above this is worth a try any more.
    pub(super) fn limit(&mut self, largest: u16, now: Instant) {
        let size = self.size.filter(|size| *size <= largest);
        self.begin(now);
        self.size = size;
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The sizes of the pings that are to be sent now, for a largest one.
    pub(super) fn sizes(&mut self, largest: u16, now: Instant) -> Vec<u16> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        if self.rounds == ROUNDS {
            self.fruitless = if self.best.is_some() { 0 } else { self.fruitless + 1 };
            let pause = if self.best.is_some() { REPEAT } else { REPEAT.min(APART * (1 << self.fruitless.min(6))) };
            self.size = self.best.or(self.size);
            self.rounds = 0;
            self.best = None;
            self.asked.clear();
            self.due = Some(now + pause);
            return Vec::new();
        }
        if self.rounds == 0 {
            self.begun = Some(now);
        }
        self.rounds += 1;
        self.due = Some(now + WAIT);
        let best = self.best.unwrap_or(0);
        let own = std::iter::once(largest).filter(|size| !SIZES.contains(size));
        own.chain(SIZES.into_iter().filter(|size| *size <= largest)).filter(|size| *size > best).collect()
    }

    /// Notes a ping that [`Search::sizes`] asked for.
    pub(super) fn asked(&mut self, number: u32, size: u16) {
        self.asked.push((number, size));
    }

    /// Takes the answer to a ping; returns whether it was one of these.
    pub(super) fn answered(&mut self, number: u32, size: u16) -> bool {
        let Some(place) = self.asked.iter().position(|asked| *asked == (number, size)) else { return false };
        self.asked.swap_remove(place);
        self.best = self.best.max(Some(size));
        self.size = self.size.max(self.best);
        true
    }

    /// Notes whether a ping of the size that was found was answered; begins anew if several were not.
    pub(super) fn large(&mut self, is_answered: bool, now: Instant) {
        self.lost = if is_answered { 0 } else { self.lost + 1 };
        if self.lost >= ROUNDS {
            self.begin(now);
        }
    }
}

//! A replay filter under a rate that goes on, in virtual time: its turns come and go as packets come, and packets that are nobody's
//! come between those that are timed.

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_dataplane::replay::TURN;

use super::slots::PACKETS;

/// Passes of a turn: those that are timed are spread over it, so that their mean includes what a turn costs when it begins.
pub const PASSES: usize = 20;
/// Turns that fill the filter before the first pass.
const FILLED: u64 = 2;

/// A rate in packets a second, and the virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Sustained {
    rate: u64,
    /// Unix seconds at the beginning.
    begin: u64,
    pass: u64,
    /// Packets that were nobody's so far.
    others: u64,
}

impl Sustained {
    /// A rate of which a turn has at least the packets of [`PASSES`] passes.
    #[must_use]
    pub fn new(rate: u64, begin: u64) -> Self {
        Self { rate: rate.max((PASSES * PACKETS) as u64 / TURN + 1), begin, pass: 0, others: 0 }
    }

    /// Packets that the filter is made for in a turn.
    #[must_use]
    pub fn capacity(&self) -> usize {
        (self.rate * TURN) as usize
    }

    /// When the router started.
    #[must_use]
    pub fn started(&self) -> UnixTime {
        UnixTime(self.begin * 1_000_000)
    }

    /// The time of this pass.
    #[must_use]
    pub fn now(&self) -> Now {
        let micros = (FILLED * TURN * 1_000_000) + self.pass * TURN * 1_000_000 / PASSES as u64;
        Now { instant: Instant(micros * 1_000), unix: UnixTime(self.begin * 1_000_000 + micros) }
    }

    /// Whether no pass was timed yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.pass == 0
    }

    /// Begins the next pass. `load` puts packets of nobody into the filter, given the first one's number, how many, and when:
    /// all that have come by now, and in the same time as a pass.
    pub fn step(&mut self, mut load: impl FnMut(u64, u64, Instant)) -> Now {
        let turn = self.capacity() as u64;
        if self.is_new() {
            for filled in 0..FILLED {
                load(self.others, turn, Instant(filled * TURN * 1_000_000_000));
                self.others += turn;
            }
        }
        self.pass += 1;
        let now = self.now();
        let others = (turn / PASSES as u64).saturating_sub(PACKETS as u64);
        load(self.others, others, now.instant);
        self.others += others;
        now
    }
}

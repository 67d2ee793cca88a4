//! Credit: how much may be on its way on a link, as its receiver says.
//!
//! Each end begins with a window that the protocol fixes, and grants as many octets again as it has taken up. A sender queues
//! nothing beyond that: what waits is state, from which a frame is made when there is credit for it. So a peer that reads
//! slowly, or not at all, costs its sender a bounded amount of memory, whatever there is to send.
//!
//! A frame counts its octets and [`FRAME_COST`]. Grants themselves do not count, since two ends without credit could not give
//! each other any; they come in steps of at least [`STEP`], so that there are few.

use std::collections::VecDeque;
use std::time::Duration;

use wayleave_core::Instant;

/// What a frame counts for beyond its octets.
pub const FRAME_COST: u64 = 64;
/// Octets from a party to a member: a member set of the largest size, and what a batch brings.
pub const TO_MEMBER: u64 = 12 << 20;
/// Octets from a member to a party: many times the largest object.
pub const FROM_MEMBER: u64 = 2 << 20;
/// Octets from a party to its peer party: three times the largest frame.
pub const BETWEEN_PARTIES: u64 = 48 << 20;
/// A receiver grants anew once it has taken up this many octets.
pub const STEP: u64 = 128 << 10;
/// How long a receiver may take up nothing of two steps or more before its link is closed: our own limit. At three kilobytes a
/// second it would have granted once.
pub const STALLED: Duration = Duration::from_secs(60);

/// What an object's frame counts for at least: each is checked, however short it is.
pub const OBJECT_COST: u64 = 2048;
/// What a frame from a member to a party counts for.
#[must_use]
pub fn cost_from_member(frame: &[u8]) -> u64 {
    let octets = cost(frame.len());
    if is_object(frame) { octets.max(OBJECT_COST) } else { octets }
}

/// Whether a frame from a member has an object: [`FromMember::SubmitOne`](crate::frames::FromMember::SubmitOne) or
/// [`SubmitTwo`](crate::frames::FromMember::SubmitTwo).
#[must_use]
pub fn is_object(frame: &[u8]) -> bool {
    matches!(frame.first(), Some(2 | 3))
}

/// What a frame of `octets` counts for.
#[must_use]
pub fn cost(octets: usize) -> u64 {
    octets as u64 + FRAME_COST
}

/// The sending end of one direction of a link.
#[derive(Clone, Debug)]
pub struct Sending {
    window: u64,
    sent: u64,
    /// What may be sent since the link came up.
    limit: u64,
    /// When it was last known that the receiver takes up what is sent.
    moved: Instant,
}

impl Sending {
    /// Of a link that came up `now`.
    #[must_use]
    pub fn new(window: u64, now: Instant) -> Self {
        Self { window, sent: 0, limit: window, moved: now }
    }

    /// Whether there is credit for frames that cost so much together.
    #[must_use]
    pub fn has_credit(&self, cost: u64) -> bool {
        self.sent.saturating_add(cost) <= self.limit
    }

    /// Counts frames that leave; the caller has asked [`Sending::has_credit`].
    pub fn send(&mut self, cost: u64, now: Instant) {
        if self.outstanding() < 2 * STEP {
            self.moved = now;
        }
        self.sent = self.sent.saturating_add(cost);
    }

    /// Octets that the receiver has not said to have taken up.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        (self.sent + self.window).saturating_sub(self.limit)
    }

    /// Takes a grant.
    ///
    /// # Errors
    /// How the receiver erred: it grants in steps, and as much as was sent at most.
    pub fn granted(&mut self, limit: u64, now: Instant) -> Result<(), &'static str> {
        if limit > self.sent.saturating_add(self.window) {
            return Err("a grant of credit for more than was sent");
        }
        if limit < self.limit.saturating_add(STEP) {
            return Err("a grant of credit that is no step");
        }
        (self.limit, self.moved) = (limit, now);
        Ok(())
    }

    /// When the receiver has made no progress for too long, unless it does before.
    #[must_use]
    pub fn stalls_at(&self) -> Option<Instant> {
        (self.outstanding() >= 2 * STEP).then(|| self.moved + STALLED)
    }
}

/// The receiving end of one direction of a link.
#[derive(Clone, Debug)]
pub struct Receiving {
    window: u64,
    received: u64,
    granted: u64,
    /// Of what was received, what a grant that was made, or is due, gives again.
    counted: u64,
    /// Grants that wait for their time.
    due: VecDeque<(Instant, u64)>,
}

impl Receiving {
    /// Of a link that came up.
    #[must_use]
    pub fn new(window: u64) -> Self {
        Self { window, received: 0, granted: window, counted: 0, due: VecDeque::new() }
    }

    /// Counts a frame of this cost. What it takes up is granted again at `at`, unless too little has come so far.
    ///
    /// # Errors
    /// If there was no credit for it.
    pub fn received(&mut self, cost: u64, at: Instant) -> Result<(), &'static str> {
        self.received = self.received.saturating_add(cost);
        if self.received > self.granted {
            return Err("a frame beyond the credit that it was given");
        }
        if self.received - self.counted >= STEP {
            self.counted = self.received;
            let at = self.due.back().map_or(at, |(before, _)| at.max(*before));
            self.due.push_back((at, self.received + self.window));
        }
        Ok(())
    }

    /// The grant whose time has come: how much may be sent since the link came up.
    pub fn grant(&mut self, now: Instant) -> Option<u64> {
        let mut last = None;
        while let Some((_, limit)) = self.due.pop_front_if(|(at, _)| *at <= now) {
            last = Some(limit);
        }
        self.granted = last.unwrap_or(self.granted);
        last
    }

    /// When the next grant is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.due.front().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 4 * STEP;

    fn at(secs: u64) -> Instant {
        Instant(secs * 1_000_000_000)
    }

    #[test]
    fn a_sender_that_obeys_is_never_beyond_its_credit_and_gets_all_through() {
        let (mut sending, mut receiving) = (Sending::new(WINDOW, at(0)), Receiving::new(WINDOW));
        let (mut left, mut passed, mut most) = (100u64, 0, 0);
        let octets = STEP as usize / 3;
        while left > 0 {
            let mut on_the_way = 0;
            while left > 0 && sending.has_credit(cost(octets)) {
                sending.send(cost(octets), at(passed));
                (left, on_the_way) = (left - 1, on_the_way + 1);
            }
            assert!(on_the_way > 0, "credit comes");
            most = most.max(sending.outstanding());
            for _ in 0..on_the_way {
                passed += 1;
                receiving.received(cost(octets), at(passed)).expect("within the credit");
                if let Some(limit) = receiving.grant(at(passed)) {
                    sending.granted(limit, at(passed)).expect("a step");
                }
            }
        }
        assert!(most <= WINDOW && passed == 100);
    }

    #[test]
    fn frames_beyond_the_credit_and_grants_of_nothing_are_refused() {
        let mut receiving = Receiving::new(WINDOW);
        for _ in 0..3 {
            receiving.received(STEP + 64, at(9)).expect("within the credit");
        }
        assert_eq!(receiving.grant(at(8)), None, "no grant before its time");
        assert!(receiving.received(STEP + 64, at(9)).is_err());
        let mut sending = Sending::new(WINDOW, at(0));
        assert!(sending.granted(WINDOW + STEP, at(1)).is_err(), "nothing was sent");
        sending.send(STEP + 64, at(1));
        assert!(sending.granted(WINDOW + 1, at(1)).is_err(), "no step");
        assert!(sending.granted(WINDOW, at(1)).is_err(), "nothing new");
        assert!(sending.granted(u64::MAX, at(1)).is_err());
        sending.granted(WINDOW + STEP, at(2)).expect("what was taken up");
        assert_eq!(sending.outstanding(), 64);
    }

    #[test]
    fn a_receiver_stalls_only_while_it_owes_a_grant_and_makes_none() {
        let mut sending = Sending::new(WINDOW, at(0));
        sending.send(STEP, at(1));
        assert_eq!(sending.stalls_at(), None);
        sending.send(2 * STEP, at(100));
        assert_eq!(sending.stalls_at(), Some(at(100) + STALLED));
        sending.granted(WINDOW + STEP, at(200)).expect("a step");
        assert_eq!(sending.stalls_at(), Some(at(200) + STALLED));
        sending.granted(WINDOW + 2 * STEP, at(201)).expect("a step");
        assert_eq!(sending.stalls_at(), None);
    }
}

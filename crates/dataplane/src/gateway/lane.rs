//! A path with proofs: what packets on it carry, and whether its probes are answered.

use std::time::Duration;

use wayleave_core::{Instant, Now};
use wayleave_packet::icing::mint::{Form, Nonce, Sender};

use super::message::DATA;
use crate::noise::TAG;

/// Interval of probes on each path in use.
pub const PROBE: Duration = Duration::from_millis(500);
/// The same while the one before is unanswered, unless the path's round trips are so long that it may still be.
pub const PROBE_IN_DOUBT: Duration = Duration::from_millis(250);
/// Unanswered probes after which a path is dead, until one is answered.
pub const MOST_UNANSWERED: u8 = 3;
/// Unanswered probes with which a path is in doubt: the last one's answer may be under way.
pub(super) const IN_DOUBT: u8 = 2;

/// A path with proofs.
pub(super) struct Lane {
    pub(super) sender: Sender,
    pub(super) expiry: u64,
    begun: u64,
    nonce: u64,
    /// Where the count of each second begins: another life of this process counts from elsewhere.
    start: u32,
    all: u16,
    held: u16,
    probe: u32,
    pub(super) probed: Option<Instant>,
    pub(super) unanswered: u8,
    pub(super) answered_since: Option<Instant>,
    pub(super) round_trip: Option<Duration>,
}

impl Lane {
    pub(super) fn new(sender: Sender, expiry: u64, start: u32, now: Now) -> Self {
        // At most 16 nodes.
        let all = ((1u32 << sender.count()) - 2) as u16;
        let begun = now.unix.secs();
        Self {
            sender,
            expiry,
            begun,
            nonce: 0,
            start: start >> 2,
            all,
            held: 0,
            probe: 0,
            probed: None,
            unanswered: 0,
            answered_since: None,
            round_trip: None,
        }
    }

    /// A nonce that no other packet on the path has.
    pub(super) fn nonce(&mut self, now: Now) -> Nonce {
        self.nonce = (self.nonce + 1).max(Nonce::new(now.unix, self.start).0);
        Nonce(self.nonce)
    }

    /// Two nonces of which one follows the other.
    pub(super) fn two_nonces(&mut self, now: Now) -> (Nonce, Nonce) {
        let first = self.nonce(now);
        (first, self.nonce_after(first))
    }

    pub(super) fn nonce_after(&mut self, nonce: Nonce) -> Nonce {
        self.nonce = nonce.next().0;
        Nonce(self.nonce)
    }

    /// The next probe is due.
    pub(super) fn probe_now(&mut self) {
        self.probed = None;
    }

    /// What was sent besides probes, and would have been answered, was not.
    pub(super) fn suspect(&mut self) {
        self.unanswered = self.unanswered.max(1);
    }

    /// How long a probe waits for its answer until the next one leaves.
    pub(super) fn interval(&self) -> Duration {
        if !(1..=MOST_UNANSWERED).contains(&self.unanswered) {
            return PROBE;
        }
        self.round_trip.map_or(PROBE_IN_DOUBT, |round_trip| (round_trip * 2).clamp(PROBE_IN_DOUBT, PROBE))
    }

    /// A probe of before stays unanswered: what is sent now may be lost.
    pub(super) fn is_doubtful(&self) -> bool {
        self.unanswered > 1
    }

    /// The path is left out once every node on it holds it. Probes repeat it.
    pub(super) fn form(&self) -> Form {
        if self.held & self.all == self.all { Form::Handle } else { Form::Path }
    }

    pub(super) fn is_held(&self) -> bool {
        self.form() == Form::Handle
    }

    pub(super) fn is_usable(&self, now: Now) -> bool {
        now.unix.secs() < self.expiry
    }

    /// Half of the time is over.
    pub(super) fn is_due(&self, now: Now) -> bool {
        now.unix.secs() >= self.begun + (self.expiry.saturating_sub(self.begun)) / 2
    }

    /// The number of the next probe, if one is due.
    pub(super) fn next_probe(&mut self, now: Instant) -> Option<u32> {
        if self.probed.is_some_and(|last| now.since(last) < self.interval()) {
            return None;
        }
        self.probed = Some(now);
        self.probe = self.probe.wrapping_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        Some(self.probe)
    }

    pub(super) fn answered(&mut self, number: u32, held: u16, now: Instant) {
        if number == self.probe
            && let Some(sent) = self.probed
        {
            self.round_trip = Some(now.since(sent));
        }
        self.held = held;
        self.unanswered = 0;
        self.answered_since.get_or_insert(now);
    }

    /// Octets of the longest inner packet in a packet of `mtu` octets.
    pub(super) fn inner_mtu(&self, mtu: usize, form: Form) -> usize {
        mtu.saturating_sub(self.sender.header_length(form) + DATA + TAG)
    }
}

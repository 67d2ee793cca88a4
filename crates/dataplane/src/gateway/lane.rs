//! A path with proofs: what packets on it carry, and whether its probes are answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_packet::icing::mint::{Form, Nonce, Sender};

use super::message::DATA;
use super::quality::{PROBES_IN_DOUBT, Probe, Quality};
use crate::noise::TAG;

/// Interval of probes on each path in use.
pub const PROBE: Duration = Duration::from_millis(500);
/// The same while the one before is unanswered, unless the path's round trips are so long that it may still be.
pub const PROBE_IN_DOUBT: Duration = Duration::from_millis(250);
/// Of so many probes two carry the path and two are as data are: one small, and one as large as data may be.
const KINDS: u32 = 4;
/// Probes that may still be answered.
const LIMIT_OUTSTANDING: usize = 64;
/// Unanswered probes with which a path is in doubt: the last one's answer may be under way.
pub(super) const IN_DOUBT: u8 = 2;

/// A path with proofs.
pub(super) struct Lane {
    pub(super) sender: Arc<Sender>,
    pub(super) expiry: u64,
    begun: u64,
    nonce: u64,
    /// Where the count of each second begins: another life of this process counts from elsewhere.
    start: u32,
    all: u16,
    held: u16,
    probe: u32,
    /// Times at which it was probed.
    probings: u32,
    pub(super) probed: Option<Instant>,
    pub(super) unanswered: u8,
    pub(super) answered_since: Option<Instant>,
    pub(super) round_trip: Option<Duration>,
    /// Data packets that were sent.
    pub(super) sent: u64,
    /// Oldest first.
    outstanding: VecDeque<Probe>,
    pub(super) quality: Quality,
}

impl Lane {
    pub(super) fn new(sender: Sender, expiry: u64, start: u32, now: Now) -> Self {
        // At most 16 nodes.
        let all = ((1u32 << sender.count()) - 2) as u16;
        let begun = now.unix.secs();
        Self {
            sender: Arc::new(sender),
            expiry,
            begun,
            nonce: 0,
            start: start >> 2,
            all,
            held: 0,
            probe: 0,
            probings: 0,
            probed: None,
            unanswered: 0,
            answered_since: None,
            round_trip: None,
            sent: 0,
            outstanding: VecDeque::new(),
            quality: Quality::default(),
        }
    }

    /// Nodes take no packet with the next nonce yet: they take those that are a second ahead of their clocks.
    pub(super) fn is_ahead(&self, now: Now) -> bool {
        self.nonce > Nonce::new(UnixTime(now.unix.0.saturating_add(1_000_000)), u32::MAX).0
    }

    /// The wall clock went back: the count of seconds that come a second time begins elsewhere.
    pub(super) fn begin_again(&mut self, start: u32, now: Now) {
        (self.nonce, self.start) = (0, start >> 2);
        self.begun = self.begun.min(now.unix.secs());
    }

    /// A nonce that no other packet on the path has.
    pub(super) fn nonce(&mut self, now: Now) -> Nonce {
        self.nonce = (self.nonce + 1).max(Nonce::new(now.unix, self.start).0);
        Nonce(self.nonce)
    }

    /// The first of `count` nonces, one after the other, that no other packet on the path has.
    pub(super) fn nonces(&mut self, count: usize, now: Now) -> Nonce {
        let first = self.nonce(now);
        self.nonce += (count as u64).saturating_sub(1);
        first
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
        let is_in_doubt = (1..=self.quality.most_unanswered()).contains(&self.unanswered) || self.quality.is_in_doubt();
        if !is_in_doubt {
            return PROBE;
        }
        self.round_trip.map_or(PROBE_IN_DOUBT, |round_trip| (round_trip * 2).clamp(PROBE_IN_DOUBT, PROBE))
    }

    /// A probe of before stays unanswered: what is sent now may be lost.
    pub(super) fn is_doubtful(&self) -> bool {
        self.unanswered > 1
    }

    /// The path is left out of data once every node on it holds it, unless nodes do not pass what has the handle alone.
    pub(super) fn form(&self) -> Form {
        if self.is_held() && !self.quality.needs_path() { Form::Handle } else { Form::Path }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held & self.all == self.all
    }

    pub(super) fn is_usable(&self, now: Now) -> bool {
        now.unix.secs() < self.expiry
    }

    /// Half of the time is over.
    pub(super) fn is_due(&self, now: Now) -> bool {
        now.unix.secs() >= self.begun + (self.expiry.saturating_sub(self.begun)) / 2
    }

    /// The next probe, if one is due, on a path for packets of `mtu` octets; with it those that search for a size that passes, and
    /// further ones if the last one is unanswered.
    ///
    /// Every other one has the path, so that nodes that have forgotten it learn it again; the rest is as data are, and half of that as
    /// large as they may be.
    pub(super) fn next_probes(&mut self, mtu: u16, now: Instant) -> Vec<Probe> {
        if self.probed.is_some_and(|last| now.since(last) < self.interval()) {
            return Vec::new();
        }
        if self.probed.is_some_and(|last| now.since(last) >= PROBE * 4) {
            self.outstanding.clear();
        }
        self.probed = Some(now);
        self.probings = self.probings.wrapping_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        let sizes = self.quality.sizes(mtu, now);
        let large = self.quality.size(mtu);
        let (form, size) = match self.probings % KINDS {
            2 if self.is_held() => (Form::Handle, None),
            0 if sizes.is_empty() => (self.form(), Some(large)),
            _ => (Form::Path, None),
        };
        let of_data = self.form();
        let searching = sizes.into_iter().map(|size| (of_data, Some(size), true));
        let mut probes = Vec::new();
        let is_in_doubt = (2..=self.quality.most_unanswered()).contains(&self.unanswered);
        let further = (1..if is_in_doubt { PROBES_IN_DOUBT } else { 1 }).map(|_| (Form::Path, None, false));
        for (form, size, is_search) in searching.chain([(form, size, false)]).chain(further) {
            self.probe = self.probe.wrapping_add(1);
            probes.push(Probe { number: self.probe, form, size, is_search, sent: self.sent, at: now });
        }
        self.outstanding.extend(&probes);
        let excess = self.outstanding.len().saturating_sub(LIMIT_OUTSTANDING);
        self.outstanding.drain(..excess);
        probes
    }

    /// Takes the answer to a probe: the nodes `held` hold the path, and `received` data packets had come on it.
    pub(super) fn answered(&mut self, number: u32, held: u16, received: u64, now: Instant) {
        // It comes by several paths.
        let Some(place) = self.outstanding.iter().position(|probe| probe.number == number) else { return };
        let was_dead = self.unanswered > self.quality.most_unanswered();
        let mut before: Vec<Probe> = self.outstanding.drain(..=place).collect();
        let Some(probe) = before.pop() else { return };
        self.round_trip = Some(now.since(probe.at));
        if was_dead {
            before.clear();
            self.quality.restart();
        }
        self.quality.answered(&probe, &before);
        self.quality.counted(probe.sent, received, now);
        self.held = held;
        self.unanswered = 0;
        self.answered_since.get_or_insert(now);
    }

    /// Octets of the longest inner packet in a packet of `mtu` octets.
    pub(super) fn inner_mtu(&self, mtu: usize, form: Form) -> usize {
        mtu.saturating_sub(self.sender.header_length(form) + DATA + TAG)
    }
}

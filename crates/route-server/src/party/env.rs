//! What every owner of a party's state uses and none owns: configuration, clocks, counts, randomness, and what leaves the party.
//!
//! All effects of one input leave by one queue, in the order in which they were made. Drivers rely on that order: what is to be
//! durable before a frame is queued before it.

use std::collections::VecDeque;

use wayleave_core::{Instant, Now};

use super::{Change, Counters, LinkId, PartyConfig, PartyEvent, PartyNumber, PartyOutput, PersistId};
use crate::rng::Rng;

pub(super) struct Env {
    pub config: PartyConfig,
    /// Both clocks at the last input.
    pub clocks: Now,
    pub counters: Counters,
    pub rng: Rng,
    output: VecDeque<PartyOutput>,
    next_persist: PersistId,
}

impl Env {
    pub(super) fn new(config: PartyConfig, rng: Rng, now: Now) -> Self {
        Self { config, clocks: now, counters: Counters::default(), rng, output: VecDeque::new(), next_persist: 0 }
    }

    pub(super) fn now(&self) -> Instant {
        self.clocks.instant
    }

    pub(super) fn is_party_one(&self) -> bool {
        self.config.number == PartyNumber::One
    }

    pub(super) fn event(&mut self, event: PartyEvent) {
        self.output.push_back(PartyOutput::Event(event));
    }

    pub(super) fn send(&mut self, link: LinkId, frame: Vec<u8>) {
        self.counters.bytes_sent += frame.len() as u64;
        self.output.push_back(PartyOutput::Send { link, frame });
    }

    pub(super) fn persist(&mut self, changes: Vec<Change>) -> PersistId {
        self.next_persist += 1;
        self.output.push_back(PartyOutput::Persist { id: self.next_persist, changes });
        self.next_persist
    }

    pub(super) fn emit(&mut self, output: PartyOutput) {
        self.output.push_back(output);
    }

    pub(super) fn poll(&mut self) -> Option<PartyOutput> {
        self.output.pop_front()
    }
}

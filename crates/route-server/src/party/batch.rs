//! Batches: what both parties do with the steps that party 1 proposed. They apply the same steps, compare their views, make
//! them durable and deliver (`delivery`).

use std::collections::BTreeMap;

use wayleave_core::Prefix;

use super::Party;
use super::batches::{ActiveMember, Served};
use super::role::RoleEvent;
use super::state::State;
use super::waiting::PendingObject;
use crate::competition::CompetitionChange;
use crate::digests::InstanceHash;
use crate::directory::Directory;
use crate::frames::{Rejection, SliceContent, Step, ToMember};
use crate::object_table::Effects;
use crate::party::PersistId;

/// A batch that this party has applied.
#[derive(Default)]
pub(super) struct Applied {
    pub effects: Effects,
    /// Of the prefixes whose candidates changed, the instances that there were before, if a member is sent what it lacks.
    pub before: BTreeMap<Prefix, InstanceHash>,
    /// Members that begin to be sent what they lack, and whether that has their own objects.
    pub begins: BTreeMap<u32, bool>,
    /// What announcers are told of which of their routes compete.
    pub competition: BTreeMap<u32, CompetitionChange>,
    /// What members are sent of what they lack.
    pub slices: BTreeMap<u32, SliceContent>,
    /// Whether epoch or member set changed.
    pub renewed: bool,
    pub view: [u8; 32],
}

/// What a party's role brings to a batch.
#[derive(Default)]
pub(super) struct BatchInput {
    /// The objects that the steps name, by slot and version.
    pub objects: BTreeMap<(u32, u64), PendingObject>,
    /// The recommendation of the epoch that it begins, if that is another one.
    pub recommendation: Option<BTreeMap<u32, u8>>,
}

/// What a batch was to those whom the party's role keeps account of, in the order of its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Noted {
    /// It begins to serve the member.
    Synced(u32),
    /// It serves the member no more: it is gone.
    Inactive(u32),
    /// It serves the member no more for now. `own`: the highest version of its own objects before it; `lacks`: whether this party could not
    /// send it a tick.
    Paused {
        slot: u32,
        own: u64,
        lacks: bool,
    },
    EpochBegan,
}

impl Party {
    /// The slots whose members are connected to both parties.
    pub fn active(&self) -> impl Iterator<Item = u32> + '_ {
        self.state.batches.active().keys().copied()
    }

    /// The number of the member set.
    #[must_use]
    pub fn member_set(&self) -> u64 {
        self.state.membership.set().number
    }

    /// The store has what the batch changed.
    pub(super) fn persisted(&mut self, id: PersistId) {
        // Also if the peer party's link went while it was written: the store has it.
        if let Some(seq) = self.state.batches.stored(id) {
            self.state.objects.note_stored(seq);
        }
        let Some((seq, applied)) = self.state.batches.written(id) else { return };
        self.state.links.note_heard(self.state.env.now());
        self.tell(RoleEvent::Persisted { seq, applied });
    }
}

impl State {
    /// Applies steps and hands what changed to the store.
    ///
    /// # Errors
    /// What is wrong with the batch.
    pub(super) fn apply(
        &mut self,
        seq: u64,
        steps: &[Step],
        mut input: BatchInput,
    ) -> Result<Vec<Noted>, &'static str> {
        self.batches.begin(seq);
        self.objects.begin_batch(seq);
        let (mut applied, mut noted) = (Applied::default(), Vec::new());
        for step in steps {
            noted.extend(self.apply_step(step, &mut input, &mut applied)?);
        }
        // Before `finish_batch`, which puts the new hashes in place of these.
        if self.batches.synchronising().next().is_some() {
            applied.before = self.objects.instances_before(&applied.effects);
        }
        let stored = self.objects.finish_batch(seq, steps, &applied.effects, self.membership.epoch());
        applied.competition = self.objects.take_competition();
        applied.view = self.objects.view();
        let id = self.persist(stored);
        self.batches.write(id, applied);
        Ok(noted)
    }

    fn apply_step(
        &mut self,
        step: &Step,
        input: &mut BatchInput,
        applied: &mut Applied,
    ) -> Result<Option<Noted>, &'static str> {
        match step {
            Step::Object { slot, version, .. } => {
                let object = input.objects.remove(&(*slot, *version)).ok_or("a batch with an unknown object")?;
                let config = &self.env.config;
                let as_of = (config.exchange.as_str(), config.export);
                self.objects.apply_object(object, as_of, &self.membership, &mut applied.effects)?;
            }
            Step::Expire { slot, objects } => self.objects.expire(*slot, *objects, &mut applied.effects),
            Step::Forget { objects } => self.objects.forget(*objects, &mut applied.effects),
            // A batch may end the slot that it was to serve.
            Step::Sync { slot, .. } if self.membership.set().active(*slot).is_none() => {}
            Step::Sync { slot, session, select_best, chooses, own } => {
                let (session, select_best, chooses) = (*session, *select_best, *chooses);
                let served = Some(Served::Objects);
                self.batches.activate(*slot, ActiveMember { session, select_best, served, chooses });
                applied.begins.insert(*slot, *own);
                return Ok(Some(Noted::Synced(*slot)));
            }
            Step::Slice { slot, content } => {
                applied.slices.insert(*slot, content.as_ref().clone());
            }
            Step::Pause { slot } => {
                let (own, lacks) = (self.objects.table().high_water(*slot), self.links.lacks(*slot));
                self.deactivate(*slot);
                self.links.pause(*slot);
                return Ok(Some(Noted::Paused { slot: *slot, own, lacks }));
            }
            Step::Gone { slot } => {
                self.deactivate(*slot);
                return Ok(Some(Noted::Inactive(*slot)));
            }
            Step::Epoch { epoch, changed } => {
                self.membership.begin_epoch(*epoch, self.env.clocks)?;
                if let Some(recommendation) = input.recommendation.take() {
                    self.membership.recommend(recommendation);
                }
                self.batches.begin_relist(changed);
                applied.renewed = true;
                return Ok(Some(Noted::EpochBegan));
            }
            Step::Relist { prefixes } => {
                self.batches.relist_some(self.objects.table(), *prefixes, &mut applied.effects);
            }
            Step::Set { set } => {
                self.adopt_newer_set(set)?;
                // A batch that takes something of a slot that it ends is none that an honest party 1 makes.
                input.objects.retain(|(slot, _), _| self.membership.set().active(*slot).is_some());
                applied.renewed = true;
            }
        }
        Ok(None)
    }

    /// Takes the peer party's directory if it goes on from what is in force here.
    pub(super) fn adopt_newer_set(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if let Some(next) = self.membership.newer(&self.env.config, bytes)? {
            self.adopt(next);
        }
        Ok(())
    }

    /// A directory of this party's operator that waited to take effect, as it now goes on from what is in force. One that follows no more
    /// is dropped, with an event: the peer party has no part in that.
    pub(super) fn own_set(&mut self, bytes: &[u8]) -> Option<Directory> {
        self.membership.own(&self.env.config, bytes).unwrap_or_else(|why| {
            self.env.event(super::PartyEvent::MembersRefused { why });
            None
        })
    }

    /// Takes a newer member set: ends the routes of members that left, and closes their links and those of members that
    /// have a new certificate. The store has it before anything depends on it: it goes with the changes of its batch.
    pub(super) fn adopt(&mut self, next: Directory) {
        let (ended, renewed) = self.membership.losses(&next);
        for (slot, by) in ended {
            self.objects.end(slot);
            self.deactivate(slot);
            if let Some(link) = self.links.link_of(slot) {
                // Before its link is closed, with which the member is forgotten and can be sent nothing.
                let why = Rejection::Removed { slot, set: next.set().number, by };
                self.send_to_member(slot, &ToMember::Rejected { why });
                self.close(link, "the member has left the exchange");
            }
        }
        for slot in renewed {
            if let Some(link) = self.links.link_of(slot) {
                self.close(link, "the member has a new certificate; it connects again with that");
            }
        }
        self.membership.adopt(next, self.env.now(), self.env.config.match_wait);
        let set = Box::new(self.membership.set().clone());
        self.env.emit(super::PartyOutput::Members(set));
        // Slots that were removed count no more.
        self.review_formats();
    }
}

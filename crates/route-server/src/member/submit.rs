//! Submits the member's own objects: carries out what [`Announcements`] decides.

use wayleave_core::Now;

use super::announce::{Announcements, Context, Effect};
use super::{Member, MemberOutput};
use crate::party::PartyNumber;

impl Member {
    /// Sends what changed, withdrawals first, as far as the window, the store and the credit allow. Each object costs credit,
    /// so the next one's context is made after it was sent.
    pub(super) fn flush(&mut self, now: Now) {
        if !self.may_announce() {
            return;
        }
        let next = now.instant + self.tick;
        let Some((announcements, mut context)) = self.announcing() else { return };
        let (mut flush, effects) = announcements.begin_flush(now.instant, next, &mut context);
        self.carry_out(effects);
        while let Some((announcements, mut context)) = self.announcing() {
            let Some(effects) = announcements.next_object(&mut flush, &mut context) else { return };
            self.carry_out(effects);
        }
    }

    /// The member set is larger: every own object gets the new slots' columns.
    pub(super) fn set_grew(&mut self) {
        if !self.synced {
            self.announcements.mark_all_dirty();
            return;
        }
        let Some((announcements, context)) = self.announcing() else { return };
        for column in announcements.missing_columns(&context) {
            let Some((announcements, mut context)) = self.announcing() else { return };
            let effects = announcements.submit_column(&column, &mut context);
            self.carry_out(effects);
        }
        // Export decisions that a column cannot express are made again for the new set.
        self.announcements.mark_all_dirty();
    }

    /// Whether the member may announce, but for credit: both parties have listed its objects, and the member set in force
    /// lists it and is durable.
    pub(super) fn may_announce(&self) -> bool {
        self.synced && self.is_listed() && self.storing_set.is_none()
    }

    /// The announcements, and what they need for one object; `None` without a member set.
    fn announcing(&mut self) -> Option<(&mut Announcements, Context<'_>)> {
        let (export, has_credit) = (self.export(), self.has_credit());
        let context = Context {
            config: &self.config,
            policy: &self.policy,
            set: self.set.as_ref()?,
            origins: self.origins.as_deref(),
            data: self.data.in_force(),
            aspas: self.aspas.as_deref(),
            neighbours: self.neighbours,
            epoch: self.epoch,
            signing: &self.signing,
            export,
            format: self.format(),
            max_blob: self.max_blobs[0].min(self.max_blobs[1]),
            has_credit,
            rng: &mut self.rng,
            counters: &mut self.counters,
            last_persist: &mut self.next_persist,
        };
        Some((&mut self.announcements, context))
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Submit { one, two } => {
                    self.send(PartyNumber::One, &one);
                    self.send(PartyNumber::Two, &two);
                }
                Effect::Persist { id, change } => {
                    self.output.push_back(MemberOutput::Persist { id, changes: vec![change] });
                }
                Effect::Event(event) => self.event(event),
            }
        }
    }
}

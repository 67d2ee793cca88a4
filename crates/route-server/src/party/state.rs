//! What both parties hold and do alike: seven owners, and what goes over more than one of them.
//!
//! Each owner has its fields for itself, and a page at its head that says what may change them, in which order, and what is durable
//! before what: [`Membership`] (who is a member), [`Links`] (who is connected), [`Objects`] (what counts and what waits), [`Rounds`] (what
//! is evaluated), [`Batches`] (which batch is under way, and whom it serves), [`Formats`] (which formats of objects members read) and [`Order`]
//! (how candidates are numbered). [`Env`] is what all of them use.
//!
//! What goes over several of them is here and in `batch`, `delivery`, `evaluation`, `export` and `reconcile`. What only one of the two
//! parties does is in its role (`role`).

use std::sync::Arc;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_crypto::secret::Seed;

use super::batches::{Batches, Stage};
use super::env::Env;
use super::formats::Formats;
use super::links::{Departure, Greeting, Links, Unlinked};
use super::membership::Membership;
use super::objects::Objects;
use super::order::Order;
use super::rounds::Rounds;
use super::waiting::PendingObject;
use super::{LinkId, PartyEvent, PartyOutput, PeerId, PersistId, store};
use crate::frames::{BudgetLeft, PartyFrame, Refusal, Rejection, ToMember};
use crate::object::Header;
use crate::object_table::{Effects, Part};
use crate::versions::{self, Versions};

/// How long the peer party may take to answer.
const PEER_WAIT: Duration = Duration::from_secs(15);

/// The state of a party, without what only party 1 needs ([`super::sequencer::Sequencer`]).
pub(super) struct State {
    pub env: Env,
    pub membership: Membership,
    pub links: Links,
    pub objects: Objects,
    pub rounds: Rounds,
    pub batches: Batches,
    pub formats: Formats,
    pub order: Order,
    /// Whether what batches, rounds and links depend on may have changed with this input.
    pub changes: bool,
}

impl State {
    pub(super) fn now(&self) -> Instant {
        self.env.now()
    }

    pub(super) fn event(&mut self, event: PartyEvent) {
        self.env.event(event);
    }

    pub(super) fn send_to_peer(&mut self, frame: &PartyFrame) {
        self.links.send_to_peer(&mut self.env, frame);
    }

    /// Sends what the member must get. One that takes up nothing, so that there is no credit even for this, loses its link.
    pub(super) fn send_to_member(&mut self, slot: u32, frame: &ToMember) {
        self.links.send(&mut self.env, slot, frame);
    }

    /// Sends a frame if the member is connected and there is credit for it.
    pub(super) fn offer_to_member(&mut self, slot: u32, frame: &ToMember) -> bool {
        self.links.offer(&mut self.env, slot, frame)
    }

    /// Whether the peer party is connected and agrees on what is stored.
    pub(super) fn peer_ready(&self) -> bool {
        self.links.is_peer_ready()
    }

    /// The member gets nothing more until it is served again.
    pub(super) fn deactivate(&mut self, slot: u32) {
        self.batches.deactivate(slot, self.links.has(slot));
    }

    pub(super) fn deactivate_all(&mut self) {
        self.batches.deactivate_all(self.links.slots());
    }

    /// Nobody waits in any round for the ranking of a member that has gone.
    pub(super) fn leave_rounds(&mut self, slot: u32) {
        self.rounds.leave(slot);
        if let Some(exporting) = self.batches.exporting_mut() {
            exporting.leave(slot);
        }
    }

    /// Whether the parties agree on a batch, on what is stored, or compute: each then waits for the other.
    pub(super) fn is_in_agreement(&self) -> bool {
        match self.batches.stage() {
            Stage::Idle | Stage::Agreeing { .. } | Stage::Persisting { .. } => {
                self.rounds.is_at_work() || self.links.is_peer_unready()
            }
            Stage::Proposed { .. } | Stage::Accepted { .. } | Stage::Exporting(_) => true,
        }
    }

    /// How long the peer party may take to answer; party 1 may itself be waiting for members.
    pub(super) fn peer_wait(&self) -> Duration {
        PEER_WAIT + self.batches.tick() + self.env.config.rank_wait
    }

    /// Octets of the largest blob that both operators agree to, as far as this party knows.
    pub(super) fn max_blob(&self) -> u32 {
        let own = self.env.config.max_blob;
        self.links.peer_hello().map_or(own, |theirs| theirs.max_blob.min(own))
    }

    /// Makes changes durable, and with them what is new of the member set and of what the peer party has.
    pub(super) fn persist(&mut self, mut changes: Vec<store::Change>) -> PersistId {
        changes.extend(self.membership.unstored().map(|set| store::set_change(&set)));
        changes.push(store::agreed_change(self.objects.store().agreed));
        self.env.persist(changes)
    }

    /// Makes durable what the comparison with the peer party changed of objects.
    pub(super) fn persist_effects(&mut self, effects: &Effects) {
        self.persist(self.objects.changes(effects, self.membership.epoch(), self.batches.seq()));
    }

    /// The views of both parties begin anew, from the objects that both have.
    pub(super) fn reset_view(&mut self) {
        self.objects.reset_view(self.membership.epoch(), &self.membership.directory().id().hash);
    }

    /// Ends the routes of members that have left. What of them is stored is removed with batches.
    pub(super) fn end_leavers(&mut self) {
        for (slot, _) in self.membership.set().iter().filter(|(_, slot)| !slot.active) {
            self.objects.end(slot);
        }
    }
}

// Links.
impl State {
    pub(super) fn link_up(&mut self, link: LinkId, peer: PeerId, exporter: &Seed) {
        self.env.rng.bind(exporter);
        match peer {
            PeerId::Member(slot) => {
                // Before the new link takes its place: `unlink` knows the member by its link, and would queue no departure.
                if let Some(old) = self.links.link_of(slot) {
                    self.close(old, "the member connected again");
                }
                self.links.add_member(link, slot, self.env.now());
                self.batches.connected(slot);
            }
            PeerId::Party => {
                let nonce = self.env.rng.draw(&[b"nonce"]).bytes();
                self.links.add_peer(link, nonce, self.env.now());
                self.greet_peer();
            }
        }
    }

    pub(super) fn close(&mut self, link: LinkId, reason: impl Into<String>) {
        self.env.emit(PartyOutput::Close { link, reason: reason.into() });
        self.unlink(link);
    }

    pub(super) fn close_peer(&mut self, reason: impl Into<String>) {
        if let Some(link) = self.links.peer_link() {
            self.close(link, reason);
        }
    }

    /// Closes the links of those who take up nothing.
    pub(super) fn close_overrun(&mut self) {
        for slot in self.links.take_overrun() {
            self.event(PartyEvent::Stalled { slot });
            let link = match slot {
                None => self.links.peer_link(),
                Some(slot) => self.links.link_of(slot),
            };
            if let Some(link) = link {
                self.close(link, "it reads nothing of what is sent to it");
            }
        }
    }

    /// Forgets a link that is down or being closed.
    pub(super) fn unlink(&mut self, link: LinkId) {
        match self.links.remove(link) {
            Some(Unlinked::Member { slot, session }) => {
                // These go with the departure: party 1 may propose what party 2 reported of them before it hears that the link is gone.
                let pending = self.objects.take_all_pending(slot);
                self.batches.disconnected(slot);
                if let Some(session) = session {
                    self.links.note_departure(Departure::Member { slot, session, pending });
                }
            }
            Some(Unlinked::Peer) => {
                self.deactivate_all();
                self.batches.break_off_relist();
                self.rounds.end_session();
                let steps = self.batches.take_steps();
                self.links.note_departure(Departure::Peer { steps });
                self.event(PartyEvent::PeerPartyDown);
            }
            None => {}
        }
    }

    /// Counts a frame that breaks the protocol and closes its sender's link. `slot` names the member that sent it;
    /// `None` is the peer party.
    pub(super) fn bad_frame(&mut self, slot: Option<u32>, link: LinkId, what: String) {
        self.env.counters.bad_frames += 1;
        if let Some(slot) = slot {
            self.links.note_offence(slot, self.env.now());
        }
        self.event(PartyEvent::BadFrame { slot, what: what.clone() });
        self.close(link, what);
    }

    /// The same of a member, by its slot.
    pub(super) fn bad_member_frame(&mut self, slot: u32, what: String) {
        if let Some(link) = self.links.link_of(slot) {
            self.bad_frame(Some(slot), link, what);
        }
    }

    /// Counts a member's greeting that does not fit, and closes its link: a mistake in its configuration, or another release, and no
    /// offence.
    pub(super) fn unfit_greeting(&mut self, slot: u32, link: LinkId, what: String) {
        self.env.counters.bad_frames += 1;
        self.links.note_unfit(slot, what.clone(), self.env.now());
        self.event(PartyEvent::BadFrame { slot: Some(slot), what: what.clone() });
        self.close(link, what);
    }

    /// Whether the frame is a greeting of a member with which this party has no version in common: it is told so, and its link is closed.
    /// Nothing of the frame but the versions is looked at.
    pub(super) fn shares_no_version(&mut self, slot: u32, link: LinkId, frame: &[u8]) -> bool {
        let ours = self.env.config.speaks.versions;
        let theirs = versions::greeted(frame).filter(|_| self.links.greeting_of(slot, link).is_none());
        let Some(theirs) = theirs.filter(|theirs| versions::common(&[*theirs, ours]).is_none()) else { return false };
        let why = if theirs.highest < versions::FIRST {
            Rejection::Protocol { ours: ours.highest }
        } else {
            Rejection::Versions { ours, later: Vec::new() }
        };
        // Only its operator can help, who learns nothing from a link that just ends.
        self.send_to_member(slot, &ToMember::Rejected { why });
        self.unfit_greeting(slot, link, versions::nothing_common(theirs, ours));
        true
    }

    /// What is wrong with the peer party's greeting if it has no version in common with this party.
    pub(super) fn shares_no_version_with_peer(&self, frame: &[u8]) -> Option<String> {
        let ours = self.env.config.speaks.versions;
        let theirs = versions::greeted(frame).filter(|_| self.links.peer_hello().is_none())?;
        versions::common(&[theirs, ours]).is_none().then(|| versions::nothing_common(theirs, ours))
    }

    /// A member grants credit.
    pub(super) fn member_granted(&mut self, slot: u32, link: LinkId, limit: u64) {
        match self.links.granted(slot, limit, self.env.now()) {
            Err(what) => self.bad_frame(Some(slot), link, what.to_owned()),
            Ok(()) if self.links.owes_set(slot) => self.tell_set(slot),
            Ok(()) => {}
        }
    }
}

// Members.
impl State {
    /// Answers a member's hello.
    pub(super) fn welcome(&mut self, slot: u32, greeting: Greeting, budget: BudgetLeft) {
        if !self.links.greet(slot, greeting) {
            return;
        }
        let welcome = ToMember::Welcome {
            versions: self.env.config.speaks.versions,
            session: greeting.session,
            epoch: self.membership.epoch(),
            high_water: self.objects.table().high_water(slot),
            tick_ms: u32::try_from(self.batches.tick().as_millis()).unwrap_or(u32::MAX),
            export: self.env.config.export,
            max_blob: self.max_blob(),
            budget,
            format: greeting.format,
            set: self.membership.bytes(),
            later: Vec::new(),
        };
        self.send_to_member(slot, &welcome);
    }

    /// The member begins its session. Returns whether it counts: not if the peer party told the member another range of versions than this
    /// party. Either the peer party lies to one of the two, or it was started again between the two greetings, and then the session is
    /// of no use, since its other link has gone.
    pub(super) fn begin(&mut self, slot: u32, version: u16, told: [Versions; 2]) -> bool {
        let told_format = self.links.begin(slot, version, told);
        let format = self.formats.highest();
        if told_format != Some(format) {
            self.send_to_member(slot, &ToMember::Format { format });
        }
        if self.links.owes_set(slot) {
            // It changed after the welcome.
            self.tell_set(slot);
        }
        self.is_told_the_same(slot)
    }

    /// A member says which formats of objects it reads. Returns whether it can be served: not if it reads none that others announce in.
    pub(super) fn hear_formats(&mut self, slot: u32, formats: Versions) -> bool {
        if formats.least > self.formats.highest() {
            return false;
        }
        if self.formats.hear(slot, formats) {
            self.persist(vec![store::formats_change(slot, formats)]);
            self.review_formats();
        }
        true
    }

    /// Looks again up to which format members may announce, and tells them if that has changed.
    pub(super) fn review_formats(&mut self) {
        let before = self.formats.highest();
        if !self.formats.review(self.membership.set(), self.env.now()) {
            return;
        }
        let format = self.formats.highest();
        self.event(PartyEvent::Format { format, before });
        for slot in self.links.sessions().map(|(slot, ..)| slot).collect::<Vec<u32>>() {
            self.send_to_member(slot, &ToMember::Format { format });
        }
    }

    /// Whether the member was told the same of the peer party as this party; if not, its link is closed. What the peer party says of
    /// itself is known once the parties are connected: before, nobody is served.
    pub(super) fn is_told_the_same(&mut self, slot: u32) -> bool {
        let Some(ours) = self.links.peer_hello().map(|hello| hello.versions) else { return true };
        let peer = usize::from(self.env.is_party_one());
        let Some(told) = self.links.told_of(slot).map(|told| told[peer]).filter(|told| *told != ours) else {
            return true;
        };
        self.event(PartyEvent::VersionsDiffer { slot, told, ours });
        self.send_to_member(slot, &ToMember::Rejected { why: Rejection::Told { told, ours } });
        if let Some(link) = self.links.link_of(slot) {
            self.close(link, "the other party told the member another range of versions");
        }
        false
    }

    /// Tells the connected members the epoch and the member set. One without a hello so far learns both from its welcome, and one that
    /// has not begun its session is told when it does.
    pub(super) fn tell_members(&mut self) {
        self.membership.announced();
        for slot in self.links.greeted().collect::<Vec<u32>>() {
            self.tell_set(slot);
        }
    }

    /// Tells a member the epoch and the member set once there is credit for that; no tick goes before.
    pub(super) fn tell_set(&mut self, slot: u32) {
        self.links.tell_set(&mut self.env, slot, self.membership.epoch(), self.membership.bytes());
    }

    pub(super) fn refuse(&mut self, slot: u32, version: u64, reason: Refusal) {
        self.env.counters.refused += 1;
        self.event(PartyEvent::Refused { slot, version, reason });
        self.send_to_member(slot, &ToMember::Refused { version, reason });
    }

    /// Checks an object as far as one party can, and lets it wait for its other half. Returns whether it does; if not, it
    /// was refused.
    pub(super) fn submit(
        &mut self,
        slot: u32,
        header: Arc<Header>,
        part: Option<Part>,
        column: Option<Arc<[u8]>>,
    ) -> bool {
        let (version, now) = (header.description.version, self.env.now());
        // Before the signature is checked, which costs the most.
        if self.links.is_overspent(slot, now) {
            self.links.note_overspent(slot, now);
            self.refuse(slot, version, Refusal::Budget);
            return false;
        }
        if !self.formats.takes(header.description.format.number(), now, self.env.config.match_wait) {
            self.refuse(slot, version, Refusal::Format);
            return false;
        }
        let of = (&self.env, &self.membership);
        let fits = self.objects.check((slot, &header), (part.as_ref(), column.as_deref()), of, self.max_blob());
        if let Err(reason) = fits.and_then(|()| self.check_signature(slot, &header)) {
            self.refuse(slot, version, reason);
            return false;
        }
        self.env.counters.objects += 1;
        let digest = header.digest(&self.env.config.exchange);
        self.objects.add_pending(slot, PendingObject { header, digest, part, column, since: now });
        true
    }

    fn check_signature(&mut self, slot: u32, header: &Header) -> Result<(), Refusal> {
        let key = self.membership.key(slot).ok_or(Refusal::Proof)?;
        self.env.counters.verified += 1;
        if header.is_signed_by(&self.env.config.exchange, key) { Ok(()) } else { Err(Refusal::Proof) }
    }
}

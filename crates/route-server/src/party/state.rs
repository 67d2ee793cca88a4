//! What both parties hold and do alike: links, members, objects that wait, what is sent and what is refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Now, Prefix};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::VerifyingKey;

use super::budget::Pace;
use super::engine::Engine;
use super::export::Exporting;
use super::recent::RecentChanges;
use super::reconcile::{PeerHello, StoreState};
use super::relist::{Relist, Relisted};
use super::round::Round;
use super::sync::{Cursor, Lack};
use super::{
    Counters, LinkId, OlderStore, PartyConfig, PartyEvent, PartyNumber, PartyOutput, PeerId, PersistId, batch, store,
};
use crate::credit::{self, Receiving, Sending};
use crate::directory::{Directory, MemberSet};
use crate::frames::{BudgetLeft, InventoryRow, PART, PROTOCOL, PartyFrame, Refusal, SessionId, Step, Tick, ToMember};
use crate::object::{Header, Kind, MAX_BLOB};
use crate::object_table::{ObjectTable, Part};
use crate::rng::Rng;
use crate::schedule::Schedule;

/// Objects that one member may have waiting, and octets of them: our own limits.
const MAX_PENDING: usize = 8192;
const MAX_PENDING_OCTETS: usize = 32 << 20;
/// Octets that a member may have on the way at this party when it gets the next slice of everything: our own limit.
const SLICE_ROOM: u64 = 1 << 20;
/// What a tick costs at most: our own limit. Steps keep to less; where columns open more to a new slot at once, its member is sent that
/// in slices.
const MAX_TICK: u64 = credit::TO_MEMBER / 2;
/// More than this on the way, and the member gets nothing until it has caught up: our own limit.
const BEHIND: u64 = 4 << 20;
/// Octets of its budget that a member's frame costs at least, so that there is a budget of frames, too: our own limit.
const FRAME_PACE: u64 = 1024;
/// For how long the status shows that a member spent more than its budget, or broke the protocol.
const OVERSPENT_SHOWN: Duration = Duration::from_secs(60);
/// How long the peer party may take to answer.
const PEER_WAIT: Duration = Duration::from_secs(15);

/// A member's link at this party.
#[derive(Clone, Debug)]
pub(super) struct MemberLink {
    pub link: LinkId,
    /// Set by the member's hello.
    pub session: Option<SessionId>,
    pub select_best: bool,
    /// Rankings missed in a row.
    pub missed: u32,
    /// When the last one was missed that was not due together with one before.
    pub missed_at: Option<Instant>,
    pub sending: Sending,
    pub receiving: Receiving,
    /// Whether there was no credit for a tick: the member lacks it.
    pub lacks: bool,
    /// Whether there was no credit for the member set, which goes before any tick.
    pub owes_set: bool,
    /// At party 1: whether the member has said what it holds, or that it wants everything.
    pub told: bool,
    /// At party 2: whether party 1 knows that the member can get nothing now.
    pub held: bool,
}

impl MemberLink {
    /// Whether the member missed a ranking after `begin`: one of a round that began by then is not waited for, since it is the same lapse.
    pub(super) fn is_late_since(&self, begin: Instant) -> bool {
        self.missed_at.is_some_and(|at| begin < at)
    }
}

/// A member to which both parties deliver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ActiveMember {
    pub session: SessionId,
    pub select_best: bool,
    /// How far it has been sent what it lacks; `None` once it has all.
    pub cursor: Option<Cursor>,
    /// What it lacked when that began.
    pub lacks: Arc<Lack>,
    /// Whether it had all once in this session, or held most of it: then it gets all that is new, also while it is sent what it
    /// lacks.
    pub complete: bool,
    /// Whether it ranks while it is sent everything.
    pub chooses: bool,
}

impl ActiveMember {
    /// The member has been sent what it lacked up to here. With the last of it, what it lacked is forgotten: up to some megabytes.
    pub(super) fn was_sent(&mut self, cursor: Option<Cursor>) {
        let had_all = std::mem::replace(&mut self.cursor, cursor).is_none();
        self.complete |= cursor.is_none();
        if cursor.is_none() && !had_all {
            self.lacks = Arc::default();
        }
    }
}

/// An object that waits to be applied.
pub(super) struct PendingObject {
    pub header: Arc<Header>,
    pub digest: [u8; 32],
    pub part: Option<Part>,
    pub column: Option<Arc<[u8]>>,
    pub since: Instant,
}

impl PendingObject {
    /// Octets of its blob, row or column: what it takes up in memory, about.
    pub(super) fn octets(&self) -> usize {
        let part = match &self.part {
            Some(Part::One { blob, .. }) => blob.len(),
            Some(Part::Two { row }) => row.len(),
            None => 0,
        };
        part + self.column.as_ref().map_or(0, |column| column.len())
    }
}

/// The link to the peer party.
pub(super) struct PeerParty {
    pub link: LinkId,
    /// Whether the inventories have been compared.
    pub ready: bool,
    pub hello: Option<PeerHello>,
    pub nonce: [u8; 16],
    /// Rows of an inventory that comes in several frames.
    pub rows: Vec<InventoryRow>,
    pub sending: Sending,
    pub receiving: Receiving,
}

/// The stage of the current batch. Rounds of earlier ones go on beside it.
pub(super) enum Stage {
    Idle,
    /// Party 1 awaits the answer to its proposal.
    Proposed {
        seq: u64,
        steps: Vec<Step>,
    },
    /// Applied; the store is writing. Party 1 then says go, party 2 accepts.
    Persisting {
        seq: u64,
        id: PersistId,
        applied: Box<batch::Applied>,
    },
    /// Party 2 accepted and awaits the go.
    Accepted {
        seq: u64,
        applied: Box<batch::Applied>,
    },
    /// Delivered as far as this party can alone: Export-All runs, in mode `mpc`.
    Exporting(Box<Exporting>),
}

/// A link that is gone, as the party's role has to know it.
pub(super) enum Departure {
    Member {
        slot: u32,
        session: SessionId,
        /// What waited of its objects.
        pending: BTreeMap<u64, PendingObject>,
    },
    /// The peer party, with the steps of a proposal that it had not answered.
    Peer { steps: Vec<Step> },
}

/// The state of a party, without what only party 1 needs ([`super::sequencer::Sequencer`]).
pub(super) struct State {
    pub config: PartyConfig,
    /// What is in force.
    pub directory: Directory,
    /// Whether the store has it.
    pub set_is_stored: bool,
    /// Whether members that are connected have not been told of it yet.
    pub set_is_unannounced: bool,
    pub set: MemberSet,
    pub keys: Vec<Option<VerifyingKey>>,
    pub set_bytes: Arc<[u8]>,
    pub epoch: u64,
    /// When it began, if that was in this life.
    pub epoch_began: Option<Instant>,
    pub seq: u64,
    /// What this party's store holds, and what the peer party's does at least.
    pub store: StoreState,
    /// The last time one of the two came with an older one.
    pub older_store: Option<(OlderStore, Instant)>,
    pub tick: Duration,
    /// Slots of each member set so far.
    pub widths: BTreeMap<u64, u32>,
    /// When sets before the one in force were replaced, in this life.
    pub replaced: BTreeMap<u64, Instant>,
    pub table: ObjectTable,
    pub pending: BTreeMap<u32, BTreeMap<u64, PendingObject>>,
    pub links: BTreeMap<LinkId, PeerId>,
    pub members: BTreeMap<u32, MemberLink>,
    /// Those of them that are not in `active`: to look at all members with each input would cost the square of their number.
    pub unserved: BTreeSet<u32>,
    /// Members of which some may be behind, for the same reason: all others are not.
    pub strained: BTreeSet<u32>,
    pub active: BTreeMap<u32, ActiveMember>,
    /// Of members that are sent what differs, the prefixes for which routes of their own AS that change buy them no choice any more.
    pub chosen: BTreeMap<u32, BTreeSet<Prefix>>,
    pub peer: Option<PeerParty>,
    pub stage: Stage,
    /// Rounds whose rankings are awaited, or that are evaluated, by batch.
    pub rounds: BTreeMap<u64, Round>,
    pub engine: Option<Engine>,
    /// The batch of which the engine evaluates a part, and at party 2 those of what comes next.
    pub work: Option<u64>,
    pub ordered: VecDeque<u64>,
    /// How much the engine has done.
    pub engine_progress: u64,
    /// Evaluations of what changed just now since the last one that could wait, at party 1.
    pub live_in_a_row: u32,
    /// Evaluations that went before one for which correlations are made, at party 1.
    pub overtaken: u32,
    /// The exchange's recommendation of this epoch by announcer's slot; empty at party 2.
    pub recommendation: BTreeMap<u32, u8>,
    /// What is still to be evaluated again since an epoch began, and what has been.
    pub relist: Option<Relist>,
    pub relisted: Relisted,
    /// What changed with the latest batches.
    pub recent: RecentChanges,
    /// By when members that are up to date have taken up what batches brought, and a part of what others are sent again.
    pub schedule: Schedule,
    /// Members whose credit has changed since the role last looked.
    pub flow_changed: BTreeSet<u32>,
    /// What members have spent of their budgets.
    pub paces: BTreeMap<u32, Pace>,
    /// When members last spent more than their budgets.
    pub overspent: BTreeMap<u32, Instant>,
    /// When members last sent a frame that breaks the protocol.
    pub offended: BTreeMap<u32, Instant>,
    /// Who takes up so little that there is no credit even for what must be sent: members by slot, or the peer party.
    pub overrun: BTreeSet<Option<u32>>,
    /// When the first member gets credit for which its budget lets it wait; entries of links that have gone do nothing.
    pub grants: BTreeSet<(Instant, u32)>,
    /// A time by which no peer or member has taken up nothing for too long; `None` while nobody owes a grant. Whoever comes to owe one
    /// later is not too late before.
    pub stalls_at: Option<Instant>,
    /// From when on the pool is filled ahead of need, if no batch comes in between.
    pub refill_at: Instant,
    /// Whether a job of setup is out: at most one is, whatever becomes of the link.
    pub setup_runs: bool,
    /// When the peer party was last heard, or last had to answer something new.
    pub heard: Instant,
    /// Both clocks at the last input.
    pub clocks: Now,
    /// Links that went since the role last looked.
    pub departures: Vec<Departure>,
    pub counters: Counters,
    pub rng: Rng,
    pub output: VecDeque<PartyOutput>,
    pub next_persist: PersistId,
}

impl State {
    pub(super) fn event(&mut self, event: PartyEvent) {
        self.output.push_back(PartyOutput::Event(event));
    }

    fn send(&mut self, link: LinkId, frame: Vec<u8>) {
        self.counters.bytes_sent += frame.len() as u64;
        self.output.push_back(PartyOutput::Send { link, frame });
    }

    pub(super) fn send_to_peer(&mut self, frame: &PartyFrame) {
        let now = self.clocks.instant;
        let Some(peer) = &mut self.peer else { return };
        let bytes = frame.encode();
        if !matches!(frame, PartyFrame::Credit { .. }) {
            let cost = credit::cost(bytes.len());
            if !peer.sending.has_credit(cost) {
                self.overrun.insert(None);
                return;
            }
            peer.sending.send(cost, now);
            self.stalls_at = self.stalls_at.or(peer.sending.stalls_at());
        }
        let link = peer.link;
        self.send(link, bytes);
    }

    /// Sends what the member must get. One that takes up nothing, so that there is no credit even for this, loses its link.
    pub(super) fn send_to_member(&mut self, slot: u32, frame: &ToMember) {
        let is_greeted = |member: &MemberLink| member.session.is_some();
        if !self.offer_to_member(slot, frame) && self.members.get(&slot).is_some_and(is_greeted) {
            self.overrun.insert(Some(slot));
        }
    }

    /// Sends a frame if the member is connected and there is credit for it.
    pub(super) fn offer_to_member(&mut self, slot: u32, frame: &ToMember) -> bool {
        let now = self.clocks.instant;
        let Some(member) = self.members.get_mut(&slot) else { return false };
        // What was begun for the link before is none of this one's, which gets nothing before its welcome.
        if member.session.is_none() && !matches!(frame, ToMember::Credit { .. } | ToMember::Rejected { .. }) {
            return false;
        }
        let is_tick = matches!(frame, ToMember::Tick(_));
        let frames = in_parts(frame.encode());
        if !matches!(frame, ToMember::Credit { .. }) {
            // Of all parts together: one for which there is credit only in part would keep the member waiting for the rest of it.
            let cost = frames.iter().map(|frame| credit::cost(frame.len())).sum();
            if is_tick && cost > MAX_TICK {
                self.counters.oversized_ticks += 1;
                return false;
            }
            if !member.sending.has_credit(cost) {
                return false;
            }
            member.sending.send(cost, now);
            self.stalls_at = self.stalls_at.or(member.sending.stalls_at());
        }
        if member.sending.outstanding() > BEHIND {
            self.strained.insert(slot);
        }
        let link = member.link;
        self.flow_changed.insert(slot);
        for frame in frames {
            self.send(link, frame);
        }
        true
    }

    /// Sends a member its tick. `false` if it is not to have it: it is gone, or has connected again since the batch was made, or is
    /// behind, and is then sent everything again later.
    pub(super) fn send_tick(&mut self, slot: u32, tick: Tick) -> bool {
        let served = self.active.get(&slot).map(|active| active.session);
        let Some(member) = self.members.get(&slot).filter(|member| member.session == served) else { return false };
        if !member.owes_set && !member.lacks && self.offer_to_member(slot, &ToMember::Tick(Box::new(tick))) {
            return true;
        }
        if let Some(member) = self.members.get_mut(&slot).filter(|member| member.session.is_some()) {
            member.lacks = true;
            self.strained.insert(slot);
            self.flow_changed.insert(slot);
        }
        false
    }

    /// Whether a member takes up what this party sends fast enough to be sent more of everything.
    pub(super) fn is_ready(&self, slot: u32) -> bool {
        let is_ready = |m: &MemberLink| !m.lacks && !m.owes_set && m.sending.outstanding() <= SLICE_ROOM;
        self.members.get(&slot).is_some_and(is_ready)
    }

    /// From this batch on the member gets what changes.
    pub(super) fn activate(&mut self, slot: u32, active: ActiveMember) {
        self.active.insert(slot, active);
        self.chosen.remove(&slot);
        self.unserved.remove(&slot);
    }

    /// The member gets nothing more until it is activated again.
    pub(super) fn deactivate(&mut self, slot: u32) {
        self.active.remove(&slot);
        self.chosen.remove(&slot);
        if self.members.contains_key(&slot) {
            self.unserved.insert(slot);
        }
    }

    pub(super) fn deactivate_all(&mut self) {
        self.active.clear();
        self.chosen.clear();
        self.unserved = self.members.keys().copied().collect();
    }

    /// Whether a member takes up so little that this party sends it nothing until it has caught up.
    pub(super) fn is_behind(&self, slot: u32) -> bool {
        let is_behind = |m: &MemberLink| m.lacks || m.owes_set || m.sending.outstanding() > BEHIND;
        self.members.get(&slot).is_some_and(is_behind)
    }

    /// A member grants credit.
    pub(super) fn member_granted(&mut self, slot: u32, link: LinkId, limit: u64, now: Now) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        if let Err(what) = member.sending.granted(limit, now.instant) {
            self.bad_frame(Some(slot), link, what.to_owned());
            return;
        }
        self.flow_changed.insert(slot);
        if member.owes_set {
            self.tell_set(slot);
        }
    }

    /// Counts a member's frame, and grants as much again.
    pub(super) fn count_from_member(&mut self, slot: u32, frame: &[u8], now: Now) -> Result<(), &'static str> {
        let Some(member) = self.members.get_mut(&slot) else { return Ok(()) };
        let cost = credit::cost_from_member(frame);
        let pace = self.paces.entry(slot).or_insert_with(|| Pace::new(now.instant));
        let at = pace.pay(cost.max(FRAME_PACE), credit::is_object(frame), &self.config.budget, now.instant);
        if let Err(what) = member.receiving.received(cost, at) {
            self.overspent.insert(slot, now.instant);
            return Err(what);
        }
        self.grant(slot, now);
        Ok(())
    }

    fn grant(&mut self, slot: u32, now: Now) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        let limit = member.receiving.grant(now.instant);
        self.grants.extend(member.receiving.deadline().map(|at| (at, slot)));
        if let Some(limit) = limit {
            self.offer_to_member(slot, &ToMember::Credit { limit });
        }
    }

    /// Gives members the credit for which their budgets let them wait.
    pub(super) fn grant_due(&mut self, now: Now) {
        while let Some((at, slot)) = self.grants.first().copied()
            && at <= now.instant
        {
            self.grants.remove(&(at, slot));
            self.grant(slot, now);
        }
    }

    /// When a member next gets credit for which it waits.
    pub(super) fn grants_at(&self) -> Option<Instant> {
        self.grants.first().map(|(at, _)| *at)
    }

    /// Slots of members that lately spent more than their budgets.
    pub(super) fn over_budget(&self) -> Vec<u32> {
        self.lately(&self.overspent)
    }

    /// The members that have lately sent a frame that breaks the protocol.
    pub(super) fn misbehaving(&self) -> Vec<u32> {
        self.lately(&self.offended)
    }

    fn lately(&self, when: &BTreeMap<u32, Instant>) -> Vec<u32> {
        let is_late = |at: &Instant| self.clocks.instant.since(*at) < OVERSPENT_SHOWN;
        when.iter().filter(|(_, at)| is_late(at)).map(|(slot, _)| *slot).collect()
    }

    /// The same of the peer party.
    pub(super) fn count_from_peer(&mut self, octets: usize, now: Now) -> Result<(), &'static str> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        peer.receiving.received(credit::cost(octets), now.instant)?;
        if let Some(limit) = peer.receiving.grant(now.instant) {
            self.send_to_peer(&PartyFrame::Credit { limit });
        }
        Ok(())
    }

    /// Notes whose link is to be closed since it made no progress.
    pub(super) fn note_stalled(&mut self, now: Now) {
        if self.stalls_at.is_none_or(|at| now.instant < at) {
            return;
        }
        let members = self.members.iter().map(|(slot, member)| (Some(*slot), &member.sending));
        let all = members.chain(self.peer.as_ref().map(|peer| (None, &peer.sending)));
        let mut next = None;
        for (who, at) in all.filter_map(|(who, sending)| Some((who, sending.stalls_at()?))) {
            if now.instant >= at {
                self.overrun.insert(who);
            } else {
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            }
        }
        self.stalls_at = next;
    }

    /// Closes the links of those who take up nothing.
    pub(super) fn close_overrun(&mut self) {
        for slot in std::mem::take(&mut self.overrun) {
            self.event(PartyEvent::Stalled { slot });
            let reason = "it reads nothing of what is sent to it";
            match slot {
                None => self.close_peer(reason),
                Some(slot) => {
                    if let Some(link) = self.members.get(&slot).map(|member| member.link) {
                        self.close(link, reason);
                    }
                }
            }
        }
    }

    /// Octets of the largest blob that both operators agree to, as far as this party knows.
    pub(super) fn max_blob(&self) -> u32 {
        let theirs = self.peer.as_ref().and_then(|peer| peer.hello.as_ref()).map(|hello| hello.max_blob);
        theirs.map_or(self.config.max_blob, |theirs| theirs.min(self.config.max_blob))
    }

    pub(super) fn persist(&mut self, mut changes: Vec<store::Change>) -> PersistId {
        self.next_persist += 1;
        if !std::mem::replace(&mut self.set_is_stored, true) {
            changes.push(store::set_change(&self.set_bytes));
        }
        changes.push(store::agreed_change(self.store.agreed));
        let id = self.next_persist;
        self.output.push_back(PartyOutput::Persist { id, changes });
        id
    }

    pub(super) fn peer_ready(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.ready)
    }

    pub(super) fn link_up(&mut self, link: LinkId, peer: PeerId, exporter: &Seed, now: Now) {
        self.rng.bind(exporter);
        self.links.insert(link, peer);
        match peer {
            PeerId::Member(slot) => {
                // Before the new link takes its place: `unlink` knows the member by its link, and would queue no departure.
                if let Some(old) = self.members.get(&slot).map(|m| m.link) {
                    self.close(old, "the member connected again");
                }
                let member = MemberLink {
                    link,
                    session: None,
                    select_best: false,
                    missed: 0,
                    missed_at: None,
                    sending: Sending::new(credit::TO_MEMBER, now.instant),
                    receiving: Receiving::new(credit::FROM_MEMBER),
                    lacks: false,
                    owes_set: false,
                    told: false,
                    held: false,
                };
                self.members.insert(slot, member);
                if !self.active.contains_key(&slot) {
                    self.unserved.insert(slot);
                }
            }
            PeerId::Party => {
                self.heard = now.instant;
                let nonce = self.rng.draw(&[b"nonce"]).bytes();
                self.peer = Some(PeerParty {
                    link,
                    ready: false,
                    hello: None,
                    nonce,
                    rows: Vec::new(),
                    sending: Sending::new(credit::BETWEEN_PARTIES, now.instant),
                    receiving: Receiving::new(credit::BETWEEN_PARTIES),
                });
                self.greet_peer();
            }
        }
    }

    pub(super) fn close(&mut self, link: LinkId, reason: impl Into<String>) {
        self.output.push_back(PartyOutput::Close { link, reason: reason.into() });
        self.unlink(link);
    }

    pub(super) fn close_peer(&mut self, reason: impl Into<String>) {
        if let Some(link) = self.peer.as_ref().map(|peer| peer.link) {
            self.close(link, reason);
        }
    }

    /// Forgets a link that is down or being closed.
    pub(super) fn unlink(&mut self, link: LinkId) {
        match self.links.remove(&link) {
            Some(PeerId::Member(slot)) if self.members.get(&slot).is_some_and(|m| m.link == link) => {
                // These go with the departure: party 1 may propose what party 2 reported of them before it hears that the link is gone.
                let pending = self.pending.remove(&slot).unwrap_or_default();
                let session = self.members.remove(&slot).and_then(|member| member.session);
                self.unserved.remove(&slot);
                self.departures.extend(session.map(|session| Departure::Member { slot, session, pending }));
            }
            Some(PeerId::Party) if self.peer.as_ref().is_some_and(|peer| peer.link == link) => {
                self.peer = None;
                self.engine = None;
                self.deactivate_all();
                // Everybody is compared again, and then sent what is left of the walk.
                self.relisted.broke_off(self.relist.take());
                self.rounds.clear();
                self.work = None;
                self.ordered.clear();
                let steps = match std::mem::replace(&mut self.stage, Stage::Idle) {
                    Stage::Proposed { steps, .. } => steps,
                    _ => Vec::new(),
                };
                self.departures.push(Departure::Peer { steps });
                self.event(PartyEvent::PeerPartyDown);
            }
            _ => {}
        }
    }

    /// Counts a frame that breaks the protocol and closes its sender's link. `slot` names the member that sent it;
    /// `None` is the peer party.
    pub(super) fn bad_frame(&mut self, slot: Option<u32>, link: LinkId, what: String) {
        self.counters.bad_frames += 1;
        self.offended.extend(slot.map(|slot| (slot, self.clocks.instant)));
        self.event(PartyEvent::BadFrame { slot, what: what.clone() });
        self.close(link, what);
    }

    /// The same of a member, by its slot.
    pub(super) fn bad_member_frame(&mut self, slot: u32, what: String) {
        if let Some(link) = self.members.get(&slot).map(|member| member.link) {
            self.bad_frame(Some(slot), link, what);
        }
    }

    /// Answers a member's hello.
    pub(super) fn welcome(&mut self, slot: u32, session: SessionId, select_best: bool, budget: BudgetLeft) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        member.session = Some(session);
        member.select_best = select_best;
        let welcome = ToMember::Welcome {
            protocol: PROTOCOL,
            session,
            epoch: self.epoch,
            high_water: self.table.high_water(slot),
            tick_ms: u32::try_from(self.tick.as_millis()).unwrap_or(u32::MAX),
            export: self.config.export,
            max_blob: self.max_blob(),
            budget,
            set: Arc::clone(&self.set_bytes),
        };
        self.send_to_member(slot, &welcome);
    }

    pub(super) fn refuse(&mut self, slot: u32, version: u64, reason: Refusal) {
        self.counters.refused += 1;
        self.event(PartyEvent::Refused { slot, version, reason });
        self.send_to_member(slot, &ToMember::Refused { version, reason });
    }

    /// Checks an object as far as one party can, and lets it wait for its other half. Returns its digest, or `None` if
    /// it was refused.
    pub(super) fn submit(
        &mut self,
        slot: u32,
        header: Arc<Header>,
        part: Option<Part>,
        column: Option<Arc<[u8]>>,
        now: Now,
    ) -> Option<[u8; 32]> {
        let version = header.description.version;
        // Before the signature is checked, which costs the most.
        if self.paces.get(&slot).is_some_and(|pace| pace.is_overspent(now.instant)) {
            self.overspent.insert(slot, now.instant);
            self.refuse(slot, version, Refusal::Budget);
            return None;
        }
        let fits = self.check(slot, &header, part.as_ref(), column.as_deref());
        if let Err(reason) = fits.and_then(|()| self.check_signature(slot, &header)) {
            self.refuse(slot, version, reason);
            return None;
        }
        self.table.saw(slot, version);
        self.counters.objects += 1;
        let digest = header.digest(&self.config.exchange);
        let object = PendingObject { header, digest, part, column, since: now.instant };
        self.pending.entry(slot).or_default().insert(version, object);
        Some(digest)
    }

    fn check(&self, slot: u32, header: &Header, part: Option<&Part>, column: Option<&[u8]>) -> Result<(), Refusal> {
        let description = &header.description;
        if self.set.active(slot).is_none() {
            return Err(Refusal::Set);
        }
        if description.slot != slot {
            return Err(Refusal::Proof);
        }
        if description.version <= self.table.high_water(slot) {
            return Err(Refusal::OldVersion);
        }
        // One that was on its way when the epoch began is taken too: each refusal at one party alone would delay what comes after it.
        let is_recent = self.epoch_began.is_some_and(|at| self.clocks.instant.since(at) < self.config.match_wait);
        let is_before = description.epoch.checked_add(1) == Some(self.epoch);
        if description.epoch != self.epoch && !(is_before && is_recent) {
            return Err(Refusal::Epoch);
        }
        let width = self.width_of(description.set).ok_or(Refusal::Set)?;
        if self.pending.get(&slot).is_some_and(|waiting| waiting.len() >= MAX_PENDING)
            || self.octets_waiting(slot) >= MAX_PENDING_OCTETS
        {
            return Err(Refusal::Busy);
        }
        match (&description.kind, part) {
            (Kind::Announce { .. }, Some(part)) => match part {
                Part::One { share, blob, .. } => {
                    if blob.len() > MAX_BLOB || !blob.len().is_power_of_two() || blob.len() < 512 {
                        return Err(Refusal::Size);
                    }
                    if blob.len() > self.max_blob() as usize {
                        return Err(Refusal::BlobSize);
                    }
                    if !share.matches(header) || crate::object::blob_hash(blob) != header.blob_hash {
                        return Err(Refusal::Proof);
                    }
                }
                Part::Two { row } if row.len() != self.config.export.row_bytes(width) => return Err(Refusal::Size),
                Part::Two { .. } => {}
            },
            (Kind::Withdraw { .. }, None) if column.is_none() => {}
            (Kind::Column { from, to, versions }, None) => {
                let expected = versions.len() * self.config.export.column_bytes(to - from);
                // Only party 2 gets the shares of a column: party 1 derives its own from the seed that it holds.
                let fits = match (self.config.number, column) {
                    (PartyNumber::Two, Some(row)) => row.len() == expected,
                    (number, None) => number == PartyNumber::One,
                    (PartyNumber::One, Some(_)) => false,
                };
                if !fits || *to != width {
                    return Err(Refusal::Size);
                }
            }
            _ => return Err(Refusal::Size),
        }
        Ok(())
    }

    /// Slots of a member set under which objects are taken: the one in force. One that was made under a set before it, and was on its way
    /// when that was replaced, is taken too, as wide as that set: the announcer sends a column for the slots that are new.
    fn width_of(&self, set: u64) -> Option<u32> {
        let is_recent = |at: &Instant| self.clocks.instant.since(*at) < self.config.match_wait;
        if set == self.set.number || self.replaced.get(&set).is_some_and(is_recent) {
            return self.widths.get(&set).copied();
        }
        None
    }

    fn check_signature(&mut self, slot: u32, header: &Header) -> Result<(), Refusal> {
        let key = self.keys.get(slot as usize).and_then(Option::as_ref).ok_or(Refusal::Proof)?;
        self.counters.verified += 1;
        if header.is_signed_by(&self.config.exchange, key) { Ok(()) } else { Err(Refusal::Proof) }
    }

    /// Octets of the objects that a member has waiting.
    pub(super) fn octets_waiting(&self, slot: u32) -> usize {
        self.pending.get(&slot).map_or(0, |waiting| waiting.values().map(PendingObject::octets).sum())
    }

    pub(super) fn take_pending(&mut self, slot: u32, version: u64) -> Option<PendingObject> {
        let of_slot = self.pending.get_mut(&slot)?;
        let object = of_slot.remove(&version);
        if of_slot.is_empty() {
            self.pending.remove(&slot);
        }
        object
    }

    /// How long the peer party may take to answer; party 1 may itself be waiting for members.
    pub(super) fn peer_wait(&self) -> Duration {
        PEER_WAIT + self.tick + self.config.rank_wait
    }

    /// Ends the routes of members that have left. What of them is stored is removed with batches.
    pub(super) fn end_leavers(&mut self) {
        for (slot, _) in self.set.iter().filter(|(_, slot)| !slot.active) {
            self.table.end(slot);
        }
    }
}

/// A frame to a member, in parts if it is long.
fn in_parts(bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if bytes.len() <= PART {
        return vec![bytes];
    }
    let parts = bytes.len().div_ceil(PART);
    let part = |(i, part): (usize, &[u8])| ToMember::Part { last: i + 1 == parts, bytes: part.to_vec() }.encode();
    bytes.chunks(PART).enumerate().map(part).collect()
}

/// Slots of a set.
pub(super) fn width(set: &MemberSet) -> u32 {
    u32::try_from(set.slots.len()).expect("the directory bounds the slots of a set")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digests::Differs;

    #[test]
    fn what_a_member_lacked_is_forgotten_once_it_has_been_sent_that() {
        let differs = Differs { own: true, ..Differs::NOTHING };
        let cursor = Some(Cursor::before(&differs));
        let lacks = Arc::new(Lack::of(differs, &RecentChanges::default()));
        let (complete, chooses, select_best) = (false, true, true);
        let mut active = ActiveMember { session: [7; 16], select_best, cursor, lacks, complete, chooses };
        let before = active.clone();
        active.was_sent(cursor);
        assert_eq!(active, before);
        active.was_sent(None);
        assert_eq!((active.complete, &*active.lacks), (true, &Lack::default()));
        assert_ne!(*before.lacks, Lack::default());
    }
}

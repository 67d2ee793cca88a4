//! The links of a party: who is connected, what may be sent to whom, and what each has spent.
//!
//! Only a link's own coming, going and credit changes this. Sending fails without a word where there is no credit: who is to be sent
//! something all the same loses its link at the end of the step ([`Links::take_overrun`]), and not in the middle, where others still go
//! through the members. For the same reason a link that goes is only noted here ([`Links::take_departures`]); what the party's role has to
//! do for it is done at a place of its own.
//!
//! Nothing of this is durable: after a restart everybody connects again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::Instant;

use super::budget::Pace;
use super::env::Env;
use super::reconcile::PeerHello;
use super::status::UnfitGreeting;
use super::waiting::PendingObject;
use super::{LinkId, PeerId};
use crate::credit::{self, Receiving, Sending};
use crate::frames::{InventoryRow, PART, PartyFrame, SessionId, Step, ToMember};
use crate::versions::{self, Versions};

/// Octets that a member may have on the way at this party when it gets the next slice of everything: our own limit.
const MAX_OUTSTANDING_FOR_SLICE: u64 = 1 << 20;
/// What a tick costs at most: our own limit. Steps keep to less; where columns open more to a new slot at once, its member is sent that
/// in slices.
const MAX_TICK: u64 = credit::TO_MEMBER / 2;
/// More than this on the way, and the member gets nothing until it has caught up: our own limit.
const BEHIND: u64 = 4 << 20;
/// Octets of its budget that a member's frame costs at least, so that there is a budget of frames, too: our own limit.
const FRAME_PACE: u64 = 1024;
/// For how long the status shows that a member spent more than its budget, or broke the protocol.
const OVERSPENT_SHOWN: Duration = Duration::from_secs(60);
/// For how long it shows that a member's greeting did not fit: longer than the most that a proxy waits between two attempts, a minute.
const UNFIT_SHOWN: Duration = Duration::from_secs(180);

/// What a member said in its hello.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    pub session: SessionId,
    pub select_best: bool,
    pub versions: Versions,
    /// The highest format of objects that its welcome says.
    pub format: u16,
}

/// A member's link at this party.
#[derive(Debug)]
struct MemberLink {
    link: LinkId,
    /// What its hello says.
    greeting: Option<Greeting>,
    /// Set once it has begun its session.
    session: Option<SessionId>,
    select_best: bool,
    /// The version of the session, and what the member was told that party 1 and party 2 speak.
    version: u16,
    told: Option<[Versions; 2]>,
    /// Rankings missed in a row.
    missed: u32,
    /// When the last one was missed that was not due together with one before.
    missed_at: Option<Instant>,
    sending: Sending,
    receiving: Receiving,
    /// Whether there was no credit for a tick: the member lacks it.
    lacks: bool,
    /// Whether there was no credit for the member set, which goes before any tick.
    owes_set: bool,
    /// At party 1: whether the member has said what it holds, or that it wants everything.
    has_said: bool,
    /// At party 2: whether party 1 knows that the member can get nothing now, and that it lacks a tick.
    is_held: bool,
    told_lacks: bool,
}

impl MemberLink {
    fn is_ready(&self) -> bool {
        !self.lacks && !self.owes_set && self.sending.outstanding() <= MAX_OUTSTANDING_FOR_SLICE
    }

    fn is_behind(&self) -> bool {
        self.lacks || self.owes_set || self.sending.outstanding() > BEHIND
    }
}

/// The link to the peer party.
struct PeerParty {
    link: LinkId,
    /// Whether the inventories have been compared.
    is_ready: bool,
    hello: Option<PeerHello>,
    /// The version between the parties, from the hello on.
    version: u16,
    nonce: [u8; 16],
    /// Rows of an inventory that comes in several frames.
    rows: Vec<InventoryRow>,
    sending: Sending,
    receiving: Receiving,
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

/// Whose link it was that is gone.
pub(super) enum Unlinked {
    Member { slot: u32, session: Option<SessionId> },
    Peer,
}

#[derive(Default)]
pub(super) struct Links {
    all: BTreeMap<LinkId, PeerId>,
    members: BTreeMap<u32, MemberLink>,
    peer: Option<PeerParty>,
    /// When the peer party was last heard, or last had to answer something new.
    heard: Instant,
    /// Members of which some may be behind: all others are not. To look at all members with each input would cost the square of their
    /// number.
    strained: BTreeSet<u32>,
    /// Members whose credit has changed since the role last looked.
    flow_changed: BTreeSet<u32>,
    /// What members have spent of their budgets.
    paces: BTreeMap<u32, Pace>,
    /// When members last spent more than their budgets.
    overspent: BTreeMap<u32, Instant>,
    /// When members last sent a frame that breaks the protocol.
    offended: BTreeMap<u32, Instant>,
    /// When a member's greeting did not fit, and why, until one does.
    unfit: BTreeMap<u32, (Instant, String)>,
    /// Who takes up so little that there is no credit even for what must be sent: members by slot, or the peer party.
    overrun: BTreeSet<Option<u32>>,
    /// When the first member gets credit for which its budget lets it wait; entries of links that have gone do nothing.
    grants: BTreeSet<(Instant, u32)>,
    /// A time by which no peer or member has taken up nothing for too long; `None` while nobody owes a grant. Whoever comes to owe one
    /// later is not too late before.
    stalls_at: Option<Instant>,
    /// Links that went since the role last looked.
    departures: Vec<Departure>,
}

// Who is there.
impl Links {
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: now, ..Self::default() }
    }

    pub(super) fn peer_of(&self, link: LinkId) -> Option<PeerId> {
        self.all.get(&link).copied()
    }

    pub(super) fn link_of(&self, slot: u32) -> Option<LinkId> {
        self.members.get(&slot).map(|member| member.link)
    }

    /// Slots whose members have a link, ascending.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    pub(super) fn has(&self, slot: u32) -> bool {
        self.members.contains_key(&slot)
    }

    /// What the slot's member said in its hello, if the link is the slot's and it has said hello on it.
    pub(super) fn greeting_of(&self, slot: u32, link: LinkId) -> Option<Greeting> {
        self.members.get(&slot).filter(|member| member.link == link)?.greeting
    }

    /// Whether the link is the slot's, and its member has begun its session on it.
    pub(super) fn has_begun(&self, slot: u32, link: LinkId) -> bool {
        self.members.get(&slot).is_some_and(|member| member.link == link && member.session.is_some())
    }

    /// The version of the member's session; before it has begun, the first, in which greetings are as in all others.
    pub(super) fn version_of(&self, slot: u32) -> u16 {
        self.members.get(&slot).map_or(versions::FIRST, |member| member.version)
    }

    /// The versions that the member said it speaks.
    pub(super) fn versions_of(&self, slot: u32) -> Option<Versions> {
        Some(self.members.get(&slot)?.greeting?.versions)
    }

    /// What the member was told that party 1 and party 2 speak, once it has begun its session.
    pub(super) fn told_of(&self, slot: u32) -> Option<[Versions; 2]> {
        self.members.get(&slot)?.told
    }

    /// Members that have said hello, whether or not they have begun a session.
    pub(super) fn greeted(&self) -> impl Iterator<Item = u32> {
        self.members.iter().filter(|(_, member)| member.greeting.is_some()).map(|(slot, _)| *slot)
    }

    /// The member's session, and whether it takes part in Select-Best; `None` before it has begun it.
    pub(super) fn session_of(&self, slot: u32) -> Option<(SessionId, bool)> {
        self.members.get(&slot).and_then(|member| Some((member.session?, member.select_best)))
    }

    /// Members that have begun a session, by slot.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (u32, SessionId, bool)> {
        self.members.iter().filter_map(|(slot, member)| Some((*slot, member.session?, member.select_best)))
    }

    pub(super) fn add_member(&mut self, link: LinkId, slot: u32, now: Instant) {
        self.all.insert(link, PeerId::Member(slot));
        let member = MemberLink {
            link,
            greeting: None,
            session: None,
            select_best: false,
            version: versions::FIRST,
            told: None,
            missed: 0,
            missed_at: None,
            sending: Sending::new(credit::TO_MEMBER, now),
            receiving: Receiving::new(credit::FROM_MEMBER),
            lacks: false,
            owes_set: false,
            has_said: false,
            is_held: false,
            told_lacks: false,
        };
        self.members.insert(slot, member);
    }

    pub(super) fn add_peer(&mut self, link: LinkId, nonce: [u8; 16], now: Instant) {
        self.all.insert(link, PeerId::Party);
        self.heard = now;
        self.peer = Some(PeerParty {
            link,
            is_ready: false,
            hello: None,
            version: versions::FIRST,
            nonce,
            rows: Vec::new(),
            sending: Sending::new(credit::BETWEEN_PARTIES, now),
            receiving: Receiving::new(credit::BETWEEN_PARTIES),
        });
    }

    /// Forgets a link that is down or being closed. `None` if another link has taken its place.
    pub(super) fn remove(&mut self, link: LinkId) -> Option<Unlinked> {
        match self.all.remove(&link)? {
            PeerId::Member(slot) if self.link_of(slot) == Some(link) => {
                let session = self.members.remove(&slot).and_then(|member| member.session);
                Some(Unlinked::Member { slot, session })
            }
            PeerId::Party if self.peer_link() == Some(link) => {
                self.peer = None;
                Some(Unlinked::Peer)
            }
            _ => None,
        }
    }

    pub(super) fn note_departure(&mut self, departure: Departure) {
        self.departures.push(departure);
    }

    /// Links that went since this was last asked.
    pub(super) fn take_departures(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.departures)
    }

    pub(super) fn greet(&mut self, slot: u32, greeting: Greeting) -> bool {
        let Some(member) = self.members.get_mut(&slot) else { return false };
        member.greeting = Some(greeting);
        true
    }

    /// The member has begun its session. Returns the format of objects that its welcome said.
    pub(super) fn begin(&mut self, slot: u32, version: u16, told: [Versions; 2]) -> Option<u16> {
        let member = self.members.get_mut(&slot)?;
        let greeting = member.greeting?;
        (member.session, member.select_best) = (Some(greeting.session), greeting.select_best);
        (member.version, member.told) = (version, Some(told));
        Some(greeting.format)
    }

    /// The member has said what it holds, or that it wants everything.
    pub(super) fn note_said(&mut self, slot: u32) {
        self.members.entry(slot).and_modify(|member| member.has_said = true);
    }

    pub(super) fn has_said(&self, slot: u32) -> bool {
        self.members.get(&slot).is_some_and(|member| member.has_said)
    }
}

// Rankings that a member misses.
impl Links {
    /// Whether the member missed a ranking after `begin`: one of a round that began by then is not waited for, since it is the same lapse.
    pub(super) fn is_late_since(&self, slot: u32, begin: Instant) -> bool {
        self.members.get(&slot).and_then(|member| member.missed_at).is_some_and(|at| begin < at)
    }

    /// The member missed a ranking of a round that began at `begin`. Returns whether that is the same lapse as one before.
    pub(super) fn note_missed(&mut self, slot: u32, begin: Instant, now: Instant) -> bool {
        let is_same = self.is_late_since(slot, begin);
        if let Some(member) = self.members.get_mut(&slot).filter(|_| !is_same) {
            member.missed_at = Some(now);
        }
        is_same
    }

    /// Counts a ranking that is missed in a row with those before. Returns how many these are.
    pub(super) fn count_missed(&mut self, slot: u32) -> u32 {
        let Some(member) = self.members.get_mut(&slot) else { return 0 };
        member.missed += 1;
        member.missed
    }

    pub(super) fn note_in_time(&mut self, slot: u32) {
        self.members.entry(slot).and_modify(|member| member.missed = 0);
    }
}

// The peer party.
impl Links {
    pub(super) fn peer_link(&self) -> Option<LinkId> {
        self.peer.as_ref().map(|peer| peer.link)
    }

    pub(super) fn has_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// Whether the peer party is connected and agrees on what is stored.
    pub(super) fn is_peer_ready(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_ready)
    }

    /// Whether the peer party is connected and does not agree yet.
    pub(super) fn is_peer_unready(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_ready)
    }

    pub(super) fn peer_agrees(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.is_ready = true;
        }
    }

    pub(super) fn peer_nonce(&self) -> Option<[u8; 16]> {
        self.peer.as_ref().map(|peer| peer.nonce)
    }

    pub(super) fn peer_hello(&self) -> Option<&PeerHello> {
        self.peer.as_ref()?.hello.as_ref()
    }

    /// `version`: the one between the parties.
    pub(super) fn set_peer_hello(&mut self, hello: PeerHello, version: u16) {
        if let Some(peer) = &mut self.peer {
            (peer.hello, peer.version) = (Some(hello), version);
        }
    }

    /// The version between the parties; before the hello, the first.
    pub(super) fn peer_version(&self) -> u16 {
        self.peer.as_ref().map_or(versions::FIRST, |peer| peer.version)
    }

    /// Adds rows of the peer party's inventory.
    pub(super) fn add_rows(&mut self, rows: Vec<InventoryRow>) {
        if let Some(peer) = &mut self.peer {
            peer.rows.extend(rows);
        }
    }

    /// How many rows of it have come.
    pub(super) fn rows(&self) -> usize {
        self.peer.as_ref().map_or(0, |peer| peer.rows.len())
    }

    pub(super) fn take_rows(&mut self) -> Vec<InventoryRow> {
        self.peer.as_mut().map(|peer| std::mem::take(&mut peer.rows)).unwrap_or_default()
    }

    pub(super) fn has_peer_credit(&self, octets: u64) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.sending.has_credit(octets))
    }

    pub(super) fn peer_granted(&mut self, limit: u64, now: Instant) -> Result<(), &'static str> {
        self.peer.as_mut().map_or(Ok(()), |peer| peer.sending.granted(limit, now))
    }

    /// The peer party said something, or has something new to answer.
    pub(super) fn note_heard(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn heard(&self) -> Instant {
        self.heard
    }
}

// Sending.
impl Links {
    pub(super) fn send_to_peer(&mut self, env: &mut Env, frame: &PartyFrame) {
        let Some(peer) = &mut self.peer else { return };
        let bytes = frame.encode();
        if !matches!(frame, PartyFrame::Credit { .. }) {
            let cost = credit::cost(bytes.len());
            if !peer.sending.has_credit(cost) {
                self.overrun.insert(None);
                return;
            }
            peer.sending.send(cost, env.now());
            self.stalls_at = self.stalls_at.or(peer.sending.stalls_at());
        }
        env.send(peer.link, bytes);
    }

    /// Sends what the member must get. One that takes up nothing, so that there is no credit even for this, loses its link.
    pub(super) fn send(&mut self, env: &mut Env, slot: u32, frame: &ToMember) {
        if !self.offer(env, slot, frame) && self.session_of(slot).is_some() {
            self.overrun.insert(Some(slot));
        }
    }

    /// Sends a frame if the member is connected and there is credit for it.
    pub(super) fn offer(&mut self, env: &mut Env, slot: u32, frame: &ToMember) -> bool {
        let Some(member) = self.members.get_mut(&slot) else { return false };
        // What was begun for the link before is none of this one's. It gets greetings alone before both ends know the version.
        let is_greeting =
            matches!(frame, ToMember::Welcome { .. } | ToMember::Credit { .. } | ToMember::Rejected { .. });
        if member.session.is_none() && !is_greeting {
            return false;
        }
        let is_tick = matches!(frame, ToMember::Tick(_));
        let frames = in_parts(frame.encode());
        if !matches!(frame, ToMember::Credit { .. }) {
            // Of all parts together: one for which there is credit only in part would keep the member waiting for the rest of it.
            let cost = frames.iter().map(|frame| credit::cost(frame.len())).sum();
            if is_tick && cost > MAX_TICK {
                env.counters.oversized_ticks += 1;
                return false;
            }
            if !member.sending.has_credit(cost) {
                return false;
            }
            member.sending.send(cost, env.now());
            self.stalls_at = self.stalls_at.or(member.sending.stalls_at());
        }
        if member.sending.outstanding() > BEHIND {
            self.strained.insert(slot);
        }
        self.flow_changed.insert(slot);
        for frame in frames {
            env.send(member.link, frame);
        }
        true
    }

    /// Sends a member its tick; `session`: the one that is served. `false` if it is not to have it: it is gone, or has connected again
    /// since the batch was made, or is behind, and is then sent everything again later.
    pub(super) fn send_tick(&mut self, env: &mut Env, slot: u32, session: Option<SessionId>, tick: &ToMember) -> bool {
        let Some(member) = self.members.get(&slot).filter(|member| member.session == session) else { return false };
        if !member.owes_set && !member.lacks && self.offer(env, slot, tick) {
            return true;
        }
        if let Some(member) = self.members.get_mut(&slot).filter(|member| member.session.is_some()) {
            member.lacks = true;
            self.strained.insert(slot);
            self.flow_changed.insert(slot);
        }
        false
    }

    /// Tells a member the epoch and the member set once there is credit for that; no tick goes before.
    pub(super) fn tell_set(&mut self, env: &mut Env, slot: u32, epoch: u64, set: Arc<[u8]>) {
        let sent = self.offer(env, slot, &ToMember::Renew { epoch, set });
        if let Some(member) = self.members.get_mut(&slot) {
            member.owes_set = !sent;
            self.strained.insert(slot);
        }
    }

    /// Whether the member still has to be told the member set.
    pub(super) fn owes_set(&self, slot: u32) -> bool {
        self.members.get(&slot).is_some_and(|member| member.owes_set)
    }

    /// Whether there was no credit for a tick of the member's.
    pub(super) fn lacks(&self, slot: u32) -> bool {
        self.members.get(&slot).is_some_and(|member| member.lacks)
    }

    /// Nobody lacks a tick any more: all are compared anew.
    pub(super) fn forget_lacks(&mut self) {
        self.members.values_mut().for_each(|member| member.lacks = false);
    }

    /// The member gets nothing until it is served again, and then what it lacks.
    pub(super) fn pause(&mut self, slot: u32) {
        if let Some(member) = self.members.get_mut(&slot) {
            member.lacks = false;
            self.flow_changed.insert(slot);
        }
    }

    /// Whether a member takes up what this party sends fast enough to be sent more of everything.
    pub(super) fn is_ready(&self, slot: u32) -> bool {
        self.members.get(&slot).is_some_and(MemberLink::is_ready)
    }

    /// Whether a member takes up so little that this party sends it nothing until it has caught up.
    pub(super) fn is_behind(&self, slot: u32) -> bool {
        self.members.get(&slot).is_some_and(MemberLink::is_behind)
    }

    /// Members that may be behind.
    pub(super) fn strained(&self) -> &BTreeSet<u32> {
        &self.strained
    }

    /// Looks again which of them are.
    pub(super) fn review_strained(&mut self) {
        let Self { strained, members, .. } = self;
        strained.retain(|slot| members.get(slot).is_some_and(MemberLink::is_behind));
    }

    /// What to tell party 1 of members that can get nothing more since this was last asked, and of those that can again: whether they are
    /// held, and whether they lack a tick.
    pub(super) fn take_held(&mut self) -> Vec<(u32, bool, bool)> {
        let mut changed = Vec::new();
        for slot in std::mem::take(&mut self.flow_changed) {
            let Some(member) = self.members.get_mut(&slot) else { continue };
            let is_held = if member.is_held { !member.is_ready() } else { member.is_behind() };
            let told = (std::mem::replace(&mut member.is_held, is_held), member.told_lacks);
            member.told_lacks = member.lacks;
            if told != (is_held, member.lacks) {
                changed.push((slot, is_held, member.lacks));
            }
        }
        changed
    }

    /// Party 1 knows nothing of who can get nothing: it is told anew.
    pub(super) fn forget_held(&mut self) {
        self.members.values_mut().for_each(|member| (member.is_held, member.told_lacks) = (false, false));
        self.flow_changed.extend(self.members.keys());
    }

    pub(super) fn forget_flow(&mut self) {
        self.flow_changed.clear();
    }
}

// Receiving, and what members may cost.
impl Links {
    /// A member grants credit.
    pub(super) fn granted(&mut self, slot: u32, limit: u64, now: Instant) -> Result<(), &'static str> {
        let Some(member) = self.members.get_mut(&slot) else { return Ok(()) };
        member.sending.granted(limit, now)?;
        self.flow_changed.insert(slot);
        Ok(())
    }

    /// Counts a member's frame, and grants as much again.
    pub(super) fn count_from_member(&mut self, env: &mut Env, slot: u32, frame: &[u8]) -> Result<(), &'static str> {
        let Some(member) = self.members.get_mut(&slot) else { return Ok(()) };
        let (now, cost) = (env.now(), credit::cost_from_member(frame));
        let pace = self.paces.entry(slot).or_insert_with(|| Pace::new(now));
        let at = pace.pay(cost.max(FRAME_PACE), credit::is_object(frame), &env.config.budget, now);
        if let Err(what) = member.receiving.received(cost, at) {
            self.overspent.insert(slot, now);
            return Err(what);
        }
        self.grant(env, slot);
        Ok(())
    }

    fn grant(&mut self, env: &mut Env, slot: u32) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        let limit = member.receiving.grant(env.now());
        self.grants.extend(member.receiving.deadline().map(|at| (at, slot)));
        if let Some(limit) = limit {
            self.offer(env, slot, &ToMember::Credit { limit });
        }
    }

    /// Gives members the credit for which their budgets let them wait.
    pub(super) fn grant_due(&mut self, env: &mut Env) {
        while let Some((at, slot)) = self.grants.first().copied()
            && at <= env.now()
        {
            self.grants.remove(&(at, slot));
            self.grant(env, slot);
        }
    }

    /// Counts a frame of the peer party, and grants as much again.
    pub(super) fn count_from_peer(&mut self, env: &mut Env, octets: usize) -> Result<(), &'static str> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        peer.receiving.received(credit::cost(octets), env.now())?;
        if let Some(limit) = peer.receiving.grant(env.now()) {
            self.send_to_peer(env, &PartyFrame::Credit { limit });
        }
        Ok(())
    }

    /// Whether a member has spent more than its budget by now.
    pub(super) fn is_overspent(&self, slot: u32, now: Instant) -> bool {
        self.paces.get(&slot).is_some_and(|pace| pace.is_overspent(now))
    }

    pub(super) fn note_overspent(&mut self, slot: u32, now: Instant) {
        self.overspent.insert(slot, now);
    }

    /// A member sent a frame that breaks the protocol.
    pub(super) fn note_offence(&mut self, slot: u32, now: Instant) {
        self.offended.insert(slot, now);
    }

    /// A member's greeting does not fit, by its configuration or its release.
    pub(super) fn note_unfit(&mut self, slot: u32, why: String, now: Instant) {
        self.unfit.insert(slot, (now, why));
    }

    /// A member's greeting fits.
    pub(super) fn note_fit(&mut self, slot: u32) {
        self.unfit.remove(&slot);
    }

    /// The members whose last greeting did not fit, lately, and why.
    pub(super) fn unfit(&self, now: Instant) -> Vec<UnfitGreeting> {
        let lately = self.unfit.iter().filter(|(_, (at, _))| now.since(*at) < UNFIT_SHOWN);
        lately.map(|(slot, (_, why))| UnfitGreeting { slot: *slot, why: why.clone() }).collect()
    }

    /// Slots of members that lately spent more than their budgets.
    pub(super) fn over_budget(&self, now: Instant) -> Vec<u32> {
        lately(&self.overspent, now)
    }

    /// The members that have lately sent a frame that breaks the protocol.
    pub(super) fn misbehaving(&self, now: Instant) -> Vec<u32> {
        lately(&self.offended, now)
    }

    /// Notes whose link is to be closed since it made no progress.
    pub(super) fn note_stalled(&mut self, now: Instant) {
        if self.stalls_at.is_none_or(|at| now < at) {
            return;
        }
        let members = self.members.iter().map(|(slot, member)| (Some(*slot), &member.sending));
        let all = members.chain(self.peer.as_ref().map(|peer| (None, &peer.sending)));
        let mut next = None;
        for (who, at) in all.filter_map(|(who, sending)| Some((who, sending.stalls_at()?))) {
            if now >= at {
                self.overrun.insert(who);
            } else {
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            }
        }
        self.stalls_at = next;
    }

    /// Who took up nothing of what had to be sent: members by slot, or the peer party.
    pub(super) fn take_overrun(&mut self) -> BTreeSet<Option<u32>> {
        std::mem::take(&mut self.overrun)
    }

    /// When something is due here by the clock alone: who makes no progress, and who gets credit for which it waits.
    pub(super) fn deadlines(&self) -> [Option<Instant>; 2] {
        [self.stalls_at, self.grants.first().map(|(at, _)| *at)]
    }
}

fn lately(when: &BTreeMap<u32, Instant>, now: Instant) -> Vec<u32> {
    let is_late = |at: &Instant| now.since(*at) < OVERSPENT_SHOWN;
    when.iter().filter(|(_, at)| is_late(at)).map(|(slot, _)| *slot).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_that_does_not_fit_shows_from_one_attempt_to_the_next() {
        let at = |seconds| Instant::default() + Duration::from_secs(seconds);
        let mut links = Links::new(at(0));
        let shown =
            |links: &Links, seconds| links.unfit(at(seconds)).into_iter().map(|unfit| unfit.slot).collect::<Vec<_>>();
        links.note_unfit(7, "another exchange".to_owned(), at(0));
        assert_eq!((shown(&links, 179), shown(&links, 180)), (vec![7], vec![]), "the last attempt is long past");
        links.note_unfit(7, "another exchange".to_owned(), at(60));
        assert_eq!(shown(&links, 239), [7]);
        links.note_fit(7);
        assert_eq!(shown(&links, 61), [0; 0]);
    }
}

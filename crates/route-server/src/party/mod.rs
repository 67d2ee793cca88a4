//! One party of the route server: takes objects in, agrees on batches with the other party, delivers, evaluates.
//!
//! Party 1 (the exchange) sequences. A batch goes through these stages: party 1 *proposes* steps that both can take;
//! party 2 applies them, makes them durable and *accepts* with its view; party 1 applies them, compares the view, makes
//! them durable and says *go*; both *deliver* a tick to every member; members *rank*; party 1 names the rankings that
//! both hold and both *evaluate* Select-Best; each sends its share of the result to the member. Nothing is delivered or
//! evaluated before the views were compared.

mod batch;
mod engine;
mod reconcile;
mod round;
mod status;
mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Machine, Now};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::VerifyingKey;

use crate::directory::{MemberSet, SignedMemberSet, keys};
use crate::frames::{Between, FromMember, PART, PROTOCOL, Refusal, SessionId, Step, ToMember};
use crate::object::{Header, Kind, MAX_BLOB};
use crate::rng::Rng;
use crate::table::{Effects, Part, Table};

pub use status::{Counters, PartyEvent, PartyStatus, RouteView};
pub use store::{Change, META, Stored};

use engine::Engine;
use round::Round;

/// Which party.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    /// The exchange; sequences, and gives the recommendation.
    One,
    /// The neutral organisation.
    Two,
}

/// A link, as the driver numbers them; never used twice in one life.
pub type LinkId = u64;
/// Ties a [`PartyOutput::Persist`] to its [`PartyInput::Persisted`].
pub type PersistId = u64;

/// Who is at the other end of a link, by its pinned certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerId {
    /// The member of this slot.
    Member(u32),
    /// The other party.
    Other,
}

/// What a party is told once.
#[derive(Clone, Debug)]
pub struct PartyConfig {
    /// Which party.
    pub number: Number,
    /// The exchange's name; part of everything that is signed.
    pub exchange: String,
    /// The operator's key, which signs member sets.
    pub operator: VerifyingKey,
    /// Interval between batches; zero to take each at once. Party 1's counts.
    pub tick: Duration,
    /// How long the routes of a member that is gone are kept.
    pub stale: Duration,
    /// How long a ranking is awaited beyond the tick.
    pub rank_wait: Duration,
    /// How long an object waits for its other half before its member is asked again.
    pub match_wait: Duration,
}

/// What the world tells a party.
#[derive(Debug)]
pub enum PartyInput {
    /// A link is up, mutually authenticated.
    LinkUp {
        /// Its number.
        link: LinkId,
        /// Who it is.
        peer: PeerId,
    },
    /// A link is down.
    LinkDown {
        /// Its number.
        link: LinkId,
    },
    /// A frame came.
    Frame {
        /// From where.
        link: LinkId,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// What was asked to be durable is.
    Persisted(PersistId),
    /// The operator's new member set (signed bytes). Party 1 puts it into a batch.
    Members(Vec<u8>),
    /// The exchange's recommendation by slot of the announcer, bigger is better. Party 1; a change starts an epoch.
    Recommendation(BTreeMap<u32, u8>),
}

/// What a party wants done.
#[derive(Debug)]
pub enum PartyOutput {
    /// Send a frame.
    Send {
        /// To where.
        link: LinkId,
        /// Its bytes.
        frame: Arc<[u8]>,
    },
    /// Close a link.
    Close {
        /// Which.
        link: LinkId,
        /// Why, for the log.
        reason: String,
    },
    /// Make changes durable, all or none, then say [`PartyInput::Persisted`].
    Persist {
        /// Ties the answer to it.
        id: PersistId,
        /// The changes.
        changes: Vec<Change>,
    },
    /// The member set changed: links are authenticated by it from now on.
    Members(Box<MemberSet>),
    /// Something that an operator may want to know.
    Event(PartyEvent),
}

/// A member's link at this party.
#[derive(Clone, Debug)]
struct MemberLink {
    link: LinkId,
    session: Option<SessionId>,
    select_best: bool,
    missed: u32,
}

/// A member to which both parties deliver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Active {
    session: SessionId,
    select_best: bool,
}

/// An object that waits to be applied.
struct Pending {
    header: Arc<Header>,
    digest: [u8; 32],
    part: Option<Part>,
    column: Option<Arc<[u8]>>,
    since: Instant,
}

/// The link to the other party.
struct Other {
    link: LinkId,
    ready: bool,
    hello: Option<reconcile::OtherHello>,
    nonce: [u8; 16],
    rows: Vec<crate::frames::Stored>,
}

/// Where the current batch stands.
enum Stage {
    Idle,
    /// Party 1 awaits the answer.
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
    /// Rankings are awaited, or the rounds run.
    Round(Box<Round>),
    /// Party 1 or 2 fills the pool.
    Refill,
}

/// One party of the route server.
pub struct Party {
    config: PartyConfig,
    set: MemberSet,
    keys: Vec<Option<VerifyingKey>>,
    set_bytes: Arc<[u8]>,
    epoch: u64,
    seq: u64,
    tick: Duration,
    widths: BTreeMap<u64, u32>,
    table: Table,
    pending: BTreeMap<u32, BTreeMap<u64, Pending>>,
    /// Party 1: the objects of the batch that it proposed; they are applied even if their member goes meanwhile.
    proposed: BTreeMap<(u32, u64), Pending>,
    links: BTreeMap<LinkId, PeerId>,
    members: BTreeMap<u32, MemberLink>,
    active: BTreeMap<u32, Active>,
    other: Option<Other>,
    stage: Stage,
    engine: Option<Engine>,
    recommendation: BTreeMap<u32, u8>,
    next_recommendation: Option<BTreeMap<u32, u8>>,
    counters: Counters,
    rng: Rng,
    output: VecDeque<PartyOutput>,
    next_persist: PersistId,
    // Party 1 alone:
    other_holds: BTreeMap<(u32, u64), ([u8; 32], Instant)>,
    other_joined: BTreeMap<u32, (SessionId, bool)>,
    resync: BTreeSet<u32>,
    absent_since: BTreeMap<u32, Instant>,
    queued: Vec<Step>,
    next_tick: Instant,
    next_sweep: Instant,
    /// From when on the pool may be filled.
    refill_at: Instant,
    /// When the other party was last heard of, or something was last asked of it.
    heard: Instant,
}

/// Objects that one member may have waiting: our own limit.
const MAX_PENDING: usize = 8192;
/// How long the other party may take to answer.
const OTHER_WAIT: Duration = Duration::from_secs(15);
/// How often party 1 looks for what waits too long.
const SWEEP: Duration = Duration::from_millis(250);
/// Rankings that a member may miss in a row before its link is closed.
const MAX_MISSED: u32 = 3;

impl Party {
    /// A party with what its store held, a member set, and fresh randomness.
    pub fn new(
        config: PartyConfig,
        seed: &Seed,
        members: &[u8],
        stored: Vec<Stored>,
        now: Now,
    ) -> Result<Self, StartError> {
        let signed = SignedMemberSet::decode(members).map_err(|_| StartError::Members)?;
        let set = signed.verify(&config.operator).map_err(|_| StartError::Operator)?.clone();
        if set.exchange != config.exchange {
            return Err(StartError::Exchange(set.exchange));
        }
        let loaded = store::load(config.number, &config.exchange, stored).map_err(|_| StartError::Store)?;
        let mut party = Self {
            tick: config.tick,
            widths: BTreeMap::from([(set.number, width(&set))]),
            keys: keys(&set),
            set,
            set_bytes: members.into(),
            epoch: loaded.epoch.max(1),
            seq: loaded.seq.max(now.unix.0),
            table: loaded.table,
            pending: BTreeMap::new(),
            proposed: BTreeMap::new(),
            links: BTreeMap::new(),
            members: BTreeMap::new(),
            active: BTreeMap::new(),
            other: None,
            stage: Stage::Idle,
            engine: None,
            recommendation: BTreeMap::new(),
            next_recommendation: None,
            counters: Counters::default(),
            rng: Rng::new(seed),
            output: VecDeque::new(),
            next_persist: 0,
            other_holds: BTreeMap::new(),
            other_joined: BTreeMap::new(),
            resync: BTreeSet::new(),
            absent_since: BTreeMap::new(),
            queued: Vec::new(),
            next_tick: now.instant,
            next_sweep: now.instant,
            refill_at: now.instant,
            heard: now.instant,
            config,
        };
        party.expire_leavers();
        let slots: BTreeSet<u32> = party.table.entries().map(|e| e.header.description.slot).collect();
        party.absent_since = slots.into_iter().map(|slot| (slot, now.instant)).collect();
        party.output.push_back(PartyOutput::Members(Box::new(party.set.clone())));
        Ok(party)
    }

    /// Routes of members that left while this party was down die at its start.
    fn expire_leavers(&mut self) {
        let mut effects = Effects::default();
        for (slot, _) in self.set.iter().filter(|(_, slot)| !slot.active) {
            self.table.expire(slot, &mut effects);
        }
        if !effects.removed.is_empty() {
            self.persist(store::changes(&self.table, &effects, self.epoch, self.seq));
        }
    }

    fn is_one(&self) -> bool {
        self.config.number == Number::One
    }

    fn event(&mut self, event: PartyEvent) {
        self.output.push_back(PartyOutput::Event(event));
    }

    fn send(&mut self, link: LinkId, frame: Vec<u8>) {
        self.counters.bytes_sent += frame.len() as u64;
        self.output.push_back(PartyOutput::Send { link, frame: frame.into() });
    }

    fn close(&mut self, link: LinkId, reason: impl Into<String>) {
        self.output.push_back(PartyOutput::Close { link, reason: reason.into() });
        self.unlink(link);
    }

    fn tell_other(&mut self, frame: &Between) {
        if let Some(other) = &self.other {
            let link = other.link;
            self.send(link, frame.encode());
        }
    }

    fn tell_member(&mut self, slot: u32, frame: &ToMember) {
        let Some(link) = self.members.get(&slot).map(|member| member.link) else { return };
        let bytes = frame.encode();
        if bytes.len() <= PART {
            self.send(link, bytes);
            return;
        }
        let parts = bytes.len().div_ceil(PART);
        for (i, part) in bytes.chunks(PART).enumerate() {
            self.send(link, ToMember::Part { last: i + 1 == parts, bytes: part.to_vec() }.encode());
        }
    }

    fn other_ready(&self) -> bool {
        self.other.as_ref().is_some_and(|other| other.ready)
    }

    fn link_up(&mut self, link: LinkId, peer: PeerId) {
        self.links.insert(link, peer);
        match peer {
            PeerId::Member(slot) => {
                if let Some(old) = self.members.get(&slot).map(|m| m.link) {
                    self.close(old, "the member connected again");
                }
                self.members.insert(slot, MemberLink { link, session: None, select_best: false, missed: 0 });
            }
            PeerId::Other => {
                if let Some(old) = self.other.as_ref().map(|o| o.link) {
                    self.close(old, "the other party connected again");
                }
                let nonce = self.rng.bytes();
                self.other = Some(Other { link, ready: false, hello: None, nonce, rows: Vec::new() });
                self.greet_other();
            }
        }
    }

    /// Forgets a link that is down or being closed.
    fn unlink(&mut self, link: LinkId) {
        match self.links.remove(&link) {
            Some(PeerId::Member(slot)) if self.members.get(&slot).is_some_and(|m| m.link == link) => {
                self.member_gone(slot);
            }
            Some(PeerId::Other) if self.other.as_ref().is_some_and(|o| o.link == link) => self.other_gone(),
            _ => {}
        }
    }

    fn member_gone(&mut self, slot: u32) {
        let Some(member) = self.members.remove(&slot) else { return };
        self.pending.remove(&slot);
        let Some(session) = member.session else { return };
        if self.is_one() {
            self.queue_gone(slot);
        } else {
            self.tell_other(&Between::Left { slot, session });
        }
    }

    fn queue_gone(&mut self, slot: u32) {
        let joins = |step: &Step| matches!(step, Step::Sync { slot: joining, .. } if *joining == slot);
        let is_joining = matches!(&self.stage, Stage::Proposed { steps, .. } if steps.iter().any(joins));
        let is_active = is_joining || self.active.contains_key(&slot);
        if is_active && !self.queued.contains(&Step::Gone { slot }) {
            self.queued.push(Step::Gone { slot });
        }
    }

    fn other_gone(&mut self) {
        self.other = None;
        self.engine = None;
        if let Stage::Proposed { steps, .. } = std::mem::replace(&mut self.stage, Stage::Idle) {
            self.queued.extend(steps);
        }
        self.take_back_proposed();
        self.other_holds.clear();
        self.other_joined.clear();
        self.active.clear();
        // What comes from the operator stays to be done; all else is asked for again.
        self.queued.retain(|step| matches!(step, Step::Set { .. } | Step::Epoch { .. }));
        self.event(PartyEvent::OtherGone);
    }

    fn frame(&mut self, link: LinkId, bytes: &[u8], now: Now) {
        self.counters.bytes_received += bytes.len() as u64;
        match self.links.get(&link) {
            None => {}
            Some(PeerId::Member(slot)) => {
                let slot = *slot;
                match FromMember::decode(bytes) {
                    Ok(frame) => self.member_says(slot, link, frame, now),
                    Err(error) => self.bad_frame(Some(slot), link, error.to_string()),
                }
            }
            Some(PeerId::Other) => match Between::decode(bytes) {
                Ok(frame) => self.other_says(frame, now),
                Err(error) => self.bad_frame(None, link, error.to_string()),
            },
        }
    }

    /// A frame that cannot be: its sender erred, and its link is closed.
    fn bad_frame(&mut self, slot: Option<u32>, link: LinkId, what: String) {
        self.counters.bad_frames += 1;
        self.event(PartyEvent::BadFrame { slot, what: what.clone() });
        self.close(link, what);
    }

    fn member_says(&mut self, slot: u32, link: LinkId, frame: FromMember, now: Now) {
        let greeted = self.members.get(&slot).is_some_and(|m| m.link == link && m.session.is_some());
        match frame {
            FromMember::Hello { .. } if greeted => {
                self.bad_frame(Some(slot), link, "a second hello".to_owned());
            }
            FromMember::Hello { protocol, exchange, slot: claimed, session, select_best } => {
                if protocol != PROTOCOL || exchange != self.config.exchange || claimed != slot {
                    self.bad_frame(Some(slot), link, "hello for another protocol, exchange or slot".to_owned());
                } else {
                    self.greet_member(slot, session, select_best);
                }
            }
            _ if !greeted => self.bad_frame(Some(slot), link, "a frame before hello".to_owned()),
            FromMember::SubmitOne { header, body } if self.is_one() => {
                let part = body.map(|(share, blob)| Part::One { share, blob });
                self.submitted(slot, Arc::new(*header), part, None, now);
            }
            FromMember::SubmitTwo { header, share } if !self.is_one() => {
                let header = Arc::new(*header);
                if share.as_ref().is_some_and(|share| !share.matches(&header)) {
                    self.refuse(slot, header.description.version, Refusal::Proof);
                    return;
                }
                let is_column = matches!(header.description.kind, Kind::Column { .. });
                let (part, column) = match share {
                    Some(share) if is_column => (None, Some(share.row)),
                    Some(share) => (Some(Part::Two { row: share.row.to_vec() }), None),
                    None => (None, None),
                };
                self.submitted(slot, header, part, column, now);
            }
            FromMember::RankOne { seq, row, seed } if self.is_one() => {
                self.ranked(slot, seq, row, round::RankShare::Seed(seed), now);
            }
            FromMember::RankTwo { seq, row, share } if !self.is_one() => {
                self.ranked(slot, seq, row, round::RankShare::Bytes(share), now);
            }
            FromMember::Resync => {
                if self.is_one() {
                    self.resync.insert(slot);
                }
            }
            _ => self.bad_frame(Some(slot), link, "a frame meant for the other party".to_owned()),
        }
        self.advance(now);
    }

    fn greet_member(&mut self, slot: u32, session: SessionId, select_best: bool) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        member.session = Some(session);
        member.select_best = select_best;
        let welcome = ToMember::Welcome {
            protocol: PROTOCOL,
            session,
            epoch: self.epoch,
            high_water: self.table.high_water(slot),
            tick_ms: u32::try_from(self.tick.as_millis()).unwrap_or(u32::MAX),
            set: Arc::clone(&self.set_bytes),
        };
        self.tell_member(slot, &welcome);
        if !self.is_one() {
            self.tell_other(&Between::Joined { slot, session, select_best });
        }
    }

    fn refuse(&mut self, slot: u32, version: u64, reason: Refusal) {
        self.counters.refused += 1;
        self.event(PartyEvent::Refused { slot, version, reason });
        self.tell_member(slot, &ToMember::Refused { version, reason });
    }

    /// Checks an object as far as one party can, and lets it wait for its other half.
    fn submitted(&mut self, slot: u32, header: Arc<Header>, part: Option<Part>, column: Option<Arc<[u8]>>, now: Now) {
        let version = header.description.version;
        if let Err(reason) = self.check(slot, &header, part.as_ref(), column.as_deref()) {
            self.refuse(slot, version, reason);
            return;
        }
        self.table.saw(slot, version);
        self.counters.objects += 1;
        let digest = header.digest(&self.config.exchange);
        let object = Pending { header, digest, part, column, since: now.instant };
        self.pending.entry(slot).or_default().insert(version, object);
        if !self.is_one() {
            self.tell_other(&Between::Holding { objects: vec![(slot, version, digest)] });
        }
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
        if description.epoch != self.epoch {
            return Err(Refusal::Epoch);
        }
        if description.set != self.set.number {
            return Err(Refusal::Set);
        }
        if self.pending.get(&slot).is_some_and(|waiting| waiting.len() >= MAX_PENDING) {
            return Err(Refusal::Busy);
        }
        let width = width(&self.set);
        match (&description.kind, part) {
            (Kind::Announce { .. }, Some(part)) => match part {
                Part::One { share, blob } => {
                    if blob.len() > MAX_BLOB || !blob.len().is_power_of_two() || blob.len() < 512 {
                        return Err(Refusal::Size);
                    }
                    if !share.matches(header) || crate::object::blob_hash(blob) != header.blob_hash {
                        return Err(Refusal::Proof);
                    }
                }
                Part::Two { row } if row.len() != width as usize * 16 => return Err(Refusal::Size),
                Part::Two { .. } => {}
            },
            (Kind::Withdraw { .. }, None) if column.is_none() => {}
            (Kind::Column { from, to, versions }, None) => {
                let expected = versions.len() * (to - from) as usize * 16;
                let fits = match column {
                    Some(row) => !self.is_one() && row.len() == expected,
                    None => self.is_one(),
                };
                if !fits || *to != width {
                    return Err(Refusal::Size);
                }
            }
            _ => return Err(Refusal::Size),
        }
        let key = self.keys.get(slot as usize).and_then(Option::as_ref).ok_or(Refusal::Proof)?;
        if header.is_signed_by(&self.config.exchange, key) { Ok(()) } else { Err(Refusal::Proof) }
    }

    /// Whether this party can go on only when the other party says something.
    fn waits_for_other(&self) -> bool {
        match &self.stage {
            Stage::Idle | Stage::Persisting { .. } => self.other.as_ref().is_some_and(|other| !other.ready),
            Stage::Proposed { .. } | Stage::Accepted { .. } | Stage::Refill => true,
            // Party 1 waits for members first; party 2 for party 1 to start the evaluation.
            Stage::Round(round) => round.is_running() || !self.is_one(),
        }
    }

    /// How long the other party may take to answer; party 1 may itself be waiting for members.
    fn other_wait(&self) -> Duration {
        OTHER_WAIT + self.tick + self.config.rank_wait
    }

    /// The other party stopped in the middle: its link is closed, and all that was begun with it is dropped.
    fn drop_silent_other(&mut self, now: Now) {
        let Some(link) = self.other.as_ref().map(|other| other.link) else { return };
        if self.waits_for_other() && now.instant.since(self.heard) >= self.other_wait() {
            self.event(PartyEvent::Engine { what: "the other party does not answer".to_owned() });
            self.close(link, "the other party does not answer");
        }
    }

    fn other_says(&mut self, frame: Between, now: Now) {
        self.heard = now.instant;
        if let Err(what) = self.take_from_other(frame, now) {
            self.counters.bad_frames += 1;
            self.event(PartyEvent::BadFrame { slot: None, what: what.to_owned() });
            if let Some(link) = self.other.as_ref().map(|o| o.link) {
                self.close(link, what);
            }
        }
        self.advance(now);
    }

    /// `Err` says how the other party erred.
    fn take_from_other(&mut self, frame: Between, now: Now) -> Result<(), &'static str> {
        let ready = self.other_ready();
        match (self.config.number, frame) {
            (_, Between::Hello { protocol, exchange, party, nonce, epoch, seq, set, tick_ms }) => {
                if seq > u64::MAX / 2 {
                    return Err("a batch number that leaves no room for more");
                }
                self.seq = self.seq.max(seq);
                let hello = reconcile::OtherHello { protocol, exchange, party, nonce, epoch, set, tick_ms };
                self.other_hello(hello)
            }
            (Number::One, Between::Inventory { rows, high_water, more }) => {
                self.other_inventory(rows, &high_water, more, now)
            }
            (Number::Two, Between::Reconciled { epoch, set, drop, differ, high_water, view }) => {
                self.reconciled(epoch, &set, &drop, &differ, &high_water, view)
            }
            _ if !ready => Err("a frame before the inventories were compared"),
            (Number::One, Between::Holding { objects }) => {
                for (slot, version, digest) in objects {
                    self.other_holds.insert((slot, version), (digest, now.instant));
                }
                Ok(())
            }
            (Number::One, Between::Joined { slot, session, select_best }) => {
                self.other_joined.insert(slot, (session, select_best));
                Ok(())
            }
            (Number::One, Between::Left { slot, session }) => {
                if self.other_joined.get(&slot).is_some_and(|(s, _)| *s == session) {
                    self.other_joined.remove(&slot);
                    self.other_holds.retain(|(s, _), _| *s != slot);
                    self.queue_gone(slot);
                }
                Ok(())
            }
            (Number::One, Between::Accept { seq, view }) => self.accepted(seq, view, now),
            (Number::One, Between::Reject { seq, missing }) => self.rejected(seq, &missing),
            (Number::One, Between::Ranked { seq, slot, row }) => {
                self.other_ranked(seq, slot, row);
                Ok(())
            }
            (Number::Two, Between::Propose { seq, steps }) => self.proposed(seq, steps, now),
            (Number::Two, Between::Go { seq }) => self.go(seq, now),
            (Number::Two, Between::Evaluate { seq, rows }) => self.evaluate_told(seq, rows),
            (Number::Two, Between::Refill { demand }) => self.refill_told(&demand),
            (Number::Two, Between::Drop { objects }) => {
                for (slot, version) in objects {
                    if self.take_pending(slot, version).is_some() {
                        self.refuse(slot, version, Refusal::Mismatch);
                    }
                }
                Ok(())
            }
            (_, Between::Engine { step, bytes }) => self.engine_frame(step, bytes),
            _ => Err("a frame that only the other party may get"),
        }
    }

    /// A proposed batch came to nothing: its objects wait again, if their members are still there.
    fn take_back_proposed(&mut self) {
        for ((slot, version), object) in std::mem::take(&mut self.proposed) {
            if self.members.contains_key(&slot) {
                self.pending.entry(slot).or_default().insert(version, object);
            }
        }
    }

    fn take_pending(&mut self, slot: u32, version: u64) -> Option<Pending> {
        if let Some(object) = self.proposed.remove(&(slot, version)) {
            return Some(object);
        }
        let of_slot = self.pending.get_mut(&slot)?;
        let object = of_slot.remove(&version);
        if of_slot.is_empty() {
            self.pending.remove(&slot);
        }
        object
    }

    /// Takes a new member set from the operator.
    fn members_given(&mut self, bytes: &[u8]) {
        let checked = SignedMemberSet::open(bytes, &self.config.operator);
        if checked.as_ref() == Some(&self.set) {
            return; // what is in force already
        }
        if checked.is_none_or(|set| set.may_follow(&self.set).is_err()) {
            self.event(PartyEvent::MembersRefused);
        } else if self.is_one() {
            self.queued.retain(|step| !matches!(step, Step::Set { .. }));
            self.queued.push(Step::Set { set: bytes.into() });
        }
    }

    fn recommendation_given(&mut self, recommendation: BTreeMap<u32, u8>) {
        if !self.is_one() || recommendation == *self.next_recommendation.as_ref().unwrap_or(&self.recommendation) {
            return;
        }
        if self.recommendation.is_empty() && self.table.is_empty() {
            self.recommendation = recommendation;
            return;
        }
        // Fixed for an epoch: it counts from the batch that starts the next one.
        self.next_recommendation = Some(recommendation);
        if !self.queued.iter().any(|s| matches!(s, Step::Epoch { .. })) {
            self.queued.push(Step::Epoch { epoch: self.epoch.saturating_add(1) });
        }
    }

    /// Does what can be done now.
    fn advance(&mut self, now: Now) {
        if self.is_one() {
            self.propose(now);
        }
        self.run_round(now);
    }
}

/// Slots of a set.
fn width(set: &MemberSet) -> u32 {
    u32::try_from(set.slots.len()).expect("the directory bounds the slots of a set")
}

/// Why a party cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The member set is malformed.
    #[error("the member set is not one (was it signed with `wayleave members`?)")]
    Members,
    /// The member set is not signed by the operator.
    #[error("the member set is not signed by the operator's key of this configuration")]
    Operator,
    /// The member set is another exchange's.
    #[error("the member set is for the exchange `{0}`, not for this one")]
    Exchange(String),
    /// The store holds what this version did not write.
    #[error(
        "the store holds something that this party did not write; move it away and start again: members refresh what is lost"
    )]
    Store,
}

impl Machine for Party {
    type Input = PartyInput;
    type Output = PartyOutput;

    fn handle(&mut self, input: PartyInput, now: Now) {
        match input {
            PartyInput::LinkUp { link, peer } => {
                if peer == PeerId::Other {
                    self.heard = now.instant;
                }
                self.link_up(link, peer);
            }
            PartyInput::LinkDown { link } => self.unlink(link),
            PartyInput::Frame { link, bytes } => self.frame(link, &bytes, now),
            PartyInput::Persisted(id) => self.persisted(id, now),
            PartyInput::Members(bytes) => self.members_given(&bytes),
            PartyInput::Recommendation(by_slot) => self.recommendation_given(by_slot),
        }
        self.advance(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.drop_silent_other(now);
        if self.is_one() && now.instant >= self.next_sweep {
            self.next_sweep = now.instant + SWEEP;
            self.expire_unmatched(now);
            self.expire_absent(now);
        }
        self.advance(now);
    }

    fn poll(&mut self) -> Option<PartyOutput> {
        self.output.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let round = match &self.stage {
            Stage::Round(round) if self.is_one() => round.deadline(),
            _ => None,
        };
        let tick = (self.is_one() && matches!(self.stage, Stage::Idle) && self.has_work()).then_some(self.next_tick);
        let unmatched = !(self.pending.is_empty() && self.other_holds.is_empty());
        // Nothing is to be swept for an absent member before its routes die: that may be hours.
        let absent = self.absent_since.iter().filter(|(slot, _)| !self.active.contains_key(slot));
        let dies = absent.map(|(_, since)| self.next_sweep.max(*since + self.config.stale)).min();
        let swept = if unmatched { Some(self.next_sweep) } else { dies };
        let sweep = swept.filter(|_| self.is_one() && self.other_ready());
        let silent = (self.other.is_some() && self.waits_for_other()).then(|| self.heard + self.other_wait());
        [round, tick, sweep, silent, self.refill_deadline()].into_iter().flatten().min()
    }
}

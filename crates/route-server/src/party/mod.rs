//! One party of the route server: takes objects in, agrees on batches with the peer party, delivers, evaluates.
//!
//! Party 1 (the exchange) sequences. A batch goes through these stages: party 1 *proposes* steps that both can take;
//! party 2 applies them, makes them durable and *accepts* with its view; party 1 applies them, compares the view, makes
//! them durable and says *go*; both *deliver* a tick to every member; members *rank*; party 1 names the rankings that
//! both hold and both *evaluate* Select-Best; each sends its share of the result to the member. Nothing is delivered or
//! evaluated before the views were compared.
//!
//! Ranking and evaluating goes on beside the batches that come after (`round`).
//!
//! What both parties do alike is in `State` (`state`), whose five owners each have a page of reasons at their heads; what only party 1
//! does is in `Sequencer`, what only party 2 does in `Follower`. Both are told of events through the trait `Role` (`role`), which is
//! not a role of `wayleave run`.

mod admission;
mod allowance;
mod batch;
mod batches;
mod budget;
mod compare;
mod deliveries;
mod delivery;
mod engine;
mod env;
mod evaluation;
mod export;
mod follower;
mod formats;
mod lack;
mod late;
mod late_order;
mod links;
mod membership;
mod objects;
mod order;
mod probation;
mod recent;
mod reconcile;
mod relist;
mod role;
mod round;
mod rounds;
mod sequencer;
mod state;
mod status;
mod store;
mod supply;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Machine, Now};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::VerifyingKey;

use crate::directory::{ChainError, Directory, MemberSet, Succession, Trust};
use crate::frames::{FromMember, PartyFrame, Refusal, Rejection, ToMember};
use crate::key_roles::{KeyRole, KeyRoles, SharedKey};
use crate::object::{ExportMode, Kind};
use crate::object_table::Part;
use crate::rng::Rng;
use crate::versions::{self, Speaks};

pub(crate) use budget::octets_stored;
pub use budget::{Budget, MAX_WAITING};
pub use status::{Counters, MemberBudget, MemberSpeaks, OlderStore, PartyEvent, PartyStatus, RouteView, UnfitGreeting};
pub(crate) use store::format_of;
pub use store::{Change, META, StoredRecord, TABLES, stored_order};
pub use supply::{SetupDone, SetupJob};

use allowance::Allowance;
use batches::Batches;
use compare::{HeldDigests, Holding};
use engine::Engine;
use env::Env;
use follower::Follower;
use formats::Formats;
use lack::{Half, Named};
use links::{Greeting, Links};
use membership::Membership;
use objects::Objects;
use order::Order;
use role::{Role, RoleEvent};
use rounds::Rounds;
use sequencer::Sequencer;
use state::State;

/// How far the wall clock may move against the monotonic one between two inputs: our own limit. More is a process that was
/// resumed from a snapshot, or a clock that was set.
const CLOCK_JUMP: Duration = Duration::from_secs(10);

/// Which party.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PartyNumber {
    /// The exchange; sequences, and gives the recommendation.
    One,
    /// The neutral organisation.
    Two,
}

impl PartyNumber {
    /// The number of the peer party.
    fn peer(self) -> u8 {
        3 - u8::from(self)
    }
}

impl From<PartyNumber> for u8 {
    fn from(number: PartyNumber) -> Self {
        match number {
            PartyNumber::One => 1,
            PartyNumber::Two => 2,
        }
    }
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
    /// The peer party.
    Party,
}

/// A party's configuration.
#[derive(Clone, Debug)]
pub struct PartyConfig {
    pub number: PartyNumber,
    /// The exchange's name; part of everything that is signed.
    pub exchange: String,
    /// The keys of party 1's and party 2's operators, who both sign member sets.
    pub operators: [VerifyingKey; 2],
    /// The keys that the member set must not contain: the parties' and the operators'.
    pub keys: Vec<(KeyRole, [u8; 32])>,
    /// Interval between batches; zero to take each at once. Party 1's counts.
    pub tick: Duration,
    /// How long the routes of a member that is gone are kept.
    pub stale: Duration,
    /// How long a ranking is taken after the tick.
    pub rank_wait: Duration,
    /// How much later than by the schedule rankings may come, at party 1, before a round begins without them. `None`: as members' links
    /// answer, at most a tenth of the usual round.
    pub rank_allowance: Option<Duration>,
    /// How long an object waits for its other half before it is requested from its member again.
    pub match_wait: Duration,
    /// Who multiplies policies and keys; the peer party must have the same.
    pub export: ExportMode,
    /// The number of the order of candidates; the peer party must have the same. Where both change it, the key of the order is drawn anew.
    pub order: u32,
    /// Octets of the largest blob that this party's operator agrees to. Party 1 takes no larger one than both agree to.
    pub max_blob: u32,
    /// Prefixes that this party's operator lets the member set give one member, at most. Party 1 takes no more from a member, whatever
    /// the set says.
    pub max_prefix_limit: u32,
    /// Octets of objects of all members together that may wait to be applied.
    pub max_waiting: usize,
    /// What each member may cost this party.
    pub budget: Budget,
    /// How long a recommendation counts at least, at party 1.
    pub epoch: Duration,
    /// What it speaks.
    pub speaks: Speaks,
}

/// What a driver gives a party.
#[derive(Debug)]
pub enum PartyInput {
    /// A mutually authenticated link is up.
    LinkUp {
        link: LinkId,
        peer: PeerId,
        /// Keying material of its TLS session, which both ends export alike and nobody else knows.
        exporter: Seed,
    },
    LinkDown {
        link: LinkId,
    },
    Frame {
        link: LinkId,
        bytes: Vec<u8>,
    },
    /// The changes of [`PartyOutput::Persist`] are durable.
    Persisted(PersistId),
    /// A newer directory of this party's operator. It takes effect with a batch, which party 1 makes.
    Members(Vec<u8>),
    /// The keys of parties and operators, after the configuration changed ([`PartyConfig::keys`]).
    Keys(Vec<(KeyRole, [u8; 32])>),
    /// The exchange's recommendation by slot of the announcer, bigger is better. Party 1; a change starts an epoch.
    Recommendation(BTreeMap<u32, u8>),
    /// The job of [`PartyOutput::Setup`] is done.
    SetupDone(SetupDone),
}

/// What a party asks its driver to do.
#[derive(Debug)]
pub enum PartyOutput {
    Send {
        link: LinkId,
        frame: Vec<u8>,
    },
    /// Close a link; `reason` is for the log.
    Close {
        link: LinkId,
        reason: String,
    },
    /// Make changes durable, all or none, then give [`PartyInput::Persisted`].
    Persist {
        id: PersistId,
        changes: Vec<Change>,
    },
    /// Run the job on a thread of its own, then give [`PartyInput::SetupDone`]. The next one comes after that.
    Setup(SetupJob),
    /// The member set changed: links are authenticated by it from now on.
    Members(Box<MemberSet>),
    Event(PartyEvent),
}

/// One party of the route server.
pub struct Party {
    state: State,
    role: Box<dyn Role>,
}

impl Party {
    /// A party with what its store held, a member set, and fresh randomness.
    pub fn new(
        config: PartyConfig,
        seed: &Seed,
        members: &[u8],
        stored: Vec<StoredRecord>,
        now: Now,
    ) -> Result<Self, StartError> {
        let loaded = store::load((config.number, config.export, config.order), (&config.exchange, now.unix), stored)?;
        let (directory, older) = in_force(&config, members, loaded.set.as_deref())?;
        key_roles(&config, &directory)?;
        let (seq, tick) = (loaded.seq.max(now.unix.0), config.tick);
        let speaks = config.speaks;
        let formats = Formats::new(speaks.formats, loaded.formats, directory.set());
        let mut state = State {
            formats,
            membership: Membership::new(directory, loaded.set.as_deref(), loaded.epoch.max(1)),
            links: Links::new(now.instant),
            objects: Objects::new(loaded.table, loaded.replaced, loaded.store),
            order: Order::new(loaded.order),
            rounds: Rounds::new(now.instant),
            batches: Batches::new(seq, tick),
            env: Env::new(config, Rng::new(seed), now),
            changes: true,
        };
        // One write, before any other: a store is of one format, and its objects are of one mode.
        let objects = loaded.objects_outdated;
        if !(loaded.migrated.is_empty() && loaded.outdated.is_empty()) {
            state.persist([loaded.migrated, loaded.outdated].concat());
        }
        if objects > 0 {
            state.event(PartyEvent::OtherExport { objects });
        }
        state.end_leavers();
        if !state.membership.is_stored() {
            state.persist(Vec::new());
        }
        let set = state.membership.set().clone();
        if let Some(shown) = older {
            state.event(PartyEvent::MembersRefused { why: older_than(shown, set.number) });
        }
        state.env.emit(PartyOutput::Members(Box::new(set)));
        let role: Box<dyn Role> = match state.env.config.number {
            PartyNumber::One => {
                let allowance =
                    Allowance::new(state.env.config.rank_allowance, state.env.config.rank_wait, now.instant);
                Box::new(Sequencer::new(state.objects.announcers(), allowance, now))
            }
            PartyNumber::Two => Box::new(Follower::default()),
        };
        Ok(Self { state, role })
    }

    /// Whether everything that was given to this party has had its effect.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.state.batches.is_idle()
            && self.state.rounds.is_empty()
            && self.state.peer_ready()
            && self.state.objects.pending().is_empty()
            && self.role.is_at_rest(&self.state)
    }

    /// Whether the pool of correlations holds what it should, and is not being filled.
    #[must_use]
    pub fn is_stocked(&self) -> bool {
        self.role.is_stocked(&self.state) && !self.state.rounds.engine().is_some_and(Engine::is_supplying)
    }

    /// Takes fresh entropy of the system, before every input and timeout: what a copy of this process makes from then on
    /// differs from what this one makes.
    pub fn reseed(&mut self, fresh: &Seed) {
        self.state.env.rng.reseed(fresh);
    }

    /// Tells the role of something for which nobody can have erred.
    fn tell(&mut self, event: RoleEvent) {
        let erred = self.role.on(&mut self.state, event);
        debug_assert_eq!(erred, Ok(()), "only frames of others can be wrong");
    }

    fn link_up(&mut self, link: LinkId, peer: PeerId, exporter: &Seed) {
        if peer == PeerId::Party {
            // What was begun with the peer party before has ended, whether or not the driver said so.
            self.state.close_peer("the peer party connected again");
            self.settle_departures();
            self.tell(RoleEvent::PeerLinked);
        }
        self.state.link_up(link, peer, exporter);
    }

    fn frame(&mut self, link: LinkId, bytes: &[u8]) {
        let state = &mut self.state;
        state.env.counters.bytes_received += bytes.len() as u64;
        match state.links.peer_of(link) {
            None => {}
            Some(PeerId::Member(slot)) => match FromMember::decode_in(state.links.version_of(slot), bytes) {
                // A grant is not counted, here as at its sender: otherwise two ends without credit could never grant any.
                Ok(FromMember::Credit { limit }) => state.member_granted(slot, link, limit),
                frame => match (state.links.count_from_member(&mut state.env, slot, bytes), frame) {
                    (Err(what), _) => state.bad_frame(Some(slot), link, what.to_owned()),
                    (Ok(()), _) if state.shares_no_version(slot, link, bytes) => {}
                    (Ok(()), Ok(frame)) => self.member_frame(slot, link, frame),
                    (Ok(()), Err(error)) => state.bad_frame(Some(slot), link, malformed(bytes, error)),
                },
            },
            Some(PeerId::Party) => match PartyFrame::decode_in(state.links.peer_version(), bytes) {
                _ if let Some(what) = state.shares_no_version_with_peer(bytes) => state.bad_frame(None, link, what),
                Ok(frame) => {
                    let counted = match &frame {
                        PartyFrame::Credit { .. } => Ok(()),
                        _ => state.links.count_from_peer(&mut state.env, bytes.len()),
                    };
                    match counted {
                        Ok(()) => self.peer_frame(frame),
                        Err(what) => state.bad_frame(None, link, what.to_owned()),
                    }
                }
                Err(error) => state.bad_frame(None, link, malformed(bytes, error)),
            },
        }
    }

    fn member_frame(&mut self, slot: u32, link: LinkId, frame: FromMember) {
        let state = &mut self.state;
        let greeting = state.links.greeting_of(slot, link);
        let has_begun = state.links.has_begun(slot, link);
        match (state.env.config.number, frame) {
            (_, FromMember::Hello { .. }) if greeting.is_some() => {
                state.bad_frame(Some(slot), link, "a second hello".to_owned());
            }
            (_, FromMember::Hello { versions, exchange, slot: claimed, session, select_best, formats, later: _ }) => {
                let rejected = if exchange != state.env.config.exchange {
                    let ours = state.env.config.exchange.clone();
                    let what = "its configuration names another exchange".to_owned();
                    Some((Rejection::Exchange { ours }, what))
                } else if claimed != slot {
                    let what = format!("its configuration says slot {claimed}, and its key is of slot {slot}");
                    Some((Rejection::Slot { proved: slot }, what))
                } else {
                    None
                };
                match rejected {
                    Some((why, what)) => {
                        // Only its operator can help, who learns nothing from a link that just ends.
                        state.send_to_member(slot, &ToMember::Rejected { why });
                        state.unfit_greeting(slot, link, what);
                    }
                    // Its link came up while a batch removed it.
                    None if state.membership.set().active(slot).is_none() => {
                        let by = state.membership.directory().removals().find(|removal| removal.slot == slot);
                        let (set, by) = (state.membership.set().number, by.map_or(0, |removal| removal.party));
                        state.send_to_member(slot, &ToMember::Rejected { why: Rejection::Removed { slot, set, by } });
                        state.close(link, "the member has left the exchange");
                    }
                    None if !state.hear_formats(slot, formats) => {
                        let ours = state.formats.highest();
                        state.send_to_member(slot, &ToMember::Rejected { why: Rejection::Format { ours } });
                        state.close(link, "it reads no format of objects in which other members announce");
                    }
                    None => {
                        let budget = self.role.budget_of(state, slot).unwrap_or_default();
                        let format = state.formats.highest();
                        state.links.note_fit(slot);
                        state.welcome(slot, Greeting { session, select_best, versions, format }, budget);
                    }
                }
            }
            (number, FromMember::Begin { version, told }) if let Some(greeting) = greeting.filter(|_| !has_begun) => {
                let own = told[usize::from(number == PartyNumber::Two)];
                if own != state.env.config.speaks.versions {
                    let what = format!("it says that this party speaks version {own} of the protocol");
                    state.bad_frame(Some(slot), link, what);
                } else if Some(version) != versions::common(&[greeting.versions, told[0], told[1]]) {
                    let what = format!(
                        "a session of version {version}, which is not the highest that it and both parties speak"
                    );
                    state.bad_frame(Some(slot), link, what);
                } else if state.begin(slot, version, told) {
                    #[cfg(feature = "next-version")]
                    if version >= 8 {
                        state.send_to_member(slot, &ToMember::Begun { version });
                    }
                    let Greeting { session, select_best, .. } = greeting;
                    self.tell(RoleEvent::MemberGreeted { slot, session, select_best });
                }
            }
            _ if greeting.is_none() => state.bad_frame(Some(slot), link, "a frame before hello".to_owned()),
            (_, FromMember::Begin { .. }) => state.bad_frame(Some(slot), link, "a session that has begun".to_owned()),
            _ if !has_begun => state.bad_frame(Some(slot), link, "a frame before its session has begun".to_owned()),
            (PartyNumber::One, FromMember::SubmitOne { header, body }) => {
                let part = body.map(|(share, blob)| Part::One { share, columns: Vec::new(), blob });
                self.submit(slot, Arc::new(*header), part, None);
            }
            (PartyNumber::Two, FromMember::SubmitTwo { header, share }) => {
                let header = Arc::new(*header);
                if share.as_ref().is_some_and(|share| !share.matches(&header)) {
                    state.refuse(slot, header.description.version, Refusal::Proof);
                    return;
                }
                let is_column = matches!(header.description.kind, Kind::Column { .. });
                let (part, column) = match share {
                    Some(share) if is_column => (None, Some(share.row)),
                    Some(share) => (Some(Part::Two { row: share.row.to_vec() }), None),
                    None => (None, None),
                };
                self.submit(slot, header, part, column);
            }
            (PartyNumber::One, FromMember::RankOne { seq, row, seed }) => {
                self.rank(slot, seq, row, round::RankShare::Seed(seed));
            }
            (PartyNumber::Two, FromMember::RankTwo { seq, row, share }) => {
                self.rank(slot, seq, row, round::RankShare::Bytes(share));
            }
            (_, FromMember::Holds { seq, through, epoch, roots, own }) => {
                let holding = Holding { seq, through, epoch, own, held: HeldDigests::Roots(roots) };
                self.member_says(slot, link, RoleEvent::Holds { slot, holding });
            }
            (_, FromMember::Buckets { seq, through, epoch, objects, instances, own }) => {
                let held = HeldDigests::Buckets { objects, instances };
                let holding = Holding { seq, through, epoch, own, held };
                self.member_says(slot, link, RoleEvent::Holds { slot, holding });
            }
            (_, FromMember::ObjectNames { question, through, names }) => {
                let said = names.len();
                let named = Named { through: through.0, names: names.into_iter().collect(), said };
                self.member_says(slot, link, RoleEvent::Named { slot, half: Half::Objects, question, named });
            }
            (_, FromMember::InstanceNames { question, through, names, open }) => {
                let said = names.len() + open.len();
                let done = names.into_iter().map(|name| (name, lack::DONE));
                let names = done.chain(open.into_iter().map(|name| (name, lack::OPEN))).collect();
                let named = Named { through, names, said };
                self.member_says(slot, link, RoleEvent::Named { slot, half: Half::Instances, question, named });
            }
            _ => state.bad_frame(Some(slot), link, "a frame meant for the other party".to_owned()),
        }
    }

    fn submit(&mut self, slot: u32, header: Arc<crate::object::Header>, part: Option<Part>, column: Option<Arc<[u8]>>) {
        let version = header.description.version;
        let is_taken = self.state.submit(slot, header, part, column);
        self.tell(if is_taken { RoleEvent::Submitted { slot, version } } else { RoleEvent::Refused { slot, version } });
    }

    fn member_says(&mut self, slot: u32, link: LinkId, said: RoleEvent) {
        if let Err(what) = self.role.on(&mut self.state, said) {
            self.state.bad_frame(Some(slot), link, what.to_owned());
        }
    }

    fn rank(&mut self, slot: u32, seq: u64, row: [u8; 16], share: round::RankShare) {
        if self.state.rank(slot, seq, row, share) {
            self.tell(RoleEvent::Ranked { seq, slot, row });
            self.run_round();
        } else {
            // Nobody waits for it, and what one costs is what a flood of them costs: unless it broke the protocol, nothing else is looked at.
            self.state.changes = !self.state.links.has(slot);
            self.tell(RoleEvent::RankedLate { seq, slot, row });
        }
    }

    fn peer_frame(&mut self, frame: PartyFrame) {
        let state = &mut self.state;
        state.links.note_heard(state.env.now());
        let taken = match frame {
            PartyFrame::Hello {
                versions,
                exchange,
                party,
                nonce,
                epoch,
                seq,
                set,
                tick_ms,
                export,
                max_blob,
                stored,
                agreed,
                applied,
                clock,
                order,
                commitment,
                has_order,
                later: _,
            } => {
                let store = reconcile::StoreState { stored, agreed };
                let order = order::PeerOrder { number: order, commitment, has_order };
                let hello = reconcile::PeerHello {
                    versions,
                    exchange,
                    party,
                    nonce,
                    epoch,
                    set,
                    tick_ms,
                    export,
                    max_blob,
                    store,
                    applied,
                    clock,
                    order,
                };
                let taken = state.peer_hello(hello, seq);
                self.order_may_be_agreed(taken)
            }
            PartyFrame::OrderShare { opening, share } => {
                let taken = state.order_opened(opening, share);
                self.order_may_be_agreed(taken)
            }
            PartyFrame::OrderKey { key } => {
                let taken = state.order_told(&key);
                self.order_may_be_agreed(taken)
            }
            PartyFrame::Credit { limit } => {
                let granted = state.links.peer_granted(limit, state.env.now());
                self.tell(RoleEvent::PeerGranted);
                granted
            }
            #[cfg(feature = "next-version")]
            PartyFrame::Raised { version } if version == state.links.peer_version() => Ok(()),
            PartyFrame::Engine { stream, step, bytes } if state.peer_ready() => state.engine_frame(stream, step, bytes),
            _ if !state.order.is_agreed() => Err("a frame before the order of candidates was agreed on"),
            frame => self.role.on(state, RoleEvent::PeerFrame(frame)),
        };
        if let Err(what) = taken {
            self.state.env.counters.bad_frames += 1;
            self.state.event(PartyEvent::BadFrame { slot: None, what: what.to_owned() });
            self.state.close_peer(what);
        }
    }

    /// The hellos are there, and perhaps the key of the order of candidates: what follows depends on the role.
    fn order_may_be_agreed(&mut self, taken: Result<(), &'static str>) -> Result<(), &'static str> {
        if taken.is_ok() && self.state.order.is_agreed() {
            self.tell(RoleEvent::PeerGreeted);
        }
        taken
    }

    /// Checks a new directory of the operator.
    fn new_member_set(&mut self, bytes: &[u8]) {
        let (membership, config) = (&self.state.membership, &self.state.env.config);
        let why = match membership.directory().succeed(bytes) {
            Ok(Succession::Same) => return,
            Ok(Succession::Newer(next, _)) => match key_roles(config, &next) {
                Ok(()) => return self.tell(RoleEvent::NewMemberSet(next)),
                Err(shared) => shared.to_string(),
            },
            Ok(Succession::Older(shown)) => older_than(shown.number, membership.set().number),
            Err(error) => error.to_string(),
        };
        self.state.event(PartyEvent::MembersRefused { why });
    }

    /// Begins a new session with the peer party if the clocks say that this process was resumed from a snapshot: the pool of
    /// correlations may have been used by then.
    fn notice_resumption(&mut self, now: Now) {
        let before = std::mem::replace(&mut self.state.env.clocks, now);
        let passed = now.instant.since(before.instant).as_micros();
        let jump = u128::from(now.unix.0).abs_diff(u128::from(before.unix.0) + passed);
        if jump > CLOCK_JUMP.as_micros() && self.state.links.has_peer() {
            let seconds = jump / 1_000_000;
            let what = format!(
                "the wall clock jumped by {seconds} seconds, as when a process is resumed from a snapshot, and the session begins anew"
            );
            self.state.event(PartyEvent::Engine { what });
            self.state.close_peer("the wall clock jumped; the session begins anew");
            self.settle_departures();
        }
    }

    /// Closes the link of a peer party that stopped in the middle, and drops all that was begun with it.
    fn drop_silent_peer(&mut self) {
        if self.silence_ends().is_some_and(|at| self.state.now() >= at) {
            let what = "the peer party does not answer";
            self.state.event(PartyEvent::Engine { what: what.to_owned() });
            self.state.close_peer(what);
            self.settle_departures();
        }
    }

    /// When the peer party has been silent for too long, if this party waits for it.
    fn silence_ends(&self) -> Option<Instant> {
        let waits = self.state.links.has_peer() && self.role.awaits_peer(&self.state);
        let of_setup = self.state.rounds.engine().and_then(Engine::awaits_setup_since);
        let since = waits.then_some(self.state.links.heard()).into_iter().chain(of_setup).min();
        since.map(|since| since + self.state.peer_wait())
    }

    /// Does what can be done now.
    fn advance(&mut self) {
        self.state.env.counters.advanced += 1;
        // First, since a departure queues what the batch that is proposed now says of members that left (`Step::Gone`): otherwise its ticks
        // would be made for members that are not there.
        self.settle_departures();
        self.tell(RoleEvent::Propose);
        self.run_round();
        self.settle_departures();
        // A round that ended makes room for the next batch.
        self.tell(RoleEvent::Propose);
        // After everything above that sends: party 2 reports of each member once, by what the whole step came to.
        self.tell(RoleEvent::FlowChanged);
        // Sending only notes who has no credit left. Their links go once all else is done, which leaves departures of its own.
        self.state.close_overrun();
        self.settle_departures();
        self.state.env.counters.hashed = self.state.objects.table().hashed();
    }

    /// Takes the round as far as it can go, and setup beside it.
    fn run_round(&mut self) {
        // Only this runs the engine and setup: a round that started after `run_engine`, or a chunk that was ordered after `run_setup`, would
        // wait for the next input with nothing to do meanwhile.
        self.tell(RoleEvent::StartEvaluation);
        self.state.run_engine();
        self.tell(RoleEvent::Supply);
        self.state.run_setup();
        self.state.report_progress();
    }

    fn settle_departures(&mut self) {
        for departure in self.state.links.take_departures() {
            self.tell(RoleEvent::Departed(departure));
        }
    }
}

/// Whether each key of the members, of the parties and of the operators has one role.
fn key_roles(config: &PartyConfig, directory: &Directory) -> Result<(), SharedKey> {
    KeyRoles::of(config.keys.iter().copied())?.add_directory(directory)
}

/// What is wrong with a frame that cannot be decoded.
fn malformed(bytes: &[u8], error: wayleave_core::wire::Malformed) -> String {
    match bytes.first() {
        Some(kind) => format!("malformed frame {kind:#04x}: {error}"),
        None => "empty frame".to_owned(),
    }
}

fn older_than(shown: u64, in_force: u64) -> String {
    format!("it is set {shown}, or lacks removals; set {in_force} was in force and stays")
}

/// The directory with which a party starts, and the number of the file's set if that is older than what was in force.
/// What was in force is durable: the file must say the same, or follow it.
fn in_force(config: &PartyConfig, file: &[u8], stored: Option<&[u8]>) -> Result<(Directory, Option<u64>), StartError> {
    let operators = config.operators.each_ref().map(VerifyingKey::to_bytes);
    let trust = Trust { exchange: config.exchange.clone(), operators };
    let of_file = |error| match error {
        ChainError::OtherExchange(name) => StartError::Exchange(name),
        ChainError::OtherOperators => StartError::Operators,
        ChainError::Diverges(number) => StartError::Diverges(number),
        error => StartError::Members(error),
    };
    let Some(stored) = stored else { return Ok((Directory::open(file, &trust).map_err(of_file)?, None)) };
    let before = Directory::decode(stored).map_err(|_| StartError::Store)?;
    // Where the file is of the configuration's exchange, what is of another is the store.
    let is_of_exchange = Directory::open(file, &trust).is_ok();
    let of_store = |error| match error {
        ChainError::OtherExchange(stored) if is_of_exchange => StartError::StoredExchange(stored),
        ChainError::OtherOperators if is_of_exchange => StartError::StoredOperators,
        error => of_file(error),
    };
    if let Err(other @ ChainError::OtherExchange(_)) = before.check(&trust) {
        return Err(of_store(other));
    }
    let (directory, older) = match before.succeed(file).map_err(of_store)? {
        Succession::Same => (before, None),
        Succession::Newer(next, _) => (*next, None),
        Succession::Older(shown) => (before, Some(shown.number)),
    };
    // The configuration may name keys that the operators have only with the file's next sets.
    directory.check(&trust).map_err(of_file)?;
    Ok((directory, older))
}

/// Why a party cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("the member set's file does not count: {0}; get it from the other party's operator")]
    Members(ChainError),
    #[error(
        "the member set begins with other operators' keys than those in this configuration; both operators' keys must be the ones that `wayleave members init` was given, or later ones"
    )]
    Operators,
    #[error("one key has two roles: {0}")]
    Keys(#[from] SharedKey),
    #[error("the member set belongs to the exchange `{0}`, not to the one in this configuration")]
    Exchange(String),
    #[error(
        "this party's state begins with other operators' keys than its member set's file and its configuration, which agree: the state is of another exchange, or was begun with a wrong file"
    )]
    StoredOperators,
    #[error(
        "this party's state is of the exchange `{0}`, and its member set's file and its configuration are of another, which both name"
    )]
    StoredExchange(String),
    #[error(
        "the file's set {0} is not the set {0} that was in force here: the operators signed two sets of one number; restore the file that this party had, and settle with the other operator which of the two counts"
    )]
    Diverges(u64),
    #[error(
        "the store holds records of another party, or is damaged; move it away and start again: members announce their routes again"
    )]
    Store,
    #[error(
        "the store has format {found}, and this program reads up to {reads}: a newer release of Wayleave wrote it; run that release, or move the store away and start again: members announce their routes again"
    )]
    NewerStore { found: u64, reads: u64 },
}

impl Machine for Party {
    type Input = PartyInput;
    type Output = PartyOutput;

    fn handle(&mut self, input: PartyInput, now: Now) {
        self.notice_resumption(now);
        match input {
            PartyInput::LinkUp { link, peer, exporter } => self.link_up(link, peer, &exporter),
            PartyInput::LinkDown { link } => self.state.unlink(link),
            PartyInput::Frame { link, bytes } => self.frame(link, &bytes),
            PartyInput::Persisted(id) => self.persisted(id),
            PartyInput::Members(bytes) => self.new_member_set(&bytes),
            PartyInput::Keys(keys) => self.state.env.config.keys = keys,
            PartyInput::Recommendation(by_slot) => self.tell(RoleEvent::NewRecommendation(by_slot)),
            PartyInput::SetupDone(done) => self.state.setup_done(done),
        }
        if std::mem::replace(&mut self.state.changes, true) {
            self.advance();
        } else {
            // The frame may have been answered with credit.
            self.tell(RoleEvent::FlowChanged);
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.notice_resumption(now);
        self.drop_silent_peer();
        self.state.links.note_stalled(now.instant);
        self.state.links.grant_due(&mut self.state.env);
        if self.state.formats.rises_at().is_some_and(|at| now.instant >= at) {
            self.state.review_formats();
        }
        self.tell(RoleEvent::Sweep);
        self.advance();
    }

    fn poll(&mut self) -> Option<PartyOutput> {
        self.state.env.poll()
    }

    fn deadline(&self) -> Option<Instant> {
        let progress = self.state.rounds.progress_due();
        let all = [self.role.deadline(&self.state), self.silence_ends(), progress].into_iter();
        all.chain(self.state.links.deadlines()).chain([self.state.formats.rises_at()]).flatten().min()
    }
}

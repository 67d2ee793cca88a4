//! One member: announces its router's routes in secret, opens the routes that it may have, ranks them, and installs what
//! was chosen.
//!
//! A member has a link to each party and one session over both: when either link fails, both are connected again. It
//! accepts a tick (one batch as one member sees it) only when both parties sent the same. What it sends depends on public
//! information alone: the prefixes that it announces, the size class of each route, the member set, and the instances (the
//! candidates of a prefix) that a tick lists.

mod announce;
mod receive;
mod select;
mod status;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Instant, Machine, Now, Prefix, VerdictKind};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};

use crate::directory::{MemberSet, SignedMemberSet, SlotId};
use crate::frames::{FromMember, MAX_IN_PARTS, PROTOCOL, Refusal, SessionId, Tick, ToMember};
use crate::object::Handle;
use crate::party::{Change, LinkId, PartyNumber, PersistId, StoredRecord};
use crate::policy::Policy;
use crate::rng::Rng;

pub use status::{Alarm, MemberCounters, MemberEvent, MemberStatus, Suspect, Why, WhyRoute};

use announce::Announcements;
use receive::ReceivedObject;
use select::{Choice, InstalledRoute, Round};

/// Store key of the highest version that may have been used.
const VERSION_KEY: &[u8] = b"version";
/// Delay before a refused announcement is retried, so that a party that refuses everything is not flooded.
const RETRY: Duration = Duration::from_millis(50);
/// Versions that one write of the store reserves.
const RESERVE: u64 = 4096;

/// A member's configuration.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    pub exchange: String,
    /// The AS number of the exchange's route server, which its communities name.
    pub rs_asn: Asn,
    /// The operator's key, which signs member sets.
    pub operator: VerifyingKey,
    pub slot: u32,
    /// Whether to take part in Select-Best; if not, that is visible to the parties.
    pub select_best: bool,
    /// How long delivered routes are kept while a party is away.
    pub stale: Duration,
    /// How long after the router's session is up the parties' memory of earlier routes is believed over the router,
    /// if the router sends no End-of-RIB.
    pub settle: Duration,
    /// Whether documentation and private prefixes are taken, as a lab needs.
    pub lab: bool,
    /// Whether routes are validated before they are used. If not, no validation is requested and every route counts as
    /// unattested. `wayleave_member::MemberProxy` sets this.
    pub validates: bool,
}

/// What a driver gives a member.
#[derive(Debug)]
pub enum MemberInput {
    /// A mutually authenticated link to a party is up.
    LinkUp {
        link: LinkId,
        party: PartyNumber,
    },
    LinkDown {
        link: LinkId,
    },
    Frame {
        link: LinkId,
        bytes: Vec<u8>,
    },
    /// The changes of [`MemberOutput::Persist`] are durable.
    Persisted(PersistId),
    /// The BGP session with the member's router is up.
    RouterUp,
    /// The BGP session is down: the router's routes are gone.
    RouterDown,
    /// An UPDATE of the router that has passed attestation without a new signature, or for which none is configured.
    /// Withdrawn prefixes go first.
    ClearedUpdate {
        withdrawn: Vec<Nlri>,
        announced: Vec<Nlri>,
        /// `None` if nothing is announced.
        attributes: Option<Attributes>,
    },
    /// Routes of the router that attestation has signed for the members of a set.
    Signed {
        announced: Vec<Nlri>,
        /// With the attestation.
        attributes: Attributes,
        /// The members that they were signed for: [`MemberSet::neighbours_digest`]. Under another set they are not announced.
        under: [u8; 32],
    },
    /// The router sent all it had, and attestation has cleared everything before it.
    ClearedEndOfRib,
    /// The result of [`MemberOutput::Validate`], or a later one for the same route.
    Findings {
        handle: Handle,
        /// One per prefix of the object, in order.
        findings: Vec<Finding>,
    },
    /// The member's operator changed the policy.
    Policy(Box<Policy>),
}

/// The result of validation for a route to one prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub verdict: VerdictKind,
    /// The route as the member's router gets it; `None` if it must not be used, whatever the rules for its verdict.
    pub attributes: Option<Attributes>,
}

/// What a member asks its driver to do.
#[derive(Debug)]
pub enum MemberOutput {
    Send {
        link: LinkId,
        frame: Arc<[u8]>,
    },
    /// Close a link and connect again; `reason` is for the log.
    Close {
        link: LinkId,
        reason: String,
    },
    /// Make changes durable, then give [`MemberInput::Persisted`].
    Persist {
        id: PersistId,
        changes: Vec<Change>,
    },
    /// Announce this route to the router, or withdraw the prefix.
    Install {
        prefix: Prefix,
        /// As the announcer sent them.
        attributes: Option<Attributes>,
    },
    /// Validate a route that could become best, then give [`MemberInput::Findings`], and again whenever they change.
    Validate {
        handle: Handle,
        slot: SlotId,
        prefixes: Vec<Nlri>,
        /// As the announcer sent them.
        attributes: Attributes,
        /// The number of the member set under which the object was made.
        set: u64,
    },
    /// A route of [`MemberOutput::Validate`] is gone.
    Forget {
        handle: Handle,
    },
    /// There is a new member set: from now on this member announces only what is signed for it.
    Members(Arc<MemberSet>),
    Event(MemberEvent),
}

/// One member proxy.
pub struct Member {
    config: MemberConfig,
    policy: Box<Policy>,
    signing: SigningKey,
    rng: Rng,
    links: [Option<LinkId>; 2],
    session: Option<SessionId>,
    welcomed: [bool; 2],
    parts: [Vec<u8>; 2],
    set: Option<MemberSet>,
    keys: Vec<Option<VerifyingKey>>,
    /// [`MemberSet::neighbours_digest`] of the set.
    neighbours: [u8; 32],
    epoch: u64,
    tick: Duration,
    synced: bool,
    announcements: Announcements,
    halves: BTreeMap<u64, [Option<Box<Tick>>; 2]>,
    last_seq: u64,
    routes: HashMap<Handle, ReceivedObject>,
    choices: BTreeMap<Prefix, Choice>,
    rounds: BTreeMap<u64, Round>,
    /// Rankings that wait for their time: when, of which batch, and the frames.
    rankings_due: VecDeque<(Instant, u64, [FromMember; 2])>,
    installed: BTreeMap<Prefix, InstalledRoute>,
    lost_since: Option<Instant>,
    touched: BTreeSet<Prefix>,
    /// Routes whose validation has no result yet.
    awaited: BTreeSet<Handle>,
    /// Prefixes whose replaced route stays until its successor is validated, and until when at most.
    successors: BTreeMap<Prefix, Instant>,
    counters: MemberCounters,
    output: VecDeque<MemberOutput>,
    next_persist: PersistId,
}

impl Member {
    /// A member with what its store held, and fresh randomness in `seed`.
    #[must_use]
    pub fn new(
        config: MemberConfig,
        policy: Box<Policy>,
        signing: SigningKey,
        seed: &Seed,
        stored: &[StoredRecord],
        now: Now,
    ) -> Self {
        let used = stored
            .iter()
            .find(|record| record.key == VERSION_KEY)
            .and_then(|record| <[u8; 8]>::try_from(record.value.as_slice()).ok())
            .map_or(0, u64::from_be_bytes);
        Self {
            config,
            policy,
            signing,
            rng: Rng::new(seed),
            links: [None; 2],
            session: None,
            welcomed: [false; 2],
            parts: [Vec::new(), Vec::new()],
            set: None,
            keys: Vec::new(),
            neighbours: [0; 32],
            epoch: 0,
            tick: Duration::ZERO,
            synced: false,
            announcements: Announcements::new(used, now.instant),
            halves: BTreeMap::new(),
            last_seq: 0,
            routes: HashMap::new(),
            choices: BTreeMap::new(),
            rounds: BTreeMap::new(),
            rankings_due: VecDeque::new(),
            installed: BTreeMap::new(),
            lost_since: None,
            touched: BTreeSet::new(),
            awaited: BTreeSet::new(),
            successors: BTreeMap::new(),
            counters: MemberCounters::default(),
            output: VecDeque::new(),
            next_persist: 0,
        }
    }

    fn event(&mut self, event: MemberEvent) {
        self.output.push_back(MemberOutput::Event(event));
    }

    fn alarm(&mut self, alarm: Alarm) {
        self.counters.alarms += 1;
        self.event(MemberEvent::Alarm(alarm));
    }

    fn send(&mut self, party: PartyNumber, frame: &FromMember) {
        if let Some(link) = self.links[index(party)] {
            let bytes = frame.encode();
            self.counters.bytes_sent += bytes.len() as u64;
            self.output.push_back(MemberOutput::Send { link, frame: bytes.into() });
        }
    }

    fn party_of(&self, link: LinkId) -> Option<PartyNumber> {
        [PartyNumber::One, PartyNumber::Two].into_iter().find(|party| self.links[index(*party)] == Some(link))
    }

    fn link_up(&mut self, link: LinkId, party: PartyNumber) {
        self.links[index(party)] = Some(link);
        if self.links.iter().all(Option::is_some) {
            let session = self.rng.bytes();
            self.session = Some(session);
            for party in [PartyNumber::One, PartyNumber::Two] {
                let hello = FromMember::Hello {
                    protocol: PROTOCOL,
                    exchange: self.config.exchange.clone(),
                    slot: self.config.slot,
                    session,
                    select_best: self.config.select_best,
                };
                self.send(party, &hello);
            }
        }
    }

    /// One link failed: the session ends, and the other link is closed to be connected again with it.
    fn link_down(&mut self, link: LinkId, now: Now) {
        let Some(party) = self.party_of(link) else { return };
        self.links[index(party)] = None;
        if self.session.take().is_none() {
            return;
        }
        self.end_session(now);
        for other in self.links.iter_mut().filter_map(Option::take).collect::<Vec<_>>() {
            let reason = "the link to the other party is down; both links are connected again".to_owned();
            self.output.push_back(MemberOutput::Close { link: other, reason });
        }
    }

    fn end_session(&mut self, now: Now) {
        self.welcomed = [false; 2];
        self.parts = [Vec::new(), Vec::new()];
        self.synced = false;
        self.epoch = 0;
        self.halves.clear();
        self.rounds.clear();
        self.rankings_due.clear();
        self.announcements.session_lost();
        self.lost_since.get_or_insert(now.instant);
        self.event(MemberEvent::SessionDown);
    }

    fn fail(&mut self, party: PartyNumber, what: String, now: Now) {
        self.counters.bad_frames += 1;
        self.alarm(Alarm { what: what.clone(), handle: None, suspects: vec![Suspect::Party(number(party))] });
        if let Some(link) = self.links[index(party)] {
            self.output.push_back(MemberOutput::Close { link, reason: what });
            self.link_down(link, now);
        }
    }

    fn on_frame(&mut self, link: LinkId, bytes: &[u8], now: Now) {
        let Some(party) = self.party_of(link) else { return };
        self.counters.bytes_received += bytes.len() as u64;
        self.on_whole_frame(party, bytes, now);
    }

    /// The next part of a longer frame.
    fn part(&mut self, party: PartyNumber, last: bool, bytes: &[u8], now: Now) {
        let parts = &mut self.parts[index(party)];
        if parts.len() + bytes.len() > MAX_IN_PARTS {
            parts.clear();
            self.fail(party, "a frame in parts that exceeds the limit".to_owned(), now);
            return;
        }
        parts.extend_from_slice(bytes);
        if last {
            let whole = std::mem::take(parts);
            if matches!(whole.first(), Some(6)) {
                self.fail(party, "a part inside a part".to_owned(), now);
            } else {
                self.on_whole_frame(party, &whole, now);
            }
        }
    }

    fn on_whole_frame(&mut self, party: PartyNumber, bytes: &[u8], now: Now) {
        match ToMember::decode(bytes) {
            Err(error) => {
                let kind = bytes.first().copied().unwrap_or_default();
                self.fail(party, format!("malformed frame {kind:#04x}: {error}"), now);
            }
            Ok(ToMember::Welcome { protocol, session, epoch, high_water, tick_ms, set }) => {
                if protocol != PROTOCOL || Some(session) != self.session {
                    self.fail(party, "a welcome for another session or protocol version".to_owned(), now);
                    return;
                }
                self.welcomed[index(party)] = true;
                self.tick = Duration::from_millis(u64::from(tick_ms));
                self.announcements.versions.seen(high_water);
                if self.announcements.versions.are_spent() {
                    let what = "all versions of this slot are used; ask the exchange for a new slot".to_owned();
                    self.alarm(Alarm { what, handle: None, suspects: vec![Suspect::Party(number(party))] });
                }
                self.on_renew(party, epoch, &set, now);
            }
            Ok(_) if !self.welcomed[index(party)] => {
                self.fail(party, "a frame before the welcome".to_owned(), now);
            }
            Ok(ToMember::Renew { epoch, set }) => self.on_renew(party, epoch, &set, now),
            Ok(ToMember::Tick(tick)) => self.half_tick(party, tick, now),
            Ok(ToMember::Outcome { seq, first, share }) => self.half_outcome(party, seq, first, share),
            Ok(ToMember::Refused { version, reason }) => self.refused(version, reason, now),
            Ok(ToMember::Part { last, bytes }) => self.part(party, last, &bytes, now),
        }
    }

    /// Takes a party's epoch and member set; the newer of the two parties' counts.
    fn on_renew(&mut self, party: PartyNumber, epoch: u64, set: &[u8], now: Now) {
        let Some(set) = SignedMemberSet::open(set, &self.config.operator) else {
            self.fail(party, "a member set without the operator's signature".to_owned(), now);
            return;
        };
        self.epoch = self.epoch.max(epoch);
        let newer = self.set.as_ref().is_none_or(|known| set.number > known.number);
        if !newer {
            return;
        }
        let own = set.slots.get(self.config.slot as usize).filter(|slot| slot.active);
        if own.is_none_or(|slot| slot.sign != self.signing.verifying_key().to_bytes()) {
            self.event(MemberEvent::NotAMember { slot: self.config.slot });
        }
        self.keys = crate::directory::keys(&set);
        self.neighbours = set.neighbours_digest();
        if self.config.validates {
            self.output.push_back(MemberOutput::Members(Arc::new(set.clone())));
        }
        self.set = Some(set);
        self.set_grew();
    }

    /// Whether the member set lists this member as active.
    fn is_listed(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.active(self.config.slot).is_some())
    }

    /// The effects of an input that wait until all of it is processed.
    fn settle(&mut self, now: Now) {
        let touched = std::mem::take(&mut self.touched);
        for prefix in touched {
            self.install(prefix, now);
        }
        self.flush(now);
        self.rank_due(now);
    }
}

/// 0 for party 1, 1 for party 2.
fn index(party: PartyNumber) -> usize {
    match party {
        PartyNumber::One => 0,
        PartyNumber::Two => 1,
    }
}

/// 1 or 2.
fn number(party: PartyNumber) -> u8 {
    match party {
        PartyNumber::One => 1,
        PartyNumber::Two => 2,
    }
}

impl Machine for Member {
    type Input = MemberInput;
    type Output = MemberOutput;

    fn handle(&mut self, input: MemberInput, now: Now) {
        match input {
            MemberInput::LinkUp { link, party } => self.link_up(link, party),
            MemberInput::LinkDown { link } => self.link_down(link, now),
            MemberInput::Frame { link, bytes } => self.on_frame(link, &bytes, now),
            MemberInput::Persisted(id) => self.announcements.versions.durable(id),
            MemberInput::RouterUp => self.announcements.router_up(now.instant + self.config.settle),
            MemberInput::RouterDown => self.announcements.router_down(),
            MemberInput::ClearedUpdate { withdrawn, announced, attributes } => {
                self.announcements.router_update(&withdrawn, &announced, attributes.as_ref());
            }
            MemberInput::Signed { announced, attributes, under } => {
                self.announcements.signed(&announced, &attributes, under);
            }
            MemberInput::Findings { handle, findings } => self.on_findings(handle, findings),
            MemberInput::ClearedEndOfRib => self.announcements.settled(),
            MemberInput::Policy(policy) => self.policy_changed(policy),
        }
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.announcements.settles_at.is_some_and(|at| now.instant >= at) {
            self.announcements.settled();
        }
        self.overdue_choices(now);
        if self.lost_since.is_some_and(|since| now.instant.since(since) >= self.config.stale) {
            self.lost_since = None;
            self.forget_everything();
        }
        self.touched.extend(self.late_successors(now));
        self.settle(now);
        // For a prefix whose outcome is still awaited, the outcome decides.
        self.successors.retain(|_, until| *until > now.instant);
    }

    fn poll(&mut self) -> Option<MemberOutput> {
        self.output.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let stale = self.lost_since.map(|since| since + self.config.stale);
        let rank = self.rankings_due.front().map(|(at, ..)| *at);
        let rounds = self.rounds.values().next().map(|round| round.since + select::OUTCOME_WAIT);
        let may_flush = self.synced && self.is_listed() && self.announcements.has_dirty();
        let flush = (may_flush && self.announcements.has_versions()).then_some(self.announcements.next_flush);
        let successor = self.successors.values().min().copied();
        [stale, rank, rounds, flush, self.announcements.settles_at, successor].into_iter().flatten().min()
    }
}

impl Member {
    fn refused(&mut self, version: u64, reason: Refusal, now: Now) {
        self.counters.refused += 1;
        self.announcements.next_flush = self.announcements.next_flush.max(now.instant + RETRY);
        self.event(MemberEvent::Refused { version, reason });
        self.announcements.refused(version, reason);
    }

    fn policy_changed(&mut self, policy: Box<Policy>) {
        self.policy = policy;
        self.announcements.mark_all_dirty();
        for party in [PartyNumber::One, PartyNumber::Two] {
            self.send(party, &FromMember::Resync);
        }
        for route in self.routes.values_mut() {
            route.assessment = None;
        }
        self.touched.extend(self.choices.keys().copied());
    }
}

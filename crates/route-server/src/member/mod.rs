//! One member: announces its router's routes in secret, opens the routes that it may have, ranks them, and installs what
//! was chosen.
//!
//! A member has a link to each party and one session over both: when either link fails, both are connected again. It
//! accepts a tick (one batch as one member sees it) only when both parties sent the same. What it sends depends on public
//! information alone: the prefixes that it announces, the size class of each route, the member set, and the instances (the
//! candidates of a prefix) that a tick lists.

mod announce;
mod backlog;
mod barred;
mod data;
mod dirty;
mod exports;
mod kept;
mod limits;
mod listed;
mod listing;
mod origins;
mod paths;
mod policy_diff;
mod receive;
mod select;
mod status;
mod submit;
mod tally;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::aspa::Aspas;
use wayleave_bgp::origins::Vrps;
use wayleave_bgp::peer::Stale;
use wayleave_bgp::rpki::Records;
use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Instant, Machine, Now, Prefix, VerdictKind};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};

use crate::credit::{self, Receiving, Sending};
use crate::data::Data;
use crate::digests::{BucketSet, InstanceHash};
use crate::directory::{AttestKey, ChainError, Directory, MemberSet, Neighbours, SetId, SlotId, Succession, Trust};
use crate::frames::{
    BudgetLeft, Candidate, FromMember, MAX_IN_PARTS, MAX_TICK_MS, Refusal, Rejection, Seq, SessionId, Tick, ToMember,
};
use crate::key_roles::{KeyRole, KeyRoles};
use crate::leaps::{Heard, is_epoch_leap, is_leap};
use crate::object::{ExportMode, Handle};
use crate::party::{Change, LinkId, PartyNumber, PersistId, StoredRecord, octets_stored};
use crate::policy::Policy;
use crate::policy::validate::{DataInForce, Martians, RouteRules};
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::versions::{self, Speaks, Versions};

pub use data::{DataStatus, OfferedData};
pub use exports::{OwnExport, Receiver};
pub use listing::{AnnouncerFilter, Cause, ListPosition, ListedRoute, Part, RouteFilter, RouteState};
pub use policy_diff::Difference;
pub use status::{
    Alarm, Announcer, FurtherSlot, MemberCounters, MemberEvent, MemberStatus, OriginFound, OwnBudget, OwnRoute,
    PartyLink, Reason, Suspect, Why, WhyRoute,
};
pub use tally::Tally;

use announce::Announcements;
use backlog::{Backlog, Slices};
use data::KnownData;
use kept::KeptRoutes;
use limits::Limits;
use listed::{Instances, Keyed};
use receive::{Named, ReceivedObject, Sync};
use select::{Choice, DueRanking, InstalledRoute, Round};

/// Store key of the directory in force.
const SET_KEY: &[u8] = b"set";
/// Store key of the neighbours of an earlier member set, before its number.
const NEIGHBOURS_KEY: &[u8] = b"neighbours ";
/// Earlier member sets whose neighbours are kept over restarts, so that routes signed for them can be validated: our own
/// limit. The directory's steps do not tell them all, since they do not say when a removal came.
const KEPT_SETS: usize = 16;
/// How long one party may be ahead of the other with a member set, when no batch shows that they differ.
const SET_WAIT: Duration = Duration::from_secs(15);
/// Octets of credit without which no object is sent: the largest object and its row take less.
const OBJECT_CREDIT: u64 = 512 << 10;

/// A member's configuration.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    pub exchange: String,
    /// The AS number of the exchange's route server, which its communities name.
    pub rs_asn: Asn,
    /// The keys of party 1's and party 2's operators, who both sign member sets.
    pub operators: [VerifyingKey; 2],
    pub slot: u32,
    /// The member's own keys, the parties' and the operators': a member set that gives one of them another role is not used.
    pub keys: Vec<(KeyRole, [u8; 32])>,
    /// Whether to take part in Select-Best; if not, that is visible to the parties.
    pub select_best: bool,
    /// How long delivered routes are kept while a party is away.
    pub stale: Duration,
    /// How long after the router's session is up the parties' memory of earlier routes is believed over the router,
    /// if the router sends no End-of-RIB.
    pub settle: Duration,
    /// Whether documentation and private prefixes are taken, as a lab needs.
    pub lab: bool,
    /// Whether routes with an AS_SET are announced and used; RFC 9774 section 3 has them treated as withdrawn.
    pub accept_as_set: bool,
    /// Whether the session with the router has the role of a route server (RFC 9234): the router gets routes with OTC, and a route
    /// of its own with OTC is not announced. One that another member announces with it is never used.
    pub has_role: bool,
    /// How many routes to a prefix the router gets, if its session has ADD-PATH (RFC 7911); 1 if it has not.
    pub paths: u8,
    /// Whether routes are validated before they are used. If not, no validation is requested and every route counts as
    /// unattested. `wayleave_member::MemberProxy` sets this.
    pub validates: bool,
    /// What it speaks.
    pub speaks: Speaks,
}

impl MemberConfig {
    /// What is checked of every route while this member set is in force.
    fn rules<'a>(&self, set: Option<&'a MemberSet>, data: Option<&'a Data>) -> RouteRules<'a> {
        let martians = if self.lab { Martians::AllowDocumentation } else { Martians::Refuse };
        let profile = set.and_then(|set| set.profile.as_ref());
        let rules = set.and_then(|set| set.data.as_ref());
        let data = rules.zip(data).map(|(rules, data)| DataInForce { rules, data });
        RouteRules { martians, accept_as_set: self.accept_as_set, profile, ignore_otc: false, data }
    }

    /// What is checked of a route of the own router before it is announced.
    fn own_rules<'a>(&self, set: Option<&'a MemberSet>, data: Option<&'a Data>) -> RouteRules<'a> {
        RouteRules { ignore_otc: !self.has_role, ..self.rules(set, data) }
    }
}

/// What a driver gives a member.
#[derive(Debug)]
pub enum MemberInput {
    /// A mutually authenticated link to a party is up.
    LinkUp {
        link: LinkId,
        party: PartyNumber,
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
    /// The changes of [`MemberOutput::Persist`] are durable.
    Persisted(PersistId),
    /// The BGP session with the member's router is up.
    RouterUp,
    /// The BGP session is down: the router's routes are gone.
    RouterDown,
    /// The session is down, or was, and the router's routes are stale (RFC 4724, RFC 9494).
    RouterStale(Stale),
    /// The router has sent an UPDATE that withdraws or announces these; it comes by itself, and perhaps later. They are not stale any more.
    NotStale(Vec<Nlri>),
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
        /// The members that they were signed for: [`MemberSet::neighbours_digest`].
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
    /// What the RPKI says of origins (RFC 6811) and of paths (ASPA), from now on; `None` while nothing is known, and then no route is
    /// refused for its origin or its path.
    Origins(Option<Records>),
    /// Data that somebody offers, with their octets; whether they count is for this member to decide.
    Data(Box<OfferedData>),
}

/// The result of validation for a route to one prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub verdict: VerdictKind,
    /// The route as the member's router gets it; `None` if it must not be used, whatever the rules for its verdict.
    pub attributes: Option<Attributes>,
}

/// A route to validate.
#[derive(Debug)]
pub struct Unvalidated {
    pub handle: Handle,
    pub slot: SlotId,
    pub prefixes: Vec<Nlri>,
    /// As the announcer sent them.
    pub attributes: Attributes,
    /// [`MemberSet::neighbours_digest`] of the members that its attestation is for.
    pub set: [u8; 32],
}

/// What a member asks its driver to do.
#[derive(Debug)]
pub enum MemberOutput {
    Send {
        link: LinkId,
        frame: Vec<u8>,
    },
    /// Close a link and connect again; `reason` is for the log.
    Close {
        link: LinkId,
        reason: String,
        /// Whether what was said on it was refused, so that it is of no use to connect again soon.
        refused: bool,
    },
    /// Make changes durable, then give [`MemberInput::Persisted`].
    Persist {
        id: PersistId,
        changes: Vec<Change>,
    },
    /// Announce this route to the router, or withdraw the prefix.
    Install {
        prefix: Prefix,
        /// As the announcer sent them, and with OTC where the session has a role.
        attributes: Option<Attributes>,
    },
    /// In place of `Install`, with [`MemberConfig::paths`] above 1: the router is to have these routes to the prefix, by path identifier, the
    /// best first, and no others.
    InstallPaths {
        prefix: Prefix,
        paths: Vec<(u32, Attributes)>,
    },
    /// Validate a route that could become best, then give [`MemberInput::Findings`], and again whenever they change.
    Validate(Box<Unvalidated>), // few outputs are this, and without the box all would be as large
    /// A route of [`MemberOutput::Validate`] is gone.
    Forget {
        handle: Handle,
    },
    /// The neighbours of the member set `set`: the one in force, or at start an earlier one, for which routes may be signed
    /// that are still there. Numbers rise.
    Members {
        set: u64,
        neighbours: Arc<Neighbours>,
    },
    Event(MemberEvent),
}

/// A member set as one party shows it.
#[derive(Clone)]
struct Presented {
    id: SetId,
    /// What would be in force with it; `None` if it is older than what is.
    next: Option<Arc<Directory>>,
}

/// A tick as one party sent it, and the member set and the epoch that the party showed by then.
type HalfTick = (Box<Tick>, Option<Presented>, u64);

/// One member proxy.
pub struct Member {
    config: MemberConfig,
    policy: Box<Policy>,
    signing: SigningKey,
    rng: Rng,
    links: [Option<LinkId>; 2],
    /// Since when each link is up, and the octets of frames received and sent over it and those before it.
    links_since: [Option<Instant>; 2],
    link_octets: [[u64; 2]; 2],
    session: Option<SessionId>,
    welcomed: [bool; 2],
    /// The version of the session, from its beginning on: once both parties have welcomed this member.
    version: Option<u16>,
    /// The versions that each party says it speaks.
    told: [Option<Versions>; 2],
    /// How each party says that policy and key are multiplied.
    exports: [Option<ExportMode>; 2],
    /// Octets of the largest blob that each party takes.
    max_blobs: [u32; 2],
    /// The highest format of objects that each party says all members read.
    formats: [u16; 2],
    /// What may be sent to each party, and what each may send, while its link is up.
    sending: [Option<Sending>; 2],
    receiving: [Receiving; 2],
    parts: [Vec<u8>; 2],
    /// What was in force last, also before this start. What the parties show must be the same or follow it.
    directory: Option<Arc<Directory>>,
    /// What each party shows in this session.
    presented: [Option<Presented>; 2],
    /// Since when the two show different sets.
    differ_since: Option<Instant>,
    /// The write of a new directory: nothing is announced under it before it is durable.
    storing_set: Option<PersistId>,
    set: Option<MemberSet>,
    /// The member sets whose neighbours are in the store, ascending: numbers and digests.
    kept_sets: Vec<(u64, [u8; 32])>,
    /// By slot, the present signing key and those before it.
    keys: Vec<Vec<VerifyingKey>>,
    /// [`MemberSet::neighbours_digest`] of the set.
    neighbours: [u8; 32],
    epoch: u64,
    /// The epoch that each party shows.
    epochs: [u64; 2],
    /// The epoch of the last tick.
    tick_epoch: u64,
    tick: Duration,
    synced: bool,
    /// What is being sent of what this member lacks, while it is.
    sync: Option<Sync>,
    /// What this member named to party 1, while it is sent what it lacks; and how often in a row that was not what the parties say.
    named: Named,
    failed_syncs: u32,
    /// How many members are synchronised before this one, as party 1 said last.
    ahead: Option<u32>,
    /// Seconds after which what it lacks is sent again, as party 1 said, while this member waits for that.
    deferred: Option<u32>,
    /// What this member may cost, and what was left of it, as party 1 said in its welcome.
    budget: Option<BudgetLeft>,
    /// The limit of prefixes that party 1 itself sets, where it is below that of the set which its welcome showed. A higher one is not said.
    party_limit: Option<u32>,
    announcements: Announcements,
    halves: BTreeMap<u64, [Option<HalfTick>; 2]>,
    /// Octets of these, about.
    halves_octets: usize,
    /// Goes up when something changes by which routes are assessed, but for findings of validation.
    rules: u64,
    last_seq: u64,
    /// The last batch through which it has had everything, and whether it may lack something of the later ones.
    complete: u64,
    is_in_doubt: bool,
    routes: HashMap<Handle, ReceivedObject, Keyed>,
    instances: Instances,
    choices: BTreeMap<Prefix, Choice>,
    /// By prefix, routes that this member may open and that are in no instance, since too many others compete.
    not_competing: BTreeMap<Prefix, BTreeSet<Candidate>>,
    rounds: BTreeMap<u64, Round>,
    /// Prefixes of which something ended while this member was away, until it has been sent what it lacks.
    ended_away: BTreeSet<Prefix>,
    rankings_due: VecDeque<DueRanking>,
    backlog: Backlog,
    schedule: Schedule,
    slices: Slices,
    /// What the RPKI says of origins; `None` while nothing is known.
    origins: Option<Arc<Vrps>>,
    /// Data of the exchange, in force and offered.
    data: KnownData,
    limits: Limits,
    /// Its ASPA records, of the same source.
    aspas: Option<Arc<Aspas>>,
    /// The time of the last input or timer.
    at: Instant,
    /// What is to be said of what this member holds, and when: at a fixed time, as rankings.
    saying: Option<Saying>,
    questions: Vec<Question>,
    saying_due: Option<Instant>,
    installed: BTreeMap<Prefix, InstalledRoute>,
    /// With several paths: what the router has, as in [`MemberOutput::InstallPaths`].
    paths: BTreeMap<Prefix, Vec<paths::GivenPath>>,
    kept: KeptRoutes,
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
        // Also under operators that the configuration does not name (any more): what the parties show may go on from it.
        let directory = stored_directory(stored).map(Arc::new);
        let config_formats = config.speaks.formats.highest;
        let mut member = Self {
            directory,
            presented: [None, None],
            differ_since: None,
            storing_set: None,
            config,
            policy,
            signing,
            rng: Rng::new(seed),
            links: [None; 2],
            links_since: [None; 2],
            link_octets: [[0; 2]; 2],
            session: None,
            welcomed: [false; 2],
            version: None,
            told: [None; 2],
            exports: [None; 2],
            max_blobs: [u32::MAX; 2],
            formats: [config_formats; 2],
            sending: [None, None],
            receiving: [Receiving::new(credit::TO_MEMBER), Receiving::new(credit::TO_MEMBER)],
            parts: [Vec::new(), Vec::new()],
            set: None,
            kept_sets: Vec::new(),
            keys: Vec::new(),
            neighbours: [0; 32],
            epoch: 0,
            epochs: [0; 2],
            tick_epoch: 0,
            tick: Duration::ZERO,
            synced: false,
            sync: None,
            ahead: None,
            deferred: None,
            budget: None,
            party_limit: None,
            announcements: Announcements::new(stored, seed, now.instant),
            halves: BTreeMap::new(),
            halves_octets: 0,
            rules: 0,
            last_seq: 0,
            complete: 0,
            is_in_doubt: false,
            routes: HashMap::default(),
            instances: Instances::default(),
            choices: BTreeMap::new(),
            not_competing: BTreeMap::new(),
            rounds: BTreeMap::new(),
            ended_away: BTreeSet::new(),
            rankings_due: VecDeque::new(),
            backlog: Backlog::default(),
            schedule: Schedule::default(),
            slices: Slices::default(),
            origins: None,
            data: KnownData::default(),
            limits: Limits::default(),
            aspas: None,
            at: now.instant,
            saying: None,
            questions: Vec::new(),
            named: Named::default(),
            failed_syncs: 0,
            saying_due: None,
            installed: BTreeMap::new(),
            paths: BTreeMap::new(),
            kept: KeptRoutes::default(),
            lost_since: None,
            touched: BTreeSet::new(),
            awaited: BTreeSet::new(),
            successors: BTreeMap::new(),
            counters: MemberCounters::default(),
            output: VecDeque::new(),
            next_persist: 0,
        };
        member.recall_sets(stored);
        member.recall_data(stored);
        member
    }

    /// Gives the attestation the neighbours of earlier member sets, for which routes may be signed that are still there.
    fn recall_sets(&mut self, stored: &[StoredRecord]) {
        let number =
            |record: &StoredRecord| record.key.strip_prefix(NEIGHBOURS_KEY)?.try_into().ok().map(u64::from_be_bytes);
        let mut sets: Vec<(u64, Option<Neighbours>)> = stored
            .iter()
            .filter_map(|record| Some((number(record)?, Neighbours::decode(&record.value).ok())))
            .collect();
        sets.sort_unstable_by_key(|(number, _)| *number);
        let mut forgotten = Vec::new();
        for (number, neighbours) in sets {
            match neighbours.filter(|_| self.directory.is_some()) {
                Some(neighbours) => {
                    self.kept_sets.push((number, neighbours.digest()));
                    if self.config.validates {
                        self.output.push_back(MemberOutput::Members { set: number, neighbours: Arc::new(neighbours) });
                    }
                }
                None => forgotten.push((number, None)),
            }
        }
        self.write_sets(forgotten);
    }

    /// Keeps the neighbours of a set over restarts if they are others than the last one's.
    fn keep_set(&mut self, number: u64, neighbours: &Neighbours) {
        if self.kept_sets.last().is_some_and(|(last, digest)| *last >= number || *digest == self.neighbours) {
            return;
        }
        let mut changes = vec![(number, Some(neighbours.encode()))];
        self.kept_sets.push((number, self.neighbours));
        while self.kept_sets.len() > KEPT_SETS {
            changes.push((self.kept_sets.remove(0).0, None));
        }
        self.write_sets(changes);
    }

    fn write_sets(&mut self, records: Vec<(u64, Option<Vec<u8>>)>) {
        if records.is_empty() {
            return;
        }
        let key = |number: u64| [NEIGHBOURS_KEY, &number.to_be_bytes()].concat();
        let change = |(number, value)| Change { table: crate::party::META, key: key(number), value };
        self.next_persist += 1;
        self.output.push_back(MemberOutput::Persist {
            id: self.next_persist,
            changes: records.into_iter().map(change).collect(),
        });
    }

    /// Takes fresh entropy of the system, before every input and timeout: what a copy of this process makes from then on
    /// differs from what this one makes.
    pub fn reseed(&mut self, fresh: &Seed) {
        self.rng.reseed(fresh);
    }

    /// What is checked of every route.
    fn route_rules(&self) -> RouteRules<'_> {
        self.config.rules(self.set.as_ref(), self.data.in_force())
    }

    fn event(&mut self, event: MemberEvent) {
        self.output.push_back(MemberOutput::Event(event));
    }

    fn alarm(&mut self, alarm: Alarm) {
        self.counters.alarms += 1;
        self.event(MemberEvent::Alarm(alarm));
    }

    /// Sends a frame, if there is a session: the first frame on a link is the hello, which waits for both links, and the second begins
    /// the session, which waits for both welcomes. Where there is
    /// no credit for it, it is left out, and what follows is as if it had come too late: whoever
    /// makes long frames asks [`Member::has_credit`] first.
    fn send(&mut self, party: PartyNumber, frame: &FromMember) {
        let number = index(party);
        let (Some(link), Some(sending)) = (self.links[number], &mut self.sending[number]) else { return };
        let is_greeting =
            matches!(frame, FromMember::Hello { .. } | FromMember::Begin { .. } | FromMember::Credit { .. });
        if self.session.is_none() || (self.version.is_none() && !is_greeting) {
            return;
        }
        let bytes = frame.encode();
        if !matches!(frame, FromMember::Credit { .. }) {
            let cost = credit::cost_from_member(&bytes);
            if !sending.has_credit(cost) {
                self.counters.without_credit += 1;
                return;
            }
            sending.send(cost, Instant(0));
        }
        self.counters.bytes_sent += bytes.len() as u64;
        self.link_octets[number][1] += bytes.len() as u64;
        self.output.push_back(MemberOutput::Send { link, frame: bytes });
    }

    /// Whether both parties can be sent another object, of any size.
    fn has_credit(&self) -> bool {
        self.sending.iter().all(|sending| sending.as_ref().is_some_and(|sending| sending.has_credit(OBJECT_CREDIT)))
    }

    /// Grants each party what this member has taken up, a tick after it came or by the schedule: as with rankings, the moment of
    /// sending does not show how much work it was.
    fn grant(&mut self, now: Now) {
        for party in [PartyNumber::One, PartyNumber::Two] {
            if let Some(limit) = self.receiving[index(party)].grant(now.instant) {
                self.send(party, &FromMember::Credit { limit });
            }
        }
    }

    fn party_of(&self, link: LinkId) -> Option<PartyNumber> {
        [PartyNumber::One, PartyNumber::Two].into_iter().find(|party| self.links[index(*party)] == Some(link))
    }

    fn link_up(&mut self, link: LinkId, party: PartyNumber) {
        self.links[index(party)] = Some(link);
        self.sending[index(party)] = Some(Sending::new(credit::FROM_MEMBER, Instant(0)));
        self.receiving[index(party)] = Receiving::new(credit::TO_MEMBER);
        if self.links.iter().all(Option::is_some) {
            let session = self.rng.draw(&[b"session"]).bytes();
            self.session = Some(session);
            for party in [PartyNumber::One, PartyNumber::Two] {
                let hello = FromMember::Hello {
                    versions: self.config.speaks.versions,
                    exchange: self.config.exchange.clone(),
                    slot: self.config.slot,
                    session,
                    select_best: self.config.select_best,
                    formats: self.config.speaks.formats,
                    later: Vec::new(),
                };
                self.send(party, &hello);
            }
        }
    }

    /// Begins the session once both parties have welcomed this member, in the highest version that all three speak.
    fn begin(&mut self, now: Now) {
        let (Some(_), None, [Some(one), Some(two)]) = (self.session, self.version, self.told) else { return };
        let Some(version) = versions::common(&[self.config.speaks.versions, one, two]) else {
            return self.versions_differ([one, two], now);
        };
        self.version = Some(version);
        for party in [PartyNumber::One, PartyNumber::Two] {
            self.send(party, &FromMember::Begin { version, told: [one, two] });
        }
        self.send_held();
    }

    /// There is no version that this member and both parties speak.
    fn versions_differ(&mut self, parties: [Versions; 2], now: Now) {
        let [one, two] = parties;
        let ours = self.config.speaks.versions;
        let reason = format!("party 1 speaks version {one} of the protocol, party 2 {two} and this proxy {ours}");
        self.event(MemberEvent::NoVersion { parties, ours });
        self.close_all(&reason, now);
    }

    /// One link failed: the session ends, and the other link is closed to be connected again with it.
    fn link_down(&mut self, link: LinkId, now: Now) {
        self.link_ended(link, false, now);
    }

    /// The same; `refused` if it is of no use to connect again soon.
    fn link_ended(&mut self, link: LinkId, refused: bool, now: Now) {
        let Some(party) = self.party_of(link) else { return };
        self.links[index(party)] = None;
        if self.session.take().is_none() {
            return;
        }
        self.end_session(now);
        for other in self.links.iter_mut().filter_map(Option::take).collect::<Vec<_>>() {
            let reason = "the link to the other party is down; both links are connected again".to_owned();
            self.output.push_back(MemberOutput::Close { link: other, reason, refused });
        }
    }

    fn end_session(&mut self, now: Now) {
        let was_up = std::mem::take(&mut self.welcomed) == [true; 2];
        self.version = None;
        self.told = [None; 2];
        self.exports = [None; 2];
        self.parts = [Vec::new(), Vec::new()];
        self.synced = false;
        self.sync = None;
        self.ahead = None;
        self.deferred = None;
        self.max_blobs = [u32::MAX; 2];
        self.formats = [self.config.speaks.formats.highest; 2];
        self.epoch = 0;
        self.epochs = [0; 2];
        self.clear_halves();
        self.presented = [None, None];
        self.differ_since = None;
        self.close_rounds();
        (self.saying, self.saying_due) = (None, None);
        self.questions.clear();
        self.named = Named::default();
        self.announcements.session_lost();
        self.lost_since.get_or_insert(now.instant);
        if was_up {
            self.event(MemberEvent::SessionDown);
        }
    }

    fn fail(&mut self, party: PartyNumber, what: String, now: Now) {
        self.counters.bad_frames += 1;
        self.alarm(Alarm { what: what.clone(), handle: None, suspects: vec![Suspect::Party(number(party))] });
        self.close(party, what, false, now);
    }

    fn close(&mut self, party: PartyNumber, reason: String, refused: bool, now: Now) {
        if let Some(link) = self.links[index(party)] {
            self.output.push_back(MemberOutput::Close { link, reason, refused });
            self.link_ended(link, refused, now);
        }
    }

    /// A party does not take the hello: the operator is told, and both links begin again later.
    fn rejected(&mut self, party: PartyNumber, why: Rejection, now: Now) {
        let reason = format!("this proxy closed it, since party {} refuses it: {why}", number(party));
        self.event(MemberEvent::Rejected { party: number(party), why });
        self.close_all(&reason, now);
    }

    /// The parties do not multiply policy and key in one way, so nothing that is announced could be opened.
    fn exports_differ(&mut self, modes: [ExportMode; 2], now: Now) {
        let [one, two] = modes.map(|mode| mode.to_string());
        let reason =
            format!("party 1 has `export = \"{one}\"` and party 2 `export = \"{two}\"`; their operators must agree");
        self.event(MemberEvent::ExportsDiffer { modes: [one, two] });
        self.close_all(&reason, now);
    }

    /// Ends the session for a reason that the operators have to mend.
    fn close_all(&mut self, reason: &str, now: Now) {
        for link in self.links.iter_mut().filter_map(Option::take).collect::<Vec<_>>() {
            self.output.push_back(MemberOutput::Close { link, reason: reason.to_owned(), refused: true });
        }
        if self.session.take().is_some() {
            self.end_session(now);
        }
    }

    /// Who multiplies policy and key, as both parties say.
    fn export(&self) -> ExportMode {
        self.exports[0].unwrap_or_default()
    }

    fn on_frame(&mut self, link: LinkId, bytes: &[u8], now: Now) {
        let Some(party) = self.party_of(link) else { return };
        self.counters.bytes_received += bytes.len() as u64;
        self.link_octets[index(party)][0] += bytes.len() as u64;
        if let Ok(ToMember::Credit { limit }) = ToMember::decode(bytes) {
            let granted = self.sending[index(party)].as_mut().map(|sending| sending.granted(limit, now.instant));
            if let Some(Err(what)) = granted {
                self.fail(party, what.to_owned(), now);
            }
            return;
        }
        let taken_up = self.schedule.done(now.instant, self.tick);
        match self.receiving[index(party)].received(credit::cost(bytes.len()), taken_up) {
            Ok(()) => self.on_whole_frame(party, bytes, now),
            Err(what) => self.fail(party, what.to_owned(), now),
        }
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
        match ToMember::decode_in(self.version.unwrap_or(versions::FIRST), bytes) {
            Err(error) => {
                let kind = bytes.first().copied().unwrap_or_default();
                self.fail(party, format!("malformed frame {kind:#04x}: {error}"), now);
            }
            Ok(ToMember::Welcome {
                versions: theirs,
                session,
                epoch,
                high_water,
                tick_ms,
                export,
                max_blob,
                budget,
                format,
                set,
                later: _,
            }) => {
                if Some(session) != self.session || self.welcomed[index(party)] {
                    self.fail(party, "a welcome for another session, or a second one".to_owned(), now);
                    return;
                }
                if versions::common(&[theirs, self.config.speaks.versions]).is_none() {
                    self.fail(party, versions::nothing_common(theirs, self.config.speaks.versions), now);
                    return;
                }
                // Before anything of it is kept: versions up to the one that it names are used no more, over all restarts.
                if is_leap(high_water, Heard::Relayed, now.unix) || tick_ms > MAX_TICK_MS {
                    self.fail(
                        party,
                        "a version near the end of what there is, or more than a minute between batches".to_owned(),
                        now,
                    );
                    return;
                }
                self.welcomed[index(party)] = true;
                self.told[index(party)] = Some(theirs);
                self.tick = Duration::from_millis(u64::from(tick_ms));
                self.exports[index(party)] = Some(export);
                self.max_blobs[index(party)] = max_blob;
                self.formats[index(party)] = format;
                if party == PartyNumber::One {
                    self.budget = Some(budget);
                }
                if let [Some(one), Some(two)] = self.exports
                    && one != two
                {
                    self.exports_differ([one, two], now);
                    return;
                }
                self.announcements.version_seen(high_water);
                if self.announcements.are_versions_spent() {
                    let what = "all versions of this slot are used; ask the exchange for a new slot".to_owned();
                    self.alarm(Alarm { what, handle: None, suspects: vec![Suspect::Party(number(party))] });
                }
                self.on_renew(party, epoch, &set, now);
                if party == PartyNumber::One {
                    let shown = self.presented[index(party)].as_ref().and_then(|shown| shown.next.as_ref());
                    self.party_limit = shown.and_then(|shown| party_limit(budget.prefixes, self.limit_in(shown.set())));
                }
                self.begin(now);
                self.formats_changed();
            }
            Ok(ToMember::Rejected { why: why @ Rejection::Removed { .. } }) => self.rejected(party, why, now),
            Ok(ToMember::Rejected { why: why @ Rejection::Told { .. } }) if self.version.is_some() => {
                self.rejected(party, why, now);
            }
            Ok(_) if self.version.is_none() && self.welcomed[index(party)] => {
                self.fail(party, "a frame before the session has begun".to_owned(), now);
            }
            Ok(ToMember::Rejected { why }) if !self.welcomed[index(party)] && self.session.is_some() => {
                self.rejected(party, why, now);
            }
            Ok(ToMember::Rejected { .. }) => self.fail(party, "a rejection of no hello".to_owned(), now),
            Ok(_) if !self.welcomed[index(party)] => {
                self.fail(party, "a frame before the welcome".to_owned(), now);
            }
            Ok(ToMember::Renew { epoch, set }) => self.on_renew(party, epoch, &set, now),
            Ok(ToMember::Tick(tick)) => self.half_tick(party, tick, now),
            Ok(ToMember::Outcome { seq, first, share }) => self.half_outcome(party, seq, first, &share, now),
            Ok(ToMember::Progress { seq }) => self.round_goes_on(seq, now),
            Ok(ToMember::Missed { seq, why }) => self.ranking_missed(seq, why),
            Ok(ToMember::Refused { version, reason }) => self.refused(version, reason, now),
            Ok(ToMember::Part { last, bytes }) => self.part(party, last, &bytes, now),
            Ok(ToMember::Queued { ahead }) => {
                self.ahead = Some(ahead);
                self.event(MemberEvent::Queued { ahead });
            }
            Ok(ToMember::Deferred { seconds }) => {
                self.deferred = Some(seconds);
                self.event(MemberEvent::Deferred { seconds });
            }
            Ok(ToMember::OwnOrder { seconds }) => self.event(MemberEvent::OwnOrder { seconds }),
            Ok(ToMember::Compare) if party == PartyNumber::One => self.saying = Some(Saying::Buckets),
            Ok(ToMember::NameObjects { question, after, buckets, from }) if party == PartyNumber::One => {
                self.asked(Question::Objects { question, after, buckets, from });
            }
            Ok(ToMember::NameInstances { question, after, buckets, from }) if party == PartyNumber::One => {
                self.asked(Question::Instances { question, after, buckets, from });
            }
            Ok(ToMember::Compare | ToMember::NameObjects { .. } | ToMember::NameInstances { .. }) => {
                self.fail(party, "a frame that only party 1 sends".to_owned(), now);
            }
            Ok(ToMember::Format { format }) => {
                self.formats[index(party)] = format;
                self.formats_changed();
            }
            #[cfg(feature = "next-version")]
            Ok(ToMember::Begun { .. }) => {}
            Ok(ToMember::Credit { .. }) => self.fail(party, "a grant of credit in a part".to_owned(), now),
        }
    }

    /// The format in which this member announces: the highest that it reads, and all others do as both parties say.
    pub(in crate::member) fn format(&self) -> u16 {
        self.formats.into_iter().fold(self.config.speaks.formats.highest, u16::min)
    }

    /// What was announced in a format that not all members read any more is announced again.
    fn formats_changed(&mut self) {
        if self.version.is_some() {
            self.announcements.repeat_above(self.format(), &self.policy);
        }
    }

    /// Takes a party's epoch, and the member set that it shows. The set is used once both parties show it.
    fn on_renew(&mut self, party: PartyNumber, epoch: u64, bytes: &[u8], now: Now) {
        if is_epoch_leap(epoch, Heard::Used, now.unix) {
            self.fail(party, "an epoch near the end of what there is".to_owned(), now);
            return;
        }
        let trust = trust(&self.config);
        let shown = match &self.directory {
            Some(directory) => directory.succeed(bytes),
            None => Err(ChainError::OtherOperators),
        };
        let shown = match shown {
            // Whoever names another exchange or other operators in the configuration trusts those, and not what was in force.
            Err(ChainError::OtherExchange(_) | ChainError::OtherOperators) if !self.trusts_stored() => {
                Directory::open(bytes, &trust).map(|directory| {
                    self.forget_stored();
                    let id = directory.id();
                    Succession::Newer(Box::new(directory), id)
                })
            }
            shown => shown,
        };
        let shown = match shown {
            Ok(Succession::Same) => self.directory.clone().map(|directory| (directory.id(), Some(directory))),
            // A removal that this member knows is not in what the party shows: that one is past.
            Ok(Succession::Newer(next, id)) => Some((id, Some(next).filter(|next| next.id() == id).map(Arc::from))),
            Ok(Succession::Older(id)) => Some((id, None)),
            Err(error) => {
                // Not the party erred, but most likely this configuration.
                let is_ours = matches!(error, ChainError::OtherExchange(_) | ChainError::OtherOperators);
                return self.refuse_set(party, &format!("that does not count: {error}"), !is_ours, now);
            }
        };
        let foreign = |(_, next): &(SetId, Option<Arc<Directory>>)| next.as_ref()?.check(&trust).err();
        if let Some(error) = shown.as_ref().and_then(foreign) {
            return self.refuse_set(party, &format!("that does not count: {error}"), false, now);
        }
        let Some((id, next)) = shown else { return };
        if let Some(next) = &next {
            let roles = KeyRoles::of(self.config.keys.iter().copied());
            if let Err(shared) = roles.and_then(|mut roles| roles.add_directory(next)) {
                return self.refuse_set(party, &format!("that gives one key two roles: {shared}"), true, now);
            }
        }
        if next.is_none() {
            let in_force = self.set.as_ref().map_or(0, |set| set.number);
            self.event(MemberEvent::OlderSet { party: number(party), shown: id.number, in_force });
        }
        self.epoch = self.epoch.max(epoch);
        self.epochs[index(party)] = epoch;
        self.presented[index(party)] = Some(Presented { id, next });
        if let [Some(one), Some(two)] = &self.presented {
            if one.id == two.id {
                self.differ_since = None;
                let next = one.next.clone();
                self.adopt(next);
            } else {
                self.differ_since = Some(now.instant);
            }
        }
    }

    /// Whether what was in force is of the exchange and of the operators that the configuration names.
    fn trusts_stored(&self) -> bool {
        self.directory.as_ref().is_some_and(|directory| directory.check(&trust(&self.config)).is_ok())
    }

    /// What was in force is another exchange's, or other operators': nothing of it counts.
    fn forget_stored(&mut self) {
        self.directory = None;
        let forgotten = std::mem::take(&mut self.kept_sets);
        self.write_sets(forgotten.into_iter().map(|(number, _)| (number, None)).collect());
    }

    /// A set of a party is not used; `is_misbehaviour` if no honest party shows it.
    fn refuse_set(&mut self, party: PartyNumber, why: &str, is_misbehaviour: bool, now: Now) {
        self.event(MemberEvent::SetRefused { party: number(party), why: why.to_owned() });
        let what = format!("a member set {why}");
        self.counters.bad_frames += 1;
        if is_misbehaviour {
            self.alarm(Alarm { what: what.clone(), handle: None, suspects: vec![Suspect::Party(number(party))] });
        }
        self.close(party, what, true, now);
    }

    /// Whether both parties showed one set when they sent the halves of a tick, and it is in force. If not, nothing is used.
    fn agree_on_set(&mut self, one: Option<Presented>, two: Option<Presented>, now: Now) -> bool {
        let (Some(one), Some(two)) = (one, two) else { return false };
        if one.id == two.id && one.next.is_some() {
            self.adopt(one.next);
            return true;
        }
        self.sets_differ([one.id, two.id], now);
        false
    }

    /// The parties show different sets, or one that is past: the session ends, and begins again.
    fn sets_differ(&mut self, shown: [SetId; 2], now: Now) {
        self.counters.alarms += 1;
        self.event(MemberEvent::SetsDiffer { numbers: shown.map(|id| id.number) });
        let first = self.links[0];
        for link in self.links.iter().flatten().copied().collect::<Vec<_>>() {
            let reason = "the two parties show different member sets; nothing is used until they show one".to_owned();
            self.output.push_back(MemberOutput::Close { link, reason, refused: false });
        }
        self.links = [first, None];
        if let Some(link) = first {
            self.link_down(link, now);
        }
    }

    /// A set that both parties show is in force, and durable before anything is announced under it.
    fn adopt(&mut self, next: Option<Arc<Directory>>) {
        let Some(next) = next else { return };
        let before = self.directory.as_ref();
        // Most ticks show what is in force, which needs no hash.
        if self.set.is_some() && before.is_some_and(|before| Arc::ptr_eq(before, &next)) {
            return;
        }
        let is_newer = before.is_none_or(|before| next.id().number > before.id().number);
        if !is_newer && self.set.is_some() {
            return;
        }
        if !is_newer && before.is_some_and(|before| before.id() != next.id()) {
            return;
        }
        let set = MemberSet::clone(next.set());
        let own = set.slots.get(self.config.slot as usize).filter(|slot| slot.active);
        if own.is_none_or(|slot| slot.sign != self.signing.verifying_key().to_bytes()) {
            self.event(MemberEvent::NotAMember { slot: self.config.slot });
        }
        if is_newer {
            self.next_persist += 1;
            let change = Change { table: crate::party::META, key: SET_KEY.to_vec(), value: Some(next.encode()) };
            self.output.push_back(MemberOutput::Persist { id: self.next_persist, changes: vec![change] });
            self.storing_set = Some(self.next_persist);
        }
        self.keys = next.signing_keys();
        self.neighbours = set.neighbours_digest();
        if self.config.validates {
            let neighbours = Neighbours::of(&set);
            self.keep_set(set.number, &neighbours);
            self.output.push_back(MemberOutput::Members { set: set.number, neighbours: Arc::new(neighbours) });
        }
        self.notify_of_new_members(&next);
        self.notify_of_shared_keys(&set);
        self.assess_moved(&set);
        let before = self.directory.iter().flat_map(|before| &before.set().slots);
        if before.zip(&set.slots).any(|(before, now)| before.held && !now.held) {
            // A slot is held no more. All is announced again: which routes that concerns, and whether this member had
            // released the slot before, must not show.
            self.announcements.repeat_all(&self.policy);
        }
        self.directory = Some(next);
        self.set = Some(set);
        self.take_data();
        self.count_prefixes();
        if self.storing_set.is_none() {
            self.set_grew();
        }
    }

    /// This member's limit of prefixes in a set, or zero.
    fn limit_in(&self, set: &MemberSet) -> u32 {
        set.slot(self.config.slot).map_or(0, |own| own.max_prefix)
    }

    fn durable(&mut self, id: PersistId) {
        self.announcements.durable(id);
        if self.storing_set == Some(id) {
            self.storing_set = None;
            self.set_grew();
        }
    }

    /// Reports slots that were in no directory that was in force here, and at start those that it holds.
    fn notify_of_new_members(&mut self, next: &Directory) {
        let is_first = self.set.is_none();
        let known = self.directory.as_ref().map(|before| before.set().slots.len());
        let mut first_of = BTreeMap::new();
        for (id, slot) in next.set().iter() {
            let first = *first_of.entry(slot.asn).or_insert(id);
            let earlier = (first != id).then_some(first);
            let held = self.policy.holds(id, slot);
            // Without an earlier directory, slots that are nothing special are not reported.
            let is_new = known.map_or(earlier.is_some(), |known| id as usize >= known);
            if slot.active && id != self.config.slot && (is_new || (held && is_first)) {
                let (name, asn) = (slot.name.clone(), slot.asn.0);
                self.event(MemberEvent::NewMember { slot: id, name, asn, earlier, held });
            }
        }
    }

    /// Says who lists an attestation key of this member's AS.
    fn notify_of_shared_keys(&mut self, set: &MemberSet) {
        let own = self.config.keys.iter().filter_map(|(role, key)| match role {
            KeyRole::Attestation(asn) => Some((*asn, *key)),
            _ => None,
        });
        let lists = |asn: Asn, key: [u8; 32]| {
            let lists = move |keys: &Vec<AttestKey>| keys.iter().any(|listed| listed.key == key);
            set.attest.iter().filter(move |(other, keys)| **other != asn && lists(keys)).map(|(other, _)| *other)
        };
        let others: Vec<Asn> = own.flat_map(|(asn, key)| lists(asn, key)).collect();
        for other in others {
            let what = format!(
                "{other} lists an attestation key of this member's AS as its own; it cannot sign with it: ask its holder, and the exchange"
            );
            let slot = set.slots_of(other).next();
            self.alarm(Alarm { what, handle: None, suspects: vec![Suspect::Announcer(slot)] });
        }
    }

    /// Routes of announcers whose addresses changed are assessed anew: their next hops may be usable now, or no more. So are those of
    /// announcers that were removed, which end at once, and under another profile all routes.
    fn assess_moved(&mut self, set: &MemberSet) {
        let Some(before) = &self.set else { return };
        self.rules += 1;
        self.touched.extend(self.kept.prefixes());
        let has_changed = before.profile != set.profile || before.data != set.data;
        let is_moved = |slot: u32| {
            let of = |set: &'_ MemberSet| set.slot(slot).map(|slot| (slot.active, slot.addresses.clone()));
            has_changed || of(before) != of(set)
        };
        for route in self.routes.values_mut() {
            let Some(open) = route.opened.as_ref().filter(|open| is_moved(open.slot)) else { continue };
            route.assessment = None;
            self.touched.extend(open.prefixes.iter().map(|nlri| nlri.prefix));
        }
    }

    /// Slots that get no routes because this member has not let them.
    fn held_slots(&self) -> Vec<u32> {
        let slots = self.set.iter().flat_map(MemberSet::iter);
        slots.filter(|(id, slot)| slot.active && self.policy.holds(*id, slot)).map(|(id, _)| id).collect()
    }

    /// Whether the member set lists this member as active.
    fn is_listed(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.active(self.config.slot).is_some())
    }

    /// The effects of an input that wait until all of it is processed.
    fn settle(&mut self, now: Now) {
        self.at = now.instant;
        self.slices.ended(now.instant);
        self.turn_limits(now);
        self.catch_up(now);
        self.flush(now);
        self.rank_due(now);
        self.say_due(now);
        self.grant(now);
    }

    /// When something leaves next at a fixed time.
    fn next_sending(&self) -> Option<Instant> {
        let rank = self.rankings_due.front().map(|due| due.at);
        let says = self.saying_due.filter(|_| self.has_to_say());
        let grants = self.receiving.iter().filter_map(Receiving::deadline).min();
        [rank, says, grants].into_iter().flatten().min()
    }
}

/// The directory that was in force last at the member whose store held these records, whoever signed it.
#[must_use]
pub fn stored_directory(stored: &[StoredRecord]) -> Option<Directory> {
    let record = stored.iter().find(|record| record.key == SET_KEY)?;
    Directory::decode(&record.value).ok()
}

/// The limit of prefixes that a party itself sets, if it shows: it allows fewer than the member set, which has zero if it has no limit.
fn party_limit(allowed: u32, in_set: u32) -> Option<u32> {
    (in_set == 0 || allowed < in_set).then_some(allowed)
}

/// What a member may cost where the member set in force has this limit, or zero, and the party this one of its own.
fn budget_under(said: BudgetLeft, in_set: u32, of_party: Option<u32>) -> BudgetLeft {
    let in_set = if in_set == 0 { said.prefixes } else { in_set };
    let prefixes = of_party.map_or(in_set, |of_party| of_party.min(in_set));
    if prefixes == said.prefixes {
        return said;
    }
    BudgetLeft { prefixes, max_stored: octets_stored(prefixes), ..said }
}

/// The format of a member's store that this program writes, which is the first one: it has no record of it.
const STORE_FORMAT: u64 = 1;

/// Why a member cannot start with its store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the store has format {found}, and this program reads up to {STORE_FORMAT}: a newer release of Wayleave wrote it; run that release, or move the store away and start again: this proxy then believes the member set that both parties show it, and learns from them which versions of its slot are used"
    )]
    Newer { found: u64 },
    #[error("the store does not say which format it has; it is damaged, or no member's: move it away and start again")]
    Damaged,
}

/// Whether this program reads a member's store.
///
/// # Errors
/// It was written by a newer program, and is left as it is.
pub fn check_store(stored: &[StoredRecord]) -> Result<(), StoreError> {
    match crate::party::format_of(stored) {
        Some(found) if found > STORE_FORMAT => Err(StoreError::Newer { found }),
        Some(_) => Ok(()),
        None => Err(StoreError::Damaged),
    }
}

/// Whom the member trusts to say who is a member.
fn trust(config: &MemberConfig) -> Trust {
    let operators = config.operators.each_ref().map(VerifyingKey::to_bytes);
    Trust { exchange: config.exchange.clone(), operators }
}

/// What a member says of what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Saying {
    Roots,
    Buckets,
}

/// What party 1 asks: what this member holds of some buckets from a hash on, after a batch.
enum Question {
    Objects { question: u32, after: Seq, buckets: BucketSet, from: Handle },
    Instances { question: u32, after: Seq, buckets: BucketSet, from: InstanceHash },
}

impl Question {
    fn after(&self) -> Seq {
        let (Self::Objects { after, .. } | Self::Instances { after, .. }) = self;
        *after
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
            MemberInput::LinkUp { link, party, exporter } => {
                self.rng.bind(&exporter);
                self.links_since[index(party)] = Some(now.instant);
                self.link_up(link, party);
            }
            MemberInput::LinkDown { link } => self.link_down(link, now),
            MemberInput::Frame { link, bytes } => self.on_frame(link, &bytes, now),
            MemberInput::Persisted(id) => self.durable(id),
            MemberInput::RouterUp => self.announcements.router_up(now.instant + self.config.settle),
            MemberInput::RouterDown => self.announcements.router_down(),
            MemberInput::RouterStale(stale) => self.announcements.router_stale(&stale),
            MemberInput::NotStale(routes) => self.announcements.not_stale(&routes),
            MemberInput::ClearedUpdate { withdrawn, announced, attributes } => {
                self.announcements.router_update(&withdrawn, &announced, attributes.as_ref());
            }
            MemberInput::Signed { announced, attributes, under } => {
                self.announcements.signed(&announced, &attributes, under);
            }
            MemberInput::Findings { handle, findings } => self.on_findings(handle, findings),
            MemberInput::ClearedEndOfRib => self.announcements.end_of_rib(),
            MemberInput::Policy(policy) => self.policy_changed(policy),
            MemberInput::Origins(origins) => self.origins_changed(origins),
            MemberInput::Data(offered) => self.data_offered(*offered, now.unix),
        }
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.announcements.handle_timeout(now.instant);
        self.overdue_choices(now);
        if self.differ_since.is_some_and(|since| now.instant.since(since) >= SET_WAIT)
            && let [Some(one), Some(two)] = &self.presented
        {
            self.sets_differ([one.id, two.id], now);
        }
        if self.lost_since.is_some_and(|since| now.instant.since(since) >= self.config.stale) {
            self.lost_since = None;
            self.forget_everything();
        }
        self.expire_kept(now);
        for prefix in self.late_successors(now) {
            self.install(prefix, now);
        }
        // For a prefix whose outcome is still awaited, the outcome decides.
        self.successors.retain(|_, until| *until > now.instant);
        self.settle(now);
        self.work(now);
    }

    fn poll(&mut self) -> Option<MemberOutput> {
        self.output.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let stale = self.lost_since.map(|since| since + self.config.stale);
        let work = self.may_work(self.at).then_some(self.at);
        let rounds = self.rounds.values().map(|round| round.heard + select::OUTCOME_WAIT).min();
        let announce = self.announcements.deadline(self.may_announce() && self.has_credit());
        let successor = self.successors.values().min().copied();
        let differ = self.differ_since.map(|since| since + SET_WAIT);
        let kept = self.kept.first().map(|since| since + self.config.stale);
        let limits = self.limits.deadline().filter(|_| self.sync.is_none());
        let sending = self.next_sending();
        [stale, kept, limits, sending, work, rounds, announce, successor, differ].into_iter().flatten().min()
    }
}

impl Member {
    fn refused(&mut self, version: u64, reason: Refusal, now: Now) {
        self.counters.refused += 1;
        self.event(MemberEvent::Refused { version, reason });
        self.announcements.refused(version, reason, now.instant);
    }

    fn policy_changed(&mut self, policy: Box<Policy>) {
        self.policy = policy;
        self.rules += 1;
        // Also if the request is lost with the link.
        self.instances.forget_results();
        self.announcements.policy_changed(&self.policy);
        self.request_resync();
        for route in self.routes.values_mut() {
            route.assessment = None;
        }
        self.touched.extend(self.choices.keys().copied());
        self.touched.extend(self.kept.prefixes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_prefixes_follows_the_member_set() {
        let said = |prefixes| BudgetLeft { prefixes, max_stored: octets_stored(prefixes), ..BudgetLeft::default() };
        assert_eq!(budget_under(said(100_000), 3, None), said(3), "lowered");
        assert_eq!(budget_under(said(3), 100_000, None), said(100_000), "raised, with what may be stored");
        assert_eq!(budget_under(said(50), 0, None), said(50), "a set that states none");
    }

    #[test]
    fn a_lower_limit_of_the_partys_own_outlives_every_set() {
        let said = |prefixes| BudgetLeft { prefixes, max_stored: octets_stored(prefixes), ..BudgetLeft::default() };
        let of_party = party_limit(50, 100);
        assert_eq!(of_party, Some(50));
        for (in_set, allowed) in [(100, 50), (20, 20), (200, 50), (0, 50)] {
            assert_eq!(budget_under(said(50), in_set, of_party), said(allowed), "{in_set}");
        }
        assert_eq!((party_limit(100, 100), party_limit(50, 0)), (None, Some(50)));
    }
}

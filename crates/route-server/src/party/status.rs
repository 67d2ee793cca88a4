//! A party's status and events. Nothing here depends on a policy, a ranking, a route or a result.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use wayleave_core::Instant;

use super::Party;
use super::batches::Stage;
use super::budget::prefixes_allowed;
use crate::frames::Refusal;
use crate::object::Kind;
use crate::object_table::Part;
use crate::versions::Versions;

/// Counts since start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    pub objects: u64,
    pub refused: u64,
    /// Signatures of objects that were checked, of refused ones too.
    pub verified: u64,
    /// Frames that broke the protocol.
    pub bad_frames: u64,
    /// Inputs and timers after which batches, rounds and links were looked at: not frames that change nothing of these.
    pub advanced: u64,
    pub batches: u64,
    /// Rounds of Select-Best finished.
    pub rounds: u64,
    /// Prefixes times members evaluated.
    pub lanes: u64,
    /// Objects times receivers multiplied with the peer party, in mode `mpc`.
    pub exports: u64,
    /// Shares of objects' keys that were derived for receivers.
    pub delivered: u64,
    /// Objects of batches that were looked at to find what each receiver gets.
    pub scanned: u64,
    /// Objects, instances and buckets that were hashed to compare what members hold.
    pub hashed: u64,
    /// Candidates that were listed to members.
    pub listed: u64,
    /// Comparators times lanes evaluated.
    pub comparators: u64,
    /// Correlations that were asked for.
    pub correlations: u64,
    /// Ticks of more than half a member's credit, which are not sent: what is in them comes in slices.
    pub oversized_ticks: u64,
    /// Rankings that came too late.
    pub missed_rankings: u64,
    /// Rankings that were evaluated after their rounds had begun without them, and those for which there was no budget or no time.
    pub late_rankings: u64,
    pub late_refused: u64,
    /// Sessions with the peer party in which one of the two came with an older store.
    pub older_stores: u64,
    pub engine_messages: u64,
    pub engine_bytes: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
}

/// An event for the party's operator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum PartyEvent {
    /// The parties agreed on what they store.
    Agreed {
        /// Objects that both have.
        objects: usize,
        /// Objects dropped here because the peer party lacks them.
        dropped: usize,
        /// Objects that are lost: what routers have of them stays until their announcers have said what became of them.
        lost: usize,
    },
    /// The link to the peer party is down.
    #[serde(rename = "other-gone")]
    PeerPartyDown,
    /// A frame broke the protocol and its link was closed. `slot` names the member that sent it; `None` is the peer
    /// party.
    BadFrame { slot: Option<u32>, what: String },
    /// An object was refused.
    Refused {
        slot: u32,
        version: u64,
        #[serde(serialize_with = "as_text")]
        reason: Refusal,
    },
    /// The member gave the parties different objects, or one of them none.
    Mismatch { slot: u32, version: u64 },
    /// The member's ranking did not come in time.
    MissedRanking { slot: u32 },
    /// The member's rankings are late again and again: its budget for late ones is spent, and its own order decides.
    LateRankings { slot: u32 },
    /// The member's rankings did not come in time and nobody waits for them; or they are waited for again.
    Probation { slot: u32, begins: bool },
    /// The member takes up too little of what is sent to it: it gets nothing until it has caught up, and then everything; or it
    /// has caught up.
    Behind { slot: u32, begins: bool },
    /// The member asks for everything too often, or connects again too often: it is sent everything later.
    Deferred { slot: u32, seconds: u32 },
    /// The member asked too often to have Select-Best choose among everything: its own order decides.
    OwnOrder { slot: u32, seconds: u32 },
    /// A new recommendation counts only once that of the present epoch has counted for long enough.
    EpochLater { seconds: u32 },
    /// Who took up nothing of what was sent to it for too long lost its link: the member in a slot, or the peer party.
    Stalled { slot: Option<u32> },
    /// The routes of an absent member were removed.
    Expired { slot: u32 },
    /// Stored objects that were shared for another `export` than is configured now: they are removed, and their announcers, who
    /// learn the mode when they connect, send them again.
    OtherExport { objects: usize },
    /// The parties have a key of the order of candidates of this number, which this one had not: they drew it together, or the peer party
    /// had it.
    Order { number: u32, is_drawn: bool },
    /// A party's store holds less than the two had agreed on, as when it was replaced by an older copy.
    OlderStore(OlderStore),
    /// A member says that it took a batch which is in neither party's store: both may have been replaced by older copies, which the parties
    /// cannot see. `holds` is the last batch of the newer one.
    OlderStores { slot: u32, took: u64, holds: u64 },
    /// A member set that was not taken: not signed by both operators, or it does not follow what is in force.
    MembersRefused { why: String },
    /// Up to which format of objects members may announce has changed, with what their programs read.
    Format { format: u16, before: u16 },
    /// The peer party told the member in this slot that it speaks other versions of the protocol than it told this party.
    VersionsDiffer {
        slot: u32,
        #[serde(serialize_with = "as_text")]
        told: Versions,
        #[serde(serialize_with = "as_text")]
        ours: Versions,
    },
    /// The peer party's message does not fit the state of the two-party evaluation.
    Engine { what: String },
}

/// A store that holds less than it did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OlderStore {
    /// Whose it is: 1 or 2.
    pub party: u8,
    /// The last batch in it.
    pub holds: u64,
    /// The last batch that the peer party knows to have been in it.
    pub agreed: u64,
}

/// What a member has spent of its budget at this party, and what is left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemberBudget {
    pub slot: u32,
    pub prefixes: usize,
    pub max_prefixes: u32,
    /// Route objects a second.
    pub max_objects: u32,
    /// Octets of sealed routes, which party 1 stores.
    pub stored: Option<u64>,
    pub max_stored: Option<u64>,
    /// At party 1, how often at once it may still be sent all routes, and have Select-Best choose among them.
    pub resyncs_left: Option<u32>,
    pub choices_left: Option<u32>,
}

/// A member whose greeting does not fit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UnfitGreeting {
    pub slot: u32,
    /// In words, with what it says and what this party knows.
    pub why: String,
}

/// What a member speaks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemberSpeaks {
    pub slot: u32,
    /// The version of its session, if it has one.
    pub protocol_version: Option<u16>,
    /// The versions that it said in its last hello, while it is connected.
    #[serde(serialize_with = "as_text_if_any")]
    pub protocol_versions: Option<Versions>,
    /// The formats of objects that it last said it reads.
    #[serde(serialize_with = "as_text_if_any")]
    pub formats: Option<Versions>,
}

/// For how long the status shows that a party came with an older store.
const OLDER_STORE_SHOWN: Duration = Duration::from_secs(3600);

fn as_text<S: serde::Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_text_if_any<S: serde::Serializer>(value: &Option<Versions>, serializer: S) -> Result<S::Ok, S::Error> {
    value.map(|value| value.to_string()).serialize(serializer)
}

/// The party's status.
#[derive(Clone, Debug, Serialize)]
pub struct PartyStatus {
    pub party: u8,
    pub exchange: String,
    /// `direct` or `mpc`.
    pub export: String,
    pub member_set: u64,
    pub epoch: u64,
    /// The last batch.
    pub batch: u64,
    /// Whether the peer party is connected and agrees on what is stored.
    pub other_party: bool,
    pub objects: usize,
    /// Objects that one party alone had when they compared what they store, and of which their announcers have not said what became.
    pub lost: usize,
    pub prefixes: usize,
    /// Slots whose member is connected to both parties.
    pub members: Vec<u32>,
    /// At party 1, slots for whose rankings nobody waits, since they did not come in time.
    pub on_probation: Vec<u32>,
    /// At party 1, slots whose rankings were late in the last minute, so that their results came later than others'.
    pub late: Vec<u32>,
    /// At party 1, milliseconds beyond the schedule that rounds wait for rankings.
    pub rank_allowance_ms: f64,
    /// Slots that are being sent everything.
    pub synchronising: Vec<u32>,
    /// At party 1, slots whose turn to be sent everything has not come yet.
    pub waiting: Vec<u32>,
    /// At party 1, slots that get nothing until they have taken up what is on the way.
    pub behind: Vec<u32>,
    /// At party 1, slots that asked for everything, or connected, too often, and are sent it later.
    pub deferred: Vec<u32>,
    /// Slots of members that sent more than their budgets in the last minute, would have more stored than theirs, or asked for
    /// everything too often.
    pub over_budget: Vec<u32>,
    /// Slots of members that sent a frame that breaks the protocol in the last minute, for which their links were closed.
    pub misbehaving: Vec<u32>,
    /// Members whose last greeting, in the last minute, did not fit, by their configuration or their release.
    pub unfit_greetings: Vec<UnfitGreeting>,
    /// What each member that is connected, or has routes, has spent of its budget.
    pub budgets: Vec<MemberBudget>,
    /// The versions of the protocol that this party speaks, and the one between the parties while they are connected.
    #[serde(serialize_with = "as_text")]
    pub protocol_versions: Versions,
    pub peer_protocol_version: Option<u16>,
    /// The formats of objects that it reads, and the highest that all members read, too: up to that they announce.
    #[serde(serialize_with = "as_text")]
    pub formats: Versions,
    pub format: u16,
    /// Slots that keep the format from rising to what this party reads.
    pub holding_back: Vec<u32>,
    /// What each member speaks that is connected, or has said which formats it reads.
    pub speaks: Vec<MemberSpeaks>,
    /// If a party came with an older store in the last hour, the last one.
    pub older_store: Option<OlderStore>,
    /// Octets of the objects that wait to be applied, of the member with the most.
    pub octets_waiting: usize,
    /// The same of all members together.
    pub octets_waiting_in_all: usize,
    /// What the party is doing with the last batch.
    pub stage: &'static str,
    /// Rounds of Select-Best whose rankings are awaited, or that are evaluated.
    pub rounds: usize,
    pub counters: Counters,
}

/// All that this party sees of one object.
#[derive(Clone, Debug, Serialize)]
pub struct RouteView {
    pub slot: u32,
    pub version: u64,
    /// `announce`.
    pub kind: &'static str,
    /// The prefixes, visible by design.
    pub prefixes: Vec<String>,
    /// Bytes of the sealed route; none at party 2, which has only the hash.
    pub blob_bytes: Option<usize>,
    /// The first bytes of the blob (party 1) or of its hash (party 2), in hex.
    pub blob: String,
    /// The first slots' shares of the key, in hex: all that this party knows of the policy. In mode `mpc` its share of the key, then
    /// those of the policy, one bit a slot. Empty by default: both parties' shares
    /// together are the policy.
    pub policy_share: Vec<String>,
}

impl Party {
    /// The party's status when something last reached it.
    #[must_use]
    pub fn status(&self) -> PartyStatus {
        self.status_at(self.state.now())
    }

    /// The party's status now: what is shown for a while ends by the clock, also where nothing reaches the party.
    #[must_use]
    pub fn status_at(&self, now: Instant) -> PartyStatus {
        let now = now.max(self.state.now());
        let role = self.role.status(&self.state, now);
        PartyStatus {
            party: self.state.env.config.number.into(),
            exchange: self.state.env.config.exchange.clone(),
            export: self.state.env.config.export.to_string(),
            member_set: self.state.membership.set().number,
            epoch: self.state.membership.epoch(),
            batch: self.state.batches.seq(),
            other_party: self.state.peer_ready(),
            objects: self.state.objects.table().len(),
            lost: self.state.objects.table().lost().len(),
            prefixes: self.state.objects.table().prefixes().count(),
            members: self.state.batches.active().keys().copied().collect(),
            on_probation: role.on_probation,
            late: role.late,
            rank_allowance_ms: role.rank_allowance.as_secs_f64() * 1_000.0,
            synchronising: self.state.batches.synchronising().collect(),
            waiting: role.waiting,
            behind: role.behind,
            deferred: role.deferred,
            over_budget: self.state.links.over_budget(now),
            misbehaving: self.state.links.misbehaving(now),
            unfit_greetings: self.state.links.unfit(now),
            budgets: self.budgets(),
            protocol_versions: self.state.env.config.speaks.versions,
            peer_protocol_version: self.state.links.peer_hello().map(|_| self.state.links.peer_version()),
            formats: self.state.env.config.speaks.formats,
            format: self.state.formats.highest(),
            holding_back: self.state.formats.holding_back(self.state.membership.set()),
            speaks: self.speaks(),
            older_store: self.older_store(now),
            octets_waiting: self.state.objects.waiting().octets_of_largest(),
            octets_waiting_in_all: self.state.objects.waiting().octets_of_all(),
            stage: match self.state.batches.stage() {
                Stage::Agreeing { .. } => "agreeing",
                Stage::Idle => "idle",
                Stage::Proposed { .. } => "proposed",
                Stage::Persisting { .. } => "persisting",
                Stage::Accepted { .. } => "accepted",
                Stage::Exporting(_) => "exporting",
            },
            rounds: self.state.rounds.len(),
            counters: self.state.env.counters.clone(),
        }
    }

    fn older_store(&self, now: Instant) -> Option<OlderStore> {
        let (older, at) = self.state.objects.older_store()?;
        (now.since(*at) < OLDER_STORE_SHOWN).then(|| older.clone())
    }

    fn speaks(&self) -> Vec<MemberSpeaks> {
        let state = &self.state;
        let of = |(slot, _): (u32, &crate::directory::Slot)| {
            let (protocol_versions, formats) = (state.links.versions_of(slot), state.formats.of(slot));
            let protocol_version = state.links.session_of(slot).map(|_| state.links.version_of(slot));
            let is_known = protocol_versions.is_some() || formats.is_some();
            is_known.then_some(MemberSpeaks { slot, protocol_version, protocol_versions, formats })
        };
        state.membership.set().iter().filter(|(_, of)| of.active).filter_map(of).collect()
    }

    fn budgets(&self) -> Vec<MemberBudget> {
        let state = &self.state;
        let slots =
            state.membership.set().iter().filter(|(slot, of)| {
                of.active && (state.links.has(*slot) || state.objects.table().prefixes_of(*slot) > 0)
            });
        let budget = |(slot, of): (u32, &crate::directory::Slot)| {
            let left = self.role.budget_of(state, slot);
            MemberBudget {
                slot,
                prefixes: state.objects.table().prefixes_of(slot),
                max_prefixes: prefixes_allowed(of.max_prefix, state.env.config.max_prefix_limit),
                max_objects: state.env.config.budget.objects,
                stored: left.map(|left| left.stored),
                max_stored: left.map(|left| left.max_stored),
                resyncs_left: left.map(|left| left.syncs_left),
                choices_left: left.map(|left| left.choices_left),
            }
        };
        slots.map(budget).collect()
    }

    /// Counts since start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.state.env.counters
    }

    /// Objects and instances that went into digests of what members hold, so far.
    #[must_use]
    pub fn hashed(&self) -> u64 {
        self.state.objects.table().hashed()
    }

    /// The member set in force.
    #[must_use]
    pub fn members(&self) -> &crate::directory::MemberSet {
        self.state.membership.set()
    }

    /// The directory in force, encoded.
    #[must_use]
    pub fn member_set_bytes(&self) -> std::sync::Arc<[u8]> {
        self.state.membership.bytes()
    }

    /// What this party sees of each live object, in order; at most `most`. `shares` adds its shares, which only a
    /// laboratory that plays both parties may show.
    #[must_use]
    pub fn routes(&self, most: usize, shares: bool) -> Vec<RouteView> {
        let view = |entry: &crate::object_table::ObjectEntry| {
            let description = &entry.header.description;
            let row = if shares { entry.row() } else { Vec::new() };
            RouteView {
                slot: description.slot,
                version: description.version,
                kind: match description.kind {
                    Kind::Announce { .. } => "announce",
                    Kind::Withdraw { .. } => "withdraw",
                    Kind::Column { .. } => "column",
                },
                prefixes: description.prefixes().iter().map(|nlri| nlri.prefix.to_string()).collect(),
                blob_bytes: match &entry.part {
                    Part::One { blob, .. } => Some(blob.len()),
                    Part::Two { .. } => None,
                },
                blob: match &entry.part {
                    Part::One { blob, .. } => hex(&blob[..blob.len().min(24)]),
                    Part::Two { .. } => hex(&entry.header.blob_hash[..24]),
                },
                policy_share: row.chunks(16).take(8).map(hex).collect(),
            }
        };
        self.state.objects.table().entries().take(most).map(view).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

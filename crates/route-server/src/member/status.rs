//! Status, events and explanations for the member's own operator; none of this goes to the parties.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use wayleave_bgp::Attributes;
use wayleave_bgp::aspa::{Flaw, PathState};
use wayleave_bgp::origins::OriginState;
use wayleave_core::{Afi, Asn, Prefix, VerdictKind};

use super::announce::{Bar, OwnState};
use super::data::DataStatus;
use super::receive::{Assessment, OpenRoute, Validation};
use super::select::Awaits;
use super::{Member, budget_under};
use crate::directory::{MemberSet, Slot};
use crate::frames::{self, BudgetLeft, Candidate, MAX_CANDIDATES, Miss, Refusal};
use crate::object::Handle;
use crate::policy::ranking::Rank;
use crate::policy::treatments::{Treatment, Treatments};
use crate::policy::validate::{
    Check, Invalid, Known, Martians, can_be_next_hop, origin_state, path_state, validate, validate_aspa, validate_for,
    validate_known, validate_own_known,
};
use crate::policy::{Decision, Exported, Imported, Rejection, Route, export_decisions};
use crate::versions::Versions;

/// Counts since start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct MemberCounters {
    pub announcements: u64,
    pub withdrawals: u64,
    /// Decisions about who may have a route.
    pub export_decisions: u64,
    /// Objects that a party refused.
    pub refused: u64,
    /// Batches that both parties sent alike.
    pub ticks: u64,
    pub delivered: u64,
    /// Objects delivered and opened.
    pub opened: u64,
    /// Objects delivered that are not exported to this member.
    pub sealed: u64,
    /// Results of validation.
    pub validated: u64,
    pub rankings: u64,
    /// Rankings that were not at both parties in time.
    pub missed_rankings: u64,
    pub outcomes: u64,
    pub alarms: u64,
    /// Frames that broke the protocol.
    pub bad_frames: u64,
    /// Frames of batches that are past.
    pub replayed: u64,
    /// Times that it said anew what it holds.
    pub resyncs: u64,
    /// Frames that were not sent, since a party had not taken up what was sent before.
    pub without_credit: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
}

/// Who could have caused an alarm.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspect {
    Party(u8),
    /// The announcer of the route: its slot, if the route could be opened.
    Announcer(Option<u32>),
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Party(number) => write!(f, "party {number}"),
            Self::Announcer(Some(slot)) => write!(f, "the member in slot {slot}"),
            Self::Announcer(None) => f.write_str("the announcer"),
        }
    }
}

/// Something that cannot happen between honest peers. Alarms are never reported to the parties.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Alarm {
    pub what: String,
    /// The route concerned.
    pub handle: Option<String>,
    pub suspects: Vec<Suspect>,
}

/// An event for the member's operator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum MemberEvent {
    Alarm(Alarm),
    /// A link to a party is down; the session, which was up, ended.
    SessionDown,
    /// A party does not take this member's hello.
    Rejected {
        party: u8,
        #[serde(serialize_with = "as_text")]
        why: frames::Rejection,
    },
    /// So many members are sent what they lack before this one.
    Queued {
        ahead: u32,
    },
    /// Everything was asked for too often, by requests or new links: it is sent in so many seconds at the earliest.
    Deferred {
        seconds: u32,
    },
    /// Everything was asked for too often to have Select-Best choose among it each time: this member's own order decides, and
    /// Select-Best again in so many seconds, or where routes change.
    OwnOrder {
        seconds: u32,
    },
    /// Both parties have sent all live objects.
    Synced {
        objects: usize,
        /// Prefixes that this member announces.
        own: usize,
    },
    /// An own object was refused.
    Refused {
        version: u64,
        #[serde(serialize_with = "as_text")]
        reason: Refusal,
    },
    /// Own objects were extended to new slots.
    Column {
        from: u32,
        to: u32,
        objects: usize,
    },
    /// A slot joined the exchange, or is held when this process starts.
    NewMember {
        slot: u32,
        name: String,
        asn: u32,
        /// An earlier slot of the same AS, also one whose member left.
        earlier: Option<u32>,
        /// Whether this member holds it: it gets no routes.
        held: bool,
    },
    /// The member set does not list this member's key in its slot.
    NotAMember {
        slot: u32,
    },
    /// A member set that a party showed does not count; its link was closed.
    SetRefused {
        party: u8,
        why: String,
    },
    /// A party shows a set that is past, as from an old backup. Nothing is used until it shows the one that was in force.
    OlderSet {
        party: u8,
        shown: u64,
        in_force: u64,
    },
    /// The two parties show different sets, so that nothing is used: the number that each shows (of one number they may still
    /// be two sets).
    SetsDiffer {
        numbers: [u64; 2],
    },
    /// The two parties do not multiply policy and key in one way, so that nothing could be opened: what each says.
    ExportsDiffer {
        modes: [String; 2],
    },
    /// There is no version of the protocol that both parties and this member speak: what each says.
    NoVersion {
        #[serde(serialize_with = "as_texts")]
        parties: [Versions; 2],
        #[serde(serialize_with = "as_text")]
        ours: Versions,
    },
    /// Party 1 went on without this member's ranking of a batch: its own order decides.
    RankingMissed {
        batch: u64,
        #[serde(serialize_with = "as_text")]
        why: Miss,
    },
    /// A result of Select-Best did not come; the member's own ranking decided.
    OutcomeOverdue {
        batch: u64,
    },
    /// So many of the own routes, this one among them, compete no more: more others do than one evaluation takes.
    NotCompeting {
        routes: usize,
        prefix: String,
    },
    /// A route of the router is not announced.
    NotAnnounced {
        prefix: String,
        why: String,
    },
    /// Data of the exchange count from now on: both operators' machines signed them.
    DataTaken {
        number: u64,
        members: usize,
    },
    /// An announcer has more prefixes of a family than it may have, and all of them are left out (`is_out`); or no longer.
    MaxPrefixes {
        slot: u32,
        name: String,
        asn: u32,
        afi: Afi,
        prefixes: usize,
        limit: u32,
        is_out: bool,
    },
    /// Data that were offered do not count; those of before do.
    DataRefused {
        number: u64,
        why: String,
    },
    /// The parties were away too long; what they delivered is withdrawn.
    Stale {
        routes: usize,
    },
    /// A party lost what it stored; so many routes stay in the router until their announcers have said what became of them.
    Kept {
        routes: usize,
    },
}

fn as_texts<S: serde::Serializer>(values: &[impl fmt::Display], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

fn as_texts_if_any<S: serde::Serializer>(values: &[Option<Versions>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| value.map(|value| value.to_string())))
}

fn as_text<S: serde::Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The member's status.
#[derive(Clone, Debug, Serialize)]
pub struct MemberStatus {
    pub exchange: String,
    pub slot: u32,
    /// Whether each party's link is up.
    pub parties: [bool; 2],
    /// Whether both parties have sent all live objects.
    pub synced: bool,
    /// How many members are sent what they lack before this one, while it waits.
    pub ahead: Option<u32>,
    /// In how many seconds, as party 1 last said, what it lacks is sent, where this member asked or connected too often.
    pub deferred: Option<u32>,
    /// What this member may cost the exchange; none before party 1 has said so.
    pub budget: Option<OwnBudget>,
    /// The last batch.
    pub batch: u64,
    /// Routes that the router announces.
    pub router_routes: usize,
    /// How many of them are not announced, and why, for some of them.
    pub not_announced: usize,
    /// How many of those are larger than the parties take.
    pub too_large: usize,
    /// Announced routes that do not compete, since too many others do.
    pub not_competing: usize,
    pub withheld: Vec<Withheld>,
    /// By the reason: how many of the router's routes are not announced, and how many that came are not used since they are not valid.
    pub refused_at_announce: BTreeMap<&'static str, usize>,
    pub refused_at_receive: BTreeMap<&'static str, usize>,
    /// Data of the exchange; `None` where its profile names no machine keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataStatus>,
    /// Changes that both parties have not applied yet.
    pub unconfirmed: usize,
    /// Objects known, sealed ones included.
    pub objects: usize,
    /// Routes of the router that it has not announced again since its session was lost (RFC 4724).
    pub stale_routes: usize,
    /// Prefixes installed in the router.
    pub installed: usize,
    /// Routes that it has beside those (RFC 7911).
    pub further_paths: usize,
    /// How many of them stay though the parties lost their objects, until their announcers have said what became of them.
    pub kept: usize,
    /// Prefixes whose result is awaited.
    pub awaiting: usize,
    /// Slots that get no routes because this member has not let them.
    pub held: Vec<u32>,
    /// Routes that wait to be validated.
    pub validating: usize,
    /// Open routes by verdict; those that could not become best so far were not validated.
    pub verdicts: BTreeMap<String, usize>,
    /// Active slots whose AS has, or had, an earlier one.
    pub further_slots: Vec<FurtherSlot>,
    /// The number of the member set in force; none before both parties have shown one.
    pub member_set: Option<u64>,
    /// The versions of the protocol that this member speaks, those that each party said, and the one of the session.
    #[serde(serialize_with = "as_text")]
    pub protocol_versions: Versions,
    #[serde(serialize_with = "as_texts_if_any")]
    pub party_protocol_versions: [Option<Versions>; 2],
    pub protocol_version: Option<u16>,
    /// The formats of objects that it reads, and the one in which it announces.
    #[serde(serialize_with = "as_text")]
    pub formats: Versions,
    pub format: u16,
    pub counters: MemberCounters,
    /// For the list of peers.
    #[serde(skip)]
    pub party_links: [PartyLink; 2],
    /// Prefixes of which this member may open a route, for the same.
    #[serde(skip)]
    pub open_prefixes: usize,
    /// Prefixes that the parties have of this member, for the same.
    #[serde(skip)]
    pub own_prefixes: usize,
}

/// A link to a party.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PartyLink {
    /// For how long it is up; `None` while it is not.
    pub up: Option<Duration>,
    /// Octets of frames over it and those before it, since the start.
    pub received: u64,
    pub sent: u64,
}

/// What this member may cost the exchange, as party 1 said when this member connected, and what was left then.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OwnBudget {
    /// Prefixes that this member announces now.
    pub prefixes: usize,
    pub max_prefixes: u32,
    /// What the member set in force alone allows, or zero if it states no limit.
    #[serde(skip)]
    pub max_in_set: u32,
    /// Octets of its sealed routes that party 1 stored then.
    pub stored: u64,
    pub max_stored: u64,
    pub objects_per_second: u32,
    pub octets_per_second: u32,
    /// How often it is sent all routes, and how often it might be at once from then on.
    pub resyncs_per_hour: u32,
    pub resyncs_left: u32,
    /// How often Select-Best chooses among those, and how often it might at once from then on.
    pub choices_per_hour: u32,
    pub choices_left: u32,
}

/// A route of the own router that is not announced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Withheld {
    pub prefix: String,
    pub why: String,
}

/// A slot whose AS has, or had, an earlier one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FurtherSlot {
    pub slot: u32,
    pub asn: u32,
    pub name: String,
    /// No key of an earlier slot of the AS signed for it.
    pub held: bool,
}

/// Who announced a route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Announcer {
    pub slot: u32,
    /// `None` without a member set that has the slot; the AS too.
    pub name: Option<String>,
    pub asn: Option<u32>,
}

/// One route in a [`Why`].
#[derive(Clone, Debug, Serialize)]
pub struct WhyRoute {
    /// Its number among the prefix's candidates.
    pub number: usize,
    /// `None` if the route is not exported to this member.
    pub announcer: Option<Announcer>,
    /// The ASes of the path, the announcer's first.
    pub as_path: Option<Vec<u32>>,
    /// The route object, by which validation knows it.
    #[serde(skip)]
    pub handle: Handle,
    /// The verdict of validation; `None` if it was not requested or has no result yet.
    pub verdict: Option<VerdictKind>,
    /// The member's class, bigger preferred; `None` if it is not used.
    pub class: Option<u8>,
    /// What the RPKI says of its origin; absent where nothing is known, or it is sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpki: Option<OriginFound>,
    /// What its ASPA records say of its path; absent where there are none, or it is sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aspa: Option<PathFound>,
    /// Under which path identifier the router has it, where that gets several routes to a prefix (RFC 7911).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_id: Option<u32>,
    #[serde(flatten)]
    pub reason: Reason,
    /// Whether the route has this member's own AS on its path: it came back, and nobody's claim is false.
    pub came_back: bool,
}

/// What the RPKI says of a route's origin (RFC 6811).
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OriginFound {
    /// `valid`, `invalid` or `not-found`.
    pub state: &'static str,
    /// The VRP that makes it so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrp: Option<String>,
}

/// What the ASPA records of the RPKI say of a route's path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PathFound {
    /// `valid`, `invalid` or `unknown`.
    pub state: &'static str,
    /// What makes it so, where it is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl From<PathState> for PathFound {
    fn from(state: PathState) -> Self {
        let (state, why) = match state {
            PathState::Valid => ("valid", None),
            PathState::Invalid(flaw) => ("invalid", Some(flaw.to_string())),
            PathState::Unknown(asn) => ("unknown", Some(format!("{asn} has no ASPA record"))),
        };
        Self { state, why }
    }
}

impl From<OriginState> for OriginFound {
    fn from(state: OriginState) -> Self {
        let (state, vrp) = match state {
            OriginState::Valid(vrp) => ("valid", Some(vrp)),
            OriginState::Invalid(vrp) => ("invalid", Some(vrp)),
            OriginState::NotFound => ("not-found", None),
        };
        Self { state, vrp: vrp.map(|vrp| vrp.to_string()) }
    }
}

/// What became of a route, why, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reason {
    /// In words.
    pub outcome: String,
    /// The rule by which it is so: a section of a standard, or a setting.
    pub rule: String,
    /// What to do.
    pub cure: String,
}

impl Reason {
    fn new(outcome: impl Into<String>, rule: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { outcome: outcome.into(), rule: rule.into(), cure: cure.into() }
    }
}

/// A route of this member's own router.
#[derive(Clone, Debug, Serialize)]
pub struct OwnRoute {
    /// The ASes of the path, the own one first.
    pub as_path: Vec<u32>,
    #[serde(flatten)]
    pub reason: Reason,
    /// The ASes of members that do not get it, by this member's own policy.
    pub hidden_from: Vec<HiddenFrom>,
    /// What each receiver and the parties check, whatever its policy.
    pub checks: Vec<CheckMade>,
}

/// An AS whose members do not get an own route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HiddenFrom {
    pub asn: u32,
    /// The rule or community by which it is so.
    pub why: String,
}

/// The result of a check that the exchange makes of every route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckMade {
    pub check: &'static str,
    pub passed: bool,
    /// What was found.
    pub found: String,
}

/// Why a prefix has its installed route, or none.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    pub prefix: String,
    /// In words.
    pub summary: String,
    pub routes: Vec<WhyRoute>,
    /// What became of the own router's announcement, if it makes one.
    pub own: Vec<OwnRoute>,
}

/// Routes that are not announced of which the status says why: our own limit.
const MAX_WITHHELD: usize = 32;

/// So many ASes from which a route is hidden are named for each rule, and the others counted.
const NAMED_AT_MOST: usize = 8;

const NOTHING: &str = "nothing";
const TELL: &str = "tell the announcer, whose own proxy says the same by `wayleave why`";

/// Why a route is not valid, by which rule, and what to do.
fn invalid(error: &Invalid) -> Reason {
    let what = format!("not used: {error}");
    let (rule, cure) = match error {
        Invalid::FirstAs { .. } => ("RFC 4271 section 6.3, RFC 7948 section 4.5", TELL.to_owned()),
        Invalid::NoNextHop(_) => ("RFC 4271 section 5.1.3, RFC 4760", TELL.to_owned()),
        Invalid::NextHop(address) => ("RFC 7948 section 4.8", next_hop_cure(*address)),
        Invalid::Martian { block, .. } if Martians::AllowDocumentation.block_of(block).is_none() => (
            "RFC 5737, RFC 3849, RFC 9637: documentation",
            "in a laboratory set `lab = true` in [member]; elsewhere ".to_owned() + TELL,
        ),
        Invalid::Martian { .. } => ("RFC 6890 and its registries", TELL.to_owned()),
        Invalid::ListedBogon { .. } => ("the exchange's data ([profile.data]), which both operators' machines sign", TELL.to_owned()),
        Invalid::IrrOrigin { origin, has_list: true, .. } => (
            "the exchange's profile (`irr_origin`), and its data: origins in the announcer's AS set",
            match origin {
                Some(origin) => format!("the announcer adds {origin} to its AS set, and the exchange's next data have it"),
                None => TELL.to_owned(),
            },
        ),
        Invalid::IrrPrefix { prefix, has_list: true, .. } => (
            "the exchange's profile (`irr_prefix`), and its data: route objects of the origins in the announcer's AS set",
            format!("whoever holds {prefix} registers a route object for its origin, and the exchange's next data have it"),
        ),
        Invalid::IrrOrigin { announcer, .. } | Invalid::IrrPrefix { announcer, .. } => (
            "the exchange's profile (`irr_missing = \"refuse\"`)",
            format!("both operators add the lists of {announcer} to the exchange's data (`wayleave members data build`)"),
        ),
        Invalid::DefaultRoute(_) => {
            ("RFC 7948 section 4: nobody announces the default route to everybody", TELL.to_owned())
        }
        Invalid::AsSet => (
            "RFC 9774 section 3: a route with an AS_SET is treated as withdrawn",
            "the AS that aggregates does so without a set; `accept_as_set = true` in [member] takes such routes all the same, unless the exchange's profile refuses them"
                .to_owned(),
        ),
        Invalid::Confederation => (
            "RFC 5065 section 5: what names the inside of a confederation does not leave it",
            "the announcer's router takes these segments out, as a router of a confederation does on every session that leaves it"
                .to_owned(),
        ),
        Invalid::LongPath { .. } => {
            ("the exchange's profile, or our own limit; RFC 7454 section 9 has operators set one", TELL.to_owned())
        }
        Invalid::PrefixLength { .. } => ("the exchange's profile; RFC 7454 section 6.1.3", TELL.to_owned()),
        Invalid::BogonAsn { by, .. } => {
            (if by.starts_with("RFC") { *by } else { "the exchange's profile" }, TELL.to_owned())
        }
        Invalid::TransitFree(_) => ("the exchange's profile; RFC 7454 section 9, RFC 7908: a leak", TELL.to_owned()),
        Invalid::NoBlackhole => ("the exchange's profile; RFC 7999", TELL.to_owned()),
        Invalid::BlackholeNotPermitted(_) => (
            "the exchange's profile; RFC 7999 section 6",
            "the announcer takes the community away, or asks both operators to let its AS announce it (`[profile.blackhole] allowed`)"
                .to_owned(),
        ),
        Invalid::Leak(_) => (
            "RFC 9234 section 5: a client sends a route server no route with OTC, so that one that has it is a route leak",
            TELL.to_owned(),
        ),
        Invalid::MaxPrefixes { .. } => (
            "the exchange's data (`limits`): maximum prefixes, as a session that ends and begins again after 15 minutes",
            "the announcer announces fewer, or asks both operators for more: its routes are back within 15 minutes of that"
                .to_owned(),
        ),
        Invalid::Loop(_) => (
            "RFC 4271 section 9.1.2",
            "nothing: the route came back to your AS, which is no error and nobody's false claim".to_owned(),
        ),
        Invalid::Origin { vrp, .. } => (
            "RFC 6811 section 2: the RPKI names other origins or lengths of the prefix",
            format!("if the origin is right, whoever holds {} corrects its ROA; otherwise {TELL}", vrp.prefix),
        ),
        Invalid::Aspa(flaw) => (
            "the exchange's profile; draft-ietf-sidrops-aspa-verification: an upstream path leads from customers to their providers",
            match flaw {
                Flaw::NotProvider { customer, .. } => {
                    format!("if the path is right, {customer} adds the AS to its ASPA record; otherwise it is a route leak: {TELL}")
                }
                Flaw::Empty | Flaw::Unordered => TELL.to_owned(),
            },
        ),
    };
    Reason::new(what, rule, cure)
}

/// What to do about a next hop that the slot does not have. Only what can be a router's address there is proposed for the slot.
fn next_hop_cure(address: IpAddr) -> String {
    let sets = "the announcer sets a next hop that its slot has";
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    match address {
        _ if is_link_local => format!("{sets}, and sends no link-local address beside it"),
        IpAddr::V6(v6) if let Some(v4) = v6.to_ipv4_mapped() => format!(
            "{sets}: {address} is the IPv4 address {v4}, which the announcer's router puts into IPv6 routes where its session has no IPv6 \
             address. It sets one of its slot's (BIRD: `next hop address` in channel ipv6; FRR: `set ipv6 next-hop global`), which \
             `wayleave members request --address6` asks for, or announces no IPv6 routes"
        ),
        _ if can_be_next_hop(address) => {
            format!("{sets}, or asks both operators to add {address} (`wayleave members propose --addresses`)")
        }
        _ => format!("{sets}: {address} is no router's address (next-hop-self at the announcer's router)"),
    }
}

fn verdict_word(verdict: VerdictKind) -> &'static str {
    match verdict {
        VerdictKind::Valid => "valid",
        VerdictKind::Gap => "gap",
        VerdictKind::Unattested => "unattested",
        VerdictKind::Expired => "expired",
        VerdictKind::Invalid => "invalid",
    }
}

impl Member {
    /// The member's status.
    #[must_use]
    pub fn status(&self) -> MemberStatus {
        let (barred, not_announced) = self.announcements.barred(MAX_WITHHELD);
        let withheld = |(nlri, bar): (wayleave_bgp::Nlri, &Bar)| Withheld {
            prefix: nlri.prefix.to_string(),
            why: bar.to_string(),
        };
        MemberStatus {
            exchange: self.config.exchange.clone(),
            slot: self.config.slot,
            parties: self.welcomed,
            synced: self.synced && self.sync.is_none(),
            ahead: self.ahead,
            deferred: self.deferred,
            budget: self.budget.map(|said| self.own_budget(said)),
            batch: self.last_seq,
            router_routes: self.announcements.router_routes(),
            stale_routes: self.announcements.stale_routes(),
            further_paths: self.further_paths(),
            not_announced,
            too_large: self.announcements.too_large(),
            not_competing: self.announcements.not_competing(),
            withheld: barred.into_iter().map(withheld).collect(),
            refused_at_announce: self.announcements.barred_by_reason(),
            refused_at_receive: self.refused_by_reason(),
            data: self.data_status(),
            unconfirmed: self.announcements.unconfirmed(),
            objects: self.routes.len(),
            installed: self.installed.len(),
            kept: self.kept.len(),
            awaiting: self.choices.values().filter(|choice| matches!(choice.awaits, Awaits::Batch(_))).count(),
            held: self.held_slots(),
            validating: self.awaited.len(),
            verdicts: self.verdicts(),
            further_slots: self.further_slots(),
            member_set: self.set.as_ref().map(|set| set.number),
            protocol_versions: self.config.speaks.versions,
            party_protocol_versions: self.told,
            protocol_version: self.version,
            formats: self.config.speaks.formats,
            format: self.format(),
            counters: self.counters.clone(),
            party_links: [0, 1].map(|party| self.party_link(party)),
            open_prefixes: self.choices.len(),
            own_prefixes: self.announcements.at_parties(),
        }
    }

    /// Routes that this member could open and that are not valid, by the reason: those that it has looked at.
    fn refused_by_reason(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for route in self.routes.values() {
            for (prefix_index, assessment) in (0u16..).zip(route.assessment.iter().flatten()) {
                if let Some(reason) = assessment.refused.filter(|_| !route.dead.contains(&prefix_index)) {
                    *counts.entry(reason).or_default() += 1;
                }
            }
        }
        counts
    }

    fn party_link(&self, party: usize) -> PartyLink {
        let up = self.links_since[party].filter(|_| self.links[party].is_some());
        let [received, sent] = self.link_octets[party];
        PartyLink { up: up.map(|since| self.at.since(since)), received, sent }
    }

    fn further_slots(&self) -> Vec<FurtherSlot> {
        let Some(directory) = &self.directory else { return Vec::new() };
        let further =
            |(slot, of): (u32, &Slot)| FurtherSlot { slot, asn: of.asn.0, name: of.name.clone(), held: of.held };
        directory.further_slots().map(further).collect()
    }

    fn verdicts(&self) -> BTreeMap<String, usize> {
        let mut verdicts = BTreeMap::new();
        let open = self.routes.values().filter(|route| self.config.validates && route.opened.is_some());
        for route in open {
            let words: Vec<&str> = match &route.validation {
                Validation::NotRequested => vec!["not-validated"],
                Validation::Pending => vec!["waits"],
                Validation::Done(findings) => findings.iter().map(|finding| verdict_word(finding.verdict)).collect(),
            };
            words.into_iter().for_each(|word| *verdicts.entry(word.to_owned()).or_default() += 1);
        }
        verdicts
    }

    /// Whether everything that this member knows has had its effect.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.synced
            && self.sync.is_none()
            && self.announcements.unconfirmed() == 0
            && self.rounds.is_empty()
            && self.awaited.is_empty()
            && self.saying.is_none()
            && self.questions.is_empty()
            && !self.has_work()
    }

    /// Counts since start.
    #[must_use]
    pub fn counters(&self) -> &MemberCounters {
        &self.counters
    }

    /// What the router is to have: prefix, announcer's slot, attributes.
    pub fn installed(&self) -> impl Iterator<Item = (Prefix, u32, &wayleave_bgp::Attributes)> {
        self.installed.iter().map(|(prefix, route)| (*prefix, route.announcer, &route.attributes))
    }

    /// The longest prefix with this address that has candidates, or a route that the router has or announces.
    #[must_use]
    pub fn longest_match(&self, address: IpAddr) -> Option<Prefix> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let mut all = (0..=longest).rev().filter_map(|length| Prefix::truncated(address, length).ok());
        let is_known = |prefix: &Prefix| {
            // An installed route that is kept has no candidate.
            self.installed.contains_key(prefix)
                || !self.known_routes(prefix).is_empty()
                || self.announcements.has_route(prefix)
        };
        all.find(is_known)
    }

    /// Why `prefix` has its installed route, or none.
    pub fn why(&mut self, prefix: Prefix) -> Why {
        let candidates = self.known_routes(&prefix);
        let classes = self.classes(&candidates);
        let winner = self.installed.get(&prefix).map(|installed| installed.handle);
        let is_first_alone = winner.is_some_and(|winner| is_first_alone(&classes, winner));
        let mut routes = Vec::new();
        for (number, candidate) in candidates.iter().enumerate() {
            let handle = candidate.0;
            let open = self.routes.get(&handle).and_then(|route| route.opened.clone());
            if open.is_none() && self.announcements.is_own(&prefix, &handle) {
                continue;
            }
            let class = classes.iter().find(|(n, ..)| *n == number).and_then(|(_, _, class)| *class);
            let verdict = self
                .assessment(candidate)
                .filter(|assessment| assessment.usable && self.config.validates)
                .map(|assessment| assessment.verdict);
            let checked = open.as_ref().map(|open| self.checked(prefix, open));
            let came_back = matches!(checked, Some(Err(Invalid::Loop(_))));
            let reason = match &open {
                _ if winner == Some(handle) => {
                    Reason::new("installed", self.rule_of_choice(&prefix, candidates.len(), is_first_alone), NOTHING)
                }
                None if self.routes.get(&handle).is_some_and(|route| route.unopened.is_some()) => {
                    Reason::new("it has just come, and waits to be opened", "what came before it goes first", "wait")
                }
                None => Reason::new(
                    "sealed: its announcer does not export it to you",
                    "the announcer's export policy, which nobody else knows",
                    "ask the members who may have it; the exchange cannot tell whose it is",
                ),
                Some(open) => self.reason(candidate, open, checked.unwrap_or(Ok(())), class, &classes),
            };
            routes.push(WhyRoute {
                number,
                announcer: open.as_ref().map(|open| self.announcer(open.slot)),
                as_path: open.as_ref().map(|open| asns(&open.attributes)),
                rpki: open.as_ref().and_then(|open| self.origin_found(prefix, &open.attributes)),
                aspa: open.as_ref().and_then(|open| self.path_found(&open.attributes)),
                handle,
                verdict,
                class,
                path_id: self.installed_path(&prefix, candidate),
                reason,
                came_back,
            });
        }
        let own = self.own_reasons(&prefix);
        let summary = self.summary(&prefix, winner.map(|_| is_first_alone), &routes, !own.is_empty());
        Why { prefix: prefix.to_string(), summary, routes, own }
    }

    fn own_budget(&self, said: BudgetLeft) -> OwnBudget {
        let max_in_set = self.set.as_ref().map_or(0, |set| self.limit_in(set));
        let left = budget_under(said, max_in_set, self.party_limit);
        OwnBudget {
            prefixes: self.announcements.at_parties(),
            max_prefixes: left.prefixes,
            max_in_set,
            stored: left.stored,
            max_stored: left.max_stored,
            objects_per_second: left.objects,
            octets_per_second: left.octets,
            resyncs_per_hour: left.syncs,
            resyncs_left: left.syncs_left,
            choices_per_hour: left.choices,
            choices_left: left.choices_left,
        }
    }

    /// The member set in force; none before both parties have shown one.
    #[must_use]
    pub fn member_set(&self) -> Option<&MemberSet> {
        self.set.as_ref()
    }

    /// The member in a slot.
    #[must_use]
    pub fn announcer(&self, slot: u32) -> Announcer {
        let of = self.set.as_ref().and_then(|set| set.slot(slot));
        Announcer { slot, name: of.map(|slot| slot.name.clone()), asn: of.map(|slot| slot.asn.0) }
    }

    /// Whether an open route to a prefix is valid, as every route server checks it.
    pub(super) fn checked(&self, prefix: Prefix, open: &OpenRoute) -> Result<(), Invalid> {
        let set = self.set.as_ref();
        let receiver = set.and_then(|set| set.slot(self.config.slot)).map(|slot| slot.asn);
        let announcer = set.and_then(|set| set.slot(open.slot));
        let (Some(receiver), Some(announcer)) = (receiver, announcer) else { return Ok(()) };
        validate_for(receiver, prefix, &open.attributes, announcer, self.route_rules())?;
        validate_known(prefix, &open.attributes, announcer, self.rpki(), self.route_rules())?;
        self.limits.check(open.slot, prefix)
    }

    /// What the RPKI says, as far as it is known.
    fn rpki(&self) -> Known<'_> {
        Known { vrps: self.origins.as_deref(), aspas: self.aspas.as_deref() }
    }

    /// What the RPKI says of a route's path, where it has ASPA records.
    fn path_found(&self, attributes: &Attributes) -> Option<PathFound> {
        path_state(attributes, self.aspas.as_deref()?).map(PathFound::from)
    }

    /// What the RPKI says of a route's origin, where something is known.
    fn origin_found(&self, prefix: Prefix, attributes: &Attributes) -> Option<OriginFound> {
        Some(origin_state(prefix, attributes, self.origins.as_deref()?, self.route_rules()).into())
    }

    /// What decides where a route is installed.
    fn rule_of_choice(&self, prefix: &Prefix, candidates: usize, is_first_alone: bool) -> &'static str {
        match self.choices.get(prefix) {
            _ if candidates == 1 => "it is the only route",
            _ if self.is_installed_outside(prefix) => {
                "your own ranking: it does not compete, since too many others do, and none of them is better"
            }
            Some(choice) if choice.chosen.is_some() && !is_first_alone => {
                "Select-Best: your ranking, then the exchange's recommendation and its own order"
            }
            _ => "your own ranking ([ranking] and import rules)",
        }
    }

    /// Whether the installed route does not compete.
    fn is_installed_outside(&self, prefix: &Prefix) -> bool {
        let Some(installed) = self.installed.get(prefix) else { return false };
        let routes = self.known_routes(prefix);
        routes.iter().any(|candidate| candidate.0 == installed.handle && !self.instances.lists(candidate))
    }

    /// Why an open route is not installed.
    fn reason(
        &mut self,
        candidate: &Candidate,
        open: &OpenRoute,
        checked: Result<(), Invalid>,
        class: Option<u8>,
        classes: &[(usize, Candidate, Option<u8>)],
    ) -> Reason {
        if let Err(error) = checked {
            return invalid(&error);
        }
        let (handle, place) = *candidate;
        let assessment = self.assessment(candidate);
        let of_policy = "[attestation.policy], and import rules with `verdict`";
        if self.awaited.contains(&handle) {
            return Reason::new("waiting for validation", "a route is used once its attestation is validated", "wait");
        }
        if assessment.is_some_and(|assessment| assessment.best_case.is_some()) {
            let rule = "only routes that could become best are validated";
            return Reason::new("not validated: it cannot become best", rule, NOTHING);
        }
        let Some(assessment) = assessment else {
            return Reason::new("not used: its announcer has withdrawn it", "RFC 4271 section 4.3", NOTHING);
        };
        if !assessment.usable {
            let rule = "the member set in force names its announcer and this member";
            return Reason::new(
                "not used: no member set is in force yet",
                rule,
                "`wayleave show status` says what is missing",
            );
        }
        let refused = self.routes.get(&handle).and_then(|route| route.validation.of(usize::from(place)));
        if refused.is_some_and(|finding| finding.attributes.is_none()) {
            let what = format!(
                "not used: its attestation is {}, which [attestation.policy] rejects",
                verdict_word(assessment.verdict)
            );
            return Reason::new(
                what,
                of_policy,
                "see the hops below; change the treatment of the verdict if you must have the route",
            );
        }
        let Some(class) = class else { return self.by_policy(open, place, assessment.verdict) };
        let top = classes.iter().filter_map(|(_, _, class)| *class).max();
        if Some(class) == top && !self.instances.lists(candidate) {
            return Reason::new(
                format!("ranked equal, but it does not compete: more than {MAX_CANDIDATES} routes for the prefix do"),
                "your own ranking: one that does not compete is used where no other is as good, or while it is installed",
                "rank this route higher (an import rule with `class` or `local_pref`) if you want it",
            );
        }
        let best = classes.iter().find(|(_, _, class)| *class == top).map(|(_, candidate, _)| *candidate);
        let is_lowered = |assessment: Option<Assessment>| {
            assessment.and_then(|assessment| assessment.rank).is_some_and(Rank::is_lowered)
        };
        if is_lowered(Some(assessment)) && best.is_some_and(|best| !is_lowered(self.assessment(&best))) {
            return Reason::new(
                "its announcer takes it away soon: it carries GRACEFUL_SHUTDOWN (65535:0), and a route without it is preferred",
                "RFC 8326 section 4.2",
                "nothing; `graceful_shutdown = false` in [ranking] ranks it as any other, and so does an import rule that names the community",
            );
        }
        let is_stale = |assessment: Option<Assessment>| {
            assessment.and_then(|assessment| assessment.rank).is_some_and(Rank::is_stale)
        };
        if is_stale(Some(assessment)) && best.is_some_and(|best| !is_stale(self.assessment(&best))) {
            return Reason::new(
                "its announcer's router has been gone for long: it carries LLGR_STALE (65535:6), and a route without it is preferred",
                "RFC 9494 section 4.3",
                "nothing: it counts as any other once that router has announced it again",
            );
        }
        if Some(class) == top {
            return Reason::new(
                "ranked equal; the exchange's recommendation, or its own order where that names none, preferred another route",
                "Select-Best: among routes of your best class the recommendation decides, then a secret order of the exchange's",
                "rank this route higher (an import rule with `class` or `local_pref`) if you want it",
            );
        }
        Reason::new(
            format!("your own ranking prefers another route: class {class}, the best has {}", top.unwrap_or(class)),
            "[ranking] and import rules",
            "rank this route higher (an import rule with `class` or `local_pref`) if you want it",
        )
    }

    /// Why import policy rejects a route.
    fn by_policy(&self, open: &OpenRoute, place: u16, verdict: VerdictKind) -> Reason {
        let announcer = self.set.as_ref().and_then(|set| set.slot(open.slot));
        let nlri = open.prefixes.get(usize::from(place));
        let rejection = nlri
            .zip(announcer)
            .map(|(nlri, announcer)| self.policy.import(&open.rank_input(nlri, announcer, verdict).route()));
        match rejection {
            Some(Imported::Rejected(Rejection::Rule(number))) => Reason::new(
                format!("not used: your import rule {} rejects it", number + 1),
                format!("[[rule]] number {} of your configuration", number + 1),
                "change the rule, or put one with `accept` before it, and send SIGHUP",
            ),
            Some(Imported::Rejected(Rejection::Invalid)) => Reason::new(
                "not used: validation found it invalid",
                "without a rule that accepts it by name, a route of verdict `invalid` is not used",
                "see the hops below; an import rule with `verdict = [\"invalid\"]` and `accept` takes it all the same",
            ),
            _ => Reason::new(
                "not used: your ranking has no class for it",
                "[ranking] and import rules",
                "compare them with the route",
            ),
        }
    }

    /// What became of the own router's routes to a prefix, checked as receivers check them.
    pub(super) fn own_reasons(&self, prefix: &Prefix) -> Vec<OwnRoute> {
        let own = self.set.as_ref().and_then(|set| set.slot(self.config.slot));
        let reason = |attributes: &Attributes, state: OwnState| {
            let rules = self.config.own_rules(self.set.as_ref(), self.data.in_force());
            if let Some(Err(error)) = own.map(|own| validate(*prefix, attributes, own, rules)) {
                let Reason { outcome, rule, cure } = invalid(&error);
                let outcome = outcome.replacen("not used: ", "not announced, since no receiver would use it: ", 1);
                let cure = match error {
                    Invalid::FirstAs { .. } => "[router] `asn` and the slot's AS must be your router's".to_owned(),
                    Invalid::NoNextHop(_) | Invalid::DefaultRoute(_) | Invalid::LongPath { .. } => {
                        "change your router's export filter".to_owned()
                    }
                    Invalid::Leak(_) => "your router had it from a provider, a peer or another exchange: announce here what is yours and \
                                         your customers' alone, by your router's export filter"
                        .to_owned(),
                    _ => cure.replace(TELL, "change your router's export filter"),
                };
                return Reason { outcome, rule, cure };
            }
            // What the own session alone ignores, receivers do not.
            if let OwnState::Announced { .. } | OwnState::UnderWay = state
                && let Some(Err(error)) = own.map(|own| validate(*prefix, attributes, own, self.route_rules()))
            {
                let Reason { outcome, rule, .. } = invalid(&error);
                let outcome = outcome.replacen("not used: ", "announced, but every receiver refuses it: ", 1);
                let cure = "take it out by your router's export filter, or without `role = \"off\"` in [router] it is not announced";
                return Reason::new(outcome, rule, cure);
            }
            let known = |own| validate_own_known(*prefix, attributes, own, self.rpki(), rules);
            if let Some(Err(error)) = own.map(known) {
                let Reason { outcome, rule, cure } = invalid(&error);
                let outcome = outcome.replacen("not used: ", "not announced: ", 1);
                let mut cure = cure.replace(TELL, "change your router's export filter");
                if matches!(error, Invalid::Origin { .. }) {
                    cure.push_str("; what your [rpki] source says decides");
                }
                return Reason { outcome, rule, cure };
            }
            match state {
                OwnState::Announced { slots, competes: false } => Reason::new(
                    format!(
                        "announced, but it does not compete: more than {MAX_CANDIDATES} routes for the prefix do; slots \
                         that may open it, and use it where they have no better one: {slots}"
                    ),
                    "every member's first path goes before any member's second; among equals a keyed hash decides",
                    "announce fewer paths of the prefix, or a more specific one",
                ),
                OwnState::Announced { slots, competes: true } => {
                    let (rules, hidden) = self.export_decisions(*prefix, attributes);
                    let hidden = match hidden_words(&hidden) {
                        Some(words) => format!("; hidden from {words}"),
                        None if !rules.is_empty() => "; hidden from nobody".to_owned(),
                        None => String::new(),
                    };
                    let rule = match &rules[..] {
                        [] if self.policy.has_export_rules() => {
                            "your communities; of your export rules none matches it".to_owned()
                        }
                        [] => "your communities and export rules".to_owned(),
                        [one] => format!("your communities and export rules: rule {one} matches it"),
                        several => {
                            let all: Vec<String> = several.iter().map(ToString::to_string).collect();
                            format!("your communities and export rules: rules {} match it", all.join(", "))
                        }
                    };
                    let outcome = format!("announced: both parties have it; slots that may open it: {slots}{hidden}");
                    Reason::new(outcome, rule, NOTHING)
                }
                OwnState::UnderWay if !self.synced => Reason::new(
                    "not announced yet: the parties are not in reach",
                    "both parties must have a route",
                    "`wayleave show status` says what is wrong with the links",
                ),
                OwnState::UnderWay => {
                    Reason::new("on its way to the parties", "both parties must have a route", "wait")
                }
                OwnState::Barred(Bar::OverLimit(_) | Bar::Refused(Refusal::MaxPrefix)) => Reason::new(
                    "not announced: it would exceed this member's prefix limit",
                    "the slot's `max_prefix` in the member set",
                    "announce fewer prefixes, or ask both operators for more (`wayleave members propose --max-prefix`)",
                ),
                OwnState::Barred(Bar::MaxPrefixes { afi, limit }) => Reason::new(
                    format!("not announced: it would exceed this member's limit of {limit} prefixes of {afi}"),
                    "the exchange's data (`limits`): receivers leave out all routes of a family that has more",
                    "announce fewer prefixes, or ask both operators for more in the exchange's next data",
                ),
                OwnState::Barred(bar @ (Bar::TooLarge { .. } | Bar::Refused(Refusal::BlobSize))) => Reason::new(
                    format!("not announced: {bar}"),
                    "the parties' `max_blob`, the lower of the two",
                    "announce it with fewer communities or a shorter path, or ask both operators for more",
                ),
                OwnState::Barred(bar @ Bar::SurplusPath) => Reason::new(
                    format!("not announced: {bar}"),
                    "the paths with the lowest identifiers compete",
                    "announce one path of the prefix to the proxy, which negotiates no ADD-PATH",
                ),
                OwnState::Barred(bar) => Reason::new(
                    format!("not announced: {bar}"),
                    "the parties check each object",
                    "restart the proxy; if it stays so, tell both operators",
                ),
            }
        };
        let routes = self.announcements.own_routes(prefix);
        let route = |(attributes, state): (&Attributes, OwnState)| {
            let checks = own.map(|own| self.checks(*prefix, attributes, own, &state)).unwrap_or_default();
            let hidden_from = match state {
                OwnState::Announced { .. } => hidden_from(&self.export_decisions(*prefix, attributes).1),
                OwnState::UnderWay | OwnState::Barred(_) => Vec::new(),
            };
            OwnRoute { as_path: asns(attributes), reason: reason(attributes, state), hidden_from, checks }
        };
        routes.into_iter().map(route).collect()
    }

    /// The export rules that match an own route, by their numbers in the configuration, and what is decided for the AS of each other
    /// member.
    fn export_decisions(&self, prefix: Prefix, attributes: &Attributes) -> (Vec<usize>, BTreeMap<Asn, Exported>) {
        let Some(set) = &self.set else { return Default::default() };
        let Some(own) = set.slot(self.config.slot) else { return Default::default() };
        let rules = self.policy.export_rules(&Route::new(prefix, attributes, own.asn)).numbers();
        let decided = export_decisions(prefix, attributes, self.config.slot, set, self.config.rs_asn, &self.policy);
        let by_policy = decided.into_iter().filter_map(|(slot, decision)| match decision {
            Decision::Policy(exported) => Some((set.slot(slot)?.asn, exported)),
            Decision::Held => None,
        });
        (rules, by_policy.collect())
    }

    /// The checks that the exchange makes of every route: those of receivers, and the parties' prefix limit.
    fn checks(&self, prefix: Prefix, attributes: &Attributes, own: &Slot, state: &OwnState) -> Vec<CheckMade> {
        let rules = self.route_rules();
        let made = |check: Check| {
            let (name, found) = match check {
                Check::Prefix => ("prefix", format!("{prefix} may be announced")),
                Check::AsSet => ("AS_SET", "the AS path has none, or this member takes them".to_owned()),
                Check::Confederation => ("confederation", "the AS path has no segment of one".to_owned()),
                Check::FirstAs => ("first AS", format!("the AS path begins with {}", own.asn)),
                Check::NextHop => ("next hop", "an address of this slot".to_owned()),
                Check::PathLength => {
                    ("path length", format!("{} hops, at most {}", attributes.as_path().length(), rules.max_hops()))
                }
                Check::Blackhole => ("BLACKHOLE", "it has none, or this member may announce it".to_owned()),
                Check::PrefixLength => ("prefix length", format!("{} is one that the exchange takes", prefix.len())),
                Check::BogonAsn => ("bogon ASNs", "the AS path has no reserved AS number".to_owned()),
                Check::TransitFree => ("transit-free ASNs", "the AS path has none behind this member".to_owned()),
                Check::Otc => ("route leak", "no OTC (RFC 9234), which would make it one".to_owned()),
                Check::IrrOrigin => ("IRR origin", format!("one that the exchange's data have for {}", own.asn)),
            };
            match check.make(prefix, attributes, own, rules) {
                Ok(()) => CheckMade { check: name, passed: true, found },
                Err(error) => CheckMade { check: name, passed: false, found: error.to_string() },
            }
        };
        let mut checks: Vec<CheckMade> = Check::ALL.into_iter().filter(|check| check.is_of(rules)).map(made).collect();
        checks.extend(self.origin_found(prefix, attributes).map(|OriginFound { state, vrp }| {
            let found = vrp.map_or("not found: no VRP covers it".to_owned(), |vrp| format!("{state}: {vrp}"));
            CheckMade { check: "origin (RPKI)", passed: state != "invalid", found }
        }));
        checks.extend(self.path_found(attributes).map(|PathFound { state, why }| {
            let is_refused = validate_aspa(attributes, self.aspas.as_deref(), rules).is_err();
            let lets = if state == "invalid" && !is_refused { ", which the exchange's profile lets pass" } else { "" };
            let found = format!("{state}{}{lets}", why.map_or(String::new(), |why| format!(": {why}")));
            CheckMade { check: "path (ASPA)", passed: !is_refused, found }
        }));
        if rules.data.is_some_and(|in_force| in_force.rules.irr_prefix) {
            let known = validate_own_known(prefix, attributes, own, self.rpki(), rules);
            let (passed, found) = match known {
                Err(error @ Invalid::IrrPrefix { .. }) => (false, error.to_string()),
                _ => (true, format!("{prefix} is one that the exchange's data have for {}, or need not have", own.asn)),
            };
            checks.push(CheckMade { check: "IRR prefix", passed, found });
        }
        let refused = matches!(state, OwnState::Barred(Bar::OverLimit(_) | Bar::Refused(Refusal::MaxPrefix)));
        let prefixes = self.announcements.at_parties();
        // As after the limit was lowered.
        let exceeds = own.max_prefix > 0 && prefixes > own.max_prefix as usize;
        let found = match own.max_prefix {
            0 => format!(
                "{prefixes} prefixes announced; the member set states no limit, so that the parties' own counts"
            ),
            most if exceeds => {
                format!(
                    "{prefixes} prefixes announced, at most {most}: those that are announced stay, and no new one is"
                )
            }
            most => format!("{prefixes} prefixes announced, at most {most}"),
        };
        checks.push(CheckMade { check: "prefix limit", passed: !refused && !exceeds, found });
        let to_all = Treatments::read(attributes, self.config.rs_asn).to_all();
        if to_all != Treatment::default() {
            checks.push(CheckMade {
                check: "communities",
                passed: true,
                found: format!("for all receivers, {to_all}"),
            });
        }
        checks
    }

    /// `installed`: whether the installed route, if there is one, is first in the member's own order alone.
    fn summary(&self, prefix: &Prefix, installed: Option<bool>, routes: &[WhyRoute], has_own: bool) -> String {
        if self.kept.contains(prefix) {
            return "kept: a party lost what it had stored, and the announcer has not said what became of the route"
                .to_owned();
        }
        let choice = self.choices.get(prefix);
        let words = match (installed, choice) {
            (None, _) if routes.is_empty() && has_own => {
                "your own announcement; no other member exports a route for this prefix to you"
            }
            (None, _) if routes.is_empty() && !self.synced => {
                "nothing is known of this prefix: the parties have not sent their routes yet"
            }
            (None, None) => "no member exports a route for this prefix to you",
            (None, Some(choice)) if matches!(choice.awaits, Awaits::Batch(_)) => {
                "waiting for the result of Select-Best"
            }
            (None, Some(_)) => "no route for this prefix can be used",
            (Some(_), Some(choice)) if choice.candidates.len() == 1 => "the only route; no comparison needed",
            (Some(false), Some(choice)) if choice.chosen.is_some() => {
                "chosen by Select-Best from your ranking and the exchange's recommendation"
            }
            (Some(_), _) => "chosen by your own ranking",
        };
        words.to_owned()
    }
}

/// Whether a route is alone in the best of these classes, so that no recommendation decides.
fn is_first_alone(classes: &[(usize, Candidate, Option<u8>)], winner: Handle) -> bool {
    let top = classes.iter().filter_map(|(_, _, class)| *class).max();
    let mut best = classes.iter().filter(|(_, _, class)| top.is_some() && *class == top);
    best.next().is_some_and(|(_, candidate, _)| candidate.0 == winner) && best.next().is_none()
}

/// Those who do not get a route.
fn hidden_from(decided: &BTreeMap<Asn, Exported>) -> Vec<HiddenFrom> {
    let hidden = decided.iter().filter(|(_, exported)| !exported.permits());
    hidden.map(|(asn, exported)| HiddenFrom { asn: asn.0, why: exported.to_string() }).collect()
}

/// The same in words, the first few for each rule by name; `None` if it is nobody.
fn hidden_words(decided: &BTreeMap<Asn, Exported>) -> Option<String> {
    let mut by_reason: BTreeMap<String, Vec<Asn>> = BTreeMap::new();
    for (asn, exported) in decided.iter().filter(|(_, exported)| !exported.permits()) {
        let reason = match exported {
            Exported::DeniedByRule(number) => format!("by rule {}", number + 1),
            _ => "by its communities".to_owned(),
        };
        by_reason.entry(reason).or_default().push(*asn);
    }
    let words = by_reason.iter().map(|(reason, asns)| {
        let mut names: Vec<String> = asns.iter().take(NAMED_AT_MOST).map(ToString::to_string).collect();
        names.extend((asns.len() > NAMED_AT_MOST).then(|| format!("{} more", asns.len() - NAMED_AT_MOST)));
        format!("{} {reason}", names.join(", "))
    });
    (!by_reason.is_empty()).then(|| words.collect::<Vec<_>>().join("; "))
}

/// The ASes of a route's path.
fn asns(attributes: &Attributes) -> Vec<u32> {
    attributes.as_path().asns().map(|asn| asn.0).collect()
}

#[cfg(test)]
mod tests {
    //! OPS, why: every way to be invalid has a rule and a cure, and no address is proposed that no router there can
    //! have.

    use super::*;
    use wayleave_bgp::origins::Vrp;
    use wayleave_core::Afi;

    #[test]
    fn who_does_not_get_an_own_route_is_named_with_the_rule() {
        let rule = |asn| (Asn(asn), Exported::DeniedByRule(0));
        let open = (Asn(7), Exported::PermittedByRule(1));
        assert_eq!(hidden_words(&BTreeMap::from([open])), None);
        let one = BTreeMap::from([rule(64_499), open]);
        assert_eq!(hidden_words(&one).as_deref(), Some("AS64499 by rule 1"));
        assert_eq!(hidden_from(&one), [HiddenFrom { asn: 64_499, why: "rule 1 hides it".to_owned() }]);
        let many: BTreeMap<_, _> = (1..=10).map(rule).collect();
        assert!(hidden_words(&many).is_some_and(|words| words.ends_with("AS8, 2 more by rule 1")));
    }

    #[test]
    fn a_route_that_is_alone_in_the_best_class_is_the_members_own_choice() {
        let route = |number: u8, class| (usize::from(number), (Handle([number; 32]), 0), class);
        let [first, second] = [Handle([0; 32]), Handle([1; 32])];
        let differ = [route(0, Some(254)), route(1, Some(255)), route(2, None)];
        assert!(is_first_alone(&differ, second) && !is_first_alone(&differ, first));
        assert!(!is_first_alone(&[route(0, Some(255)), route(1, Some(255))], first), "the recommendation decides");
        assert!(!is_first_alone(&[route(0, None)], first), "it is not used");
    }

    #[test]
    fn no_address_is_proposed_for_a_slot_that_no_router_there_can_have() {
        for (address, is_proposed) in [
            ("192.0.2.77", true),
            ("2001:db8::77", true),
            ("::", false),
            ("::1", false),
            ("::ffff:192.0.2.1", false),
            ("::192.0.2.1", false),
            ("ff02::1", false),
            ("::ffff:192.0.2.2", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("127.0.0.1", false),
            ("224.0.0.5", false),
            ("255.255.255.255", false),
        ] {
            let cure = next_hop_cure(address.parse().expect("an address"));
            assert_eq!(cure.contains("propose --addresses"), is_proposed, "{address}: {cure}");
            assert!(cure.contains("the announcer sets a next hop that its slot has"), "{cure}");
        }
        let mapped = next_hop_cure("::ffff:192.0.2.2".parse().expect("an address"));
        assert!(mapped.contains("is the IPv4 address 192.0.2.2") && !mapped.contains("next-hop-self"), "{mapped}");
    }

    #[test]
    fn whatever_makes_a_route_invalid_has_a_rule_and_a_cure() {
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let martian = |at: &str| {
            let prefix = prefix(at);
            Invalid::Martian { prefix, block: Martians::Refuse.block_of(&prefix).expect("a special block") }
        };
        let vrp = Vrp { prefix: prefix("192.0.2.0/24"), max_length: 24, asn: Asn(1) };
        let origin = Invalid::Origin { prefix: prefix("192.0.2.0/25"), origin: Some(Asn(1)), vrp };
        let words = "RPKI-invalid: AS1 may not originate 192.0.2.0/25; the RPKI has 192.0.2.0/24 of AS1, up to /24";
        assert_eq!(origin.to_string(), words);
        for (error, rule, cure) in [
            (Invalid::FirstAs { found: Some(Asn(1)), announcer: Asn(2) }, "RFC 7948 section 4.5", "tell the announcer"),
            (Invalid::NoNextHop(Afi::Ipv4), "RFC 4271 section 5.1.3", "tell the announcer"),
            (Invalid::NextHop([192, 0, 2, 77].into()), "RFC 7948 section 4.8", "add 192.0.2.77"),
            (Invalid::AsSet, "RFC 9774 section 3", "`accept_as_set = true`"),
            (Invalid::Confederation, "RFC 5065 section 5", "takes these segments out"),
            (martian("203.0.113.0/25"), "RFC 5737", "`lab = true`"),
            (martian("2001:db8:1::/48"), "RFC 3849", "`lab = true`"),
            (martian("10.1.0.0/16"), "RFC 6890", "tell the announcer"),
            (Invalid::DefaultRoute(prefix("0.0.0.0/0")), "RFC 7948 section 4", "tell the announcer"),
            (Invalid::LongPath { hops: 65, most: 64 }, "RFC 7454 section 9", "tell the announcer"),
            (
                Invalid::PrefixLength { prefix: prefix("8.8.8.8/32"), shortest: 8, longest: 24 },
                "RFC 7454 section 6.1.3",
                "tell the announcer",
            ),
            (Invalid::BogonAsn { asn: Asn(23_456), by: "RFC 6793" }, "RFC 6793", "tell the announcer"),
            (Invalid::TransitFree(Asn(174)), "RFC 7908", "tell the announcer"),
            (Invalid::NoBlackhole, "RFC 7999", "tell the announcer"),
            (Invalid::BlackholeNotPermitted(Asn(2)), "RFC 7999 section 6", "`[profile.blackhole] allowed`"),
            (Invalid::Leak(Asn(2)), "RFC 9234 section 5", "tell the announcer"),
            (Invalid::Loop(Asn(2)), "RFC 4271 section 9.1.2", "nothing: the route came back"),
            (origin, "RFC 6811 section 2", "whoever holds 192.0.2.0/24 corrects its ROA"),
            (
                Invalid::Aspa(Flaw::NotProvider { customer: Asn(2), provider: Asn(1) }),
                "draft-ietf-sidrops-aspa-verification",
                "AS2 adds the AS to its ASPA record",
            ),
            (Invalid::Aspa(Flaw::Unordered), "the exchange's profile", "tell the announcer"),
        ] {
            let said = invalid(&error);
            assert!(said.outcome.starts_with("not used: ") && said.rule.contains(rule), "{said:?}");
            assert!(said.cure.contains(cure), "{said:?}");
        }
    }
}

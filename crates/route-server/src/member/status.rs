//! Status, events and explanations for the member's own operator; none of this goes to the parties.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use wayleave_core::{Prefix, VerdictKind};

use super::Member;
use super::receive::Validation;
use crate::directory::Slot;
use crate::frames::Refusal;
use crate::object::Handle;

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
    /// Requests for everything.
    pub resyncs: u64,
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
    /// A link to a party is down; the session ended.
    SessionDown,
    /// Both parties have sent all live objects.
    Synced {
        objects: usize,
        /// Those among them that this member announced.
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
    /// Party 1 went on without this member's ranking of a batch: its own order decides.
    RankingMissed {
        batch: u64,
    },
    /// A result of Select-Best did not come; the member's own ranking decided.
    OutcomeOverdue {
        batch: u64,
    },
    /// The parties were away too long; what they delivered is withdrawn.
    Stale {
        routes: usize,
    },
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
    /// The last batch.
    pub batch: u64,
    /// Routes that the router announces.
    pub router_routes: usize,
    /// Changes that both parties have not applied yet.
    pub unconfirmed: usize,
    /// Objects known, sealed ones included.
    pub objects: usize,
    /// Prefixes installed in the router.
    pub installed: usize,
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
    pub counters: MemberCounters,
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

/// One route in a [`Why`].
#[derive(Clone, Debug, Serialize)]
pub struct WhyRoute {
    /// Its number among the prefix's candidates.
    pub number: usize,
    /// The announcer's slot and name; `None` if the route is not exported to this member.
    pub announcer: Option<(u32, String)>,
    pub asn: Option<u32>,
    pub as_path: Option<String>,
    /// The route object, by which validation knows it.
    #[serde(skip)]
    pub handle: Handle,
    /// The verdict of validation; `None` if it was not requested or has no result yet.
    pub verdict: Option<VerdictKind>,
    /// The member's class, bigger preferred; `None` if it is not used.
    pub class: Option<u8>,
    /// What became of the route, in words.
    pub outcome: String,
}

/// Why a prefix has its installed route, or none.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    pub prefix: String,
    /// In words.
    pub summary: String,
    pub routes: Vec<WhyRoute>,
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
        MemberStatus {
            exchange: self.config.exchange.clone(),
            slot: self.config.slot,
            parties: self.welcomed,
            synced: self.synced,
            batch: self.last_seq,
            router_routes: self.announcements.router_routes(),
            unconfirmed: self.announcements.unconfirmed(),
            objects: self.routes.len(),
            installed: self.installed.len(),
            awaiting: self.choices.values().filter(|choice| choice.awaits.is_some()).count(),
            held: self.held_slots(),
            validating: self.awaited.len(),
            verdicts: self.verdicts(),
            further_slots: self.further_slots(),
            member_set: self.set.as_ref().map(|set| set.number),
            counters: self.counters.clone(),
        }
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
        self.synced && self.announcements.unconfirmed() == 0 && self.rounds.is_empty() && self.awaited.is_empty()
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

    /// Why `prefix` has its installed route, or none.
    pub fn why(&mut self, prefix: Prefix) -> Why {
        let candidates = self.choices.get(&prefix).map(|choice| choice.candidates.clone()).unwrap_or_default();
        let classes = self.classes(&candidates);
        let winner = self.installed.get(&prefix).map(|installed| installed.handle);
        let top = classes.iter().filter_map(|(_, _, class)| *class).max();
        let mut routes = Vec::new();
        for (number, (handle, prefix_index)) in candidates.iter().enumerate() {
            let open = self.routes.get(handle).and_then(|route| route.opened.clone());
            let class = classes.iter().find(|(n, ..)| *n == number).and_then(|(_, _, class)| *class);
            let assessment = self.assessment(&(*handle, *prefix_index));
            let is_usable = assessment.is_some_and(|assessment| assessment.usable);
            let verdict = assessment
                .filter(|assessment| assessment.usable && self.config.validates)
                .map(|assessment| assessment.verdict);
            let outcome = match (&open, class) {
                _ if winner == Some(*handle) => "installed",
                (None, _) => "sealed: its announcer does not export it to you",
                (Some(_), _) if self.awaited.contains(handle) => "waiting for validation",
                (Some(_), _) if assessment.is_some_and(|assessment| assessment.best_case.is_some()) => {
                    "not validated: it cannot become best"
                }
                (Some(_), _) if !is_usable => "not used: it is not valid",
                (Some(_), None) if verdict == Some(VerdictKind::Invalid) => "not used: validation found it invalid",
                (Some(_), None) => "not used: your import rules reject it",
                (Some(_), class) if class == top => {
                    "ranked equal; the exchange's recommendation preferred another route"
                }
                (Some(_), _) => "your own ranking prefers another route",
            };
            let slot = open.as_ref().and_then(|open| Some((open.slot, self.set.as_ref()?.slot(open.slot)?)));
            routes.push(WhyRoute {
                number,
                announcer: slot.map(|(number, slot)| (number, slot.name.clone())),
                asn: slot.map(|(_, slot)| slot.asn.0),
                as_path: open.as_ref().map(|open| crate::policy::pattern::path_text(open.attributes.as_path())),
                handle: *handle,
                verdict,
                class,
                outcome: outcome.to_owned(),
            });
        }
        let summary = match (winner, self.choices.get(&prefix)) {
            (None, None) => "no member exports a route for this prefix to you".to_owned(),
            (None, Some(choice)) if choice.awaits.is_some() => "waiting for the result of Select-Best".to_owned(),
            (None, Some(_)) => "every route for this prefix is sealed, invalid or rejected".to_owned(),
            (Some(_), Some(choice)) if choice.candidates.len() == 1 => {
                "the only route; no comparison needed".to_owned()
            }
            (Some(_), Some(choice)) if choice.chosen.is_some() => {
                "chosen by Select-Best from your ranking and the exchange's recommendation".to_owned()
            }
            (Some(_), _) => "chosen by your own ranking".to_owned(),
        };
        Why { prefix: prefix.to_string(), summary, routes }
    }
}

//! What a party says of itself: nothing that depends on a policy, a ranking, a route or a result.

use std::fmt;

use serde::Serialize;

use super::{Number, Party, Stage};
use crate::frames::Refusal;
use crate::object::Kind;
use crate::table::Part;

/// Counts since start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    /// Objects taken.
    pub objects: u64,
    /// Objects refused.
    pub refused: u64,
    /// Frames that could not be.
    pub bad_frames: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Rounds of Select-Best finished.
    pub rounds: u64,
    /// Prefixes times members evaluated.
    pub lanes: u64,
    /// Rankings that came too late.
    pub missed_rankings: u64,
    /// Messages of the engine sent.
    pub engine_messages: u64,
    /// Bytes of the engine sent.
    pub engine_bytes: u64,
    /// Bytes received in frames.
    pub bytes_received: u64,
    /// Bytes sent in frames.
    pub bytes_sent: u64,
}

/// Something that an operator may want to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum PartyEvent {
    /// The parties agreed on what they store.
    Agreed {
        /// Objects that both have.
        objects: usize,
        /// Objects dropped here because the other party lacks them.
        dropped: usize,
    },
    /// The link to the other party is down.
    OtherGone,
    /// A frame that cannot be; `slot` names the member, or the other party erred.
    BadFrame {
        /// Who.
        slot: Option<u32>,
        /// What was wrong.
        what: String,
    },
    /// An object was not taken.
    Refused {
        /// The announcer.
        slot: u32,
        /// Its version.
        version: u64,
        /// Why.
        #[serde(serialize_with = "as_text")]
        reason: Refusal,
    },
    /// The member gave the parties different objects, or gave one of them none.
    Mismatch {
        /// The member, who erred.
        slot: u32,
        /// The version.
        version: u64,
    },
    /// The member did not answer in time.
    MissedRanking {
        /// The member.
        slot: u32,
    },
    /// The routes of a member that is gone died.
    Expired {
        /// The member.
        slot: u32,
    },
    /// A member set that the operator did not sign, or that does not follow the one before.
    MembersRefused,
    /// The other party's message does not fit the engine's state.
    Engine {
        /// What was wrong.
        what: String,
    },
}

fn as_text<S: serde::Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The party at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct PartyStatus {
    /// 1 or 2.
    pub party: u8,
    /// The exchange.
    pub exchange: String,
    /// Number of the member set.
    pub member_set: u64,
    /// The epoch.
    pub epoch: u64,
    /// The last batch.
    pub batch: u64,
    /// Whether the other party is there and agrees.
    pub other_party: bool,
    /// Objects stored.
    pub objects: usize,
    /// Prefixes with a live route.
    pub prefixes: usize,
    /// Slots whose member is connected to both parties.
    pub members: Vec<u32>,
    /// What happens now.
    pub stage: &'static str,
    /// Counts.
    pub counters: Counters,
}

/// All that this party sees of one object.
#[derive(Clone, Debug, Serialize)]
pub struct RouteView {
    /// The announcer.
    pub slot: u32,
    /// Its version.
    pub version: u64,
    /// `announce`.
    pub kind: &'static str,
    /// The prefixes, visible by design.
    pub prefixes: Vec<String>,
    /// Bytes of the sealed route; none at party 2, which has only the hash.
    pub blob_bytes: Option<usize>,
    /// The first bytes of the blob (party 1) or of its hash (party 2), in hex.
    pub blob: String,
    /// The first slots' shares of the key, in hex: all that this party knows of the policy. Empty unless asked for:
    /// whoever had both parties' shares would have the policy.
    pub policy_share: Vec<String>,
}

impl Party {
    /// The party at a glance.
    #[must_use]
    pub fn status(&self) -> PartyStatus {
        PartyStatus {
            party: if self.config.number == Number::One { 1 } else { 2 },
            exchange: self.config.exchange.clone(),
            member_set: self.set.number,
            epoch: self.epoch,
            batch: self.seq,
            other_party: self.other_ready(),
            objects: self.table.len(),
            prefixes: self.table.prefixes().count(),
            members: self.active.keys().copied().collect(),
            stage: match self.stage {
                Stage::Idle => "idle",
                Stage::Proposed { .. } => "proposed",
                Stage::Persisting { .. } => "persisting",
                Stage::Accepted { .. } => "accepted",
                Stage::Round(_) => "round",
                Stage::Refill => "refill",
            },
            counters: self.counters.clone(),
        }
    }

    /// Counts since start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The signed member set in force.
    #[must_use]
    pub fn member_set_bytes(&self) -> std::sync::Arc<[u8]> {
        std::sync::Arc::clone(&self.set_bytes)
    }

    /// What this party sees of each live object, in order; at most `most`. `shares` adds its shares, which only a
    /// laboratory that plays both parties may show.
    #[must_use]
    pub fn routes(&self, most: usize, shares: bool) -> Vec<RouteView> {
        let view = |entry: &crate::table::Entry| {
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
                policy_share: row.chunks_exact(16).take(8).map(hex).collect(),
            }
        };
        self.table.entries().take(most).map(view).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

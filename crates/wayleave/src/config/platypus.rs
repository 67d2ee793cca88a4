//! What a Platypus router is told beside its links: waypoints, what may pass, accounts and lists.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::Prefix;

use super::Fault;
use super::router::{RouterFile, default_answers, default_replay, default_true, foreign, unplaced};
use super::rs::range;
use super::words::{PublicKey, Text};

/// `[platypus]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlatypusSection {
    /// Addresses that packets are sent to.
    pub waypoints: Spanned<Vec<Text<Ipv4Addr>>>,
    /// Bindings of 64 bits are accepted.
    #[serde(default)]
    pub narrow: bool,
    /// Seconds that a packet's time may be off.
    #[serde(default = "default_freshness")]
    pub freshness_secs: Spanned<u64>,
    /// Networks that nobody may reach through here.
    #[serde(default)]
    pub refused: Vec<Prefix>,
    /// Waypoints within those that may be reached.
    #[serde(default)]
    pub allowed_waypoints: Vec<Text<IpAddr>>,
    #[serde(default)]
    pub repeated: RepeatedName,
    /// Packets that one replay filter takes in 30 seconds.
    #[serde(default = "default_replay")]
    pub replay_capacity: Spanned<u64>,
    /// Accounts at most; with zero nothing is counted.
    #[serde(default = "default_accounts")]
    pub accounts: Spanned<u64>,
    /// ICMP errors a second.
    #[serde(default = "default_answers")]
    pub answers_per_second: Spanned<u64>,
    /// A signed list of revocations, and who signs it.
    pub revocations: Option<Spanned<RevocationsSection>>,
}

/// A signed list of revocations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevocationsSection {
    pub file: PathBuf,
    pub key: Text<PublicKey>,
    /// Nothing passes until a list is there.
    #[serde(default = "default_true")]
    pub required: bool,
}

/// What is done with a packet that came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepeatedName {
    Pass,
    CountOnce,
    #[default]
    Drop,
}

fn default_freshness() -> Spanned<u64> {
    unplaced(30)
}

fn default_accounts() -> Spanned<u64> {
    unplaced(4_096)
}

impl RouterFile {
    pub(super) fn platypus_faults(&self, section: &PlatypusSection, faults: &mut Vec<Fault>) {
        faults.extend(range(&section.answers_per_second, 0, 100_000, "a second"));
        faults.extend(range(&section.freshness_secs, 1, 30, "seconds"));
        faults.extend(range(&section.replay_capacity, 1, 1 << 30, "packets"));
        faults.extend(range(&section.accounts, 0, 1 << 22, "accounts"));
        if *self.forwarding.workers.get_ref() > 1 && section.repeated != RepeatedName::Pass {
            // A packet that comes in two ways may reach two threads, each with a filter of its own.
            let message =
                "several threads with `repeated` other than \"pass\": each thread would let a packet through once";
            let help = "set workers = 1, or repeated = \"pass\" in [platypus]";
            faults.push(Fault::at(self.forwarding.workers.span(), message).help(help));
        }
        if section.waypoints.get_ref().is_empty() {
            faults.push(Fault::at(section.waypoints.span(), "no waypoint, expected at least one address"));
        }
        if *section.accounts.get_ref() > 0 && self.forwarding.state.is_none() {
            let message = "accounts without `state` in [forwarding]: counters would not survive a restart";
            faults.push(Fault::at(section.accounts.span(), message).help("name a file, or set accounts = 0"));
        }
        faults.extend(self.interface.first().map(|section| foreign(section.span(), "[[interface]]", "scion")));
    }
}

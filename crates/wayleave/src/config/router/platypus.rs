//! The configuration of a Platypus router without its links: waypoints, networks, accounts, revocations.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::Prefix;

use super::Fault;
use super::parse::{PublicKey, Text};
use super::router::{RouterFile, default_answers, default_replay, default_true, foreign, unplaced};
use super::rs::range;

/// Octets of the longest IPv4 packet, and of a common one: less at once would let nothing pass.
const LONGEST: u64 = 65_535;
const COMMON: u64 = 1_500;
/// Rates, at most: they are compared one by one at a reload.
const MOST_RATES: usize = 4_096;
/// Octets a second, or at once, at most.
const MOST_OCTETS: u64 = 1 << 40;
/// Principals and delegations have numbers of 24 bits.
const MOST_NUMBER: u64 = (1 << 24) - 1;

/// `[platypus]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlatypusSection {
    /// Addresses that packets are sent to.
    pub waypoints: Spanned<Vec<Text<Ipv4Addr>>>,
    /// Bindings of 64 bits are accepted.
    #[serde(default)]
    pub narrow: bool,
    /// How far a packet's time may differ, in seconds.
    #[serde(default = "default_freshness")]
    pub freshness_secs: Spanned<u64>,
    /// Networks that may not be reached through this router.
    #[serde(default)]
    pub refused: Vec<Prefix>,
    /// Waypoints in those networks that may be reached.
    #[serde(default)]
    pub allowed_waypoints: Vec<Text<IpAddr>>,
    #[serde(default)]
    pub repeated: RepeatedName,
    /// Packets that the replay filter holds in a turn of 32 seconds.
    #[serde(default = "default_replay")]
    pub replay_capacity: Spanned<u64>,
    /// Accounts at most; with zero nothing is counted.
    #[serde(default = "default_accounts")]
    pub accounts: Spanned<u64>,
    /// ICMP errors a second.
    #[serde(default = "default_answers")]
    pub answers_per_second: Spanned<u64>,
    /// Limits for principals and delegations.
    #[serde(default)]
    pub rates: Vec<Spanned<RateSection>>,
    /// A signed list of revocations, and who signs it.
    pub revocations: Option<Spanned<RevocationsSection>>,
}

/// The rate of a principal with all its delegations, or of one delegation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSection {
    pub principal: Spanned<u64>,
    pub delegation: Option<Spanned<u64>>,
    /// Octets of IP packets a second.
    pub rate: Spanned<u64>,
    /// Burst in octets. Default: a tenth of a second at the rate, at least the longest packet for each thread.
    pub burst: Option<Spanned<u64>>,
}

impl RateSection {
    /// Octets at once, of all threads together.
    pub fn burst(&self, threads: u64) -> u64 {
        let own = self.burst.as_ref().map(|burst| *burst.get_ref());
        own.unwrap_or_else(|| (*self.rate.get_ref() / 10).max(LONGEST * threads))
    }
}

/// A signed list of revocations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevocationsSection {
    pub file: PathBuf,
    pub key: Text<PublicKey>,
    /// No packet passes until the list has been read.
    #[serde(default = "default_true")]
    pub required: bool,
}

/// What happens to a repeated packet.
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
        self.stamper_faults(faults);
        if section.waypoints.get_ref().is_empty() && self.stamper.is_none() {
            faults.push(Fault::at(section.waypoints.span(), "no waypoint address, expected at least one"));
        }
        if *section.accounts.get_ref() > 0 && self.forwarding.state.is_none() {
            let message = "accounts without `state` in [forwarding]: counters would not survive a restart";
            faults.push(Fault::at(section.accounts.span(), message).help("name a file, or set accounts = 0"));
        }
        self.rate_faults(section, faults);
        faults.extend(self.interface.first().map(|section| foreign(section.span(), "[[interface]]", "scion")));
    }

    fn rate_faults(&self, section: &PlatypusSection, faults: &mut Vec<Fault>) {
        let threads = *self.forwarding.workers.get_ref();
        let mut payers = HashSet::new();
        if let Some(beyond) = section.rates.get(MOST_RATES) {
            faults.push(Fault::at(beyond.span(), format!("more than {MOST_RATES} rates, expected fewer")));
        }
        for rate in &section.rates {
            let at = rate.span();
            let rate = rate.get_ref();
            faults.extend(range(&rate.principal, 0, MOST_NUMBER, ""));
            faults.extend(rate.delegation.as_ref().and_then(|id| range(id, 0, MOST_NUMBER, "")));
            faults.extend(range(&rate.rate, threads, MOST_OCTETS, "octets a second"));
            let least = COMMON * threads;
            faults.extend(rate.burst.as_ref().and_then(|burst| range(burst, least, MOST_OCTETS, "octets at once")));
            let payer = (*rate.principal.get_ref(), rate.delegation.as_ref().map(|id| *id.get_ref()));
            if !payers.insert(payer) {
                faults.push(Fault::at(at.clone(), "a second rate for the same principal or delegation, expected one"));
            }
            if *section.accounts.get_ref() == 0 {
                let fault = Fault::at(at, "a rate without accounts: packets are not counted");
                faults.push(fault.help("set `accounts` in [platypus]"));
            }
        }
    }
}

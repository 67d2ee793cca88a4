//! The configuration of a Platypus router without its links: waypoints, networks, accounts, revocations.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::capability::SharedRate;
use wayleave_control::realm::Server;
use wayleave_core::{Afi, IdentityKey, Prefix};
use wayleave_dataplane::platypus::account::{LINES_OF_REGISTERED, most_registered};
use wayleave_dataplane::replay::{MOST_PARTITIONS, Partitions, packets_of};
use wayleave_packet::platypus::verify::{MAX_FRESHNESS, MIN_FRESHNESS};

use super::{FormatSection, RouterFile, SocketAddresses, default_answers, default_replay, default_true, unplaced};
use crate::key_files::node::{self, KeyKind};
use crate::overlay::ServerEntry;
use crate::parse::{ListKey, Text};
use crate::rs::{FileFault, range};
use crate::{Fault, Source};

/// Octets of the longest IPv4 packet, and of a common one: less at once would let nothing pass.
const LONGEST: u64 = 65_535;
const COMMON: u64 = 1_500;
/// Rates, at most: they are compared one by one at a reload, and each has a partition in the replay filter.
const MOST_RATES: usize = MOST_PARTITIONS;
/// Octets of the shortest packet: IPv4, header, one capability with a binding of 64 bits.
const SHORTEST: usize = 60;
/// Octets a second, or at once, at most.
const MOST_OCTETS: u64 = 1 << 40;
/// Bits of the shortest prefix of waypoints, of IPv4 and of IPv6: a shorter one would take most senders for waypoints.
const SHORTEST_OF_WAYPOINTS: [u8; 2] = [8, 16];
/// Principals and delegations have numbers of 24 bits.
const MOST_NUMBER: u64 = (1 << 24) - 1;

/// `[platypus]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlatypusSection {
    /// Addresses that packets are sent to.
    pub waypoints: Spanned<Vec<Text<IpAddr>>>,
    /// Bindings of 64 bits are accepted.
    #[serde(default)]
    pub narrow: bool,
    /// How old a packet may be, in seconds.
    #[serde(default = "default_freshness")]
    pub freshness_secs: Spanned<u64>,
    /// Waypoints of the provider's other routers, from which packets come by IP.
    #[serde(default)]
    pub own_waypoints: Vec<Spanned<Prefix>>,
    /// Waypoints of peers, from which packets come by IP, but none of this provider's own sources.
    #[serde(default)]
    pub peer_waypoints: Vec<Spanned<Prefix>>,
    /// Networks that may not be reached through this router, and from which no stamped packets come.
    #[serde(default)]
    pub refused: Vec<Prefix>,
    /// Waypoints in those networks that may be reached.
    #[serde(default)]
    pub allowed_waypoints: Vec<Text<IpAddr>>,
    /// Sources in those networks that stamp their packets. They do not count behind a peer's waypoint.
    #[serde(default)]
    pub allowed_sources: Vec<Prefix>,
    /// Networks of ordinary hosts: the last waypoint takes the header off packets to them.
    #[serde(default)]
    pub decapsulate: Vec<Prefix>,
    /// Networks of all the provider's customers: nothing comes from them by a peer's waypoint.
    #[serde(default)]
    pub customers: Vec<Prefix>,
    #[serde(default)]
    pub repeated: RepeatedName,
    /// Packets that the replay filter holds in a turn of four seconds.
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
    /// The provider's key server, to which usage is reported.
    pub provider: Option<Spanned<ProviderSection>>,
}

/// The key server of this router's provider, or several with one database.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSection {
    /// The file of this router's identity.
    pub identity: Spanned<PathBuf>,
    pub server: Option<ServerEntry>,
    /// In the place of `server`: the router is connected to all of them.
    pub servers: Option<Spanned<Vec<ServerEntry>>>,
}

/// Key servers of one provider, at most.
const MAX_SERVERS: usize = 8;

impl ProviderSection {
    /// The key servers, the first one first.
    pub fn servers(&self) -> impl Iterator<Item = Server> {
        let several = self.servers.iter().flat_map(|servers| servers.get_ref());
        self.server.iter().chain(several).map(ServerEntry::server)
    }

    fn fault(&self, place: Range<usize>) -> Option<Fault> {
        let several = match (&self.server, &self.servers) {
            (Some(_), None) => return None,
            (None, Some(several)) => several,
            _ => {
                let fault = Fault::at(place, "a provider with `server` and `servers`, or with neither");
                return Some(fault.help("name one key server as `server`, or each of several in `servers`"));
            }
        };
        let count = several.get_ref().len();
        if !(1..=MAX_SERVERS).contains(&count) {
            return Some(Fault::at(several.span(), format!("{count} servers, expected 1 to {MAX_SERVERS}")));
        }
        // A server that is connected to twice ends the older link of the two, again and again.
        let addresses: BTreeSet<String> = self.servers().map(|server| server.address).collect();
        let identities: BTreeSet<IdentityKey> = self.servers().map(|server| server.identity).collect();
        let is_twice = addresses.len() < count || identities.len() < count;
        is_twice.then(|| Fault::at(several.span(), "two of the servers have the same identity or address"))
    }
}

/// The rate of a principal with all its delegations, or of one delegation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSection {
    pub principal: Spanned<u64>,
    pub delegation: Option<Spanned<u64>>,
    /// Octets of IP packets a second.
    pub rate: Spanned<u64>,
    /// How many of the provider's routers share the rate, which its key server has told; `None` for one of the configuration.
    #[serde(skip)]
    pub routers: Option<u16>,
    /// Burst in octets. Default: a tenth of a second at the rate, at least the longest packet for each thread.
    pub burst: Option<Spanned<u64>>,
}

impl RateSection {
    /// Octets at once, of all threads together.
    pub fn burst(&self, threads: u64) -> u64 {
        let own = self.burst.as_ref().map(|burst| *burst.get_ref());
        // The key server that told one does not know how many threads there are.
        own.map_or((*self.rate.get_ref() / 10).max(LONGEST * threads), |burst| burst.max(COMMON * threads))
    }
}

/// A signed list of revocations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevocationsSection {
    pub file: PathBuf,
    pub key: Text<ListKey>,
    /// No packet passes until the list has been read.
    #[serde(default = "default_true")]
    pub required: bool,
    /// How many seconds ago the first list may have been signed where no number of an earlier one is known.
    #[serde(default = "default_recent")]
    pub recent_secs: Spanned<u64>,
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
    unplaced(MAX_FRESHNESS.into())
}

fn default_recent() -> Spanned<u64> {
    unplaced(86_400)
}

fn default_accounts() -> Spanned<u64> {
    unplaced(4_096)
}

impl FormatSection for PlatypusSection {
    fn uses(&self) -> &'static [&'static str] {
        &["link", "stamper"]
    }

    fn faults(&self, file: &RouterFile, faults: &mut Vec<Fault>) {
        faults.extend(range(&self.answers_per_second, 0, 100_000, "a second"));
        faults.extend(range(&self.freshness_secs, MIN_FRESHNESS.into(), MAX_FRESHNESS.into(), "seconds"));
        faults.extend(range(&self.replay_capacity, 1, 1 << 30, "packets"));
        faults.extend(range(&self.accounts, 0, 1 << 22, "accounts"));
        file.stamper_faults(faults);
        let recent = self.revocations.as_ref().map(|list| &list.get_ref().recent_secs);
        faults.extend(recent.and_then(|recent| range(recent, 60, 31_536_000, "seconds")));
        if self.waypoints.get_ref().is_empty() && file.stamper.is_none() {
            faults.push(Fault::at(self.waypoints.span(), "no waypoint address, expected at least one"));
        }
        faults.extend(self.provider.as_ref().and_then(|provider| provider.get_ref().fault(provider.span())));
        if let Some(provider) = &self.provider
            && *self.accounts.get_ref() == 0
        {
            let fault = Fault::at(provider.span(), "a provider without accounts: there is no usage to report");
            faults.push(fault.help("set `accounts` in [platypus]"));
        }
        if *self.accounts.get_ref() > 0 && file.forwarding.state.is_none() {
            let message = "accounts without `state` in [forwarding]: counters would not survive a restart";
            faults.push(Fault::at(self.accounts.span(), message).help("name a file, or set accounts = 0"));
        }
        self.rate_faults(file, faults);
        self.waypoint_faults(file, faults);
    }

    fn notes(&self, file: &RouterFile) -> Vec<String> {
        let note = "no other waypoint is named in `own_waypoints` or `peer_waypoints`: a path may begin at this router, and a packet \
                    from another router's waypoint is refused (foreign-waypoint)";
        let is_named = self.own_waypoints(file).chain(self.peer_waypoints(file)).next().is_some();
        (!is_named && !self.waypoints.get_ref().is_empty()).then(|| note.to_owned()).into_iter().collect()
    }

    fn warnings(&self, file: &RouterFile) -> Vec<Fault> {
        let mut warnings = Vec::new();
        if let Some(provider) = self.provider.as_ref().filter(|_| self.revocations.is_none()) {
            let message = "a key server without `revocations`: who was revoked there goes on passing here";
            let help = "add to [platypus]: revocations = { file = \"revoked\", key = \"writer:...\" }, with the line `writer` of `wayleave cap init`";
            warnings.push(Fault::at(provider.span(), message).help(help));
        }
        self.warn_of_sources(file, &mut warnings);
        warnings.extend(self.shortages(*file.forwarding.workers.get_ref()));
        warnings
    }

    fn sockets<'a>(&'a self, file: &'a RouterFile) -> Vec<SocketAddresses<'a>> {
        file.link_sockets(false).collect()
    }

    fn file_fault(&self, _: &RouterFile, source: &Source) -> Option<FileFault> {
        let provider = self.provider.as_ref()?;
        let named = &provider.get_ref().identity;
        let path = source.resolve(named.get_ref());
        let own = match node::load(KeyKind::Identity, &path) {
            Ok(seed) => node::identity_of(&seed),
            Err(failure) => {
                let fault = Fault::of(named.span(), &failure);
                return Some(if path.exists() { FileFault::Unusable(fault) } else { FileFault::Missing(fault) });
            }
        };
        provider.get_ref().servers().any(|server| server.identity == own).then(|| {
            let message = "a key server with the identity of this router itself, expected its own";
            let fault = Fault::at(provider.span(), message);
            // The router starts, and has the list of before.
            FileFault::Doubtful(
                fault.help("`wayleave keys show` of the file that `identity` in [key.routers] names prints it"),
            )
        })
    }
}

fn no_source(key: &str, network: &Prefix) -> String {
    let family = if network.afi() == Afi::Ipv4 { "IPv4" } else { "IPv6" };
    format!(
        "{network} in `{key}` has no effect: packets come from sources of a waypoint's family, and none here is of {family}"
    )
}

fn host(address: IpAddr) -> Option<Prefix> {
    let afi = if address.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 };
    Prefix::truncated(address, afi.bits()).ok()
}

impl PlatypusSection {
    /// For each rate, in their order, its partition in a replay filter of `capacity` packets a turn. The delegation of a principal
    /// that has a rate itself needs none, since its packets go to the principal's.
    pub fn partitions(&self, capacity: usize, threads: u64) -> Partitions {
        Partitions::divide(capacity, &self.needs(threads))
    }

    /// The section with rates that the key server has told, each with its burst or zero, in the place of those that the file has for the
    /// same payers.
    #[must_use]
    pub fn with_shared(&self, shared: &[(SharedRate, u64)]) -> Self {
        let number = |number: u64| Spanned::new(0..0, number);
        let told = |(rate, burst): &(SharedRate, u64)| RateSection {
            principal: number(rate.payer.principal.number().into()),
            delegation: rate.payer.delegation.map(|id| number(id.number().into())),
            rate: number(rate.rate),
            routers: Some(rate.routers.max(1)),
            burst: Some(*burst).filter(|burst| *burst > 0).map(number),
        };
        let payer = |rate: &RateSection| (*rate.principal.get_ref(), rate.delegation.as_ref().map(|id| *id.get_ref()));
        // Those of the file first, and in their order: each keeps its place in the replay filter, whatever is told.
        let mut rates = self.rates.clone();
        for told in shared.iter().map(told) {
            match rates.iter_mut().find(|rate| payer(rate.get_ref()) == payer(&told)) {
                Some(rate) => *rate.get_mut() = told,
                None => rates.push(Spanned::new(0..0, told)),
            }
        }
        Self { rates, ..self.clone() }
    }

    /// What is too small for the rates, with so many threads.
    pub fn shortages(&self, threads: u64) -> Vec<Fault> {
        let mut faults = Vec::new();
        let capacity = usize::try_from(*self.replay_capacity.get_ref()).unwrap_or(usize::MAX);
        let delegations = self.rates.iter().filter(|rate| rate.get_ref().delegation.is_some()).count();
        let accounts = usize::try_from(*self.accounts.get_ref()).unwrap_or(usize::MAX);
        if accounts > 0 && delegations > most_registered(accounts) {
            let message = format!(
                "accounts are kept for {} delegations, and {delegations} have rates: packets of the others may count as their principals'",
                most_registered(accounts)
            );
            let help = format!("accounts = {} has room for all", delegations * LINES_OF_REGISTERED);
            faults.push(Fault::at(self.accounts.span(), message).help(help));
        }
        if self.repeated == RepeatedName::Pass || !self.partitions(capacity, threads).are_cut {
            return faults;
        }
        let message =
            "the replay filter is too small for all rates with the shortest packets: every payer's room is cut";
        let needs: u64 = self.needs(threads).iter().sum();
        let help = format!(
            "replay_capacity = {} has room for all, and takes 12 octets for each",
            needs.saturating_mul(4) / 3 + 2
        );
        faults.push(Fault::at(self.replay_capacity.span(), message).help(help));
        faults
    }

    fn needs(&self, threads: u64) -> Vec<u64> {
        let has_rate: HashSet<u64> = self
            .rates
            .iter()
            .map(Spanned::get_ref)
            .filter(|rate| rate.delegation.is_none())
            .map(|rate| *rate.principal.get_ref())
            .collect();
        let need = |rate: &RateSection| {
            let is_within = rate.delegation.is_some() && has_rate.contains(rate.principal.get_ref());
            if is_within { 0 } else { packets_of(*rate.rate.get_ref(), rate.burst(threads), SHORTEST) }
        };
        self.rates.iter().map(|rate| need(rate.get_ref())).collect()
    }

    /// Every network of waypoints that the provider runs, by whatever way their packets come.
    fn own_waypoints<'a>(&'a self, file: &'a RouterFile) -> impl Iterator<Item = &'a Spanned<Prefix>> {
        self.own_waypoints.iter().chain(file.link.iter().flat_map(|link| &link.get_ref().own_waypoints))
    }

    /// The same of peers.
    fn peer_waypoints<'a>(&'a self, file: &'a RouterFile) -> impl Iterator<Item = &'a Spanned<Prefix>> {
        self.peer_waypoints.iter().chain(file.link.iter().flat_map(|link| &link.get_ref().peer_waypoints))
    }

    /// Networks from which nothing comes by a peer's waypoint: customers of this provider, at this router or at another one.
    pub fn customers(&self, file: &RouterFile) -> Vec<Prefix> {
        let stamped = file.link.iter().flat_map(|link| &link.get_ref().stamp);
        self.customers.iter().chain(&self.decapsulate).chain(stamped).copied().collect()
    }

    /// Who sends from a network of waypoints chooses the original sources of its packets: no sender may lie in one.
    fn waypoint_faults(&self, file: &RouterFile, faults: &mut Vec<Fault>) {
        let waypoints = self.waypoints.get_ref().iter();
        let here = waypoints.filter_map(|address| host(address.0)).collect::<Vec<_>>();
        let own = self.own_waypoints(file).map(|network| *network.get_ref()).collect::<Vec<_>>();
        let links = || file.link.iter().map(Spanned::get_ref);
        let stamped: Vec<Prefix> = links().flat_map(|link| &link.stamp).copied().collect();
        let sources: Vec<Prefix> = links().flat_map(|link| link.sources.iter().flatten()).copied().collect();
        let senders = [
            ("decapsulate", &self.decapsulate),
            ("customers", &self.customers),
            ("allowed_sources", &self.allowed_sources),
            ("stamp", &stamped),
            ("sources", &sources),
        ];
        // The provider's networks may be the same at all its routers, and hold its own waypoints; what is behind a link is not here.
        let of_peers = [("waypoints", &here), ("own_waypoints", &own), ("refused", &self.refused)];
        let of_links = [("waypoints", &here)];
        let all = (self.own_waypoints.iter().map(|network| ("own_waypoints", network, &[][..])))
            .chain(
                links().flat_map(|link| &link.own_waypoints).map(|network| ("own_waypoints", network, &of_links[..])),
            )
            .chain(self.peer_waypoints(file).map(|network| ("peer_waypoints", network, &of_peers[..])));
        for (key, network, others) in all {
            let (at, network) = (network.span(), network.get_ref());
            let shortest = SHORTEST_OF_WAYPOINTS[usize::from(network.afi() == Afi::Ipv6)];
            if network.len() < shortest {
                let message = format!(
                    "{network} in `{key}` is no network of waypoints, expected a prefix of {shortest} bits at least"
                );
                faults.push(Fault::at(at, message).help("whoever sends from it chooses the source of its packets"));
                continue;
            }
            for (other_key, others) in senders.iter().chain(others) {
                let is_over = |other: &&Prefix| other.contains(network) || network.contains(other);
                if let Some(other) = others.iter().find(is_over) {
                    let message =
                        format!("{network} in `{key}` overlaps {other} in `{other_key}`, expected networks apart");
                    let help = "whoever sends from a waypoint's address chooses the source of its packets";
                    faults.push(Fault::at(at.clone(), message).help(help));
                }
            }
        }
    }

    fn warn_of_sources(&self, file: &RouterFile, warnings: &mut Vec<Fault>) {
        let here: Vec<Prefix> = self.waypoints.get_ref().iter().filter_map(|address| host(address.0)).collect();
        let is_other =
            |network: &&Prefix| !here.is_empty() && !here.iter().any(|waypoint| waypoint.afi() == network.afi());
        for link in &file.link {
            let (at, link) = (link.span(), link.get_ref());
            if let ([_, ..], [peer, ..]) = (&link.own_waypoints[..], &link.peer_waypoints[..]) {
                let message = "a link with waypoints of yours and of peers: whoever is at its other end may say that a packet came from yours";
                let help = "give a peer a link of its own, unless the other end is a router of yours";
                warnings.push(Fault::at(peer.span(), message).help(help));
            }
            if let Some(network) = link.sources.iter().flatten().find(&is_other).filter(|_| link.stamp.is_empty()) {
                warnings.push(Fault::at(at, no_source("sources", network)));
            }
        }
        for (key, networks) in [("customers", &self.customers), ("allowed_sources", &self.allowed_sources)] {
            if let Some(network) = networks.iter().find(&is_other) {
                warnings.push(Fault::at(self.waypoints.span(), no_source(key, network)));
            }
        }
        let is_over = |network: &Prefix, other: &Prefix| network.contains(other) || other.contains(network);
        let is_apart = |network: &&Prefix| !self.refused.iter().any(|refused| is_over(network, refused));
        if let Some(network) = self.allowed_sources.iter().find(is_apart) {
            let message = format!("{network} in `allowed_sources` has no effect: it lies in no network of `refused`");
            let help = "a network whose sources may not come by a peer's waypoint belongs into `customers`";
            warnings.push(Fault::at(self.waypoints.span(), message).help(help));
        }
    }

    fn rate_faults(&self, file: &RouterFile, faults: &mut Vec<Fault>) {
        let threads = *file.forwarding.workers.get_ref();
        let mut payers = HashSet::new();
        if let Some(beyond) = self.rates.get(MOST_RATES) {
            faults.push(Fault::at(beyond.span(), format!("more than {MOST_RATES} rates, expected fewer")));
        }
        for rate in &self.rates {
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
            if *self.accounts.get_ref() == 0 {
                let fault = Fault::at(at, "a rate without accounts: packets are not counted");
                faults.push(fault.help("set `accounts` in [platypus]"));
            }
        }
    }
}

/// The part of `wayleave init router` for this format.
pub(super) const TEMPLATE: &str = "# For format = \"platypus\", instead of [scion] and [[interface]]:\n\
     #[platypus]\n\
     # Addresses of this machine to which packets are sent, in IP protocol 253.\n\
     #waypoints = [\"198.51.100.1\"]\n\
     # Bindings of 64 bits are accepted.\n\
     #narrow = false\n\
     # Seconds that a packet may be old, 2 to 5; it may be one second ahead.\n\
     #freshness_secs = 5\n\
     # Waypoints of the provider's other routers, and of peers that check the sources of packets: only from these, and from\n\
     # the router's own, a packet by IP is accepted at a later waypoint than its first.\n\
     #own_waypoints = [\"198.51.100.2/32\"]\n\
     #peer_waypoints = [\"198.51.101.1/32\"]\n\
     # Networks that may not be reached through this router and send no stamped packets; waypoints and sources in them that may.\n\
     # By a peer's waypoint nothing comes from any of them, nor from those of `decapsulate` and `customers`.\n\
     #refused = [\"10.0.0.0/8\"]\n\
     #allowed_waypoints = [\"10.0.0.1\"]\n\
     #allowed_sources = [\"10.1.0.0/16\"]\n\
     # Networks of ordinary hosts: if the last waypoint is here, packets to them leave without a Platypus header.\n\
     #decapsulate = [\"203.0.113.0/24\"]\n\
     # Networks of all the provider's customers, the same at all its routers.\n\
     #customers = [\"203.0.112.0/23\"]\n\
     # Repeated packets: drop, count-once, pass.\n\
     #repeated = \"drop\"\n\
     # Packets of four seconds that the replay filter has room for, 12 octets each; a rate has a room of its own in it.\n\
     #replay_capacity = 4194304\n\
     # Largest number of accounts (principal, delegation, key epoch), at least sixteen for each principal, and 88 with key\n\
     # epochs of 16 s; 0 disables accounting.\n\
     #accounts = 4096\n\
     # ICMP errors per second.\n\
     #answers_per_second = 100\n\
     # Rate in octets per second, and burst, of a principal with all its delegations, or of one delegation, at this router alone.\n\
     # What the provider's key server tells of all routers together counts in the place of it.\n\
     #rates = [{ principal = 7, rate = 1250000 }, { principal = 7, delegation = 3, rate = 125000, burst = 65535 }]\n\
     # The provider's key server: usage is reported to it, and it sends lists of revocations, rates and shares of them.\n\
     # This router's own key: wayleave keys node router.identity --kind identity\n\
     #provider = { identity = \"router.identity\", server = { identity = \"node:ed25519:...\", address = \"192.0.2.1:8494\" } }\n\
     # Of several with one database: `servers = [{ ... }, { ... }]` in the place of `server`.\n\
     # A list signed by `wayleave cap revoke-list` or by the key server; with `required`, no packet passes until it has been read.\n\
     # A router without a record of the last one (`state`) takes only one signed less than `recent_secs` ago.\n\
     #revocations = { file = \"revoked\", key = \"writer:ed25519:...\", required = true, recent_secs = 86400 }\n\
     # Packets to these destinations are sent in UDP, all others in IP.\n\
     #[[link]]\n\
     #local = \"192.0.2.1:49254\"\n\
     #remote = \"192.0.2.2:49254\"\n\
     #routes = [\"198.51.100.2/32\"]\n\
     # Waypoints behind it, the provider's or a peer's: only from these a packet over it is accepted at a later waypoint than its first.\n\
     #own_waypoints = [\"198.51.100.2/32\"]\n\
     #peer_waypoints = [\"198.51.101.2/32\"]\n\
     # Sources behind it whose paths begin here. Without this line any, but none beside peer_waypoints.\n\
     #sources = [\"203.0.113.0/24\"]\n\
     # Sources behind it whose packets are stamped by the rules of [stamper].\n\
     #stamp = [\"192.0.2.128/25\"]\n\
     # Files are created by: wayleave cap mint, and wayleave cap narrow. The longest prefix counts; a rule without a\n\
     # route leaves packets unchanged. Position in packets that are stamped already: before the next capability, or \"last\".\n\
     #[stamper]\n\
     #position = \"next\"\n\
     # The index of this stamper, and the number of stampers, that share the capabilities.\n\
     #share = [0, 1]\n\
     #routes = [{ name = \"transit\", capabilities = [\"desk.cap\"], sealed = false, udp = false, mtu = 1500 }]\n\
     #rules = [{ to = \"203.0.113.0/24\", route = \"transit\" }, { to = \"203.0.113.200/32\" }]\n\
     \n";

#[cfg(test)]
mod tests {
    use wayleave_control::capability::RatePayer;
    use wayleave_control::leases::Offline;
    use wayleave_crypto::secret::Seed;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_packet::platypus::header::{DelegationId, Principal};

    use super::*;
    use crate::Source;
    use crate::check::Checked;
    use crate::failure::Failure;

    fn section(text: &str) -> PlatypusSection {
        toml::from_str(&format!("waypoints = []\n{text}")).expect("a section")
    }

    #[test]
    fn a_filter_that_is_too_small_for_all_rates_is_told_with_the_size_that_is_enough() {
        // Five seconds and the burst, in packets of sixty octets: 1,000,000 and 300,000.
        let rates = "rates = [{ principal = 7, rate = 12000000, burst = 3000 }, { principal = 7, delegation = 3, rate = 9 },\n\
                     { principal = 8, delegation = 3, rate = 3600000, burst = 3000 }]\n";
        let section = section(rates);
        assert_eq!(section.needs(1), [1_000_050, 0, 300_050]);
        let enough: u64 = section.needs(1).iter().sum::<u64>() * 4 / 3 + 2;
        assert!(!section.partitions(enough as usize, 1).are_cut);
        assert!(section.partitions(enough as usize - 4, 1).are_cut);
    }

    #[test]
    fn more_delegations_with_rates_than_accounts_are_kept_for_are_told_with_the_number_that_is_enough() {
        let rate = |id: u32| format!("{{ principal = 7, delegation = {id}, rate = 1000000 }}");
        let warned = |accounts: u32, delegations: u32| {
            let rates = (0..delegations).map(rate).collect::<Vec<_>>().join(", ");
            let text = format!(
                "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\nstate = \"s\"\n[platypus]\nwaypoints = [\"198.51.100.1\"]\n\
                 accounts = {accounts}\nreplay_capacity = 8388608\nrates = [{rates}]\n"
            );
            let warnings = RouterFile::checked(&Source::of_text("router.toml", &text)).warnings;
            warnings.iter().any(|warning| format!("{warning}").contains("accounts are kept for"))
        };
        assert!(!warned(64, 2) && warned(64, 3) && !warned(96, 3) && !warned(64, 0));
    }

    /// What `check` says of a router with these lines in `[platypus]`, and behind it.
    fn checked(section: &str, more: &str) -> Checked {
        let text = format!(
            "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\n[platypus]\nwaypoints = [\"198.51.100.1\"]\naccounts = 0\n\
             {section}\n{more}"
        );
        RouterFile::checked(&Source::of_text("router.toml", &text))
    }

    #[test]
    fn a_provider_has_one_server_or_several_at_different_addresses() {
        let with = |key: u8, port: u16| {
            let key = SigningKey::from_seed(&Seed::new([key; 32])).verifying_key().to_bytes();
            let key: String = key.iter().map(|octet| format!("{octet:02x}")).collect();
            format!("{{ identity = \"node:ed25519:{key}\", address = \"192.0.2.1:{port}\" }}")
        };
        let server = |which: u8| with(which, which.into());
        let said = |servers: String| {
            let section = format!("provider = {{ identity = \"router.identity\"{servers} }}");
            let errors = checked(&section, "").errors;
            errors.iter().map(ToString::to_string).filter(|said| !said.contains("without accounts")).collect::<String>()
        };
        let (one, two) = (format!(", server = {}", server(1)), format!(", servers = [{}, {}]", server(1), server(2)));
        for good in [&one, &two] {
            assert!(!said(good.clone()).contains("server"), "{}", said(good.clone()));
        }
        let nine = (1..10).map(server).collect::<Vec<_>>().join(", ");
        for (bad, why) in [
            (String::new(), "`server` and `servers`, or with neither"),
            (format!("{one}{two}"), "`server` and `servers`, or with neither"),
            (", servers = []".to_owned(), "0 servers"),
            (format!(", servers = [{nine}]"), "9 servers"),
            (format!(", servers = [{}, {}]", server(1), with(2, 1)), "the same identity or address"),
            (format!(", servers = [{}, {}]", server(1), with(1, 2)), "the same identity or address"),
        ] {
            let said = said(bad.clone());
            assert!(said.contains(why), "{bad}: {said}");
        }
    }

    const LINK: &str = "[[link]]\nlocal = \"127.0.0.1:1\"\nremote = \"127.0.0.1:2\"\n";

    #[test]
    fn networks_of_waypoints_in_which_senders_lie_are_refused_by_their_key() {
        let refused =
            "refused = [\"10.0.0.0/8\"]\nallowed_waypoints = [\"10.0.0.2\"]\nallowed_sources = [\"10.1.0.0/16\"]\n";
        let good = [
            (
                "own_waypoints = [\"198.51.100.0/24\"]\npeer_waypoints = [\"198.51.101.1/32\", \"192.0.0.0/8\"]",
                String::new(),
            ),
            ("own_waypoints = [\"10.0.0.2/32\"]", format!("{LINK}own_waypoints = [\"10.0.0.2/32\"]")),
            ("", format!("{LINK}routes = [\"198.51.100.2/32\"]\npeer_waypoints = [\"198.51.100.2/32\"]\nsources = []")),
        ];
        for (section, more) in good {
            let checked = checked(&format!("{refused}{section}"), &more);
            assert!(checked.errors.is_empty(), "{section} {more}: {:?}", checked.errors);
        }
        let bad = [
            ("0.0.0.0/0", "8 bits at least", ""),
            ("128.0.0.0/1", "8 bits at least", ""),
            ("2000::/3", "16 bits at least", ""),
            ("2001:db8:1:2::/64", "overlaps 2001:db8:1::/48 in `customers`", ""),
            ("10.1.2.0/24", "overlaps 10.1.0.0/16 in `allowed_sources`", ""),
            ("203.0.113.9/32", "overlaps 203.0.113.0/24 in `decapsulate`", ""),
            ("203.0.0.0/16", "overlaps 203.0.113.0/24 in `decapsulate`", ""),
            ("192.0.2.130/32", "overlaps 192.0.2.128/25 in `stamp`", ""),
            ("192.0.2.64/30", "overlaps 192.0.2.64/26 in `sources`", ""),
            ("198.18.0.0/16", "overlaps 198.18.7.0/24 in `customers`", ""),
            ("198.51.100.0/24", "overlaps 198.51.100.1/32 in `waypoints`", "[platypus] own_waypoints"),
            ("198.51.102.2/32", "overlaps 198.51.102.0/24 in `own_waypoints`", "own_waypoints"),
            ("198.51.102.0/23", "overlaps 198.51.102.0/24 in `own_waypoints`", "own_waypoints"),
            ("10.0.0.2/32", "overlaps 10.0.0.0/8 in `refused`", "own_waypoints"),
        ];
        let own = "own_waypoints = [\"198.51.102.0/24\"]\n";
        let more = "refused = [\"10.0.0.0/8\"]\nallowed_sources = [\"10.1.0.0/16\"]\ncustomers = [\"198.18.7.0/24\", \"2001:db8:1::/48\"]\n\
                    decapsulate = [\"203.0.113.0/24\"]\n";
        let link = format!("{LINK}stamp = [\"192.0.2.128/25\"]\nsources = [\"192.0.2.64/26\"]\n");
        let stamper = "[stamper]\nroutes = []\nrules = []\n";
        let other = LINK.replace(":1", ":3").replace(":2", ":4");
        for (network, expected, allowed_in) in bad {
            for place in [
                "[platypus] own_waypoints",
                "[platypus] peer_waypoints",
                "[[link]] own_waypoints",
                "[[link]] peer_waypoints",
            ] {
                let (section, key) = place.split_once(' ').expect("two words");
                let line = format!("{key} = [\"{network}\"]\n");
                let [of_section, of_link] = if section == "[platypus]" { [&line, ""] } else { ["", &line] };
                // Those of the provider by IP, or by another link.
                let of_others = if place == "[platypus] own_waypoints" { ["", own] } else { [own, ""] };
                for [own, own_of_link] in [of_others, ["", own]] {
                    let checked = checked(
                        &format!("{more}{of_section}{own}"),
                        &format!("{link}{of_link}{other}{own_of_link}{stamper}"),
                    );
                    let whole = |failure: &Failure| format!("{failure}, {}", failure.label().unwrap_or_default());
                    let said: Vec<String> = checked.errors.iter().map(whole).collect();
                    let is_told = said.iter().any(|text| text.contains(&format!("`{key}`")) && text.contains(expected));
                    let is_allowed = !allowed_in.is_empty() && place.ends_with(allowed_in);
                    assert_eq!(is_told, !is_allowed, "{place} = {network}: {said:?}");
                }
            }
        }
    }

    #[test]
    fn customers_are_those_of_the_provider_of_this_router_and_of_its_links() {
        let text = format!(
            "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\n[platypus]\nwaypoints = []\naccounts = 0\n\
             customers = [\"198.18.0.0/15\"]\ndecapsulate = [\"203.0.113.0/24\"]\n[stamper]\nroutes = []\nrules = []\n\
             {LINK}stamp = [\"192.0.2.128/25\"]\n"
        );
        let file = RouterFile::parse(&Source::of_text("router.toml", &text)).expect("sound");
        let section = file.platypus.as_ref().expect("a section").get_ref();
        let all = section.customers(&file).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all, ["198.18.0.0/15", "203.0.113.0/24", "192.0.2.128/25"]);
    }

    #[test]
    fn what_the_key_server_told_counts_in_the_place_of_the_same_payers_rates() {
        let section: PlatypusSection = toml::from_str(
            "waypoints = []\nrates = [{ principal = 7, rate = 1000 }, { principal = 7, delegation = 3, rate = 500 }, { principal = 8, rate = 2 }]\n",
        )
        .expect("a section");
        let told = |principal: u32, delegation: Option<u32>, rate, burst| {
            let principal = Principal::new(principal).expect("24 bits");
            let delegation = delegation.map(|id| DelegationId::new(id).expect("24 bits"));
            let payer = RatePayer { principal, delegation };
            (SharedRate { payer, rate, routers: 2, offline: Offline::Decay }, burst)
        };
        let with = section.with_shared(&[told(7, Some(3), 900, 0), told(9, None, 70_000_000, 10)]);
        let rates = with.rates.iter().map(Spanned::get_ref).map(|rate| {
            let delegation = rate.delegation.as_ref().map(|id| *id.get_ref());
            (*rate.principal.get_ref(), delegation, *rate.rate.get_ref(), rate.routers, rate.burst(2))
        });
        let longest = 2 * LONGEST;
        assert_eq!(
            rates.collect::<Vec<_>>(),
            [
                (7, None, 1_000, None, longest),
                (7, Some(3), 900, Some(2), longest),
                (8, None, 2, None, longest),
                (9, None, 70_000_000, Some(2), 2 * COMMON),
            ]
        );
        assert_eq!(section.with_shared(&[]).rates.len(), 3);
    }

    #[test]
    fn a_link_that_trusts_its_end_with_too_much_and_sources_that_are_none_are_warned_of() {
        let warned = |section: &str, link: &str| {
            let checked = checked(section, &format!("{LINK}{link}"));
            let said = checked.warnings.iter().map(ToString::to_string);
            said.filter(|said| !said.contains("does not exist yet")).collect::<Vec<_>>()
        };
        let (own, peers) = ("own_waypoints = [\"198.51.100.2/32\"]\n", "peer_waypoints = [\"198.51.101.2/32\"]\n");
        for sound in [own, peers] {
            assert_eq!(warned("", sound), Vec::<String>::new());
        }
        let said = warned("", &format!("{own}{peers}"));
        assert!(said.len() == 1 && said[0].contains("a link with waypoints of yours and of peers"), "{said:?}");
        for (key, section, link) in [
            ("customers", "customers = [\"203.0.113.0/24\", \"2001:db8::/32\"]\n", ""),
            ("allowed_sources", "refused = [\"2001:db8::/32\"]\nallowed_sources = [\"2001:db8::/32\"]\n", ""),
            ("sources", "", "sources = [\"2001:db8::/32\"]\n"),
        ] {
            let said = warned(section, link);
            assert!(said.len() == 1 && said[0].contains(&format!("2001:db8::/32 in `{key}`")), "{said:?}");
        }
        let said = warned("refused = [\"10.0.0.0/8\"]\nallowed_sources = [\"10.1.0.0/16\", \"192.0.2.0/24\"]\n", "");
        assert!(said.len() == 1 && said[0].contains("192.0.2.0/24 in `allowed_sources` has no effect"), "{said:?}");
    }

    #[test]
    fn waypoints_may_be_of_both_families_and_sources_of_each_have_an_effect() {
        let warned = |waypoints: &str, more: &str| {
            let text = format!(
                "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\n[platypus]\nwaypoints = [{waypoints}]\naccounts = 0\n{more}"
            );
            let checked = RouterFile::checked(&Source::of_text("router.toml", &text));
            assert!(checked.errors.is_empty(), "{:?}", checked.errors);
            checked.warnings.iter().filter(|warning| format!("{warning}").contains("has no effect")).count()
        };
        let more = "own_waypoints = [\"2001:db8:a0::/48\", \"198.51.100.0/24\"]\ncustomers = [\"203.0.113.0/24\", \"2001:db8:1::/48\"]\n";
        assert_eq!(warned("\"198.51.100.1\", \"2001:db8:a0::1\"", more), 0);
        assert_eq!((warned("\"198.51.100.1\"", more), warned("\"2001:db8:a0::1\"", more)), (1, 1));
    }

    /// A plain router by IP, too, without links and without a key server.
    #[test]
    fn a_router_that_names_no_other_waypoint_is_told_what_follows() {
        for link in ["", LINK] {
            let notes = |section: &str, more: &str| checked(section, &format!("{link}{more}")).notes;
            let said = notes("", "");
            assert!(
                said.len() == 1 && said[0].contains("`peer_waypoints`") && said[0].contains("foreign-waypoint"),
                "{said:?}"
            );
            for key in ["own_waypoints", "peer_waypoints"] {
                let line = format!("{key} = [\"198.51.100.2/32\"]\n");
                assert_eq!(notes(&line, ""), Vec::<String>::new());
                if !link.is_empty() {
                    assert_eq!(notes("", &line), Vec::<String>::new());
                }
            }
        }
        // One that only stamps is no waypoint.
        let text = format!(
            "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\n[platypus]\nwaypoints = []\naccounts = 0\n[stamper]\nroutes = []\n\
             rules = []\n{LINK}"
        );
        assert_eq!(RouterFile::checked(&Source::of_text("router.toml", &text)).notes, Vec::<String>::new());
    }
}

//! The configuration of a key server, and of the commands beside it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::capability::{
    KeyServer, KeyServerConfig, LookupPolicy, LookupRule, MAX_RATES, NameServer, ProviderKey, RatePayer, RouterNumber,
    Zone,
};
use wayleave_control::leases::MAX_ROUTERS;
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::secret::Key128;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::mint::{WaypointKey, WaypointKeys};
use wayleave_runtime::clock::unix_now;
use wayleave_store::Place;

use super::check::{Checked, RoleConfig};
use super::key_api::{self, ApiSection};
use super::machine::{absent_address, state_fault, taken_by_status};
use super::overlay::{ServerEntry, identity};
use super::parse::{NodeKey, Text, TextValue, WriterKey};
use super::router::FormatName;
use super::rs::{FileFault, StatusSection, example, range, status_warning};
use super::{Fault, Source};
use crate::failure::{Failure, Failures, Outcome};
use crate::key_files::account_records::AccountRecords;
use crate::key_files::changes::Changes;
use crate::key_files::compaction::{Compacted, compact};
use crate::key_files::database::DatabaseRecords;
use crate::key_files::forwarding::ForwardingKeys;
use crate::key_files::node::{self, KeyKind};
use crate::key_files::records::Base;
use crate::key_files::revocation;
use crate::waypoints::{WaypointKind, WaypointLabels, label_of};

/// Principals and delegations have numbers of 24 bits.
const MOST_NUMBER: u64 = (1 << 24) - 1;
/// Octets a second, at most.
const MOST_OCTETS: u64 = 1 << 40;
/// Answers a second to one source prefix: by default, and at most.
const RESPONSES: u64 = 500;
const MOST_RESPONSES: u64 = 1_000_000;
/// Three days.
const LONGEST_INTERVAL: u64 = 18;
/// A quarter of an hour, and at most a day.
const MAX_STALENESS_SECS: u64 = 900;
const MOST_STALENESS_SECS: u64 = 86_400;
const SHORTEST: u64 = Interval::SHORTEST.exponent() as u64;
const LONGEST: u64 = Interval::LONGEST.exponent() as u64;

/// `run key`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "key",
    section: "key",
    sections: "[key]",
    check: KeyFile::checked,
    template: |_| {
        template("keys.example.net", "127.0.0.1:5300", "ns1.example.net", "127.0.0.1:8493", super::EXAMPLE_WRITER, None)
    },
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    pub key: KeySection,
    pub status: Option<StatusSection>,
}

/// `[key]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySection {
    /// The zone that is delegated to this server.
    pub zone: Spanned<Text<Zone>>,
    /// Where questions come, by UDP and TCP.
    pub listen: Spanned<Text<SocketAddr>>,
    /// The zone's name servers, as the parent zone has them.
    pub name_servers: Spanned<Vec<NameServerSection>>,
    /// What all accounts are derived from.
    pub accounts: Spanned<PathBuf>,
    /// Who signs changes and lists.
    pub writer: Spanned<Text<WriterKey>>,
    /// The writer's private key: it alone takes orders.
    pub writer_key: Option<Spanned<PathBuf>>,
    /// Accounts, grants and revocations: a file of our own, or a database.
    pub records: Option<Spanned<PathBuf>>,
    pub database: Option<Spanned<Text<Place>>>,
    /// Where it is remembered what was seen of the database.
    #[serde(default = "default_position")]
    pub position: Spanned<PathBuf>,
    /// Seconds for which look-ups are answered from memory while the database cannot be used.
    #[serde(default = "default_max_staleness")]
    pub max_staleness_secs: Spanned<u64>,
    /// Where the writer puts the list of revocations for routers.
    pub revocations: Option<Spanned<PathBuf>>,
    /// Answers by UDP to a source prefix in a second, without a cookie; zero for any number.
    #[serde(default = "default_responses")]
    pub responses_per_second: Spanned<u64>,
    /// The longest key epochs of what is granted anew, as the exponent of 2 in seconds.
    #[serde(default = "default_longest_interval")]
    pub longest_interval: Spanned<u64>,
    #[serde(default)]
    pub waypoint: Vec<Spanned<WaypointSection>>,
    #[serde(default)]
    pub rule: Vec<LookupRule>,
    /// Where the provider's routers connect.
    pub routers: Option<RoutersSection>,
    #[serde(default)]
    pub router: Vec<Spanned<RouterEntry>>,
    #[serde(default)]
    pub rate: Vec<Spanned<SharedRateEntry>>,
    /// Other key servers that copy the records from this one.
    #[serde(default)]
    pub replica: Vec<Spanned<ReplicaEntry>>,
    /// The server whose records this one copies.
    pub follow: Option<Spanned<FollowSection>>,
    /// The HTTPS API.
    pub api: Option<ApiSection>,
}

fn default_longest_interval() -> Spanned<u64> {
    Spanned::new(0..0, LONGEST_INTERVAL)
}

fn default_position() -> Spanned<PathBuf> {
    Spanned::new(0..0, PathBuf::from("position"))
}

fn default_max_staleness() -> Spanned<u64> {
    Spanned::new(0..0, MAX_STALENESS_SECS)
}

fn default_responses() -> Spanned<u64> {
    Spanned::new(0..0, RESPONSES)
}

/// `[[key.replica]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaEntry {
    pub identity: Text<NodeKey>,
}

/// `[key.follow]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowSection {
    /// The file of this server's identity.
    pub identity: Spanned<PathBuf>,
    pub server: ServerEntry,
}

/// `[key.routers]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutersSection {
    pub listen: Spanned<Text<SocketAddr>>,
    /// The file of this server's identity.
    pub identity: Spanned<PathBuf>,
    /// The file of what routers reported.
    pub usage: Spanned<PathBuf>,
}

/// `[[key.router]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterEntry {
    /// By which its usage is stored: never given to another router.
    pub number: u16,
    /// For people.
    pub name: Option<String>,
    pub identity: Spanned<Text<NodeKey>>,
}

/// `[[key.rate]]`: a rate that all routers share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedRateEntry {
    pub principal: Spanned<u64>,
    pub delegation: Option<Spanned<u64>>,
    /// Octets of IP packets a second, over all routers.
    pub rate: Spanned<u64>,
}

/// A name server of the zone.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameServerSection {
    pub name: String,
    /// Needed if the name is within the zone.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

/// `[[key.waypoint]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaypointSection {
    /// Of a router, a POP or an AS.
    pub address: IpAddr,
    /// The forwarding keys of its routers.
    pub key: Spanned<PathBuf>,
    #[serde(default)]
    pub kind: WaypointKind,
    /// For people.
    pub name: Option<String>,
}

impl TextValue for Place {
    const EXPECTED: &'static str = "the path of a SQLite file, or a URI such as \"postgresql://key@db.example.net/wayleave\" without a password, which belongs into ~/.pgpass or PGPASSWORD";
    fn read(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }
}

impl TextValue for Zone {
    const EXPECTED: &'static str = "the name of a zone of at most 100 characters, such as \"keys.example.net\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl SharedRateEntry {
    /// Whose rate it is; `None` if a number has more than 24 bits.
    fn payer(&self) -> Option<RatePayer> {
        let number = |number: u64| u32::try_from(number).ok();
        let principal = number(*self.principal.get_ref()).and_then(Principal::new)?;
        let delegation = match &self.delegation {
            Some(id) => Some(number(*id.get_ref()).and_then(DelegationId::new)?),
            None => None,
        };
        Some(RatePayer { principal, delegation })
    }
}

impl KeyFile {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let faults = file.faults();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    fn faults(&self) -> Vec<Fault> {
        let key = &self.key;
        let mut listen = vec![key.listen.get_ref().0];
        listen.extend(key.routers.as_ref().map(|routers| routers.listen.get_ref().0));
        let others = listen.clone();
        listen.extend(key.api.as_ref().map(|api| api.listen.get_ref().0));
        let mut faults: Vec<Fault> = taken_by_status(self.status.as_ref(), &listen).into_iter().collect();
        faults.extend(key.api.as_ref().into_iter().flat_map(|api| api.faults(&others)));
        self.router_faults(&mut faults);
        if key.name_servers.get_ref().is_empty() {
            faults.push(Fault::at(key.name_servers.span(), "no name server, expected at least one"));
        }
        for (at, waypoint) in key.waypoint.iter().enumerate() {
            if key.waypoint[..at].iter().any(|other| other.get_ref().address == waypoint.get_ref().address) {
                faults.push(Fault::at(waypoint.span(), "the same waypoint twice, expected each once"));
            }
        }
        faults.extend(range(&key.responses_per_second, 0, MOST_RESPONSES, "answers a second"));
        faults.extend(range(&key.max_staleness_secs, 1, MOST_STALENESS_SECS, "seconds"));
        self.store_faults(&mut faults);
        faults.extend(range(&key.longest_interval, SHORTEST, LONGEST, "(an interval, 2 to this power of seconds)"));
        if let Err(error) = LookupPolicy::new(&key.rule) {
            faults.push(Fault { span: None, message: error.to_string(), help: None });
        }
        faults
    }

    /// There is one store; a database needs no copies of ours, and each of its key servers writes.
    fn store_faults(&self, faults: &mut Vec<Fault>) {
        let key = &self.key;
        match (&key.records, &key.database) {
            (Some(_), None) => {}
            (None, None) => {
                let message = "the key server has no store of its accounts, expected `database` in [key]".to_owned();
                let fault = Fault { span: None, message, help: None };
                faults.push(fault.help("name the path of a SQLite file, or the URI of a PostgreSQL database"));
            }
            (Some(records), Some(_)) => {
                let fault = Fault::at(records.span(), "`records` beside `database`, expected one of them");
                faults.push(fault.help("`wayleave cap import` brings a file of records into a database"));
            }
            (None, Some(database)) => {
                if key.writer_key.is_none() {
                    let message = "a database without `writer_key`: every key server of a database changes it";
                    faults.push(Fault::at(database.span(), message).help("copy the key from the first key server"));
                }
                let replicas = key.replica.first().map(Spanned::span);
                if let Some(at) = replicas.or(key.follow.as_ref().map(Spanned::span)) {
                    let message =
                        "replicas or [key.follow] beside `database`: the key servers of one database follow it";
                    faults.push(
                        Fault::at(at, message).help("have the other key servers name the same PostgreSQL database"),
                    );
                }
            }
        }
    }

    fn router_faults(&self, faults: &mut Vec<Fault>) {
        let key = &self.key;
        let first = key.router.first().map(Spanned::span);
        let first = first.or_else(|| key.rate.first().map(Spanned::span));
        let first = first.or_else(|| key.replica.first().map(Spanned::span));
        if let (None, Some(at)) = (&key.routers, first) {
            let fault = Fault::at(at, "routers, rates or replicas without [key.routers]: nobody listens for them");
            faults.push(fault.help("add [key.routers] with `listen`, `identity` and `usage`"));
        }
        if let Some(routers) = &key.routers
            && routers.listen.get_ref() == key.listen.get_ref()
        {
            let message = "routers connect where questions come by TCP, expected another port";
            faults.push(Fault::at(routers.listen.span(), message));
        }
        if let Some(beyond) = key.router.get(MAX_ROUTERS) {
            faults.push(Fault::at(beyond.span(), format!("more than {MAX_ROUTERS} routers")));
        }
        for (at, router) in key.router.iter().enumerate() {
            let same = |other: &&Spanned<RouterEntry>| {
                let (one, other) = (router.get_ref(), other.get_ref());
                one.number == other.number || identity(one.identity.get_ref()) == identity(other.identity.get_ref())
            };
            if key.router[..at].iter().any(|other| same(&other)) {
                faults.push(Fault::at(router.span(), "the same router number or identity twice, expected each once"));
            }
        }
        if let (Some(_), Some(follow)) = (&key.writer_key, &key.follow) {
            let message = "the writer follows nobody, expected either `writer_key` or [key.follow]";
            faults.push(Fault::at(follow.span(), message));
        }
        let is_router =
            |replica: &&Spanned<ReplicaEntry>| self.routers().contains_key(&identity(&replica.get_ref().identity));
        if let Some(replica) = key.replica.iter().find(is_router) {
            faults.push(Fault::at(replica.span(), "a replica with a router's identity, expected one of its own"));
        }
        if let Some(beyond) = key.rate.get(MAX_RATES) {
            faults.push(Fault::at(beyond.span(), format!("more than {MAX_RATES} rates")));
        }
        for (at, rate) in key.rate.iter().enumerate() {
            let entry = rate.get_ref();
            faults.extend(range(&entry.principal, 0, MOST_NUMBER, ""));
            faults.extend(entry.delegation.as_ref().and_then(|id| range(id, 0, MOST_NUMBER, "")));
            faults.extend(range(&entry.rate, 1, MOST_OCTETS, "octets a second"));
            if key.rate[..at].iter().any(|other| other.get_ref().payer() == entry.payer()) {
                let message = "a second rate for the same principal or delegation, expected one";
                faults.push(Fault::at(rate.span(), message));
            }
        }
    }

    /// Who the routers are.
    pub fn routers(&self) -> BTreeMap<IdentityKey, RouterNumber> {
        let routers = self.key.router.iter().map(Spanned::get_ref);
        routers.map(|router| (identity(router.identity.get_ref()), router.number)).collect()
    }

    /// What people call them.
    pub fn router_names(&self) -> BTreeMap<RouterNumber, String> {
        let routers = self.key.router.iter().map(Spanned::get_ref);
        routers.filter_map(|router| Some((router.number, router.name.clone()?))).collect()
    }

    /// What waypoints are, and what people call them.
    pub fn waypoint_labels(&self) -> WaypointLabels {
        let waypoints = self.key.waypoint.iter().map(Spanned::get_ref);
        waypoints.map(|waypoint| (waypoint.address, label_of(waypoint.kind, waypoint.name.as_deref()))).collect()
    }

    /// Who copies the records.
    pub fn replicas(&self) -> BTreeSet<IdentityKey> {
        self.key.replica.iter().map(|replica| identity(&replica.get_ref().identity)).collect()
    }

    /// The rates that they share.
    pub fn rates(&self) -> BTreeMap<RatePayer, u64> {
        let rates = self.key.rate.iter().map(Spanned::get_ref);
        rates.filter_map(|rate| Some((rate.payer()?, *rate.rate.get_ref()))).collect()
    }

    pub fn zone(&self) -> &Zone {
        &self.key.zone.get_ref().0
    }

    pub fn writer(&self) -> VerifyingKey {
        self.key.writer.get_ref().0.0
    }

    /// What all accounts are derived from.
    pub fn provider(&self, source: &Source) -> Outcome<ProviderKey> {
        let named = &self.key.accounts;
        let loaded = node::load(KeyKind::Accounts, &source.resolve(named.get_ref()));
        Ok(ProviderKey::new(loaded.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?))
    }

    /// The writer's private key, if this is the writer's configuration.
    pub fn signer(&self, source: &Source) -> Outcome<Option<SigningKey>> {
        let Some(named) = &self.key.writer_key else { return Ok(None) };
        let fault = |failure: Failure| source.failure(Fault::of(named.span(), &failure));
        let seed = node::load(KeyKind::Writer, &source.resolve(named.get_ref())).map_err(fault)?;
        let key = SigningKey::from_seed(&seed);
        if key.verifying_key() != self.writer() {
            let failure = Failure::new("the writer's private key is not that of `writer`");
            return Err(fault(failure).into());
        }
        Ok(Some(key))
    }

    /// The keys of every waypoint.
    pub fn waypoints(&self, source: &Source) -> Outcome<HashMap<IpAddr, WaypointKeys>> {
        let mut all = HashMap::new();
        for waypoint in self.key.waypoint.iter().map(Spanned::get_ref) {
            let named = &waypoint.key;
            let loaded = ForwardingKeys::load(FormatName::Platypus, &source.resolve(named.get_ref()));
            let file = loaded.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?;
            let key = |octets: &[u8; 16]| WaypointKey::new(&Key128::new(*octets));
            let mut live = file.all();
            let Some((_, first)) = live.next() else { continue };
            let mut keys = WaypointKeys::new(key(first));
            for (from, octets) in live {
                // The file's keys are in order, and only the first counts from the beginning.
                let _ = keys.rotate(key(octets), from);
            }
            all.insert(waypoint.address, keys);
        }
        Ok(all)
    }

    /// Answers a second to a source prefix; zero for any number.
    pub fn responses_per_second(&self) -> u32 {
        u32::try_from(*self.key.responses_per_second.get_ref()).unwrap_or(u32::MAX)
    }

    /// The longest key epochs of what is granted anew.
    pub fn longest_interval(&self) -> Interval {
        let exponent = u8::try_from(*self.key.longest_interval.get_ref()).ok();
        exponent.and_then(Interval::new).unwrap_or(Interval::LONGEST)
    }

    /// How long look-ups are answered from memory while the database cannot be used.
    pub fn max_staleness(&self) -> Duration {
        Duration::from_secs(*self.key.max_staleness_secs.get_ref())
    }

    /// The rules, which were checked.
    pub fn policy(&self) -> LookupPolicy {
        LookupPolicy::new(&self.key.rule).unwrap_or_default()
    }

    /// The database, with its place in the file; a relative path is one beside the configuration.
    pub fn database(&self, source: &Source) -> Option<(Place, Spanned<()>)> {
        let named = self.key.database.as_ref()?;
        let place = match &named.get_ref().0 {
            Place::File(path) => Place::File(source.resolve(path)),
            postgres @ Place::Postgres(_) => postgres.clone(),
        };
        Some((place, Spanned::new(named.span(), ())))
    }

    /// Where it is remembered what was seen of the database.
    pub fn position(&self, source: &Source) -> PathBuf {
        source.resolve(self.key.position.get_ref())
    }

    /// The records, and a server that has taken them over.
    pub fn server(&self, source: &Source) -> Outcome<(KeyServer, AccountRecords)> {
        let servers = self.key.name_servers.get_ref().iter();
        let config = KeyServerConfig {
            zone: self.zone().clone(),
            name_servers: servers
                .map(|server| NameServer { name: server.name.clone(), addresses: server.addresses.clone() })
                .collect(),
            provider: self.provider(source)?,
            writer: self.writer(),
            signer: self.signer(source)?,
            waypoints: self.waypoints(source)?,
            policy: self.policy(),
            responses_per_second: self.responses_per_second(),
        };
        let provider = config.provider.clone();
        let server = KeyServer::new(config);
        let mut server = server.map_err(|error| {
            source.failure(Fault::of(self.key.name_servers.span(), &Failure::new(error.to_string())))
        })?;
        server.limit_intervals(self.longest_interval());
        if let Some((place, at)) = self.database(source) {
            let opened = DatabaseRecords::open(&place, &provider, &self.position(source));
            let (database, state) = opened.map_err(|failure| source.failure(Fault::of(at.span(), &failure)))?;
            server.replace(state);
            return Ok((server, AccountRecords::Database(Box::new(database))));
        }
        let named = self.records()?;
        let fault = |failure: Failure| source.failure(Fault::of(named.span(), &failure));
        let mut changes = Changes::open(&source.resolve(named.get_ref())).map_err(fault)?;
        changes.read_new().and_then(|unread| unread.apply(&mut server)).map_err(fault)?;
        Ok((server, AccountRecords::File(changes)))
    }

    /// The file of records.
    ///
    /// # Errors
    /// If the store is a database.
    pub fn records(&self) -> Result<&Spanned<PathBuf>, Failure> {
        self.key
            .records
            .as_ref()
            .ok_or_else(|| Failure::new("the key server's store is a database, and no file of records"))
    }

    /// Compacts the records, if this is the writer's configuration.
    pub fn compact(&self, source: &Source, now: UnixTime) -> Outcome<Compacted> {
        let signer = self.signer(source)?.ok_or_else(|| {
            Failure::new("this is a replica's configuration: it has no `writer_key`")
                .help("run the command where the writer is: replicas take its snapshot over")
        })?;
        let path = source.resolve(self.records()?.get_ref());
        let (server, AccountRecords::File(changes)) = self.server(source)? else {
            return Err(Failure::new("a database is not compacted").into());
        };
        compact(&path, server.state(), changes, &signer, now)
    }

    /// Begins the list of revocations. Returns how many entries it has.
    ///
    /// # Errors
    /// If there is one, or the configuration is a replica's or names none.
    pub fn begin_list(&self, source: &Source, now: UnixTime) -> Outcome<usize> {
        let (Some(named), Some(signer)) = (&self.key.revocations, self.signer(source)?) else {
            let message =
                "this configuration has no `revocations`, or no `writer_key`: routers get lists from the writer";
            return Err(Failure::new(message).help("run the command where the writer is").into());
        };
        let path = source.resolve(named.get_ref());
        // Before the records: a server that runs writes them first, so its list is then of no later ones than are read here.
        let last = revocation::last_number(&path, &signer.verifying_key());
        let (server, _) = self.server(source)?;
        revocation::begin(&path, &last, server.state(), &signer, now)
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("key", failures),
        };
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        // A new configuration needs no files yet; once there is a key, everything has to be there.
        let is_new = !source.resolve(file.key.accounts.get_ref()).exists();
        for fault in file.file_faults(source) {
            match fault {
                FileFault::Missing(fault) if is_new => warnings.push(fault),
                FileFault::Doubtful(fault) => warnings.push(fault),
                fault => errors.push(fault.into_fault()),
            }
        }
        if file.key.waypoint.is_empty() {
            let fault = Fault { span: None, message: "the server has the key of no waypoint".to_owned(), help: None };
            warnings.push(fault.help("add [[key.waypoint]] with the address and the forwarding keys of its routers"));
        }
        warnings.extend(absent_address(&file.key.listen));
        warnings.extend(file.key.routers.as_ref().and_then(|routers| absent_address(&routers.listen)));
        warnings.extend(file.key.api.as_ref().and_then(|api| absent_address(&api.listen)));
        warnings.extend(file.key.api.iter().flat_map(|api| api.warnings(unix_now().secs())));
        warnings.extend(file.status.as_ref().and_then(status_warning));
        let writer = &file.key.writer;
        let is_example = writer.get_ref().0.to_string() == super::EXAMPLE_WRITER;
        let examples = is_example.then(|| example(writer.span(), "the writer's key, as `wayleave cap init` prints it"));
        Checked::found("key", source, errors, warnings).with_examples(source, examples.into_iter().collect())
    }

    fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        let mut faults = Vec::new();
        let mut check = |named: &Spanned<PathBuf>, failure: &Failure| {
            let fault = Fault::of(named.span(), failure);
            let exists = source.resolve(named.get_ref()).exists();
            faults.push(if exists { FileFault::Unusable(fault) } else { FileFault::Missing(fault) });
        };
        let key = &self.key;
        let secrets = [(Some(&key.accounts), KeyKind::Accounts), (key.writer_key.as_ref(), KeyKind::Writer)];
        for (named, kind) in secrets {
            if let Some(named) = named
                && let Err(failure) = node::load(kind, &source.resolve(named.get_ref()))
            {
                check(named, &failure);
            }
        }
        if let Some(routers) = &key.routers
            && let Err(failure) = node::load(KeyKind::Identity, &source.resolve(routers.identity.get_ref()))
        {
            check(&routers.identity, &failure);
        }
        if let Some(follow) = key.follow.as_ref().map(Spanned::get_ref)
            && let Err(failure) = node::load(KeyKind::Identity, &source.resolve(follow.identity.get_ref()))
        {
            check(&follow.identity, &failure);
        }
        // Before the records, which a server that runs may be adding to.
        let list = key.revocations.as_ref().filter(|_| key.writer_key.is_some()).map(|named| {
            let path = source.resolve(named.get_ref());
            (named, revocation::last_number(&path, &self.writer()), path)
        });
        let (checked, mut of_database) = (self.checked_number(source), None);
        match (checked, list) {
            (Ok(number), Some((named, last, path))) => {
                if let Err(failures) = last.and_then(|last| revocation::goes_with(last, &path, number)) {
                    failures.0.iter().for_each(|failure| check(named, failure));
                }
            }
            (Ok(_), None) => {}
            (Err(failure), _) => match (&key.records, &key.database) {
                (Some(records), _) => check(records, &failure),
                (None, Some(database)) => of_database = Some(Fault::of(database.span(), &failure)),
                (None, None) => {}
            },
        }
        for waypoint in key.waypoint.iter().map(Spanned::get_ref) {
            let loaded = ForwardingKeys::load(FormatName::Platypus, &source.resolve(waypoint.key.get_ref()));
            if let Err(failure) = loaded {
                check(&waypoint.key, &failure);
            }
        }
        faults.extend(of_database.map(|fault| match self.database(source) {
            Some((Place::File(path), _)) if !path.exists() => FileFault::Missing(fault),
            _ => FileFault::Unusable(fault),
        }));
        faults.extend(key.routers.as_ref().and_then(|routers| state_fault(&routers.usage, source)));
        faults.extend(key.api.as_ref().into_iter().flat_map(|api| api.file_faults(source)));
        faults
    }
}

impl KeyFile {
    /// The number of the last change of the store, which is in order.
    fn checked_number(&self, source: &Source) -> Result<u64, Failure> {
        if let Some((place, _)) = self.database(source) {
            let provider = self.provider(source).map_err(|failures| {
                failures.0.into_iter().next().unwrap_or_else(|| Failure::new("the provider's key cannot be read"))
            })?;
            return DatabaseRecords::look(&place, &provider, &self.position(source));
        }
        let mut changes = Changes::open(&source.resolve(self.records()?.get_ref()))?;
        let unread = changes.read_new()?;
        unread.base.as_ref().map_or(Ok(()), |base| base.check(&self.writer()))?;
        let last = unread.changes.last().map(|change| change.object().number);
        Ok(last.or(unread.base.as_ref().map(Base::number)).unwrap_or(0))
    }
}

/// The same configuration with a database in the place of the file of records.
pub fn with_database(template: &str, database: &str) -> String {
    let records = "# Accounts, grants and revocations. Keep copies. A replica begins with a copy of the file.\nrecords = \"records\"\n";
    let text = format!(
        "# Accounts, grants, revocations and every change of them: a SQLite file, or a PostgreSQL database that several key servers share.\n\
         database = {}\n\
         # Where this key server remembers what it saw of the database, so that one that was set back is refused.\n\
         #position = \"position\"\n\
         # Seconds for which look-ups are answered from memory while the database cannot be used. Reloaded on SIGHUP.\n\
         #max_staleness_secs = {MAX_STALENESS_SECS}\n",
        toml::Value::from(database)
    );
    template.replace(records, &text)
}

/// A key server's configuration, with an API if it has an address.
pub fn template(zone: &str, listen: &str, name_server: &str, status: &str, writer: &str, api: Option<&str>) -> String {
    let (router, api) = (super::EXAMPLE_NODE, key_api::template(api));
    format!(
        "# A key server: it answers holders of Platypus capabilities with their secrets, by DNS. Run it with:\n\
         # wayleave run key --config FILE\n\
         # Paths are relative to this file. `wayleave cap init` writes all of them.\n\
         \n\
         [key]\n\
         # The zone that its parent delegates to this server.\n\
         zone = \"{zone}\"\n\
         # Where questions come, by UDP and TCP: port 53 in the Internet.\n\
         listen = \"{listen}\"\n\
         # The zone's name servers, as the parent has them; with addresses if the name is within the zone.\n\
         name_servers = [{{ name = \"{name_server}\", addresses = [] }}]\n\
         # What all accounts are derived from; every replica has it.\n\
         accounts = \"accounts.key\"\n\
         # Who signs accounts, revocations and lists, and the private key, which the one writer has and no replica.\n\
         writer = \"{writer}\"\n\
         writer_key = \"writer.key\"\n\
         # Accounts, grants and revocations. Keep copies. A replica begins with a copy of the file.\n\
         records = \"records\"\n\
         # The signed list for routers, which name it in their [platypus] section with the key `writer`.\n\
         revocations = \"revoked\"\n\
         # Answers a second by UDP to one source prefix (IPv4 /24, IPv6 /56) without a cookie; 0: any number. Reloaded on SIGHUP.\n\
         #responses_per_second = 500\n\
         # The longest key epochs that are granted: 2^18 seconds are three days, and a secret that was looked up is good for three. Reloaded on SIGHUP.\n\
         #longest_interval = 18\n\
         # Waypoints, and the forwarding keys of their routers. Reloaded on SIGHUP.\n\
         #[[key.waypoint]]\n\
         #address = \"198.51.100.1\"\n\
         #key = \"router.key\"\n\
         # A router, a POP or an AS, and its name, for people.\n\
         #kind = \"router\"\n\
         #name = \"fra1\"\n\
         # When keys are given: the first rule that matches decides; without one, always. Reloaded on SIGHUP.\n\
         #[[key.rule]]\n\
         #name = \"busy hours\"\n\
         #allow = false\n\
         #hours = \"18:00-22:00\"\n\
         #principals = [7]\n\
         #waypoints = [\"198.51.100.1\"]\n\
         #load = 100000\n\
         #retry_secs = 600\n\
         # Where routers report what principals sent, and get lists of revocations and their shares of rates.\n\
         #[key.routers]\n\
         #listen = \"192.0.2.1:8494\"\n\
         # This server's own key: wayleave keys node identity.key --kind identity\n\
         #identity = \"identity.key\"\n\
         # What routers reported: bills are written from it. Keep copies.\n\
         #usage = \"usage\"\n\
         # The routers; a number is never given to another router. Reloaded on SIGHUP, as rates are.\n\
         #[[key.router]]\n\
         #number = 1\n\
         #name = \"fra1\"\n\
         #identity = \"{router}\"\n\
         # Replicas of this server, which copy the records by the same link. A replica has [key.follow] and no `writer_key`:\n\
         #[[key.replica]]\n\
         #identity = \"{router}\"\n\
         #[key.follow]\n\
         #identity = \"identity.key\"\n\
         #server = {{ identity = \"{router}\", address = \"192.0.2.1:8494\" }}\n\
         # A rate of a principal or a delegation over all routers, in octets a second.\n\
         #[[key.rate]]\n\
         #principal = 7\n\
         #rate = 12500000\n\
         {api}\
         \n\
         # Status pages and metrics, for you alone.\n\
         [status]\n\
         listen = \"{status}\"\n"
    )
}

/// The configuration in a folder of `cap init`.
pub fn file_in(folder: &Path) -> PathBuf {
    folder.join("key.toml")
}

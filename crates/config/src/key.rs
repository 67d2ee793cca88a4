//! The configuration of a key server, and of the commands beside it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::capability::{
    KeyServer, KeyServerConfig, LookupPolicy, LookupRule, NameServer, ProviderKey, RouterNumber, Zone,
};
use wayleave_control::leases::MAX_ROUTERS;
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::secret::Key128;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_packet::platypus::header::Interval;
use wayleave_packet::platypus::mint::{WaypointKey, WaypointKeys};
use wayleave_runtime::clock::unix_now;
use wayleave_store::{Location, StoreError};

use super::check::{Checked, RoleConfig, of_another_role};
use super::key_api::{self, ApiSection};
use super::machine::{absent_address, state_fault, taken_by_status};
use super::overlay::identity;
use super::parse::{NodeKey, Text, TextValue, WriterKey};
use super::router::FormatName;
use super::rs::{FileFault, StatusSection, example, range, status_warning};
use super::{Fault, Source};
use crate::failure::{Failure, Failures, Outcome};
use crate::key_files::database::{DatabaseRecords, Unseen};
use crate::key_files::forwarding::ForwardingKeys;
use crate::key_files::node::{self, KeyKind};
use crate::key_files::revocation;
use crate::waypoints::{WaypointKind, WaypointLabels, label_of};

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
    template: |_| template(&EXAMPLE),
};

/// That PostgreSQL cannot be used now, which a server that starts does not fail for at once.
fn waiting(database: &Spanned<Text<Location>>, failure: &Failure) -> Fault {
    let message = format!("{failure}; it may be starting: the key server waits for it, and nothing of it was checked");
    Fault::at(database.span(), message)
        .help("if it should answer: start PostgreSQL, and compare its address with `database`")
}

fn no_writer_key() -> Fault {
    let message = "the key server has no `writer_key`, expected the file `writer.key`".to_owned();
    let fault = Fault { span: None, message, help: None };
    fault.help("every key server of a database has it: copy it from the first one")
}

/// What a new configuration says.
#[derive(Clone, Copy)]
pub struct NewKeyServer<'a> {
    pub zone: &'a str,
    pub listen: &'a str,
    pub name_server: &'a str,
    pub status: &'a str,
    pub writer: &'a str,
    pub database: &'a str,
    /// Where the API listens, if there is one.
    pub api: Option<&'a str>,
}

pub const EXAMPLE: NewKeyServer<'_> = NewKeyServer {
    zone: "keys.example.net",
    listen: "127.0.0.1:5300",
    name_server: "ns1.example.net",
    status: "127.0.0.1:8493",
    writer: super::EXAMPLE_WRITER,
    database: DATABASE,
    api: None,
};

/// Beside the configuration.
pub const DATABASE: &str = "accounts.db";
/// The same, of what was seen of the database.
pub const POSITION: &str = "position";

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
    /// The private key of that; every key server of the database has it.
    pub writer_key: Option<Spanned<PathBuf>>,
    /// Where accounts, grants and revocations are.
    #[serde(default = "default_database")]
    pub database: Spanned<Text<Location>>,
    /// Where it is remembered what was seen of the database.
    #[serde(default = "default_position")]
    pub position: Spanned<PathBuf>,
    /// Seconds for which look-ups are answered from memory while the database cannot be used.
    #[serde(default = "default_max_staleness")]
    pub max_staleness_secs: Spanned<u64>,
    /// Where this server puts the list of revocations for its routers.
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
    /// The HTTPS API.
    pub api: Option<ApiSection>,
    /// What earlier versions had in the place of a database: each is refused with what to do.
    pub records: Option<Spanned<toml::Value>>,
    pub replica: Option<Spanned<toml::Value>>,
    pub follow: Option<Spanned<toml::Value>>,
    pub rate: Option<Spanned<toml::Value>>,
}

fn default_database() -> Spanned<Text<Location>> {
    Spanned::new(0..0, Text(Location::File(PathBuf::from(DATABASE))))
}

fn default_longest_interval() -> Spanned<u64> {
    Spanned::new(0..0, LONGEST_INTERVAL)
}

fn default_position() -> Spanned<PathBuf> {
    Spanned::new(0..0, PathBuf::from(POSITION))
}

fn default_max_staleness() -> Spanned<u64> {
    Spanned::new(0..0, MAX_STALENESS_SECS)
}

fn default_responses() -> Spanned<u64> {
    Spanned::new(0..0, RESPONSES)
}

/// `[key.routers]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutersSection {
    pub listen: Spanned<Text<SocketAddr>>,
    /// The file of this server's identity.
    pub identity: Spanned<PathBuf>,
    /// What earlier versions had: routers' usage is in the database.
    pub usage: Option<Spanned<toml::Value>>,
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

impl TextValue for Location {
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

impl KeyFile {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        of_another_role(source, ROLE.name).map_or(Ok(()), Err)?;
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

    /// What earlier versions had in the place of a database.
    fn store_faults(&self, faults: &mut Vec<Fault>) {
        let key = &self.key;
        if let Some(records) = &key.records {
            let message = "accounts are in a database now, and no longer in a file of records, expected `database`";
            let fault = Fault::at(records.span(), message);
            faults.push(fault.help(format!(
                "write `database = \"{DATABASE}\"` in its place, and bring the file into it: wayleave cap import --records FILE"
            )));
        }
        if key.writer_key.is_none() {
            faults.push(no_writer_key());
        }
        if let Some(rate) = &key.rate {
            let fault = Fault::at(rate.span(), "rates over all routers are in the database now");
            faults.push(
                fault.help("remove [[key.rate]], and set each: wayleave cap rate PRINCIPAL OCTETS --config FILE"),
            );
        }
        for (name, former) in [("[[key.replica]]", &key.replica), ("[key.follow]", &key.follow)] {
            if let Some(former) = former {
                let fault = Fault::at(former.span(), format!("{name} is no longer there: nobody copies records"));
                faults.push(
                    fault.help("remove it: key servers share a PostgreSQL database, and follow it by themselves"),
                );
            }
        }
    }

    fn router_faults(&self, faults: &mut Vec<Fault>) {
        let key = &self.key;
        if let Some(former) = key.routers.as_ref().and_then(|routers| routers.usage.as_ref()) {
            let fault = Fault::at(former.span(), "`usage` is no longer there: what routers report is in the database");
            faults.push(
                fault.help("remove it; `wayleave cap import-usage FILE` brings an earlier version's file in, once"),
            );
        }
        let first = key.router.first().map(Spanned::span);
        if let (None, Some(at)) = (&key.routers, first) {
            let fault = Fault::at(at, "routers without [key.routers]: nobody listens for them");
            faults.push(fault.help("add [key.routers] with `listen` and `identity`"));
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

    /// The writer's private key.
    pub fn signer(&self, source: &Source) -> Outcome<SigningKey> {
        let missing = || source.failure(no_writer_key());
        let named = self.key.writer_key.as_ref().ok_or_else(missing)?;
        let key = self.writer_signer(source, named);
        Ok(key.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?)
    }

    fn writer_signer(&self, source: &Source, named: &Spanned<PathBuf>) -> Result<SigningKey, Failure> {
        let key = SigningKey::from_seed(&node::load(KeyKind::Writer, &source.resolve(named.get_ref()))?);
        let is_own = key.verifying_key() == self.writer();
        is_own.then_some(key).ok_or_else(|| Failure::new("the writer's private key is not that of `writer`"))
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

    /// The database; a relative path is one beside the configuration.
    pub fn database(&self, source: &Source) -> Location {
        match &self.key.database.get_ref().0 {
            Location::File(path) => Location::File(source.resolve(path)),
            postgres @ Location::Postgres(_) => postgres.clone(),
        }
    }

    /// Where it is remembered what was seen of the database.
    pub fn position(&self, source: &Source) -> PathBuf {
        source.resolve(self.key.position.get_ref())
    }

    /// The database, and a server with its state.
    pub fn server(&self, source: &Source) -> Outcome<(KeyServer, DatabaseRecords)> {
        self.server_with(source, None)
    }

    /// The same, for a server that starts: it waits for its database, and says why with `waits`.
    pub fn waiting_server(&self, source: &Source, waits: fn(&StoreError)) -> Outcome<(KeyServer, DatabaseRecords)> {
        self.server_with(source, Some(waits))
    }

    fn server_with(&self, source: &Source, waits: Option<fn(&StoreError)>) -> Outcome<(KeyServer, DatabaseRecords)> {
        let servers = self.key.name_servers.get_ref().iter();
        let config = KeyServerConfig {
            zone: self.zone().clone(),
            name_servers: servers
                .map(|server| NameServer { name: server.name.clone(), addresses: server.addresses.clone() })
                .collect(),
            provider: self.provider(source)?,
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
        let opened = DatabaseRecords::open(&self.database(source), &provider, &self.position(source), waits);
        let (database, state) =
            opened.map_err(|failure| source.failure(Fault::of(self.key.database.span(), &failure)))?;
        server.replace(state);
        Ok((server, database))
    }

    /// Begins the list of revocations. Returns how many entries it has.
    ///
    /// # Errors
    /// If there is one, or the configuration names none.
    pub fn begin_list(&self, source: &Source, now: UnixTime) -> Outcome<usize> {
        let named = self.key.revocations.as_ref().ok_or_else(|| {
            Failure::new("this configuration has no `revocations`: its key server makes no list")
                .help("run the command with the configuration of one that does")
        })?;
        let signer = self.signer(source)?;
        let path = source.resolve(named.get_ref());
        // Before the database: a server that runs writes there first, so its list is then of no later changes than are read here.
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
        if let Err(failure) = node::load(KeyKind::Accounts, &source.resolve(key.accounts.get_ref())) {
            check(&key.accounts, &failure);
        }
        if let Some(named) = &key.writer_key
            && let Err(failure) = self.writer_signer(source, named)
        {
            check(named, &failure);
        }
        let mut own = None;
        if let Some(routers) = &key.routers {
            match node::load(KeyKind::Identity, &source.resolve(routers.identity.get_ref())) {
                Ok(seed) => own = Some(node::identity_of(&seed)),
                Err(failure) => check(&routers.identity, &failure),
            }
        }
        // Before the database, to which a server that runs may be adding.
        let list = key.revocations.as_ref().map(|named| {
            let path = source.resolve(named.get_ref());
            (named, revocation::last_number(&path, &self.writer()), path)
        });
        // Without the provider's key, which was missed above, nobody can tell.
        let place = self.database(source);
        let looked =
            self.provider(source).map(|provider| DatabaseRecords::look(&place, &provider, &self.position(source)));
        let (mut of_database, mut waits) = (None, None);
        match (looked, list) {
            (Ok(Ok(number)), Some((named, last, path))) => {
                if let Err(failures) = last.and_then(|last| revocation::goes_with(last, &path, number)) {
                    failures.0.iter().for_each(|failure| check(named, failure));
                }
            }
            (Ok(Err(Unseen::Wrong(failure))), _) => of_database = Some(Fault::of(key.database.span(), &failure)),
            // The unit of a key server asks this before it starts the server, which waits.
            (Ok(Err(Unseen::Waits(failure))), _) => waits = Some(waiting(&key.database, &failure)),
            _ => {}
        }
        for waypoint in key.waypoint.iter().map(Spanned::get_ref) {
            let loaded = ForwardingKeys::load(FormatName::Platypus, &source.resolve(waypoint.key.get_ref()));
            if let Err(failure) = loaded {
                check(&waypoint.key, &failure);
            }
        }
        faults.extend(of_database.map(|fault| match place {
            Location::File(path) if !path.exists() => FileFault::Missing(fault),
            _ => FileFault::Unusable(fault),
        }));
        faults.extend(waits.map(FileFault::Doubtful));
        let is_own = |router: &&Spanned<RouterEntry>| Some(identity(router.get_ref().identity.get_ref())) == own;
        faults.extend(key.router.iter().find(is_own).map(|router| {
            let message = "this is the identity of the key server itself, expected that of the router";
            let fault = Fault::at(router.get_ref().identity.span(), message);
            // The server starts, and serves the other routers.
            FileFault::Doubtful(
                fault.help("`wayleave keys show` of the file that the router's `provider` names prints it"),
            )
        }));
        faults.extend(state_fault(&key.position, source));
        faults.extend(key.api.as_ref().into_iter().flat_map(|api| api.file_faults(source)));
        faults
    }
}

/// A key server's configuration.
pub fn template(new: &NewKeyServer<'_>) -> String {
    let NewKeyServer { zone, listen, name_server, status, writer, database, api } = *new;
    let (router, api, database) = (super::EXAMPLE_NODE, key_api::template(api), toml::Value::from(database));
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
         # What all accounts are derived from; every key server of the database has it.\n\
         accounts = \"accounts.key\"\n\
         # Who signs accounts, revocations and lists, and the private key, which every key server of the database has too.\n\
         writer = \"{writer}\"\n\
         writer_key = \"writer.key\"\n\
         # Accounts, grants, revocations and every change of them: a SQLite file, or a PostgreSQL database that several key servers share.\n\
         database = {database}\n\
         # Where this key server remembers what it saw of the database, so that one that was set back is refused.\n\
         #position = \"{POSITION}\"\n\
         # Seconds for which look-ups are answered from memory while the database cannot be used. Reloaded on SIGHUP.\n\
         #max_staleness_secs = {MAX_STALENESS_SECS}\n\
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
         # Where routers report what principals sent, and get lists of revocations, and the rates that they share (`wayleave cap rate`).\n\
         #[key.routers]\n\
         #listen = \"192.0.2.1:8494\"\n\
         # This server's own key: wayleave keys node identity.key --kind identity\n\
         #identity = \"identity.key\"\n\
         # The routers; a number is never given to another router. Reloaded on SIGHUP.\n\
         #[[key.router]]\n\
         #number = 1\n\
         #name = \"fra1\"\n\
         #identity = \"{router}\"\n\
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

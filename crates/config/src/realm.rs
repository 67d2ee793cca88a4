//! The configuration of a realm's operator: of the process that answers joins, and of the commands beside it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::realm::{LIST_INTERVAL, ListSigner, MAX_LIST, Registrar, Roles, Server};
use wayleave_control::store::{Record, Store};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::clock::{unix_now, utc};

use super::check::{Checked, RoleConfig};
use super::machine::{absent_address, taken_by_status};
use super::parse::{HostPort, Text, TextValue};
use super::rs::{FileFault, StatusSection, range, status_warning};
use super::{Fault, Source};
use crate::failure::{Failure, Failures, Outcome};
use crate::key_files::ledger::Ledger;
use crate::key_files::node::{self, KeyKind};
use crate::key_files::private;
use crate::key_files::realm_lists;

/// Path servers of a realm whose addresses are remembered.
const MAX_ADDRESSES: usize = 64;
/// An operator is told of a list key that ends within so many seconds: two weeks.
pub const ENDS_SOON: u64 = 14 * 86_400;
/// What to do then.
pub const LIST_KEY_HELP: &str =
    "where the realm's key is: `wayleave realm list-key new FILE` makes the next one; name it as `list_key`";
/// What to do about a roll of the realm's key.
pub const NEXT_KEY_HELP: &str = "name its file as `next_key`, or keep it off line and sign lists with a list key";
/// Largest file of addresses that is read, in octets.
const MAX_OCTETS: u64 = 64 * 1024;

/// `run realm`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "realm",
    section: "realm",
    sections: "[realm]",
    check: RealmFile::checked,
    template: |_| template_with("127.0.0.1:7000", "realm.example.net:7000", "127.0.0.1:8489"),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealmFile {
    pub realm: RealmSection,
    pub status: Option<StatusSection>,
}

/// `[realm]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealmSection {
    /// The realm's key, which signs memberships.
    pub key: Spanned<PathBuf>,
    /// The key that takes its place on the date of a roll.
    pub next_key: Option<Spanned<PathBuf>>,
    /// The identity of the process that answers joins.
    pub identity: Spanned<PathBuf>,
    /// Who was admitted by which token, and who was removed.
    pub records: Spanned<PathBuf>,
    /// Where path servers are, as invitations said.
    pub servers: Spanned<PathBuf>,
    pub listen: Spanned<Text<SocketAddr>>,
    /// The same as nodes reach it.
    pub address: Text<HostPort>,
    /// Whether members that ask get their next membership without an order.
    #[serde(default = "default_renew")]
    pub renew: bool,
    /// A key that signs lists of removed nodes in the realm's place, so that the realm's may be kept off line.
    pub list_key: Option<Spanned<PathBuf>>,
    /// Seconds after which the next list is due.
    #[serde(default = "default_list_interval")]
    pub list_interval_secs: Spanned<u64>,
}

fn default_renew() -> bool {
    true
}

fn default_list_interval() -> Spanned<u64> {
    Spanned::new(0..0, LIST_INTERVAL)
}

/// Where a path server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathServerAddress {
    pub name: String,
    pub address: String,
}

impl RealmFile {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let taken = taken_by_status(file.status.as_ref(), &[file.realm.listen.get_ref().0]);
        let interval = range(&file.realm.list_interval_secs, 2, MAX_LIST, "seconds");
        let faults: Vec<Fault> = taken.into_iter().chain(interval).collect();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    /// One of the realm's keys.
    fn key(&self, named: &Spanned<PathBuf>, source: &Source) -> Outcome<SigningKey> {
        let (realm, own) = (Self::seed(named, source, KeyKind::Realm)?, self.identity(source)?);
        if realm == own {
            let failure = Failure::new("the realm's key and the process's identity are one key")
                .help("each key has one use: create another with `wayleave keys node FILE --kind identity`");
            return Err(source.failure(Fault::of(self.realm.identity.span(), &failure)).into());
        }
        Ok(SigningKey::from_seed(&realm))
    }

    /// The identity of the process that answers joins.
    pub fn identity(&self, source: &Source) -> Outcome<Seed> {
        Self::seed(&self.realm.identity, source, KeyKind::Identity)
    }

    fn seed(named: &Spanned<PathBuf>, source: &Source, kind: KeyKind) -> Outcome<Seed> {
        let loaded = node::load(kind, &source.resolve(named.get_ref()));
        Ok(loaded.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?)
    }

    /// The realm's records.
    pub fn ledger(&self, source: &Source) -> Outcome<Ledger> {
        let named = &self.realm.records;
        let opened = Ledger::open(&source.resolve(named.get_ref()));
        Ok(opened.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?)
    }

    /// What signs lists in the realm's place, if there is such a key.
    pub fn list_signer(&self, source: &Source) -> Outcome<Option<ListSigner>> {
        let Some(named) = &self.realm.list_key else { return Ok(None) };
        let loaded = realm_lists::load(&source.resolve(named.get_ref()));
        let (_, signer) = loaded.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?;
        Ok(Some(signer))
    }

    /// The operator's side as the records have it. Where the realm's key is kept elsewhere, it has the list key alone.
    pub fn registrar(&self, source: &Source) -> Outcome<(Registrar, Ledger)> {
        self.registrar_with(source, self.list_signer(source)?)
    }

    /// The same with this list key.
    pub fn registrar_with(&self, source: &Source, list: Option<ListSigner>) -> Outcome<(Registrar, Ledger)> {
        let is_there = |named: &&Spanned<PathBuf>| source.resolve(named.get_ref()).exists();
        let next = self.realm.next_key.as_ref().map(|named| self.key(named, source)).transpose()?;
        let key = Some(&self.realm.key).filter(|named| is_there(named) || list.is_none() && next.is_none());
        let key = key.map(|named| self.key(named, source)).transpose()?;
        let mut keys: Vec<SigningKey> = key.into_iter().chain(next).collect();
        let signer = match &list {
            Some(list) if keys.is_empty() => list.clone(),
            _ => ListSigner::Realm(keys.remove(0)),
        };
        let mut ledger = self.ledger(source)?;
        let records: Vec<Record> = ledger.read_new()?;
        let mut registrar = Registrar::with(signer, Store::Kept(records), unix_now());
        keys.into_iter().for_each(|key| registrar.add_key(key));
        if let Some(key) = registrar.foreign_keys().next() {
            let named = self.realm.next_key.as_ref().unwrap_or(&self.realm.key);
            let failure = Failure::new(format!("the realm's key did not roll to realm:{key}"))
                .help("`wayleave realm roll-key new FILE` makes the next key; `wayleave realm roll-key show` has all");
            return Err(source.failure(Fault::of(named.span(), &failure)).into());
        }
        registrar.set_renews(self.realm.renew);
        registrar.set_list_interval(*self.realm.list_interval_secs.get_ref());
        if let (Some(list), Some(named)) = (list, &self.realm.list_key) {
            if list.realm() != registrar.realm() {
                let failure = Failure::new("the list key is one of another realm");
                return Err(source.failure(Fault::of(named.span(), &failure)).into());
            }
            registrar.set_list_signer(list);
        }
        Ok((registrar, ledger))
    }

    /// Where the operator's side answers joins.
    pub fn own_server(&self, source: &Source) -> Outcome<Server> {
        let identity = node::identity_of(&self.identity(source)?);
        Ok(Server { identity, address: self.realm.address.0.0.clone() })
    }

    /// Where path servers are, by their names.
    pub fn addresses(&self, source: &Source) -> Outcome<Vec<PathServerAddress>> {
        let path = source.resolve(self.realm.servers.get_ref());
        let system = |error: std::io::Error| {
            let failure = Failure::system(path.display(), &error);
            if error.kind() != std::io::ErrorKind::PermissionDenied {
                return failure;
            }
            failure.help("the file has to be that of the user of `wayleave run realm`, as `records` is: give it to that user with chown")
        };
        if !path.exists() {
            return Ok(Vec::new());
        }
        if std::fs::metadata(&path).map_err(system)?.len() > MAX_OCTETS {
            return Err(Failure::new(format!("{}: longer than 64 KiB", path.display())).into());
        }
        let text = std::fs::read_to_string(&path).map_err(system)?;
        let mut all = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[name, address] = &words[..] else {
                return Err(Failure::new(format!("{}: `{line}` is not a name and an address", path.display())).into());
            };
            let address = HostPort::read(address).ok_or_else(|| {
                Failure::new(format!("{}: `{address}` is not {}", path.display(), HostPort::EXPECTED))
            })?;
            all.push(PathServerAddress { name: name.to_owned(), address: address.0 });
        }
        if all.len() > MAX_ADDRESSES {
            return Err(Failure::new(format!("{}: more than {MAX_ADDRESSES} path servers", path.display())).into());
        }
        Ok(all)
    }

    /// Remembers where a path server is.
    pub fn add_address(&self, source: &Source, name: &str, address: &str) -> Outcome {
        let path = source.resolve(self.realm.servers.get_ref());
        let mut all = self.addresses(source)?;
        all.retain(|known| known.name != name);
        all.push(PathServerAddress { name: name.to_owned(), address: address.to_owned() });
        let lines: String = all.iter().map(|known| format!("{} {}\n", known.name, known.address)).collect();
        let text = format!(
            "# Path servers by name, as `wayleave realm invite NAME --role path --address ADDRESS` said.\n{lines}"
        );
        private::put(&path, &text)
    }

    /// The path servers that are members and whose addresses are known.
    pub fn path_servers(&self, source: &Source, registrar: &Registrar) -> Outcome<Vec<Server>> {
        let addresses = self.addresses(source)?;
        let now = unix_now().secs();
        let mut servers = Vec::new();
        for member in registrar.members() {
            let is_server = member.grants.roles.has(Roles::PATH_SERVER) && member.not_after >= now;
            let known =
                addresses.iter().find(|known| member.grants.names.iter().any(|name| name.as_str() == known.name));
            if let Some(known) = known.filter(|_| is_server && !registrar.is_revoked(&member.identity)) {
                servers.push(Server { identity: member.identity, address: known.address.clone() });
            }
        }
        Ok(servers)
    }

    fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        let mut faults = Vec::new();
        let of = |named: &Spanned<PathBuf>, failure: &Failure| {
            let fault = Fault::of(named.span(), failure);
            let exists = source.resolve(named.get_ref()).exists();
            if exists { FileFault::Unusable(fault) } else { FileFault::Missing(fault) }
        };
        let realm = &self.realm;
        let is_there = source.resolve(realm.key.get_ref()).exists();
        let is_off_line = !is_there && (realm.list_key.is_some() || realm.next_key.is_some());
        if is_off_line && !self.registrar(source).is_ok_and(|(known, _)| known.has_realm_key(unix_now().secs())) {
            let message = "the realm's key is not here: nobody is admitted or renewed, and lists are signed with a list key alone";
            faults.push(FileFault::Doubtful(Fault::at(realm.key.span(), message)));
        }
        let keys = Some(&realm.key).filter(|_| !is_off_line).into_iter().chain(&realm.next_key);
        let keys = keys.map(|named| (named, KeyKind::Realm)).chain([(&realm.identity, KeyKind::Identity)]);
        for (named, kind) in keys {
            if let Err(failure) = node::load(kind, &source.resolve(named.get_ref())) {
                faults.push(of(named, &failure));
            }
        }
        let opened = Ledger::open(&source.resolve(realm.records.get_ref()));
        if let Err(failure) = opened.and_then(|mut ledger| ledger.read_new().map(drop)) {
            faults.push(of(&realm.records, &failure));
        }
        if let Some(named) = &realm.list_key {
            match realm_lists::load(&source.resolve(named.get_ref())) {
                Err(failure) => faults.push(FileFault::Unusable(Fault::of(named.span(), &failure))),
                Ok((_, ListSigner::ListKey(_, certificate))) => {
                    let until = certificate.object().not_after;
                    if until < unix_now().secs() + ENDS_SOON {
                        let fault = Fault::at(named.span(), format!("the list key ends on {}", utc(until)));
                        faults.push(FileFault::Doubtful(fault.help(LIST_KEY_HELP)));
                    }
                }
                Ok((_, ListSigner::Realm(_))) => {}
            }
        }
        faults.extend(self.roll_fault(source));
        if let Err(failures) = self.addresses(source) {
            faults.extend(failures.0.iter().map(|failure| of(&realm.servers, failure)));
        }
        faults
    }

    /// A roll of the realm's key that somebody has to see to. Of the list's age the records say nothing: while the operator's side runs a later one is
    /// in force, which is not stored.
    fn roll_fault(&self, source: &Source) -> Option<FileFault> {
        let (registrar, _) = self.registrar(source).ok()?;
        let waits = roll_problem(&registrar, unix_now().secs())?;
        Some(FileFault::Doubtful(Fault::at(self.realm.key.span(), waits).help(NEXT_KEY_HELP)))
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("realm", failures),
        };
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        // A new configuration needs no files yet; once there is a key, everything has to be there.
        let is_new = file.realm.list_key.is_none() && !source.resolve(file.realm.key.get_ref()).exists();
        for fault in file.file_faults(source) {
            match fault {
                FileFault::Missing(fault) if is_new => warnings.push(fault),
                FileFault::Doubtful(fault) => warnings.push(fault),
                fault => errors.push(fault.into_fault()),
            }
        }
        warnings.extend(absent_address(&file.realm.listen));
        warnings.extend(file.status.as_ref().and_then(status_warning));
        Checked::found("realm", source, errors, warnings)
    }
}

/// What an operator should know of a roll of the realm's key that is announced, or whose next key is not here.
#[must_use]
pub fn roll_problem(registrar: &Registrar, now: u64) -> Option<String> {
    let last = registrar.rolls().iter().last()?;
    if registrar.has_realm_key(last.from.max(now)) {
        return None;
    }
    let when = if last.from > now { "rolls" } else { "has rolled" };
    Some(format!("the realm's key {when} on {} to realm:{}, which is not here", utc(last.from), last.next))
}

/// An operator's configuration.
pub fn template_with(listen: &str, address: &str, status: &str) -> String {
    format!(
        "# The operator's side of a realm: it admits nodes. Run it with: wayleave run realm --config FILE\n\
         # It has the realm's key: run it on a machine of its own, never beside a path server, and while nodes join or renew.\n\
         # Paths are relative to this file. `wayleave realm init` writes all of them.\n\
         \n\
         [realm]\n\
         # The realm's key, the root of trust of the overlay. Keep a copy where no network is.\n\
         key = \"realm.key\"\n\
         # The identity of this process; invitations name it.\n\
         identity = \"identity.key\"\n\
         # Who was admitted by which token, and who was removed. Keep copies: a token works once because of it.\n\
         records = \"records\"\n\
         # Where path servers are; written by: wayleave realm invite NAME --role path --address ADDRESS\n\
         servers = \"servers\"\n\
         # The key to which the realm's rolls: wayleave realm roll-key new next.key --config FILE\n\
         #next_key = \"next.key\"\n\
         # Where nodes join, and the same as they reach it.\n\
         listen = \"{listen}\"\n\
         address = \"{address}\"\n\
         # Members that were not removed get their next membership by themselves, once half of their time is over. With false,\n\
         # each needs your `wayleave realm renew`.\n\
         #renew = true\n\
         # The list of removed nodes is signed anew all the time; it says by how many seconds later the next one is due. A list key signs\n\
         # it in the place of the realm's, which may be kept off line then: wayleave realm list-key new list.key --config FILE\n\
         #list_interval_secs = 600\n\
         #list_key = \"list.key\"\n\
         \n\
         # Status pages and metrics, for you alone.\n\
         [status]\n\
         listen = \"{status}\"\n"
    )
}

/// The configuration in a folder of `realm init`.
pub fn file_in(folder: &Path) -> PathBuf {
    folder.join("realm.toml")
}

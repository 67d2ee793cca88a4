//! The configuration of a path server.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::database::MAX_MEMBERS;
use wayleave_control::path::REQUESTS;
use wayleave_control::realm::{MAX_LIST, RealmKey, Roles, Server};

use super::check::{Checked, RoleConfig};
use super::machine::{absent_address, state_fault, taken_by_status};
use super::overlay::{MAX_REQUESTS, STALENESS_LINE, ServerEntry, default_staleness, identity, operator_line};
use super::parse::{self, Text};
use super::rs::{FileFault, StatusSection, example, range, status_warning};
use super::{EXAMPLE_REALM, Fault, Source};
use crate::failure::{Failure, Failures};
use crate::key_files::membership;
use crate::key_files::node::{self, KeyKind};

/// Other path servers, at most.
const MAX_PEERS: usize = 64;

/// `run path`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "path",
    section: "path",
    sections: "[path]",
    check: PathFile::checked,
    template: |_| template(),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathFile {
    pub path: PathSection,
    pub status: Option<StatusSection>,
}

/// `[path]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSection {
    /// The realm's public key.
    pub realm: Spanned<Text<parse::RealmKey>>,
    /// The file of the server's identity, the only key that it has.
    pub identity: Spanned<PathBuf>,
    /// The server's membership, if it has one: `check` compares it with the identity.
    pub membership: Option<Spanned<PathBuf>>,
    /// The realm's operator, who renews the membership.
    pub operator: Option<ServerEntry>,
    pub listen: Spanned<Text<SocketAddr>>,
    pub state: Spanned<PathBuf>,
    /// Other path servers of the realm.
    #[serde(default = "no_peers")]
    pub peers: Spanned<Vec<ServerEntry>>,
    /// Members that are remembered.
    #[serde(default = "default_members")]
    pub members: Spanned<u64>,
    /// What one node may ask for in a second.
    #[serde(default = "default_requests")]
    pub requests_per_second: Spanned<u64>,
    /// By how many seconds the next list of removed nodes may be overdue.
    #[serde(default = "default_staleness")]
    pub max_staleness_secs: Spanned<u64>,
}

fn no_peers() -> Spanned<Vec<ServerEntry>> {
    Spanned::new(0..0, Vec::new())
}

fn default_members() -> Spanned<u64> {
    Spanned::new(0..0, MAX_MEMBERS as u64)
}

fn default_requests() -> Spanned<u64> {
    Spanned::new(0..0, REQUESTS.into())
}

impl PathFile {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let faults = file.faults();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    pub fn realm(&self) -> RealmKey {
        RealmKey(self.path.realm.get_ref().0.0.to_bytes())
    }

    pub fn peers(&self) -> Vec<Server> {
        self.path.peers.get_ref().iter().map(ServerEntry::server).collect()
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let path = &self.path;
        faults.extend(range(&path.members, 1, MAX_MEMBERS as u64, "members"));
        faults.extend(range(&path.max_staleness_secs, 1, MAX_LIST, "seconds"));
        faults.extend(range(&path.requests_per_second, 1, MAX_REQUESTS, "requests a second"));
        let peers = path.peers.get_ref();
        if peers.len() > MAX_PEERS {
            let message = format!("{} peers, expected at most {MAX_PEERS}", peers.len());
            faults.push(Fault::at(path.peers.span(), message));
        }
        if peers.iter().enumerate().any(|(at, peer)| peers[..at].iter().any(|other| other.identity == peer.identity)) {
            faults.push(Fault::at(path.peers.span(), "the same server twice, expected each once"));
        }
        if peers.iter().any(|peer| identity(&peer.identity).0 == self.realm().0) {
            faults.push(Fault::at(path.peers.span(), "a peer with the realm's key, expected its own identity"));
        }
        faults.extend(taken_by_status(self.status.as_ref(), &[path.listen.get_ref().0]));
        faults
    }

    fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        let mut faults = Vec::new();
        let path = &self.path;
        let of = |named: &Spanned<PathBuf>, failure: &Failure| {
            let fault = Fault::of(named.span(), failure);
            let exists = source.resolve(named.get_ref()).exists();
            if exists { FileFault::Unusable(fault) } else { FileFault::Missing(fault) }
        };
        let own = node::load(KeyKind::Identity, &source.resolve(path.identity.get_ref()));
        if let Err(failure) = &own {
            faults.push(of(&path.identity, failure));
        }
        if let Some(named) = &path.membership {
            match membership::load(&source.resolve(named.get_ref())) {
                Err(failure) => faults.push(of(named, &failure)),
                Ok(membership) => {
                    let own = own.map(|seed| node::identity_of(&seed));
                    if let Ok(own) = own
                        && let Err(failure) = membership::check(&membership, self.realm(), own)
                    {
                        faults.push(FileFault::Unusable(Fault::of(named.span(), &failure)));
                    } else if !membership.object().grants.roles.has(Roles::PATH_SERVER) {
                        let message = "the membership does not make this node a path server";
                        let fault = Fault::at(named.span(), message);
                        let help = "the realm's operator invites it with `--role path`";
                        faults.push(FileFault::Doubtful(fault.help(help)));
                    }
                }
            }
        }
        faults.extend(state_fault(&path.state, source));
        faults
    }

    /// Whether it still has the example's realm, with which the role cannot run.
    pub fn has_examples(&self) -> bool {
        self.path.realm.get_ref().0.to_string() == EXAMPLE_REALM
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("path", failures),
        };
        let (mut errors, mut warnings, mut examples) = (Vec::new(), Vec::new(), Vec::new());
        if file.has_examples() {
            examples.push(example(file.path.realm.span(), "the realm's key, from `wayleave realm show`"));
        }
        for fault in file.file_faults(source) {
            match fault {
                // A new configuration needs no files yet.
                FileFault::Missing(fault) if file.has_examples() => warnings.push(fault),
                FileFault::Doubtful(fault) => warnings.push(fault),
                fault => errors.push(fault.into_fault()),
            }
        }
        warnings.extend(absent_address(&file.path.listen));
        warnings.extend(file.status.as_ref().and_then(status_warning));
        Checked::found("path", source, errors, warnings).with_examples(source, examples)
    }
}

/// What `wayleave init path` prints.
fn template() -> String {
    template_with(&PathValues {
        realm: EXAMPLE_REALM.to_owned(),
        listen: "127.0.0.1:7100".to_owned(),
        status: "127.0.0.1:8487".to_owned(),
        has_membership: false,
        operator: None,
        peers: Vec::new(),
    })
}

/// The values in which path servers' configurations differ.
pub struct PathValues {
    pub realm: String,
    pub listen: String,
    pub status: String,
    pub has_membership: bool,
    /// Identity and address of the realm's operator.
    pub operator: Option<(String, String)>,
    /// Identity and address of other path servers.
    pub peers: Vec<(String, String)>,
}

/// A path server's configuration with these values.
pub fn template_with(values: &PathValues) -> String {
    let PathValues { realm, listen, status, has_membership, operator, peers } = values;
    let operator = operator_line(operator.as_ref());
    let comment = if *has_membership { "" } else { "#" };
    let entry =
        |(identity, address): &(String, String)| format!("{{ identity = \"{identity}\", address = \"{address}\" }}");
    let entries: Vec<String> = peers.iter().map(entry).collect();
    let peers = match entries.is_empty() {
        true => {
            "#peers = [{ identity = \"node:ed25519:64 hexadecimal digits\", address = \"192.0.2.8:7100\" }]".to_owned()
        }
        false => format!("peers = [{}]", entries.join(", ")),
    };
    format!(
        "# A path server. It has no key but its own identity. Run it with: wayleave run path --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [path]\n\
         # The realm's public key, from: wayleave realm show\n\
         realm = \"{realm}\"\n\
         # The server's identity, made by: wayleave join TOKEN, or wayleave keys node identity.key --kind identity\n\
         identity = \"identity.key\"\n\
         {comment}membership = \"membership\"\n\
         {operator}\
         # Where nodes connect.\n\
         listen = \"{listen}\"\n\
         # What is known must survive a restart: nothing that is older is taken afterwards.\n\
         state = \"path.redb\"\n\
         # Other path servers of the realm. They exchange adverts, and a server that lost its state asks them before it answers.\n\
         {peers}\n\
         # Members that are remembered.\n\
         #members = 65536\n\
         # What one node may ask for in a second.\n\
         #requests_per_second = 20\n\
         {STALENESS_LINE}\
         \n\
         # Status pages and metrics, for you alone.\n\
         [status]\n\
         listen = \"{status}\"\n"
    )
}

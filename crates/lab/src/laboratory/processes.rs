//! The processes `wayleave run` of a laboratory: started, waited for, watched and ended in one way, whatever it is a laboratory of.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::demo::http;
use crate::netns::NetworkNamespace;
use crate::process::wait_until;
use crate::role_process::RoleProcess;

/// How long a process may take to answer on its status page.
const START: Duration = Duration::from_secs(30);
/// How long processes have to end by themselves, all together.
const END: Duration = Duration::from_secs(5);

wayleave_core::named! {
    /// What a process of a laboratory is for; also `wayleave run ROLE`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Role {
        Realm = "realm",
        Path = "path",
        Consent = "consent",
        Router = "router",
        Gateway = "gateway",
        Key = "key",
        Stamper = "stamper",
        Party = "rs",
        Member = "member",
        Attest = "attest",
    }
}

impl Role {
    /// Its configuration in its place's folder: what `wayleave join` and `wayleave cap init` write, else the name that commands
    /// look for by themselves.
    #[must_use]
    pub fn configuration(self) -> String {
        match self {
            Self::Party | Self::Member | Self::Attest => "wayleave.toml".to_owned(),
            _ => format!("{}.toml", self.name()),
        }
    }

    /// Where its status pages are, in its own namespace, as `wayleave join` and `wayleave init` have them.
    #[must_use]
    pub fn page(self) -> SocketAddr {
        let port = match self {
            Self::Realm => 8489,
            Self::Path => 8487,
            Self::Consent => 8491,
            Self::Router => 8486,
            Self::Gateway => 8492,
            Self::Stamper => 8488,
            Self::Key => 8493,
            Self::Party | Self::Member => 8480,
            Self::Attest => 8485,
        };
        (Ipv4Addr::LOCALHOST, port).into()
    }
}

/// A process `wayleave run`.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) place: String,
    pub(crate) role: Role,
    namespace: NetworkNamespace,
    pub(crate) process: RoleProcess,
}

/// The processes of a laboratory, in the order of their start. They end with it.
#[derive(Debug)]
pub(crate) struct Processes {
    /// With a folder for each place: its keys, configuration, state and log.
    folder: PathBuf,
    binary: PathBuf,
    all: Vec<Process>,
}

impl Processes {
    pub(crate) fn new(folder: &Path, binary: &Path) -> Self {
        Self { folder: folder.to_path_buf(), binary: binary.to_path_buf(), all: Vec::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.all.iter()
    }

    /// The process of a place.
    pub(crate) fn of(&mut self, place: &str) -> Result<&mut Process, String> {
        self.all.iter_mut().find(|one| one.place == place).ok_or_else(|| format!("nothing runs at {place}"))
    }

    /// Starts a process with the configuration in its place's folder.
    pub(crate) fn begin(&mut self, place: &str, role: Role, namespace: NetworkNamespace) -> Result<(), String> {
        let folder = self.folder.join(place);
        let (config, log) = (folder.join(role.configuration()), folder.join("log"));
        let mut process = RoleProcess::new(place.to_owned(), &namespace, &self.binary, role.name(), config, log);
        process.start()?;
        self.all.push(Process { place: place.to_owned(), role, namespace, process });
        Ok(())
    }

    /// Waits until a place's process answers; an error if it ends instead, with the end of its log.
    pub(crate) fn wait_for(&mut self, place: &str) -> Result<(), String> {
        let Process { role, namespace, process, .. } = self.of(place)?;
        let answered = wait_until(START, || match process.is_running() {
            false => Some(false),
            true => page_of(namespace, place, *role, "/api/v1/status").is_ok().then_some(true),
        });
        match answered {
            Some(true) => Ok(()),
            Some(false) => Err(format!("{place} has ended:\n{}", process.log_tail())),
            None => Err(format!("{place} did not answer within {} s:\n{}", START.as_secs(), process.log_tail())),
        }
    }

    /// A process that has ended, with the end of its log.
    pub(crate) fn first_ended(&mut self) -> Option<String> {
        let has_ended = |one: &mut Process| {
            (!one.process.is_running()).then(|| format!("{} has ended:\n{}", one.place, one.process.log_tail()))
        };
        self.all.iter_mut().find_map(has_ended)
    }

    /// Reads a status page of a place.
    pub(crate) fn page(&self, place: &str, path: &str) -> Result<Value, String> {
        let process = self.all.iter().find(|process| process.place == place);
        let process = process.ok_or_else(|| format!("nothing runs at {place}"))?;
        page_of(&process.namespace, place, process.role, path)
    }

    /// A row for each, as `status` shows it.
    pub(crate) fn describe(&self) -> Vec<Value> {
        self.all.iter().map(|one| row(&self.folder, &one.place, one.role, &one.process)).collect()
    }

    /// Waits for those that have ended, so that nothing of them is left.
    pub(crate) fn reap(&mut self) {
        for one in &mut self.all {
            one.process.is_running();
        }
    }

    /// Ends all by SIGTERM; how many had to be killed.
    pub(crate) fn stop(&mut self) -> usize {
        let end = Instant::now() + END;
        for one in &self.all {
            let _ = one.process.signal(rustix::process::Signal::TERM);
        }
        let mut killed = 0;
        for one in &mut self.all {
            let left = end.saturating_duration_since(Instant::now());
            let ended = wait_until(left, || (!one.process.is_running()).then_some(())).is_some();
            killed += usize::from(!ended);
            one.process.kill();
        }
        self.all.clear();
        killed
    }
}

/// A process's row, as `status` shows it.
pub(crate) fn row(folder: &Path, place: &str, role: Role, process: &RoleProcess) -> Value {
    json!({
        "node": place, "role": role.name(), "pid": process.id(), "page": role.page().to_string(),
        "log": folder.join(place).join("log"),
    })
}

/// Reads a status page of a place from anywhere in the laboratory's namespaces.
///
/// # Errors
/// What came instead.
pub fn page_of(namespace: &NetworkNamespace, place: &str, role: Role, path: &str) -> Result<Value, String> {
    http::get_json(namespace, role.page(), path).map_err(|error| format!("{place}: {error}"))
}

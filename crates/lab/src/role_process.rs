//! A role's process, which can be killed and started again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::netns::NetworkNamespace;
use crate::process::Daemon;

/// A `wayleave run` process that can be killed and started again.
#[derive(Debug)]
pub struct RoleProcess {
    name: String,
    namespace: NetworkNamespace,
    binary: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
    daemon: Option<Daemon>,
}

impl RoleProcess {
    /// `binary run KIND` with a configuration, in `place`; not started yet.
    #[must_use]
    pub fn new(
        name: String,
        namespace: &NetworkNamespace,
        binary: &Path,
        kind: &str,
        config: PathBuf,
        log: PathBuf,
    ) -> Self {
        let arguments = vec!["run".into(), kind.into(), "--refuse-nobody".into(), "--config".into(), config.into()];
        Self { name, namespace: namespace.clone(), binary: binary.to_path_buf(), arguments, log, daemon: None }
    }

    /// What it is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts the process.
    pub fn start(&mut self) -> Result<(), String> {
        let mut command = self.command();
        command.args(&self.arguments);
        let daemon = Daemon::start(&mut command, &self.log).map_err(|error| format!("{}: {error}", self.name))?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// In a namespace the process ends with the PID namespace. On loopback `setpriv` makes the kernel kill it with its parent.
    fn command(&self) -> Command {
        let tool = Path::new("/usr/bin/setpriv");
        if self.namespace != NetworkNamespace::Own || !tool.exists() {
            return self.namespace.command(&self.binary);
        }
        let mut command = Command::new(tool);
        command.args(["--pdeathsig", "KILL"]).arg(&self.binary);
        command
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// The ID of its process, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(Daemon::is_running)
    }

    /// Sends SIGHUP, so that the process reloads its configuration.
    pub fn reload(&self) -> Result<(), String> {
        self.signal(Signal::HUP)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        let daemon = self.daemon.as_ref().ok_or_else(|| format!("{} is not running", self.name))?;
        daemon.signal(signal).map_err(|error| format!("{}: {error}", self.name))
    }

    /// Sends SIGTERM; false if the process had to be killed after `timeout`.
    pub fn stop(&mut self, timeout: Duration) -> bool {
        self.daemon.as_mut().is_none_or(|daemon| daemon.stop(timeout))
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.daemon.as_ref().map(|daemon| daemon.log_tail(12)).unwrap_or_default()
    }
}

//! PostgreSQL as a server for tests: on a Unix socket in a folder of its own, killed, started again, followed by standbys and
//! replaced by one of them.

mod folder;
mod user;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use self::folder::Folder;
use crate::netns;
use crate::process::{Daemon, wait_until};
use crate::routers::{Installation, POSTGRESQL, default_cache, locate_or_fetch_router};

/// How long a server may take until it accepts connections: after a kill it first replays its log.
const START: Duration = Duration::from_secs(60);
/// How long its processes may take to end.
const END: Duration = Duration::from_secs(180);
/// How long a standby may take to follow, and to be promoted.
const REPLICATION: Duration = Duration::from_secs(60);

/// The administrator, who may do all.
const ADMINISTRATOR: &str = "postgres";
/// The database, and the user who owns it and has no other rights.
const OWNER: &str = "wayleave";

/// What differs from a server's defaults: small, and without a network. What makes commits durable stays as it is.
const SETTINGS: &str = "
listen_addresses = ''
max_connections = 40
max_wal_senders = 4
wal_level = replica
wal_keep_size = 64MB     # a standby that was away finds what it missed
wal_retrieve_retry_interval = 100ms     # and asks for it soon
recovery_init_sync_method = syncfs     # one call after a kill, not one for each of a thousand files
shared_buffers = 16MB
huge_pages = off
dynamic_shared_memory_type = mmap     # in the folder, with which it is removed
jit = off     # its library is not fetched
";

/// Why a server does not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error("PostgreSQL in {}: {error}", path.display())]
    Folder { path: PathBuf, error: io::Error },
    /// One of its programs failed.
    #[error("{program} of PostgreSQL failed: {detail}")]
    Program { program: &'static str, detail: String },
    #[error("PostgreSQL in {} does not accept connections; the end of its log:\n{log}", path.display())]
    NotReady { path: PathBuf, log: String },
    #[error("processes of PostgreSQL in {} still run: {ids:?}", path.display())]
    NotEnded { path: PathBuf, ids: Vec<u32> },
    #[error("the standby in {} {what}; the end of its log:\n{log}", path.display())]
    Standby { path: PathBuf, what: &'static str, log: String },
}

/// A server with the database `wayleave`; it is stopped and its folder removed on drop.
///
/// Like other parts of a laboratory it ends with the thread that started it: the kernel tells it to shut down at once then.
#[derive(Debug)]
pub struct Postgres {
    installation: Installation,
    daemon: Option<Daemon>,
    folder: Folder,
}

impl Postgres {
    /// A server for a test, fetched if need be. Where it is not to be had the test is reported as skipped, and there is none.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_for_test() -> Option<Self> {
        match locate_or_fetch_router(&POSTGRESQL, &default_cache(), &mut |line| println!("{line}")) {
            Ok(installation) => Some(Self::start(&installation).unwrap_or_else(|error| panic!("{error}"))),
            Err(error) => {
                netns::skipped(&error.to_string());
                None
            }
        }
    }

    /// Makes a new server and starts it; it accepts connections.
    ///
    /// # Errors
    /// If its folder cannot be made, or one of its programs fails.
    pub fn start(installation: &Installation) -> Result<Self, PostgresError> {
        let mut server = Self::in_new_folder(installation)?;
        let mut command = server.as_user("initdb");
        command.args(["--username", ADMINISTRATOR, "--auth-local=trust", "--auth-host=reject"]);
        // Nothing is in it yet that would have to be durable. Segments of 1 MiB instead of 16 keep it small.
        command.args(["--no-sync", "--wal-segsize=1", "--locale=C", "--encoding=UTF8", "--pgdata"]);
        command.arg(server.data());
        finish("initdb", &mut command)?;
        server.in_data(|data| fs::File::options().append(true).open(data.join("postgresql.conf")), SETTINGS)?;
        server.run()?;
        // The first database is renamed, from within another: a further one would double what is written.
        let template = server.url_of(ADMINISTRATOR, "template1");
        for sql in [
            format!("CREATE ROLE {OWNER} LOGIN"),
            format!("ALTER DATABASE postgres OWNER TO {OWNER}"),
            format!("ALTER DATABASE postgres RENAME TO {OWNER}"),
        ] {
            server.psql(&template, &sql)?;
        }
        Ok(server)
    }

    /// A standby that streams from `primary`. If it is `synchronous`, the primary confirms each further commit only when this
    /// standby, and no other, has it on disk.
    ///
    /// # Errors
    /// As for [`Self::start`], or if the standby does not follow.
    pub fn standby(primary: &Self, synchronous: bool) -> Result<Self, PostgresError> {
        let mut standby = Self::in_new_folder(&primary.installation)?;
        let mut command = standby.as_user("pg_basebackup");
        command.arg("--host").arg(&primary.folder.path).args(["--username", ADMINISTRATOR, "--no-password"]);
        // With a `standby.signal`. Its first state is the primary's: it need not be durable.
        command.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--pgdata"]);
        command.arg(standby.data());
        finish("pg_basebackup", &mut command)?;
        // In place of the primary's own settings, which name that one's standbys.
        let settings = format!("primary_conninfo = 'host={} user={ADMINISTRATOR}'\n", primary.folder.path.display());
        standby.in_data(|data| fs::File::create(data.join("postgresql.auto.conf")), &settings)?;
        standby.run()?;
        let condition = format!("application_name = '{}' AND state = 'streaming'", standby.name());
        if !primary.replicates(&condition)? {
            return Err(standby.fault("does not follow"));
        }
        if synchronous {
            primary.set_synchronous(&[&standby])?;
        }
        Ok(standby)
    }

    /// Names the standbys of which one must have each further commit on disk before it is confirmed; with none, no commit
    /// waits any more. It is in force when this returns, and remains so after a restart.
    ///
    /// # Errors
    /// If the server does not run, or none of these standbys follows it.
    pub fn set_synchronous(&self, standbys: &[&Self]) -> Result<(), PostgresError> {
        let names = |quote: &str| {
            let names: Vec<String> =
                standbys.iter().map(|standby| format!("{quote}{}{quote}", standby.name())).collect();
            names.join(", ")
        };
        let value = if standbys.is_empty() { String::new() } else { format!("ANY 1 ({})", names("\"")) };
        self.administer(&format!("ALTER SYSTEM SET synchronous_standby_names = '{value}'"))?;
        self.administer("SELECT pg_reload_conf()")?;
        if let Some(standby) = standbys.first()
            && !self.replicates(&format!("application_name IN ({}) AND sync_state = 'quorum'", names("'")))?
        {
            return Err(standby.fault("is not synchronous"));
        }
        // Commits wait when the checkpointer has read the setting. It reads settings before each checkpoint; the first of these
        // may have begun before it was told of the change.
        self.administer("CHECKPOINT")?;
        self.administer("CHECKPOINT")?;
        Ok(())
    }

    /// Makes a standby a primary, which waits for no standbys.
    ///
    /// # Errors
    /// If it does not run, or is no standby.
    pub fn promote(&mut self) -> Result<(), PostgresError> {
        let promoted = self.administer(&format!("SELECT pg_promote(true, {})", REPLICATION.as_secs()))?;
        if promoted == "t" { Ok(()) } else { Err(self.fault("was not promoted")) }
    }

    /// How a client of libpq or sqlx reaches the database `wayleave`, as its owner.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(OWNER, OWNER)
    }

    /// The same for the administrator.
    #[must_use]
    pub fn administrator_url(&self) -> String {
        self.url_of(ADMINISTRATOR, OWNER)
    }

    /// What `psql` prints for SQL that the owner sends: a line for each row, with `|` between the columns.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses it.
    pub fn query(&self, sql: &str) -> Result<String, PostgresError> {
        self.psql(&self.url(), sql)
    }

    /// The same for the administrator.
    ///
    /// # Errors
    /// As for [`Self::query`].
    pub fn administer(&self, sql: &str) -> Result<String, PostgresError> {
        self.psql(&self.administrator_url(), sql)
    }

    /// Kills all processes of the server (`kill -9`) and waits until they are gone.
    ///
    /// # Errors
    /// If they are not.
    pub fn kill(&mut self) -> Result<(), PostgresError> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        // A process that is stopped starts no others, so that none is missed.
        let _ = daemon.signal(Signal::STOP);
        let is_stopped = || process(daemon.id()).is_none_or(|process| matches!(process.state, 'T' | 'Z'));
        wait_until(END, || is_stopped().then_some(()));
        let children = children(daemon.id());
        daemon.kill();
        signal_all(&children, Signal::KILL);
        let left = || children.iter().copied().filter(|id| process(*id).is_some_and(|process| process.state != 'Z'));
        wait_until(END, || left().next().is_none().then_some(()))
            .ok_or_else(|| PostgresError::NotEnded { path: self.folder.path.clone(), ids: left().collect() })
    }

    /// Stops all processes of the server in their tracks (`SIGSTOP`): connections stay and are not answered, as by a disk that hangs. Returns what
    /// lets them go on when it is dropped.
    pub fn halt(&self) -> Halted {
        let all: Vec<u32> = self.id().into_iter().flat_map(|id| [vec![id], children(id)].concat()).collect();
        signal_all(&all, Signal::STOP);
        Halted(all)
    }

    /// Ends the server in order: it breaks connections off and writes all that is in memory.
    ///
    /// # Errors
    /// If it does not end; it was killed then.
    pub fn stop(&mut self) -> Result<(), PostgresError> {
        self.end(Signal::INT)
    }

    /// Starts the server again, after it was stopped or killed, or else stops it before; it accepts connections.
    ///
    /// # Errors
    /// If it does not end, or not start.
    pub fn restart(&mut self) -> Result<(), PostgresError> {
        self.stop()?;
        self.run()
    }

    /// Whether its first process runs.
    pub fn is_running(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(Daemon::is_running)
    }

    /// The ID of its first process, while it is to run.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn in_new_folder(installation: &Installation) -> Result<Self, PostgresError> {
        let error = |error| PostgresError::Folder { path: PathBuf::from(folder::PARENT), error };
        let folder = Folder::new().map_err(error)?;
        Ok(Self { installation: installation.clone(), daemon: None, folder })
    }

    fn run(&mut self) -> Result<(), PostgresError> {
        let mut command = self.as_user("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.folder.path);
        // A standby is known to its primary by this name.
        command.arg("-c").arg(format!("cluster_name={}", self.name()));
        let daemon = Daemon::start(&mut command, &self.log()).map_err(|error| self.error(error))?;
        self.daemon = Some(daemon);
        let is_ready = wait_until(START, || (self.accepts() || !self.is_running()).then(|| self.accepts()));
        if is_ready == Some(true) {
            return Ok(());
        }
        Err(PostgresError::NotReady { path: self.folder.path.clone(), log: self.log_tail() })
    }

    /// Whether it accepts connections, by its lock file, as `pg_ctl` asks it.
    fn accepts(&self) -> bool {
        let lock = self.lock_file();
        let line = |number: usize| lock.lines().nth(number).unwrap_or_default().trim();
        // The file of a server that was killed is there until the next one replaces it.
        self.id().is_some_and(|id| line(0) == id.to_string()) && matches!(line(7), "ready" | "standby")
    }

    /// The lock file's lines: process ID, data folder, start, port, folder of the socket, address, a key of shared memory and its ID, status.
    fn lock_file(&self) -> String {
        fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default()
    }

    fn end(&mut self, signal: Signal) -> Result<(), PostgresError> {
        let Some(daemon) = self.daemon.as_mut() else { return Ok(()) };
        let id = daemon.id();
        // An error means that it has ended already.
        let _ = daemon.signal(signal);
        // It ends last: it waits for its children.
        let has_ended = wait_until(END, || (!daemon.is_running()).then_some(())).is_some();
        self.kill()?;
        has_ended.then_some(()).ok_or_else(|| PostgresError::NotEnded { path: self.folder.path.clone(), ids: vec![id] })
    }

    /// Whether some standby comes to meet a condition on a row of `pg_stat_replication`.
    fn replicates(&self, condition: &str) -> Result<bool, PostgresError> {
        let question = format!("SELECT count(*) FROM pg_stat_replication WHERE {condition}");
        let mut failed = None;
        let met = wait_until(REPLICATION, || match self.administer(&question) {
            Ok(count) => (count != "0").then_some(true),
            Err(error) => {
                failed = Some(error);
                Some(false)
            }
        });
        failed.map_or(Ok(met == Some(true)), Err)
    }

    fn psql(&self, url: &str, sql: &str) -> Result<String, PostgresError> {
        let mut command = client(&self.installation, "psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]);
        finish("psql", command.arg("--command").arg(sql).arg(url))
    }

    /// A program as a user as whom the server may run.
    fn as_user(&self, program: &str) -> Command {
        let mut command = user::command(&self.installation.program(program));
        // Those who are asked for a folder by name look at the current one, too, which may not be that user's to enter.
        command.current_dir(&self.folder.path);
        prepare(&mut command, &self.installation);
        command
    }

    /// Writes into a file of the data folder, which keeps its owner.
    fn in_data(&self, open: impl FnOnce(PathBuf) -> io::Result<fs::File>, text: &str) -> Result<(), PostgresError> {
        let written = open(self.data()).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| self.error(error))
    }

    fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgresql://{user}@localhost/{database}?host={}", self.folder.path.display())
    }

    fn data(&self) -> PathBuf {
        self.folder.path.join(folder::DATA)
    }

    fn log(&self) -> PathBuf {
        self.folder.path.join("log")
    }

    fn name(&self) -> String {
        self.folder.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn error(&self, error: io::Error) -> PostgresError {
        PostgresError::Folder { path: self.folder.path.clone(), error }
    }

    fn fault(&self, what: &'static str) -> PostgresError {
        PostgresError::Standby { path: self.folder.path.clone(), what, log: self.log_tail() }
    }

    /// Removes the block of shared memory that a killed server leaves behind.
    fn remove_shared_memory(&self) {
        if let Some(id) = self.lock_file().lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            // Without the tool, or the block, a few octets stay until the machine ends.
            let _ = Command::new("ipcrm").args(["-m", id]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // At once, without writing what is in memory.
        let _ = self.end(Signal::QUIT);
        self.remove_shared_memory();
    }
}

/// A program that only connects to a server, as whoever calls.
fn client(installation: &Installation, program: &str) -> Command {
    let mut command = Command::new(installation.program(program));
    prepare(&mut command, installation);
    command
}

/// Sets what the programs need from their environment, and removes what would lead them elsewhere: `PGHOST`, `PGPORT`, ...
fn prepare(command: &mut Command, installation: &Installation) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    installation.prepare(command.env("LC_ALL", "C").stdin(Stdio::null()));
}

/// Runs a program to its end and returns what it printed, without the end of the last line.
fn finish(program: &'static str, command: &mut Command) -> Result<String, PostgresError> {
    let failed = |detail: String| PostgresError::Program { program, detail };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// A process, from `/proc/ID/stat`.
struct Process {
    /// `T`: stopped; `Z`: ended, and nobody has asked how.
    state: char,
    parent: u32,
}

/// Processes that are stopped; dropped, they go on.
#[derive(Debug)]
pub struct Halted(Vec<u32>);

impl Drop for Halted {
    fn drop(&mut self) {
        signal_all(&self.0, Signal::CONT);
    }
}

fn signal_all(ids: &[u32], signal: Signal) {
    for id in ids.iter().filter_map(|id| Pid::from_raw(i32::try_from(*id).ok()?)) {
        let _ = kill_process(id, signal); // an error means that it has ended
    }
}

fn process(id: u32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program's name stands in brackets, and may contain some.
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
    Some(Process { state: fields.next()?.chars().next()?, parent: fields.next()?.parse().ok()? })
}

fn children(parent: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| process(*id).is_some_and(|process| process.parent == parent)).collect()
}

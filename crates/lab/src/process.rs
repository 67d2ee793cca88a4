//! Child processes that are killed on drop and whose output goes to a log.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Interval between the attempts of [`wait_until`].
const POLL: Duration = Duration::from_millis(40);

/// A running process; killed and reaped on drop.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command` with its output appended to `log`.
    pub fn start(command: &mut Command, log: &Path) -> io::Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{command:?}: {error}"));
        Ok(Self { child: child.map_err(named)?, log: log.to_path_buf() })
    }

    /// Its process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the process (`kill -9`) and waits for its end.
    pub fn kill(&mut self) {
        // An error means that it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or(io::ErrorKind::NotFound)?, signal)?;
        Ok(())
    }

    /// Sends SIGTERM, waits up to `timeout`, then kills the process. Returns whether it exited by itself.
    pub fn stop(&mut self, timeout: Duration) -> bool {
        let is_signalled = self.signal(Signal::TERM).is_ok();
        let ended = is_signalled && wait_until(timeout, || (!self.is_running()).then_some(())).is_some();
        self.kill();
        ended
    }

    /// The last lines that it printed.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Calls `attempt` until it returns a value, at least once and for at most `timeout`.
pub fn wait_until<T>(timeout: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + timeout;
    loop {
        if let Some(found) = attempt() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_daemon_is_gone() {
        let log = std::env::temp_dir().join(format!("wayleave-lab-{}.log", std::process::id()));
        let mut daemon = Daemon::start(Command::new("sh").args(["-c", "echo here; sleep 600"]), &log).expect("sh runs");
        assert!(wait_until(Duration::from_secs(5), || (daemon.log_tail(1) == "here").then_some(())).is_some());
        assert!(daemon.is_running());
        assert!(daemon.stop(Duration::from_secs(5)), "sh ends when asked to");
        assert!(!daemon.is_running());
        fs::remove_file(log).expect("the log exists");
    }
}

//! A process that ends with its guard, and whose output is kept for the person who asks why.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How often [`wait_until`] looks again.
const POLL: Duration = Duration::from_millis(40);

/// A running process; dropped, it is killed and reaped.
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

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or(io::ErrorKind::NotFound)?, signal)?;
        Ok(())
    }

    /// Asks it to end, waits up to `patience`, then kills it. Returns whether it ended by itself.
    pub fn stop(&mut self, patience: Duration) -> bool {
        let asked = self.signal(Signal::TERM).is_ok();
        let ended = asked && wait_until(patience, || (!self.is_running()).then_some(())).is_some();
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

/// Asks `look` until it answers, for at most `patience`; asks at least once.
pub fn wait_until<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
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

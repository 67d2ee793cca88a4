//! A cap on the processor time of a process: a quota of a control group that is made for it. Where none can be made, the process is
//! stopped and goes on by turns.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The time in which the share counts: short, so that a capped process is never away for long.
const PERIOD: Duration = Duration::from_millis(20);
/// Where control groups are by convention.
const GROUPS: &str = "/sys/fs/cgroup";

/// A process's cap. It ends when dropped, which is to be before the process is waited for: until then its ID is nobody else's.
pub struct CpuCap {
    percent: u32,
    how: How,
}

enum How {
    Group(Group),
    Turns(Turns),
}

impl CpuCap {
    /// Gives the process `id` so many hundredths of one processor at most.
    pub fn new(id: u32, percent: u32) -> Self {
        let group = parents().iter().find_map(|(parent, version)| Group::new(parent, *version, id, percent).ok());
        Self { percent, how: group.map_or_else(|| How::Turns(Turns::new(id, percent)), How::Group) }
    }
}

impl fmt::Display for CpuCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.percent;
        match &self.how {
            How::Group(Group { folder, version }) => {
                let stat = fs::read_to_string(folder.join("cpu.stat")).unwrap_or_default();
                let count = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)).map_or("?", str::trim);
                let (held, periods) = (count("nr_throttled "), count("nr_periods "));
                write!(
                    f,
                    "{percent} % of a processor (control group, version {version}; held back in {held} of {periods} periods)"
                )
            }
            How::Turns(_) => {
                write!(f, "{percent} % of the time (stopped for the rest: no control group can be made here)")
            }
        }
    }
}

/// A control group with a quota.
struct Group {
    folder: PathBuf,
    version: u32,
}

impl Group {
    /// Makes a group in `parent` and moves the process there.
    fn new(parent: &Path, version: u32, id: u32, percent: u32) -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("wayleave-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder, version };
        let set = |file: &str, value: &str| {
            // The kernel's own files: what is not there cannot be made.
            fs::File::options()
                .write(true)
                .open(group.folder.join(file))
                .and_then(|mut to| io::Write::write_all(&mut to, value.as_bytes()))
        };
        let (period, quota) = (PERIOD.as_micros(), PERIOD.as_micros() * u128::from(percent) / 100);
        match version {
            1 => {
                set("cpu.cfs_period_us", &period.to_string())?;
                set("cpu.cfs_quota_us", &quota.to_string())?;
            }
            _ => set("cpu.max", &format!("{quota} {period}"))?,
        }
        set("cgroup.procs", &id.to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed a moment ago may still be in it.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// Groups in which one may perhaps be made, and the version of their interface: this process's own, the one above it, and the first.
fn parents() -> Vec<(PathBuf, u32)> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut parents = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(own)) = (fields.next(), fields.next()) else { continue };
        let (root, version) = match controllers {
            "" => (PathBuf::from(GROUPS), 2),
            list if list.split(',').any(|one| one == "cpu") => (Path::new(GROUPS).join("cpu"), 1),
            _ => continue,
        };
        let own = root.join(own.trim_start_matches('/'));
        let above = own.parent().filter(|above| above.starts_with(&root)).map(Path::to_path_buf);
        parents.extend([Some(own), above, Some(root)].into_iter().flatten().map(|parent| (parent, version)));
    }
    parents
}

/// A thread that stops a process, and lets it go on.
struct Turns {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Turns {
    fn new(id: u32, percent: u32) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let process = Pid::from_raw(id.cast_signed()).expect("a process");
        let signal = move |signal| {
            // A process that has ended, and was not waited for, takes signals and does nothing.
            let _ = kill_process(process, signal);
        };
        let thread = spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                sleep(PERIOD * percent / 100);
                signal(Signal::STOP);
                sleep(PERIOD * (100 - percent) / 100);
                signal(Signal::CONT);
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

//! A process without a free descriptor, from outside.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// The descriptors that a process may have from now on.
pub struct Descriptors {
    process: u32,
    most: u64,
}

impl Descriptors {
    fn open(process: u32) -> Vec<u64> {
        let entries = fs::read_dir(format!("/proc/{process}/fd")).expect("a process");
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Leaves the process so many descriptors above those that it has.
    pub fn leave(process: u32, more: u64) -> Self {
        let most = Self::open(process).into_iter().max().unwrap_or(0) + 1 + more;
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        prlimit(pid, Resource::Nofile, limit).expect("a limit");
        Self { process, most }
    }

    /// Whether it has all of them: from then on nothing is accepted.
    pub fn are_used_up(&self) -> bool {
        Self::open(self.process).len() as u64 >= self.most
    }
}

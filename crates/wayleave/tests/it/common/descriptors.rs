//! A process without a free descriptor, from outside.

use std::fs;
use std::process::Command;

use super::eventually;

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

    /// Leaves the process so many descriptors besides those that it has.
    pub fn leave(process: u32, more: u64) -> Self {
        let most = Self::open(process).len() as u64 + more;
        let limit = [format!("--pid={process}"), format!("--nofile={most}:{most}")];
        let mut command = Command::new("prlimit");
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
        let of_process = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("an owner");
            line.split_whitespace().next().expect("an owner").to_owned()
        };
        let (user, group) = (of_process("Uid:"), of_process("Gid:"));
        if user != rustix::process::getuid().as_raw().to_string() {
            // Who has not CAP_SYS_RESOURCE limits processes of the same user only.
            command = Command::new("setpriv");
            command.args([format!("--reuid={user}"), format!("--regid={group}")]).args(["--clear-groups", "prlimit"]);
        }
        let output = command.args(limit).output().expect("prlimit runs");
        assert!(output.status.success(), "{}", super::text(&output.stderr));
        Self { process, most }
    }

    /// Connects until the process has all of them: from then on nothing is accepted. Numbers above the limit that it had before stay.
    pub fn use_up<T>(&self, mut connect: impl FnMut() -> T) -> Vec<T> {
        let mut all = Vec::new();
        eventually("there is no descriptor left", || {
            all.push(connect());
            let below = Self::open(self.process).into_iter().filter(|number| *number < self.most);
            below.count() as u64 == self.most
        });
        all
    }
}

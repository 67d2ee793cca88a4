//! What Prometheus expects of every process: which build it is, and what it takes of its machine.
//!
//! The names are those of Prometheus' client libraries, so that dashboards for any process show ours too.

use std::fmt::Write;
use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};

/// Which program a process runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Build {
    pub version: &'static str,
    /// As `git describe` has it, or `unknown`.
    pub commit: &'static str,
}

/// How exactly a process says what it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Detail {
    /// As the kernel has it.
    #[default]
    Exact,
    /// Whole seconds and MiB: for pages that people read who are to learn nothing from small differences.
    Coarse,
}

/// What a process takes of its machine. What the kernel does not tell is `None`, and not on the page.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Taken {
    cpu_seconds: Option<f64>,
    start_time_seconds: Option<f64>,
    resident_octets: Option<u64>,
    virtual_octets: Option<u64>,
    threads: Option<u64>,
    open_files: Option<u64>,
    most_files: Option<u64>,
}

impl Taken {
    /// That of this process.
    fn now() -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let mut taken = Self::of_stat(&read("self/stat"), clock_ticks_per_second(), page_size() as u64);
        // The kernel has the start since the boot, and the boot since 1970.
        let boot = read("stat").lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        taken.start_time_seconds = taken.start_time_seconds.zip(boot).map(|(start, boot)| start + boot);
        // The folder that is read is open itself.
        taken.open_files = fs::read_dir("/proc/self/fd").ok().map(|files| (files.count() as u64).saturating_sub(1));
        taken.most_files = most_files(&read("self/limits"));
        taken
    }

    /// From `/proc/PID/stat` (proc_pid_stat(5)); the start is in seconds since the boot.
    fn of_stat(stat: &str, ticks: u64, page: u64) -> Self {
        // A program's name may hold anything, and stands in the last brackets.
        let Some((_, rest)) = stat.rsplit_once(')') else { return Self::default() };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Fields are counted from 1, and the first of these is the third.
        let of = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        let secs = |count: u64| count as f64 / ticks.max(1) as f64;
        Self {
            cpu_seconds: of(14).zip(of(15)).map(|(user, system)| secs(user.saturating_add(system))),
            start_time_seconds: of(22).map(secs),
            resident_octets: of(24).map(|pages| pages.saturating_mul(page)),
            virtual_octets: of(23),
            threads: of(20),
            ..Self::default()
        }
    }

    fn coarse(self) -> Self {
        let mib = |octets: u64| octets >> 20 << 20;
        Self {
            cpu_seconds: self.cpu_seconds.map(f64::floor),
            start_time_seconds: self.start_time_seconds.map(f64::floor),
            resident_octets: self.resident_octets.map(mib),
            virtual_octets: self.virtual_octets.map(mib),
            ..self
        }
    }

    fn text(&self) -> String {
        let count = |count: Option<u64>| count.map(|count| count as f64);
        let rows = [
            ("cpu_seconds", "counter", "seconds", "User and system CPU time", self.cpu_seconds),
            ("start_time_seconds", "gauge", "seconds", "Start of the process, since 1970", self.start_time_seconds),
            ("resident_memory_bytes", "gauge", "bytes", "Resident memory", count(self.resident_octets)),
            ("virtual_memory_bytes", "gauge", "bytes", "Virtual memory", count(self.virtual_octets)),
            ("threads", "gauge", "", "Threads", count(self.threads)),
            ("open_fds", "gauge", "", "Open file descriptors", count(self.open_files)),
            ("max_fds", "gauge", "", "Open file descriptors at most", count(self.most_files)),
        ];
        let mut text = String::new();
        for (name, kind, unit, help, value) in rows {
            let Some(value) = value else { continue };
            let _ = writeln!(text, "# HELP process_{name} {help}.\n# TYPE process_{name} {kind}");
            if !unit.is_empty() {
                let _ = writeln!(text, "# UNIT process_{name} {unit}");
            }
            let total = if kind == "counter" { "_total" } else { "" };
            let _ = writeln!(text, "process_{name}{total} {value}");
        }
        text
    }
}

/// The soft limit of open files in `/proc/PID/limits`; none where there is no limit.
fn most_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The lines of a page, in the text form of OpenMetrics and without its end.
pub(crate) fn lines(build: Build, detail: Detail) -> String {
    let taken = Taken::now();
    let taken = if detail == Detail::Coarse { taken.coarse() } else { taken };
    let Build { version, commit } = build;
    format!(
        "# HELP wayleave_build Which program runs.\n# TYPE wayleave_build info\n\
         wayleave_build_info{{version=\"{version}\",commit=\"{commit}\"}} 1\n{}",
        taken.text()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process whose name has what ends a name.
    const STAT: &str =
        "4711 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 6000 1234567890 300 18446744073709551615 1 1";

    #[test]
    fn what_the_kernel_says_of_a_process_is_read_behind_its_name() {
        let taken = Taken::of_stat(STAT, 100, 4096);
        assert_eq!((taken.cpu_seconds, taken.start_time_seconds), (Some(2.0), Some(60.0)));
        assert_eq!((taken.resident_octets, taken.virtual_octets), (Some(300 * 4096), Some(1_234_567_890)));
        assert_eq!(taken.threads, Some(9));
        for none in ["", "4711", "4711 (a", "4711 (a) S x"] {
            assert_eq!(Taken::of_stat(none, 100, 4096), Taken::default(), "{none}");
        }
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024      524288      files\n";
        assert_eq!(most_files(limits), Some(1024));
        assert_eq!(most_files("Max open files  unlimited  unlimited  files\n"), None);
    }

    #[test]
    fn coarse_figures_are_whole_seconds_and_mib() {
        let exact = Taken {
            cpu_seconds: Some(2.99),
            resident_octets: Some((3 << 20) + 17),
            open_files: Some(7),
            ..Taken::default()
        };
        let coarse = exact.coarse();
        assert_eq!((coarse.cpu_seconds, coarse.resident_octets), (Some(2.0), Some(3 << 20)));
        assert_eq!(coarse.open_files, Some(7));
    }

    #[test]
    fn this_process_says_what_it_takes_by_the_names_of_prometheus() {
        let page = lines(Build { version: "1.2.3", commit: "abc" }, Detail::Exact);
        assert!(page.contains("\nwayleave_build_info{version=\"1.2.3\",commit=\"abc\"} 1\n"), "{page}");
        let names = ["cpu_seconds_total", "start_time_seconds", "resident_memory_bytes", "virtual_memory_bytes"];
        for name in names.into_iter().chain(["threads", "open_fds", "max_fds"]) {
            let value = page.lines().find_map(|line| line.strip_prefix(&format!("process_{name} "))).expect(name);
            let least = if name == "cpu_seconds_total" { 0.0 } else { 1.0 };
            assert!(value.parse::<f64>().expect("a number") >= least, "{name} {value}");
        }
    }
}

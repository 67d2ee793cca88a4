//! Plays a page that goes from machine to machine: what its `text` fences say is done, on machines in namespaces of their own.
//!
//! A line `MACHINE$ COMMAND` runs there, without a name on the only machine (with ` &` at its end it goes on running, and `%1` is the first of these). `FILE: FROM -> TO` brings a file to another
//! machine, by the same name unless `TO` has another. A line that is neither is what the command above printed (of a command that fails, after `×`): times and measured numbers differ, and a key that
//! the page abbreviates (`claim:43ac...`) stands for the printed one from there on. A fence whose first line is neither is a piece of a file: the test says what
//! becomes of it.
//!
//! OPS, guides by goal: the first ten minutes, two organisations, two gateways, an attested session, sold transit, two key servers: each
//! page done line by line, on machines in namespaces, with BIRD and FRR: each command succeeds and prints what the page
//! has; routes, pages and bills arrive.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::process::{Daemon, wait_until};

use super::{Shell, snippets};

const TIMEOUT: Duration = Duration::from_secs(60);

struct Machine {
    shell: Shell,
    place: NetworkNamespace,
    jobs: Vec<Daemon>,
    /// What was said of all later commands: `umask`.
    before: String,
}

/// The machines of a page.
pub(super) struct Play {
    page: &'static str,
    machines: BTreeMap<String, Machine>,
    /// What the page has in the place of values that differ each time, and those values.
    instead: Vec<(String, String)>,
}

/// A line of a fence.
enum Line<'a> {
    Command(&'a str, &'a str),
    Copy { file: &'a str, from: &'a str, to: Vec<&'a str> },
    Printed(&'a str),
}

fn read(line: &str) -> Line<'_> {
    let is_machine = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
    if let Some((machine, command)) = line.split_once("$ ").filter(|(machine, _)| is_machine(machine)) {
        return Line::Command(machine, command.split(" #").next().unwrap_or_default().trim());
    }
    let copied = line.split_once(": ").and_then(|(file, way)| Some((file, way.split_once(" -> ")?)));
    match copied {
        Some((file, (from, to))) => Line::Copy { file, from, to: to.split(' ').collect() },
        None => Line::Printed(line),
    }
}

impl Play {
    /// `machines` by their names on the page.
    pub(super) fn new(page: &'static str, machines: &[(&str, &NetworkNamespace)]) -> Self {
        let machine = |(name, place): &(&str, &NetworkNamespace)| {
            let shell = Shell::new(&format!("guide-{}-{name}", page.trim_end_matches(".md")));
            ((*name).to_owned(), Machine { shell, place: (*place).clone(), jobs: Vec::new(), before: String::new() })
        };
        Self { page, machines: machines.iter().map(machine).collect(), instead: Vec::new() }
    }

    /// From now on the page's `word` is `value`.
    pub(super) fn put(&mut self, word: &str, value: &str) {
        self.instead.push((word.to_owned(), value.to_owned()));
    }

    /// Commands of a machine come behind this one from now on.
    pub(super) fn first(&mut self, machine: &str, command: &str) {
        self.machines.get_mut(machine).expect("a machine").before = format!("{command}; ");
    }

    pub(super) fn folder(&self, machine: &str) -> PathBuf {
        self.machines[machine].shell.folder.0.clone()
    }

    /// What a command of the test's own prints on a machine.
    pub(super) fn ask(&self, machine: &str, command: &str) -> String {
        let Machine { shell, place, before, .. } = &self.machines[machine];
        place.within(|| shell.run(&format!("{before}{command}"))).expect("the namespace")
    }

    /// A machine's file as it is.
    pub(super) fn file(&self, machine: &str, name: &str) -> String {
        fs::read_to_string(self.machines[machine].shell.folder.0.join(name)).expect("a file")
    }

    pub(super) fn write(&self, machine: &str, name: &str, text: &str) {
        self.machines[machine].shell.folder.write(name, text);
    }

    /// The page's text with this run's values.
    pub(super) fn filled(&self, text: &str) -> String {
        self.instead.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
    }

    /// What all machines' processes printed last.
    pub(super) fn logs(&self) -> String {
        let of = |(name, machine): (&String, &Machine)| {
            machine.jobs.iter().map(|job| format!("--- {name}\n{}\n", job.log_tail(12))).collect::<String>()
        };
        self.machines.iter().map(of).collect()
    }

    /// Plays the fences one after the other. `between` is called before each; it returns whether it has done itself what the fence says.
    pub(super) fn run(&mut self, mut between: impl FnMut(&mut Self, &str) -> bool) {
        for fence in snippets(self.page, "text") {
            if between(self, &fence) {
                continue;
            }
            let lines: Vec<&str> = fence.lines().filter(|line| !line.trim().is_empty()).collect();
            for (at, line) in lines.iter().enumerate() {
                let printed = lines[at + 1..].iter().map_while(|line| match read(line) {
                    Line::Printed(text) => Some(text),
                    _ => None,
                });
                match read(line) {
                    Line::Command(machine, command) => self.command(machine, command, &printed.collect::<Vec<_>>()),
                    Line::Copy { file, from, to } => {
                        let into = to.get(1).copied().unwrap_or(file);
                        let path = |machine: &str, file: &str| self.machines[machine].shell.folder.0.join(file);
                        let mut copy = Command::new("cp");
                        copy.args(["-rT", "--preserve=mode"]).args([path(from, file), path(to[0], into)]);
                        assert!(copy.status().is_ok_and(|status| status.success()), "{}: {line}", self.page);
                    }
                    Line::Printed(text) => assert!(at > 0, "{}: who prints `{text}`?", self.page),
                }
            }
        }
    }

    fn command(&mut self, machine: &str, command: &str, expected: &[&str]) {
        let (page, command) = (self.page, self.filled(command));
        let expected: Vec<String> = expected.iter().map(|line| self.filled(line)).collect();
        let known = self.machines.get_mut(machine).unwrap_or_else(|| panic!("{page}: no machine `{machine}`"));
        if command.starts_with("umask ") {
            return self.first(machine, &command);
        }
        if let Some(command) = command.strip_suffix(" &") {
            let log = known.shell.folder.0.join(format!("job{}.log", known.jobs.len() + 1));
            let mut bash = known.place.command("bash");
            bash.args(["-c", &format!("{}exec {command}", known.before)]).current_dir(&known.shell.folder.0);
            bash.env("PATH", &known.shell.path).env("NO_COLOR", "1");
            return known.jobs.push(Daemon::start(&mut bash, &log).expect("started"));
        }
        let jobs = known.jobs.iter().enumerate();
        let command =
            jobs.fold(command, |text, (at, job)| text.replace(&format!("%{}", at + 1), &job.id().to_string()));
        // Whoever reads the page types more slowly than a test: these ask until what was started is there. All others run once.
        let asks = [
            "wayleave show ",
            "wayleave why ",
            "wayleave realm invite ",
            "wayleave ping ",
            "wayleave members show ",
            "wayleave join ",
            "wayleave cap usage ",
            "wayleave stamp ",
            "curl ",
            "wayleave-lab exec a ",
            "wayleave-lab status",
        ];
        let is_asking = asks.iter().any(|start| command.starts_with(start));
        let try_once = || {
            let output = known
                .place
                .within(|| known.shell.attempt(&format!("{}{command}", known.before)))
                .expect("the namespace");
            // The page shows a command's failure, too.
            let fails = expected.iter().any(|line| line.trim_start().starts_with('×'));
            let output = match (fails, output) {
                (true, Ok(said)) => Err(format!("did not fail: {said}")),
                (true, Err(said)) => Ok(said),
                (false, output) => output,
            };
            match output {
                Ok(said) => {
                    let learnt: Option<Vec<_>> = expected.iter().map(|line| says(&said, line)).collect();
                    learnt.ok_or_else(|| format!("printed\n{said}\nand not\n{}", expected.join("\n")))
                }
                Err(failure) => Err(failure),
            }
        };
        let mut last = try_once();
        if is_asking && last.is_err() {
            wait_until(TIMEOUT, || {
                last = try_once();
                last.is_ok().then_some(())
            });
        }
        match last {
            Ok(learnt) => self.instead.extend(learnt.into_iter().flatten()),
            Err(failure) => panic!("{page}: {machine}$ {command}\n{failure}\n{}", self.logs()),
        }
    }
}

/// Whether a program said what the page has, word by word. What the page abbreviates by `...` is learnt: the word and its value.
fn says(said: &str, expected: &str) -> Option<Vec<(String, String)>> {
    said.lines().find_map(|line| {
        let (page, printed): (Vec<&str>, Vec<&str>) =
            (expected.split_whitespace().collect(), line.split_whitespace().collect());
        let mut learnt = Vec::new();
        let is_same = |(page, printed): (&&str, &&str)| match page.strip_suffix("...") {
            Some("") => true,
            Some(start) => {
                learnt.push(((*page).to_owned(), (*printed).to_owned()));
                // Of a key, its kind is given.
                start.rsplit_once(':').is_some_and(|(kind, _)| printed.starts_with(&format!("{kind}:")))
            }
            None => page == printed || [is_time, is_number, is_key_id].iter().any(|kind| kind(page) && kind(printed)),
        };
        let is_said = page.len() == printed.len() && page.iter().zip(&printed).all(is_same);
        is_said.then_some(learnt)
    })
}

/// A time as ISO 8601 has it, with what punctuation follows.
fn is_time(word: &str) -> bool {
    word.len() >= 20 && word.as_bytes()[10] == b'T' && word.trim_end_matches([':', ',']).ends_with('Z')
}

/// A number that is not zero: what is counted and measured differs.
fn is_number(word: &str) -> bool {
    word.trim_end_matches(',').parse::<f64>().is_ok_and(|number| number > 0.0)
}

/// The first half of a key, with what punctuation follows.
fn is_key_id(word: &str) -> bool {
    let word = word.trim_end_matches(':');
    word.len() == 16 && word.bytes().all(|octet| octet.is_ascii_hexdigit())
}

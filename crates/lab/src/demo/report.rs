//! The demonstration's output: text for people, one JSON object per step for programs.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde::Serialize;

/// How a fact begins that says why a step was not played here.
pub const SKIPPED: &str = "skipped: ";

/// One step, as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct StepRecord {
    /// Version of this object: 1.
    pub version: u8,
    pub step: usize,
    pub name: String,
    pub ok: bool,
    /// Whether it could not be played here; a fact says why.
    pub skipped: bool,
    pub seconds: f64,
    pub facts: Vec<String>,
}

/// The end, as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Version of this object: 1.
    pub version: u32,
    /// Which rung was played.
    pub rung: String,
    pub passed: usize,
    /// Steps that could not be played here, which are not among those that passed.
    pub skipped: usize,
    /// Steps that failed or were not reached.
    pub failed: usize,
    pub seconds: f64,
}

/// Writes the steps as they come.
#[derive(Debug)]
pub struct Report {
    json: bool,
    colour: bool,
    started: Instant,
    steps: Vec<StepRecord>,
    planned: usize,
}

impl Report {
    /// A report of `planned` steps. With `json`, objects go to the standard output and text to the standard error.
    #[must_use]
    pub fn new(json: bool, planned: usize) -> Self {
        let terminal = if json { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let colour = terminal && std::env::var_os("NO_COLOR").is_none();
        Self { json, colour, started: Instant::now(), steps: Vec::new(), planned }
    }

    /// Prints a line of text.
    pub fn print_line(&self, line: &str) {
        // A closed pipe must not end the demonstration with its processes running.
        let _ = if self.json { writeln!(io::stderr(), "{line}") } else { writeln!(io::stdout(), "{line}") };
    }

    fn coloured(&self, text: &str, code: u8) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Runs one step and prints its facts; an error is printed as the reason why it failed. Returns whether it passed.
    pub fn step(&mut self, name: &str, run: impl FnOnce(&mut Vec<String>) -> Result<(), String>) -> bool {
        let begin = Instant::now();
        let number = self.steps.len() + 1;
        self.print_line(&format!("\n[{number}/{}] {name} ...", self.planned));
        let mut facts = Vec::new();
        let outcome = run(&mut facts);
        let ok = outcome.is_ok();
        let skipped = ok && facts.iter().any(|fact: &String| fact.starts_with(SKIPPED));
        facts.extend(outcome.err());
        let record = StepRecord {
            version: 1,
            step: number,
            name: name.to_owned(),
            ok,
            skipped,
            seconds: seconds(begin.elapsed()),
            facts,
        };
        self.print(&record);
        self.steps.push(record);
        ok
    }

    fn print(&self, record: &StepRecord) {
        let mark = match (record.ok, record.skipped) {
            (true, false) => self.coloured("✓", 32),
            (true, true) => self.coloured("- skipped:", 33),
            (false, _) => self.coloured("✗ failed:", 31),
        };
        for fact in &record.facts {
            self.print_line(&format!("    {}", fact.replace('\n', "\n    ")));
        }
        self.print_line(&format!("  {mark} {} ({:.1} s)", record.name, record.seconds));
        self.object(record);
    }

    fn object(&self, value: &impl Serialize) {
        if self.json {
            let line = serde_json::to_string(value).unwrap_or_default();
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// Prints the summary; true if every planned step passed.
    #[must_use]
    pub fn finish(&self, rung: &str) -> bool {
        let passed = self.steps.iter().filter(|step| step.ok && !step.skipped).count();
        let skipped = self.steps.iter().filter(|step| step.skipped).count();
        let failed = self.planned - passed - skipped;
        let time = self.started.elapsed();
        let not_played = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        self.print_line(&format!(
            "\n{passed} of {} steps passed{not_played}, rung {rung}, {:.1} s",
            self.planned,
            seconds(time)
        ));
        for step in &self.steps {
            let mark = match (step.ok, step.skipped) {
                (true, false) => self.coloured("✓", 32),
                (true, true) => self.coloured("-", 33),
                (false, _) => self.coloured("✗", 31),
            };
            self.print_line(&format!("  {mark} {:5.1} s  {}", step.seconds, step.name));
        }
        let rung = rung.to_owned();
        self.object(&Summary { version: 1, rung, passed, skipped, failed, seconds: seconds(time) });
        failed == 0
    }
}

/// Seconds, to the millisecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

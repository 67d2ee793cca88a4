//! What the demonstration says: a tick a step for people, an object a step for programs.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde::Serialize;

/// One step as a program reads it.
#[derive(Debug, Clone, Serialize)]
pub struct StepRecord {
    /// Of this form: 1.
    pub version: u8,
    /// Its number, from 1.
    pub step: usize,
    /// What it shows.
    pub name: String,
    /// Whether it held.
    pub ok: bool,
    /// Seconds it took.
    pub seconds: f64,
    /// What was seen, or why it did not hold.
    pub facts: Vec<String>,
}

/// The end as a program reads it.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Version of these objects.
    pub version: u32,
    /// Which rung was played.
    pub rung: String,
    /// Steps that held.
    pub passed: usize,
    /// Steps that did not, or were not reached.
    pub failed: usize,
    /// Seconds from start to end.
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
    /// A report of `planned` steps. With `json`, objects go to the standard output and words to the standard error.
    #[must_use]
    pub fn new(json: bool, planned: usize) -> Self {
        let terminal = if json { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let colour = terminal && std::env::var_os("NO_COLOR").is_none();
        Self { json, colour, started: Instant::now(), steps: Vec::new(), planned }
    }

    /// A line for people.
    pub fn say(&self, line: &str) {
        // A closed pipe must not end the processes that are under way.
        let _ = if self.json { writeln!(io::stderr(), "{line}") } else { writeln!(io::stdout(), "{line}") };
    }

    fn coloured(&self, text: &str, code: u8) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Plays one step. Its facts are printed below its tick; an error is the reason why it does not hold. Returns whether
    /// it held.
    pub fn step(&mut self, name: &str, play: impl FnOnce(&mut Vec<String>) -> Result<(), String>) -> bool {
        let begin = Instant::now();
        let number = self.steps.len() + 1;
        self.say(&format!("\n[{number}/{}] {name} ...", self.planned));
        let mut facts = Vec::new();
        let outcome = play(&mut facts);
        let ok = outcome.is_ok();
        facts.extend(outcome.err());
        let record = StepRecord {
            version: 1,
            step: number,
            name: name.to_owned(),
            ok,
            seconds: seconds(begin.elapsed()),
            facts,
        };
        self.print(&record);
        self.steps.push(record);
        ok
    }

    fn print(&self, record: &StepRecord) {
        let mark = if record.ok { self.coloured("✓", 32) } else { self.coloured("✗ does not hold:", 31) };
        for fact in &record.facts {
            self.say(&format!("    {}", fact.replace('\n', "\n    ")));
        }
        self.say(&format!("  {mark} {} ({:.1} s)", record.name, record.seconds));
        self.object(record);
    }

    fn object(&self, value: &impl Serialize) {
        if self.json {
            let line = serde_json::to_string(value).unwrap_or_default();
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// Prints the summary; true if every planned step was played and held.
    #[must_use]
    pub fn finish(&self, rung: &str) -> bool {
        let passed = self.steps.iter().filter(|step| step.ok).count();
        let failed = self.planned - passed;
        let time = self.started.elapsed();
        self.say(&format!("\n{passed} of {} steps hold, on the {rung} rung, in {:.1} s", self.planned, seconds(time)));
        for step in &self.steps {
            let mark = if step.ok { self.coloured("✓", 32) } else { self.coloured("✗", 31) };
            self.say(&format!("  {mark} {:5.1} s  {}", step.seconds, step.name));
        }
        let rung = rung.to_owned();
        self.object(&Summary { version: 1, rung, passed, failed, seconds: seconds(time) });
        failed == 0
    }
}

/// Seconds, to the millisecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

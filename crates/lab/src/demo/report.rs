//! The demonstration's output: text for people, one JSON object per step for programs.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde::Serialize;

/// How a fact begins that says why a step was not played here.
pub const SKIPPED: &str = "skipped: ";

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Played, and everything held.
    Ok,
    Failed,
    /// It belongs to this rung and could not be played; a fact says why.
    Skipped,
    /// Nothing that it shows exists on this rung.
    NotOfThisRung,
}

/// One step, as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct StepRecord {
    /// Version of this object: 2.
    pub version: u8,
    pub step: usize,
    pub name: String,
    pub status: Status,
    pub seconds: f64,
    pub facts: Vec<String>,
}

/// The end, as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Version of this object: 2.
    pub version: u32,
    /// Which rung was played.
    pub rung: String,
    pub passed: usize,
    /// Steps of this rung that could not be played.
    pub skipped: usize,
    /// Steps that this rung does not have.
    pub not_of_this_rung: usize,
    /// Steps that failed or were not reached.
    pub failed: usize,
    /// What was not shown, and why; empty if every step was.
    pub not_shown: Vec<String>,
    pub seconds: f64,
}

/// Writes the steps as they come.
#[derive(Debug)]
pub struct Report {
    json: bool,
    colour: bool,
    started: Instant,
    steps: Vec<StepRecord>,
    /// The names of all steps.
    planned: Vec<&'static str>,
}

impl Report {
    /// A report of all `planned` steps. With `json`, objects go to the standard output and text to the standard error.
    #[must_use]
    pub fn new(json: bool, planned: Vec<&'static str>) -> Self {
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

    /// Runs the next step and prints its facts; an error is printed as the reason why it failed.
    pub fn step(&mut self, run: impl FnOnce(&mut Vec<String>) -> Result<(), String>) -> Status {
        let begin = Instant::now();
        self.print_line(&format!("\n[{}/{}] {} ...", self.steps.len() + 1, self.planned.len(), self.next()));
        let mut facts = Vec::new();
        let outcome = run(&mut facts);
        let is_skipped = facts.iter().any(|fact| fact.starts_with(SKIPPED));
        let status = match outcome {
            Err(_) => Status::Failed,
            Ok(()) if is_skipped => Status::Skipped,
            Ok(()) => Status::Ok,
        };
        facts.extend(outcome.err());
        self.record(status, begin.elapsed(), facts)
    }

    /// Leaves the next step out, which this rung does not have.
    pub fn leave_out(&mut self, rung: &str) {
        let fact = format!("rung {rung} does not have this step");
        self.record(Status::NotOfThisRung, Duration::ZERO, vec![fact]);
    }

    /// The name of the next step.
    fn next(&self) -> &'static str {
        self.planned.get(self.steps.len()).copied().unwrap_or_default()
    }

    fn record(&mut self, status: Status, time: Duration, facts: Vec<String>) -> Status {
        let (step, name) = (self.steps.len() + 1, self.next().to_owned());
        let record = StepRecord { version: 2, step, name, status, seconds: seconds(time), facts };
        self.print(&record);
        self.steps.push(record);
        status
    }

    fn print(&self, record: &StepRecord) {
        if record.status != Status::NotOfThisRung {
            for fact in &record.facts {
                self.print_line(&format!("    {}", fact.replace('\n', "\n    ")));
            }
            self.print_line(&format!("  {} {} ({:.1} s)", self.mark(record.status), record.name, record.seconds));
        }
        self.object(record);
    }

    fn mark(&self, status: Status) -> String {
        match status {
            Status::Ok => self.coloured("✓", 32),
            Status::Skipped => self.coloured("- skipped:", 33),
            Status::NotOfThisRung => "- not of this rung:".to_owned(),
            Status::Failed => self.coloured("✗ failed:", 31),
        }
    }

    fn object(&self, value: &impl Serialize) {
        if self.json {
            let line = serde_json::to_string(value).unwrap_or_default();
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    fn count(&self, status: Status) -> usize {
        self.steps.iter().filter(|step| step.status == status).count()
    }

    /// Prints the summary, last of all what was not shown. True if every step held that this rung has; without `strict` steps
    /// may have been skipped.
    #[must_use]
    pub fn finish(&self, rung: &str, strict: bool) -> bool {
        let time = self.started.elapsed();
        self.print_line("");
        for step in &self.steps {
            self.print_line(&format!("  {:5.1} s  {} {}", step.seconds, self.mark(step.status), step.name));
        }
        let summary = self.summary(rung, time);
        self.print_line(&last_line(&summary, self.planned.len()));
        self.object(&summary);
        summary.failed == 0 && (summary.skipped == 0 || !strict)
    }

    fn summary(&self, rung: &str, time: Duration) -> Summary {
        let [passed, skipped, not_of_this_rung] =
            [Status::Ok, Status::Skipped, Status::NotOfThisRung].map(|status| self.count(status));
        Summary {
            version: 2,
            rung: rung.to_owned(),
            passed,
            skipped,
            not_of_this_rung,
            failed: self.planned.len() - passed - skipped - not_of_this_rung,
            not_shown: self.not_shown(rung),
            seconds: seconds(time),
        }
    }

    /// Each step that was not shown, with the reason.
    fn not_shown(&self, rung: &str) -> Vec<String> {
        let of = |record: &StepRecord| {
            let why = match record.status {
                Status::Ok => return None,
                Status::Failed => "failed".to_owned(),
                Status::NotOfThisRung => format!("not of rung {rung}"),
                Status::Skipped => {
                    record.facts.iter().find(|fact| fact.starts_with(SKIPPED)).cloned().unwrap_or_default()
                }
            };
            Some(format!("{} ({why})", record.name))
        };
        let not_reached = self.planned.iter().skip(self.steps.len()).map(|name| format!("{name} (not reached)"));
        self.steps.iter().filter_map(of).chain(not_reached).collect()
    }
}

/// `20 of 22 steps held on rung root, 45.8 s; NOT shown: ...`.
fn last_line(summary: &Summary, planned: usize) -> String {
    let Summary { passed, rung, seconds, not_shown, .. } = summary;
    let held = format!("{passed} of {planned} steps held on rung {rung}, {seconds:.1} s");
    if not_shown.is_empty() {
        return held + "; nothing was left out";
    }
    format!("{held}; NOT shown: {}", not_shown.join("; "))
}

/// Seconds, to the millisecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[Result<&str, &str>]) -> Report {
        let mut report = Report::new(true, vec!["first", "second", "third"]);
        for outcome in outcomes {
            match outcome {
                Ok("left out") => report.leave_out("simulated"),
                Ok(fact) => {
                    let play = |facts: &mut Vec<String>| {
                        facts.push((*fact).to_owned());
                        Ok(())
                    };
                    report.step(play);
                }
                Err(reason) => {
                    report.step(|_| Err((*reason).to_owned()));
                }
            }
        }
        report
    }

    fn last(report: &Report) -> String {
        last_line(&report.summary("simulated", Duration::from_secs(2)), report.planned.len())
    }

    #[test]
    fn a_skipped_step_is_not_ok() {
        let report = report(&[Ok("played"), Ok("skipped: there is no sshd"), Ok("played")]);
        assert_eq!(
            report.steps.iter().map(|step| step.status).collect::<Vec<_>>(),
            [Status::Ok, Status::Skipped, Status::Ok]
        );
        assert!(!report.finish("simulated", true), "strictly, it fails");
        assert!(report.finish("simulated", false));
        assert_eq!(
            last(&report),
            "2 of 3 steps held on rung simulated, 2.0 s; NOT shown: second (skipped: there is no sshd)"
        );
    }

    #[test]
    fn a_step_that_the_rung_does_not_have_is_named_and_no_failure() {
        let report = report(&[Ok("played"), Ok("left out"), Ok("played")]);
        assert!(report.finish("simulated", true));
        assert_eq!(
            last(&report),
            "2 of 3 steps held on rung simulated, 2.0 s; NOT shown: second (not of rung simulated)"
        );
        let json = serde_json::to_value(&report.steps[1]).expect("JSON");
        assert_eq!(json["status"], "not-of-this-rung");
    }

    #[test]
    fn what_was_not_reached_is_named_and_counts_as_failed() {
        let report = report(&[Ok("played"), Err("a table differs")]);
        assert!(!report.finish("simulated", false));
        let summary = report.summary("simulated", Duration::ZERO);
        assert_eq!((summary.passed, summary.failed), (1, 2));
        assert_eq!(summary.not_shown, ["second (failed)", "third (not reached)"]);
    }

    #[test]
    fn all_that_held_leaves_nothing_out() {
        let report = report(&[Ok("played"); 3]);
        assert!(report.finish("simulated", true));
        assert_eq!(last(&report), "3 of 3 steps held on rung simulated, 2.0 s; nothing was left out");
    }
}

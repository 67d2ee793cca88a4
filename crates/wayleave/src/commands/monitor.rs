//! `monitor`: what happens at a role, as it happens.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::show;
use crate::failure::{Failures, Outcome};
use crate::fetch::{self, Target};
use crate::output::{print, warn};

/// How long between two questions: what a person calls at once.
const BETWEEN: Duration = Duration::from_millis(250);
/// How long a role may take to say what is new.
const ASKED: fetch::Limits = fetch::Limits::within(Duration::from_secs(10));

#[derive(Args, Debug)]
pub struct Monitor {
    #[command(flatten)]
    pub target: Target,
    /// Begin with so many of the events that were before.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub last: usize,
    /// Only events of this kind, as `show events` names it; may be repeated.
    #[arg(long, value_name = "KIND")]
    pub only: Vec<String>,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// Where the reading of a role's events stands.
#[derive(PartialEq, Eq, Debug)]
struct Position {
    /// Which process they are of.
    run: String,
    number: u64,
}

impl Position {
    /// The events of an answer that have not been read.
    fn take<'a>(&mut self, answer: &'a Value) -> Vec<&'a Value> {
        let run = answer["run"].as_str().unwrap_or_default();
        if self.run != run {
            // A role that was started again counts from one.
            *self = Self { run: run.to_owned(), number: 0 };
        }
        let number = |event: &Value| event["number"].as_u64().unwrap_or(0);
        let events = answer["events"].as_array().map_or(&[][..], Vec::as_slice);
        let new: Vec<&Value> = events.iter().filter(|event| number(event) > self.number).collect();
        self.number = new.iter().map(|event| number(event)).fold(self.number, u64::max);
        new
    }
}

/// Prints what happens until the reader goes away or the process is ended. A role that stops is waited for.
pub fn run(command: &Monitor) -> Outcome {
    let first = fetch::json_within(&command.target, "/api/v1/events", ASKED)?;
    let mut position = Position { run: String::new(), number: 0 };
    let before = position.take(&first);
    tell(command, &before[before.len().saturating_sub(command.last)..]);
    let mut answers = true;
    loop {
        std::thread::sleep(BETWEEN);
        let path = format!("/api/v1/events?after={}", position.number);
        match fetch::json_within(&command.target, &path, ASKED) {
            Ok(answer) => {
                if !answers {
                    warn("the role answers again");
                }
                answers = true;
                tell(command, &position.take(&answer));
            }
            Err(Failures(why)) => {
                if answers {
                    let why = why.first().map_or_else(String::new, |failure| format!(": {}", failure.in_one_line()));
                    warn(&format!("the role does not answer, and is asked again{why}"));
                }
                answers = false;
            }
        }
    }
}

fn tell(command: &Monitor, events: &[&Value]) {
    let is_asked_for = |event: &&&Value| {
        command.only.is_empty() || command.only.iter().any(|kind| event["what"]["event"] == kind.as_str())
    };
    for event in events.iter().filter(is_asked_for) {
        print(&if command.json { format!("{event}\n") } else { show::event(event) });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(run: &str, numbers: &[u64]) -> Value {
        let events: Vec<Value> = numbers.iter().map(|number| json!({ "number": number })).collect();
        json!({ "run": run, "events": events })
    }

    #[test]
    fn each_event_is_taken_once_also_of_a_role_that_was_started_again() {
        let mut position = Position { run: String::new(), number: 0 };
        let mut taken = |run: &str, numbers: &[u64]| position.take(&answer(run, numbers)).len();
        assert_eq!(taken("a", &[1, 2, 3]), 3);
        assert_eq!(taken("a", &[]), 0);
        assert_eq!(taken("a", &[3, 4]), 1);
        assert_eq!(taken("b", &[1]), 1);
        assert_eq!(taken("b", &[1, 2]), 1);
    }

    #[test]
    fn what_is_no_list_of_events_is_none() {
        let mut position = Position { run: String::new(), number: 0 };
        for wrong in [json!(null), json!([]), json!({ "events": "x" }), json!({ "events": [null, 7, {}] })] {
            assert!(position.take(&wrong).is_empty(), "{wrong}");
        }
    }
}

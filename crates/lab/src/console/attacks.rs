//! Attacks that a laboratory's console makes on the laboratory's own processes, each by a command that its user could give.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, TryLockError};

use serde_json::{Value, json};
use thiserror::Error;

/// Characters of what a command says that are shown.
const MAX_WORDS: usize = 400;

/// What can be done to a process.
struct Attack {
    name: &'static str,
    /// What is sent to it.
    signal: &'static str,
    /// As `wayleave-lab status` says how a process stands that it can be done to. One that is up answers, so that its number is its own;
    /// one that is silent may have ended meanwhile, which is no harm to whoever is told to go on.
    state: &'static str,
    does: &'static str,
}

const ALL: [Attack; 3] = [
    Attack { name: "pause", signal: "STOP", state: "up", does: "it says nothing more, as on a machine that hangs" },
    Attack { name: "resume", signal: "CONT", state: "silent", does: "it goes on after a pause" },
    Attack {
        name: "kill",
        signal: "KILL",
        state: "up",
        does: "it ends at once, as on a machine that loses power, until the laboratory is up anew",
    },
];

/// Why nothing was done.
#[derive(Debug, Error)]
pub enum NotMade {
    #[error("no attack and process of the list have these names")]
    Unknown,
    #[error("another attack is being made: wait until it is done")]
    Busy,
    #[error("{place} is not {expected}: it is {state}")]
    State { place: String, expected: &'static str, state: String },
    #[error("the laboratory's program cannot be started: {0}")]
    System(#[from] io::Error),
    #[error("{0}")]
    Failed(String),
}

/// The processes that can be attacked, and the program that enters their laboratory.
pub struct Attacks {
    places: Vec<String>,
    program: PathBuf,
    folder: PathBuf,
    /// One attack at a time.
    turn: Mutex<()>,
}

impl Attacks {
    /// On processes at these places of the laboratory that has this folder.
    #[must_use]
    pub fn new(places: Vec<String>, program: PathBuf, folder: PathBuf) -> Self {
        Self { places, program, folder, turn: Mutex::default() }
    }

    /// Makes an attack of the list on a process of the list, both by name.
    ///
    /// # Errors
    /// There is no such, the process stands otherwise, or a command fails.
    pub fn make(&self, attack: &str, place: &str) -> Result<(), NotMade> {
        // Only names out of the lists come to a command line.
        let attack = ALL.iter().find(|one| one.name == attack).ok_or(NotMade::Unknown)?;
        let place = self.places.iter().find(|one| *one == place).ok_or(NotMade::Unknown)?;
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(), // it guards nothing that could be half done
            Err(TryLockError::WouldBlock) => return Err(NotMade::Busy),
        };
        let status = self.run(&["status", "--json"], &[])?;
        let status: Value = serde_json::from_slice(&status.stdout)
            .map_err(|error| NotMade::Failed(format!("the laboratory's status cannot be read: {error}")))?;
        let number = number(&status, place, attack.state)?;
        self.run(&["exec"], &[place, "kill", &format!("-{}", attack.signal), &number.to_string()])?;
        Ok(())
    }

    /// Runs a command of the laboratory's program: its name and options, and what follows the laboratory's folder.
    fn run(&self, command: &[&str], rest: &[&str]) -> Result<Output, NotMade> {
        let mut line = Command::new(&self.program);
        line.args(command).arg("--dir").arg(&self.folder).args(rest).stdin(Stdio::null());
        let output = line.output()?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(NotMade::Failed(said.trim().chars().take(MAX_WORDS).collect()))
    }

    /// What the page shows: each attack on each process, with the command that does the same.
    #[must_use]
    pub fn document(&self) -> Value {
        let folder = self.folder.display();
        let on = |place: &String| {
            ALL.iter()
                .map(|Attack { name, signal, does, .. }| {
                    let command = format!("wayleave-lab exec --dir {folder} {place} kill -{signal} PID");
                    json!({ "attack": name, "place": place, "does": does, "command": command })
                })
                .collect::<Vec<_>>()
        };
        self.places.iter().flat_map(on).collect()
    }
}

/// The number of the process at a place, as seen inside, if it is as expected.
fn number(status: &Value, place: &str, expected: &'static str) -> Result<u64, NotMade> {
    let row = status["processes"].as_array().into_iter().flatten().find(|row| row["node"] == place);
    let state = row.and_then(|row| row["state"].as_str()).unwrap_or("unknown");
    let number = row.and_then(|row| row["pid"].as_u64());
    // No process of a laboratory has the number of the first one, of which a signal would be to all.
    match number.filter(|number| state == expected && *number > 1) {
        Some(number) => Ok(number),
        None => Err(NotMade::State { place: place.to_owned(), expected, state: state.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attacks(program: &str) -> Attacks {
        Attacks::new(vec!["alpha".to_owned()], PathBuf::from(program), PathBuf::from("/lab"))
    }

    #[test]
    fn a_name_that_is_not_in_the_list_is_unknown_before_anything_runs() {
        // This program would fail otherwise.
        let attacks = attacks("/nowhere/wayleave-lab");
        for (attack, place) in
            [("kill", "bravo"), ("kill", ""), ("kill", "alpha "), ("KILL", "alpha"), ("", "alpha"), ("kill", "--dir")]
        {
            assert!(matches!(attacks.make(attack, place), Err(NotMade::Unknown)), "{attack} {place}");
        }
        assert!(matches!(attacks.make("kill", "alpha"), Err(NotMade::System(_))));
    }

    #[test]
    fn a_process_is_signalled_only_if_it_is_as_the_attack_needs_it() {
        let status = json!({ "processes": [
            { "node": "alpha", "state": "up", "pid": 17 }, { "node": "bravo", "state": "ended", "pid": 18 },
            { "node": "charlie", "state": "silent", "pid": 19 }, { "node": "delta", "state": "up", "pid": 1 },
            { "node": "echo", "state": "up" }] });
        assert_eq!(number(&status, "alpha", "up").expect("it is up"), 17);
        assert_eq!(number(&status, "charlie", "silent").expect("it is silent"), 19);
        for place in ["bravo", "charlie", "delta", "echo", "foxtrot"] {
            assert!(matches!(number(&status, place, "up"), Err(NotMade::State { .. })), "{place}");
        }
        assert!(number(&json!(null), "alpha", "up").is_err());
    }

    #[test]
    fn a_status_that_cannot_be_read_is_an_error_and_so_is_a_command_that_fails() {
        assert!(matches!(attacks("/bin/true").make("kill", "alpha"), Err(NotMade::Failed(_))));
        assert!(matches!(attacks("/bin/false").make("kill", "alpha"), Err(NotMade::Failed(_))));
    }

    #[test]
    fn each_attack_stands_beside_its_command() {
        let document = attacks("/bin/true").document();
        assert_eq!(document.as_array().map(Vec::len), Some(ALL.len()));
        assert_eq!(document[0]["command"], "wayleave-lab exec --dir /lab alpha kill -STOP PID");
    }
}

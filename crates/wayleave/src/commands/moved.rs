//! `lab`, `demo` and `bench`: where they went.

use std::ffi::OsString;

use clap::Args;

use crate::failure::{Failure, Outcome};

/// Whatever was given to a command that is now one of `wayleave-lab`.
#[derive(Args, Debug)]
pub struct Moved {
    /// As before.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// Names the command of `wayleave-lab` that does what `wayleave BEFORE` did; `now` is empty where its verbs are commands there.
pub fn run(before: &str, now: &str, moved: &Moved) -> Outcome {
    let words = ["wayleave-lab".into(), now.into()].into_iter();
    let words = words.chain(moved.arguments.iter().map(|argument| argument.to_string_lossy()));
    let line: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let failure =
        Failure::usage(format!("`wayleave {before}` is now a command of the laboratory's own program, `wayleave-lab`"));
    Err(failure.help(format!("run: {}", line.join(" "))).into())
}

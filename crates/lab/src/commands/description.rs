//! `check`, and the description of a laboratory that every command reads.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use wayleave_config::check::{Checked, LABORATORY};
use wayleave_config::failure::{Failures, Outcome};
use wayleave_config::output::{print, print_json};
use wayleave_config::{Fault, Source};
use wayleave_lab::laboratory::Plan;
use wayleave_lab::laboratory::check::Mistake;

#[derive(Args, Debug)]
pub struct Check {
    /// The description.
    pub file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Reads a description.
pub fn read(source: &Source) -> Outcome<Plan> {
    Plan::parse(source.text()).map_err(|mistakes| {
        let fault = |Mistake { span, message, help }| source.failure(Fault { span, message, help });
        Failures(mistakes.into_iter().map(fault).collect())
    })
}

/// `Err` holds the errors; with `--json` they have been printed already, and it is empty.
pub fn check(command: &Check) -> Outcome {
    let source = Source::read_laboratory(&command.file)?;
    let checked = match read(&source) {
        Ok(_) => Checked::found(LABORATORY, &source, Vec::new(), Vec::new()),
        Err(failures) => Checked::wrong(LABORATORY, failures),
    };
    let is_fine = checked.errors.is_empty();
    if command.json {
        let errors: Vec<_> = checked.errors.iter().map(wayleave_config::check::describe).collect();
        print_json(
            json!({ "file": command.file, "role": LABORATORY, "ok": is_fine, "errors": errors, "warnings": [] }),
        );
        return if is_fine { Ok(()) } else { Err(Failures(Vec::new())) };
    }
    if !is_fine {
        return Err(Failures(checked.errors));
    }
    print(&format!("{}: fine, a description for `wayleave-lab up`\n", command.file.display()));
    Ok(())
}

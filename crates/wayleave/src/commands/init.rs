//! `init`: prints a commented configuration that passes `check --example`.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::json;

use super::help::RoleParser;
use crate::config::{EXAMPLE_OPERATORS, EXAMPLE_REALM, EXAMPLE_WRITER, ROLES};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use crate::roles::RoleName;
use clap::Args;
use std::path::PathBuf;

/// What is to be done with what a template has.
const EXAMPLES_LEFT: &str = "Its keys and pins are examples: `wayleave check` refuses each until it is replaced";

#[derive(Args, Debug)]
pub struct Init {
    /// For which role.
    #[arg(value_parser = RoleParser)]
    pub role: RoleName,
    /// Which party, for `rs`: 1 (the exchange) or 2 (the neutral organisation).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub party: u8,
    /// Write to this file, which must not exist, instead of printing; - prints.
    #[arg(long, short)]
    pub out: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

pub fn run(init: &Init) -> Outcome {
    let role = ROLES.into_iter().find(|role| role.name == init.role.name());
    let role = role.ok_or_else(|| Failure::new(format!("no configuration for {}", init.role.name())))?;
    let text = (role.template)(init.party);
    let has_examples = [EXAMPLE_OPERATORS[0], EXAMPLE_REALM, EXAMPLE_WRITER].iter().any(|key| text.contains(key));
    let Some(path) = init.out.as_ref().filter(|path| path.as_os_str() != "-") else {
        if init.json {
            print_json(json!({ "configuration": text }));
        } else {
            print(&text);
            if has_examples {
                print(&format!("\n# {EXAMPLES_LEFT}, and `wayleave check --example` accepts them.\n"));
            }
        }
        return Ok(());
    };
    let failed = |error: std::io::Error| Failure::system(path.display(), &error);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    if init.json {
        print_json(json!({ "file": path }));
        return Ok(());
    }
    let path = path.display();
    if has_examples {
        print(&format!(
            "wrote {path}. {EXAMPLES_LEFT} (wayleave check {path}); wayleave check --example {path} accepts them\n"
        ));
    } else {
        print(&format!("wrote {path}; next: wayleave check {path}\n"));
    }
    Ok(())
}

//! `init`: prints a commented configuration that passes `check`.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::json;

use super::help::RoleParser;
use crate::config::ROLES;
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use crate::roles::RoleName;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Init {
    /// For which role.
    #[arg(value_parser = RoleParser)]
    pub role: RoleName,
    /// Which party, for `rs`: 1 (the exchange) or 2 (the neutral organisation).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub party: u8,
    /// Write to this file, which must not exist, instead of printing.
    #[arg(long, short)]
    pub out: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

pub fn run(init: &Init) -> Outcome {
    let role = ROLES.into_iter().find(|role| role.name == init.role.name());
    let role = role.ok_or_else(|| Failure::new(format!("no configuration for {}", init.role.name())))?;
    let text = (role.template)(init.party);
    let Some(path) = &init.out else {
        if init.json {
            print_json(json!({ "configuration": text }));
        } else {
            print(&text);
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
    print(&format!("wrote {}; next: wayleave check {}\n", path.display(), path.display()));
    Ok(())
}

//! `init`: a commented configuration that passes `check`.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::json;

use crate::cli::{Init, RoleName};
use crate::config;
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};

pub fn run(init: &Init) -> Outcome {
    let text = match (init.role, init.party) {
        (RoleName::Rs, party) => config::rs::template(party),
        (RoleName::Member, _) => config::member::template(),
        (RoleName::Attest, _) => config::attest::TEMPLATE.to_owned(),
        (RoleName::Router, _) => config::router::TEMPLATE.to_owned(),
    };
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

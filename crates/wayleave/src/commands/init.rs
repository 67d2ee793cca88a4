//! `init`: prints a commented configuration that passes `check --example`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;

use serde_json::json;

use super::help::{InitOf, InitParser};
use super::member_lists::SelectionArgs;
use wayleave_runtime::identity::{Fingerprint, Identity};

use crate::config::parse::{argument, endpoint};
use crate::config::rs::{self, PartyValues};
use crate::config::shadow::{ListedMember, SHADOW, template_with};
use crate::config::{EXAMPLE_OPERATORS, EXAMPLE_REALM, EXAMPLE_WRITER};
use crate::failure::{Failure, Outcome};
use crate::key_files::member_set::{self, key_text};
use crate::output::{print, print_json};
use clap::Args;
use std::path::{Path, PathBuf};

/// What is to be done with what a template has.
const EXAMPLES_LEFT: &str = "Its keys and pins are examples: `wayleave check` refuses each until it is replaced";

#[derive(Args, Debug)]
pub struct Init {
    /// For which role.
    #[arg(value_parser = InitParser)]
    pub role: InitOf,
    /// Which party, for `rs`: 1 (the exchange) or 2 (the neutral organisation). Default: 1; with --members there is none.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub party: Option<u8>,
    /// Write to this file, which must not exist, instead of printing; - prints.
    #[arg(long, short)]
    pub out: Option<PathBuf>,
    /// For `rs`, with --listen, --link and --pin: a whole configuration, for the exchange and the operators of this member set, which
    /// you made yourself (`wayleave members init`).
    #[arg(long, value_name = "FILE", requires_all = ["listen", "link", "pin", "party"])]
    pub members: Option<PathBuf>,
    /// Where members connect to this party, as ADDRESS:PORT.
    #[arg(long, value_name = "ADDRESS", requires = "members", value_parser = endpoint)]
    pub listen: Option<SocketAddr>,
    /// Where party 1 listens for party 2, as ADDRESS:PORT.
    #[arg(long, value_name = "ADDRESS", requires = "members", value_parser = endpoint)]
    pub link: Option<SocketAddr>,
    /// The line `pin` of the peer party's key file, as its operator told you.
    #[arg(long, value_parser = argument::<Fingerprint>, requires = "members")]
    pub pin: Option<Fingerprint>,
    /// For `shadow`: the members of this list, as `wayleave members import` reads it: arouteserver's `clients.yml` or an IX-F export.
    #[arg(long, value_name = "FILE", conflicts_with = "members")]
    pub import: Option<PathBuf>,
    #[command(flatten)]
    pub selection: SelectionArgs,
    #[arg(long)]
    pub json: bool,
}

/// Of a comparison: its configuration, with the members of a list.
fn with_listed_members(init: &Init) -> Outcome<Option<String>> {
    let Some(file) = &init.import else {
        if init.selection.is_empty() {
            return Ok(None);
        }
        return Err(Failure::usage("--asn, --all, --ixp and --vlan choose of a list, and --import names none").into());
    };
    if init.role != InitOf::Shadow {
        return Err(Failure::usage(format!("--import is for `{SHADOW}`, and this is `{}`", init.role.name()))
            .help("`wayleave members import` makes what members and operators of a list begin with")
            .into());
    }
    let import = init.selection.read(file)?;
    let members: Vec<ListedMember> = import
        .members
        .iter()
        .map(|member| ListedMember { name: member.name.clone(), asn: member.asn, addresses: member.addresses() })
        .collect();
    Ok(Some(template_with(&members)))
}

/// Of a party with all values: its configuration, and its operators.
fn party_configuration(init: &Init) -> Outcome<Option<(String, [String; 2])>> {
    let values = (&init.members, init.party, init.listen, init.link, init.pin);
    let (Some(members), Some(number), Some(listen), Some(link), Some(pin)) = values else { return Ok(None) };
    if init.role.name() != "rs" {
        return Err(Failure::usage(format!("--members is for `rs`, and this is `{}`", init.role.name())).into());
    }
    let key = init.out.as_deref().unwrap_or(Path::new("")).with_file_name(format!("party{number}.key"));
    if Identity::load(&key).is_ok_and(|own| own.fingerprint() == pin) {
        return Err(Failure::usage(format!("--pin is that of {} itself, expected the peer party's", key.display()))
            .help("the peer party's operator reads it out from its own key file: wayleave keys show")
            .into());
    }
    let directory = member_set::read(members)?;
    let operators = directory.operators().map(|key| key_text(&key));
    let text = rs::template_with(&PartyValues {
        number,
        exchange: &directory.set().exchange,
        operators: operators.each_ref().map(String::as_str),
        pin: &pin.to_string(),
        listen,
        link,
        members: &seen_from(init.out.as_deref(), members)?,
        trial: None,
    });
    Ok(Some((text, operators)))
}

/// A file's path as the configuration in `out` names it.
fn seen_from(out: Option<&Path>, file: &Path) -> Outcome<String> {
    let folder =
        |path: &Path| fs::canonicalize(path.parent().filter(|at| !at.as_os_str().is_empty()).unwrap_or(Path::new(".")));
    let failed = |error: std::io::Error| Failure::system(file.display(), &error);
    let is_beside = match out {
        Some(out) => {
            folder(out).map_err(|error| Failure::system(out.display(), &error))? == folder(file).map_err(failed)?
        }
        None => true,
    };
    let seen = match file.file_name().filter(|_| is_beside) {
        Some(name) => PathBuf::from(name),
        None => fs::canonicalize(file).map_err(failed)?,
    };
    let unreadable = || Failure::new(format!("{}: expected a path in UTF-8", file.display()));
    Ok(seen.into_os_string().into_string().map_err(|_| unreadable())?)
}

pub fn run(init: &Init) -> Outcome {
    let role = init.role.config().ok_or_else(|| Failure::new(format!("no configuration for {}", init.role.name())))?;
    let whole = party_configuration(init)?;
    let text = match (&whole, with_listed_members(init)?) {
        (Some((text, _)), _) => text.clone(),
        (None, Some(text)) => text,
        (None, None) => (role.template)(init.party.unwrap_or(1)),
    };
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
    let operators = whole.map(|(_, operators)| operators);
    if init.json {
        print_json(match operators {
            Some(operators) => json!({ "file": path, "operators": operators }),
            None => json!({ "file": path }),
        });
        return Ok(());
    }
    let path = path.display();
    if let Some([one, two]) = operators {
        print(&format!(
            "wrote {path}\noperator of party 1  {one}\noperator of party 2  {two}\n\
             compare both with what each of you read out; next: wayleave check {path}\n"
        ));
    } else if has_examples {
        print(&format!(
            "wrote {path}. {EXAMPLES_LEFT} (wayleave check {path}); wayleave check --example {path} accepts them\n"
        ));
    } else {
        print(&format!("wrote {path}; next: wayleave check {path}\n"));
    }
    Ok(())
}

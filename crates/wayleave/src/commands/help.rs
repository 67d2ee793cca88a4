//! `--help`: the commands by what they are for, on one screen.

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory};

use super::Cli;
use crate::config::check::RoleConfig;
use crate::config::help::{Group, grouped};
use crate::config::shadow::SHADOW;
use crate::config::{ROLES, shadow};
use crate::roles::RoleName;

const GROUPS: [Group; 7] = [
    Group {
        heading: "Start here",
        commands: &["init", "check"],
        elsewhere: Some((
            "wayleave-lab",
            "See all of it on this machine: `demo`; or a network that a file describes: `up`",
        )),
    },
    Group::new(
        "Run and watch",
        &["run", "show", "why", "monitor", "doctor", "diff", "reload", "apply", "confirm", "undo"],
    ),
    Group::new("Exchange", &["exchange", "members", "invite", "session", "shadow"]),
    Group::new("Overlay", &["realm", "join", "link", "netcheck", "path", "ping", "locate"]),
    Group::new("Paid transit", &["cap", "stamp"]),
    Group::new("Keys and objects", &["keys", "backup", "restore"]),
    Group::new("Other", &[]),
];
const GUIDES: &str =
    "`wayleave help COMMAND` has the options. Guides: docs/guide, of which ten-minutes.md is the first.";

/// The command line, with its help.
pub fn command() -> Command {
    grouped(Cli::command(), &GROUPS, GUIDES)
}

/// Reads a role. A word that is none is answered with the role that is meant.
#[derive(Clone, Debug)]
pub struct RoleParser;

/// What people call roles, beside their names.
const CALLED: [(&str, &str); 10] = [
    ("route-server", "rs"),
    ("party", "rs"),
    ("proxy", "member"),
    ("attesting-proxy", "attest"),
    ("operator", "realm"),
    ("path-server", "path"),
    ("consent-server", "consent"),
    ("key-server", "key"),
    ("waypoint", "router"),
    ("forwarder", "router"),
];

impl TypedValueParser for RoleParser {
    type Value = RoleName;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<RoleName, clap::Error> {
        EnumValueParser::<RoleName>::new().parse_ref(command, arg, value).map_err(|mut error| {
            if error.kind() == ErrorKind::InvalidValue {
                error.remove(ContextKind::SuggestedValue);
                if let Some(role) = meant(&value.to_string_lossy()) {
                    error.insert(ContextKind::SuggestedValue, ContextValue::String(role.to_owned()));
                }
            }
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        EnumValueParser::<RoleName>::new()
            .possible_values()
            .map(|all| all.collect::<Vec<_>>().into_iter())
            .map(|all| Box::new(all) as _)
    }
}

/// What `init` prints a configuration for: a role, or a command that has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitOf {
    Role(RoleName),
    /// `wayleave shadow`.
    Shadow,
}

impl InitOf {
    pub fn name(self) -> &'static str {
        match self {
            Self::Role(role) => role.name(),
            Self::Shadow => SHADOW,
        }
    }

    pub fn config(self) -> Option<&'static RoleConfig> {
        match self {
            Self::Role(role) => ROLES.into_iter().find(|config| config.name == role.name()),
            Self::Shadow => Some(&shadow::COMMAND),
        }
    }
}

/// Reads a role, or the name of a command that has a configuration.
#[derive(Clone, Debug)]
pub struct InitParser;

impl TypedValueParser for InitParser {
    type Value = InitOf;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &std::ffi::OsStr) -> Result<InitOf, clap::Error> {
        if value == SHADOW {
            return Ok(InitOf::Shadow);
        }
        RoleParser.parse_ref(command, arg, value).map(InitOf::Role)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let shadow = PossibleValue::new(SHADOW).help("A comparison with a running route server: `wayleave shadow`");
        let roles = RoleParser.possible_values().into_iter().flatten().collect::<Vec<_>>();
        Some(Box::new(roles.into_iter().chain([shadow])))
    }
}

/// The role whose name, or what it is called, is nearest to `word`; none if no word is near.
fn meant(word: &str) -> Option<&'static str> {
    use clap::ValueEnum;
    let word = word.to_ascii_lowercase().replace(['_', ' '], "-");
    let names = RoleName::value_variants().iter().map(|role| (role.name(), role.name()));
    let near = names.chain(CALLED).map(|(called, role)| (distance(&word, called), called.len(), role));
    let (changes, length, role) = near.min_by_key(|(changes, length, _)| (*changes, usize::MAX - length))?;
    (changes * 3 <= length).then_some(role)
}

/// How many letters are to be changed, added or left out to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (place, theirs) in other.iter().enumerate() {
            let cost = (diagonal + usize::from(letter != *theirs)).min(row[place] + 1).min(row[place + 1] + 1);
            diagonal = row[place + 1];
            row[place + 1] = cost;
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::help::{faults_of_screen, without_help};

    #[test]
    fn no_command_argument_or_value_is_without_help() {
        let mut command = command();
        command.build();
        let found = without_help(&command);
        assert_eq!(found, [""; 0], "{}", found.join("\n"));
    }

    #[test]
    fn help_is_one_screen_of_groups_in_which_each_command_stands_once() {
        let mut command = command();
        assert_eq!(faults_of_screen(&mut command, &GROUPS), [""; 0], "{}", command.render_help());
    }

    #[test]
    fn what_to_start_with_names_the_demonstration_and_laboratories() {
        let text = command().render_help().to_string();
        let start = text.split("Run and watch:").next().expect("the first group");
        let line = start.lines().find(|line| line.trim_start().starts_with("wayleave-lab")).expect("the other program");
        assert!(line.contains("`demo`") && line.contains("`up`"), "{line}");
    }

    #[test]
    fn the_role_that_is_meant_is_suggested() {
        for (word, role) in [
            ("route-sever", Some("rs")),
            ("routeserver", Some("rs")),
            ("Route_Server", Some("rs")),
            ("routr", Some("router")),
            ("keyserver", Some("key")),
            ("gatway", Some("gateway")),
            ("stamp", Some("stamper")),
            ("frobnicate", None),
        ] {
            assert_eq!(meant(word), role, "{word}");
        }
    }
}

//! `--help`: the commands by what they are for, on one screen.

use clap::builder::{EnumValueParser, PossibleValue, StyledStr, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory};

use super::Cli;
use crate::roles::RoleName;

/// Commands by what they are for. One that is in no group stands in the last.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Start here", &["demo", "lab", "init", "check"]),
    ("Run and watch", &["run", "show", "why"]),
    ("Exchange", &["exchange", "members", "invite"]),
    ("Overlay", &["realm", "join", "link", "netcheck", "path", "ping", "locate"]),
    ("Paid transit", &["cap", "stamp"]),
    ("Keys and objects", &["keys", "backup", "restore"]),
    ("Other", &[]),
];
const GUIDES: &str =
    "`wayleave help COMMAND` has the options. Guides: docs/guide, of which ten-minutes.md is the first.";

/// The command line, with its help.
pub fn command() -> Command {
    let command = explained(Cli::command());
    let template = format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}{{options}}\n\n{GUIDES}\n", groups(&command));
    command.help_template(StyledStr::from(template))
}

/// What `--json` means is the same everywhere.
fn explained(command: Command) -> Command {
    let is_bare = |arg: &Arg| arg.get_id() == "json" && arg.get_help().is_none();
    let command =
        command.mut_args(|arg| if is_bare(&arg) { arg.help("Print one JSON object, also on failure") } else { arg });
    command.mut_subcommands(explained)
}

fn groups(command: &Command) -> String {
    let is_grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let visible = || command.get_subcommands().filter(|command| !command.is_hide_set());
    let width = visible().map(|command| command.get_name().len()).max().unwrap_or(0);
    let line = |command: &Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:width$}  {about}\n", command.get_name())
    };
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let named = names.iter().filter_map(|name| visible().find(|command| command.get_name() == *name));
        let others = visible().filter(|command| names.is_empty() && !is_grouped(command.get_name()));
        let lines: String = named.chain(others).map(line).collect();
        if !lines.is_empty() {
            text += &format!("{heading}:\n{lines}");
        }
    }
    text + "\nOptions:\n"
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

    /// Names everything below a command that has no help text.
    fn bare(command: &Command, path: &str, found: &mut Vec<String>) {
        let is_empty = |help: Option<&StyledStr>| help.is_none_or(|help| help.to_string().trim().is_empty());
        if is_empty(command.get_about()) {
            found.push(path.to_owned());
        }
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            if is_empty(arg.get_help()) {
                found.push(format!("{path}: {}", arg.get_id()));
            }
            let values = arg.get_possible_values().into_iter();
            let flag = arg.get_num_args().is_some_and(|count| count.max_values() == 0);
            for value in values.filter(|value| !flag && !value.is_hide_set() && is_empty(value.get_help())) {
                // A shell, or a number, says all by its name.
                if arg.get_id() != "shell" {
                    found.push(format!("{path}: {} {}", arg.get_id(), value.get_name()));
                }
            }
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            bare(sub, &format!("{path} {}", sub.get_name()), found);
        }
    }

    #[test]
    fn no_command_argument_or_value_is_without_help() {
        let mut found = Vec::new();
        let mut command = command();
        command.build();
        bare(&command, "wayleave", &mut found);
        assert_eq!(found, [""; 0], "{}", found.join("\n"));
    }

    #[test]
    fn help_is_one_screen_of_groups_in_which_each_command_stands_once() {
        let mut command = command();
        let text = command.render_help().to_string();
        let lines = text.lines().count();
        assert!((24..=40).contains(&lines), "{lines} lines: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let start = text.find("Start here:").expect("a beginning");
        for (heading, _) in &GROUPS[1..GROUPS.len() - 1] {
            assert!(text.find(heading).is_some_and(|at| at > start), "{heading}: {text}");
        }
        // `help` itself is clap's.
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let name = sub.get_name();
            let lines = text
                .lines()
                .filter(|line| line.strip_prefix("  ").is_some_and(|line| line.split(' ').next() == Some(name)));
            assert_eq!(lines.count(), 1, "{name}: {text}");
        }
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

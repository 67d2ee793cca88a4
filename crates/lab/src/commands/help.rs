//! `wayleave-lab --help`.

use clap::{Command, CommandFactory};
use wayleave_config::help::{Group, grouped};

use super::Cli;

const GROUPS: [Group; 5] = [
    Group {
        heading: "Start here",
        commands: &["demo"],
        elsewhere: Some(("wayleave", "The product: what you run in your own network")),
    },
    Group::new("Laboratories", &["check", "up", "status", "graph", "exec", "console", "down"]),
    Group::new("Probe and replay", &["ping", "speak"]),
    Group::new("Measure", &["bench"]),
    Group::new("Other", &[]),
];
const GUIDES: &str = "`wayleave-lab help COMMAND` has the options. Guides: docs/guide/demo.md and docs/guide/lab.md.";

/// The command line, with its help.
pub fn command() -> Command {
    grouped(Cli::command(), &GROUPS, GUIDES)
}

#[cfg(test)]
mod tests {
    use wayleave_config::help::{faults_of_screen, without_help};

    use super::*;

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
}

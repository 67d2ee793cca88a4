//! `--help` of both programs: the commands by what they are for, on one screen.

use clap::builder::StyledStr;
use clap::{Arg, Command};

/// Commands by what they are for.
pub struct Group {
    pub heading: &'static str,
    /// Without any it is the group of all commands that are in no other.
    pub commands: &'static [&'static str],
    /// The other program, and what it has for the same.
    pub elsewhere: Option<(&'static str, &'static str)>,
}

impl Group {
    #[must_use]
    pub const fn new(heading: &'static str, commands: &'static [&'static str]) -> Self {
        Self { heading, commands, elsewhere: None }
    }
}

/// A command line whose help has its commands in groups, and `more` behind its options.
#[must_use]
pub fn grouped(command: Command, groups: &[Group], more: &str) -> Command {
    let command = explained(command);
    let text = lines(&command, groups);
    let template = format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{text}\nOptions:\n{{options}}\n\n{more}\n");
    command.help_template(StyledStr::from(template))
}

/// What `--json` means is the same everywhere.
fn explained(command: Command) -> Command {
    let is_bare = |arg: &Arg| arg.get_id() == "json" && arg.get_help().is_none();
    let command =
        command.mut_args(|arg| if is_bare(&arg) { arg.help("Print one JSON object, also on failure") } else { arg });
    command.mut_subcommands(explained)
}

fn lines(command: &Command, groups: &[Group]) -> String {
    let is_grouped = |name: &str| groups.iter().any(|group| group.commands.contains(&name));
    let visible = || command.get_subcommands().filter(|command| !command.is_hide_set());
    let names = visible().map(Command::get_name).chain(groups.iter().filter_map(|group| Some(group.elsewhere?.0)));
    let width = names.map(str::len).max().unwrap_or(0);
    let line = |command: &Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:width$}  {about}\n", command.get_name())
    };
    let mut text = String::new();
    for Group { heading, commands, elsewhere } in groups {
        let named = commands.iter().filter_map(|name| visible().find(|command| command.get_name() == *name));
        let others = visible().filter(|command| commands.is_empty() && !is_grouped(command.get_name()));
        let mut lines: String = named.chain(others).map(line).collect();
        if let Some((program, about)) = elsewhere {
            lines += &format!("  {program:width$}  {about}\n");
        }
        if !lines.is_empty() {
            text += &format!("{heading}:\n{lines}");
        }
    }
    text
}

/// Every command, argument and value of a built command line that has no help text, by its place.
#[must_use]
pub fn without_help(command: &Command) -> Vec<String> {
    let mut found = Vec::new();
    look_for_help(command, command.get_name(), &mut found);
    found
}

fn look_for_help(command: &Command, path: &str, found: &mut Vec<String>) {
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
            // A shell, or true and false, say all by their names.
            if arg.get_id() != "shell" && !["true", "false"].contains(&value.get_name()) {
                found.push(format!("{path}: {} {}", arg.get_id(), value.get_name()));
            }
        }
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        look_for_help(sub, &format!("{path} {}", sub.get_name()), found);
    }
}

/// What is wrong with a help text as one screen on which each command stands once, under a heading.
#[must_use]
pub fn faults_of_screen(command: &mut Command, groups: &[Group]) -> Vec<String> {
    const LINES: usize = 50;
    const COLUMNS: usize = 100;
    let text = command.render_help().to_string();
    let mut found = Vec::new();
    if text.lines().count() > LINES {
        found.push(format!("{} lines", text.lines().count()));
    }
    found.extend(text.lines().filter(|line| line.chars().count() > COLUMNS).map(|line| format!("long: {line}")));
    let places: Vec<_> = groups.iter().map(|group| text.find(&format!("{}:\n", group.heading))).collect();
    if places.iter().any(Option::is_none) || !places.is_sorted() {
        found.push("its headings".to_owned());
    }
    // `help` itself is clap's.
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let is_of =
            |line: &&str| line.strip_prefix("  ").is_some_and(|line| line.split(' ').next() == Some(sub.get_name()));
        if text.lines().filter(is_of).count() != 1 {
            found.push(format!("`{}` does not stand there once", sub.get_name()));
        }
    }
    found
}

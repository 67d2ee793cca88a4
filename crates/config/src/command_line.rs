//! What both programs do around a command: arguments are parsed, and failures printed, for people or as JSON.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::FromArgMatches;

use crate::failure::{Failure, Failures};
use crate::output;

/// Parses the arguments of `line`, runs the command, and prints its failures; the process's exit code.
pub fn run<C: FromArgMatches>(line: clap::Command, command: impl FnOnce(C) -> Result<ExitCode, Failures>) -> ExitCode {
    let arguments = helped(&line, std::env::args_os().collect());
    let cli = match line.try_get_matches_from(arguments).and_then(|matches| C::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Help and the version are no errors, and are printed as they are.
        Err(error) if error.use_stderr() && wants_json() => return report_usage(&error),
        Err(error) => error.exit(),
    };
    match command(cli) {
        Ok(code) => code,
        Err(failures) => {
            let code = ExitCode::from(failures.exit_code());
            if wants_json() {
                report_json(&failures);
            } else {
                failures.0.into_iter().for_each(report);
            }
            code
        }
    }
}

/// The arguments without what follows a command behind `help`, such as the role of `help init rs`: all roles have one help.
fn helped(line: &clap::Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_none_or(|word| word != "help") {
        return arguments;
    }
    let (mut found, mut words) = (line, 2);
    while let Some(next) = arguments.get(words).and_then(|word| found.find_subcommand(word)) {
        (found, words) = (next, words + 1);
    }
    if words > 2 && !found.has_subcommands() {
        arguments.truncate(words);
    }
    arguments
}

/// Whether results, and errors too, are printed as JSON. No command has a value that looks like this option.
fn wants_json() -> bool {
    std::env::args_os().any(|argument| argument == "--json")
}

/// Prints a mistake on the command line in the form of [`report_json`]: what is wrong, and clap's usage as help.
fn report_usage(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    let (message, help) = text.split_once("\n\n").unwrap_or((&text, ""));
    let message = message.strip_prefix("error: ").unwrap_or(message).trim();
    output::print_json(serde_json::json!({ "error": message, "help": help.trim() }));
    ExitCode::from(2)
}

/// Prints the failures as one JSON object on standard output.
fn report_json(failures: &Failures) {
    let [first, ..] = failures.0.as_slice() else { return };
    output::print_json(serde_json::json!({ "error": failures.to_string(), "help": first.remedy() }));
}

/// Prints one failure on standard error, with line and caret if it has a location.
fn report(failure: Failure) {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let theme = if colour { miette::GraphicalTheme::unicode() } else { miette::GraphicalTheme::unicode_nocolor() };
    let handler = miette::GraphicalReportHandler::new_themed(theme).with_width(120).with_links(false);
    let mut text = String::new();
    match handler.render_report(&mut text, &failure) {
        // Whoever reads errors may have gone.
        Ok(()) => drop(write!(std::io::stderr(), "{text}")),
        Err(_) => drop(writeln!(std::io::stderr(), "{failure}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_a_command_takes_what_would_be_its_arguments() {
        let members = clap::Command::new("members").subcommand(clap::Command::new("propose"));
        let line = clap::Command::new("wayleave").subcommand(members).subcommand(clap::Command::new("init"));
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, taken) in [
            ("wayleave help init rs", "wayleave help init"),
            ("wayleave help members propose next", "wayleave help members propose"),
            ("wayleave help members nothing", "wayleave help members nothing"),
            ("wayleave help nothing", "wayleave help nothing"),
            ("wayleave init rs", "wayleave init rs"),
        ] {
            assert_eq!(helped(&line, words(given)), words(taken), "{given}");
        }
    }
}

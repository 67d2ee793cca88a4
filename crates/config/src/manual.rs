//! `completions` and `man`: what a shell and `man` know of a program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;

use crate::failure::{Failure, Outcome};
use crate::output::print;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell, mut line: Command) -> Outcome {
    let mut text = Vec::new();
    let name = line.get_name().to_owned();
    clap_complete::generate(shell, &mut line, name, &mut text);
    print(&String::from_utf8_lossy(&text));
    Ok(())
}

/// Which manual pages.
///
/// A page is printed as `man` reads it: `| man -l -` shows it.
#[derive(Args, Debug)]
pub struct Pages {
    /// The command whose page is printed, such as `keys new`; without one, the program's own page.
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
    /// Write a page for each command into this folder instead, which is made if it is not there.
    #[arg(long, value_name = "FOLDER", conflicts_with = "words")]
    folder: Option<PathBuf>,
}

/// The words of the command whose page has this name, with or without the program's; the name itself if there is none.
fn words_of_page(line: &Command, name: &str) -> Vec<String> {
    fn below(command: &Command, rest: &str) -> Option<Vec<String>> {
        if rest.is_empty() {
            return Some(Vec::new());
        }
        command.get_subcommands().find_map(|next| {
            let rest = rest.strip_prefix(next.get_name())?;
            let mut words = below(next, if rest.is_empty() { rest } else { rest.strip_prefix('-')? })?;
            words.insert(0, next.get_name().to_owned());
            Some(words)
        })
    }
    let own = name.strip_prefix(line.get_name()).and_then(|rest| rest.strip_prefix('-'));
    below(line, own.unwrap_or(name)).unwrap_or_else(|| vec![name.to_owned()])
}

/// A command's page, of this version of the program, with the values of options in its synopsis.
fn page(command: &Command, source: &str) -> Man {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    Man::new(command.clone().override_usage(usage)).source(source)
}

/// Writes the page of a command and of all below it.
fn write_all(command: &Command, source: &str, folder: &Path) -> io::Result<()> {
    for next in command.get_subcommands().filter(|next| !next.is_hide_set()) {
        write_all(next, source, folder)?;
    }
    page(command, source).generate_to(folder).map(drop)
}

/// Prints a manual page, or writes all of them.
pub fn man(pages: &Pages, line: Command) -> Outcome {
    let mut line = line.disable_help_subcommand(true);
    // Only then does each command know its full name.
    line.build();
    let source = format!("{} {}", line.get_name(), line.get_version().unwrap_or_default());
    if let Some(folder) = &pages.folder {
        let written = fs::create_dir_all(folder).and_then(|()| write_all(&line, &source, folder));
        return Ok(written
            .map_err(|error| Failure::new(format!("cannot write manual pages into {}: {error}", folder.display())))?);
    }
    let mut found = &line;
    // The name of an installed page, such as `wayleave-members-propose`.
    let words = match &pages.words[..] {
        [name] if line.find_subcommand(name).is_none() => words_of_page(&line, name),
        words => words.to_vec(),
    };
    for word in &words {
        let fails = || {
            let name = found.get_display_name().unwrap_or(found.get_name());
            let known = found.get_subcommands().filter(|command| !command.is_hide_set());
            let known: Vec<_> = known.map(|command| command.get_name().to_owned()).collect();
            let failure = Failure::new(format!("`{}` has no command `{word}`", name.replace('-', " ")));
            if known.is_empty() { failure } else { failure.help(format!("it has {}", known.join(", "))) }
        };
        found = found.find_subcommand(word).ok_or_else(fails)?;
    }
    let mut text = Vec::new();
    let rendered = page(found, &source).render(&mut text);
    rendered.map_err(|error| Failure::new(format!("cannot make the manual page: {error}")))?;
    print(&String::from_utf8_lossy(&text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_by_the_name_under_which_it_is_installed() {
        let members = Command::new("members").subcommand(Command::new("propose"));
        let line = Command::new("wayleave").subcommand(members).subcommand(Command::new("list-key"));
        for (name, words) in [
            ("members-propose", &["members", "propose"][..]),
            ("wayleave-members-propose", &["members", "propose"]),
            ("wayleave-list-key", &["list-key"]),
            ("members-nothing", &["members-nothing"]),
        ] {
            assert_eq!(words_of_page(&line, name), words, "{name}");
        }
    }
}

//! `completions` and `man`: what a shell and `man` know of a program.

use std::path::PathBuf;

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
#[derive(Args, Debug)]
pub struct Pages {
    /// The command whose page is printed, such as `keys new`; without one, the program's own page.
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
    /// Write a page for each command into this folder instead.
    #[arg(long, value_name = "FOLDER", conflicts_with = "words")]
    folder: Option<PathBuf>,
}

/// Prints a manual page, or writes all of them.
pub fn man(pages: &Pages, line: Command) -> Outcome {
    if let Some(folder) = &pages.folder {
        return clap_mangen::generate_to(line, folder).map_err(|error| {
            Failure::new(format!("cannot write manual pages into {}: {error}", folder.display()))
                .help("the folder has to be there")
                .into()
        });
    }
    let mut line = line.disable_help_subcommand(true);
    // Only then does each command know its full name.
    line.build();
    let mut found = &line;
    for word in &pages.words {
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
    let rendered = Man::new(found.clone()).render(&mut text);
    rendered.map_err(|error| Failure::new(format!("cannot make the manual page: {error}")))?;
    print(&String::from_utf8_lossy(&text));
    Ok(())
}

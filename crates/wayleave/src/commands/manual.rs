//! `completions` and `man`: what a shell and `man` know of this program.

use super::command;
use crate::failure::{Failure, Outcome};
use crate::output::print;

pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "wayleave", &mut text);
    print(&String::from_utf8_lossy(&text));
    Ok(())
}

pub fn man() -> Outcome {
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(command()).render(&mut text);
    rendered.map_err(|error| Failure::new(format!("cannot make the manual page: {error}")))?;
    print(&String::from_utf8_lossy(&text));
    Ok(())
}

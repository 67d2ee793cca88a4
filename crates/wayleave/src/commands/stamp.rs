//! `stamp`: the own packets are stamped while a command runs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use wayleave_core::Prefix;
use zeroize::Zeroizing;

use crate::failure::{Failure, Failures};
use crate::key_files::private;
use crate::output::warn;
use crate::roles::registration::{Answer, Ending, Request};

/// How long the stamper is waited for at the end.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Octets of an answer.
const MAX_ANSWER: u64 = 1 << 16;

#[derive(Args, Debug)]
pub struct Stamp {
    /// The stamper's socket (`socket` in its section `host`).
    #[arg(long)]
    pub socket: PathBuf,
    /// Destinations; may be given several times.
    #[arg(long, required = true)]
    pub to: Vec<Prefix>,
    /// A file of capabilities, or with the line of one, for each waypoint, in order.
    #[arg(long = "capability", value_name = "FILE", required = true)]
    pub capabilities: Vec<PathBuf>,
    /// MTU of the route.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,
    /// Packets are sent in UDP (port 49253), for paths that protocol 253 does not pass.
    #[arg(long)]
    pub udp: bool,
    /// The command; without one, until the standard input ends.
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// Registers, runs the command, and returns its exit code.
pub fn run(command: &Stamp) -> Result<ExitCode, Failures> {
    let connection = register(command)?;
    let code = match &command.command[..] {
        [] => {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        [program, arguments @ ..] => {
            let status = Command::new(program).args(arguments).status();
            let status = status.map_err(|error| Failure::system(format!("cannot run {program}"), &error))?;
            ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
    };
    if let Some(Ending { stamped: false, .. }) = end(&connection) {
        let to: Vec<String> = command.to.iter().map(ToString::to_string).collect();
        warn(&format!("no packet was stamped: nothing went to {}", to.join(" or ")));
    }
    Ok(code)
}

/// Ends the registration; what the stamper says of it, if it says anything.
fn end(connection: &UnixStream) -> Option<Ending> {
    connection.shutdown(Shutdown::Write).ok()?;
    connection.set_read_timeout(Some(TIMEOUT)).ok()?;
    let mut line = String::new();
    BufReader::new(connection).take(MAX_ANSWER).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

fn register(command: &Stamp) -> Result<UnixStream, Failure> {
    let read = |path: &PathBuf| private::read(path).map(|text| Zeroizing::new(text.to_string()));
    let capabilities = command.capabilities.iter().map(read).collect::<Result<_, _>>()?;
    let request = Request { version: 1, to: command.to.clone(), capabilities, mtu: command.mtu, udp: command.udp };
    let line = serde_json::to_string(&request).map(Zeroizing::new);
    let line = line.map_err(|error| Failure::new(format!("cannot write the request: {error}")))?;
    let failed = |error: std::io::Error| {
        Failure::system(format!("no stamper answers at {}", command.socket.display()), &error)
            .help("`socket` in [host] of its configuration says where it listens")
    };
    let mut connection = UnixStream::connect(&command.socket).map_err(failed)?;
    connection.write_all(line.as_bytes()).and_then(|()| connection.write_all(b"\n")).map_err(failed)?;
    let mut answer = String::new();
    let mut reading = BufReader::new(&connection).take(MAX_ANSWER);
    reading.read_line(&mut answer).map_err(failed)?;
    let answer: Answer =
        serde_json::from_str(&answer).map_err(|_| Failure::new("the stamper's answer is malformed"))?;
    match answer.error {
        None => Ok(connection),
        Some(error) => Err(Failure::new(format!("the stamper refused: {}", named(&error, &command.capabilities)))),
    }
}

/// What the stamper says of a file by its place in the request, by the name that was given.
fn named(error: &str, files: &[PathBuf]) -> String {
    let said = files.iter().enumerate().find_map(|(index, file)| {
        let place = format!("file {} of the request", index + 1);
        error.contains(&place).then(|| error.replacen(&place, &file.display().to_string(), 1))
    });
    said.unwrap_or_else(|| error.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamper_of_before_says_nothing_at_the_end() {
        for (said, expected) in [("", None), ("{\"version\":1,\"stamped\":false}\n", Some(false))] {
            let (here, mut there) = UnixStream::pair().expect("a pair");
            there.write_all(said.as_bytes()).expect("written");
            drop(there);
            assert_eq!(end(&here).map(|ending| ending.stamped), expected, "{said}");
        }
    }

    #[test]
    fn a_file_is_named_as_it_was_given() {
        let files: Vec<PathBuf> = (1..=12).map(|number| format!("{number}.line").into()).collect();
        assert_eq!(named("file 1 of the request: the line was cut", &files), "1.line: the line was cut");
        assert_eq!(named("file 11 of the request: it has ended", &files), "11.line: it has ended");
        assert_eq!(named("there are too many registrations", &files), "there are too many registrations");
    }
}

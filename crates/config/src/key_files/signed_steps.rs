//! What an operator's key has signed: for each member set's history the last step, beside the key file. Two steps of one number,
//! each signed by both operators, are two member sets, of which parties and members take one and refuse the other for ever.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wayleave_route_server::directory::{Directory, Step};
use wayleave_runtime::identity::{from_hex, to_hex};

use super::member_set::{locked, replace};
use crate::failure::{Failure, Outcome};

/// The origin of a history, and number and digest of the last step of it that the key signed.
type Signed = ([u8; 32], u64, [u8; 32]);

fn record_of(key_file: &Path) -> PathBuf {
    let mut file = key_file.as_os_str().to_owned();
    file.push(".signed");
    file.into()
}

/// Whether a text is such a record, with a signature at least.
#[must_use]
pub fn is_one(text: &str) -> bool {
    parse(text).is_some_and(|signed| !signed.is_empty())
}

fn parse(text: &str) -> Option<Vec<Signed>> {
    let signed = |line: &str| {
        let [origin, number, digest] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        Some((from_hex(origin)?, number.parse().ok()?, from_hex(digest)?))
    };
    text.lines().map(signed).collect()
}

fn read(file: &Path) -> Outcome<Vec<Signed>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::new(format!("{}: {error}", file.display())).into()),
    };
    let malformed = || {
        Failure::new(format!("{} is not a record of what the key signed", file.display()))
            .help("it was changed by hand; restore it, or move it away if you know that no proposal of yours is open")
    };
    Ok(parse(&text).ok_or_else(malformed)?)
}

/// Remembers, before a signature leaves the process, that the key signs the step. One of the same number that it signed before
/// must be given up.
pub fn remember(key_file: &Path, directory: &Directory, step: &Step, given_up: bool) -> Outcome {
    let file = record_of(key_file);
    let _lock = locked(&file)?;
    let (mut all, origin, digest) = (read(&file)?, directory.origin(), step.digest());
    let before = all.iter().find(|(of, ..)| *of == origin);
    if let Some((_, number, signed)) = before
        && !given_up
        && (*number > step.number || (*number == step.number && *signed != digest))
    {
        let failure =
            Failure::new(format!("this key has signed another set {number} before, and now set {}", step.number));
        return Err(failure
            .help("two sets of one number stop the exchange: get the file from the other operator if the earlier set counts; if you both gave it up, and no party has it, repeat with --given-up")
            .into());
    }
    all.retain(|(of, ..)| *of != origin);
    all.push((origin, step.number, digest));
    let line = |(origin, number, digest): &Signed| format!("{} {number} {}\n", to_hex(origin), to_hex(digest));
    replace(&file, all.iter().map(line).collect::<String>().as_bytes())
}

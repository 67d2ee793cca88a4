//! Files of Platypus revocations: a signature of 64 octets, and the list that it signs; entries in text.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use wayleave_control::capability::{self, State};
use wayleave_core::UnixTime;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_dataplane::platypus::revocation::{MAX_ENTRIES, MAX_LIST, Revocation, RevocationList, sign_whole};
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::sources::Sources;

use crate::failure::{Failure, Outcome};
use crate::key_files::private;
use crate::replace::{PUBLIC, keep_owner};

/// What is done where the database and the last list do not go together; then another list is begun.
const WAY_OUT: &str = "restore the database that goes with it from the last backup; revocations that routers have are missing in this one. \
                       If it is lost, revoke again what `wayleave cap revoked` shows in the list, move it away, and begin another";

/// Octets of the signature, which precedes the list.
pub const SIGNATURE: usize = 64;
/// Octets of the largest file.
const MOST_OCTETS: u64 = (SIGNATURE + MAX_LIST) as u64;
const _: () = assert!(SIGNATURE + MAX_LIST <= capability::MAX_LIST, "routers take it from key servers");

/// The octets of a list's file, if it is not too long for one.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let system = |error| Failure::system(path.display(), &error);
    if fs::metadata(path).map_err(system)?.len() > MOST_OCTETS {
        return Err(Failure::new(format!("{} is longer than a list of {MAX_ENTRIES} entries", path.display())));
    }
    fs::read(path).map_err(system)
}

/// The list in `path`, which `key` must have signed; `None` if there is no file.
pub fn open(path: &Path, key: &VerifyingKey) -> Outcome<Option<RevocationList>> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let octets = read(path)?;
    let (signature, list) = octets
        .split_first_chunk::<SIGNATURE>()
        .ok_or_else(|| Failure::new(format!("{} is too short for a list of revocations", path.display())))?;
    let list = RevocationList::open(list, signature, key)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    Ok(Some(list))
}

/// The number of the list in `path`, which a provider's key server wrote last; `None` if there is no file. Whoever reads the
/// database too reads it afterwards: the list of a server that runs is then of no later changes.
pub fn last_number(path: &Path, key: &VerifyingKey) -> Outcome<Option<u64>> {
    Ok(open(path, key)?.map(|list| list.sequence))
}

/// Whether a server may go on from this last list in `path`, with a database that ends with change `number`.
///
/// # Errors
/// If the list was made of later changes, or is missing though there are changes: it may have been lost with some of them.
pub fn goes_with(last: Option<u64>, path: &Path, number: u64) -> Outcome {
    let Some(last) = last else {
        if number == 0 {
            return Ok(());
        }
        let message = format!(
            "{} is missing, and the database ends with change {number}: without the last list it cannot be seen whether it is an old \
             copy, which lacks revocations",
            path.display()
        );
        return Err(Failure::new(message)
            .help(
                "restore the file with the database, from the same backup. If it is lost, revoke again what was revoked since the backup; \
                 then begin a list with `wayleave cap new-list --config FILE`",
            )
            .into());
    };
    // The upper half of a list's number is that of the state: an old copy of the database has a lower one.
    if last >> 32 > number {
        let message = format!(
            "{} was made of change {}, and the database ends with change {number}: it is an old copy",
            path.display(),
            last >> 32,
        );
        return Err(Failure::new(message).help(format!("{WAY_OUT} with `wayleave cap new-list --config FILE`")).into());
    }
    Ok(())
}

/// A list that is being written to replace another. While it exists, no other can be started; if it is not finished, the old
/// list stays.
pub struct Replacement {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    is_placed: bool,
}

impl Replacement {
    /// Starts a new list to replace the one at `path`, which the caller reads afterwards.
    pub fn begin(path: &Path) -> Outcome<Self> {
        let temporary = private::temporary(path);
        let made = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = made.map_err(|error| {
            let failure = Failure::system(temporary.display(), &error);
            let help = format!(
                "another command may be writing this list; if none is, an earlier one was interrupted: remove {}",
                temporary.display()
            );
            if error.kind() == ErrorKind::AlreadyExists { failure.help(help) } else { failure }
        })?;
        keep_owner(&file, path, PUBLIC);
        Ok(Self { path: path.to_owned(), temporary, file, is_placed: false })
    }

    /// Writes the parts, and replaces the old list in one step.
    pub fn finish(mut self, parts: &[&[u8]]) -> Outcome {
        let written = parts.iter().try_for_each(|part| self.file.write_all(part)).and_then(|()| self.file.sync_all());
        let placed = written.and_then(|()| fs::rename(&self.temporary, &self.path));
        placed.map_err(|error| Failure::system(self.path.display(), &error))?;
        self.is_placed = true;
        private::sync_folder(&self.path)
    }
}

/// Replaces a list that this process alone writes, in one step. What an interrupted one left behind is overwritten.
pub fn put(path: &Path, parts: &[&[u8]]) -> Outcome {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let temporary = path.with_file_name(name);
    // Only the role itself writes here, as the user whose folder it is.
    let written = File::create(&temporary).and_then(|mut file| {
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    });
    if let Err(error) = written {
        // It would take what is left of a full disk from the database.
        let _ = fs::remove_file(&temporary);
        return Err(Failure::system(temporary.display(), &error).into());
    }
    fs::rename(&temporary, path).map_err(|error| Failure::system(path.display(), &error))?;
    private::sync_folder(path)
}

/// Begins the list in `path` of a provider's key server, whose number is that of its database: one without changes has an empty list.
/// Later the server writes it. `last` is what [`last_number`] said before the database was read. Returns how many entries it has.
///
/// # Errors
/// If there is one.
pub fn begin(
    path: &Path,
    last: &Outcome<Option<u64>>,
    state: &State,
    signer: &SigningKey,
    now: UnixTime,
) -> Outcome<usize> {
    if !matches!(last, Ok(None)) {
        let is_usable = last.as_ref().is_ok_and(|last| goes_with(*last, path, state.number()).is_ok());
        let (what, help) = if is_usable {
            ("exists: the server goes on from it", "nothing is to be done; start the server".to_owned())
        } else {
            ("exists, and is damaged or of a later database", format!("{WAY_OUT}: repeat this command"))
        };
        return Err(Failure::new(format!("{} {what}", path.display())).help(help).into());
    }
    let entries: Vec<Revocation> = state.listed(now.secs()).collect();
    let sources: Vec<Sources> = state.sources().cloned().collect();
    let (list, signature) = sign_whole(signer, state.times().list_number(0, now), now, &entries, &sources);
    put(path, &[&signature, &list])?;
    Ok(entries.len())
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_placed {
            // If this fails, the next command names the file.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// An entry as text: `PRINCIPAL`, `PRINCIPAL/DELEGATION` or `PRINCIPAL/DELEGATION/SUB-DELEGATION`, and with
/// `@INTERVAL:EPOCH` for one key epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RevocationEntry(pub Revocation);

impl fmt::Display for RevocationEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.principal.number())?;
        if let Some((id, sub)) = self.0.delegation {
            write!(f, "/{}", id.number())?;
            sub.map_or(Ok(()), |sub| write!(f, "/{}", sub.number()))?;
        }
        self.0.epoch.map_or(Ok(()), |(interval, epoch)| write!(f, "@{}:{epoch}", interval.exponent()))
    }
}

impl FromStr for RevocationEntry {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self).ok_or_else(|| {
            "expected PRINCIPAL, PRINCIPAL/DELEGATION or PRINCIPAL/DELEGATION/SUB-DELEGATION, numbers of 24 bits, and \
             @INTERVAL:EPOCH for one key epoch alone"
                .to_owned()
        })
    }
}

fn parse(text: &str) -> Option<Revocation> {
    let (who, when) = text.split_once('@').map_or((text, None), |(who, when)| (who, Some(when)));
    let mut numbers = who.split('/');
    let principal = Principal::new(number(numbers.next()?)?)?;
    let ids: Vec<DelegationId> = numbers.map(|text| DelegationId::new(number(text)?)).collect::<Option<_>>()?;
    let delegation = match ids[..] {
        [] => None,
        [id] => Some((id, None)),
        [id, sub] => Some((id, Some(sub))),
        _ => return None,
    };
    let epoch = match when {
        Some(when) => {
            let (interval, epoch) = when.split_once(':')?;
            Some((Interval::new(u8::try_from(number(interval)?).ok()?)?, number(epoch)?))
        }
        None => None,
    };
    Some(Revocation { principal, delegation, epoch })
}

/// A number of digits only, without a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_are_written_and_nothing_else_is_an_entry() {
        for text in ["7", "0/0", "16777215/3/9", "7@12:424242", "7/3/9@24:4294967295"] {
            assert_eq!(text.parse::<RevocationEntry>().expect("an entry").to_string(), text);
        }
        let wrong = [
            "",
            "x",
            "16777216",
            "7/",
            "7/16777216",
            "7/1/2/3",
            "7@",
            "7@12",
            "7@3:1",
            "7@25:1",
            "7@12:4294967296",
            "+7",
            "7 ",
        ];
        for text in wrong {
            assert!(text.parse::<RevocationEntry>().is_err(), "{text}");
        }
    }
}

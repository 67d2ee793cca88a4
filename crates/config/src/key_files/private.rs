//! Files of secrets: readable by their owner alone; others are refused.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome};
use crate::replace::{PRIVATE, give_to_folder_owner, keep_owner};

/// Largest file that is read, in octets.
const MAX_OCTETS: u64 = 8 << 20;

/// The text of a file that only its owner can read.
pub fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let system = |error| Failure::system(path.display(), &error);
    let meta = fs::metadata(path).map_err(system)?;
    if meta.mode() & 0o077 != 0 {
        return Err(Failure::new(format!("{} can be read by others than its owner", path.display()))
            .help(format!("run: chmod 600 {}; if others may have read it, create new keys", path.display())));
    }
    if meta.len() > MAX_OCTETS {
        return Err(Failure::new(format!("{}: longer than 8 MiB", path.display())));
    }
    fs::read_to_string(path).map(Zeroizing::new).map_err(system)
}

/// Writes a new file.
pub fn create(path: &Path, text: &str) -> Outcome {
    create_for(path, text, |_| {})
}

/// The same, and `own` gives it to whom it shall belong, before anything is in it.
fn create_for(path: &Path, text: &str, own: impl FnOnce(&File)) -> Outcome {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut made = made.map_err(|error| {
        let failure = Failure::system(path.display(), &error);
        let help = format!(
            "another command may be writing {}; if none is, an earlier one was interrupted: remove the file",
            path.display()
        );
        if error.kind() == ErrorKind::AlreadyExists { failure.help(help) } else { failure }
    })?;
    own(&made);
    let written = made.write_all(text.as_bytes()).and_then(|()| made.sync_all());
    if let Err(error) = written {
        // A partial file would block the next attempt.
        let _ = fs::remove_file(path);
        return Err(Failure::system(path.display(), &error).into());
    }
    Ok(())
}

/// The temporary file that replaces the one at `path`.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Writes a file that a role reads, new or in the place of one: as the user of the role needs it, whoever gives the command.
pub fn put(path: &Path, text: &str) -> Outcome {
    if path.exists() {
        return replace(path, text);
    }
    create_for(path, text, |file| drop(give_to_folder_owner(file, path)))
}

/// Replaces a file in one step: a reader sees the old one or the new one. It keeps its owner, who alone can read it.
pub fn replace(path: &Path, text: &str) -> Outcome {
    let temporary = temporary(path);
    create_for(&temporary, text, |file| keep_owner(file, path, PRIVATE))?;
    fs::rename(&temporary, path).map_err(|error| Failure::system(path.display(), &error))?;
    sync_folder(path)
}

/// Makes a file's entry in its folder durable.
pub fn sync_folder(path: &Path) -> Outcome {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let durable = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(durable.map_err(|error| Failure::system(folder.display(), &error))?)
}

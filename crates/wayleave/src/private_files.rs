//! Files of secrets: readable by their owner alone, and refused if they are not.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome};

/// Octets of the longest such file.
const MOST_OCTETS: u64 = 8 << 20;

/// The text of a file that only its owner can read.
pub fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let system = |error| Failure::system(path.display(), &error);
    let meta = fs::metadata(path).map_err(system)?;
    if meta.mode() & 0o077 != 0 {
        return Err(Failure::new(format!("{} can be read by others than its owner", path.display()))
            .help(format!("run: chmod 600 {}; if others may have read it, make new keys", path.display())));
    }
    if meta.len() > MOST_OCTETS {
        return Err(Failure::new(format!("{}: longer than 8 MiB", path.display())));
    }
    fs::read_to_string(path).map(Zeroizing::new).map_err(system)
}

/// Writes a new file.
pub fn create(path: &Path, text: &str) -> Outcome {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut made = made.map_err(|error| Failure::system(path.display(), &error))?;
    let written = made.write_all(text.as_bytes()).and_then(|()| made.sync_all());
    Ok(written.map_err(|error| Failure::system(path.display(), &error))?)
}

/// Where the next file is written before it takes the place of the one at `path`.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Puts a file in the place of the one before in one step: who reads meanwhile finds the old one or the new one.
pub fn replace(path: &Path, text: &str) -> Outcome {
    let beside = beside(path);
    create(&beside, text)?;
    Ok(fs::rename(&beside, path).map_err(|error| Failure::system(path.display(), &error))?)
}

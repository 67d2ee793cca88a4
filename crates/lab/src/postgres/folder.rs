//! The folder of a server, with its socket, data and log.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::user;

/// Where folders are made: a test's own folder may be root's alone, and a socket's path has at most 107 octets.
pub(super) const PARENT: &str = "/tmp";
/// How their names begin; a number follows.
const NAME: &str = "wayleave-pg-";
/// The data, in a folder.
pub(super) const DATA: &str = "data";
/// A file that is locked as long as whoever made the folder runs.
const LOCK: &str = "lock";

/// Removed on drop.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes a folder for the server's user, and removes those of processes that were killed.
    pub(super) fn new() -> io::Result<Self> {
        remove_abandoned();
        // Processes in other PID namespaces may have this ID, too.
        let id = std::process::id();
        let mut numbers = 0_u32..;
        loop {
            let path = Path::new(PARENT).join(format!("{NAME}{id}-{}", numbers.next().unwrap_or_default()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let lock = File::create_new(path.join(LOCK))?;
            lock.lock()?;
            // Another process may have taken it for an abandoned one before it was locked, and removed it.
            if lock.metadata()?.nlink() > 0 {
                user::give(&path)?;
                return Ok(Self { path, _lock: lock });
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

/// Removes the folders whose lock nobody holds any more. What cannot be removed is another user's, or its server still ends.
fn remove_abandoned() {
    let all = fs::read_dir(PARENT).into_iter().flatten().flatten();
    for entry in all.filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME)) {
        let path = entry.path();
        if let Ok(lock) = File::open(path.join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = remove(&path);
        }
    }
}

/// The data first, so that there is a lock as long as there are any.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path.join(DATA)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir_all(path),
    }
}

//! Writes a file in one step, in the place of one that may be there.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// Writes the file; it is on disk when this returns. One that was there keeps its owner and permissions, and its place if the path is a
/// symbolic link.
///
/// # Errors
/// What the system says; then the file is as it was.
pub fn replace(path: &Path, text: &str) -> Outcome {
    let failed = |error: std::io::Error| Failure::system(path.display(), &error);
    let path = match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
        path => path.map_err(failed)?,
    };
    let temporary = path.with_extension("new");
    let written = write(&path, &temporary, text);
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // it may not be there
    }
    written.map_err(failed)?;
    Ok(())
}

fn write(path: &Path, temporary: &Path, text: &str) -> std::io::Result<()> {
    // One that a write left which was cut off; and nobody's link is followed.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).open(temporary)?;
    match fs::metadata(path) {
        Ok(before) => {
            let new = file.metadata()?;
            if (before.uid(), before.gid()) != (new.uid(), new.gid()) {
                chown(temporary, Some(before.uid()), Some(before.gid()))?;
            }
            file.set_permissions(before.permissions())?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

//! Writes a file in one step, in the place of one that may be there.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// Gives a new file to the owner of the file at `path`, in whose place it is put, or of the folder if there is none: a role that runs
/// as a user of its own has to read and write what a command of root has written.
///
/// # Errors
/// What the system says: mostly that this process is not root, and then the file is its own.
pub fn give_to_owner(file: &File, path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (owner, own) = (fs::metadata(path).or_else(|_| fs::metadata(folder))?, file.metadata()?);
    if (owner.uid(), owner.gid()) == (own.uid(), own.gid()) {
        return Ok(());
    }
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}

/// Gives a new file the owner and the permissions of the file in whose place it is put. Without the right to do so it stays this process's.
pub fn keep_owner(file: &File, path: &Path) {
    let _ = give_to_owner(file, path);
    if let Ok(before) = fs::metadata(path) {
        let _ = file.set_permissions(before.permissions());
    }
}

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
            give_to_owner(&file, path)?;
            file.set_permissions(before.permissions())?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => drop(give_to_owner(&file, path)),
        Err(error) => return Err(error),
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;
    use crate::key_files::{member_set, private, revocation};

    type Write = fn(&Path) -> Outcome;

    const WAYS: [(&str, Write); 4] = [
        ("settings", |path| replace(path, "b")),
        ("private", |path| private::replace(path, "b")),
        ("members", |path| member_set::replace(path, b"b")),
        ("list", |path| revocation::put(path, &[b"b"])),
    ];

    #[test]
    fn a_file_that_root_replaces_keeps_its_owner_and_permissions_however_it_is_replaced() {
        let folder = std::env::temp_dir().join(format!("wayleave-replace-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for (name, write) in WAYS {
            let path = folder.join(name);
            fs::write(&path, "a").expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its own");
            // Who is not root gives nothing away; then its permissions alone are looked at.
            let _ = chown(&path, Some(4_321), Some(4_322));
            let before = fs::metadata(&path).expect("there");
            write(&path).unwrap_or_else(|failure| panic!("{name}: {failure:?}"));
            let after = fs::metadata(&path).expect("there");
            assert_eq!(fs::read_to_string(&path).expect("read"), "b");
            assert_eq!((after.uid(), after.gid(), after.mode()), (before.uid(), before.gid(), before.mode()), "{name}");
        }
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_new_file_of_root_is_that_of_the_owner_of_its_folder() {
        let folder = std::env::temp_dir().join(format!("wayleave-new-file-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        if chown(&folder, Some(4_321), Some(4_322)).is_err() {
            return fs::remove_dir_all(folder).expect("removed");
        }
        let path = folder.join("servers");
        private::put(&path, "a").expect("written");
        let after = fs::metadata(&path).expect("there");
        assert_eq!((after.uid(), after.gid(), after.mode() & 0o777), (4_321, 4_322, 0o600));
        fs::remove_dir_all(folder).expect("removed");
    }
}

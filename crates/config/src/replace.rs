//! Writes a file in one step, in the place of one that may be there.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use rustix::fs::OFlags;

use crate::failure::{Failure, Outcome};

/// The permissions that a file may take over from the one before, if others may read it, and if it has secrets.
pub const PUBLIC: u32 = 0o777;
pub const PRIVATE: u32 = 0o600;

/// The file at `path`, if it is one by itself. Whoever owns the folder may have put a link there, to a file of somebody else.
fn own_file(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found).filter(|found| found.is_file() && found.nlink() == 1)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a file for reading that is one by itself, in a folder that may be another user's.
///
/// # Errors
/// What the system says; and if a link leads elsewhere, or it is no file.
pub fn open_own(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.nlink() == 1 {
        return Ok(file);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "it is no file, or has a second name; expected a file by itself"))
}

/// Gives a new file to the owner of the file at `path`, in whose place it is put, or of the folder if there is none: a role that runs
/// as a user of its own has to read and write what a command of root has written.
///
/// # Errors
/// What the system says: mostly that this process is not root, and then the file is its own.
pub fn give_to_owner(file: &File, path: &Path) -> io::Result<()> {
    match own_file(path)? {
        Some(owner) => give_to(file, &owner),
        None => give_to_folder_owner(file, path),
    }
}

/// Gives a file that was just made at `path` to the owner of its folder.
///
/// # Errors
/// As [`give_to_owner`].
pub fn give_to_folder_owner(file: &File, path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    give_to(file, &fs::metadata(folder)?)
}

fn give_to(file: &File, owner: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (owner.uid(), owner.gid()) == (own.uid(), own.gid()) {
        return Ok(());
    }
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}

/// Gives a new file the owner of the file in whose place it is put, and those of its permissions that are in `most`. Without the right
/// to do so it stays this process's.
pub fn keep_owner(file: &File, path: &Path, most: u32) {
    let _ = give_to_owner(file, path);
    if let Ok(Some(before)) = own_file(path) {
        let _ = file.set_permissions(Permissions::from_mode(before.mode() & most));
    }
}

/// Makes the file `temporary` anew. One may be there that a write left which was cut off; and nobody's link is followed.
fn create_anew(temporary: &Path) -> io::Result<File> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).open(temporary)
}

/// Puts a file that others may read in the place of the one at `path`, by way of `temporary`, a name in the same folder. It is on disk
/// when this returns, and keeps owner and permissions.
///
/// # Errors
/// What the system says; then the file is as it was.
pub fn put(path: &Path, temporary: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = create_anew(temporary)?;
    keep_owner(&file, path, PUBLIC);
    let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    let placed = written.and_then(|()| fs::rename(temporary, path));
    // What is left of a full disk may be another file's.
    placed.inspect_err(|_| drop(fs::remove_file(temporary)))
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
    let mut file = create_anew(temporary)?;
    match own_file(path)? {
        Some(before) => {
            give_to_owner(&file, path)?;
            file.set_permissions(Permissions::from_mode(before.mode() & PUBLIC))?;
        }
        None => drop(give_to_owner(&file, path)),
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;
    use crate::key_files::{attestation, member_set, private};

    type Write = fn(&Path) -> Outcome;

    const WAYS: [(&str, Write); 4] = [
        ("settings", |path| replace(path, "b")),
        ("private", |path| private::replace(path, "b")),
        ("members", |path| member_set::replace(path, b"b")),
        ("objects", |path| attestation::replace(path, b"b")),
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
    fn no_file_that_a_link_leads_to_is_written_or_given_away_however_the_link_is_called() {
        let folder = std::env::temp_dir().join(format!("wayleave-links-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (victim, none) = (folder.join("victim"), folder.join("none"));
        fs::write(&victim, "v").expect("written");
        fs::set_permissions(&victim, Permissions::from_mode(0o755)).expect("its own");
        let before = fs::metadata(&victim).expect("there");
        let endings = [".new".to_owned(), format!(".{}.new", std::process::id()), ".part".to_owned()];
        for (name, write) in WAYS {
            let path = folder.join(name);
            for target in [&victim, &none] {
                fs::write(&path, "a").expect("written");
                fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its own");
                let _ = chown(&path, Some(4_321), Some(4_322));
                let links = endings.each_ref().map(|ending| folder.join(format!("{name}{ending}")));
                for link in &links {
                    symlink(target, link).expect("a link");
                }
                // A key that is being written stops another one; the others remove the link.
                assert_eq!(write(&path).is_err(), name == "private", "{name}");
                links.iter().for_each(|link| drop(fs::remove_file(link)));
                let after = fs::metadata(&victim).expect("there");
                assert_eq!((after.uid(), after.mode()), (before.uid(), before.mode()), "{name}");
                assert_eq!(fs::read_to_string(&victim).expect("read"), "v", "{name}");
                assert!(!none.exists(), "{name}");
            }
        }
        // What is replaced may itself be a link, to a file whose owner and permissions are not meant.
        let path = folder.join("set");
        symlink(&victim, &path).expect("a link");
        member_set::replace(&path, b"b").expect("written");
        let after = fs::symlink_metadata(&path).expect("there");
        assert!(after.is_file() && after.mode() & 0o111 == 0, "{:o}", after.mode());
        for target in [&victim, &none] {
            let link = folder.join("set.lock");
            symlink(target, &link).expect("a link");
            assert!(member_set::locked(&path).is_err(), "it would be another file's lock");
            fs::remove_file(&link).expect("removed");
        }
        drop(member_set::locked(&path).expect("a lock"));
        assert!(!none.exists());
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_file_of_secrets_that_others_could_read_is_its_owners_alone_when_it_is_replaced() {
        let path = std::env::temp_dir().join(format!("wayleave-secret-{}", std::process::id()));
        fs::write(&path, "a").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("its own");
        private::put(&path, "b").expect("written");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        fs::remove_file(path).expect("removed");
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

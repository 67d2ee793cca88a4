//! Reads the folder of an open-source SCION router ([`crate::scion_folder`]).

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::scion_folder::{FolderFiles, TOPOLOGY, Translation};

/// The router's own file; where it has another name, it begins and ends with these.
const ROUTER: &str = "router.toml";
const NAMED: [&str; 2] = ["br", ".toml"];

/// Whether a folder looks like a SCION router's.
pub fn is_one(folder: &Path) -> bool {
    folder.join(TOPOLOGY).is_file()
}

/// Reads the folder's files with `read`; returns the path of the router's own file, too.
///
/// # Errors
/// If a file is not there, or cannot be read.
pub fn read(folder: &Path, read: impl Fn(&Path) -> Result<String, Failure>) -> Result<(PathBuf, Translation), Failure> {
    let path = router_file(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (router, topology) = (read(&path)?, read(&folder.join(TOPOLOGY))?);
    let mut translation = Translation::new(&FolderFiles { name: &name, router: &router, topology: &topology });
    let whole = |path: &Path| fs::canonicalize(path).ok();
    translation.check_folder(|named| whole(Path::new(named)).is_some_and(|named| whole(folder) == Some(named)));
    Ok((path, translation))
}

/// The router's own file, whose name the other router is told on its command line.
fn router_file(folder: &Path) -> Result<PathBuf, Failure> {
    let usual = folder.join(ROUTER);
    if usual.is_file() {
        return Ok(usual);
    }
    let entries = fs::read_dir(folder).map_err(|error| Failure::system(folder.display(), &error))?;
    let [begin, end] = NAMED;
    let is_named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end) && path.is_file()
    };
    let mut named: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_named).collect();
    named.sort();
    match &named[..] {
        [path] => Ok(path.clone()),
        [] => Err(Failure::new(format!("{}: no {ROUTER} beside {TOPOLOGY}", folder.display())).help(format!(
            "expected the file of `--config` of the open-source router as {ROUTER}, or as {begin}NAME{end}"
        ))),
        [first, second, ..] => {
            let names = [first, second].map(|path| path.file_name().unwrap_or_default().to_string_lossy());
            Err(Failure::new(format!(
                "{}: files of several routers, as {} and {}",
                folder.display(),
                names[0],
                names[1]
            ))
            .help(format!("call the one that is meant {ROUTER}, or give each router a folder of its own")))
        }
    }
}

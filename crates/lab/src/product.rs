//! Where the product's program is: the laboratory runs it as an operator does, and is not linked with it.

use std::path::PathBuf;

/// The environment variable that names the program, for a program elsewhere.
pub const VARIABLE: &str = "WAYLEAVE";
/// What to do if it is not found.
pub const REMEDY: &str = "build it (`cargo build --package wayleave`), or name it: WAYLEAVE=/path/of/wayleave";

/// The program `wayleave` was not found.
#[derive(Debug, thiserror::Error)]
#[error("the program `wayleave` is neither beside `wayleave-lab` nor in PATH")]
pub struct NotFound;

/// The path of `wayleave`: what the environment variable [`VARIABLE`] names, else the program beside this one (or, for a test, in
/// the folder above), else the first in PATH.
///
/// # Errors
/// If there is none.
pub fn program() -> Result<PathBuf, NotFound> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.ancestors().skip(1).take(2).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("wayleave")).find(|program| program.is_file()).ok_or(NotFound)
}

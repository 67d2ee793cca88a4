//! What only this machine tells of a configuration: whether it has an address, and whether the state can be written.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use toml::Spanned;
use wayleave_route_server::party::{StoredRecord, TABLES};
use wayleave_runtime::store::{self, StoreError};

use super::parse::Text;
use super::rs::{FileFault, StatusSection};
use super::{Fault, Source};

/// A file of state that cannot be written where the configuration says.
pub(super) fn state_fault(state: &Spanned<PathBuf>, source: &Source) -> Option<FileFault> {
    let path = source.resolve(state.get_ref());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fault = |message: String, help: String| Some(FileFault::Unusable(Fault::at(state.span(), message).help(help)));
    if path.is_dir() {
        let message = format!("{} is a folder, expected the path of a file", path.display());
        return fault(message, "the role creates the file in it: add a name".to_owned());
    }
    if !folder.is_dir() {
        let message = format!("{} cannot be created: there is no folder {}", path.display(), folder.display());
        return fault(message, format!("create it: mkdir -p {}", folder.display()));
    }
    let written = if path.exists() { &path } else { folder };
    if access(written, Access::WRITE_OK).is_err() {
        let message = format!("{} cannot be written by this user", written.display());
        return fault(message, "give it to the user that runs the role, or run `check` as that user".to_owned());
    }
    None
}

/// The tables of a party's and of a member's state.
pub const STATE_TABLES: [&str; 6] = TABLES;

/// What a role's state holds, without a change to it. `None` if there is none yet, or it cannot be read now: a running role has
/// it open, or it has to be repaired after a crash.
pub(super) fn stored(path: &Path) -> Result<Option<Vec<StoredRecord>>, StoreError> {
    let mut all = Vec::new();
    for table in STATE_TABLES {
        let Some(records) = store::peek(path, table)? else { return Ok(None) };
        all.extend(records.into_iter().map(|(key, value)| StoredRecord { table: table.to_owned(), key, value }));
    }
    Ok(Some(all))
}

/// An address at which the role is to listen, and which this machine does not have. It is no error: `check` may run elsewhere.
pub(super) fn absent_address(listen: &Spanned<Text<SocketAddr>>) -> Option<Fault> {
    let ip = listen.get_ref().0.ip();
    let refused = UdpSocket::bind((ip, 0)).err()?;
    (refused.kind() == ErrorKind::AddrNotAvailable).then(|| {
        let message = format!("this machine has no address {ip}, expected one of those that `ip address` lists");
        Fault::at(listen.span(), message).help("unless the role runs on another machine")
    })
}

/// Status pages where the role listens for something else.
pub(super) fn taken_by_status(status: Option<&StatusSection>, others: &[SocketAddr]) -> Option<Fault> {
    let listen = &status?.listen;
    let address = listen.get_ref().0;
    others.contains(&address).then(|| {
        let message = format!("{address} is in use by this configuration already, expected another port");
        Fault::at(listen.span(), message)
    })
}

/// A path at which a file is expected and a folder lies, or the other way round.
pub(super) fn kind_fault(path: &Spanned<PathBuf>, source: &Source, expects_folder: bool) -> Option<FileFault> {
    let found = fs::metadata(source.resolve(path.get_ref())).ok()?;
    let message = match (found.is_dir(), expects_folder) {
        (true, false) => "is a folder, expected a file",
        (false, true) => "is a file, expected a folder",
        _ => return None,
    };
    Some(FileFault::Unusable(Fault::at(path.span(), format!("{} {message}", path.get_ref().display()))))
}

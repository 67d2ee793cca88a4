//! The file of records in which earlier versions kept accounts, grants and revocations: it is read once, to bring them into a database.
//!
//! A header; in a file that was compacted, a snapshot, which is the length of its head, the head and the pieces; then signed changes, each
//! behind its length.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use wayleave_control::capability::{Change, ProviderKey, SnapshotError, SnapshotHead, State};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_crypto::signed::{Object, Signed};

use crate::failure::Failure;

/// At the beginning of a file without a snapshot, and of one with a snapshot.
const HEADER: &[u8; 24] = b"wayleave-key-records-v1\n";
const COMPACTED: &[u8; 24] = b"wayleave-key-records-v2\n";

/// Whether this is such a file.
pub fn is_one(octets: &[u8]) -> bool {
    octets.starts_with(HEADER) || octets.starts_with(COMPACTED)
}

/// The state after the last change of the file at `path`. What a crash left of a change that was being written is left out.
///
/// # Errors
/// If the file cannot be read, is damaged, or is not of this provider and writer.
pub fn read(path: &Path, provider: &ProviderKey, writer: &VerifyingKey) -> Result<State, Failure> {
    let refused = |what: String| {
        Failure::new(format!("{} {what}", path.display()))
            .help("restore the file from a backup of this provider's records")
    };
    let system = |error: &io::Error| Failure::system(path.display(), error);
    let mut file = BufReader::new(File::open(path).map_err(|error| system(&error))?);
    let mut header = [0; HEADER.len()];
    file.read_exact(&mut header).map_err(|_| refused("has no records of a key server".to_owned()))?;
    let mut state = match &header {
        HEADER => State::new(provider.clone()),
        COMPACTED => {
            let snapshot = |error: Unread| match error {
                Unread::System(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    refused("ends within its snapshot".to_owned())
                }
                Unread::System(error) => system(&error),
                Unread::Head => refused("has a damaged snapshot".to_owned()),
                Unread::Snapshot(error) => refused(format!("is refused: {error}")),
            };
            read_snapshot(&mut file, provider, writer).map_err(snapshot)?
        }
        _ => return Err(refused("has no records of a key server, or of a later version".to_owned())),
    };
    let mut octets = Vec::new();
    file.read_to_end(&mut octets).map_err(|error| system(&error))?;
    let mut rest = &octets[..];
    while let Some((change, behind)) = split(rest) {
        let change = Signed::<Change>::decode(change)
            .map_err(|_| refused(format!("has a damaged change behind change {}", state.number())))?;
        state.apply(&change, writer).map_err(|error| refused(format!("is refused: {error}")))?;
        rest = behind;
    }
    Ok(state)
}

/// The next change of `octets`, whole, and what is behind it. A file system may have put zeros after the last one at a crash.
fn split(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = octets.split_first_chunk::<2>()?;
    behind.split_at_checked(usize::from(u16::from_be_bytes(*length))).filter(|(change, _)| !change.is_empty())
}

/// Why a snapshot cannot be read.
enum Unread {
    System(io::Error),
    Head,
    Snapshot(SnapshotError),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<SnapshotError> for Unread {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(error)
    }
}

fn read_snapshot(file: &mut impl Read, provider: &ProviderKey, writer: &VerifyingKey) -> Result<State, Unread> {
    let mut take = |length: usize| {
        let mut octets = vec![0; length];
        file.read_exact(&mut octets).map(|()| octets)
    };
    let length = take(4)?.try_into().map_or(0, u32::from_be_bytes) as usize;
    if length > SnapshotHead::MAX {
        return Err(Unread::Head);
    }
    let head = Signed::<SnapshotHead>::decode(&take(length)?).map_err(|_| Unread::Head)?;
    let lengths: Vec<usize> = head.object().pieces.iter().map(|(length, _)| *length as usize).collect();
    State::from_snapshot(provider.clone(), &head, writer, |index| {
        Ok(take(lengths.get(index).copied().unwrap_or_default())?)
    })
}

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

/// No change of such a file has as many octets, with its length.
const LONGEST: usize = 4_096;

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
    // What a crash left of the last change is shorter than one, or zeros that the file system put there.
    let is_torn = rest.len() < LONGEST && split(rest).is_none() && !rest.starts_with(&[0, 0]);
    if !is_torn && rest.iter().any(|octet| *octet != 0) {
        return Err(refused(format!("is damaged behind change {}", state.number())));
    }
    Ok(state)
}

/// The next change of `octets`, whole, and what is behind it.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::key_files::node::{self, KeyKind};

    #[test]
    fn a_torn_end_is_left_out_and_damage_before_it_is_refused() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/key-records");
        let copy = std::env::temp_dir().join(format!("wayleave-old-records-{}", std::process::id()));
        let load = |kind, file: &str| {
            let _ = fs::remove_file(&copy);
            fs::copy(data.join(file), &copy).expect("copied");
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).expect("set");
            node::load(kind, &copy).expect("a key")
        };
        let provider = ProviderKey::new(load(KeyKind::Accounts, "accounts.key"));
        let writer = wayleave_crypto::sign::SigningKey::from_seed(&load(KeyKind::Writer, "writer.key")).verifying_key();
        let read = |octets: &[u8]| {
            fs::write(&copy, octets).expect("written");
            read(&copy, &provider, &writer).map(|state| state.number())
        };
        let (v1, v2) =
            (fs::read(data.join("records-v1")).expect("there"), fs::read(data.join("records-v2")).expect("there"));
        assert_eq!((read(&v1).expect("whole"), read(&v2).expect("whole")), (9, 9));
        assert_eq!(read(&v1[..v1.len() - 1]).expect("torn"), 8);
        assert_eq!(read(&[&v1[..], &[0; 5_000]].concat()).expect("zeros"), 9);
        // A length that leads nowhere, in front of changes that are whole; zeros in front of something.
        let mut changed = v1.clone();
        changed[HEADER.len()] ^= 0x40;
        let refused = read(&[&changed[..], &v1[HEADER.len()..], &v1[HEADER.len()..], &[7; 4_096]].concat());
        assert!(refused.expect_err("damaged").to_string().contains("damaged"), "no later change is left out");
        assert!(read(&[&v1[..], &[0; 5], &v1[HEADER.len()..]].concat()).is_err());
        for octets in [&v2[..v2.len() - 1], &v1[..20], b""] {
            assert!(read(octets).is_err());
        }
        for at in (0..v1.len()).step_by(11) {
            let mut changed = v1.clone();
            changed[at] ^= 1;
            // The length of one of the last changes may say that it was torn.
            assert!(read(&changed).map_or(true, |number| number < 9), "octet {at}");
        }
        let _ = fs::remove_file(&copy);
    }
}

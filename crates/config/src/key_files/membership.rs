//! The file of a node's membership: one line of text.

use std::fs;
use std::path::Path;

use wayleave_control::realm::{Membership, RealmKey, verify};
use wayleave_core::IdentityKey;
use wayleave_crypto::signed::Signed;
use wayleave_runtime::identity::to_hex;

use super::private;
use crate::failure::{Failure, Outcome};

/// In front of every membership.
const PREFIX: &str = "wayleave-membership-v1.";
/// Largest file that is read, in octets.
const MAX_OCTETS: u64 = 64 * 1024;

/// Writes a membership.
pub fn save(membership: &Signed<Membership>, path: &Path) -> Outcome {
    let text = format!("{PREFIX}{}\n", to_hex(membership.octets()));
    private::put(path, &text)
}

/// Reads a membership; nothing of it is verified.
pub fn load(path: &Path) -> Result<Signed<Membership>, Failure> {
    let system = |error| Failure::system(path.display(), &error).help("`wayleave join TOKEN` writes it");
    if fs::metadata(path).map_err(system)?.len() > MAX_OCTETS {
        return Err(Failure::new(format!("{}: longer than 64 KiB", path.display())));
    }
    let text = fs::read_to_string(path).map_err(system)?;
    let damaged = || {
        Failure::new(format!("{} is not a membership", path.display()))
            .help("`wayleave join TOKEN` writes it again: the same node may ask again")
    };
    parse(&text).ok_or_else(damaged)
}

/// The membership of a line.
pub fn parse(text: &str) -> Option<Signed<Membership>> {
    let octets = from_hex(text.trim().strip_prefix(PREFIX)?)?;
    Signed::decode(&octets).ok()
}

/// The membership is of this realm and of this node.
pub fn check(membership: &Signed<Membership>, realm: RealmKey, own: IdentityKey) -> Result<(), Failure> {
    let object = membership.object();
    if verify(membership, &realm).is_err() {
        return Err(Failure::new("the membership is not signed by this realm")
            .help("compare `realm` with what the realm's operator says"));
    }
    if object.identity != own {
        return Err(Failure::new(format!("the membership is that of {}, not of this identity", object.identity))
            .help("use the files that `wayleave join` wrote together"));
    }
    Ok(())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(pair).collect()
}

//! `check`: what is wrong with a configuration, whichever role it is for.

use super::attest::AttestFile;
use super::member::MemberConfig;
use super::router::RouterFile;
use super::rs::RsConfig;
use super::{Fault, Source};
use crate::failure::{Failure, Failures};

/// What `check` found.
#[derive(Debug)]
pub struct Checked {
    /// The role that the file is for.
    pub role: &'static str,
    /// What is wrong; the file is fine if this is empty.
    pub errors: Vec<Failure>,
    /// What is not wrong, but worth knowing.
    pub warnings: Vec<Failure>,
}

impl Checked {
    pub(super) fn found(role: &'static str, source: &Source, errors: Vec<Fault>, warnings: Vec<Fault>) -> Self {
        let told = |faults: Vec<Fault>| faults.into_iter().map(|fault| source.failure(fault)).collect();
        Self { role, errors: told(errors), warnings: told(warnings) }
    }

    pub(super) fn wrong(role: &'static str, failures: Failures) -> Self {
        Self { role, errors: failures.0, warnings: Vec::new() }
    }
}

/// Checks a configuration; its role follows from its sections.
pub fn check(source: &Source) -> Checked {
    let table: toml::Table = match source.parse() {
        Ok(table) => table,
        Err(failures) => return Checked::wrong("unknown", failures),
    };
    match ["party", "member", "attest", "forwarding"].map(|section| table.contains_key(section)) {
        [true, false, false, false] => RsConfig::checked(source),
        // A member may attest too.
        [false, true, _, false] => MemberConfig::checked(source),
        [false, false, true, false] => AttestFile::checked(source),
        [false, false, false, true] => RouterFile::checked(source),
        _ => {
            let failure = Failure::new("no role has these sections").help(
                "a party of the route server has [party] and [link], a member has [member], [exchange], [router], an attesting \
                 proxy has [attest], [keys] and [[pair]], a verifying router has [forwarding]",
            );
            Checked::wrong("unknown", failure.into())
        }
    }
}

//! `check`: what is wrong with a configuration, whichever role it is for.

use super::rs::StatusSection;
use super::{Fault, Source, attest, consent, gateway, key, lab, member, path, realm, router, rs, stamper};
use crate::failure::{Failure, Failures, Outcome};

/// A role's configuration, for commands that work on any.
pub struct RoleConfig {
    /// As in `wayleave run NAME`.
    pub name: &'static str,
    /// The section that shows that a file is for this role.
    pub section: &'static str,
    /// Its sections, for people.
    pub sections: &'static str,
    pub check: fn(&Source) -> Checked,
    /// What `wayleave init` prints; the number of the party, if that matters.
    pub template: fn(u8) -> String,
}

/// The configurations of all roles.
pub const ROLES: [&RoleConfig; 10] = [
    &rs::ROLE,
    &member::ROLE,
    &attest::ROLE,
    &router::ROLE,
    &realm::ROLE,
    &path::ROLE,
    &consent::ROLE,
    &gateway::ROLE,
    &stamper::ROLE,
    &key::ROLE,
];

/// The result of a check.
#[derive(Debug)]
pub struct Checked {
    /// The role that the file is for.
    pub role: &'static str,
    /// What is wrong; the file is fine if this is empty.
    pub errors: Vec<Failure>,
    /// What is valid, but probably not meant.
    pub warnings: Vec<Failure>,
}

impl Checked {
    pub(super) fn found(role: &'static str, source: &Source, errors: Vec<Fault>, warnings: Vec<Fault>) -> Self {
        let failures = |faults: Vec<Fault>| faults.into_iter().map(|fault| source.failure(fault)).collect();
        Self { role, errors: failures(errors), warnings: failures(warnings) }
    }

    pub(super) fn wrong(role: &'static str, failures: Failures) -> Self {
        Self { role, errors: failures.0, warnings: Vec::new() }
    }
}

/// Checks a configuration; its role follows from its sections.
pub fn check(source: &Source) -> Checked {
    if source.parse::<toml::Table>().is_ok_and(|table| table.contains_key(lab::SECTION)) {
        return lab::checked(source);
    }
    match role_of(source) {
        Ok(role) => (role.check)(source),
        Err(failures) => Checked::wrong("unknown", failures),
    }
}

/// The `[status]` of a configuration, whatever its other sections are: a running role is asked also while its file is being
/// changed.
pub fn status_of(source: &Source) -> Outcome<Option<StatusSection>> {
    #[derive(serde::Deserialize)]
    struct OnlyStatus {
        status: Option<StatusSection>,
    }
    Ok(source.parse::<OnlyStatus>()?.status)
}

/// The role that a configuration is for.
fn role_of(source: &Source) -> Outcome<&'static RoleConfig> {
    let table: toml::Table = source.parse()?;
    let has_section = |role: &RoleConfig| table.contains_key(role.section);
    match ROLES.into_iter().filter(|role| has_section(role)).collect::<Vec<_>>()[..] {
        [role] => Ok(role),
        _ => {
            let known = ROLES.map(|role| format!("`{}` has {}", role.name, role.sections));
            Err(Failure::new("no role has these sections").help(known.join("; ")).into())
        }
    }
}

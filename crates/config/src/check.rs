//! `check`: what is wrong with a configuration, whichever role it is for.

use serde_json::{Value, json};

use super::rs::StatusSection;
use super::{
    Fault, Source, attest, consent, console, documentation, gateway, key, member, path, realm, router, rs, shadow,
    stamper,
};
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
pub const ROLES: [&RoleConfig; 11] = [
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
    &console::ROLE,
];

/// The section that shows that a file describes a laboratory, for `wayleave-lab`.
pub const LABORATORY: &str = "lab";

/// The result of a check.
#[derive(Debug)]
pub struct Checked {
    /// The role that the file is for.
    pub role: &'static str,
    /// What is wrong; the file is fine if this is empty.
    pub errors: Vec<Failure>,
    /// What is valid, but probably not meant.
    pub warnings: Vec<Failure>,
    /// Keys and pins that `wayleave init` wrote, with which the role does not start.
    pub examples: Vec<Failure>,
    /// Addresses and AS numbers that are for documentation, outside a laboratory.
    pub documentation: Vec<Failure>,
    /// What follows from the configuration, and is worth a look.
    pub notes: Vec<String>,
}

impl Checked {
    /// Faults and warnings, with their places in the text.
    pub fn found(role: &'static str, source: &Source, errors: Vec<Fault>, warnings: Vec<Fault>) -> Self {
        let failures = |faults: Vec<Fault>| faults.into_iter().map(|fault| source.failure(fault)).collect();
        let documentation = failures(documentation::faults(role, source));
        let (errors, warnings) = (failures(errors), failures(warnings));
        Self { role, errors, warnings, examples: Vec::new(), documentation, notes: Vec::new() }
    }

    /// The same with the example values that the file still has.
    #[must_use]
    pub(super) fn with_examples(self, source: &Source, examples: Vec<Fault>) -> Self {
        Self { examples: examples.into_iter().map(|fault| source.failure(fault)).collect(), ..self }
    }

    /// The failures of a file that could not be read as a whole.
    pub fn wrong(role: &'static str, failures: Failures) -> Self {
        Self {
            role,
            errors: failures.0,
            warnings: Vec::new(),
            examples: Vec::new(),
            documentation: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// Checks a configuration; its role follows from its sections.
pub fn check(source: &Source) -> Checked {
    if source.is_folder() {
        return (router::ROLE.check)(source);
    }
    if source.parse::<toml::Table>().is_ok_and(|table| table.contains_key(LABORATORY)) {
        let failure = Failure::new("this describes a laboratory, and no role");
        return Checked::wrong(
            "lab",
            failure.help("`wayleave-lab check FILE` checks it, `wayleave-lab up FILE` starts it").into(),
        );
    }
    if source.parse::<toml::Table>().is_ok_and(|table| table.contains_key(shadow::SHADOW)) {
        return (shadow::COMMAND.check)(source);
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

/// That a file is another role's configuration than `role`'s, if its sections say so.
#[must_use]
pub fn of_another_role(source: &Source, role: &str) -> Option<Failure> {
    let other = role_of(source).ok().filter(|other| other.name != role)?.name;
    let path = source.path().display();
    Some(
        Failure::new(format!("{path} is the configuration of another role, `{other}`, expected one of `{role}`"))
            .help(format!("`wayleave run {other} --config {path}` runs it")),
    )
}

/// What was expected, if the text at the caret says that.
pub fn expected(failure: &Failure) -> Option<&str> {
    failure.label()?.strip_prefix("expected ")
}

/// The text at the caret that says why, where it says anything.
pub fn reason(failure: &Failure) -> Option<&str> {
    failure.label().filter(|label| *label != "this" && !label.starts_with("expected "))
}

/// A failure with its place, which may be in a file that the configuration names, as `check --json` prints it.
pub fn describe(failure: &Failure) -> Value {
    let (line, column) = failure.line_column().unzip();
    json!({
        "message": failure.to_string(),
        "file": failure.file(),
        "line": line,
        "column": column,
        "expected": expected(failure),
        "reason": reason(failure),
        "help": failure.remedy(),
    })
}

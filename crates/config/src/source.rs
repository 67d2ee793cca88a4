//! A configuration as it was read, and faults with their place in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miette::NamedSource;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Failures};
use crate::kinds;
use crate::scion_files;
use crate::scion_folder::{Remark, Translation};

/// Largest configuration that is read.
const MOST_OCTETS: u64 = 8 << 20;

/// A configuration's text and path.
#[derive(Clone, Debug)]
pub struct Source {
    path: PathBuf,
    text: String,
    /// Where the text comes from, if it stands for a folder of a SCION router.
    folder: Option<Arc<Translation>>,
}

impl Source {
    /// Reads a configuration; of a folder with an open-source SCION router's files, what they come to. What is wrong with those,
    /// [`Source::parse`] says.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        if scion_files::is_one(path) {
            let text = |file: &Path| Ok(Self::read_with(file, "all three files of a SCION router are needed")?.text);
            let (path, translation) = scion_files::read(path, text)?;
            return Ok(Self { path, text: translation.text().to_owned(), folder: Some(Arc::new(translation)) });
        }
        Self::read_with(path, "`wayleave init ROLE` prints one to start from")
    }

    /// Reads the description of a laboratory.
    pub fn read_laboratory(path: &Path) -> Result<Self, Failure> {
        Self::read_with(path, "docs/examples/lab has laboratories to start from")
    }

    /// Reads a file of a configuration's setting.
    pub fn read_named(path: &Path, setting: &str) -> Result<Self, Failure> {
        Self::read_with(path, &format!("`{setting}` names it in the configuration"))
    }

    fn read_with(path: &Path, absent: &str) -> Result<Self, Failure> {
        let unreadable = |error: std::io::Error| {
            let failure = Failure::new(format!("{}: {error}", path.display()));
            match error.kind() {
                ErrorKind::NotFound | ErrorKind::IsADirectory => failure.help(absent),
                ErrorKind::InvalidData => failure.help("configurations are text in UTF-8: save it as such"),
                _ => failure,
            }
        };
        let length = fs::metadata(path).map_err(unreadable)?.len();
        if length > MOST_OCTETS {
            return Err(Failure::new(format!("{}: longer than 8 MiB", path.display())));
        }
        let text = fs::read_to_string(path).map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), text, folder: None })
    }

    /// A text as a file of this name would have it.
    #[cfg(test)]
    pub(crate) fn of_text(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.to_owned(), folder: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same file with another text.
    #[must_use]
    pub fn with_text(&self, text: String) -> Self {
        Self { path: self.path.clone(), text, folder: None }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it stands for a folder of a SCION router, and no file has its text.
    pub fn is_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// What this router does otherwise than the one whose folder it is.
    pub fn differences(&self) -> Vec<Failure> {
        self.folder.iter().flat_map(|folder| folder.warnings()).map(Failure::new).collect()
    }

    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Failures> {
        let faults = self.folder.as_deref().map(Translation::faults).unwrap_or_default();
        if !faults.is_empty() {
            let failure =
                |Remark { place, message }: &Remark| Failure::new(format!("{}: {message}", self.in_folder(place)));
            return Err(Failures(faults.iter().map(failure).collect()));
        }
        toml::from_str(&self.text).map_err(|error| {
            let fault = Fault { span: error.span(), message: error.message().to_owned(), help: None };
            self.failure(fault).into()
        })
    }

    /// The path of a file that the configuration names, which is relative to the configuration's own folder.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// The keys, such as `link.connect`, whose values differ in `after`, without those in `live` and below.
    pub fn changed(&self, after: &Source, live: &[&str]) -> Vec<String> {
        let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
        for (source, keys) in [(self, &mut old), (after, &mut new)] {
            flatten("", &toml::Value::Table(source.text.parse().unwrap_or_default()), live, keys);
        }
        let is_live = |key: &str| {
            let below =
                |live: &&str| key.strip_prefix(*live).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            live.iter().any(below)
        };
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        keys.into_iter().filter(|key| old.get(*key) != new.get(*key) && !is_live(key)).cloned().collect()
    }

    /// A place in a folder's files, with the folder.
    fn in_folder(&self, place: &str) -> String {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let whole = if place.is_empty() { folder.to_owned() } else { folder.join(place) };
        whole.display().to_string()
    }

    /// The fault with its location in the text.
    pub fn failure(&self, fault: Fault) -> Failure {
        if let Some(folder) = &self.folder {
            let place = fault.span.and_then(|span| folder.place(span.start)).unwrap_or_default();
            let place = self.in_folder(place);
            // Failures of the master key begin with its path.
            let failure = if fault.message.starts_with(&place) {
                Failure::new(fault.message)
            } else {
                Failure::new(format!("{place}: {}", fault.message))
            };
            return match fault.help {
                Some(help) => failure.help(help),
                None => failure,
            };
        }
        let (what, label) = split(&fault.message);
        let mut failure = match fault.span {
            // The line has the secret, and is not shown.
            Some(span) if what.ends_with(kinds::IS_SECRET) => {
                let before = self.text.get(..span.start).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                Failure::new(format!("{}:{line}: {what}, {label}", self.path.display()))
                    .help("who may have read this file has it: ask for another, or make one, and remove this one")
            }
            Some(span) => {
                let source = NamedSource::new(self.path.display().to_string(), self.text.clone());
                Failure::new(what).at(source, span, label)
            }
            None => Failure::new(format!("{}: {what}", self.path.display())),
        };
        if let Some(help) = fault.help {
            failure = failure.help(help);
        }
        failure
    }
}

/// Splits a message into the fault and the text at the caret (what was expected, or the reason). Our messages and those of
/// the TOML reader have the form `what is wrong, expected what` or `what is wrong: reason`.
fn split(message: &str) -> (String, String) {
    if let Some((what, expected)) = message.split_once(", expected ") {
        return (what.to_owned(), format!("expected {}", translate(&expected.replace('\n', "; "))));
    }
    if let Some(("", expected)) = message.split_once("expected ") {
        return ("invalid syntax".to_owned(), format!("expected {}", translate(expected)));
    }
    if message == "duplicate key" {
        return (message.to_owned(), "expected once; remove one of the two".to_owned());
    }
    if message.starts_with("missing field ") {
        return (message.to_owned(), "is missing here".to_owned());
    }
    match message.split_once(": ") {
        Some((what, reason)) => (what.to_owned(), reason.replace('\n', "; ")),
        None => (message.to_owned(), "this".to_owned()),
    }
}

/// What the TOML reader expected, without Rust's names of types.
fn translate(expected: &str) -> &str {
    match expected {
        "u8" => "a number from 0 to 255",
        "u16" => "a number from 0 to 65535",
        "u32" => "a number from 0 to 4294967295",
        "u64" | "usize" => "a number, 0 or more",
        "a boolean" => "true or false",
        "a string" | "path string" | "literal string" => "text in quotes, such as \"text\"",
        "a sequence" => "a list, such as [1, 2]",
        "a map" => "a table, such as { name = \"value\" } or under a [heading]",
        expected if expected.starts_with("struct ") => "a table, such as { name = \"value\" } or under a [heading]",
        expected => expected,
    }
}

/// Values by their full keys. A list is one value.
fn flatten(prefix: &str, value: &toml::Value, live: &[&str], keys: &mut BTreeMap<String, Vec<toml::Value>>) {
    let within = format!("{prefix}.");
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                let key = if prefix.is_empty() { name.clone() } else { format!("{within}{name}") };
                flatten(&key, value, live, keys);
            }
        }
        // The tables of a list are told apart where something in them is live.
        toml::Value::Array(tables) if live.iter().any(|live| live.starts_with(&within)) => {
            tables.iter().for_each(|table| flatten(prefix, table, live, keys));
        }
        value => keys.entry(prefix.to_owned()).or_default().push(value.clone()),
    }
}

/// A fault in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its location, if it has one.
    pub span: Option<Range<usize>>,
    /// What is wrong, and after `, expected ` what was expected.
    pub message: String,
    pub help: Option<String>,
}

impl Fault {
    /// A fault at a location.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span: Some(span), message: message.into(), help: None }
    }

    /// A failure (of a file that the configuration names) at the location of the name.
    pub fn of(span: Range<usize>, failure: &Failure) -> Self {
        Self { span: Some(span), message: failure.to_string(), help: failure.remedy().map(str::to_owned) }
    }

    /// A failure within a file that the configuration names, with the place there, at the location of the name.
    pub fn within(span: Range<usize>, failure: &Failure) -> Self {
        let place = failure.place().map_or(String::new(), |place| format!("{place}: "));
        let label =
            failure.label().filter(|label| *label != "this").map_or(String::new(), |label| format!(", {label}"));
        let help = failure.remedy().map(str::to_owned);
        Self { span: Some(span), message: format!("{place}{failure}{label}"), help }
    }

    /// What to do about it.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_toml_reader_are_translated() {
        let split = |message| split(message).1;
        assert_eq!(split("invalid value: integer `300`, expected u8"), "expected a number from 0 to 255");
        assert_eq!(
            split("string values must be quoted, expected literal string"),
            "expected text in quotes, such as \"text\""
        );
        assert!(split("invalid type: integer `1`, expected struct LinkSection").starts_with("expected a table"));
        assert_eq!(split("the rule does nothing: give it `reject`"), "give it `reject`");
        assert_eq!(split("missing field `key`"), "is missing here");
    }

    #[test]
    fn changed_keys_are_named_except_those_that_a_reload_applies() {
        let source = |text: &str| Source::of_text("x.toml", text);
        let before = source("[a]\nb = 1\nc = [1]\n[[rule]]\nx = 1\n[d]\ne = { f = 1 }\n");
        let after = source("[d]\ne.f = 2\n[[rule]]\nx = 2\n# a remark\n[a]\nb = 1\nc = [2]\ng = 1\n");
        assert_eq!(before.changed(&after, &["rule"]), ["a.c", "a.g", "d.e.f"]);
        assert_eq!(before.changed(&after, &["rule", "a", "d.e"]), [""; 0]);
        let list = |x: &str| source(&format!("[[a]]\nb = 1\nx = 1\n[[a]]\nb = 2\n{x}\n"));
        assert_eq!(list("x = 1").changed(&list("x = 2"), &[]), ["a"]);
        assert_eq!(list("x = 1").changed(&list("x = 2"), &["a.x"]), [""; 0]);
        assert_eq!(list("x = 1").changed(&list("x = 2"), &["a.b"]), ["a.x"]);
    }
}

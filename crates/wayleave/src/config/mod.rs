//! Configuration files: TOML in, valid values out, or failures with line, column and caret.

mod check;
pub mod member;
pub mod rs;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use miette::NamedSource;
use serde::de::DeserializeOwned;

pub use check::check;
pub use words::{HostPort, PublicKey, Text};

use crate::failure::{Failure, Failures};

/// Largest configuration that is read.
const MOST_OCTETS: u64 = 8 << 20;

/// The example values that `init` prints: well formed, but nobody's.
pub const EXAMPLE_OPERATOR: &str = "ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
/// Likewise, the fingerprints of nobody's certificates.
pub const EXAMPLE_PINS: [&str; 2] = [
    "sha256:1111111111111111111111111111111111111111111111111111111111111111",
    "sha256:2222222222222222222222222222222222222222222222222222222222222222",
];

/// A configuration's text and where it lies.
#[derive(Clone, Debug)]
pub struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let unreadable = |error: std::io::Error| {
            let failure = Failure::new(format!("{}: {error}", path.display()));
            match error.kind() {
                std::io::ErrorKind::NotFound => failure.help("`wayleave init ROLE` prints one to start from"),
                _ => failure,
            }
        };
        let length = fs::metadata(path).map_err(unreadable)?.len();
        if length > MOST_OCTETS {
            return Err(Failure::new(format!("{}: longer than 8 MiB", path.display())));
        }
        let text = fs::read_to_string(path).map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), text })
    }

    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Failures> {
        toml::from_str(&self.text).map_err(|error| {
            let fault = Fault { span: error.span(), message: error.message().to_owned(), help: None };
            self.failure(fault).into()
        })
    }

    /// The path of a file that the configuration names, which is relative to the configuration's own folder.
    pub fn beside(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// The keys, as in `link.connect`, whose values differ in `after`, apart from those in `live` and below them.
    pub fn changed(&self, after: &Source, live: &[&str]) -> Vec<String> {
        let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
        for (source, keys) in [(self, &mut old), (after, &mut new)] {
            flatten("", &toml::Value::Table(source.text.parse().unwrap_or_default()), keys);
        }
        let is_live = |key: &str| {
            let below =
                |live: &&str| key.strip_prefix(*live).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            live.iter().any(below)
        };
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        keys.into_iter().filter(|key| old.get(*key) != new.get(*key) && !is_live(key)).cloned().collect()
    }

    /// The fault with its place in the text.
    pub fn failure(&self, fault: Fault) -> Failure {
        // What toml says has the form `what is wrong, expected what`; the second half belongs at the caret.
        let (what, expected) = match fault.message.split_once(", expected ") {
            Some((what, expected)) => (what.to_owned(), format!("expected {expected}")),
            None => (fault.message, "here".to_owned()),
        };
        let expected = expected.replace('\n', "; ");
        let mut failure = match fault.span {
            Some(span) => {
                let source = NamedSource::new(self.path.display().to_string(), self.text.clone());
                Failure::new(what).at(source, span, expected)
            }
            None => Failure::new(format!("{}: {what}", self.path.display())),
        };
        if let Some(help) = fault.help {
            failure = failure.help(help);
        }
        failure
    }
}

/// Values by their full keys. A list is one value.
fn flatten(prefix: &str, value: &toml::Value, keys: &mut BTreeMap<String, toml::Value>) {
    let toml::Value::Table(table) = value else {
        keys.insert(prefix.to_owned(), value.clone());
        return;
    };
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        flatten(&key, value, keys);
    }
}

/// Something wrong in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, if it has a place.
    pub span: Option<Range<usize>>,
    /// What, and after `, expected ` what was expected.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl Fault {
    /// A fault at a place.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span: Some(span), message: message.into(), help: None }
    }

    /// What to do about it.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

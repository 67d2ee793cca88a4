//! Which settings a reload changes, and which only a restart: what `wayleave reload` and `wayleave diff` are told.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use wayleave_runtime::http::{Parameters, ViewError};

use crate::config::Source;
use crate::failure::{Failure, Failures, Outcome};

/// What the status pages have the role's loop do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    Reload,
    /// Say what a reload with this file would change.
    Diff(PathBuf),
}

/// The way to the role's loop, with where its answer goes.
pub type Orders = mpsc::Sender<(Order, oneshot::Sender<Value>)>;

/// Gives an order, and waits for what comes of it.
pub async fn ask(orders: Orders, order: Result<Order, ViewError>) -> Result<Value, ViewError> {
    let (answer, answered) = oneshot::channel();
    orders.send((order?, answer)).await.map_err(|_| ViewError::Unavailable)?;
    answered.await.map_err(|_| ViewError::Unavailable)
}

/// The order to compare with `?file=PATH`. Only files beside the role's configuration are read: whoever may ask need not be who may read all that the
/// role may.
pub fn diff_of(configuration: &Path, parameters: &Parameters) -> Result<Order, ViewError> {
    let file = parameters.get("file").ok_or_else(|| ViewError::Request("no `file`, expected a path".to_owned()))?;
    let folder = |path: &Path| fs::canonicalize(path).ok().and_then(|path| path.parent().map(Path::to_owned));
    let (own, other) = (folder(configuration), folder(Path::new(file)));
    if own.is_none() || own != other {
        let why = "expected a file that the role can find beside its own configuration, with its whole path: put the changed one there";
        return Err(ViewError::Request(format!("{file}: {why}")));
    }
    Ok(Order::Diff(file.into()))
}

/// The settings of a role that runs.
pub struct Settings {
    /// With which it started: what needs a restart is as there.
    begun: Source,
    /// Of the last reload, or of the start: what a reload applies is as there.
    in_force: Source,
    /// The settings that a reload applies, with all below them.
    live: &'static [&'static str],
}

impl Settings {
    pub fn new(begun: Source, live: &'static [&'static str]) -> Self {
        Self { in_force: begun.clone(), begun, live }
    }

    /// What differs in `source`.
    fn changes(&self, source: &Source) -> Value {
        let restart = self.begun.changed(source, self.live);
        let all = self.in_force.changed(source, &[]);
        let not_live = self.in_force.changed(source, self.live);
        let reload: Vec<String> = all.into_iter().filter(|key| !not_live.contains(key)).collect();
        json!({ "reload": reload, "restart": restart, "errors": [] })
    }

    /// `source` was applied; what that changed.
    pub fn apply(&mut self, source: Source) -> Value {
        let mut said = self.changes(&source);
        self.in_force = source;
        said["applied"] = json!(true);
        said
    }

    /// What a reload with this file would change, if `check` finds no errors in it.
    pub fn diff(&self, file: &Path, check: impl FnOnce(&Source) -> Outcome) -> Value {
        let source = Source::read(file).map_err(Failures::from);
        match source.and_then(|source| check(&source).map(|()| source)) {
            Ok(source) => {
                let mut said = self.changes(&source);
                said["applied"] = json!(false);
                said
            }
            Err(failures) => refused(&failures),
        }
    }
}

/// What is said of a configuration that is not taken. Pages are read without a login: values of the file are left out.
pub fn refused(failures: &Failures) -> Value {
    let error = |failure: &Failure| {
        let message = failure.without_values();
        // Where the message has it already, it is told once.
        let help = failure.remedy().filter(|help| !message.contains(help));
        json!({ "message": message, "help": help })
    };
    let errors: Vec<Value> = failures.0.iter().map(error).collect();
    json!({ "applied": false, "reload": [], "restart": [], "errors": errors })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(folder: &Path, text: &str) -> Source {
        let file = folder.join("a.toml");
        fs::write(&file, text).expect("written");
        Source::read(&file).expect("a file")
    }

    #[test]
    fn what_a_reload_changes_is_told_from_what_needs_a_restart() {
        let folder = std::env::temp_dir().join(format!("wayleave-settings-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let begun = source(&folder, "[member]\nslot = 1\n[rules]\none = 1\n");
        let mut settings = Settings::new(begun, &["rules"]);
        let file = folder.join("a.toml");
        source(&folder, "[member]\nslot = 2\n[rules]\none = 2\n");
        let said = settings.diff(&file, |_| Ok(()));
        let expected = |applied: bool, reload: Value, restart: Value| json!({ "applied": applied, "reload": reload, "restart": restart, "errors": [] });
        assert_eq!(said, expected(false, json!(["rules.one"]), json!(["member.slot"])));
        let said = settings.apply(Source::read(&file).expect("a file"));
        assert_eq!(said, expected(true, json!(["rules.one"]), json!(["member.slot"])));
        // What needs a restart still does; the rest is in force.
        let said = settings.diff(&file, |_| Ok(()));
        assert_eq!(said, expected(false, json!([]), json!(["member.slot"])));
        let said = settings.diff(&file, |_| Err(Failure::new("no such peer").help("name one").into()));
        assert_eq!(said["errors"], json!([{ "message": "no such peer (name one)", "help": null }]));
        // Only what lies beside the configuration is read.
        let asked = |path: &Path| diff_of(&file, &Parameters::from([("file".to_owned(), path.display().to_string())]));
        assert_eq!(asked(&file), Ok(Order::Diff(file.clone())));
        for other in [Path::new("/etc/hostname"), &folder.join("../a.toml"), Path::new("")] {
            assert!(asked(other).is_err(), "{}", other.display());
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}

//! Errors for operators: what failed, where in a file, what was expected, what to do.

use std::fmt;
use std::io;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

/// A location in a file, and the text at the caret.
#[derive(Debug, Clone)]
struct Location {
    source: NamedSource<String>,
    span: Range<usize>,
    label: String,
}

/// An error, printed by miette with the file's line and a caret if it has a location.
#[derive(Debug, Clone)]
pub struct Failure {
    message: String,
    help: Option<String>,
    location: Option<Box<Location>>,
    usage: bool,
}

impl Failure {
    /// A failure in one sentence without a full stop.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), help: None, location: None, usage: false }
    }

    /// Whether it is a mistake of whoever gave the command or made the request.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        self.usage
    }

    /// A mistake on the command line, which ends the process with code 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { usage: true, ..Self::new(message) }
    }

    /// An error of the operating system, with a remedy where one is known.
    pub fn system(message: impl fmt::Display, error: &io::Error) -> Self {
        let failure = Self::new(format!("{message}: {error}"));
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                failure.help("another process listens there: stop it (`ss -ltunp` names it) or choose another port")
            }
            io::ErrorKind::AddrNotAvailable => {
                failure.help("this machine has no such address: `ip address` lists those that it has")
            }
            io::ErrorKind::AlreadyExists => failure.help("move it away, or choose another name"),
            _ => failure,
        }
    }

    /// A BGP port that cannot be opened, usually for want of a capability.
    pub fn listen_bgp(message: impl fmt::Display, error: &io::Error) -> Self {
        let failure = Self::system(message, error);
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.help("ports below 1024 need CAP_NET_BIND_SERVICE (the systemd unit has it), or use port 1790")
            }
            _ => failure,
        }
    }

    /// Adds a remedy.
    #[must_use]
    pub fn help(mut self, help: impl fmt::Display) -> Self {
        self.help = Some(help.to_string());
        self
    }

    /// Adds the location: the octets of the file, and the text at the caret.
    #[must_use]
    pub fn at(mut self, source: NamedSource<String>, span: Range<usize>, label: impl fmt::Display) -> Self {
        self.location = Some(Box::new(Location { source, span, label: label.to_string() }));
        self
    }

    /// What to do about it, if known.
    pub fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The text at the caret.
    pub fn label(&self) -> Option<&str> {
        self.location.as_ref().map(|location| location.label.as_str())
    }

    /// Line and column, from 1, of the caret.
    pub fn line_column(&self) -> Option<(usize, usize)> {
        let Location { source, span, .. } = self.location.as_deref()?;
        let text = source.inner();
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Some((line, column))
    }

    /// The file of the caret.
    pub fn file(&self) -> Option<&str> {
        Some(self.location.as_deref()?.source.name())
    }

    /// File, line and column of the caret, as editors take them.
    pub fn place(&self) -> Option<String> {
        let (line, column) = self.line_column()?;
        Some(format!("{}:{line}:{column}", self.file()?))
    }

    /// All of it in one line, for a log: the place, what is wrong, what was expected and what to do.
    pub fn in_one_line(&self) -> String {
        let place = self.place().map_or(String::new(), |place| format!("{place}: "));
        let label = self.label().filter(|label| *label != "this").map_or(String::new(), |label| format!(", {label}"));
        let help = self.remedy().map_or(String::new(), |help| format!(" ({help})"));
        format!("{place}{self}{label}{help}")
    }

    /// The place, and what was expected there, for whoever may not see the file: what stands there may be a secret in a wrong place.
    pub fn without_values(&self) -> String {
        let Some(place) = self.place().filter(|_| self.repeats_value()) else { return self.in_one_line() };
        let label = self.label().unwrap_or_default();
        if label.starts_with("expected ") { format!("{place}: {label}") } else { place }
    }

    /// Whether it repeats what stands at its place. A field's name is no value.
    fn repeats_value(&self) -> bool {
        let Some(Location { source, span, label }) = self.location.as_deref() else { return false };
        let value = source.inner().get(span.clone()).unwrap_or_default().trim_matches(['"', '\'']);
        let repeats = |text: &str| {
            let begins = ["invalid value: ", "invalid type: ", "unknown variant "];
            begins.iter().any(|begin| text.starts_with(begin)) || (!value.is_empty() && text.contains(value))
        };
        !self.message.starts_with("unknown field ") && (repeats(&self.message) || repeats(label))
    }

    /// From any error, with its causes.
    pub fn from_error(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Self::new(message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.location.as_ref().map(|location| &location.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let Location { span, label, .. } = self.location.as_deref()?;
        let label = LabeledSpan::new(Some(label.clone()), span.start, span.len());
        Some(Box::new(std::iter::once(label)))
    }
}

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failures>;

/// One failure or several, printed one after another.
#[derive(Debug, Clone)]
pub struct Failures(pub Vec<Failure>);

impl Failures {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        if self.0.iter().any(|failure| failure.usage) { 2 } else { 1 }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

impl From<wayleave_runtime::store::StoreError> for Failure {
    fn from(error: wayleave_runtime::store::StoreError) -> Self {
        Self::from_error(&error)
    }
}

impl From<Failure> for Failures {
    fn from(failure: Failure) -> Self {
        Self(vec![failure])
    }
}

macro_rules! from_errors {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for Failures {
            fn from(error: $error) -> Self {
                Failure::from_error(&error).into()
            }
        })*
    };
}

from_errors!(
    wayleave_runtime::identity::IdentityError,
    wayleave_runtime::store::StoreError,
    wayleave_runtime::logs::FilterError,
    wayleave_route_server::directory::ChainError,
    wayleave_route_server::directory::ProposalError,
    wayleave_route_server::key_roles::SharedKey,
    wayleave_route_server::party::StartError,
    rustls::Error,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_file_is_not_repeated_where_everybody_reads() {
        let at = |value: &str, message: &str, label: &str| {
            let text = format!("key = \"{value}\"\n");
            let span = 6..text.len() - 1;
            Failure::new(message).at(NamedSource::new("a.toml", text), span, label).without_values()
        };
        let secret = "postgresql://key:hunter2@db/w";
        let said = at(secret, &format!("invalid value: string \"{secret}\""), "expected a file");
        assert_eq!(said, "a.toml:1:7: expected a file");
        assert_eq!(at(secret, &format!("{secret} is no file"), "this"), "a.toml:1:7");
        // What is said of it in other words stays.
        let said = at("anchor.pub", "the trust anchor other has changed", "it has another Ed25519 key");
        assert_eq!(said, "a.toml:1:7: the trust anchor other has changed, it has another Ed25519 key");
    }
}

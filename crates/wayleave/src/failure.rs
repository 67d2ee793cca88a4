//! The one style of error at the edge: what failed, where in a file, what was expected, what to do.

use std::fmt;
use std::io;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

/// Where in a file, and what stands at the caret.
#[derive(Debug, Clone)]
struct Place {
    source: NamedSource<String>,
    span: Range<usize>,
    label: String,
}

/// Something that a person must know about. Printed by miette, with the file's line and a caret where there is one.
#[derive(Debug, Clone)]
pub struct Failure {
    message: String,
    help: Option<String>,
    place: Option<Box<Place>>,
    usage: bool,
}

impl Failure {
    /// A failure in one sentence without a full stop.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), help: None, place: None, usage: false }
    }

    /// A mistake on the command line, which ends the process with code 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { usage: true, ..Self::new(message) }
    }

    /// What the system refused, with what to do about it where that is known.
    pub fn system(message: impl fmt::Display, error: &io::Error) -> Self {
        let failure = Self::new(format!("{message}: {error}"));
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                failure.help("another process listens there: stop it (`ss -ltnp` names it) or choose another port")
            }
            io::ErrorKind::AddrNotAvailable => {
                failure.help("this machine has no such address: `ip address` lists those that it has")
            }
            io::ErrorKind::AlreadyExists => failure.help("move it away, or choose another name"),
            _ => failure,
        }
    }

    /// A refused BGP socket, which usually lacks a capability.
    pub fn listen_bgp(message: impl fmt::Display, error: &io::Error) -> Self {
        let failure = Self::system(message, error);
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.help("ports below 1024 need CAP_NET_BIND_SERVICE (the systemd unit has it), or use port 1790")
            }
            _ => failure,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn help(mut self, help: impl fmt::Display) -> Self {
        self.help = Some(help.to_string());
        self
    }

    /// The octets of a file that it is about, and what stands at the caret.
    #[must_use]
    pub fn at(mut self, source: NamedSource<String>, span: Range<usize>, label: impl fmt::Display) -> Self {
        self.place = Some(Box::new(Place { source, span, label: label.to_string() }));
        self
    }

    /// What to do, if that was said.
    pub fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// What stands at the caret.
    pub fn label(&self) -> Option<&str> {
        self.place.as_ref().map(|place| place.label.as_str())
    }

    /// Line and column, from 1, of the caret.
    pub fn line_column(&self) -> Option<(usize, usize)> {
        let Place { source, span, .. } = self.place.as_deref()?;
        let text = source.inner();
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Some((line, column))
    }

    /// From any error, whose causes are told as well.
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
        self.place.as_ref().map(|place| &place.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let Place { span, label, .. } = self.place.as_deref()?;
        let label = LabeledSpan::new(Some(label.clone()), span.start, span.len());
        Some(Box::new(std::iter::once(label)))
    }
}

/// What a command answers.
pub type Outcome<T = ()> = Result<T, Failures>;

/// One failure or several. Printed one after another.
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
    wayleave_route_server::directory::SetError,
    wayleave_route_server::party::StartError,
    rustls::Error,
);

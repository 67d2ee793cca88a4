//! What the API says when it refuses: problem details (RFC 9457), all of one shape, which say who erred.

use serde_json::{Value, json};

use crate::failure::Failure;

/// The kinds of problems; each has a status and a party that erred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemKind {
    /// The request is malformed, or says what cannot be.
    Request,
    /// There is no token, or nobody's.
    Credential,
    /// The token allows less.
    Access,
    NotFound,
    Method,
    /// The state does not allow it: it exists already, is full, was used.
    Conflict,
    /// Changes go to the writer.
    Replica,
    /// It was there, and is no more.
    Gone,
    TooLarge,
    TooMany,
    Disk,
    Busy,
    Stopping,
}

impl ProblemKind {
    /// Name, status and who erred.
    fn parts(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::Request => ("request", 400, "caller"),
            Self::Credential => ("credential", 401, "caller"),
            Self::Access => ("access", 403, "caller"),
            Self::NotFound => ("not-found", 404, "caller"),
            Self::Method => ("method", 405, "caller"),
            Self::Conflict => ("conflict", 409, "caller"),
            Self::Replica => ("replica", 409, "caller"),
            Self::Gone => ("gone", 410, "caller"),
            Self::TooLarge => ("too-large", 413, "caller"),
            Self::TooMany => ("too-many", 429, "caller"),
            Self::Disk => ("disk", 500, "server"),
            Self::Busy => ("busy", 503, "server"),
            Self::Stopping => ("stopping", 503, "server"),
        }
    }
}

/// A problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub kind: ProblemKind,
    detail: String,
    help: Option<String>,
    /// The methods that the path has instead.
    pub allow: Option<String>,
}

impl Problem {
    /// A problem in one sentence without a full stop.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), help: None, allow: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Says which methods the path has instead.
    #[must_use]
    pub fn allow(self, methods: String) -> Self {
        Self { allow: Some(methods), ..self }
    }

    pub fn status(&self) -> u16 {
        self.kind.parts().1
    }

    pub fn json(&self) -> Value {
        let (name, status, erred) = self.kind.parts();
        let mut value = json!({
            "type": format!("urn:wayleave:problem:{name}"),
            "title": title(self.kind),
            "status": status,
            "detail": self.detail,
            "erred": erred,
        });
        if let Some(help) = &self.help {
            value["help"] = json!(help);
        }
        value
    }
}

fn title(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Request => "The request is malformed or impossible",
        ProblemKind::Credential => "The request has no valid token",
        ProblemKind::Access => "The token allows reading alone",
        ProblemKind::NotFound => "There is no such thing",
        ProblemKind::Method => "The path has no such method",
        ProblemKind::Conflict => "The records do not allow the change",
        ProblemKind::Replica => "Changes go to the writer",
        ProblemKind::Gone => "It is no longer there",
        ProblemKind::TooLarge => "The request is too long",
        ProblemKind::TooMany => "Too many requests",
        ProblemKind::Disk => "The server cannot write",
        ProblemKind::Busy => "The server is busy",
        ProblemKind::Stopping => "The server is starting or stopping",
    }
}

/// What a request says and cannot be.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let problem = Self::new(ProblemKind::Request, failure.to_string());
        match failure.remedy() {
            Some(help) => problem.help(help),
            None => problem,
        }
    }
}

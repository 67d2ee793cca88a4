//! Changes that the operator or an invited holder makes through the API: on the disk before they are answered.

use crate::roles::events::event;
use tracing::error;
use wayleave_control::capability::{ChangeBody, State};
use wayleave_core::Now;

use super::api::problem::{Problem, ProblemKind};
use super::core::Core;
use crate::failure::Failure;
use crate::provider::orders::summary;

/// Attempts at a change while commands append others.
const ATTEMPTS: usize = 8;

impl Core {
    /// Makes the change that `decide` says by the state as it is then; none if it says so. Returns the number of the state.
    ///
    /// # Errors
    /// The inner one is for who asked. The outer one is this machine's: the role ends.
    pub fn change(
        &mut self,
        by: &str,
        now: Now,
        decide: &mut dyn FnMut(&State) -> Result<Option<ChangeBody>, Problem>,
    ) -> Result<Result<u64, Problem>, Failure> {
        // What others appended counts before it is decided.
        let unread = match self.changes.read_new() {
            Ok(unread) => unread,
            Err(failure) => return Ok(Err(disk(&failure))),
        };
        self.take(unread)?;
        for _ in 0..ATTEMPTS {
            let body = match decide(self.server.state()) {
                Ok(Some(body)) => body,
                Ok(None) => return Ok(Ok(self.server.state().number())),
                Err(problem) => return Ok(Err(problem)),
            };
            let signed = match self.server.sign(body, now.unix) {
                None => return Ok(Err(Problem::new(ProblemKind::Replica, "this key server is a replica"))),
                Some(Err(error)) => return Ok(Err(Problem::new(ProblemKind::Conflict, error.to_string()))),
                Some(Ok(signed)) => signed,
            };
            let unread = match self.changes.append(&signed) {
                Ok(unread) => unread,
                Err(failure) => return Ok(Err(disk(&failure))),
            };
            if !unread.is_empty() {
                self.take(unread)?;
                continue;
            }
            self.server
                .apply(&signed)
                .map_err(|error| Failure::new(format!("a change that was just signed is refused: {error}")))?;
            let number = signed.object().number;
            let what = summary(&signed.object().body);
            self.log.report(event!(INFO "api-change" { number, by; what } "change by the API: {what}"));
            self.prepare(now);
            self.announce();
            return Ok(Ok(number));
        }
        Ok(Err(Problem::new(ProblemKind::Busy, "other changes come all the time")))
    }
}

fn disk(failure: &Failure) -> Problem {
    error!("a change by the API was not made: {failure}; check the disk");
    Problem::new(ProblemKind::Disk, "the change could not be written to the server's disk; nothing has changed")
        .help("the server's log has the cause; once the disk has space, send the request again")
}

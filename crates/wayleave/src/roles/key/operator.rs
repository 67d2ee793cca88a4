//! Changes that the operator or an invited holder makes through the API: durable before they are answered.

use std::sync::Mutex;

use crate::roles::events::{EventLine, event};
use tracing::error;
use wayleave_control::capability::{Change, ChangeBody, State};
use wayleave_core::Now;
use wayleave_crypto::signed::Signed;

use super::api::problem::{Problem, ProblemKind};
use super::core::{ATTEMPTS, Core, database, hold, lock};
use crate::failure::Failure;
use crate::provider::orders::summary;

/// Makes the change that `decide` says by the state as it is then, by somebody for a reason; none if it says so. Returns the number of the state. It may wait for
/// the database.
///
/// # Errors
/// The inner one is for who asked. The outer one is this machine's: the role ends.
pub fn change(
    core: &Mutex<Core>,
    (by, reason): (&str, &str),
    now: Now,
    decide: &mut dyn FnMut(&State) -> Result<Option<ChangeBody>, Problem>,
) -> Result<Result<u64, Problem>, Failure> {
    let database = database(core);
    let mut database = hold(&database);
    // What others wrote counts before it is decided.
    let unread = database.read_new()?;
    {
        let mut core = lock(core);
        core.note_outage(&database);
        core.take(unread)?;
    }
    if let Some(outage) = database.outage() {
        return Ok(Err(disk(&Failure::new(&outage.why))));
    }
    for _ in 0..ATTEMPTS {
        let (signed, effects) = {
            let core = lock(core);
            let body = match decide(core.server.state()) {
                Ok(Some(body)) => body,
                Ok(None) => return Ok(Ok(core.server.state().number())),
                Err(problem) => return Ok(Err(problem)),
            };
            let signed = match core.server.sign(body, now.unix) {
                Err(error) => return Ok(Err(Problem::new(ProblemKind::Conflict, error.to_string()))),
                Ok(signed) => signed,
            };
            let effects = core.effects(&signed);
            (signed, effects)
        };
        let appended = database.append(&signed, effects, (by, reason));
        let mut core = lock(core);
        core.note_outage(&database);
        match appended {
            Ok(unread) if unread.is_empty() => return core.changed(&signed, by, now).map(Ok),
            Ok(unread) => core.take(unread)?,
            Err(failure) => return Ok(Err(disk(&failure))),
        }
    }
    Ok(Err(Problem::new(ProblemKind::Busy, "other changes come all the time")))
}

impl Core {
    /// A change is durable: it counts.
    fn changed(&mut self, signed: &Signed<Change>, by: &str, now: Now) -> Result<u64, Failure> {
        self.server
            .apply(signed)
            .map_err(|error| Failure::new(format!("a change that was just signed is refused: {error}")))?;
        let number = signed.object().number;
        let what = summary(&signed.object().body);
        self.log.report(change_line(number, by, &what));
        self.prepare(now);
        self.announce();
        Ok(number)
    }
}

pub fn change_line(number: u64, by: &str, what: &str) -> EventLine {
    event!(INFO "api-change" { number, by; what } "change by the API: {what}")
}

fn disk(failure: &Failure) -> Problem {
    error!("a change by the API was not made: {failure}");
    Problem::new(
        ProblemKind::Disk,
        "the change could not be written; nothing has changed, unless the database got it and could not say so",
    )
    .help("the server's log has the cause; once the database can be written to, send the request again")
}

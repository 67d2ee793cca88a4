//! Changes that the operator or an invited holder makes through the API: on the disk before they are answered.

use std::sync::Mutex;

use crate::roles::events::event;
use tracing::error;
use wayleave_control::capability::{Change, ChangeBody, State};
use wayleave_core::Now;
use wayleave_crypto::signed::Signed;

use super::api::problem::{Problem, ProblemKind};
use super::core::{Core, Records, database, lock, take_database};
use crate::failure::Failure;
use crate::key_files::account_records::Others;
use crate::provider::orders::summary;

/// Attempts at a change while commands append others.
const ATTEMPTS: usize = 8;

/// Makes the change that `decide` says by the state as it is then; none if it says so. Returns the number of the state. It may wait for
/// the disk, or the database.
///
/// # Errors
/// The inner one is for who asked. The outer one is this machine's: the role ends.
pub fn change(
    core: &Mutex<Core>,
    by: &str,
    now: Now,
    decide: &mut dyn FnMut(&State) -> Result<Option<ChangeBody>, Problem>,
) -> Result<Result<u64, Problem>, Failure> {
    let Some(database) = database(core) else { return lock(core).change(by, now, decide) };
    let mut database = take_database(&database);
    // What others wrote counts before it is decided.
    let unread = database.read_new()?;
    {
        let mut core = lock(core);
        core.note_outage(&database);
        core.take(Others::OfDatabase(unread))?;
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
                None => return Ok(Err(Problem::new(ProblemKind::Replica, "this key server has no `writer_key`"))),
                Some(Err(error)) => return Ok(Err(Problem::new(ProblemKind::Conflict, error.to_string()))),
                Some(Ok(signed)) => signed,
            };
            let state = core.server.state();
            let effects = (state.effects(signed.object()), state.settled());
            (signed, effects)
        };
        let appended = database.append(&signed, effects, (by, ""));
        let mut core = lock(core);
        core.note_outage(&database);
        match appended {
            Ok(unread) if unread.is_empty() => return core.changed(&signed, by, now).map(Ok),
            Ok(unread) => core.take(Others::OfDatabase(unread))?,
            Err(failure) => return Ok(Err(disk(&failure))),
        }
    }
    Ok(Err(Problem::new(ProblemKind::Busy, "other changes come all the time")))
}

impl Core {
    /// Makes the change that `decide` says by the state as it is then; none if it says so. Returns the number of the state.
    ///
    /// # Errors
    /// The inner one is for who asked. The outer one is this machine's: the role ends.
    fn change(
        &mut self,
        by: &str,
        now: Now,
        decide: &mut dyn FnMut(&State) -> Result<Option<ChangeBody>, Problem>,
    ) -> Result<Result<u64, Problem>, Failure> {
        // What others appended counts before it is decided.
        let busy = || Problem::new(ProblemKind::Busy, "other changes come all the time");
        let Records::File(changes) = &mut self.records else { return Ok(Err(busy())) };
        let unread = match changes.read_new() {
            Ok(unread) => unread,
            Err(failure) => return Ok(Err(disk(&failure))),
        };
        self.take(Others::OfFile(unread))?;
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
            let Records::File(changes) = &mut self.records else { return Ok(Err(busy())) };
            let unread = match changes.append(&signed) {
                Ok(unread) => unread,
                Err(failure) => return Ok(Err(disk(&failure))),
            };
            if !unread.is_empty() {
                self.take(Others::OfFile(unread))?;
                continue;
            }
            return self.changed(&signed, by, now).map(Ok);
        }
        Ok(Err(busy()))
    }

    /// A change is durable: it counts.
    fn changed(&mut self, signed: &Signed<Change>, by: &str, now: Now) -> Result<u64, Failure> {
        self.server
            .apply(signed)
            .map_err(|error| Failure::new(format!("a change that was just signed is refused: {error}")))?;
        let number = signed.object().number;
        let what = summary(&signed.object().body);
        self.log.report(event!(INFO "api-change" { number, by; what } "change by the API: {what}"));
        self.prepare(now);
        self.announce();
        Ok(number)
    }
}

fn disk(failure: &Failure) -> Problem {
    error!("a change by the API was not made: {failure}; check the disk");
    Problem::new(
        ProblemKind::Disk,
        "the change could not be written; nothing has changed, unless the database got it and could not say so",
    )
    .help("the server's log has the cause; once the disk has space, send the request again")
}

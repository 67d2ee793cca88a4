//! `bench attest-ops`, `attest-trace`, `attest-memory`: every suite and baseline on the same UPDATEs, in one thread.
//!
//! Times are the thread's processor time, which other programs on the machine do not lengthen.

mod memory;
mod ops;
mod plots;
mod trace;

use serde_json::json;
use wayleave_attestation::bench::{Contender, Received, receive_all, workload::Route};
use wayleave_attestation::{Scheme, SchemeError, SuiteId};
use wayleave_crypto::secret::Secret;

pub use self::memory::memory;
pub use self::ops::ops;
pub use self::trace::trace;
use super::{Report, draw};
use crate::cli::Bench;
use crate::failure::{Failure, Outcome};

/// Most UPDATEs verified together.
const BURST: usize = 64;
const SEED: u64 = 1;

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn seed() -> Secret<32> {
    Secret::new([7; 32])
}

/// The suites asked for, or all; of the hybrid all its mixes.
fn contenders(bench: &Bench) -> Outcome<Vec<Contender>> {
    if let Some(name) = bench.suite.iter().find(|name| SuiteId::from_name(name).is_none()) {
        let known = SuiteId::ALL.map(SuiteId::name).join(", ");
        return Err(Failure::usage(format!("no suite `{name}`")).help(known).into());
    }
    let asked =
        |contender: &Contender| bench.suite.is_empty() || bench.suite.iter().any(|name| name == contender.suite.name());
    Ok(Contender::all().into_iter().filter(asked).collect())
}

fn cannot(contender: Contender) -> impl Fn(SchemeError) -> Failure {
    move |error| Failure::new(format!("{}: {error}", contender.name()))
}

/// A scheme, and the UPDATEs that it is to verify.
type World = (Box<dyn Scheme>, Vec<Received>);

/// A scheme and its UPDATEs, or `None` where the suite is not there.
fn world(contender: Contender, routes: &[Route]) -> Outcome<Option<World>> {
    let Some(mut scheme) = contender.scheme(&seed()) else { return Ok(None) };
    let received = receive_all(scheme.as_mut(), routes).map_err(cannot(contender))?;
    Ok(Some((scheme, received)))
}

fn note_missing(report: &mut Report, missing: &[String]) {
    if !missing.is_empty() {
        report.params.insert("not_there".into(), json!(missing));
    }
}

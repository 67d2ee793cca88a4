//! The paper's own suites and what their messages share: for the lab and the benchmarks only.
//!
//! They are kept as published, weaknesses included; the tests that break them are in `tests/attacks_paper.rs`.

pub mod hors;
pub mod hybrid;
pub mod mt;
pub mod origin;
pub mod raw;
pub mod rsa;
pub mod world;

use wayleave_crypto::secret::Secret;

use crate::scheme::Scheme;
use crate::suite::SuiteId;

/// The paper's suite of this number with an empty world, whose keys all come from `seed`; `None` if it is none of them.
#[must_use]
pub fn scheme(suite: SuiteId, seed: &Secret<32>) -> Option<Box<dyn Scheme>> {
    match suite {
        SuiteId::KcRsaPaper => Some(Box::new(rsa::KcRsa::new(seed, rsa::Mode::FullDomain))),
        SuiteId::KcMtPaper => Some(Box::new(mt::KcMt::new(seed, origin::OriginStatement::EachTime))),
        SuiteId::KcHybridPaper => Some(Box::new(hybrid::KcHybrid::new(seed, hybrid::Mix::OneIn(2)))),
        _ => None,
    }
}

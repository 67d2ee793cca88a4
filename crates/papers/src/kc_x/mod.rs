//! The suites of the KC-x paper as published, including their weaknesses, which `tests/it/attacks_paper.rs` and
//! `tests/it/attacks_trees.rs` exploit.

pub mod certificates;
pub mod expiry;
pub mod hors;
pub mod hybrid;
pub mod mmo;
pub mod mt;
pub mod origin;
pub mod raw;
pub mod rsa;

use wayleave_attestation::suite::SuiteId;
use wayleave_crypto::secret::Secret;

use crate::scheme::Scheme;

/// The paper's suite with this number, with keys from `seed`; `None` for any other number.
#[must_use]
pub fn scheme(suite: SuiteId, seed: &Secret<32>) -> Option<Box<dyn Scheme>> {
    match suite {
        SuiteId::KcRsaPaper => Some(Box::new(rsa::KcRsa::new(seed, rsa::Mode::FullDomain))),
        SuiteId::KcMtPaper => Some(Box::new(mt::KcMt::new(seed, origin::OriginStatement::EachTime))),
        SuiteId::KcHybridPaper => Some(Box::new(hybrid::KcHybrid::new(seed, hybrid::Mix::OneIn(2)))),
        _ => None,
    }
}

//! What KC-x is compared with, each really implemented: for the lab and the benchmarks only.

pub mod bgpsec;
pub mod bgpsec_wire;
pub mod dsa;
pub mod s_bgp;
pub mod sas_v;
pub mod spv;

use wayleave_crypto::secret::Secret;

use crate::scheme::Scheme;
use crate::suite::SuiteId;

/// The baseline of this number with an empty world, whose keys all come from `seed`; `None` if it is none of them.
#[must_use]
pub fn scheme(suite: SuiteId, seed: &Secret<32>) -> Option<Box<dyn Scheme>> {
    match suite {
        SuiteId::SBgp => Some(Box::new(s_bgp::SBgp::new(seed))),
        SuiteId::SasV => Some(Box::new(sas_v::SasV::new(seed))),
        SuiteId::Spv => Some(Box::new(spv::Spv::new(seed, crate::paper::origin::OriginStatement::Remembered))),
        SuiteId::Bgpsec => Some(Box::new(bgpsec::Bgpsec::new(seed))),
        _ => None,
    }
}

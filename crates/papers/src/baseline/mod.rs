//! The schemes with which KC-x is compared, each implemented in full.

pub mod bgpsec;
pub mod bgpsec_wire;
pub mod dsa;
pub mod s_bgp;
pub mod sas_v;
pub mod spv;

use wayleave_attestation::suite::SuiteId;
use wayleave_crypto::secret::Secret;

use crate::scheme::Scheme;

/// The baseline with this number, with keys from `seed`; `None` for any other number.
#[must_use]
pub fn scheme(suite: SuiteId, seed: &Secret<32>) -> Option<Box<dyn Scheme>> {
    match suite {
        SuiteId::SBgp => Some(Box::new(s_bgp::SBgp::new(seed))),
        SuiteId::SasV => Some(Box::new(sas_v::SasV::new(seed))),
        SuiteId::Spv => Some(Box::new(spv::Spv::new(seed, crate::kc_x::origin::OriginStatement::Remembered))),
        SuiteId::Bgpsec => Some(Box::new(bgpsec::Bgpsec::new(seed))),
        _ => None,
    }
}

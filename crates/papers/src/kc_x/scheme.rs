//! A whole path under one scheme: what the benchmarks and the attack tests drive, the same for every suite and baseline.

use wayleave_core::{Asn, Prefix};

/// What an UPDATE says that a scheme protects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The prefixes, all of one address family.
    pub prefixes: Vec<Prefix>,
    /// The AS path in the order of travel: the origin first, no prepending.
    pub path: Vec<Asn>,
}

/// A scheme with the keys of every AS in its world, so that it can play each of them.
///
/// The world grows as needed: a path through an AS not seen before makes that AS's long-term keys (from the seed of the
/// world), which the benchmarks do beforehand by [`Scheme::prepare`].
pub trait Scheme {
    /// The name in the benchmarks: a suite's name.
    fn name(&self) -> &'static str;
    /// Makes every key that this path needs ahead of time, as a speaker does in the background.
    fn prepare(&mut self, path: &[Asn]);
    /// The attestation with which the last AS of `announcement.path` sends it to `to`; `received` is what that AS
    /// received (empty for the origin). One signing operation for all neighbours, as each scheme has it.
    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError>;
    /// Whether every hop of `attestation` is right for `announcement` as received by `by`.
    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool;
    /// As [`Scheme::verify`] for a burst of UPDATEs received by `by`, with the same answers, faster where it can.
    fn verify_burst(&self, burst: &[(&Announcement, &[u8])], by: Asn) -> Vec<bool> {
        burst.iter().map(|(announcement, attestation)| self.verify(announcement, attestation, by)).collect()
    }
    /// Bytes of signatures (and of what must travel with them to verify) in `attestation`, as the paper counts them.
    fn signature_bytes(&self, attestation: &[u8]) -> usize;
}

/// Why a scheme did not attest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SchemeError {
    /// The received attestation does not decode.
    #[error("the received attestation is malformed")]
    Malformed,
    /// The few-time keys of the AS are spent.
    #[error("AS {0} has no key left to sign with")]
    Exhausted(Asn),
}

//! One interface to every suite and baseline, which the benchmarks and the attack tests use.

use wayleave_core::{Asn, Prefix, UnixTime};

/// The contents of an UPDATE that a scheme protects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The prefixes, all of one address family.
    pub prefixes: Vec<Prefix>,
    /// The AS path in the order of travel: the origin first, no prepending.
    pub path: Vec<Asn>,
}

/// A scheme with the keys of every AS, so that it can play each of them.
///
/// ASes are added as needed: a path through a new AS makes that AS's long-term keys from the seed. The benchmarks call
/// [`Scheme::prepare`] so that this is not measured.
pub trait Scheme {
    /// The suite's name, as in the results.
    fn name(&self) -> &'static str;
    /// Makes the keys that `path` needs, which a speaker does ahead of time in the background.
    fn prepare(&mut self, path: &[Asn]);
    /// Sets the clock of all ASes, which decides what has expired: for the paper's suites. The baselines' signatures do not
    /// expire, and the standard chain is measured at a constant time.
    fn set_time(&mut self, now: UnixTime) {
        let _ = now;
    }
    /// The attestation with which the last AS of `announcement.path` sends it to `to`; `received` is the attestation that it
    /// received, empty at the origin. One signature serves all neighbours where the scheme can do so.
    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError>;
    /// Whether every hop of `attestation` is valid for `announcement` as received by `by`.
    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool;
    /// As [`Scheme::verify`] for several UPDATEs, with the same results and faster where the scheme can.
    fn verify_burst(&self, burst: &[(&Announcement, &[u8])], by: Asn) -> Vec<bool> {
        burst.iter().map(|(announcement, attestation)| self.verify(announcement, attestation, by)).collect()
    }
    /// Bytes of the signatures in `attestation`, with what a verifier needs beside them, as the paper counts.
    fn signature_bytes(&self, attestation: &[u8]) -> usize;
}

/// Why a scheme did not sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SchemeError {
    #[error("the received attestation is malformed")]
    Malformed,
    #[error("AS {0} has no key left to sign with")]
    Exhausted(Asn),
}

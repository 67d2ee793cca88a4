//! Counters of what happened to routes, in validation and signing.

use serde::Serialize;

use super::jobs::SigningOutcome;
use crate::validate::VerificationWork;

/// Counters of one pair, or of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Routes validated; a route counts each time.
    pub validated: u64,
    /// Signatures verified.
    pub signatures: u64,
    /// Work that wrong signatures cost, in units of some 25 microseconds.
    pub wrong: u64,
    /// Routes rejected.
    pub rejected: u64,
    /// Received routes with our own AS on their path, which are dropped.
    pub loops: u64,
    /// Routes signed as their origin.
    pub originated: u64,
    /// Routes whose chain was extended.
    pub extended: u64,
    /// Of those: ahead of expiry.
    pub renewed: u64,
    /// Routes sent as they came, without an attestation of ours.
    pub unattested: u64,
    /// Routes sent with a chain that could not be extended.
    pub not_extended: u64,
    /// Routes signed with a smaller suite, so that the value fits.
    pub smaller: u64,
    /// Routes not sent because nothing fits.
    pub too_long: u64,
    /// Routes not sent because keys are exhausted.
    pub exhausted: u64,
    /// Routes not sent because what was signed did not verify.
    pub faulty: u64,
    /// Own routes not sent because this AS may not originate them.
    pub not_authorised: u64,
    /// Routes that a session's message size did not take.
    pub oversize: u64,
    /// Malformed UPDATEs (RFC 7606).
    pub malformed_updates: u64,
    /// Attestations older than one which the same origin had sent the same way.
    pub older: u64,
    /// Routes dropped because a job on them panicked.
    pub failed: u64,
    /// Routes of other members that were not used because they would have taken more memory than their announcer's may.
    pub out_of_memory: u64,
}

impl Counts {
    /// Adds the counters of another pair.
    pub(crate) fn add(&mut self, other: &Counts) {
        let Counts {
            validated,
            signatures,
            wrong,
            rejected,
            loops,
            originated,
            extended,
            renewed,
            unattested,
            not_extended,
            smaller,
            too_long,
            exhausted,
            faulty,
            not_authorised,
            oversize,
            malformed_updates,
            older,
            failed,
            out_of_memory,
        } = other;
        self.out_of_memory += out_of_memory;
        self.older += older;
        self.failed += failed;
        self.validated += validated;
        self.signatures += signatures;
        self.wrong += wrong;
        self.rejected += rejected;
        self.loops += loops;
        self.originated += originated;
        self.extended += extended;
        self.renewed += renewed;
        self.unattested += unattested;
        self.not_extended += not_extended;
        self.smaller += smaller;
        self.too_long += too_long;
        self.exhausted += exhausted;
        self.faulty += faulty;
        self.not_authorised += not_authorised;
        self.oversize += oversize;
        self.malformed_updates += malformed_updates;
    }

    pub(crate) fn note_work(&mut self, work: &VerificationWork) {
        self.signatures += work.verified;
        self.wrong += work.wrong;
    }

    pub(crate) fn note(&mut self, outcome: &SigningOutcome, is_renewed: bool) {
        match outcome {
            SigningOutcome::Signed { origin, smaller, .. } => {
                *(if *origin { &mut self.originated } else { &mut self.extended }) += 1;
                self.smaller += u64::from(*smaller);
                self.renewed += u64::from(is_renewed);
            }
            SigningOutcome::AsReceived => self.unattested += 1,
            SigningOutcome::NotExtended(_) => self.not_extended += 1,
            SigningOutcome::TooLong { .. } => self.too_long += 1,
            SigningOutcome::Exhausted => self.exhausted += 1,
            SigningOutcome::Faulty(_) => self.faulty += 1,
            SigningOutcome::NotAuthorised => self.not_authorised += 1,
            SigningOutcome::Refused { .. } => self.rejected += 1,
            SigningOutcome::NotReserved => {}
        }
    }
}

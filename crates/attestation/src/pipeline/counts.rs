//! Counters of what happened to routes, in validation and signing.

use serde::Serialize;

use super::jobs::SigningOutcome;
use crate::validate::VerificationWork;

wayleave_core::counters! {
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
}

impl Counts {
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
            SigningOutcome::AsReceived | SigningOutcome::NoRegisteredKey | SigningOutcome::NoPostQuantumKey => {
                self.unattested += 1;
            }
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

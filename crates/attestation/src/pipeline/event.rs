//! What operators should know of, from both machines.

use std::sync::Arc;

use wayleave_bgp::Nlri;
use wayleave_core::Asn;

use super::keys::{KeyEnd, KeyWait};
use super::policy::VerdictClass;
use crate::SuiteId;
use crate::clock_doubt::ClockDoubt;
use crate::leaf::KeyId;
use crate::report::Report;
use crate::sign::AttestationError;

/// What happened to routes.
#[derive(Debug)]
pub enum RouteEvent {
    /// A received route has a class that policy reports.
    Verdict { nlri: Nlri, class: VerdictClass, report: Arc<Report> },
    /// Routes are not sent: policy rejects the class with which they were received.
    Refused { routes: Vec<Nlri>, class: VerdictClass, report: Arc<Report> },
    /// Routes were sent with the attestation with which they came.
    NotExtended { routes: Vec<Nlri>, error: AttestationError },
    /// Routes were not sent: the shortest attestation has `need` octets, too many for the target.
    TooLong { routes: Vec<Nlri>, need: usize },
    /// Routes were not sent: the lives of all keys are over.
    Exhausted { routes: Vec<Nlri> },
    /// Own routes were not sent: what is registered does not let this AS originate them.
    NotAuthorised { routes: Vec<Nlri> },
    /// Routes were not sent: what the key of this suite signed did not verify. They are tried again later.
    Faulty { routes: Vec<Nlri>, suite: SuiteId },
    /// A job panicked: a bug. Its routes are not used and not sent, and are tried again later.
    Failed { task: &'static str, routes: Vec<Nlri> },
}

impl RouteEvent {
    /// The routes concerned.
    #[must_use]
    pub fn routes(&self) -> &[Nlri] {
        match self {
            Self::Verdict { nlri, .. } => std::slice::from_ref(nlri),
            Self::Refused { routes, .. }
            | Self::NotExtended { routes, .. }
            | Self::TooLong { routes, .. }
            | Self::Exhausted { routes }
            | Self::NotAuthorised { routes }
            | Self::Faulty { routes, .. }
            | Self::Failed { routes, .. } => routes,
        }
    }
}

/// What concerns the whole process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessEvent {
    /// A few-time key's life ends soon: the operator must make another. Comes once for each step down.
    KeyEnds(KeyEnd),
    /// Routes wait for a few-time key. Comes once for each reason.
    KeyWaits(KeyWait),
    /// It signs again.
    KeySigns(SuiteId),
    /// This AS registered keys, and none of these, which are all that this process has: nothing is signed.
    KeysUnregistered { asn: Asn, keys: Vec<KeyId> },
    /// Another key signs from now on, which is registered. `before`: the one that signed until now, if one did.
    OtherKeySigns { key: KeyId, before: Option<KeyId> },
    /// Somebody set the wall clock by so many seconds: everything is validated and signed again.
    ClockStepped(i64),
    /// Most origins disagree with this machine's clock; `None`: no longer.
    ClockInDoubt(Option<ClockDoubt>),
}

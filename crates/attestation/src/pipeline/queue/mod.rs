//! Routes that wait for a job, and when each must be worked on again.

mod budget;
mod peers;
mod pending;
mod revalidate;
mod signing;

pub(crate) use budget::{VerificationBudget, estimated_units};
pub(crate) use peers::{PeerQueues, Step};
pub(crate) use pending::PendingRoutes;
pub(crate) use revalidate::{RETRY_FAILED, RevalidationSchedule, not_in_the_past};
pub(crate) use signing::{Recorded, SIGNING_BURST, SigningQueue};

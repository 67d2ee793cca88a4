//! UPDATE: borrowed ([`UpdateView`]), owned ([`Update`]), and built from routes.

mod build;
mod view;

pub use build::{EncodeError, UpdateBuilder, encode_updates, end_of_rib};
pub use view::UpdateView;
use wayleave_core::Afi;

use crate::{Action, Attributes, MessageError, Nlri, Problem, SessionParams};

/// An UPDATE of IPv4 and IPv6 unicast routes after the rules of RFC 7606.
///
/// Withdrawals come first: a prefix that the message both withdraws and announces is only announced (RFC 4271
/// section 4.3).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Update {
    /// Routes that are no more, those included whose announcement was treated as a withdraw.
    pub withdrawn: Vec<Nlri>,
    /// Routes that now have `attributes`.
    pub announced: Vec<Nlri>,
    /// Of the announced routes; `None` if there is none.
    pub attributes: Option<Attributes>,
    /// The message marks the end of the initial routes of a family (RFC 4724 section 2).
    pub end_of_rib: Option<Afi>,
    /// Routes that were ignored, such as those of multicast prefixes.
    pub ignored: Vec<Nlri>,
    /// What was wrong, in wire order; empty for a sound message.
    pub problems: Vec<Problem>,
}

impl Update {
    /// Decodes the body of an UPDATE, after its header. An error ends the session; everything milder is in
    /// [`Update::problems`].
    pub fn decode(_body: &[u8], _params: &SessionParams) -> Result<Self, MessageError> {
        todo!()
    }

    /// The strongest consequence of the problems.
    #[must_use]
    pub fn action(&self) -> Option<Action> {
        self.problems.iter().map(|problem| problem.action).max()
    }
}

//! UPDATE messages from routes, split so that none is too long.

use wayleave_core::Afi;

use crate::{Attributes, Nlri, SessionParams};

/// Why routes cannot be sent to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The attributes leave no room for one prefix.
    #[error("message of {need} octets exceeds {most}")]
    TooLong {
        /// Octets with one prefix.
        need: usize,
        /// The session's limit.
        most: usize,
    },
    /// The routes have no next hop of their family.
    #[error("routes have no next hop of their family")]
    NoNextHop,
    /// Prefixes are announced without attributes.
    #[error("announced prefixes have no attributes")]
    NoAttributes,
}

/// Collects routes that share attributes, and withdrawals, for one peer.
#[derive(Clone, Debug, Default)]
pub struct UpdateBuilder {
    withdrawn: Vec<Nlri>,
    announced: Vec<Nlri>,
    attributes: Option<Attributes>,
}

impl UpdateBuilder {
    /// Without routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Withdraws a route.
    pub fn withdraw(&mut self, nlri: Nlri) -> &mut Self {
        self.withdrawn.push(nlri);
        self
    }

    /// Announces a route with the attributes of [`UpdateBuilder::attributes`].
    pub fn announce(&mut self, nlri: Nlri) -> &mut Self {
        self.announced.push(nlri);
        self
    }

    /// The attributes of all announced routes.
    pub fn attributes(&mut self, attributes: Attributes) -> &mut Self {
        self.attributes = Some(attributes);
        self
    }

    /// The messages in the order to send them.
    pub fn encode(&self, params: &SessionParams) -> Result<Vec<Vec<u8>>, EncodeError> {
        encode_updates(self.attributes.as_ref(), &self.announced, &self.withdrawn, params)
    }
}

/// The messages, header included, that withdraw `withdrawn` and announce `announced` with `attributes`, in the order to
/// send them: IPv4 in the classical fields, IPv6 in MP_REACH_NLRI and MP_UNREACH_NLRI, none longer than the session
/// allows, AS numbers as wide as the session's.
pub fn encode_updates(
    _attributes: Option<&Attributes>,
    _announced: &[Nlri],
    _withdrawn: &[Nlri],
    _params: &SessionParams,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    todo!()
}

/// The message that marks the end of the initial routes of `afi` unicast (RFC 4724 section 2).
#[must_use]
pub fn end_of_rib(_afi: Afi) -> Vec<u8> {
    todo!()
}

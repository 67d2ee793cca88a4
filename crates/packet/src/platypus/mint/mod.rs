//! What key servers, principals and stampers compute: secrets, delegations, bindings, stamped packets.

pub mod epoch;
mod keys;
pub(crate) mod mac;
mod mask;
pub mod reply;
mod stamp;

pub use keys::{
    DelegateError, DelegatedSecret, MAX_KEY_VERSIONS, NotNewer, StampKey, TemporalSecret, WaypointKey, WaypointKeys,
    accepted_for,
};
pub use stamp::{Hop, MintError, Nonce, Position, Route, append, encapsulate};

pub use keys::{PURPOSE_BINDING, PURPOSE_SECRET, label};
pub use mask::{HEAD_BLOCKS, write_head};

pub(crate) use mask::Head;

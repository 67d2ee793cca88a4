//! What consent servers and senders compute: tag keys, proofs of consent, keys between nodes, whole packets.

mod consent;
mod epoch_key;
mod form;
mod keys;
mod split;
mod stamp;

pub use consent::{Consent, MAX_DEPTH, TAG_EPOCH, TagBranch, TagMaster, tag_epoch};
pub use epoch_key::{EpochKey, EpochKeyError};
pub use form::{Form, Forms, REPEAT};
pub use keys::{NodeSecret, PairKey};
pub use split::{Joiner, LIMIT_JOINED, cut};
pub use stamp::{MintError, Nonce, Sender, Stamp, Stamper, encapsulate};

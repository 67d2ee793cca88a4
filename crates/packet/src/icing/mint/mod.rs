//! What consent servers and senders compute: tag keys, proofs of consent, keys between nodes, packets.

mod consent;
mod epoch_key;
mod form;
mod keys;
mod sender;
mod split;

pub use consent::{Consent, MAX_DEPTH, TAG_EPOCH, TagBranch, TagMaster, tag_epoch};
pub use epoch_key::{EpochKey, EpochKeyError};
pub use form::{Form, Forms, REPEAT};
pub use keys::{NodeSecret, PairKey};
pub use sender::{Front, MintError, Nonce, Sender, encapsulate};
pub use split::{Joiner, LIMIT_JOINED, cut};

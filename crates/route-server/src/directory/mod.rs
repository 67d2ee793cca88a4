//! Who is a member, so that no single organisation decides it.
//!
//! A [`Directory`] is the history of an exchange's member sets since the first: each [`Step`] names its number and the hash
//! of the one before, and counts when the operators of **both** parties signed it. A member signs its own slot ([`Claim`]).
//! A [`Removal`] stands beside the history and is signed by one operator alone. What is in force ([`MemberSet`]) follows
//! from both, so that whoever has the octets can check every step, however many were missed.
//!
//! A slot is one connection to the exchange. It keeps its number, so that stored policy rows stay valid at their width; a
//! leaver's slot is dead for ever.

mod chain;
mod claim;
mod profile;
mod proposal;
mod removal;
mod set;

pub use chain::{ChainError, Change, Directory, Registration, SetId, SignedStep, Step, Succession, Trust};
pub use claim::{Claim, Consent, Request};
pub use profile::{
    Blackhole, DataRules, Lengths, MAX_BLACKHOLE_ASNS, MAX_TRANSIT_FREE, Profile, TRANSIT_FREE, can_drop,
    is_for_laboratories, reserved,
};
pub use proposal::{Proposal, ProposalError};
pub use removal::Removal;
pub use set::{AttestKey, MemberSet, Neighbours, SetError, Slot, keys};

/// Slots of a set, former members included. Our limit: twice the 2,000 members up to which circuits are tested.
pub const MAX_SLOTS: usize = 4096;
/// Octets of the exchange's name.
pub const MAX_EXCHANGE_NAME: usize = 64;
/// Octets of a slot's name.
pub const MAX_SLOT_NAME: usize = 64;
/// Addresses of one slot.
pub const MAX_ADDRESSES: usize = 16;
/// Attestation keys of one slot, at most one for each suite.
pub const MAX_ATTEST_KEYS: usize = 4;
/// Octets of an encoded directory. [`MAX_SLOTS`] slots of the largest size take 3 MiB, those of an exchange of 750 members
/// a tenth of that; the rest is room for about ten thousand changes, after which an exchange begins a new directory.
pub const MAX_ENCODED: usize = 8 << 20;

/// A slot's number in the member set, from zero.
pub type SlotId = u32;

//! The overlay's control plane: who is a member of a realm, which nodes there are and how they are linked, which paths lead
//! where, and who consents to them.
//!
//! M. Miller: "PoComON: A POLicy-COMpliant Overlay Network", 2011, sections 2.5, 3 and 4 ("the paper"). [`realm`] has
//! memberships, revocations and invitations, [`advert`] what nodes publish of themselves, [`database`] what servers and clients
//! know of it, [`path`] the path server and its client, [`consent`] the consent server and its client. [`frames`] is what they
//! send to each other; `docs/wire/control.md` says where every octet lies.
//!
//! A path server has no key. What it says is believed as far as others signed it: its client rebuilds each path from the signed
//! adverts that come with it. A consent server has the tag keys of its own provider and no others.

pub mod advert;
pub mod budget;
pub mod capability;
mod clients;
mod codecs;
pub mod consent;
pub mod database;
pub mod frames;
pub mod labels;
pub mod leases;
pub mod node;
pub mod path;
pub mod realm;
mod rng;
pub mod store;
pub mod tenure;
pub mod topology;

//! The provider's store: accounts, grants, revocations, every change of them, and what routers reported, in a database.
//!
//! Key servers answer from memory. The [`Store`] is what they start from, write to, and follow each other by: SQLite, a file that needs
//! no set-up, or PostgreSQL, to which any number of key servers connect. One schema and one set of queries serve both.
//!
//! Whoever can write to the database can make and un-make nothing. A row carries a MAC by the key servers' secret, over its content and
//! the number of the change that wrote it, and the last change carries a keyed sum over all rows, so that rows can be neither forged
//! nor changed, nor taken away or brought back. Changes have numbers and a running digest ([`Position`]): a key server that has seen
//! a later one, or another under the same number, refuses the database until an operator adopts it ([`Store::adopt`]).
//! `docs/wire/capabilities.md` says what is authenticated, and how.

mod authentic;
mod database;
mod error;
mod lessor;
mod store;
mod table;
mod usage;

pub use authentic::StoreKey;
pub use database::{BadLocation, Location};
pub use error::{Barred, StoreError};
pub use lessor::LessorLock;
pub use store::{Appended, Loaded, Note, Recorded, Store, patiently};
pub use usage::{
    Closing, Details, KnownRouters, MANY_OF_PAYER, MAX_OF_PAYER, StatementSums, UsageHead, UsageStatement,
};
pub use wayleave_control::capability::Position;

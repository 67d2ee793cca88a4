//! Commands that do their work and end.

pub mod bench;
pub mod capability;
pub mod check;
pub mod init;
pub mod invite;
pub mod keys;
pub mod lab;
pub mod locate;
pub mod members;
pub mod pki;
pub mod revoke;
pub mod show;

//! Configuration files: TOML in, valid values out, or failures with line, column and caret. With them go the key files that they
//! name, and what every command needs to report and to ask: failures, tables, the pages of a running role.

#![allow(
    clippy::disallowed_methods,
    reason = "configurations and keys are files, and what `check` looks at is this machine"
)]

pub mod attest;
pub mod attestation;
pub mod check;
pub mod choices;
pub mod command_line;
pub mod consent;
pub mod console;
pub mod data;
mod documentation;
pub mod failure;
pub mod fetch;
pub mod gateway;
pub mod help;
pub mod key;
pub mod key_api;
pub mod key_files;
pub mod kinds;
pub mod links;
mod listed;
mod machine;
pub mod manual;
pub mod member;
pub mod named_files;
pub mod named_peers;
pub mod output;
pub mod overlay;
pub mod parse;
pub mod path;
pub mod profile;
pub mod protection;
pub mod realm;
pub mod receiving;
pub mod replace;
pub mod router;
pub mod rpki;
pub mod rs;
pub mod scion_files;
pub mod scion_folder;
pub mod shadow;
mod source;
pub mod stamper;
pub mod two_pairs;
// Not for tests of this crate alone: roles are tested with it too. No program links what it does not call.
#[doc(hidden)]
pub mod testing;
pub mod waypoints;

pub use check::{ROLES, check, status_of};
pub use machine::STATE_TABLES;
pub use parse::{HostPort, PublicKey, Text};
pub use source::{Fault, Source};

/// The example values of templates: well formed, but of no real key.
pub const EXAMPLE_OPERATORS: [&str; 2] = [
    "sign:ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29",
    "sign:ed25519:8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
];
/// The same keys as a realm's and as a node's.
pub const EXAMPLE_REALM: &str = "realm:ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
pub const EXAMPLE_NODE: &str = "node:ed25519:8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c";
pub const EXAMPLE_WRITER: &str = "writer:ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
/// Example fingerprints, of no real certificate.
pub const EXAMPLE_PINS: [&str; 2] = [
    "sha256:1111111111111111111111111111111111111111111111111111111111111111",
    "sha256:2222222222222222222222222222222222222222222222222222222222222222",
];

//! What members want: who may have a route, which routes they accept, and which they prefer.
//!
//! A policy comes from what operators already write: the communities of each route ([`communities`]) and the rules of
//! the member's configuration ([`config`], compiled to a [`Policy`]). On export both make an [`ExportSet`]; on import
//! rules and BGP's decision process make classes ([`ranking`]), of routes that [`validate`] let through.

pub mod communities;
mod compile;
pub mod config;
mod export;
pub mod pattern;
pub mod ranking;
mod rules;
pub mod treatments;
pub mod validate;

pub use compile::{MAX_RULES, PolicyError, PolicyProblem};
pub use config::{PerPeer, PolicyConfig};
pub use export::{Decision, ExportSet, export_decisions, export_set, sealed_attributes, sealed_for};
pub use rules::{Changes, ExportRules, Exported, Imported, NewMembers, Policy, Rejection, Route};

//! Consent (the paper, sections 2.5 and 3.4): senders ask, consent servers decide by policy and answer with proofs that the
//! sender alone can read.

mod client;
mod keys;
mod policy;
mod request;
mod sealing;
mod server;

pub use client::{
    ConsentClient, ConsentClientConfig, ConsentClientInput, ConsentClientOutput, HopFailure, HopFault, MAX_PATHS_KEPT,
};
pub use keys::TagKeys;
pub use policy::{
    LabelCondition, MAX_RULES, MAX_SECONDS, Policy, PolicyError, PolicyFile, Question, Rule, Subject, TestCase,
    TestFailure,
};
pub use request::{ConsentRequest, RequestedPath};
pub use sealing::{ConsentAnswer, SealingKey, open, seal};
pub use server::{
    Audit, ConsentServer, ConsentServerConfig, ConsentServerEvent, ConsentServerInput, ConsentServerOutput, Decision,
    MAX_NONCES, MAX_SKEW, REQUESTS,
};

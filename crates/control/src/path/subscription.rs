//! Follows the records of path servers: what a consent server, a client or another path server does to know what they know.

use std::collections::{BTreeMap, VecDeque};

use wayleave_core::{IdentityKey, Instant, Machine, Now};

use crate::frames::{Body, Frame};
use crate::store::Record;

/// What a subscription is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscriptionInput {
    /// A link to a path server is up.
    Connected(IdentityKey),
    Disconnected(IdentityKey),
    /// Records that came from it, as in [`Body::Records`].
    Records {
        from: IdentityKey,
        instance: u64,
        version: u64,
        complete: bool,
        records: Vec<Record>,
    },
}

/// What a subscription asks for, and delivers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscriptionOutput {
    Send {
        to: IdentityKey,
        octets: Vec<u8>,
    },
    /// To be checked and taken in; nothing here was verified.
    Records(Vec<Record>),
    /// The server has sent all that it knows.
    Complete(IdentityKey),
}

/// How far one has followed each server.
#[derive(Debug, Default)]
pub struct Subscription {
    /// The server's life and the version up to which its records are here.
    seen: BTreeMap<IdentityKey, (u64, u64)>,
    outputs: VecDeque<SubscriptionOutput>,
}

impl Machine for Subscription {
    type Input = SubscriptionInput;
    type Output = SubscriptionOutput;

    fn handle(&mut self, input: SubscriptionInput, _: Now) {
        match input {
            SubscriptionInput::Connected(to) => {
                let (instance, since) = *self.seen.entry(to).or_default();
                let octets = Frame { request: 0, body: Body::Subscribe { instance, since } }.encode();
                self.outputs.push_back(SubscriptionOutput::Send { to, octets });
            }
            SubscriptionInput::Disconnected(_) => {}
            SubscriptionInput::Records { from, instance, version, complete, records } => {
                // Only of those that were asked.
                let Some(seen) = self.seen.get_mut(&from) else { return };
                *seen = (instance, version);
                self.outputs.push_back(SubscriptionOutput::Records(records));
                if complete {
                    self.outputs.push_back(SubscriptionOutput::Complete(from));
                }
            }
        }
    }

    fn handle_timeout(&mut self, _: Now) {}

    fn poll(&mut self) -> Option<SubscriptionOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

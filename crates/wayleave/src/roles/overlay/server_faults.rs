//! Servers to which no link comes up until an operator mends it, for `show status`: the log says it once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::IdentityKey;
use wayleave_runtime::links::{ConnectFailure, LinkEvent};
use wayleave_runtime::tls::{Pin, Role};

/// What is wrong with each. Clones are views of the same.
#[derive(Clone, Debug, Default)]
pub struct ServerFaults(Arc<Mutex<BTreeMap<IdentityKey, String>>>);

impl ServerFaults {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IdentityKey, String>> {
        // Nothing that holds this lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A link to a server came up, or did not.
    pub fn note(&self, event: &LinkEvent) {
        let (pin, fault) = match event {
            LinkEvent::Up { pin, .. } => (pin, None),
            LinkEvent::Failed { pin, failure } => (pin, lasting(failure)),
            LinkEvent::Frame { .. } | LinkEvent::Down { .. } => return,
        };
        let Pin { role: Role::Node(server), .. } = pin else { return };
        match fault {
            Some(fault) => self.lock().insert(*server, format!("no link to the server {server}: {fault}")),
            None => self.lock().remove(server),
        };
    }

    /// The server is asked no more.
    pub fn forget(&self, server: &IdentityKey) {
        self.lock().remove(server);
    }

    pub fn problems(&self) -> Vec<String> {
        self.lock().values().cloned().collect()
    }
}

/// What does not pass by itself, as that a server does not run does.
fn lasting(failure: &ConnectFailure) -> Option<String> {
    match failure {
        ConnectFailure::NoProtocol | ConnectFailure::Refused(_) => Some(failure.to_string()),
        _ => None,
    }
}

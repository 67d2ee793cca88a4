//! The last events of a role, for `show events`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};
use wayleave_runtime::clock::unix_now;

/// Events in the list; older ones are dropped.
const MAX_EVENTS: usize = 1000;

/// A bounded list of events, the newest last.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<VecDeque<Value>>>);

impl Events {
    /// Adds an event with the time.
    pub fn note(&self, event: &impl Serialize) {
        let event = json!({ "unix": unix_now().secs(), "what": event });
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// The list as JSON.
    pub fn list(&self) -> Value {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        json!({ "version": 1, "events": events.iter().collect::<Vec<_>>() })
    }
}

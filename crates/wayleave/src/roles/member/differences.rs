//! What another policy would change at the routes that are there, for `wayleave diff`.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use wayleave_core::Prefix;
use wayleave_member::MemberProxy;
use wayleave_route_server::member::{Difference, Part};
use wayleave_route_server::policy::Policy;

use super::io::Event;
use super::listing::{OWN_VISITS, VISITS};
use crate::roles::daemon;

/// Differences that are named; beyond them they are counted.
const MOST: usize = 100;

/// What was found, at one pair of parties or several.
#[derive(Default)]
pub struct Found {
    rows: Vec<Value>,
    count: usize,
}

impl Found {
    /// Asks a machine part by part, since it has other work; `pair` is its name where there are several. `None` once it has stopped.
    pub async fn look(&mut self, events: &mpsc::Sender<Event>, policy: Policy, pair: Option<&str>) -> Option<()> {
        let policy = Arc::new(policy);
        let mut after = None;
        loop {
            let policy = Arc::clone(&policy);
            let look = move |proxy: &mut MemberProxy| proxy.import_differences(&policy, after, VISITS);
            after = self.take(daemon::query(events, look).await.ok()?, pair);
            if after.is_none() {
                break;
            }
        }
        loop {
            let policy = Arc::clone(&policy);
            let look = move |proxy: &mut MemberProxy| proxy.export_differences(&policy, after, OWN_VISITS);
            after = self.take(daemon::query(events, look).await.ok()?, pair);
            if after.is_none() {
                return Some(());
            }
        }
    }

    pub fn json(self) -> Value {
        json!({ "routes": self.rows, "in_all": self.count })
    }

    /// Takes a part; behind which prefix the next one begins.
    fn take(&mut self, part: Part<Difference>, pair: Option<&str>) -> Option<Prefix> {
        self.count += part.rows.len();
        let room = MOST.saturating_sub(self.rows.len());
        let row = |difference: Difference| {
            let mut row = json!(difference);
            if let Some(pair) = pair {
                row["pair"] = json!(pair);
            }
            row
        };
        self.rows.extend(part.rows.into_iter().take(room).map(row));
        part.after
    }
}

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

/// Asks the machine part by part, since it has other work; `None` once it has stopped.
pub async fn differences(events: &mpsc::Sender<Event>, policy: Policy) -> Option<Value> {
    let policy = Arc::new(policy);
    let mut all = Found::default();
    let mut after = None;
    loop {
        let policy = Arc::clone(&policy);
        let look = move |proxy: &mut MemberProxy| proxy.import_differences(&policy, after, VISITS);
        after = all.take(daemon::query(events, look).await.ok()?);
        if after.is_none() {
            break;
        }
    }
    loop {
        let policy = Arc::clone(&policy);
        let look = move |proxy: &mut MemberProxy| proxy.export_differences(&policy, after, OWN_VISITS);
        after = all.take(daemon::query(events, look).await.ok()?);
        if after.is_none() {
            return Some(json!({ "routes": all.rows, "in_all": all.count }));
        }
    }
}

#[derive(Default)]
struct Found {
    rows: Vec<Difference>,
    count: usize,
}

impl Found {
    /// Takes a part; behind which prefix the next one begins.
    fn take(&mut self, part: Part<Difference>) -> Option<Prefix> {
        self.count += part.rows.len();
        let room = MOST.saturating_sub(self.rows.len());
        self.rows.extend(part.rows.into_iter().take(room));
        part.after
    }
}

//! What a consent server shows to its operator.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use wayleave_control::consent::ConsentServer;
use wayleave_core::IdentityKey;
use wayleave_runtime::http::{Metric, ViewError};
use wayleave_runtime::links::Links;
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::audit::AuditLog;
use super::io::Event;
use crate::output::cell;
use crate::overview::Overview;
use crate::roles::daemon::{self, View, Views};
use crate::roles::overlay::Handle;

/// What a server says that would refuse every request.
const NO_NODE: &str = "this server consents for no node, and refuses every request: add [[consent.node]] with the node's identity and its tag \
                       keys, and reload (SIGHUP)";

#[derive(Clone)]
pub struct ConsentView {
    overlay: Handle,
    links: Links,
    events: mpsc::Sender<Event>,
    audit: Arc<AuditLog>,
}

struct MachineStatus {
    is_ready: bool,
    nodes: Vec<IdentityKey>,
    /// Of these, those that have yet to give their keys.
    awaited: Vec<IdentityKey>,
    consented: u64,
    refused: u64,
    links: usize,
}

impl ConsentView {
    pub fn new(overlay: &Handle, links: &Links, events: &mpsc::Sender<Event>, audit: &Arc<AuditLog>) -> Self {
        let (overlay, links) = (overlay.clone(), links.clone());
        Self { overlay, links, events: events.clone(), audit: Arc::clone(audit) }
    }

    async fn machine_status(&self) -> Result<MachineStatus, ViewError> {
        daemon::query(&self.events, |server: &mut ConsentServer| {
            let (consented, refused) = server.decided();
            MachineStatus {
                is_ready: server.is_ready(),
                nodes: server.nodes().collect(),
                awaited: server.awaited().collect(),
                consented,
                refused,
                links: server.links(),
            }
        })
        .await
    }
}

impl View for ConsentView {
    async fn status(&self) -> Result<Value, ViewError> {
        let machine = self.machine_status().await?;
        let (audited, left_out, failing) = self.audit.status();
        let mut value = self.overlay.status().await?;
        if let (true, Some(problems)) = (machine.nodes.is_empty(), value["problems"].as_array_mut()) {
            problems.push(json!(NO_NODE));
        }
        value["consents_for"] = json!(machine.nodes.iter().map(ToString::to_string).collect::<Vec<_>>());
        value["awaits_keys_of"] = json!(machine.awaited.iter().map(ToString::to_string).collect::<Vec<_>>());
        value["consented"] = json!(machine.consented);
        value["refused"] = json!(machine.refused);
        value["audited"] = json!(audited);
        value["answers_left_out"] = json!(left_out);
        value["audit"] = failing.map_or(json!("good"), |why| json!(why));
        value["senders"] = json!(machine.links);
        Ok(value)
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let title = format!("consent server of the realm {}", cell(&status["realm"]));
        let mut overview = Overview::new(title, &["consents for", "state"]);
        let realm = self.overlay.realm().borrow().clone();
        let machine = self.machine_status().await?;
        for node in machine.nodes {
            let member = realm.nodes.get(&node);
            let name = member.and_then(|member| member.membership.grants.names.first());
            let state = match member {
                None => "no member that is known here",
                Some(_) if machine.awaited.contains(&node) => "has not given its keys",
                Some(member) if member.advert.is_none() => "has no advert",
                Some(_) => "known",
            };
            let name = name.map_or_else(|| node.to_string(), ToString::to_string);
            overview.row(state == "known", [json!(name), json!(state)]);
        }
        overview.count(format!("{} requests consented to", status["consented"]));
        overview.count(format!("{} refused", status["refused"]));
        overview.count(format!("{} decisions in the audit log", status["audited"]));
        overview.count(format!("{} senders connected", status["senders"]));
        overview.count(format!("{} path servers", status["path_servers"]));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let machine = self.machine_status().await.ok()?;
        let (audited, left_out, failing) = self.audit.status();
        let links = self.links.counters();
        let mut all = self.overlay.metrics().await?;
        all.extend(metrics! {
            counter "consented" Messages "Requests consented to" = machine.consented;
            counter "refused" Messages "Requests refused" = machine.refused;
            counter "audited" Messages "Decisions in the audit log" = audited;
            counter "left_out" Messages "Answers left out because the audit log was too slow" = left_out;
            gauge "audit" Up "Whether the audit log can be written" = failing.is_none();
            gauge "sender" Links "Links to senders" = machine.links;
            counter "failed" Connections "Connections that failed before the sender was known" = links.failed.load(Ordering::Relaxed);
        });
        Some(all)
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        let machine = self.machine_status().await.ok()?;
        if let (_, _, Some(why)) = self.audit.status() {
            return Some(Err(format!("the audit log cannot be written: {why}")));
        }
        let why = "no path server has sent its records yet";
        Some(if machine.is_ready { Ok(()) } else { Err(why.to_owned()) })
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        Some(self.overlay.store())
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views.page("members", |view, _| async move { view.overlay.members().await })
    }
}

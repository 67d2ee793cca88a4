//! What a path server shows to its operator.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use wayleave_control::path::{PathServer, Statistics};
use wayleave_control::realm::Freshness;
use wayleave_core::IdentityKey;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::{Metric, ViewError};
use wayleave_runtime::links::Links;
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::io::Event;
use crate::config::path::PathFile;
use crate::output::cell;
use crate::overview::Overview;
use crate::roles::daemon::{self, View, Views};
use crate::roles::overlay::server_faults::ServerFaults;
use crate::roles::overlay::{MEMBER_COLUMNS, describe, freshness, member_rows};

#[derive(Clone)]
pub struct PathView {
    events: mpsc::Sender<Event>,
    links: Links,
    store: Arc<FileStore>,
    realm: String,
    identity: IdentityKey,
    /// Why the server's membership is not renewed, if that is so.
    problem: Option<watch::Receiver<Option<String>>>,
    faults: ServerFaults,
}

struct MachineStatus {
    statistics: Statistics,
    links: usize,
    members: usize,
    adverts: usize,
    revocations: u64,
    is_recovering: bool,
    freshness: Freshness,
}

impl PathView {
    pub fn new(
        config: &PathFile,
        identity: IdentityKey,
        links: &Links,
        store: &Arc<FileStore>,
        events: &mpsc::Sender<Event>,
        (problem, faults): (Option<watch::Receiver<Option<String>>>, &ServerFaults),
    ) -> Self {
        let (links, store) = (links.clone(), Arc::clone(store));
        let (events, faults, realm) = (events.clone(), faults.clone(), config.realm().to_string());
        Self { events, links, store, realm, identity, problem, faults }
    }

    async fn machine_status(&self) -> Result<MachineStatus, ViewError> {
        let now = unix_now().secs();
        daemon::query(&self.events, move |server: &mut PathServer| {
            let database = server.database();
            MachineStatus {
                statistics: server.statistics(),
                links: server.links(),
                members: database.len(),
                adverts: database
                    .members(now)
                    .filter(|member| database.advert(&member.identity, now).is_some())
                    .count(),
                revocations: database.revocations().map_or(0, |list| list.object().number),
                is_recovering: server.is_recovering(),
                freshness: server.freshness(),
            }
        })
        .await
    }

    async fn members(self) -> Result<Value, ViewError> {
        let now = unix_now().secs();
        let all = daemon::query(&self.events, move |server: &mut PathServer| {
            let database = server.database();
            let member = |membership| -> Value { describe(membership, database.advert(&membership.identity, now)) };
            database.members(now).map(member).collect::<Vec<Value>>()
        });
        Ok(json!({ "version": 1, "members": all.await? }))
    }
}

impl View for PathView {
    async fn status(&self) -> Result<Value, ViewError> {
        let machine = self.machine_status().await?;
        let renewal = self.problem.iter().filter_map(|problem| problem.borrow().clone());
        let problems: Vec<String> =
            renewal.chain(freshness::problem(machine.freshness)).chain(self.faults.problems()).collect();
        Ok(json!({
            "realm": self.realm,
            "identity": self.identity.to_string(),
            "members": machine.members,
            "adverts": machine.adverts,
            "revocations": machine.revocations,
            "links": machine.links,
            "registrations": machine.statistics.registrations,
            "queries": machine.statistics.queries,
            "refused": machine.statistics.refused,
            "recovering": machine.is_recovering,
            "problems": problems,
        }))
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let mut overview =
            Overview::new(format!("path server of the realm {}", cell(&status["realm"])), &MEMBER_COLUMNS);
        let members = self.clone().members().await?;
        member_rows(&mut overview, members["members"].as_array().map_or(&[], Vec::as_slice), true);
        overview.count(format!("{} members, {} adverts", status["members"], status["adverts"]));
        overview.count(format!("{} links", status["links"]));
        overview.count(format!("list {} of removed nodes", status["revocations"]));
        overview.count(format!(
            "{} registrations, {} searches, {} refused",
            status["registrations"], status["queries"], status["refused"]
        ));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let machine = self.machine_status().await.ok()?;
        let (statistics, links) = (machine.statistics, self.links.counters());
        Some(metrics! {
            gauge "known" Members "Members of the realm that are known" = machine.members;
            gauge "advert" Objects "Adverts that count" = machine.adverts;
            gauge "revocation" Number "Number of the list of removed nodes" = machine.revocations;
            gauge "node" Links "Links to nodes and servers" = machine.links;
            counter "registered" Objects "Adverts that nodes registered" = statistics.registrations;
            counter "asked" Messages "Searches for paths" = statistics.queries;
            counter "refused" Messages "Requests refused" = statistics.refused;
            counter "searched" Calls "Links that searches looked at" = statistics.search_steps;
            counter "failed" Connections "Connections that failed before the node was known" = links.failed.load(Ordering::Relaxed);
            counter "too_slow" Links "Links closed because the node read too slowly" = links.too_slow.load(Ordering::Relaxed);
        })
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        let machine = self.machine_status().await.ok()?;
        let why = "the state was lost, and no other path server has sent its records yet";
        Some(if machine.is_recovering { Err(why.to_owned()) } else { Ok(()) })
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        Some(&self.store)
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views.page("members", |view, _| view.members())
    }
}

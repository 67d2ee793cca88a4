//! What an attesting proxy shows to its operator.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use wayleave_attestation::proxy::{Proxy, Status};
use wayleave_core::Prefix;
use wayleave_runtime::http::{Metric, Unit, ViewError};
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::io::Event;
use crate::output::{cell, versioned};
use crate::overview::{Overview, few_time_key};
use crate::roles::attestation::{class_metrics, few_time_metrics, keys_problem, memory_metrics};
use crate::roles::daemon::{self, View, Views, most, prefix};
use crate::roles::origins::Summary;

#[derive(Clone)]
pub struct ProxyView {
    events: mpsc::Sender<Event>,
    store: Arc<FileStore>,
    known: watch::Receiver<Summary>,
    /// What protects the sessions of each pair, inside and outside, in words.
    protections: Arc<[[String; 2]]>,
}

impl ProxyView {
    pub fn new(
        events: &mpsc::Sender<Event>,
        store: &Arc<FileStore>,
        known: watch::Receiver<Summary>,
        protections: Arc<[[String; 2]]>,
    ) -> Self {
        Self { events: events.clone(), store: Arc::clone(store), known, protections }
    }

    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Proxy) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        daemon::query(&self.events, query).await
    }

    async fn peers(self) -> Result<Value, ViewError> {
        let status = self.query(|proxy| proxy.status()).await?;
        let rows: Vec<Value> = status
            .pairs
            .iter()
            .zip(&*self.protections)
            .flat_map(|(pair, protections)| {
                let [inside, outside] = protections;
                let ends = [("inside", &pair.inside, inside), ("outside", &pair.outside, outside)];
                ends.map(|(side, end, protection)| {
                    let mut row = json!(end);
                    row["protection"] = json!(protection);
                    row["peer"] = json!(format!("{} {side}", pair.name));
                    row
                })
            })
            .collect();
        Ok(json!({ "version": 1, "peers": rows }))
    }

    async fn routes(self, most: usize) -> Result<Value, ViewError> {
        Ok(daemon::routes(self.query(move |proxy| proxy.routes(most.saturating_add(1))).await?, most))
    }

    async fn why(self, prefix: Prefix) -> Result<Value, ViewError> {
        let (mut why, keys) = self
            .query(move |proxy| {
                let (asn, keys) = proxy.unregistered_keys();
                (proxy.why(prefix), keys_problem(asn, &keys))
            })
            .await?;
        why.problems.extend(keys);
        why.problems.extend(self.known.borrow().of_all.iter().cloned());
        Ok(versioned(json!(why)))
    }

    async fn keys(self) -> Result<Value, ViewError> {
        Ok(json!({ "version": 1, "keys": self.query(|proxy| proxy.own_keys()).await? }))
    }
}

impl View for ProxyView {
    async fn status(&self) -> Result<Value, ViewError> {
        let status = self.query(|proxy| proxy.status()).await?;
        let mut value = json!(status);
        value["keys_problem"] = json!(keys_problem(status.asn, &status.unregistered_keys));
        value["known"] = json!(*self.known.borrow());
        for (pair, [inside, outside]) in value["pairs"].as_array_mut().into_iter().flatten().zip(&*self.protections) {
            pair["inside"]["protection"] = json!(inside);
            pair["outside"]["protection"] = json!(outside);
        }
        Ok(value)
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let title = format!("attesting proxy of AS{}", cell(&status["asn"]));
        let mut overview = Overview::new(title, &["pair", "inside", "outside", "offered", "in", "out", "protection"]);
        for pair in status["pairs"].as_array().into_iter().flatten() {
            let end = |name: &str| match &pair[name]["asn"] {
                Value::Null => pair[name]["state"].clone(),
                asn => json!(format!("AS{asn} {}", cell(&pair[name]["state"]))),
            };
            overview.problems.extend(pair["problem"].as_str().map(str::to_owned));
            let [inside, outside] = ["inside", "outside"].map(|name| cell(&pair[name]["protection"]));
            overview.problems.extend(held_back(pair));
            let well = pair["inside"]["up"] == true && pair["outside"]["up"] == true && pair["suspect"] != true;
            overview.row(
                well,
                [
                    pair["name"].clone(),
                    end("inside"),
                    end("outside"),
                    pair["offered"].clone(),
                    pair["outside"]["received"].clone(),
                    json!(of_inside(pair)),
                    json!(if inside == outside { inside } else { format!("{inside}; outside {outside}") }),
                ],
            );
        }
        overview.problems.extend(status["keys_problem"].as_str().map(str::to_owned));
        let known = &status["known"];
        overview.problems.extend(known["alarms"].as_array().into_iter().flatten().map(cell));
        let clock = status["clock"].as_str().filter(|clock| *clock != "good");
        overview.problems.extend(clock.map(|clock| format!("the clock is {clock}")));
        for key in status["few_time_keys"].as_array().into_iter().flatten() {
            overview.count(few_time_key(key));
        }
        let counts = &status["counts"];
        for (side, key) in [("outside", "rejected"), ("inside", "rejected_from_inside")] {
            let rejected = status["pairs"].as_array().into_iter().flatten().filter_map(|pair| pair[key].as_u64());
            overview.count(format!("{} routes from {side} rejected now", rejected.sum::<u64>()));
        }
        overview.count(format!(
            "since the start {} validated, {} rejected and {} signed",
            counts["validated"],
            counts["rejected"],
            counts["originated"].as_u64().unwrap_or(0) + counts["extended"].as_u64().unwrap_or(0)
        ));
        overview.count(format!("{} signed objects count", known["objects"]));
        overview.count(format!("{} origins known", known["vrps"]));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let mut metrics = metrics(&self.query(|proxy| proxy.status()).await.ok()?);
        metrics.extend(self.known.borrow().metrics());
        Some(metrics)
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        Some(self.query(|proxy| proxy.lacks()).await.ok()?.map_or(Ok(()), Err))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        Some(&self.store)
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views
            .page("routes", |view, parameters| async move { view.routes(most(&parameters)?).await })
            .page("peers", |view, _| view.peers())
            .page("why", |view, parameters| async move { view.why(prefix(&parameters)?).await })
            .page("keys", |view, _| view.keys())
    }
}

/// Routes from inside that are neither held back nor rejected.
fn of_inside(pair: &Value) -> u64 {
    let of = |count: &Value| count.as_u64().unwrap_or(0);
    of(&pair["inside"]["received"]).saturating_sub(of(&pair["held_back"]) + of(&pair["rejected_from_inside"]))
}

/// That routes from inside are held back, if some are.
fn held_back(pair: &Value) -> Option<String> {
    let (count, first) = (pair["held_back"].as_u64().filter(|count| *count > 0)?, cell(&pair["first_held_back"]));
    let routes = if count == 1 { "one route is".to_owned() } else { format!("{count} routes are") };
    Some(format!(
        "pair {}: {routes} not sent to the neighbour; `wayleave why {first}` says why, and what to do",
        cell(&pair["name"])
    ))
}

fn metrics(status: &Status) -> Vec<Metric> {
    let (gauge, counter) = (Metric::gauge, Metric::counter);
    let (pairs, counts) = (&status.pairs, &status.counts);
    let established = pairs.iter().filter(|pair| pair.inside.up && pair.outside.up).count();
    let mut metrics = metrics! {
        gauge "configured" Pairs "Pairs configured" = pairs.len();
        gauge "established" Pairs "Pairs with both sessions up" = established;
        counter "validated" Routes "Routes validated" = counts.validated;
        counter "rejected" Routes "Routes rejected by policy" = counts.rejected;
        counter "looped" Routes "Routes with our own AS on their path" = counts.loops;
        counter "originated" Routes "Routes signed as their origin" = counts.originated;
        counter "extended" Routes "Routes whose chain was extended" = counts.extended;
        counter "renewed" Routes "Routes signed again ahead of expiry" = counts.renewed;
        counter "sent_unattested" Routes "Routes sent without an attestation" = counts.unattested;
        counter "not_extended" Routes "Routes sent with a chain that could not be extended" = counts.not_extended;
        counter "smaller_suite" Routes "Routes signed with a smaller suite to fit" = counts.smaller;
        counter "too_long" Routes "Routes not sent because no attestation fits" = counts.too_long;
        counter "oversize" Routes "Routes that a session's message size did not take" = counts.oversize;
        counter "exhausted" Routes "Routes not sent because keys are spent" = counts.exhausted;
        counter "faulty" Routes "Routes not sent because what was signed did not verify" = counts.faulty;
        counter "not_authorised" Routes "Own routes not sent that this AS may not originate" = counts.not_authorised;
        counter "older" Attestations "Attestations older than one that the origin had sent the same way" = counts.older;
        counter "failed" Routes "Routes whose job failed (a bug)" = counts.failed;
        counter "malformed" Updates "Malformed UPDATEs (RFC 7606)" = counts.malformed_updates;
    };
    let suspect = pairs.iter().filter(|pair| pair.suspect).count();
    metrics.push(gauge("suspect", Unit::Pairs, "Pairs whose neighbour sends many wrong signatures", suspect as f64));
    metrics.push(counter("verified", Unit::Signatures, "Signatures verified", counts.signatures));
    metrics.extend(memory_metrics(&status.memory));
    metrics.extend(class_metrics(|class| status.classes.get(class).copied().unwrap_or(0)));
    metrics.extend(few_time_metrics(&status.few_time_keys));
    metrics
}

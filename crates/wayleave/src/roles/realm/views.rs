//! What the operator's side shows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use wayleave_control::realm::{Membership, Registrar};
use wayleave_core::IdentityKey;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Metric, ViewError};
use wayleave_runtime::links::Links;
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::io::{Event, Refusals};
use crate::config::realm::{ENDS_SOON, LIST_KEY_HELP, NEXT_KEY_HELP, roll_problem};
use crate::output::cell;
use crate::overview::Overview;
use crate::roles::daemon::{self, View, Views};
use crate::roles::overlay::{MEMBER_COLUMNS, describe, member_rows};

#[derive(Clone)]
pub struct RealmView {
    realm: String,
    identity: IdentityKey,
    events: mpsc::Sender<Event>,
    links: Links,
    refusals: Refusals,
}

struct MachineStatus {
    members: usize,
    used: usize,
    revoked: usize,
    number: u64,
    /// The Unix second of the next list, and the last one of the list key that signed the present one.
    next: Option<u64>,
    list_key_until: Option<u64>,
    has_realm_key: bool,
    /// What somebody has to do about the next key.
    roll: Option<String>,
    rolls: Vec<(String, u64)>,
}

impl RealmView {
    pub fn new(
        registrar: &Registrar,
        identity: IdentityKey,
        events: &mpsc::Sender<Event>,
        links: &Links,
        refusals: &Refusals,
    ) -> Self {
        let (realm, events, links) = (registrar.realm().to_string(), events.clone(), links.clone());
        Self { realm, identity, events, links, refusals: refusals.clone() }
    }

    async fn machine_status(&self) -> Result<MachineStatus, ViewError> {
        daemon::query(&self.events, |registrar: &mut Registrar| {
            let list = registrar.revocations().map(|list| list.object().clone());
            let now = unix_now().secs();
            MachineStatus {
                members: registrar.members().filter(|member| member.holds(now)).count(),
                used: registrar.used().count(),
                revoked: list.as_ref().map_or(0, |list| list.revoked.len()),
                number: list.as_ref().map_or(0, |list| list.number),
                next: list.as_ref().map(|list| list.next),
                list_key_until: list.and_then(|list| list.by).map(|by| by.object().not_after),
                has_realm_key: registrar.has_realm_key(now),
                roll: roll_problem(registrar, now),
                rolls: registrar.rolls().iter().map(|roll| (format!("realm:{}", roll.next), roll.from)).collect(),
            }
        })
        .await
    }
}

impl MachineStatus {
    fn problems(&self, refusals: &Refusals) -> Vec<String> {
        let now = unix_now().secs();
        let overdue = self.next.filter(|next| *next < now);
        let overdue = overdue.map(|next| {
            format!("the list of removed nodes was not signed anew, which was due on {}: the log says why", utc(next))
        });
        let ends = self.list_key_until.filter(|until| *until < now + ENDS_SOON);
        let ends = ends.map(|until| format!("the list key ends on {}: {LIST_KEY_HELP}", utc(until)));
        let roll = self.roll.as_ref().map(|text| format!("{text}: {NEXT_KEY_HELP}"));
        overdue.into_iter().chain(ends).chain(roll).chain(refusals.problems()).collect()
    }
}

impl RealmView {
    async fn members(&self) -> Result<Vec<Value>, ViewError> {
        let now = unix_now().secs();
        daemon::query(&self.events, move |registrar: &mut Registrar| {
            let is_member = |member: &&Membership| member.holds(now) && !registrar.is_revoked(&member.identity);
            let members = registrar.members().filter(is_member);
            members.map(|member| describe(member, None)).collect::<Vec<Value>>()
        })
        .await
    }
}

impl View for RealmView {
    async fn status(&self) -> Result<Value, ViewError> {
        let machine = self.machine_status().await?;
        Ok(json!({
            "realm": self.realm,
            "identity": self.identity.to_string(),
            "members": machine.members,
            "tokens_used": machine.used,
            "revoked": machine.revoked,
            "revocations": machine.number,
            "next_list": machine.next,
            "list_key_until": machine.list_key_until,
            "realm_key": machine.has_realm_key,
            "key_rolls": machine.rolls.iter().map(|(key, from)| json!({ "key": key, "from": from })).collect::<Vec<Value>>(),
            "problems": machine.problems(&self.refusals),
        }))
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let mut overview = Overview::new(format!("operator of the realm {}", cell(&status["realm"])), &MEMBER_COLUMNS);
        member_rows(&mut overview, &self.members().await?, false);
        overview.count(format!("{} members", status["members"]));
        overview.count(format!("{} tokens used or withdrawn", status["tokens_used"]));
        overview.count(format!("{} nodes removed (list {})", status["revoked"], status["revocations"]));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let machine = self.machine_status().await.ok()?;
        Some(metrics! {
            gauge "admitted" Members "Members that were admitted" = machine.members;
            gauge "token_used" Keys "Tokens that were used or withdrawn" = machine.used;
            gauge "revoked" Members "Nodes that were removed" = machine.revoked;
            gauge "revocation" Number "Number of the list of removed nodes" = machine.number;
            counter "failed" Connections "Connections that failed before the node was known" =
                self.links.counters().failed.load(Ordering::Relaxed);
        })
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        self.machine_status().await.ok().map(|_| Ok(()))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        None
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views.page("members", |view, _| async move { Ok(json!({ "version": 1, "members": view.members().await? })) })
    }
}

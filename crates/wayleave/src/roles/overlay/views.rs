//! What a node shows of its part in a realm.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use wayleave_control::advert::Advert;
use wayleave_control::node::{Node, NodeStatus};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Metric, ViewError};
use wayleave_runtime::metrics;

use super::Handle;
use crate::config::links::relationship_name;
use crate::output::cell;
use crate::overview::Overview;
use crate::roles::daemon;

impl Handle {
    async fn node<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        daemon::query(&self.events, query).await
    }

    /// How the node stands.
    pub async fn node_status(&self) -> Result<NodeStatus, ViewError> {
        self.node(|node| node.status()).await
    }

    /// For a role's status page.
    pub async fn status(&self) -> Result<Value, ViewError> {
        let status = self.node_status().await?;
        let membership = self.node(|node| node.membership().object().clone()).await?;
        let names: Vec<&str> = membership.grants.names.iter().map(|name| name.as_str()).collect();
        Ok(json!({
            "realm": membership.realm.to_string(),
            "identity": membership.identity.to_string(),
            "names": names,
            "membership_until": membership.not_after,
            "advert": status.sequence,
            "registered": status.registered,
            "path_servers": status.connected,
            "members": status.members,
            "path_requests": status.path_requests,
            "consent_requests": status.consent_requests,
            "paths_in_use": status.leases,
            "problems": self.problems(),
        }))
    }

    /// Whether others can find the node, and if not, what is missing.
    #[allow(dead_code, reason = "for roles whose readiness is that of the node")]
    pub async fn readiness(&self) -> Option<Result<(), String>> {
        let status = self.node_status().await.ok()?;
        Some(match status {
            NodeStatus { registered: 1.., .. } => Ok(()),
            NodeStatus { connected: 0, .. } => Err("no path server can be reached".to_owned()),
            _ => Err("no path server has this node's advert".to_owned()),
        })
    }

    /// The node's part of a role's metrics.
    pub async fn metrics(&self) -> Option<Vec<Metric>> {
        let status = self.node_status().await.ok()?;
        let links = self.links.counters();
        Some(metrics! {
            gauge "overlay_advert" Number "Sequence of the advert that is durable" = status.sequence;
            gauge "overlay_registered" Links "Path servers that have the advert" = status.registered;
            gauge "overlay_path_server" Links "Links to path servers" = status.connected;
            gauge "overlay_known" Members "Members of the realm that are known" = status.members;
            gauge "overlay_paths_in_use" Routes "Paths kept in consent" = status.leases;
            counter "overlay_path_asked" Messages "Requests to path servers" = status.path_requests;
            counter "overlay_consent_asked" Messages "Requests to consent servers" = status.consent_requests;
            counter "overlay_refused" Connections "Connections to servers that were somebody else" = links.refused.load(Ordering::Relaxed);
        })
    }

    /// The members of the realm, for `show members`.
    pub async fn members(&self) -> Result<Value, ViewError> {
        let realm = self.realm();
        let realm = realm.borrow().clone();
        let all: Vec<Value> =
            realm.nodes.values().map(|member| describe(&member.membership, member.advert.as_ref())).collect();
        Ok(json!({ "version": 1, "members": all }))
    }
}

/// A member as pages show it.
pub fn describe(membership: &wayleave_control::realm::Membership, advert: Option<&Advert>) -> Value {
    let names: Vec<&str> = membership.grants.names.iter().map(|name| name.as_str()).collect();
    let prefixes: Vec<String> = membership.grants.prefixes.iter().map(ToString::to_string).collect();
    let links = advert.map(|advert| {
        let link = |link: &wayleave_control::advert::Link| {
            json!({
                "neighbour": link.neighbour.to_string(),
                "relationship": relationship_name(link.relationship),
                "public": link.public,
                "endpoint": link.endpoint.as_ref().map(ToString::to_string),
            })
        };
        advert.links.iter().map(link).collect::<Vec<Value>>()
    });
    json!({
        "identity": membership.identity.to_string(),
        "names": names,
        "prefixes": prefixes,
        "roles": role_names(membership.grants.roles),
        "membership_until": membership.not_after,
        "advert": advert.map(|advert| advert.sequence),
        "advert_secs_left": advert.map(|advert| advert.expires().saturating_sub(unix_now().secs())),
        "links": links,
        "open": advert.and_then(|advert| advert.open.as_ref()).map(ToString::to_string),
        "tls": advert.and_then(Advert::tls).map(|endpoint| endpoint.to_string()),
        "consent": advert.and_then(|advert| advert.consent.as_ref()).map(|server| server.identity.to_string()),
    })
}

/// The columns of [`member_rows`].
pub const MEMBER_COLUMNS: [&str; 4] = ["member", "roles", "advert", "membership until"];

/// The members of a realm as rows of an overview; with `adverts`, a node without an advert is not well.
pub fn member_rows(overview: &mut Overview, members: &[Value], adverts: bool) {
    for member in members {
        let names = cell(&member["names"]);
        let name = if names == "-" { cell(&member["identity"]) } else { names };
        let advert = match (&member["advert"], member["advert_secs_left"].as_u64()) {
            (Value::Number(_), Some(secs)) => format!("for {secs} s"),
            _ => "none".to_owned(),
        };
        let is_node = member["roles"].as_array().is_some_and(|roles| roles.iter().any(|role| role != "path"));
        let well = !adverts || !is_node || member["advert"].is_u64();
        let until = member["membership_until"].as_u64().map(utc);
        overview.row(well, [json!(name), member["roles"].clone(), json!(advert), json!(until)]);
    }
}

/// The roles' names, as commands take them.
pub fn role_names(roles: wayleave_control::realm::Roles) -> Vec<&'static str> {
    use wayleave_control::realm::Roles;
    let all = [
        (Roles::FORWARDER, "router"),
        (Roles::GATEWAY, "gateway"),
        (Roles::PATH_SERVER, "path"),
        (Roles::CONSENT_SERVER, "consent"),
    ];
    all.into_iter().filter(|(role, _)| roles.has(*role)).map(|(_, name)| name).collect()
}

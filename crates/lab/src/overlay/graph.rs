//! A plan as a picture: DOT for programs that draw, lines of text for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::plan::routed::{Router, cost_of};
use super::plan::{Link, Plan, Relationship};

/// The plan as a graph in DOT. Providers stand above their customers; a dashed link is not public; what is in `ended` is grey.
#[must_use]
pub fn dot(plan: &Plan, ended: &BTreeSet<String>) -> String {
    let mut text = format!("graph \"{}\" {{\n  rankdir = TB;\n  node [fontname = \"sans-serif\"];\n", plan.name);
    let colour = |name: &str| if ended.contains(name) { ", color = grey, fontcolor = grey" } else { "" };
    for node in &plan.nodes {
        let _ = writeln!(text, "  \"{}\" [shape = ellipse{}];", node.name, colour(&node.name));
    }
    for router in &plan.routers {
        let (name, label) = (&router.name, said(router, "\\n"));
        let _ = writeln!(text, "  \"{name}\" [shape = ellipse, label = \"{name}{label}\"{}];", colour(name));
    }
    for server in &plan.key_servers {
        let (name, address) = (&server.name, server.address);
        let _ = writeln!(text, "  \"{name}\" [shape = cylinder, label = \"{name}\\n{address}\"{}];", colour(name));
    }
    for gateway in &plan.gateways {
        let prefixes: Vec<String> = gateway.prefixes.iter().map(ToString::to_string).collect();
        let (name, label) = (&gateway.name, prefixes.join("\\n"));
        let _ = writeln!(text, "  \"{name}\" [shape = box, label = \"{name}\\n{label}\"{}];", colour(name));
    }
    for host in &plan.hosts {
        let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
        let (name, label) = (&host.name, addresses.join("\\n"));
        let _ = writeln!(text, "  \"{name}\" [shape = plaintext, label = \"{name}\\n{label}\"];");
    }
    for link in &plan.links {
        // The upper end first.
        let (upper, lower) = match link.relationship {
            Relationship::Provider => (&link.to, &link.from),
            Relationship::Customer | Relationship::Peer => (&link.from, &link.to),
        };
        let mut attributes = Vec::new();
        if link.relationship == Relationship::Peer && !plan.is_routed() {
            attributes.push("constraint = false".to_owned());
        }
        let cost = cost_of(link);
        let delay = if link.delay.is_zero() { String::new() } else { format!("{} ms", link.delay.as_millis()) };
        let label = format!("{delay}{cost}");
        if !label.is_empty() {
            attributes.push(format!("label = \"{}\"", label.trim_start_matches(", ")));
        }
        if !link.public {
            attributes.push("style = dashed".to_owned());
        }
        let _ = writeln!(text, "  \"{upper}\" -- \"{lower}\" [{}];", attributes.join(", "));
    }
    let servers = plan.key_servers.iter().map(|server| (&server.router, &server.name));
    for (at, name) in plan.hosts.iter().map(|host| (&host.gateway, &host.name)).chain(servers) {
        let _ = writeln!(text, "  \"{at}\" -- \"{name}\" [style = dotted];");
    }
    text + "}\n"
}

/// The plan as text: each node with its links, gateways first.
#[must_use]
pub fn drawing(plan: &Plan, ended: &BTreeSet<String>) -> String {
    let mut text = String::new();
    let is_ended = |name: &str| if ended.contains(name) { "  (has ended)" } else { "" };
    for gateway in &plan.gateways {
        let prefixes: Vec<String> = gateway.prefixes.iter().map(ToString::to_string).collect();
        let name = &gateway.name;
        let _ = writeln!(text, "{name}  gateway of {}{}", prefixes.join(", "), is_ended(name));
        branches(&mut text, plan, name, attached(plan, name));
    }
    for router in &plan.routers {
        let _ = writeln!(text, "{}{}{}", router.name, said(router, "  "), is_ended(&router.name));
        branches(&mut text, plan, &router.name, attached(plan, &router.name));
    }
    for node in &plan.nodes {
        let _ = writeln!(text, "{}{}", node.name, is_ended(&node.name));
        branches(&mut text, plan, &node.name, Vec::new());
    }
    text
}

/// What a router does beside forwarding.
fn said(router: &Router, before: &str) -> String {
    let mut parts = Vec::new();
    if let Some(waypoint) = &router.waypoint {
        parts.push(format!("waypoint {}", waypoint.address));
    }
    for stamp in &router.stamps {
        parts.push(format!("stamps to {} with {}", stamp.to, stamp.with.join(", ")));
    }
    if parts.is_empty() { String::new() } else { format!("{before}{}", parts.join(", ")) }
}

/// Hosts and key servers at a gateway or router.
fn attached(plan: &Plan, name: &str) -> Vec<String> {
    let hosts = plan.hosts.iter().filter(|host| host.gateway == *name).map(|host| {
        let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
        format!("{}  host {}", host.name, addresses.join(", "))
    });
    let servers = plan.key_servers.iter().filter(|server| server.router == *name);
    hosts.chain(servers.map(|server| format!("{}  key server {}", server.name, server.address))).collect()
}

fn branches(text: &mut String, plan: &Plan, node: &str, hosts: Vec<String>) {
    let link = |(name, relationship, link): (&str, Relationship, &Link)| {
        let delay = if link.delay.is_zero() { String::new() } else { format!(", {} ms", link.delay.as_millis()) };
        let public = if link.public { "" } else { ", not public" };
        if plan.is_routed() {
            return format!("{name}{}{delay}", cost_of(link));
        }
        format!("{name}  {}{delay}{public}", relationship.name())
    };
    let mut lines: Vec<String> = plan.links_of(node).map(link).collect();
    lines.extend(hosts);
    for (number, line) in lines.iter().enumerate() {
        let corner = if number + 1 == lines.len() { "└─" } else { "├─" };
        let _ = writeln!(text, "{corner} {line}");
    }
}

//! A plan as a picture: DOT for programs that draw, lines of text for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::plan::{Link, Plan, Relationship};

/// The plan as a graph in DOT. Providers stand above their customers; a dashed link is not public; what is in `ended` is grey.
#[must_use]
pub fn dot(plan: &Plan, ended: &BTreeSet<String>) -> String {
    let mut text = format!("graph \"{}\" {{\n  rankdir = TB;\n  node [fontname = \"sans-serif\"];\n", plan.name);
    let colour = |name: &str| if ended.contains(name) { ", color = grey, fontcolor = grey" } else { "" };
    for node in &plan.nodes {
        let _ = writeln!(text, "  \"{}\" [shape = ellipse{}];", node.name, colour(&node.name));
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
        if link.relationship == Relationship::Peer {
            attributes.push("constraint = false".to_owned());
        }
        if !link.delay.is_zero() {
            attributes.push(format!("label = \"{} ms\"", link.delay.as_millis()));
        }
        if !link.public {
            attributes.push("style = dashed".to_owned());
        }
        let _ = writeln!(text, "  \"{upper}\" -- \"{lower}\" [{}];", attributes.join(", "));
    }
    for host in &plan.hosts {
        let _ = writeln!(text, "  \"{}\" -- \"{}\" [style = dotted];", host.gateway, host.name);
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
        let hosts = plan.hosts.iter().filter(|host| host.gateway == *name).map(|host| {
            let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
            format!("{}  host {}", host.name, addresses.join(", "))
        });
        branches(&mut text, plan, name, hosts.collect());
    }
    for node in &plan.nodes {
        let _ = writeln!(text, "{}{}", node.name, is_ended(&node.name));
        branches(&mut text, plan, &node.name, Vec::new());
    }
    text
}

fn branches(text: &mut String, plan: &Plan, node: &str, hosts: Vec<String>) {
    let link = |(name, relationship, link): (&str, Relationship, &Link)| {
        let delay = if link.delay.is_zero() { String::new() } else { format!(", {} ms", link.delay.as_millis()) };
        let public = if link.public { "" } else { ", not public" };
        format!("{name}  {}{delay}{public}", relationship.name())
    };
    let mut lines: Vec<String> = plan.links_of(node).map(link).collect();
    lines.extend(hosts);
    for (number, line) in lines.iter().enumerate() {
        let corner = if number + 1 == lines.len() { "└─" } else { "├─" };
        let _ = writeln!(text, "{corner} {line}");
    }
}

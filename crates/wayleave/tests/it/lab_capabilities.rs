//! Applications of capabilities (Platypus, section 2.1) as laboratories: packets take the transit that is paid for, and the bill names
//! who pays; without a capability they take the default.
//!
//! PLA, applications: the paper's five (section 2.1) as laboratories: transit with capabilities of two principals,
//! resale with a revocation, egress, ingress, multi-homing: packets cross the transit that is paid for, and the default
//! without a capability.

use serde_json::Value;
use wayleave_lab::netns;

use crate::common::{eventually, serves_pages, text};
use crate::lab::{Lab, example, lower_rung};

/// A request and its page take more packets than this in each direction.
const SOME: u64 = 3;

/// Principal, delegation, sub-delegation and packets of a statement's lines.
type Lines = Vec<(u64, Option<u64>, Option<u64>, u64)>;

/// Starts an example; `None` where that cannot be.
fn up(name: &str, rung: &str) -> Option<Lab> {
    let lab = Lab::new(name)?;
    if !serves_pages() {
        netns::skipped(&format!("lab_capabilities, {name}: no python3 that serves pages"));
        return None;
    }
    let output = lab.up(&[&example(&format!("{name}.toml")), "--rung", rung]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}{}", text(&output.stderr), lab.logs());
    assert!(said.contains("wayleave cap usage --config key.toml") && output.stderr.is_empty(), "{said}");
    Some(lab)
}

impl Lab {
    /// Fetches a page; `before` is what stands in front of the command.
    fn fetch(&self, host: &str, before: &[&str], to: &str) {
        let url = format!("http://{to}/");
        let curl =
            ["curl", "--silent", "--show-error", "--fail", "--max-time", "20", "--retry-connrefused", "--retry", "5"];
        let page = self.at(host, &[before, &curl, &[&url]].concat());
        assert!(page.contains("Directory listing"), "{page}");
    }

    /// Packets that a router has sent to a neighbour over their link.
    fn crossed(&self, router: &str, neighbour: &str) -> u64 {
        let shown = self.at(router, &["ip", "-json", "-statistics", "link", "show", "dev", neighbour]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        shown[0]["stats64"]["tx"]["packets"].as_u64().expect("a count")
    }

    /// What a key server's statement has.
    fn bill(&self, server: &str) -> Lines {
        let said = self.at(server, &["wayleave", "cap", "usage", "--config", "key.toml", "--json"]);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let line = |line: &Value| {
            let packets = line["packets"].as_str().and_then(|text| text.parse().ok()).expect("a number");
            let number = |of: &str| line[of].as_u64();
            (number("principal").expect("a principal"), number("delegation"), number("sub_delegation"), packets)
        };
        said["usage"].as_array().expect("lines").iter().map(line).collect()
    }

    /// Waits until a router's neighbour has been sent as many packets as the statement has, and more than before.
    fn is_billed(&self, server: &str, of: (u64, Option<u64>, Option<u64>), before: u64) -> u64 {
        let mut packets = 0;
        eventually(&format!("{of:?} is billed by {server}"), || {
            let bill = self.bill(server);
            let line = bill.iter().find(|line| (line.0, line.1, line.2) == of);
            packets = line.map_or(0, |line| line.3);
            packets > before + SOME
        });
        // The packets that end the connection may still be under way.
        crate::stamping::world::settled(|| self.bill(server));
        self.bill(server).iter().find(|line| (line.0, line.1, line.2) == of).map_or(0, |line| line.3)
    }
}

#[test]
fn on_demand_transit_takes_capabilities_of_two_principals_in_one_packet() {
    let Some(lab) = up("transit", lower_rung()) else { return };
    lab.fetch("a", &[], "203.0.113.10");
    let default = lab.crossed("r3", "r4");
    assert!(default > SOME && lab.bill("cisp").is_empty() && lab.bill("bisp").is_empty());
    let stamp = |capabilities: &[&'static str]| {
        let mut line = vec!["wayleave", "stamp", "--socket", "stamper.sock", "--to", "203.0.113.0/24"];
        capabilities.iter().for_each(|file| line.extend(["--capability", *file]));
        [&line[..], &["--"]].concat()
    };
    lab.fetch("a", &stamp(&["resold.cap", "of-a.cap"]), "203.0.113.10");
    // C's account, under the number of what C resold, and A's own at B's provider: for the same packets.
    let paid = lab.is_billed("cisp", (7, Some(1), None), 0);
    assert_eq!(lab.bill("cisp"), [(7, Some(1), None, paid)]);
    lab.is_billed("bisp", (21, None, None), 0);
    assert_eq!(lab.bill("bisp"), [(21, None, None, paid)]);
    for (router, neighbour) in [("r5", "r7"), ("r7", "r6"), ("r6", "r8"), ("r8", "r4")] {
        let crossed = lab.crossed(router, neighbour);
        assert!(crossed >= paid, "{router} to {neighbour}: {crossed}, {paid} on the bill");
    }
    // C's own packets are on its account without a number; what it resold reaches B's network and no other.
    lab.fetch("c", &stamp(&["of-c.cap"]), "203.0.113.10");
    lab.is_billed("cisp", (7, None, None), 0);
    let elsewhere =
        ["wayleave", "stamp", "--socket", "stamper.sock", "--to", "192.0.2.0/24", "--capability", "resold.cap"];
    let refused = lab.lab("exec", &[&["a"][..], &elsewhere[..], &["--", "true"]].concat());
    assert!(text(&refused.stderr).contains("not delegated for all destinations"), "{}", text(&refused.stderr));
    // Status and picture know the waypoints.
    let table = text(&lab.lab("status", &[]).stdout);
    assert!(
        table.contains("stamper") && table.contains("key") && table.contains(&format!("forwarded {paid}")),
        "{table}"
    );
    let drawn = text(&lab.lab("graph", &["--text"]).stdout);
    assert!(drawn.contains("r7  waypoint 198.51.100.7\n"), "{drawn}");
    assert!(text(&lab.lab("down", &[]).stdout).contains("every process has ended"));
}

#[test]
fn what_is_resold_is_billed_by_delegation_and_one_customer_is_cut_off_without_the_others() {
    let Some(lab) = up("resale", "root") else { return };
    lab.fetch("agency", &[], "203.0.113.10");
    assert!(lab.bill("keys").is_empty());
    for (host, to, delegation, sub) in
        [("east", "203.0.113.10", 1, None), ("west", "203.0.113.130", 2, None), ("branch", "203.0.113.10", 1, Some(9))]
    {
        lab.fetch(host, &[], to);
        lab.is_billed("keys", (7, Some(delegation), sub), 0);
    }
    // Beyond what it bought a customer's packets leave as ever.
    let before = lab.bill("keys");
    lab.fetch("east", &[], "203.0.113.130");
    assert_eq!(crate::stamping::world::settled(|| lab.bill("keys")), before);
    // The broker ends one: its packets are refused at the waypoint, and those of what it resold in turn; the other goes on.
    let revoke =
        ["wayleave", "cap", "revoke", "--line", "broker.line", "--delegation", "1", "--server", "198.51.100.53:53"];
    lab.at("agency", &revoke);
    let tries = |host: &str, to: &str| {
        let curl = ["curl", "--silent", "--output", "/dev/null", "--max-time", "2", to];
        lab.lab("exec", &[&[host], &curl[..]].concat()).status.success()
    };
    eventually("east is refused", || !tries("east", "http://203.0.113.10/"));
    eventually("branch is refused", || !tries("branch", "http://203.0.113.10/"));
    let before = lab.is_billed("keys", (7, Some(2), None), 0);
    lab.fetch("west", &[], "203.0.113.130");
    lab.is_billed("keys", (7, Some(2), None), before);
}

/// Of two senders in the same place one has a capability: how many packets cross each of two ways.
fn two_ways(lab: &Lab, host: &str, to: &str, ways: [(&str, &str); 2]) -> [bool; 2] {
    let count = || ways.map(|(router, neighbour)| lab.crossed(router, neighbour));
    let before = count();
    lab.fetch(host, &[], to);
    let after = crate::stamping::world::settled(count);
    [0, 1].map(|which| after[which] - before[which] >= SOME)
}

#[test]
fn an_upstream_network_chooses_the_egress_of_its_traffic_and_others_leave_by_the_near_one() {
    let Some(lab) = up("egress", "root") else { return };
    let ways = [("near", "peer"), ("east", "peer")];
    assert_eq!(two_ways(&lab, "h2", "203.0.113.10", ways), [true, false]);
    assert!(lab.bill("keys").is_empty());
    assert_eq!(two_ways(&lab, "h1", "203.0.113.10", ways), [false, true]);
    lab.is_billed("keys", (7, None, None), 0);
}

#[test]
fn a_stub_network_pays_for_callers_to_come_in_by_the_other_provider() {
    let Some(lab) = up("ingress", "root") else { return };
    let ways = [("red", "stub"), ("blue", "stub")];
    assert_eq!(two_ways(&lab, "stranger", "203.0.113.10", ways), [true, false]);
    assert!(lab.bill("keys").is_empty());
    assert_eq!(two_ways(&lab, "friend", "203.0.113.10", ways), [false, true]);
    lab.is_billed("keys", (7, Some(1), None), 0);
}

#[test]
fn a_network_with_one_upstream_chooses_among_backbones_behind_it() {
    let Some(lab) = up("multihoming", lower_rung()) else { return };
    let ways = [("a", "core"), ("b", "core")];
    assert_eq!(two_ways(&lab, "desk", "203.0.113.30", ways), [true, false], "as the provider routes");
    assert!(lab.bill("keys-a").is_empty() && lab.bill("keys-b").is_empty());
    assert_eq!(two_ways(&lab, "desk", "203.0.113.20", ways), [false, true]);
    lab.is_billed("keys-b", (8, None, None), 0);
    assert!(lab.bill("keys-a").is_empty());
    assert_eq!(two_ways(&lab, "desk", "203.0.113.10", ways), [true, false]);
    lab.is_billed("keys-a", (7, None, None), 0);
}

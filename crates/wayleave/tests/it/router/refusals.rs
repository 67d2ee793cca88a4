//! What routers refuse to a customer is seen by the customer's own line, as processes: by reason, over all routers, and without what
//! others forged in its name.
//!
//! PLA, refusals by process: packets repeated, forged and sent after a revocation; the key server killed: it has all again with the next
//! reports; a router killed: what it had counted is gone, and nothing is added up twice.

use std::fs;

use serde_json::{Value, json};

use super::billed::Site;
use super::common::eventually;
use super::platypus::{HOST, PLATYPUS, Socket, WAYPOINTS, packet};

#[test]
fn a_customer_sees_by_its_line_what_routers_refused_and_not_what_others_forged() {
    let list = |which: usize, writer: &str| {
        format!("revocations = {{ file = \"pushed{which}\", key = {writer}, required = false }}\n")
    };
    let name = "refusals::a_customer_sees_by_its_line_what_routers_refused_and_not_what_others_forged";
    let Some(mut site) = Site::new(name, "", list) else { return };
    eventually("both routers are connected", || site.connected());
    let config = fs::read_to_string(site.folder.0.join("key.toml")).expect("there");
    let listen =
        config.lines().find_map(|line| line.strip_prefix("listen = \"")?.strip_suffix('"')).expect("an address");
    let waypoint = WAYPOINTS[0].to_string();
    let line = site.ok(&["cap", "grant", "--principal", "7", "--waypoint", &waypoint, "--config", "key.toml"]);
    site.folder.write("own.line", &line);
    let command = ["cap", "status", "--line", "own.line", "--server", listen];
    // Without an answer until the server has followed the database.
    let status = |site: &Site| -> Value {
        let said = site.folder.run(&[&command[..], &["--json"]].concat());
        serde_json::from_slice(&said.stdout).unwrap_or_default()
    };
    eventually("both report that they refused nothing", || {
        let status = status(&site);
        status["refused"] == json!({}) && status["refused_routers"] == 2
    });

    let said = site.ok(&command);
    assert!(said.contains("nothing from ") && said.contains("by the reports of 2 routers"), "{said}");
    assert!(!said.contains("refused routers"), "{said}");

    // Each of them twice, at either router; and what somebody without the key sends in the customer's name.
    let mut host = Socket::new(HOST, PLATYPUS);
    for (router, packets) in [(0, 20), (1, 5)] {
        for number in 0..packets {
            let packet = packet(&[router], number, 100);
            host.send(&packet);
            host.send(&packet);
        }
    }
    for number in 1_000..1_010 {
        let mut forged = packet(&[0], number, 100);
        *forged.last_mut().expect("octets") ^= 1;
        host.send(&forged);
    }
    let count = |site: &Site, router: usize, reason: &str| site.routers[router].count("reasons", reason);
    eventually("all are refused", || {
        count(&site, 0, "replayed") == 20 && count(&site, 1, "replayed") == 5 && count(&site, 0, "binding") == 10
    });
    eventually("the customer sees its own", || status(&site)["refused"] == json!({ "replayed": "25" }));

    site.ok(&["cap", "revoke", "7", "--config", "key.toml"]);
    eventually("the principal is revoked", || site.routers[0].status()["revocations"]["entries"] == 1);
    (2_000..2_030).for_each(|number| host.send(&packet(&[0], number, 100)));
    eventually("no packet passes", || count(&site, 0, "revoked") == 30);
    let refused = json!({ "replayed": "25", "revoked": "30" });
    eventually("the customer sees why", || status(&site)["refused"] == refused);
    let said = site.ok(&command);
    assert!(said.contains("refused revoked") && said.contains("refused as of"), "{said}");

    // The key server keeps nothing of it, and has it from the routers.
    site.key.kill();
    site.key.start_process();
    eventually("it has all again", || site.connected() && status(&site)["refused"] == refused);
    // A router counts from its start.
    site.routers[0].kill();
    site.routers[0].start_process();
    eventually("what the other refused is left", || status(&site)["refused"] == json!({ "replayed": "5" }));

    // A router that no [[key.router]] names: both ends say so, until one does.
    let identity = config.split("name = \"r0\"").nth(1).and_then(|rest| rest.split('"').nth(1)).expect("its identity");
    let made = site.ok(&["keys", "node", "nobody.identity", "--kind", "identity", "--json"]);
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let other = made["public"].as_str().expect("a key");
    site.key.kill();
    site.folder.write("key.toml", &config.replace(identity, other));
    site.key.start_process();
    let of_router = |site: &Site| site.routers[0].status()["provider"]["problems"].to_string();
    let of_key = |site: &Site| site.key.status()["problems"].to_string();
    eventually("both ends say it", || {
        let said = of_key(&site);
        let is_named = said.contains(identity) && said.contains("no [[key.router]] has this identity");
        is_named && of_router(&site).contains("in a [[key.router]] there")
    });
    site.folder.write("key.toml", &config);
    site.key.reload();
    eventually("it is connected, and nothing is said", || {
        site.connected() && of_router(&site) == "[]" && !of_key(&site).contains("no [[key.router]]")
    });
}

//! `wayleave-lab ping`: a packet of each format through running routers, its answer, and what a spoiled one meets.
//!
//! LAB, ping: pings of each format through running routers, and with a spoiled proof: answered; refused by SCMP, by
//! ICMP, or silently, with the reason from the router's counters.

use std::process::Output;

use serde_json::{Value, json};
use wayleave_lab::netns::{self, NetworkNamespace};

use crate::common::text;
use crate::guide::snippets;
use crate::router::common::{Folder, Router, free};
use crate::router::icing::{key, link};
use crate::router::platypus::{HOST, LAST, lay_out, start};
use crate::router::scion::{DOWN, KEYS, UP, config, host};

/// `wayleave-lab ping` with JSON.
fn ping(folder: &Folder, arguments: &[&str]) -> (Output, Value) {
    let output = folder.run(&[&["wayleave-lab", "ping", "--interval-ms", "20", "--json"], arguments].concat());
    let said = text(&output.stdout);
    // A failure is a second object.
    let first = said.lines().next().unwrap_or_default();
    let value = serde_json::from_str(first).unwrap_or_else(|error| panic!("{error}: {said}{}", text(&output.stderr)));
    (output, value)
}

fn counts(value: &Value) -> [&Value; 3] {
    ["sent", "arrived", "answered"].map(|key| &value[key])
}

#[test]
fn scion_packets_are_answered_over_three_ases_and_a_spoiled_mac_is_told_by_scmp() {
    let folder = Folder::new("ping-scion");
    (0..3).for_each(|index| folder.keys(&format!("{index}.key"), "scion", &[(0, KEYS[index])]));
    let inside = [free(), free(), free()];
    let [ab, ba, bc, cb] = [free(), free(), free(), free()];
    let configs = [
        config(0, &inside[0], "", &[(DOWN, "child", 1, &ab, &ba)]),
        config(1, &inside[1], "", &[(UP, "parent", 0, &ba, &ab), (DOWN, "child", 2, &bc, &cb)]),
        config(2, &inside[2], "", &[(UP, "parent", 1, &cb, &bc)]),
    ];
    let _routers: Vec<Router> =
        (0..3).map(|at| Router::start(&folder, &format!("r{at}"), NetworkNamespace::Own, &configs[at])).collect();
    // Ports of end hosts, free a moment ago.
    let [from, to] = [host(), host()].map(|socket| socket.local_addr().expect("bound").to_string());
    let down =
        ["--format", "scion", "--via", "r0.toml", "--via", "r1.toml", "--via", "r2.toml", "--from", &from, "--to", &to];
    let up =
        ["--format", "scion", "--via", "r2.toml", "--via", "r1.toml", "--via", "r0.toml", "--from", &from, "--to", &to];
    for path in [&down[..], &up[..]] {
        let (output, said) = ping(&folder, path);
        assert!(output.status.success(), "{said}");
        assert_eq!((counts(&said), &said["errors"]), ([&json!(4); 3], &json!([])), "{said}");
    }
    let (output, said) = ping(&folder, &[&down[..], &["--spoil", "--count", "1"]].concat());
    assert_eq!((output.status.code(), counts(&said)), (Some(1), [&json!(1), &json!(0), &json!(0)]), "{said}");
    let error = said["errors"][0].as_str().expect("an error");
    assert!(error.contains("SCMP from 1-3") && error.contains("MAC") && error.contains("type 4, code 51"), "{error}");
    assert_eq!(said["dropped"][0], json!({ "router": "r2.toml", "reason": "bad_mac", "packets": 1 }), "{said}");
    // What the guide shows, line by line; times differ.
    let timeless = |text: &str| {
        let word = |word: &str| {
            if word.contains('.') && word.parse::<f64>().is_ok() { "N".to_owned() } else { word.to_owned() }
        };
        text.lines().map(|line| line.split(' ').map(word).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let shown = snippets("lab.md", "text").into_iter().find(|shown| shown.contains("wayleave-lab ping"));
    let shown = shown.expect("the guide shows it");
    let mut transcript = String::new();
    for command in shown.lines().filter_map(|line| line.strip_prefix("$ ")) {
        transcript += &format!("$ {command}\n");
        let command = command.replace("127.0.0.1:31001", &from).replace("127.0.0.1:31002", &to);
        transcript += &text(&folder.run(&command.split(' ').collect::<Vec<_>>()).stdout);
    }
    assert_eq!(timeless(&transcript), timeless(&shown));
    let wrong = folder.run(&["wayleave-lab", "ping", "--format", "icing", "--via", "r0.toml"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("a router of scion packets, not of icing"), "{}", text(&wrong.stderr));
}

#[test]
fn icing_packets_are_answered_over_two_nodes_and_a_spoiled_proof_dies_at_the_last() {
    let folder = Folder::new("ping-icing");
    (1..3).for_each(|node| folder.keys(&format!("{node}.key"), "icing", &[(0, key(node))]));
    let [one, other, near, far, near_end, far_end] = [free(), free(), free(), free(), free(), free()];
    let node = |node: usize, service: &str, inside: &str| {
        format!(
            "[forwarding]\nformat = \"icing\"\nkeys = \"{node}.key\"\n[icing]\ninternal = \"{inside}\"\n\
             tags = [{{ prefix = \"40000000/2\" }}, {{ prefix = \"80000000/2\", service = 7 }}]\n\
             services = [{{ id = 7, address = \"{service}\" }}]\n"
        )
    };
    let (inner, outer) = (free(), free());
    let [near_service, far_service] = [free(), free()];
    let configs = [
        node(1, &near_service, &inner) + &link(1, &near, &near_end, None) + &link(2, &one, &other, Some(2)),
        node(2, &far_service, &outer) + &link(1, &far, &far_end, None) + &link(2, &other, &one, Some(1)),
    ];
    let _routers: Vec<Router> =
        (0..2).map(|at| Router::start(&folder, &format!("n{}", at + 1), NetworkNamespace::Own, &configs[at])).collect();
    let path = ["--format", "icing", "--via", "n1.toml", "--via", "n2.toml"];
    let (output, said) = ping(&folder, &path);
    assert!(output.status.success(), "{said}");
    assert_eq!((counts(&said), &said["one_way"]), ([&json!(4); 3], &json!(false)), "{said}");
    // A node answers nothing; its counters say what it dropped.
    let (output, said) = ping(&folder, &[&path[..], &["--spoil", "--count", "2", "--wait-ms", "200"]].concat());
    assert_eq!((output.status.code(), counts(&said)), (Some(1), [&json!(2), &json!(0), &json!(0)]), "{said}");
    assert_eq!(said["dropped"], json!([{ "router": "n2.toml", "reason": "verifier", "packets": 2 }]), "{said}");
}

#[test]
fn platypus_packets_are_answered_over_two_waypoints_and_a_spoiled_binding_is_told_by_icmp() {
    let test = "lab_ping::platypus_packets_are_answered_over_two_waypoints_and_a_spoiled_binding_is_told_by_icmp";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let folder = lay_out();
    let _routers = [start(&folder, 0, ""), start(&folder, 1, "")];
    let [from, to] = [HOST, LAST].map(|address| address.to_string());
    let path =
        ["--format", "platypus", "--via", "waypoint0.toml", "--via", "waypoint1.toml", "--from", &from, "--to", &to];
    let (output, said) = ping(&folder, &path);
    assert!(output.status.success(), "{said}");
    assert_eq!((counts(&said), &said["errors"]), ([&json!(4); 3], &json!([])), "{said}");
    let (output, said) = ping(&folder, &[&path[..], &["--spoil", "--count", "1"]].concat());
    assert_eq!((output.status.code(), counts(&said)), (Some(1), [&json!(1), &json!(0), &json!(0)]), "{said}");
    let error = said["errors"][0].as_str().expect("an error");
    assert!(error.starts_with("ICMP from 198.51.100.1: "), "{error}");
    assert_eq!(said["dropped"][0]["reason"], "binding", "{said}");
}

//! What a router refuses at its start, each with the reason.
//!
//! FWD, misconfiguration: sixteen wrong interfaces; key files of other formats and roles, damaged, readable by others:
//! refused at start with the reason; no key is shown.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;

use super::common::Folder;

const SCION: &str = "[forwarding]\nformat = \"scion\"\nkeys = \"router.key\"\n[scion]\nisd_as = \"1-1\"\n\
                     internal = \"127.0.0.1:39042\"\n";

fn interface(id: u16, more: &str) -> String {
    format!("[[interface]]\nid = {id}\nlink = \"child\"\nneighbor = \"1-2\"\n{more}\n")
}

fn ends(local: &str, remote: &str) -> String {
    format!("local = \"{local}\"\nremote = \"{remote}\"")
}

fn said(folder: &Folder, config: &str) -> (Option<i32>, String) {
    folder.write("router.toml", config);
    let output = folder.run(&["run", "router", "--config", "router.toml"]);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).replace("\n  │ ", " "))
}

#[test]
fn a_misconfigured_router_does_not_start_and_says_why() {
    let folder = Folder::new("refused");
    folder.keys("router.key", "scion", &[(0, [1; 16])]);
    let good = interface(1, &ends("127.0.0.1:39001", "127.0.0.1:39002"));
    let table = [
        (interface(0, &ends("127.0.0.1:39001", "127.0.0.1:39002")), "0 is the AS itself"),
        (good.clone() + &interface(1, &ends("127.0.0.1:39003", "127.0.0.1:39004")), "interface 1 exists already"),
        (
            good.clone() + &interface(2, &ends("127.0.0.1:39001", "127.0.0.1:39004")),
            "127.0.0.1:39001 is in use by another",
        ),
        (interface(1, &ends("127.0.0.1:39042", "127.0.0.1:39004")), "127.0.0.1:39042 is in use by another"),
        (interface(1, &ends("0.0.0.0:39001", "127.0.0.1:39004")), "0.0.0.0:39001 is not one address"),
        (interface(1, &ends("127.0.0.1:39001", "127.0.0.1:39001")), "cannot be reached from"),
        (interface(1, &ends("127.0.0.1:39001", "[::1]:39001")), "cannot be reached from"),
        (interface(1, "local = \"127.0.0.1:39001\""), "expected `local` and `remote`, or `sibling` alone"),
        (interface(1, "sibling = 0"), "belongs to sibling 0, which is not configured"),
        (good.replace("1-2", "1-1"), "is a wildcard or this AS itself"),
        (good.replace("1-2", "one"), "an ISD and AS"),
        (good.replace("child", "friend"), "unknown variant"),
        (good.clone() + "speed = 3\n", "unknown field `speed`"),
        (good.clone() + "backend = \"af-xdp\"\n", "expected `device`"),
        (good.clone() + "backend = \"af-xdp\"\ndevice = \"nothing0\"\n", "no AF_XDP on nothing0"),
        (good.replace("127.0.0.1:39001", "203.0.113.250:39001"), "cannot receive at 203.0.113.250:39001"),
    ];
    for (more, reason) in table {
        let (code, text) = said(&folder, &format!("{SCION}{more}"));
        assert_eq!(code, Some(1), "{more}: {text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains(reason), "{more}: expected {reason}, got {text}");
    }
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let there = taken.local_addr().expect("bound").to_string();
    let (code, text) = said(&folder, &format!("{SCION}{}", good.replace("127.0.0.1:39001", &there)));
    assert!(code == Some(1) && text.contains("another process listens there"), "{text}");
    // Of a waypoint's port too, for which no capability is missing.
    folder.keys("waypoint.key", "platypus", &[(0, [1; 16])]);
    let _taken = UdpSocket::bind("127.0.0.77:49253").expect("a socket");
    let platypus = "[forwarding]\nformat = \"platypus\"\nkeys = \"waypoint.key\"\n[platypus]\nwaypoints = [\"127.0.0.77\"]\naccounts = 0\n";
    let (code, text) = said(&folder, platypus);
    assert!(code == Some(1) && text.contains("another process listens there"), "{text}");
    assert!(!text.contains("CAP_NET_RAW"), "{text}");
}

#[test]
fn limits_out_of_range_are_refused() {
    let folder = Folder::new("limits");
    folder.keys("router.key", "platypus", &[(0, [1; 16])]);
    let platypus = "[forwarding]\nformat = \"platypus\"\nkeys = \"router.key\"\nstate = \"s\"\n[platypus]\n\
                    waypoints = [\"127.0.0.9\"]\n";
    let table = [
        ("rates = [{ principal = 16777216, rate = 1 }]", "16777216 is out of range"),
        ("rates = [{ principal = 1, delegation = 16777216, rate = 1 }]", "16777216 is out of range"),
        ("rates = [{ principal = 1, rate = 0 }]", "0 is out of range"),
        ("rates = [{ principal = 1, rate = 1, burst = 100 }]", "100 is out of range"),
        ("rates = [{ principal = 1, rate = 1 }, { principal = 1, rate = 2 }]", "a second rate for the same"),
        ("accounts = 0\nrates = [{ principal = 1, rate = 1 }]", "a rate without accounts"),
    ];
    for (more, reason) in table {
        let (code, text) = said(&folder, &format!("{platypus}{more}\n"));
        assert!(code == Some(1) && text.contains(reason), "{more}: expected {reason}, got {text}");
    }
    let (code, text) = said(&folder, &format!("{SCION}bad_macs_at_once = 5\n"));
    assert!(code == Some(1) && text.contains("expected `bad_macs_per_second` as well"), "{text}");
}

#[test]
fn a_key_file_that_is_not_this_routers_alone_is_refused() {
    let folder = Folder::new("keys");
    let config = format!("{SCION}{}", interface(1, &ends("127.0.0.1:39001", "127.0.0.1:39002")));
    let refused = |reason: &str| {
        let (code, text) = said(&folder, &config);
        assert!(code == Some(1) && text.contains(reason), "expected {reason}, got {text}");
        assert!(!text.contains("0101010101"), "a key is shown: {text}");
    };
    refused("router.key");
    folder.keys("router.key", "platypus", &[(0, [1; 16])]);
    refused("has keys for platypus packets, not for scion");
    folder.keys("router.key", "scion", &[(5, [1; 16]), (5, [2; 16])]);
    refused("is a damaged file of forwarding keys");
    folder.keys("router.key", "scion", &[(0, [1; 16])]);
    let path = folder.0.join("router.key");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("mode");
    refused("can be read by others than its owner");
    fs::remove_file(&path).expect("removed");
    assert!(folder.run(&["keys", "attest", "router.key", "--asn", "64497"]).status.success());
    refused("has keys for `attest`, not for `router`");
    fs::remove_file(&path).expect("removed");
    assert!(folder.run(&["keys", "new", "router.key"]).status.success());
    refused("is not a file of forwarding keys");
}

#[test]
fn the_template_passes_check_and_keys_are_added_in_order() {
    let folder = Folder::new("init");
    let run = |arguments: &[&str], code| {
        let output = folder.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["init", "router", "--out", "router.toml"], 0);
    run(&["check", "router.toml"], 0);
    run(&["keys", "forwarding", "router.key", "--format", "scion"], 0);
    run(&["check", "router.toml"], 0);
    run(&["keys", "forwarding", "router.key", "--format", "scion", "--next", "100"], 0);
    run(&["keys", "forwarding", "router.key", "--format", "scion", "--next", "100"], 2);
    run(&["keys", "forwarding", "router.key", "--format", "scion", "--next", "1970-01-01T00:03:20Z"], 0);
    let last = run(&["keys", "forwarding", "router.key", "--format", "scion", "--next", "300", "--json"], 0);
    assert!(last.contains("[100,200,300]"), "{last}");
    run(&["check", "router.toml"], 0);
}

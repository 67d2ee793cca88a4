//! The units of systemd: one for every role, alike but in what a role needs.
//!
//! OPS, units: each role's unit of systemd: there is one; all are alike but in the rights that a role needs; systemd
//! takes them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use wayleave_lab::netns;

use super::world::ROLES;

/// What differs between units: the role's own rights.
const OWN: [&str; 11] = [
    "Description=",
    "ExecStart=",
    "AmbientCapabilities=",
    "CapabilityBoundingSet=",
    "DeviceAllow=/dev/net/tun rw",
    "PrivateDevices=yes",
    "PrivateUsers=yes",
    "RestrictAddressFamilies=",
    "LimitMEMLOCK=infinity",
    // A gateway reads how the kernel forwards and filters.
    "ProcSubset=pid",
    // A stamper has a socket for users.
    "RuntimeDirectory",
];
/// What a role may do beyond the common filter of system calls: AF_XDP, and threads that are bound to cores.
const CALLS: &str = "SystemCallFilter=bpf sched_setaffinity";
/// What systemd before 253 or 254 says of what it does not know.
const NEWER: [&str; 3] = ["notify-reload", "RestartSteps", "RestartMaxDelaySec"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd").canonicalize().expect("there")
}

fn unit(role: &str) -> PathBuf {
    folder().join(format!("wayleave-{role}@.service"))
}

/// The unit of a user's own manager.
fn proxy() -> PathBuf {
    folder().join("user/wayleave-proxy@.service")
}

/// The socket of that unit.
fn proxy_socket() -> PathBuf {
    folder().join("user/wayleave-proxy@.socket")
}

fn lines(role: &str) -> BTreeSet<String> {
    lines_of(&unit(role))
}

fn lines_of(unit: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(unit).unwrap_or_else(|error| panic!("{}: {error}", unit.display()));
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn every_role_has_a_unit_and_all_are_hardened_watched_and_started_again_alike() {
    let common = |role: &str| -> BTreeSet<String> {
        let is_own = |line: &String| line == CALLS || OWN.iter().any(|start| line.starts_with(start));
        lines(role).into_iter().filter(|line| !is_own(line)).collect()
    };
    let first = common(ROLES[0]);
    for role in ROLES {
        assert_eq!(common(role), first, "{role}");
        let own = lines(role);
        let runs = format!("ExecStart=/usr/bin/wayleave run {role} --config /etc/wayleave/%i.toml --log-format json");
        assert!(own.contains(&runs), "{role}");
        // Nothing but what it names: both lines, and the same in both.
        let rights = |start: &str| own.iter().find_map(|line| line.strip_prefix(start)).map(str::to_owned);
        let bounding = rights("CapabilityBoundingSet=");
        assert!(bounding.is_some() && bounding == rights("AmbientCapabilities="), "{role}");
        assert!(!own.contains("PrivateUsers=yes") || bounding.as_deref() == Some(""), "{role}");
        assert_ne!(own.contains("PrivateDevices=yes"), own.contains("DeviceAllow=/dev/net/tun rw"), "{role}");
    }
    for line in
        ["StartLimitIntervalSec=0", "Restart=always", "RestartSteps=5", "RestartMaxDelaySec=60s", "WatchdogSec=60s"]
    {
        assert!(first.contains(line), "{line}");
    }
    let others = std::fs::read_dir(folder()).expect("there").filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "service"))
    });
    assert_eq!(others.count(), ROLES.len());
}

#[test]
fn stampers_of_one_machine_have_folders_of_their_own_for_their_sockets_and_users_may_enter() {
    let own = lines("stamper");
    assert!(own.contains("RuntimeDirectory=wayleave/%i") && own.contains("RuntimeDirectoryMode=0755"), "{own:#?}");
}

#[test]
fn the_proxys_unit_is_as_the_gateways_but_for_what_a_user_has_no_right_to() {
    let (gateway, proxy) = (lines("gateway"), lines_of(&proxy()));
    let of_proxy = ["Description=", "ExecStartPre=", "ExecStart=", "Environment=", "WantedBy="];
    let more: Vec<&String> = proxy.difference(&gateway).collect();
    assert!(more.iter().all(|line| of_proxy.iter().any(|start| line.starts_with(start))), "{more:#?}");
    for line in &proxy {
        // None needs root, a capability, a mount or another user.
        let needs = ["Protect", "Private", "Capabilit", "User=", "Group=", "Device", "StateDirectory", "LimitNOFILE"];
        assert!(needs.iter().all(|start| !line.contains(start)), "{line}");
    }
    let runs = "ExecStart=/usr/bin/wayleave run gateway --proxy ${PROXY} --config %E/wayleave/%i/gateway.toml --log-format json";
    assert!(proxy.contains(runs) && proxy.contains("WatchdogSec=60s") && proxy.contains("Restart=always"));
}

#[test]
fn the_proxys_socket_is_where_its_unit_listens_and_nowhere_but_on_loopback() {
    let (socket, service) = (lines_of(&proxy_socket()), lines_of(&proxy()));
    let at: Vec<&str> = socket.iter().filter_map(|line| line.strip_prefix("ListenStream=")).collect();
    let [at] = at[..] else { panic!("one socket: {at:?}") };
    assert!(at.parse::<std::net::SocketAddr>().expect("an address").ip().is_loopback(), "{at}");
    assert!(service.contains(&format!("Environment=PROXY={at}")), "{service:#?}");
    // One process takes all connections, and the service has the socket's name.
    assert!(socket.iter().all(|line| !line.starts_with("Accept") && !line.starts_with("Service=")), "{socket:#?}");
    assert!(socket.contains("WantedBy=sockets.target"), "{socket:#?}");
}

#[test]
fn polkit_lets_the_units_user_do_what_a_gateway_asks_of_systemd_resolved() {
    let rules = std::fs::read_to_string(folder().join("../polkit/wayleave.rules")).expect("rules");
    assert!(rules.contains("subject.user == \"wayleave\""));
    let may: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("\"org.freedesktop.resolve1.")).collect();
    let expected = [
        "set-dns-servers",
        "set-domains",
        "set-default-route",
        "set-dns-over-tls",
        "set-dnssec-negative-trust-anchors",
        "revert",
    ];
    assert_eq!(may, expected.map(|action| format!("{action}\",")));
}

#[test]
fn systemd_takes_every_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        netns::skipped("units: there is no systemd-analyze");
        return;
    }
    let of_users = [proxy(), proxy_socket()].map(|unit| (vec!["--user", "verify"], unit));
    for (arguments, unit) in ROLES.into_iter().map(|role| (vec!["verify"], unit(role))).chain(of_users) {
        let mut command = Command::new("systemd-analyze");
        // The user manager has a folder for what it runs.
        command.args(arguments).arg(&unit).env("XDG_RUNTIME_DIR", std::env::temp_dir());
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The program and its manual page are not installed here.
        let is_known = |line: &&str| {
            line.contains("/usr/bin/wayleave is not executable")
                || line.contains("man wayleave(1)")
                || NEWER.iter().any(|name| line.contains(name))
        };
        let unknown: Vec<&str> = said.lines().filter(|line| !is_known(line)).collect();
        assert!(unknown.is_empty(), "{}: {unknown:#?}", unit.display());
    }
}

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
const OWN: [&str; 10] = [
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

fn lines(role: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(unit(role)).unwrap_or_else(|error| panic!("the unit of {role}: {error}"));
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
fn systemd_takes_every_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        netns::skipped("units: there is no systemd-analyze");
        return;
    }
    for role in ROLES {
        let output = Command::new("systemd-analyze").arg("verify").arg(unit(role)).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The program and its manual page are not installed here.
        let is_known = |line: &&str| {
            line.contains("/usr/bin/wayleave is not executable")
                || line.contains("man wayleave(1)")
                || NEWER.iter().any(|name| line.contains(name))
        };
        let unknown: Vec<&str> = said.lines().filter(|line| !is_known(line)).collect();
        assert!(unknown.is_empty(), "{role}: {unknown:#?}");
    }
}

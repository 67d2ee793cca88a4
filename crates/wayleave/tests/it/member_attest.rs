//! Members that attest, as processes: a real exchange of two parties, three members with keys and one without.
//!
//! Real processes of the binary, real TLS, real BGP sessions on loopback.
//!
//! KCX-15: members as processes sign for all, and refuse a hijack and what a new record forbids.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wayleave_core::Prefix;
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;
use wayleave_lab::table::Announcement;

use crate::common::metrics::assert_named_by_the_rule;
use crate::common::screen::assert_one_screen;

const TIMEOUT: Duration = Duration::from_secs(90);
const PREFIX: &str = "203.0.113.0/24";

/// The folder of configurations, and the program.
struct Tools {
    folder: PathBuf,
}

impl Tools {
    fn ok(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(arguments).current_dir(&self.folder).env("NO_COLOR", "1").output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn sign(&self, what: &[&str]) {
        self.ok(&[&["keys"], what, &["--anchor", "anchor.key", "--objects", "objects"]].concat());
    }

    /// Keys for a member: made, registered, listed in the member set, as the member and both operators sign, and named in
    /// its configuration.
    fn attests(&self, exchange: &DemoExchange, member: usize) {
        let at = &exchange.members[member].at;
        let (name, asn) = (&at.name, &at.asn.0.to_string());
        let file = format!("{name}.attest");
        let made = self.ok(&["keys", "attest", &file, "--asn", asn]);
        let key = made.lines().find_map(|line| line.strip_prefix("attest  ")).expect("a public key").trim();
        self.sign(&["profile", "--attest", &file]);
        let present = format!("{name}.key");
        let files = &exchange.files;
        let present = files.path(&present);
        files.request(at, &["--attest", key, "--instead-of", &present]).expect("a request");
        files.propose(&[name]).expect("a proposal");
        files.countersign().expect("countersigned");
        files.share_member_set().expect("copied");
        let config = self.folder.join(format!("{name}.toml"));
        let text = fs::read_to_string(&config).expect("a configuration");
        let section = format!(
            "[attestation.keys]\nsigning = \"{file}\"\nanchor = \"anchor.pub\"\nobjects = \"objects\"\n\
             [attestation.policy]\nvalid = {{ large_community = \"{asn}:1:1\" }}\n"
        );
        fs::write(&config, format!("{text}\n{section}")).expect("written");
        let said = self.ok(&["check", &format!("{name}.toml")]);
        assert!(said.contains("a configuration for `wayleave run member`"), "{said}");
    }
}

fn prefix() -> Prefix {
    PREFIX.parse().expect("a prefix")
}

/// What the member finds of the routes, by announcer's AS.
fn attested(exchange: &DemoExchange, member: usize) -> Vec<(u64, String)> {
    let why = exchange.members[member].ask(&format!("/api/v1/why?prefix={PREFIX}")).unwrap_or(Value::Null);
    let routes = why["routes"].as_array().cloned().unwrap_or_default();
    let found = |route: &Value| Some((route["announcer"]["asn"].as_u64()?, route["attested"].as_str()?.to_owned()));
    routes.iter().filter_map(found).collect()
}

fn has(exchange: &mut DemoExchange, member: usize) -> bool {
    let table = exchange.members[member].router.table().unwrap_or_default();
    table.iter().any(|route| route.prefix == prefix())
}

fn eventually(what: &str, exchange: &mut DemoExchange, mut holds: impl FnMut(&mut DemoExchange) -> bool) {
    if wait_until(TIMEOUT, || holds(exchange).then_some(())).is_none() {
        let whys: Vec<Value> = (0..exchange.members.len())
            .map(|member| exchange.members[member].ask(&format!("/api/v1/why?prefix={PREFIX}")).unwrap_or(Value::Null))
            .collect();
        panic!("never: {what}; {:?}\n{whys:#?}", exchange.exited());
    }
}

#[test]
fn members_sign_for_all_and_refuse_a_hijack_and_what_a_new_record_forbids() {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("member-attest");
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state).expect("a folder");
    let layout = Layout::simulated(&state).expect("free ports");
    let mut exchange =
        DemoExchange::new(layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("keys and configurations");
    let tools = Tools { folder: state.join("etc") };
    tools.ok(&["keys", "anchor", "anchor.key", "--name", "lab", "--classical"]);
    let names: Vec<(String, String)> =
        exchange.members.iter().map(|member| (member.at.name.clone(), member.at.asn.0.to_string())).collect();
    let asns: Vec<u64> = names.iter().map(|(_, asn)| asn.parse().expect("a number")).collect();
    let last = names.len() - 1;
    assert!(last >= 3, "four members: three that attest, and one that does not");
    for member in 0..last {
        tools.attests(&exchange, member);
    }
    tools.sign(&["record", "--asn", &names[0].1, "--prefix", PREFIX, "--attested", "strict"]);
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    for member in &mut exchange.members {
        member.role.start().expect("a member that starts");
        member.router.start().expect("a speaker");
    }
    exchange.announce(&names[0].0.clone(), &[Announcement::of(prefix())]).expect("a router that takes routes");
    let valid = vec![(asns[0], "valid".to_owned())];
    eventually("the route is valid at others, and there at all", &mut exchange, |exchange| {
        attested(exchange, 1) == valid
            && attested(exchange, 2) == valid
            && has(exchange, 1)
            && has(exchange, 2)
            && has(exchange, last)
    });
    let url = exchange.members[1].at.proxy.status.to_string();
    let why = tools.ok(&["why", PREFIX, "--url", &url]);
    assert!(why.contains("signed with kc-ed25519 and its registered key "), "{why}");
    assert!(why.contains(" valid: installed"), "{why}");
    let url = exchange.members[0].at.proxy.status.to_string();
    let sent = tools.ok(&["why", PREFIX, "--url", &url]);
    assert!(sent.contains("to the exchange") && sent.contains("signed as origin"), "{sent}");
    for party in &exchange.parties {
        assert_named_by_the_rule("rs", &party.at.process.namespace, party.at.process.status);
        assert_one_screen(&party.at.process.namespace, party.at.process.status);
    }
    let proxy = &exchange.members[0].at.proxy;
    assert_named_by_the_rule("member", &proxy.namespace, proxy.status);
    assert_one_screen(&proxy.namespace, proxy.status);
    let status = exchange.members[0].ask("/api/v1/status").expect("a page");
    assert_eq!(status["attestation"]["members"], serde_json::json!([last, last + 1]));
    // The member without keys hijacks the prefix.
    exchange.announce(&names[last].0.clone(), &[Announcement::of(prefix())]).expect("a router that takes routes");
    exchange.withdraw(&names[0].0.clone(), prefix()).expect("a router that takes routes");
    let invalid = vec![(asns[last], "invalid".to_owned())];
    eventually("the hijack is refused", &mut exchange, |exchange| {
        attested(exchange, 1) == invalid && attested(exchange, 2) == invalid && !has(exchange, 1) && !has(exchange, 2)
    });
    // A new record gives the prefix to the hijacker: without a new announcement all members validate again.
    tools.sign(&["record", "--asn", &names[0].1, "--prefix", "198.51.100.0/24", "--replace"]);
    tools.sign(&["record", "--asn", &names[last].1, "--prefix", PREFIX]);
    for member in &exchange.members[1..last] {
        member.role.reload().expect("it runs");
    }
    let unattested = vec![(asns[last], "unattested".to_owned())];
    eventually("the route is taken now", &mut exchange, |exchange| {
        attested(exchange, 1) == unattested && has(exchange, 1) && has(exchange, 2)
    });
    assert!(exchange.exited().is_empty(), "{:?}", exchange.exited());
}

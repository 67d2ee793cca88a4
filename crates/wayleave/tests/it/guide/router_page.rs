//! `router.md`.

use std::time::Duration;

use serde_json::json;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing::{Count, Report};
use wayleave_lab::netns::{Network, NetworkNamespace, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;
use wayleave_packet::icing::header::Handle;
use wayleave_runtime::identity::to_hex;

use super::{Shell, commands, laid_over, snippets};

const TIMEOUT: Duration = Duration::from_secs(30);
/// A Platypus router, without what the page adds to it.
const PLATYPUS: &str = "[forwarding]\nformat = \"platypus\"\nstate = \"router.redb\"\nkeys = \"router.key\"\n[platypus]\n\
                        waypoints = [\"198.51.100.1\"]\n[status]\nlisten = \"127.0.0.1:8486\"\n";

#[test]
fn a_router_is_set_up_as_the_guide_says() {
    // The addresses of the initial configuration are free in namespaces of the test's own.
    if enter_for_test("guide::router_page::a_router_is_set_up_as_the_guide_says").is_none() {
        return;
    }
    let _network = Network::new().expect("a network");
    let [set_up, _, _, _, rotation] = snippets("router.md", "sh").try_into().expect("five snippets");
    let shell = Shell::new("guide-router");
    let mut running = None;
    for command in commands(&set_up) {
        let Some(config) = command.strip_prefix("wayleave run router --config ") else {
            shell.run(&command);
            continue;
        };
        let file = |name: &str| shell.folder.0.join(name);
        let binary = std::path::Path::new(env!("CARGO_BIN_EXE_wayleave"));
        let name = "router".to_owned();
        let mut process =
            RoleProcess::new(name, &NetworkNamespace::Own, binary, "router", file(config), file("router.log"));
        process.start().expect("started");
        let is_up = || std::net::TcpStream::connect("127.0.0.1:8486").ok();
        wait_until(TIMEOUT, is_up).unwrap_or_else(|| panic!("{}", process.log_tail()));
        running = Some(process);
    }
    let mut running = running.expect("the page starts a router");
    commands(&rotation).iter().for_each(|command| drop(shell.run(command)));
    running.reload().expect("it takes the signal");
    let took = wait_until(TIMEOUT, || running.log_tail().contains("configuration reloaded").then_some(()));
    took.unwrap_or_else(|| panic!("{}", running.log_tail()));
    assert!(running.stop(TIMEOUT), "{}", running.log_tail());
}

#[test]
fn lists_of_revocations_are_made_as_the_guide_says() {
    let revocations = snippets("router.md", "sh").swap_remove(2);
    let mut shell = Shell::new("guide-revocations");
    let mut printed = Vec::new();
    for command in commands(&revocations) {
        printed.push(shell.run(&command));
        if command.contains("keys new") {
            let key = shell.public("revoker.key", "sign");
            shell.put("sign:ed25519:...", &key);
        }
    }
    let list = shell.run("wayleave cap revoked revoked --key sign:ed25519:...");
    assert!(list.contains("9/4/12") && !list.contains("\n9/3\n"), "{list}");
}

#[test]
fn limits_and_stamping_are_configured_as_the_guide_says() {
    let [rates, stamper] = snippets("router.md", "toml").try_into().expect("two snippets");
    let capabilities = snippets("router.md", "sh").swap_remove(3);
    let shell = Shell::new("guide-platypus");
    shell.run("wayleave keys forwarding router.key --format platypus");
    commands(&capabilities).iter().for_each(|command| drop(shell.run(command)));
    for (name, snippet) in [("rates.toml", rates), ("stamper.toml", stamper)] {
        shell.folder.write(name, &laid_over(PLATYPUS, &snippet));
        shell.run(&format!("wayleave check {name}"));
    }
}

#[test]
fn losses_are_located_as_the_guide_says() {
    let mut shell = Shell::new("guide-locate");
    for (node, packets) in [(1, 1_600), (2, 1_590)] {
        let key = SigningKey::from_seed(&Seed::new([node; 32]));
        let count = Count { packets, octets: packets * 64, ..Count::default() };
        let report = Report { handle: Handle([9; 16]), index: node, window: 100, is_whole: true, count };
        let reports = json!({ "reports": [{ "signed": to_hex(&report.sign(&key)) }] });
        shell.folder.write(&format!("node{node}.json"), &reports.to_string());
        shell.put(&format!("HEX{node}"), &to_hex(&key.verifying_key().to_bytes()));
    }
    let locate = snippets("router.md", "sh").swap_remove(1);
    let [command] = commands(&locate).try_into().expect("one command");
    assert!(shell.run(&command).contains("10 packets lost between node 1 and node 2"));
}

//! `attest.md`.

use std::path::Path;
use std::time::Duration;

use wayleave_lab::demo::http::get_json;
use wayleave_lab::netns::{Network, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;

use super::{Shell, commands, laid_over, snippets};

const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn an_attesting_proxy_is_set_up_as_the_guide_says() {
    if enter_for_test("guide::attest_page::an_attesting_proxy_is_set_up_as_the_guide_says").is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let addresses = ["192.0.2.11/24", "192.0.2.12/24"].map(str::to_owned);
    let place = network.attach("proxy", &addresses).expect("attached");
    let [keys, start, addition, why] = snippets("attest.md", "sh").try_into().expect("four snippets");
    let [pair, rpki, _protected] = snippets("attest.md", "toml").try_into().expect("three snippets");
    let mut shell = Shell::new("guide-attest");
    for command in commands(&keys) {
        shell.run(&command);
        if command.contains("keys attest") {
            let printed = shell.run("wayleave keys show attest.key --json");
            let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
            let key = printed["attest"][0].as_str().expect("a key");
            shell.put("kc-ed25519:HEX", key);
        }
    }
    commands(&addition).iter().for_each(|command| drop(shell.run(command)));
    let initial = std::fs::read_to_string(shell.folder.0.join("attest.toml")).expect("written by `init`");
    let edited = laid_over(&initial, &pair);
    shell.folder.write("attest.toml", &edited);
    shell.folder.write("rpki.toml", &laid_over(&edited, &rpki));
    shell.run("wayleave check rpki.toml");
    let [check, run] = commands(&start).try_into().expect("two commands");
    shell.run(&check);
    let config = run.strip_prefix("wayleave run attest --config ").expect("the role is run");
    let file = |name: &str| shell.folder.0.join(name);
    let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let name = "proxy".to_owned();
    let mut process = RoleProcess::new(name, &place, binary, "attest", file(config), file("attest.log"));
    process.start().expect("started");
    let page = "127.0.0.1:8485".parse().expect("an address");
    let status = wait_until(TIMEOUT, || get_json(&place, page, "/api/v1/status").ok());
    let status = status.unwrap_or_else(|| panic!("{}", process.log_tail()));
    assert_eq!(status["pairs"][0]["name"], "bravo", "{status:#}");
    let [why] = commands(&why).try_into().expect("one command");
    let answer = place.within(|| shell.run(&why)).expect("the namespace");
    assert!(answer.starts_with("192.0.2.0/24: "), "{answer}");
    assert!(process.stop(TIMEOUT), "{}", process.log_tail());
}

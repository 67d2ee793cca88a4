//! `capabilities.md`.

use std::fs;

use wayleave_lab::netns::{Network, enter_for_test};

use super::overlay_page::start;
use super::{Shell, commands, laid_over, snippets};
use crate::common::eventually;

#[test]
fn a_key_server_is_set_up_and_a_capability_handed_over_as_the_guide_says() {
    // The addresses of the guide are free in namespaces of the test's own.
    let name = "guide::capabilities_page::a_key_server_is_set_up_and_a_capability_handed_over_as_the_guide_says";
    if enter_for_test(name).is_none() {
        return;
    }
    let _network = Network::new().expect("a network");
    let [set_up, run, hand_over, identities, bills] =
        snippets("capabilities.md", "sh").try_into().expect("five snippets");
    let [waypoint, routers, provider, providers, rule, limit] =
        snippets("capabilities.md", "toml").try_into().expect("six snippets");
    let shell = Shell::new("guide-capabilities");
    commands(&set_up).iter().for_each(|command| drop(shell.run(command)));
    let file = shell.folder.0.join("server/key.toml");
    let lay = |snippet: &str| {
        let key = fs::read_to_string(&file).expect("a file");
        fs::write(&file, laid_over(&key, snippet)).expect("written");
    };
    lay(&waypoint);
    lay(&limit);
    commands(&identities).iter().for_each(|command| drop(shell.run(command)));
    // The keys that were made in the place of those of the page.
    let with_key = |snippet: &str, file: &str| {
        let start = snippet.find("node:ed25519:").expect("a key");
        snippet.replace(&snippet[start..start + "node:ed25519:".len() + 64], &shell.public(file, "public"))
    };
    lay(&with_key(&routers, "router.identity"));
    let [check, run] = commands(&run).try_into().expect("two commands");
    shell.run(&check);
    assert!(run.starts_with("wayleave run key"));
    let _server = start(&shell, "key", "server/key.toml");
    // One after the other, as somebody pastes them.
    commands(&hand_over).iter().for_each(|command| drop(shell.run(command)));
    assert!(shell.folder.ok(&["keys", "show", "customer.cap"]).contains("198.51.100.1"));
    let router = "[forwarding]\nformat = \"platypus\"\nkeys = \"router.key\"\nstate = \"router.redb\"\n[platypus]\n\
                  waypoints = [\"127.0.0.1\"]\n[status]\nlisten = \"127.0.0.1:8495\"\n";
    shell.folder.write("router.toml", &laid_over(router, &providers));
    shell.folder.ok(&["check", "router.toml"]);
    shell.folder.write("router.toml", &laid_over(router, &with_key(&provider, "server/identity.key")));
    shell.folder.ok(&["check", "router.toml"]);
    let _router = start(&shell, "router", "router.toml");
    eventually("the router is connected", || {
        let status = shell.folder.ok(&["show", "status", "--config", "server/key.toml", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        status["routers"][0]["connected"] == true && status["routers"][0]["name"] == "fra1"
    });
    for command in commands(&bills) {
        let said = shell.run(&command);
        // Nothing was sent: said in words, as names of columns, as an empty list.
        let is_usage = said == "no usage\n" || said.contains("packets") || said.contains("\"usage\":[]");
        let is_usage = is_usage || command.contains("cap statements") && said.contains("no statements");
        let is_set = command.contains("cap rate") && said.contains("12500000")
            || command.contains("cap quota") && said.contains("10000000000000");
        assert!(is_usage || is_set, "{command}: {said}");
    }
    lay(&rule);
    shell.run(&check);
}

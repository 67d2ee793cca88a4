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
    let [set_up, run, hand_over] = snippets("capabilities.md", "sh").try_into().expect("three snippets");
    let [waypoint, rule] = snippets("capabilities.md", "toml").try_into().expect("two snippets");
    let shell = Shell::new("guide-capabilities");
    commands(&set_up).iter().for_each(|command| drop(shell.run(command)));
    let file = shell.folder.0.join("server/key.toml");
    let lay = |snippet: &str| {
        let key = fs::read_to_string(&file).expect("a file");
        fs::write(&file, laid_over(&key, snippet)).expect("written");
    };
    lay(&waypoint);
    let [check, run] = commands(&run).try_into().expect("two commands");
    shell.run(&check);
    assert!(run.starts_with("wayleave run key"));
    let _server = start(&shell, "key", "server/key.toml");
    for command in commands(&hand_over) {
        let asks_early = command.contains("cap lookup");
        eventually(&command, || {
            // A grant is followed within a moment.
            !asks_early
                || shell
                    .folder
                    .run(&["cap", "lookup", "--line", "customer.line", "--server", "127.0.0.1:5300"])
                    .status
                    .success()
        });
        shell.run(&command);
    }
    assert!(shell.folder.ok(&["keys", "show", "customer.cap"]).contains("198.51.100.1"));
    lay(&rule);
    shell.run(&check);
}

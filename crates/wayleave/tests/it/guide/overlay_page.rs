//! `overlay.md`.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use wayleave_lab::netns::{Network, NetworkNamespace, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;

use super::{Shell, commands, laid_over, snippets};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Starts `wayleave run ROLE --config FILE`, and waits until its status pages are there.
pub(super) fn start(shell: &Shell, role: &'static str, config: &str) -> RoleProcess {
    let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let file = shell.folder.0.join(config);
    let log = file.with_extension("log");
    let text: toml::Table = fs::read_to_string(&file).expect("a configuration").parse().expect("TOML");
    let page = text["status"]["listen"].as_str().expect("an address").to_owned();
    let mut process = RoleProcess::new(role.to_owned(), &NetworkNamespace::Own, binary, role, file, log);
    process.start().expect("started");
    wait_until(TIMEOUT, || TcpStream::connect(&page).ok()).unwrap_or_else(|| panic!("{}", process.log_tail()));
    process
}

/// A token, as the guide's reader gets it.
fn invite(shell: &mut Shell, arguments: &str) {
    let token = shell.run(&format!("wayleave realm invite {arguments} --config realm/realm.toml"));
    shell.instead.retain(|(word, _)| word != "TOKEN");
    shell.put("TOKEN", token.trim());
}

#[test]
fn a_realm_is_set_up_as_the_guide_says() {
    // The addresses of the guide are free in namespaces of the test's own.
    if enter_for_test("guide::overlay_page::a_realm_is_set_up_as_the_guide_says").is_none() {
        return;
    }
    let _network = Network::new().expect("a network");
    let [set_up, router, questions, removal, roll, replacement, list_keys, elsewhere, stolen] =
        snippets("overlay.md", "sh").try_into().expect("nine snippets");
    let [neighbour, tls, open, moves, node, policy] = snippets("overlay.md", "toml").try_into().expect("six snippets");
    let mut shell = Shell::new("guide-overlay");
    let mut running = Vec::new();
    for command in commands(&set_up) {
        if let Some(config) = command.strip_prefix("wayleave run realm --config ") {
            running.push(start(&shell, "realm", config.trim_end_matches(" &")));
        } else if let Some(config) = command.strip_prefix("wayleave run path --config ") {
            running.push(start(&shell, "path", config.trim_end_matches(" &")));
        } else if let Some(rest) = command.strip_prefix("wayleave realm invite ") {
            invite(&mut shell, rest.trim_end_matches(" --config realm/realm.toml"));
        } else {
            shell.run(&command);
        }
    }
    invite(&mut shell, "k --role consent");
    shell.run("wayleave join TOKEN --dir k");
    let key = shell.public("k/identity.key", "public");
    shell.put("KEY", &key);
    invite(&mut shell, "b --role router");
    commands(&router).iter().for_each(|command| drop(shell.run(command)));
    invite(&mut shell, "a --role router");
    shell.run("wayleave join TOKEN --dir a");
    // What the page adds to a router's and a consent server's configuration.
    let file = |name: &str| shell.folder.0.join(name);
    let read = |name: &str| fs::read_to_string(file(name)).expect("a file");
    let bare = read("a/router.toml");
    for snippets in [&[&open, &neighbour, &tls][..], &[&moves], &[&neighbour]] {
        let text = snippets.iter().fold(bare.clone(), |text, snippet| laid_over(&text, snippet));
        fs::write(file("a/router.toml"), text).expect("written");
        let said = shell.run("wayleave check a/router.toml");
        assert_eq!(said.contains("open to a, c"), snippets.len() == 3, "{said}");
    }
    fs::copy(file("b/tags.key"), file("k/tags.key")).expect("copied");
    fs::write(file("k/policy.toml"), &policy).expect("written");
    fs::write(file("k/consent.toml"), laid_over(&read("k/consent.toml"), &node)).expect("written");
    shell.run("wayleave check k/consent.toml");
    // Without its rule the policy's own test would pass; with another one it does not.
    fs::write(file("k/policy.toml"), policy.replace("hours = \"08:00-18:00\"\n", "")).expect("written");
    assert!(!shell.folder.run(&["check", "k/consent.toml"]).status.success(), "the policy's test fails");
    // Both routers have the example's status page; here each runs in its turn.
    let mut node = start(&shell, "router", "a/router.toml");
    for command in commands(&questions) {
        match &command {
            // b does not run: nothing leads anywhere, and the answer says why.
            asked if asked.contains("show paths") => assert!(!shell.folder.run(&words(asked)).status.success()),
            asked => drop(shell.run(asked)),
        }
    }
    assert!(node.stop(TIMEOUT), "{}", node.log_tail());
    // b has other keys; then its owner lost them, and joins anew.
    commands(&roll).iter().for_each(|command| drop(shell.run(command)));
    let said = shell.run(commands(&replacement).first().expect("a command"));
    shell.instead.retain(|(word, _)| word != "TOKEN");
    shell.put("TOKEN", said.lines().last().expect("the token"));
    shell.run("wayleave join TOKEN --dir again");
    commands(&removal).iter().for_each(|command| drop(shell.run(command)));
    commands(&list_keys).iter().for_each(|command| drop(shell.run(command)));
    shell.instead.retain(|(word, _)| word != "KEY");
    let path_server = shell.public("p/identity.key", "public");
    shell.put("KEY", &path_server);
    commands(&elsewhere).iter().for_each(|command| drop(shell.run(command)));
    let shown = shell.run("wayleave realm list-key show --json --config realm/realm.toml");
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    shell.put("list:ed25519:...", shown["list_keys"][0]["key"].as_str().expect("a list key"));
    let said: String = commands(&stolen).iter().map(|command| shell.run(command)).collect();
    assert!(said.contains("revoked list:ed25519:") && said.contains(" has it\n"), "{said}");
    for mut process in running {
        assert!(process.stop(TIMEOUT), "{}", process.log_tail());
    }
}

/// The arguments of a command line of the program.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().skip(1).collect()
}

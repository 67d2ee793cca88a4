//! `invitations.md`.

use std::fs;

use wayleave_lab::netns::{Network, enter_for_test};

use super::overlay_page::start;
use super::{Shell, commands, laid_over, snippets};

#[test]
fn a_customer_is_invited_and_accounts_are_kept_from_elsewhere_as_the_guide_says() {
    // The addresses of the guide are free in namespaces of the test's own.
    let name = "guide::invitations_page::a_customer_is_invited_and_accounts_are_kept_from_elsewhere_as_the_guide_says";
    if enter_for_test(name).is_none() {
        return;
    }
    let _network = Network::new().expect("a network");
    let [set_up, run, invite, elsewhere, put] = snippets("invitations.md", "sh").try_into().expect("five snippets");
    let [section] = snippets("invitations.md", "toml").try_into().expect("one snippet");
    let shell = Shell::new("guide-invitations");
    let hashes: Vec<String> = commands(&set_up)
        .iter()
        .map(|command| shell.run(command))
        .filter_map(|said| said.split_once("hash  ").map(|(_, hash)| hash.trim().to_owned()))
        .collect();
    let [operator, billing] = hashes.try_into().expect("two tokens");
    // The hashes that were printed in the place of those of the page.
    let section = section.replace(&format!("token:sha256:{}", "1".repeat(64)), &operator);
    let section = section.replace(&format!("token:sha256:{}", "2".repeat(64)), &billing);
    let file = shell.folder.0.join("server/key.toml");
    let key = fs::read_to_string(&file).expect("a file");
    fs::write(&file, laid_over(&key, &section)).expect("written");
    let [check, run] = commands(&run).try_into().expect("two commands");
    shell.run(&check);
    assert!(run.starts_with("wayleave run key"));
    let _server = start(&shell, "key", "server/key.toml");
    let mut said = String::new();
    // One after the other, as somebody pastes them.
    for command in commands(&invite) {
        said += &shell.run(&command);
    }
    assert!(
        said.contains("used") && said.contains("pop 198.51.100.1 fra") && said.contains("capability: granted"),
        "{said}"
    );
    let curl = std::process::Command::new("curl").arg("--version").output().is_ok();
    let all = commands(&elsewhere).into_iter().filter(|command| curl || !command.starts_with("curl"));
    let said = shell.run(&all.collect::<Vec<_>>().join("\n"));
    assert!(said.contains("principal 8 other") && said.contains("third"), "{said}");
    assert!(!curl || said.contains("\"name\":\"customer\""), "{said}");
    if curl {
        // The same again changes nothing, and says until when it was granted before.
        let put = commands(&put).join("\n");
        let granted = || serde_json::from_str::<serde_json::Value>(&shell.run(&put)).expect("JSON");
        let (first, mut again) = (granted(), granted());
        assert!(first["capability"].as_str().is_some_and(|line| line.starts_with("wayleave-cap-")), "{first}");
        assert_eq!(again["previous_ends"], first["ends"]);
        again["previous_ends"] = first["previous_ends"].clone();
        assert_eq!(again, first);
    }
    let lines =
        ["customer.line", "other.line"].map(|file| fs::read_to_string(shell.folder.0.join(file)).expect("there"));
    assert!(lines.iter().all(|line| line.starts_with("wayleave-cap-")));
}

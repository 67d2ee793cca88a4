//! `exchange.md`, and what `member.md` says of joining it: an exchange of two parties and a member, by the guide alone.

use std::path::Path;
use std::time::Duration;

use wayleave_lab::demo::http::get_json;
use wayleave_lab::netns::{Network, NetworkNamespace, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;

use super::{Shell, commands, laid_over, snippets};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Puts each value into the place of the next `word`.
fn filled(snippet: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(snippet.to_owned(), |text, (word, value)| text.replacen(word, value, 1))
}

/// Starts what a `wayleave run` command names.
fn start(shell: &Shell, place: &NetworkNamespace, command: &str) -> RoleProcess {
    let words: Vec<&str> = command.split_whitespace().collect();
    let ["wayleave", "run", role, "--config", config] = words[..] else { panic!("{command}") };
    let file = |name: &str| shell.folder.0.join(name);
    let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let mut process =
        RoleProcess::new(config.to_owned(), place, binary, role, file(config), file(&format!("{config}.log")));
    process.start().expect("started");
    process
}

#[test]
fn an_exchange_with_a_member_is_set_up_as_the_guide_says() {
    if enter_for_test("guide::exchange_page::an_exchange_with_a_member_is_set_up_as_the_guide_says").is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let addresses = ["192.0.2.251/24", "192.0.2.252/24", "192.0.2.101/24", "198.51.100.1/24"].map(str::to_owned);
    let place = network.attach("exchange", &addresses).expect("attached");
    let [keys, operators, begin, admit, remove, init, check, run, status, invite] =
        snippets("exchange.md", "sh").try_into().expect("ten snippets");
    let [first, second, recommendation, budget, other_recommendation] =
        snippets("exchange.md", "toml").try_into().expect("five snippets");
    let [join, endorse, run_member, attest, look, announced] =
        snippets("member.md", "sh").try_into().expect("six snippets");
    let [own, lab, ..] = &snippets("member.md", "toml")[..] else { panic!("two snippets and more") };

    let mut shell = Shell::new("guide-exchange");
    let run_all = |shell: &Shell, snippet: &str| commands(snippet).iter().for_each(|line| drop(shell.run(line)));
    run_all(&shell, &keys);
    run_all(&shell, &operators);
    let [one, two] = ["operator1.key", "operator2.key"].map(|file| shell.public(file, "sign"));
    let [pin1, pin2] = ["party1.key", "party2.key"].map(|file| shell.public(file, "pin"));
    run_all(&shell, &filled(&begin, &[("sign:ed25519:...", &one), ("sign:ed25519:...", &two)]));
    let told: String = commands(&join).iter().map(|line| shell.run(line)).collect();
    let claim = told.split_whitespace().find(|word| word.starts_with("claim:")).expect("the digest to tell");
    let pins = ["sha256:...", "sha256:..."].into_iter().zip([pin1.as_str(), &pin2]);
    let pins: Vec<(&str, &str)> = pins.collect();
    run_all(&shell, &filled(&admit, &[&pins[..], &[("claim:...", claim)], &pins[..]].concat()));
    run_all(&shell, &init);
    let both = [("sign:ed25519:...", one.as_str()), ("sign:ed25519:...", &two)];
    let folder = shell.folder.0.clone();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("written");
    for (name, snippet, pin) in [("party1.toml", &first, &pin2), ("party2.toml", &second, &pin1)] {
        let edited = filled(snippet, &[both[0], both[1], ("sha256:...", pin)]);
        let laid = laid_over(&read(name), &edited);
        shell.folder.write(name, &format!("{laid}\n{budget}"));
    }
    shell.folder.write("recommendation.toml", &recommendation);
    for line in commands(&check) {
        place.within(|| shell.run(&line)).expect("the namespace");
    }
    let [run] = commands(&run).try_into().expect("one command");
    let mut party1 = start(&shell, &place, &run);
    let mut party2 = start(&shell, &place, &run.replace("party1", "party2"));
    let page = |port: u16| ([127, 0, 0, 1], port).into();
    let is_ready = |port: u16| get_json(&place, page(port), "/api/v1/status").ok();
    let up = wait_until(TIMEOUT, || is_ready(8481).filter(|status| status["other_party"] == true));
    assert!(up.is_some(), "{}\n{}", party1.log_tail(), party2.log_tail());
    let [status] = commands(&status).try_into().expect("one command");
    let shown = place.within(|| shell.run(&status)).expect("the namespace");
    assert!(shown.contains("peer party") && !shown.contains("problem:"), "{shown}");

    // The member.
    run_all(&shell, &invite);
    shell.put("rs1.example.net:7001", "192.0.2.251:7001");
    shell.put("rs2.example.net:7001", "192.0.2.252:7001");
    let invitation = read("alpha.toml");
    for value in [&one, &two, &pin1, &pin2] {
        assert!(invitation.contains(value.as_str()), "the invitation has every value: {invitation}");
    }
    let edited = filled(own, &[both[0], both[1], ("sha256:...", &pin1), ("sha256:...", &pin2)]);
    let complete = invitation.replace("#router_id", "router_id");
    let complete = laid_over(&laid_over(&complete, &shell.filled(&edited)), lab);
    shell.folder.write("alpha.toml", &complete);
    let [check, deep, run] = commands(&run_member).try_into().expect("three commands");
    for line in [check, deep] {
        place.within(|| shell.run(&line)).expect("the namespace");
    }
    let mut member = start(&shell, &place, &run);
    let synced = wait_until(TIMEOUT, || is_ready(8490).filter(|status| status["synced"] == true));
    assert!(synced.is_some(), "{}", member.log_tail());
    for line in commands(&look).iter().chain(&commands(&announced)) {
        place.within(|| shell.run(line)).expect("the namespace");
    }
    run_all(&shell, &attest[..attest.find('\n').expect("a first line")]);
    let printed: serde_json::Value =
        serde_json::from_str(&shell.run("wayleave keys show attest.key --json")).expect("JSON");
    shell.put("kc-ed25519:HEX", printed["attest"][0].as_str().expect("a key"));
    let [_, request] = commands(&attest).try_into().expect("two commands");
    shell.run(&request);

    // The other recommendation names members that there are not yet: a warning, and no reason to stop.
    shell.folder.write("recommendation.toml", &other_recommendation);
    party1.reload().expect("it runs");
    run_all(&shell, &remove);
    party2.reload().expect("it runs");
    let gone = wait_until(TIMEOUT, || is_ready(8481).filter(|status| status["members"] == serde_json::json!([])));
    assert!(gone.is_some(), "{}", party1.log_tail());

    // A further slot for which nobody signed, until the key of the AS is found.
    shell.run("wayleave keys new alpha-2.key --name alpha-2");
    shell.run(
        "wayleave members request alpha-2.request --key alpha-2.key --exchange example-ix --asn 64497 --name alpha-2 \
         --address 192.0.2.9",
    );
    let sign = |request: &str, limit: &str| {
        shell.run(&format!(
            "wayleave members propose members --operator operator1.key --out p --request {request} {limit}"
        )) + &shell.run("wayleave members countersign members p --operator operator2.key --yes")
    };
    assert!(sign("alpha-2.request", "--max-prefix alpha-2=100").contains("HELD"));
    run_all(&shell, &endorse);
    let signed = sign("second.request", "");
    assert!(signed.contains("held no more"), "{signed}");
    for process in [&mut member, &mut party1, &mut party2] {
        assert!(process.stop(TIMEOUT), "{}", process.log_tail());
    }
}

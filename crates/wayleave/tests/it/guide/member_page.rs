//! `member.md`, `policies.md`, `two-pairs.md` and `console.md`.

use super::{Shell, laid_over, snippets};

#[test]
fn policies_are_configured_as_the_guide_says() {
    let shell = Shell::new("guide-policies");
    shell.run("wayleave keys new alpha.key --name alpha");
    let initial = shell.run("wayleave init member");
    for rules in snippets("policies.md", "toml") {
        shell.folder.write("member.toml", &laid_over(&initial, &rules));
        shell.run("wayleave check --example member.toml");
    }
}

#[test]
fn a_member_is_configured_as_the_guide_says() {
    let shell = Shell::new("guide-member");
    for name in ["alpha", "operator1", "operator2", "party1", "party2"] {
        shell.run(&format!("wayleave keys new {name}.key --name {name}"));
    }
    shell.run("wayleave keys anchor anchor.key --name lab --classical");
    shell.run("wayleave keys attest attest.key --asn 64497");
    shell.run("mkdir objects; umask 077; echo secret >alpha.password");
    let initial = shell.run("wayleave init member");
    for snippet in snippets("member.md", "toml") {
        let mut filled = snippet;
        for (word, part, file) in [
            ("sign:ed25519:...", "sign", "operator1.key"),
            ("sign:ed25519:...", "sign", "operator2.key"),
            ("sha256:...", "pin", "party1.key"),
            ("sha256:...", "pin", "party2.key"),
        ] {
            filled = filled.replacen(word, &shell.public(file, part), 1);
        }
        shell.folder.write("member.toml", &laid_over(&initial, &filled));
        shell.run("wayleave check --example member.toml");
    }
}

#[test]
fn two_pairs_are_configured_as_the_guide_says() {
    let shell = Shell::new("guide-two-pairs");
    for name in ["alpha", "alpha-2", "op1", "op2", "op3", "op4", "p1", "p2", "p3", "p4"] {
        shell.run(&format!("wayleave keys new {name}.key --name {name}"));
    }
    let of_pair = |first: u8| {
        let of = |name: &str, part: &str, more: u8| shell.public(&format!("{name}{}.key", first + more), part);
        let party =
            |more: u8| format!("{{ address = \"127.0.0.1:700{}\", pin = \"{}\" }}", first + more, of("p", "pin", more));
        format!(
            "asn = 64496\noperators = [\"{}\", \"{}\"]\nparty1 = {}\nparty2 = {}",
            of("op", "sign", 0),
            of("op", "sign", 1),
            party(0),
            party(1)
        )
    };
    let [page] = snippets("two-pairs.md", "toml").try_into().expect("one snippet");
    let filled = page
        .replace("# asn, operators, party1, party2: as before", &of_pair(1))
        .replace("# asn, operators, party1, party2: from the second invitation", &of_pair(3));
    shell.folder.write("alpha.toml", &filled);
    shell.run("wayleave check alpha.toml");
}

#[test]
fn a_console_is_configured_as_the_guide_says() {
    let shell = Shell::new("guide-console");
    let [page] = snippets("console.md", "toml").try_into().expect("one snippet");
    shell.folder.write("console.toml", &page);
    shell.run("wayleave check console.toml");
}

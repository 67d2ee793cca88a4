//! `member.md` and `policies.md`.

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

//! `member.md` and `policies.md`.

use super::{Shell, laid_over, snippets};

#[test]
fn policies_are_configured_as_the_guide_says() {
    let shell = Shell::new("guide-policies");
    shell.run("wayleave keys new alpha.key --name alpha");
    let initial = shell.run("wayleave init member");
    for rules in snippets("policies.md", "toml") {
        shell.folder.write("member.toml", &laid_over(&initial, &rules));
        shell.run("wayleave check member.toml");
    }
}

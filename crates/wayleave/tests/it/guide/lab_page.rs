//! `lab.md`.

use std::os::unix::fs::symlink;
use std::path::Path;

use wayleave_lab::netns;

use super::{Shell, commands, snippet};
use crate::lab::impossible;

#[test]
fn a_laboratory_is_described_as_the_guide_says() {
    let shell = Shell::new("guide-lab-file");
    shell.folder.write("lab.toml", &snippet("lab.md", "toml"));
    shell.run("wayleave-lab check lab.toml");
    assert!(shell.run("wayleave-lab graph lab.toml --text").contains("server  host 10.0.2.10"));
}

#[test]
fn a_laboratory_is_used_as_the_guide_says() {
    if let Some(reason) = impossible() {
        netns::skipped(&format!("guide::lab_page::a_laboratory_is_used_as_the_guide_says: {reason}"));
        return;
    }
    let mut shell = Shell::new("guide-lab");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().expect("documentation");
    symlink(docs, shell.folder.0.join("docs")).expect("a link");
    // The folder of a user's laboratories is the test's own.
    shell.put("wayleave-lab ", "XDG_STATE_HOME=$PWD wayleave-lab ");
    let mut said = Vec::new();
    for command in commands(&snippet("lab.md", "sh")) {
        said.push(shell.run(&command));
    }
    let all = said.concat();
    for expected in ["laboratory chain is up", "a\nw1\nw2\nw3\nb\n", "a\nw1\nw3\nb\n", "every process has ended"] {
        assert!(all.contains(expected), "{expected}: {all}");
    }
}

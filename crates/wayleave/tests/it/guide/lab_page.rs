//! `lab.md`.
//!
//! LAB, up: the example laboratories are described and used as the guide says; a killed node shows in status and
//! picture.

use std::os::unix::fs::symlink;
use std::path::Path;

use wayleave_lab::netns;
use wayleave_lab::routers::{default_cache, locate_or_fetch};

use super::{Shell, commands, snippets};
use crate::lab::impossible;

#[test]
fn a_laboratory_is_described_as_the_guide_says() {
    let shell = Shell::new("guide-lab-file");
    let expected =
        ["server  host 10.0.2.10", "bravo-router  frr with 198.51.100.0/24", "right  attesting proxy of AS64498"];
    for (file, drawn) in snippets("lab.md", "toml").iter().zip(expected) {
        shell.folder.write("lab.toml", file);
        shell.run("wayleave-lab check lab.toml");
        let said = shell.run("wayleave-lab graph lab.toml --text");
        assert!(said.contains(drawn), "{said}");
    }
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
    let has_routers = locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")).is_ok();
    let expected: [&[&str]; 3] = [
        &["laboratory chain is up", "a\nw1\nw2\nw3\nb\n", "a\nw1\nw3\nb\n", "every process has ended"],
        &[
            "from delta (AS64500) path 64500 class 255: installed",
            "4 of 4 members connected",
            "every process has ended",
        ],
        &[
            "every hop is proved",
            "the origin may not announce 203.0.113.128/25",
            "strict since",
            "every process has ended",
        ],
    ];
    for (snippet, expected) in snippets("lab.md", "sh").iter().zip(expected) {
        if !has_routers && !snippet.contains("chain.toml") {
            netns::skipped("guide::lab_page::a_laboratory_is_used_as_the_guide_says: no routers");
            continue;
        }
        let all: String = commands(snippet).iter().map(|command| shell.run(command)).collect();
        for expected in expected {
            assert!(all.contains(expected), "{expected}: {all}");
        }
    }
}

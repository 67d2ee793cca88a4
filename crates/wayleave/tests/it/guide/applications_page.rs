//! `applications.md`.
//!
//! PLA, applications: the guide's page of the paper's applications: each is run, and billed to who pays.

use std::os::unix::fs::symlink;
use std::path::Path;

use wayleave_lab::netns;

use super::{Shell, commands, snippet, snippets};
use crate::common::{eventually, serves_pages};
use crate::lab::impossible;

#[test]
fn a_network_with_capabilities_is_described_as_the_guide_says() {
    let shell = Shell::new("guide-applications-file");
    shell.folder.write("mine.toml", &snippet("applications.md", "toml"));
    shell.run("wayleave-lab check mine.toml");
    let drawn = shell.run("wayleave-lab graph mine.toml --text");
    assert!(drawn.contains("pro  waypoint 198.51.100.1") && drawn.contains("edge, cost 2"), "{drawn}");
}

#[test]
fn the_papers_applications_are_run_and_billed_as_the_guide_says() {
    let name = "guide::applications_page::the_papers_applications_are_run_and_billed_as_the_guide_says";
    if let Some(reason) = impossible() {
        netns::skipped(&format!("{name}: {reason}"));
        return;
    }
    if !serves_pages() {
        netns::skipped(&format!("{name}: no python3 that serves pages"));
        return;
    }
    let mut shell = Shell::new("guide-applications");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().expect("documentation");
    symlink(docs, shell.folder.0.join("docs")).expect("a link");
    // The folder of a user's laboratories is the test's own.
    shell.put("wayleave-lab ", "XDG_STATE_HOME=$PWD wayleave-lab ");
    let pages = snippets("applications.md", "sh");
    assert_eq!(pages.len(), 5);
    // What the statements of each have at least: a principal at the beginning of a line.
    let billed = [&["7", "21"][..], &["7"], &["7"], &["7"], &["7", "8"]];
    for (page, principals) in pages.iter().zip(billed) {
        let mut principals = principals.iter();
        for command in commands(page) {
            if !command.contains("cap usage") {
                let said = shell.run(&command);
                assert!(!command.contains("curl") || said.contains("Directory listing"), "{command}: {said}");
                continue;
            }
            let principal = principals.next().expect("a statement more than expected");
            eventually(&format!("{principal} is on the bill: {command}"), || {
                // As long as the key server starts, it has no statement.
                let said = shell.attempt(&command).unwrap_or_default();
                said.lines().any(|line| line.split_whitespace().next() == Some(*principal))
            });
        }
        assert_eq!(principals.next(), None);
    }
}

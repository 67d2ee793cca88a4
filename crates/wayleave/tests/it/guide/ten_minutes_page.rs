//! `ten-minutes.md`, played as it stands: the page that a new user reads first.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use wayleave_lab::netns::{NetworkNamespace, skipped};

use super::play::Play;
use crate::common::{laboratory, serves_pages};
use crate::lab::impossible;

/// Ends the laboratory, if the page did not come to its end.
struct Down(PathBuf);

impl Drop for Down {
    fn drop(&mut self) {
        let _ = Command::new(laboratory()).arg("down").env("XDG_STATE_HOME", &self.0).output();
    }
}

#[test]
fn ten_minutes_with_an_overlay_go_as_the_page_says() {
    let test = "guide::ten_minutes_page::ten_minutes_with_an_overlay_go_as_the_page_says";
    if let Some(reason) = impossible() {
        return skipped(&format!("{test}: {reason}"));
    }
    if !serves_pages() {
        return skipped(&format!("{test}: no python3 that serves pages"));
    }
    let mut play = Play::new("ten-minutes.md", &[("", &NetworkNamespace::Own)]);
    let folder = play.folder("");
    let _down = Down(folder.clone());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().expect("documentation");
    symlink(docs, folder.join("docs")).expect("a link");
    // It is built, and a user's folders are the test's own.
    play.put("make build", "true");
    play.put("/tmp/page", &folder.join("page").display().to_string());
    play.put("/home/you/.local/state", &folder.display().to_string());
    play.first("", &format!("export XDG_STATE_HOME={}", folder.display()));
    let json = |play: &Play, command: &str| -> Value {
        serde_json::from_str(&play.ask("", &format!("{command} --json"))).expect("JSON")
    };
    play.run(|play, fence| {
        if fence.starts_with("$ mkdir") {
            // Two paths are equally long. If the other one comes first here, each node's name is that of the other path's node.
            play.ask("", "wayleave-lab exec a wayleave ping clean.b.demo --config gateway.toml");
            let why = json(play, "wayleave-lab exec a wayleave why clean.b.demo --config gateway.toml");
            if why["active"]["nodes"][1] == "w1" {
                for number in 1..=6 {
                    play.put(&format!("w{number}"), &format!("@{number}"));
                }
                for number in 1..=6 {
                    play.put(&format!("@{number}"), &format!("w{}", (number + 2) % 6 + 1));
                }
            }
        }
        if fence.starts_with("$ wayleave-lab status") {
            let middle = play.filled("w5");
            let status = json(play, "wayleave-lab status");
            let mut rows = status["processes"].as_array().into_iter().flatten();
            let row = rows.find(|row| row["node"] == middle.as_str()).expect("the node");
            play.put("132", &row["pid"].to_string());
        }
        false
    });
}

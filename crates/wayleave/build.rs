//! Tells the binary which commit it is built from, where that can be known.
#![allow(clippy::disallowed_methods, reason = "a build script asks git")]

use std::process::Command;

fn main() {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let text = output.ok().filter(|output| output.status.success());
    let text = text.and_then(|output| String::from_utf8(output.stdout).ok());
    // A source without its history, such as a package's, is told.
    let text = std::env::var("WAYLEAVE_COMMIT").ok().or(text);
    let text = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    println!("cargo::rustc-env=WAYLEAVE_GIT={}", text.as_deref().unwrap_or("unknown"));
    println!("cargo::rerun-if-env-changed=WAYLEAVE_COMMIT");
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
}

//! A restore drill of every role: its machine is lost while it runs, and it works on what its copy has.
//!
//! OPS, restore: each role is started, written to, copied while it runs, and loses all of its files: it starts from the copy, every
//! file that was copied is there octet by octet, an operator of a realm takes who was invited before, a key server answers who was
//! granted before.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use super::world::{Configured, with_each};
use crate::common::{Folder, assert_known, free};

/// A node whose packets go nowhere.
const AVOIDED: &str = "node:ed25519:8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c";
/// The setting of a database, which a running role may write to between two copies.
const DATABASE: &str = "key.database";

/// The role's configuration, as an argument.
fn config(role: &Configured) -> String {
    role.config().to_str().expect("UTF-8").to_owned()
}

/// Gives the role something to lose; what it printed, if that is to be used after the restore.
fn write(role: &Configured, elsewhere: &Folder) -> Option<String> {
    let config = config(role);
    match role.role {
        "realm" => {
            let listen = free();
            let invited = ["realm", "invite", "late", "--role", "path", "--address", &listen, "--config", &config];
            let token = elsewhere.ok(&invited);
            elsewhere.write("listen", &listen);
            Some(token.trim().to_owned())
        }
        "key" => {
            let grant = ["cap", "grant", "--principal", "7", "--waypoint", "198.51.100.1", "--config", &config];
            Some(elsewhere.ok(&grant))
        }
        "gateway" => {
            // As `path avoid` has a running gateway write it, which here is in a namespace of its own.
            fs::write(role.folder().join("choices.toml"), format!("avoid = [\"{AVOIDED}\"]\n")).expect("written");
            None
        }
        _ => None,
    }
}

/// What a command says of the role's records, if it has any that a command shows.
fn records(role: &Configured, elsewhere: &Folder) -> Option<String> {
    let config = config(role);
    match role.role {
        "realm" => Some(elsewhere.ok(&["realm", "show", "--config", &config, "--json"])),
        "key" => Some(elsewhere.ok(&["cap", "list", "--config", &config, "--json"])),
        _ => None,
    }
}

/// The files of a copy by where they go, but for a database.
fn files(role: &Configured, copied: &Value) -> BTreeMap<PathBuf, Vec<u8>> {
    let copied = copied["files"].as_array().expect("files").iter();
    let of_role = copied.filter(|file| file["setting"] != DATABASE);
    let read = |file: &Value| {
        let path = role.folder().join(file["path"].as_str().expect("a path"));
        let octets = fs::read(&path).unwrap_or_else(|error| panic!("{}: {}: {error}", role.role, path.display()));
        (path, octets)
    };
    of_role.map(read).collect()
}

/// Every file beside a configuration that a role has alone is in the copy, or named as left out.
fn assert_named(role: &Configured, copied: &Value) {
    // The folders of the others have what a test, or another program, lays beside the configuration.
    if !matches!(role.role, "key" | "realm" | "path" | "consent" | "gateway") {
        return;
    }
    let named: Vec<&str> = ["files", "left_out", "absent"]
        .iter()
        .flat_map(|list| copied[*list].as_array().into_iter().flatten())
        .filter_map(|file| file["path"].as_str())
        .collect();
    let names = fs::read_dir(role.folder()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("UTF-8"));
    // What a database or a state has beside it begins as it does. The tests write its log there.
    let is_named = |name: &String| named.iter().any(|file| name.starts_with(file)) || name == "log" || name == "notify";
    let unnamed: Vec<String> = names.filter(|name| !is_named(name)).collect();
    assert!(unnamed.is_empty(), "{}: {unnamed:?}: {copied}", role.role);
}

/// The running role does with what was written before what it is for.
fn works(role: &Configured, elsewhere: &Folder, written: &str) {
    if role.role == "realm" {
        let listen = fs::read_to_string(elsewhere.0.join("listen")).expect("as invited");
        elsewhere.ok(&["join", written, "--dir", "late", "--listen", &listen, "--status", &free()]);
        assert!(elsewhere.0.join("late/membership").exists(), "a node that was invited before the loss joins after it");
    } else {
        elsewhere.write("line", written);
        let server = role.setting("listen = ");
        elsewhere.ok(&["cap", "lookup", "--line", "line", "--out", "7.cap", "--server", &server]);
        assert!(elsewhere.ok(&["keys", "show", "7.cap"]).contains("198.51.100.1"));
    }
}

#[test]
fn every_role_comes_back_from_a_copy_of_its_files_and_works_on_what_it_had() {
    with_each("restore", |role| {
        let elsewhere = Folder::new(&format!("ends-restore-elsewhere-{}", role.role));
        let config = config(&role);
        let mut process = role.start(role.log_file(), &[]);
        let written = write(&role, &elsewhere);
        let copied = elsewhere.ok(&["backup", "--config", &config, "copy", "--json"]);
        let copied: Value = serde_json::from_str(&copied).expect("JSON");
        let (before, said) = (files(&role, &copied), records(&role, &elsewhere));
        assert!(before.contains_key(role.config()), "{copied}");
        assert_known(&elsewhere, &elsewhere.0.join("copy"));
        // Whatever the role itself has written is known as well.
        let left_out = copied["left_out"].as_array().expect("a list").iter();
        for left in left_out.map(|left| role.folder().join(left["path"].as_str().expect("a path"))) {
            if left.is_file() {
                elsewhere.ok(&["keys", "show", left.to_str().expect("UTF-8")]);
            }
        }
        process.signal(Signal::TERM);
        assert_eq!(process.ended().code(), Some(0), "{}: {}", role.role, role.log());
        assert_named(&role, &copied);

        role.lose();
        let to = role.folder().to_str().expect("UTF-8").to_owned();
        let restored = elsewhere.ok(&["restore", "copy", "--to", &to, "--outside"]);
        assert!(restored.contains(&format!("wayleave run {} --config {config}", role.role)), "{restored}");
        assert!(files(&role, &copied) == before, "{}: what was copied is there, octet by octet", role.role);
        assert_eq!(records(&role, &elsewhere), said, "{}", role.role);

        let mut process = role.start(role.log_file(), &[]);
        if let Some(written) = written {
            works(&role, &elsewhere, &written);
        }
        process.signal(Signal::TERM);
        assert_eq!(process.ended().code(), Some(0), "{}: {}", role.role, role.log());
    });
}

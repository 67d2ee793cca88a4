//! Copies of what is lost with a machine, and a drill for each kind of role: the machine goes, the copy is put elsewhere, the role works.
//!
//! OPS, backup: parties and a member that lose their machines, a provider's and a realm's records; files in the way; a
//! copy with other octets, other paths, of a later form, cut: in step again from copies made while they ran; nothing is
//! overwritten; refused by name before anything is written.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::common::{Folder, eventually, free, program};

/// A role that runs until it is dropped.
struct Running(Child);

impl Running {
    fn start(folder: &Folder, role: &str, config: &str) -> Self {
        let log =
            fs::File::options().append(true).create(true).open(folder.0.join(format!("{role}.log"))).expect("a log");
        let mut command = program(&["run", role, "--refuse-nobody", "--config", config]);
        Self(command.current_dir(&folder.0).stdin(Stdio::null()).stderr(log).spawn().expect("it runs"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json(folder: &Folder, arguments: &[&str]) -> Value {
    serde_json::from_str(&folder.ok(&[arguments, &["--json"]].concat())).expect("JSON")
}

fn edit(folder: &Folder, file: &str, changes: &[(&str, &str)]) {
    let path = folder.0.join(file);
    let mut text = fs::read_to_string(&path).expect("a configuration");
    for (before, after) in changes {
        assert!(text.contains(before), "{before} in {text}");
        text = text.replace(before, after);
    }
    fs::write(path, text).expect("written");
}

/// Party 2's is one file.
fn copy_of(owner: &str) -> &'static str {
    match owner {
        "party1" => "copy-party1",
        "party2" => "copy-party2.tar",
        _ => "copy-alpha",
    }
}

/// Both parties and a member lose their machines; what was copied while they ran is enough, and their state is made anew.
#[test]
fn an_exchange_comes_back_from_copies_made_while_it_ran() {
    let folder = Folder::new("backup-exchange");
    folder.ok(&["exchange", "new", "trial", "--member", "alpha=64497@192.0.2.1"]);
    let [link, one, two] = [free(), free(), free()];
    let [page1, page2, page3, bgp] = [free(), free(), free(), free()];
    for (owner, page) in [("party1", &page1), ("party2", &page2)] {
        let file = format!("trial/{owner}/wayleave.toml");
        let status = if owner == "party1" { "127.0.0.1:8481" } else { "127.0.0.1:8482" };
        let (own, listen) = if owner == "party1" { ("127.0.0.1:7001", &one) } else { ("127.0.0.1:7002", &two) };
        edit(&folder, &file, &[("127.0.0.1:7000", &link), (own, listen), (status, page)]);
    }
    let file = "trial/alpha/wayleave.toml";
    edit(
        &folder,
        file,
        &[
            ("127.0.0.1:7001", &one),
            ("127.0.0.1:7002", &two),
            ("127.0.0.1:8490", &page3),
            ("127.0.0.2:1790", &bgp),
            ("connect = ", "#connect = "),
            ("bind = ", "#bind = "),
        ],
    );
    let owners = [("rs", "party1"), ("rs", "party2"), ("member", "alpha")];
    let run = |root: &str| {
        owners.map(|(role, owner)| Running::start(&folder, role, &format!("{root}/{owner}/wayleave.toml")))
    };
    let is_linked = |root: &str| {
        let output = folder.run(&["show", "status", "--config", &format!("{root}/alpha/wayleave.toml"), "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["synced"] == true
    };
    let running = run("trial");
    eventually("the member is in step with the exchange", || is_linked("trial"));
    for (_, owner) in owners {
        let config = format!("trial/{owner}/wayleave.toml");
        let operator = format!("trial/operators/operator{}.key", if owner == "party2" { 2 } else { 1 });
        let said = folder.ok(&["backup", "--config", &config, copy_of(owner), "--also", &operator]);
        assert!(said.contains("private keys: keep it as them") && said.contains(&format!("{owner}.redb")), "{said}");
    }
    let kept: Vec<String> = {
        let read = fs::read_to_string(folder.0.join("copy-party1/backup.json")).expect("a manifest");
        let manifest: Value = serde_json::from_str(&read).expect("JSON");
        manifest["files"]
            .as_array()
            .expect("files")
            .iter()
            .map(|file| file["path"].as_str().expect("a path").to_owned())
            .collect()
    };
    assert_eq!(kept, ["party1.key", "members", "wayleave.toml", "operator1.key", "operator1.key.signed"]);
    drop(running);
    // The machines are gone. The operators' keys go where the trial has them.
    fs::remove_dir_all(folder.0.join("trial")).expect("removed");
    for (role, owner) in owners {
        let said = folder.ok(&["restore", copy_of(owner), "--to", &format!("again/{owner}")]);
        assert!(said.contains(&format!("wayleave run {role} --config again/{owner}/wayleave.toml")), "{said}");
        assert_eq!(said.contains("may lack what came later: take the other party's file"), role == "rs", "{said}");
        assert!(said.contains(".key.signed may lack what came later: compare with the newest member set"), "{said}");
        assert_eq!(said.contains("starts only where both operators' keys are"), role == "rs", "{said}");
        let key = fs::metadata(folder.0.join(format!("again/{owner}/{owner}.key"))).expect("a key");
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
    }
    // Both parties' keys in one folder: it is said.
    let text = fs::read_to_string(folder.0.join("again/party1/wayleave.toml")).expect("a configuration");
    fs::create_dir(folder.0.join("beside")).expect("a folder");
    folder.write("beside/party1.toml", &text);
    let said = folder.ok(&["restore", copy_of("party2"), "--to", "beside"]);
    assert!(said.contains("warning: beside/party1.toml beside it is the other party's configuration"), "{said}");
    fs::create_dir(folder.0.join("again/operators")).expect("a folder");
    for number in [1, 2] {
        let from = format!("again/party{number}/operator{number}.key");
        fs::rename(folder.0.join(&from), folder.0.join(format!("again/operators/operator{number}.key")))
            .expect("moved");
    }
    let _running = run("again");
    eventually("the member is in step with the exchange again", || is_linked("again"));
}

/// A key server's accounts and grants, and a realm's records.
#[test]
fn records_of_a_provider_and_of_a_realm_come_back() {
    let folder = Folder::new("backup-records");
    let api = free();
    let server = ["cap", "init", "provider", "--zone", "keys.example.net", "--name-server", "ns1.example.net"];
    folder.ok(&[&server[..], &["--api", &api]].concat());
    let pin = json(&folder, &["keys", "show", "provider/api.key"])["api_pin"].clone();
    let config = fs::read_dir(folder.0.join("provider")).expect("a folder").filter_map(|entry| {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        name.ends_with(".toml").then_some(name)
    });
    let config = format!("provider/{}", config.last().expect("a configuration"));
    let accounts = json(&folder, &["cap", "list", "--config", &config]);
    let said = folder.ok(&["backup", "--config", &config, "copy"]);
    let (copied, left_out) = said.split_once("left out").expect("what is left out");
    assert!(copied.contains("api.key") && left_out.contains("key.position"), "{said}");
    fs::remove_dir_all(folder.0.join("provider")).expect("removed");
    let said = folder.ok(&["restore", "copy", "--to", "provider"]);
    assert!(said.contains("revoke again what was revoked since"), "{said}");
    folder.ok(&["check", &config]);
    // Invitations that are open name it.
    assert_eq!(json(&folder, &["keys", "show", "provider/api.key"])["api_pin"], pin);
    assert_eq!(json(&folder, &["cap", "list", "--config", &config]), accounts);

    folder.ok(&["realm", "init", "realm", "--listen", "127.0.0.1:7000"]);
    folder.ok(&["backup", "--config", "realm/realm.toml", "copy-realm"]);
    let shown = json(&folder, &["realm", "show", "--config", "realm/realm.toml"]);
    fs::remove_dir_all(folder.0.join("realm")).expect("removed");
    folder.ok(&["restore", "copy-realm", "--to", "realm"]);
    assert_eq!(json(&folder, &["realm", "show", "--config", "realm/realm.toml"]), shown);
}

#[test]
fn nothing_is_overwritten_and_a_copy_that_was_changed_is_refused() {
    let folder = Folder::new("backup-refused");
    folder.ok(&["exchange", "new", "trial", "--member", "alpha=64497@192.0.2.1"]);
    let config = "trial/alpha/wayleave.toml";
    let made = json(&folder, &["backup", "--config", config, "copy"]);
    assert_eq!(made["left_out"][0]["setting"], "member.state", "{made}");
    assert!(folder.fails(1, &["backup", "--config", config, "copy"]).contains("exists"));
    let refused = folder.fails(1, &["backup", "--config", "trial/none.toml", "other"]);
    assert!(refused.contains("trial/none.toml") && !folder.0.join("other").exists(), "{refused}");
    let refused = folder.fails(1, &["backup", "--config", config, "--also", "none.key", "other"]);
    assert!(refused.contains("none.key") && !folder.0.join("other").exists(), "{refused}");
    // A file is there: none is written, and it is as it was.
    fs::create_dir(folder.0.join("new")).expect("a folder");
    fs::write(folder.0.join("new/alpha.key"), "mine").expect("written");
    let refused = folder.fails(1, &["restore", "copy", "--to", "new"]);
    assert!(refused.contains("new/alpha.key exists") && refused.contains("move it away"), "{refused}");
    assert_eq!(fs::read_dir(folder.0.join("new")).expect("a folder").count(), 1);
    assert_eq!(fs::read_to_string(folder.0.join("new/alpha.key")).expect("a file"), "mine");
    assert!(folder.fails(1, &["restore", "trial", "--to", "x"]).contains("is no backup"));
    let manifest = folder.0.join("copy/backup.json");
    let sound = fs::read_to_string(&manifest).expect("a manifest");
    let path = |from: &str, to: &str| sound.replace(&format!("\"path\": \"{from}\""), &format!("\"path\": \"{to}\""));
    for (changed, expected) in [
        (path("alpha.key", "../../alpha.key"), "does not name ../../alpha.key"),
        (path("alpha.key", "/tmp/wayleave-nowhere.key"), "does not name"),
        (path("wayleave.toml", "../wayleave.toml"), "is no name of a file in a backup"),
        (sound.replace("\"stored\": \"000-", "\"stored\": \"../files/000-"), "is no name of a file in a backup"),
        (sound.replace("\"version\": 1", "\"version\": 2"), "has the form 2"),
        (sound.replace("\"role\"", "\"rule\""), "is no backup"),
        (sound[..sound.len() / 2].to_owned(), "is no backup"),
    ] {
        assert_ne!(changed, sound, "{expected}");
        fs::write(&manifest, changed).expect("written");
        let refused = folder.fails(1, &["restore", "copy", "--to", "elsewhere"]);
        assert!(refused.contains(expected), "{expected}: {refused}");
        assert!(!folder.0.join("elsewhere").exists() && !Path::new("/tmp/wayleave-nowhere.key").exists());
    }
    fs::write(&manifest, &sound).expect("written");
    // What is there already and the same is no obstacle: two roles may have a file in common.
    fs::create_dir(folder.0.join("shared")).expect("a folder");
    fs::copy(folder.0.join("trial/alpha/alpha.key"), folder.0.join("shared/alpha.key")).expect("copied");
    let said = folder.ok(&["restore", "copy", "--to", "shared"]);
    assert!(said.contains("shared/alpha.key (there already, the same)"), "{said}");
    // What root restores belongs to whom the folder belongs, in which it begins.
    let owned = folder.0.join("owned");
    fs::create_dir(&owned).expect("a folder");
    if std::os::unix::fs::chown(&owned, Some(4_242), Some(4_243)).is_ok() {
        folder.ok(&["restore", "copy", "--to", "owned/etc"]);
        let about = fs::metadata(owned.join("etc/alpha.key")).expect("a key");
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o777), (4_242, 4_243, 0o600));
    }
    fs::write(folder.0.join("copy/files/000-alpha.key"), "another key").expect("written");
    assert!(
        folder.fails(1, &["restore", "copy", "--to", "elsewhere"]).contains("000-alpha.key is not what was copied")
    );
}

/// A job of cron notices: what is not a whole copy does not end well.
#[test]
fn what_is_no_whole_copy_says_so_and_each_setting_of_every_role_is_found() {
    let folder = Folder::new("backup-whole");
    folder.ok(&["exchange", "new", "trial", "--member", "alpha=64497@192.0.2.1"]);
    let config = "trial/alpha/wayleave.toml";
    fs::rename(folder.0.join("trial/alpha/alpha.key"), folder.0.join("away")).expect("moved");
    let refused = folder.fails(1, &["backup", "--config", config, "without"]);
    assert!(
        refused.contains("not a whole copy: alpha.key") && folder.0.join("without/backup.json").exists(),
        "{refused}"
    );
    let refused = folder.fails(1, &["restore", "without", "--to", "restored"]);
    assert!(refused.contains("not a whole copy: alpha.key, which `member.key` names, is not in it"), "{refused}");
    assert!(folder.0.join("restored/wayleave.toml").exists(), "what is there is restored");
    // With `--json` the result alone says it.
    for command in [&["backup", "--config", config, "again"][..], &["restore", "without", "--to", "elsewhere"]] {
        let output = folder.run(&[command, &["--json"]].concat());
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert!(!output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(said["absent"].to_string().contains("member.key"), "{said}");
    }
    fs::rename(folder.0.join("away"), folder.0.join("trial/alpha/alpha.key")).expect("moved back");
    folder.write("text.toml", "words = 1\n");
    assert!(folder.fails(1, &["backup", "--config", "text.toml", "none"]).contains("no role's configuration"));
    folder.write("text.toml", "[party\nkey = 1\n");
    folder.fails(1, &["backup", "--config", "text.toml", "none"]);
    assert!(!folder.0.join("none").exists());
    // Two files of one name cannot go to one place.
    for name in ["one", "two"] {
        fs::create_dir(folder.0.join(name)).expect("a folder");
        folder.ok(&["keys", "new", &format!("{name}/operator.key")]);
    }
    let both = ["backup", "--config", config, "both", "--also", "one/operator.key", "--also", "two/operator.key"];
    assert!(folder.fails(1, &both).contains("two files that would be restored to operator.key"));
    // A gateway's choices, which it has without a setting; an attesting proxy's certificates; a folder of objects with a link to itself.
    folder.write("gateway.toml", &folder.ok(&["init", "gateway"]));
    folder.write("choices.toml", "");
    let attest = folder.ok(&["init", "attest"]).replace("#anchors", "anchors").replace("#certificates", "certificates");
    folder.write("attest.toml", &attest);
    // A folder without a file is as good as none.
    fs::create_dir(folder.0.join("rpki")).expect("a folder");
    fs::create_dir_all(folder.0.join("objects/deeper")).expect("a folder");
    folder.write("objects/deeper/one", "object");
    std::os::unix::fs::symlink(".", folder.0.join("objects/loop")).expect("a link");
    for (file, expected) in
        [("gateway.toml", &["choices.toml"][..]), ("attest.toml", &["ta.cer", "rpki", "objects/deeper/one"])]
    {
        let copy = format!("objects/{file}.copy");
        let output = folder.run(&["backup", "--config", file, &copy, "--json"]);
        assert_eq!(output.status.code(), Some(1), "example keys are not there");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        for word in expected {
            assert!(said.contains(&format!("\"path\":\"{word}\"")), "{word}: {said}");
        }
        assert!(!said.contains("sha256"), "a password's digest is as good as the password: {said}");
    }
}

/// A backup of somebody else's could name any place; so could a link in the folder to which root restores.
#[test]
fn a_restore_stays_in_its_folder_unless_it_is_told_otherwise() {
    let folder = Folder::new("backup-outside");
    folder.ok(&["exchange", "new", "trial", "--member", "alpha=64497@192.0.2.1"]);
    let outside = folder.0.join("outside/alpha.key");
    fs::create_dir(folder.0.join("outside")).expect("a folder");
    fs::rename(folder.0.join("trial/alpha/alpha.key"), &outside).expect("moved");
    let config = "trial/alpha/wayleave.toml";
    edit(&folder, config, &[("key = \"alpha.key\"", &format!("key = \"{}\"", outside.display()))]);
    folder.ok(&["backup", "--config", config, "copy"]);
    fs::remove_file(&outside).expect("removed");
    let refused = folder.fails(1, &["restore", "copy", "--to", "new"]);
    assert!(refused.contains("is outside of new") && refused.contains("--outside"), "{refused}");
    assert!(!folder.0.join("new").exists() && !outside.exists());
    folder.ok(&["restore", "copy", "--to", "new", "--outside"]);
    assert!(outside.exists() && folder.0.join("new/wayleave.toml").exists());
    // Out of a folder that is not there yet; a file that is there and the same stays.
    edit(&folder, config, &[(&outside.display().to_string(), "../alpha.key")]);
    fs::rename(&outside, folder.0.join("trial/alpha.key")).expect("moved");
    folder.ok(&["backup", "--config", config, "copy-1"]);
    let said = folder.ok(&["restore", "copy-1", "--to", "later/alpha", "--outside"]);
    assert!(said.contains("later/alpha.key") && !said.contains(".."), "{said}");
    fs::remove_dir_all(folder.0.join("later/alpha")).expect("removed");
    let said = folder.ok(&["restore", "copy-1", "--to", "later/alpha", "--outside"]);
    assert!(said.contains("later/alpha.key (there already, the same)"), "{said}");
    fs::remove_dir_all(folder.0.join("later/alpha")).expect("removed");
    folder.write("later/alpha.key", "another");
    let refused = folder.fails(1, &["restore", "copy-1", "--to", "later/alpha", "--outside"]);
    assert!(refused.contains("later/alpha.key exists") && !folder.0.join("later/alpha").exists(), "{refused}");
    fs::rename(folder.0.join("trial/alpha.key"), &outside).expect("moved back");
    edit(&folder, config, &[("../alpha.key", &outside.display().to_string())]);
    // The same within: a folder that leads elsewhere.
    edit(&folder, config, &[(&outside.display().to_string(), "keys/alpha.key")]);
    fs::create_dir(folder.0.join("trial/alpha/keys")).expect("a folder");
    fs::rename(&outside, folder.0.join("trial/alpha/keys/alpha.key")).expect("moved");
    folder.ok(&["backup", "--config", config, "copy-2"]);
    fs::create_dir(folder.0.join("linked")).expect("a folder");
    std::os::unix::fs::symlink(folder.0.join("outside"), folder.0.join("linked/keys")).expect("a link");
    let refused = folder.fails(1, &["restore", "copy-2", "--to", "linked"]);
    assert!(refused.contains("linked/keys is a symbolic link"), "{refused}");
    assert!(!outside.exists() && !folder.0.join("linked/wayleave.toml").exists());
}

#[test]
fn of_one_file_nothing_else_is_taken_than_what_a_copy_has() {
    let folder = Folder::new("backup-archive");
    folder.ok(&["exchange", "new", "trial", "--member", "alpha=64497@192.0.2.1"]);
    folder.ok(&["backup", "--config", "trial/alpha/wayleave.toml", "alpha.tar"]);
    let archive = folder.0.join("alpha.tar");
    assert_eq!(fs::metadata(&archive).expect("a file").permissions().mode() & 0o777, 0o600);
    assert!(!folder.0.join("alpha.tar.part").exists(), "the folder that became it is gone");
    let said = folder.fails(1, &["backup", "--config", "trial/alpha/wayleave.toml", "alpha.tar"]);
    assert!(said.contains("alpha.tar exists"), "{said}");
    let whole = fs::read(&archive).expect("an archive");
    let with = |name: &str, kind: tar::EntryType| {
        let mut made = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_entry_type(kind);
        header.set_mode(0o600);
        // As a hostile one is made: the library would refuse the name.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        made.append(&header, &b"text"[..]).expect("appended");
        made.into_inner().expect("an archive")
    };
    let bad = [
        ("cut", whole[..whole.len() / 2].to_vec()),
        ("a name that leads out", with("../out", tar::EntryType::Regular)),
        ("a name from the root", with("/tmp/wayleave-out", tar::EntryType::Regular)),
        ("a folder below", with("files/a/b", tar::EntryType::Regular)),
        ("a link", with("files/000-link", tar::EntryType::Symlink)),
        ("no archive", b"text".to_vec()),
    ];
    for (what, octets) in bad {
        fs::write(folder.0.join("bad.tar"), octets).expect("written");
        let said = folder.fails(1, &["restore", "bad.tar", "--to", "here/alpha"]);
        assert!(said.contains("backup"), "{what}: {said}");
        assert!(!folder.0.join("here/alpha").exists() && !folder.0.join("here/alpha.restoring").exists(), "{what}");
        assert!(!folder.0.join("out").exists() && !Path::new("/tmp/wayleave-out").exists(), "{what}");
    }
    folder.ok(&["restore", "alpha.tar", "--to", "here/alpha"]);
    assert!(folder.0.join("here/alpha/alpha.key").exists());
}

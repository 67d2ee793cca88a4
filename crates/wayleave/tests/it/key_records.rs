//! The records of a key server are compacted: answers stay as they are, whoever is killed, and replicas follow.
//!
//! PLA-06, compacted records: compaction killed at any time, replicas that are behind, killed while they fetch, or
//! begin with nothing, old files put back beside a running server: records are whole; the replica has the writer's file
//! and never goes back.
//! PLA-06, behind and set back: a replica too far behind; a writer that was set back: no piece is fetched; both ends
//! see it with the first answer, say what to do, and keep what they have.
//! PLA-06, one principal's orders: an order at a file of records that was just replaced by an old copy: nothing is
//! appended, the server ends and says why.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{eventually, text};
use crate::key::{Server, replica_of};
use crate::overlay::harness::Running;

/// Further changes, in one command: revocations that are lifted again.
fn churn(server: &Server, changes: usize) {
    let entries: Vec<String> = (0..changes / 2).map(|number| (1_000 + number).to_string()).collect();
    let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
    for more in [&["--config", &server.config][..], &["--lift", "--config", &server.config]] {
        server.folder.ok(&[&["cap", "revoke"][..], &entries, more].concat());
    }
}

fn compact(server: &Server) -> Value {
    let said = server.folder.ok(&["cap", "compact", "--config", &server.config, "--json"]);
    serde_json::from_str(&said).expect("JSON")
}

fn list(server: &Server, config: &str) -> String {
    server.folder.ok(&["cap", "list", "--config", config])
}

#[test]
fn compacted_records_answer_as_before_also_after_a_restart_and_an_old_copy_is_still_refused() {
    let mut server = Server::new("compacted");
    server.grant("own.line", &["--principal", "7", "--name", "customer"]);
    server.grant("other.line", &["--principal", "8", "--prefix", "203.0.113.0/24", "--delegation", "3"]);
    server.folder.ok(&["cap", "revoke", "8", "--config", &server.config]);
    churn(&server, 300);
    let (before, records) = (list(&server, &server.config), server.folder.0.join("server/records"));
    let old = fs::read(&records).expect("there");
    eventually("the server follows", || server.running.count("number") == 305);
    let compacted = compact(&server);
    assert_eq!(compacted["number"], 305, "{compacted}");
    let octets = fs::metadata(&records).expect("there").len();
    assert_eq!(compacted["octets_after"], octets);
    assert!(compacted["octets_before"].as_u64() > Some(2 * octets), "{compacted}");
    assert_eq!(list(&server, &server.config), before);
    // The running server goes on in the new file, and so do commands and orders.
    eventually("the server sees it", || server.running.count("snapshot") == 305);
    assert_eq!(server.list().1, ["8"]);
    server.answered(&["cap", "lookup", "--line", "own.line", "--out", "own.cap"]);
    server.refused(&["cap", "lookup", "--line", "other.line"], "revoked");
    server.answered(&["cap", "revoke", "--line", "own.line"]);
    server.grant("third.line", &["--principal", "9"]);
    eventually("the server follows", || server.running.count("number") == 308);
    for _ in 0..2 {
        server.running.kill();
        server.running.resume();
        assert_eq!(server.running.count("number"), 308, "{}", server.running.log());
        server.answered(&["cap", "lookup", "--line", "third.line"]);
        server.refused(&["cap", "lookup", "--line", "own.line"], "revoked");
        // Again, with changes behind it.
        compact(&server);
    }
    server.folder.ok(&["check", &server.config]);

    // A copy from before, put in place of the new file while the server runs, and while it does not.
    let put_back = || {
        fs::write(server.folder.0.join("server/older"), &old).expect("written");
        fs::rename(server.folder.0.join("server/older"), &records).expect("put in place");
    };
    let later = fs::read(&records).expect("there");
    put_back();
    // An order that comes before the server has looked is not carried out, and nothing is appended to that file.
    server.ask(&["cap", "delegate", "--line", "third.line", "--prefix", "203.0.113.0/24", "--id", "5"]);
    eventually("the server ends", || server.running.log().contains("does not continue change 308"));
    assert!(fs::read(&records).expect("there") == old);
    server.running.kill();
    let said = text(&server.folder.run(&["run", "key", "--config", &server.config]).stderr);
    assert!(said.contains("old copy"), "{said}");
    // A snapshot that was changed, cut off, or signed by nobody we know.
    for (what, octets) in [
        ("damaged", {
            let mut octets = later.clone();
            octets[200] ^= 1;
            octets
        }),
        ("refused", {
            let mut octets = later.clone();
            let end = octets.len() - 1;
            octets[end - 40] ^= 1;
            octets
        }),
        ("cut off", later[..later.len() / 2].to_vec()),
        ("has no records", [b"wayleave-key-records-v9\n", &later[24..]].concat()),
    ] {
        fs::write(&records, octets).expect("written");
        let said = text(&server.folder.run(&["cap", "list", "--config", &server.config]).stderr);
        assert!(said.contains(what) || said.contains("refused"), "{what}: {said}");
        assert!(said.contains("backup"), "{what}: {said}");
        let checked = server.folder.run(&["check", &server.config]);
        assert!(!checked.status.success() && text(&checked.stderr).contains("records"), "{what}");
    }
    fs::write(&records, &later).expect("written");
    server.running.resume();
    assert_eq!(server.running.count("number"), 308);
    // A copy that somebody went on from by other changes, up to the same number, takes the file's place.
    let config = fs::read_to_string(server.folder.0.join(&server.config)).expect("there");
    server.folder.write("server/forked.toml", &config.replace("records = \"records\"", "records = \"forked\""));
    fs::write(server.folder.0.join("server/forked"), &old).expect("written");
    server.folder.ok(&["cap", "revoke", "11", "12", "13", "--config", "server/forked.toml"]);
    fs::rename(server.folder.0.join("server/forked"), &records).expect("put in place");
    let refused = || server.running.log().matches("does not continue change 308").count();
    eventually("the server ends again", || refused() == 2);
    server.running.kill();
    fs::write(&records, &later).expect("written");
    server.running.resume();
    // And of another provider: well made, and not this one's.
    let other = Server::new("compacted-other");
    churn(&other, 10);
    compact(&other);
    fs::copy(other.folder.0.join("server/records"), &records).expect("copied");
    let said = text(&server.folder.run(&["cap", "list", "--config", &server.config]).stderr);
    assert!(said.contains("not signed by the provider's key"), "{said}");
}

#[test]
fn a_compaction_that_is_killed_at_any_time_leaves_records_that_are_whole() {
    let mut server = Server::new("compaction-killed");
    server.grant("own.line", &["--principal", "7"]);
    churn(&server, 400);
    let new = server.folder.0.join("server/records.new");
    let rows = || list(&server, &server.config).lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let before = rows();
    let (mut finished, mut left) = (0, 0);
    for round in 0..40_u64 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["cap", "compact", "--config", &server.config]).current_dir(&server.folder.0);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs");
        // Somewhere within what it takes, and beyond.
        std::thread::sleep(Duration::from_micros(round * 7 % 40 * 1_500));
        let _ = child.kill();
        finished += u32::from(child.wait().expect("ended").success());
        left += u32::from(new.exists());
        assert!(list(&server, &server.config).starts_with(&format!("change {}, ", 402 + 2 * round)), "round {round}");
        assert_eq!(rows(), before, "round {round}");
        // The running server has them too, and there is something to compact again.
        churn(&server, 2);
    }
    eventually("the server follows", || server.running.count("number") == 482);
    println!("{finished} of 40 were done before they were killed, {left} left a file");
    // Whatever an interrupted one left is written over.
    fs::write(&new, vec![7; 1 << 20]).expect("written");
    assert_eq!(compact(&server)["number"], 482);
    assert!(!new.exists());
    server.running.kill();
    server.running.resume();
    assert_eq!((server.running.count("number"), server.running.count("snapshot")), (482, 482));
    server.answered(&["cap", "lookup", "--line", "own.line"]);
}

#[test]
fn changes_that_are_made_while_records_are_compacted_are_in_the_new_file_too() {
    let mut server = Server::new("compaction-busy");
    server.grant("own.line", &["--principal", "7"]);
    churn(&server, 200);
    let records = server.folder.0.join("server/records");
    fs::set_permissions(&records, fs::Permissions::from_mode(0o640)).expect("mode");
    // The configuration names a link to the file.
    fs::rename(&records, server.folder.0.join("server/elsewhere")).expect("moved");
    std::os::unix::fs::symlink("elsewhere", &records).expect("a link");
    std::thread::scope(|scope| {
        let compacting = scope.spawn(|| {
            let line = ["cap", "compact", "--config", &server.config];
            (0..25).filter(|_| server.folder.run(&line).status.success()).count()
        });
        let other = scope.spawn(|| {
            // Two at once: one of them may say that the other is at it.
            let line = ["cap", "compact", "--config", &server.config];
            (0..25).filter(|_| server.folder.run(&line).status.success()).count()
        });
        for round in 0..25_u32 {
            churn(&server, 2);
            let id = (round + 1).to_string();
            let order = ["cap", "delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", &id];
            // Who has no acknowledgement repeats the command.
            eventually("the order is carried out", || server.ask(&order).status.success());
        }
        let finished = compacting.join().expect("no panic") + other.join().expect("no panic");
        assert!(finished >= 10, "{finished}");
    });
    eventually("the server has every change", || server.running.count("number") == 202 + 3 * 25);
    assert_eq!(server.running.count("grants"), 26);
    let metadata = fs::symlink_metadata(&records).expect("there");
    assert!(metadata.is_symlink());
    assert_eq!(fs::metadata(&records).expect("there").permissions().mode() & 0o777, 0o640);
    server.running.kill();
    server.running.resume();
    assert_eq!((server.running.count("number"), server.running.count("grants")), (277, 26));
    assert!(!server.folder.0.join("server/elsewhere.new").exists());
}

#[test]
fn a_running_writer_compacts_its_records_by_itself() {
    let mut server = Server::new("compacted-alone");
    server.grant("own.line", &["--principal", "7"]);
    churn(&server, 2_400);
    server.running.kill();
    // It looks at once when it starts, and then from time to time.
    server.running.resume();
    eventually("the writer compacts", || server.running.count("snapshot") == 2_402);
    let events = server.running.show("events", &[]).to_string();
    assert!(events.contains("compacted"), "{events}");
    server.answered(&["cap", "lookup", "--line", "own.line"]);
    server.folder.ok(&["cap", "revoke", "7", "--config", &server.config]);
    eventually("the server follows", || server.running.count("number") == 2_403);
}

#[test]
fn replicas_take_the_writers_snapshot_over_and_never_one_of_another_history() {
    let mut writer = Server::new("compacted-replica");
    let (mut replica, listen) = replica_of(&mut writer);
    let number = |running: &Running| (running.count("number"), running.count("snapshot"));
    writer.grant("own.line", &["--principal", "7"]);
    churn(&writer, 100);
    eventually("the replica follows", || replica.count("number") == 102);
    // One that has all changes: its file becomes the writer's.
    assert_eq!(compact(&writer)["number"], 102);
    eventually("the replica has the snapshot", || number(&replica) == (102, 102));
    let read = |file: &str| fs::read(writer.folder.0.join(file)).expect("there");
    assert!(read("server/records") == read("replica/records"));
    // One that was away: what it misses is in the snapshot alone. It is killed again and again while it fetches.
    replica.kill();
    churn(&writer, 600);
    writer.folder.ok(&["cap", "revoke", "7", "--config", &writer.config]);
    assert_eq!(compact(&writer)["number"], 703);
    writer.grant("other.line", &["--principal", "8"]);
    for round in 0..12 {
        replica.spawn();
        std::thread::sleep(Duration::from_millis(20 + 15 * round));
        replica.kill();
    }
    replica.resume();
    eventually("the replica has all", || number(&replica) == (705, 703));
    let look_up = |line: &str| writer.folder.run(&["cap", "lookup", "--line", line, "--server", &listen]);
    assert!(text(&look_up("own.line").stderr).contains("revoked"));
    assert!(look_up("other.line").status.success(), "{}", replica.log());
    replica.kill();
    replica.resume();
    eventually("it starts with it", || number(&replica) == (705, 703));
    assert!(read("server/records") == read("replica/records"));
    // A replica that begins with nothing.
    replica.kill();
    fs::write(writer.folder.0.join("replica/records"), b"wayleave-key-records-v1\n").expect("written");
    replica.resume();
    eventually("the replica has all", || number(&replica) == (705, 703));
    assert!(read("server/records") == read("replica/records"));

    // The writer is set back to an old copy and goes on from there, beyond what the replica has.
    let old = read("server/records");
    writer.folder.ok(&["cap", "revoke", "8", "--config", &writer.config]);
    eventually("the replica follows", || replica.count("number") == 706);
    writer.running.kill();
    fs::write(writer.folder.0.join("server/records"), old).expect("written");
    writer.without_list();
    churn(&writer, 20);
    compact(&writer);
    writer.running.resume();
    eventually("the replica says what is wrong", || {
        let problem = replica.status("following")["problem"].clone();
        problem.as_str().is_some_and(|problem| problem.contains("does not continue change 706"))
    });
    assert_eq!(number(&replica), (706, 703), "it has what it had");
    assert!(text(&look_up("other.line").stderr).contains("revoked"));
    replica.kill();
    replica.resume();
    assert_eq!(number(&replica), (706, 703));
}

#[test]
fn a_replica_that_is_too_far_behind_fetches_nothing_and_says_what_to_do() {
    let mut writer = Server::new("far-behind");
    let (mut replica, _) = replica_of(&mut writer);
    churn(&writer, 2);
    eventually("the replica follows", || replica.count("number") == 2);
    replica.kill();
    churn(&writer, 4_200);
    compact(&writer);
    replica.resume();
    let following = |replica: &Running| replica.status("following");
    let refusals = |replica: &Running| replica.show("events", &[]).to_string().matches("copy-refused").count();
    eventually("it was refused twice", || refusals(&replica) >= 2);
    let standing = following(&replica);
    assert_eq!((&standing["pieces"], replica.count("number")), (&Value::from(0), 2), "{standing}");
    let problem = standing["problem"].as_str().expect("a problem");
    assert!(problem.contains("stop this replica, copy the writer's file"), "{problem}");
    // As it says. One that begins with nothing has all after one transfer.
    replica.kill();
    fs::copy(writer.folder.0.join("server/records"), writer.folder.0.join("replica/records")).expect("copied");
    replica.resume();
    writer.grant("own.line", &["--principal", "7"]);
    eventually("the replica follows", || replica.count("number") == 4_204);
    assert_eq!(following(&replica)["pieces"], 0);
    replica.kill();
    fs::write(writer.folder.0.join("replica/records"), b"wayleave-key-records-v1\n").expect("written");
    replica.resume();
    eventually("the replica has all", || replica.count("number") == 4_204);
    assert_eq!((&following(&replica)["pieces"], following(&replica)["problem"].is_null()), (&Value::from(1), true));
}

/// The writer is restored from a backup: the replica has more than it, and neither has a change to send.
#[test]
fn a_replica_and_its_writer_see_at_once_that_the_writer_was_set_back() {
    let mut writer = Server::new("set-back");
    let (replica, _) = replica_of(&mut writer);
    writer.grant("own.line", &["--principal", "7"]);
    let old = fs::read(writer.folder.0.join("server/records")).expect("there");
    // An account, its rate of grants and no revocation: what the list of revocations does not show.
    writer.grant("other.line", &["--principal", "8"]);
    eventually("the replica follows", || replica.count("number") == 4);
    let last = fs::read(writer.folder.0.join("server/records")).expect("there");
    writer.running.kill();
    fs::write(writer.folder.0.join("server/records"), &old).expect("set back");
    writer.without_list();
    writer.running.resume();
    let problem = || replica.status("following")["problem"].as_str().unwrap_or_default().to_owned();
    eventually("the replica sees it", || problem().contains("end with change 2"));
    assert!(problem().contains("restore the writer's from its last backup"), "{}", problem());
    let log = writer.running.log();
    assert!(log.contains("a replica has change 4, and these records end with change 2"), "{log}");
    // It goes on to the same number by other changes.
    writer.grant("third.line", &["--principal", "9"]);
    eventually("the writer follows", || writer.running.count("number") == 4);
    writer.running.kill();
    writer.running.resume();
    eventually("the replica sees it", || problem().contains("does not continue change 4"));
    assert_eq!((replica.count("number"), replica.count("accounts")), (4, 2));
    // The replica's file is the last backup of all.
    writer.running.kill();
    fs::copy(writer.folder.0.join("replica/records"), writer.folder.0.join("server/records")).expect("copied");
    assert!(fs::read(writer.folder.0.join("server/records")).expect("there") == last);
    writer.without_list();
    writer.running.resume();
    eventually("the replica follows again", || problem().is_empty());
}

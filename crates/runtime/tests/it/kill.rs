//! `kill -9` of a process that writes: every acknowledged change survives.
#![allow(clippy::disallowed_methods, reason = "a test of drivers")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use wayleave_runtime::store::{Change, FileStore, Store};

const CHILD: &str = "WAYLEAVE_STORE_CHILD";
const KILLS: u64 = 20;

/// Not a test by itself: with the variable set, it writes for ever and says what was acknowledged.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = FileStore::open(Path::new(&path)).expect("opened");
    let from = store.load("n").expect("loaded").len() as u64;
    for n in from.. {
        let put = |table, key: u64| Change { table, key: key.to_be_bytes().to_vec(), value: Some(vec![7; 300]) };
        let acknowledge = move || {
            let mut out = std::io::stdout().lock();
            writeln!(out, "ack {n}").and_then(|()| out.flush()).expect("the parent listens");
        };
        store.submit(vec![put("n", n), put("twin", n)], Box::new(acknowledge)).expect("queued");
        if n % 50 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn every_acknowledged_change_survives_twenty_kills() {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kill.redb");
    let _ = std::fs::remove_file(&path);
    let mut acknowledged = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["kill::child", "--exact", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let killer = {
            let pid = child.id().to_string();
            let after = Duration::from_millis(40 + 37 * kill % 200);
            move || {
                std::thread::sleep(after);
                Command::new("kill").args(["-9", &pid]).status().expect("kill")
            }
        };
        let mut killer = Some(killer);
        let mut killing = None;
        for line in lines.lines().map_while(Result::ok) {
            if let Some(n) = line.rsplit("ack ").next().and_then(|n| n.parse::<u64>().ok()) {
                acknowledged = acknowledged.max(n + 1);
                // The clock starts with the first acknowledgement, when the file is open.
                if let Some(killer) = killer.take() {
                    killing = Some(std::thread::spawn(killer));
                }
            }
        }
        killing.expect("something was acknowledged").join().expect("killed");
        child.wait().expect("gone");
        let store = FileStore::open(&path).expect("opens after a kill");
        let (n, twin) = (store.load("n").expect("n"), store.load("twin").expect("twin"));
        assert!(n.len() as u64 >= acknowledged, "{} of {acknowledged} are there", n.len());
        assert_eq!(n, twin, "a batch is whole or absent");
    }
    assert!(acknowledged > KILLS);
    let _ = std::fs::remove_file(&path);
}

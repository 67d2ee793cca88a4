//! Whose memory and disk has which keys.
//!
//! ICC-02, by process: memory and disk of a running path server and of running consent servers, searched for every key
//! of the realm: the path server has its identity alone; a consent server no other provider's keys.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::harness::Row;
use crate::common::eventually;

/// The secret of a key file, as octets.
fn secret(path: &Path) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(path).expect("a key file");
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("secret = "));
    let octets = |hex: &str| -> Vec<u8> {
        let hex = hex.trim_matches('"');
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal")).collect()
    };
    lines.map(octets).collect()
}

/// Everything that a process has in memory and may write.
fn memory(id: u32) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).expect("its maps");
    let mut file = fs::File::open(format!("/proc/{id}/mem")).expect("its memory: the tests run as its user");
    let mut all = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, mode) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !mode.starts_with("rw") {
            continue;
        }
        let Some((from, to)) = range.split_once('-') else { continue };
        let (from, to) = (u64::from_str_radix(from, 16).unwrap_or(0), u64::from_str_radix(to, 16).unwrap_or(0));
        if file.seek(SeekFrom::Start(from)).is_err() {
            continue;
        }
        let mut area = vec![0; usize::try_from(to - from).unwrap_or(0)];
        let mut have = 0;
        while let Ok(read @ 1..) = file.read(&mut area[have..]) {
            have += read;
        }
        all.extend_from_slice(&area[..have]);
    }
    all
}

fn has(haystack: &[u8], needle: &[u8]) -> bool {
    let first = needle[0];
    let mut at = 0;
    while let Some(next) = haystack[at..].iter().position(|octet| *octet == first) {
        at += next;
        if haystack[at..].starts_with(needle) {
            return true;
        }
        at += 1;
    }
    false
}

/// All files of a folder.
fn disk(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        all.extend(fs::read(entry.expect("a file").path()).unwrap_or_default());
    }
    all
}

fn hex(octets: &[u8]) -> Vec<u8> {
    octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>().into_bytes()
}

#[test]
fn a_path_server_has_no_key_but_its_identity_and_a_consent_server_has_none_of_another_provider() {
    let row = Row::new("secrets").settled();
    eventually("proofs were made", || row.is_consented("c"));
    let path = |file: &str| row.realm.path(file);
    let mut everybody: Vec<(String, Vec<u8>)> = Vec::new();
    for file in [
        "realm/realm.key",
        "realm/identity.key",
        "paths/identity.key",
        "consent-b/identity.key",
        "consent-c/identity.key",
        "a/identity.key",
        "a/ids.key",
        "a/router.key",
        "a/tags.key",
        "b/identity.key",
        "b/ids.key",
        "b/router.key",
        "b/tags.key",
        "c/identity.key",
        "c/ids.key",
        "c/router.key",
        "c/tags.key",
    ] {
        everybody.extend(secret(&path(file)).into_iter().map(|secret| (file.to_owned(), secret)));
    }
    let assert_only = |who: &str, id: u32, own: &[&str]| {
        let (memory, disk) = (memory(id), disk(&path(who)));
        assert!(memory.len() > 1 << 20, "its memory was read");
        for (file, secret) in &everybody {
            let is_there = has(&memory, secret) || has(&memory, &hex(secret));
            let is_on_disk = has(&disk, secret) || has(&disk, &hex(secret));
            if own.contains(&file.as_str()) {
                // The search finds what is there; otherwise it would show nothing.
                assert!(is_there, "{who} has {file} in memory");
            } else {
                assert!(!is_there, "{who} has {file} in memory");
                assert!(!is_on_disk || file.starts_with(who), "{who} has {file} on disk");
            }
        }
    };
    assert_only("paths", row.path_server.id(), &["paths/identity.key"]);
    assert_only("consent-b", row.consent[0].id(), &["consent-b/identity.key", "b/tags.key"]);
    assert_only("consent-c", row.consent[1].id(), &["consent-c/identity.key", "c/tags.key"]);
}

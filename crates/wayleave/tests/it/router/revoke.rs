//! Lists of revocations as `cap revoke-list` makes them, by themselves and read by a router.
//!
//! PLA, revocations: lists by `cap revoke-list`: added to, lifted, 20,000 entries (1,400,000 by
//! `WAYLEAVE_REVOCATIONS`); damaged, of another signer, while another writes: the router takes over each; what cannot
//! be continued stays.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::platypus::revocation::{Sources, sign_whole};
use wayleave_lab::netns;
use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::Identity;

use super::common::{Folder, eventually};
use super::platypus::{HOST, ICMP, LAST, PLATYPUS, Socket, lay_out, packet, start};

/// Entries of the long list; 1,400,000 with `WAYLEAVE_REVOCATIONS=1400000`.
fn many() -> u32 {
    std::env::var("WAYLEAVE_REVOCATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000)
}

fn json(folder: &Folder, arguments: &[&str]) -> Value {
    let output = folder.run(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What a command says that must fail.
fn fails(folder: &Folder, code: i32, arguments: &[&str]) -> String {
    let output = folder.run(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).replace("\n  │ ", " ")
}

/// Makes who signs, and gives the public key.
fn signer(folder: &Folder, file: &str) -> String {
    json(folder, &["keys", "new", file])["sign"].as_str().expect("a key").to_owned()
}

fn revoke(folder: &Folder, arguments: &[&str]) -> Value {
    json(folder, &[&["cap", "revoke-list", "revoked", "--key", "signer.key"], arguments].concat())
}

#[test]
fn a_list_is_added_to_and_printed_as_it_is_read() {
    let folder = Folder::new("revoke-list");
    let key = signer(&folder, "signer.key");
    let listed = || json(&folder, &["cap", "revoked", "revoked", "--key", &key]);
    let first = revoke(&folder, &["9/3", "7", "7"]);
    assert_eq!((&first["entries"], first["key"].as_str()), (&2.into(), Some(&*key)));
    folder.write("more", "# entries\n\n9/3/5@24:4294967290\n 12 \n");
    let second = revoke(&folder, &["--from", "more", "--lift", "7"]);
    assert!(second["sequence"].as_u64() > first["sequence"].as_u64(), "{second}");
    assert_eq!(listed()["entries"], serde_json::json!(["9/3", "9/3/5@24:4294967290", "12"]));
    // What is printed is read again.
    let printed = folder.run(&["cap", "revoked", "revoked", "--key", &key]).stdout;
    std::fs::write(folder.0.join("printed"), printed).expect("written");
    assert_eq!(revoke(&folder, &["--replace", "--from", "printed"])["entries"], 3);
    // An entry for an epoch that is long over leaves by itself.
    let after = revoke(&folder, &["5@4:1"]);
    assert_eq!((&after["entries"], &after["expired"]), (&3.into(), &1.into()));
    // Others may read it, and nobody needs to write it.
    let mode = std::fs::metadata(folder.0.join("revoked")).expect("the list").mode();
    assert_eq!(mode & 0o600, 0o600);
    assert!(!folder.0.join("revoked.new").exists());
}

/// Of a key server that was left, for instance: whoever revokes by hand lets nobody send from elsewhere.
#[test]
fn source_prefixes_stay_in_a_list_until_it_is_replaced() {
    let folder = Folder::new("revoke-sources");
    let key = signer(&folder, "signer.key");
    let identity = Identity::load(&folder.0.join("signer.key")).expect("a key file");
    let signing = SigningKey::from_seed(&Secret::new(*identity.signing_seed()));
    let principal = Principal::new(7).expect("24 bits");
    let prefixes = vec!["203.0.113.0/24".parse().expect("a prefix")];
    let sources = [
        Sources { principal, delegation: None, delegates_any: true, prefixes },
        Sources { principal, delegation: DelegationId::new(3), delegates_any: false, prefixes: Vec::new() },
    ];
    let (list, signature) = sign_whole(&signing, 1, unix_now(), &[], &sources);
    std::fs::write(folder.0.join("revoked"), [&signature[..], &list].concat()).expect("written");
    assert_eq!(revoke(&folder, &["9"])["entries"], 1);
    let listed = || json(&folder, &["cap", "revoked", "revoked", "--key", &key])["sources"].clone();
    let expected = serde_json::json!([
        { "principal": 7, "delegation": null, "prefixes": ["203.0.113.0/24"], "delegate_sources": "any" },
        { "principal": 7, "delegation": 3, "prefixes": [], "delegate_sources": "own" },
    ]);
    assert_eq!(listed(), expected);
    let printed = folder.run(&["cap", "revoked", "revoked", "--key", &key]).stdout;
    let printed = String::from_utf8(printed).expect("text");
    assert!(printed.contains("# sources 7 203.0.113.0/24 (delegations: any)\n# sources 7/3\n9\n"), "{printed}");
    revoke(&folder, &["--replace", "9"]);
    assert_eq!(listed(), serde_json::json!([]));
}

#[test]
fn a_list_that_cannot_be_continued_stays_unchanged() {
    let folder = Folder::new("revoke-refused");
    let (key, other) = (signer(&folder, "signer.key"), signer(&folder, "other.key"));
    revoke(&folder, &["7"]);
    let list = std::fs::read(folder.0.join("revoked")).expect("the list");
    let with = |key, more: &[&'static str]| [&["cap", "revoke-list", "revoked", "--key", key], more].concat();
    assert!(fails(&folder, 1, &with("other.key", &["8"])).contains("its signature does not match the key"));
    assert!(fails(&folder, 2, &with("signer.key", &["--lift", "8"])).contains("8 is not in revoked"));
    assert!(fails(&folder, 2, &with("signer.key", &["16777216"])).contains("expected PRINCIPAL"));
    folder.write("lines", "7\nseven\n");
    assert!(fails(&folder, 1, &with("signer.key", &["--from", "lines"])).contains("lines, line 2: expected PRINCIPAL"));
    assert!(
        fails(&folder, 1, &["cap", "revoked", "revoked", "--key", &other]).contains("signature does not match the key")
    );
    // What is cut behind a comment's thousandth octet would be an entry.
    folder.write("lines", &format!("#{}7\n", " ".repeat(1_023)));
    assert!(
        fails(&folder, 1, &with("signer.key", &["--from", "lines"])).contains("lines, line 1: more than 1024 octets")
    );
    // Another one is at it.
    folder.write("revoked.new", "");
    assert!(fails(&folder, 1, &with("signer.key", &["8"])).contains("revoked.new"));
    assert_eq!(std::fs::read(folder.0.join("revoked")).expect("the list"), list);
    let mut damaged = list.clone();
    *damaged.last_mut().expect("octets") ^= 1;
    for (octets, reason) in
        [(&damaged[..], "signature does not match"), (&list[..70], "signature does not match"), (&[], "too short")]
    {
        std::fs::write(folder.0.join("revoked"), octets).expect("written");
        assert!(fails(&folder, 1, &["cap", "revoked", "revoked", "--key", &key]).contains(reason), "{reason}");
    }
}

#[test]
fn a_router_takes_over_what_the_command_signs() {
    if netns::enter_for_test("router::revoke::a_router_takes_over_what_the_command_signs").is_none() {
        return;
    }
    let folder = lay_out();
    let key = signer(&folder, "signer.key");
    let router = start(&folder, 0, &format!("revocations = {{ file = \"revoked\", key = \"{key}\" }}\n"));
    let (mut host, mut last) = (Socket::new(HOST, ICMP), Socket::new(LAST, PLATYPUS));
    let taken = |list: &Value| {
        let line = format!("entries={} sequence={}", list["entries"], list["sequence"]);
        eventually("the list is taken over", || router.log().contains(&line));
    };
    let mut number = 0;
    let mut passes = || {
        number += 1;
        let before = router.count("decided", "forwarded");
        let refused = || router.count("reasons", "revoked") + router.count("reasons", "revocations-unknown");
        let refused_before = refused();
        host.send(&packet(&[0], number, 100));
        let passed = || router.count("decided", "forwarded") > before;
        eventually("the packet is decided", || passed() || refused() > refused_before);
        passed()
    };
    assert!(!passes(), "nothing passes without a list");
    let nothing = "nothing passes until this router has a list of revocations in revoked";
    eventually("it is not ready", || {
        let answer = router.ask("/readyz");
        answer.starts_with("HTTP/1.0 503") && answer.contains(nothing)
    });
    let shown = String::from_utf8(router.show(&["show", "status"]).stdout).expect("text");
    assert!(shown.contains(&format!("not ready\n\nproblem: {nothing}")), "{shown}");
    assert_eq!(shown.matches(nothing).count(), 1, "{shown}");
    let status = router.status();
    assert!(status["problems"][0].as_str().is_some_and(|problem| problem.starts_with(nothing)), "{status}");
    eventually("the log has it too", || router.log().contains(nothing));
    taken(&revoke(&folder, &[]));
    eventually("it is ready", || router.ask("/readyz").starts_with("HTTP/1.0 200"));
    assert_eq!(router.status()["problems"], serde_json::json!([]));
    assert!(passes());
    // The packet's principal is the last of many.
    let mut lines = String::new();
    (0..many()).for_each(|number| writeln!(lines, "{}/{number}", 1_000 + number % 90_000).expect("written"));
    folder.write("lines", &lines);
    let list = revoke(&folder, &["--from", "lines"]);
    assert_eq!(list["entries"], many());
    taken(&list);
    assert!(passes());
    let list = revoke(&folder, &["7"]);
    assert_eq!(list["entries"], many() + 1);
    taken(&list);
    assert!(!passes(), "revoked");
    taken(&revoke(&folder, &["--lift", "7"]));
    assert!(passes());
    assert_eq!(last.all(3).len(), 3);
}

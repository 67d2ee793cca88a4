//! The folder of signed objects as an attesting proxy finds it: hybrid, older, with something withheld, after its state is lost.
//!
//! KCX, the folder goes back: an older folder put back while the proxy is down, a record withheld and the state file
//! lost: what was known decides, with an alarm in the log and in `show status`.
//! KCX, halves of an anchor: made, shown, one removed, stripped from an object, spoilt: both are required; the reader
//! of one half goes on; refused with the reason.
//! KCX, an anchor's file that changes: the second key taken out, another one beside the same first one, before a start
//! and while the proxy runs: refused with the reason, and accepted once with the clear word, with an alarm for
//! signatures that nobody checks.
//! KCX, junk in the folder: a pipe, a link to a device, a hundred files of the greatest length: refused; nothing waits
//! for them, no memory is filled with them; few lines in the log.

use std::fs;

use crate::common::attesting::{PREFIX, Proxy, own, prefix, speaker};
use crate::common::{Folder, eventually, free, text};

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_497;
const LATER: &str = "198.51.100.0/24";

/// A folder with keys and profiles of two ASes, and a record of the first, under an anchor made with `more`.
fn with_keys(name: &str, more: &[&str]) -> Folder {
    let folder = Folder::new(&format!("objects-{name}"));
    folder.ok(&[&["keys", "anchor", "anchor.key", "--name", "lab"], more].concat());
    for asn in [ORIGIN, LAST] {
        let asn = asn.to_string();
        folder.ok(&["keys", "attest", &format!("{asn}.key"), "--asn", &asn]);
        folder.sign(&["profile", "--attest", &format!("{asn}.key")]);
    }
    folder.sign(&["record", "--asn", &ORIGIN.to_string(), "--prefix", PREFIX, "--attested", "strict"]);
    folder
}

/// Copies the files of `from` into `to`.
fn copy(folder: &Folder, from: &str, to: &str) {
    let (from, to) = (folder.0.join(from), folder.0.join(to));
    fs::create_dir_all(&to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// An error without the breaks of its lines.
fn plain(said: &str) -> String {
    said.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn known(proxy: &Proxy) -> serde_json::Value {
    proxy.json(&["show", "status"])["known"].clone()
}

fn alarms(proxy: &Proxy) -> String {
    known(proxy)["alarms"].to_string()
}

/// A proxy of the last AS that listens to nobody.
fn reader(folder: &Folder) -> Proxy {
    let proxy = Proxy::new(folder, LAST, &format!("listen = \"{}\", asn = {ORIGIN}", free()), "");
    eventually("the proxy answers", || known(&proxy)["objects"].is_number());
    proxy
}

#[test]
fn an_older_folder_put_back_while_the_proxy_was_down_changes_nothing_and_is_an_alarm() {
    let folder = with_keys("older", &["--classical"]);
    copy(&folder, "objects", "backup");
    // The record is replaced: the prefix is another's now.
    let later = ["record", "--asn", &ORIGIN.to_string(), "--prefix", LATER, "--attested", "strict", "--replace"];
    folder.sign(&later);
    folder.sign(&["record", "--asn", "64499", "--prefix", PREFIX]);
    let meet = free();
    let mut a = Proxy::new(&folder, ORIGIN, &format!("connect = \"{meet}\""), "");
    a.announce_unauthorised();
    let mut b = Proxy::new(&folder, LAST, &format!("listen = \"{meet}\""), "");
    eventually("it is known", || known(&b)["objects"] == 5);
    assert_eq!((known(&b)["kept"].clone(), known(&b)["alarms"].clone()), (0.into(), serde_json::json!([])));
    b.kill();
    fs::remove_dir_all(folder.0.join("objects")).expect("removed");
    copy(&folder, "backup", "objects");
    b.start();
    eventually("the proxy answers", || known(&b)["objects"] == 5);
    // The two records and the manifest are those that were known, and the folder's older ones do not count.
    assert_eq!(known(&b)["kept"], 3);
    let said = alarms(&b);
    for what in ["the record of AS64496", "the record of AS64499", "the manifest of the trust anchor"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    assert!(said.contains("the folder of objects no longer has it") && said.contains("of it instead"), "{said}");
    assert!(
        b.log().contains("the record of AS64496") && b.log().contains("stays in force until it expires"),
        "{}",
        b.log()
    );
    // What the record says still decides: the route that the older one allows is invalid.
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    eventually("the route is judged", || b.class() == "invalid");
    assert!(!right.learned().contains_key(&prefix()));
}

#[test]
fn a_withheld_object_is_named_by_the_manifest_also_after_the_state_file_is_lost() {
    let folder = with_keys("withheld", &["--classical"]);
    let mut b = reader(&folder);
    assert_eq!(known(&b)["withheld"], 0, "{}", alarms(&b));
    // The folder loses the record, and the proxy its state.
    b.kill();
    fs::remove_file(folder.0.join(format!("objects/record-{ORIGIN}.object"))).expect("removed");
    fs::remove_file(folder.0.join(format!("as{LAST}.redb"))).expect("removed");
    b.start();
    eventually("the proxy answers", || known(&b)["withheld"] == 1);
    let named = "the folder of objects withholds the record of AS64496 with sequence";
    assert!(alarms(&b).contains(named) && b.log().contains(named), "{}", b.log());
    assert!(text(&b.ask(&["show", "status"]).stdout).contains("withholds the record"));
    assert!(b.log().contains("the state file remembers no signed object: it is new, or was lost"), "{}", b.log());
    let listed = folder.ok(&["keys", "objects", "--anchor", "anchor.pub", "--objects", "objects"]);
    assert!(listed.contains("manifest") && listed.contains(&format!("alarm: {named}")), "{listed}");
    // The publisher's next manifest goes on listing it, and says so.
    let record =
        ["keys", "record", "--asn", "64499", "--prefix", LATER, "--anchor", "anchor.key", "--objects", "objects"];
    let said = text(&folder.run(&record).stderr);
    assert!(said.contains("the last manifest lists the record of AS64496"), "{said}");
    b.signal("-HUP");
    eventually("the new record counts", || known(&b)["objects"] == 4);
    assert_eq!(known(&b)["withheld"], 1);
    // Without a manifest nothing shows it, and that is said too.
    b.kill();
    for file in ["objects/manifest.object", &format!("as{LAST}.redb")] {
        fs::remove_file(folder.0.join(file)).expect("removed");
    }
    b.start();
    eventually("the missing list is an alarm", || known(&b)["manifest_alarms"] == 1);
    assert!(alarms(&b).contains("no manifest of the trust anchor: nothing shows"), "{}", alarms(&b));
}

#[test]
fn both_halves_of_an_anchor_are_made_shown_checked_and_required() {
    let folder = with_keys("hybrid", &[]);
    let public = fs::read_to_string(folder.0.join("anchor.pub")).expect("a file");
    let second = public.lines().find_map(|line| line.strip_prefix("post_quantum_key = ")).expect("a second key");
    let second = second.trim_matches('"');
    let shown = folder.ok(&["keys", "show", "anchor.key"]);
    assert!(
        shown.contains("anchor  anchor:kc-ed25519:") && shown.contains(&format!("anchor  anchor:{second}")),
        "{shown}"
    );
    let list = |anchor: &str| folder.ok(&["keys", "objects", "--anchor", anchor, "--objects", "objects"]);
    assert!(
        list("anchor.pub").contains("manifest") && !list("anchor.pub").contains("refused"),
        "{}",
        list("anchor.pub")
    );
    // A reader that has the first half alone takes them too.
    let first: String =
        public.lines().filter(|line| !line.starts_with("post_quantum")).map(|line| format!("{line}\n")).collect();
    folder.write("first.pub", &first);
    assert!(!list("first.pub").contains("refused"), "{}", list("first.pub"));
    // The second half of the signature stripped: refused by who has both.
    let file = folder.0.join(format!("objects/record-{ORIGIN}.object"));
    let mut octets = fs::read(&file).expect("an object");
    octets[0] = 1;
    octets.truncate(octets.len() - 7_856);
    fs::write(&file, octets).expect("written");
    let listed = list("anchor.pub");
    assert!(listed.contains("refused: objects/record-64496.object") && listed.contains("alarm: "), "{listed}");
    // The private file belongs to its public one.
    folder.write("anchor.pub", &first);
    let said = folder.fails(1, &["keys", "manifest", "--anchor", "anchor.key", "--objects", "objects"]);
    assert!(said.contains("do not belong together"), "{said}");
    // `check` reads the anchor as `run` does.
    let config = "[attest]\nasn = 64496\nstate = \"p.redb\"\n[keys]\nsigning = \"64496.key\"\nanchor = \"anchor.pub\"\nobjects = \"objects\"\n";
    folder.write("p.toml", config);
    folder.write("anchor.pub", &public.replace(second, "slh-dsa-sha2-128s:77"));
    let said = folder.fails(1, &["check", "p.toml"]);
    assert!(said.contains("its post-quantum key is not `slh-dsa-sha2-128s:`"), "{said}");
}

/// Who can forge Ed25519 signatures and write the anchor's file would begin with taking the second key out, or with its own.
#[test]
fn an_anchor_that_loses_or_changes_its_second_key_is_refused_unless_the_configuration_says_so() {
    let folder = with_keys("stripped", &[]);
    let public = fs::read_to_string(folder.0.join("anchor.pub")).expect("a file");
    let is_second = |line: &&str| line.starts_with("post_quantum_key");
    let stripped: String = public.lines().filter(|line| !is_second(line)).map(|line| format!("{line}\n")).collect();
    folder.ok(&["keys", "anchor", "other.key", "--name", "other"]);
    let other = fs::read_to_string(folder.0.join("other.pub")).expect("a file");
    let [own, others] = [&public, &other].map(|file| file.lines().find(is_second).expect("a second key").to_owned());
    let mut b = reader(&folder);
    assert_eq!((known(&b)["objects"].clone(), alarms(&b)), (4.into(), "[]".to_owned()));
    b.kill();
    let forged = [
        (stripped.clone(), "no longer has its post-quantum key"),
        (public.replace(&own, &others), "has another post-quantum key beside the same Ed25519 key"),
        // Another anchor altogether, with one key, and with two.
        (other.replace(&others, ""), "no longer has its post-quantum key"),
        (other.clone(), "it has another Ed25519 key"),
    ];
    for (text, why) in &forged {
        folder.write("anchor.pub", text);
        let said = plain(&folder.fails(1, &["run", "attest", "--config", &format!("as{LAST}.toml")]));
        assert!(said.contains(why) && said.contains("trust_changed_anchor = true"), "{said}");
    }
    // While it runs, what was known goes on to count.
    folder.write("anchor.pub", &public);
    b.start();
    eventually("the proxy answers", || known(&b)["objects"] == 4);
    folder.write("anchor.pub", &stripped);
    b.signal("-HUP");
    eventually("it is refused", || b.log().contains("no longer has its post-quantum key"));
    assert_eq!(known(&b)["objects"], 4);
    assert!(b.log().contains("what was known before still counts"), "{}", b.log());
    folder.write("anchor.pub", &other);
    b.signal("-HUP");
    eventually("another anchor is refused, and a problem", || {
        text(&b.ask(&["show", "status"]).stdout).contains("has another Ed25519 key")
    });
    assert_eq!(known(&b)["objects"], 4);
    // The folder alone never keeps a proxy from starting: `check` warns.
    let said = plain(&folder.ok(&["check", &format!("as{LAST}.toml")]));
    let refused = "4 of 4 objects are refused: they are signed by another anchor than anchor.pub";
    assert!(said.contains(refused), "{said}");
    b.kill();
    // Where nothing is remembered the proxy cannot know, and says what it sees. The right file comes back without a word.
    let state = folder.0.join(format!("as{LAST}.redb"));
    fs::rename(&state, folder.0.join("kept.redb")).expect("moved");
    b.start();
    eventually("a problem", || alarms(&b).contains(refused));
    assert!(text(&b.ask(&["why", PREFIX]).stdout).contains(refused));
    folder.write("anchor.pub", &public);
    b.signal("-HUP");
    eventually("the right one counts", || known(&b)["objects"] == 4 && alarms(&b) == "[]");
    b.kill();
    fs::rename(folder.0.join("kept.redb"), &state).expect("moved back");
    folder.write("anchor.pub", &stripped);
    // The clear word, after which the anchor has one key; that signatures are not checked is said.
    let config = fs::read_to_string(folder.0.join(format!("as{LAST}.toml"))).expect("a file");
    folder.write(&format!("as{LAST}.toml"), &config.replace("[keys]\n", "[keys]\ntrust_changed_anchor = true\n"));
    let said = text(&folder.run(&["check", &format!("as{LAST}.toml")]).stdout);
    assert!(said.contains("remove the line once the changed anchor is in force"), "{said}");
    b.start();
    eventually("it starts", || known(&b)["objects"] == 4);
    assert!(
        alarms(&b).contains("4 objects of the trust anchor have post-quantum signatures that nobody checks"),
        "{}",
        alarms(&b)
    );
    b.kill();
    folder.write(&format!("as{LAST}.toml"), &config);
    b.start();
    eventually("it starts without the word", || known(&b)["objects"] == 4);
    b.kill();
    // One start suffices also where the objects of the new anchor are not here yet.
    folder.write("anchor.pub", &other);
    folder.write(&format!("as{LAST}.toml"), &config.replace("[keys]\n", "[keys]\ntrust_changed_anchor = true\n"));
    b.start();
    eventually("it starts with the new anchor", || alarms(&b).contains(refused));
    b.kill();
    folder.write(&format!("as{LAST}.toml"), &config);
    b.start();
    eventually("it starts with it again", || alarms(&b).contains(refused));
}

/// What is easily mixed up or mistyped when objects are signed is refused or named, and no key is thought lost for it.
#[test]
fn an_anchors_two_files_are_told_apart_and_mistakes_in_objects_are_named() {
    let folder = with_keys("mistakes", &["--classical"]);
    let asn = ORIGIN.to_string();
    let with = |anchor: &str, more: &[&str]| -> Vec<String> {
        let all = [&["keys"], more, &["--anchor", anchor, "--objects", "objects"]].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let fails = |code: i32, arguments: Vec<String>| {
        plain(&folder.fails(code, &arguments.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    // The public file where the private one belongs, and the other way round.
    let record = ["record", "--asn", &asn, "--prefix", LATER, "--add"];
    let said = fails(1, with("anchor.pub", &record));
    assert!(said.contains("anchor.pub is the public file of a trust anchor") && said.contains("anchor.key"), "{said}");
    assert!(!said.contains("chmod"), "{said}");
    let said = fails(1, with("anchor.key", &["objects"]));
    assert!(said.contains("anchor.key is the private file of a trust anchor"), "{said}");
    assert!(said.contains("anchor.pub") && !said.contains("unknown field"), "{said}");
    // A validity of no days.
    for days in ["--days", "--manifest-days"] {
        fails(2, with("anchor.key", &[&record[..], &[days, "0"]].concat()));
    }
    // A key without its AS.
    let shown = folder.ok(&["keys", "show", &format!("{asn}.key")]);
    let key = shown.split_whitespace().find(|word| word.starts_with("attest:")).expect("a key").to_owned();
    let said = fails(2, with("anchor.key", &["profile", "--key", &key]));
    assert!(said.contains("`--key` does not name one") && said.contains("--asn"), "{said}");
    // One key for two ASes: signed, and said by the signer and by every reader.
    let arguments = with("anchor.key", &["profile", "--asn", "64499", "--key", &key]);
    let output = folder.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(text(&output.stderr).contains("the profile of AS64496 lists a key of this one, too"), "{output:?}");
    let listed = folder.ok(&["keys", "objects", "--anchor", "anchor.pub", "--objects", "objects"]);
    assert!(listed.contains("alarm: AS64496 and AS64499 list the same key"), "{listed}");
    // The anchor is no AS.
    assert!(listed.lines().any(|line| line.starts_with("manifest  - ")), "{listed}");
    // `check` takes its file as other commands do.
    folder.write("p.toml", "[attest]\nasn = 64496\nstate = \"p.redb\"\n[keys]\nsigning = \"64496.key\"\nanchor = \"anchor.pub\"\nobjects = \"objects\"\n");
    let [one, other] =
        [&["check", "--config", "p.toml"][..], &["check", "p.toml"]].map(|arguments| folder.run(arguments));
    assert_eq!((one.status.code(), text(&one.stderr)), (other.status.code(), text(&other.stderr)));
}

/// Who may write the folder has no key: what he puts there is refused, and nothing waits for it or is filled with it.
#[test]
fn pipes_devices_and_endless_files_in_the_folder_keep_nobody_waiting() {
    let folder = with_keys("junk", &["--classical"]);
    let objects = folder.0.join("objects");
    let made = std::process::Command::new("mkfifo").arg(objects.join("a.object")).status().expect("mkfifo");
    assert!(made.success());
    std::os::unix::fs::symlink("/dev/zero", objects.join("b.object")).expect("a link");
    for number in 0..100u8 {
        // A manifest of the greatest length, as far as the first octets say; sparse, so that only its reader pays for it.
        let file = fs::File::create(objects.join(format!("c{number}.object"))).expect("a file");
        std::io::Write::write_all(&mut &file, &[1, 4, 0, 0, 0, number]).expect("written");
        file.set_len(10 << 20).expect("long");
    }
    let b = reader(&folder);
    assert_eq!((known(&b)["objects"].clone(), known(&b)["refused"].clone()), (4.into(), 102.into()));
    assert!(
        b.log().contains("not a file") && b.log().contains("more files are ignored, and not listed"),
        "{}",
        b.log()
    );
    let status = fs::read_to_string(format!("/proc/{}/status", b.id())).expect("a process");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 300 << 10, "{kib} KiB");
}

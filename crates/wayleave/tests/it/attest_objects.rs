//! The folder of signed objects as an attesting proxy finds it: hybrid, older, with something withheld, after its state is lost.

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
    folder.sign(&["record", "--asn", &ORIGIN.to_string(), "--prefix", LATER, "--attested", "strict"]);
    folder.sign(&["record", "--asn", "64499", "--prefix", PREFIX]);
    let meet = free();
    let a = Proxy::new(&folder, ORIGIN, &format!("connect = \"{meet}\""), "");
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
    assert!(shown.contains("anchor  kc-ed25519:") && shown.contains(&format!("anchor  {second}")), "{shown}");
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

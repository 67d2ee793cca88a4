//! Lists of members that exchanges have: what `members import` makes of them, how requests are compared with them, and a trial of a real
//! exchange's members.
//!
//! OPS, imports: `members import`, `propose --expect`; a list with faults, a folder that exists, requests that differ in AS, name or
//! address, another limit: nothing is written, and nothing is proposed or signed, with each difference.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Folder, text};

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/imports").join(name);
    path.to_str().expect("text").to_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Whether a message says it: its lines are broken where they are long, also within a word.
fn says(said: &str, expected: &str) -> bool {
    let squeezed = |text: &str| text.chars().filter(|c| !c.is_whitespace() && *c != '│').collect::<String>();
    squeezed(said).contains(&squeezed(expected))
}

#[test]
fn an_exchanges_list_becomes_folders_of_members_and_a_list_for_its_operators() {
    let folder = Folder::new("import-clients");
    let list = data("arouteserver.clients.ams-ix.yml");
    let said = folder.ok(&["members", "import", &list, "--dry-run"]);
    assert!(says(&said, "7 members of 7 ASes; 6 with a prefix limit"), "{said}");
    assert!(says(&said, "1-1-internet-ag") && says(&said, "nothing was written"), "{said}");
    let made = json(&folder.ok(&["members", "import", &list, "--out", "imported", "--exchange", "test-ix", "--json"]));
    assert_eq!((&made["addresses"], &made["members"][0]["max_prefix"]), (&12.into(), &6000.into()), "{made}");
    let csv = fs::read_to_string(folder.0.join("imported/members.csv")).expect("a list");
    assert!(csv.contains("1-1-internet-ag,8560,80.249.208.220 2001:7f8:1::a500:8560:1,6000,5000,1000,"), "{csv}");
    // Nothing is overwritten, a file with faults writes nothing, and an AS that is not there is named.
    assert!(folder.fails(1, &["members", "import", &list, "--out", "imported"]).contains("exists"));
    let faulty = fs::read_to_string(&list).expect("a list").replace("asn: 197219", "asn: 23456");
    folder.write("faulty.yml", &faulty);
    let said = folder.fails(1, &["members", "import", "faulty.yml", "--out", "other"]);
    assert!(says(&said, "clients[4].asn: AS23456 is reserved") && says(&said, "clients[5].asn"), "{said}");
    assert!(says(&said, "nothing was written") && !folder.0.join("other").exists(), "{said}");
    let said = folder.fails(2, &["members", "import", &list, "--dry-run", "--asn", "64511"]);
    assert!(says(&said, "has no member of AS64511"), "{said}");
    let said = folder.ok(&["members", "import", &list, "--dry-run", "--asn", "61180"]);
    assert!(says(&said, "a2b-internet-2") && !says(&said, "23media"), "{said}");
    assert!(folder.fails(2, &["members", "import", &list]).contains("--out"));
}

#[test]
fn rules_and_what_is_not_taken_over_are_written_and_no_password() {
    let folder = Folder::new("import-settings");
    let client = |asn: u32, more: &str| {
        format!(
            "- asn: {asn}\n  ip: 192.0.2.{}\n  password: s3cret\n  cfg:\n    add_path: true\n    filtering:\n      \
             black_list_pref: [{{prefix: 203.0.113.0, length: 24}}]\n{more}",
            asn - 64_496
        )
    };
    folder
        .write("clients.yml", &format!("clients:\n{}{}", client(64_497, ""), client(64_498, "  description: Bravo\n")));
    let said = folder.ok(&["members", "import", "clients.yml", "--out", "imported"]);
    assert!(says(&said, "not taken over: `add_path` of as64497, bravo: ADD-PATH is not negotiated"), "{said}");
    assert!(says(&said, "not taken over: `password` of as64497, bravo: not copied"), "{said}");
    let file = |name: &str| fs::read_to_string(folder.0.join("imported").join(name)).expect("a file");
    let [member, policy, receive, csv] =
        ["bravo/member.toml", "bravo/policy.toml", "receive.toml", "members.csv"].map(file);
    assert!(policy.contains("prefix = [\"203.0.113.0/24+\"]\nannounce = \"none\""), "{policy}");
    assert!(receive.contains("peer = [64497, 64498]") && receive.contains("reject = true"), "{receive}");
    assert!(
        member.contains("#   add_path = true: ADD-PATH") && member.contains("#   password: not copied"),
        "{member}"
    );
    for text in [said, member, policy, receive, csv] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    assert!(!folder.ok(&["members", "import", "clients.yml", "--dry-run", "--json"]).contains("s3cret"));
}

#[test]
fn a_request_that_is_not_what_the_list_has_is_refused_unless_it_is_named() {
    let folder = Folder::new("import-expect");
    let operators = ["op1.key", "op2.key"]
        .map(|key| json(&folder.ok(&["keys", "new", key, "--json"]))["sign"].as_str().expect("a key").to_owned());
    let init = ["members", "init", "members", "--exchange", "test-ix", "--operator1", &operators[0], "--operator2"];
    folder.ok(&[&init[..], &[&operators[1]]].concat());
    let list = data("arouteserver.clients.ams-ix.yml");
    folder.ok(&["members", "import", &list, "--out", "imported", "--exchange", "test-ix"]);
    folder.ok(&["keys", "new", "own.key"]);
    let request = ["members", "request", "own.request", "--key", "own.key", "--member"];
    let request = [&request[..], &["imported/1-1-internet-ag/member.toml"]].concat();
    let propose = ["members", "propose", "members", "--operator", "op1.key", "--out", "p", "--request", "own.request"];
    let propose = [&propose[..], &["--expect", "imported/members.csv"]].concat();

    // Another address, another AS, another name.
    folder.ok(&[&request[..], &["--address", "80.249.208.221"]].concat());
    let said = folder.fails(1, &propose);
    assert!(says(&said, "addresses that are not in the list: 80.249.208.221"), "{said}");
    assert!(says(&said, "addresses of the list that are missing: 80.249.208.220, 2001:7f8:1::a500:8560:1"), "{said}");
    folder.ok(&[&request[..], &["--asn", "8561"]].concat());
    let said = folder.fails(1, &propose);
    assert!(
        says(&said, "the request of `1-1-internet-ag` is not what imported/members.csv has: AS8561, expected AS8560"),
        "{said}"
    );
    folder.ok(&[&request[..], &["--name", "one"]].concat());
    let said = folder.fails(1, &propose);
    assert!(says(&said, "no `one`, but `1-1-internet-ag`, AS8560 at 80.249.208.220"), "{said}");
    assert!(!folder.0.join("p").exists());
    folder.ok(&[&propose[..], &["--unexpected", "one", "--max-prefix", "one=5"]].concat());

    // What the list has: with its limit. The second operator does not sign another one.
    folder.ok(&request);
    folder.ok(&[&propose[..], &["--max-prefix", "1-1-internet-ag=9000", "--given-up"]].concat());
    let countersign = ["members", "countersign", "members", "p", "--operator", "op2.key", "--yes", "--expect"];
    let countersign = [&countersign[..], &["imported/members.csv"]].concat();
    let said = folder.fails(1, &countersign);
    assert!(says(&said, "a limit of 9000 prefixes, expected 6000"), "{said}");
    folder.ok(&[&propose[..], &["--given-up"]].concat());
    folder.ok(&countersign);
    let set = json(&folder.ok(&["members", "show", "members", "--json"]));
    let member = &set["members"][0];
    assert_eq!((&member["name"], &member["max_prefix"]), (&"1-1-internet-ag".into(), &6000.into()), "{set}");
    folder.write("broken.csv", "name,asn,addresses\nalpha,64497,192.0.2\n");
    let broken = [&propose[..9], &["--expect", "broken.csv"]].concat();
    assert!(folder.fails(1, &broken).contains("broken.csv:2: `192.0.2`"));
}

/// The first twenty routers of a real export: all that is made passes `check`.
#[test]
fn an_ixf_export_becomes_a_trial_of_its_first_twenty_members() {
    let folder = Folder::new("import-trial");
    let export = data("ixf-0.6.bcix.json");
    let said = folder.fails(1, &["exchange", "new", "trial", "--import", &export]);
    assert!(says(&said, "that say nothing of the route server") && says(&said, "--all"), "{said}");
    assert!(!folder.0.join("trial").exists());
    let said = folder.ok(&["exchange", "new", "trial", "--import", &export, "--all"]);
    assert!(says(&said, "The first 20 of 22 members of") && says(&said, "ip address add 192.0.2.$n/32"), "{said}");
    let set = json(&folder.ok(&["members", "show", "trial/party1/members", "--json"]));
    let members = set["members"].as_array().expect("members");
    assert_eq!(members.len(), 20);
    assert_eq!((&members[0]["name"], &members[0]["max_prefix"]), (&"as15169".into(), &15_750.into()), "{set}");
    assert_eq!((&members[4]["name"], &members[4]["held"]), (&"as2906-2".into(), &false.into()), "{set}");
    assert_eq!(members[19]["addresses"], serde_json::json!(["192.0.2.20"]), "{set}");
    let owners = members.iter().map(|member| member["name"].as_str().expect("a name"));
    for owner in ["party1", "party2"].into_iter().chain(owners) {
        let output = folder.run(&["check", &format!("trial/{owner}/wayleave.toml")]);
        assert_eq!(output.status.code(), Some(0), "{owner}: {}{}", text(&output.stdout), text(&output.stderr));
    }
    let bird = fs::read_to_string(folder.0.join("trial/as15169/bird.conf")).expect("a configuration");
    assert!(bird.contains("it is 193.178.185.100 and 2001:7f8:19:1::3b41:1"), "{bird}");
    // Fewer, or others; and what is no choice.
    let made = json(&folder.ok(&["exchange", "new", "few", "--import", &export, "--all", "--most", "2", "--json"]));
    assert_eq!(made["members"].as_array().map(Vec::len), Some(2), "{made}");
    let one = ["exchange", "new", "one", "--import", &export, "--all", "--asn", "2906", "--json"];
    let made = json(&folder.ok(&one));
    assert_eq!((&made["members"][0]["name"], &made["members"][1]["name"]), (&"as2906".into(), &"as2906-2".into()));
    for (more, expected) in [
        (&["--import", &export, "--all", "--most", "33"][..], "expected 1 to 32"),
        (&["--import", &export, "--member", "a=1@192.0.2.1"], "cannot be used with"),
        (&["--member", "a=1@192.0.2.1", "--all"], "--import FILE"),
        (&["--member", "a=1@192.0.2.1", "--most", "3"], "--import FILE"),
    ] {
        let said = folder.fails(2, &[&["exchange", "new", "none"], more].concat());
        assert!(says(&said, expected), "{more:?}: {said}");
        assert!(!folder.0.join("none").exists());
    }
}

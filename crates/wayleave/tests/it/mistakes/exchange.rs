//! Mistakes in the configurations of a party and of a member, which have both run: their states know a member set.
//!
//! OPS, mistakes: those of a party and a member that have run: each is named with line, cause and cure.
//! OPS, check --deep: a member and a party that run or not; another pin, another key, a party that is away; clocks:
//! reached as `run` would; no link is disturbed; each fault with its cure.

use std::fs;
use std::path::Path;
use std::time::Duration;

use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;

use super::{Mistake, each_is_named, elsewhere, mistake, with_mode};
use crate::common::{Folder, eventually};

const TIMEOUT: Duration = Duration::from_secs(30);

/// An exchange of two parties and two members that has run, and stopped; the folder of its configurations.
fn exchange(name: &str) -> (DemoExchange, Folder) {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state).expect("a folder");
    let layout = Layout::simulated(&state).expect("free ports");
    let mut exchange = DemoExchange::new(layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("files");
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    for member in &mut exchange.members[..2] {
        member.role.start().expect("a member that starts");
    }
    eventually("both members have a member set", || {
        exchange.members[..2].iter().all(|member| {
            member.ask("/api/v1/status").is_ok_and(|status| status["synced"] == true && status["member_set"].is_u64())
        })
    });
    for member in &mut exchange.members[..2] {
        assert!(member.role.stop(TIMEOUT));
    }
    for party in &mut exchange.parties {
        assert!(party.role.stop(TIMEOUT));
    }
    let folder = Folder(state.join("etc"));
    folder.ok(&["keys", "attest", "attest.key", "--asn", "64497"]);
    let whole = fs::read_to_string(folder.0.join("alpha.key")).expect("a file");
    with_mode(&folder, "half.key", &whole[..whole.len() / 2], 0o600);
    with_mode(&folder, "open.key", &whole, 0o644);
    folder.ok(&["keys", "new", "other.key", "--name", "other"]);
    fs::create_dir(folder.0.join("folder")).expect("made");
    folder.write("file", "neither a state nor a set");
    folder.write("open.password", "x");
    (exchange, folder)
}

/// The good configuration, in which what the mistakes replace is on one line each.
fn text(exchange: &DemoExchange, folder: &Folder, name: &str) -> String {
    let whole = fs::read_to_string(folder.0.join(name)).expect("a configuration");
    let state = exchange.files.path("..");
    whole
        .replace(&format!("{}/", folder.0.display()), "")
        .replace(&format!("{}/", state.trim_end_matches("/etc/..")), "../")
}

/// The mistakes, with `words` of the exchange at hand in their texts.
fn with_words<'a>(mistakes: &'a [Mistake], words: &'a [(&'static str, &'a str)]) -> Vec<Mistake> {
    let fill = |text: &'static str| -> &'static str {
        let filled = words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value));
        filled.leak()
    };
    let filled = |one: &Mistake| Mistake { good: fill(one.good), wrong: fill(one.wrong), ..*one };
    mistakes.iter().map(filled).collect()
}

#[test]
fn check_names_each_mistake_at_a_party() {
    let (exchange, folder) = exchange("mistakes-party");
    // As outside a laboratory.
    let good = ["lab = true\n", "epoch_secs = 0\n", "shares = true\n"]
        .iter()
        .fold(text(&exchange, &folder, "party1.toml"), |text, line| text.replace(line, ""));
    let (status, members, link) = (
        exchange.parties[0].at.process.status.to_string(),
        exchange.parties[0].at.listen.to_string(),
        good.lines().skip_while(|line| *line != "[link]").nth(1).expect("listen").to_owned(),
    );
    let pin = |name: &str| {
        let shown = folder.ok(&["keys", "show", name, "--json"]);
        serde_json::from_str::<serde_json::Value>(&shown).expect("JSON")["tls"].as_str().expect("a pin").to_owned()
    };
    let (own, other, alpha) = (pin("party1.key"), pin("party2.key"), pin("alpha.key"));
    folder.write("unknown.toml", "[recommendation]\nalpha = 3\nzulu = 1\n");
    folder.write("much.toml", "[recommendation]\nalpha = 300\n");
    folder.write("flat.toml", "alpha = 3\n");
    // Another member set of the same operators: the next number, other content; and one of another exchange.
    let [one, two] = ["operator1.key", "operator2.key"].map(|name| {
        let shown = folder.ok(&["keys", "show", name, "--json"]);
        serde_json::from_str::<serde_json::Value>(&shown).expect("JSON")["sign"].as_str().expect("a key").to_owned()
    });
    let begin = |file: &str, exchange: &str, second: &str| {
        folder.ok(&["members", "init", file, "--exchange", exchange, "--operator1", &one, "--operator2", second]);
    };
    begin("begun", "demo-ix", &two);
    begin("foreign", "other-ix", &two);
    let stranger = {
        let shown = folder.ok(&["keys", "show", "other.key", "--json"]);
        serde_json::from_str::<serde_json::Value>(&shown).expect("JSON")["sign"].as_str().expect("a key").to_owned()
    };
    begin("strangers", "demo-ix", &stranger);
    folder.ok(&[
        "members",
        "propose",
        "begun",
        "--operator",
        "operator1.key",
        "--out",
        "p",
        "--request",
        "bravo.request",
        "--max-prefix",
        "bravo=10",
        "--given-up",
    ]);
    folder.ok(&["members", "countersign", "begun", "p", "--operator", "operator2.key", "--yes", "--given-up"]);
    let damaged = fs::read(folder.0.join("party1.members")).expect("a set");
    fs::write(folder.0.join("damaged"), &damaged[..damaged.len() - 9]).expect("written");
    let mistakes = [
        mistake("number = 1", "number = 3", "no such party", "1 (the exchange) or 2"),
        mistake("number = 1", "number = \"1\"", "invalid type", "a number from 0 to 255"),
        mistake("number = 1", "party = 1", "unknown field `party`", "`number`"),
        mistake("exchange = \"demo-ix\"", "exchange = \"\"", "not a valid name", "1 to 64 octets"),
        mistake("listen = \"{members}\"", "listen = \"127.0.0.1\"", "127.0.0.1", "an address and port"),
        mistake("listen = \"{members}\"", "listen = \"203.0.113.9:7001\"", "no address 203.0.113.9", "ip address"),
        elsewhere(mistake(
            "listen = \"{members}\"",
            "listen = \"{status}\"",
            "in use by this configuration",
            "another port",
        )),
        mistake("\"party1.key\"", "\"none.key\"", "No such file", "wayleave keys new"),
        mistake("\"party1.key\"", "\"open.key\"", "read by others", "chmod 600"),
        mistake("\"party1.key\"", "\"half.key\"", "is not a Wayleave key file", "wayleave keys new"),
        mistake("\"party1.key\"", "\"attest.key\"", "is not a Wayleave key file", "wayleave keys show"),
        mistake("\"party1.key\"", "\"folder\"", "is a folder", "a file"),
        mistake("\"party1.key\"", "\"alpha.key\"", "is also", "a key of its own"),
        elsewhere(mistake("\"party1.key\"", "\"party2.key\"", "is also", "a key of its own")),
        mistake("\"party1.key\"", "\"operator1.key\"", "is also", "a key of its own"),
        mistake("\"../party1.redb\"", "\"gone/party1.redb\"", "no folder", "mkdir -p"),
        mistake("\"../party1.redb\"", "\"folder\"", "is a folder", "the path of a file"),
        mistake("\"../party1.redb\"", "\"file\"", "is damaged", "another path"),
        mistake("\"party1.members\"", "\"none\"", "does not exist yet", "wayleave members init"),
        mistake("\"party1.members\"", "\"folder\"", "is a folder", "a file"),
        mistake("\"party1.members\"", "\"file\"", "does not count as a member set", "other party's operator"),
        mistake("\"party1.members\"", "\"damaged\"", "does not count as a member set", "other party's operator"),
        mistake("\"party1.members\"", "\"foreign\"", "other-ix", "`exchange` and `operators`"),
        mistake("\"party1.members\"", "\"strangers\"", "operators", "`exchange` and `operators`"),
        mistake("\"party1.members\"", "\"begun\"", "two sets of one number", "restore the file"),
        mistake(
            "operators = [\"{one}\"",
            "operators = [\"{two}\"",
            "the same key twice",
            "party 1's operator's and party 2's",
        ),
        mistake(
            "operators = [\"{one}\"",
            "operators = [\"{own}\"",
            "the fingerprint of a certificate",
            "a signing key",
        ),
        mistake("recommendation.toml", "none.toml", "does not exist", "[recommendation]"),
        mistake("recommendation.toml", "unknown.toml", "unknown.toml:3:1: no member `zulu`", "remove it"),
        mistake("recommendation.toml", "much.toml", "much.toml:2:9: invalid value", "0 to 255"),
        mistake("recommendation.toml", "flat.toml", "flat.toml:1:1: unknown field `alpha`", "`recommendation`"),
        mistake("[link]", "tick_ms = 70000\n[link]", "70000 is out of range", "0 to 60000 milliseconds"),
        mistake("[link]", "stale_secs = 0\n[link]", "0 is out of range", "1 to 86400 seconds"),
        mistake("[link]", "epoch_secs = 60\n[link]", "60 is out of range", "900 to 31536000 seconds"),
        mistake("[status]", "[status]\nshares = true", "shows shares from which", "a laboratory may"),
        mistake("[link]", "rank_wait_ms = 0\n[link]", "0 is out of range", "1 to 60000 milliseconds"),
        mistake("[link]", "rank_allowance_ms = 0\n[link]", "0 is out of range", "1 to 1000 milliseconds"),
        mistake("[link]", "rank_allowance_ms = 1001\n[link]", "1001 is out of range", "evaluated later"),
        mistake(
            "[link]",
            "[budget]\nlate_per_second = 0\n[link]",
            "0 is out of range",
            "1 to 1000000 comparisons a second",
        ),
        mistake("[link]", "rank_wait_ms = 599\n[link]", "may rank later than 599 ms", "600 or more"),
        mistake(
            "[link]",
            "[budget]\nobjects_per_minute = 5\n[link]",
            "unknown field `objects_per_minute`",
            "`objects_per_second`",
        ),
        mistake("[link]", "[budget]\nobjects_per_second = 0\n[link]", "0 is out of range", "objects a second"),
        mistake("{link}\n", "", "both or neither of `listen` and `connect`", "one party listens"),
        mistake("{link}\n", "{link}\nconnect = \"127.0.0.2:1\"\n", "both or neither of `listen` and `connect`", "one"),
        mistake("{link}\n", "listen = \"{members}\"\n", "members connect to", "of its own"),
        mistake("{link}\n", "connect = \"198.51.100.1\"\n", "198.51.100.1", "a host and port"),
        mistake("{other}", "{own}", "is also", "a key of its own"),
        elsewhere(mistake("{other}", "{alpha}", "is also", "a key of its own")),
        mistake("{other}", "sha256:12", "damaged", "the fingerprint of a certificate"),
        mistake(
            "{other}",
            "sha256:2222222222222222222222222222222222222222222222222222222222222222",
            "still the example's value",
            "the peer party's `wayleave keys show`",
        ),
        mistake("listen = \"{status}\"", "listen = \"0.0.0.0:8480\"", "from other machines", "anyone who can connect"),
    ];
    let words = [
        ("{members}", members.as_str()),
        ("{status}", &status),
        ("{link}", &link),
        ("{own}", &own),
        ("{other}", &other),
        ("{alpha}", &alpha),
        ("{one}", &one),
        ("{two}", &two),
    ];
    each_is_named(&folder, &good, &with_words(&mistakes, &words));
    let second = text(&exchange, &folder, "party2.toml");
    let wrong = "recommendation = \"recommendation.toml\"\n[link]";
    let mistakes = [mistake("[link]", wrong, "only party 1 has the exchange's recommendation", "no such key")];
    each_is_named(&folder, &second, &mistakes);
}

#[test]
fn check_names_each_mistake_at_a_member() {
    let (exchange, folder) = exchange("mistakes-member");
    let good = text(&exchange, &folder, "alpha.toml");
    let good = good.replace("hold_time", "address = \"192.0.2.1\"\nhold_time");
    let (status, bgp) = (exchange.members[0].at.proxy.status.to_string(), exchange.members[0].at.bgp.to_string());
    let [party1, party2] = [0, 1].map(|party: usize| exchange.parties[party].at.listen.to_string());
    let part = |name: &str, of: &str| {
        let shown = folder.ok(&["keys", "show", name, "--json"]);
        serde_json::from_str::<serde_json::Value>(&shown).expect("JSON")[of].as_str().expect("a key").to_owned()
    };
    let pins = ["party1.key", "party2.key", "alpha.key"].map(|name| part(name, "tls"));
    let (one, two) = (part("operator1.key", "sign"), part("operator2.key", "sign"));
    let stranger = part("other.key", "sign");
    folder.ok(&["keys", "anchor", "anchor.key", "--name", "lab", "--classical"]);
    let mistakes = [
        mistake("slot = 0", "slot = \"0\"", "invalid type", "a number from 0 to 4294967295"),
        mistake("[member]\nname = \"alpha\"\n", "[member]\n", "missing field `name`", ""),
        mistake("slot = 0", "slot = 1", "slot 1 is bravo's", "0, the slot of the key"),
        mistake("slot = 0", "slot = 40", "has no slot 40", "0, the slot of the key"),
        mistake("name = \"alpha\"", "name = \"alfa\"", "slot 0 is `alpha`", "the same name"),
        mistake("name = \"alpha\"", "nom = \"alpha\"", "unknown field `nom`", "`name`"),
        mistake("\"alpha.key\"", "\"none.key\"", "No such file", "wayleave keys new"),
        mistake("\"alpha.key\"", "\"open.key\"", "read by others", "chmod 600"),
        mistake("\"alpha.key\"", "\"half.key\"", "is not a Wayleave key file", "wayleave keys new"),
        mistake("\"alpha.key\"", "\"folder\"", "is a folder", "a file"),
        mistake("\"alpha.key\"", "\"bravo.key\"", "slot 0 is alpha's", "1, the slot of the key"),
        mistake("\"alpha.key\"", "\"other.key\"", "no slot has this key", "with which the member joined"),
        elsewhere(mistake("\"alpha.key\"", "\"party1.key\"", "is also", "a key of its own")),
        elsewhere(mistake("\"alpha.key\"", "\"operator2.key\"", "is also", "a key of its own")),
        mistake("\"../alpha.redb\"", "\"gone/alpha.redb\"", "no folder", "mkdir -p"),
        mistake("\"../alpha.redb\"", "\"folder\"", "is a folder", "the path of a file"),
        mistake("\"../alpha.redb\"", "\"file\"", "is damaged", "another path"),
        mistake("settle_secs = 3", "settle_secs = 0", "0 is out of range", "1 to 3600 seconds"),
        mistake("settle_secs = 3", "stale_secs = 0", "0 is out of range", "1 to 604800 seconds"),
        mistake("settle_secs = 3", "new_members = \"hold\"", "`hold` without `known_slots`", "the number of slots"),
        mistake("settle_secs = 3", "known_slots = 3", "holds nothing", "both or neither"),
        mistake("settle_secs = 3", "new_members = \"ask\"", "unknown variant `ask`", "`serve`"),
        mistake("name = \"demo-ix\"", "name = \"demo\"", "of the exchange `demo-ix`", "the same name"),
        mistake("asn = 64496", "asn = 0", "AS0 is reserved", "may appear in a route"),
        elsewhere(mistake("asn = 64496", "asn = 64497", "is the exchange's", "of your router")),
        mistake("operators = [\"{one}\"", "operators = [\"{two}\"", "the same key twice", "party 2's operator's"),
        mistake("operators = [\"{one}\"", "operators = [\"{stranger}\"", "other operators", "its own"),
        mistake("operators = [\"{one}\"", "operators = [\"{one}0\"", "damaged", "64 hexadecimal digits"),
        mistake("{pin1}", "{pin2}", "the same fingerprint", "party 2's"),
        elsewhere(mistake("{pin1}", "{alpha}", "is also", "a key of its own")),
        mistake("{pin1}", "sha256:", "damaged", "64 hexadecimal digits"),
        mistake(
            "{pin1}",
            "sha256:1111111111111111111111111111111111111111111111111111111111111111",
            "still the example's value",
            "from the exchange's invitation",
        ),
        mistake("{party1}", "{party2}", "the same address", "party 2's"),
        mistake("{party1}", "rs1.example.net", "rs1.example.net", "a host and port"),
        mistake("listen = \"{bgp}\"\n", "", "no way to reach the router", "`listen` or `connect`"),
        mistake("listen = \"{bgp}\"", "listen = \"203.0.113.9:179\"", "no address 203.0.113.9", "ip address"),
        elsewhere(mistake(
            "listen = \"{bgp}\"",
            "listen = \"{status}\"",
            "in use by this configuration",
            "another port",
        )),
        elsewhere(mistake(
            "listen = \"{bgp}\"",
            "listen = \"{bgp}\"\nconnect = \"192.0.2.9:179\"",
            "only 192.0.2.1 may",
            "one router",
        )),
        mistake("listen = \"{bgp}\"", "connect = \"192.0.2.1:0\"", "port 0", "usually 179"),
        mistake("asn = 64497", "asn = 64499", "slot 0 is AS64497's", "64497"),
        mistake("asn = 64497", "asn = 23456", "AS23456 is reserved", "may appear in a route"),
        mistake("router_id = \"192.0.2.101\"", "router_id = \"0.0.0.0\"", "not a BGP identifier", "of the proxy"),
        mistake(
            "router_id = \"192.0.2.101\"",
            "router_id = \"192.0.2.1\"",
            "is the router's address",
            "of the proxy's own",
        ),
        mistake("router_id = \"192.0.2.101\"", "router_id = \"2001:db8::1\"", "2001:db8::1", "an IPv4 address"),
        mistake("address = \"192.0.2.1\"", "address = \"192.0.2.77\"", "none of the slot's addresses", "192.0.2.1"),
        mistake("hold_time = 9", "hold_time = 2", "2 seconds is not allowed", "3 to 65535"),
        mistake("hold_time = 9", "strict_role = true\nrole = \"off\"", "requires nothing", "RFC 9234"),
        mistake("hold_time = 9", "role = \"peer\"", "unknown variant", "`rs`"),
        mistake("hold_time = 9", "password_file = \"none\"", "does not exist yet", "create it"),
        mistake("hold_time = 9", "password_file = \"open.password\"", "can be read by others", "chmod"),
        mistake("hold_time = 9", "ttl_security = true\nttl = 3", "`ttl` is 3", "only one"),
        mistake(
            "[status]",
            "[[rule]]\ndirection = \"export\"\nhide_from = \"rivals\"\n[status]",
            "no group `rivals`",
            "[groups]",
        ),
        mistake(
            "[status]",
            "[[rule]]\ndirection = \"export\"\nhide_from = 64489\n[status]",
            "no member has AS64489",
            "of a member",
        ),
        mistake("[status]", "[[rule]]\ndirection = \"import\"\nas_path = \"(\"\nreject = true\n[status]", "", ""),
        mistake(
            "[status]",
            "[[rule]]\ndirection = \"import\"\nhide_from = [64500]\n[status]",
            "hide_from",
            "a key of import rules",
        ),
        mistake(
            "[status]",
            "[attestation.keys]\nsigning = \"attest.key\"\n[status]",
            "does not list the kc-ed25519",
            "keys of the set",
        ),
        mistake(
            "[status]",
            "[attestation.keys]\nanchor = \"anchor.pub\"\n[status]",
            "only one of `anchor`",
            "both or neither",
        ),
        mistake("listen = \"{status}\"", "listen = \"0.0.0.0:8480\"", "from other machines", "anyone who can connect"),
    ];
    let words = [
        ("{status}", status.as_str()),
        ("{bgp}", &bgp),
        ("{party1}", &party1),
        ("{party2}", &party2),
        ("{pin1}", &pins[0]),
        ("{pin2}", &pins[1]),
        ("{alpha}", &pins[2]),
        ("{one}", &one),
        ("{two}", &two),
        ("{stranger}", &stranger),
    ];
    each_is_named(&folder, &good, &with_words(&mistakes, &words));
}

#[test]
fn a_deep_check_asks_both_parties_and_disturbs_nobody() {
    let (mut exchange, folder) = exchange("mistakes-deep");
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    exchange.members[1].role.start().expect("a member that starts");
    eventually("bravo is served", || {
        exchange.members[1].ask("/api/v1/status").is_ok_and(|status| status["synced"] == true)
    });
    let deep = |name: &str| {
        let output = folder.run(&["check", "--deep", name, "--json"]);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), said)
    };
    let says = |said: &serde_json::Value, about: &str, words: &str| {
        let of = |one: &&serde_json::Value| {
            one["about"] == about && one["message"].as_str().is_some_and(|text| text.contains(words))
        };
        assert!(said["deep"].as_array().into_iter().flatten().any(|one| of(&one)), "{about}, {words}: {said:#}");
    };
    // A member that does not run, with its own key.
    let (code, said) = deep("alpha.toml");
    assert_eq!((code, &said["ok"]), (Some(0), &true.into()), "{said:#}");
    says(&said, "party 1", "accepts this key; the clocks agree");
    says(&said, "party 2", "accepts this key; the clocks agree");
    says(&said, "listening for the router", "is free");
    says(&said, "`status.listen`", "is free");
    says(&said, "clock", "it shows 20");
    // Another role of the machine has the port of its status pages.
    let status_of = |name: &str| {
        let text = fs::read_to_string(folder.0.join(name)).expect("a configuration");
        let table: toml::Table = text.parse().expect("TOML");
        (table["status"]["listen"].as_str().expect("an address").to_owned(), text)
    };
    let ((own, text), (others, _)) = (status_of("alpha.toml"), status_of("bravo.toml"));
    folder.write("taken.toml", &text.replace(&own, &others));
    let (code, said) = deep("taken.toml");
    assert_eq!(code, Some(1), "{said:#}");
    says(&said, "`status.listen`", "another process listens there");
    // One that runs keeps its links.
    let (code, said) = deep("bravo.toml");
    assert_eq!(code, Some(0), "{said:#}");
    says(&said, "party 1", "Not tried, since this role runs");
    let text = fs::read_to_string(folder.0.join("bravo.toml")).expect("a configuration");
    folder.write("running.toml", &text.replace("bravo.key", "other.key"));
    let (code, said) = deep("running.toml");
    assert_eq!(code, Some(1), "{said:#}");
    says(&said, "the key", "after a restart it would run with that one");
    let (code, said) = deep("party2.toml");
    assert_eq!(code, Some(0), "{said:#}");
    says(&said, "the peer party", "Not tried, since this role runs");
    assert_eq!(exchange.members[1].ask("/api/v1/status").expect("it runs")["synced"], true);
    // A pin of somebody else, a key that is no member's, and a party that is away.
    let good = fs::read_to_string(folder.0.join("alpha.toml")).expect("a configuration");
    let shown = folder.ok(&["keys", "show", "other.key", "--json"]);
    let other: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let line = good.lines().find(|line| line.starts_with("party2")).expect("party 2");
    let pin = &line[line.find("sha256:").expect("a pin")..][..71];
    folder.write("pin.toml", &good.replace(pin, other["tls"].as_str().expect("a pin")));
    let (code, said) = deep("pin.toml");
    assert_eq!(code, Some(1));
    says(&said, "party 2", "`[exchange] party2.pin` names another");
    folder.write("key.toml", &good.replace("alpha.key", "other.key"));
    let (code, said) = deep("key.toml");
    assert_eq!(code, Some(1));
    says(&said, "party 1", "does not accept the certificate of this key file");
    exchange.parties[1].role.kill();
    let said = folder.fails(1, &["check", "--deep", "alpha.toml"]);
    assert!(said.contains("cannot reach party 2 at"), "{said}");
    // Its file and its configuration are of another beginning, and agree: what is wrong is the state, and the cure is named.
    assert!(exchange.parties[0].role.stop(TIMEOUT), "party 1 ends");
    let text = fs::read_to_string(folder.0.join("party1.toml")).expect("a configuration");
    let table: toml::Table = text.parse().expect("TOML");
    let of = |value: &toml::Value| value.as_str().expect("a text").to_owned();
    let party = &table["party"];
    let (one, two) = (of(&party["operators"][0]), of(&party["operators"][1]));
    let begins = ["members", "init", "swapped", "--exchange", &of(&party["exchange"])].map(str::to_owned);
    let begins =
        [&begins[..], &["--operator1".to_owned(), two.clone(), "--operator2".to_owned(), one.clone()]].concat();
    folder.ok(&begins.iter().map(String::as_str).collect::<Vec<_>>());
    let swapped = text.replace(&one, "first").replace(&two, &one).replace("first", &two);
    let members = format!("members = \"{}\"", of(&party["members"]));
    assert!(swapped.contains(&members), "{swapped}");
    folder.write("swapped.toml", &swapped.replace(&members, "members = \"swapped\""));
    let output = folder.run(&["check", "--json", "swapped.toml"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let errors = said["errors"].to_string();
    assert!(errors.contains("state begins with other operators' keys than its member set's file"), "{said:#}");
    assert!(errors.contains("remove it: rm "), "{said:#}");
}

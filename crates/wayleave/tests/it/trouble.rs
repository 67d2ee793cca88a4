//! What only running can tell: a member whose configuration the parties refuse, a router of another AS, links that end. Each is
//! logged once with its cause and cure, and `show status` has it.
//!
//! OPS, mistakes, running: a member with another slot, exchange, key, pin of a party, operators; a router of another
//! AS; a party that goes; a reload that fails: an error or warning with the cause and what to do, once, and in
//! `show status`; few connections; nothing is left once it is mended.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::screen::{assert_one_screen, page, status};
use serde_json::Value;
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;

const TIMEOUT: Duration = Duration::from_secs(30);

struct Troubled {
    exchange: DemoExchange,
    state: PathBuf,
}

impl Troubled {
    fn new(name: &str) -> Self {
        let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&state);
        fs::create_dir_all(&state).expect("a folder");
        let layout = Layout::simulated(&state).expect("free ports");
        let exchange = DemoExchange::new(layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("files");
        Self { exchange, state }
    }

    fn name(&self, member: usize) -> String {
        self.exchange.members[member].at.name.clone()
    }

    /// Changes a member's configuration.
    fn edit(&self, member: usize, from: &str, to: &str) {
        let path = self.exchange.files.member(&self.name(member));
        let text = fs::read_to_string(&path).expect("a configuration");
        assert!(text.contains(from), "{from}: {text}");
        fs::write(&path, text.replacen(from, to, 1)).expect("written");
    }

    fn log(&self, process: &str) -> String {
        fs::read_to_string(self.state.join(format!("{process}.log"))).unwrap_or_default()
    }

    fn problems(&self, member: usize) -> Vec<String> {
        let status = self.exchange.members[member].ask("/api/v1/status").unwrap_or(Value::Null);
        status["problems"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|problem| Some(problem.as_str()?.to_owned()))
            .collect()
    }

    fn eventually(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        if wait_until(TIMEOUT, || holds(self).then_some(())).is_none() {
            let logs: Vec<String> = self.exchange.members.iter().map(|member| member.role.log_tail()).collect();
            panic!("never: {what}; {:?}; {}", self.exchange.exited(), logs.join("\n--\n"));
        }
    }
}

#[test]
fn a_member_that_is_refused_learns_why_and_tries_again_seldom() {
    let mut troubled = Troubled::new("trouble-refused");
    let files = &troubled.exchange.files;
    let key = files.path("other.key");
    let printed = files.tool(&["keys", "new", &key, "--name", "other", "--json"]).expect("a key");
    let other: Value = serde_json::from_str(&printed).expect("JSON");
    let [pin, sign] = ["tls", "sign"].map(|part| other[part].as_str().expect("a public key").to_owned());
    let configuration = fs::read_to_string(files.member("delta")).expect("a configuration");
    let value = |line: &str, start: &str| {
        let line = configuration.lines().find(|text| text.starts_with(line)).expect("a line");
        let at = line.find(start).expect("a value");
        line[at..].split('"').next().expect("its end").to_owned()
    };
    let (party2, operator) = (value("party2", "sha256:"), value("operators", "sign:ed25519:"));
    troubled.edit(0, "slot = 0", "slot = 5");
    troubled.edit(1, "name = \"demo-ix\"", "name = \"other-ix\"");
    troubled.edit(2, &files_key(&troubled, 2), "other.key");
    troubled.edit(3, &party2, &pin);
    troubled.edit(4, &operator, &sign);
    troubled.edit(5, "asn = 64502", "asn = 64510");
    for party in &mut troubled.exchange.parties {
        party.role.start().expect("a party that starts");
    }
    troubled.eventually("the parties run", |troubled| {
        troubled.exchange.parties.iter().all(|party| party.ask("/api/v1/status").is_ok())
    });
    for member in &mut troubled.exchange.members {
        member.role.start().expect("a member that starts");
    }
    troubled.exchange.members[5].router.start().expect("a speaker");
    let expected = [
        "as that of slot 0, and `[member] slot` is 5: set `slot = 0`, or use the key file of slot 5",
        "belongs to the exchange `demo-ix`, and `[exchange] name` is `other-ix`: correct the name",
        "does not accept the certificate of this key file",
        "and `[exchange] party2.pin` names another: if party 2 has a new key",
        "nothing of it is used: compare `[exchange] operators`",
        "says AS64502, and [router] asn is 64510: correct the one that is wrong",
    ];
    for (member, words) in expected.into_iter().enumerate() {
        troubled.eventually(words, |troubled| troubled.problems(member).iter().any(|problem| problem.contains(words)));
    }
    // Without back-off a link was opened five times in this time, and both were.
    std::thread::sleep(Duration::from_secs(3));
    for (member, words) in expected.into_iter().enumerate() {
        let log = troubled.log(&format!("{}-proxy", troubled.name(member)));
        let level = if member == 5 { "WARN" } else { "ERROR" };
        let lines = log.lines().filter(|line| line.contains(words) && line.contains(level)).count();
        // Each party says it for itself.
        assert!((1..=2).contains(&lines), "{words}: {log}");
        let links = log.lines().filter(|line| line.contains("link up")).count();
        assert!(links <= 4, "{words}: {links} links: {log}");
    }
    let log = troubled.log("party1");
    let cause = "its configuration says slot 5, and its key is of slot 0";
    assert!(log.contains(&format!("frame of the member in slot 0 refused ({cause})")), "{log}");
    let status = troubled.exchange.parties[0].ask("/api/v1/status").expect("it runs");
    let is_named = |problem: &Value| problem.as_str().is_some_and(|problem| problem.contains(cause));
    assert!(status["problems"].as_array().is_some_and(|all| all.iter().any(is_named)), "{status:#}");
    assert_eq!(status["misbehaving"], serde_json::json!([]), "a mistake is no misbehaviour: {status:#}");
    let url = troubled.exchange.members[0].at.proxy.status.to_string();
    let shown = troubled.exchange.files.tool(&["show", "status", "--url", &url]).expect("shown");
    assert!(shown.contains("problem: party ") && shown.contains("set `slot = 0`"), "{shown}");

    // What is mended leaves no trouble behind.
    assert!(troubled.exchange.members[0].role.stop(TIMEOUT));
    troubled.edit(0, "slot = 5", "slot = 0");
    troubled.exchange.members[0].role.start().expect("a member that starts");
    troubled.exchange.members[0].router.start().expect("a speaker");
    troubled.eventually("the member is served", |troubled| {
        let status = troubled.exchange.members[0].ask("/api/v1/status").unwrap_or(Value::Null);
        status["synced"] == true && status["router"] == "Established"
    });
    assert_eq!(troubled.problems(0), [""; 0]);

    // `check` cannot compare a rule with the member set while the proxy runs: it says so, and the proxy does.
    let rule = "[[rule]]\ndirection = \"export\"\nhide_from = 64489\n\n[status]";
    troubled.edit(0, "[status]", rule);
    let file = troubled.exchange.files.member("alpha");
    let checked = troubled.exchange.files.tool(&["check", &file.display().to_string()]).expect("a sound file");
    assert!(checked.contains("not compared with the member set, since the proxy runs"), "{checked}");
    troubled.exchange.members[0].role.reload().expect("it runs");
    troubled.eventually("the running proxy names the AS that no member has", |troubled| {
        troubled.problems(0).iter().any(|problem| problem.contains("no member has AS64489 in member set"))
    });
    troubled.edit(0, rule, "[status]");
    troubled.exchange.members[0].role.reload().expect("it runs");
    troubled.eventually("the problem is gone with the rule", |troubled| troubled.problems(0).is_empty());

    // A party that goes is named with the reason, at the member and at the peer party.
    troubled.exchange.parties[1].role.kill();
    troubled.eventually("the member and party 1 say what ended", |troubled| {
        let (member, party) = (troubled.log("alpha-proxy"), troubled.log("party1"));
        member.contains("session with the parties down: the link to party 2 ended:")
            && party.contains("link to the peer party down: ")
            && troubled.problems(0).iter().any(|problem| problem.contains("cannot reach party 2 at"))
    });
    let status = troubled.exchange.parties[0].ask("/api/v1/status").expect("it runs");
    assert!(
        status["problems"][0].as_str().is_some_and(|problem| problem.contains("the link to the peer party ended")),
        "{status:#}"
    );
}

/// Either end of the link between the parties may have the wrong pin; both say so, by their own settings.
#[test]
fn both_parties_say_why_the_link_between_them_is_refused() {
    let mut troubled = Troubled::new("trouble-parties");
    let (files, names) = (&troubled.exchange.files, ["party1", "party2"]);
    let key = files.path("other.key");
    let printed = files.tool(&["keys", "new", &key, "--name", "other", "--json"]).expect("a key");
    let other: Value = serde_json::from_str(&printed).expect("JSON");
    let other = other["tls"].as_str().expect("a public key").to_owned();
    let path = |wrong: usize| troubled.exchange.files.party(wrong as u8 + 1);
    let paths = [path(0), path(1)];
    let screen = |troubled: &Troubled, party: usize| {
        let at = &troubled.exchange.parties[party].at.process;
        status(&at.namespace, at.status, &[])
    };
    for party in &mut troubled.exchange.parties {
        party.role.start().expect("a party that starts");
    }
    let are_ready = |troubled: &mut Troubled| {
        (0..2).all(|party| {
            let at = &troubled.exchange.parties[party].at.process;
            page(&at.namespace, at.status, "/readyz").starts_with("HTTP/1.0 200")
        })
    };
    troubled.eventually("the parties run", |troubled| {
        troubled.exchange.parties.iter().all(|party| party.ask("/api/v1/status").is_ok())
    });
    troubled.eventually("both are ready", are_ready);
    for party in 0..2 {
        let shown = screen(&troubled, party);
        let first = format!("party {} of demo-ix: ready\n", party + 1);
        assert!(shown.starts_with(&first) && !shown.contains("problem:"), "{shown}");
        let rows: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("PEER")).skip(1).collect();
        let alpha = rows.iter().find(|row| row.starts_with("alpha "));
        assert!(alpha.is_some_and(|row| row.contains("not connected")), "by name: {shown}");
        assert!(rows.iter().any(|row| row.starts_with("the peer party") && row.contains("up")), "{shown}");
        let at = &troubled.exchange.parties[party].at.process;
        assert_one_screen(&at.namespace, at.status);
    }
    for wrong in 0..2 {
        let good = fs::read_to_string(&paths[wrong]).expect("a configuration");
        let pin =
            good.lines().find_map(|line| line.strip_prefix("pin = ")).expect("a pin").trim_matches('"').to_owned();
        fs::write(&paths[wrong], good.replace(&pin, &other)).expect("written");
        for party in &mut troubled.exchange.parties {
            assert!(party.role.stop(TIMEOUT), "{}", names[wrong]);
        }
        for party in &mut troubled.exchange.parties {
            party.role.start().expect("a party that starts");
        }
        let expected = |party: usize| match party == wrong {
            true => "`[link] pin` names another: if the peer party has a new key",
            false => "does not accept the certificate of this key file",
        };
        for party in 0..2 {
            troubled.eventually(expected(party), |troubled| {
                let at = &troubled.exchange.parties[party].at.process;
                let is_there = page(&at.namespace, at.status, "/healthz").starts_with("HTTP/1.0 200");
                is_there && {
                    let shown = screen(troubled, party);
                    shown.lines().any(|line| line.starts_with("problem: ") && line.contains(expected(party)))
                }
            });
        }
        // A reload that failed is a problem, too, as long as the configuration in force is older than the file.
        fs::write(&paths[wrong], good.replacen("[link]", "[lnik]", 1)).expect("written");
        troubled.exchange.parties[wrong].role.reload().expect("it runs");
        troubled.eventually("the reload that failed is a problem, an event and a metric", |troubled| {
            let party = &troubled.exchange.parties[wrong];
            let has = |path: &str, words: &str| party.ask(path).is_ok_and(|json| json.to_string().contains(words));
            let at = &party.at.process;
            has("/api/v1/status", "the configuration in force is older than the file: reload failed at 20")
                && has("/api/v1/events", "\"event\":\"reload-failed\"")
                && page(&at.namespace, at.status, "/metrics").contains("wayleave_rs_reload_up 0")
        });
        fs::write(&paths[wrong], good).expect("written");
        troubled.exchange.parties[wrong].role.reload().expect("it runs");
        troubled.eventually("what is mended leaves no problem", |troubled| {
            are_ready(troubled) && (0..2).all(|party| !screen(troubled, party).contains("problem:"))
        });
    }
}

/// The name of a member's key file, as its configuration has it.
fn files_key(troubled: &Troubled, member: usize) -> String {
    format!("{}.key", troubled.name(member))
}

//! Members that validate origins without attestation (RFC 6811): one by an RTR cache, one by a file of ROAs.
//!
//! OPS, origins: a hostile announcer as a process; a cache that is killed, a file that is malformed: what was known counts.
//! OPS, sources, processes: the preferred of two caches hangs up: the other one counts alone, and it is said, until the first is back.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wayleave_core::Prefix;
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;
use wayleave_lab::table::Announcement;

use crate::common::metrics::assert_named_by_the_rule;
use crate::common::rtr::{Cache, origin};
use crate::common::screen::assert_one_screen;

const TIMEOUT: Duration = Duration::from_secs(60);
/// As the cache's ROAs have it.
const PREFIX: &str = "192.0.2.0/24";
/// Who may originate it, and is no member.
const HOLDER: u32 = 64_511;
/// Its proxy checks nothing.
const ALPHA: usize = 0;
/// It has a cache.
const BRAVO: usize = 1;
/// It has a file.
const CHARLIE: usize = 2;
/// It has nothing at first.
const DELTA: usize = 3;

fn prefix() -> Prefix {
    PREFIX.parse().expect("a prefix")
}

fn ask(exchange: &DemoExchange, member: usize, page: &str) -> Value {
    exchange.members[member].ask(page).unwrap_or(Value::Null)
}

fn why(exchange: &DemoExchange, member: usize) -> Value {
    ask(exchange, member, &format!("/api/v1/why?prefix={PREFIX}"))
}

/// What the RPKI says at a member of the only route of others, and what became of it.
fn found(exchange: &DemoExchange, member: usize) -> Option<(String, String)> {
    let why = why(exchange, member);
    let route = &why["routes"][0];
    Some((route["rpki"]["state"].as_str()?.to_owned(), route["outcome"].as_str()?.to_owned()))
}

fn has(exchange: &mut DemoExchange, member: usize) -> bool {
    let table = exchange.members[member].router.table().unwrap_or_default();
    table.iter().any(|route| route.prefix == prefix())
}

fn eventually(what: &str, exchange: &mut DemoExchange, mut holds: impl FnMut(&mut DemoExchange) -> bool) {
    if wait_until(TIMEOUT, || holds(exchange).then_some(())).is_none() {
        let whys: Vec<Value> = (0..=DELTA).map(|member| why(exchange, member)).collect();
        let status: Vec<Value> =
            (0..=DELTA).map(|member| ask(exchange, member, "/api/v1/status")["rpki"].clone()).collect();
        panic!("never: {what}; {:?}\n{whys:#?}\n{status:#?}", exchange.exited());
    }
}

/// A route of alpha's is refused, as invalid.
fn refuses(exchange: &mut DemoExchange, member: usize) -> bool {
    let is_invalid = |(state, outcome): (String, String)| {
        state == "invalid" && outcome.starts_with("not used: RPKI-invalid: AS64497 may not originate 192.0.2.0/24")
    };
    found(exchange, member).is_some_and(is_invalid) && !has(exchange, member)
}

fn uses(exchange: &mut DemoExchange, member: usize, state: &str) -> bool {
    found(exchange, member).is_some_and(|(found, outcome)| found == state && outcome == "installed")
        && has(exchange, member)
}

fn roas(asn: u32) -> String {
    let aspas = "[{\"customer\":\"AS64497\",\"providers\":[\"AS64500\"],\"ta\":\"arin\"}]";
    format!(
        "{{\"roas\":[{{\"asn\":\"AS{asn}\",\"prefix\":\"{PREFIX}\",\"maxLength\":24,\"ta\":\"arin\"}}],\"aspas\":{aspas}}}"
    )
}

#[test]
fn members_refuse_what_a_hostile_one_announces_while_a_cache_or_a_file_forbids_it() {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("member-rpki");
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state).expect("a folder");
    let layout = Layout::simulated(&state).expect("free ports");
    let mut exchange = DemoExchange::new(layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("files");
    let cache = Cache::start(origin(HOLDER));
    let own = exchange.members[ALPHA].at.asn.0;
    assert_eq!(own, 64_497);
    let config = |exchange: &DemoExchange, member: usize| exchange.files.member(&exchange.members[member].at.name);
    let add = |exchange: &DemoExchange, member: usize, section: &str| {
        let path = config(exchange, member);
        let text = fs::read_to_string(&path).expect("a configuration");
        fs::write(&path, format!("{text}\n{section}\n")).expect("written");
    };
    let file = config(&exchange, CHARLIE).with_file_name("roas.json");
    fs::write(&file, roas(HOLDER)).expect("written");
    add(&exchange, BRAVO, &format!("[rpki]\ncache = \"{}\"", cache.address));
    add(&exchange, CHARLIE, "[rpki]\nfile = \"roas.json\"");
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    for member in &mut exchange.members[..=DELTA] {
        member.role.start().expect("a member that starts");
        member.router.start().expect("a speaker");
    }
    exchange.announce("alpha", &[Announcement::of(prefix())]).expect("taken");
    eventually("both refuse it, and who validates nothing has it", &mut exchange, |exchange| {
        refuses(exchange, BRAVO) && refuses(exchange, CHARLIE) && has(exchange, DELTA)
    });
    let known = ask(&exchange, BRAVO, "/api/v1/status");
    assert_eq!(
        (&known["rpki"]["standing"], &known["rpki"]["vrps"], &known["rpki"]["serial"]),
        (&"current".into(), &1.into(), &1.into())
    );
    assert_eq!(known["refused_at_receive"]["rpki-invalid"], 1, "{known:#}");
    let url = exchange.members[BRAVO].at.proxy.status.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
    let said = command.args(["why", PREFIX, "--url", &url]).env("NO_COLOR", "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains("RPKI: invalid, by the VRP 192.0.2.0/24 of AS64511, up to /24"), "{said}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
    let said = command.args(["show", "status", "--url", &url]).env("NO_COLOR", "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains(&format!("rpki: 1 VRP from {}, serial 1", cache.address)), "{said}");
    let proxy = &exchange.members[BRAVO].at.proxy;
    assert_named_by_the_rule("member", &proxy.namespace, proxy.status);
    assert_one_screen(&proxy.namespace, proxy.status);

    // The file has ASPA records too: a path of one AS is valid by any.
    let known = ask(&exchange, CHARLIE, "/api/v1/status");
    assert_eq!((&known["rpki"]["aspas"], &known["rpki"]["sources"]), (&1.into(), &Value::Null), "{known:#}");
    assert_eq!(why(&exchange, CHARLIE)["routes"][0]["aspa"]["state"], "valid");

    // The ROA names the announcer.
    cache.change(origin(own));
    fs::write(&file, roas(own)).expect("written");
    eventually("both use it", &mut exchange, |exchange| {
        uses(exchange, BRAVO, "valid") && uses(exchange, CHARLIE, "valid")
    });
    // It is another's again; delta has the same file from now on.
    cache.change(origin(HOLDER));
    fs::write(&file, roas(HOLDER)).expect("written");
    add(&exchange, DELTA, "[rpki]\nfile = \"roas.json\"");
    exchange.members[DELTA].role.reload().expect("it runs");
    eventually("all refuse it", &mut exchange, |exchange| {
        refuses(exchange, BRAVO) && refuses(exchange, CHARLIE) && refuses(exchange, DELTA)
    });

    // Delta is to follow a cache that is not there: what the file said counts meanwhile.
    let path = config(&exchange, DELTA);
    let with_file = fs::read_to_string(&path).expect("a configuration");
    fs::write(&path, with_file.replace("file = \"roas.json\"", "cache = \"127.0.0.1:1\"")).expect("written");
    exchange.members[DELTA].role.reload().expect("it runs");
    eventually("delta keeps what the file said", &mut exchange, |exchange| {
        let known = ask(exchange, DELTA, "/api/v1/status");
        known["rpki"]["standing"] == "stale" && known["rpki"]["vrps"] == 1
    });
    assert!(refuses(&mut exchange, DELTA));
    fs::write(&path, with_file).expect("written");
    exchange.members[DELTA].role.reload().expect("it runs");
    eventually("delta reads the file again", &mut exchange, |exchange| {
        ask(exchange, DELTA, "/api/v1/status")["rpki"]["standing"] == "current" && refuses(exchange, DELTA)
    });

    // The cache is killed and the file broken: what they said counts on.
    cache.stop();
    fs::write(&file, &roas(own)[..30]).expect("written");
    let is_stale = |exchange: &DemoExchange, member, words: &str| {
        let status = ask(exchange, member, "/api/v1/status");
        let problems = status["problems"].as_array().into_iter().flatten();
        let is_said = problems.filter_map(Value::as_str).any(|problem| problem.contains(words));
        status["rpki"]["standing"] == "stale" && status["rpki"]["vrps"] == 1 && is_said
    };
    eventually("it is said", &mut exchange, |exchange| {
        is_stale(exchange, BRAVO, "what it sent counts until it expires") && is_stale(exchange, CHARLIE, "at line 1")
    });
    assert!(refuses(&mut exchange, BRAVO) && refuses(&mut exchange, CHARLIE));

    // Bravo has two caches: the preferred one says that the route is a hijack, the other one that it is none.
    let (preferred, other) = (Cache::start(origin(HOLDER)), Cache::start(origin(own)));
    let path = config(&exchange, BRAVO);
    let text = fs::read_to_string(&path).expect("a configuration");
    let one = |preference: u32, cache: &Cache| {
        format!("[[rpki.source]]\npreference = {preference}\ncache = \"{}\"\n", cache.address)
    };
    let both = one(20, &other) + &one(10, &preferred);
    let text = text.replace(&format!("[rpki]\ncache = \"{}\"", cache.address), &both);
    assert!(text.contains("[[rpki.source]]"), "{text}");
    fs::write(&path, text).expect("written");
    exchange.members[BRAVO].role.reload().expect("it runs");
    let counts = |exchange: &DemoExchange, cache: &Cache, problem: Option<&str>| {
        let status = ask(exchange, BRAVO, "/api/v1/status");
        let problems: Vec<&str> =
            status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let is_said = match problem {
            Some(words) => problems.iter().any(|problem| problem.contains(words)),
            None => !problems.iter().any(|problem| problem.contains("[[rpki.source]]")),
        };
        status["rpki"]["source"] == *cache.address && status["rpki"]["standing"] == "current" && is_said
    };
    eventually("the preferred one counts", &mut exchange, |exchange| {
        counts(exchange, &preferred, None) && refuses(exchange, BRAVO)
    });
    preferred.refuse(true);
    eventually("the other one counts, and it is said", &mut exchange, |exchange| {
        let why = format!("the RTR cache {} (preference 10) does not count", preferred.address);
        counts(exchange, &other, Some(&why)) && uses(exchange, BRAVO, "valid")
    });
    let url = exchange.members[BRAVO].at.proxy.status.to_string();
    let said = exchange.files.tool(&["show", "status", "--url", &url]).expect("an answer");
    assert!(said.contains(&format!("rpki: 1 VRP from {} (preference 20)", other.address)), "{said}");
    let proxy = &exchange.members[BRAVO].at.proxy;
    assert_named_by_the_rule("member", &proxy.namespace, proxy.status);
    preferred.refuse(false);
    eventually("the preferred one counts again", &mut exchange, |exchange| {
        counts(exchange, &preferred, None) && refuses(exchange, BRAVO)
    });

    // What bravo's own router announces is checked alike.
    exchange.announce("bravo", &[Announcement::of(prefix())]).expect("taken");
    eventually("it is not announced", &mut exchange, |exchange| {
        let outcome = why(exchange, BRAVO)["own"][0]["outcome"].as_str().map(str::to_owned);
        outcome.is_some_and(|outcome| outcome.starts_with("not announced: RPKI-invalid: AS64498"))
            && ask(exchange, BRAVO, "/api/v1/status")["refused_at_announce"]["rpki-invalid"] == 1
    });
    // Without the section nothing is refused.
    let path = config(&exchange, DELTA);
    let text = fs::read_to_string(&path).expect("a configuration");
    fs::write(&path, text.replace("[rpki]\nfile = \"roas.json\"", "")).expect("written");
    exchange.members[DELTA].role.reload().expect("it runs");
    eventually("delta uses it", &mut exchange, |exchange| has(exchange, DELTA));
    assert!(exchange.members[..=DELTA].iter_mut().all(|member| member.role.is_running()), "{:?}", exchange.exited());

    // Faults of the configuration.
    let check = |section: &str| {
        let file = path.with_file_name("faults.toml");
        fs::write(&file, format!("{text}\n{section}\n")).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        let output =
            command.args(["check", &file.display().to_string()]).env("NO_COLOR", "1").output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, said) = check("");
    assert!(
        code == Some(1) && said.contains("it is no list of ROAs: ") && said.contains("at line 1"),
        "{code:?}: {said}"
    );
    let (code, said) = check("[attestation.keys]");
    assert!(
        code == Some(1) && said.contains("[rpki] beside [attestation]") && said.contains("expected [attestation.rpki]"),
        "{code:?}: {said}"
    );
}

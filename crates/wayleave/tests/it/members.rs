//! Who is a member, through the commands and two running parties: joining, removal by one operator alone, and a start with
//! another set.
//!
//! MEM-03: a party's start with another set: refused with who erred and what to do.
//! MEM-04: one operator alone removes a member, by command: its session ends, and it learns since when it is none.
//! OPS, looking glass: who asks a party, or a member that shows none, what a member's tables and looking glass show: no such page.
//! OPS, removal, other files: a member removed that the recommendation names; a recommendation or a configuration that
//! cannot be read: its session ends at both parties; the next start works; the line is named.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use wayleave_core::{Asn, Prefix};
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::http::get;
use wayleave_lab::demo::layout::{Layout, ProcessLayout};
use wayleave_lab::process::wait_until;
use wayleave_lab::table::Announcement;

const TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const PREFIX: &str = "203.0.113.0/24";

pub(crate) fn exchange(name: &str) -> DemoExchange {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state).expect("a folder");
    let layout = Layout::simulated(&state).expect("free ports");
    DemoExchange::new(layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("keys and configurations")
}

pub(crate) fn start(exchange: &mut DemoExchange, members: &[usize]) {
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    for member in members {
        start_member(exchange, *member);
    }
}

fn start_member(exchange: &mut DemoExchange, member: usize) {
    let member = &mut exchange.members[member];
    member.role.start().expect("a member that starts");
    member.router.start().expect("a speaker");
}

pub(crate) fn eventually(what: &str, exchange: &mut DemoExchange, mut holds: impl FnMut(&mut DemoExchange) -> bool) {
    if wait_until(TIMEOUT, || holds(exchange).then_some(())).is_none() {
        let logs: Vec<String> = exchange.parties.iter().map(|party| party.role.log_tail()).collect();
        panic!("never: {what}; {:?}; {}", exchange.exited(), logs.join("\n--\n"));
    }
}

pub(crate) fn has(exchange: &mut DemoExchange, member: usize) -> bool {
    let prefix: Prefix = PREFIX.parse().expect("a prefix");
    exchange.members[member].router.table().unwrap_or_default().iter().any(|route| route.prefix == prefix)
}

fn number(exchange: &DemoExchange, party: usize) -> Option<u64> {
    exchange.parties[party].ask("/api/v1/status").ok()?["member_set"].as_u64()
}

fn connected(exchange: &DemoExchange, party: usize) -> Vec<u64> {
    let status = exchange.parties[party].ask("/api/v1/status").unwrap_or(Value::Null);
    status["members"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

#[test]
fn a_proposed_and_countersigned_member_gets_routes_and_one_operator_alone_removes_it() {
    let mut exchange = exchange("members");
    let names: Vec<String> = exchange.members.iter().take(3).map(|member| member.at.name.clone()).collect();
    let files = &exchange.files;
    files.begin_member_set().expect("begun again");
    files.propose(&[&names[0], &names[1]]).expect("proposed");
    files.countersign().expect("countersigned");
    files.share_member_set().expect("copied");
    start(&mut exchange, &[0, 1]);
    exchange.announce(&names[0], &[Announcement::of(PREFIX.parse().expect("a prefix"))]).expect("taken");
    eventually("the first two members are served", &mut exchange, |exchange| has(exchange, 1));

    // The third one is not a member before both operators have signed, whatever one of them reloads.
    exchange.files.propose(&[&names[2]]).expect("proposed");
    exchange.parties[0].role.reload().expect("it runs");
    start_member(&mut exchange, 2);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((number(&exchange, 0), number(&exchange, 1)), (Some(1), Some(1)));
    assert!(!has(&mut exchange, 2));
    exchange.files.countersign().expect("countersigned");
    exchange.parties[1].role.reload().expect("it runs");
    eventually("the set of party 2's operator is in force at both", &mut exchange, |exchange| {
        (number(exchange, 0), number(exchange, 1)) == (Some(2), Some(2))
    });
    eventually("the member of the new slot gets routes", &mut exchange, |exchange| has(exchange, 2));
    eventually("party 1 has written the set to its file", &mut exchange, |exchange| {
        fs::read(exchange.files.member_set(1)).ok() == fs::read(exchange.files.member_set(2)).ok()
    });

    // Party 2's operator alone removes it; then an old file does not bring it back.
    let old = fs::read(exchange.files.member_set(2)).expect("the file");
    let (set, key) = (exchange.files.member_set(2), exchange.files.path("operator2.key"));
    exchange.files.tool(&["members", "remove", &set, "--operator", &key, "--name", &names[2]]).expect("removed");
    exchange.parties[1].role.reload().expect("it runs");
    eventually("its session has ended at both parties", &mut exchange, |exchange| {
        (0..2).all(|party| number(exchange, party) == Some(3) && connected(exchange, party) == [0, 1])
    });
    // Before that it would write over the old one.
    eventually("party 1 has written this set too", &mut exchange, |exchange| {
        fs::read(exchange.files.member_set(1)).ok() == fs::read(exchange.files.member_set(2)).ok()
    });
    for party in [1u8, 2] {
        fs::write(exchange.files.member_set(party), &old).expect("written");
        exchange.parties[usize::from(party) - 1].role.reload().expect("it runs");
    }
    eventually("both say that the set in force stays", &mut exchange, |exchange| {
        exchange.parties.iter().all(|party| party.role.log_tail().contains("the set in force stays"))
    });
    assert_eq!((number(&exchange, 0), number(&exchange, 1)), (Some(3), Some(3)));
    // Nor does a restart with it.
    for party in &mut exchange.parties {
        party.role.kill();
        party.role.start().expect("a party that starts");
    }
    eventually("what was in force is in force again", &mut exchange, |exchange| {
        (0..2).all(|party| number(exchange, party) == Some(3) && connected(exchange, party) == [0, 1])
    });
}

#[test]
fn a_removed_member_learns_since_when_it_is_none_and_what_to_do() {
    let mut exchange = exchange("members-removed");
    start(&mut exchange, &[0, 1]);
    let name = exchange.members[0].at.name.clone();
    exchange.announce(&name, &[Announcement::of(PREFIX.parse().expect("a prefix"))]).expect("taken");
    eventually("the other member has the route", &mut exchange, |exchange| has(exchange, 1));
    let status = exchange.members[0].at.proxy.status.to_string();
    let why = |exchange: &DemoExchange| {
        let said = exchange.files.tool(&["why", PREFIX, "--url", &status, "--json"]).expect("an answer");
        serde_json::from_str::<Value>(&said).expect("JSON")
    };
    assert!(why(&exchange)["own"][0]["outcome"].as_str().is_some_and(|outcome| outcome.starts_with("announced")));
    let (set, key) = (exchange.files.member_set(1), exchange.files.path("operator1.key"));
    exchange.files.tool(&["members", "remove", &set, "--operator", &key, "--name", &name]).expect("removed");
    exchange.parties[0].role.reload().expect("it runs");
    eventually("it says so", &mut exchange, |exchange| why(exchange)["removed"].is_string());
    let said = why(&exchange);
    let own = &said["own"][0];
    let outcome = own["outcome"].as_str().unwrap_or_default();
    assert!(outcome.starts_with("withdrawn: you are no member of `demo-ix` since member set 2"), "{said}");
    assert!(outcome.contains("the operator of party 1 removed slot 0") && outcome.contains("said so at 20"), "{said}");
    assert!(own["cure"].as_str().is_some_and(|cure| cure.contains("`wayleave keys new`")), "{said}");
    let shown = exchange.files.tool(&["show", "status", "--url", &status]).expect("a status");
    assert!(shown.contains("you are no member of `demo-ix` since member set 2"), "{shown}");
    // One that starts later is told so by the refusal of its certificate.
    exchange.members[0].role.kill();
    exchange.members[0].role.start().expect("it starts");
    eventually("it says so again", &mut exchange, |exchange| {
        let Ok(said) = exchange.files.tool(&["why", PREFIX, "--url", &status, "--json"]) else { return false };
        let said = serde_json::from_str::<Value>(&said).expect("JSON");
        said["removed"].as_str().is_some_and(|said| said.contains("has removed this key: seen at 20"))
    });
    eventually("both logs have it", &mut exchange, |exchange| {
        exchange.members[0].role.log_tail().contains("has removed the certificate of this key file")
            && exchange.parties[0].role.log_tail().contains("former member")
    });
}

#[test]
fn operators_see_what_members_may_cost_and_have_spent() {
    let mut exchange = exchange("budgets");
    let names = [0, 1].map(|member: usize| exchange.members[member].at.name.clone());
    // The second one answers a looking glass.
    let configuration = exchange.files.member(&names[1]);
    let text = fs::read_to_string(&configuration).expect("a configuration");
    fs::write(&configuration, text.replace("[status]\n", "[status]\nbirdwatcher = true\n")).expect("written");
    start(&mut exchange, &[0, 1]);
    let name = names[0].clone();
    exchange.announce(&name, &[Announcement::of(PREFIX.parse().expect("a prefix"))]).expect("taken");
    eventually("the other member has the route", &mut exchange, |exchange| has(exchange, 1));
    let shown = |at: &ProcessLayout, more: &[&str]| {
        let address = at.status.to_string();
        let arguments = [&["show", "status", "--url", address.as_str()][..], more].concat();
        exchange.files.tool(&arguments).expect("shown")
    };
    let json = |at| serde_json::from_str::<Value>(&shown(at, &["--json"])).expect("JSON");
    let of_member = &exchange.members[0].at.proxy;
    let budget = &json(of_member)["budget"];
    assert_eq!((&budget["prefixes"], &budget["resyncs_per_hour"]), (&1.into(), &720.into()), "{budget}");
    let text = shown(of_member, &["--all"]);
    let line = text.lines().find(|line| line.starts_with("budget ")).unwrap_or_default();
    assert!(line.contains("prefixes 1 of ") && line.contains("2000 objects and 32768 KiB a second"), "{text}");
    let page = get(&of_member.namespace, of_member.status, "/metrics").expect("a page");
    assert!(
        page.contains("\nwayleave_member_announced_prefixes 1")
            && page.contains("\nwayleave_member_resyncs_left_number ")
    );
    tables_at_the_members(&exchange, &names);
    for (party, stored) in [(0, true), (1, false)] {
        let at = &exchange.parties[party].at.process;
        let budgets = &json(at)["budgets"];
        assert_eq!(
            (&budgets[0]["slot"], &budgets[0]["prefixes"], &budgets[1]["prefixes"]),
            (&0.into(), &1.into(), &0.into())
        );
        assert_eq!(budgets[0]["stored"].is_u64() && budgets[0]["choices_left"].is_u64(), stored, "{budgets}");
        let text = shown(at, &["--all"]);
        let row = text.lines().skip_while(|line| !line.starts_with("SLOT")).nth(1).unwrap_or_default();
        assert!(row.starts_with("0 ") && row.contains(" 1 of "), "{text}");
    }
}

/// What the two members show: who has the one route that the first announces, and why; nothing of it is at a party.
fn tables_at_the_members(exchange: &DemoExchange, names: &[String; 2]) {
    let [first, second] = [0, 1].map(|member: usize| &exchange.members[member].at.proxy);
    let page = |at: &ProcessLayout, path: &str| -> Result<Value, String> {
        let text = get(&at.namespace, at.status, path).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("{path}: {error}: {text}"))
    };
    let routes = page(second, "/api/v1/routes").expect("routes");
    let row = &routes["routes"][0];
    assert_eq!((&row["prefix"], &row["announcer"]["name"]), (&PREFIX.into(), &names[0].as_str().into()), "{routes}");
    assert!(row["state"] == "installed" && row["age_secs"].is_u64(), "{routes}");
    let count = |query: &str| {
        let value = page(second, &format!("/api/v1/routes?{query}")).expect("routes");
        value["routes"].as_array().map_or(0, Vec::len)
    };
    let asn = row["as_path"][0].as_u64().expect("an AS");
    for (query, rows) in [
        ("prefix=203.0.113.7".to_owned(), 1),
        ("prefix=203.0.112.0/20&longer=true".to_owned(), 1),
        ("prefix=198.51.100.0/24".to_owned(), 0),
        (format!("announcer={}", names[0]), 1),
        (format!("announcer={}", names[1]), 0),
        (format!("announcer=AS{asn}&on_path={asn}&all=true"), 1),
        ("reason=first-as".to_owned(), 0),
        ("after=0.0.0.0/0,0".to_owned(), 1),
        (format!("after={PREFIX},{}", u32::MAX), 0),
    ] {
        assert_eq!(count(&query), rows, "{query}");
    }
    assert!(routes["next"].is_null() && routes["installed"] == 1, "{routes}");
    assert!(page(second, "/api/v1/routes?after=1").is_err_and(|why| why.contains("expected what a page before said")));
    assert!(page(second, "/api/v1/routes?lnger=true").is_err_and(|why| why.contains("unknown parameter")));
    let address = first.status.to_string();
    let tool =
        |arguments: &[&str]| exchange.files.tool(&[arguments, &["--url", address.as_str()]].concat()).expect("shown");
    assert!(tool(&["show", "exports"]).contains("announced"), "{}", tool(&["show", "exports"]));
    let whole = tool(&["show", "exports", PREFIX]);
    assert!(whole.contains(&format!("  + {} (AS", names[1])), "{whole}");
    let to = tool(&["why", PREFIX, "--to", &names[1]]);
    assert!(to.contains(&names[1]) && to.contains("nothing restricts it"), "{to}");
    let peers = page(first, "/api/v1/peers").expect("peers");
    for peer in peers["peers"].as_array().expect("a list") {
        assert!(peer["uptime_secs"].is_u64() && peer["octets_received"].as_u64() > Some(0), "{peers}");
    }
    assert_eq!(
        (&peers["peers"][0]["prefixes_out"], &peers["peers"][2]["prefixes_in"]),
        (&1.into(), &1.into()),
        "{peers}"
    );

    let glass = |path: &str| page(second, &format!("/birdwatcher/{path}"));
    let protocols = glass("protocols/bgp").expect("protocols");
    let of_first = &protocols["protocols"]["R0"];
    assert_eq!(
        (&of_first["description"], &of_first["state"]),
        (&names[0].as_str().into(), &"up".into()),
        "{protocols}"
    );
    assert_eq!(
        (&of_first["routes"]["imported"], &of_first["routes"]["filtered"]),
        (&1.into(), &0.into()),
        "{protocols}"
    );
    for path in
        ["routes/protocol/R0", "routes/prefix?prefix=203.0.113.0/24", "route/net/203.0.113.7", "routes/table/master"]
    {
        let value = glass(path).expect("routes");
        assert!(value["api"]["Version"].is_string() && value["more"] == false, "{path}: {value}");
        let route = &value["routes"][0];
        assert_eq!((&route["network"], &route["from_protocol"]), (&PREFIX.into(), &"R0".into()), "{path}: {value}");
        assert_eq!(route["primary"], true, "{path}: {value}");
    }
    for path in ["routes/filtered/R0", "routes/noexport/R0", "ipv6/routes/table/master"] {
        assert_eq!(glass(path).expect("no routes")["routes"], serde_json::json!([]), "{path}");
    }
    assert_eq!(glass("status").expect("a status")["status"]["message"], "Daemon is up and running");
    let index = |at: &ProcessLayout| get(&at.namespace, at.status, "/").expect("the first page");
    assert!(index(second).contains("/birdwatcher/status") && index(second).contains("/api/v1/exports"));
    assert!(!index(first).contains("birdwatcher"), "it was not asked for");
    // Neither a member that has not asked for it nor a party has any of that.
    let parties = exchange.parties.iter().map(|party| &party.at.process);
    for at in parties.clone().chain([first]) {
        for path in ["/birdwatcher/status", "/birdwatcher/routes/table/master"] {
            assert!(page(at, path).is_err_and(|why| why.contains("404")), "{path}");
        }
    }
    for at in parties {
        assert!(page(at, "/api/v1/exports").is_err_and(|why| why.contains("404")));
        assert!(page(at, "/api/v1/routes?all=true").is_err_and(|why| why.contains("unknown parameter")));
    }
}

#[test]
fn a_signed_profile_counts_at_every_proxy_for_routes_that_are_there() {
    const LONG: &str = "203.0.113.0/25";
    // Of an AS whose ASPA record does not name the announcer.
    const LEAKED: &str = "198.51.100.0/24";
    let mut exchange = exchange("members-profile");
    let config = exchange.files.member(&exchange.members[1].at.name);
    let text = fs::read_to_string(&config).expect("a configuration");
    fs::write(&config, text + "\n[rpki]\nfile = \"roas.json\"\n").expect("written");
    let records = format!(
        "{{\"roas\":[{{\"asn\":64511,\"prefix\":\"{LEAKED}\",\"maxLength\":24}}],\
         \"aspas\":[{{\"customer_asid\":64511,\"providers\":[64500]}}]}}"
    );
    fs::write(config.with_file_name("roas.json"), records).expect("written");
    start(&mut exchange, &[0, 1]);
    let name = exchange.members[0].at.name.clone();
    let of = |text: &str| Announcement::of(text.parse().expect("a prefix"));
    let announced = [of(PREFIX), of(LONG), of(LEAKED).behind(&[Asn(64_511)])];
    exchange.announce(&name, &announced).expect("taken");
    let has_other = |exchange: &mut DemoExchange, text: &str| {
        let prefix: Prefix = text.parse().expect("a prefix");
        exchange.members[1].router.table().unwrap_or_default().iter().any(|route| route.prefix == prefix)
    };
    let has_long = |exchange: &mut DemoExchange| has_other(exchange, LONG);
    eventually("the other member has all routes", &mut exchange, |exchange| {
        has(exchange, 1) && has_long(exchange) && has_other(exchange, LEAKED)
    });
    let url = exchange.members[1].at.proxy.status.to_string();
    let shown = exchange.files.tool(&["show", "profile", "--url", &url]).expect("an answer");
    assert!(shown.contains("no profile"), "{shown}");

    let file = exchange.files.path("profile.toml");
    fs::write(&file, "[profile]\nrefuse_aspa_invalid = true\n").expect("written");
    let (set, key, out) =
        (exchange.files.member_set(1), exchange.files.path("operator1.key"), exchange.files.path("p"));
    let propose = ["members", "propose", &set, "--operator", &key, "--out", &out, "--profile", &file];
    exchange.files.tool(&propose).expect("proposed");
    let (set, key) = (exchange.files.member_set(2), exchange.files.path("operator2.key"));
    exchange.files.tool(&["members", "countersign", &set, &out, "--operator", &key, "--yes"]).expect("countersigned");
    exchange.parties[1].role.reload().expect("it runs");
    eventually("what the profile refuses is gone, and nothing else", &mut exchange, |exchange| {
        has(exchange, 1) && !has_long(exchange) && !has_other(exchange, LEAKED)
    });
    let status = exchange.members[1].ask("/api/v1/status").expect("an answer");
    assert_eq!(status["refused_at_receive"]["aspa-invalid"], 1, "{status:#}");
    let why =
        |more: &[&str]| exchange.files.tool(&[&["why", LEAKED, "--url", &url], more].concat()).expect("an answer");
    let announcer = exchange.members[0].at.asn;
    let words = format!("ASPA-invalid: AS64511 does not list {announcer}, its next AS on the path, as a provider");
    assert!(why(&["--json"]).contains(&words), "{}", why(&["--json"]));
    assert!(why(&[]).contains("ASPA: invalid, AS64511 does not list"), "{}", why(&[]));
    let shown = exchange.files.tool(&["show", "profile", "--url", &url]).expect("an answer");
    assert!(shown.contains("ipv4 longest") && shown.contains("on the announcer's honesty rests"), "{shown}");
    let json = exchange.files.tool(&["show", "profile", "--url", &url, "--json"]).expect("an answer");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["profile"]["ipv4_longest"], &json["exchange"]), (&24.into(), &"demo-ix".into()));
    // The announcer is told why.
    let own = exchange.members[0].at.proxy.status.to_string();
    eventually("it says so", &mut exchange, |exchange| {
        let said = exchange.files.tool(&["why", LONG, "--url", &own, "--json"]).unwrap_or_default();
        said.contains("not of the lengths that this exchange takes, 8 to 24")
    });
    refuses_by_data(&mut exchange);
}

/// OPS, data: the registries' lists, signed by both operators' machines, count at a proxy that reads them, for routes that are there.
fn refuses_by_data(exchange: &mut DemoExchange) {
    let path = |exchange: &DemoExchange, name: &str| exchange.files.path(name);
    let tool = |exchange: &DemoExchange, arguments: &[&str]| exchange.files.tool(arguments).expect("done");
    let machines = ["machine1.key", "machine2.key"].map(|name| path(exchange, name));
    let keys = machines.each_ref().map(|file| {
        tool(exchange, &["keys", "new", file]);
        let shown = tool(exchange, &["keys", "show", file]);
        let sign = shown.split_whitespace().find(|word| word.starts_with("sign:ed25519:")).expect("a signing key");
        sign.to_owned()
    });
    let (set, out, profile) = (exchange.files.member_set(2), path(exchange, "p"), path(exchange, "profile.toml"));
    fs::write(&profile, format!("[profile]\n[profile.data]\nkeys = [\"{}\", \"{}\"]\n", keys[0], keys[1]))
        .expect("written");
    let operators = ["operator1.key", "operator2.key"].map(|name| path(exchange, name));
    let propose = ["members", "propose", &set, "--operator", &operators[0], "--out", &out, "--profile", &profile];
    tool(exchange, &propose);
    tool(exchange, &["members", "countersign", &set, &out, "--operator", &operators[1], "--yes"]);
    exchange.parties[1].role.reload().expect("it runs");
    let status = |exchange: &DemoExchange| exchange.members[1].ask("/api/v1/status").unwrap_or_default();
    let has_problem = |exchange: &DemoExchange, what: &str| {
        let status = status(exchange);
        status["problems"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|said| said.as_str().is_some_and(|said| said.contains(what)))
    };
    eventually("a proxy that reads no data says so", exchange, |exchange| {
        has_problem(exchange, "name their file in [data]")
    });

    let shown: Value = serde_json::from_str(&tool(exchange, &["members", "show", &set, "--json"])).expect("JSON");
    let announcer = &exchange.members[0].at.name;
    let members = shown["members"].as_array().expect("members");
    let asn =
        members.iter().find(|member| member["name"] == announcer.as_str()).map(|member| member["asn"].to_string());
    let (irr, asn) = (path(exchange, "irr"), asn.expect("the announcer"));
    let others_irr = path(exchange, "irr2");
    for folder in [&irr, &others_irr] {
        fs::create_dir(folder).expect("a folder");
    }
    let made = |exchange: &DemoExchange, number: &str, prefix: &str, signers: &[&String]| {
        let list = format!("{{\"NN\":[{{\"prefix\":\"{prefix}\",\"exact\":true}}]}}");
        // Each operator asks the registries, and builds from what it has.
        let (next, own) = (path(exchange, "next.data"), path(exchange, "own.data"));
        for (folder, out) in [(&irr, &next), (&others_irr, &own)] {
            fs::write(format!("{folder}/AS{asn}.ipv4.json"), &list).expect("written");
            fs::write(format!("{folder}/AS{asn}.asns.json"), format!("{{\"NN\":[{asn}]}}")).expect("written");
            tool(exchange, &["members", "data", "build", out, "--members", &set, "--irr", folder, "--number", number]);
        }
        for (key, how) in signers.iter().zip([&["--first"][..], &["--compare", own.as_str()]]) {
            let sign = ["members", "data", "sign", &next, "--members", &set, "--key", key.as_str()];
            tool(exchange, &[&sign[..], how].concat());
        }
        fs::rename(&next, path(exchange, "demo-ix.data")).expect("moved");
    };
    made(exchange, "2", "198.51.100.0/24", &[&machines[0], &machines[1]]);
    let configuration = exchange.files.member(&exchange.members[1].at.name);
    let text = fs::read_to_string(&configuration).expect("a configuration");
    let file = path(exchange, "demo-ix.data");
    fs::write(&configuration, format!("{text}\n[data]\nfile = \"{file}\"\n")).expect("written");
    exchange.members[1].role.reload().expect("it runs");
    eventually("what the registries do not have is gone", exchange, |exchange| {
        !has(exchange, 1) && status(exchange)["refused_at_receive"]["irr-prefix"] == 1
    });
    assert_eq!(status(exchange)["data"]["number"], 2);
    // One operator alone changes nothing, nor does an older number.
    made(exchange, "3", PREFIX, &[&machines[0]]);
    eventually("it is refused", exchange, |exchange| has_problem(exchange, "party 2's operator did not sign them"));
    made(exchange, "1", PREFIX, &[&machines[0], &machines[1]]);
    eventually("it is refused", exchange, |exchange| has_problem(exchange, "they have number 1, and 2 is in force"));
    assert!(!has(exchange, 1));
    made(exchange, "3", PREFIX, &[&machines[0], &machines[1]]);
    eventually("what they have now is back", exchange, |exchange| {
        has(exchange, 1) && status(exchange)["data"]["number"] == 3
    });
}

#[test]
fn a_start_with_another_set_is_refused_with_who_erred_and_what_to_do() {
    let mut exchange = exchange("members-start");
    let names: Vec<String> = exchange.members.iter().take(2).map(|member| member.at.name.clone()).collect();
    let of = |exchange: &DemoExchange, member: &str| {
        exchange.files.begin_member_set().expect("begun again");
        exchange.files.propose(&[member]).expect("proposed");
        exchange.files.countersign().expect("countersigned");
        exchange.files.share_member_set().expect("copied");
    };
    of(&exchange, &names[0]);
    start(&mut exchange, &[0]);
    eventually("both parties run", &mut exchange, |exchange| connected(exchange, 0) == [0]);
    for party in &mut exchange.parties {
        party.role.kill();
    }
    // The same slot number, another holder.
    of(&exchange, &names[1]);
    for party in &mut exchange.parties {
        party.role.start().expect("a process");
    }
    eventually("both parties refuse to start", &mut exchange, |exchange| {
        exchange.parties.iter_mut().all(|party| !party.role.is_running())
    });
    for party in &exchange.parties {
        // Messages are broken into lines.
        let log = party.role.log_tail().replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            log.contains("the operators signed two sets of one number") && log.contains("restore the file"),
            "{log}"
        );
    }
}

#[test]
fn a_removal_takes_effect_while_other_files_name_the_member_or_are_damaged() {
    let mut exchange = exchange("members-named");
    let names: Vec<String> = exchange.members.iter().map(|member| member.at.name.clone()).collect();
    exchange.files.recommend(&names[1]).expect("written");
    start(&mut exchange, &[0, 1, 2, 3]);
    eventually("all are served", &mut exchange, |exchange| connected(exchange, 0) == [0, 1, 2, 3]);
    let (set, key) = (exchange.files.member_set(1), exchange.files.path("operator1.key"));
    let leaves = |exchange: &mut DemoExchange, member: usize, left: &[u64]| {
        exchange
            .files
            .tool(&["members", "remove", &set, "--operator", &key, "--name", &names[member]])
            .expect("removed");
        exchange.parties[0].role.reload().expect("it runs");
        eventually("its session has ended at both parties", exchange, |exchange| {
            (0..2).all(|party| connected(exchange, party) == left)
        });
    };
    let log = |exchange: &DemoExchange| exchange.parties[0].role.log_tail();

    // The recommendation names the member that leaves.
    leaves(&mut exchange, 1, &[0, 2, 3]);
    eventually("the line is named", &mut exchange, |exchange| {
        log(exchange).contains("recommendation.toml:2:1: no member") && log(exchange).contains(&names[1])
    });
    let config = exchange.files.party(1).display().to_string();
    let said = exchange.files.tool(&["check", &config]).expect("no error");
    assert!(said.contains("warning") && said.contains("recommendation.toml:2:1: no member `bravo`"), "{said}");
    exchange.parties[0].role.kill();
    exchange.parties[0].role.start().expect("a process");
    eventually("party 1 starts with it", &mut exchange, |exchange| connected(exchange, 0) == [0, 2, 3]);

    // It cannot be read at all, and then neither can the configuration.
    fs::write(exchange.files.path("recommendation.toml"), "[recommendation]\nalpha = 700\n").expect("written");
    leaves(&mut exchange, 2, &[0, 3]);
    eventually("the setting is named", &mut exchange, |exchange| {
        log(exchange).contains("recommendation.toml:2:9: invalid value: integer `700`, expected a number from 0 to 255")
    });
    let text = fs::read_to_string(&config).expect("a configuration").replace("number = 1", "number = 3");
    fs::write(&config, text).expect("written");
    leaves(&mut exchange, 3, &[0]);
    assert!(log(&exchange).contains("party1.toml:2:10: there is no such party, expected 1"), "{}", log(&exchange));
    let said = exchange.files.tool(&["check", &config]).expect_err("an error");
    assert!(said.contains("there is no such party"), "{said}");
}

//! An exchange of one person, for a trial: what `exchange new` makes, how it is marked, and that it carries routes between real routers
//! which share one machine with their proxies.
//!
//! OPS, trial: `exchange new`; a folder that exists, names, addresses and numbers that cannot be; another operator's
//! key in its configuration, its mark or name taken away; both routers beside their proxies: what it makes passes
//! `check` and is changed as any set; nothing is left behind; no party runs it, with who and why; BIRD and FRR carry
//! routes.
//! OPS, session with the router: BIRD with a role, another role, a leaked route (RFC 9234), a shutdown by either end with its text
//! (RFC 9003), `session` and its orders: OTC at BIRD, the leak refused with why, and who did what in the status of the other end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;
use wayleave_core::{Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::frr::Frr;
use wayleave_lab::gobgp::Gobgp;
use wayleave_lab::netns::{Network, Rung, enter_for_test, inside, skipped};
use wayleave_lab::openbgpd::OpenBgpd;
use wayleave_lab::process::{Daemon, wait_until};
use wayleave_lab::routers::{
    BIRD_3, GOBGP, OPENBGPD, Routers, TRIXIE, default_cache, fetch_from, fetched_from, locate_or_fetch,
};
use wayleave_lab::table::{Announcement, Router};

use crate::common::{Folder, program, text};

const TIMEOUT: Duration = Duration::from_secs(60);
/// A prefix that alpha's router has from a provider.
const LEAKED: &str = "203.0.113.64/28";
const MEMBERS: [&str; 4] = ["--member", "alpha=64497@192.0.2.1", "--member", "bravo=64498@192.0.2.2"];

fn new_trial(folder: &Folder) -> String {
    folder.ok(&[&["exchange", "new", "trial"], &MEMBERS[..]].concat())
}

#[test]
fn one_command_makes_what_two_operators_and_each_member_need() {
    let folder = Folder::new("trial-new");
    let said = new_trial(&folder);
    for line in [
        "nobody in it is neutral",
        "party2/wayleave.toml",
        "alpha/bird.conf, frr.conf, gobgpd.toml or bgpd.conf",
        "wayleave why 203.0.113.0/28",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let made = folder.0.join("trial");
    assert_eq!(fs::metadata(&made).expect("a folder").permissions().mode() & 0o777, 0o700);
    for owner in ["party1", "party2", "alpha", "bravo"] {
        let output = folder.run(&["check", &format!("trial/{owner}/wayleave.toml")]);
        let (said, warned) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{owner}: {said}{warned}");
        assert!((said + &warned).contains("`trial-ix` is a trial"), "{owner}");
    }
    // The set is one that both operators have signed, and each changes it from here on as in any exchange.
    let set = folder.ok(&["members", "show", "trial/party1/members", "--json"]);
    let set: Value = serde_json::from_str(&set).expect("JSON");
    assert_eq!((&set["members"][1]["name"], &set["signed_sets"]), (&"bravo".into(), &2.into()), "{set}");
    let propose = ["members", "propose", "trial/party1/members", "--operator", "trial/operators/operator1.key"];
    folder.ok(&[&propose[..], &["--out", "next", "--max-prefix", "alpha=5"]].concat());
    let countersign = ["members", "countersign", "trial/party2/members", "next", "--operator"];
    folder.ok(&[&countersign[..], &["trial/operators/operator2.key", "--yes"]].concat());
    // Nothing is overwritten, and what cannot be made leaves nothing behind.
    let refused = folder.fails(1, &[&["exchange", "new", "trial"], &MEMBERS[..]].concat());
    assert!(refused.contains("exists"), "{refused}");
    for (more, expected) in [
        (&["--name", "example-ix"][..], "begins with `trial-`"),
        (&["--member", "alpha=64499@192.0.2.3"], "twice"),
        (&["--member", "charlie=64499@192.0.2.1"], "twice"),
        (&["--member", "charlie=64499@127.0.0.1"], "cannot be a router's address"),
        (&["--member", "party1=64499@192.0.2.3"], "not the name of another folder"),
        (&["--member", "charlie=64499"], "expected NAME=AS@ADDRESS"),
        (&["--member", "charlie=0@192.0.2.3"], "AS"),
        (&["--rs-asn", "64498"], "is reserved or a member's"),
        (&["--rs-asn", "0"], "is reserved or a member's"),
        (&["--parties", "0.0.0.0"], "is no address at which members reach the parties"),
        (&["--parties", "ff02::1"], "is no address at which members reach the parties"),
    ] {
        let refused = folder.fails(2, &[&["exchange", "new", "other"], &MEMBERS[..], more].concat());
        assert!(refused.contains(expected), "{more:?}: {refused}");
        assert!(!folder.0.join("other").exists(), "{more:?}");
    }
    // A second router of an AS is no slot that is held: the first one has signed for it.
    let more = ["--member", "alpha-2=64497@192.0.2.3", "--json"];
    let made = folder.ok(&[&["exchange", "new", "two"], &MEMBERS[..], &more].concat());
    let made: Value = serde_json::from_str(&made).expect("JSON");
    assert_eq!(made["members"][2]["proxy"], "127.0.0.4:1790", "{made}");
    assert!(folder.ok(&["members", "show", "two/party2/members", "--json"]).contains("\"held\":false"));
    assert!(!folder.ok(&["members", "show", "two/party2/members", "--json"]).contains("\"held\":true"));
}

/// Two organisations could take a trial for an exchange: its name and its configurations say what it is, and a party that has not both
/// operators' keys does not run it.
#[test]
fn a_trial_is_marked_and_refused_where_its_operators_are_two() {
    let folder = Folder::new("trial-marked");
    new_trial(&folder);
    let refused = folder.fails(
        2,
        &[
            "members",
            "init",
            "members",
            "--exchange",
            "trial-ix",
            "--operator1",
            &operator(&folder, 1),
            "--operator2",
            &operator(&folder, 2),
        ],
    );
    assert!(refused.contains("are those of trials"), "{refused}");
    let file = folder.0.join("trial/party1/wayleave.toml");
    let config = fs::read_to_string(&file).expect("a configuration");
    folder.ok(&["keys", "new", "other.key"]);
    let other = public(&folder, "other.key");
    let mistakes = [
        // Party 2's operator is somebody else.
        (config.replace(&operator(&folder, 2), &other), "is not the key of party 2's operator"),
        // This party has one of the keys alone.
        (config.replace("../operators", "."), "the key of party 1's operator is not in the trial"),
        // The mark was taken away, or the name.
        (config.replace("trial = ", "#trial = "), "names that begin with `trial-` are those of trials"),
        (config.replace("trial-ix", "example-ix"), "expected one that begins with `trial-`"),
    ];
    for (changed, expected) in mistakes {
        assert_ne!(changed, config, "{expected}");
        fs::write(&file, changed).expect("written");
        for command in
            [&["check", "trial/party1/wayleave.toml"][..], &["run", "rs", "-c", "trial/party1/wayleave.toml"]]
        {
            let refused = folder.fails(1, command);
            assert!(refused.contains(expected), "{command:?}: {refused}");
        }
    }
}

fn public(folder: &Folder, key: &str) -> String {
    let shown: Value = serde_json::from_str(&folder.ok(&["keys", "show", key, "--json"])).expect("JSON");
    shown["sign"].as_str().expect("a key").to_owned()
}

fn operator(folder: &Folder, number: u8) -> String {
    public(folder, &format!("trial/operators/operator{number}.key"))
}

/// A router and the proxy beside it on one machine, as `exchange new` writes both: BIRD here, FRR there, then GoBGP and OpenBGPD, and both parties.
#[test]
fn routers_have_a_session_with_a_proxy_on_their_own_machine() {
    let test = "trial::routers_have_a_session_with_a_proxy_on_their_own_machine";
    let mut routers = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers,
        Err(error) => return skipped(&format!("{test}: {error}")),
    };
    for package in [&GOBGP, &OPENBGPD] {
        if let Err(error) = routers.add(package, &default_cache(), &mut |line| eprintln!("{line}")) {
            skipped(&format!("{test}, in part: {error}"));
        }
    }
    if enter_for_test(test).is_none() {
        return;
    }
    session_on_one_machine(&routers, "trial-routers");
}

/// The same with the BIRD 3 of a newer Debian, which has other names for the same things.
#[test]
#[ignore = "fetches BIRD 3 with its libraries from another release"]
fn a_bird_3_has_a_session_with_a_proxy_on_its_own_machine() {
    let test = "trial::a_bird_3_has_a_session_with_a_proxy_on_its_own_machine";
    let cache = default_cache();
    let mut say = |line: &str| eprintln!("{line}");
    let fetched = || fetched_from(&TRIXIE, &BIRD_3, &cache);
    if inside().is_none()
        && fetched().is_none()
        && let Err(error) = fetch_from(&TRIXIE, &BIRD_3, &cache, &mut say)
    {
        return skipped(&format!("{test}: {error}"));
    }
    let routers = match locate_or_fetch(&cache, &mut say) {
        Ok(routers) => routers,
        Err(error) => return skipped(&format!("{test}: {error}")),
    };
    if enter_for_test(test).is_none() {
        return;
    }
    let bird = fetched().expect("it is there");
    session_on_one_machine(&Routers { bird, ..routers }, "trial-bird-3");
}

fn session_on_one_machine(routers: &Routers, name: &str) {
    let folder = Folder::new(name);
    folder.ok(&[&["exchange", "new", "trial", "--parties", "192.0.2.251"], &MEMBERS[..]].concat());
    let network = Network::new().expect("a network");
    // A router does not use what has an address of its own machine as its next hop: each member has a machine.
    let machine = |name: &str, address: &str| network.attach(name, &[format!("{address}/24")]).expect("attached");
    let exchange = machine("exchange", "192.0.2.251");
    let [at_alpha, at_bravo] =
        [("alpha", "192.0.2.1"), ("bravo", "192.0.2.2")].map(|(name, address)| machine(name, address));
    let roles = [
        ("rs", "party1", &exchange),
        ("rs", "party2", &exchange),
        ("member", "alpha", &at_alpha),
        ("member", "bravo", &at_bravo),
    ];
    let mut all = roles.map(|(role, owner, machine)| {
        let mut command = machine.command(program(&[]).get_program());
        command.args(["run", role, "--config"]).arg(folder.0.join(format!("trial/{owner}/wayleave.toml")));
        Daemon::start(&mut command, &folder.0.join(format!("{owner}.log"))).expect("started")
    });
    let written = |path: &str| fs::read_to_string(folder.0.join("trial").join(path)).expect("a configuration");
    // The same with a role (RFC 9234), and with a route that it leaks: as from a provider, whatever BIRD's own check says.
    let leaking = written("alpha/bird.conf")
        .replace("multihop;", "local role rs_client; multihop;")
        .replace(" blackhole; }", &format!(" blackhole; route {LEAKED} blackhole; }}"))
        .replace(
            "export where proto = \"own\";",
            &format!(
                "export filter {{ if proto != \"own\" then reject; if net = {LEAKED} then bgp_otc = 64510; accept; }};"
            ),
        );
    assert!(leaking.contains("bgp_otc") && leaking.matches(LEAKED).count() == 2, "{leaking}");
    let mut alpha = Bird::with_text(&routers.bird, at_alpha.clone(), "alpha", leaking.clone(), network.state());
    let frr = (Asn(64_498), written("bravo/frr.conf"));
    let mut bravo = Frr::with_text(&routers.frr, at_bravo.clone(), "bravo", frr, network.state());
    alpha.start().expect("started");
    bravo.start().expect("started");
    let [from_alpha, from_bravo] =
        ["203.0.113.0/28", "203.0.113.16/28"].map(|text| text.parse::<Prefix>().expect("a prefix"));
    let has = |router: &mut dyn Router, prefix: Prefix, path: u32| {
        // A route is in the table before the router has looked for its next hop.
        let route = wait_until(TIMEOUT, || {
            let table = router.table().ok()?;
            table.into_iter().find(|route| route.prefix == prefix && !route.as_path.is_empty() && route.best)
        });
        let route = route.unwrap_or_else(|| {
            let logs = ["party1", "party2", "alpha", "bravo"]
                .map(|owner| fs::read_to_string(folder.0.join(format!("{owner}.log"))).unwrap_or_default());
            let (name, table, log) = (router.name().to_owned(), router.table(), router.log_tail());
            panic!("{name} never got {prefix}, or cannot use it: {table:?}\n{log}\n{}", logs.join("\n"))
        });
        assert_eq!(route.as_path, [Asn(path)], "{route:?}");
    };
    has(&mut bravo, from_alpha, 64_497);
    has(&mut alpha, from_bravo, 64_498);
    let mut why = at_bravo.command(program(&[]).get_program());
    why.args(["why", "203.0.113.0/28", "--config"]).arg(folder.0.join("trial/bravo/wayleave.toml"));
    let explained = text(&why.output().expect("it runs").stdout);
    assert!(explained.contains("alpha"), "{explained}");
    let at_proxy = |arguments: &[&str]| {
        let mut command = at_alpha.command(program(&[]).get_program());
        command.args(arguments).arg("--config").arg(folder.0.join("trial/alpha/wayleave.toml"));
        let output = command.output().expect("it runs");
        text(&output.stdout) + &text(&output.stderr)
    };
    let says = |arguments: &[&str], expected: &[&str]| {
        let mut last = String::new();
        let found = wait_until(TIMEOUT, || {
            last = at_proxy(arguments);
            expected.iter().all(|words| last.contains(words)).then_some(())
        });
        found.unwrap_or_else(|| panic!("{arguments:?}, expected {expected:?}: {last}"));
    };
    roles_and_leaks(&alpha, &mut bravo, says);
    orders_for_the_session(&alpha, &mut bravo, says, from_alpha);
    // A role that does not fit.
    alpha.kill();
    let peering = leaking.replace("local role rs_client;", "local role peer;");
    let mut alpha = Bird::with_text(&routers.bird, at_alpha.clone(), "alpha", peering, network.state());
    alpha.start().expect("started");
    says(&["show", "status", "--json"], &["states the role peer, rs-client is expected", "`local role rs_client;`"]);
    // The same session with the other two routers.
    if let Routers { gobgp: Some(gobgp), openbgpd: Some(openbgpd), .. } = routers
        && inside() == Some(Rung::Root)
    {
        alpha.kill();
        bravo.kill();
        let text = written("alpha/gobgpd.toml");
        let mut alpha = Gobgp::with_text(gobgp, at_alpha.clone(), "alpha-gobgp", text, network.state());
        let text = format!("fib-update no\n{}", written("bravo/bgpd.conf"));
        let mut bravo = OpenBgpd::with_text(openbgpd, at_bravo.clone(), "bravo-openbgpd", text, network.state());
        alpha.announce(&[Announcement::of(from_alpha)]).expect("taken");
        alpha.start().expect("started");
        bravo.start().expect("started");
        has(&mut bravo, from_alpha, 64_497);
        has(&mut alpha, from_bravo, 64_498);
    }
    for daemon in &mut all {
        assert!(daemon.is_running(), "{}", daemon.log_tail(20));
        assert!(daemon.stop(TIMEOUT));
    }
}

/// What BIRD is asked.
fn birdc(router: &Bird, question: &str) -> String {
    let (_, mut client) = router.shell().expect("BIRD has one");
    text(&client.arg(question).output().expect("it runs").stdout)
}

/// RFC 9234: the role is agreed, the route that BIRD gets has OTC of the exchange, and a route with OTC is not announced, with why.
fn roles_and_leaks(alpha: &Bird, bravo: &mut dyn Router, says: impl Fn(&[&str], &[&str])) {
    let got = birdc(alpha, "show route all 203.0.113.16/28");
    assert!(got.contains("BGP.otc: 64496") || got.contains("bgp_otc: 64496"), "{got}");
    says(&["show", "peers", "--json"], &["\"role\":\"rs-client\""]);
    let leak = "it carries OTC of AS64510 (Only to Customer), so that it is a route leak";
    says(&["why", "--announced", LEAKED], &["  x route leak", leak, "RFC 9234 section 5"]);
    says(&["show", "status", "--json"], &[leak]);
    let leaked: Prefix = LEAKED.parse().expect("a prefix");
    let table = bravo.table().expect("a table");
    assert!(table.iter().all(|route| route.prefix != leaked), "{table:?}");
}

/// `session`, and what both ends say to each other's operator (RFC 9003).
fn orders_for_the_session(alpha: &Bird, bravo: &mut dyn Router, says: impl Fn(&[&str], &[&str]), from_alpha: Prefix) {
    let mut has_route = |wanted: bool| {
        let found = wait_until(TIMEOUT, || {
            let has = bravo.table().ok()?.iter().any(|route| route.prefix == from_alpha);
            (has == wanted).then_some(())
        });
        found.unwrap_or_else(|| panic!("{from_alpha} is there: {}, {:?}", !wanted, bravo.table()));
    };
    says(&["session", "refresh", "--json"], &["\"families\":[\"ipv4\"]"]);
    says(&["session", "disable", "--message", "back at 4"], &["Administrative Shutdown", "`wayleave session enable`"]);
    has_route(false);
    let disabled = "is disabled by its operator: \"back at 4\"; `wayleave session enable` takes it up again";
    says(&["show", "status", "--json"], &["\"router_disabled\":\"back at 4\"", "is disabled by its operator: "]);
    says(&["show", "status"], &["your router  disabled"]);
    says(&["why", "203.0.113.16/28"], &[disabled]);
    // It stays so though BIRD tries again and again, whose operator reads the text.
    let told = wait_until(TIMEOUT, || {
        let shown = birdc(alpha, "show protocols all exchange");
        (shown.contains("back at 4") && !shown.contains("Established")).then_some(())
    });
    told.unwrap_or_else(|| panic!("{}", birdc(alpha, "show protocols all exchange")));
    says(&["session", "refresh"], &["the session with the router is disabled"]);
    says(&["session", "disable", "--message", &"x".repeat(256)], &["256 octets", "255 at most (RFC 9003)"]);
    says(&["session", "enable"], &["the session with the router is enabled"]);
    says(&["session", "enable"], &["the session with the router is not disabled"]);
    has_route(true);
    says(&["session", "clear", "--json"], &["\"was_up\":true"]);
    says(&["show", "peers", "--json"], &["\"state\":\"Established\""]);
    // BIRD's operator does the same.
    birdc(alpha, "disable exchange \"rack 3 \u{202e}moves\"");
    says(&["show", "status", "--json"], &["rack 3 ", "u{202e}moves", "whoever runs the router"]);
    birdc(alpha, "enable exchange");
    has_route(true);
}

//! `wayleave shadow` beside a real BIRD that is the route server of three members, which are BIRDs too.
//!
//! OPS, shadow: a route hidden from one member, a hidden path, a prefix that is too long, a changed MED, a member's preference: each is a
//! difference by its cause or none, the same from a session and from a dump; nothing is announced or installed.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wayleave_bgp::mrt::{MrtReader, Record};
use wayleave_lab::bird::Bird;
use wayleave_lab::netns::{Network, NetworkNamespace, enter_for_test, skipped};
use wayleave_lab::process::wait_until;
use wayleave_lab::routers::{default_cache, locate_or_fetch};
use wayleave_lab::table::Router;

use crate::common::{Folder, eventually, free, program, text};
use crate::guide::snippet;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Name, host on the LAN, AS, and what its BIRD originates.
const MEMBERS: [(&str, u8, u32, &str); 3] = [
    (
        "alpha",
        1,
        64_501,
        "route 20.1.0.0/16 blackhole { bgp_community.add((0,64503)); };
         route 20.2.0.0/16 blackhole { bgp_community.add((0,64503)); };
         route 20.3.0.0/25 blackhole; route 20.5.0.0/16 blackhole;",
    ),
    (
        "bravo",
        2,
        64_502,
        "route 20.2.0.0/16 blackhole { bgp_path.prepend(64502); };
         route 20.4.0.0/16 blackhole; route 20.5.0.0/16 blackhole;",
    ),
    (
        "charlie",
        3,
        64_503,
        "route 20.6.0.0/16 blackhole { bgp_community.add((0,64500)); bgp_community.add((64500,64501)); };
         route 20.7.0.0/16 blackhole { bgp_community.add((65535,65281)); };",
    ),
];
const TIMERS: &str =
    "graceful restart off; hold time 9; connect delay time 1; connect retry time 1; error wait time 1, 2;";

/// The route server as exchanges have it, without a table for each member, and with a session that gives all routes.
fn server() -> String {
    let mut text = format!(
        "log stderr {{ info, remote, warning, error, auth, fatal, bug }};
router id 192.0.2.253;
protocol device {{ }}
function may_go(int peer)
{{
  if (0, peer) ~ bgp_community then return false;
  if (64500, peer) ~ bgp_community then return true;
  if (0, 64500) ~ bgp_community then return false;
  return true;
}}
template bgp rs_member {{
  local 192.0.2.253 as 64500; rs client; {TIMERS}
}}
"
    );
    // As an operator has it from the guide.
    text += &snippet("shadow.md", "bird");
    for (name, host, asn, _) in MEMBERS {
        let med = if name == "charlie" { "if net = 20.4.0.0/16 then bgp_med = 5;" } else { "" };
        text += &format!(
            "protocol bgp {name} from rs_member {{ neighbor 192.0.2.{host} as {asn}; ipv4 {{ import all; export filter {{
  if !may_go({asn}) then reject;
  {med} bgp_community.delete([(0, *), (64500, *)]);
  accept;
}}; }}; }}
"
        );
    }
    text
}

fn member((name, host, asn, routes): (&str, u8, u32, &str)) -> String {
    format!(
        "# {name}
log stderr {{ info, remote, warning, error, auth, fatal, bug }};
router id 192.0.2.{host};
protocol device {{ }}
protocol static own {{ ipv4; {routes} }}
protocol bgp exchange {{
  local 192.0.2.{host} as {asn}; neighbor 192.0.2.253 as 64500; enforce first as off; {TIMERS}
  ipv4 {{ import all; export where proto = \"own\"; }};
}}
"
    )
}

/// The file of `wayleave shadow`, with this source of what the server learned.
fn configuration(source: &str) -> String {
    let mut text =
        format!("[shadow]\nasn = 64500\nexchange = \"test-ix\"\nlab = true\nsettle_secs = 2\nwait_secs = 60\n{source}");
    for (name, host, asn, _) in MEMBERS {
        text += &format!(
            "[[member]]\nname = \"{name}\"\nasn = {asn}\naddresses = [\"192.0.2.{host}\"]\ngiven = [\"{name}.txt\"]\n"
        );
        if name == "charlie" {
            text += "policy = \"charlie.policy.toml\"\n";
        }
    }
    text
}

/// What BIRD's client answers.
fn ask(server: &Bird, question: &str) -> String {
    let (_, mut client) = server.shell().expect("BIRD has a client");
    let output = client.args(question.split(' ')).output().expect("the client runs");
    text(&output.stdout)
}

/// Runs `wayleave shadow` in the namespace of the route server's neighbour.
fn shadow(place: &NetworkNamespace, folder: &Path, arguments: &[&str]) -> String {
    let mut command: Command = place.command(env!("CARGO_BIN_EXE_wayleave"));
    let output = command.current_dir(folder).arg("shadow").args(arguments).output().expect("the program runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Each difference: cause, prefix and member.
fn differences(file: &Path) -> Vec<(String, String, String)> {
    let lines = fs::read_to_string(file).expect("the differences");
    let of = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let field = |name: &str| line[name].as_str().expect("text").to_owned();
        (field("cause"), field("prefix"), field("member"))
    };
    let mut all: Vec<_> = lines.lines().map(of).collect();
    all.sort();
    all
}

fn routes_of(place: &NetworkNamespace) -> String {
    let output = place.command("ip").args(["route", "show", "table", "all"]).output().expect("ip runs");
    text(&output.stdout)
}

/// BIRD computes the time at which a route came anew for each answer, and may differ by a millisecond.
fn without_times(text: &str) -> String {
    let is_time = |word: &&str| word.ends_with(']') && word.matches(':').count() == 2 && word.contains('.');
    text.split_whitespace().filter(|word| !is_time(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_report_beside_bird_has_each_difference_by_its_cause_and_nothing_is_installed() {
    let routers = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers,
        Err(error) => return skipped(&error.to_string()),
    };
    let test = "shadow::the_report_beside_bird_has_each_difference_by_its_cause_and_nothing_is_installed";
    if enter_for_test(test).is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let attach = |name: &str, host: u8| network.attach(name, &[format!("192.0.2.{host}/24")]).expect("attached");
    let (place, own) = (attach("rs", 253), attach("shadow", 10));
    let folder: PathBuf = network.state().to_owned();
    let mut server = Bird::with_text(&routers.bird, place, "rs", server(), &folder);
    server.start().expect("started");
    let mut members: Vec<Bird> = MEMBERS
        .into_iter()
        .map(|of| Bird::with_text(&routers.bird, attach(of.0, of.1), of.0, member(of), &folder))
        .collect();
    members.iter_mut().for_each(|member| member.start().expect("started"));
    // What each is given, and all that it learned, of which it keeps the one with NO_EXPORT: alpha 2, bravo 4, charlie 3, 9.
    let mut counts = Vec::new();
    let settled = wait_until(TIMEOUT, || {
        let count = |question: &str| ask(&server, question).matches("unicast [").count();
        counts = MEMBERS.map(|(name, ..)| count(&format!("show route export {name}"))).to_vec();
        counts.push(count("show route"));
        (counts == [2, 4, 3, 9]).then_some(())
    });
    assert!(settled.is_some(), "{counts:?}\n{}", server.log_tail());
    for (name, ..) in MEMBERS {
        let table = ask(&server, &format!("show route export {name} all"));
        fs::write(folder.join(format!("{name}.txt")), table).expect("written");
    }
    let dump = folder.join("rib4.mrt");
    ask(&server, &format!("mrt dump table \"master4\" to \"{}\"", dump.display()));
    // BIRD writes it in steps.
    let entries = || {
        let dump = fs::read(&dump).unwrap_or_default();
        let rib = |record| if let Ok(Record::Rib(entries)) = record { entries.len() } else { 0 };
        MrtReader::new(&dump[..]).map(rib).sum::<usize>()
    };
    wait_until(TIMEOUT, || (entries() == 9).then_some(())).expect("a whole dump");
    let policy = "[[rule]]\ndirection = \"import\"\npeer = 64502\nclass = 200\n";
    fs::write(folder.join("charlie.policy.toml"), policy).expect("written");
    let mut tables = || members.iter_mut().map(|one| one.table().expect("a table")).collect::<Vec<_>>();
    // What the server has sent, its members may not have taken up yet.
    let taken_up = wait_until(TIMEOUT, || (tables().iter().map(Vec::len).eq([2, 4, 3])).then_some(()));
    assert!(taken_up.is_some(), "{:?}", tables());
    let before = (ask(&server, "show route all"), tables());
    let routes_before = routes_of(&own);

    let session = "[session]\nconnect = \"192.0.2.253:179\"\nasn = 64510\nrouter_id = \"192.0.2.10\"\n";
    let expected: Vec<(String, String, String)> = [
        ("attributes", "20.4.0.0/16", "charlie"),
        ("no-export", "20.7.0.0/16", "alpha"),
        ("no-export", "20.7.0.0/16", "bravo"),
        ("path-hiding", "20.2.0.0/16", "alpha"),
        ("path-hiding", "20.2.0.0/16", "charlie"),
        ("path-hiding", "20.5.0.0/16", "alpha"),
        ("ranking", "20.5.0.0/16", "charlie"),
        ("refused", "20.3.0.0/25", "bravo"),
        ("refused", "20.3.0.0/25", "charlie"),
    ]
    .map(|(cause, prefix, member)| (cause.to_owned(), prefix.to_owned(), member.to_owned()))
    .to_vec();
    for (name, source) in [("session", session.to_owned()), ("dump", "[learned]\nmrt = [\"rib4.mrt\"]\n".to_owned())] {
        let (config, all, page) = (format!("{name}.toml"), format!("{name}.jsonl"), format!("{name}.html"));
        fs::write(folder.join(&config), configuration(&source)).expect("written");
        let arguments = ["--config", &config, "--json", "--differences", &all, "--html", &page];
        let report: Value = serde_json::from_str(&shadow(&own, &folder, &arguments)).expect("JSON");
        assert_eq!(differences(&folder.join(&all)), expected, "{name}: {report}");
        assert_eq!((&report["differences"], &report["unexplained"]), (&9.into(), &0.into()), "{name}");
        assert!(!report["notes"].to_string().contains("ADD-PATH"), "{name}: {report}");
        let charlie = &report["members"][2];
        assert_eq!(
            (&charlie["name"], &charlie["given"], &charlie["computed"]),
            (&"charlie".into(), &3.into(), &3.into())
        );
        let page = fs::read_to_string(folder.join(&page)).expect("a page");
        assert!(page.contains("<h1>Shadow of test-ix</h1>") && page.contains("20.3.0.0/25"), "{page}");
        let said = shadow(&own, &folder, &["--config", &config]);
        assert!(said.contains("9 differences") && said.contains("2 refused (prefix length)"), "{said}");
        assert!(said.contains("1 attributes (MED)") && said.contains("1 ranking (class by rules)"), "{said}");
    }

    // The session announced nothing, and ended; no table changed.
    assert_eq!(routes_of(&own), routes_before);
    let after = (ask(&server, "show route all"), tables());
    assert_eq!(without_times(&after.0), without_times(&before.0));
    assert_eq!(after.1, before.1);
    assert!(!after.0.contains("[wayleave_shadow"), "{}", after.0);
}

/// Whether a message says it: its lines are broken where they are long, also within a word.
fn says(said: &str, expected: &str) -> bool {
    let squeezed = |text: &str| text.chars().filter(|c| !c.is_whitespace() && *c != '│').collect::<String>();
    squeezed(said).contains(&squeezed(expected))
}

#[test]
fn its_file_is_made_checked_and_refused_with_what_to_do() {
    let folder = Folder::new("shadow-file");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/imports/arouteserver.clients.ams-ix.yml");
    let listed = folder.ok(&["init", "shadow", "--import", list.to_str().expect("text")]);
    assert!(
        listed.contains("name = \"1-1-internet-ag\"\nasn = 8560\n") && !listed.contains("name = \"alpha\""),
        "{listed}"
    );
    folder.write("listed.toml", &listed);
    folder.ok(&["check", "--example", "listed.toml"]);
    assert!(says(&folder.fails(2, &["init", "rs", "--import", "x"]), "--import is for `shadow`"));
    folder.ok(&["init", "shadow", "--out", "shadow.toml"]);
    let said = folder.ok(&["check", "--example", "shadow.toml"]);
    assert!(says(&said, "a configuration for `wayleave shadow`"), "{said}");
    let said = folder.fails(1, &["shadow", "--config", "shadow.toml"]);
    assert!(says(&said, "rib4.mrt"), "{said}");
    folder.write(
        "none.toml",
        "[shadow]\nasn = 64500\n[[member]]\nname = \"a\"\nasn = 64501\naddresses = [\"192.0.2.1\"]\n",
    );
    let said = folder.fails(1, &["check", "none.toml"]);
    assert!(says(&said, "nothing says what the server learned"), "{said}");
    folder.write("alpha.txt", "what is this\n");
    folder.write("bravo.txt", "");
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp/bird-2.0.12.rib.mrt"),
        folder.0.join("rib4.mrt"),
    )
    .expect("copied");
    let said = folder.fails(1, &["shadow", "--config", "shadow.toml"]);
    assert!(says(&said, "alpha.txt:1") && says(&said, "birdc show route all"), "{said}");
    folder.write("alpha.txt", "BIRD 2.0.12 ready.\n");
    // The documentation's AS numbers count as reserved without `lab`.
    let said = folder.ok(&["shadow", "--config", "shadow.toml"]);
    assert!(says(&said, "bogon ASN") && says(&said, "0 differences"), "{said}");

    // Data of the registries are not applied, and ASPA records of the file with the ROAs are.
    let keys = ["one.key", "two.key"].map(|file| {
        folder.ok(&["keys", "new", file]);
        let shown = folder.ok(&["keys", "show", file]);
        shown.split_whitespace().find(|word| word.starts_with("sign:ed25519:")).expect("a signing key").to_owned()
    });
    let profile = format!(
        "[profile]\nrefuse_bogon_asns = false\nrefuse_aspa_invalid = true\n[profile.data]\nkeys = [\"{}\", \"{}\"]\n",
        keys[0], keys[1]
    );
    folder.write("profile.toml", &profile);
    let aspas = r#"{"roas": [], "aspas": [{"customer": "AS30", "providers": ["AS31"]}]}"#;
    folder.write("vrps.json", aspas);
    let route = "20.3.0.0/16  unicast [alpha 12:00:00.000] * (100) [AS30i]\n\tBGP.origin: IGP\n\tBGP.as_path: 64501 30\n\
                 \tBGP.next_hop: 192.0.2.1\n";
    folder.write("routes.txt", route);
    folder.write("bravo.txt", route);
    folder.write(
        "data.toml",
        "[shadow]\nasn = 64500\nlab = true\nprofile = \"profile.toml\"\nroas = \"vrps.json\"\n[learned]\n\
         bird = [\"routes.txt\"]\n[[member]]\nname = \"alpha\"\nasn = 64501\naddresses = [\"192.0.2.1\"]\n\
         [[member]]\nname = \"bravo\"\nasn = 64502\naddresses = [\"192.0.2.2\"]\ngiven = [\"bravo.txt\"]\n",
    );
    let said = folder.ok(&["shadow", "--config", "data.toml", "--json"]);
    assert!(says(&said, "[profile.data] is not applied"), "{said}");
    assert!(says(&said, "\"detail\": \"ASPA\"") && says(&said, "\"differences\": 1,"), "{said}");
}

#[test]
fn what_frr_sends_by_bmp_is_what_the_server_learned() {
    let folder = Folder::new("shadow-bmp");
    let listen = free();
    let stream = include_bytes!("../../../../test-data/bgp/frr-8.4.4.bmp");
    folder.write("shadow.toml", &configuration(&format!("[bmp]\nlisten = \"{listen}\"\naddress = \"127.0.0.1\"\n")));
    folder.write("charlie.policy.toml", "");
    folder.write("alpha.txt", "");
    folder.write("bravo.txt", "");
    let route = "20.3.0.0/25  unicast [alpha 12:00:00.000] * (100) [AS64501i]\n\tBGP.origin: IGP\n\tBGP.as_path: 64501\n\
                 \tBGP.next_hop: 192.0.2.1\n";
    folder.write("charlie.txt", route);
    let mut command = program(&["shadow", "--config", "shadow.toml", "--json"]);
    let shadow = command.current_dir(&folder.0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut connection = None;
    eventually("it listens", || {
        connection = TcpStream::connect(&listen).ok();
        connection.is_some()
    });
    // Open until it ends: a router that has gone has no routes.
    let mut connection = connection.expect("connected");
    connection.write_all(stream).expect("sent");
    let output = shadow.wait_with_output().expect("ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    assert_eq!(report["prefixes"], 6);
    let refused = report["causes"].as_array().into_iter().flatten().find(|cause| cause["cause"] == "refused");
    let refused = refused.unwrap_or_else(|| panic!("{report}"));
    assert_eq!((&refused["count"], &refused["detail"]), (&1.into(), &"prefix length".into()), "{report}");
    assert_eq!(report["learned"][0]["routes"], 4, "{report}");
}

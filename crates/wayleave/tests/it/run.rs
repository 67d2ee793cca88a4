//! Running roles: readiness, status pages, signals, notifications to systemd, and a recorded table replayed to a member's
//! proxy.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_lab::netns::{NetworkNamespace, skipped};
use wayleave_lab::ports;
use wayleave_lab::routers::{CHROMIUM, default_cache, locate_or_fetch_router};

use crate::common::laboratory;
use crate::common::metrics::assert_named_by_the_rule;
use crate::common::screen::assert_one_screen;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A member's proxy whose parties are not there.
struct Proxy {
    folder: PathBuf,
    child: Child,
    notices: UnixDatagram,
    page: String,
    bgp: String,
}

impl Proxy {
    fn start(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let [page, bgp] = [free_address(), free_address()];
        wayleave(&folder, &["keys", "new", "alpha.key"]);
        let operators = ["operator1.key", "operator2.key"].map(|file| {
            let made = text(&wayleave(&folder, &["keys", "new", file]).stdout);
            made.lines().find_map(|line| line.strip_prefix("sign")).map(str::trim).expect("a key").to_owned()
        });
        let config = text(&wayleave(&folder, &["init", "member"]).stdout);
        let example = config.lines().find_map(|line| line.strip_prefix("operators = ")).expect("both operators");
        let config = config
            .replace(example, &format!("{operators:?}"))
            .replace("sha256:1111", "sha256:aaaa")
            .replace("sha256:2222", "sha256:bbbb")
            .replace("127.0.0.1:7001", "127.0.0.1:1")
            .replace("127.0.0.1:7002", "127.0.0.1:2")
            .replace("127.0.0.2:1790", &bgp)
            .replace("127.0.0.1:8490", &page)
            .replace("[exchange]", "lab = true\n\n[exchange]");
        fs::write(folder.join("alpha.toml"), config).expect("written");
        let notices = UnixDatagram::bind(folder.join("notify")).expect("a socket");
        notices.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let child = Command::new(env!("CARGO_BIN_EXE_wayleave"))
            .args(["run", "member", "--config", "alpha.toml", "--log-format", "json"])
            .current_dir(&folder)
            .env("NOTIFY_SOCKET", folder.join("notify"))
            .stderr(fs::File::create(folder.join("log")).expect("a log"))
            .spawn()
            .expect("the program runs");
        Self { folder, child, notices, page, bgp }
    }

    fn notice(&self) -> String {
        let mut buffer = [0; 256];
        let n = self.notices.recv(&mut buffer).expect("a notice");
        text(&buffer[..n])
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(status.success());
    }

    fn show(&self, noun: &str) -> Value {
        let output = wayleave(&self.folder, &["show", noun, "--config", "alpha.toml", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{noun}: {}", text(&output.stderr)))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).expect("a log")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn free_address() -> String {
    ports::free_address().expect("a port").to_string()
}

fn wayleave(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn systemd_is_notified_of_ready_reloading_and_stopping_and_a_bad_reload_changes_nothing() {
    let mut proxy = Proxy::start("systemd");
    assert_eq!(proxy.notice(), "READY=1");
    let good = fs::read_to_string(proxy.folder.join("alpha.toml")).expect("a configuration");
    fs::write(proxy.folder.join("alpha.toml"), "nonsense").expect("written");
    proxy.signal("-HUP");
    assert!(proxy.notice().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(proxy.notice(), "READY=1");
    assert!(proxy.log().contains("the configuration in force stays"));
    fs::write(proxy.folder.join("alpha.toml"), &good).expect("written");
    proxy.signal("-HUP");
    assert!(proxy.notice().starts_with("RELOADING=1"));
    assert_eq!(proxy.notice(), "READY=1");
    assert!(proxy.log().contains("configuration reloaded") && !proxy.log().contains("after a restart"));
    let changed =
        good.replace("#hold_time = 90", "hold_time = 30").replace("[status]", "[groups]\na = [64500]\n[status]");
    fs::write(proxy.folder.join("alpha.toml"), changed).expect("written");
    proxy.signal("-HUP");
    assert!(proxy.notice().starts_with("RELOADING=1"));
    assert_eq!(proxy.notice(), "READY=1");
    let log = proxy.log();
    assert!(log.contains("after a restart") && log.contains("\"keys\":\"router.hold_time\""), "{log}");
    proxy.signal("-TERM");
    assert_eq!(proxy.notice(), "STOPPING=1");
    assert!(proxy.child.wait().expect("ended").success());
    assert!(proxy.log().lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "one JSON object a line");
}

#[test]
fn status_pages_show_the_role_and_why_it_is_not_ready() {
    let proxy = Proxy::start("show");
    assert_eq!(proxy.notice(), "READY=1");
    assert_eq!(proxy.show("status")["parties"], serde_json::json!([false, false]));
    let peers = proxy.show("peers");
    assert_eq!((&peers["version"], &peers["peers"][2]["up"]), (&1.into(), &false.into()));
    assert_eq!(proxy.show("keys")["keys"][0]["of"], "this member");
    assert_eq!(proxy.show("events")["version"], 1);
    assert_named_by_the_rule("member", &NetworkNamespace::Own, proxy.page.parse().expect("an address"));
    assert_one_screen(&NetworkNamespace::Own, proxy.page.parse().expect("an address"));
    assert_eq!(proxy.show("routes")["routes"], serde_json::json!([]));
    // What a changed configuration changes, without and with a reload.
    let config = fs::read_to_string(proxy.folder.join("alpha.toml")).expect("a configuration");
    let changed = format!("{config}\n[[rule]]\ndirection = \"import\"\nas_path = \"_64511_\"\nreject = true\n");
    fs::write(proxy.folder.join("next.toml"), &changed).expect("written");
    let diff = |file: &str| wayleave(&proxy.folder, &["diff", file, "--config", "alpha.toml"]);
    let output = diff("next.toml");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("a reload changes: rule"), "{}", text(&output.stdout));
    assert!(
        text(&output.stdout).contains("no route that is there would be treated otherwise"),
        "{}",
        text(&output.stdout)
    );
    let reload = || wayleave(&proxy.folder, &["reload", "--config", "alpha.toml"]);
    assert!(text(&reload().stdout).starts_with("reloaded; no setting"), "what lies beside it is not read");
    fs::write(proxy.folder.join("alpha.toml"), format!("{changed}nonsense = 1\n")).expect("written");
    let refused = reload();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("the configuration in force stays"), "{}", text(&refused.stderr));
    fs::write(proxy.folder.join("alpha.toml"), &changed).expect("written");
    assert!(text(&reload().stdout).starts_with("reloaded; changed: rule"), "and mended, it is applied");
    fs::write(proxy.folder.join("next.toml"), changed.replace("lab = true\n", "lab = false\n")).expect("written");
    let output = diff("next.toml");
    let said = text(&output.stdout) + &text(&output.stderr);
    let restart =
        said.lines().find(|line| line.starts_with("only a restart changes, which ends the role's sessions: "));
    assert!(restart.is_some_and(|line| line.ends_with("lab")), "{said}");
    assert!(!diff("/etc/hostname").status.success(), "only files beside the configuration are read");
    // `doctor` has what the role says, who runs it, and what two files both have.
    let other = config.replace("alpha.redb", "other.redb");
    fs::write(proxy.folder.join("other.toml"), other).expect("written");
    let output = wayleave(&proxy.folder, &["doctor", "alpha.toml", "other.toml", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &value["ok"]), (Some(1), &false.into()), "{value}");
    let alpha = &value["roles"][0];
    assert_eq!((&alpha["role"], &alpha["runs"], &alpha["ready"]), (&"member".into(), &"yes".into(), &false.into()));
    assert_eq!((&alpha["process"], &alpha["program"]), (&proxy.child.id().into(), &value["program"]));
    let found = value["found"].as_array().expect("a list");
    let has = |standing: &str, file: &str, about: &str, words: &str| {
        found.iter().any(|one| {
            one["standing"] == standing
                && one["file"] == file
                && one["about"] == about
                && one["message"].as_str().is_some_and(|message| message.contains(words))
        })
    };
    assert!(has("fine", "alpha.toml", "check", "valid"), "{value}");
    assert!(has("warning", "alpha.toml", "peers", "party 1"), "{value}");
    assert!(has("problem", "other.toml", "ports", "which alpha.toml has too"), "{value}");
    let disk = found.iter().find(|one| one["about"] == "disk").expect("room is looked at");
    assert!(disk["message"].as_str().is_some_and(|words| words.contains("% are free at")), "{disk}");
    let standings: Vec<&str> = found.iter().filter_map(|one| one["standing"].as_str()).collect();
    assert!(standings.starts_with(&["problem"]), "problems come first: {standings:?}");
    let output = wayleave(&proxy.folder, &["doctor", "alpha.toml"]);
    let screen = text(&output.stdout);
    assert!(screen.contains("\nFILE ") && screen.contains("\nalpha.toml  member  yes   no "), "{screen}");
    assert_eq!(wayleave(&proxy.folder, &["doctor", "none.toml"]).status.code(), Some(1));
    let why = wayleave(&proxy.folder, &["why", "192.0.2.0/24", "--url", &proxy.page]);
    assert!(text(&why.stdout).contains("the parties have not sent their routes yet"), "{}", text(&why.stdout));
    let shown = text(&wayleave(&proxy.folder, &["show", "status", "--config", "alpha.toml"]).stdout);
    let rows: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("PEER")).skip(1).take(3).collect();
    let [party1, party2, router] = rows[..] else { panic!("{shown}") };
    assert!(party1.starts_with("party 1") && party1.contains("down") && party1.contains("127.0.0.1:1"), "{shown}");
    assert!(party2.starts_with("party 2") && router.starts_with("your router"), "{shown}");
    assert!(shown.contains("0 prefixes to install in it once its session is up"), "{shown}");
    let members = wayleave(&proxy.folder, &["show", "members", "--config", "alpha.toml"]);
    assert!(text(&members.stderr).contains("this role does not show `members`"), "{}", text(&members.stderr));
    let second = wayleave(&proxy.folder, &["run", "member", "--config", "alpha.toml"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("in use by another process"), "{}", text(&second.stderr));
}

#[test]
fn a_configuration_is_applied_undone_and_undoes_itself_unless_it_is_confirmed() {
    let proxy = Proxy::start("apply");
    assert_eq!(proxy.notice(), "READY=1");
    // Each reload is two notices, which somebody has to read.
    let notices = proxy.notices.try_clone().expect("the socket");
    std::thread::spawn(move || while notices.recv(&mut [0; 256]).is_ok() {});
    let path = |name: &str| proxy.folder.join(name);
    let has = |name: &str| fs::read_to_string(path(name)).expect("a file");
    let run = |arguments: &[&str]| wayleave(&proxy.folder, &[arguments, &["--config", "alpha.toml"]].concat());
    let first = has("alpha.toml");
    let second = format!("{first}\n[[rule]]\ndirection = \"import\"\nas_path = \"_64511_\"\nreject = true\n");
    fs::write(path("next.toml"), &second).expect("written");

    // What is wrong changes nothing, and says who erred.
    fs::write(path("wrong.toml"), format!("{second}nonsense = 1\n")).expect("written");
    for (file, words) in
        [("wrong.toml", "nonsense"), ("alpha.toml", "the same file"), ("/etc/hostname", "in another folder")]
    {
        let output = run(&["apply", file]);
        assert!(!output.status.success() && text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    assert!(text(&run(&["undo"]).stderr).contains("nothing was applied here"));
    assert!(text(&run(&["confirm"]).stderr).contains("no change waits for a confirmation"));
    assert!(has("alpha.toml") == first && !path("alpha.toml.before").exists());

    // For good, and back, and there again.
    let output = run(&["apply", "next.toml"]);
    assert!(text(&output.stdout).starts_with("reloaded; changed: rule"), "{}", text(&output.stderr));
    assert!(has("alpha.toml") == second && has("alpha.toml.before") == first);
    for text_now in [&first, &second] {
        assert!(text(&run(&["undo"]).stdout).starts_with("reloaded; changed: rule"));
        assert_eq!(&has("alpha.toml"), text_now);
    }
    assert!(run(&["undo"]).status.success());

    // A change that nobody confirms is undone, by a process that does not need the one that applied it.
    let output = run(&["apply", "next.toml", "--confirm", "2s"]);
    assert!(
        text(&output.stdout).contains(": `wayleave confirm --config alpha.toml`, or it is undone"),
        "{}",
        text(&output.stderr)
    );
    eventually("the change is undone", || has("alpha.toml") == first);
    eventually("the role has it", || text(&run(&["reload"]).stdout).starts_with("reloaded; no setting"));
    assert!(text(&run(&["confirm"]).stderr).contains("it was undone"));

    // A confirmed one stays, and a second one is refused meanwhile.
    assert!(run(&["apply", "next.toml", "--confirm", "1h"]).status.success());
    assert!(text(&run(&["show", "status"]).stderr).contains("alpha.toml is not confirmed"));
    fs::write(path("third.toml"), &first).expect("written");
    let refused = run(&["apply", "third.toml"]);
    assert!(text(&refused.stderr).contains("waits for its confirmation"), "{}", text(&refused.stderr));
    assert!(text(&run(&["confirm"]).stdout).starts_with("confirmed: alpha.toml stays"));
    assert!(has("alpha.toml") == second && !path("alpha.toml.unconfirmed").exists());
}

#[test]
fn what_happens_is_shown_as_it_happens() {
    let proxy = Proxy::start("monitor");
    assert_eq!(proxy.notice(), "READY=1");
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_wayleave"))
        .args(["monitor", "--url", &proxy.page, "--only", "reload-failed", "--json"])
        .current_dir(&proxy.folder)
        .stdout(fs::File::create(proxy.folder.join("seen")).expect("a file"))
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    let seen = || fs::read_to_string(proxy.folder.join("seen")).expect("a file");
    let good = fs::read_to_string(proxy.folder.join("alpha.toml")).expect("a configuration");
    // It may not have begun to look at the first one.
    eventually("an event is shown", || {
        fs::write(proxy.folder.join("alpha.toml"), format!("{good}nonsense = 1\n")).expect("written");
        proxy.signal("-HUP");
        !seen().is_empty()
    });
    monitor.kill().expect("it runs");
    monitor.wait().expect("ended");
    let line = seen().lines().next().expect("a line").to_owned();
    let event: Value = serde_json::from_str(&line).expect("an object a line");
    assert_eq!(event["what"]["event"], "reload-failed", "{line}");
}

/// As a browser has it: a page without a script, from which every other page is reached.
#[test]
fn a_browser_shows_the_first_page() {
    let proxy = Proxy::start("browser");
    assert_eq!(proxy.notice(), "READY=1");
    let chromium = match locate_or_fetch_router(&CHROMIUM, &default_cache(), &mut |_| ()) {
        Ok(chromium) => chromium,
        Err(error) => return skipped(&format!("run::a_browser_shows_the_first_page with Chromium: {error}")),
    };
    let mut command = Command::new(chromium.program("chromium-headless-shell"));
    chromium.prepare(&mut command);
    let profile = format!("--user-data-dir={}", proxy.folder.join("browser").display());
    command.args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile, "--dump-dom"]);
    let output = command.arg(format!("http://{}/", proxy.page)).output().expect("it runs");
    let dom = text(&output.stdout);
    assert!(dom.contains("<h1>member in slot 0 of "), "{dom}");
    // The tree that the browser built of it: a problem, a row of the table, a link.
    assert!(dom.contains("<li>cannot reach party 1") || dom.contains("<li>the link to party 1"), "{dom}");
    assert!(dom.contains("<td>party 1") && dom.contains("<a href=\"/api/v1/peers\">"), "{dom}");
}

#[test]
fn a_recorded_table_is_replayed_to_a_members_proxy() {
    let proxy = Proxy::start("speak");
    assert_eq!(proxy.notice(), "READY=1");
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp/routeviews.2013-12-01.updates.bz2");
    let speak = ["speak", "--mrt", trace.to_str().expect("UTF-8"), "--connect", &proxy.bgp, "--asn", "64497"];
    let more = ["--router-id", "192.0.2.1", "--peer-asn", "64496", "--limit", "500", "--json"];
    let mut speaker = Command::new(laboratory())
        .args(speak)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    eventually("the router's routes are there", || {
        let up = proxy.show("peers")["peers"][2]["up"] == true;
        up && proxy.show("status")["router_routes"].as_u64().is_some_and(|routes| routes > 100)
    });
    eventually("all 500 UPDATEs came", || {
        proxy.show("peers")["peers"][2]["counters"]["received"]["update"].as_u64().is_some_and(|n| n >= 500)
    });
    let interrupted = Command::new("kill").args(["-INT", &speaker.id().to_string()]).status().expect("kill");
    assert!(interrupted.success());
    assert!(speaker.wait().expect("ended").success());
    eventually("the session is down and its routes are gone", || {
        proxy.show("peers")["peers"][2]["up"] == false && proxy.show("status")["router_routes"] == 0
    });
}

//! The console over real roles: those of a laboratory's exchange, and both parties of it in one that may not show them. And over sources
//! that are hostile.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_lab::console::{ask, cookie};
use wayleave_lab::demo::http::{get, get_json};
use wayleave_lab::netns::NetworkNamespace;

use crate::common::metrics::assert_named_by_the_rule;
use crate::common::{Folder, eventually, free, laboratory, program, text};
use crate::lab::Lab;

/// A program that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A console, as a browser has it that was given its address with the token.
pub(crate) struct Browser {
    at: SocketAddr,
    token: String,
}

impl Browser {
    fn page(&self, path: &str) -> Value {
        let answer = ask(self.at, &self.token, path).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_str(&answer).expect("JSON")
    }

    /// Sends a request with the cookie.
    fn send(&self, request: &str) -> TcpStream {
        self.send_with(request, "")
    }

    /// The same with more fields, each with its end of line.
    fn send_with(&self, request: &str, more: &str) -> TcpStream {
        let cookie = cookie(self.at, &self.token).expect("a cookie");
        let mut stream = TcpStream::connect(self.at).expect("connected");
        let fields = format!("Host: {}\r\nCookie: {cookie}\r\nContent-Length: 0\r\n{more}", self.at);
        let head = format!("{request} HTTP/1.0\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).expect("asked");
        stream
    }
}

/// Starts `wayleave-lab console` of a laboratory that is up.
fn start(lab: &Lab) -> (Ends, Browser) {
    let listen = free();
    let mut command = Command::new(laboratory());
    command.args(["console", "--dir", &lab.dir, "--listen", &listen]).stdout(Stdio::piped());
    let mut console = Ends(command.spawn().expect("the program runs"));
    let mut said = String::new();
    let stdout = console.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut said).expect("a line");
    let token = said.trim_end().strip_prefix(&format!("the laboratory's console: http://{listen}/?token="));
    let token = token.unwrap_or_else(|| panic!("{said} {}", lab.logs())).to_owned();
    (console, Browser { at: listen.parse().expect("an address"), token })
}

/// The folders of consoles in that of a laboratory.
fn folders(lab: &Lab) -> Vec<PathBuf> {
    let all = fs::read_dir(&lab.dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pages-"))).collect()
}

/// `wayleave-lab console` of a laboratory that is up, until `checks` is done.
pub(crate) fn of_laboratory(lab: &Lab, checks: impl FnOnce(&Browser)) {
    // One that is killed leaves no process, and what it leaves otherwise is removed by the next.
    let (killed, browser) = start(lab);
    drop(killed);
    eventually("the console is gone with its program", || TcpStream::connect(browser.at).is_err());
    let (mut console, browser) = start(lab);
    assert_eq!(folders(lab).len(), 1);
    takes_orders_of_its_page(&browser);
    checks(&browser);
    attacks_a_process(&browser);
    // Another in its place does not take it for its own, and another one beside it leaves it be.
    let listen = browser.at.to_string();
    let output = Command::new(laboratory()).args(["console", "--dir", &lab.dir, "--listen", &listen]).output();
    let output = output.expect("the program runs");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains(&listen), "{said}");
    let (beside, other) = start(lab);
    assert_eq!(folders(lab).len(), 2);
    drop(beside);
    assert_ne!(other.token, browser.token);
    eventually("every role answers as before", || {
        let all = browser.page("/api/v1/sources");
        all["sources"].as_array().expect("a list").iter().all(|source| source["absent"].is_null())
    });
    let pid = rustix::process::Pid::from_child(&console.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(console.0.wait().expect("ended").success());
    eventually("the console is gone with it", || TcpStream::connect(&listen).is_err());
    let own = Path::new(&lab.dir).join(format!("pages-{}", console.0.id()));
    assert!(!own.exists(), "its sockets are gone with it");
}

/// What a laboratory's console has beside the product's: what it can run, ordered by its own page alone.
fn takes_orders_of_its_page(browser: &Browser) {
    let document = browser.page("/api/v1/laboratory");
    let experiments = document["experiments"].as_array().expect("a list");
    assert!(experiments.iter().any(|one| one["id"] == "sixpack/table-1"), "{document}");
    assert!(document["run"].is_null(), "{document}");
    let origin = format!("Origin: http://{}\r\n", browser.at);
    for (path, origin, status) in [
        ("start/sixpack/table-1", "", "403"),
        ("start/sixpack/table-1", "Origin: http://evil.example\r\n", "403"),
        ("start/sixpack/table-99", origin.as_str(), "404"),
        ("attack/kill/zulu", origin.as_str(), "404"),
        ("stop", origin.as_str(), "409"),
    ] {
        let mut answer = String::new();
        let mut stream = browser.send_with(&format!("POST /api/v1/laboratory/{path}"), origin);
        stream.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {origin}: {answer}");
    }
    assert!(browser.page("/api/v1/laboratory")["run"].is_null(), "nothing has started");
}

/// A process of the laboratory is paused from the page, and goes on.
fn attacks_a_process(browser: &Browser) {
    let document = browser.page("/api/v1/laboratory");
    let place = document["attacks"][0]["place"].as_str().expect("a process").to_owned();
    let origin = format!("Origin: http://{}\r\n", browser.at);
    let order = |attack: &str| {
        let mut answer = String::new();
        let mut stream = browser.send_with(&format!("POST /api/v1/laboratory/attack/{attack}/{place}"), &origin);
        stream.read_to_string(&mut answer).expect("answered");
        answer
    };
    let paused = order("pause");
    assert!(paused.starts_with("HTTP/1.1 200 "), "{paused}");
    eventually("what is paused is paused no second time", || order("pause").starts_with("HTTP/1.1 409 "));
    eventually("it goes on", || order("resume").starts_with("HTTP/1.1 200 "));
    eventually("it answers again", || order("resume").starts_with("HTTP/1.1 409 "));
}

/// What the console of an exchange of alpha, bravo, charlie and delta shows.
pub(crate) fn shows_the_exchange(browser: &Browser) {
    let page = |path: &str| browser.page(path);
    let mut all = Value::Null;
    eventually("every role answers", || {
        all = page("/api/v1/sources");
        all["sources"].as_array().expect("a list").iter().all(|source| source["overview"]["ready"] == true)
    });
    let names: Vec<&str> =
        all["sources"].as_array().expect("a list").iter().filter_map(|source| source["name"].as_str()).collect();
    assert_eq!(names, ["party1", "party2", "alpha", "bravo", "charlie", "delta"]);
    assert_eq!(all["sources"][2]["overview"]["role"], "member");
    // A role's own pages, as they are; nothing else of it.
    let why = page("/api/v1/source/charlie/why?prefix=198.51.100.0%2F24");
    let routes = why["routes"].as_array().expect("routes");
    let installed = routes.iter().find(|route| route["outcome"] == "installed").expect("one is installed");
    assert_eq!(installed["announcer"]["name"], "delta", "{why}");
    for (path, expected) in [
        ("/api/v1/source/zulu/status", "no source is named `zulu`"),
        ("/api/v1/source/alpha/nothing", "this role does not show `nothing`"),
        ("/api/v1/source/alpha/why?prefix=x", "not"),
        ("/api/v1/source/alpha/../status", "a source has no such page"),
        ("/api/v1/source/alpha/ping?name=x", "a source has no such page"),
    ] {
        let refused = ask(browser.at, &browser.token, path).expect_err(path).to_string();
        assert!(refused.contains(expected), "{path}: {refused}");
    }
    // Without the token there is nothing, and the page says what to do.
    let own = NetworkNamespace::Own;
    for (path, expected) in
        [("/", "<h1>A token is needed</h1>"), ("/api/v1/sources", "\"error\":\"open the page once as")]
    {
        let refused = get(&own, browser.at, path).expect_err(path).to_string();
        assert!(refused.starts_with(&format!("{path}: 401 ")) && refused.contains(expected), "{refused}");
    }
    // The page is an application of this place alone, and what is new is told as it happens.
    let whole = |request: &str| browser.send(request);
    let mut answer = String::new();
    whole("GET /").read_to_string(&mut answer).expect("answered");
    assert!(answer.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{answer}");
    assert!(answer.contains("src=\"./console.js\"") && !answer.contains("<style"), "{answer}");
    answer.clear();
    whole("POST /api/v1/source/alpha/session/disable").read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.0 405"), "{answer}");
    let mut told = BufReader::new(whole("GET /api/v1/stream")).lines().map(|line| line.expect("a line"));
    let mut next = |wanted: &str| told.find(|line| line == &format!("event: {wanted}")).and_then(|_| told.next());
    assert!(next("sources").expect("told").contains("\"name\":\"party1\""));
    assert!(next("events").expect("told").contains("\"event\":\"synced\""));
}

/// Without `lab = true` the same sources end the console.
pub(crate) fn refuses_both_parties(lab: &Lab) {
    let config = folders(lab)[0].join("console.toml");
    let text_of_lab = fs::read_to_string(&config).expect("what `wayleave-lab console` wrote");
    let listen = text_of_lab.rsplit('"').nth(1).expect("an address");
    let own = text_of_lab.replace("lab = true\n", "").replace(listen, &free());
    lab.folder.write("both.toml", &own);
    assert_ne!(own, text_of_lab);
    let output = lab.folder.run(&["run", "console", "--config", "both.toml"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("are both parties of the exchange ix") && said.contains("a console of its own"), "{said}");
}

/// What a source in a test answers to a path below `/api/v1/`.
enum Answer {
    Json(Value),
    Endless,
}

/// Status pages that somebody else has written.
fn source(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = format!("http://{}", listener.local_addr().expect("bound"));
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                let mut asked = String::new();
                BufReader::new(&mut stream).read_line(&mut asked).expect("a request");
                let path = asked.split_whitespace().nth(1).unwrap_or_default();
                let path = path.strip_prefix("/api/v1/").unwrap_or_default();
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n"); // who asked may have gone, here and below
                match answer(path.split('?').next().unwrap_or_default()) {
                    Answer::Json(value) => drop(stream.write_all(value.to_string().as_bytes())),
                    Answer::Endless => while stream.write_all(&[b' '; 1 << 16]).is_ok() {},
                }
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new()); // what is unread would reset the connection
            });
        }
    });
    at
}

/// A role, with this in its overview.
fn role(name: &str, more: Value) -> Answer {
    let mut overview = json!({ "version": 1, "role": name, "run": "a", "title": name, "ready": true, "problems": [], "columns": [],
        "rows": [], "counts": [] });
    for (key, value) in more.as_object().into_iter().flatten() {
        overview[key] = value.clone();
    }
    Answer::Json(overview)
}

fn party(number: u64) -> Answer {
    role("rs", json!({ "party": number, "exchange": "ix" }))
}

fn event(number: u64) -> Value {
    json!({ "number": number, "unix": number, "time": "t", "what": { "event": "flood" } })
}

#[test]
fn a_hostile_source_does_not_end_the_console_and_of_a_party_nothing_is_asked_before_it_says_which() {
    let folder = Folder::new("console-hostile");
    let is_slow = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let strange = source(|path| match path {
        "overview" => role("member", json!({})),
        _ => Answer::Json(json!({ "run": "a", "events": ["x", null, { "what": "x" }] })),
    });
    let flood = source(|path| match path {
        "overview" => role("member", json!({})),
        _ => Answer::Json(json!({ "run": "a", "events": (1..=300).map(event).collect::<Vec<_>>() })),
    });
    let one = source(|path| match path {
        "overview" => party(1),
        _ => Answer::Json(json!({ "run": "a", "events": [], "is": path })),
    });
    let two = {
        let (is_slow, asked) = (Arc::clone(&is_slow), Arc::clone(&asked));
        source(move |path| {
            asked.lock().expect("whole").insert(path.to_owned());
            while is_slow.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            party(2)
        })
    };
    let behind = source(|path| match path {
        "overview" => role("console", json!({})),
        _ => Answer::Json(json!({ "sources": [] })),
    });
    let sources = [
        ("strange", strange),
        ("endless", source(|_| Answer::Endless)),
        ("flood", flood),
        ("behind", behind),
        ("one", one),
        ("two", two),
    ];
    let sources = sources.map(|(name, at)| format!("[[source]]\nname = \"{name}\"\nat = \"{at}\"\n")).concat();
    let listen = free();
    folder.write("console.toml", &format!("[console]\n{sources}[status]\nlisten = \"{listen}\"\n"));
    let log = folder.0.join("log");
    let mut command = program(&["run", "console", "--config", "console.toml"]);
    command
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).expect("a file"));
    let mut console = Ends(command.spawn().expect("the program runs"));
    let (own, at): (_, SocketAddr) = (NetworkNamespace::Own, listen.parse().expect("an address"));
    let page = |path: &str| get_json(&own, at, path).unwrap_or_default();
    let mut all = Value::Null;
    eventually("all that can be known is known", || {
        all = page("/api/v1/sources");
        let is_shown = |at: usize| all["sources"][at]["overview"]["ready"] == true;
        let says = |at: usize, why: &str| all["sources"][at]["absent"].as_str().is_some_and(|all| all.contains(why));
        [0, 2, 4].into_iter().all(is_shown) && says(1, "longer than 1 MiB") && says(3, "a console itself")
    });
    // Each is told what is new at once, and no more of it than is kept.
    let told = || {
        let mut stream = TcpStream::connect(at).expect("connected");
        write!(stream, "GET /api/v1/stream HTTP/1.0\r\nHost: {at}\r\n\r\n").expect("asked");
        let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
        lines.find(|line| line == "event: events").expect("told");
        let line = lines.next().expect("its value");
        let events: Vec<Value> = serde_json::from_str(line.strip_prefix("data: ").expect("a value")).expect("a list");
        events
    };
    let mut events = Vec::new();
    eventually("the flood has been taken", || {
        events = told();
        !events.is_empty()
    });
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["number"].as_u64()).collect();
    assert_eq!(numbers, (101..=300).collect::<Vec<u64>>());
    assert!(events.iter().all(|event| event["source"] == "flood"), "{events:?}");
    assert_eq!(page("/api/v1/source/one/routes")["is"], "routes");
    assert_named_by_the_rule("console", &own, at);
    for (path, expected) in [
        ("/api/v1/source/two/routes", "`two` has not said what it is"),
        ("/api/v1/source/behind/sources", "a source has no such page"),
        ("/api/v1/source/behind/source/two/routes", "a source has no such page"),
        ("/api/v1/source/behind/routes", "a console itself"),
    ] {
        let refused = get(&own, at, path).expect_err(path).to_string();
        assert!(refused.contains(expected), "{path}: {refused}");
    }
    assert_eq!(console.0.try_wait().expect("asked"), None, "it runs");
    is_slow.store(false, Ordering::Relaxed);
    let mut ended = None;
    eventually("the console has ended", || {
        ended = console.0.try_wait().expect("asked");
        ended.is_some()
    });
    let said = fs::read_to_string(&log).expect("a log");
    assert_eq!(ended.and_then(|status| status.code()), Some(1), "{said}");
    assert!(said.contains("`one` and `two` are both parties of the exchange ix"), "{said}");
    assert_eq!(*asked.lock().expect("whole"), BTreeSet::from(["overview".to_owned()]));
}

#[test]
fn the_page_was_built_from_the_sources_that_lie_beside_it() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/console");
    let output = Command::new(script).arg("check").output().expect("the script runs");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

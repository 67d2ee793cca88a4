//! The console over real roles: those of a laboratory's exchange, and both parties of it in one that may not show them.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use wayleave_lab::demo::http::{get, get_json};
use wayleave_lab::netns::NetworkNamespace;

use crate::common::{eventually, free, laboratory, text};
use crate::lab::Lab;

/// A program that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `wayleave-lab console` of a laboratory that is up, until `checks` is done.
pub(crate) fn of_laboratory(lab: &Lab, checks: impl FnOnce(SocketAddr)) {
    let listen = free();
    let mut command = Command::new(laboratory());
    command.args(["console", "--dir", &lab.dir, "--listen", &listen]).stdout(Stdio::piped());
    let mut console = Ends(command.spawn().expect("the program runs"));
    let mut said = String::new();
    let stdout = console.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut said).expect("a line");
    assert_eq!(said, format!("the laboratory's console: http://{listen}\n"), "{}", lab.logs());
    checks(listen.parse().expect("an address"));
    let pid = rustix::process::Pid::from_child(&console.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(console.0.wait().expect("ended").success());
    eventually("the console is gone with it", || TcpStream::connect(&listen).is_err());
}

/// What the console of an exchange of alpha, bravo, charlie and delta shows.
pub(crate) fn shows_the_exchange(at: SocketAddr) {
    let own = NetworkNamespace::Own;
    let page = |path: &str| get_json(&own, at, path).unwrap_or_else(|error| panic!("{path}: {error}"));
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
    assert_eq!(
        (&why["routes"][0]["announcer"]["name"], &why["routes"][0]["outcome"]),
        (&"delta".into(), &"installed".into()),
        "{why}"
    );
    for (path, expected) in [
        ("/api/v1/source/zulu/status", "no source is named `zulu`"),
        ("/api/v1/source/alpha/nothing", "this role does not show `nothing`"),
        ("/api/v1/source/alpha/why?prefix=x", "not"),
        ("/api/v1/source/alpha/../status", "a source has no such page"),
        ("/api/v1/source/alpha/ping?name=x", "a source has no such page"),
    ] {
        let refused = get(&own, at, path).expect_err(path).to_string();
        assert!(refused.contains(expected), "{path}: {refused}");
    }
    // The page is an application of this place alone, and what is new is told as it happens.
    let whole = |request: &str| {
        let mut stream = TcpStream::connect(at).expect("connected");
        write!(stream, "{request} HTTP/1.0\r\nHost: {at}\r\nContent-Length: 0\r\n\r\n").expect("asked");
        stream
    };
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
    let config = Path::new(&lab.dir).join("console.toml");
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

#[test]
fn the_page_was_built_from_the_sources_that_lie_beside_it() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/console");
    let output = Command::new(script).arg("check").output().expect("the script runs");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

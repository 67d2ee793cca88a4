//! What a role shows first: `show status` on one screen, and the same as a page for browsers.

use std::net::SocketAddr;

use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::process::wait_until;

use super::{TIMEOUT, text};

/// Lines of a terminal.
const LINES: usize = 24;

/// What `show status` prints of the role at `at`.
pub fn status(place: &NetworkNamespace, at: SocketAddr, more: &[&str]) -> String {
    let mut command = place.command(env!("CARGO_BIN_EXE_wayleave"));
    command.args(["show", "status", "--url", &at.to_string()]).args(more).env("NO_COLOR", "1");
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// What a page answers, with its head; nothing if the role does not run.
pub fn page(place: &NetworkNamespace, at: SocketAddr, path: &str) -> String {
    use std::io::{Read, Write};
    let fetch = || {
        let mut stream = std::net::TcpStream::connect(at)?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    place.within(fetch).expect("in its place").unwrap_or_default()
}

/// Checks what every role has in common: one screen with what is wrong first, all else behind `--all`, and a page whose links
/// lead somewhere.
pub fn assert_one_screen(place: &NetworkNamespace, at: SocketAddr) {
    // Both are of one moment: a problem may come or go between.
    let both = || {
        let (screen, answer) = (status(place, at, &[]), page(place, at, "/"));
        let is_one = screen.contains("\nproblem: ") == answer.contains("<h2>Problems</h2>");
        is_one.then_some((screen, answer))
    };
    let (screen, answer) = wait_until(TIMEOUT, both).expect("the page has the problems that the screen has");
    assert!(screen.lines().count() <= LINES, "{screen}");
    let first = screen.lines().next().unwrap_or_default();
    assert!(first.ends_with(": ready") || first.ends_with(": not ready"), "{screen}");
    let problems = screen.lines().skip(2).take_while(|line| line.starts_with("problem: ")).count();
    assert_eq!(problems, screen.lines().filter(|line| line.starts_with("problem: ")).count(), "first: {screen}");
    assert!(problems > 0 || first.ends_with(": ready"), "what is missing is a problem: {screen}");
    let all = status(place, at, &["--all"]);
    assert!(all.lines().count() > screen.lines().count(), "{all}");

    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.0 200") && head.contains("default-src 'none'"), "{head}");
    assert!(body.starts_with("<!doctype html>") && !body.contains("<script"), "{body}");
    let links: Vec<&str> = body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    for expected in ["/healthz", "/readyz", "/metrics", "/api/v1/status", "/api/v1/events"] {
        assert!(links.contains(&expected), "{expected}: {body}");
    }
    for link in links {
        let head = page(place, at, link);
        // A page of something that is not configured says so.
        assert!(
            head.starts_with("HTTP/1.0 200")
                || link == "/readyz"
                || head.contains("is missing")
                || head.contains("no "),
            "{link}: {head}"
        );
    }
}

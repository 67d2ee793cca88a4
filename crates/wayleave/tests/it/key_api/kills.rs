//! Key servers that are killed at any moment while their API is used: what was acknowledged is there, once, in the state and in the
//! trail of changes.
//!
//! PLA-06, kills of key servers (1,000 by `WAYLEAVE_KEY_KILLS`): grants and revocations by the API, in SQLite and in PostgreSQL: none that was
//! acknowledged is lost, none is made twice, and the trail has each under the number that was answered.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_lab::postgres::Postgres;
use wayleave_runtime::api_tls::KeyPin;

use super::world::{WAYPOINT, World, secured};

/// Who uses the API at a time.
const CLIENTS: usize = 3;
/// Before the next attempt where nobody answers.
const PAUSE: Duration = Duration::from_millis(5);

fn kills() -> u32 {
    std::env::var("WAYLEAVE_KEY_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// Where the API is, and a token for it.
#[derive(Clone)]
struct ApiAccess {
    api: String,
    pin: KeyPin,
    token: String,
}

impl ApiAccess {
    /// The answer to a change that was acknowledged; `None` without a whole answer.
    fn change(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let stream = TcpStream::connect(&self.api).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let mut stream = secured(stream, self.pin).ok()?;
        let body = body.to_string();
        let head = format!("Authorization: Bearer {}\r\nContent-Length: {}", self.token, body.len());
        stream.write_all(format!("{method} {path} HTTP/1.0\r\nHost: a\r\n{head}\r\n\r\n{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let is_done = [" 200 ", " 201 "].iter().any(|status| head.contains(status));
        // Stopping, starting, or without its database: it says that nothing was done, or that it does not know.
        let is_passing = [" 500 ", " 503 "].iter().any(|status| head.contains(status));
        assert!(is_done || is_passing, "{answer}");
        let answer: Value = serde_json::from_str(body).ok()?;
        is_done.then_some(answer)
    }
}

/// What was acknowledged: what the change is called in the trail, and its number.
type Acknowledged = Vec<(String, u64)>;

/// One after another: a revocation, or an account and a grant, of a number that nobody else uses.
fn use_api(access: &ApiAccess, next: &AtomicU32, is_over: &AtomicBool) -> Acknowledged {
    let mut acknowledged = Vec::new();
    while !is_over.load(Ordering::Acquire) {
        let principal = next.fetch_add(1, Ordering::Relaxed);
        let (what, answer) = if principal.is_multiple_of(3) {
            let path = format!("/v1/accounts/{principal}");
            let grant = json!({ "principal": principal, "waypoint": WAYPOINT, "ends": "2100-01-01T00:00:00Z" });
            let account = access.change("PUT", &path, &json!({ "name": "customer" }));
            let granted = account.and_then(|_| access.change("PUT", "/v1/grants", &grant));
            (format!("granted: waypoint {WAYPOINT}, principal {principal}"), granted)
        } else {
            let revoked = access.change("POST", "/v1/revocations", &json!({ "entry": principal.to_string() }));
            (format!("revoked: {principal}"), revoked)
        };
        match answer.and_then(|answer| answer["number"].as_u64()) {
            Some(number) => acknowledged.push((what, number)),
            None => std::thread::sleep(PAUSE),
        }
    }
    acknowledged
}

fn kills_lose_nothing(name: &str, init: &[&str]) {
    let mut world = World::on(name, init, "");
    let access = ApiAccess { api: world.api.clone(), pin: world.pin, token: world.full.clone() };
    let (next, is_over) = (AtomicU32::new(100), AtomicBool::new(false));
    let mut random = 7_u64;
    let acknowledged: Acknowledged = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| use_api(&access, &next, &is_over))).collect();
        for _ in 0..kills() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(20 + (random >> 33) % 200));
            world.running.kill();
            world.running.resume();
        }
        is_over.store(true, Ordering::Release);
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
    });
    let kinds = |begin: &str| acknowledged.iter().filter(|(what, _)| what.starts_with(begin)).count();
    assert!(kinds("revoked") > 3 && kinds("granted") > 1, "{acknowledged:?}");
    // The trail, from its beginning: numbers follow on each other, and nothing is there twice.
    let (mut trail, mut after) = (BTreeMap::new(), 0);
    loop {
        let page = world.done("GET", &format!("/v1/changes?most=1000&after={after}"), None);
        for change in page["changes"].as_array().expect("changes") {
            let number = change["number"].as_u64().expect("a number");
            assert_eq!(number, trail.len() as u64 + 1);
            trail.insert(number, change["what"].as_str().expect("a text").to_owned());
        }
        let Some(last) = page["next"].as_u64() else { break };
        after = last;
    }
    let mut made: Vec<&String> = trail.values().collect();
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), trail.len(), "nothing is made twice");
    let list = world.list(&[]);
    let entries = list["revocations"].as_array().expect("entries");
    let principals = list["principals"].as_array().expect("accounts");
    for (what, number) in &acknowledged {
        assert!(
            trail.get(number).is_some_and(|made| made.starts_with(what)),
            "{what} {number}: {:?}",
            trail.get(number)
        );
        let count = match what.strip_prefix("revoked: ") {
            Some(entry) => entries.iter().filter(|of| **of == *entry).count(),
            None => {
                let is_it = |of: &&Value| what.ends_with(&format!("principal {}", of["principal"]));
                principals.iter().filter(is_it).filter(|of| of["waypoints"].to_string().contains(WAYPOINT)).count()
            }
        };
        assert_eq!(count, 1, "{what}");
    }
    println!("{} kills, {} changes acknowledged, {} made", kills(), acknowledged.len(), trail.len());
    world.folder.ok(&["check", "server/key.toml"]);
}

#[test]
fn kills_of_a_key_server_lose_nothing_that_was_acknowledged_in_sqlite() {
    kills_lose_nothing("kills-sqlite", &[]);
}

#[test]
fn kills_of_a_key_server_lose_nothing_that_was_acknowledged_in_postgresql() {
    let Some(postgres) = Postgres::start_for_test() else { return };
    kills_lose_nothing("kills-postgres", &["--database", &postgres.url()]);
}

//! Strangers at the API: they take little, learn nothing, and do not keep the operator out.
//!
//! PLA, API: strangers without end, silent connections, garbage, long and deep bodies, tokens that are almost one:
//! limited, closed, refused; the operator beside them is served.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};
use serde_json::json;

use super::world::{World, closed, connect_from};
use crate::common::metrics::assert_named_by_the_rule;
use crate::common::{eventually, text};
use wayleave_lab::netns::NetworkNamespace;

#[test]
fn strangers_are_limited_and_the_operator_beside_them_is_served() {
    let world = World::new("flood");
    let before = world.counted("unauthenticated");
    let statuses: Vec<u16> = (0..60).map(|_| world.call(None, "GET", "/v1/accounts", None).status).collect();
    let refused = statuses.iter().filter(|status| **status == 401).count();
    let limited = statuses.iter().filter(|status| **status == 429).count();
    assert_eq!(refused + limited, 60, "{statuses:?}");
    assert!(refused >= 10 && limited >= 1, "{statuses:?}");
    let limited_answer =
        (0..200).map(|_| world.call(None, "POST", "/v1/redemptions", None)).find(|answer| answer.status == 429);
    let limited_answer = limited_answer.expect("redemptions are limited too");
    assert!(limited_answer.is("too-many") && limited_answer.head.contains("retry-after: 1"), "{limited_answer:?}");
    assert_eq!(world.counted("unauthenticated"), before + refused as u64);
    for _ in 0..100 {
        assert_eq!(world.call(Some(&world.read), "GET", "/v1/accounts", None).status, 200);
    }
    assert_named_by_the_rule("key", &NetworkNamespace::Own, world.running.page.parse().expect("an address"));
}

#[test]
fn nothing_but_a_whole_token_is_one_and_a_token_that_was_taken_away_is_none() {
    let world = World::new("tokens");
    let token = &world.full;
    let wrong = [
        String::new(),
        token[..token.len() - 1].to_owned(),
        format!("{token}0"),
        token.to_uppercase(),
        token.replace("wayleave-token-", ""),
        "wayleave-token-".to_owned(),
    ];
    for wrong in wrong {
        let answer = world.call(Some(&wrong), "GET", "/v1/accounts", None);
        assert!(answer.is("credential") || answer.is("too-many"), "{wrong}: {answer:?}");
    }
    let heads = ["Authorization: Basic ", "Authorization: bearer", "X-Token: "];
    for head in heads {
        let answer = world.request("GET", "/v1/accounts", &format!("{head}{token}\r\n"), "").expect("an answer");
        assert!(answer.is("credential") || answer.is("too-many"), "{head}: {answer:?}");
    }
    // Of the hash in the configuration nobody makes a token.
    let config = fs::read_to_string(world.folder.0.join("server/key.toml")).expect("there");
    assert!(!config.contains(token.as_str()));
    let hash = config.split("\nhash = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a hash");
    eventually("strangers may ask again", || world.call(Some(hash), "GET", "/v1/accounts", None).is("credential"));
    assert_eq!(world.call(Some(token), "GET", "/v1/accounts", None).status, 200);
    fs::write(
        world.folder.0.join("server/key.toml"),
        config.replacen(hash, &format!("token:sha256:{}", "11".repeat(32)), 1),
    )
    .expect("written");
    world.running.signal("-HUP");
    eventually("the token is gone", || world.call(Some(token), "GET", "/v1/accounts", None).is("credential"));
    assert_eq!(world.call(Some(&world.read), "GET", "/v1/accounts", None).status, 200, "the other one stays");
    assert!(!world.running.log().contains(token.as_str()));
}

#[test]
fn garbage_plain_http_and_endless_requests_end_and_the_server_serves() {
    let world = World::new("garbage");
    // No TLS at all.
    for octets in [&b"GET /v1/accounts HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0xff; 300], &[0x16, 3, 1, 0xff, 0xff]] {
        let mut stream = TcpStream::connect(&world.api).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        stream.write_all(octets).expect("sent");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
    // Within TLS.
    let token = format!("Authorization: Bearer {}\r\n", world.full);
    for octets in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let answer = world.raw(octets.as_bytes()).unwrap_or_default();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{octets:?}: {answer}");
    }
    let endless = format!("GET /v1/accounts HTTP/1.1\r\nHost: a\r\n{token}X: {}\r\n\r\n", "x".repeat(2 << 20));
    let answer = world.raw(endless.as_bytes()).unwrap_or_default();
    assert!(!answer.contains(" 200 "), "{answer}");
    let long = world.request("POST", "/v1/accounts", &token, &"x".repeat(65 << 10)).expect("an answer");
    assert!(long.is("too-large"), "{long:?}");
    let deep = "[".repeat(60_000);
    let deep = world.request("POST", "/v1/accounts", &token, &deep).expect("an answer");
    assert!(deep.is("request"), "{deep:?}");
    for path in
        ["/v1/../v1/accounts", "/v1/accounts%2F7", "/v1/accounts/-1", "/v1/accounts/007", "/v1/accounts/99999999999"]
    {
        let answer = world.request("GET", path, &token, "").expect("an answer");
        assert!(answer.status == 404 || answer.status == 400, "{path}: {answer:?}");
    }
    for path in ["/", "/v1", "/v1/accounts/", "/v1/accounts//", "//v1/accounts", "/v1/grants/7", "/v2/accounts"] {
        assert!(world.call(Some(&world.full), "GET", path, None).is("not-found"), "{path}");
    }
    let other = world.call(Some(&world.full), "PUT", "/v1/accounts", None);
    assert!(other.is("method") && other.head.contains("allow: get,head,post"), "{other:?}");
    let names = ["é", "line\nbreak", &"x".repeat(65), "\u{0}"];
    for name in names {
        let body = json!({ "principal": 7, "name": name });
        assert!(world.call(Some(&world.full), "POST", "/v1/accounts", Some(&body)).is("request"), "{name:?}");
    }
    let doubled = world.request("POST", "/v1/accounts", &token, "{\"principal\":7,\"principal\":8,\"name\":\"\"}");
    assert!(doubled.expect("an answer").is("request"));
    assert_eq!(world.running.count("accounts"), 0);
    world.done("GET", "/v1/server", None);
}

/// Silent connections of one source take its own slots and no other's; they end by themselves.
#[test]
fn silent_connections_of_one_source_make_way_for_newer_ones_and_have_an_end() {
    let world = World::new("silent");
    let mut silent: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(&world.api).expect("it listens")).collect();
    eventually("the source has no slot left", || world.connections("api", "open") == 64);
    assert!(world.request("GET", "/v1/openapi.json", "", "").is_ok());
    eventually("the oldest is closed", || closed(&mut silent) == 1);
    assert_eq!(world.connections("api", "evicted"), 1);
    drop(silent);
    eventually("its slots are free again", || world.connections("api", "open") == 0);
    // Without a word the server ends a connection after its time for a handshake, and without a request after another.
    let mut plain = TcpStream::connect(&world.api).expect("it listens");
    plain.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let mut encrypted = world.connect().expect("it listens");
    encrypted.write_all(b"GET /v1/openapi.json HTTP/1.1\r\n").expect("a handshake");
    encrypted.sock.set_read_timeout(Some(Duration::from_secs(50))).expect("set");
    assert!(matches!(plain.read(&mut [0]), Ok(0)), "closed by the server");
    assert!(!matches!(encrypted.read(&mut [0]), Ok(1..)), "nothing is answered");
    eventually("both are over", || world.connections("api", "open") == 0);
}

/// Strangers from many networks take all slots, and come again for each that they lose.
#[test]
fn strangers_of_many_networks_do_not_keep_the_operator_out() {
    let world = World::new("networks");
    let head = format!("Authorization: Bearer {}\r\n", world.read);
    let request = format!("GET /v1/server HTTP/1.1\r\nHost: a\r\n{head}\r\n");
    // A connection that the operator keeps open, from a network of the strangers', and one that is opened for each request.
    let mut kept = world.connect_as([127, 0, 1, 250]).expect("it listens");
    let ask = |kept: &mut StreamOwned<ClientConnection, TcpStream>| {
        kept.write_all(request.as_bytes()).expect("sent");
        let mut answer = [0; 4096];
        let length = kept.read(&mut answer).expect("answered");
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{:?}", text(&answer[..length]));
    };
    ask(&mut kept);
    let mut strangers: Vec<TcpStream> = Vec::new();
    for network in 1..=8 {
        for host in 1..=64 {
            strangers.push(connect_from([127, 0, network, host], &world.api));
        }
    }
    eventually("they have all slots", || world.connections("api", "open") == 512);
    for turn in 0..20 {
        assert_eq!(world.call(Some(&world.read), "GET", "/v1/accounts", None).status, 200);
        ask(&mut kept);
        // They come again for each that they lost, be it to the operator or because it was silent for too long.
        strangers.retain_mut(|stranger| closed(std::slice::from_mut(stranger)) == 0);
        for at in strangers.len()..512 {
            strangers.push(connect_from([127, 0, 1 + (at % 8) as u8, 100 + turn], &world.api));
        }
    }
    eventually("they have what nobody else needs", || (450..=511).contains(&(512 - closed(&mut strangers))));
    assert_eq!(world.connections("api", "refused"), 0);
}

/// The same by DNS over TCP, where nobody is known: a source that takes all that it can keeps no other out.
#[test]
fn silent_connections_keep_nobody_from_asking_by_tcp() {
    let world = World::new("dns-tcp");
    let open = || world.connections("dns", "open");
    let mut of_one: Vec<TcpStream> = (0..100).map(|at| connect_from([127, 0, 1, at], &world.listen)).collect();
    eventually("one source has its part", || open() == 64 && world.connections("dns", "evicted") == 36);
    eventually("those are closed", || closed(&mut of_one) == 36);
    let mut of_others = Vec::new();
    for network in 2..=8 {
        of_others.extend((1..=64).map(|host| connect_from([127, 0, network, host], &world.listen)));
    }
    eventually("strangers have all slots", || open() == 512);
    for _ in 0..10 {
        // A question of the zone's SOA.
        let mut question = vec![0, 34, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in ["keys", "example", "net", ""] {
            question.push(label.len() as u8);
            question.extend_from_slice(label.as_bytes());
        }
        question.extend_from_slice(&[0, 6, 0, 1]);
        question[1] = (question.len() - 2) as u8;
        let mut stream = TcpStream::connect(&world.listen).expect("the backlog takes it");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        stream.write_all(&question).expect("sent");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).expect("answered");
        assert_eq!(answer[2..], [0, 7]);
    }
    let lost = world.connections("dns", "evicted");
    // The first takes a stranger's slot; those after it find what the one before gave back, if that was noticed, or what was
    // silent for too long on a slow machine.
    assert!((36..=46).contains(&lost), "one for each that asked at most: {lost}");
}

#[test]
fn without_the_section_nobody_is_invited_and_nothing_listens() {
    let world = World::new("without");
    let path = world.folder.0.join("server/key.toml");
    let config = fs::read_to_string(&path).expect("there");
    let cut = config.find("[key.api]").expect("a section");
    let end =
        config.find("[[key.waypoint]]\naddress = \"198.51.100.1\"\nkey = \"../router.key\"\nkind").expect("a waypoint");
    let without = format!("{}{}", &config[..cut], &config[end..]);
    fs::write(&path, without).expect("written");
    world.folder.ok(&["check", "server/key.toml"]);
    let base = ["cap", "invite", "--name", "x", "--principal", "7", "--waypoint", "198.51.100.1"];
    let said = world.folder.fails(1, &[&base[..], &["--config", "server/key.toml"]].concat());
    assert!(said.contains("no [key.api]"), "{said}");
}

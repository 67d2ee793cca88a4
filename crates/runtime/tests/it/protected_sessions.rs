//! Connections of BGP sessions under TCP MD5 (RFC 2385) and TTL security (RFC 5082), by this machine's kernel over loopback.
//!
//! BGP-15: sessions with TCP MD5 and TTL security, the same, another and no password, TTLs around the limit, at both
//! ends, over IPv4, IPv6 and IPv4 to an IPv6 socket, an unknown address: a connection exactly where both ends agree.
#![allow(clippy::disallowed_methods, reason = "a test opens sockets, waits, and asks how its kernel was built")]

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wayleave_runtime::bgp_tcp::{Hops, Password, Protection, Sockets, TcpEvent, TcpOptions};

/// How long a connection may take that shall come up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection is watched that shall not come up: the first segment is sent three times.
const WATCH: Duration = Duration::from_millis(3_500);
/// Where listeners are and who connects to them: IPv4, IPv6, and IPv4 to a socket of IPv6.
const PLACES: [(&str, &str); 3] = [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")];

fn password(text: &str) -> Protection {
    Protection { password: Password::new(text.as_bytes()), ttl_security: None }
}

fn hops(hops: u8) -> Protection {
    Protection { password: None, ttl_security: Hops::new(hops) }
}

fn options(protection: Protection, peer: &str) -> TcpOptions {
    TcpOptions { peer: Some(address(peer)), protection, ..TcpOptions::default() }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// `false`, with a line that says so, on a kernel that was built without TCP MD5. An error of ours that looks like that fails
/// the test.
fn kernel_has_md5() -> bool {
    let Err(error) = password("x").check() else { return true };
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
    let built = Command::new("sh").args(["-c", "zcat /proc/config.gz || cat /boot/config-$(uname -r)"]).output();
    let built = String::from_utf8(built.expect("a shell").stdout).expect("UTF-8");
    assert!(
        built.contains("# CONFIG_TCP_MD5SIG is not set"),
        "{error}; but this kernel's configuration does not say that it lacks TCP MD5"
    );
    eprintln!("*** SKIPPED {error} ***");
    false
}

/// Whether a connection from an end with these options to another comes up, seen by both.
async fn comes_up((at, from): (&str, &str), server: TcpOptions, client: TcpOptions, limit: Duration) -> bool {
    let ((to_server, mut at_server), (to_client, mut at_client)) = (mpsc::channel(8), mpsc::channel(8));
    let (mut server, mut client) = (Sockets::new(to_server, server), Sockets::new(to_client, client));
    let listening = server.listen((address(at), 0).into()).await.expect("a protected listener");
    client.connect(1, (address(from), listening.port()).into());
    let both = async { tokio::join!(at_server.recv(), at_client.recv()) };
    matches!(timeout(limit, both).await, Ok((Some(TcpEvent::Accepted { .. }), Some(TcpEvent::Connected { .. }))))
}

/// A case: the options of the listener and of the end that connects to it, and whether a connection comes up.
type Case<E> = (E, E, bool);

/// Tries all cases at all places at the same time, and panics at the first that comes out otherwise.
async fn come_up_as_said<E: Copy + std::fmt::Debug>(cases: &[Case<E>], options: impl Fn(E, &str) -> TcpOptions) {
    let mut running = JoinSet::new();
    for place in PLACES {
        for (server, client, expected) in cases.iter().copied() {
            let name = format!("{place:?}: {server:?} at the listener, {client:?} at the other end");
            let (server, client) = (options(server, place.1), options(client, place.1));
            let limit = if expected { TIMEOUT } else { WATCH };
            running.spawn(async move { (name, expected, comes_up(place, server, client, limit).await) });
        }
    }
    while let Some(result) = running.join_next().await {
        let (name, expected, found) = result.expect("a result");
        assert_eq!(found, expected, "{name}");
    }
}

#[tokio::test]
async fn a_connection_comes_up_under_the_same_password_alone_whoever_opens_it() {
    if !kernel_has_md5() {
        return;
    }
    let (long, other) = ("x".repeat(Password::MAX_OCTETS), "y".repeat(Password::MAX_OCTETS));
    let cases: [Case<&str>; 6] = [
        ("secret", "secret", true),
        (&long, &long, true),
        ("secret", "Secret", false),
        (&long, &other, false),
        ("secret", "", false),
        ("", "secret", false),
    ];
    come_up_as_said(&cases, |text, peer| options(password(text), peer)).await;
}

#[tokio::test]
async fn a_connection_comes_up_from_as_far_as_ttl_security_says_whoever_checks_it() {
    // Of each end: the hops of TTL security, 0 for none, and the TTL it sends without it, 0 for the system's, which is 64.
    let cases = [
        ((1, 0), (1, 0), true),
        ((1, 0), (0, 0), false),
        ((0, 0), (1, 0), false),
        ((1, 0), (0, 255), true),
        ((0, 255), (1, 0), true),
        ((1, 0), (0, 254), false),
        ((0, 254), (1, 0), false),
        ((2, 0), (0, 254), true),
        ((0, 254), (2, 0), true),
        ((192, 0), (0, 64), true),
        ((191, 0), (0, 64), false),
    ];
    let end = |(hop, ttl): (u8, u8), _: &str| TcpOptions {
        ttl: (ttl > 0).then_some(ttl),
        protection: hops(hop),
        ..TcpOptions::default()
    };
    come_up_as_said(&cases, end).await;
}

/// A connection to `to` whose packets leave with this TTL.
fn connect_with_ttl(to: SocketAddr, ttl: u32) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_ip_ttl(&socket, ttl).expect("set");
    connect(&socket, &to).expect("connected");
    socket.into()
}

#[tokio::test]
async fn octets_from_further_away_are_dropped_also_on_a_connection_that_is_open() {
    let (to, mut events) = mpsc::channel(8);
    let mut sockets = Sockets::new(to, options(hops(1), "127.0.0.1"));
    let listening = sockets.listen("127.0.0.1:0".parse().expect("an address")).await.expect("a listener");
    let mut peer = connect_with_ttl(listening, 255);
    assert!(matches!(timeout(TIMEOUT, events.recv()).await, Ok(Some(TcpEvent::Accepted { .. }))));
    sockopt::set_ip_ttl(&peer, 254).expect("set");
    peer.write_all(b"from afar").expect("queued");
    assert!(timeout(Duration::from_secs(1), events.recv()).await.is_err(), "nothing arrives");
    sockopt::set_ip_ttl(&peer, 255).expect("set");
    let Ok(Some(TcpEvent::Bytes { bytes, .. })) = timeout(TIMEOUT, events.recv()).await else { panic!("octets") };
    assert_eq!(bytes, b"from afar", "sent again by the kernel");
}

#[tokio::test]
async fn a_listener_with_a_password_is_not_opened_without_the_peers_address() {
    if !kernel_has_md5() {
        return;
    }
    let (to, _events) = mpsc::channel::<TcpEvent>(8);
    let mut sockets = Sockets::new(to, TcpOptions { protection: password("secret"), ..TcpOptions::default() });
    let error = sockets.listen("127.0.0.1:0".parse().expect("an address")).await.expect_err("unprotected");
    assert!(error.to_string().contains("needs the address of its peer"), "{error}");
}

#[tokio::test]
async fn an_address_that_the_listener_does_not_know_gets_no_session() {
    for protection in [Protection::default(), password("secret")] {
        if protection.password.is_some() && !kernel_has_md5() {
            return;
        }
        let (to, mut events) = mpsc::channel(8);
        let mut sockets = Sockets::new(to, options(protection, "127.0.0.2"));
        let listening = sockets.listen("127.0.0.1:0".parse().expect("an address")).await.expect("a listener");
        let mut stranger =
            TcpStream::connect(listening).expect("TCP opens, since the kernel has no key for the stranger");
        let event = timeout(TIMEOUT, events.recv()).await.expect("in time");
        assert!(matches!(event, Some(TcpEvent::Refused { address }) if address.is_loopback()), "{event:?}");
        let read = std::io::Read::read(&mut stranger, &mut [0; 1]);
        assert!(matches!(read, Ok(0) | Err(_)), "closed: {read:?}");
        assert!(timeout(Duration::from_millis(200), events.recv()).await.is_err());
    }
}

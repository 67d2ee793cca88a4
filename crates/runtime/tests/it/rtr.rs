//! The RTR client against the server of the `rpki` crate, over real sockets on the loopback.
#![allow(clippy::disallowed_methods, reason = "a test of sockets")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rpki::resources::{Asn as RpkiAsn, MaxLenPrefix, Prefix as RpkiPrefix};
use rpki::rtr::payload::{Action, Payload, PayloadRef, RouterKey as RpkiRouterKey, Timing};
use rpki::rtr::server::{NotifySender, PayloadDiff, PayloadSet, PayloadSource, Server};
use rpki::rtr::state::State;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use wayleave_core::{Asn, Prefix};
use wayleave_runtime::rpki::rtr::{self, Cache, CacheState, Snapshot, follow};
use wayleave_runtime::rpki::{PublicKey, Vrp};

/// What the cache has, and how it came to that.
#[derive(Default)]
struct Inner {
    state: State,
    items: Vec<Payload>,
    changes: BTreeMap<u32, Vec<(Payload, Action)>>,
}

#[derive(Clone, Default)]
struct Source(Arc<Mutex<Inner>>);

impl Source {
    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, changes: Vec<(Payload, Action)>) {
        self.with(|inner| {
            for (payload, action) in &changes {
                match action {
                    Action::Announce => inner.items.push(payload.clone()),
                    Action::Withdraw => inner.items.retain(|item| item != payload),
                }
            }
            let serial = u32::from(inner.state.serial());
            inner.changes.insert(serial, changes);
            inner.state.inc();
        });
    }
}

struct Items<T>(std::vec::IntoIter<T>, Option<T>);

impl PayloadSet for Items<Payload> {
    fn next(&mut self) -> Option<PayloadRef<'_>> {
        self.1 = self.0.next();
        self.1.as_ref().map(Payload::as_ref)
    }
}

impl PayloadDiff for Items<(Payload, Action)> {
    fn next(&mut self) -> Option<(PayloadRef<'_>, Action)> {
        self.1 = self.0.next();
        self.1.as_ref().map(|(payload, action)| (payload.as_ref(), *action))
    }
}

impl PayloadSource for Source {
    type Set = Items<Payload>;
    type Diff = Items<(Payload, Action)>;

    fn ready(&self) -> bool {
        true
    }

    fn notify(&self) -> State {
        self.with(|inner| inner.state)
    }

    fn full(&self) -> (State, Self::Set) {
        self.with(|inner| (inner.state, Items(inner.items.clone().into_iter(), None)))
    }

    fn diff(&self, state: State) -> Option<(State, Self::Diff)> {
        self.with(|inner| {
            let is_ours = state.session() == inner.state.session();
            let since = inner.changes.range(u32::from(state.serial())..).flat_map(|(_, changes)| changes.clone());
            is_ours.then(|| (inner.state, Items(since.collect::<Vec<_>>().into_iter(), None)))
        })
    }

    fn timing(&self) -> Timing {
        Timing { refresh: 3_600, retry: 600, expire: 7_200 }
    }
}

/// Serves `source` on a port; returns the task, and the sender that notifies its clients of changes.
async fn serve(source: Source, address: &str) -> (SocketAddr, NotifySender, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let notify = NotifySender::new();
    let sockets = futures_util::stream::unfold(listener, |listener| async move {
        let socket = listener.accept().await.map(|(socket, _)| socket);
        Some((socket, listener))
    });
    let server = Server::new(Box::pin(sockets), notify.clone(), source);
    let task = tokio::spawn(async move {
        let _ = server.run::<TcpStream>().await;
    });
    (address, notify, task)
}

fn plain(address: SocketAddr) -> Cache {
    Cache { address: address.to_string(), tls: None, version: None }
}

fn origin(prefix: &str, max_length: u8, asn: u32) -> Payload {
    let prefix: RpkiPrefix = prefix.parse().expect("a prefix");
    Payload::origin(MaxLenPrefix::new(prefix, Some(max_length)).expect("long enough"), RpkiAsn::from_u32(asn))
}

fn vrp(prefix: &str, max_length: u8, asn: u32) -> Vrp {
    Vrp { prefix: prefix.parse::<Prefix>().expect("a prefix"), max_length, asn: Asn(asn) }
}

/// The router key of AS 64496 in RFC 8208 appendix A.
fn router_key() -> (Payload, [u8; 65]) {
    let hex = "3059301306072a8648ce3d020106082a8648ce3d030107034200047391BABB92A0CB3BE10E59B19EBFFB214E04A91E0CBA1B139A7D\
               38D90F77E55AA05B8E695678E0FA16904B55D9D4F5C0DFC58895EE50BC4F75D205A25BD36FF5";
    let ski = "AB4D910F55CAE71A215EF3CAFE3ACC45B5EEC154";
    let octets = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect()
    };
    let info = octets(hex);
    let point = info[26..].try_into().expect("65 octets");
    let ski: [u8; 20] = octets(ski).try_into().expect("20 octets");
    let info = rpki::rtr::pdu::RouterKeyInfo::new(info.into()).expect("short");
    (Payload::RouterKey(RpkiRouterKey::new(ski.into(), RpkiAsn::from_u32(64_496), info)), point)
}

async fn until(receiver: &mut watch::Receiver<Snapshot>, holds: impl FnMut(&Snapshot) -> bool) -> Snapshot {
    timeout(Duration::from_secs(60), receiver.wait_for(holds)).await.expect("in time").expect("still followed").clone()
}

#[tokio::test]
async fn the_data_of_a_cache_and_their_changes_are_received() {
    let source = Source::default();
    let (key, point) = router_key();
    source.change(vec![
        (origin("192.0.2.0/24", 25, 64_496), Action::Announce),
        (origin("2001:db8::/32", 48, 64_496), Action::Announce),
        (key.clone(), Action::Announce),
    ]);
    let (address, mut notify, server) = serve(source.clone(), "127.0.0.1:0").await;
    let (mut receiver, client) = follow(plain(address));
    let first = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
    let expected = [vrp("192.0.2.0/24", 25, 64_496), vrp("2001:db8::/32", 48, 64_496)];
    assert_eq!(first.validated.vrps.iter().copied().collect::<Vec<_>>(), expected);
    let learnt = first.validated.router_keys.first().expect("the key");
    assert_eq!(learnt.asn, Asn(64_496));
    assert_eq!(learnt.public_key(), Ok(PublicKey::EcdsaP256(point)));

    source.change(vec![
        (origin("192.0.2.0/24", 25, 64_496), Action::Withdraw),
        (origin("198.51.100.0/24", 24, 64_497), Action::Announce),
        (key, Action::Withdraw),
    ]);
    notify.notify();
    let second = until(&mut receiver, |snapshot| snapshot.generation > first.generation).await;
    let expected = [vrp("198.51.100.0/24", 24, 64_497), vrp("2001:db8::/32", 48, 64_496)];
    assert_eq!(second.validated.vrps.iter().copied().collect::<Vec<_>>(), expected);
    assert!(second.validated.router_keys.is_empty());
    client.abort();
    server.abort();
}

#[tokio::test]
async fn the_data_of_a_lost_cache_stay_until_it_is_connected_again() {
    let source = Source::default();
    source.change(vec![(origin("192.0.2.0/24", 24, 64_496), Action::Announce)]);
    // The server's tasks live in a runtime of its own, so that all its connections end with it.
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (to, bound) = tokio::sync::oneshot::channel();
    let of_thread = source.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let (address, _notify, _server) = serve(of_thread, "127.0.0.1:0").await;
            to.send(address).expect("heard");
            let _ = stopped.await;
        });
    });
    let address = bound.await.expect("bound");
    let (mut receiver, client) = follow(plain(address));
    until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
    stop.send(()).expect("running");
    thread.join().expect("ended");
    let stale = until(&mut receiver, |snapshot| snapshot.state == CacheState::Stale).await;
    assert_eq!(stale.validated.vrps.len(), 1);
    source.change(vec![(origin("198.51.100.0/24", 24, 64_497), Action::Announce)]);
    let (_, _notify, server) = serve(source, &address.to_string()).await;
    let again = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
    assert_eq!(again.validated.vrps.len(), 2);
    client.abort();
    server.abort();
}

/// The octets of a PDU of version 1: type, session or flags, and what follows the length.
fn pdu(kind: u8, session: u16, body: &[u8]) -> Vec<u8> {
    let mut out = vec![1, kind];
    out.extend(session.to_be_bytes());
    out.extend(u32::try_from(8 + body.len()).expect("short").to_be_bytes());
    out.extend(body);
    out
}

/// A cache that answers the first query with these octets, and then holds the line until the client hangs up.
async fn answering(octets: Vec<u8>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let task = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a client");
        let mut query = [0; 8];
        socket.read_exact(&mut query).await.expect("a query");
        let _ = socket.write_all(&octets).await;
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
    });
    (address, task)
}

#[tokio::test]
async fn a_wrong_answer_ends_the_session_and_changes_no_data() {
    let response = pdu(3, 7, &[]);
    let ipv4 = pdu(4, 0, &[1, 24, 24, 0, 192, 0, 2, 0, 0, 0, 0xfb, 0xf0]);
    let withdrawn = pdu(4, 0, &[0, 24, 24, 0, 192, 0, 2, 0, 0, 0, 0xfb, 0xf0]);
    let too_long = pdu(4, 0, &[1, 33, 33, 0, 192, 0, 2, 0, 0, 0, 0xfb, 0xf0]);
    let end = pdu(7, 7, &[0, 0, 0, 1, 0, 0, 14, 16, 0, 0, 2, 88, 0, 0, 28, 32]);
    let mut huge = pdu(9, 0x0100, &[0; 24]);
    huge[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    let cases = [
        ("announced twice", [&response[..], &ipv4, &ipv4, &end].concat()),
        ("withdrawn but never announced", [&response[..], &withdrawn, &end].concat()),
        ("a prefix of 33 bits", [&response[..], &too_long, &end].concat()),
        ("a key of 4 GiB", [&response[..], &huge, &end].concat()),
        ("no RTR", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
    ];
    for (name, octets) in cases {
        let (address, cache) = answering(octets).await;
        let (receiver, client) = follow(plain(address));
        timeout(Duration::from_secs(60), cache)
            .await
            .unwrap_or_else(|_| panic!("{name}: still connected"))
            .expect(name);
        assert_eq!(receiver.borrow().state, CacheState::NoData, "{name}");
        assert_eq!(receiver.borrow().generation, 0, "{name}");
        client.abort();
    }
    // The same answer without a defect is taken.
    let (address, cache) = answering([&response[..], &ipv4, &end].concat()).await;
    let (mut receiver, client) = follow(plain(address));
    let snapshot = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
    assert_eq!(snapshot.validated.vrps.first(), Some(&vrp("192.0.2.0/24", 24, 64_496)));
    client.abort();
    cache.abort();
}

#[tokio::test]
async fn a_cache_behind_tls_is_followed_under_its_own_name_only() {
    let source = Source::default();
    source.change(vec![(origin("192.0.2.0/24", 24, 64_496), Action::Announce)]);
    let (inner, _notify, server) = serve(source, "127.0.0.1:0").await;
    let issued = rcgen::generate_simple_self_signed(vec!["cache.example".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .expect("a pair");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let relay = tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut outer) = acceptor.accept(socket).await else { continue };
            let mut plain = TcpStream::connect(inner).await.expect("the server");
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut outer, &mut plain).await;
            });
        }
    });
    let tls = |name: &str| {
        let tls = rtr::tls(name, issued.cert.pem().as_bytes()).expect("an authority");
        Cache { address: address.to_string(), tls: Some(tls), version: None }
    };
    assert!(tls("cache.example") == tls("cache.example") && tls("cache.example") != tls("other.example"));
    let (stranger, other) = follow(tls("other.example"));
    let (mut receiver, client) = follow(tls("cache.example"));
    let snapshot = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
    assert_eq!(snapshot.validated.vrps.len(), 1);
    assert_eq!(stranger.borrow().state, CacheState::NoData);
    for task in [client, other, relay, server] {
        task.abort();
    }
}

/// A cache whose connections are answered by `octets`, each connection by the next of them: one answer to each query. Without
/// any it closes. The queries go to the receiver; a connection's last answer is followed by silence, until the client hangs up.
async fn scripted(
    connections: Vec<Vec<Vec<u8>>>,
) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (to, queries) = tokio::sync::mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        for answers in connections {
            let (mut socket, _) = listener.accept().await.expect("a client");
            let is_silent = answers.is_empty();
            for answer in answers.into_iter().chain([Vec::new()]) {
                let mut query = vec![0; 8];
                if socket.read_exact(&mut query).await.is_err() {
                    break;
                }
                let length = u32::from_be_bytes([query[4], query[5], query[6], query[7]]) as usize;
                query.resize(length, 0);
                socket.read_exact(&mut query[8..]).await.expect("the rest");
                to.send(query).expect("heard");
                if is_silent {
                    break;
                }
                socket.write_all(&answer).await.expect("sent");
            }
        }
    });
    (address, queries, task)
}

fn of_version(version: u8, mut pdus: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while at < pdus.len() {
        pdus[at] = version;
        at += u32::from_be_bytes([pdus[at + 4], pdus[at + 5], pdus[at + 6], pdus[at + 7]]) as usize;
    }
    pdus
}

fn end_of_data(session: u16, serial: u32) -> Vec<u8> {
    pdu(7, session, &[serial, 3_600, 600, 7_200].map(u32::to_be_bytes).concat())
}

fn notify(session: u16, serial: u32) -> Vec<u8> {
    pdu(0, session, &serial.to_be_bytes())
}

/// 203.0.113.0/24 of AS 64666.
fn foreign() -> Vec<u8> {
    pdu(4, 0, &[1, 24, 24, 0, 203, 0, 113, 0, 0, 0, 0xfc, 0x9a])
}

/// A full answer of session 7 with 192.0.2.0/24, and behind it the notification that makes the client ask for changes.
fn full() -> Vec<u8> {
    let ipv4 = pdu(4, 0, &[1, 24, 24, 0, 192, 0, 2, 0, 0, 0, 0xfb, 0xf0]);
    [pdu(3, 7, &[]), ipv4, end_of_data(7, 1), notify(7, 2)].concat()
}

async fn next(queries: &mut tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>) -> Vec<u8> {
    timeout(Duration::from_secs(60), queries.recv()).await.expect("in time").expect("still there")
}

#[tokio::test]
async fn data_of_another_session_are_never_added_and_everything_of_that_cache_is_dropped() {
    let cases = [
        ("the whole answer is of session 99", [pdu(3, 99, &[]), foreign(), end_of_data(99, 9)].concat()),
        ("its end is of session 99", [pdu(3, 7, &[]), foreign(), end_of_data(99, 2)].concat()),
        ("its begin is of session 99", [pdu(3, 99, &[]), foreign(), end_of_data(7, 2)].concat()),
    ];
    for (name, answer) in cases {
        let (address, mut queries, cache) =
            scripted(vec![vec![full(), answer].into_iter().map(|pdus| of_version(2, pdus)).collect()]).await;
        let (mut receiver, client) = follow(plain(address));
        let first = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
        assert_eq!(first.validated.vrps.len(), 1, "{name}");
        let after = until(&mut receiver, |snapshot| snapshot.generation > first.generation).await;
        assert_eq!(after.state, CacheState::Flushed, "{name}");
        assert!(after.validated.vrps.is_empty() && after.expires.is_none(), "{name}: {:?}", after.validated.vrps);
        // What it got: both queries, and an Error Report of code 0.
        assert_eq!((next(&mut queries).await[1], next(&mut queries).await[1]), (2, 1), "{name}");
        let report = next(&mut queries).await;
        assert_eq!((report[1], &report[2..4]), (10, &[0, 0][..]), "{name}");
        client.abort();
        cache.abort();
    }
}

#[tokio::test]
async fn a_notification_of_another_session_drops_the_data_and_one_that_crosses_an_answer_does_no_harm() {
    let crossing = [notify(7, 1), full()].concat();
    let changes = [notify(7, 3), pdu(3, 7, &[]), notify(7, 3), foreign(), end_of_data(7, 2)].concat();
    let last = [pdu(3, 7, &[]), end_of_data(7, 3), notify(8, 1)].concat();
    let (address, _queries, cache) =
        scripted(vec![[crossing, changes, last].into_iter().map(|pdus| of_version(2, pdus)).collect()]).await;
    let (mut receiver, client) = follow(plain(address));
    let changed = until(&mut receiver, |snapshot| snapshot.validated.vrps.len() == 2).await;
    assert_eq!(changed.state, CacheState::Current);
    let dropped = until(&mut receiver, |snapshot| snapshot.state == CacheState::Flushed).await;
    assert!(dropped.validated.vrps.is_empty());
    client.abort();
    cache.abort();
}

#[tokio::test]
async fn changes_that_lead_back_and_pdus_out_of_order_are_refused_and_the_data_stay() {
    let cases = [
        ("an older serial", [pdu(3, 7, &[]), foreign(), end_of_data(7, 0)].concat()),
        ("a second begin", [pdu(3, 7, &[]), foreign(), pdu(3, 7, &[]), end_of_data(7, 2)].concat()),
        ("an end without a begin", end_of_data(7, 2)),
        ("an item without a begin", [foreign(), end_of_data(7, 2)].concat()),
        ("a reset in the middle", [pdu(3, 7, &[]), pdu(8, 0, &[]), end_of_data(7, 2)].concat()),
        ("a query of the cache", pdu(2, 0, &[])),
        ("another version in the middle", [pdu(3, 7, &[]), of_version(1, foreign()), end_of_data(7, 2)].concat()),
    ];
    for (name, answer) in cases {
        let is_mixed = name.starts_with("another version");
        let answer = if is_mixed {
            [of_version(2, pdu(3, 7, &[])), foreign(), of_version(2, end_of_data(7, 2))].concat()
        } else {
            of_version(2, answer)
        };
        // The next connection starts from the beginning.
        let again = of_version(2, [pdu(3, 8, &[]), foreign(), end_of_data(8, 1)].concat());
        let (address, mut queries, cache) = scripted(vec![vec![of_version(2, full()), answer], vec![again]]).await;
        let (mut receiver, client) = follow(plain(address));
        let stale = until(&mut receiver, |snapshot| snapshot.state == CacheState::Stale).await;
        assert_eq!(stale.validated.vrps.first(), Some(&vrp("192.0.2.0/24", 24, 64_496)), "{name}");
        let after = until(&mut receiver, |snapshot| snapshot.generation > stale.generation).await;
        assert_eq!(after.validated.vrps.first(), Some(&vrp("203.0.113.0/24", 24, 64_666)), "{name}");
        let kinds = [next(&mut queries).await[1], next(&mut queries).await[1], next(&mut queries).await[1]];
        assert_eq!(kinds, [2, 1, 10], "{name}");
        assert_eq!(next(&mut queries).await[1], 2, "{name}: a reset query");
        client.abort();
        cache.abort();
    }
}

#[tokio::test]
async fn a_cache_that_closes_instead_of_refusing_a_version_is_asked_for_the_one_before() {
    let (address, mut queries, cache) = scripted(vec![vec![], vec![], vec![full()]]).await;
    let (mut receiver, client) = follow(plain(address));
    let heard = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
    assert_eq!((heard.validated.vrps.len(), heard.problem), (1, None));
    assert_eq!([next(&mut queries).await[0], next(&mut queries).await[0], next(&mut queries).await[0]], [2, 2, 1]);
    client.abort();
    cache.abort();
}

#[tokio::test]
async fn a_cache_that_refuses_a_version_by_repeating_it_or_naming_an_older_one_is_asked_for_that() {
    let refusal = |version| of_version(version, pdu(10, 4, &[0; 8]));
    for (offered, requested) in [(2, 1), (1, 1), (0, 0)] {
        let (address, mut queries, cache) = scripted(vec![
            vec![refusal(offered)],
            vec![{
                let mut answer = full();
                if requested == 0 {
                    // Version 0 has no intervals.
                    let ipv4 = pdu(4, 0, &[1, 24, 24, 0, 192, 0, 2, 0, 0, 0, 0xfb, 0xf0]);
                    answer = [pdu(3, 7, &[]), ipv4, pdu(7, 7, &[0, 0, 0, 1])].concat();
                }
                of_version(requested, answer)
            }],
        ])
        .await;
        let (mut receiver, client) = follow(plain(address));
        let heard = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
        assert_eq!(heard.validated.vrps.len(), 1);
        assert_eq!([next(&mut queries).await[0], next(&mut queries).await[0]], [2, requested], "offered {offered}");
        client.abort();
        cache.abort();
    }
}

#[tokio::test]
async fn a_configured_version_is_asked_for_and_no_other_and_the_reason_is_known() {
    let (address, mut queries, cache) = scripted(vec![vec![]; 3]).await;
    let (mut receiver, client) = follow(Cache { version: Some(1), ..plain(address) });
    let snapshot = until(&mut receiver, |snapshot| snapshot.problem.is_some()).await;
    assert_eq!(snapshot.problem.as_deref(), Some("it closed the connection without an answer to a query of version 1"));
    assert_eq!([next(&mut queries).await[0], next(&mut queries).await[0], next(&mut queries).await[0]], [1, 1, 1]);
    client.abort();
    cache.abort();
}

#[tokio::test]
async fn what_a_cache_reports_is_shown_with_its_words() {
    let report = [&[0, 0, 0, 0, 0, 0, 0, 9][..], b"no data\x1b!"].concat();
    let (address, _queries, cache) = scripted(vec![vec![of_version(2, pdu(10, 2, &report))]]).await;
    let (mut receiver, client) = follow(plain(address));
    let snapshot = until(&mut receiver, |snapshot| snapshot.problem.is_some()).await;
    let expected = "it reports error 2 (No Data Available): \"no data\\u{1b}!\"";
    assert_eq!(snapshot.problem.as_deref(), Some(expected));
    client.abort();
    cache.abort();
}

/// The ASPA record of a customer; without providers its withdrawal.
fn aspa(customer: u32, providers: &[u32]) -> Vec<u8> {
    let asns: Vec<u8> = [&[customer], providers].concat().into_iter().flat_map(u32::to_be_bytes).collect();
    pdu(11, if providers.is_empty() { 0 } else { 0x0100 }, &asns)
}

#[tokio::test]
async fn records_of_providers_come_are_replaced_and_go() {
    let pairs = |snapshot: &Snapshot| snapshot.validated.aspas.iter().map(|(of, at)| (of.0, at.0)).collect::<Vec<_>>();
    let all = [pdu(3, 7, &[]), aspa(10, &[20, 30]), aspa(11, &[0]), end_of_data(7, 1), notify(7, 2)].concat();
    let changes = [pdu(3, 7, &[]), aspa(10, &[40]), aspa(11, &[]), end_of_data(7, 2)].concat();
    let (address, _queries, cache) =
        scripted(vec![[all.clone(), changes].into_iter().map(|pdus| of_version(2, pdus)).collect()]).await;
    let (mut receiver, client) = follow(plain(address));
    let snapshot = until(&mut receiver, |snapshot| snapshot.serial == Some(1)).await;
    assert_eq!(pairs(&snapshot), [(10, 20), (10, 30), (11, 0)]);
    let snapshot = until(&mut receiver, |snapshot| snapshot.serial == Some(2)).await;
    assert_eq!(pairs(&snapshot), [(10, 40)]);
    client.abort();
    cache.abort();
    // Version 1 has none: what comes all the same is passed over, and the prefixes count.
    let (address, _queries, cache) =
        scripted(vec![vec![[&full()[..8], &aspa(10, &[20]), &full()[8..]].concat()]]).await;
    let (mut receiver, client) = follow(Cache { version: Some(1), ..plain(address) });
    let snapshot = until(&mut receiver, |snapshot| snapshot.state == CacheState::Current).await;
    assert_eq!((snapshot.validated.vrps.len(), snapshot.validated.aspas.len()), (1, 0));
    client.abort();
    cache.abort();
}

#[tokio::test]
async fn an_answer_is_read_whole_or_refused_and_no_part_of_it_counts() {
    let whole = of_version(2, [pdu(3, 7, &[]), foreign(), aspa(10, &[20, 30]), end_of_data(7, 1)].concat());
    let read = rtr::read_answer(&whole, 2).await.expect("an answer");
    assert_eq!((read.vrps.len(), read.aspas.len()), (1, 2));
    for end in 0..whole.len() {
        assert!(rtr::read_answer(&whole[..end], 2).await.is_err(), "{end} octets");
    }
}

#[tokio::test]
async fn half_an_update_and_records_that_cannot_be_change_nothing() {
    let cases = [
        ("withdrawn but never announced", [pdu(3, 7, &[]), aspa(12, &[]), end_of_data(7, 2)].concat()),
        ("announced without a provider", [pdu(3, 7, &[]), pdu(11, 0x0100, &[0, 0, 0, 12]), end_of_data(7, 2)].concat()),
        ("part of an AS", [pdu(3, 7, &[]), pdu(11, 0x0100, &[0, 0, 0, 12, 0]), end_of_data(7, 2)].concat()),
        ("without a customer", [pdu(3, 7, &[]), pdu(11, 0x0100, &[]), end_of_data(7, 2)].concat()),
    ];
    let base = [&full()[..8], &aspa(10, &[20]), &full()[8..]].concat();
    for (name, answer) in cases {
        let answers = [base.clone(), answer].into_iter().map(|pdus| of_version(2, pdus)).collect();
        let (address, _queries, cache) = scripted(vec![answers]).await;
        let (mut receiver, client) = follow(plain(address));
        let snapshot = until(&mut receiver, |snapshot| snapshot.state == CacheState::Stale).await;
        assert_eq!((snapshot.validated.vrps.len(), snapshot.validated.aspas.len()), (1, 1), "{name}");
        client.abort();
        cache.abort();
    }
    // The other half never comes, and the cache goes away.
    let half = of_version(2, [pdu(3, 7, &[]), foreign(), aspa(10, &[])].concat());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let cache = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a client");
        for (octets, answer) in [(8, of_version(2, base)), (12, half)] {
            let mut query = vec![0; octets];
            socket.read_exact(&mut query).await.expect("a query");
            socket.write_all(&answer).await.expect("sent");
        }
    });
    let (mut receiver, client) = follow(plain(address));
    let snapshot = until(&mut receiver, |snapshot| snapshot.state == CacheState::Stale).await;
    assert_eq!(snapshot.validated.vrps.first(), Some(&vrp("192.0.2.0/24", 24, 64_496)));
    assert_eq!((snapshot.validated.vrps.len(), snapshot.validated.aspas.len()), (1, 1));
    client.abort();
    cache.abort();
}

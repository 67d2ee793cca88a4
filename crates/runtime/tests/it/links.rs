//! Links over loopback: who may connect, what happens to who may not, and what a bad peer can do.
//!
//! SIX-10: unknown, expired, revoked certificates, another role's certificate: refused at the handshake.
//! OPS, mistakes, running: who is refused, and who refuses, is told once and waits before it tries again.
//! OPS, check --deep: a probe sees the peer's certificate and clock, and without a name disturbs no link.
#![allow(clippy::disallowed_methods, reason = "a test of drivers")]

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wayleave_runtime::identity::{DEFAULT_VALIDITY, Identity};
use wayleave_runtime::links::{ConnectFailure, Connecting, Limits, LinkEvent, Links, Listening, probe};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::tls::{Pin, PinVerifier, Pins, RefusalReason, Role, client_config};

const SOON: Duration = Duration::from_secs(10);

fn identity(name: &str) -> Identity {
    Identity::generate(name, DEFAULT_VALIDITY).expect("keys")
}

fn pin(name: &str, role: Role, id: u32) -> Pin {
    Pin { name: name.into(), role, id }
}

/// A party that serves members at a loopback port.
struct Party {
    identity: Identity,
    pins: Pins,
    links: Links,
    events: mpsc::Receiver<LinkEvent>,
    listening: Listening,
}

impl Party {
    async fn with(limits: Limits, pins: Pins) -> Self {
        Self::with_queue(limits, pins, 16).await
    }

    /// With a queue of so many events.
    async fn with_queue(limits: Limits, pins: Pins, queue: usize) -> Self {
        let identity = identity("party1");
        let links = Links::new(limits);
        let (to, events) = mpsc::channel(queue);
        let verifier = PinVerifier::new(pins.clone(), Role::Member);
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let listening = links.listen(any, &identity, verifier, to).await.expect("listening");
        Self { identity, pins, links, events, listening }
    }

    async fn of(members: &[&Identity]) -> Self {
        let pins = members.iter().zip(0..).map(|(member, slot)| (member.fingerprint(), pin("m", Role::Member, slot)));
        Self::with(Limits::default(), Pins::new(pins)).await
    }

    fn refused(&self) -> u64 {
        self.links.counters().refused.load(Ordering::Relaxed)
    }

    async fn next(&mut self) -> LinkEvent {
        timeout(SOON, self.events.recv()).await.expect("in time").expect("open")
    }
}

struct Member {
    links: Links,
    events: mpsc::Receiver<LinkEvent>,
    _connecting: Connecting,
}

impl Member {
    fn of(identity: &Identity, party: &Party) -> Self {
        let (to, events) = mpsc::channel(16);
        let links = Links::new(Limits::default());
        let pins = Pins::new([(party.identity.fingerprint(), pin("party1", Role::Party, 1))]);
        let connecting = links
            .connect(party.listening.address.to_string(), identity, PinVerifier::new(pins, Role::Party), to)
            .expect("a configuration");
        Self { links, events, _connecting: connecting }
    }

    /// The next event of a link.
    async fn next(&mut self) -> LinkEvent {
        loop {
            match timeout(SOON, self.events.recv()).await.expect("in time").expect("open") {
                LinkEvent::Failed { .. } => {}
                event => return event,
            }
        }
    }

    /// Why there is no link, once.
    async fn failed(&mut self) -> ConnectFailure {
        match timeout(SOON, self.events.recv()).await.expect("in time").expect("open") {
            LinkEvent::Failed { pin, failure } => {
                assert_eq!(pin.name, "party1");
                failure
            }
            other => panic!("{other:?}"),
        }
    }

    async fn stays_down(&mut self) {
        assert!(timeout(Duration::from_millis(400), self.next()).await.is_err(), "a link came up");
    }
}

fn up(event: LinkEvent) -> (u64, Pin) {
    match event {
        LinkEvent::Up { link, pin, .. } => (link, pin),
        other => panic!("{other:?}"),
    }
}

fn frame(event: LinkEvent) -> Vec<u8> {
    match event {
        LinkEvent::Frame { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    }
}

fn down(event: LinkEvent) -> String {
    match event {
        LinkEvent::Down { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

fn exported(event: LinkEvent) -> [u8; 32] {
    match event {
        LinkEvent::Up { exporter, .. } => *exporter.0,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn both_ends_of_a_link_export_the_same_keying_material_and_no_other_link_does() {
    let alpha = identity("alpha");
    let mut party = Party::of(&[&alpha]).await;
    let mut member = Member::of(&alpha, &party);
    let event = party.next().await;
    assert!(format!("{event:?}").contains("Exporter(..)"), "{event:?}");
    let LinkEvent::Up { link, .. } = &event else { panic!("{event:?}") };
    let link = *link;
    let first = exported(event);
    assert_eq!(first, exported(member.next().await));
    party.links.close(link, "again");
    down(party.next().await);
    down(member.next().await);
    let second = exported(party.next().await);
    assert_eq!(second, exported(member.next().await));
    assert_ne!(first, second);
}

#[tokio::test]
async fn pinned_peers_exchange_frames_in_order() {
    let alpha = identity("alpha");
    let mut party = Party::of(&[&alpha]).await;
    let mut member = Member::of(&alpha, &party);
    let (at_party, who) = up(party.next().await);
    let (at_member, whom) = up(member.next().await);
    assert_eq!((who, whom), (pin("m", Role::Member, 0), pin("party1", Role::Party, 1)));
    for i in 0..100u8 {
        member.links.send(at_member, vec![i; 1 + usize::from(i) * 1000]);
    }
    for i in 0..100u8 {
        assert_eq!(frame(party.next().await), vec![i; 1 + usize::from(i) * 1000]);
    }
    party.links.send(at_party, b"answer".to_vec());
    assert_eq!(frame(member.next().await), b"answer");
    party.links.close(at_party, "enough");
    assert_eq!(down(party.next().await), "enough");
    down(member.next().await);
    // The member comes back by itself.
    up(party.next().await);
    up(member.next().await);
}

/// SIX-10.
#[tokio::test]
async fn an_unknown_certificate_is_refused_and_counted() {
    let (alpha, stranger) = (identity("alpha"), identity("stranger"));
    let mut party = Party::of(&[&alpha]).await;
    Member::of(&stranger, &party).stays_down().await;
    assert!(party.refused() > 0);
    up({
        let _member = Member::of(&alpha, &party);
        party.next().await
    });
}

/// SIX-10.
#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let old = Identity::generate("old", Duration::ZERO).expect("keys");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let party = Party::of(&[&old]).await;
    Member::of(&old, &party).stays_down().await;
    assert!(party.refused() > 0);
}

/// SIX-10.
#[tokio::test]
async fn the_other_partys_certificate_is_refused_at_the_members_port() {
    let party2 = identity("party2");
    let pins = Pins::new([(party2.fingerprint(), pin("party2", Role::Party, 2))]);
    let party = Party::with(Limits::default(), pins).await;
    Member::of(&party2, &party).stays_down().await;
    assert!(party.refused() > 0);
}

/// SIX-10.
#[tokio::test]
async fn a_revoked_certificate_loses_its_link_at_once_and_gets_no_other() {
    let alpha = identity("alpha");
    let mut party = Party::of(&[&alpha]).await;
    let mut member = Member::of(&alpha, &party);
    up(party.next().await);
    up(member.next().await);
    party.pins.replace([]);
    assert!(down(party.next().await).contains("not pinned"));
    down(member.next().await);
    member.stays_down().await;
    assert!(party.refused() > 0);
}

#[tokio::test]
async fn a_member_refuses_a_party_that_presents_another_certificate() {
    let alpha = identity("alpha");
    let mut party = Party::of(&[&alpha]).await;
    let impostor = Party { identity: identity("party1"), ..Party::of(&[&alpha]).await };
    // The member expects `impostor.identity`, and the listener there shows another.
    let mut member = Member::of(&alpha, &impostor);
    member.stays_down().await;
    assert!(member.links.counters().refused.load(Ordering::Relaxed) > 0);
    up({
        let _member = Member::of(&alpha, &party);
        party.next().await
    });
}

#[tokio::test]
async fn a_second_link_of_one_certificate_takes_the_firsts_place() {
    let alpha = identity("alpha");
    let mut party = Party::of(&[&alpha]).await;
    let mut first = Member::of(&alpha, &party);
    let (one, _) = up(party.next().await);
    up(first.next().await);
    let _second = Member::of(&alpha, &party);
    match party.next().await {
        LinkEvent::Down { link, .. } => assert_eq!(link, one),
        other => panic!("{other:?}"),
    }
    let (two, _) = up(party.next().await);
    assert_ne!(one, two);
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_disconnected_and_memory_stays_bounded() {
    let alpha = identity("alpha");
    let limits = Limits { queue: 1 << 20, ..Limits::default() };
    let pins = Pins::new([(alpha.fingerprint(), pin("alpha", Role::Member, 0))]);
    let mut party = Party::with(limits, pins).await;
    let raw = raw_link(&alpha, &party).await;
    let (link, _) = up(party.next().await);
    for _ in 0..1000 {
        party.links.send(link, vec![1u8; 100_000]);
    }
    assert!(down(party.next().await).contains("too slowly"));
    assert!(party.links.counters().too_slow.load(Ordering::Relaxed) > 0);
    drop(raw);
}

/// Pins of two members.
fn two(alpha: &Identity, beta: &Identity) -> Pins {
    let one = |member: &Identity, slot| (member.fingerprint(), pin("m", Role::Member, slot));
    Pins::new([one(alpha, 0), one(beta, 1)])
}

#[tokio::test]
async fn a_peer_that_sends_much_at_once_lets_others_in_between() {
    let (alpha, beta) = (identity("alpha"), identity("beta"));
    let mut party = Party::with_queue(Limits::default(), two(&alpha, &beta), 4096).await;
    let mut one = Member::of(&alpha, &party);
    let ((busy, _), (to_party, _)) = (up(party.next().await), up(one.next().await));
    let mut two = Member::of(&beta, &party);
    let ((other, _), (from_two, _)) = (up(party.next().await), up(two.next().await));
    for _ in 0..2_000 {
        one.links.send(to_party, vec![1; 100]);
    }
    // All that may wait does by now.
    tokio::time::sleep(Duration::from_millis(500)).await;
    two.links.send(from_two, vec![2; 100]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (mut before, mut after) = (0, 0);
    let mut is_there = false;
    while before + after < 2_000 || !is_there {
        match party.next().await {
            LinkEvent::Frame { link, .. } if link == other => is_there = true,
            LinkEvent::Frame { link, .. } if link == busy => *(if is_there { &mut after } else { &mut before }) += 1,
            event => panic!("{event:?}"),
        }
    }
    assert!(before <= 128, "{before} frames of another before it, {after} after");
}

#[tokio::test]
async fn an_oversized_frame_ends_the_link_and_nothing_else() {
    let (alpha, bravo) = (identity("alpha"), identity("bravo"));
    let limits = Limits { frame: 1000, ..Limits::default() };
    let pins = [(&alpha, 0), (&bravo, 1)].map(|(who, slot)| (who.fingerprint(), pin("m", Role::Member, slot)));
    let mut party = Party::with(limits, Pins::new(pins)).await;
    let mut good = Member::of(&bravo, &party);
    up(party.next().await);
    let (at_good, _) = up(good.next().await);
    let mut bad = raw_link(&alpha, &party).await;
    up(party.next().await);
    bad.write_all(&[0, 0, 3, 0xe9]).await.expect("sent"); // 1001
    bad.flush().await.expect("sent");
    assert!(down(party.next().await).contains("1001"));
    good.links.send(at_good, b"still here".to_vec());
    assert_eq!(frame(party.next().await), b"still here");
}

#[tokio::test]
async fn a_silent_host_does_not_keep_members_out_for_long() {
    let alpha = identity("alpha");
    let mut party = Party::of(&[&alpha]).await;
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(TcpStream::connect(party.listening.address).await.expect("connected"));
    }
    let _member = Member::of(&alpha, &party);
    // From the same address it waits for the silent ones' time to pass, and no longer.
    up(timeout(3 * SOON, party.events.recv()).await.expect("in time").expect("open"));
}

/// A peer with a valid certificate that then does as it likes.
async fn raw_link(identity: &Identity, party: &Party) -> tokio_rustls::client::TlsStream<TcpStream> {
    let pins = Pins::new([(party.identity.fingerprint(), pin("party1", Role::Party, 1))]);
    let config = client_config(identity, &PinVerifier::new(pins, Role::Party)).expect("a configuration");
    let tcp = TcpStream::connect(party.listening.address).await.expect("connected");
    let name = party.listening.address.ip().into();
    let name = rustls::pki_types::ServerName::IpAddress(name);
    tokio_rustls::TlsConnector::from(config).connect(name, tcp).await.expect("a handshake")
}

#[tokio::test]
async fn who_is_refused_is_told_once_and_waits_before_it_tries_again() {
    let (alpha, stranger) = (identity("alpha"), identity("stranger"));
    let party = Party::of(&[&alpha]).await;
    let mut member = Member::of(&stranger, &party);
    assert!(matches!(member.failed().await, ConnectFailure::NotAccepted(_)));
    // An ordinary failure is tried again five times in this time.
    tokio::time::sleep(Duration::from_millis(1800)).await;
    assert_eq!(party.refused(), 1);
    assert!(member.events.try_recv().is_err(), "told once");
}

#[tokio::test]
async fn who_refuses_the_other_end_waits_as_well() {
    let alpha = identity("alpha");
    let impostor = Party { identity: identity("party1"), ..Party::of(&[&alpha]).await };
    let mut member = Member::of(&alpha, &impostor);
    let ConnectFailure::Refused(refusal) = member.failed().await else { panic!("no refusal") };
    assert_eq!(refusal.reason, RefusalReason::Unknown);
    tokio::time::sleep(Duration::from_millis(1800)).await;
    assert_eq!(member.links.counters().refused.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_was_sent_before_a_close_arrives_and_a_refused_peer_waits() {
    let alpha = identity("alpha");
    let mut party = Party::of(&[&alpha]).await;
    let mut member = Member::of(&alpha, &party);
    let (at_party, _) = up(party.next().await);
    let (at_member, _) = up(member.next().await);
    // Octets that the party does not read any more must not take the frame away.
    member.links.send(at_member, vec![7; 200_000]);
    party.links.send(at_party, b"another slot".to_vec());
    party.links.close(at_party, "refused");
    assert_eq!(frame(member.next().await), b"another slot");
    member.links.close_refused(at_member, "the party refused it");
    down(member.next().await);
    assert!(timeout(Duration::from_millis(1800), member.next()).await.is_err(), "it tries again at once");
}

#[tokio::test]
async fn a_probe_sees_the_peers_certificate_and_clock_and_without_a_name_disturbs_no_link() {
    let (alpha, stranger) = (identity("alpha"), identity("stranger"));
    let mut party = Party::of(&[&alpha]).await;
    let address = party.listening.address.to_string();
    let expecting =
        |who: &Identity| PinVerifier::new(Pins::new([(who.fingerprint(), pin("party1", Role::Party, 1))]), Role::Party);
    let of_party = expecting(&party.identity);
    let now = wayleave_runtime::clock::unix_now().secs();
    let clock = probe(&address, Some(&alpha), &of_party).await.expect("accepted").peer_clock.expect("told");
    assert!(clock.abs_diff(now) <= 2, "{clock} {now}");
    up(party.next().await);
    down(party.next().await);
    let _member = Member::of(&alpha, &party);
    up(party.next().await);
    assert_eq!(probe(&address, None, &of_party).await.expect("reached").peer_clock, None);
    assert!(matches!(probe(&address, None, &expecting(&stranger)).await, Err(ConnectFailure::Refused(_))));
    assert!(matches!(probe(&address, Some(&stranger), &of_party).await, Err(ConnectFailure::NotAccepted(_))));
    assert!(timeout(Duration::from_millis(300), party.events.recv()).await.is_err(), "the link was disturbed");
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("its address");
    assert!(matches!(probe(&closed.to_string(), None, &of_party).await, Err(ConnectFailure::System(_))));
}

/// ICC, versions: programs of two releases between which the next one lies meet: they use the version that both speak, or have no link and
/// say why; one that says no version, as the first release did, is let in.
#[tokio::test]
async fn nodes_use_the_protocol_that_both_speak_and_have_no_link_without_one() {
    const ONE: &[&str] = &["x/1"];
    const BOTH: &[&str] = &["x/2", "x/1"];
    const TWO: &[&str] = &["x/2"];
    let [server, client] = [1, 2].map(|octet| NodeIdentity::from_seed(&[octet; 32]).expect("a key"));
    for (theirs, ours, is_up) in [
        (ONE, ONE, true),
        (ONE, BOTH, true),
        (BOTH, TWO, true),
        (ONE, TWO, false),
        (TWO, &[][..], true),
        (&[][..], TWO, true),
    ] {
        let with = |protocols| Links::new(Limits { protocols, ..Limits::default() });
        let (listener, connector) = (with(theirs), with(ours));
        let ((to_server, mut at_server), (to_client, mut at_client)) = (mpsc::channel(4), mpsc::channel(4));
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let listening = listener.listen_nodes::<LinkEvent>(any, &server, to_server).await.expect("listening");
        let at = listening.address.to_string();
        let _connecting =
            connector.connect_node::<LinkEvent>(at, &client, server.identity(), to_client).expect("a key");
        if is_up {
            for events in [&mut at_server, &mut at_client] {
                let event = timeout(SOON, events.recv()).await.expect("in time");
                assert!(matches!(event, Some(LinkEvent::Up { .. })), "{theirs:?} and {ours:?}: {event:?}");
            }
            continue;
        }
        for links in [&listener, &connector] {
            let failed = || links.counters().failed.load(Ordering::Relaxed) > 0;
            timeout(SOON, async {
                while !failed() {
                    tokio::task::yield_now().await
                }
            })
            .await
            .expect("no link");
        }
        assert!(at_server.try_recv().is_err());
        let event = timeout(SOON, at_client.recv()).await.expect("in time");
        let is_told = matches!(&event, Some(LinkEvent::Failed { failure: ConnectFailure::NoProtocol, .. }));
        assert!(is_told, "{theirs:?} and {ours:?}: {event:?}");
    }
    let alert = rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol);
    for error in [rustls::Error::NoApplicationProtocol, alert] {
        let failure = ConnectFailure::from(std::io::Error::new(std::io::ErrorKind::InvalidData, error));
        assert_eq!(failure, ConnectFailure::NoProtocol);
    }
}

#[tokio::test]
async fn a_node_that_expects_another_one_is_told_why_there_is_no_link_once() {
    let [server, client, other] = [1, 2, 3].map(|octet| NodeIdentity::from_seed(&[octet; 32]).expect("a key"));
    let (listener, connector) = (Links::new(Limits::default()), Links::new(Limits::default()));
    let ((to_server, _at_server), (to_client, mut at_client)) = (mpsc::channel(4), mpsc::channel(4));
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listening = listener.listen_nodes::<LinkEvent>(any, &server, to_server).await.expect("listening");
    let at = listening.address.to_string();
    let _connecting = connector.connect_node::<LinkEvent>(at, &client, other.identity(), to_client).expect("a key");
    match timeout(SOON, at_client.recv()).await.expect("in time").expect("open") {
        LinkEvent::Failed { pin, failure } => {
            assert_eq!(pin.role, Role::Node(other.identity()));
            assert!(failure.to_string().contains(&server.identity().to_string()), "{failure}");
        }
        event => panic!("{event:?}"),
    }
    assert!(timeout(Duration::from_millis(400), at_client.recv()).await.is_err(), "once");
}

#[tokio::test]
async fn a_node_has_two_links_and_a_third_one_replaces_the_oldest() {
    let [server, client] = [1, 2].map(|octet| NodeIdentity::from_seed(&[octet; 32]).expect("a key"));
    let listener = Links::new(Limits::default());
    let (to_server, mut at_server) = mpsc::channel(16);
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listening = listener.listen_nodes::<LinkEvent>(any, &server, to_server).await.expect("listening");
    let at = listening.address.to_string();
    let mut ups = Vec::new();
    let mut connectors = Vec::new();
    for _ in 0..3 {
        let (to_client, at_client) = mpsc::channel(16);
        let connector = Links::new(Limits::default());
        let connecting =
            connector.connect_node::<LinkEvent>(at.clone(), &client, server.identity(), to_client).expect("a key");
        connectors.push((connector, connecting, at_client));
        let mut ended = None;
        loop {
            match timeout(SOON, at_server.recv()).await.expect("in time").expect("open") {
                LinkEvent::Up { link, .. } => {
                    ups.push(link);
                    break;
                }
                LinkEvent::Down { link, .. } => ended = Some(link),
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(ended, (ups.len() == 3).then(|| ups[0]), "two stand beside each other");
        if ups.len() == 3 {
            // The one that was replaced would come again and replace the next.
            break;
        }
    }
}

//! A member's proxy with a BMP station (RFC 7854, RFC 8671), which is this test and reads with our own reader.

use std::fs;
use std::io::Read as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use wayleave_bgp::bmp::{BmpMessage, BmpReader, Table};
use wayleave_core::Prefix;
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;
use wayleave_lab::table::Announcement;

use crate::common::metrics::assert_named_by_the_rule;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Alpha's, which bravo's router gets; and bravo's own.
const GIVEN: &str = "192.0.2.0/24";
const OWN: &str = "198.51.100.0/24";
const ALPHA: usize = 0;
/// Its proxy has the station.
const BRAVO: usize = 1;

const IN: Table = Table::AdjRibIn { post_policy: false };
const OUT: Table = Table::AdjRibOut { post_policy: true };

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// What came over one connection.
struct Connection {
    stream: TcpStream,
    messages: Vec<BmpMessage>,
    is_closed: bool,
}

#[derive(Clone)]
struct Station {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<Connection>>>,
}

impl Station {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let station = Self { address, connections: Arc::default() };
        let of_thread = station.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let reads = stream.try_clone().expect("a second handle");
                let mut all = of_thread.all();
                let number = all.len();
                all.push(Connection { stream, messages: Vec::new(), is_closed: false });
                drop(all);
                let station = of_thread.clone();
                thread::spawn(move || station.read(number, reads));
            }
        });
        station
    }

    fn all(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, number: usize, mut stream: TcpStream) {
        let (mut reader, mut octets) = (BmpReader::new(), [0; 4_096]);
        while let Ok(length @ 1..) = stream.read(&mut octets) {
            reader.push(&octets[..length]);
            while let Some(message) = reader.next_message().expect("BMP") {
                self.all()[number].messages.push(message);
            }
        }
        self.all()[number].is_closed = true;
    }

    /// Whether what came over a connection is so.
    fn has(&self, number: usize, is_so: impl Fn(&[BmpMessage]) -> bool) -> bool {
        self.all().get(number).is_some_and(|connection| is_so(&connection.messages))
    }

    fn eventually(&self, what: &str, number: usize, is_so: impl Fn(&[BmpMessage]) -> bool) {
        if wait_until(TIMEOUT, || self.has(number, &is_so).then_some(())).is_none() {
            let all = self.all();
            let messages: Vec<&[BmpMessage]> = all.iter().map(|connection| &connection.messages[..]).collect();
            panic!("never: {what}; {messages:#?}");
        }
    }
}

fn is_announced(messages: &[BmpMessage], table: Table, of: &str) -> bool {
    messages.iter().any(|message| match message {
        BmpMessage::Routes(peer, update) => {
            peer.table == table && update.announced.iter().any(|nlri| nlri.prefix == prefix(of))
        }
        _ => false,
    })
}

fn is_withdrawn(messages: &[BmpMessage], table: Table, of: &str) -> bool {
    messages.iter().any(|message| match message {
        BmpMessage::Routes(peer, update) => {
            peer.table == table && update.withdrawn.iter().any(|nlri| nlri.prefix == prefix(of))
        }
        _ => false,
    })
}

fn is_at_end(messages: &[BmpMessage], table: Table) -> bool {
    let is_end = |message: &BmpMessage| matches!(message, BmpMessage::Routes(peer, update) if peer.table == table && update.end_of_rib.is_some());
    messages.iter().any(is_end)
}

#[test]
fn a_station_hears_what_a_members_router_announces_and_gets_and_again_when_it_is_back() {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("member-bmp");
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state).expect("a folder");
    let layout = Layout::simulated(&state).expect("free ports");
    let mut exchange = DemoExchange::new(layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("files");
    let station = Station::start();
    let config = exchange.files.member(&exchange.members[BRAVO].at.name);
    let text = fs::read_to_string(&config).expect("a configuration");
    let section = format!("[bmp]\nconnect = \"{}\"\nstatistics_secs = 5\n", station.address);
    fs::write(&config, format!("{text}\n{section}")).expect("written");
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    for member in &mut exchange.members[..=BRAVO] {
        member.role.start().expect("a member that starts");
        member.router.start().expect("a speaker");
    }
    let names = [ALPHA, BRAVO].map(|member| exchange.members[member].at.name.clone());
    exchange.announce(&names[ALPHA], &[Announcement::of(prefix(GIVEN))]).expect("taken");
    exchange.announce(&names[BRAVO], &[Announcement::of(prefix(OWN))]).expect("taken");

    station.eventually("both tables, and their ends", 0, |messages| {
        is_announced(messages, IN, OWN)
            && is_announced(messages, OUT, GIVEN)
            && is_at_end(messages, IN)
            && is_at_end(messages, OUT)
    });
    let asn = exchange.members[BRAVO].at.asn;
    let begins = |messages: &[BmpMessage]| {
        let [BmpMessage::Initiation { name }, rest @ ..] = messages else { return false };
        let up = rest.iter().find_map(|message| match message {
            BmpMessage::PeerUp(peer) => Some(peer.asn),
            _ => None,
        });
        name.starts_with(&names[BRAVO]) && up == Some(asn)
    };
    assert!(station.has(0, begins), "Initiation first, and a Peer Up of the router");
    assert!(!station.has(0, |messages| is_announced(messages, IN, GIVEN) || is_announced(messages, OUT, OWN)));
    station.eventually("a Statistics Report", 0, |messages| messages.contains(&BmpMessage::Other(1)));
    let proxy = &exchange.members[BRAVO].at.proxy;
    assert_named_by_the_rule("member", &proxy.namespace, proxy.status);

    exchange.withdraw(&names[ALPHA], prefix(GIVEN)).expect("taken");
    station.eventually("the route is gone", 0, |messages| is_withdrawn(messages, OUT, GIVEN));

    // It closes the connection, and is told what there is now.
    station.all()[0].stream.shutdown(Shutdown::Both).expect("open until now");
    station.eventually("the router's route again", 1, |messages| is_announced(messages, IN, OWN));
    assert!(station.has(1, begins));
    assert!(!station.has(1, |messages| is_announced(messages, OUT, GIVEN)), "it is gone");

    // The proxy stops: the session's end, then the last message.
    assert!(exchange.members[BRAVO].role.stop(TIMEOUT), "it stops");
    station.eventually("Peer Down, then Termination", 1, |messages| {
        matches!(messages, [.., BmpMessage::PeerDown(_), BmpMessage::Termination])
    });
    assert!(wait_until(TIMEOUT, || station.all()[1].is_closed.then_some(())).is_some(), "the connection is closed");
}

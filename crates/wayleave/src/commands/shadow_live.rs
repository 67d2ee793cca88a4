//! The tables of a route server that runs: a session in which it announces all routes, and BMP (RFC 7854). Both are read until nothing
//! has changed for a while. Nothing is announced, and a BMP station says nothing at all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use wayleave_bgp::bmp::{BmpError, BmpMessage, BmpReader, Peer as BmpPeer, Table};
use wayleave_bgp::peer::{Input, Output, Peer, PeerEvent};
use wayleave_bgp::session::{self, AddPathOffer, Config, PeerAsn, Stop, StopReason};
use wayleave_bgp::{Nlri, SessionParams, Update};
use wayleave_core::Machine;
use wayleave_route_server::shadow::{Exchange, Full, Tables};
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::{Protection, TcpEvent, TcpOptions};

use super::shadow::{Read, see_guide};
use crate::config::shadow::{BmpSection, SessionSection, ShadowConfig};
use crate::failure::{Failure, Outcome};
use crate::output::warn;
use crate::roles::peer_tcp::{Endpoint, PeerTcp, SHUTDOWN_TIME, TcpInput};

/// Events that may wait; then the server waits.
const QUEUE: usize = 64;
/// Octets of BMP that are read at once.
const PIECE: usize = 1 << 16;
/// Connections of BMP at a time: the server's, and those that were lost without a word.
const MAX_BMP: usize = 16;
/// The source of the session. Files have small numbers, and peers of BMP those beyond.
const SESSION: u32 = u32::MAX;
const FIRST_BMP: u32 = 1 << 24;

enum Event {
    Bgp(TcpEvent),
    BmpOpened(u64),
    Bmp(u64, Vec<u8>),
    BmpClosed(u64),
}

impl From<TcpEvent> for Event {
    fn from(event: TcpEvent) -> Self {
        Self::Bgp(event)
    }
}

/// Reads the live sources until they are complete.
pub fn read_all(config: &ShadowConfig, exchange: &Exchange, tables: &mut Tables, read: &mut Read) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(follow(config, exchange, tables, read));
    runtime.shutdown_timeout(Duration::from_millis(100));
    outcome
}

async fn follow(config: &ShadowConfig, exchange: &Exchange, tables: &mut Tables, read: &mut Read) -> Outcome {
    let (events, mut waiting) = mpsc::channel(QUEUE);
    let mut sources = Sources {
        exchange,
        tables,
        session: None,
        bmp: config.file.bmp.as_ref().map(|_| Bmp::default()),
        changed: Instant::now(),
    };
    if let Some(section) = &config.file.session {
        let server = *config.file.shadow.asn.get_ref();
        sources.session = Some(Session::open(section.get_ref(), PeerAsn::Exactly(server), &events).await?);
    }
    if let Some(section) = &config.file.bmp {
        listen(section.get_ref(), events.clone()).await?;
    }
    let too_much = |error: Full| Failure::new(error).help("compare a part: files of one family");
    // The session's first wishes.
    sources.act().map_err(too_much)?;
    let settle = Duration::from_secs(*config.file.shadow.settle_secs.get_ref());
    let end = Instant::now() + Duration::from_secs(*config.file.shadow.wait_secs.get_ref());
    loop {
        let settled = sources.changed + settle;
        let has_begun = sources.has_begun();
        if has_begun && Instant::now() >= settled {
            break;
        }
        if Instant::now() >= end {
            return Err(sources.incomplete(*config.file.shadow.wait_secs.get_ref()).into());
        }
        let due = sources.session.as_ref().and_then(Session::due);
        let wake = [Some(end), has_begun.then_some(settled), due].into_iter().flatten().min().unwrap_or(end);
        tokio::select! {
            event = waiting.recv() => if let Some(event) = event {
                sources.take(event).map_err(too_much)?;
            },
            () = sleep_until(wake) => sources.time_passed().map_err(too_much)?,
        }
    }
    if let Some(bmp) = &sources.bmp {
        read.notes.extend(bmp.notes());
    }
    read.notes.extend(sources.session.as_ref().and_then(Session::note));
    let has_files = !config.file.learned.mrt.is_empty() || !config.file.learned.bird.is_empty();
    let silent = sources.silent(has_files);
    if let Some(session) = &mut sources.session {
        session.stop().await;
    }
    silent.map_or(Ok(()), |failure| Err(failure.into()))
}

/// What is read, and how far.
struct Sources<'a> {
    exchange: &'a Exchange,
    tables: &'a mut Tables,
    session: Option<Session>,
    bmp: Option<Bmp>,
    /// When a route, or whether a source is there, last changed.
    changed: Instant,
}

impl Sources<'_> {
    /// Whether each source has sent what it had, as far as it says.
    fn has_begun(&self) -> bool {
        let session = self.session.as_ref().is_none_or(|session| session.is_up && session.has_routes);
        session && self.bmp.as_ref().is_none_or(|bmp| bmp.has_routes)
    }

    /// A source that gave nothing of what it is there for: then every route of a member would be `not-learned`.
    fn silent(&self, has_files: bool) -> Option<Failure> {
        let by_session = self.session.as_ref().is_some_and(|session| session.has_learned);
        let what = match (&self.session, &self.bmp) {
            (Some(_), _) if !by_session => "[session]: the route server announced no route of a member",
            // It may be there for what members are given alone.
            (None, Some(bmp)) if !bmp.has_learned && !has_files => {
                "[bmp]: the route server sent no route that a member announced"
            }
            _ => return None,
        };
        let help = format!("compare the AS numbers and addresses of [[member]] with the server's; {}", see_guide());
        Some(Failure::new(what).help(help))
    }

    fn incomplete(&self, secs: u64) -> Failure {
        let session = self.session.as_ref().filter(|session| !(session.is_up && session.has_routes));
        let what = match (session, &self.bmp) {
            (Some(session), _) => {
                let why = session.last.as_ref().map_or(String::new(), |why| format!(": {why}"));
                let what = if session.is_up { "announced no route" } else { "has no session with this end" };
                format!("the route server {what}{why}")
            }
            (None, Some(bmp)) if !bmp.has_routes => match bmp.notes() {
                notes if notes.is_empty() => "nobody sent routes by BMP".to_owned(),
                notes => format!("BMP brought no route that is compared: {}", notes.join("; ")),
            },
            (None, _) => "the route server's tables did not come to rest".to_owned(),
        };
        let help = format!("`wait_secs` and `settle_secs` of [shadow] say how long is waited; {}", see_guide());
        Failure::new(format!("after {secs} seconds {what}")).help(help)
    }

    fn take(&mut self, event: Event) -> Result<(), Full> {
        match event {
            Event::Bgp(event) => {
                let Some(session) = &mut self.session else { return Ok(()) };
                session.tcp_event(event);
                self.act()
            }
            Event::BmpOpened(connection) => {
                if let Some(bmp) = &mut self.bmp {
                    bmp.readers.insert(connection, BmpReader::new());
                }
                Ok(())
            }
            Event::Bmp(connection, octets) => self.bmp_octets(connection, &octets),
            Event::BmpClosed(connection) => {
                self.bmp_closed(connection);
                Ok(())
            }
        }
    }

    fn time_passed(&mut self) -> Result<(), Full> {
        if let Some(session) = &mut self.session {
            session.peer.handle_timeout(session.clock.now());
        }
        self.act()
    }

    /// Carries out what the session asks for, and takes what it has.
    fn act(&mut self) -> Result<(), Full> {
        while let Some(output) = self.session.as_mut().and_then(|session| session.peer.poll()) {
            let Some(session) = &mut self.session else { break };
            match output {
                Output::Tcp(request) => {
                    if let Some(input) = session.tcp.perform(request) {
                        session.input(input);
                    }
                }
                Output::Established(established) => {
                    (session.is_up, session.last) = (true, None);
                    session.agreed = Some(established.params);
                    self.changed = Instant::now();
                }
                Output::Ended(ended) => {
                    (session.is_up, session.has_routes, session.has_learned) = (false, false, false);
                    session.last = Some(ended.cause.to_string());
                    self.tables.forget(SESSION);
                    self.changed = Instant::now();
                }
                Output::Failed(ended) => session.last = Some(ended.cause.to_string()),
                Output::Event(PeerEvent::Update(update)) => {
                    session.has_routes = true;
                    self.changed = Instant::now();
                    session.has_learned |= learn(self.tables, self.exchange, SESSION, None, &update)?;
                }
                Output::EndOfRib(_) => session.has_routes = true,
                Output::Event(_) | Output::Rejected(_) | Output::Unsendable(_) | Output::RouteRefresh { .. } => {}
            }
        }
        Ok(())
    }

    fn bmp_octets(&mut self, connection: u64, octets: &[u8]) -> Result<(), Full> {
        let Some(bmp) = &mut self.bmp else { return Ok(()) };
        let Some(reader) = bmp.readers.get_mut(&connection) else { return Ok(()) };
        reader.push(octets);
        let mut messages = Vec::new();
        let failed = loop {
            match reader.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        for message in messages {
            self.bmp_message(connection, message)?;
        }
        if let Some(error) = failed {
            self.bmp_failed(connection, error);
        }
        Ok(())
    }

    fn bmp_failed(&mut self, connection: u64, error: BmpError) {
        warn(&format!("a connection to [bmp] is not read on: {error}"));
        self.bmp_closed(connection);
    }

    fn bmp_closed(&mut self, connection: u64) {
        let Some(bmp) = &mut self.bmp else { return };
        bmp.readers.remove(&connection);
        let gone: Vec<PeerKey> = bmp.peers.keys().filter(|(of, ..)| *of == connection).copied().collect();
        for peer in gone {
            self.peer_gone(peer);
        }
        if let Some(bmp) = &mut self.bmp {
            bmp.has_routes &= !bmp.peers.is_empty();
            bmp.has_learned &= !bmp.peers.is_empty();
        }
    }

    fn peer_gone(&mut self, peer: PeerKey) {
        let Some(bmp) = &mut self.bmp else { return };
        if let Some(source) = bmp.peers.remove(&peer) {
            self.tables.forget(source);
        }
        // Not what a file, or another session with it, has of it.
        if let Some(slot) = self.exchange.owner(peer.2).filter(|slot| bmp.givers.get(slot) == Some(&peer)) {
            bmp.givers.remove(&slot);
            self.tables.forget_given(slot);
        }
        self.changed = Instant::now();
    }

    fn bmp_message(&mut self, connection: u64, message: BmpMessage) -> Result<(), Full> {
        let Some(bmp) = &mut self.bmp else { return Ok(()) };
        match message {
            BmpMessage::PeerUp(peer) if peer.table != Table::LocRib => {
                bmp.peer_up(key(connection, &peer));
                self.changed = Instant::now();
            }
            BmpMessage::PeerDown(peer) if peer.table != Table::LocRib => self.peer_gone(key(connection, &peer)),
            BmpMessage::Routes(peer, update) => {
                let of = key(connection, &peer);
                match (peer.table, bmp.peers.get(&of)) {
                    // After import policy, before export policy, and the server's own choice: none is what a member sent or gets.
                    (Table::AdjRibIn { post_policy: true }, _) => {
                        bmp.after_import += u64::from(!update.announced.is_empty());
                    }
                    (Table::AdjRibOut { post_policy: false } | Table::LocRib, _) => {}
                    // How its routes are written is not known (RFC 7854 section 4.10).
                    (_, None) => bmp.without_peer_up += 1,
                    (Table::AdjRibIn { post_policy: false }, Some(source)) => {
                        self.changed = Instant::now();
                        let has_learned = learn(self.tables, self.exchange, *source, Some(peer.address), &update)?;
                        bmp.has_learned |= has_learned;
                        bmp.has_routes = true;
                    }
                    (Table::AdjRibOut { post_policy: true }, Some(_)) => {
                        self.changed = Instant::now();
                        let Some(slot) = self.exchange.owner(peer.address) else {
                            bmp.strangers += 1;
                            return Ok(());
                        };
                        bmp.givers.insert(slot, of);
                        bmp.has_routes = true;
                        self.tables.has_table(slot);
                        update.withdrawn.iter().for_each(|nlri| self.tables.take_back(slot, *nlri));
                        if let Some(attributes) = &update.attributes {
                            for nlri in &update.announced {
                                self.tables.give(slot, *nlri, attributes)?;
                            }
                        }
                    }
                }
            }
            BmpMessage::UnreadableUpdate(_) => bmp.unreadable += 1,
            BmpMessage::PeerUp(_)
            | BmpMessage::PeerDown(_)
            | BmpMessage::Initiation { .. }
            | BmpMessage::Termination
            | BmpMessage::Other(_) => {}
        }
        Ok(())
    }
}

/// Whether there was a route of a member among them.
fn learn(
    tables: &mut Tables,
    exchange: &Exchange,
    source: u32,
    peer: Option<IpAddr>,
    update: &Update,
) -> Result<bool, Full> {
    update.withdrawn.iter().for_each(|nlri: &Nlri| tables.withdraw(source, *nlri));
    let Some(attributes) = &update.attributes else { return Ok(false) };
    let mut is_of_member = false;
    for nlri in &update.announced {
        is_of_member |= tables.learn(exchange, source, peer, *nlri, attributes)?;
    }
    Ok(is_of_member)
}

/// What a session without ADD-PATH lacks.
fn only_best(params: &SessionParams) -> Option<String> {
    let families = [
        (params.ipv4_unicast && !params.add_path_receive.ipv4, "IPv4"),
        (params.ipv6_unicast && !params.add_path_receive.ipv6, "IPv6"),
    ];
    let lacking: Vec<&str> = families.into_iter().filter(|(lacks, _)| *lacks).map(|(_, family)| family).collect();
    let of = lacking.join(" and ");
    (!lacking.is_empty()).then(|| {
        format!("[session]: without ADD-PATH of {of} the server announces its best routes alone, and no hidden one")
    })
}

/// The session with the server.
struct Session {
    peer: Peer,
    tcp: PeerTcp,
    clock: Clock,
    is_up: bool,
    has_routes: bool,
    /// One of them was a member's.
    has_learned: bool,
    /// What the last session agreed on.
    agreed: Option<SessionParams>,
    /// Why there is no session.
    last: Option<String>,
}

impl Session {
    async fn open(section: &SessionSection, server: PeerAsn, events: &mpsc::Sender<Event>) -> Outcome<Self> {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let endpoint = Endpoint {
            listen: section.listen.map(|listen| listen.0),
            connect: section.connect.map(|connect| connect.0),
            options: TcpOptions {
                peer: section.address.map(|address| address.0),
                bind: section.bind.map(|bind| bind.0),
                protection: Protection::default(),
                ..TcpOptions::default()
            },
        };
        let place = section.listen.map_or_else(|| "[session]".to_owned(), |listen| listen.0.to_string());
        let tcp = PeerTcp::open(endpoint, sender).await;
        let tcp = tcp.map_err(|error| Failure::listen_bgp(format!("cannot listen on {place}"), &error))?;
        let events = events.clone();
        tokio::spawn(async move {
            while let Some(event) = receiver.recv().await {
                if events.send(Event::Bgp(event)).await.is_err() {
                    break;
                }
            }
        });
        let mut config = Config::new(*section.asn.get_ref(), section.router_id.0, server);
        config.passive = section.listen.is_some();
        // All paths come in, and none goes out (RFC 7911).
        let receive = AddPathOffer { receive: true, send: false };
        (config.offer.add_path_ipv4, config.offer.add_path_ipv6) = (receive, receive);
        let clock = Clock::start();
        let seed = u64::from(u32::from(section.router_id.0));
        let mut peer = Peer::new(config, seed, clock.now());
        peer.handle(Input::Session(session::Input::Start), clock.now());
        Ok(Self { peer, tcp, clock, is_up: false, has_routes: false, has_learned: false, agreed: None, last: None })
    }

    fn note(&self) -> Option<String> {
        only_best(self.agreed.as_ref()?)
    }

    fn due(&self) -> Option<Instant> {
        self.peer.deadline().map(|at| self.clock.at(at))
    }

    fn input(&mut self, input: session::Input) {
        self.peer.handle(Input::Session(input), self.clock.now());
    }

    fn tcp_event(&mut self, event: TcpEvent) {
        match self.tcp.translate(event) {
            TcpInput::Session(input) => self.input(input),
            TcpInput::ConnectFailed(input, why) => {
                self.last = Some(why);
                self.input(input);
            }
            TcpInput::Refused(address) => {
                self.last = Some(format!("{address} connected, which is not `address` of [session]"));
            }
        }
    }

    /// Ends the session, and waits until the server has been told.
    async fn stop(&mut self) {
        let reason = StopReason::Shutdown("the comparison is over".to_owned());
        self.input(session::Input::Stop(Stop { administrative: true, reason }));
        while let Some(output) = self.peer.poll() {
            if let Output::Tcp(request) = output {
                let _ = self.tcp.perform(request); // nothing is sent any more
            }
        }
        let _ = timeout(SHUTDOWN_TIME, self.tcp.connections().gone()).await; // who does not read by then is left
    }
}

/// A peer of a connection, with its distinguisher: two VRFs may have one address.
type PeerKey = (u64, u64, IpAddr);

fn key(connection: u64, peer: &BmpPeer) -> PeerKey {
    (connection, peer.distinguisher, peer.address)
}

#[derive(Default)]
struct Bmp {
    readers: HashMap<u64, BmpReader>,
    /// The number of each peer's routes as a source. The reader bounds how many are up.
    peers: HashMap<PeerKey, u32>,
    numbers: u32,
    /// Of each member whose given routes came by BMP, the peer.
    givers: HashMap<u32, PeerKey>,
    /// Some of a table that is used.
    has_routes: bool,
    /// Some that a member announced.
    has_learned: bool,
    /// Messages about routes of peers that are not up.
    without_peer_up: u64,
    unreadable: u64,
    /// Messages about what an import policy left.
    after_import: u64,
    /// Messages about what the server gives to peers that are no members.
    strangers: u64,
}

impl Bmp {
    fn peer_up(&mut self, peer: PeerKey) {
        let numbers = &mut self.numbers;
        self.peers.entry(peer).or_insert_with(|| {
            *numbers += 1;
            FIRST_BMP + *numbers
        });
    }

    fn notes(&self) -> Vec<String> {
        let count = |count: u64, what: &str| (count > 0).then(|| format!("[bmp]: {count} messages {what}"));
        let notes = [
            count(self.unreadable, "have an UPDATE that cannot be read, and were left out"),
            count(self.after_import, "are of routes after the server's import policy, and were left out"),
            count(self.without_peer_up, "are of routes of peers without a Peer Up, and were left out"),
            count(self.strangers, "are of routes for peers that are no members, and were left out"),
        ];
        notes.into_iter().flatten().collect()
    }
}

/// Takes connections of BMP.
async fn listen(section: &BmpSection, events: mpsc::Sender<Event>) -> Outcome {
    let place = section.listen.0;
    let listener = TcpListener::bind(place).await;
    let listener = listener.map_err(|error| Failure::system(format!("cannot listen on {place}"), &error))?;
    let allowed = section.address.map(|address| address.0);
    tokio::spawn(async move {
        let mut last = 0_u64;
        let open = std::sync::Arc::new(tokio::sync::Semaphore::new(MAX_BMP));
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                // Too many open files, most likely.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let is_allowed = allowed.is_none_or(|allowed| allowed.to_canonical() == from.ip().to_canonical());
            let Some(permit) = is_allowed.then(|| std::sync::Arc::clone(&open).try_acquire_owned().ok()).flatten()
            else {
                continue;
            };
            last += 1;
            let (events, connection) = (events.clone(), last);
            tokio::spawn(async move {
                forward(stream, connection, &events).await;
                drop(permit);
            });
        }
    });
    Ok(())
}

/// Hands on what comes in on a connection until it ends, or nobody listens any more.
async fn forward(mut stream: TcpStream, connection: u64, events: &mpsc::Sender<Event>) {
    if events.send(Event::BmpOpened(connection)).await.is_err() {
        return;
    }
    let mut octets = vec![0; PIECE];
    loop {
        match stream.read(&mut octets).await {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if events.send(Event::Bmp(connection, octets[..count].to_vec())).await.is_err() {
                    return;
                }
            }
        }
    }
    let _ = events.send(Event::BmpClosed(connection)).await; // fails if nobody listens any more
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wayleave_core::Asn;
    use wayleave_route_server::directory::{MemberSet, Profile, Slot};
    use wayleave_route_server::policy::validate::Martians;

    use super::*;

    /// What FRR sends of three members.
    const FRR: &[u8] = include_bytes!("../../../../test-data/bgp/frr-8.4.4.bmp");

    fn exchange() -> Exchange {
        let slot = |number: u8| Slot {
            active: true,
            asn: Asn(64_500 + u32::from(number)),
            name: format!("member {number}"),
            addresses: vec![IpAddr::from([192, 0, 2, number])],
            tls: [number; 32],
            sign: [number; 32],
            max_prefix: 0,
            held: false,
        };
        let members = MemberSet {
            exchange: "test-ix".to_owned(),
            number: 1,
            slots: (1..=3).map(slot).collect(),
            attest: BTreeMap::new(),
            profile: Some(Profile::default()),
            data: None,
        };
        Exchange::new(members, Asn(64_500), Martians::AllowDocumentation)
    }

    /// The same messages about what the router sends, after its export policy.
    fn as_given(stream: &[u8]) -> Vec<u8> {
        let (mut given, mut at) = (stream.to_vec(), 0);
        while let Some(header) = given.get(at..at + 8) {
            let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
            if header[5] == 0 {
                given[at + 7] = 0x50;
            }
            at += length;
        }
        given
    }

    #[tokio::test]
    async fn bmp_gives_both_tables_and_takes_them_back_when_a_peer_or_the_connection_is_gone() {
        let exchange = exchange();
        let mut tables = Tables::new();
        let bmp = Some(Bmp::default());
        let mut sources =
            Sources { exchange: &exchange, tables: &mut tables, session: None, bmp, changed: Instant::now() };
        assert!(!sources.has_begun());
        for (connection, stream) in [(1, FRR.to_vec()), (2, as_given(FRR))] {
            sources.take(Event::BmpOpened(connection)).expect("few");
            for piece in stream.chunks(700) {
                sources.take(Event::Bmp(connection, piece.to_vec())).expect("few");
            }
        }
        assert!(sources.has_begun());
        assert_eq!((sources.tables.learned(), sources.tables.given()), (8, 8));
        assert_eq!(sources.tables.members_given().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(sources.bmp.as_ref().map(Bmp::notes), Some(Vec::new()));
        // Every member's own routes, which no route server gives it.
        let report = exchange.compare(sources.tables, |_| {});
        assert_eq!(report.learned.values().sum::<u64>(), 8);
        sources.take(Event::BmpClosed(1)).expect("few");
        assert_eq!((sources.tables.learned(), sources.tables.given(), sources.has_begun()), (0, 8, true));
        sources.take(Event::Bmp(2, vec![0xff])).expect("few");
        assert_eq!((sources.tables.given(), sources.has_begun()), (0, false));
    }

    /// Its messages of one type.
    fn of_type(stream: &[u8], kind: u8) -> Vec<u8> {
        let (mut chosen, mut at) = (Vec::new(), 0);
        while let Some(header) = stream.get(at..at + 6) {
            let end = at + u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
            if header[5] == kind {
                chosen.extend_from_slice(&stream[at..end]);
            }
            at = end;
        }
        chosen
    }

    #[tokio::test]
    async fn routes_of_peers_that_are_not_up_and_of_tables_that_are_not_used_count_for_nothing() {
        let exchange = exchange();
        let mut tables = Tables::new();
        let bmp = Some(Bmp::default());
        let mut sources =
            Sources { exchange: &exchange, tables: &mut tables, session: None, bmp, changed: Instant::now() };
        sources.take(Event::BmpOpened(1)).expect("few");
        sources.take(Event::Bmp(1, of_type(FRR, 0))).expect("few");
        let bmp = sources.bmp.as_ref().expect("configured");
        assert!(bmp.without_peer_up > 0 && bmp.peers.is_empty() && !sources.has_begun());
        assert!(bmp.notes()[0].contains("without a Peer Up"), "{:?}", bmp.notes());
        assert!(sources.silent(false).is_some() && sources.silent(true).is_none(), "a file may have them");

        // Another VRF's peer with the address of a member.
        let mut ups = of_type(FRR, 3);
        ups[8 + 7] = 1;
        sources.take(Event::Bmp(1, ups)).expect("few");
        assert_eq!(sources.bmp.as_ref().map(|bmp| bmp.peers.len()), Some(3));
        let mut after_import = of_type(FRR, 0);
        let mut at = 0;
        while let Some(header) = after_import.get(at..at + 8) {
            let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
            after_import[at + 7] |= 0x40;
            at += length;
        }
        sources.take(Event::Bmp(1, after_import)).expect("few");
        assert!(!sources.has_begun() && sources.tables.is_empty());
        assert!(sources.incomplete(1).to_string().contains("after the server's import policy"));
        sources.take(Event::Bmp(1, of_type(FRR, 0))).expect("few");
        assert!(sources.has_begun() && sources.silent(false).is_none());
        assert!((1..8).contains(&sources.tables.learned()), "of the first member's session nothing came");
    }

    #[test]
    fn a_session_without_add_path_says_what_it_lacks() {
        let mut params = SessionParams::new(Asn(64_510), Asn(64_500));
        (params.ipv4_unicast, params.ipv6_unicast) = (true, true);
        params.add_path_receive.ipv4 = true;
        assert!(only_best(&params).is_some_and(|note| note.contains("ADD-PATH of IPv6 ")));
        params.add_path_receive.ipv6 = true;
        assert_eq!(only_best(&params), None);
    }
}

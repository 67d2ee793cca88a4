//! What a station is told of one session: the router's end of BMP, without a socket or a clock.
//!
//! [`Monitor`] is told what happens in the session and to the connection with the station, and gives the octets that are due. Nothing
//! waits in it but the last state of each route (RFC 7854 section 5 lets a router leave out what changed meanwhile): a station that is
//! slow costs no more than both tables.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use wayleave_core::{Afi, Asn, UnixTime};

use super::encode::{self, Down, Statistics};
use super::{Peer, Table};
use crate::message::{Frame, frame};
use crate::notification::code;
use crate::rib::AdjRibOut;
use crate::session::{Cause, ConnectionId, Established};
use crate::{Action, MessageType, Nlri, Notification, SessionParams, Update, end_of_rib};

/// Routes of one table that a station is told of: our own limit.
const MOST_ROUTES: usize = 4_000_000;
/// Routes between two looks at what else is due.
const BATCH: usize = 500;
/// Connections whose OPENs are kept: a session has two, for a moment.
const MOST_CONNECTIONS: usize = 4;
/// Octets of an OPEN (RFC 4271 section 4.2).
const MAX_OPEN: usize = 4_096;
/// RFC 9687 section 3.
const SEND_HOLD_TIMER_EXPIRED: u8 = 8;

const FAMILIES: [Afi; 2] = [Afi::Ipv4, Afi::Ipv6];

/// The two ends of a session's TCP connection. What is not known of the local one is unspecified, and its port 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// A connection that is no session yet, with what went over it first.
#[derive(Debug)]
struct Opening {
    connection: ConnectionId,
    ends: Ends,
    sent: Vec<u8>,
    received: Vec<u8>,
}

/// The session that is up.
#[derive(Debug)]
struct Monitored {
    connection: ConnectionId,
    peer: Peer,
    ends: Ends,
    /// The router's own, and the peer's.
    opens: [Vec<u8>; 2],
    /// To read what the router sends.
    sent: SessionParams,
    /// To tell what the peer sends, and what the router does.
    tells: [SessionParams; 2],
    since: UnixTime,
    treated_as_withdraw: u32,
    /// The station knows of it.
    is_told: bool,
}

/// One table, and what the station has of it.
#[derive(Debug, Default)]
struct Feed {
    routes: AdjRibOut,
    /// Families whose End-of-RIB was seen, and those whose mark the station is to get; IPv4, then IPv6.
    ended: [bool; 2],
    owed: [bool; 2],
    /// Routes that the station is not told of.
    untold: u64,
}

/// What a station is told of one session.
#[derive(Debug)]
pub struct Monitor {
    description: String,
    name: String,
    is_connected: bool,
    is_initiated: bool,
    openings: Vec<Opening>,
    session: Option<Monitored>,
    /// The end of a session that the station knows as one that is up.
    down: Option<Vec<u8>>,
    owes_statistics: bool,
    incoming: Feed,
    outgoing: Feed,
    messages: u64,
}

// The station.
impl Monitor {
    /// `description` and `name` are what the router says of itself.
    #[must_use]
    pub fn new(description: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            description: description.into(),
            name: name.into(),
            is_connected: false,
            is_initiated: false,
            openings: Vec::new(),
            session: None,
            down: None,
            owes_statistics: false,
            incoming: Feed::default(),
            outgoing: Feed::default(),
            messages: 0,
        }
    }

    /// There is a connection with the station, which knows nothing yet.
    pub fn connected(&mut self) {
        self.disconnected();
        self.is_connected = true;
    }

    /// There is none any more.
    pub fn disconnected(&mut self) {
        (self.is_connected, self.is_initiated, self.down, self.owes_statistics) = (false, false, None, false);
        self.incoming.pause();
        self.outgoing.pause();
        if let Some(session) = &mut self.session {
            session.is_told = false;
        }
    }

    /// The time of a Statistics Report has come.
    pub fn statistics_due(&mut self) {
        self.owes_statistics = true;
    }

    /// The next octets for the station, whole messages; `None` until something is due. To be called again once they are sent.
    pub fn next_octets(&mut self, now: UnixTime) -> Option<Vec<u8>> {
        if !self.is_connected {
            return None;
        }
        let mut messages = Vec::new();
        if !std::mem::replace(&mut self.is_initiated, true) {
            messages.push(encode::initiation(&self.description, &self.name));
        }
        messages.extend(self.down.take());
        messages.extend(self.tell_session());
        messages.extend(self.tell_routes(now));
        messages.extend(self.tell_statistics(now));
        self.messages += messages.len() as u64;
        (!messages.is_empty()).then(|| messages.concat())
    }

    /// The last octets for the station, before the connection is closed because this process ends; none before the first ones.
    pub fn terminate(&mut self) -> Option<Vec<u8>> {
        self.is_initiated.then(|| {
            self.messages += 1;
            encode::termination()
        })
    }

    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Messages for stations so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Routes that the station was not told of: since there were too many, or they are too long for a message.
    #[must_use]
    pub fn untold(&self) -> u64 {
        self.incoming.untold + self.outgoing.untold
    }

    fn tell_session(&mut self) -> Option<Vec<u8>> {
        let session = self.session.as_mut().filter(|session| !session.is_told)?;
        session.is_told = true;
        let [incoming, outgoing] = session.tells;
        self.incoming.begin(incoming);
        self.outgoing.begin(outgoing);
        let Monitored { peer, since, ends, opens, .. } = session;
        Some(encode::peer_up(peer, *since, ends.local, ends.remote.port(), opens))
    }

    fn tell_routes(&mut self, now: UnixTime) -> Vec<Vec<u8>> {
        let Some(session) = &self.session else { return Vec::new() };
        let (table, updates) = match self.incoming.next_updates() {
            updates if updates.is_empty() => (Table::AdjRibOut { post_policy: true }, self.outgoing.next_updates()),
            updates => (Table::AdjRibIn { post_policy: false }, updates),
        };
        let peer = Peer { table, ..session.peer };
        updates.iter().map(|update| encode::route_monitoring(&peer, now, update)).collect()
    }

    fn tell_statistics(&mut self, now: UnixTime) -> Option<Vec<u8>> {
        let is_due = std::mem::take(&mut self.owes_statistics);
        let session = self.session.as_ref().filter(|_| is_due)?;
        let counts = Statistics {
            routes_in: self.incoming.routes.len() as u64,
            routes_out: self.outgoing.routes.len() as u64,
            treated_as_withdraw: session.treated_as_withdraw,
        };
        Some(encode::statistics(&session.peer, now, counts))
    }
}

// The session.
impl Monitor {
    /// A TCP connection is open that may become the session.
    pub fn opened(&mut self, connection: ConnectionId, ends: Ends) {
        if self.openings.len() >= MOST_CONNECTIONS {
            self.openings.remove(0);
        }
        self.openings.push(Opening { connection, ends, sent: Vec::new(), received: Vec::new() });
    }

    /// It is closed.
    pub fn closed(&mut self, connection: ConnectionId) {
        self.openings.retain(|opening| opening.connection != connection);
    }

    /// Octets of the peer, before the session is told of them.
    pub fn received(&mut self, connection: ConnectionId, octets: &[u8]) {
        if let Some(opening) = self.opening(connection) {
            keep_first(&mut opening.received, octets);
        }
    }

    /// Whole messages of the router.
    pub fn sent(&mut self, connection: ConnectionId, octets: &[u8]) {
        if let Some(opening) = self.opening(connection) {
            return keep_first(&mut opening.sent, octets);
        }
        let Some(session) = self.session.as_ref().filter(|session| session.connection == connection) else { return };
        let (params, mut rest) = (session.sent, octets);
        while let Ok((message, behind)) = frame(rest, &params) {
            rest = behind;
            self.outgoing.sent(&message, &params);
        }
    }

    /// The session is up.
    pub fn established(&mut self, established: &Established, now: UnixTime) {
        let of = |opening: &Opening| opening.connection == established.connection;
        let Some(opening) = self.openings.iter().position(of).map(|at| self.openings.swap_remove(at)) else { return };
        let (Some(sent), Some(received)) = (first_open(&opening.sent), first_open(&opening.received)) else { return };
        let params = established.params;
        // Attributes are kept with four octets for an AS, and what one peer may not have, a station may.
        let tells = SessionParams { four_octet_as: true, withholds_stale: false, ..params };
        let table = Table::AdjRibIn { post_policy: false };
        self.session = Some(Monitored {
            connection: established.connection,
            peer: peer(table, opening.ends, established.peer_asn, established.peer_id),
            ends: opening.ends,
            opens: [sent, received],
            sent: SessionParams { add_path_receive: params.add_path_send, enforce_first_as: false, ..params },
            tells: [SessionParams { add_path_send: params.add_path_receive, ..tells }, tells],
            since: now,
            treated_as_withdraw: 0,
            is_told: false,
        });
        for feed in [&mut self.incoming, &mut self.outgoing] {
            feed.clear();
            // Who sends no End-of-RIB is never heard to be at the end: the station gets it behind what there is.
            feed.ended = FAMILIES.map(|afi| !established.end_of_rib && params.has_family(afi));
        }
    }

    /// An UPDATE of the peer, after RFC 7606.
    pub fn update(&mut self, update: &Update) {
        let Some(session) = &mut self.session else { return };
        if update.action() >= Some(Action::TreatAsWithdraw) {
            session.treated_as_withdraw = session.treated_as_withdraw.saturating_add(1);
        }
        self.incoming.apply(update);
    }

    /// The peer has sent all routes of this family.
    pub fn end_of_rib(&mut self, afi: Afi) {
        if self.session.is_some() {
            self.incoming.end(afi);
        }
    }

    /// The session is down: all its routes are gone, whatever is kept of them.
    pub fn ended(&mut self, cause: &Cause, now: UnixTime) {
        let Some(session) = self.session.take() else { return };
        self.incoming.clear();
        self.outgoing.clear();
        if session.is_told {
            self.down = Some(encode::peer_down(&session.peer, now, &down(cause)));
        }
    }

    fn opening(&mut self, connection: ConnectionId) -> Option<&mut Opening> {
        self.openings.iter_mut().find(|opening| opening.connection == connection)
    }
}

impl Feed {
    /// The station is to have the whole table.
    fn begin(&mut self, params: SessionParams) {
        self.routes.session_up(params, false);
        self.owed = self.ended;
    }

    /// There is no station.
    fn pause(&mut self) {
        self.routes.session_down();
        self.owed = [false; 2];
    }

    /// There is no session.
    fn clear(&mut self) {
        *self = Self { untold: self.untold, ..Self::default() };
    }

    fn sent(&mut self, message: &Frame<'_>, params: &SessionParams) {
        if message.kind != MessageType::Update {
            return;
        }
        // What this process encoded itself decodes.
        let Ok(update) = Update::decode(message.body(), params) else { return };
        self.apply(&update);
        if let Some(afi) = update.end_of_rib {
            self.end(afi);
        }
    }

    fn apply(&mut self, update: &Update) {
        update.withdrawn.iter().for_each(|nlri| self.routes.withdraw(nlri));
        let Some(attributes) = &update.attributes else { return };
        let attributes = Arc::new(attributes.clone());
        for nlri in &update.announced {
            if self.routes.len() < MOST_ROUTES {
                self.routes.announce(*nlri, Arc::clone(&attributes));
            } else {
                self.leave_out(nlri);
            }
        }
    }

    /// What is not told is withdrawn, so that the station has nothing that is past.
    fn leave_out(&mut self, nlri: &Nlri) {
        self.routes.withdraw(nlri);
        self.untold += 1;
    }

    fn end(&mut self, afi: Afi) {
        let at = usize::from(afi == Afi::Ipv6);
        (self.ended[at], self.owed[at]) = (true, true);
    }

    /// The next UPDATEs, then the marks that are owed.
    fn next_updates(&mut self) -> Vec<Vec<u8>> {
        let mut updates = Vec::new();
        // A batch may have nothing but routes that no message holds.
        while updates.is_empty() && self.routes.is_due() {
            let batch = self.routes.next_batch(BATCH);
            self.untold += batch.rejected.iter().map(|rejected| rejected.routes.len() as u64).sum::<u64>();
            updates = batch.messages;
        }
        if !self.routes.is_due() {
            let owed = std::mem::take(&mut self.owed);
            let marks = FAMILIES.into_iter().zip(owed).filter(|(_, owed)| *owed);
            updates.extend(marks.map(|(afi, _)| end_of_rib(afi)));
        }
        updates
    }
}

fn peer(table: Table, ends: Ends, asn: Asn, identifier: Ipv4Addr) -> Peer {
    Peer { table, distinguisher: 0, address: ends.remote.ip(), asn, identifier, two_octet_as: false }
}

/// Appends, up to the octets of an OPEN.
fn keep_first(kept: &mut Vec<u8>, octets: &[u8]) {
    let room = MAX_OPEN.saturating_sub(kept.len());
    kept.extend_from_slice(&octets[..octets.len().min(room)]);
}

/// The OPEN with which the octets begin.
fn first_open(octets: &[u8]) -> Option<Vec<u8>> {
    let (message, _) = frame(octets, &SessionParams::new(Asn(0), Asn(0))).ok()?;
    (message.kind == MessageType::Open).then(|| message.octets.to_vec())
}

fn down(cause: &Cause) -> Down {
    match cause {
        Cause::Stopped(notification)
        | Cause::PeerErred(notification)
        | Cause::UnexpectedAs { notification, .. }
        | Cause::RoleMismatch { notification, .. } => Down::Sent(notification.clone()),
        Cause::HoldTimerExpired => Down::Sent(Notification::new(code::HOLD_TIMER_EXPIRED, 0)),
        Cause::SendHoldTimerExpired => Down::Sent(Notification::new(SEND_HOLD_TIMER_EXPIRED, 0)),
        Cause::PeerEnded(notification) => Down::Received(notification.clone()),
        Cause::ConnectionLost | Cause::PeerRestarted => Down::Lost,
        // These end no session that was up.
        Cause::ConnectFailed | Cause::Collision => Down::Event(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bmp::{BmpMessage, BmpReader};
    use crate::session::HoldTime;
    use crate::{Attributes, Capability, Message, Open, Origin, UpdateBuilder};

    const CONNECTION: ConnectionId = ConnectionId(7);
    const NOW: UnixTime = UnixTime(1_000);
    /// The router that is the peer, and the proxy.
    const ROUTER: Asn = Asn(64_497);
    const PROXY: Asn = Asn(64_496);

    fn params() -> SessionParams {
        SessionParams::new(PROXY, ROUTER)
    }

    fn open(asn: Asn, last: u8) -> Vec<u8> {
        let capabilities =
            vec![Capability::FourOctetAs(asn), Capability::unicast(Afi::Ipv4), Capability::unicast(Afi::Ipv6)];
        let open = Open { asn, hold_time: 90, identifier: [192, 0, 2, last].into(), capabilities };
        Message::Open(open).encode(&params()).expect("short")
    }

    fn update(prefix: &str) -> Update {
        let mut attributes = Attributes::builder();
        attributes.origin(Origin::Igp).ipv4_next_hop([192, 0, 2, 1].into());
        attributes.as_path(crate::AsPathBuf::from_sequence(&[ROUTER]).as_path());
        let announced = vec![Nlri::new(prefix.parse().expect("a prefix"))];
        Update { announced, attributes: Some(attributes.finish()), ..Update::default() }
    }

    fn withdrawal(prefix: &str) -> Update {
        Update { withdrawn: vec![Nlri::new(prefix.parse().expect("a prefix"))], ..Update::default() }
    }

    /// As the router is sent it.
    fn octets(update: &Update) -> Vec<u8> {
        let mut builder = UpdateBuilder::new();
        update.announced.iter().for_each(|nlri| _ = builder.announce(*nlri));
        update.withdrawn.iter().for_each(|nlri| _ = builder.withdraw(*nlri));
        update.attributes.iter().for_each(|attributes| _ = builder.attributes(attributes.clone()));
        builder.encode(&params()).expect("short").concat()
    }

    fn established(end_of_rib: bool) -> Established {
        Established {
            connection: CONNECTION,
            params: params(),
            peer_id: [192, 0, 2, 1].into(),
            peer_asn: ROUTER,
            hold_time: HoldTime::DEFAULT,
            route_refresh: true,
            enhanced_route_refresh: true,
            end_of_rib,
            retain: None,
            peer_restarted: false,
            forwarding_kept: Vec::new(),
            transparent: true,
            peer_capabilities: Vec::new(),
        }
    }

    fn begin(monitor: &mut Monitor, end_of_rib: bool) {
        let [local, remote] = ["192.0.2.101:179", "192.0.2.1:40000"].map(|end| end.parse().expect("an address"));
        monitor.opened(CONNECTION, Ends { local, remote });
        monitor.sent(CONNECTION, &open(PROXY, 101));
        // In two pieces, with a KEEPALIVE behind it.
        let received = [open(ROUTER, 1), Message::Keepalive.encode(&params()).expect("short")].concat();
        let (first, second) = received.split_at(20);
        monitor.received(CONNECTION, first);
        monitor.received(CONNECTION, second);
        monitor.established(&established(end_of_rib), NOW);
    }

    /// All that is due, as our own station reads it.
    fn read(monitor: &mut Monitor, reader: &mut BmpReader) -> Vec<BmpMessage> {
        let mut messages = Vec::new();
        while let Some(octets) = monitor.next_octets(NOW) {
            reader.push(&octets);
            while let Some(message) = reader.next_message().expect("sound") {
                messages.push(message);
            }
        }
        messages
    }

    /// `in` or `out`, and what is said.
    fn routes(messages: &[BmpMessage]) -> Vec<String> {
        let told = |message: &BmpMessage| {
            let BmpMessage::Routes(peer, update) = message else { return format!("{message:?}") };
            assert_eq!((peer.asn, peer.address), (ROUTER, [192, 0, 2, 1].into()));
            let table = match peer.table {
                Table::AdjRibIn { post_policy: false } => "in",
                Table::AdjRibOut { post_policy: true } => "out",
                other => panic!("{other:?}"),
            };
            let all = |sign: &str, nlri: &[Nlri]| {
                nlri.iter().map(|nlri| format!(" {sign}{}", nlri.prefix)).collect::<String>()
            };
            let end = update.end_of_rib.map_or(String::new(), |afi| format!(" end of {afi:?}"));
            format!("{table}{}{}{end}", all("+", &update.announced), all("-", &update.withdrawn))
        };
        messages.iter().map(told).collect()
    }

    #[test]
    fn a_station_hears_a_session_from_its_begin_to_its_end() {
        let (mut monitor, mut reader) = (Monitor::new("wayleave", "alpha"), BmpReader::new());
        assert_eq!(monitor.next_octets(NOW), None, "no station");
        monitor.connected();
        assert_eq!(read(&mut monitor, &mut reader), [BmpMessage::Initiation { name: "alpha".to_owned() }]);
        begin(&mut monitor, true);
        let messages = read(&mut monitor, &mut reader);
        let [BmpMessage::PeerUp(peer)] = messages[..] else { panic!("{messages:?}") };
        assert_eq!((peer.asn, peer.identifier), (ROUTER, [192, 0, 2, 1].into()));
        monitor.update(&update("203.0.113.0/24"));
        monitor.end_of_rib(Afi::Ipv4);
        monitor.sent(CONNECTION, &[octets(&update("198.51.100.0/24")), end_of_rib(Afi::Ipv6)].concat());
        let told = routes(&read(&mut monitor, &mut reader));
        assert_eq!(told, ["in +203.0.113.0/24", "in end of Ipv4", "out +198.51.100.0/24", "out end of Ipv6"]);
        monitor.update(&withdrawal("203.0.113.0/24"));
        monitor.sent(CONNECTION, &octets(&withdrawal("198.51.100.0/24")));
        monitor.statistics_due();
        let messages = read(&mut monitor, &mut reader);
        assert!(messages.contains(&BmpMessage::Other(1)), "a Statistics Report: {messages:?}");
        let told: Vec<String> = routes(&messages).into_iter().filter(|told| !told.starts_with("Other")).collect();
        assert_eq!(told, ["in -203.0.113.0/24", "out -198.51.100.0/24"]);
        monitor.ended(&Cause::ConnectionLost, NOW);
        assert_eq!(read(&mut monitor, &mut reader), [BmpMessage::PeerDown(peer)]);
        reader.push(&monitor.terminate().expect("it was initiated"));
        assert_eq!(reader.next_message(), Ok(Some(BmpMessage::Termination)));
        assert_eq!(monitor.untold(), 0);
    }

    #[test]
    fn a_station_that_comes_late_or_again_is_told_the_last_state_alone() {
        let mut monitor = Monitor::new("wayleave", "alpha");
        begin(&mut monitor, true);
        monitor.update(&update("203.0.113.0/24"));
        monitor.update(&update("192.0.2.0/24"));
        monitor.update(&withdrawal("203.0.113.0/24"));
        monitor.end_of_rib(Afi::Ipv4);
        for _ in 0..2 {
            monitor.connected();
            let messages = read(&mut monitor, &mut BmpReader::new());
            assert!(matches!(messages[..2], [BmpMessage::Initiation { .. }, BmpMessage::PeerUp(_)]), "{messages:?}");
            assert_eq!(routes(&messages[2..]), ["in +192.0.2.0/24", "in end of Ipv4"]);
        }
    }

    #[test]
    fn a_session_that_a_station_did_not_hear_of_has_no_end_for_it() {
        let (mut monitor, mut reader) = (Monitor::new("wayleave", "alpha"), BmpReader::new());
        begin(&mut monitor, true);
        monitor.ended(&Cause::HoldTimerExpired, NOW);
        monitor.connected();
        assert_eq!(read(&mut monitor, &mut reader).len(), 1, "Initiation");
        begin(&mut monitor, true);
        monitor.update(&update("203.0.113.0/24"));
        assert_eq!(read(&mut monitor, &mut reader).len(), 2);
        // Down and up again before anything is sent: the routes of the first session are none of the second's.
        monitor.ended(&Cause::PeerEnded(Notification::new(6, 2)), NOW);
        begin(&mut monitor, true);
        let messages = read(&mut monitor, &mut reader);
        assert!(matches!(messages[..], [BmpMessage::PeerDown(_), BmpMessage::PeerUp(_)]), "{messages:?}");
    }

    #[test]
    fn a_router_without_end_of_rib_has_the_marks_behind_what_it_has_sent() {
        let (mut monitor, mut reader) = (Monitor::new("wayleave", "alpha"), BmpReader::new());
        begin(&mut monitor, false);
        monitor.update(&update("203.0.113.0/24"));
        monitor.connected();
        let messages = read(&mut monitor, &mut reader);
        let told = routes(&messages[2..]);
        let expected = ["in +203.0.113.0/24", "in end of Ipv4", "in end of Ipv6", "out end of Ipv4", "out end of Ipv6"];
        assert_eq!(told, expected);
    }

    #[test]
    fn connections_that_become_no_session_are_forgotten() {
        let mut monitor = Monitor::new("wayleave", "alpha");
        let end = "192.0.2.1:179".parse().expect("an address");
        for connection in 0..100 {
            monitor.opened(ConnectionId(connection), Ends { local: end, remote: end });
            monitor.received(ConnectionId(connection), &[0; 10_000]);
        }
        assert_eq!(monitor.openings.len(), MOST_CONNECTIONS);
        assert!(monitor.openings.iter().all(|opening| opening.received.len() == MAX_OPEN));
        monitor.closed(ConnectionId(99));
        assert_eq!(monitor.openings.len(), MOST_CONNECTIONS - 1);
        monitor.established(&established(true), NOW);
        monitor.update(&update("203.0.113.0/24"));
        assert!(monitor.incoming.routes.is_empty(), "what has no OPENs is no session to be told of");
    }
}

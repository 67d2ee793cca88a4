//! The connection to a BMP station (RFC 7854), which hears of the session with a member's router. What it is told is decided by
//! [`wayleave_bgp::bmp::Monitor`]; this is its I/O, in a task of its own, so that a station that hangs stops nothing else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval_at, sleep, timeout};
use tracing::{debug, info, warn};
use wayleave_bgp::Update;
use wayleave_bgp::bmp::{Ends, Monitor};
use wayleave_bgp::session::{Cause, ConnectionId, Established};
use wayleave_core::Afi;
use wayleave_runtime::bgp_tcp::TcpEvent;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::Metric;
use wayleave_runtime::metrics;

use super::peer_tcp::Endpoint;

/// How long a station may take to answer, and to take what one write has.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Octets of one write.
const WRITE: usize = 1 << 16;
/// The rest after a connection that failed: doubled each time (RFC 7854 section 3.2), up to the longest. After one that stood for so
/// long it is the first again.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(120);
/// How long a station may take at the end of this process to read what is left.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// What the configuration says of a station.
#[derive(Clone, Debug)]
pub struct StationAt {
    /// Host and port.
    pub address: String,
    /// What this proxy calls itself there.
    pub name: String,
    /// The interval of Statistics Reports.
    pub statistics: Duration,
}

/// What a station is to hear. Nothing here waits for it.
#[derive(Clone, Debug)]
pub struct Station(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    monitor: Mutex<Monitor>,
    changed: Notify,
    /// Why there is no connection, in words, and since when in Unix seconds.
    lost: Mutex<Option<(u64, String)>>,
}

/// A station whose connection is kept up.
pub struct RunningStation {
    pub station: Station,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl RunningStation {
    pub fn start(at: StationAt) -> Self {
        let description = format!("wayleave {}, member", crate::VERSION);
        let monitor = Mutex::new(Monitor::new(description, at.name.clone()));
        let station = Station(Arc::new(Shared { monitor, changed: Notify::new(), lost: Mutex::new(None) }));
        let (stop, stopped) = oneshot::channel();
        let connection = StationConnection { station: station.clone(), at, stopped };
        Self { station, stop, task: tokio::spawn(connection.run()) }
    }

    /// Sends what is left and a Termination message, if the station takes them at once.
    pub async fn stop(mut self) {
        let _ = self.stop.send(()); // fails if the task has ended
        if timeout(STOP_PATIENCE, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Station {
    fn lock(&self) -> MutexGuard<'_, Monitor> {
        self.0.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: impl FnOnce(&mut Monitor)) {
        what(&mut self.lock());
        self.0.changed.notify_one();
    }

    /// What is wrong with the connection.
    pub fn problem(&self) -> Option<String> {
        let lost = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.as_ref().map(|(since, why)| {
            format!(
                "no connection with the BMP station ([bmp] `connect`) since {}: {why}; it is tried again, and sessions and routes are not \
                 concerned",
                utc(*since)
            )
        })
    }

    /// Whether there is a connection, and if not, why. The time of a loss stays until there is one again.
    fn note(&self, lost: Option<&str>) {
        let mut before = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
        *before = lost.map(|why| (before.take().map_or_else(|| unix_now().secs(), |(since, _)| since), why.to_owned()));
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let monitor = self.lock();
        metrics! {
            gauge "bmp" Up "Whether there is a connection with the BMP station" = monitor.is_connected();
            counter "bmp_sent" Messages "Messages for the BMP station" = monitor.messages();
            counter "bmp_untold" Routes "Routes that the BMP station was not told of, since there are too many or they fit no message" = monitor.untold();
        }
    }
}

/// What the driver of the session tells a station of it.
#[derive(Debug)]
pub struct Monitored {
    station: Station,
    /// Where the driver listens, and from and to where it connects.
    listen: Option<SocketAddr>,
    bind: Option<IpAddr>,
    connect: Option<SocketAddr>,
}

impl Monitored {
    pub fn new(station: Station, endpoint: &Endpoint) -> Self {
        Self { station, listen: endpoint.listen, bind: endpoint.options.bind, connect: endpoint.connect }
    }

    /// Before the session is told.
    pub fn tcp(&self, event: &TcpEvent) {
        let mut monitor = self.station.lock();
        match event {
            TcpEvent::Accepted { connection, address } => {
                let local = self.listen.unwrap_or_else(|| unknown(*address));
                monitor.opened(ConnectionId(*connection), Ends { local, remote: *address });
            }
            TcpEvent::Connected { connection, .. } => {
                let Some(remote) = self.connect else { return };
                let local = self.bind.map_or_else(|| unknown(remote), |bind| SocketAddr::new(bind, 0));
                monitor.opened(ConnectionId(*connection), Ends { local, remote });
            }
            TcpEvent::Bytes { connection, bytes } => monitor.received(ConnectionId(*connection), bytes),
            TcpEvent::Closed { connection } => monitor.closed(ConnectionId(*connection)),
            TcpEvent::Refused { .. } | TcpEvent::ConnectFailed { .. } | TcpEvent::Writable { .. } => {}
        }
    }

    pub fn sent(&self, connection: ConnectionId, messages: &[u8]) {
        self.station.tell(|monitor| monitor.sent(connection, messages));
    }

    pub fn closed(&self, connection: ConnectionId) {
        self.station.tell(|monitor| monitor.closed(connection));
    }

    pub fn established(&self, established: &Established) {
        self.station.tell(|monitor| monitor.established(established, unix_now()));
    }

    pub fn update(&self, update: &Update) {
        self.station.tell(|monitor| monitor.update(update));
    }

    pub fn end_of_rib(&self, afi: Afi) {
        self.station.tell(|monitor| monitor.end_of_rib(afi));
    }

    pub fn ended(&self, cause: &Cause) {
        self.station.tell(|monitor| monitor.ended(cause, unix_now()));
    }
}

/// This end of a connection with `remote`, where it is not known.
fn unknown(remote: SocketAddr) -> SocketAddr {
    match remote {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Why a connection ended.
enum End {
    /// This process ends.
    Stopped,
    Lost(String),
}

/// What keeps the connection up.
struct StationConnection {
    station: Station,
    at: StationAt,
    stopped: oneshot::Receiver<()>,
}

impl StationConnection {
    async fn run(mut self) {
        let (mut rest, mut is_told) = (FIRST_REST, false);
        loop {
            let opened = tokio::select! {
                opened = timeout(CONNECT_PATIENCE, TcpStream::connect(&self.at.address)) => opened,
                _ = &mut self.stopped => return, // also when the handle was dropped
            };
            let why = match opened {
                Ok(Ok(stream)) => {
                    info!("connected to the BMP station at {}", self.at.address);
                    self.station.note(None);
                    let since = Instant::now();
                    let end = self.serve(stream).await;
                    self.station.lock().disconnected();
                    let End::Lost(why) = end else { return };
                    is_told = false;
                    if since.elapsed() >= LONGEST_REST {
                        rest = FIRST_REST;
                    }
                    why
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} s", CONNECT_PATIENCE.as_secs()),
            };
            self.station.note(Some(&why));
            let (at, secs) = (&self.at.address, rest.as_secs());
            // Once until it is connected again.
            if std::mem::replace(&mut is_told, true) {
                debug!("no connection with the BMP station at {at}: {why}; tried again in {secs} s");
            } else {
                warn!(
                    "no connection with the BMP station at {at} ([bmp] `connect`): {why}; it is tried again, at first in {secs} s, and is \
                     told all routes then; sessions and routes are not concerned"
                );
            }
            tokio::select! {
                () = sleep(rest) => {}
                _ = &mut self.stopped => return,
            }
            rest = (rest * 2).min(LONGEST_REST);
        }
    }

    async fn serve(&mut self, stream: TcpStream) -> End {
        let (mut from, mut to) = stream.into_split();
        self.station.lock().connected();
        let mut statistics = interval_at(Instant::now() + self.at.statistics, self.at.statistics);
        // A station says nothing: what it says all the same is not looked at.
        let mut unread = [0; 512];
        loop {
            if let Err(why) = self.write_due(&mut to).await {
                return End::Lost(why);
            }
            tokio::select! {
                () = self.station.0.changed.notified() => {}
                _ = statistics.tick() => self.station.lock().statistics_due(),
                read = from.read(&mut unread) => match read {
                    Ok(0) => return End::Lost("the station closed the connection".to_owned()),
                    Ok(_) => {}
                    Err(error) => return End::Lost(error.to_string()),
                },
                _ = &mut self.stopped => {
                    self.terminate(&mut to).await;
                    return End::Stopped;
                }
            }
        }
    }

    /// Writes all that is due.
    async fn write_due(&self, to: &mut OwnedWriteHalf) -> Result<(), String> {
        loop {
            let due = self.station.lock().next_octets(unix_now());
            let Some(octets) = due else { return Ok(()) };
            write(to, &octets).await?;
        }
    }

    async fn terminate(&self, to: &mut OwnedWriteHalf) {
        if self.write_due(to).await.is_err() {
            return;
        }
        let last = self.station.lock().terminate();
        if let Some(octets) = last {
            let _ = write(to, &octets).await; // the station is gone, as this process will be
        }
        let _ = to.shutdown().await;
    }
}

async fn write(to: &mut OwnedWriteHalf, octets: &[u8]) -> Result<(), String> {
    for piece in octets.chunks(WRITE) {
        match timeout(WRITE_PATIENCE, to.write_all(piece)).await {
            Ok(written) => written.map_err(|error| error.to_string())?,
            Err(_) => {
                return Err(format!("the station did not take {WRITE} octets within {} s", WRITE_PATIENCE.as_secs()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::net::TcpListener;
    use wayleave_bgp::bmp::{BmpMessage, BmpReader};
    use wayleave_bgp::session::HoldTime;
    use wayleave_bgp::{AsPathBuf, Attributes, Capability, Message, Nlri, Open, Origin, SessionParams};
    use wayleave_core::{Asn, Prefix};

    use super::*;

    const CONNECTION: u64 = 7;

    async fn started() -> (RunningStation, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let at = StationAt { address, name: "alpha".to_owned(), statistics: Duration::from_secs(60) };
        (RunningStation::start(at), listener)
    }

    async fn accepted(listener: &TcpListener) -> (TcpStream, BmpReader) {
        let (stream, _) = listener.accept().await.expect("a connection");
        (stream, BmpReader::new())
    }

    /// The next message; `None` where the connection is closed.
    async fn next(stream: &mut TcpStream, reader: &mut BmpReader) -> Option<BmpMessage> {
        let mut octets = [0; 4_096];
        loop {
            if let Some(message) = reader.next_message().expect("BMP") {
                return Some(message);
            }
            match stream.read(&mut octets).await.expect("open") {
                0 => return None,
                length => reader.push(&octets[..length]),
            }
        }
    }

    fn params() -> SessionParams {
        SessionParams::new(Asn(64_496), Asn(64_497))
    }

    fn open(asn: u32) -> Vec<u8> {
        let capabilities = vec![Capability::FourOctetAs(Asn(asn)), Capability::unicast(Afi::Ipv4)];
        let open = Open { asn: Asn(asn), hold_time: 90, identifier: [192, 0, 2, 1].into(), capabilities };
        Message::Open(open).encode(&params()).expect("short")
    }

    /// A session with the router is up.
    fn session(station: &Station) -> Monitored {
        let listen = Some("192.0.2.101:179".parse().expect("an address"));
        let monitored = Monitored { station: station.clone(), listen, bind: None, connect: None };
        let address = "192.0.2.1:40000".parse().expect("an address");
        monitored.tcp(&TcpEvent::Accepted { connection: CONNECTION, address });
        monitored.sent(ConnectionId(CONNECTION), &open(64_496));
        monitored.tcp(&TcpEvent::Bytes { connection: CONNECTION, bytes: open(64_497) });
        monitored.established(&Established {
            connection: ConnectionId(CONNECTION),
            params: params(),
            peer_id: [192, 0, 2, 1].into(),
            peer_asn: Asn(64_497),
            hold_time: HoldTime::DEFAULT,
            route_refresh: true,
            enhanced_route_refresh: true,
            end_of_rib: true,
            retain: None,
            peer_restarted: false,
            forwarding_kept: Vec::new(),
            transparent: true,
            peer_capabilities: Vec::new(),
        });
        monitored
    }

    fn prefix(number: u16) -> Prefix {
        let [high, low] = number.to_be_bytes();
        format!("20.{high}.{low}.0/24").parse().expect("a prefix")
    }

    fn announcement(number: u16) -> Update {
        let mut attributes = Attributes::builder();
        attributes.origin(Origin::Igp).ipv4_next_hop([192, 0, 2, 1].into());
        // A path of its own, so that each route has a message of its own.
        attributes.as_path(AsPathBuf::from_sequence(&[Asn(64_497), Asn(100_000 + u32::from(number))]).as_path());
        let announced = vec![Nlri::new(prefix(number))];
        Update { announced, attributes: Some(attributes.finish()), ..Update::default() }
    }

    fn withdrawal(number: u16) -> Update {
        Update { withdrawn: vec![Nlri::new(prefix(number))], ..Update::default() }
    }

    #[tokio::test]
    async fn a_station_that_goes_away_is_connected_again_and_the_last_message_is_termination() {
        let (running, listener) = started().await;
        let initiation = Some(BmpMessage::Initiation { name: "alpha".to_owned() });
        let (mut stream, mut reader) = accepted(&listener).await;
        assert_eq!(next(&mut stream, &mut reader).await, initiation);
        assert_eq!(running.station.problem(), None);
        drop(stream);
        while running.station.problem().is_none() {
            tokio::task::yield_now().await;
        }
        let (mut stream, mut reader) = accepted(&listener).await;
        assert_eq!(next(&mut stream, &mut reader).await, initiation);
        assert_eq!(running.station.problem(), None);
        let monitored = session(&running.station);
        assert!(matches!(next(&mut stream, &mut reader).await, Some(BmpMessage::PeerUp(_))));
        monitored.ended(&Cause::ConnectionLost);
        running.stop().await;
        assert!(matches!(next(&mut stream, &mut reader).await, Some(BmpMessage::PeerDown(_))));
        assert_eq!(next(&mut stream, &mut reader).await, Some(BmpMessage::Termination));
        assert_eq!(next(&mut stream, &mut reader).await, None);
    }

    #[tokio::test]
    async fn a_station_that_does_not_read_holds_up_nothing_and_hears_the_last_state_when_it_does() {
        const ROUTES: u16 = 60_000;
        let (running, listener) = started().await;
        let (mut stream, mut reader) = accepted(&listener).await;
        let monitored = session(&running.station);
        // Some 8 MB, more than the sockets take, while nothing is read.
        for number in 0..ROUTES {
            monitored.update(&announcement(number));
            if number % 1_000 == 0 {
                tokio::task::yield_now().await;
            }
        }
        (0..ROUTES).for_each(|number| monitored.update(&withdrawal(number)));
        monitored.update(&announcement(ROUTES));
        let mut table = BTreeSet::new();
        while table != BTreeSet::from([prefix(ROUTES)]) {
            let message = next(&mut stream, &mut reader).await.expect("the connection stands");
            if let BmpMessage::Routes(_, update) = message {
                update.withdrawn.iter().for_each(|nlri| _ = table.remove(&nlri.prefix));
                table.extend(update.announced.iter().map(|nlri| nlri.prefix));
            }
        }
        running.stop().await;
    }
}

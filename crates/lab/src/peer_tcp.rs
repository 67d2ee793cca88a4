//! [`Peer`]s over blocking TCP: a thread opens a connection and then reads it, and the thread that owns the peers writes.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use wayleave_bgp::peer::{Input, Output, Peer, TcpRequest};
use wayleave_bgp::session::{Config, ConnectionId, HoldTime, Input as SessionInput, Stop, StopReason};
use wayleave_core::{Machine, Now, UnixTime};

/// How long a connection may take to open, or one write to be taken, unless [`TcpPeer::wait_for_reader`] says otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What happened to the connections of peer number `peer`.
#[derive(Debug)]
pub(crate) struct TcpEvent {
    pub(crate) peer: usize,
    kind: TcpEventKind,
}

#[derive(Debug)]
enum TcpEventKind {
    Connected { attempt: u64, stream: io::Result<TcpStream> },
    Bytes { connection: ConnectionId, bytes: Vec<u8> },
    Closed { connection: ConnectionId },
}

/// The clock of peers: it starts when the laboratory's router does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Now {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now {
            instant: wayleave_core::Instant(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            unix: UnixTime(u64::try_from(unix.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}

/// Sets timers so short that a test need not wait for a lost session.
pub(crate) fn with_short_timers(config: Config) -> Config {
    Config {
        hold_time: HoldTime::from_secs(9).unwrap_or_default(),
        connect_retry: Duration::from_secs(1),
        idle_hold: Duration::from_millis(200),
        idle_hold_most: Duration::from_secs(1),
        ..config
    }
}

/// A peer that is connected to, and its connections.
pub(crate) struct TcpPeer<E> {
    pub(crate) peer: Peer,
    number: usize,
    address: SocketAddr,
    clock: Clock,
    events: Sender<E>,
    streams: HashMap<ConnectionId, TcpStream>,
    /// Where connections come from, if it matters.
    bind: Option<IpAddr>,
    write_timeout: Duration,
    last_connection: u64,
    /// Why TCP last failed.
    failure: Option<io::Error>,
}

impl<E: From<TcpEvent> + Send + 'static> TcpPeer<E> {
    /// A peer in Idle. `events` takes what happens to its connections, to be handed to [`TcpPeer::on_tcp`] of the peer
    /// with this number.
    pub(crate) fn new(peer: Peer, number: usize, address: SocketAddr, clock: Clock, events: Sender<E>) -> Self {
        Self {
            peer,
            number,
            address,
            clock,
            events,
            streams: HashMap::new(),
            bind: None,
            write_timeout: TIMEOUT,
            last_connection: 0,
            failure: None,
        }
    }

    /// Connects from this address.
    pub(crate) fn bind(mut self, address: Option<IpAddr>) -> Self {
        self.bind = address;
        self
    }

    /// A peer that reads nothing for so long has gone.
    pub(crate) fn wait_for_reader(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Whether a connection is open, or its closing has not been seen by the peer yet.
    pub(crate) fn has_connections(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Gives up what the peer has not read.
    pub(crate) fn abandon(&mut self) {
        for (_, stream) in self.streams.drain() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn start(&mut self) {
        self.session(SessionInput::Start);
    }

    /// Ends the session with a NOTIFICATION; [`TcpPeer::poll`] must still be called until `None`.
    pub(crate) fn stop(&mut self) {
        let reason = StopReason::Shutdown("the laboratory ends".to_owned());
        self.session(SessionInput::Stop(Stop { administrative: true, reason }));
    }

    pub(crate) fn handle(&mut self, input: Input) {
        self.peer.handle(input, self.clock.now());
    }

    fn session(&mut self, input: SessionInput) {
        self.handle(Input::Session(input));
    }

    pub(crate) fn on_tcp(&mut self, event: TcpEvent) {
        match event.kind {
            TcpEventKind::Connected { attempt, stream } => self.on_connected(attempt, stream),
            TcpEventKind::Bytes { connection, bytes } => self.session(SessionInput::Bytes { connection, bytes }),
            TcpEventKind::Closed { connection } => {
                self.streams.remove(&connection);
                self.session(SessionInput::Closed { connection });
            }
        }
    }

    /// Why a connection could not be opened, once for each time.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// The peer's next output; those for TCP are done here and not returned.
    pub(crate) fn poll(&mut self) -> Option<Output> {
        loop {
            match self.peer.poll()? {
                Output::Tcp(TcpRequest::Connect { attempt }) => self.connect(attempt),
                Output::Tcp(TcpRequest::Send { connection, bytes }) => self.send(connection, &bytes),
                Output::Tcp(TcpRequest::Close { connection }) => {
                    // The peer reads to the end and closes its half. A connection that was given up with octets of the peer unread
                    // would be reset, and what the peer has not read by then, the NOTIFICATION too, lost.
                    if let Some(stream) = self.streams.get(&connection) {
                        let _ = stream.shutdown(Shutdown::Write);
                    }
                }
                output => return Some(output),
            }
        }
    }

    fn on_connected(&mut self, attempt: u64, stream: io::Result<TcpStream>) {
        let stream = stream.and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(self.write_timeout))?;
            Ok((stream.try_clone()?, stream))
        });
        match stream {
            Ok((reader, stream)) => {
                self.last_connection += 1;
                let connection = ConnectionId(self.last_connection);
                self.streams.insert(connection, stream);
                let (peer, events) = (self.number, self.events.clone());
                std::thread::spawn(move || read(reader, peer, connection, &events));
                self.session(SessionInput::Connected { connection, outgoing: true });
            }
            Err(error) => {
                self.failure = Some(error);
                self.session(SessionInput::ConnectFailed { attempt });
            }
        }
    }

    fn connect(&self, attempt: u64) {
        let (peer, address, bind, events) = (self.number, self.address, self.bind, self.events.clone());
        std::thread::spawn(move || {
            let stream = match bind {
                Some(from) => connect_from(from, address),
                None => TcpStream::connect_timeout(&address, TIMEOUT),
            };
            let _ = events.send(TcpEvent { peer, kind: TcpEventKind::Connected { attempt, stream } }.into());
        });
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let Some(stream) = self.streams.get_mut(&connection) else { return };
        if stream.write_all(bytes).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
            let _ = self.events.send(TcpEvent { peer: self.number, kind: TcpEventKind::Closed { connection } }.into());
        }
    }
}

/// Connects from `from`, within the system's own time.
fn connect_from(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddr::new(from, 0))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// Reports what comes in until the connection ends.
fn read<E: From<TcpEvent>>(mut stream: TcpStream, peer: usize, connection: ConnectionId, events: &Sender<E>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let kind = TcpEventKind::Bytes { connection, bytes: buffer[..count].to_vec() };
        if events.send(TcpEvent { peer, kind }.into()).is_err() {
            return;
        }
    }
    let _ = events.send(TcpEvent { peer, kind: TcpEventKind::Closed { connection } }.into());
}

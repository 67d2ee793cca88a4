//! Looks a capability's secret up: the sockets and the clock of [`Lookup`].

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use wayleave_control::capability::{
    Credential, Lookup, LookupConfig, LookupEvent, LookupFailure, LookupInput, LookupOutput, Obtained,
};
use wayleave_core::{Instant, Machine};
use wayleave_crypto::secret::Seed;
use wayleave_runtime::Clock;

use crate::failure::Failure;
use crate::key_files::node::fresh;

/// The port of name servers, whose packets no stamper stamps.
pub const DNS_PORT: u16 = 53;
/// Octets of a DNS message.
const LONGEST: usize = 65_535;
/// Datagrams that may come to one question: whoever floods its port makes it go on by TCP.
const MAX_DATAGRAMS: usize = 32;

/// A name server as a command is given it: at port 53, unless another one is named.
///
/// # Errors
/// What is expected.
pub fn name_server(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let by_itself = || bare.parse().ok().map(|address: IpAddr| SocketAddr::new(address, DNS_PORT));
    text.parse().ok().or_else(by_itself).ok_or_else(|| {
        "expected ADDRESS or ADDRESS:PORT, such as 192.0.2.1 or [2001:db8::1]:5300; names are not looked up".to_owned()
    })
}

/// The resolvers of this machine.
pub fn resolvers() -> Vec<SocketAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok());
    named.map(|address| SocketAddr::new(address, DNS_PORT)).collect()
}

/// Any port of the own side.
fn any_local(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    }
}

/// Sends a question by UDP from a port of its own.
fn send(to: SocketAddr, octets: &[u8]) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any_local(to))?;
    socket.send_to(octets, to)?;
    Ok(socket)
}

/// A datagram that comes in time.
fn receive(socket: &UdpSocket, timeout: Duration) -> std::io::Result<Option<(SocketAddr, Vec<u8>)>> {
    socket.set_read_timeout(Some(timeout.max(Duration::from_millis(1))))?;
    let mut answer = vec![0; LONGEST];
    match socket.recv_from(&mut answer) {
        Ok((length, from)) => {
            answer.truncate(length);
            Ok(Some((from, answer)))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One question by UDP, and the answer that `read` takes: what is stray, which `read` refuses, does not end the wait, since the answer
/// may come behind it. `None` if none came in time, or too much that is stray.
pub fn by_udp<T>(
    to: SocketAddr,
    octets: &[u8],
    timeout: Duration,
    mut read: impl FnMut(&[u8]) -> Option<T>,
) -> std::io::Result<Option<T>> {
    let clock = Clock::start();
    let deadline = clock.now().instant + timeout;
    let socket = send(to, octets)?;
    for _ in 0..MAX_DATAGRAMS {
        let left = deadline.since(clock.now().instant);
        if left.is_zero() {
            break;
        }
        let Some((from, answer)) = receive(&socket, left)? else { break };
        if from == to
            && let Some(answer) = read(&answer)
        {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// A connection that is over at its deadline, however often an octet comes: whoever drips them would keep the next server from being
/// asked.
struct TimedStream {
    stream: TcpStream,
    clock: Clock,
    deadline: Instant,
}

impl TimedStream {
    fn connect(to: SocketAddr, timeout: Duration) -> std::io::Result<Self> {
        let clock = Clock::start();
        let deadline = clock.now().instant + timeout;
        Ok(Self { stream: TcpStream::connect_timeout(&to, timeout)?, clock, deadline })
    }

    /// The time that is left.
    ///
    /// # Errors
    /// If none is left.
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.deadline.since(self.clock.now().instant);
        if left.is_zero() { Err(late()) } else { Ok(Some(left)) }
    }
}

fn late() -> std::io::Error {
    std::io::Error::new(ErrorKind::TimedOut, "no whole answer came by TCP in time")
}

/// What the system calls a read or write that took too long.
fn named(error: std::io::Error) -> std::io::Error {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) { late() } else { error }
}

impl Read for TimedStream {
    fn read(&mut self, octets: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(octets).map_err(named)
    }
}

impl Write for TimedStream {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(octets).map_err(named)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// The same by TCP: connection, question and the whole answer take `timeout` together.
pub fn by_tcp(to: SocketAddr, octets: &[u8], timeout: Duration) -> std::io::Result<Vec<u8>> {
    let mut stream = TimedStream::connect(to, timeout)?;
    let mut whole = (octets.len() as u16).to_be_bytes().to_vec(); // a question is short
    whole.extend_from_slice(octets);
    stream.write_all(&whole)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Asks `servers` for the secret of one key epoch, and waits for the answer.
///
/// # Errors
/// The system gives no randomness.
pub fn look_up(
    credential: &Credential,
    epoch: u32,
    servers: &[SocketAddr],
    on_event: &mut dyn FnMut(LookupEvent),
) -> Result<Result<Obtained, LookupFailure>, Failure> {
    let (clock, seed) = (Clock::start(), Seed::new(*fresh()?));
    let config = LookupConfig { credential: credential.clone(), epoch, servers: servers.to_vec(), seed };
    let mut lookup = Lookup::new(config);
    lookup.handle(LookupInput::Start, clock.now());
    // The socket of the question that waits for its answer, and how many datagrams may still come to it.
    let mut waiting: Option<(UdpSocket, usize)> = None;
    loop {
        let timeout = lookup.deadline().map_or(Duration::ZERO, |deadline| deadline.since(clock.now().instant));
        let Some(output) = lookup.poll() else {
            // What is stray does not end the wait: the answer may come behind it.
            let received = match &mut waiting {
                Some((socket, left)) if *left > 0 && !timeout.is_zero() => {
                    *left -= 1;
                    receive(socket, timeout).ok()
                }
                _ => None,
            };
            match received {
                Some(Some((from, octets))) => lookup.handle(LookupInput::Datagram { from, octets }, clock.now()),
                Some(None) => lookup.handle_timeout(clock.now()),
                None => {
                    std::thread::sleep(timeout);
                    lookup.handle_timeout(clock.now());
                }
            }
            continue;
        };
        match output {
            LookupOutput::Event(event) => on_event(event),
            LookupOutput::Done(outcome) => return Ok(outcome),
            LookupOutput::Datagram { to, octets } => {
                waiting = send(to, &octets).ok().map(|socket| (socket, MAX_DATAGRAMS));
            }
            LookupOutput::Stream { to, octets } => {
                waiting = None;
                let input = match by_tcp(to, &octets, timeout) {
                    Ok(octets) => LookupInput::Stream { from: to, octets },
                    Err(_) => LookupInput::StreamFailed(to),
                };
                lookup.handle(input, clock.now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_server_without_a_port_is_at_the_port_of_name_servers() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:53"),
            ("192.0.2.1:5300", "192.0.2.1:5300"),
            ("2001:db8::1", "[2001:db8::1]:53"),
            ("[2001:db8::1]", "[2001:db8::1]:53"),
            ("[2001:db8::1]:5300", "[2001:db8::1]:5300"),
        ] {
            assert_eq!(name_server(text).map(|address| address.to_string()), Ok(address.to_owned()), "{text}");
        }
        assert!(name_server("ns1.example.net").expect_err("a name").contains("ADDRESS:PORT"));
    }
}

//! The proxy of a gateway without a TUN interface: applications ask it for connections by SOCKS5 or HTTP, and it opens them through a
//! stack of its own, whose packets the gateway carries. It opens nothing else: what is not in the overlay is refused.

pub mod associations;
mod carrying;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use wayleave_dataplane::gateway::internet::is_wide;
use wayleave_dataplane::gateway::proxy::{Command, Fault, Host, LONGEST_HEAD, Reader, Refusal, Request, Step, Target};
use wayleave_packet::platypus::verify::is_martian;
use wayleave_runtime::connection_slots::{ConnectionSlots, SlotHandle, SlotLimits};
use wayleave_runtime::packets::stack::{ConnectError, Connection, MOST_CONNECTIONS, MOST_SOCKETS, Stack};

use super::Shared;
use super::names::{Directory as _, Meaning, meaning};
use crate::roles::events::{EventLine, Events, event, shown};

/// Applications that are heard at a time: those with connections, and some that have asked for nothing yet, or are told why they have none. Of
/// these the oldest gives way to a new one, so that nobody keeps others out by saying nothing.
const MOST_APPLICATIONS: usize = MOST_CONNECTIONS + MOST_SOCKETS + 256;
const SLOTS: SlotLimits =
    SlotLimits { connections: MOST_APPLICATIONS, of_source: MOST_APPLICATIONS, of_client: MOST_APPLICATIONS };
/// How long an application takes to say what it wants, and to take a refusal.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection takes to open: the path, the consents and the session with the other gateway come first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts to connect: the gateway refuses a local port by which it remembers another name of the same node.
const ATTEMPTS: usize = 3;
/// Parts of the log among which targets that are refused are divided.
const PARTS_OF_LOG: u64 = 16;
/// After a failure to accept, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A proxy, for what is shown of it.
pub struct Proxy {
    pub address: SocketAddr,
    /// Whether systemd has the address, also while the role does not run.
    pub is_inherited: bool,
    pub stack: Stack,
    /// Connections that were opened, and requests that were refused.
    pub opened: AtomicU64,
    pub refused: AtomicU64,
    pub datagrams: associations::Counters,
}

/// Why there is no connection, in a sentence.
struct Refused {
    refusal: Refusal,
    why: String,
}

/// Serves applications; never returns. What is under way ends with the future.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>, proxy: Arc<Proxy>, events: Events) {
    let mut applications = JoinSet::new();
    let slots = ConnectionSlots::new(SLOTS);
    loop {
        let (stream, from) = loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => break (stream, from),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                },
                Some(_) = applications.join_next() => {}
            }
        };
        // All that are heard have connections: the stack has no more.
        let Some((slot, eviction)) = slots.take(from.ip().to_canonical()) else { continue };
        let (shared, proxy, events) = (Arc::clone(&shared), Arc::clone(&proxy), events.clone());
        applications.spawn(async move {
            let handle = slot.handle();
            tokio::select! {
                // What fails here fails at the application, which knows it.
                _ = application(stream, &handle, &shared, &proxy, &events) => {}
                _ = eviction => {}
            }
            drop(slot);
        });
    }
}

/// Serves one application.
async fn application(
    mut stream: TcpStream,
    slot: &SlotHandle,
    shared: &Shared,
    proxy: &Proxy,
    events: &Events,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut octets = Vec::new();
    let asked = timeout(HEAD_TIMEOUT, request(&mut stream, &mut octets)).await.map_err(io::Error::from)??;
    let request = match asked {
        Ok(request) => request,
        Err(fault) => {
            proxy.refused.fetch_add(1, Relaxed);
            events.report(malformed_line(fault.why));
            let Some(protocol) = fault.protocol else { return Ok(()) };
            return refuse(stream, &protocol.refusal(fault.refusal, fault.why)).await;
        }
    };
    slot.begin_request();
    let protocol = request.protocol;
    if request.command == Command::Associate {
        return associations::associate(stream, request.target.port, shared, proxy, events).await;
    }
    let connection = match open(&request.target, shared, &proxy.stack).await {
        Ok(connection) => connection,
        Err(refused) => {
            proxy.refused.fetch_add(1, Relaxed);
            events.report(refused_line(&request.target, &refused.why));
            slot.end_request();
            return refuse(stream, &protocol.refusal(refused.refusal, &refused.why)).await;
        }
    };
    proxy.opened.fetch_add(1, Relaxed);
    let ended = match request.command {
        Command::Forward(head, body) => carrying::forward(&mut stream, connection, head, body, &octets).await,
        Command::Connect | Command::Associate => carrying::tunnel(&mut stream, connection, protocol, &octets).await,
    };
    slot.end_request();
    match ended {
        Ok(()) => finish(stream).await,
        Err(error) => {
            // One end was reset: so is the other. Dropping the connection has reset that.
            stream.set_zero_linger()?;
            Err(error)
        }
    }
}

/// Reads what an application wants; `octets` are those that it sent behind that.
async fn request(stream: &mut TcpStream, octets: &mut Vec<u8>) -> io::Result<Result<Request, Fault>> {
    let mut reader = Reader::default();
    loop {
        match reader.step(octets) {
            Ok(Step::Request(used, request)) => {
                octets.drain(..used);
                return Ok(Ok(*request));
            }
            Ok(Step::Answer(used, answer)) => {
                octets.drain(..used);
                stream.write_all(&answer).await?;
            }
            Ok(Step::More) => {
                let mut more = [0; 2_048];
                let most = more.len().min(LONGEST_HEAD.saturating_sub(octets.len()).max(1));
                let length = stream.read(&mut more[..most]).await?;
                if length == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                octets.extend_from_slice(&more[..length]);
            }
            Err(fault) => return Ok(Err(fault)),
        }
    }
}

/// Tells an application why it has no connection.
async fn refuse(mut stream: TcpStream, answer: &[u8]) -> io::Result<()> {
    stream.write_all(answer).await?;
    finish(stream).await
}

/// Closes a connection to an application once that has closed it, or after a while: one that is closed while octets of the other end are unread
/// is reset, and takes with it what the other end has not read.
async fn finish(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = [0; 4_096];
    let read = async { while stream.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
    let _ = timeout(HEAD_TIMEOUT, read).await;
    Ok(())
}

/// Opens a connection to a member.
async fn open(target: &Target, shared: &Shared, stack: &Stack) -> Result<Connection, Refused> {
    let refused = |refusal, why: String| Err(Refused { refusal, why });
    let mut last = (Refusal::Unreachable, format!("{target}: it and this node have no address of one family"));
    let opened = async {
        for address in addresses(target, shared).await? {
            for _ in 0..ATTEMPTS {
                match stack.connect(SocketAddr::new(address, target.port)).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => last = sentence(error, target),
                }
                if last.0 != Refusal::Unreachable {
                    break;
                }
            }
        }
        refused(last.0, std::mem::take(&mut last.1))
    };
    match timeout(CONNECT_TIMEOUT, opened).await {
        Ok(opened) => opened,
        Err(_) => {
            let host = host(target);
            let why = format!("{target} has not answered: `wayleave why {host}` says how packets to it go");
            refused(Refusal::Silent, why)
        }
    }
}

fn host(target: &Target) -> String {
    match &target.host {
        Host::Name(name) => name.clone(),
        Host::Address(address) => address.to_string(),
    }
}

fn sentence(error: ConnectError, target: &Target) -> (Refusal, String) {
    let host = host(target);
    match error {
        ConnectError::Busy => {
            (Refusal::Busy, format!("{MOST_CONNECTIONS} connections are open, and there is none more"))
        }
        ConnectError::NoAddress => {
            (Refusal::Unreachable, format!("{target}: this node has no address of that family in the overlay"))
        }
        ConnectError::Refused => (Refusal::Refused, format!("{target} refused the connection")),
        ConnectError::Prohibited => (
            Refusal::Prohibited,
            format!("{target}: no path is allowed, or no node consents: `wayleave why {host}` says more"),
        ),
        ConnectError::Unreachable => {
            (Refusal::Unreachable, format!("{target} cannot be reached: `wayleave why {host}` says more"))
        }
    }
}

/// The addresses of a target in the overlay.
async fn addresses(target: &Target, shared: &Shared) -> Result<Vec<IpAddr>, Refused> {
    let refused = |refusal, why: String| Err(Refused { refusal, why });
    let address = match &target.host {
        Host::Address(address) => *address,
        Host::Name(name) => {
            let suffix = shared.suffix();
            let (policy, node) = match meaning(name, suffix) {
                Meaning::Pair(policy, node) => (Some(policy), node),
                Meaning::Node(node) => (None, node),
                Meaning::Apex | Meaning::Nothing => {
                    return refused(Refusal::Unreachable, format!("{name}: names here are POLICY.NODE.{suffix}"));
                }
                Meaning::Foreign => {
                    let why = format!(
                        "{name} is not in the overlay, whose names end in .{suffix}: this proxy leads nowhere else"
                    );
                    return refused(Refusal::NotAllowed, why);
                }
            };
            return match shared.look_up(policy.as_deref(), &node).await {
                Some(Ok(addresses)) => Ok(addresses),
                Some(Err(())) => refused(Refusal::Busy, format!("{name}: no address could be given to it: try again")),
                None if shared.known().identity_of(&node) == Some(shared.own) => refused(
                    Refusal::NotAllowed,
                    format!("{name} is this node, and a proxy takes no connections from the overlay"),
                ),
                None => refused(
                    Refusal::Unreachable,
                    format!("{name}: there is no such policy here, or no member that is called so"),
                ),
            };
        }
    };
    let known = shared.known();
    let is_member = match shared.blocks.number_of(address) {
        Some(_) => shared.name_of(address).is_some(),
        // An exit's default route is for those who accept it: a proxy leads to members alone.
        None => {
            let longest = known.prefixes.longest(address);
            longest.is_some_and(|(prefix, owner)| owner != shared.own && !is_wide(&prefix)) && !is_martian(address)
        }
    };
    if !is_member {
        let why = format!("{address} is no other member's address in the overlay: this proxy leads nowhere else");
        return refused(Refusal::NotAllowed, why);
    }
    Ok(vec![address])
}

pub fn refused_line(target: &Target, why: &str) -> EventLine {
    // Few targets share a part of the log, so that an application that asks for one without end hides few reasons of others.
    let mut hasher = DefaultHasher::new();
    host(target).hash(&mut hasher);
    event!(INFO "proxy-refused" by hasher.finish() % PARTS_OF_LOG, { target = shown(target); why } "no connection for an application: {why}")
}

pub fn malformed_line(why: &str) -> EventLine {
    event!(INFO "proxy-malformed" by 0usize, {; why } "an application asked for nothing that the proxy understands: {why}")
}

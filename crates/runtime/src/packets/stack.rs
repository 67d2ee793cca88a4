//! A TCP/IP stack of the process's own, in the place of a TUN interface and the system's stack: it needs no right that an
//! unprivileged process lacks. `smoltcp` is the protocol; here are its queues, its timers, and connections as streams.
//!
//! [`Stack`] opens connections, [`StackPort`] is where their packets come out and go in. Between them are two queues with a limit,
//! as a TUN interface has: a packet for the stack that finds no room is dropped, and the stack waits until its own packets have room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{self, CongestionControl, RecvError, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use wayleave_core::Instant;

use crate::Clock;

/// Connections that are open, or being opened, at a time; as many may be closing beside them, of which the oldest give way.
pub const MOST_CONNECTIONS: usize = 1_024;
/// Octets that a connection keeps in each direction: what was received and not read, and what was written and not acknowledged.
pub const BUFFER: usize = 256 << 10;
/// Packets that wait in each direction: those of a few whole buffers.
pub const MOST_PACKETS: usize = 1_024;
/// Packets that the stack takes in a row, before connections have their turn.
const TURN: usize = 64;
/// An idle connection lasts as long as a gateway remembers it (RFC 5382 section 5).
const IDLE: Duration = Duration::from_secs(7_440);
/// A far end that acknowledges nothing of what was sent, and says nothing, is given up (R2 of RFC 9293 section 3.8.3: at least 100 s).
const UNACKNOWLEDGED: Duration = Duration::from_secs(120);
/// A path's MTU that was learned is forgotten (RFC 8201 section 4).
const MTU_LIFETIME: Duration = Duration::from_secs(600);
/// Destinations whose path's MTU is remembered.
const MOST_MTUS: usize = 1_024;
/// The least that a path's MTU can be said to be.
const LEAST_MTU: [usize; 2] = [576, 1_280];
/// Local ports: the first, and how many.
const PORTS: (u16, u16) = (32_768, 32_768);

/// Why there is no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectError {
    /// As many as there may be are open.
    Busy,
    /// The stack has no address of this family.
    NoAddress,
    /// The far end refused it.
    Refused,
    /// Packets to the address are administratively prohibited (RFC 1812 section 5.2.7.1).
    Prohibited,
    /// The address cannot be reached.
    Unreachable,
}

/// What a stack counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StackCounters {
    /// Connections that are open.
    pub open: usize,
    /// Octets from connections' own ends to the far ends, and back.
    pub sent: u64,
    pub received: u64,
}

/// The ends of connections.
#[derive(Clone)]
pub struct Stack(Arc<Shared>);

/// The packets of connections.
pub struct StackPort(Arc<Shared>);

/// A packet on its way out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub octets: Vec<u8>,
    /// Octets of payload of the TCP segments into which it is to be cut, if the path takes no packet of its length.
    pub segment: Option<u16>,
}

struct Shared {
    clock: Clock,
    state: Mutex<Connections>,
    out: Mutex<Leaving>,
    /// Readable while a packet is in `out`.
    is_ready: OwnedFd,
    arrived: Mutex<VecDeque<Vec<u8>>>,
    /// Something has happened that the stack has to look at.
    wake: Notify,
    sent: AtomicU64,
    received: AtomicU64,
}

/// Packets on their way out.
#[derive(Default)]
struct Leaving {
    packets: VecDeque<Packet>,
    /// The stack has more, and waits until there is room.
    is_awaited: bool,
}

/// What the stack knows.
struct Connections {
    interface: Interface,
    sockets: SocketSet<'static>,
    device: Device,
    addresses: Vec<IpAddr>,
    ports: BTreeSet<u16>,
    /// Counts ports: one is used again as late as can be, since others remember whose it was.
    next_port: u16,
    open: usize,
    /// Connections whose ends have gone, and since when.
    closing: VecDeque<(SocketHandle, u16, Instant)>,
    /// What is left to read of connections that are over otherwise.
    rest: BTreeMap<SocketHandle, VecDeque<u8>>,
    /// Why a connection that was being opened is not, by its local port.
    failed: BTreeMap<u16, ConnectError>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a stack whose packets have at most `mtu` octets; `seed` is random.
///
/// # Errors
/// What the system said.
pub fn open(clock: Clock, mtu: u16, seed: u64) -> io::Result<(Stack, StackPort)> {
    let mut device = Device { mtu: mtu.into(), ..Device::default() };
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let interface = Interface::new(config, &mut device, at(clock.now().instant));
    let state = Connections {
        interface,
        sockets: SocketSet::new(Vec::new()),
        device,
        addresses: Vec::new(),
        ports: BTreeSet::new(),
        next_port: seed as u16, // any part of it
        open: 0,
        closing: VecDeque::new(),
        rest: BTreeMap::new(),
        failed: BTreeMap::new(),
    };
    let shared = Arc::new(Shared {
        clock,
        state: Mutex::new(state),
        out: Mutex::default(),
        is_ready: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        arrived: Mutex::default(),
        wake: Notify::new(),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
    });
    Ok((Stack(Arc::clone(&shared)), StackPort(shared)))
}

fn at(instant: Instant) -> StackInstant {
    StackInstant::from_micros(i64::try_from(instant.0 / 1_000).unwrap_or(i64::MAX))
}

impl StackPort {
    /// The next packet of a connection, if one waits.
    #[must_use]
    pub fn read(&self) -> Option<Packet> {
        let mut out = locked(&self.0.out);
        let packet = out.packets.pop_front();
        if out.packets.is_empty() {
            let _ = rustix::io::read(&self.0.is_ready, &mut [0; 8]); // there may be nothing to read
        }
        if out.packets.len() <= MOST_PACKETS / 2 && std::mem::take(&mut out.is_awaited) {
            self.0.wake.notify_one();
        }
        packet
    }

    /// Hands over a whole packet. Returns whether there was room for it.
    #[must_use]
    pub fn write(&self, octets: &[u8]) -> bool {
        let mut arrived = locked(&self.0.arrived);
        let has_room = arrived.len() < MOST_PACKETS;
        if has_room {
            arrived.push_back(octets.to_vec());
        }
        drop(arrived);
        self.0.wake.notify_one();
        has_room
    }
}

impl AsFd for StackPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.is_ready.as_fd()
    }
}

impl Stack {
    /// Gives the stack these addresses, and no others: at most one of each family.
    pub fn set_addresses(&self, addresses: &[IpAddr]) {
        let mut state = locked(&self.0.state);
        if state.addresses == addresses {
            return;
        }
        state.addresses = addresses.to_vec();
        let (v4, v6) = (addresses.iter().find(|at| at.is_ipv4()), addresses.iter().find(|at| at.is_ipv6()));
        let of = |address: &IpAddr| IpCidr::new((*address).into(), if address.is_ipv4() { 32 } else { 128 });
        let Connections { interface, .. } = &mut *state;
        interface.update_ip_addrs(|all| {
            all.clear();
            all.extend([v4, v6].into_iter().flatten().map(of));
        });
        // Everything is at the other end of the one link.
        for address in [v4, v6].into_iter().flatten() {
            let routes = interface.routes_mut();
            let _ = match address {
                IpAddr::V4(v4) => routes.add_default_ipv4_route(*v4),
                IpAddr::V6(v6) => routes.add_default_ipv6_route(*v6),
            };
        }
    }

    /// What the stack counts.
    #[must_use]
    pub fn counters(&self) -> StackCounters {
        let (sent, received) = (self.0.sent.load(Relaxed), self.0.received.load(Relaxed));
        StackCounters { open: locked(&self.0.state).open, sent, received }
    }

    /// Works for all connections; never returns.
    pub async fn run(self) {
        loop {
            let (deadline, has_more) = self.0.work();
            if has_more {
                tokio::task::yield_now().await;
                continue;
            }
            match deadline {
                // The runtime's timers stand still while the machine sleeps: the clock is looked at again.
                Some(deadline) => tokio::select! {
                    () = self.0.wake.notified() => {}
                    () = tokio::time::sleep_until(self.0.clock.at(deadline)) => {}
                },
                None => self.0.wake.notified().await,
            }
        }
    }

    /// Opens a connection from the stack's address of the family. Dropping the future gives it up.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect(&self, to: SocketAddr) -> Result<Connection, ConnectError> {
        let connection = self.begin(to)?;
        std::future::poll_fn(|context| {
            let mut state = locked(&self.0.state);
            if let Some(error) = state.failed.remove(&connection.port) {
                return Poll::Ready(Err(error));
            }
            let socket = state.socket(connection.handle);
            match socket.state() {
                State::SynSent | State::SynReceived => {
                    socket.register_send_waker(context.waker());
                    Poll::Pending
                }
                State::Closed => Poll::Ready(Err(ConnectError::Refused)),
                _ => Poll::Ready(Ok(())),
            }
        })
        .await?;
        Ok(connection)
    }

    fn begin(&self, to: SocketAddr) -> Result<Connection, ConnectError> {
        let mut state = locked(&self.0.state);
        if state.open >= MOST_CONNECTIONS {
            return Err(ConnectError::Busy);
        }
        let from = state.addresses.iter().find(|address| address.is_ipv4() == to.is_ipv4()).copied();
        let from = from.ok_or(ConnectError::NoAddress)?;
        let port = state.free_port().ok_or(ConnectError::Busy)?;
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_congestion_control(CongestionControl::Reno);
        // The applications at both ends have it, or not.
        socket.set_nagle_enabled(false);
        let begun = socket.connect(state.interface.context(), to, SocketAddr::new(from, port));
        begun.map_err(|_| ConnectError::Unreachable)?;
        let handle = state.sockets.add(socket);
        state.ports.insert(port);
        state.open += 1;
        drop(state);
        self.0.wake.notify_one();
        Ok(Connection { shared: Arc::clone(&self.0), handle, port })
    }
}

impl Shared {
    /// Takes packets, puts out packets. Returns when it has to do so again, and whether more waits.
    fn work(&self) -> (Option<Instant>, bool) {
        let mut state = locked(&self.state);
        let now = self.clock.now().instant;
        let capacity = MOST_PACKETS.saturating_sub(locked(&self.out).packets.len());
        let Connections { interface, sockets, device, .. } = &mut *state;
        device.capacity = capacity;
        let mut errors = Vec::new();
        for _ in 0..TURN {
            // An answer may have to be put out at once.
            if device.out.len() >= capacity {
                break;
            }
            let Some(packet) = locked(&self.arrived).pop_front() else { break };
            if let Some(error) = read_icmp_error(&packet) {
                errors.push(error);
                continue;
            }
            device.arrived = Some(packet);
            while interface.poll_ingress_single(at(now), device, sockets) != PollIngressSingleResult::None {}
        }
        for error in errors {
            state.icmp_error(&error, now);
        }
        state.tend(now);
        let Connections { interface, sockets, device, .. } = &mut *state;
        while device.out.len() < capacity
            && interface.poll_egress(at(now), device, sockets) == PollResult::SocketStateChanged
        {}
        let is_full = device.out.len() >= capacity;
        let deadline = interface.poll_delay(at(now), sockets);
        let deadline = deadline.filter(|_| !is_full).map(|delay| now + Duration::from_micros(delay.total_micros()));
        device.mtus.retain(|_, (_, since)| now.since(*since) < MTU_LIFETIME);
        let put_out = device.take_out();
        drop(state);
        let mut out = locked(&self.out);
        if !put_out.is_empty() {
            out.packets.extend(put_out);
            let _ = rustix::io::write(&self.is_ready, &1u64.to_ne_bytes());
        }
        // Room that has come meanwhile is told of by nobody.
        out.is_awaited = is_full && out.packets.len() > MOST_PACKETS / 2;
        let has_more = if is_full { !out.is_awaited } else { !locked(&self.arrived).is_empty() };
        (deadline, has_more)
    }
}

impl Connections {
    fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// A port that no connection has. They need not be hard to guess (RFC 6056): nobody sends in the name of another member.
    fn free_port(&mut self) -> Option<u16> {
        let ports = (0..PORTS.1).map(|n| PORTS.0 + self.next_port.wrapping_add(n) % PORTS.1);
        let port = ports.into_iter().find(|port| !self.ports.contains(port))?;
        self.next_port = port.wrapping_add(1);
        Some(port)
    }

    /// Sets timers, keeps what is left to read, and forgets connections that are over.
    fn tend(&mut self, now: Instant) {
        let Self { sockets, rest, .. } = self;
        for (handle, socket) in sockets.iter_mut() {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            let waits = matches!(socket.state(), State::Established | State::CloseWait) && socket.send_queue() > 0;
            socket.set_timeout(Some(if waits { UNACKNOWLEDGED } else { IDLE }.into()));
            // The end of TIME-WAIT empties the buffer, read or not.
            if socket.state() == State::TimeWait && !rest.contains_key(&handle) {
                let mut octets = vec![0; socket.recv_queue()];
                let length = socket.recv_slice(&mut octets).unwrap_or(0);
                octets.truncate(length);
                rest.insert(handle, octets.into());
            }
        }
        let excess = self.closing.len().saturating_sub(MOST_CONNECTIONS);
        let mut closing = std::mem::take(&mut self.closing);
        for _ in 0..excess {
            if let Some((handle, port, _)) = closing.pop_front() {
                self.forget(handle, port);
            }
        }
        closing.retain(|(handle, port, since)| {
            let is_over = self.socket(*handle).remote_endpoint().is_none() || now.since(*since) >= UNACKNOWLEDGED;
            if is_over {
                self.forget(*handle, *port);
            }
            !is_over
        });
        self.closing = closing;
    }

    fn forget(&mut self, handle: SocketHandle, port: u16) {
        self.sockets.remove(handle);
        self.ports.remove(&port);
        self.rest.remove(&handle);
        self.failed.remove(&port);
    }

    /// Applies what an ICMP error says of a connection.
    fn icmp_error(&mut self, error: &IcmpError, now: Instant) {
        let is_it = |socket: &tcp::Socket<'_>| {
            let is = |end: Option<smoltcp::wire::IpEndpoint>, at: SocketAddr| end == Some(at.into());
            is(socket.local_endpoint(), error.from) && is(socket.remote_endpoint(), error.to)
        };
        let mut sockets = self.sockets.iter_mut().map(|(_, socket)| {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            socket
        });
        let Some(socket) = sockets.find(|socket| is_it(socket)) else { return };
        match error.kind {
            Told::TooBig(mtu) => {
                let mtus = &mut self.device.mtus;
                if mtus.len() < MOST_MTUS || mtus.contains_key(&error.to.ip()) {
                    mtus.insert(error.to.ip(), (mtu, now));
                }
            }
            // What is open goes on as long as it likes (RFC 1122 section 4.2.3.9): paths come and go.
            Told::Fails(why) if socket.state() == State::SynSent => {
                self.failed.insert(error.from.port(), why);
                socket.abort();
            }
            Told::Fails(_) => {}
        }
    }
}

/// What an ICMP error says of a TCP segment of ours.
struct IcmpError {
    from: SocketAddr,
    to: SocketAddr,
    kind: Told,
}

enum Told {
    TooBig(usize),
    Fails(ConnectError),
}

/// Reads an ICMP error about a TCP segment. Only who the segment was for, or a gateway in its name, may say something of it.
fn read_icmp_error(packet: &[u8]) -> Option<IcmpError> {
    let (is_v4, from, protocol, body) = read_ip(packet)?;
    let (head, quoted) = body.split_at_checked(8)?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    let kind = match (is_v4, protocol, head[0], head[1]) {
        (true, 1, 3, 4) => Told::TooBig((word(4) & 0xffff).max(LEAST_MTU[0])),
        (true, 1, 3, 9 | 10 | 13) | (false, 58, 1, 1 | 5 | 6) => Told::Fails(ConnectError::Prohibited),
        (true, 1, 3, _) | (false, 58, 1, _) => Told::Fails(ConnectError::Unreachable),
        (false, 58, 2, _) => Told::TooBig(word(4).max(LEAST_MTU[1])),
        _ => return None,
    };
    // Quotations end anywhere behind the ports.
    let (is_same, source, 6, segment) = read_ip(quoted)? else { return None };
    let destination = read_destination(quoted)?;
    let [a, b, c, d] = *segment.first_chunk::<4>()?;
    let (from_port, to_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let is_right = is_same == is_v4 && destination == from;
    is_right.then_some(IcmpError {
        from: SocketAddr::new(source, from_port),
        to: SocketAddr::new(destination, to_port),
        kind,
    })
}

/// Of an IP packet without options: whether it is IPv4, its source, its protocol, and what is behind its header.
fn read_ip(packet: &[u8]) -> Option<(bool, IpAddr, u8, &[u8])> {
    match packet.first()? {
        0x45 => {
            let source: [u8; 4] = *packet.get(12..)?.first_chunk()?;
            Some((true, source.into(), packet[9], packet.get(20..)?))
        }
        first if first >> 4 == 6 => {
            let source: [u8; 16] = *packet.get(8..)?.first_chunk()?;
            Some((false, source.into(), packet[6], packet.get(40..)?))
        }
        _ => None,
    }
}

fn read_destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(16..)?.first_chunk::<4>().map(|octets| (*octets).into()),
        _ => packet.get(24..)?.first_chunk::<16>().map(|octets| (*octets).into()),
    }
}

/// What the stack sends by.
#[derive(Default)]
struct Device {
    mtu: usize,
    /// Packets that may be put out.
    capacity: usize,
    arrived: Option<Vec<u8>>,
    out: Vec<Vec<u8>>,
    /// The MTU of the path to an address, where it is less than that of the link, and since when it is known.
    mtus: BTreeMap<IpAddr, (usize, Instant)>,
}

impl Device {
    /// The packets that were put out. The protocol keeps the segments of a connection at one length: those that a path does not take are
    /// cut behind it.
    fn take_out(&mut self) -> Vec<Packet> {
        let of = |octets: Vec<u8>| {
            let mtu = || {
                let (mtu, _) = self.mtus.get(&read_destination(&octets)?)?;
                let (_, _, 6, _) = read_ip(&octets)? else { return None };
                let ip = if octets[0] >> 4 == 4 { 20 } else { 40 };
                let headers = ip + usize::from(octets.get(ip + 12)? >> 4) * 4;
                u16::try_from(mtu.checked_sub(headers)?).ok().filter(|_| octets.len() > *mtu)
            };
            let segment = if self.mtus.is_empty() { None } else { mtu() };
            Packet { octets, segment }
        };
        std::mem::take(&mut self.out).into_iter().map(of).collect()
    }
}

impl phy::Device for Device {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leave<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Arrived, Leave<'_>)> {
        let packet = self.arrived.take()?;
        Some((Arrived(packet), Leave(&mut self.out)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Leave<'_>> {
        (self.out.len() < self.capacity).then_some(Leave(&mut self.out))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

struct Arrived(Vec<u8>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Leave<'a>(&'a mut Vec<Vec<u8>>);

impl phy::TxToken for Leave<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut packet = vec![0; length];
        let result = write(&mut packet);
        self.0.push(packet);
        result
    }
}

/// An open connection. One that is dropped before both ends have said all is reset.
pub struct Connection {
    shared: Arc<Shared>,
    handle: SocketHandle,
    port: u16,
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = locked(&self.shared.state);
        if let Some(rest) = state.rest.get_mut(&self.handle) {
            let length = rest.read(out.initialize_unfilled())?;
            out.advance(length);
            self.shared.received.fetch_add(length as u64, Relaxed);
            return Poll::Ready(Ok(()));
        }
        let socket = state.socket(self.handle);
        let before = socket.recv_queue();
        match socket.recv_slice(out.initialize_unfilled()) {
            Ok(0) => {
                socket.register_recv_waker(context.waker());
                Poll::Pending
            }
            Ok(length) => {
                out.advance(length);
                self.shared.received.fetch_add(length as u64, Relaxed);
                // The far end is told of a window that has become much larger.
                if before >= BUFFER / 4 {
                    self.shared.wake.notify_one();
                }
                Poll::Ready(Ok(()))
            }
            Err(RecvError::Finished) => Poll::Ready(Ok(())),
            Err(RecvError::InvalidState) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = locked(&self.shared.state);
        let socket = state.socket(self.handle);
        let Ok(length) = socket.send_slice(octets) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        if length == 0 && !octets.is_empty() {
            socket.register_send_waker(context.waker());
            return Poll::Pending;
        }
        self.shared.sent.fetch_add(length as u64, Relaxed);
        self.shared.wake.notify_one();
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Sends a FIN behind what was written.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        locked(&self.shared.state).socket(self.handle).close();
        self.shared.wake.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = locked(&self.shared.state);
        let socket = state.socket(self.handle);
        let is_said = matches!(socket.state(), State::Closing | State::LastAck | State::TimeWait | State::Closed);
        if !is_said || socket.can_recv() {
            socket.abort();
        }
        state.open -= 1;
        state.closing.push_back((self.handle, self.port, self.shared.clock.now().instant));
        drop(state);
        self.shared.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    //! ICC, a proxy's stack: packets lost and out of order, ends that do not read, resets, ICMP errors, more connections than there may
    //! be: octets intact, memory within its limits, each end told of the other.

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const OWN: [&str; 2] = ["10.0.1.1", "fd00:1::1"];
    const FAR: [&str; 2] = ["10.0.2.1", "fd00:2::1"];
    const MTU: u16 = 1_500;

    /// A far end with one connection, and the way to it.
    struct Peer {
        port: StackPort,
        interface: Interface,
        sockets: SocketSet<'static>,
        device: Device,
        socket: SocketHandle,
        clock: Clock,
        /// Of 100 packets so many are lost, and as many are late.
        loss: u32,
        random: u32,
        late: Vec<(bool, Vec<u8>)>,
        reads: bool,
        read: Vec<u8>,
        to_write: VecDeque<u8>,
        written: usize,
        closes: bool,
        packets: Vec<Packet>,
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn at_far(v6: usize) -> SocketAddr {
        SocketAddr::new(address(FAR[v6]), 80)
    }

    fn pair(loss: u32) -> (Stack, Peer) {
        let clock = Clock::start();
        let (stack, port) = open(clock, MTU, 7).unwrap();
        stack.set_addresses(&OWN.map(address));
        let mut device = Device { mtu: MTU.into(), capacity: MOST_PACKETS, ..Device::default() };
        let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, at(clock.now().instant));
        interface.update_ip_addrs(|all| {
            all.push(IpCidr::new(address(FAR[0]).into(), 32)).unwrap();
            all.push(IpCidr::new(address(FAR[1]).into(), 128)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route("10.0.2.1".parse().unwrap()).unwrap();
        interface.routes_mut().add_default_ipv6_route("fd00:2::1".parse().unwrap()).unwrap();
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.listen(80).unwrap();
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        let peer = Peer {
            port,
            interface,
            sockets,
            device,
            socket,
            clock,
            loss,
            random: 0x9e37_79b9,
            late: Vec::new(),
            reads: true,
            read: Vec::new(),
            to_write: VecDeque::new(),
            written: 0,
            closes: false,
            packets: Vec::new(),
        };
        (stack, peer)
    }

    impl Peer {
        fn socket(&mut self) -> &mut tcp::Socket<'static> {
            self.sockets.get_mut(self.socket)
        }

        /// What becomes of a packet: those that arrive now.
        fn carried(&mut self, is_out: bool, octets: Vec<u8>) -> Vec<(bool, Vec<u8>)> {
            let mut draw = || {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 17;
                self.random ^= self.random << 5;
                self.random % 100
            };
            let (is_lost, is_late) = (draw() < self.loss, draw() < self.loss);
            if is_lost {
                return Vec::new();
            }
            if is_late {
                self.late.push((is_out, octets));
                return Vec::new();
            }
            let late = std::mem::take(&mut self.late);
            [(is_out, octets)].into_iter().chain(late).collect()
        }

        fn turn(&mut self) {
            let mut arriving = Vec::new();
            while let Some(packet) = self.port.read() {
                assert!(packet.octets.len() <= MTU.into());
                self.packets.push(packet.clone());
                arriving.extend(self.carried(true, packet.octets));
            }
            for octets in std::mem::take(&mut self.device.out) {
                arriving.extend(self.carried(false, octets));
            }
            let now = at(self.clock.now().instant);
            for (is_out, octets) in arriving {
                if is_out {
                    self.device.arrived = Some(octets);
                    self.interface.poll_ingress_single(now, &mut self.device, &mut self.sockets);
                } else {
                    let _ = self.port.write(&octets); // what finds no room is lost
                }
            }
            let Self { sockets, socket, reads, read, to_write, written, closes, .. } = self;
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*socket);
            if *reads && socket.can_recv() {
                socket.recv(|octets| (octets.len(), read.extend_from_slice(octets))).unwrap();
            }
            if socket.can_send() && !to_write.is_empty() {
                let count = socket.send_slice(to_write.make_contiguous()).unwrap();
                to_write.drain(..count);
                *written += count;
            }
            if *closes && to_write.is_empty() && socket.may_send() {
                socket.close();
            }
            self.interface.poll_egress(now, &mut self.device, &mut self.sockets);
        }

        /// Goes on until `work` is done.
        async fn until<T>(&mut self, stack: &Stack, work: impl Future<Output = T>) -> T {
            let carry = async {
                loop {
                    self.turn();
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
            };
            tokio::select! {
                done = work => done,
                () = stack.clone().run() => unreachable!("it never returns"),
                () = carry => unreachable!("it never returns"),
            }
        }

        /// Goes on for a number of turns.
        async fn turns(&mut self, stack: &Stack, count: usize) {
            for _ in 0..count {
                self.turn();
                stack.0.work();
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
    }

    fn pattern(octets: usize, seed: u32) -> Vec<u8> {
        (0..octets as u32 / 4).flat_map(|n| (n ^ seed).wrapping_mul(2_654_435_761).to_be_bytes()).collect()
    }

    #[tokio::test]
    async fn octets_go_both_ways_intact_whatever_is_lost_or_late_and_both_ends_are_told_of_the_end() {
        for (v6, loss, length) in [(0, 0, 1 << 20), (0, 4, 1 << 17), (1, 4, 1 << 17)] {
            let (stack, mut peer) = pair(loss);
            let (there, back) = (pattern(length, 1), pattern(length, 2));
            peer.to_write = back.clone().into();
            peer.closes = true;
            let received = peer
                .until(&stack, async {
                    let connection = stack.connect(at_far(v6)).await.unwrap();
                    let (mut from, mut to) = tokio::io::split(connection);
                    let write = async {
                        to.write_all(&there).await.unwrap();
                        to.shutdown().await.unwrap();
                    };
                    let mut received = Vec::new();
                    let read = async { from.read_to_end(&mut received).await.unwrap() };
                    tokio::join!(write, read);
                    received
                })
                .await;
            assert!(received == back, "{v6} {loss}");
            while !matches!(peer.socket().state(), State::TimeWait | State::Closed) || peer.read.len() < there.len() {
                peer.turns(&stack, 1).await;
            }
            assert!(peer.read == there, "{v6} {loss}");
            let counters = stack.counters();
            assert_eq!(counters, StackCounters { open: 0, sent: length as u64, received: length as u64 });
        }
    }

    #[tokio::test]
    async fn an_end_that_does_not_read_stops_the_other_and_memory_stays_within_its_limits() {
        let (stack, mut peer) = pair(0);
        let all = pattern(8 * BUFFER, 3);
        peer.to_write = all.clone().into();
        peer.closes = true;
        let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
        let filled = |stack: &Stack| locked(&stack.0.state).socket(connection.handle).recv_queue();
        while filled(&stack) < BUFFER - usize::from(MTU) {
            peer.turns(&stack, 1).await;
        }
        peer.turns(&stack, 300).await;
        assert!(filled(&stack) <= BUFFER && peer.written <= 2 * BUFFER, "{} {}", filled(&stack), peer.written);
        assert!(locked(&stack.0.arrived).len() + locked(&stack.0.out).packets.len() < 10);
        let mut received = Vec::new();
        peer.until(&stack, connection.read_to_end(&mut received)).await.unwrap();
        assert!(received == all);
        // The other way.
        peer.reads = false;
        let written = std::cell::Cell::new(0);
        let write = async {
            for piece in all.chunks(1_000) {
                connection.write_all(piece).await.unwrap();
                written.set(written.get() + piece.len());
            }
            connection.shutdown().await.unwrap();
        };
        let mut write = Box::pin(write);
        let mut before = 0;
        // It is over when nothing more is taken in 300 turns.
        loop {
            tokio::select! {
                biased;
                () = peer.turns(&stack, 300) => {}
                () = &mut write => unreachable!("nobody reads"),
            }
            if written.get() == std::mem::replace(&mut before, written.get()) {
                break;
            }
        }
        assert!((BUFFER..=2 * BUFFER).contains(&written.get()), "{}", written.get());
        peer.reads = true;
        peer.until(&stack, write).await;
        while peer.read.len() < all.len() {
            peer.turns(&stack, 1).await;
        }
        assert!(peer.read == all);
    }

    #[tokio::test]
    async fn what_was_not_read_at_the_end_is_read_after_it() {
        let (stack, mut peer) = pair(0);
        let all = pattern(100_000, 4);
        peer.to_write = all.clone().into();
        peer.closes = true;
        let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
        connection.shutdown().await.unwrap();
        while !locked(&stack.0.state).rest.contains_key(&connection.handle) {
            peer.turns(&stack, 1).await;
        }
        let mut received = Vec::new();
        peer.until(&stack, connection.read_to_end(&mut received)).await.unwrap();
        assert!(received == all);
    }

    #[tokio::test]
    async fn a_refusal_and_a_reset_are_passed_on_both_ways() {
        let (stack, mut peer) = pair(0);
        let nobody = SocketAddr::new(address(FAR[0]), 81);
        assert_eq!(peer.until(&stack, stack.connect(nobody)).await.err(), Some(ConnectError::Refused));
        let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
        peer.turns(&stack, 4).await;
        peer.socket().abort();
        let error = peer.until(&stack, connection.read(&mut [0; 9])).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(connection.write(b"more").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        drop(connection);
        peer.socket().listen(80).unwrap();
        let connection = peer.until(&stack, stack.connect(at_far(1))).await.unwrap();
        while peer.socket().state() != State::Established {
            peer.turns(&stack, 1).await;
        }
        drop(connection);
        while peer.socket().state() != State::Closed {
            peer.turns(&stack, 1).await;
        }
        // Nobody listens here: whoever comes is refused.
        let mut socket = tcp::Socket::new(tcp::SocketBuffer::new(vec![0; 9]), tcp::SocketBuffer::new(vec![0; 9]));
        let to = (address(OWN[0]), 22);
        socket.connect(peer.interface.context(), to, 99).unwrap();
        peer.socket = peer.sockets.add(socket);
        while peer.socket().state() != State::Closed {
            peer.turns(&stack, 1).await;
        }
        assert_eq!(stack.counters().open, 0);
        // An echo is answered.
        let mut echo =
            vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 2, 1, 10, 0, 1, 1, 8, 0, 0, 0, 0, 7, 0, 1];
        let sum = |octets: &[u8]| {
            let sum: u32 = octets.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
            (!((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes()
        };
        let sums = (sum(&echo[..20]), sum(&echo[20..]));
        echo[10..12].copy_from_slice(&sums.0);
        echo[22..24].copy_from_slice(&sums.1);
        assert!(peer.port.write(&echo));
        stack.0.work();
        let answer = peer.port.read().unwrap().octets;
        assert_eq!(
            (&answer[12..20], answer[20], &answer[24..]),
            (&[10, 0, 1, 1, 10, 0, 2, 1][..], 0, &[0, 7, 0, 1][..])
        );
    }

    /// An ICMP error of the gateway about a packet.
    fn error(from: &str, about: &[u8], kind: [u8; 2], mtu: u32) -> Vec<u8> {
        let source = match address(from) {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let mut packet = about[..if source.len() == 4 { 20 } else { 40 }].to_vec();
        let (protocol, at, code) = if source.len() == 4 { (9, 12, 1) } else { (6, 8, 58) };
        packet[protocol] = code;
        packet[at..at + source.len()].copy_from_slice(&source);
        packet.extend([kind[0], kind[1], 0, 0]);
        packet.extend(mtu.to_be_bytes());
        packet.extend(&about[..64.min(about.len())]);
        packet
    }

    #[tokio::test]
    async fn an_icmp_error_of_who_was_sent_to_ends_an_attempt_and_no_other_does_and_no_connection() {
        for (v6, kind, expected) in [
            (0, [3, 13], ConnectError::Prohibited),
            (0, [3, 1], ConnectError::Unreachable),
            (1, [1, 1], ConnectError::Prohibited),
            (1, [1, 3], ConnectError::Unreachable),
        ] {
            let (stack, peer) = pair(0);
            let begun = stack.connect(at_far(v6));
            let answer = async {
                let mut first = None;
                loop {
                    stack.0.work();
                    if let Some(syn) = peer.port.read()
                        && first.is_none()
                    {
                        let other = if v6 == 0 { "10.0.2.2" } else { "fd00:2::2" };
                        assert!(peer.port.write(&error(other, &syn.octets, kind, 0)));
                        stack.0.work();
                        assert_eq!(stack.counters().open, 1);
                        assert!(locked(&stack.0.state).failed.is_empty(), "another said it");
                        assert!(peer.port.write(&error(FAR[v6], &syn.octets, kind, 0)));
                        first = Some(());
                    }
                    tokio::task::yield_now().await;
                }
            };
            let failed = tokio::select! {
                connected = begun => connected.err(),
                () = answer => unreachable!("it never returns"),
            };
            assert_eq!(failed, Some(expected), "{kind:?}");
        }
        let (stack, mut peer) = pair(0);
        let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
        peer.turns(&stack, 4).await;
        let ack = peer.packets.last().unwrap().octets.clone();
        assert!(peer.port.write(&error(FAR[0], &ack, [3, 13], 0)));
        assert!(peer.port.write(&error(FAR[0], &ack, [3, 4], 1_300)));
        peer.turns(&stack, 4).await;
        let begin = peer.packets.len();
        connection.write_all(&pattern(20_000, 5)).await.unwrap();
        while peer.read.len() < 20_000 {
            peer.turns(&stack, 1).await;
        }
        let long = peer.packets[begin..].iter().filter(|packet| packet.octets.len() > 1_300);
        let segments: BTreeSet<Option<u16>> = long.map(|packet| packet.segment).collect();
        assert_eq!(segments, [Some(1_260)].into());
        assert!(peer.packets[begin..].iter().all(|packet| packet.octets.len() > 1_300 || packet.segment.is_none()));
    }

    #[tokio::test]
    async fn there_are_no_more_connections_and_packets_than_there_may_be() {
        let (stack, peer) = pair(0);
        let all: Vec<Connection> = (0..MOST_CONNECTIONS).map(|_| stack.begin(at_far(0)).unwrap()).collect();
        assert_eq!(stack.begin(at_far(0)).err(), Some(ConnectError::Busy));
        assert_eq!(stack.counters().open, MOST_CONNECTIONS);
        for _ in 0..4 {
            stack.0.work();
            assert!(locked(&stack.0.out).packets.len() <= MOST_PACKETS);
        }
        while peer.port.read().is_some() {}
        drop(all);
        for _ in 0..3 {
            let more: Vec<Connection> = (0..MOST_CONNECTIONS).map(|_| stack.begin(at_far(0)).unwrap()).collect();
            stack.0.work();
            drop(more);
            stack.0.work();
            let state = locked(&stack.0.state);
            assert!(state.closing.len() <= MOST_CONNECTIONS + 1 && state.ports.len() <= 2 * MOST_CONNECTIONS);
            assert_eq!(state.ports.len(), state.sockets.iter().count());
        }
        let packet = [0x45; 40];
        let taken = (0..2 * MOST_PACKETS).filter(|_| peer.port.write(&packet)).count();
        assert_eq!(taken, MOST_PACKETS);
        stack.set_addresses(&[]);
        assert_eq!(stack.begin(at_far(0)).err(), Some(ConnectError::NoAddress));
    }
}

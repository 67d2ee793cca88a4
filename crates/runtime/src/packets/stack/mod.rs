//! A TCP/IP stack of the process's own, in the place of a TUN interface and the system's stack: it needs no right that an
//! unprivileged process lacks. `smoltcp` is the protocol; here are its queues, its timers, and connections as streams.
//!
//! [`Stack`] opens connections, [`StackPort`] is where their packets come out and go in. Between them are two queues with a limit,
//! as a TUN interface has: a packet for the stack that finds no room is dropped, and the stack waits until its own packets have room.

mod connection;
mod datagrams;
mod device;
mod icmp;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, CongestionControl, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use tokio::sync::Notify;
use wayleave_core::Instant;

use crate::Clock;
pub use connection::Connection;
pub use datagrams::{DatagramSocket, MOST_SOCKETS, SendError};
use device::Device;
use icmp::{Consequence, IcmpError, read_icmp_error};

/// Connections that are open, or being opened, at a time; as many may be closing beside them, of which the oldest give way.
pub const MOST_CONNECTIONS: usize = 1_024;
/// Octets that a connection keeps in each direction: what was received and not read, and what was written and not acknowledged.
pub const BUFFER: usize = 256 << 10;
/// Packets that wait in each direction: those of a few whole buffers.
pub const MOST_PACKETS: usize = 1_024;
/// Packets that the stack takes in a row, before connections have their turn.
const TURN: usize = 64;
/// An idle connection lasts as long as a gateway remembers it (RFC 5382 section 5).
pub const IDLE: Duration = Duration::from_secs(7_440);
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
    datagram_sockets: usize,
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
        datagram_sockets: 0,
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
            let smoltcp::socket::Socket::Tcp(socket) = socket else { continue };
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

    /// Applies what an ICMP error says of a connection, or of a datagram.
    fn icmp_error(&mut self, error: &IcmpError, now: Instant) {
        let is = |end: Option<smoltcp::wire::IpEndpoint>, at: SocketAddr| end == Some(at.into());
        let mut sockets = self.sockets.iter_mut().map(|(_, socket)| socket);
        let is_known = |socket: &mut smoltcp::socket::Socket<'_>| match socket {
            smoltcp::socket::Socket::Tcp(socket) => {
                !error.is_datagram && is(socket.local_endpoint(), error.from) && is(socket.remote_endpoint(), error.to)
            }
            smoltcp::socket::Socket::Udp(socket) => error.is_datagram && socket.endpoint().port == error.from.port(),
        };
        let Some(socket) = sockets.find_map(|socket| is_known(socket).then_some(socket)) else { return };
        match error.consequence {
            Consequence::TooBig(mtu) => {
                let mtus = &mut self.device.mtus;
                if mtus.len() >= MOST_MTUS && !mtus.contains_key(&error.to.ip()) {
                    let oldest = mtus.iter().min_by_key(|(_, (_, since))| *since).map(|(to, _)| *to);
                    if let Some(oldest) = oldest {
                        mtus.remove(&oldest);
                    }
                }
                mtus.insert(error.to.ip(), (mtu, now));
            }
            // What is open goes on as long as it likes (RFC 1122 section 4.2.3.9): paths come and go.
            Consequence::Fails(why) => {
                if let smoltcp::socket::Socket::Tcp(socket) = socket
                    && socket.state() == State::SynSent
                {
                    self.failed.insert(error.from.port(), why);
                    socket.abort();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

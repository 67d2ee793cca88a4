//! Datagrams of applications over the proxy (SOCKS5's UDP ASSOCIATE, RFC 1928 section 7): each association has a socket for its application,
//! and one of the stack. It ends with the connection that asked for it, and nobody else's datagrams go by it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, sleep_until};
use wayleave_dataplane::gateway::proxy::{Protocol, Refusal, socks_bound};
use wayleave_dataplane::gateway::socks_datagram::{Datagram, DatagramFault, LONGEST_HEADER, decode, encode};
use wayleave_runtime::packets::stack::{DatagramSocket, MOST_SOCKETS, SendError};

use super::super::Shared;
use super::{Proxy, Refused, addresses, finish, refuse, refused_line};
use crate::roles::events::Events;

/// An association in which nothing is said for so long ends, with its connection: a gateway has forgotten its flows (RFC 4787 section 4.3).
const IDLE: Duration = Duration::from_secs(300);
/// Octets of a datagram over IP, at most.
const LONGEST: usize = 65_535;
/// Names and addresses to which an application has sent last; only they are heard, and each is looked up again after this time.
const MOST_TARGETS: usize = 64;
const KNOWN: Duration = Duration::from_secs(60);

/// Why a datagram was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// From another address than the application's.
    Stranger,
    Fragment,
    Malformed,
    /// To what is not in the overlay, or of a family of which this node has no address.
    Refused,
    TooLong,
    NoRoom,
    /// From where the application has not sent anything.
    Unasked,
}

impl Dropped {
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Stranger, "stranger"),
        (Self::Fragment, "fragment"),
        (Self::Malformed, "malformed"),
        (Self::Refused, "refused"),
        (Self::TooLong, "too-long"),
        (Self::NoRoom, "no-room"),
        (Self::Unasked, "unasked"),
    ];
}

/// What is counted of associations.
#[derive(Debug, Default)]
pub struct Counters {
    pub open: AtomicUsize,
    pub opened: AtomicU64,
    /// Datagrams and octets of applications to the far ends, and back.
    pub sent: [AtomicU64; 2],
    pub received: [AtomicU64; 2],
    dropped: [AtomicU64; Dropped::ALL.len()],
}

impl Counters {
    fn drop(&self, why: Dropped) {
        self.dropped[why as usize].fetch_add(1, Relaxed);
    }

    pub fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize].load(Relaxed)
    }
}

/// To whom an application has sent, and where that is.
struct Target {
    form: Vec<u8>,
    address: IpAddr,
    since: Instant,
}

/// Carries an application's datagrams until its connection ends.
pub async fn associate(
    mut stream: TcpStream,
    port: u16,
    shared: &Shared,
    proxy: &Proxy,
    events: &Events,
) -> io::Result<()> {
    let Ok(far) = proxy.stack.open_datagrams() else {
        proxy.refused.fetch_add(1, Relaxed);
        let why = format!("{MOST_SOCKETS} associations are open, and there is none more");
        return refuse(stream, &Protocol::Socks.refusal(Refusal::Busy, &why)).await;
    };
    // The one address of this machine that the application is known to reach.
    let near = UdpSocket::bind((stream.local_addr()?.ip().to_canonical(), 0)).await?;
    let application = stream.peer_addr()?.ip().to_canonical();
    stream.write_all(&socks_bound(near.local_addr()?)).await?;
    let counters = &proxy.datagrams;
    counters.opened.fetch_add(1, Relaxed);
    let open = Open::new(&counters.open);
    let mut association = Association { near, far, shared, events, counters, application, port, targets: Vec::new() };
    let ended = association.carry(&mut stream).await;
    drop((association, open));
    match ended {
        Ok(()) => finish(stream).await,
        Err(error) => Err(error),
    }
}

/// Counts an association while it is open, however its future ends.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

struct Association<'a> {
    near: UdpSocket,
    far: DatagramSocket,
    shared: &'a Shared,
    events: &'a Events,
    counters: &'a Counters,
    application: IpAddr,
    /// The application's port; 0 until it has sent something, if it did not say.
    port: u16,
    /// The last used one last.
    targets: Vec<Target>,
}

impl Association<'_> {
    async fn carry(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let (mut out, mut back) = (vec![0; LONGEST_HEADER + LONGEST], vec![0; LONGEST]);
        let (mut rest, mut answer) = ([0; 512], Vec::new());
        let mut idle = Instant::now() + IDLE;
        loop {
            tokio::select! {
                // What else it says by its connection is for nobody.
                read = stream.read(&mut rest) => if read? == 0 {
                    return Ok(());
                },
                received = self.near.recv_from(&mut out) => {
                    // An ICMP error about an answer: the application's socket may come back.
                    let Ok((length, from)) = received else { continue };
                    if self.forward(&out[..length], from).await {
                        idle = Instant::now() + IDLE;
                    }
                }
                (from, length) = self.far.receive(&mut back) => {
                    if self.answer(from, &back[..length], &mut answer).await {
                        idle = Instant::now() + IDLE;
                    }
                }
                () = sleep_until(idle) => return Ok(()),
            }
        }
    }

    /// Sends what an application has sent on its way; returns whether it went.
    async fn forward(&mut self, octets: &[u8], from: SocketAddr) -> bool {
        let is_right = from.ip().to_canonical() == self.application && (self.port == 0 || self.port == from.port());
        let result = if is_right { self.send(octets, from.port()).await } else { Err(Dropped::Stranger) };
        match result {
            Ok(length) => {
                self.counters.sent[0].fetch_add(1, Relaxed);
                self.counters.sent[1].fetch_add(length as u64, Relaxed);
            }
            Err(why) => self.counters.drop(why),
        }
        result.is_ok()
    }

    async fn send(&mut self, octets: &[u8], port: u16) -> Result<usize, Dropped> {
        let datagram = decode(octets).map_err(|fault| match fault {
            DatagramFault::Fragment => Dropped::Fragment,
            _ => Dropped::Malformed,
        })?;
        self.port = port;
        let address = self.address(&datagram).await?;
        let to = SocketAddr::new(address, datagram.target.port);
        self.far.send(to, datagram.payload).map_err(|error| match error {
            SendError::NoAddress => Dropped::Refused,
            SendError::TooLong => Dropped::TooLong,
            SendError::NoRoom => Dropped::NoRoom,
        })?;
        Ok(datagram.payload.len())
    }

    /// Where whom a datagram is for is, which is looked up as for a connection.
    async fn address(&mut self, datagram: &Datagram<'_>) -> Result<IpAddr, Dropped> {
        let known = self.targets.iter().position(|target| target.form == datagram.form);
        if let Some(place) = known {
            let target = self.targets.remove(place);
            if target.since.elapsed() < KNOWN {
                let address = target.address;
                self.targets.push(target);
                return Ok(address);
            }
        }
        let refused = match addresses(&datagram.target, self.shared).await {
            Ok(addresses) => match addresses.first() {
                Some(address) => {
                    if self.targets.len() == MOST_TARGETS {
                        self.targets.remove(0);
                    }
                    let (form, since) = (datagram.form.to_vec(), Instant::now());
                    self.targets.push(Target { form, address: *address, since });
                    return Ok(*address);
                }
                None => Refused {
                    refusal: Refusal::Unreachable,
                    why: format!("{}: it and this node have no address of one family", datagram.target),
                },
            },
            Err(refused) => refused,
        };
        self.events.report(refused_line(&datagram.target, &refused.why));
        Err(Dropped::Refused)
    }

    /// Hands a datagram of a far end to the application, from whom that has sent to; returns whether it was asked for.
    async fn answer(&self, from: SocketAddr, octets: &[u8], answer: &mut Vec<u8>) -> bool {
        let Some(target) = self.targets.iter().rev().find(|target| target.address == from.ip()) else {
            self.counters.drop(Dropped::Unasked);
            return false;
        };
        encode(&target.form, from.port(), octets, answer);
        // It says where it is as it sends, and so before anything is answered.
        match self.near.send_to(answer, (self.application, self.port)).await {
            Ok(_) => {
                self.counters.received[0].fetch_add(1, Relaxed);
                self.counters.received[1].fetch_add(octets.len() as u64, Relaxed);
            }
            Err(_) => self.counters.drop(Dropped::NoRoom),
        }
        true
    }
}

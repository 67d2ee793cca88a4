//! The members of a plain route server: BGP speakers in one thread, each with one session. Each keeps of a route only whose it is,
//! which is enough to compare its whole table with what it is to have.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use wayleave_bgp::peer::{Input, Output, Peer, PeerEvent, TcpRequest};
use wayleave_bgp::session::{Config, ConnectionId, HoldTime, Input as SessionInput, PeerAsn, Stop, StopReason};
use wayleave_core::Machine;

use super::work::{Compared, OwnBest, Stage, Work};
use crate::bench::exchange::{now, thread_time};
use crate::sim::{RS_ASN, member_address, member_asn};

/// Octets that wait for a connection until its session stops sending.
const MOST_WAITING: usize = 1 << 20;
/// What is read at once.
const READ: usize = 64 << 10;
/// How soon a session is tried again.
const RETRY: Duration = Duration::from_millis(100);

struct Member {
    address: Ipv4Addr,
    peer: Peer,
    stream: Option<TcpStream>,
    connection: ConnectionId,
    out: VecDeque<u8>,
    blocked: bool,
    is_up: bool,
    compared: Compared,
    /// Why it is not up, if that is known.
    failure: String,
}

/// All of them. They connect from the network namespace of the calling thread.
pub struct Speakers {
    server: SocketAddr,
    members: Vec<Member>,
    buffer: Vec<u8>,
    /// Processor time of their thread in [`Self::step`].
    pub work: Duration,
}

impl Speakers {
    /// As many as `work` has, not started.
    #[must_use]
    pub fn new(work: &Work, server: SocketAddr) -> Self {
        let member = |slot: u32| {
            let address = member_address(slot);
            let config = Config {
                hold_time: HoldTime::from_secs(240).unwrap_or_default(),
                connect_retry: RETRY,
                idle_hold: RETRY,
                idle_hold_most: RETRY,
                ..Config::new(member_asn(slot), address, PeerAsn::Exactly(RS_ASN))
            };
            Member {
                address,
                peer: Peer::new(config, u64::from(slot), now()),
                stream: None,
                connection: ConnectionId(0),
                out: VecDeque::new(),
                blocked: false,
                is_up: false,
                compared: Compared::new(work),
                failure: String::new(),
            }
        };
        let (members, buffer) = (work.slots().map(member).collect(), vec![0; READ]);
        Self { server, members, buffer, work: Duration::ZERO }
    }

    /// Lets one connect, and keep on trying.
    pub fn start(&mut self, slot: u32) {
        self.members[slot as usize].session(SessionInput::Start);
    }

    /// One goes without a word: its connection closes, and it stays away until it is started again.
    pub fn stop(&mut self, slot: u32) {
        let member = &mut self.members[slot as usize];
        member.closed();
        member.session(SessionInput::Stop(Stop { administrative: true, reason: StopReason::Deconfigured }));
    }

    /// One announces its table from now on.
    pub fn announce(&mut self, work: &Work, slot: u32) {
        let member = &mut self.members[slot as usize];
        for (prefixes, attributes) in work.table_of(slot) {
            let attributes = Arc::new(attributes);
            for nlri in prefixes {
                member.peer.handle(Input::Path { nlri, attributes: Some(Arc::clone(&attributes)) }, now());
            }
        }
    }

    /// What all are to have from now on.
    pub fn expect(&mut self, work: &Work, stage: Stage, own_best: OwnBest) {
        for (slot, member) in work.slots().zip(&mut self.members) {
            member.compared.expect(work.expected(slot, stage, own_best));
        }
    }

    /// How many sessions are up.
    #[must_use]
    pub fn up(&self) -> usize {
        self.members.iter().filter(|member| member.is_up).count()
    }

    /// Prefixes that differ from what is to be, of all tables.
    #[must_use]
    pub fn wrong(&self) -> usize {
        self.members.iter().map(|member| member.compared.wrong).sum()
    }

    /// Routes in all tables.
    #[must_use]
    pub fn routes(&self) -> usize {
        self.members.iter().map(|member| member.compared.routes()).sum()
    }

    /// How they stand, for errors.
    #[must_use]
    pub fn state(&self) -> String {
        let first = self.members.iter().enumerate().find(|(_, member)| member.compared.wrong > 0 || !member.is_up);
        let first = first.map_or_else(String::new, |(slot, member)| {
            format!("; at slot {slot}: {} {}", member.compared.first_wrong(), member.failure)
        });
        format!("{} of {} sessions are up, {} routes are wrong{first}", self.up(), self.members.len(), self.wrong())
    }

    /// Takes and sends what there is, or waits for it for at most so long.
    ///
    /// # Errors
    /// If the system fails.
    pub fn step(&mut self, wait: Duration) -> io::Result<()> {
        let server = self.server;
        self.members.iter_mut().for_each(|member| member.act(server));
        let due = self.members.iter().filter_map(|member| member.peer.deadline()).min();
        let wait = due.map_or(wait, |at| at.since(now().instant).min(wait));
        let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
        let connected: Vec<usize> = (0..self.members.len()).filter(|at| self.members[*at].stream.is_some()).collect();
        let mut events: Vec<PollFd<'_>> = Vec::with_capacity(connected.len());
        for member in self.members.iter() {
            if let Some(stream) = &member.stream {
                let writes = if member.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                events.push(PollFd::new(stream, PollFlags::IN | writes));
            }
        }
        poll(&mut events, Some(&wait))?;
        let is_ready: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
        let begin = thread_time();
        for at in connected.into_iter().zip(is_ready).filter_map(|(at, is_ready)| is_ready.then_some(at)) {
            let member = &mut self.members[at];
            member.read(&mut self.buffer);
            member.flush();
        }
        let at = now();
        for member in &mut self.members {
            if member.peer.deadline().is_some_and(|due| due <= at.instant) {
                member.peer.handle_timeout(at);
            }
            member.act(server);
        }
        self.work += thread_time().saturating_sub(begin);
        Ok(())
    }
}

impl Member {
    fn session(&mut self, input: SessionInput) {
        self.peer.handle(Input::Session(input), now());
    }

    /// The connection is gone.
    fn closed(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
            self.out.clear();
            self.blocked = false;
            self.session(SessionInput::Closed { connection: self.connection });
        }
    }

    fn read(&mut self, buffer: &mut [u8]) {
        let Some(stream) = &mut self.stream else { return };
        match stream.read(buffer) {
            Ok(count @ 1..) => {
                let bytes = buffer[..count].to_vec();
                self.session(SessionInput::Bytes { connection: self.connection, bytes });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.closed(),
        }
    }

    fn flush(&mut self) {
        while let (Some(stream), false) = (&mut self.stream, self.out.is_empty()) {
            match stream.write(self.out.as_slices().0) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return self.closed(),
            }
        }
        if self.blocked && self.out.len() < MOST_WAITING / 2 {
            self.blocked = false;
            self.session(SessionInput::Writable { connection: self.connection });
        }
    }

    /// Does what its session asks for.
    fn act(&mut self, server: SocketAddr) {
        while let Some(output) = self.peer.poll() {
            match output {
                Output::Tcp(TcpRequest::Connect { attempt }) => match connect_from(self.address, server) {
                    Ok(stream) => {
                        self.connection = ConnectionId(self.connection.0 + 1);
                        self.stream = Some(stream);
                        self.session(SessionInput::Connected { connection: self.connection, outgoing: true });
                    }
                    Err(error) => {
                        self.failure = error.to_string();
                        self.session(SessionInput::ConnectFailed { attempt });
                    }
                },
                Output::Tcp(TcpRequest::Send { connection, bytes }) if connection == self.connection => {
                    self.out.extend(bytes);
                    self.flush();
                    if self.out.len() > MOST_WAITING && !self.blocked {
                        self.blocked = true;
                        self.session(SessionInput::Blocked { connection });
                    }
                }
                Output::Tcp(TcpRequest::Send { .. }) => {}
                Output::Tcp(TcpRequest::Close { .. }) => {
                    self.flush();
                    if let Some(stream) = self.stream.take() {
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                    (self.blocked, self.out) = (false, VecDeque::new());
                }
                Output::Established(_) => self.is_up = true,
                Output::Ended(ended) | Output::Failed(ended) => {
                    self.is_up = false;
                    self.failure = ended.cause.to_string();
                    self.compared.clear();
                }
                Output::Event(PeerEvent::Update(update)) => self.compared.update(&update),
                Output::Rejected(_) | Output::Unsendable(_) => "a route does not fit".clone_into(&mut self.failure),
                Output::Event(_) | Output::EndOfRib(_) | Output::RouteRefresh { .. } => {}
            }
        }
    }
}

/// Connects on the same network, at once.
fn connect_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddr::new(from.into(), 0))?;
    connect(&socket, &to)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

//! The thread that stamps: TUN interfaces on one side, raw sockets on the other. It waits for nobody: a packet whose
//! capabilities are not there leaves without a stamp.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::error;
use wayleave_core::UnixTime;
use wayleave_dataplane::frame::BURST;
use wayleave_dataplane::gateway::offload::{HEADER, Offload, each_packet};
use wayleave_dataplane::platypus::outer::{destination, source};
use wayleave_dataplane::stamper::arriving::{ArrivalRefusal, Arriving};
use wayleave_dataplane::stamper::replies::{Answer, ReplyGrants, ReplyRequests};
use wayleave_dataplane::stamper::{Counters, LeaveReason, Outcome, OutgoingPacket, Route, Rule, Stamper};
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::mint::Hop;
use wayleave_packet::platypus::mint::reply::{Granted, ReplyOption};
use wayleave_packet::platypus::verify::strip;
use wayleave_runtime::packets::ip::Ip;
use wayleave_runtime::packets::tun::{LONGEST, Tun};
use wayleave_runtime::packets::{Burst, Outgoing, Port};
use wayleave_runtime::{Clock, faults};

use crate::config::stamper::Addresses;
use crate::failure::Failure;
use crate::key_files::capability::Capabilities;
use crate::roles::daemon::fresh;
use crate::roles::stamping::HEADROOM;
use crate::roles::worker_thread::{self, Inbox, Work};

/// Packets that are read from an interface before others have their turn.
const TURN: usize = 16;
/// The thread looks for tasks at least this often.
const IDLE: Duration = Duration::from_millis(100);
/// What is left of a packet that is dropped.
const NOTHING: Range<usize> = 0..0;
/// Packets in a burst come from no sender.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// An interface, and whose packets come by it.
pub struct End {
    /// The role's number of it.
    pub number: u32,
    pub user: Option<u32>,
    pub mark: Option<u32>,
    pub tun: Tun,
}

/// What this thread counts itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoCounters {
    /// Packets that the system handed over, after large segments were cut.
    pub read: u64,
    /// Packets that left.
    pub sent: u64,
    /// Packets that left for nowhere: there was no memory, no room in the system, or no route.
    pub unsent: u64,
    /// Packets that contradict what the system says of them.
    pub refused: u64,
    /// Options about replies that were sent.
    pub options: u64,
    /// Stamped packets that arrived for this host, and those of them that it was handed without their header.
    pub arrived: u64,
    pub delivered: u64,
    /// Those that were refused: no waypoint of this host's had sent them (options: neither their source nor their last waypoint), or their
    /// original source cannot be outside.
    pub refused_strangers: u64,
    pub refused_sources: u64,
    /// System calls that failed.
    pub failures: u64,
}

/// Capabilities for replies: those that this host hands over, and those that it was handed.
pub struct Replies {
    pub addresses: Addresses,
    /// By route: what pays for replies.
    pub paying: Vec<Option<Capabilities>>,
    pub requests: ReplyRequests,
    pub grants: Option<ReplyGrants>,
    /// Notified when a client granted something.
    pub granted: Arc<Notify>,
}

pub type Handle = worker_thread::Handle<Worker>;
pub type Running = worker_thread::Running<Worker>;

/// The thread's state.
pub struct Worker {
    pub stamper: Stamper,
    pub ends: Vec<End>,
    pub counters: IoCounters,
    pub replies: Option<Replies>,
    /// By family; there may be no IPv6.
    out: (Ip, Option<Ip>),
    /// Packets with a header for this host, over IP and in UDP, and whose lose it.
    arriving: Option<(Vec<Ip>, Arriving)>,
    clock: Clock,
    inbox: Inbox<Self>,
    /// Packets of one interface with headroom, and packets that arrived.
    burst: Burst,
    received: Burst,
    /// By family.
    outgoing: [Vec<Outgoing>; 2],
    buffer: Box<[u8]>,
    scratch: Vec<u8>,
}

/// Starts the thread. It sends by `out`; with `arriving` it takes the header off packets for this host.
pub fn start(
    (stamper, replies): (Stamper, Option<Replies>),
    out: (Ip, Option<Ip>),
    arriving: Option<(Vec<Ip>, Arriving)>,
    clock: Clock,
) -> Result<Running, Failure> {
    let worker = |inbox| Worker {
        stamper,
        ends: Vec::new(),
        counters: IoCounters::default(),
        replies,
        out,
        arriving,
        clock,
        inbox,
        burst: Burst::default(),
        received: Burst::default(),
        outgoing: [Vec::new(), Vec::new()],
        buffer: vec![0; LONGEST].into(),
        scratch: Vec::new(),
    };
    Running::start("stamper", worker).map_err(|error| Failure::system("cannot start the stamping thread", &error))
}

impl Work for Worker {
    fn inbox(&mut self) -> &mut Inbox<Self> {
        &mut self.inbox
    }

    fn run(mut self) {
        while !self.inbox.is_stopping {
            faults::point("worker");
            let mut is_busy = false;
            while let Some(task) = self.inbox.next() {
                task(&mut self);
                is_busy = true;
            }
            for end in 0..self.ends.len() {
                is_busy |= self.read(end);
            }
            let sockets = self.arriving.as_ref().map_or(0, |(sockets, _)| sockets.len());
            for socket in 0..sockets {
                is_busy |= self.arrive(socket);
            }
            if !is_busy {
                self.wait();
            }
        }
    }
}

impl Worker {
    /// Stamps by other routes and rules from the next packet on. The first `configured` routes are the operator's: packets that their
    /// waypoints sent, and those of what pays for replies, lose their header. No waypoint that a user or a client brought is trusted so far.
    pub fn set_routes(&mut self, (routes, configured): (Vec<Route>, usize), rules: &[Rule]) {
        if let Some((_, arriving)) = &mut self.arriving {
            let paying = self.replies.iter().flat_map(|replies| replies.paying.iter().flatten());
            let hops = routes.iter().take(configured).flat_map(|route| &route.hops);
            let waypoints =
                hops.map(|hop| hop.capability.waypoint).chain(paying.map(|capabilities| capabilities.waypoint));
            arriving.set_waypoints(waypoints);
        }
        if let Err(error) = self.stamper.reload(routes, rules) {
            // They were tried before.
            error!(%error, "the stamping thread refused its routes and stamps by the old ones: a bug, please report it");
        }
    }

    /// The machine has these addresses from now on.
    pub fn set_local(&mut self, local: BTreeSet<IpAddr>) {
        if let Some((_, arriving)) = &mut self.arriving {
            arriving.set_local(local);
        }
    }

    /// Its counters and those of the stamper.
    pub fn counted(&self) -> (IoCounters, Counters) {
        (self.counters, self.stamper.counters().clone())
    }

    fn wait(&mut self) {
        let interfaces = self.ends.iter().map(|end| end.tun.as_fd());
        let arriving = self.arriving.iter().flat_map(|(sockets, _)| sockets).map(|socket| socket.as_fd());
        self.counters.failures += u64::from(self.inbox.wait(interfaces.chain(arriving), IDLE));
    }

    /// Takes what the system sends by one interface. Returns whether there was anything.
    fn read(&mut self, end: usize) -> bool {
        let mut has_read = false;
        for _ in 0..TURN {
            let Self { ends, burst, counters, buffer, scratch, .. } = self;
            let length = match ends[end].tun.read(buffer) {
                Ok(Some(length)) => length,
                Ok(None) => break,
                Err(_) => {
                    counters.failures += 1;
                    break;
                }
            };
            has_read = true;
            let Some((header, octets)) = buffer[..length].split_first_chunk::<HEADER>() else { continue };
            let count = Offload::decode(header).map_or(0, |offload| {
                each_packet(octets, &offload, scratch, |packet| {
                    if !is_for_others(packet) {
                        return;
                    }
                    counters.read += 1;
                    counters.unsent += u64::from(!burst.push_behind(HEADROOM, packet, NOWHERE));
                })
            });
            counters.refused += u64::from(count == 0);
            if self.burst.len() >= BURST {
                self.leave(end);
            }
        }
        self.leave(end);
        has_read
    }

    /// Stamps the packets of the burst, and sends them.
    fn leave(&mut self, end: usize) {
        let now = self.clock.now().unix;
        let Self { stamper, ends, burst, replies, .. } = self;
        let is_paying = replies.as_ref().is_some_and(|replies| replies.paying.iter().any(Option::is_some));
        let mut servers: Vec<IpAddr> = Vec::new();
        let (user, mark) = (ends[end].user, ends[end].mark.unwrap_or(0));
        for first in (0..burst.len()).step_by(BURST) {
            let mut outcomes = [const { Outcome::Unchanged { reason: LeaveReason::Rule, mtu: None } }; BURST];
            let mut destinations = [None; BURST];
            let mut count = 0;
            {
                let mut packets: [OutgoingPacket<'_>; BURST] =
                    std::array::from_fn(|_| OutgoingPacket { buffer: &mut [], begin: 0, user: None, mark: 0 });
                for (((_, buffer), packet), to) in burst.packets_mut(first).zip(&mut packets).zip(&mut destinations) {
                    *to = if is_paying { destination(&buffer[HEADROOM..]) } else { None };
                    *packet = OutgoingPacket { buffer, begin: HEADROOM, user, mark };
                    count += 1;
                }
                stamper.stamp(&mut packets[..count], now, &mut outcomes[..count]);
            }
            let ranges: [Option<Range<usize>>; BURST] = outcomes.map(|outcome| match outcome {
                Outcome::Stamped(range) => Some(range),
                Outcome::Unchanged { .. } => None,
                Outcome::Dropped(_) => Some(NOTHING),
            });
            for (to, range) in destinations.iter().zip(&ranges) {
                if let (Some(to), Some(range)) = (to, range)
                    && !range.is_empty()
                    && !servers.contains(to)
                {
                    servers.push(*to);
                }
            }
            for (number, range) in (first..first + count).zip(ranges) {
                let whole = HEADROOM..burst.octets(number).len();
                burst.trim(number, range.unwrap_or(whole));
            }
        }
        self.send();
        for server in servers {
            self.ask_for_replies(server, (user, mark));
        }
    }

    /// Packets to `server` leave on a paid route: if that pays for replies too, the server's stamper is told.
    fn ask_for_replies(&mut self, server: IpAddr, (user, mark): (Option<u32>, u32)) {
        let now = self.clock.now();
        let Self { stamper, replies, .. } = self;
        let Some(replies) = replies else { return };
        let Some(from) = replies.addresses.towards(server) else { return };
        let Some((route, _)) = stamper.route_of(server, user, mark) else { return };
        if !replies.paying.get(usize::from(route)).is_some_and(Option::is_some) {
            return;
        }
        let Some((_, hop)) = reply_hop(stamper, &replies.paying, server, now.unix) else { return };
        let seed = || fresh().ok();
        let Some(hello) = replies.requests.leaves(server, hop.capability.epoch, now.instant, seed) else { return };
        self.carry(&hello, (from, server), Some(route));
    }

    /// Sends a reply option.
    fn carry(&mut self, option: &[u8], ends: (IpAddr, IpAddr), route: Option<u16>) {
        let now = self.clock.now().unix;
        if let Ok(packet) = self.stamper.carry(option, ends, route, now) {
            self.send_option(&packet);
        }
    }

    fn send_option(&mut self, packet: &[u8]) {
        self.burst.clear();
        if self.burst.push(packet, NOWHERE) {
            self.counters.options += 1;
            self.send();
        }
    }

    /// Handles a reply option that arrived.
    fn option(&mut self, octets: &[u8]) {
        let now = self.clock.now();
        let Self { stamper, replies, .. } = self;
        let (Some(replies), Ok(packet)) = (replies, Packet::decode(octets)) else { return };
        // One of this host's, as its caller has seen.
        let own = packet.final_destination();
        let option = ReplyOption::decode(packet.payload()).ok().map(|(option, _)| option);
        if option.is_some_and(|option| option.acknowledgement().is_some()) {
            replies.requests.acknowledged(&packet, now.instant);
            return;
        }
        if option.is_some_and(|option| option.is_offer()) {
            let Replies { requests, paying, .. } = replies;
            let mut taken = None;
            let answer = requests.offered(&packet, own, |server| {
                let (route, hop) = reply_hop(stamper, paying, server, now.unix)?;
                taken = Some(route);
                Some(Granted { capability: hop.capability, key: hop.key })
            });
            if let Some((server, grant)) = answer {
                self.carry(&grant, (own, server), taken);
            }
            return;
        }
        let Some(grants) = &mut replies.grants else { return };
        let (client, answer) = match grants.receive(&packet, own, now) {
            Some(Answer::Option(client, answer)) => (client, answer),
            Some(Answer::Granted(client, answer)) => {
                replies.granted.notify_one();
                (client, answer)
            }
            None => return,
        };
        if let Ok(answer) = stamper.answer(&answer, (own, client), packet.outer().carriage, now.unix) {
            self.send_option(&answer);
        }
    }

    fn send(&mut self) {
        let Self { burst, outgoing, out, counters, .. } = self;
        for number in (0..burst.len()).filter(|number| !burst.octets(*number).is_empty()) {
            match destination(burst.octets(number)) {
                Some(to) => {
                    let of_family = &mut outgoing[usize::from(to.is_ipv6())];
                    of_family.push(Outgoing { packet: number as u32, to: SocketAddr::new(to, 0) }); // at most a burst
                }
                None => counters.unsent += 1,
            }
        }
        for (socket, outgoing) in [Some(&mut out.0), out.1.as_mut()].into_iter().zip(outgoing) {
            if !outgoing.is_empty() {
                let sent = socket.map_or(Ok(0), |socket| socket.send(burst, outgoing)).unwrap_or_else(|_| {
                    counters.failures += 1;
                    0
                });
                counters.sent += sent as u64;
                counters.unsent += (outgoing.len() - sent) as u64;
            }
            outgoing.clear();
        }
        burst.clear();
    }

    /// Takes packets that arrived for this host with a header, and hands them to the system without it. Returns whether there was
    /// anything.
    fn arrive(&mut self, socket: usize) -> bool {
        let Self { ends, counters, arriving, received, .. } = self;
        let Some((sockets, arriving)) = arriving else { return false };
        let Ok(count) = sockets[socket].receive(received) else {
            counters.failures += 1;
            return false;
        };
        let mut options: Vec<Vec<u8>> = Vec::new();
        for (_, octets) in received.packets_mut(0) {
            counters.arrived += 1;
            let Ok(packet) = Packet::decode(octets) else { continue };
            let taken = match arriving.is_option(&packet) {
                true => arriving.check_option(&packet).map(|()| None),
                false => arriving.layout(&packet).map(Some),
            };
            let layout = match taken {
                Ok(Some(layout)) => layout,
                Ok(None) => {
                    options.push(octets.to_vec());
                    continue;
                }
                Err(refusal) => {
                    counters.refused_strangers += u64::from(refusal == ArrivalRefusal::Stranger);
                    counters.refused_sources += u64::from(refusal == ArrivalRefusal::Source);
                    continue;
                }
            };
            let (Some(inner), Some(end)) = (strip(octets, &layout), ends.first()) else { continue };
            match end.tun.write(&Offload::default().encode(), &octets[inner]) {
                Ok(true) => counters.delivered += 1,
                Ok(false) => counters.unsent += 1,
                Err(_) => counters.failures += 1,
            }
        }
        for octets in options {
            self.option(&octets);
        }
        count > 0
    }
}

/// What a server is handed, and the route that pays for it: one for all senders of this host, whichever of them sends to the server.
fn reply_hop(stamper: &Stamper, paying: &[Option<Capabilities>], server: IpAddr, now: UnixTime) -> Option<(u16, Hop)> {
    let by_rule = stamper.route_of(server, None, 0).map(|(route, _)| usize::from(route));
    let pays =
        |held: &Option<Capabilities>| held.as_ref().is_some_and(|held| held.waypoint.is_ipv6() == server.is_ipv6());
    let by_rule = by_rule.filter(|route| paying.get(*route).is_some_and(pays));
    let route = by_rule.or_else(|| paying.iter().position(pays))?;
    Some((u16::try_from(route).ok()?, paying.get(route)?.as_ref()?.reply_hop(now, server)?))
}

/// Whether a packet is for another host. The system greets the neighbours of every interface by IPv6 (router solicitations, reports of
/// multicast groups), and these interfaces have none.
fn is_for_others(packet: &[u8]) -> bool {
    let is_of_link = |address: IpAddr| match address {
        IpAddr::V4(_) => false,
        // Link-local addresses, and multicast of the scopes of an interface and of a link (RFC 4291 sections 2.5.6 and 2.7).
        IpAddr::V6(v6) => matches!(v6.segments()[0], 0xfe80..=0xfebf | 0xff01 | 0xff02),
    };
    match (source(packet), destination(packet)) {
        (Some(source), Some(destination)) => !is_of_link(source) && !is_of_link(destination),
        _ => false,
    }
}

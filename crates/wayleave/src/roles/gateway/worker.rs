//! The threads that forward: TUN, or a proxy's stack, on one side, UDP on the other, the gateway's machine between them. Each has a queue of
//! the interface and a socket of its own; the first one speaks with neighbours as well, and keeps flows.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::sync::mpsc;
use wayleave_core::{IdentityKey, Instant};
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::gateway::offload::{HEADER, Offload};
use wayleave_dataplane::gateway::{Event, FlowChange, Gateway, Output};
use wayleave_dataplane::link::message::is_message;
use wayleave_dataplane::link::{At, Datagram, Links};
use wayleave_packet::Path;
use wayleave_packet::icing::header::PathHash;
use wayleave_runtime::packets::tun::LONGEST;
use wayleave_runtime::packets::{Burst, Outgoing, Port};
use wayleave_runtime::store::{Change, FileStore, Store as _};
use wayleave_runtime::{Clock, faults};

use super::inner_side::InnerSide;
use crate::failure::Failure;
use crate::roles::daemon::fresh;
use crate::roles::link_threads::LinkThread;
use crate::roles::worker_thread::{self, Inbox, Work};

/// Packets that are read from the inner side before others have their turn.
const TURN: usize = 32;
/// Packets that wait to leave while more are read, at most: those of one large segment.
const TOGETHER: usize = 40;
/// The thread looks at its timers at least this often.
const IDLE: Duration = Duration::from_millis(100);
/// Threads beside the first one do so, unless the machine has something due before.
const IDLE_BESIDE: Duration = Duration::from_millis(900);
/// Interval between writes of flows' records.
const WRITE: Duration = Duration::from_secs(1);
/// The thread waits for its last writes so long.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// Table of the state with flows by name.
pub const FLOWS: &str = "flows";
/// Questions and events that wait for the rest of the process.
pub const ASKS: usize = 1024;

/// What the forwarding thread asks of the rest of the process.
#[derive(Debug)]
pub enum Ask {
    Paths(IdentityKey),
    Proofs(IdentityKey, PathHash, Box<Path>),
    Happened(Event),
}

/// The ends of links, as a thread has them.
pub enum Ends {
    /// Neighbours prove themselves, and are where they have shown that they are.
    Proven(LinkThread),
    /// In the laboratory: number, socket and address of each.
    Fixed(Vec<(u16, At)>),
}

impl Ends {
    fn link_at(&self, from: At) -> Option<u16> {
        match self {
            Self::Proven(links) => links.link_at(from),
            Self::Fixed(all) => all.iter().find(|(_, at)| *at == from).map(|(link, _)| *link),
        }
    }

    fn address(&self, link: u16) -> Option<At> {
        match self {
            Self::Proven(links) => links.address(link),
            Self::Fixed(all) => all.iter().find(|(id, _)| *id == link).map(|(_, at)| *at),
        }
    }

    fn note_sent(&mut self, link: u16, packets: usize, octets: usize, now: Instant) {
        if let Self::Proven(links) = self {
            links.note_sent(link, (packets as u64, octets as u64), now);
        }
    }

    fn note_received(&mut self, link: u16, volume: (u64, u64), now: Instant) {
        if let Self::Proven(links) = self {
            links.note_received(link, volume, now);
        }
    }

    /// The machine of links, at the first thread.
    pub fn links(&self) -> Option<&Links> {
        match self {
            Self::Proven(links) => links.links(),
            Self::Fixed(_) => None,
        }
    }

    pub fn links_mut(&mut self) -> Option<&mut Links> {
        match self {
            Self::Proven(links) => links.links_mut(),
            Self::Fixed(_) => None,
        }
    }
}

/// What a thread counts itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoCounters {
    /// Packets from and to the inner side, as it counts them.
    pub read: u64,
    pub written: u64,
    /// Packets for which the inner side had no room.
    pub refused: u64,
    /// Packets from and to neighbours.
    pub received: u64,
    pub sent: u64,
    /// Packets for which the system had no room.
    pub unsent: u64,
    /// Packets from addresses of no neighbour.
    pub strangers: u64,
    /// System calls that failed.
    pub failures: u64,
    /// Questions that found no room in the queue.
    pub unasked: u64,
    /// Records of flows by name that were written.
    pub flows_recorded: u64,
}

impl std::iter::Sum for IoCounters {
    fn sum<I: Iterator<Item = Self>>(threads: I) -> Self {
        threads.fold(Self::default(), |a, b| Self {
            read: a.read + b.read,
            written: a.written + b.written,
            refused: a.refused + b.refused,
            received: a.received + b.received,
            sent: a.sent + b.sent,
            unsent: a.unsent + b.unsent,
            strangers: a.strangers + b.strangers,
            failures: a.failures + b.failures,
            unasked: a.unasked + b.unasked,
            flows_recorded: a.flows_recorded + b.flows_recorded,
        })
    }
}

pub type Handle = worker_thread::Handle<Worker>;
pub type Running = worker_thread::Running<Worker>;

/// A thread's state.
pub struct Worker {
    pub gateway: Gateway,
    pub inner_side: InnerSide,
    pub ends: Ends,
    pub counters: IoCounters,
    pub clock: Clock,
    /// By number; none where only the first thread has one.
    sockets: Vec<Option<Box<dyn Port>>>,
    /// At the first thread: where what neighbours say to each other comes, and the number of the socket that it belongs to.
    controls: Vec<(usize, Box<dyn Port>)>,
    asks: mpsc::Sender<Ask>,
    /// At the first thread.
    flows: Option<FlowWriter>,
    inbox: Inbox<Self>,
    burst: Burst,
    out: Burst,
    out_packets: Vec<Outgoing>,
    out_socket: usize,
    buffer: Box<[u8]>,
}

/// Writes records of flows, one batch at a time: no packet waits for the disk, and what changes meanwhile goes with the next batch.
struct FlowWriter {
    store: Arc<FileStore>,
    /// Says when the batch that is under way is durable, and how many records it has.
    under_way: Option<(Receiver<()>, u64)>,
    last: Instant,
}

impl FlowWriter {
    /// Begins to write what has changed, if it is time and nothing is under way. Returns how many records have become durable.
    fn run(&mut self, gateway: &mut Gateway, clock: &Clock) -> u64 {
        let now = clock.now();
        let written =
            self.under_way.take_if(|(under_way, _)| under_way.try_recv().is_ok()).map_or(0, |(_, count)| count);
        if self.under_way.is_none() && now.instant.since(self.last) >= WRITE {
            self.last = now.instant;
            let changes = gateway.take_flow_changes(now);
            if !changes.is_empty() {
                self.submit(gateway, &changes);
            }
        }
        written
    }

    fn submit(&mut self, gateway: &mut Gateway, changes: &[FlowChange]) {
        let of = |change: &FlowChange| Change { table: FLOWS, key: change.key.clone(), value: change.value.clone() };
        let (to, under_way) = channel();
        let durable = move || {
            let _ = to.send(()); // the thread may have ended
        };
        match self.store.submit(changes.iter().map(of).collect(), Box::new(durable)) {
            Ok(()) => self.under_way = Some((under_way, changes.len() as u64)),
            Err(_) => gateway.return_flow_changes(changes),
        }
    }

    /// Writes all that has changed, and waits for it, for a while.
    fn finish(&mut self, gateway: &mut Gateway, clock: &Clock) {
        let now = clock.now();
        let batches = std::iter::from_fn(|| Some(gateway.take_flow_changes(now)).filter(|batch| !batch.is_empty()));
        let changes: Vec<FlowChange> = batches.flatten().collect();
        if !changes.is_empty() {
            self.submit(gateway, &changes);
        }
        if let Some((under_way, _)) = &self.under_way {
            let _ = under_way.recv_timeout(LAST_WRITE);
        }
    }
}

/// What a thread has of a socket: one of its own, and where what neighbours say to each other comes.
pub struct SocketPart {
    pub data: Option<Box<dyn Port>>,
    pub control: Option<Box<dyn Port>>,
}

/// What a thread begins with.
pub struct Part {
    pub gateway: Gateway,
    pub ends: Ends,
    pub inner_side: InnerSide,
}

/// Starts the threads. The first one keeps flows by name in the store.
pub fn start(
    parts: Vec<Part>,
    clock: Clock,
    asks: &mpsc::Sender<Ask>,
    store: &Arc<FileStore>,
) -> Result<Vec<Running>, Failure> {
    let start = |(number, Part { gateway, ends, inner_side }): (usize, Part)| {
        let writer = || FlowWriter { store: Arc::clone(store), under_way: None, last: Instant(0) };
        let worker = |inbox| Worker {
            gateway,
            inner_side,
            ends,
            counters: IoCounters::default(),
            clock,
            sockets: Vec::new(),
            controls: Vec::new(),
            asks: asks.clone(),
            flows: (number == 0).then(writer),
            inbox,
            burst: Burst::default(),
            out: Burst::default(),
            out_packets: Vec::new(),
            out_socket: 0,
            buffer: vec![0; LONGEST].into(),
        };
        Running::start(&format!("gateway-{number}"), worker)
    };
    let running = parts.into_iter().enumerate().map(start).collect::<std::io::Result<_>>();
    running.map_err(|error| Failure::system("cannot start the forwarding threads", &error))
}

impl Work for Worker {
    fn inbox(&mut self) -> &mut Inbox<Self> {
        &mut self.inbox
    }

    fn run(mut self) {
        let mut last = self.clock.now().instant;
        while !self.inbox.is_stopping {
            faults::point("worker");
            let mut is_busy = false;
            while let Some(task) = self.inbox.next() {
                task(&mut self);
                is_busy = true;
            }
            let now = self.clock.now();
            if self.is_first() && now.instant.since(last) >= IDLE {
                last = now.instant;
                if let Ok(entropy) = fresh() {
                    self.gateway.reseed(&entropy);
                    if let Some(links) = self.ends.links_mut() {
                        links.reseed(&entropy);
                    }
                }
            }
            if let Ends::Proven(links) = &mut self.ends {
                links.refresh();
            }
            self.gateway.handle_timeout(now);
            is_busy |= self.read_inner();
            for socket in 0..self.sockets.len() {
                is_busy |= self.receive(Intake::Data(socket));
            }
            for control in 0..self.controls.len() {
                is_busy |= self.receive(Intake::Control(control));
            }
            self.speak();
            self.perform();
            let Self { flows, gateway, clock, counters, .. } = &mut self;
            counters.flows_recorded += flows.as_mut().map_or(0, |flows| flows.run(gateway, clock));
            if !is_busy {
                self.wait();
            }
        }
        if let Ends::Proven(links) = &mut self.ends {
            links.close();
        }
        self.speak();
        let Self { flows, gateway, clock, .. } = &mut self;
        flows.iter_mut().for_each(|flows| flows.finish(gateway, clock));
    }
}

/// Where packets of neighbours come from: a socket, or the place of one for what they say to each other.
#[derive(Clone, Copy)]
enum Intake {
    Data(usize),
    Control(usize),
}

impl Worker {
    fn is_first(&self) -> bool {
        self.flows.is_some()
    }

    /// Adds the next sockets; where a thread has none, it hands what it sends there to the first one. In the laboratory `fixed` says where
    /// neighbours are.
    pub fn add_sockets(&mut self, sockets: Vec<SocketPart>, fixed: Vec<(u16, At)>) {
        for SocketPart { data, control } in sockets {
            let number = self.sockets.len();
            self.sockets.push(data);
            self.controls.extend(control.map(|control| (number, control)));
        }
        if let Ends::Fixed(all) = &mut self.ends {
            *all = fixed;
        }
    }

    fn wait(&mut self) {
        let now = self.clock.now().instant;
        let idle = if self.is_first() { IDLE } else { IDLE_BESIDE };
        let of_gateway = self.gateway.deadline();
        let of_links = match &self.ends {
            Ends::Proven(links) => links.deadline(),
            Ends::Fixed(_) => None,
        };
        let due = [of_gateway, of_links].into_iter().flatten().map(|due| due.since(now)).min();
        let waker = match &self.ends {
            Ends::Proven(links) => links.waker(),
            Ends::Fixed(_) => None,
        };
        let sockets = self.sockets.iter().flatten().chain(self.controls.iter().map(|(_, control)| control));
        let ends = [self.inner_side.as_fd()].into_iter().chain(waker).chain(sockets.map(|socket| socket.as_fd()));
        let has_failed = self.inbox.wait(ends, due.map_or(idle, |due| due.min(idle)));
        self.counters.failures += u64::from(has_failed);
    }

    /// Takes what the system or the proxy sends. Returns whether there was anything.
    fn read_inner(&mut self) -> bool {
        for turn in 0..TURN {
            let length = match self.inner_side.read(&mut self.buffer) {
                Ok(Some(length)) => length,
                Ok(None) => {
                    self.flush();
                    return turn > 0;
                }
                Err(_) => {
                    self.counters.failures += 1;
                    self.flush();
                    return turn > 0;
                }
            };
            self.counters.read += 1;
            let Some((header, octets)) = self.buffer[..length].split_first_chunk_mut::<HEADER>() else { continue };
            let now = self.clock.now();
            match Offload::decode(header) {
                Some(offload) => self.gateway.inner(octets, &offload, now),
                None => self.counters.refused += 1,
            }
            // Small packets leave together; a large segment leaves while it is in the cache.
            self.take_outputs();
            if self.out_packets.len() >= TOGETHER {
                self.flush();
            }
        }
        self.flush();
        true
    }

    /// Takes what neighbours send. Returns whether there was anything.
    fn receive(&mut self, intake: Intake) -> bool {
        let Self { gateway, sockets, controls, ends, burst, counters, clock, .. } = self;
        let (socket, port) = match intake {
            Intake::Data(number) => (number, sockets[number].as_mut()),
            Intake::Control(place) => (controls[place].0, Some(&mut controls[place].1)),
        };
        let Some(port) = port else { return false };
        let Ok(count) = port.receive(burst) else {
            counters.failures += 1;
            return false;
        };
        if count == 0 {
            return false;
        }
        counters.received += count as u64;
        let now = clock.now();
        let mut frames = Vec::with_capacity(BURST);
        // Packets come in runs from one neighbour.
        let mut run: Option<(SocketAddr, Option<u16>)> = None;
        let mut volume = (0, 0);
        for (from, octets) in burst.packets_mut(0) {
            if is_message(octets) && matches!(ends, Ends::Proven(_)) {
                // It may count what came before it, and move its sender.
                note(ends, &mut run, &mut volume, now.instant);
                if let Ends::Proven(links) = ends {
                    links.receive((socket, *from), octets, now);
                    links.take_closed().into_iter().for_each(|link| gateway.link_closed(link, now));
                }
                continue;
            }
            if run.is_none_or(|(last, _)| last != *from) {
                note(ends, &mut run, &mut volume, now.instant);
                run = Some((*from, ends.link_at((socket, *from))));
            }
            let Some((_, Some(link))) = run else {
                counters.strangers += 1;
                continue;
            };
            volume = (volume.0 + 1, volume.1 + octets.len() as u64);
            frames.push(Frame { octets, ingress: Ingress::External(link) });
            if frames.len() == BURST {
                gateway.outer(&mut frames, now);
                frames.clear();
            }
        }
        if !frames.is_empty() {
            gateway.outer(&mut frames, now);
        }
        drop(frames);
        note(ends, &mut run, &mut volume, now.instant);
        self.perform();
        true
    }

    /// Sends what links have to say, and what other threads cannot send themselves.
    fn speak(&mut self) {
        let now = self.clock.now();
        let Ends::Proven(links) = &mut self.ends else { return };
        let said: Vec<Datagram> = std::iter::from_fn(|| links.poll(now)).collect();
        links.take_closed().into_iter().for_each(|link| self.gateway.link_closed(link, now));
        for Datagram { socket, to, octets } in said {
            self.put((socket, to), &octets);
        }
        self.flush();
    }

    /// Performs what the machine put out.
    fn perform(&mut self) {
        self.take_outputs();
        self.flush();
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.gateway.poll() {
            match output {
                Output::Wire { link, octets, size } => {
                    self.queue(link, &octets, size);
                    self.gateway.reuse(octets);
                }
                Output::Inner(ready) => {
                    let written = self.inner_side.write(&ready);
                    self.counters.written += written.taken;
                    self.counters.refused += written.no_room;
                    self.counters.failures += written.refused;
                }
                Output::NeedPaths { peer } => self.ask(Ask::Paths(peer)),
                Output::NeedProofs { peer, hash, path } => self.ask(Ask::Proofs(peer, hash, path)),
                Output::Event(event) => self.ask(Ask::Happened(event)),
            }
        }
    }

    /// A question that finds no room is put again later.
    fn ask(&mut self, ask: Ask) {
        self.counters.unasked += u64::from(self.asks.try_send(ask).is_err());
    }

    fn queue(&mut self, link: u16, octets: &[u8], size: usize) {
        let Some(at) = self.ends.address(link) else {
            self.counters.unsent += 1;
            return;
        };
        if self.sockets.get(at.0).is_none_or(Option::is_none)
            && let Ends::Proven(links) = &self.ends
        {
            let refused = octets.chunks(size.max(1)).filter(|packet| !links.hand_over(at, packet)).count();
            self.counters.unsent += refused as u64;
            return;
        }
        let (now, packets) = (self.clock.now().instant, octets.len().div_ceil(size.max(1)));
        self.ends.note_sent(link, packets, octets.len(), now);
        if packets > 1 && self.send_run(at, octets, size, packets) {
            return;
        }
        octets.chunks(size.max(1)).for_each(|packet| self.put(at, packet));
    }

    /// Sends the packets of a large segment without a copy, behind those that wait. Returns whether that could be tried.
    fn send_run(&mut self, (socket, to): At, octets: &[u8], size: usize, packets: usize) -> bool {
        self.flush();
        let port = self.sockets.get_mut(socket).and_then(Option::as_mut);
        let Some(sent) = port.and_then(|port| port.send_run(octets, size, to)) else { return false };
        let sent = sent.unwrap_or_else(|_| {
            self.counters.failures += 1;
            0
        });
        self.counters.sent += sent as u64;
        self.counters.unsent += (packets - sent) as u64;
        true
    }

    /// Puts a packet with others that leave together.
    fn put(&mut self, (socket, to): At, packet: &[u8]) {
        if socket != self.out_socket {
            self.flush();
            self.out_socket = socket;
        }
        if !self.out.push(packet, to) {
            self.flush();
            if !self.out.push(packet, to) {
                self.counters.unsent += 1;
                return;
            }
        }
        let number = (self.out.len() - 1) as u32; // at most a burst
        self.out_packets.push(Outgoing { packet: number, to });
    }

    fn flush(&mut self) {
        if self.out_packets.is_empty() {
            return;
        }
        let Self { sockets, out, out_packets, out_socket, counters, .. } = self;
        let sent = match sockets.get_mut(*out_socket).and_then(Option::as_mut) {
            Some(socket) => socket.send(out, out_packets).unwrap_or_else(|_| {
                counters.failures += 1;
                0
            }),
            None => 0,
        };
        counters.sent += sent as u64;
        counters.unsent += (out_packets.len() - sent) as u64;
        out_packets.clear();
        out.clear();
    }
}

/// Notes a run of packets that came from one neighbour.
fn note(ends: &mut Ends, run: &mut Option<(SocketAddr, Option<u16>)>, volume: &mut (u64, u64), now: Instant) {
    if let Some((_, Some(link))) = run.take()
        && volume.0 > 0
    {
        ends.note_received(link, *volume, now);
    }
    *volume = (0, 0);
}

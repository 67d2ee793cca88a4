//! One forwarding thread: it takes a burst in, lets its format decide, sends the burst on, and only then looks for the
//! next one. It shares nothing with other threads; what is asked of it comes between two bursts.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::warn;
use wayleave_core::Now;
use wayleave_dataplane::frame::BURST;
use wayleave_runtime::Clock;
use wayleave_runtime::packets::{Burst, Outgoing, Port, wait};

use super::Engine;

/// How long a thread without packets sleeps before it looks what is asked of it.
const IDLE: Duration = Duration::from_millis(5);
/// Control packets that wait for their consumer, at most.
const CONTROL_QUEUE: usize = 256;
/// Bursts that are taken from each port while a stopping thread drains.
const DRAINED: usize = 1024;

/// A port and what it is to its engine.
pub struct Attached {
    pub port: Box<dyn Port>,
    /// What the engine knows it by.
    pub way: Way,
    /// Only control traffic comes here; it is served before anything else.
    pub is_control: bool,
    /// Stands for the same socket across reloads.
    pub key: String,
}

/// Where packets of a port come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// SCION: the AS itself.
    Internal,
    /// SCION: the neighbour behind this interface.
    Interface(u16),
    /// Platypus: any host, by IP.
    Ip,
    /// Platypus: errors of other routers, by IP.
    Icmp,
    /// Platypus: the router at the other end of this link.
    Link(usize),
}

/// What threads count beside their engines.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub bursts: u64,
    pub received: u64,
    pub sent: u64,
    /// Decided to be sent, but the system had no room.
    pub unsent: u64,
    /// From an address that is not the neighbour's.
    pub strangers: u64,
    /// To a host or service that cannot be reached.
    pub unreachable: u64,
    /// Control packets of this router, and those of them for which there was no room.
    pub control: u64,
    pub control_lost: u64,
    /// Failed system calls.
    pub failures: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        let Self { bursts, received, sent, unsent, strangers, unreachable, control, control_lost, failures } = other;
        self.bursts += bursts;
        self.received += received;
        self.sent += sent;
        self.unsent += unsent;
        self.strangers += strangers;
        self.unreachable += unreachable;
        self.control += control;
        self.control_lost += control_lost;
        self.failures += failures;
    }
}

/// What becomes of a burst's packets: for each port those that must leave first (answers), and the others.
#[derive(Default)]
pub struct Out {
    urgent: Vec<Vec<Outgoing>>,
    data: Vec<Vec<Outgoing>>,
    control: Option<SyncSender<Vec<u8>>>,
}

impl Out {
    fn fit(&mut self, ports: usize) {
        self.urgent.resize_with(ports, Vec::new);
        self.data.resize_with(ports, Vec::new);
    }

    /// Sends a packet out of a port.
    #[inline]
    pub fn data(&mut self, port: usize, packet: usize, to: SocketAddr) {
        self.data[port].push(Outgoing { packet: packet as u32, to });
    }

    /// The same, ahead of the data.
    pub fn urgent(&mut self, port: usize, packet: usize, to: SocketAddr) {
        self.urgent[port].push(Outgoing { packet: packet as u32, to });
    }

    /// Hands this router's own control traffic to its consumer.
    pub fn control(&mut self, octets: &[u8], tally: &mut Tally) {
        tally.control += 1;
        let taken = self.control.as_ref().is_some_and(|queue| queue.try_send(octets.to_vec()).is_ok());
        tally.control_lost += u64::from(!taken);
    }
}

/// What is asked of a thread.
pub type Task = Box<dyn FnOnce(&mut Worker) + Send>;

/// The thread's state.
pub struct Worker {
    pub engine: Engine,
    pub ports: Vec<Attached>,
    pub tally: Tally,
    clock: Clock,
    tasks: Receiver<Task>,
    burst: Burst,
    out: Out,
    is_stopping: bool,
}

/// A running thread, as the rest of the process sees it.
pub struct Handle {
    pub tasks: Sender<Task>,
    pub thread: JoinHandle<()>,
    /// Control traffic of this router.
    pub control: Option<Receiver<Vec<u8>>>,
}

/// Starts a thread, on `core` if one is given.
pub fn start(
    number: usize,
    engine: Engine,
    ports: Vec<Attached>,
    clock: Clock,
    core: Option<usize>,
) -> std::io::Result<Handle> {
    let (asked, tasks) = channel();
    let (control, consumer) = sync_channel(CONTROL_QUEUE);
    let out = Out { control: Some(control), ..Out::default() };
    let tally = Tally::default();
    let mut worker = Worker { engine, ports, tally, clock, tasks, burst: Burst::default(), out, is_stopping: false };
    worker.fit();
    let thread = std::thread::Builder::new().name(format!("forward-{number}")).spawn(move || {
        if let Some(core) = core {
            pin(core);
        }
        worker.run();
    })?;
    Ok(Handle { tasks: asked, thread, control: Some(consumer) })
}

/// Asks a thread, and waits for its answer; `None` if it has stopped.
pub async fn ask<T: Send + 'static>(
    tasks: &Sender<Task>,
    question: impl FnOnce(&mut Worker) -> T + Send + 'static,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let task = Box::new(move |worker: &mut Worker| {
        let _ = answer.send(question(worker)); // nobody waits any more
    });
    tasks.send(task).ok()?;
    answered.await.ok()
}

fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
        warn!(core, %error, "this thread cannot be bound to its core");
    }
}

impl Worker {
    fn run(mut self) {
        while !self.is_stopping {
            while let Ok(task) = self.tasks.try_recv() {
                task(&mut self);
            }
            if self.turn() == 0 {
                let waiting = wait(self.ports.iter().map(|attached| &*attached.port), IDLE);
                self.tally.failures += u64::from(waiting.is_err());
            }
        }
        let mut turns = 0;
        while self.turn() > 0 && turns < DRAINED {
            turns += 1;
        }
        // The last questions: totals for the journal and the farewell.
        while let Ok(task) = self.tasks.try_recv() {
            task(&mut self);
        }
    }

    /// The thread takes in what waits, and ends.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Makes room for what leaves each port; called when ports change.
    pub fn fit(&mut self) {
        self.out.fit(self.ports.len());
    }

    /// One burst from each port, control traffic before each of them. Returns how many packets that were.
    fn turn(&mut self) -> usize {
        let mut taken = 0;
        for place in 0..self.ports.len() {
            if self.ports[place].is_control {
                continue;
            }
            for first in 0..self.ports.len() {
                if self.ports[first].is_control {
                    taken += self.take(first);
                }
            }
            taken += self.take(place);
        }
        taken
    }

    /// Takes what remains at a port that leaves.
    pub fn empty(&mut self, place: usize) {
        for _ in 0..DRAINED {
            if self.take(place) == 0 {
                break;
            }
        }
    }

    /// One burst from one port, all the way.
    fn take(&mut self, place: usize) -> usize {
        let count = match self.ports[place].port.receive(&mut self.burst) {
            Ok(count) => count,
            Err(_) => {
                self.tally.failures += 1;
                return 0;
            }
        };
        if count == 0 {
            return 0;
        }
        self.tally.bursts += 1;
        self.tally.received += count as u64;
        let now: Now = self.clock.now();
        let way = self.ports[place].way;
        for first in (0..count).step_by(BURST) {
            let Self { engine, burst, out, tally, .. } = self;
            engine.process(burst, first, (place, way), now, out, tally);
        }
        self.send();
        count
    }

    fn send(&mut self) {
        let Self { ports, burst, out, tally, .. } = self;
        for lists in [&mut out.urgent, &mut out.data] {
            for (attached, list) in ports.iter_mut().zip(lists) {
                if list.is_empty() {
                    continue;
                }
                let sent = attached.port.send(burst, list).unwrap_or_else(|_| {
                    tally.failures += 1;
                    0
                });
                tally.sent += sent as u64;
                tally.unsent += (list.len() - sent) as u64;
                list.clear();
            }
        }
    }
}

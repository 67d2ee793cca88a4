//! One forwarding thread: it takes a burst in, lets its format decide, sends the burst on, and only then looks for the
//! next one. It shares with other threads at most the filter of repeated packets; what is asked of it comes between two
//! bursts.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::warn;
use wayleave_core::{Instant, Now};
use wayleave_dataplane::frame::{BURST, Ingress};
use wayleave_dataplane::limit::TokenBucket;
use wayleave_runtime::Clock;
use wayleave_runtime::packets::{Burst, Outgoing, Port, wait};

use super::Engine;

/// How long a thread without packets sleeps before it looks what is asked of it.
const IDLE: Duration = Duration::from_millis(5);
/// Control packets a second that one neighbour's are handed on of, and at once: four times what a neighbour sends at the
/// least interval that can be configured, with polls and changes of state.
const CONTROL_RATE: u32 = 400;
const CONTROL_BURST: u32 = 32;
/// Control packets that wait for their consumer, at most.
pub const CONTROL_QUEUE: usize = 256;
/// Control packets that a turn serves ahead of data, about: anybody may call a packet control traffic, so that it must not
/// keep the data from being served.
const CONTROL_AHEAD: usize = 64;
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
    control: Option<mpsc::Sender<Control>>,
    /// When the burst was taken in.
    now: Instant,
    /// By where it comes in: as many as there are interfaces and siblings, at most.
    control_limits: HashMap<Ingress, TokenBucket>,
    /// Packets that have grown lie in memory of their own.
    pub grown: Burst,
    grown_data: Vec<Vec<Outgoing>>,
}

/// A control packet of this router, and where it came in.
pub struct Control {
    pub ingress: Ingress,
    pub octets: Vec<u8>,
}

impl Out {
    fn fit(&mut self, ports: usize) {
        self.urgent.resize_with(ports, Vec::new);
        self.data.resize_with(ports, Vec::new);
        self.grown_data.resize_with(ports, Vec::new);
    }

    /// Sends a packet out of a port.
    #[inline]
    pub fn data(&mut self, port: usize, packet: usize, to: &SocketAddr) {
        self.data[port].push(Outgoing { packet: packet as u32, to: *to });
    }

    /// Sends a packet out of a port that has grown.
    pub fn grown_data(&mut self, port: usize, packet: usize, to: SocketAddr) {
        self.grown_data[port].push(Outgoing { packet: packet as u32, to });
    }

    /// The same, ahead of the data.
    pub fn urgent(&mut self, port: usize, packet: usize, to: SocketAddr) {
        self.urgent[port].push(Outgoing { packet: packet as u32, to });
    }

    /// Hands this router's own control traffic to its consumer.
    pub fn control(&mut self, ingress: Ingress, octets: &[u8], tally: &mut Tally) {
        tally.control += 1;
        // One neighbour's flood leaves room for the packets of the others.
        let limit = self.control_limits.entry(ingress).or_insert_with(|| TokenBucket::new(CONTROL_RATE, CONTROL_BURST));
        if !limit.take(self.now) {
            tally.control_lost += 1;
            return;
        }
        let message = || Control { ingress, octets: octets.to_vec() };
        let taken = self.control.as_ref().is_some_and(|queue| queue.try_send(message()).is_ok());
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
    pub clock: Clock,
    tasks: Receiver<Task>,
    burst: Burst,
    out: Out,
    is_stopping: bool,
    /// The port whose control traffic comes first in the next turn.
    next_control: usize,
}

/// A running thread, as the rest of the process sees it.
pub struct Handle {
    pub tasks: Sender<Task>,
    /// Ends with the engine, which holds what was counted last.
    pub thread: JoinHandle<Engine>,
}

/// Starts a thread, on `core` if one is given; `control` takes this router's own control traffic.
pub fn start(
    number: usize,
    engine: Engine,
    ports: Vec<Attached>,
    clock: Clock,
    core: Option<usize>,
    control: mpsc::Sender<Control>,
) -> std::io::Result<Handle> {
    let (asked, tasks) = channel();
    let out = Out { control: Some(control), ..Out::default() };
    let tally = Tally::default();
    let burst = Burst::default();
    let mut worker = Worker { engine, ports, tally, clock, tasks, burst, out, is_stopping: false, next_control: 0 };
    worker.fit();
    let thread = std::thread::Builder::new().name(format!("forward-{number}")).spawn(move || {
        if let Some(core) = core {
            pin(core);
        }
        worker.run()
    })?;
    Ok(Handle { tasks: asked, thread })
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
    fn run(mut self) -> Engine {
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
        // The last questions.
        while let Ok(task) = self.tasks.try_recv() {
            task(&mut self);
        }
        self.engine
    }

    /// The thread takes in what waits, and ends.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Makes room for what leaves each port; called when ports change.
    pub fn fit(&mut self) {
        self.out.fit(self.ports.len());
    }

    /// Some control traffic, then one burst of data from each port. Returns how many packets that were.
    fn turn(&mut self) -> usize {
        let mut taken = self.take_control();
        for place in 0..self.ports.len() {
            if !self.ports[place].is_control {
                taken += self.take(place);
            }
        }
        taken
    }

    /// Control traffic of all ports in turn, up to [`CONTROL_AHEAD`] and what the last burst has beyond it.
    fn take_control(&mut self) -> usize {
        let (mut taken, ports) = (0, self.ports.len());
        let begin = self.next_control;
        for place in (0..ports).map(|n| (begin + n) % ports) {
            if taken >= CONTROL_AHEAD {
                break;
            }
            if self.ports[place].is_control {
                taken += self.take(place);
                self.next_control = place + 1;
            }
        }
        taken
    }

    /// Sends a packet of this router's own to `to` by the port of `way`.
    pub fn send_own(&mut self, way: Way, to: SocketAddr, octets: &[u8]) {
        let Self { ports, burst, tally, .. } = self;
        let Some(attached) = ports.iter_mut().find(|attached| attached.way == way && !attached.is_control) else {
            return;
        };
        burst.clear();
        if !burst.push(octets, to) {
            return;
        }
        let sent = attached.port.send(burst, &[Outgoing { packet: 0, to }]).unwrap_or_else(|_| {
            tally.failures += 1;
            0
        });
        tally.sent += sent as u64;
        tally.unsent += 1 - sent as u64;
    }

    /// Opens ports anew whose network interface is another one now; returns which. One that is not there is a failure, and
    /// is looked for again the next time.
    pub fn renew(&mut self) -> Vec<String> {
        let Self { ports, tally, .. } = self;
        let mut renewed = Vec::new();
        for attached in ports {
            match attached.port.renew() {
                Ok(true) => renewed.push(attached.key.clone()),
                Ok(false) => {}
                Err(_) => tally.failures += 1,
            }
        }
        renewed
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
        self.out.now = now.instant;
        let way = self.ports[place].way;
        for first in (0..count).step_by(BURST) {
            let Self { engine, burst, out, tally, .. } = self;
            engine.process(burst, first, (place, way), now, out, tally);
            if !self.out.grown.is_empty() {
                self.send();
            }
        }
        self.send();
        count
    }

    fn send(&mut self) {
        let Self { ports, burst, out, tally, .. } = self;
        let Out { urgent, data, grown, grown_data, .. } = out;
        for (burst, lists) in [(&*burst, urgent), (burst, data), (grown, grown_data)] {
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
        out.grown.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::{Arc, Mutex};

    use wayleave_crypto::secret::Key128;
    use wayleave_dataplane::platypus::{Config, ReplayPolicy};
    use wayleave_dataplane::replay::ReplayFilter;

    use super::super::platypus;
    use super::*;
    use crate::config::router::RouterFile;

    const FILE: &str = "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\n[platypus]\nwaypoints = []\n";

    /// Always has a full burst, and writes down which port was asked.
    struct Endless(UdpSocket, usize, Arc<Mutex<Vec<usize>>>);

    impl AsFd for Endless {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Port for Endless {
        fn receive(&mut self, burst: &mut Burst) -> std::io::Result<usize> {
            burst.clear();
            for _ in 0..64 {
                assert!(burst.push(&[0; 20], ([127, 0, 0, 1], 9).into()));
            }
            self.2.lock().expect("no panic").push(self.1);
            Ok(64)
        }

        fn send(&mut self, _: &Burst, out: &[Outgoing]) -> std::io::Result<usize> {
            Ok(out.len())
        }
    }

    fn engine() -> Engine {
        let config = Config {
            waypoints: Vec::new(),
            repeated: ReplayPolicy::Pass,
            replay: ReplayFilter::new(&Key128::new([0; 16]), 1),
            need_revocations: false,
            answers_per_second: 0,
            accounts: 0,
            account_seed: 0,
            delegations: 1,
        };
        let file: RouterFile = toml::from_str(FILE).expect("a configuration");
        let section = file.platypus.as_ref().expect("its section").get_ref();
        let table = platypus::Table::new(&file, section, Vec::new(), None);
        Engine::Platypus(Box::new(platypus::Engine::new(config, table, &[], 0).expect("nothing is stamped")))
    }

    #[test]
    fn a_flood_of_one_neighbor_leaves_room_for_the_control_traffic_of_the_others() {
        let (queue, mut taken) = mpsc::channel(CONTROL_QUEUE);
        let mut out = Out { control: Some(queue), now: Instant(1_000_000_000), ..Out::default() };
        let mut tally = Tally::default();
        (0..1_000).for_each(|_| out.control(Ingress::External(1), b"flood", &mut tally));
        out.control(Ingress::External(2), b"quiet", &mut tally);
        assert_eq!((tally.control, tally.control_lost), (1_001, 1_000 - u64::from(CONTROL_BURST)));
        let handed: Vec<Control> = std::iter::from_fn(|| taken.try_recv().ok()).collect();
        assert_eq!(
            handed.last().map(|last| (last.ingress, &last.octets[..])),
            Some((Ingress::External(2), &b"quiet"[..]))
        );
        // In the next second the first one is heard again.
        out.now = Instant(2_000_000_000);
        out.control(Ingress::External(1), b"later", &mut tally);
        assert!(taken.try_recv().is_ok());
    }

    #[test]
    fn endless_control_traffic_takes_one_burst_of_a_turn_and_every_port_has_its_share() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let port = |number: usize| Attached {
            port: Box::new(Endless(UdpSocket::bind("127.0.0.1:0").expect("a socket"), number, Arc::clone(&asked))),
            way: Way::Ip,
            is_control: number < 2,
            key: number.to_string(),
        };
        let (_asker, tasks) = channel();
        let mut worker = Worker {
            engine: engine(),
            ports: (0..6).map(port).collect(),
            tally: Tally::default(),
            clock: Clock::start(),
            tasks,
            burst: Burst::default(),
            out: Out::default(),
            is_stopping: false,
            next_control: 0,
        };
        worker.fit();
        worker.turn();
        worker.turn();
        worker.turn();
        assert_eq!(*asked.lock().expect("no panic"), [0, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0, 2, 3, 4, 5]);
    }
}

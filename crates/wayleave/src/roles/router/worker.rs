//! The loop of one forwarding thread: it receives a burst, lets its format decide, sends the burst on, and only then looks
//! for the next one.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use wayleave_core::Now;
use wayleave_dataplane::frame::BURST;
use wayleave_runtime::packets::{Burst, Outgoing, wait_for};
use wayleave_runtime::{Clock, faults};

use super::batch::Batch;
use super::format::Format;
use super::output::OutputQueues;
use super::ports::{AttachedPort, PortKind, PortSpec};
use super::threads::Query;
use crate::failure::Failure;

/// Interval between checks of the query queue while no packet arrives.
const IDLE: Duration = Duration::from_millis(5);
/// Control packets that one turn serves ahead of data, about. Anybody may send packets that look like control traffic, so
/// their number is bounded: data is served in every turn.
const CONTROL_AHEAD: usize = 64;
/// Bursts that are forwarded from a port which is closed, or from each port when the thread stops. The bound matters only
/// where packets come faster than they can be forwarded: the thread must end all the same.
const DRAINED: usize = 1024;

/// A thread's state. Threads share at most a replay filter; queries reach them between two bursts.
pub struct Worker<F> {
    pub format: F,
    pub ports: Vec<AttachedPort>,
    pub out: OutputQueues,
    pub clock: Clock,
    queries: Receiver<Query<F>>,
    burst: Burst,
    is_stopping: bool,
    /// The port whose control traffic comes first in the next turn.
    next_control: usize,
}

impl<F: Format> Worker<F> {
    pub fn new(
        format: F,
        ports: Vec<AttachedPort>,
        out: OutputQueues,
        clock: Clock,
        queries: Receiver<Query<F>>,
    ) -> Self {
        let burst = Burst::default();
        let mut worker = Self { format, ports, out, clock, queries, burst, is_stopping: false, next_control: 0 };
        worker.out.resize(worker.ports.len());
        worker
    }

    /// Forwards until [`Self::stop`]; returns the format, which holds what was counted last.
    pub fn run(mut self) -> F {
        while !self.is_stopping {
            faults::point("worker");
            self.answer_queries();
            if self.turn() == 0 {
                let ports = self.ports.iter().map(|attached| attached.port.as_fd());
                let waiting = wait_for(ports.chain(self.format.waker()), IDLE);
                self.out.counters.failures += u64::from(waiting.is_err());
            }
        }
        for _ in 0..DRAINED {
            if self.turn() == 0 {
                break;
            }
        }
        self.answer_queries();
        self.format.leave();
        self.speak();
        self.format
    }

    fn answer_queries(&mut self) {
        while let Ok(query) = self.queries.try_recv() {
            query(self);
        }
    }

    /// Lets the thread forward what waits, and end.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Takes over another plan and ports between two bursts. What waits at a port that is closed is forwarded first, by the
    /// old plan.
    ///
    /// # Errors
    /// What is wrong with the plan; the ports have changed all the same.
    pub fn reload(&mut self, plan: F::Plan, specs: &[PortSpec], mut opened: Vec<AttachedPort>) -> Result<(), Failure> {
        let is_wanted = |attached: &AttachedPort| specs.iter().any(|spec| spec.key == attached.key);
        for port in 0..self.ports.len() {
            if !is_wanted(&self.ports[port]) {
                self.drain(port);
            }
        }
        self.ports.retain(is_wanted);
        self.ports.append(&mut opened);
        for attached in &mut self.ports {
            if let Some(spec) = specs.iter().find(|spec| spec.key == attached.key) {
                attached.kind = spec.kind;
            }
        }
        self.out.resize(self.ports.len());
        self.format.reload(plan, &self.ports, self.clock.now())
    }

    /// Some control traffic, then one burst of data from each port. Returns how many packets that were.
    fn turn(&mut self) -> usize {
        let mut received = self.forward_control();
        for port in 0..self.ports.len() {
            if !self.ports[port].is_control {
                received += self.forward_burst(port);
            }
        }
        received + self.speak()
    }

    /// Sends what the format itself has to say. Returns how many packets that were.
    fn speak(&mut self) -> usize {
        let now = self.clock.now();
        let mut said = 0;
        while let Some((kind, to, octets)) = self.format.speak(now) {
            self.send_own(kind, to, &octets);
            said += 1;
        }
        said
    }

    /// Forwards control traffic of all ports in turn, up to [`CONTROL_AHEAD`] and what the last burst has beyond it. The
    /// port that had its turn last is the last one next time, so that none is left out for ever.
    fn forward_control(&mut self) -> usize {
        let (mut received, ports) = (0, self.ports.len());
        let begin = self.next_control;
        for port in (0..ports).map(|n| (begin + n) % ports) {
            if received >= CONTROL_AHEAD {
                break;
            }
            if self.ports[port].is_control {
                received += self.forward_burst(port);
                self.next_control = port + 1;
            }
        }
        received
    }

    /// Forwards what waits at a port.
    pub fn drain(&mut self, port: usize) {
        for _ in 0..DRAINED {
            if self.forward_burst(port) == 0 {
                break;
            }
        }
    }

    /// Forwards what waits at every port.
    pub fn drain_all(&mut self) {
        (0..self.ports.len()).for_each(|port| self.drain(port));
    }

    /// One burst from one port, all the way. Returns how many packets that were.
    fn forward_burst(&mut self, port: usize) -> usize {
        let Ok(count) = self.ports[port].port.receive(&mut self.burst) else {
            self.out.counters.failures += 1;
            return 0;
        };
        if count == 0 {
            return 0;
        }
        self.out.counters.bursts += 1;
        self.out.counters.received += count as u64;
        let now: Now = self.clock.now();
        self.out.received_at = now.instant;
        let kind = self.ports[port].kind;
        self.format.listen(kind, &mut self.burst, now);
        for first in (0..count).step_by(BURST) {
            let Self { format, burst, out, .. } = self;
            let mut batch = Batch::new(port, kind);
            out.counters.strangers += batch.gather(format, burst, first);
            format.process(&mut batch, now, out);
            batch.into_shortened().apply(burst);
            // The memory for longer packets holds those of one batch.
            if !self.out.grown.is_empty() {
                self.send();
            }
        }
        self.send();
        count
    }

    fn send(&mut self) {
        let Self { format, ports, burst, out, .. } = self;
        out.drain(burst, ports, |packet| format.unsent(packet));
    }

    /// Sends a packet of this router's own to `to` by the data port of `kind`.
    pub fn send_own(&mut self, kind: PortKind, to: SocketAddr, octets: &[u8]) {
        let Self { ports, burst, out, .. } = self;
        let Some(attached) = ports.iter_mut().find(|attached| attached.kind == kind && !attached.is_control) else {
            out.counters.unsent += 1;
            return;
        };
        burst.clear();
        if !burst.push(octets, to) {
            return;
        }
        let sent = attached.port.send(burst, &[Outgoing { packet: 0, to }]).unwrap_or_else(|_| {
            out.counters.failures += 1;
            0
        });
        out.counters.sent += sent as u64;
        out.counters.unsent += 1 - sent as u64;
    }

    /// Reopens ports whose network interface was removed and is there again; returns their keys. A port whose interface is
    /// not there counts as a failed system call, and is tried again at the next call.
    pub fn renew_ports(&mut self) -> Vec<String> {
        let Self { ports, out, .. } = self;
        let mut renewed = Vec::new();
        for attached in ports {
            match attached.port.renew() {
                Ok(true) => renewed.push(attached.key.clone()),
                Ok(false) => {}
                Err(_) => out.counters.failures += 1,
            }
        }
        renewed
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    use wayleave_core::Afi;
    use wayleave_runtime::packets::Port;

    use super::super::testing::Echo;
    use super::*;

    /// Always has a full burst, and notes which port received. It takes no packet whose number is in the list.
    struct Endless(UdpSocket, usize, Arc<Mutex<Vec<usize>>>, Vec<u32>);

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
            match out.len() - self.3.len() {
                0 => Err(std::io::ErrorKind::NetworkUnreachable.into()),
                sent => Ok(sent),
            }
        }

        fn unsent(&self) -> Option<&[u32]> {
            Some(&self.3)
        }
    }

    /// It takes packets, and cannot tell the system that it has them.
    struct Ring(Endless);

    impl AsFd for Ring {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Port for Ring {
        fn receive(&mut self, burst: &mut Burst) -> std::io::Result<usize> {
            self.0.receive(burst)
        }

        fn send(&mut self, _: &Burst, _: &[Outgoing]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::NetworkDown.into())
        }

        fn unsent(&self) -> Option<&[u32]> {
            self.0.unsent()
        }
    }

    fn worker(ports: usize, control: usize) -> (Worker<Echo>, Arc<Mutex<Vec<usize>>>) {
        let received = Arc::new(Mutex::new(Vec::new()));
        let port = |number: usize| AttachedPort {
            port: Box::new(endless(number, Arc::clone(&received), Vec::new())),
            kind: PortKind::Ip(Afi::Ipv4),
            is_control: number < control,
            key: number.to_string(),
        };
        let ports = (0..ports).map(port).collect();
        (Worker::new(Echo::default(), ports, OutputQueues::default(), Clock::start(), channel().1), received)
    }

    fn endless(number: usize, received: Arc<Mutex<Vec<usize>>>, refused: Vec<u32>) -> Endless {
        Endless(UdpSocket::bind("127.0.0.1:0").expect("a socket"), number, received, refused)
    }

    #[test]
    fn a_format_is_told_which_packets_could_not_be_sent() {
        let (mut worker, received) = worker(1, 0);
        for refused in [Vec::new(), vec![3, 4, 63], (0..64).collect::<Vec<u32>>()] {
            worker.format.unsent.clear();
            worker.ports[0].port = Box::new(endless(0, Arc::clone(&received), refused.clone()));
            worker.turn();
            assert!(worker.format.unsent.iter().map(|packet| *packet as u32).eq(refused.iter().copied()));
        }
        let counters = worker.out.counters;
        assert_eq!((counters.sent, counters.unsent, counters.failures), (64 + 61, 3 + 64, 1));
        // What a ring has it sends with what comes later: nobody is credited for that.
        worker.format.unsent.clear();
        worker.ports[0].port = Box::new(Ring(endless(0, received, vec![3])));
        worker.turn();
        assert_eq!(worker.format.unsent, [3]);
        let counters = worker.out.counters;
        assert_eq!((counters.sent, counters.unsent, counters.failures), (64 + 61 + 63, 3 + 64 + 1, 2));
    }

    #[test]
    fn endless_control_traffic_takes_one_burst_of_a_turn_and_every_port_has_its_share() {
        let (mut worker, received) = worker(6, 2);
        worker.turn();
        worker.turn();
        worker.turn();
        assert_eq!(*received.lock().expect("no panic"), [0, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0, 2, 3, 4, 5]);
    }

    #[test]
    fn what_waits_at_a_closed_port_is_forwarded_within_a_bound() {
        let (mut worker, received) = worker(1, 0);
        worker.reload((), &[], Vec::new()).expect("taken over");
        assert!(worker.ports.is_empty());
        assert_eq!(received.lock().expect("no panic").len(), DRAINED);
        assert_eq!(worker.out.counters.sent, 64 * DRAINED as u64);
    }
}

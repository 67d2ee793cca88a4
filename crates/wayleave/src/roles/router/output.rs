//! What becomes of a burst's packets: queues by port, and this router's own control traffic.

use std::collections::HashMap;
use std::net::SocketAddr;

use tokio::sync::mpsc;
use wayleave_core::Instant;
use wayleave_dataplane::frame::Ingress;
use wayleave_dataplane::limit::TokenBucket;
use wayleave_runtime::packets::{Burst, Outgoing};

use super::counters::ThreadCounters;
use super::ports::AttachedPort;

/// Control packets a second, and at once, that one neighbour may cause: four times what it sends at the least BFD interval
/// that can be configured, with polls and changes of state.
const CONTROL_RATE: u32 = 400;
const CONTROL_BURST: u32 = 32;
/// Control packets that may wait for their consumer. More are dropped: their senders repeat them.
pub const CONTROL_QUEUE: usize = 256;

/// A control packet of this router, and where it came in.
pub struct ControlPacket {
    pub ingress: Ingress,
    pub octets: Vec<u8>,
}

/// Packets of a burst on their way out, by port. Answers leave before data.
#[derive(Default)]
pub struct OutputQueues {
    urgent: Vec<Vec<Outgoing>>,
    data: Vec<Vec<Outgoing>>,
    /// Copies of packets that may become longer, and answers that may be, in memory of their own.
    pub grown: Burst,
    grown_urgent: Vec<Vec<Outgoing>>,
    grown_data: Vec<Vec<Outgoing>>,
    control: Option<mpsc::Sender<ControlPacket>>,
    /// By where packets come in: as many as there are interfaces and siblings, at most.
    control_limits: HashMap<Ingress, TokenBucket>,
    /// When the burst was received.
    pub received_at: Instant,
    pub counters: ThreadCounters,
}

impl OutputQueues {
    /// Queues whose control traffic goes to `control`.
    pub fn new(control: mpsc::Sender<ControlPacket>) -> Self {
        Self { control: Some(control), ..Self::default() }
    }

    /// Makes queues for so many ports.
    pub fn resize(&mut self, ports: usize) {
        self.urgent.resize_with(ports, Vec::new);
        self.data.resize_with(ports, Vec::new);
        self.grown_urgent.resize_with(ports, Vec::new);
        self.grown_data.resize_with(ports, Vec::new);
    }

    /// Sends a packet of the burst out of a port.
    #[inline]
    pub fn data(&mut self, port: usize, packet: usize, to: &SocketAddr) {
        self.data[port].push(Outgoing { packet: packet as u32, to: *to });
    }

    /// Sends a packet of the burst out of a port, ahead of the data.
    pub fn urgent(&mut self, port: usize, packet: usize, to: SocketAddr) {
        self.urgent[port].push(Outgoing { packet: packet as u32, to });
    }

    /// Sends an answer that is no packet of the burst out of a port, ahead of the data.
    pub fn answer(&mut self, port: usize, answer: &[u8], to: SocketAddr) {
        if self.grown.push(answer, to) {
            self.grown_urgent[port].push(Outgoing { packet: self.grown.len() as u32 - 1, to });
        } else {
            self.counters.unsent += 1;
        }
    }

    /// Sends a packet of [`Self::grown`] out of a port.
    pub fn grown_data(&mut self, port: usize, packet: usize, to: SocketAddr) {
        self.grown_data[port].push(Outgoing { packet: packet as u32, to });
    }

    /// Hands this router's own control traffic to its consumer. Each sender has a limit of its own, so that one
    /// neighbour's flood leaves room in the queue for the others.
    pub fn control(&mut self, ingress: Ingress, octets: &[u8]) {
        self.counters.control += 1;
        let limit = self.control_limits.entry(ingress).or_insert_with(|| TokenBucket::new(CONTROL_RATE, CONTROL_BURST));
        if !limit.take(self.received_at) {
            self.counters.control_lost += 1;
            return;
        }
        let packet = || ControlPacket { ingress, octets: octets.to_vec() };
        let is_taken = self.control.as_ref().is_some_and(|queue| queue.try_send(packet()).is_ok());
        self.counters.control_lost += u64::from(!is_taken);
    }

    /// Empties the queues into the ports, and gives to `unsent` the packets of the burst that a port did not take, by their
    /// indices: somebody may have been charged for them.
    pub fn drain(&mut self, burst: &Burst, ports: &mut [AttachedPort], mut unsent: impl FnMut(usize)) {
        let Self { urgent, data, grown, grown_urgent, grown_data, counters, .. } = self;
        let grown_burst = &*grown;
        let queues = [(burst, urgent, true), (grown_burst, grown_urgent, false), (burst, data, true)];
        for (burst, queues, is_charged) in queues.into_iter().chain([(grown_burst, grown_data, false)]) {
            let queues = queues.iter_mut().zip(&mut *ports);
            for (queue, AttachedPort { port, .. }) in queues.filter(|(queue, _)| !queue.is_empty()) {
                let sent = port.send(burst, queue);
                counters.failures += u64::from(sent.is_err());
                let left = match port.unsent() {
                    Some(packets) => {
                        packets.iter().filter(|_| is_charged).for_each(|packet| unsent(*packet as usize));
                        packets.len()
                    }
                    None => {
                        let packets = &queue[sent.unwrap_or(0)..];
                        packets.iter().filter(|_| is_charged).for_each(|out| unsent(out.packet as usize));
                        packets.len()
                    }
                };
                counters.sent += (queue.len() - left) as u64;
                counters.unsent += left as u64;
                queue.clear();
            }
        }
        grown.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_neighbor_leaves_room_for_the_control_traffic_of_the_others() {
        let (queue, mut received) = mpsc::channel(CONTROL_QUEUE);
        let mut out = OutputQueues { received_at: Instant(1_000_000_000), ..OutputQueues::new(queue) };
        (0..1_000).for_each(|_| out.control(Ingress::External(1), b"flood"));
        out.control(Ingress::External(2), b"quiet");
        assert_eq!((out.counters.control, out.counters.control_lost), (1_001, 1_000 - u64::from(CONTROL_BURST)));
        let handed: Vec<ControlPacket> = std::iter::from_fn(|| received.try_recv().ok()).collect();
        let last = handed.last().map(|last| (last.ingress, &last.octets[..]));
        assert_eq!(last, Some((Ingress::External(2), &b"quiet"[..])));
        // In the next second packets of the first one pass again.
        out.received_at = Instant(2_000_000_000);
        out.control(Ingress::External(1), b"later");
        assert!(received.try_recv().is_ok());
    }
}

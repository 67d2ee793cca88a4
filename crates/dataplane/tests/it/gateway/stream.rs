//! What hosts behind two gateways say to each other: datagrams, or a stream whose sender repeats as TCP does.

use std::collections::BTreeSet;

use super::timed::{MILLISECOND, SECOND};
use super::world::{A, B, tcp, udp};

/// TCP's least timeout, as Linux has it; it doubles each time.
const RTO: u64 = 200 * MILLISECOND;
/// A connection's first packet is repeated after this.
const SYN: u64 = SECOND;
/// Units that may be unacknowledged.
const WINDOW: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Datagrams, each of which is answered.
    Datagrams,
    Stream,
}

const OPEN: u8 = 0;
const DATA: u8 = 1;
const ACK: u8 = 2;

/// A flow between two hosts.
#[derive(Debug)]
pub struct Stream {
    number: u16,
    pub kind: Kind,
    /// The gateway behind which it is begun, and the one behind which the data are written.
    begins: usize,
    writes: usize,
    /// Where who begins it sends to.
    to: String,
    /// Between two units.
    every: u64,
    pub is_on: bool,
    is_open: bool,
    due: u64,
    written: u64,
    next: u64,
    acked: u64,
    rto: u64,
    timer: Option<u64>,
    /// When the world is to call again.
    pub alarm: Option<u64>,
    syn: Option<u64>,
    expected: u64,
    early: BTreeSet<u64>,
    /// When there was progress at the reader, and for datagrams at the writer.
    pub progress: [Vec<u64>; 2],
    pub since: u64,
}

type Packets = Vec<(usize, Vec<u8>)>;

fn other(node: usize) -> usize {
    if node == A { B } else { A }
}

impl Stream {
    pub fn new(number: usize, kind: Kind, (begins, writes): (usize, usize), to: &str, every: u64) -> Self {
        Self {
            number: number as u16,
            kind,
            begins,
            writes,
            to: to.to_owned(),
            every,
            is_on: false,
            is_open: false,
            due: 0,
            written: 0,
            next: 0,
            acked: 0,
            rto: RTO,
            timer: None,
            alarm: None,
            syn: None,
            expected: 0,
            early: BTreeSet::new(),
            progress: [Vec::new(), Vec::new()],
            since: 0,
        }
    }

    /// Which stream a packet belongs to, and its payload.
    pub fn payload(octets: &[u8]) -> Option<(usize, &[u8])> {
        let at = match octets.get(9) {
            Some(17) => 28,
            Some(6) => 40,
            _ => return None,
        };
        let port = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
        (octets.len() > at).then(|| (usize::from(port(20).min(port(22)) - 1_000), &octets[at..]))
    }

    pub fn begin(&mut self, micros: u64) {
        (self.is_on, self.due, self.since) = (true, micros, micros);
        if self.begins != self.writes && !self.is_open {
            self.syn = Some(micros);
        } else {
            self.is_open = true;
        }
    }

    /// No further data are written.
    pub fn pause(&mut self) {
        self.is_on = false;
    }

    fn packet(&self, from: usize, kind: u8, number: u64) -> (usize, Vec<u8>) {
        let payload = [&[kind][..], &number.to_be_bytes()].concat();
        let (here, there) = (1_000 + self.number, 2_000 + self.number);
        let own = format!("10.0.{from}.1");
        let (to, ports) = if from == self.begins {
            (self.to.clone(), (here, there))
        } else {
            (format!("10.0.{}.1", other(from)), (there, here))
        };
        let octets = match self.kind {
            Kind::Datagrams => udp(&own, &to, ports, &payload),
            Kind::Stream => tcp(&own, &to, ports, number as u32, 0x10, &[], &payload),
        };
        (from, octets)
    }

    /// A timer fires. Returns what is sent.
    pub fn turn(&mut self, micros: u64) -> Packets {
        let mut packets = Vec::new();
        if self.syn.is_some_and(|syn| micros >= syn) {
            packets.push(self.packet(self.begins, OPEN, 0));
            self.syn = Some(micros + SYN);
        }
        if self.is_on && self.is_open && micros >= self.due {
            self.due = micros + self.every;
            self.written += 1;
        }
        match self.kind {
            Kind::Datagrams => {
                while self.next < self.written {
                    packets.push(self.packet(self.writes, DATA, self.next));
                    self.next += 1;
                }
            }
            Kind::Stream => {
                if self.timer.is_some_and(|timer| micros >= timer) {
                    self.rto *= 2;
                    self.timer = Some(micros + self.rto);
                    self.next = self.acked + 1;
                    packets.push(self.packet(self.writes, DATA, self.acked));
                }
                self.pump(micros, &mut packets);
            }
        }
        packets
    }

    fn pump(&mut self, micros: u64, packets: &mut Packets) {
        // After a timeout one unit is on its way, until it is acknowledged.
        let window = if self.rto > RTO { 1 } else { WINDOW };
        while self.next < self.written && self.next < self.acked + window {
            packets.push(self.packet(self.writes, DATA, self.next));
            self.next += 1;
            self.timer.get_or_insert(micros + self.rto);
        }
    }

    /// When the next timer fires.
    pub fn wake(&self) -> Option<u64> {
        let due = self.is_on.then_some(self.due).filter(|_| self.is_open);
        let all = [self.syn, due, self.timer];
        all.into_iter().flatten().min()
    }

    /// A packet arrives behind the gateway `at`.
    pub fn take(&mut self, at: usize, payload: &[u8], micros: u64) -> Packets {
        let (kind, number) = (payload[0], u64::from_be_bytes(payload[1..9].try_into().unwrap()));
        let mut packets = Vec::new();
        match (kind, self.kind) {
            (OPEN, _) => {
                if !self.is_open {
                    (self.is_open, self.due) = (true, micros);
                }
            }
            (DATA, Kind::Datagrams) => {
                self.syn = None;
                self.progress[0].push(micros);
                packets.push(self.packet(at, ACK, number));
            }
            (DATA, Kind::Stream) => {
                self.syn = None;
                self.early.insert(number);
                while self.early.remove(&self.expected) {
                    self.expected += 1;
                    self.progress[0].push(micros);
                }
                packets.push(self.packet(at, ACK, self.expected));
            }
            (_, Kind::Datagrams) => self.progress[1].push(micros),
            (_, Kind::Stream) => {
                if number > self.acked {
                    (self.acked, self.rto) = (number, RTO);
                    self.next = self.next.max(number);
                    self.timer = (self.next > self.acked).then_some(micros + RTO);
                    self.pump(micros, &mut packets);
                }
            }
        }
        packets
    }

    /// Whether there was any, in each direction, since it began or went on, and before `micros`.
    pub fn has_progress(&self, micros: u64) -> bool {
        let directions = match self.kind {
            Kind::Datagrams => 2,
            Kind::Stream => 1,
        };
        self.progress[..directions].iter().all(|all| all.iter().any(|at| (self.since..micros).contains(at)))
    }

    /// The longest time without progress between two moments, in either direction.
    pub fn gap(&self, from: u64, to: u64) -> u64 {
        let directions = match self.kind {
            Kind::Datagrams => 2,
            Kind::Stream => 1,
        };
        let longest = |progress: &Vec<u64>| {
            let begin = from.max(self.since);
            let before = progress.iter().rev().find(|at| **at <= begin && **at >= self.since).copied();
            let mut last = before.unwrap_or(begin);
            let mut longest = 0;
            for at in progress.iter().copied().filter(|at| *at > begin && *at <= to).chain([to]) {
                longest = longest.max(at - last);
                last = at;
            }
            longest
        };
        self.progress[..directions].iter().map(longest).max().unwrap()
    }
}

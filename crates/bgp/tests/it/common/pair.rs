//! Two sessions and the wires between them: octets are cut, delayed and interleaved as a seed says.

use std::collections::VecDeque;
use std::time::Duration;

use wayleave_bgp::Update;
use wayleave_bgp::session::{Config, ConnectionId, Ended, Established, Input, Output, Session, State};
use wayleave_core::{Afi, Instant, Machine};

use super::{Choice, at};

/// One TCP connection: its numbers at both ends, the octets on the way to each end.
struct Wire {
    ids: [ConnectionId; 2],
    to: [VecDeque<u8>; 2],
    /// This end has closed; nothing more comes from it, nothing more reaches it.
    closed: [bool; 2],
    /// This end was notified that the other closed.
    close_seen: [bool; 2],
}

/// What one end has reported.
#[derive(Default)]
pub struct Report {
    pub ups: Vec<Established>,
    pub downs: Vec<Ended>,
    pub failed: Vec<Ended>,
    pub updates: Vec<Update>,
    pub ends_of_rib: Vec<Afi>,
    pub refreshes: usize,
}

pub struct Pair {
    pub sessions: [Session; 2],
    pub reports: [Report; 2],
    pub now: Instant,
    /// Most octets delivered at once.
    pub chunk: usize,
    /// Connections are accepted. Otherwise attempts fail.
    pub reachable: bool,
    wires: Vec<Wire>,
    /// Attempts under way: who, which.
    dials: Vec<(usize, u64)>,
    choice: Choice,
    next: u64,
}

impl Pair {
    pub fn new(configs: [Config; 2], seed: u64) -> Self {
        let [a, b] = configs;
        Self {
            sessions: [Session::new(a, seed), Session::new(b, seed ^ 0xffff)],
            reports: Default::default(),
            now: Instant(1_000_000_000),
            chunk: usize::MAX,
            reachable: true,
            wires: Vec::new(),
            dials: Vec::new(),
            choice: Choice(seed),
            next: 1,
        }
    }

    pub fn give(&mut self, side: usize, input: Input) {
        self.sessions[side].handle(input, at(self.now));
        self.drain(side);
    }

    /// Both start, and all that follows at once happens.
    pub fn start(&mut self) {
        self.give(0, Input::Start);
        self.give(1, Input::Start);
        self.settle();
    }

    pub fn states(&self) -> [State; 2] {
        [self.sessions[0].state(), self.sessions[1].state()]
    }

    pub fn is_up(&self) -> bool {
        self.states() == [State::Established; 2]
    }

    /// Wires that both ends hold open.
    pub fn open_wires(&self) -> usize {
        self.wires.iter().filter(|wire| wire.closed == [false; 2]).count()
    }

    /// Delivers until nothing is on the way, in an order of the seed's.
    pub fn settle(&mut self) {
        while self.deliver_something() {}
    }

    /// Time passes; what happens meanwhile settles at once.
    pub fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let next = self.sessions.iter().filter_map(Session::deadline).min().filter(|&next| next <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            for side in [0, 1] {
                self.sessions[side].handle_timeout(at(self.now));
                self.drain(side);
            }
            self.settle();
        }
        self.now = end;
    }

    /// Every wire is cut; both ends learn of it.
    pub fn cut(&mut self) {
        for wire in std::mem::take(&mut self.wires) {
            for side in [0, 1] {
                if !wire.closed[side] {
                    self.give(side, Input::Closed { connection: wire.ids[side] });
                }
            }
        }
    }

    fn deliver_something(&mut self) -> bool {
        let mut choices: Vec<(usize, usize)> = Vec::new();
        for (at, wire) in self.wires.iter().enumerate() {
            for side in [0, 1] {
                let octets = !wire.to[side].is_empty();
                let closing = wire.closed[1 - side] && !wire.close_seen[side];
                if !wire.closed[side] && (octets || closing) {
                    choices.push((at, side));
                }
            }
        }
        let pick = self.choice.below(choices.len() + self.dials.len());
        if let Some(&(wire, side)) = choices.get(pick) {
            self.deliver(wire, side);
            return true;
        }
        if self.dials.is_empty() {
            self.wires.retain(|wire| wire.closed != [true; 2]);
            return false;
        }
        let (side, attempt) = self.dials.remove(pick - choices.len());
        self.dial(side, attempt);
        true
    }

    fn deliver(&mut self, wire: usize, side: usize) {
        let wire = &mut self.wires[wire];
        let connection = wire.ids[side];
        let count = wire.to[side].len().min(self.chunk);
        if count == 0 {
            wire.close_seen[side] = true;
            wire.closed[side] = true;
            return self.give(side, Input::Closed { connection });
        }
        let bytes = wire.to[side].drain(..count).collect();
        self.give(side, Input::Bytes { connection, bytes });
    }

    fn dial(&mut self, side: usize, attempt: u64) {
        if !self.reachable {
            return self.give(side, Input::ConnectFailed { attempt });
        }
        let ids = [ConnectionId(self.next), ConnectionId(self.next + 1)];
        self.next += 2;
        self.wires.push(Wire { ids, to: Default::default(), closed: [false; 2], close_seen: [false; 2] });
        self.give(side, Input::Connected { connection: ids[side], outgoing: true });
        self.give(1 - side, Input::Connected { connection: ids[1 - side], outgoing: false });
    }

    fn drain(&mut self, side: usize) {
        while let Some(output) = self.sessions[side].poll() {
            let report = &mut self.reports[side];
            match output {
                Output::Connect { attempt } => {
                    self.dials.retain(|&(who, _)| who != side);
                    self.dials.push((side, attempt));
                }
                Output::Send { connection, bytes } => {
                    let wire = self.wires.iter_mut().find(|wire| wire.ids[side] == connection);
                    if let Some(wire) = wire.filter(|wire| !wire.closed[1 - side]) {
                        wire.to[1 - side].extend(bytes);
                    }
                }
                Output::Close { connection } => {
                    if let Some(wire) = self.wires.iter_mut().find(|wire| wire.ids[side] == connection) {
                        wire.closed[side] = true;
                    }
                }
                Output::Up(established) => report.ups.push(*established),
                Output::Down(ended) => report.downs.push(ended),
                Output::Failed(ended) => report.failed.push(ended),
                Output::Update(update) => report.updates.push(*update),
                Output::EndOfRib(afi) => report.ends_of_rib.push(afi),
                Output::RouteRefresh { .. } => report.refreshes += 1,
            }
        }
    }
}

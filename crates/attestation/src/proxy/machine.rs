//! All pairs of one AS in one process, and the bridge between the two sessions of each.

use std::collections::VecDeque;
use std::sync::Arc;

use wayleave_bgp::session::ConnectionId;
use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Instant, Machine, Now};

use super::pair::{self, Pair, PairConfig, PairEvent, Side};

/// What the world tells a proxy.
#[derive(Debug)]
pub enum Input {
    /// Of one pair, by its place.
    Pair(usize, pair::Input),
}

/// What a proxy wants done.
#[derive(Debug)]
pub enum Output {
    /// Open a connection, as in [`pair::Output::Connect`].
    Connect {
        /// The pair's place.
        pair: usize,
        /// Which side.
        side: Side,
        /// Which attempt.
        attempt: u64,
    },
    /// Send these octets.
    Send {
        /// The pair's place.
        pair: usize,
        /// Which side.
        side: Side,
        /// Where.
        connection: ConnectionId,
        /// Whole messages.
        bytes: Vec<u8>,
    },
    /// Close the connection, once what was sent is out.
    Close {
        /// The pair's place.
        pair: usize,
        /// Which side.
        side: Side,
        /// Which.
        connection: ConnectionId,
    },
    /// Something happened to a pair.
    Event(usize, PairEvent),
}

/// The proxy of one AS.
pub struct Proxy {
    pairs: Vec<Pair>,
    outputs: VecDeque<Output>,
}

impl Proxy {
    /// Pairs at rest; `seed` feeds the jitter of timers.
    #[must_use]
    pub fn new(pairs: Vec<PairConfig>, seed: u64, now: Now) -> Self {
        let pairs = pairs.into_iter().enumerate();
        let pairs = pairs.map(|(place, config)| Pair::new(config, seed ^ (place as u64) << 32, now)).collect();
        Self { pairs, outputs: VecDeque::new() }
    }

    /// The pairs, in the order in which they were given.
    #[must_use]
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Lets go of what no route needs any more; to be called now and then.
    pub fn sweep(&mut self) {
        self.pairs.iter_mut().for_each(Pair::sweep);
    }

    fn on_pair(&mut self, pair: usize, output: pair::Output) {
        let output = match output {
            pair::Output::Connect { side, attempt } => Output::Connect { pair, side, attempt },
            pair::Output::Send { side, connection, bytes } => Output::Send { pair, side, connection, bytes },
            pair::Output::Close { side, connection } => Output::Close { pair, side, connection },
            pair::Output::Event(event) => Output::Event(pair, event),
            pair::Output::Route { from, nlri, attributes } => return self.on_route(pair, from, nlri, attributes),
            pair::Output::EndOfRib { from, afi } => return self.on_end_of_rib(pair, from, afi),
        };
        self.outputs.push_back(output);
    }

    fn on_route(&mut self, pair: usize, from: Side, nlri: Nlri, attributes: Option<Arc<Attributes>>) {
        self.pairs[pair].route(from.other(), nlri, attributes);
    }

    fn on_end_of_rib(&mut self, pair: usize, from: Side, afi: Afi) {
        self.pairs[pair].end_of_rib(from.other(), afi);
    }
}

impl Machine for Proxy {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        match input {
            Input::Pair(place, input) => {
                if let Some(pair) = self.pairs.get_mut(place) {
                    pair.handle(input, now);
                }
            }
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        for pair in &mut self.pairs {
            if pair.deadline().is_some_and(|deadline| deadline <= now.instant) {
                pair.handle_timeout(now);
            }
        }
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let next = self.pairs.iter_mut().enumerate().find_map(|(place, pair)| Some((place, pair.poll()?)));
            let (place, output) = next?;
            self.on_pair(place, output);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.pairs.iter().filter_map(Pair::deadline).min()
    }
}

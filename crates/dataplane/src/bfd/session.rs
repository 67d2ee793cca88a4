//! A session's state and timers (RFC 5880, section 6.8), in asynchronous mode, with the RFC's own names.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use wayleave_core::Instant;

use super::packet::{ControlPacket, Diagnostic, State};

/// The least interval of transmission while a session is not up (section 6.8.3). Microseconds.
const SLOW: u32 = 1_000_000;

/// What a session is set up with. Intervals are in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Identifies the session among all of this router.
    pub discriminator: NonZeroU32,
    /// The least interval at which this end sends.
    pub desired_min_tx: u32,
    /// The least interval at which this end can receive.
    pub required_min_rx: u32,
    /// How many packets the other end may miss; never zero.
    pub detect_multiplier: u8,
    /// Random: spreads the times at which packets leave.
    pub seed: u64,
}

/// What the driver must do after an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this packet.
    Send(ControlPacket),
    /// The state has changed.
    Changed(State, Diagnostic),
}

/// One end of a session.
#[derive(Clone, Debug)]
pub struct Session {
    config: Config,
    state: State,
    diagnostic: Diagnostic,
    remote: Remote,
    /// `bfd.DesiredMinTxInterval`, which is longer while the session is not up.
    desired_min_tx: u32,
    /// A change of this end's timers waits for the other end's answer.
    is_polling: bool,
    random: u64,
    /// When the next periodic packet is due; none while the other end wants none.
    next_tx: Option<Instant>,
    /// The next packet leaves ahead of its time, and whether one may between two periodic packets: if every change made
    /// one, a link that doubles packets and mixes them up could make two ends send without end.
    is_early: bool,
    may_be_early: bool,
    /// When the detection time ends.
    detected: Option<Instant>,
    outputs: VecDeque<Output>,
}

/// What is known of the other end.
#[derive(Clone, Copy, Debug)]
struct Remote {
    discriminator: Option<NonZeroU32>,
    /// `bfd.RemoteMinRxInterval`.
    min_rx: u32,
    demand: bool,
    state: State,
}

impl Session {
    /// A session that is down, and sends its first packet at once.
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        Self {
            config,
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote: Remote { discriminator: None, min_rx: 1, demand: false, state: State::Down },
            desired_min_tx: config.desired_min_tx.max(SLOW),
            is_polling: false,
            random: config.seed,
            next_tx: Some(now),
            is_early: false,
            may_be_early: true,
            detected: None,
            outputs: VecDeque::new(),
        }
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Processes a packet that came on this session's link (section 6.8.6). One for another session is ignored.
    ///
    /// So is, while the session is up, one that names no session. The RFC lets it through, and it may say that the other end
    /// is down: whoever can send a packet that seems to come from there could take the link down with it. Who names this
    /// session's discriminator, which is random, has heard this end. An other end that has begun anew, or hears nothing of
    /// this one, is noticed when the detection time ends.
    pub fn receive(&mut self, packet: &ControlPacket, now: Instant) {
        let is_for_this = match packet.yours {
            Some(yours) => yours == self.config.discriminator,
            None => self.state != State::Up,
        };
        if !is_for_this {
            return;
        }
        self.remote = Remote {
            discriminator: Some(packet.mine),
            min_rx: packet.required_min_rx,
            demand: packet.demand,
            state: packet.state,
        };
        if packet.is_final {
            self.is_polling = false;
        }
        let interval = self.config.required_min_rx.max(packet.desired_min_tx);
        self.detected = Some(now + micros(u64::from(interval) * u64::from(packet.detect_multiplier)));
        let before = self.state;
        self.follow(packet.state);
        if packet.poll {
            // At once, whatever the intervals say.
            let answer = ControlPacket { is_final: true, poll: false, ..self.packet() };
            self.outputs.push_back(Output::Send(answer));
        }
        // Intervals may have become shorter.
        let latest = now + self.interval();
        let next = self.next_tx.map_or(latest, |next| next.min(latest));
        self.next_tx = (!self.is_silent()).then_some(next);
        if self.state != before {
            self.hasten(now);
        }
        self.handle_timeout(now);
    }

    /// Sends the packets that are due, and goes down when the detection time has ended.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.detected.is_some_and(|detected| detected <= now) {
            self.detected = None;
            self.remote.discriminator = None;
            if matches!(self.state, State::Init | State::Up) {
                self.change(State::Down, Diagnostic::TIME_EXPIRED);
                self.hasten(now);
            }
        }
        if self.next_tx.is_some_and(|next| next <= now) {
            self.outputs.push_back(Output::Send(self.packet()));
            self.may_be_early |= !std::mem::take(&mut self.is_early);
            let pause = self.jittered();
            self.next_tx = (!self.is_silent()).then(|| now + pause);
        }
    }

    /// The next output; call until `None` after every input.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Self::handle_timeout`] is due; may change after every input.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        [self.next_tx, self.detected].into_iter().flatten().min()
    }

    /// The state machine of section 6.2.
    fn follow(&mut self, remote: State) {
        match (self.state, remote) {
            (State::Init | State::Up, State::AdminDown) | (State::Up, State::Down) => {
                self.change(State::Down, Diagnostic::NEIGHBOR_DOWN);
            }
            (State::Down, State::Down) => self.change(State::Init, self.diagnostic),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.change(State::Up, Diagnostic::NONE);
            }
            _ => {}
        }
    }

    fn change(&mut self, state: State, diagnostic: Diagnostic) {
        (self.state, self.diagnostic) = (state, diagnostic);
        self.outputs.push_back(Output::Changed(state, diagnostic));
        let desired =
            if state == State::Up { self.config.desired_min_tx } else { self.config.desired_min_tx.max(SLOW) };
        if desired != self.desired_min_tx {
            self.desired_min_tx = desired;
            self.is_polling = true;
        }
    }

    /// The other end learns of a change sooner (section 6.8.7).
    fn hasten(&mut self, now: Instant) {
        if std::mem::take(&mut self.may_be_early) {
            (self.is_early, self.next_tx) = (true, Some(now));
        }
    }

    /// Whether no periodic packet may leave (section 6.8.7).
    fn is_silent(&self) -> bool {
        let is_demanded = self.remote.demand && self.state == State::Up && self.remote.state == State::Up;
        self.remote.min_rx == 0 || is_demanded && !self.is_polling
    }

    fn packet(&self) -> ControlPacket {
        ControlPacket {
            diagnostic: self.diagnostic,
            state: self.state,
            poll: self.is_polling,
            is_final: false,
            is_independent: false,
            demand: false,
            detect_multiplier: self.config.detect_multiplier,
            mine: self.config.discriminator,
            yours: self.remote.discriminator,
            desired_min_tx: self.desired_min_tx,
            required_min_rx: self.config.required_min_rx,
            required_min_echo_rx: 0,
        }
    }

    /// The interval of transmission before it is shortened.
    fn interval(&self) -> Duration {
        micros(self.desired_min_tx.max(self.remote.min_rx).into())
    }

    /// The same shortened by up to a quarter, and by at least a tenth if the other end must not miss one packet.
    fn jittered(&mut self) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (least, span) = if self.config.detect_multiplier == 1 { (10, 15) } else { (0, 25) };
        // In thousandths.
        let less = least * 10 + (self.random >> 33) % (span * 10 + 1);
        self.interval() * (1_000 - less as u32) / 1_000
    }
}

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

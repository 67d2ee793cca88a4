//! The trait of every protocol machine: inputs and time go in, outputs come out.

use crate::{Instant, Now};

/// A protocol without I/O: no clock, socket, file or source of randomness of its own.
///
/// A driver calls [`handle`](Machine::handle) for each input and [`handle_timeout`](Machine::handle_timeout) when
/// [`deadline`](Machine::deadline) has passed and before it lets somebody look at the machine, and after each of these drains [`poll`](Machine::poll) until it
/// returns `None`. The seed of a machine's randomness comes at construction. What must be durable leaves as an output
/// that carries an id, and comes back as an input with the same id before anything depends on it.
pub trait Machine {
    /// What its driver, and the machine behind it, hand in.
    type Input;
    /// What its driver is to do, and what it reports.
    type Output;

    /// Takes one input in.
    fn handle(&mut self, input: Self::Input, now: Now);

    /// Lets timers that are due by `now` fire. It may be called at any time, due or not; where none is due, it changes nothing.
    fn handle_timeout(&mut self, now: Now);

    /// The next output; call until `None` after every `handle` and `handle_timeout`.
    fn poll(&mut self) -> Option<Self::Output>;

    /// When the machine next needs [`handle_timeout`](Machine::handle_timeout). May change after every `handle`,
    /// `handle_timeout` and `poll`.
    fn deadline(&self) -> Option<Instant>;
}

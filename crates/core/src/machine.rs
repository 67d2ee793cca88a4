//! The shape of every protocol: bytes and time in, actions out.

use crate::{Instant, Now};

/// A protocol that is told and never asks (no clock, socket, file or randomness of its own).
///
/// A driver calls [`handle`](Machine::handle) for each input and [`handle_timeout`](Machine::handle_timeout) when
/// [`deadline`](Machine::deadline) has passed, and after each of these drains [`poll`](Machine::poll) until it
/// returns `None`. The seed of a machine's randomness comes at construction. What must be durable leaves as an output
/// that carries an id, and comes back as an input with the same id before anything depends on it.
pub trait Machine {
    /// What the world tells the machine.
    type Input;
    /// What the machine wants done.
    type Output;

    /// Takes one input in.
    fn handle(&mut self, input: Self::Input, now: Now);

    /// Lets timers that are due by `now` fire. A call that comes early does nothing.
    fn handle_timeout(&mut self, now: Now);

    /// The next action; call until `None` after every `handle` and `handle_timeout`.
    fn poll(&mut self) -> Option<Self::Output>;

    /// When the machine next wants [`handle_timeout`](Machine::handle_timeout). May change after every `handle`,
    /// `handle_timeout` and `poll`.
    fn deadline(&self) -> Option<Instant>;
}

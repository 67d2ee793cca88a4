//! The event loop around one machine: one task owns the machine, everything else sends it events.
//!
//! Queues and who waits for whom: the loop's queue is bounded, and whoever sends to it (links, the BGP peer's task, the
//! store, timers, status pages) waits while it is full. The loop itself never waits for any of them: [`Io::perform`] must
//! not block, so that no cycle of waiting tasks can form. A receiver that cannot keep up is dealt with where outputs are
//! performed: a link is closed, a route replaces the one that waits for the same prefix.

use std::collections::VecDeque;

use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::sleep_until;
use wayleave_core::Machine;

use crate::clock::Clock;
use crate::faults;
use crate::starts::{Handling, PeerName};

/// Inputs that may follow from one output; a machine whose outputs feed it more than that is a bug.
const MAX_FEEDBACK: usize = 1 << 16;

/// A question to a machine, answered between two of its inputs.
pub type Query<M> = Box<dyn FnOnce(&mut M) + Send>;

/// What the loop does with an event.
pub enum Step<M: Machine> {
    /// Hands an input to the machine.
    Input(M::Input),
    /// Answers a query.
    Query(Query<M>),
    /// Nothing.
    Ignore,
    /// Ends.
    Stop,
}

/// The I/O of one machine.
pub trait Io<M: Machine> {
    /// What reaches the loop by its queue.
    type Event;
    /// Why an output could not be performed; it ends the loop.
    type Error;

    /// The peer whose input an event is, where that has proved who it is.
    fn source<'a>(&'a self, _event: &'a Self::Event) -> Option<&'a PeerName> {
        None
    }

    /// Translates an event.
    fn step(&mut self, event: Self::Event) -> Step<M>;

    /// Called before every input and timeout: fresh randomness for a machine that needs it. An error ends the loop.
    fn before(&mut self, _machine: &mut M) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Performs an output. Must not wait. Inputs that follow at once (a socket is full) go to `feedback`, and reach the
    /// machine before its next output is taken.
    fn perform(&mut self, output: M::Output, feedback: &mut VecDeque<M::Input>) -> Result<(), Self::Error>;
}

/// Runs `machine` until an event means [`Step::Stop`], all senders of events are gone, or an output cannot be performed.
pub async fn drive<M, I>(
    mut machine: M,
    clock: Clock,
    mut events: mpsc::Receiver<I::Event>,
    mut io: I,
) -> Result<(), I::Error>
where
    M: Machine,
    I: Io<M>,
{
    let mut feedback = VecDeque::new();
    // Until the outputs that follow from the input are performed.
    let mut handling = None;
    loop {
        faults::point("machine");
        while let Some(output) = machine.poll() {
            io.perform(output, &mut feedback)?;
            debug_assert!(feedback.len() <= MAX_FEEDBACK, "outputs that feed the machine without end");
            while let Some(input) = feedback.pop_front() {
                io.before(&mut machine)?;
                machine.handle(input, clock.now());
            }
        }
        drop(handling.take());
        let deadline = machine.deadline();
        // The timer has a granularity of a millisecond; a machine with work in slices would wait for that between two.
        let is_due = deadline.is_some_and(|at| at <= clock.now().instant);
        let event = tokio::select! {
            event = events.recv() => match event {
                Some(event) => Some(event),
                None => return Ok(()),
            },
            () = yield_now(), if is_due => None,
            () = sleep_until(deadline.map_or_else(tokio::time::Instant::now, |at| clock.at(at))), if deadline.is_some() && !is_due => None,
        };
        handling = event.as_ref().and_then(|event| io.source(event)).map(Handling::begin);
        if handling.is_some() {
            faults::point("input");
        }
        match event.map(|event| io.step(event)) {
            Some(Step::Input(input)) => {
                io.before(&mut machine)?;
                machine.handle(input, clock.now());
            }
            Some(Step::Query(query)) => {
                // A machine that has had nothing to do for an hour would answer as of then.
                io.before(&mut machine)?;
                machine.handle_timeout(clock.now());
                query(&mut machine);
            }
            Some(Step::Stop) => return Ok(()),
            Some(Step::Ignore) | None => {}
        }
        // Also after an event: a flood of events must not keep timers from firing.
        let now = clock.now();
        if machine.deadline().is_some_and(|deadline| deadline <= now.instant) {
            io.before(&mut machine)?;
            machine.handle_timeout(now);
        }
    }
}

/// Puts a query to the machine behind `events` and waits for the answer; `None` if the machine has stopped.
pub async fn ask<M, E, T>(events: &mpsc::Sender<E>, query: impl FnOnce(&mut M) -> T + Send + 'static) -> Option<T>
where
    E: From<Query<M>>,
    T: Send + 'static,
{
    let (to, answer) = oneshot::channel();
    let query: Query<M> = Box::new(move |machine| {
        let _ = to.send(query(machine)); // fails if the one who asked has gone
    });
    events.send(query.into()).await.ok()?;
    answer.await.ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wayleave_core::{Instant, Now};

    use super::*;

    /// Adds up its inputs, and outputs the sum 50 milliseconds after the last one.
    #[derive(Default)]
    struct Adder {
        sum: u64,
        due: Option<Instant>,
        output: Option<u64>,
        /// When it last heard of the time.
        at: Instant,
    }

    impl Machine for Adder {
        type Input = u64;
        type Output = u64;
        fn handle(&mut self, input: u64, now: Now) {
            self.sum += input;
            self.due = Some(now.instant + Duration::from_millis(50));
        }
        fn handle_timeout(&mut self, now: Now) {
            self.at = now.instant;
            if self.due.is_some_and(|due| due <= now.instant) {
                self.due = None;
                self.output = Some(self.sum);
            }
        }
        fn poll(&mut self) -> Option<u64> {
            self.output.take()
        }
        fn deadline(&self) -> Option<Instant> {
            self.due
        }
    }

    enum Event {
        Add(u64),
        Query(Query<Adder>),
    }

    impl From<Query<Adder>> for Event {
        fn from(query: Query<Adder>) -> Self {
            Event::Query(query)
        }
    }

    /// Passes sums on; a sum of 100 or more cannot be performed, and one of 6 is fed back once.
    struct Sums(mpsc::Sender<u64>);

    impl Io<Adder> for Sums {
        type Event = Event;
        type Error = u64;

        fn step(&mut self, event: Event) -> Step<Adder> {
            match event {
                Event::Add(0) => Step::Stop,
                Event::Add(n) => Step::Input(n),
                Event::Query(query) => Step::Query(query),
            }
        }

        fn perform(&mut self, sum: u64, feedback: &mut VecDeque<u64>) -> Result<(), u64> {
            if sum >= 100 {
                return Err(sum);
            }
            if sum == 6 {
                feedback.push_back(1);
            }
            self.0.try_send(sum).expect("the test reads every sum");
            Ok(())
        }
    }

    #[tokio::test]
    async fn inputs_timers_queries_and_feedback_reach_the_machine() {
        let (events, inbox) = mpsc::channel(8);
        let (to, mut sums) = mpsc::channel(8);
        let running = tokio::spawn(drive(Adder::default(), Clock::start(), inbox, Sums(to)));
        for n in [1, 2, 3] {
            events.send(Event::Add(n)).await.expect("running");
        }
        assert_eq!(ask(&events, |adder: &mut Adder| adder.sum).await, Some(6));
        assert_eq!(sums.recv().await, Some(6));
        assert_eq!(sums.recv().await, Some(7), "what was fed back counts");
        events.send(Event::Add(0)).await.expect("running");
        assert_eq!(running.await.expect("ended"), Ok(()));
        assert_eq!(ask(&events, |adder: &mut Adder| adder.sum).await, None);
    }

    #[tokio::test]
    async fn a_query_is_answered_as_of_now_however_long_nothing_has_happened() {
        let (events, inbox) = mpsc::channel(8);
        let (to, _sums) = mpsc::channel(8);
        let clock = Clock::start();
        let running = tokio::spawn(drive(Adder::default(), clock, inbox, Sums(to)));
        for _ in 0..2 {
            let asked = clock.now().instant;
            let at = ask(&events, |adder: &mut Adder| adder.at).await.expect("running");
            assert!(at >= asked, "{at:?} {asked:?}");
        }
        events.send(Event::Add(0)).await.expect("running");
        assert_eq!(running.await.expect("ended"), Ok(()));
    }

    #[tokio::test]
    async fn an_output_that_cannot_be_performed_ends_the_loop_with_its_reason() {
        let (events, inbox) = mpsc::channel(8);
        let (to, _sums) = mpsc::channel(8);
        let running = tokio::spawn(drive(Adder::default(), Clock::start(), inbox, Sums(to)));
        events.send(Event::Add(100)).await.expect("running");
        assert_eq!(running.await.expect("ended"), Err(100));
    }
}

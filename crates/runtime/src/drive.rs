//! The event loop around one machine: one task owns it, everything else sends events.

use wayleave_core::Machine;

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use crate::clock::Clock;

/// A question to a machine, asked between two of its inputs.
pub type Question<M> = Box<dyn FnOnce(&mut M) + Send>;

/// What an event means to the machine.
pub enum Told<M: Machine> {
    /// An input.
    Input(M::Input),
    /// Somebody wants to know something.
    Asked(Question<M>),
    /// Nothing.
    Nothing,
    /// The loop is to end.
    Stop,
}

/// Runs the machine until `told` answers [`Told::Stop`] or all senders of events are gone; gives the machine back.
/// `act` does what the machine wants done, and must not wait.
pub async fn drive<M, E>(
    mut machine: M,
    clock: Clock,
    mut events: mpsc::Receiver<E>,
    mut told: impl FnMut(E) -> Told<M>,
    mut act: impl FnMut(M::Output),
) -> M
where
    M: Machine,
{
    loop {
        while let Some(output) = machine.poll() {
            act(output);
        }
        let deadline = machine.deadline();
        let event = tokio::select! {
            event = events.recv() => match event {
                Some(event) => Some(event),
                None => return machine,
            },
            () = sleep_until(deadline.map_or_else(tokio::time::Instant::now, |at| clock.at(at))), if deadline.is_some() => None,
        };
        match event.map(&mut told) {
            Some(Told::Input(input)) => machine.handle(input, clock.now()),
            Some(Told::Asked(question)) => question(&mut machine),
            Some(Told::Stop) => return machine,
            Some(Told::Nothing) | None => {}
        }
        // Also after an event: a flood of events must not keep timers from firing.
        let now = clock.now();
        if machine.deadline().is_some_and(|deadline| deadline <= now.instant) {
            machine.handle_timeout(now);
        }
    }
}

/// Asks the machine behind `events` and waits for the answer; `None` if the machine has stopped.
pub async fn ask<M, E, T>(events: &mpsc::Sender<E>, question: impl FnOnce(&mut M) -> T + Send + 'static) -> Option<T>
where
    E: From<Question<M>>,
    T: Send + 'static,
{
    let (to, answer) = oneshot::channel();
    let question: Question<M> = Box::new(move |machine| {
        let _ = to.send(question(machine)); // whoever asked may have left
    });
    events.send(question.into()).await.ok()?;
    answer.await.ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wayleave_core::{Instant, Now};

    use super::*;

    /// Adds up what it is told, and says the sum half a tenth of a second after the last input.
    #[derive(Default)]
    struct Adder {
        sum: u64,
        due: Option<Instant>,
        said: Option<u64>,
    }

    impl Machine for Adder {
        type Input = u64;
        type Output = u64;
        fn handle(&mut self, input: u64, now: Now) {
            self.sum += input;
            self.due = Some(now.instant + Duration::from_millis(50));
        }
        fn handle_timeout(&mut self, now: Now) {
            if self.due.is_some_and(|due| due <= now.instant) {
                self.due = None;
                self.said = Some(self.sum);
            }
        }
        fn poll(&mut self) -> Option<u64> {
            self.said.take()
        }
        fn deadline(&self) -> Option<Instant> {
            self.due
        }
    }

    enum Event {
        Add(u64),
        Ask(Question<Adder>),
    }

    impl From<Question<Adder>> for Event {
        fn from(question: Question<Adder>) -> Self {
            Event::Ask(question)
        }
    }

    #[tokio::test]
    async fn inputs_timers_and_questions_reach_the_machine() {
        let (events, inbox) = mpsc::channel(8);
        let (to, mut said) = mpsc::unbounded_channel();
        let told = |event| match event {
            Event::Add(0) => Told::Stop,
            Event::Add(n) => Told::Input(n),
            Event::Ask(question) => Told::Asked(question),
        };
        let act = move |sum| to.send(sum).expect("the test listens");
        let running = tokio::spawn(drive(Adder::default(), Clock::start(), inbox, told, act));
        for n in [1, 2, 3] {
            events.send(Event::Add(n)).await.expect("running");
        }
        assert_eq!(ask(&events, |adder: &mut Adder| adder.sum).await, Some(6));
        assert_eq!(said.recv().await, Some(6));
        events.send(Event::Add(0)).await.expect("running");
        assert_eq!(running.await.expect("ended").sum, 6);
        assert_eq!(ask(&events, |adder: &mut Adder| adder.sum).await, None);
    }
}

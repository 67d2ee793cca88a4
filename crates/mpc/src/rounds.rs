//! Rounds: both parties send one message and receive one, each of a length that the public shape gives.

use crate::error::Error;

/// The result of a round.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Send this, receive the peer's message of the same round, and call again with it.
    Send(Vec<u8>),
    Done(T),
}

/// A protocol in symmetric rounds. It never blocks and never owns a link.
pub trait Rounds {
    type Output;

    /// Takes the peer's message of the last round, `None` at the start, and returns the next step.
    ///
    /// # Errors
    /// If the peer or the caller erred. Secrets are wiped then, and every later call fails.
    fn round(&mut self, received: Option<&[u8]>) -> Result<Step<Self::Output>, Error>;

    /// The exact length in bytes of the message that the next [`round`](Self::round) takes, so that a driver can refuse
    /// others before it reads them; `None` if it takes none.
    fn expects(&self) -> Option<usize>;
}

impl<R: Rounds> Rounds for &mut R {
    type Output = R::Output;

    fn round(&mut self, received: Option<&[u8]>) -> Result<Step<Self::Output>, Error> {
        (**self).round(received)
    }

    fn expects(&self) -> Option<usize> {
        (**self).expects()
    }
}

/// Runs the two ends of a protocol against each other in one thread: for tests and the simulator.
///
/// # Errors
/// The first error of either end.
pub fn lockstep<A: Rounds, B: Rounds>(one: &mut A, two: &mut B) -> Result<(A::Output, B::Output), LockstepError> {
    let (mut first, mut second) = (one.round(None)?, two.round(None)?);
    loop {
        (first, second) = match (first, second) {
            (Step::Send(a), Step::Send(b)) => (one.round(Some(&b))?, two.round(Some(&a))?),
            (Step::Done(a), Step::Done(b)) => return Ok((a, b)),
            _ => return Err(LockstepError::Uneven),
        };
    }
}

/// A link to the peer that sends and receives at once.
pub trait Link {
    type Error;

    /// Sends `message` and fills `answer`. Neither may wait for the other to be complete: both parties do this at the same
    /// time, with messages that may be longer than the link's buffers.
    ///
    /// # Errors
    /// If the link fails.
    fn exchange(&mut self, message: &[u8], answer: &mut [u8]) -> Result<(), Self::Error>;
}

/// Runs one end of a protocol over a link to its end: for callers that may wait, such as benchmarks.
///
/// # Errors
/// If the peer or the caller erred, or the link failed.
pub fn drive<R: Rounds, P: Link>(rounds: &mut R, pipe: &mut P) -> Result<R::Output, DriveError<P::Error>> {
    let mut step = rounds.round(None)?;
    let mut answer = Vec::new();
    loop {
        match step {
            Step::Done(output) => return Ok(output),
            Step::Send(message) => {
                answer.resize(rounds.expects().unwrap_or(0), 0);
                pipe.exchange(&message, &mut answer).map_err(DriveError::Link)?;
                step = rounds.round(Some(&answer))?;
            }
        }
    }
}

/// Why one end of a protocol did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriveError<E> {
    #[error(transparent)]
    End(#[from] Error),
    #[error("the link failed: {0}")]
    Link(E),
}

/// Why two ends did not finish together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockstepError {
    #[error(transparent)]
    End(#[from] Error),
    /// One end was done before the other.
    #[error("one end was done before the other")]
    Uneven,
}

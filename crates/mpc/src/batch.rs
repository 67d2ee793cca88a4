//! Several evaluations in shared rounds: the messages of each round are one message.

use crate::error::{Error, Misuse};
use crate::evaluation::Evaluation;
use crate::rounds::{Rounds, Step};
use crate::rows::BitRows;

/// Evaluations that share rounds, so that all together take as many rounds as the deepest. Both parties pass the same ones
/// in the same order. The outputs come in that order.
#[derive(Debug)]
pub struct EvaluationBatch {
    evaluations: Vec<Evaluation>,
    outputs: Vec<Option<BitRows>>,
    started: bool,
    ended: bool,
}

impl EvaluationBatch {
    /// Joins evaluations that have not begun.
    #[must_use]
    pub fn new(evaluations: Vec<Evaluation>) -> Self {
        let outputs = evaluations.iter().map(|_| None).collect();
        Self { evaluations, outputs, started: false, ended: false }
    }

    fn advance(&mut self, received: Option<&[u8]>) -> Result<Step<Vec<BitRows>>, Error> {
        if self.ended {
            return Err(Misuse::Ended.into());
        }
        if self.started != received.is_some() {
            return Err(Misuse::OutOfTurn.into());
        }
        self.started = true;
        let mut rest = received.unwrap_or_default();
        let last = self.evaluations.iter().rposition(|evaluation| evaluation.expects().is_some());
        let mut message = Vec::new();
        for (number, (evaluation, output)) in self.evaluations.iter_mut().zip(&mut self.outputs).enumerate() {
            if output.is_some() {
                continue;
            }
            // The last one takes all that is left, so that a wrong length shows there.
            let own = match evaluation.expects() {
                Some(due) if Some(number) != last => rest.split_off(..due.min(rest.len())).unwrap_or_default(),
                _ => std::mem::take(&mut rest),
            };
            match evaluation.round(received.map(|_| own))? {
                Step::Send(bytes) => message.extend_from_slice(&bytes),
                Step::Done(rows) => *output = Some(rows),
            }
        }
        if self.outputs.iter().any(Option::is_none) {
            return Ok(Step::Send(message));
        }
        self.ended = true;
        Ok(Step::Done(self.outputs.iter_mut().filter_map(Option::take).collect()))
    }
}

impl Rounds for EvaluationBatch {
    type Output = Vec<BitRows>;

    fn round(&mut self, received: Option<&[u8]>) -> Result<Step<Vec<BitRows>>, Error> {
        self.advance(received).inspect_err(|_| {
            self.ended = true;
            self.evaluations.clear();
            self.outputs.clear();
        })
    }

    fn expects(&self) -> Option<usize> {
        self.evaluations.iter().filter_map(Evaluation::expects).reduce(|sum, bytes| sum + bytes)
    }
}

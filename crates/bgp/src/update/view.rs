//! A borrowed UPDATE: sections found and checked, nothing copied.

use crate::{MessageError, Problem, SessionParams};

/// An UPDATE whose sections are found and whose contents are checked, borrowed from the message.
#[derive(Clone, Debug)]
pub struct UpdateView<'a> {
    withdrawn: &'a [u8],
    attributes: &'a [u8],
    announced: &'a [u8],
    problems: Vec<Problem>,
}

impl<'a> UpdateView<'a> {
    /// Decodes and checks the body of an UPDATE, after its header.
    pub fn decode(_body: &'a [u8], _params: &SessionParams) -> Result<Self, MessageError> {
        todo!()
    }

    /// What is wrong, in wire order.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        let _ = (self.withdrawn, self.attributes, self.announced);
        &self.problems
    }

    /// Appends the whole message, header included, written from its parts.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        todo!()
    }
}

//! The description of a laboratory, for `wayleave lab` and `wayleave check`.

use wayleave_lab::overlay::plan::{Mistake, Plan};

use super::check::Checked;
use super::{Fault, Source};
use crate::failure::{Failures, Outcome};

/// The section that shows that a file describes a laboratory.
pub const SECTION: &str = "lab";

/// Reads a description.
pub fn read(source: &Source) -> Outcome<Plan> {
    Plan::parse(&source.text).map_err(|mistakes| {
        let fault = |Mistake { span, message, help }| source.failure(Fault { span, message, help });
        Failures(mistakes.into_iter().map(fault).collect())
    })
}

/// What is wrong with a description.
pub(super) fn checked(source: &Source) -> Checked {
    match read(source) {
        Ok(_) => Checked::found("lab", source, Vec::new(), Vec::new()),
        Err(failures) => Checked::wrong("lab", failures),
    }
}

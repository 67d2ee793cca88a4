//! What is wrong in a file that is imported: all of it, with places.

use std::fmt;

use super::Place;

/// Faults that are shown; the rest is counted.
const MOST_SHOWN: usize = 20;

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportFault {
    pub place: Place,
    pub message: String,
}

impl ImportFault {
    pub(super) fn new(place: &Place, message: impl Into<String>) -> Self {
        Self { place: place.clone(), message: message.into() }
    }
}

/// As it follows a file's name: `:12: clients[3].asn: ...`.
impl fmt::Display for ImportFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.place.line {
            write!(f, ":{line}")?;
        }
        if !self.place.path.is_empty() {
            write!(f, ": {}", self.place.path)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// The faults of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    first: Vec<ImportFault>,
    count: usize,
}

impl Faults {
    pub(super) fn push(&mut self, fault: ImportFault) {
        self.count += 1;
        if self.first.len() < MOST_SHOWN {
            self.first.push(fault);
        }
    }

    pub(super) fn at(&mut self, place: &Place, message: impl Into<String>) {
        self.push(ImportFault::new(place, message));
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many there are, those that are not shown as well.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Those that are shown.
    pub fn shown(&self) -> &[ImportFault] {
        &self.first
    }
}

//! How often a verifier checks the RSA signature of an origin's statement, and which statements it remembers.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use wayleave_core::Asn;

/// Statements of one origin that are remembered: our own limit.
const MOST: usize = 256;

/// How often a verifier checks the origin's RSA signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginStatement {
    EachTime,
    /// Once for each new statement, which is the same in up to Sigma UPDATEs of an origin.
    Remembered,
    /// The same, and an origin's earlier statements are remembered too. UPDATEs that come a second time then cost what the
    /// paper's equation (1) counts, which includes no RSA.
    AllRemembered,
}

/// VerifiedStatements statements by origin.
pub struct VerifiedStatements<S> {
    most: usize,
    of: RefCell<HashMap<Asn, VecDeque<S>>>,
}

impl<S> VerifiedStatements<S> {
    #[must_use]
    pub fn new(statement: OriginStatement) -> Self {
        let most = match statement {
            OriginStatement::EachTime => 0,
            OriginStatement::Remembered => 1,
            OriginStatement::AllRemembered => MOST,
        };
        Self { most, of: RefCell::default() }
    }

    /// Whether this statement of `origin` was verified before.
    pub fn contains(&self, origin: Asn, same: impl FnMut(&S) -> bool) -> bool {
        self.of.borrow().get(&origin).is_some_and(|statements| statements.iter().any(same))
    }

    /// Remembers a statement of `origin` that the caller has verified, in place of the oldest if there is no room.
    pub fn add(&self, origin: Asn, statement: S) {
        if self.most == 0 {
            return;
        }
        let mut of = self.of.borrow_mut();
        let statements = of.entry(origin).or_default();
        if statements.len() == self.most {
            statements.pop_back();
        }
        statements.push_front(statement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_statements_are_known_as_are_to_be_remembered() {
        for (statement, known) in
            [(OriginStatement::EachTime, 0), (OriginStatement::Remembered, 1), (OriginStatement::AllRemembered, MOST)]
        {
            let verified = VerifiedStatements::new(statement);
            (0..2 * MOST).for_each(|number| verified.add(Asn(1), number));
            let has = |number: &usize| verified.contains(Asn(1), |one| one == number);
            assert_eq!((0..2 * MOST).filter(has).count(), known);
            assert!(known == 0 || has(&(2 * MOST - 1)));
            assert!(!verified.contains(Asn(2), |_| true));
        }
    }
}

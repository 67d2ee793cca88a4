//! A statement for one who pays, as the provider signs it: what it is held against later.

use wayleave_core::wire::{Ascii, List16, List32};
use wayleave_crypto::signed::{Object, SIGNATURE};

use super::billing::{MAX_PRICE, PriceTag};
use super::percentile::Percentile;
use super::terms::Terms;
use super::usage::{RouterNumber, Usage};

/// Routers that a statement names, at most, and lines that it has.
const MAX_GAPS: usize = 4_096;
pub const MAX_LINES: usize = 100_000;
/// Price tags that it has.
pub const MAX_PRICE_TAGS: usize = 4_096;
/// Months of which it has a percentile.
pub const MAX_PERCENTILES: usize = 1_024;
/// Octets of a zone's name, at most.
const ZONE: usize = 255;

wayleave_core::wire! {
    /// What was sent under one capability in a month, or came late on a day.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub struct StatementLine {
        pub delegation: Option<u32>,
        pub sub_delegation: Option<u32>,
        /// The month in which its key epochs began, in Unix seconds; of what came late, the day on which it was reported.
        pub begins: u64,
        pub ends: u64,
        /// It was reported after the time of an earlier statement had been closed.
        pub is_late: bool,
        pub usage: Usage,
    }

    /// A router that had not confirmed, when time was closed, that all of that time is reported.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct StatementGap {
        pub router: RouterNumber,
        /// Up to which Unix second it had; zero if it never had.
        pub confirmed: u64,
    }

    /// A statement for one who pays.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Statement {
        /// The zone of the provider's key servers.
        pub zone: String as Ascii<ZONE>,
        pub number: u64,
        pub principal: u32,
        /// Which of the owners that its number had one after the other, from 0.
        pub owner: u8,
        /// It has key epochs that had ended (three of their lengths after they began) before the second of these Unix seconds, and are on no
        /// earlier statement: the first is that up to which the one before closed time.
        pub after: u64,
        pub before: u64,
        /// The Unix second at which it was made.
        pub made: u64,
        pub gaps: Vec<StatementGap> as List16<MAX_GAPS>,
        /// In ascending order.
        pub lines: Vec<StatementLine> as List32<MAX_LINES>,
        /// Price tags of the account and of its grants that were in force in the months of the lines and before `before`.
        pub prices: Vec<PriceTag> as List16<MAX_PRICE_TAGS>,
        /// The 95th percentiles of the months that ended in its time, in samples of five minutes.
        pub percentiles: Vec<Percentile> as List16<MAX_PERCENTILES>,
    }
}

impl Object for Statement {
    const LABEL: &'static str = "wayleave/capability/statement/v2";
    /// A line has 59 octets at most.
    const MAX: usize = 1
        + 1
        + ZONE
        + 8
        + 4
        + 1
        + 3 * 8
        + 2
        + MAX_GAPS * 10
        + 4
        + MAX_LINES * 59
        + 2
        + MAX_PRICE_TAGS * (1 + Terms::MAX + 1 + MAX_PRICE + 8 + 9)
        + 2
        + MAX_PERCENTILES * 29
        + SIGNATURE;
}

impl Statement {
    /// All that was sent.
    #[must_use]
    pub fn total(&self) -> Usage {
        self.lines.iter().fold(Usage::default(), |sum, line| sum.plus(line.usage))
    }
}

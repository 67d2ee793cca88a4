//! The messages between a provider's routers and its key server: usage, lists of revocations, leases of rates.
//!
//! A link carries each inside a record with its length. `docs/wire/capabilities.md` says where every octet lies. Everything that is
//! counted is bounded before it is allocated, and nothing may be left over.

use std::fmt;

use wayleave_core::wire::{Blob, Codec, List16, Malformed, Reader, Wire, Writer};
use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::sources::Sources;

use super::codecs::PrincipalCodec;
use super::position::Position;
use super::refusals::RefusalReport;
use super::usage::{JournalId, MAX_ENTRIES, UsageAnswer, UsageRefusal, UsageReport};
use crate::leases::{LeaseAnswer, LeaseRequest, Offline};

/// The version of every message.
pub(super) const VERSION: u8 = 1;
/// Octets of the longest message.
pub const MAX_MESSAGE: usize = 1 << 20;
/// Octets of a list of revocations in one message.
pub(super) const PIECE: usize = 256 << 10;
/// Octets of the longest list of revocations, with its signature.
pub const MAX_LIST: usize = 64 << 20;
/// Rates that routers share, at most.
pub const MAX_RATES: usize = 256;

wayleave_core::wire! {
    /// An account as routers store it: a principal, its delegation, a key epoch. The server adds up by it and does not read it.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct ChargedAccount(pub [u8; Self::LENGTH]);
}

impl ChargedAccount {
    pub const LENGTH: usize = 15;
}

/// Who has a rate or sources: a principal with all its delegations, or one delegation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RatePayer {
    pub principal: Principal,
    pub delegation: Option<DelegationId>,
}

impl From<&Sources> for RatePayer {
    fn from(sources: &Sources) -> Self {
        Self { principal: sources.principal, delegation: sources.delegation }
    }
}

impl RateTerms {
    /// Octets a second or at once, at most.
    pub const MOST: u64 = 1 << 40;
    /// Octets at once, at least: a common packet.
    pub const LEAST_BURST: u64 = 1_500;

    /// Whether the numbers make sense: at least an octet a second, and a common packet at once.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_burst = self.burst == 0 || (Self::LEAST_BURST..=Self::MOST).contains(&self.burst);
        (1..=Self::MOST).contains(&self.rate) && is_burst
    }
}

impl fmt::Display for RatePayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "principal {}", self.principal.number())?;
        self.delegation.map_or(Ok(()), |id| write!(f, " with delegation {}", id.number()))
    }
}

wayleave_core::wire! {
    /// A rate of all routers together.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RateTerms {
        /// Octets a second.
        pub rate: u64,
        /// Octets at once at each router; zero leaves it to the router.
        pub burst: u64,
        pub offline: Offline,
    }

    /// A rate that routers share, as the server told it.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub struct SharedRate {
        pub payer: RatePayer,
        /// Octets a second, of all routers together.
        pub rate: u64,
        pub routers: u16,
        pub offline: Offline,
    }

    /// A message. Types 8 to 15 were those of replicas and of rates that routers had themselves, 6 and 7 of shares from a server that was alone,
    /// 17 a router's wish for rates, which earlier versions had.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum ChannelMessage: "a message's type", Self::check {
        /// A router reports totals.
        1 = Report(UsageReport<ChargedAccount> as ReportCodec),
        /// The server has everything that the router counted up to this Unix second by the router's clock.
        16 = Confirm {
            through: u64,
        },
        /// The totals of a report are durable.
        2 = Answer(UsageAnswer),
        /// The report with this number is not taken.
        3 = Refused {
            number: u64,
            why: UsageRefusal,
        },
        /// Of the report with this number, whose answer follows, these entries are not taken, by their places: who pays for them has as many
        /// records as one may have.
        19 = Untaken {
            number: u64,
            entries: Vec<u16> as List16<MAX_ENTRIES>,
        },
        /// A router has the list of revocations with this number, or none, and wants each later one.
        4 = Follow {
            list: Option<u64> as NumberCodec,
        },
        /// A part of the signed list: its octets from `offset` on, of `length` in all.
        5 = Piece {
            length: u32,
            offset: u32,
            octets: Vec<u8> as Blob<PIECE>,
        },
        /// This server leases rates, in the term with this epoch, until there is one with a higher epoch.
        20 = Lessor {
            epoch: u64,
        },
        /// A router asks the lessor of this epoch for its shares of rates. An empty one says to a lessor of a lower epoch which one the router
        /// has heard of.
        21 = Ask {
            epoch: u64,
            requests: Vec<(SharedRate, LeaseRequest)> as List16<MAX_RATES>,
        },
        22 = Leased {
            epoch: u64,
            answers: Vec<(RatePayer, LeaseAnswer)> as List16<MAX_RATES>,
        },
        /// A router wants to be told the rates that routers share, now and whenever they change, if the server's database continues what
        /// it has seen.
        23 = Watch {
            seen: Position,
        },
        /// The database continues what the router has seen, and is at this change.
        24 = Continues {
            position: Position,
        },
        /// It does not: it ends with this change, and was set back, or is another one. The router is told nothing.
        25 = Lacks {
            position: Position,
        },
        /// What the router refused, in the place of what it reported before. Nobody answers.
        26 = Refusals(RefusalReport),
        /// All rates that routers share, in the place of those that were told before; each with its burst in octets, which zero leaves to
        /// the router.
        18 = Rates(Vec<(SharedRate, u64)> as List16<MAX_RATES>),
    }
}

impl ChannelMessage {
    /// Writes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write(out.u8(VERSION));
        out.finish()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(octets);
        let version = from.u8()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let message = Self::read(&mut from)?;
        from.end()?;
        Ok(message)
    }

    /// A part of a list lies in it.
    fn check(&self) -> Result<(), Malformed> {
        let Self::Piece { length, offset, octets } = self else { return Ok(()) };
        let end = u64::from(*offset) + octets.len() as u64;
        let is_part = *length as usize <= MAX_LIST && end <= u64::from(*length) && !octets.is_empty();
        if is_part { Ok(()) } else { Err(Malformed::Value("a part of a list")) }
    }
}

/// Journal, number, and each account with its total.
struct ReportCodec;

impl Codec<UsageReport<ChargedAccount>> for ReportCodec {
    const LEAST: usize = 16 + 8 + 2;

    fn write(report: &UsageReport<ChargedAccount>, out: &mut Writer) {
        report.journal.write(out);
        List16::<MAX_ENTRIES>::write(&report.entries, out.u64(report.number));
    }

    fn read(from: &mut Reader<'_>) -> Result<UsageReport<ChargedAccount>, Malformed> {
        let (journal, number) = (JournalId::read(from)?, from.u64()?);
        Ok(UsageReport { journal, number, entries: List16::<MAX_ENTRIES>::read(from)? })
    }
}

/// Whether there is a number (0 or 1), and the number or zero.
struct NumberCodec;

impl Codec<Option<u64>> for NumberCodec {
    const LEAST: usize = 1 + 8;

    fn write(value: &Option<u64>, out: &mut Writer) {
        out.bool(value.is_some()).u64(value.unwrap_or(0));
    }

    fn read(from: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
        match (from.bool()?, from.u64()?) {
            (true, number) => Ok(Some(number)),
            (false, 0) => Ok(None),
            (false, _) => Err(Malformed::Value("the number of no list")),
        }
    }
}

/// The principal's number (3 octets), whether there is a delegation, its number or zero (4).
impl Wire for RatePayer {
    const LEAST: usize = 3 + 1 + 4;

    fn write(&self, out: &mut Writer) {
        PrincipalCodec::write(&self.principal, out);
        out.bool(self.delegation.is_some()).u32(self.delegation.map_or(0, DelegationId::number));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let principal = PrincipalCodec::read(from)?;
        let delegation = match (from.bool()?, from.u32()?) {
            (false, 0) => None,
            (true, number) => Some(DelegationId::new(number).ok_or(Malformed::Value("a delegation"))?),
            (false, _) => return Err(Malformed::Value("the number of no delegation")),
        };
        Ok(Self { principal, delegation })
    }
}

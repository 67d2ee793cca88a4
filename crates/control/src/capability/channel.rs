//! The messages between a provider's routers and its key server (usage, lists of revocations, leases of rates), and between a replica
//! and the writer (changes of the records).
//!
//! A link carries each inside a record with its length. `docs/wire/capabilities.md` says where every octet lies. Everything that is
//! counted is bounded before it is allocated, and nothing may be left over.

use wayleave_packet::platypus::header::{DelegationId, Principal};

use super::state::{Change, MAX_PIECE, MAX_PIECES, SnapshotHead};
use super::usage::{JournalId, MAX_ENTRIES, Usage, UsageAnswer, UsageRefusal, UsageReport};
use crate::leases::{LeaseAnswer, LeaseRequest};
use crate::signed::Object as _;
use crate::wire::{Malformed, Reader, Writer};

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

/// Changes in one message, and their octets, about.
pub const MAX_CHANGES: usize = 1_024;
pub const CHANGES: usize = 256 << 10;

/// Octets of an account's total in a report.
const TOTAL: usize = ChargedAccount::LENGTH + 32;
/// Octets of a payer.
const PAYER: usize = 8;

/// An account as routers store it: a principal, its delegation, a key epoch. The server adds up by it and does not read it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChargedAccount(pub [u8; Self::LENGTH]);

impl ChargedAccount {
    pub const LENGTH: usize = 15;
}

/// Who has a rate: a principal with all its delegations, or one delegation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RatePayer {
    pub principal: Principal,
    pub delegation: Option<DelegationId>,
}

/// A rate that routers share, as both ends have it in their configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SharedRate {
    pub payer: RatePayer,
    /// Octets a second, of all routers together.
    pub rate: u64,
    pub routers: u16,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChannelMessage {
    /// A router reports totals.
    Report(UsageReport<ChargedAccount>),
    /// The server has everything that the router counted up to this Unix second by the router's clock.
    Confirm {
        through: u64,
    },
    /// The totals of a report are durable.
    Answer(UsageAnswer),
    /// The report with this number is not taken.
    Refused {
        number: u64,
        why: UsageRefusal,
    },
    /// A router has the list of revocations with this number, or none, and wants each later one.
    Follow {
        list: Option<u64>,
    },
    /// A part of the signed list: its octets from `offset` on, of `length` in all.
    Piece {
        length: u32,
        offset: u32,
        octets: Vec<u8>,
    },
    /// A router asks for its shares of rates.
    Ask(Vec<(SharedRate, LeaseRequest)>),
    Leased(Vec<(RatePayer, LeaseAnswer)>),
    /// The server has another rate for this payer, or another number of routers; zero for none.
    Differs(SharedRate),
    /// A replica has the changes up to this number, and wants the next ones as soon as there are any.
    Copy {
        after: u64,
    },
    /// Signed changes, in order.
    Changes(Vec<Vec<u8>>),
    /// A replica's records begin with the snapshot of this change; zero for none. It wants a later one, if there is any.
    Holds {
        snapshot: u64,
    },
    /// The signed head of the snapshot that the writer's records begin with.
    Snapshot(Vec<u8>),
    /// A replica wants a piece of the snapshot of this change.
    Fetch {
        number: u64,
        piece: u16,
    },
    /// The piece.
    SnapshotPiece {
        number: u64,
        piece: u16,
        octets: Vec<u8>,
    },
    /// The last change of the records that a replica copies, and its digest: what comes first on a link, so that the replica sees whether
    /// these records were set back.
    End {
        number: u64,
        last: [u8; 32],
    },
}

impl ChannelMessage {
    /// Writes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(VERSION).u8(self.code());
        match self {
            Self::Report(report) => {
                out.bytes(&report.journal.0).u64(report.number).list(&report.entries, |out, (account, total)| {
                    out.bytes(&account.0).bytes(&total.packets.to_be_bytes()).bytes(&total.octets.to_be_bytes());
                });
            }
            Self::Confirm { through } => {
                out.u64(*through);
            }
            Self::Answer(answer) => {
                out.u64(answer.number).bool(answer.is_behind);
            }
            Self::Refused { number, why } => {
                out.u64(*number).u8(refusal_code(*why));
            }
            Self::Follow { list } => {
                out.bool(list.is_some()).u64(list.unwrap_or(0));
            }
            Self::Piece { length, offset, octets } => {
                out.u32(*length).u32(*offset).blob(octets);
            }
            Self::Ask(requests) => {
                out.list(requests, |out, (rate, request)| {
                    write_rate(out, rate);
                    out.u64(request.session).u64(request.number).u64(request.uses).u64(request.demand);
                });
            }
            Self::Leased(answers) => {
                out.list(answers, |out, (payer, answer)| {
                    write_payer(out, payer);
                    out.u64(answer.session).u64(answer.number).u64(answer.share);
                });
            }
            Self::Differs(rate) => write_rate(&mut out, rate),
            Self::Copy { after } => {
                out.u64(*after);
            }
            Self::Changes(changes) => {
                out.list(changes, |out, change| {
                    out.blob(change);
                });
            }
            Self::Holds { snapshot } => {
                out.u64(*snapshot);
            }
            Self::Snapshot(head) => {
                out.blob(head);
            }
            Self::Fetch { number, piece } => {
                out.u64(*number).u16(*piece);
            }
            Self::SnapshotPiece { number, piece, octets } => {
                out.u64(*number).u16(*piece).blob(octets);
            }
            Self::End { number, last } => {
                out.u64(*number).bytes(last);
            }
        }
        out.finish()
    }

    fn code(&self) -> u8 {
        match self {
            Self::Report(_) => 1,
            Self::Answer(_) => 2,
            Self::Refused { .. } => 3,
            Self::Follow { .. } => 4,
            Self::Piece { .. } => 5,
            Self::Ask(_) => 6,
            Self::Leased(_) => 7,
            Self::Differs(_) => 8,
            Self::Copy { .. } => 9,
            Self::Changes(_) => 10,
            Self::Holds { .. } => 11,
            Self::Snapshot(_) => 12,
            Self::Fetch { .. } => 13,
            Self::SnapshotPiece { .. } => 14,
            Self::End { .. } => 15,
            Self::Confirm { .. } => 16,
        }
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
        let message = match from.u8()? {
            1 => Self::Report(UsageReport {
                journal: JournalId(from.array()?),
                number: from.u64()?,
                entries: from.list(TOTAL, MAX_ENTRIES, |from| {
                    let account = ChargedAccount(from.array()?);
                    let (packets, octets) = (read_u128(from)?, read_u128(from)?);
                    Ok((account, Usage { packets, octets }))
                })?,
            }),
            2 => Self::Answer(UsageAnswer { number: from.u64()?, is_behind: from.bool()? }),
            3 => Self::Refused { number: from.u64()?, why: read_refusal(from.u8()?)? },
            4 => {
                let (is_there, number) = (from.bool()?, from.u64()?);
                if !is_there && number != 0 {
                    return Err(Malformed::Value("the number of no list"));
                }
                Self::Follow { list: is_there.then_some(number) }
            }
            5 => read_piece(&mut from)?,
            6 => Self::Ask(from.list(PAYER + 42, MAX_RATES, |from| {
                let rate = read_rate(from)?;
                let (session, number, uses, demand) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
                Ok((rate, LeaseRequest { session, number, uses, demand }))
            })?),
            7 => Self::Leased(from.list(PAYER + 24, MAX_RATES, |from| {
                let payer = read_payer(from)?;
                Ok((payer, LeaseAnswer { session: from.u64()?, number: from.u64()?, share: from.u64()? }))
            })?),
            8 => Self::Differs(read_rate(&mut from)?),
            9 => Self::Copy { after: from.u64()? },
            10 => Self::Changes(from.list(4, MAX_CHANGES, |from| Ok(from.blob(Change::MAX)?.to_vec()))?),
            11 => Self::Holds { snapshot: from.u64()? },
            12 => Self::Snapshot(from.blob(SnapshotHead::MAX)?.to_vec()),
            13 => Self::Fetch { number: from.u64()?, piece: read_index(&mut from)? },
            14 => {
                let (number, piece) = (from.u64()?, read_index(&mut from)?);
                Self::SnapshotPiece { number, piece, octets: from.blob(MAX_PIECE)?.to_vec() }
            }
            15 => Self::End { number: from.u64()?, last: from.array()? },
            16 => Self::Confirm { through: from.u64()? },
            _ => return Err(Malformed::Value("a message's type")),
        };
        from.end()?;
        Ok(message)
    }
}

fn read_piece(from: &mut Reader<'_>) -> Result<ChannelMessage, Malformed> {
    let (length, offset) = (from.u32()?, from.u32()?);
    let octets = from.blob(PIECE)?.to_vec();
    let end = u64::from(offset) + octets.len() as u64;
    if length as usize > MAX_LIST || end > u64::from(length) || octets.is_empty() {
        return Err(Malformed::Value("a part of a list"));
    }
    Ok(ChannelMessage::Piece { length, offset, octets })
}

fn read_index(from: &mut Reader<'_>) -> Result<u16, Malformed> {
    let index = from.u16()?;
    if usize::from(index) < MAX_PIECES { Ok(index) } else { Err(Malformed::Value("the index of a piece")) }
}

fn read_u128(from: &mut Reader<'_>) -> Result<u128, Malformed> {
    from.array().map(u128::from_be_bytes)
}

fn refusal_code(why: UsageRefusal) -> u8 {
    match why {
        UsageRefusal::TooLong => 1,
        UsageRefusal::TooManyJournals => 2,
        UsageRefusal::NoRoom => 3,
    }
}

fn read_refusal(code: u8) -> Result<UsageRefusal, Malformed> {
    match code {
        1 => Ok(UsageRefusal::TooLong),
        2 => Ok(UsageRefusal::TooManyJournals),
        3 => Ok(UsageRefusal::NoRoom),
        _ => Err(Malformed::Value("a refusal")),
    }
}

fn write_rate(out: &mut Writer, rate: &SharedRate) {
    write_payer(out, &rate.payer);
    out.u64(rate.rate).u16(rate.routers);
}

fn read_rate(from: &mut Reader<'_>) -> Result<SharedRate, Malformed> {
    Ok(SharedRate { payer: read_payer(from)?, rate: from.u64()?, routers: from.u16()? })
}

/// The principal's number (3 octets), whether there is a delegation, its number or zero (4).
fn write_payer(out: &mut Writer, payer: &RatePayer) {
    out.bytes(&payer.principal.octets()).bool(payer.delegation.is_some());
    out.u32(payer.delegation.map_or(0, DelegationId::number));
}

fn read_payer(from: &mut Reader<'_>) -> Result<RatePayer, Malformed> {
    let [a, b, c] = from.array()?;
    let principal = Principal::new(u32::from_be_bytes([0, a, b, c])).ok_or(Malformed::Value("a principal"))?;
    let (is_there, number) = (from.bool()?, from.u32()?);
    let delegation = match (is_there, number) {
        (false, 0) => None,
        (true, number) => Some(DelegationId::new(number).ok_or(Malformed::Value("a delegation"))?),
        (false, _) => return Err(Malformed::Value("the number of no delegation")),
    };
    Ok(RatePayer { principal, delegation })
}

//! The journal of accounts: records appended to a file, and read back after a crash.
//!
//! A record is a whole total, so that reading it twice, or reading an old one after a new one, counts nothing twice. It
//! ends with a sum over its octets: a record that a crash cut off or left half written is not read, nor what follows it. The driver appends once a second and syncs, so that after `kill -9` a total is at most that second's packets too low,
//! and never too high.
//!
//! | octets | |
//! |---|---|
//! | 3 | principal |
//! | 1 | 0x80: delegated; 0x40: sub-delegated; lower five bits: the interval, 0 in version 0 |
//! | 3 | delegation ID, or zero |
//! | 3 | sub-delegation ID, or zero |
//! | 4 | epoch; the key ID in version 0 |
//! | 16 | packets |
//! | 16 | octets |
//! | 8 | the first octets of SHA-256 of (`wayleave/platypus/journal/v1`, the 46 octets before), each with its length in front (8) |

use wayleave_crypto::hash;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::verify::Charge;

use crate::tally::Total;

/// Octets of a record.
pub const RECORD: usize = BODY + SUM;
const BODY: usize = 46;
const SUM: usize = 8;
const LABEL: &str = "wayleave/platypus/journal/v1";
const DELEGATED: u8 = 0x80;
const SUB_DELEGATED: u8 = 0x40;
const INTERVAL: u8 = 0x1f;

/// Appends a record for each of `totals`.
pub fn append(out: &mut Vec<u8>, totals: &[(Charge, Total)]) {
    out.reserve(totals.len() * RECORD);
    for (charge, total) in totals {
        let begin = out.len();
        let (id, sub) = charge.delegation.map_or((None, None), |(id, sub)| (Some(id), sub));
        let flags = if id.is_some() { DELEGATED } else { 0 } | if sub.is_some() { SUB_DELEGATED } else { 0 };
        out.extend(charge.principal.octets());
        out.push(flags | charge.interval.map_or(0, Interval::exponent));
        out.extend(id.unwrap_or_default().octets());
        out.extend(sub.unwrap_or_default().octets());
        out.extend(charge.epoch.to_be_bytes());
        out.extend(total.packets.to_be_bytes());
        out.extend(total.octets.to_be_bytes());
        let sum = sum(&out[begin..]);
        out.extend(sum);
    }
}

/// The records of a journal, in order, up to the first one that is not whole; and how many octets they take. The file is cut
/// there before more is appended.
#[must_use]
pub fn read(journal: &[u8]) -> (Vec<(Charge, Total)>, usize) {
    let (records, _) = journal.as_chunks::<RECORD>();
    let found: Vec<(Charge, Total)> = records.iter().map_while(decode).collect();
    let length = found.len() * RECORD;
    (found, length)
}

fn decode(record: &[u8; RECORD]) -> Option<(Charge, Total)> {
    let (body, end) = record.split_first_chunk::<BODY>()?;
    if sum(body) != end {
        return None;
    }
    let three = |at: usize| u32::from_be_bytes([0, body[at], body[at + 1], body[at + 2]]);
    let sixteen = |at: usize| u128::from_be_bytes(std::array::from_fn(|i| body[at + i]));
    let flags = body[3];
    let sub = if flags & SUB_DELEGATED != 0 { Some(DelegationId::new(three(7))?) } else { None };
    let delegation = if flags & DELEGATED != 0 { Some((DelegationId::new(three(4))?, sub)) } else { None };
    let charge = Charge {
        principal: Principal::new(three(0))?,
        delegation,
        interval: Interval::new(flags & INTERVAL),
        epoch: u32::from_be_bytes([body[10], body[11], body[12], body[13]]),
    };
    Some((charge, Total { packets: sixteen(14), octets: sixteen(30) }))
}

fn sum(body: &[u8]) -> [u8; SUM] {
    let whole = hash::hash(LABEL, &[body]);
    std::array::from_fn(|i| whole[i])
}

#[cfg(test)]
mod tests {
    //! PLA, journal: a journal of accounts cut or spoilt at every octet of a second's records: no total over, none more
    //! than a second under.

    use wayleave_core::Instant;

    use super::super::account::{Accounts, ChargeOutcome};
    use super::*;

    fn charge(number: u64) -> Charge {
        let id = |n: u64| DelegationId::new(n as u32 % 5).expect("24 bits");
        Charge {
            principal: Principal::new(number as u32 % 3).expect("24 bits"),
            delegation: (!number.is_multiple_of(4))
                .then(|| (id(number), number.is_multiple_of(3).then(|| id(number + 1)))),
            interval: (!number.is_multiple_of(7)).then_some(Interval::SHORTEST),
            epoch: 112_202_550 + number as u32 % 2,
        }
    }

    /// A router that journals once a second is cut off at every octet of its last second's records, or has any octet of them
    /// spoilt. What it reads back is what it had counted a second before, or since then, for every account.
    #[test]
    fn wherever_a_journal_is_cut_no_total_is_over_and_none_is_more_than_a_second_under() {
        let mut accounts = Accounts::new(400, 1);
        let (mut journal, mut state) = (Vec::new(), 1u64);
        let names: Vec<Charge> = (0..84).map(charge).collect();
        let totals = |accounts: &Accounts| names.iter().map(|name| accounts.total(name)).collect::<Vec<_>>();
        for second in 0..20u64 {
            let before = totals(&accounts);
            let synced = journal.len();
            for packet in 0..200 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let now = Instant(second * 1_000_000_000 + packet);
                let charged = accounts.charge(&charge(state >> 40), 20 + (state >> 32) % 1_480, now);
                assert_eq!(charged, ChargeOutcome::Charged);
            }
            let after = totals(&accounts);
            append(&mut journal, &accounts.journal());
            let step = if second < 2 { 1 } else { 97 };
            for cut in (synced..=journal.len()).step_by(step) {
                let mut spoilt = journal.clone();
                if let Some(octet) = spoilt.get_mut(cut) {
                    *octet ^= 1 << (cut % 8);
                }
                for left in [&journal[..cut], &spoilt[..]] {
                    let (records, length) = read(left);
                    assert!(length >= synced && length <= left.len() && length % RECORD == 0);
                    let mut restored = Accounts::new(100, 2);
                    restored.restore(records);
                    for ((now, before), after) in totals(&restored).iter().zip(&before).zip(&after) {
                        assert!(now == before || now == after, "{now:?} is neither {before:?} nor {after:?}");
                    }
                }
            }
        }
        // A router that starts again from its journal goes on from there, and its own journal says no less.
        let mut restored = Accounts::new(100, 2);
        restored.restore(read(&journal).0);
        assert_eq!(totals(&restored), totals(&accounts));
        assert_eq!(restored.charge(&charge(1), 100, Instant(0)), ChargeOutcome::Charged);
        append(&mut journal, &restored.journal());
        accounts.restore(read(&journal).0);
        assert_eq!(totals(&accounts), totals(&restored));
    }
}

//! Routers that report and confirm anything to a key server that closes and folds time and starts again from its store: no total falls,
//! what is closed never changes, no payer has more records than one may have, and store and memory agree.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use wayleave_control::capability::{ChargedAccount, Fold, JournalId, Ledger, Usage, UsageRecord, UsageReport};

type Stored = BTreeMap<(u16, JournalId, ChargedAccount), Usage>;

/// Records of one payer, at most; beyond three of them sums are without delegations.
const LIMIT: usize = 30;

/// `closed` is the second up to which time is closed, and the number of the statement.
fn restored(stored: &Stored, closed: (u64, u64), confirmed: &BTreeMap<u16, u64>) -> Ledger<ChargedAccount> {
    let mut ledger = Ledger::new(LIMIT).with_calendar(ChargedAccount::CALENDAR, closed);
    confirmed.iter().for_each(|(router, second)| ledger.restore_confirmed(*router, *second));
    for ((router, journal, account), total) in stored {
        ledger.restore(&UsageRecord { router: *router, journal: *journal, account: *account, total: *total });
    }
    ledger
}

/// Packets by payer and month, whatever is folded, and with delegations or without.
fn bills(ledger: &Ledger<ChargedAccount>) -> BTreeMap<ChargedAccount, u128> {
    let mut bills = BTreeMap::new();
    for (account, sum) in ledger.sums() {
        let bill: &mut u128 = bills.entry(account.sum(0).coarse()).or_default();
        *bill = bill.saturating_add(sum.packets);
    }
    bills
}

/// Folds what is closed, as far as at most so many totals are looked at, or all of it.
fn fold(ledger: &mut Ledger<ChargedAccount>, stored: &mut Stored, most: Option<usize>) {
    while let Some(Fold { changed, removed }) = ledger.fold(most.unwrap_or(usize::MAX)) {
        for UsageRecord { router, journal, account, total } in changed {
            stored.insert((router, journal, account), total);
        }
        for key in removed {
            assert!(stored.remove(&key).is_some());
        }
        if most.is_some() {
            return;
        }
    }
}

/// How many records that are no sums each payer has.
fn counts(stored: &Stored) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for (_, _, account) in stored.keys().filter(|(_, journal, _)| !journal.is_of_sums()) {
        *counts.entry(account.principal()).or_default() += 1;
    }
    counts
}

/// The sums of a statement.
fn sums_of(stored: &Stored, statement: u64) -> Stored {
    let is_of = |(_, journal, _): &(u16, JournalId, ChargedAccount)| journal.statement() == Some(statement);
    stored.iter().filter(|(key, _)| is_of(key)).map(|(key, total)| (*key, *total)).collect()
}

fuzz_target!(|data: &[u8]| {
    let (mut stored, mut closed, mut confirmed) = (Stored::new(), (0, 0), BTreeMap::new());
    // The last statement that was complete, and its sums.
    let mut complete = (0, Stored::new());
    let mut ledger = restored(&stored, closed, &confirmed);
    for step in data.chunks_exact(12) {
        let before = bills(&ledger);
        match step[0] % 8 {
            0..5 => {
                // Principal, flags, delegation, interval and epoch from few values, so that they meet.
                let account = |octet: u8| {
                    let mut account = [0; ChargedAccount::LENGTH];
                    (account[2], account[3], account[6]) = (octet & 1, step[2], octet >> 1 & 1);
                    (account[10], account[13], account[14]) = (step[3] % 32, step[4], octet >> 2);
                    ChargedAccount(account)
                };
                let total = |octet: u8| Usage { packets: u128::from(octet), octets: u128::from(step[5]) };
                let entries = vec![(account(step[6]), total(step[7])), (account(step[8]), total(step[9]))];
                let journal = JournalId([step[1] % 4 * 85; 16]);
                let report = UsageReport { journal, number: u64::from(step[10]), entries };
                let router = u16::from(step[11] % 2);
                if let Ok(taken) = ledger.take(router, &report, u64::from(step[10]) << 20) {
                    for UsageRecord { router, journal, account, total } in taken.changed {
                        assert!(account.ended_at().is_none_or(|end| end > closed.0), "closed");
                        assert!(taken.is_late || account.late_since().is_none(), "late");
                        let kept = stored.entry((router, journal, account)).or_default();
                        assert!(total.packets >= kept.packets && total.octets >= kept.octets);
                        *kept = total;
                    }
                    for key in taken.removed {
                        assert!(stored.remove(&key).is_some());
                    }
                }
            }
            5 => {
                let second = u64::from(u32::from_be_bytes([0, step[1], step[2], step[3]])) << (step[4] % 16);
                if step[5] % 4 == 0 && ledger.confirm(u16::from(step[6] % 2), second) {
                    confirmed = ledger.confirmed().clone();
                } else {
                    // What was closed before is on the statement of before.
                    fold(&mut ledger, &mut stored, None);
                    assert_eq!(bills(&ledger), before, "folding changes no bill");
                    let sums = sums_of(&stored, closed.1);
                    if ledger.close(second, 0..u16::from(step[7] % 3)) {
                        complete = (closed.1, sums);
                        (closed, confirmed) = ((second, ledger.statement()), ledger.confirmed().clone());
                    }
                }
                assert_eq!((ledger.closed(), ledger.statement()), closed);
            }
            6 => {
                fold(&mut ledger, &mut stored, Some(usize::from(step[1]) + 1));
                assert_eq!(bills(&ledger), before, "folding changes no bill");
            }
            _ => {
                ledger = restored(&stored, closed, &confirmed);
                assert_eq!(bills(&ledger), before, "the store has all of it");
            }
        }
        let after = bills(&ledger);
        assert!(before.iter().all(|(account, bill)| after.get(account).is_some_and(|later| later >= bill)));
        assert_eq!(ledger.len(), stored.len());
        let counts = counts(&stored);
        assert!(counts.values().all(|count| *count <= LIMIT));
        assert!(ledger.counts().iter().filter(|(_, count)| **count > 0).eq(&counts));
        assert_eq!(sums_of(&stored, complete.0), complete.1, "a statement that is complete");
    }
});

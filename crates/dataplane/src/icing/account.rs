//! Who sends how much: totals of each account that tags name, and the rate that it is held to.
//!
//! The journal holds totals, not differences, so that a record read twice counts once.

use wayleave_core::Instant;

use super::config::Account;

const NANOS: u128 = 1_000_000_000;

/// What an account has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Total {
    /// Packets.
    pub packets: u64,
    /// Octets of packets, headers included.
    pub octets: u64,
}

#[derive(Clone, Debug)]
struct Held {
    limit: Account,
    total: Total,
    /// In the last record of the journal.
    recorded: Total,
    /// Octets times 10^9.
    credit: u128,
    last: Instant,
}

/// One core's accounts: first those of the policy, in its order, then those that it names no more.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts(Vec<Held>);

impl Accounts {
    /// Takes these accounts; the totals of accounts that were there, or restored, stay with their numbers.
    pub(super) fn set(&mut self, limits: &[Account]) {
        let mut before = std::mem::take(&mut self.0);
        for limit in limits {
            let place = before.iter().position(|held| held.limit.id == limit.id);
            let mut held = place.map_or_else(|| Held::new(*limit), |place| before.swap_remove(place));
            (held.limit, held.credit) = (*limit, held.credit.min(limit.full()));
            self.0.push(held);
        }
        self.0.append(&mut before);
    }

    /// Takes over a record of the journal, unless more is known.
    pub(super) fn restore(&mut self, id: u16, total: Total) {
        let place = self.0.iter().position(|held| held.limit.id == id);
        let place = place.unwrap_or_else(|| {
            self.0.push(Held::new(Account { id, rate: 0, depth: 0 }));
            self.0.len() - 1
        });
        let held = &mut self.0[place];
        if held.total.packets < total.packets {
            (held.total, held.recorded) = (total, total);
        }
    }

    /// Totals that changed since this was last called, by the accounts' numbers: the next records of the journal.
    pub(super) fn journal(&mut self) -> Vec<(u16, Total)> {
        let changed = self.0.iter_mut().filter(|held| held.total != held.recorded);
        changed
            .map(|held| {
                held.recorded = held.total;
                (held.limit.id, held.total)
            })
            .collect()
    }

    /// Charges one packet, unless the account may not send it.
    pub(super) fn charge(&mut self, account: u16, octets: usize, now: Instant) -> bool {
        // The configuration was checked for this.
        let Some(held) = self.0.get_mut(usize::from(account)) else { return true };
        if held.limit.rate > 0 {
            let elapsed = u128::from(now.0.saturating_sub(held.last.0));
            held.credit = (held.credit + elapsed * u128::from(held.limit.rate)).min(held.limit.full());
            held.last = held.last.max(now);
            let Some(credit) = held.credit.checked_sub(octets as u128 * NANOS) else { return false };
            held.credit = credit;
        }
        held.total.packets += 1;
        held.total.octets += octets as u64;
        true
    }

    pub(super) fn total(&self, id: u16) -> Option<Total> {
        self.0.iter().find(|held| held.limit.id == id).map(|held| held.total)
    }
}

impl Held {
    /// An account that may send its depth at once.
    fn new(limit: Account) -> Self {
        let (total, recorded) = (Total::default(), Total::default());
        Self { limit, total, recorded, credit: limit.full(), last: Instant(0) }
    }
}

impl Account {
    fn full(&self) -> u128 {
        u128::from(self.depth) * NANOS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(id: u16) -> Account {
        Account { id, rate: 0, depth: 0 }
    }

    #[test]
    fn totals_stay_with_their_accounts_whatever_a_policy_leaves_out_or_puts_elsewhere() {
        let mut accounts = Accounts::default();
        accounts.set(&[account(7), account(9)]);
        assert!(accounts.charge(0, 100, Instant(0)) && accounts.charge(1, 50, Instant(0)));
        accounts.set(&[account(9)]);
        assert!(accounts.charge(0, 5, Instant(0)));
        accounts.set(&[account(8), account(7), account(9)]);
        assert!(accounts.charge(1, 1, Instant(0)));
        let total = |packets, octets| Some(Total { packets, octets });
        assert_eq!([7, 8, 9, 10].map(|id| accounts.total(id)), [total(2, 101), total(0, 0), total(2, 55), None]);
    }

    #[test]
    fn a_journal_has_each_change_once_and_its_records_count_once_in_any_order() {
        let mut accounts = Accounts::default();
        accounts.set(&[account(1), account(2)]);
        let mut records = Vec::new();
        for packet in 0..20 {
            accounts.charge(packet % 2, 10 + usize::from(packet), Instant(0));
            records.extend(accounts.journal());
            assert!(accounts.journal().is_empty());
        }
        assert_eq!(records.len(), 20);
        let mut again = Accounts::default();
        again.set(&[account(2)]);
        for (id, total) in records.iter().rev().chain(&records) {
            again.restore(*id, *total);
        }
        again.set(&[account(1), account(2)]);
        assert_eq!([1, 2].map(|id| again.total(id)), [1, 2].map(|id| accounts.total(id)));
        assert!(again.journal().is_empty());
    }
}

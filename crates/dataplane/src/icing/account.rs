//! Who sends how much: totals of each account that tags name, and the rate that it is state to.
//!
//! The journal holds totals, not differences, so that a record read twice counts once.

use wayleave_core::Instant;

use super::config::Account;

const NANOS: u128 = 1_000_000_000;

/// What an account has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Total {
    pub packets: u64,
    /// Of whole packets, headers included.
    pub octets: u64,
}

#[derive(Clone, Debug)]
struct AccountState {
    limit: Account,
    total: Total,
    /// The total in the journal's last record.
    recorded: Total,
    /// Octets that may be sent at once, times 10^9.
    credit: u128,
    last: Instant,
}

/// One core's accounts: those of the policy in its order, and then those that the policy no longer has.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts(Vec<AccountState>);

impl Accounts {
    /// Sets the policy's accounts. Totals, also restored ones, stay with the numbers of their accounts.
    pub(super) fn set(&mut self, limits: &[Account]) {
        let mut before = std::mem::take(&mut self.0);
        for limit in limits {
            let index = before.iter().position(|state| state.limit.id == limit.id);
            let mut state = index.map_or_else(|| AccountState::new(*limit), |index| before.swap_remove(index));
            (state.limit, state.credit) = (*limit, state.credit.min(limit.full()));
            self.0.push(state);
        }
        self.0.append(&mut before);
    }

    /// Takes over a record of the journal, unless the account's total is greater already.
    pub(super) fn restore(&mut self, id: u16, total: Total) {
        let index = self.0.iter().position(|state| state.limit.id == id);
        let index = index.unwrap_or_else(|| {
            self.0.push(AccountState::new(Account { id, rate: 0, depth: 0 }));
            self.0.len() - 1
        });
        let state = &mut self.0[index];
        if state.total.packets < total.packets {
            (state.total, state.recorded) = (total, total);
        }
    }

    /// The totals that have changed since the last call, by the accounts' numbers: the journal's next records.
    pub(super) fn journal(&mut self) -> Vec<(u16, Total)> {
        let changed = self.0.iter_mut().filter(|state| state.total != state.recorded);
        changed
            .map(|state| {
                state.recorded = state.total;
                (state.limit.id, state.total)
            })
            .collect()
    }

    /// Charges one packet to the account at this index of the policy. Returns false, and charges nothing, if the account may
    /// not send it now.
    pub(super) fn charge(&mut self, account: u16, octets: usize, now: Instant) -> bool {
        // The policy was checked: there is such an account.
        let Some(state) = self.0.get_mut(usize::from(account)) else { return true };
        if state.limit.rate > 0 {
            let elapsed = u128::from(now.0.saturating_sub(state.last.0));
            state.credit = (state.credit + elapsed * u128::from(state.limit.rate)).min(state.limit.full());
            state.last = state.last.max(now);
            let Some(credit) = state.credit.checked_sub(octets as u128 * NANOS) else { return false };
            state.credit = credit;
        }
        state.total.packets += 1;
        state.total.octets += octets as u64;
        true
    }

    pub(super) fn total(&self, id: u16) -> Option<Total> {
        self.0.iter().find(|state| state.limit.id == id).map(|state| state.total)
    }
}

impl AccountState {
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
    fn totals_stay_with_their_accounts_when_a_policy_drops_or_reorders_them() {
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

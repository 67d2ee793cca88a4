//! Who sends how much: totals of each account that tags name, and the rate that it is held to.

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
    /// Octets times 10^9.
    credit: u128,
    last: Instant,
}

/// One core's accounts.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts(Vec<Held>);

impl Accounts {
    /// Takes these accounts; totals of those that were there stay.
    pub(super) fn set(&mut self, limits: &[Account]) {
        self.0.truncate(limits.len());
        for (place, limit) in limits.iter().enumerate() {
            let full = u128::from(limit.depth) * NANOS;
            match self.0.get_mut(place) {
                Some(held) => (held.limit, held.credit) = (*limit, held.credit.min(full)),
                None => {
                    self.0.push(Held { limit: *limit, total: Total::default(), credit: full, last: Instant(0) });
                }
            }
        }
    }

    /// Charges one packet, unless the account may not send it.
    pub(super) fn charge(&mut self, account: u16, octets: usize, now: Instant) -> bool {
        // The configuration was checked for this.
        let Some(held) = self.0.get_mut(usize::from(account)) else { return true };
        if held.limit.rate > 0 {
            let elapsed = u128::from(now.0.saturating_sub(held.last.0));
            let full = u128::from(held.limit.depth) * NANOS;
            held.credit = (held.credit + elapsed * u128::from(held.limit.rate)).min(full);
            held.last = held.last.max(now);
            let Some(credit) = held.credit.checked_sub(octets as u128 * NANOS) else { return false };
            held.credit = credit;
        }
        held.total.packets += 1;
        held.total.octets += octets as u64;
        true
    }

    pub(super) fn total(&self, account: u16) -> Option<Total> {
        self.0.get(usize::from(account)).map(|held| held.total)
    }
}

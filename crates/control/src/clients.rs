//! Who is connected to a server: links and budgets by the identity that a link proved, so that more links get nobody more.

use std::collections::BTreeMap;

use wayleave_core::{IdentityKey, Instant};

use crate::budget::Budget;

/// Links of one identity at a time. A client that begins anew needs a second one until the first is found dead.
pub(crate) const MAX_LINKS_OF: usize = 2;
/// Identities whose budgets are remembered before those that nothing is missing from are forgotten.
const SWEEP: usize = 1024;

struct Client<const N: usize> {
    budgets: [Budget; N],
    /// The oldest first.
    links: Vec<u64>,
}

/// The clients of a server, each with `N` budgets.
pub(crate) struct Clients<const N: usize> {
    full: [Budget; N],
    clients: BTreeMap<IdentityKey, Client<N>>,
    sweep_at: usize,
}

impl<const N: usize> Clients<N> {
    /// Nobody yet; each has these budgets at first.
    #[must_use]
    pub(crate) fn new(full: [Budget; N]) -> Self {
        Self { full, clients: BTreeMap::new(), sweep_at: SWEEP }
    }

    /// A link is up. Returns the one that is to be closed for it, if its identity has too many: the oldest.
    pub(crate) fn connected(&mut self, link: u64, peer: IdentityKey, now: Instant) -> Option<u64> {
        if self.clients.len() >= self.sweep_at {
            // Who has no link is remembered until its budgets are full: a new link is none of the reasons for more.
            self.clients.retain(|_, client| !client.links.is_empty() || !client.budgets.iter().all(|b| b.is_full(now)));
            self.sweep_at = SWEEP.max(2 * self.clients.len());
        }
        let full = &self.full;
        let client = self.clients.entry(peer).or_insert_with(|| Client { budgets: full.clone(), links: Vec::new() });
        client.links.push(link);
        (client.links.len() > MAX_LINKS_OF).then(|| client.links.remove(0))
    }

    /// A link is down.
    pub(crate) fn disconnected(&mut self, link: u64, peer: &IdentityKey) {
        if let Some(client) = self.clients.get_mut(peer) {
            client.links.retain(|other| *other != link);
        }
    }

    /// Takes a token from budget `which` of an identity, if there is one.
    pub(crate) fn take(&mut self, peer: &IdentityKey, which: usize, now: Instant) -> bool {
        self.clients.get_mut(peer).is_some_and(|client| client.budgets[which].take(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_come_and_go_share_one_budget_and_those_who_took_nothing_are_forgotten() {
        let mut clients = Clients::new([Budget::new(1, 5)]);
        let (peer, now) = (IdentityKey([1; 32]), Instant(1_000_000_000));
        let mut taken = 0;
        for link in 0..100 {
            assert_eq!(clients.connected(link, peer, now), None);
            taken += usize::from(clients.take(&peer, 0, now));
            clients.disconnected(link, &peer);
        }
        assert_eq!(taken, 5);
        let given_way: Vec<_> = (100..104).map(|link| clients.connected(link, peer, now)).collect();
        assert_eq!(given_way, [None, None, Some(100), Some(101)]);
        for number in 0..10_000u32 {
            let mut stranger = IdentityKey([2; 32]);
            stranger.0[..4].copy_from_slice(&number.to_be_bytes());
            clients.connected(1_000 + u64::from(number), stranger, now);
            clients.disconnected(1_000 + u64::from(number), &stranger);
        }
        assert!(clients.clients.len() <= SWEEP, "{}", clients.clients.len());
        assert!(!clients.take(&peer, 0, now), "who has taken is remembered");
    }
}

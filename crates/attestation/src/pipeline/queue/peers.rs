//! Routes that wait for validation, by the peer that announced them. Peers take turns, so that one with many routes does
//! not delay the others, and each has a cache of its own, so that it cannot push out their reports.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::pipeline::jobs::{PeerReports, peer_reports};

/// What becomes of the first route that waits.
pub(crate) enum Step {
    /// It is in the burst.
    Take,
    /// It is gone, or was queued twice.
    Drop,
    /// It waits for a later burst, and so do all behind it.
    Stop,
}

struct PeerQueue<K> {
    waiting: VecDeque<K>,
    in_flight: bool,
    cache: PeerReports,
}

/// The queues of all peers, which are numbered.
pub(crate) struct PeerQueues<K> {
    queues: BTreeMap<u32, PeerQueue<K>>,
    /// The peer from which on the next burst is looked for: behind the one that was served last.
    turn: u32,
    bursts: usize,
    /// Bursts in flight, at most: validation must not take the pool from signing.
    max_bursts: usize,
    /// Reports that each cache holds.
    cached_reports: usize,
}

impl<K> PeerQueues<K> {
    pub(crate) fn new(max_bursts: usize, cached_reports: usize) -> Self {
        Self { queues: BTreeMap::new(), turn: 0, bursts: 0, max_bursts, cached_reports }
    }

    pub(crate) fn push(&mut self, peer: u32, route: K) {
        let queue = self.queues.entry(peer).or_insert_with(|| PeerQueue {
            waiting: VecDeque::new(),
            in_flight: false,
            cache: peer_reports(self.cached_reports),
        });
        queue.waiting.push_back(route);
    }

    /// Number of routes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queues.values().map(|queue| queue.waiting.len()).sum()
    }

    /// Takes the next burst of one peer, as long as `step` says, if one may be validated now. Returns the peer and its
    /// cache. A peer has one burst in flight, since the job locks its cache.
    pub(crate) fn next_burst(&mut self, mut step: impl FnMut(&K) -> Step) -> Option<(u32, PeerReports)> {
        if self.bursts >= self.max_bursts {
            return None;
        }
        let from_turn = self.queues.range(self.turn..).chain(self.queues.range(..self.turn));
        let idle: Vec<u32> = from_turn.filter(|(_, queue)| !queue.in_flight).map(|(peer, _)| *peer).collect();
        for peer in idle {
            let Some(queue) = self.queues.get_mut(&peer) else { continue };
            let mut taken = 0;
            while let Some(route) = queue.waiting.front() {
                match step(route) {
                    Step::Take => taken += 1,
                    Step::Drop => {}
                    Step::Stop => break,
                }
                queue.waiting.pop_front();
            }
            if taken > 0 {
                queue.in_flight = true;
                self.bursts += 1;
                self.turn = peer.wrapping_add(1);
                return Some((peer, Arc::clone(&queue.cache)));
            }
        }
        None
    }

    /// The burst of this peer is validated.
    pub(crate) fn end_burst(&mut self, peer: u32) {
        if let Some(queue) = self.queues.get_mut(&peer).filter(|queue| queue.in_flight) {
            queue.in_flight = false;
            self.bursts -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_peers_with_many_routes_leave_a_turn_to_the_others() {
        let mut queues = PeerQueues::new(8, 16);
        for peer in 0..10 {
            (0..20).for_each(|route| queues.push(peer, route));
        }
        let next = |queues: &mut PeerQueues<i32>| {
            let mut left = 10;
            let step = |_: &i32| {
                left -= 1;
                if left < 0 { Step::Stop } else { Step::Take }
            };
            queues.next_burst(step).map(|(peer, _)| peer)
        };
        let mut served: Vec<u32> = std::iter::from_fn(|| next(&mut queues)).collect();
        assert_eq!(served.len(), 8);
        for done in 0..8 {
            queues.end_burst(done);
            served.push(next(&mut queues).expect("routes wait"));
        }
        assert_eq!(served, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
    }
}

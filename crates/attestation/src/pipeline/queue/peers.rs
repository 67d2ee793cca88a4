//! Routes that wait for validation, by the peer that announced them. Peers take turns, so that one with many routes does
//! not delay the others; each has a cache of its own, so that it cannot push out what is known of theirs; and those that send
//! wrong signatures have a budget.

use std::collections::{BTreeMap, VecDeque};

use wayleave_core::Instant;

use super::VerificationBudget;
use crate::pipeline::jobs::PeerSignatures;
use crate::validate::VerificationWork;

/// What becomes of the first route that waits.
pub(crate) enum Step {
    /// It is in the burst, and costs so many units.
    Take(u64),
    /// It is gone, or was queued twice.
    Drop,
    /// It waits for a later burst, and so do all behind it.
    Stop,
}

struct PeerQueue<K> {
    waiting: VecDeque<K>,
    in_flight: bool,
    known: PeerSignatures,
}

impl<K> PeerQueue<K> {
    fn is_busy(&self) -> bool {
        self.in_flight || !self.waiting.is_empty()
    }
}

/// A burst of one peer that may be validated now.
pub(crate) struct NextBurst {
    pub(crate) peer: u32,
    pub(crate) known: PeerSignatures,
    /// The peer is suspect: each signature is verified by itself.
    pub(crate) alone: bool,
}

/// The queues of all peers, which are numbered.
pub(crate) struct PeerQueues<K> {
    queues: BTreeMap<u32, PeerQueue<K>>,
    budget: VerificationBudget<u32>,
    /// The peer from which on the next burst is looked for: behind the one that was served last.
    turn: u32,
    /// Entries of all queues.
    entries: usize,
    bursts: usize,
    /// Bursts in flight, at most: validation must not take the pool from signing.
    max_bursts: usize,
    /// Octets of each peer's cache.
    cache_octets: usize,
}

impl<K> PeerQueues<K> {
    pub(crate) fn new(max_bursts: usize, cache_octets: usize, now: Instant) -> Self {
        let budget = VerificationBudget::new(now);
        Self { queues: BTreeMap::new(), budget, turn: 0, entries: 0, bursts: 0, max_bursts, cache_octets }
    }

    pub(crate) fn push(&mut self, peer: u32, route: K) {
        let queue = self.queues.entry(peer).or_insert_with(|| PeerQueue {
            waiting: VecDeque::new(),
            in_flight: false,
            known: PeerSignatures::new(self.cache_octets),
        });
        queue.waiting.push_back(route);
        self.entries += 1;
    }

    /// Entries of all queues, those that will be dropped included.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Drops entries that do not count.
    pub(crate) fn retain(&mut self, counts: impl Fn(&K) -> bool) {
        for queue in self.queues.values_mut() {
            queue.waiting.retain(&counts);
            queue.waiting.shrink_to(2 * queue.waiting.len());
        }
        self.entries = self.queues.values().map(|queue| queue.waiting.len()).sum();
    }

    /// Takes the next burst of one peer, as long as `step` says and its units last, if one may be validated now. A peer has one
    /// burst in flight, since the job locks its cache; all suspects together have one, or one each while nobody else waits.
    pub(crate) fn next_burst(&mut self, now: Instant, mut step: impl FnMut(&K) -> Step) -> Option<NextBurst> {
        if self.bursts >= self.max_bursts {
            return None;
        }
        self.budget.advance(now);
        let others_wait = self.others_wait();
        let from_turn = self.queues.range(self.turn..).chain(self.queues.range(..self.turn));
        let mut idle: Vec<u32> =
            from_turn.filter(|(_, queue)| !queue.in_flight && queue.is_busy()).map(|(peer, _)| *peer).collect();
        // A stable sort: suspects come last, in their turn.
        idle.sort_by_key(|peer| self.budget.is_suspect(*peer));
        for peer in idle {
            let alone = self.budget.is_suspect(peer);
            if alone && others_wait && self.suspect_in_flight() {
                continue;
            }
            let Some(mut units) = self.budget.burst_units(peer, others_wait) else { continue };
            let Some(queue) = self.queues.get_mut(&peer) else { continue };
            let mut taken = 0;
            while let Some(route) = queue.waiting.front().filter(|_| units > 0) {
                match step(route) {
                    Step::Take(cost) => {
                        taken += 1;
                        units = units.saturating_sub(cost);
                    }
                    Step::Drop => {}
                    Step::Stop => break,
                }
                queue.waiting.pop_front();
                self.entries -= 1;
            }
            if taken > 0 {
                queue.in_flight = true;
                self.bursts += 1;
                self.turn = peer.wrapping_add(1);
                return Some(NextBurst { peer, known: queue.known.clone(), alone });
            }
        }
        None
    }

    /// The burst of this peer is validated.
    pub(crate) fn end_burst(&mut self, peer: u32, work: &VerificationWork, now: Instant) {
        if let Some(queue) = self.queues.get_mut(&peer).filter(|queue| queue.in_flight) {
            queue.in_flight = false;
            self.bursts -= 1;
            self.budget.charge(peer, work, now);
        }
    }

    /// When a suspect peer's routes may be validated though others wait.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let waits = |(peer, queue): (&u32, &PeerQueue<K>)| {
            !queue.in_flight && !queue.waiting.is_empty() && self.budget.is_suspect(*peer)
        };
        // At the end of a burst it is looked at again anyway.
        let may_begin = self.bursts < self.max_bursts && !self.suspect_in_flight();
        (may_begin && self.queues.iter().any(waits)).then(|| self.budget.ready_at())
    }

    /// Lets the caches age, and drops those of peers that have nothing.
    pub(crate) fn age(&mut self) {
        self.queues.retain(|_, queue| {
            let is_empty = queue.known.if_idle(|known| {
                known.age();
                known.is_empty()
            });
            queue.is_busy() || is_empty == Some(false)
        });
    }

    pub(crate) fn is_suspect(&self, peer: u32) -> bool {
        self.budget.is_suspect(peer)
    }

    /// Peers that are suspect.
    pub(crate) fn suspects(&self) -> usize {
        self.budget.suspects()
    }

    /// Octets of the caches, and at most.
    pub(crate) fn cache_octets(&self) -> [usize; 2] {
        let of_queue = |queue: &PeerQueue<K>| {
            queue.known.if_idle(|known| [known.octets(), known.limit()]).unwrap_or([queue.known.limit(); 2])
        };
        self.queues.values().map(of_queue).fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    }

    fn others_wait(&self) -> bool {
        self.queues.iter().any(|(peer, queue)| queue.is_busy() && !self.budget.is_suspect(*peer))
    }

    fn suspect_in_flight(&self) -> bool {
        self.queues.iter().any(|(peer, queue)| queue.in_flight && self.budget.is_suspect(*peer))
    }
}

#[cfg(test)]
mod tests {
    //! KCX-33: peers with many routes, and suspects: they leave a turn to the others, and have their own when nobody
    //! waits.

    use super::*;

    const NOW: Instant = Instant(0);

    fn next(queues: &mut PeerQueues<i32>, now: Instant) -> Option<(u32, usize)> {
        let mut taken = 0;
        let step = |_: &i32| {
            if taken == 10 {
                return Step::Stop;
            }
            taken += 1;
            Step::Take(7)
        };
        let peer = queues.next_burst(now, step)?.peer;
        Some((peer, taken))
    }

    #[test]
    fn eight_peers_with_many_routes_leave_a_turn_to_the_others() {
        let mut queues = PeerQueues::new(8, 16, NOW);
        for peer in 0..10 {
            (0..20).for_each(|route| queues.push(peer, route));
        }
        let mut served: Vec<u32> = std::iter::from_fn(|| next(&mut queues, NOW)).map(|(peer, _)| peer).collect();
        assert_eq!(served.len(), 8);
        for done in 0..8 {
            queues.end_burst(done, &VerificationWork::default(), NOW);
            served.push(next(&mut queues, NOW).expect("routes wait").0);
        }
        assert_eq!(served, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn suspects_share_one_burst_while_others_wait_and_have_their_own_when_nobody_does() {
        let mut queues = PeerQueues::new(8, 16, NOW);
        for peer in 0..3 {
            (0..40).for_each(|route| queues.push(peer, route));
        }
        let garbage = VerificationWork { verified: 500, units: 500, wrong: 500 };
        for (peer, work) in [(0, garbage), (1, garbage), (2, VerificationWork::default())] {
            assert_eq!(next(&mut queues, NOW), Some((peer, 10)));
            queues.end_burst(peer, &work, NOW);
        }
        assert_eq!(queues.suspects(), 2);
        // The honest one first, then one suspect with a small burst, and not the other.
        assert_eq!(next(&mut queues, NOW), Some((2, 10)));
        assert_eq!(next(&mut queues, NOW), Some((0, 10)));
        assert_eq!(next(&mut queues, NOW), None);
        // It used the budget up: both wait until there is more, or until nobody else waits.
        queues.end_burst(0, &garbage, NOW);
        queues.end_burst(0, &garbage, NOW);
        let more = VerificationWork { verified: 5_000, ..garbage };
        queues.budget.charge(0, &VerificationWork { units: 5_000, ..more }, NOW);
        assert_eq!(next(&mut queues, NOW), None);
        let later = queues.deadline().expect("somebody waits");
        assert!(later > NOW);
        assert_eq!(next(&mut queues, later), Some((1, 10)));
    }
}

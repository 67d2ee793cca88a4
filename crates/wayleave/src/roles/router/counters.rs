//! What forwarding threads count, and the sum over threads.

use std::collections::BTreeMap;

/// What a thread counts whatever the format.
#[derive(Clone, Copy, Default, Debug)]
pub struct ThreadCounters {
    pub bursts: u64,
    pub received: u64,
    pub sent: u64,
    /// Decided to be sent, but the system had no room.
    pub unsent: u64,
    /// From an address that is not the neighbour's.
    pub strangers: u64,
    /// To a host or service that cannot be reached.
    pub unreachable: u64,
    /// Control packets of this router.
    pub control: u64,
    /// Control packets of this router that were dropped: over the limit of their sender, or the queue was full.
    pub control_lost: u64,
    /// Failed system calls.
    pub failures: u64,
}

impl ThreadCounters {
    fn add(&mut self, other: &Self) {
        let Self { bursts, received, sent, unsent, strangers, unreachable, control, control_lost, failures } = other;
        self.bursts += bursts;
        self.received += received;
        self.sent += sent;
        self.unsent += unsent;
        self.strangers += strangers;
        self.unreachable += unreachable;
        self.control += control;
        self.control_lost += control_lost;
        self.failures += failures;
    }
}

/// Counts by name.
pub type Named = BTreeMap<&'static str, u64>;

/// What a thread's format counts.
#[derive(Clone, Default)]
pub struct FormatCounters {
    /// Packets by decision.
    pub decided: Named,
    /// Diffie-Hellman agreements computed, where the format has them.
    pub agreements: Option<u64>,
    /// Packets that were not forwarded, by reason.
    pub reasons: Named,
    /// Packets with a wrong MAC, by the interface that they came in by.
    pub bad_macs: BTreeMap<u16, u64>,
    /// What became of packets that may be stamped.
    pub stamped: Named,
    /// Packets that passed without a stamp, by reason.
    pub unstamped: Named,
    /// The share of the replay filter's room that is taken in this turn; all threads have one filter.
    pub replay_filter_used: Option<f64>,
}

impl FormatCounters {
    fn add(&mut self, other: &Self) {
        if let Some(more) = other.agreements {
            *self.agreements.get_or_insert_default() += more;
        }
        self.replay_filter_used = self.replay_filter_used.or(other.replay_filter_used);
        let sums = [&mut self.decided, &mut self.reasons, &mut self.stamped, &mut self.unstamped];
        for (sum, more) in sums.into_iter().zip([&other.decided, &other.reasons, &other.stamped, &other.unstamped]) {
            more.iter().for_each(|(name, count)| *sum.entry(name).or_default() += count);
        }
        other.bad_macs.iter().for_each(|(id, count)| *self.bad_macs.entry(*id).or_default() += count);
    }
}

/// The sum over all threads.
#[derive(Default)]
pub struct Counters {
    pub thread: ThreadCounters,
    pub format: FormatCounters,
    /// Packets that each thread received.
    pub received_by_thread: Vec<u64>,
}

impl Counters {
    /// Adds one thread's.
    pub fn add(&mut self, thread: &ThreadCounters, format: &FormatCounters) {
        self.thread.add(thread);
        self.format.add(format);
        self.received_by_thread.push(thread.received);
    }
}

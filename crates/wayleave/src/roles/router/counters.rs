//! What forwarding threads count, and the sum over threads.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wayleave_dataplane::replay::ClockJumps;

use super::journal::Total;

wayleave_core::counters! {
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
    /// Keys that were agreed on beforehand, at the thread that has fewest.
    pub agreed: Option<usize>,
    /// Packets that were not forwarded, by reason.
    pub reasons: Named,
    /// Packets with a wrong MAC, by the interface that they came in by.
    pub bad_macs: BTreeMap<u16, u64>,
    /// What became of packets that may be stamped.
    pub stamped: Named,
    /// Packets that passed without a stamp, by reason.
    pub unstamped: Named,
    /// The replay filter, where the format has one; all threads have one filter.
    pub replay: Option<ReplayCounters>,
    /// The table of accounts, where it has a bound.
    pub accounts: Option<AccountTable>,
    /// By principal, where the format has them; under `None` those that are not told apart.
    pub payers: BTreeMap<Option<u32>, PayerCounts>,
}

/// What a payer sent that did not leave, and what it may send.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PayerCounts {
    /// Accepted, and taken back, since it could not be sent.
    pub credited: Total,
    /// Packets by reason.
    pub refused: Named,
    /// Octets a second, if it has a rate.
    pub rate: Option<u64>,
}

impl PayerCounts {
    /// Adds another thread's, or another payer's.
    pub fn add(&mut self, more: &Self) {
        self.credited = self.credited.plus(more.credited);
        more.refused.iter().for_each(|(name, count)| *self.refused.entry(name).or_default() += count);
        if let Some(rate) = more.rate {
            *self.rate.get_or_insert_default() += rate;
        }
    }
}

/// A replay filter and who has room in it.
#[derive(Clone, Debug)]
pub struct ReplayCounters {
    /// The part that is taken in this turn.
    pub taken: f64,
    /// Octets of memory.
    pub octets: usize,
    /// The Unix second from which on stamps are accepted.
    pub accepts_from: u64,
    pub clock: ClockJumps,
    pub partitions: Vec<PartitionCounters>,
}

/// The partition of a payer in the replay filter. The first one is the pool of all payers without one.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionCounters {
    /// Who it is, as JSON; null for the pool.
    pub payer: Value,
    /// Packets that it has place for in a turn, and that are there.
    pub packets: u64,
    pub taken: u64,
    /// Packets that were dropped because the payer sent more than its rate, or because the partition was full.
    pub over_rate: u64,
    pub no_room: u64,
}

impl PartitionCounters {
    pub fn is_full(&self) -> bool {
        self.taken >= self.packets
    }

    pub fn json(&self) -> Value {
        json!({
            "payer": self.payer, "packets": self.packets, "taken": self.taken, "is_full": self.is_full(),
            "over_rate": self.over_rate, "no_room": self.no_room,
        })
    }
}

impl ReplayCounters {
    /// Adds what another thread refused; all else is the same for all threads.
    fn add(&mut self, other: &Self) {
        for more in &other.partitions {
            match self.partitions.iter_mut().find(|partition| partition.payer == more.payer) {
                Some(partition) => {
                    partition.over_rate += more.over_rate;
                    partition.no_room += more.no_room;
                }
                None => self.partitions.push(more.clone()),
            }
        }
    }
}

/// How full the tables of accounts of all threads are.
#[derive(Clone, Copy, Default, Debug)]
pub struct AccountTable {
    pub open: usize,
    pub most: usize,
    /// Octets of memory.
    pub octets: usize,
    /// Packets that were charged to their delegation's or principal's account, since their own had no place.
    pub folded: u64,
}

impl FormatCounters {
    fn add(&mut self, other: &Self) {
        if let Some(more) = other.agreements {
            *self.agreements.get_or_insert_default() += more;
        }
        self.agreed = [self.agreed, other.agreed].into_iter().flatten().min();
        match (&mut self.replay, &other.replay) {
            (Some(replay), Some(more)) => replay.add(more),
            (replay, more) => *replay = replay.take().or_else(|| more.clone()),
        }
        if let Some(more) = other.accounts {
            let table = self.accounts.get_or_insert_default();
            table.open += more.open;
            table.most += more.most;
            table.octets += more.octets;
            table.folded += more.folded;
        }
        let sums = [&mut self.decided, &mut self.reasons, &mut self.stamped, &mut self.unstamped];
        for (sum, more) in sums.into_iter().zip([&other.decided, &other.reasons, &other.stamped, &other.unstamped]) {
            more.iter().for_each(|(name, count)| *sum.entry(name).or_default() += count);
        }
        other.payers.iter().for_each(|(payer, more)| self.payers.entry(*payer).or_default().add(more));
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
        self.thread += *thread;
        self.format.add(format);
        self.received_by_thread.push(thread.received);
    }
}

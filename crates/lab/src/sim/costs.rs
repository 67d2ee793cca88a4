//! What work and links cost in virtual time.
//!
//! A simulation with costs ([`super::Setup::costs`]) runs in the order of time: a process takes one input after the other, is busy for
//! as long as the work that its counters report costs, and what it sends leaves when it is done. A frame takes its turn on its
//! link, and the time that bandwidth and delay cost. So a livelock, a queue without bound or a quadratic loop shows as virtual
//! seconds, or as a link that is closed.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_route_server::member::MemberCounters;
use wayleave_route_server::party::Counters;

use super::Node;

/// One direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wire {
    pub bytes_per_second: u64,
    pub delay: Duration,
    /// Octets that may be on their way or wait for the receiver, as in `wayleave_runtime::links::Limits::queue`. A sender that
    /// has more loses the link.
    pub buffer: usize,
}

/// The runtime's bound on what waits for one peer.
pub const BUFFER: usize = 64 << 20;

impl Wire {
    /// A gigabit and 100 microseconds: one exchange's LAN.
    pub const LAN: Self = Self { bytes_per_second: 125_000_000, delay: Duration::from_micros(100), buffer: BUFFER };

    pub(super) fn transmission(&self, octets: usize) -> Duration {
        Duration::from_nanos(octets as u64 * 1_000_000_000 / self.bytes_per_second.max(1))
    }
}

/// Nanoseconds of processor time for each operation. The operations are those that the machines' counters count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operations {
    /// An input or a timer.
    pub input: u64,
    /// 1,024 octets sent or received: TLS, copies, encoding.
    pub kib: u64,
    /// A party checks an object's signature, and stores the object if it takes it.
    pub checked: u64,
    /// A party looks at an object of a batch to find whether a receiver gets it.
    pub scanned: u64,
    /// A party hashes an object or an instance to compare what a member holds.
    pub hashed: u64,
    /// A party derives one receiver's share of one object's key.
    pub delivery: u64,
    /// A party lists one candidate to one member.
    pub listed: u64,
    /// A party multiplies policy and key of one object for one receiver, with the other party.
    pub exported: u64,
    /// A party evaluates one comparator for one lane.
    pub comparator: u64,
    /// A party makes one correlation, on a processor of its own beside its other work.
    pub correlation: u64,
    /// The store has written a batch.
    pub persisted: u64,
    /// A member seals, shares and signs an object.
    pub announced: u64,
    /// A member opens an object and checks who signed it.
    pub opened: u64,
    /// A member finds that it may not open an object.
    pub sealed: u64,
    /// A member sends a ranking.
    pub ranking: u64,
}

/// Round figures, of the order of what `cargo test -p wayleave-lab --test it -- --ignored operations_cost --nocapture` prints for a row of
/// 750 slots, per core of a virtual machine: what it prints is elapsed time, so other load adds to it. `kib`, `input` and `persisted`
/// are for TLS, a task switch and a solid-state disk; those of the engine follow from `docs/benchmarks.md`.
pub const MEASURED: Operations = Operations {
    input: 5_000,
    kib: 1_000,
    checked: 60_000,
    scanned: 10,
    hashed: 500,
    delivery: 700,
    listed: 50,
    exported: 500,
    comparator: 150,
    correlation: 150,
    persisted: 500_000,
    announced: 150_000,
    opened: 80_000,
    sealed: 1_500,
    ranking: 20_000,
};

/// Costs of everything.
#[derive(Clone, Debug)]
pub struct Costs {
    pub operations: Operations,
    /// Processes that are so many times slower than the table.
    pub slower: BTreeMap<Node, u32>,
    pub between_parties: Wire,
    pub to_members: Wire,
    /// From a process to another, where it differs.
    pub wires: BTreeMap<(Node, Node), Wire>,
}

impl Default for Costs {
    fn default() -> Self {
        let (slower, wires) = (BTreeMap::new(), BTreeMap::new());
        Self { operations: MEASURED, slower, between_parties: Wire::LAN, to_members: Wire::LAN, wires }
    }
}

impl Costs {
    pub(super) fn wire(&self, from: Node, to: Node) -> Wire {
        let usual = match (from, to) {
            (Node::Party(_), Node::Party(_)) => self.between_parties,
            _ => self.to_members,
        };
        self.wires.get(&(from, to)).copied().unwrap_or(usual)
    }

    /// The time that `node` takes for the work between two states of its counters.
    pub(super) fn time(&self, node: Node, before: &Done, after: &Done) -> Duration {
        let operations = &self.operations;
        let nanos: u64 = before.0.iter().zip(after.0).zip(operations.each()).map(|((b, a), cost)| (a - b) * cost).sum();
        let octets = after.1 - before.1;
        let slower = self.slower.get(&node).copied().unwrap_or(1).max(1);
        Duration::from_nanos(operations.input + nanos + octets * operations.kib / 1024) * slower
    }

    /// The time that `node` takes for a job of setup.
    pub(super) fn setup_time(&self, node: Node, correlations: usize) -> Duration {
        let slower = self.slower.get(&node).copied().unwrap_or(1).max(1);
        Duration::from_nanos(self.operations.input + correlations as u64 * self.operations.correlation) * slower
    }
}

/// How many operations are counted and have a cost each.
const COUNTED: usize = 11;

impl Operations {
    fn each(&self) -> [u64; COUNTED] {
        let Self { checked, scanned, hashed, delivery, listed, exported, comparator, .. } = *self;
        let Self { announced, opened, sealed, ranking, .. } = *self;
        [checked, scanned, hashed, delivery, listed, exported, comparator, announced, opened, sealed, ranking]
    }
}

/// Work of one process so far: operations in the order of [`Operations::each`], and octets sent and received.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Done([u64; COUNTED], u64);

impl Done {
    pub(super) fn of_party(counters: &Counters) -> Self {
        let Counters { verified, scanned, hashed, delivered, listed, exports, comparators, .. } = *counters;
        let operations = [verified, scanned, hashed, delivered, listed, exports, comparators, 0, 0, 0, 0];
        Self(operations, counters.bytes_sent + counters.bytes_received)
    }

    pub(super) fn of_member(counters: &MemberCounters) -> Self {
        let MemberCounters { announcements, opened, sealed, rankings, .. } = *counters;
        let operations = [0, 0, 0, 0, 0, 0, 0, announcements, opened, sealed, rankings];
        Self(operations, counters.bytes_sent + counters.bytes_received)
    }
}

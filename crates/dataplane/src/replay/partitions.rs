//! How a filter is divided: a partition for each payer with a rate, and one pool for all payers without.

/// Payers that have partitions of their own, at most.
pub const MOST_PARTITIONS: usize = 4_096;
/// The part of a filter that the pool keeps whatever rates are configured: one in so many.
const POOL: u64 = 4;
/// Seconds of a payer's rate that its partition has place for: the longest freshness, which is more than a turn.
const WINDOW: u64 = super::MAX_FRESHNESS;
const _: () = assert!(WINDOW >= super::TURN);

/// A payer's share of a filter: so many packets in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    slot: u16,
    limit: u32,
}

impl Partition {
    /// The partition of all payers without one of their own, with place for `limit` packets in a turn.
    #[must_use]
    pub const fn pool(limit: u32) -> Self {
        Self { slot: 0, limit }
    }

    /// Packets that it has place for in a turn.
    #[must_use]
    pub fn limit(self) -> u32 {
        self.limit
    }

    pub(super) fn slot(self) -> usize {
        self.slot.into()
    }
}

/// Packets of at least `least` octets that a payer may send in a window: its `rate` in octets a second times the longest
/// freshness, and `depth` octets at once.
#[must_use]
pub fn packets_of(rate: u64, depth: u64, least: usize) -> u64 {
    (rate.saturating_mul(WINDOW).saturating_add(depth)).div_ceil(least.max(1) as u64)
}

/// A filter divided among payers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partitions {
    pub pool: Partition,
    /// In the order of the payers.
    pub each: Vec<Partition>,
    /// Whether the payers' partitions are smaller than what they need, since the filter is too small for all of them.
    pub are_cut: bool,
}

impl Partitions {
    /// Divides a filter of `capacity` packets a turn by what each payer needs. The partitions together never exceed it, and the pool
    /// keeps a quarter at least; what is too little for all is divided in proportion. Payers beyond [`MOST_PARTITIONS`] share the
    /// pool.
    #[must_use]
    pub fn divide(capacity: usize, needs: &[u64]) -> Self {
        let capacity = capacity.clamp(1, u32::MAX as usize) as u64;
        let own = &needs[..needs.len().min(MOST_PARTITIONS)];
        let most = capacity - capacity.div_ceil(POOL);
        let all: u128 = own.iter().map(|need| u128::from(*need)).sum();
        let are_cut = all > u128::from(most);
        let share = |need: u64| if are_cut { u128::from(need) * u128::from(most) / all } else { need.into() };
        let partitions = own.iter().zip(1..).map(|(need, slot)| Partition { slot, limit: share(*need) as u32 });
        let mut each: Vec<Partition> = partitions.collect();
        let taken: u64 = each.iter().map(|partition| u64::from(partition.limit)).sum();
        let pool = Partition::pool((capacity - taken) as u32);
        each.resize(needs.len(), pool);
        Self { pool, each, are_cut }
    }
}

#[cfg(test)]
mod tests {
    //! PLA-09, partitions: filters of any size divided among any rates: never more than the filter together; a quarter for
    //! payers without a rate; cut in proportion.

    use super::*;

    #[test]
    fn rooms_are_what_payers_need_and_together_never_more_than_the_filter() {
        let partitions = Partitions::divide(1_000, &[10, 700]);
        assert_eq!(partitions.each.iter().map(|partition| partition.limit).collect::<Vec<_>>(), [10, 700]);
        assert_eq!((partitions.pool.limit, partitions.are_cut), (290, false));
        let mut state = 1u64;
        for _ in 0..2_000 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 33
            };
            let capacity = 1 + next() as usize % 100_000;
            let needs: Vec<u64> = (0..next() % 20).map(|_| next() >> (next() % 31)).collect();
            let partitions = Partitions::divide(capacity, &needs);
            let all: u64 = partitions.each.iter().map(|partition| u64::from(partition.limit)).sum();
            assert_eq!(all + u64::from(partitions.pool.limit), capacity as u64);
            assert!(u64::from(partitions.pool.limit) >= capacity as u64 / POOL);
            assert!(
                partitions.are_cut
                    || partitions.each.iter().zip(&needs).all(|(partition, need)| u64::from(partition.limit) == *need)
            );
        }
    }

    #[test]
    fn a_room_that_is_cut_is_cut_in_proportion_and_payers_without_a_room_share_the_pool() {
        let partitions = Partitions::divide(1_000, &[1_000, 9_000, u64::MAX / 2]);
        assert!(
            partitions.are_cut && partitions.each[0].limit == 0 && partitions.each[2].limit >= 740,
            "{partitions:?}"
        );
        let partitions = Partitions::divide(1_000, &[1_000, 3_000]);
        assert_eq!(partitions.each.iter().map(|partition| partition.limit).collect::<Vec<_>>(), [187, 562]);
        let many = Partitions::divide(1 << 20, &vec![10; MOST_PARTITIONS + 2]);
        assert_eq!(many.each[MOST_PARTITIONS..], [many.pool; 2]);
        assert_eq!(packets_of(1_000, 65_535, 60), 1_176);
    }
}

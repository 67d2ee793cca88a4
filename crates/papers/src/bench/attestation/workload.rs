//! The paper's three workloads (section V-A3, table IV), generated from its totals, averages and peaks with a fixed seed.
//!
//! The public traces no longer show which AS's messages the paper counted. It describes their shape: normal traffic comes in
//! bursts; the pathological peak has 4,000 to 7,000 arrivals a second for 3 to 4 minutes; heavy traffic is constant, with a
//! lower peak.

use wayleave_core::{Asn, Prefix};

/// A route that the router receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The AS path in the order of travel, the origin first.
    pub path: Vec<Asn>,
    /// The prefixes of one UPDATE.
    pub prefixes: Vec<Prefix>,
}

wayleave_core::named! {
    /// A workload of the paper.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Workload {
        /// AS 3277 on 2005-06-01.
        Normal = "normal",
        /// AS 7911 on 2003-01-24.
        Pathological = "pathological",
        /// AS 2914 on 2008-12-25.
        Heavy = "heavy",
    }
}

/// A row of table IV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Seconds.
    pub duration: usize,
    /// Announcements.
    pub announcements: u32,
    /// The most announcements in a second.
    pub peak: u32,
}

impl Workload {
    /// Table IV.
    #[must_use]
    pub fn totals(self) -> Totals {
        match self {
            Self::Normal => Totals { duration: 871, announcements: 1_121, peak: 117 },
            Self::Pathological => Totals { duration: 876, announcements: 88_777, peak: 6_764 },
            Self::Heavy => Totals { duration: 870, announcements: 508_058, peak: 5_011 },
        }
    }

    /// Announcements in each second.
    #[must_use]
    pub fn seconds(self, seed: u64) -> Vec<u32> {
        let totals = self.totals();
        let mut random = Random::new(seed ^ self as u64);
        let mut seconds = vec![0; totals.duration];
        // The highest burst is the peak; announcements outside the bursts are spread at random.
        let bursts: Vec<(usize, u32)> = match self {
            // BGP's rate limit releases messages every half minute.
            Self::Normal => (0..28).map(|i| (15 + 30 * i, 10 + random.below(20))).collect(),
            Self::Pathological => (0..16).map(|i| (330 + 14 * i, 4_000 + random.below(2_600))).collect(),
            Self::Heavy => (0..29).map(|i| (15 + 30 * i, 2_500 + random.below(2_400))).collect(),
        };
        let highest = bursts.len() / 2;
        for (number, (second, count)) in bursts.into_iter().enumerate() {
            seconds[second] = if number == highest { totals.peak } else { count };
        }
        let mut left = totals.announcements.saturating_sub(seconds.iter().sum());
        while left > 0 {
            let second = &mut seconds[random.below(totals.duration as u32) as usize];
            if *second < totals.peak {
                *second += 1;
                left -= 1;
            }
        }
        let mut over = seconds.iter().sum::<u32>() - totals.announcements;
        while over > 0 {
            let second = &mut seconds[random.below(totals.duration as u32) as usize];
            if *second > 0 && *second < totals.peak {
                *second -= 1;
                over -= 1;
            }
        }
        seconds
    }

    /// The times of all announcements in nanoseconds, sorted, each at random within its second.
    #[must_use]
    pub fn arrivals(self, seed: u64) -> Vec<u64> {
        spread(&self.seconds(seed), seed)
    }
}

/// The times of so many arrivals in each second, sorted, each at random within its second.
#[must_use]
pub fn spread(seconds: &[u32], seed: u64) -> Vec<u64> {
    const SECOND: u64 = 1_000_000_000;
    let mut random = Random::new(seed ^ 0x5eed);
    let mut out = Vec::with_capacity(seconds.iter().map(|count| *count as usize).sum());
    for (second, count) in (0..).zip(seconds) {
        let start = out.len();
        out.extend((0..*count).map(|_| second * SECOND + random.next() % SECOND));
        out[start..].sort_unstable();
    }
    out
}

/// `count` different routes with the paper's mean length of 3.7 ASes: three of ten have 3 ASes, the others 4. There are `ases`
/// origins, as many networks at the edge and as many in the core.
#[must_use]
pub fn routes(count: usize, ases: u32, seed: u64) -> Vec<Route> {
    let mut random = Random::new(seed);
    let ases = ases.max(2);
    (0..count)
        .map(|number| {
            let (origin, edge) = (Asn(1_000 + random.below(ases)), Asn(2_000 + random.below(ases)));
            let (middle, last) = (random.below(ases), random.below(ases - 1));
            let last = if last >= middle { last + 1 } else { last };
            let path = match number % 10 {
                0..3 => vec![origin, edge, Asn(3_000 + last)],
                _ => vec![origin, edge, Asn(3_000 + middle), Asn(3_000 + last)],
            };
            let [_, a, b, c] = (number as u32).to_be_bytes();
            let prefix = Prefix::truncated([10 + a, b, c, 0].into(), 24).expect("24 bits fit");
            Route { path, prefixes: vec![prefix] }
        })
        .collect()
}

/// Maps AS numbers to `keys` different ones, each at most once in a path. Real paths keep their lengths and repetitions;
/// making one key for each AS of the Internet would take longer than the benchmark.
pub fn share_keys(routes: &mut [Route], keys: u32) {
    for route in routes {
        let mut mapped: Vec<Asn> = Vec::with_capacity(route.path.len());
        for asn in &route.path {
            let mut number = asn.0.wrapping_mul(0x9e37_79b1) % keys;
            while mapped.contains(&Asn(1_000 + number)) {
                number = (number + 1) % keys;
            }
            mapped.push(Asn(1_000 + number));
        }
        route.path = mapped;
    }
}

/// SplitMix64: a small generator for workloads, not for keys.
pub(in crate::bench) struct Random(u64);

impl Random {
    pub(in crate::bench) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(in crate::bench) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() % u64::from(limit)) as u32
    }

    /// Of a list of `length`.
    pub(in crate::bench) fn index(&mut self, length: usize) -> usize {
        (self.next() % length.max(1) as u64) as usize
    }

    /// From zero to below one.
    pub(in crate::bench) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    //! KCX-11: the heavy workload has 508,058 UPDATEs in 870 s, 5,011 in one. Delays are measured by `wayleave-lab
    //! bench attest-trace --workload heavy`, not asserted.

    use super::*;

    #[test]
    fn the_workloads_have_the_published_totals_averages_and_peaks() {
        for workload in Workload::ALL {
            let (totals, seconds) = (workload.totals(), workload.seconds(1));
            assert_eq!(seconds.len(), totals.duration);
            assert_eq!(seconds.iter().sum::<u32>(), totals.announcements);
            assert_eq!(seconds.iter().max(), Some(&totals.peak));
            let arrivals = workload.arrivals(1);
            assert_eq!(arrivals.len(), totals.announcements as usize);
            assert!(arrivals.is_sorted());
            assert_eq!(arrivals, workload.arrivals(1));
        }
    }

    #[test]
    fn routes_have_the_mean_path_of_the_paper() {
        let routes = routes(1_000, 8, 1);
        assert_eq!(routes.iter().map(|route| route.path.len()).sum::<usize>(), 3_700);
        for route in &routes {
            let mut path = route.path.clone();
            path.sort_unstable();
            path.dedup();
            assert_eq!(path.len(), route.path.len());
        }
    }

    #[test]
    fn shared_keys_keep_paths_free_of_loops() {
        let mut routes: Vec<Route> = (0..50)
            .map(|i| Route { path: (i..i + 12).map(|asn| Asn(asn * 7919)).collect(), prefixes: Vec::new() })
            .collect();
        share_keys(&mut routes, 16);
        for route in routes {
            let mut path = route.path.clone();
            path.sort_unstable();
            path.dedup();
            assert_eq!(path.len(), 12);
        }
    }
}

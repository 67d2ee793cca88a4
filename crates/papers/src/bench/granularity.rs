//! How many waypoints a provider needs: Platypus, section 6.2 and Figure 5, over generated latencies.
//!
//! The paper measured one-way latencies between five places and every known router interface of four providers in January 2004, and
//! did not publish them. Here routers stand in cities, and latencies follow from distances, detours and access links, drawn from a
//! seed. What is done with them is the paper's: clusters by *k*-means over the latencies seen from two of the places; for each pair
//! of places the best router, and the router closest to the centre of the best cluster.

use super::attestation::workload::Random;

/// The paper's five measurement points: name, latitude, longitude (degrees).
pub const POINTS: [(&str, f64, f64); 5] = [
    ("UCSD", 32.88, -117.23),
    ("Nortel", 45.35, -75.75),
    ("Coloco", 39.10, -76.85),
    ("Lulea", 65.58, 22.15),
    ("KAIST", 36.37, 127.36),
];
/// Those whose latencies clusters are made of: Coloco and Lulea.
const SEEN_FROM: [usize; 2] = [2, 3];
/// Numbers of clusters that are asked for.
pub const CLUSTERS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Clusterings for each number (paper: ten).
pub const CLUSTERINGS: usize = 10;
/// Pairs of points that Figure 5's panels show, and others of the same kind: source, destination.
pub const PAIRS: [(usize, usize); 4] = [(0, 3), (1, 4), (2, 0), (3, 4)];

/// Kilometres that light travels in a second in fibre.
const FIBRE: f64 = 200_000.0;
/// Kilometres around a city's centre within which its routers stand.
const REGION: f64 = 60.0;

/// A provider: its name, how many router interfaces, and how many of the cities it is in, the largest first.
pub struct Provider {
    pub name: &'static str,
    pub routers: usize,
    pub cities: usize,
}

/// The paper's providers. Numbers of interfaces and cities are ours, in the order of their sizes then.
pub const PROVIDERS: [Provider; 4] = [
    Provider { name: "uunet", routers: 2_400, cities: 40 },
    Provider { name: "sprint", routers: 1_600, cities: 32 },
    Provider { name: "qwest", routers: 900, cities: 22 },
    Provider { name: "global-crossing", routers: 700, cities: 28 },
];

/// Cities with points of presence, the largest first: latitude, longitude.
const CITIES: [(f64, f64); 40] = [
    (40.7, -74.0),
    (37.4, -122.1),
    (38.9, -77.0),
    (41.9, -87.6),
    (34.1, -118.2),
    (32.8, -96.8),
    (33.7, -84.4),
    (47.6, -122.3),
    (51.5, -0.1),
    (42.4, -71.1),
    (39.7, -105.0),
    (52.4, 4.9),
    (50.1, 8.7),
    (25.8, -80.2),
    (35.7, 139.7),
    (48.9, 2.4),
    (29.8, -95.4),
    (38.6, -90.2),
    (39.1, -94.6),
    (33.4, -112.1),
    (43.7, -79.4),
    (59.3, 18.1),
    (44.9, -93.3),
    (39.9, -75.2),
    (22.3, 114.2),
    (45.5, -73.6),
    (40.8, -111.9),
    (36.2, -115.1),
    (41.4, 2.2),
    (45.5, 9.2),
    (1.3, 103.8),
    (-33.9, 151.2),
    (55.7, 12.6),
    (37.6, 127.0),
    (28.5, -81.4),
    (42.3, -83.0),
    (35.2, -80.8),
    (47.4, 8.5),
    (60.2, 24.9),
    (19.4, -99.1),
];

/// Numbers drawn from a seed.
struct Draw(Random);

impl Draw {
    fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    fn below(&mut self, bound: usize) -> usize {
        ((self.unit() * bound as f64) as usize).min(bound.saturating_sub(1))
    }

    /// Exponentially distributed with this mean.
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// One-way latencies of a provider's routers, in seconds, by measurement point.
pub struct Latencies {
    /// From the point to the router, and from the router to the point.
    routers: Vec<[[f64; 2]; POINTS.len()]>,
}

/// Kilometres between two places on the globe.
fn distance(a: (f64, f64), b: (f64, f64)) -> f64 {
    let (one, other) = (a.0.to_radians(), b.0.to_radians());
    let (across, along) = ((other - one) / 2.0, (b.1 - a.1).to_radians() / 2.0);
    let half = across.sin().powi(2) + one.cos() * other.cos() * along.sin().powi(2);
    2.0 * 6_371.0 * half.sqrt().min(1.0).asin()
}

impl Latencies {
    /// Draws a provider's routers and their latencies.
    #[must_use]
    pub fn draw(provider: &Provider, seed: u64) -> Self {
        let mut draw = Draw(Random::new(seed));
        let cities = provider.cities.min(CITIES.len());
        // How much longer than the great circle the way to a city is, for each point and direction.
        let detours: Vec<[[f64; 2]; POINTS.len()]> = (0..cities)
            .map(|_| {
                std::array::from_fn(|_| {
                    let there = 1.4 + 0.8 * draw.unit();
                    [there, there + 0.2 * (draw.unit() - 0.5)]
                })
            })
            .collect();
        let routers = (0..provider.routers).map(|_| {
            // Larger cities have more routers: the share falls with the rank.
            let city = (draw.unit().powi(2) * cities as f64) as usize;
            let (latitude, longitude) = CITIES[city.min(cities - 1)];
            let degrees = REGION / 111.0;
            let at = (latitude + degrees * (draw.unit() - 0.5) * 2.0, longitude + degrees * (draw.unit() - 0.5) * 2.0);
            let access = draw.exponential(0.0005);
            std::array::from_fn(|point| {
                let (_, latitude, longitude) = POINTS[point];
                std::array::from_fn(|direction| {
                    let way = distance((latitude, longitude), at) * detours[city.min(cities - 1)][point][direction];
                    way / FIBRE + access + draw.exponential(0.0002)
                })
            })
        });
        Self { routers: routers.collect() }
    }

    /// The latency from one point through a router to another.
    fn through(&self, router: usize, (from, to): (usize, usize)) -> f64 {
        let [latencies_from, latencies_to] = [from, to].map(|point| self.routers[router][point]);
        latencies_from[0] + latencies_to[1]
    }

    /// The least latency of a pair through any router (paper: "opt").
    #[must_use]
    pub fn optimal(&self, pair: (usize, usize)) -> f64 {
        (0..self.routers.len()).map(|router| self.through(router, pair)).fold(f64::INFINITY, f64::min)
    }

    /// The least latency of a pair through the centre of a cluster.
    #[must_use]
    pub fn through_centres(&self, centres: &[usize], pair: (usize, usize)) -> f64 {
        centres.iter().map(|router| self.through(*router, pair)).fold(f64::INFINITY, f64::min)
    }

    /// Clusters by *k*-means over the latencies that two points see, and returns for each the router closest to its centre. As in the
    /// paper, clusters begin at random routers, and those that become empty are discarded.
    #[must_use]
    pub fn centres(&self, clusters: usize, seed: u64) -> Vec<usize> {
        let mut draw = Draw(Random::new(seed));
        let seen = |router: usize| SEEN_FROM.map(|point| self.routers[router][point][0]);
        let square = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2);
        let closest = |places: &mut dyn Iterator<Item = [f64; 2]>, to: [f64; 2]| {
            let first = (0, f64::INFINITY);
            let nearer = |best: (usize, f64), (at, place): (usize, [f64; 2])| {
                let far = square(place, to);
                if far < best.1 { (at, far) } else { best }
            };
            places.enumerate().fold(first, nearer).0
        };
        let mut means: Vec<[f64; 2]> = (0..clusters).map(|_| seen(draw.below(self.routers.len()))).collect();
        let mut members = vec![usize::MAX; self.routers.len()];
        loop {
            let mut sums = vec![([0.0; 2], 0_usize); means.len()];
            let mut has_changed = false;
            for (router, member) in members.iter_mut().enumerate() {
                let at = closest(&mut means.iter().copied(), seen(router));
                has_changed |= std::mem::replace(member, at) != at;
                let (sum, count) = &mut sums[at];
                (0..2).for_each(|axis| sum[axis] += seen(router)[axis]);
                *count += 1;
            }
            let before = means.len();
            means = sums
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(sum, count)| sum.map(|sum| sum / count as f64))
                .collect();
            if !has_changed && means.len() == before {
                break;
            }
        }
        means.iter().map(|mean| closest(&mut (0..self.routers.len()).map(seen), *mean)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_clusters_are_closer_to_the_best_router_and_never_beyond() {
        for provider in &PROVIDERS {
            let latencies = Latencies::draw(provider, 7);
            // Over all pairs: a single one may do better through fewer centres by chance.
            let over = |clusters| {
                let centres: Vec<Vec<usize>> = (0..8).map(|seed| latencies.centres(clusters, seed)).collect();
                let ratios = PAIRS.iter().flat_map(|pair| {
                    let optimal = latencies.optimal(*pair);
                    assert!((0.01..0.2).contains(&optimal), "{} {pair:?}: {optimal}", provider.name);
                    let latencies = &latencies;
                    centres.iter().map(move |centres| latencies.through_centres(centres, *pair) / optimal)
                });
                let ratios: Vec<f64> = ratios.collect();
                assert!(ratios.iter().all(|ratio| *ratio >= 1.0), "{ratios:?}");
                ratios.iter().sum::<f64>() / ratios.len() as f64
            };
            let [one, few, many] = [1, 16, 128].map(over);
            assert!(one > few && few > many && many < 1.1, "{}: {one} {few} {many}", provider.name);
        }
    }

    #[test]
    fn distances_are_those_of_the_globe() {
        let known = |a: usize, b: usize| distance((POINTS[a].1, POINTS[a].2), (POINTS[b].1, POINTS[b].2));
        // San Diego to Laurel, and to Lulea, within a hundredth.
        assert!((known(0, 2) / 3_650.0 - 1.0).abs() < 0.02, "{}", known(0, 2));
        assert!((known(0, 3) / 8_600.0 - 1.0).abs() < 0.03, "{}", known(0, 3));
    }

    #[test]
    fn a_clustering_has_no_more_clusters_than_were_asked_for_and_each_has_a_router() {
        let latencies = Latencies::draw(&PROVIDERS[3], 1);
        for clusters in CLUSTERS {
            let centres = latencies.centres(clusters, 3);
            assert!(!centres.is_empty() && centres.len() <= clusters);
            assert!(centres.iter().all(|router| *router < PROVIDERS[3].routers));
            assert_eq!(centres, latencies.centres(clusters, 3), "the same from the same seed");
        }
    }
}

//! A table and two hours of UPDATEs of an exchange with the moments that the SIXPACK paper publishes of its own (section 7.1), which is not
//! public. What the paper does not say is marked as ours.

use super::attestation::workload::Random;

/// Members of its exchange: "more than 600".
pub const MEMBERS: usize = 600;
/// Prefixes of its table: about 240,000.
pub const PREFIXES: usize = 240_000;
/// Seconds of its trace.
pub const SECONDS: usize = 7_200;
/// Of a hundred events, withdrawals: ours.
const WITHDRAWALS: u64 = 15;
/// How often a member is looked for that does not announce a prefix yet: ours.
const TRIES: usize = 64;

/// Quantiles of UPDATEs a second: minimum 1, quartiles 2 and 4, maximum 29, mean 3.57.
const UPDATES_A_SECOND: [(f64, f64); 7] =
    [(0.0, 1.0), (0.12, 1.5), (0.25, 2.0), (0.5, 3.0), (0.75, 4.4), (0.99, 11.0), (1.0, 29.0)];
/// Quantiles of prefixes a second: minimum 2, quartiles 6 and 12, maximum 379, mean 10.62.
const PREFIXES_A_SECOND: [(f64, f64); 8] =
    [(0.0, 2.0), (0.25, 6.0), (0.5, 8.0), (0.75, 12.0), (0.95, 20.0), (0.99, 40.0), (0.999, 100.0), (1.0, 379.0)];

/// One UPDATE: a member announces or withdraws prefixes, which are numbers in the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Seconds since the beginning.
    pub second: usize,
    pub member: u32,
    pub announced: Vec<usize>,
    pub withdrawn: Vec<usize>,
    /// How long the announced path is, which tells routes of one member apart.
    pub length: usize,
}

/// A table, and what happens to it.
#[derive(Clone, Debug)]
pub struct Trace {
    /// For each prefix the members that announce it.
    pub table: Vec<Vec<u32>>,
    pub events: Vec<Event>,
}

/// The value at `unit` of a distribution whose quantiles are given, on straight lines between them.
fn quantile(points: &[(f64, f64)], unit: f64) -> usize {
    let between = points.windows(2).find(|pair| unit <= pair[1].0).unwrap_or(&points[points.len() - 2..]);
    let [(from, low), (to, high)] = [between[0], between[1]];
    (low + (high - low) * (unit - from) / (to - from)) as usize
}

/// Routes of a prefix: more than half have one, 1.9 on average, the 95th percentile is 5, the maximum 25.
fn routes(unit: f64) -> usize {
    match unit {
        u if u < 0.60 => 1,
        u if u < 0.80 => 2,
        u if u < 0.88 => 3,
        u if u < 0.93 => 4,
        u if u < 0.965 => 5,
        u => 6 + (19.5 * ((u - 0.965) / 0.035).powf(7.0)) as usize,
    }
}

/// Prefixes of a hundred that the largest member announces: 150,000 of 240,000.
const LARGEST: f64 = 0.625;

/// How many routes a member other than the largest announces, against others: the 95th percentile is 1,581, the mean of all members 626.5.
fn weight(member: usize, members: usize) -> f64 {
    let place = (member as f64 + 0.5) / members as f64;
    if place <= 0.95 { 1_581.0 * (place / 0.95).powi(4) } else { 1_581.0 + 400.0 * (place - 0.95) / 0.05 }
}

/// A table of so many prefixes among so many members, and UPDATEs until `most_events` prefixes were announced or withdrawn, or two hours are
/// over. The last member is the largest.
#[must_use]
pub fn generate(members: usize, prefixes: usize, most_events: usize, seed: u64) -> Trace {
    let members = members.max(2);
    let mut draw = Random::new(seed);
    let mut sums = Vec::with_capacity(members - 1);
    let mut sum = 0.0;
    for member in 0..members - 1 {
        sum += weight(member, members);
        sums.push(sum);
    }
    let largest = u32::try_from(members - 1).unwrap_or(u32::MAX);
    let mut table = Vec::with_capacity(prefixes);
    let mut of_member: Vec<Vec<usize>> = vec![Vec::new(); members];
    for number in 0..prefixes {
        let count = routes(draw.unit()).min(members);
        let mut holders: Vec<u32> = Vec::with_capacity(count);
        if draw.unit() < LARGEST {
            holders.push(largest);
        }
        for _ in 0..TRIES * count {
            if holders.len() >= count {
                break;
            }
            let at = draw.unit() * sum;
            let member = u32::try_from(sums.partition_point(|sum| *sum < at).min(members - 2)).unwrap_or(0);
            if !holders.contains(&member) {
                holders.push(member);
            }
        }
        holders.iter().for_each(|member| of_member[*member as usize].push(number));
        table.push(holders);
    }
    let events = events(&mut draw, &table, &of_member, most_events);
    Trace { table, events }
}

fn events(draw: &mut Random, table: &[Vec<u32>], of_member: &[Vec<usize>], most: usize) -> Vec<Event> {
    let mut absent = std::collections::BTreeSet::new();
    let (mut events, mut done) = (Vec::new(), 0);
    for second in 0..SECONDS {
        let unit = draw.unit();
        let updates = quantile(&UPDATES_A_SECOND, unit);
        // As many UPDATEs have as many prefixes, up to some noise.
        let noisy = (unit + 0.1 * (draw.unit() - 0.5)).rem_euclid(1.0);
        let prefixes = quantile(&PREFIXES_A_SECOND, noisy).max(updates);
        let mut sizes = vec![1; updates];
        for _ in updates..prefixes {
            sizes[draw.index(updates)] += 1;
        }
        for size in sizes {
            // A route of the table, and others of its member: who has many, announces much.
            let holders = &table[draw.index(table.len())];
            let member = holders[draw.index(holders.len())];
            let own = &of_member[member as usize];
            let from = draw.index(own.len());
            let mut event = Event { second, member, announced: Vec::new(), withdrawn: Vec::new(), length: 0 };
            event.length = 1 + draw.index(5);
            for place in 0..size.min(own.len()) {
                let number = own[(from + place) % own.len()];
                let is_absent = absent.remove(&(member, number));
                if !is_absent && draw.next() % 100 < WITHDRAWALS {
                    absent.insert((member, number));
                    event.withdrawn.push(number);
                } else {
                    event.announced.push(number);
                }
            }
            done += event.announced.len() + event.withdrawn.len();
            events.push(event);
            if done >= most {
                return events;
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
        values.sort();
        values
    }

    fn mean(values: &[usize]) -> f64 {
        values.iter().sum::<usize>() as f64 / values.len() as f64
    }

    fn assert_near(what: &str, value: f64, published: f64, tolerance: f64) {
        assert!((value / published - 1.0).abs() < tolerance, "{what}: {value}, published {published}");
    }

    #[test]
    fn the_generated_table_has_the_published_moments() {
        let trace = generate(MEMBERS, 60_000, 0, 1);
        let counts = sorted(trace.table.iter().map(Vec::len).collect());
        assert_near("routes of a prefix", mean(&counts), 1.9, 0.03);
        assert_eq!((counts[30_000], counts[57_000], counts[59_999]), (1, 5, 25));
        let mut of_member = vec![0; MEMBERS];
        trace.table.iter().flatten().for_each(|member| of_member[*member as usize] += 1);
        assert_eq!(trace.table.iter().flatten().count(), counts.iter().sum::<usize>());
        let of_member = sorted(of_member);
        // The paper's figures are of 240,000 prefixes, and do not quite agree: 1.9 routes of each are more than its 400,000.
        assert_near("the largest member", 4.0 * of_member[599] as f64, 150_000.0, 0.02);
        assert_near("the 95th percentile of members", 4.0 * of_member[570] as f64, 1_581.0, 0.5);
        assert_near("routes of a member", 4.0 * mean(&of_member), 626.5, 0.25);
    }

    #[test]
    fn the_generated_trace_has_the_published_moments() {
        let trace = generate(MEMBERS, 20_000, usize::MAX, 2);
        assert_near("UPDATEs", trace.events.len() as f64, 25_676.0, 0.05);
        let events = |event: &Event| event.announced.len() + event.withdrawn.len();
        assert_near("prefixes", trace.events.iter().map(events).sum::<usize>() as f64, 76_506.0, 0.08);
        let mut seconds = vec![(0, 0); SECONDS];
        for event in &trace.events {
            seconds[event.second].0 += 1;
            seconds[event.second].1 += events(event);
        }
        let updates = sorted(seconds.iter().map(|second| second.0).collect());
        let prefixes = sorted(seconds.iter().map(|second| second.1).collect());
        assert_near("UPDATEs a second", mean(&updates), 3.57, 0.05);
        assert_eq!((updates[0], updates[1_800], updates[5_400]), (1, 2, 4));
        assert!((20..=29).contains(&updates[7_199]), "{}", updates[7_199]);
        assert_near("prefixes a second", mean(&prefixes), 10.62, 0.08);
        assert!((5..=6).contains(&prefixes[1_800]) && (11..=12).contains(&prefixes[5_400]));
        assert!(prefixes[7_199] > 200, "{}", prefixes[7_199]);
    }

    #[test]
    fn the_seed_determines_it_and_a_short_one_ends_early() {
        let short = |seed| generate(10, 100, 50, seed);
        assert_eq!(short(3).events, short(3).events);
        assert_ne!(short(3).events, short(4).events);
        let sizes: Vec<usize> =
            short(3).events.iter().map(|event| event.announced.len() + event.withdrawn.len()).collect();
        let before_the_last: usize = sizes[..sizes.len() - 1].iter().sum();
        assert!(before_the_last < 50 && before_the_last + sizes[sizes.len() - 1] >= 50, "{sizes:?}");
        // What is withdrawn was there.
        let mut absent = std::collections::BTreeSet::new();
        for event in short(3).events {
            for number in &event.announced {
                absent.remove(&(event.member, *number));
            }
            assert!(event.withdrawn.iter().all(|number| absent.insert((event.member, *number))));
        }
    }
}

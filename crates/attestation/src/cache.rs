//! A bounded cache of reports, keyed by everything that a report follows from.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wayleave_crypto::hash::hash;

use crate::report::Report;
use crate::validate::{Carried, Context, Route, validate_burst};

/// Reports by content. A report is dropped when its time is over, when the context changes (another view, other
/// rules or directories), when the clock goes back, or to make room, when it has not been used for longest.
#[derive(Debug)]
pub struct ReportCache {
    capacity: usize,
    /// Hash of the context in which all entries were made.
    context: [u8; 32],
    entries: HashMap<[u8; 32], CachedReport>,
    /// By last use, the longest ago first.
    uses: BTreeMap<u64, [u8; 32]>,
    clock: u64,
    pub counts: CacheCounts,
}

#[derive(Debug)]
struct CachedReport {
    report: Arc<Report>,
    used: u64,
    /// Seconds since 1970 from which and until which it holds.
    from: u64,
    until: u64,
}

/// How a cache was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounts {
    /// Reports given from the cache.
    pub hits: u64,
    /// Routes validated.
    pub misses: u64,
    /// Reports dropped to make room.
    pub evicted: u64,
}

impl ReportCache {
    /// A cache of at most `capacity` reports; none with 0.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            context: [0; 32],
            entries: HashMap::new(),
            uses: BTreeMap::new(),
            clock: 0,
            counts: CacheCounts::default(),
        }
    }

    /// How many reports it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As [`validate_burst`], but what is known is not validated again, and what stands twice in the burst once.
    pub fn validate_burst(&mut self, context: &Context<'_>, routes: &[Route<'_>]) -> Vec<Arc<Report>> {
        self.enter(context);
        let now = context.clock.now.secs();
        let keys: Vec<[u8; 32]> = routes.iter().map(key).collect();
        let mut reports: Vec<Option<Arc<Report>>> = keys.iter().map(|key| self.look_up(key, now)).collect();
        let mut first_with: HashMap<[u8; 32], usize> = HashMap::new();
        let mut unknown: Vec<(usize, Route<'_>)> = Vec::new();
        for (number, (key, report)) in keys.iter().zip(&reports).enumerate() {
            if report.is_none() && !first_with.contains_key(key) {
                first_with.insert(*key, unknown.len());
                unknown.push((number, routes[number]));
            }
        }
        let to_validate: Vec<Route<'_>> = unknown.iter().map(|(_, route)| *route).collect();
        let made: Vec<Arc<Report>> = validate_burst(context, &to_validate).into_iter().map(Arc::new).collect();
        for ((number, _), report) in unknown.iter().zip(&made) {
            self.insert(keys[*number], report.clone(), now);
        }
        let made_for = |key: &[u8; 32]| made[first_with[key]].clone();
        reports.iter_mut().zip(&keys).map(|(report, key)| report.take().unwrap_or_else(|| made_for(key))).collect()
    }

    /// Forgets everything if the context is another.
    fn enter(&mut self, context: &Context<'_>) {
        let context = fingerprint(context);
        if self.context != context {
            self.entries.clear();
            self.uses.clear();
            self.context = context;
        }
    }

    fn look_up(&mut self, key: &[u8; 32], now: u64) -> Option<Arc<Report>> {
        let stands = self.entries.get(key).is_some_and(|entry| (entry.from..entry.until).contains(&now));
        if !stands {
            if let Some(entry) = self.entries.remove(key) {
                self.uses.remove(&entry.used);
            }
            self.counts.misses += 1;
            return None;
        }
        self.counts.hits += 1;
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        self.uses.remove(&entry.used);
        entry.used = self.clock;
        self.uses.insert(self.clock, *key);
        Some(entry.report.clone())
    }

    fn insert(&mut self, key: [u8; 32], report: Arc<Report>, now: u64) {
        let until = report.until.map_or(u64::MAX, |until| until.secs());
        if self.capacity == 0 || until <= now {
            return;
        }
        if self.entries.len() >= self.capacity
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.entries.remove(&oldest);
            self.counts.evicted += 1;
        }
        self.clock += 1;
        self.uses.insert(self.clock, key);
        self.entries.insert(key, CachedReport { report, used: self.clock, from: now, until });
    }
}

/// Everything of a route that its report follows from.
fn key(route: &Route<'_>) -> [u8; 32] {
    let mut prefixes = Vec::with_capacity(route.prefixes.len() * 18);
    for prefix in route.prefixes {
        // AFI 1 or 2.
        prefixes.extend_from_slice(&[prefix.afi().code() as u8, prefix.len()]);
        prefixes.extend_from_slice(&prefix.octets());
    }
    // Where a set stands decides who the origin is.
    let origin = route.path.origin();
    let mut path = vec![u8::from(route.path.has_set()), u8::from(origin.is_some())];
    path.extend_from_slice(&origin.map_or(0, |asn| asn.0).to_be_bytes());
    route.path.entries().iter().for_each(|asn| path.extend_from_slice(&asn.0.to_be_bytes()));
    let (kind, value): (u8, &[u8]) = match route.carried {
        Carried::Absent => (0, &[]),
        Carried::Value(value) => (1, value),
        Carried::Malformed => (2, &[]),
    };
    hash("wayleave/attestation/cache/v1", &[&route.receiver.0.to_be_bytes(), &prefixes, &path, &[kind], value])
}

fn fingerprint(context: &Context<'_>) -> [u8; 32] {
    let rules = context.rules;
    let mut directories = Vec::with_capacity(context.directories.len() * 32);
    context.directories.iter().for_each(|tree| directories.extend_from_slice(&tree.root()));
    hash(
        "wayleave/attestation/context/v1",
        &[
            &context.view.generation().to_be_bytes(),
            &[u8::from(rules.lab), u8::from(rules.explain)],
            &rules.least_strength.to_be_bytes(),
            &rules.longest_lifetime.to_be_bytes(),
            &context.clock.uncertainty.to_be_bytes(),
            &directories,
        ],
    )
}

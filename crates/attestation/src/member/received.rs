//! Routes of other members, as the member asks about them, and the bursts in which they are validated.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, VerdictKind};

use super::announced::{Outcomes, Outward};
use super::event::{Finding, RouteId};
use crate::attest;
use crate::cache::Cache;
use crate::chain::Attestation;
use crate::leaf::Tree;
use crate::pipeline::jobs::{Judged, RouteGroup, Validate, carried};
use crate::pipeline::keys::Ring;
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::report::Report;
use crate::validate::Carried;

/// Routes of one burst, at most, so that no announcer's routes wait long behind another's.
const BURST: usize = 256;
/// Bursts that are worked on at a time, at most.
const MOST_BURSTS: usize = 8;
/// Reports that the cache of one announcer's routes holds.
const CACHE: usize = 16_384;

/// A route of another member.
pub(super) struct Entry {
    pub(super) announcer: u32,
    pub(super) set: u64,
    pub(super) prefixes: Vec<Nlri>,
    pub(super) attributes: Arc<Attributes>,
    /// Of each prefix.
    pub(super) reports: Vec<Option<Arc<Report>>>,
    /// What the member was told.
    pub(super) told: Option<Vec<Finding>>,
    /// When it must be looked at again, in seconds since 1970.
    pub(super) due: Option<u64>,
    queued: bool,
    /// Validating it panicked: it is not used.
    pub(super) has_failed: bool,
}

/// The routes of one announcer that wait.
struct Queue {
    ids: VecDeque<RouteId>,
    in_flight: bool,
    /// Of this announcer's validations: one at a time works on it.
    cache: Arc<Mutex<Cache>>,
}

/// All routes that the member asked about.
#[derive(Default)]
pub(super) struct Inward {
    pub(super) entries: HashMap<RouteId, Entry>,
    /// By the address of their attributes, which an entry holds as long as it is there.
    by_attributes: HashMap<usize, RouteId>,
    queues: BTreeMap<u32, Queue>,
    /// The announcer from which on the next burst is looked for: behind the one that was served last.
    turn: u32,
    bursts: usize,
}

/// A burst of routes of one announcer, made under one member set.
pub(super) struct Burst {
    pub(super) announcer: u32,
    pub(super) set: u64,
    pub(super) groups: Vec<RouteGroup>,
    pub(super) cache: Arc<Mutex<Cache>>,
}

fn address(attributes: &Arc<Attributes>) -> usize {
    Arc::as_ptr(attributes) as usize
}

impl Inward {
    pub(super) fn put(&mut self, id: RouteId, announcer: u32, set: u64, prefixes: Vec<Nlri>, attributes: Attributes) {
        self.remove(&id);
        let attributes = Arc::new(attributes);
        self.by_attributes.insert(address(&attributes), id);
        let reports = vec![None; prefixes.len()];
        let entry = Entry {
            announcer,
            set,
            prefixes,
            attributes,
            reports,
            told: None,
            due: None,
            queued: false,
            has_failed: false,
        };
        self.entries.insert(id, entry);
        self.queue(&id);
    }

    /// Forgets a route; when it was due.
    pub(super) fn remove(&mut self, id: &RouteId) -> Option<u64> {
        let entry = self.entries.remove(id)?;
        self.by_attributes.remove(&address(&entry.attributes));
        entry.due
    }

    /// Queues a route that is there, once.
    pub(super) fn queue(&mut self, id: &RouteId) {
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.queued) else { return };
        entry.queued = true;
        let queue = self.queues.entry(entry.announcer).or_insert_with(|| Queue {
            ids: VecDeque::new(),
            in_flight: false,
            cache: Arc::new(Mutex::new(Cache::new(CACHE))),
        });
        queue.ids.push_back(*id);
    }

    /// Queues those for which `of` holds.
    pub(super) fn queue_those(&mut self, of: impl Fn(&Entry) -> bool) {
        let mut ids: Vec<RouteId> = self.entries.iter().filter(|(_, entry)| of(entry)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.iter().for_each(|id| self.queue(id));
    }

    /// Routes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queues.values().map(|queue| queue.ids.len()).sum()
    }

    /// The next burst, if one may be worked on.
    pub(super) fn burst(&mut self) -> Option<Burst> {
        if self.bursts >= MOST_BURSTS {
            return None;
        }
        let Self { queues, entries, .. } = self;
        let waits = |(announcer, queue): (&u32, &Queue)| (!queue.in_flight).then_some(*announcer);
        let turns: Vec<u32> = queues.range(self.turn..).chain(queues.range(..self.turn)).filter_map(waits).collect();
        for announcer in turns {
            let Some(queue) = queues.get_mut(&announcer) else { continue };
            let (mut groups, mut of_set) = (Vec::new(), None);
            while groups.len() < BURST
                && let Some(id) = queue.ids.front()
            {
                // It may have gone, or gone and come, since it was queued.
                let Some(entry) = entries.get_mut(id).filter(|entry| entry.queued) else {
                    queue.ids.pop_front();
                    continue;
                };
                if *of_set.get_or_insert(entry.set) != entry.set {
                    break;
                }
                entry.queued = false;
                queue.ids.pop_front();
                groups.push(RouteGroup { attributes: Arc::clone(&entry.attributes), routes: entry.prefixes.clone() });
            }
            let Some(set) = of_set else { continue };
            queue.in_flight = true;
            self.bursts += 1;
            self.turn = announcer.wrapping_add(1);
            return Some(Burst { announcer, set, groups, cache: Arc::clone(&queue.cache) });
        }
        None
    }

    /// Takes in what a burst found; the routes that are wholly judged.
    pub(super) fn judged(&mut self, announcer: u32, judged: Vec<Judged>, failed: &[RouteGroup]) -> Vec<RouteId> {
        self.bursts = self.bursts.saturating_sub(1);
        if let Some(queue) = self.queues.get_mut(&announcer) {
            queue.in_flight = false;
        }
        let mut ids = Vec::new();
        for group in failed {
            let Some(id) = self.by_attributes.get(&address(&group.attributes)).copied() else { continue };
            self.entries.get_mut(&id).into_iter().for_each(|entry| entry.has_failed = true);
            ids.push(id);
        }
        for Judged { group, report } in judged {
            let Some(id) = self.by_attributes.get(&address(&group.attributes)).copied() else { continue };
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.has_failed = false;
            for nlri in group.routes {
                let place = entry.prefixes.iter().position(|prefix| *prefix == nlri);
                place.into_iter().for_each(|place| entry.reports[place] = Some(Arc::clone(&report)));
            }
            if ids.last() != Some(&id) {
                ids.push(id);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

impl Entry {
    /// The class of the route to the prefix in `place`.
    pub(super) fn class(&self, place: usize) -> Option<VerdictClass> {
        let report = self.reports.get(place)?.as_ref()?;
        Some(VerdictClass::of(report, &self.prefixes.get(place)?.prefix))
    }

    /// What follows, if every prefix is judged: with the hop opened for `receiver`, and as policy has it.
    pub(super) fn findings(&self, policy: &Policy, opened: &Attributes) -> Option<Vec<Finding>> {
        let finding = |place: usize| {
            if self.has_failed {
                return Some(Finding { verdict: VerdictKind::Invalid, attributes: None });
            }
            let class = self.class(place)?;
            Some(Finding { verdict: kind(class), attributes: policy.apply(class, opened) })
        };
        (0..self.prefixes.len()).map(finding).collect()
    }
}

/// A class as ranking and rules know it.
fn kind(class: VerdictClass) -> VerdictKind {
    match class {
        VerdictClass::Valid => VerdictKind::Valid,
        VerdictClass::Gap => VerdictKind::Gap,
        VerdictClass::Unattested | VerdictClass::Missing => VerdictKind::Unattested,
        VerdictClass::Expired => VerdictKind::Expired,
        VerdictClass::Invalid | VerdictClass::Malformed => VerdictKind::Invalid,
    }
}

/// The route with the receiver's own opening in its last hop, if that is for the members of `directory`: whoever has no
/// directory can go on from there.
pub(super) fn opened(
    attributes: &Attributes,
    code: wayleave_bgp::AttributeCode,
    directory: Option<&Tree>,
    receiver: Asn,
) -> Attributes {
    let Carried::Value(value) = carried(attributes, code) else { return attributes.clone() };
    let written = Attestation::decode(value).ok().zip(directory).and_then(|(attestation, tree)| {
        let written = attest::open(&attestation, tree, receiver)?;
        (written != value).then_some(written)
    });
    let (Some(written), Some(found)) = (written, attributes.get(code)) else { return attributes.clone() };
    let mut edit = attributes.edit();
    edit.remove(code).set(code, found.flags, &written);
    edit.finish()
}

/// Work for a pool.
pub struct Job(pub(super) Work);

pub(super) enum Work {
    Validate(u32, Validate),
    Outward(Outward),
    /// Keys are to be made ready for their next signatures.
    Ahead(Ring),
}

/// Work that is done.
#[derive(Debug)]
pub struct Done {
    pub(super) result: Results,
    /// Groups for which the work panicked.
    pub(super) failed: Vec<RouteGroup>,
}

#[derive(Debug)]
pub(super) enum Results {
    Validated(u32, Vec<Judged>),
    Outward(Outcomes),
    /// Whether keys were made.
    Ahead(bool),
}

impl Job {
    /// Does it. Takes as long as the signatures do; any thread may. A panic inside is caught, and told with the routes
    /// that caused it.
    #[must_use]
    pub fn run(self) -> Done {
        let (result, failed) = match self.0 {
            Work::Validate(announcer, work) => {
                let (judged, failed) = work.run();
                (Results::Validated(announcer, judged), failed)
            }
            Work::Outward(work) => {
                let (outcomes, failed) = work.run();
                (Results::Outward(outcomes), failed)
            }
            Work::Ahead(ring) => (Results::Ahead(ring.make_ahead()), Vec::new()),
        };
        Done { result, failed }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Work::Validate(..) => "Job(validate)",
            Work::Outward(_) => "Job(sign)",
            Work::Ahead(_) => "Job(make keys ahead)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_announcers_with_many_routes_leave_a_turn_to_the_others() {
        let mut inward = Inward::default();
        for announcer in 0..10u32 {
            for number in 0..2 * BURST as u32 {
                let mut id = [0; 32];
                id[..4].copy_from_slice(&announcer.to_be_bytes());
                id[4..8].copy_from_slice(&number.to_be_bytes());
                inward.put(id, announcer, 1, Vec::new(), Attributes::builder().finish());
            }
        }
        let mut served: Vec<u32> = std::iter::from_fn(|| inward.burst()).map(|burst| burst.announcer).collect();
        assert_eq!(served.len(), MOST_BURSTS);
        for done in 0..MOST_BURSTS as u32 {
            inward.judged(done, Vec::new(), &[]);
            served.push(inward.burst().expect("routes wait").announcer);
        }
        assert_eq!(served, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
    }
}

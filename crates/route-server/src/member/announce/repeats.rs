//! Routes that are announced again though nothing of them changed, so that a reload does not show which of them it concerns, or since
//! not all members read the format that they have.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_core::Instant;
use wayleave_core::wire::{Codec, Writer};
use wayleave_crypto::hash::hash;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;

use super::flush::Group;
use super::{Announcements, Context};
use crate::codecs::NlriCodec;
use crate::policy::{ExportSet, Policy};

/// How often objects that did not change are announced again after a reload, and how many each time: our own limit of 500
/// objects a second, so that what changes meanwhile goes first and parties are not flooded.
const INTERVAL: Duration = Duration::from_millis(100);
const BURST: usize = 50;
const LABEL_ORDER: &str = "wayleave/route-server/repeats/v1";

/// An UPDATE, and prefixes of one object that it brought. Those that no longer wait, or that another UPDATE brought
/// meanwhile, are passed over.
type Repeat = (u64, Vec<Nlri>);

pub(super) struct Repeats {
    /// What is still to be announced, and the UPDATE that had brought it when it came to wait.
    waiting: BTreeMap<Nlri, u64>,
    queue: VecDeque<Repeat>,
    next: Instant,
    /// Orders what is announced again. Others see the objects change one after the other: in the order of prefixes they would see between which
    /// of those that they know a sealed one lies. It follows from no policy and no route.
    order: Seed,
}

impl Repeats {
    pub(super) fn new(seed: &Seed, now: Instant) -> Self {
        let order = kdf::derive(LABEL_ORDER, seed.expose(), &[]);
        Self { waiting: BTreeMap::new(), queue: VecDeque::new(), next: now, order }
    }

    /// Where an UPDATE stands by one of its prefixes.
    fn place(&self, nlri: &Nlri) -> [u8; 32] {
        let mut encoded = Writer::with_capacity(32);
        NlriCodec::write(nlri, &mut encoded);
        hash(LABEL_ORDER, &[self.order.expose(), &encoded.finish()])
    }

    /// Prefixes that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// When the next of them are announced.
    pub(super) fn next(&self) -> Option<Instant> {
        (!self.queue.is_empty()).then_some(self.next)
    }

    /// The UPDATE with which the prefix waits, if it does.
    pub(super) fn update_of(&self, nlri: &Nlri) -> Option<u64> {
        self.waiting.get(nlri).copied()
    }

    /// The prefix was announced or withdrawn, so that its turn need not come.
    pub(super) fn remove(&mut self, nlri: &Nlri) {
        self.waiting.remove(nlri);
    }

    /// All of these wait: first what waits since the last time, so that frequent reloads leave nothing out, then the others
    /// of `announced`. `update_of`: the UPDATE that brought a prefix. At most `most` prefixes share an object.
    fn restart<'a>(
        &mut self,
        announced: impl Iterator<Item = &'a Nlri>,
        update_of: impl Fn(&Nlri) -> Option<u64>,
        most: usize,
    ) {
        let waiting = std::mem::take(&mut self.queue).into_iter().flat_map(|(_, prefixes)| prefixes);
        let mut order: Vec<Nlri> = waiting.filter(|nlri| self.waiting.remove(nlri).is_some()).collect();
        let first: BTreeSet<Nlri> = order.iter().copied().collect();
        let began_before = order.len();
        order.extend(announced.filter(|nlri| !first.contains(nlri)));
        let mut places: HashMap<u64, usize> = HashMap::new();
        let mut groups: Vec<Repeat> = Vec::new();
        let mut before = 0;
        for (number, nlri) in order.into_iter().enumerate() {
            let Some(update) = update_of(&nlri) else { continue };
            let place = *places.entry(update).or_insert(groups.len());
            if place == groups.len() {
                groups.push((update, Vec::new()));
            }
            groups[place].1.push(nlri);
            if number < began_before {
                before = groups.len();
            }
        }
        groups[before..].sort_by_cached_key(|(_, prefixes)| self.place(&prefixes[0]));
        let each = groups.iter().flat_map(|(update, prefixes)| prefixes.iter().map(|nlri| (*nlri, *update)));
        self.waiting = each.collect();
        let objects = groups.iter().flat_map(|(update, prefixes)| prefixes.chunks(most).map(|part| (*update, part)));
        self.queue = objects.map(|(update, prefixes)| (update, prefixes.to_vec())).collect();
    }
}

/// What one flush announces again.
#[derive(Default)]
pub(super) struct Turn {
    /// When it began, until its first object.
    began: Option<Instant>,
    /// How many more of the queue it takes.
    left: usize,
    /// What it took last, and the objects of that which are still to be sent.
    last: Repeat,
    groups: VecDeque<Group>,
}

impl Turn {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: Some(now), left: BURST, ..Self::default() }
    }
}

impl Announcements {
    /// Announces everything again. The order follows from no policy.
    pub(in super::super) fn repeat_all(&mut self, policy: &Policy) {
        let update_of = |nlri: &Nlri| self.router.get(nlri).map(|route| route.update);
        self.repeats.restart(self.announced.keys(), update_of, super::prefixes_per_object(policy));
    }

    /// Announces again what is announced in a higher format than this, as all announcers do: which that is, the parties know.
    pub(in super::super) fn repeat_above(&mut self, format: u16, policy: &Policy) {
        let update_of = |nlri: &Nlri| self.router.get(nlri).map(|route| route.update);
        let above = self.announced.iter().filter(|(_, last)| last.format > format).map(|(nlri, _)| nlri);
        self.repeats.restart(above, update_of, super::prefixes_per_object(policy));
    }

    /// The next object of a turn; `None` once the turn is over.
    pub(super) fn next_repeat(&mut self, turn: &mut Turn, context: &Context<'_>) -> Option<Group> {
        if let Some(began) = turn.began.take() {
            // Also if nothing of it is sent in the end: for lack of credit, for instance.
            self.repeats.next = began + INTERVAL;
        }
        loop {
            if let Some(group) = turn.groups.pop_front() {
                return Some(group);
            }
            turn.left = turn.left.checked_sub(1)?;
            turn.last = self.repeats.queue.pop_front()?;
            turn.groups = self.decide_again(&turn.last, context);
        }
    }

    /// The object that was to be sent last could not be: all that was taken from the queue with it is taken again next time.
    /// Those of its prefixes that were sent wait no longer, and are passed over then.
    pub(super) fn put_back(&mut self, turn: &mut Turn) {
        self.repeats.queue.push_front(std::mem::take(&mut turn.last));
    }

    /// Decides who may have the prefixes now. The objects are in the order of their receivers' sets.
    fn decide_again(&mut self, (update, prefixes): &Repeat, context: &Context<'_>) -> VecDeque<Group> {
        let mut groups: BTreeMap<ExportSet, Group> = BTreeMap::new();
        for nlri in prefixes {
            if self.repeats.update_of(nlri).is_none() {
                continue;
            }
            // Another UPDATE, or the loss of the object, announces it by itself.
            let is_announced = self.announced.contains_key(nlri);
            let Some(route) = self.router.get(nlri).filter(|route| route.update == *update && is_announced) else {
                self.repeats.remove(nlri);
                continue;
            };
            let exported = context.export_set(nlri, &route.attributes);
            let group = groups.entry(exported.clone()).or_insert_with(|| Group::new(&route.attributes, exported));
            group.prefixes.push_back(*nlri);
        }
        groups.into_values().collect()
    }
}

//! What a batch takes of the objects that wait: how much an object is to the parties and to members, and what its announcer has left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;

use super::budget::{octets_stored, prefixes_allowed};
use super::state::State;
use super::waiting::PendingObject;
use super::{lack, round};
use crate::frames::MAX_PATHS;
use crate::object::{Description, Kind};
use crate::object_table::{ObjectTable, Part};
use crate::schedule;

/// Objects of one batch: our own limit, so that a batch stays a bounded amount of work.
pub(super) const MAX_BATCH: usize = 1024;
/// Octets, about, that a batch brings to each member that is up to date: our own limit.
pub(super) const BATCH_BYTES: usize = 1 << 20;
/// Comparators, in all lanes, of what one batch changes for those who rank, about: our own limit.
pub(super) const LIVE_COMPARATORS: usize = 1 << 17;
/// Comparators of one announcer that wait for the engine or come with the batch: our own limit. Beyond it, further announcements of it that
/// have to be ranked wait: with an empty pool these are about 0.1 s of the engine's work. What waits for rankings does not count: it takes
/// nothing from anybody. Where routes go, four times as many may wait. An object is taken whatever it costs when there is nothing else of
/// its announcer.
pub(super) const OPEN_COMPARATORS: usize = 1 << 15;
pub(super) const OPEN_COMPARATORS_GOING: usize = 1 << 17;
/// For how long members that are up to date have work, by the schedule, after a batch: our own limit, of the most objects of one batch, and so
/// that with rankings it is less than what credit of a member covers, however many announcers are busy.
const LIVE_WORK: Duration = Duration::from_millis(160);

/// What objects that a batch takes come to.
#[derive(Default)]
pub(super) struct BatchLoad {
    pub(super) objects: usize,
    /// Octets that they bring to each member that is up to date, about.
    pub(super) octets: usize,
    pub(super) comparators: usize,
}

impl BatchLoad {
    /// What one batch takes; the last object may exceed it.
    pub(super) const MOST: Self = Self { objects: MAX_BATCH, octets: BATCH_BYTES, comparators: LIVE_COMPARATORS };

    pub(super) fn reaches(&self, most: &Self) -> bool {
        self.objects >= most.objects || self.octets >= most.octets || self.comparators >= most.comparators
    }

    /// Adds an object.
    pub(super) fn add(&mut self, octets: usize, comparators: usize) {
        self.objects += 1;
        self.octets += octets;
        self.comparators += comparators;
    }
}

/// Comparators that each member that ranks needs because of an object: among all routes of its prefixes, once it counts, and with those
/// that the batch has added before it.
pub(super) fn comparators(party: &State, slot: u32, kind: &Kind, added: &BTreeMap<Prefix, usize>) -> usize {
    let (prefixes, is_new) = match kind {
        Kind::Announce { prefixes } => (prefixes, true),
        Kind::Withdraw { prefixes } => (prefixes, false),
        Kind::Column { .. } => return 0,
    };
    let of_prefix = |paths: &[Nlri]| {
        let owned = paths.iter().filter(|nlri| party.objects.table().owns(slot, nlri)).count();
        if !is_new && owned == 0 {
            return 0;
        }
        let prefix = &paths[0].prefix;
        let own = party.objects.table().paths_of(slot, prefix);
        let others =
            party.objects.table().routes_of(prefix) - own.min(MAX_PATHS) + added.get(prefix).copied().unwrap_or(0);
        let left = own - owned + if is_new { paths.len() } else { 0 };
        round::comparators(others + left.min(MAX_PATHS))
    };
    prefixes.chunk_by(|one, other| one.prefix == other.prefix).map(of_prefix).sum()
}

/// Octets, about, that an object brings to each member that is up to date beyond its own blob: what it names and lists. What a column
/// opens goes to new slots alone, and does not keep objects from the others.
pub(super) fn octets_told(party: &State, kind: &Kind) -> usize {
    match kind {
        Kind::Announce { prefixes } | Kind::Withdraw { prefixes } => {
            lack::listing(party.objects.table(), prefixes.iter())
        }
        Kind::Column { .. } => 0,
    }
}

/// Octets of an object's blob, which only party 1 has.
pub(super) fn blob_octets(object: &PendingObject) -> usize {
    match &object.part {
        Some(Part::One { blob, .. }) => blob.len(),
        _ => 0,
    }
}

/// How much work the objects of the next batch may be for members that are up to date; without limit if they take up all at once. Some
/// may come always, so that no announcer waits for what one batch listed, however much that was.
pub(super) fn work_left(party: &State) -> Option<Duration> {
    let left = LIVE_WORK.saturating_sub(party.batches.work_left(party.now()));
    (!party.batches.tick().is_zero()).then(|| schedule::without_spare(left).max(party.batches.tick() / 8))
}

/// The work that an object is for each of them, about.
pub(super) fn work_of(party: &State, kind: &Kind) -> Duration {
    let candidates =
        |prefixes: &[Nlri]| prefixes.iter().map(|nlri| party.objects.table().routes_of(&nlri.prefix) + 1).sum();
    match kind {
        Kind::Announce { prefixes } => schedule::work(1, candidates(prefixes)),
        Kind::Withdraw { prefixes } => schedule::work(0, candidates(prefixes)),
        Kind::Column { .. } => Duration::ZERO,
    }
}

/// Prefixes that an object adds to those of its announcer.
pub(super) fn new_prefixes(party: &State, slot: u32, kind: &Kind) -> usize {
    let Kind::Announce { prefixes } = kind else { return 0 };
    prefixes.iter().filter(|nlri| !party.objects.table().owns(slot, nlri)).count()
}

/// Prefixes that a member may announce in all.
fn allowed(party: &State, slot: u32) -> u32 {
    prefixes_allowed(party.membership.set().slot(slot).map_or(0, |s| s.max_prefix), party.env.config.max_prefix_limit)
}

/// Prefixes that a member may announce beyond those it does.
pub(super) fn prefixes_left(party: &State, slot: u32) -> usize {
    (allowed(party, slot) as usize).saturating_sub(party.objects.table().prefixes_of(slot))
}

/// What the objects that a batch takes of a slot replace.
#[derive(Default)]
pub(super) struct Replaced {
    nlri: BTreeSet<Nlri>,
    /// How many live prefixes are left of each object that loses some.
    left: BTreeMap<u64, usize>,
    octets: u64,
}

impl Replaced {
    /// Octets of the blobs of all stored objects of which nothing is left once this object, and those before it, are applied.
    pub(super) fn by(&mut self, table: &ObjectTable, description: &Description) -> u64 {
        for nlri in description.prefixes() {
            let Some(owner) = table.owner(description.slot, nlri).filter(|_| self.nlri.insert(*nlri)) else { continue };
            let version = owner.header.description.version;
            let left = self.left.entry(version).or_insert_with(|| owner.live().count());
            *left = left.saturating_sub(1);
            self.octets += if *left == 0 { owner.octets() } else { 0 };
        }
        self.octets
    }
}

/// Octets of blobs that a member may have stored beyond those it has.
pub(super) fn octets_left(party: &State, slot: u32) -> u64 {
    octets_stored(allowed(party, slot)).saturating_sub(party.objects.table().octets_of(slot))
}

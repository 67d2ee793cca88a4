//! The member as announcer: the router's routes, what the parties have of them, and what is still to be sent.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Instant, Now};
use wayleave_crypto::secret::{Key128, Seed};

use super::{Member, MemberEvent, MemberOutput, RESERVE, VERSION_KEY};
use crate::directory::MemberSet;
use crate::frames::{FromMember, Refusal};
use crate::object::{self, Description, Fresh, Kind, MAX_COLUMN, MAX_PREFIXES};
use crate::party::{Change, PartyNumber, PersistId};
use crate::policy::{ExportSet, export_set, sealed_attributes};

/// Objects that may be in flight: our own limit, so that a member never floods a party.
const WINDOW: usize = 512;

/// Version numbers of objects. Each is used once, over all restarts of the process.
pub(super) struct Versions {
    next: u64,
    /// Versions below this may be used: the store has reserved them.
    reserved: u64,
    writing: Option<(PersistId, u64)>,
}

impl Versions {
    /// A party has seen `version`: lower ones and itself cannot be used.
    pub(super) fn seen(&mut self, version: u64) {
        self.next = self.next.max(version.saturating_add(1));
    }

    pub(super) fn durable(&mut self, id: PersistId) {
        if let Some((_, until)) = self.writing.take_if(|(writing, _)| *writing == id) {
            self.reserved = until;
        }
    }

    /// Whether no version is left. The slot can then announce nothing more.
    pub(super) fn are_spent(&self) -> bool {
        self.next == u64::MAX
    }

    fn take(&mut self) -> Option<u64> {
        if self.next >= self.reserved {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

/// A route of the router, and the UPDATE that brought it: the prefixes of one may share an object, and no others, so
/// that parties see which prefixes shared an UPDATE and not which routes are alike.
struct RouterRoute {
    update: u64,
    attributes: Attributes,
    /// The members that they were signed for ([`MemberSet::neighbours_digest`]); `None` if they were not signed.
    under: Option<[u8; 32]>,
}

/// What was last announced to the parties for a prefix; the attributes as the router sent them.
struct AnnouncedRoute {
    version: u64,
    attributes: Attributes,
    exported: ExportSet,
}

/// An own object since the start of the process, as far as columns need it.
struct OwnObject {
    prefixes: Vec<Nlri>,
    key: Key128,
    seed: Seed,
    epoch: u64,
    width: u32,
}

/// The announcing half of a member's state.
pub(super) struct Announcements {
    pub(super) versions: Versions,
    router: BTreeMap<Nlri, RouterRoute>,
    updates: u64,
    announced: BTreeMap<Nlri, AnnouncedRoute>,
    /// Prefixes that the parties hold, or may hold, from before this process started.
    leftover: BTreeSet<Nlri>,
    dirty: BTreeSet<Nlri>,
    /// Prefixes that were refused for good: not announced again before the router or a new session changes something.
    barred: BTreeSet<Nlri>,
    objects: BTreeMap<u64, OwnObject>,
    in_flight: BTreeMap<u64, Vec<Nlri>>,
    is_settled: bool,
    pub(super) settles_at: Option<Instant>,
    pub(super) next_flush: Instant,
}

impl Announcements {
    pub(super) fn new(used: u64, now: Instant) -> Self {
        Self {
            versions: Versions { next: used.saturating_add(1), reserved: 0, writing: None },
            router: BTreeMap::new(),
            updates: 0,
            announced: BTreeMap::new(),
            leftover: BTreeSet::new(),
            dirty: BTreeSet::new(),
            barred: BTreeSet::new(),
            objects: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            is_settled: false,
            settles_at: None,
            next_flush: now,
        }
    }

    /// Whether something can be sent now.
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() && self.in_flight.len() < WINDOW
    }

    /// Whether a version is available; if not, the store is reserving more.
    pub(super) fn has_versions(&self) -> bool {
        self.versions.next < self.versions.reserved
    }

    pub(super) fn router_routes(&self) -> usize {
        self.router.len()
    }

    pub(super) fn unconfirmed(&self) -> usize {
        self.in_flight.len() + self.dirty.len()
    }

    pub(super) fn router_up(&mut self, settles_at: Instant) {
        self.settles_at = Some(settles_at);
    }

    /// The router's session is down: all that it announced is gone.
    pub(super) fn router_down(&mut self) {
        self.settles_at = None;
        self.dirty.extend(std::mem::take(&mut self.router).into_keys());
    }

    pub(super) fn router_update(&mut self, withdrawn: &[Nlri], announced: &[Nlri], attributes: Option<&Attributes>) {
        for nlri in withdrawn {
            if self.router.remove(nlri).is_some() {
                self.barred.remove(nlri);
                self.dirty.insert(*nlri);
            }
        }
        if let Some(attributes) = attributes {
            self.announce(announced, attributes, None);
        }
    }

    /// The router's routes, signed for the members whose list has this digest.
    pub(super) fn signed(&mut self, announced: &[Nlri], attributes: &Attributes, under: [u8; 32]) {
        self.announce(announced, attributes, Some(under));
    }

    fn announce(&mut self, announced: &[Nlri], attributes: &Attributes, under: Option<[u8; 32]>) {
        self.updates += 1;
        for nlri in announced {
            if self.router.get(nlri).is_none_or(|known| known.attributes != *attributes || known.under != under) {
                let route = RouterRoute { update: self.updates, attributes: attributes.clone(), under };
                self.router.insert(*nlri, route);
                self.barred.remove(nlri);
                self.dirty.insert(*nlri);
            }
        }
    }

    /// The router has sent all its routes: what the parties hold beyond them is withdrawn.
    pub(super) fn settled(&mut self) {
        self.settles_at = None;
        self.is_settled = true;
        self.dirty.extend(&self.leftover);
    }

    pub(super) fn mark_all_dirty(&mut self) {
        self.barred.clear();
        self.dirty.extend(self.router.keys().copied());
    }

    /// What was in flight may be lost; the next inventory shows whether it is.
    pub(super) fn session_lost(&mut self) {
        for (_, prefixes) in std::mem::take(&mut self.in_flight) {
            for nlri in prefixes {
                self.announced.remove(&nlri);
                // The parties may have it or not: a later object or withdrawal decides.
                self.leftover.insert(nlri);
                self.dirty.insert(nlri);
            }
        }
    }

    /// The parties' inventory of this member's objects.
    pub(super) fn inventory(&mut self, own: &[(u64, Vec<Nlri>)]) {
        let mut held: BTreeMap<Nlri, u64> = BTreeMap::new();
        for (version, live) in own {
            held.extend(live.iter().map(|nlri| (*nlri, *version)));
        }
        let lost: Vec<Nlri> = self
            .announced
            .iter()
            .filter(|(nlri, last)| held.get(nlri) != Some(&last.version) && !self.in_flight.contains_key(&last.version))
            .map(|(nlri, _)| *nlri)
            .collect();
        for nlri in lost {
            self.announced.remove(&nlri);
            self.dirty.insert(nlri);
        }
        for (nlri, version) in held {
            if self.announced.get(&nlri).is_none_or(|last| last.version != version) {
                self.leftover.insert(nlri);
                if self.is_settled || self.router.contains_key(&nlri) {
                    self.dirty.insert(nlri);
                }
            }
        }
        let live: BTreeSet<u64> = own.iter().map(|(version, _)| *version).collect();
        self.confirm_by_inventory(&live);
        self.objects.retain(|version, _| live.contains(version) || self.in_flight.contains_key(version));
    }

    /// Removes from what is in flight whatever both parties have applied, also where the tick that confirms it was lost with
    /// the link between the parties. An inventory does not list columns, so the objects of a column are announced again.
    fn confirm_by_inventory(&mut self, live: &BTreeSet<u64>) {
        let held = |nlri: &Nlri| self.leftover.contains(nlri);
        let announced_as =
            |nlri: &Nlri, version: u64| self.announced.get(nlri).is_some_and(|last| last.version == version);
        let (mut done, mut columns) = (Vec::new(), Vec::new());
        for (version, prefixes) in &self.in_flight {
            let announced = prefixes.iter().any(|nlri| announced_as(nlri, *version));
            let columned = prefixes.iter().any(|nlri| self.announced.get(nlri).is_some_and(|t| t.version < *version));
            if live.contains(version) || (!announced && !columned && !prefixes.iter().any(held)) {
                done.push(*version);
            } else if columned && !announced {
                columns.push(*version);
            }
        }
        for version in done {
            self.in_flight.remove(&version);
        }
        for nlri in columns.into_iter().filter_map(|version| self.in_flight.remove(&version)).flatten() {
            self.announced.remove(&nlri);
            self.dirty.insert(nlri);
        }
    }

    /// Both parties applied these.
    pub(super) fn applied(&mut self, versions: &[u64]) {
        for version in versions {
            self.in_flight.remove(version);
        }
    }

    pub(super) fn refused(&mut self, version: u64, reason: Refusal) {
        let Some(prefixes) = self.in_flight.remove(&version) else { return };
        self.objects.remove(&version);
        let again = !matches!(reason, Refusal::MaxPrefix | Refusal::Size | Refusal::Proof);
        for nlri in prefixes {
            // A column or a withdrawal is refused with the same effect as an announcement: what the parties have of
            // this prefix is not what it should be.
            if self.announced.get(&nlri).is_some_and(|last| last.version <= version) {
                self.announced.remove(&nlri);
            }
            if !self.announced.contains_key(&nlri) {
                self.leftover.insert(nlri);
            }
            if !again {
                // Whatever the parties still have of it may go to whom it no longer may: it is withdrawn instead.
                self.barred.insert(nlri);
            }
            self.dirty.insert(nlri);
        }
    }

    /// Forgets the keys of an object that owns none of its prefixes any more.
    fn forget_object(&mut self, version: u64) {
        let owns = |nlri: &Nlri| self.announced.get(nlri).is_some_and(|last| last.version == version);
        if !self.objects.get(&version).is_some_and(|own| own.prefixes.iter().any(owns)) {
            self.objects.remove(&version);
        }
    }
}

/// Whether two export decisions are the same for every present member. The slots of former members do not matter.
fn same_for_members(last: &ExportSet, now: &ExportSet, set: &MemberSet) -> bool {
    let same = |(slot, _): (u32, &crate::directory::Slot)| last.contains(slot) == now.contains(slot);
    last.width() == now.width() && set.iter().filter(|(_, slot)| slot.active).all(same)
}

impl Member {
    /// Sends what changed, withdrawals first, as far as the window and the store allow.
    pub(super) fn flush(&mut self, now: Now) {
        if !self.synced || !self.announcements.has_dirty() || !self.is_listed() {
            return;
        }
        // Versions first: without one there is no deadline, and the store wakes this up.
        if !self.reserve_versions() || now.instant < self.announcements.next_flush {
            return;
        }
        self.announcements.next_flush = now.instant + self.tick;
        let (withdrawn, announced) = self.sort_dirty();
        for chunk in withdrawn.chunks(MAX_PREFIXES) {
            if !self.submit_withdrawal(chunk) {
                return;
            }
        }
        let most = if self.policy.exports_by_prefix() { 1 } else { MAX_PREFIXES };
        for ((attributes, exported), prefixes) in announced {
            for chunk in prefixes.chunks(most) {
                if !self.submit_announcement(chunk, &attributes, &exported) {
                    return;
                }
            }
        }
    }

    /// Reserves versions in the store in time; `false` while none is left.
    fn reserve_versions(&mut self) -> bool {
        let versions = &mut self.announcements.versions;
        let left = versions.reserved.saturating_sub(versions.next);
        if left < RESERVE / 2 && versions.writing.is_none() && !versions.are_spent() {
            self.next_persist += 1;
            let until = versions.next.saturating_add(RESERVE);
            versions.writing = Some((self.next_persist, until));
            let change = Change {
                table: crate::party::META,
                key: VERSION_KEY.to_vec(),
                value: Some(until.to_be_bytes().to_vec()),
            };
            self.output.push_back(MemberOutput::Persist { id: self.next_persist, changes: vec![change] });
        }
        left > 0
    }

    /// Splits what is dirty into withdrawals and announcements; what the parties already know is no longer dirty.
    ///
    /// Prefixes share an object if they shared an UPDATE, and then they have one policy. Where rules look at prefixes
    /// that need not be so, and each prefix is an object of its own, always: to split only where policies differ would
    /// show that they do.
    #[expect(clippy::type_complexity, reason = "withdrawn prefixes, and announced ones by what they share")]
    fn sort_dirty(&mut self) -> (Vec<Nlri>, Vec<((Attributes, ExportSet), Vec<Nlri>)>) {
        let Some(set) = &self.set else { return (Vec::new(), Vec::new()) };
        let a = &mut self.announcements;
        let (mut withdrawn, mut clean) = (Vec::new(), Vec::new());
        let mut groups: HashMap<(u64, ExportSet), usize> = HashMap::new();
        let mut announced: Vec<((Attributes, ExportSet), Vec<Nlri>)> = Vec::new();
        for nlri in &a.dirty {
            let last = a.announced.get(nlri);
            let is_barred = a.barred.contains(nlri);
            let Some(RouterRoute { update, attributes, under }) = a.router.get(nlri).filter(|_| !is_barred) else {
                let known = last.is_some() || ((a.is_settled || is_barred) && a.leftover.contains(nlri));
                if known {
                    withdrawn.push(*nlri);
                } else if !a.leftover.contains(nlri) {
                    clean.push(*nlri);
                }
                continue;
            };
            if under.is_some_and(|under| under != self.neighbours) {
                // Signed for the members of another set: attestation signs it again for this one.
                clean.push(*nlri);
                continue;
            }
            let slot = self.config.slot;
            let exported = export_set(nlri.prefix, attributes, slot, set, self.config.rs_asn, &self.policy);
            if last
                .is_some_and(|last| last.attributes == *attributes && same_for_members(&last.exported, &exported, set))
            {
                clean.push(*nlri);
                continue;
            }
            let group = *groups.entry((*update, exported.clone())).or_insert_with(|| {
                announced.push(((attributes.clone(), exported), Vec::new()));
                announced.len() - 1
            });
            announced[group].1.push(*nlri);
        }
        for nlri in clean {
            a.dirty.remove(&nlri);
        }
        // Leftovers wait until the router has sent all its routes.
        let is_settled = a.is_settled;
        let router = &a.router;
        let last = &a.announced;
        a.dirty.retain(|nlri| is_settled || router.contains_key(nlri) || last.contains_key(nlri));
        (withdrawn, announced)
    }

    fn describe(&mut self, kind: Kind) -> Option<Description> {
        let set = self.set.as_ref()?.number;
        if self.announcements.in_flight.len() >= WINDOW {
            return None;
        }
        let version = self.announcements.versions.take()?;
        Some(Description { slot: self.config.slot, set, epoch: self.epoch, version, salt: self.rng.bytes(), kind })
    }

    fn submit_withdrawal(&mut self, prefixes: &[Nlri]) -> bool {
        let kind = Kind::Withdraw { prefixes: prefixes.to_vec() };
        let Some(description) = self.describe(kind) else { return false };
        let version = description.version;
        let header = Box::new(object::withdraw(&self.config.exchange, description, &self.signing));
        self.send(PartyNumber::One, &FromMember::SubmitOne { header: header.clone(), body: None });
        self.send(PartyNumber::Two, &FromMember::SubmitTwo { header, share: None });
        let a = &mut self.announcements;
        for nlri in prefixes {
            if let Some(old) = a.announced.remove(nlri) {
                a.forget_object(old.version);
            }
            a.leftover.remove(nlri);
            a.dirty.remove(nlri);
        }
        a.in_flight.insert(version, prefixes.to_vec());
        self.counters.withdrawals += 1;
        true
    }

    fn submit_announcement(&mut self, prefixes: &[Nlri], attributes: &Attributes, exported: &ExportSet) -> bool {
        let kind = Kind::Announce { prefixes: prefixes.to_vec() };
        let Some(description) = self.describe(kind) else { return false };
        let (version, epoch) = (description.version, description.epoch);
        let fresh =
            Fresh { key: self.rng.bytes(), seed: self.rng.bytes(), openings: [self.rng.bytes(), self.rng.bytes()] };
        let row = exported.to_bools();
        let inside = sealed_attributes(attributes, self.config.rs_asn).encode();
        let sealed = object::announce(&self.config.exchange, description, &inside, &row, &fresh, &self.signing);
        let a = &mut self.announcements;
        let width = u32::try_from(row.len()).expect("the directory bounds the slots of a set");
        let own =
            OwnObject { prefixes: prefixes.to_vec(), key: sealed.key, seed: sealed.one.seed.clone(), epoch, width };
        a.objects.insert(version, own);
        for nlri in prefixes {
            let last = AnnouncedRoute { version, attributes: attributes.clone(), exported: exported.clone() };
            if let Some(old) = a.announced.insert(*nlri, last) {
                a.forget_object(old.version);
            }
            a.leftover.remove(nlri);
            a.dirty.remove(nlri);
        }
        a.in_flight.insert(version, prefixes.to_vec());
        self.counters.announcements += 1;
        let header = Box::new(sealed.header);
        let body = Some((sealed.one, sealed.blob.into()));
        self.send(PartyNumber::One, &FromMember::SubmitOne { header: header.clone(), body });
        self.send(PartyNumber::Two, &FromMember::SubmitTwo { header, share: Some(sealed.two) });
        true
    }

    /// The member set is larger: every own object gets the new slots' columns.
    pub(super) fn set_grew(&mut self) {
        if !self.synced {
            self.announcements.mark_all_dirty();
            return;
        }
        let Some(set) = self.set.clone() else { return };
        let to = u32::try_from(set.slots.len()).expect("the directory bounds the slots of a set");
        let mut by_width: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (version, own) in &self.announcements.objects {
            if own.width < to {
                by_width.entry(own.width).or_default().push(*version);
            }
        }
        for (from, versions) in by_width {
            for chunk in versions.chunks(MAX_COLUMN) {
                self.submit_column(&set, from, to, chunk);
            }
        }
        // Export decisions that a column cannot express are made again for the new set.
        self.announcements.mark_all_dirty();
    }

    fn submit_column(&mut self, set: &MemberSet, from: u32, to: u32, candidates: &[u64]) {
        if !self.reserve_versions() {
            return;
        }
        let (mut versions, mut row, mut exports) = (Vec::new(), Vec::new(), Vec::new());
        for version in candidates {
            let Some((exported, part)) = self.column_part(set, *version, from) else { continue };
            versions.push(*version);
            row.extend_from_slice(&part);
            exports.push(exported);
        }
        if versions.is_empty() {
            return;
        }
        let Some(description) = self.describe(Kind::Column { from, to, versions: versions.clone() }) else { return };
        let number = description.version;
        let opening = self.rng.bytes();
        let (header, two) = object::column(&self.config.exchange, description, opening, row, &self.signing);
        let header = Box::new(header);
        self.send(PartyNumber::One, &FromMember::SubmitOne { header: header.clone(), body: None });
        self.send(PartyNumber::Two, &FromMember::SubmitTwo { header, share: Some(two) });
        let a = &mut self.announcements;
        let mut covered = Vec::new();
        for (version, exported) in versions.iter().zip(exports) {
            let Some(own) = a.objects.get_mut(version) else { continue };
            own.width = to;
            for nlri in &own.prefixes {
                if let Some(last) = a.announced.get_mut(nlri).filter(|last| last.version == *version) {
                    last.exported = exported.clone();
                    covered.push(*nlri);
                }
            }
        }
        a.in_flight.insert(number, covered);
        self.event(MemberEvent::Column { from, to, objects: versions.len() });
    }

    /// Party 2's shares of an object for the new slots, if one decision fits all prefixes that it still owns.
    fn column_part(&self, set: &MemberSet, version: u64, from: u32) -> Option<(ExportSet, Vec<u8>)> {
        let a = &self.announcements;
        let own = a.objects.get(&version)?;
        let mut decided: Option<ExportSet> = None;
        for nlri in own.prefixes.iter().filter(|nlri| a.announced.get(nlri).is_some_and(|last| last.version == version))
        {
            let attributes = &a.router.get(nlri)?.attributes;
            let slot = self.config.slot;
            let exported = export_set(nlri.prefix, attributes, slot, set, self.config.rs_asn, &self.policy);
            if decided.as_ref().is_some_and(|decided| *decided != exported) {
                return None;
            }
            decided = Some(exported);
        }
        let exported = decided?;
        let bools = exported.to_bools();
        let new = bools.get(from as usize..)?;
        let row = object::key_row(&self.config.exchange, &own.seed, &own.key, own.epoch, from, new);
        Some((exported, row))
    }
}

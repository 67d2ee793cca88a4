//! The link between the parties comes up: they compare what they store, and keep what both have.
//!
//! A crash of one party between two steps of a batch leaves an object, or the death of one, at one party alone. Both
//! then drop what is not common: an object that one lacks is dropped by the other, a prefix that one marked dead dies
//! at the other. Nothing withdrawn comes back, and nothing is evaluated on unequal shares. Announcers see from their
//! inventory what was dropped and announce it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::Now;

use super::engine::Engine;
use super::{Number, Party, PartyEvent, Stage, store};
use crate::directory::SignedMemberSet;
use crate::frames::{Between, PROTOCOL, Stored};
use crate::table::Effects;

/// Rows of one inventory frame.
const CHUNK: usize = 16_384;
/// Rows of a whole inventory: our own limit.
const MAX_INVENTORY: usize = 4 << 20;

/// What the other party said of itself.
pub(super) struct OtherHello {
    pub protocol: u16,
    pub exchange: String,
    pub party: u8,
    pub nonce: [u8; 16],
    pub epoch: u64,
    pub set: Arc<[u8]>,
    pub tick_ms: u32,
}

impl Party {
    /// Sends the hello and, from party 2, the inventory.
    pub(super) fn greet_other(&mut self) {
        let Some(nonce) = self.other.as_ref().map(|o| o.nonce) else { return };
        let hello = Between::Hello {
            protocol: PROTOCOL,
            exchange: self.config.exchange.clone(),
            party: if self.config.number == Number::One { 1 } else { 2 },
            nonce,
            epoch: self.epoch,
            seq: self.seq,
            set: Arc::clone(&self.set_bytes),
            tick_ms: u32::try_from(self.config.tick.as_millis()).unwrap_or(u32::MAX),
        };
        self.tell_other(&hello);
        if self.config.number == Number::Two {
            let rows = self.table.inventory();
            let mut chunks: Vec<Vec<Stored>> = rows.chunks(CHUNK).map(<[Stored]>::to_vec).collect();
            let last = chunks.pop().unwrap_or_default();
            for rows in chunks {
                self.tell_other(&Between::Inventory { rows, high_water: Vec::new(), more: true });
            }
            let high_water = self.table.high_waters();
            self.tell_other(&Between::Inventory { rows: last, high_water, more: false });
        }
    }

    pub(super) fn other_hello(&mut self, hello: OtherHello) -> Result<(), &'static str> {
        let expected = if self.config.number == Number::One { 2 } else { 1 };
        if hello.protocol != PROTOCOL || hello.exchange != self.config.exchange || hello.party != expected {
            return Err("hello for another protocol, exchange or party");
        }
        let other = self.other.as_mut().ok_or("a hello without a link")?;
        if other.hello.is_some() {
            return Err("a second hello");
        }
        let (one, two) = if expected == 2 { (other.nonce, hello.nonce) } else { (hello.nonce, other.nonce) };
        let seed = self.rng.bytes();
        self.engine = Some(Engine::new(self.config.number, one, two, seed));
        if self.config.number == Number::Two {
            self.tick = Duration::from_millis(u64::from(hello.tick_ms));
        }
        other.hello = Some(hello);
        Ok(())
    }

    /// Party 1 has all of party 2's inventory: it concludes.
    pub(super) fn other_inventory(
        &mut self,
        rows: Vec<Stored>,
        high_water: &[(u32, u64)],
        more: bool,
        now: Now,
    ) -> Result<(), &'static str> {
        let other = self.other.as_mut().filter(|o| !o.ready).ok_or("an inventory out of turn")?;
        let hello = other.hello.as_ref().ok_or("an inventory before the hello")?;
        let (their_epoch, their_set) = (hello.epoch, Arc::clone(&hello.set));
        if other.rows.len() + rows.len() > MAX_INVENTORY {
            return Err("an inventory that is too long");
        }
        other.rows.extend(rows);
        if more {
            return Ok(());
        }
        let theirs = std::mem::take(&mut other.rows);
        let mut effects = Effects::default();
        self.adopt_newer_set(&their_set, &mut effects);
        self.epoch = self.epoch.max(their_epoch);
        for (slot, version) in high_water {
            self.table.saw(*slot, *version);
        }
        let (drop, differ) = self.compare(&theirs, &mut effects);
        self.table.reset_view(self.epoch, &self.set_bytes);
        let frame = Between::Reconciled {
            epoch: self.epoch,
            set: Arc::clone(&self.set_bytes),
            drop,
            differ,
            high_water: self.table.high_waters(),
            view: self.table.view(),
        };
        self.tell_other(&frame);
        self.agreed(&effects);
        // What waits here is given time again: the other party tells only now what it holds.
        for object in self.pending.values_mut().flat_map(BTreeMap::values_mut) {
            object.since = now.instant;
        }
        self.absent_since = self.announcers().into_iter().map(|slot| (slot, now.instant)).collect();
        Ok(())
    }

    /// Drops here what they lack; returns what they must drop, and where widths or dead places differ.
    #[expect(clippy::type_complexity, reason = "the two lists of the frame `Reconciled`")]
    fn compare(
        &mut self,
        theirs: &[Stored],
        effects: &mut Effects,
    ) -> (Vec<(u32, u64)>, Vec<(u32, u64, u32, Vec<u16>)>) {
        let theirs: BTreeMap<(u32, u64), &Stored> = theirs.iter().map(|row| ((row.slot, row.version), row)).collect();
        let mut differ = Vec::new();
        for row in self.table.inventory() {
            let key = (row.slot, row.version);
            match theirs.get(&key) {
                Some(their) if their.digest == row.digest => {
                    if their.dead == row.dead && their.width == row.width {
                        continue;
                    }
                    let dead: BTreeSet<u16> = their.dead.iter().chain(&row.dead).copied().collect();
                    let dead: Vec<u16> = dead.into_iter().collect();
                    let width = row.width.min(their.width);
                    self.table.narrow(key.0, key.1, width);
                    self.table.mark_dead(key.0, key.1, &dead, effects);
                    effects.marked.insert(key);
                    differ.push((key.0, key.1, width, dead));
                }
                _ => self.table.drop_object(key.0, key.1, effects),
            }
        }
        let lacks = |key: &&(u32, u64)| {
            let same = |entry: &crate::table::Entry| entry.digest == theirs[*key].digest;
            !self.table.entry(key.0, key.1).is_some_and(same)
        };
        (theirs.keys().filter(lacks).copied().collect(), differ)
    }

    /// Party 2 does what party 1 concluded; both must then have the same view.
    pub(super) fn reconciled(
        &mut self,
        epoch: u64,
        set: &Arc<[u8]>,
        drop: &[(u32, u64)],
        differ: &[(u32, u64, u32, Vec<u16>)],
        high_water: &[(u32, u64)],
        view: [u8; 32],
    ) -> Result<(), &'static str> {
        if self.other_ready() || self.engine.is_none() {
            return Err("a reconciliation out of turn");
        }
        if epoch < self.epoch {
            return Err("an epoch that is past");
        }
        let mut effects = Effects::default();
        self.adopt_newer_set(set, &mut effects);
        self.epoch = epoch;
        for (slot, version) in high_water {
            self.table.saw(*slot, *version);
        }
        for (slot, version) in drop {
            self.table.drop_object(*slot, *version, &mut effects);
        }
        for (slot, version, width, dead) in differ {
            self.table.narrow(*slot, *version, *width);
            self.table.mark_dead(*slot, *version, dead, &mut effects);
            effects.marked.insert((*slot, *version));
        }
        self.table.reset_view(self.epoch, &self.set_bytes);
        if self.table.view() != view {
            return Err("after the inventories were compared the views differ");
        }
        self.agreed(&effects);
        let joined: Vec<Between> = self
            .members
            .iter()
            .filter_map(|(slot, m)| {
                m.session.map(|session| Between::Joined { slot: *slot, session, select_best: m.select_best })
            })
            .collect();
        for frame in joined {
            self.tell_other(&frame);
        }
        let objects: Vec<(u32, u64, [u8; 32])> = self
            .pending
            .iter()
            .flat_map(|(slot, waiting)| waiting.iter().map(|(version, object)| (*slot, *version, object.digest)))
            .collect();
        for chunk in objects.chunks(CHUNK) {
            self.tell_other(&Between::Holding { objects: chunk.to_vec() });
        }
        Ok(())
    }

    fn adopt_newer_set(&mut self, bytes: &Arc<[u8]>, effects: &mut Effects) {
        if let Some(set) = SignedMemberSet::open(bytes, &self.config.operator) {
            self.adopt_set(set, Arc::clone(bytes), effects);
        }
    }

    /// Both parties agree: batches may flow.
    fn agreed(&mut self, effects: &Effects) {
        let changes = store::changes(&self.table, effects, self.epoch, self.seq);
        self.persist(changes);
        self.active.clear();
        self.stage = Stage::Idle;
        if let Some(other) = &mut self.other {
            other.ready = true;
        }
        self.event(PartyEvent::Agreed { objects: self.table.len(), dropped: effects.removed.len() });
    }

    fn announcers(&self) -> BTreeSet<u32> {
        self.table.entries().map(|entry| entry.header.description.slot).collect()
    }
}

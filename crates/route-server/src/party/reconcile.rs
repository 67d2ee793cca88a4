//! Reconciliation when the link between the parties comes up: they compare what they store and keep what both have.
//!
//! A crash of one party between two steps of a batch can leave an object, or a dead prefix, at one party alone. Both then
//! drop what is not common: an object that one lacks is dropped by the other, a prefix that one marked dead is marked by
//! the other. Nothing withdrawn comes back, and nothing is evaluated on unequal shares. Announcers learn from their
//! inventory what was dropped, and announce it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::state::{Stage, State};
use super::{OlderStore, PartyEvent, PartyNumber, store};
use crate::directory::{ChainError, Directory, Succession};
use crate::frames::{Difference, InventoryRow, PROTOCOL, PartyFrame};
use crate::object::ExportMode;
use crate::object_table::Effects;

/// Rows of one inventory frame, and of one frame of what follows from the inventories.
pub(super) const CHUNK: usize = 16_384;
/// Octets of credit without which no long frame is sent: an inventory's rows, with the most dead prefixes, take as many.
pub(super) const LONG: u64 = 8 << 20;

/// What party 1 concludes from both inventories. It has done its own part of it, and sends the rest as far as there is credit; only
/// then the parties agree.
#[derive(Default)]
pub(super) struct Conclusion {
    /// What party 2 is still to be told: (slot, version) to drop, and where the two differ.
    pub drop: Vec<(u32, u64)>,
    pub differ: Vec<Difference>,
    /// What party 1 changed.
    pub effects: Effects,
}

impl Conclusion {
    /// Takes so many rows that fit a frame.
    fn take(&mut self) -> (Vec<(u32, u64)>, Vec<Difference>) {
        let drop: Vec<(u32, u64)> = self.drop.drain(..self.drop.len().min(CHUNK)).collect();
        let differ = self.differ.drain(..self.differ.len().min(CHUNK - drop.len())).collect();
        (drop, differ)
    }

    fn is_empty(&self) -> bool {
        self.drop.is_empty() && self.differ.is_empty()
    }

    /// Adds what came with a frame. `most`: rows that party 2's inventory had.
    ///
    /// # Errors
    /// How party 1 erred.
    pub(super) fn add(
        &mut self,
        drop: Vec<(u32, u64)>,
        differ: Vec<Difference>,
        most: usize,
    ) -> Result<(), &'static str> {
        if drop.is_empty() && differ.is_empty() {
            return Err("part of a conclusion with nothing in it");
        }
        if self.drop.len() + self.differ.len() + drop.len() + differ.len() > most {
            return Err("a conclusion over more objects than the inventory had");
        }
        self.drop.extend(drop);
        self.differ.extend(differ);
        Ok(())
    }
}

/// Batches that are durable: what tells whether a store was replaced by an older copy. A party says that it has stored a batch
/// only once it has, so that its store, if it is its own, holds no less than the peer party knows of.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct StoreState {
    /// The last one in the party's own store.
    pub stored: u64,
    /// The last one that it knows to be in the peer party's.
    pub agreed: u64,
}

/// The peer party's hello.
pub(super) struct PeerHello {
    pub protocol: u16,
    pub exchange: String,
    pub party: u8,
    pub nonce: [u8; 16],
    pub epoch: u64,
    pub set: Arc<[u8]>,
    pub tick_ms: u32,
    pub export: ExportMode,
    pub max_blob: u32,
    pub store: StoreState,
}

impl State {
    /// Sends the hello; what follows it depends on the role.
    pub(super) fn greet_peer(&mut self) {
        let Some(nonce) = self.peer.as_ref().map(|peer| peer.nonce) else { return };
        let hello = PartyFrame::Hello {
            protocol: PROTOCOL,
            exchange: self.config.exchange.clone(),
            party: if self.config.number == PartyNumber::One { 1 } else { 2 },
            nonce,
            epoch: self.epoch,
            seq: self.seq,
            set: Arc::clone(&self.set_bytes),
            tick_ms: u32::try_from(self.config.tick.as_millis()).unwrap_or(u32::MAX),
            export: self.config.export,
            max_blob: self.config.max_blob,
            stored: self.store.stored,
            agreed: self.store.agreed,
        };
        self.send_to_peer(&hello);
    }

    /// Reports a store that holds less than the two had agreed on: the peer party's, or this party's own. What it lacks both
    /// drop, and members send it again.
    fn compare_stores(&mut self, party: u8, theirs: StoreState) {
        let own = if self.config.number == PartyNumber::One { 1 } else { 2 };
        for (party, holds, agreed) in
            [(party, theirs.stored, self.store.agreed), (own, self.store.stored, theirs.agreed)]
        {
            if holds < agreed {
                let older = OlderStore { party, holds, agreed };
                self.counters.older_stores += 1;
                self.older_store = Some((older.clone(), self.clocks.instant));
                self.event(PartyEvent::OlderStore(older));
            }
        }
    }

    /// Takes the peer party's hello; `seq` is its last batch.
    pub(super) fn peer_hello(&mut self, hello: PeerHello, seq: u64) -> Result<(), &'static str> {
        if seq > u64::MAX / 2 {
            return Err("a batch number that leaves no room for more");
        }
        self.seq = self.seq.max(seq);
        let expected = if self.config.number == PartyNumber::One { 2 } else { 1 };
        if hello.protocol != PROTOCOL {
            return Err(
                "it speaks another version of the protocol; both parties must run the same version of Wayleave",
            );
        }
        if hello.exchange != self.config.exchange {
            return Err("it is of another exchange; compare `exchange` in both configurations");
        }
        if hello.party != expected {
            return Err("it says that it is the same party; one has `number = 1` and the other `number = 2`");
        }
        if hello.export != self.config.export {
            return Err(match hello.export {
                ExportMode::Mpc => {
                    "it multiplies policies and keys with it (`export = \"mpc\"`), and this party has `export = \"direct\"`; set the same in both configurations"
                }
                ExportMode::Direct => {
                    "announcers multiply policies and keys for it (`export = \"direct\"`), and this party has `export = \"mpc\"`; set the same in both configurations"
                }
            });
        }
        let peer = self.peer.as_mut().ok_or("a hello without a link")?;
        if peer.hello.is_some() {
            return Err("a second hello");
        }
        self.compare_stores(expected, hello.store);
        let peer = self.peer.as_mut().ok_or("a hello without a link")?;
        let (one, two) = if expected == 2 { (peer.nonce, hello.nonce) } else { (hello.nonce, peer.nonce) };
        let seed = self.rng.draw(&[b"engine", &one, &two]).bytes();
        self.engine = Some(Engine::new(self.config.number, peer.link, [one, two], seed));
        if self.config.number == PartyNumber::Two {
            self.tick = Duration::from_millis(u64::from(hello.tick_ms));
        }
        peer.hello = Some(hello);
        Ok(())
    }

    /// Drops here what they lack; returns what they must drop, and where widths or dead places differ.
    pub(super) fn compare(
        &mut self,
        theirs: &[InventoryRow],
        effects: &mut Effects,
    ) -> (Vec<(u32, u64)>, Vec<Difference>) {
        let theirs: BTreeMap<(u32, u64), &InventoryRow> =
            theirs.iter().map(|row| ((row.slot, row.version), row)).collect();
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
            let same = |entry: &crate::object_table::ObjectEntry| entry.digest == theirs[*key].digest;
            !self.table.entry(key.0, key.1).is_some_and(same)
        };
        (theirs.keys().filter(lacks).copied().collect(), differ)
    }

    /// Sends what party 1 concluded as far as there is credit. Returns whether all of it was sent: then both agree.
    pub(super) fn send_conclusion(&mut self, conclusion: &mut Conclusion) -> bool {
        while self.peer.as_ref().is_some_and(|peer| peer.sending.has_credit(LONG)) {
            let (drop, differ) = conclusion.take();
            if !conclusion.is_empty() {
                self.send_to_peer(&PartyFrame::Reconciling { drop, differ });
                continue;
            }
            let frame = PartyFrame::Reconciled {
                epoch: self.epoch,
                set: Arc::clone(&self.set_bytes),
                drop,
                differ,
                high_water: self.table.high_waters(),
                view: self.table.view(),
            };
            self.send_to_peer(&frame);
            return true;
        }
        false
    }

    /// Takes the peer party's directory if it goes on from what is in force here.
    pub(super) fn adopt_newer_set(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if let Some(next) = self.newer_set(bytes)? {
            self.adopt(next);
        }
        Ok(())
    }

    /// The peer party's directory together with ours, if it has something that ours has not.
    pub(super) fn newer_set(&self, bytes: &[u8]) -> Result<Option<Directory>, &'static str> {
        match self.directory.succeed(bytes) {
            Ok(Succession::Newer(next, _)) => match super::key_roles(&self.config, &next) {
                Ok(()) => Ok(Some(*next)),
                Err(_) => Err("its member set gives one key two roles; `wayleave check` names both"),
            },
            Ok(Succession::Same | Succession::Older(_)) => Ok(None),
            Err(ChainError::Diverges(_)) => {
                Err("its member set is not ours: the operators signed two sets of one number; settle which one counts")
            }
            Err(ChainError::OtherExchange(_) | ChainError::OtherOperators) => {
                Err("its member set is of another exchange, or of other operators")
            }
            Err(_) => Err("its member set does not count: malformed, or not signed by both operators"),
        }
    }

    /// A directory of this party's operator that waited to take effect, as it now goes on from what is in force; `None` if it
    /// has nothing that is new. One that follows no more is dropped, with an event: the peer party has no part in that.
    pub(super) fn own_set(&mut self, bytes: &[u8]) -> Option<Directory> {
        let why = match self.directory.succeed(bytes) {
            Ok(Succession::Newer(next, _)) => match super::key_roles(&self.config, &next) {
                Ok(()) => return Some(*next),
                Err(shared) => shared.to_string(),
            },
            Ok(Succession::Same | Succession::Older(_)) => return None,
            Err(error) => error.to_string(),
        };
        self.event(PartyEvent::MembersRefused { why });
        None
    }

    /// Both parties agree: batches may flow.
    pub(super) fn agreed(&mut self, effects: &Effects) {
        self.table.settle();
        let changes = store::changes(&self.table, effects, self.epoch, self.seq);
        self.persist(changes);
        self.deactivate_all();
        self.members.values_mut().for_each(|member| member.lacks = false);
        self.relisted.broke_off(self.relist.take());
        self.relisted.agreed(self.seq);
        self.recent.begin(self.seq);
        self.stage = Stage::Idle;
        if let Some(peer) = &mut self.peer {
            peer.ready = true;
        }
        if self.set_is_unannounced {
            self.tell_members();
        }
        self.event(PartyEvent::Agreed { objects: self.table.len(), dropped: effects.removed.len() });
    }

    pub(super) fn announcers(&self) -> BTreeSet<u32> {
        self.table.entries().map(|entry| entry.header.description.slot).collect()
    }
}

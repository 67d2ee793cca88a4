//! Reconciliation when the link between the parties comes up: they compare what they store and keep what both have.
//!
//! A store that is new or an older copy, or a crash of one party between two steps of a batch, leaves objects, or dead prefixes, at one
//! party alone. Both then drop what is not common: an object that one lacks is dropped by the other, a prefix that one marked dead is
//! marked by the other. Nothing withdrawn comes back, and nothing is evaluated on unequal shares. Announcers learn from their inventory
//! what was dropped, and announce it again.
//!
//! Of what is dropped there are two kinds. The party that lacks an object has applied it, or what came after it of the same slot: then it
//! was withdrawn or replaced. Or it has not: then the object is lost ([`crate::lost`]), and so is what was replaced with a batch that only
//! party 2 has, since the announcer was not told that it was. In the end each party sends the other all lost objects that it knows of.
//! What a party applied is durable no later than what it says of it, and party 1 proposes nothing before the outcome is durable there: so
//! what one says that it applied never covers what the other is about to drop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::Nlri;

use super::engine::Engine;
use super::order::PeerOrder;
use super::state::State;
use super::{OlderStore, PartyEvent, PartyNumber};
use crate::frames::{Difference, DroppedObject, InventoryRow, LostObject, MAX_TICK_MS, PartyFrame, Seq};
use crate::leaps::{Heard, is_epoch_leap, is_leap};
use crate::object::ExportMode;
use crate::object_table::Effects;
use crate::versions::{self, Versions};

/// Rows of a whole inventory: our own limit.
pub(super) const MAX_INVENTORY: usize = 4 << 20;
/// Rows of one inventory frame, and of one frame of what follows from the inventories.
pub(super) const CHUNK: usize = 16_384;
/// Octets of credit without which no long frame is sent: an inventory's rows, with the most dead prefixes, take as many.
pub(super) const LONG: u64 = 8 << 20;

/// What party 1 concludes from both inventories. It has done its own part of it, and sends the rest as far as there is credit; only
/// then the parties agree.
#[derive(Default)]
pub(super) struct Conclusion {
    /// What party 2 is still to be told: what it drops, and where the two differ.
    pub drop: Vec<DroppedObject>,
    pub differ: Vec<Difference>,
    /// What party 1 changed.
    pub effects: Effects,
    /// Whether party 2 has been told all of it; then what is lost is.
    pub is_sent: bool,
    pub lost: LostExchange,
}

impl Conclusion {
    /// Takes so many rows that fit a frame.
    fn take(&mut self) -> (Vec<DroppedObject>, Vec<Difference>) {
        let drop: Vec<DroppedObject> = self.drop.drain(..self.drop.len().min(CHUNK)).collect();
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
        drop: Vec<DroppedObject>,
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

/// What party 2 has, and what it knows of the rest.
pub(super) struct PeerInventory {
    pub rows: Vec<InventoryRow>,
    /// The highest version applied, per slot.
    pub applied: Vec<(u32, u64)>,
}

/// The lost objects of both parties, as each says them to the other.
#[derive(Default)]
pub(super) struct LostExchange {
    /// The last one that the peer party was sent, and whether that was all.
    sent: Option<(u32, u64)>,
    all_sent: bool,
    theirs: Vec<LostObject>,
    prefixes: usize,
    all_theirs: bool,
}

/// Whether there can be a lost object like this.
fn is_lost_object(object: &LostObject, slots: usize) -> bool {
    let ascends = object.prefixes.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let prefixes: BTreeSet<&Nlri> = object.prefixes.iter().map(|(.., nlri)| nlri).collect();
    (object.slot as usize) < slots && ascends && !prefixes.is_empty() && prefixes.len() == object.prefixes.len()
}

/// The peer party's hello.
pub(super) struct PeerHello {
    pub versions: Versions,
    pub exchange: String,
    pub party: u8,
    pub nonce: [u8; 16],
    pub epoch: u64,
    pub set: Arc<[u8]>,
    pub tick_ms: u32,
    pub export: ExportMode,
    pub max_blob: u32,
    pub store: StoreState,
    /// The last batch that it has applied.
    pub applied: Seq,
    /// Its clock, in microseconds of Unix time.
    pub clock: u64,
    pub order: PeerOrder,
}

impl State {
    /// Sends the hello; what follows it depends on the role.
    pub(super) fn greet_peer(&mut self) {
        let Some(nonce) = self.links.peer_nonce() else { return };
        let number = self.env.config.number.into();
        let (commitment, has_order) = self.order.offer(&mut self.env.rng, number, &nonce);
        let (config, store) = (&self.env.config, self.objects.store());
        let hello = PartyFrame::Hello {
            versions: config.speaks.versions,
            exchange: config.exchange.clone(),
            party: config.number.into(),
            nonce,
            epoch: self.membership.epoch(),
            seq: self.batches.seq(),
            set: self.membership.bytes(),
            tick_ms: u32::try_from(config.tick.as_millis()).unwrap_or(u32::MAX),
            export: config.export,
            max_blob: config.max_blob,
            stored: store.stored,
            agreed: store.agreed,
            applied: self.objects.applied(),
            clock: self.env.clocks.unix.0,
            order: config.order,
            commitment,
            has_order,
            later: Vec::new(),
        };
        self.send_to_peer(&hello);
    }

    /// Reports a store that holds less than the two had agreed on: the peer party's, or this party's own. What it lacks both
    /// drop, and members send it again.
    fn compare_stores(&mut self, party: u8, theirs: StoreState) {
        let (own, ours) = (self.env.config.number.into(), self.objects.store());
        for (party, holds, agreed) in [(party, theirs.stored, ours.agreed), (own, ours.stored, theirs.agreed)] {
            if holds < agreed {
                let older = OlderStore { party, holds, agreed };
                self.env.counters.older_stores += 1;
                self.objects.note_older_store(older.clone(), self.env.now());
                self.event(PartyEvent::OlderStore(older));
            }
        }
    }

    /// Takes the peer party's hello; `seq` is its last batch.
    pub(super) fn peer_hello(&mut self, hello: PeerHello, seq: u64) -> Result<(), &'static str> {
        // What this party has come to itself, the peer party may say, too: both clocks may have been wrong.
        let now = self.env.clocks.unix;
        if self.batches.is_leap(seq, Heard::Relayed, now) {
            return Err("a batch number that no clock has reached; compare both parties' clocks");
        }
        if hello.epoch > self.membership.epoch() && is_epoch_leap(hello.epoch, Heard::First, now) {
            return Err("an epoch that no exchange has come to");
        }
        if hello.store.stored.max(hello.store.agreed).max(hello.applied) > seq {
            return Err("a store that holds a batch which is above its last one");
        }
        if hello.tick_ms > MAX_TICK_MS {
            return Err("more than a minute between batches");
        }
        self.batches.saw(seq);
        let config = &self.env.config;
        let expected = if config.number == PartyNumber::One { 2 } else { 1 };
        let ranges = [config.speaks.versions, hello.versions];
        let version = versions::common(&ranges).ok_or("it speaks no version of the protocol that this party does")?;
        if hello.exchange != config.exchange {
            return Err("it is of another exchange; compare `exchange` in both configurations");
        }
        if hello.party != expected {
            return Err("it says that it is the same party; one has `number = 1` and the other `number = 2`");
        }
        if hello.export != config.export {
            return Err(match hello.export {
                ExportMode::Mpc => {
                    "it multiplies policies and keys with it (`export = \"mpc\"`), and this party has `export = \"direct\"`; set the same in both configurations"
                }
                ExportMode::Direct => {
                    "announcers multiply policies and keys for it (`export = \"direct\"`), and this party has `export = \"mpc\"`; set the same in both configurations"
                }
            });
        }
        if hello.order.number != config.order {
            return Err("it has another number of the order of candidates; compare `order` in both configurations");
        }
        let link = self.links.peer_link().zip(self.links.peer_nonce());
        let (link, nonce) = link.ok_or("a hello without a link")?;
        if self.links.peer_hello().is_some() {
            return Err("a second hello");
        }
        self.compare_stores(expected, hello.store);
        let (one, two) = if expected == 2 { (nonce, hello.nonce) } else { (hello.nonce, nonce) };
        let seed = self.env.rng.draw(&[b"engine", &one, &two]).bytes();
        let [ours, theirs] = ranges;
        let ranges = if expected == 2 { [ours, theirs] } else { [theirs, ours] };
        self.rounds.begin_session(Engine::new(self.env.config.number, link, [one, two], ranges, seed));
        if !self.env.is_party_one() {
            self.batches.set_tick(Duration::from_millis(u64::from(hello.tick_ms)));
        }
        let (order, nonce) = (hello.order, hello.nonce);
        self.links.set_peer_hello(hello, version);
        self.greet_order(order, &nonce);
        Ok(())
    }

    /// Sends what party 1 concluded as far as there is credit. Returns whether all of it was sent: then both agree.
    pub(super) fn send_conclusion(&mut self, conclusion: &mut Conclusion) -> bool {
        while self.links.has_peer_credit(LONG) {
            let (drop, differ) = conclusion.take();
            if !conclusion.is_empty() {
                self.send_to_peer(&PartyFrame::Reconciling { drop, differ });
                continue;
            }
            let frame = PartyFrame::Reconciled {
                epoch: self.membership.epoch(),
                set: self.membership.bytes(),
                drop,
                differ,
                high_water: self.objects.table().high_waters(),
                view: self.objects.view(),
            };
            self.send_to_peer(&frame);
            return true;
        }
        false
    }

    /// Whether this party's store is an older copy than the peer party knows of.
    fn is_store_older(&self) -> bool {
        self.links.peer_hello().is_some_and(|hello| self.objects.store().stored < hello.store.agreed)
    }

    /// The time of what is lost now: what the clock says that is ahead of the other, so that one which is behind ends nothing early.
    pub(super) fn time_of_loss(&self) -> u64 {
        let now = self.env.clocks.unix;
        let theirs = self.links.peer_hello().map_or(0, |hello| hello.clock);
        let theirs = if is_leap(theirs, Heard::First, now) { 0 } else { theirs };
        now.0.max(theirs).max(self.objects.applied())
    }

    /// What this party knows to be lost before the inventories are compared.
    pub(super) fn begin_lost(&mut self, effects: &mut Effects) {
        // What was lost before this party's store was copied may have been found again since.
        if self.is_store_older() {
            self.objects.forget_all_lost(effects);
        }
        // Party 2 stores a batch before party 1 does, and its announcers are told of it once party 1 has. Party 1 has told party 2's half of
        // the members nothing as long as party 2 does not have it.
        let (ours, agreed) = (self.objects.applied(), self.objects.store().agreed);
        let is_theirs = self.links.peer_hello().is_none_or(|hello| hello.applied >= ours);
        if !(is_theirs || !self.env.is_party_one() && agreed >= ours) {
            self.objects.lose_replaced(self.time_of_loss(), effects);
        }
    }

    /// Sends the peer party the lost objects, as far as there is credit.
    pub(super) fn send_lost(&mut self, exchange: &mut LostExchange) {
        while !exchange.all_sent && self.links.has_peer_credit(LONG) {
            let (mut objects, mut prefixes) = (Vec::new(), 0);
            let mut rest = self.objects.table().lost().after(exchange.sent).peekable();
            while let Some(object) = rest.next_if(|_| prefixes < CHUNK) {
                prefixes += object.prefixes.len();
                objects.push(object.clone());
            }
            let more = rest.next().is_some();
            drop(rest);
            exchange.sent = objects.last().map(|object| (object.slot, object.version)).or(exchange.sent);
            exchange.all_sent = !more;
            self.send_to_peer(&PartyFrame::Lost { objects, more });
        }
    }

    /// Takes some of the peer party's.
    pub(super) fn take_lost(
        &mut self,
        exchange: &mut LostExchange,
        (objects, more): (Vec<LostObject>, bool),
    ) -> Result<(), &'static str> {
        let slots = self.membership.set().slots.len();
        exchange.prefixes += objects.iter().map(|object| object.prefixes.len()).sum::<usize>();
        if exchange.all_theirs || exchange.prefixes > MAX_INVENTORY {
            return Err("more lost objects than there can be");
        }
        if objects.iter().any(|object| !is_lost_object(object, slots)) {
            return Err("a lost object that there cannot be");
        }
        let now = self.time_of_loss();
        exchange.theirs.extend(objects.into_iter().map(|object| LostObject { since: object.since.min(now), ..object }));
        exchange.all_theirs = !more;
        Ok(())
    }

    /// Once both have said what is lost: it is lost for both. Returns whether they have.
    pub(super) fn share_lost(&mut self, exchange: &mut LostExchange, effects: &mut Effects) -> bool {
        let is_done = exchange.all_sent && exchange.all_theirs;
        if is_done {
            self.objects.add_lost(std::mem::take(&mut exchange.theirs), effects);
        }
        is_done
    }

    /// Both parties agree: batches may flow.
    pub(super) fn agreed(&mut self, effects: &Effects) {
        let changes = self.objects.agreed(effects, self.membership.epoch(), self.batches.seq());
        let written = self.persist(changes);
        self.deactivate_all();
        self.links.forget_lacks();
        self.batches.agreed();
        if self.env.is_party_one() {
            self.batches.await_agreement(written);
        }
        self.links.peer_agrees();
        if self.membership.is_unannounced() {
            self.tell_members();
        }
        #[cfg(feature = "next-version")]
        if self.links.peer_version() >= 8 {
            let version = self.links.peer_version();
            self.send_to_peer(&PartyFrame::Raised { version });
        }
        for slot in self.links.sessions().map(|(slot, ..)| slot).collect::<Vec<u32>>() {
            self.is_told_the_same(slot);
        }
        let (objects, lost) = (self.objects.table().len(), self.objects.table().lost().len());
        self.event(PartyEvent::Agreed { objects, dropped: effects.removed.len(), lost });
    }
}

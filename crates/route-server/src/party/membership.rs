//! Who is a member: the directory in force, what follows from it, and the epoch with its recommendation.
//!
//! Only three things change it. A batch's step puts a newer directory or an epoch into force, at both parties with the same batch.
//! The comparison with the peer party does the same before any batch. At party 2 a directory of its operator that waited takes effect before a
//! new link's hello, as it would at a start with that file.
//!
//! A directory is durable before anything depends on it: it goes with the next write of the store, which is the one of its batch
//! ([`Membership::unstored`]). Members are told of it before they get a tick that refers to it ([`Membership::announced`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::sign::VerifyingKey;

use super::{PartyConfig, key_roles};
use crate::directory::{ChainError, Directory, MemberSet, Succession, keys};
use crate::leaps::{Heard, is_epoch_leap};

pub(super) struct Membership {
    /// What is in force.
    directory: Directory,
    set: MemberSet,
    /// By slot.
    keys: Vec<Option<VerifyingKey>>,
    /// The directory, encoded.
    bytes: Arc<[u8]>,
    /// Whether the store has it.
    is_stored: bool,
    /// Whether members that are connected have not been told of it yet.
    is_unannounced: bool,
    /// Slots of each member set so far.
    widths: BTreeMap<u64, u32>,
    /// When sets before the one in force were replaced, in this life.
    replaced: BTreeMap<u64, Instant>,
    epoch: u64,
    /// When it began, if that was in this life.
    epoch_began: Option<Instant>,
    /// The exchange's recommendation of this epoch by announcer's slot; empty at party 2.
    recommendation: BTreeMap<u32, u8>,
}

impl Membership {
    /// `stored`: the directory that the store held.
    pub(super) fn new(directory: Directory, stored: Option<&[u8]>, epoch: u64) -> Self {
        let set = MemberSet::clone(directory.set());
        let bytes: Arc<[u8]> = directory.encode().into();
        Self {
            is_stored: stored == Some(&*bytes),
            is_unannounced: false,
            widths: BTreeMap::from([(set.number, width(&set))]),
            replaced: BTreeMap::new(),
            keys: keys(&set),
            set,
            bytes,
            directory,
            epoch,
            epoch_began: None,
            recommendation: BTreeMap::new(),
        }
    }

    pub(super) fn set(&self) -> &MemberSet {
        &self.set
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The directory in force, encoded.
    pub(super) fn bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.bytes)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn recommendation(&self) -> &BTreeMap<u32, u8> {
        &self.recommendation
    }

    pub(super) fn key(&self, slot: u32) -> Option<&VerifyingKey> {
        self.keys.get(slot as usize).and_then(Option::as_ref)
    }

    /// Slots of a member set that is, or was, in force in this life.
    pub(super) fn width_under(&self, set: u64) -> Option<u32> {
        self.widths.get(&set).copied()
    }

    /// Slots of a member set under which objects are taken: the one in force. One that was made under a set before it, and was on its
    /// way when that was replaced, within `wait`, is taken too, as wide as that set: the announcer sends a column for the slots that are new.
    pub(super) fn width_of(&self, set: u64, now: Instant, wait: Duration) -> Option<u32> {
        let is_recent = |at: &Instant| now.since(*at) < wait;
        if set == self.set.number || self.replaced.get(&set).is_some_and(is_recent) {
            return self.width_under(set);
        }
        None
    }

    /// Whether objects of this epoch are taken. One that was on its way when the present one began, within `wait`, is taken too: each
    /// refusal at one party alone would delay what comes after it.
    pub(super) fn takes_epoch(&self, epoch: u64, now: Instant, wait: Duration) -> bool {
        let is_recent = self.epoch_began.is_some_and(|at| now.since(at) < wait);
        epoch == self.epoch || epoch.checked_add(1) == Some(self.epoch) && is_recent
    }

    /// A batch begins an epoch.
    ///
    /// # Errors
    /// It is past, or years ahead.
    pub(super) fn begin_epoch(&mut self, epoch: u64, now: Now) -> Result<(), &'static str> {
        self.raise_epoch(epoch, Heard::Used, now.unix)?;
        self.epoch_began = Some(now.instant);
        Ok(())
    }

    /// The parties agree on an epoch.
    ///
    /// # Errors
    /// It is past, or years ahead.
    pub(super) fn raise_epoch(&mut self, epoch: u64, heard: Heard, now: UnixTime) -> Result<(), &'static str> {
        if epoch < self.epoch {
            return Err("an epoch that is past");
        }
        // The next one is none, whatever the clock says.
        if epoch > self.epoch.saturating_add(1) && is_epoch_leap(epoch, heard, now) {
            return Err("an epoch that no exchange has come to");
        }
        self.epoch = epoch;
        Ok(())
    }

    pub(super) fn recommend(&mut self, recommendation: BTreeMap<u32, u8>) {
        self.recommendation = recommendation;
    }

    /// The peer party's directory together with ours, if it has something that ours has not.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn newer(&self, config: &PartyConfig, bytes: &[u8]) -> Result<Option<Directory>, &'static str> {
        match self.directory.succeed(bytes) {
            Ok(Succession::Newer(next, _)) => match key_roles(config, &next) {
                Ok(()) => Ok(Some(*next)),
                Err(_) => Err("its member set gives one key two roles; `wayleave check` names both"),
            },
            Ok(Succession::Same | Succession::Older(_)) => Ok(None),
            Err(ChainError::Diverges(_)) => {
                Err("its member set is not ours: the operators signed two sets of one number; settle which one counts")
            }
            Err(ChainError::OtherExchange(_) | ChainError::OtherOperators) => Err(
                "its member set is of another exchange, or of other operators than ours: `wayleave members show` at both parties prints which; the \
                 party that was begun with a wrong file gets the right one, its configuration made anew, and no state",
            ),
            Err(_) => Err("its member set does not count: malformed, or not signed by both operators"),
        }
    }

    /// A directory of this party's operator that waited to take effect, as it now goes on from what is in force; `None` if it
    /// has nothing that is new.
    ///
    /// # Errors
    /// Why it does not follow what is in force.
    pub(super) fn own(&self, config: &PartyConfig, bytes: &[u8]) -> Result<Option<Directory>, String> {
        match self.directory.succeed(bytes) {
            Ok(Succession::Newer(next, _)) => match key_roles(config, &next) {
                Ok(()) => Ok(Some(*next)),
                Err(shared) => Err(shared.to_string()),
            },
            Ok(Succession::Same | Succession::Older(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What the set's members lose by a newer directory: slots that are no member's there, each with the party whose operator removed it
    /// (0 if both signed a set without it), and slots whose members have a new certificate.
    pub(super) fn losses(&self, next: &Directory) -> (Vec<(u32, u8)>, Vec<u32>) {
        let set = next.set();
        let by = |slot: u32| next.removals().find(|removal| removal.slot == slot).map_or(0, |removal| removal.party);
        let ended = (0u32..).zip(&set.slots).filter(|(_, slot)| !slot.active).map(|(slot, _)| (slot, by(slot)));
        let is_renewed =
            self.set.iter().zip(&set.slots).filter(|((_, before), now)| now.active && now.tls != before.tls);
        (ended.collect(), is_renewed.map(|((slot, _), _)| slot).collect())
    }

    /// Puts a newer directory into force. What objects under sets before it may still do within `wait` counts from now.
    pub(super) fn adopt(&mut self, next: Directory, now: Instant, wait: Duration) {
        let set = MemberSet::clone(next.set());
        if set.number != self.set.number {
            self.replaced.retain(|_, at| now.since(*at) < wait);
            self.replaced.insert(self.set.number, now);
        }
        self.widths.insert(set.number, width(&set));
        self.keys = keys(&set);
        self.set = set;
        self.bytes = next.encode().into();
        self.is_stored = false;
        self.is_unannounced = true;
        self.directory = next;
    }

    pub(super) fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// The directory, if the store has yet to get it; it goes with the write that is made now.
    pub(super) fn unstored(&mut self) -> Option<Arc<[u8]>> {
        (!std::mem::replace(&mut self.is_stored, true)).then(|| self.bytes())
    }

    pub(super) fn is_unannounced(&self) -> bool {
        self.is_unannounced
    }

    /// The connected members are being told.
    pub(super) fn announced(&mut self) {
        self.is_unannounced = false;
    }
}

/// Slots of a set.
fn width(set: &MemberSet) -> u32 {
    u32::try_from(set.slots.len()).expect("the directory bounds the slots of a set")
}

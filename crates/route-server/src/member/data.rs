//! Data of the exchange: which of those that somebody offers this member takes, and what becomes of routes then.
//!
//! As with [`origins`](super::origins), nothing is sent but what the own router's routes require.

use std::collections::BTreeSet;

use serde::Serialize;
use wayleave_core::wire::Malformed;
use wayleave_core::{Asn, Prefix, UnixTime};

use super::{Member, MemberEvent, MemberOutput};
use crate::data::{Data, DataError, DataHead, DataObject};
use crate::party::{Change, StoredRecord};

/// Where the store has the data in force.
const DATA_KEY: &[u8] = b"data";

/// Data that somebody offers. Their lists are read once their signatures hold.
#[derive(PartialEq, Eq, Debug)]
pub struct OfferedData {
    head: DataHead,
    octets: Vec<u8>,
}

impl OfferedData {
    /// What a file has, for instance.
    ///
    /// # Errors
    /// If data do not begin so.
    pub fn of(octets: Vec<u8>) -> Result<Self, Malformed> {
        DataHead::read(&octets).map(|head| Self { head, octets })
    }
}

/// Data that count.
struct InForce {
    data: Data,
    digest: [u8; 32],
    /// The machine keys that signed them; `None`: those of rules that are no longer in force. Under other keys the numbers begin anew, so
    /// that a number that leaves none to follow is not in force for ever.
    keys: Option<[[u8; 32]; 2]>,
}

/// What a member knows of data.
#[derive(Default)]
pub(super) struct KnownData {
    in_force: Option<InForce>,
    /// What was offered last and may count once another member set is in force: one operator's machine signed it, or it is not known yet whose
    /// machines sign.
    offered: Option<OfferedData>,
    /// When it was offered.
    offered_at: u64,
    /// Why what was offered last does not count.
    refused: Option<String>,
}

impl KnownData {
    pub(super) fn in_force(&self) -> Option<&Data> {
        self.in_force.as_ref().map(|in_force| &in_force.data)
    }
}

/// How the data of the exchange stand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DataStatus {
    /// The number of those in force; `None`: there are none yet.
    pub number: Option<u64>,
    /// When they were made, and until when they are current, in seconds since 1970.
    pub made: Option<u64>,
    pub until: Option<u64>,
    /// ASes that they have an entry of.
    pub members: usize,
    /// Prefixes in all lists.
    pub prefixes: usize,
    /// Why those that were offered last do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Member {
    /// What was in force before the start, if it is of the exchange whose member set was.
    pub(super) fn recall_data(&mut self, stored: &[StoredRecord]) {
        let record = stored.iter().find(|record| record.key == DATA_KEY);
        let origin = self.directory.as_ref().map(|directory| directory.origin());
        let object = record.and_then(|record| DataObject::decode(&record.value).ok());
        let object = object.filter(|object| Some(object.data.exchange) == origin);
        let rules = self.directory.as_ref().and_then(|directory| directory.set().data.as_ref());
        self.data.in_force = object.map(|object| {
            let rules = rules.filter(|rules| object.check(&object.data.exchange, rules).is_ok());
            InForce { digest: object.digest(), data: object.data, keys: rules.map(|rules| rules.keys) }
        });
    }

    /// Somebody offers data.
    pub(super) fn data_offered(&mut self, offered: OfferedData, now: UnixTime) {
        self.data.offered_at = now.secs();
        self.data.offered = Some(offered);
        self.take_data();
    }

    /// Takes what is offered if it counts under the member set in force: both operators' machines signed it, and its number has risen.
    pub(super) fn take_data(&mut self) {
        let (Some(directory), Some(set)) = (&self.directory, &self.set) else { return };
        let origin = directory.origin();
        if self.data.in_force().is_some_and(|data| data.exchange != origin) {
            self.data.in_force = None;
        }
        let Some(offered) = self.data.offered.take() else { return };
        let (head, rules) = (&offered.head, set.data.as_ref());
        let checked = rules.ok_or(DataError::NoKeys).and_then(|rules| head.check(&origin, rules));
        let keys = rules.filter(|_| checked.is_ok()).map(|rules| rules.keys);
        if let Some(in_force) = self.data.in_force.as_mut().filter(|in_force| in_force.digest == head.digest()) {
            // The same ones: no news, whoever signed them.
            self.data.refused = None;
            if keys.is_some() && in_force.keys != keys {
                in_force.keys = keys;
                self.keep_data(offered.octets);
            }
            return;
        }
        let in_force = self.data.in_force.as_ref();
        let follows = match in_force {
            None if head.until <= self.data.offered_at => Err(DataError::Ended),
            Some(in_force) if in_force.keys == keys => head.check_follows(in_force.data.number, &in_force.digest),
            _ => Ok(()),
        };
        let opened = checked.and(follows).and_then(|()| Ok(DataObject::decode(&offered.octets)?));
        let object = match opened {
            Ok(object) => object,
            Err(error) => {
                let (number, why) = (head.number, error.to_string());
                let is_ones = || rules.is_some_and(|rules| [1, 2].iter().any(|party| head.is_signed(rules, *party)));
                if error == DataError::NoKeys || matches!(error, DataError::NotSigned(_)) && is_ones() {
                    self.data.offered = Some(offered);
                }
                if self.data.refused.as_ref() != Some(&why) {
                    self.event(MemberEvent::DataRefused { number, why: why.clone() });
                }
                self.data.refused = Some(why);
                return;
            }
        };
        self.data.refused = None;
        self.keep_data(offered.octets);
        let (digest, data) = (object.digest(), object.data);
        let (asns, is_of_all) = data.differences(self.data.in_force());
        self.event(MemberEvent::DataTaken { number: data.number, members: data.members.len() });
        self.data.in_force = Some(InForce { data, digest, keys });
        self.data_changed(&asns, is_of_all);
    }

    /// Writes what is in force to the store.
    fn keep_data(&mut self, octets: Vec<u8>) {
        self.next_persist += 1;
        let change = Change { table: crate::party::META, key: DATA_KEY.to_vec(), value: Some(octets) };
        self.output.push_back(MemberOutput::Persist { id: self.next_persist, changes: vec![change] });
    }

    /// Routes of these ASes, or all, are assessed anew.
    fn data_changed(&mut self, asns: &BTreeSet<Asn>, is_of_all: bool) {
        let Some(set) = &self.set else { return };
        let concerns = |slot: u32| is_of_all || set.slot(slot).is_some_and(|slot| asns.contains(&slot.asn));
        let mut prefixes: BTreeSet<Prefix> = self.kept.prefixes().collect();
        for route in self.routes.values_mut() {
            let Some(open) = route.opened.as_ref().filter(|open| concerns(open.slot)) else { continue };
            prefixes.extend(open.prefixes.iter().map(|nlri| nlri.prefix));
            route.assessment = None;
        }
        let is_own = concerns(self.config.slot);
        self.count_prefixes();
        self.rules += 1;
        self.ranked_otherwise(&prefixes);
        self.update_waiting_rankings(&prefixes);
        self.touched.extend(prefixes);
        if is_own {
            self.announcements.mark_all_dirty();
        }
    }

    pub(super) fn data_status(&self) -> Option<DataStatus> {
        let is_asked_for = self.set.as_ref().is_some_and(|set| set.data.is_some());
        if !is_asked_for && self.data.refused.is_none() {
            return None;
        }
        let data = self.data.in_force().filter(|_| is_asked_for);
        let lists = || data.into_iter().flat_map(|data| data.members.values());
        Some(DataStatus {
            number: data.map(|data| data.number),
            made: data.map(|data| data.made),
            until: data.map(|data| data.until),
            members: data.map_or(0, |data| data.members.len()),
            prefixes: lists().filter_map(|lists| lists.prefixes.as_ref()).map(|list| list.len()).sum(),
            refused: self.data.refused.clone(),
        })
    }
}

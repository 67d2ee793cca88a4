//! Records that are of the future, or are over, by the clock of who received them: that clock may be wrong, and they are told once.

use std::collections::BTreeMap;

use crate::advert::MAX_AHEAD;
use crate::store::Record;

/// Kind and holder of a record: of each one is kept for a second.
type Key = (u8, [u8; 32]);

/// Octets of records that wait for the same: a path server that lies could fill the memory of who follows it, since none is verified.
const MAX_OCTETS: usize = 16 << 20;

/// Records that wait for their time: of either kind at most as many as a realm has members, and [`MAX_OCTETS`]. None of them is verified.
#[derive(Debug)]
pub(super) struct Untimely {
    /// By the Unix second from which they count.
    early: BTreeMap<(u64, Key), Record>,
    /// By the Unix second up to which they count: taken if the clock goes back.
    late: BTreeMap<(u64, Key), Record>,
    capacity: usize,
    /// Octets of both kinds.
    octets: [usize; 2],
}

impl Untimely {
    pub(super) fn new(capacity: usize) -> Self {
        Self { early: BTreeMap::new(), late: BTreeMap::new(), capacity, octets: [0; 2] }
    }

    /// Keeps a record if this second is not within its time.
    pub(super) fn note(&mut self, record: &Record, now: u64) {
        let Some((key, begin, end)) = time_of(record) else { return };
        let [early, late] = &mut self.octets;
        if begin > now {
            *early += length(record);
            let before = self.early.insert((begin, key), record.clone());
            *early -= before.as_ref().map_or(0, length);
            while (self.early.len() > self.capacity || *early > MAX_OCTETS)
                && let Some((_, farthest)) = self.early.pop_last()
            {
                *early -= length(&farthest);
            }
        } else if end < now {
            *late += length(record);
            let before = self.late.insert((end, key), record.clone());
            *late -= before.as_ref().map_or(0, length);
            while (self.late.len() > self.capacity || *late > MAX_OCTETS)
                && let Some((_, farthest)) = self.late.pop_first()
            {
                *late -= length(&farthest);
            }
        }
    }

    /// Those whose time it is now, memberships before what depends on them.
    pub(super) fn take(&mut self, now: u64) -> Vec<Record> {
        let mut due = Vec::new();
        let [early, late] = &mut self.octets;
        while let Some(entry) = self.early.first_entry().filter(|entry| entry.key().0 <= now) {
            let record = entry.remove();
            *early -= length(&record);
            due.push(record);
        }
        while let Some(entry) = self.late.last_entry().filter(|entry| entry.key().0 >= now) {
            let record = entry.remove();
            *late -= length(&record);
            due.push(record);
        }
        due.sort_by_key(|record| !matches!(record, Record::Membership(_)));
        due
    }
}

fn length(record: &Record) -> usize {
    record.encode().len()
}

/// From when to when a record is taken, as the database sees it.
fn time_of(record: &Record) -> Option<(Key, u64, u64)> {
    let (key, begin, end) = match record {
        Record::Membership(signed) => {
            let object = signed.object();
            ((1, object.identity.0), object.not_before, object.not_after)
        }
        Record::Advert(signed) => {
            let object = signed.object();
            ((2, object.identity.0), object.issued, object.expires())
        }
        Record::Revocations(signed) => {
            let object = signed.object();
            let end = object.by.as_ref().map(|by| by.object().not_after.saturating_add(MAX_AHEAD));
            ((3, [0; 32]), object.issued.max(object.number / 1_000_000), end.unwrap_or(u64::MAX))
        }
        _ => return None,
    };
    Some((key, begin.saturating_sub(MAX_AHEAD), end))
}

#[cfg(test)]
mod tests {
    use wayleave_core::IdentityKey;
    use wayleave_crypto::secret::Secret;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_crypto::signed::Signed;

    use super::*;
    use crate::advert::Advert;
    use crate::realm::RealmKey;

    /// A departure of node `node` that counts for two minutes.
    fn advert(node: u8, issued: u64) -> Record {
        let key = SigningKey::from_seed(&Secret::new([node; 32]));
        let advert = Advert {
            realm: RealmKey([7; 32]),
            identity: IdentityKey(key.verifying_key().to_bytes()),
            sequence: 1,
            issued,
            lifetime: 2,
            mtu: 1_400,
            ids: Vec::new(),
            links: Vec::new(),
            tags: Vec::new(),
            consent: None,
            open: None,
            extensions: Vec::new(),
        };
        Record::Advert(Signed::sign(&advert, &key).expect("in order"))
    }

    #[test]
    fn records_wait_for_their_time_and_those_farthest_from_it_give_way() {
        let mut untimely = Untimely::new(2);
        let now = 10_000;
        let issued = [now, now + 5_000, now + 900, now + 500, now - 5_000, now - 900, now - 500];
        let all: Vec<Record> = (1..).zip(issued).map(|(node, issued)| advert(node, issued)).collect();
        all.iter().for_each(|record| untimely.note(record, now));
        assert_eq!(untimely.take(now), []);
        assert_eq!(untimely.take(now + 379), []);
        assert_eq!(untimely.take(now + 380), [all[3].clone()], "two minutes ahead is in time");
        assert_eq!(untimely.take(now + 86_400), [all[2].clone()]);
        assert_eq!(untimely.take(now - 380), [all[6].clone()], "the clock has gone back");
        assert_eq!(untimely.take(0), [all[5].clone()]);
        assert_eq!(untimely.take(u64::MAX), []);
        assert_eq!(untimely.octets, [0; 2]);
    }
}

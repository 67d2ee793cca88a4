//! What a party keeps over a restart: live objects, their dead prefixes, lost objects, the highest version of each slot, epoch, batch
//! number, what the last batch replaced, the last batch that the peer party has, and which formats of objects each slot's member reads.
//!
//! The layout of all this has a number, the store's format. A program that changes the layout raises it, and adds a step from the format
//! before to [`MIGRATIONS`]. What the steps change is written at once and before all else, with the new number: a process that is killed
//! meanwhile leaves the old store or the new one. A store of a format that came after this program is refused, and left as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::reconcile::StoreState;
use super::{PartyNumber, StartError};
use crate::directory::Directory;
use crate::frames::LostObject;
use crate::object::{ExportMode, Format, Header, MAX_BLOB, MAX_PREFIXES, MAX_SLOTS, ShareOne};
use crate::object_table::{Effects, ObjectEntry, ObjectTable, Part};
use crate::order::OrderKey;
use crate::versions::Versions;
use wayleave_core::UnixTime;
use wayleave_core::wire::{self, Malformed, Reader, Wire, Writer};
use wayleave_crypto::secret::Seed;

/// Table of what there is one of: `epoch`, `seq`, `agreed`, the directory in force (`set`).
pub const META: &str = "meta";
/// The key of the directory in force.
const SET: &[u8] = b"set";
/// Table of objects: key `slot 32 || version 64`.
pub(super) const OBJECTS: &str = "objects";
/// Table of dead prefixes by index, with the row's width: key as above.
pub(super) const MARKS: &str = "marks";
/// Table of lost objects: key `slot 32 || version 64`.
pub(super) const LOST: &str = "lost";
/// Table of the highest version of each slot, and the highest that was applied: key `slot 32`.
pub(super) const VERSIONS: &str = "versions";

/// Table of the formats of objects that each slot's member last said it reads: key `slot 32`.
pub(super) const FORMATS: &str = "formats";
/// The tables of a party's and of a member's store.
pub const TABLES: [&str; 6] = [META, OBJECTS, MARKS, LOST, VERSIONS, FORMATS];

/// The key of the order of candidates.
const ORDER: &[u8] = b"order";

/// The key of the store's format. Stores of the first one have no such record.
const FORMAT: &[u8] = b"format";
/// What leads from each format to the next one, the first of all to the second.
const MIGRATIONS: &[fn(&mut Migration)] = &[who_is_there_reads_the_first_format];
/// The format of the stores that this program writes.
const NEWEST: u64 = 1 + MIGRATIONS.len() as u64;

/// One change of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// One of the tables of this module.
    pub table: &'static str,
    pub key: Vec<u8>,
    /// The value; `None` to remove it.
    pub value: Option<Vec<u8>>,
}

/// One record that the store held at start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRecord {
    pub table: String,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// The key of the last batch that the peer party is known to have stored.
const AGREED: &[u8] = b"agreed";

/// The key of what the last batch replaced.
const REPLACED: &[u8] = b"replaced";

/// The last batch that the peer party is known to have stored.
pub(super) fn agreed_change(seq: u64) -> Change {
    Change { table: META, key: AGREED.to_vec(), value: Some(seq.to_be_bytes().to_vec()) }
}

/// The key of the order of candidates of this number in the configuration.
pub(super) fn order_change(number: u32, key: &OrderKey) -> Change {
    let value = [&number.to_be_bytes()[..], key.secret().expose()].concat();
    Change { table: META, key: ORDER.to_vec(), value: Some(value) }
}

/// The number and the key of the order of candidates in a record of a store, if it is that.
#[must_use]
pub fn stored_order(record: &StoredRecord) -> Option<(u32, OrderKey)> {
    let (number, key) = record.value.split_first_chunk::<4>()?;
    let is_order = record.table == META && record.key == ORDER;
    is_order.then_some((u32::from_be_bytes(*number), OrderKey::new(key.try_into().ok()?)))
}

/// What a slot's member reads.
pub(super) fn formats_change(slot: u32, formats: Versions) -> Change {
    Change { table: FORMATS, key: slot.to_be_bytes().to_vec(), value: Some(wire::encode(&formats)) }
}

/// A store on its way to a newer format: its records, and what was changed of them.
struct Migration {
    records: Vec<StoredRecord>,
    changes: Vec<Change>,
}

impl Migration {
    fn put(&mut self, change: Change) {
        let Change { table, key, value } = &change;
        self.records.retain(|record| (record.table.as_str(), &record.key) != (*table, key));
        let record = value.clone().map(|value| StoredRecord { table: (*table).to_owned(), key: key.clone(), value });
        self.records.extend(record);
        self.changes.push(change);
    }
}

/// To format 2, which has the formats of objects that members read. Members that were there before read the first one, whatever they
/// come to say: until then they may be away, and must not miss what others announce meanwhile.
fn who_is_there_reads_the_first_format(store: &mut Migration) {
    let set = store.records.iter().find(|record| record.table == META && record.key == SET);
    let Some(directory) = set.and_then(|set| Directory::decode(&set.value).ok()) else { return };
    let first = Versions { least: Format::FIRST, highest: Format::FIRST };
    for (slot, _) in directory.set().iter().filter(|(_, slot)| slot.active) {
        store.put(formats_change(slot, first));
    }
}

/// The format of a party's or a member's store; `None` if it is none.
pub(crate) fn format_of(stored: &[StoredRecord]) -> Option<u64> {
    let written = stored.iter().find(|record| record.table == META && record.key == FORMAT);
    let Some(record) = written else { return Some(1) };
    record.value.as_slice().try_into().ok().map(u64::from_be_bytes).filter(|format| *format > 0)
}

/// Brings a store to the format of this program. Returns the records, and what was changed of them.
fn migrate(stored: Vec<StoredRecord>) -> Result<(Vec<StoredRecord>, Vec<Change>), StartError> {
    let found = format_of(&stored).ok_or(StartError::Store)?;
    if found > NEWEST {
        return Err(StartError::NewerStore { found, reads: NEWEST });
    }
    let steps = MIGRATIONS.iter().skip(usize::try_from(found - 1).expect("at most as many as there are"));
    let mut store = Migration { records: stored, changes: Vec::new() };
    for step in steps {
        step(&mut store);
    }
    if found < NEWEST {
        let value = Some(NEWEST.to_be_bytes().to_vec());
        store.put(Change { table: META, key: FORMAT.to_vec(), value });
    }
    Ok((store.records, store.changes))
}

/// What was read back.
pub(super) struct Loaded {
    /// What brings the store to the format of this program, if it was of an earlier one.
    pub migrated: Vec<Change>,
    /// What each slot's member last said that it reads.
    pub formats: BTreeMap<u32, Versions>,
    pub epoch: u64,
    pub seq: u64,
    pub store: StoreState,
    pub table: ObjectTable,
    /// The key of the order of candidates, if it is of the number in the configuration.
    pub order: Option<OrderKey>,
    /// What the last batch replaced.
    pub replaced: Vec<LostObject>,
    /// What makes lost the objects that were shared for another mode of export, and how many these are.
    pub outdated: Vec<Change>,
    pub objects_outdated: usize,
    /// The directory that was in force.
    pub set: Option<Vec<u8>>,
}

fn object_key(slot: u32, version: u64) -> Vec<u8> {
    [&slot.to_be_bytes()[..], &version.to_be_bytes()].concat()
}

/// The directory in force.
pub(super) fn set_change(directory: &[u8]) -> Change {
    Change { table: META, key: SET.to_vec(), value: Some(directory.to_vec()) }
}

/// What makes the store equal to the table again after `effects`.
pub(super) fn changes(table: &ObjectTable, effects: &Effects, epoch: u64, seq: u64) -> Vec<Change> {
    let number = |key: &str, value: u64| Change {
        table: META,
        key: key.as_bytes().to_vec(),
        value: Some(value.to_be_bytes().to_vec()),
    };
    let mut out = vec![number("epoch", epoch), number("seq", seq)];
    out.extend(effects.lost.iter().map(|key| lost_change(table, *key)));
    let widened = effects.widened.iter().map(|(slot, version, ..)| (*slot, *version));
    let written: BTreeSet<(u32, u64)> = effects.added.iter().copied().chain(widened).collect();
    for (slot, version) in written {
        let Some(entry) = table.entry(slot, version) else { continue };
        out.push(Change { table: OBJECTS, key: object_key(slot, version), value: Some(encode(entry)) });
    }
    for (slot, version) in &effects.marked {
        let Some(entry) = table.entry(*slot, *version) else { continue };
        let mut w = Writer::new();
        w.u32(entry.width).list32(&entry.dead_indices(), |w, index| {
            w.u16(*index);
        });
        out.push(Change { table: MARKS, key: object_key(*slot, *version), value: Some(w.finish()) });
    }
    for (slot, version, _) in &effects.removed {
        out.push(Change { table: OBJECTS, key: object_key(*slot, *version), value: None });
        out.push(Change { table: MARKS, key: object_key(*slot, *version), value: None });
    }
    for slot in effects.applied.keys() {
        let value = [table.high_water(*slot), table.applied_of(*slot)].map(u64::to_be_bytes).concat();
        out.push(Change { table: VERSIONS, key: slot.to_be_bytes().to_vec(), value: Some(value) });
    }
    out
}

/// What the last batch replaced.
pub(super) fn replaced_change(replaced: &[LostObject]) -> Change {
    let mut w = Writer::new();
    w.list32(replaced, |w, object| object.write(w));
    Change { table: META, key: REPLACED.to_vec(), value: Some(w.finish()) }
}

/// What is lost of an object, or that nothing is any more.
fn lost_change(table: &ObjectTable, (slot, version): (u32, u64)) -> Change {
    let value = table.lost().get(slot, version).map(wire::encode);
    Change { table: LOST, key: object_key(slot, version), value }
}

fn encode(entry: &ObjectEntry) -> Vec<u8> {
    let mut w = Writer::new();
    entry.header.write(&mut w);
    w.u32(entry.width);
    match &entry.part {
        Part::One { share, columns, blob } => w
            .u8(if entry.mode == ExportMode::Mpc { 4 } else { 3 })
            .bytes(&share.opening)
            .bytes(share.seed.expose())
            .blob(blob)
            .list32(columns, |w, (from, salt)| {
                w.u32(*from).bytes(salt);
            }),
        Part::Two { row } => w.u8(if entry.mode == ExportMode::Mpc { 5 } else { 2 }).blob(row),
    };
    w.finish()
}

fn decode(number: PartyNumber, exchange: &str, bytes: &[u8]) -> Result<ObjectEntry, Malformed> {
    let mut r = Reader::new(bytes);
    let header = Arc::new(Header::read(&mut r)?);
    let width = r.u32()?;
    let kind = r.u8()?;
    let mode = if kind > 3 { ExportMode::Mpc } else { ExportMode::Direct };
    let part = match (kind, number) {
        // 1 was without columns.
        (3 | 4, PartyNumber::One) => Part::One {
            share: ShareOne { opening: r.array()?, seed: Seed::new(r.array()?) },
            blob: r.blob(MAX_BLOB)?.into(),
            columns: r.list32(36, MAX_SLOTS, |r| Ok::<_, Malformed>((r.u32()?, r.array()?)))?,
        },
        (2 | 5, PartyNumber::Two) => Part::Two { row: r.blob(bytes.len())?.to_vec() },
        _ => return Err(Malformed::Value("the number of a party")),
    };
    r.end()?;
    Ok(ObjectEntry {
        digest: header.digest(exchange),
        handle: header.description.handle(exchange),
        header,
        mode,
        width,
        dead: BTreeSet::new(),
        part,
        since: Vec::new(),
    })
}

/// Reads the store back, of this or an earlier format. Objects that were shared for another mode of export than `mode` are lost, since
/// `now`: their announcers share them again.
pub(super) fn load(
    (number, mode, order): (PartyNumber, ExportMode, u32),
    (exchange, now): (&str, UnixTime),
    stored: Vec<StoredRecord>,
) -> Result<Loaded, StartError> {
    let (stored, migrated) = migrate(stored)?;
    read((number, mode, order), (exchange, now), (stored, migrated)).map_err(|_| StartError::Store)
}

fn read(
    (number, mode, order): (PartyNumber, ExportMode, u32),
    (exchange, now): (&str, UnixTime),
    (stored, migrated): (Vec<StoredRecord>, Vec<Change>),
) -> Result<Loaded, Malformed> {
    let mut loaded = Loaded {
        migrated,
        formats: BTreeMap::new(),
        epoch: 0,
        seq: 0,
        store: StoreState::default(),
        table: ObjectTable::new(),
        order: None,
        replaced: Vec::new(),
        outdated: Vec::new(),
        objects_outdated: 0,
        set: None,
    };
    let mut entries = BTreeMap::new();
    let mut marks = BTreeMap::new();
    let mut lost: Vec<LostObject> = Vec::new();
    for record in stored {
        match record.table.as_str() {
            META if record.key == SET => loaded.set = Some(record.value),
            META if record.key == ORDER => {
                let (of, key) = stored_order(&record).ok_or(Malformed::Value("the key of the order of candidates"))?;
                loaded.order = (of == order).then_some(key);
            }
            META if record.key == REPLACED => {
                loaded.replaced =
                    Reader::new(&record.value).list32(LostObject::LEAST, record.value.len(), LostObject::read)?;
            }
            LOST => lost.push(wire::decode(&record.value)?),
            META => {
                let value = Reader::new(&record.value).u64()?;
                match record.key.as_slice() {
                    b"epoch" => loaded.epoch = value,
                    b"seq" => (loaded.seq, loaded.store.stored) = (value, value),
                    AGREED => loaded.store.agreed = value,
                    _ => {}
                }
            }
            OBJECTS => {
                entries.insert(record.key, decode(number, exchange, &record.value)?);
            }
            MARKS => {
                let mut r = Reader::new(&record.value);
                let width = r.u32()?;
                marks.insert(record.key, (width, r.list32(2, MAX_PREFIXES, Reader::u16)?));
            }
            VERSIONS => {
                let slot = Reader::new(&record.key).u32()?;
                let mut r = Reader::new(&record.value);
                let seen = r.u64()?;
                loaded.table.saw(slot, seen);
                // Where it does not say so, whatever is not here counts as withdrawn: nothing that went comes back.
                loaded.table.was_applied(slot, if record.value.len() == 8 { seen } else { r.u64()? });
            }
            FORMATS => {
                loaded.formats.insert(Reader::new(&record.key).u32()?, wire::decode(&record.value)?);
            }
            _ => {}
        }
    }
    // Before the objects, whose routes it numbers.
    loaded.order.iter().for_each(|key| loaded.table.set_order(key.clone()));
    let mut outdated = Vec::new();
    for (key, mut entry) in entries {
        if let Some((width, dead)) = marks.remove(&key) {
            entry.dead = dead.into_iter().collect();
            // A column that came after the mark widened the object itself; a narrowing rewrote the mark.
            entry.width = entry.width.max(width).min(match &entry.part {
                Part::Two { row } if entry.mode == ExportMode::Direct => {
                    u32::try_from(row.len() / 16).unwrap_or(u32::MAX)
                }
                Part::Two { row } => u32::try_from(row.len().saturating_sub(16) * 8).unwrap_or(u32::MAX),
                Part::One { .. } => u32::MAX,
            });
        }
        let of = (entry.header.description.slot, entry.header.description.version);
        if entry.mode != mode {
            outdated.push(of);
        }
        loaded.table.restore(entry);
    }
    let mut effects = Effects::default();
    // A clock that was ahead keeps nothing for longer, and one that is behind ends nothing: batches have been made until then at least.
    let now = now.0.max(loaded.seq);
    let lost = lost.into_iter().map(|object| LostObject { since: object.since.min(now), ..object });
    lost.for_each(|object| loaded.table.add_lost(object, &mut effects));
    effects = Effects::default();
    for (slot, version) in outdated {
        let lost = loaded.table.as_lost((slot, version), (0, now), |_| true);
        loaded.table.drop_object(slot, version, &mut effects);
        lost.into_iter().for_each(|object| loaded.table.add_lost(object, &mut effects));
    }
    loaded.table.settle_lost(&mut effects);
    loaded.objects_outdated = effects.removed.len();
    if loaded.objects_outdated > 0 || !effects.lost.is_empty() {
        loaded.outdated = changes(&loaded.table, &effects, loaded.epoch, loaded.seq);
    }
    Ok(loaded)
}

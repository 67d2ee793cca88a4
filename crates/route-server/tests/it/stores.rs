//! A party's and a member's stores over upgrades: an older one is read and migrated, all or nothing; a newer one is refused and left as
//! it is.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{OPERATORS, admit, empty, key, request};
use wayleave_bgp::Nlri;
use wayleave_core::wire::Writer;
use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_route_server::directory::Directory;
use wayleave_route_server::member::{self, StoreError};
use wayleave_route_server::object::{self, Description, ExportMode, Format, Fresh, Kind};
use wayleave_route_server::party::{
    Budget, Change, MAX_WAITING, Party, PartyConfig, PartyNumber, PartyOutput, PartyStatus, StartError, StoredRecord,
};
use wayleave_route_server::versions::{FORMATS, Speaks};

const NOW: Now = Now { instant: Instant(1_000_000_000), unix: UnixTime(1_800_000_000_000_000) };

type Store = BTreeMap<(String, Vec<u8>), Vec<u8>>;

fn members() -> Directory {
    admit(&empty(), &[request(1, 64497), request(2, 64498)])
}

/// A store as programs before version 7 of the protocol wrote it: with the set, an object of slot 1, and no format.
fn old_store() -> Store {
    let prefixes = vec![Nlri::new("192.0.2.0/24".parse().expect("a prefix"))];
    let kind = Kind::Announce { prefixes };
    let description = Description { format: Format::First, slot: 1, set: 1, epoch: 2, version: 7, salt: [4; 32], kind };
    // As they wrote it: a slot in four octets, and no format.
    let mut described = Writer::new();
    described.u32(1).u64(1).u64(2).u64(7).bytes(&[4; 32]).u8(1).u32(1).u32(0).u8(4).u8(24).bytes(&[192, 0, 2, 0]);
    let described = described.finish();
    let fresh = Fresh { key: [1; 16], seed: [2; 32], openings: [[3; 32], [4; 32]] };
    let sealed = object::announce(
        ExportMode::Direct,
        "test-ix",
        description,
        (b"attributes", &[6; 32]),
        &[true, true],
        &fresh,
        &key(2),
    );
    let mut object = Writer::new();
    object.blob(&described).bytes(&sealed.header.blob_hash);
    object.bytes(&sealed.header.commitments[0].0).bytes(&sealed.header.commitments[1].0);
    object.bytes(&sealed.header.signature).u32(2);
    object.u8(3).bytes(&sealed.one.opening).bytes(sealed.one.seed.expose()).blob(&sealed.blob).u32(0);
    let number = |number: u64| number.to_be_bytes().to_vec();
    let object_key = [&1u32.to_be_bytes()[..], &7u64.to_be_bytes()].concat();
    [
        ("meta", b"set".to_vec(), members().encode()),
        ("meta", b"epoch".to_vec(), number(2)),
        ("meta", b"seq".to_vec(), number(40)),
        ("meta", b"agreed".to_vec(), number(39)),
        ("objects", object_key, object.finish()),
        ("versions", 1u32.to_be_bytes().to_vec(), number(7)),
    ]
    .into_iter()
    .map(|(table, key, value)| ((table.to_owned(), key), value))
    .collect()
}

/// A party that starts with this store, and the batches of changes that it writes.
fn start(store: &Store) -> Result<(PartyStatus, Vec<Vec<Change>>), StartError> {
    let config = PartyConfig {
        number: PartyNumber::One,
        exchange: "test-ix".to_owned(),
        operators: OPERATORS.map(|number| key(number).verifying_key()),
        keys: Vec::new(),
        tick: Duration::ZERO,
        stale: Duration::from_secs(60),
        rank_wait: Duration::from_secs(1),
        rank_allowance: None,
        match_wait: Duration::from_secs(2),
        export: ExportMode::Direct,
        order: 1,
        max_blob: 8192,
        max_prefix_limit: 1_000_000,
        max_waiting: MAX_WAITING,
        budget: Budget::default(),
        epoch: Duration::ZERO,
        speaks: Speaks::default(),
    };
    let mut party = Party::new(config, &Seed::new([1; 32]), &members().encode(), records(store), NOW)?;
    let written = std::iter::from_fn(|| party.poll()).filter_map(|output| match output {
        PartyOutput::Persist { changes, .. } => Some(changes),
        _ => None,
    });
    let written = written.collect();
    Ok((party.status(), written))
}

fn records(store: &Store) -> Vec<StoredRecord> {
    let record = |((table, key), value): (&(String, Vec<u8>), &Vec<u8>)| StoredRecord {
        table: table.clone(),
        key: key.clone(),
        value: value.clone(),
    };
    store.iter().map(record).collect()
}

fn apply(store: &mut Store, changes: &[Change]) {
    for Change { table, key, value } in changes {
        let key = ((*table).to_owned(), key.clone());
        match value {
            Some(value) => drop(store.insert(key, value.clone())),
            None => drop(store.remove(&key)),
        }
    }
}

fn format(value: u64) -> ((String, Vec<u8>), Vec<u8>) {
    (("meta".to_owned(), b"format".to_vec()), value.to_be_bytes().to_vec())
}

#[test]
fn a_store_without_a_format_is_read_and_migrated_in_one_write_before_all_else() {
    let mut store = old_store();
    let (status, written) = start(&store).expect("an older store");
    assert_eq!((status.objects, status.prefixes, status.epoch), (1, 1, 2));
    assert!(status.batch >= 40);
    // Members that were there read the first format, as far as the party knows.
    let read: Vec<_> = status.speaks.iter().map(|of| (of.slot, of.formats)).collect();
    assert_eq!(read, [(0, Some(FORMATS)), (1, Some(FORMATS))]);
    let first = written.first().expect("it writes");
    let (key, value) = format(2);
    assert!(first.iter().any(|change| (&change.key, &change.value) == (&key.1, &Some(value.clone()))), "{first:?}");
    assert_eq!(first.iter().filter(|change| change.table == "formats").count(), 2);
    assert!(first.iter().all(|change| change.table != "objects"), "objects are as they were");

    // Killed before that was durable, it begins again from the same.
    let (_, again) = start(&store).expect("the same store");
    assert_eq!(again, written);
    // Once it was, there is nothing more to migrate.
    apply(&mut store, first);
    let (status, written) = start(&store).expect("a store of this program");
    assert_eq!((status.objects, status.speaks.len()), (1, 2));
    assert!(written.iter().flatten().all(|change| change.table != "formats" && change.key != b"format"), "{written:?}");
}

#[test]
fn a_store_of_a_newer_program_is_refused_with_what_to_do() {
    for found in [3, 4, u64::MAX] {
        let mut store = old_store();
        store.extend([format(found)]);
        let error = start(&store).expect_err("a newer store");
        assert_eq!(error, StartError::NewerStore { found, reads: 2 });
        let said = error.to_string();
        for part in [&format!("format {found}"), "reads up to 2", "run that release", "move the store away"] {
            assert!(said.contains(part), "{said}");
        }
    }
    for value in [vec![], vec![0; 8], vec![1; 7]] {
        let mut store = old_store();
        store.insert(format(1).0, value);
        assert_eq!(start(&store).err(), Some(StartError::Store));
    }
}

#[test]
fn a_member_refuses_a_store_of_a_newer_program() {
    let mut store = old_store();
    assert_eq!(member::check_store(&records(&store)), Ok(()));
    store.extend([format(2)]);
    let error = member::check_store(&records(&store)).expect_err("a newer store");
    assert_eq!(error, StoreError::Newer { found: 2 });
    assert!(error.to_string().contains("run that release, or move the store away"), "{error}");
    store.insert(format(1).0, vec![1]);
    assert_eq!(member::check_store(&records(&store)), Err(StoreError::Damaged));
}

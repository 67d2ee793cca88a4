//! Every frame between members and parties, and between the parties, as `test-data/wire/exchange.json` has its octets.
//!
//! `WAYLEAVE_WRITE_VECTORS=1` writes a new file.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use wayleave_bgp::Nlri;
use wayleave_core::wire::Malformed;
use wayleave_crypto::commit::Commitment;
use wayleave_crypto::secret::Seed;
use wayleave_route_server::digests::{BucketSet, Roots, Through};
use wayleave_route_server::frames::{
    Body, BudgetLeft, Deliver, EngineStream, FromMember, InventoryRow, LostObject, Miss, OwnObject, PartyFrame,
    Refusal, Rejection, Slice, SliceContent, Step, Tick, ToMember,
};
use wayleave_route_server::object::{Description, ExportMode, Format, Handle, Header, Kind, ShareOne, ShareTwo};
use wayleave_route_server::versions::{VERSIONS, Versions};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/exchange.json")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn nlri(path_id: u32, prefix: &str) -> Nlri {
    Nlri { path_id, prefix: prefix.parse().expect("a prefix") }
}

fn shared(octets: &[u8]) -> Arc<[u8]> {
    octets.into()
}

fn header(kind: Kind) -> Box<Header> {
    let description =
        Description { format: Format::default(), slot: 3, set: 4, epoch: 5, version: 6, salt: [7; 32], kind };
    let commitments = [Commitment([9; 32]), Commitment([10; 32])];
    Box::new(Header { description, blob_hash: [8; 32], commitments, signature: [11; 64] })
}

fn through() -> Through {
    Through { objects: 20, results: 19 }
}

fn roots() -> Roots {
    Roots { objects: [12; 16], instances: [13; 16] }
}

fn some_buckets() -> BucketSet {
    BucketSet::differing(&[(1, [1; 16]), (4_095, [2; 16])], &[])
}

fn from_member() -> Vec<FromMember> {
    let prefixes = vec![nlri(0, "192.0.2.0/24"), nlri(1, "2001:db8::/32")];
    let announce = header(Kind::Announce { prefixes: prefixes.clone() });
    let withdraw = header(Kind::Withdraw { prefixes });
    let column = header(Kind::Column { from: 8, to: 16, versions: vec![1, 2] });
    let one = ShareOne { opening: [14; 32], seed: Seed::new([15; 32]) };
    let two = || ShareTwo { opening: [16; 32], row: shared(&[17; 20]) };
    vec![
        FromMember::Hello {
            versions: VERSIONS,
            exchange: "test-ix".into(),
            slot: 3,
            session: [1; 16],
            select_best: true,
            formats: Versions { least: 1, highest: 2 },
            later: b"later".to_vec(),
        },
        FromMember::Begin { version: 7, told: [VERSIONS, Versions { least: 7, highest: 9 }] },
        FromMember::SubmitOne { header: announce.clone(), body: Some((one, shared(b"sealed"))) },
        FromMember::SubmitOne { header: withdraw.clone(), body: None },
        FromMember::SubmitTwo { header: column, share: Some(two()) },
        FromMember::SubmitTwo { header: announce, share: Some(two()) },
        FromMember::SubmitTwo { header: withdraw, share: None },
        FromMember::RankOne { seq: 30, row: [18; 16], seed: Seed::new([19; 32]) },
        FromMember::RankTwo { seq: 30, row: [18; 16], share: vec![1, 2, 3, 4] },
        FromMember::Holds { seq: 31, through: through(), epoch: 2, roots: roots(), own: [20; 16] },
        FromMember::Buckets {
            seq: 31,
            through: through(),
            epoch: 2,
            objects: vec![(0, [1; 16]), (4_095, [2; 16])],
            instances: Vec::new(),
            own: [20; 16],
        },
        FromMember::ObjectNames { question: 5, through: Handle([7; 32]), names: vec![([31; 8], 0), ([32; 8], 33)] },
        FromMember::InstanceNames { question: 6, through: [0xff; 32], names: vec![[34; 8]], open: vec![[35; 8]] },
        FromMember::Credit { limit: 1 << 40 },
    ]
}

fn tick() -> Tick {
    let candidate = |octet| (Handle([octet; 32]), u16::from(octet));
    let deliver =
        |octet, body| Deliver { handle: Handle([octet; 32]), epoch: 2, share: [octet; 16], dead: vec![1, 3], body };
    Tick {
        seq: 40,
        view: [21; 32],
        slice: Some(Slice {
            begins: Some(true),
            ends: Some(roots()),
            own: vec![OwnObject {
                version: 6,
                width: 16,
                live: vec![nlri(0, "198.51.100.0/24")],
                outside: vec![nlri(0, "198.51.100.0/24")],
            }],
            own_ends: true,
            died: vec![candidate(40)],
            gone: vec![[36; 8]],
            gone_instances: vec![[37; 8], [38; 8]],
            lost: vec![(Handle([41; 32]), 60, vec![0, 2])],
        }),
        applied: vec![6, 7],
        deliver: vec![deliver(22, Body::Blob(shared(b"sealed"))), deliver(23, Body::Hash([24; 32]))],
        dead: vec![candidate(25)],
        gone: vec![Handle([26; 32])],
        instances: vec![[candidate(27), candidate(28)].into(), [candidate(29)].into()],
        live: 1,
        rank: true,
        unranked: vec![0],
        outside: vec![nlri(1, "198.51.100.0/24")],
        inside: vec![nlri(2, "198.51.100.0/24")],
    }
}

fn to_member() -> Vec<ToMember> {
    let budget = BudgetLeft {
        objects: 1,
        octets: 2,
        prefixes: 3,
        stored: 4,
        max_stored: 5,
        syncs: 6,
        syncs_left: 7,
        choices: 8,
        choices_left: 9,
    };
    let rejections = [
        Rejection::Protocol { ours: 7 },
        Rejection::Exchange { ours: "test-ix".into() },
        Rejection::Slot { proved: 2 },
        Rejection::Removed { slot: 3, set: 9, by: 1 },
        Rejection::Versions { ours: Versions { least: 7, highest: 8 }, later: b"later".to_vec() },
        Rejection::Format { ours: 2 },
        Rejection::Told { told: VERSIONS, ours: Versions { least: 7, highest: 8 } },
    ];
    let mut all = vec![
        ToMember::Welcome {
            versions: VERSIONS,
            session: [1; 16],
            epoch: 2,
            high_water: 6,
            tick_ms: 100,
            export: ExportMode::Direct,
            max_blob: 65_536,
            budget,
            format: 2,
            set: shared(b"a set"),
            later: b"later".to_vec(),
        },
        ToMember::Renew { epoch: 3, set: shared(b"a set") },
        ToMember::Tick(Box::default()),
        ToMember::Tick(Box::new(tick())),
        ToMember::Outcome { seq: 40, first: 2, share: vec![0x81, 0] },
        ToMember::Part { last: true, bytes: vec![1, 2, 3] },
        ToMember::Progress { seq: 40 },
        ToMember::Missed { seq: 40, why: Miss::Budget },
        ToMember::Credit { limit: 1 << 40 },
        ToMember::Queued { ahead: 7 },
        ToMember::Deferred { seconds: 60 },
        ToMember::OwnOrder { seconds: 61 },
        ToMember::Compare,
        ToMember::NameObjects { question: 5, after: 41, buckets: some_buckets(), from: Handle([7; 32]) },
        ToMember::NameInstances { question: 6, after: 41, buckets: BucketSet::Everything, from: [0; 32] },
        ToMember::Format { format: 2 },
    ];
    let refusals = [
        Refusal::OldVersion,
        Refusal::Epoch,
        Refusal::Set,
        Refusal::Proof,
        Refusal::Mismatch,
        Refusal::Size,
        Refusal::MaxPrefix,
        Refusal::Busy,
        Refusal::BlobSize,
        Refusal::Budget,
        Refusal::Stored,
        Refusal::Format,
    ];
    all.extend(refusals.map(|reason| ToMember::Refused { version: 6, reason }));
    all.extend(rejections.map(|why| ToMember::Rejected { why }));
    all
}

fn between() -> Vec<PartyFrame> {
    let session = [1; 16];
    let content = SliceContent {
        own: vec![6],
        own_ends: true,
        objects: vec![(3, 6), (3, 7)],
        died: vec![(4, 1)],
        prefixes: vec!["198.51.100.0/24".parse().expect("a prefix")],
        gone: vec![[36; 8]],
        gone_instances: vec![[37; 8], [38; 8]],
        lost: vec![(5, 8, 60)],
        settled: Some([39; 32]),
        ends: true,
    };
    let steps = vec![
        Step::Object { slot: 3, version: 6, digest: [30; 32] },
        Step::Expire { slot: 3, objects: 10 },
        Step::Sync { slot: 3, session, select_best: true, chooses: false, own: true },
        Step::Sync { slot: 4, session, select_best: false, chooses: false, own: false },
        Step::Gone { slot: 3 },
        Step::Epoch { epoch: 3, changed: vec![1, 2] },
        Step::Set { set: shared(b"a set") },
        Step::Slice { slot: 3, content: Box::new(content) },
        Step::Slice { slot: 4, content: Box::default() },
        Step::Pause { slot: 3 },
        Step::Relist { prefixes: 12 },
        Step::Forget { objects: 13 },
    ];
    let row = InventoryRow { slot: 3, version: 6, digest: [30; 32], width: 16, dead: vec![0, 2] };
    let differ = vec![(3, 6, 16, vec![1, 2])];
    let prefixes = vec![(1, 4, nlri(0, "198.51.100.0/24"))];
    let lost = LostObject { slot: 3, version: 5, handle: Handle([39; 32]), since: 1_700_000_000_000_000, prefixes };
    vec![
        PartyFrame::Hello {
            versions: VERSIONS,
            exchange: "test-ix".into(),
            party: 2,
            nonce: [31; 16],
            epoch: 2,
            seq: 40,
            set: shared(b"a set"),
            tick_ms: 100,
            export: ExportMode::Mpc,
            max_blob: 65_536,
            stored: 39,
            agreed: 38,
            applied: 39,
            clock: 1_700_000_000_000_000,
            order: 3,
            commitment: [41; 32],
            has_order: Some([42; 32]),
            later: b"later".to_vec(),
        },
        PartyFrame::Inventory { rows: vec![row], high_water: vec![(3, 6)], applied: vec![(3, 5)], more: true },
        PartyFrame::Reconciling { drop: vec![(3, 5, true)], differ: differ.clone() },
        PartyFrame::Reconciled {
            epoch: 2,
            set: shared(b"a set"),
            drop: vec![(3, 5, false)],
            differ,
            high_water: vec![(3, 6)],
            view: [21; 32],
        },
        PartyFrame::Lost { objects: vec![lost], more: true },
        PartyFrame::Holding { objects: vec![(3, 6, [30; 32])] },
        PartyFrame::Joined { slot: 3, session, select_best: true },
        PartyFrame::Left { slot: 3, session },
        PartyFrame::Propose { seq: 41, steps },
        PartyFrame::Accept { seq: 41, view: [21; 32] },
        PartyFrame::Reject { seq: 41, missing: vec![(3, 6)] },
        PartyFrame::Go { seq: 41 },
        PartyFrame::Ranked { seq: 41, slot: 3, row: [18; 16] },
        PartyFrame::Evaluate { seq: 41, rows: vec![(3, [18; 16])], late: vec![4] },
        PartyFrame::Late { rows: vec![(41, 4, [19; 16])], ended: vec![40] },
        PartyFrame::Next { seq: 41 },
        PartyFrame::Refill { demand: vec![(750, 64)] },
        PartyFrame::Engine { stream: EngineStream::Evaluation, step: 1, bytes: vec![1, 2] },
        PartyFrame::Engine { stream: EngineStream::Setup, step: 2, bytes: vec![3] },
        PartyFrame::Drop { objects: vec![(3, 6)] },
        PartyFrame::Members { set: shared(b"a set") },
        PartyFrame::Credit { limit: 1 << 40 },
        PartyFrame::Held { slot: 3, held: true, lacks: false },
        PartyFrame::OrderShare { opening: [43; 32], share: Seed::new([44; 32]) },
        PartyFrame::OrderKey { key: Seed::new([45; 32]) },
    ]
}

/// Octets of each frame. What decodes from them has these octets and no others; less, or more, is no frame.
fn octets<T: Debug>(
    frames: &[T],
    types: u8,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, Malformed>,
) -> Vec<Vec<u8>> {
    let all: Vec<Vec<u8>> = frames.iter().map(&encode).collect();
    for code in 1..=types {
        assert!(all.iter().any(|one| one[0] == code), "no frame of type {code}");
    }
    assert!(decode(&[types + 1]).is_err());
    for one in &all {
        let again = decode(one).unwrap_or_else(|error| panic!("{}: {error}", hex(one)));
        assert_eq!(hex(&encode(&again)), hex(one), "{again:?}");
        assert_eq!(
            decode(&[one.as_slice(), &[0]].concat()).err(),
            Some(Malformed::TooLong(1)),
            "{again:?} and an octet"
        );
        for end in 0..one.len() {
            assert!(decode(&one[..end]).is_err(), "{end} octets of {again:?}");
        }
    }
    all
}

#[test]
fn every_frame_has_the_published_octets() {
    let lists = [
        ("from_member", octets(&from_member(), 11, FromMember::encode, FromMember::decode)),
        ("to_member", octets(&to_member(), 17, ToMember::encode, ToMember::decode)),
        ("between_parties", octets(&between(), 23, PartyFrame::encode, PartyFrame::decode)),
    ];
    let mut found = json!({ "format": "frames of an exchange, protocol 7; see docs/protocol.md" });
    for (name, frames) in &lists {
        found[name] = frames.iter().map(|one| hex(one)).collect::<Vec<_>>().into();
    }
    if std::env::var("WAYLEAVE_WRITE_VECTORS").is_ok() {
        let text = serde_json::to_string_pretty(&found).expect("numbers and text") + "\n";
        std::fs::write(file(), text).expect("the folder is there");
    }
    let published: Value = serde_json::from_slice(&std::fs::read(file()).expect("the file is there")).expect("JSON");
    assert_eq!(found, published);
}

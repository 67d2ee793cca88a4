//! Two pairs of parties of one exchange: nothing that was made for one is taken by the other, even where somebody gave both the same
//! keys, and what party 1 of one and party 2 of the other hold combines to nothing.
//!
//! OPS, two pairs: a member set, a request, a route object of one pair at the other: refused, with the same operators and the same
//! member's key as well; party 1 of one pair and party 2 of the other in one hand: no share opens anything.

use wayleave_bgp::Nlri;
use wayleave_core::Asn;
use wayleave_route_server::directory::{ChainError, Directory, Trust};
use wayleave_route_server::object::{self, Description, ExportMode, Format, Fresh, Kind, Sealed};

use crate::common::{OPERATORS, claim, key, public};

const PAIRS: [&str; 2] = ["test-ix-rs1", "test-ix-rs2"];
const EPOCH: u64 = 5;
const SLOTS: u32 = 4;

/// The same route of the same member, announced to this pair. `fresh` is what is drawn for it.
fn announced(pair: &str, mode: ExportMode, exported: &[bool], fresh: u8) -> Sealed {
    let description = Description {
        format: Format::default(),
        slot: 0,
        set: 1,
        epoch: EPOCH,
        version: 7,
        salt: [fresh; 32],
        kind: Kind::Announce { prefixes: vec![Nlri::new("192.0.2.0/24".parse().expect("a prefix"))] },
    };
    let fresh = Fresh { key: [fresh; 16], seed: [fresh + 1; 32], openings: [[fresh + 2; 32], [fresh + 3; 32]] };
    object::announce(mode, pair, description, (b"attributes", &[6; 32]), exported, &fresh, &key(1))
}

fn directory(pair: &str) -> Directory {
    let empty = Directory::new(pair, OPERATORS.map(public)).expect("a name and two keys");
    let request = claim(1, 64_497).sign(pair, &key(1));
    let change = empty.requested(&request, 100).expect("of this pair");
    let [one, two] = OPERATORS.map(key);
    empty.signed_by_both(vec![change], [&one, &two]).expect("a sound set")
}

#[test]
fn a_member_set_and_a_request_of_one_pair_are_refused_by_the_other() {
    let [one, two] = PAIRS.map(directory);
    for (pair, own, other) in [(PAIRS[0], &one, &two), (PAIRS[1], &two, &one)] {
        let trust = Trust { exchange: pair.to_owned(), operators: OPERATORS.map(public) };
        let theirs = || ChainError::OtherExchange(other.set().exchange.clone());
        assert!(Directory::open(&own.encode(), &trust).is_ok());
        assert_eq!(Directory::open(&other.encode(), &trust), Err(theirs()));
        assert!(matches!(own.succeed(&other.encode()), Err(error) if error == theirs()));
        // What a member's state has of the other pair.
        assert_eq!(other.check(&trust), Err(theirs()));
        let request = claim(2, 64_498).sign(&other.set().exchange, &key(2));
        assert_eq!(own.requested(&request, 100), Err(theirs()));
    }
    assert_eq!(one.set().slots[0].asn, Asn(64_497), "the same member in both");
}

#[test]
fn a_route_object_of_one_pair_is_none_of_the_other() {
    let sealed = announced(PAIRS[0], ExportMode::Direct, &[true; SLOTS as usize], 50);
    let own = key(1).verifying_key();
    assert!(sealed.header.is_signed_by(PAIRS[0], &own) && !sealed.header.is_signed_by(PAIRS[1], &own));
    let [handle, other] = PAIRS.map(|pair| sealed.header.description.handle(pair));
    assert_ne!(handle, other);
    let withdrawn = object::withdraw(PAIRS[0], sealed.header.description.clone(), &key(1));
    assert!(withdrawn.is_signed_by(PAIRS[0], &own) && !withdrawn.is_signed_by(PAIRS[1], &own));
    let shares = (sealed.one.key_share(None, 1), share_of_two(&sealed, 1));
    let open = |pair, handle| object::open(pair, EPOCH, handle, [&shares.0, &shares.1], &sealed.blob);
    assert!(open(PAIRS[0], &handle).is_ok_and(|opened| opened.is_some()));
    for handle in [&handle, &other] {
        assert!(open(PAIRS[1], handle).is_err(), "both parties of the other pair serve it, whole");
    }
}

fn share_of_two(sealed: &Sealed, slot: u32) -> [u8; 16] {
    sealed.two.row[slot as usize * 16..][..16].try_into().expect("16 octets a slot")
}

#[test]
fn party_1_of_one_pair_and_party_2_of_the_other_hold_nothing_that_combines() {
    for exported in [[true; SLOTS as usize], [false, true, false, true]] {
        let [one, two] =
            [(PAIRS[0], 50), (PAIRS[1], 90)].map(|(pair, fresh)| announced(pair, ExportMode::Direct, &exported, fresh));
        for (at_1, at_2) in [(&one, &two), (&two, &one)] {
            for (slot, other) in (0..SLOTS).flat_map(|slot| (0..SLOTS).map(move |other| (slot, other))) {
                let shares = [&at_1.one.key_share(None, slot), &share_of_two(at_2, other)];
                for (pair, sealed) in PAIRS.into_iter().zip([&one, &two]) {
                    let handle = sealed.header.description.handle(pair);
                    // No key, and none that is known to mean "not for you" either: it does not tell the policy.
                    assert!(object::open(pair, EPOCH, &handle, shares, &sealed.blob).is_err(), "{slot} {other}");
                }
            }
        }
        // Nor is anything of one the same as of the other, by which objects, members' rows or routes could be matched octet by octet.
        let held = |sealed: &Sealed| {
            let rows = sealed.two.row.as_chunks::<16>().0.to_vec();
            (sealed.header.blob_hash, sealed.header.commitments, sealed.blob.clone(), rows)
        };
        let (a, b) = (held(&one), held(&two));
        assert!(a.0 != b.0 && a.1[0] != b.1[0] && a.1[1] != b.1[1] && a.2 != b.2);
        assert!(a.3.iter().all(|share| !b.3.contains(share)));
    }
    // Party 1's part is the same whatever the policy, and party 2's of the other pair has its length alone.
    let parts = [[true; SLOTS as usize], [false; SLOTS as usize]].map(|exported| {
        let [one, two] =
            [(PAIRS[0], 50), (PAIRS[1], 90)].map(|(pair, fresh)| announced(pair, ExportMode::Direct, &exported, fresh));
        (one.one.seed, one.blob, one.header.commitments[0], two.two.row.len(), two.blob)
    });
    assert!(parts[0] == parts[1]);
}

//! Route objects: who can open what, and what one party alone can tell.
//!
//! SIX-13: with `export = "mpc"` an announcer shares the policy with one bit a slot (110 octets for 750 slots); a
//! column gives new slots what the row would have given.
//! SIX, S17: other entropy, or the same with other secrets: no two columns, and no column and row, have one mask.

use wayleave_bgp::Nlri;
use wayleave_core::wire;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::frames::FromMember;
use wayleave_route_server::object::{self, Description, ExportMode, Format, Fresh, Kind, OpenError, Sealed};

const EXCHANGE: &str = "test-ix";

fn key() -> SigningKey {
    SigningKey::from_seed(&Seed::new([9; 32]))
}

fn description(prefixes: &[&str]) -> Description {
    let mut prefixes: Vec<Nlri> = prefixes.iter().map(|p| Nlri::new(p.parse().expect("a prefix"))).collect();
    prefixes.sort_unstable();
    Description {
        format: Format::default(),
        slot: 3,
        set: 1,
        epoch: 5,
        version: 7,
        salt: [4; 32],
        kind: Kind::Announce { prefixes },
    }
}

fn sealed(exported: &[bool], fresh: u8) -> Sealed {
    sealed_for(ExportMode::Direct, exported, fresh)
}

fn sealed_for(mode: ExportMode, exported: &[bool], fresh: u8) -> Sealed {
    let fresh = Fresh { key: [fresh; 16], seed: [fresh + 1; 32], openings: [[fresh + 2; 32], [fresh + 3; 32]] };
    let route: (&[u8], _) = (b"attributes", &[6; 32]);
    object::announce(mode, EXCHANGE, description(&["192.0.2.0/24"]), route, exported, &fresh, &key())
}

fn shares(sealed: &Sealed, slot: u32) -> ([u8; 16], [u8; 16]) {
    let two = sealed.two.row[slot as usize * 16..][..16].try_into().expect("16 bytes a slot");
    (sealed.one.key_share(None, slot), two)
}

#[test]
fn exactly_those_it_is_exported_to_open_a_route() {
    let exported = [true, false, true, false, true];
    let sealed = sealed(&exported, 50);
    let handle = sealed.header.description.handle(EXCHANGE);
    for (slot, exported) in (0..).zip(exported) {
        let (one, two) = shares(&sealed, slot);
        let opened = object::open(EXCHANGE, 5, &handle, [&one, &two], &sealed.blob).expect("no misbehaviour");
        assert_eq!(opened.is_some(), exported, "slot {slot}");
        if let Some(opened) = opened {
            assert_eq!(opened.attributes, b"attributes");
            assert_eq!(opened.description, sealed.header.description);
            assert!(opened.is_signed_by(&handle, &key().verifying_key()));
        }
    }
}

#[test]
fn a_share_of_another_version_opens_nothing_and_is_noticed() {
    let (old, new) = (sealed(&[true, true], 50), sealed(&[true, false], 90));
    let handle = new.header.description.handle(EXCHANGE);
    for slot in 0..2 {
        let ((one, _), (_, two)) = (shares(&old, slot), shares(&new, slot));
        assert_eq!(object::open(EXCHANGE, 5, &handle, [&one, &two], &new.blob), Err(OpenError::Key));
    }
}

#[test]
fn neither_party_can_test_a_guess_of_the_policy() {
    // Party 1's part does not depend on the policy at all; party 2's row is its XOR, and the commitment to it hides.
    let (all, none) = (sealed(&[true; 4], 50), sealed(&[false; 4], 50));
    assert_eq!(all.one.seed, none.one.seed);
    assert_eq!(all.blob, none.blob);
    assert_eq!(all.header.commitments[0], none.header.commitments[0]);
    assert_ne!(all.header.commitments[1], none.header.commitments[1]);
    assert_eq!(all.two.row.len(), none.two.row.len());
}

#[test]
fn a_description_that_is_not_canonical_is_refused() {
    let good = description(&["192.0.2.0/24", "198.51.100.0/24"]);
    let bytes = wire::encode(&good);
    assert_eq!(wire::decode::<Description>(&bytes), Ok(good.clone()));
    let mut twice = good.clone();
    let Kind::Announce { prefixes } = &mut twice.kind else { unreachable!() };
    prefixes[1] = prefixes[0];
    assert!(wire::decode::<Description>(&wire::encode(&twice)).is_err());
    let mut reversed = good;
    let Kind::Announce { prefixes } = &mut reversed.kind else { unreachable!() };
    prefixes.reverse();
    assert!(wire::decode::<Description>(&wire::encode(&reversed)).is_err());
    for cut in 0..bytes.len() {
        assert!(wire::decode::<Description>(&bytes[..cut]).is_err());
    }
}

#[test]
fn blobs_come_in_size_classes() {
    for (len, class) in [(0, 512), (512, 512), (513, 1024), (1025, 2048), (4096, 4096), (4097, 8192)] {
        assert_eq!(object::size_class(len), class);
    }
    let short = sealed(&[true], 10).blob.len();
    let fresh = Fresh { key: [1; 16], seed: [2; 32], openings: [[3; 32], [4; 32]] };
    let longer = object::announce(
        ExportMode::Direct,
        EXCHANGE,
        description(&["192.0.2.0/24"]),
        (&[7; 200], &[6; 32]),
        &[true],
        &fresh,
        &key(),
    )
    .blob
    .len();
    assert_eq!((short, longer), (512, 512));
}

#[test]
fn a_column_gives_new_slots_what_the_row_would_have_given() {
    let whole = sealed(&[true, false, true, true], 50);
    let (seed, salt) = (&whole.one.seed, [9; 32]);
    let part = object::key_row(EXCHANGE, (seed, Some(&salt)), &whole.key, 5, 2, &[true, false]);
    let first = object::expand(seed, Some(&salt), 2, 4);
    assert_eq!(first[..16], whole.one.key_share(Some(&salt), 2));
    let combined: Vec<u8> = part.iter().zip(&first).map(|(two, one)| two ^ one).collect();
    assert_eq!(combined[..16], *whole.key.expose());
    assert_eq!(combined[16..], *object::dummy_key(EXCHANGE, 5).expose());
}

#[test]
fn no_two_columns_and_no_column_and_row_have_one_mask() {
    let seed = Seed::new([2; 32]);
    let masks = [None, Some(&[8; 32]), Some(&[9; 32])].map(|column| object::expand(&seed, column, 3, 4));
    assert!(masks[0] != masks[1] && masks[0] != masks[2] && masks[1] != masks[2]);
}

/// Both parties' shares of the policy in mode `mpc`, put together: which slots may open the route, and the key.
fn factors(sealed: &Sealed, slots: u32) -> (Vec<u8>, [u8; 16]) {
    let (masked, policy) = sealed.two.row.split_first_chunk::<16>().expect("a share of the key");
    let mask = object::policy_mask(&sealed.one.seed, None, slots);
    assert_eq!(policy.len(), mask.len());
    let key = std::array::from_fn(|i| masked[i] ^ object::key_mask(&sealed.one.seed)[i]);
    (policy.iter().zip(mask).map(|(two, one)| two ^ one).collect(), key)
}

#[test]
fn for_the_parties_to_multiply_an_announcer_shares_the_policy_one_bit_a_slot_and_the_key_once() {
    let exported: Vec<bool> = (0..750).map(|slot| slot % 3 == 0).collect();
    let sealed = sealed_for(ExportMode::Mpc, &exported, 50);
    let (policy, key) = factors(&sealed, 750);
    assert_eq!(key, *sealed.key.expose());
    let bits: Vec<bool> = (0..750).map(|slot| policy[slot / 8] >> (slot % 8) & 1 == 1).collect();
    assert_eq!(bits, exported);
    assert_eq!(policy[93] >> (750 % 8), 0, "nothing beyond the slots");
}

#[test]
fn with_the_parties_multiplying_an_announcer_sends_party_2_110_octets_for_750_slots_and_not_12000() {
    let exported = vec![true; 750];
    let frame = |mode| {
        let sealed = sealed_for(mode, &exported, 50);
        let (one, two) = (sealed.header.clone(), sealed.header);
        let body = Some((sealed.one, sealed.blob.into()));
        let one = FromMember::SubmitOne { header: Box::new(one), body }.encode().len();
        (one, FromMember::SubmitTwo { header: Box::new(two), share: Some(sealed.two) }.encode().len())
    };
    let ((one, mpc), (same, direct)) = (frame(ExportMode::Mpc), frame(ExportMode::Direct));
    assert_eq!(one, same);
    // A header of 238 octets, its opening of 32, and lengths come in both modes.
    assert_eq!((direct - 12_000, mpc - 110), (mpc - 110, 277));
    assert_eq!(ExportMode::Mpc.row_bytes(750), 110);
}

#[test]
fn the_shares_of_a_policy_in_two_columns_and_a_row_have_different_masks() {
    let seed = Seed::new([2; 32]);
    let masks = [None, Some(&[8; 32]), Some(&[9; 32])].map(|column| object::policy_mask(&seed, column, 128));
    assert!(masks[0] != masks[1] && masks[0] != masks[2] && masks[1] != masks[2]);
    assert_ne!(masks[0][..], object::key_mask(&seed)[..]);
    assert_ne!(masks[0][..], object::expand(&seed, None, 0, 1)[..]);
}

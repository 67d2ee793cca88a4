//! Floods: new nodes, and rates.
//!
//! ICD-06: a flood of new nodes, consented or not, in virtual time: none without consent, 100 agreements a second with
//! it; good packets all pass.
//! ICD-06, IDs that nobody has any more, named by a member with consents at five times the rate of agreements, beside new paths by the same
//! link: those of nodes with adverts all pass.

use std::sync::Arc;

use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Seed;
use wayleave_dataplane::icing::{Account, Action, AgreedKeys, Config, Policy, Reason, Router};
use wayleave_packet::icing::header::{Hop, Path, Tag, Version};
use wayleave_packet::icing::mint::{Form, NodeSecret, Sender};

use super::network::{
    self, EXPIRY, LINK, OPEN, TAGS, TIME, at_micros, mesh, packet, packet_at, process, process_at, sender,
};

/// A path of an unknown sender, to whom all nodes consent or none.
fn stranger(number: u32, is_consented: bool) -> Sender {
    let mut seed = [0x5a; 32];
    seed[..4].copy_from_slice(&number.to_be_bytes());
    let secret = NodeSecret::from_seed(&Seed::new(seed));
    let hop = |node| Hop { node: network::id(node), tag: Tag(TAGS), expiry: EXPIRY };
    let path = Path::new(secret.id(), &[hop(1), hop(2)]).unwrap();
    let hash = path.hash(Version::Standard);
    let consent = |index: usize| {
        let master = if is_consented { network::master(index) } else { network::master(9) };
        master.consent(&hash, index, Tag(TAGS), EXPIRY)
    };
    Sender::new(Version::Standard, &path, &secret, &[consent(1), consent(2)]).unwrap()
}

/// ICD-06, in virtual time: a million packets a second would come; 2,000 of them, over two seconds, are made.
#[test]
fn new_nodes_cost_a_hundred_agreements_a_second_and_good_packets_pass_beside_them() {
    const FLOOD: u32 = 2_000;
    for is_consented in [false, true] {
        let config = Config { agreements_per_second: 100, ..network::config(1, 4) };
        let mut router = Router::new(config, CpuKernel::best()).unwrap();
        let good = sender(&[3, 1, 2]);
        let start = u64::from(TIME) * 1_000_000;
        process_at(&mut router, &packet(&good, Form::Path, 0, b""), LINK + 3, at_micros(start));
        let before = router.counters().agreements;
        let mut passed = 0;
        for number in 0..FLOOD {
            let now = at_micros(start + u64::from(number) * 1_000);
            let octets = packet(&stranger(number, is_consented), Form::Path, 1, b"");
            process_at(&mut router, &octets, OPEN, now);
            let (action, _) = process_at(&mut router, &packet(&good, Form::Handle, number + 1, b""), LINK + 3, now);
            passed += u32::from(matches!(action, Action::Forward { .. }));
        }
        assert_eq!(passed, FLOOD);
        let agreements = router.counters().agreements - before;
        if is_consented {
            // A full bucket, and two seconds.
            assert!((200..=300).contains(&agreements), "{agreements}");
            assert!(router.counters().of(Reason::Busy) >= u64::from(FLOOD) - 300);
        } else {
            assert_eq!(agreements, 0);
            assert_eq!(router.counters().of(Reason::Consent), u64::from(FLOOD));
        }
        // A new path by another neighbour is not delayed.
        let other = sender(&[2, 1, 3]);
        let now = at_micros(start + 2_000_000);
        let (action, _) = process_at(&mut router, &packet(&other, Form::Path, 1, b""), LINK + 2, now);
        assert!(matches!(action, Action::Forward { .. }));
    }
}

/// A member has the consents of a path whose last ID nobody has any more, since a consent may outlast it, and sends 500 packets a second with a right proof for the node
/// before this one, and none for this one. Beside it, by the same link, come first packets of paths whose nodes were never seen.
#[test]
fn new_paths_of_known_nodes_pass_beside_a_member_that_names_ids_which_nobody_has_any_more() {
    const NODES: usize = 16;
    let passed = |agreed: AgreedKeys| {
        let policy = Policy { agreed: Arc::new(agreed), ..network::policy(1, NODES) };
        let config = Config { agreements_per_second: 100, policy, ..network::config(1, NODES) };
        let mut router = Router::new(config, CpuKernel::best()).unwrap();
        let hop = |node| Hop { node, tag: Tag(TAGS), expiry: EXPIRY };
        let mut passed = 0;
        for number in 0..1_000u32 {
            let now = at_micros(u64::from(TIME) * 1_000_000 + u64::from(number) * 2_000);
            let nobody = NodeSecret::from_seed(&Seed::new([0xee; 32])).id();
            let path = Path::new(network::id(3), &[hop(network::id(1)), hop(network::id(2)), hop(nobody)]).unwrap();
            let consent = network::master(1).consent(&path.hash(Version::Standard), 1, Tag(TAGS), EXPIRY);
            let other = |index| network::master(9).consent(&path.hash(Version::Standard), index, Tag(TAGS), EXPIRY);
            let consents = [consent, other(2), other(3)];
            let insider = Sender::new(Version::Standard, &path, &network::secret(3), &consents).unwrap();
            let mut octets = packet(&insider, Form::Path, number, b"payload");
            *octets.last_mut().unwrap() ^= 1;
            process_at(&mut router, &octets, LINK + 3, now);
            if number % 77 == 76 {
                let good = sender(&[3, 1, 4 + (number / 77) as usize % (NODES - 4)]);
                let (action, _) = process_at(&mut router, &packet(&good, Form::Path, number, b""), LINK + 3, now);
                passed += u32::from(matches!(action, Action::Forward { .. }));
            }
        }
        (passed, router.counters().of(Reason::Busy), router.counters().agreements)
    };
    let others: Vec<_> = (0..NODES).map(network::id).collect();
    let agreed = AgreedKeys::default().next(&[network::secret(1)], &others, NODES).unwrap();
    let (known, refused, agreements) = passed(agreed);
    assert_eq!(known, 12, "all pass");
    assert!(refused > 0 && agreements <= 300, "what the member sends is refused: {refused}, {agreements} agreements");
    // Where nobody says who is there, all come out of one limit.
    let (unknown, ..) = passed(AgreedKeys::default());
    assert!(unknown < 12, "{unknown} pass");
}

/// Only nodes of verified packets are kept, so that packets with wrong proofs fill no cache.
#[test]
fn a_packet_that_is_not_verified_leaves_nothing_behind() {
    let mut router = network::router(1, 4);
    for number in 0..50 {
        let mut octets = packet(&stranger(number, true), Form::Path, 1, b"payload");
        *octets.last_mut().unwrap() ^= 1;
        assert_eq!(process(&mut router, &octets, OPEN).0, Action::Drop(Reason::Verifier));
        assert_eq!(router.paths(), 0);
        let agreements = router.counters().agreements;
        assert_eq!(process(&mut router, &octets, OPEN).0, Action::Drop(Reason::Verifier));
        // Both other nodes' keys had to be agreed on again.
        assert_eq!(router.counters().agreements, agreements + 2);
    }
}

/// The paper has no pre-check (threat I3) and no defence against replays (I5).
#[test]
fn the_papers_profile_agrees_with_every_stranger_and_forwards_replays() {
    let config = Config { version: Version::Paper, ..network::config(1, 4) };
    let mut router = Router::new(config, CpuKernel::best()).unwrap();
    let honest = {
        let order = [0, 1, 2];
        let path = network::path(&order);
        let consents = network::consents(&order, &path, Version::Paper);
        Sender::new(Version::Paper, &path, &network::secret(0), &consents).unwrap()
    };
    let octets = packet(&honest, Form::Path, 1, b"");
    for _ in 0..3 {
        assert!(matches!(process(&mut router, &octets, LINK).0, Action::Forward { .. }));
    }
    let before = router.counters().agreements;
    for number in 0..20 {
        let mut octets = packet(&stranger(number, false), Form::Path, 1, b"");
        // The same packet as one of version 0; its path's hash is another, and the handle with it.
        octets[0] &= 0xf;
        let path = Path::decode(&octets[32..32 + 112]).unwrap();
        octets[16..32].copy_from_slice(&path.route(Version::Paper).handle().0);
        assert_eq!(process(&mut router, &octets, OPEN).0, Action::Drop(Reason::Verifier));
    }
    assert_eq!(router.counters().agreements - before, 20);
}

#[test]
fn more_paths_than_there_is_room_for_push_each_other_out_and_never_more() {
    let config = Config { paths: 16, peers: 16, replay_capacity: 0, ..network::config(1, 4) };
    let mut router = Router::new(config, CpuKernel::best()).unwrap();
    for number in 0..200 {
        let octets = packet(&stranger(number, true), Form::Path, 1, b"");
        assert!(matches!(process(&mut router, &octets, OPEN).0, Action::Forward { .. }));
        assert!(router.paths() <= 16);
    }
    assert!(router.paths() > 8);
}

#[test]
fn an_account_sends_no_more_than_its_rate_and_is_charged_for_what_passes() {
    let mut policy =
        Policy { accounts: vec![Account { id: 4, rate: 100_000, depth: 20_000 }], ..network::policy(1, 3) };
    policy.rules[0].meaning.account = Some(0);
    let mut router = network::router(1, 3);
    router.set_policy(policy).unwrap();
    let sender = sender(&[0, 1, 2]);
    let payload = [0; 808];
    let start = u64::from(TIME) * 1_000_000;
    let mut passed = 0u64;
    // 1,000 octets each: ten seconds at twice the rate.
    for number in 0..2_000u32 {
        let octets = packet_at(&sender, Form::Path, number, TIME + number / 200, &payload);
        assert_eq!(octets.len(), 1_000);
        let (action, _) = process_at(&mut router, &octets, LINK, at_micros(start + u64::from(number) * 5_000));
        passed += u64::from(matches!(action, Action::Forward { .. }));
    }
    assert!((1_000..=1_020).contains(&passed), "{passed}");
    assert_eq!(router.counters().of(Reason::Rate), 2_000 - passed);
    let total = router.account(4).unwrap();
    assert_eq!((total.packets, total.octets), (passed, passed * 1_000));
    assert!(mesh(2).iter().all(|router| router.account(4).is_none()));
}

#[test]
fn a_path_of_sixteen_new_nodes_passes_at_the_lowest_rate_of_agreements() {
    let order: Vec<usize> = (0..16).collect();
    let config = Config { agreements_per_second: 1, ..network::config(1, 16) };
    let mut router = Router::new(config, CpuKernel::best()).unwrap();
    let octets = packet(&sender(&order), Form::Path, 1, b"");
    assert!(matches!(process(&mut router, &octets, LINK).0, Action::Forward { .. }));
}

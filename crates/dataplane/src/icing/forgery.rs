//! ICD-10: the whole verifier is compared, in lanes and by itself. A router that compares 16 bits accepts one forgery in
//! 65,536, so that the same count of forgeries against the whole verifier means something.

use std::sync::Arc;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_packet::icing::header::{
    CONSENT, Hop, MIN_SEALED, PROOF, Part, Path, SEALED, Tag, Version, header_length,
};
use wayleave_packet::icing::mint::{Form, NodeSecret, Nonce, Sender, TagMaster, encapsulate};

use super::{Action, Config, Link, Meaning, Output, Policy, Reason, Router, TagRule};
use crate::frame::{BURST, Frame, Ingress};
use crate::lanes::CpuKernel;

const TIME: u32 = 1_800_000_000;
const LINK: u16 = 1;

fn secret(node: u8) -> NodeSecret {
    NodeSecret::from_seed(&Seed::new([node + 1; 32]))
}

fn master(node: u8) -> TagMaster {
    TagMaster::new(Key128::new([0x80 | node; 16]))
}

fn now() -> Now {
    Now { instant: Instant(1), unix: UnixTime(u64::from(TIME) * 1_000_000) }
}

/// Node 1, to which node 0 sends. Repeated packets pass: every forgery is of one packet.
fn router() -> Router {
    let link = |id, node| Link { id, nodes: vec![secret(node).id()], is_open: false };
    let meaning = Meaning { queue: 0, output: Output::Next, account: None };
    let policy = Policy {
        secrets: vec![secret(1)],
        masters: vec![(0, master(1))],
        links: vec![link(LINK, 0), link(2, 2)],
        rules: vec![TagRule { bits: 0, depth: 0, meaning }],
        accounts: Vec::new(),
        agreed: Arc::default(),
    };
    let config = Config {
        version: Version::Standard,
        policy,
        agreements_per_second: 100,
        paths: 16,
        peers: 16,
        freshness: 5,
        replay_capacity: 0,
        started: UnixTime(0),
        replay_key: Key128::new([8; 16]),
        seed: 1,
    };
    Router::new(config, CpuKernel::best()).expect("a sound policy")
}

/// Packet `number` of this second from node 0 over node 1 to node 2.
fn packet(version: Version, form: Form, number: u32) -> Vec<u8> {
    let hop = |node| Hop { node: secret(node).id(), tag: Tag(7), expiry: TIME + 60 };
    let path = Path::new(secret(0).id(), &[hop(1), hop(2)]).expect("three nodes");
    let hash = path.hash(version);
    let consents = [1u8, 2].map(|node| master(node).consent(&hash, node.into(), Tag(7), TIME + 60));
    let sender = Sender::new(version, &path, &secret(0), &consents).expect("a consent of each");
    let mut octets = Vec::new();
    let nonce = Nonce::new(now().unix, number);
    encapsulate(&sender, (form, Part::Whole), SEALED, nonce, &[0; MIN_SEALED], &mut octets).expect("it fits");
    octets
}

/// Of `count` packets with a random verifier, how many `router` forwards. They are of this version, and samples for it or not.
fn accepted(mut router: Router, count: usize, (version, is_sample): (Version, bool)) -> usize {
    let ingress = Ingress::External(LINK);
    let mut first = packet(version, Form::Path, 1);
    let action = router.process(&mut [Frame { octets: &mut first, ingress }], now())[0];
    assert_eq!(action, Action::Forward { link: 2, queue: 0 });
    // Samples are told by their reason, with a verifier that is wrong.
    let verifier = header_length(3, false) - 2 * PROOF + CONSENT;
    let is_it = |number: &u32| {
        let mut octets = packet(version, Form::Handle, *number);
        octets[verifier] ^= 1;
        let reason = if is_sample { Reason::Sample } else { Reason::Verifier };
        router.process(&mut [Frame { octets: &mut octets, ingress }], now())[0] == Action::Drop(reason)
    };
    let number = (2..10_000).find(is_it).expect("one in 64, or most");
    let handle = packet(version, Form::Handle, number);
    let (mut packets, mut passed, mut random) = (vec![handle.clone(); BURST], 0, 6u64);
    for _ in 0..count.div_ceil(BURST) {
        for packet in &mut packets {
            packet.copy_from_slice(&handle);
            for half in packet[verifier..verifier + 16].as_chunks_mut::<8>().0 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *half = (random ^ random >> 29).to_be_bytes();
            }
        }
        let mut frames: Vec<Frame<'_>> = packets.iter_mut().map(|octets| Frame { octets, ingress }).collect();
        let actions = router.process(&mut frames, now());
        passed += actions.iter().filter(|action| !matches!(action, Action::Drop(_))).count();
    }
    passed
}

/// Within three standard deviations.
fn forge(count: usize, router: &dyn Fn() -> Router) {
    let of = [(Version::Standard, false), (Version::Sealed, false), (Version::Sealed, true)];
    for which in of {
        let short = accepted(router().with_16_bit_verifiers(), count, which) as f64;
        let expected = count as f64 / 65_536.0;
        assert!((short - expected).abs() <= 3.0 * expected.sqrt(), "{short} of {count}, {expected} expected");
        assert_eq!(accepted(router(), count / 4, which), 0);
    }
}

/// `WAYLEAVE_ICING_FORGERIES=100000000` expects 1,526 +- 117.
#[test]
#[allow(clippy::disallowed_methods, reason = "a test's length is set by its environment")]
fn sixteen_bits_let_one_forgery_in_65_536_pass_and_all_bits_none_in_lanes() {
    let count = std::env::var("WAYLEAVE_ICING_FORGERIES").ok().and_then(|count| count.parse().ok());
    forge(count.unwrap_or(1_000_000), &router);
}

#[test]
fn sixteen_bits_let_one_forgery_in_65_536_pass_and_all_bits_none_by_itself() {
    forge(300_000, &|| router().without_lanes());
}

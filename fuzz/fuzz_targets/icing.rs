//! Any octets as an ICING packet of any version, as a path, an Ethernet frame, and through a router that gives consent.
//!
//! ICD-09: any octets as a packet: refused, or read as they are written.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::icing::{Action, Config, Link, Meaning, Output, Policy, Router, TagRule};
use wayleave_packet::icing::header::{Ethernet, Hop, Packet, Part, Path, PathHolders, SEALED, Tag, Version};
use wayleave_packet::icing::mint::{Form, NodeSecret, Nonce, Sender, TagMaster, encapsulate};
use wayleave_packet::icing::verify::check_inner;

const TIME: u32 = 1_800_000_000;

thread_local! {
    static WORLDS: RefCell<[(Router, Vec<u8>); 2]> = RefCell::new([world(Version::Standard), world(Version::Sealed)]);
}

fn now() -> Now {
    Now { instant: Instant(1), unix: UnixTime(u64::from(TIME) * 1_000_000) }
}

/// A router that anybody may send to, and an honest packet of `version` for it.
fn world(version: Version) -> (Router, Vec<u8>) {
    let secret = |node: u8| NodeSecret::from_seed(&Seed::new([node; 32]));
    let master = TagMaster::new(Key128::new([7; 16]));
    let hop = |node: u8| Hop { node: secret(node).id(), tag: Tag(5), expiry: TIME + 60 };
    let path = Path::new(secret(1).id(), &[hop(2), hop(3), hop(4)]).expect("four nodes");
    let hash = path.hash(version);
    let consents: Vec<_> = (1..4).map(|index| master.consent(&hash, index, Tag(5), TIME + 60)).collect();
    let sender = Sender::new(version, &path, &secret(1), &consents).expect("one consent each");
    let mut octets = Vec::new();
    let (protocol, payload) = if version == Version::Sealed { (SEALED, &[7; 48][..]) } else { (4, &b"payload"[..]) };
    encapsulate(&sender, (Form::Path, Part::Whole), protocol, Nonce::new(now().unix, 1), payload, &mut octets)
        .expect("it fits");
    let policy = Policy {
        secrets: vec![secret(2)],
        masters: vec![(0, master)],
        links: vec![Link { id: 1, nodes: Vec::new(), is_open: true }],
        rules: vec![TagRule {
            bits: 0,
            depth: 0,
            meaning: Meaning { queue: 0, output: Output::Link(1), account: None },
        }],
        accounts: Vec::new(),
        agreed: Default::default(),
    };
    let config = Config {
        version: Version::Standard,
        policy,
        agreements_per_second: 1 << 30,
        paths: 64,
        peers: 64,
        freshness: 5,
        replay_capacity: 0,
        started: UnixTime(0),
        replay_key: Key128::new([8; 16]),
        seed: 1,
    };
    (Router::new(config, CpuKernel::best()).expect("our own configuration"), octets)
}

fuzz_target!(|data: &[u8]| {
    for version in [Version::Standard, Version::Paper] {
        if let Ok(packet) = Packet::decode(data, version) {
            look_at(&packet, packet.version());
        }
    }
    if let Ok(path) = Path::decode(data) {
        let mut again = Vec::new();
        path.encode(&mut again);
        assert_eq!(again, data);
    }
    let _ = Ethernet::decode(data);
    let _ = PathHolders::decode(data);
    let _ = check_inner(4, data, |_| true, |_| true);
    let _ = check_inner(41, data, |_| true, |_| true);
    WORLDS.with_borrow_mut(|worlds| worlds.iter_mut().for_each(|(router, honest)| {
        // The octets as a packet, and laid over an honest one.
        let mut whole = data.to_vec();
        let mut laid = honest.clone();
        for (octet, data) in laid.iter_mut().zip(data) {
            *octet ^= data;
        }
        let is_changed = laid != *honest;
        let mut frames = [&mut whole, &mut laid].map(|octets| Frame { octets, ingress: Ingress::External(1) });
        let actions = router.process(&mut frames, now());
        if data.len() != honest.len() || data != &honest[..] {
            // Only what nothing authenticates here may differ: `held`, and other nodes' proofs.
            let proofs = 32 + 32 + 3 * 40;
            // Of a sealed payload what lies between its ends.
            let between = if honest[0] >> 4 == 2 { honest.len() - 32..honest.len() - 16 } else { 0..0 };
            let others = |at: usize| {
                (6..8).contains(&at) || (proofs + 24..proofs + 72).contains(&at) || between.contains(&at)
            };
            let is_free = data.iter().enumerate().take(honest.len()).all(|(at, data)| *data == 0 || others(at));
            let passed = matches!(actions[1], Action::Forward { .. });
            assert!(!is_changed || !passed || is_free);
        }
    }));
});

fn look_at(packet: &Packet<'_>, version: Version) {
    assert!(packet.index() > 0 && packet.index() < packet.count());
    for index in 1..packet.count() {
        assert_eq!(packet.consent(index).len() + packet.verifier(index).len(), 24);
    }
    if let Some(path) = packet.path().and_then(|path| Path::decode(path).ok()) {
        assert_eq!(path.count(), packet.count());
        let _ = path.route(version).handle();
    }
    let _ = (packet.part(), packet.held(), packet.nonce(), packet.payload().len());
}

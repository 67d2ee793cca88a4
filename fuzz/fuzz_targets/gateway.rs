//! Any octets as a message between gateways, as what is sealed, and as a packet with its offload from a TUN interface.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use wayleave_core::{IdentityKey, InnerPrefixes, Instant, Now, UnixTime};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Secret, Seed};
use wayleave_dataplane::gateway::message::{Content, Message, read_opening};
use wayleave_dataplane::gateway::offload::{HEADER, Offload};
use wayleave_dataplane::gateway::{Config, Gateway, Member, PathPolicy};
use wayleave_dataplane::icing;
use wayleave_packet::icing::header::Version;
use wayleave_packet::icing::mint::{NodeSecret, TagMaster};

const OWN: IdentityKey = IdentityKey([1; 32]);
const OTHER: IdentityKey = IdentityKey([2; 32]);

thread_local! {
    static GATEWAY: RefCell<Gateway> = RefCell::new(gateway());
}

fn gateway() -> Gateway {
    let policy = icing::Policy {
        secrets: vec![NodeSecret::from_seed(&Seed::new([2; 32]))],
        masters: vec![(0, TagMaster::new(Key128::new([7; 16])))],
        links: Vec::new(),
        rules: Vec::new(),
        accounts: Vec::new(),
        agreed: Default::default(),
    };
    let receiver = icing::Config {
        version: Version::Standard,
        policy,
        agreements_per_second: 1,
        paths: 16,
        peers: 16,
        freshness: 5,
        replay_capacity: 64,
        started: UnixTime(0),
        replay_key: Key128::new([1; 16]),
        seed: 1,
    };
    let config = Config {
        identity: OWN,
        realm: [7; 32],
        noise: Secret::new([3; 32]),
        receiver,
        neighbours: Vec::new(),
        policies: vec![PathPolicy { name: "short".to_owned(), ..PathPolicy::default() }],
        name_blocks: Vec::new(),
        is_process: false,
        seed: Secret::new([4; 32]),
    };
    let mut gateway = Gateway::new(config, CpuKernel::best()).expect("a gateway without links");
    let mut table = InnerPrefixes::default();
    table.insert("0.0.0.0/1".parse().expect("a prefix"), OWN);
    table.insert("128.0.0.0/1".parse().expect("a prefix"), OTHER);
    let noise = DhSecret::from_seed(&Secret::new([5; 32])).public();
    gateway.set_realm(vec![Member { identity: OTHER, noise, ids: Vec::new(), addresses: Vec::new() }], table);
    gateway
}

fuzz_target!(|octets: &[u8]| {
    if let Some(message) = Message::decode(octets) {
        let again = match message {
            Message::Initiation { from, noise } => Message::initiation(from, noise),
            Message::Response { to, from, noise } => Message::response(to, from, noise),
            Message::Data { to, number, sealed } => [&Message::data(to, number)[..], sealed].concat(),
        };
        assert_eq!(again, octets);
    }
    if let Some(content) = Content::decode(octets) {
        assert_eq!(content.encode(), octets);
    }
    let _ = read_opening(octets);
    let Some((header, packet)) = octets.split_first_chunk::<HEADER>() else { return };
    let Some(offload) = Offload::decode(header) else { return };
    GATEWAY.with_borrow_mut(|gateway| {
        let now = Now { instant: Instant(1), unix: UnixTime(1) };
        gateway.inner(&mut packet.to_vec(), &offload, now);
        while gateway.poll().is_some() {}
    });
});

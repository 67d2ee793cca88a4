//! Any octets as a frame, a signed object, a stored record, and to both servers and both clients: a refusal, or something that
//! has this encoding and no other; and no proof of consent without a signature.
//!
//! ICC, objects: any octets as an object or a frame: refused, or one encoding.
#![no_main]

use std::cell::RefCell;
use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use wayleave_control::consent::{
    ConsentServer, ConsentServerConfig, ConsentServerInput, ConsentServerOutput, Policy, PolicyFile, Rule,
};
use wayleave_control::frames::{Body, Frame, Host};
use wayleave_control::path::{
    PathClient, PathClientConfig, PathClientInput, PathClientOutput, PathServer, PathServerConfig, PathServerInput,
    PathServerOutput,
};
use wayleave_control::realm::{ListKey, MAX_STALENESS, RealmKey, RevocationList, Server, Token};
use wayleave_control::store::{Record, Store};
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;

fn now() -> Now {
    Now { instant: Instant(1_000_000_000), unix: UnixTime(1_800_000_000 * 1_000_000) }
}

struct World {
    paths: PathServer,
    consents: ConsentServer,
    client: PathClient,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(world());
}

const PEER: IdentityKey = IdentityKey([5; 32]);

fn world() -> World {
    let key = SigningKey::from_seed(&Seed::new([1; 32]));
    let realm = RealmKey(key.verifying_key().to_bytes());
    let config = PathServerConfig {
        realm,
        capacity: 100,
        peers: Vec::new(),
        store: Store::New,
        requests: 20,
        max_staleness: MAX_STALENESS,
        instance: 1,
    };
    let rule = Rule { name: "all".into(), allow: true, seconds: 60, ..Rule::default() };
    let policy = Policy::new(&PolicyFile { rule: vec![rule], test: Vec::new() }).expect("in order");
    let consents = ConsentServerConfig {
        identity: SigningKey::from_seed(&Seed::new([2; 32])),
        realm,
        capacity: 100,
        nodes: BTreeMap::new(),
        policy,
        store: Store::Kept(Vec::new()),
        requests: 100,
        max_staleness: MAX_STALENESS,
        seed: Seed::new([3; 32]),
    };
    let servers = vec![Server { identity: PEER, address: "192.0.2.1:7000".into() }];
    let client = PathClientConfig { own: PEER, realm, capacity: 100, servers, store: Store::New };
    World {
        paths: PathServer::new(config),
        consents: ConsentServer::new(consents, UnixTime(0)),
        client: PathClient::new(client),
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(frame) = Frame::decode(data) {
        assert_eq!(frame.encode(), data);
    }
    if let Ok(record) = Record::decode(data) {
        assert_eq!(record.encode(), data);
    }
    if let Ok(list) = Signed::<RevocationList>::decode(data) {
        assert_eq!(&list.octets()[..], data);
        let _ = RevocationList::verify(&list, &list.object().realm);
    }
    if let Ok(certificate) = Signed::<ListKey>::decode(data) {
        assert_eq!(&certificate.octets()[..], data);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = text.parse::<Token>();
    }
    WORLD.with_borrow_mut(|world| {
        world.paths.handle(PathServerInput::Connected { link: 1, peer: PEER }, now());
        world.paths.handle(PathServerInput::Frame { link: 1, octets: data.to_vec() }, now());
        while let Some(output) = world.paths.poll() {
            // Nobody here has the realm's key.
            assert!(!matches!(output, PathServerOutput::Persist { .. }));
        }
        world.paths.handle(PathServerInput::Disconnected { link: 1 }, now());
        world.consents.handle(ConsentServerInput::Connected { link: 1, peer: PEER }, now());
        world.consents.handle(ConsentServerInput::Frame { link: 1, octets: data.to_vec().into() }, now());
        while let Some(output) = world.consents.poll() {
            if let ConsentServerOutput::Send { octets, .. } = output {
                let frame = Frame::decode(&octets).expect("its own frame");
                assert!(matches!(frame.body, Body::Refused(_)));
            }
        }
        world.consents.handle(ConsentServerInput::Disconnected { link: 1 }, now());
        world.client.handle(PathClientInput::Find(Host::Identity(IdentityKey([6; 32]))), now());
        world.client.handle(PathClientInput::Frame { from: PEER, octets: data.to_vec() }, now());
        while let Some(output) = world.client.poll() {
            assert!(!matches!(output, PathClientOutput::Paths { .. } | PathClientOutput::Persist(_)));
        }
    });
});

//! Realms with nodes for tests: every key follows from a number.

use std::cell::RefCell;
use std::collections::BTreeMap;

use wayleave_control::advert::{Advert, Endpoint, Link, Relationship, TagOffer, TagUse};
use wayleave_control::database::Database;
use wayleave_control::realm::{Grants, Membership, Name, RealmKey, Removal, RevocationList, Roles, Rolls, Server};
use wayleave_control::store::Record;
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::Tag;
use wayleave_packet::icing::mint::{EpochKey, NodeSecret, TagMaster};

/// The Unix second at which tests begin; node IDs have epochs of a day.
pub(crate) const NOW: u64 = 1_800_000_000;
pub(crate) const TRANSIT: Tag = Tag(0x4000_0000);
pub(crate) const DELIVER: Tag = Tag(0x8000_0000);

/// `ms` after the beginning, by both clocks.
pub(crate) fn at_ms(ms: u64) -> Now {
    Now { instant: Instant(1_000_000_000 + ms * 1_000_000), unix: UnixTime(NOW * 1_000_000 + ms * 1_000) }
}

/// `secs` after the beginning, by both clocks.
pub(crate) fn at(secs: u64) -> Now {
    at_ms(secs * 1_000)
}

pub(crate) fn seed(kind: u8, number: u32) -> Seed {
    let mut octets = [kind; 32];
    octets[..4].copy_from_slice(&number.to_be_bytes());
    Seed::new(octets)
}

pub(crate) fn identity_key(node: u32) -> SigningKey {
    SigningKey::from_seed(&seed(1, node))
}

pub(crate) fn identity(node: u32) -> IdentityKey {
    thread_local! {
        static KNOWN: RefCell<BTreeMap<u32, IdentityKey>> = RefCell::default();
    }
    let make = || IdentityKey(identity_key(node).verifying_key().to_bytes());
    KNOWN.with_borrow_mut(|known| *known.entry(node).or_insert_with(make))
}

pub(crate) fn realm_key(realm: u32) -> SigningKey {
    SigningKey::from_seed(&seed(2, realm))
}

pub(crate) fn realm(realm: u32) -> RealmKey {
    RealmKey(realm_key(realm).verifying_key().to_bytes())
}

pub(crate) fn secret(node: u32, epoch: u32) -> NodeSecret {
    NodeSecret::derive(&seed(3, node), epoch)
}

pub(crate) fn noise(node: u32) -> DhSecret {
    DhSecret::from_seed(&seed(4, node))
}

pub(crate) fn master(node: u32) -> TagMaster {
    TagMaster::new(Key128::new([node as u8 ^ 0x5a; 16]))
}

/// The epoch key of `node` that is in use at the beginning (0) or after it (1).
pub(crate) fn epoch_key(node: u32, later: u32) -> [u8; EpochKey::LENGTH] {
    thread_local! {
        static SIGNED: RefCell<BTreeMap<(u32, u32), [u8; EpochKey::LENGTH]>> = RefCell::default();
    }
    SIGNED.with_borrow_mut(|signed| *signed.entry((node, later)).or_insert_with(|| sign_epoch_key(node, later)))
}

fn sign_epoch_key(node: u32, later: u32) -> [u8; EpochKey::LENGTH] {
    let epoch = 20_000 + later;
    let begin = (NOW as u32) - 40_000 + later * 86_400;
    let key = EpochKey { epoch, not_before: begin, not_after: begin + 90_000, node: secret(node, epoch).id() };
    key.sign(&identity_key(node))
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(crate) fn endpoint(text: &str) -> Endpoint {
    text.parse().expect("an endpoint")
}

pub(crate) fn server(node: u32) -> Server {
    Server { identity: identity(node), address: format!("192.0.2.{}:7000", node % 250) }
}

pub(crate) fn membership(node: u32) -> Membership {
    Membership {
        realm: realm(0),
        number: 1,
        identity: identity(node),
        noise: noise(node).public(),
        grants: Grants {
            roles: Roles::FORWARDER.and(Roles::GATEWAY),
            names: vec![name(&format!("n{node}"))],
            prefixes: vec![format!("10.{}.{}.0/24", node / 256, node % 256).parse().expect("a prefix")],
        },
        not_before: NOW - 100,
        not_after: NOW + 30 * 86_400,
        rolls: Rolls::default(),
    }
}

pub(crate) fn signed_membership(node: u32) -> Signed<Membership> {
    Signed::sign(&membership(node), &realm_key(0)).expect("in order")
}

/// An advert of `node` with these neighbours and what they are to it.
pub(crate) fn advert(node: u32, links: &[(u32, Relationship)]) -> Advert {
    let link = |(neighbour, relationship): &(u32, Relationship)| Link {
        neighbour: identity(*neighbour),
        relationship: *relationship,
        public: true,
        interface: *neighbour as u16 + 1,
        endpoint: Some(endpoint(&format!("198.51.100.{}:49254", node % 250))),
    };
    let mut links: Vec<Link> = links.iter().map(link).collect();
    links.sort();
    let offer = |tag, usage, meaning: &str| TagOffer { tag, usage, meaning: meaning.to_owned() };
    Advert {
        realm: realm(0),
        identity: identity(node),
        sequence: 1,
        issued: NOW,
        lifetime: 30,
        mtu: 1400 + (node % 50) as u16,
        ids: vec![epoch_key(node, 0), epoch_key(node, 1)],
        links,
        tags: vec![offer(TRANSIT, TagUse::Transit, "transit"), offer(DELIVER, TagUse::Deliver, "delivery")],
        consent: Some(server(1_000 + node)),
        open: None,
        extensions: Vec::new(),
    }
}

pub(crate) fn signed_advert(advert: &Advert, node: u32) -> Signed<Advert> {
    Signed::sign(advert, &identity_key(node)).expect("in order")
}

pub(crate) fn revocations(number: u64, nodes: &[u32]) -> Signed<RevocationList> {
    let mut revoked: Vec<Removal> = nodes.iter().map(|node| Removal { identity: identity(*node), until: 0 }).collect();
    revoked.sort_unstable();
    let list = RevocationList {
        realm: realm(0),
        generation: 0,
        number,
        issued: NOW,
        next: NOW + 600,
        by: None,
        revoked,
        rolls: Rolls::default(),
    };
    Signed::sign(&list, &realm_key(0)).expect("in order")
}

/// A link from a node to another, and what the second is to the first.
pub(crate) type Edge = (u32, u32, Relationship);

/// The adverts of nodes 0 to `count` with these links, each listed by both ends.
pub(crate) fn adverts(count: u32, edges: &[Edge]) -> Vec<Advert> {
    let links = |node: u32| -> Vec<(u32, Relationship)> {
        let there = edges.iter().filter(|(from, ..)| *from == node).map(|(_, to, what)| (*to, *what));
        let back = edges.iter().filter(|(_, to, _)| *to == node).map(|(from, _, what)| (*from, what.reversed()));
        there.chain(back).collect()
    };
    (0..count).map(|node| advert(node, &links(node))).collect()
}

/// The records of nodes 0 to `count` with these links.
pub(crate) fn records(count: u32, edges: &[Edge]) -> Vec<Record> {
    let adverts = adverts(count, edges);
    let membership = |node| Record::Membership(signed_membership(node));
    let advert = |(node, advert): (u32, &Advert)| Record::Advert(signed_advert(advert, node));
    (0..count).map(membership).chain((0..).zip(&adverts).map(advert)).collect()
}

pub(crate) fn database(count: u32, edges: &[Edge]) -> Database {
    let mut database = Database::new(realm(0), 10_000);
    for record in records(count, edges) {
        database.apply(record, NOW).expect("in order");
    }
    database
}

/// 0 (a gateway) under 1 and 2; both under 3; 4 (a gateway) under 3 and 5; 1 and 5 are peers.
pub(crate) fn small() -> Vec<Edge> {
    use Relationship::{Peer, Provider};
    vec![
        (0, 1, Provider),
        (0, 2, Provider),
        (1, 3, Provider),
        (2, 3, Provider),
        (4, 3, Provider),
        (4, 5, Provider),
        (1, 5, Peer),
    ]
}

pub(crate) fn drain<M: Machine>(machine: &mut M) -> Vec<M::Output> {
    std::iter::from_fn(|| machine.poll()).collect()
}

/// A generator of pseudorandom numbers: splitmix64, the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`; zero if that is zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// How often a random test tries: the environment's number, or `default`.
pub(crate) fn cases(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

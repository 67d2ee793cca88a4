//! Reply capabilities: handed over inside a connection, for the client's address, to the server that was asked.

use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::secret::{Key128, Secret};
use wayleave_packet::platypus::header::{Capability, Marks};
use wayleave_packet::platypus::mint::reply::{Granted, Parties, ReplyClient, ReplyError, ReplyOption, ReplyServer};
use wayleave_packet::platypus::mint::{Hop, Route, WaypointKey};
use wayleave_packet::platypus::verify::{Reason, Verdict, decapsulate};

use super::world::{self, NOW};

fn parties(afi: Afi) -> Parties {
    Parties { client: world::source_address(afi), server: world::destination_address(afi), protocol: 6 }
}

/// What the client has for waypoint 1, delegated to `client` at `length` bits.
fn granted(client: IpAddr, length: u8) -> Granted {
    let afi = if client.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 };
    let mut capability: Capability = world::capability(afi, 1);
    let key = WaypointKey::new(&Key128::new(world::key_octets(capability.waypoint)));
    let secret = key.secret(capability.waypoint, capability.principal, capability.interval, capability.epoch);
    let prefix = Prefix::truncated(client, length).expect("a length");
    let held = secret.delegate(world::delegation_id(443), prefix).expect("of the family");
    capability.delegation = Some(held.delegation());
    capability.marks = Marks::REPLY;
    Granted { capability, key: held.reply_key(parties(afi).server) }
}

fn option(octets: &[u8]) -> ReplyOption<'_> {
    ReplyOption::decode(octets).expect("an option").0
}

fn server(seed: u8, identity: Option<u8>) -> ReplyServer {
    ReplyServer::new(&Secret::new([seed; 32]), identity.map(identity_of))
}

fn identity_of(seed: u8) -> DhSecret {
    DhSecret::from_seed(&Secret::new([seed; 32]))
}

/// The three messages travel in real packets, and the server's answer is stamped with what it was given.
#[test]
fn a_server_answers_with_the_clients_capability() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let parties = parties(afi);
        let client = ReplyClient::new(&Secret::new([1; 32]));
        let mut server = server(2, Some(3));
        let identity = identity_of(3).public();
        let carry = |from, to, option: &[u8]| {
            let route = Route { reply_option: option, ..world::route(&[]) };
            world::stamp(&world::inner_to(from, to, b"SYN, SYN-ACK or GET"), &route)
        };
        let hello = carry(parties.client, parties.server, &client.hello());
        let hello = world::decode(&hello);
        assert!(hello.has_reply_option());
        let offer = server.offer(&option(hello.payload()), &parties, world::at(NOW)).expect("a hello");
        let offer = carry(parties.server, parties.client, &offer);
        let offer = world::decode(&offer);
        let grant = client
            .grant(&option(offer.payload()), &parties, Some(&identity), &granted(parties.client, afi.bits()))
            .expect("an offer");
        let grant = carry(parties.client, parties.server, &grant);
        let grant = world::decode(&grant);
        let taken = server.accept(&option(grant.payload()), &parties, world::at(NOW + 1)).expect("it opens");
        assert_eq!(taken, granted(parties.client, afi.bits()));
        // What the server's protocol stack sees has no trace of it.
        let inner = decapsulate(&grant).expect("at its end");
        assert_eq!(inner, world::inner_to(parties.client, parties.server, b"SYN, SYN-ACK or GET"));

        let hops = [Hop { capability: taken.capability, key: taken.key }];
        let here = world::waypoint(taken.capability.waypoint);
        let answer = |to| world::stamp(&world::inner_to(parties.server, to, b"200"), &world::route(&hops));
        assert!(world::process(&here, &answer(parties.client), NOW).is_ok());
        assert!(world::process(&here, &answer(world::waypoint_address(afi, 99)), NOW).is_err());
    }
}

/// The destination by the prefix, the source by the key: nobody else can have it stamp, and the server no packets of others.
#[test]
fn a_reply_capability_serves_its_two_addresses() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let Parties { client, server, .. } = parties(afi);
        let other = world::waypoint_address(afi, 99);
        let Granted { capability, key } = granted(client, afi.bits());
        let here = world::waypoint(capability.waypoint);
        let from = |hop: Hop, source, to| {
            let datagram = world::stamp(&world::inner_to(source, to, b"200"), &world::route(&[hop]));
            match world::process(&here, &datagram, NOW) {
                Ok(_) => None,
                Err(Verdict::Drop(reason) | Verdict::Answer(_, reason)) => Some(reason),
                Err(Verdict::Forward(_)) => panic!("it was sent on"),
            }
        };
        let hop = Hop { capability, key };
        assert_eq!(from(hop.clone(), server, client), None);
        assert_eq!(from(hop.clone(), other, client), Some(Reason::Binding));
        assert_eq!(from(hop.clone(), server, other), Some(Reason::OutsidePrefix));
        // Nor does it serve any source without its mark.
        let unmarked = Capability { marks: Marks::NONE, ..capability };
        assert_eq!(from(Hop { capability: unmarked, key: hop.key }, server, client), Some(Reason::Binding));
        // There is no key for all sources.
        assert!(here.keys().stamp_key(&capability).is_none() && here.keys().stamp_key(&unmarked).is_some());
        assert!(!Capability { delegation: None, ..capability }.is_consistent());
    }
}

/// One message bent, one party another, one time later: nothing is taken over.
#[test]
fn a_grant_is_bound_to_its_transcript() {
    let parties = parties(Afi::Ipv4);
    let client = ReplyClient::new(&Secret::new([1; 32]));
    let mut here = server(2, Some(3));
    let hello = client.hello();
    let offer = here.offer(&option(&hello), &parties, world::at(NOW)).expect("a hello");
    let identity = identity_of(3).public();
    let granted = granted(parties.client, 32);
    let grant = client.grant(&option(&offer), &parties, Some(&identity), &granted).expect("an offer");
    assert!(here.accept(&option(&grant), &parties, world::at(NOW + 30)).is_ok());
    for later in [31, 300, 100_000] {
        assert_eq!(here.accept(&option(&grant), &parties, world::at(NOW + later)), Err(ReplyError::Cookie));
    }
    assert_eq!(here.accept(&option(&grant), &parties, world::at(NOW - 1)), Err(ReplyError::Cookie));
    let elsewhere = Parties { client: world::waypoint_address(Afi::Ipv4, 4), ..parties };
    assert_eq!(here.accept(&option(&grant), &elsewhere, world::at(NOW)), Err(ReplyError::Cookie));
    for at in 0..grant.len() {
        for bit in 0..8 {
            let mut bent = grant.clone();
            bent[at] ^= 1 << bit;
            // Flags that nobody reads are the only exception.
            if at == 2 && bit > 0 {
                continue;
            }
            let taken =
                ReplyOption::decode(&bent).and_then(|(option, _)| here.accept(&option, &parties, world::at(NOW)));
            assert!(taken.is_err(), "octet {at}, bit {bit}");
        }
    }
    // Another server, without the key or with another one.
    assert_eq!(server(9, Some(3)).accept(&option(&grant), &parties, world::at(NOW)), Err(ReplyError::Cookie));
    assert_eq!(server(2, None).accept(&option(&grant), &parties, world::at(NOW)), Err(ReplyError::Identity));
    assert_eq!(server(2, Some(4)).accept(&option(&grant), &parties, world::at(NOW)), Err(ReplyError::Sealed));
    // An offer whose key somebody replaced opens nowhere.
    let mut replaced = offer.clone();
    replaced[4..36].copy_from_slice(&identity_of(77).public().to_bytes());
    let grant = client.grant(&option(&replaced), &parties, Some(&identity), &granted).expect("an offer");
    assert_eq!(here.accept(&option(&grant), &parties, world::at(NOW)), Err(ReplyError::Sealed));
}

#[test]
fn what_reaches_more_than_the_client_is_neither_given_nor_taken() {
    let parties = parties(Afi::Ipv4);
    let client = ReplyClient::new(&Secret::new([1; 32]));
    let mut here = server(2, None);
    let offer = here.offer(&option(&client.hello()), &parties, world::at(NOW)).expect("a hello");
    let mut plain = granted(parties.client, 32);
    plain.capability.delegation = None;
    for wide in [granted(parties.client, 31), granted(world::waypoint_address(Afi::Ipv4, 5), 32), plain] {
        assert_eq!(client.grant(&option(&offer), &parties, None, &wide), Err(ReplyError::Scope));
    }
    // A client that gives it all the same: as if its address were another.
    let other = Parties { client: world::waypoint_address(Afi::Ipv4, 5), ..parties };
    let grant = client.grant(&option(&offer), &other, None, &granted(other.client, 32)).expect("an offer");
    assert!(here.accept(&option(&grant), &parties, world::at(NOW)).is_err());
}

#[test]
fn options_that_lie_about_their_length_are_refused() {
    for bad in [&[][..], &[1], &[1, 1, 0], &[0, 1, 0, 0], &[4, 1, 0, 0], &[1, 0, 0, 0], &[1, 2, 0, 0], &[1, 1, 0, 1]] {
        assert_eq!(ReplyOption::decode(bad).err(), Some(ReplyError::Malformed), "{bad:?}");
    }
    assert_eq!(ReplyOption::decode(&[1, 1, 0, 0, 7]).map(|(_, rest)| rest), Ok(&[7][..]));
}

//! ICC, insider: one member with a hundred links beside honest ones, in virtual time: what honest members ask is answered as when they are
//! alone, and the member gets what one identity may have.

use std::collections::BTreeMap;

use wayleave_control::advert::Advert;
use wayleave_control::consent::{
    ConsentRequest, ConsentServer, ConsentServerInput, ConsentServerOutput, RequestedPath,
};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame, Host};
use wayleave_control::path::{PathServer, PathServerInput, PathServerOutput};
use wayleave_control::store::Store;
use wayleave_core::{Machine, Now};
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::Version;

use super::common::*;
use super::consent::{EVERYBODY, config as consent_config};
use super::path_server::{register, server_of_six};

const HONEST: [u32; 3] = [0, 2, 4];
const INSIDER: u32 = 5;
const INSIDERS_LINKS: u64 = 110;
/// The microseconds of the server's one thread for an answer and for a refusal; the disk's; and how long a client waits.
const ANSWER: u64 = 1_000;
const REFUSAL: u64 = 10;
const DISK: u64 = 300_000;
const PATIENCE: u64 = 2_000_000;

/// What came of the requests of honest members, and of the insider's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    answered: u64,
    registered: u64,
    refused: u64,
    insider: u64,
}

fn now(micros: u64) -> Now {
    let mut now = at(0);
    now.instant.0 += micros * 1_000;
    now.unix.0 += micros;
    now
}

/// A server with one thread: frames wait for each other, and what is asked at a time is answered once its turn is over.
trait Server {
    fn connected(&mut self, link: u64, node: u32);
    /// Handles a frame; returns the answers with their links, and what is to be durable.
    fn frame(&mut self, link: u64, octets: Vec<u8>, now: Now) -> (Vec<(u64, Frame)>, Vec<u64>);
    fn durable(&mut self, _: u64, _: Now) -> Vec<(u64, Frame)> {
        Vec::new()
    }
}

impl Server for PathServer {
    fn connected(&mut self, link: u64, node: u32) {
        self.handle(PathServerInput::Connected { link, peer: identity(node) }, at(0));
    }

    fn frame(&mut self, link: u64, octets: Vec<u8>, now: Now) -> (Vec<(u64, Frame)>, Vec<u64>) {
        self.handle(PathServerInput::Frame { link, octets }, now);
        let (mut frames, mut ids) = (Vec::new(), Vec::new());
        for output in drain(self) {
            match output {
                PathServerOutput::Send { link, octets } => {
                    frames.push((link, Frame::decode(&octets).expect("its own")))
                }
                PathServerOutput::Persist { id, .. } => ids.push(id),
                _ => {}
            }
        }
        (frames, ids)
    }

    fn durable(&mut self, id: u64, now: Now) -> Vec<(u64, Frame)> {
        self.handle(PathServerInput::Persisted(id), now);
        let sent = drain(self).into_iter().filter_map(|output| match output {
            PathServerOutput::Send { link, octets } => Some((link, Frame::decode(&octets).expect("its own"))),
            _ => None,
        });
        sent.collect()
    }
}

impl Server for ConsentServer {
    fn connected(&mut self, link: u64, node: u32) {
        self.handle(ConsentServerInput::Connected { link, peer: identity(node) }, at(0));
    }

    fn frame(&mut self, link: u64, octets: Vec<u8>, now: Now) -> (Vec<(u64, Frame)>, Vec<u64>) {
        self.handle(ConsentServerInput::Frame { link, octets: octets.into() }, now);
        let sent = drain(self).into_iter().filter_map(|output| match output {
            ConsentServerOutput::Send { link, octets } => Some((link, Frame::decode(&octets).expect("its own"))),
            _ => None,
        });
        (sent.collect(), Vec::new())
    }
}

/// Plays what arrives at which microsecond from which link; honest members have one link each, with their own numbers.
fn play(server: &mut impl Server, insiders: u64, arrivals: BTreeMap<(u64, u64), (u64, Body)>) -> Counts {
    HONEST.iter().for_each(|node| server.connected((*node).into(), *node));
    (0..insiders).for_each(|link| server.connected(1_000 + link, INSIDER));
    let (mut counts, mut free_at, mut asked) = (Counts::default(), 0, BTreeMap::new());
    let mut waiting: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let count = |counts: &mut Counts, link: u64, frame: &Frame, took: u64| match &frame.body {
        Body::Refused(_) if link < 1_000 => counts.refused += 1,
        Body::Refused(_) | Body::Records { .. } => {}
        _ if link >= 1_000 => counts.insider += 1,
        _ if took > PATIENCE => {}
        Body::Registered { .. } => counts.registered += 1,
        _ => counts.answered += 1,
    };
    for (number, ((at, _), (link, body))) in (1u32..).zip(arrivals) {
        while let Some(((done, _), id)) =
            waiting.first_key_value().map(|(key, id)| (*key, *id)).filter(|((done, _), _)| *done <= at)
        {
            waiting.pop_first();
            for (link, frame) in server.durable(id, now(done)) {
                count(&mut counts, link, &frame, done.saturating_sub(asked.remove(&frame.request).unwrap_or(0)));
            }
        }
        let octets = Frame { request: number, body }.encode();
        let begin = at.max(free_at);
        let (frames, ids) = server.frame(link, octets, now(at));
        asked.insert(number, at);
        let is_refused = frames.iter().all(|(_, frame)| matches!(frame.body, Body::Refused(_)));
        free_at = begin + if is_refused && ids.is_empty() { REFUSAL } else { ANSWER };
        frames.iter().for_each(|(link, frame)| count(&mut counts, *link, frame, free_at - at));
        waiting.extend(ids.into_iter().map(|id| ((free_at + DISK, id), id)));
    }
    counts
}

/// Arrivals in order; the second number keeps those of one microsecond apart.
#[derive(Default)]
struct Arrivals(BTreeMap<(u64, u64), (u64, Body)>);

impl Arrivals {
    fn add(&mut self, at: u64, link: u64, body: Body) {
        let number = self.0.len() as u64;
        self.0.insert((at, number), (link, body));
    }
}

fn paths_and_adverts(insiders: u64) -> (Counts, usize) {
    let mut arrivals = Arrivals::default();
    let find = |name_of: &str| Body::FindHost { host: Host::Name(name(name_of)), partials: Vec::new() };
    let newer = |node: u32, sequence: u64| {
        let known = adverts(6, &small()).swap_remove(node as usize);
        register(node, &Advert { sequence, ..known })
    };
    for turn in 0..20u64 {
        for node in HONEST {
            arrivals.add(turn * 500_000 + u64::from(node), node.into(), find("n3"));
            if turn % 8 == 5 {
                arrivals.add(turn * 500_000 + 77, node.into(), newer(node, 2 + turn));
            }
        }
    }
    let flood = newer(INSIDER, 2);
    for link in 0..insiders {
        for turn in 0..100 {
            arrivals.add(turn * 100_000 + link, 1_000 + link, find("n3"));
        }
        for advert in 0..12 {
            arrivals.add(2_300_000 + advert * 10_000 + link, 1_000 + link, flood.clone());
        }
    }
    let mut server = server_of_six();
    let counts = play(&mut server, insiders, arrivals.0);
    (counts, server.links())
}

#[test]
fn a_member_with_a_hundred_links_to_a_path_server_gets_what_one_identity_may_have() {
    let (quiet, _) = paths_and_adverts(0);
    assert_eq!(quiet, Counts { answered: 60, registered: 6, refused: 0, insider: 0 });
    let (loud, links) = paths_and_adverts(INSIDERS_LINKS);
    assert_eq!(Counts { insider: 0, ..loud }, quiet);
    // 20 requests a second and 100 at once, adverts among them.
    assert!((100..=300).contains(&loud.insider), "{loud:?}");
    assert_eq!(links, HONEST.len() + 2);
}

fn consents(insiders: u64) -> (Counts, usize) {
    let hops = [(1u32, TRANSIT), (3, TRANSIT), (4, DELIVER)].map(|(node, tag)| (secret(node, 20_000).id(), tag));
    let request = |node: u32, nonce: u64, micros: u64| {
        let mut octets = [node as u8; 16];
        octets[..8].copy_from_slice(&nonce.to_be_bytes());
        ConsentRequest {
            realm: realm(0),
            server: identity(1_001),
            sender: identity(node),
            nonce: octets,
            time: NOW + 1 + micros / 1_000_000,
            path: RequestedPath { sender: secret(node, 20_000).id(), hops: hops.to_vec() },
            index: 1,
            expiry: NOW as u32 + 601,
            epoch_key: epoch_key(node, 0),
            packets: Version::Standard,
        }
    };
    let body = |request: &ConsentRequest, node: u32, signer: u32| Body::Consent {
        membership: signed_membership(node),
        request: Signed::sign(request, &identity_key(signer)).expect("in order"),
    };
    let mut arrivals = Arrivals::default();
    for turn in 0..20u64 {
        for node in [0, 2] {
            let micros = 1_000_000 + turn * 500_000;
            arrivals.add(micros + u64::from(node), node.into(), body(&request(node, turn, micros), node, node));
        }
    }
    // Each with a signature that does not hold.
    let forged = |nonce| body(&request(INSIDER, nonce, 1_000_000), INSIDER, INSIDER + 1);
    let some: Vec<Body> = (0..20).map(forged).collect();
    for link in 0..insiders {
        for turn in 0..100 {
            arrivals.add(1_000_000 + turn * 100_000 + link, 1_000 + link, some[(turn % 20) as usize].clone());
        }
    }
    let store = Store::Kept(records(6, &small()));
    let mut server = ConsentServer::new(consent_config(1_001, &[1], EVERYBODY, store), at(0).unix);
    let counts = play(&mut server, insiders, arrivals.0);
    (counts, server.links())
}

#[test]
fn a_member_with_a_hundred_links_to_a_consent_server_gets_what_one_identity_may_have() {
    let (quiet, _) = consents(0);
    assert_eq!(quiet, Counts { answered: 40, ..Counts::default() });
    let (loud, links) = consents(INSIDERS_LINKS);
    assert_eq!(loud, quiet);
    assert_eq!(links, HONEST.len() + 2);
}

/// A signature that does not hold is verified once: the same request again is known.
#[test]
fn a_request_with_a_bad_signature_is_not_verified_twice() {
    let store = Store::Kept(records(6, &small()));
    let mut server = ConsentServer::new(consent_config(1_001, &[1], EVERYBODY, store), at(0).unix);
    server.connected(1, INSIDER);
    let hops = [(1u32, TRANSIT), (3, TRANSIT), (4, DELIVER)].map(|(node, tag)| (secret(node, 20_000).id(), tag));
    let request = ConsentRequest {
        realm: realm(0),
        server: identity(1_001),
        sender: identity(INSIDER),
        nonce: [7; 16],
        time: NOW + 1,
        path: RequestedPath { sender: secret(INSIDER, 20_000).id(), hops: hops.to_vec() },
        index: 1,
        expiry: NOW as u32 + 601,
        epoch_key: epoch_key(INSIDER, 0),
        packets: Version::Standard,
    };
    let forged = Signed::sign(&request, &identity_key(INSIDER + 1)).expect("in order");
    let body = Body::Consent { membership: signed_membership(INSIDER), request: forged };
    let refusals: Vec<_> = (0..3u32)
        .flat_map(|number| server.frame(1, Frame { request: number, body: body.clone() }.encode(), at(1)).0)
        .map(|(_, frame)| match frame.body {
            Body::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(refusals, [Refusal::Signature, Refusal::Replayed, Refusal::Replayed]);
}

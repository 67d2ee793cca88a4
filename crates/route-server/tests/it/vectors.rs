//! The encodings of `docs/protocol.md`, as an independent program makes them (`test-data/wire/members.py`).
//!
//! MEM, encoding: a directory with every change, a removal, a request, a proposal, by an independent program
//! (`test-data/wire/members.py`): the same octets, hashes and signatures.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::Value;
use wayleave_core::Asn;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{
    AttestKey, Blackhole, Change, Claim, Consent, Directory, Profile, Proposal, Request, Step,
};

use crate::common::{OPERATORS, empty, key, lan4, lan6, public};

fn published() -> Value {
    serde_json::from_str(include_str!("../../../../test-data/wire/members.json")).expect("JSON")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn octets(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("text").as_bytes();
    text.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex")).collect()
}

fn claim(number: u8, asn: u32, name: &str) -> Claim {
    Claim {
        serial: 1,
        asn: Asn(asn),
        name: name.to_owned(),
        tls: [number; 32],
        sign: public(number),
        attest: Vec::new(),
        addresses: vec![lan4(number), lan6(number)],
    }
}

fn signed(number: u8, claim: &Claim) -> Request {
    claim.clone().sign("test-ix", &key(number))
}

fn profile() -> Profile {
    Profile {
        refuse_rpki_invalid: false,
        refuse_aspa_invalid: true,
        transit_free: vec![Asn(174), Asn(3356)],
        blackhole: Some(Blackhole {
            next_hop4: Some(Ipv4Addr::new(192, 0, 2, 66)),
            next_hop6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x66)),
            allowed: Some(vec![Asn(64_497), Asn(64_498)]),
        }),
        ..Profile::default()
    }
}

/// The directory of the vectors, with the request for slot 2 and the last step as proposed.
fn made() -> (Directory, Request, Proposal) {
    let operators = OPERATORS.map(key);
    let step = |directory: &Directory, changes: Vec<Change>, operators: &[SigningKey; 2]| {
        directory.signed_by_both(changes, operators.each_ref()).expect("a sound set")
    };
    let requested = |directory: &Directory, request: &Request, limit: u32| {
        directory.requested(request, limit).expect("of this exchange")
    };
    let attest = [(1, 91), (3, 92)].map(|(suite, key)| AttestKey { suite, key: [key; 32] }).to_vec();
    let first = signed(1, &Claim { attest, ..claim(1, 64_497, "alpha") });
    let second = signed(2, &Claim { addresses: vec![lan4(2)], ..claim(2, 64_498, "beta") });
    let mut directory = empty();
    let changes = vec![requested(&directory, &first, 100), requested(&directory, &second, 0)];
    directory = step(&directory, changes, &operators);
    let further = signed(3, &claim(3, 64_497, "alpha 2")).with_consent(Consent::Further, &key(1));
    let held = signed(4, &claim(4, 64_498, "beta 2"));
    let changes = vec![requested(&directory, &further, 50), requested(&directory, &held, 50)];
    directory = step(&directory, changes, &operators);
    let renewed = signed(5, &Claim { serial: 2, ..claim(5, 64_498, "beta") });
    let renewed = renewed.with_consent(Consent::Renewal, &key(2));
    let signature = Consent::Further.sign("test-ix", &held.claim, &key(5));
    let changes = vec![
        requested(&directory, &renewed, 0),
        Change::Amend { slot: 0, addresses: vec![lan4(9), lan6(1)], max_prefix: 200 },
        Change::Endorse { slot: 3, by: 1, signature },
        Change::Profile(profile()),
    ];
    directory = step(&directory, changes, &operators);
    let changes = vec![Change::Left { slot: 2 }, Change::operator(&directory, 2, &key(202))];
    directory = step(&directory, changes, &operators);
    directory = directory.without(0, &operators[0]).expect("an active slot");
    let next: Step = directory.propose(Vec::new());
    let proposal = Proposal::sign(&directory, next, &key(202)).expect("an operator's");
    (directory, further, proposal)
}

#[test]
fn directories_requests_and_proposals_are_those_of_the_independent_program() {
    let (published, (directory, request, proposal)) = (published(), made());
    let removal = hex(&directory.encode()[directory.encode().len() - 81..]);
    assert_eq!(published["directory"], hex(&directory.encode()));
    assert_eq!(published["removal"], removal);
    assert_eq!(published["request"], hex(&request.encode()));
    assert_eq!(published["proposal"], hex(&proposal.encode()));
    let heads: Vec<String> = std::iter::once(directory.origin())
        .chain(directory.steps().iter().map(|signed| signed.step.digest()))
        .map(|head| hex(&head))
        .collect();
    assert_eq!(published["heads"], serde_json::json!(heads));
    let id = directory.id();
    assert_eq!(published["in-force"], serde_json::json!({ "number": id.number, "hash": hex(&id.hash) }));
    // And they are read, all of them.
    let read = Directory::decode(&octets(&published["directory"])).expect("sound");
    assert_eq!((read.id(), read.set().slots.len()), (id, 4));
    assert_eq!(read.set().profile, Some(profile()));
    assert!(Request::decode(&octets(&published["request"])).expect("sound").is_sound());
    let proposal = Proposal::decode(&octets(&published["proposal"])).expect("sound");
    assert!(proposal.countersign(&read, &key(200)).is_ok());
}

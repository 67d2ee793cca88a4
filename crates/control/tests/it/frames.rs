//! Frames: one encoding each, bounded, and nothing left over.
//!
//! ICC, objects: changed frames, and lists that say more than there is: refused, or another frame.

use proptest::prelude::*;
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame, Host, MAX_FRAME};
use wayleave_control::labels::Labels;
use wayleave_control::path::build;
use wayleave_control::realm::JoinError;
use wayleave_control::store::Record;
use wayleave_control::topology::{PartialPath, Step};
use wayleave_core::IdentityKey;
use wayleave_core::wire::Malformed;

use super::common::*;
use super::objects::{consent_answer, consent_request, join_request};

/// One frame of each type and of each form that a type has.
pub(crate) fn all() -> Vec<Frame> {
    let mut labels = Labels::default();
    labels.insert(identity(3), "green", identity(700));
    let nodes = [0, 1, 3, 4].map(identity);
    let path = build(&database(6, &small()), &labels, &[], &nodes, NOW).expect("a path");
    let partial = PartialPath { nodes: nodes[..3].to_vec(), steps: vec![Step::Up, Step::Up] };
    let membership = || signed_membership(0);
    let advert = signed_advert(&adverts(6, &small())[0], 0);
    let list = revocations(5, &[1, 2]);
    let records =
        vec![Record::Revocations(list.clone()), Record::Membership(membership()), Record::Advert(advert.clone())];
    let find = |host| Body::FindHost { host, partials: vec![partial.clone()] };
    let bodies = vec![
        Body::Register { membership: membership(), advert },
        Body::Registered { number: 77 },
        Body::SubmitRevocations(list),
        Body::Subscribe { instance: 1, since: 2 },
        Body::Records { instance: 1, version: 2, complete: true, records: records.clone() },
        find(Host::Name(name("n4"))),
        find(Host::Identity(identity(4))),
        find(Host::Address("10.0.4.1".parse().expect("an address"))),
        find(Host::Address("fd00::1".parse().expect("an address"))),
        Body::FindPathServer { partials: Vec::new() },
        Body::Paths { is_cut: false, paths: vec![path], records },
        Body::Refused(Refusal::Policy),
        Body::Refused(Refusal::Older(9)),
        Body::Refused(Refusal::IdClaimed(identity(3))),
        Body::Consent { membership: membership(), request: consent_request() },
        Body::Consented(consent_answer()),
        Body::Join(join_request()),
        Body::Joined(Ok(membership())),
        Body::Joined(Err(JoinError::Used)),
        Body::Renew { number: 3 },
        Body::Roll { key: [9; 32] },
        Body::Invited(join_request().object().invitation.clone()),
        Body::FindRevocations,
        Body::Revocations(None),
        Body::Revocations(Some(super::lists::of_list_key())),
        Body::Entrust { masters: vec![(439_453, master(1)), (439_460, master(2))] },
        Body::Entrusted,
    ];
    (1..).zip(bodies).map(|(request, body)| Frame { request, body }).collect()
}

#[test]
fn every_frame_is_read_as_it_was_written_and_no_other_octets_are_it() {
    for frame in all() {
        let octets = frame.encode();
        let again = Frame::decode(&octets).expect("its own encoding");
        assert_eq!((again.request, again.encode()), (frame.request, octets.clone()));
        for length in 0..octets.len() {
            assert!(Frame::decode(&octets[..length]).is_err(), "{length} octets of {:?}", frame.body);
        }
        assert!(Frame::decode(&[&octets[..], &[0]].concat()).is_err());
        let mut other_version = octets;
        other_version[0] = 2;
        assert_eq!(Frame::decode(&other_version).err(), Some(Malformed::Version(2)));
    }
}

#[test]
fn every_reason_of_a_refusal_has_a_number_of_its_own() {
    let mut seen = std::collections::BTreeSet::new();
    for code in 0..=255u8 {
        for by in [None, Some(IdentityKey([3; 32]))] {
            let mut octets = vec![1, 9, 0, 0, 0, 0, code, u8::from(by.is_some())];
            octets.extend(by.iter().flat_map(|by| by.0));
            octets.extend([0; 8]);
            if let Ok(Frame { body: Body::Refused(refusal), .. }) = Frame::decode(&octets) {
                assert!(seen.insert(refusal.to_string()), "{refusal}");
                assert_eq!(Frame { request: 0, body: Body::Refused(refusal) }.encode(), octets);
            }
        }
    }
    assert_eq!(seen.len(), 29);
    for code in 1..=255u8 {
        if let Some(error) = JoinError::from_code(code) {
            assert_eq!(error.code(), code);
        }
    }
}

#[test]
fn a_list_that_says_more_than_there_is_is_refused_before_it_is_allocated() {
    // FindPathServer with 65,535 partial paths, and Records with as many records.
    for head in [&[1, 7, 0, 0, 0, 0][..], &[&[1, 5, 0, 0, 0, 0][..], &[0; 17]].concat()] {
        let octets = [head, &[0xff, 0xff], &[0; 100]].concat();
        assert!(matches!(Frame::decode(&octets), Err(Malformed::TooMany { count: 65_535, .. })));
    }
    assert_eq!(Frame::decode(&vec![1; MAX_FRAME + 1]).err(), Some(Malformed::TooLong(1)));
    // What a registrar keeps for itself is in no frame.
    let used = Record::Used { key: [3; 32], by: None };
    let frame =
        Frame { request: 0, body: Body::Records { instance: 0, version: 0, complete: true, records: vec![used] } };
    assert_eq!(Frame::decode(&frame.encode()).err(), Some(Malformed::Value("the kind of a record")));
}

proptest! {
    #[test]
    fn a_changed_frame_is_refused_or_is_another_frame(which in any::<usize>(), at in any::<u32>(), octet in any::<u8>()) {
        let frames = cached();
        let octets = &frames[which % frames.len()];
        let mut other = octets.clone();
        let at = at as usize % other.len();
        other[at] = octet;
        if let Ok(frame) = Frame::decode(&other) {
            prop_assert_eq!(frame.encode(), other);
        }
    }
}

fn cached() -> &'static [Vec<u8>] {
    static FRAMES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    FRAMES.get_or_init(|| all().iter().map(Frame::encode).collect())
}

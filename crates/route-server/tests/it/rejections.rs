//! A party that does not take a member's hello says why, and the member waits before it tries again and accuses nobody.
//!
//! SIX-13: parties that multiply in different ways: each is named, and nothing is announced.
//! OPS, mistakes, running: a rejected member closes both links for longer and raises no alarm; other operators in the
//! configuration accuse no party.

use std::time::Duration;

use wayleave_core::{Asn, Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_route_server::directory::Directory;
use wayleave_route_server::frames::{FromMember, Rejection, SessionId, ToMember};
use wayleave_route_server::member::{Member, MemberConfig, MemberEvent, MemberInput, MemberOutput};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::PartyNumber;
use wayleave_route_server::policy::{Policy, PolicyConfig};
use wayleave_route_server::versions::{FORMATS, Speaks, VERSIONS, Versions};

const NOW: Now = Now { instant: Instant(0), unix: UnixTime(1_700_000_000_000_000) };

fn seed(number: u8) -> Seed {
    Secret::new([number; 32])
}

fn operators(first: u8) -> [VerifyingKey; 2] {
    [first, first + 1].map(|number| SigningKey::from_seed(&seed(number)).verifying_key())
}

/// A member with a link to each party, and the session of its hello.
fn greeted() -> (Member, SessionId) {
    let config = MemberConfig {
        exchange: "test-ix".to_owned(),
        rs_asn: Asn(64496),
        operators: operators(21),
        slot: 0,
        keys: Vec::new(),
        select_best: true,
        stale: Duration::from_secs(60),
        settle: Duration::from_secs(5),
        lab: true,
        accept_as_set: false,
        paths: 1,
        has_role: false,
        validates: false,
        speaks: Speaks::default(),
    };
    let policy = Policy::compile(&PolicyConfig::default()).expect("the default policy");
    let mut member = Member::new(config, Box::new(policy), SigningKey::from_seed(&seed(2)), &seed(3), &[], NOW);
    for (link, party) in [(1, PartyNumber::One), (2, PartyNumber::Two)] {
        member.handle(MemberInput::LinkUp { link, party, exporter: seed(4) }, NOW);
    }
    let session = outputs(&mut member).into_iter().find_map(|output| match output {
        MemberOutput::Send { frame, .. } => match FromMember::decode(&frame) {
            Ok(FromMember::Hello { session, .. }) => Some(session),
            _ => None,
        },
        _ => None,
    });
    (member, session.expect("a hello"))
}

fn outputs(member: &mut Member) -> Vec<MemberOutput> {
    std::iter::from_fn(|| member.poll()).collect()
}

/// The links that are closed, and whether it is of no use to connect again soon.
fn closed(outputs: &[MemberOutput]) -> Vec<(u64, bool)> {
    let close = |output: &MemberOutput| match output {
        MemberOutput::Close { link, refused, .. } => Some((*link, *refused)),
        _ => None,
    };
    outputs.iter().filter_map(close).collect()
}

fn all() -> [Rejection; 4] {
    [
        Rejection::Protocol { ours: 7 },
        Rejection::Exchange { ours: "other-ix".to_owned() },
        Rejection::Slot { proved: 9 },
        Rejection::Versions { ours: Versions { least: 8, highest: 9 }, later: b"later".to_vec() },
    ]
}

#[test]
fn rejections_are_read_as_they_are_written_and_no_other_is_one() {
    for why in all() {
        let bytes = ToMember::Rejected { why: why.clone() }.encode();
        assert!(matches!(ToMember::decode(&bytes), Ok(ToMember::Rejected { why: read }) if read == why));
        for end in 0..bytes.len() {
            assert!(ToMember::decode(&bytes[..end]).is_err(), "{why:?} cut at {end}");
        }
        assert!(ToMember::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
    for kind in [0, 4, 255] {
        assert!(ToMember::decode(&[7, kind, 0, 0, 0, 0]).is_err(), "{kind}");
    }
}

#[test]
fn a_rejected_member_closes_both_links_for_longer_and_raises_no_alarm() {
    for why in all() {
        let (mut member, _) = greeted();
        let frame = ToMember::Rejected { why: why.clone() }.encode();
        member.handle(MemberInput::Frame { link: 2, bytes: frame }, NOW);
        let outputs = outputs(&mut member);
        assert_eq!(closed(&outputs), [(1, true), (2, true)], "{outputs:?}");
        let events: Vec<&MemberEvent> = outputs
            .iter()
            .filter_map(|output| if let MemberOutput::Event(event) = output { Some(event) } else { None })
            .collect();
        assert_eq!(events, [&MemberEvent::Rejected { party: 2, why }]);
        assert_eq!(member.counters().alarms, 0);
    }
}

#[test]
fn a_rejection_without_a_hello_is_a_fault_of_the_party() {
    let (mut member, session) = greeted();
    let directory = Directory::new("test-ix", operators(21).map(|key| key.to_bytes())).expect("sound");
    let welcome = ToMember::Welcome {
        versions: VERSIONS,
        session,
        epoch: 1,
        high_water: 0,
        tick_ms: 0,
        export: ExportMode::Direct,
        max_blob: 8192,
        budget: Default::default(),
        format: FORMATS.highest,
        later: Vec::new(),
        set: directory.encode().into(),
    };
    member.handle(MemberInput::Frame { link: 1, bytes: welcome.encode() }, NOW);
    outputs(&mut member);
    let frame = ToMember::Rejected { why: Rejection::Slot { proved: 9 } }.encode();
    member.handle(MemberInput::Frame { link: 1, bytes: frame }, NOW);
    assert_eq!(closed(&outputs(&mut member)), [(1, false), (2, false)]);
    assert_eq!(member.counters().alarms, 1);
}

#[test]
fn other_operators_in_the_configuration_accuse_no_party() {
    for (name, first, alarms) in [("test-ix", 31, 0), ("other-ix", 21, 0)] {
        let (mut member, session) = greeted();
        let directory = Directory::new(name, operators(first).map(|key| key.to_bytes())).expect("sound");
        let set = directory.encode().into();
        let export = ExportMode::Direct;
        let welcome = ToMember::Welcome {
            versions: VERSIONS,
            session,
            epoch: 1,
            high_water: 0,
            tick_ms: 0,
            export,
            max_blob: 8192,
            budget: Default::default(),
            format: FORMATS.highest,
            later: Vec::new(),
            set,
        };
        member.handle(MemberInput::Frame { link: 1, bytes: welcome.encode() }, NOW);
        let outputs = outputs(&mut member);
        assert_eq!(closed(&outputs), [(1, true), (2, true)], "{name}: {outputs:?}");
        assert_eq!(member.counters().alarms, alarms, "{name}");
    }
}

#[test]
fn parties_that_multiply_in_different_ways_are_named_and_nothing_is_announced() {
    let (mut member, session) = greeted();
    let directory = Directory::new("test-ix", operators(21).map(|key| key.to_bytes())).expect("sound");
    for (link, export) in [(1, ExportMode::Mpc), (2, ExportMode::Direct)] {
        let set = directory.encode().into();
        let welcome = ToMember::Welcome {
            versions: VERSIONS,
            session,
            epoch: 1,
            high_water: 0,
            tick_ms: 0,
            export,
            max_blob: 8192,
            budget: Default::default(),
            format: FORMATS.highest,
            later: Vec::new(),
            set,
        };
        member.handle(MemberInput::Frame { link, bytes: welcome.encode() }, NOW);
    }
    let outputs = outputs(&mut member);
    assert_eq!(closed(&outputs), [(1, true), (2, true)], "{outputs:?}");
    let modes = ["mpc".to_owned(), "direct".to_owned()];
    let named = |output: &MemberOutput| matches!(output, MemberOutput::Event(MemberEvent::ExportsDiffer { modes: shown }) if *shown == modes);
    assert!(outputs.iter().any(named), "{outputs:?}");
}

/// The welcome of a party that speaks these versions.
fn welcome(versions: Versions, session: SessionId) -> Vec<u8> {
    let directory = Directory::new("test-ix", operators(21).map(|key| key.to_bytes())).expect("sound");
    let welcome = ToMember::Welcome {
        versions,
        session,
        epoch: 1,
        high_water: 0,
        tick_ms: 0,
        export: ExportMode::Direct,
        max_blob: 8192,
        budget: Default::default(),
        format: FORMATS.highest,
        set: directory.encode().into(),
        later: b"what a later version adds".to_vec(),
    };
    welcome.encode()
}

fn begins(outputs: &[MemberOutput]) -> Vec<(u64, u16, [Versions; 2])> {
    let begin = |output: &MemberOutput| match output {
        MemberOutput::Send { link, frame } => match FromMember::decode(frame) {
            Ok(FromMember::Begin { version, told }) => Some((*link, version, told)),
            _ => None,
        },
        _ => None,
    };
    outputs.iter().filter_map(begin).collect()
}

#[test]
fn a_session_begins_with_both_welcomes_in_the_highest_version_of_all_and_says_what_each_party_said() {
    let later = Versions { least: 6, highest: 9 };
    let (mut member, session) = greeted();
    member.handle(MemberInput::Frame { link: 2, bytes: welcome(later, session) }, NOW);
    let first = outputs(&mut member);
    assert!(first.iter().all(|output| !matches!(output, MemberOutput::Send { .. })), "{first:?}");
    member.handle(MemberInput::Frame { link: 1, bytes: welcome(VERSIONS, session) }, NOW);
    let second = outputs(&mut member);
    let told = [VERSIONS, later];
    assert_eq!(begins(&second), [(1, 7, told), (2, 7, told)]);
    let sent = second.iter().position(|output| matches!(output, MemberOutput::Send { .. }));
    let begun = second.iter().position(|output| matches!(output, MemberOutput::Send { frame, .. } if frame[0] == 10));
    assert_eq!(sent, begun, "before all else");

    // Told by a party that the other said something else to it, the member tells its operator and accuses nobody.
    let why = Rejection::Told { told: VERSIONS, ours: later };
    let bytes = ToMember::Rejected { why: why.clone() }.encode();
    member.handle(MemberInput::Frame { link: 2, bytes }, NOW);
    let outputs = outputs(&mut member);
    assert_eq!(closed(&outputs), [(1, true), (2, true)]);
    let said = |output: &MemberOutput| matches!(output, MemberOutput::Event(MemberEvent::Rejected { party: 2, why: said }) if *said == why);
    assert!(outputs.iter().any(said), "{outputs:?}");
    assert_eq!(member.counters().alarms, 0);
}

#[test]
fn without_a_version_that_all_three_speak_nothing_begins_and_the_operator_is_told() {
    // Each party alone would do for this member, which speaks one version.
    let (mut member, session) = greeted();
    member.handle(MemberInput::Frame { link: 1, bytes: welcome(VERSIONS, session) }, NOW);
    outputs(&mut member);
    let bytes = welcome(Versions { least: 8, highest: 9 }, session);
    member.handle(MemberInput::Frame { link: 2, bytes }, NOW);
    let outputs = outputs(&mut member);
    assert_eq!(begins(&outputs), []);
    assert_eq!(closed(&outputs).len(), 2, "{outputs:?}");
    assert!(outputs.iter().any(|output| {
        matches!(output, MemberOutput::Close { reason, .. } if reason.contains("this program is the older of the two"))
    }));
}

#[test]
fn a_second_welcome_cannot_change_what_was_said() {
    let (mut member, session) = greeted();
    for _ in 0..2 {
        member.handle(MemberInput::Frame { link: 1, bytes: welcome(VERSIONS, session) }, NOW);
    }
    assert_eq!(closed(&outputs(&mut member)), [(1, false), (2, false)]);
    assert_eq!(member.counters().alarms, 1);
}

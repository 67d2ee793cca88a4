//! Origin validation at members (RFC 6811), in virtual time.
//!
//! OPS, origins: an announcer whose proxy checks nothing announces what the RPKI forbids: a receiver that validates does not use it,
//! from when the ROA comes until it goes, and nobody else can tell.

use crate::common::{LIMIT, asn, in_both_modes, nlri, route};
use wayleave_bgp::Nlri;
use wayleave_bgp::origins::Vrp;
use wayleave_core::Asn;
use wayleave_lab::sim::{Node, Recorded, Setup, Sim};
use wayleave_route_server::frames::{FromMember, PartyFrame, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::ExportMode;

/// Its proxy checks nothing.
const HOSTILE: u32 = 0;
/// It validates.
const HONEST: u32 = 1;
/// It knows nothing of origins.
const IGNORANT: u32 = 2;
/// The prefix is its customer's.
const RIGHTFUL: u32 = 3;
const HOLDER: u32 = 64_500;
const HIJACKER: u32 = 64_666;

fn prefix() -> Nlri {
    nlri("20.1.0.0/16")
}

fn vrp(max_length: u8, asn: u32) -> Vrp {
    Vrp { prefix: prefix().prefix, max_length, asn: Asn(asn) }
}

fn exchange(export: ExportMode) -> Sim {
    let mut sim = Sim::new(Setup { seed: 2_400, export, ..Setup::default() });
    rest(&mut sim);
    sim.forget_events();
    sim
}

fn rest(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
}

/// The RPKI says something else to a member.
fn say(sim: &mut Sim, slot: u32, vrps: &[Vrp]) {
    sim.set_origins(slot, vrps.iter().copied());
    rest(sim);
}

/// Whose route the router of the member in `slot` has.
fn from(sim: &Sim, slot: u32) -> Option<Asn> {
    sim.tables[&slot].get(&prefix().prefix).and_then(|route| route.as_path().first_asn())
}

in_both_modes!(a_route_that_a_hostile_member_announces_is_used_only_while_no_roa_forbids_it);
fn a_route_that_a_hostile_member_announces_is_used_only_while_no_roa_forbids_it(export: ExportMode) {
    let mut sim = exchange(export);
    say(&mut sim, HONEST, &[vrp(16, HOLDER)]);
    sim.announce(HOSTILE, &[prefix()], &route(HOSTILE, &[HIJACKER], &[]));
    rest(&mut sim);
    assert_eq!((from(&sim, HONEST), from(&sim, IGNORANT)), (None, Some(asn(HOSTILE))));
    let member = sim.member(HONEST).expect("it runs");
    assert_eq!(member.status().refused_at_receive.get("rpki-invalid"), Some(&1));
    let why = member.why(prefix().prefix);
    let [found] = &why.routes[..] else { panic!("{why:?}") };
    let said =
        "not used: RPKI-invalid: AS64666 may not originate 20.1.0.0/16; the RPKI has 20.1.0.0/16 of AS64500, up to /16";
    assert_eq!(found.route.reason.outcome, said);
    assert_eq!(found.route.rpki.as_ref().map(|rpki| rpki.state), Some("invalid"));

    // The ROA is withdrawn, comes, gets company, and comes again.
    for (vrps, expected, state) in [
        (&[][..], Some(asn(HOSTILE)), "not-found"),
        (&[vrp(16, HOLDER)], None, "invalid"),
        (&[vrp(16, HOLDER), vrp(16, HIJACKER)], Some(asn(HOSTILE)), "valid"),
        (&[vrp(16, HOLDER)], None, "invalid"),
    ] {
        say(&mut sim, HONEST, vrps);
        assert_eq!(from(&sim, HONEST), expected, "{vrps:?}");
        let why = sim.member(HONEST).expect("it runs").why(prefix().prefix);
        assert_eq!(why.routes[0].route.rpki.as_ref().map(|rpki| rpki.state), Some(state), "{vrps:?}");
        assert_eq!(from(&sim, IGNORANT), Some(asn(HOSTILE)));
    }

    // Where there is a rightful route too, that one is used, however long its path is, and the other one again once it may be.
    sim.announce(RIGHTFUL, &[prefix()], &route(RIGHTFUL, &[64_501, 64_502, HOLDER], &[]));
    rest(&mut sim);
    assert_eq!((from(&sim, HONEST), from(&sim, IGNORANT)), (Some(asn(RIGHTFUL)), Some(asn(HOSTILE))));
    say(&mut sim, HONEST, &[]);
    assert_eq!(from(&sim, HONEST), Some(asn(HOSTILE)), "its own ranking decides, by the shorter path");
    say(&mut sim, HONEST, &[vrp(16, HOLDER)]);
    assert_eq!(from(&sim, HONEST), Some(asn(RIGHTFUL)));
    assert!(sim.party_events.is_empty(), "{:?}", sim.party_events);
}

in_both_modes!(an_own_route_whose_origin_is_invalid_is_not_announced_while_it_is);
fn an_own_route_whose_origin_is_invalid_is_not_announced_while_it_is(export: ExportMode) {
    let mut sim = exchange(export);
    say(&mut sim, RIGHTFUL, &[vrp(16, HOLDER)]);
    sim.forget_events();
    let longer = nlri("20.1.7.0/24");
    sim.announce(RIGHTFUL, &[prefix()], &route(RIGHTFUL, &[HOLDER], &[]));
    sim.announce(RIGHTFUL, &[longer], &route(RIGHTFUL, &[HOLDER], &[]));
    rest(&mut sim);
    assert_eq!(from(&sim, IGNORANT), Some(asn(RIGHTFUL)));
    let has_longer = |sim: &Sim| sim.tables[&IGNORANT].contains_key(&longer.prefix);
    assert!(!has_longer(&sim), "longer than the ROA allows");
    let is_told = |(slot, event): &(u32, MemberEvent)| {
        let MemberEvent::NotAnnounced { prefix, why } = event else { return false };
        *slot == RIGHTFUL && prefix == "20.1.7.0/24" && why.starts_with("RPKI-invalid: AS64500 may not originate")
    };
    assert!(sim.member_events.iter().any(is_told), "{:?}", sim.member_events);
    let member = sim.member(RIGHTFUL).expect("it runs");
    let status = member.status();
    assert_eq!((status.refused_at_announce.get("rpki-invalid"), status.not_announced), (Some(&1), 1));
    let why = member.why(longer.prefix);
    assert!(why.own[0].reason.outcome.starts_with("not announced: RPKI-invalid: AS64500"), "{:?}", why.own);
    let check = why.own[0].checks.iter().find(|check| check.check == "origin (RPKI)").expect("a check");
    assert_eq!((check.passed, check.found.as_str()), (false, "invalid: 20.1.0.0/16 of AS64500, up to /16"));

    say(&mut sim, RIGHTFUL, &[vrp(24, HOLDER)]);
    assert!(has_longer(&sim), "the ROA allows it now");
    say(&mut sim, RIGHTFUL, &[vrp(24, HIJACKER)]);
    assert_eq!((from(&sim, IGNORANT), has_longer(&sim)), (None, false), "both are withdrawn");
    say(&mut sim, RIGHTFUL, &[]);
    assert_eq!((from(&sim, IGNORANT), has_longer(&sim)), (Some(asn(RIGHTFUL)), true));
}

/// What went over each link, in order, without grants of credit, which follow from how much went over the link before.
pub(super) fn shapes(recording: &[Recorded]) -> Vec<(Node, Node, usize)> {
    let is_grant = |frame: &&Recorded| match (frame.from, frame.to) {
        (Node::Member(_), _) => matches!(FromMember::decode(&frame.bytes), Ok(FromMember::Credit { .. })),
        (_, Node::Member(_)) => matches!(ToMember::decode(&frame.bytes), Ok(ToMember::Credit { .. })),
        _ => matches!(PartyFrame::decode(&frame.bytes), Ok(PartyFrame::Credit { .. })),
    };
    let frames = recording.iter().filter(|frame| !is_grant(frame));
    let mut shapes: Vec<_> = frames.map(|frame| (frame.from, frame.to, frame.bytes.len())).collect();
    shapes.sort_by_key(|(from, to, _)| (*from, *to));
    shapes
}

in_both_modes!(that_a_receiver_refuses_a_route_for_its_origin_shows_to_nobody);
fn that_a_receiver_refuses_a_route_for_its_origin_shows_to_nobody(export: ExportMode) {
    let other = Vrp { prefix: nlri("20.9.0.0/16").prefix, max_length: 16, asn: Asn(HOLDER) };
    let [of_other, of_this] = [other, vrp(16, HOLDER)].map(|vrp| {
        let mut sim = exchange(export);
        sim.announce(HOSTILE, &[prefix()], &route(HOSTILE, &[HIJACKER], &[]));
        sim.announce(RIGHTFUL, &[prefix()], &route(RIGHTFUL, &[64_501, HOLDER], &[]));
        rest(&mut sim);
        sim.fill_pools();
        sim.recording = Some(Vec::new());
        say(&mut sim, HONEST, &[vrp]);
        let whose = from(&sim, HONEST);
        // Something is ranked after it, too.
        sim.announce(HOSTILE, &[prefix()], &route(HOSTILE, &[HIJACKER + 1], &[]));
        rest(&mut sim);
        (whose, shapes(&sim.recording.take().unwrap_or_default()))
    });
    assert_eq!((of_other.0, of_this.0), (Some(asn(HOSTILE)), Some(asn(RIGHTFUL))), "one of the two is refused");
    assert!(!of_this.1.is_empty() && of_other.1 == of_this.1, "{:?}\n{:?}", of_other.1, of_this.1);
}

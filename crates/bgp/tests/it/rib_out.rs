//! Adj-RIB-Out: whatever happens, the peer ends up with the desired routes, in as few messages as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::{self, LOCAL, PEER, p};
use proptest::prelude::*;
use wayleave_bgp::rib::{AdjRibOut, Batch};
use wayleave_bgp::{
    AddPath, Attributes, Community, EncodeError, LargeCommunity, Message, Nlri, RefreshKind, SessionParams,
};
use wayleave_core::{Afi, Asn, Prefix};

/// The peer: a table that follows the messages, and what they were.
#[derive(Default)]
struct Peer {
    table: BTreeMap<Nlri, Asn>,
    ends_of_rib: Vec<Afi>,
    marks: Vec<(Afi, RefreshKind)>,
}

/// One message as the peer saw it.
struct PeerRoutes {
    withdrawn: Vec<Nlri>,
    announced: Vec<(Nlri, Asn)>,
}

impl Peer {
    fn read(&mut self, batch: &Batch, params: &SessionParams) -> Vec<PeerRoutes> {
        let theirs = SessionParams {
            local_asn: params.peer_asn,
            peer_asn: params.local_asn,
            add_path_receive: params.add_path_send,
            ..*params
        };
        let mut seen = Vec::new();
        for octets in &batch.messages {
            assert!(octets.len() <= params.max_message_len(), "{} octets", octets.len());
            match Message::decode(octets, &theirs).expect("a message").0 {
                Message::Update(update) => {
                    assert_eq!(update.problems, [], "a sound UPDATE");
                    self.ends_of_rib.extend(update.end_of_rib);
                    let version = update.attributes.as_ref().and_then(|attributes| attributes.as_path().origin_asn());
                    self.table.retain(|nlri, _| !update.withdrawn.contains(nlri));
                    let announced: Vec<(Nlri, Asn)> =
                        update.announced.iter().map(|nlri| (*nlri, version.expect("a path"))).collect();
                    self.table.extend(announced.iter().copied());
                    seen.push(PeerRoutes { withdrawn: update.withdrawn, announced });
                }
                Message::RouteRefresh(refresh) => self.marks.push((refresh.family().expect("ours"), refresh.kind)),
                other => panic!("{other:?}"),
            }
        }
        seen
    }
}

fn attributes(version: u32) -> Arc<Attributes> {
    Arc::new(common::attributes(&[LOCAL.0, version]))
}

fn params(ipv6: bool, add_path: AddPath, extended_message: bool) -> SessionParams {
    SessionParams { ipv6_unicast: ipv6, add_path_send: add_path, extended_message, ..SessionParams::new(LOCAL, PEER) }
}

fn plain() -> SessionParams {
    params(true, AddPath::default(), false)
}

/// The routes that a peer under `params` is to have.
fn expected(wanted: &BTreeMap<Nlri, u32>, params: &SessionParams) -> BTreeMap<Nlri, Asn> {
    let mut table = BTreeMap::new();
    for (nlri, version) in wanted {
        let afi = nlri.prefix.afi();
        let key = if params.add_path_send.has(afi) { *nlri } else { Nlri::new(nlri.prefix) };
        if params.has_family(afi) {
            // The lowest path identifier comes first.
            table.entry(key).or_insert(Asn(*version));
        }
    }
    table
}

#[derive(Clone, Debug)]
enum Step {
    Announce(usize, u32, u32),
    Withdraw(usize, u32),
    WithdrawAll,
    Batch(usize),
    Up(bool, bool, bool, bool),
    Down,
    Refresh(bool, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0usize..12, 0u32..3, 1u32..5).prop_map(|(prefix, path, version)| Step::Announce(prefix, path, version)),
        6 => (0usize..12, 0u32..3).prop_map(|(prefix, path)| Step::Withdraw(prefix, path)),
        1 => Just(Step::WithdrawAll),
        5 => (0usize..8).prop_map(Step::Batch),
        2 => any::<(bool, bool, bool, bool)>().prop_map(|(a, b, c, d)| Step::Up(a, b, c, d)),
        1 => Just(Step::Down),
        1 => any::<(bool, bool)>().prop_map(|(v6, marked)| Step::Refresh(v6, marked)),
    ]
}

fn prefix(index: usize) -> Prefix {
    match index % 2 {
        0 => p(&format!("10.{index}.0.0/16")),
        _ => p(&format!("2001:db8:{index}::/48")),
    }
}

proptest! {
    #[test]
    fn the_peer_has_what_is_wanted_after_any_history(steps in proptest::collection::vec(step(), 1..120)) {
        let mut rib = AdjRibOut::new();
        let mut wanted: BTreeMap<Nlri, u32> = BTreeMap::new();
        let mut session: Option<SessionParams> = None;
        let mut peer = Peer::default();
        let mut refreshed = false;
        for step in steps {
            match step {
                Step::Announce(at, path_id, version) => {
                    let nlri = Nlri { prefix: prefix(at), path_id };
                    rib.announce(nlri, attributes(version));
                    wanted.insert(nlri, version);
                }
                Step::Withdraw(at, path_id) => {
                    let nlri = Nlri { prefix: prefix(at), path_id };
                    rib.withdraw(&nlri);
                    wanted.remove(&nlri);
                }
                Step::WithdrawAll => {
                    rib.withdraw_all();
                    wanted.clear();
                }
                Step::Up(ipv6, ipv4_paths, ipv6_paths, extended) => {
                    let params = params(ipv6, AddPath { ipv4: ipv4_paths, ipv6: ipv6_paths }, extended);
                    rib.session_up(params, true);
                    session = Some(params);
                    peer = Peer::default();
                    refreshed = false;
                }
                Step::Down => {
                    rib.session_down();
                    session = None;
                }
                Step::Refresh(v6, marked) => {
                    rib.refresh(if v6 { Afi::Ipv6 } else { Afi::Ipv4 }, marked);
                    refreshed = true;
                }
                Step::Batch(most) => {
                    let before = peer.table.clone();
                    let batch = rib.next_batch(most);
                    let Some(params) = session else {
                        prop_assert_eq!(batch, Batch::default());
                        continue;
                    };
                    check(&mut peer, &batch, &params, &before, refreshed, most);
                }
            }
            prop_assert_eq!(rib.len(), wanted.len());
        }
        if let Some(params) = session {
            while rib.is_due() {
                let before = peer.table.clone();
                let batch = rib.next_batch(5);
                check(&mut peer, &batch, &params, &before, refreshed, 5);
            }
            prop_assert_eq!(&peer.table, &expected(&wanted, &params));
            let families = [Afi::Ipv4, Afi::Ipv6].into_iter().filter(|&afi| params.has_family(afi)).collect::<BTreeSet<_>>();
            prop_assert_eq!(peer.ends_of_rib.len(), families.len(), "End-of-RIB once for each family");
            let sent: BTreeMap<Nlri, Asn> =
                rib.sent().map(|(nlri, a)| (*nlri, a.as_path().origin_asn().expect("a path"))).collect();
            prop_assert_eq!(&sent, &peer.table);
            let begins = peer.marks.iter().filter(|(_, kind)| *kind == RefreshKind::Begin).count();
            prop_assert!(peer.marks.len() <= 2 * begins, "no end without a begin");
        }
        prop_assert_eq!(rib.next_batch(usize::MAX), Batch::default(), "nothing is sent twice");
    }
}

/// What must hold of every batch.
fn check(
    peer: &mut Peer,
    batch: &Batch,
    params: &SessionParams,
    before: &BTreeMap<Nlri, Asn>,
    forced: bool,
    most: usize,
) {
    let seen = peer.read(batch, params);
    assert_eq!(batch.rejected, []);
    assert!(batch.announced + batch.withdrawn <= most);
    let mut keys = BTreeSet::new();
    let mut announcing = false;
    for message in &seen {
        assert!(message.withdrawn.is_empty() || !announcing, "withdrawals go first");
        announcing |= !message.announced.is_empty();
        for nlri in &message.withdrawn {
            assert!(before.contains_key(nlri), "{nlri} was not there to withdraw");
        }
        for (nlri, version) in &message.announced {
            assert!(forced || before.get(nlri) != Some(version), "{nlri} had these attributes");
        }
        for nlri in message.withdrawn.iter().chain(message.announced.iter().map(|(nlri, _)| nlri)) {
            assert!(keys.insert(*nlri), "{nlri} twice in one batch");
        }
    }
}

#[test]
fn equal_attributes_share_messages() {
    let mut rib = AdjRibOut::new();
    for i in 0..10_000u32 {
        let prefix = p(&format!("10.{}.{}.0/24", i / 256, i % 256));
        // Two versions, alternating, in different allocations.
        rib.announce(Nlri::new(prefix), attributes(1 + i % 2));
    }
    rib.session_up(plain(), true);
    let batch = rib.next_batch(usize::MAX);
    assert_eq!(batch.announced, 10_000);
    // 4 octets a prefix, some 4,000 of them a message.
    assert!((10..=13).contains(&(batch.messages.len() - 2)), "{} messages", batch.messages.len());
    let mut peer = Peer::default();
    peer.read(&batch, &plain());
    assert_eq!((peer.table.len(), &peer.ends_of_rib[..]), (10_000, &[Afi::Ipv4, Afi::Ipv6][..]));
    assert!(!rib.is_due());
}

#[test]
fn a_prefix_that_flaps_between_batches_costs_one_route() {
    let mut rib = AdjRibOut::new();
    rib.session_up(plain(), false);
    let nlri = Nlri::new(p("192.0.2.0/24"));
    for version in 0..100_000 {
        rib.announce(nlri, attributes(1 + version % 7));
        rib.withdraw(&nlri);
    }
    assert_eq!((rib.due(), rib.next_batch(usize::MAX)), (0, Batch::default()));
    rib.announce(nlri, attributes(1));
    assert_eq!(rib.next_batch(usize::MAX).announced, 1);
    rib.withdraw(&nlri);
    rib.announce(nlri, attributes(1));
    assert!(!rib.is_due(), "the peer has it");
}

#[test]
fn end_of_rib_comes_after_the_initial_routes_whatever_changes_meanwhile() {
    let mut rib = AdjRibOut::new();
    for i in 0..100 {
        rib.announce(Nlri::new(p(&format!("10.{i}.0.0/16"))), attributes(1));
    }
    rib.session_up(plain(), true);
    let mut peer = Peer::default();
    for round in 0..60 {
        rib.announce(Nlri::new(p("1.0.0.0/8")), attributes(2 + round));
        peer.read(&rib.next_batch(3), &plain());
        if peer.ends_of_rib.contains(&Afi::Ipv4) {
            break;
        }
    }
    assert_eq!(peer.ends_of_rib, [Afi::Ipv6, Afi::Ipv4], "no IPv6 route has to be waited for");
    assert!(peer.table.len() >= 101);
}

#[test]
fn a_refresh_sends_all_again_between_its_marks() {
    let mut rib = AdjRibOut::new();
    for text in ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"] {
        rib.announce(Nlri::new(p(text)), attributes(1));
    }
    rib.session_up(plain(), false);
    rib.next_batch(usize::MAX);
    for marked in [false, true] {
        rib.refresh(Afi::Ipv4, marked);
        let mut peer = Peer::default();
        let batch = rib.next_batch(usize::MAX);
        assert_eq!(batch.announced, 2);
        peer.read(&batch, &plain());
        let marks = [(Afi::Ipv4, RefreshKind::Begin), (Afi::Ipv4, RefreshKind::End)];
        assert_eq!(peer.marks, if marked { &marks[..] } else { &[] });
    }
}

#[test]
fn a_refresh_includes_a_route_that_was_announced_again_as_it_was() {
    let mut rib = AdjRibOut::new();
    let nlri = Nlri::new(p("192.0.2.0/24"));
    rib.announce(nlri, attributes(1));
    rib.session_up(plain(), false);
    rib.next_batch(usize::MAX);
    rib.refresh(Afi::Ipv4, false);
    rib.announce(nlri, attributes(1));
    assert_eq!(rib.next_batch(usize::MAX).announced, 1);
    assert!(!rib.is_due());
}

#[test]
fn attributes_too_long_for_the_session_are_withdrawn_and_reported() {
    let mut rib = AdjRibOut::new();
    let nlri = Nlri::new(p("192.0.2.0/24"));
    let other = Nlri::new(p("198.51.100.0/24"));
    rib.session_up(plain(), false);
    rib.announce(nlri, attributes(1));
    rib.next_batch(usize::MAX);
    let many: Vec<LargeCommunity> = (0..400).map(|i| LargeCommunity::new(1, 2, i)).collect();
    let long = Arc::new(attributes(2).edit().large_communities(&many).finish());
    rib.announce(nlri, Arc::clone(&long));
    rib.announce(other, Arc::clone(&long));
    let batch = rib.next_batch(usize::MAX);
    assert_eq!((batch.announced, batch.withdrawn, batch.rejected.len()), (0, 1, 1));
    assert_eq!(batch.rejected[0].routes, [nlri, other]);
    assert!(matches!(batch.rejected[0].error, EncodeError::TooLong { most: 4_096, .. }));
    assert_eq!(rib.sent().count(), 0);
    assert!(!rib.is_due(), "it is not tried for ever");
    // A peer that takes longer messages gets them.
    rib.session_up(params(true, AddPath::default(), true), false);
    assert_eq!(rib.next_batch(usize::MAX).announced, 2);
}

#[test]
fn the_first_of_several_paths_goes_to_a_peer_without_add_path_and_all_to_one_with_it() {
    let prefix = p("192.0.2.0/24");
    let paths =
        |list: &[(u32, u32)]| -> Vec<_> { list.iter().map(|(id, version)| (*id, attributes(*version))).collect() };
    let mut rib = AdjRibOut::new();
    rib.session_up(plain(), false);
    let mut peer = Peer::default();
    let mut has = |rib: &mut AdjRibOut, version: Option<u32>| {
        peer.read(&rib.next_batch(usize::MAX), &plain());
        assert_eq!(peer.table.values().copied().collect::<Vec<_>>(), version.map(Asn).into_iter().collect::<Vec<_>>());
    };
    rib.set_paths(prefix, &paths(&[(7, 70), (2, 20), (5, 50)]));
    has(&mut rib, Some(70));
    rib.set_paths(prefix, &paths(&[(5, 50), (7, 70)]));
    has(&mut rib, Some(50));
    rib.set_paths(prefix, &paths(&[(5, 50), (2, 20)]));
    assert!(!rib.is_due(), "the others are none of its business");
    rib.set_paths(prefix, &[]);
    has(&mut rib, None);
    assert_eq!(rib.sent().count() + rib.desired().count(), 0);

    // With ADD-PATH: which is best says nothing, and what stays is not sent again (RFC 7911 section 3).
    let both = params(true, AddPath { ipv4: true, ipv6: false }, false);
    let mut peer = Peer::default();
    rib.set_paths(prefix, &paths(&[(7, 70), (2, 20)]));
    rib.session_up(both, false);
    peer.read(&rib.next_batch(usize::MAX), &both);
    rib.set_paths(prefix, &paths(&[(2, 20), (7, 70)]));
    assert!(!rib.is_due());
    rib.set_paths(prefix, &paths(&[(2, 21), (9, 90)]));
    let seen = peer.read(&rib.next_batch(usize::MAX), &both);
    let path = |path_id| Nlri { prefix, path_id };
    let withdrawn: Vec<Nlri> = seen.iter().flat_map(|seen| seen.withdrawn.clone()).collect();
    assert_eq!(withdrawn, [path(7)], "once");
    assert_eq!(peer.table, BTreeMap::from([(path(2), Asn(21)), (path(9), Asn(90))]));
    rib.session_up(plain(), false);
    let mut peer = Peer::default();
    peer.read(&rib.next_batch(usize::MAX), &plain());
    assert_eq!(peer.table, BTreeMap::from([(path(0), Asn(21))]), "the next session has no ADD-PATH");
}

#[test]
fn a_path_identifier_stands_before_its_prefix() {
    let both = params(true, AddPath { ipv4: true, ipv6: true }, false);
    let mut rib = AdjRibOut::new();
    rib.session_up(both, false);
    rib.set_paths(p("192.0.2.0/24"), &[(3, attributes(1)), (0x8000_0001, attributes(1))]);
    let batch = rib.next_batch(usize::MAX);
    let [announced] = &batch.messages[..] else { panic!("{batch:?}") };
    assert!(announced.ends_with(&[0, 0, 0, 3, 24, 192, 0, 2, 0x80, 0, 0, 1, 24, 192, 0, 2]), "{announced:02x?}");
    rib.set_paths(p("192.0.2.0/24"), &[(0x8000_0001, attributes(1))]);
    let batch = rib.next_batch(usize::MAX);
    // Withdrawn routes of eight octets, no attributes.
    assert!(batch.messages[0].ends_with(&[0, 8, 0, 0, 0, 3, 24, 192, 0, 2, 0, 0]), "{batch:?}");
    assert_eq!(batch.messages.len(), 1);
}

#[test]
fn a_long_lived_stale_route_goes_only_to_a_peer_that_knows_what_it_is() {
    let mut rib = AdjRibOut::new();
    let nlri = Nlri::new(p("192.0.2.0/24"));
    let withholds = SessionParams { withholds_stale: true, ..plain() };
    rib.session_up(withholds, false);
    rib.announce(nlri, attributes(1));
    assert_eq!(rib.next_batch(usize::MAX).announced, 1);
    let stale = Arc::new(attributes(1).edit().communities(&[Community::LLGR_STALE]).finish());
    rib.announce(nlri, Arc::clone(&stale));
    let batch = rib.next_batch(usize::MAX);
    assert_eq!((batch.announced, batch.withdrawn, batch.rejected[0].error), (0, 1, EncodeError::Stale));
    rib.session_up(plain(), false);
    assert_eq!(rib.next_batch(usize::MAX).announced, 1);
}

#[test]
fn only_the_lowest_path_goes_to_a_peer_without_add_path() {
    let mut rib = AdjRibOut::new();
    let path = |path_id| Nlri { prefix: p("192.0.2.0/24"), path_id };
    rib.session_up(plain(), false);
    let mut peer = Peer::default();
    let mut has = |rib: &mut AdjRibOut, version: Option<u32>| {
        peer.read(&rib.next_batch(usize::MAX), &plain());
        assert_eq!(peer.table.get(&path(0)).copied(), version.map(Asn));
    };
    rib.announce(path(5), attributes(5));
    has(&mut rib, Some(5));
    rib.announce(path(7), attributes(7));
    assert!(!rib.is_due());
    rib.announce(path(2), attributes(2));
    has(&mut rib, Some(2));
    rib.withdraw(&path(2));
    has(&mut rib, Some(5));
    rib.withdraw(&path(5));
    rib.withdraw(&path(7));
    has(&mut rib, None);
    assert_eq!(rib.sent().count() + rib.desired().count(), 0);
}

//! Source prefixes of principals and delegations: what a router that has them, or lacks them, does with packets from elsewhere.
//!
//! PLA-11, sources: a list whose first waypoint is the sender's own, which the operator took for its own: dropped by the payer's
//! source prefixes; behind NAT the address outside counts.

use std::net::IpAddr;

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Secret};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::platypus::account::{Payer, Total};
use wayleave_dataplane::platypus::revocation::{
    ListError, ListKind, MAX_SOURCES, Revocation, RevocationList, RevocationTable, Sources, sign_list, sign_whole,
};
use wayleave_dataplane::platypus::{Action, Config, Reason, ReplayPolicy, Router};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_packet::platypus::header::{
    Capability, Carriage, Delegation, DelegationId, Interval, Marks, Packet, Principal, SubDelegation, Width,
};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{self, Forward, Policy, Waypoint};

const NOW: u64 = 1_795_240_800;
const LABEL: &str = "wayleave/platypus/revocations/v1";

fn now() -> Now {
    Now { instant: Instant(NOW * 1_000_000_000), unix: UnixTime(NOW * 1_000_000) }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn host(address: IpAddr) -> Prefix {
    Prefix::truncated(address, if address.is_ipv4() { 32 } else { 128 }).expect("within the family's bits")
}

fn id(number: u32) -> DelegationId {
    DelegationId::new(number).expect("24 bits")
}

fn payer() -> Principal {
    Principal::new(7).expect("24 bits")
}

fn interval() -> Interval {
    Interval::new(12).expect("in range")
}

fn keys() -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])))
}

fn here(is_ipv4: bool) -> IpAddr {
    address(if is_ipv4 { "198.51.100.1" } else { "2001:db8:1::1" })
}

/// The sender's own waypoint, which the policy here takes for one of the provider's.
fn junk(is_ipv4: bool) -> IpAddr {
    address(if is_ipv4 { "198.51.100.66" } else { "2001:db8:1::66" })
}

/// A packet that principal 7 pays for.
#[derive(Clone, Copy)]
struct Sample {
    source: &'static str,
    to: &'static str,
    /// The source for which its key was made, if it is another.
    keyed: Option<&'static str>,
    delegation: Option<(u32, Option<u32>)>,
    marks: Marks,
    /// Whether it comes by the waypoint of [`junk`].
    is_laundered: bool,
    carriage: Carriage,
    counter: u32,
}

const OWN: &str = "192.0.2.7";
const FOREIGN: &str = "192.0.2.200";
const ELSEWHERE: &str = "100.64.9.9";
const SENT: Sample = Sample {
    source: OWN,
    to: "203.0.113.9",
    keyed: None,
    delegation: None,
    marks: Marks::BOUND,
    is_laundered: false,
    carriage: Carriage::Ip,
    counter: 0,
};
const PLAIN: Sample = Sample { marks: Marks::NONE, ..SENT };

impl Sample {
    fn from(source: &'static str) -> Self {
        Self { source, ..PLAIN }
    }

    fn octets(&self) -> Vec<u8> {
        let (source, to) = (address(self.source), address(self.to));
        let is_ipv4 = source.is_ipv4();
        let hop = |waypoint: IpAddr| {
            let within = match (self.marks.is_reply(), is_ipv4) {
                (true, _) => host(to),
                (false, true) => prefix("203.0.113.0/24"),
                (false, false) => prefix("2001:db8:9::/48"),
            };
            let delegation = self.delegation.map(|(first, sub)| {
                let sub = sub.map(|sub| SubDelegation { at: within.len(), id: id(sub) });
                Delegation { prefix: within, id: id(first), sub }
            });
            let capability = Capability {
                waypoint,
                principal: payer(),
                interval: interval(),
                epoch: epoch::epoch_at(interval(), now().unix),
                marks: self.marks,
                delegation,
                width: Width::Full,
            };
            let key = keys().stamp_key_from(&capability, self.keyed.map_or(source, address));
            Hop { capability, key: key.expect("one key for ever") }
        };
        let path = [junk(is_ipv4), here(is_ipv4)];
        let hops: Vec<Hop> = path[usize::from(!self.is_laundered)..].iter().map(|waypoint| hop(*waypoint)).collect();
        let nonce = Nonce::new(now().unix, self.counter);
        let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: self.carriage };
        let mut inner =
            if is_ipv4 { vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0] } else { vec![0x60, 0, 0, 0, 0, 40, 17, 64] };
        for end in [source, to] {
            match end {
                IpAddr::V4(end) => inner.extend(end.octets()),
                IpAddr::V6(end) => inner.extend(end.octets()),
            }
        }
        inner.resize(if is_ipv4 { 60 } else { 80 }, 0x5a);
        let mut out = Vec::new();
        encapsulate(&inner, &route, &mut out).expect("sound");
        if self.is_laundered {
            // Its first binding is one that nobody checks.
            let packet = Packet::decode(&out).expect("sound");
            let (forward, first) = (Forward::of(&packet, 0), packet.binding_range(0));
            out[first].fill(0x5a);
            forward.apply(&mut out);
        }
        out
    }
}

fn router(policy: Policy, (repeated, accounts): (ReplayPolicy, usize), has_lanes: bool) -> Router {
    let waypoint = |is_ipv4| Waypoint::new(here(is_ipv4), keys(), policy.clone());
    let config = Config {
        waypoints: vec![waypoint(true), waypoint(false)],
        repeated,
        replay: ReplayFilter::new(&Key128::new([3; 16]), 10_000, UnixTime(0)),
        need_revocations: false,
        answers_per_second: 100,
        accounts,
        account_seed: 1,
        delegations: 16,
    };
    if has_lanes { Router::new(config, CpuKernel::best()) } else { Router::without_lanes(config) }
}

/// Routers with and without lanes, which take packets of [`junk`].
fn routers() -> impl Iterator<Item = Router> {
    let policy = || Policy { own: [true, false].map(junk).map(host).to_vec(), ..Policy::default() };
    [true, false].into_iter().map(move |has_lanes| router(policy(), (ReplayPolicy::Drop, 100), has_lanes))
}

fn burst(router: &mut Router, sent: &[Sample]) -> Vec<Action> {
    let mut datagrams: Vec<Vec<u8>> = sent.iter().map(Sample::octets).collect();
    let mut frames: Vec<Frame<'_>> =
        datagrams.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
    router.process(&mut frames, now())[..sent.len()].to_vec()
}

/// What becomes of a packet that no other one equals.
fn action(router: &mut Router, sent: Sample) -> Action {
    let counters = router.counters();
    let counter = [Reason::Sources, Reason::SourcesUnknown].map(|reason| counters.of(reason)).iter().sum::<u64>();
    let counter = 1_000 + (counters.forwarded + counter) as u32;
    burst(router, &[Sample { counter, ..sent }])[0]
}

fn key_server() -> SigningKey {
    SigningKey::from_seed(&Secret::new([1; 32]))
}

fn of(delegation: Option<u32>, delegates_any: bool, prefixes: &[&str]) -> Sources {
    let mut prefixes: Vec<Prefix> = prefixes.iter().map(|text| prefix(text)).collect();
    prefixes.sort_unstable();
    Sources { principal: payer(), delegation: delegation.map(id), delegates_any, prefixes }
}

/// Applies the next list.
fn apply(table: &mut RevocationTable, sources: &[Sources]) {
    let mut is_applied = |number| {
        let (list, signature) = sign_whole(&key_server(), number, now().unix, &[], sources);
        table.apply(&list, &signature, &key_server().verifying_key()).is_ok()
    };
    assert!((1..100).any(&mut is_applied));
}

const SOURCES: Action = Action::Drop(Reason::Sources);
const UNKNOWN: Action = Action::Drop(Reason::SourcesUnknown);

/// PLA-11: nobody can see who wrote the list's first waypoint, and that its binding was checked.
#[test]
fn a_principal_with_sources_launders_none_behind_another_waypoint() {
    let six = Sample { source: "2001:db8:5::7", to: "2001:db8:9::9", ..PLAIN };
    for (sent, foreign) in [(PLAIN, FOREIGN), (six, "2001:db8:6::7")] {
        for carriage in [Carriage::Ip, Carriage::Udp] {
            for mut router in routers() {
                let own = Sample { is_laundered: true, carriage, ..sent };
                let foreign = Sample { source: foreign, ..own };
                assert_eq!(action(&mut router, foreign), Action::Route, "nobody names sources");
                apply(router.revocations(), &[of(None, false, &["192.0.2.0/28", "2001:db8:5::/64"])]);
                let length = own.octets().len() as u64;
                let limit = Payer { principal: payer(), delegation: None };
                router.accounts().set_rate(limit, 10 * length, 10 * length, now().instant);
                let refused: Vec<Action> =
                    (0..40).map(|counter| burst(&mut router, &[Sample { counter, ..foreign }])[0]).collect();
                assert_eq!(refused, [SOURCES; 40]);
                assert_eq!(router.counters().of(Reason::Sources), 40);
                let own: Vec<Action> =
                    (100..110).map(|counter| burst(&mut router, &[Sample { counter, ..own }])[0]).collect();
                assert_eq!(own, [Action::Route; 10], "what was refused took nothing of the rate");
                let total = router.accounts().journal().iter().map(|(_, total)| total.packets).sum::<u128>();
                assert_eq!(total, 11, "nor of the account");
                router.accounts().retain_rates(|_| false);
                apply(router.revocations(), &[]);
                assert_eq!(burst(&mut router, &[foreign])[0], Action::Route, "nor a place in the filter");
            }
        }
    }
}

#[test]
fn a_delegate_sends_from_where_both_it_and_its_principal_may_or_elsewhere_if_the_grant_says_any() {
    for mut router in routers() {
        let by = |delegation, source| Sample { source, delegation, ..PLAIN };
        let third = Some((3, None));
        let mut found = |sources: &[Sources], delegation| {
            apply(router.revocations(), sources);
            [OWN, FOREIGN, ELSEWHERE].map(|source| action(&mut router, by(delegation, source)) == Action::Route)
        };
        let network = |any| of(None, any, &["192.0.2.0/24"]);
        assert_eq!(found(&[network(false), of(Some(3), false, &["192.0.2.0/28"])], third), [true, false, false]);
        // Where its principal's shrink, or lie elsewhere from the start, nothing in the delegation's has to be rewritten.
        let elsewhere = of(Some(3), false, &["100.64.0.0/16", "192.0.2.0/28"]);
        assert_eq!(found(&[network(false), elsewhere.clone()], third), [true, false, false]);
        assert_eq!(found(&[network(true), elsewhere.clone()], third), [true, false, true]);
        assert_eq!(found(std::slice::from_ref(&elsewhere), third), [true, false, true], "the principal names none");
        // Emptied, or never named: what the principal may.
        assert_eq!(found(&[network(true), of(Some(3), false, &[])], third), [true, true, false]);
        assert_eq!(found(&[network(true)], third), [true, true, false]);
        assert_eq!(found(&[network(true), elsewhere.clone()], None), [true, true, false], "its own packets");
        assert_eq!(found(&[of(None, false, &[])], None), [true; 3], "emptied");
    }
}

#[test]
fn a_sub_delegation_that_nobody_registered_sends_from_where_its_delegation_may() {
    for mut router in routers() {
        let sources = [of(None, true, &["192.0.2.0/24"]), of(Some(3), false, &["100.64.0.0/16"])];
        apply(router.revocations(), &sources);
        for sub in [None, Some(5), Some(3)] {
            let by = |first, source| Sample { source, delegation: Some((first, sub)), ..PLAIN };
            assert_eq!(action(&mut router, by(3, ELSEWHERE)), Action::Route);
            assert_eq!(action(&mut router, by(3, OWN)), SOURCES);
            // A delegation that nobody registered: its principal's sources alone, whatever the grant says of others.
            assert_eq!(action(&mut router, by(4, ELSEWHERE)), SOURCES);
            assert_eq!(action(&mut router, by(4, OWN)), Action::Route);
        }
    }
}

/// The header's original source is under the binding, so that no NAT on the way rewrites it.
#[test]
fn a_customer_behind_nat_sends_from_the_address_outside_alone() {
    let from = |original: &'static str, outside: &str| {
        let mut octets = Sample::from(original).octets();
        let IpAddr::V4(outside) = address(outside) else { panic!("of IPv4") };
        octets[12..16].copy_from_slice(&outside.octets());
        octets[10..12].fill(0);
        let mut sum: u32 = octets[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        octets[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        octets
    };
    let (outside, inside) = (OWN, "10.0.0.5");
    for (check_source, prefixes, passing) in [
        (true, &["192.0.2.7/32"][..], [Ok(()), Err(Reason::Packet(verify::Reason::Source))]),
        (false, &["192.0.2.7/32"], [Ok(()), Err(Reason::Sources)]),
        (false, &["192.0.2.7/32", "10.0.0.0/8"], [Ok(()), Ok(())]),
    ] {
        for has_lanes in [true, false] {
            let policy = Policy { check_source, ..Policy::default() };
            let mut router = router(policy, (ReplayPolicy::Drop, 100), has_lanes);
            apply(router.revocations(), &[of(None, false, prefixes)]);
            // Stamped outside the NAT, and inside.
            for (original, expected) in [outside, inside].into_iter().zip(passing) {
                let mut octets = from(original, outside);
                let mut frames = [Frame { octets: &mut octets, ingress: Ingress::Internal }];
                let expected = expected.map_or_else(Action::Drop, |()| Action::Route);
                assert_eq!(router.process(&mut frames, now())[0], expected, "{original} {prefixes:?}");
            }
        }
    }
}

#[test]
fn a_prefix_names_its_own_family_alone_and_one_of_length_zero_all_of_it() {
    for mut router in routers() {
        let six = Sample { source: "2001:db8:5::7", to: "2001:db8:9::9", ..PLAIN };
        apply(router.revocations(), &[of(None, false, &["0.0.0.0/0"])]);
        assert_eq!([PLAIN, six].map(|sent| action(&mut router, sent)), [Action::Route, SOURCES]);
        apply(router.revocations(), &[of(None, false, &["::/0"])]);
        assert_eq!([PLAIN, six].map(|sent| action(&mut router, sent)), [SOURCES, Action::Route]);
    }
}

/// Whoever was cut off before it heard of a principal's sources cannot know them.
#[test]
fn a_bound_packet_whose_payer_nobody_here_knows_is_refused_and_counted() {
    for (repeated, accounts) in [(ReplayPolicy::Drop, 100), (ReplayPolicy::Pass, 0)] {
        for has_lanes in [true, false] {
            let mut router = router(Policy::default(), (repeated, accounts), has_lanes);
            let bound: Vec<Sample> = (0..16).map(|counter| Sample { counter, ..SENT }).collect();
            assert_eq!(burst(&mut router, &bound), [UNKNOWN; 16], "no list");
            assert_eq!(router.counters().of(Reason::SourcesUnknown), 16);
            assert_eq!(action(&mut router, PLAIN), Action::Route);
            apply(router.revocations(), &[]);
            assert_eq!(action(&mut router, SENT), UNKNOWN, "a list without it");
            let other = Sources { principal: Principal::new(8).expect("24 bits"), ..of(None, false, &["0.0.0.0/0"]) };
            apply(router.revocations(), &[other, of(Some(4), false, &["0.0.0.0/0"])]);
            let by = |delegation| Sample { delegation, ..SENT };
            assert_eq!(action(&mut router, by(None)), UNKNOWN, "of another delegation alone");
            assert_eq!(action(&mut router, by(Some((3, None)))), UNKNOWN);
            assert_eq!(action(&mut router, by(Some((4, Some(3))))), Action::Route);
            apply(router.revocations(), &[of(None, false, &[])]);
            assert_eq!(action(&mut router, SENT), Action::Route, "emptied");
            apply(router.revocations(), &[of(None, false, &["192.0.2.0/28"])]);
            let from = |source| Sample { source, ..SENT };
            assert_eq!([OWN, FOREIGN].map(|source| action(&mut router, from(source))), [Action::Route, SOURCES]);
        }
    }
}

/// The mark is part of the secret: who got a bound one cannot use it without.
#[test]
fn a_bound_secret_cannot_be_used_unbound() {
    for mut router in routers() {
        for marks in [Marks::BOUND, Marks::NONE] {
            let mut octets = Sample { marks, ..SENT }.octets();
            let word = 20 + 20 + 8;
            octets[word] ^= 0x80;
            let mut frames = [Frame { octets: &mut octets, ingress: Ingress::Internal }];
            let action = router.process(&mut frames, now())[0];
            assert_eq!(action, Action::Answer(Reason::Packet(verify::Reason::Binding)));
        }
    }
}

/// An account, a revocation and a rate are for both: the mark is no part of the epoch's number.
#[test]
fn a_bound_and_an_unbound_packet_share_account_and_revocation() {
    for mut router in routers() {
        apply(router.revocations(), &[of(None, false, &["192.0.2.0/28"])]);
        assert_eq!([SENT, PLAIN].map(|sent| action(&mut router, sent)), [Action::Route; 2]);
        let journal = router.accounts().journal();
        let octets = 2 * SENT.octets().len() as u128;
        assert_eq!(journal.iter().map(|(_, total)| *total).collect::<Vec<_>>(), [Total { packets: 2, octets }]);
        let epoch = Some((interval(), epoch::epoch_at(interval(), now().unix)));
        let entry = Revocation { principal: payer(), delegation: None, epoch };
        let (list, signature) = sign_list(&key_server(), 2, now().unix, ListKind::Addition, &[entry]);
        router.revocations().apply(&list, &signature, &key_server().verifying_key()).expect("the next one");
        assert_eq!([SENT, PLAIN].map(|sent| action(&mut router, sent)), [Action::Drop(Reason::Revoked); 2]);
    }
}

/// A client's capability for a server's packets to it: its key is made for the server's address, its prefix for the client's.
#[test]
fn a_reply_capability_serves_its_two_addresses() {
    let (server, other) = ("203.0.113.9", "203.0.113.10");
    let reply = |source, keyed| Sample {
        source,
        to: OWN,
        keyed,
        delegation: Some((9, None)),
        marks: Marks::BOUND.with_reply(),
        ..PLAIN
    };
    let forged = Action::Answer(Reason::Packet(verify::Reason::Binding));
    for mut router in routers() {
        apply(router.revocations(), &[of(None, false, &["192.0.2.0/28"])]);
        let counted = |sent, counter| Sample { counter, ..sent };
        // In one burst, and when its key has been verified in an earlier one: no key is kept for a capability whose name does not say
        // which source it serves.
        let sound = reply(server, None);
        let stolen = reply(other, Some(server));
        let both = [sound, stolen, reply(other, None)];
        for first in [0, 10] {
            let sent: Vec<Sample> = both.into_iter().zip(first..).map(|(sent, n)| counted(sent, n)).collect();
            assert_eq!(burst(&mut router, &sent), [Action::Route, forged, Action::Route]);
        }
        // Whoever has the secret makes a key for any source: but it reaches nobody except where it may be itself.
        assert_eq!(action(&mut router, Sample { to: FOREIGN, ..sound }), SOURCES);
        // The key of any other delegation is none for replies, nor the other way round; and replies are to one host.
        let malformed = Action::Drop(Reason::Packet(verify::Reason::Malformed));
        for (sent, expected) in [(sound, forged), (Sample { delegation: Some((9, None)), ..PLAIN }, malformed)] {
            let mut octets = sent.octets();
            octets[20 + 20 + 8] ^= 0x40;
            let mut frames = [Frame { octets: &mut octets, ingress: Ingress::Internal }];
            assert_eq!(router.process(&mut frames, now())[0], expected);
        }
    }
}

/// Lanes decide on sixteen packets at once where nothing but the packets themselves counts.
#[test]
fn sixteen_of_which_one_has_a_foreign_source() {
    for policy in [ReplayPolicy::Pass, ReplayPolicy::Drop] {
        for foreign in [0, 7, 15] {
            let sent = |first: u32| -> Vec<Sample> {
                let source = |n| if n == foreign { FOREIGN } else { OWN };
                (0..16).map(|n| Sample { source: source(n), counter: first + n, ..PLAIN }).collect()
            };
            let mut router = router(Policy::default(), (policy, 0), true);
            assert_eq!(burst(&mut router, &sent(0)), [Action::Route; 16]);
            apply(router.revocations(), &[of(None, false, &["192.0.2.0/28"])]);
            let mut expected = [Action::Route; 16];
            expected[foreign as usize] = SOURCES;
            assert_eq!(burst(&mut router, &sent(16)), expected);
            apply(router.revocations(), &[]);
            assert_eq!(burst(&mut router, &sent(32)), [Action::Route; 16]);
        }
    }
}

#[test]
fn lists_with_sources_replace_each_other_and_additions_keep_them() {
    let mut router = routers().next().expect("two");
    let key = key_server().verifying_key();
    let from = |source| Sample::from(source);
    apply(router.revocations(), &[of(None, false, &["192.0.2.0/28"]), of(Some(3), false, &[])]);
    assert_eq!(router.revocations().sources().len(), 2);
    let entry = Revocation { principal: Principal::new(8).expect("24 bits"), delegation: None, epoch: None };
    let (list, signature) = sign_list(&key_server(), 2, now().unix, ListKind::Addition, &[entry]);
    router.revocations().apply(&list, &signature, &key).expect("the next one");
    assert_eq!((router.revocations().len(), router.revocations().sources().len()), (1, 2));
    assert_eq!(action(&mut router, from(FOREIGN)), SOURCES);
    apply(router.revocations(), &[of(None, false, &["192.0.2.192/28"])]);
    assert_eq!((router.revocations().len(), router.revocations().sources().len()), (0, 1));
    assert_eq!([OWN, FOREIGN].map(|source| action(&mut router, from(source))), [SOURCES, Action::Route]);
    // One that is refused changes nothing.
    let (list, signature) = sign_whole(&key_server(), 3, now().unix, &[], &[]);
    assert_eq!(router.revocations().apply(&list, &signature, &key), Err(ListError::Old { held: 3, got: 3 }));
    assert_eq!(action(&mut router, from(OWN)), SOURCES);
    // A whole list without sources is one of a time without: nobody has any.
    let (list, signature) = sign_list(&key_server(), 4, now().unix, ListKind::Whole, &[]);
    router.revocations().apply(&list, &signature, &key).expect("newer");
    assert_eq!(action(&mut router, from(OWN)), Action::Route);
}

#[test]
fn a_list_without_sources_is_octet_for_octet_as_before() {
    let entries: Vec<Revocation> = (0..3)
        .map(|n| Revocation { principal: Principal::new(n).expect("24 bits"), delegation: None, epoch: None })
        .collect();
    let before = sign_list(&key_server(), 5, now().unix, ListKind::Whole, &entries);
    assert_eq!(sign_whole(&key_server(), 5, now().unix, &entries, &[]), before);
    assert_eq!((before.0[16], before.0.len()), (0, 17 + 45));
}

#[test]
fn a_list_with_sources_is_read_as_it_was_written() {
    let other = |number| Principal::new(number).expect("24 bits");
    let entries = [Revocation { principal: other(1), delegation: Some((id(2), Some(id(3)))), epoch: None }];
    let sources = [
        Sources { principal: other(6), ..of(Some(1), false, &["10.0.0.0/8", "10.0.0.0/9", "2001:db8::/32", "::/0"]) },
        of(None, true, &["192.0.2.0/28", "0.0.0.0/0", "2001:db8::/128"]),
        of(Some(0), false, &[]),
        of(Some(0xff_ffff), false, &["192.0.2.7/32"]),
        Sources { principal: other(8), ..of(None, false, &[]) },
    ];
    let backwards: Vec<Sources> = sources.iter().rev().cloned().collect();
    let signed = sign_whole(&key_server(), 5, now().unix, &entries, &sources);
    assert_eq!(sign_whole(&key_server(), 5, now().unix, &entries, &backwards), signed, "there is one encoding");
    let list = RevocationList::open(&signed.0, &signed.1, &key_server().verifying_key()).expect("sound");
    assert_eq!((list.kind, &list.entries[..], &list.sources[..]), (ListKind::Whole, &entries[..], &sources[..]));
}

#[test]
fn malformed_lists_with_sources_are_refused() {
    let open = |list: &[u8]| {
        let signature = key_server().sign(LABEL, list);
        RevocationList::open(list, &signature, &key_server().verifying_key())
    };
    let sources = [of(None, true, &["192.0.2.0/28", "192.0.2.16/28"]), of(Some(3), false, &["2001:db8::/32"])];
    let (sound, _) = sign_whole(&key_server(), 5, now().unix, &[], &sources);
    assert_eq!(open(&sound).map(|list| list.sources), Ok(sources.to_vec()));
    // Front 17, count 4, then entries of 25 octets.
    let entry = |n: usize| 21 + 25 * n..46 + 25 * n;
    type Defect<'a> = &'a dyn Fn(&mut Vec<u8>);
    let changed = |what: Defect<'_>| {
        let mut list = sound.clone();
        what(&mut list);
        open(&list)
    };
    let flags = 3;
    let defects: [(&str, Defect<'_>); 14] = [
        ("the count is beyond the end", &|list| list[20] = 9),
        ("an entry is cut off", &|list| list.truncate(list.len() - 1)),
        ("no entry at all", &|list| list.truncate(21)),
        ("unsorted", &|list| {
            let second: Vec<u8> = list.drain(entry(1)).collect();
            list.splice(21..21, second);
        }),
        ("twice", &|list| {
            let first = list[entry(0)].to_vec();
            list.splice(21..21, first);
        }),
        ("an unknown flag", &|list| list[entry(2).start + flags] = 6),
        ("a delegation that grants any", &|list| list[entry(2).start + flags] = 3),
        ("an ID without a delegation", &|list| list[entry(1).start + 6] = 1),
        ("flags that differ", &|list| list[entry(0).start + flags] = 0),
        ("bits beyond the prefix", &|list| list[entry(1).start + 11] |= 1),
        ("octets beyond an address of IPv4", &|list| list[entry(1).start + 23] = 1),
        ("a length beyond the family's", &|list| list[entry(1).start + 24] = 33),
        ("an unknown family", &|list| list[entry(2).start + 7] = 7),
        ("an entry without a prefix beside one with", &|list| list[entry(0)][7..].fill(0)),
    ];
    for (defect, what) in defects {
        assert_eq!(changed(what), Err(ListError::Malformed), "{defect}");
    }
    assert_eq!(changed(&|list| list[16] = 3), Err(ListError::Malformed), "an unknown kind");
    let many = |count: u32| -> Vec<Sources> {
        (0..count).map(|n| Sources { delegation: Some(id(n)), ..of(None, false, &["192.0.2.0/28"]) }).collect()
    };
    let (list, _) = sign_whole(&key_server(), 5, now().unix, &[], &many(MAX_SOURCES as u32));
    assert_eq!(open(&list).map(|list| list.sources.len()), Ok(MAX_SOURCES));
    let (list, _) = sign_whole(&key_server(), 5, now().unix, &[], &many(MAX_SOURCES as u32 + 1));
    assert_eq!(open(&list), Err(ListError::TooMany));
    let prefixes: Vec<String> = (0..17).map(|n| format!("10.0.{n}.0/24")).collect();
    let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    let (list, _) = sign_whole(&key_server(), 5, now().unix, &[], &[of(None, false, &prefixes)]);
    assert_eq!(open(&list), Err(ListError::Malformed), "more than 16 of a payer");
}

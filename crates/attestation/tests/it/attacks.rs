//! The published attacks on keychain attestations, and what the standard chain makes of them.
//!
//! KCX-03: a sibling's name, a leaked key, cut and paste, a path cut short on the standard chain: invalid.
//! KCX-07: the attribute stripped: strict, prefer, unlisted: invalid, a reason of its own, unattested.
//! KCX-08: a leaf's suites or least strength changed in flight; a suite below it: refused.
//! KCX-09: expired, not yet valid, clocks 10 minutes and a day off: by rule; doubt is said, and our own clock doubted
//! when most origins disagree with it.
//! KCX-14: two ASes both shown as 23456: neither passes for the other.
//! KCX-40: expired chains of many origins sent again, hops for a minute: our clock is not doubted, and still is when it
//! is two days fast.

use crate::common::network::{NOW, Network, p, pair};
use wayleave_attestation::chain::{Attestation, Hop};
use wayleave_attestation::clock_doubt::{ClockDoubt, ClockWatch};
use wayleave_attestation::grant::Grant;
use wayleave_attestation::leaf::{Leaf, Tree};
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{AttestedSince, Strictness, Vrp};
use wayleave_attestation::report::{KeyOrigin, Lack, Problem, Report};
use wayleave_attestation::sign::{
    self, AttestationError, Draft, KeyPair, KeyRing, Origination, Recipient, Signatures, Speaker,
};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::validate::{Carried, Context, Route, validate};
use wayleave_core::{Asn, Prefix, UnixTime, VerdictKind};
use wayleave_crypto::secret::Seed;

const ED25519: &[SuiteId] = &[SuiteId::KcEd25519];

fn prefixes() -> Vec<Prefix> {
    vec![p("192.0.2.0/24")]
}

fn travel(ases: &[u32]) -> Path {
    Path::from_travel(&ases.iter().copied().map(Asn).collect::<Vec<_>>())
}

/// Octets of an origin's hop and of a later one, with `kc-ed25519` and a leaf of one key.
const FIRST_HOP: usize = 105;
const LATER_HOP: usize = 109;

fn problem(report: &Report) -> Problem {
    report.broken.as_ref().unwrap_or_else(|| panic!("{report:?}")).problem
}

/// What an adversary makes who signs as `asn` with `pair`, whatever the leaf before says of them.
fn forge(network: &Network, value: &[u8], path: &Path, asn: u32, pair: KeyPair, next: u32) -> Vec<u8> {
    let mut ring = KeyRing { pairs: vec![pair] };
    let received = Attestation::decode(value).expect("decodes");
    let leaf = network.leaf(Asn(next));
    let onward = Recipient::Neighbour(Asn(next), leaf.view());
    let exports: Vec<Prefix> = received.prefixes().filter(|prefix| received.is_exported(prefix)).collect();
    sign::extend(&received, path, &exports, &network.speaker(Asn(asn), 1), &mut ring, onward).expect("signs").value
}

#[test]
fn a_sibling_cannot_sign_as_its_sibling() {
    // AS 1 announces to 2 and 3. AS 2 wants a path through 3.
    let mut network = Network::new(5, ED25519);
    let (to_2, _) = network.chain(&prefixes(), &[1], 2);
    let (to_3, _) = network.chain(&prefixes(), &[1], 3);
    let as_itself = forge(&network, &to_2, &travel(&[1]), 2, pair(Asn(2), SuiteId::KcEd25519, 0), 5);
    assert_eq!(network.validate(&prefixes(), &travel(&[1, 2]), &as_itself, 5).kind, VerdictKind::Valid);
    // With the hop that was meant for itself, under the sibling's number.
    let report = network.validate(&prefixes(), &travel(&[1, 3]), &as_itself, 5);
    assert_eq!(problem(&report), Problem::BadSignature);
    // With the hop that was meant for the sibling, which it overheard, and its own key.
    let mut forged = forge(&network, &to_2, &travel(&[1]), 2, pair(Asn(2), SuiteId::KcEd25519, 0), 5);
    let (head, tail) = (to_3.len(), to_2.len());
    assert_eq!(head, tail);
    let last = forged[tail..].to_vec();
    forged.truncate(0);
    forged.extend_from_slice(&to_3);
    forged.extend_from_slice(&last);
    let count = forged.len() - last.len() - FIRST_HOP - 1;
    forged[count] = 2;
    let report = network.validate(&prefixes(), &travel(&[1, 3]), &forged, 5);
    assert_eq!(problem(&report), Problem::BadSignature);
}

#[test]
fn a_leaked_key_signs_for_no_other_neighbour() {
    // AS 4 is far: it received 1 2 3, and has the leaked key of AS 2. AS 5 is a neighbour of AS 1 as well.
    let mut network = Network::new(6, ED25519);
    let (to_5, _) = network.chain(&prefixes(), &[1], 5);
    let leaked = || pair(Asn(2), SuiteId::KcEd25519, 0);
    let received = Attestation::decode(&to_5).expect("decodes");
    let mut ring = KeyRing { pairs: vec![leaked()] };
    let leaf = network.leaf(Asn(6));
    let onward = Recipient::Neighbour(Asn(6), leaf.view());
    let refused = sign::extend(&received, &travel(&[1]), &prefixes(), &network.speaker(Asn(5), 1), &mut ring, onward);
    assert_eq!(refused.err(), Some(AttestationError::NotOurs(Asn(5))));
    // The paper's mode would take 1 5 4 and 1 2 4 alike; here the key is good for AS 2's own place alone.
    let (to_2, _) = network.chain(&prefixes(), &[1], 2);
    let as_2 = forge(&network, &to_2, &travel(&[1]), 2, leaked(), 6);
    for path in [&[1, 5][..], &[1, 4], &[1, 2, 4], &[1, 5, 2], &[2]] {
        let report = network.validate(&prefixes(), &travel(path), &as_2, 6);
        assert_eq!(report.kind, VerdictKind::Invalid, "{path:?} {report:?}");
    }
    // Once AS 2 has registered another key, the leaked one is good for nothing.
    let mut registered = Network::new(6, ED25519);
    registered.nodes.get_mut(&Asn(2)).expect("AS 2").ring.pairs = vec![pair(Asn(2), SuiteId::KcEd25519, 1)];
    registered.register(Asn(2));
    let report = registered.validate(&prefixes(), &travel(&[1, 2]), &as_2, 6);
    assert_eq!(problem(&report), Problem::KeyNotRegistered);
}

#[test]
fn parts_of_two_attestations_make_none() {
    let mut network = Network::new(5, ED25519);
    let other = vec![p("192.0.2.0/25")];
    let (value, path) = network.chain(&prefixes(), &[1, 2], 3);
    let (of_other, _) = network.chain(&other, &[1, 2], 3);
    // The signature of one list with the other list.
    let (head, other_head) = (value.len() - FIRST_HOP - LATER_HOP, of_other.len() - FIRST_HOP - LATER_HOP);
    let mut pasted = of_other[..other_head].to_vec();
    pasted.extend_from_slice(&value[head..]);
    assert_eq!(problem(&network.validate(&other, &path, &pasted, 3)), Problem::BadSignature);
    // The UPDATE's prefix changed, the list left as it is.
    assert_eq!(
        problem(&network.validate(&other, &path, &value, 3)),
        Problem::PrefixNotSigned { prefix: p("192.0.2.0/25") }
    );
    // The last hop of another chain.
    let mut pasted = value[..head + FIRST_HOP].to_vec();
    pasted.extend_from_slice(&of_other[other_head + FIRST_HOP..]);
    assert_eq!(problem(&network.validate(&prefixes(), &path, &pasted, 3)), Problem::BadSignature);
}

#[test]
fn a_path_cannot_be_cut_short() {
    let mut network = Network::new(6, ED25519);
    let (value, _) = network.chain(&prefixes(), &[1, 2, 3], 4);
    let head = value.len() - FIRST_HOP - 2 * LATER_HOP;
    let cut = |hops: usize| {
        let mut cut = value[..head + FIRST_HOP + (hops - 1) * LATER_HOP].to_vec();
        cut[head - 1] = hops as u8;
        cut
    };
    // AS 4 drops the hops of 2 and 3, and claims a path of its own.
    for (hops, path) in [(1, &[1, 4][..]), (1, &[1, 2, 4]), (2, &[1, 2, 4]), (2, &[1, 2, 3, 4]), (3, &[1, 2, 3, 4])] {
        let report = network.validate(&prefixes(), &travel(path), &cut(hops), 6);
        assert_eq!(report.kind, VerdictKind::Invalid, "{hops} {path:?} {report:?}");
    }
    // What was given to AS 2 must have been signed by AS 2: it had a key.
    let report = network.validate(&prefixes(), &travel(&[1, 2, 4]), &cut(1), 6);
    assert_eq!(problem(&report), Problem::CapableSkipped { asn: Asn(2) });
}

#[test]
fn the_origins_record_decides_about_a_stripped_route() {
    let mut network = Network::new(3, ED25519);
    let strip = |network: &Network| network.judge(&prefixes(), &travel(&[1, 2]), Carried::Absent, 3);
    let report = strip(&network);
    assert_eq!((report.kind, report.lack), (VerdictKind::Unattested, Some(Lack::NoAttribute)));
    let record = |strictness| AttestedSince { since: NOW - 1, strictness, not_after: NOW + 1000 };
    network.view.set_attested_since(Asn(1), record(Strictness::Prefer));
    let report = strip(&network);
    assert_eq!((report.kind, report.lack), (VerdictKind::Unattested, Some(Lack::PreferredMissing)));
    network.view.set_attested_since(Asn(1), record(Strictness::Strict));
    assert_eq!(problem(&strip(&network)), Problem::Stripped);
    // So is what cannot be checked: a later version, an aggregate, a lost AS number.
    let mut later = network.chain(&prefixes(), &[1, 2], 3).0;
    later[0] = 3;
    assert_eq!(problem(&network.validate(&prefixes(), &travel(&[1, 2]), &later, 3)), Problem::Stripped);
    // Before its time the record says nothing, and the report says when to look again.
    network.now = NOW - 10;
    let report = strip(&network);
    assert_eq!((report.kind, report.until.map(|until| until.secs())), (VerdictKind::Unattested, Some(NOW - 1)));
}

#[test]
fn a_suite_taken_out_of_a_leaf_or_below_its_strength_is_refused() {
    let mut network = Network::new(4, ED25519);
    let mut weak = network.leaf(Asn(2)).view().octets().to_vec();
    // AS 2's key in a leaf that asks for 240 bits.
    weak[0] |= 0x0f;
    let (leaf, _) = wayleave_attestation::leaf::LeafView::decode(&weak).expect("a leaf");
    let value = network.send_leaf(&prefixes(), &Path::default(), &[], Asn(1), Asn(2), &leaf.to_leaf());
    let received = Attestation::decode(&value).expect("decodes");
    let ring = &mut network.nodes.get_mut(&Asn(2)).expect("AS 2").ring;
    let onward_leaf = Leaf::keyless();
    let onward = Recipient::Neighbour(Asn(3), onward_leaf.view());
    let speaker = sign::Speaker { asn: Asn(2), prepend: 1, not_before: NOW, lifetime: 60 };
    let refused = sign::extend(&received, &travel(&[1]), &prefixes(), &speaker, ring, onward);
    assert_eq!(refused.err(), Some(AttestationError::NotOurs(Asn(2))), "an honest signer does not");
    // In flight, somebody lowers the least strength, or puts a suite of their own into the list.
    let (honest, path) = network.chain(&prefixes(), &[1, 2], 3);
    let head = honest.len() - FIRST_HOP - LATER_HOP;
    let leaf_head = head + 2 + 2 + 2;
    assert_eq!(honest[leaf_head], 1 << 5 | 7, "the first hop's leaf");
    let mut lowered = honest.clone();
    lowered[leaf_head] = 1 << 5 | 1;
    assert_eq!(problem(&network.validate(&prefixes(), &path, &lowered, 3)), Problem::BadSignature);
    let mut renamed = honest.clone();
    renamed[leaf_head + 2] = SuiteId::KcHbs as u8;
    assert_eq!(problem(&network.validate(&prefixes(), &path, &renamed, 3)), Problem::KeyNotListed);
    // A verifier that asks for more takes nothing less.
    network.rules.least_strength = 192;
    let downgrade = Problem::Downgrade { have: 128, least: 192 };
    assert_eq!(problem(&network.validate(&prefixes(), &path, &honest, 3)), downgrade);
}

#[test]
fn times_are_validated_by_rule_and_doubt_of_our_clock_is_reported() {
    let mut network = Network::new(3, ED25519);
    let (value, path) = network.chain(&prefixes(), &[1, 2], 3);
    let day = 24 * 3600;
    let mut at = |now: u64| {
        network.now = now;
        network.validate(&prefixes(), &path, &value, 3)
    };
    let valid = at(NOW);
    assert_eq!((valid.kind, valid.in_doubt), (VerdictKind::Valid, false));
    assert_eq!(valid.until.map(|until| until.secs()), Some(NOW + day + 1));
    for minutes in [-10_i64, 10] {
        let report = at(NOW.saturating_add_signed(minutes * 60));
        assert_eq!((report.kind, report.in_doubt), (VerdictKind::Valid, minutes < 0));
    }
    let early = at(NOW - 601);
    assert_eq!(problem(&early), Problem::NotYetValid);
    assert_eq!(early.until.map(|until| until.secs()), Some(NOW - 600));
    assert_eq!(problem(&at(NOW - day)), Problem::NotYetValid);
    let late = at(NOW + day + 600);
    assert_eq!((late.kind, late.in_doubt), (VerdictKind::Valid, true));
    assert_eq!(late.until.map(|until| until.secs()), Some(NOW + day + 601));
    assert_eq!(at(NOW + day + 601).kind, VerdictKind::Expired);
    assert_eq!(at(NOW + 2 * day).kind, VerdictKind::Expired);
}

#[test]
fn when_most_origins_are_wrong_about_the_time_our_clock_is_in_doubt() {
    let day = 24 * 3600;
    for (shift, expected) in [(-day, Some(ClockDoubt::Slow)), (2 * day, Some(ClockDoubt::Fast)), (0, None)] {
        let mut network = Network::new(5, ED25519);
        for asn in 1..=4 {
            network.register(Asn(asn));
            network.view.add_vrp(Vrp { prefix: prefixes()[0], max_length: 24, asn: Asn(asn) });
        }
        let chains: Vec<_> = (1..=4).map(|asn| network.chain(&prefixes(), &[asn], 5)).collect();
        network.now = NOW.saturating_add_signed(shift);
        let mut watch = ClockWatch::default();
        for (heard, (value, path)) in chains.iter().enumerate() {
            let report = network.validate(&prefixes(), path, value, 5);
            watch.observe(&report, network.clock().now);
            assert_eq!(watch.doubt(network.clock().now), expected.filter(|_| heard >= 2));
        }
        assert_eq!(watch.doubt(UnixTime(network.clock().now.0 + 3601 * 1_000_000)), None, "an hour later");
    }
    // A forger's words count for nothing.
    let mut network = Network::new(5, ED25519);
    let (mut value, path) = network.chain(&prefixes(), &[1], 5);
    value[40] ^= 1;
    network.now = NOW - 2 * day as u64;
    let mut watch = ClockWatch::default();
    (0..5).for_each(|_| watch.observe(&network.validate(&prefixes(), &path, &value, 5), network.clock().now));
    assert_eq!(watch.doubt(network.clock().now), None);
}

/// Chains that make routes expire at will, from a neighbour that wants our clock to be doubted.
#[test]
fn replays_and_hops_for_a_minute_do_not_put_our_clock_in_doubt() {
    let mut network = Network::new(6, ED25519);
    for asn in 1..=5 {
        network.register(Asn(asn));
        network.view.add_vrp(Vrp { prefix: prefixes()[0], max_length: 24, asn: Asn(asn) });
    }
    let of = |network: &mut Network, asn: u32| network.chain(&prefixes(), &[asn], 6);
    let old: Vec<_> = (1..=4).map(|asn| of(&mut network, asn)).collect();
    network.now += 2 * 24 * 3600;
    let new: Vec<_> = (1..=4).map(|asn| of(&mut network, asn)).collect();
    let mut watch = ClockWatch::default();
    let mut hear = |network: &Network, (value, path): &(Vec<u8>, Path)| {
        let report = network.validate(&prefixes(), path, value, 6);
        watch.observe(&report, network.clock().now);
        (report.kind, watch.doubt(network.clock().now))
    };
    for chain in &new {
        assert_eq!(hear(&network, chain), (VerdictKind::Valid, None));
    }
    // What they signed two days ago, again and again.
    for chain in old.iter().chain(&old) {
        assert_eq!(hear(&network, chain), (VerdictKind::Expired, None));
    }
    // The neighbour extends what they sign now by hops of one minute, and waits a while.
    let mut short = Vec::new();
    for asn in 1..=4 {
        let (value, mut path) = network.chain(&prefixes(), &[asn], 5);
        let speaker = Speaker { lifetime: 1, ..network.speaker(Asn(5), 1) };
        let leaf = network.leaf(Asn(6));
        let ring = &mut network.nodes.get_mut(&Asn(5)).expect("AS 5").ring;
        let received = Attestation::decode(&value).expect("decodes");
        let onward = Recipient::Neighbour(Asn(6), leaf.view());
        let extended = sign::extend(&received, &path, &prefixes(), &speaker, ring, onward).expect("signs");
        path.push(Asn(5), 1);
        short.push((extended.value, path));
    }
    network.now += 3600;
    for chain in &short {
        assert_eq!(hear(&network, chain), (VerdictKind::Expired, None));
    }
    // A clock that is two days fast is still noticed.
    network.now += 2 * 24 * 3600;
    let last: Vec<_> = new.iter().map(|chain| hear(&network, chain).1).collect();
    assert_eq!(last[3], Some(ClockDoubt::Fast), "{last:?}");
}

#[test]
fn two_lost_as_numbers_are_not_interchangeable() {
    // ASes 70000 and 70001 look alike, 23456, to a speaker of two octets that lost AS4_PATH.
    let mut network = Network::new(2, ED25519);
    for asn in [70_000, 70_001] {
        let pairs = vec![pair(Asn(asn), SuiteId::KcEd25519, 0)];
        network.nodes.insert(Asn(asn), crate::common::network::Node { ring: KeyRing { pairs } });
    }
    let (value, path) = network.chain(&prefixes(), &[1, 70_000], 3);
    assert_eq!(network.validate(&prefixes(), &path, &value, 3).kind, VerdictKind::Valid);
    assert_eq!(problem(&network.validate(&prefixes(), &travel(&[1, 70_001]), &value, 3)), Problem::BadSignature);
    let lost = network.validate(&prefixes(), &travel(&[1, 23_456]), &value, 3);
    assert_eq!((lost.kind, lost.lack), (VerdictKind::Unattested, Some(Lack::AsTrans)));
}

#[test]
fn loops_and_other_prepending_are_refused() {
    let mut network = Network::new(4, ED25519);
    let (value, path) = network.chain(&prefixes(), &[1, 2, 3], 4);
    assert_eq!(problem(&network.validate(&prefixes(), &path, &value, 2)), Problem::Loop { asn: Asn(2) });
    for path in [&[1, 1, 2, 3][..], &[1, 2, 2, 3], &[1, 2, 3, 3]] {
        assert_eq!(problem(&network.validate(&prefixes(), &travel(path), &value, 4)), Problem::Prepend);
    }
    // Prepending that was signed is valid, and only as often as it was signed.
    let leaf = network.leaf(Asn(4));
    for prepend in [3, 15, 16, 255] {
        let speaker = network.speaker(Asn(1), prepend);
        let ring = &mut network.nodes.get_mut(&Asn(1)).expect("AS 1").ring;
        let origination = Origination { prefixes: &prefixes(), sequence: 1 };
        let onward = Recipient::Neighbour(Asn(4), leaf.view());
        let value = sign::originate(&origination, &speaker, ring, onward).expect("signs").value;
        let mut path = Path::default();
        path.push(Asn(1), prepend);
        assert_eq!(network.validate(&prefixes(), &path, &value, 4).kind, VerdictKind::Valid);
        path.push(Asn(1), 1);
        assert_eq!(problem(&network.validate(&prefixes(), &path, &value, 4)), Problem::Prepend);
    }
}

#[test]
fn a_legacy_as_leaves_a_gap_that_a_registered_one_closes() {
    // 100 and 101 are legacy. 3 re-anchors.
    let mut network = Network::new(5, ED25519);
    network.register(Asn(3));
    let (value, path) = network.chain(&prefixes(), &[1, 2, 100, 101, 3, 4], 5);
    let report = network.validate(&prefixes(), &path, &value, 5);
    assert_eq!((report.kind, report.lack), (VerdictKind::Gap, Some(Lack::Gap)));
    let hops: Vec<(u32, u8, bool)> = report.hops.iter().map(|hop| (hop.asn.0, hop.skipped, hop.proved)).collect();
    assert_eq!(hops, [(1, 0, true), (2, 0, true), (3, 2, true), (4, 0, true)]);
    // What the re-anchoring AS saw of the gap is signed; the AS named before the gap is too.
    for path in [&[1, 2, 100, 102, 3, 4][..], &[1, 2, 99, 101, 3, 4]] {
        let report = network.validate(&prefixes(), &travel(path), &value, 5);
        assert_eq!(problem(&report), Problem::BadSignature, "{path:?}");
    }
    // With an entry less the hop falls to AS 4, which registered no key: nothing after AS 2 is proved.
    let report = network.validate(&prefixes(), &travel(&[1, 2, 100, 3, 4]), &value, 5);
    assert_eq!((report.hops.len(), report.tail.len()), (2, 3));
    network.register(Asn(4));
    let report = network.validate(&prefixes(), &travel(&[1, 2, 100, 3, 4]), &value, 5);
    assert_eq!(problem(&report), Problem::KeyNotRegistered);
    // Two capable ASes that meet again after one legacy AS each name it; without a gap nothing is lost.
    let (tail, path) = network.chain(&prefixes(), &[1, 2, 100, 101], 5);
    let report = network.validate(&prefixes(), &path, &tail, 5);
    assert_eq!((report.kind, report.tail.as_slice()), (VerdictKind::Gap, &[Asn(100), Asn(101)][..]));
}

#[test]
fn an_anchor_without_a_registered_key_proves_nothing_after_the_gap() {
    let mut network = Network::new(5, ED25519);
    network.nodes.get_mut(&Asn(3)).expect("AS 3").ring.pairs[0].registered = true;
    let (value, path) = network.chain(&prefixes(), &[1, 2, 100, 3, 4], 5);
    let report = network.validate(&prefixes(), &path, &value, 5);
    assert_eq!((report.kind, report.lack), (VerdictKind::Gap, Some(Lack::AnchorUnregistered { asn: Asn(3) })));
    assert_eq!(report.hops.len(), 2);
    assert_eq!(report.tail, [Asn(100), Asn(3), Asn(4)]);
}

#[test]
fn a_keyless_neighbour_that_is_registered_closes_the_chain_without_a_gap() {
    // The session of 2 and 3 exchanged no keys: 2 names 3, and 3 signs with its registered key.
    let mut network = Network::new(4, ED25519);
    network.register(Asn(3));
    let (to_2, _) = network.chain(&prefixes(), &[1], 2);
    let to_3 = network.send_leaf(&prefixes(), &travel(&[1]), &to_2, Asn(2), Asn(3), &Leaf::keyless());
    let to_4 = network.send(&prefixes(), &travel(&[1, 2]), &to_3, Asn(3), Asn(4));
    let report = network.validate(&prefixes(), &travel(&[1, 2, 3]), &to_4, 4);
    assert_eq!(report.kind, VerdictKind::Valid);
    assert!(to_4.len() <= to_2.len() + 2 * LATER_HOP, "{} of {}", to_4.len(), to_2.len());
}

#[test]
fn an_issuer_cannot_name_a_key_of_its_own_for_a_registered_as() {
    let mut network = Network::new(4, ED25519);
    let (to_2, _) = network.chain(&prefixes(), &[1], 2);
    // AS 2 names a key of its own as AS 3's, and signs for it.
    let own = pair(Asn(2), SuiteId::KcEd25519, 9);
    let leaf = Leaf::new(&[own.leaf_key()], 112, false).expect("a leaf");
    let to_3 = network.send_leaf(&prefixes(), &travel(&[1]), &to_2, Asn(2), Asn(3), &leaf);
    let forged = forge(&network, &to_3, &travel(&[1, 2]), 3, own, 4);
    let path = travel(&[1, 2, 3]);
    let report = network.validate(&prefixes(), &path, &forged, 4);
    assert_eq!(report.kind, VerdictKind::Valid, "the price of asking no PKI of the middle");
    assert_eq!(report.could_have_signed(2).collect::<Vec<_>>(), [Asn(3), Asn(2), Asn(1)]);
    network.register(Asn(3));
    let report = network.validate(&prefixes(), &path, &forged, 4);
    assert_eq!(problem(&report), Problem::KeyNotRegistered);
    assert_eq!(report.broken.expect("broken").asn, Some(Asn(3)));
}

#[test]
fn a_granted_key_is_its_issuers_too_and_counts_for_no_registered_as() {
    let mut network = Network::new(4, ED25519);
    let (to_2, _) = network.chain(&prefixes(), &[1], 2);
    // AS 2 makes the pair for AS 3 and hands it over.
    let octets = Grant::new(Asn(2), Asn(3), &pair(Asn(2), SuiteId::KcEd25519, 7)).expect("granted").encode();
    let granted = Grant::decode(&octets, Asn(2), Asn(3), false).expect("taken");
    let leaf = Leaf::new(&[granted.leaf_key()], 112, true).expect("a leaf");
    let to_3 = network.send_leaf(&prefixes(), &travel(&[1]), &to_2, Asn(2), Asn(3), &leaf);
    let to_4 = forge(&network, &to_3, &travel(&[1, 2]), 3, granted, 4);
    let report = network.validate(&prefixes(), &travel(&[1, 2, 3]), &to_4, 4);
    assert_eq!((report.kind, report.hops[2].key), (VerdictKind::Valid, KeyOrigin::Granted));
    assert_eq!(report.could_have_signed(2).collect::<Vec<_>>(), [Asn(3), Asn(2), Asn(1)]);
    network.register(Asn(3));
    let report = network.validate(&prefixes(), &travel(&[1, 2, 3]), &to_4, 4);
    assert_eq!(problem(&report), Problem::KeyNotRegistered);
}

#[test]
fn what_the_format_cannot_say_is_not_signed() {
    let mut network = Network::new(2, ED25519);
    let leaf = network.leaf(Asn(2));
    let speaker = network.speaker(Asn(1), 1);
    let mut originate = |prefixes: &[Prefix], speaker: sign::Speaker| {
        let ring = &mut network.nodes.get_mut(&Asn(1)).expect("AS 1").ring;
        let onward = Recipient::Neighbour(Asn(2), leaf.view());
        sign::originate(&Origination { prefixes, sequence: 1 }, &speaker, ring, onward).err()
    };
    let many: Vec<Prefix> = (0..33).map(|i| p(&format!("10.{i}.0.0/16"))).collect();
    assert_eq!(originate(&many[..32], speaker), None);
    for list in [&many[..], &[], &[many[0], many[0]], &[many[0], p("2001:db8::/32")]] {
        assert_eq!(originate(list, speaker), Some(AttestationError::Prefixes));
    }
    assert!(originate(&many[..1], sign::Speaker { prepend: 0, ..speaker }).is_some());
    assert!(originate(&many[..1], sign::Speaker { lifetime: 0, ..speaker }).is_some());
    let lists = sign::lists(&[&many[..], &[p("2001:db8::/32")]].concat());
    assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [32, 1, 1]);
}

#[test]
fn suspects_are_those_after_the_last_proved_hop() {
    let mut network = Network::new(6, ED25519);
    let (mut value, path) = network.chain(&prefixes(), &[1, 2, 3, 4], 5);
    let third = value.len() - LATER_HOP - 1;
    value[third] ^= 1;
    let suspects = |network: &Network, path: &Path, value: &[u8]| {
        let broken = network.validate(&prefixes(), path, value, 5).broken.expect("broken");
        (broken.problem, broken.asn, broken.suspects)
    };
    let of_third = (Problem::BadSignature, Some(Asn(3)), vec![Asn(3), Asn(4)]);
    assert_eq!(suspects(&network, &path, &value), of_third);
    // A fault of form is found before any signature is looked at; `explain` looks at those before it.
    let (value, _) = network.chain(&prefixes(), &[1, 2, 3, 4], 5);
    let path = travel(&[1, 2, 3, 3, 4]);
    let everyone = vec![Asn(1), Asn(2), Asn(3), Asn(4)];
    assert_eq!(suspects(&network, &path, &value), (Problem::Prepend, Some(Asn(3)), everyone));
    network.rules.explain = true;
    assert_eq!(suspects(&network, &path, &value), (Problem::Prepend, Some(Asn(3)), vec![Asn(3), Asn(4)]));
}

#[test]
fn any_subset_of_the_signed_list_is_valid_and_nothing_else() {
    let mut network = Network::new(3, ED25519);
    let all: Vec<Prefix> = (0..30).map(|i| p(&format!("10.{i}.0.0/16"))).collect();
    let (value, path) = network.chain(&all, &[1, 2], 3);
    for prefix in &all {
        assert_eq!(network.validate(&[*prefix], &path, &value, 3).kind, VerdictKind::Valid);
    }
    assert_eq!(network.validate(&[all[3], all[17]], &path, &value, 3).kind, VerdictKind::Valid);
    for stranger in ["10.30.0.0/16", "10.1.0.0/17", "10.0.0.0/8"] {
        assert_eq!(network.validate(&[all[3], p(stranger)], &path, &value, 3).kind, VerdictKind::Invalid);
    }
}

#[test]
fn who_may_originate_decides_for_each_prefix() {
    let mut network = Network::new(3, ED25519);
    let all = vec![p("10.1.0.0/16"), p("172.16.0.0/12")];
    let (value, path) = network.chain(&all, &[1, 2], 3);
    let report = network.validate(&all, &path, &value, 3);
    assert_eq!(report.verdict_of(&all[0]).kind, VerdictKind::Valid);
    assert_eq!(report.verdict_of(&all[1]).kind, VerdictKind::Unattested);
    assert_eq!((report.kind, report.lack), (VerdictKind::Unattested, Some(Lack::OriginUnknown { prefix: all[1] })));
    // AS 2 is registered, and no record lets it announce AS 1's prefixes.
    network.register(Asn(2));
    let (hijack, path) = network.chain(&all[..1], &[2], 3);
    let report = network.validate(&all[..1], &path, &hijack, 3);
    assert_eq!(problem(&report), Problem::OriginNotAuthorised { prefix: all[0] });
}

/// What AS 2, which has more than 32 neighbours, sends of `routes` to each of `receivers`: one signature for all.
fn burst(network: &mut Network, routes: &[&[Prefix]], receivers: &[u32]) -> Vec<Vec<u8>> {
    let received: Vec<Vec<u8>> = routes.iter().map(|prefixes| network.chain(prefixes, &[1], 2).0).collect();
    let leaves: Vec<Leaf> = receivers.iter().map(|asn| network.leaf(Asn(*asn))).collect();
    let speaker = network.speaker(Asn(2), 1);
    let ring = &mut network.nodes.get_mut(&Asn(2)).expect("AS 2").ring;
    let mut drafts = Vec::new();
    for (value, prefixes) in received.iter().zip(routes) {
        let received = Attestation::decode(value).expect("decodes");
        for (asn, leaf) in receivers.iter().zip(&leaves) {
            let onward = Recipient::Neighbour(Asn(*asn), leaf.view());
            let path = travel(&[1]);
            drafts.push(Draft::extension(&received, &path, prefixes, &speaker, ring, onward).expect("may sign"));
        }
    }
    let salts = Seed::new([3; 32]);
    let signed = sign::sign_all(drafts, ring, Signatures::Burst(&salts));
    signed.into_iter().map(|signed| signed.expect("signs").value).collect()
}

#[test]
fn one_signature_serves_many_routes_and_neighbours_and_is_right_for_each_alone() {
    let mut network = Network::new(3, ED25519);
    let (first, second) = (prefixes(), vec![p("192.0.2.128/25")]);
    let receivers: Vec<u32> = (3..103).collect();
    let values = burst(&mut network, &[&first, &second], &receivers);
    let mut signatures = std::collections::BTreeSet::new();
    for (value, prefixes) in values.iter().zip([&first, &second].into_iter().flat_map(|list| [list; 100])) {
        let number = values.iter().position(|other| other == value).expect("one of them");
        let receiver = receivers[number % 100];
        let last = Attestation::decode(value).expect("decodes").last_hop().expect("a hop").signature.to_vec();
        signatures.insert(last);
        assert_eq!(network.validate(prefixes, &travel(&[1, 2]), value, receiver).kind, VerdictKind::Valid);
        let report = network.validate(prefixes, &travel(&[1, 2]), value, receiver + 1);
        assert_eq!(problem(&report), Problem::BadSignature);
    }
    assert_eq!(signatures.len(), 1);
    let onward = network.send(&first, &travel(&[1, 2]), &values[0], Asn(3), Asn(9));
    assert_eq!(network.validate(&first, &travel(&[1, 2, 3]), &onward, 9).kind, VerdictKind::Valid);
}

#[test]
fn an_opening_of_another_route_proves_no_export() {
    // AS 2 gives AS 3 the first route alone, and AS 4 both.
    let mut network = Network::new(5, ED25519);
    let (given, withheld) = (prefixes(), vec![p("192.0.2.128/25")]);
    let to_3 = burst(&mut network, &[&given], &[3, 4]).swap_remove(0);
    let to_4 = burst(&mut network, &[&given, &withheld], &[4, 5]).swap_remove(2);
    let (to_3, to_4) = (Attestation::decode(&to_3).expect("decodes"), Attestation::decode(&to_4).expect("decodes"));
    assert_eq!(network.validate(&withheld, &travel(&[1, 2]), to_4.octets(), 4).kind, VerdictKind::Valid);
    let (own, other) = (to_3.last_hop().expect("a hop"), to_4.last_hop().expect("a hop"));
    // AS 3 puts its leaf, its opening, or both into the hop of the route that it was not given.
    let before = &to_4.octets()[..to_4.octets().len() - other.octets.len()];
    for hop in [
        Hop { next: own.next, ..other },
        Hop { next: own.next, burst: own.burst, ..other },
        Hop { next: own.next, burst: own.burst, signature: own.signature, ..other },
        Hop { next: own.next, burst: None, ..other },
        own,
    ] {
        let mut forged = before.to_vec();
        hop.encode(1, &mut forged);
        let report = network.validate(&withheld, &travel(&[1, 2]), &forged, 3);
        assert_eq!(problem(&report), Problem::BadSignature, "{hop:?}");
        let onward = forge(&network, &forged, &travel(&[1, 2]), 3, pair(Asn(3), SuiteId::KcEd25519, 0), 5);
        let report = network.validate(&withheld, &travel(&[1, 2, 3]), &onward, 5);
        assert_eq!(problem(&report), Problem::BadSignature, "{hop:?}");
    }
}

#[test]
fn a_prefix_that_a_transit_filtered_is_invalid_behind_it() {
    let mut network = Network::new(4, ED25519);
    let all = [p("192.0.2.0/25"), p("192.0.2.128/25")];
    let (to_2, _) = network.chain(&all, &[1], 2);
    // AS 2 passes on the first prefix alone, and AS 3 all that it may.
    let to_3 = network.send(&all[..1], &travel(&[1]), &to_2, Asn(2), Asn(3));
    assert_eq!(network.validate(&all[..1], &travel(&[1, 2]), &to_3, 3).kind, VerdictKind::Valid);
    let report = network.validate(&all[1..], &travel(&[1, 2]), &to_3, 3);
    assert_eq!(problem(&report), Problem::PrefixNotExported { prefix: all[1] });
    let suspects = report.broken.as_ref().map(|broken| broken.suspects.clone());
    assert_eq!(suspects, Some(vec![Asn(1), Asn(2)]), "unproved without `explain`");
    // An honest AS 3 cannot sign it, and a hop that says more than the hop before is refused.
    let received = Attestation::decode(&to_3).expect("decodes");
    let (leaf, speaker) = (network.leaf(Asn(4)), network.speaker(Asn(3), 1));
    let ring = &mut network.nodes.get_mut(&Asn(3)).expect("AS 3").ring;
    let onward = Recipient::Neighbour(Asn(4), leaf.view());
    let refused = sign::extend(&received, &travel(&[1, 2]), &all, &speaker, ring, onward);
    assert_eq!(refused.err(), Some(AttestationError::NotExported));
    let mut more = to_3.clone();
    let hop = received.last_hop().expect("a hop");
    more.truncate(to_3.len() - hop.octets.len());
    Hop { exports: received.head().listed(), ..hop }.encode(1, &mut more);
    assert_eq!(problem(&network.validate(&all, &travel(&[1, 2]), &more, 3)), Problem::BadSignature);
    let onward = forge(&network, &more, &travel(&[1, 2]), 3, pair(Asn(3), SuiteId::KcEd25519, 0), 4);
    assert_eq!(problem(&network.validate(&all[1..], &travel(&[1, 2, 3]), &onward, 4)), Problem::BadSignature);
}

#[test]
fn at_an_exchange_one_value_serves_all_slots() {
    let mut network = Network::new(5, ED25519);
    let slots: Vec<(Asn, Leaf)> = [4, 2, 3, 77].iter().map(|asn| (Asn(*asn), network.leaf(Asn(*asn)))).collect();
    let directory = Tree::directory(&slots).expect("a tree");
    let speaker = network.speaker(Asn(1), 1);
    let origination = Origination { prefixes: &prefixes(), sequence: 1 };
    let ring = &mut network.nodes.get_mut(&Asn(1)).expect("AS 1").ring;
    let value = sign::originate(&origination, &speaker, ring, Recipient::Directory(&directory)).expect("signs").value;
    let older = Tree::directory(&slots[1..]).expect("a tree");
    let directories = [older, directory.clone()];
    let path = travel(&[1]);
    let judge = |directories: &[Tree], receiver: u32| {
        let context = Context { view: &network.view, rules: &network.rules, clock: network.clock(), directories };
        let carried = Carried::Value(&value);
        validate(&context, &Route { prefixes: &prefixes(), path: &path, carried, receiver: Asn(receiver) })
    };
    for receiver in [2, 3, 4, 77] {
        assert_eq!(judge(&directories, receiver).kind, VerdictKind::Valid);
    }
    assert_eq!(problem(&judge(&directories[..1], 2)), Problem::BadSignature, "another directory");
    assert_eq!(judge(&directories, 5).lack, Some(Lack::DirectoryUnknown), "not a member");
    assert_eq!(judge(&[], 2).lack, Some(Lack::DirectoryUnknown));
    // A member opens its leaf before it passes the route on.
    let opened = sign::open(&Attestation::decode(&value).expect("decodes"), &directory, Asn(3)).expect("a member");
    let onward = network.send(&prefixes(), &travel(&[1]), &opened, Asn(3), Asn(9));
    assert_eq!(network.validate(&prefixes(), &travel(&[1, 3]), &onward, 9).kind, VerdictKind::Valid);
}

#[test]
fn what_came_in_at_one_border_router_is_signed_at_another() {
    // Both proxies of AS 2 hold its key; the value crosses iBGP unchanged, with the path as it came.
    let mut network = Network::new(3, ED25519);
    let (value, path) = network.chain(&prefixes(), &[1], 2);
    assert_eq!(network.validate(&prefixes(), &path, &value, 2).kind, VerdictKind::Valid);
    let other_router = forge(&network, &value, &path, 2, pair(Asn(2), SuiteId::KcEd25519, 0), 3);
    assert_eq!(network.validate(&prefixes(), &travel(&[1, 2]), &other_router, 3).kind, VerdictKind::Valid);
}

#[test]
fn a_malformed_value_is_invalid_and_a_later_version_unattested() {
    let mut network = Network::new(3, ED25519);
    let (value, path) = network.chain(&prefixes(), &[1, 2], 3);
    for end in 0..value.len() {
        assert_eq!(problem(&network.validate(&prefixes(), &path, &value[..end], 3)), Problem::Malformed);
    }
    assert_eq!(problem(&network.judge(&prefixes(), &path, Carried::Malformed, 3)), Problem::Malformed);
    let mut older = value.clone();
    older[0] = 1;
    assert_eq!(problem(&network.validate(&prefixes(), &path, &older, 3)), Problem::Malformed, "version 1 is refused");
    let mut later = value.clone();
    later[0] = 3;
    assert_eq!(network.validate(&prefixes(), &path, &later, 3).lack, Some(Lack::Version));
}

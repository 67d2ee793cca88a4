//! Exchanges whose members attest: what is known of origins, and what a test reads off them.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::member::MemberAttestationEvent;
use wayleave_attestation::pipeline::ProcessEvent;
use wayleave_attestation::pki::{AttestedSince, Strictness, View, Vrp};
use wayleave_attestation::sign::{self, Origination, Recipient, Speaker, endorse};
use wayleave_bgp::{AttributeCode, AttributeFlags, Attributes};
use wayleave_core::{Asn, Prefix, VerdictKind};
use wayleave_lab::sim::attestation::{attest_ring, registered_key};
use wayleave_lab::sim::{Setup, Sim, member_asn};

use super::{LIMIT, route};

pub const ATTRIBUTE: AttributeCode = AttributeCode(TYPE_CODE);
pub const SEED: u64 = 7;
/// An AS behind a member, with a key of its own.
pub const CUSTOMER: u32 = 64_500;
/// Slot 0 belongs to a network that does not attest, and that nobody should believe; it wins every tie.
pub const LEGACY: u32 = 0;

pub fn p(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// The prefix that belongs to the member in `slot`.
pub fn own(slot: u32) -> String {
    format!("20.{slot}.0.0/16")
}

/// Members 1 to 4 and the customer registered their keys; each may announce what is its own.
pub fn known(seed: u64) -> View {
    let mut view = View::new(1);
    for asn in (1..8).map(member_asn).chain([Asn(CUSTOMER)]) {
        view.add_key(asn, registered_key(seed, asn));
    }
    for slot in 0..8 {
        view.add_vrp(Vrp { prefix: p(&own(slot)), max_length: 24, asn: member_asn(slot) });
    }
    view.add_vrp(Vrp { prefix: p("30.0.0.0/8"), max_length: 24, asn: Asn(CUSTOMER) });
    let not_after = 2_000_000_000;
    let since = AttestedSince { since: 1_600_000_000, strictness: Strictness::Strict, not_after };
    view.set_attested_since(member_asn(2), since);
    view
}

pub fn setup(members: usize, attesting: &[u32]) -> Setup {
    let tick = Duration::from_millis(50);
    Setup { members, seed: SEED, tick, attesting: attesting.iter().copied().collect(), ..Setup::default() }
}

pub fn started(setup: Setup) -> Sim {
    let seed = setup.seed;
    let mut sim = Sim::new(setup);
    sim.set_view(known(seed));
    rest(&mut sim);
    sim
}

pub fn five() -> Sim {
    started(setup(5, &[1, 2, 3, 4]))
}

pub fn rest(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
}

pub fn value(route: &Attributes) -> Option<Vec<u8>> {
    route.get(ATTRIBUTE).map(|attribute| attribute.value.to_vec())
}

pub fn with_value(route: &Attributes, value: &[u8]) -> Attributes {
    let mut edit = route.edit();
    edit.remove(ATTRIBUTE).set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, value);
    edit.finish()
}

/// Who announced the route that the member in `slot` has.
pub fn announcer(sim: &Sim, slot: u32, prefix: &str) -> Option<Asn> {
    sim.table(slot).get(&p(prefix)).and_then(|route| route.as_path().first_asn())
}

/// The verdicts of the member in `slot` by announcer.
pub fn verdicts(sim: &mut Sim, slot: u32, prefix: &str) -> BTreeMap<u32, Option<VerdictKind>> {
    let why = sim.member(slot).expect("it runs").why(p(prefix));
    why.routes
        .iter()
        .map(|why| &why.route)
        .filter_map(|route| Some((route.announcer.as_ref()?.slot, route.verdict)))
        .collect()
}

/// A chain that the customer made for the member in `slot`.
pub fn customers_route(slot: u32, prefix: &str, now: u64) -> Attributes {
    let ring = attest_ring(SEED, member_asn(slot));
    let leaf = endorse(&[ring.pairs[0].leaf_key()], 112).expect("a leaf");
    let mut keys = attest_ring(SEED, Asn(CUSTOMER));
    keys.pairs[0].registered = true;
    let origination = Origination { prefixes: &[p(prefix)], sequence: 1 };
    let speaker = Speaker { asn: Asn(CUSTOMER), prepend: 1, not_before: now, lifetime: 2 * 24 * 60 };
    let onward = Recipient::Neighbour(member_asn(slot), leaf.view());
    let made = sign::originate(&origination, &speaker, &mut keys, onward).expect("signed");
    with_value(&route(slot, &[CUSTOMER], &[]), &made.value)
}

/// What the attestation of members reported, but for the key with which each begins to sign.
pub fn amiss(sim: &Sim) -> Vec<&(u32, MemberAttestationEvent)> {
    let begins = |event: &MemberAttestationEvent| {
        matches!(event, MemberAttestationEvent::Process(ProcessEvent::OtherKeySigns { before: None, .. }))
    };
    sim.attestation_events.iter().filter(|(_, event)| !begins(event)).collect()
}

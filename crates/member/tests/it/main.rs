//! A member's proxy: what the router announces passes attestation before the exchange's half takes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::member::{MOST_MEMORY, MemberAttestationConfig};
use wayleave_attestation::pipeline::PipelineConfig;
use wayleave_attestation::pipeline::policy::Policy as AttestationPolicy;
use wayleave_attestation::pki::View;
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::Rules;
use wayleave_bgp::peer::{PeerEvent, Stale};
use wayleave_bgp::{AttributeCode, Attributes, Community, Nlri, Origin, Update};
use wayleave_core::{Afi, Asn, Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_member::{AttestationConfig, Input, MemberProxy, Output};
use wayleave_route_server::member::MemberConfig;
use wayleave_route_server::policy::{Policy, PolicyConfig};
use wayleave_route_server::versions::Speaks;

const NOW: Now = Now { instant: Instant(1_000_000_000), unix: UnixTime(1_700_000_000_000_000) };
const ASN: Asn = Asn(65_001);

fn seed(byte: u8) -> Seed {
    Seed::new([byte; 32])
}

fn attestation() -> AttestationConfig {
    let suite = SuiteId::KcEd25519;
    let key = suite::of(suite).expect("it is built in").generate(&seed(3));
    AttestationConfig {
        settings: MemberAttestationConfig {
            pipeline: PipelineConfig {
                asn: ASN,
                attribute: AttributeCode(TYPE_CODE),
                rules: Rules::default(),
                uncertainty: 600,
                lifetime: 24 * 60,
                policy: AttestationPolicy::default(),
                own: None,
                announces_unauthorised: false,
            },
            max_octets: 2048,
            most_memory: MOST_MEMORY,
        },
        key_ring: KeyRing { pairs: vec![KeyPair { suite, key, registered: false }] },
        slots_seen: HashMap::new(),
        view: Arc::new(View::new(0)),
    }
}

fn proxy(attestation: Option<AttestationConfig>) -> MemberProxy {
    let config = MemberConfig {
        exchange: "test-ix".to_owned(),
        rs_asn: Asn(64_496),
        operators: [1, 5].map(|of| SigningKey::from_seed(&seed(of)).verifying_key()),
        slot: 0,
        keys: Vec::new(),
        select_best: true,
        stale: Duration::from_secs(3600),
        settle: Duration::from_secs(5),
        lab: true,
        accept_as_set: false,
        paths: 1,
        has_role: false,
        validates: false,
        speaks: Speaks::default(),
    };
    let policy = Policy::compile(&PolicyConfig::default()).expect("the default policy");
    MemberProxy::new(config, Box::new(policy), SigningKey::from_seed(&seed(2)), &seed(4), &[], attestation, NOW)
}

/// The session comes up and the router announces one route.
fn announce(proxy: &mut MemberProxy) -> Vec<Output> {
    announce_with(proxy, &[])
}

fn announce_with(proxy: &mut MemberProxy, communities: &[Community]) -> Vec<Output> {
    let mut edit = Attributes::builder();
    edit.prepend(ASN, 1).origin(Origin::Igp).ipv4_next_hop([192, 0, 2, 1].into());
    edit.communities(communities);
    let announced = vec![Nlri::new("203.0.113.0/24".parse().expect("a prefix"))];
    let update = Update { announced, attributes: Some(edit.finish()), ..Update::default() };
    proxy.handle(Input::Router(PeerEvent::Up), NOW);
    proxy.handle(Input::Router(PeerEvent::Update(Box::new(update))), NOW);
    std::iter::from_fn(|| proxy.poll()).collect()
}

#[test]
fn without_attestation_an_update_is_cleared_at_once() {
    let mut proxy = proxy(None);
    let outputs = announce(&mut proxy);
    assert!(outputs.is_empty(), "{outputs:?}");
    assert_eq!(proxy.status().router_routes, 1);
    assert!(proxy.attestation_status().is_none());
}

#[test]
fn with_attestation_an_update_waits_for_the_members_that_it_is_signed_for() {
    let mut proxy = proxy(Some(attestation()));
    announce(&mut proxy);
    assert_eq!(proxy.status().router_routes, 0, "no member set is known to sign for");
    proxy.handle(Input::Router(PeerEvent::Down), NOW);
    assert_eq!(proxy.status().router_routes, 0);
}

#[test]
fn a_route_that_asks_for_hops_for_all_has_them_before_it_is_checked() {
    let mut proxy = proxy(None);
    // Twice for all, and three times for one peer, which is not done here.
    announce_with(&mut proxy, &[Community::new(65_502, 64_496), Community::new(65_513, 65_002)]);
    let exports = proxy.exports("203.0.113.0/24".parse().expect("a prefix"));
    let paths: Vec<&[u32]> = exports.iter().map(|export| &export.route.as_path[..]).collect();
    assert_eq!(paths, [[ASN.0; 3]]);
}

#[test]
fn what_the_router_says_again_is_not_stale_though_attestation_has_not_cleared_it() {
    for attestation in [None, Some(attestation())] {
        let attests = attestation.is_some();
        let mut proxy = proxy(attestation);
        announce(&mut proxy);
        proxy.handle(Input::Router(PeerEvent::Stale(Stale::Kept(vec![Afi::Ipv4]))), NOW);
        let stays = usize::from(!attests); // never signed, and never announced
        assert_eq!((proxy.status().router_routes, proxy.status().stale_routes), (stays, stays));
        announce(&mut proxy);
        assert_eq!((proxy.status().router_routes, proxy.status().stale_routes), (stays, 0));
        proxy.handle(Input::Router(PeerEvent::Stale(Stale::Kept(vec![Afi::Ipv4]))), NOW);
        proxy.handle(Input::Router(PeerEvent::Stale(Stale::Gone(Afi::Ipv4))), NOW);
        assert_eq!(proxy.status().router_routes, 0);
    }
}

//! Real BIRD and FRR carry an attribute that they do not know, whatever else they do to UPDATEs.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use wayleave_attestation::chain::TYPE_CODE;
use wayleave_bgp::{AsPathBuf, AttributeCode, AttributeFlags, Attributes, Origin};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::frr::Frr;
use wayleave_lab::netns::{Network, NetworkNamespace, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::router_config::RouterConfig;
use wayleave_lab::speaker::{Identity, Routes, Speaker};
use wayleave_lab::table::Router;
use wayleave_lab::tap::Tap;

use crate::common::routers::{ROUTER_TIMEOUT, routers};

const CODE: AttributeCode = AttributeCode(TYPE_CODE);

fn lan(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, host)
}

fn attach(network: &Network, host: u8) -> NetworkNamespace {
    let addresses = [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")];
    network.attach(&format!("r{host}"), &addresses).expect("attached")
}

fn asn(host: u8) -> Asn {
    Asn(64500 + u32::from(host))
}

fn identity(host: u8, peer: u8, at: SocketAddr) -> Identity {
    let name = format!("speaker{host}");
    Identity { name, asn: asn(host), address: lan(host), address6: Ipv6Addr::LOCALHOST, peer_asn: asn(peer), peer: at }
}

fn prefixes() -> Vec<Prefix> {
    (0..30).map(|n| format!("198.51.100.{}/30", 4 * n).parse().expect("a prefix")).collect()
}

fn route(host: u8, value: &[u8]) -> Attributes {
    let mut edit = Attributes::builder();
    edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&[asn(host)]).as_path()).ipv4_next_hop(lan(host));
    edit.set(CODE, AttributeFlags::OPTIONAL_TRANSITIVE, value);
    edit.finish()
}

/// A speaker announces 30 prefixes in one UPDATE; a BIRD that gives each a MED of its own, and so an UPDATE of its own,
/// passes them to an FRR, and that to another speaker. Returns what each route's attribute is there.
fn carried(value: &[u8]) -> Option<(usize, BTreeSet<Option<Vec<u8>>>)> {
    let routers = routers()?;
    let network = Network::new().expect("a network");
    let places: Vec<NetworkNamespace> = (1..=4).map(|host| attach(&network, host)).collect();
    let state = network.state();
    let first = RouterConfig::new("first", asn(2), lan(2))
        .with("origin", lan(1), asn(1))
        .with("second", lan(3), asn(3))
        .one_by_one(&prefixes());
    let second = RouterConfig::new("second", asn(3), lan(3)).with("first", lan(2), asn(2)).with("last", lan(4), asn(4));
    let mut bird = Bird::with_config(&routers.bird, places[1].clone(), first, state);
    let mut frr = Frr::with_config(&routers.frr, places[2].clone(), second, state);
    bird.start().expect("BIRD starts");
    frr.start().expect("FRR starts");
    let origin = Speaker::start(identity(1, 2, (lan(2), 179).into()), places[0].clone());
    let tap = Tap::start(&places[3], (Ipv4Addr::LOCALHOST, 1790).into(), (lan(3), 179).into()).expect("a tap");
    let last = Speaker::start(identity(4, 3, tap.address), places[3].clone());
    origin.announce(prefixes().into_iter().map(|prefix| (prefix, route(1, value))).collect::<Routes>());
    let learned = wait_until(ROUTER_TIMEOUT, || Some(last.learned()).filter(|learned| learned.len() == 30));
    let learned =
        learned.unwrap_or_else(|| panic!("{}\n{}\n{}", last.learned().len(), bird.log_tail(), frr.log_tail()));
    let value_of = |attributes: &Attributes| attributes.get(CODE).map(|attribute| attribute.value.to_vec());
    assert!(bird.is_established().expect("an answer") && frr.is_established().expect("an answer"));
    assert_eq!(frr.table().expect("a table").iter().filter(|route| route.best).count(), 30);
    Some((tap.count(value), learned.values().map(value_of).collect()))
}

#[test]
fn an_attribute_survives_a_bird_that_splits_the_update_and_an_frr_behind_it() {
    if enter_for_test("site_routers::an_attribute_survives_a_bird_that_splits_the_update_and_an_frr_behind_it")
        .is_none()
    {
        return;
    }
    let value: Vec<u8> = (0..300).map(|n| (n * 7 % 251) as u8).collect();
    let Some((messages, values)) = carried(&value) else { return };
    assert_eq!(values, BTreeSet::from([Some(value)]), "octet for octet");
    assert_eq!(messages, 30, "one UPDATE became thirty");
}

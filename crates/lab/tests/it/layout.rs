//! The demonstration's network stands, and a recorded table passes through a real router in it.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use wayleave_core::Asn;
use wayleave_lab::bird::Bird;
use wayleave_lab::demo::layout::{CUSTOMER, Layout};
use wayleave_lab::netns::{Network, NetworkNamespace, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::speaker::{Identity, Speaker, routes_of_mrt};
use wayleave_lab::table::{Customer, Peering, Router};

use crate::common::routers::{ROUTER_TIMEOUT, routers};

const TABLE: &str = "../../test-data/bgp/ris.2015-10-23.first-50000-prefixes.updates.bz2";

/// Sends a word from one place to an address in another.
fn reaches(from: &NetworkNamespace, to: &NetworkNamespace, address: &str) -> bool {
    let listener = to.within(|| TcpListener::bind((address, 0))).expect("the place").expect("its address");
    let at = listener.local_addr().expect("bound");
    let sent =
        from.within(|| TcpStream::connect_timeout(&at, Duration::from_secs(5)).and_then(|mut s| s.write_all(b"x")));
    let mut word = [0; 1];
    sent.expect("the place").is_ok() && listener.accept().and_then(|(mut s, _)| s.read_exact(&mut word)).is_ok()
}

#[test]
fn members_reach_both_parties_and_the_parties_each_other() {
    let Some(rung) = enter_for_test("layout::members_reach_both_parties_and_the_parties_each_other") else { return };
    let layout = Layout::real(rung).expect("a layout");
    let [one, two] = &layout.parties;
    for member in &layout.members {
        for party in [one, two] {
            let address = party.listen.ip().to_string();
            assert!(reaches(&member.proxy.namespace, &party.process.namespace, &address), "{} {address}", member.name);
        }
        let proxy = member.bgp.ip().to_string();
        assert!(reaches(&member.router_namespace, &member.proxy.namespace, &proxy), "{}'s router", member.name);
    }
    assert!(reaches(&two.process.namespace, &one.process.namespace, "198.51.100.1"));
    assert!(
        !reaches(&layout.members[0].proxy.namespace, &one.process.namespace, "198.51.100.1"),
        "the parties' line is theirs"
    );
}

#[test]
fn a_recorded_table_passes_through_a_bird() {
    let Some(routers) = routers() else { return };
    if enter_for_test("layout::a_recorded_table_passes_through_a_bird").is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let [left, right] =
        [1, 2].map(|n| network.attach(&format!("r{n}"), &[format!("192.0.2.{n}/24")]).expect("attached"));
    let west = network.apart("west").expect("a namespace");
    network.join("customer", ("west", "198.18.0.1/30"), ("r1", "198.18.0.2/30")).expect("joined");
    let peering = |n: u8, peer: u8, customer| Peering {
        name: format!("r{n}"),
        asn: Asn(64496 + u32::from(n)),
        address: [192, 0, 2, n].into(),
        peer_asn: Asn(64496 + u32::from(peer)),
        peer_address: [192, 0, 2, peer].into(),
        customer,
    };
    let customer = Customer { asn: CUSTOMER.1, address: [198, 18, 0, 1].into(), local_address: [198, 18, 0, 2].into() };
    let mut left = Bird::new(&routers.bird, left, peering(1, 2, Some(customer)), network.state());
    let mut right = Bird::new(&routers.bird, right, peering(2, 1, None), network.state());
    left.start().expect("left starts");
    right.start().expect("right starts");

    let identity = Identity {
        name: "west".to_owned(),
        asn: CUSTOMER.1,
        address: [198, 18, 0, 1].into(),
        address6: std::net::Ipv6Addr::LOCALHOST,
        peer_asn: Asn(64497),
        peer: ([198, 18, 0, 2], 179).into(),
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    let routes = routes_of_mrt(&file, &identity, 1000, &[Asn(64497), Asn(64498)]).expect("the file is there");
    assert_eq!(routes.len(), 1000);
    let speaker = Speaker::start(identity, west);
    speaker.announce(routes.clone());
    let table = wait_until(ROUTER_TIMEOUT, || right.table().ok().filter(|table| table.len() == routes.len()));
    let table = table.unwrap_or_else(|| panic!("{}\n{}", speaker.last_failure(), left.log_tail()));
    for (learned, (prefix, attributes)) in table.iter().zip(&routes) {
        assert_eq!(learned.prefix, *prefix);
        assert_eq!(learned.next_hop, Some([192, 0, 2, 1].into()));
        let path: Vec<Asn> = [Asn(64497)].into_iter().chain(attributes.as_path().asns()).collect();
        assert_eq!(learned.as_path, path);
    }
}

//! The guide's configurations of routers, in those routers.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use wayleave_bgp::{AsPathBuf, Attributes, Community, Ipv6NextHop, Origin};
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::frr::Frr;
use wayleave_lab::gobgp::Gobgp;
use wayleave_lab::netns::{Network, NetworkNamespace, Rung, enter_for_test, inside, skipped};
use wayleave_lab::openbgpd::OpenBgpd;
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;
use wayleave_lab::routers::{
    GOBGP, Installation, OPENBGPD, RouterPackage, Routers, default_cache, locate_or_fetch, locate_or_fetch_router,
};
use wayleave_lab::speaker::{Identity, Routes, Speaker};
use wayleave_lab::table::Router;

use super::{laid_over, snippet, snippets};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The LAN of the guide's examples; `None` outside the namespaces, or where there are none.
fn lan(test: &str) -> Option<(Network, Routers)> {
    let routers = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers,
        Err(error) => {
            skipped(&error.to_string());
            return None;
        }
    };
    enter_for_test(&format!("guide::routers::{test}"))?;
    Some((Network::new().expect("a network"), routers))
}

/// The same with one other router.
fn lan_with(package: &RouterPackage, test: &str) -> Option<(Network, Installation)> {
    let found = match locate_or_fetch_router(package, &default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(found) => found,
        Err(error) => {
            skipped(&error.to_string());
            return None;
        }
    };
    enter_for_test(&format!("guide::routers::{test}"))?;
    Some((Network::new().expect("a network"), found))
}

fn attach(network: &Network, name: &str, hosts: &[u8]) -> NetworkNamespace {
    let addresses = |host: &u8| [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")];
    let addresses: Vec<String> = hosts.iter().flat_map(addresses).collect();
    network.attach(name, &addresses).expect("attached")
}

/// A speaker at 192.0.2.HOST that connects to the router at 192.0.2.1 in AS 64497.
fn speaker(asn: u32, host: u8, place: &NetworkNamespace) -> Speaker {
    let identity = Identity {
        name: format!("speaker of AS{asn}"),
        asn: Asn(asn),
        address: Ipv4Addr::new(192, 0, 2, host),
        address6: format!("2001:db8::{host}").parse().expect("an address"),
        peer_asn: Asn(64_497),
        peer: (Ipv4Addr::new(192, 0, 2, 1), 179).into(),
    };
    Speaker::start(identity, place.clone())
}

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// Routes by this path, the next hop being 192.0.2.HOST.
fn routes(prefixes: [&str; 2], path: &[u32], host: u8) -> Routes {
    let path: Vec<Asn> = path.iter().copied().map(Asn).collect();
    let route = |text: &str| {
        let mut edit = Attributes::builder();
        edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&path).as_path());
        match prefix(text).afi() {
            Afi::Ipv4 => edit.ipv4_next_hop([192, 0, 2, host].into()),
            Afi::Ipv6 => {
                let global = format!("2001:db8::{host}").parse().expect("an address");
                edit.ipv6_next_hop(Some(Ipv6NextHop { global, link_local: None }))
            }
        };
        (prefix(text), edit.finish())
    };
    prefixes.map(route).into()
}

/// The router of `member.md` beside an upstream that sends it a table: what the exchange gets.
fn announces_own_routes_only(router: &mut dyn Router, network: &Network) {
    announces_what_it_is_told(router, network, &[]);
}

/// The same of a router whose operator gives it these orders once it runs.
fn announces_what_it_is_told(router: &mut dyn Router, network: &Network, orders: &[String]) {
    let at_exchange = attach(network, "exchange", &[101]);
    let upstream = attach(network, "upstream", &[50]);
    router.start().expect("the router takes the guide's configuration");
    for order in orders {
        let (program, mut command) = router.shell().expect("a client");
        let words: Vec<&str> = order.split_whitespace().collect();
        assert_eq!(words.first(), Some(&program), "{order}");
        let output = command.args(&words[1..]).output().expect("it runs");
        assert!(output.status.success(), "{order}: {output:?}");
    }
    let exchange = speaker(64_496, 101, &at_exchange);
    // A route server does not add its own number (RFC 7947).
    exchange.announce(routes(["203.0.113.0/24", "2001:db8:200::/48"], &[64_498], 101));
    let upstream = speaker(64_510, 50, &upstream);
    upstream.announce(routes(["192.88.99.0/24", "2001:db8:300::/48"], &[64_510], 50));
    let learned = |router: &mut dyn Router| {
        let table = router.table().expect("a table");
        table.into_iter().filter(|route| route.best).map(|route| route.prefix).collect::<Vec<_>>()
    };
    let foreign = ["192.88.99.0/24", "203.0.113.0/24", "2001:db8:200::/48", "2001:db8:300::/48"].map(prefix);
    let all =
        wait_until(TIMEOUT, || Some(learned(router)).filter(|table| foreign.iter().all(|one| table.contains(one))));
    let failures = format!("{} {}", exchange.last_failure(), upstream.last_failure());
    all.unwrap_or_else(|| panic!("{:?} {failures}\n{}", learned(router), router.log_tail()));
    let own = [prefix("198.51.100.0/24"), prefix("2001:db8:100::/48")];
    let has = wait_until(TIMEOUT, || Some(exchange.learned()).filter(|learned| learned.len() >= 2));
    let has = has.unwrap_or_else(|| panic!("{:?}\n{}", exchange.learned(), router.log_tail()));
    assert_eq!(has.keys().copied().collect::<Vec<_>>(), own, "own routes and no other");
    for attributes in has.values() {
        assert_eq!(attributes.communities().collect::<Vec<_>>(), [Community::new(0, 64_500)]);
    }
    // What was learnt last is there for some turns of every timer of these routers.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(exchange.learned().keys().copied().collect::<Vec<_>>(), own, "own routes and no other");
    router.kill();
}

#[test]
fn a_members_bird_announces_own_routes_only() {
    let Some((network, routers)) = lan("a_members_bird_announces_own_routes_only") else { return };
    let at = attach(&network, "router", &[1]);
    let text = format!(
        "log stderr all;\nrouter id 192.0.2.1;\nprotocol device {{ }}\n{}\n\
         protocol bgp upstream {{ local 192.0.2.1 as 64497; neighbor 192.0.2.50 as 64510; passive;\n\
         ipv4 {{ import all; export none; }}; ipv6 {{ import all; export none; }}; }}\n",
        snippet("member.md", "bird")
    );
    announces_own_routes_only(&mut Bird::with_text(&routers.bird, at, "router", text, network.state()), &network);
}

#[test]
fn a_members_frr_announces_own_routes_only() {
    let Some((network, routers)) = lan("a_members_frr_announces_own_routes_only") else { return };
    let at = attach(&network, "router", &[1]);
    let text = format!(
        "{}\nroute-map all permit 10\nexit\nroute-map none deny 10\nexit\nrouter bgp 64497\n bgp router-id 192.0.2.1\n \
         neighbor 192.0.2.50 remote-as 64510\n neighbor 192.0.2.50 passive\n address-family ipv4 unicast\n  \
         neighbor 192.0.2.50 route-map all in\n  neighbor 192.0.2.50 route-map none out\n exit-address-family\n \
         address-family ipv6 unicast\n  neighbor 192.0.2.50 activate\n  neighbor 192.0.2.50 route-map all in\n  \
         neighbor 192.0.2.50 route-map none out\n exit-address-family\nexit\n",
        snippet("member.md", "frr")
    );
    let text = (Asn(64_497), text);
    announces_own_routes_only(&mut Frr::with_text(&routers.frr, at, "router", text, network.state()), &network);
}

#[test]
fn a_members_gobgp_announces_own_routes_only() {
    let Some((network, gobgp)) = lan_with(&GOBGP, "a_members_gobgp_announces_own_routes_only") else { return };
    let at = attach(&network, "router", &[1]);
    let families = ["ipv4-unicast", "ipv6-unicast"]
        .map(|family| format!("[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"{family}\"\n"));
    let text = format!(
        "{}\n[[neighbors]]\n[neighbors.config]\nneighbor-address = \"192.0.2.50\"\npeer-as = 64510\n\
         [neighbors.transport.config]\npassive-mode = true\n{}",
        snippet("member.md", "gobgp"),
        families.concat()
    );
    let text_blocks = snippets("member.md", "text").concat();
    let orders: Vec<String> =
        text_blocks.lines().filter(|line| line.starts_with("gobgp global rib add ")).map(str::to_owned).collect();
    assert_eq!(orders.len(), 2, "{text_blocks}");
    let mut router = Gobgp::with_text(&gobgp, at, "router", text, network.state());
    announces_what_it_is_told(&mut router, &network, &orders);
}

#[test]
fn a_members_openbgpd_announces_own_routes_only() {
    let test = "a_members_openbgpd_announces_own_routes_only";
    let Some((network, openbgpd)) = lan_with(&OPENBGPD, test) else { return };
    if inside() != Some(Rung::Root) {
        return skipped("OpenBGPD runs as root alone");
    }
    let at = attach(&network, "router", &[1]);
    let text = format!(
        "fib-update no\n{}\nneighbor 192.0.2.50 {{\n remote-as 64510\n passive\n announce IPv4 unicast\n announce IPv6 unicast\n}}\n\
         allow from 192.0.2.50\n",
        snippet("member.md", "openbgpd")
    );
    let mut router = OpenBgpd::with_text(&openbgpd, at, "router", text, network.state());
    announces_own_routes_only(&mut router, &network);
}

/// The pair of `attest.md` with passwords and TTL security, between the BIRD and the FRR that stand there.
#[test]
fn the_routers_of_the_protected_pair_exchange_their_own_routes() {
    let Some((network, routers)) = lan("the_routers_of_the_protected_pair_exchange_their_own_routes") else { return };
    let (left, right) = (attach(&network, "left", &[1]), attach(&network, "right", &[2]));
    let proxy = attach(&network, "proxy", &[11, 12]);
    let state = network.state();
    let write = |name: &str, content: &str| std::fs::write(state.join(name), content).expect("written");
    let pair = snippets("attest.md", "toml").into_iter().find(|text| text.contains("password_file")).expect("the pair");
    let initial = "[attest]\nasn = 64497\nstate = \"attest.redb\"\n[keys]\n[status]\nlisten = \"127.0.0.1:8485\"\n";
    write("attest.toml", &laid_over(initial, &pair));
    for (name, password) in
        [("inside.password", "the content of inside.password"), ("neighbour.password", "content-of-neighbour.password")]
    {
        write(name, password);
        std::fs::set_permissions(state.join(name), PermissionsExt::from_mode(0o600)).expect("set");
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let (config, log) = (state.join("attest.toml"), state.join("attest.log"));
    let mut process = RoleProcess::new("proxy".to_owned(), &proxy, binary, "attest", config, log.clone());
    process.start().expect("started");
    let before = "log stderr all;\nrouter id 192.0.2.1;\nprotocol device { }\n";
    let text = before.to_owned() + &snippet("attest.md", "bird");
    let mut left = Bird::with_text(&routers.bird, left, "left", text, state);
    let text = (Asn(64_498), snippet("attest.md", "frr"));
    let mut right = Frr::with_text(&routers.frr, right, "right", text, state);
    left.start().expect("BIRD takes the guide's configuration");
    right.start().expect("FRR takes the guide's configuration");
    for (router, expected) in [(&mut left as &mut dyn Router, "203.0.113.0/24"), (&mut right, "198.51.100.0/24")] {
        let learned = |router: &mut dyn Router| {
            let table = router.table().expect("a table");
            let learned: Vec<_> = table.iter().filter(|route| route.best && !route.as_path.is_empty()).collect();
            matches!(learned[..], [route] if route.prefix == prefix(expected)).then_some(())
        };
        let found = wait_until(TIMEOUT, || learned(router));
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        found.unwrap_or_else(|| panic!("{}: no {expected}\n{}\n{said}", router.name(), router.log_tail()));
    }
    assert!(process.stop(TIMEOUT), "{}", process.log_tail());
}

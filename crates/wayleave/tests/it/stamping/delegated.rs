//! Hosts that look secrets up through a caching resolver, which finds the key server by its parent zone's delegation.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::{A, NS, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::json;
use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::routers::UNBOUND;

use super::world::{self, World, balance, ip};
use crate::key::{fetched, unbound_in};
use crate::router::common::{Router, eventually};
use crate::router::platypus::{HOST, LAST};

const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);
const PARENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 54);
/// The second host that holds the lines.
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
const PARENT_ZONE: &str = "example.net.";
const ZONE: &str = "keys.example.net.";
const NAME_SERVER: &str = "ns1.keys.example.net.";
/// Lines that each host holds.
const LINES: u64 = 2;

fn name(text: &str) -> Name {
    Name::from_ascii(text).expect("a name")
}

/// What the parent's server answers: a referral for names in the delegated zone, and what little there is of its own.
fn answer(question: &Message) -> Message {
    let mut answer = question.clone();
    answer.metadata.message_type = MessageType::Response;
    answer.edns = None;
    let query = question.queries.first().expect("a question");
    if name(ZONE).zone_of(query.name()) {
        let server = name(NAME_SERVER);
        answer.authorities.push(Record::from_rdata(name(ZONE), 3_600, RData::NS(NS(server.clone()))));
        answer.additionals.push(Record::from_rdata(server, 3_600, RData::A(A(LAST))));
        return answer;
    }
    answer.metadata.authoritative = true;
    let apex = name(PARENT_ZONE);
    if *query.name() == apex && query.query_type() == RecordType::NS {
        answer.answers.push(Record::from_rdata(apex, 3_600, RData::NS(NS(name("ns.example.net.")))));
        return answer;
    }
    if *query.name() != apex {
        answer.metadata.response_code = ResponseCode::NXDomain;
    }
    let soa = SOA::new(name("ns.example.net."), name("hostmaster.example.net."), 1, 3_600, 600, 86_400, 60);
    answer.authorities.push(Record::from_rdata(apex, 60, RData::SOA(soa)));
    answer
}

/// The parent's server; how often it referred somebody to the key server.
fn serve_parent(place: &NetworkNamespace) -> Arc<AtomicU64> {
    let socket = place.within(|| UdpSocket::bind((PARENT, 53))).expect("in its place").expect("port 53");
    let referrals = Arc::<AtomicU64>::default();
    let count = Arc::clone(&referrals);
    std::thread::spawn(move || {
        let mut octets = [0; 4_096];
        while let Ok((length, from)) = socket.recv_from(&mut octets) {
            let answer = answer(&Message::from_vec(&octets[..length]).expect("a question"));
            count.fetch_add(u64::from(!answer.metadata.authoritative), Ordering::Relaxed);
            let _ = socket.send_to(&answer.to_vec().expect("encoded"), from);
        }
    });
    referrals
}

#[test]
fn two_hosts_behind_one_resolver_follow_the_delegation_and_share_each_answer_until_its_epoch_ends() {
    let test = "stamping::delegated::two_hosts_behind_one_resolver_follow_the_delegation_and_share_each_answer_until_its_epoch_ends";
    let Some(unbound) = fetched(&UNBOUND, test) else { return };
    if world::enter(test).is_none() {
        return;
    }
    let world = World::start("stamping-delegated", false);
    let attach = |machine: &str, address: Ipv4Addr| {
        let place = world.site.network.attach(machine, &[format!("{address}/24")]).expect("a namespace");
        ip(&format!("-n {machine} route add default dev eth0"));
        place
    };
    let [resolver, parent, other] = [("resolver", RESOLVER), ("parent", PARENT), ("other", OTHER)]
        .map(|(machine, address)| attach(machine, address));
    let referrals = serve_parent(&parent);
    let at = |address: Ipv4Addr| SocketAddr::from((address, 53)).to_string();
    let _unbound = unbound_in(&unbound, &world.folder.0, &resolver, &at(RESOLVER), (PARENT_ZONE, &at(PARENT)));
    // Its name is within the zone: whoever comes from the parent needs the glue.
    let name_server = NAME_SERVER.trim_end_matches('.');
    let keys = world.key_server_named(&format!("{{ name = \"{name_server}\", addresses = [\"{LAST}\"] }}"));
    (0..2).for_each(|which| world.grant(which));
    let stamper = |file: &str, place: &NetworkNamespace, address: Ipv4Addr| {
        let config = format!(
            "[host]\naddress = \"{address}\"\nresolvers = [\"{RESOLVER}\"]\n[stamper]\n\
             routes = [{{ name = \"paid\", capabilities = [\"0.line\", \"1.line\"] }}]\n\
             rules = [{{ to = \"203.0.113.0/24\", route = \"paid\" }}]\n"
        );
        Router::start_role("stamper", &world.folder, file, place.clone(), &config)
    };
    let hosts = [stamper("stamper", &world.site.client, HOST), stamper("other", &other, OTHER)];
    let log = || std::fs::read_to_string(world.folder.0.join("unbound.log")).unwrap_or_default();
    eventually(&format!("both hosts have their secrets {}", log()), || {
        hosts.iter().all(|host| host.status()["problems"] == json!([]))
    });
    assert!(referrals.load(Ordering::Relaxed) > 0, "the resolver came by the parent's delegation");

    // Over the ends of two key epochs every packet is stamped, and no secret is fetched for the second host.
    let without = hosts[0].count("left", "epoch");
    let found = |host: &Router| host.count("lookups", "found");
    eventually("two more epochs of both capabilities", || {
        let [first, second] = world.fetch(None);
        assert!(first > 10 && first == second, "{first} {second} {}", hosts[0].status());
        hosts.iter().all(|host| found(host) >= 3 * LINES)
    });
    assert_eq!(hosts[0].count("left", "epoch"), without);
    let served = keys.count("answers", "secrets");
    let found = [found(&hosts[0]), found(&hosts[1])];
    // A host may be ahead of the other by one secret of each line.
    assert!(served <= found[0].max(found[1]) + LINES, "{served} served, {found:?} found: {}", keys.status());
    assert!(keys.count("answers", "truncated") > 0, "the resolver does not pad, and asks by TCP");
    balance(&world);
}

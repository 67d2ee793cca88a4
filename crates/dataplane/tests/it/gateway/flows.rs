//! Connections by name outlive pauses.
//!
//! ICC, idle connections: a connection by name is idle for ten minutes, and the server speaks first; a policy is added
//! meanwhile; the gateway restarts meanwhile: what the server says comes from the name's address.

use std::time::Duration;

use wayleave_dataplane::gateway::{Name, PathPolicy, Reason};

use super::world::{A, B, World, identity, policies, run_of, tcp, udp};

const LOCAL: &str = "10.0.0.1";
const REAL: &str = "10.0.1.1";
/// The name by policy `clean`.
const NAME: &str = "198.18.0.2";
const PORTS: (u16, u16) = (40_000, 22);
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;
const PSH: u8 = 0x18;
const FIN: u8 = 0x11;
const RST: u8 = 0x04;

fn to_server(flags: u8, payload: &[u8]) -> Vec<u8> {
    tcp(LOCAL, NAME, PORTS, 1, flags, &[], payload)
}

fn to_client(flags: u8, payload: &[u8]) -> Vec<u8> {
    tcp(REAL, LOCAL, (PORTS.1, PORTS.0), 1, flags, &[], payload)
}

/// A connection by name is established.
fn world() -> World {
    let mut world = World::new(&[&[A, 2, 3, B], &[A, 4, 5, 6, B]]);
    world.send_plain(A, &to_server(SYN, b""));
    world.run(Duration::from_millis(200));
    world.send_plain(B, &to_client(SYN_ACK, b""));
    world.send_plain(A, &to_server(ACK, b""));
    world.send_plain(B, &to_client(PSH, b"welcome"));
    world.received(B);
    assert_eq!(world.received(A).last(), Some(&tcp(NAME, LOCAL, (PORTS.1, PORTS.0), 1, PSH, &[], b"welcome")));
    world
}

/// Sends what the server has to say; returns what the client's system gets of it.
fn server_speaks(world: &mut World) -> Vec<Vec<u8>> {
    world.send_plain(B, &to_client(PSH, b"still there?"));
    world.run(Duration::from_secs(2));
    world.received(A)
}

fn from_the_name() -> [Vec<u8>; 1] {
    [tcp(NAME, LOCAL, (PORTS.1, PORTS.0), 1, PSH, &[], b"still there?")]
}

fn client_answers(world: &mut World) {
    world.received(B);
    world.send_plain(A, &to_server(PSH, b"yes"));
    world.run(Duration::from_millis(100));
    assert_eq!(world.received(B), [tcp(LOCAL, REAL, PORTS, 1, PSH, &[], b"yes")]);
    assert_eq!(world.gateway(A).counters().dropped(Reason::FlowConflict), 0);
}

#[test]
fn a_connection_by_name_is_idle_for_ten_minutes_and_the_server_speaks_first() {
    let mut world = world();
    world.run(Duration::from_secs(600));
    let now = world.now();
    assert!(world.gateway(A).status(now).is_empty() && world.gateway(B).status(now).is_empty(), "nothing else is kept");
    assert_eq!(server_speaks(&mut world), from_the_name());
    client_answers(&mut world);
}

#[test]
fn a_policy_that_is_added_leaves_connections_by_name_as_they_are() {
    let mut world = world();
    let mut fresh = policies();
    fresh.insert(1, PathPolicy { name: "new".to_owned(), ..PathPolicy::default() });
    let now = world.now();
    world.gateway(A).set_policies(fresh, now);
    let name = Name { policy: "clean".to_owned(), node: identity(B) };
    world.gateway(A).set_names([(NAME.parse().unwrap(), name)]);
    assert_eq!(server_speaks(&mut world), from_the_name());
    client_answers(&mut world);
    assert!(!world.passed.contains_key(&2), "by the policy of its name, both ways");
}

#[test]
fn a_gateway_that_restarts_knows_its_connections_by_name() {
    let mut world = world();
    world.send_plain(A, &udp(LOCAL, NAME, (1_000, 53), b"nobody answers"));
    world.run(Duration::from_millis(100));
    let now = world.now();
    let records = world.gateway(A).take_flow_changes(now);
    assert_eq!(records.len(), 1, "what nobody answered has no record");
    assert_eq!(world.gateway(A).take_flow_changes(now), []);
    world.run(Duration::from_secs(60));
    // What is read may be anything, and is then none.
    let mut gateway = run_of(A, 1);
    let (key, value) = (records[0].key.clone(), records[0].value.clone().expect("a record"));
    let now = world.now();
    assert!((0..key.len()).all(|length| !gateway.restore_flow(&key[..length], &value, now)));
    assert!((0..value.len()).all(|length| !gateway.restore_flow(&key, &value[..length], now)));
    assert!(gateway.restore_flow(&key, &value, now));
    *world.gateway(A) = gateway;
    assert!(server_speaks(&mut world).is_empty(), "B learns that A has another life");
    world.run(Duration::from_secs(10));
    assert_eq!(server_speaks(&mut world), from_the_name());
    client_answers(&mut world);
    // A record of a connection that is over by now.
    let mut late = run_of(A, 2);
    assert!(!late.restore_flow(&key, &value, crate::icing::network::at_micros(world.micros + 12_000_000_000)));
}

#[test]
fn a_connection_ends_as_tcp_says_and_its_record_with_it() {
    for (ends, is_closed) in [(vec![(A, RST)], true), (vec![(B, FIN)], false), (vec![(B, FIN), (A, FIN)], true)] {
        let mut world = world();
        let now = world.now();
        let [record] = &world.gateway(A).take_flow_changes(now)[..] else { panic!("one record") };
        let key = record.key.clone();
        for (node, flags) in ends {
            let packet = if node == A { to_server(flags, b"") } else { to_client(flags, b"") };
            world.send_plain(node, &packet);
        }
        world.received(A);
        // Something else keeps the gateways at work; the transitory time is over, the established one is not.
        for _ in 0..32 {
            world.send_plain(A, &udp(LOCAL, REAL, (5, 5), b""));
            world.run(Duration::from_secs(10));
        }
        let now = world.now();
        let changes = world.gateway(A).take_flow_changes(now);
        let is_removed = changes.iter().any(|change| change.key == key && change.value.is_none());
        assert_eq!(is_removed, is_closed);
        assert_eq!(server_speaks(&mut world) == from_the_name(), !is_closed);
    }
}

#[test]
fn ports_that_a_remote_host_took_first_serve_a_connection_by_name() {
    let mut world = world();
    world.send_plain(B, &tcp(REAL, LOCAL, (22, 40_001), 1, ACK, &[], b"took it"));
    assert_eq!(world.received(A).len(), 1);
    let to = |flags| tcp(LOCAL, NAME, (40_001, 22), 1, flags, &[], b"");
    world.send_plain(A, &to(SYN));
    assert_eq!(world.received(B).len(), 1);
    world.send_plain(B, &tcp(REAL, LOCAL, (22, 40_001), 1, SYN_ACK, &[], b""));
    assert_eq!(world.received(A), [tcp(NAME, LOCAL, (22, 40_001), 1, SYN_ACK, &[], b"")]);
    assert_eq!(world.gateway(A).counters().dropped(Reason::FlowConflict), 0);
}

/// RFC 7857, section 2.2. Whoever answers a forged RST is still there.
#[test]
fn a_connection_that_goes_on_after_a_reset_is_established() {
    let mut world = world();
    world.send_plain(B, &to_client(RST, b""));
    world.received(A);
    world.send_plain(A, &to_server(ACK, b""));
    world.run(Duration::from_secs(600));
    assert_eq!(server_speaks(&mut world), from_the_name());
    client_answers(&mut world);
}

/// IKE, for one, has the same port at both ends, and a peer that never falls silent.
#[test]
fn datagrams_between_fixed_ports_go_over_to_another_name_once_the_old_one_is_silent() {
    const OTHER: &str = "198.18.0.1";
    let ports = (500, 500);
    let mut world = World::new(&[&[A, 2, 3, B], &[A, 4, 5, 6, B]]);
    let passes = |world: &mut World, name: &str| {
        let before = world.received(B).len();
        assert_eq!(before, 0);
        world.send_plain(A, &udp(LOCAL, name, ports, b"hello"));
        world.run(Duration::from_secs(1));
        world.received(B) == [udp(LOCAL, REAL, ports, b"hello")]
    };
    let answers_from = |world: &mut World, name: &str| {
        world.received(A);
        world.send_plain(B, &udp(REAL, LOCAL, ports, b"hello"));
        world.run(Duration::from_secs(1));
        world.received(A) == [udp(name, LOCAL, ports, b"hello")]
    };
    assert!(passes(&mut world, NAME) && answers_from(&mut world, NAME));
    // Two that are in use at once do not take it from each other.
    for _ in 0..10 {
        assert!(passes(&mut world, NAME) && !passes(&mut world, OTHER));
        assert!(answers_from(&mut world, NAME));
        world.run(Duration::from_secs(10));
    }
    for _ in 0..10 {
        assert!(answers_from(&mut world, NAME));
        world.run(Duration::from_secs(2));
    }
    assert!(passes(&mut world, OTHER) && !passes(&mut world, NAME));
    assert!(answers_from(&mut world, OTHER));
    assert_eq!(world.gateway(A).counters().dropped(Reason::FlowConflict), 11);
}

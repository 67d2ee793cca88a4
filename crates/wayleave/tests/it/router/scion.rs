//! SCION packets between hosts, neighbours and routers.
//!
//! SCI-05, SCMP, quotes: an error for a host of the AS reaches the port that it quotes, at a running router.
//! SCI-05, by process: 20,000 traceroute requests as fast as they go; a service that the AS does not have: answers
//! within the limit, each of them arrives, all others are counted; destination unreachable.
//! SCI-09, by process: eight forged packets for each good one, from the neighbour's address: every good packet arrives;
//! each forgery is counted, at its interface; answers quote the whole packet.
//! SCI-09, throttled: 200 forgeries against a limit of 20; a reload without a limit: no more are checked than the limit
//! and one run; good packets pass again.
//! SCI, reload and rotation: nine reloads and a change of keys under traffic: no packet lost.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wayleave_lab::netns::{self, Network, NetworkNamespace, Rung};
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, Service, StandardPath,
    next_header,
};
use wayleave_runtime::clock::unix_now;

use super::common::{Folder, Router, eventually, free};

/// AS 1-1 is core and provider of 1-2, and that of 1-3. Each has one key.
pub(crate) const KEYS: [[u8; 16]; 3] = [[1; 16], [2; 16], [3; 16]];
/// The interface towards the provider, and the one towards the customer.
pub(crate) const UP: u16 = 1;
pub(crate) const DOWN: u16 = 2;
/// Longest wait for one packet.
const WAIT: Duration = Duration::from_secs(5);

pub(crate) fn name(index: usize) -> IsdAs {
    IsdAs::new(1, index as u64 + 1)
}

fn v4(address: SocketAddr) -> HostAddress {
    match address {
        SocketAddr::V4(v4) => HostAddress::V4(*v4.ip()),
        SocketAddr::V6(v6) => HostAddress::V6(*v6.ip()),
    }
}

pub(crate) fn now() -> u32 {
    unix_now().secs() as u32
}

/// The segment from 1-1 down to 1-3, minted at `timestamp` with these keys.
pub(crate) fn segment(timestamp: u32, keys: [[u8; 16]; 3]) -> Segment {
    let mut segment = Segment::new(0x1234, timestamp);
    let [a, b, c] = keys.map(|key| ForwardingKey::new(&key));
    segment.extend(&a, 63, 0, DOWN, &[]);
    segment.extend(&b, 63, UP, DOWN, &[]);
    segment.extend(&c, 63, UP, 0, &[]);
    segment
}

pub(crate) fn path(segment: &Segment, direction: Direction) -> StandardPath {
    PathBuilder::new().segment(segment, 0..3, direction).and_then(PathBuilder::build).expect("three hops")
}

/// A UDP packet of `from` in AS `src` to `to` in AS `dst`.
pub(crate) fn packet(
    (src, from): (usize, SocketAddr),
    (dst, to): (usize, SocketAddr),
    path: StandardPath,
    data: &[u8],
) -> Vec<u8> {
    let header = Header {
        traffic_class: 0,
        flow_id: 1,
        next_header: next_header::UDP,
        dst: name(dst),
        src: name(src),
        dst_host: v4(to),
        src_host: v4(from),
        path: Path::Standard(path),
    };
    let length = (data.len() as u16 + 8).to_be_bytes();
    let payload = [&from.port().to_be_bytes()[..], &to.port().to_be_bytes(), &length, &[0, 0], data].concat();
    Packet { header, payload }.encode()
}

/// The packet as a neighbour of the middle AS sends it: the pointer is at the second hop field.
fn at_the_second_hop(segment: &Segment, number: u32, hosts: [SocketAddr; 2]) -> Vec<u8> {
    let mut path = path(segment, Direction::Construction);
    path.infos[0].seg_id = segment.beta(1);
    path.meta.current_hop = 1;
    packet((0, hosts[0]), (2, hosts[1]), path, &number.to_be_bytes())
}

pub(crate) fn host() -> UdpSocket {
    let free =
        (31_000..32_000).find_map(|port| UdpSocket::bind(("127.0.0.1", port)).ok()).expect("a port of an end host");
    free.set_read_timeout(Some(WAIT)).expect("a timeout");
    free
}

pub(crate) fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("a free port");
    socket.set_read_timeout(Some(WAIT)).expect("a timeout");
    socket
}

pub(crate) fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut octets = [0; 2048];
    let (length, from) = socket.recv_from(&mut octets).expect("a packet in time");
    (octets[..length].to_vec(), from)
}

/// The configuration of AS `index`: interfaces as (number, link, neighbour, local, remote).
pub(crate) fn config(
    index: usize,
    internal: &str,
    more: &str,
    interfaces: &[(u16, &str, usize, &str, &str)],
) -> String {
    let head = format!(
        "[forwarding]\nformat = \"scion\"\nkeys = \"{index}.key\"\n{more}[scion]\nisd_as = \"{}\"\ninternal = \"{internal}\"\n",
        name(index)
    );
    let one = |(id, link, neighbor, local, remote): &(u16, &str, usize, &str, &str)| {
        format!(
            "[[interface]]\nid = {id}\nlink = \"{link}\"\nneighbor = \"{}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n",
            name(*neighbor)
        )
    };
    head + &interfaces.iter().map(one).collect::<String>()
}

#[test]
fn three_routers_in_a_chain_forward_both_ways() {
    let folder = Folder::new("chain");
    (0..3).for_each(|index| folder.keys(&format!("{index}.key"), "scion", &[(0, KEYS[index])]));
    let inside = [free(), free(), free()];
    let [ab, ba, bc, cb] = [free(), free(), free(), free()];
    // Two threads in the middle; the last one takes packet by packet.
    let routers = [
        config(0, &inside[0], "", &[(DOWN, "child", 1, &ab, &ba)]),
        config(1, &inside[1], "workers = 2\n", &[(UP, "parent", 0, &ba, &ab), (DOWN, "child", 2, &bc, &cb)]),
        config(2, &inside[2], "", &[(UP, "parent", 1, &cb, &bc)]) + "backend = \"udp-batch\"\n",
    ];
    let routers: Vec<Router> = (0..3)
        .map(|index| Router::start(&folder, &format!("router{index}"), NetworkNamespace::Own, &routers[index]))
        .collect();
    let (alice, bob) = (host(), host());
    let (here, there) = (alice.local_addr().expect("bound"), bob.local_addr().expect("bound"));
    let segment = segment(now() - 60, KEYS);
    for number in 0..100u32 {
        let data = vec![number as u8; number as usize * 12];
        let question = packet((0, here), (2, there), path(&segment, Direction::Construction), &data);
        alice.send_to(&question, &inside[0]).expect("sent");
        let (arrived, _) = receive(&bob);
        let arrived = Packet::decode(&arrived).expect("sound");
        assert_eq!(arrived.payload[8..], data);
        // Back along the path that the packet came with.
        let Path::Standard(path) = arrived.header.path.reversed() else { panic!("a standard path") };
        bob.send_to(&packet((2, there), (0, here), path, &data), &inside[2]).expect("sent");
        let (back, _) = receive(&alice);
        assert_eq!(Packet::decode(&back).expect("sound").payload[8..], data);
    }
    for router in &routers {
        let status = router.status();
        assert_eq!(status["received"], 200, "{status}");
        assert_eq!(status["sent"], 200, "{status}");
        assert_eq!(status["reasons"], serde_json::json!({}), "{status}");
    }
}

/// The middle AS's router with its neighbours played by the test.
struct Middle {
    router: Router,
    inside: String,
    /// Its address towards the provider.
    up: String,
    provider: UdpSocket,
    customer: UdpSocket,
    /// Packets that have come to the customer.
    count: AtomicUsize,
}

impl Middle {
    fn new(folder: &Folder) -> Self {
        folder.keys("1.key", "scion", &[(0, KEYS[1])]);
        let (inside, up, down) = (free(), free(), free());
        let (provider, customer) = (socket(&free()), socket(&free()));
        let config = Self::config(&inside, [&up, &down], [&provider, &customer]);
        let router = Router::start(folder, "middle", NetworkNamespace::Own, &config);
        Self { router, inside, up, provider, customer, count: AtomicUsize::new(0) }
    }

    fn config(inside: &str, own: [&str; 2], neighbors: [&UdpSocket; 2]) -> String {
        let [provider, customer] = neighbors.map(|socket| socket.local_addr().expect("bound").to_string());
        config(1, inside, "", &[(UP, "parent", 0, own[0], &provider), (DOWN, "child", 2, own[1], &customer)])
    }

    fn hosts() -> [SocketAddr; 2] {
        [SocketAddr::from(([10, 0, 0, 1], 31_001)), SocketAddr::from(([10, 0, 0, 2], 31_002))]
    }

    /// The numbers of the packets that arrive at the customer, until `count` did or nothing more comes.
    fn arrived(&self, count: usize) -> BTreeSet<u32> {
        let mut numbers = BTreeSet::new();
        let mut octets = [0; 2048];
        while numbers.len() < count {
            let Ok(length) = self.customer.recv(&mut octets) else { break };
            numbers.insert(u32::from_be_bytes(*octets[..length].last_chunk().expect("a number")));
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        numbers
    }

    /// Waits until all but a few of `sent` packets have come: the test's own socket must not be what loses them.
    fn keep_up(&self, sent: usize) {
        let begin = Instant::now();
        while self.count.load(Ordering::Acquire) + 64 < sent && begin.elapsed() < WAIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// SCI-09 by counts: forged packets are counted where they came in, good ones all pass, answers stay within their limits.
#[test]
fn a_flood_of_wrong_macs_costs_no_good_packet() {
    let folder = Folder::new("flood");
    let middle = Middle::new(&folder);
    let segment = segment(now() - 60, KEYS);
    let (good, each) = (500u32, 8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..good {
                let packet = at_the_second_hop(&segment, number, Middle::hosts());
                let mut forged = packet.clone();
                // In the MAC of the second hop field: 4 octets of path head, 8 of the segment, 12 of the hop field before.
                forged[12 + 24 + 4 + 8 + 12 + 8] ^= 1;
                for _ in 0..each {
                    middle.provider.send_to(&forged, &middle.up).expect("sent");
                }
                middle.provider.send_to(&packet, &middle.up).expect("sent");
                middle.keep_up(number as usize);
            }
        });
        assert_eq!(middle.arrived(good as usize).len(), good as usize);
    });
    eventually("all are counted", || middle.router.count("reasons", "bad_mac") == u64::from(good * each));
    let status = middle.router.status();
    assert_eq!(status["decided"]["forwarded"], good, "{status}");
    let (answered, unanswered) = (status["decided"]["answered"].as_u64(), status["decided"]["unanswered"].as_u64());
    assert_eq!(answered.zip(unanswered).map(|(a, b)| a + b), Some(u64::from(good * each)), "{status}");
    let peers = middle.router.json("peers");
    assert_eq!(peers["peers"][0]["bad_macs"], good * each, "{peers}");
    // Answers quote the whole packet, and add their own header and eight octets.
    middle.provider.set_nonblocking(true).expect("set");
    let mut octets = [0; 2048];
    let longest = at_the_second_hop(&segment, 0, Middle::hosts()).len();
    while let Ok(length) = middle.provider.recv(&mut octets) {
        let header = 4 * usize::from(octets[5]);
        assert_eq!(length, header + 8 + longest);
    }
}

/// The packet with another payload, and what `change` makes of its header.
fn changed(packet: &[u8], next_header: u8, payload: &[u8], change: impl Fn(&mut Header)) -> Vec<u8> {
    let mut packet = Packet::decode(packet).expect("sound");
    (packet.header.next_header, packet.payload) = (next_header, payload.to_vec());
    change(&mut packet.header);
    packet.encode()
}

/// No MAC covers the flags by which a traceroute request asks a router to look at it: anybody with a valid path can send
/// them as fast as any other packet.
#[test]
fn a_flood_of_traceroute_requests_is_answered_within_the_limit() {
    let folder = Folder::new("traceroute");
    let middle = Middle::new(&folder);
    let plain = at_the_second_hop(&segment(now() - 60, KEYS), 7, Middle::hosts());
    let payload = [vec![130, 0, 0, 0, 0x7b, 0x0c, 0, 1], vec![0; 16]].concat();
    let alerted = |header: &mut Header| {
        let Path::Standard(path) = &mut header.path else { panic!("a standard path") };
        path.hops[1].ingress_alert = true;
    };
    let request = changed(&plain, next_header::SCMP, &payload, alerted);
    let (sent, begin) = (20_000u64, Instant::now());
    let mut longest_pause = Duration::ZERO;
    for chunk in 1..=sent / 500 {
        for _ in 0..500 {
            middle.provider.send_to(&request, &middle.up).expect("sent");
        }
        let waiting = Instant::now();
        eventually("all are received", || middle.router.status()["received"] == chunk * 500);
        longest_pause = longest_pause.max(waiting.elapsed());
    }
    let took = begin.elapsed();
    let status = middle.router.status();
    let decided = |name: &str| status["decided"][name].as_u64().expect("a number");
    // Every request is counted once, and none goes on.
    assert_eq!(decided("answered") + decided("unanswered"), sent, "{status}");
    assert_eq!((decided("forwarded"), &status["reasons"]["traceroute"]), (0, &sent.into()), "{status}");
    // Of 100 a second the half is shared, and a third of the other half is this interface's: 66 and two thirds. Ten at once
    // make five and one.
    let within = |time: Duration| 6 + (time.as_secs_f64() * 50.0) as u64 + (time.as_secs_f64() * 100.0 / 6.0) as u64;
    let answered = decided("answered");
    assert!(answered <= within(took) + 2, "{answered} in {took:?}");
    // The bucket is small: what a pause between two chunks leaves unused beyond it is lost. A fast machine needs less time for all
    // of it than so many answers take.
    let least = (6 + sent / 500 / 2).min(within(took));
    assert!(answered + 2 >= least || longest_pause > Duration::from_millis(90), "{answered} in {took:?}");
    // Each of them has come, and is as long as the request.
    middle.provider.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    let mut octets = [0; 2048];
    let mut came = 0;
    while let Ok(length) = middle.provider.recv(&mut octets) {
        assert_eq!((length, octets[length - 24]), (request.len(), 131));
        came += 1;
    }
    assert_eq!(came, answered);
}

#[test]
fn an_unknown_service_is_answered_and_an_error_reaches_the_port_that_it_quotes() {
    let folder = Folder::new("delivery");
    let middle = Middle::new(&folder);
    let segment = segment(now() - 60, KEYS);
    let asker = SocketAddr::from(([10, 0, 0, 1], 31_001));
    let inbound = |next: u8, payload: &[u8], host: HostAddress| {
        let path = PathBuilder::new().segment(&segment, 0..2, Direction::Construction).and_then(PathBuilder::build);
        let mut path = path.expect("two hops");
        (path.infos[0].seg_id, path.meta.current_hop) = (segment.beta(1), 1);
        let plain = packet((0, asker), (1, asker), path, &[]);
        changed(&plain, next, payload, |header| header.dst_host = host)
    };
    // The AS has no discovery service.
    let udp = [vec![0x79, 0x19, 0x79, 0x1a, 0, 108, 0, 0], vec![5; 100]].concat();
    let question = inbound(next_header::UDP, &udp, HostAddress::Service(Service::DISCOVERY));
    middle.provider.send_to(&question, &middle.up).expect("sent");
    let (answer, _) = receive(&middle.provider);
    let answer = Packet::decode(&answer).expect("sound");
    assert_eq!((answer.header.src, answer.header.dst, answer.header.dst_host), (name(1), name(0), v4(asker)));
    assert_eq!((answer.header.next_header, &answer.payload[..2]), (next_header::SCMP, &[1, 0][..]));
    assert_eq!(answer.payload[8..], question);
    eventually("it is counted", || middle.router.count("reasons", "unknown_service") == 1);
    // An error about what a host of this AS has sent, quoted up to its port and no further.
    let (host, shared) = (host(), socket("127.0.0.1:30041"));
    let own = host.local_addr().expect("bound");
    let path = path(&segment, Direction::Construction);
    let mut quoted = packet((1, own), (2, asker), path, &[7; 900]);
    quoted.truncate(quoted.len() - 900 - 6);
    for (kind, front) in [(4u8, 8usize), (5, 20), (6, 28)] {
        let mut message = vec![0; front];
        message[0] = kind;
        message.extend(&quoted);
        middle.provider.send_to(&inbound(next_header::SCMP, &message, v4(own)), &middle.up).expect("sent");
        let (arrived, _) = receive(&host);
        assert_eq!(Packet::decode(&arrived).expect("sound").payload, message);
        // Cut by one more octet it names no port.
        message.pop();
        middle.provider.send_to(&inbound(next_header::SCMP, &message, v4(own)), &middle.up).expect("sent");
        assert_eq!(Packet::decode(&receive(&shared).0).expect("sound").payload, message);
    }
}

#[test]
fn beyond_the_configured_limit_of_wrong_macs_no_mac_is_checked_until_a_reload_lifts_it() {
    let folder = Folder::new("throttled");
    let middle = Middle::new(&folder);
    let plain = std::fs::read_to_string(folder.0.join("middle.toml")).expect("its configuration");
    let limited = plain.replacen("[[interface]]", "bad_macs_per_second = 1\nbad_macs_at_once = 20\n[[interface]]", 1);
    folder.write("middle.toml", &limited);
    middle.router.reload();
    let begin = Instant::now();
    let good = at_the_second_hop(&segment(now() - 60, KEYS), 7, Middle::hosts());
    let mut forged = good.clone();
    forged[12 + 24 + 4 + 8 + 12 + 8] ^= 1;
    for _ in 0..200 {
        middle.provider.send_to(&forged, &middle.up).expect("sent");
    }
    eventually("all are counted", || {
        middle.router.count("reasons", "bad_mac") + middle.router.count("reasons", "throttled") == 200
    });
    // A run of sixteen is looked at together, and a second gives one more.
    let most = 20 + 15 + 1 + begin.elapsed().as_secs();
    let checked = middle.router.count("reasons", "bad_mac");
    assert!((20..=most).contains(&checked), "{checked}");
    folder.write("middle.toml", &plain);
    middle.router.reload();
    middle.provider.send_to(&good, &middle.up).expect("sent");
    assert_eq!(middle.arrived(1).len(), 1, "{}", middle.router.status());
}

#[test]
fn a_packet_from_an_unknown_address_is_not_a_neighbours() {
    let folder = Folder::new("stranger");
    let middle = Middle::new(&folder);
    let packet = at_the_second_hop(&segment(now() - 60, KEYS), 1, Middle::hosts());
    let stranger = socket("127.0.0.1:0");
    stranger.send_to(&packet, &middle.up).expect("sent");
    // From inside the AS this packet has no business here either.
    stranger.send_to(&packet, &middle.inside).expect("sent");
    eventually("both are counted", || middle.router.status()["received"] == 2);
    let status = middle.router.status();
    assert_eq!((&status["strangers"], &status["decided"]["forwarded"]), (&1.into(), &0.into()), "{status}");
}

#[test]
fn reloads_and_a_rotation_of_keys_lose_no_packet() {
    let folder = Folder::new("reload");
    let middle = Middle::new(&folder);
    let turn = now() - 30;
    let mut next = KEYS;
    next[1] = [9; 16];
    // Segments under the key of now, and under the one that follows.
    let segments = [segment(turn - 10, KEYS), segment(turn + 1, next)];
    let (is_rotated, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut number = 0;
            while !is_done.load(Ordering::Acquire) {
                let which = usize::from(is_rotated.load(Ordering::Acquire) && number % 2 == 1);
                let packet = at_the_second_hop(&segments[which], number, Middle::hosts());
                middle.provider.send_to(&packet, &middle.up).expect("sent");
                number += 1;
                middle.keep_up(number as usize);
            }
            number
        });
        let all = scope.spawn(|| middle.arrived(usize::MAX));
        for _ in 0..5 {
            middle.router.reload();
        }
        folder.keys("1.key", "scion", &[(0, KEYS[1]), (turn.into(), next[1])]);
        middle.router.reload();
        is_rotated.store(true, Ordering::Release);
        for _ in 0..3 {
            middle.router.reload();
        }
        is_done.store(true, Ordering::Release);
        let sent = sender.join().expect("the sender");
        // Nothing comes any more: the receiver gives up.
        let arrived = all.join().expect("the receiver");
        assert_eq!(arrived.len(), sent as usize, "{}", middle.router.status());
        sent
    });
    assert!(sent > 100, "{sent}");
}

#[test]
fn a_stopping_router_forwards_what_waits() {
    let folder = Folder::new("stop");
    let mut middle = Middle::new(&folder);
    let segment = segment(now() - 60, KEYS);
    for number in 0..100 {
        let packet = at_the_second_hop(&segment, number, Middle::hosts());
        middle.provider.send_to(&packet, &middle.up).expect("sent");
    }
    middle.router.signal("-TERM");
    let ended = middle.router.child.take().expect("running").wait().expect("ended");
    assert!(ended.success(), "{}", middle.router.log());
    assert_eq!(middle.arrived(100).len(), 100);
}

#[test]
fn af_xdp_forwards_what_udp_does() {
    let Some(rung) = netns::enter_for_test("router::scion::af_xdp_forwards_what_udp_does") else { return };
    if rung != Rung::Root {
        return netns::skipped("AF_XDP: BPF needs root outside of user namespaces");
    }
    let network = Network::new().expect("a network");
    let router = network.apart("router").expect("a namespace");
    let neighbors = [network.apart("provider"), network.apart("customer")].map(|place| place.expect("a namespace"));
    network.join("north", ("router", "10.1.0.1/24"), ("provider", "10.1.0.2/24")).expect("joined");
    network.join("south", ("router", "10.2.0.1/24"), ("customer", "10.2.0.2/24")).expect("joined");
    let folder = Folder(network.state().join("router"));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    folder.keys("1.key", "scion", &[(0, KEYS[1])]);
    let config = config(1, "127.0.0.1:30042", "", &[(UP, "parent", 0, "10.1.0.1:5000", "10.1.0.2:5000")])
        + "backend = \"af-xdp\"\ndevice = \"north\"\n"
        + "[[interface]]\nid = 2\nlink = \"child\"\nneighbor = \"1-3\"\nlocal = \"10.2.0.1:5000\"\nremote = \"10.2.0.2:5000\"\n\
           backend = \"af-xdp\"\ndevice = \"south\"\n";
    let mut router = Router::start(&folder, "xdp", router, &config);
    let bind = |place: &NetworkNamespace, address: &str| place.within(|| socket(address)).expect("in its place");
    let (provider, customer) = (bind(&neighbors[0], "10.1.0.2:5000"), bind(&neighbors[1], "10.2.0.2:5000"));
    let segment = segment(now() - 60, KEYS);
    for number in 0..300u32 {
        let packet = at_the_second_hop(&segment, number, Middle::hosts());
        provider.send_to(&packet, "10.1.0.1:5000").expect("sent");
        let (arrived, from) = receive(&customer);
        assert_eq!((arrived.last_chunk(), from.to_string()), (Some(&number.to_be_bytes()), "10.2.0.1:5000".to_owned()));
    }
    // A wrong MAC is answered to the neighbour.
    let mut forged = at_the_second_hop(&segment, 0, Middle::hosts());
    forged[12 + 24 + 4 + 8 + 12 + 8] ^= 1;
    provider.send_to(&forged, "10.1.0.1:5000").expect("sent");
    eventually("the forgery is counted", || router.count("reasons", "bad_mac") == 1);
    // The kernel may still be busy removing what a killed router left on the interfaces.
    for number in 0..20u32 {
        router.kill();
        router.start_process();
        provider.send_to(&at_the_second_hop(&segment, number, Middle::hosts()), "10.1.0.1:5000").expect("sent");
        assert_eq!(receive(&customer).0.last_chunk(), Some(&number.to_be_bytes()), "{}", router.log());
    }
}

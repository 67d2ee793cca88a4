//! `kill -9` of random processes under traffic, with somebody on the links who repeats and changes what passes.
//!
//! ICC, gateways and kills: `kill -9` of random processes of a realm with two gateways 30 times, 1,000 in `make soak`
//! (`WAYLEAVE_GATEWAY_KILLS`), under TCP and UDP by name in both families, with repeated and changed packets on all links, memberships of a
//! minute, and a provider that consents to nothing: no stream corrupted, no datagram changed or twice, no packet over
//! that provider; traffic goes on.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wayleave_crypto::hash::sha256;
use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_lab::wire::{Capture, Datagram, Forger};

use super::world::{Plan, World, address, addresses_of, use_names};

/// Kills, unless `WAYLEAVE_GATEWAY_KILLS` says otherwise.
const KILLS: u32 = 30;
/// Octets of one answer over TCP, and of a datagram.
const ANSWER: usize = 200_000;
const DATAGRAM: usize = 200;
/// A connection that makes no progress for so long is given up by the application.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The families of a name's addresses, and a's own addresses.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const OWN: [&str; 2] = ["10.0.1.1", "fd00:1::1"];

/// How long traffic may take until it begins, and until it goes on after everything was there again. Whatever is stuck stays so, and a
/// machine on which ten others compile takes half a minute: connections that failed are given up after [`TIMEOUT`], and the attacker goes on.
const RECOVERY: Duration = Duration::from_secs(180);

/// Traffic, or somebody who disturbs it, until it is to end.
type Task = Box<dyn FnOnce(&Tally, &AtomicBool) + Send>;

/// What became of traffic, by family where there are two.
#[derive(Default, Debug)]
struct Tally {
    whole: [AtomicU64; 2],
    /// Connections that were reset, refused or given up: nothing wrong was in what came.
    reset: AtomicU64,
    datagrams: [AtomicU64; 2],
    forged: AtomicU64,
    /// What must never be.
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    fn wrong(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }

    fn count(of: &AtomicU64) -> u64 {
        of.load(Ordering::Relaxed)
    }

    /// What arrived whole: streams and datagrams of each family.
    fn arrived(&self) -> [u64; 4] {
        let [streams, datagrams] = [&self.whole, &self.datagrams].map(|both| both.each_ref().map(Self::count));
        [streams[0], streams[1], datagrams[0], datagrams[1]]
    }
}

/// The octets of answer `number`.
fn content(number: u32) -> Vec<u8> {
    (0..ANSWER as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(number) >> 11) as u8).collect()
}

/// A datagram: its number, its hash, and as much as makes it long enough.
fn datagram(number: u64) -> Vec<u8> {
    let mut octets = number.to_be_bytes().to_vec();
    octets.extend(sha256(&number.to_be_bytes()));
    octets.resize(DATAGRAM, number as u8);
    octets
}

/// Answers each request, of four octets, with its content.
fn serve(place: &NetworkNamespace) {
    let listener = place.within(|| TcpListener::bind("[::]:8080")).expect("in its place").expect("a port");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.set_write_timeout(Some(TIMEOUT));
                let mut request = [0; 4];
                let read = stream.set_read_timeout(Some(TIMEOUT)).and_then(|()| stream.read_exact(&mut request));
                if read.is_ok() {
                    let _ = stream.write_all(&content(u32::from_be_bytes(request)));
                }
            });
        }
    });
}

/// Fetches one answer after the other.
fn fetch(place: &NetworkNamespace, family: usize, to: IpAddr, tally: &Tally, ends: &AtomicBool) {
    let to = SocketAddr::new(to, 8080);
    let mut number = 0u32;
    while !ends.load(Ordering::Relaxed) {
        number += 1;
        let fetched = place.within(|| -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(&number.to_be_bytes())?;
            let mut octets = vec![0; ANSWER];
            let mut have = 0;
            while have < ANSWER {
                match stream.read(&mut octets[have..]) {
                    Ok(0) | Err(_) => break,
                    Ok(length) => have += length,
                }
            }
            octets.truncate(have);
            Ok(octets)
        });
        let octets = fetched.expect("in its place").unwrap_or_default();
        let expected = content(number);
        if !expected.starts_with(&octets) {
            tally.wrong(format!("answer {number} over {} is corrupted", FAMILIES[family]));
        }
        let counter = if octets.len() == ANSWER { &tally.whole[family] } else { &tally.reset };
        counter.fetch_add(1, Ordering::Relaxed);
        if octets.is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Sends a datagram every five milliseconds, to each family in turn: even numbers to IPv4, odd ones to IPv6.
fn send(place: &NetworkNamespace, to: [IpAddr; 2], ends: &AtomicBool) {
    let socket = |any| place.within(|| UdpSocket::bind((any, 0))).expect("in its place").expect("a port");
    let sockets = ["0.0.0.0", "::"].map(socket);
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        number += 1;
        let family = number as usize % 2;
        let _ = sockets[family].send_to(&datagram(number), (to[family], 9));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes datagrams in: each is whole, comes once, and from a's address of its family.
fn receive(place: &NetworkNamespace, tally: &Tally, ends: &AtomicBool) {
    let own = OWN.map(|address| address.parse::<IpAddr>().expect("an address"));
    let socket = place.within(|| UdpSocket::bind("[::]:9")).expect("in its place").expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let (mut octets, mut seen) = ([0; 2_000], std::collections::HashSet::new());
    while !ends.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut octets) else { continue };
        let number = octets.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        if octets[..length] != datagram(number) {
            tally.wrong(format!("a datagram of {length} octets is corrupted"));
        }
        if !seen.insert(number) {
            tally.wrong(format!("datagram {number} was delivered twice"));
        }
        let family = number as usize % 2;
        if from.ip().to_canonical() != own[family] {
            tally.wrong(format!("datagram {number} came from {from}"));
        }
        tally.datagrams[family].fetch_add(1, Ordering::Relaxed);
    }
}

/// Repeats what passed, now and later, here and elsewhere, changed and unchanged, under the addresses of those who sent it.
fn attack(capture: &Capture, tally: &Tally, ends: &AtomicBool) {
    let forger = Forger::new(&NetworkNamespace::Own).expect("a raw socket");
    let (mut dice, mut kept) = (7u64, Vec::<Datagram>::new());
    while !ends.load(Ordering::Relaxed) {
        let fresh = capture.datagrams();
        capture.clear();
        kept.extend(fresh.into_iter().filter(|datagram| datagram.payload.len() < 1_500).take(200));
        let surplus = kept.len().saturating_sub(2_000);
        kept.drain(..surplus);
        for _ in 0..50 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let Some(mut datagram) = kept.get((dice >> 33) as usize % kept.len().max(1)).cloned() else { break };
            match dice >> 30 & 7 {
                // As it was.
                0..=2 => {}
                // Another octet.
                3..=5 => {
                    let at = (dice >> 40) as usize % datagram.payload.len();
                    datagram.payload[at] ^= 1 << (dice >> 20 & 7);
                }
                // By another link: as if the packet had skipped a node.
                _ => {
                    let other = &kept[(dice >> 12) as usize % kept.len()];
                    (datagram.from, datagram.to) = (other.from, other.to);
                    if let Some(index) = datagram.payload.get_mut(3) {
                        *index = 1 + (dice >> 50) as u8 % 4;
                    }
                }
            }
            if forger.send(&datagram).is_ok() {
                tally.forged.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Packets between nodes.
fn is_of_nodes(frame: &[u8]) -> bool {
    Datagram::of(frame).is_some_and(|datagram| (50_000..50_100).contains(&datagram.to.port()))
}

/// What leaves the forwarder in the east, whose provider consents to nothing.
fn is_from_east(frame: &[u8]) -> bool {
    let east: Ipv4Addr = address(21).parse().expect("an address");
    // What neighbours say to each other is no packet.
    let is_packet = |datagram: &Datagram| !wayleave_dataplane::link::message::is_message(&datagram.payload);
    is_of_nodes(frame)
        && Datagram::of(frame).is_some_and(|datagram| *datagram.from.ip() == east && is_packet(&datagram))
}

#[test]
fn whatever_is_killed_nothing_is_delivered_that_was_not_consented_to_and_no_stream_is_corrupted() {
    let test =
        "overlay::kills::whatever_is_killed_nothing_is_delivered_that_was_not_consented_to_and_no_stream_is_corrupted";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let kills = std::env::var("WAYLEAVE_GATEWAY_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let plan = Plan { consent_secs: 10, lasts: Some(60), denies_east: true, ..Plan::default() };
    let mut world = World::with("gateway-kills", &plan);
    for name in ["fast.b.overlay", "clean.b.overlay"] {
        let begin = Instant::now();
        while !world.nodes["a"].ask(&["ping", name]).status.success() {
            let why = ["a", "b"]
                .map(|of| format!("{}\n{}", world.nodes[of].show("status", &[]), world.nodes[of].show("paths", &[])));
            assert!(
                begin.elapsed() < RECOVERY,
                "a does not reach {name}: {}\n{why:?}",
                world.nodes["a"].json(&["why", name])
            );
        }
    }
    use_names(&world.network);
    let [fast, clean] = ["fast.b.overlay", "clean.b.overlay"].map(|name| addresses_of(&world.places["a"], name));
    let (tally, ends) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
    let capture = Capture::start(&NetworkNamespace::Own, is_of_nodes).expect("a packet socket");
    // The attacker's own packets bear the address of the forwarder in the east too, but leave elsewhere.
    let east = Capture::start(&world.places["e"], is_from_east).expect("a packet socket");
    let (a, b) = (world.places["a"].clone(), world.places["b"].clone());
    serve(&b);
    let mut threads = Vec::new();
    let run = |task: Task| {
        let (tally, ends) = (Arc::clone(&tally), Arc::clone(&ends));
        std::thread::spawn(move || task(&tally, &ends))
    };
    for (family, to) in fast.into_iter().enumerate() {
        let a = a.clone();
        threads.push(run(Box::new(move |tally, ends| fetch(&a, family, to, tally, ends))));
    }
    threads.push(run(Box::new(move |_, ends| send(&a, clean, ends))));
    threads.push(run(Box::new(move |tally, ends| receive(&b, tally, ends))));
    threads.push(run(Box::new(move |tally, ends| attack(&capture, tally, ends))));

    let begin = Instant::now();
    let mut dice = 1u64;
    for kill in 0..kills {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let World { paths, consent, nodes, realm, .. } = &mut world;
        let mut all: Vec<_> =
            nodes.values_mut().chain(consent.iter_mut()).chain([paths, &mut realm.operator]).collect();
        let of = (dice >> 33) as usize % all.len();
        all[of].kill();
        std::thread::sleep(Duration::from_millis((dice >> 20) % 300));
        all[of].spawn();
        let name = all[of].name.clone();
        std::thread::sleep(Duration::from_millis(400 + (dice >> 40) % 500));
        let wrong = tally.wrong.lock().expect("no panic").clone();
        assert!(wrong.is_empty(), "after kill {kill} (of {name}): {wrong:?}\n{}", world.logs());
    }
    eprintln!("{kills} kills took {:?}: {tally:?}", begin.elapsed());
    // What was killed is there again, and traffic goes on.
    let World { paths, consent, nodes, realm, .. } = &mut world;
    for running in nodes.values_mut().chain(consent.iter_mut()).chain([paths, &mut realm.operator]) {
        running.wait();
    }
    let before = tally.arrived();
    let begin = Instant::now();
    while tally.arrived().iter().zip(before).any(|(now, before)| *now <= before) {
        let shown = || {
            ["a", "b"].map(|name| {
                format!("{}\n{}", world.nodes[name].show("status", &[]), world.nodes[name].show("paths", &[]))
            })
        };
        assert!(begin.elapsed() < RECOVERY, "traffic does not go on: {tally:?}\n{:?}\n{}", shown(), world.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("traffic went on {:?} later: {tally:?}", begin.elapsed());
    ends.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let wrong = tally.wrong.lock().expect("no panic").clone();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(Tally::count(&tally.forged) > 100 && !tally.arrived().contains(&0), "{tally:?}");
    assert_eq!(east.frames().len(), 0, "no packet left a forwarder whose provider consents to nothing");
}

//! ICC, a proxy's stack: packets lost and out of order, ends that do not read, resets, ICMP errors, more connections than there may
//! be: octets intact, memory within its limits, each end told of the other.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const OWN: [&str; 2] = ["10.0.1.1", "fd00:1::1"];
const FAR: [&str; 2] = ["10.0.2.1", "fd00:2::1"];
const MTU: u16 = 1_500;

/// A far end with one connection, and the way to it.
struct Peer {
    port: StackPort,
    interface: Interface,
    sockets: SocketSet<'static>,
    device: Device,
    socket: SocketHandle,
    clock: Clock,
    /// Of 100 packets so many are lost, and as many are late.
    loss: u32,
    random: u32,
    late: Vec<(bool, Vec<u8>)>,
    reads: bool,
    read: Vec<u8>,
    to_write: VecDeque<u8>,
    written: usize,
    closes: bool,
    packets: Vec<Packet>,
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at_far(v6: usize) -> SocketAddr {
    SocketAddr::new(address(FAR[v6]), 80)
}

fn pair(loss: u32) -> (Stack, Peer) {
    let clock = Clock::start();
    let (stack, port) = open(clock, MTU, 7).unwrap();
    stack.set_addresses(&OWN.map(address));
    let mut device = Device { mtu: MTU.into(), capacity: MOST_PACKETS, ..Device::default() };
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, at(clock.now().instant));
    interface.update_ip_addrs(|all| {
        all.push(IpCidr::new(address(FAR[0]).into(), 32)).unwrap();
        all.push(IpCidr::new(address(FAR[1]).into(), 128)).unwrap();
    });
    interface.routes_mut().add_default_ipv4_route("10.0.2.1".parse().unwrap()).unwrap();
    interface.routes_mut().add_default_ipv6_route("fd00:2::1".parse().unwrap()).unwrap();
    let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.listen(80).unwrap();
    let mut sockets = SocketSet::new(Vec::new());
    let socket = sockets.add(socket);
    let peer = Peer {
        port,
        interface,
        sockets,
        device,
        socket,
        clock,
        loss,
        random: 0x9e37_79b9,
        late: Vec::new(),
        reads: true,
        read: Vec::new(),
        to_write: VecDeque::new(),
        written: 0,
        closes: false,
        packets: Vec::new(),
    };
    (stack, peer)
}

impl Peer {
    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    /// What becomes of a packet: those that arrive now.
    fn carried(&mut self, is_out: bool, octets: Vec<u8>) -> Vec<(bool, Vec<u8>)> {
        let mut draw = || {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 17;
            self.random ^= self.random << 5;
            self.random % 100
        };
        let (is_lost, is_late) = (draw() < self.loss, draw() < self.loss);
        if is_lost {
            return Vec::new();
        }
        if is_late {
            self.late.push((is_out, octets));
            return Vec::new();
        }
        let late = std::mem::take(&mut self.late);
        [(is_out, octets)].into_iter().chain(late).collect()
    }

    fn turn(&mut self) {
        let mut arriving = Vec::new();
        while let Some(packet) = self.port.read() {
            assert!(packet.octets.len() <= MTU.into());
            self.packets.push(packet.clone());
            arriving.extend(self.carried(true, packet.octets));
        }
        for octets in std::mem::take(&mut self.device.out) {
            arriving.extend(self.carried(false, octets));
        }
        let now = at(self.clock.now().instant);
        for (is_out, octets) in arriving {
            if is_out {
                self.device.arrived = Some(octets);
                self.interface.poll_ingress_single(now, &mut self.device, &mut self.sockets);
            } else {
                let _ = self.port.write(&octets); // what finds no room is lost
            }
        }
        let Self { sockets, socket, reads, read, to_write, written, closes, .. } = self;
        let socket = sockets.get_mut::<tcp::Socket<'_>>(*socket);
        if *reads && socket.can_recv() {
            socket.recv(|octets| (octets.len(), read.extend_from_slice(octets))).unwrap();
        }
        if socket.can_send() && !to_write.is_empty() {
            let count = socket.send_slice(to_write.make_contiguous()).unwrap();
            to_write.drain(..count);
            *written += count;
        }
        if *closes && to_write.is_empty() && socket.may_send() {
            socket.close();
        }
        self.interface.poll_egress(now, &mut self.device, &mut self.sockets);
    }

    /// Goes on until `work` is done.
    async fn until<T>(&mut self, stack: &Stack, work: impl Future<Output = T>) -> T {
        let carry = async {
            loop {
                self.turn();
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = stack.clone().run() => unreachable!("it never returns"),
            () = carry => unreachable!("it never returns"),
        }
    }

    /// Goes on for a number of turns.
    async fn turns(&mut self, stack: &Stack, count: usize) {
        for _ in 0..count {
            self.turn();
            stack.0.work();
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

fn pattern(octets: usize, seed: u32) -> Vec<u8> {
    (0..octets as u32 / 4).flat_map(|n| (n ^ seed).wrapping_mul(2_654_435_761).to_be_bytes()).collect()
}

#[tokio::test]
async fn octets_go_both_ways_intact_whatever_is_lost_or_late_and_both_ends_are_told_of_the_end() {
    for (v6, loss, length) in [(0, 0, 1 << 20), (0, 4, 1 << 17), (1, 4, 1 << 17)] {
        let (stack, mut peer) = pair(loss);
        let (there, back) = (pattern(length, 1), pattern(length, 2));
        peer.to_write = back.clone().into();
        peer.closes = true;
        let received = peer
            .until(&stack, async {
                let connection = stack.connect(at_far(v6)).await.unwrap();
                let (mut from, mut to) = tokio::io::split(connection);
                let write = async {
                    to.write_all(&there).await.unwrap();
                    to.shutdown().await.unwrap();
                };
                let mut received = Vec::new();
                let read = async { from.read_to_end(&mut received).await.unwrap() };
                tokio::join!(write, read);
                received
            })
            .await;
        assert!(received == back, "{v6} {loss}");
        while !matches!(peer.socket().state(), State::TimeWait | State::Closed) || peer.read.len() < there.len() {
            peer.turns(&stack, 1).await;
        }
        assert!(peer.read == there, "{v6} {loss}");
        let counters = stack.counters();
        assert_eq!(counters, StackCounters { open: 0, sent: length as u64, received: length as u64 });
    }
}

#[tokio::test]
async fn an_end_that_does_not_read_stops_the_other_and_memory_stays_within_its_limits() {
    let (stack, mut peer) = pair(0);
    let all = pattern(8 * BUFFER, 3);
    peer.to_write = all.clone().into();
    peer.closes = true;
    let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
    let filled = |stack: &Stack| locked(&stack.0.state).socket(connection.handle).recv_queue();
    while filled(&stack) < BUFFER - usize::from(MTU) {
        peer.turns(&stack, 1).await;
    }
    peer.turns(&stack, 300).await;
    assert!(filled(&stack) <= BUFFER && peer.written <= 2 * BUFFER, "{} {}", filled(&stack), peer.written);
    assert!(locked(&stack.0.arrived).len() + locked(&stack.0.out).packets.len() < 10);
    let mut received = Vec::new();
    peer.until(&stack, connection.read_to_end(&mut received)).await.unwrap();
    assert!(received == all);
    // The other way.
    peer.reads = false;
    let written = std::cell::Cell::new(0);
    let write = async {
        for piece in all.chunks(1_000) {
            connection.write_all(piece).await.unwrap();
            written.set(written.get() + piece.len());
        }
        connection.shutdown().await.unwrap();
    };
    let mut write = Box::pin(write);
    let mut before = 0;
    // It is over when nothing more is taken in 300 turns.
    loop {
        tokio::select! {
            biased;
            () = peer.turns(&stack, 300) => {}
            () = &mut write => unreachable!("nobody reads"),
        }
        if written.get() == std::mem::replace(&mut before, written.get()) {
            break;
        }
    }
    assert!((BUFFER..=2 * BUFFER).contains(&written.get()), "{}", written.get());
    peer.reads = true;
    peer.until(&stack, write).await;
    while peer.read.len() < all.len() {
        peer.turns(&stack, 1).await;
    }
    assert!(peer.read == all);
}

#[tokio::test]
async fn what_was_not_read_at_the_end_is_read_after_it() {
    let (stack, mut peer) = pair(0);
    let all = pattern(100_000, 4);
    peer.to_write = all.clone().into();
    peer.closes = true;
    let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
    connection.shutdown().await.unwrap();
    while !locked(&stack.0.state).rest.contains_key(&connection.handle) {
        peer.turns(&stack, 1).await;
    }
    let mut received = Vec::new();
    peer.until(&stack, connection.read_to_end(&mut received)).await.unwrap();
    assert!(received == all);
}

#[tokio::test]
async fn a_refusal_and_a_reset_are_passed_on_both_ways() {
    let (stack, mut peer) = pair(0);
    let nobody = SocketAddr::new(address(FAR[0]), 81);
    assert_eq!(peer.until(&stack, stack.connect(nobody)).await.err(), Some(ConnectError::Refused));
    let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
    peer.turns(&stack, 4).await;
    peer.socket().abort();
    let error = peer.until(&stack, connection.read(&mut [0; 9])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(connection.write(b"more").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    drop(connection);
    peer.socket().listen(80).unwrap();
    let connection = peer.until(&stack, stack.connect(at_far(1))).await.unwrap();
    while peer.socket().state() != State::Established {
        peer.turns(&stack, 1).await;
    }
    drop(connection);
    while peer.socket().state() != State::Closed {
        peer.turns(&stack, 1).await;
    }
    // Nobody listens here: whoever comes is refused.
    let mut socket = tcp::Socket::new(tcp::SocketBuffer::new(vec![0; 9]), tcp::SocketBuffer::new(vec![0; 9]));
    let to = (address(OWN[0]), 22);
    socket.connect(peer.interface.context(), to, 99).unwrap();
    peer.socket = peer.sockets.add(socket);
    while peer.socket().state() != State::Closed {
        peer.turns(&stack, 1).await;
    }
    assert_eq!(stack.counters().open, 0);
    // An echo is answered.
    let mut echo = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 2, 1, 10, 0, 1, 1, 8, 0, 0, 0, 0, 7, 0, 1];
    let sum = |octets: &[u8]| {
        let sum: u32 = octets.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        (!((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes()
    };
    let sums = (sum(&echo[..20]), sum(&echo[20..]));
    echo[10..12].copy_from_slice(&sums.0);
    echo[22..24].copy_from_slice(&sums.1);
    assert!(peer.port.write(&echo));
    stack.0.work();
    let answer = peer.port.read().unwrap().octets;
    assert_eq!((&answer[12..20], answer[20], &answer[24..]), (&[10, 0, 1, 1, 10, 0, 2, 1][..], 0, &[0, 7, 0, 1][..]));
}

/// An ICMP error of the gateway about a packet.
fn error(from: &str, about: &[u8], kind: [u8; 2], mtu: u32) -> Vec<u8> {
    let source = match address(from) {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let mut packet = about[..if source.len() == 4 { 20 } else { 40 }].to_vec();
    let (protocol, at, code) = if source.len() == 4 { (9, 12, 1) } else { (6, 8, 58) };
    packet[protocol] = code;
    packet[at..at + source.len()].copy_from_slice(&source);
    packet.extend([kind[0], kind[1], 0, 0]);
    packet.extend(mtu.to_be_bytes());
    packet.extend(&about[..64.min(about.len())]);
    packet
}

#[tokio::test]
async fn an_icmp_error_of_any_router_on_the_way_ends_an_attempt_and_no_other_and_no_connection() {
    for (v6, from, kind, expected) in [
        (0, FAR[0], [3, 13], ConnectError::Prohibited),
        (0, "10.0.2.254", [3, 1], ConnectError::Unreachable),
        (1, "fd00:2::fe", [1, 1], ConnectError::Prohibited),
        (1, FAR[1], [1, 3], ConnectError::Unreachable),
    ] {
        let (stack, peer) = pair(0);
        let begun = stack.connect(at_far(v6));
        let answer = async {
            let mut first = None;
            loop {
                stack.0.work();
                if let Some(syn) = peer.port.read()
                    && first.is_none()
                {
                    let mut other = syn.octets.clone();
                    other[[20, 40][v6]] ^= 1;
                    assert!(peer.port.write(&error(from, &other, kind, 0)));
                    stack.0.work();
                    assert_eq!(stack.counters().open, 1);
                    assert!(locked(&stack.0.state).failed.is_empty(), "it is about another port");
                    assert!(peer.port.write(&error(from, &syn.octets, kind, 0)));
                    first = Some(());
                }
                tokio::task::yield_now().await;
            }
        };
        let failed = tokio::select! {
            connected = begun => connected.err(),
            () = answer => unreachable!("it never returns"),
        };
        assert_eq!(failed, Some(expected), "{kind:?}");
    }
    let (stack, mut peer) = pair(0);
    let mut connection = peer.until(&stack, stack.connect(at_far(0))).await.unwrap();
    peer.turns(&stack, 4).await;
    let ack = peer.packets.last().unwrap().octets.clone();
    assert!(peer.port.write(&error(FAR[0], &ack, [3, 13], 0)));
    // Destinations that were learned long ago give way to those of now.
    for number in 0..MOST_MTUS as u32 {
        let now = stack.0.clock.now().instant;
        locked(&stack.0.state).device.mtus.insert(IpAddr::from((0x0a01_0000 + number).to_be_bytes()), (1_280, now));
    }
    assert!(peer.port.write(&error("10.0.2.254", &ack, [3, 4], 1_300)));
    peer.turns(&stack, 4).await;
    assert_eq!(locked(&stack.0.state).device.mtus.len(), MOST_MTUS);
    let begin = peer.packets.len();
    connection.write_all(&pattern(20_000, 5)).await.unwrap();
    while peer.read.len() < 20_000 {
        peer.turns(&stack, 1).await;
    }
    let long = peer.packets[begin..].iter().filter(|packet| packet.octets.len() > 1_300);
    let segments: BTreeSet<Option<u16>> = long.map(|packet| packet.segment).collect();
    assert_eq!(segments, [Some(1_260)].into());
    assert!(peer.packets[begin..].iter().all(|packet| packet.octets.len() > 1_300 || packet.segment.is_none()));
}

#[tokio::test]
async fn there_are_no_more_connections_and_packets_than_there_may_be() {
    let (stack, peer) = pair(0);
    let all: Vec<Connection> = (0..MOST_CONNECTIONS).map(|_| stack.begin(at_far(0)).unwrap()).collect();
    assert_eq!(stack.begin(at_far(0)).err(), Some(ConnectError::Busy));
    assert_eq!(stack.counters().open, MOST_CONNECTIONS);
    for _ in 0..4 {
        stack.0.work();
        assert!(locked(&stack.0.out).packets.len() <= MOST_PACKETS);
    }
    while peer.port.read().is_some() {}
    drop(all);
    for _ in 0..3 {
        let more: Vec<Connection> = (0..MOST_CONNECTIONS).map(|_| stack.begin(at_far(0)).unwrap()).collect();
        stack.0.work();
        drop(more);
        stack.0.work();
        let state = locked(&stack.0.state);
        assert!(state.closing.len() <= MOST_CONNECTIONS + 1 && state.ports.len() <= 2 * MOST_CONNECTIONS);
        assert_eq!(state.ports.len(), state.sockets.iter().count());
    }
    let packet = [0x45; 40];
    let taken = (0..2 * MOST_PACKETS).filter(|_| peer.port.write(&packet)).count();
    assert_eq!(taken, MOST_PACKETS);
    stack.set_addresses(&[]);
    assert_eq!(stack.begin(at_far(0)).err(), Some(ConnectError::NoAddress));
}

#[tokio::test]
async fn datagrams_go_and_come_within_their_limits_and_one_that_the_path_does_not_take_is_refused() {
    let (stack, peer) = pair(0);
    let socket = stack.open_datagrams().unwrap();
    let echo = |packet: &[u8]| {
        // Back to where it came from: addresses and ports change places, and the sums stay.
        let mut packet = packet.to_vec();
        let (at, length) = if packet[0] >> 4 == 4 { (12, 4) } else { (8, 16) };
        let ports = at + 2 * length;
        for begin in 0..length {
            packet.swap(at + begin, at + length + begin);
        }
        packet.swap(ports, ports + 2);
        packet.swap(ports + 1, ports + 3);
        packet
    };
    for v6 in [0, 1] {
        let most = usize::from(MTU) - [28, 48][v6];
        assert_eq!(socket.send(at_far(v6), &vec![0; most + 1]), Err(SendError::TooLong));
        for payload in [Vec::new(), pattern(400, 1), pattern(most, 2)] {
            socket.send(at_far(v6), &payload).unwrap();
            stack.0.work();
            let packet = peer.port.read().unwrap();
            assert_eq!((packet.octets.len(), packet.segment), ([28, 48][v6] + payload.len(), None));
            assert!(peer.port.write(&echo(&packet.octets)));
            stack.0.work();
            let mut octets = [0; 2_000];
            let (from, length) = socket.receive(&mut octets).await;
            assert!(from == at_far(v6) && octets[..length] == payload);
        }
        // The gateway says what its path takes.
        socket.send(at_far(v6), &pattern(most, 3)).unwrap();
        stack.0.work();
        let about = peer.port.read().unwrap().octets;
        assert!(peer.port.write(&error(FAR[v6], &about, [[3, 4], [2, 0]][v6], 1_300)));
        stack.0.work();
        assert_eq!(socket.send(at_far(v6), &pattern(most, 3)), Err(SendError::TooLong));
        assert_eq!(socket.send(at_far(v6), &pattern(1_200, 3)), Ok(()));
        stack.0.work();
        let arrived = peer.port.read().unwrap().octets;
        // Nobody reads: what finds no room is lost.
        for _ in 0..200 {
            assert!(peer.port.write(&echo(&arrived)));
            stack.0.work();
        }
        let mut read = 0;
        let mut octets = [0; 2_000];
        while tokio::time::timeout(Duration::ZERO, socket.receive(&mut octets)).await.is_ok() {
            read += 1;
        }
        assert!((1..=64).contains(&read), "{read}");
    }
    // Nor does anything leave: as much waits as may.
    let sent = (0..200).take_while(|_| socket.send(at_far(0), &[7; 1_000]).is_ok()).count();
    assert!((1..=64).contains(&sent), "{sent}");
    assert_eq!(socket.send(at_far(0), &[7; 1_000]), Err(SendError::NoRoom));
    let more: Vec<DatagramSocket> = (1..MOST_SOCKETS).map(|_| stack.open_datagrams().unwrap()).collect();
    assert_eq!(stack.open_datagrams().err(), Some(ConnectError::Busy));
    drop((socket, more));
    let state = locked(&stack.0.state);
    assert_eq!((state.ports.len(), state.sockets.iter().count(), state.datagram_sockets), (0, 0, 0));
    drop(state);
    stack.set_addresses(&[]);
    let socket = stack.open_datagrams().unwrap();
    assert_eq!(socket.send(at_far(1), b"x"), Err(SendError::NoAddress));
}

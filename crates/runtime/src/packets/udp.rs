//! UDP in batches. Runs of packets of one length to one place leave as one message that the system cuts (UDP_SEGMENT); what
//! came as one such message is taken in whole (UDP_GRO), and each of its packets stands in its place.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::burst::MESSAGE;
use super::system::messages::{Receiver, Sender};
use super::system::options;
use super::{Burst, Outgoing, Port};

/// Octets of memory in the system for what waits on a socket.
const BUFFERS: i32 = 8 << 20;
/// Messages received at a time, where each may hold many packets.
const MERGED: usize = 16;
/// And where each is one packet.
const SINGLE: usize = 64;
/// Octets of a packet that came alone, at most: a jumbo frame. Odd in cache lines, as [`MESSAGE`] is.
const SINGLE_ROOM: usize = 9_280;
/// Octets of a message that is cut into packets, at most: what an IPv6 datagram holds.
const MESSAGE_MOST: usize = 65_487;
/// Packets of such a message, at most; older systems take half as many.
const SEGMENTS: usize = 128;
const SEGMENTS_OLDER: usize = 64;

/// How a socket takes packets in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Intake {
    /// As one message what a batching sender sent as one (UDP_GRO).
    Merged,
    /// Each packet as a message.
    Single,
}

/// A socket.
pub struct Udp {
    socket: OwnedFd,
    intake: Intake,
    receiver: Receiver,
    run: Run,
    cut: u64,
    left_out: u64,
}

impl std::fmt::Debug for Udp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Udp {:?}, {:?}", self.socket, self.intake)
    }
}

/// Sockets that wait at one address: one for each of some threads, and one more for control traffic.
#[derive(Debug)]
pub struct Group {
    /// For data, in the order of the threads.
    pub data: Vec<Udp>,
    /// For control traffic.
    pub control: Option<Udp>,
}

/// Which packets of a group are control traffic, and which of the others go together: what one flow sends stays in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sorting {
    /// SCION: packets to routers (BFD), SCMP and one-hop paths are control traffic; flows by the header's flow ID.
    Scion,
    /// IP packets in UDP: ICMP and ICMPv6 are control traffic; flows by addresses.
    Ip,
}

/// Opens a group of `threads` sockets at `address`. Sorted groups have one more for control traffic.
///
/// # Errors
/// What the system said; the address is in use, or not one of this machine.
pub fn open(address: SocketAddr, threads: usize, intake: Intake, sorting: Option<Sorting>) -> io::Result<Group> {
    // Another process at this address would take a share of the packets: a socket that does not share comes first.
    drop(UdpSocket::bind(address)?);
    let mut data: Vec<Udp> = Vec::new();
    for _ in 0..threads {
        data.push(Udp::open(address, intake)?);
    }
    let control = match (sorting, data.first()) {
        (Some(sorting), Some(first)) => {
            let control = Udp::open(address, Intake::Single)?;
            options::choose_by(first.socket.as_fd(), &sorting.program(threads as u32))?;
            Some(control)
        }
        _ => None,
    };
    Ok(Group { data, control })
}

impl Sorting {
    /// Classic BPF over the UDP payload; the answer is a socket's place in the order of binding, `threads` for control.
    fn program(self, threads: u32) -> Vec<[u32; 2]> {
        const fn op(code: u32, yes: u32, no: u32) -> u32 {
            code << 16 | yes << 8 | no
        }
        const LOAD_WORD: u32 = op(0x20, 0, 0);
        const LOAD_OCTET: u32 = op(0x30, 0, 0);
        const AND: u32 = op(0x54, 0, 0);
        const MODULO: u32 = op(0x94, 0, 0);
        const EXCLUSIVE_OR: u32 = op(0xac, 0, 0);
        const TO_X: u32 = op(0x07, 0, 0);
        const RETURN: u32 = op(0x06, 0, 0);
        const RETURN_A: u32 = op(0x16, 0, 0);
        const EQUAL: u32 = 0x15;
        match self {
            // Next header 203 (BFD) or 202 (SCMP), path type 2 (one-hop); else the lower 20 bits of the first word.
            Self::Scion => vec![
                [LOAD_OCTET, 4],
                [op(EQUAL, 7, 0), 203],
                [op(EQUAL, 6, 0), 202],
                [LOAD_OCTET, 8],
                [op(EQUAL, 4, 0), 2],
                [LOAD_WORD, 0],
                [AND, 0x000f_ffff],
                [MODULO, threads],
                [RETURN_A, 0],
                [RETURN, threads],
            ],
            // ICMP inside is control traffic; else source and destination. IPv4 first, IPv6 from the twelfth on.
            Self::Ip => {
                let mut all = vec![
                    [LOAD_OCTET, 0],
                    [AND, 0xf0],
                    [op(EQUAL, 8, 0), 0x60],
                    [LOAD_OCTET, 9],
                    [op(EQUAL, 32, 0), 1],
                    [LOAD_WORD, 12],
                    [TO_X, 0],
                    [LOAD_WORD, 16],
                    [EXCLUSIVE_OR, 0],
                    [MODULO, threads],
                    [RETURN_A, 0],
                    [LOAD_OCTET, 6],
                    [op(EQUAL, 24, 0), 58],
                    [LOAD_WORD, 8],
                ];
                all.extend((12..40).step_by(4).flat_map(|word| [[TO_X, 0], [LOAD_WORD, word], [EXCLUSIVE_OR, 0]]));
                all.extend([[MODULO, threads], [RETURN_A, 0], [RETURN, threads]]);
                all
            }
        }
    }
}

impl Udp {
    /// A socket at `address`, which it may share with others of its group.
    fn open(address: SocketAddr, intake: Intake) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        sockopt::set_socket_reuseport(&socket, true)?;
        bind(&socket, &address)?;
        options::buffers(socket.as_fd(), BUFFERS)?;
        if intake == Intake::Merged {
            options::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)?;
        }
        let most = if intake == Intake::Merged { MERGED } else { SINGLE };
        Ok(Self { socket, intake, receiver: Receiver::new(most), run: Run::default(), cut: 0, left_out: 0 })
    }

    /// The address where it waits.
    ///
    /// # Errors
    /// What the system said.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let address = rustix::net::getsockname(&self.socket)?;
        SocketAddr::try_from(address).map_err(io::Error::from)
    }

    /// Packets that were longer than a jumbo frame, or too many for a burst; they are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.cut + self.left_out
    }
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Port for Udp {
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize> {
        burst.clear();
        let (stride, size) = match self.intake {
            Intake::Merged => (MESSAGE, MESSAGE),
            Intake::Single => (SINGLE_ROOM, SINGLE_ROOM),
        };
        let count = self.receiver.receive(self.socket.as_fd(), burst.memory(), stride, size)?;
        for index in 0..count {
            let message = self.receiver.message(index);
            if message.is_cut {
                self.cut += 1;
                continue;
            }
            self.left_out += burst.split(index * stride, message.length, message.segment, message.from) as u64;
        }
        Ok(burst.len())
    }

    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        self.run.send(self.socket.as_fd(), burst, out)
    }
}

/// Puts packets together into messages.
pub(super) struct Run {
    sender: Sender,
    /// Packets of each message.
    counts: Vec<usize>,
    segments: usize,
}

impl Default for Run {
    fn default() -> Self {
        Self { sender: Sender::default(), counts: Vec::new(), segments: SEGMENTS }
    }
}

impl Run {
    /// Raw sockets have no segments.
    pub(super) fn alone() -> Self {
        Self { segments: 1, ..Self::default() }
    }

    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        let mut progress = Progress { rest: out, sent: 0, failed: None };
        while !progress.rest.is_empty() {
            self.gather(burst, progress.rest, self.segments);
            let halt = match self.flush(socket, burst, &mut progress) {
                Halt::Refused(count) => self.send_in_pieces(socket, burst, count, &mut progress),
                halt => halt,
            };
            if matches!(halt, Halt::NoRoom) {
                break;
            }
        }
        match progress {
            Progress { failed: Some(error), sent: 0, .. } => Err(error),
            Progress { sent, .. } => Ok(sent),
        }
    }

    /// Sends what was gathered; a message that fails alone is left behind.
    fn flush(&mut self, socket: BorrowedFd<'_>, burst: &Burst, progress: &mut Progress<'_>) -> Halt {
        let mut first = 0;
        while first < self.sender.len() {
            let count = match self.sender.send(socket, burst.all(), first) {
                Ok(count) => {
                    progress.sent += self.counts[first..first + count].iter().sum::<usize>();
                    count
                }
                Err(error) if has_no_room(&error) => return Halt::NoRoom,
                Err(error) if self.counts[first] > 1 && refuses_segments(&error) => {
                    return Halt::Refused(self.counts[first]);
                }
                Err(error) => {
                    progress.failed.get_or_insert(error);
                    1
                }
            };
            let packets: usize = self.counts[first..first + count].iter().sum();
            progress.rest = &progress.rest[packets..];
            first += count;
        }
        Halt::End
    }

    /// Sends the `count` packets of one message that cannot go as it is, in shorter messages or each alone: a route or a card
    /// takes no segments, or not so many. Those after them are not concerned.
    fn send_in_pieces(
        &mut self,
        socket: BorrowedFd<'_>,
        burst: &Burst,
        count: usize,
        progress: &mut Progress<'_>,
    ) -> Halt {
        let (message, after) = progress.rest.split_at(count);
        progress.rest = message;
        let mut halt = Halt::Refused(count);
        if count > SEGMENTS_OLDER {
            let before = progress.sent;
            self.gather(burst, message, SEGMENTS_OLDER);
            halt = self.flush(socket, burst, progress);
            if progress.sent > before {
                self.segments = SEGMENTS_OLDER; // an older system
            }
        }
        if matches!(halt, Halt::Refused(_)) {
            self.gather(burst, progress.rest, 1);
            halt = self.flush(socket, burst, progress);
        }
        if !matches!(halt, Halt::NoRoom) {
            progress.rest = after;
        }
        halt
    }

    /// Packets in their order, up to `together` of one length and one destination in a message; its last one may be shorter.
    fn gather(&mut self, burst: &Burst, out: &[Outgoing], together: usize) {
        self.sender.clear();
        self.counts.clear();
        let mut rest = out;
        while let Some(first) = rest.first() {
            let length = burst.octets(first.packet as usize).len();
            self.sender.begin(first.to);
            let most = together.min(MESSAGE_MOST.checked_div(length).unwrap_or(1)).max(1);
            let mut count = 0;
            for next in rest.iter().take(most) {
                let octets = burst.octets(next.packet as usize);
                if next.to != first.to
                    || octets.len() > length
                    || octets.is_empty() && count > 0
                    || !self.has_place(count)
                {
                    break;
                }
                self.sender.append(octets);
                count += 1;
                if octets.len() < length {
                    break;
                }
            }
            if count > 1 {
                self.sender.cut(length as u16); // at most MESSAGE_MOST
            }
            self.counts.push(count);
            rest = &rest[count..];
        }
    }

    fn has_place(&self, count: usize) -> bool {
        count == 0 || self.sender.has_place()
    }
}

/// What is still to send, and what became of the rest.
struct Progress<'a> {
    rest: &'a [Outgoing],
    sent: usize,
    failed: Option<io::Error>,
}

/// Why no more messages were sent.
enum Halt {
    /// There are no more.
    End,
    /// What the system holds already has no end.
    NoRoom,
    /// The next message, of so many packets, cannot go as one.
    Refused(usize),
}

/// Whether a message may go if it is not cut into segments, or into fewer.
fn refuses_segments(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EMSGSIZE | libc::EIO | libc::EOPNOTSUPP))
}

/// Whether the system took a message not, because what it holds already has no end.
pub(super) fn has_no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::packets::wait;

    /// An address that no other test has; the port is below those that the system lends, as a rule.
    fn loopback() -> SocketAddr {
        static CALLS: AtomicU8 = AtomicU8::new(1);
        SocketAddr::from(([127, 77, 0, CALLS.fetch_add(1, Ordering::Relaxed)], 7_777))
    }

    /// Receives until `count` packets have come, or nothing more does.
    fn receive(port: &mut dyn Port, count: usize) -> Vec<Vec<u8>> {
        let mut burst = Burst::default();
        let mut all = Vec::new();
        for _ in 0..1_000 {
            if all.len() >= count {
                break;
            }
            wait([&*port].into_iter(), Duration::from_millis(10)).expect("waiting");
            port.receive(&mut burst).expect("receiving");
            all.extend((0..burst.len()).map(|packet| burst.octets(packet).to_vec()));
        }
        all
    }

    fn one(intake: Intake) -> (Udp, SocketAddr) {
        let address = loopback();
        let mut group = open(address, 1, intake, None).expect("a socket");
        (group.data.remove(0), address)
    }

    #[test]
    fn every_packet_arrives_whole_and_in_order_by_every_intake() {
        for intake in [Intake::Merged, Intake::Single] {
            let ((mut sender, here), (mut receiver, there)) = (one(Intake::Single), one(intake));
            let mut burst = Burst::default();
            let lengths = [200, 200, 200, 50, 200, 0, 300, 200, 200, 1, 0, 0, 1_400];
            let packets: Vec<Vec<u8>> =
                (0..600usize).map(|number| vec![number as u8; lengths[number * number / 37 % lengths.len()]]).collect();
            for packet in &packets {
                assert!(burst.push(packet, here));
            }
            // Every seventh one was dropped on the way.
            let out: Vec<Outgoing> =
                (0..600).filter(|packet| packet % 7 != 3).map(|packet| Outgoing { packet, to: there }).collect();
            assert_eq!(sender.send(&burst, &out).expect("sent"), out.len());
            let expected: Vec<&Vec<u8>> = out.iter().map(|out| &packets[out.packet as usize]).collect();
            let arrived = receive(&mut receiver, out.len());
            assert!(arrived.iter().eq(expected), "{intake:?}: {} of {}", arrived.len(), out.len());
        }
    }

    #[test]
    fn packets_of_one_length_leave_as_one_message_around_those_that_were_dropped() {
        let mut burst = Burst::default();
        (0..300u32).for_each(|number| assert!(burst.push(&[number as u8; 64], loopback_of(1))));
        let out: Vec<Outgoing> =
            (0..300).filter(|n| n % 10 != 0).map(|packet| Outgoing { packet, to: loopback_of(9) }).collect();
        let mut run = Run::default();
        run.gather(&burst, &out, SEGMENTS);
        assert_eq!(run.counts, [128, 128, 14]);
        run.gather(&burst, &out[..3], 1);
        assert_eq!(run.counts, [1, 1, 1]);
    }

    fn loopback_of(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_place_that_cannot_be_reached_costs_its_own_packets_only() {
        let ((mut sender, here), (mut receiver, there)) = (one(Intake::Single), one(Intake::Single));
        let mut burst = Burst::default();
        (0..9u8).for_each(|number| assert!(burst.push(&[number; 100], here)));
        // A broadcast needs a permission that the socket has not.
        let nowhere = SocketAddr::from(([255, 255, 255, 255], 9));
        let to = |packet: u32| if (3..6).contains(&packet) { nowhere } else { there };
        let out: Vec<Outgoing> = (0..9).map(|packet| Outgoing { packet, to: to(packet) }).collect();
        assert_eq!(sender.send(&burst, &out).expect("sent"), 6);
        let first: Vec<u8> = receive(&mut receiver, 6).iter().map(|packet| packet[0]).collect();
        assert_eq!(first, [0, 1, 2, 6, 7, 8]);
    }

    #[test]
    fn one_message_that_cannot_go_leaves_the_others_together() {
        let (mut sender, here) = one(Intake::Single);
        let (_receiver, there) = one(Intake::Merged);
        let mut burst = Burst::default();
        (0..120u8).for_each(|number| assert!(burst.push(&[number; 100], here)));
        // Nothing may leave for a broadcast, and nothing at all for port 0.
        for nowhere in [([255, 255, 255, 255], 9), ([127, 0, 0, 1], 0)].map(SocketAddr::from) {
            let to = |packet: u32| if packet < 60 { nowhere } else { there };
            let out: Vec<Outgoing> = (0..120).map(|packet| Outgoing { packet, to: to(packet) }).collect();
            assert_eq!(sender.send(&burst, &out).expect("sent"), 60, "{nowhere}");
            assert_eq!(sender.run.segments, SEGMENTS);
            assert_eq!(sender.run.counts.last(), Some(&60), "{nowhere}");
        }
    }

    #[test]
    fn ip_in_udp_is_sorted_by_the_version_of_its_header() {
        let address = loopback();
        let Group { mut data, control } = open(address, 2, Intake::Single, Some(Sorting::Ip)).expect("sockets");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let v4 = |protocol: u8, last: u8| {
            let mut packet = [0; 20];
            (packet[0], packet[9], packet[19]) = (0x45, protocol, last);
            packet.to_vec()
        };
        // A source in 2001::/16, whose second octet stands where IPv4 names its protocol.
        let v6 = |next: u8, place: usize| {
            let mut packet = [0; 40];
            (packet[0], packet[6], packet[8], packet[9]) = (0x60, next, 0x20, 1);
            packet[place] ^= 1;
            packet.to_vec()
        };
        for packet in [v4(1, 0), v6(58, 39), v4(1, 1)] {
            sender.send_to(&packet, address).expect("sent");
        }
        assert_eq!(receive(&mut control.expect("sorted"), 3), [v4(1, 0), v6(58, 39), v4(1, 1)]);
        // Every word of both addresses counts: 0x2001_0000 is even, so that one bit more makes it odd.
        for packet in [v4(17, 0), v4(17, 1), v6(17, 24), v6(17, 11), v6(17, 39), v6(17, 27), v6(1, 15)] {
            sender.send_to(&packet, address).expect("sent");
        }
        assert_eq!(receive(&mut data[0], 2), [v4(17, 0), v6(17, 24)]);
        assert_eq!(receive(&mut data[1], 5), [v4(17, 1), v6(17, 11), v6(17, 39), v6(17, 27), v6(1, 15)]);
    }

    #[test]
    fn control_traffic_has_a_queue_of_its_own_and_a_flow_stays_on_one_thread() {
        let address = loopback();
        let Group { mut data, control } = open(address, 3, Intake::Merged, Some(Sorting::Scion)).expect("sockets");
        let mut control = control.expect("sorted");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        // Version and flow ID, next header, header's length, payload's length, path type.
        let packet = |flow: u8, next: u8, path: u8| [0, 0, 0, flow, next, 9, 0, 8, path, 0, 0, 0];
        for flow in 0..30 {
            sender.send_to(&packet(flow, 17, 1), address).expect("sent");
        }
        for (next, path) in [(203, 1), (202, 1), (17, 2)] {
            sender.send_to(&packet(0, next, path), address).expect("sent");
        }
        for (thread, port) in data.iter_mut().enumerate() {
            let flows: Vec<usize> = receive(port, 10).iter().map(|packet| packet[3].into()).collect();
            assert_eq!(flows, (0..10).map(|n| n * 3 + thread).collect::<Vec<_>>());
        }
        assert_eq!(receive(&mut control, 3).len(), 3);
    }

    #[test]
    fn an_address_that_is_taken_is_refused() {
        let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let refused = open(taken.local_addr().expect("an address"), 1, Intake::Merged, None).expect_err("taken");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}

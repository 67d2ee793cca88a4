//! UDP in batches. Packets in a row of one length to one destination leave as one message that the system cuts
//! (UDP_SEGMENT); what was sent so is received as one message (UDP_GRO), and its packets are processed in place.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::burst::MESSAGE;
use super::steering::Steering;
use super::system::messages::{Receiver, Sender};
use super::system::options;
use super::{Burst, MAX_PACKETS, Outgoing, Port};

/// Bytes that the system may queue on a socket.
const BUFFERS: i32 = 8 << 20;
/// Messages received in one call, where each may hold many packets, and where each is one packet.
const MERGED: usize = 16;
const SINGLE: usize = 64;
/// Octets of a packet that came as one message, at most: a jumbo frame. An odd number of cache lines, as [`MESSAGE`] is.
const SINGLE_LENGTH: usize = 9_280;
/// Octets of a message that is cut into packets, at most: what an IPv6 datagram holds.
const MAX_MESSAGE: usize = 65_487;
/// Packets of such a message, at most; older systems take half as many.
const SEGMENTS: usize = 128;
const SEGMENTS_OLDER: usize = 64;

/// How a socket receives.
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
    batcher: Batcher,
    /// Packets longer than the memory for them, and packets too many for a burst.
    truncated: u64,
    left_out: u64,
}

impl std::fmt::Debug for Udp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Udp {:?}, {:?}", self.socket, self.intake)
    }
}

/// Sockets at one address: one for the data of each thread, and one for control traffic.
#[derive(Debug)]
pub struct Group {
    /// In the order of the threads.
    pub data: Vec<Udp>,
    pub control: Option<Udp>,
}

/// Opens a group of `threads` sockets at `address`; with `steering`, one more for control traffic.
///
/// # Errors
/// What the system said; the address is in use, or not one of this machine.
pub fn open(address: SocketAddr, threads: usize, intake: Intake, steering: Option<Steering>) -> io::Result<Group> {
    // Sockets of a group share their address, and another process could join and receive a share of the packets. A socket
    // that does not share it shows whether one is there.
    drop(UdpSocket::bind(address)?);
    // The data sockets first, then the one for control traffic: the program names sockets by the order in which they were bound.
    let mut data = vec![Udp::open(address, intake)?];
    // The system may have chosen the port: the others have the same.
    let address = data[0].address()?;
    for _ in 1..threads {
        data.push(Udp::open(address, intake)?);
    }
    let control = match (steering, data.first()) {
        (Some(steering), Some(first)) => {
            let control = Udp::open(address, Intake::Single)?;
            options::choose_by(first.socket.as_fd(), &steering.program(threads as u32, address.is_ipv6()))?;
            Some(control)
        }
        _ => None,
    };
    Ok(Group { data, control })
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
        Ok(Self::with(socket, intake))
    }

    /// Marks what is sent from here on, for the system's rules of routing (`SO_MARK`).
    ///
    /// # Errors
    /// What the system said: this needs CAP_NET_ADMIN.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        super::set_mark(self.socket.as_fd(), mark)
    }

    /// What is sent from here on leaves whole or not at all, whatever the system believes of the path (RFC 8899 section 4.3).
    ///
    /// # Errors
    /// What the system said.
    pub fn never_fragment(&self) -> io::Result<()> {
        let socket = self.socket.as_fd();
        match self.address()? {
            SocketAddr::V4(_) => options::set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
            SocketAddr::V6(_) => {
                options::set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
            }
        }
    }

    /// A socket that was opened elsewhere, and shares its address with nobody.
    ///
    /// # Errors
    /// What the system said.
    pub fn of(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = OwnedFd::from(socket);
        options::buffers(socket.as_fd(), BUFFERS)?;
        Ok(Self::with(socket, Intake::Single))
    }

    fn with(socket: OwnedFd, intake: Intake) -> Self {
        let most = if intake == Intake::Merged { MERGED } else { SINGLE };
        let receiver = Receiver::new(most);
        Self { socket, intake, receiver, batcher: Batcher::default(), truncated: 0, left_out: 0 }
    }

    /// The address that it is bound to.
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
        self.truncated + self.left_out
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
            Intake::Single => (SINGLE_LENGTH, SINGLE_LENGTH),
        };
        let count = self.receiver.receive(self.socket.as_fd(), burst.memory(), stride, size)?;
        for index in 0..count {
            let message = self.receiver.message(index);
            if message.is_cut {
                self.truncated += 1;
                continue;
            }
            self.left_out += burst.split(index * stride, message.length, message.segment, message.from) as u64;
        }
        Ok(burst.len())
    }

    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        self.batcher.send(self.socket.as_fd(), burst, out)
    }

    fn unsent(&self) -> Option<&[u32]> {
        Some(self.batcher.unsent())
    }

    fn send_run(&mut self, octets: &[u8], size: usize, to: SocketAddr) -> Option<io::Result<usize>> {
        self.batcher.send_run(self.socket.as_fd(), octets, size, to)
    }
}

/// Gathers packets into messages, and sends them.
pub(super) struct Batcher {
    sender: Sender,
    /// Packets of each message.
    counts: Vec<usize>,
    /// Packets that the system cuts a message into, at most.
    segments: usize,
    /// Of the last [`Batcher::send`], the packets that did not leave, by their indices in the burst.
    unsent: Vec<u32>,
}

impl Default for Batcher {
    fn default() -> Self {
        let unsent = Vec::with_capacity(MAX_PACKETS);
        Self { sender: Sender::default(), counts: Vec::new(), segments: SEGMENTS, unsent }
    }
}

impl Batcher {
    /// For raw sockets, which cut no messages.
    pub(super) fn without_segments() -> Self {
        Self { segments: 1, ..Self::default() }
    }

    pub(super) fn unsent(&self) -> &[u32] {
        &self.unsent
    }

    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        self.unsent.clear();
        let mut progress = Progress { rest: out, sent: 0, failed: None };
        while !progress.rest.is_empty() {
            self.gather(burst, progress.rest, self.segments);
            let halt = match self.flush(socket, burst, &mut progress) {
                Halt::Refused(count) => self.send_in_pieces(socket, burst, count, &mut progress),
                halt => halt,
            };
            if matches!(halt, Halt::QueueFull) {
                self.unsent.extend(progress.rest.iter().map(|out| out.packet));
                break;
            }
        }
        match progress {
            Progress { failed: Some(error), sent: 0, .. } => Err(error),
            Progress { sent, .. } => Ok(sent),
        }
    }

    /// [`Port::send_run`]. Where the system takes no segments, or fewer, the other way finds out what it takes.
    fn send_run(
        &mut self,
        socket: BorrowedFd<'_>,
        octets: &[u8],
        size: usize,
        to: SocketAddr,
    ) -> Option<io::Result<usize>> {
        let together = self.segments.min(MAX_MESSAGE.checked_div(size).unwrap_or(0));
        let length = u16::try_from(size).ok().filter(|_| together > 1 && octets.len() > size)?;
        self.sender.clear();
        self.counts.clear();
        for message in octets.chunks(together * size) {
            self.sender.begin(to);
            self.sender.append(message);
            self.counts.push(message.len().div_ceil(size));
            if message.len() > size {
                self.sender.cut(length);
            }
        }
        let (mut first, mut sent) = (0, 0);
        while first < self.sender.len() {
            match self.sender.send(socket, octets, first) {
                Ok(count) => {
                    sent += self.counts[first..first + count].iter().sum::<usize>();
                    first += count;
                }
                Err(error) if is_out_of_buffers(&error) => break,
                Err(error) if sent == 0 && refuses_segments(&error) => return None,
                Err(error) if sent == 0 => return Some(Err(error)),
                Err(_) => break,
            }
        }
        Some(Ok(sent))
    }

    /// Sends what was gathered; a message that the system refuses is left out.
    fn flush(&mut self, socket: BorrowedFd<'_>, burst: &Burst, progress: &mut Progress<'_>) -> Halt {
        let mut first = 0;
        while first < self.sender.len() {
            let count = match self.sender.send(socket, burst.all(), first) {
                Ok(count) => {
                    progress.sent += self.counts[first..first + count].iter().sum::<usize>();
                    count
                }
                Err(error) if is_out_of_buffers(&error) => return Halt::QueueFull,
                Err(error) if self.counts[first] > 1 && refuses_segments(&error) => {
                    return Halt::Refused(self.counts[first]);
                }
                Err(error) => {
                    progress.failed.get_or_insert(error);
                    self.unsent.extend(progress.rest[..self.counts[first]].iter().map(|out| out.packet));
                    1
                }
            };
            let packets: usize = self.counts[first..first + count].iter().sum();
            progress.rest = &progress.rest[packets..];
            first += count;
        }
        Halt::End
    }

    /// Sends the `count` packets of a refused message in shorter messages, or each as its own: some routes and network cards
    /// take no segments, and older systems take fewer. The packets behind them are not concerned.
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
        if matches!(halt, Halt::QueueFull) {
            self.unsent.extend(after.iter().map(|out| out.packet));
        } else {
            progress.rest = after;
        }
        halt
    }

    /// Gathers packets in their order, up to `together` of one length and one destination into a message, whose last one may
    /// be shorter.
    fn gather(&mut self, burst: &Burst, out: &[Outgoing], together: usize) {
        self.sender.clear();
        self.counts.clear();
        let mut rest = out;
        while let Some(first) = rest.first() {
            let length = burst.octets(first.packet as usize).len();
            self.sender.begin(first.to);
            let most = together.min(MAX_MESSAGE.checked_div(length).unwrap_or(1)).max(1);
            let mut count = 0;
            for next in rest.iter().take(most) {
                let octets = burst.octets(next.packet as usize);
                if next.to != first.to
                    || octets.len() > length
                    || octets.is_empty() && count > 0
                    || !self.has_capacity(count)
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
                self.sender.cut(length as u16); // at most MAX_MESSAGE
            }
            self.counts.push(count);
            rest = &rest[count..];
        }
    }

    fn has_capacity(&self, count: usize) -> bool {
        count == 0 || self.sender.has_capacity()
    }
}

/// What is still to be sent, and what became of the rest.
struct Progress<'a> {
    rest: &'a [Outgoing],
    sent: usize,
    failed: Option<io::Error>,
}

/// Why no more messages were sent.
enum Halt {
    End,
    /// The system's queue is full.
    QueueFull,
    /// The system refused a message of so many packets, which may go in pieces.
    Refused(usize),
}

/// Whether a message may be sent if it is not cut into segments, or into fewer.
fn refuses_segments(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EMSGSIZE | libc::EIO | libc::EOPNOTSUPP))
}

/// Whether the system refused a message because its queue is full.
pub(super) fn is_out_of_buffers(error: &io::Error) -> bool {
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

    /// SCION's common header: next header BFD or SCMP, one-hop path type; the flow ID in the first word.
    const HEADER: Steering = Steering::Header { control: &[(4, 203), (4, 202), (8, 2)], flow: (0, 0x000f_ffff) };

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
    fn a_datagram_longer_than_the_memory_for_one_is_counted_as_lost_and_the_next_arrives() {
        let (mut receiver, there) = one(Intake::Single);
        let sender = UdpSocket::bind(SocketAddr::new(there.ip(), 0)).expect("a socket");
        for octets in [&[1; SINGLE_LENGTH][..], &[2; SINGLE_LENGTH + 1], &[3; 20_000], &[4; 100]] {
            sender.send_to(octets, there).expect("sent");
        }
        assert_eq!(receive(&mut receiver, 2), [vec![1; SINGLE_LENGTH], vec![4; 100]]);
        assert_eq!(receiver.lost(), 2);
    }

    #[test]
    fn a_run_of_packets_leaves_from_where_it_lies() {
        for intake in [Intake::Merged, Intake::Single] {
            let ((mut sender, _), (mut receiver, there)) = (one(Intake::Single), one(intake));
            for (length, size) in [(100_050, 1_000), (2_500, 1_400), (64 * 300, 64)] {
                let octets: Vec<u8> = (0..length).map(|number: usize| (number / size) as u8).collect();
                let count = length.div_ceil(size);
                assert_eq!(sender.send_run(&octets, size, there).expect("it is for this").expect("sent"), count);
                let arrived = receive(&mut receiver, count);
                assert!(arrived.iter().map(|packet| &packet[..]).eq(octets.chunks(size)), "{intake:?} {length}");
            }
            assert!(sender.send_run(&[0; 9], 9, there).is_none(), "one packet");
            assert!(sender.send_run(&[0; 70_000], 40_000, there).is_none(), "too long to be sent together");
        }
    }

    #[test]
    fn packets_of_one_length_leave_as_one_message_around_those_that_were_dropped() {
        let mut burst = Burst::default();
        (0..300u32).for_each(|number| assert!(burst.push(&[number as u8; 64], loopback_of(1))));
        let out: Vec<Outgoing> =
            (0..300).filter(|n| n % 10 != 0).map(|packet| Outgoing { packet, to: loopback_of(9) }).collect();
        let mut batcher = Batcher::default();
        batcher.gather(&burst, &out, SEGMENTS);
        assert_eq!(batcher.counts, [128, 128, 14]);
        batcher.gather(&burst, &out[..3], 1);
        assert_eq!(batcher.counts, [1, 1, 1]);
    }

    fn loopback_of(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_destination_that_cannot_be_reached_costs_only_its_own_packets() {
        let ((mut sender, here), (mut receiver, there)) = (one(Intake::Single), one(Intake::Single));
        let mut burst = Burst::default();
        (0..9u8).for_each(|number| assert!(burst.push(&[number; 100], here)));
        // A broadcast needs a permission that the socket has not.
        let nowhere = SocketAddr::from(([255, 255, 255, 255], 9));
        let to = |packet: u32| if (3..6).contains(&packet) { nowhere } else { there };
        let out: Vec<Outgoing> = (0..9).map(|packet| Outgoing { packet, to: to(packet) }).collect();
        assert_eq!(sender.send(&burst, &out).expect("sent"), 6);
        assert_eq!(sender.unsent(), Some(&[3, 4, 5][..]));
        let first: Vec<u8> = receive(&mut receiver, 6).iter().map(|packet| packet[0]).collect();
        assert_eq!(first, [0, 1, 2, 6, 7, 8]);
    }

    #[test]
    fn a_refused_message_leaves_the_others_together() {
        let (mut sender, here) = one(Intake::Single);
        let (_receiver, there) = one(Intake::Merged);
        let mut burst = Burst::default();
        (0..120u8).for_each(|number| assert!(burst.push(&[number; 100], here)));
        // Nothing may leave for a broadcast, and nothing at all for port 0.
        for nowhere in [([255, 255, 255, 255], 9), ([127, 0, 0, 1], 0)].map(SocketAddr::from) {
            let to = |packet: u32| if packet < 60 { nowhere } else { there };
            let out: Vec<Outgoing> = (0..120).map(|packet| Outgoing { packet, to: to(packet) }).collect();
            assert_eq!(sender.send(&burst, &out).expect("sent"), 60, "{nowhere}");
            assert!(sender.unsent().is_some_and(|unsent| unsent.iter().copied().eq(0..60)), "{nowhere}");
            assert_eq!(sender.batcher.segments, SEGMENTS);
            assert_eq!(sender.batcher.counts.last(), Some(&60), "{nowhere}");
        }
    }

    #[test]
    fn what_one_source_sends_stays_at_one_socket_but_for_control_traffic() {
        for at in [loopback(), SocketAddr::from(([127, 0, 0, 1], 0)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0))] {
            let steering = Steering::Source { control: 0x80 };
            let Group { mut data, control } = open(at, 2, Intake::Merged, Some(steering)).expect("sockets");
            let here = data[0].address().expect("bound");
            assert_eq!(data[1].address().expect("bound"), here, "one port for all");
            let any = SocketAddr::new(here.ip(), 0);
            let senders: Vec<UdpSocket> = (0..16).map(|_| UdpSocket::bind(any).expect("a socket")).collect();
            for (number, sender) in senders.iter().enumerate() {
                for octet in [1, 2, 0xf4, 3] {
                    sender.send_to(&[octet, number as u8], here).expect("sent");
                }
            }
            let at_control = receive(&mut control.expect("a socket"), 16);
            assert!(at_control.iter().all(|packet| packet[0] == 0xf4), "{here}");
            let mut arrived: [Vec<Vec<u8>>; 2] = Default::default();
            while arrived.iter().map(Vec::len).sum::<usize>() < 48 {
                for (socket, packets) in data.iter_mut().zip(&mut arrived) {
                    let mut burst = Burst::default();
                    socket.receive(&mut burst).expect("receiving");
                    packets.extend((0..burst.len()).map(|packet| burst.octets(packet).to_vec()));
                }
            }
            let of = |packets: &[Vec<u8>], number: u8| {
                packets.iter().filter(|packet| packet[1] == number).map(|packet| packet[0]).collect::<Vec<u8>>()
            };
            for number in 0..16 {
                let mut each: Vec<Vec<u8>> = arrived.iter().map(|packets| of(packets, number)).collect();
                each.sort();
                assert_eq!(each, [vec![], vec![1, 2, 3]], "{here}");
            }
            assert!(arrived.iter().all(|packets| !packets.is_empty()), "{here}: all sources at one socket");
        }
    }

    #[test]
    fn packets_with_an_equal_word_stay_at_one_socket_whoever_sends_them_but_for_control_traffic() {
        let steering = Steering::Word { control: 0x80, at: 16 };
        let Group { mut data, control } = open(loopback(), 3, Intake::Merged, Some(steering)).expect("sockets");
        let here = data[0].address().expect("bound");
        let senders: Vec<UdpSocket> = (0..4).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a socket")).collect();
        let packet = |kind: u8, word: u8, number: u8| {
            let mut octets = [0; 24];
            (octets[0], octets[19], octets[23]) = (kind, word, number);
            octets
        };
        for (number, sender) in (0..).zip(&senders) {
            for word in 0..6 {
                sender.send_to(&packet(0x28, word, number), here).expect("sent");
            }
            sender.send_to(&packet(0xf4, 1, number), here).expect("sent");
            sender.send_to(&[0x28; 17], here).expect("sent");
        }
        assert_eq!(receive(&mut control.expect("steered"), 4).len(), 4);
        for (thread, port) in data.iter_mut().enumerate() {
            // What ends before the word is the first thread's.
            let count = if thread == 0 { 12 } else { 8 };
            let mut words: Vec<u8> = receive(port, count).iter().filter_map(|packet| packet.get(19).copied()).collect();
            words.sort_unstable();
            assert_eq!(words, [[thread as u8; 4], [thread as u8 + 3; 4]].concat());
        }
    }

    #[test]
    fn ip_in_udp_is_steered_by_the_version_of_its_header() {
        let address = loopback();
        let Group { mut data, control } = open(address, 2, Intake::Single, Some(Steering::Ip)).expect("sockets");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let v4 = |protocol: u8, last: u8| {
            let mut packet = [0; 20];
            (packet[0], packet[9], packet[19]) = (0x45, protocol, last);
            packet.to_vec()
        };
        // A source in 2001::/16, whose second octet stands where IPv4 names its protocol.
        let v6 = |next: u8, changed: usize| {
            let mut packet = [0; 40];
            (packet[0], packet[6], packet[8], packet[9]) = (0x60, next, 0x20, 1);
            packet[changed] ^= 1;
            packet.to_vec()
        };
        for packet in [v4(1, 0), v6(58, 39), v4(1, 1)] {
            sender.send_to(&packet, address).expect("sent");
        }
        assert_eq!(receive(&mut control.expect("steered"), 3), [v4(1, 0), v6(58, 39), v4(1, 1)]);
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
        let Group { mut data, control } = open(address, 3, Intake::Merged, Some(HEADER)).expect("sockets");
        let mut control = control.expect("steered");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        // As SCION: flow ID in the first word, next header, lengths, path type.
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

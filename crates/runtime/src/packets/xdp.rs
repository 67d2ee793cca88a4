//! AF_XDP by plain system calls: packets to one UDP port bypass the system's network stack; all others pass through it as
//! usual. IPv4 over Ethernet.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::system::bpf::{self, Attach};
use super::system::interfaces;
use super::system::rings::Rings;
use super::{Burst, MAX_PACKETS, Outgoing, Port};

/// Ethernet, IPv4 without options, UDP.
const HEADERS: usize = 14 + 20 + 8;
/// Packets received in one call.
const RECEIVED: usize = 64;
/// Tries to learn a neighbour's Ethernet address, and the pause after each: two seconds, in which the system repeats its
/// ARP request.
const ARP_TRIES: usize = 40;
const ARP_PAUSE: Duration = Duration::from_millis(50);
/// Tries to bind to a busy interface, and the pause after each: two seconds, since the kernel takes its time to remove what
/// a process that has just ended left there.
const BIND_TRIES: usize = 80;
const BIND_PAUSE: Duration = Duration::from_millis(25);
/// The port of the datagram that makes the system send an ARP request (discard, RFC 863).
const DISCARD: u16 = 9;
/// Wake-ups of the kernel for one burst: in copy mode it sends a part of the ring at each.
const KICKS: usize = 64;

/// Where a socket is bound, and its neighbour.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// The network interface, as in `eth0`.
    pub interface: String,
    /// Its queue.
    pub queue: u32,
    /// The address and UDP port that packets come to.
    pub local: SocketAddrV4,
    /// The next router or host on the link: who gets the frames.
    pub neighbor: Ipv4Addr,
}

/// A socket on one queue of one interface.
pub struct Xdp {
    rings: Rings,
    /// The headers of packets to send, with zeros where packets differ.
    headers: [u8; HEADERS],
    attached: Attach,
    identification: u16,
    lost: u64,
    /// Of the last burst that was sent.
    unsent: Vec<u32>,
    _map: OwnedFd,
    _program: OwnedFd,
    _link: OwnedFd,
}

impl std::fmt::Debug for Xdp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Xdp, {:?}", self.attached)
    }
}

impl Xdp {
    /// Attaches a program to the interface, in its driver if that is possible, and binds a socket to the queue. Tries for two
    /// seconds if another program is attached there.
    ///
    /// # Errors
    /// What the system said: it needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside of user namespaces, and no other XDP
    /// program at the interface; or the neighbour does not answer ARP.
    pub fn open(endpoint: &Endpoint) -> io::Result<Self> {
        for _ in 0..BIND_TRIES {
            match Self::open_now(endpoint) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                    std::thread::sleep(BIND_PAUSE);
                }
                opened => return opened,
            }
        }
        Self::open_now(endpoint)
    }

    fn open_now(endpoint: &Endpoint) -> io::Result<Self> {
        let index = interfaces::index(&endpoint.interface)?;
        let rings = Rings::new()?;
        let map = bpf::socket_map(endpoint.queue + 1)?;
        let program = bpf::load(&program(endpoint.local, &map))?;
        let driver = bpf::attach(program.as_fd(), index, Attach::Driver).map(|link| (link, Attach::Driver));
        let (link, attached) = match driver {
            Ok(attached) => attached,
            Err(_) => (bpf::attach(program.as_fd(), index, Attach::Generic)?, Attach::Generic),
        };
        rings.bind(index, endpoint.queue)?;
        bpf::put(map.as_fd(), endpoint.queue, rings.as_fd())?;
        let here = interfaces::ethernet_address(UdpSocket::bind("0.0.0.0:0")?.as_fd(), &endpoint.interface)?;
        let there = ethernet_address_of(endpoint.neighbor)?;
        let headers = headers(here, there, endpoint.local);
        Ok(Self {
            rings,
            headers,
            attached,
            identification: 0,
            lost: 0,
            unsent: Vec::with_capacity(MAX_PACKETS),
            _map: map,
            _program: program,
            _link: link,
        })
    }

    /// Whether the program runs in the driver; the generic mode behind it is slower.
    #[must_use]
    pub fn is_in_driver(&self) -> bool {
        self.attached == Attach::Driver
    }

    /// Received frames that were dropped: malformed, or too many for a burst.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rings.as_fd()
    }
}

impl Port for Xdp {
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize> {
        burst.clear();
        for _ in 0..RECEIVED {
            let take = |frame: &[u8]| payload(frame).is_some_and(|(octets, from)| burst.push(octets, from));
            match self.rings.receive(take) {
                Some(true) => {}
                Some(false) => self.lost += 1,
                None => break,
            }
        }
        self.rings.refill();
        Ok(burst.len())
    }

    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        self.rings.reap();
        self.unsent.clear();
        for out in out {
            let octets = burst.octets(out.packet as usize);
            let (headers, identification) = (&self.headers, self.identification);
            let write = |to| move |frame: &mut [u8]| write(frame, headers, octets, to, identification);
            self.identification = self.identification.wrapping_add(1);
            let is_sent = matches!(out.to, SocketAddr::V4(to) if self.rings.transmit(write(to)));
            if !is_sent {
                self.unsent.push(out.packet);
            }
        }
        for _ in 0..KICKS {
            // What is in the ring stays there if this fails, and leaves with the next one.
            self.rings.kick()?;
            if !self.rings.is_sending() {
                break;
            }
        }
        Ok(out.len() - self.unsent.len())
    }

    fn unsent(&self) -> Option<&[u32]> {
        Some(&self.unsent)
    }
}

/// The UDP payload of a frame and its sender.
fn payload(frame: &[u8]) -> Option<(&[u8], SocketAddr)> {
    let (headers, rest) = frame.split_first_chunk::<HEADERS>()?;
    let number = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
    let length = usize::from(number(38)).checked_sub(8)?;
    let source = Ipv4Addr::new(headers[26], headers[27], headers[28], headers[29]);
    Some((rest.get(..length)?, SocketAddr::from((source, number(34)))))
}

fn headers(here: [u8; 6], there: [u8; 6], local: SocketAddrV4) -> [u8; HEADERS] {
    let mut out = [0; HEADERS];
    out[..6].copy_from_slice(&there);
    out[6..12].copy_from_slice(&here);
    out[12..14].copy_from_slice(&[8, 0]);
    // Version and length, TTL 64, UDP; "don't fragment".
    (out[14], out[20], out[22], out[23]) = (0x45, 0x40, 64, 17);
    out[26..30].copy_from_slice(&local.ip().octets());
    out[34..36].copy_from_slice(&local.port().to_be_bytes());
    out
}

/// Writes a frame and returns its length, if the packet fits one. The UDP checksum is left out, as IPv4 allows.
fn write(
    frame: &mut [u8],
    headers: &[u8; HEADERS],
    octets: &[u8],
    to: SocketAddrV4,
    identification: u16,
) -> Option<usize> {
    let length = HEADERS + octets.len();
    let frame = frame.get_mut(..length)?;
    frame[..HEADERS].copy_from_slice(headers);
    frame[HEADERS..].copy_from_slice(octets);
    let ip_length = (length - 14) as u16; // a frame is shorter than 2 KiB
    frame[16..18].copy_from_slice(&ip_length.to_be_bytes());
    frame[18..20].copy_from_slice(&identification.to_be_bytes());
    frame[30..34].copy_from_slice(&to.ip().octets());
    let sum: u32 = frame[14..34].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[36..38].copy_from_slice(&to.port().to_be_bytes());
    frame[38..40].copy_from_slice(&(ip_length - 20).to_be_bytes());
    Some(length)
}

/// Returns a neighbour's Ethernet address, which the system learns by ARP if it does not know it yet.
fn ethernet_address_of(neighbor: Ipv4Addr) -> io::Result<[u8; 6]> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    for _ in 0..ARP_TRIES {
        let table = std::fs::read_to_string("/proc/net/arp")?;
        if let Some(address) = table.lines().find_map(|line| arp_entry(line, neighbor)) {
            return Ok(address);
        }
        socket.send_to(&[], (neighbor, DISCARD))?;
        std::thread::sleep(ARP_PAUSE);
    }
    Err(io::Error::new(io::ErrorKind::HostUnreachable, format!("{neighbor} does not answer ARP")))
}

/// A line of /proc/net/arp: address, type, flags (2: complete), Ethernet address, mask, interface.
fn arp_entry(line: &str, of: Ipv4Addr) -> Option<[u8; 6]> {
    let mut words = line.split_whitespace();
    if words.next()?.parse() != Ok(of) || words.nth(1)? == "0x0" {
        return None;
    }
    let mut octets = words.next()?.split(':').map(|octet| u8::from_str_radix(octet, 16));
    let mut address = [0; 6];
    for octet in &mut address {
        *octet = octets.next()?.ok()?;
    }
    Some(address)
}

// Registers of BPF.
const R0: u8 = 0;
const CONTEXT: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const A: u8 = 4;

/// An instruction (RFC 9669, section 3): operation, destination, source, offset, immediate value.
const fn instruction(operation: u8, destination: u8, source: u8, offset: i16, value: i32) -> u64 {
    operation as u64
        | (destination as u64 | (source as u64) << 4) << 8
        | (offset as u16 as u64) << 16
        | (value as u32 as u64) << 32
}

/// The XDP program: UDP packets to `local` go to the socket of their queue in `map`, all others to the network stack.
fn program(local: SocketAddrV4, map: &OwnedFd) -> Vec<u64> {
    use std::os::fd::AsRawFd;
    // Operations by the names of RFC 9669: loads of 1, 2, 4 octets; 64-bit moves and additions; jumps.
    const LOAD_1: u8 = 0x71;
    const LOAD_2: u8 = 0x69;
    const LOAD_4: u8 = 0x61;
    const MOVE: u8 = 0xbf;
    const MOVE_VALUE: u8 = 0xb7;
    const ADD_VALUE: u8 = 0x07;
    const AND_VALUE: u8 = 0x57;
    const IF_GREATER: u8 = 0x2d;
    const IF_OTHER: u8 = 0x56; // compares 32 bits
    const WIDE: u8 = 0x18;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const MAP_BY_DESCRIPTOR: u8 = 1;
    const REDIRECT_MAP: i32 = 51;
    const PASS: i32 = 2;
    // A load reads memory in the machine's order, and packets are in the network's.
    let wire = |number: u16| i32::from(u16::from_ne_bytes(number.to_be_bytes()));
    let address = i32::from_ne_bytes(local.ip().octets());
    let checks: [(u8, i16, Option<i32>, i32); 6] = [
        (LOAD_2, 12, None, wire(0x0800)),
        (LOAD_1, 14, None, 0x45),
        (LOAD_2, 20, Some(wire(0x3fff)), 0), // no fragment
        (LOAD_1, 23, None, 17),
        (LOAD_4, 30, None, address),
        (LOAD_2, 36, None, wire(local.port())),
    ];
    let mut out = vec![
        instruction(LOAD_4, DATA, CONTEXT, 0, 0),
        instruction(LOAD_4, END, CONTEXT, 4, 0),
        instruction(MOVE, A, DATA, 0, 0),
        instruction(ADD_VALUE, A, 0, 0, HEADERS as i32),
        instruction(IF_GREATER, A, END, 0, 0),
    ];
    let mut jumps = vec![out.len() - 1];
    for (load, at, mask, expected) in checks {
        out.push(instruction(load, A, DATA, at, 0));
        out.extend(mask.map(|mask| instruction(AND_VALUE, A, 0, 0, mask)));
        out.push(instruction(IF_OTHER, A, 0, 0, expected));
        jumps.push(out.len() - 1);
    }
    out.extend([
        instruction(LOAD_4, 2, CONTEXT, 16, 0), // the queue
        instruction(WIDE, 1, MAP_BY_DESCRIPTOR, 0, map.as_raw_fd()),
        0,
        instruction(MOVE_VALUE, 3, 0, 0, PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]);
    let pass = out.len();
    out.extend([instruction(MOVE_VALUE, R0, 0, 0, PASS), instruction(EXIT, 0, 0, 0, 0)]);
    for jump in jumps {
        out[jump] |= ((pass - jump - 1) as u64) << 16;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::system::rings::FRAME;

    #[test]
    fn a_frame_is_read_as_it_was_written_and_its_checksum_is_right() {
        let (here, there) =
            (SocketAddrV4::new([10, 0, 0, 1].into(), 50_000), SocketAddrV4::new([10, 0, 0, 2].into(), 7));
        let mut frame = [0xff; FRAME];
        let length = write(&mut frame, &headers([2; 6], [3; 6], here), b"packet", there, 77).expect("fits");
        assert_eq!(payload(&frame[..length]), Some((&b"packet"[..], SocketAddr::V4(here))));
        let sum: u32 = frame[14..34].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(payload(&frame[..length - 1]), None);
        assert_eq!(write(&mut frame, &[0; HEADERS], &[0; FRAME], there, 0), None);
    }

    #[test]
    fn an_entry_of_the_neighbour_table_counts_once_it_is_complete() {
        let of = Ipv4Addr::new(10, 0, 0, 2);
        let line = "10.0.0.2         0x1         0x2         0a:1b:2c:3d:4e:5f     *        eth0";
        assert_eq!(arp_entry(line, of), Some([10, 0x1b, 0x2c, 0x3d, 0x4e, 0x5f]));
        assert_eq!(arp_entry(&line.replace("0x2", "0x0"), of), None);
        assert_eq!(arp_entry(line, Ipv4Addr::new(10, 0, 0, 3)), None);
        assert_eq!(arp_entry("IP address       HW type     Flags", of), None);
    }
}

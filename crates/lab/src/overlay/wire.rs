//! What crosses a link, and packets put on one: a capture for those who want proof, and an attacker's hand.
//!
//! A link without a delay is a veth pair, so packet sockets work on both of its ends.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use wayleave_dataplane::link::message::is_message;
use wayleave_runtime::packets::ethernet::{Endpoint, Ethernet, NEIGHBOR};
use wayleave_runtime::packets::{Burst, Outgoing, Port, wait};

use super::namespace;

/// Packets that a capture keeps, at most; later ones are only counted.
const MOST_KEPT: usize = 4_096;
/// Interval at which a capture looks whether it is to end.
const POLL: Duration = Duration::from_millis(20);
/// Ethertype of IPv4.
const IPV4: u16 = 0x0800;
/// Octets of the headers that the laboratory writes: IPv4 without options, UDP.
const HEADERS: usize = 28;
/// The number of UDP in IP.
const UDP: u8 = 17;

/// All IPv4 packets that a node sends to another over their link, from now until this value ends.
#[derive(Debug)]
pub struct Capture {
    packets: Arc<Mutex<Vec<Vec<u8>>>>,
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Capture {
    /// Listens at `to` for what comes from `from`.
    ///
    /// # Errors
    /// What the system said; there is no such link, or it has a delay.
    pub fn start(from: &str, to: &str) -> io::Result<Self> {
        let endpoint = Endpoint { interface: from.to_owned(), neighbor: address(from, to)?, ether_type: IPV4 };
        let mut port = namespace(to).within(|| Ethernet::open(&endpoint))??;
        let capture = Self { packets: Arc::default(), count: Arc::default(), stop: Arc::default() };
        let (packets, count, stop) =
            (Arc::clone(&capture.packets), Arc::clone(&capture.count), Arc::clone(&capture.stop));
        std::thread::Builder::new().name("capture".to_owned()).spawn(move || {
            let mut burst = Burst::default();
            while !stop.load(Ordering::Relaxed) {
                let waited = wait(std::iter::once(&port as &dyn Port), POLL);
                let before = port.lost();
                if waited.is_err() || port.receive(&mut burst).is_err() {
                    return;
                }
                let mut kept = packets.lock().unwrap_or_else(PoisonError::into_inner);
                let mut passed = port.lost() - before;
                // What neighbours say to each other is no packet.
                let is_packet = |octets: &[u8]| !payload(octets).is_some_and(is_message);
                for octets in (0..burst.len()).map(|packet| burst.octets(packet)).filter(|octets| is_packet(octets)) {
                    passed += 1;
                    if kept.len() < MOST_KEPT {
                        kept.push(octets.to_vec());
                    }
                }
                count.fetch_add(passed, Ordering::Relaxed);
            }
        })?;
        Ok(capture)
    }

    /// How many packets have passed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The packets that have passed, the first ones if there were many.
    #[must_use]
    pub fn packets(&self) -> Vec<Vec<u8>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often `needle` passed.
    #[must_use]
    pub fn holds(&self, needle: &[u8]) -> bool {
        let has = |packet: &Vec<u8>| packet.windows(needle.len()).any(|window| window == needle);
        self.packets.lock().unwrap_or_else(PoisonError::into_inner).iter().any(has)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Puts IPv4 packets on the link from one node to another, as if `from` had sent them.
///
/// # Errors
/// What the system said.
pub fn inject(from: &str, to: &str, packets: &[Vec<u8>]) -> io::Result<()> {
    let endpoint = Endpoint { interface: to.to_owned(), neighbor: address(to, from)?, ether_type: IPV4 };
    let mut port = namespace(from).within(|| Ethernet::open(&endpoint))??;
    for packet in packets {
        let mut burst = Burst::default();
        burst.push(packet, NEIGHBOR);
        port.send(&burst, &[Outgoing { packet: 0, to: NEIGHBOR }])?;
    }
    Ok(())
}

/// The Ethernet address of `node`'s end of its link with `other`.
fn address(node: &str, other: &str) -> io::Result<[u8; 6]> {
    let output = namespace(node).command("ip").args(["-j", "link", "show", "dev", other]).output()?;
    let shown: Value = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
    let text = shown[0]["address"].as_str().unwrap_or_default();
    let octets: Vec<u8> = text.split(':').filter_map(|octet| u8::from_str_radix(octet, 16).ok()).collect();
    octets.try_into().map_err(|_| io::Error::other(format!("no Ethernet between {node} and {other}: `{text}`")))
}

/// The payload of a UDP datagram in an IPv4 packet without options; `None` for anything else.
#[must_use]
pub fn payload(packet: &[u8]) -> Option<&[u8]> {
    let is_udp = packet.first() == Some(&0x45) && packet.get(9) == Some(&UDP);
    let length = usize::from(u16::from_be_bytes(*packet.get(24..26)?.first_chunk()?));
    packet.get(HEADERS..20 + length).filter(|_| is_udp)
}

/// The two ends of a UDP datagram in an IPv4 packet, the sender's first.
#[must_use]
pub fn ends(packet: &[u8]) -> Option<[SocketAddrV4; 2]> {
    payload(packet)?;
    let end = |address: usize, port: usize| {
        let address: [u8; 4] = packet.get(address..address + 4)?.try_into().ok()?;
        let port: [u8; 2] = packet.get(port..port + 2)?.try_into().ok()?;
        Some(SocketAddrV4::new(Ipv4Addr::from(address), u16::from_be_bytes(port)))
    };
    Some([end(12, 20)?, end(16, 22)?])
}

/// An IPv4 packet with a UDP datagram, without the checksum that UDP may leave out (RFC 768).
#[must_use]
pub fn datagram([from, to]: [SocketAddrV4; 2], payload: &[u8]) -> Vec<u8> {
    let length = |headers: usize| u16::try_from(headers + payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(length(HEADERS));
    // Identification, flags and offset; time to live, protocol, room for the checksum.
    packet.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    let sum: u32 = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(length(8));
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_read_as_it_was_written() {
        let ends_of = [SocketAddrV4::new([100, 64, 0, 1].into(), 49_252), SocketAddrV4::new([100, 64, 0, 2].into(), 7)];
        let packet = datagram(ends_of, b"payload");
        assert_eq!((payload(&packet), ends(&packet)), (Some(&b"payload"[..]), Some(ends_of)));
        // RFC 791: the sum of all words of the header is all ones.
        let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        for cut in 0..packet.len() {
            assert!(payload(&packet[..cut]).is_none(), "{cut}");
        }
    }
}

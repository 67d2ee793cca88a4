//! The packets of a burst in one piece of memory, each with its sender.

use std::net::SocketAddr;
use std::ops::Range;

/// Packets of a burst, at most.
pub const MAX_PACKETS: usize = 2048;

/// Bytes of memory for a burst: sixteen messages, each of the greatest length of a datagram.
const MEMORY: usize = 16 * MESSAGE;

/// Bytes of memory for one message that holds many packets. Not a power of two, so that the beginnings of messages do not
/// compete for the same sets of a cache.
pub(super) const MESSAGE: usize = 65_536 + 192;

/// Where a packet is in the memory.
#[derive(Clone, Copy, Debug)]
struct Packet {
    at: u32,
    length: u32,
    /// The index of its sender's address.
    from: u32,
}

/// Packets in memory of their own, in the order of their arrival.
pub struct Burst {
    octets: Box<[u8]>,
    /// Never more than [`MAX_PACKETS`]; each begins behind the end of the one before.
    packets: Vec<Packet>,
    /// Packets in a row from one sender share an entry.
    senders: Vec<SocketAddr>,
}

impl std::fmt::Debug for Burst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Burst of {} packets", self.packets.len())
    }
}

impl Default for Burst {
    fn default() -> Self {
        Self {
            octets: vec![0; MEMORY].into(),
            packets: Vec::with_capacity(MAX_PACKETS),
            senders: Vec::with_capacity(MAX_PACKETS),
        }
    }
}

impl Burst {
    /// The number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The sender of a packet.
    #[must_use]
    pub fn from(&self, packet: usize) -> SocketAddr {
        self.senders[self.packets[packet].from as usize]
    }

    /// A packet's octets.
    #[must_use]
    pub fn octets(&self, packet: usize) -> &[u8] {
        let Packet { at, length, .. } = self.packets[packet];
        &self.octets[at as usize..(at + length) as usize]
    }

    /// The packets from `first` on, each with its sender, to be changed in place. Packets in a row from one sender borrow the
    /// same address: a caller that looks it up may compare pointers and do so once.
    pub fn packets_mut(&mut self, first: usize) -> impl Iterator<Item = (&SocketAddr, &mut [u8])> {
        let Self { octets, packets, senders } = self;
        let (mut rest, senders) = (&mut **octets, &**senders);
        let mut before = 0;
        packets[first..].iter().map(move |packet| {
            let (_, from_here) = std::mem::take(&mut rest).split_at_mut((packet.at - before) as usize);
            let (octets, behind) = from_here.split_at_mut(packet.length as usize);
            rest = behind;
            before = packet.at + packet.length;
            (&senders[packet.from as usize], octets)
        })
    }

    /// Cuts a packet to `length` octets; a packet that is not longer stays as it is.
    pub fn shorten(&mut self, packet: usize, length: usize) {
        let packet = &mut self.packets[packet];
        packet.length = packet.length.min(u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// Removes all packets.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.senders.clear();
    }

    /// Appends a copy of a packet, if there is room.
    pub fn push(&mut self, octets: &[u8], from: SocketAddr) -> bool {
        let Some(tail) = self.tail(octets.len()) else { return false };
        tail.copy_from_slice(octets);
        self.claim(octets.len(), from);
        true
    }

    /// Appends a copy of a packet with headroom, into which it may grow, if there is memory for both. Headroom and packet are
    /// one packet until [`Self::trim`]; the headroom's content is arbitrary.
    pub fn push_behind(&mut self, headroom: usize, octets: &[u8], from: SocketAddr) -> bool {
        let Some(memory) = self.tail(headroom + octets.len()) else { return false };
        memory[headroom..].copy_from_slice(octets);
        self.claim(headroom + octets.len(), from);
        true
    }

    /// Keeps only the octets in `range` of a packet, as far as it has them.
    pub fn trim(&mut self, packet: usize, range: Range<usize>) {
        let Packet { at, length, .. } = &mut self.packets[packet];
        let (begin, end) = (range.start.min(*length as usize), range.end.min(*length as usize));
        *at += begin as u32;
        *length = end.saturating_sub(begin) as u32;
    }

    /// `length` bytes of memory behind the last packet, if there is room for one more packet.
    pub(super) fn tail(&mut self, length: usize) -> Option<&mut [u8]> {
        let end = self.end();
        if self.packets.len() == MAX_PACKETS { None } else { self.octets.get_mut(end..end + length) }
    }

    /// Makes a packet of the memory that [`Self::tail`] gave.
    pub(super) fn claim(&mut self, length: usize, from: SocketAddr) {
        let at = self.end() as u32; // the memory is far below 4 GiB
        let from = self.sender(from);
        self.packets.push(Packet { at, length: length as u32, from });
    }

    /// The index of a sender's address: the last one's if that is the same.
    fn sender(&mut self, from: SocketAddr) -> u32 {
        if self.senders.last() != Some(&from) {
            self.senders.push(from);
        }
        self.senders.len() as u32 - 1 // at most one for each packet
    }

    fn end(&self) -> usize {
        // Each packet begins on a cache line of its own.
        self.packets.last().map_or(0, |last| (last.at + last.length) as usize).next_multiple_of(64)
    }

    /// All memory, for messages that are received in place; there must be no packets.
    pub(super) fn memory(&mut self) -> &mut [u8] {
        debug_assert!(self.packets.is_empty());
        &mut self.octets
    }

    /// All memory, which holds the packets on their way out.
    pub(super) fn all(&self) -> &[u8] {
        &self.octets
    }

    /// Makes packets of a message received at `at`: one of `segment` octets after the other, the last one with the
    /// remainder. Returns how many packets are left out, being more than [`MAX_PACKETS`].
    pub(super) fn split(&mut self, at: usize, length: usize, segment: usize, from: SocketAddr) -> usize {
        let segment = if segment == 0 { length.max(1) } else { segment };
        if self.packets.len() == MAX_PACKETS {
            return length.div_ceil(segment).max(1);
        }
        let from = self.sender(from);
        let mut begin = 0;
        while begin < length || (begin == 0 && length == 0) {
            let this = segment.min(length - begin);
            if self.packets.len() == MAX_PACKETS {
                return (length - begin).div_ceil(segment);
            }
            self.packets.push(Packet { at: (at + begin) as u32, length: this as u32, from });
            begin += segment;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

    #[test]
    fn a_message_is_split_into_its_segments_and_changed_in_place() {
        let mut burst = Burst::default();
        burst.memory()[..10].copy_from_slice(b"aabbccddee");
        assert_eq!(burst.split(0, 9, 2, NOWHERE), 0);
        assert_eq!(burst.len(), 5);
        for (_, octets) in burst.packets_mut(1) {
            octets[0] = b'X';
        }
        let all: Vec<&[u8]> = (0..burst.len()).map(|packet| burst.octets(packet)).collect();
        assert_eq!(all, [&b"aa"[..], b"Xb", b"Xc", b"Xd", b"X"]);
        burst.shorten(0, 1);
        assert_eq!(burst.octets(0), b"a");
    }

    #[test]
    fn every_packet_has_its_sender_and_packets_in_a_row_share_it() {
        let sender = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let mut burst = Burst::default();
        for round in 0..2 {
            burst.clear();
            assert_eq!(burst.split(0, 4, 2, sender(round)), 0);
            for port in [7, 7, 8, 7] {
                assert!(burst.push(b"x", sender(port)));
            }
            let from: Vec<SocketAddr> = (0..burst.len()).map(|packet| burst.from(packet)).collect();
            assert_eq!(from, [round, round, 7, 7, 8, 7].map(sender));
            let from: Vec<*const SocketAddr> = burst.packets_mut(2).map(|(from, _)| std::ptr::from_ref(from)).collect();
            assert!(from[0] == from[1] && from[1] != from[2] && from[2] != from[3]);
        }
    }

    #[test]
    fn a_packet_grows_into_its_headroom() {
        let mut burst = Burst::default();
        assert!(burst.push_behind(10, b"one", NOWHERE) && burst.push_behind(10, b"two", NOWHERE));
        for (_, octets) in burst.packets_mut(0) {
            octets[8..10].copy_from_slice(b"a ");
        }
        burst.trim(0, 8..13);
        burst.trim(1, 10..99);
        assert!(burst.push(b"three", NOWHERE));
        let left = [&b"a one"[..], b"two", b"three"];
        assert_eq!((0..burst.len()).map(|packet| burst.octets(packet)).collect::<Vec<_>>(), left);
        assert_eq!(burst.packets_mut(0).map(|(_, octets)| octets.to_vec()).collect::<Vec<_>>(), left);
        assert!(!burst.push_behind(MEMORY, b"x", NOWHERE));
    }

    #[test]
    fn a_burst_holds_no_more_than_its_limits() {
        let mut burst = Burst::default();
        assert_eq!((0..MAX_PACKETS + 10).filter(|_| burst.push(b"x", NOWHERE)).count(), MAX_PACKETS);
        burst.clear();
        assert_eq!(burst.split(0, 60_000, 10, NOWHERE), 6_000 - MAX_PACKETS);
        burst.clear();
        let big = vec![0; 60_000];
        let taken = (0..100).filter(|_| burst.push(&big, NOWHERE)).count();
        assert_eq!(taken, MEMORY / big.len().next_multiple_of(64));
        burst.clear();
        // An empty datagram is a packet too.
        assert_eq!((burst.split(0, 0, 0, NOWHERE), burst.len()), (0, 1));
    }
}

//! The packets of one port that a format processes in one call.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_runtime::packets::Burst;

use super::format::Format;
use super::ports::PortKind;

/// The sender of unused entries of a batch.
static NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// At most [`BURST`] packets in place, from senders that the format knows.
pub struct Batch<'a> {
    /// The index of the port that they came in by, among those of the thread.
    pub port: usize,
    pub kind: PortKind,
    frames: [Frame<'a>; BURST],
    senders: [&'a SocketAddr; BURST],
    /// The index of each packet in its burst.
    packets: [usize; BURST],
    count: usize,
}

/// The length of each packet of a batch after it was processed.
pub struct Lengths {
    packets: [(usize, usize); BURST],
    count: usize,
}

impl<'a> Batch<'a> {
    /// Gathers the packets of `burst` from `first` on. Returns also how many were left out, since their senders may not send
    /// to this port.
    #[inline]
    pub fn gather<F: Format>(
        format: &F,
        (port, kind): (usize, PortKind),
        burst: &'a mut Burst,
        first: usize,
    ) -> (Self, u64) {
        let mut batch = Self {
            port,
            kind,
            frames: std::array::from_fn(|_| Frame { octets: &mut [], ingress: Ingress::Internal }),
            senders: [&NOWHERE; BURST],
            packets: [0; BURST],
            count: 0,
        };
        let mut unknown = 0;
        // Packets in a row from one sender share one address in the burst: comparing the pointer is enough to know that
        // the answer for the packet before holds for this one too.
        let mut last = None;
        for (number, (from, octets)) in burst.packets_mut(first).take(BURST).enumerate() {
            let ingress = match last {
                Some((same, ingress)) if std::ptr::eq(same, from) => ingress,
                _ => format.classify(kind, from),
            };
            last = Some((from, ingress));
            let Some(ingress) = ingress else {
                unknown += 1;
                continue;
            };
            batch.frames[batch.count] = Frame { octets, ingress };
            batch.senders[batch.count] = from;
            batch.packets[batch.count] = first + number;
            batch.count += 1;
        }
        (batch, unknown)
    }

    /// The packets, for a router to process.
    #[inline]
    pub fn frames(&mut self) -> &mut [Frame<'a>] {
        &mut self.frames[..self.count]
    }

    /// Each packet's index in its burst, with its octets, where it came in, and its sender.
    #[inline]
    pub fn packets(&self) -> impl Iterator<Item = (usize, &Frame<'a>, &'a SocketAddr)> {
        let packets = self.packets.iter().zip(&self.frames).zip(&self.senders).take(self.count);
        packets.map(|((packet, frame), from)| (*packet, frame, *from))
    }

    /// Leaves out the packets for which `is_kept` answers `false`; the others stay in order.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&mut [u8], &SocketAddr) -> bool) {
        let mut kept = 0;
        for index in 0..self.count {
            if is_kept(self.frames[index].octets, self.senders[index]) {
                self.frames.swap(kept, index);
                self.senders.swap(kept, index);
                self.packets.swap(kept, index);
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Ends the use of the burst's memory.
    #[inline]
    pub fn into_lengths(self) -> Lengths {
        let mut lengths = Lengths { packets: [(0, 0); BURST], count: self.count };
        for (length, (packet, frame, _)) in lengths.packets.iter_mut().zip(self.packets()) {
            *length = (packet, frame.octets.len());
        }
        lengths
    }
}

impl Lengths {
    /// Cuts the packets of the burst where processing made them shorter, as answers are.
    #[inline]
    pub fn apply(&self, burst: &mut Burst) {
        for (packet, length) in &self.packets[..self.count] {
            burst.shorten(*packet, *length);
        }
    }
}

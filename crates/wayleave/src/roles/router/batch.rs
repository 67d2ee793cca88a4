//! The packets of one port that a format processes in one call: at most [`BURST`], which is what `dataplane` calls a burst. What
//! a port has received at once may be several batches.

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
    /// Each packet's index in its burst, and its length there.
    packets: [(u32, u32); BURST],
    count: usize,
}

/// The packets of a batch that processing made shorter, as answers are: index in the burst, and new length.
pub struct Shortened {
    packets: [(u32, u32); BURST],
    count: usize,
}

impl<'a> Batch<'a> {
    /// A batch without packets. It is filled in place: a batch is too large to be copied for every 64 packets.
    #[inline(always)]
    pub fn new(port: usize, kind: PortKind) -> Self {
        Self {
            port,
            kind,
            frames: std::array::from_fn(|_| Frame { octets: &mut [], ingress: Ingress::Internal }),
            senders: [&NOWHERE; BURST],
            packets: [(0, 0); BURST],
            count: 0,
        }
    }

    /// Gathers the packets of `burst` from `first` on. Returns how many were left out, since their senders may not send to
    /// this port.
    #[inline]
    pub fn gather<F: Format>(&mut self, format: &F, burst: &'a mut Burst, first: usize) -> u64 {
        let mut strangers = 0;
        // Packets in a row from one sender share one address in the burst: comparing the pointer is enough to know that
        // the answer for the packet before holds for this one too.
        let mut last = None;
        for (number, (from, octets)) in burst.packets_mut(first).take(BURST).enumerate() {
            if format.is_message(self.kind, octets) {
                continue;
            }
            let ingress = match last {
                Some((same, ingress)) if std::ptr::eq(same, from) => ingress,
                _ => format.classify(self.kind, from),
            };
            last = Some((from, ingress));
            let Some(ingress) = ingress else {
                strangers += 1;
                continue;
            };
            self.packets[self.count] = ((first + number) as u32, octets.len() as u32);
            self.frames[self.count] = Frame { octets, ingress };
            self.senders[self.count] = from;
            self.count += 1;
        }
        strangers
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
        packets.map(|(((packet, _), frame), from)| (*packet as usize, frame, *from))
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
    #[inline(always)]
    pub fn into_shortened(self) -> Shortened {
        let mut shortened = Shortened { packets: [(0, 0); BURST], count: 0 };
        for ((packet, before), frame) in self.packets.iter().zip(&self.frames).take(self.count) {
            let length = frame.octets.len() as u32;
            if length != *before {
                shortened.packets[shortened.count] = (*packet, length);
                shortened.count += 1;
            }
        }
        shortened
    }
}

impl Shortened {
    /// Cuts these packets of the burst.
    #[inline(always)]
    pub fn apply(&self, burst: &mut Burst) {
        for (packet, length) in &self.packets[..self.count] {
            burst.shorten(*packet as usize, *length as usize);
        }
    }
}

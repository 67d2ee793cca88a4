//! Packets of the commonest kind beside each other: from a neighbour, in transit within one segment, out of an interface
//! of this router, with nothing to look at on the way. Their fields are compared sixteen at a time; whatever is not like
//! that, or is not right, goes the general way, which knows the reason.

use wayleave_crypto::lanes::{CpuKernel, first_halves, join, zeros};
use wayleave_packet::scion::{Hop, IsdAs, MacInput, addresses};

use super::config::{Keys, Ways};
use super::flow_class::{Kin, Offsets};
use super::router::RUN;
use super::router::Time;
use crate::frame::Action;

/// One run's packets, field by field.
pub(super) struct Beside {
    read: Read,
    leaving: Leaving,
    /// A bit for each whose segment is under the newer key.
    newer: u16,
    offsets: [Offsets; RUN],
    /// What the MACs are computed of, and then the MACs.
    blocks: [MacInput; RUN],
}

/// Fields as they lie in the packets.
struct Read {
    info: [u64; RUN],
    field: [u64; RUN],
    mac: [u32; RUN],
    /// Where the packet came in; zero if there is none.
    interface: [u16; RUN],
    destination: [u64; RUN],
    source: [u64; RUN],
}

/// How the packets leave.
struct Leaving {
    egress: [u16; RUN],
    /// The accumulator.
    seg_id: [u16; RUN],
}

impl Read {
    #[inline(always)]
    fn hop(&self, lane: usize) -> Hop {
        Hop::from_words(u64::from_be(self.info[lane]), u64::from_be(self.field[lane]), u32::from_be(self.mac[lane]))
    }
}

/// Which of the packets pass the checks before the MAC, apart from their way out.
struct Check<'a> {
    kernel: CpuKernel,
    read: &'a Read,
    leaving: &'a mut Leaving,
    blocks: &'a mut [MacInput; RUN],
    time: &'a Time,
    here: IsdAs,
    /// Since when segments are under the newer key.
    new_from: u32,
}

impl Check<'_> {
    /// A bit for each that passes, and for each whose segment is under the newer key.
    #[inline(always)]
    fn run(self) -> (u16, u16) {
        let Self { kernel, read, leaving, blocks, time, here, new_from } = self;
        let (mut refused, mut older) = ([0; RUN], [0; RUN]);
        let (mut first, mut second) = ([0; RUN], [0; RUN]);
        let here = here.0.to_be();
        for lane in 0..RUN {
            let hop = read.hop(lane);
            refused[lane] = u32::from(hop.peering())
                | u32::from(hop.has_alert())
                | u32::from(read.interface[lane] == 0)
                | u32::from(hop.ingress() != read.interface[lane])
                | u32::from(read.source[lane] == here)
                | u32::from(read.destination[lane] == here)
                | u32::from(!time.holds(&hop));
            older[lane] = u32::from(hop.timestamp() < new_from);
            // Of a segment without a peering link: the MAC is taken out of the accumulator where the packet comes in
            // against construction, and put in where it leaves in construction direction.
            let next = hop.next_seg_id();
            let verified = if hop.construction() { hop } else { hop.with_seg_id(next) };
            [first[lane], second[lane]] = verified.mac_input_halves();
            leaving.egress[lane] = hop.egress();
            leaving.seg_id[lane] = next;
        }
        join(kernel, &first, &second, blocks);
        (zeros(kernel, &refused), zeros(kernel, &older))
    }
}

impl Beside {
    pub(super) const EMPTY: Self = Self {
        read: Read {
            info: [0; RUN],
            field: [0; RUN],
            mac: [0; RUN],
            interface: [0; RUN],
            destination: [0; RUN],
            source: [0; RUN],
        },
        leaving: Leaving { egress: [0; RUN], seg_id: [0; RUN] },
        newer: 0,
        offsets: [Offsets::NONE; RUN],
        blocks: [[0; 16]; RUN],
    };

    /// Begins with a new run.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.read.interface = [0; RUN];
    }

    /// Takes the plain packet of `lane`, which came in by `interface`.
    #[inline(always)]
    pub(super) fn put(&mut self, lane: usize, packet: &[u8], interface: u16, kin: &Kin) {
        let (info, field) = (usize::from(kin.offsets.info), usize::from(kin.offsets.field));
        let info = packet.get(info..info + 8).and_then(<[u8]>::first_chunk::<8>);
        let field = packet.get(field..field + 12).and_then(<[u8]>::first_chunk::<12>);
        let (Some(info), Some(field)) = (info, field) else { return };
        let lane = lane % RUN;
        let [f0, f1, f2, f3, f4, f5, f6, f7, m0, m1, m2, m3] = *field;
        self.read.info[lane] = u64::from_ne_bytes(*info);
        self.read.field[lane] = u64::from_ne_bytes([f0, f1, f2, f3, f4, f5, f6, f7]);
        self.read.mac[lane] = u32::from_ne_bytes([m0, m1, m2, m3]);
        let (destination, source) = addresses(packet);
        (self.read.destination[lane], self.read.source[lane]) = (destination.0.to_be(), source.0.to_be());
        self.read.interface[lane] = interface;
        self.offsets[lane] = kin.offsets;
    }

    /// Which of them pass all checks but that of the MAC, a bit for each. The others go the general way.
    #[inline(always)]
    pub(super) fn check(&mut self, time: &Time, here: IsdAs, keys: &Keys, ways: &Ways) -> u16 {
        let Self { read, leaving, blocks, newer, .. } = self;
        let (kernel, new_from) = (keys.kernel(), keys.new_from);
        let passed;
        (passed, *newer) = Check { kernel, read, leaving, blocks, time, here, new_from }.run();
        let (mut leaves, mut by) = ([0; RUN], ways.entering(0));
        for (leaves, (interface, egress)) in leaves.iter_mut().zip(read.interface.iter().zip(&leaving.egress)) {
            if *interface != by.interface {
                by = ways.entering(*interface);
            }
            *leaves = u32::from(ways.may_leave(by, *egress));
        }
        passed & !zeros(kernel, &leaves)
    }

    /// Which MACs are wrong, a bit for each of those that `passed`.
    #[inline(always)]
    pub(super) fn wrong(&mut self, passed: u16, keys: &Keys, compared: u64) -> u16 {
        let Self { read, blocks, newer, .. } = self;
        let kernel = keys.kernel();
        let count = (u16::BITS - passed.leading_zeros()) as usize;
        let tags = &mut blocks[..count];
        if passed & !*newer == 0 {
            keys.new.tag_blocks(tags);
        } else if passed & *newer == 0 {
            keys.old.tag_blocks(tags);
        } else {
            tag_both(tags, *newer, keys);
        }
        let mut differ = [0; RUN];
        for (lane, computed) in first_halves(kernel, blocks).into_iter().enumerate() {
            let bits = (read.hop(lane).mac() ^ Hop::computed_mac(computed)) & compared;
            differ[lane] = bits as u32 | (bits >> 32) as u32;
        }
        passed & !zeros(kernel, &differ)
    }

    /// Rewrites the packet of `lane`, which is right; to where it leaves.
    #[inline(always)]
    pub(super) fn leave(&self, lane: usize, packet: &mut [u8]) -> Action {
        let lane = lane % RUN;
        let Offsets { path, info, pointer, .. } = self.offsets[lane];
        let info = usize::from(info);
        if let Some(seg_id) = packet.get_mut(info + 2..info + 4) {
            seg_id.copy_from_slice(&self.leaving.seg_id[lane].to_be_bytes());
        }
        if let Some(place) = packet.get_mut(usize::from(path)) {
            *place = pointer;
        }
        Action::Forward(self.leaving.egress[lane])
    }
}

/// The MACs of segments under either key, by the bits of those under the newer one.
#[cold]
fn tag_both(blocks: &mut [MacInput], newer: u16, keys: &Keys) {
    let mut old = [[0; 16]; RUN];
    let old = &mut old[..blocks.len()];
    old.copy_from_slice(blocks);
    keys.old.tag_blocks(old);
    keys.new.tag_blocks(blocks);
    for (lane, (block, old)) in blocks.iter_mut().zip(old).enumerate() {
        if newer >> lane & 1 == 0 {
            *block = *old;
        }
    }
}

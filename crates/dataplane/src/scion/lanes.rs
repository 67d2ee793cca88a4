//! The vector path: packets in transit, sixteen at a time.
//!
//! It takes the commonest packets: from a neighbour, in transit within one segment, out of an interface of this router, with
//! no flag that asks for more. Each rule of `verify.rs` is computed for all lanes without a branch; a lane whose result is
//! not zero is refused here, and the router's general path, which knows the reason, takes the packet from the beginning.
//! Nothing else depends on this file: without it all packets take the general path, with the same results.

use wayleave_packet::scion::verify::{self, HopTime};
use wayleave_packet::scion::{Hop, IsdAs, Link, MacInput, addresses};

use super::action::Action;
use super::config::{Keys, Owner, RouterInterface};
use super::flow_class::{FlowClass, Offsets};
use crate::lanes::{CpuKernel, LANES, first_halves, join, zeros};

/// Sixteen packets, field by field; a bit mask over lanes has the first packet in its lowest bit.
pub(super) struct Lanes {
    fields: Fields,
    rewrite: Rewrite,
    /// The lanes whose segment is under the newer key.
    newer: u16,
    offsets: [Offsets; LANES],
    /// The inputs of the MACs, and then the MACs.
    blocks: [MacInput; LANES],
}

/// Fields as they lie in the packets.
struct Fields {
    info: [u64; LANES],
    hop: [u64; LANES],
    mac: [u32; LANES],
    /// The interface where the packet came in; zero marks an empty lane, and no check passes there.
    interface: [u16; LANES],
    destination: [u64; LANES],
    source: [u64; LANES],
}

/// What verified packets leave with.
struct Rewrite {
    egress: [u16; LANES],
    seg_id: [u16; LANES],
}

impl Fields {
    #[inline(always)]
    fn hop(&self, lane: usize) -> Hop {
        Hop::from_words(u64::from_be(self.info[lane]), u64::from_be(self.hop[lane]), u32::from_be(self.mac[lane]))
    }
}

impl Lanes {
    pub(super) const EMPTY: Self = Self {
        fields: Fields {
            info: [0; LANES],
            hop: [0; LANES],
            mac: [0; LANES],
            interface: [0; LANES],
            destination: [0; LANES],
            source: [0; LANES],
        },
        rewrite: Rewrite { egress: [0; LANES], seg_id: [0; LANES] },
        newer: 0,
        offsets: [Offsets::NONE; LANES],
        blocks: [[0; 16]; LANES],
    };

    /// Empties all lanes. What else is in them stays, since an empty lane passes no check.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.fields.interface = [0; LANES];
    }

    /// Puts a packet of `class`, which is in transit and came in by `interface`, into `lane`.
    #[inline(always)]
    pub(super) fn load(&mut self, lane: usize, packet: &[u8], interface: u16, class: &FlowClass) {
        let (info, hop) = (usize::from(class.offsets.info), usize::from(class.offsets.hop));
        let info = packet.get(info..info + 8).and_then(<[u8]>::first_chunk::<8>);
        let hop = packet.get(hop..hop + 12).and_then(<[u8]>::first_chunk::<12>);
        // A class contains only packets that are long enough; were one not, its lane would stay empty.
        let (Some(info), Some(hop)) = (info, hop) else { return };
        let lane = lane % LANES;
        let [h0, h1, h2, h3, h4, h5, h6, h7, m0, m1, m2, m3] = *hop;
        self.fields.info[lane] = u64::from_ne_bytes(*info);
        self.fields.hop[lane] = u64::from_ne_bytes([h0, h1, h2, h3, h4, h5, h6, h7]);
        self.fields.mac[lane] = u32::from_ne_bytes([m0, m1, m2, m3]);
        let (destination, source) = addresses(packet);
        (self.fields.destination[lane], self.fields.source[lane]) = (destination.0.to_be(), source.0.to_be());
        self.fields.interface[lane] = interface;
        self.offsets[lane] = class.offsets;
    }

    /// The lanes that pass all checks but that of the MAC.
    #[inline(always)]
    pub(super) fn check(&mut self, time: &HopTime, here: IsdAs, keys: &Keys, links: &TransitLinks) -> u16 {
        let Self { fields, rewrite, blocks, newer, .. } = self;
        let (kernel, new_from) = (keys.kernel(), keys.new_from);
        let passed;
        (passed, *newer) = HopChecks { kernel, fields, rewrite, blocks, time, here, new_from }.run();
        // verify.rs: check_direction. The packets of a burst often come in by one interface, which is looked up once.
        let (mut may_leave, mut entry) = ([0; LANES], links.entering(0));
        for (may_leave, (interface, egress)) in may_leave.iter_mut().zip(fields.interface.iter().zip(&rewrite.egress)) {
            if *interface != entry.interface {
                entry = links.entering(*interface);
            }
            *may_leave = u32::from(links.may_leave(entry, *egress));
        }
        passed & !zeros(kernel, &may_leave)
    }

    /// The lanes among those that `passed` whose MAC is wrong. `mac_mask` has the MAC's bits that count: all of them outside
    /// of a test.
    #[inline(always)]
    pub(super) fn check_macs(&mut self, passed: u16, keys: &Keys, mac_mask: u64) -> u16 {
        let Self { fields, blocks, newer, .. } = self;
        // Blocks behind the last lane that passed need no tag; those between are computed for nothing.
        let count = (u16::BITS - passed.leading_zeros()) as usize;
        let tags = &mut blocks[..count];
        if passed & !*newer == 0 {
            keys.new.tag_blocks(tags);
        } else if passed & *newer == 0 {
            keys.old.tag_blocks(tags);
        } else {
            tag_under_both_keys(tags, *newer, keys);
        }
        // verify.rs: check_mac. Constant time up to `zeros`: no lane's bits are looked at before all lanes are computed.
        let kernel = keys.kernel();
        let mut differences = [0; LANES];
        for (lane, computed) in first_halves(kernel, blocks).into_iter().enumerate() {
            let difference = verify::mac_difference(&fields.hop(lane), Hop::computed_mac(computed)) & mac_mask;
            differences[lane] = difference as u32 | (difference >> 32) as u32;
        }
        passed & !zeros(kernel, &differences)
    }

    /// Rewrites the packet of `lane`, which is verified, for the next AS.
    #[inline(always)]
    pub(super) fn rewrite(&self, lane: usize, packet: &mut [u8]) -> Action {
        let lane = lane % LANES;
        let Offsets { path, info, next_pointer, .. } = self.offsets[lane];
        let info = usize::from(info);
        if let Some(seg_id) = packet.get_mut(info + 2..info + 4) {
            seg_id.copy_from_slice(&self.rewrite.seg_id[lane].to_be_bytes());
        }
        if let Some(pointer) = packet.get_mut(usize::from(path)) {
            *pointer = next_pointer;
        }
        Action::Forward(self.rewrite.egress[lane])
    }
}

/// The checks of hop fields and addresses, and the inputs of the MACs.
struct HopChecks<'a> {
    kernel: CpuKernel,
    fields: &'a Fields,
    rewrite: &'a mut Rewrite,
    blocks: &'a mut [MacInput; LANES],
    time: &'a HopTime,
    here: IsdAs,
    /// The timestamp from which on segments are under the newer key.
    new_from: u32,
}

impl HopChecks<'_> {
    /// The lanes that pass, and the lanes whose segment is under the newer key.
    #[inline(always)]
    fn run(self) -> (u16, u16) {
        let Self { kernel, fields, rewrite, blocks, time, here, new_from } = self;
        let (mut refused, mut older) = ([0; LANES], [0; LANES]);
        let (mut first, mut second) = ([0; LANES], [0; LANES]);
        let here = here.0.to_be();
        // Every lane computes everything, without a branch, so that the compiler makes vector instructions of the loop.
        for lane in 0..LANES {
            let hop = fields.hop(lane);
            // verify.rs: check_peering. A hop with the P flag takes the general path, though it may be right.
            refused[lane] = u32::from(hop.peering())
                // A router alert takes the general path too.
                | u32::from(hop.has_alert())
                // verify.rs: check_ingress
                | u32::from(fields.interface[lane] == 0)
                | u32::from(hop.ingress() != fields.interface[lane])
                // verify.rs: check_addresses_from_neighbor, at a hop that is not the last
                | u32::from(fields.source[lane] == here)
                | u32::from(fields.destination[lane] == here)
                // verify.rs: check_expiry, check_timestamp
                | u32::from(verify::check_expiry(&hop, time).is_err())
                | u32::from(verify::check_timestamp(&hop, time).is_err());
            older[lane] = u32::from(hop.timestamp() < new_from);
            // verify.rs: hop_as_minted, seg_id_at_egress. Without a peering link exactly one of the two puts this hop's MAC
            // into the accumulator: the first against construction, the second in construction direction. So the packet
            // leaves with it put in either way.
            let next = hop.next_seg_id();
            let minted = if hop.construction() { hop } else { hop.with_seg_id(next) };
            [first[lane], second[lane]] = minted.mac_input_halves();
            rewrite.egress[lane] = hop.egress();
            rewrite.seg_id[lane] = next;
        }
        join(kernel, &first, &second, blocks);
        (zeros(kernel, &refused), zeros(kernel, &older))
    }
}

/// Tags segments under either key: all blocks under both, then the right one of each is chosen. This lasts only as long as
/// segments of the older key live.
#[cold]
fn tag_under_both_keys(blocks: &mut [MacInput], newer: u16, keys: &Keys) {
    let mut old = [[0; 16]; LANES];
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

/// Which link a packet in transit may take after which: the rules of [`verify::check_direction`] for each interface, as bits
/// over the four kinds of link, together with who owns the interface and whether its link is up.
#[derive(Clone, Debug)]
pub(super) struct TransitLinks(Box<[TransitLink]>);

#[derive(Clone, Copy, Debug, Default)]
struct TransitLink {
    /// The bit of the interface's own kind of link.
    kind: u8,
    /// The kinds of link from which packets may leave here; none if another router has the interface or the link is down.
    from: u8,
}

impl TransitLink {
    fn new(interface: &RouterInterface) -> Self {
        let leaves = interface.up && interface.owner == Owner::This;
        let allowed = |from: &Link| leaves && verify::check_direction(*from, interface.link).is_ok();
        let from = [Link::Core, Link::Parent, Link::Child, Link::Peer].into_iter().filter(allowed);
        Self { kind: 1 << interface.link as u8, from: from.fold(0, |bits, link| bits | 1 << link as u8) }
    }
}

/// An interface where packets come in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    interface: u16,
    /// The bit of its kind of link; none if there is no such interface.
    kind: u8,
}

impl TransitLinks {
    pub(super) fn new(interfaces: &[Option<RouterInterface>]) -> Self {
        Self(
            interfaces
                .iter()
                .map(|interface| interface.as_ref().map_or(TransitLink::default(), TransitLink::new))
                .collect(),
        )
    }

    /// Follows a change of the interface's link.
    pub(super) fn set(&mut self, number: u16, interface: &RouterInterface) {
        if let Some(link) = self.0.get_mut(usize::from(number)) {
            *link = TransitLink::new(interface);
        }
    }

    #[inline(always)]
    fn entering(&self, interface: u16) -> Entry {
        Entry { interface, kind: self.0.get(usize::from(interface)).map_or(0, |link| link.kind) }
    }

    #[inline(always)]
    fn may_leave(&self, entry: Entry, egress: u16) -> bool {
        self.0.get(usize::from(egress)).map_or(0, |link| link.from) & entry.kind != 0
    }
}

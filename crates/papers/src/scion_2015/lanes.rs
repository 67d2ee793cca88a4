//! The fast path of the switch: sixteen packets in lanes, in transit from one neighbour of this switch to another without a
//! change of halves. Every other packet, and every packet that fails a check, takes the general path in `switch.rs`, which
//! knows the reason. Deleting this file loses speed and nothing else; a test compares both paths with a model.

use wayleave_crypto::lanes::{Block, LANES};
use wayleave_dataplane::lanes::{first_halves, join, zeros};
use wayleave_dataplane::scion::Action;

use super::{FIXED_LEN, Layout, OPAQUE_LEN, OpaqueKey, Step};

/// One field of each packet of a group, in the order of octets in which the packets have them.
#[derive(Clone)]
pub(super) struct Lanes {
    /// The first eight octets.
    front: [u64; LANES],
    /// The opaque fields at the pointer, before it and behind it.
    field: [u64; LANES],
    before: [u64; LANES],
    behind: [u64; LANES],
    length: [u32; LANES],
    /// The ingress interface; zero marks an empty lane.
    interface: [u16; LANES],
    egress: [u16; LANES],
    /// The pointer's new value.
    pointer: [u16; LANES],
    /// The inputs of the MACs, replaced by the MACs.
    blocks: [Block; LANES],
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lanes(..)")
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Lanes {
    const EMPTY: Self = Self {
        front: [0; LANES],
        field: [0; LANES],
        before: [0; LANES],
        behind: [0; LANES],
        length: [0; LANES],
        interface: [0; LANES],
        egress: [0; LANES],
        pointer: [0; LANES],
        blocks: [[0; 16]; LANES],
    };

    /// Empties all lanes.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.interface = [0; LANES];
    }

    /// Puts a packet that came in by `interface` into `lane`. The lane stays empty if the packet is too short for three
    /// opaque fields around its pointer.
    #[inline(always)]
    pub(super) fn put(&mut self, lane: usize, packet: &[u8], interface: u16) {
        let Some(front) = packet.first_chunk::<8>() else { return };
        let at = Layout::field(front[Layout::POINTER]);
        let Some(fields) = packet.get(at - 8..at + 16).and_then(<[u8]>::first_chunk::<24>) else { return };
        let ([before, field, behind], _) = fields.as_chunks::<8>() else { return };
        let lane = lane % LANES;
        self.front[lane] = u64::from_ne_bytes(*front);
        self.before[lane] = u64::from_ne_bytes(*before);
        self.field[lane] = u64::from_ne_bytes(*field);
        self.behind[lane] = u64::from_ne_bytes(*behind);
        self.length[lane] = packet.len() as u32;
        self.interface[lane] = interface;
    }

    /// Returns a bit for each packet that passes every check but that of the MAC; the others take the general path.
    ///
    /// Constant time: all lanes are checked in full, and the results are gathered with OR before any branch.
    #[inline(always)]
    pub(super) fn check(&mut self, key: &OpaqueKey, own: &[bool]) -> u16 {
        let Self { front, field, before, behind, length, interface, egress, pointer, blocks } = self;
        let mut refused = [0; LANES];
        let (mut first, mut second) = ([0; LANES], [0; LANES]);
        for lane in 0..LANES {
            // All numbers have 64 bits, so that the compiler keeps the loop in vectors of one width.
            // header.rs: Layout::decode reads the same fields.
            let front = u64::from_be(front[lane]);
            let (version, count, up, at) = (front >> 56, front >> 48 & 0xff, front >> 40 & 0xff, front >> 32 & 0xff);
            let (payload, came_in) = (front >> 16 & 0xffff, u64::from(interface[lane]));
            let against = at < up;
            // verify.rs: step. The first field of the down half has no previous one; the last one of the up half, whose
            // previous field would be in the other half, is refused here.
            let (before, behind) = (u64::from_be(before[lane]), u64::from_be(behind[lane]));
            let previous = if against { behind } else { before };
            let step = Step::new(u64::from_be(field[lane]), if at == up { 0 } else { previous }, against);
            refused[lane] = u32::from(version != u64::from(Layout::VERSION))
                | u32::from(OPAQUE_LEN as u64 * count + FIXED_LEN as u64 + payload != u64::from(length[lane]))
                | u32::from(at + 1 >= count)
                | u32::from(up > count)
                | u32::from(at + 1 == up)
                | u32::from(came_in == 0)
                | u32::from(u64::from(step.ingress()) != came_in)
                | u32::from(step.egress() == 0);
            egress[lane] = step.egress();
            pointer[lane] = at as u16 + 1;
            [first[lane], second[lane]] = step.mac_input_halves();
        }
        join(key.kernel(), &first, &second, blocks);
        let mut leaves = [0; LANES];
        for (leaves, egress) in leaves.iter_mut().zip(&*egress) {
            *leaves = u32::from(own.get(usize::from(*egress)).is_some_and(|own| *own));
        }
        zeros(key.kernel(), &refused) & !zeros(key.kernel(), &leaves)
    }

    /// Returns a bit for each packet in `passed` whose MAC is wrong.
    #[inline(always)]
    pub(super) fn wrong(&mut self, passed: u16, key: &OpaqueKey) -> u16 {
        let Self { field, blocks, .. } = self;
        key.tag_blocks(&mut blocks[..(u16::BITS - passed.leading_zeros()) as usize]);
        let mut differ = [0; LANES];
        for (lane, computed) in first_halves(key.kernel(), blocks).into_iter().enumerate() {
            differ[lane] = (u64::from_be(computed) >> 32) as u32 ^ u64::from_be(field[lane]) as u32;
        }
        passed & !zeros(key.kernel(), &differ)
    }

    /// Moves the pointer of the verified packet in `lane` on and returns where it is sent.
    #[inline(always)]
    pub(super) fn leave(&self, lane: usize, packet: &mut [u8]) -> Action {
        let lane = lane % LANES;
        if let Some(pointer) = packet.get_mut(Layout::POINTER) {
            *pointer = self.pointer[lane] as u8;
        }
        Action::Forward(self.egress[lane])
    }
}

//! What a hop verifies: one AES block for each hop field, and its expiry.

use wayleave_core::UnixTime;

use super::header::{HopField, InfoField};

/// The block under a hop field's MAC.
pub type MacInput = [u8; 16];

/// The 16 octets under the MAC: `0:16 | beta:16 | timestamp:32 | 0:8 | ExpTime:8 | ConsIngress:16 | ConsEgress:16 | 0:16`.
#[inline]
#[must_use]
pub fn mac_input(beta: u16, timestamp: u32, exp_time: u8, cons_ingress: u16, cons_egress: u16) -> MacInput {
    let high = u64::from(beta) << 32 | u64::from(timestamp);
    let low = u64::from(exp_time) << 48 | u64::from(cons_ingress) << 32 | u64::from(cons_egress) << 16;
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

/// When a hop field minted at `timestamp` (Unix seconds) with `exp_time` ends: `(1 + ExpTime)` times 337.5 s later.
#[inline]
#[must_use]
pub fn hop_expiry(timestamp: u32, exp_time: u8) -> UnixTime {
    UnixTime(u64::from(timestamp) * 1_000_000 + (1 + u64::from(exp_time)) * 337_500_000)
}

/// A hop field within its segment, as one router sees it: both fields as the words that lie in the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// `flags 8 | reserved 8 | SegID 16 | timestamp 32`.
    info: u64,
    /// `flags 8 | ExpTime 8 | ConsIngress 16 | ConsEgress 16 | MAC 16`.
    field: u64,
    /// The MAC's other four octets.
    mac: u32,
}

impl Hop {
    /// From both fields.
    #[must_use]
    pub fn new(info: &InfoField, field: &HopField) -> Self {
        Self::from_octets(&info.octets(), &field.octets())
    }

    /// From the octets of both fields.
    #[inline(always)]
    #[must_use]
    pub fn from_octets(info: &[u8; 8], field: &[u8; 12]) -> Self {
        let [f0, f1, f2, f3, f4, f5, f6, f7, m0, m1, m2, m3] = *field;
        Self {
            info: u64::from_be_bytes(*info),
            field: u64::from_be_bytes([f0, f1, f2, f3, f4, f5, f6, f7]),
            mac: u32::from_be_bytes([m0, m1, m2, m3]),
        }
    }

    /// From the info field, the first eight octets of the hop field, and its last four, as numbers.
    #[inline(always)]
    #[must_use]
    pub fn from_words(info: u64, field: u64, mac: u32) -> Self {
        Self { info, field, mac }
    }

    /// Whether travel is in the direction of construction.
    #[inline(always)]
    #[must_use]
    pub fn construction(&self) -> bool {
        self.info >> 56 & 1 != 0
    }

    /// Whether the segment is joined over a peering link.
    #[inline(always)]
    #[must_use]
    pub fn peering(&self) -> bool {
        self.info >> 56 & 2 != 0
    }

    /// Whether the router where the packet comes in shall look at it.
    #[inline(always)]
    #[must_use]
    pub fn ingress_alert(&self) -> bool {
        self.field >> 56 & if self.construction() { 2 } else { 1 } != 0
    }

    /// Whether the router where the packet goes out shall look at it.
    #[inline(always)]
    #[must_use]
    pub fn egress_alert(&self) -> bool {
        self.field >> 56 & if self.construction() { 1 } else { 2 } != 0
    }

    /// Whether any router shall look at it.
    #[inline(always)]
    #[must_use]
    pub fn has_alert(&self) -> bool {
        self.field >> 56 & 3 != 0
    }

    /// The accumulator.
    #[inline(always)]
    #[must_use]
    pub fn seg_id(&self) -> u16 {
        (self.info >> 32) as u16
    }

    /// Seconds of Unix time.
    #[inline(always)]
    #[must_use]
    pub fn timestamp(&self) -> u32 {
        self.info as u32
    }

    /// Life time in units of 337.5 s, less one.
    #[inline(always)]
    #[must_use]
    pub fn exp_time(&self) -> u8 {
        (self.field >> 48) as u8
    }

    /// The interface by which the packet enters this AS; zero if it starts here.
    #[inline(always)]
    #[must_use]
    pub fn ingress(&self) -> u16 {
        (self.field >> if self.construction() { 32 } else { 16 }) as u16
    }

    /// The interface by which the packet leaves this AS; zero if it ends here.
    #[inline(always)]
    #[must_use]
    pub fn egress(&self) -> u16 {
        (self.field >> if self.construction() { 16 } else { 32 }) as u16
    }

    /// The MAC, in the low 48 bits.
    #[inline(always)]
    #[must_use]
    pub fn mac(&self) -> u64 {
        (self.field & 0xffff) << 32 | u64::from(self.mac)
    }

    /// The MAC in the low 48 bits, of the first half of a computed block as it lies in memory.
    #[inline(always)]
    #[must_use]
    pub fn computed_mac(half: u64) -> u64 {
        u64::from_be(half) >> 16
    }

    /// Both halves of [`mac_input`](Self::mac_input), as they lie in memory.
    #[inline(always)]
    #[must_use]
    pub fn mac_input_halves(&self) -> [u64; 2] {
        [self.info & 0xffff_ffff_ffff, self.field & 0x00ff_ffff_ffff_0000].map(u64::to_be)
    }

    /// The block under the MAC, with the accumulator as it now is: [`mac_input`] of the fields.
    #[inline(always)]
    #[must_use]
    pub fn mac_input(&self) -> MacInput {
        let [high, low] = self.mac_input_halves();
        (u128::from(u64::from_be(high)) << 64 | u128::from(u64::from_be(low))).to_be_bytes()
    }

    /// The accumulator with this hop's MAC put in, or taken out again.
    #[inline(always)]
    #[must_use]
    pub fn next_seg_id(&self) -> u16 {
        self.seg_id() ^ self.field as u16
    }

    /// The same hop under another accumulator.
    #[inline(always)]
    #[must_use]
    pub fn with_seg_id(self, seg_id: u16) -> Self {
        Self { info: self.info & !(0xffff << 32) | u64::from(seg_id) << 32, ..self }
    }
}

//! What a hop verifies: one AES block for each hop field, and its expiry.

use wayleave_core::UnixTime;

use super::path::{HopField, InfoField};

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

/// A hop field within its segment, as one router sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The segment's info field.
    pub info: InfoField,
    /// The hop field.
    pub field: HopField,
}

impl Hop {
    /// The interface by which the packet enters this AS; zero if it starts here.
    #[inline]
    #[must_use]
    pub fn ingress(&self) -> u16 {
        if self.info.construction { self.field.cons_ingress } else { self.field.cons_egress }
    }

    /// The interface by which the packet leaves this AS; zero if it ends here.
    #[inline]
    #[must_use]
    pub fn egress(&self) -> u16 {
        if self.info.construction { self.field.cons_egress } else { self.field.cons_ingress }
    }

    /// The block under the MAC, with the accumulator as it now is.
    #[inline]
    #[must_use]
    pub fn mac_input(&self) -> MacInput {
        let Self { info, field } = self;
        mac_input(info.seg_id, info.timestamp, field.exp_time, field.cons_ingress, field.cons_egress)
    }

    /// The accumulator with this hop's MAC put in, or taken out again.
    #[inline]
    #[must_use]
    pub fn next_seg_id(&self) -> u16 {
        self.info.seg_id ^ u16::from_be_bytes([self.field.mac[0], self.field.mac[1]])
    }
}

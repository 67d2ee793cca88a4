//! Platypus in memory. The caller's closure is the clock.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::lanes::{CmacKey, CpuKernel, LANES, Row, tag_rows};
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::platypus::{Action, Config, ReplayPolicy, Router};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_dataplane::stamper::lanes::{BurstStamper, PreparedCapability, StampInput};
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{Policy, Waypoint};

use super::slots::{Headroom, PACKETS, SLOT, Slots};
use super::sustained::Sustained;

/// Unix seconds at which all packets are stamped.
const TIME: u64 = 1_800_000_000;
/// The waypoint.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
/// Octets that a router may change.
const CHANGED: usize = 64;
/// Offset of the binding.
const BINDING: usize = 52;
/// Octets of the shortest packet. Packets of up to 71 octets have bindings of 64 bits, longer ones of 128 bits.
pub const LEAST: usize = 60;

/// What is done after the MAC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlatypusTask {
    /// MAC and rewrite.
    Plain,
    /// The same, with replay filter and accounting.
    Full,
    /// MAC and rewrite; each packet has the current or the previous epoch at random.
    Mixed,
    /// Secrets and bindings are computed and nothing else: the MACs cover prepared heads and the packets' payloads.
    Macs,
}

/// Packets in their slots, and the router that processes them.
pub struct PlatypusBench {
    slots: Slots,
    fresh: Vec<u8>,
    router: Router,
    /// For [`PlatypusTask::Macs`].
    key: CmacKey,
    kernel: CpuKernel,
    work: PlatypusTask,
    pass: u64,
    /// For [`PlatypusTask::Full`].
    sustained: Sustained,
    keys: WaypointKeys,
}

/// Packets of `length` octets a second that the replay filter of [`PlatypusTask::Full`] is made for.
#[must_use]
pub fn sustained_rate(length: usize) -> u64 {
    match length {
        ..200 => 10_000_000,
        200..1_000 => 7_000_000,
        _ => 4_000_000,
    }
}

impl std::fmt::Debug for PlatypusBench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlatypusBench of {:?} over packets of {} octets", self.work, self.slots.length())
    }
}

impl PlatypusBench {
    /// Packets of `length` octets of 64 principals.
    #[must_use]
    pub fn new(work: PlatypusTask, length: usize, kernel: CpuKernel, headroom: Headroom) -> Self {
        Self::with_rate(work, length, kernel, headroom, sustained_rate(length))
    }

    /// The same with a filter for `rate` packets a second.
    #[must_use]
    pub fn with_rate(work: PlatypusTask, length: usize, kernel: CpuKernel, headroom: Headroom, rate: u64) -> Self {
        let sustained = Sustained::new(rate, TIME);
        let mut slots = Slots::new(length.max(LEAST), headroom);
        let length = slots.length();
        let address = ADDRESS;
        let keys = WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
        for (number, slot) in (0..).zip(slots.iter_mut()) {
            // The top bit of a multiplicative hash.
            let is_late = work == PlatypusTask::Mixed && u32::wrapping_mul(number, 0x9e37_79b9) >> 31 != 0;
            slot.copy_from_slice(&packet(number, TIME, length, address, &keys, u32::from(is_late)));
        }
        let policy = Policy { narrow: true, ..Policy::default() };
        let repeated = if work == PlatypusTask::Full { ReplayPolicy::Drop } else { ReplayPolicy::Pass };
        let config = Config {
            waypoints: vec![Waypoint::new(address, keys.clone(), policy)],
            repeated,
            replay: ReplayFilter::new(
                &Key128::new([9; 16]),
                if work == PlatypusTask::Full { sustained.capacity() } else { 1 },
                sustained.started(),
            ),
            need_revocations: false,
            answers_per_second: 100,
            accounts: if work == PlatypusTask::Full { 1 << 12 } else { 0 },
            account_seed: 1,
            delegations: 16,
        };
        let fresh = slots.fronts(CHANGED.min(length));
        // With the best processor features, like the router's own key.
        let key = CmacKey::new(&[7; 16]);
        Self { slots, fresh, router: Router::new(config, kernel), kernel, key, work, pass: 0, sustained, keys }
    }

    /// Octets of each packet.
    #[must_use]
    pub fn length(&self) -> usize {
        self.slots.length()
    }

    /// Processes every packet once and restores it. Returns how many were forwarded or tagged, and the time without the
    /// restoring.
    pub fn pass(&mut self, clock: &mut impl FnMut() -> Duration) -> (usize, Duration) {
        self.pass += 1;
        let mut now = Now { instant: Instant(1), unix: UnixTime(TIME * 1_000_000) };
        if self.work == PlatypusTask::Full {
            let Self { sustained, router, .. } = self;
            now = sustained.step(|first, count, now| router.load_replay(first, count, now));
            self.stamp_anew(now.unix.secs());
        }
        let mut forwarded = 0;
        let start = clock();
        for mut frames in self.slots.frames(Ingress::Internal) {
            if self.work == PlatypusTask::Macs {
                forwarded += macs(self.kernel, &self.key, &frames);
                continue;
            }
            let actions = self.router.process(&mut frames, now);
            forwarded += actions.iter().filter(|action| **action == Action::Route).count();
        }
        let took = clock().saturating_sub(start);
        self.slots.put_back(&self.fresh, CHANGED.min(self.length()));
        (forwarded, took)
    }
}

impl PlatypusBench {
    /// Packets that were never there.
    fn stamp_anew(&mut self, secs: u64) {
        let (length, first) = (self.slots.length(), (self.pass as u32).wrapping_mul(PACKETS as u32));
        for (number, slot) in (0..).zip(self.slots.iter_mut()) {
            let number = first.wrapping_add(number);
            slot.copy_from_slice(&packet(number, secs, length, ADDRESS, &self.keys, 0));
        }
    }

    /// Octets of the replay filter.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.router.replay().map_or(0, ReplayFilter::memory)
    }
}

/// Derives a secret for each packet of a burst and tags its payload; returns how many.
fn macs(kernel: CpuKernel, key: &CmacKey, frames: &[Frame<'_>; BURST]) -> usize {
    // The same rows for all packets: the time of a MAC does not depend on its input.
    let rows: [Row; LANES] = std::array::from_fn(|lane| [[lane as u8; 16]; 4]);
    let mut tagged = 0;
    for frames in frames.as_chunks::<LANES>().0 {
        let tails = frames.each_ref().map(|frame| &frame.octets[payload(frame.octets.len())..]);
        let mut tags = [[0; 16]; LANES];
        if tag_rows(kernel, &[(key, u16::MAX)], &rows, &tails, &mut tags) {
            tagged += LANES;
        }
        black_box(&tags);
    }
    tagged
}

/// Offset of the payload in a packet of `length` octets.
fn payload(length: usize) -> usize {
    BINDING + width(length).octets()
}

/// Width of the binding in a packet of `length` octets.
fn width(length: usize) -> Width {
    if length < 72 { Width::Narrow } else { Width::Full }
}

/// Unstamped packets with headroom, and the capabilities that stamp them.
#[derive(Debug)]
pub struct PlatypusStampBench {
    slots: Slots,
    stamping: BurstStamper,
    ready: Vec<PreparedCapability>,
    counter: u32,
}

/// Octets of headroom.
const HEADROOM: usize = 128;

impl PlatypusStampBench {
    /// Packets of `length` octets, stamped by 64 principals in turn: each gets a header with one binding of 128 bits.
    #[must_use]
    pub fn new(length: usize, kernel: CpuKernel, headroom: Headroom) -> Self {
        let length = length.clamp(20, SLOT - HEADROOM);
        let mut slots = Slots::new(HEADROOM + length, headroom);
        let waypoint = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
        let keys = WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
        let hops = (0..64).map(|number| hop(number, Width::Full, waypoint, &keys, 0));
        let ready = hops.map(|hop| PreparedCapability::new(&hop).expect("of IPv4")).collect();
        for (number, slot) in (0..).zip(slots.iter_mut()) {
            slot[HEADROOM..].copy_from_slice(&inner(number, length));
        }
        Self { slots, stamping: BurstStamper::new(kernel), ready, counter: 0 }
    }

    /// Stamps every packet once and restores it. Returns how many were stamped, and the time without the restoring.
    pub fn pass(&mut self, clock: &mut impl FnMut() -> Duration) -> (usize, Duration) {
        let mut stamped = 0;
        let start = clock();
        let (counter, mut ready) = (&mut self.counter, self.ready.iter().cycle());
        let unstamped = |buffer| {
            *counter = counter.wrapping_add(1);
            let nonce = Nonce { seconds: TIME as u32, counter: *counter };
            StampInput { buffer, begin: HEADROOM, capability: ready.next().expect("64 of them"), nonce }
        };
        for mut packets in self.slots.bursts(unstamped) {
            let mut outcomes = [const { Ok(0) }; BURST];
            self.stamping.stamp(&mut packets, &mut outcomes);
            stamped += outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        }
        let took = clock().saturating_sub(start);
        for (number, slot) in (0..).zip(self.slots.iter_mut()) {
            let length = slot.len() - HEADROOM;
            slot[HEADROOM..HEADROOM + 20].copy_from_slice(&inner(number, length)[..20]);
        }
        (stamped, took)
    }
}

/// The capability of principal `number` with its key, `before` epochs before the current one.
fn hop(number: u32, width: Width, waypoint: IpAddr, keys: &WaypointKeys, before: u32) -> Hop {
    let interval = Interval::new(12).expect("in range");
    let capability = Capability {
        waypoint,
        principal: Principal::new(number % 64).expect("24 bits"),
        interval,
        epoch: epoch::epoch_at(interval, UnixTime(TIME * 1_000_000)) - before,
        marks: Marks::default(),
        delegation: None,
        width,
    };
    Hop { capability, key: keys.stamp_key(&capability).expect("one key for ever") }
}

fn packet(number: u32, secs: u64, length: usize, waypoint: IpAddr, keys: &WaypointKeys, before: u32) -> Vec<u8> {
    let width = width(length);
    let hops = [hop(number, width, waypoint, keys, before)];
    let nonce = Nonce { seconds: secs as u32, counter: number };
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut out = Vec::new();
    encapsulate(&inner(number, length - 32 - width.octets()), &route, &mut out).expect("a sound packet");
    out
}

/// An unstamped IPv4 packet.
fn inner(number: u32, length: usize) -> Vec<u8> {
    let mut inner = vec![0; length];
    inner[0] = 0x45;
    inner[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    inner[8] = 64;
    inner[9] = 17;
    inner[12..16].copy_from_slice(&[192, 0, 2, number as u8 | 1]);
    inner[16..20].copy_from_slice(&[203, 0, 113, number as u8 | 1]);
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_forwarded_or_tagged_in_every_pass() {
        for work in [PlatypusTask::Plain, PlatypusTask::Full, PlatypusTask::Mixed, PlatypusTask::Macs] {
            for length in [64, 68, 348, 1_500] {
                let mut bench = PlatypusBench::with_rate(work, length, CpuKernel::best(), Headroom::Staggered, 50_000);
                // Across turns of the filter.
                for _ in 0..if work == PlatypusTask::Full { 45 } else { 2 } {
                    // One packet in a thousand is a false positive of the replay filter.
                    let (forwarded, _) = bench.pass(&mut || Duration::ZERO);
                    assert!(forwarded + 16 >= PACKETS, "{forwarded}");
                }
            }
        }
    }

    #[test]
    fn every_packet_is_stamped_in_every_pass() {
        for length in [40, 64, 1_500] {
            let mut bench = PlatypusStampBench::new(length, CpuKernel::best(), Headroom::Staggered);
            for _ in 0..2 {
                assert_eq!(bench.pass(&mut || Duration::ZERO).0, PACKETS);
            }
        }
    }
}

//! One core's SCION router: the checks of a burst in one order, then what happens to each packet.
//!
//! Packets are taken in groups of [`LANES`]. The lanes take those in transit; all others, and those that the lanes refuse,
//! take the general path: all checks before the MAC (`before_mac`), the MACs of the group together (`macs`), and what
//! follows from them (`after_mac`).

mod after_mac;
mod answer;
mod before_mac;
mod macs;
mod one_hop;

use wayleave_core::{Instant, Now};
use wayleave_packet::scion::verify::HopTime;
use wayleave_packet::scion::{HostAddress, IsdAs};

use super::action::{Action, Counters, Reason};
use super::config::{self, Config, ConfigError, Keys, RouterInterface};
use super::delivery::LocalDelivery;
use super::flow_class::FlowClasses;
use super::lanes::{Lanes, TransitLinks};
use crate::answers::AnswerLimit;
use crate::frame::{BURST, Frame, Ingress};
use crate::lanes::{LANES, VectorCode, prefetch_headers};
use crate::limit::TokenBucket;
use answer::{Answers, Refusal};
use before_mac::PendingPacket;
use macs::MacBatch;

/// Cache lines that hold a header of a few hops.
const HEADER_LINES: usize = 2;
/// The 48 bits of a hop field's MAC.
const ALL_MAC_BITS: u64 = 0xffff_ffff_ffff;

/// One core's router of one AS.
#[derive(Clone, Debug)]
pub struct Router {
    isd_as: IsdAs,
    address: HostAddress,
    interfaces: Box<[Option<RouterInterface>]>,
    /// The interfaces once more, in the form that the lanes use.
    transit_links: TransitLinks,
    keys: Keys,
    local: LocalDelivery,
    answers: AnswerLimit,
    /// The SCMP messages about the packets of the last burst.
    composed: Answers,
    counters: Counters,
    /// Wrong MACs by the interface where they came in: they show which neighbour makes forgeries or lets them pass.
    bad_macs: Box<[u64]>,
    bad_mac_limits: Option<BadMacLimits>,
    /// The bits of MACs that are compared: all of them, but in the unit test of the comparison.
    mac_mask: u64,
    has_lanes: bool,
}

/// How many wrong MACs each interface may still bring before its packets are dropped unchecked.
#[derive(Clone, Debug)]
struct BadMacLimits {
    full: TokenBucket,
    buckets: Box<[TokenBucket]>,
}

impl BadMacLimits {
    fn resize(&mut self, interfaces: usize) {
        let mut buckets = std::mem::take(&mut self.buckets).into_vec();
        buckets.resize(interfaces, self.full.clone());
        self.buckets = buckets.into();
    }
}

/// The time of a burst.
struct Clock {
    now: Instant,
    hop_time: HopTime,
}

/// Working memory for the packets of a burst, a group at a time. The classes last for the burst.
struct Scratch {
    macs: MacBatch,
    classes: FlowClasses,
    lanes: Lanes,
    stages: [Stage; LANES],
    pending: [PendingPacket; LANES],
}

/// How far the checks of a packet have come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its header is sound, its path a standard one.
    Classified,
    /// The lanes have verified it.
    Verified,
    /// It has passed all checks but that of its MAC.
    AwaitsMac,
    /// It is refused; an SCMP message may tell the sender.
    Refused(Refusal),
    /// It has a one-hop path. Those are few, and taken one by one.
    OneHop,
    /// It is control traffic of this router.
    Control,
}

/// The lanes that passed all checks before the MAC, and those among them whose MAC is wrong.
#[derive(Clone, Copy, Default)]
struct LaneResult {
    passed: u16,
    wrong: u16,
}

impl LaneResult {
    /// The stage of a classified packet: still that, unless the lanes took it.
    #[inline(always)]
    fn stage(self, lane: usize) -> Stage {
        match (self.passed >> lane & 1, self.wrong >> lane & 1) {
            (0, _) => Stage::Classified,
            (_, 0) => Stage::Verified,
            _ => Stage::Refused(Reason::BadMac.into()),
        }
    }
}

/// One group of packets, for one router.
struct Group<'a, 'f> {
    router: &'a mut Router,
    frames: &'a mut [Frame<'f>],
    actions: &'a mut [Action],
    scratch: &'a mut Scratch,
    clock: &'a Clock,
    now: Now,
}

impl VectorCode for Group<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { router, frames, actions, scratch, clock, now } = self;
        router.process_group(frames, actions, scratch, clock, now);
    }
}

impl Router {
    /// A router of `config`, with all links up.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let (interfaces, places) = config::interfaces(config)?;
        Ok(Self {
            isd_as: config.isd_as,
            address: config.address,
            bad_macs: vec![0; interfaces.len()].into(),
            transit_links: TransitLinks::new(&interfaces),
            interfaces,
            keys: config.keys.clone(),
            local: config.local.clone(),
            answers: AnswerLimit::new(config.answers_per_second, config.answers_burst, places),
            composed: Answers::default(),
            bad_mac_limits: None,
            counters: Counters::default(),
            mac_mask: ALL_MAC_BITS,
            has_lanes: true,
        })
    }

    /// The same router with a limit on wrong MACs for every interface to a neighbour: `burst` at once and `per_second`
    /// afterwards. Beyond it no MAC of what comes in there is checked: those packets are dropped unanswered, good ones
    /// too, so that guessing gets no faster. Other interfaces, hosts and routers of the AS are not affected, nor is BFD.
    /// A group of packets is checked together, so that up to 15 wrong MACs more than the limit may be checked. Without this
    /// call there is no such limit.
    #[must_use]
    pub fn with_bad_mac_limit(mut self, per_second: u32, burst: u32) -> Self {
        self.set_bad_mac_limit(Some((per_second, burst)));
        self
    }

    /// The same router with all packets on the general path: for comparing the lanes with it. The results are the same,
    /// and take longer.
    #[must_use]
    pub fn without_lanes(mut self) -> Self {
        self.has_lanes = false;
        self
    }

    /// The same router comparing only the first 16 bits of each MAC.
    #[cfg(test)]
    pub(super) fn with_16_bit_macs(mut self) -> Self {
        self.mac_mask = 0xffff_0000_0000;
        self
    }

    /// Sets or removes the limit on wrong MACs between two bursts. What each interface has used of it stays used.
    pub fn set_bad_mac_limit(&mut self, limit: Option<(u32, u32)>) {
        let Some((per_second, burst)) = limit else {
            self.bad_mac_limits = None;
            return;
        };
        let full = TokenBucket::new(per_second, burst);
        let limits =
            self.bad_mac_limits.get_or_insert_with(|| BadMacLimits { full: full.clone(), buckets: Box::default() });
        limits.full = full;
        limits.buckets.iter_mut().for_each(|bucket| bucket.retune(per_second, burst));
        limits.resize(self.interfaces.len());
    }

    /// Processes at most [`BURST`] packets in place; packets behind them stay as they are, with the default action.
    pub fn process(&mut self, frames: &mut [Frame<'_>], now: Now) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        self.composed.clear();
        let clock = Clock { now: now.instant, hop_time: HopTime::new(now.unix) };
        let mut scratch = Scratch {
            macs: MacBatch::EMPTY,
            classes: [None; 8],
            lanes: Lanes::EMPTY,
            stages: [Stage::Classified; LANES],
            pending: [PendingPacket::default(); LANES],
        };
        let kernel = self.keys.kernel();
        prefetch_headers::<HEADER_LINES>(&frames[..frames.len().min(LANES)]);
        for (number, actions) in actions.chunks_mut(LANES).enumerate() {
            let Some((_, frames)) = frames.split_at_mut_checked(number * LANES) else { break };
            if frames.is_empty() {
                break;
            }
            let (group, rest) = frames.split_at_mut(frames.len().min(LANES));
            // While this group is processed, the headers of the next one arrive.
            prefetch_headers::<HEADER_LINES>(&rest[..rest.len().min(LANES)]);
            let group = Group { router: self, frames: group, actions, scratch: &mut scratch, clock: &clock, now };
            group.run_on(kernel);
        }
        actions
    }

    /// One group: the lanes first, and then the general path for what they leave.
    #[inline(always)]
    fn process_group(
        &mut self,
        frames: &mut [Frame<'_>],
        actions: &mut [Action],
        scratch: &mut Scratch,
        clock: &Clock,
        now: Now,
    ) {
        let result = self.process_lanes(frames, scratch, clock);
        if result.passed.count_ones() as usize != frames.len() || result.wrong != 0 {
            return self.process_general(frames, actions, scratch, result, clock, now);
        }
        self.counters.forwarded += frames.len() as u64;
        for (lane, (frame, action)) in frames.iter_mut().zip(actions).enumerate() {
            *action = scratch.lanes.rewrite(lane, frame.octets);
        }
    }

    /// Classifies the packets of a group, and verifies those in transit in lanes.
    #[inline(always)]
    fn process_lanes(&mut self, frames: &[Frame<'_>], scratch: &mut Scratch, clock: &Clock) -> LaneResult {
        let Scratch { classes, lanes, stages, .. } = scratch;
        lanes.clear();
        let mut loaded = 0;
        for (lane, (frame, stage)) in frames.iter().zip(stages.iter_mut()).enumerate() {
            *stage = match (self.classify(frame, classes), frame.ingress) {
                (Ok(class), Ingress::External(interface)) if class.is_transit && self.has_lanes => {
                    lanes.load(lane, frame.octets, interface, class);
                    loaded += 1;
                    Stage::Classified
                }
                (Ok(_), _) => Stage::Classified,
                (Err(stage), _) => stage,
            };
        }
        let mut result = LaneResult::default();
        if loaded != 0 {
            result.passed = lanes.check(&clock.hop_time, self.isd_as, &self.keys, &self.transit_links);
            if self.bad_mac_limits.is_some() {
                result.passed &= !self.throttled_lanes(frames, clock);
            }
        }
        if result.passed != 0 {
            result.wrong = lanes.check_macs(result.passed, &self.keys, self.mac_mask);
            self.counters.macs += u64::from(result.passed.count_ones());
        }
        result
    }

    /// A group of which the lanes did not verify every packet.
    #[inline(never)]
    fn process_general(
        &mut self,
        frames: &mut [Frame<'_>],
        actions: &mut [Action],
        scratch: &mut Scratch,
        result: LaneResult,
        clock: &Clock,
        now: Now,
    ) {
        let Scratch { macs, classes, lanes, stages, pending } = scratch;
        let packets = frames.iter().zip(stages.iter_mut().zip(pending.iter_mut()));
        for (lane, (frame, (stage, pending))) in packets.enumerate() {
            if *stage == Stage::Classified {
                *stage = match result.stage(lane) {
                    Stage::Classified => self.check_before_mac(frame, classes, clock, macs, pending),
                    stage => stage,
                };
            }
        }
        self.counters.macs += macs.compute(&self.keys) as u64;
        let packets = frames.iter_mut().zip(&*stages).zip(&*pending);
        for (lane, (action, ((frame, stage), pending))) in actions.iter_mut().zip(packets).enumerate() {
            let decided = match *stage {
                Stage::Verified => {
                    *action = lanes.rewrite(lane, frame.octets);
                    Ok(())
                }
                Stage::AwaitsMac => self.decide(frame, pending, macs, now, action),
                Stage::Classified => Err(Reason::Unprocessed.into()),
                Stage::Refused(refusal) => Err(refusal),
                Stage::OneHop => self.one_hop(frame, now).map(|done| *action = done).map_err(Refusal::from),
                Stage::Control => {
                    *action = Action::Control;
                    Ok(())
                }
            };
            if let Err(refusal) = decided {
                *action = self.refuse(frame, refusal, now);
            }
            self.counters.count(*action);
        }
    }

    /// The SCMP messages about the packets of the last burst: one for each [`Action::Answer`], in the order of the packets. Each
    /// is a SCION packet to be sent to where its packet came from.
    pub fn answers(&self) -> impl Iterator<Item = &[u8]> {
        self.composed.iter()
    }

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Wrong MACs in packets that came in by `interface`.
    #[must_use]
    pub fn bad_macs(&self, interface: u16) -> u64 {
        self.bad_macs.get(usize::from(interface)).copied().unwrap_or(0)
    }

    /// Sets whether the link at `interface` works; an unknown interface is ignored.
    pub fn set_link(&mut self, interface: u16, up: bool) {
        if let Some(Some(found)) = self.interfaces.get_mut(usize::from(interface)) {
            found.up = up;
            self.transit_links.set(interface, found);
        }
    }

    /// Sets the keys. Packets in flight verify as before if the older of the new keys is the one that they are under.
    pub fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Sets interfaces and addresses between two bursts. Counters stay; links that stay keep their state, new ones are up.
    ///
    /// # Errors
    /// If the configuration contradicts itself; the router stays as it was.
    pub fn reload(&mut self, config: &Config) -> Result<(), ConfigError> {
        let (mut interfaces, places) = config::interfaces(config)?;
        for (new, old) in interfaces.iter_mut().zip(&self.interfaces) {
            if let (Some(new), Some(old)) = (new, old) {
                new.up = old.up;
            }
        }
        self.interfaces = interfaces;
        self.transit_links = TransitLinks::new(&self.interfaces);
        let mut bad_macs = std::mem::take(&mut self.bad_macs).into_vec();
        bad_macs.resize(self.interfaces.len(), 0);
        self.bad_macs = bad_macs.into();
        if let Some(limits) = &mut self.bad_mac_limits {
            limits.resize(self.interfaces.len());
        }
        self.answers.retune(config.answers_per_second, config.answers_burst, places);
        self.local = config.local.clone();
        (self.isd_as, self.address, self.keys) = (config.isd_as, config.address, config.keys.clone());
        Ok(())
    }

    #[inline]
    fn interface(&self, number: u16) -> Option<&RouterInterface> {
        self.interfaces.get(usize::from(number))?.as_ref()
    }

    /// Whether the interface has brought more wrong MACs than its limit allows.
    #[inline]
    fn is_throttled(&self, ingress: Ingress, now: Instant) -> bool {
        let (Some(limits), Ingress::External(interface)) = (&self.bad_mac_limits, ingress) else { return false };
        limits.buckets.get(usize::from(interface)).is_some_and(|bucket| !bucket.is_ready(now))
    }

    /// The lanes whose packets came in by a throttled interface.
    #[inline(never)]
    fn throttled_lanes(&self, frames: &[Frame<'_>], clock: &Clock) -> u16 {
        let lanes = frames.iter().enumerate().take(LANES);
        lanes.fold(0, |bits, (lane, frame)| bits | u16::from(self.is_throttled(frame.ingress, clock.now)) << lane)
    }
}

//! The SCION router: checks in one order, MACs of sixteen packets at once, then what becomes of each packet.

mod answer;
mod check;
mod decide;
mod one_hop;

use wayleave_core::Now;
use wayleave_crypto::lanes::Work;
use wayleave_packet::scion::{Hop, HostAddress, IsdAs, Layout, MacInput, PathType, next_header};

use super::config::{self, Config, ConfigError, Keys, Port, Ways};
use super::flow_class::{Kin, Kins, slot_of};
use super::lanes::Beside;
use crate::counters::{Counters, Reason};
use crate::frame::{Action, BURST, Frame, Ingress, fetch};
use crate::limit::TokenBucket;
use check::Pending;
pub(super) use check::Time;

/// How far a segment's timestamp may lie in the future: the clocks of ASes differ. Microseconds.
pub const SKEW: u64 = 337_500_000;

/// One core's router of one AS.
#[derive(Clone, Debug)]
pub struct Router {
    isd_as: IsdAs,
    address: HostAddress,
    ports: Box<[Option<Port>]>,
    /// What the ports say, for plain packets in transit.
    ways: Ways,
    keys: Keys,
    answers: TokenBucket,
    counters: Counters,
    /// Wrong MACs by the interface where they came in: who lets forgeries pass, or makes them.
    bad_macs: Box<[u64]>,
    /// By the interface where packets come in: how many wrong MACs it may let pass before none of its MACs is checked.
    bad_mac_limits: Option<Limits>,
    /// Of the MAC's 48 bits those that are compared; fewer only in a test of the comparison.
    compared: u64,
}

/// A limit of its own for every interface.
#[derive(Clone, Debug)]
struct Limits {
    full: TokenBucket,
    buckets: Box<[TokenBucket]>,
}

impl Limits {
    fn resize(&mut self, interfaces: usize) {
        let mut buckets = std::mem::take(&mut self.buckets).into_vec();
        buckets.resize(interfaces, self.full.clone());
        self.buckets = buckets.into();
    }
}

/// Packets that are taken through all checks together: few enough that their headers stay in the nearest cache.
pub(super) const RUN: usize = 16;

/// Cache lines that hold a header of a few hops.
const HEADER_LINES: usize = 2;

/// Each packet has one hop to verify, or two where it changes from one segment to another.
const HOPS: usize = 2 * RUN;

/// The MACs of a run: inputs under the older key and then those under the newer one, tags in their place afterwards.
struct Tags {
    blocks: [MacInput; 2 * HOPS],
    count: [usize; 2],
}

/// Where a hop's tag will be.
#[derive(Clone, Copy, Default)]
struct Slot(u8);

impl Tags {
    const NONE: Self = Self { blocks: [[0; 16]; 2 * HOPS], count: [0; 2] };

    #[inline(always)]
    fn push(&mut self, newer: bool, input: MacInput) -> Slot {
        let key = usize::from(newer);
        let place = (key * HOPS + self.count[key]) % (2 * HOPS);
        self.blocks[place] = input;
        self.count[key] += 1;
        Slot(place as u8)
    }

    /// Computes them all; returns how many there were.
    fn compute(&mut self, keys: &Keys) -> usize {
        let (older, newer) = self.blocks.split_at_mut(HOPS);
        if self.count[0] != 0 {
            keys.old.tag_blocks(&mut older[..self.count[0]]);
        }
        if self.count[1] != 0 {
            keys.new.tag_blocks(&mut newer[..self.count[1]]);
        }
        let [old, new] = std::mem::take(&mut self.count);
        old + new
    }

    /// The tag's first six octets, in the low bits.
    #[inline(always)]
    fn tag(&self, slot: Slot) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.blocks[usize::from(slot.0) % (2 * HOPS)];
        Hop::computed_mac(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Room for the packets of a burst, and what they have in common.
struct Scratch {
    tags: Tags,
    kins: Kins,
    beside: Beside,
    checked: [Checked; RUN],
    pending: [Pending; RUN],
}

/// One run of packets for one router.
struct Run<'a, 'f> {
    router: &'a mut Router,
    frames: &'a mut [Frame<'f>],
    actions: &'a mut [Action],
    scratch: &'a mut Scratch,
    time: &'a Time,
    now: Now,
}

impl Work for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { router, frames, actions, scratch, time, now } = self;
        router.process_run(frames, actions, scratch, time, now);
    }
}

/// A packet after the checks that need no MAC.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checked {
    /// Its header is sound, its path a standard one.
    Sound,
    /// It is good, as was found beside others.
    Good,
    /// It waits for its MAC.
    Pending,
    /// It is refused, and the sender may be told.
    Refused(Reason),
    /// One of the few with a one-hop path, which are taken one by one.
    OneHop,
    /// Control traffic of this router.
    Control,
}

impl Router {
    /// A router of `config`, all links up.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let ports = config::ports(config)?;
        Ok(Self {
            isd_as: config.isd_as,
            address: config.address,
            bad_macs: vec![0; ports.len()].into(),
            ways: Ways::new(&ports),
            ports,
            keys: config.keys.clone(),
            answers: TokenBucket::new(config.answers_per_second, config.answers_burst),
            bad_mac_limits: None,
            counters: Counters::default(),
            compared: 0xffff_ffff_ffff,
        })
    }

    /// The same router with a limit on wrong MACs for every interface to a neighbour: `burst` at once and `per_second`
    /// afterwards. Beyond it no MAC of what comes in there is checked: those packets are dropped unanswered, good ones
    /// too, and guessing gets no faster. Other interfaces, hosts and routers of the AS do not notice; nor does BFD. A run
    /// of packets is looked at together, so that up to 15 wrong MACs more are checked than the limit says. Without this
    /// call there is no such limit.
    #[must_use]
    pub fn with_bad_mac_limit(mut self, per_second: u32, burst: u32) -> Self {
        self.set_bad_mac_limit(Some((per_second, burst)));
        self
    }

    /// Sets that limit between two bursts, or takes it away; what each interface may still let pass stays.
    pub fn set_bad_mac_limit(&mut self, limit: Option<(u32, u32)>) {
        let Some((per_second, burst)) = limit else {
            self.bad_mac_limits = None;
            return;
        };
        let full = TokenBucket::new(per_second, burst);
        let limits = self.bad_mac_limits.get_or_insert_with(|| Limits { full: full.clone(), buckets: Box::default() });
        limits.full = full;
        limits.buckets.iter_mut().for_each(|bucket| bucket.retune(per_second, burst));
        limits.resize(self.ports.len());
    }

    /// The same router comparing only the first 16 bits of each MAC: shows in a test that all bits are compared.
    #[doc(hidden)]
    #[must_use]
    pub fn with_16_bit_tags(mut self) -> Self {
        self.compared = 0xffff_0000_0000;
        self
    }

    /// Processes at most [`BURST`] packets in place; the rest is left alone, with the default action.
    pub fn process(&mut self, frames: &mut [Frame<'_>], now: Now) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let time = Time::new(now);
        let mut scratch = Scratch {
            tags: Tags::NONE,
            kins: [None; 8],
            beside: Beside::EMPTY,
            checked: [Checked::Sound; RUN],
            pending: [Pending::default(); RUN],
        };
        let kernel = self.keys.kernel();
        fetch::<HEADER_LINES>(&frames[..frames.len().min(RUN)]);
        for (number, actions) in actions.chunks_mut(RUN).enumerate() {
            let Some((_, frames)) = frames.split_at_mut_checked(number * RUN) else { break };
            if frames.is_empty() {
                break;
            }
            let (run, behind) = frames.split_at_mut(frames.len().min(RUN));
            fetch::<HEADER_LINES>(&behind[..behind.len().min(RUN)]);
            kernel.run(Run { router: self, frames: run, actions, scratch: &mut scratch, time: &time, now });
        }
        actions
    }

    /// One run: plain packets beside each other, with their MACs computed at once, and then all others likewise.
    #[inline(always)]
    fn process_run(
        &mut self,
        frames: &mut [Frame<'_>],
        actions: &mut [Action],
        scratch: &mut Scratch,
        time: &Time,
        now: Now,
    ) {
        let Scratch { kins, beside, checked, .. } = scratch;
        beside.clear();
        let mut plain = 0;
        for (lane, (frame, checked)) in frames.iter().zip(checked.iter_mut()).enumerate() {
            *checked = match (self.kin(frame, kins), frame.ingress) {
                (Ok(kin), Ingress::External(interface)) if kin.is_plain => {
                    beside.put(lane, frame.octets, interface, kin);
                    plain += 1;
                    Checked::Sound
                }
                (Ok(_), _) => Checked::Sound,
                (Err(checked), _) => checked,
            };
        }
        let (mut passed, mut wrong) = (0, 0);
        if plain != 0 {
            passed = beside.check(time, self.isd_as, &self.keys, &self.ways);
            if self.bad_mac_limits.is_some() {
                passed &= !self.throttled(frames, time);
            }
        }
        if passed != 0 {
            wrong = beside.wrong(passed, &self.keys, self.compared);
            self.counters.macs += u64::from(passed.count_ones());
        }
        if passed.count_ones() as usize != frames.len() || wrong != 0 {
            return self.process_others(frames, actions, scratch, (passed, wrong), time, now);
        }
        self.counters.forwarded += frames.len() as u64;
        for (lane, (frame, action)) in frames.iter_mut().zip(actions).enumerate() {
            *action = beside.leave(lane, frame.octets);
        }
    }

    /// A run of which not all packets were good beside each other.
    #[inline(never)]
    fn process_others(
        &mut self,
        frames: &mut [Frame<'_>],
        actions: &mut [Action],
        scratch: &mut Scratch,
        (passed, wrong): (u16, u16),
        time: &Time,
        now: Now,
    ) {
        let Scratch { tags, kins, beside, checked, pending } = scratch;
        let packets = frames.iter().zip(checked.iter_mut().zip(pending.iter_mut()));
        for (lane, (frame, (checked, pending))) in packets.enumerate() {
            if *checked == Checked::Sound {
                *checked = match (passed >> lane & 1, wrong >> lane & 1) {
                    (0, _) => self.check(frame, kins, time, tags, pending),
                    (_, 0) => Checked::Good,
                    _ => Checked::Refused(Reason::BadMac),
                };
            }
        }
        self.counters.macs += tags.compute(&self.keys) as u64;
        let packets = frames.iter_mut().zip(&*checked).zip(&*pending);
        for (lane, (action, ((frame, checked), pending))) in actions.iter_mut().zip(packets).enumerate() {
            let decided = match *checked {
                Checked::Good => {
                    *action = beside.leave(lane, frame.octets);
                    Ok(())
                }
                Checked::Pending => self.decide(frame, pending, tags, action),
                Checked::Sound => Err(Reason::Unprocessed),
                Checked::Refused(reason) => Err(reason),
                Checked::OneHop => self.one_hop(frame, now).map(|done| *action = done),
                Checked::Control => {
                    *action = Action::Control;
                    Ok(())
                }
            };
            if let Err(reason) = decided {
                *action = self.refuse(frame, reason, now);
            }
            self.counters.count(*action);
        }
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

    /// Says whether the link behind `interface` works; an unknown interface is passed over.
    pub fn set_link(&mut self, interface: u16, up: bool) {
        if let Some(Some(port)) = self.ports.get_mut(usize::from(interface)) {
            port.up = up;
            self.ways.set(interface, port);
        }
    }

    /// Takes new keys; packets already in flight verify as before.
    pub fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Takes new interfaces and addresses between two bursts, keeping counters; links that stay are as they were, others up.
    ///
    /// # Errors
    /// What is wrong with the configuration; the router stays as it was.
    pub fn reload(&mut self, config: &Config) -> Result<(), ConfigError> {
        let mut ports = config::ports(config)?;
        for (now, then) in ports.iter_mut().zip(&self.ports) {
            if let (Some(now), Some(then)) = (now, then) {
                now.up = then.up;
            }
        }
        self.ports = ports;
        self.ways = Ways::new(&self.ports);
        let mut bad_macs = std::mem::take(&mut self.bad_macs).into_vec();
        bad_macs.resize(self.ports.len(), 0);
        self.bad_macs = bad_macs.into();
        if let Some(limits) = &mut self.bad_mac_limits {
            limits.resize(self.ports.len());
        }
        self.answers.retune(config.answers_per_second, config.answers_burst);
        (self.isd_as, self.address, self.keys) = (config.isd_as, config.address, config.keys.clone());
        Ok(())
    }

    #[inline]
    fn port(&self, interface: u16) -> Option<&Port> {
        self.ports.get(usize::from(interface))?.as_ref()
    }

    /// Lengths, pointers and bounds first, which a packet may have in common with one before; then by kind of path.
    #[inline(always)]
    fn check(
        &self,
        frame: &Frame<'_>,
        kins: &mut Kins,
        time: &Time,
        tags: &mut Tags,
        pending: &mut Pending,
    ) -> Checked {
        let kin = match self.kin(frame, kins) {
            Ok(kin) => kin,
            Err(checked) => return checked,
        };
        if self.is_throttled(frame.ingress, time) {
            return Checked::Refused(Reason::Throttled);
        }
        match self.check_hops(frame, kin, time, tags, pending) {
            Ok(()) => Checked::Pending,
            Err(reason) => Checked::Refused(reason),
        }
    }

    /// The kin of a packet, if its header is sound and its path a standard one; otherwise what becomes of it.
    #[inline(always)]
    fn kin<'k>(&self, frame: &Frame<'_>, kins: &'k mut Kins) -> Result<&'k Kin, Checked> {
        let kin = &mut kins[slot_of(frame.octets)];
        if kin.as_ref().is_none_or(|kin| !kin.holds(frame.octets)) {
            *kin = Some(self.lay_out(frame)?);
        }
        kin.as_ref().ok_or(Checked::Refused(Reason::Unprocessed))
    }

    /// Where the fields of a packet with a standard path lie; or what becomes of one with another path, or none.
    #[inline(never)]
    fn lay_out(&self, frame: &Frame<'_>) -> Result<Kin, Checked> {
        let layout = Layout::decode(frame.octets).map_err(|error| Checked::Refused(check::reason(error)))?;
        if matches!(layout.next_header, next_header::HOP_BY_HOP | next_header::END_TO_END)
            && !check::extensions_are_sound(layout.next_header, &frame.octets[layout.header_len..])
        {
            return Err(Checked::Refused(Reason::Extension));
        }
        match layout.path_type {
            PathType::Standard => Kin::of(frame.octets, &layout).ok_or(Checked::Refused(Reason::Malformed)),
            PathType::OneHop => Err(Checked::OneHop),
            PathType::Empty => Err(self.empty_path(frame.ingress, layout.src, layout.dst, layout.next_header)),
        }
    }

    /// Whether too many wrong MACs have come in here.
    #[inline]
    fn is_throttled(&self, ingress: Ingress, time: &Time) -> bool {
        let (Some(limits), Ingress::External(interface)) = (&self.bad_mac_limits, ingress) else { return false };
        limits.buckets.get(usize::from(interface)).is_some_and(|bucket| !bucket.is_ready(time.instant))
    }

    /// A bit for each packet of which that is so.
    #[inline(never)]
    fn throttled(&self, frames: &[Frame<'_>], time: &Time) -> u16 {
        let lanes = frames.iter().enumerate().take(RUN);
        lanes.fold(0, |bits, (lane, frame)| bits | u16::from(self.is_throttled(frame.ingress, time)) << lane)
    }

    /// Within the AS only control traffic of its routers comes without a path.
    fn empty_path(&self, ingress: Ingress, src: IsdAs, dst: IsdAs, next_header: u8) -> Checked {
        let ours = dst == self.isd_as && src == self.isd_as;
        match ingress {
            Ingress::Sibling(_) if ours && next_header == next_header::BFD => Checked::Control,
            _ => Checked::Refused(Reason::PathType),
        }
    }
}

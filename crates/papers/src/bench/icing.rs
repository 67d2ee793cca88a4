//! ICING in memory. The caller's closure is the clock.
//!
//! Paths have a sender and seven nodes; the packets are on their way to the fourth. The length given is that of the payload,
//! after a header of 512 octets with the whole path, or of 200 octets with its handle.

use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::icing::{
    Account, Action, Config, Link, MAX_FRESHNESS, Meaning, Output, Policy, Router, Stamp, Stamper, TagRule,
};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_packet::icing::header::{Hop, MIN_SEALED, Part, Path, SEALED, Tag, Version};
use wayleave_packet::icing::mint::{Form, Front, NodeSecret, Nonce, Sender, TagMaster, encapsulate};

use super::slots::{Headroom, PACKETS, Slots};
use super::sustained::Sustained;

/// Unix seconds at which all packets are stamped.
const TIME: u32 = 1_800_000_000;
/// Nodes of a path, including its sender.
pub const NODES: usize = 8;
/// Index of the node that processes the packets.
const HERE: usize = 4;
/// Paths, each with a sender of its own.
const PATHS: u32 = 64;
/// Ingress and egress interface.
const IN: u16 = 17;
const OUT: u16 = 42;
/// Octets that a pass may change: those of the longer header.
const CHANGED: usize = 512;

/// What is done with the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcingTask {
    /// Consent and provenance are verified, proofs for the next nodes are written.
    Forward,
    /// The same, with replay filter and accounting.
    Full,
    /// Their senders stamp them.
    Stamp,
    /// [`IcingTask::Forward`] and [`IcingTask::Stamp`] of packets of the sealed profile.
    ForwardSealed,
    StampSealed,
}

impl IcingTask {
    fn version(self) -> Version {
        match self {
            Self::Forward | Self::Full | Self::Stamp => Version::Standard,
            Self::ForwardSealed | Self::StampSealed => Version::Sealed,
        }
    }
}

/// Packets in their slots, and who processes them.
#[derive(Debug)]
pub struct IcingBench {
    slots: Slots,
    fresh: Vec<u8>,
    form: Form,
    router: Router,
    senders: Vec<Sender>,
    stamper: Stamper,
    work: IcingTask,
    pass: u64,
    /// For [`IcingTask::Full`].
    sustained: Sustained,
    /// The nodes in front of this one.
    before: Vec<Router>,
}

/// Packets with so many octets of payload a second that the replay filter of [`IcingTask::Full`] is made for.
#[must_use]
pub fn sustained_rate(payload: usize) -> u64 {
    if payload < 1_000 { 4_000_000 } else { 1_000_000 }
}

impl IcingBench {
    /// Packets with `payload` octets of payload, on 64 paths.
    #[must_use]
    pub fn new(work: IcingTask, payload: usize, form: Form, kernel: CpuKernel, headroom: Headroom) -> Self {
        Self::with_rate(work, (payload, form), kernel, headroom, sustained_rate(payload))
    }

    /// The same with a filter for `rate` packets a second.
    #[must_use]
    pub fn with_rate(
        work: IcingTask,
        (payload, form): (usize, Form),
        kernel: CpuKernel,
        headroom: Headroom,
        rate: u64,
    ) -> Self {
        // The paths are learnt at `TIME`, for which the router must have started before.
        let sustained = Sustained::new(rate, u64::from(TIME));
        let nodes: Vec<NodeSecret> = (1..=NODES as u32).map(|n| NodeSecret::derive(&Seed::new([5; 32]), n)).collect();
        let senders: Vec<Sender> = (0..PATHS).map(|number| sender(work.version(), number, &nodes)).collect();
        let header = senders[0].header_length(form);
        let mut routers: Vec<Router> =
            (1..=HERE).map(|index| router(work, index, &nodes, kernel, &sustained)).collect();
        for sender in &senders {
            teach(sender, &mut routers);
        }
        let router = routers.pop().expect("four of them");
        let slots = Slots::new(header + payload, headroom);
        let stamper = Stamper::new(kernel);
        let (fresh, before) = (Vec::new(), routers);
        let mut bench = Self { slots, fresh, form, router, senders, stamper, work, pass: 0, sustained, before };
        bench.stamp_all(now(0).unix);
        bench.arrive(now(0));
        bench.fresh = bench.slots.fronts(CHANGED.min(bench.length()));
        bench
    }

    /// Octets of each packet.
    #[must_use]
    pub fn length(&self) -> usize {
        self.slots.length()
    }

    /// Processes every packet once and restores it. Returns how many were forwarded or stamped, and the time without the
    /// restoring.
    pub fn pass(&mut self, clock: &mut impl FnMut() -> Duration) -> (usize, Duration) {
        self.pass += 1;
        let mut now = now(self.pass);
        if self.work == IcingTask::Full {
            let Self { sustained, router, .. } = self;
            now = sustained.step(|first, count, now| router.load_replay(first, count, now));
            // Packets that were never there.
            self.stamp_all(now.unix);
            self.arrive(now);
        }
        let start = clock();
        let done = match self.work {
            IcingTask::Stamp | IcingTask::StampSealed => self.stamp_all(now.unix),
            IcingTask::Forward | IcingTask::Full | IcingTask::ForwardSealed => {
                forward_all(&mut self.router, &mut self.slots, now)
            }
        };
        let took = clock().saturating_sub(start);
        self.slots.put_back(&self.fresh, CHANGED.min(self.length()));
        (done, took)
    }

    /// Brings the packets, as stamped, to the node.
    fn arrive(&mut self, now: Now) {
        for before in &mut self.before {
            forward_all(before, &mut self.slots, now);
        }
    }

    /// Octets of the replay filter.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.router.replay().map_or(0, ReplayFilter::memory)
    }

    fn stamp_all(&mut self, unix: UnixTime) -> usize {
        let (form, senders) = (self.form, &self.senders);
        let (mut counter, mut stamped) = ((self.pass as u32).wrapping_mul(PACKETS as u32), 0);
        let stamp = |octets| {
            counter = counter.wrapping_add(1);
            let (sender, nonce) = (&senders[counter as usize % senders.len()], Nonce::new(unix, counter));
            Stamp { sender, front: Front { form, part: Part::Whole, protocol: SEALED, nonce }, octets }
        };
        for mut stamps in self.slots.bursts(stamp) {
            stamped += if self.stamper.stamp(&mut stamps).is_ok() { BURST } else { 0 };
        }
        stamped
    }
}

/// Sends one packet through every router, so that they know the path.
fn teach(sender: &Sender, routers: &mut [Router]) {
    let mut octets = Vec::new();
    let parts = (Form::Path, Part::Whole);
    let (nonce, payload) = (Nonce::new(now(0).unix, 0), [0; MIN_SEALED]);
    encapsulate(sender, parts, SEALED, nonce, &payload, &mut octets).expect("the payload fits");
    for router in routers {
        router.process(&mut [Frame { octets: &mut octets, ingress: Ingress::External(IN) }], now(0));
    }
}

fn forward_all(router: &mut Router, slots: &mut Slots, now: Now) -> usize {
    let mut forwarded = 0;
    for mut frames in slots.frames(Ingress::External(IN)) {
        let actions = router.process(&mut frames, now);
        forwarded += actions.iter().filter(|action| matches!(action, Action::Forward { .. })).count();
    }
    forwarded
}

fn now(pass: u64) -> Now {
    Now { instant: Instant(1 + pass * 1_000_000_000), unix: UnixTime(u64::from(TIME) * 1_000_000) }
}

fn master(index: usize) -> TagMaster {
    TagMaster::new(Key128::new([index as u8; 16]))
}

/// Sender `number` with its own path over the same nodes.
fn sender(version: Version, number: u32, nodes: &[NodeSecret]) -> Sender {
    let secret = NodeSecret::derive(&Seed::new([4; 32]), number);
    let hop = |node: &NodeSecret| Hop { node: node.id(), tag: Tag(number), expiry: TIME + 600 };
    let hops: Vec<Hop> = nodes[1..].iter().map(hop).collect();
    let path = Path::new(secret.id(), &hops).expect("eight nodes");
    let hash = path.hash(version);
    let consents: Vec<_> =
        (1..NODES).map(|index| master(index).consent(&hash, index, Tag(number), TIME + 600)).collect();
    Sender::new(version, &path, &secret, &consents).expect("one consent for each node")
}

/// The router of node `index`.
fn router(work: IcingTask, index: usize, nodes: &[NodeSecret], kernel: CpuKernel, sustained: &Sustained) -> Router {
    let is_full = work == IcingTask::Full && index == HERE;
    let link = |id, nodes| Link { id, nodes, is_open: id == IN };
    let meaning = Meaning { queue: 0, output: Output::Next, account: is_full.then_some(0) };
    let policy = Policy {
        secrets: vec![nodes[index].clone()],
        masters: vec![(0, master(index))],
        links: vec![link(IN, Vec::new()), link(OUT, vec![nodes[index + 1].id()])],
        rules: vec![TagRule { bits: 0, depth: 0, meaning }],
        accounts: if is_full { vec![Account { id: 0, rate: 1 << 40, depth: 1 << 40 }] } else { Vec::new() },
        agreed: Arc::default(),
    };
    let config = Config {
        version: Version::Standard,
        policy,
        agreements_per_second: 1 << 20,
        paths: 1 << 10,
        peers: 1 << 10,
        freshness: MAX_FRESHNESS,
        replay_capacity: if is_full { sustained.capacity() } else { 0 },
        started: UnixTime((u64::from(TIME) - 10) * 1_000_000),
        replay_key: Key128::new([9; 16]),
        seed: 1,
    };
    Router::new(config, kernel).expect("our own configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_forwarded_or_stamped_in_every_pass() {
        let sealed = [IcingTask::ForwardSealed, IcingTask::StampSealed];
        for work in [IcingTask::Forward, IcingTask::Full, IcingTask::Stamp].into_iter().chain(sealed) {
            for (payload, form) in [(64, Form::Path), (64, Form::Handle), (1_500, Form::Path)] {
                let (kernel, headroom) = (CpuKernel::best(), Headroom::Staggered);
                // The account's room is three quarters of the filter, and has place for all passes of a turn.
                let mut bench = IcingBench::with_rate(work, (payload, form), kernel, headroom, 60_000);
                // Across turns of the filter.
                for _ in 0..if work == IcingTask::Full { 45 } else { 2 } {
                    // One packet in a thousand is a false positive of the replay filter.
                    let (done, _) = bench.pass(&mut || Duration::ZERO);
                    assert!(done + 16 >= PACKETS, "{work:?} {payload} {done}");
                }
            }
        }
    }
}

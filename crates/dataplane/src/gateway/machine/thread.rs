//! One thread's part of a gateway. Threads share the machine, which one of them has at a time: it says where packets go and gives out the
//! numbers that no two packets may have. What takes most of the time needs no other thread: verifying, opening, sealing, stamping, and copies.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::{IdentityKey, InnerPrefixes, InnerTraffic, Instant, Now};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Seed;
use wayleave_packet::Path;
use wayleave_packet::icing::header::{Packet, Part, PathHash, SEALED, Version};
use wayleave_packet::icing::mint::Joiner;

use super::super::coalesce::Coalescer;
use super::super::counters::{Counters, Reason};
use super::super::flows::FlowChange;
use super::super::inner::Inner;
use super::super::offload::Offload;
use super::super::peer::Traffic;
use super::super::policy::PathPolicy;
use super::super::status::PeerStatus;
use super::arriving::{Initiation, Origin};
use super::{Config, Internet, Machine, Member, Name, Output, Reload};
use crate::frame::{BURST, Frame};
use crate::icing::{self, Action, ConfigError, Router, Stamper};
use crate::noise::{NotSealed, OpeningKey, StaticKey};

/// Pieces of memory of packets that have left which are kept for others.
const LIMIT_SPARE: usize = 64;

/// A gateway, as one thread has it.
pub struct Gateway {
    machine: Arc<Mutex<Machine>>,
    noise: Arc<StaticKey>,
    router: Router,
    joiner: Joiner,
    arrivals: Arrivals,
    stamper: Stamper,
    queue: VecDeque<Output>,
    /// Memory of packets that have left.
    spare: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let machine = lock(&self.machine);
        write!(f, "Gateway {:?} with {} peers", machine.identity, machine.peers.len())
    }
}

/// Where a message lies.
pub(super) enum MessageLocation {
    /// In the frame of this number.
    Frame(usize),
    /// It came in parts.
    Joined(Vec<u8>),
}

/// A sealed message of a verified packet.
struct Arrival {
    place: MessageLocation,
    /// Where what is sealed begins.
    at: usize,
    /// Of the session, as this side numbers it, and of the message in it.
    numbers: (u32, u64),
    /// Its place in [`Arrivals::keys`].
    key: usize,
    origin: Origin,
    state: ArrivalState,
}

enum ArrivalState {
    Sealed,
    /// So many octets of text lie where it was sealed.
    Opened(usize),
    /// It goes to the system.
    Ready(usize, Inner),
    Done,
}

/// The sealed messages of a burst, and those that begin a handshake.
#[derive(Default)]
pub(super) struct Arrivals {
    all: Vec<Arrival>,
    /// Of each session.
    keys: Vec<(u32, Arc<OpeningKey>)>,
    /// First messages of handshakes.
    pub(super) initiations: Vec<Initiation>,
}

impl Arrivals {
    pub(super) fn push(
        &mut self,
        (place, at): (MessageLocation, usize),
        numbers: (u32, u64),
        origin: Origin,
        key: impl FnOnce() -> Arc<OpeningKey>,
    ) {
        let known = self.keys.iter().position(|(index, _)| *index == numbers.0);
        let key = known.unwrap_or_else(|| {
            self.keys.push((numbers.0, key()));
            self.keys.len() - 1
        });
        self.all.push(Arrival { place, at, numbers, key, origin, state: ArrivalState::Sealed });
    }

    fn clear(&mut self) {
        self.all.clear();
        self.keys.clear();
        self.initiations.clear();
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty() && self.initiations.is_empty()
    }
}

impl Arrival {
    /// The octets from where what is sealed begins.
    fn octets<'a>(&'a mut self, frames: &'a mut [Frame<'_>]) -> &'a mut [u8] {
        let octets = match &mut self.place {
            MessageLocation::Frame(number) => frames.get_mut(*number).map(|frame| &mut *frame.octets),
            MessageLocation::Joined(octets) => Some(&mut octets[..]),
        };
        octets.and_then(|octets| octets.get_mut(self.at..)).unwrap_or_default()
    }
}

/// The machine, to read from it.
fn lock(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine, to change it.
fn turn(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    let mut machine = lock(machine);
    machine.out.counters.turns += 1;
    machine
}

impl Gateway {
    /// A gateway that knows nobody yet.
    ///
    /// # Errors
    /// If the receiver's configuration contradicts itself.
    pub fn new(config: Config, kernel: CpuKernel) -> Result<Self, ConfigError> {
        let router = Router::new(config.receiver.clone(), kernel)?;
        let machine = Arc::new(Mutex::new(Machine::new(config, kernel)));
        Ok(Self::of(machine, router, kernel))
    }

    /// The same gateway for another thread, which verifies packets by `receiver`, as this one does. To be called before the first packet.
    ///
    /// # Errors
    /// If the receiver's configuration contradicts itself.
    pub fn another(&mut self, receiver: icing::Config, kernel: CpuKernel) -> Result<Self, ConfigError> {
        let mut router = Router::new(receiver, kernel)?;
        router.share(&self.router.shared());
        Ok(Self::of(Arc::clone(&self.machine), router, kernel))
    }

    fn of(machine: Arc<Mutex<Machine>>, router: Router, kernel: CpuKernel) -> Self {
        let noise = Arc::clone(&lock(&machine).noise);
        Self {
            machine,
            noise,
            router,
            joiner: Joiner::default(),
            arrivals: Arrivals::default(),
            stamper: Stamper::new(kernel),
            queue: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Has the machine do something. What it puts out is this thread's to perform.
    fn with<T>(&mut self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = turn(&self.machine);
        let result = act(&mut machine);
        self.queue.append(&mut machine.out.queue);
        result
    }

    /// Takes an inner packet from the system. Addresses in it may be rewritten.
    pub fn inner(&mut self, octets: &mut [u8], offload: &Offload, now: Now) {
        let Some(run) = self.with(|machine| machine.inner(octets, offload, now)) else { return };
        let buffer = self.spare.pop().unwrap_or_default();
        let Self { queue, stamper, .. } = self;
        if run.write(octets, stamper, buffer, &mut |output| queue.push_back(output)).is_err() {
            turn(&self.machine).out.counters.drop(Reason::NotSent);
        }
    }

    /// Takes at most [`BURST`] ICING packets. What is sealed in them is opened where it lies.
    pub fn outer(&mut self, frames: &mut [Frame<'_>], now: Now) {
        let actions = self.router.process(frames, now);
        self.sort(frames, &actions, now);
        if self.arrivals.is_empty() {
            return;
        }
        let Arrivals { all, keys, initiations } = &mut self.arrivals;
        for arrival in &mut *all {
            let (number, key) = (arrival.numbers.1, arrival.key);
            if let Some(plain) = keys[key].1.open(number, arrival.octets(frames)) {
                arrival.state = ArrivalState::Opened(plain.len());
            }
        }
        // Agreements take so long that other threads would notice.
        let noise = &self.noise;
        let answers: Vec<_> = initiations.iter().map(|initiation| initiation.answer(noise, now)).collect();
        let mut machine = turn(&self.machine);
        for (initiation, answer) in initiations.iter().zip(answers) {
            let answer = answer.map_err(|NotSealed| Reason::Seal);
            if let Err(reason) = answer.and_then(|answer| machine.answered(initiation, answer, now)) {
                machine.out.counters.drop(reason);
            }
        }
        for arrival in &mut *all {
            let ArrivalState::Opened(length) = arrival.state else {
                machine.out.counters.drop(Reason::Seal);
                continue;
            };
            let (numbers, origin) = (arrival.numbers, arrival.origin);
            let plain = arrival.octets(frames).get_mut(..length).unwrap_or_default();
            arrival.state = match machine.opened(numbers, plain, origin, now) {
                Ok(Some(inner)) => ArrivalState::Ready(length, inner),
                Ok(None) => ArrivalState::Done,
                Err(reason) => {
                    machine.out.counters.drop(reason);
                    ArrivalState::Done
                }
            };
        }
        self.queue.append(&mut machine.out.queue);
        drop(machine);
        let mut coalescer = Coalescer::default();
        let queue = &mut self.queue;
        let mut ready = |ready| queue.push_back(Output::Inner(ready));
        for arrival in &mut *all {
            if let ArrivalState::Ready(length, inner) = arrival.state {
                let plain = arrival.octets(frames).get(..length).unwrap_or_default();
                coalescer.push(plain, inner, &mut ready);
            }
        }
        coalescer.flush(&mut ready);
        self.arrivals.clear();
    }

    /// Has the machine take what verified packets say, but for what is sealed, which is gathered.
    fn sort(&mut self, frames: &[Frame<'_>], actions: &[Action; BURST], now: Now) {
        let Self { machine, router, joiner, arrivals, queue, .. } = self;
        let mut machine = turn(machine);
        for (number, (frame, action)) in frames.iter().zip(actions).take(BURST).enumerate() {
            let taken = match action {
                Action::Deliver { service: 0, .. } => Ok(()),
                Action::Drop(reason) => {
                    machine.out.counters.refuse(*reason);
                    continue;
                }
                _ => Err(Reason::NotForwarder),
            };
            let Ok(packet) = Packet::decode(frame.octets, Version::Standard) else { continue };
            let taken = taken.and_then(|()| {
                if packet.protocol() != SEALED {
                    return Err(Reason::NotSealed);
                }
                let node = router.sender(&packet).ok_or(Reason::Stranger)?;
                let origin = machine.origin(&packet, node).ok_or(Reason::Stranger)?;
                if packet.part() == Part::Whole {
                    let (octets, payload) = (frame.octets.len(), packet.payload());
                    let place = (MessageLocation::Frame(number), octets - payload.len());
                    return machine.sort(payload, place, origin, arrivals, now);
                }
                let mut joined = Vec::new();
                let (handle, nonce) = (packet.handle(), packet.nonce());
                if joiner.join(handle, nonce, packet.part(), packet.payload(), now.instant, &mut joined) {
                    let octets = joined.clone();
                    return machine.sort(&octets, (MessageLocation::Joined(joined), 0), origin, arrivals, now);
                }
                Ok(())
            });
            if let Err(reason) = taken {
                machine.out.counters.drop(reason);
            }
        }
        queue.append(&mut machine.out.queue);
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<Output> {
        self.queue.pop_front()
    }

    /// Gives back the memory of packets that have left, for others.
    pub fn reuse(&mut self, octets: Vec<u8>) {
        if self.spare.len() < LIMIT_SPARE {
            self.spare.push(octets);
        }
    }

    /// When [`Gateway::handle_timeout`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        lock(&self.machine).deadline()
    }

    /// Lets timers that are due fire. Any thread may do that.
    pub fn handle_timeout(&mut self, now: Now) {
        self.with(|machine| machine.handle_timeout(now));
    }

    /// Mixes in fresh entropy, so that a copy of the process draws other values.
    pub fn reseed(&mut self, entropy: &Seed) {
        self.with(|machine| machine.reseed(entropy));
    }

    /// Takes a reload. Other threads are told how packets that come to them are verified by [`Gateway::set_policy`].
    ///
    /// # Errors
    /// If the receiver's policy contradicts itself; that and the neighbours have not changed then, all else has.
    pub fn reload(&mut self, reload: Reload, now: Now) -> Result<(), ConfigError> {
        let policy = self.router.set_policy(reload.receiver.clone());
        self.with(|machine| machine.reload(reload, policy.is_ok(), now));
        policy
    }

    /// Sets who is a member and who has which inner prefixes; sessions with others end.
    pub fn set_realm(&mut self, members: Vec<Member>, prefixes: InnerPrefixes) {
        self.with(|machine| machine.set_realm(members, prefixes));
    }

    /// Sets which nodes paths may cross: the members whose names are known here, so that none of them is a node that a policy avoids
    /// by a name that is not resolved. A path over another node is left at once. Before the first call paths may cross any node.
    ///
    /// `policies`, if they are new, are those in which the same names are resolved: both hold from the next packet on, so that none
    /// goes over a node whose name has moved to another one, or over that one.
    pub fn set_nodes(&mut self, nodes: BTreeSet<IdentityKey>, policies: Option<Vec<PathPolicy>>, now: Now) {
        self.with(|machine| machine.set_nodes(nodes, policies, None, now));
    }

    /// Sets how packets that come to this thread are verified.
    ///
    /// # Errors
    /// If the policy contradicts itself; nothing has changed then.
    pub fn set_policy(&mut self, policy: icing::Policy) -> Result<(), ConfigError> {
        self.router.set_policy(policy)
    }

    /// Sets the path policies. Flows go on, from now on over what is allowed. If the policies have other names than before, the
    /// addresses of names are to be set again.
    pub fn set_policies(&mut self, policies: Vec<PathPolicy>, now: Now) {
        self.with(|machine| machine.set_policies(policies, now));
    }

    /// The path policies.
    #[must_use]
    pub fn policies(&self) -> Vec<PathPolicy> {
        lock(&self.machine).policies.clone()
    }

    /// Sets what becomes of the Internet.
    pub fn set_internet(&mut self, internet: Internet) {
        self.with(|machine| machine.internet = internet);
    }

    /// Sets which inner packets each member may begin to send to this side, all if its list is empty, none if it has no list; what this side
    /// began is answered in any case. `None` admits everything.
    pub fn set_admitted(&mut self, admitted: Option<HashMap<IdentityKey, Vec<InnerTraffic>>>) {
        self.with(|machine| machine.admitted = admitted);
    }

    /// Sets what the addresses of names stand for; names under policies that there are not are left out.
    pub fn set_names(&mut self, names: impl IntoIterator<Item = (IpAddr, Name)>) {
        self.with(|machine| machine.set_names(names));
    }

    /// Adds what further addresses of names stand for.
    pub fn add_names(&mut self, names: impl IntoIterator<Item = (IpAddr, Name)>) {
        self.with(|machine| machine.add_names(names));
    }

    /// What all threads have counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        lock(&self.machine).out.counters.clone()
    }

    /// What was carried for each member.
    #[must_use]
    pub fn traffic(&self) -> Vec<(IdentityKey, Traffic)> {
        lock(&self.machine).traffic().collect()
    }

    /// Every gateway that anything is remembered of.
    #[must_use]
    pub fn status(&self, now: Now) -> Vec<PeerStatus> {
        lock(&self.machine).status(now)
    }

    /// Takes changes of flows' records, some at a time: flows by name outlive this process if they are kept and restored.
    pub fn take_flow_changes(&mut self, now: Now) -> Vec<FlowChange> {
        self.with(|machine| machine.flows.take_changes(now))
    }

    /// Changes that could not be kept are taken again later.
    pub fn return_flow_changes(&mut self, changes: &[FlowChange]) {
        self.with(|machine| machine.flows.return_changes(changes));
    }

    /// Takes a flow's record of an earlier life. Returns whether the flow goes on; otherwise its record is to be removed.
    pub fn restore_flow(&mut self, key: &[u8], value: &[u8], now: Now) -> bool {
        self.with(|machine| machine.flows.restore(key, value, now))
    }

    /// Takes the paths to a gateway, or why there are none.
    pub fn set_paths(&mut self, peer: IdentityKey, paths: Result<Vec<Path>, String>, now: Now) {
        self.with(|machine| machine.set_paths(peer, paths, now));
    }

    /// Takes a path with the consents of all nodes, or why there are none, for the path of `hash`.
    pub fn set_proofs(&mut self, peer: IdentityKey, hash: PathHash, path: Result<Path, String>, now: Now) {
        self.with(|machine| machine.set_proofs(peer, hash, path, now));
    }

    /// The neighbour behind a link said that it ends: every path by it is dead, and another is used at once.
    pub fn link_closed(&mut self, link: u16, now: Now) {
        self.with(|machine| machine.link_closed(link, now));
    }

    /// Keeps a path to `node` by the policy at `policy` for a while, as if a packet had been sent there, and probes it at once.
    pub fn want(&mut self, node: IdentityKey, policy: usize, now: Now) {
        self.with(|machine| machine.want(node, policy, now));
    }
}

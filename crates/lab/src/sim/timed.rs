//! The order of events where work and links cost time ([`super::costs`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Machine};
use wayleave_member::{Input as MemberInput, MemberProxy};
use wayleave_route_server::party::{LinkId, Party, PartyInput, SetupDone};

use super::costs::{Costs, Done};
use super::{Input, Node, Sim};

/// What a frame counts for beyond its octets, as in the runtime.
const FRAME_COST: usize = 64;

/// What lies in front of a process.
pub(super) enum Letter {
    Input(Input),
    Frame { from: Node, link: LinkId, bytes: Arc<[u8]> },
}

/// A frame on its way: sender, receiver, link, octets.
type InTransit = (Node, Node, LinkId, Arc<[u8]>);

/// What a simulation with costs has beyond the state of the processes.
pub(super) struct World {
    costs: Costs,
    /// When a process has done what it took up last.
    busy: BTreeMap<Node, Instant>,
    /// When a party's other processor has done its last job of setup.
    setup_busy: BTreeMap<Node, Instant>,
    /// By when it is there.
    letters: BTreeMap<Node, BTreeMap<(Instant, u64), Letter>>,
    /// Frames on their way, by time of arrival.
    transit: BTreeMap<(Instant, u64), InTransit>,
    sent: u64,
    /// When the last frame of a direction has left.
    free: BTreeMap<(Node, Node), Instant>,
    /// Octets that the receiver has not taken up yet.
    outstanding: BTreeMap<(Node, Node), usize>,
    /// The most of these so far.
    most_outstanding: BTreeMap<(Node, Node), usize>,
    deadlines: BTreeMap<Node, Option<Instant>>,
    /// When each process next does something, whether that is a timer, and which one it is; and where each is in this list.
    agenda: BTreeSet<(Instant, bool, Node)>,
    places: BTreeMap<Node, (Instant, bool)>,
    /// When what the process at work sends leaves it.
    leaves: Option<Instant>,
}

impl World {
    pub(super) fn new(costs: Costs) -> Self {
        Self {
            costs,
            busy: BTreeMap::new(),
            setup_busy: BTreeMap::new(),
            letters: BTreeMap::new(),
            transit: BTreeMap::new(),
            sent: 0,
            free: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            most_outstanding: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            agenda: BTreeSet::new(),
            places: BTreeMap::new(),
            leaves: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.transit.is_empty() && self.letters.values().all(BTreeMap::is_empty)
    }

    /// Puts a frame on its way. `false` if more waits for the receiver than its link holds.
    pub(super) fn send(&mut self, (from, to): (Node, Node), link: LinkId, bytes: Arc<[u8]>, now: Instant) -> bool {
        let wire = self.costs.wire(from, to);
        let waiting = self.outstanding.entry((from, to)).or_default();
        *waiting += bytes.len() + FRAME_COST;
        let most = self.most_outstanding.entry((from, to)).or_default();
        *most = (*most).max(*waiting);
        if *waiting > wire.buffer {
            return false;
        }
        let free = self.free.entry((from, to)).or_insert(now);
        *free = (*free).max(self.leaves.unwrap_or(now)) + wire.transmission(bytes.len());
        self.sent += 1;
        self.transit.insert((*free + wire.delay, self.sent), (from, to, link, bytes));
        true
    }

    fn post(&mut self, node: Node, at: Instant, letter: Letter) {
        self.sent += 1;
        self.letters.entry(node).or_default().insert((at, self.sent), letter);
        self.note(node);
    }

    /// A party gave out a job of setup: its result is there once its other processor has done it.
    pub(super) fn setup_done(&mut self, node: Node, done: SetupDone, now: Instant) {
        let begins = self.leaves.unwrap_or(now);
        let begins = self.setup_busy.get(&node).map_or(begins, |busy| begins.max(*busy));
        let ends = begins + self.costs.setup_time(node, done.correlations());
        self.setup_busy.insert(node, ends);
        self.post(node, ends, Letter::Input(Input::Party(PartyInput::SetupDone(done))));
    }

    /// A link is gone, and with it what was on its way.
    pub(super) fn cut(&mut self, link: LinkId, ends: (Node, Node)) {
        self.transit.retain(|_, (.., of, _)| *of != link);
        for end in [ends.0, ends.1] {
            if let Some(letters) = self.letters.get_mut(&end) {
                letters.retain(|_, letter| !matches!(letter, Letter::Frame { link: of, .. } if *of == link));
                self.note(end);
            }
        }
        for ends in [ends, (ends.1, ends.0)] {
            self.outstanding.remove(&ends);
            self.free.remove(&ends);
        }
    }

    /// A process is gone, and with it what lay in front of it.
    pub(super) fn kill(&mut self, node: Node) {
        self.letters.remove(&node);
        self.busy.remove(&node);
        self.setup_busy.remove(&node);
        self.deadlines.remove(&node);
        self.note(node);
    }

    /// A process was started, or was asked: its next timer may be another.
    pub(super) fn changed(&mut self, node: Node, deadline: Option<Instant>) {
        self.deadlines.insert(node, deadline);
        self.note(node);
    }

    fn free_at(&self, node: Node, at: Instant) -> Instant {
        self.busy.get(&node).map_or(at, |busy| at.max(*busy))
    }

    /// When and at which process something is next done: a letter if one is there by then, otherwise a timer.
    fn next(&self) -> Option<(Instant, Node, bool)> {
        self.agenda.first().map(|(at, is_timer, node)| (*at, *node, *is_timer))
    }

    /// Keeps the agenda true to what lies in front of a process, to its timer and to its work.
    fn note(&mut self, node: Node) {
        if let Some((at, is_timer)) = self.places.remove(&node) {
            self.agenda.remove(&(at, is_timer, node));
        }
        let letter = self.letters.get(&node).and_then(|letters| letters.first_key_value());
        let letter = letter.map(|((at, _), _)| (self.free_at(node, *at), false));
        let timer = self.deadlines.get(&node).copied().flatten().map(|at| (self.free_at(node, at), true));
        if let Some((at, is_timer)) = letter.into_iter().chain(timer).min() {
            self.places.insert(node, (at, is_timer));
            self.agenda.insert((at, is_timer, node));
        }
    }
}

impl Sim {
    /// Frames, octets and time: the most octets that waited for a receiver so far, of simulations with costs.
    #[must_use]
    pub fn most_outstanding(&self, from: Node, to: Node) -> usize {
        let world = self.world.as_ref();
        world.and_then(|world| world.most_outstanding.get(&(from, to))).copied().unwrap_or(0)
    }

    /// What a simulation with costs charges, from now on.
    pub fn costs(&mut self) -> Option<&mut Costs> {
        self.world.as_mut().map(|world| &mut world.costs)
    }

    fn done(&self, node: Node) -> Done {
        match node {
            Node::Party(_) => self.parties.get(&node).map(|party| Done::of_party(party.counters())),
            Node::Member(slot) => self.members.get(&slot).map(|member| Done::of_member(member.counters())),
        }
        .unwrap_or_default()
    }

    /// Hands inputs that were given by now to their processes.
    fn post(&mut self, at: Instant) {
        let Some(world) = &mut self.world else { return };
        for (node, input) in self.inputs.drain(..) {
            world.post(node, at, Letter::Input(input));
        }
    }

    /// Does what comes next. `false` if nothing is due within `horizon`.
    pub(super) fn timed_step(&mut self, horizon: Duration) -> bool {
        self.post(self.now.instant);
        let known = self.world.as_ref().map_or(0, |world| world.deadlines.len());
        if known < self.parties.len() + self.members.len() + self.sinks.len() {
            let nodes: Vec<Node> = self.running().filter(|node| self.is_new(*node)).collect();
            nodes.into_iter().for_each(|node| self.note_deadline(node));
        }
        let Some(world) = &mut self.world else { return false };
        let arrival = world.transit.first_key_value().map(|((at, _), _)| *at);
        let next = world.next();
        let Some(at) = arrival.into_iter().chain(next.map(|(at, ..)| at)).min() else { return false };
        if at > self.now.instant + horizon {
            return false;
        }
        if arrival == Some(at) {
            if let Some((_, (from, to, link, bytes))) = world.transit.pop_first() {
                world.post(to, at, Letter::Frame { from, link, bytes });
            }
            self.set_instant(at.max(self.now.instant));
            return true;
        }
        let Some((_, node, is_timer)) = next else { return false };
        let letter = if is_timer { None } else { world.letters.get_mut(&node).and_then(BTreeMap::pop_first) };
        world.note(node);
        self.set_instant(at.max(self.now.instant));
        self.work_on(node, letter.map(|(_, letter)| letter));
        true
    }

    /// A process takes a letter, or a timer.
    fn work_on(&mut self, node: Node, letter: Option<Letter>) {
        let before = self.done(node);
        match letter {
            None => self.handle_timeout(node),
            Some(Letter::Input(input)) => self.handle_input(node, input),
            Some(Letter::Frame { from, link, bytes }) => {
                if let Some(world) = &mut self.world
                    && let Some(waiting) = world.outstanding.get_mut(&(from, node))
                {
                    *waiting = waiting.saturating_sub(bytes.len() + FRAME_COST);
                }
                if let Some(input) = self.arrived(from, node, link, &bytes) {
                    self.handle_input(node, input);
                }
            }
        }
        let after = self.done(node);
        let Some(world) = &mut self.world else { return };
        let leaves = self.now.instant + world.costs.time(node, &before, &after);
        world.busy.insert(node, leaves);
        world.leaves = Some(leaves);
        // What the process reads back from its store comes after the store has it.
        self.drain(node);
        let Some(world) = &mut self.world else { return };
        world.leaves = None;
        let persisted = leaves + Duration::from_nanos(world.costs.operations.persisted);
        let (stored, rest) = std::mem::take(&mut self.inputs).into_iter().partition(|(_, input)| is_of_store(input));
        self.inputs = rest;
        self.post(leaves);
        self.inputs = stored;
        self.post(persisted);
        self.note_deadline(node);
    }

    fn running(&self) -> impl Iterator<Item = Node> {
        let members = self.members.keys().chain(self.sinks.keys()).map(|slot| Node::Member(*slot));
        self.parties.keys().copied().chain(members)
    }

    fn is_new(&self, node: Node) -> bool {
        self.world.as_ref().is_some_and(|world| !world.deadlines.contains_key(&node))
    }

    fn note_deadline(&mut self, node: Node) {
        let deadline = match node {
            Node::Party(_) => self.parties.get(&node).and_then(Party::deadline),
            Node::Member(slot) => self.members.get(&slot).and_then(MemberProxy::deadline),
        };
        if let Some(world) = &mut self.world {
            world.changed(node, deadline);
        }
    }
}

fn is_of_store(input: &Input) -> bool {
    matches!(
        input,
        Input::Party(PartyInput::Persisted(_))
            | Input::Member(MemberInput::Persisted(_) | MemberInput::SlotPersisted(_))
    )
}

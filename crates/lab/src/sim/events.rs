//! What happens next: inputs, frames and timers, and what processes output.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_member::{Input as MemberInput, Output as MemberOutput};
use wayleave_route_server::frames::MAX_FRAME;
use wayleave_route_server::party::{Change, LinkId, PartyInput, PartyOutput, SetupJob};

use super::timed::World;
use super::{BEGIN, FrameAction, Input, Node, PARTIES, Recorded, Sim, bgp};

impl Sim {
    /// A number below `below`, from the simulation's seed.
    pub fn choose(&mut self, below: usize) -> usize {
        let mut bytes = [0; 16];
        self.choices.fill(self.chosen, &mut bytes);
        self.chosen += 1;
        let number = u64::from_le_bytes(*bytes.first_chunk().expect("8 of 16"));
        usize::try_from(number % below.max(1) as u64).expect("below a usize")
    }

    /// Sets both clocks. The wall clock follows the monotonic one without rounding errors that would add up.
    pub(super) fn set_instant(&mut self, instant: Instant) {
        let passed = u64::try_from(instant.since(BEGIN.instant).as_micros()).expect("a short time");
        self.now = Now { instant, unix: UnixTime(BEGIN.unix.0 + passed + self.wall_ahead) };
    }

    /// Sets the wall clock of all processes forward.
    pub fn set_wall_clock_forward(&mut self, by: Duration) {
        self.wall_ahead += u64::try_from(by.as_micros()).expect("a short time");
        self.set_instant(self.now.instant);
    }

    /// Sets the wall clock of all processes right again.
    pub fn set_wall_clock_right(&mut self) {
        self.wall_ahead = 0;
        self.set_instant(self.now.instant);
    }

    /// Processes one input, or else one frame, or else the next timer. `false` if nothing is due within `horizon`.
    pub fn step(&mut self, horizon: Duration) -> bool {
        if self.world.is_some() {
            return self.timed_step(horizon);
        }
        if let Some((node, input)) = self.inputs.pop_front() {
            self.deliver_input(node, input);
            return true;
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        let waiting: Vec<(Node, Node)> = self.queues.keys().copied().collect();
        let arriving = self.ports.as_ref().map_or(0, bgp::Ports::ready);
        if waiting.len() + arriving > 0 {
            let pick = self.choose(waiting.len() + arriving);
            match waiting.get(pick).copied() {
                Some((from, to)) => {
                    let frame = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                    if let Some((link, bytes)) = frame {
                        self.carry(from, to, link, &bytes);
                    }
                }
                None => self.deliver_octets(pick - waiting.len()),
            }
            self.set_instant(self.now.instant + Duration::from_nanos(100));
            return true;
        }
        let of_process = self.next_deadline();
        let of_session = self.ports.as_ref().and_then(bgp::Ports::deadline);
        let Some(at) = of_process.map(|(at, _)| at).into_iter().chain(of_session).min() else { return false };
        if at > self.now.instant + horizon {
            return false;
        }
        if at > self.now.instant {
            self.set_instant(at);
        }
        match of_process {
            Some((due, node)) if due == at => self.timeout(node),
            _ => self.ports_timeout(),
        }
        true
    }

    fn next_deadline(&self) -> Option<(Instant, Node)> {
        let parties = self.parties.iter().filter_map(|(node, party)| Some((party.deadline()?, *node)));
        let members = self.members.iter().filter_map(|(slot, m)| Some((m.deadline()?, Node::Member(*slot))));
        parties.chain(members).min()
    }

    fn carry(&mut self, from: Node, to: Node, link: LinkId, bytes: &Arc<[u8]>) {
        if let Some(input) = self.arrived(from, to, link, bytes) {
            self.deliver_input(to, input);
        }
    }

    /// What a process is given of a frame, after all that happened to it on its way.
    pub(super) fn arrived(&mut self, from: Node, to: Node, link: LinkId, bytes: &Arc<[u8]>) -> Option<Input> {
        let action = self.tamper.as_mut().map_or(FrameAction::Pass, |tamper| tamper(from, to, bytes));
        let bytes = match action {
            FrameAction::Pass => bytes.to_vec(),
            FrameAction::Change(bytes) => bytes,
            FrameAction::Drop => return None,
        };
        Some(match to {
            Node::Party(_) => Input::Party(PartyInput::Frame { link, bytes }),
            Node::Member(_) => Input::Member(MemberInput::Frame { link, bytes }),
        })
    }

    fn deliver_input(&mut self, node: Node, input: Input) {
        self.handle_input(node, input);
        self.drain(node);
    }

    pub(super) fn handle_input(&mut self, node: Node, input: Input) {
        let (now, fresh) = (self.now, self.fresh());
        let begin = std::time::Instant::now();
        match (node, input) {
            (Node::Party(_), Input::Party(input)) => {
                if let Some(party) = self.parties.get_mut(&node) {
                    party.reseed(&fresh);
                    party.handle(input, now);
                }
            }
            (Node::Member(slot), Input::Member(input)) => {
                if let Some(member) = self.members.get_mut(&slot) {
                    member.reseed(&fresh);
                    member.handle(input, now);
                } else {
                    self.sink_takes(slot, input);
                }
            }
            _ => {}
        }
        if let Some(work) = &mut self.work {
            *work.entry(node).or_default() += begin.elapsed();
        }
    }

    fn timeout(&mut self, node: Node) {
        self.handle_timeout(node);
        self.drain(node);
    }

    pub(super) fn handle_timeout(&mut self, node: Node) {
        let (now, fresh) = (self.now, self.fresh());
        let begin = std::time::Instant::now();
        match node {
            Node::Party(_) => {
                if let Some(party) = self.parties.get_mut(&node) {
                    party.reseed(&fresh);
                    party.handle_timeout(now);
                }
            }
            Node::Member(slot) => {
                if let Some(member) = self.members.get_mut(&slot) {
                    member.reseed(&fresh);
                    member.handle_timeout(now);
                }
            }
        }
        if let Some(work) = &mut self.work {
            *work.entry(node).or_default() += begin.elapsed();
        }
    }

    pub(super) fn drain(&mut self, node: Node) {
        match node {
            Node::Party(_) => {
                while let Some(output) = self.parties.get_mut(&node).and_then(Machine::poll) {
                    self.party_output(node, output);
                }
                let oversized = self.parties.get(&node).map_or(0, |party| party.counters().oversized_ticks);
                assert_eq!(oversized, 0, "{node:?} makes ticks of more than half a member's credit");
            }
            Node::Member(slot) => {
                while let Some(output) = self.members.get_mut(&slot).and_then(Machine::poll) {
                    self.member_output(slot, output);
                }
                self.drain_port(slot);
            }
        }
    }

    fn party_output(&mut self, node: Node, output: PartyOutput) {
        match output {
            PartyOutput::Send { link, frame } => {
                // The runtime's links refuse a longer one, and end.
                assert!(frame.len() <= MAX_FRAME, "{node:?} sends a frame of {} octets", frame.len());
                self.send(node, link, frame.into());
            }
            PartyOutput::Close { link, reason } => self.close(node, link, reason),
            PartyOutput::Persist { id, changes } => {
                self.write(node, changes);
                self.inputs.push_back((node, Input::Party(PartyInput::Persisted(id))));
            }
            PartyOutput::Setup(job) => match &mut self.held_setup {
                Some(held) => held.push((node, job)),
                None => self.run_setup(node, job),
            },
            PartyOutput::Members(_) => {}
            PartyOutput::Event(event) => self.party_events.push((node, event)),
        }
    }

    /// Runs a party's job of setup: at once, or in virtual time on a processor of its own.
    fn run_setup(&mut self, node: Node, job: SetupJob) {
        let begin = std::time::Instant::now();
        let done = job.run();
        if let Some(work) = &mut self.work {
            *work.entry(node).or_default() += begin.elapsed();
        }
        let now = self.now.instant;
        match &mut self.world {
            Some(world) => world.setup_done(node, done, now),
            None => self.inputs.push_back((node, Input::Party(PartyInput::SetupDone(done)))),
        }
    }

    /// Holds back the parties' jobs of setup until [`Sim::release_setup`].
    pub fn hold_setup(&mut self) {
        self.held_setup.get_or_insert_default();
    }

    /// Runs the jobs of setup that were held back, and holds back none from now on. Returns how many there were.
    pub fn release_setup(&mut self) -> usize {
        let held = self.held_setup.take().unwrap_or_default();
        let jobs = held.len();
        held.into_iter().for_each(|(node, job)| self.run_setup(node, job));
        jobs
    }

    fn member_output(&mut self, slot: u32, output: MemberOutput) {
        let node = Node::Member(slot);
        match output {
            MemberOutput::Send { link, frame } => {
                assert!(frame.len() <= MAX_FRAME, "{node:?} sends a frame of {} octets", frame.len());
                self.send(node, link, frame.into());
            }
            MemberOutput::Close { link, reason, .. } => self.close(node, link, reason),
            MemberOutput::Persist { id, changes } => {
                self.write(node, changes);
                self.inputs.push_back((node, Input::Member(MemberInput::Persisted(id))));
            }
            MemberOutput::Install { prefix, attributes } if self.ports.is_some() => {
                self.install(slot, prefix, attributes);
            }
            MemberOutput::Install { prefix, attributes } => {
                self.router_changes.push((slot, prefix, attributes.is_some()));
                let table = self.tables.entry(slot).or_default();
                match attributes {
                    Some(attributes) => table.insert(prefix, attributes),
                    None => table.remove(&prefix),
                };
            }
            MemberOutput::InstallPaths { prefix, paths } => self.install_paths(slot, prefix, paths),
            MemberOutput::Event(event) => self.member_events.push((slot, event)),
            MemberOutput::Job(job) => match self.held_jobs.get_mut(&slot) {
                Some(held) => held.push(job),
                None => self.inputs.push_back((node, Input::Member(MemberInput::JobDone(job.run())))),
            },
            MemberOutput::PersistSlot { id, .. } => {
                self.inputs.push_back((node, Input::Member(MemberInput::SlotPersisted(id))));
            }
            MemberOutput::AttestationEvent(event) => self.attestation_events.push((slot, event)),
        }
    }

    fn write(&mut self, node: Node, changes: Vec<Change>) {
        let store = self.stores.entry(node).or_default();
        for change in changes {
            let key = (change.table.to_owned(), change.key);
            match change.value {
                Some(value) => store.insert(key, value),
                None => store.remove(&key),
            };
        }
    }

    pub(super) fn send(&mut self, from: Node, link: LinkId, frame: Arc<[u8]>) {
        let Some((a, b)) = self.links.get(&link).copied() else { return };
        let to = if a == from { b } else { a };
        if let Some(recording) = &mut self.recording {
            recording.push(Recorded { from, to, at: self.now.instant, bytes: Arc::clone(&frame) });
        }
        let now = self.now.instant;
        match &mut self.world {
            None => self.queues.entry((from, to)).or_default().push_back((link, frame)),
            Some(world) => {
                if !world.send((from, to), link, frame, now) {
                    let reason = "the peer reads too slowly: more waits for it than its link holds".to_owned();
                    self.link_down(from, link);
                    self.close(from, link, reason);
                }
            }
        }
    }

    fn close(&mut self, node: Node, link: LinkId, reason: String) {
        let Some((a, b)) = self.links.remove(&link) else { return };
        let other = if a == node { b } else { a };
        self.closed.push((node, other, reason));
        if let Some(world) = &mut self.world {
            world.cut(link, (a, b));
        }
        for ends in [(a, b), (b, a)] {
            if let Some(queue) = self.queues.get_mut(&ends) {
                queue.retain(|(of, _)| *of != link);
            }
        }
        self.link_down(other, link);
    }

    /// Runs until no table can change any more, and reconnects closed links. `false` if that takes longer than `limit` of
    /// virtual time.
    pub fn settle(&mut self, limit: Duration) -> bool {
        let until = self.now.instant + limit;
        let mut reconnect_at = self.now.instant;
        loop {
            let idle = self.is_idle();
            if idle && self.is_quiet() {
                return true;
            }
            if self.now.instant > until {
                return false;
            }
            if idle && self.now.instant >= reconnect_at {
                self.connect_all();
                reconnect_at = self.now.instant + Duration::from_millis(100);
                if !self.inputs.is_empty() {
                    continue;
                }
            }
            if !self.step(limit) {
                self.set_instant(self.now.instant + Duration::from_millis(100));
            }
        }
    }

    /// Runs for `span` of virtual time and reconnects closed links.
    pub fn pass(&mut self, span: Duration) {
        let until = self.now.instant + span;
        while self.now.instant < until {
            let left = until.since(self.now.instant);
            if !self.step(left) {
                self.set_instant(until);
            }
            if self.is_idle() {
                self.connect_all();
            }
        }
    }

    /// Runs until the parties have filled their pools of correlations.
    pub fn fill_pools(&mut self) {
        let filling = |sim: &Self| {
            let short = |node| sim.parties.get(node).is_some_and(|party| !party.is_stocked());
            PARTIES.iter().any(short) || !sim.is_idle()
        };
        while filling(self) && self.step(Duration::from_millis(10)) {}
    }

    /// Whether nothing is on its way.
    fn is_idle(&self) -> bool {
        self.inputs.is_empty()
            && self.queues.values().all(VecDeque::is_empty)
            && self.world.as_ref().is_none_or(World::is_idle)
    }

    /// Whether all processes are connected and have nothing left to do.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let all = self.members.keys().chain(self.sinks.keys()).copied();
        let expected: BTreeSet<u32> = all.filter(|slot| self.set.slots[*slot as usize].active).collect();
        let parties = PARTIES.iter().all(|node| {
            self.parties.get(node).is_some_and(|party| {
                party.is_at_rest()
                    && party.active().eq(expected.iter().copied())
                    && party.member_set() == self.set.number
            })
        });
        let members = expected.iter().all(|slot| match self.members.get(slot) {
            Some(member) => member.is_at_rest(),
            None => self.sink_is_at_rest(*slot),
        });
        parties && members && self.ports.as_ref().is_none_or(bgp::Ports::is_quiet)
    }
}

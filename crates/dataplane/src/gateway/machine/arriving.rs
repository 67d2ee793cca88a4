//! Packets that come in: verified as the last node of their path, opened, and handed to the system or answered.

use wayleave_core::{IdentityKey, Now};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::secret::Seed;
use wayleave_packet::icing::header::{Handle, NodeId, Packet};
use wayleave_packet::icing::verify::{InnerError, check_inner};

use super::super::counters::Reason;
use super::super::flows::{Direction, Flow, FlowKey};
use super::super::inner::{self, End, Inner, Quoted};
use super::super::lane::Lane;
use super::super::message::{Content, DATA, Message, read_opening};
use super::super::offload::Offload;
use super::super::peer::{Class, Known, Peer, RouteState, reversed};
use super::leaving::Destination;
use super::thread::{Arrivals, MessageLocation};
use super::work::{current, fresh_index};
use super::{Begun, Event, Machine, Output, PROLOGUE, WINDOW};
use crate::noise::{NotSealed, Session, StaticKey, prologue};

/// Whose packet it is, as its path proves, and by which path it came.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    sender: IdentityKey,
    /// The sender's number for the limit of handshakes.
    number: usize,
    handle: Handle,
    nonce: u64,
    held: u16,
}

/// The first message of a handshake, for which its sender had a part of the limit left.
pub(super) struct Initiation {
    to: u32,
    noise: Vec<u8>,
    origin: Origin,
    prologue: Vec<u8>,
    seed: Seed,
}

/// What the first message of a handshake said, and the second one.
pub(super) struct Answer {
    key: DhPublic,
    payload: Vec<u8>,
    session: Session,
    second: Vec<u8>,
}

impl Initiation {
    /// The answer, for which nothing of the machine is needed: opening the message and answering take some hundred microseconds.
    pub(super) fn answer(&self, key: &StaticKey, now: Now) -> Result<Answer, NotSealed> {
        let (key, payload, answering) = key.receive(&self.prologue, self.seed.clone(), &self.noise)?;
        let (session, second) = answering.respond(&[], WINDOW, now.instant)?;
        Ok(Answer { key, payload, session, second })
    }
}

impl Machine {
    /// Whose packet it is, as the path says that `node` began; `None` if it is no member's.
    pub(super) fn origin(&self, packet: &Packet<'_>, node: NodeId) -> Option<Origin> {
        let (sender, number) = *self.senders.get(&node)?;
        let (handle, nonce) = (packet.handle(), u64::from_be_bytes(packet.nonce()));
        Some(Origin { sender, number, handle, nonce, held: packet.held() })
    }

    /// Takes a message of a verified packet. What is sealed, and what begins a handshake, is put with others, to be opened outside the lock.
    pub(super) fn sort(
        &mut self,
        octets: &[u8],
        (place, at): (MessageLocation, usize),
        origin: Origin,
        arrivals: &mut Arrivals,
        now: Now,
    ) -> Result<(), Reason> {
        match Message::decode(octets).ok_or(Reason::Malformed)? {
            Message::Initiation { from: index, noise } => {
                arrivals.initiations.push(self.initiated(index, noise, origin, now)?);
                Ok(())
            }
            Message::Response { to, from, noise } => self.responded(to, from, noise, origin, now),
            Message::Data { to, number, .. } => {
                let identity = self.session_with(to, &origin)?;
                let peer = self.peers.get(&identity).ok_or(Reason::UnknownSession)?;
                let known = peer.sessions.iter().find(|known| known.index == to).ok_or(Reason::UnknownSession)?;
                known.session.check(number)?;
                arrivals.push((place, at + DATA), (to, number), origin, || known.session.opening_key());
                Ok(())
            }
        }
    }

    /// With whom a session or handshake is: the sender of the packet.
    fn session_with(&self, index: u32, origin: &Origin) -> Result<IdentityKey, Reason> {
        let identity = *self.sessions.get(&index).ok_or(Reason::UnknownSession)?;
        if identity == origin.sender { Ok(identity) } else { Err(Reason::OtherSender) }
    }

    /// Takes the first message of a handshake, if its sender may have one answered. What follows costs agreements, which are made outside the lock.
    pub(super) fn initiated(&mut self, to: u32, noise: &[u8], origin: Origin, now: Now) -> Result<Initiation, Reason> {
        let Origin { sender: identity, handle, .. } = origin;
        // What came before takes nothing of its sender's part: whoever carries its packets could use that up by sending one again.
        let keys = || Begun::keys(identity, noise, (handle, origin.nonce));
        if !self.begun.is_new(keys(), now.instant) {
            return Err(Reason::Replayed);
        }
        if !self.handshakes.take(origin.number, now.instant) {
            return Err(Reason::Busy);
        }
        self.begun.note(keys(), now.instant);
        let prologue = prologue(PROLOGUE, &self.realm, &[&identity, &self.identity]);
        Ok(Initiation { to, noise: noise.to_vec(), origin, prologue, seed: self.random.secret() })
    }

    /// Takes the answer to the first message of a handshake, and sends it if the message was a member's, and for now.
    pub(super) fn answered(&mut self, initiation: &Initiation, answer: Answer, now: Now) -> Result<(), Reason> {
        let Origin { sender: identity, handle, .. } = initiation.origin;
        let Answer { key, payload, session, second } = answer;
        // The key and the packet prove the same member: nobody else carries for it, and no other member's key stands in for its own.
        let remote = self.members.get(&identity).ok_or(Reason::Stranger)?;
        if remote.noise.to_bytes() != key.to_bytes() {
            return Err(Reason::OtherSender);
        }
        let (made, nodes) = read_opening(&payload).ok_or(Reason::Malformed)?;
        let is_ours = nodes.first() == Some(&identity) && nodes.last() == Some(&self.identity);
        let started = self.started;
        let peer = self.peer(identity, now).ok_or(Reason::Busy)?;
        // What was made before this process began may have been answered by the one before it.
        if made <= peer.opened.max(started) {
            return Err(Reason::Stranger);
        }
        peer.opened = made;
        let index = fresh_index(&mut self.random, &self.sessions);
        let to = initiation.to;
        let Some(peer) = self.peers.get_mut(&identity) else { return Err(Reason::Busy) };
        let ended = peer.add_session(Known { index, to, session, is_confirmed: false }, now.instant);
        for index in ended {
            self.sessions.remove(&index);
        }
        self.sessions.insert(index, identity);
        let class = Class { policy: 0, mirror: is_ours.then(|| reversed(&peer.hear(handle, &nodes, now.instant))) };
        let route = peer.route(&class, now.instant);
        peer.routes[route].heard = Some(now.instant);
        peer.response = Some((Message::response(to, index, &second), class, now.instant));
        self.work(&identity, now);
        Ok(())
    }

    /// Takes the second message of a handshake.
    pub(super) fn responded(
        &mut self,
        index: u32,
        to: u32,
        noise: &[u8],
        origin: Origin,
        now: Now,
    ) -> Result<(), Reason> {
        let identity = self.session_with(index, &origin)?;
        let peer = self.peers.get_mut(&identity).ok_or(Reason::UnknownSession)?;
        if peer.sessions.iter().any(|known| known.index == index && known.session.is_initiator()) {
            // It came by another path too.
            return Ok(());
        }
        let place = peer.starting.iter().position(|starting| starting.index == index).ok_or(Reason::UnknownSession)?;
        // One that does not open changes nothing: the right one may still come.
        peer.starting[place].started.read(noise).map_err(|_| Reason::Seal)?;
        let starting = peer.starting.remove(place);
        let session = starting.started.finish(WINDOW, now.instant).map_err(|_| Reason::Seal)?;
        for other in peer.starting.drain(..) {
            self.sessions.remove(&other.index);
        }
        for ended in peer.add_session(Known { index, to, session, is_confirmed: true }, now.instant) {
            self.sessions.remove(&ended);
        }
        peer.traffic.handshake = Some(now.unix.secs());
        self.out.counters.sessions += 1;
        self.out.push(Output::Event(Event::SessionBegan { peer: identity }));
        // The probe tells the peer that the session is there.
        for candidate in &mut peer.candidates {
            if starting.attempt > 0 && candidate.hash != starting.path {
                candidate.lanes().for_each(Lane::suspect);
            }
            candidate.lanes().for_each(Lane::probe_now);
        }
        self.work(&identity, now);
        Ok(())
    }

    /// Takes a message that was opened. Returns what is known of it if it is an inner packet for the system, in which addresses may have been
    /// rewritten.
    pub(super) fn opened(
        &mut self,
        (index, number): (u32, u64),
        plain: &mut [u8],
        origin: Origin,
        now: Now,
    ) -> Result<Option<Inner>, Reason> {
        let identity = self.session_with(index, &origin)?;
        let peer = self.peers.get_mut(&identity).ok_or(Reason::UnknownSession)?;
        let known = peer.sessions.iter_mut().find(|known| known.index == index).ok_or(Reason::UnknownSession)?;
        known.session.note(number)?;
        let is_packet = matches!(plain.first().map(|first| first >> 4), Some(4 | 6));
        let was_confirmed = std::mem::replace(&mut known.is_confirmed, true);
        if is_packet {
            // Whatever becomes of it, the path has carried it.
            peer.count(origin.handle, now.instant);
        }
        if !was_confirmed {
            peer.traffic.handshake = Some(now.unix.secs());
            self.out.counters.sessions += 1;
            self.out.push(Output::Event(Event::SessionBegan { peer: identity }));
            self.flush(&identity, now);
        }
        if is_packet {
            return self.deliver(&identity, plain, origin.handle, now).map(Some);
        }
        match Content::decode(plain).ok_or(Reason::Malformed)? {
            Content::Packet(_) => {}
            Content::Probe { number, sent, nodes, .. } => {
                return self.probed((number, sent), &nodes, origin, now).map(|()| None);
            }
            Content::Answer { number, held, received, handle } => {
                let Some(peer) = self.peers.get_mut(&identity) else { return Ok(None) };
                let mut candidates = peer.candidates.iter_mut();
                let answered = candidates.find_map(|candidate| {
                    candidate.answered(handle, number, (held, received), now.instant).then_some(candidate.hash)
                });
                if let Some(path) = answered {
                    peer.trust(&path);
                    self.out.counters.answers += 1;
                }
            }
        }
        Ok(None)
    }

    /// Answers a probe over the nodes that it came by, and by active and spare path: whichever of them is dead, another is heard,
    /// and a probe on a live path is not answered over dead ones alone.
    fn probed(
        &mut self,
        (number, sent): (u32, u64),
        nodes: &[IdentityKey],
        origin: Origin,
        now: Now,
    ) -> Result<(), Reason> {
        let Origin { sender: identity, handle, held, .. } = origin;
        let is_ours = nodes.first() == Some(&identity) && nodes.last() == Some(&self.identity);
        let peer = self.peers.get_mut(&identity).ok_or(Reason::UnknownSession)?;
        if !peer.probes.take(now.instant) {
            return Err(Reason::Busy);
        }
        let mirror = is_ours.then(|| reversed(&peer.hear(handle, nodes, now.instant)));
        let received = peer.received(handle, sent, now.instant);
        let class = Class { policy: 0, mirror };
        let route = peer.route(&class, now.instant);
        (peer.routes[route].used, peer.routes[route].heard) = (now.instant, Some(now.instant));
        self.work(&identity, now);
        let Self { peers, out, .. } = self;
        let Some(peer) = peers.get_mut(&identity) else { return Ok(()) };
        let content = Content::Answer { number, held, received, handle }.encode();
        for place in peer.answering(&class, now) {
            let Peer { sessions, candidates, .. } = &mut *peer;
            let Some(known) = current(sessions, now) else { break };
            out.sealed(&mut candidates[place], known, &content, now);
        }
        Ok(())
    }

    /// Whether a member may begin this.
    fn admits(&self, identity: &IdentityKey, inner: &Inner) -> bool {
        let Some(admitted) = &self.admitted else { return true };
        let Some(traffic) = admitted.get(identity) else { return false };
        traffic.is_empty() || traffic.iter().any(|traffic| traffic.has(inner.protocol, inner.ports.1))
    }

    /// Whether an ICMP error is about something that this side sends to the member: of what is between others a member has nothing to say.
    fn is_concerned(&mut self, identity: &IdentityKey, inner: &Inner, quoted: Quoted, now: Now) -> bool {
        let Quoted::Packet(sent) = quoted else { return false };
        let key = FlowKey::out(&sent, sent.destination);
        // Of what leaves in fragments only, the flow has no ports.
        let in_fragments = FlowKey { protocol: inner::FRAGMENT, ports: (0, 0), ..key };
        let is_known = |key: &FlowKey| self.flows.get(key, identity, now.instant).is_some_and(|flow| flow.has_sent());
        sent.source == inner.destination && [key, in_fragments].iter().any(is_known)
    }

    /// Tells the sender of a SYN that nobody listens, over the nodes by which it came. No flow follows from it: what is sent to the same port
    /// next is refused as well.
    fn reset(&mut self, identity: &IdentityKey, inner: &Inner, octets: &[u8], handle: Handle, now: Now) {
        let Some(mut reset) = inner::reset(inner, octets) else { return };
        let Self { peers, policies, .. } = self;
        let Some(peer) = peers.get_mut(identity) else { return };
        if !peer.resets.take(now.instant) {
            return;
        }
        let class = Class { policy: 0, mirror: peer.mirror(&handle) };
        let route = peer.route(&class, now.instant);
        let is_ready = peer.state(route, policies, now) == RouteState::Ready && peer.session(now.instant).is_some();
        if let Some(of_reset) = Inner::decode(&reset).filter(|_| is_ready) {
            let destination = Destination { peer: *identity, class, real: None, is_once: true };
            self.send(&destination, route, of_reset, &mut reset, &Offload::default(), now);
        }
    }

    /// Whether an inner packet goes to the system: if its sender may send it.
    pub(super) fn deliver(
        &mut self,
        identity: &IdentityKey,
        octets: &mut [u8],
        handle: Handle,
        now: Now,
    ) -> Result<Inner, Reason> {
        let protocol = if octets[0] >> 4 == 4 { 4 } else { 41 };
        let is_source = |address| self.owner(address) == Some(*identity);
        check_inner(protocol, octets, is_source, |address| self.is_own(address)).map_err(|error| match error {
            InnerError::NotIp => Reason::InnerNotIp,
            InnerError::Source => Reason::InnerSource,
            InnerError::Martian => Reason::InnerMartian,
            InnerError::Destination => Reason::InnerDestination,
            InnerError::Nested => Reason::InnerNested,
        })?;
        let mut inner = Inner::decode(octets).ok_or(Reason::InnerNotIp)?;
        let key = FlowKey::within(&inner);
        let quoted = inner::quoted(&inner, octets);
        if quoted != Quoted::Nothing && !self.is_concerned(identity, &inner, quoted, now) {
            return Err(Reason::InnerUnrelated);
        }
        if quoted == Quoted::Nothing
            && !self.admits(identity, &inner)
            && self.flows.get(&key, identity, now.instant).is_none_or(|flow| !flow.is_own)
        {
            self.reset(identity, &inner, octets, handle, now);
            return Err(Reason::InnerRefused);
        }
        let peer = self.peers.get_mut(identity).ok_or(Reason::UnknownSession)?;
        let name = match self.flows.get(&key, identity, now.instant) {
            Some(flow) => {
                // A flow that the peer began, or moved to another path, is answered over the same nodes, once it has said which.
                if !flow.is_own && (flow.handle != handle || flow.mirror.is_none()) {
                    (flow.handle, flow.mirror) = (handle, peer.mirror(&handle));
                }
                flow.name
            }
            None => {
                let mut flow = Flow::new(*identity, None, Some(handle));
                flow.mirror = peer.mirror(&handle);
                self.out.counters.flows_given_way += self.flows.insert(key, flow, now.instant) as u64;
                None
            }
        };
        self.flows.note(&key, Direction::In, inner::tcp_flags(&inner, octets), now);
        let length = octets.len() as u64;
        if let Some(name) = name {
            inner::rewrite(&mut inner, octets, End::Source, name);
        }
        if inner::is_syn(&inner, octets)
            && let Some(headroom) = peer.least_headroom(now)
        {
            self.out.counters.clamped += u64::from(inner::clamp_mss(&inner, octets, headroom));
        }
        peer.traffic.received.add(1, octets.len());
        self.out.counters.received += 1;
        self.out.counters.received_octets += length;
        Ok(inner)
    }
}

#[cfg(test)]
mod tests {
    //! ICD-11, gateway: a handshake's agreements are made outside the lock, and within the limit of its sender.

    use wayleave_core::{Instant, UnixTime};
    use wayleave_crypto::dh::DhSecret;
    use wayleave_crypto::lanes::CpuKernel;
    use wayleave_crypto::secret::{Key128, Secret};
    use wayleave_packet::icing::mint::NodeSecret;

    use super::super::super::message::opening;
    use super::super::{Config, HANDSHAKES, Member};
    use super::*;
    use crate::icing;

    const NOW: Now = Now { instant: Instant(5), unix: UnixTime(1_800_000_000_000_000) };
    const OURS: IdentityKey = IdentityKey([1; 32]);
    const THEIRS: IdentityKey = IdentityKey([2; 32]);
    const REALM: [u8; 32] = [7; 32];

    fn key(octet: u8) -> StaticKey {
        StaticKey(Secret::new([octet; 32]))
    }

    fn public(octet: u8) -> DhPublic {
        DhSecret::from_seed(&Secret::new([octet; 32])).public()
    }

    fn machine() -> Machine {
        machine_of(UnixTime(0))
    }

    /// One whose process began then.
    fn machine_of(started: UnixTime) -> Machine {
        let policy = icing::Policy {
            secrets: vec![NodeSecret::from_seed(&Seed::new([3; 32]))],
            masters: Vec::new(),
            links: Vec::new(),
            rules: Vec::new(),
            accounts: Vec::new(),
            agreed: Default::default(),
        };
        let receiver = icing::Config {
            version: wayleave_packet::icing::header::Version::Standard,
            policy,
            agreements_per_second: 1,
            paths: 1,
            peers: 1,
            freshness: 5,
            replay_capacity: 0,
            started,
            replay_key: Key128::new([8; 16]),
            seed: 1,
        };
        let config = Config {
            identity: OURS,
            realm: REALM,
            noise: Secret::new([1; 32]),
            receiver,
            neighbours: Vec::new(),
            policies: Vec::new(),
            name_blocks: Vec::new(),
            is_process: false,
            seed: Secret::new([9; 32]),
        };
        let mut machine = Machine::new(config, CpuKernel::best());
        let member = Member { identity: THEIRS, noise: public(2), ids: Vec::new(), addresses: Vec::new() };
        machine.set_realm(vec![member], Default::default());
        machine
    }

    /// Packet `number` from the other member.
    fn origin(number: u64) -> Origin {
        Origin { sender: THEIRS, number: 0, handle: Handle([4; 16]), nonce: number, held: 0 }
    }

    /// A first message under the static key of this octet, made at `made`.
    fn first(octet: u8, made: u64) -> Vec<u8> {
        let prologue = prologue(PROLOGUE, &REALM, &[&THEIRS, &OURS]);
        let seed = Secret::new([made as u8; 32]);
        key(octet).initiate(&public(1), &prologue, seed, &opening(made, &[THEIRS, OURS])).unwrap().1
    }

    #[test]
    fn the_machine_has_nothing_to_compute_for_a_handshake_before_it_is_answered() {
        let mut machine = machine();
        let initiation = machine.initiated(5, &first(2, 1), origin(1), NOW).unwrap();
        assert!(machine.peers.is_empty() && machine.sessions.is_empty());
        assert_eq!(machine.initiated(5, &first(2, 1), origin(2), NOW).err(), Some(Reason::Replayed));
        // By another thread meanwhile: the later one holds, whichever is answered first.
        let later = machine.initiated(6, &first(2, 2), origin(3), NOW).unwrap();
        let [answer, of_later] = [&initiation, &later].map(|first| first.answer(&key(1), NOW).unwrap());
        assert_eq!(machine.answered(&later, of_later, NOW), Ok(()));
        assert_eq!(machine.answered(&initiation, answer, NOW), Err(Reason::Stranger));
        assert_eq!(machine.sessions.len(), 1);
    }

    #[test]
    fn who_began_with_a_clock_that_was_ahead_takes_handshakes_once_it_is_set() {
        let ahead = UnixTime(NOW.unix.0 + 3_600_000_000);
        let at = |secs: u64, unix: u64| Now {
            instant: Instant(5 + secs * 1_000_000_000),
            unix: UnixTime(unix + secs * 1_000_000),
        };
        let mut machine = machine_of(ahead);
        let hears = |machine: &mut Machine, now: Now, number: u64| {
            let initiation = machine.initiated(5, &first(2, now.unix.0), origin(number), now).unwrap();
            let answer = initiation.answer(&key(1), now).unwrap();
            machine.answered(&initiation, answer, now)
        };
        machine.handle_timeout(at(1, ahead.0));
        // Nobody is known yet when the clock is set.
        assert_eq!(hears(&mut machine, at(2, NOW.unix.0), 1), Err(Reason::Stranger));
        machine.handle_timeout(at(3, NOW.unix.0));
        assert_eq!(hears(&mut machine, at(4, NOW.unix.0), 2), Ok(()));
    }

    #[test]
    fn what_does_not_open_or_is_under_anothers_key_has_taken_its_part_of_the_limit_and_nothing_else() {
        let mut machine = machine();
        let mut spoiled = first(2, 1);
        spoiled[40] ^= 1;
        let initiation = machine.initiated(5, &spoiled, origin(1), NOW).unwrap();
        assert!(initiation.answer(&key(1), NOW).is_err());
        let initiation = machine.initiated(5, &first(3, 2), origin(2), NOW).unwrap();
        let answer = initiation.answer(&key(1), NOW).unwrap();
        assert_eq!(machine.answered(&initiation, answer, NOW), Err(Reason::OtherSender));
        let taken = (3..).find(|number| machine.initiated(5, &[*number as u8; 96], origin(*number), NOW).is_err());
        assert_eq!(taken, Some(u64::from(HANDSHAKES.1) + 1), "two were taken before");
        assert!(machine.peers.is_empty() && machine.sessions.is_empty());
    }
}

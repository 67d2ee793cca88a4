//! Packets on their way out: to whom, by which path, and what becomes of those that cannot go.

use std::net::IpAddr;

use wayleave_core::{IdentityKey, Instant, Now, Prefix};
use wayleave_packet::icing::mint::Form;
use wayleave_packet::platypus::verify::is_martian;

use super::super::coalesce::Ready;
use super::super::counters::Reason;
use super::super::flows::{Direction, Flow, FlowKey};
use super::super::inner::{self, End, IcmpError, Inner};
use super::super::internet::{is_public, is_wide};
use super::super::offload::{Offload, Segments};
use super::super::peer::{Class, Peer, RouteState, Waiting};
use super::out::Run;
use super::work::current;
use super::{Machine, Output};

/// What a packet on its way out needs, once its destination is known.
pub(super) struct Destination {
    pub(super) peer: IdentityKey,
    pub(super) class: Class,
    /// The address in the place of a name's.
    pub(super) real: Option<IpAddr>,
    /// It is not sent again by another path, from which a flow would follow.
    pub(super) is_once: bool,
}

impl Machine {
    /// Takes an inner packet from the system. Addresses in it may be rewritten. Returns how it is sealed and sent, if that can be done at once.
    pub(super) fn inner(&mut self, octets: &mut [u8], offload: &Offload, now: Now) -> Option<Run> {
        let Some(inner) = Inner::decode(octets) else {
            self.refuse_form(octets, now);
            return None;
        };
        let reason = if offload.is_excessive(octets.len()) {
            Reason::TooManySegments
        } else if is_martian(inner.destination) {
            Reason::Martian
        } else if !self.is_own(inner.source) {
            Reason::OwnSource
        } else {
            match self.resolve(&inner, octets, now) {
                Ok(destination) => return self.leave(&destination, inner, octets, offload, now),
                Err(reason) => {
                    self.answer(&inner, octets, IcmpError::Unreachable, now);
                    reason
                }
            }
        };
        self.out.counters.drop(reason);
        None
    }

    fn leave(
        &mut self,
        destination: &Destination,
        inner: Inner,
        octets: &mut [u8],
        offload: &Offload,
        now: Now,
    ) -> Option<Run> {
        let Self { peers, policies, .. } = self;
        let peer = peers.get_mut(&destination.peer)?;
        let route = peer.route(&destination.class, now.instant);
        (peer.routes[route].used, peer.routes[route].data) = (now.instant, Some(now.instant));
        let state = peer.state(route, policies, now);
        let is_ready = state == RouteState::Ready && peer.session(now.instant).is_some();
        let error = match state {
            RouteState::Ready if is_ready => return self.prepare(destination, route, inner, octets, offload, now),
            RouteState::NoPath(_) => Reason::NoPath,
            RouteState::NoConsent(_) => Reason::NoConsent,
            RouteState::Ready | RouteState::Asking => {
                if !peer.wait(octets, *offload, now.instant) {
                    self.out.counters.drop(Reason::QueueFull);
                }
                self.work(&destination.peer, now);
                return None;
            }
        };
        self.out.counters.drop(error);
        self.answer(&inner, octets, IcmpError::Prohibited, now);
        None
    }

    /// Whether an inner address is this gateway's.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.owner(address) == Some(self.identity)
    }

    /// Whose an inner address is. Those of names are nobody's, however wide a member's prefix is, and the Internet is an exit's.
    pub(super) fn owner(&self, address: IpAddr) -> Option<IdentityKey> {
        let is_name = |block: &Prefix| Prefix::truncated(address, block.len()).as_ref() == Ok(block);
        let (prefix, owner) = self.prefixes.longest(address)?;
        if is_wide(&prefix) {
            let is_meant = if owner == self.identity { self.internet.is_own } else { self.internet.is_used };
            return (is_meant && is_public(address)).then_some(owner);
        }
        (!self.name_blocks.iter().any(is_name)).then_some(owner)
    }

    /// To whom a packet goes, and by which class of paths. Makes its flow known.
    pub(super) fn resolve(&mut self, inner: &Inner, octets: &[u8], now: Now) -> Result<Destination, Reason> {
        let (identity, policy, real) = match self.names.get(&inner.destination) {
            Some((policy, node)) => {
                let is_v4 = inner.destination.is_ipv4();
                let remote = self.members.get(node).ok_or(Reason::NoMember)?;
                let real = remote.addresses.iter().find(|address| address.is_ipv4() == is_v4);
                (*node, *policy, Some(*real.ok_or(Reason::NoMember)?))
            }
            None => {
                let owner = self.owner(inner.destination).filter(|owner| *owner != self.identity);
                let owner = owner.filter(|owner| self.members.contains_key(owner)).ok_or(Reason::NoMember)?;
                (owner, 0, None)
            }
        };
        let key = FlowKey::out(inner, real.unwrap_or(inner.destination));
        let name = real.map(|_| inner.destination);
        self.peer(identity, now).ok_or(Reason::QueueFull)?;
        let known = match self.flows.get(&key, &identity, now.instant) {
            Some(flow) if flow.name != name && !flow.gives_way(key.protocol, now.instant) => {
                return Err(Reason::FlowConflict);
            }
            Some(flow) if flow.name == name => Some(flow.mirror.clone()),
            _ => None,
        };
        let mirror = known.unwrap_or_else(|| {
            let mut flow = Flow::new(identity, name, None);
            // Of a connection that is under way and not known any more, nobody knows who began it: where not everything is admitted, the
            // other side may have.
            let is_under_way = inner.protocol == inner::TCP && !inner::begins(inner, octets);
            flow.is_own = !(is_under_way && name.is_none() && self.admitted.is_some());
            self.out.counters.flows_given_way += self.flows.insert(key, flow, now.instant) as u64;
            None
        });
        self.flows.note(&key, Direction::Out, inner::tcp_flags(inner, octets), now);
        Ok(Destination { peer: identity, class: Class { policy, mirror }, real, is_once: false })
    }

    /// Sends a packet, or the segments that it stands for, on a route that is ready.
    pub(super) fn send(
        &mut self,
        destination: &Destination,
        route: usize,
        inner: Inner,
        octets: &mut [u8],
        offload: &Offload,
        now: Now,
    ) {
        if let Some(run) = self.prepare(destination, route, inner, octets, offload, now) {
            self.out.run(&run, octets);
        }
    }

    /// Numbers a packet, or the segments that it stands for, on a route that is ready: what is left to do needs nothing of this machine.
    fn prepare(
        &mut self,
        destination: &Destination,
        route: usize,
        mut inner: Inner,
        octets: &mut [u8],
        offload: &Offload,
        now: Now,
    ) -> Option<Run> {
        let Self { peers, out, .. } = self;
        let peer = peers.get_mut(&destination.peer)?;
        let place = peer.usable(route, now)?;
        let mtu = usize::from(peer.candidates[place].mtu());
        let lane = peer.candidates[place].lane.as_ref()?;
        // Only TCP notices what comes twice.
        let may_repeat = inner.protocol == inner::TCP && !destination.is_once;
        let in_doubt = (may_repeat && lane.is_doubtful()).then(|| Waiting {
            octets: octets.to_vec(),
            offload: *offload,
            since: now.instant,
        });
        let headroom = lane.inner_mtu(mtu, Form::Handle);
        let lengths = Segments::new(octets, inner, offload).map(|segments| segments.lengths());
        let Some((length, _)) = lengths else {
            out.counters.drop(Reason::NotIp);
            return None;
        };
        if length > headroom && !(inner::must_pass(&inner, octets) && length <= 2 * headroom) {
            out.counters.drop(Reason::TooBig);
            self.answer(&inner, octets, IcmpError::TooBig(headroom), now);
            return None;
        }
        if let Some(packet) = in_doubt {
            // The oldest segment is what TCP repeats while nothing is answered. Sent again by the next path, it saves the
            // sender's own timer, which has doubled by then.
            let flow = FlowKey::out(&inner, destination.real.unwrap_or(inner.destination));
            let is_repeated = inner::takes_sequence_space(&inner, &packet.octets);
            peer.doubt(flow, is_repeated, peer.candidates[place].hash, packet);
        }
        if let Some(real) = destination.real {
            inner::rewrite(&mut inner, octets, End::Destination, real);
        }
        out.counters.clamped += u64::from(inner::clamp_mss(&inner, octets, headroom));
        let segments = Segments::new(octets, inner, offload)?;
        let Peer { sessions, candidates, traffic, .. } = peer;
        let known = current(sessions, now)?;
        let candidate = &mut candidates[place];
        let lane = candidate.lane.as_mut()?;
        let Ok(run) = out.prepare(lane, known, (candidate.link, mtu), (&segments, inner, *offload), now) else {
            out.counters.drop(Reason::NotSent);
            return None;
        };
        traffic.sent.add(segments.count(), octets.len());
        out.counters.sent += segments.count() as u64;
        out.counters.sent_octets += octets.len() as u64;
        Some(run)
    }

    /// Drops a packet that cannot be read, and tells its source if it is one of ours: without that, UDP in fragments vanishes.
    fn refuse_form(&mut self, octets: &[u8], now: Now) {
        let (reason, about) = inner::refused_form(octets);
        self.out.counters.drop(reason);
        let is_ours = |inner: &Inner| !is_martian(inner.destination) && self.is_own(inner.source);
        if let Some(inner) = about.filter(is_ours) {
            self.answer(&inner, octets, IcmpError::Prohibited, now);
        }
    }

    /// Tells the source of an inner packet what became of it, within the limit.
    pub(super) fn answer(&mut self, inner: &Inner, octets: &[u8], error: IcmpError, now: Now) {
        if let Some(octets) = inner::icmp_error(inner, octets, error)
            && self.errors.as_mut().is_none_or(|errors| errors.take(inner.source, &error, now.instant))
        {
            self.out.push(Output::Inner(Ready { octets, offload: Offload::default() }));
        }
    }

    /// [`Machine::inner`] for a packet that has waited.
    pub(super) fn inner_again(&mut self, octets: &mut [u8], offload: &Offload, since: Instant, now: Now) {
        let Some(inner) = Inner::decode(octets) else { return };
        let Ok(destination) = self.resolve(&inner, octets, now) else {
            return self.out.counters.drop(Reason::NoMember);
        };
        let Some(peer) = self.peers.get_mut(&destination.peer) else { return };
        let route = peer.route(&destination.class, now.instant);
        let state = peer.state(route, &self.policies, now);
        match state {
            RouteState::Ready if peer.session(now.instant).is_some() => {
                self.send(&destination, route, inner, octets, offload, now);
            }
            RouteState::Ready | RouteState::Asking => {
                if !peer.wait(octets, *offload, since) {
                    self.out.counters.drop(Reason::QueueFull);
                }
            }
            RouteState::NoPath(_) | RouteState::NoConsent(_) => {
                let is_path = matches!(state, RouteState::NoPath(_));
                self.out.counters.drop(if is_path { Reason::NoPath } else { Reason::NoConsent });
                self.answer(&inner, octets, IcmpError::Prohibited, now);
            }
        }
    }
}

//! What is done for a peer without a packet that asks for it: questions, probes, handshakes, and what waits.

use std::collections::HashMap;

use wayleave_core::{IdentityKey, Now};

use super::super::lane::Lane;
use super::super::message::{Message, opening};
use super::super::peer::{Class, Known, Peer, RouteState, Starting};
use super::{Event, HANDSHAKE, Machine, Output, PROLOGUE, Random, TIMEOUT};
use crate::noise::prologue;

impl Machine {
    pub(super) fn want(&mut self, node: IdentityKey, policy: usize, now: Now) {
        if !self.members.contains_key(&node) || policy >= self.policies.len() {
            return;
        }
        let Some(peer) = self.peer(node, now) else { return };
        let route = peer.route(&Class { policy, mirror: None }, now.instant);
        (peer.routes[route].used, peer.routes[route].data) = (now.instant, Some(now.instant));
        for candidate in &mut peer.candidates {
            candidate.lanes().for_each(Lane::probe_now);
        }
        self.work(&node, now);
    }

    /// All that may be done for a peer now: questions, probes, handshakes, and what waits.
    pub(super) fn work(&mut self, identity: &IdentityKey, now: Now) {
        self.wake(identity, now);
        let Self { peers, out, policies, members, random, noise, sessions, realm, identity: own, made, .. } = self;
        let Some(peer) = peers.get_mut(identity) else { return };
        let (changed, dead) = peer.choose(policies, now);
        out.counters.dead += dead;
        out.counters.failovers += changed;
        if dead > 0 {
            out.push(Output::Event(Event::PathDied { peer: *identity }));
        }
        if changed > 0 {
            out.push(Output::Event(Event::PathChanged { peer: *identity }));
        }
        // With no other path they would be lost again: they wait for one that is gone over to.
        let lost = if changed > 0 { peer.take_lost(now.instant) } else { Vec::new() };
        out.counters.resent += lost.len() as u64;
        let is_live = peer.routes.iter().any(|route| route.is_live(now.instant));
        let is_kept = is_live || peer.routes.iter().any(|route| route.is_kept(now.instant)) || peer.response.is_some();
        if !is_kept {
            return;
        }
        if peer.asks_paths(now) {
            out.counters.path_requests += 1;
            out.push(Output::NeedPaths { peer: *identity });
        }
        for place in peer.in_use(|route| route.is_kept(now.instant)) {
            let candidate = &mut peer.candidates[place];
            if candidate.asks_now(now) {
                out.counters.proof_requests += 1;
                let path = Box::new(candidate.asked());
                out.push(Output::NeedProofs { peer: *identity, hash: candidate.hash, path });
            }
        }
        // A response goes by every path that there is: which of them is dead is not known yet.
        if let Some((message, class, since)) = peer.response.take() {
            let places = peer.answering(&class, now);
            for place in &places {
                out.control(&mut peer.candidates[*place], &message, now);
            }
            if places.is_empty() && now.instant.since(since) < TIMEOUT {
                peer.response = Some((message, class, since));
            }
        }
        let begins = is_live
            && peer.wants_session(now)
            && peer.starting.last().is_none_or(|starting| now.instant.since(starting.at) >= HANDSHAKE);
        let attempt = peer.starting.last().map_or(0, |starting| starting.attempt + 1);
        if let (true, Some(remote)) = (begins, members.get(identity))
            && let Some(place) = peer.begins_by(attempt, now)
        {
            let path = peer.candidates[place].hash;
            // The peer takes no older one than the last, whatever the clock says.
            *made = now.unix.0.max(*made + 1);
            let payload = opening(*made, &peer.candidates[place].nodes);
            let index = fresh_index(random, sessions);
            let prologue = prologue(PROLOGUE, realm, &[own, identity]);
            if let Ok((started, first)) = noise.initiate(&remote.noise, &prologue, random.secret(), &payload) {
                let starting = Starting { index, attempt, path, started, at: now.instant };
                if let Some(oldest) = peer.start(starting) {
                    sessions.remove(&oldest);
                }
                sessions.insert(index, *identity);
                out.control(&mut peer.candidates[place], &Message::initiation(index, &first), now);
            }
        }
        for place in peer.in_use(|route| route.is_live(now.instant)) {
            let Peer { sessions, candidates, .. } = &mut *peer;
            let Some(known) = current(sessions, now) else { break };
            out.probe(&mut candidates[place], known, now);
        }
        self.flush(identity, now);
        for mut packet in lost {
            self.inner_again(&mut packet.octets, &packet.offload, packet.since, now);
        }
    }

    /// Sends what waits, if it can be sent.
    pub(super) fn flush(&mut self, identity: &IdentityKey, now: Now) {
        let Some(peer) = self.peers.get_mut(identity) else { return };
        if peer.waiting.is_empty() || peer.session(now.instant).is_none() {
            // What nobody consents to waits no longer.
            let has_hope = peer.routes.iter().enumerate().any(|(route, of)| {
                of.is_live(now.instant)
                    && matches!(peer.state(route, &self.policies, now), RouteState::Ready | RouteState::Asking)
            });
            if has_hope || peer.waiting.is_empty() {
                return;
            }
        }
        // What cannot be sent yet waits again, in its order.
        for mut packet in peer.take_waiting() {
            self.inner_again(&mut packet.octets, &packet.offload, packet.since, now);
        }
    }
}

/// The session to send in.
pub(super) fn current(sessions: &mut [Known], now: Now) -> Option<&mut Known> {
    sessions.iter_mut().rev().find(|known| known.is_good(now.instant))
}

/// A number that no session has.
pub(super) fn fresh_index(random: &mut Random, sessions: &HashMap<u32, IdentityKey>) -> u32 {
    loop {
        let index = random.number();
        if !sessions.contains_key(&index) {
            return index;
        }
    }
}

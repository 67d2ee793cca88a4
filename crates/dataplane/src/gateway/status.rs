//! What a gateway tells its operator.

use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now};
use wayleave_packet::icing::header::Version;
use wayleave_packet::icing::mint::Form;

use super::machine::Machine;
use super::peer::{Candidate, Peer, RouteState, Unsealed};

/// A path to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathStatus {
    /// Both gateways among them, this one first.
    pub nodes: Vec<IdentityKey>,
    /// The path server's newest list has it. Without that it is used until its proofs end.
    pub is_listed: bool,
    /// The Unix second at which its proofs end, if there are any.
    pub proven_until: Option<u64>,
    /// Octets of the largest packet that passes, as far as is known.
    pub size: u16,
    /// Octets of the longest inner packet, if there are proofs.
    pub headroom: Option<usize>,
    /// Between a probe and its answer.
    pub round_trip: Option<Duration>,
    /// Millionths of the last thousands of data packets that were lost, once there were enough.
    pub loss: Option<u32>,
    /// The same of those that the peer sends over the same nodes.
    pub loss_back: Option<u32>,
    /// When a probe was last answered.
    pub answered: Option<Instant>,
    /// The Unix second since which it is dead, if it is: probes stay unanswered, or data do not pass.
    pub dead_since: Option<u64>,
    /// Every node on it holds it, so that packets go without it.
    pub is_held: bool,
    /// Of the packets on it, if there are proofs.
    pub packets: Option<Version>,
    /// For whose sake those are not the ones whose proofs leave sealed payloads out.
    pub unsealed: Unsealed,
    /// Why there are no proofs, or no later ones.
    pub refused: Option<String>,
}

/// A choice of paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteStatus {
    pub policy: String,
    /// The nodes over which the peer sends, in the order of packets to it: its flows are answered over the same.
    pub mirror: Option<Vec<IdentityKey>>,
    pub active: Option<PathStatus>,
    pub spare: Option<PathStatus>,
    pub state: RouteState,
    /// Flows are live.
    pub is_live: bool,
}

/// Another gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    pub identity: IdentityKey,
    pub sessions: usize,
    pub flows: usize,
    pub waiting: usize,
    pub paths: Vec<PathStatus>,
    pub routes: Vec<RouteStatus>,
}

impl Machine {
    /// Every gateway that anything is remembered of.
    pub(super) fn status(&self, now: Now) -> Vec<PeerStatus> {
        let flows = self.flows.counts(now.instant);
        let of = |identity| flows.get(identity).copied().unwrap_or(0);
        self.peers.iter().map(|(identity, peer)| self.peer_status(*identity, peer, of(identity), now)).collect()
    }

    fn peer_status(&self, identity: IdentityKey, peer: &Peer, flows: usize, now: Now) -> PeerStatus {
        let routes = peer.routes.iter().enumerate().map(|(place, route)| {
            let path = |hash| peer.candidate(hash).map(|candidate| path(peer, candidate));
            RouteStatus {
                policy: self.policies.get(route.class.policy).map_or_else(String::new, |policy| policy.name.clone()),
                mirror: route.class.mirror.as_ref().map(|nodes| nodes.to_vec()),
                active: route.active.as_ref().and_then(path),
                spare: route.spare.as_ref().and_then(path),
                state: peer.state(place, &self.policies, now),
                is_live: route.is_live(now.instant),
            }
        });
        PeerStatus {
            identity,
            sessions: peer.sessions.len(),
            flows,
            waiting: peer.waiting.len(),
            paths: peer.candidates.iter().map(|candidate| path(peer, candidate)).collect(),
            routes: routes.collect(),
        }
    }
}

fn path(peer: &Peer, candidate: &Candidate) -> PathStatus {
    let lane = candidate.lane.as_ref();
    PathStatus {
        nodes: candidate.nodes.to_vec(),
        is_listed: candidate.is_listed,
        proven_until: lane.map(|lane| lane.expiry),
        size: candidate.mtu(),
        headroom: lane.map(|lane| lane.inner_mtu(candidate.mtu().into(), Form::Handle)),
        loss: lane.and_then(|lane| lane.quality.loss.ppm()),
        loss_back: peer.loss_over(&candidate.nodes),
        round_trip: lane.and_then(|lane| lane.round_trip),
        answered: candidate.answered,
        dead_since: candidate.dead_since,
        is_held: lane.is_some_and(super::lane::Lane::is_held),
        packets: lane.map(|lane| lane.sender.version()),
        unsealed: candidate.unsealed.clone(),
        refused: candidate.refused.clone(),
    }
}

//! The first packet of a path: its keys are found or agreed on, and kept only if the packet is verified with them.

use wayleave_core::Now;
use wayleave_packet::icing::header::{MAX_NODES, Packet, Path, Version};
use wayleave_packet::icing::mint::{NodeSecret, PairKey, tag_epoch};
use wayleave_packet::icing::verify::{PathKeys, Proved};

use super::super::action::{Action, Reason};
use super::super::known_path::{Decision, Known, Pair};
use super::super::report::Windows;
use super::Router;
use crate::frame::{Frame, Ingress};

impl Router {
    /// Processes a packet on a path that was not kept when the burst began.
    pub(super) fn process_new(&mut self, frame: &mut Frame<'_>, now: Now) -> Result<Action, Reason> {
        let packet = Packet::decode(frame.octets, self.version).map_err(|_| Reason::Malformed)?;
        let (slot, proved) = match self.paths.find(&packet.handle()) {
            // A packet in front of it in the burst was the first.
            Some(slot) => (slot, self.verify_kept(slot, &packet, frame.ingress, now)?),
            None => self.learn(&packet, frame.ingress, now)?,
        };
        let known = self.paths.at_mut(slot).ok_or(Reason::UnknownHandle)?;
        self.admission.admit(known, &proved, frame, now)
    }

    fn verify_kept(&self, slot: usize, packet: &Packet<'_>, ingress: Ingress, now: Now) -> Result<Proved, Reason> {
        let known = self.paths.at(slot).ok_or(Reason::UnknownHandle)?;
        self.check(packet, known, ingress, now.unix)?;
        self.check_consent(&known.keys, packet)?;
        known.keys.verify(packet, self.verifier.compared()).ok_or(Reason::Verifier)
    }

    fn learn(&mut self, packet: &Packet<'_>, ingress: Ingress, now: Now) -> Result<(usize, Proved), Reason> {
        let octets = packet.path().ok_or(Reason::UnknownHandle)?;
        let path = Path::decode(octets).map_err(|_| Reason::Malformed)?;
        let (index, route) = (packet.index(), path.route(self.version));
        if route.handle() != packet.handle() {
            return Err(Reason::Handle);
        }
        let secret = self.policy.secret(path.node(index)).ok_or(Reason::NotForUs)?.clone();
        let decision = Decision::new(&self.policy, &path, index);
        self.check_ingress(&decision, ingress)?;
        decision.action?;
        let hop = path.hop(index);
        self.check_time(packet, hop.expiry, now.unix)?;
        let master = self.policy.master(tag_epoch(hop.expiry)).ok_or(Reason::Consent)?;
        let consent = master.consent(&path.hash(self.version), index, hop.tag, hop.expiry);
        let mut keys = PathKeys::new(route, index, path.count(), &consent);
        self.check_consent(&keys, packet)?;
        let agreed = self.agree(&path, index, &secret, &mut keys, ingress, now)?;
        let proved = keys.verify(packet, self.verifier.compared()).ok_or(Reason::Verifier)?;
        for (other, key) in agreed.into_iter().enumerate() {
            if let Some(key) = key {
                self.peers.insert(Pair(secret.id(), *path.node(other)), key);
            }
        }
        let known = Known::new(keys, decision, hop.expiry, octets, Windows::new(now.unix));
        Ok((self.paths.insert(packet.handle(), known), proved))
    }

    /// The paper has no pre-check: consent shows in the verifier alone.
    fn check_consent(&self, keys: &PathKeys, packet: &Packet<'_>) -> Result<(), Reason> {
        if self.version == Version::Paper || keys.is_consented(packet) { Ok(()) } else { Err(Reason::Consent) }
    }

    /// Gives `keys` what this node shares with every other node of `path`. What had to be computed comes back; it is kept
    /// once the packet is verified.
    fn agree(
        &mut self,
        path: &Path,
        index: usize,
        secret: &NodeSecret,
        keys: &mut PathKeys,
        ingress: Ingress,
        now: Now,
    ) -> Result<[Option<PairKey>; MAX_NODES], Reason> {
        let mut missing = 0u16;
        for other in (0..path.count()).filter(|other| *other != index) {
            match self.peers.get(&Pair(secret.id(), *path.node(other))) {
                Some(key) => keys.set_pair(other, key),
                None => missing |= 1 << other,
            }
        }
        let bucket = self.agreements.iter_mut().find(|(link, _)| ingress == Ingress::External(*link));
        let may = missing == 0 || bucket.is_some_and(|(_, bucket)| bucket.take_all(missing.count_ones(), now.instant));
        if !may {
            return Err(Reason::Busy);
        }
        let mut agreed = [const { None }; MAX_NODES];
        for other in (0..path.count()).filter(|other| missing >> other & 1 != 0) {
            let node = path.node(other);
            self.counters.agreements += 1;
            let key = secret.pair(node, self.version).ok().filter(|_| node.is_on_curve()).ok_or(Reason::Node)?;
            keys.set_pair(other, &key);
            agreed[other] = Some(key);
        }
        Ok(agreed)
    }
}

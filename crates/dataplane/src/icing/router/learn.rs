//! Packets one by one: those on paths that the router does not know, whose keys it finds or agrees on, and those that the
//! lanes do not take.

use wayleave_core::Now;
use wayleave_packet::icing::header::{MAX_NODES, MIN_SEALED, Packet, Part, Path, Version};
use wayleave_packet::icing::mint::{NodeSecret, PairKey, tag_epoch};
use wayleave_packet::icing::verify::{self, PathKeys, ProofTags};

use super::super::action::{Action, Reason};
use super::super::known_path::{Decision, KnownPath, NodePair};
use super::super::report::Windows;
use super::{Router, ingress_link};
use crate::frame::{Frame, Ingress};

impl Router {
    /// Processes a packet by itself, on a path that is known or not.
    #[inline(never)]
    pub(super) fn process_one(&mut self, frame: &mut Frame<'_>, now: Now) -> Result<Action, Reason> {
        let packet = Packet::decode(frame.octets, self.version).map_err(|_| Reason::Malformed)?;
        let handle = packet.handle();
        let Some(slot) = self.paths.find(&handle) else {
            let adopted = self.adopt(&packet, frame.ingress, now)?;
            let is_known = adopted.is_some();
            let (mut known, proof) = match adopted {
                Some(adopted) => adopted,
                None => self.check_on_new_path(&packet, frame.ingress, now)?,
            };
            let owner = (ingress_link(frame.ingress)?, known.decision.account);
            let action = self.admission.admit_one(&mut known, &proof, frame, now)?;
            if let Some(learned) = self.learned.as_ref().filter(|_| !is_known) {
                learned.insert(handle, &known, owner, &self.policy, now.unix);
            }
            self.paths.insert(handle, known, owner);
            return Ok(action);
        };
        let (proof, is_right) = self.check_on_known_path(slot, &packet, frame.ingress, now)?;
        self.counters.hashed += hashed(&packet, &proof);
        let known = self.paths.at_mut(slot).ok_or(Reason::UnknownHandle)?;
        if !is_right {
            return Err(known.fault(&proof, frame.octets));
        }
        self.admission.admit_one(known, &proof, frame, now)
    }

    /// Checks the first packet that comes here on a path which another thread has learnt; `None` if the packet is on none of these.
    ///
    /// That other thread has verified packets of its own, by its own policy. Here they prove nothing: this thread's policy decides, the packet is
    /// verified as on a path that is known, and the path is kept only if the packet is admitted. What is the cheapest to find out comes first:
    /// the path is copied, and decided on, for nothing that lacks this node's consent.
    fn adopt(
        &mut self,
        packet: &Packet<'_>,
        ingress: Ingress,
        now: Now,
    ) -> Result<Option<(KnownPath, ProofTags)>, Reason> {
        let Some(learned) = &self.learned else { return Ok(None) };
        let is_on = |known: &KnownPath| {
            verify::check_same_path(packet, known.version, known.keys.count(), known.octets()).is_ok()
                && verify::check_index(packet, known.keys.index()).is_ok()
                && verify::check_expiry(self.version, known.expiry, now.unix).is_ok()
                && verify::check_freshness(self.version, packet, self.freshness, now.unix).is_ok()
                && verify::check_consent(self.version, packet, &known.keys).is_ok()
        };
        let Some(mut known) = learned.get(&packet.handle(), now.unix, is_on) else { return Ok(None) };
        let Some(decision) = known.decide(&self.policy) else { return Ok(None) };
        known.decision = decision;
        self.check_ingress(&known.decision, ingress)?;
        known.decision.action?;
        let (proof, is_right) = self.check_verifier(packet, &known.keys);
        self.counters.hashed += hashed(packet, &proof);
        if is_right { Ok(Some((known, proof))) } else { Err(proof.fault().into()) }
    }

    fn check_on_known_path(
        &self,
        slot: usize,
        packet: &Packet<'_>,
        ingress: Ingress,
        now: Now,
    ) -> Result<(ProofTags, bool), Reason> {
        let known = self.paths.at(slot).ok_or(Reason::UnknownHandle)?;
        self.check_without_keys(packet, known, ingress, now.unix)?;
        verify::check_consent(self.version, packet, &known.keys)?;
        Ok(self.check_verifier(packet, &known.keys))
    }

    /// The packet's tags, and whether its verifier is that of them: [`verify::check_verifier`], under the mask of verifier bits that a unit test
    /// may narrow.
    fn check_verifier(&self, packet: &Packet<'_>, keys: &PathKeys) -> (ProofTags, bool) {
        let proof = keys.proof_tags(packet);
        let difference = proof.verifier_difference(keys.index(), packet.verifier(keys.index()));
        (proof, difference & self.verifier_mask == 0)
    }

    /// Checks the first packet on a path. The keys that were agreed on are kept only if the packet is verified with them, so
    /// that forged packets leave nothing behind; and the path only if the packet is admitted too, so that whoever repeats
    /// packets or sends more than its rate makes no path known at the cost of others.
    fn check_on_new_path(
        &mut self,
        packet: &Packet<'_>,
        ingress: Ingress,
        now: Now,
    ) -> Result<(KnownPath, ProofTags), Reason> {
        let octets = packet.path().ok_or(Reason::UnknownHandle)?;
        let path = Path::decode(octets).map_err(|_| Reason::Malformed)?;
        let (version, index) = (packet.version(), packet.index());
        let route = path.route(version);
        verify::check_handle(packet, &route)?;
        let secret = self.policy.secret(path.node(index)).ok_or(Reason::NotForUs)?.clone();
        let decision = Decision::new(&self.policy, &path, index);
        self.check_ingress(&decision, ingress)?;
        decision.action?;
        let hop = path.hop(index);
        verify::check_expiry(self.version, hop.expiry, now.unix)?;
        verify::check_freshness(self.version, packet, self.freshness, now.unix)?;
        let master = self.policy.master(tag_epoch(hop.expiry)).ok_or(Reason::Consent)?;
        let consent = master.consent(&path.hash(version), index, hop.tag, hop.expiry);
        let mut keys = PathKeys::new(route, index, path.count(), &consent);
        verify::check_consent(self.version, packet, &keys)?;
        let agreed = self.agree(&path, index, &secret, &mut keys, ingress, now)?;
        let (proof, is_right) = self.check_verifier(packet, &keys);
        self.counters.hashed += hashed(packet, &proof);
        if !is_right {
            return Err(proof.fault().into());
        }
        let owner = (ingress_link(ingress)?, None);
        for (other, key) in agreed.into_iter().enumerate() {
            if let Some(key) = key {
                self.peers.insert(NodePair(secret.id(), *path.node(other)), key, owner);
            }
        }
        Ok((KnownPath::new(version, keys, decision, hop.expiry, octets, Windows::new(now.unix)), proof))
    }

    /// Adds to `keys` the key that this node shares with every other node of `path`. Agreements (X25519) with nodes that are not known are
    /// computed within the rate of the link where the packet came in, all that it needs or none; those computed are returned.
    fn agree(
        &mut self,
        path: &Path,
        index: usize,
        secret: &NodeSecret,
        keys: &mut PathKeys,
        ingress: Ingress,
        now: Now,
    ) -> Result<[Option<PairKey>; MAX_NODES], Reason> {
        let (mut missing, own) = (0u16, secret.id());
        for other in (0..path.count()).filter(|other| *other != index) {
            let node = path.node(other);
            match self.policy.agreed.get(&own, node).or_else(|| self.peers.get(&NodePair(own, *node))) {
                Some(key) => keys.set_pair(other, key),
                None => missing |= 1 << other,
            }
        }
        let bucket = ingress_link(ingress).ok().and_then(|link| self.agreements.get_mut(&link));
        let may = missing == 0 || bucket.is_some_and(|bucket| bucket.take_all(missing.count_ones(), now.instant));
        if !may {
            return Err(Reason::Busy);
        }
        let mut agreed = [const { None }; MAX_NODES];
        for other in (0..path.count()).filter(|other| missing >> other & 1 != 0) {
            let node = path.node(other);
            self.counters.agreements += 1;
            verify::check_node(node)?;
            let key = secret.pair(node, self.version).map_err(|_| Reason::Node)?;
            keys.set_pair(other, &key);
            agreed[other] = Some(key);
        }
        Ok(agreed)
    }
}

/// Octets of the payload that were hashed for these tags.
fn hashed(packet: &Packet<'_>, proof: &ProofTags) -> u64 {
    let payload = packet.payload().len();
    let is_in_part = packet.version() == Version::Sealed && packet.part() == Part::Whole;
    let sample = if proof.is_sample() { payload } else { 0 };
    (sample + if is_in_part { MIN_SEALED } else { payload }) as u64
}

//! The keys of a proxy: counts of few-time keys, what is made ahead, and pairs that neighbours hand over.

use std::sync::Arc;

use wayleave_bgp::Attributes;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;

use super::Proxy;
use crate::attest::{MOST_DIRECT, Pair as KeyPair, endorse};
use crate::leaf::Leaf;
use crate::pipeline::jobs::{Job, Outcome, Work};
use crate::pipeline::keys::few_time::{SignaturesLeft, ToPersist};
use crate::pipeline::shared_tree::NeighbourTree;
use crate::proxy::event::{Event, Output};
use crate::proxy::handover::{Granted, without};
use crate::proxy::offer::asks;
use crate::proxy::session_pair::Side;

impl Proxy {
    /// Gives the proxy a secret, which must be uniformly random. From now on one signature over a root serves all
    /// neighbours if there are more than [`MOST_DIRECT`](crate::attest::MOST_DIRECT) pairs, each hop showing its receiver
    /// nothing of the others; and neighbours that may have keys of our making get them.
    pub fn hold_secret(&mut self, secret: Seed) {
        let seed = kdf::derive("wayleave/attestation/roots/v1", secret.expose(), b"");
        self.roots = (self.places.len() > MOST_DIRECT).then(|| NeighbourTree::new(seed, self.places.len()));
        self.secret = Some(secret);
    }

    /// Says of the neighbour what follows from its OPEN and from what is registered now; whether that is something else
    /// than before.
    pub(super) fn name_neighbour(&mut self, place: usize) -> bool {
        let at = &mut self.places[place];
        let Some(established) = at.pair.established(Side::Outside) else { return false };
        let peer = established.peer_asn;
        // A registered AS signs with its own keys: one that we made for it would prove nothing.
        let may_grant = at.handover.may_grant()
            && asks(self.config.capability, &established.peer_capabilities)
            && !self.view.is_registered(peer);
        let secret = self.secret.as_ref().filter(|_| may_grant);
        let strength = self.config.least_strength;
        at.granted = secret.and_then(|secret| Granted::make(secret, self.config.asn, peer, strength));
        // A strength that configuration can say, and at most four keys: always a leaf.
        let leaf = match &at.granted {
            Some(granted) => granted.leaf.clone(),
            None => endorse(&at.offered, strength).unwrap_or_else(|_| Leaf::keyless()),
        };
        if let Some(roots) = &mut self.roots {
            roots.learn(peer, &leaf);
        }
        let before = at.leaf.replace(leaf);
        before != at.leaf
    }

    /// Asks for more signatures of few-time keys to be made durable, well before they are used, and tells of keys that
    /// will end.
    pub(super) fn reserve(&mut self) {
        let (due, ending) = self.keys.reserve();
        let persist = |ToPersist { id, public, limit }| Output::Persist { id, public, limit };
        self.outputs.extend(due.into_iter().map(persist));
        ending.into_iter().for_each(|left| self.tell(Event::KeyEnds(left)));
    }

    /// What is left of the key at this place of the ring, if it is a few-time key.
    pub(in crate::proxy) fn left(&self, place: usize, pair: &KeyPair) -> Option<SignaturesLeft> {
        self.keys.left(place, pair)
    }

    pub(super) fn on_persisted(&mut self, id: u64) {
        if self.keys.persisted(id) {
            let waits = |found: &Option<Outcome>| matches!(found, Some(Outcome::NotReserved));
            self.places.iter_mut().for_each(|place| place.outgoing.queue_those(|entry| waits(&entry.found)));
        }
    }

    /// What few-time keys need next is made in the background, where nothing waits to be signed.
    pub(super) fn make_ahead(&mut self, place: usize) {
        if !self.keys.are_few_time() || self.places.iter().any(|place| place.outgoing.waiting() > 0) {
            return;
        }
        self.signing = true;
        let work = Work::Ahead(self.keys.ring.clone());
        self.outputs.push_back(Output::Work(Job { pair: place, work }));
    }

    /// The route without any grant: that is for us alone, or not meant for anybody.
    pub(super) fn keep_grant(&mut self, place: usize, from: Side, attributes: Arc<Attributes>) -> Arc<Attributes> {
        let Some((attributes, grant)) = without(&attributes) else { return attributes };
        let at = &mut self.places[place];
        let attributes = at.pair.intern(attributes);
        let issuer = at.pair.established(Side::Outside).map(|established| established.peer_asn);
        let Some(issuer) = issuer.filter(|_| from == Side::Outside && at.handover.may_take()) else {
            return attributes;
        };
        if let Err(error) = at.taken.read(&grant, (issuer, self.config.asn), self.config.rules.lab) {
            self.tell(Event::GrantRefused(place, error));
        }
        attributes
    }

    /// Puts what neighbours have made for us into the ring. Only while nothing is signed: whoever signs holds the ring, and
    /// nobody shall wait for it.
    pub(super) fn take_granted(&mut self) {
        for taken in self.places.iter_mut().map(|place| &mut place.taken).filter(|taken| taken.is_waiting()) {
            taken.take(&mut self.keys.ring.lock());
        }
    }
}

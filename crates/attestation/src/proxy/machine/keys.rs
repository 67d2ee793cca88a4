//! The keys of a proxy: slots of few-time keys, what is made ahead, and keys that neighbours hand over.

use std::sync::Arc;

use wayleave_bgp::Attributes;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;

use super::Proxy;
use crate::leaf::{Leaf, LeafKey};
use crate::pipeline::ProcessEvent;
use crate::proxy::event::{Event, Output};
use crate::proxy::handover::{GrantedKey, without_grant};
use crate::proxy::offer::{asks, offer};
use crate::proxy::session_pair::Side;
use crate::sign::{MAX_DIRECT, endorse};

impl Proxy {
    /// Gives the proxy a secret, which must be uniformly random. From now on one signature serves a burst of routes to all
    /// neighbours if there are more than [`MAX_DIRECT`](crate::sign::MAX_DIRECT) pairs, and no hop shows its receiver
    /// anything of the others; and neighbours that may have keys of our making get them.
    pub fn hold_secret(&mut self, secret: Seed) {
        let salts = || kdf::derive("wayleave/attestation/burst-salts/v2", secret.expose(), b"");
        self.burst_salts = (self.pairs.len() > MAX_DIRECT).then(salts);
        self.secret = Some(secret);
    }

    /// Makes the leaf that names the neighbour's keys from its OPEN and from what is registered now. Returns whether it
    /// has changed.
    pub(super) fn name_neighbour(&mut self, index: usize) -> bool {
        let asn = self.pipeline.config.asn;
        let pair = &mut self.pairs[index];
        let Some(established) = pair.sessions.established(Side::Outside) else { return false };
        let peer = established.peer_asn;
        // A registered AS signs with its own keys: one that we made for it would prove nothing.
        let may_grant = pair.handover.may_grant()
            && asks(self.capability, &established.peer_capabilities)
            && !self.pipeline.view.is_registered(peer);
        let secret = self.secret.as_ref().filter(|_| may_grant);
        pair.granted = secret.and_then(|secret| GrantedKey::make(secret, asn, peer, self.least_strength));
        // Configuration bounds the strength, and an offer has at most four keys: always a leaf.
        let leaf = match &pair.granted {
            Some(granted) => granted.leaf.clone(),
            None => endorse(&pair.offered, self.least_strength).unwrap_or_else(|_| Leaf::keyless()),
        };
        let leaf = if self.require_post_quantum { leaf.requiring_post_quantum() } else { leaf };
        let before = pair.leaf.replace(leaf);
        before != pair.leaf
    }

    /// Asks for slots of few-time keys to be made durable, and reports what operators should know of such keys.
    pub(super) fn reserve(&mut self) {
        let (reserves, events) = self.pipeline.reserve();
        self.outputs.extend(reserves.into_iter().map(Output::Persist));
        events.into_iter().for_each(|event| self.notify(Event::Process(event)));
    }

    pub(super) fn on_persisted(&mut self, id: u64) {
        if self.pipeline.keys.few_time.persisted(id, self.pipeline.now.unix) {
            self.queue_unreserved(self.pipeline.keys.few_time.capacity(self.pipeline.now.unix));
        }
    }

    pub(super) fn on_clock(&mut self, is_synchronised: bool) {
        if self.pipeline.keys.few_time.set_synchronised(is_synchronised, self.pipeline.now) {
            self.reserve();
        }
    }

    /// Tries routes again that waited until a key may sign, where one may now.
    pub(super) fn on_slot(&mut self) {
        let capacity = self.pipeline.keys.few_time.take_retry(self.pipeline.now.unix);
        self.queue_unreserved(capacity);
        self.reserve();
    }

    /// Queues as many routes that wait until a key may sign as one can sign for: of each pair as many, in turn, so that scarce
    /// signatures serve all neighbours.
    fn queue_unreserved(&mut self, capacity: Option<usize>) {
        let Some(capacity) = capacity else { return };
        let tried: usize = self.pairs.iter().map(|pair| pair.outgoing.tried()).sum();
        let mut capacity = capacity.saturating_sub(tried);
        let count = self.pairs.len();
        loop {
            let first = self.unreserved_turn.min(count);
            let has_some = |index: &usize| self.pairs[*index].outgoing.has_unreserved();
            let waiting: Vec<usize> = (first..count).chain(0..first).filter(has_some).collect();
            if capacity == 0 || waiting.is_empty() {
                self.pipeline.keys.few_time.retried(!waiting.is_empty());
                return;
            }
            for (served, index) in waiting.iter().enumerate() {
                // Equal shares of what is left; the pair behind the last one that got some is the next to be first.
                let share = capacity.div_ceil(waiting.len() - served);
                let queued = self.pairs[*index].outgoing.queue_unreserved(share);
                capacity -= queued;
                if queued > 0 {
                    self.unreserved_turn = (index + 1) % count;
                }
            }
        }
    }

    /// More of the routes that wait for a key are tried where no other is queued. What few-time keys need next is made in the
    /// background, where no route waits to be signed.
    pub(super) fn make_keys_ahead(&mut self, index: usize) {
        if self.pairs.iter().all(|pair| pair.outgoing.routes.waiting() == 0) {
            self.queue_unreserved(self.pipeline.keys.few_time.more_capacity(self.pipeline.now.unix));
        }
        if self.pairs.iter().all(|pair| pair.outgoing.routes.waiting() == 0) {
            self.outputs.extend(self.pipeline.keys_ahead_job(index).map(Output::Job));
        }
    }

    /// Takes a grant off a route: it is for us alone, or not meant for anybody.
    pub(super) fn take_grant(&mut self, index: usize, from: Side, attributes: Arc<Attributes>) -> Arc<Attributes> {
        let Some((attributes, grant)) = without_grant(&attributes) else { return attributes };
        let own = self.pipeline.config.asn;
        let pair = &mut self.pairs[index];
        let attributes = pair.sessions.intern(attributes);
        let issuer = pair.sessions.established(Side::Outside).map(|established| established.peer_asn);
        let Some(issuer) = issuer.filter(|_| from == Side::Outside && pair.handover.may_take()) else {
            return attributes;
        };
        if let Err(error) = pair.received_grants.read(&grant, (issuer, own), self.pipeline.config.rules.lab) {
            self.notify(Event::GrantRefused(index, error));
        }
        attributes
    }

    /// Signs with these keys from now on, no session needs to end: what neighbours named in their hops, they named in the sessions that are
    /// up, so that keys of before still extend such chains while they are registered. New sessions offer the new keys. Only while no job
    /// signs.
    pub(super) fn take_new_keys(&mut self) {
        let Some((ring, seen)) = self.new_keys.take() else { return };
        let leaves: Vec<LeafKey> = ring.pairs.iter().map(|pair| pair.leaf_key()).collect();
        let new = self.pipeline.keys.put_first(ring.pairs, &seen);
        if new == 0 {
            return;
        }
        let (view, asn) = (Arc::clone(&self.pipeline.view), self.pipeline.config.asn);
        self.pipeline.keys.register(&view, asn);
        for pair in &mut self.pairs {
            pair.received_grants.shift(new);
            if !pair.handover.may_take() {
                pair.sessions.set_more(Side::Outside, vec![offer(self.capability, &leaves)]);
            }
            pair.outgoing.sign_all_again();
        }
        let (keys, signs) = (leaves.iter().map(LeafKey::id).collect(), self.pipeline.signs_with());
        self.notify(Event::NewKeys { keys, signs, is_bound: view.is_registered(asn) });
        // That another key signs has just been said.
        let event = self.pipeline.key_use_event();
        let unregistered = event.filter(|event| matches!(event, ProcessEvent::KeysUnregistered { .. }));
        unregistered.into_iter().for_each(|event| self.notify(Event::Process(event)));
        self.reserve();
    }

    /// Adds keys that neighbours have made for us to the ring. Only while no job signs: it holds the ring, and no input
    /// may wait for it.
    pub(super) fn add_granted_keys(&mut self) {
        let grants = self.pairs.iter_mut().map(|pair| &mut pair.received_grants);
        for grants in grants.filter(|grants| grants.is_waiting()) {
            self.pipeline.keys.change(|ring| grants.add_to(ring));
        }
    }
}

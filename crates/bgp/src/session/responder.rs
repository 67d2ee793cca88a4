//! Finds the session that an incoming connection belongs to, before a listener hands it to a [`super::Session`].
//!
//! A listener calls [`Responder::accept`] with the peer's address. Most often that settles it: it hands the session
//! [`super::Input::Connected`] with `outgoing: false`. Where several peers share an address (many speakers on one
//! host), the answer is [`Accept::NeedOpen`]: the listener reads, without sending anything, and calls
//! [`Responder::identify`] again with all that it has read until a session is named; then it hands that session the
//! connection and, as the first [`super::Input::Bytes`], what it has read. It should give up after some seconds.

use std::net::IpAddr;

use wayleave_core::{Asn, Prefix};

use super::PeerAsn;
use crate::notification::{Notification, cease, code, finite_state_machine};
use crate::{Message, MessageError, MessageType, SessionParams, frame};

/// What to do with a connection that has come in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Accept<K> {
    /// Hand it to this session.
    Session(K),
    /// The address alone does not decide; read on, to at most 4,096 octets.
    NeedOpen,
    /// Send the octets, then close it.
    Refuse(Refusal),
}

/// A connection that belongs to no session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub notification: Notification,
    pub octets: Vec<u8>,
}

#[derive(Clone, Debug)]
struct ResponderEntry<K> {
    peers: Prefix,
    asn: PeerAsn,
    key: K,
}

/// The sessions that a listener serves, by their peers' addresses and AS numbers.
#[derive(Clone, Debug)]
pub struct Responder<K> {
    entries: Vec<ResponderEntry<K>>,
    refused: u64,
}

impl<K: Clone + PartialEq> Responder<K> {
    /// Without sessions.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: Vec::new(), refused: 0 }
    }

    /// Serves the session `key`, whose peer has an address of `peers` (most often a host's prefix) and is `asn`.
    pub fn insert(&mut self, peers: Prefix, asn: PeerAsn, key: K) {
        self.entries.push(ResponderEntry { peers, asn, key });
    }

    /// Serves `key` no more.
    pub fn remove(&mut self, key: &K) {
        self.entries.retain(|entry| entry.key != *key);
    }

    /// Connections refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Judges a connection by the peer's address; the longest prefix that holds it counts.
    pub fn accept(&mut self, remote: IpAddr) -> Accept<K> {
        match &self.candidates(remote)[..] {
            [] => self.refuse(Notification::new(code::CEASE, cease::CONNECTION_REJECTED)),
            [only] => Accept::Session(only.key.clone()),
            _ => Accept::NeedOpen,
        }
    }

    /// Judges a connection by the peer's address and what the peer has sent, from its first octet.
    pub fn identify(&mut self, remote: IpAddr, octets: &[u8]) -> Accept<K> {
        let params = SessionParams::new(Asn(0), Asn(0));
        let kind = match frame(octets, &params) {
            Ok((frame, _)) => frame.kind,
            Err(MessageError::Incomplete { .. }) => return Accept::NeedOpen,
            Err(MessageError::Peer(notification)) => return self.refuse(notification),
        };
        if kind != MessageType::Open {
            let unexpected = finite_state_machine::UNSPECIFIED;
            return self.refuse(Notification::with_data(code::FINITE_STATE_MACHINE, unexpected, [kind.octet()]));
        }
        let open = match Message::decode(octets, &params) {
            Ok((Message::Open(open), _)) => open,
            Err(MessageError::Peer(notification)) => return self.refuse(notification),
            Ok(_) | Err(MessageError::Incomplete { .. }) => return Accept::NeedOpen,
        };
        let candidates = self.candidates(remote);
        let named = candidates.iter().find(|entry| entry.asn == PeerAsn::Exactly(open.asn));
        match named.or_else(|| candidates.iter().find(|entry| entry.asn.accepts(open.asn))) {
            Some(entry) => Accept::Session(entry.key.clone()),
            None => self.refuse(Notification::new(code::CEASE, cease::CONNECTION_REJECTED)),
        }
    }

    fn candidates(&self, remote: IpAddr) -> Vec<&ResponderEntry<K>> {
        // A socket that serves both families shows IPv4 peers as mapped addresses.
        let remote = remote.to_canonical();
        let bits = if remote.is_ipv4() { 32 } else { 128 };
        let Ok(host) = Prefix::new(remote, bits) else { return Vec::new() };
        let holding = || self.entries.iter().filter(|entry| entry.peers.contains(&host));
        let longest = holding().map(|entry| entry.peers.len()).max();
        holding().filter(|entry| Some(entry.peers.len()) == longest).collect()
    }

    fn refuse(&mut self, notification: Notification) -> Accept<K> {
        self.refused += 1;
        let params = SessionParams::new(Asn(0), Asn(0));
        let octets = Message::Notification(notification.clone()).encode(&params).unwrap_or_default();
        Accept::Refuse(Refusal { notification, octets })
    }
}

impl<K: Clone + PartialEq> Default for Responder<K> {
    fn default() -> Self {
        Self::new()
    }
}

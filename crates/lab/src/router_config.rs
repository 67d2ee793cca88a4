//! The configuration of a router in an internet of the laboratory.

use std::net::Ipv4Addr;

use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};

/// A router with any number of sessions that propagates what it learns.
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// Name for files and logs.
    pub name: String,
    pub asn: Asn,
    /// Its BGP identifier.
    pub router_id: Ipv4Addr,
    pub neighbours: Vec<Neighbour>,
    /// Routes with this community are least preferred (BIRD only; FRR ignores this).
    pub lowers: Option<LargeCommunity>,
}

/// One session of a [`RouterConfig`].
#[derive(Debug, Clone)]
pub struct Neighbour {
    pub name: String,
    /// The own address of the session.
    pub local: Ipv4Addr,
    pub address: Ipv4Addr,
    /// The port on which the neighbour listens.
    pub port: u16,
    /// The neighbour's AS. The own AS makes the session internal, with next-hop-self.
    pub asn: Asn,
    pub passive: bool,
    /// Whether to offer extended messages where the router can be configured (RFC 8654).
    pub extended_messages: bool,
    /// The password of TCP MD5 (RFC 2385), without quotes and spaces.
    pub password: Option<String>,
    /// Whether the neighbour must be on the same link (RFC 5082).
    pub ttl_security: bool,
    /// Whether its routes are to be kept for two seconds while it restarts, and for an hour after that as long-lived stale ones (RFC
    /// 4724, RFC 9494; BIRD only).
    pub graceful_restart: bool,
    /// A different MED for each of these prefixes, so that no two of them share an UPDATE.
    pub meds: Vec<(Prefix, u32)>,
}

impl RouterConfig {
    /// A router without neighbours.
    #[must_use]
    pub fn new(name: &str, asn: Asn, router_id: Ipv4Addr) -> Self {
        Self { name: name.to_owned(), asn, router_id, neighbours: Vec::new(), lowers: None }
    }

    /// Adds a neighbour, reached from the address that is also the router identifier.
    #[must_use]
    pub fn with(mut self, name: &str, address: Ipv4Addr, asn: Asn) -> Self {
        let (name, local) = (name.to_owned(), self.router_id);
        self.neighbours.push(Neighbour {
            name,
            local,
            address,
            port: 179,
            asn,
            passive: false,
            extended_messages: true,
            password: None,
            ttl_security: false,
            graceful_restart: false,
            meds: Vec::new(),
        });
        self
    }

    /// Protects the session with the neighbour added last.
    #[must_use]
    pub fn protected(mut self, password: Option<&str>, ttl_security: bool) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            (last.password, last.ttl_security) = (password.map(str::to_owned), ttl_security);
        }
        self
    }

    /// Asks the neighbour added last to keep its routes while it restarts.
    #[must_use]
    pub fn graceful(mut self) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            last.graceful_restart = true;
        }
        self
    }

    /// Waits for the neighbour added last to connect.
    #[must_use]
    pub fn passive(mut self) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            last.passive = true;
        }
        self
    }

    /// Sends each of `prefixes` in an UPDATE of its own to the neighbour added last.
    #[must_use]
    pub fn one_by_one(mut self, prefixes: &[Prefix]) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            last.meds = prefixes.iter().copied().zip(1..).collect();
        }
        self
    }

    /// Offers no extended messages to the neighbour added last.
    #[must_use]
    pub fn short_messages(mut self) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            last.extended_messages = false;
        }
        self
    }
}

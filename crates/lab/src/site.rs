//! A router anywhere in an internet of the laboratory: who it is, and its neighbours.

use std::net::Ipv4Addr;

use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};

/// A router with any number of sessions, which passes on what it learns.
#[derive(Debug, Clone)]
pub struct Site {
    /// Name for files and logs.
    pub name: String,
    /// Its AS.
    pub asn: Asn,
    /// Its BGP identifier.
    pub router_id: Ipv4Addr,
    /// With whom it speaks.
    pub neighbours: Vec<Neighbour>,
    /// Routes with this tag are used only where there is no other (a BIRD's; an FRR takes no notice).
    pub lowers: Option<LargeCommunity>,
}

/// One session of a [`Site`].
#[derive(Debug, Clone)]
pub struct Neighbour {
    /// A name of letters and digits.
    pub name: String,
    /// Our address on the way there.
    pub local: Ipv4Addr,
    /// The neighbour's address.
    pub address: Ipv4Addr,
    /// The port at which it waits.
    pub port: u16,
    /// The neighbour's AS; our own makes the session internal, with ourselves as next hop.
    pub asn: Asn,
    /// Wait for the neighbour to connect.
    pub passive: bool,
    /// Offer messages of up to 65,535 octets, where that is a choice (RFC 8654).
    pub extended_messages: bool,
    /// A MED for each of these prefixes on the way out, so that no two of them share an UPDATE.
    pub meds: Vec<(Prefix, u32)>,
}

impl Site {
    /// A router without neighbours.
    #[must_use]
    pub fn new(name: &str, asn: Asn, router_id: Ipv4Addr) -> Self {
        Self { name: name.to_owned(), asn, router_id, neighbours: Vec::new(), lowers: None }
    }

    /// The same with one neighbour more, reached from the router identifier's own address.
    #[must_use]
    pub fn with(mut self, name: &str, address: Ipv4Addr, asn: Asn) -> Self {
        let (name, local) = (name.to_owned(), self.router_id);
        let (passive, extended_messages, meds) = (false, true, Vec::new());
        let port = 179;
        self.neighbours.push(Neighbour { name, local, address, port, asn, passive, extended_messages, meds });
        self
    }

    /// The same, where the neighbour added last waits at this port.
    #[must_use]
    pub fn at_port(mut self, port: u16) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            last.port = port;
        }
        self
    }

    /// The same, where the neighbour added last gets each of `prefixes` in an UPDATE of its own.
    #[must_use]
    pub fn one_by_one(mut self, prefixes: &[Prefix]) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            last.meds = prefixes.iter().copied().zip(1..).collect();
        }
        self
    }

    /// The same, where the neighbour added last is offered no extended messages.
    #[must_use]
    pub fn short_messages(mut self) -> Self {
        if let Some(last) = self.neighbours.last_mut() {
            last.extended_messages = false;
        }
        self
    }
}

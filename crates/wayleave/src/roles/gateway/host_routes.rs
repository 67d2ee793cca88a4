//! What the machine is told so that packets reach the gateway: the interface's addresses, a routing table of its own, and the rules that
//! look in it.
//!
//! Nothing of the machine's own is replaced. Its routes come first, all but default ones; packets of the gateway's own sockets have a mark
//! and never look in the table. In the table a blackhole with a worse metric is behind each route: it outlives a gateway that is killed, so
//! that nothing leaves in clear, and the next one takes it over. A gateway that stops takes everything back.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use tracing::warn;
use wayleave_core::{Afi, Prefix};
use wayleave_runtime::routes::{MAIN, Routes, RoutingRule};

/// The table, its rules, and what is in it.
pub struct HostRoutes {
    routes: Routes,
    /// The interface's number.
    index: u32,
    /// Number of the table, of the first rule, and of the mark.
    table: u32,
    addresses: BTreeSet<IpAddr>,
    routed: BTreeSet<Prefix>,
    /// Prefixes without a route for which nothing is to leave in clear.
    guarded: BTreeSet<Prefix>,
    /// What an earlier gateway left.
    left: BTreeSet<Prefix>,
}

impl HostRoutes {
    /// Adds the rules for the interface of number `index`.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(table: u32, index: u32) -> io::Result<Self> {
        let mut routes = Routes::open()?;
        let mut left = BTreeSet::new();
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            let result = routes.prefixes(afi, table).and_then(|prefixes| {
                left.extend(prefixes);
                rules(afi, table).iter().try_for_each(|rule| match routes.add_rule(rule) {
                    // A gateway that was killed left it.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    result => result,
                })
            });
            match result {
                Err(error) if afi == Afi::Ipv6 => warn!("no routes of IPv6: {error}"),
                result => result?,
            }
        }
        Ok(Self {
            routes,
            index,
            table,
            addresses: BTreeSet::new(),
            routed: BTreeSet::new(),
            guarded: BTreeSet::new(),
            left,
        })
    }

    /// Gives the interface these addresses, beside those that it has.
    pub fn add_addresses(&mut self, addresses: &[IpAddr]) {
        for address in addresses {
            if self.addresses.contains(address) {
                continue;
            }
            match self.routes.add_address(self.index, *address) {
                Ok(()) => drop(self.addresses.insert(*address)),
                Err(error) => warn!(%address, "cannot give the interface its address: {error}"),
            }
        }
    }

    /// Routes these prefixes to the interface, and no others. Packets to those that are `guarded` and not routed end here.
    pub fn set(&mut self, wanted: &BTreeSet<Prefix>, guarded: &BTreeSet<Prefix>) {
        let guarded: BTreeSet<Prefix> = guarded.difference(wanted).copied().collect();
        let Self { routes, table, index, routed, left, .. } = self;
        for prefix in guarded.difference(&self.guarded) {
            // The blackhole stays while the route goes.
            let result = routes.add_blackhole_to_table(*table, prefix);
            if let Err(error) = result.and_then(|()| match routed.remove(prefix) {
                true => routes.remove_from_table(*table, prefix, *index),
                false => Ok(()),
            }) {
                warn!(%prefix, "cannot keep packets to it from leaving in clear: {error}");
            }
        }
        left.extend(std::mem::replace(&mut self.guarded, guarded));
        let guarded = &self.guarded;
        for prefix in routed.union(left).filter(|prefix| !wanted.contains(prefix) && !guarded.contains(prefix)) {
            if let Err(error) = routes.clear_prefix(*table, prefix) {
                warn!(%prefix, "cannot remove a route: {error}; `ip route flush table {table}` does");
            }
        }
        left.clear();
        routed.retain(|prefix| wanted.contains(prefix));
        for prefix in wanted {
            if routed.contains(prefix) {
                continue;
            }
            // The blackhole first: there is no moment without either.
            let result = routes.add_blackhole_to_table(*table, prefix);
            match result.and_then(|()| routes.add_to_table(*table, prefix, *index, None)) {
                Ok(()) => drop(routed.insert(*prefix)),
                Err(error) => warn!(%prefix, "cannot add a route: {error}; it is tried again when the realm changes"),
            }
        }
    }

    /// Takes back what a gateway left whose table had this number.
    pub fn clear(table: u32) {
        let result = Routes::open().map(|routes| {
            let nothing = BTreeSet::new;
            Self {
                routes,
                index: 0,
                table,
                addresses: BTreeSet::new(),
                routed: nothing(),
                guarded: nothing(),
                left: nothing(),
            }
            .close();
        });
        if let Err(error) = result {
            warn!("cannot remove routes: {error}; `ip route flush table {table}` does");
        }
    }

    /// Takes everything back. The interface's addresses go with the interface.
    pub fn close(mut self) {
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            for rule in rules(afi, self.table) {
                if let Err(error) = self.routes.remove_rule(&rule) {
                    let priority = rule.priority;
                    warn!(priority, "cannot remove a routing rule: {error}; `ip rule del priority {priority}` does");
                }
            }
            if let Err(error) = self.routes.clear_table(afi, self.table) {
                warn!("cannot remove routes: {error}; `ip route flush table {}` does", self.table);
            }
        }
    }
}

/// The interface, other than `own`, to which routes of a table lead: another gateway's, since that of one that was killed is gone.
pub fn user_of(table: u32, own: &str) -> Option<String> {
    let of = |afi: Afi| Routes::open().and_then(|mut routes| routes.all(afi)).unwrap_or_default();
    let all = [Afi::Ipv4, Afi::Ipv6].into_iter().flat_map(of).filter(|route| route.table == table);
    // Blackholes of IPv6 are at the loopback interface.
    all.filter_map(|route| route.interface).find(|name| name != own && name != "lo")
}

/// In this order: the gateway's own sockets know the main table alone; so do packets for which the machine has a route that is no default
/// one; the rest looks in the gateway's table, and from there on where it looked before.
fn rules(afi: Afi, table: u32) -> [RoutingRule; 3] {
    let of = |number: u32, looks_in: u32| RoutingRule::of(afi, table + number, looks_in);
    [RoutingRule { mark: Some(table), ..of(0, MAIN) }, RoutingRule { suppressed: Some(0), ..of(1, MAIN) }, of(2, table)]
}

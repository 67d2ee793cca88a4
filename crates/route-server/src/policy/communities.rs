//! Communities by which a member controls who may have a route.
//!
//! What operators already write, relative to the route server's AS `rs`:
//!
//! | meaning | standard | large | extended (`rt` or `ro`) |
//! |---|---|---|---|
//! | not to `peer` | `0:peer` | `rs:0:peer` | `rt:0:peer` |
//! | to `peer` (only) | `rs:peer` | `rs:1:peer` | `rt:rs:peer` |
//! | to nobody | `0:rs` | `rs:0:0` | `rt:0:rs`, `rt:rs:0` |
//! | to everybody | `rs:rs` | `rs:1:0` | `rt:rs:rs` |
//!
//! An extended community may be of the two-octet-AS or the four-octet-AS specific type, so that four-octet peers and
//! route servers are named too; standard forms with `rs` exist only where `rs` has two octets.
//!
//! The kinds are read together, and where they contradict each other the order is that of the BIRD route servers of
//! exchanges (IXP Manager and arouteserver generate it): *not to peer* beats *to peer*, which beats *to nobody*, which
//! beats *to everybody*. What none of them settles goes to everybody. One case differs, so that a doubt never exports:
//! *to peer* alone, with neither *to nobody* nor *to everybody* beside it, means *only* to those named, where some of
//! those route servers take it as no restriction.
//!
//! NO_ADVERTISE exports to nobody (RFC 1997). All other communities, NO_EXPORT among them, belong to the receiver and
//! pass untouched (RFC 7947 section 2.2.4).

use std::collections::BTreeSet;
use std::fmt;

use wayleave_bgp::{Attributes, Community, ExtendedCommunity, LargeCommunity};
use wayleave_core::Asn;

/// What one community demands of the route server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    Deny(Asn),
    /// Without a statement about all others, only to the ASes so named.
    Allow(Asn),
    None,
    All,
}

/// Why a receiver may or may not have a route, as far as communities decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommunityReason {
    /// The route has NO_ADVERTISE.
    NoAdvertise,
    Denied,
    Allowed,
    ToNobody,
    ToEverybody,
    /// Other ASes are allowed by name, and no community decides about the rest.
    OnlyOthers,
    Unrestricted,
}

impl CommunityReason {
    /// Whether the receiver may have the route.
    #[must_use]
    pub fn permits(self) -> bool {
        matches!(self, CommunityReason::Allowed | CommunityReason::ToEverybody | CommunityReason::Unrestricted)
    }
}

impl fmt::Display for CommunityReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommunityReason::NoAdvertise => "NO_ADVERTISE lets nobody have it",
            CommunityReason::Denied => "a community denies it to this AS",
            CommunityReason::Allowed => "a community allows it to this AS",
            CommunityReason::ToNobody => "a community announces it to nobody that is not named",
            CommunityReason::ToEverybody => "a community announces it to everybody",
            CommunityReason::OnlyOthers => "communities announce it to others only",
            CommunityReason::Unrestricted => "nothing restricts it",
        })
    }
}

/// What all communities of a route demand together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Controls {
    denied: BTreeSet<Asn>,
    allowed: BTreeSet<Asn>,
    to_nobody: bool,
    to_everybody: bool,
    no_advertise: bool,
}

impl Controls {
    /// Reads the communities of `attributes` at the route server of AS `rs`.
    #[must_use]
    pub fn read(attributes: &Attributes, rs: Asn) -> Self {
        let standard = attributes.communities().filter_map(|community| of_standard(community, rs));
        let large = attributes.large_communities().filter_map(|community| of_large(community, rs));
        let extended = attributes.extended_communities().filter_map(|community| of_extended(community, rs));
        let mut controls = Self {
            no_advertise: attributes.communities().any(|community| community == Community::NO_ADVERTISE),
            ..Self::default()
        };
        standard.chain(large).chain(extended).for_each(|control| controls.add(control));
        controls
    }

    /// Whether the members of `receiver` may have the route, and why.
    #[must_use]
    pub fn decide(&self, receiver: Asn) -> CommunityReason {
        if self.no_advertise {
            CommunityReason::NoAdvertise
        } else if self.denied.contains(&receiver) {
            CommunityReason::Denied
        } else if self.allowed.contains(&receiver) {
            CommunityReason::Allowed
        } else if self.to_nobody {
            CommunityReason::ToNobody
        } else if self.to_everybody {
            CommunityReason::ToEverybody
        } else if self.allowed.is_empty() {
            CommunityReason::Unrestricted
        } else {
            CommunityReason::OnlyOthers
        }
    }

    /// Whether NO_ADVERTISE is there, which no rule overrides.
    #[must_use]
    pub fn no_advertise(&self) -> bool {
        self.no_advertise
    }

    fn add(&mut self, control: Control) {
        match control {
            Control::Deny(asn) => drop(self.denied.insert(asn)),
            Control::Allow(asn) => drop(self.allowed.insert(asn)),
            Control::None => self.to_nobody = true,
            Control::All => self.to_everybody = true,
        }
    }
}

/// What a standard community demands of the route server of AS `rs`, if it is one of its own.
#[must_use]
pub fn of_standard(community: Community, rs: Asn) -> Option<Control> {
    let (upper, lower) = (Asn(community.upper().into()), Asn(community.lower().into()));
    of_pair(upper, lower, rs)
}

/// What a large community demands of the route server of AS `rs`, if it is one of its own. Other functions than 0 and 1
/// (prepending, information) are not export control.
#[must_use]
pub fn of_large(community: LargeCommunity, rs: Asn) -> Option<Control> {
    match (community.global == rs.0, community.local1, community.local2) {
        (true, 0, 0) => Some(Control::None),
        (true, 0, peer) => Some(Control::Deny(Asn(peer))),
        (true, 1, 0) => Some(Control::All),
        (true, 1, peer) => Some(Control::Allow(Asn(peer))),
        _ => None,
    }
}

/// What an extended community demands of the route server of AS `rs`, if it is one of its own: a transitive route target
/// or route origin of the two-octet-AS (RFC 4360) or four-octet-AS specific type (RFC 5668).
#[must_use]
pub fn of_extended(community: ExtendedCommunity, rs: Asn) -> Option<Control> {
    let (global, local) = match community.0 {
        [0x00, 2 | 3, a, b, c, d, e, f] => (u32::from_be_bytes([0, 0, a, b]), u32::from_be_bytes([c, d, e, f])),
        [0x02, 2 | 3, a, b, c, d, e, f] => (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([0, 0, e, f])),
        _ => return None,
    };
    match of_pair(Asn(global), Asn(local), rs) {
        Some(Control::Allow(Asn(0))) => Some(Control::None),
        other => other,
    }
}

fn of_pair(global: Asn, local: Asn, rs: Asn) -> Option<Control> {
    match (global, local) {
        (Asn(0), local) if local == rs => Some(Control::None),
        (Asn(0), peer) => Some(Control::Deny(peer)),
        (global, local) if global == rs && local == rs => Some(Control::All),
        (global, peer) if global == rs => Some(Control::Allow(peer)),
        _ => None,
    }
}

/// The attributes without the communities that control export, and with all else octet for octet as it was: what is
/// left says nothing about who else may have the route.
#[must_use]
pub fn strip(attributes: &Attributes, rs: Asn) -> Attributes {
    let standard = |community| of_standard(community, rs).is_none();
    let extended = |community| of_extended(community, rs).is_none();
    let large = |community| of_large(community, rs).is_none();
    let mut editor = attributes.edit();
    if !attributes.communities().all(standard) {
        editor.retain_communities(standard);
    }
    if !attributes.extended_communities().all(extended) {
        editor.retain_extended_communities(extended);
    }
    if !attributes.large_communities().all(large) {
        editor.retain_large_communities(large);
    }
    editor.finish()
}

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
//! What changes a route for its receivers ([`treatments`](super::treatments)) has the numbers of arouteserver's examples and of IXP Manager:
//!
//! | meaning | standard | large | extended (`rt` or `ro`) |
//! |---|---|---|---|
//! | prepend once, twice, thrice to all | `65501:rs`, `65502:rs`, `65503:rs` | `rs:101:0`, `rs:102:0`, `rs:103:0` | `rt:65501:rs` and so on |
//! | the same to `peer` | `65511:peer`, `65512:peer`, `65513:peer` | `rs:101:peer` and so on | `rt:65511:peer` and so on |
//! | add NO_EXPORT to all, to `peer` | `65281:rs`, `65281:peer` | `rs:65281:0`, `rs:65281:peer` | `rt:65281:rs`, `rt:65281:peer` |
//! | add NO_ADVERTISE to all, to `peer` | `65282:rs`, `65282:peer` | `rs:65282:0`, `rs:65282:peer` | `rt:65282:rs`, `rt:65282:peer` |
//!
//! Every other large community `rs:*:*` is the exchange's own, and means nothing on a member's route: it is removed too.
//!
//! NO_ADVERTISE exports to nobody (RFC 1997). All other communities, NO_EXPORT among them, belong to the receiver and
//! pass untouched (RFC 7947 section 2.2.4).

use std::collections::BTreeSet;
use std::fmt;

use wayleave_bgp::{Attributes, Community, ExtendedCommunity, LargeCommunity};
use wayleave_core::Asn;

/// What adds NO_EXPORT, or NO_ADVERTISE: the last two octets of these.
const NO_EXPORT: u32 = 65_281;
const NO_ADVERTISE: u32 = 65_282;

/// What one community demands of the route server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    Deny(Asn),
    /// Without a statement about all others, only to the ASes so named.
    Allow(Asn),
    None,
    All,
    /// The announcer's AS so many times more in front of the path, at this AS or at all.
    Prepend(u8, Option<Asn>),
    NoExport(Option<Asn>),
    NoAdvertise(Option<Asn>),
    /// The exchange's own number, without a meaning on a member's route.
    Unknown,
}

/// Why a receiver may or may not have a route, as far as communities decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommunityReason {
    /// The route has NO_ADVERTISE.
    NoAdvertise,
    Denied,
    /// NO_EXPORT or NO_ADVERTISE is to be added for this AS, and all receivers have one object.
    Restricted,
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
            CommunityReason::Restricted => {
                "a community adds NO_EXPORT or NO_ADVERTISE for this AS, which needs `per_peer = \"readable\"` in [communities]"
            }
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
    /// The ASes that do not get it, since they were to have NO_EXPORT or NO_ADVERTISE and cannot.
    restricted: BTreeSet<Asn>,
}

impl Controls {
    /// Reads the communities of `attributes` at the route server of AS `rs`.
    #[must_use]
    pub fn read(attributes: &Attributes, rs: Asn) -> Self {
        let mut controls = Self {
            no_advertise: attributes.communities().any(|community| community == Community::NO_ADVERTISE),
            ..Self::default()
        };
        all(attributes, rs).for_each(|control| controls.add(control));
        controls
    }

    /// The same, where these ASes cannot have NO_EXPORT or NO_ADVERTISE added, as communities ask for them alone: they do not get the route.
    #[must_use]
    pub fn withholding(self, restricted: BTreeSet<Asn>) -> Self {
        Self { restricted, ..self }
    }

    /// Whether the members of `receiver` may have the route, and why.
    #[must_use]
    pub fn decide(&self, receiver: Asn) -> CommunityReason {
        if self.no_advertise {
            CommunityReason::NoAdvertise
        } else if self.denied.contains(&receiver) {
            CommunityReason::Denied
        } else if self.restricted.contains(&receiver) {
            CommunityReason::Restricted
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

    /// Whether the members of `receiver` would get the route without the NO_EXPORT or NO_ADVERTISE that is meant for them, which no rule
    /// overrides either.
    #[must_use]
    pub fn restricts(&self, receiver: Asn) -> bool {
        self.restricted.contains(&receiver)
    }

    fn add(&mut self, control: Control) {
        match control {
            Control::Deny(asn) => drop(self.denied.insert(asn)),
            Control::Allow(asn) => drop(self.allowed.insert(asn)),
            Control::None => self.to_nobody = true,
            Control::All => self.to_everybody = true,
            Control::Prepend(..) | Control::NoExport(_) | Control::NoAdvertise(_) | Control::Unknown => {}
        }
    }
}

/// What a standard community demands of the route server of AS `rs`, if it is one of its own.
#[must_use]
pub fn of_standard(community: Community, rs: Asn) -> Option<Control> {
    let (upper, lower) = (Asn(community.upper().into()), Asn(community.lower().into()));
    of_pair(upper, lower, rs)
}

/// What a large community demands of the route server of AS `rs`, if it is one of its own.
#[must_use]
pub fn of_large(community: LargeCommunity, rs: Asn) -> Option<Control> {
    if community.global != rs.0 {
        return None;
    }
    let peer = Asn(community.local2);
    let to = (peer.0 != 0).then_some(peer);
    Some(match (community.local1, to) {
        (0, None) => Control::None,
        (0, Some(peer)) => Control::Deny(peer),
        (1, None) => Control::All,
        (1, Some(peer)) => Control::Allow(peer),
        (101, to) => Control::Prepend(1, to),
        (102, to) => Control::Prepend(2, to),
        (103, to) => Control::Prepend(3, to),
        (NO_EXPORT, to) => Control::NoExport(to),
        (NO_ADVERTISE, to) => Control::NoAdvertise(to),
        _ => Control::Unknown,
    })
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
        (Asn(times @ 65_501..=65_503), local) if local == rs => Some(Control::Prepend((times - 65_500) as u8, None)),
        (Asn(times @ 65_511..=65_513), peer) => Some(Control::Prepend((times - 65_510) as u8, Some(peer))),
        (Asn(NO_EXPORT), local) => Some(Control::NoExport((local != rs).then_some(local))),
        (Asn(NO_ADVERTISE), local) => Some(Control::NoAdvertise((local != rs).then_some(local))),
        _ => None,
    }
}

/// The attributes without the communities that are the exchange's own, and with all else octet for octet as it was: what is
/// left says nothing about who else may have the route, or what it looks like there.
#[must_use]
pub fn strip(attributes: &Attributes, rs: Asn) -> Attributes {
    retain(attributes, rs, |_| false)
}

/// The attributes with those alone of the exchange's own communities of which `keeps` holds.
#[must_use]
pub(super) fn retain(attributes: &Attributes, rs: Asn, keeps: impl Fn(Control) -> bool + Copy) -> Attributes {
    let standard = |community| of_standard(community, rs).is_none_or(keeps);
    let extended = |community| of_extended(community, rs).is_none_or(keeps);
    let large = |community| of_large(community, rs).is_none_or(keeps);
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

/// What all communities of a route demand of the route server of AS `rs`, one by one.
pub(super) fn all(attributes: &Attributes, rs: Asn) -> impl Iterator<Item = Control> {
    let standard = attributes.communities().filter_map(move |community| of_standard(community, rs));
    let large = attributes.large_communities().filter_map(move |community| of_large(community, rs));
    let extended = attributes.extended_communities().filter_map(move |community| of_extended(community, rs));
    standard.chain(large).chain(extended)
}

//! Whether a route may be used at all, before any policy: what a route server of today checks, and what only a member
//! can check here, since the parties see no route.

use std::net::IpAddr;
use std::sync::LazyLock;

use wayleave_bgp::aspa::{Aspas, Flaw, PathState};
use wayleave_bgp::origins::{OriginState, Vrp, Vrps, origin};
use wayleave_bgp::{Attributes, Community, Ipv6NextHop, NextHop, SegmentKind};
use wayleave_core::{Afi, Asn, Prefix};

use crate::data::{Data, MemberLists};
use crate::directory::{DataRules, Profile, Slot, is_for_laboratories, reserved};

/// Hops of the longest AS path that is used, whatever the exchange's profile allows: our own limit. Paths of the Internet have
/// below 20 without prepending; route servers commonly refuse more than 32 or 64.
pub const MAX_PATH: usize = 64;

/// Why a route is not used. The announcer erred, but for [`Invalid::Loop`], which is no error.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Invalid {
    /// The AS path does not begin with the announcer's AS (RFC 4271 section 6.3, RFC 7948 section 4.5).
    #[error("{}, the announcer is {announcer}", first_as_words(*.found))]
    FirstAs {
        found: Option<Asn>,
        /// The announcer's AS.
        announcer: Asn,
    },
    /// There is no next hop for the prefix's family.
    #[error("no next hop for {0}")]
    NoNextHop(Afi),
    /// The next hop is not an address of the announcer's slot (RFC 7948 section 4.8).
    #[error("next hop {0} is not the announcer's")]
    NextHop(IpAddr),
    /// The prefix is special: [`Martians`].
    #[error("{prefix} lies in {block}, which is not routed")]
    Martian {
        prefix: Prefix,
        /// The block that it lies in.
        block: Prefix,
    },
    /// The prefix lies in one that the exchange's data refuse ([`Data::bogons`]).
    #[error("{prefix} lies in {block}, which the exchange's data list as not routed")]
    ListedBogon { prefix: Prefix, block: Prefix },
    /// The origin is not among those that the registries have for the announcer, or the data have no list of it.
    #[error("{}", irr_origin_as_words(*.origin, *.announcer, *.has_list))]
    IrrOrigin { origin: Option<Asn>, announcer: Asn, has_list: bool },
    /// The prefix is not among those that the registries have for the announcer, or the data have no list of it.
    #[error("{}", irr_prefix_as_words(.prefix, *.announcer, *.has_list))]
    IrrPrefix { prefix: Prefix, announcer: Asn, has_list: bool },
    /// The default route, which nobody may announce to everybody.
    #[error("{0} is the default route")]
    DefaultRoute(Prefix),
    /// The AS path is longer than the exchange's profile allows, or than [`MAX_PATH`].
    #[error("the AS path has {hops} hops, at most {most} are usual")]
    LongPath { hops: usize, most: usize },
    /// The AS path has an AS_SET (RFC 9774 section 3).
    #[error("the AS path has an AS_SET, which names no order of ASes")]
    AsSet,
    /// The AS path has segments of a confederation, which do not leave it (RFC 5065 section 5). They count as no hop and show
    /// no first AS, so that with them a path looks shorter than it is.
    #[error("the AS path has a segment of a confederation, which may not leave it")]
    Confederation,
    /// The profile allows no prefixes of this length (RFC 7454 section 6.1.3).
    #[error("{prefix} is not of the lengths that this exchange takes, {shortest} to {longest}")]
    PrefixLength { prefix: Prefix, shortest: u8, longest: u8 },
    /// A reserved AS number is on the path.
    #[error("the AS path has {asn}, which {by} reserves")]
    BogonAsn { asn: Asn, by: &'static str },
    /// A transit-free AS of the profile is behind the announcer on the path.
    #[error("the AS path has {0}, which buys transit from nobody: the announcer passes on what it learnt elsewhere")]
    TransitFree(Asn),
    /// The route has BLACKHOLE, and the profile does not offer it (RFC 7999).
    #[error("it has BLACKHOLE (65535:666), which this exchange does not offer")]
    NoBlackhole,
    /// The route has BLACKHOLE, and the profile does not let its announcer (RFC 7999 section 6).
    #[error("it has BLACKHOLE (65535:666), which this exchange does not let {0} announce")]
    BlackholeNotPermitted(Asn),
    /// The route carries OTC (Only to Customer), of this AS: it came from a provider, a peer or another route server of the
    /// announcer's, or of an AS before it (RFC 9234 section 5, of what a route server has from its client).
    #[error("it carries OTC of {0} (Only to Customer), so that it is a route leak")]
    Leak(Asn),
    /// The announcer has more prefixes of the family than the exchange's data let it have: all of them are left out for a while.
    #[error("its announcer has more than the {limit} prefixes of {afi} that it may have")]
    MaxPrefixes { afi: Afi, limit: u32 },
    /// The receiver's AS is on the path (RFC 4271 section 9.1.2).
    #[error("the path already has {0}")]
    Loop(Asn),
    /// The RPKI does not let the origin announce the prefix: the route is invalid (RFC 6811 section 2).
    #[error("RPKI-invalid: {} may not originate {prefix}; the RPKI has {vrp}", origin_as_words(*.origin))]
    Origin {
        prefix: Prefix,
        /// `None` if the path does not name it.
        origin: Option<Asn>,
        /// A VRP that covers the prefix ([`OriginState::Invalid`]).
        vrp: Vrp,
    },
    /// By the ASPA records of the RPKI somebody on the path passed the route on that may not have
    /// (draft-ietf-sidrops-aspa-verification, upstream paths).
    #[error("ASPA-invalid: {0}")]
    Aspa(Flaw),
}

fn origin_as_words(origin: Option<Asn>) -> String {
    origin.map_or_else(|| "a path that ends with a set".to_owned(), |asn| asn.to_string())
}

fn irr_origin_as_words(origin: Option<Asn>, announcer: Asn, has_list: bool) -> String {
    match has_list {
        true => format!("{} is no origin that the routing registries have for {announcer}", origin_as_words(origin)),
        false => format!("the exchange's data have no list of the origins of {announcer}"),
    }
}

fn irr_prefix_as_words(prefix: &Prefix, announcer: Asn, has_list: bool) -> String {
    match has_list {
        true => format!("{prefix} is no prefix that the routing registries have for {announcer}"),
        false => format!("the exchange's data have no list of the prefixes of {announcer}"),
    }
}

fn first_as_words(found: Option<Asn>) -> String {
    match found {
        Some(asn) => format!("the AS path begins with {asn}"),
        None => "the AS path is empty, or begins with a set".to_owned(),
    }
}

/// Which special prefixes are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Martians {
    /// Everything that RFC 6890 and its registries call not globally reachable, and multicast.
    #[default]
    Refuse,
    /// The same, but documentation prefixes (RFC 5737, RFC 3849, RFC 9637) may be used: for labs.
    AllowDocumentation,
}

/// What is checked of every route: as a member is configured, and as both operators signed. Neither loosens the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouteRules<'a> {
    pub martians: Martians,
    /// Take routes with an AS_SET, which RFC 9774 has treated as withdrawn.
    pub accept_as_set: bool,
    /// Of the member set in force.
    pub profile: Option<&'a Profile>,
    /// Do not look at OTC (RFC 9234): of what the own router announces, where its session has no role. Never of what others announce.
    pub ignore_otc: bool,
    /// What data say, while some are in force.
    pub data: Option<DataInForce<'a>>,
}

/// Data that count, and what is refused by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataInForce<'a> {
    pub rules: &'a DataRules,
    pub data: &'a Data,
}

impl From<Martians> for RouteRules<'_> {
    fn from(martians: Martians) -> Self {
        Self { martians, ..Self::default() }
    }
}

impl RouteRules<'_> {
    /// Whether routes with an AS_SET are taken.
    #[must_use]
    pub fn accepts_as_set(self) -> bool {
        self.accept_as_set && self.profile.is_none_or(|profile| !profile.refuse_as_set)
    }

    /// Hops of the longest AS path.
    #[must_use]
    pub fn max_hops(self) -> usize {
        self.profile.map_or(MAX_PATH, |profile| usize::from(profile.max_hops).min(MAX_PATH))
    }
}

/// Blocks whose prefixes are refused.
const REFUSED: [&str; 26] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/8",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    // Documentation.
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "2001:db8::/32",
    "3fff::/20",
    // 6bone, returned (RFC 3701).
    "3ffe::/16",
];

/// Where documentation starts and ends in [`REFUSED`].
const DOCUMENTATION: std::ops::Range<usize> = 20..25;

/// More specific allocations of refused blocks that are globally reachable.
const REACHABLE: [&str; 9] = [
    "192.0.0.9/32",
    "192.0.0.10/32",
    "64:ff9b::/96",
    "2001::/32",
    "2001:1::/32",
    "2001:3::/32",
    "2001:4:112::/48",
    "2001:20::/28",
    "2001:30::/28",
];

static REFUSED_BLOCKS: LazyLock<Vec<Prefix>> = LazyLock::new(|| parse(&REFUSED));
static REACHABLE_BLOCKS: LazyLock<Vec<Prefix>> = LazyLock::new(|| parse(&REACHABLE));

fn parse(blocks: &[&str]) -> Vec<Prefix> {
    blocks.iter().map(|block| block.parse().expect("a constant prefix")).collect()
}

impl Martians {
    /// The refused block that `prefix` lies in.
    #[must_use]
    pub fn block_of(self, prefix: &Prefix) -> Option<Prefix> {
        if REACHABLE_BLOCKS.iter().any(|block| block.contains(prefix)) {
            return None;
        }
        let allowed = |at: &usize| self == Martians::AllowDocumentation && DOCUMENTATION.contains(at);
        let block = REFUSED_BLOCKS.iter().enumerate().filter(|(at, _)| !allowed(at)).map(|(_, block)| block);
        block.copied().find(|block| block.contains(prefix))
    }
}

/// Whether the member in `announcer` may announce a route to `prefix` with `attributes`, as they stand in the blob. Its
/// own proxy checks it before it announces, every receiver checks it after it has opened the blob.
pub fn validate<'a>(
    prefix: Prefix,
    attributes: &Attributes,
    announcer: &Slot,
    rules: impl Into<RouteRules<'a>>,
) -> Result<(), Invalid> {
    let rules = rules.into();
    check_prefix(prefix, rules)?;
    check_blackhole(attributes, announcer.asn, rules)?;
    check_prefix_length(prefix, attributes, rules)?;
    check_as_set(attributes, rules)?;
    check_confederation(attributes)?;
    check_first_as(attributes, announcer.asn)?;
    check_next_hop(prefix.afi(), attributes, announcer)?;
    check_bogon_asns(attributes, rules)?;
    check_transit_free(attributes, announcer.asn, rules)?;
    check_length(attributes, rules)?;
    check_otc(attributes, rules)?;
    check_irr_origin(attributes, announcer.asn, rules)
}

/// A check that each receiver makes, and the announcer's proxy before it announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    Prefix,
    Blackhole,
    PrefixLength,
    AsSet,
    Confederation,
    FirstAs,
    NextHop,
    BogonAsn,
    TransitFree,
    PathLength,
    Otc,
    IrrOrigin,
}

impl Check {
    /// All of them, in the order in which [`validate`] makes them; those of [`validate_known`] come behind.
    pub const ALL: [Self; 12] = [
        Self::Prefix,
        Self::Blackhole,
        Self::PrefixLength,
        Self::AsSet,
        Self::Confederation,
        Self::FirstAs,
        Self::NextHop,
        Self::BogonAsn,
        Self::TransitFree,
        Self::PathLength,
        Self::Otc,
        Self::IrrOrigin,
    ];

    /// Whether these rules have something that it looks at.
    #[must_use]
    pub fn is_of(self, rules: RouteRules<'_>) -> bool {
        match self {
            Self::Blackhole | Self::PrefixLength => rules.profile.is_some(),
            Self::BogonAsn => rules.profile.is_some_and(|profile| profile.refuse_bogon_asns),
            Self::TransitFree => rules.profile.is_some_and(|profile| !profile.transit_free.is_empty()),
            Self::IrrOrigin => rules.data.is_some_and(|in_force| in_force.rules.irr_origin),
            Self::Prefix
            | Self::AsSet
            | Self::Confederation
            | Self::FirstAs
            | Self::NextHop
            | Self::PathLength
            | Self::Otc => true,
        }
    }

    /// Makes this check alone.
    pub fn make(
        self,
        prefix: Prefix,
        attributes: &Attributes,
        announcer: &Slot,
        rules: RouteRules<'_>,
    ) -> Result<(), Invalid> {
        match self {
            Self::Prefix => check_prefix(prefix, rules),
            Self::Blackhole => check_blackhole(attributes, announcer.asn, rules),
            Self::PrefixLength => check_prefix_length(prefix, attributes, rules),
            Self::AsSet => check_as_set(attributes, rules),
            Self::Confederation => check_confederation(attributes),
            Self::FirstAs => check_first_as(attributes, announcer.asn),
            Self::NextHop => check_next_hop(prefix.afi(), attributes, announcer),
            Self::BogonAsn => check_bogon_asns(attributes, rules),
            Self::TransitFree => check_transit_free(attributes, announcer.asn, rules),
            Self::PathLength => check_length(attributes, rules),
            Self::Otc => check_otc(attributes, rules),
            Self::IrrOrigin => check_irr_origin(attributes, announcer.asn, rules),
        }
    }
}

/// The state of a route by RFC 6811 section 2. Of one with BLACKHOLE that the profile offers the origin alone is compared: it is longer
/// than what is announced otherwise, and nobody has ROAs for that.
#[must_use]
pub fn origin_state(prefix: Prefix, attributes: &Attributes, vrps: &Vrps, rules: RouteRules<'_>) -> OriginState {
    let origin = origin(&attributes.as_path());
    let is_offered = rules.profile.is_some_and(|profile| profile.blackhole.is_some());
    match vrps.state(&prefix, origin) {
        // One of the origin's own, if any covers the prefix.
        OriginState::Invalid(vrp)
            if vrp.asn.0 != 0 && Some(vrp.asn) == origin && is_offered && is_blackhole(attributes) =>
        {
            OriginState::Valid(vrp)
        }
        state => state,
    }
}

/// Whether a route's origin may announce the prefix, as far as the RPKI says (RFC 6811): not if it is invalid. A receiver with such
/// data checks it after [`validate_for`], and an announcer after [`validate`]; without data (`None`) nothing is refused.
pub fn validate_origin(
    prefix: Prefix,
    attributes: &Attributes,
    vrps: Option<&Vrps>,
    rules: RouteRules<'_>,
) -> Result<(), Invalid> {
    match vrps.map(|vrps| origin_state(prefix, attributes, vrps, rules)) {
        Some(OriginState::Invalid(vrp)) => Err(Invalid::Origin { prefix, origin: origin(&attributes.as_path()), vrp }),
        _ => Ok(()),
    }
}

/// The state of a route's path by its ASPA records (draft-ietf-sidrops-aspa-verification): all members are clients of a transparent route
/// server, so that what its client announces, and what its client receives, are upstream paths. `None` where there are no records at all.
#[must_use]
pub fn path_state(attributes: &Attributes, aspas: &Aspas) -> Option<PathState> {
    (!aspas.is_empty()).then(|| aspas.upstream(&attributes.as_path()))
}

/// Whether the profile, with the records that are known, lets the path pass: not if it is invalid, and the profile refuses that. It is
/// checked after [`validate_origin`]; without records nothing is refused.
pub fn validate_aspa(attributes: &Attributes, aspas: Option<&Aspas>, rules: RouteRules<'_>) -> Result<(), Invalid> {
    if !rules.profile.is_some_and(|profile| profile.refuse_aspa_invalid) {
        return Ok(());
    }
    match aspas.and_then(|aspas| path_state(attributes, aspas)) {
        Some(PathState::Invalid(flaw)) => Err(Invalid::Aspa(flaw)),
        _ => Ok(()),
    }
}

/// What the RPKI says, as far as it is known.
#[derive(Clone, Copy, Default, Debug)]
pub struct Known<'a> {
    pub vrps: Option<&'a Vrps>,
    pub aspas: Option<&'a Aspas>,
}

/// What is checked after [`validate`] and [`validate_for`], by what is known beside the route: its origin and its path by the RPKI, and its
/// prefix by the routing registries, which a route that is valid by the RPKI need not be in where the profile says so.
pub fn validate_known(
    prefix: Prefix,
    attributes: &Attributes,
    announcer: &Slot,
    Known { vrps, aspas }: Known<'_>,
    rules: RouteRules<'_>,
) -> Result<(), Invalid> {
    validate_origin(prefix, attributes, vrps, rules)?;
    validate_aspa(attributes, aspas, rules)?;
    check_irr_prefix(prefix, attributes, announcer.asn, vrps, rules)
}

/// [`validate_known`], of the member's own route. Where a route that is valid by the RPKI need not be in the list of prefixes, and this
/// member does not know what is valid, receivers decide.
pub fn validate_own_known(
    prefix: Prefix,
    attributes: &Attributes,
    own: &Slot,
    known: Known<'_>,
    rules: RouteRules<'_>,
) -> Result<(), Invalid> {
    let is_left_to_receivers =
        known.vrps.is_none() && rules.data.is_some_and(|in_force| in_force.rules.rpki_before_irr);
    match validate_known(prefix, attributes, own, known, rules) {
        Err(Invalid::IrrPrefix { .. }) if is_left_to_receivers => Ok(()),
        checked => checked,
    }
}

/// [`validate`], and that the receiver's AS is not on the path.
pub fn validate_for<'a>(
    receiver: Asn,
    prefix: Prefix,
    attributes: &Attributes,
    announcer: &Slot,
    rules: impl Into<RouteRules<'a>>,
) -> Result<(), Invalid> {
    validate(prefix, attributes, announcer, rules)?;
    if attributes.as_path().contains(receiver) { Err(Invalid::Loop(receiver)) } else { Ok(()) }
}

fn check_prefix(prefix: Prefix, rules: RouteRules<'_>) -> Result<(), Invalid> {
    if prefix.len() == 0 {
        return Err(Invalid::DefaultRoute(prefix));
    }
    if let Some(block) = rules.martians.block_of(&prefix) {
        return Err(Invalid::Martian { prefix, block });
    }
    match rules.data.and_then(|in_force| in_force.data.bogon_of(&prefix)) {
        Some(block) => Err(Invalid::ListedBogon { prefix, block }),
        None => Ok(()),
    }
}

/// What the data say of an announcer, and whether it is refused without.
fn lists_of(announcer: Asn, rules: RouteRules<'_>) -> Option<(&DataRules, Option<&MemberLists>)> {
    rules.data.map(|in_force| (in_force.rules, in_force.data.of(announcer)))
}

fn check_irr_origin(attributes: &Attributes, announcer: Asn, rules: RouteRules<'_>) -> Result<(), Invalid> {
    let Some((rules, lists)) = lists_of(announcer, rules).filter(|(rules, _)| rules.irr_origin) else { return Ok(()) };
    let origin = origin(&attributes.as_path());
    let origins = lists.and_then(|lists| lists.origins.as_deref());
    let is_listed = |origins: &[Asn]| origin.is_some_and(|origin| origins.binary_search(&origin).is_ok());
    if origins.map_or(!rules.refuse_without_list, is_listed) {
        Ok(())
    } else {
        Err(Invalid::IrrOrigin { origin, announcer, has_list: origins.is_some() })
    }
}

/// Of a route with BLACKHOLE that the profile offers a longer prefix than the registries have is enough, as nobody registers those.
fn check_irr_prefix(
    prefix: Prefix,
    attributes: &Attributes,
    announcer: Asn,
    vrps: Option<&Vrps>,
    rules: RouteRules<'_>,
) -> Result<(), Invalid> {
    let Some((of_data, lists)) = lists_of(announcer, rules).filter(|(of_data, _)| of_data.irr_prefix) else {
        return Ok(());
    };
    let is_valid = |vrps: &Vrps| matches!(origin_state(prefix, attributes, vrps, rules), OriginState::Valid(_));
    if of_data.rpki_before_irr && vrps.is_some_and(is_valid) {
        return Ok(());
    }
    let prefixes = lists.and_then(|lists| lists.prefixes.as_ref());
    let is_offered = rules.profile.is_some_and(|profile| profile.blackhole.is_some()) && is_blackhole(attributes);
    let is_listed = prefixes.map_or(!of_data.refuse_without_list, |list| {
        list.allows(&prefix) || (is_offered && list.covering(&prefix).is_some())
    });
    if is_listed { Ok(()) } else { Err(Invalid::IrrPrefix { prefix, announcer, has_list: prefixes.is_some() }) }
}

/// Whether the route asks its receivers to drop packets (RFC 7999).
#[must_use]
pub fn is_blackhole(attributes: &Attributes) -> bool {
    attributes.communities().any(|community| community == Community::BLACKHOLE)
}

/// A valid route as its receiver's router gets it. One with BLACKHOLE leads to where the exchange drops packets, and does not
/// leave the receiver's network (RFC 7999 section 3.2).
#[must_use]
pub fn for_router(afi: Afi, attributes: Attributes, rules: RouteRules<'_>) -> Attributes {
    let blackhole = rules.profile.and_then(|profile| profile.blackhole.as_ref());
    let Some(blackhole) = blackhole.filter(|_| is_blackhole(&attributes)) else { return attributes };
    let mut editor = attributes.edit();
    match afi {
        Afi::Ipv4 => {
            if let Some(address) = blackhole.next_hop4 {
                editor.ipv4_next_hop(address);
            }
        }
        Afi::Ipv6 => {
            if let Some(global) = blackhole.next_hop6 {
                editor.ipv6_next_hop(Some(Ipv6NextHop { global, link_local: None }));
            }
        }
    }
    let mut communities: Vec<Community> = attributes.communities().collect();
    if !communities.contains(&Community::NO_EXPORT) {
        communities.push(Community::NO_EXPORT);
        editor.communities(&communities);
    }
    editor.finish()
}

fn check_blackhole(attributes: &Attributes, announcer: Asn, rules: RouteRules<'_>) -> Result<(), Invalid> {
    let Some(profile) = rules.profile.filter(|_| is_blackhole(attributes)) else { return Ok(()) };
    match &profile.blackhole {
        None => Err(Invalid::NoBlackhole),
        Some(blackhole) if blackhole.permits(announcer) => Ok(()),
        Some(_) => Err(Invalid::BlackholeNotPermitted(announcer)),
    }
}

/// Only a route with BLACKHOLE may be longer than usual, up to one host.
fn check_prefix_length(prefix: Prefix, attributes: &Attributes, rules: RouteRules<'_>) -> Result<(), Invalid> {
    let Some(profile) = rules.profile else { return Ok(()) };
    let lengths = profile.lengths(prefix.afi());
    let is_host_allowed = profile.blackhole.is_some() && is_blackhole(attributes);
    let (shortest, longest) = (lengths.shortest, if is_host_allowed { prefix.afi().bits() } else { lengths.longest });
    if (shortest..=longest).contains(&prefix.len()) {
        Ok(())
    } else {
        Err(Invalid::PrefixLength { prefix, shortest, longest })
    }
}

fn check_bogon_asns(attributes: &Attributes, rules: RouteRules<'_>) -> Result<(), Invalid> {
    if !rules.profile.is_some_and(|profile| profile.refuse_bogon_asns) {
        return Ok(());
    }
    let is_allowed = |asn: Asn| rules.martians == Martians::AllowDocumentation && is_for_laboratories(asn);
    let mut bogons = attributes.as_path().asns().filter_map(|asn| Some((asn, reserved(asn)?)));
    bogons.find(|(asn, _)| !is_allowed(*asn)).map_or(Ok(()), |(asn, by)| Err(Invalid::BogonAsn { asn, by }))
}

/// A member that is itself such an AS announces its own path, prepended or not.
fn check_transit_free(attributes: &Attributes, announcer: Asn, rules: RouteRules<'_>) -> Result<(), Invalid> {
    let Some(profile) = rules.profile else { return Ok(()) };
    let is_transit_free = |asn: &Asn| *asn != announcer && profile.transit_free.binary_search(asn).is_ok();
    attributes.as_path().asns().find(is_transit_free).map_or(Ok(()), |asn| Err(Invalid::TransitFree(asn)))
}

fn check_as_set(attributes: &Attributes, rules: RouteRules<'_>) -> Result<(), Invalid> {
    let has_set = attributes.as_path().segments().any(|segment| segment.kind == SegmentKind::Set);
    if has_set && !rules.accepts_as_set() { Err(Invalid::AsSet) } else { Ok(()) }
}

/// No setting takes them: neither the announcer nor the receiver of a route is in the other's confederation.
fn check_confederation(attributes: &Attributes) -> Result<(), Invalid> {
    let has_one = attributes.as_path().segments().any(|segment| segment.kind.is_confederation());
    if has_one { Err(Invalid::Confederation) } else { Ok(()) }
}

fn check_first_as(attributes: &Attributes, announcer: Asn) -> Result<(), Invalid> {
    match attributes.as_path().first_asn() {
        Some(asn) if asn == announcer => Ok(()),
        found => Err(Invalid::FirstAs { found, announcer }),
    }
}

fn check_length(attributes: &Attributes, rules: RouteRules<'_>) -> Result<(), Invalid> {
    let (hops, most) = (attributes.as_path().length(), rules.max_hops());
    if hops > most { Err(Invalid::LongPath { hops, most }) } else { Ok(()) }
}

/// RFC 9234 section 5: a route with OTC that a route server has from its client is a leak.
fn check_otc(attributes: &Attributes, rules: RouteRules<'_>) -> Result<(), Invalid> {
    match attributes.only_to_customer().filter(|_| !rules.ignore_otc) {
        Some(asn) => Err(Invalid::Leak(asn)),
        None => Ok(()),
    }
}

fn check_next_hop(afi: Afi, attributes: &Attributes, announcer: &Slot) -> Result<(), Invalid> {
    let owned = |address: IpAddr| if announcer.owns(address) { Ok(()) } else { Err(Invalid::NextHop(address)) };
    match attributes.next_hop(afi).ok_or(Invalid::NoNextHop(afi))? {
        NextHop::V4(address) => owned(address.into()),
        NextHop::V6(next_hop) => {
            owned(next_hop.global.into())?;
            next_hop.link_local.map_or(Ok(()), |address| owned(address.into()))
        }
    }
}

/// Whether a router can have `address` on the exchange's network, so that a slot may have it. Link-local addresses can be, but
/// mean nothing beyond one router's own link.
#[must_use]
pub fn can_be_next_hop(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            first != 0 && first != 127 && first < 224
        }
        IpAddr::V6(v6) => {
            // ::/96 and ::ffff:0:0/96 stand for IPv4 addresses (RFC 4291 section 2.5.5); `::` and `::1` are among them.
            let is_ipv4 = v6.to_ipv4_mapped().is_some() || u128::from(v6) >> 32 == 0;
            !v6.is_multicast() && !is_ipv4
        }
    }
}

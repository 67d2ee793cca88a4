//! The OPEN exchange: what ours contains, whether the peer's is acceptable, and what both agree on.

use std::net::Ipv4Addr;
use std::time::Duration;

use wayleave_core::{Afi, Asn};

use super::{Config, HoldTime, Retain, Role};
use crate::notification::{code, open};
use crate::{
    AddPath, AddPathEntry, AddPathMode, Capability, GracefulRestartFamily, LongLivedFamily, Notification, Open,
    SessionParams,
};

const FAMILIES: [Afi; 2] = [Afi::Ipv4, Afi::Ipv6];

/// The Restart State bit of the graceful restart capability's flags, as the codec gives them (RFC 4724 section 3).
const RESTARTED: u8 = 0x8;

/// Its Graceful Notification bit (RFC 8538 section 2).
const NOTIFICATIONS: u8 = 0x4;

/// The Forwarding State bit of one of its families.
const FORWARDING_KEPT: u8 = 0x80;

/// Longest restart time that the capability's twelve bits hold.
const MAX_RESTART_TIME: u16 = 4_095;

/// The outcome of both OPENs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Negotiated {
    pub(super) params: SessionParams,
    pub(super) peer_id: Ipv4Addr,
    pub(super) hold_time: HoldTime,
    pub(super) route_refresh: bool,
    pub(super) enhanced_route_refresh: bool,
    pub(super) end_of_rib: bool,
    pub(super) retain: Option<Retain>,
    pub(super) peer_restarted: bool,
    pub(super) forwarding_kept: Vec<Afi>,
    pub(super) peer_capabilities: Vec<Capability>,
}

/// Our OPEN.
pub(super) fn our_open(config: &Config) -> Open {
    let offer = &config.offer;
    let mut capabilities = Vec::new();
    let families = FAMILIES.into_iter().filter(|&afi| offers_family(config, afi));
    capabilities.extend(families.map(Capability::unicast));
    if offer.route_refresh {
        capabilities.push(Capability::RouteRefresh);
    }
    if offer.extended_message {
        capabilities.push(Capability::ExtendedMessage);
    }
    if let Some(role) = config.role {
        capabilities.push(Capability::Role(role.octet()));
    }
    if let Some(restart) = &offer.graceful_restart {
        capabilities.push(Capability::GracefulRestart {
            flags: if restart.restarted { RESTARTED } else { 0 }
                | if restart.notifications { NOTIFICATIONS } else { 0 },
            restart_time: restart.restart_time.min(MAX_RESTART_TIME),
            families: restart.families.iter().map(|&afi| restart_family(afi)).collect(),
        });
    }
    if offer.four_octet_as {
        capabilities.push(Capability::FourOctetAs(config.local_asn));
    }
    let add_path: Vec<AddPathEntry> = FAMILIES.into_iter().filter_map(|afi| add_path_entry(config, afi)).collect();
    if !add_path.is_empty() {
        capabilities.push(Capability::AddPath(add_path));
    }
    if offer.enhanced_route_refresh {
        capabilities.push(Capability::EnhancedRouteRefresh);
    }
    if offer.long_lived {
        capabilities.push(Capability::LongLivedGracefulRestart(Vec::new()));
    }
    capabilities.extend(offer.more.iter().cloned());
    Open { asn: config.local_asn, hold_time: config.hold_time.secs(), identifier: config.router_id, capabilities }
}

/// Judges the peer's OPEN (RFC 4271 section 6.2, RFC 6286, RFC 9234 section 4.2) and combines it with ours. The error
/// is what to tell the peer.
pub(super) fn negotiate(config: &Config, peer: &Open) -> Result<Negotiated, Notification> {
    check_asn(config, peer)?;
    check_identifier(config, peer)?;
    let hold_time = HoldTime::from_secs(peer.hold_time)
        .ok_or_else(|| Notification::new(code::OPEN, open::UNACCEPTABLE_HOLD_TIME))?;
    check_role(config, peer)?;
    let params = params(config, peer);
    check_families(config, &params)?;
    let both = |ours: bool, capability: Capability| ours && peer.has(&capability);
    let restart = graceful_restart(config, peer, &params);
    Ok(Negotiated {
        params,
        peer_id: peer.identifier,
        hold_time: hold_time.min(config.hold_time),
        route_refresh: both(config.offer.route_refresh, Capability::RouteRefresh),
        enhanced_route_refresh: both(config.offer.enhanced_route_refresh, Capability::EnhancedRouteRefresh),
        end_of_rib: restart.is_some(),
        retain: restart.as_ref().and_then(|restart| restart.retain.clone()),
        peer_restarted: restart.as_ref().is_some_and(|restart| restart.restarted),
        forwarding_kept: restart.map(|restart| restart.forwarding_kept).unwrap_or_default(),
        peer_capabilities: peer.capabilities.clone(),
    })
}

/// What the codec needs before the peer's OPEN has come: the bounds of RFC 4271.
pub(super) fn params_before_open(config: &Config) -> SessionParams {
    SessionParams::new(config.local_asn, Asn(0))
}

fn check_asn(config: &Config, peer: &Open) -> Result<(), Notification> {
    match config.peer_asn.accepts(peer.asn) {
        true => Ok(()),
        false => Err(Notification::new(code::OPEN, open::BAD_PEER_AS)),
    }
}

/// Not zero, and not ours within one AS (RFC 6286 section 2.2).
fn check_identifier(config: &Config, peer: &Open) -> Result<(), Notification> {
    let ours = peer.identifier == config.router_id && peer.asn == config.local_asn;
    match peer.identifier.is_unspecified() || ours {
        true => Err(Notification::new(code::OPEN, open::BAD_IDENTIFIER)),
        false => Ok(()),
    }
}

/// The roles that the peer's OPEN states; one, if it keeps to RFC 9234 section 4.1.
pub(super) fn stated_roles(capabilities: &[Capability]) -> impl Iterator<Item = u8> {
    capabilities.iter().filter_map(|capability| match capability {
        Capability::Role(role) => Some(*role),
        _ => None,
    })
}

/// RFC 9234 section 4.2: both state a role and they do not fit, or the peer states two, or none in strict mode. What it states
/// that does not fit, and what it should.
pub(super) fn role_mismatch(config: &Config, peer: &Open) -> Option<(Option<u8>, Role)> {
    let expected = config.role?.counterpart();
    let mut theirs = stated_roles(&peer.capabilities).peekable();
    if theirs.peek().is_none() {
        return config.strict_role.then_some((None, expected));
    }
    theirs.find(|stated| *stated != expected.octet()).map(|stated| (Some(stated), expected))
}

fn check_role(config: &Config, peer: &Open) -> Result<(), Notification> {
    match role_mismatch(config, peer) {
        Some(_) => Err(Notification::new(code::OPEN, open::ROLE_MISMATCH)),
        None => Ok(()),
    }
}

/// A session without any common family is of no use; the data names our families (RFC 5492 section 5).
fn check_families(config: &Config, params: &SessionParams) -> Result<(), Notification> {
    if params.ipv4_unicast || params.ipv6_unicast {
        return Ok(());
    }
    let wanted = FAMILIES.into_iter().filter(|&afi| offers_family(config, afi));
    let data: Vec<u8> = wanted.flat_map(|afi| [1, 4, 0, afi.code() as u8, 0, 1]).collect();
    Err(Notification::with_data(code::OPEN, open::UNSUPPORTED_CAPABILITY, data))
}

fn params(config: &Config, peer: &Open) -> SessionParams {
    let offer = &config.offer;
    let external = config.local_asn != peer.asn;
    let add_path = |we: fn(super::AddPathOffer) -> bool, they: [AddPathMode; 2]| {
        let has = |afi| we(offer.add_path(afi)) && peer.add_path(afi).is_some_and(|mode| they.contains(&mode));
        AddPath { ipv4: has(Afi::Ipv4), ipv6: has(Afi::Ipv6) }
    };
    SessionParams {
        local_asn: config.local_asn,
        peer_asn: peer.asn,
        external: external && !config.confederation,
        confederation: external && config.confederation,
        four_octet_as: offer.four_octet_as && peer.has_four_octet_as(),
        extended_message: offer.extended_message && peer.has(&Capability::ExtendedMessage),
        ipv4_unicast: offers_family(config, Afi::Ipv4) && peer.has_family(Afi::Ipv4),
        ipv6_unicast: offers_family(config, Afi::Ipv6) && peer.has_family(Afi::Ipv6),
        add_path_receive: add_path(|offer| offer.receive, [AddPathMode::Send, AddPathMode::Both]),
        add_path_send: add_path(|offer| offer.send, [AddPathMode::Receive, AddPathMode::Both]),
        withholds_stale: config.withholds_stale && long_lived(peer).is_none(),
        enforce_first_as: config.enforce_first_as,
    }
}

struct PeerRestart {
    restarted: bool,
    retain: Option<Retain>,
    forwarding_kept: Vec<Afi>,
}

/// The peer's long-lived graceful restart; the last capability counts, and only beside one of graceful restart (RFC 9494 section 3.1).
fn long_lived(peer: &Open) -> Option<&[LongLivedFamily]> {
    let of = |wanted: fn(&Capability) -> Option<&[LongLivedFamily]>| peer.capabilities.iter().rev().find_map(wanted);
    of(|capability| matches!(capability, Capability::GracefulRestart { .. }).then_some(&[]))?;
    of(|capability| match capability {
        Capability::LongLivedGracefulRestart(families) => Some(families),
        _ => None,
    })
}

/// The peer's graceful restart; the last capability counts (RFC 4724 section 3).
fn graceful_restart(config: &Config, peer: &Open, params: &SessionParams) -> Option<PeerRestart> {
    let (flags, restart_time, families) = peer.capabilities.iter().rev().find_map(|capability| match capability {
        Capability::GracefulRestart { flags, restart_time, families } => Some((*flags, *restart_time, families)),
        _ => None,
    })?;
    let agreed = |flag: u8| -> Vec<Afi> {
        let has = |afi: Afi, family: &GracefulRestartFamily| {
            (family.afi, family.safi) == (afi.code(), 1) && family.flags & flag == flag
        };
        let agreed = FAMILIES.into_iter().filter(|&afi| params.has_family(afi));
        agreed.filter(|&afi| families.iter().any(|family| has(afi, family))).collect()
    };
    let kept = agreed(0);
    let asked = long_lived(peer).filter(|_| config.offer.long_lived).unwrap_or_default();
    let of = |afi: Afi| move |family: &&LongLivedFamily| (family.afi, family.safi) == (afi.code(), 1);
    let agreed_long = FAMILIES.into_iter().filter(|&afi| params.has_family(afi));
    let long_lived: Vec<(Afi, Duration)> = agreed_long
        .filter_map(|afi| Some((afi, asked.iter().rfind(of(afi))?.stale_time)))
        .filter(|(_, seconds)| *seconds > 0)
        .map(|(afi, seconds)| (afi, Duration::from_secs(seconds.into())))
        .collect();
    let notifications = flags & NOTIFICATIONS != 0
        && config.offer.graceful_restart.as_ref().is_some_and(|restart| restart.notifications);
    let restart_time = Duration::from_secs(u64::from(restart_time));
    let retain = (!kept.is_empty() || !long_lived.is_empty()).then_some(Retain {
        families: kept,
        restart_time,
        long_lived,
        notifications,
    });
    // A family of either capability may say so (RFC 9494 section 3.1).
    let mut forwarding_kept = agreed(FORWARDING_KEPT);
    let kept_long = |afi: &Afi| asked.iter().rfind(of(*afi)).is_some_and(|family| family.flags & FORWARDING_KEPT != 0);
    let more = FAMILIES.into_iter().filter(|afi| params.has_family(*afi) && kept_long(afi));
    forwarding_kept.extend(more.filter(|afi| !agreed(FORWARDING_KEPT).contains(afi)));
    Some(PeerRestart { restarted: flags & RESTARTED != 0, retain, forwarding_kept })
}

fn offers_family(config: &Config, afi: Afi) -> bool {
    match afi {
        Afi::Ipv4 => config.offer.ipv4_unicast,
        Afi::Ipv6 => config.offer.ipv6_unicast,
    }
}

fn add_path_entry(config: &Config, afi: Afi) -> Option<AddPathEntry> {
    let offer = config.offer.add_path(afi);
    let mode = match (offer.receive, offer.send) {
        (false, false) => return None,
        (true, false) => AddPathMode::Receive,
        (false, true) => AddPathMode::Send,
        (true, true) => AddPathMode::Both,
    };
    offers_family(config, afi).then_some(AddPathEntry { afi: afi.code(), safi: 1, mode })
}

/// We are no forwarder: what forwards our routes is the member's router, which lives on while we restart.
fn restart_family(afi: Afi) -> GracefulRestartFamily {
    GracefulRestartFamily { afi: afi.code(), safi: 1, flags: FORWARDING_KEPT }
}

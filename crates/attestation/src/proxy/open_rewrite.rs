//! What one end's OPEN becomes towards the other end.

use std::time::Duration;

use wayleave_bgp::session::{AddPathOffer, Config, GracefulRestartOffer, HoldTime, Offer, PeerAsn, Role};
use wayleave_bgp::{AddPathMode, Capability, Open};
use wayleave_core::Afi;

/// The session towards a peer whose OPEN is welcome if it is of `peer_asn`, in which we pass for whoever sent `open`; `more` are capabilities of our
/// own.
#[must_use]
pub fn config_towards(peer_asn: PeerAsn, open: &Open, more: Vec<Capability>) -> Config {
    let has = |capability: Capability| open.has(&capability);
    let restart = open.capabilities.iter().any(|capability| matches!(capability, Capability::GracefulRestart { .. }));
    let role = open.capabilities.iter().find_map(|capability| match capability {
        Capability::Role(octet) => role_of(*octet),
        _ => None,
    });
    Config {
        // The decoder refused one and two seconds.
        hold_time: HoldTime::from_secs(open.hold_time).unwrap_or_default(),
        passive: true,
        offer: Offer {
            ipv4_unicast: open.has_family(Afi::Ipv4),
            ipv6_unicast: open.has_family(Afi::Ipv6),
            four_octet_as: open.has_four_octet_as(),
            route_refresh: has(Capability::RouteRefresh),
            enhanced_route_refresh: has(Capability::EnhancedRouteRefresh),
            extended_message: has(Capability::ExtendedMessage),
            add_path_ipv4: add_path(open, Afi::Ipv4),
            add_path_ipv6: add_path(open, Afi::Ipv6),
            // Without families it promises End-of-RIB and nothing else.
            graceful_restart: restart.then(GracefulRestartOffer::default),
            long_lived: false,
            more,
        },
        role,
        transparent: true,
        // A failed attempt is retried by the pair, which makes a new session each time.
        idle_hold: Duration::from_secs(120),
        ..Config::new(open.asn, open.identifier, peer_asn)
    }
}

fn role_of(octet: u8) -> Option<Role> {
    [Role::Provider, Role::RouteServer, Role::RouteServerClient, Role::Customer, Role::Peer]
        .into_iter()
        .find(|role| role.octet() == octet)
}

fn add_path(open: &Open, afi: Afi) -> AddPathOffer {
    let mode = open.add_path(afi);
    AddPathOffer {
        receive: matches!(mode, Some(AddPathMode::Receive | AddPathMode::Both)),
        send: matches!(mode, Some(AddPathMode::Send | AddPathMode::Both)),
    }
}

#[cfg(test)]
mod tests {
    use wayleave_core::Asn;

    use super::*;

    #[test]
    fn the_open_of_one_end_goes_to_the_other_but_for_what_a_proxy_cannot_keep() {
        let open = Open {
            asn: Asn(70_000),
            hold_time: 30,
            identifier: [192, 0, 2, 1].into(),
            capabilities: vec![
                Capability::unicast(Afi::Ipv4),
                Capability::FourOctetAs(Asn(70_000)),
                Capability::ExtendedMessage,
                Capability::Role(3),
                Capability::GracefulRestart { flags: 0, restart_time: 120, families: Vec::new() },
                Capability::Unknown { code: 73, value: vec![0, 0] },
            ],
        };
        let config = config_towards(PeerAsn::Exactly(Asn(64_500)), &open, Vec::new());
        assert_eq!((config.local_asn, config.router_id.octets()), (Asn(70_000), [192, 0, 2, 1]));
        assert_eq!((config.peer_asn, config.hold_time.secs()), (PeerAsn::Exactly(Asn(64_500)), 30));
        assert_eq!(config.role, Some(Role::Customer));
        let offer = &config.offer;
        assert!(offer.ipv4_unicast && offer.four_octet_as && offer.extended_message);
        assert!(!offer.ipv6_unicast && !offer.route_refresh && !offer.enhanced_route_refresh);
        assert_eq!(offer.graceful_restart, Some(GracefulRestartOffer::default()));
        assert!(offer.more.is_empty());
    }
}

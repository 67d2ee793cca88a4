//! The member's machine configuration, its parties and its router, from its file.

use std::time::Duration;

use tokio::sync::mpsc;
use tracing::info;
use wayleave_bgp::peer::PeerEvent;
use wayleave_bgp::session::{GracefulRestartOffer, Keeps, Role as BgpRole};
use wayleave_member::router_session;
use wayleave_route_server::key_roles::KeyRole;
use wayleave_route_server::member::MemberConfig as MachineConfig;
use wayleave_route_server::versions::Speaks;
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::TcpOptions;
use wayleave_runtime::identity::Identity;
use wayleave_runtime::tls::{Pin, PinVerifier, Pins, Role};

use super::io::ExchangeLabels;
use crate::config::Source;
use crate::config::member::{MemberConfig, PartyAt, RouterRole};
use crate::failure::{Failure, Outcome};
use crate::roles::bgp_peer::{Endpoint, Peer};
use crate::roles::bmp::StationAt;
use crate::roles::link_faults::LinkEndpoint;

/// The longest time for a restart that the capability holds (RFC 4724 section 3), twelve bits of seconds.
const MOST_RESTART: Duration = Duration::from_secs(4_095);

pub fn machine(config: &MemberConfig, keys: Vec<(KeyRole, [u8; 32])>) -> MachineConfig {
    let (member, exchange) = (&config.file.member, &config.file.exchange);
    MachineConfig {
        exchange: exchange.name.get_ref().clone(),
        rs_asn: *exchange.asn.get_ref(),
        operators: exchange.operators.get_ref().each_ref().map(|key| key.0.0),
        slot: *member.slot.get_ref(),
        keys,
        select_best: config.file.select_best.is_none_or(|section| section.enabled),
        stale: Duration::from_secs(*member.stale_secs.get_ref()),
        settle: Duration::from_secs(*member.settle_secs.get_ref()),
        lab: member.lab,
        accept_as_set: member.accepts_as_set(),
        paths: config.file.router.get_ref().paths(),
        has_role: config.file.router.get_ref().role == RouterRole::Rs,
        validates: false, // set with the attestation that `MemberProxy::new` gets
        speaks: Speaks::default(),
    }
}

/// What the configuration says of the exchange, for what is logged.
///
/// With `pair` the parties are named after theirs, since there are others.
pub fn labels(config: &MemberConfig, identity: &Identity, pair: Option<&str>) -> ExchangeLabels {
    let (member, exchange) = (&config.file.member, &config.file.exchange);
    let endpoint = |number: u8,
                    party: &PartyAt,
                    other: &PartyAt,
                    address_setting,
                    [pin_setting, other_setting]: [_; 2]| LinkEndpoint {
        name: party_name(number.into(), pair),
        address: party.address.0.to_string(),
        address_setting,
        pin_setting,
        own: identity.fingerprint(),
        other_pin: Some((other.pin.get_ref().0, other_setting)),
        unknown_there: "it knows no member with it. Compare `wayleave keys show` of the key file with `wayleave members show` at \
                        the exchange; after a change of the member set the party must reload it (SIGHUP), and who was removed \
                        stays out",
    };
    let (one, two) = (&exchange.party1, &exchange.party2);
    let pins = ["`[exchange] party1.pin`", "`[exchange] party2.pin`"];
    ExchangeLabels {
        name: exchange.name.get_ref().clone(),
        slot: *member.slot.get_ref(),
        parties: [
            endpoint(1, one, two, "`[exchange] party1.address`", pins),
            endpoint(2, two, one, "`[exchange] party2.address`", [pins[1], pins[0]]),
        ],
    }
}

fn party_name(number: u32, pair: Option<&str>) -> String {
    pair.map_or_else(|| format!("party {number}"), |pair| format!("party {number} of {pair}"))
}

/// Accepts the certificate of party `number` alone.
pub fn verifier(number: u32, party: &PartyAt, pair: Option<&str>) -> PinVerifier {
    let pin = Pin { name: party_name(number, pair), role: Role::Party, id: number };
    PinVerifier::new(Pins::new([(party.pin.get_ref().0, pin)]), Role::Party)
}

/// Where a BMP station is, and what this proxy calls itself there: of several pairs, each session has a connection of its own.
fn station(config: &MemberConfig) -> Option<StationAt> {
    let bmp = config.file.bmp.as_ref()?;
    let (member, exchange) = (config.file.member.name.get_ref(), config.pair_name());
    Some(StationAt {
        address: bmp.connect.0.to_string(),
        name: format!("{member} at {exchange}"),
        statistics: Duration::from_secs(*bmp.statistics_secs.get_ref()),
    })
}

/// Starts the driver of the router's session.
pub async fn start_router<E>(
    config: &MemberConfig,
    source: &Source,
    clock: Clock,
    events: mpsc::Sender<E>,
) -> Outcome<Peer>
where
    E: From<PeerEvent> + Send + 'static,
{
    let (router, exchange) = (config.file.router.get_ref(), &config.file.exchange);
    let mut session = router_session(*exchange.asn.get_ref(), router.router_id.get_ref().0, *router.asn.get_ref());
    session.hold_time = config.hold_time;
    session.passive = router.connect.is_none();
    session.role = (router.role == RouterRole::Rs).then_some(BgpRole::RouteServer);
    session.strict_role = *router.strict_role.get_ref();
    let send = router.paths() > 1;
    (session.offer.add_path_ipv4.send, session.offer.add_path_ipv6.send) = (send, send);
    if router.graceful_restart {
        let long_lived = Duration::from_secs(*router.long_lived_stale_secs.get_ref());
        session.keeps = Some(Keeps { restart: MOST_RESTART, long_lived });
        session.offer.graceful_restart =
            Some(GracefulRestartOffer { notifications: true, ..GracefulRestartOffer::default() });
        session.offer.long_lived = true;
    }
    let keys = router.protection_keys();
    let protection = keys.protection(source)?;
    let bind = router.bind.as_ref().map(|bind| bind.get_ref().0);
    let options = TcpOptions { peer: keys.peer(), bind, ttl: router.ttl, protection, ..TcpOptions::default() };
    let endpoint = Endpoint { listen: keys.listen, connect: keys.connect, options };
    let listen = endpoint.listen;
    let station = station(config);
    let peer = Peer::start(session, endpoint, clock, events, station).await.map_err(|error| match listen {
        Some(address) => Failure::listen_bgp(format!("cannot listen for the router at {address}"), &error),
        None => Failure::system("cannot start the router's session", &error),
    })?;
    if let Some(address) = peer.address {
        info!(%address, "listening for the router at {address}");
    }
    Ok(peer)
}

//! The configuration of the BGP session between a member's proxy and the member's own router.

use std::net::Ipv4Addr;
use std::time::Duration;

use wayleave_bgp::session::{Config, PeerAsn};
use wayleave_core::Asn;

/// The session that a member's proxy holds with the router: in the route server's name, transparent (RFC 7947), and soon
/// back when it is lost. The proxy waits for the router to connect unless `passive` is changed.
#[must_use]
pub fn router_session(rs_asn: Asn, router_id: Ipv4Addr, router_asn: Asn) -> Config {
    let mut session = Config::new(rs_asn, router_id, PeerAsn::Exactly(router_asn));
    session.transparent = true;
    session.withholds_stale = true;
    session.passive = true;
    session.connect_retry = Duration::from_secs(2);
    session.idle_hold = Duration::from_millis(500);
    session.idle_hold_most = Duration::from_secs(10);
    session
}

//! The member's side of the session with its own router: what it offers, and what of it the member is told.

use std::net::Ipv4Addr;
use std::time::Duration;

use wayleave_bgp::peer::PeerEvent;
use wayleave_bgp::session::{Config, PeerAsn};
use wayleave_core::Asn;

use super::MemberInput;

/// The session that a member holds with its router: in the route server's name, transparent (RFC 7947), and soon back
/// when it is lost. The member waits for the router to connect unless `passive` is changed.
#[must_use]
pub fn router_session(rs_asn: Asn, router_id: Ipv4Addr, router_asn: Asn) -> Config {
    let mut session = Config::new(rs_asn, router_id, PeerAsn::Exactly(router_asn));
    session.transparent = true;
    session.passive = true;
    session.connect_retry = Duration::from_secs(2);
    session.idle_hold = Duration::from_millis(500);
    session.idle_hold_most = Duration::from_secs(10);
    session
}

impl From<PeerEvent> for MemberInput {
    fn from(event: PeerEvent) -> Self {
        match event {
            PeerEvent::Up => Self::RouterUp,
            PeerEvent::Down => Self::RouterDown,
            PeerEvent::EndOfRib => Self::RouterEndOfRib,
            PeerEvent::Update(update) => Self::RouterUpdate {
                withdrawn: update.withdrawn,
                announced: update.announced,
                attributes: update.attributes,
            },
        }
    }
}

//! A session of every kind, from one octet.

use wayleave_bgp::{AddPath, SessionParams};
use wayleave_core::Asn;

/// The kind of session that `octet` stands for.
pub fn session(octet: u8) -> SessionParams {
    let bit = |at: u8| octet >> at & 1 == 1;
    let mut params = SessionParams::new(Asn(64_496), Asn(if bit(0) { 64_497 } else { 64_496 }));
    params.four_octet_as = bit(1);
    params.extended_message = bit(2);
    params.confederation = bit(0) && bit(3);
    params.ipv4_unicast = !bit(4);
    params.ipv6_unicast = !bit(5);
    params.add_path_receive = AddPath { ipv4: bit(6), ipv6: bit(6) };
    params.add_path_send = params.add_path_receive;
    params.enforce_first_as = bit(7);
    params
}

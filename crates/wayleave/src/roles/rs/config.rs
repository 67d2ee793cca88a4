//! A party's peer, from its file.

use std::net::SocketAddr;

use wayleave_runtime::identity::{Fingerprint, Identity};
use wayleave_runtime::tls::{Pin, Role};

use crate::config::rs::RsConfig;
use crate::roles::link_faults::LinkEndpoint;

/// The peer party in the words of this one's configuration.
pub fn peer_endpoint(config: &RsConfig, identity: &Identity) -> LinkEndpoint {
    let link = config.link.get_ref();
    LinkEndpoint {
        name: "the peer party".to_owned(),
        address: link.connect.as_ref().map_or_else(|| "its link".to_owned(), |connect| connect.0.to_string()),
        address_setting: "`[link] connect`",
        pin_setting: "`[link] pin`",
        own: identity.fingerprint(),
        other_pin: None,
        unknown_there: "its `[link] pin` names another. Compare `wayleave keys show` of the key file with the pin in its configuration",
    }
}

/// What to say of a peer party that has not connected to `listen`.
pub fn no_peer(config: &RsConfig, listen: SocketAddr) -> String {
    let pin = config.link.get_ref().pin.get_ref().0;
    format!(
        "the peer party has not connected to {listen}, and nothing is computed without it: see whether it runs, whether its \
         `[link] connect` leads here, whether a firewall is on the way, and whether a certificate other than {pin} was refused"
    )
}

/// The certificate of the peer party.
pub fn peer_pin(config: &RsConfig) -> (Fingerprint, Pin) {
    let id = if *config.party.number.get_ref() == 1 { 2 } else { 1 };
    (config.link.get_ref().pin.get_ref().0, Pin { name: format!("party {id}"), role: Role::Party, id })
}

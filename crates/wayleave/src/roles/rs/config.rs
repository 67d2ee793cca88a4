//! The party's machine configuration and its peer, from its file.

use std::time::Duration;

use wayleave_route_server::party::{PartyConfig, PartyNumber};
use wayleave_runtime::identity::{Fingerprint, Identity};
use wayleave_runtime::tls::{Pin, Role};

use crate::config::rs::RsConfig;

/// `parse` has checked every number.
pub fn machine(config: &RsConfig, identity: &Identity) -> PartyConfig {
    let party = &config.party;
    PartyConfig {
        number: if *party.number.get_ref() == 1 { PartyNumber::One } else { PartyNumber::Two },
        exchange: party.exchange.get_ref().clone(),
        operators: party.operators.get_ref().each_ref().map(|key| key.0.0),
        keys: config.keys(identity),
        tick: Duration::from_millis(*party.tick_ms.get_ref()),
        stale: Duration::from_secs(*party.stale_secs.get_ref()),
        rank_wait: Duration::from_millis(*party.rank_wait_ms.get_ref()),
        match_wait: Duration::from_secs(2),
    }
}

/// The certificate of the peer party.
pub fn peer_pin(config: &RsConfig) -> (Fingerprint, Pin) {
    let id = if *config.party.number.get_ref() == 1 { 2 } else { 1 };
    (config.link.get_ref().pin.get_ref().0, Pin { name: format!("party {id}"), role: Role::Party, id })
}

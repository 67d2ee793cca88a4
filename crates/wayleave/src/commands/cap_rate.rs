//! `wayleave cap rate`: what a principal, or one of its delegations, may send a second through all routers of the provider together.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use wayleave_control::capability::{ChangeBody, RatePayer, RateTerms};
use wayleave_control::leases::Offline;
use wayleave_packet::platypus::header::DelegationId;

use super::cap::{change_here, report};
use super::cap_remote::{KeyServerAt, Provider, Why};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::Outcome;
use crate::output::{objects, print, print_json};
use crate::provider::orders::{delegation_id, principal_of};

/// Octets of the longest packet.
const LONGEST: u64 = 65_535;

#[derive(Args, Debug)]
pub struct Rate {
    /// Whose rate. Default: all rates are listed.
    pub principal: Option<u32>,
    /// Octets of IP packets a second, through all routers together. Default: those of the principal are listed.
    pub octets: Option<u64>,
    /// The rate of this delegation of the principal's, which counts beside that of the principal.
    #[arg(long, requires = "principal")]
    pub delegation: Option<u32>,
    /// Octets at once at each router. Default: a tenth of a second's, and at least the longest packet, 65,535.
    #[arg(long, requires = "octets")]
    pub burst: Option<u64>,
    /// What becomes of a router's share while it hears nothing from the key server.
    #[arg(long, value_enum, default_value_t = WhenOffline::Decay, requires = "octets")]
    pub offline: WhenOffline,
    /// End the rate over all routers.
    #[arg(long, requires = "principal", conflicts_with = "octets")]
    pub end: bool,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum WhenOffline {
    /// It stays for a minute, and dwindles in four.
    Decay,
    /// It ends at once.
    Floor,
}

impl From<WhenOffline> for Offline {
    fn from(when: WhenOffline) -> Self {
        match when {
            WhenOffline::Decay => Self::Decay,
            WhenOffline::Floor => Self::Floor,
        }
    }
}

/// Sets, ends or lists rates.
///
/// # Errors
/// What the key server or its database refuses.
pub fn rate(command: &Rate) -> Outcome {
    let payer = match command.principal {
        Some(principal) => Some(RatePayer {
            principal: principal_of(principal)?,
            delegation: command.delegation.map(delegation_id).transpose()?,
        }),
        None => None,
    };
    let terms = command.octets.map(|rate| RateTerms {
        rate,
        burst: command.burst.unwrap_or(0),
        offline: command.offline.into(),
    });
    let place = command.provider.place_for(&command.why)?;
    match (payer, terms) {
        (Some(payer), Some(terms)) => set(&place, payer, terms, command),
        (Some(payer), None) if command.end => end(&place, payer, command),
        _ => list(&place, command),
    }
}

fn set(place: &KeyServerAt<'_>, payer: RatePayer, terms: RateTerms, command: &Rate) -> Outcome {
    let number = match place {
        KeyServerAt::At(at) => at.json("PUT", "/v1/rates", Some(&line(&payer, &terms)))?["number"].clone(),
        KeyServerAt::Here(config) => {
            let changed = change_here(config, &command.why, &mut |state| {
                (state.rates().get(&payer) != Some(&terms)).then_some(ChangeBody::SetRate { payer, terms })
            })?;
            changed.state().number().into()
        }
    };
    let mut said = line(&payer, &terms);
    said["number"] = number;
    if !command.json {
        show_burst(&mut said);
    }
    report(said, command.json);
    Ok(())
}

/// Says what a router has where no burst is set: a tenth of a second's octets, and at least the longest packet of each of its threads.
fn show_burst(rate: &mut Value) {
    if let (true, Some(octets)) = (rate["burst_octets"].is_null(), rate["octets_per_second"].as_u64()) {
        rate["burst_octets"] = format!("default ({})", (octets / 10).max(LONGEST)).into();
    }
}

fn end(place: &KeyServerAt<'_>, payer: RatePayer, command: &Rate) -> Outcome {
    let number = match place {
        KeyServerAt::At(at) => {
            let delegation = payer.delegation.map_or(String::new(), |id| format!("&delegation={}", id.number()));
            let path = format!("/v1/rates?principal={}{delegation}", payer.principal.number());
            at.json("DELETE", &path, None)?["number"].clone()
        }
        KeyServerAt::Here(config) => {
            change_here(config, &command.why, &mut |_| Some(ChangeBody::EndRate(payer)))?.state().number().into()
        }
    };
    report(json!({ "number": number, "ended": true }), command.json);
    Ok(())
}

fn list(place: &KeyServerAt<'_>, command: &Rate) -> Outcome {
    let (number, mut all) = match place {
        KeyServerAt::At(at) => {
            let mut answer = at.json("GET", "/v1/rates", None)?;
            (answer["number"].clone(), answer["rates"].as_array_mut().map(std::mem::take).unwrap_or_default())
        }
        KeyServerAt::Here(config) => {
            let source = Source::read(config)?;
            let (server, _) = KeyFile::parse(&source)?.server(&source)?;
            let state = server.state();
            (state.number().into(), state.rates().iter().map(|(payer, terms)| line(payer, terms)).collect())
        }
    };
    all.retain(|rate| command.principal.is_none_or(|principal| rate["principal"] == principal));
    all.retain(|rate| command.delegation.is_none_or(|delegation| rate["delegation"] == delegation));
    if command.json {
        print_json(json!({ "number": number, "rates": all }));
        return Ok(());
    }
    if all.is_empty() {
        print("no rates over all routers\n");
        return Ok(());
    }
    all.iter_mut().for_each(show_burst);
    let columns = ["principal", "delegation", "octets_per_second", "burst_octets", "offline"];
    print(&objects(&all, &columns));
    Ok(())
}

/// A rate as the API says it.
fn line(payer: &RatePayer, terms: &RateTerms) -> Value {
    json!({
        "principal": payer.principal.number(),
        "delegation": payer.delegation.map(DelegationId::number),
        "octets_per_second": terms.rate,
        "burst_octets": Some(terms.burst).filter(|burst| *burst > 0),
        "offline": terms.offline.name(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_that_is_not_set_is_shown_as_the_default() {
        for (octets, burst, shown) in [
            (100_000, json!(null), json!("default (65535)")),
            (10_000_000, json!(null), json!("default (1000000)")),
            (100_000, json!(65_535), json!(65_535)),
        ] {
            let mut rate = json!({ "octets_per_second": octets, "burst_octets": burst });
            show_burst(&mut rate);
            assert_eq!(rate["burst_octets"], shown);
        }
    }
}

//! `wayleave cap quota`: what a principal may send in a month through all routers of the provider.

use clap::Args;
use serde_json::{Value, json};
use wayleave_control::capability::{
    AccountPeriods, ChangeBody, ChangeError, Month, QuotaStatus, RatePayer, VolumeQuota,
};
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::{unix_now, utc};

use super::cap::{change_here, report};
use super::cap_remote::{self, KeyServerAt, Provider, Why};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::database::DatabaseRecords;
use crate::output::{objects, print, print_json};
use crate::provider::orders::principal_of;

#[derive(Args, Debug)]
pub struct Quota {
    /// Whose quota. Default: all quotas are listed, with what was sent of them in this month.
    pub principal: Option<u32>,
    /// Octets of IP packets in a calendar month (UTC), beyond which it is reported.
    #[arg(long, requires = "principal", value_name = "OCTETS")]
    pub soft: Option<u64>,
    /// Octets after which nothing more passes until the month ends, or the quota is raised.
    #[arg(long, requires = "principal", value_name = "OCTETS")]
    pub hard: Option<u64>,
    /// End the quota.
    #[arg(long, requires = "principal", conflicts_with_all = ["soft", "hard"])]
    pub end: bool,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

/// Sets, ends or lists quotas.
///
/// # Errors
/// What the key server or its database refuses.
pub fn quota(command: &Quota) -> Outcome {
    let place = command.provider.place_for(&command.why)?;
    let principal = command.principal.map(principal_of).transpose()?;
    let quota = VolumeQuota { soft: command.soft, hard: command.hard };
    match principal {
        Some(principal) if command.end => end(&place, principal, command),
        Some(principal) if quota != VolumeQuota::default() => set(&place, (principal, quota), command),
        _ => list(&place, command),
    }
}

fn set(place: &KeyServerAt<'_>, (principal, quota): (Principal, VolumeQuota), command: &Quota) -> Outcome {
    if !quota.is_sound() {
        return Err(Failure::usage(ChangeError::QuotaTerms.to_string()).into());
    }
    let mut said = json!({ "principal": principal.number(), "soft_octets": quota.soft, "hard_octets": quota.hard });
    said["number"] = match place {
        KeyServerAt::At(at) => at.json("PUT", "/v1/quotas", Some(&said))?["number"].clone(),
        KeyServerAt::Here(config) => {
            let changed = change_here(config, &command.why, &mut |state| {
                let is_set = state.quota(principal).is_some_and(|held| held.quota == quota);
                (!is_set).then_some(ChangeBody::SetQuota { principal, quota })
            })?;
            changed.state().number().into()
        }
    };
    report(said, command.json);
    Ok(())
}

fn end(place: &KeyServerAt<'_>, principal: Principal, command: &Quota) -> Outcome {
    let number = match place {
        KeyServerAt::At(at) => {
            at.json("DELETE", &format!("/v1/quotas?principal={}", principal.number()), None)?["number"].clone()
        }
        KeyServerAt::Here(config) => {
            let end = ChangeBody::EndQuota { principal };
            change_here(config, &command.why, &mut |_| Some(end.clone()))?.state().number().into()
        }
    };
    report(json!({ "number": number, "ended": true }), command.json);
    Ok(())
}

fn list(place: &KeyServerAt<'_>, command: &Quota) -> Outcome {
    let mut all: Vec<Value> = match place {
        KeyServerAt::At(at) => cap_remote::all(at, "/v1/quotas", "quotas")?,
        KeyServerAt::Here(config) => here(config)?,
    };
    all.retain(|quota| command.principal.is_none_or(|principal| quota["principal"] == principal));
    if command.json {
        print_json(json!({ "quotas": all }));
    } else if all.is_empty() {
        print("no quotas\n");
    } else {
        print(&objects(&all, &["principal", "soft_octets", "hard_octets", "month", "used_octets", "state"]));
    }
    Ok(())
}

/// All quotas of this machine's database, as the API has them.
fn here(config: &std::path::Path) -> Outcome<Vec<Value>> {
    let source = Source::read(config)?;
    let file = KeyFile::parse(&source)?;
    let (server, _) = file.server(&source)?;
    let (state, begins) = (server.state(), Month::of(unix_now().secs()).begin());
    let periods: AccountPeriods = state.reopened().iter().copied().collect();
    let payer = |principal| RatePayer { principal, delegation: None };
    let payers = state.quotas().map(|(principal, _)| payer(principal)).collect();
    let used =
        DatabaseRecords::with_store(&file.database(&source), &file.provider(&source)?, move |store| async move {
            store.month_usage(begins, &payers, &periods).await
        })?;
    let quota = |(principal, status): (Principal, &QuotaStatus)| {
        let octets = used.get(&payer(principal)).copied().unwrap_or(0);
        json!({
            "principal": principal.number(), "soft_octets": status.quota.soft, "hard_octets": status.quota.hard,
            "month": utc(begins), "used_octets": octets,
            "state": status.state(begins, octets).name(),
        })
    };
    Ok(state.quotas().map(quota).collect())
}

//! `wayleave cap account`: an account, and what the provider's billing knows it by.

use clap::Args;
use serde_json::json;
use wayleave_control::capability::{BillingSubject, ChangeBody};

use super::cap::{BillingOf, change_here, report};
use super::cap_remote::{self, KeyServerAt, Provider, Why};
use crate::failure::{Failure, Outcome};
use crate::provider::billing::{self, present};
use crate::provider::orders::{check_name, open_or_rename, principal_of};
use crate::provider::tree::known;

#[derive(Args, Debug)]
pub struct AccountOf {
    /// The principal. Its account is opened if there is none and something is to be set.
    pub principal: u32,
    /// The account's name, for people.
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub billing: BillingOf,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

/// Opens, renames or shows an account.
///
/// # Errors
/// What the key server or its database refuses.
pub fn account(command: &AccountOf) -> Outcome {
    let (principal, billing) = (principal_of(command.principal)?, command.billing.fields()?);
    command.name.as_deref().map_or(Ok(()), check_name)?;
    let is_change = command.name.is_some() || !billing.is_empty();
    let missing = || Failure::new(format!("principal {} has no account", principal.number()));
    let mut said = match command.provider.place_for(&command.why)? {
        KeyServerAt::At(at) => {
            let held = cap_remote::account(&at, command.principal)?;
            if is_change {
                let mut body = billing::body(&billing);
                match (&held, &command.name) {
                    (Some(_), None) => {}
                    (_, name) => body["name"] = json!(name.clone().unwrap_or_default()),
                }
                let path = format!("/v1/accounts/{}", command.principal);
                at.json(if held.is_some() { "PATCH" } else { "PUT" }, &path, Some(&body))?;
            }
            let mut said = cap_remote::account(&at, command.principal)?.ok_or_else(missing)?;
            // What is granted, and where it may come from, is in `cap list`.
            said.as_object_mut().into_iter().for_each(|said| said.retain(|of, _| of != "waypoints" && of != "sources"));
            said
        }
        KeyServerAt::Here(config) => {
            let (of, name) = (BillingSubject::account(principal), command.name.as_deref());
            let server = change_here(config, &command.why, &mut |state| {
                let account = is_change.then(|| open_or_rename(state, principal, name)).flatten();
                ChangeBody::all_of(account.into_iter().chain(billing.change(state, of)).collect())
            })?;
            let state = server.state();
            let (name, generation) = state.account(principal).ok_or_else(missing)?;
            let (external_id, price, metadata) = known(Some(&present(state, of)));
            json!({
                "principal": command.principal, "name": name, "generation": generation,
                "external_id": external_id, "price": price, "metadata": metadata,
            })
        }
    };
    if !command.json {
        let pairs = said["metadata"].as_object().cloned().unwrap_or_default();
        let pairs = pairs.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        said["metadata"] = pairs.collect::<Vec<_>>().join(", ").into();
    }
    report(said, command.json);
    Ok(())
}

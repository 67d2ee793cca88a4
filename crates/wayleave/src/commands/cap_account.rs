//! `wayleave cap account`: an account, what the provider's billing knows it by, and its end.

use clap::Args;
use serde_json::json;
use wayleave_control::capability::{BillingSubject, ChangeBody};

use super::cap::{BillingOf, change_here, encoded, report};
use super::cap_remote::{self, KeyServerAt, Provider, Why};
use crate::failure::{Failure, Outcome};
use crate::output::warn;
use crate::provider::billing::{self, present};
use crate::provider::orders::{check_name, grant_id, open_or_rename, principal_of};
use crate::provider::tree::known;

/// What is changed of an account that stays.
const CHANGES: [&str; 6] = ["name", "external_id", "price", "metadata", "no_metadata", "replace_keys"];

#[derive(Args, Debug)]
pub struct AccountOf {
    /// The principal. Its account is opened if there is none and something is to be set.
    pub principal: u32,
    /// The account's name, for people.
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub billing: BillingOf,
    /// Replace all keys of the account: every line that was handed out ends.
    #[arg(long)]
    pub replace_keys: bool,
    /// Close the account: with all its grants, and its invitations. Its keys never return.
    #[arg(long, conflicts_with_all = CHANGES)]
    pub close: bool,
    /// End the grant of this ID, which `cap list` shows, with all that was delegated from it.
    #[arg(long, value_name = "GRANT", conflicts_with_all = CHANGES, conflicts_with = "close")]
    pub withdraw: Option<String>,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

fn missing(principal: u32) -> Failure {
    Failure::new(format!("principal {principal} has no account")).help("`wayleave cap list` shows those that have")
}

/// Closes an account.
fn close(command: &AccountOf) -> Outcome {
    let principal = principal_of(command.principal)?;
    let number = match command.provider.place_for(&command.why)? {
        KeyServerAt::At(at) => {
            at.json("DELETE", &format!("/v1/accounts/{}", command.principal), None)?["number"].clone()
        }
        KeyServerAt::Here(config) => {
            let mut is_there = false;
            let server = change_here(config, &command.why, &mut |state| {
                is_there = state.account(principal).is_some();
                is_there.then_some(ChangeBody::Close { principal })
            })?;
            if !is_there {
                return Err(missing(command.principal).into());
            }
            json!(server.state().number())
        }
    };
    report(json!({ "number": number, "closed": command.principal }), command.json);
    Ok(())
}

/// Ends a grant, and says what ended with it.
fn withdraw(command: &AccountOf, id: &str) -> Outcome {
    let principal = principal_of(command.principal)?;
    let (number, ended) = match command.provider.place_for(&command.why)? {
        KeyServerAt::At(at) => {
            let path = format!("/v1/grants/{}/{}", command.principal, encoded(id));
            let done = at.json("DELETE", &path, None)?;
            let ended = done["ended"].as_array().into_iter().flatten();
            (done["number"].clone(), ended.filter_map(|grant| Some(grant["terms"].as_str()?.to_owned())).collect())
        }
        KeyServerAt::Here(config) => {
            let (mut found, mut ended) = (None, Vec::new());
            let server = change_here(config, &command.why, &mut |state| {
                found = state.grants_of(principal).map(|grant| grant.terms).find(|terms| grant_id(terms) == id);
                let terms = found?;
                ended = state.delegated_from(terms).map(|grant| grant.terms.to_string()).collect();
                Some(ChangeBody::WithdrawBranch(terms))
            })?;
            if found.is_none() {
                let what = format!("principal {} has no grant of the ID `{}`", command.principal, id.escape_debug());
                return Err(Failure::new(what)
                    .help("`wayleave cap list --principal` shows each grant's behind it")
                    .into());
            }
            (json!(server.state().number()), ended)
        }
    };
    let ended: Vec<String> = ended;
    report(json!({ "number": number, "withdrawn": id, "ended": ended }), command.json);
    Ok(())
}

/// Opens, renames, closes or shows an account.
///
/// # Errors
/// What the key server or its database refuses.
pub fn account(command: &AccountOf) -> Outcome {
    match &command.withdraw {
        _ if command.close => return close(command),
        Some(id) => return withdraw(command, id),
        None => {}
    }
    let (principal, billing) = (principal_of(command.principal)?, command.billing.fields()?);
    command.name.as_deref().map_or(Ok(()), check_name)?;
    let is_change = command.name.is_some() || !billing.is_empty();
    let missing = || missing(command.principal);
    let mut is_opened = false;
    let mut said = match command.provider.place_for(&command.why)? {
        KeyServerAt::At(at) => {
            let held = cap_remote::account(&at, command.principal)?;
            if held.is_none() && command.replace_keys {
                return Err(missing().into());
            }
            is_opened = held.is_none() && is_change;
            if is_change || command.replace_keys {
                let mut body = billing::body(&billing);
                if command.replace_keys {
                    body["replace_keys"] = true.into();
                }
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
                let held = state.account(principal).map(|(held, _)| held);
                is_opened = held.is_none() && is_change && !command.replace_keys;
                let account = match (command.replace_keys, held) {
                    (true, held) => {
                        let (generation, name) = (state.next_generation(principal), name.unwrap_or(held?).to_owned());
                        Some(ChangeBody::Account { principal, generation, name })
                    }
                    (false, _) => is_change.then(|| open_or_rename(state, principal, name)).flatten(),
                };
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
    if is_opened && command.name.is_none() {
        let number = command.principal;
        warn(&format!(
            "principal {number} had no account: one without a name was opened (`wayleave cap account {number} --close` ends it)"
        ));
    }
    if !command.json {
        let pairs = said["metadata"].as_object().cloned().unwrap_or_default();
        let pairs = pairs.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        said["metadata"] = pairs.collect::<Vec<_>>().join(", ").into();
    }
    report(said, command.json);
    Ok(())
}

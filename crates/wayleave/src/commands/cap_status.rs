//! `wayleave cap status`: how a capability stands, as its key server says to its holder.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use wayleave_control::capability::{
    CapabilityStatus, Credential, HeldDelegation, HeldRefusals, HolderContent, HolderReport, HolderUsage, Order, Status,
};
use wayleave_runtime::clock::utc;

use super::cap::{Servers, Unanswered, answered, read_line};
use crate::failure::{Failure, Outcome};
use crate::output::{cell, fields, objects, print, print_json};

/// Pages are asked for one after the other; beyond what a key server answers at once it is waited for, so often.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Args, Debug)]
pub struct StatusOf {
    /// The file with the capability's line; - is the standard input.
    #[arg(long)]
    pub line: PathBuf,
    #[command(flatten)]
    pub servers: Servers,
    #[arg(long)]
    pub json: bool,
}

/// Shows times, rate, usage, refusals and delegations of a capability.
///
/// # Errors
/// If no key server answers, or it refuses.
pub fn status(command: &StatusOf) -> Outcome {
    let credential = read_line(&command.line)?;
    let report = ask(&credential, Order::Status, &command.servers)?;
    let HolderContent::Status(status) = report.content else { return Err(another().into()) };
    let mut delegations: Vec<HeldDelegation> = Vec::new();
    while delegations.len() < status.delegations as usize {
        let from = u32::try_from(delegations.len()).unwrap_or(u32::MAX);
        let report = ask(&credential, Order::Delegations { from }, &command.servers)?;
        let HolderContent::Delegations(page) = report.content else { return Err(another().into()) };
        if page.delegations.is_empty() {
            break;
        }
        delegations.extend(page.delegations);
    }
    let mut shown = shown(&credential, report.number, &status);
    // Of a delegation nobody counts them.
    if credential.terms.delegation.is_none() {
        let report = ask(&credential, Order::Refusals, &command.servers)?;
        let HolderContent::Refusals(refusals) = report.content else { return Err(another().into()) };
        show_refusals(&mut shown, &refusals);
    }
    let delegations: Vec<Value> = delegations.iter().map(delegation).collect();
    if command.json {
        shown["delegations"] = delegations.into();
        print_json(shown);
        return Ok(());
    }
    print(&fields(&for_people(shown)));
    if !delegations.is_empty() {
        print(&format!(
            "\n{}",
            objects(&delegations, &["delegation", "prefix", "until", "denied", "octets_per_second", "month_quota"])
        ));
    }
    Ok(())
}

fn another() -> Failure {
    Failure::new("the key server answers another question")
}

fn ask(credential: &Credential, order: Order, servers: &Servers) -> Result<HolderReport, Failure> {
    for _ in 0..TRIES {
        let answer =
            answered(credential, order, servers, |ordering, octets, id| ordering.read_report(octets, id).ok())?;
        match answer {
            Ok(Ok(report)) => return Ok(report),
            Ok(Err(Status::Busy)) => std::thread::sleep(PAUSE),
            Ok(Err(status)) => return Err(Failure::new(format!("the key server refuses: {status}"))),
            Err(Unanswered { last, is_reached }) => {
                let (whom, what) = servers.whom();
                let of_server =
                    "a capability that is no longer granted, or a key server of an earlier version, has no answer";
                return Err(Failure::new(format!("{whom} gave no answer of the key server: {last}"))
                    .help(if is_reached { format!("{of_server}; {what}") } else { what.to_owned() }));
            }
        }
    }
    Err(Failure::new(format!("the key server refuses: {}", Status::Busy)))
}

/// A status for people, and as JSON.
fn shown(credential: &Credential, number: u64, status: &CapabilityStatus) -> Value {
    let CapabilityStatus { not_before, not_after, denied, rate, month_octets: quota, usage, .. } = *status;
    let mut shown = json!({
        "terms": credential.terms.to_string(),
        "zone": credential.zone.as_str(),
        "number": number,
        "from": utc(not_before),
        "until": utc(not_after),
        "denied": denied.map(|denied| denied.to_string()),
        "octets_per_second": rate.map(|rate| rate.rate),
        "burst_octets": rate.map(|rate| rate.burst).filter(|burst| *burst > 0),
        "month_quota": quota,
    });
    if let Some(HolderUsage { packets, octets, month_packets, month_octets, closed_before, is_partial }) = usage {
        // Texts, since they may have more digits than a number of JSON.
        shown["packets"] = packets.to_string().into();
        shown["octets"] = octets.to_string().into();
        shown["month_packets"] = month_packets.to_string().into();
        shown["month_octets"] = month_octets.to_string().into();
        shown["closed_before"] = Some(closed_before).filter(|before| *before > 0).map(utc).into();
        shown["is_partial"] = is_partial.into();
    }
    shown
}

/// What routers refused, unless none has reported.
fn show_refusals(shown: &mut Value, refusals: &HeldRefusals) {
    if refusals.routers == 0 {
        return;
    }
    let packets: Map<String, Value> = refusals
        .packets
        .iter()
        .map(|(reason, packets)| (reason.name().to_owned(), packets.to_string().into()))
        .collect();
    shown["refused"] = packets.into();
    shown["refused_since"] = utc(refusals.since).into();
    shown["refused_as_of"] = utc(refusals.as_of).into();
    shown["refused_routers"] = refusals.routers.into();
}

/// The same with what routers refused as people read it: without any packet in one line.
fn for_people(mut shown: Value) -> Value {
    let Some(all) = shown.as_object_mut() else { return shown };
    let Some(routers) = all.remove("refused_routers") else { return shown };
    let is_none = all.get("refused").and_then(Value::as_object).is_some_and(Map::is_empty);
    if is_none {
        let time = |value: Option<Value>| value.as_ref().map(cell).unwrap_or_default();
        let (since, as_of) = (time(all.remove("refused_since")), time(all.remove("refused_as_of")));
        let who = if routers == 1 { "1 router".to_owned() } else { format!("{} routers", cell(&routers)) };
        all.insert("refused".to_owned(), format!("nothing from {since} to {as_of}, by the reports of {who}").into());
    } else {
        all.insert("refusals_reported_by".to_owned(), format!("{} routers", cell(&routers)).into());
    }
    shown
}

fn delegation(held: &HeldDelegation) -> Value {
    let (id, sub) = held.id;
    let sub = sub.map_or_else(String::new, |sub| format!("/{}", sub.number()));
    json!({
        "delegation": format!("{}{sub}", id.number()),
        "prefix": held.prefix.to_string(),
        "until": utc(held.not_after),
        "denied": held.denied.map(|denied| denied.to_string()),
        "octets_per_second": held.rate.map(|rate| rate.rate),
        "month_quota": held.month_octets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_refused_is_one_line_and_routers_that_report_are_not_routers_that_refuse() {
        let status = |refused: Value| json!({ "number": 1, "refused": refused, "refused_since": "then", "refused_as_of": "now", "refused_routers": 1 });
        let text = fields(&for_people(status(json!({}))));
        assert!(text.contains("nothing from then to now, by the reports of 1 router"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        let text = fields(&for_people(status(json!({ "revoked": "30" }))));
        assert!(text.contains("refused revoked") && text.contains("refused as of"), "{text}");
        assert!(text.contains("refusals reported by") && !text.contains("refused routers"), "{text}");
    }
}

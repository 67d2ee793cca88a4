//! `cap invite` and `cap invitations`: the provider invites, lists, and withdraws.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wayleave_control::capability::{ChangeBody, InvitationId, Terms};
use wayleave_core::Prefix;
use wayleave_runtime::clock::{unix_now, utc};
use zeroize::Zeroizing;

use super::cap::{change, change_here, report, wait_until_followed, warn_of_unknown};
use super::cap_remote::{KeyServerAt, Provider, Why, all};
use crate::api_client::ApiTarget;
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::output::{objects, print, print_json, warn};
use crate::provider::invitations::invite as make;
use crate::provider::invitations::{DEFAULT_EXPIRY, InvitationOrder, describe, row, shared_with};
use crate::provider::orders::{DAY, DEFAULT_DAYS, DEFAULT_INTERVAL, GrantOrder, MAX_DAYS, check_name};

/// How long the key server may take to say how it is, if it runs.
const ASKED: fetch::Limits = fetch::Limits::within(Duration::from_secs(1));

#[derive(Args, Debug)]
pub struct Invite {
    /// The name of the account that is opened, for people.
    #[arg(long)]
    pub name: String,
    /// The principal, who pays: a number of 24 bits. The redemption opens its account, if there is none.
    #[arg(long)]
    pub principal: u32,
    /// A waypoint that is granted: an address of a router, a POP or an AS (may be repeated).
    #[arg(long, required = true)]
    pub waypoint: Vec<IpAddr>,
    /// Binary logarithm of a key epoch's length in seconds.
    #[arg(long, default_value_t = DEFAULT_INTERVAL)]
    pub interval: u8,
    /// Bindings of 64 bits, where the waypoint accepts them.
    #[arg(long)]
    pub narrow: bool,
    /// Destinations that it is restricted to; needs --delegation.
    #[arg(long, requires = "delegation")]
    pub prefix: Option<Prefix>,
    /// The number of the delegation.
    #[arg(long, requires = "prefix")]
    pub delegation: Option<u32>,
    /// Days for which secrets are given, from the redemption on.
    #[arg(long, default_value_t = DEFAULT_DAYS, value_parser = clap::value_parser!(u64).range(1..=MAX_DAYS))]
    pub days: u64,
    /// Days for which the invitation can be redeemed.
    #[arg(long, default_value_t = DEFAULT_EXPIRY, value_parser = clap::value_parser!(u64).range(1..=MAX_DAYS))]
    pub expires: u64,
    /// Invite although the principal has an account or an open invitation: for more waypoints of one customer, or one who has lost
    /// an invitation. All holders share the account's keys and its bill.
    #[arg(long)]
    pub again: bool,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Invitations {
    /// Withdraw the invitation with this ID, if nobody has used it.
    #[arg(long, value_name = "ID")]
    pub withdraw: Option<InvitationId>,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

/// Makes an invitation.
pub fn invite(command: &Invite) -> Outcome {
    let config = match command.provider.place_for(&command.why)? {
        KeyServerAt::Here(config) => config,
        KeyServerAt::At(at) => return invite_at(command, &at),
    };
    let source = Source::read(config)?;
    let file = KeyFile::parse(&source)?;
    let api = file.key.api.as_ref().ok_or_else(|| {
        Failure::new("this key server has no [key.api], where an invitation would be redeemed")
            .help("add `[key.api]` with `listen`, and restart the server; or `wayleave cap grant` prints a capability at once")
    })?;
    let (url, pin) = (api.url()?, api.key(&source)?.pin());
    let (mut server, mut changes) = file.server(&source)?;
    check_name(&command.name)?;
    let terms = |waypoint: &IpAddr| -> Result<Terms, Failure> {
        warn_of_unknown(&file, *waypoint);
        let Invite { principal, interval, narrow, prefix, delegation, .. } = *command;
        GrantOrder { principal, waypoint: *waypoint, interval, narrow, prefix, delegation }.terms()
    };
    let terms = command.waypoint.iter().map(terms).collect::<Result<_, _>>()?;
    let not_after = unix_now().secs() + command.expires * DAY;
    let order = InvitationOrder { name: command.name.clone(), terms, lasts: command.days * DAY, not_after };
    let (line, invitation) = make(order, (url, pin), None)?;
    let mut shared = None;
    change(&mut server, &mut changes, &command.why, &mut |state| {
        shared = shared_with(state, &invitation, unix_now().secs()).filter(|_| !command.again);
        shared.is_none().then(|| ChangeBody::Invite(invitation.clone()))
    })?;
    if let Some(shared) = shared {
        return Err(Failure::new(shared)
            .help("choose another --principal; or add --again if it is the same customer")
            .into());
    }
    wait_until_followed(config, server.state().number());
    warn_of_closed(config);
    let text = Zeroizing::new(line.expose());
    hand_over(command, &text, &line.id.to_string(), not_after);
    Ok(())
}

/// Says that nobody can redeem an invitation, where the running key server shows that it has no API.
fn warn_of_closed(config: &Path) {
    let target = Target { url: None, config: Some(config.to_owned()) };
    if fetch::json_within(&target, "/api/v1/status", ASKED).is_ok_and(|status| status["api"].is_null()) {
        warn(
            "this key server runs without its API: if the invitation leads to it, and not to another one of the same database, nobody can \
             redeem it before this one was started again, with [key.api]",
        );
    }
}

/// The same by the API.
fn invite_at(command: &Invite, at: &ApiTarget) -> Outcome {
    let Invite { name, principal, waypoint, interval, narrow, prefix, delegation, days, expires, again, .. } = command;
    let mut order = json!({
        "name": name, "principal": principal, "waypoints": waypoint, "interval": interval, "narrow": narrow, "days": days,
        "expires_days": expires, "again": again,
    });
    if let (Some(prefix), Some(delegation)) = (prefix, delegation) {
        (order["prefix"], order["delegation"]) = (json!(prefix.to_string()), json!(delegation));
    }
    let made = at.json("POST", "/v1/invitations", Some(&order))?;
    let text = |of: &str| made[of].as_str().unwrap_or_default();
    hand_over(command, text("invitation"), text("id"), made["expires"].as_u64().unwrap_or(0));
    Ok(())
}

fn hand_over(command: &Invite, line: &str, id: &str, not_after: u64) {
    if command.json {
        print_json(json!({ "invitation": line, "id": id, "expires": utc(not_after) }));
    } else {
        print(&format!("{line}\n"));
    }
}

/// Lists invitations, or withdraws one.
pub fn list(command: &Invitations) -> Outcome {
    let all: Vec<Value> = match (command.provider.place_for(&command.why)?, command.withdraw) {
        (KeyServerAt::At(at), Some(id)) => {
            let done = at.json("DELETE", &format!("/v1/invitations/{id}"), None)?;
            return withdrawn(command, id, &done["number"]);
        }
        (KeyServerAt::At(at), None) => all(&at, "/v1/invitations", "invitations")?,
        (KeyServerAt::Here(config), Some(id)) => {
            let server = change_here(config, &command.why, &mut |_| Some(ChangeBody::Uninvite(id)))?;
            return withdrawn(command, id, &json!(server.state().number()));
        }
        (KeyServerAt::Here(config), None) => {
            let source = Source::read(config)?;
            let (server, _) = KeyFile::parse(&source)?.server(&source)?;
            let now = unix_now().secs();
            let all = server.state().invitations();
            all.map(|(invitation, status)| json!(describe(invitation, status, now))).collect()
        }
    };
    if command.json {
        print_json(json!({ "invitations": all }));
    } else if all.is_empty() {
        print("no invitations\n");
    } else {
        let rows: Vec<Value> = all.iter().map(row).collect();
        print(&objects(&rows, &["id", "principal", "name", "waypoints", "state", "expires", "used"]));
    }
    Ok(())
}

fn withdrawn(command: &Invitations, id: InvitationId, number: &Value) -> Outcome {
    report(json!({ "number": number, "withdrawn": id.to_string() }), command.json);
    Ok(())
}

//! `session`: orders for the BGP session between a member's proxy and its router.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::output::{cell, print, print_json, problems};
use crate::roles::bgp_peer::check_message;

#[derive(Subcommand, Debug)]
pub enum Session {
    /// End the session, and have none until `session enable`, or until the proxy starts again.
    Disable(Disable),
    /// Take up the session again that was disabled.
    Enable(Of),
    /// Ask the router for all its routes again (ROUTE-REFRESH, RFC 2918).
    Refresh(Of),
    /// End the session; it begins again as after a failure, and both ends send all their routes.
    Clear(Of),
}

#[derive(Args, Debug)]
pub struct Disable {
    /// A text for whoever operates the router, which its log shows (RFC 9003): one line, at most 255 octets.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub message: String,
    /// Only the session of this pair of parties, by its exchange's name; default: those of all.
    #[arg(long, value_name = "NAME")]
    pub pair: Option<String>,
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Of {
    /// Only the session of this pair of parties, by its exchange's name; default: those of all.
    #[arg(long, value_name = "NAME")]
    pub pair: Option<String>,
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

impl Of {
    fn order(&self, name: &str) -> Outcome<Value> {
        let path = fetch::of_pair(&format!("/api/v1/session/{name}"), self.pair.as_deref());
        Ok(fetch::order(&self.target, &path)?)
    }
}

pub fn run(command: &Session) -> Outcome {
    let (value, is_json, words) = match command {
        Session::Disable(Disable { message, target, json, pair }) => {
            check_message(message).map_err(Failure::usage)?;
            let path = fetch::of_pair("/api/v1/session/disable", pair.as_deref());
            (fetch::order_with(target, &path, "message", message)?, *json, disabled as fn(&Value) -> _)
        }
        Session::Enable(of) => (of.order("enable")?, of.json, enabled as _),
        Session::Refresh(of) => (of.order("refresh")?, of.json, refreshed as _),
        Session::Clear(of) => (of.order("clear")?, of.json, cleared as _),
    };
    if is_json {
        print_json(value);
    } else {
        print(&format!("{}\n{}", words(&value), problems(&value)));
    }
    Ok(())
}

fn disabled(value: &Value) -> String {
    let ended = match value["was_up"] == true {
        true => "the session with the router is ended, with a NOTIFICATION (Cease, Administrative Shutdown)",
        false => "there was no session with the router",
    };
    format!("{ended}; there is none until `wayleave session enable`, or until the proxy starts again")
}

fn enabled(_: &Value) -> String {
    "the session with the router is enabled; `wayleave show peers` says whether it is up".to_owned()
}

fn refreshed(value: &Value) -> String {
    let families: Vec<String> = value["families"].as_array().into_iter().flatten().map(cell).collect();
    format!("the router is asked for all its routes: {}", families.join(", "))
}

fn cleared(value: &Value) -> String {
    match value["was_up"] == true {
        true => {
            "the session with the router is ended, with a NOTIFICATION (Cease, Administrative Reset), and begins again"
        }
        false => "there was no session with the router; it is tried as before",
    }
    .to_owned()
}

//! `cap mint` and `cap narrow`: files of capabilities for stampers, without a key server.

use std::path::Path;

use serde_json::json;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal, Width};
use wayleave_runtime::clock::{unix_now, utc};

use crate::config::router::FormatName;
use crate::failure::{Failure, Outcome};
use crate::key_files::capability::MOST_EPOCHS;
use crate::key_files::capability::{Capabilities, ROLE};
use crate::key_files::forwarding::ForwardingKeys;
use crate::output::{print, print_json};
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;
use wayleave_core::Prefix;

#[derive(Args, Debug)]
pub struct Mint {
    /// The new file of capabilities.
    pub file: PathBuf,
    /// The waypoint's file of forwarding keys.
    #[arg(long)]
    pub key: PathBuf,
    /// The waypoint's address.
    #[arg(long)]
    pub waypoint: IpAddr,
    /// The principal, who pays: a number of 24 bits.
    #[arg(long)]
    pub principal: u32,
    /// Binary logarithm of a key epoch's length in seconds.
    #[arg(long, default_value_t = 12)]
    pub interval: u8,
    /// Number of key epochs, from the current one on.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=MOST_EPOCHS as i64))]
    pub epochs: u32,
    /// Bindings of 64 bits, where the waypoint accepts them.
    #[arg(long)]
    pub narrow: bool,
    /// Replace the file if it exists.
    #[arg(long)]
    pub replace: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Narrow {
    /// The new file with the delegation.
    pub file: PathBuf,
    /// The file of capabilities to delegate.
    #[arg(long)]
    pub of: PathBuf,
    /// The destinations that the delegation is valid for.
    #[arg(long)]
    pub prefix: Prefix,
    /// The delegation's number (24 bits), by which it is revoked. Not needed to narrow an existing delegation.
    #[arg(long)]
    pub id: Option<u32>,
    /// Replace the file if it exists.
    #[arg(long)]
    pub replace: bool,
    #[arg(long)]
    pub json: bool,
}

/// Creates capabilities from a waypoint's key.
pub fn mint(command: &Mint) -> Outcome {
    check_new(&command.file, command.replace)?;
    let keys = ForwardingKeys::load(FormatName::Platypus, &command.key)?;
    let principal = Principal::new(command.principal)
        .ok_or_else(|| Failure::usage(format!("{} is not a principal, which has 24 bits", command.principal)))?;
    let interval = Interval::new(command.interval)
        .ok_or_else(|| Failure::usage(format!("{} is not an interval, which is 4 to 24", command.interval)))?;
    let width = if command.narrow { Width::Narrow } else { Width::Full };
    let of = (command.waypoint, principal, interval, width);
    let minted = Capabilities::mint(&keys, of, command.epochs, unix_now());
    minted.save(&command.file, command.replace)?;
    show(&command.file, &minted, command.json);
    Ok(())
}

/// Delegates capabilities, or a delegation further.
pub fn narrow(command: &Narrow) -> Outcome {
    check_new(&command.file, command.replace)?;
    let parent = Capabilities::load(&command.of)?;
    let too_long = |id| Failure::usage(format!("{id} is not a delegation's number, which has 24 bits"));
    let id = match command.id {
        Some(id) => Some(DelegationId::new(id).ok_or_else(|| too_long(id))?),
        None => None,
    };
    let delegated = parent.delegate(command.prefix, id)?;
    delegated.save(&command.file, command.replace)?;
    show(&command.file, &delegated, command.json);
    Ok(())
}

fn check_new(file: &Path, replace: bool) -> Result<(), Failure> {
    if replace || !file.exists() {
        return Ok(());
    }
    Err(Failure::new(format!("{} exists already", file.display())).help("choose another file, or add --replace"))
}

/// Whether the file's header says that it holds capabilities.
pub fn is_one(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|octets| octets.starts_with(format!("role = \"{ROLE}\"").as_bytes()))
}

/// Prints everything but the secrets.
pub fn show(file: &Path, capabilities: &Capabilities, json: bool) {
    let (first, last) = capabilities.epochs();
    let (waypoint, principal, interval) =
        (capabilities.waypoint, capabilities.principal.number(), capabilities.interval.exponent());
    let (end, delegation) = (capabilities.end(), capabilities.delegation);
    let sub = delegation.and_then(|delegation| delegation.sub);
    if json {
        print_json(json!({
            "file": file, "waypoint": waypoint, "principal": principal, "interval": interval, "epochs": [first, last],
            "accepted_until": end,
            "prefix": delegation.map(|delegation| delegation.prefix.to_string()),
            "delegation": delegation.map(|delegation| delegation.id.number()),
            "sub_delegation": sub.map(|sub| sub.id.number()),
        }));
        return;
    }
    let mut text = format!(
        "file            {}\nwaypoint        {waypoint}\nprincipal       {principal}\ninterval        {interval}\n\
         epochs          {first} to {last}\naccepted until  {}\n",
        file.display(),
        utc(end)
    );
    if let Some(delegation) = delegation {
        text += &format!("prefix          {}\ndelegation      {}\n", delegation.prefix, delegation.id.number());
    }
    if let Some(sub) = sub {
        text += &format!("sub-delegation  {}\n", sub.id.number());
    }
    print(&text);
}

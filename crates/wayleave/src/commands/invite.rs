//! `invite`: makes a member's configuration from a party's.

use serde_json::json;
use wayleave_runtime::identity::{Fingerprint, Identity};

use crate::config::member::{Invitation, template_with};
use crate::config::rs::RsConfig;
use crate::config::{HostPort, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::member_set;
use crate::output::{print, print_json};
use clap::Args;
use std::path::PathBuf;
use wayleave_core::Asn;

#[derive(Args, Debug)]
pub struct Invite {
    /// The member's name in the member set.
    pub name: String,
    /// Either party's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    /// The AS number of the exchange's route server, as used in communities.
    #[arg(long)]
    pub rs_asn: Asn,
    /// Where members connect to party 1. Default: its own `listen` address.
    #[arg(long)]
    pub party1: Option<HostPort>,
    /// Where members connect to party 2. Default: its own `listen` address.
    #[arg(long)]
    pub party2: Option<HostPort>,
    #[arg(long)]
    pub json: bool,
}

pub fn run(invite: &Invite) -> Outcome {
    let source = Source::read(&invite.config)?;
    let config = RsConfig::parse(&source)?;
    let party = &config.party;
    let file = source.resolve(party.members.get_ref());
    let (_, directory) = member_set::verified(&file, &config.trust())?;
    let set = directory.set();
    let unknown = || {
        let message = format!("no active member `{}` in {}, which has set {}", invite.name, file.display(), set.number);
        Failure::new(message).help(
            "both operators admit a member: `wayleave members propose`, then `wayleave members countersign`; where they have, a newer set \
             may still be at the other party alone: `wayleave show members` at both",
        )
    };
    let slot = set.slot_by_name(&invite.name).ok_or_else(unknown)?;
    let member = set.slot(slot).ok_or_else(unknown)?;
    if member.max_prefix == 0 {
        return Err(Failure::new(format!("`{}` has no prefix limit in member set {}", member.name, set.number))
            .help(format!("first: wayleave members propose --max-prefix {}=NUMBER, countersigned", member.name))
            .into());
    }

    let identity = Identity::load(&source.resolve(party.key.get_ref()))?;
    config.key_roles(&identity)?.add_directory(&directory)?;
    let own_pin = identity.fingerprint();
    let other_pin = config.link.get_ref().pin.get_ref().0;
    let listen = party.listen.get_ref().0;
    let is_reached = !listen.ip().is_unspecified() && !listen.ip().is_loopback();
    let own_address = is_reached.then(|| HostPort(listen.to_string()));
    let is_first = *party.number.get_ref() == 1;
    let (given, other_given, number, other) =
        if is_first { (&invite.party1, &invite.party2, 1, 2) } else { (&invite.party2, &invite.party1, 2, 1) };
    let missing = |party: u8, why: &str| {
        let failure = Failure::usage(format!("the address of party {party} for members is not known{why}"));
        failure.help(format!("add --party{party} HOST:PORT"))
    };
    let unreached = || missing(number, &format!(": it listens at {listen}, where members cannot connect"));
    let own = (given.clone().or(own_address).ok_or_else(unreached)?, own_pin.to_string());
    let other = (other_given.clone().ok_or_else(|| missing(other, ""))?, other_pin.to_string());
    let [first, second] = if is_first { [own, other] } else { [other, own] };
    let router = member.addresses.iter().find(|address| address.is_ipv4()).or(member.addresses.first());
    let text = template_with(&Invitation {
        name: &member.name,
        slot,
        asn: member.asn.0,
        pin: Some(Fingerprint(member.tls).to_string()),
        router: router.map(ToString::to_string),
        router_id: None,
        exchange: &set.exchange,
        rs_asn: invite.rs_asn.0,
        operators: directory.operators().map(|key| member_set::key_text(&key)),
        parties: [(&first.0.0, &first.1), (&second.0.0, &second.1)],
        beside: None,
    });
    if invite.json {
        print_json(json!({ "name": member.name, "slot": slot, "configuration": text }));
    } else {
        print(&text);
    }
    Ok(())
}

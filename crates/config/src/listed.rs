//! What the member set says of a member's configuration: whose its slot is, its name, its AS, its router's address, its keys, the ASes
//! that its rules name. The set is the last that this proxy has seen, so that all of it is a warning: the exchange may have a newer
//! one by now.

use toml::Spanned;
use wayleave_core::Asn;
use wayleave_route_server::directory::{ChainError, MemberSet, Slot};
use wayleave_route_server::member::stored_directory;
use wayleave_runtime::identity::Identity;
use wayleave_runtime::store;

use super::machine::stored;
use super::member::MemberConfig;
use super::rs::{FileFault, OTHER_STATE};
use super::{Fault, Source, named_peers};
use crate::key_files::attestation::Keys;
use crate::key_files::{member_set, signing_key};
use wayleave_attestation::leaf::LeafKey;

/// What the proxy's state and the configuration disagree in; nothing without a state, or while the proxy runs.
pub(super) fn faults(config: &MemberConfig, source: &Source) -> Vec<FileFault> {
    let (member, exchange) = (&config.file.member, &config.file.exchange);
    let records = match stored(&source.resolve(member.state.get_ref())) {
        Ok(records) => records.unwrap_or_default(),
        Err(error) => {
            return vec![FileFault::Unusable(Fault::at(member.state.span(), error.to_string()).help(OTHER_STATE))];
        }
    };
    let Some(directory) = stored_directory(&records) else { return Vec::new() };
    let trust = member_set::trust(exchange.name.get_ref(), &exchange.operators.get_ref().each_ref().map(|key| key.0));
    let help = "without a mistake here the exchange was begun anew: the proxy then forgets the set of its state";
    let doubtful = |span, message: String| FileFault::Doubtful(Fault::at(span, message).help(help));
    match directory.check(&trust) {
        Ok(()) => {}
        Err(ChainError::OtherExchange(name)) => {
            let message = format!("this proxy's state is of the exchange `{name}`, expected the same name");
            return vec![doubtful(exchange.name.span(), message)];
        }
        Err(error) => {
            let message =
                format!("the member set of this proxy's state has other operators, expected its own: {error}");
            return vec![doubtful(exchange.operators.span(), message)];
        }
    }
    of_set(config, directory.set(), source).into_iter().map(FileFault::Doubtful).collect()
}

/// That the proxy runs and has its state to itself, with the member set in it.
pub(super) fn not_compared(config: &MemberConfig, source: &Source) -> Option<String> {
    let state = source.resolve(config.file.member.state.get_ref());
    store::is_open(&state).is_ok_and(|is_open| is_open).then(|| {
        "not compared with the member set, since the proxy runs and has it: after SIGHUP, `wayleave show status` names an AS of a rule that no \
         member has; the slot, the name and the addresses count after a restart, and are compared while the proxy is stopped"
            .to_owned()
    })
}

fn of_set(config: &MemberConfig, set: &MemberSet, source: &Source) -> Vec<Fault> {
    let (member, router) = (&config.file.member, config.file.router.get_ref());
    let Ok(identity) = Identity::load(&source.resolve(member.key.get_ref())) else { return Vec::new() };
    let sign = signing_key(&identity).verifying_key().to_bytes();
    let (id, number) = (*member.slot.get_ref(), set.number);
    let Some(slot) = set.slot(id).filter(|slot| slot.sign == sign) else {
        return vec![other_slot(config, set, &sign)];
    };
    let mut faults = Vec::new();
    if !slot.active {
        let message =
            format!("slot {id} has left the exchange (member set {number}), expected the slot of a new request");
        let help = "`wayleave members request` makes one; a slot and its keys are never used again";
        faults.push(Fault::at(member.slot.span(), message).help(help));
    }
    let asn = *router.asn.get_ref();
    if slot.asn != asn {
        let message = format!("slot {id} is {}'s in member set {number}, expected {}", slot.asn, slot.asn.0);
        let help = "the router's session fails with another AS number, or its routes are refused";
        faults.push(Fault::at(router.asn.span(), message).help(help));
    }
    if slot.name != *member.name.get_ref() {
        let message = format!("slot {id} is `{}` in member set {number}, expected the same name", slot.name);
        faults.push(Fault::at(member.name.span(), message));
    }
    faults.extend(of_address(config, slot, number));
    faults.extend(of_profile(config, set));
    faults.extend(of_attestation(config, set, asn, source));
    faults.extend(named_peers::faults(&config.file, set));
    faults
}

/// The slot that the configuration names is another's, or the key is.
fn other_slot(config: &MemberConfig, set: &MemberSet, sign: &[u8; 32]) -> Fault {
    let member = &config.file.member;
    let (id, number) = (*member.slot.get_ref(), set.number);
    let whose = match set.slot(id) {
        Some(slot) => format!("slot {id} is {}'s ({}) in member set {number}", slot.name, slot.asn),
        None => format!("member set {number} has no slot {id}"),
    };
    match set.iter().find(|(_, slot)| slot.sign == *sign) {
        Some((own, _)) => {
            let message = format!("{whose}, expected {own}, the slot of the key {}", member.key.get_ref().display());
            Fault::at(member.slot.span(), message).help("the parties refuse this proxy otherwise")
        }
        None => {
            let message =
                format!("{whose}, and no slot has this key, expected the key file with which the member joined");
            let help = format!(
                "the set that this proxy's state has is {number}, and may be old: a member that has just joined, or come back with a new \
                 key, learns the present one when it runs; another key of the same slot counts once both operators have signed it \
                 (`wayleave members request --instead-of`)"
            );
            Fault::at(member.key.span(), message).help(help)
        }
    }
}

/// The router's address, which others take as the next hop of this member's routes, against those of its slot.
fn of_address(config: &MemberConfig, slot: &Slot, number: u64) -> Option<Fault> {
    let address = config.file.router.get_ref().address.as_ref()?;
    let ip = address.get_ref().0;
    let known: Vec<String> = slot.addresses.iter().map(ToString::to_string).collect();
    (!ip.is_loopback() && !slot.addresses.contains(&ip)).then(|| {
        let message =
            format!("{ip} is none of the slot's addresses in member set {number}, expected {}", known.join(" or "));
        Fault::at(address.span(), message).help("others refuse routes whose next hop is no address of the slot")
    })
}

/// A setting that the exchange's profile makes void.
fn of_profile(config: &MemberConfig, set: &MemberSet) -> Option<Fault> {
    let setting = config.file.member.accept_as_set.as_ref().filter(|accepts| *accepts.get_ref())?;
    set.profile.as_ref().filter(|profile| profile.refuse_as_set)?;
    let message = format!(
        "the exchange's profile (member set {}) refuses routes with an AS_SET, expected no `accept_as_set = true`",
        set.number
    );
    Some(
        Fault::at(setting.span(), message)
            .help("no member's own setting loosens the profile, which both operators signed"),
    )
}

/// A key that signs paths and that the member set does not list.
fn of_attestation(config: &MemberConfig, set: &MemberSet, asn: Asn, source: &Source) -> Option<Fault> {
    let file = config.file.attestation.as_ref()?.get_ref().keys.signing.as_ref()?;
    let keys = Keys::load("attest", &source.resolve(file.get_ref())).ok()?;
    let listed = set.attest.get(&asn).map_or(&[][..], Vec::as_slice);
    let is_listed = |key: &[u8; 32]| listed.iter().any(|listed| listed.key == *key);
    let missing = keys.pairs().into_iter().find(|(suite, key)| !is_listed(&LeafKey::of(*suite, key.public()).key))?;
    let message = format!(
        "member set {} does not list the {} key of this file for {asn}, expected keys of the set",
        set.number,
        missing.0.name()
    );
    let help = "routes of others are then not signed for this member; `wayleave members request --attest SUITE:HEX --instead-of KEY` \
                asks for the change";
    Some(Fault::at(Spanned::span(file), message).help(help))
}

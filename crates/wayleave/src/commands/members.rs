//! `members`: edits the signed member set, with the key of the exchange's operator.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use wayleave_attestation::leaf::LeafKey;
use wayleave_core::Asn;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{AttestKey, MemberSet, Slot};
use wayleave_runtime::identity::{DEFAULT_VALIDITY, Fingerprint, Identity};

use super::pki::attest_key;
use crate::config::PublicKey;
use crate::failure::{Failure, Outcome};
use crate::key_files::member_set::{describe, read, replace};
use crate::key_files::signing_key;
use crate::output::{objects, print, print_json};
use clap::{Args, Subcommand};
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Members {
    /// Create an empty set, signed with the operator's key file, which is created if it does not exist.
    Init {
        file: PathBuf,
        #[arg(long)]
        exchange: String,
        #[arg(long)]
        operator: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Add a member in a new slot.
    Add(AddMember),
    /// Set the attestation keys of a member's AS. Without --key the AS has none.
    Attest {
        file: PathBuf,
        #[arg(long)]
        operator: PathBuf,
        #[arg(long)]
        asn: Asn,
        /// A public key as SUITE:HEX, from `wayleave keys show` (may be repeated, one for each suite).
        #[arg(long)]
        key: Vec<String>,
        #[arg(long)]
        json: bool,
    },
    /// Remove a member. Its slot and its key cannot be used again.
    Remove {
        file: PathBuf,
        #[arg(long)]
        operator: PathBuf,
        #[arg(long)]
        name: String,
        #[arg(long)]
        json: bool,
    },
    /// Print a set.
    Show {
        file: PathBuf,
        /// The operator's public key (`ed25519:...`), which must have signed the set.
        #[arg(long)]
        operator: PublicKey,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub struct AddMember {
    pub file: PathBuf,
    #[arg(long)]
    pub operator: PathBuf,
    #[arg(long)]
    pub asn: Asn,
    #[arg(long)]
    pub name: String,
    /// IPv4 address of the member's router on the exchange's network (may be repeated).
    #[arg(long)]
    pub address: Vec<IpAddr>,
    /// IPv6 address of the member's router on the exchange's network (may be repeated).
    #[arg(long)]
    pub address6: Vec<IpAddr>,
    /// Fingerprint of the member's certificate, from `wayleave keys show`.
    #[arg(long)]
    pub tls: Fingerprint,
    /// The member's signing key, from `wayleave keys show`.
    #[arg(long)]
    pub sign: PublicKey,
    /// Prefixes that it may announce; 0 means no limit.
    #[arg(long, default_value_t = 0)]
    pub max_prefix: u32,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &Members) -> Outcome {
    match command {
        Members::Init { file, exchange, operator, json } => init(file, exchange, operator, *json),
        Members::Add(member) => add(member),
        Members::Attest { file, operator, asn, key, json } => attest(file, operator, *asn, key, *json),
        Members::Remove { file, operator, name, json } => remove(file, operator, name, *json),
        Members::Show { file, operator, json } => show(file, operator, *json),
    }
}

fn init(file: &Path, exchange: &str, operator: &Path, json: bool) -> Outcome {
    if file.exists() {
        let failure = Failure::new(format!("{} exists", file.display()));
        return Err(failure.help("`wayleave members add` appends to it; or choose another name").into());
    }
    let identity = if operator.exists() {
        Identity::load(operator)?
    } else {
        let identity = Identity::generate("operator", DEFAULT_VALIDITY)?;
        identity.save(operator)?;
        identity
    };
    let key = signing_key(&identity);
    let set = MemberSet { exchange: exchange.to_owned(), number: 1, slots: Vec::new(), attest: BTreeMap::new() };
    write(file, set, &key)?;
    let operator = PublicKey(key.verifying_key()).to_string();
    if json {
        print_json(json!({ "file": file, "number": 1, "operator": operator }));
    } else {
        print(&format!("operator  {operator}\n"));
    }
    Ok(())
}

fn add(member: &AddMember) -> Outcome {
    let (key, before) = open(&member.file, &member.operator)?;
    let addresses: Vec<_> = member.address.iter().chain(&member.address6).copied().collect();
    let slot = Slot {
        active: true,
        asn: member.asn,
        name: member.name.clone(),
        addresses,
        tls: member.tls.0,
        sign: member.sign.0.to_bytes(),
        max_prefix: member.max_prefix,
    };
    let mut slots = before.slots.clone();
    slots.push(slot);
    let (number, slot_number) = (before.number + 1, before.slots.len());
    let set = MemberSet { number, slots, ..before.clone() };
    set.may_follow(&before)?;
    write(&member.file, set, &key)?;
    if member.json {
        print_json(json!({ "name": member.name, "slot": slot_number, "number": number }));
    } else {
        print(&format!("{} has slot {slot_number}; the set is now number {number}\n", member.name));
    }
    Ok(())
}

fn attest(file: &Path, operator: &Path, asn: Asn, keys: &[String], json: bool) -> Outcome {
    let (key, before) = open(file, operator)?;
    let mut listed = Vec::new();
    for text in keys {
        let LeafKey { suite, key } = attest_key(text)?;
        listed.push(AttestKey { suite, key });
    }
    listed.sort_unstable();
    let mut set = MemberSet { number: before.number + 1, ..before.clone() };
    let count = listed.len();
    match count {
        0 => drop(set.attest.remove(&asn)),
        _ => drop(set.attest.insert(asn, listed)),
    }
    set.may_follow(&before)?;
    let number = set.number;
    write(file, set, &key)?;
    if json {
        print_json(json!({ "asn": asn, "keys": count, "number": number }));
    } else {
        print(&format!("{asn} has {count} attestation keys; the set is now number {number}\n"));
    }
    Ok(())
}

fn remove(file: &Path, operator: &Path, name: &str, json: bool) -> Outcome {
    let (key, before) = open(file, operator)?;
    let slot_number = before.slot_by_name(name).ok_or_else(|| Failure::new(format!("no active member `{name}`")))?;
    let mut set = MemberSet { number: before.number + 1, ..before.clone() };
    set.slots[slot_number as usize].active = false;
    set.may_follow(&before)?;
    let number = set.number;
    write(file, set, &key)?;
    if json {
        print_json(json!({ "name": name, "slot": slot_number, "number": number }));
    } else {
        print(&format!("{name} removed from slot {slot_number}; the set is now number {number}\n"));
    }
    Ok(())
}

fn show(file: &Path, operator: &PublicKey, json: bool) -> Outcome {
    let signed = read(file)?;
    let set = signed.verify(&operator.0).map_err(|error| Failure::from_error(&error))?;
    let value = describe(set);
    if json {
        print_json(value);
    } else {
        print(&format!("{} set {}, signed by {operator}\n", set.exchange, set.number));
        let columns = ["slot", "active", "name", "asn", "addresses", "max_prefix", "attest", "tls"];
        print(&objects(value["members"].as_array().map_or(&[], Vec::as_slice), &columns));
    }
    Ok(())
}

fn open(file: &Path, operator: &Path) -> Outcome<(SigningKey, MemberSet)> {
    let key = signing_key(&Identity::load(operator)?);
    let signed = read(file)?;
    let verified = signed.verify(&key.verifying_key());
    let set = verified
        .map_err(|_| Failure::new(format!("{} is not signed by the key in {}", file.display(), operator.display())))?;
    Ok((key, set.clone()))
}

fn write(file: &Path, set: MemberSet, key: &SigningKey) -> Outcome {
    replace(file, &set.sign(key)?.encode())
}

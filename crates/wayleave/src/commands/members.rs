//! `members`: edits the signed member set, as the exchange's operator.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::suite::SuiteId;
use wayleave_core::Asn;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{AttestKey, MAX_ENCODED, MemberSet, SignedMemberSet, Slot};
use wayleave_runtime::identity::{DEFAULT_VALIDITY, Fingerprint, Identity, to_hex};

use super::keys::signing_key;
use super::pki::attest_key;
use crate::cli::{AddMember, Members};
use crate::config::PublicKey;
use crate::failure::{Failure, Outcome};
use crate::output::{objects, print, print_json};

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
        let failure = Failure::new(format!("{} exists already", file.display()));
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
    let (number, place) = (before.number + 1, before.slots.len());
    let set = MemberSet { number, slots, ..before.clone() };
    set.may_follow(&before)?;
    write(&member.file, set, &key)?;
    if member.json {
        print_json(json!({ "name": member.name, "slot": place, "number": number }));
    } else {
        print(&format!("{} has slot {place}; the set is now number {number}\n", member.name));
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
        print(&format!("{asn} attests with {count} keys; the set is now number {number}\n"));
    }
    Ok(())
}

fn remove(file: &Path, operator: &Path, name: &str, json: bool) -> Outcome {
    let (key, before) = open(file, operator)?;
    let place = before.slot_by_name(name).ok_or_else(|| Failure::new(format!("no active member `{name}`")))?;
    let mut set = MemberSet { number: before.number + 1, ..before.clone() };
    set.slots[place as usize].active = false;
    set.may_follow(&before)?;
    let number = set.number;
    write(file, set, &key)?;
    if json {
        print_json(json!({ "name": name, "slot": place, "number": number }));
    } else {
        print(&format!("{name} has left slot {place}; the set is now number {number}\n"));
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

/// The set for people and programs.
pub fn describe(set: &MemberSet) -> Value {
    let suite = |key: &AttestKey| {
        SuiteId::from_byte(key.suite).map_or_else(|| format!("suite {}", key.suite), |suite| suite.name().to_owned())
    };
    let slot = |(place, slot): (u32, &Slot)| {
        json!({
            "slot": place,
            "active": slot.active,
            "name": slot.name,
            "asn": slot.asn,
            "addresses": slot.addresses,
            "max_prefix": slot.max_prefix,
            "tls": Fingerprint(slot.tls).to_string(),
            "sign": format!("ed25519:{}", to_hex(&slot.sign)),
            "attest": set.attest.get(&slot.asn).map_or(&[][..], Vec::as_slice).iter().map(suite).collect::<Vec<_>>(),
        })
    };
    json!({ "exchange": set.exchange, "number": set.number, "members": set.iter().map(slot).collect::<Vec<_>>() })
}

/// Reads a signed set; the signature is not checked.
pub fn read(file: &Path) -> Outcome<SignedMemberSet> {
    let failed = |error: io::Error| {
        Failure::new(format!("{}: {error}", file.display())).help("`wayleave members init` makes a member set")
    };
    let length = fs::metadata(file).map_err(failed)?.len();
    if length > MAX_ENCODED as u64 {
        return Err(Failure::new(format!("{}: too long for a member set", file.display())).into());
    }
    let bytes = fs::read(file).map_err(failed)?;
    let decoded = SignedMemberSet::decode(&bytes);
    Ok(decoded.map_err(|error| Failure::new(format!("{} is not a member set: {error}", file.display())))?)
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

/// Writes beside the old file and puts the new one in its place, so that a reader never sees half of one.
pub fn replace(file: &Path, bytes: &[u8]) -> Outcome {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let written = File::create(&beside).and_then(|mut new| {
        new.write_all(bytes)?;
        new.sync_all()?;
        fs::rename(&beside, file)
    });
    Ok(written.map_err(|error| Failure::new(format!("{}: {error}", file.display())))?)
}

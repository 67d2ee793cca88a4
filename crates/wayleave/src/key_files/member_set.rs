//! The file of a signed member set.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use wayleave_attestation::suite::SuiteId;
use wayleave_route_server::directory::{AttestKey, MAX_ENCODED, MemberSet, SignedMemberSet, Slot};
use wayleave_runtime::identity::{Fingerprint, to_hex};

use crate::config::PublicKey;
use crate::failure::{Failure, Outcome};

/// Reads a signed set; the signature is not checked.
pub fn read(file: &Path) -> Outcome<SignedMemberSet> {
    Ok(decode(file, &octets(file)?)?)
}

/// Reads a set that `operator` must have signed: its octets and its content.
pub fn verified(file: &Path, operator: &PublicKey) -> Outcome<(Vec<u8>, MemberSet)> {
    let octets = octets(file)?;
    let signed = decode(file, &octets)?;
    let not_signed = || {
        Failure::new(format!("{} is not signed by the operator of this configuration", file.display()))
            .help("`operator` must be the key that `wayleave members init` printed")
    };
    let set = signed.verify(&operator.0).map_err(|_| not_signed())?.clone();
    Ok((octets, set))
}

fn octets(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("{}: {error}", file.display())).help("`wayleave members init` creates a member set")
    };
    let length = fs::metadata(file).map_err(failed)?.len();
    if length > MAX_ENCODED as u64 {
        return Err(Failure::new(format!("{}: too long for a member set", file.display())));
    }
    fs::read(file).map_err(failed)
}

fn decode(file: &Path, octets: &[u8]) -> Result<SignedMemberSet, Failure> {
    SignedMemberSet::decode(octets)
        .map_err(|error| Failure::new(format!("{} is not a member set: {error}", file.display())))
}

/// Replaces the file in one step, so that a reader never sees half of a set.
pub fn replace(file: &Path, bytes: &[u8]) -> Outcome {
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(".new");
    let written = File::create(&temporary).and_then(|mut new| {
        new.write_all(bytes)?;
        new.sync_all()?;
        fs::rename(&temporary, file)
    });
    Ok(written.map_err(|error| Failure::new(format!("{}: {error}", file.display())))?)
}

/// The set as JSON, for commands and status pages.
pub fn describe(set: &MemberSet) -> Value {
    let suite = |key: &AttestKey| {
        SuiteId::from_byte(key.suite).map_or_else(|| format!("suite {}", key.suite), |suite| suite.name().to_owned())
    };
    let slot = |(number, slot): (u32, &Slot)| {
        json!({
            "slot": number,
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

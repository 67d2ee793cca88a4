//! `keys show`: what a file is, and its public parts, whichever kind of key file or signed file it is.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use wayleave_attestation::pki::Signed;
use wayleave_route_server::directory::{Consent, Directory, MAX_ENCODED, Proposal, Request, Standing};
use wayleave_runtime::clock::utc;
use wayleave_runtime::identity::{Fingerprint, Identity, to_hex};

use super::{capability, keys, node_keys, pki};
use crate::config::router::FormatName;
use crate::failure::{Failure, Outcome};
use crate::key_files::attestation::{self, Keys, load_anchor};
use crate::key_files::capability::Capabilities;
use crate::key_files::forwarding::ForwardingKeys;
use crate::key_files::{member_set, node};
use crate::output::{fields, print, print_json};

/// Octets before the entries of a list of revocations, its signature included, and of each entry.
const LIST: (usize, usize) = (64 + 17, 15);

pub fn run(file: &Path, json: bool) -> Outcome {
    let system = |error| Failure::system(file.display(), &error);
    let meta = fs::metadata(file).map_err(system)?;
    if meta.is_dir() {
        return Err(Failure::new(format!("{} is a folder", file.display()))
            .help("`wayleave keys objects` lists a folder of signed objects, `keys routers` one of certificates")
            .into());
    }
    if meta.len() > MAX_ENCODED as u64 {
        return Err(Failure::new(format!("{} is longer than any key file", file.display())).into());
    }
    let octets = fs::read(file).map_err(system)?;
    if octets.starts_with(b"role = ") {
        return private(file, &octets, json);
    }
    if octets.starts_with(b"-----BEGIN ") {
        keys::show(file, &Identity::load(file)?, json);
        return Ok(());
    }
    if octets.starts_with(b"kind = ")
        && let Some(kind) = node::kind_of(file)
    {
        return node_keys::show(kind, file, json);
    }
    let value = if octets.starts_with(b"name = ") { anchor(file)? } else { signed(file, &octets)? };
    if json {
        let mut value = value;
        value["file"] = json!(file);
        print_json(value);
    } else {
        print(&format!("file  {}\n\n{}", file.display(), fields(&value)));
    }
    Ok(())
}

/// A file of private keys with a header that says for what.
fn private(file: &Path, octets: &[u8], json: bool) -> Outcome {
    if let Some(role) = attestation::role(file) {
        pki::show(role, file, &Keys::load(role, file)?, json);
        return Ok(());
    }
    if capability::is_one(file) {
        capability::show(file, &Capabilities::load(file)?, json);
        return Ok(());
    }
    let text = String::from_utf8_lossy(octets);
    let names = |format: &FormatName| text.contains(&format!("format = \"{}\"", format.name()));
    let format = [FormatName::Scion, FormatName::Platypus, FormatName::Icing].into_iter().find(names);
    match format {
        Some(format) if octets.starts_with(b"role = \"router\"") => {
            keys::show_forwarding(file, &ForwardingKeys::load(format, file)?, json);
            Ok(())
        }
        _ => Err(unknown(file)),
    }
}

/// The public file of a trust anchor.
fn anchor(file: &Path) -> Outcome<Value> {
    let anchor = load_anchor(file)?;
    Ok(json!({
        "kind": "trust anchor, public", "name": anchor.name, "key": format!("ed25519:{}", to_hex(&anchor.public)),
        "post_quantum_key": anchor.post_quantum.map(|key| format!("slh-dsa-sha2-128s:{}", to_hex(&key))),
        "not_before": utc(anchor.not_before), "not_after": utc(anchor.not_after),
    }))
}

/// A member set, a request, a proposal, an object of attestation or a list of revocations.
fn signed(file: &Path, octets: &[u8]) -> Outcome<Value> {
    if let Ok(directory) = Directory::decode(octets) {
        let mut value = member_set::describe(directory.set());
        value["kind"] = json!("member set");
        value["operators"] = json!(directory.operators().map(|key| member_set::key_text(&key)));
        let active: Vec<String> = directory
            .set()
            .iter()
            .filter(|(_, slot)| slot.active)
            .map(|(id, slot)| format!("{id}:{}", slot.name))
            .collect();
        value["members"] = json!(active);
        return Ok(value);
    }
    if let Ok(request) = Request::decode(octets) {
        let claim = &request.claim;
        let what = match &request.consent {
            None => "first slot of its AS",
            Some((Consent::Renewal, ..)) => "new keys or addresses of a slot",
            Some(_) => "further slot of its AS",
        };
        return Ok(json!({
            "kind": "member's request", "exchange": request.exchange, "name": claim.name, "asn": claim.asn, "for": what,
            "tls": Fingerprint(claim.tls).to_string(), "sign": member_set::key_text(&claim.sign),
            "addresses": claim.addresses, "attestation_keys": claim.attest.len(),
            "signature": if request.is_sound() { "holds" } else { "does not hold" },
        }));
    }
    if let Ok(proposal) = Proposal::decode(octets) {
        let held = |change: &&wayleave_route_server::directory::Change| {
            matches!(change, wayleave_route_server::directory::Change::Join { standing: Standing::Held, .. })
        };
        return Ok(json!({
            "kind": "operator's proposal", "party": proposal.party, "changes": proposal.step.changes.len(),
            "held": proposal.step.changes.iter().filter(held).count(),
            "next": "`wayleave members countersign` shows what it changes",
        }));
    }
    if let Ok(object) = Signed::decode(octets) {
        let mut value = pki::describe(&object.object);
        value["signatures"] = json!(if object.is_hybrid() { "Ed25519 and SLH-DSA" } else { "one" });
        value["checked"] = json!("not its signature: `wayleave keys objects` checks it under an anchor");
        return Ok(value);
    }
    if let Some(value) = revocations(octets) {
        return Ok(value);
    }
    Err(unknown(file))
}

/// A list of revoked capabilities, whose signature only its signer's key can show.
fn revocations(octets: &[u8]) -> Option<Value> {
    let (front, entry) = LIST;
    let entries = octets.len().checked_sub(front).filter(|rest| rest % entry == 0)? / entry;
    let number = |at: usize| Some(u64::from_be_bytes(octets.get(at..at + 8)?.try_into().ok()?));
    let (sequence, issued, kind) = (number(64)?, number(72)?, *octets.get(80)?);
    // Within the years 2001 and 2286, which ten digits of seconds can tell.
    (kind <= 1 && (1_000_000_000..10_000_000_000).contains(&issued)).then(|| {
        json!({
            "kind": "list of revoked capabilities", "sequence": sequence, "issued": utc(issued), "entries": entries,
            "checked": "not its signature: `wayleave cap revoked --key` checks it",
        })
    })
}

fn unknown(file: &Path) -> crate::failure::Failures {
    Failure::new(format!("{} is no kind of file that Wayleave's commands make, or it is damaged", file.display()))
        .help(
            "known are: key files of `keys new`, `attest`, `identity`, `anchor` (private and .pub) and `forwarding`; files of `cap mint`, \
             `cap narrow` and `cap revoke-list`; signed objects (profile, record, addition, manifest); member sets, requests and \
             proposals of `members`",
        )
        .into()
}

//! `keys show`: what a file is, and its public parts, whichever kind of key file or signed file it is.

use std::fs;
use std::io::{Read as _, stdin};
use std::path::Path;

use serde_json::{Value, json};
use wayleave_attestation::pki::Signed;
use wayleave_control::capability::{Credential, InvitationLine};
use wayleave_control::realm::{ListKey, ListSigner, RevocationList, Server, Token, verify};
use wayleave_core::IdentityKey;
use wayleave_crypto::hash::sha256;
use wayleave_crypto::signed::Signed as Signature;
use wayleave_packet::icing::mint::TAG_EPOCH;
use wayleave_route_server::directory::{Consent, Directory, MAX_ENCODED, Proposal, Registration, Request};
use wayleave_runtime::api_tls::KeyPin;
use wayleave_runtime::clock::utc;
use wayleave_runtime::identity::{Fingerprint, Identity, to_hex};

use super::{capability, kept_files, keys, node_keys, pki};
use crate::config::kinds::TextKind;
use crate::config::parse::TokenHash;
use crate::config::router::FormatName;
use crate::failure::{Failure, Outcome};
use crate::key_files::attestation::{self, Keys, load_anchor};
use crate::key_files::capability::Capabilities;
use crate::key_files::forwarding::ForwardingKeys;
use crate::key_files::{member_set, membership, node, realm_lists};
use crate::output::{fields, print, print_json};
use crate::roles::role_names;
use zeroize::Zeroizing;

/// Octets of a line, at most.
const MAX_LINE: u64 = 64 * 1024;

/// Octets before the entries of a list of revocations, its signature included, of each entry, and of each source prefix of one that
/// has them, behind the number of entries (4).
const LIST: (usize, usize) = (64 + 17, 15);
const SOURCE: usize = 25;

pub fn run(file: &Path, json: bool) -> Outcome {
    let system = |error| Failure::system(file.display(), &error);
    if file.as_os_str() == "-" {
        let mut text = Zeroizing::new(String::new());
        stdin().take(MAX_LINE).read_to_string(&mut text).map_err(|error| Failure::system("standard input", &error))?;
        let value = line(&text).ok_or_else(|| unknown(file))?;
        return show(Path::new("standard input"), value, json);
    }
    // A public text in the place of a file. Secret lines belong into files: other users of the machine see arguments.
    if let Some(text) =
        file.to_str().filter(|text| !file.exists() && TextKind::of(text).is_some_and(|kind| !kind.is_secret()))
    {
        let value = line(text).ok_or_else(|| unknown(file))?;
        return show(Path::new("-"), value, json);
    }
    let meta = fs::metadata(file).map_err(system)?;
    if meta.is_dir() {
        return Err(Failure::new(format!("{} is a folder", file.display()))
            .help("`wayleave keys objects` lists a folder of signed objects, `keys routers` one of certificates")
            .into());
    }
    if let Some(value) = kept_files::by_head(file, &kept_files::head(file).map_err(system)?) {
        return show(file, value, json);
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
    if octets.starts_with(format!("kind = \"{}\"", realm_lists::KIND).as_bytes()) {
        let (_, signer) = realm_lists::load(file)?;
        let ListSigner::ListKey(_, certificate) = signer else {
            return Err(Failure::new(format!("{} is not a file of a list key", file.display())).into());
        };
        return show(file, list_key(&certificate, "a list key, which is secret", "`list_key` of `[realm]`"), json);
    }
    if octets.starts_with(b"kind = ")
        && let Some(kind) = node::kind_of(file)
    {
        return node_keys::show(kind, file, json);
    }
    if octets.starts_with(b"kind = \"tag-branch\"") {
        return show(file, tag_branch(file)?, json);
    }
    if octets.starts_with(b"name = ")
        && let Ok(value) = anchor(file)
    {
        return show(file, value, json);
    }
    let text = std::str::from_utf8(&octets).unwrap_or_default();
    let value = line(text).or_else(|| kept_files::whole(file, &octets));
    show(file, value.map_or_else(|| signed(file, &octets), Ok)?, json)
}

fn show(file: &Path, mut value: Value, json: bool) -> Outcome {
    if json {
        value["file"] = json!(file);
        print_json(value);
    } else {
        print(&format!("file  {}\n\n{}", file.display(), fields(&value)));
    }
    Ok(())
}

/// A list key by what the realm's key signed of it.
fn list_key(certificate: &Signature<ListKey>, kind: &str, goes_into: &str) -> Value {
    let key = certificate.object();
    json!({
        "kind": kind,
        "goes_into": goes_into,
        "public": format!("list:{}", IdentityKey(key.key)),
        "realm": format!("realm:{}", key.realm),
        "generation": key.generation,
        "until": utc(key.not_after),
        "signature": holds(verify(certificate, &key.realm).is_ok()),
    })
}

fn holds(is_good: bool) -> &'static str {
    if is_good { "holds" } else { "does not hold" }
}

/// A line of text that a command printed: what it is and what of it is no secret.
fn line(text: &str) -> Option<Value> {
    let text = text.trim();
    let kind = TextKind::of(text).filter(|_| text.lines().count() == 1)?;
    let mut value = json!({ "kind": kind.to_string(), "goes_into": kind.goes_into() });
    match kind {
        TextKind::Capability => {
            let credential: Credential = text.parse().ok()?;
            value["terms"] = json!(credential.terms.to_string());
            value["zone"] = json!(credential.zone.to_string());
        }
        TextKind::Invitation => {
            let invitation: InvitationLine = text.parse().ok()?;
            value["id"] = json!(invitation.id.to_string());
            value["url"] = json!(invitation.url.to_string());
            value["api_pin"] = json!(KeyPin(invitation.pin).to_string());
        }
        TextKind::JoinToken => {
            let token: Token = text.parse().ok()?;
            let invitation = token.invitation();
            let grants = &invitation.grants;
            value["realm"] = json!(format!("realm:{}", invitation.realm));
            value["names"] = json!(grants.names.iter().map(ToString::to_string).collect::<Vec<_>>());
            value["roles"] = json!(role_names(grants.roles));
            value["prefixes"] = json!(grants.prefixes.iter().map(ToString::to_string).collect::<Vec<_>>());
            value["until"] = json!(utc(invitation.not_after));
            let server = |server: &Server| format!("{}@{}", node::node_text(&server.identity), server.address);
            value["servers"] = json!(invitation.servers.iter().map(server).collect::<Vec<_>>());
        }
        TextKind::Membership => {
            let signed = membership::parse(text)?;
            let member = signed.object();
            value["realm"] = json!(format!("realm:{}", member.realm));
            value["identity"] = json!(node::node_text(&member.identity));
            value["names"] = json!(member.grants.names.iter().map(ToString::to_string).collect::<Vec<_>>());
            value["roles"] = json!(role_names(member.grants.roles));
            value["prefixes"] = json!(member.grants.prefixes.iter().map(ToString::to_string).collect::<Vec<_>>());
            value["until"] = json!(utc(member.not_after));
            value["signature"] = json!(holds(verify(&signed, &member.realm).is_ok()));
        }
        TextKind::ListKeyCertificate => {
            let certificate = realm_lists::certificate(text)?;
            return Some(list_key(&certificate, &kind.to_string(), kind.goes_into()));
        }
        TextKind::List => {
            let signed = realm_lists::list(text)?;
            let list = signed.object();
            value["realm"] = json!(format!("realm:{}", list.realm));
            value["generation"] = json!(list.generation);
            value["number"] = json!(list.number);
            value["next"] = json!(utc(list.next));
            value["removed"] =
                json!(list.revoked.iter().map(|node| node::node_text(&node.identity)).collect::<Vec<_>>());
            value["signature"] = json!(holds(RevocationList::verify(&signed, &list.realm).is_ok()));
        }
        TextKind::Token => {
            // What the configuration of the key server names.
            value["hash"] = json!(TokenHash(sha256(text.as_bytes())).to_string());
            value["goes_into"] =
                json!("a file of its own, which `--token` of `wayleave cap` names; its hash: `[[key.api.token]]`");
        }
        _ => {}
    }
    Some(value)
}

/// Tags that somebody delegated for an epoch.
fn tag_branch(file: &Path) -> Outcome<Value> {
    let (epoch, bits, depth) = node::load_branch(file)?.scope();
    let until = ((u64::from(epoch) + 1) << TAG_EPOCH) - 1;
    Ok(
        json!({ "kind": "delegated tags, which are secret", "prefix": format!("{bits:08x}/{depth}"), "until": utc(until) }),
    )
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
        "kind": "trust anchor, public", "name": anchor.name, "key": format!("anchor:ed25519:{}", to_hex(&anchor.public)),
        "post_quantum_key": anchor.post_quantum.map(|key| format!("anchor:slh-dsa-sha2-128s:{}", to_hex(&key))),
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
            "pin": Fingerprint(claim.tls).to_string(), "sign": member_set::key_text(&claim.sign),
            "addresses": claim.addresses, "attest": claim.attest.iter().map(member_set::attest_text).collect::<Vec<_>>(),
            "claim": member_set::digest_text(&claim.digest(&request.exchange)),
            "signature": if request.is_sound() { "holds" } else { "does not hold" },
        }));
    }
    if let Ok(proposal) = Proposal::decode(octets) {
        let held = |change: &&wayleave_route_server::directory::Change| {
            matches!(change, wayleave_route_server::directory::Change::Join { registration: Registration::Held, .. })
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
    let rest = octets.get(front..)?;
    let number = |at: usize| Some(u64::from_be_bytes(octets.get(at..at + 8)?.try_into().ok()?));
    let (sequence, issued) = (number(64)?, number(72)?);
    let (entries, sources) = match octets[80] {
        0 | 1 => (rest, &[][..]),
        2 => {
            let (count, rest) = rest.split_first_chunk::<4>()?;
            rest.split_at_checked((u32::from_be_bytes(*count) as usize).checked_mul(entry)?)?
        }
        _ => return None,
    };
    let is_whole = entries.len().is_multiple_of(entry) && sources.len().is_multiple_of(SOURCE);
    // Within the years 2001 and 2286, which ten digits of seconds can tell.
    (is_whole && (1_000_000_000..10_000_000_000).contains(&issued)).then(|| {
        let mut value = json!({
            "kind": "list of revoked capabilities", "sequence": sequence, "issued": utc(issued),
            "entries": entries.len() / entry,
            "checked": "not its signature: `wayleave cap revoked --key` checks it",
        });
        if !sources.is_empty() {
            value["sources"] = json!(sources.len() / SOURCE);
        }
        value
    })
}

fn unknown(file: &Path) -> crate::failure::Failures {
    Failure::new(format!("{} is no kind of file that Wayleave's commands make, or it is damaged", file.display()))
        .help(
            "known are: key files of `keys`, `realm`, `join` and `cap`; lines of text (capabilities, invitations, tokens, memberships, keys, \
             pins, claims), in a file or by `-` from standard input; signed objects and lists; member sets, requests and proposals; \
             configurations, records, states, databases, statements, copies and audit logs. A damaged file of these is not known either",
        )
        .into()
}

//! Files of the member set, of members' requests and of operators' proposals.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde_json::{Value, json};
use wayleave_attestation::suite::SuiteId;
use wayleave_route_server::directory::{
    AttestKey, Change, Claim, Directory, MAX_ENCODED, MemberSet, Proposal, Registration, Request, Slot, SlotId, Trust,
};
use wayleave_runtime::identity::{Fingerprint, to_hex};

use crate::failure::{Failure, Outcome};
use crate::parse::PublicKey;
use crate::profile;
use crate::replace::{self, give_to_owner, open_own};

/// Whom a configuration trusts.
pub fn trust(exchange: &str, operators: &[PublicKey; 2]) -> Trust {
    Trust { exchange: exchange.to_owned(), operators: operators.each_ref().map(|key| key.0.to_bytes()) }
}

/// Reads a directory and checks everything in it; whether its operators are to be trusted is another question.
pub fn read(file: &Path) -> Outcome<Directory> {
    let help = "`wayleave members init` begins a member set";
    let octets = octets(file, help)?;
    let read = Directory::decode(&octets);
    let foreign = |error| Failure::new(format!("{} does not count as a member set: {error}", file.display()));
    Ok(read
        .map_err(|error| foreign(error).help("get the file from the other party's operator, who has the same one"))?)
}

/// Reads a directory that belongs to the exchange and the operators of a configuration: its octets too.
pub fn verified(file: &Path, trust: &Trust) -> Outcome<(Vec<u8>, Directory)> {
    let directory = read(file)?;
    let foreign = |error| {
        Failure::new(format!("{}: {error}", file.display()))
            .help("`exchange` and `operators` must be those that `wayleave members init` was given")
    };
    directory.check(trust).map_err(foreign)?;
    Ok((directory.encode(), directory))
}

/// Reads a member's request; its signatures hold.
pub fn request(file: &Path) -> Outcome<Request> {
    let octets = octets(file, "`wayleave members request` makes one")?;
    let read = Request::decode(&octets);
    let read = read.map_err(|error| Failure::new(format!("{} is not a member's request: {error}", file.display())))?;
    if read.is_sound() {
        return Ok(read);
    }
    let failure = Failure::new(format!("{}: the member's signature does not hold", file.display()));
    Err(failure.help("the file was changed on its way; ask the member for it again").into())
}

/// Reads an operator's proposal; nothing of it is checked.
pub fn proposal(file: &Path) -> Outcome<Proposal> {
    let octets = octets(file, "`wayleave members propose` makes one")?;
    let read = Proposal::decode(&octets);
    Ok(read.map_err(|error| Failure::new(format!("{} is not a proposal: {error}", file.display())))?)
}

fn octets(file: &Path, help: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", file.display())).help(help);
    let length = fs::metadata(file).map_err(failed)?.len();
    if length > MAX_ENCODED as u64 {
        return Err(Failure::new(format!("{}: longer than {MAX_ENCODED} octets", file.display())));
    }
    fs::read(file).map_err(failed)
}

/// Keeps others from changing the file between reading and replacing it, as long as the value lives: `remove` and the party's
/// own process write one file. The lock is on a file beside it, which stays.
pub fn locked(file: &Path) -> Outcome<File> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".lock");
    let beside = Path::new(&beside);
    // Whoever may only read it can lock it too.
    let opened = open_own(beside).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => match File::options().read(true).append(true).create_new(true).open(beside) {
            // Another process was first, and it is its own.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_own(beside),
            made => {
                let made = made?;
                let _ = give_to_owner(&made, file); // fails if this is not root, and then it is its own
                Ok(made)
            }
        },
        _ => Err(error),
    });
    let taken = opened.and_then(|lock| lock.lock().map(|()| lock));
    Ok(taken.map_err(|error| {
        Failure::new(format!("cannot lock {}: {error}", beside.display())).help(
            "it must be an empty file by itself: if it is a link or a folder, ask who put it there, and remove it",
        )
    })?)
}

/// Replaces the file in one step, so that a reader never sees half of a set.
pub fn replace(file: &Path, bytes: &[u8]) -> Outcome {
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let written = replace::put(file, Path::new(&temporary), &[bytes]);
    Ok(written.map_err(|error| Failure::new(format!("{}: {error}", file.display())))?)
}

/// A public key as text.
pub fn key_text(key: &[u8; 32]) -> String {
    format!("sign:ed25519:{}", to_hex(key))
}

fn suite_text(key: &AttestKey) -> String {
    SuiteId::from_byte(key.suite).map_or_else(|| format!("suite {}", key.suite), |suite| suite.name().to_owned())
}

/// An attestation key as an operator compares it.
pub fn attest_text(key: &AttestKey) -> String {
    format!("attest:{}:{}", suite_text(key), to_hex(&key.key))
}

/// What a member tells both operators of its claim, as text.
pub fn digest_text(digest: &[u8; 32]) -> String {
    format!("claim:{}", to_hex(digest))
}

/// The set as JSON, for commands and status pages.
pub fn describe(set: &MemberSet) -> Value {
    let slot = |(number, slot): (u32, &Slot)| {
        json!({
            "slot": number,
            "active": slot.active,
            "name": slot.name,
            "asn": slot.asn,
            "addresses": slot.addresses,
            "max_prefix": slot.max_prefix,
            "held": slot.held,
            "tls": Fingerprint(slot.tls).to_string(),
            "sign": key_text(&slot.sign),
            "attest": set.attest.get(&slot.asn).map_or(&[][..], Vec::as_slice).iter().map(suite_text).collect::<Vec<_>>(),
        })
    };
    let profile = profile::describe_set(set);
    let members: Vec<Value> = set.iter().map(slot).collect();
    json!({ "exchange": set.exchange, "number": set.number, "members": members, "profile": profile })
}

/// What a change does to the set in force, for the operator who is to sign it. `slot` is the number of the next new slot.
pub fn describe_change(directory: &Directory, change: &Change, slot: &mut SlotId) -> Value {
    let set = directory.set();
    let name = |id: SlotId| set.slot(id).map(|slot| slot.name.clone());
    let attest = |claim: &Claim| claim.attest.iter().map(attest_text).collect::<Vec<_>>();
    let claim_digest = |claim: &Claim| digest_text(&claim.digest(&set.exchange));
    match change {
        Change::Join { claim, registration, max_prefix, .. } => {
            let new = *slot;
            *slot += 1;
            let registration = match registration {
                Registration::First => "the first slot of its AS".to_owned(),
                Registration::Endorsed { by, .. } => format!("a further slot; slot {by} of its AS signed for it"),
                Registration::Held => "HELD: no key of an earlier slot of its AS signed for it, and members give it no routes unless they \
                     release it. Ask why before you sign; its member signs the request with such a key, also a removed one \
                     (`wayleave members request --beside OLD.key`), or for the slot later (`wayleave members endorse`)"
                    .to_owned(),
            };
            json!({
                "change": "new slot", "slot": new, "name": claim.name, "asn": claim.asn, "addresses": claim.addresses,
                "max_prefix": max_prefix, "tls": Fingerprint(claim.tls).to_string(), "sign": key_text(&claim.sign),
                "attest": attest(claim), "claim": claim_digest(claim), "standing": registration,
            })
        }
        Change::Renew { slot, claim, .. } => {
            let present = set.slot(*slot).map(|slot| key_text(&slot.sign));
            json!({
                "change": "new keys or addresses", "slot": slot, "name": claim.name, "asn": claim.asn,
                "addresses": claim.addresses, "tls": Fingerprint(claim.tls).to_string(), "sign": key_text(&claim.sign),
                "attest": attest(claim), "claim": claim_digest(claim), "signed_by": present,
            })
        }
        Change::Amend { slot, addresses, max_prefix } => json!({
            "change": "addresses and limit", "slot": slot, "name": name(*slot), "addresses": addresses,
            "max_prefix": max_prefix,
        }),
        Change::Endorse { slot, by, .. } => json!({
            "change": "held no more", "slot": slot, "name": name(*slot), "signed_by": format!("slot {by} of its AS"),
        }),
        Change::Left { slot } => json!({ "change": "has left", "slot": slot, "name": name(*slot) }),
        Change::Operator { party, key, .. } => {
            json!({ "change": "new operator's key", "party": party, "sign": key_text(key) })
        }
        Change::Profile(profile) => {
            json!({ "change": "profile", "profile": profile::differences(set.profile.as_ref(), profile) })
        }
        Change::Data(data) => {
            json!({ "change": "data", "profile": profile::data_differences(set.data.as_ref(), data.as_ref()) })
        }
    }
}

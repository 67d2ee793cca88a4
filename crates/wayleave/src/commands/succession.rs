//! What a new object of a publisher drops of the one that it replaces. A publisher has one record, one profile and one addition
//! for each AS, so that a new one silently takes the protection of what only the earlier one lists.

use clap::Args;
use wayleave_attestation::pki::{Object, ProfileKey, Record, Strictness};
use wayleave_runtime::clock::utc;
use wayleave_runtime::identity::to_hex;

use crate::failure::Failure;

/// What becomes of the object of the same kind and AS that was published before.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Earlier {
    /// List also what the present object of this AS lists.
    #[arg(long)]
    pub add: bool,
    /// Take the present object's place, also if it lists what this one does not.
    #[arg(long, conflicts_with = "add")]
    pub replace: bool,
}

/// The new object as it is to be signed, where `earlier` is in force, and what it drops of that.
pub fn follow(how: Earlier, earlier: &Object, new: Object) -> Result<(Object, Vec<String>), Failure> {
    let new = if how.add { joined(earlier, new) } else { new };
    let dropped = dropped(earlier, &new);
    if dropped.is_empty() || how.replace {
        return Ok((new, dropped));
    }
    let (kind, asn) = (new.kind_name(), new.asn());
    let consequence = match new {
        Object::Record(_) => "a prefix that no record lists, or that is not said to be attested, is not protected",
        _ => "what is signed with a key that is not listed is invalid",
    };
    Err(Failure::new(format!("the {kind} of {asn} in force lists what this one does not: {}", dropped.join(", ")))
        .help(format!("--add lists all of it, too; --replace drops it: {consequence}")))
}

/// That the present object is not at hand, so that nobody can say what a new one drops.
pub fn unseen(kind: &str, asn: wayleave_core::Asn, why: &str) -> Failure {
    Failure::new(format!("the present {kind} of {asn} cannot be compared with the new one: {why}"))
        .help("put the file back; or --replace drops whatever it lists")
}

fn joined(earlier: &Object, new: Object) -> Object {
    match (earlier, new) {
        (Object::Record(before), Object::Record(mut new)) => {
            for (prefix, most) in &before.prefixes {
                if !new.prefixes.iter().any(|(listed, longest)| listed == prefix && longest >= most) {
                    new.prefixes.retain(|(listed, _)| listed != prefix);
                    new.prefixes.push((*prefix, *most));
                }
            }
            new.prefixes.sort();
            new.attested_since = new.attested_since.or(before.attested_since);
            Object::Record(new)
        }
        (Object::Profile(before), Object::Profile(mut new)) => {
            new.keys = union(&before.keys, new.keys);
            Object::Profile(new)
        }
        (Object::Addition(before), Object::Addition(mut new)) => {
            new.keys = union(&before.keys, new.keys);
            Object::Addition(new)
        }
        (_, new) => new,
    }
}

fn union(before: &[ProfileKey], mut keys: Vec<ProfileKey>) -> Vec<ProfileKey> {
    let missing: Vec<ProfileKey> = before.iter().filter(|key| !keys.contains(key)).cloned().collect();
    keys.extend(missing);
    keys.sort();
    keys
}

/// What `earlier` says and `new` does not, in words.
fn dropped(earlier: &Object, new: &Object) -> Vec<String> {
    match (earlier, new) {
        (Object::Record(before), Object::Record(new)) => of_record(before, new),
        (Object::Profile(before), Object::Profile(new)) => of_keys(&before.keys, &new.keys),
        (Object::Addition(before), Object::Addition(new)) => of_keys(&before.keys, &new.keys),
        _ => Vec::new(),
    }
}

fn of_record(before: &Record, new: &Record) -> Vec<String> {
    let is_listed = |(prefix, most): &(wayleave_core::Prefix, u8)| {
        new.prefixes.iter().any(|(listed, longest)| listed == prefix && longest >= most)
    };
    let words = |(prefix, most): &(wayleave_core::Prefix, u8)| match *most == prefix.len() {
        true => prefix.to_string(),
        false => format!("{prefix}-{most}"),
    };
    let mut dropped: Vec<String> = before.prefixes.iter().filter(|prefix| !is_listed(prefix)).map(words).collect();
    let rank = |strictness: Strictness| match strictness {
        Strictness::Prefer => 1,
        Strictness::Strict => 2,
        Strictness::PostQuantum => 3,
    };
    if let Some((since, strictness)) = before.attested_since {
        let name = serde_json::to_value(strictness).unwrap_or_default();
        let name = name.as_str().unwrap_or_default();
        match new.attested_since {
            None => dropped.push(format!("attested {name}")),
            Some((_, now)) if rank(now) < rank(strictness) => dropped.push(format!("attested {name}")),
            Some((now, _)) if now > since => dropped.push(format!("attested since {} (now {})", utc(since), utc(now))),
            Some(_) => {}
        }
    }
    dropped
}

fn of_keys(before: &[ProfileKey], new: &[ProfileKey]) -> Vec<String> {
    let words = |key: &ProfileKey| {
        let role = serde_json::to_value(key.role).unwrap_or_default();
        let hex = to_hex(&key.public);
        format!("{}:{}:{}", role.as_str().unwrap_or_default(), key.suite.name(), &hex[..hex.len().min(16)])
    };
    before.iter().filter(|key| !new.contains(key)).map(words).collect()
}

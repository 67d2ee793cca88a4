//! What arouteserver sets for a client (`cfg` in `clients.yml`), as far as Wayleave knows it; the rest is listed.

use wayleave_core::{Afi, Prefix};

use super::view::View;
use super::{Entry, Faults, MAX_OF_ENTRY, shown};

/// Prefixes that are not taken from a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The setting that says so.
    pub setting: &'static str,
    /// As rules write them.
    pub prefixes: Vec<String>,
}

/// A setting that has no equivalent in what an import writes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NotTaken {
    /// As `filtering.roles.enabled`.
    pub setting: String,
    /// Its value; none where it is a secret.
    pub value: Option<String>,
}

/// Whether a setting's name says that its value is a secret.
fn is_secret(setting: &str) -> bool {
    let setting = setting.to_lowercase();
    ["passw", "secret", "md5", "key"].iter().any(|word| setting.contains(word))
}

impl Entry {
    /// Lists a setting that is not taken. A secret stays where it is; and beyond the limit the entry is refused.
    pub(super) fn leave(&mut self, setting: &str, value: &View<'_>) {
        if self.not_taken.len() > MAX_OF_ENTRY {
            return;
        }
        let value = (!is_secret(setting)).then(|| value.summary());
        self.not_taken.push(NotTaken { setting: shown(setting), value });
    }
}

impl NotTaken {
    /// What to do in its place.
    pub fn instead(&self) -> &'static str {
        let known = INSTEAD.iter().find(|(setting, _)| {
            self.setting == *setting || self.setting.strip_prefix(setting).is_some_and(|rest| rest.starts_with('.'))
        });
        known.map_or("no equivalent for one member", |(_, instead)| *instead)
    }
}

/// Where it is listed, routers of one AS have it otherwise; else it is taken.
const DIFFERS: &str =
    "routers of this AS differ in it, and rules for others are by AS: it is in the member's own policy.toml alone";

const INSTEAD: [(&str, &str); 15] = [
    ("filtering.black_list_pref", DIFFERS),
    ("filtering.ipv4_pref_len", DIFFERS),
    ("filtering.ipv6_pref_len", DIFFERS),
    ("password", "not copied: the member puts it into `password_file` of [router]"),
    ("gtsm", "the member sets `ttl_security` in [router]"),
    ("multihop", "the member sets `ttl` in [router]"),
    ("passive", "the member's proxy connects only if [router] has `connect`"),
    ("add_path", "ADD-PATH is not negotiated: one route for each prefix"),
    ("prepend_rs_as", "a proxy adds no AS number to paths (RFC 7947)"),
    ("16bit_mapped_asn", "large communities name 32-bit AS numbers"),
    ("attach_custom_communities", "each receiver can add communities by an import rule (`add_community`)"),
    ("filtering.max_as_path_len", "every proxy refuses paths of more than 64 hops"),
    (
        "filtering.next_hop.policy",
        "next hops are the addresses in the member set; `authorized_addresses_list` is taken",
    ),
    (
        "filtering.max_prefix",
        "a limit of the member set counts IPv4 and IPv6 together, and takes no new prefix beyond it",
    ),
    ("filtering.irrdb", "AS sets are kept in members.csv"),
];

/// Reads a client's `cfg`. What the general configuration says is not in this file.
pub(super) fn read(cfg: &View<'_>, entry: &mut Entry, faults: &mut Faults) {
    walk(cfg, &mut String::new(), entry, faults);
}

fn walk(at: &View<'_>, path: &mut String, entry: &mut Entry, faults: &mut Faults) {
    for (key, value) in at.entries(faults) {
        let before = path.len();
        if before > 0 {
            path.push('.');
        }
        path.push_str(&shown(key));
        if !setting(path, &value, entry, faults) {
            if value.is_map() {
                walk(&value, path, entry, faults);
            } else if !value.is_unset() {
                entry.leave(path, &value);
            }
        }
        path.truncate(before);
    }
}

/// Whether it is a setting that is known here.
fn setting(path: &str, value: &View<'_>, entry: &mut Entry, faults: &mut Faults) -> bool {
    match path {
        "filtering.irrdb.as_sets" => entry.as_sets.extend(as_sets(value, &mut entry.not_taken)),
        "filtering.max_prefix.limit_ipv4" => entry.limits[0] = limit(value, faults),
        "filtering.max_prefix.limit_ipv6" => entry.limits[1] = limit(value, faults),
        "filtering.ipv4_pref_len" => entry.refused.extend(outside(value, Afi::Ipv4, faults)),
        "filtering.ipv6_pref_len" => entry.refused.extend(outside(value, Afi::Ipv6, faults)),
        "filtering.black_list_pref" => {
            let items = value.items(faults);
            let all = items.iter().take(MAX_OF_ENTRY + 1).filter_map(|item| black_listed(item, faults));
            let all: Vec<String> = all.collect();
            if !all.is_empty() {
                entry.refused.push(Refused { setting: "filtering.black_list_pref", prefixes: all });
            }
        }
        "filtering.next_hop.policy" => match value.text() {
            // As every next hop is held to the member's own addresses.
            Some("strict" | "authorized_addresses") | None => {}
            Some(_) => entry.leave(path, value),
        },
        "filtering.next_hop.authorized_addresses_list" => {
            for item in value.items(faults).into_iter().take(MAX_OF_ENTRY + 1) {
                if let Some(address) = item.address(faults) {
                    entry.next_hops.push((address, item.place()));
                }
            }
        }
        _ => return false,
    }
    true
}

/// A limit; 0 is none.
pub(super) fn limit(value: &View<'_>, faults: &mut Faults) -> Option<u32> {
    if value.node.is_null() {
        return None;
    }
    value.number(u32::MAX, faults).filter(|limit| *limit > 0)
}

/// The names of AS sets (RFC 2622), also with their registry. What is no such name is listed.
pub(super) fn as_sets(value: &View<'_>, not_taken: &mut Vec<NotTaken>) -> Vec<String> {
    let mut sets: Vec<String> = Vec::new();
    for item in value.one_or_many() {
        for word in item.text().unwrap_or_default().split([' ', ',']).filter(|word| !word.is_empty()) {
            let is_name = word.starts_with(|c: char| c.is_ascii_alphanumeric())
                && word.len() <= 128
                && word.chars().all(|c| c.is_ascii_alphanumeric() || "_:.@-/".contains(c));
            if sets.len() > MAX_OF_ENTRY || not_taken.len() > MAX_OF_ENTRY {
                return sets; // the entry is refused for it
            }
            match is_name {
                true if sets.iter().any(|known| known == word) => {}
                true => sets.push(word.to_owned()),
                false => not_taken.push(NotTaken { setting: "as_sets".to_owned(), value: Some(shown(word)) }),
            }
        }
    }
    sets
}

/// What is shorter or longer than allowed, as rules write it.
fn outside(value: &View<'_>, afi: Afi, faults: &mut Faults) -> Option<Refused> {
    let (setting, whole) = match afi {
        Afi::Ipv4 => ("filtering.ipv4_pref_len", "0.0.0.0/0"),
        Afi::Ipv6 => ("filtering.ipv6_pref_len", "::/0"),
    };
    let bits = u32::from(afi.bits());
    let end = |key: &str, default: u32, faults: &mut Faults| match value.get(key) {
        Some(end) => end.number(bits, faults),
        None => Some(default),
    };
    if !value.is_map() {
        if !value.is_unset() {
            faults.at(&value.place(), "expected `min` and `max`");
        }
        return None;
    }
    let (least, most) = (end("min", 0, faults)?, end("max", bits, faults)?);
    if least > most {
        faults.at(&value.place(), format!("`min` {least} is more than `max` {most}"));
        return None;
    }
    let mut prefixes = Vec::new();
    if least > 0 {
        prefixes.push(format!("{whole}{{0,{}}}", least - 1));
    }
    if most < bits {
        prefixes.push(format!("{whole}{{{},{bits}}}", most + 1));
    }
    (!prefixes.is_empty()).then_some(Refused { setting, prefixes })
}

/// An entry of a list of prefixes: with all that are more specific, unless it says otherwise.
fn black_listed(item: &View<'_>, faults: &mut Faults) -> Option<String> {
    let (Some(address), Some(length)) = (item.get("prefix"), item.get("length")) else {
        faults.at(&item.place(), "expected `prefix` and `length`");
        return None;
    };
    let (address, length) = (address.address(faults)?, length.number(128, faults)?);
    let Some(prefix) = u8::try_from(length).ok().and_then(|length| Prefix::truncated(address, length).ok()) else {
        faults.at(&item.place(), format!("{address} has no prefixes of {length} bits"));
        return None;
    };
    let bits = u32::from(prefix.afi().bits());
    let end = |key: &str, faults: &mut Faults| match item.get(key) {
        Some(end) => end.number(bits, faults).map(Some),
        None => Some(None),
    };
    let (least, most) = (end("ge", faults)?, end("le", faults)?);
    let is_exact = match item.get("exact") {
        Some(exact) => exact.truth(faults)?,
        None => false,
    };
    let (from, to) = (least.unwrap_or(length), most.unwrap_or(bits));
    if from < length || from > to {
        faults.at(&item.place(), format!("no lengths from {from} to {to} of {prefix}"));
        return None;
    }
    Some(match (is_exact, least, most) {
        (true, None, None) => prefix.to_string(),
        (true, ..) => {
            faults.at(&item.place(), "`exact` with `ge` or `le`, expected one of them");
            return None;
        }
        (false, None, None) => format!("{prefix}+"),
        (false, ..) => format!("{prefix}{{{from},{to}}}"),
    })
}

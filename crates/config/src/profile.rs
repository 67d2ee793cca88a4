//! The file of an exchange's profile, which `wayleave members propose --profile` signs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toml::Spanned;
use wayleave_core::{Afi, Asn};
use wayleave_route_server::directory::{
    Blackhole, DataRules, Lengths, MAX_BLACKHOLE_ASNS, MAX_TRANSIT_FREE, MemberSet, Profile, TRANSIT_FREE, can_drop,
};
use wayleave_route_server::policy::validate::MAX_PATH;
use wayleave_runtime::identity::to_hex;

use super::parse::{PublicKey, Text};
use super::{Fault, Source};
use crate::failure::Failures;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    pub profile: ProfileSection,
}

/// `[profile]`. What is absent is as [`Profile::default`] has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSection {
    pub ipv4_shortest: Option<Spanned<u8>>,
    pub ipv4_longest: Option<Spanned<u8>>,
    pub ipv6_shortest: Option<Spanned<u8>>,
    pub ipv6_longest: Option<Spanned<u8>>,
    pub max_hops: Option<Spanned<u8>>,
    pub refuse_bogon_asns: Option<bool>,
    pub refuse_as_set: Option<bool>,
    pub refuse_rpki_invalid: Option<bool>,
    pub refuse_aspa_invalid: Option<bool>,
    pub transit_free: Option<Spanned<Vec<Spanned<Asn>>>>,
    pub blackhole: Option<BlackholeSection>,
    pub data: Option<Spanned<DataSection>>,
}

/// `[profile.data]`: the exchange has data ([`wayleave_route_server::data`]).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// The machine keys of party 1's and party 2's operators.
    pub keys: Spanned<[Text<PublicKey>; 2]>,
    pub irr_origin: Option<bool>,
    pub irr_prefix: Option<bool>,
    pub rpki_before_irr: Option<bool>,
    pub irr_missing: Option<Missing>,
}

/// What becomes of the routes of a member that the data have no list of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    Accept,
    Refuse,
}

/// `[profile.blackhole]`: BLACKHOLE (RFC 7999) is offered.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlackholeSection {
    pub next_hop4: Option<Spanned<Text<Ipv4Addr>>>,
    pub next_hop6: Option<Spanned<Text<Ipv6Addr>>>,
    /// Absent: every member.
    pub allowed: Option<Spanned<Vec<Spanned<Asn>>>>,
}

/// Reads a profile's file.
///
/// # Errors
/// Every fault, with its place.
pub fn read(path: &Path) -> Result<(Profile, Option<DataRules>), Failures> {
    let source = Source::read_named(path, "--profile")?;
    let file: ProfileFile = source.parse()?;
    file.profile.profile().map_err(|faults| Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
}

impl ProfileSection {
    fn profile(&self) -> Result<(Profile, Option<DataRules>), Vec<Fault>> {
        let (default, mut faults) = (Profile::default(), Vec::new());
        let ipv4 = self.lengths(Afi::Ipv4, default.ipv4, &mut faults);
        let ipv6 = self.lengths(Afi::Ipv6, default.ipv6, &mut faults);
        if let Some(hops) = self.max_hops.as_ref().filter(|hops| !(1..=MAX_PATH).contains(&(*hops.get_ref()).into())) {
            let message = format!("a path of {} hops, expected 1 to {MAX_PATH}", hops.get_ref());
            faults.push(Fault::at(hops.span(), message));
        }
        let transit_free = asns(self.transit_free.as_ref(), MAX_TRANSIT_FREE, &mut faults).unwrap_or_default();
        let blackhole = self.blackhole.as_ref().map(|section| section.blackhole(&mut faults));
        let profile = Profile {
            ipv4,
            ipv6,
            max_hops: self.max_hops.as_ref().map_or(default.max_hops, |hops| *hops.get_ref()),
            refuse_bogon_asns: self.refuse_bogon_asns.unwrap_or(default.refuse_bogon_asns),
            refuse_as_set: self.refuse_as_set.unwrap_or(default.refuse_as_set),
            refuse_rpki_invalid: self.refuse_rpki_invalid.unwrap_or(default.refuse_rpki_invalid),
            refuse_aspa_invalid: self.refuse_aspa_invalid.unwrap_or(default.refuse_aspa_invalid),
            transit_free,
            blackhole,
        };
        let data = self.data.as_ref().map(|section| section.get_ref().rules());
        if let Some((section, Err(_))) = self.data.as_ref().zip(data.as_ref().map(DataRules::check)) {
            let fault =
                Fault::at(section.get_ref().keys.span(), "one key twice, expected the machine keys of two operators");
            faults.push(fault.help(
                "each operator makes one with `wayleave keys new`, and keeps its file on the machine that signs data",
            ));
        }
        if let (true, Err(error)) = (faults.is_empty(), profile.check()) {
            faults.push(Fault { span: None, message: error.to_string(), help: None });
        }
        if faults.is_empty() { Ok((profile, data)) } else { Err(faults) }
    }

    fn lengths(&self, afi: Afi, default: Lengths, faults: &mut Vec<Fault>) -> Lengths {
        let (shortest, longest) = match afi {
            Afi::Ipv4 => (&self.ipv4_shortest, &self.ipv4_longest),
            Afi::Ipv6 => (&self.ipv6_shortest, &self.ipv6_longest),
        };
        let number = |value: &Option<Spanned<u8>>, default| value.as_ref().map_or(default, |value| *value.get_ref());
        let lengths =
            Lengths { shortest: number(shortest, default.shortest), longest: number(longest, default.longest) };
        let bits = afi.bits();
        for value in [shortest, longest].into_iter().flatten() {
            if !(1..=bits).contains(value.get_ref()) {
                let message = format!("no prefix of the family has length {}, expected 1 to {bits}", value.get_ref());
                faults.push(Fault::at(value.span(), message));
            }
        }
        if let Some(value) = shortest.as_ref().or(longest.as_ref()).filter(|_| lengths.shortest > lengths.longest) {
            let message = format!(
                "from {} to {} there is no length, expected the shortest before the longest",
                lengths.shortest, lengths.longest
            );
            faults.push(Fault::at(value.span(), message));
        }
        lengths
    }
}

impl DataSection {
    fn rules(&self) -> DataRules {
        let default = DataRules::default();
        DataRules {
            keys: self.keys.get_ref().each_ref().map(|key| key.0.0.to_bytes()),
            irr_origin: self.irr_origin.unwrap_or(default.irr_origin),
            irr_prefix: self.irr_prefix.unwrap_or(default.irr_prefix),
            rpki_before_irr: self.rpki_before_irr.unwrap_or(default.rpki_before_irr),
            refuse_without_list: self
                .irr_missing
                .map_or(default.refuse_without_list, |missing| missing == Missing::Refuse),
        }
    }
}

impl BlackholeSection {
    fn blackhole(&self, faults: &mut Vec<Fault>) -> Blackhole {
        let mut check = |address: IpAddr, span: std::ops::Range<usize>| {
            if !can_drop(address) {
                let message =
                    format!("no router can have {address} on the exchange's network, expected an address there");
                faults.push(
                    Fault::at(span, message).help("one at which nothing answers, or that of a host that drops packets"),
                );
            }
        };
        if let Some(next_hop) = &self.next_hop4 {
            check(next_hop.get_ref().0.into(), next_hop.span());
        }
        if let Some(next_hop) = &self.next_hop6 {
            check(next_hop.get_ref().0.into(), next_hop.span());
        }
        Blackhole {
            next_hop4: self.next_hop4.as_ref().map(|next_hop| next_hop.get_ref().0),
            next_hop6: self.next_hop6.as_ref().map(|next_hop| next_hop.get_ref().0),
            allowed: asns(self.allowed.as_ref(), MAX_BLACKHOLE_ASNS, faults),
        }
    }
}

/// A list of AS numbers in order; each once, and not too many.
fn asns(list: Option<&Spanned<Vec<Spanned<Asn>>>>, most: usize, faults: &mut Vec<Fault>) -> Option<Vec<Asn>> {
    let list = list?;
    let mut sorted: Vec<&Spanned<Asn>> = list.get_ref().iter().collect();
    sorted.sort_by_key(|asn| *asn.get_ref());
    if sorted.len() > most {
        let message = format!("{} AS numbers, expected {most} at most", sorted.len());
        faults.push(Fault::at(list.span(), message));
    }
    for pair in sorted.windows(2).filter(|pair| pair[0].get_ref() == pair[1].get_ref()) {
        faults.push(Fault::at(pair[1].span(), format!("{} twice, expected it once", pair[1].get_ref())));
    }
    Some(sorted.into_iter().map(|asn| *asn.get_ref()).collect())
}

/// The profile as JSON, by the keys of the file.
#[must_use]
pub fn describe(profile: &Profile, data: Option<&DataRules>) -> Value {
    let of_data = data.map(|data| data_rows(Some(data))).unwrap_or_default();
    let rows = rows(Some(profile)).into_iter().chain(of_data).map(|(key, value)| (key.to_owned(), value));
    Value::Object(rows.collect())
}

/// What a member set has of them: its profile, its rules of data, or both; `None`: neither.
#[must_use]
pub fn describe_set(set: &MemberSet) -> Option<Value> {
    let data = set.data.as_ref();
    match &set.profile {
        Some(profile) => Some(describe(profile, data)),
        None => data.map(|data| {
            Value::Object(data_rows(Some(data)).into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
        }),
    }
}

/// What another profile changes: the old and the new value of each key that differs. Without an old one, all.
#[must_use]
pub fn differences(before: Option<&Profile>, after: &Profile) -> Map<String, Value> {
    let both = rows(before).into_iter().zip(rows(Some(after)));
    let differ = both.filter(|((_, old), (_, new))| old != new);
    differ.map(|((key, old), (_, new))| (key.to_owned(), json!({ "old": old, "new": new }))).collect()
}

/// The same of the rules of data.
#[must_use]
pub fn data_differences(before: Option<&DataRules>, after: Option<&DataRules>) -> Map<String, Value> {
    let both = data_rows(before).into_iter().zip(data_rows(after));
    let differ = both.filter(|((_, old), (_, new))| old != new);
    differ.map(|((key, old), (_, new))| (key.to_owned(), json!({ "old": old, "new": new }))).collect()
}

/// Each key of `[profile.data]` with its value; null without the section.
fn data_rows(data: Option<&DataRules>) -> Vec<(&'static str, Value)> {
    let of = |value: fn(&DataRules) -> Value| data.map_or(Value::Null, value);
    vec![
        ("data_keys", of(|data| json!(data.keys.map(|key| format!("sign:ed25519:{}", to_hex(&key)))))),
        ("irr_origin", of(|data| json!(data.irr_origin))),
        ("irr_prefix", of(|data| json!(data.irr_prefix))),
        ("rpki_before_irr", of(|data| json!(data.rpki_before_irr))),
        ("irr_missing", of(|data| json!(if data.refuse_without_list { "refuse" } else { "accept" }))),
    ]
}

/// Each key with its value; null without a profile.
fn rows(profile: Option<&Profile>) -> Vec<(&'static str, Value)> {
    let of = |value: fn(&Profile) -> Value| profile.map_or(Value::Null, value);
    let blackhole = profile.and_then(|profile| profile.blackhole.as_ref());
    let allowed = blackhole.map(|blackhole| match &blackhole.allowed {
        None => json!("all"),
        Some(asns) => json!(asns),
    });
    vec![
        ("ipv4_shortest", of(|profile| json!(profile.ipv4.shortest))),
        ("ipv4_longest", of(|profile| json!(profile.ipv4.longest))),
        ("ipv6_shortest", of(|profile| json!(profile.ipv6.shortest))),
        ("ipv6_longest", of(|profile| json!(profile.ipv6.longest))),
        ("max_hops", of(|profile| json!(profile.max_hops))),
        ("refuse_bogon_asns", of(|profile| json!(profile.refuse_bogon_asns))),
        ("refuse_as_set", of(|profile| json!(profile.refuse_as_set))),
        ("refuse_rpki_invalid", of(|profile| json!(profile.refuse_rpki_invalid))),
        ("refuse_aspa_invalid", of(|profile| json!(profile.refuse_aspa_invalid))),
        ("transit_free", of(|profile| json!(profile.transit_free))),
        ("blackhole", of(|profile| json!(profile.blackhole.is_some()))),
        ("blackhole_next_hop4", json!(blackhole.and_then(|blackhole| blackhole.next_hop4))),
        ("blackhole_next_hop6", json!(blackhole.and_then(|blackhole| blackhole.next_hop6))),
        ("blackhole_allowed", json!(allowed)),
    ]
}

/// What no receiver can check, so that it is as the announcer says.
pub const RESTS_ON_ANNOUNCERS: &str = "every member's own proxy checks this of every route that it receives; on the announcer's honesty rests \
     whether its network really has the path behind its own AS, and whether packets to a blackhole are unwanted";

/// Two public keys that the template shows.
const EXAMPLE_KEYS: [&str; 2] = [
    "sign:ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "sign:ed25519:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
];

/// A profile's file with every default and what it means.
#[must_use]
pub fn template() -> String {
    let Profile { ipv4, ipv6, max_hops, .. } = Profile::default();
    let transit_free = TRANSIT_FREE.map(|asn| asn.0.to_string()).join(", ");
    format!(
        "# The profile of an exchange: what every route must be. Sign it with the member set:\n\
         #   wayleave members propose MEMBERS --operator KEY --out next.proposal --profile profile.toml\n\
         # A key that is left out has the value that stands here, but for `transit_free` and [profile.blackhole], which are empty then.\n\
         \n\
         [profile]\n\
         # Lengths of prefixes, both included (RFC 7454 section 6.1.3).\n\
         ipv4_shortest = {}\n\
         ipv4_longest = {}\n\
         ipv6_shortest = {}\n\
         ipv6_longest = {}\n\
         # Hops of the longest AS path, at most {MAX_PATH} (RFC 7454 section 9).\n\
         max_hops = {max_hops}\n\
         # Refuse reserved AS numbers on the path (RFC 5398, 6793, 6996, 7300, 7607).\n\
         refuse_bogon_asns = true\n\
         # Refuse paths with an AS_SET (RFC 9774), also where a member has `accept_as_set`.\n\
         refuse_as_set = true\n\
         # Refuse routes whose origin the RPKI says is not the prefix's (RFC 6811).\n\
         refuse_rpki_invalid = true\n\
         # Refuse routes whose path is a leak by the ASPA records of the RPKI (draft-ietf-sidrops-aspa-verification).\n\
         refuse_aspa_invalid = false\n\
         # ASes that buy transit from nobody: behind a member's own AS on the path, one of them is a leak (RFC 7908).\n\
         transit_free = [{transit_free}]\n\
         \n\
         # Offer BLACKHOLE (65535:666, RFC 7999): routes with it may be as long as one host, their next hop becomes this one at the\n\
         # receiver, and NO_EXPORT is added. Without the section routes with it are refused.\n\
         #[profile.blackhole]\n\
         #next_hop4 = \"192.0.2.66\"\n\
         #next_hop6 = \"2001:db8::66\"\n\
         # Who may announce them; every member without this line.\n\
         #allowed = [64497]\n\
         \n\
         # Data of the exchange: IRR lists and bogons, which machines of both operators sign (`wayleave members data`).\n\
         #[profile.data]\n\
         # The machine keys of party 1's and party 2's operators: lines `sign` of `wayleave keys show`.\n\
         #keys = [\"{}\", \"{}\"]\n\
         # Refuse origins, and prefixes, that the registries do not have for the announcer.\n\
         #irr_origin = true\n\
         #irr_prefix = true\n\
         # A route that is valid by the RPKI need not be in the list of prefixes.\n\
         #rpki_before_irr = false\n\
         # Routes of a member without a list: \"refuse\" or \"accept\".\n\
         #irr_missing = \"refuse\"\n",
        ipv4.shortest, ipv4.longest, ipv6.shortest, ipv6.longest, EXAMPLE_KEYS[0], EXAMPLE_KEYS[1]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &str) -> Result<(Profile, Option<DataRules>), Vec<Fault>> {
        let source = Source::of_text("profile.toml", text);
        source.parse::<ProfileFile>().expect("the form of a profile").profile.profile()
    }

    fn profile(text: &str) -> Result<Profile, Vec<Fault>> {
        both(text).map(|(profile, _)| profile)
    }

    #[test]
    fn the_template_says_the_defaults_and_what_it_shows_as_an_example_is_valid() {
        let expected = Profile { transit_free: TRANSIT_FREE.to_vec(), ..Profile::default() };
        assert_eq!(profile(&template()).expect("sound"), expected);
        assert_eq!(profile("[profile]\n").expect("sound"), Profile::default());
        let text = template();
        let uncommented: String = text.lines().fold(String::new(), |all, line| {
            all + line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line) + "\n"
        });
        let blackhole = profile(&uncommented).expect("sound").blackhole.expect("offered");
        assert_eq!(blackhole.next_hop4, Some(Ipv4Addr::new(192, 0, 2, 66)));
        assert!(blackhole.permits(Asn(64_497)) && !blackhole.permits(Asn(64_498)));
        let data = both(&uncommented).expect("sound").1.expect("keys");
        assert_eq!(data, DataRules { keys: data.keys, ..DataRules::default() });
        assert_eq!(both("[profile]\n").expect("sound").1, None);
        let accepts =
            both(&uncommented.replace("irr_missing = \"refuse\"", "irr_missing = \"accept\"")).expect("sound").1;
        assert!(accepts.is_some_and(|rules| !rules.refuse_without_list));
        let one_key = uncommented.replace(EXAMPLE_KEYS[1], EXAMPLE_KEYS[0]);
        assert!(both(&one_key).expect_err("one key").iter().any(|fault| fault.message.starts_with("one key twice")));
    }

    #[test]
    fn what_no_exchange_can_mean_is_refused_with_its_place() {
        for (line, what) in [
            ("ipv4_longest = 33", "no prefix of the family has length 33, expected 1 to 32"),
            ("ipv6_shortest = 0", "no prefix of the family has length 0, expected 1 to 128"),
            ("ipv4_shortest = 25", "from 25 to 24 there is no length, expected the shortest before the longest"),
            ("max_hops = 65", "a path of 65 hops, expected 1 to 64"),
            ("transit_free = [174, 3356, 174]", "AS174 twice, expected it once"),
            ("blackhole.next_hop4 = \"127.0.0.1\"", "no router can have 127.0.0.1"),
            ("blackhole.next_hop6 = \"fe80::1\"", "no router can have fe80::1"),
        ] {
            let faults = profile(&format!("[profile]\n{line}\n")).expect_err(line);
            assert!(faults[0].message.starts_with(what) && faults[0].span.is_some(), "{line}: {faults:?}");
        }
        let source = Source::of_text("profile.toml", "[profile]\nlongest = 24\n");
        let failures = source.parse::<ProfileFile>().expect_err("no such key");
        assert!(failures.0[0].place().is_some_and(|place| place.starts_with("profile.toml:2:1")), "{failures:?}");
    }

    #[test]
    fn a_change_has_the_old_and_the_new_value_of_what_differs() {
        let (before, after) = (Profile::default(), Profile { max_hops: 20, ..Profile::default() });
        let changed = differences(Some(&before), &after);
        assert_eq!(Value::Object(changed), json!({ "max_hops": { "old": 32, "new": 20 } }));
        assert!(differences(Some(&before), &before).is_empty());
        let first = differences(None, &after);
        assert_eq!(first["ipv4_longest"], json!({ "old": null, "new": 24 }));
        assert!(!first.contains_key("blackhole_next_hop4"), "there was none before, and there is none");
    }

    #[test]
    fn rules_of_data_are_shown_without_a_profile_too() {
        let set = |profile, data| MemberSet {
            exchange: "x".to_owned(),
            number: 0,
            slots: Vec::new(),
            attest: Default::default(),
            profile,
            data,
        };
        assert_eq!(describe_set(&set(None, None)), None);
        let shown = describe_set(&set(None, Some(DataRules::default()))).expect("shown");
        assert!(shown["irr_origin"] == true && shown.get("max_hops").is_none(), "{shown}");
        let shown = describe_set(&set(Some(Profile::default()), Some(DataRules::default()))).expect("shown");
        assert!(shown["irr_origin"] == true && shown["max_hops"] == 32, "{shown}");
    }
}

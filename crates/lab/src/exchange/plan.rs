//! What a laboratory of an exchange is made of: one TOML file, read and checked.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::Spanned;
use wayleave_config::member::{SelectBestSection, policy_fault};
use wayleave_config::rs::Export;
use wayleave_core::Asn;
use wayleave_route_server::policy::config::{RankingConfig, RuleConfig};
use wayleave_route_server::policy::{Policy, PolicyConfig};

use super::layout::{Software, proxy_namespace};
use crate::laboratory::check::{Check, LabEntry, Mistake, read};
use crate::laboratory::routers::{ROUTER, question};
use crate::netns::NetworkNamespace;
use crate::table::Announcement;

/// Members, at most: each is three processes or four.
pub const MAX_MEMBERS: usize = 32;
/// The exchange's AS, where the description names none.
const ASN: Asn = Asn(64_496);
/// The sections of a member that are its proxy's own configuration, and go into it as they are.
const OWN_SECTIONS: [&str; 4] = ["groups", "rule", "ranking", "select_best"];

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    lab: LabEntry,
    exchange: ExchangeEntry,
    #[serde(default)]
    member: Vec<MemberEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExchangeEntry {
    asn: Option<Spanned<Asn>>,
    #[serde(default)]
    export: Export,
    #[serde(default)]
    recommendation: BTreeMap<Spanned<String>, u8>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberEntry {
    name: Spanned<String>,
    asn: Spanned<Asn>,
    router: Software,
    /// Routes to a prefix that its router gets at most (RFC 7911).
    add_path: Option<u8>,
    announce: Spanned<Vec<Spanned<toml::Value>>>,
    #[serde(default)]
    groups: BTreeMap<String, Vec<Asn>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleConfig>>,
    ranking: Option<Spanned<RankingConfig>>,
    /// Passed on as it is written.
    #[serde(rename = "select_best")]
    _select_best: Option<SelectBestSection>,
}

/// An exchange as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The laboratory's name, and the exchange's.
    pub name: String,
    pub asn: Asn,
    /// Who multiplies policies and route keys.
    pub export: Export,
    pub recommendation: BTreeMap<String, u8>,
    /// In the order of slots.
    pub members: Vec<Member>,
}

/// A member: its proxy and its router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub asn: Asn,
    pub software: Software,
    /// Routes to a prefix that its router gets at most; `None` is one.
    pub add_path: Option<u8>,
    /// What its router originates.
    pub routes: Vec<Announcement>,
    /// Its own sections of the proxy's configuration: rules, groups, ranking.
    pub policy: String,
}

impl Member {
    /// Lines for its proxy's `[router]`.
    #[must_use]
    pub fn router_lines(&self) -> String {
        self.add_path.map_or(String::new(), |paths| format!("add_path = {paths}\n"))
    }

    /// The place of its router.
    #[must_use]
    pub fn router(&self) -> String {
        format!("{}{ROUTER}", self.name)
    }
}

impl Plan {
    /// Whether a description's sections are those of an exchange.
    #[must_use]
    pub fn is_of(sections: &toml::Table) -> bool {
        sections.contains_key("exchange") || sections.contains_key("member")
    }

    /// Reads a description.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let file: File = read(text)?;
        let all: toml::Table = read(text)?;
        let mut check = Check::default();
        let plan = check.exchange(&file, &all);
        if check.mistakes.is_empty() { Ok(plan) } else { Err(check.mistakes) }
    }

    /// Everything that has a network namespace of its own: the parties, each member's proxy and its router.
    pub fn places(&self) -> impl Iterator<Item = String> {
        let parties = ["party1", "party2"].map(str::to_owned).into_iter();
        parties.chain(self.members.iter().flat_map(|member| [member.name.clone(), member.router()]))
    }

    /// The namespace of a place.
    #[must_use]
    pub fn namespace(&self, place: &str) -> NetworkNamespace {
        NetworkNamespace::Named(namespace(place))
    }

    /// The lines of `[recommendation]`, and below.
    #[must_use]
    pub(super) fn recommendation_lines(&self) -> String {
        self.recommendation.iter().map(|(name, number)| format!("{name} = {number}\n")).collect()
    }

    /// What to try, as arguments of `wayleave-lab exec`.
    #[must_use]
    pub fn to_try(&self) -> Vec<String> {
        // A member that has a choice, else the first that may have anything.
        let announced = |member: &Member, prefix| member.routes.iter().any(|route| route.prefix == prefix);
        let mut best: Option<(usize, &Member, wayleave_core::Prefix)> = None;
        for member in &self.members {
            for route in self.members.iter().flat_map(|other| &other.routes) {
                if announced(member, route.prefix) {
                    continue;
                }
                let count = self.members.iter().filter(|other| announced(other, route.prefix)).count();
                if best.is_none_or(|(most, ..)| count > most) {
                    best = Some((count, member, route.prefix));
                }
            }
        }
        let Some((_, member, prefix)) = best else { return Vec::new() };
        let mut lines = vec![format!("{} wayleave why {prefix}", member.name)];
        for software in [Software::Bird, Software::Frr, Software::Gobgp, Software::OpenBgpd] {
            let first = self.members.iter().find(|member| member.software == software);
            lines.extend(first.map(|member| format!("{} {}", member.name, question(software))));
        }
        if let Some((announcer, route)) = self.members.iter().find_map(|member| Some((member, member.routes.first()?)))
        {
            lines.push(format!("{} wayleave why --announced {}", announcer.name, route.prefix));
        }
        lines.push("party1 wayleave show status".to_owned());
        lines
    }
}

/// The namespace of a place: a network's name is that of its router's.
pub(crate) fn namespace(place: &str) -> String {
    match place.strip_suffix(ROUTER) {
        Some(network) => network.to_owned(),
        None if ["party1", "party2"].contains(&place) => place.to_owned(),
        None => proxy_namespace(place),
    }
}

impl Check {
    fn exchange(&mut self, file: &File, all: &toml::Table) -> Plan {
        self.lab_name(&file.lab.name);
        self.count(file.member.len(), 2, MAX_MEMBERS, "members", "[[member]]");
        let asn = file.exchange.asn.as_ref().map_or(ASN, |given| self.asn(given));
        let sections = all.get("member").and_then(toml::Value::as_array);
        let mut members = Vec::new();
        for (number, entry) in file.member.iter().enumerate() {
            self.network_name(&entry.name);
            if *entry.asn.get_ref() == asn {
                self.wrong(&entry.asn, format!("AS{} is the exchange's, expected another one", asn.0));
            } else {
                self.asn(&entry.asn);
            }
            let rules = PolicyConfig {
                groups: entry.groups.clone(),
                rules: entry.rule.clone(),
                ranking: entry.ranking.clone(),
                communities: None,
            };
            if let Err(error) = Policy::compile(&rules) {
                let fault = policy_fault(&error);
                self.mistakes.push(Mistake { span: fault.span, message: fault.message, help: fault.help });
            }
            let written = sections.and_then(|sections| sections.get(number)?.as_table());
            members.push(Member {
                name: entry.name.get_ref().clone(),
                asn: *entry.asn.get_ref(),
                software: entry.router,
                add_path: entry.add_path,
                routes: self.routes(&entry.announce),
                policy: written.map(own_sections).unwrap_or_default(),
            });
        }
        let named: BTreeSet<String> = members.iter().map(|member| member.name.clone()).collect();
        for name in file.exchange.recommendation.keys() {
            let is_asn = |text: &str| text.parse().is_ok_and(|asn: Asn| members.iter().any(|member| member.asn == asn));
            if !named.contains(name.get_ref()) && !is_asn(name.get_ref()) {
                let message = format!("no member `{}`, expected the name or AS of a [[member]]", name.get_ref());
                self.wrong(name, message);
            }
        }
        let recommended = file.exchange.recommendation.iter();
        Plan {
            name: file.lab.name.get_ref().clone(),
            asn,
            export: file.exchange.export,
            recommendation: recommended.map(|(name, number)| (name.get_ref().clone(), *number)).collect(),
            members,
        }
    }
}

/// The proxy's own sections of a member, as the member's configuration has them.
fn own_sections(member: &toml::Table) -> String {
    let own = member.iter().filter(|(name, _)| OWN_SECTIONS.contains(&name.as_str()));
    let own: toml::Table = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    if own.is_empty() { String::new() } else { format!("\n{own}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[lab]
name = "ix"

[exchange]
export = "mpc"
[exchange.recommendation]
bravo = 10

[[member]]
name = "alpha"
asn = 64497
router = "bird"
announce = ["203.0.113.0/26", { prefix = "203.0.113.64/26", communities = ["0:64498"] }]
groups = { rivals = [64498] }
[[member.rule]]
direction = "export"
hide_from = "rivals"

[[member]]
name = "bravo"
asn = 64498
router = "frr"
announce = ["198.51.100.0/24"]
ranking = { strict = true }
"#;

    /// The first mistake's line, column and message.
    fn mistake(text: &str) -> (usize, usize, String) {
        Plan::parse(text).expect_err("a mistake")[0].located(text)
    }

    #[test]
    fn an_exchange_is_read_and_a_members_own_sections_go_on_as_they_are() {
        let plan = Plan::parse(GOOD).expect("fine");
        let places: Vec<String> = plan.places().collect();
        assert_eq!(places, ["party1", "party2", "alpha", "alpha-router", "bravo", "bravo-router"]);
        assert_eq!((plan.asn, plan.export, plan.recommendation["bravo"]), (Asn(64496), Export::Mpc, 10));
        let [alpha, bravo] = &plan.members[..] else { panic!("{plan:?}") };
        assert_eq!((alpha.software, bravo.software), (Software::Bird, Software::Frr));
        assert_eq!(alpha.routes[1].communities.len(), 1);
        let own: toml::Table = alpha.policy.parse().expect("TOML");
        assert_eq!(own["rule"][0]["hide_from"].as_str(), Some("rivals"));
        assert_eq!(own["groups"]["rivals"][0].as_integer(), Some(64498));
        assert_eq!(bravo.policy.trim(), "[ranking]\nstrict = true");
        assert_eq!(plan.to_try()[0], "alpha wayleave why 198.51.100.0/24");
        let namespaces = ["party1", "alpha", "alpha-router"].map(namespace);
        assert_eq!(namespaces, ["party1", "alpha-proxy", "alpha"]);
    }

    #[test]
    fn mistakes_have_their_place_and_say_what_was_expected() {
        for (old, new, line, column, said) in [
            ("name = \"ix\"", "name = \"an ix\"", 3, 8, "no name of a laboratory"),
            ("name = \"ix\"", "name = \"ix\"\nsuffix = \"demo\"", 4, 1, "unknown field `suffix`"),
            ("\"mpc\"", "\"three\"", 6, 10, "unknown variant `three`, expected `direct` or `mpc`"),
            ("bravo = 10", "bravo = 256", 8, 9, "expected u8"),
            ("bravo = 10", "zulu = 10", 8, 1, "no member `zulu`, expected the name or AS of a [[member]]"),
            ("\"alpha\"", "\"party1\"", 11, 8, "a name of the laboratory's own"),
            ("\"alpha\"", "\"alpha-router\"", 11, 8, "a name of the laboratory's own"),
            ("\"alpha\"", "\"ten-letters\"", 11, 8, "expected 1 to 9 small letters"),
            ("name = \"bravo\"", "name = \"alpha\"", 21, 8, "`alpha` is there already"),
            ("asn = 64498\nr", "asn = 64497\nr", 22, 7, "AS64497 is there already"),
            ("asn = 64498\nr", "asn = 64496\nr", 22, 7, "AS64496 is the exchange's"),
            ("asn = 64498\nr", "asn = 0\nr", 22, 7, "AS0 is reserved"),
            (
                "\"bird\"",
                "\"ios\"",
                13,
                10,
                "unknown variant `ios`, expected one of `bird`, `frr`, `gobgp`, `openbgpd`",
            ),
            ("198.51.100.0/24", "198.51.100.1/24", 24, 13, "no prefix"),
            ("203.0.113.64/26", "203.0.113.0/26", 14, 31, "203.0.113.0/26 is there already"),
            ("\"0:64498\"", "\"64498\"", 14, 31, "`64498` is no community, expected one such as \"0:64500\""),
            ("communities", "community", 14, 31, "unknown field `community`"),
            ("hide_from = \"rivals\"", "hide_from = \"rival\"", 18, 13, "no group `rival`, expected one of: rivals"),
            ("hide_from", "hides", 18, 1, "unknown field `hides`"),
            ("direction = \"export\"", "direction = \"import\"", 16, 1, "expected a key of import rules"),
            ("strict = true", "strict = 1", 25, 22, "expected a boolean"),
            ("[exchange]", "[[node]]\nname = \"w1\"\n[exchange]", 5, 3, "unknown field `node`"),
        ] {
            assert!(GOOD.contains(old), "{old}");
            let found = mistake(&GOOD.replacen(old, new, 1));
            assert!(found.2.contains(said) && (found.0, found.1) == (line, column), "{new}: {found:?}");
        }
        let alone = &GOOD[..GOOD.find("[[member]]\nname = \"bravo\"").expect("bravo")].replace("bravo = 10", "");
        assert!(mistake(alone).2.contains("1 members, expected at least 2"));
        assert!(mistake("[lab]\nname = \"x\"\n[[member]]\n").2.contains("missing field"));
    }
}

//! What a laboratory of attesting networks is made of: one TOML file, read and checked.

use std::collections::BTreeSet;

use serde::Deserialize;
use toml::Spanned;
use wayleave_config::attestation::PolicySection;
use wayleave_core::{Asn, Prefix};

use crate::demo::internet::{ANCHOR, OriginPolicy};
use crate::exchange::layout::{Software, proxy_namespace};
use crate::laboratory::check::{Check, LabEntry, MAX_ROUTES, Mistake, read};
use crate::laboratory::routers::{ROUTER, question};
use crate::netns::NetworkNamespace;
use crate::table::Announcement;

/// Networks, at most: as many as their LAN has addresses for.
pub const MAX_NETWORKS: usize = 16;
/// Sessions between them, at most.
pub const MAX_SESSIONS: usize = 64;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    lab: LabEntry,
    #[serde(rename = "as", default)]
    networks: Vec<NetworkEntry>,
    #[serde(default)]
    link: Vec<LinkEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkEntry {
    name: Spanned<String>,
    asn: Spanned<Asn>,
    router: Spanned<Software>,
    announce: Spanned<Vec<Spanned<toml::Value>>>,
    #[serde(default = "yes")]
    attest: bool,
    /// What its record lists; what it announces, if it is left out.
    originates: Option<Spanned<Vec<Spanned<String>>>>,
    /// What its record demands of its routes.
    attested: Option<Spanned<Attested>>,
    /// Passed on as it is written.
    policy: Option<Spanned<PolicySection>>,
}

/// As `wayleave keys record --attested` has it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Attested {
    Strict,
    Prefer,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    from: Spanned<String>,
    to: Spanned<String>,
}

fn yes() -> bool {
    true
}

/// Attesting networks, and others, as their file describes them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    pub networks: Vec<AsPlan>,
    /// BGP sessions, by names.
    pub sessions: Vec<(String, String)>,
}

/// An AS: a router, behind an attesting proxy or not.
#[derive(Clone, Debug)]
pub struct AsPlan {
    pub name: String,
    pub asn: Asn,
    pub software: Software,
    /// What its router originates.
    pub routes: Vec<Announcement>,
    /// `None`: it does not attest.
    pub proxy: Option<Proxy>,
}

/// An attesting proxy and its AS's record.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub originates: Vec<Prefix>,
    pub since: OriginPolicy,
    /// The lines of `[policy]`.
    pub policy: String,
}

impl AsPlan {
    /// The place of its router.
    #[must_use]
    pub fn router(&self) -> String {
        format!("{}{ROUTER}", self.name)
    }
}

impl Plan {
    /// Whether a description's sections are those of attesting networks.
    #[must_use]
    pub fn is_of(sections: &toml::Table) -> bool {
        sections.contains_key("as")
    }

    /// Reads a description.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let file: File = read(text)?;
        let all: toml::Table = read(text)?;
        let mut check = Check::default();
        let plan = check.attested(&file, &all);
        if check.mistakes.is_empty() { Ok(plan) } else { Err(check.mistakes) }
    }

    /// The anchor's operator, each network, and its router.
    pub fn places(&self) -> impl Iterator<Item = String> {
        let networks = self.networks.iter().flat_map(|network| [network.name.clone(), network.router()]);
        std::iter::once(ANCHOR.to_owned()).chain(networks)
    }

    /// The namespace of a place: a network's own is that of its proxy, if it has one.
    #[must_use]
    pub fn namespace(&self, place: &str) -> NetworkNamespace {
        let found = self.networks.iter().find_map(|network| match () {
            () if network.router() == place => Some(network.name.clone()),
            () if network.name == place && network.proxy.is_some() => Some(proxy_namespace(place)),
            () if network.name == place => Some(place.to_owned()),
            () => None,
        });
        found.map_or(NetworkNamespace::Own, NetworkNamespace::Named)
    }

    /// What to try, as arguments of `wayleave-lab exec`.
    #[must_use]
    pub fn to_try(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let is_proved = |other: &&AsPlan| other.proxy.is_some() && !other.routes.is_empty();
        for network in self.networks.iter().filter(|network| network.proxy.is_some()) {
            let Some(origin) = self.networks.iter().filter(is_proved).find(|other| other.name != network.name) else {
                continue;
            };
            let prefix = origin.routes[0].prefix;
            lines.push(format!("{} wayleave why {prefix}", network.name));
            lines.push(format!("{} {}", network.name, question(network.software)));
            if lines.len() >= 4 {
                break;
            }
        }
        lines.push(format!("{ANCHOR} wayleave keys objects --anchor anchor.pub --objects objects"));
        lines
    }
}

impl Check {
    fn attested(&mut self, file: &File, all: &toml::Table) -> Plan {
        self.lab_name(&file.lab.name);
        self.count(file.networks.len(), 2, MAX_NETWORKS, "networks", "[[as]]");
        self.count(file.link.len(), 1, MAX_SESSIONS, "links", "[[link]]");
        let sections = all.get("as").and_then(toml::Value::as_array);
        let mut networks = Vec::new();
        for (number, entry) in file.networks.iter().enumerate() {
            self.network_name(&entry.name);
            if entry.name.get_ref() == ANCHOR {
                self.wrong(&entry.name, format!("`{ANCHOR}` is a name of the laboratory's own, expected another one"));
            }
            let written = sections.and_then(|sections| sections.get(number)?.get("policy")?.as_table());
            networks.push(self.as_plan(entry, written));
        }
        let sessions = self.sessions(file);
        for (entry, network) in file.networks.iter().zip(&networks) {
            if !sessions.iter().any(|(from, to)| [from, to].contains(&&network.name)) {
                self.wrong(&entry.name, format!("`{}` has no link, expected one at least", network.name));
            }
        }
        Plan { name: file.lab.name.get_ref().clone(), networks, sessions }
    }

    fn as_plan(&mut self, entry: &NetworkEntry, policy: Option<&toml::Table>) -> AsPlan {
        let routes = self.routes(&entry.announce);
        let listed = entry.originates.as_ref().map(|listed| {
            if listed.get_ref().len() > MAX_ROUTES {
                let count = listed.get_ref().len();
                self.wrong(listed, format!("{count} prefixes, expected at most {MAX_ROUTES}"));
            }
            let mut prefixes = Vec::new();
            for text in listed.get_ref() {
                match text.get_ref().parse() {
                    Ok(prefix) => prefixes.push(prefix),
                    Err(error) => self.wrong(text, format!("`{}` is no prefix: {error}", text.get_ref())),
                }
            }
            prefixes
        });
        if !entry.attest {
            let without = "a network that does not attest, expected `attest = true` beside this, or neither";
            let spans = [
                entry.originates.as_ref().map(Spanned::span),
                entry.attested.as_ref().map(Spanned::span),
                entry.policy.as_ref().map(Spanned::span),
            ];
            self.mistakes.extend(spans.into_iter().flatten().map(|span| Mistake::at(span, without)));
        }
        if ![Software::Bird, Software::Frr].contains(entry.router.get_ref()) {
            let given = entry.router.get_ref().name();
            self.wrong(&entry.router, format!("`{given}` is for members of an exchange, expected `bird` or `frr`"));
        }
        let since = match entry.attested.as_ref().map(|attested| *attested.get_ref()) {
            None | Some(Attested::Strict) => OriginPolicy::Strict,
            Some(Attested::Prefer) => OriginPolicy::Prefer,
        };
        let originates = listed.unwrap_or_else(|| routes.iter().map(|route| route.prefix).collect());
        // One line for each: they stand in a section of their own.
        let lines = policy.into_iter().flatten().map(|(class, treatment)| format!("{class} = {treatment}\n"));
        let proxy = Proxy { originates, since, policy: lines.collect() };
        AsPlan {
            name: entry.name.get_ref().clone(),
            asn: self.asn(&entry.asn),
            software: *entry.router.get_ref(),
            routes,
            proxy: entry.attest.then_some(proxy),
        }
    }

    fn sessions(&mut self, file: &File) -> Vec<(String, String)> {
        let names: BTreeSet<&String> = file.networks.iter().map(|network| network.name.get_ref()).collect();
        let (mut pairs, mut sessions) = (BTreeSet::new(), Vec::new());
        for LinkEntry { from, to } in &file.link {
            for end in [from, to] {
                if !names.contains(end.get_ref()) {
                    self.wrong(end, format!("no AS `{}`, expected the name of an [[as]]", end.get_ref()));
                }
            }
            let (one, other) = (from.get_ref(), to.get_ref());
            if one == other {
                self.wrong(to, format!("a link from `{one}` to itself, expected another AS"));
            } else if !pairs.insert((one.min(other), one.max(other))) {
                let message = format!("`{one}` and `{other}` have a link already, expected one link between two");
                self.wrong(to, message);
            }
            sessions.push((one.clone(), other.clone()));
        }
        sessions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[lab]
name = "pair"

[[as]]
name = "left"
asn = 64497
router = "bird"
announce = ["203.0.113.0/24"]
attested = "prefer"
policy = { gap = { large_community = "64497:1:2" } }

[[as]]
name = "right"
asn = 64498
router = "frr"
announce = []
originates = ["198.51.100.0/24"]

[[as]]
name = "third"
asn = 64499
router = "bird"
announce = ["192.0.2.0/24"]
attest = false

[[link]]
from = "left"
to = "right"

[[link]]
from = "right"
to = "third"
"#;

    /// The first mistake's line, column and message.
    fn mistake(text: &str) -> (usize, usize, String) {
        Plan::parse(text).expect_err("a mistake")[0].located(text)
    }

    #[test]
    fn networks_are_read_and_a_proxys_policy_goes_on_as_it_is() {
        let plan = Plan::parse(GOOD).expect("fine");
        let places: Vec<String> = plan.places().collect();
        assert_eq!(places, ["anchor", "left", "left-router", "right", "right-router", "third", "third-router"]);
        let [left, right, third] = &plan.networks[..] else { panic!("{plan:?}") };
        let of = left.proxy.as_ref().expect("a proxy");
        assert_eq!((of.since, of.originates.len()), (OriginPolicy::Prefer, 1));
        assert_eq!(of.policy, "gap = { large_community = \"64497:1:2\" }\n");
        assert_eq!(right.proxy.as_ref().expect("a proxy").originates[0].to_string(), "198.51.100.0/24");
        assert!(third.proxy.is_none());
        let name = |place: &str| match plan.namespace(place) {
            NetworkNamespace::Named(name) => name,
            NetworkNamespace::Own => "own".to_owned(),
        };
        assert_eq!(
            ["anchor", "left", "left-router", "third", "third-router"].map(name),
            ["own", "left-proxy", "left", "third", "third"]
        );
        assert_eq!(plan.to_try()[0], "right wayleave why 203.0.113.0/24");
    }

    #[test]
    fn mistakes_have_their_place_and_say_what_was_expected() {
        for (old, new, line, column, said) in [
            ("\"left\"\na", "\"anchor\"\na", 6, 8, "a name of the laboratory's own"),
            ("\"left\"\na", "\"right\"\na", 14, 8, "`right` is there already"),
            ("asn = 64498", "asn = 64497", 15, 7, "AS64497 is there already"),
            ("\"prefer\"", "\"always\"", 10, 12, "unknown variant `always`, expected `strict` or `prefer`"),
            ("gap = {", "gaps = {", 11, 12, "unknown field `gaps`"),
            ("64497:1:2", "64497:1", 11, 38, "a large community"),
            ("originates = [\"198.51.100.0/24\"]", "originates = [\"198.51.100.0\"]", 18, 15, "no prefix"),
            ("attest = false", "attest = false\nattested = \"strict\"", 26, 12, "a network that does not attest"),
            ("from = \"left\"", "from = \"wrong\"", 28, 8, "no AS `wrong`, expected the name of an [[as]]"),
            ("to = \"third\"", "to = \"right\"", 33, 6, "to itself"),
            ("to = \"third\"", "to = \"left\"", 33, 6, "have a link already"),
            ("from = \"left\"", "from = \"left\"\nrelationship = \"peer\"", 29, 1, "unknown field `relationship`"),
            ("to = \"right\"", "to = \"third\"", 34, 6, "nothing"),
        ] {
            assert!(GOOD.contains(old), "{old}");
            let changed = GOOD.replacen(old, new, 1);
            if said == "nothing" {
                assert!(Plan::parse(&changed).is_ok(), "any graph will do");
                continue;
            }
            let found = mistake(&changed);
            assert!(found.2.contains(said) && (found.0, found.1) == (line, column), "{new}: {found:?}");
        }
        let lonely = GOOD.replace("[[link]]\nfrom = \"right\"\nto = \"third\"\n", "");
        assert_eq!(mistake(&lonely), (21, 8, "`third` has no link, expected one at least".to_owned()));
    }
}

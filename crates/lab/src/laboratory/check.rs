//! What is wrong with a description, with its place in the file, and what descriptions of every kind have in common.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Asn, Prefix};

use crate::table::Announcement;

/// Octets of a description, at most.
pub const MOST_OCTETS: usize = 1 << 20;
/// Commands of one host or gateway, at most.
pub const MAX_COMMANDS: usize = 16;
/// Letters of a name: network interfaces are named after nodes.
pub(crate) const MAX_NAME: usize = 12;
/// Letters of the name of a network that has a proxy, whose interface is named after both.
pub(crate) const MAX_NETWORK_NAME: usize = 9;
/// Routes that one router originates, at most.
pub const MAX_ROUTES: usize = 256;
/// Names that the laboratory has itself.
const RESERVED: [&str; 7] = ["lo", "lan", "eth0", "realm", "wayleave0", "default", "all"];

/// What is wrong with a description, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Octets of the file, if it has a place.
    pub span: Option<Range<usize>>,
    /// What is wrong, and after `, expected ` what was expected.
    pub message: String,
    pub help: Option<String>,
}

impl Mistake {
    pub(crate) fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span: Some(span), message: message.into(), help: None }
    }

    /// Line and column in the description, both from one and zero without a place, and the message.
    #[cfg(test)]
    pub(crate) fn located(&self, text: &str) -> (usize, usize, String) {
        let Some(span) = &self.span else { return (0, 0, self.message.clone()) };
        let before = &text[..span.start];
        let column = before.rsplit('\n').next().unwrap_or_default().len() + 1;
        (before.matches('\n').count() + 1, column, self.message.clone())
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// Reads the text of a description as TOML of this form.
pub(crate) fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Vec<Mistake>> {
    if text.len() > MOST_OCTETS {
        let message = format!("{} octets, expected at most {MOST_OCTETS}", text.len());
        return Err(vec![Mistake { span: None, message, help: None }]);
    }
    toml::from_str(text)
        .map_err(|error| vec![Mistake { span: error.span(), message: error.message().to_owned(), help: None }])
}

/// `[lab]` of a description without names of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LabEntry {
    pub(crate) name: Spanned<String>,
}

/// What has been seen so far of a description, and what is wrong with it.
#[derive(Default)]
pub(crate) struct Check {
    pub(crate) mistakes: Vec<Mistake>,
    seen: BTreeSet<String>,
    pub(crate) addresses: BTreeSet<Ipv4Addr>,
    numbers: BTreeSet<Asn>,
}

impl Check {
    pub(crate) fn wrong<T>(&mut self, at: &Spanned<T>, message: impl Into<String>) {
        self.mistakes.push(Mistake::at(at.span(), message));
    }

    pub(crate) fn whole(&mut self, message: impl Into<String>, help: &str) {
        self.mistakes.push(Mistake { span: None, message: message.into(), help: Some(help.to_owned()) });
    }

    /// The laboratory's own name.
    pub(crate) fn lab_name(&mut self, name: &Spanned<String>) {
        if !is_label(name.get_ref()) {
            self.wrong(name, format!("`{}` is no name of a laboratory, {}", name.get_ref(), label_rule(MAX_NAME)));
        }
    }

    /// The name of a place.
    pub(crate) fn name(&mut self, name: &Spanned<String>) {
        self.name_within(name, MAX_NAME);
    }

    /// The name of a network, which stands for its proxy, and for its router with `-router` behind it.
    pub(crate) fn network_name(&mut self, name: &Spanned<String>) {
        let parties = ["party1", "party2", "between"].contains(&name.get_ref().as_str());
        if parties || ["-router", "-proxy"].iter().any(|end| name.get_ref().ends_with(end)) {
            let message = format!("`{}` is a name of the laboratory's own, expected another one", name.get_ref());
            return self.wrong(name, message);
        }
        self.name_within(name, MAX_NETWORK_NAME);
    }

    fn name_within(&mut self, name: &Spanned<String>, most: usize) {
        let text = name.get_ref();
        if !is_label(text) || text.len() > most {
            self.wrong(name, format!("`{text}` is no name here, {}", label_rule(most)));
        } else if RESERVED.contains(&text.as_str()) || is_stampers_interface(text) {
            self.wrong(name, format!("`{text}` is a name of the laboratory's own, expected another one"));
        }
        if !self.seen.insert(text.clone()) {
            self.wrong(name, format!("`{text}` is there already, expected a name of its own"));
        }
    }

    pub(crate) fn range(&mut self, given: &Spanned<u64>, least: u64, most: u64, unit: &str) {
        if !(least..=most).contains(given.get_ref()) {
            self.wrong(given, format!("{} {unit}, expected {least} to {most}", given.get_ref()));
        }
    }

    /// How many of something there are.
    pub(crate) fn count(&mut self, count: usize, least: usize, most: usize, what: &str, section: &str) {
        if !(least..=most).contains(&count) {
            let range = if count < least { format!("at least {least}") } else { format!("at most {most}") };
            self.whole(format!("{count} {what}, expected {range}"), &format!("each is a section {section}"));
        }
    }

    pub(crate) fn commands(&mut self, run: &[Spanned<String>]) -> Vec<String> {
        if let Some(first) = run.get(MAX_COMMANDS) {
            self.wrong(first, format!("{} commands, expected at most {MAX_COMMANDS}", run.len()));
        }
        for command in run.iter().filter(|command| command.get_ref().trim().is_empty()) {
            self.wrong(command, "an empty command, expected a line for `sh`");
        }
        run.iter().map(|command| command.get_ref().clone()).collect()
    }

    /// An AS number that no other network has.
    pub(crate) fn asn(&mut self, given: &Spanned<Asn>) -> Asn {
        let asn = *given.get_ref();
        if [0, 23_456, 65_535, u32::MAX].contains(&asn.0) {
            self.wrong(given, format!("AS{} is reserved, expected another one, such as 64500", asn.0));
        } else if !self.numbers.insert(asn) {
            self.wrong(given, format!("AS{} is there already, expected an AS number of its own", asn.0));
        }
        asn
    }

    /// What a router originates: prefixes, or tables with a prefix and its communities.
    pub(crate) fn routes(&mut self, given: &Spanned<Vec<Spanned<toml::Value>>>) -> Vec<Announcement> {
        let count = given.get_ref().len();
        if count > MAX_ROUTES {
            self.wrong(given, format!("{count} routes, expected at most {MAX_ROUTES}"));
        }
        let mut routes: Vec<Announcement> = Vec::new();
        for entry in given.get_ref() {
            match route(entry.get_ref()) {
                Ok(route) if routes.iter().any(|other| other.prefix == route.prefix) => {
                    self.wrong(entry, format!("{} is there already, expected each prefix once", route.prefix));
                }
                Ok(route) => routes.push(route),
                Err(message) => self.wrong(entry, message),
            }
        }
        routes
    }
}

/// A route that a router originates, as a description has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteEntry {
    prefix: String,
    #[serde(default)]
    communities: Vec<String>,
    #[serde(default)]
    large_communities: Vec<String>,
}

fn route(value: &toml::Value) -> Result<Announcement, String> {
    let entry = match value {
        toml::Value::String(prefix) => {
            RouteEntry { prefix: prefix.clone(), communities: Vec::new(), large_communities: Vec::new() }
        }
        toml::Value::Table(table) => table.clone().try_into::<RouteEntry>().map_err(|error| {
            format!("{}, expected `prefix`, and perhaps `communities` or `large_communities`", error.message())
        })?,
        _ => return Err("no route, expected a prefix such as \"203.0.113.0/26\"".to_owned()),
    };
    let prefix = entry.prefix.parse::<Prefix>().map_err(|error| format!("`{}` is no prefix: {error}", entry.prefix))?;
    let no = |text: &str, kind, example| format!("`{text}` is no {kind}, expected one such as \"{example}\"");
    let mut route = Announcement::of(prefix);
    for text in &entry.communities {
        route = route.with(text.parse::<Community>().map_err(|_| no(text, "community", "0:64500"))?);
    }
    for text in &entry.large_communities {
        route =
            route.with_large(text.parse::<LargeCommunity>().map_err(|_| no(text, "large community", "64496:0:64500"))?);
    }
    Ok(route)
}

/// Whether `text` can be a label of a DNS name in lower case.
pub(crate) fn is_label(text: &str) -> bool {
    let is_inside = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_inside) && !text.starts_with('-') && !text.ends_with('-')
}

/// The interfaces that a stamper makes beside those that are named after places.
fn is_stampers_interface(text: &str) -> bool {
    let number = text.strip_prefix("stamp").filter(|number| !number.is_empty());
    number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
}

pub(crate) fn label_rule(most: usize) -> String {
    format!("expected 1 to {most} small letters, digits and `-`")
}

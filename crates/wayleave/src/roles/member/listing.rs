//! The tables of a member's proxy: which routes a request asks for, their rows, and to whom the own router's routes go.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use wayleave_bgp::Attributes;
use wayleave_core::{Asn, Prefix, VerdictKind};
use wayleave_member::MemberProxy;
use wayleave_route_server::member::{
    AnnouncerFilter, Cause, ListPosition, ListedRoute, OwnExport, Receiver, RouteFilter,
};
use wayleave_runtime::http::{Parameters, ViewError};

use crate::roles::daemon::most;

/// The parameters of the page of routes.
pub const OF_ROUTES: &[&str] = &[
    "most",
    "after",
    "prefix",
    "longer",
    "announcer",
    "on_path",
    "origin",
    "community",
    "verdict",
    "reason",
    "all",
    "attributes",
];
/// Those of the page of exports.
pub const OF_EXPORTS: &[&str] = &["most", "prefix", "to"];
/// Prefixes of one question to the machine, which has other work.
pub const VISITS: usize = 1024;
/// The same of own routes, whose receivers are many.
pub const OWN_VISITS: usize = 64;

/// A prefix, or an address, for the longest prefix that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Prefix(Prefix),
    Address(IpAddr),
}

impl Place {
    pub fn of(parameters: &Parameters) -> Result<Option<Self>, ViewError> {
        parameters.get("prefix").map(|text| Self::parse(text)).transpose()
    }

    pub fn parse(text: &str) -> Result<Self, ViewError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        text.parse().map(Self::Prefix).map_err(|error| ViewError::Request(format!("{error}")))
    }

    /// The prefixes in which it lies, the longest first: one if it is a prefix.
    pub fn prefixes(self) -> Vec<Prefix> {
        match self {
            Self::Prefix(prefix) => vec![prefix],
            Self::Address(address) => {
                let longest = if address.is_ipv4() { 32 } else { 128 };
                (0..=longest).rev().filter_map(|length| Prefix::truncated(address, length).ok()).collect()
            }
        }
    }
}

/// What a request for routes asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    pub filter: RouteFilter,
    /// The longest prefix of which the filter lets a route through.
    pub address: Option<IpAddr>,
    pub most: usize,
    /// The end of the page before.
    pub after: Option<ListPosition>,
    /// Whether rows have the path attributes as octets.
    pub attributes: bool,
}

impl Asked {
    pub fn of(parameters: &Parameters) -> Result<Self, ViewError> {
        let asn = |name: &str| parameters.get(name).map(|text| number(name, text)).transpose();
        let longer = flag(parameters, "longer")?;
        let mut filter = RouteFilter {
            announcer: parameters.get("announcer").map(|text| member(text)),
            on_path: asn("on_path")?,
            origin: asn("origin")?,
            ..RouteFilter::default()
        };
        let mut address = None;
        match Place::of(parameters)? {
            Some(Place::Prefix(prefix)) => filter.prefix = Some((prefix, longer)),
            Some(Place::Address(_)) | None if longer => {
                return Err(ViewError::Request(
                    "`longer` asks for prefixes inside one, expected a prefix too".to_owned(),
                ));
            }
            Some(Place::Address(of)) => address = Some(of),
            None => {}
        }
        if let Some(text) = parameters.get("community") {
            filter.community = Some(text.parse().map_err(|error| ViewError::Request(format!("{error}")))?);
        }
        if let Some(text) = parameters.get("verdict") {
            filter.verdict = Some(verdict(text)?);
        }
        if let Some(text) = parameters.get("reason") {
            filter.cause = Some(cause(text)?);
        }
        // What has a reason is not installed.
        filter.is_installed = !flag(parameters, "all")? && filter.cause.is_none();
        let after = parameters.get("after").map(|text| position(text)).transpose()?;
        Ok(Self { filter, address, most: most(parameters)?, after, attributes: flag(parameters, "attributes")? })
    }
}

fn flag(parameters: &Parameters, name: &str) -> Result<bool, ViewError> {
    match parameters.get(name).map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(text) => Err(ViewError::Request(format!("`{name}` is `{text}`, expected true or false"))),
    }
}

fn number(name: &str, text: &str) -> Result<Asn, ViewError> {
    text.parse().map_err(|_| {
        ViewError::Request(format!("`{name}` is `{text}`, expected an AS number such as 64497 or AS64497"))
    })
}

/// A position as [`position_text`] writes it.
fn position(text: &str) -> Result<ListPosition, ViewError> {
    let parse = || {
        let (prefix, slot) = text.split_once(',')?;
        Some(ListPosition { prefix: prefix.parse().ok()?, slot: slot.parse().ok()? })
    };
    parse().ok_or_else(|| {
        let text = text.escape_debug();
        ViewError::Request(format!("`after` is `{text}`, expected what a page before said as `next`: PREFIX,SLOT"))
    })
}

/// A position as the parameter `after` has it.
fn position_text(position: ListPosition) -> String {
    format!("{},{}", position.prefix, position.slot)
}

/// A member by AS number or name.
fn member(text: &str) -> AnnouncerFilter {
    text.parse().map_or_else(|_| AnnouncerFilter::Name(text.to_owned()), AnnouncerFilter::Asn)
}

fn verdict(text: &str) -> Result<VerdictKind, ViewError> {
    serde_json::from_value(json!(text)).map_err(|_| {
        ViewError::Request(format!("no verdict `{text}`, expected valid, gap, unattested, expired or invalid"))
    })
}

fn cause(text: &str) -> Result<Cause, ViewError> {
    Cause::ALL.into_iter().find(|cause| cause.name() == text).ok_or_else(|| {
        let known = Cause::ALL.map(Cause::name).join(", ");
        ViewError::Request(format!("no reason `{text}`, expected one of: {known}"))
    })
}

/// The next hop of a route for a prefix of its family.
pub fn next_hop(prefix: &Prefix, attributes: &Attributes) -> Option<IpAddr> {
    match attributes.ipv4_next_hop() {
        Some(hop) if prefix.address().is_ipv4() => Some(hop.into()),
        _ => attributes.ipv6_next_hop().map(|hop| hop.global.into()),
    }
}

/// A row, but for its announcer.
fn row(route: &ListedRoute<'_>) -> Value {
    let attributes = route.attributes;
    let path: Vec<u32> = attributes.as_path().asns().map(|asn| asn.0).collect();
    let texts = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>();
    let (cause, reason) = route.refused.as_ref().map(|(cause, words)| (cause.name(), words)).unzip();
    json!({
        "prefix": route.prefix,
        "next_hop": next_hop(&route.prefix, attributes),
        "as_path": path,
        "age_secs": route.age.map(|age| age.as_secs()),
        "state": route.state,
        "verdict": route.verdict,
        "cause": cause,
        "reason": reason,
        "med": attributes.med(),
        "communities": texts(&mut attributes.communities().map(|community| community.to_string())),
        "large_communities": texts(&mut attributes.large_communities().map(|community| community.to_string())),
        "extended_communities": texts(&mut attributes.extended_communities().map(|community| community.to_string())),
    })
}

/// The same with the path attributes, as [`Attributes::encode`] writes them, in base64.
fn row_with_attributes(route: &ListedRoute<'_>) -> Value {
    let mut row = row(route);
    row["attributes"] = json!(STANDARD.encode(route.attributes.encode()));
    row
}

/// A row with its place in the list.
pub type PlacedRow = (ListPosition, Value);

/// The rows of a part of the table behind a position, and where it goes on.
pub fn rows(
    proxy: &mut MemberProxy,
    filter: &RouteFilter,
    after: Option<ListPosition>,
    visits: usize,
    attributes: bool,
) -> (Vec<PlacedRow>, Option<ListPosition>) {
    let row = if attributes { row_with_attributes } else { row };
    let part = proxy.list_behind(filter, after, visits, row);
    let named = |(position, mut row): PlacedRow| {
        row["announcer"] = json!(proxy.announcer(position.slot));
        (position, row)
    };
    (part.rows.into_iter().map(named).collect(), part.after.map(ListPosition::behind))
}

/// A page of the first `most` of these rows, which has where the next one begins; `goes_on` says that the list has more than these. What
/// one announcer has for a prefix stays together, so that a position never lies between.
pub fn page(mut rows: Vec<PlacedRow>, most: usize, goes_on: bool, installed: usize) -> Value {
    let last = most.checked_sub(1).and_then(|last| rows.get(last)).map(|(position, _)| *position);
    let end = match last {
        Some(last) => rows.partition_point(|(position, _)| *position <= last),
        None => most.min(rows.len()),
    };
    let more = goes_on || rows.len() > end;
    rows.truncate(end);
    let next = rows.last().filter(|_| more).map(|(position, _)| position_text(*position));
    let routes: Vec<Value> = rows.into_iter().map(|(_, row)| row).collect();
    json!({ "version": 1, "routes": routes, "more": more, "next": next, "installed": installed })
}

/// The rows of the longest prefix of an address that has any.
pub fn longest(proxy: &mut MemberProxy, filter: &RouteFilter, address: IpAddr, attributes: bool) -> Vec<PlacedRow> {
    for prefix in Place::Address(address).prefixes() {
        let of_prefix = RouteFilter { prefix: Some((prefix, false)), ..filter.clone() };
        let (rows, _) = rows(proxy, &of_prefix, None, 1, attributes);
        if !rows.is_empty() {
            return rows;
        }
    }
    Vec::new()
}

/// A part of the own routes: those to one prefix, or those behind `after`.
pub fn own(proxy: &MemberProxy, place: Option<Place>, after: Option<Prefix>) -> (Vec<OwnExport>, Option<Prefix>) {
    if let Some(place) = place {
        let of_prefixes = place.prefixes().into_iter().map(|prefix| proxy.exports(prefix));
        let found = of_prefixes.into_iter().find(|exports| !exports.is_empty());
        return (found.unwrap_or_default(), None);
    }
    let prefixes = proxy.own_prefixes(after, OWN_VISITS);
    let after = prefixes.last().copied().filter(|_| prefixes.len() == OWN_VISITS);
    (prefixes.into_iter().flat_map(|prefix| proxy.exports(prefix)).collect(), after)
}

/// Whether the members have one that `to` names: by name or AS number.
pub fn knows(proxy: &MemberProxy, to: &str) -> bool {
    let wanted = member(to);
    proxy.member_set().is_some_and(|set| {
        set.iter().any(|(_, slot)| slot.active && is_named(&wanted, Some(&slot.name), Some(slot.asn.0)))
    })
}

fn is_named(wanted: &AnnouncerFilter, name: Option<&str>, asn: Option<u32>) -> bool {
    match wanted {
        AnnouncerFilter::Asn(wanted) => asn == Some(wanted.0),
        AnnouncerFilter::Name(wanted) => name == Some(wanted),
        AnnouncerFilter::Slot(_) => false,
    }
}

/// Leaves of the receivers those that `to` names.
pub fn only_to(exports: &mut [OwnExport], to: &str) {
    let wanted = member(to);
    let is_wanted = |receiver: &Receiver| is_named(&wanted, receiver.member.name.as_deref(), receiver.member.asn);
    exports.iter_mut().for_each(|export| export.receivers.retain(is_wanted));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(parameters: &[(&str, &str)]) -> Result<Asked, ViewError> {
        Asked::of(&parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn parameters_are_a_filter_or_are_refused_with_what_was_expected() {
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let all = asked(&[]).expect("no parameter");
        assert_eq!((all.filter.is_installed, all.most), (true, 1000), "what is installed, as before");
        let of = asked(&[("prefix", "10.0.0.0/8"), ("longer", "true"), ("announcer", "AS64497"), ("all", "true")]);
        let filter = of.expect("a filter").filter;
        assert_eq!(filter.prefix, Some((prefix("10.0.0.0/8"), true)));
        assert_eq!(filter.announcer, Some(AnnouncerFilter::Asn(Asn(64_497))));
        assert!(!filter.is_installed);
        let of =
            asked(&[("prefix", "10.1.2.3"), ("announcer", "alpha"), ("community", "rt:64496:*")]).expect("a filter");
        assert_eq!(of.address, Some("10.1.2.3".parse().expect("an address")));
        assert_eq!(of.filter.announcer, Some(AnnouncerFilter::Name("alpha".to_owned())));
        let of = asked(&[("reason", "first-as"), ("verdict", "gap"), ("on_path", "64501"), ("origin", "64502")]);
        let filter = of.expect("a filter").filter;
        assert_eq!(
            (filter.cause, filter.is_installed),
            (Some(Cause::FirstAs), false),
            "none with a reason is installed"
        );
        assert_eq!((filter.on_path, filter.origin), (Some(Asn(64_501)), Some(Asn(64_502))));
        assert_eq!(filter.verdict, Some(VerdictKind::Gap));
        for (parameters, expected) in [
            (&[("longer", "true")][..], "expected a prefix too"),
            (&[("longer", "true"), ("prefix", "10.1.2.3")], "expected a prefix too"),
            (&[("prefix", "10.0.0.1/8")], "beyond the prefix length"),
            (&[("on_path", "x")], "expected an AS number"),
            (&[("verdict", "good")], "expected valid, gap"),
            (&[("reason", "bad")], "expected one of: first-as, next-hop"),
            (&[("community", "1")], "not a community"),
            (&[("all", "yes")], "expected true or false"),
            (&[("after", "7")], "expected what a page before said as `next`"),
            (&[("after", "10.0.0.0/8,-1")], "PREFIX,SLOT"),
            (&[("after", "10.0.0.1/8,1")], "PREFIX,SLOT"),
        ] {
            let Err(ViewError::Request(why)) = asked(parameters) else { panic!("{parameters:?} is taken") };
            assert!(why.contains(expected), "{why}");
        }
    }

    fn placed(of: &str, slot: u32) -> PlacedRow {
        (ListPosition { prefix: of.parse().expect("a prefix"), slot }, json!(of))
    }

    #[test]
    fn a_position_of_either_family_is_read_as_it_was_written() {
        for (of, slot) in [("10.0.0.0/8", 0), ("2001:db8::/32", u32::MAX)] {
            let (position, _) = placed(of, slot);
            assert_eq!(position_text(position), format!("{of},{slot}"));
            let asked = asked(&[("after", &position_text(position))]).expect("a position");
            assert_eq!(asked.after, Some(position));
        }
    }

    #[test]
    fn a_page_says_where_the_next_one_begins_and_the_last_one_says_nothing() {
        let rows = || vec![placed("10.0.0.0/8", 1), placed("10.0.0.0/8", 2), placed("2001:db8::/32", 1)];
        let expected = |count: usize, more: bool, next: Value| {
            let rows: Vec<Value> = rows().into_iter().take(count).map(|(_, row)| row).collect();
            json!({ "version": 1, "routes": rows, "more": more, "next": next, "installed": 7 })
        };
        assert_eq!(page(rows(), 1, false, 7), expected(1, true, json!("10.0.0.0/8,1")));
        assert_eq!(page(rows(), 2, false, 7), expected(2, true, json!("10.0.0.0/8,2")));
        assert_eq!(page(rows(), 3, false, 7), expected(3, false, Value::Null));
        assert_eq!(page(rows(), 9, false, 7), expected(3, false, Value::Null));
        assert_eq!(
            page(rows(), 0, false, 7),
            expected(0, true, Value::Null),
            "there is no position before the first row"
        );
        assert_eq!(page(Vec::new(), 9, false, 7), expected(0, false, Value::Null));
    }

    #[test]
    fn a_page_does_not_part_what_one_announcer_has_for_a_prefix() {
        let rows = vec![placed("10.0.0.0/8", 1), placed("10.0.0.0/8", 1), placed("10.0.0.0/8", 2)];
        let first = page(rows.clone(), 1, false, 7);
        assert_eq!((first["routes"].as_array().map(Vec::len), &first["next"]), (Some(2), &json!("10.0.0.0/8,1")));
        assert_eq!(page(rows[..2].to_vec(), 1, false, 7)["more"], json!(false), "nothing is behind them");
        let part = page(rows[..2].to_vec(), 1, true, 7);
        assert_eq!((&part["more"], &part["next"]), (&json!(true), &json!("10.0.0.0/8,1")), "they end the part alone");
    }

    #[test]
    fn an_address_lies_in_the_longest_prefix_first() {
        let all = Place::Address([10, 1, 2, 3].into()).prefixes();
        assert_eq!(all.len(), 33);
        assert_eq!((all[0].to_string(), all[32].to_string()), ("10.1.2.3/32".to_owned(), "0.0.0.0/0".to_owned()));
    }
}

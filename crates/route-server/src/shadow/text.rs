//! Tables as BIRD's client prints them: `birdc show route export PROTOCOL all` of BIRD 2 and 3.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_bgp::{
    AsPathBuf, Attributes, Community, ExtendedCommunity, Ipv6NextHop, LargeCommunity, Origin, SegmentKind,
};
use wayleave_core::{Asn, Prefix};

/// Characters of a line that are looked at: our own limit.
const MAX_LINE: usize = 1 << 16;

/// A line that is not as BIRD prints it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct NotBirds {
    pub line: usize,
    pub what: String,
}

/// A route as it is being read.
#[derive(Clone, Debug, Default)]
pub struct RouteText {
    prefix: Option<Prefix>,
    protocol: Option<String>,
    fields: Fields,
}

/// What of a route is known so far, whoever wrote it.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    pub next_hop: Option<IpAddr>,
    pub path: Option<AsPathBuf>,
    pub origin: Option<Origin>,
    pub med: Option<u32>,
    pub communities: Vec<Community>,
    pub large: Vec<LargeCommunity>,
    pub extended: Vec<ExtendedCommunity>,
    pub only_to_customer: Option<Asn>,
}

impl Fields {
    /// The attributes of the route.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let mut editor = Attributes::builder();
        editor.origin(self.origin.unwrap_or(Origin::Incomplete));
        editor.as_path(self.path.clone().unwrap_or_default().as_path());
        match self.next_hop {
            Some(IpAddr::V4(address)) => drop(editor.ipv4_next_hop(address)),
            Some(IpAddr::V6(global)) => drop(editor.ipv6_next_hop(Some(Ipv6NextHop { global, link_local: None }))),
            None => {}
        }
        editor.med(self.med);
        editor.communities(&self.communities);
        editor.large_communities(&self.large);
        editor.extended_communities(&self.extended);
        editor.only_to_customer(self.only_to_customer);
        editor.finish()
    }
}

/// A route of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextRoute {
    pub prefix: Prefix,
    /// BIRD's protocol that it is of.
    pub protocol: Option<String>,
    pub attributes: Attributes,
}

/// Reads what `show route all`, with any choice of routes, prints. Routes of another kind than BGP's have an empty path.
///
/// # Errors
/// The first line that is not as BIRD prints it.
pub fn bird_routes(text: &str) -> Result<Vec<TextRoute>, NotBirds> {
    let mut routes = Vec::new();
    let mut open: Option<RouteText> = None;
    let mut prefix = None;
    for (number, line) in text.lines().enumerate() {
        let refuse = |what: String| NotBirds { line: number + 1, what };
        if line.len() > MAX_LINE {
            return Err(refuse(format!("longer than {MAX_LINE} octets")));
        }
        let is_field = line.starts_with('\t') || line.starts_with("        ") && line.trim_start().contains(": ");
        let words = line.trim();
        if words.is_empty() || words.starts_with("Table ") || is_greeting(words) {
            continue;
        }
        if let Some(head) = head(line, prefix) {
            let (at, protocol) = head.map_err(|text| refuse(format!("no prefix: {text}")))?;
            finish(open.replace(RouteText { prefix: Some(at), protocol, ..RouteText::default() }), &mut routes);
            prefix = Some(at);
            continue;
        }
        let Some(route) = open.as_mut().filter(|_| is_field) else {
            return Err(refuse(format!("neither a route nor an attribute of one: {}", shortened(words))));
        };
        if let Some((name, value)) = words.split_once(':') {
            let name = name.strip_prefix("BGP.").or_else(|| name.strip_prefix("bgp_")).unwrap_or("");
            field(&mut route.fields, name, value.trim())
                .ok_or_else(|| refuse(format!("cannot be read: {}", shortened(words))))?;
        }
    }
    finish(open, &mut routes);
    Ok(routes)
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

fn is_greeting(words: &str) -> bool {
    words.starts_with("BIRD ") && words.ends_with("ready.") || words == "Access restricted"
}

fn finish(route: Option<RouteText>, routes: &mut Vec<TextRoute>) {
    let Some(RouteText { prefix: Some(prefix), protocol, fields }) = route else { return };
    routes.push(TextRoute { prefix, protocol, attributes: fields.attributes() });
}

/// The first line of a route: its prefix, or blanks where it is of the same one, what kind it is, and its protocol in brackets.
fn head(line: &str, before: Option<Prefix>) -> Option<Result<(Prefix, Option<String>), String>> {
    const KINDS: [&str; 5] = ["unicast", "blackhole", "unreachable", "prohibit", "via"];
    if line.starts_with('\t') {
        return None;
    }
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let (prefix, kind) = if line.starts_with(' ') {
        (before.ok_or_else(|| shortened(line)), first)
    } else {
        (first.parse::<Prefix>().map_err(|_| shortened(line)), words.next()?)
    };
    if !KINDS.contains(&kind) {
        return None;
    }
    let protocol = words.next().and_then(|word| word.strip_prefix('[')).map(|name| name.trim_end_matches(']'));
    Some(prefix.map(|prefix| (prefix, protocol.map(str::to_owned))))
}

/// `None`: it is one of those that are read, and is not as it should be.
fn field(fields: &mut Fields, name: &str, value: &str) -> Option<()> {
    match name {
        "origin" => {
            fields.origin = Some(match value {
                "IGP" => Origin::Igp,
                "EGP" => Origin::Egp,
                "Incomplete" => Origin::Incomplete,
                _ => return None,
            });
        }
        "as_path" | "path" => fields.path = Some(path(value)?),
        "next_hop" => {
            // A second one is link-local.
            fields.next_hop = Some(value.split_whitespace().next()?.parse().ok()?);
        }
        "med" => fields.med = Some(value.parse().ok()?),
        "otc" => fields.only_to_customer = Some(Asn(value.parse().ok()?)),
        "community" => {
            for parts in tuples(value) {
                let [upper, lower] = parts[..] else { return None };
                fields.communities.push(Community::new(upper.parse().ok()?, lower.parse().ok()?));
            }
        }
        "large_community" => {
            for parts in tuples(value) {
                let [global, local1, local2] = parts[..] else { return None };
                let number = |text: &str| text.parse::<u32>().ok();
                fields.large.push(LargeCommunity::new(number(global)?, number(local1)?, number(local2)?));
            }
        }
        "ext_community" => {
            for parts in tuples(value) {
                fields.extended.push(extended(&parts)?);
            }
        }
        _ => {}
    }
    Some(())
}

/// `(1, 2) (3, 4)`.
fn tuples(value: &str) -> impl Iterator<Item = Vec<&str>> {
    value
        .split(')')
        .map(|part| part.trim().trim_start_matches('('))
        .filter(|part| !part.is_empty())
        .map(|part| part.split(',').map(str::trim).collect())
}

/// As BIRD names them: `rt`, `ro`, and `generic` with both halves in hexadecimal digits.
fn extended(parts: &[&str]) -> Option<ExtendedCommunity> {
    let [kind, one, two] = parts[..] else { return None };
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse::<u32>().ok(),
    };
    let subtype = match kind {
        "rt" => 2,
        "ro" => 3,
        "generic" => {
            let ([a, b, c, d], [e, f, g, h]) = (number(one)?.to_be_bytes(), number(two)?.to_be_bytes());
            return Some(ExtendedCommunity([a, b, c, d, e, f, g, h]));
        }
        _ => return Some(unknown(kind, one, two)),
    };
    let value = number(two)?;
    if let Ok(address) = one.parse::<Ipv4Addr>() {
        let [a, b, c, d] = address.octets();
        let [e, f] = u16::try_from(value).ok()?.to_be_bytes();
        return Some(ExtendedCommunity([0x01, subtype, a, b, c, d, e, f]));
    }
    let global = number(one)?;
    if let Ok(asn) = u16::try_from(global) {
        let ([a, b], [c, d, e, f]) = (asn.to_be_bytes(), value.to_be_bytes());
        return Some(ExtendedCommunity([0x00, subtype, a, b, c, d, e, f]));
    }
    let ([a, b, c, d], [e, f]) = (global.to_be_bytes(), u16::try_from(value).ok()?.to_be_bytes());
    Some(ExtendedCommunity([0x02, subtype, a, b, c, d, e, f]))
}

/// One with a name that is not known here, such as `(unknown 0x4, 1, 2)`: kept apart from all that are known.
fn unknown(kind: &str, one: &str, two: &str) -> ExtendedCommunity {
    let digits = kind.rsplit(' ').next().and_then(|text| u16::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    let [a, b] = digits.unwrap_or(0xffff).to_be_bytes();
    let [c, d] = (one.parse::<u32>().unwrap_or(0) as u16).to_be_bytes();
    let [e, f, g, h] = two.parse::<u32>().unwrap_or(0).to_be_bytes();
    ExtendedCommunity([a, b, c, d, e, f, g, h])
}

/// A path as routers print it: numbers, and sets in braces.
#[must_use]
pub fn path(text: &str) -> Option<AsPathBuf> {
    let mut path = AsPathBuf::new();
    let mut sequence: Vec<Asn> = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if let Some(set) = rest.strip_prefix('{') {
            let (inside, after) = set.split_once('}')?;
            if !sequence.is_empty() {
                path.push_segment(SegmentKind::Sequence, &std::mem::take(&mut sequence));
            }
            let inside = inside.split([' ', ',']).filter(|word| !word.is_empty());
            let asns: Option<Vec<Asn>> = inside.map(|word| word.parse().ok().map(Asn)).collect();
            path.push_segment(SegmentKind::Set, &asns?);
            rest = after.trim_start();
            continue;
        }
        let end = rest.find([' ', '{']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        sequence.push(Asn(word.parse().ok()?));
        rest = after.trim_start();
    }
    if !sequence.is_empty() {
        path.push_segment(SegmentKind::Sequence, &sequence);
    }
    Some(path)
}

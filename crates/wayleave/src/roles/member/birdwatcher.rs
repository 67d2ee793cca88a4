//! What a looking glass asks of birdwatcher, answered for a member's proxy: each other member is a protocol of BIRD, with the routes that
//! this proxy received from it. Alice-LG reads these answers (`pkg/sources/birdwatcher`, with `type = "single_table"`).
//!
//! Field names, and what is text and what a number, are birdwatcher's; times are UTC, as BIRD prints them. What the own router announces
//! is on none of these pages: to whom it goes is this member's policy.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use wayleave_bgp::{Attributes, ExtendedCommunity, Origin};
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_member::MemberProxy;
use wayleave_route_server::member::{AnnouncerFilter, ListedRoute, RouteFilter, RouteState};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Parameters, Reply, ViewError};

use super::listing::{Place, VISITS, next_hop};
use super::views::MemberView;

/// Routes of one page: our own limit; `more` says that there are others.
const MAX_ROUTES: usize = 250_000;
/// Prefixes of one part of a page, each of which may have a route of every member.
const PART: usize = 128;
/// Parts that wait for who reads them.
const PARTS_WAITING: usize = 2;
/// How long a reader may take for a part, until it is left.
const READER_PATIENCE: Duration = Duration::from_secs(30);
/// How long a whole page may take, until its reader is left: others wait for it.
const PAGE_PATIENCE: Duration = Duration::from_secs(60);
/// Octets of a part's rows, beyond which no further prefixes are added to it.
const PART_OCTETS: usize = 1 << 20;
/// The version of birdwatcher whose answers these are like.
const LIKE_VERSION: &str = "2.2.5";
/// The table of all routes, and those of one family in the words of BIRD 2.
const TABLES: [(&str, Option<Afi>); 3] = [("master", None), ("master4", Some(Afi::Ipv4)), ("master6", Some(Afi::Ipv6))];

/// Whose routes a page has.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Of {
    All,
    Slot(u32),
    /// To this prefix, or the longest one with this address.
    Place(Place),
    /// To the longest prefix in which this one lies.
    Longest(Prefix),
    Nobody,
}

/// Which of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    Accepted,
    Filtered,
    /// Those that are installed.
    Primary,
}

impl Which {
    fn has(self, state: RouteState) -> bool {
        let is_primary = matches!(state, RouteState::Installed | RouteState::Kept);
        match self {
            Self::Accepted => is_primary || state == RouteState::Other,
            Self::Filtered => state == RouteState::Refused,
            Self::Primary => is_primary,
        }
    }
}

/// What a request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Page {
    Version,
    Status,
    Protocols,
    ProtocolsShort,
    Symbols,
    SymbolTables,
    SymbolProtocols,
    /// Lists of routes, each under its name.
    Routes(Vec<(&'static str, Which)>, Of),
    Count(Which, Of),
}

/// The members that a page speaks of, as the member set in force has them, but for this one.
#[derive(Clone, Debug, Default)]
pub struct Members(BTreeMap<u32, Neighbour>);

#[derive(Clone, Debug)]
struct Neighbour {
    name: String,
    asn: Asn,
    addresses: Vec<IpAddr>,
}

impl Members {
    pub fn of(proxy: &MemberProxy, own: u32) -> Self {
        let slots = proxy.member_set().into_iter().flat_map(|set| set.iter());
        let others = slots.filter(|(id, slot)| slot.active && *id != own);
        let neighbour = |(id, slot): (u32, &wayleave_route_server::directory::Slot)| {
            (id, Neighbour { name: slot.name.clone(), asn: slot.asn, addresses: slot.addresses.clone() })
        };
        Self(others.map(neighbour).collect())
    }

    /// The member of this protocol, `R7`, or of this name.
    fn slot(&self, protocol: &str) -> Option<u32> {
        let numbered = protocol.strip_prefix('R').and_then(|slot| slot.parse().ok());
        let is_named = |(_, of): &(&u32, &Neighbour)| of.name == protocol;
        numbered
            .filter(|slot| self.0.contains_key(slot))
            .or_else(|| self.0.iter().find(is_named).map(|(slot, _)| *slot))
    }

    fn slot_at(&self, address: IpAddr) -> Option<u32> {
        self.0.iter().find(|(_, of)| of.addresses.contains(&address)).map(|(slot, _)| *slot)
    }

    /// Where BIRD would have its session: the first address, of this family if one is asked for.
    fn address(&self, slot: u32, family: Option<Afi>) -> Option<IpAddr> {
        let is_of = |address: &&IpAddr| family.is_none_or(|family| address.is_ipv4() == (family == Afi::Ipv4));
        self.0.get(&slot)?.addresses.iter().find(is_of).copied()
    }
}

fn protocol_name(slot: u32) -> String {
    format!("R{slot}")
}

/// What is asked, and of which family: `ipv4/` or `ipv6/` may go before every path.
fn page(path: &str, parameters: &Parameters, members: &Members) -> Result<(Option<Afi>, Page), ViewError> {
    let mut words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    let mut family = match words.first() {
        Some(&"ipv4") => Some(Afi::Ipv4),
        Some(&"ipv6") => Some(Afi::Ipv6),
        _ => None,
    };
    if family.is_some() {
        words.remove(0);
    }
    let slot = |protocol: &str| {
        let slot = members.slot(protocol).map(Of::Slot);
        slot.ok_or_else(|| ViewError::NotFound(format!("no member `{protocol}`, expected one of `protocols`")))
    };
    let mut table = |name: &str| {
        let (_, of) = TABLES
            .into_iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| ViewError::NotFound(format!("no table `{name}`, expected master, master4 or master6")))?;
        family = family.or(of);
        Ok::<_, ViewError>(Of::All)
    };
    let peer = |text: &str| {
        let address: Option<IpAddr> = text.parse().ok();
        // BIRD has none of a peer that it does not know.
        Ok(address.and_then(|address| members.slot_at(address)).map_or(Of::Nobody, Of::Slot))
    };
    let accepted = |of| Page::Routes(vec![("routes", Which::Accepted)], of);
    let filtered = |of| Page::Routes(vec![("routes", Which::Filtered)], of);
    let of_parameter = |name: &str| {
        parameters.get(name).ok_or_else(|| ViewError::Request(format!("expected `?{name}=`"))).map(String::as_str)
    };
    let page = match words[..] {
        ["version"] => Page::Version,
        ["status"] => Page::Status,
        ["protocols"] | ["protocols", "bgp"] => Page::Protocols,
        ["protocols", "short"] => Page::ProtocolsShort,
        ["symbols"] => Page::Symbols,
        ["symbols", "tables"] => Page::SymbolTables,
        ["symbols", "protocols"] => Page::SymbolProtocols,
        ["routes", "protocol", protocol] => accepted(slot(protocol)?),
        ["routes", "filtered", protocol] => filtered(slot(protocol)?),
        ["routes", "noexport", protocol] => {
            slot(protocol)?;
            accepted(Of::Nobody)
        }
        ["routes", "prefix"] => accepted(Of::Place(Place::parse(of_parameter("prefix")?)?)),
        ["routes", "peer"] => accepted(peer(of_parameter("peer")?)?),
        ["routes", "peer", address] => accepted(peer(address)?),
        ["routes", "table", name] => accepted(table(name)?),
        ["routes", "table", name, "filtered"] => filtered(table(name)?),
        ["routes", "table", name, "peer", address] => {
            table(name)?;
            accepted(peer(address)?)
        }
        ["routes", "count", "protocol", protocol] => Page::Count(Which::Accepted, slot(protocol)?),
        ["routes", "count", "primary", protocol] => Page::Count(Which::Primary, slot(protocol)?),
        ["routes", "count", "table", name] => Page::Count(Which::Accepted, table(name)?),
        ["routes", "pipe", "filtered"] => filtered(Of::Nobody),
        ["routes", "pipe", "filtered", "count"] => Page::Count(Which::Filtered, Of::Nobody),
        ["routes", "dump"] => Page::Routes(vec![("imported", Which::Accepted), ("filtered", Which::Filtered)], Of::All),
        ["route", "net", ref net @ ..] if !net.is_empty() => {
            let (net, of_table) = match net {
                [net @ .., "table", name] => (net, Some(*name)),
                net => (net, None),
            };
            of_table.map(&mut table).transpose()?;
            accepted(match Place::parse(&net.join("/"))? {
                Place::Prefix(prefix) => Of::Longest(prefix),
                address @ Place::Address(_) => Of::Place(address),
            })
        }
        _ => return Err(ViewError::NotFound(format!("no page `{path}` of birdwatcher is answered here"))),
    };
    Ok((family, page))
}

/// A time as BIRD prints it, in UTC.
fn bird_time(secs: u64) -> String {
    utc(secs).replace('T', " ").trim_end_matches('Z').to_owned()
}

/// What birdwatcher says of every answer. It may be kept for no time.
fn envelope(now: u64) -> Value {
    json!({
        "api": {
            "Version": LIKE_VERSION,
            "version": LIKE_VERSION,
            "result_from_cache": false,
            "cache_status": { "cached_at": { "date": utc(now), "timezone_type": "UTC", "timezone": "UTC" } },
        },
        "ttl": utc(now),
    })
}

fn enveloped(now: u64, fields: Value) -> Value {
    let mut value = envelope(now);
    if let (Some(all), Value::Object(fields)) = (value.as_object_mut(), fields) {
        all.extend(fields);
    }
    value
}

#[derive(Serialize)]
struct Route {
    network: String,
    from_protocol: String,
    /// The announcer's address, so that Alice-LG takes filtered routes for its neighbour's, whatever their next hop.
    gateway: Option<IpAddr>,
    learnt_from: Option<IpAddr>,
    interface: Option<&'static str>,
    age: String,
    metric: u32,
    primary: bool,
    #[serde(rename = "type")]
    kind: [&'static str; 2],
    bgp: Bgp,
    /// Why it is refused; birdwatcher has no such field, and Alice-LG shows it among the details.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct Bgp {
    origin: &'static str,
    as_path: Vec<String>,
    next_hop: Option<IpAddr>,
    local_pref: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    med: Option<String>,
    communities: Vec<[u16; 2]>,
    large_communities: Vec<[u32; 3]>,
    ext_communities: Vec<[String; 3]>,
}

/// What a row needs beside the route.
struct Context {
    members: Members,
    family: Option<Afi>,
    /// The route server's AS, whose communities name reasons.
    rs: Asn,
    now: u64,
}

impl Context {
    fn route(&self, listed: &ListedRoute<'_>) -> Route {
        let address = self.members.address(listed.slot, self.family);
        let age = listed.age.map_or(0, |age| age.as_secs());
        let mut bgp = bgp(&listed.prefix, listed.attributes);
        let of_reason = listed.refused.iter().flat_map(|(cause, _)| cause.communities(self.rs));
        bgp.large_communities.extend(of_reason.map(|of| [of.global, of.local1, of.local2]));
        Route {
            network: listed.prefix.to_string(),
            from_protocol: protocol_name(listed.slot),
            gateway: address,
            learnt_from: address,
            interface: None,
            age: bird_time(self.now.saturating_sub(age)),
            metric: 100,
            primary: Which::Primary.has(listed.state),
            kind: ["BGP", "univ"],
            bgp,
            reason: listed.refused.as_ref().map(|(_, words)| words.clone()),
        }
    }
}

fn bgp(prefix: &Prefix, attributes: &Attributes) -> Bgp {
    Bgp {
        origin: match attributes.origin() {
            Some(Origin::Igp) => "IGP",
            Some(Origin::Egp) => "EGP",
            _ => "Incomplete",
        },
        as_path: attributes.as_path().asns().map(|asn| asn.0.to_string()).collect(),
        next_hop: next_hop(prefix, attributes),
        local_pref: attributes.local_pref().unwrap_or(100).to_string(),
        med: attributes.med().map(|med| med.to_string()),
        communities: attributes.communities().map(|of| [of.upper(), of.lower()]).collect(),
        large_communities: attributes.large_communities().map(|of| [of.global, of.local1, of.local2]).collect(),
        ext_communities: attributes.extended_communities().map(extended).collect(),
    }
}

/// An extended community as BIRD prints it: `(rt, 64496, 1)`, `(generic, 0x43000000, 0x1)`.
fn extended(community: ExtendedCommunity) -> [String; 3] {
    let text = community.to_string();
    match text.split(':').collect::<Vec<_>>()[..] {
        [kind @ ("rt" | "ro"), asn, value] => [kind.to_owned(), asn.to_owned(), value.to_owned()],
        _ => {
            let [a, b, c, d, e, f, g, h] = community.0;
            let [high, low] = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
            ["generic".to_owned(), format!("0x{high:x}"), format!("0x{low:x}")]
        }
    }
}

/// Routes of a member, by what became of them.
#[derive(Clone, Copy, Default)]
struct Counts {
    imported: u64,
    filtered: u64,
    preferred: u64,
}

/// The members as protocols of BIRD. `up`: for how many seconds both parties are in reach.
fn protocols(context: &Context, counts: &BTreeMap<u32, Counts>, up: Option<u64>) -> Value {
    let changed = bird_time(context.now.saturating_sub(up.unwrap_or(0)));
    let (state, connection) = if up.is_some() { ("up", "Established") } else { ("down", "Idle") };
    let protocol = |(slot, of): (&u32, &Neighbour)| {
        let name = protocol_name(*slot);
        let Counts { imported, filtered, preferred } = counts.get(slot).copied().unwrap_or_default();
        let value = json!({
            "protocol": name,
            "bird_protocol": "BGP",
            "table": "master",
            "state": state,
            "state_changed": changed,
            "connection": connection,
            "bgp_state": connection,
            "description": of.name,
            "neighbor_address": context.members.address(*slot, context.family),
            "neighbor_as": of.asn.0,
            "last_error": "",
            // To whom the own router's routes go is this member's policy.
            "routes": { "imported": imported, "filtered": filtered, "preferred": preferred, "exported": 0 },
            "route_changes": {},
        });
        (name, value)
    };
    let is_shown = |(slot, _): &(&u32, &Neighbour)| context.members.address(**slot, context.family).is_some();
    json!({ "protocols": context.members.0.iter().filter(is_shown).map(protocol).collect::<serde_json::Map<_, _>>() })
}

/// The same with little of each.
fn protocols_short(whole: &Value) -> Value {
    let short = |(name, of): (&String, &Value)| {
        let short = json!({
            "proto": "BGP", "table": of["table"], "state": of["state"], "since": of["state_changed"], "info": of["connection"],
        });
        (name.clone(), short)
    };
    let all = whole["protocols"].as_object().into_iter().flatten();
    json!({ "protocols": all.map(short).collect::<serde_json::Map<_, _>>() })
}

fn symbols(members: &Members) -> (Vec<&'static str>, Vec<String>) {
    (TABLES.map(|(name, _)| name).to_vec(), members.0.keys().map(|slot| protocol_name(*slot)).collect())
}

/// Which routes these are, for the machine; `None` if there are none.
fn filter(of: &Of, family: Option<Afi>) -> Option<RouteFilter> {
    let all = RouteFilter { family, ..RouteFilter::default() };
    match of {
        Of::All | Of::Place(Place::Address(_)) | Of::Longest(_) => Some(all),
        Of::Slot(slot) => Some(RouteFilter { announcer: Some(AnnouncerFilter::Slot(*slot)), ..all }),
        Of::Place(Place::Prefix(prefix)) => Some(RouteFilter { prefix: Some((*prefix, false)), ..all }),
        Of::Nobody => None,
    }
}

/// The prefixes in which something is looked up, the longest first.
fn looked_up(of: &Of) -> Option<Vec<Prefix>> {
    match of {
        Of::Place(place @ Place::Address(_)) => Some(place.prefixes()),
        Of::Longest(prefix) => Some(
            (0..=prefix.len()).rev().filter_map(|length| Prefix::truncated(prefix.address(), length).ok()).collect(),
        ),
        _ => None,
    }
}

/// Answers a request.
pub async fn answer(view: MemberView, path: String, parameters: Parameters) -> Result<Reply, ViewError> {
    let now = unix_now().secs();
    let own = view.slot();
    let (members, up) = view
        .query(move |proxy| {
            let [one, two] = proxy.status().party_links.map(|link| link.up);
            (Members::of(proxy, own), one.zip(two).map(|(one, two)| one.min(two).as_secs()))
        })
        .await?;
    let (family, page) = page(&path, &parameters, &members)?;
    let context = Context { members, family, rs: view.rs_asn(), now };
    let (tables, names) = symbols(&context.members);
    let value = match page {
        Page::Version => json!({ "version": LIKE_VERSION }),
        Page::Status => json!({ "status": {
            "version": concat!("wayleave ", env!("CARGO_PKG_VERSION")),
            "router_id": view.router_id(),
            "current_server": bird_time(now),
            "last_reboot": bird_time(view.started()),
            "last_reconfig": bird_time(view.started()),
            "message": if up.is_some() { "Daemon is up and running" } else { "a party is not in reach" },
        } }),
        Page::Protocols => protocols(&context, &counts(&view, family).await?, up),
        Page::ProtocolsShort => protocols_short(&protocols(&context, &BTreeMap::new(), up)),
        Page::Symbols => json!({ "symbols": { "routing table": tables, "protocol": names } }),
        Page::SymbolTables => json!({ "symbols": tables }),
        Page::SymbolProtocols => json!({ "symbols": names }),
        Page::Count(which, of) => json!({ "routes": count(&view, which, &of, family).await? }),
        Page::Routes(lists, of) => {
            // One at a time: what is made of a table is not made for ever so many readers.
            let turn = view.turn().await?;
            let (to, parts) = mpsc::channel(PARTS_WAITING);
            tokio::spawn(async move {
                let _turn = turn;
                let written = write(view, (lists, of), Arc::new(context), to);
                // A reader that takes longer has a text that ends too early, which is no JSON.
                let _ = timeout(PAGE_PATIENCE, written).await;
            });
            return Ok(Reply::Parts(parts));
        }
    };
    Ok(Reply::Json(enveloped(now, value)))
}

async fn counts(view: &MemberView, family: Option<Afi>) -> Result<BTreeMap<u32, Counts>, ViewError> {
    let _turn = view.count_turn().await?;
    let mut counts: BTreeMap<u32, Counts> = BTreeMap::new();
    let filter = RouteFilter { family, ..RouteFilter::default() };
    let mut after = None;
    loop {
        let filter = filter.clone();
        let part = view
            .query(move |proxy| proxy.list_routes(&filter, after, VISITS, |route| (route.slot, route.state)))
            .await?;
        for (slot, state) in part.rows {
            let of = counts.entry(slot).or_default();
            of.imported += u64::from(Which::Accepted.has(state));
            of.filtered += u64::from(Which::Filtered.has(state));
            of.preferred += u64::from(Which::Primary.has(state));
        }
        after = part.after;
        if after.is_none() {
            return Ok(counts);
        }
    }
}

async fn count(view: &MemberView, which: Which, of: &Of, family: Option<Afi>) -> Result<u64, ViewError> {
    let slot = match of {
        Of::Nobody => return Ok(0),
        Of::Slot(slot) => Some(*slot),
        _ => None,
    };
    let counts = counts(view, family).await?;
    let wanted = counts.iter().filter(|(of, _)| slot.is_none_or(|slot| **of == slot));
    Ok(wanted
        .map(|(_, of)| match which {
            Which::Accepted => of.imported,
            Which::Filtered => of.filtered,
            Which::Primary => of.preferred,
        })
        .sum())
}

/// Writes lists of routes, a part at a time, until they end, the page is full, or its reader has gone.
async fn write(
    view: MemberView,
    (lists, of): (Vec<(&'static str, Which)>, Of),
    context: Arc<Context>,
    to: mpsc::Sender<String>,
) {
    let mut text = envelope(context.now).to_string();
    // The lists are further fields of it.
    text.pop();
    let mut left = MAX_ROUTES;
    let mut is_full = false;
    for (name, which) in lists {
        text += &format!(",\"{name}\":[");
        let (mut after, mut is_first) = (None, true);
        while let Some(part) = part(&view, which, &of, &context, (after, left)).await {
            let Ok((rows, next)) = part else { return };
            is_full |= rows.len() > left;
            for row in rows.into_iter().take(left) {
                text += if std::mem::take(&mut is_first) { "" } else { "," };
                text += &row;
                left -= 1;
            }
            if !send(&to, std::mem::take(&mut text)).await {
                return;
            }
            after = next;
            if after.is_none() || is_full {
                break;
            }
        }
        text.push(']');
    }
    text += &format!(",\"more\":{is_full}}}");
    send(&to, text).await;
}

/// Whether the reader has taken it, or may yet.
async fn send(to: &mpsc::Sender<String>, text: String) -> bool {
    matches!(timeout(READER_PATIENCE, to.send(text)).await, Ok(Ok(())))
}

/// The next rows, one more than `left` at most, and behind which prefix it goes on; `None` if there is nothing to ask for, an error once the role stops.
async fn part(
    view: &MemberView,
    which: Which,
    of: &Of,
    context: &Arc<Context>,
    (mut after, left): (Option<Prefix>, usize),
) -> Option<Result<(Vec<String>, Option<Prefix>), ViewError>> {
    let filter = filter(of, context.family)?;
    let (looked_up, context) = (looked_up(of), Arc::clone(context));
    let rows = view.query(move |proxy| {
        let mut most = left.saturating_add(1);
        let mut row = |route: &ListedRoute<'_>| {
            if most == 0 || !which.has(route.state) {
                return None;
            }
            most -= 1;
            Some(serde_json::to_string(&context.route(route)).unwrap_or_default())
        };
        let Some(prefixes) = looked_up else {
            let (mut rows, mut octets) = (Vec::new(), 0);
            for _ in 0..PART {
                let part = proxy.list_routes(&filter, after, 1, &mut row);
                let found = part.rows.into_iter().flatten();
                rows.extend(found.inspect(|row: &String| octets += row.len()));
                after = part.after;
                if after.is_none() || is_whole(octets, rows.len(), left) {
                    break;
                }
            }
            return (rows, after);
        };
        for prefix in prefixes {
            let of_prefix = RouteFilter { prefix: Some((prefix, false)), ..filter.clone() };
            let found = proxy.list_routes(&of_prefix, None, 1, &mut row).rows;
            let found: Vec<String> = found.into_iter().flatten().collect();
            if !found.is_empty() {
                return (found, None);
            }
        }
        (Vec::new(), None)
    });
    Some(rows.await)
}

/// Whether a part has enough: for its reader, or for the page.
fn is_whole(octets: usize, rows: usize, left: usize) -> bool {
    octets >= PART_OCTETS || rows > left
}

#[cfg(test)]
mod tests {
    //! The answers, read by structures with the fields that Alice-LG reads (`pkg/sources/birdwatcher/parsers.go`), which are not those that
    //! write them.

    use serde::Deserialize;
    use wayleave_bgp::{AsPathBuf, AttributesEditor, Community, LargeCommunity};
    use wayleave_route_server::member::Cause;

    use super::*;

    #[derive(Deserialize)]
    struct AliceAnswer {
        api: AliceApi,
        ttl: String,
    }

    #[derive(Deserialize)]
    struct AliceApi {
        #[serde(rename = "Version")]
        version: String,
        result_from_cache: bool,
        cache_status: AliceCache,
    }

    #[derive(Deserialize)]
    struct AliceCache {
        cached_at: AliceDate,
    }

    #[derive(Deserialize)]
    struct AliceDate {
        date: String,
    }

    #[derive(Deserialize)]
    struct AliceNeighbour {
        neighbor_address: String,
        neighbor_as: u32,
        state: String,
        description: String,
        state_changed: String,
        last_error: String,
        routes: BTreeMap<String, u64>,
    }

    #[derive(Deserialize)]
    struct AliceRoute {
        network: String,
        from_protocol: String,
        interface: Option<String>,
        gateway: String,
        learnt_from: String,
        metric: i64,
        primary: bool,
        age: String,
        #[serde(rename = "type")]
        kind: Vec<String>,
        bgp: AliceBgp,
    }

    #[derive(Deserialize)]
    struct AliceBgp {
        origin: String,
        as_path: Vec<String>,
        next_hop: String,
        local_pref: String,
        med: String,
        communities: Vec<[i64; 2]>,
        large_communities: Vec<[i64; 3]>,
        ext_communities: Vec<[String; 3]>,
    }

    fn members() -> Members {
        let neighbour = |name: &str, asn: u32, addresses: &[&str]| Neighbour {
            name: name.to_owned(),
            asn: Asn(asn),
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        };
        Members(BTreeMap::from([
            (1, neighbour("bravo", 64_498, &["192.0.2.2", "2001:db8::2"])),
            (4, neighbour("charlie", 64_499, &["192.0.2.3"])),
        ]))
    }

    fn context(family: Option<Afi>) -> Context {
        Context { members: members(), family, rs: Asn(64_496), now: 1_700_000_000 }
    }

    fn asked(path: &str) -> Result<(Option<Afi>, Page), ViewError> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let pair = |text: &str| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        page(path, &query.split('&').filter_map(pair).collect(), &members())
    }

    fn attributes() -> Attributes {
        let mut editor = AttributesEditor::default();
        editor.origin(Origin::Igp);
        editor.as_path(AsPathBuf::from_sequence(&[Asn(64_498), Asn(64_510)]).as_path());
        editor.ipv4_next_hop([192, 0, 2, 9].into());
        editor.med(Some(7));
        editor.communities(&[Community::new(64_498, 100)]);
        editor.large_communities(&[LargeCommunity::new(64_498, 1, 2)]);
        editor.extended_communities(&[
            ExtendedCommunity::route_target(64_498, 5),
            ExtendedCommunity([0x43, 0, 0, 0, 0, 0, 0, 1]),
        ]);
        editor.finish()
    }

    #[test]
    fn a_part_ends_with_the_octets_or_the_rows_of_its_page() {
        assert!(!is_whole(PART_OCTETS - 1, 128, 128));
        assert!(is_whole(PART_OCTETS, 1, 128) && is_whole(1, 129, 128) && is_whole(1, 1, 0));
    }

    #[test]
    fn every_path_that_alice_asks_for_has_its_page() {
        let one = |which, of| Page::Routes(vec![("routes", which)], of);
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let address = |text: &str| Place::Address(text.parse().expect("an address"));
        let (accepted, filtered) = (Which::Accepted, Which::Filtered);
        for (path, page) in [
            ("status", Page::Status),
            ("protocols", Page::Protocols),
            ("protocols/bgp", Page::Protocols),
            ("protocols/short?uncached=true", Page::ProtocolsShort),
            ("symbols", Page::Symbols),
            ("routes/protocol/R4", one(accepted, Of::Slot(4))),
            ("routes/protocol/charlie", one(accepted, Of::Slot(4))),
            ("routes/filtered/R1", one(filtered, Of::Slot(1))),
            ("routes/noexport/R1", one(accepted, Of::Nobody)),
            ("routes/prefix?prefix=10.0.0.0/8", one(accepted, Of::Place(Place::Prefix(prefix("10.0.0.0/8"))))),
            ("routes/prefix?prefix=10.1.2.3", one(accepted, Of::Place(address("10.1.2.3")))),
            ("routes/peer/2001:db8::2", one(accepted, Of::Slot(1))),
            ("routes/peer?peer=192.0.2.77", one(accepted, Of::Nobody)),
            ("routes/table/master", one(accepted, Of::All)),
            ("routes/table/master/filtered", one(filtered, Of::All)),
            ("routes/table/master/peer/192.0.2.3", one(accepted, Of::Slot(4))),
            ("routes/pipe/filtered/?table=t&pipe=p", one(filtered, Of::Nobody)),
            ("routes/pipe/filtered/count?table=t", Page::Count(filtered, Of::Nobody)),
            ("routes/count/primary/R1", Page::Count(Which::Primary, Of::Slot(1))),
            ("route/net/10.1.0.0/16", one(accepted, Of::Longest(prefix("10.1.0.0/16")))),
            ("route/net/10.1.0.0/16/table/master", one(accepted, Of::Longest(prefix("10.1.0.0/16")))),
            ("route/net/10.1.2.3", one(accepted, Of::Place(address("10.1.2.3")))),
        ] {
            assert_eq!(asked(path), Ok((None, page.clone())), "{path}");
            assert_eq!(asked(&format!("ipv6/{path}")), Ok((Some(Afi::Ipv6), page)), "{path}");
        }
        assert_eq!(asked("routes/table/master6").map(|(family, _)| family), Ok(Some(Afi::Ipv6)));
        for path in ["", "routes/protocol/R0", "routes/protocol/R2", "routes/table/t", "routes", "route/net", "metrics"]
        {
            assert!(matches!(asked(path), Err(ViewError::NotFound(_))), "{path}");
        }
        for path in ["routes/prefix", "routes/prefix?prefix=x", "route/net/x"] {
            assert!(matches!(asked(path), Err(ViewError::Request(_))), "{path}");
        }
    }

    #[test]
    fn a_route_is_what_alice_reads_with_the_reason_as_a_large_community() {
        let attributes = attributes();
        let mut listed = ListedRoute {
            prefix: "203.0.113.0/24".parse().expect("a prefix"),
            slot: 1,
            attributes: &attributes,
            state: RouteState::Installed,
            verdict: None,
            refused: None,
            age: Some(Duration::from_secs(60)),
        };
        let read = |listed: &ListedRoute<'_>| {
            let text = serde_json::to_string(&context(Some(Afi::Ipv4)).route(listed)).expect("JSON");
            serde_json::from_str::<AliceRoute>(&text).expect("a route of birdwatcher")
        };
        let route = read(&listed);
        assert_eq!((route.network.as_str(), route.from_protocol.as_str()), ("203.0.113.0/24", "R1"));
        // Alice takes filtered routes for the neighbour's by these.
        assert_eq!((route.gateway.as_str(), route.learnt_from.as_str()), ("192.0.2.2", "192.0.2.2"));
        assert_eq!((route.age.as_str(), route.metric, route.primary), ("2023-11-14 22:12:20", 100, true));
        assert!(route.interface.is_none() && route.kind.contains(&"BGP".to_owned()));
        let bgp = route.bgp;
        assert_eq!((bgp.origin.as_str(), bgp.next_hop.as_str()), ("IGP", "192.0.2.9"));
        assert_eq!(bgp.as_path, ["64498", "64510"]);
        assert_eq!((bgp.local_pref.as_str(), bgp.med.as_str()), ("100", "7"));
        assert_eq!((&bgp.communities[..], &bgp.large_communities[..]), (&[[64_498, 100]][..], &[[64_498, 1, 2]][..]));
        let texts = |all: [&str; 3]| all.map(str::to_owned);
        assert_eq!(bgp.ext_communities, [texts(["rt", "64498", "5"]), texts(["generic", "0x43000000", "0x1"])]);

        listed.state = RouteState::Refused;
        listed.refused = Some((Cause::NextHop, "next hop 192.0.2.9 is not the announcer's".to_owned()));
        let route = read(&listed);
        assert!(!route.primary);
        assert_eq!(route.bgp.large_communities, [[64_498, 1, 2], [64_496, 1101, 8], [64_496, 65_520, 5]]);
    }

    #[test]
    fn members_are_protocols_and_every_answer_says_what_it_is() {
        let counts = BTreeMap::from([(1, Counts { imported: 5, filtered: 2, preferred: 3 })]);
        let value = enveloped(1_700_000_000, protocols(&context(None), &counts, Some(3_600)));
        let answer: AliceAnswer = serde_json::from_value(value.clone()).expect("an answer");
        assert!(!answer.api.version.is_empty() && !answer.api.result_from_cache);
        assert_eq!(answer.ttl, "2023-11-14T22:13:20Z");
        assert_eq!(answer.api.cache_status.cached_at.date, answer.ttl);
        let all: BTreeMap<String, AliceNeighbour> =
            serde_json::from_value(value["protocols"].clone()).expect("neighbours");
        let bravo = &all["R1"];
        assert_eq!((bravo.neighbor_address.as_str(), bravo.neighbor_as), ("192.0.2.2", 64_498));
        assert_eq!((bravo.state.as_str(), bravo.description.as_str()), ("up", "bravo"));
        assert_eq!((bravo.state_changed.as_str(), bravo.last_error.as_str()), ("2023-11-14 21:13:20", ""));
        let of = |name: &str| bravo.routes[name];
        assert_eq!((of("imported"), of("filtered"), of("preferred"), of("exported")), (5, 2, 3, 0));
        assert_eq!(all.len(), 2);
        let short = protocols_short(&value);
        assert_eq!(short["protocols"]["R4"]["since"], "2023-11-14 21:13:20");
        let down = protocols(&context(Some(Afi::Ipv6)), &counts, None);
        assert_eq!(down["protocols"]["R1"]["state"], "down");
        assert_eq!(down["protocols"]["R1"]["neighbor_address"], "2001:db8::2");
        assert!(down["protocols"]["R4"].is_null(), "no address of the family");
    }
}

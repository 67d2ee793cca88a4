//! `show` and `why`: the state of a running role, as text or as JSON.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::apply;
use super::mrt::Dump;
use super::path;
use crate::failure::{Failure, Outcome};
use crate::fetch;
use crate::fetch::Target;
use crate::output::{cell, cell_of, fields, objects, print, print_json, problems};
use crate::overview::{Overview, few_time_key};
use clap::{Args, ValueEnum};
use wayleave_core::Prefix;
use wayleave_runtime::clock::unix_now;

#[derive(Args, Debug)]
pub struct Show {
    /// What to show; `status` is one screen.
    pub what: Noun,
    /// Of a member's `routes` and `exports`: a prefix, or an address for the longest prefix that has it.
    #[arg(value_name = "PREFIX")]
    pub of: Option<String>,
    /// Of `status`: every problem, every peer and all counters. Of a member's `routes`: also those that are not installed.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub target: Target,
    /// Routes or reports to show.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub most: usize,
    /// Whom the paths lead to: a name, a key or an inner address.
    #[arg(long, value_name = "HOST", default_value = "", hide_default_value = true)]
    pub host: String,
    /// Only reports on the path whose handle begins with these digits.
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true)]
    pub handle: String,
    /// Only of this pair of parties, by its exchange's name; default: all (member).
    #[arg(long, value_name = "NAME")]
    pub pair: Option<String>,
    #[command(flatten)]
    pub which: Which,
    /// Write a member's routes, all of them, to this file as a RIB dump (MRT, RFC 6396).
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub mrt: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

/// Which routes of a member's proxy.
#[derive(Args, Debug, Default)]
pub struct Which {
    /// Also routes inside the prefix (member).
    #[arg(long, requires = "of")]
    pub longer: bool,
    /// Only routes of this member, by AS number or name (member).
    #[arg(long, value_name = "MEMBER")]
    pub announcer: Option<String>,
    /// Only routes with this AS on the path (member).
    #[arg(long, value_name = "ASN")]
    pub on_path: Option<String>,
    /// Only routes that this AS originates (member).
    #[arg(long, value_name = "ASN")]
    pub origin: Option<String>,
    /// Only routes with this community: 64496:1, 64496:1:2 or rt:64496:1, each with * for any number (member).
    #[arg(long, value_name = "COMMUNITY")]
    pub community: Option<String>,
    /// Only routes of this verdict: valid, gap, unattested, expired or invalid (member).
    #[arg(long, value_name = "VERDICT")]
    pub verdict: Option<String>,
    /// Only routes that are refused for this reason, such as first-as or import-rule (member).
    #[arg(long, value_name = "REASON")]
    pub reason: Option<String>,
}

wayleave_core::named! {
    #[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
    pub enum Noun {
        /// One screen: problems, peers or links, counts; with `--all` everything.
        Status = "status",
        /// The other ends of sessions and links.
        Peers = "peers",
        /// Routes that the role has (party: objects; member: what it installed; attesting proxy: both directions; gateway: what its realm
        /// offers, and what of it is accepted).
        Routes = "routes",
        /// To whom the own router's routes go by the policy, and why not to others (member).
        Exports = "exports",
        /// Members of the exchange (party) or of the realm (servers and nodes of an overlay).
        Members = "members",
        /// What every route must be, as both operators of the exchange signed it (member).
        Profile = "profile",
        /// What happened lately, with the times.
        Events = "events",
        /// Public keys in use, the role's own and others'.
        Keys = "keys",
        /// Packets and octets by account (router).
        Accounts = "accounts",
        /// Signed counts of packets by path and window (ICING node).
        Reports = "reports",
        /// Neighbours, as their adverts have them (router or gateway of an overlay).
        Neighbours = "neighbours",
        /// Links to neighbours: where they are, when they proved themselves, octets, round trip, loss (router or gateway of an overlay).
        Links = "links",
        /// Paths to a host, and whether their nodes consent (router of an overlay); all paths, and what uses them (gateway).
        Paths = "paths",
        /// Names that have addresses (gateway).
        Names = "names",
        /// Routes of waypoints, and who pays at each (stamper).
        Stamping = "stamping",
    }
}

impl Noun {
    pub fn path(self) -> String {
        format!("/api/v1/{}", self.name())
    }
}

#[derive(Args, Debug)]
pub struct Why {
    /// A prefix, or an address for the longest prefix that has it (member); a name or address behind a gateway; a destination's address
    /// (stamper).
    pub what: String,
    /// Only what becomes of the own router's route, with each check that the exchange makes of it (member).
    #[arg(long)]
    pub announced: bool,
    /// Only whether the own router's route goes to this member, by AS number or name, and why (member).
    #[arg(long, value_name = "MEMBER", conflicts_with = "announced")]
    pub to: Option<String>,
    /// Only of this pair of parties, by its exchange's name; default: all (member).
    #[arg(long, value_name = "NAME")]
    pub pair: Option<String>,
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

/// Prefixes of one object in a table.
const PREFIXES: usize = 4;

pub fn show(command: &Show) -> Outcome {
    if let Some(file) = &command.mrt {
        if command.what != Noun::Routes {
            let failure = Failure::usage(format!("`--mrt` writes routes, and not {}", command.what.name()));
            return Err(failure.help("`wayleave show routes --mrt FILE`").into());
        }
        let (filter, pair) = (filter_of(command)?, command.pair.as_deref());
        return Dump { target: &command.target, filter: &filter, pair }.write(file);
    }
    let path = match command.what {
        Noun::Routes | Noun::Exports => format!("{}?{}", command.what.path(), parameters(command)?),
        what if command.of.is_some() || !filters(&command.which).is_empty() => {
            let failure = Failure::usage(format!("`show {}` takes no prefix and no filter of routes", what.name()));
            return Err(failure.help("`routes` and `exports` of a member's proxy do").into());
        }
        Noun::Reports => format!("{}?most={}&handle={}", command.what.path(), command.most, command.handle),
        Noun::Paths => format!("{}?host={}", command.what.path(), command.host),
        what => what.path(),
    };
    if command.what == Noun::Status && !command.json {
        if let Some(config) = &command.target.config {
            apply::warn_of_unconfirmed(config);
        }
        return status(command);
    }
    let value = fetch::json(&command.target, &fetch::of_pair(&path, command.pair.as_deref()))?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    let text = match command.what {
        Noun::Status => counters(value),
        Noun::Peers if list("peers").iter().any(|row| row["identity"].is_string()) => {
            let now = unix_now().secs();
            list("peers").iter().map(|row| gateway_peer(row, now)).collect::<Vec<_>>().join("\n")
        }
        Noun::Peers => objects(
            &list("peers").into_iter().map(peer).collect::<Vec<_>>(),
            &[
                "pair",
                "peer",
                "name",
                "interface",
                "neighbor",
                "local",
                "remote",
                "bad_macs",
                "slot",
                "up",
                "waits",
                "state",
                "asn",
                "router_id",
                "address",
                "uptime",
                "received",
                "announced",
                "prefixes_in",
                "prefixes_out",
                "octets_received",
                "octets_sent",
                "protection",
                "last_end",
            ],
        ),
        Noun::Routes if value["accept"].is_array() => offered(&value, &list("routes")),
        Noun::Routes => routes(list("routes"), value["more"] == true) + &problems(&value),
        Noun::Exports => exports(&value, command.of.is_some()) + &problems(&value),
        Noun::Members => {
            let columns = [
                "slot",
                "name",
                "asn",
                "active",
                "connected",
                "addresses",
                "max_prefix",
                "held",
                "names",
                "roles",
                "prefixes",
                "advert",
                "advert_secs_left",
                "identity",
            ];
            objects(&list("members"), &columns)
        }
        // Of a proxy with several pairs of parties.
        Noun::Profile if value["pairs"].is_array() => list("pairs").iter().map(profile).collect(),
        Noun::Profile => profile(&value),
        Noun::Events => list("events").iter().map(event).collect(),
        Noun::Accounts => {
            let columns = ["account", "principal", "delegation", "sub_delegation", "epoch", "packets", "octets"];
            objects(&list("accounts"), &columns)
        }
        // Only a gateway may have none: a router is asked about one host, and says why there is none.
        Noun::Paths if list("paths").iter().all(|row| row["used"].is_array()) => path::table(&value),
        Noun::Names => objects(&list("names"), &["name", "ipv4", "ipv6"]),
        Noun::Stamping => {
            let columns = ["route", "waypoint", "principal", "delegation", "epoch", "until", "file"];
            let routes = objects(&list("stamping").iter().flat_map(waypoints).collect::<Vec<_>>(), &columns);
            let columns = ["to", "user", "mark", "cgroup", "route", "otherwise", "interface"];
            format!("{routes}\n{}", objects(&list("rules"), &columns))
        }
        Noun::Reports => objects(&list("reports"), &["handle", "index", "window", "packets", "octets"]),
        Noun::Neighbours => {
            objects(&list("neighbours"), &["node", "interface", "state", "local", "remote", "ids", "identity"])
        }
        Noun::Links => {
            let missing = list("missing");
            let missing =
                missing.iter().map(|peer| format!("no link to {}: {}\n", cell(&peer["node"]), cell(&peer["why"])));
            list("links").iter().map(link).chain(missing).collect::<Vec<_>>().join("\n")
        }
        Noun::Paths => objects(&list("paths"), &["nodes", "mtu", "until", "consented_until", "not_consented"]),
        Noun::Keys => objects(
            &list("keys").into_iter().map(key).collect::<Vec<_>>(),
            &[
                "pair",
                "of",
                "from",
                "suite",
                "id",
                "tls",
                "sign",
                "registered",
                "state",
                "routes",
                "last_signed",
                "needed_until",
                "left",
                "ends",
                "reload",
            ],
        ),
    };
    // What a role has done so far may be nothing, which is no answer to look at.
    let is_list = command.what != Noun::Events;
    print(if is_list && text.trim().is_empty() { "none\n" } else { &text });
    Ok(())
}

/// A link to a neighbour, in the manner of `wg show`.
fn link(row: &Value) -> String {
    let mut text = format!("link {}: {}\n", cell(&row["interface"]), cell(&row["node"]));
    let mut line = |name: &str, value: String| text += &format!("  {name}: {value}\n");
    line(
        "state",
        match row["state"].as_str() {
            Some("awaited") => "waits for the neighbour: no address of it is known".to_owned(),
            Some("stopped") => "the neighbour has said that it stops, and has not come back".to_owned(),
            Some("asked") => "the neighbour has not answered".to_owned(),
            _ => cell(&row["state"]),
        },
    );
    if let Some(address) = row["address"].as_str() {
        line("endpoint", address.to_owned());
    }
    if row["transport"] == "tls" {
        line("transport", "TLS on TCP, since UDP does not pass; UDP is tried again now and then".to_owned());
    }
    if let Some(at) = row["last_handshake"].as_u64() {
        line("latest handshake", ago(unix_now().secs().saturating_sub(at)));
    }
    let carried = |way: &str| octets(row[way]["octets"].as_u64().unwrap_or(0));
    line("transfer", format!("{} received, {} sent", carried("received"), carried("sent")));
    if let Some(micros) = row["round_trip_micros"].as_u64() {
        line("round trip", format!("{:.1} ms", micros as f64 / 1e3));
    }
    if let Some(ppm) = row["loss_ppm"].as_u64() {
        line("loss", format!("{:.1} %", ppm as f64 / 1e4));
    }
    if let Some(ahead) = row["clock_ahead_micros"].as_i64() {
        let by = ahead.unsigned_abs() as f64 / 1e6;
        let within = row["clock_within_micros"].as_u64().unwrap_or(0) as f64 / 1e6;
        line(
            "clock",
            format!("{by:.3} s {} ours, within {within:.3} s", if ahead < 0 { "behind" } else { "ahead of" }),
        );
    }
    if let Some(size) = row["size"].as_u64() {
        line("largest datagram", format!("{size} octets"));
    }
    if let Some([least, highest]) = row["other_versions"].as_array().map(Vec::as_slice) {
        line("versions", format!("{least} to {highest}, none of which is spoken here"));
    }
    text
}

/// The profile of an exchange, and what is not checked.
fn profile(value: &Value) -> String {
    let of = format!("{} member set {}\n", cell(&value["exchange"]), cell(&value["member_set"]));
    if value["profile"].is_null() {
        return of + "no profile: the operators have signed none, or the parties have shown no member set yet\n";
    }
    format!("{of}{}{}\n", fields(&value["profile"]), cell(&value["not_checked"]))
}

/// What a realm offers to a gateway, and the line that accepts all of it.
fn offered(value: &Value, rows: &[Value]) -> String {
    if rows.is_empty() {
        return "no other member has prefixes, or none is known yet\n".to_owned();
    }
    let state =
        |row: &Value| match (row["accepted"] == true, row["covered_by"].as_array().map_or(&[][..], Vec::as_slice)) {
            (false, _) => "not accepted".to_owned(),
            (true, []) => "routed".to_owned(),
            (true, by) => {
                format!("this machine's own routes go first: {}", by.iter().map(cell).collect::<Vec<_>>().join(", "))
            }
        };
    let rows = rows.iter().map(|row| json!({ "prefix": row["prefix"], "member": row["member"], "state": state(row) }));
    let mut text = objects(&rows.collect::<Vec<_>>(), &["prefix", "member", "state"]);
    let line = |key: &str| {
        let all: Vec<String> = value[key].as_array().into_iter().flatten().map(Value::to_string).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    if let (Some(accepted), Some(missing)) = (line("accept"), line("missing")) {
        text += &format!("\nto accept the rest as well, in [gateway]:\naccept = [{accepted}, {missing}]\n");
    }
    text
}

/// One screen, or with `--all` everything.
fn status(command: &Show) -> Outcome {
    let of_pair = |path: &str| fetch::of_pair(path, command.pair.as_deref());
    let overview = fetch::json(&command.target, &of_pair("/api/v1/overview"))?;
    let overview: Overview = serde_json::from_value(overview).map_err(|error| {
        Failure::new(format!("the role's overview cannot be read: {error}"))
            .help("is the role of another version than this command? `--json` prints its status")
    })?;
    let mut text = overview.text(command.all);
    if command.all {
        let value = fetch::json(&command.target, &of_pair(&command.what.path()))?;
        text += &format!("\n{}", counters(value));
    }
    print(&text);
    Ok(())
}

/// All of a status but its problems, as lines; what members have spent as a table below them.
fn counters(mut value: Value) -> String {
    links_in_words(&mut value);
    further_slots_in_words(&mut value);
    few_time_keys_in_words(&mut value);
    budget_in_words(&mut value);
    pairs_by_name(&mut value);
    remove(&mut value, "problems");
    // These stand among the problems.
    remove(&mut value, "older_store");
    remove(&mut value, "unfit_greetings");
    let (speaks, budgets) = (speaks(&mut value), budgets(&mut value));
    fields(&value) + &budgets + &speaks
}

/// The pairs of an attesting proxy, or of a member's, each under its name.
fn pairs_by_name(value: &mut Value) {
    let Some(Value::Array(pairs)) = remove(value, "pairs") else { return };
    for mut pair in pairs {
        // Of a member's proxy each is as the status of one.
        links_in_words(&mut pair);
        further_slots_in_words(&mut pair);
        budget_in_words(&mut pair);
        remove(&mut pair, "problems");
        let name = remove(&mut pair, "name").as_ref().map_or_else(String::new, cell);
        value["pair"][name] = pair;
    }
}

fn remove(value: &mut Value, field: &str) -> Option<Value> {
    value.as_object_mut().and_then(|fields| fields.remove(field))
}

/// What a member may cost the exchange, and what is left of it.
fn budget_in_words(value: &mut Value) {
    let Some(budget) = remove(value, "budget") else { return };
    let of = |name: &str| cell(&budget[name]);
    let kib = |name: &str| budget[name].as_u64().unwrap_or(0) >> 10;
    value["budget"] = if budget.is_null() {
        "not known yet".into()
    } else {
        format!(
            "prefixes {} of {}; stored {} of {} KiB; {} objects and {} KiB a second; all routes {} times at once, {} an hour; choices {} \
             at once, {} an hour",
            of("prefixes"),
            of("max_prefixes"),
            kib("stored"),
            kib("max_stored"),
            of("objects_per_second"),
            kib("octets_per_second"),
            of("resyncs_left"),
            of("resyncs_per_hour"),
            of("choices_left"),
            of("choices_per_hour"),
        )
        .into()
    };
}

/// Which versions of the protocol and which formats of objects members speak, as a table.
fn speaks(value: &mut Value) -> String {
    let Some(Value::Array(rows)) = remove(value, "speaks").filter(|rows| *rows != serde_json::json!([])) else {
        return String::new();
    };
    format!("\n{}", objects(&rows, &["slot", "protocol_version", "protocol_versions", "formats"]))
}

/// What members have spent of their budgets at a party, as a table.
fn budgets(value: &mut Value) -> String {
    let Some(Value::Array(rows)) = remove(value, "budgets") else {
        return String::new();
    };
    if rows.is_empty() {
        return String::new();
    }
    let of = |row: &Value, name: &str, most: &str| format!("{} of {}", cell(&row[name]), cell(&row[most]));
    let kib = |row: &Value, name: &str| row[name].as_u64().map(|octets| octets >> 10);
    let row = |row: &Value| {
        let stored = kib(row, "stored").zip(kib(row, "max_stored")).map(|(used, most)| format!("{used} of {most}"));
        serde_json::json!({
            "slot": row["slot"], "prefixes": of(row, "prefixes", "max_prefixes"), "stored_kib": stored,
            "objects_per_second": row["max_objects"], "resyncs_left": row["resyncs_left"], "choices_left": row["choices_left"],
        })
    };
    let rows: Vec<Value> = rows.iter().map(row).collect();
    let columns = ["slot", "prefixes", "stored_kib", "objects_per_second", "resyncs_left", "choices_left"];
    format!("\n{}", objects(&rows, &columns))
}

/// A route's waypoints, each with the route's name.
fn waypoints(route: &Value) -> Vec<Value> {
    let waypoints = route["waypoints"].as_array().into_iter().flatten().cloned();
    waypoints
        .map(|mut waypoint| {
            waypoint["route"] = route["route"].clone();
            waypoint
        })
        .collect()
}

/// Another gateway, as `wg show` has a peer, and its paths.
fn gateway_peer(row: &Value, now: u64) -> String {
    let mut text = format!("peer: {} ({})\n", cell(&row["node"]), cell(&row["identity"]));
    let mut line = |name: &str, value: String| text += &format!("  {name}: {value}\n");
    let handshake = row["last_handshake"].as_u64();
    line("latest handshake", handshake.map_or("none".to_owned(), |at| ago(now.saturating_sub(at))));
    let volume =
        |way: &Value| format!("{} in {} packets", octets(way["octets"].as_u64().unwrap_or(0)), cell(&way["packets"]));
    line("transfer", format!("{} received, {} sent", volume(&row["received"]), volume(&row["sent"])));
    let admitted: Vec<String> = row["admitted"].as_array().into_iter().flatten().map(cell).collect();
    if row["admitted"].is_array() && admitted != ["all"] {
        line("may begin here", if admitted.is_empty() { "nothing".to_owned() } else { admitted.join(", ") });
    }
    line("sessions, flows", format!("{}, {}", cell(&row["sessions"]), cell(&row["flows"])));
    let quality = |of: &Value| {
        let round_trip =
            of["round_trip_micros"].as_u64().map(|micros| format!("round trip {:.1} ms", micros as f64 / 1e3));
        let loss = of["loss_ppm"].as_u64().map(|ppm| format!("loss {:.2} %", ppm as f64 / 1e4));
        [round_trip, loss].into_iter().flatten().collect::<Vec<_>>()
    };
    if let measured @ [_, ..] = &quality(row)[..] {
        line("active path", measured.join(", "));
    }
    for path in row["paths"].as_array().into_iter().flatten() {
        let mut words: Vec<String> = path["used"].as_array().into_iter().flatten().map(cell).collect();
        words.extend((path["dead"] == true).then(|| "dead".to_owned()));
        words.extend(quality(path));
        words.extend(path["room"].as_u64().map(|room| format!("room {room}")));
        let nodes: Vec<String> = path["nodes"].as_array().into_iter().flatten().map(cell).collect();
        text += &format!("    {}: {}\n", nodes.join(" "), words.join(", "));
    }
    text
}

/// How long ago that is, in words.
fn ago(secs: u64) -> String {
    lasting(secs) + " ago"
}

/// How long that is, in words.
fn lasting(secs: u64) -> String {
    let (count, unit) = match secs {
        0..60 => (secs, "second"),
        60..3_600 => (secs / 60, "minute"),
        3_600..86_400 => (secs / 3_600, "hour"),
        _ => (secs / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Octets in the unit that suits them.
fn octets(count: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(size, _)| count >= *size);
    unit.map_or_else(|| format!("{count} B"), |(size, name)| format!("{:.2} {name}", count as f64 / size as f64))
}

/// A row of `show peers`.
fn peer(mut row: Value) -> Value {
    if row["peer"] == "other party" {
        row["peer"] = "peer party".into();
    }
    if let Some(secs) = row["uptime_secs"].as_u64() {
        row["uptime"] = lasting(secs).into();
    }
    if row["prefixes_out"].is_u64() || row["prefixes_in"].is_u64() {
        // The same number.
        remove(&mut row, "announced");
    }
    row
}

/// A row of `show keys`.
fn key(mut row: Value) -> Value {
    if row["of"] == "the other party" {
        row["of"] = "the peer party".into();
    }
    row
}

/// The links to the parties, which JSON has as truth values.
fn links_in_words(value: &mut Value) {
    let state = |up: &Value| if *up == true { "up" } else { "down" };
    if let [first, second] = value["parties"].as_array().map_or(&[][..], Vec::as_slice) {
        value["parties"] = format!("party 1: {}, party 2: {}", state(first), state(second)).into();
    }
    if let Some(up) = value.as_object_mut().and_then(|fields| fields.remove("other_party")) {
        value["peer_party"] = state(&up).into();
    }
}

/// Slots whose AS has, or had, an earlier one, which an announcer is to know of.
fn further_slots_in_words(value: &mut Value) {
    let Some(Value::Array(slots)) = value.as_object_mut().and_then(|fields| fields.remove("further_slots")) else {
        return;
    };
    let words = |slot: &Value| {
        let held = if slot["held"] == true { ", not signed for by an earlier key of the AS" } else { "" };
        format!("slot {} AS{} {}{held}", cell(&slot["slot"]), cell(&slot["asn"]), cell(&slot["name"]))
    };
    if !slots.is_empty() {
        value["further_slots"] = slots.iter().map(words).collect::<Vec<_>>().join("; ").into();
    }
}

/// How few-time keys stand; without any, nothing.
fn few_time_keys_in_words(value: &mut Value) {
    let Some(Value::Array(keys)) = value.as_object_mut().and_then(|fields| fields.remove("few_time_keys")) else {
        return;
    };
    if !keys.is_empty() {
        value["few_time_keys"] = keys.iter().map(few_time_key).collect::<Vec<_>>().join("; ").into();
    }
}

/// The filters of routes, as the page has them.
fn filters(which: &Which) -> Vec<(&'static str, &str)> {
    let Which { longer, announcer, on_path, origin, community, verdict, reason } = which;
    let texts = [
        ("announcer", announcer),
        ("on_path", on_path),
        ("origin", origin),
        ("community", community),
        ("verdict", verdict),
        ("reason", reason),
    ];
    let texts = texts.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    texts.chain(longer.then_some(("longer", "true"))).collect()
}

/// What is asked of routes, or exports, as parameters.
fn parameters(command: &Show) -> Result<String, Failure> {
    Ok(format!("most={}", command.most) + &filter_of(command)?)
}

/// Which of them.
fn filter_of(command: &Show) -> Result<String, Failure> {
    let filters = filters(&command.which);
    if command.what == Noun::Exports && !filters.is_empty() {
        let failure = Failure::usage("`show exports` takes no filter of routes");
        return Err(failure.help("`why PREFIX --to MEMBER` says whether a route goes to a member"));
    }
    let all = (command.all && command.what == Noun::Routes).then_some(("all", "true"));
    let of = command.of.as_deref().map(|of| ("prefix", of));
    let mut text = String::new();
    for (name, value) in of.into_iter().chain(filters).chain(all) {
        text += &format!("&{name}={}", encoded(value));
    }
    Ok(text)
}

/// A value in the query of a request (RFC 3986 section 2.1).
fn encoded(value: &str) -> String {
    let octet = |octet: u8| match octet {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' | b':' | b'/' | b'*' => {
            char::from(octet).to_string()
        }
        other => format!("%{other:02X}"),
    };
    value.bytes().map(octet).collect()
}

/// The age and the reason of a member's route, in words.
fn of_member(route: &mut Value) {
    if route.get("age_secs").is_none() {
        return;
    }
    let age = route["age_secs"].as_u64();
    route["age"] = age.map(lasting).into();
    if let Some(reason) = route["reason"].as_str() {
        route["why"] = reason.into();
    }
    if route["verdict"].is_null() {
        remove(route, "verdict");
    }
}

/// To whom the own router's routes go: each in a line, or one prefix in whole.
fn exports(value: &Value, is_whole: bool) -> String {
    let rows = value["exports"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = match value["removed"].as_str() {
        Some(removed) => format!("nobody has any of these: {removed}\n"),
        None => String::new(),
    };
    if is_whole {
        return text + &rows.iter().map(export).collect::<String>();
    }
    let names = |route: &Value, may_have: bool| {
        let receivers = || route["receivers"].as_array().into_iter().flatten();
        let of: Vec<String> = receivers().filter(|of| of["may_have"] == may_have).map(name).collect();
        match of.len() {
            0 => "nobody".to_owned(),
            many if many == receivers().count() => format!("all {many}"),
            many if many > PREFIXES => format!("{} +{} more", of[..PREFIXES].join(" "), many - PREFIXES),
            _ => of.join(" "),
        }
    };
    let row = |route: &Value| {
        let mut row = json!({
            "prefix": route["prefix"], "as_path": route["as_path"], "to": names(route, true), "not_to": names(route, false),
            "outcome": route["outcome"],
        });
        if let Some(pair) = route.get("pair") {
            row["pair"] = pair.clone();
        }
        row
    };
    let table: Vec<Value> = rows.iter().map(row).collect();
    if !table.is_empty() {
        text += &objects(&table, &["prefix", "pair", "as_path", "to", "not_to", "outcome"]);
    }
    if value["more"] == true {
        text += &format!("the first {} routes; --most N shows more\n", rows.len());
    }
    text
}

/// A member's name, or its slot.
fn name(member: &Value) -> String {
    member["name"].as_str().map_or_else(|| format!("slot {}", cell(&member["slot"])), str::to_owned)
}

/// An own route, whom the policy lets have it, and which checks it fails.
fn export(route: &Value) -> String {
    let mut text = format!("{}{}{}: {}\n", cell(&route["prefix"]), by(route), path(route), cell(&route["outcome"]));
    for of in route["receivers"].as_array().into_iter().flatten() {
        let mark = if of["may_have"] == true { '+' } else { 'x' };
        text += &format!("  {mark} {}  {}\n", member(of), cell(&of["why"]));
    }
    for check in route["checks"].as_array().into_iter().flatten().filter(|check| check["passed"] != true) {
        text += &format!("  check failed: {}: {}\n", cell(&check["check"]), cell(&check["found"]));
    }
    text + &reason(route)
}

/// Whether the own router's routes to a prefix go to one member, and why.
fn why_to(command: &Why, to: &str) -> Outcome {
    let path = format!("/api/v1/exports?prefix={}&to={}", encoded(&command.what), encoded(to));
    let value = fetch::json(&command.target, &fetch::of_pair(&path, command.pair.as_deref()))?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    let text = exports(&value, true);
    let none = format!("{}: your router announces no route for this prefix to its proxy\n", command.what);
    let text = if text.is_empty() { none } else { text };
    print(&(text + &problems(&value)));
    Ok(())
}

/// A table of routes, with a last line if there are more.
fn routes(mut routes: Vec<Value>, more: bool) -> String {
    routes.iter_mut().for_each(of_member);
    for announcer in routes.iter_mut().filter_map(|route| route.get_mut("announcer")) {
        *announcer = member(announcer).into();
    }
    for prefixes in routes.iter_mut().filter_map(|route| route.get_mut("prefixes")?.as_array_mut()) {
        let rest = prefixes.len().saturating_sub(PREFIXES);
        if rest > 0 {
            prefixes.truncate(PREFIXES);
            prefixes.push(format!("+{rest} more").into());
        }
    }
    let text = objects(
        &routes,
        &[
            "prefix",
            "pair",
            "direction",
            "verdict",
            "passed",
            "next_hop",
            "as_path",
            "announcer",
            "age",
            "state",
            "why",
            "slot",
            "version",
            "kind",
            "prefixes",
            "blob_bytes",
        ],
    );
    if more { format!("{text}the first {} routes; --most N shows more\n", routes.len()) } else { text }
}

pub fn event(event: &Value) -> String {
    let what = &event["what"];
    let details = what.as_object().into_iter().flatten().filter(|(name, _)| *name != "event");
    let details: Vec<String> = details.map(|(name, value)| format!("{name}={}", cell_of(name, value))).collect();
    format!("{}  {}  {}\n", cell_of("unix", &event["unix"]), cell(&what["event"]), details.join(" "))
}

pub fn why(command: &Why) -> Outcome {
    if let Some(to) = &command.to {
        return why_to(command, to);
    }
    let value = match command.what.parse::<Prefix>() {
        Ok(prefix) => fetch::json(
            &command.target,
            &fetch::of_pair(&format!("/api/v1/why?prefix={prefix}"), command.pair.as_deref()),
        )?,
        // No name has a slash.
        Err(error) if command.what.contains('/') => {
            let failure = Failure::usage(format!("invalid value {error}"));
            return Err(failure.help("expected a prefix, or a name or address behind a gateway").into());
        }
        Err(_) => {
            let Why { what, target, json, pair, .. } = command;
            let of = path::Of { name: what.clone(), target: target.clone(), json: *json };
            let value = path::ask_of("why", &of, pair.as_deref())?;
            // A member's proxy takes an address for the longest prefix that has it.
            if !value["routes"].is_array() {
                path::show_why(value, *json);
                return Ok(());
            }
            value
        }
    };
    if command.announced {
        return why_announced(&value, command.json);
    }
    if command.json {
        print_json(value);
        return Ok(());
    }
    let mut text = format!("{}: {}\n", cell(&value["prefix"]), cell(&value["summary"]));
    for route in value["routes"].as_array().into_iter().flatten() {
        // Of an attesting proxy.
        if route["hops"].is_array() && route["direction"].is_string() {
            text += &chain(route);
            continue;
        }
        let who =
            if route["announcer"].is_null() { "an unknown member".to_owned() } else { member(&route["announcer"]) };
        let class = route["class"].as_u64().map_or(String::new(), |class| format!(" class {class}"));
        let verdict = route["attested"].as_str().map_or(String::new(), |verdict| format!(" {verdict}"));
        text += &format!("  from {who}{}{}{class}{verdict}: {}\n", by(route), path(route), cell(&route["outcome"]));
        text += &reason(route);
        text += &origin(route);
        text += &path_by_aspa(route);
        if route["hops"].is_array() {
            text += &hops(route);
        }
    }
    for route in value["own"].as_array().into_iter().flatten() {
        text += &format!("  from your router{}{}: {}\n", by(route), path(route), cell(&route["outcome"]));
        text += &reason(route);
    }
    for route in value["sent"].as_array().into_iter().flatten() {
        text += &format!("  to the exchange{}{}: {}\n", by(route), path(route), cell(&route["outcome"]));
    }
    for problem in value["problems"].as_array().into_iter().flatten() {
        text += &format!("  problem: {}\n", cell(problem));
    }
    print(&text);
    Ok(())
}

/// What becomes of the own router's routes to a prefix, check by check.
fn why_announced(value: &Value, json: bool) -> Outcome {
    let Some(own) = value["own"].as_array() else {
        let failure = Failure::new("this role announces no routes of a router");
        return Err(failure.help("ask a member's proxy").into());
    };
    if json {
        print_json(json!({ "version": value["version"], "prefix": value["prefix"], "own": own }));
        return Ok(());
    }
    print(&announced(&cell(&value["prefix"]), own, value["removed"].is_string()));
    Ok(())
}

fn announced(prefix: &str, own: &[Value], is_removed: bool) -> String {
    if own.is_empty() {
        return format!("{prefix}: your router announces no route for this prefix to its proxy\n");
    }
    let mut text = String::new();
    for route in own {
        text += &format!("{prefix}{}{}: {}\n", by(route), path(route), cell(&route["outcome"]));
        for check in route["checks"].as_array().into_iter().flatten() {
            let mark = if check["passed"] == true { '+' } else { 'x' };
            text += &format!("  {mark} {:12}  {}\n", cell(&check["check"]), cell(&check["found"]));
        }
        text += &reason(route);
    }
    if is_removed {
        // Nobody has it.
        return text;
    }
    text + "Which members use it is their own policies' choice, which they do not publish.\n"
}

/// A member: name and AS, or its slot where the member set does not say.
fn member(announcer: &Value) -> String {
    match (announcer["name"].as_str(), announcer["asn"].as_u64()) {
        (Some(name), Some(asn)) => format!("{name} (AS{asn})"),
        _ => format!("slot {}", cell(&announcer["slot"])),
    }
}

/// The pair of parties that a route goes by, of a proxy with several.
fn by(route: &Value) -> String {
    route["pair"].as_str().map_or(String::new(), |pair| format!(" by {pair}"))
}

/// The path of a route, if it is known.
fn path(route: &Value) -> String {
    let Some(path) = route["as_path"].as_array() else { return String::new() };
    format!(" path {}", path.iter().map(cell).collect::<Vec<_>>().join(" "))
}

/// The rule of a verdict and what to do, where there is anything to do.
fn reason(route: &Value) -> String {
    let (rule, cure) = (cell(&route["rule"]), cell(&route["cure"]));
    if cure == "nothing" {
        format!("    rule: {rule}\n")
    } else {
        format!("    rule: {rule}\n    what to do: {cure}\n")
    }
}

/// What the RPKI says of a route's origin, if something is known.
fn origin(route: &Value) -> String {
    match (route["rpki"]["state"].as_str(), route["rpki"]["vrp"].as_str()) {
        (Some("not-found"), _) => "    RPKI: not found, no VRP covers the prefix\n".to_owned(),
        (Some(state), Some(vrp)) => format!("    RPKI: {state}, by the VRP {vrp}\n"),
        _ => String::new(),
    }
}

/// What ASPA records say of a route's path, if there are any.
fn path_by_aspa(route: &Value) -> String {
    match (route["aspa"]["state"].as_str(), route["aspa"]["why"].as_str()) {
        (Some(state), Some(why)) => format!("    ASPA: {state}, {why}\n"),
        (Some(state), None) => format!("    ASPA: {state}\n"),
        _ => String::new(),
    }
}

/// A route with the hops of its attestation, the origin first.
fn chain(route: &Value) -> String {
    let way = match route["direction"].as_str() {
        Some("in") => "from the neighbour of",
        _ => "to the neighbour of",
    };
    let path: Vec<String> = route["as_path"].as_array().into_iter().flatten().map(cell).collect();
    let text = format!("  {way} {}: path {}: {}\n", cell(&route["pair"]), path.join(" "), cell(&route["outcome"]));
    text + &hops(route) + &reason(route)
}

/// The hops of an attestation, the origin first, and the conclusion.
fn hops(route: &Value) -> String {
    let mut text = String::new();
    let width = |hop: &Value| format!("AS{}", cell(&hop["asn"])).len();
    let hops = || route["hops"].as_array().into_iter().flatten();
    let widest = hops().map(width).max().unwrap_or(0);
    for hop in hops() {
        let mark = match (hop["broken"] == true, hop["proved"] == true, hop["suite"].is_null()) {
            (true, ..) => 'x',
            (_, true, _) => '+',
            (_, _, true) => '-',
            _ => '?',
        };
        let asn = format!("AS{}", cell(&hop["asn"]));
        text += &format!("    {mark} {asn:widest$}  {}\n", cell(&hop["words"]));
    }
    text + &format!("    {}\n", cell(&route["reason"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_counters_are_shown_by_name() {
        let text = counters(json!({ "parties": [true, false], "batch": 7, "problems": ["no answer"] }));
        assert_eq!(text, "batch    7\nparties  party 1: up, party 2: down\n");
        assert_eq!(counters(json!({ "other_party": true })), "peer party  up\n");
        let text = counters(json!({ "pairs": [{ "name": "a", "counts": { "validated": 3 } }] }));
        assert_eq!(text, "pair a counts validated  3\n");
    }

    #[test]
    fn a_gateways_peer_is_shown_with_what_was_carried_and_its_paths() {
        let path = |nodes: [&str; 3], used: &[&str], dead: bool| json!({ "nodes": nodes, "used": used, "dead": dead, "round_trip_micros": 12_340, "loss_ppm": 100_000, "room": 1_320 });
        let mut row = json!({
            "node": "b", "identity": "5f0a", "sessions": 1, "flows": 4, "last_handshake": 988,
            "sent": { "packets": 3_000, "octets": 3_565_158 }, "received": { "packets": 7, "octets": 900 },
            "loss_ppm": 100_000, "round_trip_micros": 12_340,
            "paths": [path(["a", "r1", "b"], &["active of default"], false), path(["a", "r2", "b"], &[], true)],
        });
        let text = "\
peer: b (5f0a)
  latest handshake: 12 seconds ago
  transfer: 900 B in 7 packets received, 3.40 MiB in 3000 packets sent
  sessions, flows: 1, 4
  active path: round trip 12.3 ms, loss 10.00 %
    a r1 b: active of default, round trip 12.3 ms, loss 10.00 %, room 1320
    a r2 b: dead, round trip 12.3 ms, loss 10.00 %, room 1320
";
        assert_eq!(gateway_peer(&row, 1_000), text);
        (row["last_handshake"], row["loss_ppm"], row["round_trip_micros"]) = (json!(null), json!(null), json!(null));
        let text = gateway_peer(&row, 1_000);
        assert!(text.contains("latest handshake: none\n") && !text.contains("active path"), "{text}");
    }

    #[test]
    fn what_becomes_of_an_announcement_is_shown_check_by_check() {
        let check = |name: &str, passed: bool, found: &str| json!({ "check": name, "passed": passed, "found": found });
        let route = json!({
            "as_path": [64497], "outcome": "not announced, since no receiver would use it: next hop 192.0.2.9 is not the announcer's",
            "rule": "RFC 7948 section 4.8", "cure": "change it",
            "checks": [check("first AS", true, "the AS path begins with AS64497"), check("next hop", false, "next hop 192.0.2.9")],
        });
        let removed = announced("20.1.0.0/16", std::slice::from_ref(&route), true);
        assert!(!removed.contains("Which members use it"), "of a removed member nobody has it: {removed}");
        let text = announced("20.1.0.0/16", &[route], false);
        assert!(text.ends_with("which they do not publish.\n"), "{text}");
        assert!(text.starts_with("20.1.0.0/16 path 64497: not announced"), "{text}");
        assert!(
            text.contains("  + first AS      the AS path") && text.contains("  x next hop      next hop 192"),
            "{text}"
        );
        assert!(text.contains("    what to do: change it"), "{text}");
        assert!(announced("20.1.0.0/16", &[], false).contains("announces no route"), "none");
    }

    #[test]
    fn what_aspa_records_say_of_a_route_is_one_line() {
        let said = |found: Value| path_by_aspa(&json!({ "aspa": found }));
        assert_eq!(said(json!({ "state": "valid" })), "    ASPA: valid\n");
        let why = "AS64499 has no ASPA record";
        assert_eq!(said(json!({ "state": "unknown", "why": why })), "    ASPA: unknown, AS64499 has no ASPA record\n");
        assert_eq!(path_by_aspa(&json!({})), "");
    }

    #[test]
    fn what_the_rpki_says_of_a_route_is_one_line() {
        let said = |found: Value| origin(&json!({ "rpki": found }));
        assert_eq!(said(json!({ "state": "not-found" })), "    RPKI: not found, no VRP covers the prefix\n");
        let vrp = "192.0.2.0/24 of AS64496, up to /24";
        let line = "    RPKI: invalid, by the VRP 192.0.2.0/24 of AS64496, up to /24\n";
        assert_eq!(said(json!({ "state": "invalid", "vrp": vrp })), line);
        assert_eq!(said(Value::Null), "");
    }

    #[test]
    fn a_members_routes_are_shown_with_age_state_and_the_reason_of_those_that_are_refused() {
        let row = |state: &str, reason: Value| {
            json!({
                "prefix": "10.1.0.0/16", "next_hop": "192.0.2.1", "as_path": [64497, 64510], "age_secs": 7_300, "state": state,
                "announcer": { "slot": 0, "name": "alpha", "asn": 64497 }, "verdict": null, "reason": reason, "cause": null,
            })
        };
        let text = routes(vec![row("installed", Value::Null)], false);
        assert_eq!(
            text,
            "PREFIX       NEXT HOP   AS PATH      ANNOUNCER        AGE      STATE\n\
             10.1.0.0/16  192.0.2.1  64497 64510  alpha (AS64497)  2 hours  installed\n"
        );
        let text = routes(vec![row("refused", json!("your import rule 2 rejects it"))], false);
        assert!(text.contains("STATE    WHY\n") && text.contains("refused  your import rule 2 rejects it"), "{text}");
    }

    #[test]
    fn to_whom_an_own_route_goes_is_shown_by_name_and_why() {
        let receiver = |name: &str, may_have: bool, why: &str| json!({ "slot": 1, "name": name, "asn": 64498, "may_have": may_have, "why": why });
        let route = json!({
            "prefix": "10.1.0.0/16", "as_path": [64497], "outcome": "announced: both parties have it; slots that may open it: 1",
            "rule": "your communities and export rules", "cure": "nothing",
            "checks": [{ "check": "next hop", "passed": false, "found": "next hop 192.0.2.9" }],
            "receivers": [receiver("bravo", true, "nothing restricts it"), receiver("charlie", false, "rule 1 hides it")],
        });
        let value = json!({ "exports": [route], "more": false });
        let table = exports(&value, false);
        assert!(table.contains("TO     NOT TO") && table.contains("bravo  charlie  announced"), "{table}");
        let whole = exports(&value, true);
        assert!(whole.contains("  + bravo (AS64498)  nothing restricts it\n"), "{whole}");
        assert!(whole.contains("  x charlie (AS64498)  rule 1 hides it\n"), "{whole}");
        assert!(whole.contains("  check failed: next hop: next hop 192.0.2.9\n"), "{whole}");
        let removed = exports(&json!({ "exports": [], "removed": "you are no member" }), true);
        assert!(removed.contains("nobody has any of these: you are no member"), "{removed}");
    }

    #[test]
    fn values_are_encoded_for_a_request() {
        assert_eq!(encoded("10.0.0.0/8"), "10.0.0.0/8");
        assert_eq!(encoded("a b&c=d#é"), "a%20b%26c%3Dd%23%C3%A9");
    }

    #[test]
    fn a_table_of_routes_states_what_it_leaves_out() {
        let prefixes: Vec<String> = (0..100).map(|n| format!("192.0.{n}.0/24")).collect();
        let text = routes(vec![json!({ "slot": 1, "prefixes": prefixes })], true);
        assert!(text.contains("192.0.3.0/24 +96 more") && !text.contains("192.0.4.0"), "{text}");
        assert!(text.ends_with("the first 1 routes; --most N shows more\n"), "{text}");
    }
}

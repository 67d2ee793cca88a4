//! `path` and `ping`: the paths of a gateway, and whether they work.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{self, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wayleave_runtime::clock::utc;

use crate::config::choices::{self, ChoicesFile, MAX_AVOIDED, MAX_PINS, PinSection};
use crate::config::gateway::{GatewayFile, PolicySection};
use crate::config::overlay::NodeRef;
use crate::config::{Source, Text};
use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::output::{cell, objects, print, print_json, warn};

/// How long a gateway may take to see what was decided.
const TIMEOUT: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

#[derive(Subcommand, Debug)]
pub enum Path {
    /// List the known paths to other gateways, and what uses them.
    List(List),
    /// Ask for the path to a name or address, probe it, and show its nodes.
    Trace(Of),
    /// Keep a name on one path: over the nodes given, or over those of its path now. Holds until `unpin`, across restarts.
    Pin(Pin),
    /// Let a name's policy choose its path again.
    Unpin(Decision),
    /// Use no path over a node, whatever the policies say. Holds until `allow`, across restarts.
    Avoid(Decision),
    /// Use paths over a node again, as the policies say.
    Allow(Decision),
}

#[derive(Args, Debug)]
pub struct Pin {
    /// POLICY.NODE.SUFFIX, or a node's name.
    pub name: String,
    /// The nodes between the two gateways, in their order, by name or key.
    pub over: Vec<String>,
    /// The gateway's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
}

#[derive(Args, Debug)]
pub struct Decision {
    /// A name (`unpin`), or a node by its name or key (`avoid`, `allow`).
    pub what: String,
    /// The gateway's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
}

#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Of {
    /// POLICY.NODE.SUFFIX, a node's name, or an inner address.
    pub name: String,
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &Path) -> Outcome {
    match command {
        Path::List(command) => list(command),
        Path::Trace(command) => trace(command),
        Path::Pin(command) => pin(command),
        Path::Unpin(command) => unpin(command),
        Path::Avoid(command) => avoid(command),
        Path::Allow(command) => allow(command),
    }
}

/// `list`, and `show paths`.
fn list(command: &List) -> Outcome {
    let value = fetch::json(&command.target, "/api/v1/paths")?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    print(&table(&value));
    Ok(())
}

/// A gateway that runs, and the file of what is decided for it.
struct Running {
    target: Target,
    file: PathBuf,
    choices: ChoicesFile,
    /// Names of the realm's nodes.
    nodes: Vec<String>,
    /// As the gateway shows them: who has which name, this gateway, and members that forward nothing.
    shown: Value,
    policies: Vec<PolicySection>,
}

impl Running {
    fn of(config: &path::Path) -> Outcome<Self> {
        let source = Source::read(config)?;
        let gateway = GatewayFile::parse(&source)?;
        let file = source.resolve(gateway.gateway.choices.get_ref());
        let target = Target { url: None, config: Some(config.to_path_buf()) };
        let shown = fetch::json(&target, "/api/v1/choices")?;
        let (choices, nodes) = (ChoicesFile::load(&file)?, names(&shown["nodes"]));
        let policies = gateway.policy.into_iter().map(toml::Spanned::into_inner).collect();
        Ok(Self { target, file, choices, nodes, shown, policies })
    }

    /// A node's key as text, or its name if nobody is known to have it.
    fn identity(&self, node: &NodeRef) -> String {
        let key = self.shown["identities"][node.to_string()].as_str();
        key.map_or_else(|| node.to_string(), str::to_owned)
    }

    /// A node that is not this gateway, and whether it forwards nothing now.
    fn other(&self, text: &str) -> Outcome<(Text<NodeRef>, bool)> {
        let node = self.node(text)?;
        let key = self.identity(&node.0);
        if self.shown["own"] == key.as_str() {
            return Err(crossed_by_none(text, "is this gateway itself").into());
        }
        let is_end = names(&self.shown["ends"]).contains(&key);
        Ok((node, is_end))
    }

    /// A node that paths may cross.
    fn between(&self, text: &str) -> Outcome<Text<NodeRef>> {
        match self.other(text)? {
            (_, true) => Err(crossed_by_none(text, "forwards nothing, by its membership").into()),
            (node, false) => Ok(node),
        }
    }

    /// Refuses a pin by which no path is ever left.
    fn refuse_impossible(&self, policy: &str, node: &NodeRef, over: &[Text<NodeRef>]) -> Outcome {
        let keys: Vec<String> = over.iter().map(|node| self.identity(&node.0)).collect();
        let has = |node: &NodeRef| keys.contains(&self.identity(node));
        let refused = |what: String, help: &str| Err(Failure::new(what).help(help).into());
        if has(node) {
            let help = "name the nodes between the two gateways alone";
            return refused(format!("{node} is the end of the path, and not between"), help);
        }
        let is_twice = |(at, (_, key)): &(usize, (&Text<NodeRef>, &String))| keys[..*at].contains(key);
        if let Some((_, (twice, _))) = over.iter().zip(&keys).enumerate().find(is_twice) {
            return refused(format!("{} is named twice, and no path crosses a node twice", twice.0), "name each once");
        }
        if let Some(avoided) = self.choices.avoid.iter().find(|avoided| has(&avoided.0)) {
            let help = format!("`wayleave path allow {}` first", avoided.0);
            return refused(format!("no path goes over {}, which is avoided", avoided.0), &help);
        }
        let is_it = |section: &&PolicySection| section.name.get_ref().eq_ignore_ascii_case(policy);
        let Some(section) = self.policies.iter().find(is_it) else { return Ok(()) };
        let help = "choose other nodes, or a name with another policy";
        if let Some(avoided) = section.avoid.iter().find(|avoided| has(&avoided.get_ref().0)) {
            return refused(format!("policy {policy} avoids {}", avoided.get_ref().0), help);
        }
        if let Some(lacking) = section.require.iter().find(|required| !has(&required.get_ref().0)) {
            return refused(
                format!("policy {policy} requires {}, which is not among these nodes", lacking.get_ref().0),
                help,
            );
        }
        let of_policy = section.pin.as_ref();
        if of_policy.is_some_and(|pin| !pin.iter().map(|node| self.identity(&node.get_ref().0)).eq(keys)) {
            return refused(format!("policy {policy} pins another path itself"), help);
        }
        Ok(())
    }

    /// The known paths: to whom, and over which nodes.
    fn known_paths(&self) -> Outcome<Vec<(String, Vec<String>)>> {
        let shown = fetch::json(&self.target, "/api/v1/paths")?;
        let path = |path: &Value| {
            let nodes = names(&path["nodes"]);
            let between = nodes.get(1..nodes.len().saturating_sub(1)).unwrap_or(&[]);
            let key = |node: &String| choices::node(node).map_or_else(|_| node.clone(), |node| self.identity(&node.0));
            (cell(&path["to"]), between.iter().map(key).collect())
        };
        Ok(shown["paths"].as_array().into_iter().flatten().map(path).collect())
    }

    /// A node that the gateway knows.
    fn node(&self, text: &str) -> Outcome<Text<NodeRef>> {
        let node = choices::node(text)?;
        if matches!(node.0, NodeRef::Name(_)) && !self.nodes.contains(&node.0.to_string()) {
            let failure = Failure::new(format!("no member of the realm that the gateway knows is called `{text}`"));
            // Those over which a path may go.
            let ends = names(&self.shown["ends"]);
            let known =
                self.nodes.iter().filter(|name| !ends.contains(&cell(&self.shown["identities"][name.as_str()])));
            let known: Vec<&str> = known.map(String::as_str).collect();
            let known = if known.is_empty() { "none that forwards".to_owned() } else { known.join(", ") };
            return Err(failure
                .help(format!("it knows {known}; one that has started just now may not be known yet"))
                .into());
        }
        Ok(node)
    }

    /// Writes the file, and waits until the gateway does what it says.
    fn apply(&self, what: &str) -> Outcome {
        if !self.choices.is_within_limits() {
            let failure = Failure::new("too much is decided already");
            return Err(failure
                .help(format!("at most {MAX_AVOIDED} nodes are avoided and {MAX_PINS} names pinned"))
                .into());
        }
        self.choices.save(&self.file)?;
        let end = Instant::now() + TIMEOUT;
        loop {
            let shown = fetch::json(&self.target, "/api/v1/choices")?;
            let pin = |pin: &Value| (cell(&pin["policy"]), cell(&pin["node"]), names(&pin["over"]));
            let pins: Vec<_> = shown["pins"].as_array().into_iter().flatten().map(pin).collect();
            let wanted =
                self.choices.pin.iter().map(|pin| (pin.policy.clone(), pin.node.0.to_string(), texts(&pin.over)));
            if names(&shown["avoid"]) == texts(&self.choices.avoid) && wanted.eq(pins) {
                print(&format!("{what}\n"));
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(Failure::new(format!("the gateway has not taken {} over", self.file.display()))
                    .help("does it run with this configuration? `wayleave show events` says what it did")
                    .into());
            }
            std::thread::sleep(STEP);
        }
    }

    /// The policy and the node that a name means, and the nodes between on its path now, if it has one.
    fn target(&self, name: &str) -> Outcome<(String, Text<NodeRef>, Option<Vec<String>>)> {
        let of = Of { name: name.to_owned(), target: self.target.clone(), json: false };
        let shown = ask("why", &of)?;
        let nodes = names(&shown["active"]["nodes"]);
        let between = nodes.len().checked_sub(1).and_then(|last| Some(nodes.get(1..last)?.to_vec()));
        Ok((cell(&shown["policy"]), choices::node(&cell(&shown["node"]))?, between))
    }
}

fn pin(command: &Pin) -> Outcome {
    let mut running = Running::of(&command.config)?;
    let (policy, node, now) = running.target(&command.name)?;
    let over = if command.over.is_empty() { now } else { Some(command.over.clone()) };
    let over = over.ok_or_else(|| {
        Failure::new(format!("no path to {} is in use that could be kept", command.name))
            .help("name the nodes, or run `wayleave ping` first")
    })?;
    let over: Vec<Text<NodeRef>> = over.iter().map(|text| running.node(text)).collect::<Outcome<_>>()?;
    running.refuse_impossible(&policy, &node.0, &over)?;
    let over: Vec<Text<NodeRef>> =
        over.iter().map(|node| running.between(&node.0.to_string())).collect::<Outcome<_>>()?;
    let to = node.0.to_string();
    let keys: Vec<String> = over.iter().map(|node| running.identity(&node.0)).collect();
    let what = format!("{to} by policy {policy} goes {} only", over_nodes(&texts(&over)));
    running.choices.pin.retain(|pin| pin.policy != policy || pin.node != node);
    running.choices.pin.push(PinSection { policy, node, over });
    running.apply(&what)?;
    // It is done, and a gateway that does not answer now changes nothing about it.
    if running.known_paths().is_ok_and(|known| !known.contains(&(to.clone(), keys))) {
        warn(&format!(
            "no such path to {to} is known now: nothing goes there by this policy until there is one (`wayleave path list`)"
        ));
    }
    Ok(())
}

fn crossed_by_none(text: &str, why: &str) -> Failure {
    let help = "the nodes between the two gateways are meant: `wayleave path list` has them";
    Failure::new(format!("no path crosses `{text}`, which {why}")).help(help)
}

fn texts(nodes: &[Text<NodeRef>]) -> Vec<String> {
    nodes.iter().map(|node| node.0.to_string()).collect()
}

/// The way over these nodes, in words.
fn over_nodes(nodes: &[String]) -> String {
    if nodes.is_empty() { "directly".to_owned() } else { format!("over {}", nodes.join(" ")) }
}

fn unpin(command: &Decision) -> Outcome {
    let mut running = Running::of(&command.config)?;
    let (policy, node, _) = running.target(&command.what)?;
    let before = running.choices.pin.len();
    running.choices.pin.retain(|pin| pin.policy != policy || pin.node != node);
    if running.choices.pin.len() == before {
        return Err(Failure::new(format!("{} is not pinned", command.what)).help("`wayleave path list`").into());
    }
    running.apply(&format!("{} goes by policy {policy} again", node.0))
}

fn avoid(command: &Decision) -> Outcome {
    let mut running = Running::of(&command.config)?;
    let (node, is_end) = running.other(&command.what)?;
    let key = running.identity(&node.0);
    if !running.choices.avoid.contains(&node) {
        running.choices.avoid.push(node);
    }
    running.apply(&format!("no path goes over {}", command.what))?;
    if is_end {
        warn(&format!("no path crosses `{}` now: it forwards nothing, by its membership", command.what));
    }
    let mut left: BTreeMap<String, bool> = BTreeMap::new();
    for (to, between) in running.known_paths().unwrap_or_default() {
        *left.entry(to).or_default() |= !between.contains(&key);
    }
    for (to, _) in left.iter().filter(|(_, is_left)| !**is_left) {
        warn(&format!(
            "every path to {to} that is known now crosses {}: nothing goes there until there is another",
            command.what
        ));
    }
    Ok(())
}

fn allow(command: &Decision) -> Outcome {
    let mut running = Running::of(&command.config)?;
    // One that is no longer a member can be named too.
    let node = choices::node(&command.what)?;
    let before = running.choices.avoid.len();
    running.choices.avoid.retain(|other| *other != node);
    if running.choices.avoid.len() == before {
        let avoided: Vec<String> = running.choices.avoid.iter().map(|node| node.0.to_string()).collect();
        let avoided =
            if avoided.is_empty() { "nothing is".to_owned() } else { format!("avoided: {}", avoided.join(", ")) };
        return Err(Failure::new(format!("{} is not avoided", command.what)).help(avoided).into());
    }
    running.apply(&format!("paths may go over {} again", command.what))
}

/// What to do where a gateway has no path.
const NO_PATHS: &str = "no paths yet: a gateway asks for them when packets go to a name; `wayleave ping NAME` asks now, and \
                        `wayleave why NAME` says what is missing\n";

/// Paths as a table, or what to do if there are none.
pub fn table(value: &Value) -> String {
    let row = |path: &Value| {
        json!({
            "to": path["to"],
            "nodes": names(&path["nodes"]).join(" "),
            "used": names(&path["used"]).join("; "),
            "decided": decided(path),
            "state": state(path),
            "round_trip": path["round_trip_micros"].as_u64().map(millis),
            "room": path["room"],
        })
    };
    let rows: Vec<Value> = value["paths"].as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return NO_PATHS.to_owned();
    }
    objects(&rows, &["to", "nodes", "used", "decided", "state", "round_trip", "room"])
}

/// What the user decided about a path.
fn decided(path: &Value) -> String {
    let pinned = names(&path["pinned"]).into_iter().map(|policy| format!("pinned for {policy}"));
    let avoided = names(&path["avoided"]).into_iter().map(|node| format!("avoided for {node}"));
    pinned.chain(avoided).collect::<Vec<_>>().join("; ")
}

fn trace(command: &Of) -> Outcome {
    let value = ask("ping", command)?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    print(&names(&value["nodes"]).iter().map(|node| format!("{node}\n")).collect::<String>());
    Ok(())
}

/// `ping`: one round trip over the active path.
pub fn ping(command: &Of) -> Outcome {
    let value = ask("ping", command)?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    let took = value["round_trip_micros"].as_u64().map(millis).unwrap_or_default();
    // What lies behind a gateway is not probed.
    let whom = match command.name.parse::<IpAddr>() {
        Ok(address) => format!("{}, the gateway of {address},", cell(&value["node"])),
        Err(_) => cell(&value["node"]),
    };
    print(&format!("{whom} by policy {}: {took} over {}\n", cell(&value["policy"]), names(&value["nodes"]).join(" ")));
    Ok(())
}

/// `why NAME`: how packets to a name go, or why they do not.
pub fn show_why(value: Value, json: bool) {
    if json {
        return print_json(value);
    }
    if let Some(senders) = value["senders"].as_array() {
        return print(&stamped(&cell(&value["destination"]), senders));
    }
    let mut text = format!(
        "{} by policy {}: {}: {}\n",
        cell(&value["node"]),
        cell(&value["policy"]),
        cell(&value["state"]),
        cell(&value["why"])
    );
    for which in ["active", "spare"] {
        let path = &value[which];
        if path.is_object() {
            text += &format!("  {which}: {}: {}\n", names(&path["nodes"]).join(" "), state(path));
        }
    }
    if let Some(node) = value["over_tls"].as_str() {
        text += &format!("  the link to {node} goes over TLS, since UDP does not pass (`wayleave netcheck`)\n");
    }
    if let Some(why) = value["unsealed"].as_str() {
        text += &format!("  nodes pass over the payload of every packet: {why}\n");
    }
    if value["pinned"].is_array() {
        let nodes = names(&value["pinned"]);
        let nodes = if nodes.is_empty() { "the direct path".to_owned() } else { nodes.join(" ") };
        text += &format!("  pinned: {nodes} (`wayleave path unpin`)\n");
    }
    let avoided = names(&value["avoided"]);
    if !avoided.is_empty() {
        text += &format!("  avoided: {} (`wayleave path allow`)\n", avoided.join(" "));
    }
    for unresolved in names(&value["unresolved"]) {
        text += &format!("  not resolved: {unresolved}\n");
    }
    print(&text);
}

/// What a stamper does with packets to `destination`, by who sends them.
fn stamped(destination: &str, senders: &[Value]) -> String {
    let mut text = String::new();
    for row in senders {
        let who = [("user", "user"), ("mark", "mark"), ("cgroup", "control group")].map(|(field, word)| {
            if row[field].is_null() { String::new() } else { format!(" {word} {}", cell(&row[field])) }
        });
        let who = who.concat();
        let who = if who.is_empty() { " anybody else".to_owned() } else { who };
        text += &format!("{destination} from{who}: {}\n", cell(&row["why"]));
        for waypoint in row["waypoints"].as_array().into_iter().flatten() {
            let (at, principal) = (cell(&waypoint["waypoint"]), cell(&waypoint["principal"]));
            text += &match waypoint["until"].as_u64() {
                Some(until) => format!("  waypoint {at}: principal {principal} pays, until {}\n", utc(until)),
                None => format!("  waypoint {at}: principal {principal} would pay, and there is no secret of it\n"),
            };
        }
    }
    text
}

fn ask(page: &str, command: &Of) -> Outcome<Value> {
    ask_of(page, command, None)
}

/// The page `page` of a name, of one pair of parties or of all.
pub fn ask_of(page: &str, command: &Of, pair: Option<&str>) -> Outcome<Value> {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'.' | b'-' | b':' | b'_');
    if command.name.is_empty() || !command.name.bytes().all(is_plain) {
        return Err(Failure::usage(format!("`{}` is no name and no address", command.name))
            .help("POLICY.NODE.SUFFIX, a node's name, or an inner address")
            .into());
    }
    fetch::json(&command.target, &fetch::of_pair(&format!("/api/v1/{page}?name={}", command.name), pair))
}

/// How a path stands, for people.
fn state(path: &Value) -> String {
    let proven = path["proven_until"].as_u64().map(|until| format!("consents until {}", utc(until)));
    let mut words = vec![proven.unwrap_or_else(|| "no consents".to_owned())];
    if path["listed"] == false {
        words.push("no longer listed by the path server".to_owned());
    }
    if let Some(since) = path["dead_since"].as_u64() {
        words.push(format!("dead since {}: probes stay unanswered", utc(since)));
    }
    if let Some(why) = path["refused"].as_str() {
        words.push(why.to_owned());
    }
    words.join(", ")
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(cell).collect()
}

fn millis(micros: u64) -> String {
    format!("{}.{:03} ms", micros / 1_000, micros % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_forwards_nothing_now_can_be_avoided_and_not_pinned() {
        let key = |digit: &str| format!("node:ed25519:{}", digit.repeat(64));
        let running = Running {
            target: Target { url: None, config: None },
            file: PathBuf::new(),
            choices: ChoicesFile::default(),
            nodes: vec!["own".to_owned(), "end".to_owned(), "between".to_owned()],
            shown: json!({
                "own": key("1"), "ends": [key("2")],
                "identities": { "own": key("1"), "end": key("2"), "between": key("3") },
            }),
            policies: Vec::new(),
        };
        let is_end = |name: &str| running.other(name).ok().map(|(_, is_end)| is_end);
        assert_eq!(["own", "end", "between"].map(is_end), [None, Some(true), Some(false)]);
        assert_eq!(["own", "end", "between"].map(|name| running.between(name).is_ok()), [false, false, true]);
    }
}

//! `router.toml`: which router of the topology this is, and how it runs (scionproto/scion, `router/config/config.go`).

use std::net::{Ipv4Addr, SocketAddr};

use super::document::{Findings, Node, Placed};

/// Milliseconds of BFD's intervals, and its multiplier, where the file has none.
const INTERVAL_MS: u64 = 200;
const MULTIPLIER: u64 = 3;
/// Every key, by its section, but those of sections in a section.
const KEYS: [(&str, &[&str]); 11] = [
    ("", &["general", "features", "log", "metrics", "api", "router"]),
    ("general", &["id", "config_dir", "reconnect_to_dispatcher"]),
    ("features", &["experimental_scmp_authentication", "appropriate_digest_algorithm"]),
    ("log", &["console"]),
    ("log.console", &["level", "format", "stacktrace_level", "disable_caller"]),
    ("metrics", &["prometheus"]),
    ("api", &["addr"]),
    (
        "router",
        &[
            "receive_buffer_size",
            "send_buffer_size",
            "num_processors",
            "num_slow_processors",
            "batch_size",
            "bfd",
            "dispatched_port_start",
            "dispatched_port_end",
            "preferred_underlays",
            "neighbor",
        ],
    ),
    ("router.bfd", &BFD),
    ("router.neighbor", &["queue_len", "queue_total", "cache_max", "stale_time", "probe_interval", "probe_attempts"]),
    // Its keys are names of underlays.
    ("router.preferred_underlays", &[]),
];
/// The keys of BFD, here and in the topology.
pub(super) const BFD: [&str; 4] = ["disable", "detect_mult", "desired_min_tx_interval", "required_min_rx_interval"];
/// What this router does in the place of settings that it does not have.
const INSTEAD: [(&str, &str); 13] = [
    ("general.reconnect_to_dispatcher", "this router knows no dispatcher"),
    ("features.appropriate_digest_algorithm", "this router signs nothing"),
    ("log.console.level", "not used: `--log` or WAYLEAVE_LOG says how much is logged"),
    ("log.console.format", "not used: `--log-format` says how lines are written"),
    ("log.console.stacktrace_level", "not used: this router logs no stack traces"),
    ("log.console.disable_caller", "not used: this router logs no callers"),
    ("api.addr", "not used: this router has no such API; `wayleave show` and its status pages say how it is"),
    ("router.receive_buffer_size", "not used: this router asks for 8 MiB"),
    ("router.send_buffer_size", "not used: this router asks for 8 MiB"),
    ("router.num_slow_processors", "not used: this router's threads do all there is to do with a packet"),
    ("router.batch_size", "not used: this router takes what has come, up to 64 packets at a time"),
    (
        "router.preferred_underlays",
        "not used: this router has UDP sockets here, with the system's segmentation offload",
    ),
    ("router.neighbor", "not used: the system resolves neighbours' addresses"),
];

/// Which ports end hosts receive at directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DispatchedPorts {
    /// None: all packets go to the shared port.
    None,
    /// First and last.
    Range([u16; 2]),
}

/// BFD as a file has it; what it does not say follows from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Bfd {
    pub(super) is_disabled: Option<bool>,
    pub(super) multiplier: Option<u64>,
    pub(super) transmit_ms: Option<u64>,
    pub(super) receive_ms: Option<u64>,
}

/// Multiplier and intervals, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Timers {
    pub(super) multiplier: u64,
    pub(super) transmit_ms: u64,
    pub(super) receive_ms: u64,
}

impl Bfd {
    /// Reads a node's members of BFD. Zero counts as unset.
    pub(super) fn read(node: Option<Node<'_>>, findings: &mut Findings) -> Self {
        let Some(node) = node.filter(|node| findings.is_object(node)) else { return Self::default() };
        let mut interval = |key| node.member(key).and_then(|value| interval_ms(&value, findings));
        let (transmit_ms, receive_ms) = (interval(BFD[2]), interval(BFD[3]));
        let multiplier = node.member(BFD[1]).and_then(|value| findings.number(&value, 0..=255));
        Self {
            is_disabled: node.member(BFD[0]).and_then(|value| findings.flag(&value)),
            multiplier: multiplier.map(|multiplier| multiplier.value).filter(|multiplier| *multiplier > 0),
            transmit_ms,
            receive_ms,
        }
    }

    /// With what it leaves to `default`.
    pub(super) fn timers(&self, default: Timers) -> Timers {
        Timers {
            multiplier: self.multiplier.unwrap_or(default.multiplier),
            transmit_ms: self.transmit_ms.unwrap_or(default.transmit_ms),
            receive_ms: self.receive_ms.unwrap_or(default.receive_ms),
        }
    }
}

/// A duration, as a number and a unit, in milliseconds, rounded up; `None` for zero.
fn interval_ms(node: &Node<'_>, findings: &mut Findings) -> Option<u64> {
    /// Nanoseconds; in front of each unit stand those that end as it does.
    const UNITS: [(&str, u64); 10] = [
        ("ms", 1_000_000),
        ("us", 1_000),
        ("µs", 1_000),
        ("ns", 1),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("d", 86_400_000_000_000),
        ("w", 7 * 86_400_000_000_000),
        ("y", 365 * 86_400_000_000_000),
    ];
    let text = findings.text(node)?;
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.value.strip_suffix(unit)?, *factor)));
    let nanoseconds = unit.and_then(|(number, factor)| number.parse::<u64>().ok()?.checked_mul(factor));
    if nanoseconds.is_none() {
        findings.fault(text.place, "expected a duration of one number and one unit, such as \"200ms\"");
    }
    nanoseconds.map(|nanoseconds| nanoseconds.div_ceil(1_000_000)).filter(|interval| *interval > 0)
}

/// What the file says that this router uses.
pub(super) struct RouterToml {
    /// The router's name in the topology.
    pub(super) id: Option<Placed<String>>,
    pub(super) config_dir: Option<Placed<String>>,
    pub(super) workers: Option<Placed<u64>>,
    pub(super) bfd: Bfd,
    pub(super) bfd_place: String,
    pub(super) ports: Option<Placed<DispatchedPorts>>,
    pub(super) status: Option<Placed<SocketAddr>>,
}

impl RouterToml {
    pub(super) fn read(top: &Node<'_>, findings: &mut Findings) -> Self {
        sections(top, findings);
        let general = top.member("general");
        let general = general.as_ref();
        if general.is_none_or(|general| general.member("id").is_none()) {
            let expected = "is missing, expected this router's name among `border_routers` of topology.json";
            findings.fault(top.place_of("general.id"), expected);
        }
        let name = |key, findings: &mut Findings| {
            let text = findings.text(&general?.member(key)?)?;
            Some(Placed { value: text.value.to_owned(), place: text.place })
        };
        let (id, config_dir) = (name("id", findings), name("config_dir", findings));
        if let Some(features) = top.member("features")
            && let Some(node) = features.member("experimental_scmp_authentication")
            && findings.flag(&node) == Some(true)
        {
            findings.warn(node.place(), "not used: SCMP messages of this router are not authenticated");
        }
        let metrics = top.member("metrics");
        let status = metrics.as_ref().and_then(|metrics| prometheus(&metrics.member("prometheus")?, findings));
        let router = top.member("router");
        let router = router.as_ref();
        let workers = router.and_then(|router| findings.number(&router.member("num_processors")?, 0..=256));
        Self {
            id,
            config_dir,
            // Zero leaves it to the router.
            workers: workers.filter(|workers| workers.value > 0),
            bfd: Bfd::read(router.and_then(|router| router.member("bfd")), findings),
            bfd_place: top.place_of("router.bfd"),
            ports: router.and_then(|router| ports(router, findings)),
            status,
        }
    }

    /// The timers of sessions that have none of their own.
    pub(super) fn timers(&self) -> Timers {
        self.bfd.timers(Timers { multiplier: MULTIPLIER, transmit_ms: INTERVAL_MS, receive_ms: INTERVAL_MS })
    }
}

/// Says which keys nobody knows, and which this router does not use.
fn sections(top: &Node<'_>, findings: &mut Findings) {
    section(top, "", findings);
}

fn section(node: &Node<'_>, name: &str, findings: &mut Findings) {
    let Some((_, keys)) = KEYS.iter().find(|(section, _)| *section == name) else { return };
    for member in node.members() {
        let whole = if name.is_empty() { member.key().to_owned() } else { format!("{name}.{}", member.key()) };
        if !keys.contains(&member.key()) && !keys.is_empty() {
            let expected = format!("unknown setting, expected one of `{}`", keys.join("`, `"));
            findings.fault(member.place(), expected);
            continue;
        }
        if let Some((_, instead)) = INSTEAD.iter().find(|(key, _)| *key == whole) {
            findings.warn(member.place(), *instead);
        }
        if KEYS.iter().any(|(section, _)| *section == whole) && findings.is_object(&member) {
            section(&member, &whole, findings);
        }
    }
}

/// Where the status pages are served, which have the metrics.
fn prometheus(node: &Node<'_>, findings: &mut Findings) -> Option<Placed<SocketAddr>> {
    let text = findings.text(node).filter(|text| !text.value.is_empty())?;
    let any = text.value.strip_prefix(':').and_then(|port| port.parse().ok());
    let address = text.value.parse().ok().or_else(|| Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, any?))));
    match address {
        Some(_) => findings.warn(
            text.place.clone(),
            "this router's status pages are there, and its metrics at /metrics have names of its own",
        ),
        None => findings.warn(
            text.place.clone(),
            "no status pages and no metrics, expected ADDRESS:PORT or :PORT; this router does not look names up",
        ),
    }
    Some(Placed { value: address?, place: text.place })
}

/// Ports that take precedence over those of the topology.
fn ports(router: &Node<'_>, findings: &mut Findings) -> Option<Placed<DispatchedPorts>> {
    const KEYS: [&str; 2] = ["dispatched_port_start", "dispatched_port_end"];
    let [first, last] = KEYS.map(|key| router.member(key));
    let (first, last) = match (first, last) {
        (Some(first), Some(last)) => (first, last),
        (None, None) => return None,
        (None, Some(_)) => {
            findings.fault(router.place_of(KEYS[0]), "is missing, expected a port: the last one is there");
            return None;
        }
        (Some(_), None) => {
            findings.fault(router.place_of(KEYS[1]), "is missing, expected a port: the first one is there");
            return None;
        }
    };
    let place = first.place();
    let mut port = |node| findings.number(node, 0..=65_535).and_then(|port| u16::try_from(port.value).ok());
    let (first, last) = (port(&first), port(&last));
    let (first, last) = (first?, last?);
    if first > last {
        findings.fault(place, "above `dispatched_port_end`, expected the first and the last port");
        return None;
    }
    let ports = if last == 0 { DispatchedPorts::None } else { DispatchedPorts::Range([first.max(1), last]) };
    Some(Placed { value: ports, place })
}

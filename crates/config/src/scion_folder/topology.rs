//! `topology.json`: the routers of an AS with their interfaces, and its services (scionproto/scion, `private/topology/json`).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use wayleave_packet::scion::IsdAs;

use super::document::{Findings, Node, Placed};
use super::router_toml::{BFD, Bfd, DispatchedPorts};

/// The members of the topology; those from `mtu` on are for other processes of the AS.
const MEMBERS: [&str; 13] = [
    "isd_as",
    "attributes",
    "dispatched_ports",
    "endhost_port_range",
    "border_routers",
    "control_service",
    "discovery_service",
    "mtu",
    "timestamp",
    "timestamp_human",
    "hidden_segment_lookup_service",
    "hidden_segment_registration_service",
    "sigs",
];
const ROUTER: [&str; 2] = ["internal_addr", "interfaces"];
const INTERFACE: [&str; 6] = ["underlay", "isd_as", "link_to", "mtu", "bfd", "remote_interface_id"];
const UNDERLAY: [&str; 6] = ["local", "remote", "public", "bind", "provider", "options"];
/// What attributes an AS may have; all but the first are of earlier releases, and mean nothing.
const ATTRIBUTES: [&str; 4] = ["core", "issuing", "voting", "authoritative"];
const LINKS: [&str; 4] = ["core", "parent", "child", "peer"];
/// The one kind of underlay that there is.
const PROVIDER: &str = "udpip";
/// How an AS is written.
const ISD_AS: &str = "an ISD and AS, such as \"1-ff00:0:110\" or \"1-64496\"";
/// What an unknown member means for other JSON readers, too.
const UNKNOWN: &str = "unknown to this router, and not used";

/// An AS as its topology describes it.
pub(super) struct Topology {
    pub(super) isd_as: Placed<IsdAs>,
    pub(super) ports: Placed<DispatchedPorts>,
    /// By name.
    pub(super) routers: Vec<BorderRouter>,
    /// Addresses of the AS's services.
    pub(super) control: Vec<Placed<SocketAddr>>,
    pub(super) discovery: Vec<Placed<SocketAddr>>,
}

pub(super) struct BorderRouter {
    pub(super) name: String,
    pub(super) internal: Placed<SocketAddr>,
    pub(super) interfaces: Vec<Interface>,
}

pub(super) struct Interface {
    pub(super) id: Placed<u16>,
    /// The relation of the link in this router's own words.
    pub(super) link: Placed<&'static str>,
    pub(super) neighbor: Placed<IsdAs>,
    /// Of interfaces of this router: our end of the link, and the neighbour's.
    pub(super) ends: Option<[Placed<SocketAddr>; 2]>,
    pub(super) bfd: Bfd,
}

impl Topology {
    /// Reads the topology as the router `own` needs it; `None` if something that it needs is not there.
    pub(super) fn read(top: &Node<'_>, own: Option<&Placed<String>>, findings: &mut Findings) -> Option<Self> {
        warn_unknown(top, &MEMBERS, findings);
        let isd_as = findings.needed(top, "isd_as", "this AS").and_then(|node| findings.parsed(&node, ISD_AS));
        let is_core = is_core(top, findings);
        let ports = ports(top, findings);
        let routers = routers(top, own, is_core, findings);
        let control = services(top, "control_service", findings);
        let discovery = services(top, "discovery_service", findings);
        Some(Self { isd_as: isd_as?, ports: ports?, routers: routers?, control, discovery })
    }
}

fn warn_unknown(node: &Node<'_>, known: &[&str], findings: &mut Findings) {
    for member in findings.unknown(node, known) {
        findings.warn(member.place(), UNKNOWN);
    }
}

fn is_core(top: &Node<'_>, findings: &mut Findings) -> bool {
    let Some(node) = top.member("attributes") else { return false };
    let attributes = findings.texts(&node);
    if !attributes.iter().all(|attribute| ATTRIBUTES.contains(attribute)) {
        findings.fault(node.place(), "an unknown attribute, expected [\"core\"] or []");
    }
    attributes.contains(&ATTRIBUTES[0])
}

fn ports(top: &Node<'_>, findings: &mut Findings) -> Option<Placed<DispatchedPorts>> {
    let none = Placed { value: DispatchedPorts::None, place: top.place_of("dispatched_ports") };
    let Some(node) = top.member("dispatched_ports").or_else(|| top.member("endhost_port_range")) else {
        return Some(none);
    };
    let Placed { value: text, place } = findings.text(&node)?;
    let ports = match text {
        "" | "-" => Some(DispatchedPorts::None),
        "all" | "ALL" => Some(DispatchedPorts::Range([1, u16::MAX])),
        range => range.split_once('-').and_then(|(first, last)| {
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (0 < first && first <= last).then_some(DispatchedPorts::Range([first, last]))
        }),
    };
    if ports.is_none() {
        findings
            .fault(place.clone(), "expected the first and the last port, such as \"31000-32767\", or \"all\" or \"-\"");
    }
    Some(Placed { value: ports?, place })
}

fn routers(
    top: &Node<'_>,
    own: Option<&Placed<String>>,
    is_core: bool,
    findings: &mut Findings,
) -> Option<Vec<BorderRouter>> {
    let all = findings.needed(top, "border_routers", "the AS's routers by their names")?;
    if !findings.is_object(&all) {
        return None;
    }
    let nodes = all.members();
    if let Some(own) = own
        && !nodes.iter().any(|node| node.key() == own.value)
    {
        let names: Vec<String> = nodes.iter().map(|node| node.key().escape_debug().to_string()).collect();
        let expected =
            if names.is_empty() { "there is none".to_owned() } else { format!("expected one of {}", names.join(", ")) };
        findings.fault(own.place.clone(), format!("not a router of topology.json, {expected}"));
    }
    let mut ids = BTreeMap::new();
    let mut routers: Vec<BorderRouter> = Vec::new();
    let mut is_whole = true;
    for node in &nodes {
        let is_own = own.is_some_and(|own| own.value == node.key());
        let Some(router) = router(node, (is_own, is_core), &mut ids, findings) else {
            is_whole = false;
            continue;
        };
        if let Some(other) = routers.iter().find(|other| other.internal.value == router.internal.value) {
            let message = format!("is that of {} as well, expected an address of its own", other.name.escape_debug());
            findings.fault(router.internal.place.clone(), message);
        }
        routers.push(router);
    }
    is_whole.then_some(routers)
}

fn router(
    node: &Node<'_>,
    (is_own, is_core): (bool, bool),
    ids: &mut BTreeMap<u16, String>,
    findings: &mut Findings,
) -> Option<BorderRouter> {
    if !findings.is_object(node) {
        return None;
    }
    warn_unknown(node, &ROUTER, findings);
    let expected = "the address at which hosts and other routers of the AS reach this one";
    let internal = findings.needed(node, "internal_addr", expected).and_then(|node| findings.address(&node));
    let mut interfaces = Vec::new();
    let mut is_whole = true;
    if let Some(all) = node.member("interfaces").filter(|all| findings.is_object(all)) {
        for node in all.members() {
            match interface(&node, (is_own, is_core), ids, findings) {
                Some(interface) => interfaces.push(interface),
                None => is_whole = false,
            }
        }
    }
    // Members are in the order of their texts, and people look for numbers.
    interfaces.sort_by_key(|interface| interface.id.value);
    let name = node.key().to_owned();
    Some(BorderRouter { name, internal: internal?, interfaces }).filter(|_| is_whole)
}

fn interface(
    node: &Node<'_>,
    (is_own, is_core): (bool, bool),
    ids: &mut BTreeMap<u16, String>,
    findings: &mut Findings,
) -> Option<Interface> {
    let Some(id) = node.key().parse::<u16>().ok().filter(|id| *id > 0) else {
        findings.fault(node.place(), "not the number of an interface, expected 1 to 65535");
        return None;
    };
    if let Some(other) = ids.insert(id, node.place()) {
        findings.fault(node.place(), format!("interface {id} exists already, at {other}"));
    }
    if !findings.is_object(node) {
        return None;
    }
    warn_unknown(node, &INTERFACE, findings);
    let neighbor =
        findings.needed(node, "isd_as", "the AS at the other end").and_then(|node| findings.parsed(&node, ISD_AS));
    let link =
        findings.needed(node, "link_to", "what the neighbour is").and_then(|node| link(&node, is_core, findings));
    // What other routers of the AS have is theirs to check.
    let (ends, bfd) = if is_own {
        let underlay = findings.needed(node, "underlay", "`local` and `remote`: this router has the interface");
        let ends = underlay.and_then(|underlay| ends(&underlay, findings));
        (Some(ends), Bfd::read(known_bfd(node, findings), findings))
    } else {
        (None, Bfd::default())
    };
    let id = Placed { value: id, place: node.place() };
    let (link, neighbor) = (link?, neighbor?);
    let ends = match ends {
        Some(ends) => Some(ends?),
        None => None,
    };
    Some(Interface { id, link, neighbor, ends, bfd })
}

fn known_bfd<'a>(node: &'a Node<'a>, findings: &mut Findings) -> Option<Node<'a>> {
    let bfd = node.member("bfd")?;
    warn_unknown(&bfd, &BFD, findings);
    Some(bfd)
}

fn link(node: &Node<'_>, is_core: bool, findings: &mut Findings) -> Option<Placed<&'static str>> {
    let text = findings.text(node)?;
    let Some(link) = LINKS.into_iter().find(|link| text.value.eq_ignore_ascii_case(link)) else {
        findings.fault(text.place, "expected \"core\", \"parent\", \"child\" or \"peer\"");
        return None;
    };
    let refused = match (link, is_core) {
        ("core", false) => {
            "a link between core ASes at one that is none, expected `attributes` with \"core\", or another link"
        }
        ("parent", true) => {
            "a core AS has no provider within its ISD, expected no \"core\" in `attributes`, or another link"
        }
        _ => return Some(Placed { value: link, place: text.place }),
    };
    findings.fault(text.place, refused);
    None
}

/// Our end of a link, and the neighbour's. Files of earlier releases have the first in `public`, and where `bind` is there as well, that has
/// its address.
fn ends(underlay: &Node<'_>, findings: &mut Findings) -> Option<[Placed<SocketAddr>; 2]> {
    if !findings.is_object(underlay) {
        return None;
    }
    warn_unknown(underlay, &UNDERLAY, findings);
    if let Some(options) = underlay.member("options") {
        findings.warn(options.place(), "not used: this router has UDP sockets here");
    }
    if let Some(node) = underlay.member("provider")
        && let Some(provider) = findings.text(&node)
        && !["", PROVIDER].contains(&provider.value)
    {
        findings.fault(provider.place, format!("an underlay that this router does not have, expected \"{PROVIDER}\""));
    }
    let [local, public, bind] = ["local", "public", "bind"].map(|key| underlay.member(key));
    let local = match (local, public) {
        (Some(local), None) if bind.is_none() => findings.address(&local),
        (Some(local), _) => {
            findings.fault(local.place(), "beside `public` or `bind`, expected `local` alone");
            None
        }
        (None, Some(public)) => {
            let bind = bind.map(|bind| findings.parsed::<IpAddr>(&bind, "an IP address, such as \"192.0.2.1\""));
            match (findings.address(&public), bind) {
                (public, None) => public,
                (Some(public), Some(Some(bind))) => {
                    Some(Placed { value: SocketAddr::new(bind.value, public.value.port()), place: bind.place })
                }
                _ => None,
            }
        }
        (None, None) => {
            findings.fault(underlay.place_of("local"), "is missing, expected ADDRESS:PORT of our end of the link");
            None
        }
    };
    let remote = findings.needed(underlay, "remote", "ADDRESS:PORT of the neighbour's end of the link");
    let remote = remote.and_then(|remote| findings.address(&remote));
    Some([local?, remote?])
}

/// The addresses of a service's instances, by their names.
fn services(top: &Node<'_>, kind: &str, findings: &mut Findings) -> Vec<Placed<SocketAddr>> {
    let Some(all) = top.member(kind).filter(|all| findings.is_object(all)) else { return Vec::new() };
    let mut addresses = Vec::new();
    for node in all.members() {
        if findings.is_object(&node) {
            warn_unknown(&node, &["addr"], findings);
            let address = findings.needed(&node, "addr", "the service's ADDRESS:PORT");
            addresses.extend(address.and_then(|address| findings.address(&address)));
        }
    }
    addresses
}

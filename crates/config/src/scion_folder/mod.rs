//! The folder of an open-source SCION border router (`router.toml`, `topology.json`, `keys/master0.key`; scionproto/scion,
//! `doc/manuals/router.rst` and `doc/manuals/common.rst`) as a configuration of this router.
//!
//! The files become the text of a configuration as this router has it anyway, with the place in the folder behind each line. So
//! all that checks, runs, compares and reloads a configuration does it to a folder.
//!
//! Pure: texts come in, and nothing of this crate is used, so that a fuzz target has it without the crate's dependencies.

mod document;
mod router_toml;
#[cfg(test)]
mod tests;
mod topology;

use std::fmt::Display;
use std::net::SocketAddr;

use serde_json::Value;

pub use document::Remark;
use document::{Findings, Node, Placed, line_column};
use router_toml::{DispatchedPorts, RouterToml, Timers};
use topology::{BorderRouter, Interface, Topology};

/// The files beside the router's own.
pub const TOPOLOGY: &str = "topology.json";
pub const MASTER_KEY: &str = "keys/master0.key";
/// The port for packets of hosts that receive at none of their own (`topology.EndhostPort`).
const SHARED_PORT: u16 = 30_041;

/// The texts of a folder's files, and the name of the router's own.
#[derive(Clone, Copy, Debug)]
pub struct FolderFiles<'a> {
    pub name: &'a str,
    pub router: &'a str,
    pub topology: &'a str,
}

/// A folder's files as a configuration of this router.
#[derive(Clone, Default, Debug)]
pub struct Translation {
    /// The configuration; empty if there are faults.
    text: String,
    /// Where the lines of the text come from: the offset at which each ends, in ascending order.
    places: Vec<(usize, String)>,
    faults: Vec<Remark>,
    warnings: Vec<Remark>,
    config_dir: Option<Placed<String>>,
}

impl Translation {
    /// Translates the files. Whatever is in them, it says what is wrong.
    #[must_use]
    pub fn new(files: &FolderFiles<'_>) -> Self {
        let mut findings = Findings::default();
        let [router, topology] = [toml_value(files, &mut findings), json_value(files.topology, &mut findings)];
        let mut writer = Writer::default();
        let mut config_dir = None;
        if let (Some(router), Some(topology)) = (&router, &topology) {
            let [router, topology] = [Node::top(files.name, router), Node::top(TOPOLOGY, topology)];
            let mut toml = RouterToml::read(&router, &mut findings);
            config_dir = toml.config_dir.take();
            if findings.is_object(&topology)
                && let Some(topology) = Topology::read(&topology, toml.id.as_ref(), &mut findings)
                && let Some(own) =
                    toml.id.as_ref().and_then(|id| topology.routers.iter().find(|router| router.name == id.value))
            {
                writer.write(&toml, &topology, own, &mut findings);
            }
        }
        let Findings { faults, warnings } = findings;
        let Writer { text, places } = if faults.is_empty() { writer } else { Writer::default() };
        Self { text, places, faults, warnings, config_dir }
    }

    /// The configuration; empty if there are faults.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// With what the router does not start.
    pub fn faults(&self) -> &[Remark] {
        &self.faults
    }

    /// What this router does otherwise than the one whose files they are, or does not know.
    pub fn warnings(&self) -> &[Remark] {
        &self.warnings
    }

    /// Warns where the router's own file names another folder than this one, which is what is read.
    pub fn check_folder(&mut self, is_this: impl FnOnce(&str) -> bool) {
        let Some(Placed { place, .. }) = self.config_dir.take().filter(|named| !is_this(&named.value)) else { return };
        let message = "another folder than this one, from which topology.json and keys are read".to_owned();
        self.warnings.push(Remark { place, message });
    }

    /// The file, and the path within it, from which the line at this offset of the text comes.
    pub fn place(&self, offset: usize) -> Option<&str> {
        let line = self.places.partition_point(|(end, _)| *end <= offset);
        self.places.get(line).map(|(_, place)| place.as_str())
    }
}

fn toml_value(files: &FolderFiles<'_>, findings: &mut Findings) -> Option<Value> {
    let error = match toml::from_str::<toml::Table>(files.router) {
        Ok(table) => {
            let value = serde_json::to_value(table);
            if value.is_err() {
                findings.fault(files.name.to_owned(), "values that this router does not know");
            }
            return value.ok();
        }
        Err(error) => error,
    };
    let place = match error.span() {
        Some(span) => {
            let (line, column) = line_column(files.router, span.start);
            format!("{}:{line}:{column}", files.name)
        }
        None => files.name.to_owned(),
    };
    findings.fault(place, format!("not TOML: {}", error.message()));
    None
}

fn json_value(text: &str, findings: &mut Findings) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => {
            let what =
                if error.is_eof() { "the file ends too early" } else { "a character or value that is out of place" };
            findings.fault(format!("{TOPOLOGY}:{}:{}", error.line(), error.column()), format!("not JSON: {what}"));
            None
        }
    }
}

/// A configuration in the making.
#[derive(Default)]
struct Writer {
    text: String,
    places: Vec<(usize, String)>,
}

impl Writer {
    /// A line. Values are numbers, addresses and words of ours: none needs to be escaped.
    fn line(&mut self, line: impl Display, place: &str) {
        self.text.push_str(&line.to_string());
        self.text.push('\n');
        self.places.push((self.text.len(), place.to_owned()));
    }

    fn text(&mut self, key: &str, Placed { value, place }: &Placed<impl Display>) {
        self.line(format_args!("{key} = \"{value}\""), place);
    }

    fn write(&mut self, toml: &RouterToml, topology: &Topology, own: &BorderRouter, findings: &mut Findings) {
        self.line("[forwarding]", MASTER_KEY);
        self.line("format = \"scion\"", MASTER_KEY);
        self.line(format_args!("keys = \"{MASTER_KEY}\""), MASTER_KEY);
        if let Some(Placed { value, place }) = &toml.workers {
            self.line(format_args!("workers = {value}"), place);
        }
        self.line("[scion]", TOPOLOGY);
        self.text("isd_as", &topology.isd_as);
        self.text("internal", &own.internal);
        let siblings: Vec<&BorderRouter> = topology.routers.iter().filter(|router| router.name != own.name).collect();
        self.line("siblings = [", TOPOLOGY);
        for sibling in &siblings {
            self.line(format_args!("\"{}\",", sibling.internal.value), &sibling.internal.place);
        }
        self.line("]", TOPOLOGY);
        let ports = toml.ports.as_ref().unwrap_or(&topology.ports);
        let [first, last] = match ports.value {
            // What goes to the shared port goes there either way.
            DispatchedPorts::None => [SHARED_PORT; 2],
            DispatchedPorts::Range(range) => range,
        };
        self.line(format_args!("end_host_ports = [{first}, {last}]"), &ports.place);
        self.line(format_args!("shared_port = {SHARED_PORT}"), &ports.place);
        for (key, instances) in [("control", &topology.control), ("discovery", &topology.discovery)] {
            if let Some(address) = service(instances, ports.value, findings) {
                self.text(key, &address);
            }
        }
        let has_bfd = self.bfd(toml, own, !siblings.is_empty(), findings);
        for interface in &own.interfaces {
            self.interface(interface);
            if let Some([local, remote]) = &interface.ends {
                self.text("local", local);
                self.text("remote", remote);
            }
            if has_bfd && is_disabled(toml, interface) {
                self.line("bfd = false", &interface.id.place);
            }
        }
        for (number, sibling) in siblings.iter().enumerate() {
            for interface in &sibling.interfaces {
                self.interface(interface);
                self.line(format_args!("sibling = {number}"), &interface.id.place);
            }
        }
        if let Some(status) = &toml.status {
            self.line("[status]", &status.place);
            self.text("listen", status);
        }
    }

    fn interface(&mut self, interface: &Interface) {
        self.line("[[interface]]", &interface.id.place);
        self.line(format_args!("id = {}", interface.id.value), &interface.id.place);
        self.text("link", &interface.link);
        self.text("neighbor", &interface.neighbor);
    }

    /// Returns whether there is BFD at all. This router has the same timers for all its sessions.
    fn bfd(&mut self, toml: &RouterToml, own: &BorderRouter, has_siblings: bool, findings: &mut Findings) -> bool {
        let default = toml.timers();
        let to_siblings = toml.bfd.is_disabled != Some(true);
        let sessions: Vec<(&Interface, Timers)> = own
            .interfaces
            .iter()
            .filter(|interface| !is_disabled(toml, interface))
            .map(|interface| (interface, interface.bfd.timers(default)))
            .collect();
        // Where siblings have the default, all have.
        let (timers, place) = match sessions.first() {
            Some((first, timers)) if !(has_siblings && to_siblings) => (*timers, format!("{}.bfd", first.id.place)),
            None if !(has_siblings && to_siblings) => return false,
            _ => (default, toml.bfd_place.clone()),
        };
        for (interface, _) in sessions.iter().filter(|(_, own)| *own != timers) {
            let Timers { multiplier, transmit_ms, receive_ms } = timers;
            let message = format!(
                "not used: this router has the same timers for all sessions, here those of {place} (sends every {transmit_ms} ms, \
                 takes every {receive_ms} ms, down after {multiplier})"
            );
            findings.warn(format!("{}.bfd", interface.id.place), message);
        }
        self.line("[scion.bfd]", &place);
        self.line(format_args!("transmit_ms = {}", timers.transmit_ms), &format!("{place}.desired_min_tx_interval"));
        self.line(format_args!("receive_ms = {}", timers.receive_ms), &format!("{place}.required_min_rx_interval"));
        self.line(format_args!("multiplier = {}", timers.multiplier), &format!("{place}.detect_mult"));
        if !to_siblings {
            self.line("siblings = false", &toml.bfd_place);
        }
        true
    }
}

/// Whether an interface has no BFD: by its own setting, and else by the router's.
fn is_disabled(toml: &RouterToml, interface: &Interface) -> bool {
    interface.bfd.is_disabled.or(toml.bfd.is_disabled) == Some(true)
}

/// Where packets for a service go. The other router takes any of its instances for each packet.
fn service(
    instances: &[Placed<SocketAddr>],
    ports: DispatchedPorts,
    findings: &mut Findings,
) -> Option<Placed<SocketAddr>> {
    let (first, others) = instances.split_first()?;
    for other in others {
        let message = format!("not used: this router sends packets for the service to one instance, {}", first.value);
        findings.warn(other.place.clone(), message);
    }
    let mut address = first.clone();
    match ports {
        DispatchedPorts::None => address.value.set_port(SHARED_PORT),
        DispatchedPorts::Range([first, last]) if !(first..=last).contains(&address.value.port()) => {
            address.value.set_port(SHARED_PORT);
            let message = format!(
                "the port is not among `dispatched_ports`: packets for the service go to port {SHARED_PORT}, where a dispatcher has to be"
            );
            findings.warn(address.place.clone(), message);
        }
        DispatchedPorts::Range(_) => {}
    }
    Some(address)
}

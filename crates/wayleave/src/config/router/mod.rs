//! The configuration of a verifying router.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::Prefix;
use wayleave_packet::icing::header::NodeId;
use wayleave_packet::scion::IsdAs;
use wayleave_runtime::packets::ethernet::NEIGHBOR;

use super::bfd::BfdSection;
use super::check::{Checked, RoleConfig};
use super::icing::IcingSection;
use super::parse::{EthernetAddress, Text, TextValue};
pub use super::platypus::{PlatypusSection, RepeatedName};
use super::rs::{FileFault, StatusSection, range, status_warning};
use super::stamper::StamperSection;
use super::{Fault, Source};
use crate::failure::Failures;
use crate::key_files::forwarding::ForwardingKeys;

/// `run router`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "router",
    section: "forwarding",
    sections: "[forwarding] and a section for its format",
    check: RouterFile::checked,
    status: |source| Ok(RouterFile::parse(source)?.status),
    template: |_| TEMPLATE.to_owned(),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterFile {
    pub forwarding: ForwardingSection,
    pub scion: Option<Spanned<ScionSection>>,
    #[serde(default)]
    pub interface: Vec<Spanned<InterfaceSection>>,
    pub platypus: Option<Spanned<PlatypusSection>>,
    pub stamper: Option<Spanned<StamperSection>>,
    pub icing: Option<Spanned<IcingSection>>,
    #[serde(default)]
    pub link: Vec<Spanned<LinkSection>>,
    pub status: Option<StatusSection>,
}

/// `[forwarding]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardingSection {
    pub format: Format,
    /// The file of forwarding keys.
    pub keys: Spanned<PathBuf>,
    /// The file of the state that must survive a restart: accounts.
    pub state: Option<PathBuf>,
    /// Forwarding threads.
    #[serde(default = "default_workers")]
    pub workers: Spanned<u64>,
    /// The core of each thread. Default: the system chooses.
    pub cores: Option<Spanned<Vec<usize>>>,
}

/// The packet format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Scion,
    Platypus,
    Icing,
}

impl Format {
    /// Its name in configurations and key files.
    pub fn name(self) -> &'static str {
        match self {
            Format::Scion => "scion",
            Format::Platypus => "platypus",
            Format::Icing => "icing",
        }
    }
}

/// How packets are received and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// UDP with segmentation offload: a sender's batch is one message.
    #[default]
    UdpGso,
    /// UDP, one packet per message.
    UdpBatch,
    /// AF_XDP, bypassing the system's network stack.
    AfXdp,
    /// Ethernet frames; ICING only.
    Ethernet,
}

/// `[scion]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScionSection {
    /// The AS whose router this is.
    pub isd_as: Spanned<Text<IsdAs>>,
    /// The address at which hosts and other routers of the AS reach this one.
    pub internal: Spanned<Text<SocketAddr>>,
    #[serde(default = "default_backend")]
    pub backend: Spanned<Backend>,
    /// The other routers' internal addresses.
    #[serde(default)]
    pub siblings: Vec<Spanned<Text<SocketAddr>>>,
    /// First and last UDP port at which end hosts receive directly; all others receive at the shared port.
    #[serde(default = "default_ports")]
    pub end_host_ports: Spanned<[u16; 2]>,
    /// The shared port of end hosts.
    #[serde(default = "default_shared")]
    pub shared_port: u16,
    /// Addresses of the AS's services.
    pub control: Option<Text<SocketAddr>>,
    pub discovery: Option<Text<SocketAddr>>,
    /// SCMP errors and replies a second.
    #[serde(default = "default_answers")]
    pub answers_per_second: Spanned<u64>,
    /// Rate and burst of wrong MACs at an interface beyond which its packets are dropped unchecked. Default: no limit.
    pub bad_macs_per_second: Option<Spanned<u64>>,
    pub bad_macs_at_once: Option<Spanned<u64>>,
    /// BFD with neighbours and the AS's other routers. Default: none.
    pub bfd: Option<Spanned<BfdSection>>,
}

/// `[[interface]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceSection {
    pub id: Spanned<u16>,
    pub link: LinkKind,
    /// The AS at the other end.
    pub neighbor: Spanned<Text<IsdAs>>,
    /// Address of our end.
    pub local: Option<Spanned<Text<SocketAddr>>>,
    /// Address of the neighbour's end.
    pub remote: Option<Spanned<Text<SocketAddr>>>,
    #[serde(default = "default_backend")]
    pub backend: Spanned<Backend>,
    /// With af-xdp: the network interface and its queue.
    pub device: Option<String>,
    #[serde(default)]
    pub queue: u32,
    /// With af-xdp: the next hop to `remote`, if that is not on the same link.
    pub gateway: Option<Text<Ipv4Addr>>,
    /// The other router that has the interface: an index into `siblings`.
    pub sibling: Option<Spanned<u16>>,
    /// The neighbour speaks BFD, if this router does.
    #[serde(default = "default_true")]
    pub bfd: bool,
}

/// The relation of a SCION link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    Core,
    Parent,
    Child,
    Peer,
}

/// `[[link]]`: IP packets in UDP between two routers, or ICING packets to neighbours.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSection {
    /// Needed by every backend but ethernet.
    #[serde(default = "no_address")]
    pub local: Spanned<Text<SocketAddr>>,
    #[serde(default = "no_address")]
    pub remote: Spanned<Text<SocketAddr>>,
    #[serde(default = "default_backend")]
    pub backend: Spanned<Backend>,
    pub device: Option<String>,
    #[serde(default)]
    pub queue: u32,
    pub gateway: Option<Text<Ipv4Addr>>,
    /// With ethernet: the address of the other end.
    pub neighbor: Option<Spanned<Text<EthernetAddress>>>,
    /// Destinations reached over it.
    #[serde(default)]
    pub routes: Vec<Prefix>,
    /// Platypus: sources behind it whose packets are stamped by the rules of `[stamper]`.
    #[serde(default)]
    pub stamp: Vec<Prefix>,
    /// ICING: the link's number, as used in tags.
    pub id: Option<u16>,
    /// ICING: the IDs of the nodes behind it, one for each key in use.
    #[serde(default)]
    pub nodes: Vec<Text<NodeId>>,
    /// ICING: senders are behind it, whose IDs are not known.
    #[serde(default)]
    pub open: bool,
}

impl TextValue for IsdAs {
    const EXPECTED: &'static str = "an ISD and AS, such as \"1-ff00:0:110\" or \"1-64496\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

pub(super) fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

/// Stands for the address that backend ethernet does not need; refused for others.
fn no_address() -> Spanned<Text<SocketAddr>> {
    unplaced(Text(NEIGHBOR))
}

pub(super) fn default_backend() -> Spanned<Backend> {
    unplaced(Backend::default())
}

fn default_workers() -> Spanned<u64> {
    unplaced(1)
}

fn default_ports() -> Spanned<[u16; 2]> {
    unplaced([31_000, 32_767])
}

fn default_shared() -> u16 {
    30_041
}

pub(super) fn default_answers() -> Spanned<u64> {
    unplaced(100)
}

pub(super) fn default_replay() -> Spanned<u64> {
    unplaced(4 << 20)
}

pub(super) fn default_true() -> bool {
    true
}

/// The addresses of a socket, for the check that no two sockets share one.
struct SocketAddresses<'a> {
    local: &'a Spanned<Text<SocketAddr>>,
    remote: Option<&'a Spanned<Text<SocketAddr>>>,
    backend: &'a Spanned<Backend>,
    device: Option<&'a String>,
}

impl RouterFile {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let faults = file.faults();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("router", failures),
        };
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        match file.file_fault(source) {
            // A new configuration needs no files yet.
            Some(FileFault::Missing(fault)) => warnings.push(fault),
            Some(FileFault::Unusable(fault)) => errors.push(fault),
            None => {}
        }
        if file.interface.is_empty() && file.forwarding.format == Format::Scion {
            let message = "no [[interface]]: no packet is forwarded";
            warnings.push(Fault { span: None, message: message.to_owned(), help: None });
        }
        warnings.extend(file.status.as_ref().and_then(status_warning));
        Checked::found("router", source, errors, warnings)
    }

    fn file_fault(&self, source: &Source) -> Option<FileFault> {
        let named = &self.forwarding.keys;
        if let Some(fault) = self.stamper.as_ref().and_then(|stamper| stamper.get_ref().file_fault(source)) {
            return Some(fault);
        }
        let path = source.resolve(named.get_ref());
        if !path.exists() {
            let fault = Fault::at(named.span(), format!("{} does not exist yet", path.display()));
            let make = format!("`wayleave keys forwarding FILE --format {}` creates it", self.forwarding.format.name());
            return Some(FileFault::Missing(fault.help(make)));
        }
        match ForwardingKeys::load(self.forwarding.format, &path) {
            Err(failure) => Some(FileFault::Unusable(Fault::of(named.span(), &failure))),
            Ok(_) => self.identity_fault(source),
        }
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let forwarding = &self.forwarding;
        faults.extend(range(&forwarding.workers, 1, 256, "threads"));
        if let Some(cores) = &forwarding.cores
            && cores.get_ref().len() as u64 != *forwarding.workers.get_ref()
        {
            let message = format!(
                "{} cores, expected {}, one for each thread",
                cores.get_ref().len(),
                forwarding.workers.get_ref()
            );
            faults.push(Fault::at(cores.span(), message));
        }
        match (forwarding.format, &self.scion, &self.platypus, &self.icing) {
            (Format::Scion, Some(section), None, None) => self.scion_faults(section.get_ref(), &mut faults),
            (Format::Platypus, None, Some(section), None) => self.platypus_faults(section.get_ref(), &mut faults),
            (Format::Icing, None, None, Some(section)) => self.icing_faults(section.get_ref(), &mut faults),
            (format, ..) => {
                let message =
                    format!("expected one section [{0}] and no other, since the format is {0}", format.name());
                faults.push(Fault { span: None, message, help: None });
            }
        }
        if let (Some(stamper), Format::Scion | Format::Icing) = (&self.stamper, forwarding.format) {
            faults.push(foreign(stamper.span(), "[stamper]", "platypus"));
        }
        self.socket_faults(&mut faults);
        faults
    }

    fn scion_faults(&self, section: &ScionSection, faults: &mut Vec<Fault>) {
        faults.extend(range(&section.answers_per_second, 0, 100_000, "a second"));
        for limit in [&section.bad_macs_per_second, &section.bad_macs_at_once].into_iter().flatten() {
            faults.extend(range(limit, *self.forwarding.workers.get_ref(), 1 << 30, "wrong MACs"));
        }
        if let (None, Some(burst)) = (&section.bad_macs_per_second, &section.bad_macs_at_once) {
            faults.push(Fault::at(burst.span(), "no rate, expected `bad_macs_per_second` as well"));
        }
        let [first, last] = *section.end_host_ports.get_ref();
        if first > last || first == 0 {
            faults.push(Fault::at(
                section.end_host_ports.span(),
                "not a range of ports, expected the first and the last one",
            ));
        }
        faults.extend(self.link.first().map(|link| foreign(link.span(), "[[link]]", "platypus\" or \"icing")));
        section.bfd.iter().for_each(|bfd| bfd.get_ref().faults(faults));
        let mut ids = Vec::new();
        for section in self.interface.iter().map(Spanned::get_ref) {
            let id = *section.id.get_ref();
            if id == 0 {
                faults.push(Fault::at(section.id.span(), "0 is the AS itself, expected 1 to 65535"));
            }
            if ids.contains(&id) {
                faults.push(Fault::at(
                    section.id.span(),
                    format!("interface {id} exists already, expected another number"),
                ));
            }
            ids.push(id);
            match (&section.sibling, &section.local, &section.remote) {
                (None, Some(_), Some(_)) | (Some(_), None, None) => {}
                _ => {
                    let message = format!("interface {id}: expected `local` and `remote`, or `sibling` alone");
                    faults.push(Fault::at(section.id.span(), message));
                }
            }
        }
    }

    /// Each socket has an address of its own, and another address to send to.
    fn socket_faults(&self, faults: &mut Vec<Fault>) {
        let mut taken: Vec<SocketAddr> = Vec::new();
        for SocketAddresses { local, remote, backend, device } in self.sockets() {
            let here = local.get_ref().0;
            if local.span().is_empty() || remote.is_some_and(|remote| remote.span().is_empty()) {
                let message = "a link without `local` and `remote`, expected both ends' addresses";
                faults.push(Fault { span: None, message: message.to_owned(), help: None });
                continue;
            }
            if taken.contains(&here) && here.port() != 0 {
                let message =
                    format!("{here} is in use by another interface or link, expected an address or port of its own");
                faults.push(Fault::at(local.span(), message));
            }
            taken.push(here);
            if here.ip().is_unspecified() || here.ip().is_multicast() {
                let message = format!("{here} is not one address, expected one of this machine's");
                faults.push(Fault::at(local.span(), message));
            }
            if let Some(remote) = remote {
                let there = remote.get_ref().0;
                let bad =
                    there.ip().is_unspecified() || there.ip().is_multicast() || there.port() == 0 || there == here;
                if bad || there.is_ipv4() != here.is_ipv4() {
                    let message = format!("{there} cannot be reached from {here}, expected the other end's address");
                    faults.push(Fault::at(remote.span(), message));
                }
            }
            if *backend.get_ref() == Backend::Ethernet {
                faults
                    .push(Fault::at(backend.span(), "ethernet is for ICING's [[link]] only, expected another backend"));
            }
            let is_xdp = *backend.get_ref() == Backend::AfXdp;
            if is_xdp && (device.is_none() || !here.is_ipv4()) {
                let message = "backend af-xdp is incomplete, expected `device` and IPv4 addresses with it";
                faults.push(Fault::at(backend.span(), message));
            }
            if is_xdp && *self.forwarding.workers.get_ref() != 1 {
                let message = "af-xdp with several threads, expected workers = 1: a queue belongs to one thread";
                faults.push(Fault::at(backend.span(), message));
            }
        }
    }

    fn sockets(&self) -> Vec<SocketAddresses<'_>> {
        let mut all = Vec::new();
        if let Some(scion) = self.scion.as_ref().map(Spanned::get_ref) {
            all.push(SocketAddresses { local: &scion.internal, remote: None, backend: &scion.backend, device: None });
        }
        for section in self.interface.iter().map(Spanned::get_ref) {
            let Some(local) = &section.local else { continue };
            let (remote, device) = (section.remote.as_ref(), section.device.as_ref());
            all.push(SocketAddresses { local, remote, backend: &section.backend, device });
        }
        if let Some(icing) = self.icing.as_ref().map(Spanned::get_ref)
            && let Some(local) = &icing.internal
        {
            all.push(SocketAddresses { local, remote: None, backend: &icing.backend, device: None });
        }
        let over_ip = |link: &&LinkSection| self.icing.is_none() || *link.backend.get_ref() != Backend::Ethernet;
        for LinkSection { local, remote, backend, device, .. } in self.link.iter().map(Spanned::get_ref).filter(over_ip)
        {
            all.push(SocketAddresses { local, remote: Some(remote), backend, device: device.as_ref() });
        }
        all
    }
}

pub(super) fn foreign(span: Range<usize>, section: &str, format: &str) -> Fault {
    Fault::at(span, format!("{section} belongs to format = \"{format}\""))
}

/// What `wayleave init router` prints.
const TEMPLATE: &str = "# A router that verifies every packet. Run it with: wayleave run router --config FILE\n\
     # Paths are relative to this file.\n\
     \n\
     [forwarding]\n\
     # scion, platypus or icing.\n\
     format = \"scion\"\n\
     # Created by: wayleave keys forwarding router.key --format scion\n\
     # The same file at every router of the AS. Reloaded on SIGHUP.\n\
     keys = \"router.key\"\n\
     # The state that must survive a restart: accounts (platypus, icing).\n\
     #state = \"router.redb\"\n\
     # Forwarding threads, and the core of each.\n\
     #workers = 1\n\
     #cores = [1]\n\
     \n\
     [scion]\n\
     isd_as = \"1-64497\"\n\
     # Where hosts and other routers of the AS reach this one.\n\
     internal = \"127.0.0.1:30042\"\n\
     # udp-gso receives and sends batches as one message; udp-batch packet by packet; af-xdp (interfaces only) bypasses\n\
     # the system's network stack and needs `device`.\n\
     #backend = \"udp-gso\"\n\
     # The other routers of the AS.\n\
     #siblings = [\"127.0.0.2:30042\"]\n\
     # UDP ports at which end hosts receive directly; all others receive at the shared port.\n\
     #end_host_ports = [31000, 32767]\n\
     #shared_port = 30041\n\
     # The AS's services.\n\
     #control = \"127.0.0.1:30252\"\n\
     #discovery = \"127.0.0.1:30253\"\n\
     # SCMP messages per second.\n\
     #answers_per_second = 100\n\
     # Rate and burst of wrong MACs at an interface beyond which its packets are dropped unchecked.\n\
     #bad_macs_per_second = 1000\n\
     #bad_macs_at_once = 1000\n\
     # BFD (RFC 5880) with every neighbour and every other router of the AS; a link is down while its session is.\n\
     #[scion.bfd]\n\
     #transmit_ms = 200\n\
     #receive_ms = 200\n\
     #multiplier = 3\n\
     \n\
     # One for each interface of the AS, including those of its other routers.\n\
     [[interface]]\n\
     id = 1\n\
     # What the neighbour is: core, parent (our provider), child (our customer), peer.\n\
     link = \"child\"\n\
     neighbor = \"1-64498\"\n\
     local = \"127.0.0.1:50000\"\n\
     remote = \"127.0.0.2:50000\"\n\
     #backend = \"af-xdp\"\n\
     #device = \"eth0\"\n\
     #queue = 0\n\
     #gateway = \"192.0.2.1\"\n\
     # Instead of local and remote, for another router's interface: its index in `siblings`, from 0.\n\
     #sibling = 0\n\
     # With [scion.bfd]: this neighbour does not support it.\n\
     #bfd = false\n\
     \n\
     # For format = \"platypus\", instead of [scion] and [[interface]]:\n\
     #[platypus]\n\
     # Addresses of this machine to which packets are sent, in IP protocol 253.\n\
     #waypoints = [\"198.51.100.1\"]\n\
     # Bindings of 64 bits are accepted.\n\
     #narrow = false\n\
     #freshness_secs = 30\n\
     # Networks that may not be reached through this router, and waypoints in them that may.\n\
     #refused = [\"10.0.0.0/8\"]\n\
     #allowed_waypoints = [\"10.0.0.1\"]\n\
     # Repeated packets: drop, count-once, pass.\n\
     #repeated = \"drop\"\n\
     #replay_capacity = 4194304\n\
     # Largest number of accounts (principal, delegation, key epoch); 0 disables accounting.\n\
     #accounts = 4096\n\
     # ICMP errors per second.\n\
     #answers_per_second = 100\n\
     # Rate in octets per second, and burst, of a principal with all its delegations, or of one delegation.\n\
     #rates = [{ principal = 7, rate = 1250000 }, { principal = 7, delegation = 3, rate = 125000, burst = 65535 }]\n\
     # A list signed by `wayleave keys revoke`; with `required`, no packet passes until it has been read.\n\
     #revocations = { file = \"revoked\", key = \"ed25519:...\", required = true }\n\
     # Packets to these destinations are sent in UDP, all others in IP.\n\
     #[[link]]\n\
     #local = \"192.0.2.1:49254\"\n\
     #remote = \"192.0.2.2:49254\"\n\
     #routes = [\"198.51.100.2/32\"]\n\
     # Sources behind it whose packets are stamped by the rules of [stamper].\n\
     #stamp = [\"192.0.2.128/25\"]\n\
     # Files are created by: wayleave keys capability, and wayleave keys delegate. The longest prefix counts; a rule without a\n\
     # route leaves packets unchanged. Position in packets that are stamped already: before the next capability, or \"last\".\n\
     #[stamper]\n\
     #position = \"next\"\n\
     # The index of this stamper, and the number of stampers, that share the capabilities.\n\
     #share = [0, 1]\n\
     #routes = [{ name = \"transit\", capabilities = [\"desk.cap\"], sealed = false, udp = false, mtu = 1500 }]\n\
     #rules = [{ to = \"203.0.113.0/24\", route = \"transit\" }, { to = \"203.0.113.200/32\" }]\n\
     \n\
     # For format = \"icing\", instead of [scion] and [[interface]]:\n\
     #[icing]\n\
     # The meaning of tags by their first bits: over the link to the next node; over the link given; to a service.\n\
     #tags = [{ prefix = \"40000000/2\" }, { prefix = \"80000000/2\", queue = 1, link = 2 },\n\
     #        { prefix = \"c0000000/2\", service = 1 }]\n\
     # The address at which services reach this node, and the services' addresses.\n\
     #internal = \"192.0.2.1:49253\"\n\
     #services = [{ id = 1, address = \"192.0.2.9:7000\" }]\n\
     # Accounts, charged by tags with `account = 1`: octets per second and burst; without `rate` packets are only counted.\n\
     # Accounts need `state` in [forwarding].\n\
     #accounts = [{ id = 1, rate = 12500000, depth = 1250000 }]\n\
     # The node's long-term key, which signs reports. Made by: wayleave keys new node.identity\n\
     #identity = \"node.identity\"\n\
     # X25519 key agreements per second for packets of each link; cached paths and keys of other nodes.\n\
     #agreements_per_second = 100\n\
     #paths = 65536\n\
     #peers = 65536\n\
     #replay_capacity = 4194304\n\
     # One for each link to other nodes, by the IDs that `wayleave keys forwarding FILE` prints, or to senders (open).\n\
     #[[link]]\n\
     #id = 1\n\
     #local = \"192.0.2.1:49252\"\n\
     #remote = \"192.0.2.2:49252\"\n\
     #nodes = [\"64 hexadecimal digits\"]\n\
     #open = false\n\
     # Or, instead of local and remote, Ethernet frames to the station with this address:\n\
     #backend = \"ethernet\"\n\
     #device = \"eth0\"\n\
     #neighbor = \"02:00:5e:10:00:02\"\n\
     \n\
     # Status pages and metrics, for you alone.\n\
     [status]\n\
     listen = \"127.0.0.1:8486\"\n";

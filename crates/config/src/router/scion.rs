//! `[scion]` and `[[interface]]`: a SCION router's AS, its neighbours, and its limits.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;
use toml::Spanned;
use wayleave_packet::scion::IsdAs;

use super::bfd::BfdSection;
use super::{
    Backend, FormatSection, RouterFile, SocketAddresses, default_answers, default_backend, default_true, unplaced,
};
use crate::Fault;
use crate::parse::{Text, TextValue};
use crate::rs::range;

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

impl TextValue for IsdAs {
    const EXPECTED: &'static str = "an ISD and AS, such as \"1-ff00:0:110\" or \"1-64496\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

fn default_ports() -> Spanned<[u16; 2]> {
    unplaced([31_000, 32_767])
}

fn default_shared() -> u16 {
    30_041
}

/// Whether it stands for any ISD or AS.
fn is_wildcard(isd_as: IsdAs) -> bool {
    isd_as.isd() == 0 || isd_as.asn() == 0
}

impl FormatSection for ScionSection {
    fn uses(&self) -> &'static [&'static str] {
        &["interface"]
    }

    fn faults(&self, file: &RouterFile, faults: &mut Vec<Fault>) {
        faults.extend(range(&self.answers_per_second, 0, 100_000, "a second"));
        for limit in [&self.bad_macs_per_second, &self.bad_macs_at_once].into_iter().flatten() {
            faults.extend(range(limit, *file.forwarding.workers.get_ref(), 1 << 30, "wrong MACs"));
        }
        if let (None, Some(burst)) = (&self.bad_macs_per_second, &self.bad_macs_at_once) {
            faults.push(Fault::at(burst.span(), "no rate, expected `bad_macs_per_second` as well"));
        }
        if is_wildcard(self.isd_as.get_ref().0) {
            let message = format!("{} is a wildcard, expected an ISD and an AS", self.isd_as.get_ref().0);
            faults.push(Fault::at(self.isd_as.span(), message));
        }
        let [first, last] = *self.end_host_ports.get_ref();
        if first > last || first == 0 {
            faults.push(Fault::at(
                self.end_host_ports.span(),
                "not a range of ports, expected the first and the last one",
            ));
        }
        self.bfd.iter().for_each(|bfd| bfd.get_ref().faults(faults));
        let mut ids = Vec::new();
        for section in file.interface.iter().map(Spanned::get_ref) {
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
            let neighbor = section.neighbor.get_ref().0;
            if neighbor == self.isd_as.get_ref().0 || is_wildcard(neighbor) {
                let message = format!("{neighbor} is a wildcard or this AS itself, expected the AS at the other end");
                faults.push(Fault::at(section.neighbor.span(), message));
            }
            match (&section.sibling, &section.local, &section.remote) {
                (None, Some(_), Some(_)) | (Some(_), None, None) => {}
                _ => {
                    let message = format!("interface {id}: expected `local` and `remote`, or `sibling` alone");
                    faults.push(Fault::at(section.id.span(), message));
                }
            }
        }
    }

    fn warnings(&self, file: &RouterFile) -> Vec<Fault> {
        if !file.interface.is_empty() {
            return Vec::new();
        }
        let message = "no [[interface]]: no packet is forwarded";
        vec![Fault { span: None, message: message.to_owned(), help: None }]
    }

    fn sockets<'a>(&'a self, file: &'a RouterFile) -> Vec<SocketAddresses<'a>> {
        let internal = SocketAddresses { local: &self.internal, remote: None, backend: &self.backend, device: None };
        let interfaces = file.interface.iter().map(Spanned::get_ref).filter_map(|section| {
            let (remote, device) = (section.remote.as_ref(), section.device.as_ref());
            Some(SocketAddresses { local: section.local.as_ref()?, remote, backend: &section.backend, device })
        });
        [internal].into_iter().chain(interfaces).collect()
    }
}

/// The part of `wayleave init router` for this format.
pub(super) const TEMPLATE: &str = "[scion]\n\
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
     #siblings = true\n\
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
     \n";

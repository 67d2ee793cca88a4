//! The configuration of a verifying router. Each format has a section of its own, in a file of its own.

pub mod bfd;
pub mod icing;
pub mod platypus;
pub mod scion;
pub mod stamper;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::Prefix;
use wayleave_packet::icing::header::NodeId;
use wayleave_runtime::packets::ethernet::NEIGHBOR;

use super::check::{Checked, RoleConfig};
use super::machine::{absent_address, state_fault};
use super::overlay::{OpenSection, OverlaySection};
use super::parse::{EthernetAddress, Text};
use super::rs::{FileFault, StatusSection, range, status_warning};
use super::{Fault, Source};
use crate::failure::Failures;
pub use crate::key_files::forwarding::FormatName;
use crate::key_files::forwarding::ForwardingKeys;
use icing::IcingSection;
use platypus::PlatypusSection;
use scion::{InterfaceSection, ScionSection};
use stamper::StamperSection;

/// `run router`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "router",
    section: "forwarding",
    sections: "[forwarding] and a section for its format",
    check: RouterFile::checked,
    template: |_| template(),
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
    /// Its part in a realm: then links follow from neighbours and their adverts (icing).
    pub overlay: Option<Spanned<OverlaySection>>,
    pub status: Option<StatusSection>,
}

/// `[forwarding]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardingSection {
    pub format: FormatName,
    /// The file of forwarding keys.
    pub keys: Spanned<PathBuf>,
    /// The file of the state that must survive a restart: accounts, and the number of the list of revocations.
    pub state: Option<Spanned<PathBuf>>,
    /// Forwarding threads.
    #[serde(default = "default_workers")]
    pub workers: Spanned<u64>,
    /// The core of each thread. Default: the system chooses.
    pub cores: Option<Spanned<Vec<usize>>>,
}

impl RouterFile {
    /// All formats, each with its section. A new format's section is added here and as a field above.
    fn format_sections(&self) -> [(FormatName, Option<&dyn FormatSection>); 3] {
        [
            (FormatName::Scion, self.scion.as_ref().map(|section| section.get_ref() as _)),
            (FormatName::Platypus, self.platypus.as_ref().map(|section| section.get_ref() as _)),
            (FormatName::Icing, self.icing.as_ref().map(|section| section.get_ref() as _)),
        ]
    }
}

/// A format's own section.
trait FormatSection {
    /// The sections beside it that the format uses, of `interface`, `link`, `stamper` and `overlay`.
    fn uses(&self) -> &'static [&'static str];

    /// Adds what is wrong with the section, and with those that it uses.
    fn faults(&self, file: &RouterFile, faults: &mut Vec<Fault>);

    /// Returns the sockets that the configuration asks for and that need an address of their own.
    fn sockets<'a>(&'a self, file: &'a RouterFile) -> Vec<SocketAddresses<'a>>;

    /// Returns what is not wrong, but worth knowing.
    fn warnings(&self, _file: &RouterFile) -> Vec<Fault> {
        Vec::new()
    }

    /// Returns what follows from the section, and is worth a look.
    fn notes(&self, _file: &RouterFile) -> Vec<String> {
        Vec::new()
    }

    /// Returns the first file that is named and cannot be used.
    fn file_fault(&self, _file: &RouterFile, _source: &Source) -> Option<FileFault> {
        None
    }
}

/// The addresses of a socket, for the check that no two sockets share one.
struct SocketAddresses<'a> {
    local: &'a Spanned<Text<SocketAddr>>,
    remote: Option<&'a Spanned<Text<SocketAddr>>>,
    backend: &'a Spanned<Backend>,
    device: Option<&'a String>,
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
    /// Platypus: waypoints of the provider behind it, from which packets come over it.
    #[serde(default)]
    pub own_waypoints: Vec<Spanned<Prefix>>,
    /// Platypus: waypoints of peers behind it, from which packets come over it.
    #[serde(default)]
    pub peer_waypoints: Vec<Spanned<Prefix>>,
    /// Platypus: sources behind it whose paths begin here. Default: any, and none beside peers.
    pub sources: Option<Vec<Prefix>>,
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

/// A default value, which has no position in the text.
fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

/// Stands for the address that backend ethernet does not need; refused for others.
fn no_address() -> Spanned<Text<SocketAddr>> {
    unplaced(Text(NEIGHBOR))
}

fn default_backend() -> Spanned<Backend> {
    unplaced(Backend::default())
}

fn default_workers() -> Spanned<u64> {
    unplaced(1)
}

fn default_answers() -> Spanned<u64> {
    unplaced(100)
}

fn default_replay() -> Spanned<u64> {
    unplaced(4 << 20)
}

fn default_true() -> bool {
    true
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
            Some(FileFault::Missing(fault)) if source.is_folder() => {
                errors.push(fault.help("the AS's control service has the same file: copy it from there"));
            }
            // A new configuration needs no files yet.
            Some(FileFault::Missing(fault) | FileFault::Doubtful(fault)) => warnings.push(fault),
            Some(FileFault::Unusable(fault)) => errors.push(fault),
            None => {}
        }
        errors.extend(
            file.forwarding.state.iter().filter_map(|state| state_fault(state, source)).map(FileFault::into_fault),
        );
        for fault in file.overlay.iter().flat_map(|section| section.get_ref().file_faults(source)) {
            match fault {
                FileFault::Doubtful(fault) => warnings.push(fault),
                FileFault::Missing(fault) | FileFault::Unusable(fault) => errors.push(fault),
            }
        }
        if let Some(section) = file.section() {
            let sockets = section.sockets(&file).into_iter().map(|socket| socket.local);
            warnings.extend(sockets.filter(|local| !local.span().is_empty()).filter_map(absent_address));
            warnings.extend(section.warnings(&file));
        }
        warnings.extend(file.status.as_ref().and_then(status_warning));
        let open = file.overlay.as_ref().and_then(|section| section.get_ref().open.as_ref());
        let of_format = file.section().map(|section| section.notes(&file)).unwrap_or_default();
        let notes = open.map(OpenSection::describe).into_iter().chain(of_format).collect();
        let mut checked = Checked { notes, ..Checked::found("router", source, errors, warnings) };
        checked.warnings.extend(source.differences());
        checked
    }

    /// The format's section, if it is the only one of a format.
    fn section(&self) -> Option<&dyn FormatSection> {
        let mut present = self.format_sections().into_iter().filter_map(|(name, section)| Some((name, section?)));
        let (name, section) = present.next()?;
        (name == self.forwarding.format && present.next().is_none()).then_some(section)
    }

    fn file_fault(&self, source: &Source) -> Option<FileFault> {
        let named = &self.forwarding.keys;
        if let Some(fault) = self.stamper.as_ref().and_then(|stamper| stamper.get_ref().file_fault(source, false)) {
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
            Ok(_) => self.section()?.file_fault(self, source),
        }
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let forwarding = &self.forwarding;
        faults.extend(range(&forwarding.workers, 1, 256, "threads"));
        if let Some(cores) = &forwarding.cores
            && cores.get_ref().len() as u64 != *forwarding.workers.get_ref()
        {
            let (count, workers) = (cores.get_ref().len(), forwarding.workers.get_ref());
            let message = format!("{count} cores, expected {workers}, one for each thread");
            faults.push(Fault::at(cores.span(), message));
        }
        let Some(section) = self.section() else {
            let name = forwarding.format.name();
            let message = format!("expected one section [{name}] and no other, since the format is {name}");
            faults.push(Fault { span: None, message, help: None });
            return faults;
        };
        section.faults(self, &mut faults);
        faults.extend(self.overlay.iter().flat_map(|section| section.get_ref().faults()));
        self.unused_faults(section.uses(), &mut faults);
        self.socket_faults(section, &mut faults);
        faults
    }

    /// Sections that the format does not use.
    fn unused_faults(&self, uses: &[&str], faults: &mut Vec<Fault>) {
        let sections: [(&str, &str, Option<Range<usize>>); 4] = [
            ("interface", "[[interface]]", self.interface.first().map(Spanned::span)),
            ("link", "[[link]]", self.link.first().map(Spanned::span)),
            ("stamper", "[stamper]", self.stamper.as_ref().map(Spanned::span)),
            ("overlay", "[overlay]", self.overlay.as_ref().map(Spanned::span)),
        ];
        for (name, heading, span) in sections {
            if let Some(span) = span.filter(|_| !uses.contains(&name)) {
                let format = self.forwarding.format.name();
                faults.push(Fault::at(
                    span,
                    format!("{heading} has no meaning for format = \"{format}\", expected no such section"),
                ));
            }
        }
    }

    /// Each socket has an address of its own, and another address to send to.
    fn socket_faults(&self, section: &dyn FormatSection, faults: &mut Vec<Fault>) {
        let mut used: Vec<SocketAddr> = Vec::new();
        for SocketAddresses { local, remote, backend, device } in section.sockets(self) {
            let here = local.get_ref().0;
            if local.span().is_empty() || remote.is_some_and(|remote| remote.span().is_empty()) {
                let message = "a link without `local` and `remote`, expected both ends' addresses";
                faults.push(Fault { span: None, message: message.to_owned(), help: None });
                continue;
            }
            if used.contains(&here) && here.port() != 0 {
                let message =
                    format!("{here} is in use by another interface or link, expected an address or port of its own");
                faults.push(Fault::at(local.span(), message));
            }
            used.push(here);
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
            self.backend_faults(here, backend, device, faults);
        }
    }

    fn backend_faults(
        &self,
        here: SocketAddr,
        backend: &Spanned<Backend>,
        device: Option<&String>,
        faults: &mut Vec<Fault>,
    ) {
        let mut add = |message: &str| faults.push(Fault::at(backend.span(), message));
        match backend.get_ref() {
            Backend::Ethernet => add("ethernet is for ICING's [[link]] only, expected another backend"),
            Backend::AfXdp => {
                if device.is_none() || !here.is_ipv4() {
                    add("backend af-xdp is incomplete, expected `device` and IPv4 addresses with it");
                }
                if *self.forwarding.workers.get_ref() != 1 {
                    add("af-xdp with several threads, expected workers = 1: a queue belongs to one thread");
                }
            }
            Backend::UdpGso | Backend::UdpBatch => {}
        }
    }

    /// The sockets of links by IP, apart from those straight over Ethernet if `is_ethernet_allowed`.
    fn link_sockets(&self, is_ethernet_allowed: bool) -> impl Iterator<Item = SocketAddresses<'_>> {
        let links = self.link.iter().map(Spanned::get_ref);
        let by_ip = links.filter(move |link| !(is_ethernet_allowed && *link.backend.get_ref() == Backend::Ethernet));
        by_ip.map(|LinkSection { local, remote, backend, device, .. }| SocketAddresses {
            local,
            remote: Some(remote),
            backend,
            device: device.as_ref(),
        })
    }
}

fn template() -> String {
    [TEMPLATE_HEAD, scion::TEMPLATE, platypus::TEMPLATE, icing::TEMPLATE, TEMPLATE_STATUS].concat()
}

/// What `wayleave join` writes for a router of an overlay, around its section `[overlay]`.
pub fn overlay_template(overlay: &str, status: &str) -> String {
    format!(
        "# A router of an overlay (ICING). Run it with: wayleave run router --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [forwarding]\n\
         format = \"icing\"\n\
         # Of these keys follow those of its tags, which its consent server has too (tags.key).\n\
         keys = \"router.key\"\n\
         # The state that must survive a restart: accounts.\n\
         state = \"router.redb\"\n\
         \n\
         [icing]\n\
         # The meaning of tags by their first bits: over the link to the next node.\n\
         tags = [{{ prefix = \"40000000/2\" }}]\n\
         \n\
         {overlay}\
         \n\
         # Status pages and metrics, for you alone.\n\
         [status]\n\
         listen = \"{status}\"\n"
    )
}

const TEMPLATE_HEAD: &str = "# A router that verifies every packet. Run it with: wayleave run router --config FILE\n\
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
     \n";

const TEMPLATE_STATUS: &str = "# Status pages and metrics, for you alone.\n\
     [status]\n\
     listen = \"127.0.0.1:8486\"\n";

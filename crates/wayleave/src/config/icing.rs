//! What an ICING node is told beside its links: meanings of tags, services, bounds.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_packet::icing::header::NodeId;
use wayleave_runtime::identity::Identity;

use super::parse::{Text, TextValue};
use super::router::{
    Backend, LinkSection, RouterFile, default_answers, default_backend, default_replay, foreign, unplaced,
};
use super::rs::{FileFault, range};
use super::{Fault, Source};
use crate::failure::Failure;

/// Octets of a common packet, which every account lets pass.
const COMMON: u64 = 1_500;

/// `[icing]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IcingSection {
    /// Where services reach this node; needed if there are any.
    pub internal: Option<Spanned<Text<SocketAddr>>>,
    #[serde(default = "default_backend")]
    pub backend: Spanned<Backend>,
    /// Agreements (X25519) a second for packets from each link.
    #[serde(default = "default_answers")]
    pub agreements_per_second: Spanned<u64>,
    /// Paths kept, and other nodes' keys.
    #[serde(default = "default_kept")]
    pub paths: Spanned<u64>,
    #[serde(default = "default_kept")]
    pub peers: Spanned<u64>,
    /// Packets that the replay filter takes in a turn of 32 seconds; with zero, repeated packets pass.
    #[serde(default = "default_replay")]
    pub replay_capacity: Spanned<u64>,
    /// What tags mean; the longest prefix counts.
    #[serde(default)]
    pub tags: Vec<TagSection>,
    /// Where services are.
    #[serde(default)]
    pub services: Vec<ServiceSection>,
    /// Who pays for packets, as tags say.
    #[serde(default)]
    pub accounts: Vec<AccountSection>,
    /// The node's long-term key, which signs reports: a file of `wayleave keys new`.
    pub identity: Option<Spanned<PathBuf>>,
}

/// What the tags with these first bits mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagSection {
    pub prefix: Spanned<Text<TagPrefix>>,
    /// Packets of queues above 0 leave ahead of the others of their burst.
    #[serde(default)]
    pub queue: u8,
    /// The link that packets leave by; if not given, the one that leads to the next node.
    pub link: Option<u16>,
    /// Or the service that packets go to.
    pub service: Option<u16>,
    /// The account that packets are charged to.
    pub account: Option<u16>,
}

/// An account that tags name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountSection {
    pub id: Spanned<u16>,
    /// Octets a second that it may send; without end if zero.
    #[serde(default)]
    pub rate: u64,
    /// Octets that it may send at once; a second's if not given.
    pub depth: Option<u64>,
}

/// A service of this node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSection {
    pub id: u16,
    pub address: Text<SocketAddr>,
}

/// The first bits of a tag, and how many they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagPrefix(pub u32, pub u8);

impl TextValue for TagPrefix {
    const EXPECTED: &'static str = "the first bits of a tag, as \"80000000/1\"";
    fn read(text: &str) -> Option<Self> {
        let (bits, depth) = text.split_once('/')?;
        let is_hex = bits.len() == 8 && bits.bytes().all(|digit| digit.is_ascii_hexdigit());
        Some(Self(is_hex.then(|| u32::from_str_radix(bits, 16).ok())??, depth.parse().ok().filter(|n| *n <= 32)?))
    }
}

impl TextValue for NodeId {
    const EXPECTED: &'static str = "a node's ID, 64 hexadecimal digits, as `wayleave keys forwarding` shows it";
    fn read(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut octets = [0; 32];
        for (place, octet) in octets.iter_mut().enumerate() {
            *octet = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
        }
        Self::from_bytes(octets).filter(Self::is_on_curve)
    }
}

fn default_kept() -> Spanned<u64> {
    unplaced(65_536)
}

impl RouterFile {
    pub(super) fn icing_faults(&self, section: &IcingSection, faults: &mut Vec<Fault>) {
        faults.extend(range(&section.agreements_per_second, 1, 100_000, "a second"));
        faults.extend(range(&section.paths, 1, 1 << 24, "paths"));
        faults.extend(range(&section.peers, 1, 1 << 24, "keys"));
        faults.extend(range(&section.replay_capacity, 0, 1 << 30, "packets"));
        if *self.forwarding.workers.get_ref() != 1 {
            let message = "several threads, expected workers = 1: a node's accounts and reports belong to one thread";
            faults.push(Fault::at(self.forwarding.workers.span(), message));
        }
        for link in &self.link {
            let at = link.span();
            let link = link.get_ref();
            if link.id.is_none() {
                faults.push(Fault::at(at.clone(), "a link without `id`, expected the number that tags name it by"));
            }
            if link.nodes.is_empty() && !link.open {
                faults.push(Fault::at(at, "a link that leads nowhere, expected `nodes`, or `open = true` for senders"));
            }
            if *link.backend.get_ref() == Backend::Ethernet {
                self.ethernet_faults(link, faults);
            } else if let Some(neighbor) = &link.neighbor {
                faults.push(Fault::at(neighbor.span(), "`neighbor` belongs to backend = \"ethernet\""));
            }
            if *link.backend.get_ref() == Backend::AfXdp {
                let message = "af-xdp does not carry ICING, expected udp-gso, udp-batch or ethernet";
                faults.push(Fault::at(link.backend.span(), message));
            }
        }
        self.account_faults(section, faults);
        for tag in &section.tags {
            if tag.link.is_some() && tag.service.is_some() {
                faults.push(Fault::at(tag.prefix.span(), "a link and a service, expected one of them"));
            }
            if let Some(id) = tag.service
                && (section.internal.is_none() || section.services.iter().all(|service| service.id != id))
            {
                let message = format!("service {id} is not there, expected it in `services`, and `internal`");
                faults.push(Fault::at(tag.prefix.span(), message));
            }
        }
        faults.extend(self.interface.first().map(|section| foreign(section.span(), "[[interface]]", "scion")));
    }

    /// A link over Ethernet is told by its device and neighbour, and has no other addresses.
    fn ethernet_faults(&self, link: &LinkSection, faults: &mut Vec<Fault>) {
        let (Some(device), Some(neighbor)) = (&link.device, &link.neighbor) else {
            let message = "ethernet alone, expected `device` and `neighbor` with it";
            return faults.push(Fault::at(link.backend.span(), message));
        };
        if !link.local.span().is_empty() || !link.remote.span().is_empty() {
            let message = "`local` and `remote` with ethernet, expected `device` and `neighbor` alone";
            faults.push(Fault::at(link.backend.span(), message));
        }
        let others = self.link.iter().map(Spanned::get_ref);
        let is_same = |other: &&LinkSection| {
            let there = other.neighbor.as_ref().map(|there| there.get_ref());
            other.device.as_ref() == Some(device) && there == Some(neighbor.get_ref())
        };
        if others.filter(is_same).count() > 1 {
            let message = format!("another link leads to {} too, expected one", neighbor.get_ref().0);
            faults.push(Fault::at(neighbor.span(), message));
        }
    }

    /// The key that signs reports, if it is named, can be read.
    pub(super) fn identity_fault(&self, source: &Source) -> Option<FileFault> {
        let named = self.icing.as_ref()?.get_ref().identity.as_ref()?;
        let path = source.beside(named.get_ref());
        if !path.exists() {
            let fault = Fault::at(named.span(), format!("{} does not exist yet", path.display()));
            return Some(FileFault::Missing(fault.help("`wayleave keys new FILE` makes it")));
        }
        let failure = Failure::from_error(&Identity::load(&path).err()?);
        Some(FileFault::Unusable(crate::key_files::attestation::fault(named.span(), &failure)))
    }

    fn account_faults(&self, section: &IcingSection, faults: &mut Vec<Fault>) {
        for (place, account) in section.accounts.iter().enumerate() {
            let id = account.id.get_ref();
            if section.accounts[..place].iter().any(|other| other.id.get_ref() == id) {
                faults.push(Fault::at(account.id.span(), format!("a second account {id}, expected another number")));
            }
            if account.rate > 0 && account.depth.is_some_and(|depth| depth < COMMON) {
                let message = format!("a depth below {COMMON} lets no common packet pass, expected more octets");
                faults.push(Fault::at(account.id.span(), message));
            }
        }
        for tag in &section.tags {
            if let Some(id) = tag.account
                && section.accounts.iter().all(|account| *account.id.get_ref() != id)
            {
                faults.push(Fault::at(
                    tag.prefix.span(),
                    format!("account {id} is not there, expected it in `accounts`"),
                ));
            }
        }
        if let Some(first) = section.accounts.first()
            && self.forwarding.state.is_none()
        {
            let message = "accounts without `state` in [forwarding]: counters would not survive a restart";
            faults.push(Fault::at(first.id.span(), message).help("name a file"));
        }
    }
}

//! The configuration of an ICING node without its links: meaning of tags, services, accounts, limits.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_dataplane::icing::{MAX_FRESHNESS, MIN_FRESHNESS};
use wayleave_dataplane::replay::MOST_PARTITIONS;
use wayleave_packet::icing::header::NodeId;
use wayleave_runtime::identity::Identity;

use super::{
    Backend, FormatSection, LinkSection, RouterFile, SocketAddresses, default_answers, default_backend, default_replay,
    unplaced,
};
use crate::failure::Failure;
use crate::links::FIRST_OPEN;
use crate::parse::{Text, TextValue};
use crate::rs::{FileFault, range};
use crate::{Fault, Source};

/// Octets of a full-size packet, which every account must let pass.
const COMMON: u64 = 1_500;

/// `[icing]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IcingSection {
    /// The address at which services reach this node; needed with `services`.
    pub internal: Option<Spanned<Text<SocketAddr>>>,
    #[serde(default = "default_backend")]
    pub backend: Spanned<Backend>,
    /// X25519 key agreements per second for packets from each link.
    #[serde(default = "default_answers")]
    pub agreements_per_second: Spanned<u64>,
    /// Cached paths, and cached keys of other nodes.
    #[serde(default = "default_kept")]
    pub paths: Spanned<u64>,
    #[serde(default = "default_kept")]
    pub peers: Spanned<u64>,
    /// How old a packet may be, in seconds.
    #[serde(default = "default_freshness")]
    pub freshness_secs: Spanned<u64>,
    /// Packets that the replay filter holds in a turn of four seconds; with zero, repeated packets pass.
    #[serde(default = "default_replay")]
    pub replay_capacity: Spanned<u64>,
    /// The meaning of tags, by longest prefix.
    #[serde(default)]
    pub tags: Vec<TagSection>,
    #[serde(default)]
    pub services: Vec<ServiceSection>,
    /// The accounts that tags charge.
    #[serde(default)]
    pub accounts: Vec<AccountSection>,
    /// The node's long-term key, which signs reports: a file of `wayleave keys new`.
    pub identity: Option<Spanned<PathBuf>>,
}

/// The meaning of the tags with these first bits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagSection {
    pub prefix: Spanned<Text<TagPrefix>>,
    /// Packets of queues above 0 are sent before the others of their burst.
    #[serde(default)]
    pub queue: u8,
    /// The outgoing link. Default: the one that leads to the next node.
    pub link: Option<u16>,
    /// The service that packets go to, instead of a link.
    pub service: Option<u16>,
    /// The account that packets are charged to.
    pub account: Option<u16>,
}

/// An account that tags charge.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountSection {
    pub id: Spanned<u16>,
    /// Rate in octets per second at each link; unlimited if zero.
    #[serde(default)]
    pub rate: u64,
    /// Burst in octets. Default: one second at the rate.
    pub depth: Option<u64>,
}

/// A service of this node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSection {
    pub id: u16,
    pub address: Text<SocketAddr>,
}

/// The first bits of a tag, and their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagPrefix(pub u32, pub u8);

impl TextValue for TagPrefix {
    const EXPECTED: &'static str = "the first bits of a tag, such as \"80000000/1\"";
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
        for (index, octet) in octets.iter_mut().enumerate() {
            *octet = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Self::from_bytes(octets).filter(Self::is_on_curve)
    }
}

fn default_freshness() -> Spanned<u64> {
    unplaced(MAX_FRESHNESS.into())
}

fn default_kept() -> Spanned<u64> {
    unplaced(65_536)
}

impl FormatSection for IcingSection {
    fn uses(&self) -> &'static [&'static str] {
        &["link", "overlay"]
    }

    fn faults(&self, file: &RouterFile, faults: &mut Vec<Fault>) {
        faults.extend(range(&self.agreements_per_second, 1, 100_000, "a second"));
        faults.extend(range(&self.paths, 1, 1 << 24, "paths"));
        faults.extend(range(&self.peers, 1, 1 << 24, "keys"));
        faults.extend(range(&self.replay_capacity, 0, 1 << 30, "packets"));
        faults.extend(range(&self.freshness_secs, MIN_FRESHNESS.into(), MAX_FRESHNESS.into(), "seconds"));
        for link in &file.link {
            let at = link.span();
            let link = link.get_ref();
            if link.id.is_none() {
                faults.push(Fault::at(at.clone(), "the link has no `id`, expected the number that tags use for it"));
            }
            if link.nodes.is_empty() && !link.open {
                faults.push(Fault::at(at, "the link leads to no node, expected `nodes`, or `open = true` for senders"));
            }
            if *link.backend.get_ref() == Backend::Ethernet {
                ethernet_faults(file, link, faults);
            } else if let Some(neighbor) = &link.neighbor {
                faults.push(Fault::at(neighbor.span(), "`neighbor` belongs to backend = \"ethernet\""));
            }
            if *link.backend.get_ref() == Backend::AfXdp {
                let message = "af-xdp does not carry ICING, expected udp-gso, udp-batch or ethernet";
                faults.push(Fault::at(link.backend.span(), message));
            }
        }
        if let Some(overlay) = &file.overlay {
            let overlay = overlay.get_ref();
            if overlay.ids.is_none() {
                let message = "no `ids` in [overlay], expected the file of the seed of this node's IDs";
                faults.push(Fault { span: None, message: message.to_owned(), help: None });
            }
            for link in file
                .link
                .iter()
                .filter(|link| overlay.open.is_some() && link.get_ref().id.is_some_and(|id| id >= FIRST_OPEN))
            {
                let message = format!("numbers from {FIRST_OPEN} on are of members that `[overlay.open]` serves");
                faults.push(Fault::at(link.span(), message));
            }
            for neighbour in overlay.neighbour.iter().map(toml::Spanned::get_ref) {
                if file.link.iter().any(|link| link.get_ref().id == Some(*neighbour.interface.get_ref())) {
                    let message = "a [[link]] has this number, expected another one";
                    faults.push(Fault::at(neighbour.interface.span(), message));
                }
            }
        }
        self.account_faults(file, faults);
        for tag in &self.tags {
            if tag.link.is_some() && tag.service.is_some() {
                faults.push(Fault::at(tag.prefix.span(), "both a link and a service, expected one of them"));
            }
            if let Some(id) = tag.service
                && (self.internal.is_none() || self.services.iter().all(|service| service.id != id))
            {
                let message = format!("service {id} is not defined, expected it in `services`, and `internal`");
                faults.push(Fault::at(tag.prefix.span(), message));
            }
        }
    }

    fn sockets<'a>(&'a self, file: &'a RouterFile) -> Vec<SocketAddresses<'a>> {
        let internal = self.internal.as_ref();
        let internal =
            internal.map(|local| SocketAddresses { local, remote: None, backend: &self.backend, device: None });
        let neighbours = file.overlay.iter().flat_map(|overlay| &overlay.get_ref().neighbour);
        let open = file.overlay.iter().filter_map(|overlay| Some(&overlay.get_ref().open.as_ref()?.local));
        let locals = neighbours.filter_map(|neighbour| neighbour.get_ref().local.as_ref()).chain(open);
        let of_overlay =
            locals.map(|local| SocketAddresses { local, remote: None, backend: &self.backend, device: None });
        internal.into_iter().chain(of_overlay).chain(file.link_sockets(true)).collect()
    }

    /// What is wrong with the key that signs reports, if one is named.
    fn file_fault(&self, _: &RouterFile, source: &Source) -> Option<FileFault> {
        let named = self.identity.as_ref()?;
        let path = source.resolve(named.get_ref());
        if !path.exists() {
            let fault = Fault::at(named.span(), format!("{} does not exist yet", path.display()));
            return Some(FileFault::Missing(fault.help("`wayleave keys new FILE` makes it")));
        }
        let failure = Failure::from_error(&Identity::load(&path).err()?);
        Some(FileFault::Unusable(Fault::of(named.span(), &failure)))
    }
}

impl IcingSection {
    fn account_faults(&self, file: &RouterFile, faults: &mut Vec<Fault>) {
        for (index, account) in self.accounts.iter().enumerate() {
            let id = account.id.get_ref();
            if self.accounts[..index].iter().any(|other| other.id.get_ref() == id) {
                faults.push(Fault::at(
                    account.id.span(),
                    format!("account {id} exists already, expected another number"),
                ));
            }
            if account.rate > 0 && account.depth.is_some_and(|depth| depth < COMMON) {
                let message = format!("a depth below {COMMON} drops every full-size packet, expected more octets");
                faults.push(Fault::at(account.id.span(), message));
            }
        }
        let payers = self.accounts.iter().filter(|account| account.rate > 0).count() * file.link.len();
        if let Some(first) = self.accounts.iter().find(|account| account.rate > 0)
            && payers > MOST_PARTITIONS
        {
            let message =
                format!("{payers} payers (accounts with a rate, times links), expected {MOST_PARTITIONS} at most");
            faults.push(Fault::at(first.id.span(), message));
        }
        for tag in &self.tags {
            if let Some(id) = tag.account
                && self.accounts.iter().all(|account| *account.id.get_ref() != id)
            {
                faults.push(Fault::at(
                    tag.prefix.span(),
                    format!("account {id} is not defined, expected it in `accounts`"),
                ));
            }
        }
        if let Some(first) = self.accounts.first()
            && file.forwarding.state.is_none()
        {
            let message = "accounts without `state` in [forwarding]: counters would not survive a restart";
            faults.push(Fault::at(first.id.span(), message).help("name a file"));
        }
    }
}

/// A link over Ethernet has a device and a neighbour, and no other addresses.
fn ethernet_faults(file: &RouterFile, link: &LinkSection, faults: &mut Vec<Fault>) {
    if *file.forwarding.workers.get_ref() != 1 {
        let message = "ethernet with several threads, expected workers = 1: one thread has the device's packets";
        faults.push(Fault::at(link.backend.span(), message));
    }
    let (Some(device), Some(neighbor)) = (&link.device, &link.neighbor) else {
        let message = "backend ethernet is incomplete, expected `device` and `neighbor` with it";
        return faults.push(Fault::at(link.backend.span(), message));
    };
    if !link.local.span().is_empty() || !link.remote.span().is_empty() {
        let message = "`local` and `remote` with ethernet, expected `device` and `neighbor` alone";
        faults.push(Fault::at(link.backend.span(), message));
    }
    let others = file.link.iter().map(Spanned::get_ref);
    let is_same = |other: &&LinkSection| {
        let there = other.neighbor.as_ref().map(|there| there.get_ref());
        other.device.as_ref() == Some(device) && there == Some(neighbor.get_ref())
    };
    if others.filter(is_same).count() > 1 {
        let message = format!("another link leads to {} as well, expected one", neighbor.get_ref().0);
        faults.push(Fault::at(neighbor.span(), message));
    }
}

/// The part of `wayleave init router` for this format.
pub(super) const TEMPLATE: &str = "# For format = \"icing\", instead of [scion] and [[interface]]:\n\
     #[icing]\n\
     # The meaning of tags by their first bits: over the link to the next node; over the link given; to a service.\n\
     #tags = [{ prefix = \"40000000/2\" }, { prefix = \"80000000/2\", queue = 1, link = 2 },\n\
     #        { prefix = \"c0000000/2\", service = 1 }]\n\
     # The address at which services reach this node, and the services' addresses.\n\
     #internal = \"192.0.2.1:49253\"\n\
     #services = [{ id = 1, address = \"192.0.2.9:7000\" }]\n\
     # Accounts, charged by tags with `account = 1`: octets per second and burst at each link; without `rate` packets are only\n\
     # counted.\n\
     # Accounts need `state` in [forwarding].\n\
     #accounts = [{ id = 1, rate = 12500000, depth = 1250000 }]\n\
     # The node's long-term key, which signs reports. Made by: wayleave keys new node.identity\n\
     #identity = \"node.identity\"\n\
     # X25519 key agreements per second for packets of each link; cached paths and keys of other nodes.\n\
     #agreements_per_second = 100\n\
     #paths = 65536\n\
     #peers = 65536\n\
     # Seconds that a packet may be old, 2 to 5; it may be one second ahead.\n\
     #freshness_secs = 5\n\
     # Packets of four seconds that the replay filter has room for, 12 octets each; 0: repeated packets pass.\n\
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
     \n";

//! ICING: packets in UDP over links; what each tag means says where they go.

use std::net::SocketAddr;

use toml::Spanned;
use wayleave_core::Now;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Key128;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::icing::{
    Account, Action, Config, ConfigError, Link, Meaning, Output, Policy, Router, TagRule, Total,
};
use wayleave_dataplane::platypus::account::Total as Wide;
use wayleave_packet::icing::header::Version;
use wayleave_packet::icing::mint::TAG_EPOCH;
use wayleave_runtime::identity::Identity;
use wayleave_runtime::packets::Burst;

use super::accounts::{Account as Journalled, Payer};
use super::worker::{Attached, Out, Tally, Way};
use crate::config::icing::{AccountSection, IcingSection, TagSection};
use crate::config::router::RouterFile;
use crate::config::{Fault, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding::{ForwardingKeys, icing_master, icing_secret};
use crate::key_files::signing_key;

/// Octets of the longest packet.
const LONGEST: u64 = 65_535;

/// The node's router.
pub struct Engine {
    pub router: Router,
    table: Table,
    /// The port of each link, and the one of services.
    ports: Vec<Option<usize>>,
    internal: Option<usize>,
}

/// Where links and services are.
#[derive(Clone, Default)]
pub struct Table {
    /// Number and other end, in the order of the configuration.
    links: Vec<(u16, SocketAddr)>,
    services: Vec<(u16, SocketAddr)>,
}

impl Table {
    pub fn new(file: &RouterFile) -> Self {
        let links = file.link.iter().map(Spanned::get_ref);
        let services = file.icing.iter().flat_map(|section| &section.get_ref().services);
        Self {
            links: links.map(|link| (link.id.unwrap_or_default(), link.remote.get_ref().0)).collect(),
            services: services.map(|service| (service.id, service.address.0)).collect(),
        }
    }
}

/// What the file and the live keys say. A tag master counts from the epoch on that its key begins in.
pub fn policy(file: &RouterFile, keys: &ForwardingKeys, now: u64, ahead: u64) -> Policy {
    let live = keys.live(now, ahead);
    let link = |section: &Spanned<crate::config::router::LinkSection>| {
        let section = section.get_ref();
        let nodes = section.nodes.iter().map(|node| node.0).collect();
        Link { id: section.id.unwrap_or_default(), nodes, is_open: section.open }
    };
    let sections = file.icing.iter().map(Spanned::get_ref);
    let accounts: Vec<Account> = sections.clone().flat_map(|section| &section.accounts).map(account).collect();
    let tags = sections.flat_map(|section| &section.tags);
    Policy {
        secrets: live.iter().map(|(_, key)| icing_secret(key)).collect(),
        masters: live.iter().map(|(from, key)| ((*from >> TAG_EPOCH) as u32, icing_master(key))).collect(),
        links: file.link.iter().map(link).collect(),
        rules: tags.map(|tag| rule(tag, &accounts)).collect(),
        accounts,
    }
}

/// `depth` octets at once are a second's, or the longest packet's, if the file does not say.
fn account(section: &AccountSection) -> Account {
    let rate = section.rate;
    Account { id: *section.id.get_ref(), rate, depth: section.depth.unwrap_or(rate.max(LONGEST)) }
}

fn rule(tag: &TagSection, accounts: &[Account]) -> TagRule {
    let output = match (tag.link, tag.service) {
        (Some(link), _) => Output::Link(link),
        (None, Some(service)) => Output::Service(service),
        (None, None) => Output::Next,
    };
    let prefix = tag.prefix.get_ref().0;
    let place = |id| accounts.iter().position(|account| account.id == id);
    // The configuration was checked: it is there, and the number of accounts has 16 bits.
    let account = tag.account.and_then(place).map(|place| place as u16);
    TagRule { bits: prefix.0, depth: prefix.1, meaning: Meaning { queue: tag.queue, output, account } }
}

/// The key that signs reports, if the file names one.
pub fn identity(file: &RouterFile, source: &Source) -> Result<Option<SigningKey>, Failure> {
    let Some(named) = file.icing.as_ref().and_then(|section| section.get_ref().identity.as_ref()) else {
        return Ok(None);
    };
    let loaded = Identity::load(&source.resolve(named.get_ref()));
    let key = loaded.map(|identity| signing_key(&identity)).map_err(|error| Failure::from_error(&error));
    key.map(Some).map_err(|failure| source.failure(Fault::of(named.span(), &failure)))
}

/// Whether a router would take the policy.
pub fn tried(policy: &Policy) -> Result<(), Failure> {
    let zero = Key128::new([0; 16]);
    let least = Config {
        version: Version::Standard,
        policy: policy.clone(),
        agreements_per_second: 1,
        paths: 1,
        peers: 1,
        replay_capacity: 0,
        replay_key: zero,
        seed: 0,
    };
    Router::new(least, CpuKernel::best()).map(drop).map_err(|error| Failure::new(error.to_string()))
}

fn config(section: &IcingSection, policy: Policy) -> Outcome<Config> {
    let mut random = [0; 24];
    getrandom::fill(&mut random).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    let (key, seed) = random.split_at(16);
    let size = |number: &Spanned<u64>| usize::try_from(*number.get_ref()).unwrap_or(usize::MAX);
    Ok(Config {
        version: Version::Standard,
        policy,
        agreements_per_second: u32::try_from(*section.agreements_per_second.get_ref()).unwrap_or(u32::MAX),
        paths: size(&section.paths),
        peers: size(&section.peers),
        replay_capacity: size(&section.replay_capacity),
        replay_key: Key128::new(key.try_into().expect("sixteen octets")),
        seed: u64::from_be_bytes(seed.try_into().expect("eight octets")),
    })
}

impl Engine {
    pub fn new(file: &RouterFile, policy: Policy, table: Table, ports: &[Attached]) -> Outcome<Self> {
        let Some(section) = &file.icing else { return Err(Failure::new("no section for the format").into()) };
        let router = Router::new(config(section.get_ref(), policy)?, CpuKernel::best());
        let router = router.map_err(|error| Failure::new(error.to_string()))?;
        let mut engine = Self { router, table: Table::default(), ports: Vec::new(), internal: None };
        engine.take(table, ports);
        Ok(engine)
    }

    /// Takes another policy between two bursts; counters, filter, and paths that it still knows stay.
    pub fn reload(&mut self, policy: Policy, table: Table, ports: &[Attached]) -> Result<(), ConfigError> {
        self.router.set_policy(policy)?;
        self.take(table, ports);
        Ok(())
    }

    /// Takes over what the journal holds.
    pub fn restore(&mut self, journal: &[Journalled]) {
        let narrow = |count| u64::try_from(count).unwrap_or(u64::MAX);
        self.router.restore(journal.iter().filter_map(|(_, payer, total)| match payer {
            Payer::Icing(id) => Some((*id, Total { packets: narrow(total.packets), octets: narrow(total.octets) })),
            Payer::Platypus(_) => None,
        }));
    }

    /// Totals that are not written down yet.
    pub fn journal(&mut self) -> Vec<(Payer, Wide)> {
        let wide = |total: Total| Wide { packets: total.packets.into(), octets: total.octets.into() };
        self.router.journal().into_iter().map(|(id, total)| (Payer::Icing(id), wide(total))).collect()
    }

    fn take(&mut self, table: Table, ports: &[Attached]) {
        let at = |way| ports.iter().position(|attached| attached.way == way);
        self.ports = (0..table.links.len()).map(|number| at(Way::Link(number))).collect();
        self.internal = at(Way::Internal);
        self.table = table;
    }

    /// As of the SCION engine.
    pub fn process(
        &mut self,
        burst: &mut Burst,
        first: usize,
        (_, way): (usize, Way),
        now: Now,
        out: &mut Out,
        tally: &mut Tally,
    ) {
        let mut count = 0;
        let mut numbers = [0; BURST];
        let actions = {
            let mut frames: [Frame<'_>; BURST] =
                std::array::from_fn(|_| Frame { octets: &mut [], ingress: Ingress::Internal });
            let mut last = None;
            for (number, (from, octets)) in burst.packets_mut(first).take(BURST).enumerate() {
                let link = match last {
                    Some((same, link)) if std::ptr::eq(same, from) => link,
                    _ => self.link(way, from),
                };
                last = Some((from, link));
                let Some(link) = link else {
                    tally.strangers += 1;
                    continue;
                };
                numbers[count] = first + number;
                frames[count] = Frame { octets, ingress: Ingress::External(link) };
                count += 1;
            }
            self.router.process(&mut frames[..count], now)
        };
        for (number, action) in numbers.into_iter().zip(actions).take(count) {
            let (next, queue) = match action {
                Action::Drop(_) => continue,
                Action::Forward { link, queue } => (self.behind(link), queue),
                Action::Service { service, queue, .. } | Action::Deliver { service, queue } => {
                    (self.service(service), queue)
                }
            };
            match next {
                None => tally.unreachable += 1,
                Some((port, to)) if queue > 0 => out.urgent(port, number, to),
                Some((port, to)) => out.data(port, number, &to),
            }
        }
    }

    /// The number of the link that a packet came by, if its other end sent it.
    fn link(&self, way: Way, from: &SocketAddr) -> Option<u16> {
        let Way::Link(number) = way else { return None };
        self.table.links.get(number).filter(|(_, remote)| remote == from).map(|(id, _)| *id)
    }

    fn behind(&self, link: u16) -> Option<(usize, SocketAddr)> {
        let place = self.table.links.iter().position(|(id, _)| *id == link)?;
        Some((self.ports[place]?, self.table.links[place].1))
    }

    fn service(&self, service: u16) -> Option<(usize, SocketAddr)> {
        let (_, address) = self.table.services.iter().find(|(id, _)| *id == service)?;
        Some((self.internal?, *address))
    }
}

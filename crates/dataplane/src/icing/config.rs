//! An ICING router's configuration: its keys, its neighbours, and what tags mean.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use wayleave_core::UnixTime;
use wayleave_crypto::secret::Key128;
use wayleave_packet::icing::header::{NodeId, Tag, Version};
use wayleave_packet::icing::mint::{MAX_DEPTH, NodeSecret, TagMaster};

use super::agreed::AgreedKeys;
use crate::replay::MOST_PARTITIONS;

/// Keys of a node that are in use at a time: of the previous, current and next epoch.
pub const MAX_KEYS: usize = 3;

/// What a router is set up with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The standard version, or the paper's for the laboratory.
    pub version: Version,
    pub policy: Policy,
    /// The rate of agreements (X25519) for packets of one link that name nodes of which the policy has no key. As many may be computed at once, but never fewer than one
    /// packet may need.
    pub agreements_per_second: u32,
    /// Paths that are kept.
    pub paths: usize,
    /// Keys shared with other nodes that are kept.
    pub peers: usize,
    /// Seconds by which a packet's time may lie behind the clock: 2 to 5; other numbers are taken as the nearer of these.
    pub freshness: u32,
    /// Packets that the replay filter takes in a turn of four seconds. With zero there is no filter, and repeated packets pass.
    pub replay_capacity: usize,
    /// When the router starts: it refuses what may have been accepted before.
    pub started: UnixTime,
    /// Random, and known to this router alone.
    pub replay_key: Key128,
    /// Random: senders cannot foresee which paths share a set of the caches.
    pub seed: u64,
}

/// The part of a configuration that may change between two bursts.
#[derive(Clone, Debug)]
pub struct Policy {
    /// At most [`MAX_KEYS`]: a packet may name the node by any of them.
    pub secrets: Vec<NodeSecret>,
    /// Masters of tag keys, each with the epoch from which on it is used.
    pub masters: Vec<(u32, TagMaster)>,
    pub links: Vec<Link>,
    /// What tags mean; of several rules for a tag, that with the longest prefix applies.
    pub rules: Vec<TagRule>,
    /// Rules name accounts by their index here.
    pub accounts: Vec<Account>,
    /// Keys shared with nodes that are known. Those with others are agreed on when a packet comes, within the rate.
    pub agreed: Arc<AgreedKeys>,
}

/// A link to neighbours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The number that [`crate::frame::Ingress::External`] has.
    pub id: u16,
    /// The nodes at its other end, under each of their keys in use.
    pub nodes: Vec<NodeId>,
    /// Packets of nodes that are not neighbours may come in: there are senders at its other end.
    pub is_open: bool,
}

/// What the tags with these first bits mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagRule {
    /// The first bits of the tags; the others are zero.
    pub bits: u32,
    /// The number of first bits.
    pub depth: u8,
    pub meaning: Meaning,
}

impl TagRule {
    pub(super) fn covers(&self, tag: Tag) -> bool {
        self.depth == 0 || (tag.0 ^ self.bits).checked_shr(u32::from(MAX_DEPTH.saturating_sub(self.depth))) == Some(0)
    }
}

/// What a tag selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meaning {
    pub queue: u8,
    pub output: Output,
    /// The account that packets are charged to, by its index in the policy.
    pub account: Option<u16>,
}

/// Where a tag sends packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// To the next node over the link that leads to it; at the receiver, to service 0.
    Next,
    /// To the next node over this link, whoever is at its other end.
    Link(u16),
    /// Through this service of the node, and then to the next node.
    Service(u16),
}

/// How much an account may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account {
    /// Identifies the account, and its total, from policy to policy.
    pub id: u16,
    /// Octets a second that each link may charge; zero for no limit.
    pub rate: u64,
    /// Octets that may come by each link at once.
    pub depth: u64,
}

/// Why a configuration is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// None, or more than [`MAX_KEYS`].
    #[error("{0} node keys, not one to three")]
    Keys(usize),
    /// Link 0, or two links of one number.
    #[error("link number {0} is zero or configured twice")]
    Link(u16),
    /// A neighbour is at two links, or is this node itself.
    #[error("{0:?} at link {1} is this node itself, or at another link too")]
    Node(NodeId, u16),
    /// Bits beyond the depth, or two rules for the same bits.
    #[error("tag rule {0:#x}/{1} has bits beyond its length, or there are two")]
    Rule(u32, u8),
    /// A rule names a link or an account that is not configured.
    #[error("tag rule {0:#x}/{1} names a link or an account that is not configured")]
    Missing(u32, u8),
    /// Two accounts of one number.
    #[error("account {0} is configured twice")]
    Account(u16),
    /// Accounts with a rate, at every link.
    #[error("{0} payers (accounts with a rate, times links), more than {MOST_PARTITIONS}")]
    Payers(usize),
}

impl Policy {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_KEYS).contains(&self.secrets.len()) {
            return Err(ConfigError::Keys(self.secrets.len()));
        }
        let mut nodes: HashSet<NodeId> = self.secrets.iter().map(NodeSecret::id).collect();
        let mut numbers = HashSet::new();
        for link in &self.links {
            if link.id == 0 || !numbers.insert(link.id) {
                return Err(ConfigError::Link(link.id));
            }
            for node in &link.nodes {
                if !nodes.insert(*node) {
                    return Err(ConfigError::Node(*node, link.id));
                }
            }
        }
        for (index, account) in self.accounts.iter().enumerate() {
            if self.accounts[..index].iter().any(|other| other.id == account.id) {
                return Err(ConfigError::Account(account.id));
            }
        }
        let payers = self.accounts.iter().filter(|account| account.rate > 0).count() * self.links.len();
        if payers > MOST_PARTITIONS {
            return Err(ConfigError::Payers(payers));
        }
        for (index, rule) in self.rules.iter().enumerate() {
            self.check_rule(rule, &self.rules[..index])?;
        }
        Ok(())
    }

    fn check_rule(&self, rule: &TagRule, before: &[TagRule]) -> Result<(), ConfigError> {
        let beyond = u32::MAX.checked_shr(rule.depth.into()).unwrap_or(0);
        let is_repeated = before.iter().any(|other| (other.bits, other.depth) == (rule.bits, rule.depth));
        if rule.depth > MAX_DEPTH || rule.bits & beyond != 0 || is_repeated {
            return Err(ConfigError::Rule(rule.bits, rule.depth));
        }
        let has_link = match rule.meaning.output {
            Output::Link(id) => self.links.iter().any(|link| link.id == id),
            Output::Next | Output::Service(_) => true,
        };
        let has_account = rule.meaning.account.is_none_or(|account| usize::from(account) < self.accounts.len());
        if has_link && has_account { Ok(()) } else { Err(ConfigError::Missing(rule.bits, rule.depth)) }
    }

    /// Whether every path is decided as by `other`: the two differ in keys that were agreed on at most.
    pub(super) fn decides_like(&self, other: &Self) -> bool {
        let Self { secrets, masters, links, rules, accounts, agreed: _ } = self;
        let ids = |secrets: &[NodeSecret]| secrets.iter().map(NodeSecret::id).collect::<Vec<_>>();
        let is_same = |(one, two): (&(u32, TagMaster), &(u32, TagMaster))| one.0 == two.0 && one.1.key() == two.1.key();
        ids(secrets) == ids(&other.secrets)
            && masters.len() == other.masters.len()
            && masters.iter().zip(&other.masters).all(is_same)
            && (links, rules, accounts) == (&other.links, &other.rules, &other.accounts)
    }

    /// The secret of the key by which this node is called `id`.
    pub(super) fn secret(&self, id: &NodeId) -> Option<&NodeSecret> {
        self.secrets.iter().find(|secret| secret.id() == *id)
    }

    /// The master of the tag keys of `epoch`.
    pub(super) fn master(&self, epoch: u32) -> Option<&TagMaster> {
        let of_epoch = self.masters.iter().filter(|(from, _)| *from <= epoch);
        of_epoch.max_by_key(|(from, _)| *from).map(|(_, master)| master)
    }

    /// What `tag` means.
    pub(super) fn meaning(&self, tag: Tag) -> Option<&Meaning> {
        let covering = self.rules.iter().filter(|rule| rule.covers(tag));
        covering.max_by_key(|rule| rule.depth).map(|rule| &rule.meaning)
    }
}

/// A policy, and the link of each node: a forwarder may have thousands.
#[derive(Debug)]
pub(super) struct Indexed {
    policy: Policy,
    links: HashMap<NodeId, u16>,
    open: Vec<u16>,
}

impl Deref for Indexed {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

impl Indexed {
    pub(super) fn new(policy: Policy) -> Self {
        let of = |link: &Link| link.nodes.iter().map(|node| (*node, link.id)).collect::<Vec<_>>();
        let links = policy.links.iter().flat_map(of).collect();
        let open = policy.links.iter().filter(|link| link.is_open).map(|link| link.id).collect();
        Self { policy, links, open }
    }

    /// Takes the keys that were agreed on from a policy that decides like this one.
    pub(super) fn set_agreed(&mut self, agreed: Arc<AgreedKeys>) {
        self.policy.agreed = agreed;
    }

    /// The link that leads to `node`.
    pub(super) fn link_to(&self, node: &NodeId) -> Option<u16> {
        self.links.get(node).copied()
    }

    /// Whether packets of nodes that are no neighbours may come in by a link.
    pub(super) fn is_open(&self, link: u16) -> bool {
        self.open.contains(&link)
    }
}

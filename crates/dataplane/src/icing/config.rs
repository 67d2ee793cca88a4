//! How a router is set up: keys, neighbours, what tags mean.

use wayleave_crypto::secret::Key128;
use wayleave_packet::icing::header::{NodeId, Tag, Version};
use wayleave_packet::icing::mint::{MAX_DEPTH, NodeSecret, TagMaster};

/// Keys of a node that are in use at a time: of the previous, current and next epoch.
pub const MAX_KEYS: usize = 3;

/// How a router is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Standard, or the paper's for the laboratory.
    pub version: Version,
    /// What may change while packets flow.
    pub policy: Policy,
    /// Agreements (X25519) a second for packets from one neighbour, and as many at once, or what one packet may need.
    pub agreements_per_second: u32,
    /// Paths kept.
    pub paths: usize,
    /// Other nodes' keys kept.
    pub peers: usize,
    /// Packets that one replay filter takes in a turn of 32 seconds; with zero, repeated packets pass.
    pub replay_capacity: usize,
    /// Key of the replay filter: random, of this router alone.
    pub replay_key: Key128,
    /// Random: makes the tables unforeseeable.
    pub seed: u64,
}

/// What may change while packets flow.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The node's secrets, at most [`MAX_KEYS`]: a packet may name the node by any of them.
    pub secrets: Vec<NodeSecret>,
    /// Masters of tag keys, each from an epoch on.
    pub masters: Vec<(u32, TagMaster)>,
    /// Neighbours.
    pub links: Vec<Link>,
    /// What tags mean; the longest prefix counts.
    pub rules: Vec<TagRule>,
    /// Accounts; meanings name them by their place.
    pub accounts: Vec<Account>,
}

/// A link to neighbours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its number, which [`crate::frame::Ingress::External`] has too.
    pub id: u16,
    /// The nodes behind it, under each of their keys in use.
    pub nodes: Vec<NodeId>,
    /// Packets of other nodes may come in: senders are behind it.
    pub is_open: bool,
}

/// What the tags with these first bits mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagRule {
    /// The bits, from the left; the others are zero.
    pub bits: u32,
    /// How many.
    pub depth: u8,
    /// What is done.
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
    /// The queue.
    pub queue: u8,
    /// Where to.
    pub output: Output,
    /// The account that packets are charged to, by its place in the policy.
    pub account: Option<u16>,
}

/// Where a tag sends packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// To the next node over the link that leads to it; at the receiver, to service 0.
    Next,
    /// To the next node over this link, whatever is known of who is behind it.
    Link(u16),
    /// Through this service of the node, and then to the next node.
    Service(u16),
}

/// How much an account may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account {
    /// Its number, under which its total stays from policy to policy.
    pub id: u16,
    /// Octets a second; without end if zero.
    pub rate: u64,
    /// Octets at once.
    pub depth: u64,
}

/// Why a router cannot be set up. Who wrote the configuration erred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// None, or more than [`MAX_KEYS`].
    #[error("{0} node keys")]
    Keys(usize),
    /// Link 0, or two links of one number.
    #[error("link {0} is zero or occurs twice")]
    Link(u16),
    /// One node is behind two links, or is this one.
    #[error("{0:?} is behind link {1} and elsewhere")]
    Node(NodeId, u16),
    /// Bits beyond the depth, or two rules for the same bits.
    #[error("tag rule {0:#x}/{1}")]
    Rule(u32, u8),
    /// A rule names a link or account that is not there.
    #[error("tag rule {0:#x}/{1} names what is not there")]
    Missing(u32, u8),
    /// Two accounts of one number.
    #[error("account {0} occurs twice")]
    Account(u16),
}

impl Policy {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_KEYS).contains(&self.secrets.len()) {
            return Err(ConfigError::Keys(self.secrets.len()));
        }
        let mut nodes: Vec<NodeId> = self.secrets.iter().map(NodeSecret::id).collect();
        for (place, link) in self.links.iter().enumerate() {
            if link.id == 0 || self.links[..place].iter().any(|other| other.id == link.id) {
                return Err(ConfigError::Link(link.id));
            }
            for node in &link.nodes {
                if nodes.contains(node) {
                    return Err(ConfigError::Node(*node, link.id));
                }
                nodes.push(*node);
            }
        }
        for (place, account) in self.accounts.iter().enumerate() {
            if self.accounts[..place].iter().any(|other| other.id == account.id) {
                return Err(ConfigError::Account(account.id));
            }
        }
        for (place, rule) in self.rules.iter().enumerate() {
            self.check_rule(rule, &self.rules[..place])?;
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

    /// The secret under which this node is `id`.
    pub(super) fn secret(&self, id: &NodeId) -> Option<&NodeSecret> {
        self.secrets.iter().find(|secret| secret.id() == *id)
    }

    /// The master of the tag keys of `epoch`.
    pub(super) fn master(&self, epoch: u32) -> Option<&TagMaster> {
        let of_epoch = self.masters.iter().filter(|(from, _)| *from <= epoch);
        of_epoch.max_by_key(|(from, _)| *from).map(|(_, master)| master)
    }

    /// The link that leads to `node`.
    pub(super) fn link_to(&self, node: &NodeId) -> Option<u16> {
        self.links.iter().find(|link| link.nodes.contains(node)).map(|link| link.id)
    }

    /// What `tag` means.
    pub(super) fn meaning(&self, tag: Tag) -> Option<&Meaning> {
        let covering = self.rules.iter().filter(|rule| rule.covers(tag));
        covering.max_by_key(|rule| rule.depth).map(|rule| &rule.meaning)
    }
}

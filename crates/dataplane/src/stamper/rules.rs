//! Which packets are stamped how: tables of destinations, chosen by user and by socket mark.

use std::collections::HashMap;
use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};

use super::ConfigError;

/// What is done with the packets of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RuleAction {
    /// They are not stamped.
    Pass,
    /// They take this route, by its index in the configuration.
    Take(u16),
    /// They take this route or none: what cannot be stamped is dropped.
    Require(u16),
    /// They are dropped: their rule requires a route, and has none of their family.
    Drop,
}

impl RuleAction {
    /// The route that packets take.
    #[must_use]
    pub fn route(self) -> Option<u16> {
        match self {
            Self::Pass | Self::Drop => None,
            Self::Take(route) | Self::Require(route) => Some(route),
        }
    }

    /// Whether what cannot be stamped is dropped.
    #[must_use]
    pub fn is_required(self) -> bool {
        matches!(self, Self::Require(_) | Self::Drop)
    }
}

/// Packets to a network, of anybody or of one user, with any socket mark or with one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Final destinations.
    pub to: Prefix,
    /// Number of the user whose socket sends.
    pub user: Option<u32>,
    /// The socket's mark (`SO_MARK`); sockets have 0 unless somebody set it.
    pub mark: Option<u32>,
    pub action: RuleAction,
}

/// The packets of one user or socket mark (or of both, or of anybody) for which there are rules: a host hands them to its stamper
/// by an interface of their own, since a packet does not say who sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SenderClass {
    pub user: Option<u32>,
    pub mark: Option<u32>,
    /// Their destinations, each once.
    pub to: Vec<Prefix>,
}

impl SenderClass {
    /// The classes of `rules`. A host that looks for a packet in one after the other, and in each for its destination, hands it
    /// over by the class whose rule decides ([`Rules::find`]).
    #[must_use]
    pub fn of(rules: &[Rule]) -> Vec<Self> {
        let mut classes: Vec<Self> = Vec::new();
        for rule in rules {
            let same = |class: &&mut Self| (class.user, class.mark) == (rule.user, rule.mark);
            match classes.iter_mut().find(same) {
                Some(class) if class.to.contains(&rule.to) => {}
                Some(class) => class.to.push(rule.to),
                None => classes.push(Self { user: rule.user, mark: rule.mark, to: vec![rule.to] }),
            }
        }
        classes.sort_by_key(Self::rank);
        classes
    }

    /// Classes of a lower rank come first; no packet belongs to two of one rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        match (self.user, self.mark) {
            (Some(_), Some(_)) => 0,
            (None, Some(_)) => 1,
            (Some(_), None) => 2,
            (None, None) => 3,
        }
    }
}

/// Number of ranks of [`SenderClass`].
pub const RANKS: u32 = 4;

/// User and socket mark.
type Sender = (Option<u32>, Option<u32>);

/// Rules of one user and mark, as a routing table of its own.
#[derive(Clone, Debug, Default)]
struct RuleTable {
    rules: HashMap<Prefix, RuleAction>,
    /// Prefix lengths that occur, longest first, for each family.
    lengths: [Vec<u8>; 2],
}

impl RuleTable {
    /// The rules that a destination has, the longest prefix first.
    fn of(&self, destination: IpAddr) -> impl Iterator<Item = RuleAction> {
        let lengths = &self.lengths[usize::from(destination.is_ipv6())];
        let prefix = move |&length: &u8| Prefix::truncated(destination, length).ok();
        lengths.iter().filter_map(prefix).filter_map(|prefix| self.rules.get(&prefix).copied())
    }
}

/// All rules. The rule that decides is found as in a host's policy routing: rules of this mark and user come first, then
/// those of this mark, of this user, and of everybody. Within each the longest prefix decides; if none fits, the next are
/// tried.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    tables: HashMap<Sender, RuleTable>,
}

impl Rules {
    /// A table of the rules in `list`, which may be in any order.
    ///
    /// # Errors
    /// Two rules for the same packets.
    pub fn new(list: &[Rule]) -> Result<Self, ConfigError> {
        let mut rules = Self::default();
        for (index, rule) in list.iter().enumerate() {
            let table = rules.tables.entry((rule.user, rule.mark)).or_default();
            if table.rules.insert(rule.to, rule.action).is_some() {
                return Err(ConfigError::Twice(index));
            }
            let lengths = &mut table.lengths[usize::from(rule.to.afi() == Afi::Ipv6)];
            if !lengths.contains(&rule.to.len()) {
                lengths.push(rule.to.len());
                lengths.sort_unstable_by(|a, b| b.cmp(a));
            }
        }
        Ok(rules)
    }

    /// What is done with a packet to `destination`; nothing without a rule.
    #[must_use]
    pub fn find(&self, destination: IpAddr, user: Option<u32>, mark: u32) -> RuleAction {
        self.all(destination, user, mark).next().unwrap_or(RuleAction::Pass)
    }

    /// The rules that a packet to `destination` has: the one that decides, and those which do where it cannot.
    pub(super) fn all(&self, destination: IpAddr, user: Option<u32>, mark: u32) -> impl Iterator<Item = RuleAction> {
        let senders = [(user, Some(mark)), (None, Some(mark)), (user, None), (None, None)];
        let tables = senders.into_iter().filter_map(|sender| self.tables.get(&sender));
        tables.flat_map(move |table| table.of(destination))
    }
}

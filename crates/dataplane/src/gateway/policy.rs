//! Which paths a user allows, and which of them comes first.

use std::collections::BTreeSet;

use wayleave_core::IdentityKey;
use wayleave_packet::Path;

/// Which of the allowed paths comes first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Order {
    /// That of the fewest nodes.
    #[default]
    Shortest,
    /// That of the most.
    Longest,
}

/// A path policy. Nodes are those between the two gateways.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PathPolicy {
    /// The name's first label.
    pub name: String,
    pub order: Order,
    /// Paths over one of these nodes are not used.
    pub avoid: Vec<IdentityKey>,
    /// Only paths over all of these nodes are used.
    pub require: Vec<IdentityKey>,
    /// Only the path over exactly these nodes is used, in this order.
    pub pin: Option<Vec<IdentityKey>>,
    /// What the user decided while the gateway ran.
    pub choices: Choices,
}

/// What a user decides while the gateway runs. It restricts a policy further, and never allows what the policy does not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choices {
    /// Paths over one of these nodes are not used.
    pub avoid: Vec<IdentityKey>,
    /// To a gateway only the path over exactly these nodes between it and us, in this order.
    pub pins: Vec<(IdentityKey, Vec<IdentityKey>)>,
}

impl Choices {
    /// Whether a path over these nodes, both gateways among them, is left.
    #[must_use]
    pub fn allow(&self, nodes: &[IdentityKey]) -> bool {
        let between = between(nodes);
        !between.iter().any(|node| self.avoid.contains(node))
            && self.pins.iter().all(|(to, over)| nodes.last() != Some(to) || over == between)
    }
}

impl PathPolicy {
    /// Whether a path over these nodes, both gateways among them, may be used.
    #[must_use]
    pub fn allows(&self, nodes: &[IdentityKey]) -> bool {
        self.allows_by_itself(nodes) && self.choices.allow(nodes)
    }

    /// The same, whatever the user decided since.
    pub(super) fn allows_by_itself(&self, nodes: &[IdentityKey]) -> bool {
        let between = between(nodes);
        !between.iter().any(|node| self.avoid.contains(node))
            && self.require.iter().all(|node| between.contains(node))
            && self.pin.as_ref().is_none_or(|pin| pin == between)
    }

    /// Smaller for a path that comes first.
    #[must_use]
    pub fn rank(&self, nodes: &[IdentityKey]) -> usize {
        match self.order {
            Order::Shortest => nodes.len(),
            Order::Longest => usize::MAX - nodes.len(),
        }
    }
}

/// The nodes between sender and receiver.
pub(super) fn between(nodes: &[IdentityKey]) -> &[IdentityKey] {
    nodes.get(1..nodes.len().saturating_sub(1)).unwrap_or(&[])
}

/// Whether all nodes between sender and receiver are among `known`.
pub(super) fn are_known(nodes: &[IdentityKey], known: &BTreeSet<IdentityKey>) -> bool {
    between(nodes).iter().all(|node| known.contains(node))
}

/// The identities of the nodes of a path of ICING.
pub(super) fn identities(path: &Path) -> Vec<IdentityKey> {
    path.nodes().map(|(identity, _, _)| identity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_look_at_the_nodes_between_the_gateways() {
        let nodes = |list: &[u8]| list.iter().map(|node| IdentityKey([*node; 32])).collect::<Vec<_>>();
        let path = nodes(&[1, 5, 6, 9]);
        let policy = PathPolicy::default();
        assert!(policy.allows(&path));
        let avoid = |list: &[u8]| PathPolicy { avoid: nodes(list), ..PathPolicy::default() };
        assert!(!avoid(&[6]).allows(&path) && avoid(&[1, 9, 7]).allows(&path));
        let require = |list: &[u8]| PathPolicy { require: nodes(list), ..PathPolicy::default() };
        assert!(require(&[6, 5]).allows(&path) && !require(&[6, 7]).allows(&path));
        let pin = |list: &[u8]| PathPolicy { pin: Some(nodes(list)), ..PathPolicy::default() };
        assert!(pin(&[5, 6]).allows(&path) && !pin(&[6, 5]).allows(&path) && !pin(&[5]).allows(&path));
        let choose = |avoid: &[u8], pins: &[(u8, &[u8])]| {
            let pins = pins.iter().map(|(to, over)| (IdentityKey([*to; 32]), nodes(over))).collect();
            PathPolicy { choices: Choices { avoid: nodes(avoid), pins }, ..PathPolicy::default() }
        };
        assert!(!choose(&[6], &[]).allows(&path) && choose(&[6], &[]).allows_by_itself(&path));
        assert!(choose(&[], &[(9, &[5, 6]), (8, &[7])]).allows(&path), "a pin to another gateway is none of this one");
        assert!(!choose(&[], &[(9, &[6, 5])]).allows(&path) && !choose(&[5], &[(9, &[5, 6])]).allows(&path));
        let longest = PathPolicy { order: Order::Longest, ..PathPolicy::default() };
        assert!(longest.rank(&path) < longest.rank(&nodes(&[1, 9])));
        assert!(policy.rank(&path) > policy.rank(&nodes(&[1, 9])));
    }
}

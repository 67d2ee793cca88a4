//! Keys that were agreed on before a packet needs them.

use std::collections::BTreeMap;
use std::fmt;

use wayleave_packet::icing::header::{NodeId, Version};
use wayleave_packet::icing::mint::{NodeSecret, PairKey};

/// The keys that this node, under each of its own keys, shares with nodes that are known: in a realm, with every ID of an advert.
///
/// A packet whose nodes are all here costs no agreement, and so waits for no limit of agreements: whoever sends packets with IDs that
/// nobody has uses that limit up for such packets alone.
#[derive(Clone, Default)]
pub struct AgreedKeys(BTreeMap<(NodeId, NodeId), PairKey>);

impl fmt::Debug for AgreedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgreedKeys of {} pairs", self.0.len())
    }
}

impl AgreedKeys {
    /// These keys without those of other pairs than one of `own` with one of `others`, and with those of at most `most` such pairs
    /// more. An agreement (X25519) is computed for each of these. `None` if all that is wanted is here, and nothing else.
    ///
    /// A node whose ID is not on the curve has no key here; packets that name it are refused.
    #[must_use]
    pub fn next(&self, own: &[NodeSecret], others: &[NodeId], most: usize) -> Option<Self> {
        let pairs = own.iter().flat_map(|secret| others.iter().map(move |other| (secret, other)));
        let wanted = pairs.filter(|(secret, other)| secret.id() != **other);
        let (mut keys, mut missing) = (BTreeMap::new(), Vec::new());
        for (secret, other) in wanted {
            let pair = (secret.id(), *other);
            match self.0.get(&pair) {
                Some(key) => drop(keys.insert(pair, key.clone())),
                None => missing.push((secret, *other)),
            }
        }
        let is_same = keys.len() == self.0.len();
        let mut agreed = 0;
        // One that has none is looked at again each time: who claims it is to be found out by whoever let it into a database.
        for (secret, other) in missing.into_iter().filter(|(_, other)| other.is_on_curve()) {
            if agreed == most {
                break;
            }
            if let Ok(key) = secret.pair(&other, Version::Standard) {
                keys.insert((secret.id(), other), key);
                agreed += 1;
            }
        }
        (agreed > 0 || !is_same).then_some(Self(keys))
    }

    /// The key of this node, named `own`, with another, whose ID is on the curve.
    #[must_use]
    pub fn get(&self, own: &NodeId, other: &NodeId) -> Option<&PairKey> {
        self.0.get(&(*own, *other))
    }

    /// The number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use wayleave_crypto::secret::Seed;

    use super::*;

    fn secret(number: u8) -> NodeSecret {
        NodeSecret::from_seed(&Seed::new([number; 32]))
    }

    #[test]
    fn keys_come_in_parts_stay_while_they_are_wanted_and_are_those_of_the_other_end() {
        let own = [secret(1), secret(2)];
        let others: Vec<NodeId> = (3..8).map(|number| secret(number).id()).collect();
        let mut agreed = AgreedKeys::default();
        let mut parts = Vec::new();
        while let Some(next) = agreed.next(&own, &others, 4) {
            agreed = next;
            parts.push(agreed.len());
        }
        assert_eq!(parts, [4, 8, 10]);
        for (ours, (number, other)) in own.iter().flat_map(|ours| (3..8).zip(&others).map(move |other| (ours, other))) {
            let theirs = secret(number).pair(&ours.id(), Version::Standard).unwrap();
            assert_eq!(agreed.get(&ours.id(), other), Some(&theirs));
        }
        // An epoch ends, a node goes, another comes.
        let later: Vec<NodeId> = others[1..].iter().copied().chain([secret(9).id()]).collect();
        let next = agreed.next(&own[1..], &later, 4).unwrap();
        assert_eq!(next.len(), 5);
        assert!(next.get(&own[0].id(), &others[1]).is_none() && next.get(&own[1].id(), &others[0]).is_none());
        assert!(next.next(&own[1..], &later, 4).is_none());
        assert_eq!(next.next(&[], &later, 4).map(|none| none.len()), Some(0));
    }

    #[test]
    fn a_node_that_is_not_on_the_curve_or_is_this_one_has_no_key() {
        let own = [secret(1)];
        let twisted = (2..=u8::MAX).filter_map(|first| {
            let mut octets = [0; 32];
            octets[0] = first;
            NodeId::from_bytes(octets).filter(|id| !id.is_on_curve())
        });
        let others: Vec<NodeId> = twisted.take(1).chain([own[0].id()]).collect();
        assert_eq!(others.len(), 2);
        assert!(AgreedKeys::default().next(&own, &others, 4).is_none());
    }
}

//! Who a node of a realm is, and which inner addresses are its own.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::{Afi, Prefix};

/// The Ed25519 public key that names a node for as long as it is a member: 32 octets, which may be no key until somebody
/// verifies with them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityKey(pub [u8; 32]);

impl fmt::Display for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ed25519:")?;
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl fmt::Debug for IdentityKey {
    /// The first octets, to tell nodes apart in reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "IdentityKey({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

/// The inner prefixes of each node: what it may send from and is reached by. The control plane fills it from memberships;
/// gateways look sources and destinations up in it, as WireGuard does in its table of allowed IPs: an address belongs to whoever has
/// the longest prefix around it, and to nobody else.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InnerPrefixes {
    owners: BTreeMap<Prefix, IdentityKey>,
    /// How many prefixes of each family and length there are: a look-up for each packet tries only lengths that exist.
    lengths: BTreeMap<(Afi, u8), usize>,
}

impl InnerPrefixes {
    /// Gives `prefix` to `owner`; returns who had it.
    pub fn insert(&mut self, prefix: Prefix, owner: IdentityKey) -> Option<IdentityKey> {
        let before = self.owners.insert(prefix, owner);
        if before.is_none() {
            *self.lengths.entry((prefix.afi(), prefix.len())).or_default() += 1;
        }
        before
    }

    /// Takes `prefix` away from whoever has it.
    pub fn remove(&mut self, prefix: &Prefix) -> Option<IdentityKey> {
        let before = self.owners.remove(prefix)?;
        let length = (prefix.afi(), prefix.len());
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
        Some(before)
    }

    /// Who has exactly this prefix.
    #[must_use]
    pub fn holder(&self, prefix: &Prefix) -> Option<IdentityKey> {
        self.owners.get(prefix).copied()
    }

    /// Who has the longest prefix that `address` lies in.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<IdentityKey> {
        self.longest(address).map(|(_, owner)| owner)
    }

    /// The longest prefix that `address` lies in, and who has it.
    #[must_use]
    pub fn longest(&self, address: IpAddr) -> Option<(Prefix, IdentityKey)> {
        let afi = if address.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 };
        let lengths = self.lengths.range((afi, 0)..=(afi, afi.bits())).rev();
        let held = |length: u8| {
            let prefix = Prefix::truncated(address, length).ok()?;
            Some((prefix, self.holder(&prefix)?))
        };
        lengths.filter_map(|((_, length), _)| held(*length)).next()
    }

    /// Every prefix with its owner, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Prefix, &IdentityKey)> {
        self.owners.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lengths_that_exist_are_looked_at_whatever_came_and_went() {
        let mut table = InnerPrefixes::default();
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let owner = |table: &InnerPrefixes, text: &str| table.owner(text.parse().expect("an address"));
        let (a, b) = (IdentityKey([1; 32]), IdentityKey([2; 32]));
        table.insert(prefix("0.0.0.0/0"), a);
        table.insert(prefix("10.1.0.0/16"), a);
        assert_eq!(table.insert(prefix("10.1.0.0/16"), b), Some(a));
        table.insert(prefix("10.2.0.0/16"), b);
        assert_eq!(table.remove(&prefix("10.1.0.0/16")), Some(b));
        assert_eq!(table.remove(&prefix("10.1.0.0/16")), None);
        assert_eq!((owner(&table, "10.1.0.1"), owner(&table, "10.2.0.1")), (Some(a), Some(b)));
        table.remove(&prefix("10.2.0.0/16"));
        assert_eq!((owner(&table, "10.2.0.1"), owner(&table, "fd00::1")), (Some(a), None));
    }

    #[test]
    fn an_address_belongs_to_the_owner_of_the_longest_prefix_around_it() {
        let mut table = InnerPrefixes::default();
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let (a, b) = (IdentityKey([1; 32]), IdentityKey([2; 32]));
        table.insert(prefix("10.0.0.0/8"), a);
        table.insert(prefix("10.1.0.0/16"), b);
        table.insert(prefix("fd00::/64"), b);
        let owner = |text: &str| table.owner(text.parse().expect("an address"));
        assert_eq!(owner("10.2.0.1"), Some(a));
        assert_eq!(owner("10.1.0.1"), Some(b));
        assert_eq!(owner("fd00::1"), Some(b));
        assert_eq!(owner("fd00:0:0:1::1"), None);
        assert_eq!(owner("11.0.0.1"), None);
    }
}

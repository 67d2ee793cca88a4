//! Who a node of a realm is, and which inner addresses are its own.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::Prefix;

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
/// gateways look sources up in it, as WireGuard does in its table of allowed IPs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InnerPrefixes {
    owners: BTreeMap<Prefix, IdentityKey>,
}

impl InnerPrefixes {
    /// Gives `prefix` to `owner`; returns who had it.
    pub fn insert(&mut self, prefix: Prefix, owner: IdentityKey) -> Option<IdentityKey> {
        self.owners.insert(prefix, owner)
    }

    /// Takes `prefix` away from whoever has it.
    pub fn remove(&mut self, prefix: &Prefix) -> Option<IdentityKey> {
        self.owners.remove(prefix)
    }

    /// Who has exactly this prefix.
    #[must_use]
    pub fn holder(&self, prefix: &Prefix) -> Option<IdentityKey> {
        self.owners.get(prefix).copied()
    }

    /// Who has the longest prefix that `address` lies in.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<IdentityKey> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let covering = (0..=bits).rev().filter_map(|length| Prefix::truncated(address, length).ok());
        covering.filter_map(|prefix| self.holder(&prefix)).next()
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

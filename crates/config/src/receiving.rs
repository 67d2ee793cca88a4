//! What a realm's records and a configuration mean for an end of paths: who is a neighbour, and how packets that come in are verified.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use wayleave_control::node::{self, OwnId, Realm};
use wayleave_control::realm::Roles;
use wayleave_core::{Afi, IdentityKey, InnerPrefixes, Prefix, UnixTime};
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::gateway::Member;
use wayleave_dataplane::icing::{self, AgreedKeys, Link, MAX_KEYS, Meaning, Output, Policy, TagRule};
use wayleave_packet::icing::header::{Tag, Version};
use wayleave_packet::platypus::verify::is_martian;
use wayleave_runtime::clock::utc;

use crate::failure::Outcome;
use crate::key_files::node::fresh;
use crate::links::{self, LinkPeer, OpenLinks, PeerState};
use crate::overlay::{NodeRef, OverlaySection, Settings};

/// Paths and keys of nodes that the receiver keeps.
const KEPT: usize = 1 << 14;
/// X25519 agreements a second for packets of each link.
const AGREEMENTS: u32 = 1_000;

/// What is known at one moment.
#[derive(Clone, Debug)]
pub struct Known {
    /// The members that are gateways, this one among them: nobody else seals or opens packets.
    pub members: Vec<Member>,
    pub names: BTreeMap<String, IdentityKey>,
    /// The nodes that paths may cross: members, so that whatever name a policy avoids, these are known to have it or not.
    pub nodes: BTreeSet<IdentityKey>,
    pub prefixes: InnerPrefixes,
    /// How packets that come in are verified.
    pub receiver: Policy,
    /// The nodes to which packets may leave, and by which link.
    pub neighbours: Vec<(IdentityKey, u16)>,
    /// In the laboratory, where nobody proves himself: where they are.
    pub fixed: Vec<Neighbour>,
    /// Nodes that were removed from the realm: the names that they had, and when.
    pub removed: BTreeMap<IdentityKey, (String, u64)>,
    /// The prefixes that they had.
    pub former: InnerPrefixes,
}

/// Both ends of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    pub link: u16,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Known {
    /// A node's identity by its name or key.
    pub fn identity(&self, node: &NodeRef) -> Option<IdentityKey> {
        match node {
            NodeRef::Name(name) => self.names.get(name.as_str()).copied(),
            NodeRef::Key(key) => Some(*key),
        }
    }

    /// Who has this name.
    pub fn identity_of(&self, name: &str) -> Option<IdentityKey> {
        self.names.get(name).copied()
    }

    /// The gateway with this name, in any case.
    pub fn gateway_of(&self, name: &str) -> Option<IdentityKey> {
        let (_, identity) = self.names.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(*identity).filter(|identity| self.is_gateway(identity))
    }

    pub fn is_gateway(&self, node: &IdentityKey) -> bool {
        self.members.iter().any(|member| member.identity == *node)
    }

    /// A node's first name, or its key.
    pub fn describe(&self, node: &IdentityKey) -> String {
        let name = self.names.iter().find(|(_, identity)| *identity == node).map(|(name, _)| name);
        let name = name.or_else(|| self.removed.get(node).map(|(name, _)| name));
        name.map_or_else(|| node.to_string(), Clone::clone)
    }

    /// The same of a node that a configuration names, where no member has that name or key any more.
    pub fn removal_of(&self, node: &NodeRef) -> Option<String> {
        if self.identity(node).is_some_and(|identity| self.nodes.contains(&identity)) {
            return None;
        }
        let is_it = |identity: &IdentityKey, name: &str| match node {
            NodeRef::Name(of) => of.as_str() == name,
            NodeRef::Key(key) => key == identity,
        };
        let (identity, _) = self.removed.iter().find(|(identity, (name, _))| is_it(identity, name))?;
        self.removal(identity)
    }

    /// That a node was removed from the realm, and when, if it was.
    pub fn removal(&self, node: &IdentityKey) -> Option<String> {
        let (name, at) = self.removed.get(node)?;
        Some(format!("{name} was removed from the realm at {}", utc(*at)))
    }
}

/// The address of each family that a node has itself: the first one, in the order of its `grants`, that is its own among the `prefixes` of
/// all members. A later member may have a longer prefix around what was the first.
pub fn own_addresses(node: &IdentityKey, grants: &[Prefix], prefixes: &InnerPrefixes) -> Vec<IpAddr> {
    let of = |afi: Afi| {
        grants.iter().filter(|prefix| prefix.afi() == afi).find_map(|prefix| first_address(node, prefix, prefixes))
    };
    [Afi::Ipv4, Afi::Ipv6].into_iter().filter_map(of).collect()
}

/// Others' prefixes within one of a node's that are looked behind for an address of its own.
const LOOKED_BEHIND: usize = 256;

fn first_address(node: &IdentityKey, prefix: &Prefix, prefixes: &InnerPrefixes) -> Option<IpAddr> {
    let bits = prefix.afi().bits();
    let address = |number: u128| match prefix.afi() {
        Afi::Ipv4 => u32::try_from(number).ok().map(|number| IpAddr::from(number.to_be_bytes())),
        Afi::Ipv6 => Some(IpAddr::from(number.to_be_bytes())),
    };
    let number = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    };
    let is_within = |at: IpAddr| Prefix::truncated(at, prefix.len()).is_ok_and(|around| around == *prefix);
    let mut at = number(prefix.address()) + u128::from(prefix.len() < bits);
    for _ in 0..LOOKED_BEHIND {
        let candidate = address(at).filter(|at| is_within(*at))?;
        match prefixes.longest(candidate)? {
            // An exit's 0.0.0.1 is nobody's; an address that was granted by itself is left to whoever has to take packets to it.
            (_, owner) if owner == *node => {
                return (prefix.len() == bits || !is_martian(candidate)).then_some(candidate);
            }
            (longer, _) => {
                at = number(longer.address()).checked_add(1u128.checked_shl(u32::from(bits - longer.len()))?)?
            }
        }
    }
    None
}

/// Packets with any of these tags are for us.
pub fn rules(tags: impl Iterator<Item = Tag>) -> Vec<TagRule> {
    let meaning = Meaning { queue: 0, output: Output::Next, account: None };
    tags.map(|tag| TagRule { bits: tag.0, depth: 32, meaning }).collect()
}

/// What the realm says, as far as this node is concerned. `agreed`: the keys that it shares with the IDs of others.
pub fn of_realm(
    settings: &Settings,
    section: &OverlaySection,
    realm: &Realm,
    (ids, agreed): (&[OwnId], &Arc<AgreedKeys>),
) -> Known {
    let own = settings.own();
    let gateways = realm.nodes.iter().filter(|(_, member)| member.membership.grants.roles.has(Roles::GATEWAY));
    let member = |(identity, member): (&IdentityKey, &Arc<node::Member>)| Member {
        identity: *identity,
        noise: member.membership.noise,
        ids: member.ids.iter().map(|key| key.node).collect(),
        addresses: own_addresses(identity, &member.membership.grants.prefixes, &realm.prefixes),
    };
    // Nobody is served by an end of paths.
    let peers = links::peers(own, section, realm, &mut OpenLinks::default());
    let is_known = |peer: &&LinkPeer| peer.state == PeerState::Known;
    let neighbour = |peer: &LinkPeer| Some((peer.identity?, peer.link));
    let receiver = |peer: &LinkPeer| Link { id: peer.link, nodes: peer.ids.clone(), is_open: false };
    let mut former = InnerPrefixes::default();
    for (identity, removed) in &realm.removed {
        for prefix in &removed.prefixes {
            former.insert(*prefix, *identity);
        }
    }
    let newest = ids.len().saturating_sub(MAX_KEYS);
    Known {
        members: gateways.map(member).collect(),
        names: realm.names.iter().map(|(name, identity)| (name.as_str().to_owned(), *identity)).collect(),
        nodes: realm.nodes.keys().copied().collect(),
        prefixes: realm.prefixes.clone(),
        receiver: Policy {
            secrets: ids[newest..].iter().map(|own| own.secret.clone()).collect(),
            masters: settings.tags.clone(),
            links: peers.iter().map(receiver).collect(),
            rules: rules(section.tags_offered.iter().map(|entry| entry.tag.get_ref().0.0)),
            accounts: Vec::new(),
            agreed: Arc::clone(agreed),
        },
        neighbours: peers.iter().filter(is_known).filter_map(neighbour).collect(),
        fixed: Vec::new(),
        former,
        removed: realm
            .removed
            .iter()
            .map(|(identity, removed)| {
                let name = removed.name.as_ref().map_or_else(|| identity.to_string(), ToString::to_string);
                (*identity, (name, removed.at))
            })
            .collect(),
    }
}

/// How the receiver is set up.
pub fn receiver(known: &Known, started: UnixTime) -> Outcome<icing::Config> {
    let (replay, number) = (fresh::<16>()?, fresh::<8>()?);
    Ok(icing::Config {
        version: Version::Standard,
        policy: known.receiver.clone(),
        agreements_per_second: AGREEMENTS,
        paths: KEPT,
        peers: KEPT,
        freshness: icing::MAX_FRESHNESS,
        // Everything that a gateway takes is sealed, and each session knows which of its messages have come: a filter for all senders
        // together would only be a place where one of them can be in the way of others.
        replay_capacity: 0,
        started,
        replay_key: Key128::new(*replay),
        seed: u64::from_be_bytes(*number),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use wayleave_crypto::secret::Seed;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_crypto::signed::Signed;

    use crate::links::tests::{identity, member, realm, section};

    use super::*;

    /// ICC, no gateway: a router's Noise key begins a session, and packets go to its name: it is nobody's gateway.
    #[test]
    fn only_members_with_the_role_are_gateways() {
        let with = |number, roles| {
            let mut member = node::Member::clone(&member(number, None, None));
            member.membership.grants.roles = roles;
            Arc::new(member)
        };
        let realm = realm([with(1, Roles::GATEWAY), with(2, Roles::FORWARDER), with(3, Roles::CONSENT_SERVER)]);
        let key = SigningKey::from_seed(&Seed::new([9; 32]));
        let section = section("");
        let settings = Settings {
            identity: Seed::new([9; 32]),
            membership: Signed::sign(&realm.nodes[&identity(1)].membership, &key).unwrap(),
            noise: None,
            ids: None,
            tags: Vec::new(),
            state: PathBuf::new(),
            membership_file: PathBuf::new(),
            section: section.clone(),
        };
        let known = of_realm(&settings, &section, &realm, (&[], &Arc::default()));
        // Whose handshakes and packets are opened, and to whom packets are sealed.
        assert_eq!(known.members.iter().map(|member| member.identity).collect::<Vec<_>>(), [identity(1)]);
        assert_eq!([1, 2, 3].map(|number| known.gateway_of(&format!("N{number}"))), [Some(identity(1)), None, None]);
        // Paths cross the others, and policies name them.
        assert_eq!(known.nodes.len(), 3);
        assert_eq!(known.identity_of("n2"), Some(identity(2)));
    }

    #[test]
    fn a_nodes_own_address_is_one_that_no_longer_prefix_of_another_takes() {
        let [a, b] = [IdentityKey([1; 32]), IdentityKey([2; 32])];
        let addresses = |of_a: &[&str], of_b: &[&str]| {
            let prefix = |text: &&str| text.parse::<Prefix>().unwrap();
            let (grants, others): (Vec<Prefix>, Vec<Prefix>) =
                (of_a.iter().map(prefix).collect(), of_b.iter().map(prefix).collect());
            let mut prefixes = InnerPrefixes::default();
            for prefix in &grants {
                prefixes.insert(*prefix, a);
            }
            for prefix in &others {
                prefixes.insert(*prefix, b);
            }
            own_addresses(&a, &grants, &prefixes).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses(&["10.1.0.0/16", "fd01::/64"], &[]), ["10.1.0.1", "fd01::1"]);
        assert_eq!(addresses(&["10.1.0.7/32"], &[]), ["10.1.0.7"]);
        assert_eq!(addresses(&["10.1.0.0/16"], &["10.1.0.0/24", "10.1.1.0/32"]), ["10.1.1.1"]);
        assert_eq!(addresses(&["10.1.0.0/30", "10.2.0.0/16"], &["10.1.0.0/31", "10.1.0.2/31"]), ["10.2.0.1"]);
        assert_eq!(addresses(&["255.255.255.254/31"], &["255.255.255.254/31"]), [""; 0]);
        assert_eq!(addresses(&["127.0.0.1/32"], &[]), ["127.0.0.1"]);
        assert_eq!(addresses(&["0.0.0.0/0", "10.3.0.0/24", "::/0", "fd03::/64"], &[]), ["10.3.0.1", "fd03::1"]);
    }
}

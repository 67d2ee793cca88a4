//! Where a gateway's knowledge comes from: the realm, through the node's own end of the control plane; or, in the laboratory, a
//! file in the place of the servers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path as FilePath;
use std::sync::Arc;

use serde::Deserialize;
use wayleave_control::frames::Host;
use wayleave_control::node::Realm;
use wayleave_core::{Afi, IdentityKey, InnerPrefixes, Prefix};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::gateway::Member;
use wayleave_dataplane::icing::{Link, MAX_KEYS, Meaning, Output, Policy, TagRule};
use wayleave_packet::icing::header::{NodeId, PathHash, Tag, Version};
use wayleave_packet::icing::mint::{Consent, NodeSecret, TagMaster};
use wayleave_packet::{Hop, HopId, Path};
use wayleave_runtime::identity::from_hex;

use crate::config::overlay::{NodeRef, OverlaySection, Settings};
use crate::failure::{Failure, Outcome};
use crate::roles::overlay::{self, OwnIds};

/// Octets of the laboratory's file, at most.
const MOST_OCTETS: u64 = 16 << 20;

/// What is known at one moment.
#[derive(Clone, Debug)]
pub struct Known {
    /// All members, this gateway among them.
    pub members: Vec<Member>,
    pub names: BTreeMap<String, IdentityKey>,
    pub prefixes: InnerPrefixes,
    /// How packets that come in are verified.
    pub receiver: Policy,
    pub links: Vec<Neighbour>,
}

/// A neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    pub identity: IdentityKey,
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

    /// A node's first name, or its key.
    pub fn describe(&self, node: &IdentityKey) -> String {
        let name = self.names.iter().find(|(_, identity)| *identity == node);
        name.map_or_else(|| node.to_string(), |(name, _)| name.clone())
    }
}

/// The address of each family that a node has itself: the first one of its first prefix.
pub fn own_addresses(prefixes: &[Prefix]) -> Vec<IpAddr> {
    let first = |afi: Afi| prefixes.iter().find(|prefix| prefix.afi() == afi);
    let address = |prefix: &Prefix| match prefix.address() {
        address if prefix.len() == prefix.afi().bits() => address,
        IpAddr::V4(v4) => IpAddr::from((u32::from(v4) + 1).to_be_bytes()),
        IpAddr::V6(v6) => IpAddr::from((u128::from(v6) + 1).to_be_bytes()),
    };
    [Afi::Ipv4, Afi::Ipv6].into_iter().filter_map(first).map(address).collect()
}

/// Packets with any of these tags are for us.
fn rules(tags: impl Iterator<Item = Tag>) -> Vec<TagRule> {
    let meaning = Meaning { queue: 0, output: Output::Next, account: None };
    tags.map(|tag| TagRule { bits: tag.0, depth: 32, meaning }).collect()
}

/// What the realm says, as far as this node is concerned.
pub fn of_realm(settings: &Settings, section: &OverlaySection, realm: &Realm, ids: &OwnIds) -> Known {
    let own = settings.own();
    let member = |(identity, member): (&IdentityKey, &Arc<wayleave_control::node::Member>)| Member {
        identity: *identity,
        noise: member.membership.noise,
        addresses: own_addresses(&member.membership.grants.prefixes),
    };
    let mut links = Vec::new();
    let mut receivers = Vec::new();
    for section in &section.neighbour {
        let section = section.get_ref();
        let (id, local) = (*section.interface.get_ref(), section.local.get_ref().0);
        let identity = match &section.node.get_ref().0 {
            NodeRef::Name(name) => realm.names.get(name).copied(),
            NodeRef::Key(key) => Some(*key),
        };
        let node = identity.and_then(|identity| realm.nodes.get(&identity));
        let nodes = node.map_or_else(Vec::new, |node| node.ids.iter().map(|key| key.node).collect());
        receivers.push(Link { id, nodes, is_open: false });
        let advert = node.and_then(|node| node.advert.as_ref());
        if let (Some(identity), Some(link)) = (identity, advert.and_then(|advert| advert.link(&own))) {
            links.push(Neighbour { identity, link: id, local, remote: link.endpoint });
        }
    }
    let newest = ids.ids.len().saturating_sub(MAX_KEYS);
    Known {
        members: realm.nodes.iter().map(member).collect(),
        names: realm.names.iter().map(|(name, identity)| (name.as_str().to_owned(), *identity)).collect(),
        prefixes: realm.prefixes.clone(),
        receiver: Policy {
            secrets: ids.ids[newest..].iter().map(|own| own.secret.clone()).collect(),
            masters: settings.tags.clone(),
            links: receivers,
            rules: rules(section.tags_offered.iter().map(|entry| entry.tag.get_ref().0.0)),
            accounts: Vec::new(),
        },
        links,
    }
}

/// Who answers questions for paths and proofs.
#[derive(Clone)]
pub enum Servers {
    Overlay(overlay::Handle, u32),
    File(Arc<std::sync::RwLock<LabFile>>),
}

impl Servers {
    /// The paths to a gateway, or why there are none.
    pub async fn paths(&self, peer: IdentityKey) -> Result<Vec<Path>, String> {
        match self {
            Self::Overlay(handle, _) => {
                handle.find_paths(Host::Identity(peer)).await.map_err(|error| error.to_string())
            }
            Self::File(file) => {
                let file = file.read().unwrap_or_else(std::sync::PoisonError::into_inner);
                let leads_there = |path: &&LabPath| path.nodes.last().is_some_and(|node| node.identity.0 == peer);
                Ok(file.paths.iter().filter(leads_there).filter_map(LabPath::path).collect())
            }
        }
    }

    /// The path with every node's consent, or why there are none.
    pub async fn proofs(&self, hash: PathHash, path: Path) -> Result<Path, String> {
        match self {
            // The machine asks again ahead of the end: the lease needs not live longer.
            Self::Overlay(handle, seconds) => {
                let lease = handle.consents(path, *seconds).await.map_err(|error| error.to_string())?;
                Ok(lease.path())
            }
            Self::File(file) => {
                let file = file.read().unwrap_or_else(std::sync::PoisonError::into_inner);
                let is_it = |path: &&LabPath| {
                    path.path().and_then(|path| path.consent_hash(Version::Standard).ok()) == Some(hash)
                };
                file.paths
                    .iter()
                    .find(is_it)
                    .and_then(LabPath::proven)
                    .ok_or_else(|| "the file has no consents".to_owned())
            }
        }
    }
}

/// The laboratory's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabFile {
    pub identity: HexKey,
    /// The secret of the static key, the seed of the node's ID, and its tag master.
    noise: String,
    node: String,
    tags: String,
    tag: u32,
    links: Vec<LabLink>,
    members: Vec<LabMember>,
    paths: Vec<LabPath>,
}

/// An identity as it is printed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct HexKey(pub IdentityKey);

impl TryFrom<String> for HexKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let octets = text.strip_prefix("ed25519:").and_then(from_hex).ok_or("not an identity")?;
        Ok(Self(IdentityKey(octets)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabLink {
    id: u16,
    identity: HexKey,
    node: String,
    local: SocketAddr,
    remote: SocketAddr,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabMember {
    name: String,
    identity: HexKey,
    noise: String,
    prefixes: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabPath {
    nodes: Vec<LabNode>,
    mtu: u16,
    expiry: u32,
    /// Of each node behind the sender.
    consents: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabNode {
    identity: HexKey,
    node: String,
    tag: u32,
}

fn node_id(text: &str) -> Option<NodeId> {
    NodeId::from_bytes(from_hex(text)?)
}

fn half(text: &str) -> Option<[u8; 16]> {
    // 32 hexadecimal digits, read as half of 64.
    let whole: [u8; 32] = from_hex(&format!("{text}{}", "0".repeat(64usize.checked_sub(text.len())?)))?;
    (text.len() == 32).then(|| whole.first_chunk().copied()).flatten()
}

impl LabPath {
    fn path(&self) -> Option<Path> {
        let hop = |node: &LabNode| {
            let at = HopId::Node { identity: node.identity.0, id: node_id(&node.node)?, tag: Tag(node.tag) };
            Some(Hop { at, ingress: 0, egress: 0 })
        };
        let hops: Option<Vec<Hop>> = self.nodes.iter().map(hop).collect();
        Path::icing(hops?, self.expiry.into(), self.mtu).ok()
    }

    fn proven(&self) -> Option<Path> {
        let mut path = self.path()?;
        for (index, consent) in (1..).zip(&self.consents) {
            path.add_consent(index, self.expiry, Consent::new(Key128::new(half(consent)?))).ok()?;
        }
        Some(path)
    }
}

impl LabFile {
    /// Reads the file.
    pub fn read(path: &FilePath) -> Outcome<Self> {
        let failed = |error: std::io::Error| Failure::system(path.display(), &error);
        if std::fs::metadata(path).map_err(failed)?.len() > MOST_OCTETS {
            return Err(Failure::new(format!("{}: longer than 16 MiB", path.display())).into());
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let file: Self =
            serde_json::from_str(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        Ok(file)
    }

    pub fn noise(&self) -> Outcome<Seed> {
        Ok(Seed::new(from_hex(&self.noise).ok_or_else(|| Failure::new("`noise` is no key"))?))
    }

    /// What the file says, in the place of the realm.
    pub fn known(&self) -> Outcome<Known> {
        let wrong = |what: &str| Failure::new(format!("the laboratory's file: {what} is not well-formed"));
        let mut known = Known {
            members: Vec::new(),
            names: BTreeMap::new(),
            prefixes: InnerPrefixes::default(),
            receiver: Policy {
                secrets: vec![NodeSecret::from_seed(&Seed::new(from_hex(&self.node).ok_or_else(|| wrong("`node`"))?))],
                masters: vec![(0, TagMaster::new(Key128::new(half(&self.tags).ok_or_else(|| wrong("`tags`"))?)))],
                links: Vec::new(),
                rules: rules(std::iter::once(Tag(self.tag))),
                accounts: Vec::new(),
            },
            links: Vec::new(),
        };
        for member in &self.members {
            let noise = from_hex(&member.noise).and_then(|octets| DhPublic::from_bytes(octets).ok());
            let prefixes: Result<Vec<Prefix>, _> = member.prefixes.iter().map(|text| text.parse()).collect();
            let prefixes = prefixes.map_err(|_| wrong("a prefix"))?;
            let identity = member.identity.0;
            let addresses = own_addresses(&prefixes);
            known.members.push(Member { identity, noise: noise.ok_or_else(|| wrong("a Noise key"))?, addresses });
            known.names.insert(member.name.clone(), identity);
            for prefix in prefixes {
                known.prefixes.insert(prefix, identity);
            }
        }
        for link in &self.links {
            let node = node_id(&link.node).ok_or_else(|| wrong("a node's ID"))?;
            known.receiver.links.push(Link { id: link.id, nodes: vec![node], is_open: false });
            let (local, remote) = (link.local, link.remote);
            known.links.push(Neighbour { identity: link.identity.0, link: link.id, local, remote });
        }
        Ok(known)
    }
}

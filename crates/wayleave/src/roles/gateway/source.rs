//! Where a gateway's knowledge comes from: the realm, through the node's own end of the control plane; or, in the laboratory, a
//! file in the place of the servers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::sync::Arc;

use serde::Deserialize;
use wayleave_control::frames::Host;
use wayleave_core::{IdentityKey, InnerPrefixes, Prefix};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::gateway::Member;
use wayleave_dataplane::icing::{Link, Policy};
use wayleave_dataplane::link::{Config, Links, Peer};
use wayleave_packet::icing::header::{NodeId, PathHash, Tag, Version};
use wayleave_packet::icing::mint::{Consent, NodeSecret, TagMaster};
use wayleave_packet::{Hop, HopId, Path};
use wayleave_runtime::identity::from_hex;

use crate::config::links::LinkSocket;
use crate::config::receiving::{Known, Neighbour, own_addresses, rules};
use crate::failure::{Failure, Outcome};
use crate::roles::daemon::seed;
use crate::roles::overlay;

/// Octets of the largest packet in the laboratory.
const LARGEST: u16 = 1_400;
/// Octets of the laboratory's file, at most.
const MOST_OCTETS: u64 = 16 << 20;

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
                handle.find_paths(Host::Identity(peer)).await.map_err(|none| handle.no_path(&none))
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
                let nodes: Vec<_> = path.nodes().map(|(node, ..)| node).collect();
                let lease = handle.consents(path, *seconds).await.map_err(|none| handle.no_consent(&none, &nodes))?;
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
    /// Neighbours of a realm want its key to be proved to them; without it they are where the file says.
    realm: Option<String>,
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
        let key = text.strip_prefix("node:").unwrap_or(&text);
        let octets = key.strip_prefix("ed25519:").and_then(from_hex).ok_or("not an identity")?;
        Ok(Self(IdentityKey(octets)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabLink {
    id: u16,
    identity: HexKey,
    node: String,
    /// The neighbour's static key, in a realm.
    noise: Option<String>,
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

    /// The realm's key, or zeros.
    pub fn realm(&self) -> Outcome<[u8; 32]> {
        let Some(text) = &self.realm else { return Ok([0; 32]) };
        Ok(from_hex(text).ok_or_else(|| Failure::new("`realm` is no key"))?)
    }

    /// The ends of links, before any socket is open.
    pub fn links(&self) -> Outcome<Option<Links>> {
        if self.realm.is_none() {
            return Ok(None);
        }
        let config = Config { identity: self.identity.0, realm: self.realm()?, noise: self.noise()?, seed: seed()? };
        Ok(Some(Links::new(config)))
    }

    /// Whoever proves himself at a link, with `sockets` in their order.
    pub fn peers(&self, sockets: &[LinkSocket]) -> Vec<Peer> {
        let peer = |link: &LabLink| {
            let noise = DhPublic::from_bytes(from_hex(link.noise.as_ref()?)?).ok()?;
            let socket = sockets.iter().position(|local| *local == LinkSocket::Udp(link.local))?;
            let (identity, endpoints) = (link.identity.0, vec![(socket, link.remote)]);
            let (sockets, tls_endpoints) = (vec![socket], Vec::new());
            Some(Peer {
                link: link.id,
                identity,
                noise,
                sockets,
                endpoints,
                tls: None,
                tls_endpoints,
                largest: LARGEST,
            })
        };
        self.links.iter().filter_map(peer).collect()
    }

    /// What the file says, in the place of the realm.
    pub fn known(&self) -> Outcome<Known> {
        let wrong = |what: &str| Failure::new(format!("the laboratory's file: {what} is not well-formed"));
        let mut known = Known {
            members: Vec::new(),
            names: BTreeMap::new(),
            // The file's paths name all nodes that there are.
            nodes: self.paths.iter().flat_map(|path| path.nodes.iter().map(|node| node.identity.0)).collect(),
            prefixes: InnerPrefixes::default(),
            receiver: Policy {
                secrets: vec![NodeSecret::from_seed(&Seed::new(from_hex(&self.node).ok_or_else(|| wrong("`node`"))?))],
                masters: vec![(0, TagMaster::new(Key128::new(half(&self.tags).ok_or_else(|| wrong("`tags`"))?)))],
                links: Vec::new(),
                rules: rules(std::iter::once(Tag(self.tag))),
                accounts: Vec::new(),
                agreed: Arc::default(),
            },
            neighbours: Vec::new(),
            fixed: Vec::new(),
            removed: BTreeMap::new(),
            former: InnerPrefixes::default(),
        };
        for member in &self.members {
            for text in &member.prefixes {
                known.prefixes.insert(text.parse().map_err(|_| wrong("a prefix"))?, member.identity.0);
            }
        }
        for member in &self.members {
            let noise = from_hex(&member.noise).and_then(|octets| DhPublic::from_bytes(octets).ok());
            let prefixes: Result<Vec<Prefix>, _> = member.prefixes.iter().map(|text| text.parse()).collect();
            let prefixes = prefixes.map_err(|_| wrong("a prefix"))?;
            let identity = member.identity.0;
            let addresses = own_addresses(&identity, &prefixes, &known.prefixes);
            let noise = noise.ok_or_else(|| wrong("a Noise key"))?;
            let nodes = self.paths.iter().flat_map(|path| &path.nodes).filter(|node| node.identity.0 == identity);
            let mut ids: Vec<NodeId> = nodes.filter_map(|node| node_id(&node.node)).collect();
            ids.sort_unstable();
            ids.dedup();
            known.members.push(Member { identity, noise, ids, addresses });
            known.names.insert(member.name.clone(), identity);
        }
        for link in &self.links {
            let node = node_id(&link.node).ok_or_else(|| wrong("a node's ID"))?;
            known.receiver.links.push(Link { id: link.id, nodes: vec![node], is_open: false });
            let (local, remote) = (link.local, link.remote);
            known.fixed.push(Neighbour { link: link.id, local, remote });
            known.neighbours.push((link.identity.0, link.id));
        }
        Ok(known)
    }
}

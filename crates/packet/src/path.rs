//! A path as the control plane hands it to gateways and stampers, whichever format its packets have: hops, labels, expiry,
//! MTU, and the proofs that packets on it must carry.
//!
//! Control and data plane know each other by this value alone. [`Path::sender`], [`Path::standard_path`] and
//! [`Path::stamping`] are what each format's `mint` takes.

use std::net::IpAddr;

use wayleave_core::IdentityKey;

use crate::icing::header::{MAX_NODES, MIN_NODES, NodeId, PathHash, Tag, Version};
use crate::icing::mint::{Consent, MintError, NodeSecret, PairKey, Sender};
use crate::platypus::header::Carriage;
use crate::platypus::mint::epoch::epoch_begin;
use crate::platypus::mint::{Nonce, Route};
use crate::scion::header::{IsdAs, StandardPath};
use crate::scion::verify::hop_expiry;
use crate::{icing, platypus};

/// Labels of a path, at most.
pub const MAX_LABELS: usize = 64;

/// How packets on a path prove that they may pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Format {
    Platypus = 1,
    Scion = 2,
    Icing = 3,
}

impl Format {
    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Platypus => "Platypus",
            Self::Scion => "SCION",
            Self::Icing => "ICING",
        }
    }
}

/// What a hop is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HopId {
    /// A node of ICING: its identity, which lasts, its ID of this epoch, and what it is to do with packets. The sender's
    /// tag is not used.
    Node { identity: IdentityKey, id: NodeId, tag: Tag },
    /// An AS of SCION.
    As(IsdAs),
    /// A waypoint of Platypus.
    Waypoint(IpAddr),
}

/// A hop, with the interfaces by which packets come in and leave: by the numbers of that node or AS, zero where there is
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    pub at: HopId,
    pub ingress: u16,
    pub egress: u16,
}

/// A statement about a hop. It counts only as far as its signer is believed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Label {
    /// The hop's number on the path, from zero.
    pub hop: u8,
    pub text: String,
    /// Who signed the statement; whoever filled the path in has verified it.
    pub signer: IdentityKey,
}

/// What packets carry besides the hops.
#[derive(Clone, Debug)]
enum Proofs {
    Icing(Consents),
    Scion(StandardPath),
    Platypus(Vec<platypus::mint::Hop>),
}

/// The consents of a path of ICING.
#[derive(Clone, Debug)]
struct Consents {
    /// Of the packets that they are for.
    version: Version,
    /// The nodes that do not read packets for sealed payloads: a bit each, by number on the path.
    unread_by: u16,
    /// Those that did not consent to them, likewise.
    unsealed_by: u16,
    /// For each node behind the sender the last Unix second for which it consents, and its proof of consent.
    proofs: Vec<Option<(u32, Consent)>>,
}

/// The numbers of the bits that are set.
fn indices(nodes: u16) -> impl Iterator<Item = usize> {
    (0..MAX_NODES).filter(move |index| nodes >> index & 1 != 0)
}

/// Why parts do not make a path, or a path cannot be used: an error of whoever gave them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathError {
    #[error("{0} hops; a path of this format has {MIN_NODES} to {MAX_NODES} nodes, or at least one hop")]
    Count(usize),
    /// Two hops of ICING have one identity or one ID.
    #[error("hop {0} occurs twice")]
    Repeated(usize),
    /// A hop is of another format.
    #[error("hop {0} is of another format")]
    HopFormat(usize),
    /// There is no such node behind the sender, or a label names no hop.
    #[error("there is no hop {0}")]
    NoSuchHop(usize),
    /// Another format was asked for.
    #[error("the path is of format {}", .0.name())]
    Format(Format),
    /// A node's consent is missing.
    #[error("node {0} has not consented")]
    Consent(usize),
    #[error("{0} labels; the limit is {MAX_LABELS}")]
    Labels(usize),
    #[error(transparent)]
    Mint(#[from] MintError),
}

/// A path of one of the three formats.
#[derive(Clone, Debug)]
pub struct Path {
    hops: Vec<Hop>,
    labels: Vec<Label>,
    expiry: u64,
    mtu: u16,
    proofs: Proofs,
}

impl Path {
    /// A path of ICING nodes, the sender first, without consents. `expiry` is the last Unix second at which all of it is
    /// known to be there; `mtu` has octets of a whole ICING packet.
    ///
    /// # Errors
    /// If there are not 2 to 16 hops, one occurs twice or is no node.
    pub fn icing(hops: Vec<Hop>, expiry: u64, mtu: u16) -> Result<Self, PathError> {
        if !(MIN_NODES..=MAX_NODES).contains(&hops.len()) {
            return Err(PathError::Count(hops.len()));
        }
        for (index, hop) in hops.iter().enumerate() {
            let HopId::Node { identity, id, .. } = hop.at else { return Err(PathError::HopFormat(index)) };
            let is_same =
                |other: &Hop| matches!(other.at, HopId::Node { identity: i, id: d, .. } if i == identity || d == id);
            if hops[..index].iter().any(is_same) {
                return Err(PathError::Repeated(index));
            }
        }
        let proofs = vec![None; hops.len() - 1];
        let consents = Consents { version: Version::Standard, unread_by: 0, unsealed_by: 0, proofs };
        Ok(Self { hops, labels: Vec::new(), expiry, mtu, proofs: Proofs::Icing(consents) })
    }

    /// A path of SCION ASes over the hop fields of `path`; it ends with the first of them. `mtu` has octets of a whole SCION
    /// packet.
    ///
    /// # Errors
    /// If there is no hop, or one is no AS.
    pub fn scion(hops: Vec<Hop>, path: StandardPath, mtu: u16) -> Result<Self, PathError> {
        check_all(&hops, |at| matches!(at, HopId::As(_)))?;
        let end = |(number, field): (usize, &crate::scion::header::HopField)| {
            let info = path.infos.get(path.meta.segment_of(number))?;
            Some(hop_expiry(info.timestamp, field.exp_time).secs())
        };
        let expiry = path.hops.iter().enumerate().filter_map(end).min().ok_or(PathError::Count(0))?;
        Ok(Self { hops, labels: Vec::new(), expiry, mtu, proofs: Proofs::Scion(path) })
    }

    /// A path over the waypoints of these capabilities; it ends with the first of their key epochs. `mtu` has octets of a
    /// whole IP packet.
    ///
    /// # Errors
    /// If there is none.
    pub fn platypus(capabilities: Vec<platypus::mint::Hop>, mtu: u16) -> Result<Self, PathError> {
        let end = |hop: &platypus::mint::Hop| {
            epoch_begin(hop.capability.interval, hop.capability.epoch) + (1 << hop.capability.interval.exponent()) - 1
        };
        let expiry = capabilities.iter().map(end).min().ok_or(PathError::Count(0))?;
        let hop =
            |hop: &platypus::mint::Hop| Hop { at: HopId::Waypoint(hop.capability.waypoint), ingress: 0, egress: 0 };
        let hops = capabilities.iter().map(hop).collect();
        Ok(Self { hops, labels: Vec::new(), expiry, mtu, proofs: Proofs::Platypus(capabilities) })
    }

    /// The same path with these statements about its hops.
    ///
    /// # Errors
    /// If there are too many, or one names no hop.
    pub fn with_labels(mut self, labels: Vec<Label>) -> Result<Self, PathError> {
        if labels.len() > MAX_LABELS {
            return Err(PathError::Labels(labels.len()));
        }
        if let Some(label) = labels.iter().find(|label| usize::from(label.hop) >= self.hops.len()) {
            return Err(PathError::NoSuchHop(label.hop.into()));
        }
        self.labels = labels;
        Ok(self)
    }

    #[must_use]
    pub fn format(&self) -> Format {
        match self.proofs {
            Proofs::Icing(_) => Format::Icing,
            Proofs::Scion(_) => Format::Scion,
            Proofs::Platypus(_) => Format::Platypus,
        }
    }

    /// The hops in the order of travel; for ICING the sender is the first one.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }

    #[must_use]
    pub fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// The last Unix second at which packets may be sent: of the path, and of every proof that is there.
    #[must_use]
    pub fn expiry(&self) -> u64 {
        match &self.proofs {
            Proofs::Icing(consents) => {
                consents.proofs.iter().flatten().map(|(expiry, _)| u64::from(*expiry)).fold(self.expiry, u64::min)
            }
            _ => self.expiry,
        }
    }

    /// Octets of the longest packet, as its format counts them.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// The nodes of a path of ICING: identity, ID and tag each, the sender first.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (IdentityKey, NodeId, Tag)> {
        let nodes: Vec<_> = self.hops.iter().filter_map(|hop| hop.at.node()).collect();
        nodes.into_iter()
    }

    /// What nodes consent to (ICING): the hash over IDs and tags.
    ///
    /// # Errors
    /// If the path is of another format.
    pub fn consent_hash(&self, version: Version) -> Result<PathHash, PathError> {
        Ok(self.header_path(|_| Ok(0))?.hash(version))
    }

    /// Adds the consent of node `index`, which is behind the sender, until the Unix second `expiry`.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn add_consent(&mut self, index: usize, expiry: u32, consent: Consent) -> Result<(), PathError> {
        let format = self.format();
        let Proofs::Icing(consents) = &mut self.proofs else { return Err(PathError::Format(format)) };
        let slot =
            index.checked_sub(1).and_then(|hop| consents.proofs.get_mut(hop)).ok_or(PathError::NoSuchHop(index))?;
        *slot = Some((expiry, consent));
        Ok(())
    }

    /// The version of the packets that the consents are for (ICING): [`Version::Standard`] unless it was set.
    #[must_use]
    pub fn version(&self) -> Version {
        match &self.proofs {
            Proofs::Icing(consents) => consents.version,
            Proofs::Scion(_) | Proofs::Platypus(_) => Version::Standard,
        }
    }

    /// Sets the version of the packets that the consents are for; without effect on a path of another format.
    pub fn set_version(&mut self, version: Version) {
        if let Proofs::Icing(consents) = &mut self.proofs {
            consents.version = version;
            if version == Version::Sealed {
                consents.unsealed_by = 0;
            }
        }
    }

    /// The nodes, by their numbers on the path in that order, that do not read packets for sealed payloads.
    pub fn unread_by(&self) -> impl Iterator<Item = usize> {
        indices(self.consents().map_or(0, |consents| consents.unread_by))
    }

    /// The nodes, likewise, that did not consent to packets for sealed payloads, so that the consents are for others.
    pub fn unsealed_by(&self) -> impl Iterator<Item = usize> {
        indices(self.consents().map_or(0, |consents| consents.unsealed_by))
    }

    /// Adds a node that does not read packets for sealed payloads; without effect on a path of another format.
    pub fn add_unread_by(&mut self, index: usize) {
        if let (Proofs::Icing(consents), 0..MAX_NODES) = (&mut self.proofs, index) {
            consents.unread_by |= 1 << index;
        }
    }

    /// Adds a node that did not consent to packets for sealed payloads; without effect on a path of another format.
    pub fn add_unsealed_by(&mut self, index: usize) {
        if let (Proofs::Icing(consents), 0..MAX_NODES) = (&mut self.proofs, index) {
            consents.unsealed_by |= 1 << index;
        }
    }

    fn consents(&self) -> Option<&Consents> {
        match &self.proofs {
            Proofs::Icing(consents) => Some(consents),
            Proofs::Scion(_) | Proofs::Platypus(_) => None,
        }
    }

    /// The path that stands in packets of ICING.
    ///
    /// # Errors
    /// If the path is of another format, or a consent is missing.
    pub fn icing_path(&self) -> Result<icing::header::Path, PathError> {
        self.header_path(|consent| consent.map(|(expiry, _)| *expiry).ok_or(()))
    }

    /// What makes packets of ICING, for the node with `secret`.
    ///
    /// # Errors
    /// If the path is of another format, a consent is missing, or the path begins at another node.
    pub fn sender(&self, version: Version, secret: &NodeSecret) -> Result<Sender, PathError> {
        self.sender_with(version, secret, |_| None)
    }

    /// The same, with the keys that the node has `agreed` on before, see [`Sender::with_agreed`].
    ///
    /// # Errors
    /// As [`Path::sender`].
    pub fn sender_with(
        &self,
        version: Version,
        secret: &NodeSecret,
        agreed: impl Fn(&NodeId) -> Option<PairKey>,
    ) -> Result<Sender, PathError> {
        let path = self.icing_path()?;
        let Proofs::Icing(consents) = &self.proofs else { return Err(PathError::Format(self.format())) };
        let consents: Vec<Consent> = consents.proofs.iter().flatten().map(|(_, consent)| consent.clone()).collect();
        Ok(Sender::with_agreed(version, &path, secret, &consents, agreed)?)
    }

    /// What stands in headers of SCION.
    ///
    /// # Errors
    /// If the path is of another format.
    pub fn standard_path(&self) -> Result<&StandardPath, PathError> {
        match &self.proofs {
            Proofs::Scion(path) => Ok(path),
            _ => Err(PathError::Format(self.format())),
        }
    }

    /// How packets of Platypus are stamped.
    ///
    /// # Errors
    /// If the path is of another format.
    pub fn stamping(&self, nonce: Nonce, sealed: bool, carriage: Carriage) -> Result<Route<'_>, PathError> {
        match &self.proofs {
            Proofs::Platypus(hops) => Ok(Route { hops, nonce, sealed, reply_option: &[], carriage }),
            _ => Err(PathError::Format(self.format())),
        }
    }

    fn header_path(
        &self,
        expiry: impl Fn(Option<&(u32, Consent)>) -> Result<u32, ()>,
    ) -> Result<icing::header::Path, PathError> {
        let Proofs::Icing(consents) = &self.proofs else { return Err(PathError::Format(self.format())) };
        let mut nodes = self.nodes();
        let (_, sender, _) = nodes.next().ok_or(PathError::Count(0))?;
        let hops: Result<Vec<_>, PathError> = (1..)
            .zip(nodes.zip(&consents.proofs))
            .map(|(index, ((_, node, tag), consent))| {
                let expiry = expiry(consent.as_ref()).map_err(|()| PathError::Consent(index))?;
                Ok(icing::header::Hop { node, tag, expiry })
            })
            .collect();
        // The constructor has checked count and repeats.
        icing::header::Path::new(sender, &hops?).map_err(|_| PathError::Count(self.hops.len()))
    }
}

impl HopId {
    /// Identity, ID and tag of a node of ICING.
    #[must_use]
    pub fn node(&self) -> Option<(IdentityKey, NodeId, Tag)> {
        match *self {
            HopId::Node { identity, id, tag } => Some((identity, id, tag)),
            _ => None,
        }
    }
}

fn check_all(hops: &[Hop], is_right: impl Fn(&HopId) -> bool) -> Result<(), PathError> {
    if hops.is_empty() {
        return Err(PathError::Count(0));
    }
    match hops.iter().position(|hop| !is_right(&hop.at)) {
        Some(index) => Err(PathError::HopFormat(index)),
        None => Ok(()),
    }
}

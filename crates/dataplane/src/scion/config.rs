//! A SCION router's configuration: its AS, interfaces and keys.

use thiserror::Error;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_packet::scion::{ForwardingKey, HostAddress, IsdAs, Link};

use super::delivery::LocalDelivery;

/// Which router of the AS has an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    This,
    /// Another router of the AS, by its index among the siblings.
    Sibling(u16),
}

/// An interface of the AS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Unique within the AS; never zero.
    pub id: u16,
    pub link: Link,
    /// The AS at the other end.
    pub neighbor: IsdAs,
    pub owner: Owner,
}

/// A key, and the time from which segments are minted with it.
#[derive(Clone, Debug)]
pub struct EpochKey {
    /// In Unix seconds. Segments whose timestamp is this or later use this key, up to the time of the next key.
    pub from: u32,
    pub key: ForwardingKey,
}

/// The one or two keys that are live. The timestamp of a segment tells which one its hop fields are under, so that a
/// rotation of keys loses no packet, and no MAC is tried under both.
#[derive(Clone, Debug)]
pub struct Keys {
    pub(super) old: ForwardingKey,
    pub(super) new: ForwardingKey,
    pub(super) new_from: u32,
}

impl Keys {
    /// One key for all.
    #[must_use]
    pub fn one(key: ForwardingKey) -> Self {
        Self { old: key.clone(), new: key, new_from: 0 }
    }

    /// `next` for segments from its time on, and the key that was the newer one until now for those before.
    #[must_use]
    pub fn rotated(&self, next: EpochKey) -> Self {
        Self { old: self.new.clone(), new: next.key, new_from: next.from }
    }

    /// Whether a segment of `timestamp` is under the newer key.
    #[inline]
    pub(super) fn newer(&self, timestamp: u32) -> bool {
        timestamp >= self.new_from
    }

    /// The kernel of the newer key, for which the router's other code is compiled too.
    #[inline]
    pub(super) fn kernel(&self) -> CpuKernel {
        self.new.kernel()
    }

    /// The key that segments of `timestamp` are under.
    pub(super) fn of(&self, timestamp: u32) -> &ForwardingKey {
        if self.newer(timestamp) { &self.new } else { &self.old }
    }
}

/// What a router is set up with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The AS that the router belongs to.
    pub isd_as: IsdAs,
    /// The router's own address: the source of its SCMP messages.
    pub address: HostAddress,
    /// How many other routers the AS has.
    pub siblings: u16,
    /// All interfaces of the AS, those of its other routers too.
    pub interfaces: Vec<Interface>,
    pub keys: Keys,
    /// How hosts and services of the AS are reached.
    pub local: LocalDelivery,
    /// The limit of SCMP messages: [`AnswerLimit`](crate::answers::AnswerLimit) says how the places share it where packets
    /// come in (hosts, each sibling, each interface of this router).
    pub answers_per_second: u32,
    /// How many SCMP messages may be sent at once.
    pub answers_burst: u32,
}

/// Why a configuration is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// Zero stands for the AS itself.
    #[error("an interface has number 0; interface numbers begin at 1")]
    InterfaceZero,
    /// Two interfaces have the same number.
    #[error("interface {0} is configured twice")]
    Duplicate(u16),
    /// An interface belongs to a router that is not configured.
    #[error("interface {interface} belongs to sibling {sibling}, which is not configured")]
    NoSuchSibling { interface: u16, sibling: u16 },
    /// A link from the AS to itself, or to no AS.
    #[error("interface {interface} has neighbour {neighbor}, which is a wildcard or this AS itself")]
    Neighbor { interface: u16, neighbor: IsdAs },
    /// The router's own AS is a wildcard.
    #[error("{0} is a wildcard, not an AS")]
    IsdAs(IsdAs),
}

/// An interface as the router looks it up, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RouterInterface {
    pub(super) link: Link,
    pub(super) owner: Owner,
    pub(super) up: bool,
    pub(super) neighbor: IsdAs,
    /// Its number among the places where packets come in that are answered: behind hosts and siblings.
    pub(super) place: u16,
}

/// The interfaces of an AS by their numbers.
pub(super) type Interfaces = Box<[Option<RouterInterface>]>;

/// The interfaces of an AS, and how many places there are where packets come in: hosts, siblings, and each
/// interface of this router.
pub(super) fn interfaces(config: &Config) -> Result<(Interfaces, usize), ConfigError> {
    if config.isd_as.isd() == 0 || config.isd_as.asn() == 0 {
        return Err(ConfigError::IsdAs(config.isd_as));
    }
    let count = config.interfaces.iter().map(|interface| usize::from(interface.id) + 1).max().unwrap_or(0);
    let mut interfaces = vec![None; count].into_boxed_slice();
    let mut places = 1 + usize::from(config.siblings);
    for &Interface { id, link, neighbor, owner } in &config.interfaces {
        if id == 0 {
            return Err(ConfigError::InterfaceZero);
        }
        if let Owner::Sibling(sibling) = owner
            && sibling >= config.siblings
        {
            return Err(ConfigError::NoSuchSibling { interface: id, sibling });
        }
        if neighbor == config.isd_as || neighbor.isd() == 0 || neighbor.asn() == 0 {
            return Err(ConfigError::Neighbor { interface: id, neighbor });
        }
        // There are at most 65,535 siblings and as many interfaces; a place beyond the number shares that of hosts.
        let place = u16::try_from(places).unwrap_or(0);
        if interfaces[usize::from(id)].replace(RouterInterface { link, owner, up: true, neighbor, place }).is_some() {
            return Err(ConfigError::Duplicate(id));
        }
        places += usize::from(owner == Owner::This);
    }
    Ok((interfaces, places))
}

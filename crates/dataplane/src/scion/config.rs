//! What a SCION router is told about itself, its links and its keys.

use thiserror::Error;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_packet::scion::{ForwardingKey, HostAddress, IsdAs};

/// What a link is to this AS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Link {
    /// Between core ASes.
    Core,
    /// The neighbour is our provider.
    Parent,
    /// The neighbour is our customer.
    Child,
    /// The neighbour is our peer.
    Peer,
}

/// Which router of the AS has an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// This one.
    This,
    /// Another one, by its place among our siblings.
    Sibling(u16),
}

/// An interface of the AS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its number in the AS; never zero.
    pub id: u16,
    /// What its link is.
    pub link: Link,
    /// The AS at the other end.
    pub neighbor: IsdAs,
    /// Which router has it.
    pub owner: Owner,
}

/// A key and since when segments are minted with it.
#[derive(Clone, Debug)]
pub struct EpochKey {
    /// Segments whose timestamp (Unix seconds) is this or later use this key, unless a later key takes them.
    pub from: u32,
    /// The key.
    pub key: ForwardingKey,
}

/// The one or two keys that are live. Which of them a hop field uses follows from its segment's timestamp, so that a
/// rotation loses no packet and costs no second try.
#[derive(Clone, Debug)]
pub struct Keys {
    pub(crate) old: ForwardingKey,
    pub(crate) new: ForwardingKey,
    pub(crate) new_from: u32,
}

impl Keys {
    /// One key for all.
    #[must_use]
    pub fn one(key: ForwardingKey) -> Self {
        Self { old: key.clone(), new: key, new_from: 0 }
    }

    /// `next` for segments from its time on, and what was the newer key until now for those before.
    #[must_use]
    pub fn rotated(&self, next: EpochKey) -> Self {
        Self { old: self.new.clone(), new: next.key, new_from: next.from }
    }

    /// Whether a segment of `timestamp` is under the newer key.
    #[inline]
    pub(crate) fn newer(&self, timestamp: u32) -> bool {
        timestamp >= self.new_from
    }

    /// The code that computes with the newer key, and whose instructions other checks may have.
    #[inline]
    pub(crate) fn kernel(&self) -> CpuKernel {
        self.new.kernel()
    }

    /// The key a segment of `timestamp` is under.
    pub(crate) fn of(&self, timestamp: u32) -> &ForwardingKey {
        if self.newer(timestamp) { &self.new } else { &self.old }
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Config {
    /// This AS.
    pub isd_as: IsdAs,
    /// This router, as the source of its answers.
    pub address: HostAddress,
    /// Other routers of this AS.
    pub siblings: u16,
    /// All interfaces of the AS, those of its other routers too.
    pub interfaces: Vec<Interface>,
    /// The keys.
    pub keys: Keys,
    /// SCMP answers a second.
    pub answers_per_second: u32,
    /// SCMP answers at once.
    pub answers_burst: u32,
}

/// Why a configuration makes no router.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// Zero stands for the AS itself.
    #[error("an interface has the number 0")]
    InterfaceZero,
    /// Two interfaces have one number.
    #[error("interface {0} is there twice")]
    Duplicate(u16),
    /// An interface belongs to a router that is not there.
    #[error("interface {interface} belongs to sibling {sibling}, which is not there")]
    NoSuchSibling {
        /// The interface.
        interface: u16,
        /// The sibling's place.
        sibling: u16,
    },
    /// A link from the AS to itself, or to no AS.
    #[error("the neighbour {neighbor} of interface {interface} cannot be one")]
    Neighbor {
        /// The interface.
        interface: u16,
        /// What is given as its neighbour.
        neighbor: IsdAs,
    },
    /// The AS itself is a wildcard.
    #[error("{0} is no AS")]
    IsdAs(IsdAs),
}

/// An interface as the fast path looks it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    pub(crate) link: Link,
    pub(crate) owner: Owner,
    pub(crate) up: bool,
    pub(crate) neighbor: IsdAs,
}

/// The ports of an AS by interface number.
pub(crate) fn ports(config: &Config) -> Result<Box<[Option<Port>]>, ConfigError> {
    if config.isd_as.isd() == 0 || config.isd_as.asn() == 0 {
        return Err(ConfigError::IsdAs(config.isd_as));
    }
    let count = config.interfaces.iter().map(|interface| usize::from(interface.id) + 1).max().unwrap_or(0);
    let mut ports = vec![None; count].into_boxed_slice();
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
        if ports[usize::from(id)].replace(Port { link, owner, up: true, neighbor }).is_some() {
            return Err(ConfigError::Duplicate(id));
        }
    }
    Ok(ports)
}

/// Which links may follow each other within a segment: no valley and no U-turn. From and to core, parent, child, peer.
pub(crate) const WITHIN: [[bool; 4]; 4] =
    [[true, false, false, false], [false, false, true, false], [false, true, false, true], [false, false, true, false]];

/// What a plain transit packet meets at an interface, a bit for each kind of link.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// Of the link itself.
    link: u8,
    /// Of the links from which packets may leave here: none if another router has the interface, or the link is down.
    from: u8,
}

impl Way {
    fn of(port: &Port) -> Self {
        let leaves = port.up && port.owner == Owner::This;
        let from = (0..4).filter(|link| leaves && WITHIN[*link][port.link as usize]);
        Self { link: 1 << port.link as u8, from: from.fold(0, |bits, link| bits | 1 << link) }
    }
}

/// All interfaces in that form.
#[derive(Clone, Debug)]
pub(crate) struct Ways(Box<[Way]>);

impl Ways {
    pub(crate) fn new(ports: &[Option<Port>]) -> Self {
        Self(ports.iter().map(|port| port.as_ref().map_or(Way::default(), Way::of)).collect())
    }

    /// Takes what `interface` now is.
    pub(crate) fn set(&mut self, interface: u16, port: &Port) {
        if let Some(way) = self.0.get_mut(usize::from(interface)) {
            *way = Way::of(port);
        }
    }

    /// For packets that come in by `interface`.
    #[inline(always)]
    pub(crate) fn entering(&self, interface: u16) -> WayIn {
        WayIn { interface, link: self.0.get(usize::from(interface)).map_or(0, |way| way.link) }
    }

    /// Whether such a packet may leave by `egress` within its segment, here and now.
    #[inline(always)]
    pub(crate) fn may_leave(&self, by: WayIn, egress: u16) -> bool {
        self.0.get(usize::from(egress)).map_or(0, |way| way.from) & by.link != 0
    }
}

/// A way in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WayIn {
    pub(crate) interface: u16,
    /// The bit of its link; none if there is no such interface.
    link: u8,
}

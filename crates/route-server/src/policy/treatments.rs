//! What communities change in a route for its receivers: prepending, NO_EXPORT and NO_ADVERTISE.
//!
//! What goes to all, the announcer's own proxy does: it prepends before the route is checked and signed, and adds the communities before it is
//! sealed. What goes to one peer cannot be done there, since all receivers have one object. By default it is not done, so that no receiver
//! learns how others are treated: the route goes to that peer without the additional hops, and with NO_EXPORT or NO_ADVERTISE to be added
//! it does not go there at all ([`CommunityReason::Restricted`](super::communities::CommunityReason)). With [`PerPeer::Readable`] these
//! communities stay in the object, and each receiver's proxy does what names it, and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wayleave_bgp::{Attributes, Community};
use wayleave_core::Asn;

use super::communities::{self, Control};
use super::config::PerPeer;

/// What is changed for one receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Treatment {
    /// How often the announcer's AS is added in front of the path.
    pub prepend: u8,
    pub no_export: bool,
    pub no_advertise: bool,
}

impl Treatment {
    /// What both demand: of two numbers the larger one.
    fn and(self, other: Self) -> Self {
        Self {
            prepend: self.prepend.max(other.prepend),
            no_export: self.no_export || other.no_export,
            no_advertise: self.no_advertise || other.no_advertise,
        }
    }

    /// The attributes with all but the prepending.
    fn add_communities(self, attributes: &Attributes) -> Attributes {
        let mut all: Vec<Community> = attributes.communities().collect();
        let before = all.len();
        for (community, is_wanted) in
            [(Community::NO_EXPORT, self.no_export), (Community::NO_ADVERTISE, self.no_advertise)]
        {
            if is_wanted && !all.contains(&community) {
                all.push(community);
            }
        }
        if all.len() == before { attributes.clone() } else { attributes.edit().communities(&all).finish() }
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = match self.prepend {
            0 => None,
            1 => Some("the path is prepended once"),
            2 => Some("the path is prepended twice"),
            _ => Some("the path is prepended three times"),
        };
        let parts = [
            times,
            self.no_export.then_some("NO_EXPORT is added"),
            self.no_advertise.then_some("NO_ADVERTISE is added"),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// What all communities of a route demand together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Treatments {
    to_all: Treatment,
    to_peer: BTreeMap<Asn, Treatment>,
}

impl Treatments {
    /// Reads the communities of `attributes` at the route server of AS `rs`.
    #[must_use]
    pub fn read(attributes: &Attributes, rs: Asn) -> Self {
        let mut all = Self::default();
        for control in communities::all(attributes, rs) {
            let (treatment, to) = match control {
                Control::Prepend(prepend, to) => (Treatment { prepend, ..Treatment::default() }, to),
                Control::NoExport(to) => (Treatment { no_export: true, ..Treatment::default() }, to),
                Control::NoAdvertise(to) => (Treatment { no_advertise: true, ..Treatment::default() }, to),
                Control::Deny(_) | Control::Allow(_) | Control::None | Control::All | Control::Unknown => continue,
            };
            let place = to.map_or(&mut all.to_all, |peer| all.to_peer.entry(peer).or_default());
            *place = place.and(treatment);
        }
        all
    }

    /// What all receivers get.
    #[must_use]
    pub fn to_all(&self) -> Treatment {
        self.to_all
    }

    /// Those at which NO_EXPORT or NO_ADVERTISE is to be added and is not for all.
    #[must_use]
    pub fn restricted(&self) -> BTreeSet<Asn> {
        let all = self.to_all;
        let is_restricted = |own: &Treatment| own.no_export && !all.no_export || own.no_advertise && !all.no_advertise;
        self.to_peer.iter().filter(|(_, own)| is_restricted(own)).map(|(peer, _)| *peer).collect()
    }

    /// Whether anything is asked for one peer alone.
    #[must_use]
    pub fn names_peers(&self) -> bool {
        !self.to_peer.is_empty()
    }

    /// What is done for a receiver: what names it, only if its own proxy may read that.
    #[must_use]
    pub fn done_for(&self, receiver: Asn, per_peer: PerPeer) -> Treatment {
        match per_peer {
            PerPeer::Readable => self.to(receiver),
            PerPeer::Private => self.to_all,
        }
    }

    /// What a receiver gets whose own proxy does what names it: of two numbers of hops the larger one.
    #[must_use]
    pub fn to(&self, peer: Asn) -> Treatment {
        self.to_peer.get(&peer).map_or(self.to_all, |own| self.to_all.and(*own))
    }
}

/// A route of the own router with the hops that its communities add for all receivers. To be called once, and before it is checked and
/// signed: receivers check the path that they get.
#[must_use]
pub fn prepended(attributes: Attributes, rs: Asn) -> Attributes {
    let times = Treatments::read(&attributes, rs).to_all.prepend;
    prepend(attributes, times)
}

/// The attributes as they are sealed, as far as communities say.
pub(super) fn sealed(attributes: &Attributes, rs: Asn, per_peer: PerPeer) -> Attributes {
    let kept = |control| match control {
        Control::Prepend(..) | Control::NoExport(Some(_)) | Control::NoAdvertise(Some(_)) => {
            per_peer == PerPeer::Readable
        }
        _ => false,
    };
    Treatments::read(attributes, rs).to_all.add_communities(&communities::retain(attributes, rs, kept))
}

/// A route that was opened, with what communities in it ask for this receiver but for the hops of its path, whose number is the second value; and
/// without any of the exchange's own communities, whatever its announcer's proxy left in it.
#[must_use]
pub fn received(attributes: Attributes, rs: Asn, receiver: Asn) -> (Attributes, u8) {
    if communities::all(&attributes, rs).next().is_none() {
        return (attributes, 0);
    }
    let treatments = Treatments::read(&attributes, rs);
    let treatment = treatments.to(receiver);
    // Those for all are on the path already.
    let times = treatment.prepend - treatments.to_all.prepend;
    (treatment.add_communities(&communities::strip(&attributes, rs)), times)
}

/// The attributes with the first AS of the path in front of it so many times more.
#[must_use]
pub fn prepend(attributes: Attributes, times: u8) -> Attributes {
    match attributes.as_path().first_asn() {
        Some(first) if times > 0 => attributes.edit().prepend(first, times.into()).finish(),
        _ => attributes,
    }
}

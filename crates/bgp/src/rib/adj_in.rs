//! Adj-RIB-In: the routes that one peer has announced and not withdrawn.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Instant, Prefix};

use crate::{Attributes, Nlri};

/// A route of an [`AdjRibIn`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Its attributes, as they came.
    pub attributes: Arc<Attributes>,
    /// Kept from before the peer's restart and not yet announced again (RFC 4724 section 4.2).
    pub stale: bool,
}

/// What happens at the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitAction {
    /// Report it only.
    Warn,
    /// Take no further prefix; known ones may still change.
    Refuse,
    /// Stop the session (RFC 4486 subcode 1). The route is not taken.
    Stop,
}

/// How many prefixes a peer may announce, for each family.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MaxPrefixes {
    /// IPv4 prefixes; `None`: any number.
    pub ipv4: Option<u32>,
    /// IPv6 prefixes; `None`: any number.
    pub ipv6: Option<u32>,
    /// Warn at this percentage of the limit.
    pub warn_percent: u8,
    pub action: LimitAction,
}

impl MaxPrefixes {
    /// No limit.
    pub const NONE: MaxPrefixes = MaxPrefixes { ipv4: None, ipv6: None, warn_percent: 80, action: LimitAction::Warn };

    fn limit(&self, afi: Afi) -> Option<u32> {
        match afi {
            Afi::Ipv4 => self.ipv4,
            Afi::Ipv6 => self.ipv6,
        }
    }
}

/// What an announcement did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Announced {
    /// The route is new.
    New,
    /// It takes the place of an older one with the same key (implicit withdraw).
    Replaced,
    /// It is the one already there.
    Unchanged,
    /// New, and the family has just reached the percentage, or has gone over a limit that only warns.
    NewWithWarning {
        /// Prefixes of the family now.
        prefixes: u32,
        limit: u32,
    },
    /// Not taken: beyond the limit.
    Refused { limit: u32 },
    /// Not taken: beyond the limit, and the session is to be stopped with
    /// [`StopReason::MaximumPrefixes`](crate::session::StopReason::MaximumPrefixes).
    StopSession { afi: Afi, limit: u32 },
}

/// The routes of one peer, in prefix order, then by path identifier.
#[derive(Clone, Debug)]
pub struct AdjRibIn {
    routes: BTreeMap<Nlri, Route>,
    /// Different prefixes, IPv4 then IPv6.
    prefixes: [u32; 2],
    /// Stale routes, IPv4 then IPv6.
    stale: [u32; 2],
    /// When stale routes go, at the latest, IPv4 then IPv6.
    stale_until: [Option<Instant>; 2],
    limits: MaxPrefixes,
}

impl AdjRibIn {
    /// Empty, under `limits`.
    #[must_use]
    pub fn new(limits: MaxPrefixes) -> Self {
        Self { routes: BTreeMap::new(), prefixes: [0; 2], stale: [0; 2], stale_until: [None; 2], limits }
    }

    /// Takes an announcement in; returns whether anything changed.
    pub fn announce(&mut self, nlri: Nlri, attributes: Arc<Attributes>) -> Announced {
        let afi = nlri.prefix.afi();
        if let Some(route) = self.routes.get_mut(&nlri) {
            let was_stale = std::mem::take(&mut route.stale);
            self.stale[index(afi)] -= u32::from(was_stale);
            if *route.attributes == *attributes {
                return Announced::Unchanged;
            }
            route.attributes = attributes;
            return Announced::Replaced;
        }
        let new_prefix = !self.has_prefix(&nlri.prefix);
        let limit = self.limits.limit(afi).filter(|_| new_prefix);
        let prefixes = self.prefixes[index(afi)] + u32::from(new_prefix);
        match (limit, self.limits.action) {
            (Some(limit), LimitAction::Refuse) if prefixes > limit => return Announced::Refused { limit },
            (Some(limit), LimitAction::Stop) if prefixes > limit => return Announced::StopSession { afi, limit },
            _ => {}
        }
        self.prefixes[index(afi)] = prefixes;
        self.routes.insert(nlri, Route { attributes, stale: false });
        match limit {
            Some(limit) if self.warns_at(prefixes, limit) => Announced::NewWithWarning { prefixes, limit },
            _ => Announced::New,
        }
    }

    /// Takes a withdrawal in; the route that is gone, if it was there.
    pub fn withdraw(&mut self, nlri: &Nlri) -> Option<Route> {
        let route = self.routes.remove(nlri)?;
        let at = index(nlri.prefix.afi());
        self.stale[at] -= u32::from(route.stale);
        if !self.has_prefix(&nlri.prefix) {
            self.prefixes[at] -= 1;
        }
        Some(route)
    }

    /// Marks every route of `afi` stale, until the peer announces it again: at most until `until`
    /// ([`AdjRibIn::purge_expired`]). What was stale already is not granted a second term (RFC 4724 section 4.2) and
    /// comes back, removed.
    pub fn mark_stale(&mut self, afi: Afi, until: Instant) -> Vec<(Nlri, Route)> {
        let gone = self.purge_stale(afi);
        for (nlri, route) in &mut self.routes {
            route.stale |= nlri.prefix.afi() == afi;
        }
        self.stale[index(afi)] = self.family(afi).count() as u32;
        self.stale_until[index(afi)] = Some(until);
        gone
    }

    /// Removes what is still stale in `afi`: at End-of-RIB, or at the end of a refresh (RFC 7313 section 4).
    pub fn purge_stale(&mut self, afi: Afi) -> Vec<(Nlri, Route)> {
        self.stale_until[index(afi)] = None;
        if self.stale[index(afi)] == 0 {
            return Vec::new();
        }
        self.purge(|nlri, route| nlri.prefix.afi() == afi && route.stale)
    }

    /// Removes what is stale past its time: End-of-RIB never came.
    pub fn purge_expired(&mut self, now: Instant) -> Vec<(Nlri, Route)> {
        let mut gone = Vec::new();
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            if self.stale_until[index(afi)].is_some_and(|until| until <= now) {
                gone.extend(self.purge_stale(afi));
            }
        }
        gone
    }

    /// When [`AdjRibIn::purge_expired`] is next due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.stale_until.iter().flatten().min().copied()
    }

    /// Removes every route of `afi`.
    pub fn purge_family(&mut self, afi: Afi) -> Vec<(Nlri, Route)> {
        self.stale_until[index(afi)] = None;
        self.purge(|nlri, _| nlri.prefix.afi() == afi)
    }

    /// Removes every route: the session is down and nothing is to be kept.
    pub fn clear(&mut self) -> Vec<(Nlri, Route)> {
        let limits = self.limits;
        std::mem::replace(self, Self::new(limits)).routes.into_iter().collect()
    }

    /// The route with this key.
    #[must_use]
    pub fn get(&self, nlri: &Nlri) -> Option<&Route> {
        self.routes.get(nlri)
    }

    /// All paths of a prefix, by path identifier.
    pub fn paths(&self, prefix: Prefix) -> impl Iterator<Item = (&Nlri, &Route)> {
        self.routes.range(Nlri { prefix, path_id: 0 }..=Nlri { prefix, path_id: u32::MAX })
    }

    /// All routes in prefix order: IPv4 first, by address, then length, then path identifier.
    pub fn iter(&self) -> impl Iterator<Item = (&Nlri, &Route)> {
        self.routes.iter()
    }

    /// Different prefixes of a family.
    #[must_use]
    pub fn prefixes(&self, afi: Afi) -> u32 {
        self.prefixes[index(afi)]
    }

    /// Stale routes of a family.
    #[must_use]
    pub fn stale(&self, afi: Afi) -> u32 {
        self.stale[index(afi)]
    }

    /// Routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether it has no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    fn purge(&mut self, condemned: impl Fn(&Nlri, &Route) -> bool) -> Vec<(Nlri, Route)> {
        let keys: Vec<Nlri> =
            self.routes.iter().filter(|(nlri, route)| condemned(nlri, route)).map(|(nlri, _)| *nlri).collect();
        keys.into_iter().filter_map(|nlri| self.withdraw(&nlri).map(|route| (nlri, route))).collect()
    }

    fn family(&self, afi: Afi) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(move |(nlri, _)| nlri.prefix.afi() == afi).map(|(_, route)| route)
    }

    fn has_prefix(&self, prefix: &Prefix) -> bool {
        self.paths(*prefix).next().is_some()
    }

    /// At the percentage exactly, so that it is reported once on the way up, and for every prefix over the limit.
    fn warns_at(&self, prefixes: u32, limit: u32) -> bool {
        let threshold = (u64::from(limit) * u64::from(self.limits.warn_percent)).div_ceil(100).max(1);
        u64::from(prefixes) == threshold || prefixes > limit
    }
}

fn index(afi: Afi) -> usize {
    match afi {
        Afi::Ipv4 => 0,
        Afi::Ipv6 => 1,
    }
}

//! A plaintext route server: what each member's table must be, computed from everything in the clear.
//!
//! It is the reference of the end-to-end tests. It shares policies, ranking and validation with the private machines and
//! nothing else: no version, no share, no round. What it says of a moment is what the private route server must come to
//! once everything announced up to that moment has been delivered.

use std::collections::BTreeMap;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Prefix, VerdictKind};

use crate::directory::{MemberSet, SetError, Slot, SlotId};
use crate::order::OrderKey;
use crate::policy::ranking::{RankInput, rank};
use crate::policy::validate::{Invalid, Martians, RouteRules, for_router, validate, validate_for};
use crate::policy::{ExportSet, Imported, Policy, export_set, sealed_attributes};

/// Whose preference decides first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precedence {
    /// The receiver's class, then the exchange's recommendation.
    #[default]
    Member,
    /// The exchange's recommendation, then the receiver's class.
    Exchange,
}

/// Why an announcement was not taken in. What the slot announced for the same key before is gone, but for
/// [`Refused::MaxPrefix`], where there was nothing before.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The slot is not an active one of the set.
    #[error("slot {0} is not active")]
    NotAMember(SlotId),
    /// The route is not usable.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The slot announces as much as it may already.
    #[error("slot {slot} already announces {most} prefixes")]
    MaxPrefix {
        slot: SlotId,
        /// Its limit.
        most: u32,
    },
}

/// A route of the table: who announced it, and the attributes that the receiver's router gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    pub announcer: SlotId,
    pub path_id: u32,
    /// The attributes, after the receiver's import rules.
    pub attributes: Attributes,
    /// The receiver's class.
    pub class: u8,
}

/// A route as its announcer sent it, and what follows from its announcer's policy.
#[derive(Clone, Debug)]
struct Announced {
    received: Attributes,
    verdict: VerdictKind,
    sealed: Attributes,
    export: ExportSet,
}

/// The route server in the clear.
#[derive(Clone, Debug)]
pub struct Oracle {
    members: MemberSet,
    rs: Asn,
    recommendation: BTreeMap<SlotId, u8>,
    precedence: Precedence,
    order: Option<OrderKey>,
    martians: Martians,
    policies: BTreeMap<SlotId, Policy>,
    /// By prefix, then by announcer and path identifier.
    routes: BTreeMap<Prefix, BTreeMap<(SlotId, u32), Announced>>,
    /// Keys that each slot announces.
    counts: BTreeMap<SlotId, usize>,
}

impl Oracle {
    /// An exchange without routes, whose route server has the AS number `rs` in communities. `recommendation` is by slot
    /// of the announcer, bigger is better, zero where absent.
    #[must_use]
    pub fn new(members: MemberSet, rs: Asn, recommendation: BTreeMap<SlotId, u8>) -> Self {
        Self {
            members,
            rs,
            recommendation,
            precedence: Precedence::default(),
            order: None,
            martians: Martians::default(),
            policies: BTreeMap::new(),
            routes: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// The same with this precedence.
    #[must_use]
    pub fn with_precedence(self, precedence: Precedence) -> Self {
        Self { precedence, ..self }
    }

    /// Routes are numbered under this key, as the parties do; without one, by announcer, then path identifier.
    pub fn set_order(&mut self, key: OrderKey) {
        self.order = Some(key);
    }

    /// The same with other martians.
    #[must_use]
    pub fn with_martians(self, martians: Martians) -> Self {
        Self { martians, ..self }
    }

    /// The member set as it is now.
    #[must_use]
    pub fn members(&self) -> &MemberSet {
        &self.members
    }

    /// A new epoch's recommendation.
    pub fn recommend(&mut self, recommendation: BTreeMap<SlotId, u8>) {
        self.recommendation = recommendation;
    }

    /// The member in `slot` has this policy from now on, for all its routes.
    pub fn set_policy(&mut self, slot: SlotId, policy: Policy) {
        self.policies.insert(slot, policy);
        self.export_again(|announcer| announcer == slot);
    }

    /// A member joins; its slot.
    pub fn join(&mut self, slot: Slot) -> Result<SlotId, SetError> {
        let mut next = self.members.clone();
        next.number += 1;
        next.slots.push(slot);
        self.adopt(next)?;
        Ok(self.members.slots.len() as SlotId - 1)
    }

    /// The member in `slot` leaves the exchange.
    pub fn leave(&mut self, slot: SlotId) -> Result<(), SetError> {
        let mut next = self.members.clone();
        next.number += 1;
        if let Some(leaver) = next.slots.get_mut(slot as usize) {
            leaver.active = false;
        }
        self.adopt(next)
    }

    /// The operator's next member set. Routes of leavers are gone.
    pub fn adopt(&mut self, next: MemberSet) -> Result<(), SetError> {
        next.may_follow(&self.members)?;
        self.members = next;
        let gone: Vec<SlotId> = self.members.iter().filter(|(_, slot)| !slot.active).map(|(id, _)| id).collect();
        gone.into_iter().for_each(|slot| self.withdraw_all(slot));
        self.export_again(|_| true);
        Ok(())
    }

    /// The member in `slot` announces `nlri` with `attributes`, as its router sent them. Answers which were not taken in,
    /// and why.
    pub fn announce(&mut self, slot: SlotId, nlri: &[Nlri], attributes: &Attributes) -> Vec<(Nlri, Refused)> {
        self.announce_with_verdict(slot, nlri, attributes, VerdictKind::default())
    }

    /// The same where validation has concluded something, the same at every receiver.
    pub fn announce_with_verdict(
        &mut self,
        slot: SlotId,
        nlri: &[Nlri],
        attributes: &Attributes,
        verdict: VerdictKind,
    ) -> Vec<(Nlri, Refused)> {
        let take = |nlri: &Nlri| Some((*nlri, self.announce_one(slot, *nlri, attributes, verdict).err()?));
        nlri.iter().filter_map(take).collect()
    }

    /// The member in `slot` withdraws `nlri`.
    pub fn withdraw(&mut self, slot: SlotId, nlri: &[Nlri]) {
        nlri.iter().for_each(|nlri| self.remove(slot, *nlri));
    }

    /// The member in `slot` is gone for longer than its routes are kept, or starts from nothing.
    pub fn withdraw_all(&mut self, slot: SlotId) {
        self.routes.retain(|_, routes| {
            routes.retain(|(announcer, _), _| *announcer != slot);
            !routes.is_empty()
        });
        self.counts.remove(&slot);
    }

    /// What the member in `slot` must have: for each prefix the announcer and the attributes of its best route.
    #[must_use]
    pub fn table(&self, slot: SlotId) -> BTreeMap<Prefix, (SlotId, Attributes)> {
        let best = |prefix: &Prefix| Some((*prefix, self.best(slot, *prefix)?));
        self.routes
            .keys()
            .filter_map(best)
            .map(|(prefix, offer)| (prefix, (offer.announcer, offer.attributes)))
            .collect()
    }

    /// The route to `prefix` that the member in `slot` must have, if any.
    #[must_use]
    pub fn best(&self, slot: SlotId, prefix: Prefix) -> Option<Offer> {
        let mut best: Option<((u8, u8), Offer)> = None;
        for offer in self.offers(slot, prefix) {
            let recommended = self.recommendation.get(&offer.announcer).copied().unwrap_or(0);
            let merit = match self.precedence {
                Precedence::Member => (offer.class, recommended),
                Precedence::Exchange => (recommended, offer.class),
            };
            // Only what is better displaces: ties go to the lowest number.
            if best.as_ref().is_none_or(|(other, _)| merit > *other) {
                best = Some((merit, offer));
            }
        }
        best.map(|(_, offer)| offer)
    }

    /// Every route to `prefix` that the member in `slot` may have and accepts, by number.
    #[must_use]
    pub fn offers(&self, slot: SlotId, prefix: Prefix) -> Vec<Offer> {
        let (Some(receiver), Some(routes)) = (self.members.active(slot), self.routes.get(&prefix)) else {
            return Vec::new();
        };
        let default = Policy::default();
        let policy = self.policies.get(&slot).unwrap_or(&default);
        let mut held = Vec::new();
        let mut routes: Vec<(&(SlotId, u32), &Announced)> = routes.iter().collect();
        if let Some(key) = &self.order {
            routes.sort_by_key(|((announcer, path_id), _)| key.number(*announcer, &Nlri { path_id: *path_id, prefix }));
        }
        for (&(id, path_id), route) in routes.into_iter().filter(|(_, route)| route.export.contains(slot)) {
            let Some(announcer) = self.members.active(id) else { continue };
            if validate_for(receiver.asn, prefix, &route.sealed, announcer, self.rules()).is_ok() {
                let verdict = route.verdict;
                held.push((id, RankInput { prefix, attributes: &route.sealed, announcer, path_id, verdict }));
            }
        }
        let classes = rank(policy, &held.iter().map(|(_, input)| *input).collect::<Vec<_>>());
        let offer = |((announcer, input), class): (&(SlotId, RankInput<'_>), Option<u8>)| {
            let Imported::Accepted(changes) = policy.import(&input.route()) else { return None };
            let attributes = for_router(prefix.afi(), changes.apply(input.attributes), self.rules());
            Some(Offer { announcer: *announcer, path_id: input.path_id, attributes, class: class? })
        };
        held.iter().zip(classes).filter_map(offer).collect()
    }

    fn rules(&self) -> RouteRules<'_> {
        RouteRules { profile: self.members.profile.as_ref(), ..self.martians.into() }
    }

    fn announce_one(
        &mut self,
        slot: SlotId,
        nlri: Nlri,
        received: &Attributes,
        verdict: VerdictKind,
    ) -> Result<(), Refused> {
        let announcer = self.members.active(slot).ok_or(Refused::NotAMember(slot))?;
        let sealed = sealed_attributes(received, self.rs);
        if let Err(invalid) = validate(nlri.prefix, &sealed, announcer, self.rules()) {
            self.remove(slot, nlri);
            return Err(invalid.into());
        }
        let most = announcer.max_prefix;
        let count = self.counts.entry(slot).or_default();
        let routes = self.routes.entry(nlri.prefix).or_default();
        if !routes.contains_key(&(slot, nlri.path_id)) {
            if most > 0 && *count >= most as usize {
                self.drop_if_empty(nlri.prefix);
                return Err(Refused::MaxPrefix { slot, most });
            }
            *count += 1;
        }
        let export = self.export(slot, nlri.prefix, received);
        let route = Announced { received: received.clone(), verdict, sealed, export };
        self.routes.entry(nlri.prefix).or_default().insert((slot, nlri.path_id), route);
        Ok(())
    }

    fn remove(&mut self, slot: SlotId, nlri: Nlri) {
        let removed = self.routes.get_mut(&nlri.prefix).and_then(|routes| routes.remove(&(slot, nlri.path_id)));
        if removed.is_some() {
            self.counts.entry(slot).and_modify(|count| *count -= 1);
            self.drop_if_empty(nlri.prefix);
        }
    }

    fn drop_if_empty(&mut self, prefix: Prefix) {
        if self.routes.get(&prefix).is_some_and(BTreeMap::is_empty) {
            self.routes.remove(&prefix);
        }
    }

    fn export(&self, slot: SlotId, prefix: Prefix, received: &Attributes) -> ExportSet {
        let default = Policy::default();
        let policy = self.policies.get(&slot).unwrap_or(&default);
        export_set(prefix, received, slot, &self.members, self.rs, policy)
    }

    /// Computes again who may have the routes of the announcers for which `of` holds.
    fn export_again(&mut self, of: impl Fn(SlotId) -> bool) {
        let mut routes = std::mem::take(&mut self.routes);
        for (prefix, by_number) in &mut routes {
            for ((announcer, _), route) in by_number.iter_mut().filter(|((announcer, _), _)| of(*announcer)) {
                route.export = self.export(*announcer, *prefix, &route.received);
            }
        }
        self.routes = routes;
    }
}

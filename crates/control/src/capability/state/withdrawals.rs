//! What ends in a state before its time, and which secrets that were looked up are revoked with it.

use std::collections::BTreeSet;

use wayleave_core::UnixTime;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::mint::epoch;
use wayleave_packet::platypus::revocation::Revocation;

use super::{ChangeBody, ChangeError, Delegated, ENDED_KEPT, EPOCHS, Entry, Grant, NONE, RatePayer, State, Terms};

impl State {
    /// Whether the revocations that a change makes at this second are within `most` with those in force.
    pub(super) fn check_revocations(&self, body: &ChangeBody, second: u64, most: usize) -> Result<(), ChangeError> {
        let more = match body {
            ChangeBody::Revoke(_) => 1,
            ChangeBody::WithdrawDelegation { holder, .. } => {
                self.most_withdrawn(holder, second) + EPOCHS * self.intervals_of(holder.principal, second).len()
            }
            ChangeBody::Withdraw(terms) | ChangeBody::WithdrawBranch(terms) => self.most_withdrawn(terms, second),
            ChangeBody::Close { principal } => EPOCHS * self.intervals_of(*principal, second).len(),
            _ => 0,
        };
        let is_full = |held: usize| held + more > most;
        let is_refused = more > 0 && is_full(self.revocations.len()) && is_full(self.in_force(second));
        if is_refused { Err(ChangeError::Revocations) } else { Ok(()) }
    }

    /// Revocations of delegations that end when these terms, or what was delegated from them, are withdrawn, at most.
    fn most_withdrawn(&self, terms: &Terms, second: u64) -> usize {
        let principal = terms.principal;
        let of_sources = self.sources_of(principal).filter_map(|sources| sources.delegation);
        let of_volumes = self.volumes_of(principal).filter_map(|(payer, _)| payer.delegation);
        let own = terms.delegation.map(|delegation| delegation.id);
        let bound: BTreeSet<DelegationId> =
            of_sources.chain(of_volumes).filter(|id| own.is_none_or(|own| own == *id)).collect();
        bound.len() * EPOCHS * self.intervals_of(principal, second).len()
    }

    /// The lengths of key epochs of which holders of an account may have secrets at this second: those of its grants, and of what was
    /// withdrawn lately.
    pub(super) fn intervals_of(&self, principal: Principal, second: u64) -> BTreeSet<Interval> {
        let withdrawn = self.withdrawn_of(principal).filter(|(_, until)| *until > second);
        self.granted_intervals(principal).into_iter().chain(withdrawn.map(|(interval, _)| interval)).collect()
    }

    /// Those of its grants.
    pub(super) fn granted_intervals(&self, principal: Principal) -> BTreeSet<Interval> {
        self.slots_of(principal).filter_map(|slot| self.interval_of(slot)).collect()
    }

    /// Revocations that have not expired at this second.
    fn in_force(&self, second: u64) -> usize {
        self.revocations.iter().filter(|entry| entry.expires_at().is_none_or(|expiry| expiry > second)).count()
    }

    pub(super) fn note_withdrawn(&mut self, terms: &Terms, second: u64) {
        let Terms { principal, interval, .. } = *terms;
        // The next epoch's secret can be looked up ahead, and is accepted until the end of the epoch after.
        let current = u64::from(epoch::epoch_at(interval, UnixTime(second.saturating_mul(1_000_000))));
        self.withdrawn.retain(|(of, _), until| *of != principal || *until > second);
        let until = (current + 3) << interval.exponent();
        // A clock that went back takes nothing from what was known.
        let held = self.withdrawn.entry((principal, interval)).or_insert(until);
        *held = until.max(*held);
    }

    pub(super) fn withdrawn_of(&self, principal: Principal) -> impl Iterator<Item = (Interval, u64)> {
        let first = (principal, Interval::SHORTEST);
        let of_principal = self.withdrawn.range(first..).take_while(move |((of, _), _)| *of == principal);
        of_principal.map(|((_, interval), until)| (*interval, *until))
    }

    /// Revokes the secrets of the key epochs that routers accept at this Unix second, or may accept next.
    pub(super) fn revoke_accepted(
        &mut self,
        principal: Principal,
        delegation: Option<(DelegationId, Option<DelegationId>)>,
        interval: Interval,
        second: u64,
    ) {
        let current = epoch::epoch_at(interval, UnixTime(second.saturating_mul(1_000_000)));
        for epoch in current.saturating_sub(1)..=current.saturating_add(1) {
            self.revocations.insert(Revocation { principal, delegation, epoch: Some((interval, epoch)) });
        }
    }

    /// Revokes a delegation that nobody has any more in the key epochs of which secrets may be out: at another waypoint they may have
    /// another length, and have been withdrawn before.
    fn revoke_withdrawn(
        &mut self,
        principal: Principal,
        delegation: (DelegationId, Option<DelegationId>),
        second: u64,
    ) {
        let withdrawn = self.withdrawn_of(principal).filter(|(_, until)| *until > second);
        let intervals: Vec<Interval> = withdrawn.map(|(interval, _)| interval).collect();
        for interval in intervals {
            self.revoke_accepted(principal, Some(delegation), interval, second);
        }
    }

    /// Ends a delegation of `holder` with all that was handed on from it. Revocations in all epochs stay: who ordered them is not known,
    /// and whoever had the number would have its keys again.
    pub(super) fn withdraw_delegation(
        &mut self,
        holder: &Terms,
        id: DelegationId,
        sub: Option<DelegationId>,
        second: u64,
    ) {
        let principal = holder.principal;
        self.note_withdrawn(holder, second);
        self.retain_grants(principal, second, |grant| !is_part(&grant.terms, holder, id, sub));
        // A revocation names no waypoint: as long as another one has this number, it is left alone.
        if !self.grants_of(principal).any(|grant| is_of(&grant.terms, id, sub)) {
            self.revoke_withdrawn(principal, (id, sub), second);
        }
    }

    /// Whether the delegation in a slot ended so long before this Unix second that it is forgotten.
    pub(super) fn is_past(&self, slot: u32, second: u64) -> bool {
        let ended = self.capped(slot).filter(|grant| grant.terms.delegation.is_some());
        ended.is_some_and(|grant| {
            let kept = ENDED_KEPT.max(3 << grant.terms.interval.exponent());
            grant.not_after.saturating_add(kept) < second
        })
    }

    /// The slots of an account but for those of delegations that are forgotten.
    pub(super) fn kept_slots_of(&self, principal: Principal) -> impl Iterator<Item = u32> {
        let second = self.settled();
        self.slots_of(principal).filter(move |slot| !self.is_past(*slot, second))
    }

    /// Ends one grant. What was delegated from it stands on what that was delegated from itself; if
    /// that is nothing, it ends no later than the grant would have.
    pub(super) fn withdraw(&mut self, terms: &Terms, second: u64) {
        let Some(slot) = self.find(terms) else { return };
        let above = self.entry(slot).and_then(|entry| entry.delegation.as_ref()).map_or(NONE, |held| held.from);
        if let Some(end) = self.capped(slot).filter(|_| above == NONE).map(|grant| grant.not_after) {
            let slots: Vec<u32> = self.slots_of(terms.principal).collect();
            for below in slots {
                let stands = |entry: &&mut Entry| entry.delegation.as_ref().is_some_and(|held| held.from == slot);
                let entry = self.entry_mut(below).filter(stands);
                entry.into_iter().for_each(|entry| entry.not_after = entry.not_after.min(end).max(entry.not_before));
            }
        }
        self.stand_on(terms.principal, above, |_, held| held.from == slot);
        self.retain_grants(terms.principal, second, |grant| grant.terms != *terms);
    }

    /// Says of some delegations of an account what the nearest grant is that they were delegated from.
    pub(super) fn stand_on(&mut self, principal: Principal, from: u32, is_meant: impl Fn(&Terms, &Delegated) -> bool) {
        let slots: Vec<u32> = self.slots_of(principal).collect();
        for slot in slots {
            let Some(Grant { terms, .. }) = self.grant(slot) else { continue };
            let delegated = self.entry_mut(slot).and_then(|entry| entry.delegation.as_mut());
            delegated.filter(|held| is_meant(&terms, held)).into_iter().for_each(|held| held.from = from);
        }
    }

    /// Ends the grants of an account that are not to stay, at this Unix second.
    pub(super) fn retain_grants(&mut self, principal: Principal, second: u64, stays: impl Fn(&Grant) -> bool) {
        let bound = self.retain_slots(principal, |state, slot| state.grant(slot).is_some_and(|grant| stays(&grant)));
        // Without its sources and its limits, what was looked up would be judged by the principal's.
        bound.into_iter().for_each(|id| self.revoke_withdrawn(principal, (id, None), second));
    }

    /// Frees the slots of an account that are not to stay. Delegations that nobody has any more lose their limits and sources: whoever is
    /// given a number anew begins without. Returns those that had any.
    pub(super) fn retain_slots(
        &mut self,
        principal: Principal,
        stays: impl Fn(&Self, u32) -> bool,
    ) -> Vec<DelegationId> {
        let slots: Vec<u32> = self.slots_of(principal).collect();
        let (kept, ended): (Vec<u32>, Vec<u32>) = slots.into_iter().partition(|slot| stays(self, *slot));
        for (at, slot) in kept.iter().enumerate() {
            let next = kept.get(at + 1).copied().unwrap_or(NONE);
            self.entry_mut(*slot).into_iter().for_each(|entry| entry.next = next);
        }
        let account = self.accounts.get_mut(&principal.number());
        account.into_iter().for_each(|account| account.first = kept.first().copied().unwrap_or(NONE));
        let ids = |state: &Self, slots: &[u32]| -> BTreeSet<DelegationId> {
            let delegated = slots.iter().filter_map(|slot| state.entry(*slot)?.delegation.as_ref());
            delegated.map(|held| held.delegation.id).collect()
        };
        let left: Vec<DelegationId> = ids(self, &ended).difference(&ids(self, &kept)).copied().collect();
        ended.into_iter().for_each(|slot| self.release(slot));
        let mut bound = Vec::new();
        for id in left {
            let payer = RatePayer { principal, delegation: Some(id) };
            let (sources, volume) = (self.sources.remove(&payer), self.quotas.remove(&payer));
            if self.limits.remove(&payer).is_some() || sources.is_some() || volume.is_some() {
                bound.push(id);
            }
        }
        bound
    }
}

/// Whether terms are of this delegation, or sub-delegation, or of what was handed on from it.
pub(super) fn is_of(terms: &Terms, id: DelegationId, sub: Option<DelegationId>) -> bool {
    let held = terms.delegation.filter(|held| held.id == id);
    held.is_some_and(|held| sub.is_none() || held.sub.map(|sub| sub.id) == sub)
}

/// The same, if the holder has them, or they were delegated from what it has.
pub(super) fn is_part(terms: &Terms, holder: &Terms, id: DelegationId, sub: Option<DelegationId>) -> bool {
    is_of(terms, id, sub) && (terms == holder || terms.is_below(holder))
}

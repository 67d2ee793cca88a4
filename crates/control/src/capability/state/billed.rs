//! What a provider's billing knows of the accounts and grants of a state.

use std::collections::{HashMap, HashSet};

use wayleave_packet::platypus::header::Principal;

use super::{Billing, BillingRecord, BillingSubject, ChangeError, MAX_BILLED, State, Terms};
use crate::capability::statement::MAX_PRICE_TAGS;

impl State {
    /// What billing knows of an account or a grant, if anything.
    #[must_use]
    pub fn billing(&self, of: &BillingSubject) -> Option<&BillingRecord> {
        self.billing.get(&of.principal)?.get(&of.grant)
    }

    /// The same of an account and of its grants, also of those that have ended.
    pub fn billing_of(&self, principal: Principal) -> impl Iterator<Item = (BillingSubject, &BillingRecord)> {
        let all = self.billing.get(&principal).into_iter().flatten();
        all.map(move |(grant, record)| (BillingSubject { principal, grant: *grant }, record))
    }

    /// Principals above `after`, in ascending order, whose account or a grant of it has this external ID.
    pub fn known_as(&self, external_id: &str, after: Option<Principal>) -> impl Iterator<Item = Principal> {
        let id = external_id.to_owned();
        let first = after.map_or(0, |after| after.number() + 1);
        let from = Principal::new(first).map(|first| (id.clone(), first));
        let found = from.into_iter().flat_map(|from| self.external_ids.range(from..));
        found.take_while(move |(known, _)| *known == id).map(|(_, principal)| *principal)
    }

    pub(super) fn check_billing(&self, of: &BillingSubject, billing: &Billing) -> Result<(), ChangeError> {
        if self.account(of.principal).is_none() {
            return Err(ChangeError::NoAccount(of.principal.number()));
        }
        if of.grant.is_some_and(|terms| self.find(&terms).is_none()) {
            return Err(ChangeError::NoGrant);
        }
        if !billing.is_sound() {
            return Err(ChangeError::Billing);
        }
        let is_full = self.elsewhere.billed + self.billed >= MAX_BILLED && self.billing(of).is_none();
        if is_full { Err(ChangeError::Billed) } else { Ok(()) }
    }

    /// Whether a price tag may be set now: a key server that knew of no such limit may have set more.
    pub(super) fn check_price(&self, of: &BillingSubject, billing: &Billing, second: u64) -> Result<(), ChangeError> {
        let held = self.billing(of);
        if held.is_some_and(|held| held.is_full(&billing.price, second)) {
            return Err(ChangeError::Prices);
        }
        let is_new = !billing.price.is_empty() && held.is_none_or(|held| held.present().price != billing.price);
        let tags: usize = self.billing_of(of.principal).map(|(_, record)| record.tags()).sum();
        if is_new && tags >= MAX_PRICE_TAGS { Err(ChangeError::PriceTags) } else { Ok(()) }
    }

    pub(super) fn set_billing(&mut self, of: &BillingSubject, billing: &Billing, second: u64) {
        self.change_billing(of.principal, |all| all.entry(of.grant).or_default().set(billing.clone(), second));
    }

    /// What has ended has no external ID, price tag or metadata any more; what price tags it had is known for a while, for statements.
    pub(super) fn end_billing(&mut self, principal: Principal, second: u64) {
        let Some(all) = self.billing.get(&principal) else { return };
        let settled = second.min(self.settled());
        let has_account = self.account(principal).is_some();
        let granted: HashSet<Terms> = self.grants_of(principal).map(|grant| grant.terms).collect();
        let is_there = |grant: &Option<Terms>| grant.map_or(has_account, |terms| granted.contains(&terms));
        let is_over = |(grant, record): (&Option<Terms>, &BillingRecord)| {
            let is_ended = !is_there(grant) && record.present() != Billing::default();
            is_ended || record.is_forgotten(settled)
        };
        if !all.iter().any(is_over) {
            return;
        }
        self.change_billing(principal, |all| {
            for (_, record) in all.iter_mut().filter(|(grant, _)| !is_there(grant)) {
                record.set(Billing::default(), second);
            }
            all.retain(|_, record| !record.is_forgotten(settled));
        });
    }

    /// Takes a row over.
    pub(super) fn restore_billing(&mut self, of: BillingSubject, record: BillingRecord) {
        self.change_billing(of.principal, |all| drop(all.insert(of.grant, record)));
    }

    pub(super) fn copy_billing(&mut self, from: &Self, principal: Principal) {
        if let Some(held) = from.billing.get(&principal) {
            self.change_billing(principal, |all| all.clone_from(held));
        }
    }

    fn change_billing(
        &mut self,
        principal: Principal,
        change: impl FnOnce(&mut HashMap<Option<Terms>, BillingRecord>),
    ) {
        let mut all = self.billing.remove(&principal).unwrap_or_default();
        let ids = |all: &HashMap<Option<Terms>, BillingRecord>| -> Vec<String> {
            let ids = all.values().map(|record| record.external_id.clone());
            ids.filter(|id| !id.is_empty()).collect()
        };
        for id in ids(&all) {
            self.external_ids.remove(&(id, principal));
        }
        self.billed -= all.len();
        change(&mut all);
        self.billed += all.len();
        self.external_ids.extend(ids(&all).into_iter().map(|id| (id, principal)));
        if !all.is_empty() {
            self.billing.insert(principal, all);
        }
    }
}

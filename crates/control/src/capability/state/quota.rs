//! Quotas of what holders order. What delegates order never takes the quota of their principal, and nobody's orders that of the
//! operator.

use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::{MAX_SOURCES, Sources};

use super::{MAX_GRANTS, MAX_RATES, MAX_REVOCATIONS, MAX_REVOKED, RatePayer, State, Terms};
use crate::capability::volume_quota::{DelegationLimit, MAX_QUOTAS};

/// Grants of an account that orders leave to the operator.
pub const OPERATOR_GRANTS: usize = 256;
/// Sub-delegations that an account's delegates may register, and revoke in all epochs: half of all.
pub const DELEGATES_GRANTS: usize = MAX_GRANTS / 2;
pub const DELEGATES_REVOKED: usize = MAX_REVOKED / 2;
/// Delegations that the holders of all capabilities may limit, half of all that may have a rate; and those of one principal.
pub const MAX_LIMITS: usize = MAX_RATES / 2;
pub const PRINCIPAL_LIMITS: usize = 8;
/// Delegations of one principal that their holder may limit by volume: routers know nothing of these limits but what is used up. All holders
/// together have half of all quotas.
pub const PRINCIPAL_VOLUMES: usize = 256;
/// Entries of the list for routers with the sources of one principal's delegations, and of all delegations, that holders may name.
pub const PRINCIPAL_SOURCES: usize = 256;
const DELEGATES_SOURCES: usize = MAX_SOURCES / 2;
/// Revocations of one principal in single epochs that are in force: one in 256 of all that there may be.
const WITHDRAWN: usize = MAX_REVOCATIONS / 256;
/// Revocations without an epoch of one principal, with those that say nothing new beside another one: by all orders, and by those of
/// delegates.
const RECORDED: usize = 2 * MAX_REVOKED;
const DELEGATES_RECORDED: usize = MAX_REVOKED + MAX_REVOKED / 2;

/// Revocations without an epoch of one principal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Lasting {
    /// All.
    recorded: usize,
    /// Those that are in lists for routers.
    listed: usize,
    /// Those of sub-delegations of the one delegation, listed or not.
    own: usize,
    /// These, and those of all other sub-delegations that are listed.
    below: usize,
}

impl State {
    /// Whether the holder of these terms may register one more delegation.
    #[must_use]
    pub fn is_within_delegation_quota(&self, holder: &Terms) -> bool {
        let (mut all, mut below, mut own) = (0, 0, 0);
        let kept = self.kept_slots_of(holder.principal).filter_map(|slot| self.grant(slot));
        for terms in kept.map(|grant| grant.terms) {
            let sub_of = terms.delegation.filter(|delegation| delegation.sub.is_some()).map(|delegation| delegation.id);
            all += 1;
            below += usize::from(sub_of.is_some());
            own += usize::from(sub_of.is_some() && sub_of == id_of(holder));
        }
        let is_within_all = all < MAX_GRANTS - OPERATOR_GRANTS;
        is_within_all && (holder.delegation.is_none() || is_within_share(own, below, DELEGATES_GRANTS))
    }

    /// Whether the holder of these terms may order one more revocation, which has no epoch.
    #[must_use]
    pub fn is_within_revocation_quota(&self, holder: &Terms, revocation: &Revocation) -> bool {
        let lasting = self.lasting(holder.principal, id_of(holder));
        let is_within_all = lasting.recorded < RECORDED && lasting.listed < MAX_REVOKED;
        let is_below = revocation.delegation.is_some_and(|(_, sub)| sub.is_some());
        if holder.delegation.is_none() || !is_below {
            return is_within_all; // one for each delegation, if it is not the principal's
        }
        is_within_all
            && lasting.recorded < DELEGATES_RECORDED
            && is_within_share(lasting.own, lasting.below, DELEGATES_REVOKED)
    }

    /// Whether the holders of a principal's capabilities may withdraw one more delegation at this Unix second: each withdrawal revokes
    /// three epochs.
    #[must_use]
    pub fn is_within_withdrawal_quota(&self, principal: Principal, second: u64) -> bool {
        let is_in_force = |entry: &&Revocation| entry.expires_at().is_some_and(|expiry| expiry > second);
        self.revocations_of(principal).filter(is_in_force).count() < WITHDRAWN
    }

    /// Whether the holder of a capability may limit a delegation so.
    #[must_use]
    pub fn is_within_limit_quota(&self, payer: &RatePayer, limit: &DelegationLimit) -> bool {
        let (held, principal) = (self.limit_of(payer), payer.principal);
        let is_more_rates = limit.rate.is_some() && held.rate.is_none();
        let is_more_volumes = limit.month_octets.is_some() && held.month_octets.is_none();
        let may_rate = || {
            let is_within = self.limits_of(principal).count() < PRINCIPAL_LIMITS && self.limits.len() < MAX_LIMITS;
            is_within && self.check_space_for_rate(payer).is_ok()
        };
        let may_volume = || {
            let is_within = self.limited_volumes(Some(principal)) < PRINCIPAL_VOLUMES;
            is_within && self.limited_volumes(None) < MAX_QUOTAS / 2
        };
        (!is_more_rates || may_rate()) && (!is_more_volumes || may_volume())
    }

    /// Whether a holder may name these sources of a delegation: the list has room for all principals, and for what the operator names.
    #[must_use]
    pub fn is_within_sources_quota(&self, sources: &Sources) -> bool {
        let payer = RatePayer::from(sources);
        let of_delegations = |held: &&Sources| held.delegation.is_some() && RatePayer::from(*held) != payer;
        let entries = sources.entries();
        let own: usize = self.sources_of(sources.principal).filter(of_delegations).map(Sources::entries).sum();
        let all: usize = self.sources().filter(of_delegations).map(Sources::entries).sum();
        own + entries <= PRINCIPAL_SOURCES && all + entries <= DELEGATES_SOURCES
    }

    fn lasting(&self, principal: Principal, own: Option<DelegationId>) -> Lasting {
        let mut lasting = Lasting::default();
        for entry in self.revocations_of(principal).filter(|entry| entry.epoch.is_none()) {
            let is_listed = !self.is_covered(entry);
            let sub_of = entry.delegation.filter(|(_, sub)| sub.is_some()).map(|(id, _)| id);
            lasting.recorded += 1;
            lasting.listed += usize::from(is_listed);
            let is_own = sub_of.is_some() && sub_of == own;
            lasting.own += usize::from(is_own);
            lasting.below += usize::from(is_own || is_listed && sub_of.is_some());
        }
        lasting
    }

    pub(super) fn revocations_of(&self, principal: Principal) -> impl Iterator<Item = &Revocation> {
        let first = Revocation { principal, delegation: None, epoch: None };
        self.revocations.range(first..).take_while(move |entry| entry.principal == principal)
    }

    /// Whether what this revokes is revoked in all epochs by another one. It stays for when that one is lifted.
    fn is_covered(&self, entry: &Revocation) -> bool {
        let Some((id, sub)) = entry.delegation else { return false };
        let within = Revocation { delegation: Some((id, None)), epoch: None, ..*entry };
        (sub.is_some() || entry.epoch.is_some()) && self.revocations.contains(&within)
    }

    /// What routers must know of in this Unix second: the revocations that have not expired, without those that say nothing new.
    /// Expired is what had also when the earliest of the last 1,024 changes was signed, so that a clock which is ahead for once lets none out.
    pub fn listed(&self, second: u64) -> impl Iterator<Item = Revocation> {
        let second = second.min(self.settled());
        let is_in_force = move |entry: &Revocation| entry.expires_at().is_none_or(|expiry| expiry > second);
        let of_quotas = self.used_up_revocations(second).filter(|entry| !self.is_listed(entry));
        self.revocations
            .iter()
            .filter(move |entry| is_in_force(entry) && !self.is_covered(entry))
            .copied()
            .chain(of_quotas)
    }
}

/// Whether a delegation that has `own` may have one more of the `most` that all delegations of a principal share, who have `all`: none has
/// more than are left, so that each can have some however many the others take.
fn is_within_share(own: usize, all: usize, most: usize) -> bool {
    own < most.saturating_sub(all)
}

fn id_of(holder: &Terms) -> Option<DelegationId> {
    holder.delegation.map(|delegation| delegation.id)
}

//! What a state has as single rows, as a database keeps them, and which of them a change makes and ends.
//!
//! A change is about one principal, so that what it does is found by taking that principal's part of the state and making the change
//! there: the rules are written once, and nothing counts before the database has it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use wayleave_core::wire::{Ascii, Codec, Malformed, Wire, Writer, decode, encode};
use wayleave_packet::platypus::header::{Interval, Principal};
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::{MAX_SOURCES, Sources};

use super::{
    Account, Change, ChangeBody, Delegated, Entry, Grant, MAX_GRANTS, MAX_REVOCATIONS, MAX_WAYPOINTS, NONE,
    SourcesCodec, State,
};
use crate::capability::billing::{BillingRecord, BillingSubject, MAX_BILLED};
use crate::capability::channel::{MAX_RATES, RatePayer, RateTerms};
use crate::capability::codecs::{IntervalCodec, PrincipalCodec, RevocationCodec};
use crate::capability::invitation::{Invitation, InvitationStatus, MAX_NAME};
use crate::capability::keys::ProviderKey;
use crate::capability::usage::Reopening;
use crate::capability::volume_quota::{MAX_QUOTAS, QuotaStatus};

wayleave_core::wire! {
    /// One thing of a state.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Row: "the kind of a row" {
        /// An account that was closed, and the generation of its keys: they never come back.
        1 = Closed { principal: Principal as PrincipalCodec, generation: u32 },
        2 = Account { principal: Principal as PrincipalCodec, generation: u32, name: String as Ascii<MAX_NAME> },
        3 = Grant(Grant),
        4 = Revocation(Revocation as RevocationCodec),
        6 = Invitation { invitation: Invitation, status: InvitationStatus },
        /// A principal's number got another owner: whose usage is whose follows from it.
        7 = Reopened { principal: Principal as PrincipalCodec, generation: u32, at: u64 },
        /// Until which Unix second secrets of grants that were withdrawn may be good.
        8 = Withdrawn { principal: Principal as PrincipalCodec, interval: Interval as IntervalCodec, until: u64 },
        /// A rate over all routers.
        9 = Rate { payer: RatePayer, terms: RateTerms },
        /// Where a payer's packets may come from.
        10 = Sources(Sources as SourcesCodec),
        /// What billing knows of an account or a grant.
        11 = Billing { of: BillingSubject, record: BillingRecord },
        /// What a payer may send in a month.
        12 = Quota { principal: Principal as PrincipalCodec, status: QuotaStatus },
        /// A limit of a delegation's rate by its holder's order.
        16 = Limit { payer: RatePayer, terms: RateTerms },
        /// What a delegation may send in a month by its holder's order.
        17 = Volume { payer: RatePayer, status: QuotaStatus },
    }
}

impl Row {
    /// Its kind, and what names it among those of its kind.
    #[must_use]
    pub fn key(&self) -> RowKey {
        let mut id = Writer::new();
        match self {
            Self::Closed { principal, .. } | Self::Account { principal, .. } | Self::Quota { principal, .. } => {
                id.bytes(&principal.octets());
            }
            Self::Grant(grant) => grant.terms.write(&mut id),
            Self::Revocation(revocation) => RevocationCodec::write(revocation, &mut id),
            Self::Invitation { invitation, .. } => {
                id.bytes(&invitation.id.0);
            }
            Self::Reopened { principal, generation, .. } => {
                id.bytes(&principal.octets()).u32(*generation);
            }
            Self::Withdrawn { principal, interval, .. } => {
                id.bytes(&principal.octets()).u8(interval.exponent());
            }
            Self::Rate { payer, .. } | Self::Limit { payer, .. } | Self::Volume { payer, .. } => payer.write(&mut id),
            Self::Sources(sources) => RatePayer::from(sources).write(&mut id),
            Self::Billing { of, .. } => of.write(&mut id),
        }
        RowKey { kind: self.kind(), id: id.finish() }
    }

    /// The kind of a row.
    #[must_use]
    pub fn kind(&self) -> RowKind {
        match self {
            Self::Closed { .. } => RowKind::Closed,
            Self::Account { .. } => RowKind::Account,
            Self::Grant(_) => RowKind::Grant,
            Self::Revocation(_) => RowKind::Revocation,
            Self::Invitation { .. } => RowKind::Invitation,
            Self::Reopened { .. } => RowKind::Reopened,
            Self::Withdrawn { .. } => RowKind::Withdrawn,
            Self::Rate { .. } => RowKind::Rate,
            Self::Sources(_) => RowKind::Sources,
            Self::Billing { .. } => RowKind::Billing,
            Self::Quota { .. } => RowKind::Quota,
            Self::Limit { .. } => RowKind::Limit,
            Self::Volume { .. } => RowKind::Volume,
        }
    }

    /// Whose it is.
    #[must_use]
    pub fn principal(&self) -> Principal {
        match self {
            Self::Closed { principal, .. }
            | Self::Account { principal, .. }
            | Self::Reopened { principal, .. }
            | Self::Withdrawn { principal, .. }
            | Self::Quota { principal, .. } => *principal,
            Self::Grant(grant) => grant.terms.principal,
            Self::Revocation(revocation) => revocation.principal,
            Self::Invitation { invitation, .. } => invitation.principal().unwrap_or_default(),
            Self::Rate { payer, .. } | Self::Limit { payer, .. } | Self::Volume { payer, .. } => payer.principal,
            Self::Sources(sources) => sources.principal,
            Self::Billing { of, .. } => of.principal,
        }
    }

    /// All of it, as octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// # Errors
    /// If the octets are no row.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        decode(octets)
    }
}

/// Kinds of rows, in the order in which a state takes them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RowKind {
    Closed,
    Account,
    Grant,
    Revocation,
    Invitation,
    Reopened,
    Withdrawn,
    Rate,
    Sources,
    Billing,
    Quota,
    Limit,
    Volume,
}

impl RowKind {
    pub const ALL: [Self; 13] = [
        Self::Closed,
        Self::Account,
        Self::Grant,
        Self::Revocation,
        Self::Invitation,
        Self::Reopened,
        Self::Withdrawn,
        Self::Rate,
        Self::Sources,
        Self::Billing,
        Self::Quota,
        Self::Limit,
        Self::Volume,
    ];
}

/// What names a row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowKey {
    pub kind: RowKind,
    pub id: Vec<u8>,
}

/// What a change does to the rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowEffects {
    pub made: Vec<Row>,
    /// Put in place of those with their keys.
    pub changed: Vec<Row>,
    pub gone: Vec<RowKey>,
    /// Revocations that have expired, and may be gone already.
    pub expired: Vec<RowKey>,
}

/// Where the changes of a state end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangesEnd {
    /// The number of the last change; zero before the first.
    pub number: u64,
    /// Its digest; zeros before the first.
    pub last: [u8; 32],
    /// Unix seconds at which the last changes were signed, the latest last: of as many as there are, up to [`TIMES`](super::TIMES).
    pub issued: Vec<u64>,
    /// The same, also of changes before an operator accepted another state: what has expired is judged by the earliest of them.
    pub times: Vec<u64>,
}

/// Why rows make no state.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RowError {
    #[error("{0}")]
    Content(&'static str),
    #[error("the times of {times} changes, where the last has number {number}")]
    Times { times: usize, number: u64 },
}

impl State {
    /// All rows, by kind and then by key.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut keyed: Vec<(RowKey, Row)> = self.unsorted_rows().map(|row| (row.key(), row)).collect();
        keyed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        keyed.into_iter().map(|(_, row)| row).collect()
    }

    fn unsorted_rows(&self) -> impl Iterator<Item = Row> {
        let principals: BTreeSet<Principal> = (self.closed.keys())
            .chain(self.accounts.keys())
            .chain(self.reopened.iter().map(|of| &of.principal))
            .filter_map(|number| Principal::new(*number))
            .chain(self.revocations.iter().map(|revocation| revocation.principal))
            .chain(self.invitations().filter_map(|(invitation, _)| invitation.principal()))
            .chain(self.withdrawn.keys().map(|(principal, _)| *principal))
            .chain(self.rates.keys().chain(self.limits.keys()).map(|payer| payer.principal))
            .chain(self.sources.keys().chain(self.quotas.keys()).map(|payer| payer.principal))
            .chain(self.billing.keys().copied())
            .collect();
        principals.into_iter().flat_map(|principal| self.rows_of(principal))
    }

    /// The rows of one principal, by kind; its grants in the order in which they were made.
    fn rows_of(&self, principal: Principal) -> Vec<Row> {
        let number = principal.number();
        let mut rows = Vec::new();
        rows.extend(self.closed.get(&number).map(|generation| Row::Closed { principal, generation: *generation }));
        let account = self.account(principal);
        rows.extend(account.map(|(name, generation)| Row::Account { principal, generation, name: name.to_owned() }));
        let first = rows.len();
        rows.extend(self.grants_of(principal).map(Row::Grant));
        rows[first..].reverse();
        rows.extend(self.revocations_of(principal).copied().map(Row::Revocation));
        let invitations = self.invitations().filter(|(of, _)| of.principal() == Some(principal));
        rows.extend(invitations.map(|(of, status)| Row::Invitation { invitation: of.clone(), status }));
        let reopened = self.reopened.iter().filter(|of| of.principal == number);
        rows.extend(reopened.map(|of| Row::Reopened { principal, generation: of.generation, at: of.at }));
        let withdrawn = self.withdrawn_of(principal);
        rows.extend(withdrawn.map(|(interval, until)| Row::Withdrawn { principal, interval, until }));
        rows.extend(self.rates_of(principal).map(|(payer, terms)| Row::Rate { payer, terms }));
        rows.extend(self.sources_of(principal).cloned().map(Row::Sources));
        rows.extend(self.billing_of(principal).map(|(of, record)| Row::Billing { of, record: record.clone() }));
        rows.extend(self.volumes_of(principal).map(|(payer, status)| match payer.delegation {
            None => Row::Quota { principal, status },
            Some(_) => Row::Volume { payer, status },
        }));
        rows.extend(self.limits_of(principal).map(|(payer, terms)| Row::Limit { payer, terms }));
        rows
    }

    /// What a change does to the rows, if it is made now. It was checked before ([`Self::sign`], [`Self::accepts`]).
    #[must_use]
    pub fn effects(&self, change: &Change) -> RowEffects {
        let Some(principal) = self.principal_of(&change.body) else { return RowEffects::default() };
        let keyed = |rows: Vec<Row>| rows.into_iter().map(|row| (row.key(), row)).collect::<BTreeMap<_, _>>();
        let (before, mut part) = (self.rows_of(principal), self.part(principal));
        part.perform(&change.body, change);
        let (before, mut after) = (keyed(before), keyed(part.rows_of(principal)));
        let second = self.issued.min(self.settled());
        let mut effects = RowEffects::default();
        for (key, row) in before {
            match after.remove(&key) {
                Some(new) if new == row => {}
                Some(new) => effects.changed.push(new),
                None if matches!(&row, Row::Revocation(of) if has_expired(of, second)) => {
                    effects.expired.push(key);
                }
                None => effects.gone.push(key),
            }
        }
        effects.made = after.into_values().collect();
        // An invitation takes the place of all that are forgotten with it, whose-ever they are.
        if matches!(change.body, ChangeBody::Invite(_)) {
            let forgotten = self.invitations.forgotten(change.issued);
            let keys = forgotten.map(|id| RowKey { kind: RowKind::Invitation, id: id.0.to_vec() });
            let gone: HashSet<RowKey> = effects.gone.iter().cloned().collect();
            effects.expired.extend(keys.filter(|key| !gone.contains(key)));
        }
        effects
    }

    /// A state with what this one has of one principal, as it is: nothing is judged or forgotten.
    pub(super) fn part(&self, principal: Principal) -> Self {
        let mut part = Self::new(self.provider.clone());
        let number = principal.number();
        (part.number, part.last, part.issued) = (self.number, self.last, self.issued);
        part.lately.clone_from(&self.lately);
        part.sweep_at = usize::MAX;
        part.waypoints.clone_from(&self.waypoints);
        part.closed.extend(self.closed.get(&number).map(|generation| (number, *generation)));
        let slots: Vec<u32> = self.slots_of(principal).collect();
        let places: HashMap<u32, u32> = slots.iter().zip(0..).map(|(slot, place)| (*slot, place)).collect();
        let place_of = |slot: u32| places.get(&slot).copied().unwrap_or(NONE);
        for slot in &slots {
            let Some(entry) = self.entry(*slot) else { continue };
            part.grants += 1;
            part.intervals[usize::from(entry.interval.exponent())] += 1;
            let delegation = entry
                .delegation
                .as_ref()
                .map(|held| Box::new(Delegated { delegation: held.delegation, from: place_of(held.from) }));
            part.place(Entry { key: entry.key.clone(), delegation, next: place_of(entry.next), ..*entry });
        }
        if let Some(account) = self.accounts.get(&number) {
            let (name, first) = (account.name.clone(), place_of(account.first));
            part.accounts.insert(number, Account { name, generation: account.generation, first });
        }
        part.revocations.extend(self.revocations_of(principal));
        for (invitation, status) in self.invitations().filter(|(of, _)| of.principal() == Some(principal)) {
            part.invitations.restore(invitation.clone(), status);
        }
        part.reopened.extend(self.reopened.iter().filter(|of| of.principal == number).copied());
        part.withdrawn.extend(self.withdrawn_of(principal).map(|(interval, until)| ((principal, interval), until)));
        part.rates.extend(self.rates_of(principal));
        part.sources.extend(self.sources_of(principal).map(|held| (held.into(), held.clone())));
        part.copy_billing(self, principal);
        part.quotas.extend(self.volumes_of(principal));
        part.limits.extend(self.limits_of(principal));
        part
    }

    /// Whom a change is about; nobody if it is about an invitation that is not known.
    #[must_use]
    pub fn principal_of(&self, body: &ChangeBody) -> Option<Principal> {
        let of_invitation = |id| self.invitation(id).and_then(|(invitation, _)| invitation.principal());
        match body {
            ChangeBody::Account { principal, .. }
            | ChangeBody::Close { principal }
            | ChangeBody::SetQuota { principal, .. }
            | ChangeBody::EndQuota { principal } => Some(*principal),
            ChangeBody::Grant(grant) => Some(grant.terms.principal),
            ChangeBody::Withdraw(terms)
            | ChangeBody::WithdrawBranch(terms)
            | ChangeBody::WithdrawDelegation { holder: terms, .. } => Some(terms.principal),
            ChangeBody::Revoke(revocation) | ChangeBody::Lift(revocation) => Some(revocation.principal),
            ChangeBody::Invite(invitation) => invitation.principal(),
            ChangeBody::Redeem { invitation, .. } => of_invitation(*invitation),
            ChangeBody::Uninvite(id) => of_invitation(*id),
            ChangeBody::SetRate { payer, .. }
            | ChangeBody::EndRate(payer)
            | ChangeBody::UseUpQuota { payer, .. }
            | ChangeBody::LimitDelegation { payer, .. } => Some(payer.principal),
            ChangeBody::Several(bodies) => bodies.iter().find_map(|body| self.principal_of(body)),
            ChangeBody::SetSources(sources) => Some(sources.principal),
            ChangeBody::SetBilling { of, .. } => Some(of.principal),
        }
    }

    /// The state that these rows are, after the change at which they end. Rows come by kind, in the order of [`RowKind::ALL`]; within a
    /// kind in any order. Revocations that had expired when the last changes were signed are dropped.
    ///
    /// # Errors
    /// Why they make none.
    pub fn from_rows<E: From<RowError>>(
        provider: ProviderKey,
        end: &ChangesEnd,
        rows: impl IntoIterator<Item = Result<Row, E>>,
    ) -> Result<Self, E> {
        let mut state = Self::new(provider);
        if end.issued.is_empty() != (end.number == 0) || end.issued.len() as u64 > end.number {
            return Err(RowError::Times { times: end.issued.len(), number: end.number }.into());
        }
        end.issued.iter().for_each(|issued| state.remember(*issued));
        (state.number, state.last, state.issued) = (end.number, end.last, end.issued.last().copied().unwrap_or(0));
        let settled = end.times.iter().copied().min().unwrap_or(0);
        for row in rows {
            match row? {
                Row::Revocation(revocation) if has_expired(&revocation, settled.min(state.issued)) => {}
                row => state.take_row(row).map_err(RowError::Content)?,
            }
        }
        // Not before: what is taken over is not forgotten by itself, or a database would have more than the state.
        end.times.iter().for_each(|issued| state.note_time(*issued));
        Ok(state)
    }

    pub(super) fn take_row(&mut self, row: Row) -> Result<(), &'static str> {
        match row {
            Row::Closed { principal, generation } => {
                self.closed.insert(principal.number(), generation);
            }
            Row::Account { principal, generation, name } => {
                let account = Account { name: name.as_str().into(), generation, first: NONE };
                self.accounts.insert(principal.number(), account);
            }
            Row::Grant(grant) => self.take_grant(&grant)?,
            Row::Revocation(revocation) => {
                // Those of accounts that were closed come beyond the limit of orders.
                if self.revocations.len() >= 2 * MAX_REVOCATIONS {
                    return Err("too many revocations");
                }
                self.revocations.insert(revocation);
            }
            Row::Invitation { invitation, status } => {
                if !self.invitations.restore(invitation, status) {
                    return Err("too many invitations");
                }
            }
            Row::Reopened { principal, generation, at } => {
                self.reopened.push(Reopening { principal: principal.number(), at, generation });
            }
            Row::Withdrawn { principal, interval, until } => {
                self.withdrawn.insert((principal, interval), until);
            }
            Row::Rate { payer, terms } => {
                if self.rates.len() >= MAX_RATES {
                    return Err("too many rates");
                }
                self.rates.insert(payer, terms);
            }
            Row::Sources(sources) => {
                // Each has one entry of the list at least.
                if self.sources.len() >= MAX_SOURCES {
                    return Err("too many source prefixes");
                }
                self.sources.insert((&sources).into(), sources);
            }
            Row::Billing { of, record } => {
                if self.billed >= 2 * MAX_BILLED {
                    return Err("too many accounts and grants that billing knows");
                }
                self.restore_billing(of, record);
            }
            Row::Quota { principal, status } => {
                self.take_quota(RatePayer { principal, delegation: None }, status)?;
            }
            Row::Volume { payer, status } => self.take_quota(payer, status)?,
            Row::Limit { payer, terms } => {
                if self.limits.len() >= MAX_RATES {
                    return Err("too many limits of delegations");
                }
                self.limits.insert(payer, terms);
            }
        }
        Ok(())
    }

    fn take_quota(&mut self, payer: RatePayer, status: QuotaStatus) -> Result<(), &'static str> {
        if self.quotas.len() >= MAX_QUOTAS {
            return Err("too many quotas");
        }
        self.quotas.insert(payer, status);
        Ok(())
    }

    fn take_grant(&mut self, grant: &Grant) -> Result<(), &'static str> {
        let terms = &grant.terms;
        if !self.accounts.contains_key(&terms.principal.number()) {
            return Err("a grant is of no account");
        }
        if grant.not_before > grant.not_after {
            return Err("a grant ends before it begins");
        }
        if self.find(terms).is_some() {
            return Err("an account has a grant twice");
        }
        if self.slots_of(terms.principal).count() >= 2 * MAX_GRANTS {
            return Err("an account has too many grants");
        }
        if self.waypoints.len() >= MAX_WAYPOINTS && !self.waypoints.contains(&terms.waypoint) {
            return Err("too many waypoints");
        }
        self.insert(grant);
        Ok(())
    }
}

fn has_expired(revocation: &Revocation, now: u64) -> bool {
    revocation.expires_at().is_some_and(|second| second <= now)
}

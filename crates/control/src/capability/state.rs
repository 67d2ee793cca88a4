//! The state of a provider's key servers: accounts, grants, revocations. Whoever has the writer's key signs and numbers each change; the
//! others follow the changes and derive all keys.
//!
//! Each change names the one before by its digest, so that nobody goes on from an old copy without the others noticing. Accounts are
//! compact: see [`State::memory`].

mod billed;
mod limits;
mod quota;
mod rows;
mod snapshot;
mod sources;
mod volume;
mod withdrawals;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use wayleave_core::UnixTime;
use wayleave_core::wire::{Ascii, Codec, Malformed, Reader, Wire, Writer};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_crypto::signed::{Object, SIGNATURE, Signed};
use wayleave_packet::platypus::header::{Delegation, DelegationId, Interval, Principal, Width};
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::{MAX_PREFIXES, MAX_SOURCES, Sources};

use super::billing::{
    Billing, BillingRecord, BillingSubject, MAX_BILLED, MAX_EXTERNAL_ID, MAX_METADATA, MAX_METADATA_KEY,
    MAX_METADATA_VALUE, MAX_PRICE, SET_PRICES,
};
use super::channel::{MAX_RATES, RatePayer, RateTerms};
use super::codecs::{DelegationCodec, PrincipalCodec, RevocationCodec};
use super::invitation::{Invitation, InvitationError, InvitationId, InvitationStatus, Invitations, MAX_NAME};
use super::keys::{MasterKey, ProviderKey};
use super::statement::MAX_PRICE_TAGS;
use super::terms::Terms;
use super::usage::Reopening;
use super::volume_quota::{DelegationLimit, MAX_QUOTAS, QuotaStatus, VolumeQuota};

use withdrawals::is_part;

pub use quota::{
    DELEGATES_GRANTS, DELEGATES_REVOKED, MAX_LIMITS, OPERATOR_GRANTS, PRINCIPAL_LIMITS, PRINCIPAL_SOURCES,
    PRINCIPAL_VOLUMES,
};
pub use rows::{ChangesEnd, Row, RowEffects, RowError, RowKey, RowKind};
pub use snapshot::{SnapshotError, SnapshotHead};

/// Grants of one account, delegations included.
pub const MAX_GRANTS: usize = 4_096;
/// Waypoints of one provider.
pub const MAX_WAYPOINTS: usize = 65_535;
/// Revocations in force.
pub const MAX_REVOCATIONS: usize = 4 << 20;
/// Revocations without an epoch that the holders of one principal's capabilities may order: the list of all goes to every router.
pub const MAX_REVOKED: usize = 4_096;
/// Grants whose memory is taken at a time.
const CHUNK: usize = 4_096;
/// Seconds for which a delegation that has ended is remembered at least, so that its holder learns why it is answered nothing.
const ENDED_KEPT: u64 = 30 * 86_400;
/// Fewer revocations are not swept.
const SWEEP: usize = 1_024;
/// What has expired is judged by the earliest time of so many changes: a clock that was wrong while fewer were made moves nothing.
const SETTLING: usize = 256;
/// Of so many changes it is known when they were signed.
pub const TIMES: usize = 4_096;
/// Up to so many accounts are sorted for a page of them; of more, so many numbers are looked at for one.
const SORTED: usize = 65_536;
const LOOKED_AT: u32 = 262_144;
/// Key epochs that are revoked at once: the current one, that before and that after.
const EPOCHS: usize = 3;
/// No grant.
const NONE: u32 = u32::MAX;

wayleave_core::wire! {
    /// A capability that an account has, and from when until when it is answered.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Grant {
        /// Unix seconds.
        pub not_before: u64,
        pub not_after: u64,
        pub terms: Terms,
    }

    /// What changes.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum ChangeBody: "the kind of a change" {
        /// An account is opened or renamed; a higher generation replaces all its keys.
        0 = Account {
            principal: Principal as PrincipalCodec,
            generation: u32,
            name: String as Ascii<MAX_NAME>,
        },
        /// An account is closed with all its grants.
        1 = Close {
            principal: Principal as PrincipalCodec,
        },
        /// A capability is granted, or the times of one change.
        2 = Grant(Grant),
        /// A grant ends at once; what was delegated from it stays.
        3 = Withdraw(Terms),
        4 = Revoke(Revocation as RevocationCodec),
        /// A revocation is taken back.
        5 = Lift(Revocation as RevocationCodec),
        /// Somebody is invited.
        6 = Invite(Invitation),
        /// An invitation is redeemed: its account is opened, if there is none, and all its capabilities are granted.
        7 = Redeem {
            invitation: InvitationId,
            /// The holder's own key (Ed25519), who alone may repeat it.
            holder: [u8; 32],
        },
        /// An invitation that was not redeemed ends.
        8 = Uninvite(InvitationId),
        /// A grant ends at once with everything that was delegated from it.
        9 = WithdrawBranch(Terms),
        /// A delegation ends at once by its holder's order, with everything that was handed on from it.
        10 = WithdrawDelegation {
            /// Of whom it was delegated, or the delegation itself.
            holder: Terms,
            delegation: (DelegationId, Option<DelegationId>) as DelegationCodec,
        },
        /// A rate over all routers is set, or another one.
        11 = SetRate {
            payer: RatePayer,
            terms: RateTerms,
        },
        /// There is no rate for this payer any more.
        12 = EndRate(RatePayer),
        /// Where a payer's packets may come from, in the place of what was said before.
        13 = SetSources(Sources as SourcesCodec),
        /// What the provider's billing knows an account or a grant by, in the place of what there is.
        14 = SetBilling {
            of: BillingSubject,
            billing: Billing,
        },
        /// What a payer may send in a month, or another such quota.
        15 = SetQuota {
            principal: Principal as PrincipalCodec,
            quota: VolumeQuota,
        },
        /// There is no such quota any more.
        16 = EndQuota {
            principal: Principal as PrincipalCodec,
        },
        /// The hard quota of the month that began at this Unix second is used up, or what a delegation may send in it.
        17 = UseUpQuota {
            payer: RatePayer,
            month: u64,
        },
        /// A delegation has no more than this by its holder's order, in the place of what was said before. What the operator set stands beside
        /// it.
        18 = LimitDelegation {
            payer: RatePayer,
            limit: DelegationLimit,
        },
        /// Accounts, grants, sources and what billing knows, of one principal: all of them or none, in this order.
        19 = Several(Vec<ChangeBody> as SeveralCodec),
    }

    /// A change with its number.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Change {
        /// One more than that of the change before; the first is 1.
        pub number: u64,
        /// The digest of the change before; zero in the first.
        pub previous: [u8; 32],
        /// Unix seconds.
        pub issued: u64,
        pub body: ChangeBody,
    }
}

/// Changes that are made as one, at most.
pub const MAX_SEVERAL: usize = 4;
/// Octets of the longest body of a change that is one: an invitation, or what billing knows.
const LONGEST: usize = {
    let billing = 3 + 1 + Terms::MAX + Billing::MAX;
    if billing > Invitation::MAX { billing } else { Invitation::MAX }
};

impl ChangeBody {
    /// These changes as one; none if there is none.
    #[must_use]
    pub fn all_of(mut bodies: Vec<Self>) -> Option<Self> {
        if bodies.len() > 1 { Some(Self::Several(bodies)) } else { bodies.pop() }
    }

    fn may_be_one_of_several(&self) -> bool {
        matches!(self, Self::Account { .. } | Self::Grant(_) | Self::SetSources(_) | Self::SetBilling { .. })
    }
}

/// How many, and each with its kind: none of them are several.
struct SeveralCodec;

impl Codec<Vec<ChangeBody>> for SeveralCodec {
    const LEAST: usize = 1;

    fn write(bodies: &Vec<ChangeBody>, out: &mut Writer) {
        out.u8(bodies.len() as u8); // at most `MAX_SEVERAL`
        bodies.iter().for_each(|body| body.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Vec<ChangeBody>, Malformed> {
        /// The kind of several: read before what follows, so that nothing is read within itself without end.
        const SEVERAL: u8 = 19;
        let count = usize::from(from.u8()?);
        if count > MAX_SEVERAL {
            return Err(Malformed::TooMany { count, most: MAX_SEVERAL });
        }
        from.elements(count, |from| match from.rest().first() {
            Some(&SEVERAL) => Err(Malformed::Value("one of several changes")),
            _ => ChangeBody::read(from),
        })
    }
}

impl Object for Change {
    const LABEL: &'static str = "wayleave/capability/change/v1";
    const MAX: usize = 1 + 8 + 32 + 8 + 1 + 1 + MAX_SEVERAL * (1 + LONGEST) + SIGNATURE;
}

/// The payer, whether delegations may name any prefix, the prefixes behind their number.
struct SourcesCodec;

impl Codec<Sources> for SourcesCodec {
    const LEAST: usize = RatePayer::LEAST + 1 + 1;

    fn write(sources: &Sources, out: &mut Writer) {
        RatePayer::from(sources).write(out);
        out.bool(sources.delegates_any).u8(sources.prefixes.len() as u8); // at most `MAX_PREFIXES`
        for prefix in &sources.prefixes {
            out.prefix(prefix);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Sources, Malformed> {
        let RatePayer { principal, delegation } = RatePayer::read(from)?;
        let (delegates_any, count) = (from.bool()?, usize::from(from.u8()?));
        if count > MAX_PREFIXES {
            return Err(Malformed::TooMany { count, most: MAX_PREFIXES });
        }
        let sources = Sources { principal, delegation, delegates_any, prefixes: from.elements(count, Reader::prefix)? };
        if sources.is_sound() { Ok(sources) } else { Err(Malformed::Value("source prefixes")) }
    }
}

/// Why a change is not taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("change {0} is not signed by the provider's key")]
    Signature(u64),
    #[error("change {got} does not follow change {held}")]
    Gap { held: u64, got: u64 },
    /// The same number was used twice: the writer was set back to an old copy.
    #[error("change {0} does not continue what is held: the database was set back to an old copy, or is forged")]
    Fork(u64),
    #[error("there is no account of principal {0}")]
    NoAccount(u32),
    #[error("the account's keys have generation {held}, which {got} does not replace")]
    Generation { held: u32, got: u32 },
    #[error("the account was closed with keys of generation {held}, and {got} would bring them back")]
    Closed { held: u32, got: u32 },
    /// What its holder looked up before may still be good, and would be charged to whoever has the number then.
    #[error(
        "the account was closed, and its number may be given again {} s from now, when the last secret that its holder may have has \
         ended; to open it for the same holder, lift the revocations of its key epochs",
        until.saturating_sub(*now)
    )]
    LatelyClosed { until: u64, now: u64 },
    #[error(
        "key epochs of interval {got} are longer than this provider grants: a secret that was looked up is good for three of them; \
         expected 4 to {longest}, or a higher `longest_interval` of the key server"
    )]
    Interval { got: u8, longest: u8 },
    #[error("no such grant")]
    NoGrant,
    #[error("a grant ends before it begins")]
    Times,
    #[error("no such revocation")]
    NotRevoked,
    #[error("there is no such rate")]
    NoRate,
    #[error(
        "a rate of 0 octets a second or more than {}, or less than {} at once; to let nothing pass, revoke",
        RateTerms::MOST,
        RateTerms::LEAST_BURST
    )]
    RateTerms,
    #[error("there are {MAX_RATES} rates")]
    Rates,
    #[error(
        "more than {MAX_PREFIXES} source prefixes, or not in ascending order, or a delegation that says what delegations may name"
    )]
    SourcesTerms,
    #[error("a delegation's sources lie within those of its principal, whose delegations may name no others")]
    SourcesBeyond,
    #[error("the list for routers has space for {MAX_SOURCES} source prefixes of all accounts")]
    Sources,
    #[error(
        "an external ID has at most {MAX_EXTERNAL_ID} characters of printable ASCII, a price tag {MAX_PRICE}; there are at most \
         {MAX_METADATA} pairs of metadata, whose keys have 1 to {MAX_METADATA_KEY} characters and values at most {MAX_METADATA_VALUE}"
    )]
    Billing,
    #[error(
        "a quota has a soft or a hard limit of 1 to {} octets a month, the soft one no greater than the hard one; to let nothing pass, revoke",
        VolumeQuota::MOST
    )]
    QuotaTerms,
    #[error("there is no such quota")]
    NoQuota,
    #[error("there are {MAX_QUOTAS} quotas")]
    Quotas,
    #[error(
        "{SET_PRICES} price tags of this account or grant are remembered for statements, for 500 days each: another one has no place; close \
         time less often than prices change, or tell prices apart by metadata"
    )]
    Prices,
    #[error(
        "the account and its grants have {MAX_PRICE_TAGS} price tags that statements may name, those of the last 500 days among them: give \
         the account one, or fewer grants their own"
    )]
    PriceTags,
    #[error("{MAX_BILLED} accounts and grants have an external ID, a price tag or metadata")]
    Billed,
    #[error("the account has {MAX_GRANTS} grants")]
    Grants,
    #[error(
        "{MAX_REVOCATIONS} revocations are in force, and this makes more, without which secrets that were looked up would stay good: \
         lift some, or wait until those of single key epochs have expired"
    )]
    Revocations,
    #[error("changes that are made as one are accounts, grants, sources and billing of one principal")]
    Several,
    #[error("{MAX_WAYPOINTS} waypoints are in use")]
    Waypoints,
    #[error(transparent)]
    Invitation(#[from] InvitationError),
}

/// A grant as it is kept: 64 octets.
struct Entry {
    key: MasterKey,
    not_before: u64,
    not_after: u64,
    delegation: Option<Box<Delegated>>,
    principal: Principal,
    /// The next grant of the account, or the next free one.
    next: u32,
    waypoint: u16,
    interval: Interval,
    width: Width,
    is_live: bool,
}

/// The delegation of a grant as it is kept.
struct Delegated {
    delegation: Delegation,
    /// The slot of the nearest grant that it was delegated from, or `NONE`.
    from: u32,
}

/// An account as it is kept.
struct Account {
    name: Box<str>,
    generation: u32,
    first: u32,
}

/// When the last changes of a state were signed, at most [`TIMES`] of them: by this it is seen whether a list of revocations was made
/// of this state, or of another under the same numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangeTimes {
    /// The number of the last change.
    pub last: u64,
    /// Up to the last one. For each the latest Unix second at which a change up to it was signed.
    pub seconds: Arc<[u64]>,
}

impl ChangeTimes {
    /// The latest second at which a change up to this one was signed; `None` if that is not known.
    #[must_use]
    pub fn at(&self, number: u64) -> Option<u64> {
        let back = usize::try_from(self.last.checked_sub(number)?).ok()?;
        self.seconds.get(self.seconds.len().checked_sub(back.checked_add(1)?)?).copied()
    }

    /// The number of the next list of revocations: the number of its last change, and a second below. `before` is that of the list
    /// before. The second is no earlier than the change, whatever the clock says: a list with an earlier one is of another state.
    #[must_use]
    pub fn list_number(&self, before: u64, now: UnixTime) -> u64 {
        let second = now.secs().max(self.seconds.last().copied().unwrap_or(0));
        (self.last << 32 | second & SECOND).max(before + 1)
    }

    /// Whether the list with this number was made of this state; `None` if that is not known. A change whose time is still to come
    /// was signed by a clock that was ahead: a list with an earlier second may be of this state or of another.
    #[must_use]
    pub fn has_list(&self, number: u64, now: UnixTime) -> Option<bool> {
        let time = self.at(number >> 32)?;
        let is_of_these = number & SECOND >= time & SECOND;
        (is_of_these || time <= now.secs()).then_some(is_of_these)
    }
}

/// The second in the number of a list.
const SECOND: u64 = 0xffff_ffff;

/// Accounts, grants and revocations, after some number of changes.
pub struct State {
    provider: ProviderKey,
    number: u64,
    last: [u8; 32],
    /// When the last change was signed, in Unix seconds.
    issued: u64,
    /// The same of the last changes, [`SETTLING`] at most.
    lately: VecDeque<u64>,
    /// For each of the last changes, [`TIMES`] at most, the latest second at which one up to it was signed.
    times: VecDeque<u64>,
    accounts: HashMap<u32, Account>,
    /// Accounts that were closed, and the generation of their keys: whoever opens one anew takes a higher one.
    closed: HashMap<u32, u32>,
    /// Those that were opened anew, by the changes that this process has seen.
    reopened: Vec<Reopening>,
    /// Until which Unix second a holder may have secrets of grants that were withdrawn, by the length of their key epochs: if the
    /// account is closed, they end with it.
    withdrawn: BTreeMap<(Principal, Interval), u64>,
    entries: Vec<Vec<Entry>>,
    free: u32,
    grants: usize,
    waypoints: Vec<IpAddr>,
    revocations: BTreeSet<Revocation>,
    /// Revocations at which those that have expired are dropped.
    sweep_at: usize,
    /// Number of grants by interval.
    intervals: [usize; 32],
    invitations: Invitations,
    /// Of all routers together.
    rates: BTreeMap<RatePayer, RateTerms>,
    /// What has named prefixes once stays without: secrets that say so may be out.
    sources: BTreeMap<RatePayer, Sources>,
    /// What billing knows of accounts (`None`) and of their grants; and who is known by which external ID.
    billing: BTreeMap<Principal, HashMap<Option<Terms>, BillingRecord>>,
    external_ids: BTreeSet<(String, Principal)>,
    /// How many of them there are.
    billed: usize,
    /// Of principals by the operator, and of delegations by orders of their holders.
    quotas: BTreeMap<RatePayer, QuotaStatus>,
    /// Of delegations, by orders of their holders.
    limits: BTreeMap<RatePayer, RateTerms>,
    /// What there is of other principals, if this is the part of one.
    elsewhere: Elsewhere,
}

/// What counts against limits of all principals together.
#[derive(Clone, Copy, Default)]
struct Elsewhere {
    /// Entries of sources in the list for routers.
    sources: usize,
    billed: usize,
}

impl State {
    /// Nothing, before the first change.
    #[must_use]
    pub fn new(provider: ProviderKey) -> Self {
        Self {
            provider,
            number: 0,
            last: [0; 32],
            issued: 0,
            lately: VecDeque::new(),
            times: VecDeque::new(),
            accounts: HashMap::new(),
            closed: HashMap::new(),
            reopened: Vec::new(),
            withdrawn: BTreeMap::new(),
            entries: Vec::new(),
            free: NONE,
            grants: 0,
            waypoints: Vec::new(),
            revocations: BTreeSet::new(),
            sweep_at: SWEEP,
            intervals: [0; 32],
            invitations: Invitations::default(),
            rates: BTreeMap::new(),
            sources: BTreeMap::new(),
            billing: BTreeMap::new(),
            external_ids: BTreeSet::new(),
            billed: 0,
            quotas: BTreeMap::new(),
            limits: BTreeMap::new(),
            elsewhere: Elsewhere::default(),
        }
    }

    /// The number of the last change.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// When the last changes were signed.
    #[must_use]
    pub fn times(&self) -> ChangeTimes {
        ChangeTimes { last: self.number, seconds: self.times.iter().copied().collect() }
    }

    /// The digest of the last change; zeros before the first.
    #[must_use]
    pub fn last(&self) -> [u8; 32] {
        self.last
    }

    #[must_use]
    pub fn accounts(&self) -> usize {
        self.accounts.len()
    }

    #[must_use]
    pub fn grants(&self) -> usize {
        self.grants
    }

    /// The revocations in force, in ascending order.
    pub fn revocations(&self) -> impl ExactSizeIterator<Item = &Revocation> {
        self.revocations.iter()
    }

    /// The revocations in force behind one, in ascending order; all without one. Of one principal, if it is named.
    pub fn revocations_from(
        &self,
        after: Option<Revocation>,
        only: Option<Principal>,
    ) -> impl Iterator<Item = &Revocation> {
        let begins = |principal| Revocation { principal, delegation: None, epoch: None };
        let own = only.map(begins).filter(|own| after.is_none_or(|after| *own > after)).map(Bound::Included);
        let first = own.or(after.map(Bound::Excluded)).unwrap_or(Bound::Unbounded);
        let all = self.revocations.range((first, Bound::Unbounded));
        all.take_while(move |entry| only.is_none_or(|only| entry.principal == only))
    }

    /// The invitations that are remembered, by their IDs.
    pub fn invitations(&self) -> impl ExactSizeIterator<Item = (&Invitation, InvitationStatus)> {
        self.invitations.iter()
    }

    /// An invitation, and what became of it.
    #[must_use]
    pub fn invitation(&self, id: InvitationId) -> Option<(&Invitation, InvitationStatus)> {
        self.invitations.get(id)
    }

    /// Whether an invitation can be redeemed in this Unix second.
    ///
    /// # Errors
    /// Why not.
    pub fn redeemable(&self, id: InvitationId, second: u64) -> Result<(), InvitationError> {
        self.invitations.redeemable(id, second).map(drop)
    }

    /// Principals with accounts above `after`, in ascending order, at most `most` of them; and whether there may be more. Where
    /// there are many accounts, a bounded part of the numbers is looked at, so that fewer than `most` may come though there are more:
    /// then go on behind the second value.
    #[must_use]
    pub fn accounts_after(&self, after: Option<Principal>, most: usize) -> (Vec<Principal>, Option<Principal>) {
        let first = after.map_or(0, |after| after.number() + 1);
        let mut found: Vec<u32>;
        let mut end = None;
        if self.accounts.len() <= SORTED {
            found = self.accounts.keys().copied().filter(|number| *number >= first).collect();
            found.sort_unstable();
        } else {
            let last = first.saturating_add(LOOKED_AT);
            found = (first..last).filter(|number| self.accounts.contains_key(number)).collect();
            end = Principal::new(last - 1);
        }
        if found.len() > most {
            found.truncate(most);
            end = found.last().copied().and_then(Principal::new);
        }
        (found.into_iter().filter_map(Principal::new).collect(), end)
    }

    /// Name and generation of an account.
    #[must_use]
    pub fn account(&self, principal: Principal) -> Option<(&str, u32)> {
        self.accounts.get(&principal.number()).map(|account| (&*account.name, account.generation))
    }

    /// Whether the number has an account, or had one.
    #[must_use]
    pub fn is_ever_given(&self, principal: Principal) -> bool {
        self.account(principal).is_some() || self.closed.contains_key(&principal.number())
    }

    /// Numbers of closed accounts that changes gave to somebody else, in order: usage of before is not theirs.
    #[must_use]
    pub fn reopened(&self) -> &[Reopening] {
        &self.reopened
    }

    /// The generation of the keys that an account gets with the next change, whether it is opened or they are replaced: no keys of
    /// this principal had it before, so that those of an account that was closed never return.
    #[must_use]
    pub fn next_generation(&self, principal: Principal) -> u32 {
        self.generation_with(principal, self.number + 1)
    }

    /// The same of the change of this number.
    fn generation_with(&self, principal: Principal, number: u64) -> u32 {
        let number_of = u32::try_from(number).unwrap_or(u32::MAX);
        let closed = self.closed.get(&principal.number()).copied();
        let held = closed.max(self.account(principal).map(|(_, generation)| generation));
        number_of.max(held.map_or(0, |held| held.saturating_add(1)))
    }

    /// Every account's principal, name and generation, in ascending order.
    #[must_use]
    pub fn list(&self) -> Vec<(Principal, &str, u32)> {
        let mut all: Vec<_> = self
            .accounts
            .iter()
            .filter_map(|(number, account)| Some((Principal::new(*number)?, &*account.name, account.generation)))
            .collect();
        all.sort_unstable_by_key(|(principal, ..)| *principal);
        all
    }

    /// The grants of an account, the latest first.
    pub fn grants_of(&self, principal: Principal) -> impl Iterator<Item = Grant> {
        self.slots_of(principal).filter_map(|slot| self.grant(slot))
    }

    pub(super) fn slots_of(&self, principal: Principal) -> impl Iterator<Item = u32> {
        let first = self.accounts.get(&principal.number()).map_or(NONE, |account| account.first);
        let existing = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(existing(first), move |slot| existing(self.entry(*slot)?.next))
    }

    /// The slots of all grants, for whoever indexes them: those below this number.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.entries.last().map_or(0, |last| ((self.entries.len() - 1) * CHUNK + last.len()) as u32)
    }

    fn entry(&self, slot: u32) -> Option<&Entry> {
        self.entries.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)
    }

    fn entry_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        self.entries.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)
    }

    /// The grant in a slot.
    #[must_use]
    pub fn grant(&self, slot: u32) -> Option<Grant> {
        let entry = self.entry(slot).filter(|entry| entry.is_live)?;
        let terms = Terms {
            waypoint: *self.waypoints.get(usize::from(entry.waypoint))?,
            principal: entry.principal,
            interval: entry.interval,
            width: entry.width,
            delegation: entry.delegation.as_ref().map(|delegated| delegated.delegation),
        };
        Some(Grant { terms, not_before: entry.not_before, not_after: entry.not_after })
    }

    /// The grant in a slot with the times in which it is answered: it begins no sooner and ends no later than what it was delegated
    /// from, as that is granted now.
    #[must_use]
    pub fn capped(&self, slot: u32) -> Option<Grant> {
        let grant = self.grant(slot)?;
        let from = |slot: u32| self.entry(slot)?.delegation.as_ref().and_then(|delegated| self.entry(delegated.from));
        let chain = std::iter::successors(from(slot), |entry| self.entry(entry.delegation.as_ref()?.from));
        Some(chain.fold(grant, |grant, entry| Grant {
            not_before: grant.not_before.max(entry.not_before),
            not_after: grant.not_after.min(entry.not_after),
            ..grant
        }))
    }

    /// The grants of an account with the times in which they are answered, the latest first.
    pub fn capped_grants_of(&self, principal: Principal) -> impl Iterator<Item = Grant> {
        self.slots_of(principal).filter_map(|slot| self.capped(slot))
    }

    /// The invitation that a request made which may be repeated, and what became of it; `key` names the request. `None` if it made none,
    /// or that is forgotten.
    #[must_use]
    pub fn invitation_of_request(&self, key: &[u8; 32]) -> Option<(&Invitation, InvitationStatus)> {
        self.invitation(self.provider.invitation_id(key))
    }

    /// ID and one-time key of the invitation of such a request: `content` is all of it, and `not_after` the invitation's last second. Where
    /// the state has it with another key, the request was another one.
    #[must_use]
    pub fn names_of_request(&self, key: &[u8; 32], content: &[u8; 32], not_after: u64) -> (InvitationId, Seed) {
        (self.provider.invitation_id(key), self.provider.invitation_key(key, content, not_after))
    }

    /// What was delegated from these terms, and from that, with the times in which it is answered.
    pub fn delegated_from(&self, terms: Terms) -> impl Iterator<Item = Grant> {
        self.capped_grants_of(terms.principal).filter(move |grant| grant.terms.is_below(&terms))
    }

    /// The master key of the grant in a slot.
    #[must_use]
    pub fn key(&self, slot: u32) -> Option<&MasterKey> {
        self.entry(slot).filter(|entry| entry.is_live).map(|entry| &entry.key)
    }

    /// How long the key epochs of the grant in a slot last.
    pub(super) fn interval_of(&self, slot: u32) -> Option<Interval> {
        self.entry(slot).filter(|entry| entry.is_live).map(|entry| entry.interval)
    }

    /// Whether the holder of these terms has this delegation, or it is the delegation.
    #[must_use]
    pub fn has_delegation(&self, holder: &Terms, id: DelegationId, sub: Option<DelegationId>) -> bool {
        self.grants_of(holder.principal).any(|grant| is_part(&grant.terms, holder, id, sub))
    }

    /// What was delegated from these terms, and handed on, that is not forgotten: with the times in which it is answered, in ascending
    /// order of numbers.
    #[must_use]
    pub fn delegations_below(&self, terms: &Terms) -> Vec<Grant> {
        let kept = self.kept_slots_of(terms.principal).filter_map(|slot| self.capped(slot));
        let mut below: Vec<Grant> = kept.filter(|grant| grant.terms.is_below(terms)).collect();
        let order = |grant: &Grant| {
            grant.terms.delegation.map(|held| (held.id.number(), held.sub.map(|sub| sub.id.number()), held.prefix))
        };
        below.sort_by_key(order);
        below
    }

    /// The slot of the grant with these terms.
    #[must_use]
    pub fn find(&self, terms: &Terms) -> Option<u32> {
        self.slots_of(terms.principal).find(|slot| self.grant(*slot).is_some_and(|grant| grant.terms == *terms))
    }

    /// Whether any grant has key epochs of this length.
    #[must_use]
    pub fn uses(&self, interval: Interval) -> bool {
        self.grants_with(interval) > 0
    }

    /// Number of grants that have key epochs of this length.
    pub(super) fn grants_with(&self, interval: Interval) -> usize {
        self.intervals[usize::from(interval.exponent())]
    }

    /// Whether exactly this was revoked.
    #[must_use]
    pub fn is_listed(&self, revocation: &Revocation) -> bool {
        self.revocations.contains(revocation)
    }

    /// Whether the capability is revoked in this epoch, by itself or with what it was delegated from.
    #[must_use]
    pub fn is_revoked(&self, terms: &Terms, epoch: u32) -> bool {
        if self.revocations.is_empty() {
            return false;
        }
        let own = terms.delegation.map(|delegation| (delegation.id, delegation.sub.map(|sub| sub.id)));
        let scopes = [None, own.map(|(id, _)| (id, None)), own];
        scopes.into_iter().any(|delegation| {
            [None, Some((terms.interval, epoch))]
                .into_iter()
                .any(|epoch| self.revocations.contains(&Revocation { principal: terms.principal, delegation, epoch }))
        })
    }

    /// The next change, signed.
    ///
    /// # Errors
    /// If it cannot be made. It is not applied: first it must be durable.
    pub fn sign(&self, body: ChangeBody, key: &SigningKey, now: UnixTime) -> Result<Signed<Change>, ChangeError> {
        self.check(&body, now.secs(), MAX_GRANTS)?;
        self.check_new(&body, now.secs())?;
        let change = Change { number: self.number + 1, previous: self.last, issued: now.secs(), body };
        // Names are checked by `check`, and all else has a fixed width.
        Signed::sign(&change, key).map_err(|_| ChangeError::Signature(change.number))
    }

    /// Whether a change that passes [`Self::check`] may be made now: what another key server made is taken over all the same.
    fn check_new(&self, body: &ChangeBody, second: u64) -> Result<(), ChangeError> {
        match body {
            ChangeBody::Lift(revocation) if !self.revocations.contains(revocation) => Err(ChangeError::NotRevoked),
            // Whoever loaded the database later may have forgotten sooner what ended long ago.
            ChangeBody::Withdraw(terms) | ChangeBody::WithdrawBranch(terms) => {
                self.find(terms).ok_or(ChangeError::NoGrant)?;
                self.check_revocations(body, second, MAX_REVOCATIONS)
            }
            ChangeBody::Close { .. } | ChangeBody::WithdrawDelegation { .. } => {
                self.check_revocations(body, second, MAX_REVOCATIONS)
            }
            ChangeBody::Redeem { invitation, .. } => {
                let principal = self.invitations.get(*invitation).and_then(|(invitation, _)| invitation.principal());
                principal.map_or(Ok(()), |principal| self.check_reopening(principal, second))
            }
            ChangeBody::Account { principal, generation, .. } if self.account(*principal).is_none() => {
                if let Some(held) = self.closed.get(&principal.number()).filter(|held| **held >= *generation) {
                    return Err(ChangeError::Closed { held: *held, got: *generation });
                }
                self.check_reopening(*principal, second)
            }
            ChangeBody::SetBilling { of, billing } => self.check_price(of, billing, second),
            ChangeBody::Several(bodies) => self.check_each(bodies, second, |part, body| part.check_new(body, second)),
            _ => Ok(()),
        }
    }

    /// Whether changes can be made one after the other: each is checked where those before it are made, in their principal's part of the
    /// state.
    fn check_each(
        &self,
        bodies: &[ChangeBody],
        issued: u64,
        check: impl Fn(&Self, &ChangeBody) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        let principal = bodies.first().and_then(|body| self.principal_of(body)).ok_or(ChangeError::Several)?;
        let mut part = self.part(principal);
        let entries = |state: &Self| state.sources().map(Sources::entries).sum::<usize>();
        part.elsewhere = Elsewhere { sources: entries(self) - entries(&part), billed: self.billed - part.billed };
        for body in bodies {
            if !body.may_be_one_of_several() || self.principal_of(body) != Some(principal) {
                return Err(ChangeError::Several);
            }
            check(&part, body)?;
            let (number, previous) = (self.number + 1, self.last);
            part.perform(body, &Change { number, previous, issued, body: body.clone() });
        }
        Ok(())
    }

    /// Whether the number of an account that was closed may be given to somebody again at this Unix second.
    pub(super) fn check_reopening(&self, principal: Principal, second: u64) -> Result<(), ChangeError> {
        if self.account(principal).is_some() || !self.closed.contains_key(&principal.number()) {
            return Ok(());
        }
        let of_all = self.revocations_of(principal).filter(|entry| entry.delegation.is_none());
        let until = of_all.filter_map(Revocation::expires_at).filter(|until| *until > second).max();
        until.map_or(Ok(()), |until| Err(ChangeError::LatelyClosed { until, now: second }))
    }

    /// Takes a change over.
    ///
    /// # Errors
    /// If it is not the provider's, or not the next one. The state is as before.
    pub fn apply(&mut self, change: &Signed<Change>, key: &VerifyingKey) -> Result<(), ChangeError> {
        self.accepts(change, key)?;
        let object = change.object();
        self.perform(&object.body, object);
        (self.number, self.last, self.issued) = (object.number, change.digest(), object.issued);
        self.remember(self.issued);
        self.note_time(self.issued);
        Ok(())
    }

    /// Keeps when a further change was signed.
    fn remember(&mut self, issued: u64) {
        if self.times.len() >= TIMES {
            self.times.pop_front();
        }
        let latest = self.times.back().map_or(issued, |time| issued.max(*time));
        self.times.push_back(latest);
    }

    /// Whether a change is the next one.
    ///
    /// # Errors
    /// If it is not the provider's, or not the next one.
    pub fn accepts(&self, change: &Signed<Change>, key: &VerifyingKey) -> Result<(), ChangeError> {
        let number = change.object().number;
        if number != self.number + 1 {
            return Err(ChangeError::Gap { held: self.number, got: number });
        }
        let object = change.verify(&key.to_bytes()).map_err(|_| ChangeError::Signature(number))?;
        if object.previous != self.last {
            return Err(ChangeError::Fork(number));
        }
        self.check(&object.body, object.issued, 2 * MAX_GRANTS)
    }

    /// Whether the change can be made. A revocation that is lifted may be missing: one that has expired is dropped sooner by whoever
    /// loaded the database later.
    fn check(&self, body: &ChangeBody, issued: u64, most: usize) -> Result<(), ChangeError> {
        let account = |principal: Principal| {
            self.accounts.get(&principal.number()).ok_or(ChangeError::NoAccount(principal.number()))
        };
        match body {
            ChangeBody::Account { principal, generation, .. } => match account(*principal) {
                Ok(held) if held.generation > *generation => {
                    Err(ChangeError::Generation { held: held.generation, got: *generation })
                }
                _ => Ok(()),
            },
            ChangeBody::Close { principal } => account(*principal).map(|_| ()),
            ChangeBody::Grant(Grant { terms, not_before, not_after }) => {
                account(terms.principal)?;
                if not_before > not_after {
                    return Err(ChangeError::Times);
                }
                self.check_capacity(std::slice::from_ref(terms), most)
            }
            ChangeBody::Withdraw(_) | ChangeBody::WithdrawBranch(_) | ChangeBody::WithdrawDelegation { .. } => Ok(()),
            ChangeBody::Revoke(_) => self.check_revocations(body, issued, MAX_REVOCATIONS),
            ChangeBody::Lift(_) => Ok(()),
            ChangeBody::Invite(invitation) => {
                self.invitations.check(invitation, issued)?;
                self.check_capacity(&invitation.terms, most)
            }
            ChangeBody::Redeem { invitation, .. } => {
                self.check_capacity(&self.invitations.redeemable(*invitation, issued)?.terms, most)
            }
            ChangeBody::Uninvite(invitation) => Ok(self.invitations.withdrawable(*invitation)?),
            ChangeBody::SetRate { payer, terms } => {
                account(payer.principal)?;
                if !terms.is_sound() {
                    return Err(ChangeError::RateTerms);
                }
                self.check_space_for_rate(payer)
            }
            ChangeBody::LimitDelegation { payer, limit } => {
                account(payer.principal)?;
                if payer.delegation.is_none() || limit.rate.is_some_and(|terms| !terms.is_sound()) {
                    return Err(ChangeError::RateTerms);
                }
                if limit.is_empty() && self.limit_of(payer).is_empty() {
                    return Err(ChangeError::NoRate);
                }
                limit.rate.map_or(Ok(()), |_| self.check_space_for_rate(payer))?;
                limit.quota().map_or(Ok(()), |quota| self.check_quota(payer, &quota))
            }
            ChangeBody::EndRate(payer) => self.rates.get(payer).map(drop).ok_or(ChangeError::NoRate),
            ChangeBody::SetSources(sources) => {
                account(sources.principal)?;
                self.check_sources(sources)
            }
            ChangeBody::SetBilling { of, billing } => self.check_billing(of, billing),
            ChangeBody::SetQuota { principal, quota } => {
                self.check_quota(&RatePayer { principal: *principal, delegation: None }, quota)
            }
            ChangeBody::EndQuota { principal } => self.quota(*principal).map(drop).ok_or(ChangeError::NoQuota),
            ChangeBody::UseUpQuota { payer, month } => self.check_use_up(payer, *month),
            ChangeBody::Several(bodies) => self.check_each(bodies, issued, |part, body| part.check(body, issued, most)),
        }
    }

    /// Whether the limits leave space for these grants of one principal.
    fn check_capacity(&self, all: &[Terms], most: usize) -> Result<(), ChangeError> {
        let Some(principal) = all.first().map(|terms| terms.principal) else { return Ok(()) };
        let new_waypoints = all.iter().enumerate().filter(|(at, terms)| {
            !self.waypoints.contains(&terms.waypoint) && all[..*at].iter().all(|other| other.waypoint != terms.waypoint)
        });
        if self.waypoints.len() + new_waypoints.count() > MAX_WAYPOINTS {
            return Err(ChangeError::Waypoints);
        }
        let new = all.iter().filter(|terms| self.find(terms).is_none()).count();
        // Whoever loaded the database later may know less of what ended long ago than who signed: it holds twice as much.
        let is_full = new > 0 && self.kept_slots_of(principal).count() + new > most;
        if is_full { Err(ChangeError::Grants) } else { Ok(()) }
    }

    fn perform(&mut self, body: &ChangeBody, change: &Change) {
        let issued = change.issued;
        match body {
            ChangeBody::Account { principal, generation, name } => {
                let first = self.accounts.get(&principal.number()).map_or(NONE, |account| account.first);
                let account = Account { name: name.as_str().into(), generation: *generation, first };
                self.accounts.insert(principal.number(), account);
                if let Some(generation) = self.closed.remove(&principal.number()) {
                    self.reopened.push(Reopening { principal: principal.number(), at: issued, generation });
                }
                let slots: Vec<u32> = self.slots_of(*principal).collect();
                let keys = self.provider.account(*principal, *generation);
                for slot in slots {
                    if let Some(grant) = self.grant(slot) {
                        let key = keys.master(&grant.terms);
                        self.entry_mut(slot).into_iter().for_each(|entry| entry.key = key.clone());
                    }
                }
            }
            ChangeBody::Close { principal } => {
                let slots: Vec<u32> = self.slots_of(*principal).collect();
                // What its holder has looked up ends too.
                let intervals = self.intervals_of(*principal, issued);
                intervals.into_iter().for_each(|interval| self.revoke_accepted(*principal, None, interval, issued));
                slots.into_iter().for_each(|slot| self.release(slot));
                if let Some(account) = self.accounts.remove(&principal.number()) {
                    self.closed.insert(principal.number(), account.generation);
                }
                self.withdrawn.retain(|(of, _), _| of != principal);
                self.invitations.withdraw_of(*principal);
                // Whoever has the number then begins without.
                self.rates.retain(|payer, _| payer.principal != *principal);
                self.sources.retain(|payer, _| payer.principal != *principal);
                self.quotas.retain(|payer, _| payer.principal != *principal);
                self.limits.retain(|payer, _| payer.principal != *principal);
            }
            ChangeBody::Grant(grant) => self.insert(grant),
            ChangeBody::Withdraw(terms) => {
                self.note_withdrawn(terms, issued);
                self.withdraw(terms, issued);
            }
            ChangeBody::WithdrawBranch(terms) => {
                self.note_withdrawn(terms, issued);
                let stays = |grant: &Grant| grant.terms != *terms && !grant.terms.is_below(terms);
                self.retain_grants(terms.principal, issued, stays);
            }
            ChangeBody::WithdrawDelegation { holder, delegation: (id, sub) } => {
                self.withdraw_delegation(holder, *id, *sub, issued);
            }
            ChangeBody::Revoke(revocation) => {
                self.revocations.insert(*revocation);
            }
            ChangeBody::Lift(revocation) => {
                self.revocations.remove(revocation);
            }
            ChangeBody::Invite(invitation) => self.invitations.insert(invitation, issued),
            ChangeBody::Redeem { invitation, holder } => self.redeem(*invitation, *holder, change),
            ChangeBody::Uninvite(invitation) => self.invitations.set(*invitation, InvitationStatus::Withdrawn),
            ChangeBody::SetRate { payer, terms } => {
                self.rates.insert(*payer, *terms);
            }
            ChangeBody::EndRate(payer) => {
                self.rates.remove(payer);
            }
            ChangeBody::SetSources(sources) => {
                if !self.has_sources(sources) {
                    self.sources.insert(sources.into(), sources.clone());
                }
            }
            ChangeBody::SetBilling { of, billing } => self.set_billing(of, billing, issued),
            ChangeBody::SetQuota { principal, quota } => {
                self.set_quota(RatePayer { principal: *principal, delegation: None }, *quota);
            }
            ChangeBody::EndQuota { principal } => {
                self.quotas.remove(&RatePayer { principal: *principal, delegation: None });
            }
            ChangeBody::UseUpQuota { payer, month } => {
                let held = self.quotas.get_mut(payer);
                held.into_iter().for_each(|held| held.use_up(*month, issued));
            }
            ChangeBody::LimitDelegation { payer, limit } => {
                match limit.rate {
                    Some(terms) => self.limits.insert(*payer, terms),
                    None => self.limits.remove(payer),
                };
                match limit.quota() {
                    Some(quota) => self.set_quota(*payer, quota),
                    None => drop(self.quotas.remove(payer)),
                }
            }
            ChangeBody::Several(bodies) => bodies.iter().for_each(|body| self.perform(body, change)),
        }
        if let Some(principal) = self.principal_of(body) {
            self.end_billing(principal, issued);
        }
        // What has expired is harmless where it is; it is swept out when there is twice as much as before.
        if self.revocations.len() >= self.sweep_at {
            let second = issued.min(self.settled());
            self.revocations.retain(|revocation| revocation.expires_at().is_none_or(|expiry| expiry > second));
            self.sweep_at = (self.revocations.len() * 2).max(SWEEP);
        }
    }

    /// The earliest time of the last changes, in Unix seconds: no later than now, unless the clock was wrong for all of them.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.lately.iter().copied().min().unwrap_or(0)
    }

    fn note_time(&mut self, issued: u64) {
        if self.lately.len() >= SETTLING {
            self.lately.pop_front();
        }
        self.lately.push_back(issued);
    }

    /// Opens the account, if there is none, and grants. What is granted already is never shortened.
    fn redeem(&mut self, id: InvitationId, holder: [u8; 32], change: &Change) {
        let Some((invitation, _)) = self.invitations.get(id) else { return };
        let Some(principal) = invitation.principal() else { return };
        let (name, terms, lasts) = (invitation.name.clone(), invitation.terms.clone(), invitation.lasts);
        let known = self.account(principal).map(|(_, generation)| generation);
        let generation = known.unwrap_or_else(|| self.generation_with(principal, change.number));
        if known.is_none() {
            self.perform(&ChangeBody::Account { principal, generation, name }, change);
        }
        for terms in terms {
            let held = self.find(&terms).and_then(|slot| self.grant(slot));
            let (from, until) = (change.issued, change.issued.saturating_add(lasts));
            let not_before = held.map_or(from, |held| held.not_before.min(from));
            let not_after = held.map_or(until, |held| held.not_after.max(until));
            self.insert(&Grant { terms, not_before, not_after });
        }
        self.invitations.set(id, InvitationStatus::Redeemed { holder, at: change.issued, generation });
    }

    fn insert(&mut self, grant: &Grant) {
        if let Some(entry) = self.find(&grant.terms).and_then(|slot| self.entry_mut(slot)) {
            (entry.not_before, entry.not_after) = (grant.not_before, grant.not_after);
            return;
        }
        let second = self.settled();
        let past: HashSet<u32> =
            self.slots_of(grant.terms.principal).filter(|slot| self.is_past(*slot, second)).collect();
        if !past.is_empty() {
            // Their secrets are good no more.
            self.retain_slots(grant.terms.principal, |_, slot| !past.contains(&slot));
        }
        let Terms { waypoint, principal, interval, width, delegation } = grant.terms;
        let number = self.waypoints.iter().position(|known| *known == waypoint).unwrap_or_else(|| {
            self.waypoints.push(waypoint);
            self.waypoints.len() - 1
        });
        let Some(account) = self.accounts.get(&principal.number()) else { return };
        let from = grant.terms.ancestors().find_map(|terms| self.find(&terms)).unwrap_or(NONE);
        let entry = Entry {
            key: self.provider.account(principal, account.generation).master(&grant.terms),
            not_before: grant.not_before,
            not_after: grant.not_after,
            delegation: delegation.map(|delegation| Box::new(Delegated { delegation, from })),
            principal,
            next: account.first,
            waypoint: number as u16, // at most `MAX_WAYPOINTS`
            interval,
            width,
            is_live: true,
        };
        let slot = self.place(entry);
        self.accounts.entry(principal.number()).and_modify(|account| account.first = slot);
        self.grants += 1;
        self.intervals[usize::from(interval.exponent())] += 1;
        // What was delegated from it before it was granted, or granted anew, stood on nothing or on what it stands on.
        if delegation.is_none_or(|delegation| delegation.sub.is_none()) {
            self.stand_on(principal, slot, |terms, held| {
                (held.from == NONE || held.from == from) && terms.is_below(&grant.terms)
            });
        }
    }

    fn place(&mut self, entry: Entry) -> u32 {
        let free = self.free;
        if let Some(place) = self.entry_mut(free) {
            let next = std::mem::replace(place, entry).next;
            self.free = next;
            return free;
        }
        if self.entries.last().is_none_or(|last| last.len() == CHUNK) {
            self.entries.push(Vec::with_capacity(CHUNK));
        }
        let slot = self.slots();
        if let Some(last) = self.entries.last_mut() {
            last.push(entry);
        }
        slot
    }

    fn release(&mut self, slot: u32) {
        let free = self.free;
        let Some(entry) = self.entry_mut(slot).filter(|entry| entry.is_live) else { return };
        let interval = usize::from(entry.interval.exponent());
        (entry.is_live, entry.next, entry.delegation) = (false, free, None);
        entry.key = MasterKey::new(Key128::new([0; 16]));
        self.free = slot;
        self.grants -= 1;
        self.intervals[interval] -= 1;
    }

    /// Octets of memory that accounts and grants take, without the index: what is allocated for them, as the allocator rounds it.
    #[must_use]
    pub fn memory(&self) -> usize {
        // One octet of control for each bucket (hashbrown).
        let buckets = (self.accounts.capacity() * 8 / 7).next_power_of_two();
        let accounts = buckets * (size_of::<(u32, Account)>() + 1);
        let names: usize = self.accounts.values().map(|account| allocated(account.name.len())).sum();
        let entries: usize = self.entries.iter().map(|chunk| chunk.capacity() * size_of::<Entry>()).sum();
        let delegated = self.entries.iter().flatten().filter(|entry| entry.delegation.is_some()).count();
        let delegations = delegated * allocated(size_of::<Delegated>());
        accounts + names + entries + delegations + self.closed.capacity() * size_of::<(u32, u32)>()
    }
}

/// What of a map by payers is of a principal and of its delegations.
fn of_principal<V>(all: &BTreeMap<RatePayer, V>, principal: Principal) -> impl Iterator<Item = (&RatePayer, &V)> {
    let first = RatePayer { principal, delegation: None };
    all.range(first..).take_while(move |(payer, _)| payer.principal == principal)
}

/// Octets that the allocator takes for so many: a header of 8, in multiples of 16, at least 32 (glibc).
fn allocated(octets: usize) -> usize {
    if octets == 0 { 0 } else { (octets + 8).next_multiple_of(16).max(32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_whose_secrets_could_not_be_revoked_is_not_closed() {
        const NOW: UnixTime = UnixTime(1_800_000_000 * 1_000_000);
        let key = SigningKey::from_seed(&Seed::new([1; 32]));
        let mut state = State::new(ProviderKey::new(Seed::new([2; 32])));
        let change = |state: &mut State, body| {
            let signed = state.sign(body, &key, NOW).expect("possible");
            state.apply(&signed, &key.verifying_key()).expect("the next");
        };
        let principal = Principal::new(7).expect("24 bits");
        let waypoint = IpAddr::from([198, 51, 100, 1]);
        let close = ChangeBody::Close { principal };
        assert!(!state.is_ever_given(principal));
        change(&mut state, ChangeBody::Account { principal, generation: 0, name: String::new() });
        change(&mut state, ChangeBody::Revoke(Revocation { principal, delegation: None, epoch: None }));
        assert_eq!(state.check_revocations(&close, NOW.secs(), 1), Ok(()), "nothing was looked up");
        for exponent in [12, 16] {
            let interval = Interval::new(exponent).expect("in range");
            let terms = Terms { waypoint, principal, interval, width: Width::Full, delegation: None };
            change(&mut state, ChangeBody::Grant(Grant { terms, not_before: 0, not_after: NOW.secs() + 1 }));
            change(&mut state, ChangeBody::Withdraw(terms));
        }
        // One is held; two lengths of epochs are revoked, three epochs of each.
        assert_eq!(state.check_revocations(&close, NOW.secs(), 6), Err(ChangeError::Revocations));
        assert_eq!(state.check_revocations(&close, NOW.secs(), 7), Ok(()));
        change(&mut state, close);
        assert_eq!(state.revocations().len(), 7, "as many as were reckoned with");
        assert!(state.account(principal).is_none() && state.is_ever_given(principal));
    }
}

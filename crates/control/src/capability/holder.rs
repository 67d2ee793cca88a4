//! What a key server tells a holder of its own capability: until when it is answered, what it may send and what it sent, what it
//! delegated, and what was refused to it.
//!
//! The holder asks by an order under its key. The answer is sealed under that key for this one order, whose time and nonce nobody
//! used before, so that nobody else reads it and an earlier answer is not taken for it. All answers of a kind are equally long.

use wayleave_core::wire::{Codec, List16, Malformed, Reader, Wire, Writer};
use wayleave_core::{Prefix, UnixTime, wire};
use wayleave_crypto::seal;
use wayleave_packet::platypus::header::DelegationId;

use super::answer::Denial;
use super::channel::{ChargedAccount, RateTerms};
use super::charged::Month;
use super::codecs::DelegationCodec;
use super::keys::MasterKey;
use super::message::{Reply, ReplyError};
use super::refusals::HeldRefusals;
use super::request::{Acknowledgement, Order, Ordering, SignedRequest, Status};
use super::terms::Terms;
use super::usage::{AccountPeriods, Usage};

const LABEL: &str = "wayleave/capability/report/v1";
/// Delegations of a page, at most.
pub const PAGE_DELEGATIONS: usize = 10;
/// Octets of a status, or of what was refused, and of a page before they are sealed: a status fits one string of a TXT record, and a page a datagram.
const STATUS: usize = 192;
const PAGE: usize = 720;

/// Whether there is a denial (0 or 1), its kind as in the answer to a look-up, and its seconds.
struct DenialCodec;

impl Codec<Option<Denial>> for DenialCodec {
    const LEAST: usize = 1;

    fn write(value: &Option<Denial>, out: &mut Writer) {
        match value {
            None => out.u8(0),
            Some(Denial::NotNow { retry_secs }) => out.u8(1).u32(*retry_secs),
            Some(Denial::Revoked) => out.u8(2),
            Some(Denial::Ended) => out.u8(3),
            Some(Denial::UsedUp) => out.u8(5),
        };
    }

    fn read(from: &mut Reader<'_>) -> Result<Option<Denial>, Malformed> {
        Ok(match from.u8()? {
            0 => None,
            1 => Some(Denial::NotNow { retry_secs: from.u32()? }),
            2 => Some(Denial::Revoked),
            3 => Some(Denial::Ended),
            5 => Some(Denial::UsedUp),
            _ => return Err(Malformed::Value("a denial")),
        })
    }
}

wayleave_core::wire! {
    /// What was charged for a capability, as routers reported it: for a principal's own one everything that the principal pays, for a
    /// delegation what is charged to that.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct HolderUsage {
        /// Since the number is the holder's.
        pub packets: u128,
        pub octets: u128,
        /// In key epochs that began in this calendar month (UTC).
        pub month_packets: u128,
        pub month_octets: u128,
        /// Unix seconds: usage of before is in a statement.
        pub closed_before: u64,
        /// There is too much to add up for an answer: these are sums of a part.
        pub is_partial: bool,
    }

    /// How a capability stands.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CapabilityStatus {
        /// Unix seconds between which it is answered, with those of what it was delegated from.
        pub not_before: u64,
        pub not_after: u64,
        /// Why no secret of the current key epoch is given now.
        pub denied: Option<Denial> as DenialCodec,
        /// Delegations of it that the server knows, with those that were handed on.
        pub delegations: u32,
        /// Over all routers; of a sub-delegation that of its delegation.
        pub rate: Option<RateTerms>,
        /// Octets of a month, at most: by the hard quota of a principal, or by the limit of the delegation.
        pub month_octets: Option<u64>,
        /// `None` if this server does not know it, or not now.
        pub usage: Option<HolderUsage>,
    }

    /// A delegation that the server knows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct HeldDelegation {
        pub id: (DelegationId, Option<DelegationId>) as DelegationCodec,
        pub prefix: Prefix,
        /// Unix second after which it is not answered, with that of what it was delegated from.
        pub not_after: u64,
        /// Why its holder is given no secret now: revoked, ended, or a quota or limit by volume is used up.
        pub denied: Option<Denial> as DenialCodec,
        /// Over all routers, of the delegation.
        pub rate: Option<RateTerms>,
        /// Octets of a month to which the delegation is limited.
        pub month_octets: Option<u64>,
    }

    /// Some delegations of a capability, in ascending order of their numbers.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct DelegationPage {
        /// How many there are, and how many are in front of these.
        pub all: u32,
        pub from: u32,
        pub delegations: Vec<HeldDelegation> as List16<PAGE_DELEGATIONS>,
    }

    /// What is answered.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum HolderContent: "the kind of a report" {
        0 = Status(CapabilityStatus),
        1 = Delegations(DelegationPage),
        2 = Refusals(HeldRefusals),
    }

    /// An answer to the holder.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct HolderReport {
        /// The number of the server's state.
        pub number: u64,
        /// Unix seconds at the server.
        pub time: u64,
        pub content: HolderContent,
    }
}

/// Octets of the answer to an order that asks for one; `None` if it asks for something to be done.
pub(super) fn report_length(order: &Order) -> Option<usize> {
    match order {
        Order::Status | Order::Refusals => Some(STATUS + seal::OVERHEAD),
        Order::Delegations { .. } => Some(PAGE + seal::OVERHEAD),
        _ => None,
    }
}

impl HolderReport {
    /// Seals it for the one who gave `request`.
    #[must_use]
    pub fn seal(&self, request: &SignedRequest, key: &MasterKey) -> Vec<u8> {
        let mut plain = wire::encode(self);
        let length = match self.content {
            HolderContent::Status(_) | HolderContent::Refusals(_) => STATUS,
            HolderContent::Delegations(_) => PAGE,
        };
        debug_assert!(plain.len() <= length, "a report of {} octets", plain.len());
        plain.resize(length, 0);
        let digest = request.digest();
        seal::seal(LABEL, &key.report(&digest), &digest, &plain)
    }

    /// Opens the answer to `request`; `None` if the server did not make it.
    #[must_use]
    pub fn open(octets: &[u8], request: &SignedRequest, key: &MasterKey) -> Option<Self> {
        let digest = request.digest();
        let plain = seal::open(LABEL, &key.report(&digest), &digest, octets).ok()?;
        let mut reader = Reader::new(&plain);
        let report = Self::read(&mut reader).ok()?;
        let is_asked = match request.request.order {
            Order::Status => matches!(report.content, HolderContent::Status(_)),
            Order::Delegations { .. } => matches!(report.content, HolderContent::Delegations(_)),
            Order::Refusals => matches!(report.content, HolderContent::Refusals(_)),
            _ => false,
        };
        (is_asked && reader.rest().iter().all(|octet| *octet == 0)).then_some(report)
    }
}

impl Ordering {
    /// As [`Ordering::read`], of an order that asks for something: what is asked for, or why the server does not say it.
    ///
    /// # Errors
    /// If the octets are no answer to the question.
    pub fn read_report(&self, octets: &[u8], id: u16) -> Result<Option<Result<HolderReport, Status>>, ReplyError> {
        let Reply::Texts { texts, .. } = Reply::read(octets, id, &self.name)? else { return Ok(None) };
        let (request, key) = (&self.request, &self.credential.key);
        let refusal = |text: &Vec<u8>| Acknowledgement::open(text, request, key).map(|answer| Err(answer.status));
        Ok(texts.iter().find_map(|text| HolderReport::open(text, request, key).map(Ok).or_else(|| refusal(text))))
    }
}

impl HolderUsage {
    /// Adds what one account was charged, if it is of the holder of `terms`. What a former owner of the number sent is nobody's here.
    pub fn add(
        &mut self,
        terms: &Terms,
        (account, charged): (&ChargedAccount, Usage),
        periods: &AccountPeriods,
        now: UnixTime,
    ) {
        let number = account.principal();
        let (id, sub) = terms.delegation.map_or((None, None), |held| (Some(held.id), held.sub.map(|sub| sub.id)));
        let is_of = |wanted: Option<DelegationId>, found: Option<u32>| {
            wanted.is_none_or(|wanted| found == Some(wanted.number()))
        };
        let is_own = number == terms.principal.number()
            && is_of(id, account.delegation())
            && is_of(sub, account.sub_delegation());
        let begins = account.begins_at();
        let period = account.account_period().or_else(|| begins.map(|begins| periods.at(number, begins)));
        let is_former = periods.former(number, period.unwrap_or_else(|| periods.latest(number))).is_some();
        if !is_own || is_former || account.unfolded().is_some() {
            return;
        }
        self.packets += charged.packets;
        self.octets += charged.octets;
        if account.month().or(begins.map(Month::of)) == Some(Month::of(now.secs())) {
            self.month_packets += charged.packets;
            self.month_octets += charged.octets;
        }
    }
}

//! Requests that a holder makes of its key server by DNS, under MAC: to revoke, to register a delegation, and to learn of its own
//! capability.
//!
//! A request is a question for a name that nobody asked for before, so that no cache answers it. It is idempotent: what is asked
//! for twice is done once and acknowledged twice. The acknowledgement is under MAC too, so that nobody on the way can pretend
//! that something was revoked (paper section 4.1, threat P11).

use hickory_proto::rr::Name;
use subtle::ConstantTimeEq;
use wayleave_core::wire::{Codec, Malformed, Reader, Wire, Writer};
use wayleave_core::{Prefix, UnixTime};
use wayleave_crypto::hash::hash;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::revocation::Revocation;

use super::channel::RateTerms;
use super::codecs::DelegationCodec;
use super::credential::Credential;
use super::keys::{Handle, MasterKey};
use super::message::{self, Reply, ReplyError};
use super::name::{MAX_MESSAGE, signed_labels};
use super::terms::Terms;
use super::volume_quota::DelegationLimit;

/// Seconds by which the clocks of holder and server may differ: a request is good for as long.
pub const WINDOW: u64 = 300;
const TAG: usize = 16;
/// Octets of a request in front of its kind: interval, epoch, handle, time, nonce.
const HEAD: usize = 1 + 4 + 16 + 8 + 4;
/// Octets of an acknowledgement: status, number, time, MAC.
pub const ACKNOWLEDGEMENT: usize = 1 + 8 + 8 + TAG;

/// What a holder asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The capability's secret of the request's epoch is revoked, with everything delegated from it in that epoch.
    RevokeEpoch,
    /// A delegation, or the sub-delegation of one, is revoked in all epochs.
    RevokeDelegation { id: DelegationId, sub: Option<DelegationId> },
    /// The holder delegates, or says anew until when: whoever has the key that follows from the holder's may look up secrets for this
    /// prefix. `id` is the delegation's number, or the sub-delegation's if the holder has a delegation. It ends with what it was
    /// delegated from, and before that after this Unix second if there is one.
    Delegate { id: DelegationId, prefix: Prefix, until: Option<u64> },
    /// A delegation, or the sub-delegation of one, ends with all that was handed on from it, and its place is free. Who had it would have the same keys if its number were given again.
    Withdraw { id: DelegationId, sub: Option<DelegationId> },
    /// Where packets of a delegation of the holder's, and of what was handed on from it, may come from, in the place of what was said before.
    Sources { id: DelegationId, prefixes: OrderedPrefixes },
    /// The holder asks how its capability stands: a [`super::HolderReport`] answers.
    Status,
    /// The holder asks for its delegations behind the first so many.
    Delegations { from: u32 },
    /// The holder asks what routers refused to it.
    Refusals,
    /// A delegation of the holder's has no more than this, in the place of what was said before.
    Limit { id: DelegationId, limit: DelegationLimit },
}

/// The source prefixes of an order, as many as fit a name: four of IPv4, or one of any length of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedPrefixes([Option<Prefix>; Self::MOST]);

impl OrderedPrefixes {
    const MOST: usize = 4;
    /// Octets of all: what a name has beside the operation, the request's head, kind, delegation and MAC.
    const MAX: usize = MAX_MESSAGE - 1 - HEAD - 1 - 3 - TAG;

    /// `None` if there are too many, or they do not ascend.
    #[must_use]
    pub fn new(prefixes: &[Prefix]) -> Option<Self> {
        let mut all = [None; Self::MOST];
        all.iter_mut().zip(prefixes).for_each(|(place, prefix)| *place = Some(*prefix));
        let octets: usize = prefixes.iter().map(|prefix| 2 + usize::from(prefix.len()).div_ceil(8)).sum();
        let fits = prefixes.len() <= Self::MOST && octets <= Self::MAX;
        (fits && prefixes.is_sorted_by(|a, b| a < b)).then_some(Self(all))
    }

    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        self.0.iter().copied().flatten()
    }
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub interval: Interval,
    /// The key epoch of the handle.
    pub epoch: u32,
    pub handle: Handle,
    /// Unix seconds at the holder.
    pub time: u64,
    /// Makes the name unlike every other.
    pub nonce: [u8; 4],
    pub order: Order,
}

/// A request, and its MAC, which has not been checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedRequest {
    pub request: Request,
    covered: Vec<u8>,
    tag: [u8; TAG],
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(self.interval.exponent()).u32(self.epoch).bytes(&self.handle.0).u64(self.time).bytes(&self.nonce);
        match self.order {
            Order::RevokeEpoch => {
                out.u8(0);
            }
            Order::RevokeDelegation { id, sub } => DelegationCodec::write(&(id, sub), out.u8(1)),
            Order::Delegate { id, prefix, until: None } => {
                out.u8(2).bytes(&id.octets()).prefix(&prefix);
            }
            Order::Delegate { id, prefix, until: Some(until) } => {
                out.u8(3).bytes(&id.octets()).prefix(&prefix).u64(until);
            }
            Order::Withdraw { id, sub } => DelegationCodec::write(&(id, sub), out.u8(4)),
            Order::Sources { id, prefixes } => {
                out.u8(5).bytes(&id.octets());
                prefixes.iter().for_each(|prefix| {
                    out.prefix(&prefix);
                });
            }
            Order::Status => {
                out.u8(6);
            }
            Order::Delegations { from } => {
                out.u8(7).u32(from);
            }
            Order::Refusals => {
                out.u8(9);
            }
            // With both, a name has no octet to spare: one says which are there.
            Order::Limit { id, limit: DelegationLimit { rate, month_octets } } => {
                out.u8(8).bytes(&id.octets()).u8(u8::from(rate.is_some()) | u8::from(month_octets.is_some()) << 1);
                rate.iter().for_each(|rate| rate.write(&mut out));
                if let Some(octets) = month_octets {
                    out.u64(octets);
                }
            }
        }
        out.finish()
    }
}

impl SignedRequest {
    /// The request under the MAC of `key`.
    #[must_use]
    pub fn sign(request: Request, key: &MasterKey) -> Self {
        let covered = request.encode();
        let tag = key.request_tag(&covered);
        Self { request, covered, tag }
    }

    /// The octets in a name.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.covered[..], &self.tag].concat()
    }

    /// Decodes all of `octets`.
    ///
    /// # Errors
    /// If they are no request.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        let (covered, tag) =
            octets.split_last_chunk::<TAG>().ok_or(Malformed::Truncated { need: TAG, have: octets.len() })?;
        let mut reader = Reader::new(covered);
        let interval = Interval::new(reader.u8()?).ok_or(Malformed::Value("an interval"))?;
        let (epoch, handle, time, nonce) = (reader.u32()?, Handle(reader.array()?), reader.u64()?, reader.array()?);
        let order = match reader.u8()? {
            0 => Order::RevokeEpoch,
            1 => {
                let (id, sub) = DelegationCodec::read(&mut reader)?;
                Order::RevokeDelegation { id, sub }
            }
            kind @ (2 | 3) => {
                let (id, prefix) = (DelegationId::from_octets(reader.array()?), reader.prefix()?);
                Order::Delegate { id, prefix, until: if kind == 3 { Some(reader.u64()?) } else { None } }
            }
            4 => {
                let (id, sub) = DelegationCodec::read(&mut reader)?;
                Order::Withdraw { id, sub }
            }
            5 => {
                let (id, mut prefixes) = (DelegationId::from_octets(reader.array()?), Vec::new());
                while reader.left() > 0 {
                    prefixes.push(reader.prefix()?);
                }
                let prefixes = OrderedPrefixes::new(&prefixes).ok_or(Malformed::Value("source prefixes"))?;
                Order::Sources { id, prefixes }
            }
            6 => Order::Status,
            7 => Order::Delegations { from: reader.u32()? },
            8 => {
                let id = DelegationId::from_octets(reader.array()?);
                let flags = reader.u8()?;
                if flags & !3 != 0 {
                    return Err(Malformed::Value("the limit of a delegation"));
                }
                let rate = if flags & 1 != 0 { Some(RateTerms::read(&mut reader)?) } else { None };
                let month_octets = if flags & 2 != 0 { Some(reader.u64()?) } else { None };
                Order::Limit { id, limit: DelegationLimit { rate, month_octets } }
            }
            9 => Order::Refusals,
            _ => return Err(Malformed::Value("the kind of a request")),
        };
        reader.end()?;
        let request = Request { interval, epoch, handle, time, nonce, order };
        Ok(Self { request, covered: covered.to_vec(), tag: *tag })
    }

    /// Whether the holder of `key` made it.
    #[must_use]
    pub fn is_from(&self, key: &MasterKey) -> bool {
        key.request_tag(&self.covered).ct_eq(&self.tag).into()
    }

    /// Names this request with its MAC.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        hash("wayleave/capability/request/v1", &[&self.covered, &self.tag])
    }
}

/// The revocation that an order of the holder of `terms` means; `None` if it is not the holder's to revoke, or no revocation.
#[must_use]
pub fn revocation(terms: &Terms, request: &Request) -> Option<Revocation> {
    let principal: Principal = terms.principal;
    let own = terms.delegation.map(|delegation| (delegation.id, delegation.sub.map(|sub| sub.id)));
    match request.order {
        Order::RevokeEpoch => {
            Some(Revocation { principal, delegation: own, epoch: Some((terms.interval, request.epoch)) })
        }
        Order::RevokeDelegation { id, sub } => {
            may_end(terms, id, sub).then_some(Revocation { principal, delegation: Some((id, sub)), epoch: None })
        }
        Order::Delegate { .. }
        | Order::Withdraw { .. }
        | Order::Sources { .. }
        | Order::Status
        | Order::Delegations { .. }
        | Order::Refusals
        | Order::Limit { .. } => None,
    }
}

/// Whether a revocation of an epoch of `terms` is one of `other` as well, which is another holder's: routers know neither by the waypoint.
pub(super) fn shares_epochs(terms: &Terms, other: &Terms) -> bool {
    let ids = |terms: &Terms| terms.delegation.map(|delegation| (delegation.id, delegation.sub.map(|sub| sub.id)));
    terms != other && (terms.principal, terms.interval, ids(terms)) == (other.principal, other.interval, ids(other))
}

/// Whether the holder of `terms` may end this delegation, or sub-delegation: one of its own, itself included.
pub(super) fn may_end(terms: &Terms, id: DelegationId, sub: Option<DelegationId>) -> bool {
    match terms.delegation.map(|delegation| (delegation.id, delegation.sub.map(|sub| sub.id))) {
        None => true,
        Some((held, None)) => held == id,
        Some((held, held_sub)) => held == id && sub.is_some() && held_sub == sub,
    }
}

/// The terms of a delegation that the holder of `terms` orders; `None` if it cannot be: the prefix is not within what is held,
/// is of another family, or a sub-delegation would be handed on.
#[must_use]
pub fn delegated(terms: &Terms, id: DelegationId, prefix: Prefix) -> Option<Terms> {
    use wayleave_packet::platypus::header::{Delegation, SubDelegation};
    let delegation = match terms.delegation {
        None => Delegation { prefix, id, sub: None },
        Some(held) if held.sub.is_none() && held.prefix.contains(&prefix) => {
            Delegation { prefix, id: held.id, sub: Some(SubDelegation { at: held.prefix.len(), id }) }
        }
        Some(_) => return None,
    };
    let terms = Terms { delegation: Some(delegation), ..*terms };
    terms.capability(0).is_consistent().then_some(terms)
}

/// What the server did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Status {
    /// Durable, now or before.
    #[error("done")]
    Done,
    #[error("the clocks of holder and server differ by more than {WINDOW} s; set the clock")]
    Clock,
    #[error(
        "the capability does not allow this: a holder revokes and delegates only what follows from the own capability"
    )]
    NotAllowed,
    #[error(
        "the provider has no room for more of this by this capability; revoke in whole what was delegated, or ask the provider"
    )]
    Full,
    /// The server's disk is full or broken.
    #[error("the key server cannot write to its disk, and nothing was changed; repeat it later, or ask the provider")]
    Unwritten,
    /// Nothing was looked at.
    #[error(
        "more orders came than the key server takes in a short time, and nothing was changed; repeat it in some seconds"
    )]
    Busy,
    #[error(
        "other capabilities of the account would end with this one, since routers know its secrets by the account and the epoch; ask the \
         provider, who can withdraw this one alone"
    )]
    Shared,
}

impl Status {
    const ALL: [Self; 7] =
        [Self::Done, Self::Clock, Self::NotAllowed, Self::Full, Self::Unwritten, Self::Busy, Self::Shared];

    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Clock => 1,
            Self::NotAllowed => 2,
            Self::Full => 3,
            Self::Unwritten => 4,
            Self::Busy => 5,
            Self::Shared => 6,
        }
    }
}

/// What the server says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledgement {
    pub status: Status,
    /// The number of the server's state that has it.
    pub number: u64,
    /// Unix seconds at the server.
    pub time: u64,
}

impl Acknowledgement {
    /// The octets, for the request alone.
    #[must_use]
    pub fn encode(&self, request: &SignedRequest, key: &MasterKey) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(self.status.code()).u64(self.number).u64(self.time);
        let mut octets = out.finish();
        let tag = key.acknowledgement_tag(&[&request.digest()[..], &octets].concat());
        octets.extend_from_slice(&tag);
        octets
    }

    /// Opens an acknowledgement of `request`; `None` if the server did not make it.
    #[must_use]
    pub fn open(octets: &[u8], request: &SignedRequest, key: &MasterKey) -> Option<Self> {
        let (covered, tag) = octets.split_last_chunk::<TAG>()?;
        let expected = key.acknowledgement_tag(&[&request.digest()[..], covered].concat());
        if !bool::from(expected.ct_eq(tag)) {
            return None;
        }
        let mut reader = Reader::new(covered);
        let code = reader.u8().ok()?;
        let status = Status::ALL.into_iter().find(|status| status.code() == code)?;
        let (number, time) = (reader.u64().ok()?, reader.u64().ok()?);
        reader.end().ok()?;
        Some(Self { status, number, time })
    }
}

/// A request in the hands of a client: the question, and how its answer is read.
#[derive(Clone, Debug)]
pub struct Ordering {
    pub(super) credential: Credential,
    pub(super) request: SignedRequest,
    pub(super) name: Name,
}

impl Ordering {
    /// An order by the holder of `credential`, in the key epoch at `now`. `nonce` must be random.
    #[must_use]
    pub fn new(credential: Credential, order: Order, nonce: [u8; 4], epoch: u32, now: UnixTime) -> Self {
        let handle = credential.handle(epoch);
        let request = Request { interval: credential.terms.interval, epoch, handle, time: now.secs(), nonce, order };
        let request = SignedRequest::sign(request, &credential.key);
        let name = message::name(&signed_labels(&request.encode()), &credential.zone);
        Self { credential, request, name }
    }

    /// The question, as a DNS message.
    #[must_use]
    pub fn question(&self, id: u16) -> Vec<u8> {
        message::question(id, &self.name)
    }

    /// Reads the answer to the question with this `id`: `Ok(None)` if it must be asked for again, by TCP or of another server.
    ///
    /// # Errors
    /// If the octets are no answer to the question.
    pub fn read(&self, octets: &[u8], id: u16) -> Result<Option<Acknowledgement>, ReplyError> {
        let Reply::Texts { texts, .. } = Reply::read(octets, id, &self.name)? else { return Ok(None) };
        Ok(texts.iter().find_map(|text| Acknowledgement::open(text, &self.request, &self.credential.key)))
    }
}

//! The keys of Platypus, each of a type of its own, and how one follows from another.
//!
//! `k` (waypoint) makes `s` (principal and epoch), which stamps, or makes `s_0` and then `s_i` for each bit of a prefix
//! (delegation by chaining, paper section 4.3), whose last one makes a stamping key. Every step is AES-128-CMAC over a
//! label and fields of fixed width, so that no key of one kind is a key or a binding of another.

use std::fmt;
use std::net::IpAddr;

use wayleave_core::{Afi, Prefix, UnixTime};
use wayleave_crypto::kdf;
use wayleave_crypto::lanes::{Block, CmacKey, CpuKernel};
use wayleave_crypto::secret::{Key128, Seed};

use super::super::header::{Capability, Delegation, DelegationId, Interval, Principal, SubDelegation, family};
use super::epoch;
use super::mac;

/// Live versions of one waypoint's key.
pub const MAX_KEY_VERSIONS: usize = 2;

/// Four octets: a letter for the purpose, the version, the family.
#[must_use]
pub const fn label(purpose: u8, afi: Afi) -> [u8; 4] {
    [b'P', purpose, b'1', if matches!(afi, Afi::Ipv4) { b'4' } else { b'6' }]
}

/// Of the label under which secrets are made.
pub const PURPOSE_SECRET: u8 = b's';
const PURPOSE_DELEGATION: u8 = b'd';
const PURPOSE_STEP: u8 = b't';
const PURPOSE_SUB_DELEGATION: u8 = b'u';
const PURPOSE_STAMP: u8 = b'k';
const PURPOSE_REPLY: u8 = b'r';
/// Of the label under which bindings are made.
pub const PURPOSE_BINDING: u8 = b'b';

/// `k`: what the routers of one waypoint address and its key server share, expanded.
#[derive(Clone)]
pub struct WaypointKey {
    /// On the fastest kernel, for many secrets at once.
    lanes: CmacKey,
    /// On the portable kernel, for a single secret.
    single: CmacKey,
}

impl fmt::Debug for WaypointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaypointKey(..)")
    }
}

impl WaypointKey {
    /// Expands the key.
    #[must_use]
    pub fn new(key: &Key128) -> Self {
        let single = CmacKey::with_kernel(key.expose(), CpuKernel::PORTABLE);
        Self { lanes: CmacKey::new(key.expose()), single }
    }

    /// The key of `waypoint` in version `version` of an AS's `master` secret.
    #[must_use]
    pub fn derive(master: &Seed, waypoint: IpAddr, version: u32) -> Self {
        let mut context = version.to_be_bytes().to_vec();
        match waypoint {
            IpAddr::V4(v4) => context.extend(v4.octets()),
            IpAddr::V6(v6) => context.extend(v6.octets()),
        }
        Self::new(&kdf::derive("wayleave/platypus/waypoint/v1", master.expose(), &context))
    }

    /// `s`: the temporal secret of a principal at a waypoint during one epoch, as [`Capability::secret_epoch`] gives it.
    #[must_use]
    pub fn secret(&self, waypoint: IpAddr, principal: Principal, interval: Interval, epoch: u32) -> TemporalSecret {
        let (blocks, used) = secret_input(waypoint, principal, interval, epoch);
        let key = self.single.tag(blocks[..used].as_flattened());
        TemporalSecret { key: Key128::new(key), afi: family(waypoint) }
    }

    /// The expanded key for computing many secrets in lanes.
    #[must_use]
    pub fn in_lanes(&self) -> &CmacKey {
        &self.lanes
    }
}

/// The message whose MAC is `s`: label, waypoint, principal, interval, epoch. One block for IPv4, two (zero-padded) for
/// IPv6; returns the blocks and how many are used.
pub(crate) fn secret_input(
    waypoint: IpAddr,
    principal: Principal,
    interval: Interval,
    epoch: u32,
) -> ([Block; 2], usize) {
    let mut blocks = [[0; 16]; 2];
    let out = blocks.as_flattened_mut();
    out[..4].copy_from_slice(&label(PURPOSE_SECRET, family(waypoint)));
    let (at, used) = match waypoint {
        IpAddr::V4(v4) => {
            out[4..8].copy_from_slice(&v4.octets());
            (8, 1)
        }
        IpAddr::V6(v6) => {
            out[4..20].copy_from_slice(&v6.octets());
            (20, 2)
        }
    };
    out[at..at + 3].copy_from_slice(&principal.octets());
    out[at + 3] = interval.exponent();
    out[at + 4..at + 8].copy_from_slice(&epoch.to_be_bytes());
    (blocks, used)
}

/// The live versions of a waypoint's key. An epoch's beginning decides which version makes its secrets, so that routers and
/// key servers change over together.
#[derive(Clone, Debug)]
pub struct WaypointKeys {
    /// Newest first, with the first second of the epochs that it serves.
    versions: Vec<(u64, WaypointKey)>,
}

/// A key version that cannot join the live ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a newer key version begins at second {0}, which is no later than this one's")]
pub struct NotNewer(pub u64);

impl WaypointKeys {
    /// One key, for every epoch.
    #[must_use]
    pub fn new(key: WaypointKey) -> Self {
        Self { versions: vec![(0, key)] }
    }

    /// Lets `key` make the secrets of all epochs that begin at `from` (Unix seconds) or later. The oldest version leaves
    /// if there are more than [`MAX_KEY_VERSIONS`].
    pub fn rotate(&mut self, key: WaypointKey, from: u64) -> Result<(), NotNewer> {
        let (newest, _) = self.versions[0];
        if from <= newest {
            return Err(NotNewer(newest));
        }
        self.versions.insert(0, (from, key));
        self.versions.truncate(MAX_KEY_VERSIONS);
        Ok(())
    }

    /// The key that makes the secrets of `epoch`, if it is still held.
    #[must_use]
    pub fn of_epoch(&self, interval: Interval, epoch: u32) -> Option<&WaypointKey> {
        let begin = epoch::epoch_begin(interval, epoch);
        self.versions.iter().find(|(from, _)| *from <= begin).map(|(_, key)| key)
    }

    /// The key under which packets with `capability` are stamped, wherever they come from; `None` also of a capability for
    /// replies, whose key serves one source.
    #[must_use]
    pub fn stamp_key(&self, capability: &Capability) -> Option<StampKey> {
        if capability.marks.is_reply() { None } else { self.stamp_key_from(capability, capability.waypoint) }
    }

    /// The key under which a packet with `capability` is stamped whose original source is `source`.
    #[must_use]
    pub fn stamp_key_from(&self, capability: &Capability, source: IpAddr) -> Option<StampKey> {
        let Capability { waypoint, principal, interval, .. } = *capability;
        let key = self.of_epoch(interval, capability.epoch)?;
        let secret = key.secret(waypoint, principal, interval, capability.secret_epoch());
        Some(match &capability.delegation {
            None => secret.stamp_key(),
            Some(delegation) if capability.marks.is_reply() => secret.follow(delegation).reply_key(source),
            Some(delegation) => secret.follow(delegation).stamp_key(),
        })
    }
}

/// `s`: what a principal gets from the key server for an epoch. It stamps, and it delegates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemporalSecret {
    key: Key128,
    afi: Afi,
}

/// Why a capability cannot be delegated or handed on. Our caller erred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DelegateError {
    #[error("the prefix is of another address family than the waypoint")]
    Family,
    /// A delegation can only shrink.
    #[error("prefix {wanted} does not lie in the delegated prefix {held}")]
    OutsidePrefix { held: Prefix, wanted: Prefix },
    #[error("this delegation was already handed on under a number of its holder, which is possible once")]
    HandedOnTwice,
}

impl TemporalSecret {
    /// A secret that a key server sent, for a waypoint of family `afi`.
    #[must_use]
    pub fn new(key: Key128, afi: Afi) -> Self {
        Self { key, afi }
    }

    /// The octets, to seal for the principal.
    #[must_use]
    pub fn expose(&self) -> &[u8; 16] {
        self.key.expose()
    }

    /// The key for the principal's own packets: `s` itself.
    #[must_use]
    pub fn stamp_key(&self) -> StampKey {
        StampKey(self.key.clone())
    }

    /// A secret that stamps for final destinations in `prefix` only. Any length is safe, zero too: `s_0` says nothing
    /// of `s`.
    pub fn delegate(&self, id: DelegationId, prefix: Prefix) -> Result<DelegatedSecret, DelegateError> {
        if prefix.afi() != self.afi {
            return Err(DelegateError::Family);
        }
        Ok(self.follow(&Delegation { prefix, id, sub: None }))
    }

    /// Follows a sound delegation of our own family.
    #[must_use]
    pub fn follow(&self, delegation: &Delegation) -> DelegatedSecret {
        let [a, b, c] = delegation.id.octets();
        let key = mac::derive(&self.key, block(PURPOSE_DELEGATION, self.afi, &[a, b, c]));
        let whole = Prefix::truncated(delegation.prefix.address(), 0).expect("zero is a length");
        let mut held = DelegatedSecret { key, afi: self.afi, prefix: whole, id: delegation.id, sub: None };
        if let Some(sub) = delegation.sub {
            held.step_to(Prefix::truncated(delegation.prefix.address(), sub.at).expect("within the prefix's length"));
            held.enter(sub);
        }
        held.step_to(delegation.prefix);
        held
    }
}

/// `s_p`: what the holder of a delegated capability has. It stamps for its prefix, and it delegates within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegatedSecret {
    key: Key128,
    afi: Afi,
    prefix: Prefix,
    id: DelegationId,
    sub: Option<SubDelegation>,
}

impl DelegatedSecret {
    /// A delegated secret that the principal or another holder sent.
    #[must_use]
    pub fn new(key: Key128, delegation: Delegation) -> Self {
        let Delegation { prefix, id, sub } = delegation;
        Self { key, afi: prefix.afi(), prefix, id, sub }
    }

    /// The octets, to seal for the next holder.
    #[must_use]
    pub fn expose(&self) -> &[u8; 16] {
        self.key.expose()
    }

    /// What the capability says of this delegation.
    #[must_use]
    pub fn delegation(&self) -> Delegation {
        Delegation { prefix: self.prefix, id: self.id, sub: self.sub }
    }

    /// The same delegation, for a part of the prefix.
    pub fn narrow(&self, prefix: Prefix) -> Result<Self, DelegateError> {
        if !self.prefix.contains(&prefix) {
            return Err(DelegateError::OutsidePrefix { held: self.prefix, wanted: prefix });
        }
        let mut next = self.clone();
        next.step_to(prefix);
        Ok(next)
    }

    /// The same prefix under a number that the holder chooses, so that both delegations can be distinguished and revoked
    /// separately.
    pub fn hand_on(&self, id: DelegationId) -> Result<Self, DelegateError> {
        if self.sub.is_some() {
            return Err(DelegateError::HandedOnTwice);
        }
        let mut next = self.clone();
        next.enter(SubDelegation { at: self.prefix.len(), id });
        Ok(next)
    }

    /// The key for packets to the prefix.
    #[must_use]
    pub fn stamp_key(&self) -> StampKey {
        StampKey(mac::derive(&self.key, block(PURPOSE_STAMP, self.afi, &[self.prefix.len()])))
    }

    /// The key for packets to the prefix whose original source is `source`, with a capability for replies.
    #[must_use]
    pub fn reply_key(&self, source: IpAddr) -> StampKey {
        let mut blocks = [[0; 16]; 2];
        let out = blocks.as_flattened_mut();
        out[..4].copy_from_slice(&label(PURPOSE_REPLY, self.afi));
        out[4] = self.prefix.len();
        let used = match source {
            IpAddr::V4(v4) => {
                out[5..9].copy_from_slice(&v4.octets());
                1
            }
            IpAddr::V6(v6) => {
                out[5..21].copy_from_slice(&v6.octets());
                2
            }
        };
        StampKey(Key128::new(mac::cmac(&self.key, &blocks[..used], &[])))
    }

    /// One derivation per bit, from the prefix held to a longer one.
    fn step_to(&mut self, prefix: Prefix) {
        let octets = prefix.octets();
        for i in self.prefix.len()..prefix.len() {
            let bit = octets[usize::from(i / 8)] >> (7 - i % 8) & 1;
            self.key = mac::derive(&self.key, block(PURPOSE_STEP, self.afi, &[i + 1, bit]));
        }
        self.prefix = prefix;
    }

    fn enter(&mut self, sub: SubDelegation) {
        let [a, b, c] = sub.id.octets();
        self.key = mac::derive(&self.key, block(PURPOSE_SUB_DELEGATION, self.afi, &[sub.at, a, b, c]));
        self.sub = Some(sub);
    }
}

/// The key under which bindings are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StampKey(Key128);

impl StampKey {
    /// A stamping key from its octets.
    #[must_use]
    pub fn new(key: Key128) -> Self {
        Self(key)
    }

    /// The octets, to seal for a stamper.
    #[must_use]
    pub fn expose(&self) -> &[u8; 16] {
        self.0.expose()
    }

    /// The binding of a packet whose masked head is `head` and whose payload is `payload`.
    pub(crate) fn bind(&self, head: &[Block], payload: &[u8]) -> Block {
        mac::cmac(&self.0, head, payload)
    }
}

/// Label and fields in one block, zero-padded.
fn block(purpose: u8, afi: Afi, fields: &[u8]) -> Block {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&label(purpose, afi));
    out[4..4 + fields.len()].copy_from_slice(fields);
    out
}

/// Seconds for which a secret of `epoch` is accepted from `now` on.
#[must_use]
pub fn accepted_for(interval: Interval, epoch: u32, now: UnixTime) -> u64 {
    if !epoch::is_accepted(interval, epoch, now) {
        return 0;
    }
    ((u64::from(epoch) + 1 + epoch::ADJACENT_EPOCHS) << interval.exponent()) - now.secs()
}

//! Version 0: Platypus as published, with its published weaknesses.
//!
//! The paper leaves some choices open; ours are as follows. Length and pointer count words of the capability list. `MASK(P)`
//! consists of the first octet of the IP header, identification, fragment field, protocol, real source and destination, and
//! the payload. `F` is AES-128-CMAC; `H` is SHA-256 truncated to 128 bits. A delegation is checked against the final
//! destination. An error ends the processing of a packet, whereas the pseudocode of Figure 3 continues.

mod keys;
mod packet;
mod recent;
pub mod umac;

use std::net::Ipv4Addr;

use subtle::ConstantTimeEq;
use thiserror::Error;
use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{Block, CpuKernel, Parts, cmac_each};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::offsets::{PROTOCOL, WORD};
use wayleave_packet::platypus::header::{DelegationId, Malformed, Principal};

use self::umac::{ContextCache, Umac};
use crate::ipv4;

pub use keys::{Algorithm, PaperPrefix, XorKeys, XorTable, chain, chain_begin, get_time, h, key_id, secret};
pub use packet::{PaperHeaderError, PaperPacket};

/// Octets of a binding.
pub const BINDING: usize = 8;

/// How a capability was delegated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DelegationKind {
    /// By chaining.
    Chaining,
    /// By exclusive or.
    Xor,
}

/// The delegated part of a capability of version 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PaperDelegation {
    /// Destinations that the holder may reach.
    pub prefix: PaperPrefix,
    pub id: DelegationId,
    pub kind: DelegationKind,
}

/// A capability of version 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PaperCapability {
    pub waypoint: Ipv4Addr,
    /// The customer who pays.
    pub principal: Principal,
    /// The low four bits of the key epoch.
    pub key_id: u8,
    /// Present if the holder is not the principal.
    pub delegation: Option<PaperDelegation>,
}

/// A key that computes bindings, set up for its algorithm.
pub enum BindingKey<'a> {
    Umac(&'a Umac<2>),
    Cmac(&'a Key128),
}

impl BindingKey<'_> {
    fn bind(&self, packet: &PaperPacket<'_>) -> [u8; BINDING] {
        let tag = match self {
            Self::Umac(umac) => umac.tag(&packet.mask(), &packet.nonce()),
            Self::Cmac(key) => cmac(key, &packet.mask()),
        };
        *tag.first_chunk().expect("sixteen octets")
    }
}

/// Why a router of the paper does not forward a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    #[error("every waypoint has been passed")]
    NothingLeft,
    #[error("another router is the waypoint")]
    NotForUs,
    #[error("the key ID is neither this epoch's nor one beside it")]
    KeyEpoch,
    #[error("delegated by exclusive or")]
    XorDelegation,
    #[error("the destination is outside the delegated prefix")]
    OutsidePrefix,
    #[error("the binding is wrong")]
    Binding,
}

/// A router of the paper.
pub struct PaperRouter {
    address: Ipv4Addr,
    key: Key128,
    n: u8,
    algorithm: Algorithm,
    is_xor_allowed: bool,
    is_id_check_modular: bool,
    contexts: ContextCache<(Vec<u8>, u32)>,
}

impl PaperRouter {
    /// A waypoint at `address` whose key IDs change every `2^n` seconds, with room for `contexts` UMAC contexts.
    #[must_use]
    pub fn new(address: Ipv4Addr, key: Key128, n: u8, algorithm: Algorithm, contexts: usize) -> Self {
        Self {
            address,
            key,
            n,
            algorithm,
            is_xor_allowed: false,
            is_id_check_modular: false,
            contexts: ContextCache::new(contexts),
        }
    }

    /// Accepts delegations by exclusive or.
    #[must_use]
    pub fn with_xor(mut self) -> Self {
        self.is_xor_allowed = true;
        self
    }

    /// Corrects the comparison of key IDs and nothing else, which makes it worse (threat P1).
    #[must_use]
    pub fn with_modular_id_check(mut self) -> Self {
        self.is_id_check_modular = true;
        self
    }

    /// Figure 3: returns the packet as it leaves this router.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn process(&mut self, packet: &PaperPacket<'_>, now: UnixTime) -> Result<Vec<u8>, Refusal> {
        let index = packet.current().ok_or(Refusal::NothingLeft)?;
        let capability = packet.capability(index);
        if capability.waypoint != self.address || packet.outer_destination() != self.address {
            return Err(Refusal::NotForUs);
        }
        self.check_key_id(capability.key_id, now)?;
        if let Some(delegation) = &capability.delegation {
            self.check_delegation(delegation, packet)?;
        }
        let binding = self.binding(packet, index, &capability, now);
        if !bool::from(binding.ct_eq(&packet.datagram()[packet.binding_range(index)])) {
            return Err(Refusal::Binding);
        }
        Ok(packet.forwarded(index))
    }

    /// `|c.id - ID| > 1`: not modular, as published.
    fn check_key_id(&self, id: u8, now: UnixTime) -> Result<(), Refusal> {
        let apart = id.abs_diff(key_id(self.n, now.secs()));
        let is_near = apart <= 1 || self.is_id_check_modular && apart == 15;
        if is_near { Ok(()) } else { Err(Refusal::KeyEpoch) }
    }

    fn check_delegation(&self, delegation: &PaperDelegation, packet: &PaperPacket<'_>) -> Result<(), Refusal> {
        if delegation.kind == DelegationKind::Xor && !self.is_xor_allowed {
            return Err(Refusal::XorDelegation);
        }
        if !delegation.prefix.holds(packet.final_destination()) {
            return Err(Refusal::OutsidePrefix);
        }
        Ok(())
    }

    fn binding(
        &mut self,
        packet: &PaperPacket<'_>,
        index: usize,
        capability: &PaperCapability,
        now: UnixTime,
    ) -> [u8; BINDING] {
        let time = get_time(self.n, capability.key_id, now.secs());
        let (algorithm, k) = (self.algorithm, &self.key);
        let stamp_key =
            || stamp_key(&secret(algorithm, k, capability.waypoint, capability.principal, time), capability);
        match self.algorithm {
            Algorithm::Cmac => BindingKey::Cmac(&stamp_key()).bind(packet),
            Algorithm::Umac => {
                let name = (packet.capability_octets(index).to_vec(), time);
                BindingKey::Umac(self.contexts.get(&name, stamp_key)).bind(packet)
            }
        }
    }
}

/// The key that stamps with `capability`, from its temporal secret.
#[must_use]
pub fn stamp_key(s: &Key128, capability: &PaperCapability) -> Key128 {
    match &capability.delegation {
        None => s.clone(),
        Some(PaperDelegation { prefix, id, kind: DelegationKind::Chaining }) => chain(chain_begin(s, *id), 0, prefix),
        Some(PaperDelegation { prefix, id, kind: DelegationKind::Xor }) => XorKeys::begin(s, *id).step(0, prefix).d,
    }
}

/// Stamps an IPv4 packet with capabilities of version 0 and their stamping keys. The original source is zero until the first
/// waypoint fills it in.
///
/// # Errors
/// If the packet is no IPv4 packet, or the result would not be one of version 0.
pub fn encapsulate(
    inner: &[u8],
    hops: &[(PaperCapability, Key128)],
    algorithm: Algorithm,
) -> Result<Vec<u8>, PaperHeaderError> {
    let need = Malformed::Truncated { need: 20, have: inner.len() };
    let (header, payload) = inner.split_first_chunk::<20>().ok_or(need)?;
    let first = hops.first().ok_or(Malformed::ListLength)?.0.waypoint;
    let list: usize = hops.iter().map(|(capability, _)| capability.octets().len() + BINDING).sum();
    let words = u8::try_from(list / WORD).map_err(|_| Malformed::TooManyCapabilities)?;
    let mut out = header.to_vec();
    out.extend([0, words, 0, header[9], 0, 0, 0, 0]);
    out.extend_from_slice(&header[16..]);
    for (capability, _) in hops {
        out.extend(capability.octets());
        out.extend([0; BINDING]);
    }
    out.extend_from_slice(payload);
    let length = u16::try_from(out.len()).map_err(|_| Malformed::Truncated { need: out.len(), have: 65_535 })?;
    out[2..4].copy_from_slice(&length.to_be_bytes());
    out[9] = PROTOCOL;
    out[16..20].copy_from_slice(&first.octets());
    ipv4::write_checksum(&mut out);

    let mut bindings = Vec::with_capacity(hops.len());
    let packet = PaperPacket::decode(&out)?;
    for (index, (_, key)) in hops.iter().enumerate() {
        let binding = match algorithm {
            Algorithm::Umac => BindingKey::Umac(&Umac::new(key)).bind(&packet),
            Algorithm::Cmac => BindingKey::Cmac(key).bind(&packet),
        };
        bindings.push((packet.binding_range(index), binding));
    }
    for (range, binding) in bindings {
        out[range].copy_from_slice(&binding);
    }
    Ok(out)
}

/// `F`: AES-128-CMAC.
fn cmac(key: &Key128, message: &[u8]) -> Block {
    let mut tag = [[0; 16]];
    cmac_each(CpuKernel::PORTABLE, std::slice::from_ref(key.expose()), &[Parts { head: &[], tail: message }], &mut tag);
    tag[0]
}

//! Version 0: Platypus as published, with its published weaknesses. For the laboratory and for benchmarks only.
//!
//! What the paper leaves open is chosen as follows. Length and pointer count words of the capability list. `MASK(P)` is
//! the first octet of the IP header, identification, fragment field, protocol, real source and destination, and the
//! payload. `F` is AES-128-CMAC, `H` is SHA-256 cut to 128 bits. The destination that a delegation is checked against is
//! the final one. An error ends the processing of a packet; the pseudocode of Figure 3 goes on.

mod keys;
pub mod umac;

use std::net::{IpAddr, Ipv4Addr};

use subtle::ConstantTimeEq;
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Key128;

use super::header::offsets::{PAPER, PROTOCOL, WORD};
use super::header::{
    DelegationId, Malformed, Packet, Principal, Version, offsets, paper_kind, v4, write_ipv4_checksum,
};
use super::mint::mac::cmac;
use super::verify::{Forward, Reason, Verdict};
use umac::{ContextCache, Umac};

pub use keys::{Algorithm, PaperPrefix, XorDelegated, XorTable, chain, chain_begin, get_time, h, key_id, secret};

/// Octets of a binding.
pub const BINDING: usize = 8;

/// How a capability was delegated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
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
    /// Which delegation this is.
    pub id: DelegationId,
    /// How it was made.
    pub kind: Kind,
}

/// A capability of version 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PaperCapability {
    /// Where the packet must pass.
    pub waypoint: Ipv4Addr,
    /// Who pays.
    pub principal: Principal,
    /// The low four bits of the key epoch.
    pub key_id: u8,
    /// Present if the holder is not the principal.
    pub delegation: Option<PaperDelegation>,
}

impl PaperCapability {
    /// The octets on the wire, without the binding.
    #[must_use]
    pub fn octets(&self) -> Vec<u8> {
        let mut out = self.waypoint.octets().to_vec();
        out.extend(self.principal.octets());
        let flags = match self.delegation {
            None => 0,
            Some(PaperDelegation { kind: Kind::Chaining, .. }) => paper_kind::DELEGATED,
            Some(PaperDelegation { kind: Kind::Xor, .. }) => paper_kind::DELEGATED | paper_kind::XOR,
        };
        out.push(self.key_id << 4 | flags);
        if let Some(delegation) = &self.delegation {
            out.extend(delegation.prefix.address.octets());
            out.push(delegation.prefix.length);
            out.extend(delegation.id.octets());
        }
        out
    }

    /// Capability `index` of a packet of version 0.
    #[must_use]
    pub fn of(packet: &Packet<'_>, index: usize) -> Option<Self> {
        if packet.table().version != 0 {
            return None;
        }
        let octets = packet.capability_octets(index);
        let at = &PAPER.capability;
        let flags = octets[at.kind] & 0xf;
        Some(Self {
            waypoint: Ipv4Addr::from(offsets::word(octets, 0)),
            principal: Principal::from_octets(offsets::three(octets, at.principal)),
            key_id: octets[at.kind] >> 4,
            delegation: (flags & paper_kind::DELEGATED != 0).then(|| PaperDelegation {
                prefix: PaperPrefix {
                    address: Ipv4Addr::from(offsets::word(octets, at.prefix)),
                    length: octets[at.prefix_length],
                },
                id: DelegationId::from_octets(offsets::three(octets, at.delegation_id)),
                kind: if flags & paper_kind::XOR == 0 { Kind::Chaining } else { Kind::Xor },
            }),
        })
    }
}

/// Invariant contents of a packet, with the real source and destination; the length is left out.
fn mask(packet: &Packet<'_>) -> Vec<u8> {
    let header = packet.datagram();
    let mut out = Vec::with_capacity(14 + packet.payload().len());
    out.push(header[v4::VERSION_AND_LENGTH]);
    out.extend_from_slice(&header[v4::IDENTIFICATION..v4::TTL]);
    out.push(header[v4::PROTOCOL]);
    for address in [packet.real_source(), packet.final_destination()] {
        if let IpAddr::V4(address) = address {
            out.extend(address.octets());
        }
    }
    out.extend_from_slice(packet.payload());
    out
}

/// IP identification and four octets of the payload, where TCP has its sequence number (paper, section 5.3).
fn nonce(packet: &Packet<'_>) -> [u8; 6] {
    let mut out = [0; 6];
    out[..2].copy_from_slice(&packet.datagram()[v4::IDENTIFICATION..v4::FRAGMENT]);
    if let Some(sequence) = packet.payload().get(4..8) {
        out[2..].copy_from_slice(sequence);
    }
    out
}

/// What makes bindings: one key, set up for its algorithm.
pub enum Context<'a> {
    /// A set-up UMAC.
    Umac(&'a Umac<2>),
    /// A key for CMAC.
    Cmac(&'a Key128),
}

impl Context<'_> {
    fn bind(&self, packet: &Packet<'_>) -> [u8; BINDING] {
        let tag = match self {
            Self::Umac(umac) => umac.tag(&mask(packet), &nonce(packet)),
            Self::Cmac(key) => cmac(key, &[], &mask(packet)),
        };
        *tag.first_chunk().expect("sixteen octets")
    }
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

    /// Lets packets pass that were delegated by exclusive or.
    #[must_use]
    pub fn with_xor(mut self) -> Self {
        self.is_xor_allowed = true;
        self
    }

    /// Mends the comparison of key IDs and nothing else, which makes it worse (threat P1).
    #[must_use]
    pub fn with_modular_id_check(mut self) -> Self {
        self.is_id_check_modular = true;
        self
    }

    /// Figure 3.
    pub fn process(&mut self, packet: &Packet<'_>, now: UnixTime) -> Verdict {
        self.check(packet, now).map_or_else(Verdict::from, Verdict::Forward)
    }

    fn check(&mut self, packet: &Packet<'_>, now: UnixTime) -> Result<Forward, Reason> {
        let index = packet.current().ok_or(Reason::NothingLeft)?;
        let capability = PaperCapability::of(packet, index).ok_or(Reason::Malformed)?;
        if capability.waypoint != self.address || packet.outer().destination != self.address {
            return Err(Reason::NotForUs);
        }
        self.check_key_id(capability.key_id, now)?;
        if let Some(delegation) = &capability.delegation {
            self.check_delegation(delegation, packet)?;
        }
        let binding = self.binding(packet, index, &capability, now);
        if !bool::from(binding.ct_eq(packet.binding(index))) {
            return Err(Reason::Binding);
        }
        Ok(Forward::of(packet, index))
    }

    /// `|c.id - ID| > 1`: not modular, as published.
    fn check_key_id(&self, id: u8, now: UnixTime) -> Result<(), Reason> {
        let apart = id.abs_diff(key_id(self.n, now.secs()));
        let is_near = apart <= 1 || self.is_id_check_modular && apart == 15;
        if is_near { Ok(()) } else { Err(Reason::KeyEpoch) }
    }

    fn check_delegation(&self, delegation: &PaperDelegation, packet: &Packet<'_>) -> Result<(), Reason> {
        if delegation.kind == Kind::Xor && !self.is_xor_allowed {
            return Err(Reason::XorDelegation);
        }
        match packet.final_destination() {
            IpAddr::V4(last) if delegation.prefix.holds(last) => Ok(()),
            _ => Err(Reason::OutsidePrefix),
        }
    }

    fn binding(
        &mut self,
        packet: &Packet<'_>,
        index: usize,
        capability: &PaperCapability,
        now: UnixTime,
    ) -> [u8; BINDING] {
        let time = get_time(self.n, capability.key_id, now.secs());
        let (algorithm, k) = (self.algorithm, &self.key);
        let stamp_key =
            || stamp_key(&secret(algorithm, k, capability.waypoint, capability.principal, time), capability);
        match self.algorithm {
            Algorithm::Cmac => Context::Cmac(&stamp_key()).bind(packet),
            Algorithm::Umac => {
                let name = (packet.capability_octets(index).to_vec(), time);
                Context::Umac(self.contexts.get(&name, stamp_key)).bind(packet)
            }
        }
    }
}

/// The key that stamps with `capability`, from its temporal secret.
#[must_use]
pub fn stamp_key(s: &Key128, capability: &PaperCapability) -> Key128 {
    match &capability.delegation {
        None => s.clone(),
        Some(PaperDelegation { prefix, id, kind: Kind::Chaining }) => chain(chain_begin(s, *id), 0, prefix),
        Some(PaperDelegation { prefix, id, kind: Kind::Xor }) => XorDelegated::begin(s, *id).step(0, prefix).d,
    }
}

/// Stamps an IPv4 packet with capabilities of version 0 and their stamping keys. The original source stays zero, as the
/// first waypoint fills it in.
pub fn encapsulate(
    inner: &[u8],
    hops: &[(PaperCapability, Key128)],
    algorithm: Algorithm,
) -> Result<Vec<u8>, Malformed> {
    let need = Malformed::Truncated { need: 20, have: inner.len() };
    let (header, payload) = inner.split_first_chunk::<20>().ok_or(need)?;
    let first = hops.first().ok_or(Malformed::ListLength)?.0.waypoint;
    let list: usize = hops.iter().map(|(capability, _)| capability.octets().len() + BINDING).sum();
    let words = u8::try_from(list / WORD).map_err(|_| Malformed::TooManyCapabilities)?;
    let mut out = header.to_vec();
    out.extend([0, words, 0, header[v4::PROTOCOL], 0, 0, 0, 0]);
    out.extend_from_slice(&header[v4::DESTINATION..]);
    for (capability, _) in hops {
        out.extend(capability.octets());
        out.extend([0; BINDING]);
    }
    out.extend_from_slice(payload);
    let length = u16::try_from(out.len()).map_err(|_| Malformed::Truncated { need: out.len(), have: 65_535 })?;
    out[v4::TOTAL_LENGTH..v4::TOTAL_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
    out[v4::PROTOCOL] = PROTOCOL;
    out[v4::DESTINATION..v4::DESTINATION + 4].copy_from_slice(&first.octets());
    write_ipv4_checksum(&mut out);

    let mut bindings = Vec::with_capacity(hops.len());
    let packet = Packet::decode(&out, Version::Paper)?;
    for (index, (_, key)) in hops.iter().enumerate() {
        let binding = match algorithm {
            Algorithm::Umac => Context::Umac(&Umac::new(key)).bind(&packet),
            Algorithm::Cmac => Context::Cmac(key).bind(&packet),
        };
        bindings.push((packet.binding_range(index), binding));
    }
    for (range, binding) in bindings {
        out[range].copy_from_slice(&binding);
    }
    Ok(out)
}

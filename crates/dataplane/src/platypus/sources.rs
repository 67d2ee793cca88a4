//! Where packets of a payer may come from, as the key server's list says; looked up for every packet.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::net::IpAddr;

use wayleave_core::Prefix;
use wayleave_packet::platypus::header::DelegationId;
use wayleave_packet::platypus::sources::Sources;
use wayleave_packet::platypus::verify::Charge;

use super::mix_hasher::MixHasher;
use super::router::Reason;

/// The source prefixes in use at a router.
#[derive(Default, Debug)]
pub struct SourceTable {
    principals: HashMap<u32, OfPrincipal, BuildHasherDefault<MixHasher>>,
    payers: usize,
}

/// What is known of a principal.
#[derive(Default, Debug)]
struct OfPrincipal {
    /// Whether anything is said of the principal itself, and not of some of its delegations alone.
    is_known: bool,
    /// Whether a delegation may name sources that are none of `own`.
    delegates_any: bool,
    own: Networks,
    /// In ascending order.
    delegations: Vec<(DelegationId, Networks)>,
}

/// Prefixes as network addresses and masks. With none, no source is named.
#[derive(Default, Debug)]
struct Networks {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl SourceTable {
    /// Takes each payer once.
    #[must_use]
    pub fn new(all: &[Sources]) -> Self {
        let mut table = Self { payers: all.len(), ..Self::default() };
        for Sources { principal, delegation, delegates_any, prefixes } in all {
            let of = table.principals.entry(principal.number()).or_default();
            let networks = Networks::new(prefixes);
            match delegation {
                Some(id) => of.delegations.push((*id, networks)),
                None => (of.is_known, of.delegates_any, of.own) = (true, *delegates_any, networks),
            }
        }
        for of in table.principals.values_mut() {
            of.delegations.sort_unstable_by_key(|(id, _)| *id);
        }
        table
    }

    /// Payers of whom anything is said.
    #[must_use]
    pub fn len(&self) -> usize {
        self.payers
    }

    /// Whether any principal may send from any source.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.principals.is_empty()
    }

    /// Whether a packet may come from `address`. A capability that is bound (`is_bound`) needs a word about its payer; others come
    /// from anywhere if there is none.
    #[inline(never)]
    pub(super) fn check(&self, charge: &Charge, is_bound: bool, address: IpAddr) -> Result<(), Reason> {
        let Some(of) = self.principals.get(&charge.principal.number()) else {
            return if is_bound { Err(Reason::SourcesUnknown) } else { Ok(()) };
        };
        let delegation = charge.delegation.and_then(|(id, _)| of.of_delegation(id));
        if is_bound && !of.is_known && delegation.is_none() {
            return Err(Reason::SourcesUnknown);
        }
        let is_own = || of.own.is_empty() || of.own.has(address);
        let may = match delegation.filter(|named| !named.is_empty()) {
            // By both, so that who takes prefixes from a principal takes them from its delegations.
            Some(named) => named.has(address) && (of.delegates_any || is_own()),
            None => is_own(),
        };
        if may { Ok(()) } else { Err(Reason::Sources) }
    }
}

impl OfPrincipal {
    fn of_delegation(&self, id: DelegationId) -> Option<&Networks> {
        let at = self.delegations.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&self.delegations[at].1)
    }
}

impl Networks {
    fn new(prefixes: &[Prefix]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for prefix in prefixes {
            match prefix.address() {
                IpAddr::V4(address) => {
                    v4.push((address.into(), u32::MAX.checked_shl(32 - u32::from(prefix.len())).unwrap_or(0)));
                }
                IpAddr::V6(address) => {
                    v6.push((address.into(), u128::MAX.checked_shl(128 - u32::from(prefix.len())).unwrap_or(0)));
                }
            }
        }
        Self { v4: v4.into(), v6: v6.into() }
    }

    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.iter().any(|(network, mask)| u32::from(address) & mask == *network),
            IpAddr::V6(address) => self.v6.iter().any(|(network, mask)| u128::from(address) & mask == *network),
        }
    }
}

//! Path verification by ASPA (Autonomous System Provider Authorization): what records of who buys transit from whom say of a path
//! (draft-ietf-sidrops-aspa-verification, draft-ietf-sidrops-aspa-profile).
//!
//! Only the verification of *upstream* paths is here. It applies to what an AS gets from a customer or a lateral peer, to what a route
//! server gets from its client, and to what a client gets from a route server: each hop of the path, from its origin to the neighbour that
//! announced it, must lead from a customer to its provider. A transparent route server is not on the path.

use std::fmt;

use serde::Serialize;
use wayleave_core::Asn;

use crate::{AsPath, SegmentKind};

/// What the records say of one hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    /// A record of the customer names the provider.
    Provider,
    /// The customer has a record, and none of its records names the provider.
    NotProvider,
    /// The customer has no record.
    NoAttestation,
}

/// Why a path is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
pub enum Flaw {
    /// There is no AS on it.
    Empty,
    /// It has an AS_SET, or a segment of a confederation: it does not say who handed the route to whom.
    Unordered,
    /// `customer` handed the route to an AS that its records do not name as a provider.
    NotProvider { customer: Asn, provider: Asn },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the AS path is empty"),
            Self::Unordered => f.write_str("the AS path has a set or a segment of a confederation"),
            Self::NotProvider { customer, provider } => {
                write!(f, "{customer} does not list {provider}, its next AS on the path, as a provider")
            }
        }
    }
}

/// The outcome of a verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// A record names the provider of each hop.
    Valid,
    /// Whatever other records there may be.
    Invalid(Flaw),
    /// Nothing is wrong, and this AS has no record; of several the one nearest to the origin.
    Unknown(Asn),
}

/// The providers of all ASes that have records. Several records of one AS count together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Aspas {
    /// Customers with their providers, in order: as many as there are in the world.
    pairs: Vec<(u32, u32)>,
    customers: usize,
}

impl Aspas {
    /// How many customers have records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.customers
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// What the records say of a route that `customer` hands to `provider`. AS 0 stands for "none" in a record, and is nobody's provider.
    #[must_use]
    pub fn hop(&self, customer: Asn, provider: Asn) -> Hop {
        let wanted = (customer.0, provider.0);
        match self.pairs.binary_search(&wanted) {
            Ok(_) if provider.0 != 0 => Hop::Provider,
            Ok(_) => Hop::NotProvider,
            Err(at) => {
                let is_customers =
                    |at: Option<usize>| at.and_then(|at| self.pairs.get(at)).is_some_and(|p| p.0 == customer.0);
                // Its providers are together: one is beside the place where this one would be.
                if is_customers(Some(at)) || is_customers(at.checked_sub(1)) {
                    Hop::NotProvider
                } else {
                    Hop::NoAttestation
                }
            }
        }
    }

    /// Verifies an upstream path as the neighbour sent it: the neighbour's AS first. Repeated ASes count once.
    #[must_use]
    pub fn upstream(&self, path: &AsPath<'_>) -> PathState {
        if path.segments().any(|segment| segment.kind != SegmentKind::Sequence) {
            return PathState::Invalid(Flaw::Unordered);
        }
        let mut ases = path.asns();
        let Some(mut provider) = ases.next() else { return PathState::Invalid(Flaw::Empty) };
        // Hops from the neighbour to the origin, so that what is found last is nearest to the origin.
        let (mut flaw, mut unknown) = (None, None);
        for customer in ases {
            if customer == provider {
                continue;
            }
            match self.hop(customer, provider) {
                Hop::Provider => {}
                Hop::NotProvider => flaw = Some(Flaw::NotProvider { customer, provider }),
                Hop::NoAttestation => unknown = Some(customer),
            }
            provider = customer;
        }
        match (flaw, unknown) {
            (Some(flaw), _) => PathState::Invalid(flaw),
            (None, Some(customer)) => PathState::Unknown(customer),
            (None, None) => PathState::Valid,
        }
    }

    /// The customers whose records the two have otherwise: only of a path with one of these the state may differ.
    #[must_use]
    pub fn difference(&self, other: &Self) -> ChangedCustomers {
        let (mut one, mut two, mut customers) = (&self.pairs[..], &other.pairs[..], Vec::new());
        // Both are in order: what both have is passed over at once.
        while let (Some(first), Some(second)) = (one.first(), two.first()) {
            let order = first.cmp(second);
            if order.is_ne() {
                customers.push(first.min(second).0);
            }
            one = &one[usize::from(order.is_le())..];
            two = &two[usize::from(order.is_ge())..];
        }
        customers.extend(one.iter().chain(two).map(|(customer, _)| *customer));
        customers.dedup();
        ChangedCustomers { customers, all_begins_or_ends: self.is_empty() != other.is_empty() }
    }
}

/// Of customers, each with one of its providers.
impl FromIterator<(Asn, Asn)> for Aspas {
    fn from_iter<I: IntoIterator<Item = (Asn, Asn)>>(pairs: I) -> Self {
        let mut pairs: Vec<(u32, u32)> =
            pairs.into_iter().map(|(customer, provider)| (customer.0, provider.0)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs.shrink_to_fit();
        let customers = pairs.chunk_by(|one, other| one.0 == other.0).count();
        Self { pairs, customers }
    }
}

/// Customers whose records have changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangedCustomers {
    /// In order.
    customers: Vec<u32>,
    /// Whether there were no records at all before, or are none now: then paths that say no order are invalid, or not, too.
    all_begins_or_ends: bool,
}

impl ChangedCustomers {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.customers.is_empty()
    }

    /// Whether the state of this path may be another one.
    #[must_use]
    pub fn may_change(&self, path: &AsPath<'_>) -> bool {
        path.asns().any(|asn| self.customers.binary_search(&asn.0).is_ok())
            || (self.all_begins_or_ends && path.segments().any(|segment| segment.kind != SegmentKind::Sequence))
    }
}

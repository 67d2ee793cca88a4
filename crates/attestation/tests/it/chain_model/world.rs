//! Worlds: the ASes, what is known of them, who has sessions with whom, and what honest ASes export.

use std::fmt;

/// An AS, by its number in the world; the first originates.
pub(super) type Asn = u8;

/// A set of the two prefixes, a bit for each.
pub(super) type PrefixSet = u8;

pub(super) const P: PrefixSet = 1;
pub(super) const Q: PrefixSet = 2;
pub(super) const BOTH: PrefixSet = P | Q;

/// The origin; its record authorises it alone.
pub(super) const ORIGIN: Asn = 0;

/// The non-empty subsets of `set`.
pub(super) fn subsets(set: PrefixSet) -> impl Iterator<Item = PrefixSet> {
    (1..=BOTH).filter(move |subset| subset & !set == 0)
}

/// Entries of AS_PATH, the origin first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Path {
    len: u8,
    entries: [Asn; Self::MAX],
}

impl Path {
    /// Five ASes, one of which may stand twice by a forged prepend count, three times.
    const MAX: usize = 12;

    pub(super) fn of(entries: &[Asn]) -> Self {
        entries.iter().fold(Self::default(), |path, asn| path.and(*asn))
    }

    pub(super) fn and(mut self, asn: Asn) -> Self {
        self.entries[usize::from(self.len)] = asn;
        self.len += 1;
        self
    }

    pub(super) fn join(self, other: Self) -> Self {
        other.entries().iter().fold(self, |path, asn| path.and(*asn))
    }

    pub(super) fn entries(&self) -> &[Asn] {
        &self.entries[..usize::from(self.len)]
    }

    pub(super) fn contains(&self, asn: Asn) -> bool {
        self.entries().contains(&asn)
    }

    pub(super) fn len(&self) -> u8 {
        self.len
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries()).finish()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Role {
    /// Acts for the adversary; its key is registered, which gives the adversary most.
    Corrupt,
    /// Honest, with a registered key.
    Registered,
    /// Honest, with a key that no registry lists.
    Unregistered,
    /// Honest, and passes attributes on as they come.
    Legacy,
}

/// That `asn` exports `prefix`, received with `before` as its path, to `next`: what a hop is taken to prove.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Claim {
    pub(super) asn: Asn,
    pub(super) before: Path,
    pub(super) prefix: PrefixSet,
    pub(super) next: Asn,
    pub(super) prepend: u8,
}

/// Honest ASes export all that they receive to all, in every division into UPDATEs, save what is said here. So the adversary
/// has what it could have in any world in which they export less.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) roles: Vec<Role>,
    /// Honest ASes sign for each neighbour directly.
    pub(super) direct: bool,
    /// Honest ASes have many neighbours, and one signature serves several.
    pub(super) many: bool,
    /// A bit for each member of an exchange, among whom honest ones announce through its directory, too.
    pub(super) members: u8,
    /// Whether corrupt ASes offer keys to their neighbours, or pass for legacy ASes.
    pub(super) corrupt_offer_keys: bool,
    /// Two ASes without a session.
    pub(super) no_session: Option<(Asn, Asn)>,
    /// An honest AS that has since withdrawn all exports of P.
    pub(super) withdrawn: Option<Asn>,
    /// An honest AS whose hops for P have expired.
    pub(super) expired: Option<Asn>,
    /// What is not exported, and whether the exchange did not have it either.
    pub(super) not_exported: Option<(Claim, bool)>,
    /// Exports that honest ASes do not make, whatever the path: a bit for each AS, next AS and prefix.
    pub(super) denied: u64,
    /// Honest origins sign by version 1 as well.
    pub(super) also_version_1: bool,
}

impl World {
    pub(super) fn new(roles: &[Role]) -> Self {
        Self {
            roles: roles.to_vec(),
            direct: true,
            many: false,
            members: 0,
            corrupt_offer_keys: true,
            no_session: None,
            withdrawn: None,
            expired: None,
            not_exported: None,
            denied: 0,
            also_version_1: false,
        }
    }

    pub(super) fn ases(&self) -> impl Iterator<Item = Asn> + use<> {
        0..self.roles.len() as Asn
    }

    pub(super) fn role(&self, asn: Asn) -> Role {
        self.roles[usize::from(asn)]
    }

    pub(super) fn is_corrupt(&self, asn: Asn) -> bool {
        self.role(asn) == Role::Corrupt
    }

    /// Whether a profile lists its keys.
    pub(super) fn is_registered(&self, asn: Asn) -> bool {
        matches!(self.role(asn), Role::Corrupt | Role::Registered)
    }

    pub(super) fn is_member(&self, asn: Asn) -> bool {
        self.members >> asn & 1 == 1
    }

    pub(super) fn has_session(&self, a: Asn, b: Asn) -> bool {
        self.no_session != Some((a, b)) && self.no_session != Some((b, a))
    }

    pub(super) fn is_denied(&self, asn: Asn, next: Asn, prefixes: PrefixSet) -> bool {
        let first = (u32::from(asn) * 5 + u32::from(next)) * 2;
        self.denied >> first & u64::from(prefixes) != 0
    }

    /// Whether it verifies what it receives.
    pub(super) fn is_verifier(&self, asn: Asn) -> bool {
        matches!(self.role(asn), Role::Registered | Role::Unregistered)
    }

    /// Whether it is honest, verifies, and can be sent something by the adversary.
    pub(super) fn takes(&self, asn: Asn) -> bool {
        let sends = |corrupt: Asn| self.is_corrupt(corrupt) && self.has_session(corrupt, asn);
        self.is_verifier(asn) && self.ases().any(sends)
    }
}

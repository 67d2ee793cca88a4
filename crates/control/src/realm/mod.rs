//! A realm: nodes under one key, the root of trust of an overlay.
//!
//! The realm's operator admits a node by a signed [`Membership`], and removes it before that expires by a numbered
//! [`RevocationList`], which the realm's key signs or a [`ListKey`] in its place. An [`Invitation`] is one line of text with which a node gets its membership.

mod invitation;
mod key_roll;
mod membership;
mod registrar;
mod revocation;

use std::fmt;
use std::str::FromStr;

use wayleave_core::{IdentityKey, Prefix};

use wayleave_core::wire::{Ascii, List16, Malformed, Reader, Wire, Writer, check_ascending};

pub use invitation::{Invitation, JoinError, JoinRequest, MAX_SERVERS, NodeKeys, Token, TokenError};
pub use key_roll::{KeyFault, KeyRoll, MAX_NOTICE, MAX_ROLLS, OfRealm, Rolls, check_key, verify};
pub use membership::Membership;
pub use registrar::{InviteError, Invitee, Registrar, RegistrarEvent, RegistrarInput, RegistrarOutput};
pub use revocation::{
    Base, Freshness, FreshnessWatch, LIST_INTERVAL, ListError, ListKey, ListSigner, MAX_LIST, MAX_LIST_KEY,
    MAX_RESTORED, MAX_REVOKED, MAX_STALENESS, Removal, RevocationList,
};

/// A membership lasts at most this many seconds: 400 days.
pub const MAX_MEMBERSHIP: u64 = 400 * 86_400;
/// Names of a node.
pub const MAX_NAMES: usize = 8;
/// Inner prefixes of a node.
pub const MAX_PREFIXES: usize = 64;
/// Octets of a name: it is a label of DNS (RFC 1035 section 2.3.4).
pub const MAX_NAME: usize = 63;
/// Octets of a server's address.
pub const MAX_ADDRESS: usize = 255;

wayleave_core::wire! {
    /// The Ed25519 public key of a realm.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct RealmKey(pub [u8; 32]);
}

impl fmt::Display for RealmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&IdentityKey(self.0), f)
    }
}

impl fmt::Debug for RealmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealmKey of {:?}", IdentityKey(self.0))
    }
}

/// The name of a node: a label of DNS in lower case, so that it can stand in `POLICY.NODE.SUFFIX`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(String);

/// Text that is no [`Name`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a name: 1 to {MAX_NAME} letters a to z, digits and hyphens, no hyphen at either end")]
pub struct NotAName(String);

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let is_inner = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-';
        let is_name = (1..=MAX_NAME).contains(&text.len())
            && text.bytes().all(is_inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_name { Ok(Self(text.to_owned())) } else { Err(NotAName(text.chars().take(80).collect())) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Name {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Wire for Name {
    const LEAST: usize = 2;

    fn write(&self, out: &mut Writer) {
        out.text(&self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.text(MAX_NAME)?.parse().map_err(|_| Malformed::Value("a name"))
    }
}

/// What a node may be, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Roles(u16);

impl Roles {
    /// Passes others' packets on.
    pub const FORWARDER: Self = Self(1);
    /// Carries applications' packets.
    pub const GATEWAY: Self = Self(2);
    /// Answers with paths.
    pub const PATH_SERVER: Self = Self(4);
    /// Answers with consents.
    pub const CONSENT_SERVER: Self = Self(8);
    const ALL: u16 = 15;

    /// Every role of either.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all roles of `other` are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Wire for Roles {
    const LEAST: usize = 2;

    fn write(&self, out: &mut Writer) {
        out.u16(self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let bits = from.u16()?;
        if bits == 0 || bits & !Self::ALL != 0 { Err(Malformed::Value("the roles")) } else { Ok(Self(bits)) }
    }
}

wayleave_core::wire! {
    /// A server: who it is, and where it listens (`HOST:PORT`).
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct Server: Self::check {
        pub identity: IdentityKey,
        pub address: String as Ascii<MAX_ADDRESS>,
    }

    /// What an operator grants a node, in invitation and membership alike.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Grants: Self::check {
        pub roles: Roles,
        /// The names by which others reach it, ascending; the first stands in logs.
        pub names: Vec<Name> as List16<MAX_NAMES>,
        /// What it may source and receive inside the overlay, ascending.
        pub prefixes: Vec<Prefix> as List16<MAX_PREFIXES>,
    }
}

impl Server {
    fn check(&self) -> Result<(), Malformed> {
        if self.address.contains(':') { Ok(()) } else { Err(Malformed::Value("a server's address")) }
    }
}

impl Grants {
    fn check(&self) -> Result<(), Malformed> {
        if self.names.is_empty() {
            return Err(Malformed::Value("the list of names"));
        }
        check_ascending(&self.names, "the names")?;
        check_ascending(&self.prefixes, "the prefixes")
    }
}

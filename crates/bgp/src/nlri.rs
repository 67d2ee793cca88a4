//! Network layer reachability information: prefixes, with a path identifier where the session has them (RFC 7911).

use std::fmt;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Prefix};

use crate::Fault;

/// A route's key within a session: its prefix and path identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nlri {
    pub prefix: Prefix,
    /// The path identifier (RFC 7911); 0 without ADD-PATH.
    pub path_id: u32,
}

impl Nlri {
    /// Without a path identifier.
    #[must_use]
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix, path_id: 0 }
    }

    /// Octets on the wire.
    pub(crate) fn wire_len(&self, add_path: bool) -> usize {
        usize::from(add_path) * 4 + 1 + usize::from(self.prefix.len()).div_ceil(8)
    }

    /// Appends the prefix in wire form.
    pub(crate) fn encode(&self, add_path: bool, out: &mut Vec<u8>) {
        if add_path {
            out.extend_from_slice(&self.path_id.to_be_bytes());
        }
        out.push(self.prefix.len());
        out.extend_from_slice(&self.prefix.octets()[..usize::from(self.prefix.len()).div_ceil(8)]);
    }
}

impl From<Prefix> for Nlri {
    fn from(prefix: Prefix) -> Self {
        Self::new(prefix)
    }
}

impl fmt::Display for Nlri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path_id {
            0 => write!(f, "{}", self.prefix),
            id => write!(f, "{} path {id}", self.prefix),
        }
    }
}

impl fmt::Debug for Nlri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A prefix as encoded on the wire: bits beyond the length are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawNlri<'a> {
    /// The path identifier, where the session has them.
    pub path_id: Option<u32>,
    /// The length in bits, at most the family's.
    pub length: u8,
    /// The `(length + 7) / 8` octets.
    pub octets: &'a [u8],
}

impl RawNlri<'_> {
    /// The prefix with the bits beyond its length cleared (RFC 4271 section 4.3: their value is irrelevant).
    #[must_use]
    pub fn to_nlri(&self, afi: Afi) -> Option<Nlri> {
        let prefix = Prefix::from_nlri(afi, self.length, self.octets).ok()?;
        Some(Nlri { prefix, path_id: self.path_id.unwrap_or(0) })
    }
}

/// Reads prefixes until the field ends or one is wrong; after a fault it yields nothing more.
#[derive(Clone, Debug)]
pub struct NlriIter<'a> {
    rest: &'a [u8],
    bits: u8,
    add_path: bool,
}

impl<'a> NlriIter<'a> {
    /// Over a field of `afi` prefixes, with path identifiers if `add_path`.
    #[must_use]
    pub fn new(field: &'a [u8], afi: Afi, add_path: bool) -> Self {
        Self { rest: field, bits: afi.bits(), add_path }
    }

    #[inline]
    fn read(&mut self) -> Result<RawNlri<'a>, Fault> {
        let mut rest = self.rest;
        let mut path_id = None;
        if self.add_path {
            let Some((id, after)) = rest.split_first_chunk::<4>() else { return Err(Fault::PrefixOverrun) };
            path_id = Some(u32::from_be_bytes(*id));
            rest = after;
        }
        let Some((&length, after)) = rest.split_first() else { return Err(Fault::PrefixOverrun) };
        if length > self.bits {
            return Err(Fault::PrefixLength(length));
        }
        let Some((octets, after)) = after.split_at_checked(usize::from(length).div_ceil(8)) else {
            return Err(Fault::PrefixOverrun);
        };
        self.rest = after;
        Ok(RawNlri { path_id, length, octets })
    }
}

impl<'a> Iterator for NlriIter<'a> {
    type Item = Result<RawNlri<'a>, Fault>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.read();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

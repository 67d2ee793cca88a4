//! Reading and writing the route server's own encodings: fixed-width big-endian fields and counted lists.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_bgp::Nlri;
use wayleave_core::{Afi, Prefix};

/// What is wrong with an encoding that a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("{} octets short", need - have)]
    Truncated { need: usize, have: usize },
    #[error("{0} octets too long")]
    TooLong(usize),
    /// A count exceeds its limit, or what the remaining bytes can hold.
    #[error("{count} entries in a list of at most {most}")]
    TooMany { count: usize, most: usize },
    #[error("unknown {0}")]
    Value(&'static str),
    /// A list that must be in order, without repeats, is not.
    #[error("{0} not in ascending order")]
    Order(&'static str),
}

/// Reads fields off the front of a slice.
#[derive(Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed::Truncated { need: n, have: self.0.len() })?;
        self.0 = tail;
        Ok(head)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) =
            self.0.split_first_chunk::<N>().ok_or(Malformed::Truncated { need: N, have: self.0.len() })?;
        self.0 = tail;
        Ok(*head)
    }

    /// One octet.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// Two octets.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four octets.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight octets.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 0 or a 1.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value("boolean")),
        }
    }

    /// A four-octet count of elements, each of at least `least` bytes, at most `most` of them; bounded by what the
    /// remaining bytes can hold, so that a caller may allocate it.
    pub fn count(&mut self, least: usize, most: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        let most = most.min(self.0.len() / least.max(1));
        if count > most { Err(Malformed::TooMany { count, most }) } else { Ok(count) }
    }

    /// A counted list.
    pub fn list<T>(
        &mut self,
        least: usize,
        most: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count(least, most)?;
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(element(self)?);
        }
        Ok(out)
    }

    /// Counted bytes.
    pub fn blob(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let count = self.count(1, most)?;
        self.bytes(count)
    }

    /// A prefix with its path identifier.
    pub fn nlri(&mut self) -> Result<Nlri, Malformed> {
        let path_id = self.u32()?;
        let (afi, octets) = match self.u8()? {
            4 => (Afi::Ipv4, 4),
            6 => (Afi::Ipv6, 16),
            _ => return Err(Malformed::Value("address family")),
        };
        let length = self.u8()?;
        let raw = self.bytes(octets)?;
        let address = match <[u8; 16]>::try_from(raw) {
            Ok(v6) => IpAddr::V6(Ipv6Addr::from(v6)),
            Err(_) => IpAddr::V4(Ipv4Addr::new(raw[0], raw[1], raw[2], raw[3])),
        };
        debug_assert_eq!(octets, usize::from(afi.bits() / 8));
        let prefix = Prefix::new(address, length).map_err(|_| Malformed::Value("prefix"))?;
        Ok(Nlri { path_id, prefix })
    }

    /// All that is left.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::TooLong(self.0.len())) }
    }
}

/// Appends fields to a vector.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Nothing yet, with room for about `bytes`.
    #[must_use]
    pub fn with_room(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// One octet.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Two octets.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// Four octets.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// Eight octets.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// A 0 or a 1.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    /// Counted bytes.
    pub fn blob(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).bytes(bytes)
    }

    /// A count.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).expect("a list in memory has fewer than 2^32 elements"))
    }

    /// A counted list.
    pub fn list<T>(&mut self, items: &[T], mut element: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.count(items.len());
        for item in items {
            element(self, item);
        }
        self
    }

    /// A prefix with its path identifier: identifier 32, family 8 (4 or 6), length 8, address 32 or 128.
    pub fn nlri(&mut self, nlri: &Nlri) -> &mut Self {
        self.u32(nlri.path_id);
        let (family, octets) = match nlri.prefix.afi() {
            Afi::Ipv4 => (4, 4),
            Afi::Ipv6 => (6, 16),
        };
        self.u8(family).u8(nlri.prefix.len()).bytes(&nlri.prefix.octets()[..octets])
    }
}

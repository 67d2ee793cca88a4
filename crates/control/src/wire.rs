//! Reading and writing the control plane's own encodings: fixed-width big-endian fields, counted lists and texts. Each value has
//! one encoding; everything else is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wayleave_core::{Afi, IdentityKey, Prefix};

/// What is wrong with an encoding: an error of whoever sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("{} octets short", need - have)]
    Truncated { need: usize, have: usize },
    #[error("{0} octets too long")]
    TooLong(usize),
    /// A count exceeds its limit, or what the remaining octets can hold.
    #[error("{count} entries in a list of at most {most}")]
    TooMany { count: usize, most: usize },
    /// A field has a value that it may not have.
    #[error("{0} has a value that is not allowed")]
    Value(&'static str),
    /// A list that must ascend, without repeats, does not.
    #[error("{0} do not ascend")]
    Order(&'static str),
    /// Another version of this encoding.
    #[error("version {0} is not known")]
    Version(u8),
}

/// Reads fields off the front of a slice.
#[derive(Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    /// The next `n` octets.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed::Truncated { need: n, have: self.0.len() })?;
        self.0 = tail;
        Ok(head)
    }

    /// The next `N` octets.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) =
            self.0.split_first_chunk::<N>().ok_or(Malformed::Truncated { need: N, have: self.0.len() })?;
        self.0 = tail;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 0 or a 1.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value("a boolean")),
        }
    }

    pub fn identity(&mut self) -> Result<IdentityKey, Malformed> {
        self.array().map(IdentityKey)
    }

    /// A two-octet count of elements, each of at least `least` octets, at most `most` of them; bounded by what the remaining
    /// octets can hold, so that a caller may allocate it.
    pub fn count(&mut self, least: usize, most: usize) -> Result<usize, Malformed> {
        let count = usize::from(self.u16()?);
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

    /// Octets with a four-octet count.
    pub fn blob(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let count = self.u32()? as usize;
        let most = most.min(self.0.len());
        if count > most { Err(Malformed::TooMany { count, most }) } else { self.bytes(count) }
    }

    /// A text of at most `most` printable ASCII characters, with an octet for its length.
    pub fn text(&mut self, most: usize) -> Result<String, Malformed> {
        let count = usize::from(self.u8()?);
        if count > most {
            return Err(Malformed::TooMany { count, most });
        }
        let text = std::str::from_utf8(self.bytes(count)?).ok().filter(|text| is_text(text, most));
        text.map(str::to_owned).ok_or(Malformed::Value("a text"))
    }

    /// A prefix: family (4 or 6), length, address without trailing octets that the length does not cover.
    pub fn prefix(&mut self) -> Result<Prefix, Malformed> {
        let family = self.family()?;
        let length = self.u8()?;
        let octets = self.bytes(usize::from(length.min(128)).div_ceil(8))?;
        let prefix = Prefix::from_nlri(family, length, octets).map_err(|_| Malformed::Value("a prefix length"))?;
        let is_canonical = prefix.octets()[..octets.len()] == *octets;
        if is_canonical { Ok(prefix) } else { Err(Malformed::Value("a prefix")) }
    }

    /// An address and port: family (4 or 6), address, port.
    pub fn endpoint(&mut self) -> Result<SocketAddr, Malformed> {
        let address = self.address()?;
        let port = self.u16()?;
        if port == 0 { Err(Malformed::Value("a port")) } else { Ok(SocketAddr::new(address, port)) }
    }

    /// An address: family (4 or 6), octets.
    pub fn address(&mut self) -> Result<IpAddr, Malformed> {
        Ok(match self.family()? {
            Afi::Ipv4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>()?)),
            Afi::Ipv6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)),
        })
    }

    fn family(&mut self) -> Result<Afi, Malformed> {
        match self.u8()? {
            4 => Ok(Afi::Ipv4),
            6 => Ok(Afi::Ipv6),
            _ => Err(Malformed::Value("an address family")),
        }
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

/// Whether `text` has at most `most` characters, all printable ASCII.
#[must_use]
pub fn is_text(text: &str, most: usize) -> bool {
    text.len() <= most && text.bytes().all(|octet| (0x20..0x7f).contains(&octet))
}

/// The list ascends, without repeats.
pub fn check_ascending<T: Ord>(list: &[T], what: &'static str) -> Result<(), Malformed> {
    if list.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(Malformed::Order(what)) }
}

/// Appends fields to a vector. Lists and texts that are longer than their count can say are the caller's error.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    pub fn bytes(&mut self, octets: &[u8]) -> &mut Self {
        self.0.extend_from_slice(octets);
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    pub fn identity(&mut self, key: &IdentityKey) -> &mut Self {
        self.bytes(&key.0)
    }

    pub fn list<T>(&mut self, items: &[T], mut element: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u16(u16::try_from(items.len()).expect("lists are far shorter than 65,536"));
        for item in items {
            element(self, item);
        }
        self
    }

    pub fn blob(&mut self, octets: &[u8]) -> &mut Self {
        self.u32(u32::try_from(octets.len()).expect("objects are far shorter than 4 GiB")).bytes(octets)
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.u8(u8::try_from(text.len()).expect("texts are shorter than 256")).bytes(text.as_bytes())
    }

    pub fn prefix(&mut self, prefix: &Prefix) -> &mut Self {
        let family = if prefix.afi() == Afi::Ipv4 { 4 } else { 6 };
        self.u8(family).u8(prefix.len()).bytes(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)])
    }

    pub fn address(&mut self, address: IpAddr) -> &mut Self {
        match address {
            IpAddr::V4(v4) => self.u8(4).bytes(&v4.octets()),
            IpAddr::V6(v6) => self.u8(6).bytes(&v6.octets()),
        }
    }

    pub fn endpoint(&mut self, endpoint: &SocketAddr) -> &mut Self {
        self.address(endpoint.ip()).u16(endpoint.port())
    }
}

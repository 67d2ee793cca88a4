//! Encodings of the project's own protocols: fixed-width big-endian fields, counted lists, texts. Each value has one encoding;
//! everything else is refused. Everything that is counted is bounded before it is allocated.
//!
//! A message's fields are written down once, with [`wire!`](crate::wire!): in the order in which they stand in the octets, each
//! with its type, and with a [`Codec`] where the type alone does not say how it is written.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::{Afi, Asn, IdentityKey, Prefix};

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

/// Octets may be secret: their number is printed and nothing else.
impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({} octets)", self.0.len())
    }
}

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    /// Octets that were not read.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.len()
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

    pub fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_be_bytes)
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

    /// Checks a count that was read: elements of at least `least` octets each, at most `most` of them, and no more than the remaining
    /// octets can hold, so that a caller may allocate them.
    fn bounded(&self, count: usize, least: usize, most: usize) -> Result<usize, Malformed> {
        let most = most.min(self.0.len() / least.max(1));
        if count > most { Err(Malformed::TooMany { count, most }) } else { Ok(count) }
    }

    /// A two-octet count of elements of at least `least` octets, at most `most` of them.
    pub fn count16(&mut self, least: usize, most: usize) -> Result<usize, Malformed> {
        let count = self.u16()?;
        self.bounded(usize::from(count), least, most)
    }

    /// The same of four octets.
    pub fn count32(&mut self, least: usize, most: usize) -> Result<usize, Malformed> {
        let count = self.u32()?;
        self.bounded(count as usize, least, most)
    }

    /// `count` elements.
    pub fn elements<T>(
        &mut self,
        count: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(element(self)?);
        }
        Ok(out)
    }

    /// A list with a two-octet count, as [`Reader::count16`] reads it.
    pub fn list16<T>(
        &mut self,
        least: usize,
        most: usize,
        element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count16(least, most)?;
        self.elements(count, element)
    }

    /// A list with a four-octet count, as [`Reader::count32`] reads it.
    pub fn list32<T>(
        &mut self,
        least: usize,
        most: usize,
        element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count32(least, most)?;
        self.elements(count, element)
    }

    /// At most `most` octets, with a four-octet count.
    pub fn blob(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let count = self.count32(1, most)?;
        self.bytes(count)
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

    /// An address family: 4 or 6.
    pub fn family(&mut self) -> Result<Afi, Malformed> {
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

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({} octets)", self.0.len())
    }
}

impl Writer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet, with room for about so many octets.
    #[must_use]
    pub fn with_capacity(octets: usize) -> Self {
        Self(Vec::with_capacity(octets))
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

    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    pub fn identity(&mut self, key: &IdentityKey) -> &mut Self {
        self.bytes(&key.0)
    }

    /// A count above 65,535 is written as that: no decoder takes the list, and who signs one decodes it first.
    pub fn count16(&mut self, count: usize) -> &mut Self {
        self.u16(u16::try_from(count).unwrap_or(u16::MAX))
    }

    pub fn count32(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).expect("a list in memory has fewer than 2^32 elements"))
    }

    /// A list with a two-octet count.
    pub fn list16<T>(&mut self, items: &[T], mut element: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.count16(items.len());
        items.iter().for_each(|item| element(self, item));
        self
    }

    /// A list with a four-octet count.
    pub fn list32<T>(&mut self, items: &[T], mut element: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.count32(items.len());
        items.iter().for_each(|item| element(self, item));
        self
    }

    /// Octets with a four-octet count.
    pub fn blob(&mut self, octets: &[u8]) -> &mut Self {
        self.count32(octets.len()).bytes(octets)
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.u8(u8::try_from(text.len()).expect("texts are shorter than 256")).bytes(text.as_bytes())
    }

    /// As [`Reader::prefix`] reads it.
    pub fn prefix(&mut self, prefix: &Prefix) -> &mut Self {
        self.family(prefix.afi()).u8(prefix.len()).bytes(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)])
    }

    pub fn address(&mut self, address: IpAddr) -> &mut Self {
        match address {
            IpAddr::V4(v4) => self.family(Afi::Ipv4).bytes(&v4.octets()),
            IpAddr::V6(v6) => self.family(Afi::Ipv6).bytes(&v6.octets()),
        }
    }

    pub fn endpoint(&mut self, endpoint: &SocketAddr) -> &mut Self {
        self.address(endpoint.ip()).u16(endpoint.port())
    }

    /// 4 or 6.
    pub fn family(&mut self, family: Afi) -> &mut Self {
        self.u8(if family == Afi::Ipv4 { 4 } else { 6 })
    }
}

/// A value with an encoding of its own.
pub trait Wire: Sized {
    /// Octets of the shortest one, by which a list is bounded before it is read.
    const LEAST: usize;

    fn write(&self, out: &mut Writer);

    /// Reads what [`Wire::write`] wrote off the front, and refuses everything else.
    ///
    /// # Errors
    /// If no value of this type is in front.
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// All of a value's octets.
#[must_use]
pub fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Writer::new();
    value.write(&mut out);
    out.finish()
}

/// The value that all of `octets` are.
///
/// # Errors
/// If they are none, or more.
pub fn decode<T: Wire>(octets: &[u8]) -> Result<T, Malformed> {
    let mut from = Reader::new(octets);
    let value = T::read(&mut from)?;
    from.end()?;
    Ok(value)
}

/// How a field of type `T` is written, where its type does not say: `field: T as Codec` in [`wire!`](crate::wire!).
pub trait Codec<T> {
    /// As [`Wire::LEAST`].
    const LEAST: usize;
    fn write(value: &T, out: &mut Writer);
    /// # Errors
    /// If no such field is in front.
    fn read(from: &mut Reader<'_>) -> Result<T, Malformed>;
}

/// As the type says itself.
#[derive(Debug)]
pub struct Own;

impl<T: Wire> Codec<T> for Own {
    const LEAST: usize = T::LEAST;

    fn write(value: &T, out: &mut Writer) {
        value.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<T, Malformed> {
        T::read(from)
    }
}

/// Implements [`Wire`] for types that the reader and the writer know.
macro_rules! primitive {
    ($($type:ty, $octets:expr, |$value:ident, $out:ident| $write:expr, $read:expr;)*) => {$(
        impl Wire for $type {
            const LEAST: usize = $octets;

            fn write(&self, $out: &mut Writer) {
                let $value = self;
                $write;
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                $read(from)
            }
        }
    )*};
}

primitive! {
    u8, 1, |value, out| out.u8(*value), Reader::u8;
    u16, 2, |value, out| out.u16(*value), Reader::u16;
    u32, 4, |value, out| out.u32(*value), Reader::u32;
    u64, 8, |value, out| out.u64(*value), Reader::u64;
    u128, 16, |value, out| out.u128(*value), Reader::u128;
    bool, 1, |value, out| out.bool(*value), Reader::bool;
    IdentityKey, 32, |value, out| out.identity(value), Reader::identity;
    Asn, 4, |value, out| out.u32(value.0), |from: &mut Reader<'_>| from.u32().map(Asn);
    Prefix, 2, |value, out| out.prefix(value), Reader::prefix;
    IpAddr, 5, |value, out| out.address(*value), Reader::address;
    SocketAddr, 7, |value, out| out.endpoint(value), Reader::endpoint;
}

impl<const N: usize> Wire for [u8; N] {
    const LEAST: usize = N;

    fn write(&self, out: &mut Writer) {
        out.bytes(self);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.array()
    }
}

impl<T: Wire> Wire for Box<T> {
    const LEAST: usize = T::LEAST;

    fn write(&self, out: &mut Writer) {
        T::write(self, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::read(from).map(Self::new)
    }
}

impl<T: Wire> Wire for Arc<T> {
    const LEAST: usize = T::LEAST;

    fn write(&self, out: &mut Writer) {
        T::write(self, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::read(from).map(Self::new)
    }
}

/// Tuples: one after another. As codecs, each for its place.
macro_rules! tuple {
    ($($value:ident $codec:ident $place:tt),*) => {
        impl<$($value: Wire),*> Wire for ($($value,)*) {
            const LEAST: usize = 0 $(+ $value::LEAST)*;

            fn write(&self, out: &mut Writer) {
                $(self.$place.write(out);)*
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(($($value::read(from)?,)*))
            }
        }

        impl<$($value, $codec: Codec<$value>),*> Codec<($($value,)*)> for ($($codec,)*) {
            const LEAST: usize = 0 $(+ $codec::LEAST)*;

            fn write(value: &($($value,)*), out: &mut Writer) {
                $($codec::write(&value.$place, out);)*
            }

            fn read(from: &mut Reader<'_>) -> Result<($($value,)*), Malformed> {
                Ok(($($codec::read(from)?,)*))
            }
        }
    };
}

tuple!(A CodecA 0, B CodecB 1);
tuple!(A CodecA 0, B CodecB 1, C CodecC 2);
tuple!(A CodecA 0, B CodecB 1, C CodecC 2, D CodecD 3);

/// Whether there is one (0 or 1), and it.
impl<T: Wire> Wire for Option<T> {
    const LEAST: usize = 1;

    fn write(&self, out: &mut Writer) {
        Maybe::<Own>::write(self, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Maybe::<Own>::read(from)
    }
}

/// Whether there is one (0 or 1), and it as its codec writes it.
#[derive(Debug)]
pub struct Maybe<C>(PhantomData<C>);

impl<T, C: Codec<T>> Codec<Option<T>> for Maybe<C> {
    const LEAST: usize = 1;

    fn write(value: &Option<T>, out: &mut Writer) {
        out.bool(value.is_some());
        if let Some(value) = value {
            C::write(value, out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Option<T>, Malformed> {
        if from.bool()? { C::read(from).map(Some) } else { Ok(None) }
    }
}

/// A number of things that are not in the message themselves, at most `MOST`.
#[derive(Debug)]
pub struct AtMost<const MOST: u32>;

impl<const MOST: u32> Codec<u32> for AtMost<MOST> {
    const LEAST: usize = 4;

    fn write(value: &u32, out: &mut Writer) {
        out.u32(*value);
    }

    fn read(from: &mut Reader<'_>) -> Result<u32, Malformed> {
        let value = from.u32()?;
        let [count, most] = [value as usize, MOST as usize];
        if count > most { Err(Malformed::TooMany { count, most }) } else { Ok(value) }
    }
}

/// Two of them.
impl<T, C: Codec<T>> Codec<[T; 2]> for [C; 2] {
    const LEAST: usize = 2 * C::LEAST;

    fn write(value: &[T; 2], out: &mut Writer) {
        value.iter().for_each(|value| C::write(value, out));
    }

    fn read(from: &mut Reader<'_>) -> Result<[T; 2], Malformed> {
        Ok([C::read(from)?, C::read(from)?])
    }
}

/// A value whose octets, at most `MOST`, have a four-octet count in front.
#[derive(Debug)]
pub struct Nested<const MOST: usize>;

impl<T: Wire, const MOST: usize> Codec<T> for Nested<MOST> {
    const LEAST: usize = 4 + T::LEAST;

    fn write(value: &T, out: &mut Writer) {
        out.blob(&encode(value));
    }

    fn read(from: &mut Reader<'_>) -> Result<T, Malformed> {
        decode(from.blob(MOST)?)
    }
}

/// At most `MOST` octets with a four-octet count.
#[derive(Debug)]
pub struct Blob<const MOST: usize>;

impl<T: AsRef<[u8]> + for<'a> From<&'a [u8]>, const MOST: usize> Codec<T> for Blob<MOST> {
    const LEAST: usize = 4;

    fn write(value: &T, out: &mut Writer) {
        out.blob(value.as_ref());
    }

    fn read(from: &mut Reader<'_>) -> Result<T, Malformed> {
        Ok(from.blob(MOST)?.into())
    }
}

/// A text of at most `MOST` octets of UTF-8 with a four-octet count.
#[derive(Debug)]
pub struct Utf8<const MOST: usize>;

impl<const MOST: usize> Codec<String> for Utf8<MOST> {
    const LEAST: usize = 4;

    fn write(value: &String, out: &mut Writer) {
        out.blob(value.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Result<String, Malformed> {
        String::from_utf8(from.blob(MOST)?.to_vec()).map_err(|_| Malformed::Value("a text"))
    }
}

/// A text of at most `MOST` printable ASCII characters with an octet for its length.
#[derive(Debug)]
pub struct Ascii<const MOST: usize>;

impl<const MOST: usize> Codec<String> for Ascii<MOST> {
    const LEAST: usize = 1;

    fn write(value: &String, out: &mut Writer) {
        out.text(value);
    }

    fn read(from: &mut Reader<'_>) -> Result<String, Malformed> {
        from.text(MOST)
    }
}

/// A list of at most `MOST` elements, with a two-octet count.
#[derive(Debug)]
pub struct List16<const MOST: usize, C = Own>(PhantomData<C>);

impl<T, C: Codec<T>, const MOST: usize> Codec<Vec<T>> for List16<MOST, C> {
    const LEAST: usize = 2;

    fn write(value: &Vec<T>, out: &mut Writer) {
        out.list16(value, |out, item| C::write(item, out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Vec<T>, Malformed> {
        from.list16(C::LEAST, MOST, C::read)
    }
}

/// A list of at most `MOST` elements, with a four-octet count.
#[derive(Debug)]
pub struct List32<const MOST: usize, C = Own>(PhantomData<C>);

impl<T, C: Codec<T>, const MOST: usize> Codec<Vec<T>> for List32<MOST, C> {
    const LEAST: usize = 4;

    fn write(value: &Vec<T>, out: &mut Writer) {
        out.list32(value, |out, item| C::write(item, out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Vec<T>, Malformed> {
        from.list32(C::LEAST, MOST, C::read)
    }
}

/// The least of some numbers of octets.
#[doc(hidden)]
#[must_use]
pub const fn least_of(all: &[usize]) -> usize {
    let (mut least, mut at) = (usize::MAX, 0);
    while at < all.len() {
        if all[at] < least {
            least = all[at];
        }
        at += 1;
    }
    least
}

/// Declares messages, and gives them [`Wire`]: a structure is its fields in order; of an enumeration each variant has an octet
/// before them, which is written in front of it. A function behind the name checks what was read: `pub struct Span: check {`,
/// `pub enum Message: "a message's type", check {`.
///
/// A variant may say since which version of the protocol it is there, and under which condition it is compiled at all:
/// `8 since 3 = Later { .. }`, `9 since 4 if (feature = "next") = Next`. Whoever reads a message of a version compares `since`.
///
/// ```
/// use wayleave_core::wire::{self, Blob, List16};
///
/// wayleave_core::wire! {
///     /// What is asked for.
///     #[derive(Clone, PartialEq, Debug)]
///     pub struct Question {
///         pub number: u32,
///         pub names: Vec<u16> as List16<8>,
///     }
///
///     /// A message.
///     #[derive(Clone, PartialEq, Debug)]
///     pub enum Message: "a message's type" {
///         1 = Ask(Question),
///         2 = Answer { number: u32, octets: Vec<u8> as Blob<1024> },
///         3 = End,
///     }
/// }
///
/// let message = Message::Answer { number: 7, octets: vec![1, 2] };
/// let octets = wire::encode(&message);
/// assert_eq!(octets, [2, 0, 0, 0, 7, 0, 0, 0, 2, 1, 2]);
/// assert_eq!(wire::decode(&octets), Ok(message));
/// ```
#[macro_export]
macro_rules! wire {
    () => {};
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($inner_vis:vis $inner:ty $(as $codec:ty)?);
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        $vis struct $name($inner_vis $inner);

        impl $crate::wire::Wire for $name {
            const LEAST: usize = <$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$inner>>::LEAST;

            fn write(&self, out: &mut $crate::wire::Writer) {
                <$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$inner>>::write(&self.0, out);
            }

            fn read(from: &mut $crate::wire::Reader<'_>) -> ::std::result::Result<Self, $crate::wire::Malformed> {
                <$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$inner>>::read(from).map(Self)
            }
        }

        $crate::wire! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(: $check:path)? {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty $(as $codec:ty)?),* $(,)?
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl $crate::wire::Wire for $name {
            const LEAST: usize = 0 $(+ <$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$type>>::LEAST)*;

            fn write(&self, out: &mut $crate::wire::Writer) {
                $(<$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$type>>::write(&self.$field, out);)*
            }

            fn read(from: &mut $crate::wire::Reader<'_>) -> ::std::result::Result<Self, $crate::wire::Malformed> {
                $(let $field = <$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$type>>::read(from)?;)*
                let value = Self { $($field),* };
                $($check(&value)?;)?
                Ok(value)
            }
        }

        $crate::wire! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $what:literal $(, $check:path)? {
            $(
                $(#[$variant_meta:meta])*
                $code:literal $(since $since:literal)? $(if ($cfg:meta))? = $variant:ident
                $({ $($(#[$field_meta:meta])* $field:ident: $type:ty $(as $codec:ty)?),* $(,)? })?
                $(($inner:ty $(as $inner_codec:ty)?))?
            ),* $(,)?
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$variant_meta])* $(#[cfg($cfg)])? $variant $({ $($(#[$field_meta])* $field: $type,)* })? $(($inner))?,)*
        }

        impl $name {
            /// The octet that says which of them it is.
            #[must_use]
            $vis fn code(&self) -> u8 {
                match self {
                    $($(#[cfg($cfg)])? Self::$variant { .. } => $code,)*
                }
            }

            /// The version of the protocol since which it is there, if it says one.
            #[must_use]
            #[allow(dead_code, reason = "most protocols have one version")]
            $vis fn since(&self) -> Option<u16> {
                match self {
                    $($(#[cfg($cfg)])? Self::$variant { .. } => $crate::wire!(@since $($since)?),)*
                }
            }

            /// Writes what comes behind [`Self::code`].
            #[allow(unused_variables, reason = "some have no fields")]
            fn write_fields(&self, out: &mut $crate::wire::Writer) {
                match self {
                    $($(#[cfg($cfg)])? $crate::wire!(@pattern $variant $({ $($field),* })? $(($inner, inner))?) => {
                        $($(<$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$type>>::write($field, out);)*)?
                        $(<$crate::wire!(@codec $($inner_codec)?) as $crate::wire::Codec<$inner>>::write(inner, out);)?
                    })*
                }
            }

            /// Reads what [`Self::write_fields`] wrote of the one with this code.
            fn read_fields(
                code: u8,
                from: &mut $crate::wire::Reader<'_>,
            ) -> ::std::result::Result<Self, $crate::wire::Malformed> {
                let value = match code {
                    $($(#[cfg($cfg)])? $code => {
                        $($(let $field = <$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$type>>::read(from)?;)*)?
                        $(let inner = <$crate::wire!(@codec $($inner_codec)?) as $crate::wire::Codec<$inner>>::read(from)?;)?
                        $crate::wire!(@pattern $variant $({ $($field),* })? $(($inner, inner))?)
                    })*
                    _ => return Err($crate::wire::Malformed::Value($what)),
                };
                $($check(&value)?;)?
                Ok(value)
            }
        }

        impl $crate::wire::Wire for $name {
            const LEAST: usize = $crate::wire::least_of(&[$(
                $(#[cfg($cfg)])?
                { 1 $($(+ <$crate::wire!(@codec $($codec)?) as $crate::wire::Codec<$type>>::LEAST)*)?
                    $(+ <$crate::wire!(@codec $($inner_codec)?) as $crate::wire::Codec<$inner>>::LEAST)? }
            ),*]);

            fn write(&self, out: &mut $crate::wire::Writer) {
                out.u8(self.code());
                self.write_fields(out);
            }

            fn read(from: &mut $crate::wire::Reader<'_>) -> ::std::result::Result<Self, $crate::wire::Malformed> {
                Self::read_fields(from.u8()?, from)
            }
        }

        $crate::wire! { $($rest)* }
    };
    (@since) => { None };
    (@since $since:literal) => { Some($since) };
    (@codec) => { $crate::wire::Own };
    (@codec $codec:ty) => { $codec };
    (@pattern $variant:ident { $($field:ident),* }) => { Self::$variant { $($field),* } };
    (@pattern $variant:ident ($inner:ty, $binding:ident)) => { Self::$variant($binding) };
    (@pattern $variant:ident) => { Self::$variant };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::wire! {
        #[derive(Clone, PartialEq, Debug)]
        struct Span: Self::check {
            from: u32,
            to: u32,
        }

        #[derive(Clone, PartialEq, Debug)]
        enum Message: "a message's type", Self::is_short {
            1 = Spans(Vec<Span> as List32<4>),
            7 = Text { out: String as Ascii<10>, more: Option<u16> },
            9 since 3 = End,
            10 since 4 if (any()) = Never,
        }
    }

    impl Span {
        fn check(&self) -> Result<(), Malformed> {
            if self.from < self.to { Ok(()) } else { Err(Malformed::Order("the ends of a span")) }
        }
    }

    impl Message {
        fn is_short(&self) -> Result<(), Malformed> {
            if matches!(self, Self::Text { out, .. } if out == "long") {
                Err(Malformed::Value("a text"))
            } else {
                Ok(())
            }
        }
    }

    fn text(out: &str, more: Option<u16>) -> Message {
        Message::Text { out: out.to_owned(), more }
    }

    #[test]
    fn a_message_has_one_encoding_and_every_other_is_refused() {
        let spans = Message::Spans(vec![Span { from: 1, to: 2 }, Span { from: 0, to: u32::MAX }]);
        for message in [spans, text("", None), text("a b", Some(258)), Message::End] {
            let octets = encode(&message);
            assert_eq!(decode(&octets).as_ref(), Ok(&message));
            assert_eq!(octets[0], message.code());
            for end in 0..octets.len() {
                assert!(decode::<Message>(&octets[..end]).is_err(), "{end} octets of {message:?}");
            }
            assert_eq!(decode::<Message>(&[&octets[..], &[0]].concat()), Err(Malformed::TooLong(1)));
        }
        assert_eq!(encode(&text("a b", Some(258))), [7, 3, b'a', b' ', b'b', 1, 1, 2]);
        assert_eq!(decode::<Message>(&[2]), Err(Malformed::Value("a message's type")));
        assert_eq!(decode::<Message>(&[10]), Err(Malformed::Value("a message's type")), "it is not compiled");
        assert_eq!((text("", None).since(), Message::End.since()), (None, Some(3)));
    }

    #[test]
    fn what_is_read_is_checked_by_structures_and_enumerations() {
        let crossed = encode(&Message::Spans(vec![Span { from: 2, to: 2 }]));
        assert_eq!(decode::<Message>(&crossed), Err(Malformed::Order("the ends of a span")));
        assert_eq!(decode::<Message>(&encode(&text("long", None))), Err(Malformed::Value("a text")));
    }

    #[test]
    fn a_count_is_bounded_by_its_limit_and_by_the_octets_that_are_left() {
        // A span has eight octets: with 23 left there are two at most.
        let many = [&[1, 0xff, 0xff, 0xff, 0xff][..], &[0; 23]].concat();
        assert_eq!(decode::<Message>(&many), Err(Malformed::TooMany { count: u32::MAX as usize, most: 2 }));
        let five = encode(&Message::Spans(vec![Span { from: 0, to: 1 }; 5]));
        assert_eq!(decode::<Message>(&five), Err(Malformed::TooMany { count: 5, most: 4 }));
        assert_eq!(Message::LEAST, 1);
    }

    #[test]
    fn readers_and_writers_print_no_octets() {
        let mut writer = Writer::new();
        writer.bytes(b"secret");
        assert_eq!(format!("{writer:?} {:?}", Reader::new(b"secret")), "Writer(6 octets) Reader(6 octets)");
    }
}

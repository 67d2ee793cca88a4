//! Lists of prefixes with the lengths that may be announced of each: sorted arrays, of 7 octets a prefix of IPv4 and 19 of IPv6.

use wayleave_core::wire::{Malformed, Reader, Writer, check_ascending};
use wayleave_core::{Afi, Prefix};

/// A prefix, and the lengths of what lies in it that may be announced, both included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PrefixRange {
    pub prefix: Prefix,
    pub least: u8,
    pub most: u8,
}

/// A range of a family whose addresses have `N` octets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Range<const N: usize> {
    address: [u8; N],
    length: u8,
    least: u8,
    most: u8,
}

/// The ranges of one family, ascending, and the lengths that occur.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Ranges<const N: usize> {
    all: Box<[Range<N>]>,
    lengths: Box<[u8]>,
}

/// Which prefixes may be announced.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrefixList {
    v4: Ranges<4>,
    v6: Ranges<16>,
}

impl<const N: usize> Ranges<N> {
    fn of(mut all: Vec<Range<N>>) -> Self {
        all.sort_unstable();
        all.dedup();
        let mut lengths: Vec<u8> = all.iter().map(|range| range.length).collect();
        lengths.sort_unstable();
        lengths.dedup();
        Self { all: all.into(), lengths: lengths.into() }
    }

    /// The ranges whose prefix this prefix lies in, the shortest first.
    fn covering(&self, prefix: &Prefix) -> impl Iterator<Item = &Range<N>> {
        let octets = prefix.octets();
        let lengths = self.lengths.iter().copied().take_while(|length| *length <= prefix.len());
        lengths.flat_map(move |length| {
            let at = Prefix::from_nlri(prefix.afi(), length, &octets).map(|at| at.octets()).unwrap_or(octets);
            let mut address = [0; N];
            address.copy_from_slice(&at[..N]);
            let from = self.all.partition_point(|range| (range.address, range.length) < (address, length));
            self.all[from..].iter().take_while(move |range| (range.address, range.length) == (address, length))
        })
    }

    fn write(&self, out: &mut Writer) {
        out.list32(&self.all, |out, range| {
            out.bytes(&range.address).u8(range.length).u8(range.least).u8(range.most);
        });
    }

    fn read(reader: &mut Reader<'_>, most: usize) -> Result<Self, Malformed> {
        let all = reader.list32(N + 3, most, |reader| {
            let (address, length) = (reader.array::<N>()?, reader.u8()?);
            let range = Range { address, length, least: reader.u8()?, most: reader.u8()? };
            if range.is_sound() { Ok(range) } else { Err(Malformed::Value("a range of prefixes")) }
        })?;
        check_ascending(&all, "prefixes")?;
        Ok(Self::of(all))
    }
}

impl<const N: usize> Range<N> {
    fn afi() -> Afi {
        if N == 4 { Afi::Ipv4 } else { Afi::Ipv6 }
    }

    fn is_sound(&self) -> bool {
        let prefix = Prefix::from_nlri(Self::afi(), self.length, &self.address);
        prefix.is_ok_and(|prefix| prefix.octets()[..N] == self.address)
            && self.length <= self.least
            && self.least <= self.most
            && self.most <= Self::afi().bits()
    }

    fn range(&self) -> Option<PrefixRange> {
        let prefix = Prefix::from_nlri(Self::afi(), self.length, &self.address).ok()?;
        Some(PrefixRange { prefix, least: self.least, most: self.most })
    }
}

impl PrefixList {
    /// A list of these ranges.
    ///
    /// # Errors
    /// The first one that has no length.
    pub fn of(ranges: impl IntoIterator<Item = PrefixRange>) -> Result<Self, PrefixRange> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for range in ranges {
            let PrefixRange { prefix, least, most } = range;
            if least < prefix.len() || most < least || most > prefix.afi().bits() {
                return Err(range);
            }
            let (octets, length) = (prefix.octets(), prefix.len());
            match prefix.afi() {
                Afi::Ipv4 => {
                    let mut address = [0; 4];
                    address.copy_from_slice(&octets[..4]);
                    v4.push(Range { address, length, least, most });
                }
                Afi::Ipv6 => v6.push(Range { address: octets, length, least, most }),
            }
        }
        Ok(Self { v4: Ranges::of(v4), v6: Ranges::of(v6) })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.v4.all.len() + self.v6.all.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ranges, those of IPv4 first.
    pub fn ranges(&self) -> impl Iterator<Item = PrefixRange> {
        self.v4.all.iter().filter_map(Range::range).chain(self.v6.all.iter().filter_map(Range::range))
    }

    /// Whether the prefix may be announced.
    #[must_use]
    pub fn allows(&self, prefix: &Prefix) -> bool {
        let length = prefix.len();
        match prefix.afi() {
            Afi::Ipv4 => self.v4.covering(prefix).any(|range| (range.least..=range.most).contains(&length)),
            Afi::Ipv6 => self.v6.covering(prefix).any(|range| (range.least..=range.most).contains(&length)),
        }
    }

    /// The shortest prefix of the list that this one lies in, whatever lengths may be announced of it.
    #[must_use]
    pub fn covering(&self, prefix: &Prefix) -> Option<Prefix> {
        let range = match prefix.afi() {
            Afi::Ipv4 => self.v4.covering(prefix).next().and_then(Range::range),
            Afi::Ipv6 => self.v6.covering(prefix).next().and_then(Range::range),
        };
        range.map(|range| range.prefix)
    }

    pub(super) fn write(&self, out: &mut Writer) {
        self.v4.write(out);
        self.v6.write(out);
    }

    /// At most `most` ranges of each family.
    pub(super) fn read(reader: &mut Reader<'_>, most: usize) -> Result<Self, Malformed> {
        Ok(Self { v4: Ranges::read(reader, most)?, v6: Ranges::read(reader, most)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    fn range(text: &str, least: u8, most: u8) -> PrefixRange {
        PrefixRange { prefix: prefix(text), least, most }
    }

    #[test]
    fn a_prefix_is_allowed_by_any_range_that_it_lies_in_and_has_a_length_of() {
        let ranges = [
            range("10.0.0.0/8", 8, 8),
            range("10.0.0.0/8", 20, 24),
            range("10.1.0.0/16", 16, 16),
            range("2001:db8::/32", 32, 48),
        ];
        let list = PrefixList::of(ranges).expect("ranges");
        assert_eq!(list.ranges().collect::<Vec<_>>(), ranges);
        for (text, is_allowed) in [
            ("10.0.0.0/8", true),
            ("10.0.0.0/9", false),
            ("10.2.0.0/20", true),
            ("10.2.3.0/24", true),
            ("10.2.3.0/25", false),
            ("10.1.0.0/16", true),
            ("10.2.0.0/16", false),
            ("0.0.0.0/0", false),
            ("11.0.0.0/8", false),
            ("2001:db8:1::/48", true),
            ("2001:db8::/49", false),
            ("2001:db9::/32", false),
            ("::/0", false),
        ] {
            assert_eq!(list.allows(&prefix(text)), is_allowed, "{text}");
        }
        assert_eq!(list.covering(&prefix("10.1.0.0/30")), Some(prefix("10.0.0.0/8")));
        assert_eq!(list.covering(&prefix("12.0.0.0/8")), None);
        assert!(!PrefixList::default().allows(&prefix("10.0.0.0/8")));
    }

    #[test]
    fn a_range_without_a_length_is_none() {
        for bad in [range("10.0.0.0/8", 7, 8), range("10.0.0.0/8", 9, 8), range("10.0.0.0/8", 8, 33)] {
            assert_eq!(PrefixList::of([bad]), Err(bad));
        }
    }

    /// Each prefix is looked for as a list of all of them would find it.
    #[test]
    fn a_large_list_finds_what_a_look_at_each_range_finds() {
        let mut state = 7_u32;
        let mut next = |most: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % most
        };
        let mut random = || {
            let length = 4 + u8::try_from(next(8)).expect("small");
            let octets = [u8::try_from(next(256)).expect("an octet"), u8::try_from(next(256)).expect("an octet"), 0, 0];
            (Prefix::from_nlri(Afi::Ipv4, length, &octets).expect("a prefix"), u8::try_from(next(4)).expect("small"))
        };
        let ranges: Vec<PrefixRange> = (0..100)
            .map(|_| random())
            .map(|(prefix, more)| PrefixRange { prefix, least: prefix.len(), most: prefix.len() + more })
            .collect();
        let list = PrefixList::of(ranges.iter().copied()).expect("ranges");
        for _ in 0..1_000 {
            let (at, _) = random();
            let of = |range: &PrefixRange| range.prefix.contains(&at) && (range.least..=range.most).contains(&at.len());
            assert_eq!(list.allows(&at), ranges.iter().any(of), "{at}");
        }
    }
}

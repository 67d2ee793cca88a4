//! Data of an exchange: what its members may announce by the Internet routing registries (IRR), prefixes that nobody may, and how
//! many each member may.
//!
//! Rules change seldom, and people sign them ([`Profile`](crate::directory::Profile)); data change daily. So they are an object of their
//! own, which machines of both operators sign with keys that the profile names: without both signatures, with a number
//! that does not rise, or of another exchange, no proxy takes it.

mod list;

use std::collections::{BTreeMap, BTreeSet};

use wayleave_core::wire::{Malformed, Reader, Writer, check_ascending};
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_crypto::hash::hash;
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};

use crate::directory::{DataRules, MAX_SLOTS};

pub use list::{PrefixList, PrefixRange};

const LABEL: &str = "wayleave/data/v1";
/// Version of the encoding.
const VERSION: u8 = 1;
/// Octets of an encoded object: our own limit, for 1,000 members with 20,000 prefixes each. An IPv4 prefix takes seven.
pub const MAX_ENCODED: usize = 160 << 20;
/// Prefixes of one member's list, and of the list that nobody may announce: our own limits. The largest AS sets have
/// some 700,000 prefixes.
pub const MAX_PREFIXES: usize = 1 << 20;
pub const MAX_BOGONS: usize = 1 << 14;
/// Origins of one member's list: our own limit. Some 80,000 ASes are announced at all.
pub const MAX_ORIGINS: usize = 1 << 17;
/// Octets of the smallest member's entry.
const LEAST_MEMBER: usize = 4 + 1 + 1 + 8;

/// What one AS may announce.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberLists {
    /// The ASes that may originate its routes, ascending; `None`: no list.
    pub origins: Option<Box<[Asn]>>,
    /// The prefixes of its routes; `None`: no list.
    pub prefixes: Option<PrefixList>,
    /// How many prefixes of IPv4 and of IPv6 it may announce; 0: no limit.
    pub max_prefixes: [u32; 2],
}

/// What the machines of both operators sign.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Data {
    /// The exchange: [`Directory::origin`](crate::directory::Directory::origin).
    pub exchange: [u8; 32],
    /// Rises from one object to the next.
    pub number: u64,
    /// When it was made, and until when it is current, in seconds since 1970. What is in force goes on to count then, and is said to be old.
    pub made: u64,
    pub until: u64,
    /// Prefixes that nobody may announce, beside those that every proxy refuses.
    pub bogons: PrefixList,
    pub members: BTreeMap<Asn, MemberLists>,
}

/// Data with the signatures that they have so far, of party 1's and party 2's machine keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataObject {
    pub data: Data,
    pub signatures: [Option<Signature>; 2],
    digest: [u8; 32],
}

/// What the encoding of data begins with, and what the signatures are over: enough to say whether they count before the lists are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataHead {
    pub exchange: [u8; 32],
    pub number: u64,
    pub until: u64,
    signatures: [Option<Signature>; 2],
    digest: [u8; 32],
}

/// Why data do not count.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DataError {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the profile in force names no machine keys ([profile.data])")]
    NoKeys,
    #[error("they are another exchange's")]
    OtherExchange,
    #[error("the machine key of party {0}'s operator did not sign them")]
    NotSigned(u8),
    #[error("not a machine key of this exchange: expected the key file of one of the two keys of [profile.data]")]
    NoMachineKey,
    #[error("they have number {number}, and {in_force} is in force")]
    Older { number: u64, in_force: u64 },
    #[error("their end is past, and there are none that go on to count")]
    Ended,
    #[error("they are not those of number {0} that are in force: two were signed with one number")]
    Diverges(u64),
}

impl Data {
    /// What one AS may announce, where the data say it.
    #[must_use]
    pub fn of(&self, asn: Asn) -> Option<&MemberLists> {
        self.members.get(&asn)
    }

    /// The bogon that a prefix lies in.
    #[must_use]
    pub fn bogon_of(&self, prefix: &Prefix) -> Option<Prefix> {
        self.bogons.covering(prefix)
    }

    /// The ASes whose lists differ, and whether that concerns all routes.
    #[must_use]
    pub fn differences(&self, other: Option<&Self>) -> (BTreeSet<Asn>, bool) {
        let Some(other) = other else { return (self.members.keys().copied().collect(), true) };
        let asns: BTreeSet<Asn> = self.members.keys().chain(other.members.keys()).copied().collect();
        let differ = |asn: &Asn| self.members.get(asn) != other.members.get(asn);
        (asns.into_iter().filter(differ).collect(), self.bogons != other.bogons)
    }

    fn check(&self) -> Result<(), Malformed> {
        if self.members.len() > MAX_SLOTS {
            return Err(Malformed::TooMany { count: self.members.len(), most: MAX_SLOTS });
        }
        if self.until < self.made {
            return Err(Malformed::Value("the end of the data"));
        }
        Ok(())
    }

    fn write(&self, out: &mut Writer) {
        out.u8(VERSION).bytes(&self.exchange).u64(self.number).u64(self.made).u64(self.until);
        self.bogons.write(out);
        out.count32(self.members.len());
        for (asn, lists) in &self.members {
            out.u32(asn.0).bool(lists.origins.is_some());
            if let Some(origins) = &lists.origins {
                out.list32(origins, |out, asn| {
                    out.u32(asn.0);
                });
            }
            out.bool(lists.prefixes.is_some());
            if let Some(prefixes) = &lists.prefixes {
                prefixes.write(out);
            }
            lists.max_prefixes.iter().for_each(|most| {
                out.u32(*most);
            });
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.u8()? {
            VERSION => {}
            version => return Err(Malformed::Version(version)),
        }
        let (exchange, number) = (reader.array()?, reader.u64()?);
        let (made, until) = (reader.u64()?, reader.u64()?);
        let bogons = PrefixList::read(reader, MAX_BOGONS)?;
        let (count, mut members, mut last) = (reader.count32(LEAST_MEMBER, MAX_SLOTS)?, BTreeMap::new(), None);
        for _ in 0..count {
            let asn = Asn(reader.u32()?);
            if last.is_some_and(|last| last >= asn) {
                return Err(Malformed::Order("members"));
            }
            last = Some(asn);
            let origins = reader.bool()?.then(|| reader.list32(4, MAX_ORIGINS, |reader| reader.u32().map(Asn)));
            let origins = origins.transpose()?.map(Vec::into_boxed_slice);
            check_ascending(origins.as_deref().unwrap_or_default(), "origins")?;
            let prefixes = if reader.bool()? { Some(PrefixList::read(reader, MAX_PREFIXES)?) } else { None };
            let max_prefixes = [reader.u32()?, reader.u32()?];
            members.insert(asn, MemberLists { origins, prefixes, max_prefixes });
        }
        let data = Self { exchange, number, made, until, bogons, members };
        data.check().map(|()| data)
    }
}

impl DataHead {
    /// Reads it from an encoding, of which nothing else is read.
    ///
    /// # Errors
    /// If data do not begin so, or are not so long.
    pub fn read(octets: &[u8]) -> Result<Self, Malformed> {
        if octets.len() > MAX_ENCODED {
            return Err(Malformed::TooMany { count: octets.len(), most: MAX_ENCODED });
        }
        let mut reader = Reader::new(octets);
        let signatures = read_signatures(&mut reader)?;
        let digest = hash(LABEL, &[reader.rest()]);
        match reader.u8()? {
            VERSION => {}
            version => return Err(Malformed::Version(version)),
        }
        let (exchange, number) = (reader.array()?, reader.u64()?);
        let (_, until) = (reader.u64()?, reader.u64()?);
        Ok(Self { exchange, number, until, signatures, digest })
    }

    /// The hash that the machine keys sign.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Whether the signature of a party's operator's machine key is there, and holds.
    #[must_use]
    pub fn is_signed(&self, rules: &DataRules, party: u8) -> bool {
        let place = usize::from(party == 2);
        let key = VerifyingKey::from_bytes(&rules.keys[place]).ok();
        let signature = self.signatures[place].as_ref();
        key.zip(signature).is_some_and(|(key, signature)| key.verify(LABEL, &self.digest, signature).is_ok())
    }

    /// Whether they are this exchange's, and both operators' machines signed them.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self, origin: &[u8; 32], rules: &DataRules) -> Result<(), DataError> {
        if self.exchange != *origin {
            return Err(DataError::OtherExchange);
        }
        match [1, 2].into_iter().find(|party| !self.is_signed(rules, *party)) {
            Some(party) => Err(DataError::NotSigned(party)),
            None => Ok(()),
        }
    }

    /// Whether they may take the place of what is in force.
    ///
    /// # Errors
    /// If not. The same ones may, and change nothing.
    pub fn check_follows(&self, number: u64, digest: &[u8; 32]) -> Result<(), DataError> {
        match self.number {
            own if own < number => Err(DataError::Older { number: own, in_force: number }),
            own if own == number && self.digest != *digest => Err(DataError::Diverges(number)),
            _ => Ok(()),
        }
    }
}

fn read_signatures(reader: &mut Reader<'_>) -> Result<[Option<Signature>; 2], Malformed> {
    let mut signature = || if reader.bool()? { reader.array().map(Some) } else { Ok(None) };
    Ok([signature()?, signature()?])
}

impl DataObject {
    /// Data without a signature.
    ///
    /// # Errors
    /// If they exceed a limit.
    pub fn new(data: Data) -> Result<Self, Malformed> {
        let mut out = Writer::new();
        data.write(&mut out);
        let octets = out.finish();
        // Whoever reads them reads the same, or nothing.
        if octets.len() + 2 + 128 > MAX_ENCODED {
            return Err(Malformed::TooMany { count: octets.len(), most: MAX_ENCODED });
        }
        let mut reader = Reader::new(&octets);
        Data::read(&mut reader)?;
        let digest = hash(LABEL, &[&octets]);
        Ok(Self { data, signatures: [None; 2], digest })
    }

    /// The hash that the machine keys sign.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The encoding: the signature of each party's operator's machine key, if there is one (0 or 1, 512), then the data: version 8, exchange 256,
    /// number, made and until 64 each, bogons, members (counted). A list of prefixes is that of IPv4 and that of IPv6 (counted), each prefix an
    /// address 32 or 128, its length, and the least and the most length that may be announced, 8 each. A member is its AS 32, origins (0 or 1,
    /// counted), prefixes (0 or 1), and limits 2 * 32. Counts have 32 bits, and lists ascend.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        for signature in &self.signatures {
            out.bool(signature.is_some());
            if let Some(signature) = signature {
                out.bytes(signature);
            }
        }
        self.data.write(&mut out);
        out.finish()
    }

    /// Reads what [`DataObject::encode`] wrote, all of it; no signature is checked.
    ///
    /// # Errors
    /// If they are no data.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        if octets.len() > MAX_ENCODED {
            return Err(Malformed::TooMany { count: octets.len(), most: MAX_ENCODED });
        }
        let mut reader = Reader::new(octets);
        let signatures = read_signatures(&mut reader)?;
        let digest = hash(LABEL, &[reader.rest()]);
        let data = Data::read(&mut reader)?;
        reader.end()?;
        Ok(Self { data, signatures, digest })
    }

    /// What says whether they count.
    #[must_use]
    pub fn head(&self) -> DataHead {
        let Data { exchange, number, until, .. } = self.data;
        DataHead { exchange, number, until, signatures: self.signatures, digest: self.digest }
    }

    /// Signs as the operator whose machine key this is: the party, 1 or 2.
    ///
    /// # Errors
    /// If it is nobody's, or the data are another exchange's.
    pub fn sign(&mut self, origin: &[u8; 32], rules: &DataRules, key: &SigningKey) -> Result<u8, DataError> {
        if self.data.exchange != *origin {
            return Err(DataError::OtherExchange);
        }
        let public = key.verifying_key().to_bytes();
        let place = rules.keys.iter().position(|known| *known == public).ok_or(DataError::NoMachineKey)?;
        self.signatures[place] = Some(key.sign(LABEL, &self.digest));
        Ok(if place == 0 { 1 } else { 2 })
    }

    /// [`DataHead::is_signed`].
    #[must_use]
    pub fn is_signed(&self, rules: &DataRules, party: u8) -> bool {
        self.head().is_signed(rules, party)
    }

    /// [`DataHead::check`].
    ///
    /// # Errors
    /// If they are another exchange's, or a signature is missing.
    pub fn check(&self, origin: &[u8; 32], rules: &DataRules) -> Result<(), DataError> {
        self.head().check(origin, rules)
    }
}

/// 0 for IPv4, 1 for IPv6: the place in [`MemberLists::max_prefixes`].
#[must_use]
pub fn family(afi: Afi) -> usize {
    usize::from(afi == Afi::Ipv6)
}

#[cfg(test)]
mod tests {
    use wayleave_crypto::secret::Seed;

    use super::*;

    fn key(of: u8) -> SigningKey {
        SigningKey::from_seed(&Seed::new([of; 32]))
    }

    fn rules() -> DataRules {
        DataRules { keys: [1, 2].map(|of| key(of).verifying_key().to_bytes()), ..DataRules::default() }
    }

    fn list(ranges: &[(&str, u8, u8)]) -> PrefixList {
        let range = |(prefix, least, most): &(&str, u8, u8)| PrefixRange {
            prefix: prefix.parse().expect("a prefix"),
            least: *least,
            most: *most,
        };
        PrefixList::of(ranges.iter().map(range)).expect("ranges")
    }

    fn data() -> Data {
        let lists = MemberLists {
            origins: Some([64_497, 64_500].map(Asn).into()),
            prefixes: Some(list(&[("203.0.113.0/24", 24, 24), ("2001:db8::/32", 32, 48)])),
            max_prefixes: [100, 0],
        };
        let members = [(Asn(64_497), lists), (Asn(64_498), MemberLists::default())].into();
        let bogons = list(&[("198.51.100.0/24", 24, 32)]);
        Data { exchange: [7; 32], number: 3, made: 1_000, until: 2_000, bogons, members }
    }

    #[test]
    fn data_have_one_encoding_and_every_other_is_refused() {
        let mut object = DataObject::new(data()).expect("sound");
        for signed in 0..3_u8 {
            if signed > 0 {
                assert_eq!(object.sign(&[7; 32], &rules(), &key(signed)), Ok(signed));
            }
            let octets = object.encode();
            assert_eq!(DataObject::decode(&octets), Ok(object.clone()));
            assert_eq!(DataHead::read(&octets), Ok(object.head()));
            assert!(DataHead::read(&octets[..octets.len() - 1]).is_ok_and(|head| head.digest() != object.digest()));
            for end in 0..octets.len() {
                assert!(DataObject::decode(&octets[..end]).is_err(), "{end} octets");
            }
            assert!(DataObject::decode(&[&octets[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn data_count_with_the_signatures_of_both_machines_over_what_they_say() {
        let mut object = DataObject::new(data()).expect("sound");
        assert_eq!(object.check(&[7; 32], &rules()), Err(DataError::NotSigned(1)));
        assert_eq!(object.sign(&[7; 32], &rules(), &key(3)), Err(DataError::NoMachineKey));
        assert_eq!(object.sign(&[8; 32], &rules(), &key(1)), Err(DataError::OtherExchange));
        object.sign(&[7; 32], &rules(), &key(1)).expect("a machine key");
        assert_eq!(object.check(&[7; 32], &rules()), Err(DataError::NotSigned(2)), "one operator alone");
        object.signatures[1] = object.signatures[0];
        assert_eq!(object.check(&[7; 32], &rules()), Err(DataError::NotSigned(2)), "the same signature twice");
        object.sign(&[7; 32], &rules(), &key(2)).expect("a machine key");
        assert_eq!(object.check(&[7; 32], &rules()), Ok(()));
        assert_eq!(object.check(&[8; 32], &rules()), Err(DataError::OtherExchange));
        let mut changed = DataObject::new(Data { until: 3_000, ..data() }).expect("sound");
        changed.signatures = object.signatures;
        assert_eq!(changed.check(&[7; 32], &rules()), Err(DataError::NotSigned(1)));
        assert_eq!(object.head().check_follows(4, &[0; 32]), Err(DataError::Older { number: 3, in_force: 4 }));
        assert_eq!(object.head().check_follows(3, &changed.digest()), Err(DataError::Diverges(3)));
        assert_eq!(
            (object.head().check_follows(3, &object.digest()), object.head().check_follows(2, &[0; 32])),
            (Ok(()), Ok(()))
        );
    }

    #[test]
    fn what_differs_is_named_by_its_as_and_a_bogon_concerns_all() {
        let (before, mut after) = (data(), data());
        assert_eq!(after.differences(Some(&before)), (BTreeSet::new(), false));
        after.members.remove(&Asn(64_498));
        after.members.entry(Asn(64_497)).or_default().max_prefixes = [1, 1];
        assert_eq!(after.differences(Some(&before)), (BTreeSet::from([64_497, 64_498].map(Asn)), false));
        after.bogons = PrefixList::default();
        assert!(after.differences(Some(&before)).1 && after.differences(None).1);
    }
}

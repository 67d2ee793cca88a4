//! The profile of an exchange: what its route server demands of every route. Both operators sign it with the member set, and
//! every member's proxy applies it at announce and at receive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::wire::{List16, Malformed, Maybe, Own, check_ascending};
use wayleave_core::{Afi, Asn};
use wayleave_crypto::sign::VerifyingKey;

use crate::codecs::{Ipv4Codec, Ipv6Codec};
use crate::policy::validate::{MAX_PATH, can_be_next_hop};

/// Transit-free ASes of a profile: our own limit, three times what operators list.
pub const MAX_TRANSIT_FREE: usize = 64;
/// ASes that may ask for a blackhole, where not all may: our own limit.
pub const MAX_BLACKHOLE_ASNS: usize = 1024;

/// The ASes that arouteserver lists as transit-free: they buy transit from nobody, so that a path through one of them behind a
/// member's AS is a leak (RFC 7908).
pub const TRANSIT_FREE: [Asn; 19] = [
    Asn(174),
    Asn(209),
    Asn(286),
    Asn(701),
    Asn(1239),
    Asn(1299),
    Asn(2828),
    Asn(2914),
    Asn(3257),
    Asn(3320),
    Asn(3356),
    Asn(3549),
    Asn(5511),
    Asn(6453),
    Asn(6461),
    Asn(6762),
    Asn(6830),
    Asn(7018),
    Asn(12956),
];

wayleave_core::wire! {
    /// Lengths of the prefixes of one family that may be announced, both included (RFC 7454 section 6.1.3).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Lengths {
        pub shortest: u8,
        pub longest: u8,
    }

    /// BLACKHOLE (RFC 7999): who may ask all members to drop packets to a prefix, and where to.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Blackhole {
        /// Next hops on the exchange's network that drop packets. Without one a route keeps its own.
        pub next_hop4: Option<Ipv4Addr> as Maybe<Ipv4Codec>,
        pub next_hop6: Option<Ipv6Addr> as Maybe<Ipv6Codec>,
        /// The ASes that may, ascending; `None`: every member.
        pub allowed: Option<Vec<Asn>> as Maybe<List16<MAX_BLACKHOLE_ASNS>>,
    }

    /// Who signs data ([`crate::data`]), and what is refused by them. The default is that of arouteserver, without keys.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct DataRules: Self::check {
        /// The machine keys of party 1's and party 2's operators: they sign data, and nothing else.
        pub keys: [[u8; 32]; 2] as [Own; 2],
        /// Refuse routes whose origin is not in their announcer's list.
        pub irr_origin: bool,
        /// Refuse routes whose prefix is not in their announcer's list.
        pub irr_prefix: bool,
        /// A route that is valid by the RPKI (RFC 6811) needs to be in no list of prefixes.
        pub rpki_before_irr: bool,
        /// Refuse the routes of an announcer that has no list.
        pub refuse_without_list: bool,
    }

    /// What every route must be. The default is that of arouteserver, without its lists.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Profile: Self::check {
        pub ipv4: Lengths,
        pub ipv6: Lengths,
        /// Hops of the longest AS path, [`MAX_PATH`] at most (RFC 7454 section 9).
        pub max_hops: u8,
        /// Refuse reserved AS numbers on the path ([`reserved`]).
        pub refuse_bogon_asns: bool,
        /// Refuse AS_SETs (RFC 9774), whatever a member's own setting is.
        pub refuse_as_set: bool,
        /// Refuse routes whose origin the RPKI says is not the prefix's (RFC 6811, RFC 7115).
        pub refuse_rpki_invalid: bool,
        /// Refuse routes whose path the ASPA records of the RPKI say is a leak (draft-ietf-sidrops-aspa-verification).
        pub refuse_aspa_invalid: bool,
        /// ASes that no member may have on a path behind its own, ascending.
        pub transit_free: Vec<Asn> as List16<MAX_TRANSIT_FREE>,
        /// `None`: routes with BLACKHOLE are refused.
        pub blackhole: Option<Blackhole>,
    }
}

impl Default for DataRules {
    fn default() -> Self {
        Self {
            keys: [[0; 32]; 2],
            irr_origin: true,
            irr_prefix: true,
            rpki_before_irr: false,
            refuse_without_list: true,
        }
    }
}

impl DataRules {
    /// Whether the keys are keys, and two.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self) -> Result<(), Malformed> {
        let are_keys = self.keys.iter().all(|key| VerifyingKey::from_bytes(key).is_ok());
        if are_keys && self.keys[0] != self.keys[1] { Ok(()) } else { Err(Malformed::Value("a machine key")) }
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            ipv4: Lengths { shortest: 8, longest: 24 },
            ipv6: Lengths { shortest: 12, longest: 48 },
            max_hops: 32,
            refuse_bogon_asns: true,
            refuse_as_set: true,
            refuse_rpki_invalid: true,
            // As arouteserver, which has no such rule: there is no RFC yet, and few ASes have records.
            refuse_aspa_invalid: false,
            transit_free: Vec::new(),
            blackhole: None,
        }
    }
}

impl Lengths {
    /// Whether they are a range of a family's lengths. The default route is not in it.
    #[must_use]
    pub fn are_of(self, afi: Afi) -> bool {
        (1..=self.longest).contains(&self.shortest) && self.longest <= afi.bits()
    }
}

impl Blackhole {
    /// Whether the AS may announce routes with BLACKHOLE.
    #[must_use]
    pub fn permits(&self, asn: Asn) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.binary_search(&asn).is_ok())
    }

    fn check(&self) -> Result<(), Malformed> {
        check_ascending(self.allowed.as_deref().unwrap_or_default(), "the ASes that may announce BLACKHOLE")?;
        let next_hops = [self.next_hop4.map(IpAddr::from), self.next_hop6.map(IpAddr::from)];
        if next_hops.into_iter().flatten().all(can_drop) {
            Ok(())
        } else {
            Err(Malformed::Value("a next hop of BLACKHOLE"))
        }
    }
}

/// Whether all members can have a route to this address, where packets are dropped.
#[must_use]
pub fn can_drop(next_hop: IpAddr) -> bool {
    let is_link_local = matches!(next_hop, IpAddr::V6(v6) if v6.is_unicast_link_local());
    can_be_next_hop(next_hop) && !is_link_local
}

impl Profile {
    /// The lengths of a family's prefixes.
    #[must_use]
    pub fn lengths(&self, afi: Afi) -> Lengths {
        match afi {
            Afi::Ipv4 => self.ipv4,
            Afi::Ipv6 => self.ipv6,
        }
    }

    /// Whether the numbers are in range, and the lists in order: every profile has one encoding.
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self) -> Result<(), Malformed> {
        if !self.ipv4.are_of(Afi::Ipv4) || !self.ipv6.are_of(Afi::Ipv6) {
            return Err(Malformed::Value("the lengths of prefixes"));
        }
        if !(1..=MAX_PATH).contains(&usize::from(self.max_hops)) {
            return Err(Malformed::Value("the hops of a path"));
        }
        check_ascending(&self.transit_free, "transit-free ASes")?;
        if self.transit_free.len() > MAX_TRANSIT_FREE {
            return Err(Malformed::TooMany { count: self.transit_free.len(), most: MAX_TRANSIT_FREE });
        }
        self.blackhole.as_ref().map_or(Ok(()), |blackhole| {
            let count = blackhole.allowed.as_ref().map_or(0, Vec::len);
            if count > MAX_BLACKHOLE_ASNS {
                return Err(Malformed::TooMany { count, most: MAX_BLACKHOLE_ASNS });
            }
            blackhole.check()
        })
    }
}

/// The document that reserves an AS number, so that no path may have it.
#[must_use]
pub fn reserved(asn: Asn) -> Option<&'static str> {
    Some(match asn.0 {
        0 => "RFC 7607",
        23_456 => "RFC 6793",
        64_496..=64_511 | 65_536..=65_551 => "RFC 5398",
        64_512..=65_534 | 4_200_000_000..=4_294_967_294 => "RFC 6996",
        65_535 | u32::MAX => "RFC 7300",
        65_552..=131_071 => "IANA's registry of AS numbers",
        _ => return None,
    })
}

/// Whether the AS number is for documentation (RFC 5398) or private use (RFC 6996), as laboratories have them.
#[must_use]
pub fn is_for_laboratories(asn: Asn) -> bool {
    matches!(reserved(asn), Some("RFC 5398" | "RFC 6996"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_core::wire::{decode, encode};

    fn whole() -> Profile {
        Profile {
            transit_free: TRANSIT_FREE.to_vec(),
            blackhole: Some(Blackhole {
                next_hop4: Some(Ipv4Addr::new(192, 0, 2, 66)),
                next_hop6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x66)),
                allowed: Some(vec![Asn(64_497), Asn(64_499)]),
            }),
            ..Profile::default()
        }
    }

    #[test]
    fn a_profile_has_one_encoding_and_every_other_is_refused() {
        for profile in [Profile::default(), whole()] {
            let octets = encode(&profile);
            assert_eq!(decode::<Profile>(&octets), Ok(profile));
            for end in 0..octets.len() {
                assert!(decode::<Profile>(&octets[..end]).is_err(), "{end} octets");
            }
            assert!(decode::<Profile>(&[&octets[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn what_no_exchange_can_mean_is_refused() {
        let edits: [fn(&mut Profile); 14] = [
            |p| p.ipv4.shortest = 0,
            |p| p.ipv4.longest = 33,
            |p| p.ipv4 = Lengths { shortest: 25, longest: 24 },
            |p| p.ipv6.shortest = 0,
            |p| p.ipv6.longest = 129,
            |p| p.max_hops = 0,
            |p| p.max_hops = 65,
            |p| p.transit_free.reverse(),
            |p| p.transit_free.push(Asn(12956)),
            |p| p.transit_free = (1..=65).map(Asn).collect(),
            |p| p.blackhole.as_mut().expect("one").allowed = Some(vec![Asn(2), Asn(1)]),
            |p| p.blackhole.as_mut().expect("one").allowed = Some((1..=1025).map(Asn).collect()),
            |p| p.blackhole.as_mut().expect("one").next_hop4 = Some(Ipv4Addr::LOCALHOST),
            |p| p.blackhole.as_mut().expect("one").next_hop6 = Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
        ];
        for (number, edit) in edits.into_iter().enumerate() {
            let mut profile = whole();
            edit(&mut profile);
            assert!(profile.check().is_err(), "{number}");
            assert!(decode::<Profile>(&encode(&profile)).is_err(), "{number}");
        }
        assert_eq!(whole().check(), Ok(()));
    }

    #[test]
    fn reserved_numbers_name_their_document_and_all_others_are_free() {
        for (asn, document) in [
            (0, "RFC 7607"),
            (23_456, "RFC 6793"),
            (64_496, "RFC 5398"),
            (64_512, "RFC 6996"),
            (65_535, "RFC 7300"),
            (65_551, "RFC 5398"),
            (65_552, "IANA's registry of AS numbers"),
            (131_071, "IANA's registry of AS numbers"),
            (4_200_000_000, "RFC 6996"),
            (u32::MAX, "RFC 7300"),
        ] {
            assert_eq!(reserved(Asn(asn)), Some(document), "{asn}");
        }
        for free in [1, 23_455, 64_495, 131_072, 4_199_999_999] {
            assert_eq!(reserved(Asn(free)), None, "{free}");
        }
    }
}

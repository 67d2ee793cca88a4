//! The exchange, and routes of which each rule refuses hundreds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_bgp::origins::Vrp;
use wayleave_bgp::{
    AsPathBuf, Attributes, AttributesEditor, Community, ExtendedCommunity, Ipv6NextHop, LargeCommunity, Origin,
    SegmentKind,
};
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_route_server::directory::{Blackhole, Lengths, MemberSet, Profile, Slot, TRANSIT_FREE};
use wayleave_route_server::policy::PerPeer;

/// The route server's AS.
pub(super) const RS: Asn = Asn(1_099);
/// Where the exchange drops packets.
pub(super) const DROP4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);
pub(super) const DROP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x66);
/// Members: first those who announce, then those who receive. The third is transit-free itself, and the last has four octets.
pub(super) const ANNOUNCERS: [Asn; 3] = [Asn(1_101), Asn(1_102), Asn(174)];
pub(super) const RECEIVERS: [Asn; 2] = [Asn(1_201), Asn(263_002)];
/// A member that has no session here.
const ABSENT: Asn = Asn(1_203);
/// Prefixes that are not routed, as a route server's operator lists them.
pub(super) const BOGONS4: [&str; 12] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
];
pub(super) const BOGONS6: [&str; 8] =
    ["100::/64", "2001:db8::/32", "3fff::/20", "3ffe::/16", "5f00::/16", "fc00::/7", "fe80::/10", "ff00::/8"];

/// A route of an announcer.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) announcer: usize,
    pub(super) attributes: Attributes,
}

pub(super) type Routes = BTreeMap<Prefix, Route>;

/// The address of the member in this place, on the exchange's network.
pub(super) fn lan4(place: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 11 + place as u8)
}

pub(super) fn lan6(place: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 11 + place as u16)
}

/// What an announcer lets receivers read: the second one keeps what its communities ask for one peer to itself.
pub(super) fn per_peer(announcer: usize) -> PerPeer {
    if announcer == 1 { PerPeer::Private } else { PerPeer::Readable }
}

pub(super) fn profile() -> Profile {
    let blackhole =
        Blackhole { next_hop4: Some(DROP4), next_hop6: Some(DROP6), allowed: Some(vec![Asn(174), Asn(1_101)]) };
    Profile {
        ipv4: Lengths { shortest: 12, longest: 24 },
        ipv6: Lengths { shortest: 28, longest: 48 },
        max_hops: 32,
        transit_free: TRANSIT_FREE.to_vec(),
        blackhole: Some(blackhole),
        ..Profile::default()
    }
}

pub(super) fn members() -> MemberSet {
    let slot = |(place, asn): (usize, Asn)| Slot {
        active: true,
        asn,
        name: format!("as{}", asn.0),
        addresses: vec![lan4(place).into(), IpAddr::from(lan6(place))],
        tls: [place as u8 + 1; 32],
        sign: [place as u8 + 1; 32],
        max_prefix: 0,
        held: false,
    };
    let slots = ANNOUNCERS.into_iter().chain(RECEIVERS).enumerate().map(slot).collect();
    MemberSet {
        exchange: "test-ix".into(),
        number: 1,
        slots,
        attest: BTreeMap::new(),
        profile: Some(profile()),
        data: None,
    }
}

/// Numbers that follow from a seed (SplitMix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What is wrong with a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    TooLong,
    TooShort,
    Bogon,
    LongPath,
    BogonAsn,
    AsSet,
    TransitFree,
    FirstAs,
    NextHop,
    Otc,
    Loop,
}

const FAULTS: [Fault; 11] = [
    Fault::TooLong,
    Fault::TooShort,
    Fault::Bogon,
    Fault::LongPath,
    Fault::BogonAsn,
    Fault::AsSet,
    Fault::TransitFree,
    Fault::FirstAs,
    Fault::NextHop,
    Fault::Otc,
    Fault::Loop,
];

fn prefix(address: IpAddr, length: u8) -> Prefix {
    let text = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            format!("{}/{length}", Ipv4Addr::from(u32::from(address) & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            format!("{}/{length}", Ipv6Addr::from(u128::from(address) & mask))
        }
    };
    text.parse().expect("a prefix")
}

/// The block of the route with this number: its prefix lies there, and so do its VRPs.
fn block(number: u64, afi: Afi) -> IpAddr {
    match afi {
        Afi::Ipv4 => Ipv4Addr::from(0x1400_0000 + (number as u32) * 4_096).into(),
        Afi::Ipv6 => Ipv6Addr::from((0x2a10u128 << 112) + (u128::from(number) << 88)).into(),
    }
}

fn prefix_of(dice: &mut Dice, number: u64, afi: Afi, faults: &[Fault], is_blackhole: bool) -> Prefix {
    let has = |fault| faults.contains(&fault);
    let within = block(number, afi);
    match afi {
        Afi::Ipv4 if has(Fault::Bogon) => {
            let text = dice.one_of(&BOGONS4);
            let at: Prefix = text.parse().expect("a prefix");
            let IpAddr::V4(base) = at.address() else { unreachable!() };
            let more = dice.below(1 << 24) as u32;
            let free = u32::MAX.checked_shr(at.len().into()).unwrap_or(0);
            prefix(Ipv4Addr::from(u32::from(base) | (more << 8 & free)).into(), at.len().max(24))
        }
        Afi::Ipv6 if has(Fault::Bogon) => {
            let at: Prefix = dice.one_of(&BOGONS6).parse().expect("a prefix");
            let IpAddr::V6(base) = at.address() else { unreachable!() };
            let more = u128::from(dice.next()) << 64 | u128::from(dice.next());
            let free = u128::MAX >> at.len();
            prefix(Ipv6Addr::from(u128::from(base) | (more & free)).into(), at.len().max(48))
        }
        Afi::Ipv4 if has(Fault::TooShort) => {
            prefix(Ipv4Addr::from((24 << 24) + ((number as u32) << 21) % (160 << 24)).into(), 11)
        }
        Afi::Ipv6 if has(Fault::TooShort) => {
            prefix(Ipv6Addr::from((0x2600u128 << 112) + (u128::from(number) << 101)).into(), 27)
        }
        Afi::Ipv4 if is_blackhole && dice.below(3) > 0 => prefix(within, 32),
        Afi::Ipv6 if is_blackhole && dice.below(3) > 0 => prefix(within, 128),
        Afi::Ipv4 if has(Fault::TooLong) => prefix(within, 25 + dice.below(8) as u8),
        Afi::Ipv6 if has(Fault::TooLong) => prefix(within, 49 + dice.below(80) as u8),
        Afi::Ipv4 => prefix(within, 20 + dice.below(5) as u8),
        Afi::Ipv6 => prefix(within, 40 + dice.below(9) as u8),
    }
}

fn path_of(dice: &mut Dice, announcer: Asn, faults: &[Fault]) -> AsPathBuf {
    let has = |fault| faults.contains(&fault);
    let mut path = vec![announcer];
    let hops = match dice.below(20) {
        // Near the limit, so that prepending goes beyond it.
        0 => 28 + dice.below(4),
        _ => dice.below(6),
    };
    path.extend((0..hops).map(|_| Asn(10_000 + dice.below(2_000) as u32)));
    if has(Fault::LongPath) {
        let last = *path.last().expect("one");
        path.resize(33 + dice.below(40) as usize, last);
    }
    let place = 1 + dice.below(path.len() as u64) as usize;
    if has(Fault::BogonAsn) {
        let bogon =
            dice.one_of(&[0, 23_456, 64_496, 64_512, 65_534, 65_535, 65_551, 65_552, 131_071, 4_200_000_000, u32::MAX]);
        path.insert(place, Asn(bogon));
    }
    if has(Fault::TransitFree) {
        path.insert(place, dice.one_of(&TRANSIT_FREE));
    }
    if has(Fault::Loop) {
        path.insert(place, dice.one_of(&RECEIVERS));
    }
    if has(Fault::FirstAs) {
        path[0] = dice.one_of(&[Asn(1_101), Asn(1_102), Asn(9_999)]);
    }
    let mut path = AsPathBuf::from_sequence(&path);
    if has(Fault::AsSet) {
        path.push_segment(SegmentKind::Set, &[Asn(11_111), Asn(11_112)]);
    }
    path
}

/// Communities of every kind, in texts.
fn communities_of(dice: &mut Dice) -> Vec<String> {
    let peers = [RECEIVERS[0], RECEIVERS[1], RECEIVERS[0], ABSENT];
    let rs = RS.0;
    let mut all = Vec::new();
    for _ in 0..[0, 0, 1, 1, 2, 4][dice.below(6) as usize] {
        let peer = dice.one_of(&peers).0;
        let times = 1 + dice.below(3);
        let standard = peer <= 0xffff;
        all.push(match dice.below(24) {
            0 if standard => format!("0:{peer}"),
            1 if standard => format!("{rs}:{peer}"),
            2 => format!("0:{rs}"),
            3 => format!("{rs}:{rs}"),
            4 | 0 => format!("{rs}:0:{peer}"),
            5 | 1 => format!("{rs}:1:{peer}"),
            6 => format!("{rs}:0:0"),
            7 => format!("{rs}:1:0"),
            8 => format!("rt:0:{peer}"),
            9 => format!("ro:{rs}:{peer}"),
            10 => format!("{}:{rs}", 65_500 + times),
            11 => format!("{rs}:{}:0", 100 + times),
            12 => format!("{rs}:{}:{peer}", 100 + times),
            13 => format!("rt:{}:{peer}", 65_510 + times),
            14 if standard => format!("{}:{peer}", 65_510 + times),
            15 | 14 => format!("{rs}:{}:{}", 65_280 + 1 + dice.below(2), dice.one_of(&[0, peer])),
            16 => format!("{}:{rs}", 65_280 + 1 + dice.below(2)),
            17 => "65535:65281".to_owned(),
            18 if dice.below(4) == 0 => "65535:65282".to_owned(),
            19 => "65535:0".to_owned(),
            20 => format!("{rs}:{}:{}", 1_000 + dice.below(200), dice.below(16)),
            21 => format!("rt:1101:{}", dice.below(9)),
            22 => format!("1101:{}:7", dice.below(9)),
            _ => format!("1101:{}", dice.below(99)),
        });
    }
    all
}

fn set_communities(edit: &mut AttributesEditor, all: &[String]) {
    let parsed = |text: &String| text.parse::<Community>().ok();
    let standard: BTreeSet<Community> = all.iter().filter_map(parsed).collect();
    let large: BTreeSet<LargeCommunity> = all.iter().filter_map(|text| text.parse().ok()).collect();
    let extended: BTreeSet<ExtendedCommunity> = all.iter().filter_map(|text| text.parse().ok()).collect();
    edit.communities(&standard.into_iter().collect::<Vec<_>>());
    edit.large_communities(&large.into_iter().collect::<Vec<_>>());
    edit.extended_communities(&extended.into_iter().collect::<Vec<_>>());
}

/// `count` routes with prefixes of their own, and VRPs of some of their origins.
pub(super) fn generate(seed: u64, count: usize) -> (Routes, Vec<Vrp>) {
    let mut dice = Dice(seed);
    let (mut routes, mut vrps) = (Routes::new(), Vec::new());
    for number in 0.. {
        if routes.len() == count {
            break;
        }
        assert!(number < 2 * count as u64, "most prefixes are new");
        let announcer = dice.below(3) as usize;
        let afi = if dice.below(3) == 0 { Afi::Ipv6 } else { Afi::Ipv4 };
        let wrong = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2][dice.below(10) as usize];
        let faults: Vec<Fault> = (0..wrong).map(|_| dice.one_of(&FAULTS)).collect();
        let is_blackhole = dice.below(12) == 0;
        let prefix = prefix_of(&mut dice, number, afi, &faults, is_blackhole);
        let path = path_of(&mut dice, ANNOUNCERS[announcer], &faults);
        let mut communities = communities_of(&mut dice);
        if is_blackhole {
            communities.push("65535:666".to_owned());
        }
        let mut edit = Attributes::builder();
        edit.origin(dice.one_of(&[Origin::Igp, Origin::Egp, Origin::Incomplete])).as_path(path.as_path());
        set_communities(&mut edit, &communities);
        if dice.below(4) == 0 {
            edit.med(Some(dice.below(1_000) as u32));
        }
        let owner = if faults.contains(&Fault::NextHop) { dice.one_of(&[3, 4, 40]) } else { announcer };
        match afi {
            Afi::Ipv4 => edit.ipv4_next_hop(lan4(owner)),
            Afi::Ipv6 => edit.ipv6_next_hop(Some(Ipv6NextHop { global: lan6(owner), link_local: None })),
        };
        if faults.contains(&Fault::Otc) {
            edit.only_to_customer(Some(Asn(10_000)));
        }
        let (origin, covered) = (path.as_path().origin_asn().unwrap_or(Asn(1)), block(number, afi));
        let (shortest, longest) = if afi == Afi::Ipv4 { (20, 24) } else { (40, 48) };
        let vrp = |max_length, asn| Vrp { prefix: self::prefix(covered, shortest), max_length, asn };
        match dice.below(8) {
            0 | 1 => vrps.push(vrp(longest, origin)),
            2 => vrps.push(vrp(shortest, origin)),
            3 => vrps.push(vrp(longest, Asn(9_998))),
            4 => vrps.extend([vrp(longest, Asn(9_998)), vrp(longest, origin)]),
            _ => {}
        }
        routes.entry(prefix).or_insert(Route { announcer, attributes: edit.finish() });
    }
    (routes, vrps)
}

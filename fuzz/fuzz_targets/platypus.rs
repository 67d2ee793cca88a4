//! Any octets as a Platypus packet of either version, a reply option and an ICMP error to relay.
//!
//! PLA-10: any octets as a packet: refused, or read as they are written.
#![no_main]

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{CpuKernel, LANES};
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::platypus::Forwarding;
use wayleave_dataplane::platypus::lanes::{BurstVerifier, Decision, Verdicts};
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::mint::reply::ReplyOption;
use wayleave_packet::platypus::mint::{self, Hop, Position, StampKey, WaypointKey, WaypointKeys};
use wayleave_packet::platypus::verify::{Arrival, IcmpError, Policy, Verdict, Waypoint, decapsulate, icmp, verify};
use wayleave_papers::platypus::{Algorithm, PaperPacket, PaperRouter};

const NOW: UnixTime = UnixTime(1_795_240_800_000_000);

thread_local! {
    static VERIFIER: RefCell<(BurstVerifier, Verdicts)> =
        RefCell::new((BurstVerifier::new(CpuKernel::best(), 4), Verdicts::default()));
}

fuzz_target!(|data: &[u8]| {
    let v4 = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
    let v6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1));
    if let Ok(packet) = Packet::decode(data) {
        look_at(&packet);
        standard(&packet);
        in_a_burst(data, packet.outer().destination);
    }
    if let Ok(packet) = Packet::decode_datagram(data, v6, packet_destination(data), 64) {
        look_at(&packet);
        standard(&packet);
    }
    if let Ok(packet) = PaperPacket::decode(data) {
        for algorithm in [Algorithm::Umac, Algorithm::Cmac] {
            let mut router =
                PaperRouter::new(packet.outer_destination(), Key128::new([7; 16]), 12, algorithm, 4).with_xor();
            let _ = router.process(&packet, NOW);
        }
    }
    for here in [v4, v6] {
        if let Some(error) = icmp::quoted(data, here) {
            let _ = (error.fingerprint(), error.origin(), error.packet(), error.relayed());
        }
    }
});

fn packet_destination(data: &[u8]) -> IpAddr {
    let octets = data.get(..16).and_then(|octets| <[u8; 16]>::try_from(octets).ok()).unwrap_or([1; 16]);
    IpAddr::V6(Ipv6Addr::from(octets))
}

fn look_at(packet: &Packet<'_>) {
    for index in 0..packet.count() {
        let capability = packet.capability(index);
        assert!(capability.is_consistent());
        assert!(packet.binding(index).len() == 8 || packet.binding(index).len() == 16);
        assert!(!packet.capability_octets(index).is_empty());
    }
    assert!(packet.payload_offset() + packet.payload().len() == packet.datagram().len());
    if packet.has_reply_option() {
        let _ = ReplyOption::decode(packet.payload());
    }
    if let Some(inner) = decapsulate(packet) {
        let (header, addresses, announced) = match packet.outer().destination {
            IpAddr::V4(_) => (20, 12..20, u16::from_be_bytes([inner[2], inner[3]]).into()),
            IpAddr::V6(_) => (40, 8..40, 40 + usize::from(u16::from_be_bytes([inner[4], inner[5]]))),
        };
        assert_eq!(announced, inner.len());
        assert!(packet.payload().ends_with(&inner[header..]));
        let mut expected = Vec::new();
        for address in [packet.original_source(), packet.final_destination()] {
            match address {
                IpAddr::V4(v4) => expected.extend(v4.octets()),
                IpAddr::V6(v6) => expected.extend(v6.octets()),
            }
        }
        assert_eq!(inner[addresses], expected);
    }
}

/// In a burst with copies of it and a packet that differs in one octet, a packet is decided as if it were alone.
fn in_a_burst(data: &[u8], here: IpAddr) {
    let keys = WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
    let here = [Waypoint::new(here, keys, Policy { narrow: true, ..Policy::default() })];
    let mut other = data.to_vec();
    if let [.., at, by] = *data {
        let at = usize::from(at) % other.len();
        other[at] ^= by;
    }
    let mut datagrams = [data; LANES];
    datagrams[usize::from(data.last().copied().unwrap_or(0)) % LANES] = &other;
    let alone = [data, &other].map(|datagram| match verify(&here, datagram, Arrival::Ip, NOW) {
        Verdict::Forward(forward) => Ok(apply(&forward, datagram)),
        refused => Err(refused),
    });
    VERIFIER.with_borrow_mut(|(verifier, verdicts)| {
        verifier.forget();
        verifier.verify(&here, &datagrams, &|_| Arrival::Ip, NOW, verdicts);
        for (index, datagram) in datagrams.iter().enumerate() {
            let found = match verdicts.get(index) {
                Decision::Simple(forward) => Ok(apply(&forward, datagram)),
                Decision::General(Verdict::Forward(forward)) => Ok(apply(&forward, datagram)),
                Decision::General(refused) => Err(refused),
            };
            assert_eq!(found, alone[usize::from(!std::ptr::eq(*datagram, data))]);
        }
    });
}

fn apply(forward: &impl Forwarding, datagram: &[u8]) -> Vec<u8> {
    let mut out = datagram.to_vec();
    forward.apply(&mut out);
    out
}

fn standard(packet: &Packet<'_>) {
    let here = packet.outer().destination;
    let keys = WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
    let policy = Policy { narrow: true, check_source: false, ..Policy::default() };
    let verdict = Waypoint::new(here, keys, policy).verify(packet, Arrival::Ip, NOW);
    if let Verdict::Forward(forward) = verdict {
        forward.apply(&mut packet.datagram().to_vec());
    }
    for error in [IcmpError::TimeExceeded, IcmpError::Prohibited] {
        if let Some(answer) = icmp::error(packet, error, here) {
            assert!(answer.len() <= packet.datagram().len());
        }
    }
    if let Some(capability) = packet.current().map(|index| packet.capability(index)) {
        let hop = Hop { capability, key: StampKey::new(Key128::new([9; 16])) };
        let mut datagram = packet.datagram().to_vec();
        let _ = mint::append(&mut datagram, &hop, Position::Last);
    }
}

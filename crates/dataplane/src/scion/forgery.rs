//! SCI-11: the whole MAC is compared, in lanes and on the general path. A router that compares 16 bits accepts one forgery
//! in 65,536, so that the same count of forgeries against the whole MAC means something.

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, next_header,
};

use super::delivery::LocalDelivery;
use super::{Action, Config, Interface, Keys, Link, Owner, Router};
use crate::frame::{BURST, Frame, Ingress};

const TIME: u32 = 1_800_000_000;
const PARENT: u16 = 21;
const CHILD: u16 = 31;
/// Where the current hop field's MAC is: behind 36 octets of header, 12 of path meta header and info field, and a hop.
const MAC: usize = 66;

fn key() -> ForwardingKey {
    ForwardingKey::new(b"a forwarding key")
}

fn router() -> Router {
    let neighbor = IsdAs::new(1, 2);
    let interface = |id, link| Interface { id, link, neighbor, owner: Owner::This };
    let config = Config {
        isd_as: IsdAs::new(1, 1),
        address: HostAddress::V4([192, 0, 2, 1].into()),
        siblings: 0,
        interfaces: vec![interface(PARENT, Link::Parent), interface(CHILD, Link::Child)],
        keys: Keys::one(key()),
        local: LocalDelivery {
            discovery: None,
            control: None,
            end_host_ports: [31_000, 32_767],
            shared_port: 30_041,
            is_on_loopback: false,
        },
        answers_per_second: 1,
        answers_burst: 1,
    };
    Router::new(&config).expect("a sound configuration")
}

/// A packet in transit from the parent to the child.
fn transit() -> Vec<u8> {
    let other = ForwardingKey::new(b"another AS's key");
    let mut segment = Segment::new(0x1111, TIME);
    segment.extend(&other, 63, 0, 1, &[]);
    segment.extend(&key(), 63, PARENT, CHILD, &[]);
    segment.extend(&other, 63, 2, 0, &[]);
    let path = PathBuilder::new().segment(&segment, 0..3, Direction::Construction).and_then(PathBuilder::build);
    let mut path = path.expect("three hops");
    path.meta.current_hop = 1;
    path.infos[0].seg_id = segment.beta(1);
    let header = Header {
        traffic_class: 0,
        flow_id: 1,
        next_header: next_header::UDP,
        dst: IsdAs::new(1, 3),
        src: IsdAs::new(1, 4),
        dst_host: HostAddress::V4([10, 0, 0, 1].into()),
        src_host: HostAddress::V4([10, 0, 0, 2].into()),
        path: Path::Standard(path),
    };
    Packet { header, payload: vec![5; 8] }.encode()
}

/// How many of `count` random MACs `router` accepts.
fn accepted(router: &mut Router, count: usize) -> usize {
    let good = transit();
    let now = Now { instant: Instant(1), unix: UnixTime(u64::from(TIME + 60) * 1_000_000) };
    let ingress = Ingress::External(PARENT);
    let mut first = good.clone();
    assert_eq!(router.process(&mut [Frame { octets: &mut first, ingress }], now)[0], Action::Forward(CHILD));
    let (mut packets, mut accepted, mut random) = (vec![good.clone(); BURST], 0, 42u64);
    for _ in 0..count.div_ceil(BURST) {
        for packet in &mut packets {
            packet.copy_from_slice(&good);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            packet[MAC..MAC + 6].copy_from_slice(&(random ^ random >> 29).to_be_bytes()[..6]);
        }
        let mut frames: Vec<Frame<'_>> = packets.iter_mut().map(|octets| Frame { octets, ingress }).collect();
        let actions = router.process(&mut frames, now);
        accepted += actions.iter().filter(|action| **action == Action::Forward(CHILD)).count();
    }
    accepted
}

/// Within three standard deviations: 1,526 +- 117 of 10^8.
fn forge(count: usize, router: &dyn Fn() -> Router) {
    let short = accepted(&mut router().with_16_bit_macs(), count) as f64;
    let expected = count as f64 / 65_536.0;
    assert!((short - expected).abs() <= 3.0 * expected.sqrt(), "{short} of {count}");
    assert_eq!(accepted(&mut router(), count), 0);
}

#[allow(clippy::disallowed_methods, reason = "a test's length is set by its environment")]
fn times(default: usize) -> usize {
    std::env::var("WAYLEAVE_FORGERIES").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

#[test]
fn sixteen_bits_let_one_forgery_in_65_536_pass_and_48_bits_none_in_lanes() {
    forge(times(2_000_000), &router);
}

#[test]
fn sixteen_bits_let_one_forgery_in_65_536_pass_and_48_bits_none_on_the_general_path() {
    forge(times(1_000_000), &|| router().without_lanes());
}

#[test]
#[ignore = "100 million forgeries take a minute"]
fn sixteen_bits_let_1526_of_100_million_forgeries_pass_and_48_bits_none() {
    forge(100_000_000, &router);
}

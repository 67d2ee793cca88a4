//! What the tests of the SCION router share: an AS with interfaces of every kind, and a router of it.

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::scion::delivery::LocalDelivery;
use wayleave_dataplane::scion::{Action, Config, Interface, Keys, Link, Owner, Router};
use wayleave_packet::scion::{ForwardingKey, HostAddress, IsdAs};

/// Unix seconds at which packets are valid unless a test says otherwise.
pub const TIME: u32 = 1_800_000_000;

pub const HERE: IsdAs = IsdAs(0x0001_ff00_0000_0001);
pub const CORE_1: u16 = 11;
pub const CORE_2: u16 = 12;
pub const CORE_SIBLING: u16 = 13;
pub const PARENT_1: u16 = 21;
pub const PARENT_2: u16 = 22;
pub const PARENT_SIBLING: u16 = 23;
pub const CHILD_1: u16 = 31;
pub const CHILD_2: u16 = 32;
pub const CHILD_SIBLING: u16 = 33;
pub const PEER_1: u16 = 41;
pub const PEER_2: u16 = 42;
pub const PEER_SIBLING: u16 = 43;

/// All interfaces: number, link, the sibling that has it.
pub const INTERFACES: [(u16, Link, Option<u16>); 12] = [
    (CORE_1, Link::Core, None),
    (CORE_2, Link::Core, None),
    (CORE_SIBLING, Link::Core, Some(0)),
    (PARENT_1, Link::Parent, None),
    (PARENT_2, Link::Parent, None),
    (PARENT_SIBLING, Link::Parent, Some(0)),
    (CHILD_1, Link::Child, None),
    (CHILD_2, Link::Child, None),
    (CHILD_SIBLING, Link::Child, Some(1)),
    (PEER_1, Link::Peer, None),
    (PEER_2, Link::Peer, None),
    (PEER_SIBLING, Link::Peer, Some(1)),
];

/// The octets of [`key`].
pub const KEY: [u8; 16] = *b"a forwarding key";

pub fn key() -> ForwardingKey {
    ForwardingKey::new(&KEY)
}

/// The AS behind `interface`.
pub fn neighbor(interface: u16) -> IsdAs {
    IsdAs::new(1, 0xff00_0000_0100 + u64::from(interface))
}

/// Hosts are reached at their own addresses, and the AS has a control service alone.
pub fn local() -> LocalDelivery {
    LocalDelivery {
        discovery: None,
        control: Some(([10, 0, 0, 9], 30_252).into()),
        end_host_ports: [31_000, 32_767],
        shared_port: 30_041,
        is_on_loopback: false,
    }
}

pub fn config() -> Config {
    let interface = |(id, link, sibling): (u16, Link, Option<u16>)| Interface {
        id,
        link,
        neighbor: neighbor(id),
        owner: sibling.map_or(Owner::This, Owner::Sibling),
    };
    Config {
        isd_as: HERE,
        address: HostAddress::V4([192, 0, 2, 1].into()),
        siblings: 2,
        interfaces: INTERFACES.map(interface).to_vec(),
        keys: Keys::one(key()),
        local: local(),
        answers_per_second: 1_000_000_000,
        answers_burst: 1_000_000,
    }
}

pub fn router() -> Router {
    Router::new(&config()).unwrap()
}

/// `offset` microseconds after [`TIME`].
pub fn at(offset: i64) -> Now {
    let unix = UnixTime((i64::from(TIME) * 1_000_000 + offset) as u64);
    Now { instant: Instant(unix.0 * 1_000), unix }
}

/// A minute after [`TIME`].
pub fn now() -> Now {
    at(60_000_000)
}

/// What `router` does with one packet, and the packet afterwards; if it is answered, the answer.
pub fn process(router: &mut Router, packet: &[u8], ingress: Ingress, now: Now) -> (Action, Vec<u8>) {
    let mut octets = packet.to_vec();
    let mut frames = [Frame { octets: &mut octets, ingress }];
    let action = router.process(&mut frames, now)[0];
    assert_eq!(frames[0].octets.len(), packet.len());
    let mut answers = router.answers();
    let answer = answers.next().map(<[u8]>::to_vec);
    assert_eq!((answer.is_some(), answers.next()), (matches!(action, Action::Answer(_)), None));
    if let Action::Drop(_) | Action::Answer(_) = action {
        assert_eq!(frames[0].octets, packet, "what goes no further stays as it came");
    }
    (action, answer.unwrap_or(octets))
}

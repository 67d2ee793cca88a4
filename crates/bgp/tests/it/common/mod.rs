//! Test drivers of a session: one session driven by hand, and two sessions joined by a wire.
#![allow(unreachable_pub, reason = "shared by the modules of one test binary")]

pub mod bad_bgp;
pub mod pair;

use std::net::Ipv4Addr;
use std::time::Duration;

use wayleave_bgp::session::{Config, ConnectionId, Ended, Input, Output, PeerAsn, Session, State};
use wayleave_bgp::{
    AsPathBuf, Attributes, Capability, Ipv6NextHop, Message, Nlri, Notification, Open, Origin, SessionParams,
    encode_updates,
};
use wayleave_core::{Afi, Asn, Instant, Machine, Now, Prefix, UnixTime};

pub const LOCAL: Asn = Asn(64500);
pub const PEER: Asn = Asn(64511);
pub const LOCAL_ID: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const PEER_ID: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// SplitMix64, for choices in tests.
pub struct Choice(pub u64);

impl Choice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

pub fn at(instant: Instant) -> Now {
    Now { instant, unix: UnixTime(instant.0 / 1_000) }
}

pub fn config() -> Config {
    Config::new(LOCAL, LOCAL_ID, PeerAsn::Exactly(PEER))
}

pub fn p(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// One session and its driver.
pub struct Rig {
    pub session: Session,
    pub now: Instant,
    pub connection: ConnectionId,
    next: u64,
}

impl Rig {
    pub fn new(config: Config) -> Self {
        let session = Session::new(config, 7);
        Self { session, now: Instant(1_000_000_000_000), connection: ConnectionId(0), next: 1 }
    }

    /// Brings a session into `state` by the shortest way.
    pub fn in_state(config: Config, state: State) -> Self {
        let mut rig = Rig::new(config);
        if state == State::Idle {
            return rig;
        }
        rig.give(Input::Start);
        if state == State::Active && !rig.session.config().passive {
            rig.give(Input::ConnectFailed { attempt: 1 });
        }
        if state >= State::OpenSent {
            rig.connect(!rig.session.config().passive);
        }
        if state >= State::OpenConfirm {
            rig.bytes(&peer_open());
        }
        if state >= State::Established {
            rig.bytes(&keepalive());
        }
        assert_eq!(rig.session.state(), state);
        rig
    }

    pub fn give(&mut self, input: Input) -> Vec<Output> {
        self.session.handle(input, at(self.now));
        self.drain()
    }

    /// A new connection, from now on the one that [`Rig::bytes`] means.
    pub fn connect(&mut self, outgoing: bool) -> Vec<Output> {
        self.connection = ConnectionId(self.next);
        self.next += 1;
        self.give(Input::Connected { connection: self.connection, outgoing })
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> Vec<Output> {
        self.give(Input::Bytes { connection: self.connection, bytes: bytes.to_vec() })
    }

    pub fn closed(&mut self) -> Vec<Output> {
        self.give(Input::Closed { connection: self.connection })
    }

    /// Lets time pass to `instant`, waking the session exactly at its deadlines.
    pub fn wait_until(&mut self, instant: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        while let Some(deadline) = self.session.deadline().filter(|&deadline| deadline <= instant) {
            self.now = self.now.max(deadline);
            self.session.handle_timeout(at(self.now));
            outputs.extend(self.drain());
        }
        self.now = instant;
        outputs
    }

    pub fn wait(&mut self, span: Duration) -> Vec<Output> {
        self.wait_until(self.now + span)
    }

    fn drain(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.session.poll()).collect()
    }
}

/// The NOTIFICATION among what was sent.
pub fn notification(outputs: &[Output]) -> Option<Notification> {
    sent(outputs).find_map(|message| match message {
        Message::Notification(notification) => Some(notification),
        _ => None,
    })
}

/// Code and subcode of the NOTIFICATION among what was sent.
pub fn notified(outputs: &[Output]) -> Option<(u8, u8)> {
    notification(outputs).map(|notification| (notification.code, notification.subcode))
}

/// The messages among what was sent.
pub fn sent(outputs: &[Output]) -> impl Iterator<Item = Message> {
    outputs.iter().filter_map(|output| match output {
        Output::Send { bytes, .. } => {
            Some(Message::decode(bytes, &SessionParams::new(PEER, LOCAL)).expect("what we send can be read").0)
        }
        _ => None,
    })
}

pub fn ended(outputs: &[Output]) -> Option<&Ended> {
    outputs.iter().find_map(|output| match output {
        Output::Down(ended) | Output::Failed(ended) => Some(ended),
        _ => None,
    })
}

/// An OPEN of the peer with every capability that matters to a test which does not set them.
pub fn open() -> Open {
    Open {
        asn: PEER,
        hold_time: 90,
        identifier: PEER_ID,
        capabilities: vec![
            Capability::unicast(Afi::Ipv4),
            Capability::unicast(Afi::Ipv6),
            Capability::RouteRefresh,
            Capability::EnhancedRouteRefresh,
            Capability::FourOctetAs(PEER),
            Capability::GracefulRestart { flags: 0, restart_time: 0, families: Vec::new() },
        ],
    }
}

pub fn encode(message: &Message) -> Vec<u8> {
    message.encode(&SessionParams::new(PEER, LOCAL)).expect("a short message")
}

pub fn peer_open() -> Vec<u8> {
    encode(&Message::Open(open()))
}

pub fn keepalive() -> Vec<u8> {
    encode(&Message::Keepalive)
}

/// A message with any header and body: `length` of `None` is the true one.
pub fn raw(marker: [u8; 16], length: Option<u16>, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = marker.to_vec();
    let length = length.unwrap_or(19 + body.len() as u16);
    message.extend_from_slice(&length.to_be_bytes());
    message.push(kind);
    message.extend_from_slice(body);
    message
}

/// An OPEN body as octets, to be bent out of shape.
pub fn open_body(version: u8, asn: u16, hold_time: u16, id: [u8; 4], parameters: &[u8]) -> Vec<u8> {
    let mut body = vec![version];
    body.extend_from_slice(&asn.to_be_bytes());
    body.extend_from_slice(&hold_time.to_be_bytes());
    body.extend_from_slice(&id);
    body.push(parameters.len() as u8);
    body.extend_from_slice(parameters);
    body
}

/// Attributes with a path through these ASes and a next hop for both families.
pub fn attributes(path: &[u32]) -> Attributes {
    let path: Vec<Asn> = path.iter().map(|&asn| Asn(asn)).collect();
    let next_hop = Ipv6NextHop { global: "2001:db8::1".parse().expect("an address"), link_local: None };
    Attributes::builder()
        .origin(Origin::Igp)
        .as_path(AsPathBuf::from_sequence(&path).as_path())
        .ipv4_next_hop(Ipv4Addr::new(192, 0, 2, 1))
        .ipv6_next_hop(Some(next_hop))
        .finish()
}

/// UPDATEs of the peer that announce these prefixes.
pub fn announce(prefixes: &[&str]) -> Vec<u8> {
    let announced: Vec<Nlri> = prefixes.iter().map(|text| Nlri::new(p(text))).collect();
    encode_updates(Some(&attributes(&[PEER.0])), &announced, &[], &SessionParams::new(PEER, LOCAL))
        .expect("routes that can be sent")
        .concat()
}

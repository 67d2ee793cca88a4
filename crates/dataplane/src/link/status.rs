//! What an operator sees of links.

use std::net::SocketAddr;
use std::time::Duration;

use wayleave_core::{IdentityKey, UnixTime};

/// Messages of all links since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    pub received: u64,
    pub sent: u64,
    /// Which are none.
    pub malformed: u64,
    /// Initiations without the MAC under our key, or by who is no neighbour.
    pub strangers: u64,
    /// Initiations that are not later than the last one of their sender, or too far ahead of our clock.
    pub stale: u64,
    /// Cookies that were asked for.
    pub cookies: u64,
    /// Initiations with a cookie beyond what is answered.
    pub busy: u64,
    /// Of no session, changed, repeated, or from the wrong address.
    pub refused: u64,
}

/// Packets and octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Volume {
    pub packets: u64,
    pub octets: u64,
}

impl Volume {
    pub(super) fn add(&mut self, packets: u64, octets: u64) {
        self.packets += packets;
        self.octets += octets;
    }
}

/// How a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The neighbour proved itself, and answers.
    Up,
    /// It was asked, and has not answered.
    Asked,
    /// It said that it stops, and has not come back.
    Stopped,
    /// It has to come to us: no address of it is known.
    Awaited,
}

/// How the neighbour's clock differed from ours when it answered last, by half a round trip at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Microseconds by which the neighbour's is ahead.
    pub ahead: i64,
    /// Microseconds by which that may be wrong.
    pub within: u64,
}

impl Clock {
    /// An answer that left at `time` by the neighbour's clock, and came `round_trip` after its question, at `now` by ours.
    pub(super) fn of(time: UnixTime, round_trip: Duration, now: UnixTime) -> Self {
        let within = round_trip.as_micros() / 2;
        let ahead = i128::from(time.0) + within as i128 - i128::from(now.0); // the half of a duration fits
        let ahead = ahead.clamp(i64::MIN.into(), i64::MAX.into());
        Self { ahead: ahead as i64, within: u64::try_from(within).unwrap_or(u64::MAX) } // clamped
    }
}

/// By what a link goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Udp,
    /// Over TLS on TCP, where UDP did not pass.
    Tls,
}

/// A link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    pub link: u16,
    pub identity: IdentityKey,
    pub state: State,
    /// Where the neighbour is.
    pub address: Option<SocketAddr>,
    /// The socket of the driver for that, where sessions may begin by UDP, and over TLS.
    pub socket: Option<usize>,
    pub endpoints: Vec<SocketAddr>,
    pub tls_endpoints: Vec<SocketAddr>,
    /// By what it is reached there.
    pub transport: Option<Transport>,
    /// How often the neighbour proved itself anew, and went to another address, since the start.
    pub begun: u64,
    pub moved: u64,
    /// When the present session began.
    pub handshake: Option<UnixTime>,
    /// Time since the neighbour's last message.
    pub heard: Option<Duration>,
    pub sent: Volume,
    pub received: Volume,
    pub round_trip: Option<Duration>,
    pub clock: Option<Clock>,
    /// Of a million packets that were sent lately, how many did not arrive.
    pub loss: Option<u32>,
    /// Where the neighbour sees this end.
    pub seen: Option<SocketAddr>,
    /// The endpoints that were asked last ([`super::Links::ask_endpoints`]), and how long the answer took of those that answered.
    pub reached: Vec<(SocketAddr, Option<Duration>)>,
    /// Octets of the largest datagram that passes.
    pub size: Option<u16>,
    /// Handshakes that were begun and not answered, one after the other.
    pub attempts: u32,
    /// Versions of the neighbour, if none of them is spoken here.
    pub other_versions: Option<(u8, u8)>,
}

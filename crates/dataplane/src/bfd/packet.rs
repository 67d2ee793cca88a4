//! Control packets (RFC 5880, section 4.1), without authentication.
//!
//! ```text
//! |Vers | Diag    |Sta|P|F|C|A|D|M| Detect Mult   | Length        |
//! |                      My Discriminator                         |
//! |                     Your Discriminator                        |
//! |                  Desired Min TX Interval                      |
//! |                  Required Min RX Interval                     |
//! |                Required Min Echo RX Interval                  |
//! ```

use std::num::NonZeroU32;

use thiserror::Error;

const VERSION: u8 = 1;
const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const INDEPENDENT: u8 = 0x08;
const AUTHENTICATED: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

wayleave_core::named! {
    /// A session's state (RFC 5880, section 4.1).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum State {
        /// Held down by its administrator.
        AdminDown = "admin-down",
        /// No packets arrive, or the other end receives none.
        Down = "down",
        /// Packets of the other end arrive, and it is down.
        Init = "init",
        /// Each end receives the packets of the other.
        Up = "up",
    }
}

/// Why the session's state changed last: a number of five bits (RFC 5880, section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Diagnostic(u8);

impl Diagnostic {
    /// No reason.
    pub const NONE: Self = Self(0);
    /// No packet arrived within the detection time.
    pub const TIME_EXPIRED: Self = Self(1);
    /// The other end reported that it is down.
    pub const NEIGHBOR_DOWN: Self = Self(3);

    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

/// A control packet. Intervals are in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ControlPacket {
    /// Why the sender's state last changed.
    pub diagnostic: Diagnostic,
    pub state: State,
    /// The sender waits for a packet with `is_final`.
    pub poll: bool,
    /// The packet answers one with `poll`.
    pub is_final: bool,
    /// The sender's forwarding goes on when its control plane fails.
    pub is_independent: bool,
    /// The sender wants no periodic packets.
    pub demand: bool,
    /// How many packets may be missed; never zero.
    pub detect_multiplier: u8,
    /// The sender's discriminator.
    pub mine: NonZeroU32,
    /// The receiver's discriminator, once the sender has received it.
    pub yours: Option<NonZeroU32>,
    /// The least interval at which the sender wants to send.
    pub desired_min_tx: u32,
    /// The least interval at which the sender can receive; zero if it wants no periodic packets.
    pub required_min_rx: u32,
    /// The same for echo packets; zero if it does not receive them.
    pub required_min_echo_rx: u32,
}

/// Why octets are not a control packet that may be processed (RFC 5880, section 6.8.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// Fewer octets than a packet has, or than its length field says.
    #[error("{have} octets where {need} are needed")]
    Truncated { need: usize, have: usize },
    /// Not version 1.
    #[error("version {0}")]
    Version(u8),
    /// A length field below the length of the fields.
    #[error("a length of {0}")]
    Length(u8),
    /// A detection multiplier of zero.
    #[error("no detection multiplier")]
    Multiplier,
    /// The multipoint bit, which is reserved.
    #[error("multipoint")]
    Multipoint,
    /// No discriminator of the sender, or none of the receiver in a state that needs one.
    #[error("no discriminator")]
    Discriminator,
    /// The packet is authenticated, which no session here is.
    #[error("authentication")]
    Authenticated,
}

impl ControlPacket {
    /// Octets of a packet without authentication.
    pub const LENGTH: usize = 24;

    /// Decodes a packet, with the checks that need no session. Octets behind the packet are ignored.
    ///
    /// # Errors
    /// The first reason for which it must be discarded, in the order of the RFC.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        let truncated = Malformed::Truncated { need: Self::LENGTH, have: octets.len() };
        let (fields, _) = octets.split_first_chunk::<{ Self::LENGTH }>().ok_or(truncated)?;
        let [first, flags, detect_multiplier, length, ..] = *fields;
        if first >> 5 != VERSION {
            return Err(Malformed::Version(first >> 5));
        }
        if usize::from(length) < Self::LENGTH {
            return Err(Malformed::Length(length));
        }
        if usize::from(length) > octets.len() {
            return Err(Malformed::Truncated { need: length.into(), have: octets.len() });
        }
        if detect_multiplier == 0 {
            return Err(Malformed::Multiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(Malformed::Multipoint);
        }
        let word = |at: usize| u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        let state = State::ALL[usize::from(flags >> 6)];
        let mine = NonZeroU32::new(word(4)).ok_or(Malformed::Discriminator)?;
        let yours = NonZeroU32::new(word(8));
        if yours.is_none() && matches!(state, State::Init | State::Up) {
            return Err(Malformed::Discriminator);
        }
        if flags & AUTHENTICATED != 0 {
            return Err(Malformed::Authenticated);
        }
        Ok(Self {
            diagnostic: Diagnostic(first & 0x1f),
            state,
            poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            is_independent: flags & INDEPENDENT != 0,
            demand: flags & DEMAND != 0,
            detect_multiplier,
            mine,
            yours,
            desired_min_tx: word(12),
            required_min_rx: word(16),
            required_min_echo_rx: word(20),
        })
    }

    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let mut out = [0; Self::LENGTH];
        out[0] = VERSION << 5 | self.diagnostic.0;
        out[1] = (self.state as u8) << 6
            | flag(self.poll, POLL)
            | flag(self.is_final, FINAL)
            | flag(self.is_independent, INDEPENDENT)
            | flag(self.demand, DEMAND);
        out[2] = self.detect_multiplier;
        out[3] = Self::LENGTH as u8;
        let words = [
            self.mine.get(),
            self.yours.map_or(0, NonZeroU32::get),
            self.desired_min_tx,
            self.required_min_rx,
            self.required_min_echo_rx,
        ];
        for (place, word) in out[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As RFC 5880, section 4.1, draws it: state Up, poll, multiplier 3, 200 and 300 milliseconds.
    const OCTETS: [u8; 24] =
        [0x23, 0xe0, 3, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 3, 0x0d, 0x40, 0, 4, 0x93, 0xe0, 0, 0, 0, 0];

    #[test]
    fn a_packet_is_read_as_the_rfc_draws_it_and_written_as_it_was_read() {
        let packet = ControlPacket::decode(&OCTETS).expect("sound");
        assert_eq!((packet.diagnostic, packet.state, packet.poll), (Diagnostic::NEIGHBOR_DOWN, State::Up, true));
        assert_eq!((packet.mine.get(), packet.yours.map(NonZeroU32::get)), (1, Some(2)));
        assert_eq!((packet.desired_min_tx, packet.required_min_rx, packet.detect_multiplier), (200_000, 300_000, 3));
        assert_eq!(packet.encode(), OCTETS);
        let longer = [&OCTETS[..], b"more"].concat();
        assert_eq!(ControlPacket::decode(&longer), Ok(packet));
    }

    #[test]
    fn what_the_rfc_discards_is_discarded() {
        let with = |at: usize, octet: u8| {
            let mut octets = OCTETS;
            octets[at] = octet;
            ControlPacket::decode(&octets)
        };
        for length in 0..24 {
            let truncated = Malformed::Truncated { need: 24, have: length };
            assert_eq!(ControlPacket::decode(&OCTETS[..length]), Err(truncated));
        }
        assert_eq!(with(0, 0x03), Err(Malformed::Version(0)));
        assert_eq!(with(3, 23), Err(Malformed::Length(23)));
        assert_eq!(with(3, 25), Err(Malformed::Truncated { need: 25, have: 24 }));
        assert_eq!(with(2, 0), Err(Malformed::Multiplier));
        assert_eq!(with(1, 0xc1), Err(Malformed::Multipoint));
        assert_eq!(with(1, 0xc4), Err(Malformed::Authenticated));
        assert_eq!(with(7, 0), Err(Malformed::Discriminator));
        // Without the receiver's discriminator only a session that is down may speak.
        for (state, is_sound) in [(0x00, true), (0x40, true), (0x80, false), (0xc0, false)] {
            let mut octets = OCTETS;
            (octets[1], octets[11]) = (state, 0);
            assert_eq!(ControlPacket::decode(&octets).is_ok(), is_sound, "{state:#x}");
        }
    }
}

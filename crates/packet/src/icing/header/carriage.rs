//! What carries ICING packets: UDP (paper, section 4.1), or Ethernet straight away.

use super::Malformed;

/// Destination port of UDP datagrams that hold one packet each.
pub const UDP_PORT: u16 = 49_254;

/// The Ethertype that IEEE 802 leaves for experiments (IEEE 802-2014 section 9.2.3, "local experimental Ethertype 1").
/// An ICING packet is longer than the least that a frame carries, so that no padding follows it.
pub const ETHERTYPE: u16 = 0x88b5;

/// An Ethernet II header in front of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ethernet {
    /// To whom.
    pub destination: [u8; 6],
    /// From whom.
    pub source: [u8; 6],
}

impl Ethernet {
    /// Octets of the header.
    pub const LENGTH: usize = 14;

    /// The header, and the packet behind it; `None` if the frame is of another Ethertype.
    ///
    /// # Errors
    /// If there are fewer octets than a header has.
    pub fn decode(frame: &[u8]) -> Result<Option<(Self, &[u8])>, Malformed> {
        let Some((header, packet)) = frame.split_first_chunk::<{ Self::LENGTH }>() else {
            return Err(Malformed::Truncated { need: Self::LENGTH, have: frame.len() });
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let is_icing = u16::from_be_bytes([t0, t1]) == ETHERTYPE;
        Ok(is_icing
            .then_some((Self { destination: [d0, d1, d2, d3, d4, d5], source: [s0, s1, s2, s3, s4, s5] }, packet)))
    }

    /// The octets of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut octets = [0; Self::LENGTH];
        octets[..6].copy_from_slice(&self.destination);
        octets[6..12].copy_from_slice(&self.source);
        octets[12..].copy_from_slice(&ETHERTYPE.to_be_bytes());
        octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_header_round_trips_and_other_ethertypes_are_not_ours() {
        let header = Ethernet { destination: [1, 2, 3, 4, 5, 6], source: [7, 8, 9, 10, 11, 12] };
        let mut frame = header.encode().to_vec();
        frame.extend(b"packet");
        assert_eq!(Ethernet::decode(&frame), Ok(Some((header, &b"packet"[..]))));
        frame[13] ^= 1;
        assert_eq!(Ethernet::decode(&frame), Ok(None));
        assert_eq!(Ethernet::decode(&frame[..13]), Err(Malformed::Truncated { need: 14, have: 13 }));
    }
}

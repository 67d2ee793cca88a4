//! Which inner packets a receiver takes: protocols and ports.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Protocols by name; ICMP's numbers of both families are one.
const NAMES: [(&str, u8); 3] = [("tcp", TCP), ("udp", UDP), ("icmp", ICMP)];

/// Packets of one protocol (IANA's numbers, ICMP of either family being 1), of TCP and UDP those to some ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InnerTraffic {
    protocol: u8,
    ports: RangeInclusive<u16>,
}

impl InnerTraffic {
    /// Whether it has packets of this protocol to this port; the port of a protocol without ports does not matter.
    #[must_use]
    pub fn has(&self, protocol: u8, port: u16) -> bool {
        let protocol = if protocol == ICMPV6 { ICMP } else { protocol };
        protocol == self.protocol && (!matches!(protocol, TCP | UDP) || self.ports.contains(&port))
    }

    /// The protocol and port if all its packets have the same; the port is 0 where there are no ports.
    #[must_use]
    pub fn one(&self) -> Option<(u8, u16)> {
        let (first, last) = (*self.ports.start(), *self.ports.end());
        match self.protocol {
            TCP | UDP => (first == last).then_some((self.protocol, first)),
            protocol => Some((protocol, 0)),
        }
    }
}

/// The text is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "expected inner traffic, such as \"tcp/22\", \"udp/5000-5010\", \"tcp\", \"icmp\" or the number of another protocol"
)]
pub struct ParseInnerTrafficError;

impl FromStr for InnerTraffic {
    type Err = ParseInnerTrafficError;

    /// Reads `PROTOCOL`, `PROTOCOL/PORT` or `PROTOCOL/FIRST-LAST`.
    fn from_str(text: &str) -> Result<Self, ParseInnerTrafficError> {
        let (name, ports) = text.split_once('/').map_or((text, None), |(name, ports)| (name, Some(ports)));
        let protocol = match NAMES.iter().find(|(known, _)| *known == name) {
            Some((_, protocol)) => *protocol,
            None => number(name)?,
        };
        let protocol = if protocol == ICMPV6 { ICMP } else { protocol };
        let ports = match ports {
            None => 0..=u16::MAX,
            Some(_) if !matches!(protocol, TCP | UDP) => return Err(ParseInnerTrafficError),
            Some(ports) => {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(ParseInnerTrafficError);
                }
                first..=last
            }
        };
        Ok(Self { protocol, ports })
    }
}

/// A number without a sign.
fn number<N: FromStr>(text: &str) -> Result<N, ParseInnerTrafficError> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or(ParseInnerTrafficError)
}

impl fmt::Display for InnerTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, protocol)| *protocol == self.protocol) {
            Some((name, _)) => f.write_str(name)?,
            None => write!(f, "{}", self.protocol)?,
        }
        match (*self.ports.start(), *self.ports.end()) {
            (0, u16::MAX) => Ok(()),
            (first, last) if first == last => write!(f, "/{first}"),
            (first, last) => write!(f, "/{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_has_its_packets_alone() {
        for text in ["tcp/22", "udp/5000-5010", "tcp", "icmp", "47", "tcp/0-1"] {
            assert_eq!(text.parse::<InnerTraffic>().map(|traffic| traffic.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "/",
            "tcp/",
            "tcp/x",
            "tcp/+1",
            "tcp/2-1",
            "tcp/65536",
            "icmp/8",
            "256",
            "-1",
            "TCP",
            "47/1",
            "tcp/1-2-3",
            "tcp/ 1",
        ] {
            assert_eq!(text.parse::<InnerTraffic>(), Err(ParseInnerTrafficError), "{text:?}");
        }
        let traffic = |text: &str| text.parse::<InnerTraffic>().expect(text);
        assert!(traffic("tcp/22").has(6, 22) && !traffic("tcp/22").has(6, 23) && !traffic("tcp/22").has(17, 22));
        assert!(traffic("udp/5-7").has(17, 5) && traffic("udp/5-7").has(17, 7) && !traffic("udp/5-7").has(17, 8));
        assert!(traffic("icmp").has(1, 9) && traffic("icmp").has(58, 9) && traffic("58").has(1, 0));
        assert!(traffic("47").has(47, 0) && !traffic("47").has(6, 0));
        assert_eq!(traffic("6/22"), traffic("tcp/22"));
    }
}

//! The messages that a monitored router sends a station (RFC 7854 section 4, RFC 8671 sections 4 and 6).

use std::net::{IpAddr, SocketAddr};

use wayleave_core::UnixTime;

use super::{COMMON_HEADER, Peer, Table, VERSION};
use crate::{Message, Notification, SessionParams};

const ROUTE_MONITORING: u8 = 0;
const STATISTICS: u8 = 1;
const PEER_DOWN: u8 = 2;
const PEER_UP: u8 = 3;
const INITIATION: u8 = 4;
const TERMINATION: u8 = 5;

/// Routes in the Adj-RIBs-In (RFC 7854 section 4.8).
const ROUTES_IN: u16 = 7;
/// UPDATEs whose routes were treated as withdrawn.
const TREATED_AS_WITHDRAW: u16 = 11;
/// Routes in the Adj-RIBs-Out, after the export policy (RFC 8671 section 6.2).
const ROUTES_OUT: u16 = 15;

/// Octets of a text of an Initiation message, at most: our own limit.
const MAX_TEXT: usize = 1_024;

/// Why a session ended (RFC 7854 section 4.9).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Down {
    /// Reason 1: the router ended it with this NOTIFICATION.
    Sent(Notification),
    /// Reason 2: the router ended it without one, for this event of its state machine; 0 if none fits.
    Event(u16),
    /// Reason 3: the peer ended it with this NOTIFICATION.
    Received(Notification),
    /// Reason 4: the peer, or the network, ended it without one.
    Lost,
}

/// What a Statistics Report has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Statistics {
    pub(super) routes_in: u64,
    pub(super) routes_out: u64,
    pub(super) treated_as_withdraw: u32,
}

/// The first message of a connection: what the router is, `sysDescr`, and its name, `sysName`.
pub(super) fn initiation(description: &str, name: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, text) in [(1, description), (2, name)] {
        put_information(&mut body, kind, &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
    }
    message(INITIATION, &body)
}

/// The last message of a connection that is closed because the router stops (reason 0).
pub(super) fn termination() -> Vec<u8> {
    let mut body = Vec::new();
    put_information(&mut body, 1, &[0, 0]);
    message(TERMINATION, &body)
}

/// A session is up. `opens` are the OPEN that the router sent and the one that it received, header included.
pub(super) fn peer_up(
    peer: &Peer,
    time: UnixTime,
    local: SocketAddr,
    remote_port: u16,
    opens: &[Vec<u8>; 2],
) -> Vec<u8> {
    let mut body = header(peer, time);
    put_address(&mut body, local.ip());
    body.extend_from_slice(&local.port().to_be_bytes());
    body.extend_from_slice(&remote_port.to_be_bytes());
    opens.iter().for_each(|open| body.extend_from_slice(open));
    message(PEER_UP, &body)
}

/// A session is down.
pub(super) fn peer_down(peer: &Peer, time: UnixTime, down: &Down) -> Vec<u8> {
    let mut body = header(peer, time);
    match down {
        Down::Sent(notification) => put_notification(&mut body, 1, notification),
        Down::Event(event) => {
            body.push(2);
            body.extend_from_slice(&event.to_be_bytes());
        }
        Down::Received(notification) => put_notification(&mut body, 3, notification),
        Down::Lost => body.push(4),
    }
    message(PEER_DOWN, &body)
}

/// An UPDATE, header included, of the table that `peer` names.
pub(super) fn route_monitoring(peer: &Peer, time: UnixTime, update: &[u8]) -> Vec<u8> {
    let mut body = header(peer, time);
    body.extend_from_slice(update);
    message(ROUTE_MONITORING, &body)
}

/// A Statistics Report.
pub(super) fn statistics(peer: &Peer, time: UnixTime, counts: Statistics) -> Vec<u8> {
    let mut body = header(peer, time);
    body.extend_from_slice(&3u32.to_be_bytes());
    put_information(&mut body, ROUTES_IN, &counts.routes_in.to_be_bytes());
    put_information(&mut body, TREATED_AS_WITHDRAW, &counts.treated_as_withdraw.to_be_bytes());
    put_information(&mut body, ROUTES_OUT, &counts.routes_out.to_be_bytes());
    message(STATISTICS, &body)
}

/// The common header (RFC 7854 section 4.1) before `body`.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(COMMON_HEADER + body.len()).expect("two BGP messages at most, and short texts");
    let mut octets = vec![VERSION];
    octets.extend_from_slice(&length.to_be_bytes());
    octets.push(kind);
    octets.extend_from_slice(body);
    octets
}

/// The header before what is said of a peer (RFC 7854 section 4.2). AS numbers in UPDATEs are of four octets: flag A is off.
fn header(peer: &Peer, time: UnixTime) -> Vec<u8> {
    let (is_out, is_post_policy) = match peer.table {
        Table::AdjRibIn { post_policy } => (false, post_policy),
        Table::AdjRibOut { post_policy } => (true, post_policy),
        Table::LocRib => (false, false),
    };
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(peer.address.is_ipv6(), 0x80) | flag(is_post_policy, 0x40) | flag(is_out, 0x10);
    let kind = if peer.table == Table::LocRib { 3 } else { 0 };
    let mut octets = vec![kind, flags];
    octets.extend_from_slice(&peer.distinguisher.to_be_bytes());
    put_address(&mut octets, peer.address);
    octets.extend_from_slice(&peer.asn.0.to_be_bytes());
    octets.extend_from_slice(&peer.identifier.octets());
    let seconds = u32::try_from(time.secs()).unwrap_or(u32::MAX); // until 2106
    octets.extend_from_slice(&seconds.to_be_bytes());
    let microseconds = u32::try_from(time.0 % 1_000_000).expect("less than a million");
    octets.extend_from_slice(&microseconds.to_be_bytes());
    octets
}

/// An address in sixteen octets, one of IPv4 in the last four.
fn put_address(octets: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            octets.extend_from_slice(&[0; 12]);
            octets.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => octets.extend_from_slice(&address.octets()),
    }
}

fn put_notification(body: &mut Vec<u8>, reason: u8, notification: &Notification) {
    body.push(reason);
    // Its data are cut to what a message holds, so that nothing can be too long.
    let any = SessionParams::new(wayleave_core::Asn(0), wayleave_core::Asn(0));
    body.extend(Message::Notification(notification.clone()).encode(&any).unwrap_or_default());
}

/// A type, a length and a value (RFC 7854 section 4.4).
fn put_information(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len()).expect("numbers, and texts of bounded length");
    body.extend_from_slice(&kind.to_be_bytes());
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use wayleave_core::{Afi, Asn};

    use super::*;
    use crate::end_of_rib;

    /// Seconds and microseconds.
    const TIME: UnixTime = UnixTime(0x0102_0304 * 1_000_000 + 5);

    fn peer(table: Table) -> Peer {
        Peer {
            table,
            distinguisher: 0,
            address: [192, 0, 2, 1].into(),
            asn: Asn(70_000),
            identifier: [10, 0, 0, 1].into(),
            two_octet_as: false,
        }
    }

    /// Section 4.2, written by hand.
    fn header_of(flags: u8) -> Vec<u8> {
        let mut octets = vec![0, flags, 0, 0, 0, 0, 0, 0, 0, 0]; // peer type, flags, distinguisher
        octets.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
        octets.extend_from_slice(&[0x00, 0x01, 0x11, 0x70]); // AS 70000
        octets.extend_from_slice(&[10, 0, 0, 1]);
        octets.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 5]);
        octets
    }

    #[test]
    fn messages_about_the_connection_have_the_octets_of_rfc_7854() {
        let expected = [3, 0, 0, 0, 17, 4, 0, 1, 0, 1, b'w', 0, 2, 0, 2, b'a', b'b'];
        assert_eq!(initiation("w", "ab"), expected);
        assert_eq!(termination(), [3, 0, 0, 0, 12, 5, 0, 1, 0, 2, 0, 0]);
        let long = initiation("w", &"ä".repeat(MAX_TEXT));
        assert_eq!(long.len(), 6 + 5 + 4 + MAX_TEXT, "cut between two letters");
    }

    #[test]
    fn the_flags_say_which_table_a_route_is_of() {
        let update = end_of_rib(Afi::Ipv4);
        for (table, flags) in [
            (Table::AdjRibIn { post_policy: false }, 0x00),
            (Table::AdjRibIn { post_policy: true }, 0x40),
            (Table::AdjRibOut { post_policy: false }, 0x10),
            (Table::AdjRibOut { post_policy: true }, 0x50),
        ] {
            // 6 octets of the common header, 42 of the peer's, 23 of the UPDATE.
            let expected = [vec![3, 0, 0, 0, 71, 0], header_of(flags), update.clone()].concat();
            assert_eq!(route_monitoring(&peer(table), TIME, &update), expected, "{table:?}");
        }
        let ipv6 = Peer {
            address: [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].into(),
            ..peer(Table::AdjRibIn { post_policy: false })
        };
        let octets = route_monitoring(&ipv6, TIME, &update);
        assert_eq!((octets[7], &octets[16..20]), (0x80, &[0x20, 1, 0xd, 0xb8][..]));
    }

    #[test]
    fn a_session_that_comes_and_goes_has_the_octets_of_rfc_7854() {
        let peer = peer(Table::AdjRibIn { post_policy: false });
        let local = "192.0.2.101:179".parse().expect("an address");
        let up = peer_up(&peer, TIME, local, 40_000, &[vec![1, 2], vec![3]]);
        let mut expected = [vec![3, 0, 0, 0, 71, 3], header_of(0)].concat();
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 101]);
        expected.extend_from_slice(&[0, 179, 0x9c, 0x40, 1, 2, 3]);
        assert_eq!(up, expected);
        let cease = Notification::new(6, 4);
        let mut notification = vec![0xff; 16];
        notification.extend_from_slice(&[0, 21, 3, 6, 4]);
        for (down, body) in [
            (Down::Sent(cease.clone()), [vec![1], notification.clone()].concat()),
            (Down::Event(18), vec![2, 0, 18]),
            (Down::Received(cease), [vec![3], notification].concat()),
            (Down::Lost, vec![4]),
        ] {
            let length = u8::try_from(48 + body.len()).expect("short");
            let expected = [vec![3, 0, 0, 0, length, 2], header_of(0), body].concat();
            assert_eq!(peer_down(&peer, TIME, &down), expected, "{down:?}");
        }
    }

    #[test]
    fn statistics_are_two_gauges_and_a_counter() {
        let counts = Statistics { routes_in: 5, routes_out: 258, treated_as_withdraw: 2 };
        let mut expected = [vec![3, 0, 0, 0, 84, 1], header_of(0), vec![0, 0, 0, 3]].concat();
        expected.extend_from_slice(&[0, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5]);
        expected.extend_from_slice(&[0, 11, 0, 4, 0, 0, 0, 2]);
        expected.extend_from_slice(&[0, 15, 0, 8, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(statistics(&peer(Table::AdjRibIn { post_policy: false }), TIME, counts), expected);
    }
}

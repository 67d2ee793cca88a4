//! Messages octet for octet, and what a NOTIFICATION says of bad ones (RFC 4271 sections 6.1 and 6.2).
//!
//! BGP-02 to 07: messages octet for octet, one by one in a stream: as RFC 4271 draws them.
//! BGP-12: an UPDATE above 4,096 octets with and without extended messages: only with the capability; nothing too long
//! goes out.
//! BGP-14: markers, lengths and types of a header: refused as soon as it is there.

use std::net::Ipv4Addr;

use wayleave_bgp::notification::{cease, code};
use wayleave_bgp::{
    AddPathEntry, AddPathMode, Capability, GracefulRestartFamily, LongLivedFamily, Message, MessageError, Notification,
    Open, RefreshKind, RouteRefresh, SessionParams, frame,
};
use wayleave_core::{Afi, Asn};

fn params() -> SessionParams {
    SessionParams::new(Asn(64_496), Asn(64_497))
}

/// A message of `kind` around `body`.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut octets = vec![0xff; 16];
    octets.extend_from_slice(&((body.len() + 19) as u16).to_be_bytes());
    octets.push(kind);
    octets.extend_from_slice(body);
    octets
}

type Refusal<'a> = (u8, u8, &'a [u8]);

/// Code, subcode and data of the NOTIFICATION that `octets` deserve.
fn refusal(octets: &[u8], params: &SessionParams) -> (u8, u8, Vec<u8>) {
    match Message::decode(octets, params) {
        Err(MessageError::Peer(sent)) => (sent.code, sent.subcode, sent.data),
        other => panic!("{other:?}"),
    }
}

fn open() -> Open {
    Open {
        asn: Asn(64_497),
        hold_time: 90,
        identifier: Ipv4Addr::new(192, 0, 2, 1),
        capabilities: vec![Capability::unicast(Afi::Ipv4), Capability::FourOctetAs(Asn(64_497))],
    }
}

/// An OPEN with these optional parameters, length included.
fn open_with(parameters: &[u8]) -> Vec<u8> {
    let mut body = vec![4, 0xfb, 0xf1, 0, 90, 192, 0, 2, 1];
    body.extend_from_slice(parameters);
    message(1, &body)
}

#[test]
fn a_keepalive_is_its_header() {
    let octets = Message::Keepalive.encode(&params()).unwrap();
    assert_eq!(octets, message(4, &[]));
    assert_eq!(Message::decode(&octets, &params()), Ok((Message::Keepalive, &[][..])));
}

#[test]
fn an_open_is_written_as_rfc_4271_draws_it() {
    let octets = Message::Open(open()).encode(&params()).unwrap();
    let expected = open_with(&[14, 2, 12, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0xfb, 0xf1]);
    assert_eq!(octets, expected);
    assert_eq!(Message::decode(&octets, &params()), Ok((Message::Open(open()), &[][..])));
}

#[test]
fn a_four_octet_as_is_in_the_capability_and_as_trans_in_the_field() {
    let opened = Open { asn: Asn(70_000), capabilities: vec![Capability::FourOctetAs(Asn(70_000))], ..open() };
    let octets = Message::Open(opened.clone()).encode(&params()).unwrap();
    assert_eq!(octets[20..22], 23_456u16.to_be_bytes());
    assert_eq!(Message::decode(&octets, &params()), Ok((Message::Open(opened), &[][..])));
}

#[test]
fn every_capability_comes_back_as_it_was_sent() {
    let capabilities = vec![
        Capability::unicast(Afi::Ipv4),
        Capability::unicast(Afi::Ipv6),
        Capability::RouteRefresh,
        Capability::EnhancedRouteRefresh,
        Capability::ExtendedMessage,
        Capability::Role(2),
        Capability::GracefulRestart {
            flags: 8,
            restart_time: 4_095,
            families: vec![GracefulRestartFamily { afi: 2, safi: 1, flags: 0x80 }],
        },
        Capability::FourOctetAs(Asn(64_497)),
        Capability::AddPath(vec![AddPathEntry { afi: 1, safi: 1, mode: AddPathMode::Both }]),
        Capability::LongLivedGracefulRestart(vec![LongLivedFamily {
            afi: 2,
            safi: 1,
            flags: 0x80,
            stale_time: 0xff_ffff,
        }]),
        Capability::Unknown { code: 200, value: vec![1, 2, 3] },
        Capability::Unknown { code: 200, value: vec![4] },
    ];
    let opened = Open { capabilities, ..open() };
    let octets = Message::Open(opened.clone()).encode(&params()).unwrap();
    let Ok((Message::Open(decoded), [])) = Message::decode(&octets, &params()) else { panic!("an OPEN") };
    assert_eq!(decoded, opened);
    assert!(decoded.has_family(Afi::Ipv6) && decoded.has_four_octet_as());
    assert_eq!((decoded.add_path(Afi::Ipv4), decoded.add_path(Afi::Ipv6)), (Some(AddPathMode::Both), None));
}

#[test]
fn capabilities_of_restarts_paths_and_long_messages_are_written_as_their_rfcs_draw_them() {
    let families = vec![GracefulRestartFamily { afi: 1, safi: 1, flags: 0x80 }];
    let long_lived = |families| Capability::LongLivedGracefulRestart(families);
    let paths = |afi, mode| AddPathEntry { afi, safi: 1, mode };
    let day = LongLivedFamily { afi: 1, safi: 1, flags: 0x80, stale_time: 86_400 };
    for (capability, octets) in [
        // RFC 8654 section 3.
        (Capability::ExtendedMessage, &[6, 0][..]),
        // RFC 4724 section 3 with the N bit of RFC 8538 section 2; 120 seconds.
        (Capability::GracefulRestart { flags: 4, restart_time: 120, families }, &[64, 6, 0x40, 120, 0, 1, 1, 0x80]),
        // RFC 7911 section 4.
        (
            Capability::AddPath(vec![paths(1, AddPathMode::Send), paths(2, AddPathMode::Both)]),
            &[69, 8, 0, 1, 1, 2, 0, 2, 1, 3],
        ),
        // RFC 9494 section 3.1: three octets of seconds.
        (long_lived(vec![day]), &[71, 7, 0, 1, 1, 0x80, 1, 0x51, 0x80]),
        (long_lived(vec![]), &[71, 0]),
    ] {
        let mut written = Vec::new();
        capability.encode(&mut written);
        assert_eq!(written, octets, "{capability:?}");
        assert_eq!(Capability::decode(octets), Some((capability, &[][..])));
    }
    let odd = Capability::Unknown { code: 71, value: vec![0; 6] };
    assert_eq!(Capability::decode(&[71, 6, 0, 0, 0, 0, 0, 0]), Some((odd, &[][..])), "it counts for nothing");
}

#[test]
fn without_a_family_an_open_means_ipv4() {
    let opened = Open { capabilities: vec![Capability::RouteRefresh], ..open() };
    assert!(opened.has_family(Afi::Ipv4) && !opened.has_family(Afi::Ipv6));
}

#[test]
fn many_capabilities_take_the_extended_form() {
    let long = |code| Capability::Unknown { code, value: vec![code; 200] };
    let opened = Open { capabilities: vec![long(200), long(201)], ..open() };
    let octets = Message::Open(opened.clone()).encode(&params()).unwrap();
    assert_eq!(octets[28..30], [255, 255]);
    assert_eq!(Message::decode(&octets, &params()), Ok((Message::Open(opened), &[][..])));
    let opened = Open { capabilities: (0..40).map(|_| long(202)).collect(), ..open() };
    let octets = Message::Open(opened).encode(&params()).unwrap();
    assert!(octets.len() <= 4_096);
    assert!(matches!(Message::decode(&octets, &params()), Ok((Message::Open(_), []))));
}

#[test]
fn a_bad_open_is_refused_with_its_subcode() {
    let with = |at: usize, octets: &[u8]| {
        let mut message = open_with(&[0]);
        message[at..at + octets.len()].copy_from_slice(octets);
        message
    };
    let mut no_asn = open_with(&[8, 2, 6, 65, 4, 0, 0, 0xfb, 0xf1]);
    no_asn[20..22].fill(0);
    let table: [(&str, Vec<u8>, Refusal<'_>); 22] = [
        ("version 3", with(19, &[3]), (2, 1, &[0, 4])),
        ("AS 0", with(20, &[0, 0]), (2, 2, &[])),
        ("AS 0 beside a capability", no_asn, (2, 2, &[])),
        ("hold time 1", with(22, &[0, 1]), (2, 6, &[])),
        ("hold time 2", with(22, &[0, 2]), (2, 6, &[])),
        ("identifier 0", with(24, &[0; 4]), (2, 3, &[])),
        ("parameters shorter than their length", open_with(&[4, 2, 2]), (2, 0, &[])),
        ("octets behind the parameters", open_with(&[0, 0]), (2, 0, &[])),
        ("a parameter behind the parameters", open_with(&[0, 2, 0]), (2, 0, &[])),
        ("a parameter beyond the parameters", open_with(&[2, 2, 4]), (2, 0, &[])),
        ("one octet of a parameter", open_with(&[1, 2]), (2, 0, &[])),
        ("a parameter that is no capability", open_with(&[2, 1, 0]), (2, 4, &[])),
        ("one octet of a capability", open_with(&[3, 2, 1, 1]), (2, 0, &[])),
        ("a capability beyond its parameter", open_with(&[4, 2, 2, 200, 4]), (2, 0, &[])),
        ("multiprotocol of three octets", open_with(&[7, 2, 5, 1, 3, 0, 1, 0]), (2, 0, &[])),
        ("four-octet AS of two octets", open_with(&[6, 2, 4, 65, 2, 0xfb, 0xf1]), (2, 0, &[])),
        ("four-octet AS 0", open_with(&[8, 2, 6, 65, 4, 0, 0, 0, 0]), (2, 2, &[])),
        ("route refresh with a value", open_with(&[5, 2, 3, 2, 1, 0]), (2, 0, &[])),
        ("role of two octets", open_with(&[6, 2, 4, 9, 2, 0, 0]), (2, 0, &[])),
        ("graceful restart of one octet", open_with(&[5, 2, 3, 64, 1, 0]), (2, 0, &[])),
        ("ADD-PATH of three octets", open_with(&[7, 2, 5, 69, 3, 0, 1, 1]), (2, 0, &[])),
        ("extended parameters cut short", open_with(&[255, 255, 0]), (2, 0, &[])),
    ];
    for (name, octets, (code, subcode, data)) in table {
        assert_eq!(refusal(&octets, &params()), (code, subcode, data.to_vec()), "{name}");
    }
}

#[test]
fn a_bad_header_is_refused_as_soon_as_it_is_there() {
    let mut header = message(4, &[]);
    let put = |header: &mut Vec<u8>, length: u16, kind: u8| {
        header[16..18].copy_from_slice(&length.to_be_bytes());
        header[18] = kind;
    };
    for (length, kind) in
        [(0, 4), (18, 4), (20, 4), (4_097, 2), (65_535, 2), (28, 1), (4_097, 1), (22, 2), (20, 3), (4_097, 9)]
    {
        put(&mut header, length, kind);
        assert_eq!(refusal(&header, &params()), (1, 2, length.to_be_bytes().to_vec()), "{length} {kind}");
    }
    for kind in [0, 6, 255] {
        put(&mut header, 19, kind);
        assert_eq!(refusal(&header, &params()), (1, 3, vec![kind]));
    }
    put(&mut header, 19, 4);
    for at in 0..16 {
        header[at] = 0xfe;
        assert_eq!(refusal(&header, &params()), (1, 1, vec![]));
        header[at] = 0xff;
    }
}

#[test]
fn only_updates_grow_beyond_4096_octets_with_the_extended_message_capability() {
    let extended = SessionParams { extended_message: true, ..params() };
    let mut header = message(2, &[]);
    header[16..18].copy_from_slice(&65_535u16.to_be_bytes());
    assert_eq!(frame(&header, &extended), Err(MessageError::Incomplete { need: 65_535 }));
    header[18] = 1;
    assert_eq!(refusal(&header, &extended), (1, 2, vec![255, 255]));
}

#[test]
fn a_stream_gives_its_messages_one_by_one() {
    let stream = [message(4, &[]), message(2, &[0; 4]), message(4, &[])[..10].to_vec()].concat();
    let (first, rest) = frame(&stream, &params()).unwrap();
    assert_eq!(first.body(), []);
    let (second, rest) = frame(rest, &params()).unwrap();
    assert_eq!(second.body(), [0; 4]);
    assert_eq!(frame(rest, &params()), Err(MessageError::Incomplete { need: 19 }));
}

#[test]
fn a_notification_about_an_update_names_the_attribute_and_the_family() {
    let of = |subcode, data: &[u8]| Notification::with_data(code::UPDATE, subcode, data.to_vec()).to_string();
    // An IPv6 next hop for IPv4 routes.
    let reach = [&[0x80, 14, 21, 0, 1, 1, 16][..], &[0x20; 16], &[0]].concat();
    assert_eq!(
        of(9, &reach),
        "UPDATE message error: optional attribute error (3/9): MP_REACH_NLRI (14) of IPv4 unicast with a next hop of 16 octets"
    );
    assert!(of(9, &[0x80, 15, 3, 0, 25, 65]).ends_with("MP_UNREACH_NLRI (15) of AFI 25 SAFI 65"));
    assert!(of(6, &[0x40, 1, 1, 9]).ends_with("(3/6): ORIGIN (1)"));
    assert!(of(3, &[2]).ends_with("(3/3): AS_PATH (2)"));
    for data in [&[][..], &[0x80], &[0x80, 14, 200, 0]] {
        assert!(of(9, data).ends_with("(3/9)"), "{data:?}");
    }
}

#[test]
fn a_notification_carries_its_data_and_its_name() {
    let sent = Notification::shutdown(cease::ADMINISTRATIVE_SHUTDOWN, "back at noon");
    let octets = Message::Notification(sent.clone()).encode(&params()).unwrap();
    let Ok((Message::Notification(got), [])) = Message::decode(&octets, &params()) else { panic!("a NOTIFICATION") };
    assert_eq!(got, sent);
    assert_eq!(got.shutdown_text(), Some("back at noon"));
    assert_eq!(got.to_string(), "cease: administrative shutdown (6/2): \"back at noon\"");
    assert_eq!(Notification::new(99, 7).to_string(), "unknown error (99/7)");
    // RFC 8538 section 3: a hard reset has another NOTIFICATION within.
    let hard = |data: &[u8]| Notification::with_data(code::CEASE, cease::HARD_RESET, data.to_vec()).to_string();
    assert_eq!(hard(b"\x06\x02\x05night"), "cease: hard reset (6/9): cease: administrative shutdown (6/2): \"night\"");
    assert_eq!(hard(&[6, 9, 6, 2]), "cease: hard reset (6/9)");
    assert_eq!(hard(&[]), "cease: hard reset (6/9)");
    // A text that cannot be read is not passed over.
    let shutdown = |data: &[u8]| Notification::with_data(code::CEASE, 2, data.to_vec()).to_string();
    assert!(shutdown(&[9, b'a']).ends_with("(6/2): a text that cannot be read, 0x0961"), "{}", shutdown(&[9, b'a']));
    assert!(shutdown(&[2, 0xff, 0xfe]).ends_with("0x02fffe") && shutdown(&[0]).ends_with("(6/2)"));
    assert!(shutdown(&[255; 200]).ends_with("ff.."));
    // What would change a terminal or the order of letters is escaped: a line's end, an escape sequence, right-to-left override.
    let hostile = Notification::shutdown(cease::ADMINISTRATIVE_SHUTDOWN, "a\n\u{1b}[2J\u{202e}\u{e4}");
    assert!(
        hostile.to_string().ends_with(r#": "a\n\u{1b}[2J\u{202e}\u{e4}""#.replace(r"\u{e4}", "\u{e4}").as_str()),
        "{hostile}"
    );
    let long = Notification::shutdown(cease::ADMINISTRATIVE_RESET, &"é".repeat(200));
    assert_eq!(long.shutdown_text().map(str::len), Some(254));
    assert_eq!(refusal(&message(3, &[6]), &params()).0, code::MESSAGE_HEADER);
}

#[test]
fn the_data_of_a_notification_is_cut_to_the_message() {
    let sent = Notification::with_data(code::UPDATE, 9, vec![7; 70_000]);
    let octets = Message::Notification(sent).encode(&params()).unwrap();
    assert_eq!(octets.len(), 4_096);
    assert!(Message::decode(&octets, &params()).is_ok());
}

#[test]
fn a_route_refresh_keeps_families_and_kinds_that_are_unknown() {
    for (body, kind, family) in [
        ([0, 1, 0, 1], RefreshKind::Request, Some(Afi::Ipv4)),
        ([0, 2, 1, 1], RefreshKind::Begin, Some(Afi::Ipv6)),
        ([0, 2, 2, 1], RefreshKind::End, Some(Afi::Ipv6)),
        ([0, 25, 7, 65], RefreshKind::Other(7), None),
    ] {
        let octets = message(5, &body);
        let Ok((Message::RouteRefresh(refresh), [])) = Message::decode(&octets, &params()) else { panic!("{body:?}") };
        assert_eq!((refresh.kind, refresh.family()), (kind, family));
        assert_eq!(Message::RouteRefresh(refresh).encode(&params()).unwrap(), octets);
    }
    let short = message(5, &[0, 1, 0]);
    assert_eq!(refusal(&short, &params()), (7, 1, short.clone()));
    assert_eq!(RouteRefresh::request(Afi::Ipv6).family(), Some(Afi::Ipv6));
}

//! Any octets as a line, an invitation, an order, an acknowledgement, an answer, a change, a message between router and key server, and as a message to a key server and to a look-up: a
//! refusal, or something that has this encoding and no other; no answer longer than its question, no
//! secret, and the same answer whether a look-up is read in place or decoded.
#![no_main]

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use wayleave_control::capability::{
    Acknowledgement, Answer, ApiUrl, Change, ChannelMessage, Client, Credential, INVITATION_PREFIX, InvitationLine,
    KeyServer, KeyServerConfig, Lookup, LookupConfig, LookupInput, LookupOutput, LookupPolicy, NameServer, ProviderKey,
    Served, SignedRequest, Statement, Transport,
};
use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;

const LINE: &str = "wayleave-cap-AQprZXlzLnRlc3Q";

thread_local! {
    /// One that reads look-ups in place, and one that decodes everything.
    static SERVERS: RefCell<[KeyServer; 2]> = RefCell::new([server(), server()]);
}

fn server() -> KeyServer {
    let config = KeyServerConfig {
        zone: "keys.test".parse().expect("a zone"),
        name_servers: vec![NameServer { name: "ns.keys.test".into(), addresses: vec![[192, 0, 2, 1].into()] }],
        provider: ProviderKey::new(Seed::new([2; 32])),
        signer: SigningKey::from_seed(&Seed::new([1; 32])),
        waypoints: HashMap::new(),
        policy: LookupPolicy::default(),
        responses_per_second: 0,
    };
    KeyServer::new(config).expect("a name")
}

/// A credential that follows from nothing that is fuzzed.
fn credential() -> Credential {
    use wayleave_control::capability::Terms;
    use wayleave_packet::platypus::header::{Interval, Principal, Width};
    let terms = Terms {
        waypoint: [198, 51, 100, 1].into(),
        principal: Principal::new(7).expect("24 bits"),
        interval: Interval::new(12).expect("in range"),
        width: Width::Full,
        delegation: None,
    };
    let key = ProviderKey::new(Seed::new([2; 32])).account(terms.principal, 0).master(&terms);
    Credential { zone: "keys.test".parse().expect("a zone"), terms, key }
}

fuzz_target!(|data: &[u8]| {
    let now = Now { instant: Instant(1_000_000_000), unix: UnixTime(1_800_000_000 * 1_000_000) };
    if let Ok(text) = std::str::from_utf8(data) {
        for text in [text.to_owned(), format!("{LINE}{text}")] {
            if let Ok(credential) = text.parse::<Credential>() {
                assert_eq!(credential.expose(), text.trim());
            }
        }
        for text in [text.to_owned(), format!("{INVITATION_PREFIX}{text}")] {
            if let Ok(line) = text.parse::<InvitationLine>() {
                assert_eq!(line.expose(), text.trim());
            }
        }
        if let Ok(url) = format!("https://{text}").parse::<ApiUrl>() {
            assert!(!url.host().is_empty() && url.port() > 0);
        }
    }
    if let Ok(request) = SignedRequest::decode(data) {
        assert_eq!(request.encode(), data);
        assert!(!request.is_from(&credential().key));
        assert_eq!(Acknowledgement::open(data, &request, &credential().key), None);
    }
    if let Ok(change) = Signed::<Change>::decode(data) {
        assert_eq!(&**change.octets(), data);
    }
    if let Ok(statement) = Signed::<Statement>::decode(data) {
        assert_eq!(&**statement.octets(), data);
        let _ = statement.object().total();
    }
    if let Ok(message) = ChannelMessage::decode(data) {
        assert_eq!(message.encode(), data);
    }
    let held = credential();
    let capability = held.terms.capability(439_453);
    assert!(Answer::open(data, &held.key, &capability, &held.zone).is_err());
    SERVERS.with_borrow_mut(|[server, general]| {
        for transport in [Transport::Udp, Transport::Tcp] {
            let client = Client { address: [192, 0, 2, 9].into(), transport };
            let expected = general.serve_any(data, client, now);
            match server.serve(data, client, now) {
                Served::Reply(answer) => {
                    assert!(transport == Transport::Tcp || answer.len() <= data.len());
                    assert!(matches!(expected, Served::Reply(general) if general == answer));
                }
                Served::Nothing => assert!(matches!(expected, Served::Nothing)),
                Served::Order(_) | Served::Status(_) => panic!("nobody here holds a capability"),
            }
        }
    });
    let server = SocketAddr::from(([192, 0, 2, 53], 53));
    let config = LookupConfig { credential: held, epoch: 439_453, servers: vec![server], seed: Seed::new([3; 32]) };
    let mut lookup = Lookup::new(config);
    lookup.handle(LookupInput::Start, now);
    let Some(LookupOutput::Datagram { octets: question, .. }) = lookup.poll() else { panic!("a question") };
    // The right message ID, so that more than the header is read.
    let mut answer = data.to_vec();
    answer.iter_mut().zip(&question[..2]).for_each(|(octet, id)| *octet = *id);
    lookup.handle(LookupInput::Datagram { from: server, octets: answer.clone() }, now);
    lookup.handle(LookupInput::Stream { from: server, octets: answer }, now);
    while let Some(output) = lookup.poll() {
        assert!(!matches!(output, LookupOutput::Done(Ok(_))));
    }
});

//! The DNS server for the names of a gateway: the zone of the suffix, by UDP and TCP (RFC 1035, RFC 6891, RFC 7766).

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;
use wayleave_core::Prefix;
use wayleave_runtime::connection_slots::{ConnectionSlots, SlotLimits};

use super::names::{Blocks, Directory, Meaning, meaning};
use crate::roles::dns_tcp::answer_stream;

/// Seconds for which an answer may be kept. Addresses do not change, but nodes come and go.
const TTL: u32 = 60;
/// Seconds for which it may be kept that a name or its data is not there (RFC 2308 section 5).
const NEGATIVE_TTL: u32 = 30;
/// Octets of a question and an answer by UDP, and of an answer to who does not say how many it takes (RFC 1035 section 4.2.1).
const MAX_UDP: u16 = 1_232;
const PLAIN_UDP: u16 = 512;
/// Octets of a question by TCP.
const LONGEST: usize = 4_096;
/// Octets of a message's header.
const HEADER: usize = 12;
/// Datagrams that are answered at a time: an answer waits for the disk where it gives an address.
const QUESTIONS: usize = 64;
/// Connections at a time.
const SLOTS: SlotLimits = SlotLimits { connections: 128, of_source: 64, of_client: 0 };

/// Answers questions for ever.
pub async fn serve(sockets: (UdpSocket, TcpListener), directory: Arc<impl Directory>) {
    tokio::join!(serve_datagrams(sockets.0, Arc::clone(&directory)), serve_connections(sockets.1, directory));
}

async fn serve_datagrams(socket: UdpSocket, directory: Arc<impl Directory>) {
    let (socket, questions) = (Arc::new(socket), Arc::new(Semaphore::new(QUESTIONS)));
    let mut octets = [0; MAX_UDP as usize];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut octets).await else { continue };
        let Ok(permit) = Arc::clone(&questions).acquire_owned().await else { return };
        let (question, socket, directory) = (octets[..length].to_vec(), Arc::clone(&socket), Arc::clone(&directory));
        tokio::spawn(async move {
            if let Some(answer) = answer(&question, Transport::Udp, &*directory).await {
                let _ = socket.send_to(&answer, from).await; // who gets none asks again
            }
            drop(permit);
        });
    }
}

async fn serve_connections(listener: TcpListener, directory: Arc<impl Directory>) {
    let slots = ConnectionSlots::new(SLOTS);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors: the oldest connections end within the time for which one may be silent.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some((slot, eviction)) = slots.take(from.ip().to_canonical()) else { continue };
        let directory = Arc::clone(&directory);
        tokio::spawn(async move {
            let handle = slot.handle();
            let answer = |question: Vec<u8>, _| {
                let directory = Arc::clone(&directory);
                async move { Ok::<_, Infallible>(answer(&question, Transport::Tcp, &*directory).await) }
            };
            tokio::select! {
                _ = answer_stream((stream, from), &handle, LONGEST, answer) => {}
                _ = eviction => {}
            }
        });
    }
}

/// How a question came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Udp,
    Tcp,
}

/// The answer to a question; `None` if it deserves none.
pub async fn answer(octets: &[u8], transport: Transport, directory: &impl Directory) -> Option<Vec<u8>> {
    let Ok(question) = Message::from_vec(octets) else { return malformed(octets) };
    if question.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.recursion_desired = question.metadata.recursion_desired;
    let mut limit = PLAIN_UDP;
    if let Some(requested) = &question.edns {
        limit = requested.max_payload().clamp(PLAIN_UDP, MAX_UDP);
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP).set_version(0).set_dnssec_ok(requested.flags().dnssec_ok); // RFC 3225 section 3
        answer.set_edns(edns);
    }
    let has_other_version = question.edns.as_ref().is_some_and(|edns| edns.version() != 0);
    match &question.queries[..] {
        _ if question.metadata.op_code != OpCode::Query => answer.metadata.response_code = ResponseCode::NotImp,
        // RFC 6891 section 6.1.3.
        [query] if has_other_version => {
            answer.add_query(query.clone());
            answer.metadata.response_code = ResponseCode::BADVERS;
        }
        [query] => {
            answer.add_query(query.clone());
            fill(&mut answer, query, directory).await;
        }
        // RFC 9619 section 4.
        _ => answer.metadata.response_code = ResponseCode::FormErr,
    }
    let limit = if transport == Transport::Tcp { u16::MAX } else { limit };
    encode(answer, usize::from(limit))
}

/// The answer to what cannot be decoded, if it has the header of a question.
fn malformed(octets: &[u8]) -> Option<Vec<u8>> {
    let (id, flags) = (octets.get(..2)?, octets.get(2)?);
    let is_question = flags & 0x80 == 0 && octets.len() >= HEADER;
    is_question
        .then(|| Message::error_msg(u16::from_be_bytes([id[0], id[1]]), OpCode::Query, ResponseCode::FormErr))?
        .to_vec()
        .ok()
}

/// The octets of an answer, or of one that sends to TCP if they are too many.
fn encode(mut answer: Message, limit: usize) -> Option<Vec<u8>> {
    let octets = answer.to_vec().ok()?;
    if octets.len() <= limit {
        return Some(octets);
    }
    answer.metadata.truncation = true;
    answer.answers.clear();
    answer.authorities.clear();
    answer.to_vec().ok()
}

/// Says what the zone has, or one of the zones of its addresses.
async fn fill(answer: &mut Message, query: &Query, directory: &impl Directory) {
    let meaning = meaning(&query.name().to_ascii(), directory.suffix());
    let reverse = reverse_zone(query.name(), directory);
    let is_foreign = meaning == Meaning::Foreign && reverse.is_none();
    if is_foreign || query.query_class() != DNSClass::IN {
        answer.metadata.response_code = ResponseCode::Refused;
        return;
    }
    let apex = match &reverse {
        Some((apex, _)) => Some(apex.clone()),
        None => apex(query.name(), directory.suffix()),
    };
    let Some(apex) = apex else {
        answer.metadata.response_code = ResponseCode::ServFail;
        return;
    };
    answer.metadata.authoritative = true;
    let is_apex = *query.name() == apex;
    answer.metadata.response_code = match (meaning, reverse) {
        _ if is_apex => {
            if matches!(query.query_type(), RecordType::SOA | RecordType::ANY) {
                answer.add_answer(soa(&apex, TTL));
            }
            ResponseCode::NoError
        }
        (Meaning::Pair(policy, node), _) => look_up(answer, query, Some(&policy), &node, directory).await,
        // Names below it exist whatever it has itself (RFC 8020, RFC 4592 section 2.2.2).
        (Meaning::Node(node), _) => look_up(answer, query, None, &node, directory).await,
        // Between the zone and its addresses.
        (_, Some((_, None))) => ResponseCode::NoError,
        (_, Some((_, Some(address)))) => point(answer, query, address, directory),
        (Meaning::Apex | Meaning::Nothing | Meaning::Foreign, None) => ResponseCode::NXDomain,
    };
    if answer.metadata.response_code == ResponseCode::ServFail {
        answer.metadata.authoritative = false;
        return;
    }
    // A negative answer says for how long (RFC 2308 section 3).
    if answer.answers.is_empty() {
        answer.authorities.push(soa(&apex, NEGATIVE_TTL));
    }
}

/// The addresses of a name.
async fn look_up(
    answer: &mut Message,
    query: &Query,
    policy: Option<&str>,
    node: &str,
    directory: &impl Directory,
) -> ResponseCode {
    let addresses = match directory.look_up(policy, node).await {
        None => return ResponseCode::NXDomain,
        Some(Err(())) => return ResponseCode::ServFail,
        Some(Ok(addresses)) => addresses,
    };
    for address in addresses {
        let data = match (address, query.query_type()) {
            (IpAddr::V4(v4), RecordType::A | RecordType::ANY) => RData::A(A(v4)),
            (IpAddr::V6(v6), RecordType::AAAA | RecordType::ANY) => RData::AAAA(AAAA(v6)),
            _ => continue,
        };
        answer.add_answer(Record::from_rdata(query.name().clone(), TTL, data));
    }
    ResponseCode::NoError
}

/// The name of an address.
fn point(answer: &mut Message, query: &Query, address: IpAddr, directory: &impl Directory) -> ResponseCode {
    let Some(name) = directory.name_of(address).and_then(|name| Name::from_ascii(name).ok()) else {
        return ResponseCode::NXDomain;
    };
    if matches!(query.query_type(), RecordType::PTR | RecordType::ANY) {
        answer.add_answer(Record::from_rdata(query.name().clone(), TTL, RData::PTR(PTR(name))));
    }
    ResponseCode::NoError
}

/// The zone of names' addresses in which a name lies, and the address that it means, if it means one (RFC 1035 section 3.5, RFC 3596
/// section 2.5).
fn reverse_zone(name: &Name, directory: &impl Directory) -> Option<(Name, Option<IpAddr>)> {
    let network = name.parse_arpa_name().ok()?;
    let Blocks { v4, v6 } = directory.blocks();
    let (prefix, labels, least) = match network.addr() {
        IpAddr::V4(_) => (v4, usize::from(whole_octets(v4)) + 2, whole_octets(v4) * 8),
        IpAddr::V6(_) => (v6, 18, 64),
    };
    let length = network.prefix_len();
    let is_within = length >= least && prefix.contains(&Prefix::new(network.addr(), length).ok()?);
    is_within.then(|| (name.trim_to(labels), (length == network.max_prefix_len()).then_some(network.addr())))
}

/// Octets of an IPv4 prefix, of which the last one may be one in part: a zone ends with a label, so that a prefix that ends within one is
/// several zones.
fn whole_octets(prefix: &Prefix) -> u8 {
    prefix.len().div_ceil(8)
}

/// What is asked for here: the suffix, and the zones of names' addresses.
pub fn zones(suffix: &str, blocks: &Blocks) -> Vec<String> {
    let [v4, v6] = blocks.all().map(|block| match block.address() {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    });
    let octets = whole_octets(&blocks.v4);
    let many = 1u128 << (octets * 8 - blocks.v4.len());
    let of_v4 = (0..many).map(|zone| {
        let first = v4 >> (32 - octets * 8) | zone;
        let labels: String = (0..octets).map(|place| format!("{}.", first >> (8 * place) & 0xff)).collect();
        format!("{labels}in-addr.arpa")
    });
    let nibbles: String = (16..32).map(|place| format!("{:x}.", v6 >> (4 * place) & 0xf)).collect();
    [suffix.trim_end_matches('.').to_owned()].into_iter().chain(of_v4).chain([format!("{nibbles}ip6.arpa")]).collect()
}

/// The zone's name, as the question spells it.
fn apex(name: &Name, suffix: &str) -> Option<Name> {
    let labels = Name::from_ascii(suffix).ok()?.num_labels();
    Some(name.trim_to(usize::from(labels)))
}

/// Nobody transfers the zone, so that its serial means nothing.
fn soa(apex: &Name, ttl: u32) -> Record {
    let hostmaster = apex.prepend_label("hostmaster").unwrap_or_else(|_| apex.clone());
    let data = SOA::new(apex.clone(), hostmaster, 1, 3_600, 600, 86_400, NEGATIVE_TTL);
    Record::from_rdata(apex.clone(), ttl, RData::SOA(data))
}

#[cfg(test)]
mod tests {
    use super::super::names::Names;
    use super::*;
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;
    use wayleave_core::IdentityKey;

    /// Policy `clean`, which is the first one; node `b`, node `six` without IPv4, and node `slow`, whose address is given once somebody
    /// says so.
    struct Known(Mutex<Names>, Notify, Blocks);

    impl Default for Known {
        fn default() -> Self {
            Self::with("198.18.0.0/15")
        }
    }

    impl Known {
        fn with(v4: &str) -> Self {
            let of = |text: &str| text.parse().expect("a prefix");
            let blocks = Blocks { v4: of(v4), v6: of("fd77::/64") };
            Self(Mutex::new(Names::new(&blocks)), Notify::new(), blocks)
        }
    }

    impl Directory for Known {
        fn suffix(&self) -> &str {
            "demo"
        }

        async fn look_up(&self, policy: Option<&str>, node: &str) -> Option<Result<Vec<IpAddr>, ()>> {
            if policy.is_some_and(|policy| policy != "clean") || !["b", "six", "slow"].contains(&node) {
                return None;
            }
            if node == "slow" {
                self.1.notified().await;
            }
            let number = self.0.lock().expect("no panic").number("clean", IdentityKey([1; 32]));
            let addresses = self.2.addresses(number.expect("room"));
            Some(Ok(addresses.into_iter().filter(|address| node != "six" || address.is_ipv6()).collect()))
        }

        fn blocks(&self) -> &Blocks {
            &self.2
        }

        fn name_of(&self, address: IpAddr) -> Option<String> {
            self.2.addresses(1).contains(&address).then(|| "clean.b.demo.".to_owned())
        }
    }

    fn question(name: &str, kind: RecordType) -> Message {
        let mut question = Message::query();
        question.add_query(Query::query(name.parse().expect("a name"), kind));
        question
    }

    fn ask_octets(question: &Message) -> Vec<u8> {
        ask_of(&Known::default(), question)
    }

    fn ask_of(known: &Known, question: &Message) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let octets = question.to_vec().expect("encoded");
        runtime.block_on(answer(&octets, Transport::Udp, known)).expect("an answer")
    }

    fn ask(name: &str, kind: RecordType) -> Message {
        Message::from_vec(&ask_octets(&question(name, kind))).expect("decodes")
    }

    #[test]
    fn questions_are_answered_by_their_kind_and_others_are_nothing_or_refused() {
        let of = |name, kind| {
            let message = ask(name, kind);
            let data: Vec<String> = message.answers.iter().map(|record| record.data.to_string()).collect();
            (message.metadata.response_code, data)
        };
        assert_eq!(of("clean.b.demo.", RecordType::A), (ResponseCode::NoError, vec!["198.18.0.1".to_owned()]));
        assert_eq!(of("clean.b.demo.", RecordType::AAAA), (ResponseCode::NoError, vec!["fd77::1".to_owned()]));
        assert_eq!(of("clean.b.demo.", RecordType::MX), (ResponseCode::NoError, vec![]));
        assert_eq!(of("clean.c.demo.", RecordType::A), (ResponseCode::NXDomain, vec![]));
        assert_eq!(of("x.clean.b.demo.", RecordType::A), (ResponseCode::NXDomain, vec![]));
        assert_eq!(of("example.org.", RecordType::A), (ResponseCode::Refused, vec![]));
    }

    #[test]
    fn the_zones_are_those_in_which_questions_are_not_refused() {
        let zones = zones("demo", &Known::default().2);
        assert_eq!(
            zones,
            ["demo", "18.198.in-addr.arpa", "19.198.in-addr.arpa", "0.0.0.0.0.0.0.0.0.0.0.0.7.7.d.f.ip6.arpa"]
        );
        for zone in zones {
            assert_eq!(ask(&format!("{zone}."), RecordType::SOA).answers.len(), 1, "{zone}");
        }
    }

    #[test]
    fn the_zones_follow_the_block_of_ipv4_addresses_and_no_address_beside_it_is_answered() {
        for (block, first, last, count, inside, outside) in [
            ("198.19.0.0/16", "19.198", "19.198", 1, "1.0.19.198", "1.0.18.198"),
            ("10.0.0.0/8", "10", "10", 1, "1.0.0.10", "1.0.0.11"),
            ("172.16.0.0/12", "16.172", "31.172", 16, "1.0.16.172", "1.0.32.172"),
            ("100.64.128.0/18", "128.64.100", "191.64.100", 64, "1.128.64.100", "1.127.64.100"),
            ("192.168.7.0/24", "7.168.192", "7.168.192", 1, "1.7.168.192", "1.8.168.192"),
        ] {
            let known = Known::with(block);
            let zones = zones("demo", &known.2);
            let of_v4 = &zones[1..zones.len() - 1];
            let ends = [first, last].map(|zone| format!("{zone}.in-addr.arpa"));
            assert_eq!((of_v4.len(), [of_v4[0].clone(), of_v4[count - 1].clone()]), (count, ends), "{block}");
            let of = |name: &str, kind| {
                Message::from_vec(&ask_of(&known, &question(&format!("{name}.in-addr.arpa."), kind))).expect("decodes")
            };
            for zone in [first, last] {
                assert_eq!(of(zone, RecordType::SOA).answers.len(), 1, "{block}");
            }
            assert_eq!(of(inside, RecordType::PTR).answers.len(), 1, "{block}");
            assert_eq!(of(outside, RecordType::PTR).metadata.response_code, ResponseCode::Refused, "{block}");
        }
    }

    #[test]
    fn a_node_has_the_addresses_of_the_first_policy_and_families_that_are_missing_have_no_data() {
        let of = |name, kind| {
            let message = ask(name, kind);
            let data: Vec<String> = message.answers.iter().map(|record| record.data.to_string()).collect();
            (message.metadata.response_code, data)
        };
        assert_eq!(of("B.Demo.", RecordType::A), (ResponseCode::NoError, vec!["198.18.0.1".to_owned()]));
        assert_eq!(of("b.demo.", RecordType::AAAA), (ResponseCode::NoError, vec!["fd77::1".to_owned()]));
        assert_eq!(of("clean.six.demo.", RecordType::A), (ResponseCode::NoError, vec![]));
        assert_eq!(of("clean.six.demo.", RecordType::AAAA), (ResponseCode::NoError, vec!["fd77::1".to_owned()]));
    }

    #[test]
    fn addresses_have_names_and_their_zones_end_where_the_blocks_do() {
        let fd77 = "0.".repeat(12) + "7.7.d.f.ip6.arpa.";
        let of = |name: &str| {
            let message = ask(name, RecordType::PTR);
            let data: Vec<String> = message.answers.iter().map(|record| record.data.to_string()).collect();
            let zone = message.authorities.first().map(|record| record.name.to_ascii());
            (message.metadata.response_code, data, zone)
        };
        let named = (ResponseCode::NoError, vec!["clean.b.demo.".to_owned()], None);
        assert_eq!(of("1.0.18.198.in-addr.arpa."), named);
        assert_eq!(of(&("1.".to_owned() + &"0.".repeat(15) + &fd77)), named);
        let nothing = |code, zone: &str| (code, vec![], Some(zone.to_owned()));
        for (name, code, zone) in [
            ("2.0.18.198.in-addr.arpa.", ResponseCode::NXDomain, "18.198.in-addr.arpa."),
            ("255.255.19.198.in-addr.arpa.", ResponseCode::NXDomain, "19.198.in-addr.arpa."),
            ("0.18.198.in-addr.arpa.", ResponseCode::NoError, "18.198.in-addr.arpa."),
            ("18.198.in-addr.arpa.", ResponseCode::NoError, "18.198.in-addr.arpa."),
            (&("2.".to_owned() + &"0.".repeat(15) + &fd77), ResponseCode::NXDomain, &fd77),
        ] {
            assert_eq!(of(name), nothing(code, zone), "{name}");
        }
        for foreign in ["198.in-addr.arpa.", "1.0.20.198.in-addr.arpa.", "7.7.d.f.ip6.arpa.", "x.18.198.in-addr.arpa."]
        {
            assert_eq!(of(foreign), (ResponseCode::Refused, vec![], None), "{foreign}");
        }
    }

    #[test]
    fn a_name_without_data_of_a_kind_exists() {
        for (name, code) in [("demo.", ResponseCode::NoError), ("c.demo.", ResponseCode::NXDomain)] {
            for kind in [RecordType::A, RecordType::AAAA, RecordType::NS, RecordType::TXT] {
                let message = ask(name, kind);
                assert_eq!((message.metadata.response_code, message.answers.len()), (code, 0), "{name} {kind}");
                assert!(message.metadata.authoritative, "{name} {kind}");
            }
        }
    }

    #[test]
    fn a_negative_answer_has_the_zones_soa_and_a_positive_one_has_none() {
        for (name, kind) in [
            ("demo.", RecordType::A),
            ("b.demo.", RecordType::NS),
            ("clean.b.demo.", RecordType::MX),
            ("clean.c.demo.", RecordType::A),
            ("c.demo.", RecordType::A),
        ] {
            let message = ask(name, kind);
            let [record] = &message.authorities[..] else { panic!("{name}: {:?}", message.authorities) };
            assert_eq!((record.name.to_ascii(), record.ttl), ("demo.".to_owned(), NEGATIVE_TTL), "{name}");
            let RData::SOA(soa) = &record.data else { panic!("{name}: no SOA") };
            assert_eq!(soa.minimum, NEGATIVE_TTL);
        }
        assert!(ask("clean.b.demo.", RecordType::A).authorities.is_empty());
        assert!(ask("example.org.", RecordType::A).authorities.is_empty());
        let apex = ask("demo.", RecordType::SOA);
        assert!(matches!(&apex.answers[..], [record] if matches!(record.data, RData::SOA(_))));
    }

    #[test]
    fn an_edns_question_gets_an_opt_record_and_one_of_another_version_badvers() {
        let with = |version, name| {
            let mut question = question(name, RecordType::A);
            let mut edns = Edns::new();
            edns.set_max_payload(4_096).set_version(version).set_dnssec_ok(true);
            question.set_edns(edns);
            let octets = ask_octets(&question);
            let answer = Message::from_vec(&octets).expect("decodes");
            let edns = answer.edns.clone().unwrap_or_else(|| panic!("{name}: no OPT"));
            assert_eq!((edns.version(), edns.max_payload(), edns.flags().dnssec_ok), (0, MAX_UDP, true), "{name}");
            // The whole code: four bits in the header, eight in the OPT record.
            (u16::from(edns.rcode_high()) << 4 | u16::from(octets[3] & 15), answer.answers.len())
        };
        assert_eq!(with(0, "clean.b.demo."), (0, 1));
        assert_eq!(with(0, "clean.c.demo."), (3, 0));
        assert_eq!(with(0, "example.org."), (5, 0));
        assert_eq!(with(1, "clean.b.demo."), (16, 0));
        assert!(ask("clean.b.demo.", RecordType::A).edns.is_none(), "none was asked for");
    }

    #[test]
    fn responses_get_no_answer_and_garbage_no_more_than_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let known = Known::default();
        let mut state = 9u64;
        for round in 0..10_000 {
            let mut octets: Vec<u8> = (0..state as usize % 80)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as u8
                })
                .collect();
            state = state.wrapping_add(1);
            let is_response = round % 2 == 0;
            if octets.len() > 2 {
                octets[2] = octets[2] & 0x7f | if is_response { 0x80 } else { 0 };
            }
            let answer = runtime.block_on(answer(&octets, Transport::Udp, &known));
            if is_response || octets.len() < HEADER {
                assert_eq!(answer, None);
            } else {
                assert_eq!(answer.expect("an answer")[..2], octets[..2]);
            }
        }
    }

    #[test]
    fn an_answer_that_is_too_long_sends_to_tcp() {
        let mut message = Message::response(7, OpCode::Query);
        let name: Name = "clean.b.demo.".parse().expect("a name");
        for _ in 0..64 {
            message.add_answer(Record::from_rdata(name.clone(), TTL, RData::A(A([198, 18, 0, 1].into()))));
        }
        let short = Message::from_vec(&encode(message.clone(), 512).expect("octets")).expect("decodes");
        assert!(short.metadata.truncation && short.answers.is_empty());
        let whole = Message::from_vec(&encode(message, 65_535).expect("octets")).expect("decodes");
        assert!(!whole.metadata.truncation && whole.answers.len() == 64);
    }

    #[tokio::test]
    async fn questions_come_by_udp_and_tcp_and_none_waits_for_another_ones_address() {
        let udp = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let at = udp.local_addr().expect("bound");
        let tcp = TcpListener::bind(at).await.expect("the same port");
        let known = Arc::new(Known::default());
        let server = tokio::spawn(serve((udp, tcp), Arc::clone(&known)));
        let client = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let mut buffer = [0; 2_000];
        let slow = question("clean.slow.demo.", RecordType::A).to_vec().expect("encoded");
        let other = question("clean.b.demo.", RecordType::A).to_vec().expect("encoded");
        client.send_to(&slow, at).await.expect("sent");
        client.send_to(&other, at).await.expect("sent");
        let length = client.recv(&mut buffer).await.expect("an answer");
        assert_eq!(buffer[..2], other[..2], "the second question's: the first one waits");
        assert_eq!(Message::from_vec(&buffer[..length]).expect("decodes").answers.len(), 1);
        known.1.notify_one();
        client.recv(&mut buffer).await.expect("an answer");
        assert_eq!(buffer[..2], slow[..2]);

        // Two questions at once on one connection (RFC 7766 section 6.2.1.1).
        let mut stream = tokio::net::TcpStream::connect(at).await.expect("connected");
        let framed = [&(other.len() as u16).to_be_bytes()[..], &other].concat();
        stream.write_all(&framed.repeat(2)).await.expect("sent");
        for _ in 0..2 {
            let length = usize::from(stream.read_u16().await.expect("a length"));
            stream.read_exact(&mut buffer[..length]).await.expect("an answer");
            let answer = Message::from_vec(&buffer[..length]).expect("decodes");
            assert_eq!(answer.answers[0].data.to_string(), "198.18.0.1");
        }
        server.abort();
    }
}

//! BGP-11: real dumps, decoded and encoded to the same octets; and messages that are bad in one named way.
#![allow(clippy::disallowed_methods, reason = "tests read their data from files and its place from the environment")]

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use wayleave_bgp::mrt::{self, MrtReader, Record, RecordedMessage};
use wayleave_bgp::{Message, MessageType, SessionParams, Update, UpdateView, encode_updates, frame};
use wayleave_core::Asn;

/// Uncompressed octets of a dump, for a guard against files that expand without end.
const MOST: u64 = 256 << 20;

/// One UPDATE of a dump, and the session it came over.
#[derive(Clone, Copy)]
struct TraceMessage<'a> {
    octets: &'a [u8],
    params: SessionParams,
}

#[derive(Debug, Default)]
struct Counts {
    messages: u64,
    /// Messages whose encoding equals what was decoded.
    identical: u64,
    refused: u64,
    /// Messages with a problem by RFC 7606 that did not end the session.
    with_problems: u64,
}

/// Decodes every message and writes it again from its parts.
fn decode_encode(messages: &[TraceMessage<'_>]) -> Counts {
    let mut counts = Counts { messages: messages.len() as u64, ..Counts::default() };
    for message in messages {
        let whole = frame(message.octets, &message.params).ok().filter(|(_, rest)| rest.is_empty());
        let update = whole.filter(|(frame, _)| frame.kind == MessageType::Update);
        let Some(view) = update.and_then(|(frame, _)| UpdateView::decode(frame.body(), &message.params).ok()) else {
            counts.refused += 1;
            continue;
        };
        let mut written = Vec::new();
        view.encode(&mut written);
        counts.with_problems += u64::from(!view.problems().is_empty());
        counts.identical += u64::from(written == message.octets);
    }
    counts
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp")
}

fn octets(path: &Path) -> Vec<u8> {
    let mut octets = Vec::new();
    let source = mrt::decompress(File::open(path).expect("the file is there")).expect("a readable file");
    source.take(MOST).read_to_end(&mut octets).expect("a sound compression");
    octets
}

fn messages(name: &str) -> Vec<RecordedMessage> {
    mrt::messages(&octets(&data().join(name))[..]).collect()
}

fn trace(messages: &[RecordedMessage]) -> Vec<TraceMessage<'_>> {
    let updates = messages.iter().filter(|message| message.octets.get(18) == Some(&2));
    updates.map(|message| TraceMessage { octets: &message.octets, params: message.params() }).collect()
}

fn update(message: &TraceMessage<'_>) -> Update {
    let (found, rest) = frame(message.octets, &message.params).expect("a sound header");
    assert!(rest.is_empty());
    Update::decode(found.body(), &message.params).expect("no reset")
}

/// What is built from a decoded UPDATE decodes to the same routes.
fn assert_rebuilds(message: &TraceMessage<'_>, found: &Update) {
    let params = message.params;
    let built = encode_updates(found.attributes.as_ref(), &found.announced, &found.withdrawn, &params).expect("fits");
    let mut rebuilt = Update::default();
    for octets in &built {
        let Ok((Message::Update(part), [])) = Message::decode(octets, &params) else { panic!("a sound UPDATE") };
        assert_eq!(part.problems, []);
        rebuilt.withdrawn.extend(part.withdrawn);
        rebuilt.announced.extend(part.announced);
        rebuilt.attributes = part.attributes.or(rebuilt.attributes);
    }
    assert_eq!(rebuilt.withdrawn, sorted_by_family(&found.withdrawn));
    assert_eq!(rebuilt.announced, sorted_by_family(&found.announced));
    let has_ipv4 = found.announced.iter().any(|nlri| nlri.prefix.address().is_ipv4());
    if has_ipv4 && params.four_octet_as && !params.external {
        assert_eq!(rebuilt.attributes, found.attributes);
    }
}

/// Builders send IPv4 before IPv6.
fn sorted_by_family(nlri: &[wayleave_bgp::Nlri]) -> Vec<wayleave_bgp::Nlri> {
    let mut sorted = nlri.to_vec();
    sorted.sort_by_key(|nlri| nlri.prefix.afi());
    sorted
}

fn replay(messages: &[RecordedMessage]) -> Counts {
    let trace = trace(messages);
    let counts = decode_encode(&trace);
    assert_eq!(counts.identical + counts.refused, counts.messages);
    for message in &trace {
        if frame(message.octets, &message.params)
            .is_ok_and(|(found, _)| Update::decode(found.body(), &message.params).is_ok())
        {
            assert_rebuilds(message, &update(message));
        }
    }
    counts
}

#[test]
fn the_routeviews_trace_comes_back_octet_for_octet() {
    let messages = messages("routeviews.2013-12-01.updates.bz2");
    let counts = replay(&messages);
    assert_eq!((counts.messages, counts.identical, counts.refused), (45_062, 45_062, 0));
    // Multicast families of two peers are all that is odd.
    assert_eq!(counts.with_problems, 228);
    let trace = trace(&messages);
    let updates: Vec<Update> = trace.iter().map(update).collect();
    let announced: usize = updates.iter().map(|update| update.announced.len()).sum();
    let withdrawn: usize = updates.iter().map(|update| update.withdrawn.len()).sum();
    assert_eq!(announced + withdrawn, 136_880);
    assert!(updates.iter().all(|update| update.ignored.is_empty()));
}

#[test]
fn the_ris_session_brings_up_fifty_thousand_prefixes() {
    let messages = messages("ris.2015-10-23.first-50000-prefixes.updates.bz2");
    let counts = replay(&messages);
    assert_eq!(counts.identical, counts.messages);
    let prefixes: HashSet<_> = trace(&messages).iter().flat_map(|message| update(message).announced).collect();
    assert!(prefixes.len() >= 50_000, "{}", prefixes.len());
}

#[test]
fn smaller_dumps_come_back_octet_for_octet() {
    for (name, updates, refused) in [
        ("routeviews.jinx.2015-04-01.updates.bz2", 1_756, 0),
        ("ris.rrc06.2015-04-01.updates.gz", 761, 0),
        ("only-to-customer.2024.updates.bz2", 85, 0),
        ("quagga.messages.mrt", 24, 0),
        ("extended-message-withdrawal.updates.gz", 1, 0),
        ("nlri-trailing-bits.updates.gz", 1, 1),
    ] {
        let counts = replay(&messages(name));
        assert_eq!((counts.messages, counts.refused), (updates, refused), "{name}");
        assert_eq!(counts.identical, counts.messages - refused, "{name}");
    }
}

#[test]
fn a_message_beyond_4096_octets_needs_the_extended_message_capability() {
    let messages = messages("extended-message-withdrawal.updates.gz");
    let message = trace(&messages)[0];
    assert!(message.octets.len() > 4_096);
    assert_eq!(update(&message).withdrawn.len(), 4_096);
    let params = SessionParams { extended_message: false, ..message.params };
    let error = frame(message.octets, &params).expect_err("too long");
    let sent = error.notification().expect("a notification");
    assert_eq!((sent.code, sent.subcode, &sent.data[..]), (1, 2, &message.octets[16..18]));
    // The same withdrawals split over messages that every peer takes.
    let split = encode_updates(None, &[], &update(&message).withdrawn, &params).expect("fits");
    assert!(split.len() > 1 && split.iter().all(|octets| octets.len() <= 4_096));
}

#[test]
fn a_field_that_cannot_be_split_into_prefixes_ends_the_session() {
    let messages = messages("nlri-trailing-bits.updates.gz");
    let error = Message::decode(&messages[0].octets, &messages[0].params()).expect_err("a reset");
    assert_eq!(error.notification().map(|sent| (sent.code, sent.subcode)), Some((3, 10)));
}

/// BIRD of that age wrote messages with path identifiers under the subtypes without.
#[test]
fn every_message_of_a_bird_session_with_add_path_comes_back_octet_for_octet() {
    for name in ["bird.messages.mrt", "bird6.messages.mrt"] {
        let mut kinds = HashSet::new();
        for message in messages(name) {
            let mut params = message.params();
            params.add_path_receive.ipv4 = true;
            params.add_path_receive.ipv6 = true;
            params.add_path_send = params.add_path_receive;
            let (decoded, rest) = Message::decode(&message.octets, &params).expect("a sound message");
            assert!(rest.is_empty());
            kinds.insert(decoded.kind());
            if let Message::Update(update) = &decoded {
                assert_eq!(update.problems, [], "{name}");
            }
        }
        assert_eq!(kinds.len(), 5, "{name}");
    }
}

#[test]
fn rib_dumps_give_prefixes_with_attributes() {
    for (name, least) in
        [("add-path-ipv4.rib.gz", 1), ("add-path-ipv6.rib.gz", 1), ("openbgpd.rib.mrt", 1), ("stream-of-64k.rib.gz", 1)]
    {
        let octets = octets(&data().join(name));
        let mut entries = 0;
        for record in MrtReader::new(&octets[..]) {
            if let Record::Rib(rib) = record.unwrap_or_else(|error| panic!("{name}: {error}")) {
                for entry in rib {
                    let attributes = entry.to_attributes().unwrap_or_else(|error| panic!("{name}: {error}"));
                    // The router's own routes are dumped without attributes.
                    assert_eq!(attributes.origin().is_none(), entry.attributes.is_empty(), "{name}");
                    entries += 1;
                }
            }
        }
        assert!(entries >= least, "{name}: {entries}");
    }
}

/// Every dump in the folder that `WAYLEAVE_BGP_CORPUS` names, if it names one: no panic, and what decodes comes back.
#[test]
fn further_dumps_come_back_octet_for_octet() {
    let Some(folder) = std::env::var_os("WAYLEAVE_BGP_CORPUS") else { return };
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    for file in files.iter().filter(|path| path.is_file()) {
        let octets = octets(file);
        let (mut routes, mut refused) = (0, 0);
        for record in MrtReader::new(&octets[..]) {
            if let Ok(Record::Rib(entries)) = record {
                routes += entries.len();
                refused += entries.iter().filter(|entry| entry.to_attributes().is_err()).count();
            }
        }
        let messages: Vec<_> = mrt::messages(&octets[..]).collect();
        println!("{}: {:?}, {routes} routes, {refused} refused", file.display(), replay(&messages));
    }
}

/// One UPDATE per file, of a four-octet session with an external peer; the file's name says what is wrong with it, the
/// table what follows.
#[test]
fn messages_with_one_named_defect_have_the_outcome_of_their_rule() {
    let expected = include_str!("../../../../test-data/bgp/bad/expected.txt");
    let mut named = HashSet::new();
    for line in expected.lines().filter(|line| !line.starts_with('#')) {
        let (name, outcome) = line.split_once(' ').expect("a name and an outcome");
        let octets = std::fs::read(data().join("bad").join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let params = SessionParams::new(Asn(64_496), Asn(64_497));
        let found = match Message::decode(&octets, &params) {
            Ok((Message::Update(update), _)) => {
                update.problems.first().map_or("sound".to_owned(), |problem| problem.to_string())
            }
            Ok(_) => "another message".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, outcome, "{name}");
        named.insert(name.to_owned());
    }
    for entry in std::fs::read_dir(data().join("bad")).expect("the folder is there") {
        let name = entry.expect("an entry").file_name().into_string().expect("a plain name");
        assert!(name == "expected.txt" || named.contains(&name), "{name} has no expectation");
    }
}

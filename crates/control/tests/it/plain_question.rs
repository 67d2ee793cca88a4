//! Look-ups that are read without the general decoder: whatever octets come, both ways answer with the same octets and count the same.
//!
//! PLA-07, decoders: look-ups with any octet changed, cut, with other options, letters, cookies, payloads; floods: the
//! decoder in place and the general one give the same octets and counts.

use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use proptest::prelude::*;
use wayleave_control::capability::*;
use wayleave_core::Now;
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::revocation::Revocation;

use super::capability::*;
use super::common::at;

/// Two servers in the same state: a holder that has a secret, one that is denied it, and one that is revoked.
fn twins() -> ([KeyServer; 2], Vec<String>) {
    let mut names = Vec::new();
    let servers = [(); 2].map(|()| {
        let busy = LookupRule { name: "busy".into(), principals: vec![8], retry_secs: 60, ..LookupRule::default() };
        let mut server = limited_server(&[busy], 40);
        (7..=9).for_each(|number| open_account(&mut server, number));
        let held = [7, 8, 9].map(|number| grant(&mut server, terms(number)));
        let entry = Revocation { principal: principal(9), delegation: None, epoch: None };
        change(&mut server, ChangeBody::Revoke(entry), at(0));
        assert!(server.prepare(at(0).unix, u32::MAX));
        let stranger = Credential { key: MasterKey::new(Key128::new([1; 16])), ..held[0].clone() };
        names = held.iter().chain([&stranger]).map(|credential| lookup_name(credential, epoch_at(at(0)))).collect();
        names.push(lookup_name(&held[0], epoch_at(at(0)) + 7));
        server
    });
    (servers, names)
}

/// Both ways answer alike.
fn compare([fast, general]: &mut [KeyServer; 2], octets: &[u8], client: Client, now: Now) {
    let answers = [fast.serve(octets, client, now), general.serve_any(octets, client, now)];
    let [fast_answer, general_answer] = answers.map(|served| match served {
        Served::Reply(octets) => Some(octets),
        Served::Nothing => None,
        Served::Order(_) | Served::Status(_) => panic!("nobody orders anything here"),
    });
    assert_eq!(fast_answer, general_answer, "{octets:02x?}");
    assert_eq!(fast.counters(), general.counters(), "{octets:02x?}");
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(usize, u8),
    Flip(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Cut(usize),
    Append(Vec<u8>),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Most of a question's structure is in its header and its last octets.
    let place = || prop_oneof![0usize..12, 12usize..60, any::<usize>()];
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, to)| Mutation::Set(at, to)),
        (place(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (place(), any::<u8>()).prop_map(|(at, octet)| Mutation::Insert(at, octet)),
        place().prop_map(Mutation::Remove),
        any::<usize>().prop_map(Mutation::Cut),
        proptest::collection::vec(any::<u8>(), 1..20).prop_map(Mutation::Append),
    ]
}

fn mutate(octets: &mut Vec<u8>, mutation: Mutation) {
    let length = octets.len().max(1);
    match mutation {
        Mutation::Set(at, to) => octets.iter_mut().skip(at % length).take(1).for_each(|octet| *octet = to),
        Mutation::Flip(at, bit) => octets.iter_mut().skip(at % length).take(1).for_each(|octet| *octet ^= 1 << bit),
        Mutation::Insert(at, octet) => octets.insert(at % length.min(octets.len() + 1), octet),
        Mutation::Remove(at) if !octets.is_empty() => drop(octets.remove(at % length)),
        Mutation::Remove(_) => {}
        Mutation::Cut(at) => octets.truncate(at % (length + 1)),
        Mutation::Append(more) => octets.extend(more),
    }
}

/// A list of options, of which some are not what they should be.
fn options() -> impl Strategy<Value = Option<Vec<(u16, Vec<u8>)>>> {
    let data = |most: usize| proptest::collection::vec(any::<u8>(), 0..most);
    let option = prop_oneof![
        data(180).prop_map(|octets| (12, octets)),
        data(45).prop_map(|octets| (10, octets)),
        Just((10, vec![3; 8])),
        (any::<u16>(), data(9)),
        (0u16..20, data(9)),
    ];
    proptest::option::of(proptest::collection::vec(option, 0..4))
}

proptest! {
    #[test]
    fn any_message_is_answered_as_the_general_decoder_answers_it(
        questions in proptest::collection::vec(
            (0usize..5, options(), any::<(u8, u8, bool, bool)>(), proptest::collection::vec(mutation(), 0..3)),
            1..60,
        ),
    ) {
        let (mut servers, names) = twins();
        let mut cookie = Vec::new();
        for (name, options, (payload, case, is_tcp, shows), mutations) in questions {
            let name: String = names[name]
                .bytes()
                .enumerate()
                .map(|(at, octet)| if case >> (at % 8) & 1 == 1 { octet.to_ascii_uppercase() } else { octet })
                .map(char::from)
                .collect();
            let mut options = options;
            if shows && !cookie.is_empty() {
                options.get_or_insert_default().push((10, cookie.clone()));
            }
            let mut message = plain_question(&name, RecordType::TXT, options);
            message.metadata.recursion_desired = case & 1 == 0;
            message.metadata.checking_disabled = case & 2 == 0;
            if let Some(edns) = &mut message.edns {
                edns.set_max_payload(u16::from(payload) * 16).set_dnssec_ok(case & 4 == 0);
            }
            let mut octets = message.to_vec().expect("encoded");
            mutations.into_iter().for_each(|mutation| mutate(&mut octets, mutation));
            let transport = if is_tcp { Transport::Tcp } else { Transport::Udp };
            compare(&mut servers, &octets, client(transport), at(0));
            // A cookie for what follows.
            if let Served::Reply(answer) = servers[0].serve_any(&octets, client(Transport::Tcp), at(0))
                && let Ok(answer) = Message::from_vec(&answer)
                && let Some(given) = answer.edns.and_then(|edns| edns.option(10.into()).cloned())
                && let hickory_proto::rr::rdata::opt::EdnsOption::Unknown(_, octets) = given
            {
                cookie = octets;
            }
            let _ = servers[1].serve_any(&octets, client(Transport::Tcp), at(0));
        }
    }
}

#[test]
fn each_octet_of_a_look_up_may_be_any_other_and_both_decoders_agree() {
    let (mut servers, names) = twins();
    let options = vec![(10, vec![3; 8]), (12, vec![0; 90])];
    for (name, options) in [(&names[0], Some(options)), (&names[0], Some(vec![])), (&names[0], None), (&names[3], None)]
    {
        let whole = plain_question(name, RecordType::TXT, options).to_vec().expect("encoded");
        for place in 0..whole.len() {
            for to in [0, 1, 2, 3, 10, 12, 16, 41, 63, 64, 0x80, 0xc0, 0xff, whole[place] ^ 1, whole[place] ^ 0x20] {
                let mut octets = whole.clone();
                octets[place] = to;
                compare(&mut servers, &octets, client(Transport::Tcp), at(0));
            }
            compare(&mut servers, &whole[..place], client(Transport::Tcp), at(0));
        }
        compare(&mut servers, &[&whole[..], &[0]].concat(), client(Transport::Tcp), at(0));
        for second in 0..40 {
            compare(&mut servers, &whole, client(Transport::Udp), at(second / 10));
        }
    }
    let counters = servers[0].counters();
    assert!(counters.secrets > 500 && counters.unknown > 100 && counters.malformed > 100, "{counters:?}");
    assert!(counters.foreign > 100 && counters.nothing > 100 && counters.truncated > 10, "{counters:?}");
}

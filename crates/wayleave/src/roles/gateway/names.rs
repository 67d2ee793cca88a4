//! Names of nodes under policies, their addresses, and a DNS server for them.
//!
//! An address is given at first use, is on disk before it is answered, and is never given to another pair: an application
//! may keep it for as long as it likes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use wayleave_core::{IdentityKey, Prefix};
use wayleave_dataplane::gateway::Name;
use wayleave_runtime::store::{Change, FileStore, Store};

use crate::failure::Failure;

/// Table of the state.
const TABLE: &str = "names";
/// The block of RFC 2544, from which names have their IPv4 addresses.
pub const V4: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// Addresses that are given, at most: all of the block but its first and last.
const MOST: u32 = (1 << 17) - 2;
/// Seconds for which an answer may be kept. Addresses do not change, but nodes come and go.
const TTL: u32 = 60;
/// Octets of a question and an answer by UDP.
const LONGEST: usize = 1232;

/// Which pair has which number.
#[derive(Debug, Default)]
pub struct Names {
    given: BTreeMap<(String, IdentityKey), u32>,
    last: u32,
}

impl Names {
    /// What was given in earlier lives.
    pub fn load(store: &FileStore) -> Result<Self, Failure> {
        let mut names = Self::default();
        for (key, value) in store.load(TABLE).map_err(|error| Failure::new(error.to_string()))? {
            let pair = key
                .split_last_chunk::<32>()
                .and_then(|(policy, node)| Some((String::from_utf8(policy.to_vec()).ok()?, IdentityKey(*node))));
            if let (Some(pair), Ok(number)) = (pair, <[u8; 4]>::try_from(&value[..])) {
                let number = u32::from_be_bytes(number);
                names.last = names.last.max(number);
                names.given.insert(pair, number);
            }
        }
        Ok(names)
    }

    /// The number of a pair; a new one if it has none, which must be durable before it is used. `None` if all are given.
    pub fn number(&mut self, policy: &str, node: IdentityKey) -> Option<(u32, Option<Change>)> {
        let pair = (policy.to_owned(), node);
        if let Some(number) = self.given.get(&pair) {
            return Some((*number, None));
        }
        if self.last >= MOST {
            return None;
        }
        self.last += 1;
        let key = [pair.0.as_bytes(), &node.0].concat();
        let change = Change { table: TABLE, key, value: Some(self.last.to_be_bytes().to_vec()) };
        self.given.insert(pair, self.last);
        Some((self.last, Some(change)))
    }

    /// Every pair that has addresses.
    pub fn given(&self) -> impl Iterator<Item = (&str, IdentityKey, u32)> {
        self.given.iter().map(|((policy, node), number)| (policy.as_str(), *node, *number))
    }
}

/// The addresses of a number, the IPv6 one in `prefix`.
pub fn addresses(number: u32, prefix: &Prefix) -> [IpAddr; 2] {
    let v4 = Ipv4Addr::from(u32::from(V4.0) + number);
    let high = match prefix.address() {
        IpAddr::V6(v6) => u128::from(v6),
        IpAddr::V4(_) => 0, // the configuration was checked
    };
    [v4.into(), Ipv6Addr::from(high | u128::from(number)).into()]
}

/// What a question means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Policy and node, in lower case.
    Pair(String, String),
    /// Below the suffix, but no pair.
    Nothing,
    /// Somebody else's.
    Foreign,
}

/// What `name`, with or without a dot at its end, means below `suffix`.
pub fn meaning(name: &str, suffix: &str) -> Meaning {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let suffix = suffix.trim_end_matches('.').to_ascii_lowercase();
    let Some(front) = name.strip_suffix(&suffix) else { return Meaning::Foreign };
    match front.strip_suffix('.') {
        None if front.is_empty() => Meaning::Nothing,
        None => Meaning::Foreign,
        Some(front) => match front.split('.').collect::<Vec<_>>()[..] {
            [policy, node] if !policy.is_empty() && !node.is_empty() => {
                Meaning::Pair(policy.to_owned(), node.to_owned())
            }
            _ => Meaning::Nothing,
        },
    }
}

/// Who knows which pairs exist, and gives them addresses.
pub trait Directory: Send + Sync + 'static {
    fn suffix(&self) -> &str;

    /// The addresses of a pair that exists, durable. `Err` if it exists but there is no address left.
    fn look_up(&self, policy: &str, node: &str) -> impl Future<Output = Option<Result<[IpAddr; 2], ()>>> + Send;
}

/// Waits until changes are on disk.
pub async fn durable(store: &Arc<FileStore>, change: Change) -> bool {
    let (to, done) = oneshot::channel();
    let submitted = store.submit(
        vec![change],
        Box::new(move || {
            let _ = to.send(());
        }),
    );
    submitted.is_ok() && done.await.is_ok()
}

/// What a policy's name stands for in the machine.
pub fn name(policy: &str, node: IdentityKey) -> Name {
    Name { policy: policy.to_owned(), node }
}

/// Answers questions for ever. One at a time: whoever asks much waits.
pub async fn serve(socket: UdpSocket, directory: Arc<impl Directory>) {
    let mut octets = [0; LONGEST];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut octets).await else { continue };
        if let Some(answer) = answer(&octets[..length], &*directory).await {
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

/// The answer to a question; `None` if it deserves none.
pub async fn answer(octets: &[u8], directory: &impl Directory) -> Option<Vec<u8>> {
    let question = Message::from_vec(octets).ok()?;
    if question.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.recursion_desired = question.metadata.recursion_desired;
    let ([query], OpCode::Query) = (&question.queries[..], question.metadata.op_code) else {
        answer.metadata.response_code = ResponseCode::NotImp;
        return answer.to_vec().ok();
    };
    answer.add_query(query.clone());
    let meaning = meaning(&query.name().to_ascii(), directory.suffix());
    answer.metadata.response_code = match meaning {
        Meaning::Foreign => ResponseCode::Refused,
        _ if query.query_class() != DNSClass::IN => ResponseCode::Refused,
        Meaning::Nothing => {
            answer.metadata.authoritative = true;
            ResponseCode::NXDomain
        }
        Meaning::Pair(policy, node) => {
            answer.metadata.authoritative = true;
            match directory.look_up(&policy, &node).await {
                None => ResponseCode::NXDomain,
                Some(Err(())) => ResponseCode::ServFail,
                Some(Ok(addresses)) => {
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
            }
        }
    };
    answer.to_vec().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use hickory_proto::op::Query;

    #[test]
    fn names_are_policy_node_and_suffix_and_nothing_else() {
        let pair = |policy: &str, node: &str| Meaning::Pair(policy.to_owned(), node.to_owned());
        assert_eq!(meaning("clean.b.demo", "demo"), pair("clean", "b"));
        assert_eq!(meaning("Clean.B.Demo.", "demo"), pair("clean", "b"));
        assert_eq!(meaning("clean.b.overlay.example", "overlay.example"), pair("clean", "b"));
        for nothing in ["demo", "b.demo", "x.clean.b.demo", ".b.demo", "clean..demo"] {
            assert_eq!(meaning(nothing, "demo"), Meaning::Nothing, "{nothing}");
        }
        for foreign in ["example.org", "clean.b.ademo", "", "org"] {
            assert_eq!(meaning(foreign, "demo"), Meaning::Foreign, "{foreign}");
        }
    }

    #[test]
    fn every_pair_has_addresses_of_its_own_and_the_last_one_is_the_last() {
        let mut names = Names::default();
        let prefix = "fd77::/64".parse().expect("a prefix");
        let (node, other) = (IdentityKey([1; 32]), IdentityKey([2; 32]));
        let (first, change) = names.number("clean", node).expect("the first");
        assert!(change.is_some());
        assert_eq!(addresses(first, &prefix).map(|address| address.to_string()), ["198.18.0.1", "fd77::1"]);
        assert_eq!(names.number("clean", node), Some((first, None)), "the same again");
        let (second, _) = names.number("clean", other).expect("the second");
        assert_ne!(first, second);
        names.last = MOST - 1;
        let (last, _) = names.number("fast", node).expect("the last");
        assert_eq!(addresses(last, &prefix)[0].to_string(), "198.19.255.254");
        assert_eq!(names.number("fast", other), None);
        assert_eq!(names.number("clean", other), Some((second, None)));
    }

    #[test]
    fn addresses_survive_and_are_never_given_to_another_pair() {
        let path = std::env::temp_dir().join(format!("wayleave-names-{}.redb", std::process::id()));
        let store = FileStore::open(&path).expect("a store");
        let mut names = Names::load(&store).expect("empty");
        for policy in ["a", "b"] {
            let (_, change) = names.number(policy, IdentityKey([1; 32])).expect("there are more");
            store.submit(vec![change.expect("new")], Box::new(|| ())).expect("queued");
        }
        store.close();
        let store = FileStore::open(&path).expect("a store");
        let mut names = Names::load(&store).expect("what was given");
        assert_eq!(names.number("b", IdentityKey([1; 32])), Some((2, None)));
        assert_eq!(names.number("c", IdentityKey([1; 32])).map(|(number, _)| number), Some(3));
        store.close();
        std::fs::remove_file(path).expect("removed");
    }

    struct Known(Mutex<Names>);

    impl Directory for Known {
        fn suffix(&self) -> &str {
            "demo"
        }

        async fn look_up(&self, policy: &str, node: &str) -> Option<Result<[IpAddr; 2], ()>> {
            if policy != "clean" || node != "b" {
                return None;
            }
            let number = self.0.lock().expect("no panic").number(policy, IdentityKey([1; 32]));
            Some(Ok(addresses(number.expect("room").0, &"fd77::/64".parse().expect("a prefix"))))
        }
    }

    fn ask(name: &str, kind: RecordType) -> Message {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut question = Message::query();
        question.add_query(Query::query(name.parse().expect("a name"), kind));
        let octets = question.to_vec().expect("encoded");
        let answer = runtime.block_on(answer(&octets, &Known(Mutex::default()))).expect("an answer");
        Message::from_vec(&answer).expect("decodes")
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
        assert_eq!(of("b.demo.", RecordType::A), (ResponseCode::NXDomain, vec![]));
        assert_eq!(of("example.org.", RecordType::A), (ResponseCode::Refused, vec![]));
    }

    #[test]
    fn garbage_gets_no_answer_and_never_panics() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let known = Known(Mutex::default());
        let mut state = 9u64;
        for _ in 0..5_000 {
            let mut octets: Vec<u8> = (0..state as usize % 80)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as u8
                })
                .collect();
            state = state.wrapping_add(1);
            // A response is never answered.
            if octets.len() > 2 {
                octets[2] |= 0x80;
            }
            assert_eq!(runtime.block_on(answer(&octets, &known)), None);
        }
    }
}

//! Names of nodes under policies, and their addresses.
//!
//! An address is given at first use, is on disk before it is answered, and is never given to another pair: an application
//! may keep it for as long as it likes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

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

/// Which pair has which number.
#[derive(Debug, Default)]
pub struct Names {
    given: BTreeMap<(String, IdentityKey), u32>,
    last: u32,
    /// Numbers that are not known to be on disk.
    unsaved: BTreeSet<u32>,
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

    /// The number of a pair; a new one if it has none. With a change, it must not be used before that is durable, and
    /// [`Names::saved`]: whoever asks meanwhile has the same number and the same change. `None` if all are given.
    pub fn number(&mut self, policy: &str, node: IdentityKey) -> Option<(u32, Option<Change>)> {
        let pair = (policy.to_owned(), node);
        let key = [pair.0.as_bytes(), &node.0].concat();
        let number = match self.given.get(&pair) {
            Some(number) if !self.unsaved.contains(number) => return Some((*number, None)),
            Some(number) => *number,
            None if self.last >= MOST => return None,
            None => {
                self.last += 1;
                self.given.insert(pair, self.last);
                self.unsaved.insert(self.last);
                self.last
            }
        };
        Some((number, Some(Change { table: TABLE, key, value: Some(number.to_be_bytes().to_vec()) })))
    }

    /// A number is on disk.
    pub fn saved(&mut self, number: u32) {
        self.unsaved.remove(&number);
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
    /// A node, in lower case: the names of its pairs are below it.
    Node(String),
    /// The suffix itself.
    Apex,
    /// Below the suffix, but none of these.
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
        None if front.is_empty() => Meaning::Apex,
        None => Meaning::Foreign,
        Some(front) => match front.split('.').collect::<Vec<_>>()[..] {
            [node] if !node.is_empty() => Meaning::Node(node.to_owned()),
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

    /// Whether there are pairs of this node.
    fn has_node(&self, node: &str) -> bool;

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

#[cfg(test)]
mod tests {
    //! ICC-10: names for more pairs than there are addresses; restarts: the last one is the last; no address is given
    //! twice.

    use super::*;

    #[test]
    fn names_are_policy_node_and_suffix_and_nothing_else() {
        let pair = |policy: &str, node: &str| Meaning::Pair(policy.to_owned(), node.to_owned());
        assert_eq!(meaning("clean.b.demo", "demo"), pair("clean", "b"));
        assert_eq!(meaning("Clean.B.Demo.", "demo"), pair("clean", "b"));
        assert_eq!(meaning("clean.b.overlay.example", "overlay.example"), pair("clean", "b"));
        assert_eq!(meaning("Demo.", "demo"), Meaning::Apex);
        assert_eq!(meaning("B.demo", "demo"), Meaning::Node("b".to_owned()));
        for nothing in ["x.clean.b.demo", ".b.demo", "clean..demo", ".demo"] {
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
        let same = names.number("clean", node).map(|(number, change)| (number, change.is_some()));
        assert_eq!(same, Some((first, true)), "the same again, which is not on disk yet");
        names.saved(first);
        assert_eq!(names.number("clean", node), Some((first, None)), "the same again");
        let (second, _) = names.number("clean", other).expect("the second");
        assert_ne!(first, second);
        names.last = MOST - 1;
        let (last, _) = names.number("fast", node).expect("the last");
        assert_eq!(addresses(last, &prefix)[0].to_string(), "198.19.255.254");
        assert_eq!(names.number("fast", other), None);
        assert_eq!(names.number("clean", other).map(|(number, _)| number), Some(second));
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
}

//! Names of nodes under policies, and their addresses.
//!
//! An address is given at first use, is on disk before it is answered, and is never given to another pair: an application
//! may keep it for as long as it likes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use wayleave_core::{IdentityKey, InnerPrefixes, Prefix};
use wayleave_dataplane::gateway::Name;
use wayleave_runtime::store::{Change, FileStore, Store};

use crate::config::gateway::GatewaySection;
use crate::failure::Failure;

/// Table of the state.
const TABLE: &str = "names";
/// Questions that wait for the disk at a time; what is asked beyond these is not answered then. Fewer than are answered at a time, so that
/// names that have addresses are.
const WAITING: usize = 32;
/// Whoever asks waits for the disk so long; the write goes on.
const WRITE_TIMEOUT: Duration = Duration::from_millis(750);

/// Where the addresses of names are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Of at most 24 bits.
    pub v4: Prefix,
    /// Of 64 bits.
    pub v6: Prefix,
}

impl Blocks {
    /// What the configuration says.
    pub fn of(section: &GatewaySection) -> Self {
        Self { v4: section.names_ipv4.get_ref().0, v6: section.names.get_ref().0 }
    }

    /// Both.
    pub fn all(&self) -> [Prefix; 2] {
        [self.v4, self.v6]
    }

    /// The greatest number that has addresses: all of the IPv4 block but its first and last.
    fn most(&self) -> u32 {
        u32::MAX.checked_shr(self.v4.len().into()).unwrap_or_default().saturating_sub(1)
    }

    /// The addresses of a number, the IPv4 one first.
    pub fn addresses(&self, number: u32) -> [IpAddr; 2] {
        let [high_v4, high_v6] = self.all().map(|block| match block.address() {
            IpAddr::V4(v4) => u128::from(u32::from(v4)),
            IpAddr::V6(v6) => u128::from(v6),
        });
        // The configuration was checked: the families are these, and numbers end with the IPv4 block.
        let v4 = Ipv4Addr::from((high_v4 as u32).wrapping_add(number));
        [v4.into(), Ipv6Addr::from(high_v6 | u128::from(number)).into()]
    }

    /// The number of an address.
    pub fn number_of(&self, address: IpAddr) -> Option<u32> {
        let number = match (address, self.v4.address()) {
            (IpAddr::V4(v4), IpAddr::V4(first)) => {
                u32::from(v4).checked_sub(first.into()).filter(|number| *number <= self.most() + 1)
            }
            (IpAddr::V6(v6), _) => u32::try_from(u128::from(v6) & u128::from(u64::MAX)).ok(),
            (IpAddr::V4(_), IpAddr::V6(_)) => None,
        };
        number.filter(|number| self.addresses(*number).contains(&address))
    }
}

/// Which pair has which number.
#[derive(Debug)]
pub struct Names {
    given: BTreeMap<(String, IdentityKey), u32>,
    last: u32,
    most: u32,
}

impl Names {
    /// None is given yet.
    pub fn new(blocks: &Blocks) -> Self {
        Self { given: BTreeMap::new(), last: 0, most: blocks.most() }
    }

    /// What was given in earlier lives. Numbers without an address, as when the block was larger then, are given anew.
    pub fn load(store: &FileStore, blocks: &Blocks) -> Result<Self, Failure> {
        let mut names = Self::new(blocks);
        for (key, value) in store.load(TABLE).map_err(|error| Failure::new(error.to_string()))? {
            let pair = key
                .split_last_chunk::<32>()
                .and_then(|(policy, node)| Some((String::from_utf8(policy.to_vec()).ok()?, IdentityKey(*node))));
            if let (Some(pair), Ok(number)) = (pair, <[u8; 4]>::try_from(&value[..])) {
                let number = u32::from_be_bytes(number);
                if number > names.most {
                    continue;
                }
                names.last = names.last.max(number);
                names.given.insert(pair, number);
            }
        }
        Ok(names)
    }

    /// The number of a pair, which no other one ever has; a new one if it has none. `None` if all are given.
    pub fn number(&mut self, policy: &str, node: IdentityKey) -> Option<u32> {
        let pair = (policy.to_owned(), node);
        if let Some(number) = self.given.get(&pair) {
            return Some(*number);
        }
        self.last = Some(self.last + 1).filter(|number| *number <= self.most)?;
        self.given.insert(pair, self.last);
        Some(self.last)
    }

    /// Every pair that has addresses.
    pub fn given(&self) -> impl Iterator<Item = (&str, IdentityKey, u32)> {
        self.given.iter().map(|((policy, node), number)| (policy.as_str(), *node, *number))
    }
}

/// The names of a gateway beside the store that keeps them. A pair has its number at once and for good; it is answered once it is
/// durable. Nothing is locked while the disk writes.
pub struct Register<S> {
    names: Mutex<Names>,
    store: Arc<S>,
    /// Numbers that are not known to be durable, and whether a write of each is under way.
    unsaved: Arc<watch::Sender<BTreeMap<u32, bool>>>,
    waiting: Semaphore,
}

impl<S: Store> Register<S> {
    pub fn new(names: Names, store: Arc<S>) -> Self {
        let (names, waiting) = (Mutex::new(names), Semaphore::new(WAITING));
        Self { names, store, unsaved: Arc::new(watch::Sender::default()), waiting }
    }

    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// What is given, durable or not.
    pub fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a pair, and whether it is new; a write of it is under way, unless it is durable or the store's queue is full.
    /// `None` if all are given.
    pub fn reserve(&self, policy: &str, node: IdentityKey) -> Option<(u32, bool)> {
        let mut names = self.names();
        let before = names.last;
        let number = names.number(policy, node)?;
        let is_new = names.last != before;
        let mut begins = false;
        self.unsaved.send_if_modified(|unsaved| {
            if is_new {
                unsaved.insert(number, false);
            }
            begins = unsaved.get_mut(&number).is_some_and(|is_writing| !std::mem::replace(is_writing, true));
            begins
        });
        drop(names);
        if begins {
            let key = [policy.as_bytes(), &node.0].concat();
            let change = Change { table: TABLE, key, value: Some(number.to_be_bytes().to_vec()) };
            let unsaved = Arc::clone(&self.unsaved);
            let durable = move || {
                unsaved.send_modify(|unsaved| {
                    unsaved.remove(&number);
                })
            };
            if self.store.submit(vec![change], Box::new(durable)).is_err() {
                self.unsaved.send_modify(|unsaved| unsaved.extend([(number, false)]));
            }
        }
        Some((number, is_new))
    }

    /// Whether a number that was given is known to be durable.
    pub fn is_saved(&self, number: u32) -> bool {
        !self.unsaved.borrow().contains_key(&number)
    }

    /// Waits until a number is durable, for a while. Returns whether it is.
    pub async fn is_durable(&self, number: u32) -> bool {
        if self.is_saved(number) {
            return true;
        }
        let Ok(_waiting) = self.waiting.try_acquire() else { return false };
        let mut unsaved = self.unsaved.subscribe();
        // What cannot be written now is written for whoever asks next.
        let settled = unsaved.wait_for(|unsaved| unsaved.get(&number) != Some(&true));
        let settled = tokio::time::timeout(WRITE_TIMEOUT, settled).await;
        settled.is_ok_and(|unsaved| unsaved.is_ok_and(|unsaved| !unsaved.contains_key(&number)))
    }
}

/// What a question means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Policy and node, in lower case.
    Pair(String, String),
    /// A node, in lower case, under the first policy: the names of its pairs are below it.
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

    /// The addresses of a pair that exists, durable; without a policy that of the first one. `Err` if it exists but there is no address
    /// left, or the disk does not write.
    fn look_up(&self, policy: Option<&str>, node: &str)
    -> impl Future<Output = Option<Result<Vec<IpAddr>, ()>>> + Send;

    /// Where the addresses of names are.
    fn blocks(&self) -> &Blocks;

    /// The name of an address, if it is given and the pair exists.
    fn name_of(&self, address: IpAddr) -> Option<String>;
}

/// Those of a name's addresses whose family both ends have: an application that tries one of another waits for nothing.
pub fn usable(addresses: [IpAddr; 2], prefixes: &InnerPrefixes, ends: [&IdentityKey; 2]) -> Vec<IpAddr> {
    let has = |end: &IdentityKey, is_v4: bool| {
        prefixes.iter().any(|(prefix, owner)| owner == end && prefix.address().is_ipv4() == is_v4)
    };
    addresses.into_iter().filter(|address| ends.iter().all(|end| has(end, address.is_ipv4()))).collect()
}

/// What a policy's name stands for in the machine.
pub fn name(policy: &str, node: IdentityKey) -> Name {
    Name { policy: policy.to_owned(), node }
}

#[cfg(test)]
mod tests {
    //! ICC-10: names for more pairs than there are addresses; restarts: the last one is the last; no address is given
    //! twice.

    use std::sync::atomic::{AtomicBool, Ordering};

    use wayleave_runtime::store::{Durable, Health, Record, StoreError};

    use super::*;

    fn blocks(v4: &str) -> Blocks {
        let of = |text: &str| text.parse().expect("a prefix");
        Blocks { v4: of(v4), v6: of("fd77::/64") }
    }

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
    fn a_name_has_addresses_of_the_families_that_both_ends_have() {
        let (own, four, six) = (IdentityKey([1; 32]), IdentityKey([4; 32]), IdentityKey([6; 32]));
        let mut prefixes = InnerPrefixes::default();
        for (prefix, owner) in [("10.0.0.0/24", own), ("fd00::/64", own), ("10.0.4.0/24", four), ("fd00:6::/64", six)] {
            prefixes.insert(prefix.parse().expect("a prefix"), owner);
        }
        let both = blocks("198.18.0.0/15").addresses(1);
        assert_eq!(usable(both, &prefixes, [&own, &four]), [both[0]]);
        assert_eq!(usable(both, &prefixes, [&own, &six]), [both[1]]);
        assert_eq!(usable(both, &prefixes, [&own, &own]), both);
        assert!(usable(both, &prefixes, [&four, &six]).is_empty());
    }

    #[test]
    fn every_pair_has_addresses_of_its_own_and_the_last_one_is_the_last() {
        for (block, of_first, of_last) in [
            ("198.18.0.0/15", "198.18.0.1", "198.19.255.254"),
            ("198.19.0.0/16", "198.19.0.1", "198.19.255.254"),
            ("10.0.0.0/8", "10.0.0.1", "10.255.255.254"),
            ("100.64.9.0/24", "100.64.9.1", "100.64.9.254"),
        ] {
            let blocks = blocks(block);
            let mut names = Names::new(&blocks);
            let (node, other) = (IdentityKey([1; 32]), IdentityKey([2; 32]));
            let first = names.number("clean", node).expect("the first");
            assert_eq!(blocks.addresses(first).map(|address| address.to_string()), [of_first, "fd77::1"]);
            assert_eq!(names.number("clean", node), Some(first), "the same again");
            let second = names.number("clean", other).expect("the second");
            assert_ne!(first, second);
            names.last = blocks.most() - 1;
            let last = names.number("fast", node).expect("the last");
            let of_number = blocks.addresses(last);
            assert_eq!(of_number[0].to_string(), of_last);
            assert_eq!(of_number.map(|address| blocks.number_of(address)), [Some(last); 2]);
            assert!(blocks.v4.contains(&Prefix::new(of_number[0], 32).expect("a prefix")));
            assert_eq!(names.number("fast", other), None);
            assert_eq!(names.number("clean", other), Some(second));
            for foreign in ["9.255.255.255", "198.17.255.255", "198.20.0.0", "100.64.10.0", "fd78::1"] {
                assert_eq!(blocks.number_of(foreign.parse().expect("an address")), None, "{block}: {foreign}");
            }
        }
    }

    #[test]
    fn a_number_that_has_no_address_in_a_smaller_block_is_given_anew() {
        let path = std::env::temp_dir().join(format!("wayleave-names-smaller-{}.redb", std::process::id()));
        let names = |number: u32| {
            let key = [b"a".as_slice(), &[number as u8; 32]].concat();
            Change { table: TABLE, key, value: Some(number.to_be_bytes().to_vec()) }
        };
        let store = FileStore::open(&path).expect("a store");
        store.submit(vec![names(1), names(255)], Box::new(|| ())).expect("queued");
        store.close();
        let store = FileStore::open(&path).expect("a store");
        let mut smaller = Names::load(&store, &blocks("10.7.7.0/24")).expect("what was given");
        assert_eq!(smaller.number("a", IdentityKey([1; 32])), Some(1));
        assert_eq!(smaller.number("a", IdentityKey([255; 32])), Some(2), "254 is the last one of the block");
        drop(store);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn addresses_survive_and_are_never_given_to_another_pair() {
        let path = std::env::temp_dir().join(format!("wayleave-names-{}.redb", std::process::id()));
        let register = || {
            let store = FileStore::open(&path).expect("a store");
            let names = Names::load(&store, &blocks("198.18.0.0/15")).expect("what was given");
            Register::new(names, Arc::new(store))
        };
        let of_first = register();
        for policy in ["a", "b"] {
            of_first.reserve(policy, IdentityKey([1; 32])).expect("there are more");
        }
        drop(of_first);
        let of_second = register();
        assert_eq!(of_second.reserve("b", IdentityKey([1; 32])), Some((2, false)));
        assert_eq!(of_second.reserve("c", IdentityKey([1; 32])), Some((3, true)));
        drop(of_second);
        std::fs::remove_file(path).expect("removed");
    }

    /// A disk that writes when the test says so, or has no room in its queue.
    #[derive(Default)]
    struct Disk {
        waiting: Mutex<Vec<Durable>>,
        is_busy: AtomicBool,
    }

    impl Store for Disk {
        fn submit(&self, _: Vec<Change>, durable: Durable) -> Result<(), StoreError> {
            if self.is_busy.load(Ordering::Relaxed) {
                return Err(StoreError::Busy("names.redb".into()));
            }
            self.waiting.lock().expect("no panic").push(durable);
            Ok(())
        }

        fn load(&self, _: &'static str) -> Result<Vec<Record>, StoreError> {
            Ok(Vec::new())
        }

        fn health(&self) -> watch::Receiver<Health> {
            watch::channel(Health::Good).1
        }
    }

    #[tokio::test]
    async fn a_name_is_written_once_and_answered_once_that_is_durable_and_others_do_not_wait() {
        let disk = Arc::new(Disk::default());
        let register = Register::new(Names::new(&blocks("198.18.0.0/15")), Arc::clone(&disk));
        let node = IdentityKey([1; 32]);
        let write = || std::mem::take(&mut *disk.waiting.lock().expect("no panic"));
        assert_eq!(register.reserve("a", node), Some((1, true)));
        write().into_iter().for_each(|durable| durable());
        for _ in 0..100 {
            assert_eq!(register.reserve("b", node).map(|(number, _)| number), Some(2));
        }
        assert!(!register.is_durable(2).await, "it is not, and whoever asks is told in time");
        assert!(register.is_durable(1).await);
        assert_eq!(register.reserve("c", node), Some((3, true)), "its number is nobody else's");
        let writes = write();
        assert_eq!(writes.len(), 2, "one of each, however often somebody asked");
        let (durable, ()) =
            tokio::join!(register.is_durable(2), async { writes.into_iter().for_each(|write| write()) });
        assert!(durable && register.is_durable(3).await);
        // A queue without room: the next one who asks writes it.
        disk.is_busy.store(true, Ordering::Relaxed);
        assert_eq!(register.reserve("d", node), Some((4, true)));
        assert!(!register.is_durable(4).await);
        disk.is_busy.store(false, Ordering::Relaxed);
        assert_eq!(register.reserve("d", node), Some((4, false)));
        write().into_iter().for_each(|durable| durable());
        assert!(register.is_durable(4).await);
    }
}

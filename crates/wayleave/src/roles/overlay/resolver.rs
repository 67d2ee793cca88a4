//! Addresses of neighbours whose endpoints are names of DNS: asked for in the background, and given from memory.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use wayleave_control::advert::Endpoint;

use crate::config::links::Resolution;

/// A name is asked for this often.
const INTERVAL: Duration = Duration::from_secs(60);
/// And no sooner, however often sessions to it fail.
const LEAST: Duration = Duration::from_secs(5);
/// A name that nobody wanted for so long is not asked for any more.
const UNUSED: Duration = Duration::from_secs(600);
/// Names that are remembered: more than a node has links.
const MAX_NAMES: usize = 8_192;
/// Addresses of a name that are remembered.
const MAX_ADDRESSES: usize = 16;
/// Why a name has no addresses.
const NOT_YET: &str = "this machine's resolver has not answered yet";
const NO_ADDRESS: &str = "it has no address to which anything can be sent";
/// Questions at a time. The system answers each by a thread that waits, and a name that a member made up may keep it waiting.
const AT_ONCE: usize = 16;

/// Clones are the same one.
#[derive(Clone)]
pub struct Resolver {
    names: Arc<Mutex<Names>>,
    asks: mpsc::Sender<Endpoint>,
    changes: watch::Sender<()>,
}

impl Resolver {
    /// Asks the system, until the last clone is gone.
    pub fn start() -> Self {
        let (asks, mut asked) = mpsc::channel(MAX_NAMES);
        let resolver = Self { names: Arc::default(), asks, changes: watch::Sender::new(()) };
        let (names, changes) = (Arc::downgrade(&resolver.names), resolver.changes.clone());
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let permits = Arc::new(Semaphore::new(AT_ONCE));
            loop {
                let due = tokio::select! {
                    endpoint = asked.recv() => endpoint.map(|endpoint| vec![endpoint]),
                    _ = ticks.tick() => names.upgrade().map(|names| lock(&names).due(Instant::now())),
                };
                let Some(due) = due else { return }; // nobody is left who asks
                for endpoint in due {
                    let (names, changes, permits) = (names.clone(), changes.clone(), Arc::clone(&permits));
                    tokio::spawn(async move {
                        let _permit = permits.acquire().await; // never closed
                        let found = tokio::net::lookup_host(endpoint.as_str()).await.map(Iterator::collect);
                        let Some(names) = names.upgrade() else { return };
                        if lock(&names).answer(&endpoint, found) {
                            changes.send_replace(());
                        }
                    });
                }
            }
        });
        resolver
    }

    /// The addresses of an endpoint that are known now, those of the family of `local` first. One whose name is new has none yet. Never
    /// waits.
    pub fn resolved(&self, endpoint: &Endpoint, local: SocketAddr) -> Vec<SocketAddr> {
        if let Some(address) = endpoint.literal() {
            return vec![address];
        }
        let mut names = lock(&self.names);
        let (mut addresses, is_new) = names.get(endpoint, Instant::now());
        if is_new {
            self.ask(&mut names, endpoint);
        }
        addresses.sort_by_key(|address| address.is_ipv4() != local.is_ipv4()); // stable: else in the system's order
        addresses
    }

    /// What is known of an endpoint's addresses, and why there are none, or none since. It asks nobody.
    pub fn resolution(&self, endpoint: &Endpoint) -> Resolution {
        if let Some(address) = endpoint.literal() {
            return Resolution { addresses: vec![address], fault: None };
        }
        let not_yet = || Resolution { addresses: Vec::new(), fault: Some(NOT_YET.to_owned()) };
        lock(&self.names)
            .0
            .get(endpoint)
            .map_or_else(not_yet, |name| Resolution { addresses: name.addresses.clone(), fault: name.fault.clone() })
    }

    /// No session to the endpoint comes about: its name may have another address.
    pub fn ask_again(&self, endpoint: &Endpoint) {
        let mut names = lock(&self.names);
        if names.is_old(endpoint, Instant::now()) {
            self.ask(&mut names, endpoint);
        }
    }

    /// Changes when some name has other addresses than before.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn ask(&self, names: &mut Names, endpoint: &Endpoint) {
        // Where as many wait already, the next tick asks.
        if self.asks.try_send(endpoint.clone()).is_ok() {
            names.asking(endpoint, Instant::now());
        }
    }
}

fn lock(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of each name.
#[derive(Default)]
struct Names(HashMap<Endpoint, Name>);

struct Name {
    /// Those of the last answer that had any: that none comes, or that there are none, ends no session that works.
    addresses: Vec<SocketAddr>,
    /// Why the last question has no address as its answer.
    fault: Option<String>,
    asked: Option<Instant>,
    is_being_asked: bool,
    used: Instant,
}

impl Names {
    /// The addresses of a name, and whether nobody has asked for it yet.
    fn get(&mut self, endpoint: &Endpoint, now: Instant) -> (Vec<SocketAddr>, bool) {
        if !self.0.contains_key(endpoint) && self.0.len() >= MAX_NAMES {
            return (Vec::new(), false);
        }
        let new = || Name {
            addresses: Vec::new(),
            fault: Some(NOT_YET.to_owned()),
            asked: None,
            is_being_asked: false,
            used: now,
        };
        let name = self.0.entry(endpoint.clone()).or_insert_with(new);
        name.used = now;
        (name.addresses.clone(), name.asked.is_none())
    }

    /// Whether a name may be asked for again.
    fn is_old(&self, endpoint: &Endpoint, now: Instant) -> bool {
        let is_old = |name: &Name| name.asked.is_none_or(|asked| now.duration_since(asked) >= LEAST);
        self.0.get(endpoint).is_some_and(|name| !name.is_being_asked && is_old(name))
    }

    fn asking(&mut self, endpoint: &Endpoint, now: Instant) {
        if let Some(name) = self.0.get_mut(endpoint) {
            (name.is_being_asked, name.asked) = (true, Some(now));
        }
    }

    /// The names to ask for at a tick; those that nobody wants any more are forgotten.
    fn due(&mut self, now: Instant) -> Vec<Endpoint> {
        self.0.retain(|_, name| name.is_being_asked || now.duration_since(name.used) < UNUSED);
        let due: Vec<Endpoint> = self.0.keys().filter(|endpoint| self.is_old(endpoint, now)).cloned().collect();
        due.iter().for_each(|endpoint| self.asking(endpoint, now));
        due
    }

    /// Takes an answer in; says whether the addresses are others than before.
    fn answer(&mut self, endpoint: &Endpoint, found: io::Result<Vec<SocketAddr>>) -> bool {
        let Some(name) = self.0.get_mut(endpoint) else { return false };
        name.is_being_asked = false;
        let mut fault = None;
        let found = found.unwrap_or_else(|error| {
            tracing::debug!(%endpoint, "the name of a neighbour's endpoint is not resolved: {error}");
            fault = Some(error.to_string());
            Vec::new()
        });
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in
            found.into_iter().filter(|address| !address.ip().is_unspecified() && !address.ip().is_multicast())
        {
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        name.fault = fault.or_else(|| addresses.is_empty().then(|| NO_ADDRESS.to_owned()));
        // Servers give the same addresses in another order each time.
        let is_same = |before: &[SocketAddr]| {
            before.len() == addresses.len() && addresses.iter().all(|address| before.contains(address))
        };
        let has_changed = !addresses.is_empty() && !is_same(&name.addresses);
        if has_changed {
            name.addresses = addresses;
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_name_is_asked_for_at_each_tick_and_when_sessions_fail_but_not_as_often_as_they_fail() {
        let (mut names, name, start) = (Names::default(), endpoint("node.example.net:7"), Instant::now());
        let [one, two] = [addresses(&["192.0.2.1:7", "[2001:db8::1]:7"]), addresses(&["192.0.2.2:7"])];
        assert_eq!(names.get(&name, start), (Vec::new(), true));
        names.asking(&name, start);
        assert_eq!(names.get(&name, start), (Vec::new(), false));
        assert!(
            names.due(start + INTERVAL).is_empty() && !names.is_old(&name, start + INTERVAL),
            "the answer is under way"
        );
        assert!(names.answer(&name, Ok(one.clone())));
        assert!(!names.is_old(&name, start + LEAST / 2) && names.is_old(&name, start + LEAST));
        assert_eq!(names.due(start + INTERVAL), std::slice::from_ref(&name));
        // The same in another order, twice, or beside what cannot be sent to is no change; nor is no answer, nor an empty one.
        let reversed = [&addresses(&["0.0.0.0:7", "224.0.0.1:7"])[..], &one[1..], &one[..1], &one[..1]].concat();
        for answer in [Ok(reversed), Err(io::ErrorKind::TimedOut.into()), Ok(Vec::new())] {
            assert!(!names.answer(&name, answer));
            assert_eq!(names.get(&name, start), (one.clone(), false));
        }
        let fault = |names: &Names| names.0[&name].fault.clone();
        assert_eq!(fault(&names).as_deref(), Some(NO_ADDRESS));
        assert!(!names.answer(&name, Err(io::Error::other("no such name"))));
        assert_eq!((fault(&names).as_deref(), names.get(&name, start).0), (Some("no such name"), one.clone()));
        assert!(names.answer(&name, Ok(two.clone())));
        assert_eq!((names.get(&name, start), fault(&names)), ((two, false), None));
        let many: Vec<SocketAddr> = (1..100).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect();
        assert!(names.answer(&name, Ok(many)));
        assert_eq!(names.get(&name, start).0.len(), MAX_ADDRESSES);
    }

    #[test]
    fn names_that_nobody_wants_are_forgotten_and_no_more_than_so_many_are_kept() {
        let (mut names, start) = (Names::default(), Instant::now());
        let name = |number: usize| endpoint(&format!("n{number}:7"));
        let new: usize = (0..MAX_NAMES + 10).map(|number| usize::from(names.get(&name(number), start).1)).sum();
        assert_eq!((new, names.0.len()), (MAX_NAMES, MAX_NAMES));
        names.get(&name(5), start + UNUSED / 2);
        assert_eq!(names.due(start + UNUSED), [name(5)]);
        assert_eq!(names.0.len(), 1);
    }

    #[tokio::test]
    async fn the_system_is_asked_in_the_background() {
        let resolver = Resolver::start();
        let (mut changes, local) = (resolver.changes(), SocketAddr::from(([192, 0, 2, 9], 1)));
        assert_eq!(resolver.resolved(&endpoint("192.0.2.1:5"), local), addresses(&["192.0.2.1:5"]));
        assert!(lock(&resolver.names).0.is_empty(), "an address is not asked for");
        assert!(resolver.resolved(&endpoint("localhost:7"), local).is_empty(), "it does not wait");
        changes.changed().await.unwrap();
        assert_eq!(resolver.resolved(&endpoint("localhost:7"), local)[0], SocketAddr::from(([127, 0, 0, 1], 7)));
    }
}

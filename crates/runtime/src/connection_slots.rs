//! Which connections a server keeps when more come than it has slots for.
//!
//! Before a client has said who it is, nothing tells the operator of a server from a stranger. So a server that is full does not
//! refuse the newest connection: it closes the oldest idle one of the source prefix that has most of them. A stranger who holds
//! connections open loses them to whoever comes next, and a client that comes from elsewhere needs a slot for no longer than its
//! first request takes. Connections whose client is known keep their slots.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// How many connections there may be at a time.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    pub connections: usize,
    /// Of one source prefix, see [`source_prefix`].
    pub of_source: usize,
    /// Of one known client, from wherever: those beyond are treated like those of strangers.
    pub of_client: usize,
}

/// The network that a connection comes from: an IPv4 /24, or an IPv6 /56. One customer of a provider has as much as that.
#[must_use]
pub fn source_prefix(from: IpAddr) -> u128 {
    match from {
        // IPv6 prefixes of 56 bits never set the highest bit.
        IpAddr::V4(v4) => 1 << 127 | u128::from(v4.to_bits() >> 8),
        IpAddr::V6(v6) => v6.to_bits() >> 72,
    }
}

/// The slots of a server.
#[derive(Clone, Debug)]
pub struct ConnectionSlots(Arc<Mutex<Slots>>);

#[derive(Debug)]
struct Slots {
    limits: SlotLimits,
    /// Connections by age: each activity makes one the youngest.
    by_age: BTreeMap<u64, Slot>,
    next: u64,
    /// Connections that were closed for others, and those that were refused, since the start.
    evicted: u64,
    refused: u64,
}

#[derive(Debug)]
struct Slot {
    prefix: u128,
    /// A request is being carried out.
    is_busy: bool,
    client: Option<Arc<str>>,
    /// Dropped to close the connection.
    _open: oneshot::Sender<()>,
}

impl Slot {
    fn is_evictable(&self) -> bool {
        !self.is_busy && self.client.is_none()
    }
}

/// A connection's slot, which is free again when this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    slots: ConnectionSlots,
    age: Arc<Mutex<u64>>,
}

/// Changes a connection's slot while its requests are served.
#[derive(Clone, Debug)]
pub struct SlotHandle {
    slots: ConnectionSlots,
    age: Arc<Mutex<u64>>,
}

/// Resolves when the connection has to be closed.
pub type Eviction = oneshot::Receiver<()>;

impl ConnectionSlots {
    #[must_use]
    pub fn new(limits: SlotLimits) -> Self {
        Self(Arc::new(Mutex::new(Slots { limits, by_age: BTreeMap::new(), next: 0, evicted: 0, refused: 0 })))
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a new connection, if need be that of an older one; `None` if no connection may be closed for it.
    #[must_use]
    pub fn take(&self, from: IpAddr) -> Option<(ConnectionSlot, Eviction)> {
        let mut slots = self.slots();
        let prefix = source_prefix(from);
        if !slots.make_space(prefix) {
            slots.refused += 1;
            return None;
        }
        let (open, eviction) = oneshot::channel();
        let age = slots.insert(Slot { prefix, is_busy: false, client: None, _open: open });
        drop(slots);
        Some((ConnectionSlot { slots: self.clone(), age: Arc::new(Mutex::new(age)) }, eviction))
    }

    /// Connections now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots().by_age.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Connections that were closed for newer ones since the start.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.slots().evicted
    }

    /// Connections that were refused since the start, because none could be closed for them.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.slots().refused
    }
}

impl Slots {
    fn insert(&mut self, slot: Slot) -> u64 {
        let age = self.next;
        self.next += 1;
        self.by_age.insert(age, slot);
        age
    }

    /// Closes a connection if all slots are taken, or all of the source's; returns whether there is a free one now.
    fn make_space(&mut self, prefix: u128) -> bool {
        let of_source = self.by_age.values().filter(|slot| slot.prefix == prefix).count();
        let victim = if of_source >= self.limits.of_source {
            self.oldest(prefix)
        } else if self.by_age.len() >= self.limits.connections {
            self.largest_source().and_then(|source| self.oldest(source))
        } else {
            return true;
        };
        let Some(victim) = victim else { return false };
        self.by_age.remove(&victim);
        self.evicted += 1;
        true
    }

    /// The oldest connection of a source that may be closed.
    fn oldest(&self, prefix: u128) -> Option<u64> {
        let mut evictable = self.by_age.iter().filter(|(_, slot)| slot.prefix == prefix && slot.is_evictable());
        evictable.next().map(|(age, _)| *age)
    }

    /// The source with most connections that may be closed; of several, the one with the oldest.
    fn largest_source(&self) -> Option<u128> {
        let mut sources: HashMap<u128, (usize, u64)> = HashMap::new();
        for (age, slot) in self.by_age.iter().filter(|(_, slot)| slot.is_evictable()) {
            sources.entry(slot.prefix).or_insert((0, *age)).0 += 1;
        }
        let largest = sources.into_iter().max_by_key(|(_, (count, oldest))| (*count, std::cmp::Reverse(*oldest)));
        largest.map(|(prefix, _)| prefix)
    }
}

impl ConnectionSlot {
    /// A handle for what serves the connection's requests.
    #[must_use]
    pub fn handle(&self) -> SlotHandle {
        SlotHandle { slots: self.slots.clone(), age: Arc::clone(&self.age) }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let age = self.age.lock().unwrap_or_else(PoisonError::into_inner);
        self.slots.slots().by_age.remove(&age);
    }
}

impl SlotHandle {
    fn update<T>(&self, update: impl FnOnce(&mut Slots, &mut u64) -> T) -> T {
        // The age is locked before the slots, as where a slot is dropped: the other way round two threads could wait for each other.
        let mut age = self.age.lock().unwrap_or_else(PoisonError::into_inner);
        update(&mut self.slots.slots(), &mut age)
    }

    /// A request has arrived: the connection is the youngest, and stays open while the request is carried out.
    pub fn begin_request(&self) {
        self.update(|slots, age| {
            if let Some(mut slot) = slots.by_age.remove(age) {
                slot.is_busy = true;
                *age = slots.insert(slot);
            }
        });
    }

    /// The request is answered.
    pub fn end_request(&self) {
        self.update(|slots, age| {
            if let Some(slot) = slots.by_age.get_mut(age) {
                slot.is_busy = false;
            }
        });
    }

    /// Who the client is: a known one keeps its slot, while it has no more of them than it may have.
    pub fn set_client(&self, client: Option<&str>) {
        self.update(|slots, age| {
            let is_of = |slot: &Slot, name: &str| slot.client.as_deref() == Some(name);
            let others =
                |name: &str| slots.by_age.iter().filter(|(of, slot)| **of != *age && is_of(slot, name)).count();
            let client = client.filter(|name| others(name) < slots.limits.of_client).map(Arc::from);
            if let Some(slot) = slots.by_age.get_mut(age) {
                slot.client = client;
            }
        });
    }

    /// Whether the client is known, or a request is being carried out.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.update(|slots, age| slots.by_age.get(age).is_some_and(|slot| !slot.is_evictable()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SlotLimits = SlotLimits { connections: 100, of_source: 10, of_client: 3 };

    type Connection = (ConnectionSlot, Eviction);

    fn from(network: u8, host: u8) -> IpAddr {
        [192, 0, network, host].into()
    }

    fn is_open((_, eviction): &mut Connection) -> bool {
        matches!(eviction.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    fn open(all: &mut [Connection]) -> usize {
        all.iter_mut().filter_map(|connection| is_open(connection).then_some(())).count()
    }

    #[test]
    fn a_source_beyond_its_limit_loses_its_oldest_and_nobody_elses() {
        let slots = ConnectionSlots::new(LIMITS);
        let mut other = slots.take(from(1, 1)).expect("a slot");
        let mut all: Vec<Connection> = (0..25).filter_map(|host| slots.take(from(0, host))).collect();
        assert_eq!((all.len(), slots.len(), slots.evicted(), slots.refused()), (25, 11, 15, 0));
        assert!(is_open(&mut other) && open(&mut all[..15]) == 0 && open(&mut all[15..]) == 10);
        drop((all, other));
        assert!(slots.is_empty());
    }

    #[test]
    fn strangers_of_many_sources_that_take_all_slots_lose_one_for_each_that_comes_from_elsewhere() {
        let slots = ConnectionSlots::new(LIMITS);
        let mut strangers: Vec<Connection> = (0..100).filter_map(|at| slots.take(from(at / 10, at))).collect();
        assert_eq!((slots.len(), open(&mut strangers)), (100, 100));
        let mut operator = slots.take(from(200, 1)).expect("a slot");
        assert_eq!((slots.len(), open(&mut strangers)), (100, 99));
        // They come again and again: each costs one of their own, never the one connection of another source.
        for at in 0..255 {
            strangers.extend(slots.take(from(at % 10, at)));
        }
        assert!(is_open(&mut operator));
        assert_eq!((slots.len(), open(&mut strangers)), (100, 99));
    }

    #[test]
    fn known_clients_and_requests_that_are_carried_out_keep_their_slots() {
        let slots = ConnectionSlots::new(SlotLimits { connections: 4, of_source: 4, of_client: 2 });
        let mut all: Vec<Connection> = (0..4).filter_map(|at| slots.take(from(at, 1))).collect();
        all[0].0.handle().set_client(Some("operator"));
        all[1].0.handle().begin_request();
        let mut more: Vec<Connection> = (10..14).filter_map(|at| slots.take(from(at, 1))).collect();
        assert_eq!((more.len(), open(&mut all[..2]), open(&mut all[2..]), open(&mut more)), (4, 2, 0, 2));
        assert!(all[0].0.handle().is_kept() && all[1].0.handle().is_kept() && !more[3].0.handle().is_kept());
        // A client has some, and not all.
        for connection in &more[2..] {
            connection.0.handle().set_client(Some("operator"));
        }
        assert!(more[2].0.handle().is_kept() && !more[3].0.handle().is_kept());
        more[3].0.handle().set_client(Some("billing"));
        assert!(slots.take(from(20, 1)).is_none(), "nobody may be closed");
        assert_eq!(slots.refused(), 1);
        all[1].0.handle().end_request();
        assert!(slots.take(from(20, 1)).is_some());
        more[2].0.handle().set_client(None);
        assert!(slots.take(from(21, 1)).is_some());
    }

    #[test]
    fn the_connection_that_was_active_last_is_closed_last() {
        let slots = ConnectionSlots::new(SlotLimits { connections: 3, of_source: 3, of_client: 0 });
        let mut all: Vec<Connection> = (0..3).filter_map(|host| slots.take(from(0, host))).collect();
        all[0].0.handle().begin_request();
        all[0].0.handle().end_request();
        let _newest = slots.take(from(0, 9)).expect("a slot");
        assert!(is_open(&mut all[0]) && !is_open(&mut all[1]) && is_open(&mut all[2]));
    }

    #[test]
    fn prefixes_are_those_of_customers() {
        let prefix = |text: &str| source_prefix(text.parse().expect("an address"));
        assert_eq!(prefix("192.0.2.1"), prefix("192.0.2.254"));
        assert_ne!(prefix("192.0.2.1"), prefix("192.0.3.1"));
        assert_eq!(prefix("2001:db8:0:ff::1"), prefix("2001:db8:0:1::2"));
        assert_ne!(prefix("2001:db8:0:100::1"), prefix("2001:db8:0:1::2"));
    }
}

//! Links whose neighbours prove themselves, at a node with several threads: the first thread speaks with all neighbours, and tells the
//! others where each one is. What comes to another thread by mistake, and what another thread cannot send itself, goes to the first.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::take;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use wayleave_core::{Instant, Now};
use wayleave_dataplane::link::{At, Datagram, Links};

/// Messages, and packets, of others that the first thread takes in a turn.
const AT_ONCE: usize = 64;
/// Packets that other threads have handed to the first one and that wait there, at most, and their octets.
const LIMIT_WAITING: usize = 1024;
const LIMIT_WAITING_OCTETS: usize = 1 << 20;

/// Packets and octets that a thread has sent to a neighbour and received from it.
#[derive(Clone, Copy, Default)]
pub struct Carried {
    sent: (u64, u64),
    received: (u64, u64),
}

impl Carried {
    fn add(&mut self, other: Self) {
        let sum = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
        (self.sent, self.received) = (sum(self.sent, other.sent), sum(self.received, other.received));
    }
}

/// Where neighbours are.
#[derive(Default)]
pub struct Places {
    by_address: HashMap<At, u16>,
    by_link: HashMap<u16, At>,
}

/// What waits for the first thread.
#[derive(Default)]
struct Inbox {
    messages: Waiting,
    packets: Waiting,
    carried: HashMap<u16, Carried>,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<(At, Vec<u8>)>,
    octets: usize,
}

impl Waiting {
    /// Returns whether there was room.
    fn push(&mut self, at: At, octets: &[u8]) -> bool {
        let has_room = self.queue.len() < LIMIT_WAITING && self.octets + octets.len() <= LIMIT_WAITING_OCTETS;
        if has_room {
            self.octets += octets.len();
            self.queue.push_back((at, octets.to_vec()));
        }
        has_room
    }

    fn pop(&mut self) -> Option<(At, Vec<u8>)> {
        let (at, octets) = self.queue.pop_front()?;
        self.octets -= octets.len();
        Some((at, octets))
    }
}

/// What the threads of a node share.
pub struct Shared {
    /// How often `places` was set.
    version: AtomicU64,
    places: Mutex<Arc<Places>>,
    /// Whether anything waits in `inbox`: the first thread looks there in every turn.
    is_waiting: AtomicBool,
    /// Whether counts do. Nobody is woken for them, or traffic of the others would cost the first thread a turn for each of theirs: it looks at
    /// its timers some ten times a second in any case, and before each message that speaks of counts.
    has_counts: AtomicBool,
    /// Readable when something began to wait.
    wake: OwnedFd,
    inbox: Mutex<Inbox>,
}

impl Shared {
    /// # Errors
    /// What the system said: too many files are open.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let (version, places, is_waiting, has_counts, inbox) = Default::default();
        Ok(Self { version, places, is_waiting, has_counts, wake, inbox })
    }

    /// Says that something waits.
    fn wake(&self) {
        if !self.is_waiting.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes()); // it is readable already
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Arc<Places>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The links as one thread has them.
pub enum LinkThread {
    First {
        links: Box<Links>,
        /// None if there are no others.
        shared: Option<Arc<Shared>>,
        /// The changes of addresses that the others know of.
        told: Option<u64>,
        /// What others handed over, in this turn; none if nothing was taken in yet.
        handed: Option<std::vec::IntoIter<(At, Vec<u8>)>>,
        /// Links whose neighbours have said that they end.
        closed: Vec<u16>,
    },
    Other {
        shared: Arc<Shared>,
        version: u64,
        places: Arc<Places>,
        carried: HashMap<u16, Carried>,
    },
}

impl LinkThread {
    /// The first thread, and what it shares with others if there are any.
    pub fn first(links: Links, shared: Option<Arc<Shared>>) -> Self {
        Self::First { links: Box::new(links), shared, told: None, handed: None, closed: Vec::new() }
    }

    pub fn other(shared: Arc<Shared>) -> Self {
        Self::Other { shared, version: 0, places: Arc::default(), carried: HashMap::new() }
    }

    /// The machine, at the first thread.
    pub fn links(&self) -> Option<&Links> {
        match self {
            Self::First { links, .. } => Some(links),
            Self::Other { .. } => None,
        }
    }

    pub fn links_mut(&mut self) -> Option<&mut Links> {
        match self {
            Self::First { links, .. } => Some(links),
            Self::Other { .. } => None,
        }
    }

    /// Has this thread know where neighbours are now, before it takes what they send.
    #[inline]
    pub fn refresh(&mut self) {
        if let Self::Other { shared, version, places, .. } = self {
            let latest = shared.version.load(Ordering::Acquire);
            if *version != latest {
                (*version, *places) = (latest, Arc::clone(&shared.places()));
            }
        }
    }

    /// The link by which a packet came, if that is a neighbour's address.
    #[inline]
    pub fn link_at(&self, from: At) -> Option<u16> {
        match self {
            Self::First { links, .. } => links.link_at(from),
            Self::Other { places, .. } => places.by_address.get(&from).copied(),
        }
    }

    /// Where packets for a link go, if its neighbour has an address.
    #[inline]
    pub fn address(&self, link: u16) -> Option<At> {
        match self {
            Self::First { links, .. } => links.address(link),
            Self::Other { places, .. } => places.by_link.get(&link).copied(),
        }
    }

    pub fn note_sent(&mut self, link: u16, (packets, octets): (u64, u64), now: Instant) {
        match self {
            Self::First { links, .. } => links.note_sent(link, packets, octets, now),
            Self::Other { carried, .. } => {
                carried.entry(link).or_default().add(Carried { sent: (packets, octets), ..Carried::default() });
            }
        }
    }

    pub fn note_received(&mut self, link: u16, (packets, octets): (u64, u64), now: Instant) {
        match self {
            Self::First { links, .. } => links.note_received(link, packets, octets, now),
            Self::Other { carried, .. } => {
                carried.entry(link).or_default().add(Carried { received: (packets, octets), ..Carried::default() });
            }
        }
    }

    /// Takes a message of a neighbour. One that waits for the first thread in vain is repeated by its sender.
    pub fn receive(&mut self, from: At, octets: &[u8], now: Now) {
        match self {
            Self::First { links, shared, closed, .. } => {
                shared.iter().for_each(|shared| note_counts(links, shared, now));
                closed.extend(links.receive(from, octets, now));
            }
            Self::Other { shared, .. } => {
                shared.inbox().messages.push(from, octets);
                shared.wake();
            }
        }
    }

    /// The links whose neighbours have said that they end, since the last call.
    pub fn take_closed(&mut self) -> Vec<u16> {
        match self {
            Self::First { closed, .. } => take(closed),
            Self::Other { .. } => Vec::new(),
        }
    }

    /// When the machine has to be polled again, at the first thread.
    pub fn deadline(&self) -> Option<Instant> {
        self.links().map(Links::deadline)
    }

    /// Gives a packet to the thread that has the socket for it. Returns whether that has room.
    pub fn hand_over(&self, to: At, octets: &[u8]) -> bool {
        let Self::Other { shared, .. } = self else { return false };
        let has_room = shared.inbox().packets.push(to, octets);
        shared.wake();
        has_room
    }

    /// Brings the threads together, once in every turn; then returns the next datagram that this thread is to send.
    pub fn poll(&mut self, now: Now) -> Option<Datagram> {
        self.refresh();
        match self {
            Self::First { links, shared, told, handed, closed } => {
                let handed_now = match (&mut *handed, &*shared) {
                    (None, Some(shared)) => handed.insert(take_in(links, shared, closed, now).into_iter()),
                    (None, None) => handed.insert(Vec::new().into_iter()),
                    (Some(handed), _) => handed,
                };
                if let Some(((socket, to), octets)) = handed_now.next() {
                    if let Some(link) = links.link_at((socket, to)) {
                        links.note_sent(link, 1, octets.len() as u64, now.instant);
                    }
                    return Some(Datagram { socket, to, octets });
                }
                links.handle_timeout(now);
                let (moves, by_address) = links.addresses();
                if let Some(shared) = shared
                    && *told != Some(moves)
                {
                    let by_link = by_address.iter().map(|(at, link)| (*link, *at)).collect();
                    *shared.places() = Arc::new(Places { by_address: by_address.clone(), by_link });
                    shared.version.fetch_add(1, Ordering::Release);
                    *told = Some(moves);
                }
                let said = links.poll();
                if said.is_none() {
                    *handed = None; // the turn ends
                }
                said
            }
            Self::Other { shared, carried, .. } => {
                if !carried.is_empty() {
                    let mut inbox = shared.inbox();
                    for (link, count) in carried.drain() {
                        inbox.carried.entry(link).or_default().add(count);
                    }
                    drop(inbox);
                    shared.has_counts.store(true, Ordering::Release);
                }
                None
            }
        }
    }

    /// Becomes readable when something waits for the first thread.
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::First { shared, .. } => Some(shared.as_ref()?.wake.as_fd()),
            Self::Other { .. } => None,
        }
    }

    /// Has the machine say to all neighbours that this end goes.
    pub fn close(&mut self) {
        if let Self::First { links, .. } = self {
            links.close();
        }
    }
}

/// Takes what other threads have for the first one: some at a time, since neighbours choose how much that is. Returns packets that others
/// cannot send themselves.
fn take_in(links: &mut Links, shared: &Shared, closed: &mut Vec<u16>, now: Now) -> Vec<(At, Vec<u8>)> {
    note_counts(links, shared, now);
    // In this order: what is said after the swap is written after it, too, and stays to be read.
    let _ = rustix::io::read(&shared.wake, &mut [0; 8]); // there may be nothing to read
    if !shared.is_waiting.swap(false, Ordering::AcqRel) {
        return Vec::new();
    }
    let (messages, packets) = {
        let mut inbox = shared.inbox();
        let messages: Vec<_> = (0..AT_ONCE).map_while(|_| inbox.messages.pop()).collect();
        let packets: Vec<_> = (0..AT_ONCE).map_while(|_| inbox.packets.pop()).collect();
        if !inbox.messages.queue.is_empty() || !inbox.packets.queue.is_empty() {
            shared.wake();
        }
        (messages, packets)
    };
    for (from, octets) in messages {
        closed.extend(links.receive(from, &octets, now));
    }
    packets
}

/// Takes what other threads have counted.
fn note_counts(links: &mut Links, shared: &Shared, now: Now) {
    if !shared.has_counts.swap(false, Ordering::AcqRel) {
        return;
    }
    let carried = take(&mut shared.inbox().carried);
    for (link, Carried { sent, received }) in carried {
        if sent.0 > 0 {
            links.note_sent(link, sent.0, sent.1, now.instant);
        }
        if received.0 > 0 {
            links.note_received(link, received.0, received.1, now.instant);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use wayleave_core::{IdentityKey, UnixTime};
    use wayleave_crypto::dh::DhSecret;
    use wayleave_crypto::secret::Secret;
    use wayleave_dataplane::link::{Config, Peer};

    use super::*;

    fn is_readable(waker: BorrowedFd<'_>) -> bool {
        let mut ends = [PollFd::from_borrowed_fd(waker, PollFlags::IN)];
        poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("polled") == 1
    }

    const NOW: Now = Now { instant: Instant(1_000_000_000), unix: UnixTime(1_800_000_000_000_000) };

    /// The first thread of a node, and another one.
    fn threads() -> (LinkThread, LinkThread) {
        let shared = Arc::new(Shared::new().expect("an eventfd"));
        let config = Config {
            identity: IdentityKey([1; 32]),
            realm: [2; 32],
            noise: Secret::new([3; 32]),
            seed: Secret::new([4; 32]),
        };
        let first = LinkThread::first(Links::new(config), Some(Arc::clone(&shared)));
        (first, LinkThread::other(shared))
    }

    fn turn(first: &mut LinkThread) -> usize {
        std::iter::from_fn(|| first.poll(NOW)).count()
    }

    #[test]
    fn counts_of_others_wake_nobody_and_are_there_in_the_next_turn_of_the_first_thread() {
        let (mut first, mut other) = threads();
        let peer = Peer {
            link: 7,
            identity: IdentityKey([5; 32]),
            noise: DhSecret::from_seed(&Secret::new([6; 32])).public(),
            sockets: vec![0],
            endpoints: Vec::new(),
            tls: None,
            tls_endpoints: Vec::new(),
            largest: 1_472,
        };
        first.links_mut().expect("the first thread").set_peers(vec![peer], NOW);
        turn(&mut first);
        let counts = |first: &LinkThread| {
            let all = first.links().expect("the first thread").status(NOW);
            (all[0].sent.packets, all[0].received.packets)
        };
        let mut wakes = 0;
        for _ in 0..1_000 {
            other.note_sent(7, (3, 300), NOW.instant);
            other.note_received(7, (1, 100), NOW.instant);
            assert!(other.poll(NOW).is_none());
            wakes += usize::from(first.waker().is_some_and(is_readable));
        }
        assert_eq!((wakes, counts(&first)), (0, (0, 0)));
        turn(&mut first);
        assert_eq!(counts(&first), (3_000, 1_000));
        // A message may say how much came until then.
        other.note_received(7, (1, 100), NOW.instant);
        other.poll(NOW);
        first.receive((0, "192.0.2.1:443".parse().expect("an address")), b"a message", NOW);
        assert_eq!(counts(&first), (3_000, 1_001));
        // What is more than a count still wakes it.
        other.receive((0, "192.0.2.1:443".parse().expect("an address")), b"a message", NOW);
        assert!(first.waker().is_some_and(is_readable));
    }

    #[test]
    fn the_first_thread_does_not_sleep_while_others_have_something_for_it_and_sleeps_when_they_have_not() {
        let (mut first, other) = threads();
        let to: SocketAddr = "192.0.2.1:443".parse().expect("an address");
        assert_eq!(turn(&mut first), 0);
        for _ in 0..=AT_ONCE {
            assert!(other.hand_over((0, to), b"a packet"));
        }
        for left in [1, 0] {
            assert!(first.waker().is_some_and(is_readable));
            assert_eq!(turn(&mut first), if left == 1 { AT_ONCE } else { 1 });
        }
        // What was said twice is read once more, and then no more.
        turn(&mut first);
        assert!(!first.waker().is_some_and(is_readable));
        assert!(other.hand_over((0, to), b"another") && first.waker().is_some_and(is_readable));
        assert_eq!(turn(&mut first), 1);
    }
}

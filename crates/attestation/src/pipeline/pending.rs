//! The routes of one direction of a pair, and the queue of those that wait to be looked at.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Prefix};

use super::jobs::RouteGroup;

/// Seconds after which routes are tried again on which work panicked.
pub(crate) const FAILED_REST: u64 = 600;

/// A route, and what was last found of it.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub(crate) attributes: Arc<Attributes>,
    /// Of these attributes or, while it waits, of earlier ones.
    pub(crate) found: Option<T>,
    /// When it must be looked at again, in seconds since 1970.
    pub(crate) due: Option<u64>,
    queued: bool,
}

/// One direction of a pair.
#[derive(Debug)]
pub(crate) struct PendingRoutes<T> {
    routes: BTreeMap<Nlri, Entry<T>>,
    queue: VecDeque<Nlri>,
    /// A burst is being worked on.
    pub(crate) in_flight: bool,
    /// Families whose end is to be told once nothing waits, IPv4 then IPv6.
    ends: [bool; 2],
}

impl<T> PendingRoutes<T> {
    pub(crate) fn new() -> Self {
        Self { routes: BTreeMap::new(), queue: VecDeque::new(), in_flight: false, ends: [false; 2] }
    }

    /// Takes a route in, and queues it.
    pub(crate) fn put(&mut self, nlri: Nlri, attributes: Arc<Attributes>) {
        match self.routes.get_mut(&nlri) {
            Some(entry) => entry.attributes = attributes,
            None => {
                self.routes.insert(nlri, Entry { attributes, found: None, due: None, queued: false });
            }
        }
        self.queue(&nlri);
    }

    /// Queues a route that is there, once.
    pub(crate) fn queue(&mut self, nlri: &Nlri) {
        if let Some(entry) = self.routes.get_mut(nlri).filter(|entry| !entry.queued) {
            entry.queued = true;
            self.queue.push_back(*nlri);
        }
    }

    /// Queues all.
    pub(crate) fn queue_all(&mut self) {
        self.queue_those(|_| true);
    }

    /// Forgets a route; its entry.
    pub(crate) fn remove(&mut self, nlri: &Nlri) -> Option<Entry<T>> {
        self.routes.remove(nlri)
    }

    /// The next burst of at most `most` routes, those with the same attributes together.
    pub(crate) fn burst(&mut self, most: usize) -> Vec<RouteGroup> {
        let mut groups: Vec<RouteGroup> = Vec::new();
        let mut places: HashMap<*const Attributes, usize> = HashMap::new();
        let mut taken = 0;
        while taken < most
            && let Some(nlri) = self.queue.pop_front()
        {
            // A route may have gone, or gone and come, since it was queued.
            let Some(entry) = self.routes.get_mut(&nlri).filter(|entry| entry.queued) else { continue };
            entry.queued = false;
            taken += 1;
            let attributes = Arc::clone(&entry.attributes);
            let place = *places.entry(Arc::as_ptr(&attributes)).or_insert_with(|| {
                groups.push(RouteGroup { attributes, routes: Vec::new() });
                groups.len() - 1
            });
            groups[place].routes.push(nlri);
        }
        groups
    }

    /// The entry of a route, if it still has the attributes that were looked at.
    pub(crate) fn same(&mut self, nlri: &Nlri, attributes: &Arc<Attributes>) -> Option<&mut Entry<T>> {
        self.routes.get_mut(nlri).filter(|entry| Arc::ptr_eq(&entry.attributes, attributes))
    }

    /// Forgets what was found of a route that still has these attributes, for it could not be looked at; it is due
    /// again then. Gives what was due before.
    pub(crate) fn fail(&mut self, nlri: &Nlri, attributes: &Arc<Attributes>, due: u64) -> Option<Option<u64>> {
        let entry = self.same(nlri, attributes)?;
        entry.found = None;
        Some(entry.due.replace(due))
    }

    /// A route that is there is due then; when it was before.
    pub(crate) fn set_due(&mut self, nlri: &Nlri, due: Option<u64>) -> Option<u64> {
        self.routes.get_mut(nlri).and_then(|entry| std::mem::replace(&mut entry.due, due))
    }

    /// Queues those for which `of` holds.
    pub(crate) fn queue_those(&mut self, of: impl Fn(&Entry<T>) -> bool) {
        let those: Vec<Nlri> = self.routes.iter().filter(|(_, entry)| of(entry)).map(|(nlri, _)| *nlri).collect();
        those.iter().for_each(|nlri| self.queue(nlri));
    }

    /// The entry of a route.
    pub(crate) fn get(&self, nlri: &Nlri) -> Option<&Entry<T>> {
        self.routes.get(nlri)
    }

    /// The routes in prefix order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Nlri, &Entry<T>)> {
        self.routes.iter()
    }

    /// All paths of a prefix.
    pub(crate) fn paths(&self, prefix: Prefix) -> impl Iterator<Item = (&Nlri, &Entry<T>)> {
        self.routes.range(Nlri { prefix, path_id: 0 }..=Nlri { prefix, path_id: u32::MAX })
    }

    /// Routes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// A family's end shall be told once nothing waits.
    pub(crate) fn end(&mut self, afi: Afi) {
        self.ends[usize::from(afi == Afi::Ipv6)] = true;
    }

    /// The ends that can be told now.
    pub(crate) fn ends(&mut self) -> Vec<Afi> {
        if self.in_flight || !self.queue.is_empty() {
            return Vec::new();
        }
        let ends = std::mem::take(&mut self.ends);
        [Afi::Ipv4, Afi::Ipv6].into_iter().zip(ends).filter(|(_, end)| *end).map(|(afi, _)| afi).collect()
    }

    /// No end is to be told: the session is over.
    pub(crate) fn forget_ends(&mut self) {
        self.ends = [false; 2];
    }
}

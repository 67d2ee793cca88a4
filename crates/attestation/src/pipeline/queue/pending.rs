//! Routes of one direction that wait for a verdict or a signature, with what is known of each.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Prefix};

use crate::pipeline::jobs::RouteGroup;

/// A route and the result of the last job on it.
#[derive(Debug)]
pub(crate) struct PendingRoute<T> {
    pub(crate) attributes: Arc<Attributes>,
    /// Of these attributes or, while the route waits, of earlier ones.
    pub(crate) result: Option<T>,
    /// When the route must be validated or signed again, in seconds since 1970.
    due: Option<u64>,
    queued: bool,
}

/// The routes of one direction.
#[derive(Debug)]
pub(crate) struct PendingRoutes<T> {
    routes: BTreeMap<Nlri, PendingRoute<T>>,
    queue: VecDeque<Nlri>,
    /// A job works on a burst of these routes.
    pub(crate) in_flight: bool,
    /// Families whose End-of-RIB is sent once no route waits, IPv4 then IPv6.
    ends: [bool; 2],
}

impl<T> PendingRoutes<T> {
    pub(crate) fn new() -> Self {
        Self { routes: BTreeMap::new(), queue: VecDeque::new(), in_flight: false, ends: [false; 2] }
    }

    /// Adds or replaces a route, and queues it.
    pub(crate) fn insert(&mut self, nlri: Nlri, attributes: Arc<Attributes>) {
        match self.routes.get_mut(&nlri) {
            Some(route) => route.attributes = attributes,
            None => {
                self.routes.insert(nlri, PendingRoute { attributes, result: None, due: None, queued: false });
            }
        }
        self.queue(&nlri);
    }

    /// Removes a route; returns when it was due.
    pub(crate) fn remove(&mut self, nlri: &Nlri) -> Option<u64> {
        self.routes.remove(nlri)?.due
    }

    /// Removes all routes. A job that is in flight stays so: its results match no route.
    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.queue.clear();
        self.ends = [false; 2];
    }

    /// Queues a known route, unless it waits already.
    pub(crate) fn queue(&mut self, nlri: &Nlri) {
        if let Some(route) = self.routes.get_mut(nlri).filter(|route| !route.queued) {
            route.queued = true;
            self.queue.push_back(*nlri);
        }
    }

    pub(crate) fn queue_all(&mut self) {
        self.queue_where(|_, _| true);
    }

    pub(crate) fn queue_where(&mut self, is_wanted: impl Fn(&Nlri, &PendingRoute<T>) -> bool) {
        self.queue_some(usize::MAX, is_wanted);
    }

    /// Queues at most `max` such routes that are not queued yet; returns how many.
    pub(crate) fn queue_some(&mut self, max: usize, is_wanted: impl Fn(&Nlri, &PendingRoute<T>) -> bool) -> usize {
        let is_wanted = |(nlri, route): &(&Nlri, &PendingRoute<T>)| !route.queued && is_wanted(nlri, route);
        let wanted: Vec<Nlri> = self.routes.iter().filter(is_wanted).map(|(nlri, _)| *nlri).take(max).collect();
        wanted.iter().for_each(|nlri| self.queue(nlri));
        wanted.len()
    }

    /// Takes at most `max` routes off the queue. Routes with the same attributes form one group.
    pub(crate) fn next_burst(&mut self, max: usize) -> Vec<RouteGroup> {
        let mut groups: Vec<RouteGroup> = Vec::new();
        let mut group_of: HashMap<*const Attributes, usize> = HashMap::new();
        let mut taken = 0;
        while taken < max
            && let Some(nlri) = self.queue.pop_front()
        {
            // The route may have been withdrawn since it was queued, or withdrawn and announced.
            let Some(route) = self.routes.get_mut(&nlri).filter(|route| route.queued) else { continue };
            route.queued = false;
            taken += 1;
            let attributes = Arc::clone(&route.attributes);
            let index = *group_of.entry(Arc::as_ptr(&attributes)).or_insert_with(|| {
                groups.push(RouteGroup { attributes, routes: Vec::new() });
                groups.len() - 1
            });
            groups[index].routes.push(nlri);
        }
        groups
    }

    /// The route, if it still has the attributes that the job worked on.
    pub(crate) fn unchanged(&mut self, nlri: &Nlri, attributes: &Arc<Attributes>) -> Option<&mut PendingRoute<T>> {
        self.routes.get_mut(nlri).filter(|route| Arc::ptr_eq(&route.attributes, attributes))
    }

    /// Forgets the result of an unchanged route whose job failed. Returns whether there is such a route.
    pub(crate) fn fail(&mut self, nlri: &Nlri, attributes: &Arc<Attributes>) -> bool {
        let Some(route) = self.unchanged(nlri, attributes) else { return false };
        route.result = None;
        true
    }

    /// Sets when the route must be validated or signed again; returns the previous time.
    pub(crate) fn set_due(&mut self, nlri: &Nlri, due: Option<u64>) -> Option<u64> {
        self.routes.get_mut(nlri).and_then(|route| std::mem::replace(&mut route.due, due))
    }

    pub(crate) fn get(&self, nlri: &Nlri) -> Option<&PendingRoute<T>> {
        self.routes.get(nlri)
    }

    /// The routes in prefix order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Nlri, &PendingRoute<T>)> {
        self.routes.iter()
    }

    /// All paths of a prefix (ADD-PATH).
    pub(crate) fn paths(&self, prefix: Prefix) -> impl Iterator<Item = (&Nlri, &PendingRoute<T>)> {
        self.routes.range(Nlri { prefix, path_id: 0 }..=Nlri { prefix, path_id: u32::MAX })
    }

    /// Number of routes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Requests End-of-RIB of a family, behind all routes that wait now.
    pub(crate) fn request_end_of_rib(&mut self, afi: Afi) {
        self.ends[usize::from(afi == Afi::Ipv6)] = true;
    }

    /// Takes the families whose End-of-RIB may be sent now.
    pub(crate) fn take_ends_of_rib(&mut self) -> Vec<Afi> {
        if self.in_flight || !self.queue.is_empty() {
            return Vec::new();
        }
        let ends = std::mem::take(&mut self.ends);
        [Afi::Ipv4, Afi::Ipv6].into_iter().zip(ends).filter(|(_, end)| *end).map(|(afi, _)| afi).collect()
    }

    /// The session is over: no End-of-RIB is sent.
    pub(crate) fn forget_ends_of_rib(&mut self) {
        self.ends = [false; 2];
    }
}

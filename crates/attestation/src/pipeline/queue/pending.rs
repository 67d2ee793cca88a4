//! Routes of one direction that wait for a verdict or a signature, with what is known of each.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Prefix};

use crate::pipeline::jobs::RouteGroup;

/// Void tickets that a queue may have beyond twice its routes.
const VOID_TICKETS: usize = 1024;

/// A route and the result of the last job on it.
#[derive(Debug)]
pub(crate) struct PendingRoute<T> {
    pub(crate) attributes: Arc<Attributes>,
    /// Of these attributes or, while the route waits, of earlier ones.
    pub(crate) result: Option<T>,
    /// When the route must be validated or signed again, in seconds since 1970.
    due: Option<u64>,
    /// Its place in the queue, while it waits.
    ticket: Option<u64>,
}

/// The routes of one direction.
#[derive(Debug)]
pub(crate) struct PendingRoutes<T> {
    routes: BTreeMap<Nlri, PendingRoute<T>>,
    /// Tickets and their routes. A ticket counts as long as its route has it: one that was withdrawn leaves a void one behind.
    queue: VecDeque<(u64, Nlri)>,
    tickets: u64,
    /// Routes that wait.
    waiting: usize,
    /// A job works on a burst of these routes.
    pub(crate) in_flight: bool,
    /// Families whose End-of-RIB is sent once no route waits, IPv4 then IPv6.
    ends: [bool; 2],
}

impl<T> PendingRoutes<T> {
    pub(crate) fn new() -> Self {
        Self {
            routes: BTreeMap::new(),
            queue: VecDeque::new(),
            tickets: 0,
            waiting: 0,
            in_flight: false,
            ends: [false; 2],
        }
    }

    /// Adds or replaces a route, and queues it.
    pub(crate) fn insert(&mut self, nlri: Nlri, attributes: Arc<Attributes>) {
        match self.routes.get_mut(&nlri) {
            Some(route) => route.attributes = attributes,
            None => {
                self.routes.insert(nlri, PendingRoute { attributes, result: None, due: None, ticket: None });
            }
        }
        self.queue(&nlri);
    }

    /// Removes a route; returns when it was due.
    pub(crate) fn remove(&mut self, nlri: &Nlri) -> Option<u64> {
        let route = self.routes.remove(nlri)?;
        self.waiting -= usize::from(route.ticket.is_some());
        self.drop_void_tickets();
        route.due
    }

    /// Whoever announces and withdraws the same routes again and again must not make the queue longer and longer.
    fn drop_void_tickets(&mut self) {
        if self.queue.len() > 2 * self.routes.len() + VOID_TICKETS {
            let routes = &self.routes;
            self.queue.retain(|(ticket, nlri)| routes.get(nlri).is_some_and(|route| route.ticket == Some(*ticket)));
            self.queue.shrink_to(2 * self.queue.len());
        }
    }

    /// Removes all routes. A job that is in flight stays so: its results match no route.
    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.queue = VecDeque::new();
        self.waiting = 0;
        self.ends = [false; 2];
    }

    /// Queues a known route, unless it waits already.
    pub(crate) fn queue(&mut self, nlri: &Nlri) {
        if let Some(route) = self.routes.get_mut(nlri).filter(|route| route.ticket.is_none()) {
            self.tickets += 1;
            route.ticket = Some(self.tickets);
            self.waiting += 1;
            self.queue.push_back((self.tickets, *nlri));
        }
    }

    pub(crate) fn queue_all(&mut self) {
        self.queue_where(|_, _| true);
    }

    pub(crate) fn queue_where(&mut self, is_wanted: impl Fn(&Nlri, &PendingRoute<T>) -> bool) {
        let is_wanted = |(nlri, route): &(&Nlri, &PendingRoute<T>)| route.ticket.is_none() && is_wanted(nlri, route);
        let wanted: Vec<Nlri> = self.routes.iter().filter(is_wanted).map(|(nlri, _)| *nlri).collect();
        wanted.iter().for_each(|nlri| self.queue(nlri));
    }

    /// Takes routes off the queue: at most `max` of them, and no more once `units` of their work are taken, but at least one.
    /// `cost` says how many units routes with the same attributes take; they form one group.
    pub(crate) fn next_burst(
        &mut self,
        max: usize,
        mut units: u64,
        cost: impl Fn(&Attributes) -> u64,
    ) -> Vec<RouteGroup> {
        let mut groups: Vec<RouteGroup> = Vec::new();
        let mut group_of: HashMap<*const Attributes, usize> = HashMap::new();
        let mut taken = 0;
        while taken < max
            && units > 0
            && let Some((ticket, nlri)) = self.queue.pop_front()
        {
            let Some(route) = self.routes.get_mut(&nlri).filter(|route| route.ticket == Some(ticket)) else { continue };
            route.ticket = None;
            self.waiting -= 1;
            taken += 1;
            let attributes = Arc::clone(&route.attributes);
            let index = *group_of.entry(Arc::as_ptr(&attributes)).or_insert_with(|| {
                units = units.saturating_sub(cost(&attributes));
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
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&Nlri, &PendingRoute<T>)> {
        self.routes.iter()
    }

    /// All paths of a prefix (ADD-PATH).
    pub(crate) fn paths(&self, prefix: Prefix) -> impl Iterator<Item = (&Nlri, &PendingRoute<T>)> {
        self.routes.range(Nlri { prefix, path_id: 0 }..=Nlri { prefix, path_id: u32::MAX })
    }

    /// Number of routes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Octets of the queue, and at most.
    pub(crate) fn queue_octets(&self) -> [usize; 2] {
        let most = 2 * self.routes.len() + VOID_TICKETS + 1;
        // The standard library's queue doubles.
        [self.queue.capacity(), 2 * most].map(|tickets| tickets * size_of::<(u64, Nlri)>())
    }

    /// Whether End-of-RIB of a family is requested.
    pub(crate) fn awaits_end_of_rib(&self) -> bool {
        self.ends.contains(&true)
    }

    /// Requests End-of-RIB of a family, behind all routes that wait now.
    pub(crate) fn request_end_of_rib(&mut self, afi: Afi) {
        self.ends[usize::from(afi == Afi::Ipv6)] = true;
    }

    /// Takes the families whose End-of-RIB may be sent now.
    pub(crate) fn take_ends_of_rib(&mut self) -> Vec<Afi> {
        if self.in_flight || self.waiting > 0 {
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

#[cfg(test)]
mod tests {
    //! KCX-34: routes that come and go: no queue is left behind.

    use super::*;
    use wayleave_bgp::Origin;

    #[test]
    fn routes_that_come_and_go_leave_no_queue_behind() {
        let mut routes: PendingRoutes<()> = PendingRoutes::new();
        let attributes = Arc::new(Attributes::builder().origin(Origin::Igp).finish());
        for number in 0..100_000_u32 {
            let address = (0x0a00_0000 | (number % 50_000) << 8).to_be_bytes();
            let nlri = Nlri::new(Prefix::new(address.into(), 24).expect("a prefix"));
            routes.insert(nlri, Arc::clone(&attributes));
            if number % 100 > 0 {
                routes.remove(&nlri);
            }
            let [octets, limit] = routes.queue_octets();
            assert!(octets <= limit, "{octets} octets for {} routes", routes.iter().count());
        }
        assert_eq!((routes.iter().count(), routes.waiting()), (500, 500));
        // A route that was withdrawn and announced waits once, at its last place.
        let first = *routes.iter().next().expect("a route").0;
        routes.remove(&first);
        routes.insert(first, attributes);
        let taken: Vec<Nlri> =
            routes.next_burst(1000, u64::MAX, |_| 1).into_iter().flat_map(|group| group.routes).collect();
        assert_eq!((taken.len(), taken.last()), (500, Some(&first)));
        assert_eq!(routes.waiting(), 0);
    }

    #[test]
    fn a_burst_ends_where_its_work_does() {
        let mut routes: PendingRoutes<()> = PendingRoutes::new();
        for number in 0..20_u8 {
            let attributes = Arc::new(Attributes::builder().origin(Origin::Igp).med(Some(number.into())).finish());
            routes.insert(Nlri::new(Prefix::new([10, number, 0, 0].into(), 16).expect("a prefix")), attributes);
        }
        let mut burst = |units| routes.next_burst(8, units, |_| 3).len();
        assert_eq!([burst(10), burst(1), burst(1000)], [4, 1, 8]);
    }
}
